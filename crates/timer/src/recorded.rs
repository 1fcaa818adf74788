//! All that is known of a recording of timers: the set-up in force, what others would have cost, the advice, the plan.

use crate::advice::{TimerAdvice, TimerTask, Verdict, advise};
use crate::describe::{Described, Fact, Given, HOST, Origin, TSC_KHZ, correct, describe};
use crate::lateness::{self, Delays, Late};
use crate::posting::Precondition;
use crate::predict::{PredictError, in_force};
use crate::tally::Tally;
use dwell_capture::record::left_out;
use dwell_knobs::knob::Knob;
use dwell_knobs::plan::{Plan, RecordedOn};
use dwell_machine::{Machine, TimerHost};
use dwell_policy::Owner;
use dwell_policy::param::Setting;
use dwell_policy::timer::{Advance, AdvanceParameter, Revision};
use dwell_policy::version::{UnknownVersion, Version};
use dwell_recording::timer::TimerRecording;
use dwell_recording::{Metadata, TableReadError};
use dwell_replay::check::setting_of;
use dwell_replay::number::{duration, number_of, percent, rounded};
use dwell_replay::tune::MIN_EPISODES;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The one parameter of posting.
const PI_INJECT_TIMER: &str = "pi_inject_timer";
/// The advance up to 6.9, and from 6.10 on.
const ADVANCE_NS: &str = "lapic_timer_advance_ns";
const ADVANCE_SWITCH: &str = "lapic_timer_advance";

/// What to predict, and with what the recording does not have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question {
    /// The host's kernel; that of the recording if it is not given.
    pub kernel: Option<Version>,
    /// What is known of the VM; a parameter in the recording is not given here.
    pub vm: Given,
    /// Another kernel to compare with.
    pub upgrade: Option<Version>,
    /// The frequency of the guests' TSC \[kHz\]; that of the recording if it is not given.
    pub tsc_khz: Option<u32>,
    /// The smallest gain that is worth a change, as a share of a CPU.
    pub min_gain: f64,
}

/// Why nothing was predicted.
#[derive(Debug, thiserror::Error)]
pub enum TimersError {
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] TableReadError),
    /// It has no timers.
    #[error("{file}: no timer was recorded, so there is nothing to replay{lacks}")]
    NoTimers {
        file: String,
        /// What the recording lacks, each after a semicolon.
        lacks: String,
    },
    /// It does not have the kernel.
    #[error("{0}: the recording does not have the kernel's release; give it with --kernel")]
    NoKernel(String),
    /// The rule of its kernel is not known.
    #[error("Linux {kernel}")]
    UnknownKernel {
        kernel: Version,
        /// Which are known.
        source: UnknownVersion,
    },
    /// It cannot be predicted.
    #[error(transparent)]
    Predict(#[from] PredictError),
}

/// The advice on a recording, as it is printed.
#[derive(Serialize)]
pub struct Timers {
    pub file: String,
    layer: &'static str,
    /// The VM and its host, each fact with where it comes from.
    pub facts: Vec<Fact>,
    /// What was recorded, what each set-up would have cost, and the verdict.
    #[serde(flatten)]
    pub advice: TimerAdvice,
    /// The advice as a sentence.
    pub words: String,
    /// What each advance comes to; null if lateness or the frequency of the TSC is not known.
    pub advances: Option<Vec<Late>>,
    /// The advance to change to; null to leave the present one, or where it is not known.
    pub better: Option<BetterAdvance>,
    /// How late hrtimers fired, and how long the guest took to notice.
    pub delays: Delays,
    /// For whoever reads the figures.
    pub notes: Vec<String>,
    #[serde(skip)]
    setting: Setting<Owner>,
    #[serde(skip)]
    /// What the recording says of itself.
    pub metadata: Metadata<Owner>,
}

