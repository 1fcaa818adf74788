//! The set-up to choose for a recording of timers, or to leave the present one.

use super::check::{self, Agreement, TimerCheck};
use super::posting::Precondition;
use super::predict::{Cost, HostSetup, PredictError, Predictor};
use super::tally::{Tally, TimerExit};
use super::{Pcpu, TimerVm};
use dwell_policy::version::Version;
use dwell_recording::timer::{Mechanism, TimerRecording};
use serde::Serialize;
use std::collections::BTreeMap;

/// A set-up and what it would have cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetupRow {
    pub setup: HostSetup,
    /// In what it differs from the one in force, in words; empty if in nothing.
    pub differs: Vec<String>,
    /// What this host or VM lacks for it.
    pub missing: Vec<Precondition>,
    pub cost: Cost,
    /// Time in the host for timers that it saves against the set-up in force, both replayed: what the model and the
    /// recording differ by is no gain \[ns per s\]. `None` if that is not known.
    pub gain_ns_per_s: Option<f64>,
    /// The timer interrupts of one vCPU that other pCPUs take \[per s\].
    pub interrupts_per_vcpu_per_s: f64,
    /// vCPUs for which one housekeeping CPU could take them, by the recorded duration of an interrupt's exit,
    /// which includes its handling; `None` if none was recorded, or there are no such interrupts. The wait
    /// for a deadline is not in it.
    pub vcpus_per_cpu: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// Another set-up is worth a change.
    Change { row: usize },
    /// The present one is to be left.
    Leave { why: String },
}

/// The advice on a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimerAdvice {
    /// The time recorded \[ns\].
    pub span_ns: u64,
    pub vcpus: usize,
    pub timers: u64,
    /// The set-up in force.
    pub in_force: HostSetup,
    /// Its costs as recorded.
    pub recorded: Cost,
    /// The upper bound: no timer needs an exit.
    pub without_timer_exits: Cost,
    pub check: TimerCheck,
    /// What the check allows.
    pub agreement: Agreement,
    /// The set-ups, the one in force first, then the ones with fewest exits of timers.
    pub rows: Vec<SetupRow>,
    /// hrtimers of vCPUs that fired on each pCPU, as recorded \[per s\].
    pub fired_per_s: BTreeMap<u32, f64>,
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// What advice is wanted on.
#[derive(Clone, Copy, Debug)]
pub struct TimerTask<'a> {
    pub recording: &'a TimerRecording,
    /// The set-up that was in force.
    pub in_force: HostSetup,
    /// Other kernels to look at.
    pub kernels: &'a [Version],
    /// The smallest gain that is worth a change, as a share of one CPU.
    pub min_gain: f64,
}

/// Less than this share of the present cost of timers is not worth a change either.
const LEAST_SHARE: f64 = 0.01;

/// Predicts every set-up, and chooses.
///
/// # Errors
/// [`PredictError::Kernel`].
pub fn advise(task: &TimerTask<'_>) -> Result<TimerAdvice, PredictError> {
    let tally = Tally::of(task.recording);
    let predictor = Predictor::new(&tally, task.in_force)?;
    let check = check::check(task.recording, &predictor);
    let recorded = predictor.recorded();
    let present = predictor.predict(&task.in_force)?;
    let mut rows = vec![];
    for setup in setups(&task.in_force, task.kernels) {
        match predictor.predict(&setup) {
            Ok(cost) => rows.push(row(&tally, &task.in_force, &present, setup, cost)),
            Err(PredictError::HaltsNotRecorded) => {}
            Err(error) => return Err(error),
        }
    }
    let rows = distinct(rows);
    let agreement = check.agreement();
    let verdict = verdict(task, &tally, &present, agreement, &rows);
    Ok(TimerAdvice {
        span_ns: tally.span_ns,
        vcpus: tally.vcpus,
        timers: tally.timers.values().sum(),
        in_force: task.in_force,
        without_timer_exits: predictor.without_timer_exits(),
        recorded,
        check,
        agreement,
        rows,
        fired_per_s: fired(task.recording, tally.span_ns),
        verdict,
    })
}

/// Every set-up that can be reached from the one in force, that one first.
fn setups(in_force: &HostSetup, kernels: &[Version]) -> Vec<HostSetup> {
    let mut all = vec![*in_force];
    let own = in_force.vm;
    let either = [false, true];
    for kernel in std::iter::once(in_force.kernel).chain(kernels.iter().copied()) {
        for pi_inject_timer in either {
            for apicv in either.into_iter().filter(|apicv| *apicv || !own.apicv) {
                for hlt_in_guest in either.into_iter().filter(|hlt| *hlt || !own.hlt_in_guest) {
                    for pcpu in [own.pcpu, Pcpu::Isolated] {
                        for busy_housekeeping in either {
                            let vm = TimerVm { pi_inject_timer, apicv, hlt_in_guest, pcpu, ..own };
                            all.push(HostSetup { kernel, vm, busy_housekeeping });
                        }
                    }
                }
            }
        }
    }
    all
}

