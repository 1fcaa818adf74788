//! A plan: writes, their predicted effect, and the basis of the prediction.
//!
//! `dwell tune --plan` writes one, people read and edit it, `dwell apply` applies it. It is TOML, one table of each
//! kind, starting with the [`FORMAT`]. Unknown fields are refused.
//!
//! ```
//! use dwell_knobs::plan::{self, Plan};
//! use dwell_policy::{Layer, param::Setting, version::Version};
//!
//! let present = Setting::defaults(Layer::Guest, Version::new(6, 18));
//! let mut wanted = present;
//! wanted.set("guest_halt_poll_ns", 50_000)?;
//! let writes = plan::writes(&present, &wanted, None);
//! assert_eq!(writes.len(), 1);
//! assert_eq!(writes[0].place.to_string(), "/sys/module/haltpoll/parameters/guest_halt_poll_ns");
//! assert_eq!((writes[0].from, writes[0].to), (200_000, 50_000));
//! # Ok::<(), dwell_policy::param::SetError>(())
//! ```

mod limits;
mod steps;

pub(crate) use limits::shorten;
pub use steps::writes;

use crate::change::{TOOL, now_unix_s};
use crate::knob::{IothreadTarget, Knob};
use crate::place::Place;
use dwell_machine::{Machine, identity, kernel};
use dwell_policy::Owner;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_recording::summary::{Quantile, Summary};
use dwell_recording::{Metadata, ReadError, Reader};
use dwell_replay::advice::{Advice, Gain, Goal, Role};
use dwell_replay::{Priced, Values};
use dwell_stats::Interval;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The format that this version writes and reads.
pub const FORMAT: u32 = 2;

/// The most writes that a plan may have.
pub(crate) const MOST_WRITES: usize = 64;
/// The longest a plan may wait after a write \[ms\].
pub(crate) const LONGEST_WAIT_MS: u64 = 10_000;

/// Writes and their purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`FORMAT`].
    pub format: u32,
    /// Name and version of the program that made it.
    pub tool: String,
    /// When it was made \[s since 1970\].
    pub made_at_unix_s: u64,
    /// Whose parameters it sets.
    #[serde(rename = "layer", with = "owner_name")]
    pub owner: Owner,
    /// The version whose rule the prediction is of: of Linux, of QEMU for I/O threads.
    pub version: String,
    /// The advice, in words.
    pub advice: String,
    /// Whether the recording has the setting that was in force; else `present` is the default.
    pub present_is_recorded: bool,
    /// All parameters of the layer as they were while recording, in their own units.
    pub present: Values,
    /// All of them as they are to be.
    pub recommended: Values,
    /// The I/O thread to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iothread: Option<IothreadTarget>,
    /// The predicted effect; nothing in a plan that was not made from advice.
    #[serde(default, skip_serializing_if = "Effect::is_none")]
    pub effect: Effect,
    /// The basis of the prediction.
    pub conditions: Conditions,
    /// The recording that it was predicted from.
    pub recording: RecordingFacts,
    /// The writes, in this order.
    #[serde(rename = "write")]
    pub writes: Vec<Write>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    pub knob: String,
    pub place: Place,
    /// The value expected there, in the parameter's own unit; switches are 0 and 1.
    pub from: i64,
    /// The value to write.
    pub to: i64,
    /// How long to wait before the next write \[ms\].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub then_wait_ms: u64,
    /// Why it is written, where that is not obvious.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Write {
    /// The value to write as its place takes it.
    pub(crate) fn text(&self) -> String {
        Knob::find(&self.knob).map_or_else(|| self.to.to_string(), |knob| knob.written(self.to))
    }
}

/// The predicted effect of a plan, on the part of the recording that was not used for the choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Effect {
    /// Under the setting that was in force.
    pub present: Priced,
    /// Under the recommended one.
    pub recommended: Priced,
    /// Under the offline optimum; `None` in a plan from causes, for which there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimum: Option<Priced>,
    /// The gain; `None` in a plan that was not made from advice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain: Option<Gain>,
    /// Work done in a second over that under the setting that was in force, of a plan from causes. The gain is then that
    /// of a unit of work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed: Option<Interval>,
}

