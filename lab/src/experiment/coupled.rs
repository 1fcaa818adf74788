//! `pingpong --predict`: what a replay of causes predicts of two idlers that wait for each other, and what they do.
//!
//! The two are recorded under one setting of polling, as by `dwell record host` or `thread`, and where the guest polls, too, by the
//! guest itself at the same time. From that recording alone the work done under each other setting is predicted; then these are
//! run, without the recorder.

use super::pingpong::{EXCHANGES_PER_S, WARM_UP, vcpus};
use super::recorded::record_during;
use super::{LabError, Rig, layers, loops};
use crate::gaps::Gaps;
use crate::guest::pingpong::Exchange;
use crate::idle::Idle;
use dwell_capture::{Recorder, Target};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::{NEWEST_KERNEL, Version};
use dwell_recording::{CauseShares, Reader, Segments};
use dwell_replay::Rule;
use dwell_replay::alignment::host_polls;
use dwell_replay::calibration::Calibration;
use dwell_replay::causal::{Calibrated, Estimates, Predictor, with_maximum};
use dwell_replay::check::setting_of;

use dwell_stats::{Interval, median};
use serde::Serialize;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// The longest that is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Maxima {
    /// By the guest \[ns\]; 0 where only another layer polls.
    pub guest_ns: u32,
    /// By the host, or by the threads \[ns\].
    pub maximum_ns: u32,
}

impl Maxima {
    /// Of one layer \[ns\].
    pub const fn of(maximum_ns: u32) -> Maxima {
        Maxima { guest_ns: 0, maximum_ns }
    }
}

/// The work done under one setting, predicted from a recording under another, over that under the recorded one.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// What was recorded under.
    pub recorded: Maxima,
    /// What is predicted for.
    pub other: Maxima,
    pub predicted: Interval,
    pub measured: f64,
}

impl Prediction {
    /// Predicted / measured - 1.
    pub fn error(&self) -> f64 {
        self.predicted.value / self.measured - 1.0
    }

    /// Whether the range has what was measured.
    pub fn is_in_range(&self) -> bool {
        (self.predicted.low..=self.predicted.high).contains(&self.measured)
    }
}

/// A recording of the two under one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Recorded {
    pub maxima: Maxima,
    /// As the recording has it, with the recorder, which takes CPU time.
    pub exchanges_per_s: f64,
    /// Without the recorder: the median of the rounds.
    pub measured_per_s: f64,
    /// What woke the two.
    pub causes: CauseShares,
    /// What the recording shows of polls and halts, or what is calibrated or assumed of them.
    pub constants: Estimates,
}

/// What one recording is, and what else is known of the machine.
struct Watched {
    per_s: f64,
    segments: Segments,
    /// Of a guest that polls, too: which of its halts the host polled through.
    by_host: Vec<Option<bool>>,
    /// The layer's setting that was in force, or the host's.
    present: Setting,
    known: Calibrated,
}

/// Who waits for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Between {
    /// Two vCPUs of one VM, by IPIs.
    Vcpus,
    /// vCPUs of two VMs, by doorbells.
    Vms,
    /// Two threads, by eventfds, which poll as QEMU's event loops do.
    Threads,
    /// Two vCPUs of one VM, which poll themselves, as the haltpoll governor does, above a host that polls.
    Layers,
}

impl Between {
    const fn layer(self) -> Layer {
        match self {
            Between::Vcpus | Between::Vms | Between::Layers => Layer::Host,
            Between::Threads => Layer::Iothread,
        }
    }
}

/// The release of QEMU whose rule the threads follow.
const QEMU: Version = Version::new(10, 0);

/// What is run.
pub struct Pair<'a> {
    pub rig: &'a Rig,
    pub between: Between,
    /// The thinking times of the first one.
    pub think: &'a Gaps,
    pub seed: u64,
    pub exchanges: usize,
}

/// haltpoll's setting with this maximum \[ns\].
fn haltpoll(maximum_ns: u32) -> Setting {
    with_maximum(Setting::defaults(Layer::Guest, NEWEST_KERNEL), maximum_ns.into())
}

