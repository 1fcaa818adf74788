//! What a recording says about itself, beside its episodes.

use dwell_policy::arch::Arch;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Owner};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;

/// How a recording came to be and what its numbers mean; what the recorder knows before and while it runs.
///
/// Kept as JSON under the key `dwell.recording` of the Parquet file. `None` and empty mean "not known", never
/// "none": a recording without `settings` says nothing about the settings that were in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "O: Copy + Into<Owner>", deserialize = "O: TryFrom<Owner, Error: Display>"))]
pub struct Metadata<O = Layer> {
    /// Whose idling was recorded; [`Owner::Timer`] of a [recording of timers](crate::timer).
    #[serde(with = "owner_name")]
    pub layer: O,
    /// What observed the episodes.
    pub source: Source,
    /// Where an episode ends: what `idle_ns` includes.
    pub idle_includes: IdleIncludes,
    /// The clock of `start_ns` and of [`SettingsChange::at_ns`], and where it is zero.
    pub clock: Clock,
    /// What the times resolve \[ns\]; lengths that were computed from two of them are off by up to as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution_ns: Option<u64>,
    /// Kernel release of the machine that idled, as `uname -r` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// QEMU release, as `qemu-system-x86_64 --version` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// CPU model, as `/proc/cpuinfo` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// Identity of the machine that was recorded: a digest of its machine id, 32 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Settings in force, in order of time: those at the start first, then each change.
    #[serde(default)]
    pub settings: Vec<SettingsChange>,
    /// The time recorded, over which rates and shares are; `None`: not known, then they are from the first start of an
    /// episode to the last end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<TimeRecorded>,
    /// What the recorder missed.
    #[serde(default)]
    pub lost: Losses,
    /// Name and version of the program that wrote the file.
    #[serde(default)]
    pub tool_version: String,
    /// Anything else that a reader should know: load, machine, purpose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<String>,
    /// Keys that this version does not know. They are kept, so that copying a recording loses nothing.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// Key of [`Metadata::other`]: by how much CLOCK_REALTIME was ahead of CLOCK_MONOTONIC \[ns\] when the recording was made. Both
/// run at the same rate; only setting the clock changes it.
pub const REALTIME_OFFSET: &str = "realtime_less_monotonic_ns";

/// Key of [`Metadata::other`]: `true` where idle times are only lower bounds.
pub const LEAST_LENGTHS: &str = "lengths_are_least";

/// What [`LEAST_LENGTHS`] means, for people.
pub const LEAST_LENGTHS_NOTE: &str =
    "the log had no times: idle times and costs are lower bounds that follow from QEMU's decisions";

/// Key of [`Metadata::other`]: how long the guest polls between two looks at the clock \[ns\].
pub const POLL_STEP: &str = "poll_step_ns";

/// Key of [`Metadata::other`]: how much later a guest's CPU that halts at once is in its idle state than one that polls first \[ns\],
/// both since their last task: it stops the tick before.
pub const HALT_ENTRY: &str = "halt_entry_ns";

/// Key of [`Metadata::other`]: how much shorter the haltpoll governor found a halt than its events have it \[ns\]: it reads its
/// clock after a recorder is done with the first of them.
pub const RESIDENCY_SHORTER: &str = "residency_shorter_ns";

/// The metadata of a guest in [`Metadata::other`] that has its cpuidle `driver` and `governor`.
pub const CPUIDLE: &str = "dwell.cpuidle";
/// Key of [`Metadata::other`]: what the CPUs of the guest used while it was recorded, and what its hypervisor gave to
/// others meanwhile: `busy` and `steal` \[ns\].
pub const CPU_TIME: &str = "cpu_time_ns";
/// Key of [`Metadata::other`]: the context switches a second of all CPUs `before`, `while` and `after` events were recorded.
pub const SWITCHES: &str = "context_switches_per_s";
/// A longer one is none that a loop of pauses takes \[ns\].
const LONGEST_POLL_STEP: u64 = 1_000_000;
/// Nor does it take longer to stop the tick \[ns\].
const LONGEST_HALT_ENTRY: u64 = 1_000_000;

impl<O> Metadata<O> {
    /// What decided in a guest how its CPUs idle, where that was neither haltpoll nor the driver dwell_idle, and was recorded: the
    /// cpuidle driver and the governor.
    pub fn decided_in_place_of_haltpoll(&self) -> Option<String> {
        let cpuidle = self.other.get(CPUIDLE)?;
        let [driver, governor] = ["driver", "governor"].map(|name| cpuidle[name].as_str());
        let (driver, governor) = (driver.unwrap_or("none"), governor?);
        let is_other = driver == "none" || governor != "haltpoll";
        (is_other && driver != "dwell_idle").then(|| format!("cpuidle driver {driver}, governor {governor}"))
    }

