//! Recordings of timers: what `dwell tune` and `dwell replay` print of them.

use super::{VmArgs, exits_in};
use crate::model::ModelArgs;
use crate::output::{self, Format};
use crate::settings;
use anyhow::{Context, bail, ensure};
use dwell_knobs::knob::Knob;
use dwell_knobs::plan::{Plan, RecordedOn};
use dwell_machine::{Machine, Sysroot, TimerHost};
use dwell_policy::Owner;
use dwell_policy::param::Setting;
use dwell_policy::timer::{Advance, AdvanceParameter, Revision};
use dwell_policy::version::Version;
use dwell_recording::Metadata;
use dwell_recording::timer::{TimerReader, TimerRecording};
use dwell_replay::number::rounded;
use dwell_report::{Cell, Column, Table, count, duration, number_of, percent};
use dwell_timer::advice::{SetupRow, TimerAdvice, TimerTask, Verdict, advise};
use dwell_timer::describe::{Described, Fact, HOST, Origin, TSC_KHZ, describe};
use dwell_timer::lateness::{self, Delays, Late};
use dwell_timer::posting::Precondition;
use dwell_timer::predict::{Cost, in_force};
use dwell_timer::tally::Tally;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The one parameter of posting.
const PI_INJECT_TIMER: &str = "pi_inject_timer";
/// The advance up to 6.9, and from 6.10 on.
const ADVANCE_NS: &str = "lapic_timer_advance_ns";
const ADVANCE_SWITCH: &str = "lapic_timer_advance";

/// Options for recordings of timers.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct RecordedArgs {
    #[command(flatten)]
    pub(crate) vm: VmArgs,
    /// Frequency of the guests' TSC, for recordings of timers, in kHz
    ///
    /// From 1. Lateness is recorded in cycles; without a frequency, what an advance gains is not known.
    #[arg(long, value_name = "KHZ", value_parser = clap::value_parser!(u32).range(1..), help_heading = crate::timer::VM_AND_HOST)]
    tsc_khz: Option<u32>,
}

/// Whether a file is a recording of timers.
pub(crate) fn is_one(path: &Path) -> bool {
    TimerReader::open(path).is_ok()
}

/// Refuses options for timers where the recording has none.
pub(crate) fn refuse(args: &RecordedArgs) -> anyhow::Result<()> {
    ensure!(
        !args.vm.any() && args.tsc_khz.is_none(),
        "options of a VM and its host need a recording of timers; `dwell record timer` makes one"
    );
    Ok(())
}

/// The advice on a recording, as it is printed.
#[derive(Serialize)]
pub(crate) struct Timers {
    file: String,
    layer: &'static str,
    facts: Vec<Fact>,
    #[serde(flatten)]
    pub(crate) advice: TimerAdvice,
    /// The advice as a sentence.
    words: String,
    /// What each advance comes to; null if lateness or the frequency of the TSC is not known.
    advances: Option<Vec<Late>>,
    /// The advance to change to; null to leave the present one, or where it is not known.
    better: Option<BetterAdvance>,
    /// How late hrtimers fired, and how long the guest took to notice.
    pub(crate) delays: Delays,
    notes: Vec<String>,
    #[serde(skip)]
    setting: Setting<Owner>,
    #[serde(skip)]
    pub(crate) metadata: Metadata<Owner>,
}

