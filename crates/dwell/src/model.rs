//! The rule to replay over a recording, its version and the halt cost: options that `replay` and `tune` share.

use crate::quantity;
use crate::settings::VersionArgs;
use crate::suggest;
use anyhow::{Context, ensure};
use dwell_knobs::lines;
use dwell_policy::param::{Setting, known_version};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos, Owner};
use dwell_recording::timer::TimerContents;
use dwell_recording::{IdleIncludes, Metadata, Reader, with_causes};
use dwell_replay::advice::Origin;
use dwell_replay::calibration::{Calibration, HaltCosts, HaltOf, LoadCalibrationError};
use dwell_replay::causal::{self, Calibrated};
use dwell_replay::check::{self, layer_in_force, setting_of};
use dwell_replay::tune::MIN_EPISODES;
use dwell_replay::{Pricing, RecordingSource, Replayed, Versions, WakeupLatency, latency};
use std::path::Path;

/// Options of every command that replays.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Layer whose rule to replay [default: the layer of the recording]
    ///
    /// host is KVM halt polling, guest the haltpoll governor, driver the idle driver dwell_idle of a guest and
    /// iothread QEMU's adaptive polling. A recording of one layer can be replayed through the rule of another.
    #[arg(long, value_parser = suggest::single_layers(Whose::single), value_name = "LAYER")]
    pub(crate) layer: Option<Whose>,
    #[command(flatten)]
    pub(crate) versions: VersionArgs,
    /// Cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// Includes the VM exit, the wakeup interrupt, scheduling, and whatever the latency of a wakeup is worth to you.
    /// From 0 to 10ms. 5us is little more than the CPU time of the exit, 20us that of a halt
    /// and wakeup on nested or busy hosts; 50us and more put a value on latency. With 0, halts are free and never
    /// polling is best. [default: measured by `dwell-lab calibrate` on the machine of the recording, else
    /// that of the driver dwell_idle, else 20us; no less than what halts add to the segments of the recording]
    #[arg(long, value_name = "TIME", value_parser = quantity::halt)]
    pub(crate) halt_cost: Option<Nanos>,
    /// Latency that one halt adds to its wakeup, such as 8us
    ///
    /// After a halt the kernel's rule learns from idle time and latency together, so that what it does next depends on
    /// it, and so do the columns of added latency. From 0; with 0, halting adds no latency. [default: the wakeup
    /// latencies of the recording; if it has none, the latency measured by `dwell-lab calibrate`; else none for the
    /// rule, and the halt cost in the columns]
    #[arg(long, alias = "wake-latency", value_name = "TIME", value_parser = quantity::halt)]
    pub(crate) wakeup_latency: Option<Nanos>,
}

/// The layers whose rules are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The rule of one layer.
    One(Layer),
    /// A polling guest above a host that may poll as well.
    Stacked,
}

impl ModelArgs {
    /// With the host's recording given, the layer is guest+host.
    pub(crate) fn above_host(&mut self) -> anyhow::Result<()> {
        let whose = *self.layer.get_or_insert(Whose::Stacked);
        ensure!(
            whose == Whose::Stacked,
            "--host takes the guest and its host together; leave out --layer {}",
            whose.name()
        );
        Ok(())
    }
}

impl Whose {
    /// Reads the name of a layer, or `guest+host`.
    pub(crate) fn parse(text: &str) -> Result<Whose, String> {
        match text {
            "guest+host" => Ok(Whose::Stacked),
            _ => Layer::from_name(text).map(Whose::One).ok_or_else(|| {
                "layers that can be replayed: host, guest, driver, iothread, guest+host; timers: `dwell timer`".to_owned()
            }),
        }
    }

    /// Reads the name of a layer.
    pub(crate) fn single(text: &str) -> Result<Whose, String> {
        let one = Layer::from_name(text).map(Whose::One);
        one.ok_or_else(|| {
            "give one layer: host, guest, driver or iothread; a guest and its host together: `dwell tune GUEST --host HOST`; \
             timers: `dwell timer`"
                .to_owned()
        })
    }

    /// The layers whose rules take part, the one that idles first.
    fn layers(&self) -> &[Layer] {
        match self {
            Whose::One(layer) => std::slice::from_ref(layer),
            Whose::Stacked => &[Layer::Guest, Layer::Host],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Whose::One(layer) => layer.name(),
            Whose::Stacked => "guest+host",
        }
    }
}