    /// How long the guest polls between two looks at the clock \[ns\], at the first of which after its window a poll
    /// ends; `None`: not known.
    pub fn poll_step_ns(&self) -> Option<u64> {
        let step = self.other.get(POLL_STEP)?.as_u64();
        step.filter(|step| (1..=LONGEST_POLL_STEP).contains(step))
    }

    /// How much later the guest's CPUs are in an idle state that halts than in one that polls \[ns\]; `None`: not known.
    pub fn halt_entry_ns(&self) -> Option<u64> {
        let entry = self.other.get(HALT_ENTRY)?.as_u64();
        entry.filter(|entry| (1..=LONGEST_HALT_ENTRY).contains(entry))
    }

    /// The one value that a parameter had all the time; `None` where it changed, or is not known.
    pub fn value_all_the_time(&self, owner: Owner, name: &str) -> Option<u64> {
        let mut values =
            self.settings.iter().filter(|change| change.owner == owner).map(|change| {
                match change.values.get(name)? {
                    SettingValue::Number(value) => Some(*value),
                    _ => None,
                }
            });
        let first = values.next()??;
        values.all(|value| value == Some(first)).then_some(first)
    }

    /// How much shorter the haltpoll governor found the guest's halts than they are recorded \[ns\]; 0: not known, or not at all.
    pub fn residency_shorter_ns(&self) -> u64 {
        let shorter = self.other.get(RESIDENCY_SHORTER).and_then(serde_json::Value::as_u64);
        shorter.filter(|shorter| *shorter <= LONGEST_HALT_ENTRY).unwrap_or(0)
    }

    /// How much of the CPU time that the guest wanted went to others, by the hypervisor's count, from 0 to 1; `None`: not
    /// known, or nothing was counted.
    pub fn stolen_share(&self) -> Option<f64> {
        let (busy, steal) = (self.cpu_time_ns("busy")?, self.stolen_ns()?);
        let wanted = busy.saturating_add(steal);
        (wanted > 0).then(|| steal as f64 / wanted as f64)
    }

    /// How much of the CPU time that the guest wanted went to others, by the hypervisor's count \[ns\]; `None`: not known.
    pub fn stolen_ns(&self) -> Option<u64> {
        self.cpu_time_ns("steal")
    }

    /// How many context switches there were just before and just after the recording for one in it, of these two the fewer, where
    /// that is more than one: recording slowed a load that waits for itself. `None`: it did not, or it is not known.
    pub fn slowed(&self) -> Option<f64> {
        let switches = self.other.get(SWITCHES)?;
        let [before, during, after] = ["before", "while", "after"]
            .map(|when| switches.get(when)?.as_f64().filter(|per_s| *per_s > 0.0));
        Some(before?.min(after?) / during?).filter(|slowed| *slowed > 1.0 && slowed.is_finite())
    }

    fn cpu_time_ns(&self, name: &str) -> Option<u64> {
        self.other.get(CPU_TIME)?.get(name)?.as_u64()
    }

    /// By how much the time of day is ahead of the recording's clock \[ns\]; `None`: the recording does not say it.
    pub fn realtime_offset_ns(&self) -> Option<i64> {
        let offset = self.other.get(REALTIME_OFFSET).and_then(serde_json::Value::as_i64)?;
        (self.clock == Clock::Monotonic).then_some(offset)
    }

    /// When the recording ended, by the time of day \[ns since 1970\]; `None`: the recording does not say it.
    pub fn ended_unix_ns(&self) -> Option<i64> {
        self.unix_ns(self.recorded?.end_ns)
    }

    /// A time of the recording's clock, by the time of day.
    fn unix_ns(&self, ns: u64) -> Option<i64> {
        i64::try_from(ns).ok()?.checked_add(self.realtime_offset_ns()?)
    }

    /// Whether it ended before the other began, by the time of day of both.
    pub fn ended_before(&self, other: &Metadata<O>) -> bool {
        let began = other.recorded.and_then(|time| other.unix_ns(time.start_ns));
        self.ended_unix_ns().zip(began).is_some_and(|(ended, began)| ended <= began)
    }

    /// Whether the idle times are lower bounds that follow from decisions, since the text they come from had no times.
    pub fn has_least_lengths(&self) -> bool {
        self.other.get(LEAST_LENGTHS) == Some(&serde_json::Value::Bool(true))
    }

    /// By how much episodes may overlap, as times resolve no more \[ns\]. Where there were no times all starts are the same.
    pub fn overlap_tolerance_ns(&self) -> u64 {
        if self.has_least_lengths() { u64::MAX } else { self.resolution_ns.unwrap_or(0) }
    }