impl Effect {
    fn is_none(&self) -> bool {
        *self == Effect::default()
    }
}

/// The basis of a prediction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Cost of one halt and wakeup \[ns of CPU time\].
    pub halt_cost_ns: u64,
    /// The latency that a halt adds to its wakeup, on average \[ns\].
    pub wakeup_latency_ns: f64,
    /// Kernel release of the machine that was recorded, as `uname -r` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// QEMU release that was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// CPU model of the machine that was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// Identity of the machine that was recorded, as in the recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    pub goal: Goal,
}

/// Whether a recording is of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedOn {
    ThisMachine,
    OtherMachine {
        why: String,
    },
    /// The recording or the machine has no identity to compare.
    Unknown,
}

impl RecordedOn {
    /// Compares identity, and where either has none, the kernel release.
    pub fn of<O>(metadata: &Metadata<O>, machine: &dyn Machine) -> RecordedOn {
        match (&metadata.machine, identity::machine_id(machine)) {
            (Some(recorded), Some(here)) if *recorded == here => return RecordedOn::ThisMachine,
            (Some(_), Some(_)) => {
                return RecordedOn::OtherMachine { why: "its machine id is another one".to_owned() };
            }
            _ => {}
        }
        match (&metadata.kernel, kernel::release(machine)) {
            (Some(recorded), Some(here)) if *recorded != here => RecordedOn::OtherMachine {
                why: format!("it was recorded under Linux {recorded}, but this is {here}"),
            },
            _ => RecordedOn::Unknown,
        }
    }
}

/// The recording that a plan comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordingFacts {
    /// Its file or other source.
    pub file: String,
    /// The size of the file \[bytes\].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What was recorded: a layer, or timers.
    #[serde(with = "owner_name")]
    pub layer: Owner,
    /// From the first start to the last end \[ns\].
    pub span_ns: u64,
    /// The part of it that the effect is predicted on \[ns\].
    pub judged_span_ns: u64,
    pub episodes: u64,
    /// The CPUs, vCPUs or threads that idled.
    pub idlers: Vec<String>,
    /// How many more there are, where there are too many to list.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_idlers: u64,
    /// Quantiles of the idle times.
    pub quantiles: Vec<Quantile>,
}

/// Why a text is not a plan that can be applied.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// It is not TOML, or a field is missing, unknown or of the wrong type.
    #[error("it is not a plan: {0}")]
    Syntax(String),
    /// Another version wrote it.
    #[error(
        "it has format {found}, but this dwell reads only {FORMAT}; write it again with `dwell tune --plan`"
    )]
    Format { found: i64 },
    /// The version is not one whose rule is known.
    #[error("version = \"{version}\": {why}")]
    Version {
        version: String,
        /// What is known.
        why: String,
    },
    /// A setting names a parameter that the layer does not have, or a value out of its range.
    #[error("[{table}] {name}: {why}")]
    Setting {
        /// `present` or `recommended`.
        table: &'static str,
        name: String,
        why: String,
    },
    /// A write does not fit the rest.
    #[error("[[write]] number {number}, {knob}: {why}")]
    Write {
        /// From 1.
        number: usize,
        knob: String,
        why: String,
    },
    /// The writes do not lead to what is recommended.
    #[error("after all of its writes {now} would be in force, but {wanted} is recommended")]
    Leads { now: String, wanted: String },
    /// There are too many writes.
    #[error("it has {0} writes, more than the limit of {MOST_WRITES}")]
    TooMany(usize),
}

impl RecordingFacts {
    /// Of a recording in a file, or of one that has only a name.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    pub fn of(file: &str, reader: &Reader) -> Result<RecordingFacts, ReadError> {
        let summary = Summary::of(reader)?;
        Ok(RecordingFacts {
            file: file.to_owned(),
            bytes: std::fs::metadata(Path::new(file)).ok().map(|metadata| metadata.len()),
            layer: summary.metadata.layer.into(),
            span_ns: summary.span_ns,
            judged_span_ns: 0,
            episodes: summary.all.episodes,
            idlers: summary.idlers.iter().map(|idler| idler.name.clone()).collect(),
            more_idlers: 0,
            quantiles: summary.all.quantiles,
        })
    }
}