/// Predicts and chooses.
pub(crate) fn timers(
    path: &Path,
    model: &ModelArgs,
    args: &RecordedArgs,
    min_gain: f64,
) -> anyhow::Result<Timers> {
    if let Some(whose) = model.layer {
        bail!("--layer {}: {} is a recording of timers", whose.name(), path.display());
    }
    let recording = TimerRecording::open(path)?;
    let metadata = &recording.metadata;
    let lacks: String = crate::model::left_out(metadata).iter().map(|note| format!("; {note}")).collect();
    ensure!(
        !recording.timers.is_empty(),
        "{}: no timer was recorded, so there is nothing to replay{lacks}",
        path.display()
    );
    let of_recording = || metadata.kernel.as_deref().and_then(Version::parse);
    let kernel = model.versions.kernel.or_else(of_recording).with_context(|| {
        format!("{}: the recording does not have the kernel's release; give it with --kernel", path.display())
    })?;
    let revision = Revision::of(kernel).with_context(|| format!("Linux {kernel}"))?;
    let setting = settings::recorded(Owner::Timer, kernel, metadata);
    let machine = Sysroot::of_this_machine();
    let is_here = RecordedOn::of(metadata, &machine) == RecordedOn::ThisMachine;
    let parameter = setting.and_then(|setting| setting.get(PI_INJECT_TIMER));
    let given = args.vm.given(parameter.and_then(|value| i32::try_from(value).ok()));
    // A value that another program has put there is not believed, and counts as none.
    let host = metadata.other.get(HOST).and_then(|host| TimerHost::deserialize(host).ok());
    let machine = is_here.then_some(&machine as &dyn Machine);
    let Described { vm, mut facts } = describe(&given, host.as_ref(), machine);
    let recorded = facts.iter_mut().filter(|fact| fact.name == PI_INJECT_TIMER && parameter.is_some());
    recorded.for_each(|fact| fact.origin = Origin::Recording);
    let tally = Tally::of(&recording);
    let in_force = in_force(&tally, kernel, &vm);
    let kernels: Vec<Version> = args.vm.upgrade.into_iter().collect();
    let advice = advise(&TimerTask { recording: &recording, in_force, kernels: &kernels, min_gain })?;
    let setting = setting.unwrap_or_else(|| Setting::defaults(Owner::Timer, kernel));
    let recorded_khz = metadata.other.get(TSC_KHZ).and_then(serde_json::Value::as_u64);
    let recorded_khz = recorded_khz.and_then(|khz| u32::try_from(khz).ok()).filter(|khz| *khz > 0);
    let khz = args.tsc_khz.or(recorded_khz);
    let (recorded, all) = advances(revision, &setting);
    let advances = khz.and_then(|khz| lateness::replay(&recording, revision, khz, recorded, &all));
    let better = advances.as_deref().and_then(|late| {
        let place = lateness::better(late)?;
        Some(BetterAdvance::of(*all.get(place)?, [late.first()?, late.get(place)?], &setting))
    });
    let mut notes = crate::model::left_out(metadata);
    if let Some(lost) = metadata.lost.events.filter(|lost| *lost > 0) {
        notes.push(format!("the recorder lost {}", number_of(lost.into(), "event")));
    }
    if advances.is_none() {
        notes.push("what another advance gains is not known: it needs recorded lateness (kvm:kvm_wait_lapic_expire) and the \
                    frequency of the guests' TSC (--tsc-khz)".to_owned());
    }
    if advice.rows.iter().any(|row| row.cost.timer_time_ns.is_none()) {
        notes.push(
            "`not known`: exits of this kind, or by this path through the kernel, were not recorded"
                .to_owned(),
        );
    }
    Ok(Timers {
        file: path.display().to_string(),
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
struct BetterAdvance {
    /// The parameter.
    parameter: &'static str,
    /// Its value.
    value: i64,
    /// As a sentence.
    words: String,
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
        Verdict::Change { row } => advice.rows.get(*row).map_or_else(String::new, |row| {
            format!(
                "{}: saves {} of a CPU in the host for the timers of {} and {} exits per second",
                row.differs.join(", "),
                percent(row.gain_ns_per_s.unwrap_or(0.0) / 1e9),
                number_of(advice.vcpus as u128, "vCPU"),
                rounded(per_s(advice.recorded.exits() as f64 - row.cost.exits() as f64, advice)),
            )
        }),
    }
}

impl Timers {
    /// Prints the advice.
    pub(crate) fn print(&self, format: Format, with_exits: bool) -> anyhow::Result<()> {
        match format {
            Format::Json => output::json(self),
            Format::Csv if with_exits => output::csv(&self.exits_table()),
            Format::Csv => output::csv(&self.table()),
            Format::Table => output::text(&self.text(with_exits)),
        }
    }

    /// The file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// A number of the whole recording as one of a second of it.
    pub(crate) fn per_s(&self, number: f64) -> f64 {
        per_s(number, &self.advice)
    }

    /// The name of the file, without its folder.
    pub(crate) fn name(&self) -> String {
        let name = Path::new(&self.file).file_name();
        name.map_or_else(|| self.file.clone(), |name| name.to_string_lossy().into_owned())
    }

    pub(crate) fn text(&self, with_exits: bool) -> String {
        let advice = &self.advice;
        let bound = advice.recorded.timer_time_ns.map_or_else(
            || "not known".to_owned(),
            |ns| format!("{} of a CPU", percent(per_s(ns, advice) / 1e9)),
        );
        let head = format!(
            "{}: {} of {} over {}, rule of Linux {}",
            self.file,
            number_of(advice.timers.into(), "timer"),
            number_of(advice.vcpus as u128, "vCPU"),
            duration(advice.span_ns as f64),
            advice.in_force.kernel,
        );
        let facts: Vec<String> = self
            .facts
            .iter()
            .map(|fact| format!("{} {} ({})", fact.name, fact.value, fact.origin.words()))
            .collect();
        let check = &advice.check;
        let check = format!(
            "self-check: {} of {} timers compared with the model, {} deviations",
            count(check.compared.into()),
            count(check.timers.into()),
            count(check.deviations().into()),
        );
        let most = format!(
            "Timers that cost no exit at all would save at most {bound} and {} exits per second.",
            rounded(per_s(advice.recorded.timer_exits as f64, advice)),
        );
        let mut text = [
            output::wrapped(&head),
            output::wrapped(&facts.join(", ")),
            output::wrapped(&check),
            format!("\n{}\n", output::wrapped(&most)),
            output::fitted(&if with_exits { self.exits_table() } else { self.table() }),
        ]
        .concat();
        if let Some(advances) = &self.advances {
            text += &format!("\nAdvance of timers:\n{}", output::fitted(&advances_table(advances, advice)));
        }
        if !advice.fired_per_s.is_empty() {
            let cpus = advice.fired_per_s.iter().map(|(cpu, rate)| format!("CPU {cpu} {}", rounded(*rate)));
            let words = format!(
                "hrtimers of vCPUs fired per second, as recorded: {}",
                cpus.collect::<Vec<_>>().join(", ")
            );
            text += &format!("\n{}", output::wrapped(&words));
        }
        text += &format!("\n{}", output::wrapped(&format!("Advice: {}", self.words)));
        if let Verdict::Change { row } = advice.verdict
            && let Some(row) = advice.rows.get(row)
        {
            for one in &row.missing {
                text += &output::hanging("  ", "    ", &format!("{}: {}", one.words(), one.remedy()));
            }
        }
        if let Some(better) = &self.better {
            text += &output::wrapped(&format!("Advance: {}", better.words));
        }
        for note in &self.notes {
            text += &output::wrapped(&format!("note: {note}"));
        }
        text
    }

    /// The set-ups.
    fn table(&self) -> Table {
        let mut table = Table::new([
            Column::number("timer exits/s", "timer_exits_per_s"),
            Column::number("host time", "timer_time_share"),
            Column::number("posted/s", "posted_per_s"),
            Column::number("exits/s", "exits_per_s").rank(3),
            Column::number("elsewhere/s", "interrupts_elsewhere_per_s").rank(4),
            Column::number("vCPUs/CPU", "vcpus_per_cpu").rank(2),
            Column::text("set-up", "setup").below(),
        ]);
        let advice = &self.advice;
        let mut push = |name: String, cost: &Cost, vcpus_per_cpu: Option<f64>| {
            let rate = |number: u64| Cell::Rounded(per_s(number as f64, advice));
            let share = cost.timer_time_ns.map(|ns| per_s(ns, advice) / 1e9);
            table.push([
                rate(cost.timer_exits),
                share.map_or_else(|| Cell::Text("not known".to_owned()), Cell::Share),
                rate(cost.posted),
                rate(cost.exits()),
                rate(cost.interrupts_elsewhere),
                Cell::ratio(vcpus_per_cpu.map(f64::floor)),
                Cell::Text(name),
            ]);
        };
        push("as recorded".to_owned(), &advice.recorded, None);
        push("bound: timers without exits".to_owned(), &advice.without_timer_exits, None);
        for row in &advice.rows {
            push(name(row), &row.cost, row.vcpus_per_cpu);
        }
        table
    }

    /// The exits by reason, of what was recorded and of each set-up.
    pub(crate) fn exits_table(&self) -> Table {
        let mut table = Table::new([
            Column::text("reason", "reason"),
            Column::number("exits/s", "exits_per_s"),
            Column::number("host time", "time_share"),
            Column::text("set-up", "setup"),
        ]);
        let advice = &self.advice;
        let mut push = |name: &str, cost: &Cost| {
            for (reason, exits) in &cost.reasons {
                let share = exits.time_ns.map(|ns| per_s(ns, advice) / 1e9);
                table.push([
                    Cell::Text(reason.clone()),
                    Cell::Rounded(per_s(exits.exits as f64, advice)),
                    share.map_or_else(|| Cell::Text("not known".to_owned()), Cell::Share),
                    Cell::Text(name.to_owned()),
                ]);
            }
        };
        push("as recorded", &advice.recorded);
        push("bound: timers without exits", &advice.without_timer_exits);
        for row in &advice.rows {
            push(&name(row), &row.cost);
        }
        table
    }

    /// The plan that turns posting on, if that is all that is missing, and that sets a better advance where
    /// that can be written.
    pub(crate) fn plan(&self) -> Option<Plan> {
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

fn name(row: &SetupRow) -> String {
    let exits = exits_in(&row.setup.vm);
    if row.differs.is_empty() { format!("in force, replayed ({exits})") } else { row.differs.join(" + ") }
}

fn advances_table(advances: &[Late], advice: &TimerAdvice) -> Table {
    let mut table = Table::new([
        Column::text("advance", "advance"),
        Column::number("timers", "timers"),
        Column::number("late, mean", "mean_ns"),
        Column::number("late, p99", "p99_ns"),
        Column::number("spin, mean", "mean_spin_ns"),
        Column::number("spin", "spin_share"),
    ]);
    for late in advances {
        table.push([
            Cell::Text(late.advance.clone()),
            Cell::Count(late.timers.into()),
            Cell::Nanos(late.mean_ns),
            Cell::Nanos(late.p99_ns),
            Cell::Nanos(late.mean_spin_ns),
            Cell::Share(per_s(late.spin_ns, advice) / 1e9),
        ]);
    }
    table
}