    /// Metadata in which only the layer is known.
    pub fn new(layer: O) -> Metadata<O> {
        Metadata {
            layer,
            source: Source::default(),
            idle_includes: IdleIncludes::Unknown,
            clock: Clock::Unknown,
            resolution_ns: None,
            kernel: None,
            qemu: None,
            cpu_model: None,
            machine: None,
            settings: Vec::new(),
            recorded: None,
            lost: Losses::default(),
            tool_version: concat!("dwell ", env!("CARGO_PKG_VERSION")).to_owned(),
            provenance: None,
            other: BTreeMap::new(),
        }
    }
}

/// From when to when the recorder watched \[ns, the recording's clock\]: idlers without an episode in it were
/// busy, or idle throughout. An importer takes the first and the last event of its text, which may be less
/// than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeRecorded {
    /// When the recorder began to watch.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

impl TimeRecorded {
    /// Its length \[ns\].
    pub const fn ns(self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }

    /// The same, lengthened by what is before and after it.
    #[must_use]
    pub fn with(self, first_ns: Option<u64>, last_ns: Option<u64>) -> TimeRecorded {
        TimeRecorded {
            start_ns: first_ns.map_or(self.start_ns, |first_ns| first_ns.min(self.start_ns)),
            end_ns: last_ns.map_or(self.end_ns, |last_ns| last_ns.max(self.end_ns)),
        }
    }

    /// The middle of it \[ns, the recording's clock\].
    pub const fn middle_ns(self) -> u64 {
        self.start_ns.saturating_add(self.ns() / 2)
    }
}

/// What observed the episodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    /// The program: `perf script`, `csv`, `dwell record`.
    pub tool: String,
    /// Tracepoints or trace events that were used, such as `kvm:kvm_vcpu_wakeup`.
    pub events: Vec<String>,
    /// The command line that recorded, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

dwell_policy::named! {
    /// Where an episode ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum IdleIncludes {
        /// At the event that gave the idler something to do; the wakeup latency is not in `idle_ns`.
        Event = "up to the wakeup event; the wakeup latency is not included",
        /// When the idler ran again; the wakeup latency is in `idle_ns`.
        Wake = "until the idler runs again; the wakeup latency is included",
        /// Not known.
        Unknown = "not known whether the wakeup latency is included",
    }

    /// The same for people.
    pub fn words
}

dwell_policy::named! {
    /// The clock of a recording and its zero.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Clock {
        /// CLOCK_MONOTONIC of the machine that idled.
        Monotonic = "CLOCK_MONOTONIC",
        /// CLOCK_MONOTONIC, less its value when the recorder started.
        RecorderStart = "CLOCK_MONOTONIC since the recorder started",
        /// perf's default clock (the scheduler clock): ns since boot, its rate not disciplined.
        Perf = "perf's clock, since boot",
        /// Some clock in ns; only differences have a meaning.
        Unknown = "not known; only differences are meaningful",
    }

    /// The same for people.
    pub fn words
}

/// Settings of one owner that came into force at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsChange {
    /// When \[ns, the recording's clock\]; `None`: in force from before the recording began.
    pub at_ns: Option<u64>,
    /// Whose they are.
    #[serde(rename = "layer", with = "owner_name")]
    pub owner: Owner,
    /// Parameter, by the kernel's or QEMU's name, and its value.
    pub values: BTreeMap<String, SettingValue>,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SettingValue {
    /// A switch.
    Flag(bool),
    /// A number that is not negative, in the parameter's own unit.
    Number(u64),
    /// A negative number, such as the -1 that means "choose for me".
    Negative(i64),
    /// Anything else.
    Text(String),
}

/// What the recorder missed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// Trace events that were lost, over all CPUs and where the CPU is not known. `Some(0)` claims that none was;
    /// `None`: not counted.
    pub events: Option<u64>,
    /// Whether more than `events` may have been lost: the recorder could not see all losses.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
    /// The part of `events` whose CPU is known.
    pub by_cpu: Vec<CpuLoss>,
    /// Episodes left out because their beginning or end was not recorded.
    pub incomplete_episodes: u64,
}

impl Losses {
    /// Adds `events` lost on `cpu`, where that is known.
    pub fn add(&mut self, cpu: Option<u32>, events: u64) {
        self.events = Some(self.events.unwrap_or(0).saturating_add(events));
        let Some(cpu) = cpu else { return };
        match self.by_cpu.binary_search_by_key(&cpu, |loss| loss.cpu) {
            Ok(at) => {
                if let Some(loss) = self.by_cpu.get_mut(at) {
                    loss.events = loss.events.saturating_add(events);
                }
            }
            Err(at) => self.by_cpu.insert(at, CpuLoss { cpu, events }),
        }
    }
}