/// The rule, version and costs of a replay.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) whose: Whose,
    pub(crate) version: Version,
    pub(crate) halt_cost: Nanos,
    pub(crate) halt_cost_origin: Origin,
    pub(crate) wakeup_latency: WakeupLatency,
    pub(crate) wakeup_latency_origin: Origin,
    /// The latency that was given, and the one that was measured on the machine of the recording.
    given_and_measured: (Option<Nanos>, Option<Nanos>),
    /// The waker's part of a halt cost that was measured there.
    waker: Option<Nanos>,
    /// Whether the version was given as an option.
    version_asked: bool,
    /// The setting that a QEMU has now.
    in_force: Option<Setting>,
    /// The kernel release of the guest's host, from the host's recording.
    host_version: Option<Version>,
    /// Whether what was recorded has the parameters of the rule: not threads that are not QEMU's, as far as their names show.
    has_parameters: bool,
    /// Whether it is known to have waited without polls: threads without parameters, of which every wait was seen.
    never_polls: bool,
    /// What halts add to segments, where that is more than the halt cost that was given.
    added: Option<Nanos>,
}

/// The cost of a halt where none was measured.
pub(crate) const HALT_COST: Nanos = Nanos::from_micros(20);

/// What a recorder could do without, and an imported text lacked, for people.
pub(crate) fn left_out<O>(metadata: &Metadata<O>) -> Vec<String> {
    let texts = dwell_capture::record::left_out(metadata);
    texts.iter().map(|text| dwell_report::harmless::line(text)).collect()
}

/// A host takes longer than this to wake a vCPU that sleeps \[ns\]: between the 2.6 us of halts
/// that a host polled through and the 9 us of longer ones in the same guest (30 November 2026).
const SLEEPING_HOST_NS: f64 = 5_000.0;

/// What was calibrated for the machine of a recording.
pub(crate) fn calibrated(metadata: &Metadata) -> Option<HaltCosts> {
    or_left_out(Calibration::load_for(metadata))
}

/// A calibration that cannot be read is as none.
pub(crate) fn or_left_out<T>(loaded: Result<Option<T>, LoadCalibrationError>) -> Option<T> {
    loaded.unwrap_or_else(|error| {
        crate::output::note(&format!("dwell: the calibration is left out: {}", with_causes(&error)));
        None
    })
}

/// The halt cost that the idle driver dwell_idle had while recording.
fn halt_cost_of_driver(metadata: &Metadata, version: Version) -> Option<Nanos> {
    let cost = setting_of(Layer::Driver, version, &metadata.settings)?.get("halt_cost_ns")?;
    u64::try_from(cost).ok().filter(|cost| *cost > 0).map(Nanos)
}

impl Model {
    /// The model that the options select; the recording gives what they leave open.
    pub(crate) fn of(args: &ModelArgs, reader: &Reader) -> anyhow::Result<Model> {
        let metadata = reader.metadata();
        let whose = args.layer.unwrap_or_else(|| Whose::One(layer_in_force(metadata)));
        let layers = whose.layers();
        args.versions.check(layers)?;
        let version = args.versions.over(Versions::of_recording(metadata)).of(layers[0]);
        known_version(layers[0], version).with_context(|| format!("version {version}"))?;
        let asked = if layers[0] == Layer::Iothread { args.versions.qemu } else { args.versions.kernel };
        let needed = args.halt_cost.is_none() || args.wakeup_latency.is_none();
        let measured = if needed { calibrated(metadata) } else { None };
        let of = |cost: fn(&HaltCosts) -> Option<Nanos>| {
            let costs = measured.as_ref()?;
            Some((cost(costs)?, Origin::from(costs.halt_of)))
        };
        let (halt_cost, halt_cost_origin) = match (args.halt_cost, of(HaltCosts::halt_cpu)) {
            (Some(given), _) => (given, Origin::Given),
            (None, Some(measured)) => measured,
            (None, None) => match halt_cost_of_driver(metadata, version) {
                Some(recorded) if whose == Whose::One(Layer::Driver) => (recorded, Origin::Recorded),
                _ => (HALT_COST, Origin::Default),
            },
        };
        let recorded = match args.wakeup_latency {
            Some(_) => None,
            None => WakeupLatency::of_recording(reader)?,
        };
        let (constant, latency) = (WakeupLatency::constant, of(HaltCosts::halt_latency));
        let (wakeup_latency, wakeup_latency_origin) = match (args.wakeup_latency, recorded, latency) {
            (Some(given), _, _) => (constant(given), Origin::Given),
            (None, Some(recorded), _) => (recorded, Origin::Recorded),
            (None, None, Some((latency, origin))) => (constant(latency), origin),
            (None, None, None) => (constant(halt_cost), Origin::Default),
        };
        let names = reader.contents().idlers.iter().map(|idler| &*idler.name);
        let has_parameters = layers[0] != Layer::Iothread || lines::can_set(metadata, names);
        Ok(Model {
            whose,
            version,
            version_asked: asked.is_some(),
            halt_cost,
            halt_cost_origin,
            wakeup_latency,
            wakeup_latency_origin,
            given_and_measured: (args.wakeup_latency, latency.map(|(latency, _)| latency)),
            waker: of(HaltCosts::halt_waker).map(|(waker, _)| waker),
            in_force: None,
            host_version: None,
            has_parameters,
            never_polls: !has_parameters && reader.cause_shares()?.is_some(),
            added: None,
        })
    }