/// Reads a recording, predicts and chooses. `here` is asked where it is the machine that was recorded.
///
/// # Errors
/// [`TimersError`].
pub fn timers(path: &Path, question: &Question, here: &dyn Machine) -> Result<Timers, TimersError> {
    let file = path.display().to_string();
    let recording = TimerRecording::open(path)?;
    let metadata = &recording.metadata;
    if recording.rows.timers.is_empty() {
        let lacks = left_out(metadata).iter().map(|note| format!("; {note}")).collect();
        return Err(TimersError::NoTimers { file, lacks });
    }
    let of_recording = || metadata.kernel.as_deref().and_then(Version::parse);
    let kernel = question.kernel.or_else(of_recording).ok_or_else(|| TimersError::NoKernel(file.clone()))?;
    let revision = Revision::of(kernel).map_err(|source| TimersError::UnknownKernel { kernel, source })?;
    let setting = setting_of(Owner::Timer, kernel, &metadata.settings);
    let is_here = RecordedOn::of(metadata, here) == RecordedOn::ThisMachine;
    let parameter = setting.and_then(|setting| setting.get(PI_INJECT_TIMER));
    let pi_inject_timer = parameter.and_then(|value| i32::try_from(value).ok());
    let given = Given { pi_inject_timer, ..question.vm };
    // A value that another program has put there is not believed, and counts as none.
    let host = metadata.other.get(HOST).and_then(|host| TimerHost::deserialize(host).ok());
    let machine = is_here.then_some(here);
    let Described { vm, mut facts } = describe(&given, host.as_ref(), machine);
    let recorded = facts.iter_mut().filter(|fact| fact.name == PI_INJECT_TIMER && parameter.is_some());
    recorded.for_each(|fact| fact.origin = Origin::Recording);
    let tally = Tally::of(&recording);
    let in_force = in_force(&tally, kernel, &vm);
    let contradicted = correct(&mut facts, &vm, &in_force.vm);
    let kernels: Vec<Version> = question.upgrade.into_iter().collect();
    let advice = advise(&TimerTask {
        recording: &recording,
        in_force,
        kernels: &kernels,
        min_gain: question.min_gain,
    })?;
    let setting = setting.unwrap_or_else(|| Setting::defaults(Owner::Timer, kernel));
    let recorded_khz = metadata.other.get(TSC_KHZ).and_then(serde_json::Value::as_u64);
    let recorded_khz = recorded_khz.and_then(|khz| u32::try_from(khz).ok()).filter(|khz| *khz > 0);
    let khz = question.tsc_khz.or(recorded_khz);
    let (recorded, all) = advances(revision, &setting);
    let advances = khz.and_then(|khz| lateness::replay(&recording, revision, khz, recorded, &all));
    let better = advances.as_deref().and_then(|late| {
        let place = lateness::better(late)?;
        Some(BetterAdvance::of(*all.get(place)?, [late.first()?, late.get(place)?], &setting))
    });
    let mut notes = left_out(metadata);
    notes.extend(contradicted);
    if advice.timers < MIN_EPISODES {
        notes.push(format!(
            "the recording has {}, too few to rely on the advice: record at least {MIN_EPISODES}",
            number_of(advice.timers.into(), "timer")
        ));
    }
    if let Some(lost) = metadata.lost.events.filter(|lost| *lost > 0) {
        notes.push(format!("the recorder lost {}", number_of(lost.into(), "event")));
    }
    if advances.is_none() {
        notes.push("what another advance gains is not known: it needs recorded lateness (kvm:kvm_wait_lapic_expire) and the \
                    frequency of the guests' TSC (--tsc-khz)".to_owned());
    }
    if advice.rows.iter().any(|row| row.cost.timer_time_ns.is_none()) {
        notes.push(
            "where no host time is shown, exits of this kind, or by this path through the kernel, were not recorded"
                .to_owned(),
        );
    }
    if let Some(timers) = advice.rows.first().map(|row| row.cost.not_known).filter(|timers| *timers > 0) {
        notes.push(format!(
            "{} that fired are predicted without exits: the state of their vCPU was not recorded",
            number_of(timers.into(), "timer")
        ));
    }
    Ok(Timers {
        file,
        layer: Owner::Timer.name(),
        facts,
        words: words(&advice),
        advice,
        advances,
        better,
        delays: lateness::delays(&recording),
        notes,
        setting,
        metadata: recording.metadata,
    })
}

/// An advance that loses less of the guest's time than the one in force.
#[derive(Clone, Debug, Serialize)]
pub struct BetterAdvance {
    parameter: &'static str,
    value: i64,
    pub words: String,
}