impl Plan {
    /// The plan of an advice; `None` if the advice is to leave the present setting as it is.
    /// `present_is_recorded`: whether the recording has the setting that was in force; else it is the default.
    pub fn of(
        advice: &Advice,
        metadata: &Metadata,
        present_is_recorded: bool,
        recording: RecordingFacts,
        iothread: Option<IothreadTarget>,
    ) -> Option<Plan> {
        Some(Plan {
            advice: advice.words(),
            present_is_recorded,
            effect: Effect {
                present: advice.figures(Role::Present),
                recommended: advice.figures(Role::Recommended),
                optimum: Some(advice.figures(Role::Optimum)),
                gain: advice.gain,
                speed: None,
            },
            conditions: Conditions {
                halt_cost_ns: advice.halt_cost_ns,
                wakeup_latency_ns: advice.wakeup_latency_ns,
                kernel: metadata.kernel.clone(),
                qemu: metadata.qemu.clone(),
                cpu_model: metadata.cpu_model.clone(),
                machine: metadata.machine.clone(),
                goal: advice.goal,
            },
            recording: RecordingFacts { judged_span_ns: advice.judged_span_ns, ..recording },
            ..Plan::by_hand(advice.present, advice.recommended()?, iothread)
        })
    }

    /// A plan that nothing was predicted of: what a user asks for.
    pub fn by_hand<O: Copy + Into<Owner>>(
        present: Setting<O>,
        wanted: Setting<O>,
        iothread: Option<IothreadTarget>,
    ) -> Plan {
        Plan {
            format: FORMAT,
            tool: TOOL.to_owned(),
            made_at_unix_s: now_unix_s(),
            owner: present.owner(),
            version: present.version().to_string(),
            advice: "set by hand, not from a recording".to_owned(),
            present_is_recorded: true,
            present: Values::from(&present),
            recommended: Values::from(&wanted),
            effect: Effect::default(),
            conditions: Conditions::default(),
            recording: RecordingFacts {
                file: String::new(),
                bytes: None,
                layer: present.owner(),
                span_ns: 0,
                judged_span_ns: 0,
                episodes: 0,
                idlers: vec![],
                more_idlers: 0,
                quantiles: vec![],
            },
            writes: writes(&present, &wanted, iothread.as_ref()),
            iothread,
        }
    }

    /// Reads a plan and checks that it fits together: knobs of its layer, at their places, with values in range.
    ///
    /// # Errors
    /// [`PlanError`], which names the field.
    pub fn from_toml(text: &str) -> Result<Plan, PlanError> {
        let syntax = |error: toml::de::Error| PlanError::Syntax(error.to_string().trim_end().to_owned());
        let head: Head = toml::from_str(text).map_err(syntax)?;
        if head.format != i64::from(FORMAT) {
            return Err(PlanError::Format { found: head.format });
        }
        let plan: Plan = toml::from_str(text).map_err(syntax)?;
        plan.check()?;
        Ok(plan.bounded())
    }

    /// As text; texts and lists that are too long are cut, see [`Plan::bounded`].
    ///
    /// # Errors
    /// [`PlanError::Syntax`] for a number that TOML cannot hold.
    pub fn to_toml(&self) -> Result<String, PlanError> {
        let plan = self.clone().bounded();
        let body = toml::to_string(&plan).map_err(|error| PlanError::Syntax(error.to_string()))?;
        // It may have a label of a recording, and a comment ends with its line.
        let advice = plan.advice.replace(char::is_control, " ");
        Ok(format!("# {advice}\n# Applied by `dwell apply`, reverted by `dwell revert`.\n{body}"))
    }

    /// The version whose rule the prediction is of.
    ///
    /// # Errors
    /// [`PlanError::Version`] if its rule is not known.
    pub fn rule_version(&self) -> Result<Version, PlanError> {
        let wrong = |why: String| PlanError::Version { version: self.version.clone(), why };
        let version =
            Version::parse(&self.version).ok_or_else(|| wrong("not a version such as 6.18".to_owned()))?;
        dwell_policy::param::known_version(self.owner, version)
            .map_err(|unknown| wrong(unknown.to_string()))?;
        Ok(version)
    }