    /// The episodes of a recording, with the wakeup latencies that the rule learns from.
    pub(crate) fn source(&self, reader: Reader) -> RecordingSource {
        let (given, measured) = self.given_and_measured;
        RecordingSource::new(reader, self.whose == Whose::One(Layer::Iothread)).with_latency(given, measured)
    }

    /// The prices of what was replayed.
    pub(crate) fn pricing(&self, replayed: &Replayed) -> Pricing<'_> {
        Pricing {
            halt_cost: self.halt_cost,
            wakeup_latency: &self.wakeup_latency,
            span_ns: replayed.span.ns(),
            optimum_ns: replayed.optimum.cost_ns(self.halt_cost),
        }
    }

    /// What is known of halts: given, or else measured on the machine of the recording.
    pub(crate) fn calibrated(&self) -> Calibrated {
        let (given, measured) = self.given_and_measured;
        Calibrated { after_halt: given.or(measured), ipi: self.waker, ..Calibrated::default() }
    }

    /// The other end of what the latency may be, where it is not known.
    pub(crate) fn upper_latency(&self, source: &RecordingSource) -> anyhow::Result<Option<Nanos>> {
        let unknown = self.wakeup_latency_origin == Origin::Default;
        Ok(if unknown { Some(source.upper_latency()?) } else { None })
    }

    /// A note where a given or calibrated wakeup latency is longer than many of the idle times that include it.
    pub(crate) fn note_of_latency(&self, source: &RecordingSource) -> anyhow::Result<Option<String>> {
        let (given, measured) = self.given_and_measured;
        let measured = measured.filter(|_| self.wakeup_latency_origin != Origin::Recorded);
        let Some(latency) = given.or(measured) else { return Ok(None) };
        let lengths = source.late_lengths()?;
        let share = lengths.partition_point(|ns| *ns < latency.get()) as f64 / lengths.len() as f64;
        let [share_words, latency] =
            [dwell_report::percent(share), dwell_report::duration(latency.get() as f64)];
        Ok((share > 0.05).then(|| {
            format!(
                "{share_words} of the idle times that include the wakeup latency are shorter than {latency}: the latency \
                 is shorter than that, and halts cost more than is shown"
            )
        }))
    }

    /// A halt costs no less than what it adds to segments in CPU time; a cost that was given stays, and is noted.
    pub(crate) fn halts_cost_at_least(&mut self, added: Nanos) {
        match self.halt_cost_origin {
            _ if added <= self.halt_cost => {}
            Origin::Given => self.added = Some(added),
            _ => (self.halt_cost, self.halt_cost_origin) = (added, Origin::Segments),
        }
    }

    /// The same, with the version and the setting that a QEMU returned.
    pub(crate) fn with_in_force(self, setting: Setting) -> Model {
        Model { version: setting.version(), version_asked: true, in_force: Some(setting), ..self }
    }

    /// The same, with the kernel release of the guest's host, where that was recorded.
    pub(crate) fn with_host_version(self, host_version: Option<Version>) -> Model {
        Model { host_version, ..self }
    }

    /// The release whose rule a layer follows.
    fn version_of(&self, layer: Layer) -> Version {
        self.host_version.filter(|_| layer == Layer::Host).unwrap_or(self.version)
    }

    /// Whether what was recorded has the parameters of the rule.
    pub(crate) fn has_parameters(&self) -> bool {
        self.in_force.is_some() || self.has_parameters
    }

    /// The settings that the rule has, at their defaults: one, or the guest's and the host's. dwell_idle has measured by
    /// then what its defaults leave open.
    pub(crate) fn defaults(&self) -> Vec<Setting> {
        let (given, measured) = self.given_and_measured;
        let latency = given.or(measured).unwrap_or_default();
        let default = |&layer: &Layer| {
            let mut default = Setting::defaults(layer, self.version_of(layer));
            if layer == Layer::Driver {
                for (name, time) in [("halt_cost_ns", self.halt_cost), ("wake_latency_ns", latency)] {
                    // What is out of its range stays as it is.
                    let _ = default.set(name, i64::try_from(time.get()).unwrap_or(0));
                }
            }
            default
        };
        self.whose.layers().iter().map(default).collect()
    }

    /// The settings in force while recording if the recording has them, else the defaults; and whether it has them.
    pub(crate) fn present(&self, metadata: &Metadata) -> (Vec<Setting>, bool) {
        if let Some(in_force) = self.in_force {
            return (vec![in_force], true);
        }
        if self.never_polls {
            let never = |default| causal::with_maximum(default, 0);
            return (self.defaults().into_iter().map(never).collect(), true);
        }
        let mut told = false;
        let settings = self.defaults().into_iter().map(|default| {
            let recorded = check::in_force(default.layer(), default.version(), metadata);
            told |= recorded.is_some();
            recorded.unwrap_or(default)
        });
        (settings.collect(), told)
    }

    /// Notes on how the figures were computed.
    pub(crate) fn notes(&self, metadata: &Metadata) -> Vec<String> {
        let mut notes = vec![];
        let here = self.whose.layers()[0];
        match self.wakeup_latency_origin {
            Origin::Recorded => notes.push(format!(
                "wakeup latency: that of each halt as recorded, of {} halts {} on average; where the idler polled, as its \
                 halts have it",
                dwell_report::count(self.wakeup_latency.recorded_halts().into()),
                dwell_report::duration(self.wakeup_latency.mean_ns())
            )),
            Origin::MeasuredOwnCpu | Origin::MeasuredVcpu => notes.push(format!(
                "wakeup latency: {} in every halt, measured on this machine by `dwell-lab calibrate`",
                dwell_report::duration(self.wakeup_latency.mean_ns())
            )),
            Origin::Default if self.halt_cost > Nanos::ZERO => notes.push(
                "in the columns of added latency each halt adds its halt cost, since the recording has no wakeup \
                 latencies; --wakeup-latency gives another value"
                    .to_owned(),
            ),
            Origin::Default | Origin::Given | Origin::Segments => {}
        }
        if self.halt_cost_origin == Origin::Default
            && self.wakeup_latency_origin == Origin::Recorded
            && self.wakeup_latency.mean_ns() < SLEEPING_HOST_NS
            && metadata.layer == Layer::Guest
        {
            notes.push(format!(
                "halts end sooner than a host could wake a vCPU that sleeps: the host polls, or halts cause no VM exit. The \
                 default halt cost of {} does not hold then; `dwell-lab calibrate` measures it",
                dwell_report::duration(HALT_COST.get() as f64)
            ));
        }
        notes.extend(self.added.map(|added| {
            format!(
                "as recorded a halt takes at least {} of CPU time, that of its waker included: more than --halt-cost {}, so that \
                 halts are counted as cheaper than they are",
                dwell_report::duration(added.get() as f64),
                dwell_report::duration(self.halt_cost.get() as f64)
            )
        }));
        let unknown = Versions::unknown(metadata, here).filter(|_| !self.version_asked);
        if let Some(recorded) = unknown {
            let lacks = |version: Version| version.arch.lacks(Owner::Layer(here));
            let why =
                Version::parse(recorded).and_then(lacks).map_or_else(String::new, |why| format!(" ({why})"));
            notes.push(format!(
                "the rule of the recorded release {} is not known{why}; that of {} is used",
                recorded.escape_default(),
                self.version
            ));
        }
        notes.extend(self.version.arch.host_proviso().filter(|_| here == Layer::Host).map(str::to_owned));
        if let Some(by) = metadata.decided_in_place_of_haltpoll().filter(|_| here == Layer::Guest) {
            notes.push(format!(
                "haltpoll decided nothing in this guest ({by}): its parameters had no effect, and the guest is taken for one \
                 that never polls"
            ));
        }
        let is_of_kernel = matches!(here, Layer::Guest | Layer::Host);
        if is_of_kernel && metadata.kernel.is_none() && !self.version_asked {
            notes.push(format!(
                "the recording does not have the kernel's release: the rule of {} is used; --kernel names another",
                self.version
            ));
        }
        if here == Layer::Iothread && metadata.qemu.is_none() && !self.version_asked && self.has_parameters {
            notes.push(format!(
                "the recording does not say which QEMU this was: {} is assumed; --qemu names the release, and \
                 --qmp SOCKET --iothread ID of `dwell tune` asks it",
                self.version
            ));
        }
        let calls = metadata.source.events.iter().any(|event| event.contains("sys_"));
        let (present, is_known) = self.present(metadata);
        let most = present[0].get("poll-max-ns").filter(|_| is_known);
        if here == Layer::Iothread && self.has_parameters() && calls && most != Some(0) {
            notes.push(format!(
                "the recording is of system calls: waits that ended while QEMU polled are not in it, so that the figures hold \
                 only if poll-max-ns was 0 while it was recorded{}; `dwell import` of QEMU's trace with --sleeps has them",
                most.map_or_else(String::new, |most| format!(" (in force is {most})"))
            ));
        }
        let is_same_idling = (metadata.layer, here) == (Layer::Guest, Layer::Driver);
        if metadata.layer != here && !is_same_idling {
            notes.push(format!(
                "recorded at the {} layer, replayed through the rule of the {} layer: idle times of the two layers differ",
                metadata.layer.name(),
                self.whose.name()
            ));
        }
        notes.extend(notes_of_recording(metadata));
        notes
    }
}