/// Trace events that one CPU lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuLoss {
    /// Number of the CPU.
    pub cpu: u32,
    /// How many events.
    pub events: u64,
}

/// [`Owner`], or what may be one, by its name, which is how people write it.
pub(crate) mod owner_name {
    use dwell_policy::Owner;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;

    pub(crate) fn serialize<O: Copy + Into<Owner>, S: Serializer>(
        owner: &O,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.serialize_str((*owner).into().name())
    }

    pub(crate) fn deserialize<'de, O, D>(input: D) -> Result<O, D::Error>
    where
        O: TryFrom<Owner, Error: Display>,
        D: Deserializer<'de>,
    {
        let name = String::deserialize(input)?;
        let owner = Owner::from_name(&name).ok_or_else(|| {
            let known = Owner::ALL.map(Owner::name).join(", ");
            D::Error::custom(format_args!("unknown layer `{name}`; known: {known}"))
        })?;
        O::try_from(owner).map_err(|why| D::Error::custom(format_args!("layer `{name}`: {why}")))
    }
}

/// The release of a kernel as recordings have it: with the architecture at its end, if that is known, is not x86-64, and the
/// release does not name it.
pub fn kernel_on(release: String, arch: Option<Arch>) -> String {
    match arch {
        Some(arch) if arch != Arch::X86_64 && Version::split_arch(&release).1.is_none() => {
            format!("{release}.{}", arch.machine())
        }
        _ => release,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_stolen_is_of_the_time_wanted() {
        let of = |time: serde_json::Value| {
            let mut metadata = Metadata::new(Layer::Guest);
            metadata.other.insert(CPU_TIME.to_owned(), time);
            metadata.stolen_share()
        };
        assert_eq!(of(serde_json::json!({ "busy": 30_000_000, "steal": 10_000_000 })), Some(0.25));
        assert_eq!(of(serde_json::json!({ "busy": 10, "steal": 0 })), Some(0.0));
        assert_eq!(of(serde_json::json!({ "busy": 0, "steal": 0 })), None);
        assert_eq!(of(serde_json::json!({ "busy": -1, "steal": 1 })), None);
        assert_eq!(of(serde_json::json!(7)), None);
        let none = Metadata::new(Layer::Guest);
        assert_eq!((none.stolen_share(), none.stolen_ns()), (None, None));
    }

    #[test]
    fn a_load_was_slowed_where_it_was_faster_both_before_and_after() {
        let of = |before: f64, during: f64, after: f64| {
            let mut metadata = Metadata::new(Layer::Guest);
            let switches = serde_json::json!({ "before": before, "while": during, "after": after });
            metadata.other.insert(SWITCHES.to_owned(), switches);
            metadata.slowed()
        };
        assert_eq!(of(300.0, 100.0, 200.0), Some(2.0));
        assert_eq!([of(300.0, 100.0, 90.0), of(100.0, 100.0, 300.0)], [None; 2], "it has begun, or ended");
        assert_eq!([of(1.0, 0.0, 1.0), of(-1.0, 1.0, 5.0), of(1e308, 1e-308, 1e308)], [None; 3]);
        assert_eq!(Metadata::new(Layer::Guest).slowed(), None);
    }

    #[test]
    fn the_time_of_day_of_the_end_needs_both_clocks() {
        let mut metadata = Metadata::new(Layer::Guest);
        metadata.recorded = Some(TimeRecorded { start_ns: 10, end_ns: 30 });
        metadata.other.insert(REALTIME_OFFSET.to_owned(), 1_000.into());
        assert_eq!(metadata.ended_unix_ns(), None, "of another clock");
        metadata.clock = Clock::Monotonic;
        assert_eq!(metadata.ended_unix_ns(), Some(1_030));
        metadata.recorded = Some(TimeRecorded { start_ns: 0, end_ns: u64::MAX });
        assert_eq!(metadata.ended_unix_ns(), None);
        metadata.recorded = None;
        assert_eq!(metadata.ended_unix_ns(), None);
    }

    #[test]
    fn the_architecture_is_in_the_release_where_it_matters() {
        let on = |release: &str, arch| kernel_on(release.to_owned(), arch);
        assert_eq!(on("5.15.0-119-generic", Some(Arch::S390x)), "5.15.0-119-generic.s390x");
        assert_eq!(on("5.10.0-136.oe2203.aarch64", Some(Arch::Arm64)), "5.10.0-136.oe2203.aarch64");
        assert_eq!(on("6.18.44", Some(Arch::X86_64)), "6.18.44");
        assert_eq!(Version::parse(&on("6.8.0-45-generic", Some(Arch::Arm64))).unwrap().arch, Arch::Arm64);
    }
}
