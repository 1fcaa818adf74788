//! What a controller does, as numbers: for `dwell status --control`, and as OpenMetrics over HTTP.
//!
//! The controller publishes a [`Snapshot`] and waits for nobody. A thread of its own encodes the last one for
//! whoever asks ([`serve`](super::serve)).

use super::cpu_time;
use super::observe::{Source, vm_id};
use crate::core::{Cause, Seen, Tenant, Veto};
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::lease::Subject;
use dwell_policy::param::{Setting, Unit};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit as MetricUnit};
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// The most VMs that have series of their own; those above are one.
const MOST_VMS: usize = 256;
const OTHER: &str = "other";
/// The states that a layer can be in.
const STATES: [&str; 5] = ["advises", "controls", "rests", "untrusted", "given_up"];

dwell_policy::named! {
    /// Why a setting was changed, or control ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum Reason {
        /// Another setting costs less.
        Gain = "gain",
        /// Control had cost more than the originals.
        Loss = "loss",
        /// Control had cost a VM more than its limit.
        Veto = "veto",
        /// Turns did not exclude a loss.
        Refuted = "refuted",
        /// The rule does not describe the load.
        Untrusted = "untrusted",
        /// Another program has written a parameter.
        Foreign = "foreign",
        /// Something could not be read or written.
        Failed = "failed",
    }

    pub(super) fn name
}

impl Reason {
    pub(super) fn of(cause: &Cause) -> Reason {
        match cause {
            Cause::Gain { .. } | Cause::Work { .. } | Cause::Turn | Cause::Verified(_) | Cause::Tried(_) => {
                Reason::Gain
            }
            Cause::Refuted { .. } => Reason::Refuted,
            Cause::Loss { .. } => Reason::Loss,
            Cause::Vetoed { .. } => Reason::Veto,
            Cause::Untrusted { .. } => Reason::Untrusted,
            Cause::Unseen { .. } => Reason::Failed,
        }
    }
}

/// What was seen of a VM, or of all CPUs of a guest, since the start. What is watched in bursts is scaled up
/// to all of the time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    episodes: f64,
    polls_succeeded: f64,
    polls_failed: f64,
    polled_s: f64,
    halts: f64,
    /// Polling CPU plus halts at their cost, of the periods of which episodes are known.
    measured_s: f64,
    predicted_s: f64,
    originals_s: f64,
    optimum_s: f64,
    /// Of a VM that the configuration lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<Listed>,
}

/// A VM that the configuration lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Listed {
    name: Option<String>,
    weight: f64,
    most_loss: Option<f64>,
    /// The decisions in which it vetoed the setting that would have been chosen.
    vetoes: u64,
}

impl Figures {
    fn add(&mut self, seen: &Seen) {
        let (counted, scale) = (&seen.counted, 1.0 / seen.share.max(1e-6));
        let seconds = |ns: f64| scale * ns / 1e9;
        self.episodes += scale * counted.episodes as f64;
        self.polls_succeeded += scale * counted.polls_succeeded as f64;
        self.polls_failed += scale * counted.polls.saturating_sub(counted.polls_succeeded) as f64;
        self.polled_s += seconds(counted.polled_ns as f64);
        self.halts += scale * counted.halts as f64;
        if let Some(costs) = seen.costs {
            self.measured_s += seconds(costs.measured);
            self.predicted_s += seconds(costs.predicted);
            self.originals_s += seconds(costs.originals);
            self.optimum_s += seconds(costs.optimum);
        }
    }
}

/// What a controller did at one layer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Tally {
    pub(super) decisions: u64,
    pub(super) changes: u64,
    pub(super) writes: u64,
    #[serde(skip)]
    pub(super) cpu: Duration,
    pub(super) last: Option<String>,
    /// When that was \[ns since control began\].
    #[serde(skip)]
    pub(super) last_ns: Option<u64>,
    reasons: BTreeMap<Reason, u64>,
    /// The predicted cost of the last period over the counted one, less 1.
    model_error: Option<f64>,
    /// Of each VM, by its process; of a guest's CPUs under one name, which is empty.
    figures: BTreeMap<String, Figures>,
}