/// What it does to costs that the wakeup latency is not known: the costs of each policy without one and at the `upper`
/// end, as shares of a CPU.
pub(crate) fn unknown_latency(upper: Nanos, costs: impl Iterator<Item = (String, f64, f64)>) -> String {
    let why =
        if upper == latency::UPPER { "more than was ever measured" } else { "as long as the shortest halts" };
    let upper = dwell_report::duration(upper.get() as f64);
    let share = |cost: f64| dwell_report::percent(cost);
    let changed: Vec<String> = costs
        .filter(|(_, without, with)| (without - with).abs() > f64::max(0.01 * without.max(*with), 1e-4))
        .map(|(name, without, with)| format!("{name} costs {} instead of {}", share(with), share(without)))
        .collect();
    let effect = if changed.is_empty() {
        "no cost changes by more than 1 % (or 0.01 % of a CPU)".to_owned()
    } else {
        changed.join(", ")
    };
    format!(
        "the wakeup latency of halts is not known, and the rule learns from idle time and latency together: figures are \
         without it. With {upper}, {why}, over the whole recording {effect}. --wakeup-latency gives it; `dwell-lab calibrate` \
         measures it"
    )
}

/// The cost of a halt and where it comes from.
pub(crate) fn halt_cost_words(halt_cost_ns: u64, origin: Origin) -> String {
    let cost = dwell_report::duration(halt_cost_ns as f64);
    let measured =
        |halt_of: HaltOf| format!("{cost}, measured by `dwell-lab calibrate`: {}", halt_of.words());
    match origin {
        Origin::MeasuredOwnCpu => measured(HaltOf::OwnCpu),
        Origin::MeasuredVcpu => measured(HaltOf::Vcpu),
        Origin::Given => cost,
        Origin::Recorded => {
            format!("{cost}, halt_cost_ns of the driver dwell_idle; --halt-cost gives another")
        }
        Origin::Segments => format!(
            "{cost}, what a halt takes at least of the CPUs as recorded, its waker's included; --halt-cost gives another"
        ),
        Origin::Default => format!(
            "{cost}, the default, not measured; `dwell-lab calibrate` measures it, --halt-cost sets it"
        ),
    }
}