impl BetterAdvance {
    fn of(advance: Advance, [in_force, better]: [&Late; 2], setting: &Setting<Owner>) -> BetterAdvance {
        let fixed = setting.get(ADVANCE_NS).is_some();
        let parameter = if fixed { ADVANCE_NS } else { ADVANCE_SWITCH };
        let value = match (fixed, advance.is_adaptive()) {
            (true, true) => -1,
            (true, false) => i64::from(advance.ns()),
            (false, adaptive) => i64::from(adaptive),
        };
        let knob = Knob::of(Owner::Timer, parameter);
        let written = knob.map_or_else(|| value.to_string(), |knob| knob.written(value));
        let how = if fixed {
            "can be set at any time"
        } else {
            "is read-only: set it as an option of the module kvm, or kvm.lapic_timer_advance= on the kernel's command line"
        };
        let words = format!(
            "{parameter}={written} ({}): a timer loses {} to lateness and spinning in place of {}; for vCPUs that are created \
             afterwards; it {how}",
            better.advance,
            duration(better.lost_ns()),
            duration(in_force.lost_ns()),
        );
        BetterAdvance { parameter, value, words }
    }
}

/// The advance in force, and those to compare.
fn advances(revision: Revision, setting: &Setting<Owner>) -> (Advance, Vec<Advance>) {
    let fixed = setting.get(ADVANCE_NS).and_then(|ns| i32::try_from(ns).ok());
    let switch = setting.get(ADVANCE_SWITCH).map(|on| on != 0);
    let of_fixed = fixed.map(AdvanceParameter::LapicTimerAdvanceNs);
    let parameter = of_fixed.or(switch.map(AdvanceParameter::LapicTimerAdvance));
    let recorded =
        parameter.and_then(|parameter| Advance::of(revision, parameter)).unwrap_or(Advance::ADAPTIVE);
    let mut all = vec![recorded];
    // From 6.10 the advance is adaptive or off.
    let fixed = [1_000, 2_000, 5_000].map(AdvanceParameter::LapicTimerAdvanceNs);
    let others = fixed.iter().filter_map(|parameter| Advance::of(revision, *parameter));
    for advance in [Advance::ADAPTIVE, Advance::OFF].into_iter().chain(others) {
        if !all.contains(&advance) {
            all.push(advance);
        }
    }
    (recorded, all)
}

fn per_s(number: f64, advice: &TimerAdvice) -> f64 {
    number * 1e9 / advice.span_ns.max(1) as f64
}

fn words(advice: &TimerAdvice) -> String {
    match &advice.verdict {
        Verdict::Leave { why } => format!("leave the present set-up: {why}"),
        Verdict::Change { row } => {
            advice.rows.first().zip(advice.rows.get(*row)).map_or_else(String::new, |(present, row)| {
                format!(
                    "{}: saves {} of a CPU in the host for the timers of {} and {} exits per second",
                    row.differs.join(", "),
                    percent(row.gain_ns_per_s.unwrap_or(0.0) / 1e9),
                    number_of(advice.vcpus as u128, "vCPU"),
                    rounded(per_s(present.cost.exits() as f64 - row.cost.exits() as f64, advice)),
                )
            })
        }
    }
}

impl Timers {
    /// The name of the file, without its folder.
    pub fn name(&self) -> String {
        let name = Path::new(&self.file).file_name();
        name.map_or_else(|| self.file.clone(), |name| name.to_string_lossy().into_owned())
    }

    /// A number of the whole recording as one of a second of it.
    pub fn per_s(&self, number: f64) -> f64 {
        per_s(number, &self.advice)
    }

    /// The plan that turns posting on, if that is all that is missing, and that sets a better advance where
    /// that can be written.
    pub fn plan(&self) -> Option<Plan> {
        let mut wanted = self.setting;
        if let Verdict::Change { row } = self.advice.verdict
            && self.advice.rows.get(row)?.missing == [Precondition::PiInjectTimer]
        {
            wanted.set(PI_INJECT_TIMER, 1).ok()?;
        }
        if let Some(better) = self.better.as_ref().filter(|better| better.parameter == ADVANCE_NS) {
            wanted.set(better.parameter, better.value).ok()?;
        }
        (wanted != self.setting).then(|| Plan::by_hand(self.setting, wanted, None))
    }
}