impl Pair<'_> {
    /// Exchanges a second.
    fn run(&self, maxima: Maxima, round: u64, stop: &AtomicBool) -> Result<f64, LabError> {
        self.run_and_see(maxima, round, stop, |_| ())
    }

    fn run_and_see(
        &self,
        Maxima { guest_ns, maximum_ns }: Maxima,
        round: u64,
        stop: &AtomicBool,
        ended: impl FnOnce(&Exchange),
    ) -> Result<f64, LabError> {
        let think = self.think.sequence(self.seed, round, WARM_UP + self.exchanges).gaps;
        if self.between == Between::Threads {
            let default = Setting::defaults(Layer::Iothread, QEMU);
            let rule = Rule::Layer(with_maximum(default, maximum_ns.into()));
            return loops::exchanges_per_s(self.rig, &think, WARM_UP, &rule, stop);
        }
        let apart = self.between == Between::Vms;
        let idle = match guest_ns {
            0 => Idle::host(maximum_ns),
            _ => Idle::guest(Rule::Layer(haltpoll(guest_ns))).above_host(maximum_ns),
        };
        let block = vcpus(self.rig, &think, &idle, apart, stop, ended)?;
        Ok(block.figures.get(EXCHANGES_PER_S).copied().unwrap_or(f64::NAN))
    }

    /// Of the threads that will run, none is there yet.
    fn target(&self) -> Target {
        match self.between {
            Between::Threads => {
                let comm = loops::NAMES.map(str::to_owned).to_vec();
                Target::Thread { pid: None, comm, causes: true }
            }
            Between::Layers => Target::Host { pid: None, exits: false, contention: false, causes: false },
            _ => Target::Host { pid: None, exits: false, contention: false, causes: true },
        }
    }

    /// The rule in force, of a layer whose other parameters these are.
    fn rule(&self, Maxima { guest_ns, maximum_ns }: Maxima, others: Setting) -> Rule {
        let own = with_maximum(others, maximum_ns.into());
        match self.between {
            Between::Layers => {
                Rule::Stacked { guest: haltpoll(guest_ns), host: own, poll_control: maximum_ns > 0 }
            }
            _ => Rule::Layer(own),
        }
    }

    fn recorded(&self, maxima: Maxima, stop: &AtomicBool) -> Result<Watched, LabError> {
        let recorder = Recorder::open(self.target(), None)?;
        let mut players = None;
        let (per_s, bytes) = record_during(self.rig, recorder, || {
            self.run_and_see(maxima, 0, stop, |exchange| {
                let clock = layers::Monotonic::now(self.rig);
                let exchanges = WARM_UP + self.exchanges;
                players = Some(([0, 1].map(|player| exchange.exchanged(player, exchanges)), clock));
            })
        })?;
        let reader = Reader::from_bytes("the lab's recording", bytes)?;
        let metadata = reader.metadata();
        let layer = self.between.layer();
        let version = match layer {
            Layer::Iothread => QEMU,
            _ => metadata.kernel.as_deref().and_then(Version::parse).ok_or(LabError::UnknownKernel)?,
        };
        // The module's parameters; the maximum is that of the VM.
        let others = setting_of(layer, version, &metadata.settings)
            .unwrap_or_else(|| Setting::defaults(layer, version));
        let known = Calibration::load_for(metadata).ok().flatten().as_ref().map(Calibrated::from);
        let of_guest = players.filter(|_| self.between == Between::Layers).map(|(players, clock)| {
            layers::recording(&players, &clock, &haltpoll(maxima.guest_ns), metadata)
        });
        let of_guest = of_guest.transpose()?;
        let segments = of_guest.as_ref().unwrap_or(&reader).segments()?.ok_or(LabError::NoCauses)?;
        let by_host = match &of_guest {
            Some(guest) => host_polls(guest, &segments, &reader)?.ok_or(LabError::NotAligned)?.by_segment,
            None => vec![],
        };
        Ok(Watched { per_s, segments, by_host, present: others, known: known.unwrap_or_default() })
    }

    /// Runs the pair under each setting in turns, in an order that rotates, records it under each after half of the rounds, and
    /// predicts each from each other. Threads are recorded without polls only, as their polls cannot be seen.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn predict(
        &self,
        settings: &[Maxima],
        rounds: u32,
        stop: &AtomicBool,
    ) -> Result<(Vec<Recorded>, Vec<Prediction>), LabError> {
        let mut per_s = vec![vec![]; settings.len()];
        let mut turns = |rounds: Range<u32>| -> Result<(), LabError> {
            for round in rounds {
                let arms = 0..settings.len();
                for arm in arms.clone().cycle().skip(round as usize % arms.len()).take(arms.len()) {
                    per_s[arm].push(self.run(settings[arm], round.into(), stop)?);
                }
            }
            Ok(())
        };
        turns(0..rounds / 2)?;
        let is_seen = |maxima: &Maxima| maxima.maximum_ns == 0 || self.between != Between::Threads;
        let watched: Vec<Option<Watched>> = settings
            .iter()
            .map(|maxima| is_seen(maxima).then(|| self.recorded(*maxima, stop)).transpose())
            .collect::<Result<_, _>>()?;
        turns(rounds / 2..rounds)?;
        let measured: Vec<f64> = per_s.into_iter().map(|all| median(all).unwrap_or(f64::NAN)).collect();
        let (mut recordings, mut cells) = (vec![], vec![]);
        for ((recorded, measured_per_s), watched) in settings.iter().zip(&measured).zip(watched) {
            let Some(Watched { per_s, segments, by_host, present, known }) = watched else { continue };
            let causes = segments.shares();
            let under = self.rule(*recorded, present);
            let predictor = match self.between {
                Between::Layers => Predictor::of_all(&segments, &under, &by_host, known)?,
                _ => Predictor::new(&segments, &under, &[], known, None)?,
            };
            let predictor = predictor.ok_or(LabError::NoCauses)?;
            recordings.push(Recorded {
                maxima: *recorded,
                exchanges_per_s: per_s,
                measured_per_s: *measured_per_s,
                causes,
                constants: predictor.estimates,
            });
            let others = || settings.iter().zip(&measured).filter(|(other, _)| *other != recorded);
            let rules: Vec<Rule> =
                std::iter::once(under).chain(others().map(|(other, _)| self.rule(*other, present))).collect();
            let judged = predictor.judge(&rules)?;
            for (row, (other, per_s)) in (1..).zip(others()) {
                cells.push(Prediction {
                    recorded: *recorded,
                    other: *other,
                    predicted: judged.work(row, dwell_policy::Nanos::ZERO).speed.into(),
                    measured: per_s / measured_per_s,
                });
            }
        }
        Ok((recordings, cells))
    }
}