pub(crate) fn open(path: &Path) -> anyhow::Result<Reader> {
    let reader = Reader::open(path)?;
    ensure!(reader.episodes() > 0, "cannot use recording {}: it has no episodes", path.display());
    Ok(reader)
}

/// Episodes and their number, as in `1 episode`.
pub(crate) fn episodes(number: u64) -> String {
    dwell_report::number_of(number.into(), "episode")
}

/// Episodes and the number of their idlers, as in `5 episodes of 1 idler`.
pub(crate) fn episodes_of(number: u64, idlers: usize) -> String {
    format!("{} of {}", episodes(number), dwell_report::number_of(idlers as u128, "idler"))
}

/// Whose rule is replayed, as in `host layer, rule of Linux 6.18`.
pub(crate) fn rule_of(layer: &str, version: &str) -> String {
    let of = if layer == Layer::Iothread.name() { "QEMU" } else { "Linux" };
    format!("{layer} layer, rule of {of} {version}")
}

/// Timers, exits and the number of their vCPUs, as in `5 timers and 12 exits of 1 vCPU`.
pub(crate) fn timers_of(contents: &TimerContents) -> String {
    let number = |number: u64, what: &str| dwell_report::number_of(number.into(), what);
    format!(
        "{} and {} of {}",
        number(contents.timers(), "timer"),
        number(contents.exits(), "exit"),
        number(contents.vcpus.len() as u64, "vCPU")
    )
}