fn row(tally: &Tally, in_force: &HostSetup, present: &Cost, setup: HostSetup, cost: Cost) -> SetupRow {
    let per_s = 1e9 / tally.span_ns.max(1) as f64;
    let missing: Vec<Precondition> =
        Precondition::ALL.into_iter().filter(|one| one.met(&setup.vm) && !one.met(&in_force.vm)).collect();
    let mut differs: Vec<String> = missing.iter().map(|one| one.words().to_owned()).collect();
    if in_force.vm.pi_inject_timer && !setup.vm.pi_inject_timer {
        differs.push("pi_inject_timer=0".to_owned());
    }
    if setup.kernel != in_force.kernel {
        differs.push(format!("Linux {}", setup.kernel));
    }
    if setup.busy_housekeeping != in_force.busy_housekeeping {
        let words = if setup.busy_housekeeping { "busy" } else { "idle" };
        differs.push(format!("{words} housekeeping CPUs"));
    }
    let gain = present.timer_time_ns.zip(cost.timer_time_ns).map(|(before, after)| (before - after) * per_s);
    let interrupts_per_vcpu_per_s = cost.interrupts_elsewhere as f64 * per_s / tally.vcpus.max(1) as f64;
    let interrupt_ns = tally.of_timers.get(&TimerExit::Interrupt).and_then(super::tally::Part::mean_ns);
    let vcpus_per_cpu = interrupt_ns
        .filter(|ns| *ns > 0.0 && interrupts_per_vcpu_per_s > 0.0)
        .map(|ns| 1e9 / (ns * interrupts_per_vcpu_per_s));
    SetupRow { setup, differs, missing, cost, gain_ns_per_s: gain, interrupts_per_vcpu_per_s, vcpus_per_cpu }
}

/// One row for each cost: the one that differs least from the set-up in force, which remains first.
fn distinct(rows: Vec<SetupRow>) -> Vec<SetupRow> {
    let mut kept: Vec<SetupRow> = vec![];
    let mut rows = rows.into_iter();
    kept.extend(rows.next());
    let mut others: Vec<SetupRow> = rows.collect();
    others.sort_by_key(|row| row.differs.len());
    for row in others {
        let same = |other: &SetupRow| other.cost == row.cost;
        if !kept.iter().any(same) {
            kept.push(row);
        }
    }
    if let Some((_, others)) = kept.split_first_mut() {
        others.sort_by_key(|row| (row.cost.timer_exits, row.differs.len()));
    }
    kept
}

fn verdict(
    task: &TimerTask<'_>,
    tally: &Tally,
    present: &Cost,
    agreement: Agreement,
    rows: &[SetupRow],
) -> Verdict {
    let leave = |why: &str| Verdict::Leave { why: why.to_owned() };
    match agreement {
        Agreement::Agrees | Agreement::Differs => {}
        Agreement::Contradicts => {
            return leave("the model contradicts the recording; no advice is given from it");
        }
        Agreement::NothingToCompare => {
            return leave("the recording has no timer of which mechanism and vCPU state are known");
        }
    }
    // A VM that does not give up its pCPU when it idles takes it from others, unless it has it alone.
    let alone = task.in_force.vm.pcpu == Pcpu::Isolated;
    let takes_cpu = |row: &SetupRow| !alone && row.setup.vm.hlt_in_guest && !task.in_force.vm.hlt_in_guest;
    let worth = |row: &SetupRow| {
        let gain = row.gain_ns_per_s.unwrap_or(0.0);
        let now = present.timer_time_ns.unwrap_or(0.0) * 1e9 / tally.span_ns.max(1) as f64;
        gain > 0.0 && gain >= task.min_gain * 1e9 && gain >= LEAST_SHARE * now
    };
    let possible = rows.iter().enumerate().skip(1).filter(|(_, row)| worth(row));
    let mut best: Vec<(usize, &SetupRow)> = possible.collect();
    best.sort_by(|(_, a), (_, b)| b.gain_ns_per_s.unwrap_or(0.0).total_cmp(&a.gain_ns_per_s.unwrap_or(0.0)));
    if let Some((row, _)) = best.iter().find(|(_, row)| !takes_cpu(row)) {
        return Verdict::Change { row: *row };
    }
    match best.first() {
        None => leave("no other set-up saves so much time for timers that it is worth a change"),
        Some((_, row)) => leave(&format!(
            "{} would save {} of a CPU, but idle vCPUs would keep their pCPUs, which is advised only where each has a pCPU alone \
             (isolated CPUs)",
            row.differs.join(" + "),
            dwell_replay::number::percent(row.gain_ns_per_s.unwrap_or(0.0) / 1e9),
        )),
    }
}