    /// The setting that was in force.
    ///
    /// # Errors
    /// [`PlanError`] if it names what the layer does not have.
    pub fn present_setting(&self) -> Result<Setting<Owner>, PlanError> {
        self.setting("present", &self.present)
    }

    /// The setting that is recommended.
    ///
    /// # Errors
    /// [`PlanError`] if it names what the layer does not have.
    pub fn recommended_setting(&self) -> Result<Setting<Owner>, PlanError> {
        self.setting("recommended", &self.recommended)
    }

    fn setting(&self, table: &'static str, values: &Values) -> Result<Setting<Owner>, PlanError> {
        let mut setting = Setting::defaults(self.owner, self.rule_version()?);
        for (name, value) in values.iter() {
            setting.set(name, value).map_err(|error| PlanError::Setting {
                table,
                name: name.to_owned(),
                why: error.to_string(),
            })?;
        }
        Ok(setting)
    }

    fn check(&self) -> Result<(), PlanError> {
        let (mut now, wanted) = (self.present_setting()?, self.recommended_setting()?);
        self.check_figures()?;
        self.check_names()?;
        if self.writes.len() > MOST_WRITES {
            return Err(PlanError::TooMany(self.writes.len()));
        }
        for (index, write) in self.writes.iter().enumerate() {
            self.check_write(write, &mut now).map_err(|why| PlanError::Write {
                number: index + 1,
                knob: write.knob.clone(),
                why,
            })?;
        }
        match now == wanted {
            true => Ok(()),
            false => Err(PlanError::Leads { now: now.to_string(), wanted: wanted.to_string() }),
        }
    }

    /// TOML has NaN and infinities, which nothing else here has.
    fn check_figures(&self) -> Result<(), PlanError> {
        let Effect { present, recommended, optimum, gain, speed } = &self.effect;
        let rows = [present, recommended].into_iter().chain(optimum).all(Priced::is_finite);
        let per_s = gain.iter().map(|gain| gain.per_s);
        let ranges = gain.iter().map(|gain| &gain.share).chain(speed);
        let gain = per_s.chain(ranges.flat_map(|range| [range.low, range.value, range.high]));
        let quantiles = self.recording.quantiles.iter().map(|quantile| quantile.quantile);
        let latency = self.conditions.wakeup_latency_ns;
        let goal = match self.conditions.goal {
            Goal::LeastCost => 0.0,
            Goal::MaxCpu(limit) | Goal::MaxHaltsPerSecond(limit) => limit,
        };
        let mut all = gain.chain(quantiles).chain([latency, goal]);
        match rows && all.all(f64::is_finite) {
            true => Ok(()),
            false => Err(PlanError::Syntax("a figure of [effect] or [recording] is not finite".to_owned())),
        }
    }

    /// `now` is what is in force before the write, and then what is after it.
    fn check_write(&self, write: &Write, now: &mut Setting<Owner>) -> Result<(), String> {
        let knob = Knob::of(self.owner, &write.knob)
            .ok_or_else(|| format!("not a parameter of the {} layer", self.owner.name()))?;
        let place = knob.place(self.iothread.as_ref()).ok_or("[iothread] does not say which one is meant")?;
        if place != write.place {
            return Err(format!("its place is {place}, not {}", write.place));
        }
        let before = now.get(&write.knob);
        if before != Some(write.from) {
            return Err(format!("from = {}, but {} would be there", write.from, shown(before)));
        }
        if write.then_wait_ms > LONGEST_WAIT_MS {
            return Err(format!("then_wait_ms = {} is more than {LONGEST_WAIT_MS}", write.then_wait_ms));
        }
        now.set(&write.knob, write.to).map_err(|error| error.to_string())
    }
}

fn shown(value: Option<i64>) -> String {
    value.map_or("nothing".to_owned(), |value| value.to_string())
}

#[derive(Deserialize)]
struct Head {
    format: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// [`Owner`] by its name.
pub(crate) mod owner_name {
    use dwell_policy::Owner;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
    pub(crate) fn serialize<S: Serializer>(owner: &Owner, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(owner.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Owner, D::Error> {
        let name = String::deserialize(input)?;
        Owner::from_name(&name).ok_or_else(|| D::Error::custom(format_args!("there is no layer `{name}`")))
    }
}

#[cfg(test)]
pub(crate) mod tests;