impl Tally {
    pub(super) fn reason(&mut self, reason: Reason) {
        *self.reasons.entry(reason).or_default() += 1;
    }

    /// From now on another setting is in force, or is advised, for this reason, in words.
    pub(super) fn change(&mut self, now_ns: u64, reason: Reason, why: &str) {
        self.reason(reason);
        self.changes += 1;
        self.last = Some(why.to_owned());
        self.last_ns = Some(now_ns);
    }

    /// Takes in a period, and what was vetoed. VMs that are gone are dropped.
    pub(super) fn see(&mut self, seen: &[Seen], vetoes: &[Veto], source: &dyn Source) {
        let mut here: Vec<String> = vec![];
        let vms = source.vms();
        for one in seen {
            let id = vm_id(one.idler);
            let mut name = vms.map_or_else(String::new, |_| id.to_string());
            if !self.figures.contains_key(&name) && self.figures.len() >= MOST_VMS {
                OTHER.clone_into(&mut name);
            }
            let figures = self.figures.entry(name.clone()).or_default();
            figures.add(one);
            let found = vms.map(|vms| vms.found(id)).unwrap_or_default();
            if found.listed && name != OTHER {
                let Tenant { weight, most_loss } = found.tenant;
                let vetoed = vetoes.iter().filter(|veto| veto.idler == one.idler).count() as u64;
                let before = figures.tenant.as_ref().map_or(0, |listed| listed.vetoes);
                figures.tenant =
                    Some(Listed { name: found.name, weight, most_loss, vetoes: before + vetoed });
            }
            here.push(name);
        }
        match vms.is_some() {
            true => self.figures.retain(|name, _| here.contains(name)),
            false => drop(self.figures.entry(String::new()).or_default()),
        }
        let costs = || seen.iter().filter_map(|seen| seen.costs);
        let measured: f64 = costs().map(|costs| costs.measured).sum();
        let predicted: f64 = costs().map(|costs| costs.predicted).sum();
        if measured > 0.0 {
            self.model_error = Some(predicted / measured - 1.0);
        }
    }
}

/// One layer at one moment.
#[derive(Clone, Debug)]
pub(super) struct OfLayer {
    pub(super) subject: Subject,
    pub(super) state: &'static str,
    /// The setting in force; `None` where it is left to others.
    pub(super) present: Option<Setting>,
    pub(super) lost: u64,
    pub(super) tally: Tally,
}

/// All layers at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) layers: Vec<OfLayer>,
}

/// What is published, by one thread for another.
#[derive(Clone, Debug)]
pub(super) struct Published {
    last: Arc<Mutex<Arc<Snapshot>>>,
    begun: f64,
}

impl Published {
    pub(super) fn new() -> Published {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Published { last: Arc::default(), begun: since.map_or(0.0, |since| since.as_secs_f64()) }
    }