fn fired(recording: &TimerRecording, span_ns: u64) -> BTreeMap<u32, f64> {
    let mut fired = BTreeMap::new();
    let hrtimers = recording.rows.timers.iter().filter(|timer| timer.mechanism == Some(Mechanism::Hrtimer));
    for cpu in hrtimers.filter_map(|timer| timer.fired_ns.and(timer.fired_on)) {
        *fired.entry(cpu).or_default() += 1e9 / span_ns.max(1) as f64;
    }
    fired
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_recording::timer::TimerPart;
    use dwell_testing::timers::{PATCH_OF_2019, exits_by_interrupts};

    fn advice(mwait_in_guest: bool, pcpu: Pcpu, min_gain: f64) -> TimerAdvice {
        let (before, after) = PATCH_OF_2019;
        let recording = exits_by_interrupts(before, after);
        let vm = TimerVm {
            pi_inject_timer: false,
            apicv: true,
            preemption_timer: false,
            mwait_in_guest,
            hlt_in_guest: false,
            pcpu,
            timer_migration: true,
        };
        let in_force = HostSetup { kernel: Version::new(6, 18), vm, busy_housekeeping: true };
        advise(&TimerTask { recording: &recording, in_force, kernels: &[], min_gain }).unwrap()
    }

    #[test]
    fn what_the_model_leaves_out_is_no_gain() {
        let mut recording = exits_by_interrupts(1_000, 100);
        let exits = &mut recording.rows.exits;
        let fired = *exits.iter().find(|exit| exit.cause == Some(TimerPart::Fire)).unwrap();
        exits.extend([fired; 90]);
        let vm = advice(false, Pcpu::Housekeeping, 0.0).in_force.vm;
        let in_force = HostSetup { kernel: Version::new(6, 18), vm, busy_housekeeping: true };
        let found =
            advise(&TimerTask { recording: &recording, in_force, kernels: &[], min_gain: 0.0 }).unwrap();
        assert_eq!((found.check.deviations(), found.agreement), (90, Agreement::Differs));
        assert_eq!(found.rows[0].gain_ns_per_s, Some(0.0));
        assert!(
            matches!(&found.verdict, Verdict::Leave { why } if why.contains("alone")),
            "{:?}",
            found.verdict
        );
    }

    #[test]
    fn posting_is_advised_where_only_the_parameter_is_missing() {
        let advice = advice(true, Pcpu::Isolated, 0.005);
        let Verdict::Change { row } = advice.verdict else { panic!("{:?}", advice.verdict) };
        let row = &advice.rows[row];
        assert_eq!(row.missing, [Precondition::PiInjectTimer]);
        assert_eq!(row.cost.posted, PATCH_OF_2019.0 - PATCH_OF_2019.1);
        assert_eq!((advice.check.deviations(), advice.agreement), (0, Agreement::Agrees));
        // 36,045 exits of 700 ns in a second.
        assert!((row.gain_ns_per_s.unwrap() - 36_045.0 * 700.0).abs() < 1.0);
    }

    #[test]
    fn a_gain_that_is_too_small_is_left() {
        let advice = advice(true, Pcpu::Isolated, 0.5);
        assert!(matches!(&advice.verdict, Verdict::Leave { why } if why.contains("worth a change")));
    }

    #[test]
    fn giving_up_the_exits_of_hlt_is_not_advised_on_shared_cpus() {
        let advice = advice(false, Pcpu::Housekeeping, 0.005);
        let Verdict::Leave { why } = &advice.verdict else { panic!("{:?}", advice.verdict) };
        assert!(why.contains("HLT in the guest") && why.contains("alone"), "{why}");
    }

    #[test]
    fn nothing_is_advised_against_the_recording() {
        let recording = exits_by_interrupts(1_000, 100);
        // The recording has hrtimers throughout; here the preemption timer would have carried them.
        let vm = advice(false, Pcpu::Isolated, 0.0).in_force.vm;
        let vm = TimerVm { preemption_timer: true, ..vm };
        let in_force = HostSetup { kernel: Version::new(6, 18), vm, busy_housekeeping: true };
        let found =
            advise(&TimerTask { recording: &recording, in_force, kernels: &[], min_gain: 0.0 }).unwrap();
        assert_eq!(found.agreement, Agreement::Contradicts);
        assert!(matches!(&found.verdict, Verdict::Leave { why } if why.contains("contradicts")));
    }
}