/// That a recording has too few episodes to compare settings, if so.
pub(crate) fn too_few(number: u64) -> Option<String> {
    (number < MIN_EPISODES).then(|| {
        format!(
            "the recording has {}, too few to compare settings: at least {MIN_EPISODES} are needed",
            episodes(number)
        )
    })
}

/// Notes on a recording with too few episodes to compare settings, or without the time recorded.
pub(crate) fn notes_of_length(number: u64, metadata: &Metadata) -> impl Iterator<Item = String> {
    // Where there were no times there are no rates.
    let timeless = (metadata.recorded.is_none() && !metadata.has_least_lengths()).then(|| {
        "the recording does not contain the time recorded: rates are over the time from the first episode to the last"
            .to_owned()
    });
    too_few(number).into_iter().chain(timeless)
}

/// Notes on limits of a recording, for readers of its figures.
pub(crate) fn notes_of_recording(metadata: &Metadata) -> Vec<String> {
    let mut notes = vec![];
    if metadata.idle_includes == IdleIncludes::Wake {
        notes.push(
            "idle times of halts include the wakeup latency; where it is known it is taken out of them"
                .to_owned(),
        );
    }
    if let Some(lost) = metadata.lost.events.filter(|&lost| lost > 0) {
        let at_least = if metadata.lost.at_least { "at least " } else { "" };
        notes.push(format!("{at_least}{lost} trace events were lost while recording or importing"));
    }
    notes.extend(note_of_slowing(metadata));
    notes.extend(left_out(metadata));
    if metadata.has_least_lengths() {
        notes.push(dwell_recording::LEAST_LENGTHS_NOTE.to_owned());
    }
    notes
}

/// From this on it is said that a load was slower while it was recorded: counts of a quarter of a second may differ by less.
const SLOWED: f64 = 1.1;

/// A note on a load that did less while it was recorded.
pub(crate) fn note_of_slowing<O>(metadata: &Metadata<O>) -> Option<String> {
    let slowed = metadata.slowed().filter(|slowed| *slowed >= SLOWED)?;
    Some(format!(
        "just before and just after the recording there were at least {slowed:.2} times as many context switches a second: what is \
         recorded is a slowed load. Ranges of speed contain what is predicted without that, too"
    ))
}

/// A note on two recordings of a change, of which the one from after it is the earlier one.
pub(crate) fn note_of_order<O>(before: &Metadata<O>, after: &Metadata<O>) -> Option<String> {
    let swapped = "by the time of day the recording given as the one from after the change ended before the other began: are the \
                   two swapped?";
    after.ended_before(before).then(|| swapped.to_owned())
}

/// A note on episodes that overlap, though by no more in all than is possible; of a source that was replayed.
pub(crate) fn note_of_overlaps(source: &RecordingSource) -> anyhow::Result<Option<String>> {
    let number = source.overlapping()?;
    let start = if number == 1 { "starts" } else { "start" };
    Ok((number > 0).then(|| {
        format!(
            "{} {start} before the previous one of the same idler has ended: times and figures cannot be trusted",
            episodes(number)
        )
    }))
}

/// Refuses idle times that were not measured; `what`: what cannot be done with them.
pub(crate) fn refuse_least_lengths(metadata: &Metadata, what: &str) -> anyhow::Result<()> {
    ensure!(
        !metadata.has_least_lengths(),
        "cannot {what}: the recording has only lower bounds of idle times; trace QEMU with `-msg timestamp=on` and import \
         that log"
    );
    Ok(())
}