    /// The lock is held as long as a pointer is copied, here and where it is read.
    pub(super) fn publish(&self, snapshot: Snapshot) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    fn last(&self) -> Arc<Snapshot> {
        Arc::clone(&self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn encode(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut encoded = String::new();
        text::encode(&mut encoded, &registry)?;
        Ok(encoded)
    }
}

/// Label names and values.
type Labels = Vec<(&'static str, String)>;
/// The samples of a metric.
type Samples = Vec<(Labels, f64)>;

/// A counter or a gauge: its name, what it is, its unit, and its samples.
type Metric<'a> = (MetricType, &'static str, &'static str, Option<&'a MetricUnit>, Samples);

/// Encodes counters and gauges.
fn encode(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric<'_>]) -> fmt::Result {
    for (kind, name, help, unit, samples) in metrics {
        let mut metric = encoder.encode_descriptor(name, help, *unit, *kind)?;
        for (labels, value) in samples {
            let sample = metric.encode_family(labels)?;
            match kind {
                Counter => ConstCounter::new(*value).encode(sample)?,
                _ => ConstGauge::new(*value).encode(sample)?,
            }
        }
    }
    Ok(())
}

impl Snapshot {
    /// A sample of each layer.
    fn layers(&self, of: impl Fn(&OfLayer) -> Vec<(Labels, f64)>) -> Samples {
        let one = |layer: &OfLayer| {
            let named = |(labels, value)| {
                let mut all = vec![("layer", layer.subject.layer().name().to_owned())];
                if let Some(IothreadTarget { socket, id, .. }) = layer.subject.iothread() {
                    all.extend([("qmp", socket.clone()), ("iothread", id.to_string())]);
                }
                all.extend::<Labels>(labels);
                (all, value)
            };
            of(layer).into_iter().map(named).collect::<Vec<_>>()
        };
        self.layers.iter().flat_map(one).collect()
    }

    fn layer(&self, of: impl Fn(&OfLayer) -> f64) -> Samples {
        self.layers(|layer| vec![(vec![], of(layer))])
    }

    /// Samples of each VM: a label more, where there is one, and the value.
    fn vms<const N: usize>(
        &self,
        of: impl Fn(&Figures) -> [(Option<(&'static str, &str)>, f64); N],
    ) -> Samples {
        self.layers(|layer| {
            let vms = layer.tally.figures.iter().flat_map(|(name, figures)| {
                of(figures).map(|(label, value)| {
                    let vm = (!name.is_empty()).then(|| ("vm", name.clone()));
                    let label = label.map(|(name, value)| (name, value.to_owned()));
                    (vm.into_iter().chain(label).collect(), value)
                })
            });
            vms.collect()
        })
    }

    fn settings(&self, time: bool) -> Samples {
        self.layers(|layer| {
            let all = layer.present.iter().flat_map(Setting::iter).filter_map(|(param, value)| {
                let nanos = match param.unit {
                    Unit::Nanoseconds => Some(1.0),
                    Unit::Microseconds => Some(1e3),
                    Unit::Factor | Unit::Percent | Unit::Shift | Unit::Switch | Unit::Name(_) => None,
                };
                let value = match nanos {
                    Some(nanos) => value as f64 * nanos / 1e9,
                    None => value as f64,
                };
                (nanos.is_some() == time).then(|| (vec![("parameter", param.name.to_owned())], value))
            });
            all.collect()
        })
    }
}

impl Collector for Published {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (snapshot, seconds) = (self.last(), Some(&MetricUnit::Seconds));
        let version = vec![(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)];
        let modes = snapshot.layers(|layer| {
            let of = |state: &&'static str| {
                (vec![("mode", (*state).to_owned())], f64::from(u8::from(*state == layer.state)))
            };
            STATES.iter().map(of).collect()
        });
        let polls = snapshot.vms(|of| {
            [(Some(("result", "success")), of.polls_succeeded), (Some(("result", "fail")), of.polls_failed)]
        });
        let cost = snapshot.vms(|of| {
            [
                (Some(("of", "measured")), of.measured_s),
                (Some(("of", "predicted")), of.predicted_s),
                (Some(("of", "original")), of.originals_s),
                (Some(("of", "optimum")), of.optimum_s),
            ]
        });
        let changes = snapshot.layers(|layer| {
            let of = |reason: Reason| {
                let number = layer.tally.reasons.get(&reason).copied().unwrap_or(0);
                (vec![("reason", reason.name().to_owned())], number as f64)
            };
            Reason::ALL.map(of).to_vec()
        });
        let vetoes = snapshot.layers(|layer| {
            let of = |(name, figures): (&String, &Figures)| {
                let listed = figures.tenant.as_ref().filter(|listed| listed.most_loss.is_some())?;
                Some((vec![("vm", name.clone())], listed.vetoes as f64))
            };
            layer.tally.figures.iter().filter_map(of).collect()
        });
        let error = |layer: &OfLayer| layer.tally.model_error.map(|error| (vec![], error));
        let error = snapshot.layers(|layer| error(layer).into_iter().collect());
        let (settings, factors) = (snapshot.settings(true), snapshot.settings(false));
        let vms = |of: fn(&Figures) -> f64| snapshot.vms(|figures| [(None, of(figures))]);
        let (episodes, polled, halts) = (vms(|of| of.episodes), vms(|of| of.polled_s), vms(|of| of.halts));
        let decisions = snapshot.layer(|layer| layer.tally.decisions as f64);
        let writes = snapshot.layer(|layer| layer.tally.writes as f64);
        let lost = snapshot.layer(|layer| layer.lost as f64);
        const FACTOR: &str =
            "Parameter in force that is no time: a factor, a share in percent, a shift, a switch or a policy";
        const POLLS: &str = "Polls, by whether the wakeup came while polling";
        const COST: &str = "Polling CPU plus halts at their cost: measured, and predicted of the setting in force, of \
                            the originals and of the offline optimum";
        const VETOES: &str =
            "Decisions in which a VM vetoed the setting that would have been chosen, of VMs with a limit";
        const ERROR: &str =
            "Cost predicted of the setting in force over the cost counted, less 1, in the last period";
        let metrics = [
            (Gauge, "dwell_build_info", "Version of dwell", None, version),
            (Gauge, "dwell_mode", "1 for the mode that a layer is in", None, modes),
            (Gauge, "dwell_setting", "Parameter in force that is a time", seconds, settings),
            (Gauge, "dwell_setting_factor", FACTOR, None, factors),
            (Counter, "dwell_episodes", "Times that an idler had nothing to run", None, episodes),
            (Counter, "dwell_polls", POLLS, None, polls),
            (Counter, "dwell_poll", "Polling CPU", seconds, polled),
            (Counter, "dwell_halts", "Halts", None, halts),
            (Counter, "dwell_cost", COST, seconds, cost),
            (Counter, "dwell_changes", "Changes of a setting, and ends of control, by reason", None, changes),
            (Counter, "dwell_vetoes", VETOES, None, vetoes),
            (Counter, "dwell_decisions", "Decisions", None, decisions),
            (Counter, "dwell_writes", "Parameters written", None, writes),
            (Gauge, "dwell_model_error_ratio", ERROR, None, error),
            (Counter, "dwell_observation_lost", "Trace events lost in bursts", None, lost),
        ];
        encode(&mut encoder, &metrics)?;
        self.encode_process(&mut encoder)
    }
}

impl Published {
    fn encode_process(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let bytes = Some(&MetricUnit::Bytes);
        let seconds = Some(&MetricUnit::Seconds);
        let mut one = |name: &str, help: &str, unit, value: f64| {
            let metric = out.encode_descriptor(name, help, unit, Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        one("process_start_time", "Start since 1970, by the clock at the start", seconds, self.begun)?;
        if let Some([total, resident]) = memory() {
            one("process_virtual_memory", "Virtual memory", bytes, total)?;
            one("process_resident_memory", "Resident memory", bytes, resident)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            one("process_open_fds", "Open file descriptors", None, open.count() as f64)?;
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            one("process_max_fds", "Most open file descriptors", None, most as f64)?;
        }
        let cpu = out.encode_descriptor("process_cpu", "CPU time, user and system", seconds, Counter)?;
        ConstCounter::new(cpu_time().as_secs_f64()).encode(cpu)
    }
}

/// All memory and what is resident of it \[bytes\].
fn memory() -> Option<[f64; 2]> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = statm.split_ascii_whitespace().map(str::parse::<f64>);
    let mut bytes = || Some(pages.next()?.ok()? * page_size() as f64);
    Some([bytes()?, bytes()?])
}

#[cfg(test)]
mod tests {
    use super::super::config::{Config, Options};
    use super::super::observe::{WakeupLatency, of_layer};
    use super::*;
    use crate::core::Costs;
    use dwell_policy::version::Version;
    use dwell_policy::{Layer, Nanos};
    use dwell_replay::Counts;
    use dwell_testing::open_metrics;

    fn of_host() -> Box<dyn Source> {
        let latency = WakeupLatency { assumed: Nanos::ZERO, measured: false };
        let config = Config::read(None, Options::default()).unwrap();
        of_layer(&dwell_testing::machine::Fake::new(), Layer::Host, latency, &config).unwrap()
    }

    fn published(vms: u64) -> Published {
        let counted = Counts {
            episodes: 10,
            polls: 8,
            polls_succeeded: 6,
            polled_ns: 40_000,
            halts: 4,
            ..Counts::default()
        };
        let costs =
            Costs { measured: 120_000.0, predicted: 132_000.0, originals: 240_000.0, optimum: 90_000.0 };
        let mut tally = Tally { decisions: 7, changes: 2, writes: 3, ..Tally::default() };
        tally.reason(Reason::Gain);
        tally.reason(Reason::Gain);
        tally.reason(Reason::Foreign);
        let seen = |vm: u64| Seen { idler: (100 + vm) << 32 | 9, share: 0.5, counted, costs: Some(costs) };
        let source = of_host();
        tally.see(&(0..vms).map(seen).collect::<Vec<_>>(), &[], &*source);
        let present = Some(Setting::defaults(Layer::Host, Version::new(6, 18)));
        let published = Published::new();
        let layers =
            vec![OfLayer { subject: Subject::Layer(Layer::Host), state: "rests", present, lost: 5, tally }];
        published.publish(Snapshot { layers });
        published
    }

    #[test]
    fn each_figure_is_there_with_its_labels() {
        const NAME: &str = "each_figure_is_there_with_its_labels";
        let text = published(2).encode().unwrap();
        let samples = open_metrics::read(&text).unwrap();
        for (series, value) in [
            ("dwell_mode{layer=\"host\",mode=\"rests\"}", 1.0),
            ("dwell_mode{layer=\"host\",mode=\"controls\"}", 0.0),
            ("dwell_setting_seconds{layer=\"host\",parameter=\"halt_poll_ns\"}", 200e-6),
            ("dwell_setting_factor{layer=\"host\",parameter=\"halt_poll_ns_grow\"}", 2.0),
            ("dwell_episodes_total{layer=\"host\",vm=\"100-9\"}", 20.0),
            ("dwell_polls_total{layer=\"host\",vm=\"101-9\",result=\"fail\"}", 4.0),
            ("dwell_poll_seconds_total{layer=\"host\",vm=\"100-9\"}", 80e-6),
            ("dwell_halts_total{layer=\"host\",vm=\"100-9\"}", 8.0),
            ("dwell_cost_seconds_total{layer=\"host\",vm=\"100-9\",of=\"measured\"}", 240e-6),
            ("dwell_cost_seconds_total{layer=\"host\",vm=\"100-9\",of=\"original\"}", 480e-6),
            ("dwell_cost_seconds_total{layer=\"host\",vm=\"100-9\",of=\"optimum\"}", 180e-6),
            ("dwell_changes_total{layer=\"host\",reason=\"gain\"}", 2.0),
            ("dwell_changes_total{layer=\"host\",reason=\"untrusted\"}", 0.0),
            ("dwell_model_error_ratio{layer=\"host\"}", 0.1),
            ("dwell_observation_lost_total{layer=\"host\"}", 5.0),
        ] {
            let found = samples.get(series).copied().unwrap_or(f64::NAN);
            assert!((found - value).abs() < 1e-9, "{series} {found}\n{text}");
        }
        assert!(samples["process_open_fds"] > 0.0 && samples["process_resident_memory_bytes"] > 1e6);
        match open_metrics::promtool(&text) {
            Some(checked) => assert_eq!(checked, Ok(()), "{text}"),
            None => dwell_testing::skip!("programs", NAME, "no promtool, the part about it"),
        }
    }

    #[test]
    fn vms_have_nine_series_each_and_only_so_many_have_any() {
        let number = |vms: u64| open_metrics::read(&published(vms).encode().unwrap()).unwrap().len();
        assert_eq!(number(3) - number(2), 9);
        let most = MOST_VMS as u64;
        assert_eq!(number(most + 1), number(most) + 9, "one that has the rest");
        assert_eq!(number(most + 100), number(most + 1));
    }

    #[test]
    fn a_vm_that_is_gone_has_no_series() {
        let source = of_host();
        let mut tally = Tally::default();
        let seen = |pid: u64| Seen { idler: pid << 32, share: 1.0, counted: Counts::default(), costs: None };
        tally.see(&[seen(1), seen(2)], &[], &*source);
        tally.see(&[seen(2)], &[], &*source);
        assert_eq!(tally.figures.keys().collect::<Vec<_>>(), ["2-0"]);
    }
}
