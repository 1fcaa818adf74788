//! What the timers of a recording would have cost on another host, or with another setting of it.
//!
//! # The steps
//! 1. Each timer keeps when it was armed, whether it fired and where its vCPU was then. Under a set-up that
//!    disables the exits of HLT or MWAIT, a vCPU that was blocked is in the guest instead.
//! 2. [`Setup`] decides what carries it and how many exits arming and firing take. Where its hrtimer fires is
//!    taken from the recording as long as the vCPUs are on the same kind of pCPU, else from the model.
//! 3. An exit of a kind takes the mean recorded duration of that kind, fast path and slow path apart. Of a
//!    kind that was not recorded the time is not known.
//!
//! # Limits
//! Open loop: the guest does not arm more timers because it has more time. Exits that are not a timer's stay
//! as they were. A set-up that lets HLT or MWAIT exit again cannot be replayed from a recording in which they
//! did not.

use super::tally::{Class, Tally, TimerExit, is_halt};
use super::{Pcpu, TimerVm};
use dwell_policy::timer::{Exits, Fire, Revision, Setup, VcpuState};
use dwell_policy::version::Version;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// A host with its kernel, and a VM on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostSetup {
    #[serde(serialize_with = "as_text")]
    pub kernel: Version,
    /// The VM, and the host's parameters.
    #[serde(flatten)]
    pub vm: TimerVm,
    /// Whether another housekeeping CPU runs and has its next event before each timer.
    pub busy_housekeeping: bool,
}

fn as_text<S: Serializer>(version: &Version, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(version)
}

/// The exits of one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Reason {
    pub exits: u64,
    /// Their time in the host \[ns\]; `None` if it is not known. Of HLT, most of it is sleep.
    pub time_ns: Option<f64>,
}

/// What a set-up costs over the time of the recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Exits by the kernel's name of their reason.
    pub reasons: BTreeMap<String, Reason>,
    /// Exits of timers among them.
    pub timer_exits: u64,
    /// Their time in the host \[ns\]; `None` if a kind of them was not recorded.
    pub timer_time_ns: Option<f64>,
    /// Timers that reach the running guest without an exit.
    pub posted: u64,
    /// Timer interrupts on other pCPUs than the vCPUs' own.
    pub interrupts_elsewhere: u64,
    /// Timers that fired and are not counted as fired, since where the vCPU was is not in the recording.
    pub not_known: u64,
}

impl Cost {
    pub fn exits(&self) -> u64 {
        self.reasons.values().map(|reason| reason.exits).sum()
    }
}

/// Whether arming or firing took the fast path, for each kind of exit.
fn is_fast(kind: TimerExit, exits: &Exits) -> bool {
    match kind {
        TimerExit::Arm => exits.msr_write_fast > 0,
        TimerExit::PreemptionTimer => exits.preemption_timer_fast > 0,
        TimerExit::Interrupt => false,
    }
}

/// Why a set-up cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PredictError {
    /// The rules of its kernel are not known.
    #[error("the timers of Linux {kernel} are not known; known are 5.4 to 7.3")]
    Kernel { kernel: Version },
    /// HLT or MWAIT would exit, and did not.
    #[error(
        "the recorded guest idled without exits, so when it would have halted is not in the recording; record it with the \
         exits of HLT and MWAIT enabled"
    )]
    HaltsNotRecorded,
}

/// A recording and the set-up that was in force, from which others are predicted.
#[derive(Clone, Debug)]
pub struct Predictor<'a> {
    pub(super) tally: &'a Tally,
    pub(super) in_force: HostSetup,
    /// The same as a set-up of the model.
    pub(super) recorded: Setup,
}

impl<'a> Predictor<'a> {
    /// # Errors
    /// [`PredictError::Kernel`].
    pub fn new(tally: &'a Tally, in_force: HostSetup) -> Result<Predictor<'a>, PredictError> {
        Ok(Predictor { tally, in_force, recorded: setup(&in_force)? })
    }

    /// The cost of a set-up.
    ///
    /// # Errors
    /// [`PredictError`].
    pub fn predict(&self, host: &HostSetup) -> Result<Cost, PredictError> {
        let under = self.under(host)?;
        Ok(self.cost(&under, &self.count(host, &under)))
    }

    /// The exits of timers under the set-up in force, by what they are for.
    pub(super) fn exits_of_timers(&self) -> BTreeMap<TimerExit, u64> {
        self.count(&self.in_force, &self.recorded).exits
    }

    fn count(&self, host: &HostSetup, under: &Setup) -> Counts {
        let mut counts = Counts::default();
        for (class, timers) in &self.tally.timers {
            counts.add(under, self.elsewhere(host, under, *class), *class, *timers);
        }
        counts
    }

    /// The costs as they were recorded.
    pub fn recorded(&self) -> Cost {
        let mut cost = Cost { posted: self.tally.posted, ..self.without_timer_exits() };
        for (kind, part) in &self.tally.of_timers {
            cost.add(self.tally.reason(*kind), part.exits, Some(part.total_ns as f64));
        }
        cost.timer_exits = self.tally.of_timers.values().map(|part| part.exits).sum();
        cost.timer_time_ns =
            Some(self.tally.of_timers.values().map(|part| part.total_ns).sum::<u128>() as f64);
        for (class, timers) in &self.tally.timers {
            cost.interrupts_elsewhere += if class.elsewhere == Some(true) { *timers } else { 0 };
        }
        cost
    }

    /// The upper bound: timers that need no exit at all.
    pub fn without_timer_exits(&self) -> Cost {
        self.of_others(|_| true)
    }

    /// The exits that are not of timers, of those reasons that stay.
    fn of_others(&self, stays: impl Fn(&str) -> bool) -> Cost {
        let mut cost = Cost { timer_time_ns: Some(0.0), ..Cost::default() };
        for (reason, part) in self.tally.others.iter().filter(|(reason, _)| stays(reason)) {
            cost.add(reason.clone(), part.exits, Some(part.total_ns as f64));
        }
        cost
    }

    fn under(&self, host: &HostSetup) -> Result<Setup, PredictError> {
        let under = setup(host)?;
        let halts_again =
            self.recorded.idling() == VcpuState::InGuestMode && under.idling() == VcpuState::Blocked;
        if halts_again { Err(PredictError::HaltsNotRecorded) } else { Ok(under) }
    }

    /// Whether the hrtimer of a timer fires on another pCPU than the vCPU's.
    fn elsewhere(&self, host: &HostSetup, under: &Setup, class: Class) -> bool {
        let same = |of: &TimerVm| (of.pcpu, of.timer_migration);
        let recorded = class.elsewhere.filter(|_| same(&host.vm) == same(&self.in_force.vm));
        recorded.unwrap_or_else(|| under.fires_elsewhere(host.busy_housekeeping))
    }

    fn cost(&self, under: &Setup, counts: &Counts) -> Cost {
        let halts_exit = under.idling() != VcpuState::InGuestMode;
        let mut cost = self.of_others(|reason| halts_exit || !is_halt(reason));
        for kind in TimerExit::ALL {
            let exits = counts.exits.get(&kind).copied().unwrap_or(0);
            if exits > 0 {
                let time_ns = self.time(kind, under, exits);
                cost.timer_exits += exits;
                cost.timer_time_ns = cost.timer_time_ns.zip(time_ns).map(|(all, some)| all + some);
                cost.add(self.tally.reason(kind), exits, time_ns);
            }
        }
        Cost {
            posted: counts.posted,
            interrupts_elsewhere: counts.interrupts_elsewhere,
            not_known: counts.not_known,
            ..cost
        }
    }

    /// The time of exits of a kind: by their mean in the recording, if it has them by the same path through the kernel.
    fn time(&self, kind: TimerExit, under: &Setup, exits: u64) -> Option<f64> {
        let fast = |setup: &Setup| is_fast(kind, &setup.exits(VcpuState::InGuestMode, false));
        // Of the preemption timer only what was recorded under a set-up that uses it can be compared.
        let same_path = kind == TimerExit::Interrupt || fast(under) == fast(&self.recorded);
        let part = self.tally.of_timers.get(&kind).filter(|_| same_path)?;
        Some(part.mean_ns()? * exits as f64)
    }
}

pub(super) fn setup(host: &HostSetup) -> Result<Setup, PredictError> {
    let revision = Revision::of(host.kernel).map_err(|_| PredictError::Kernel { kernel: host.kernel })?;
    Ok(host.vm.setup(revision))
}

/// Where a vCPU is under a set-up, by where it was.
fn state_under(under: &Setup, recorded: VcpuState) -> VcpuState {
    if recorded == VcpuState::Blocked { under.idling() } else { recorded }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    exits: BTreeMap<TimerExit, u64>,
    posted: u64,
    interrupts_elsewhere: u64,
    not_known: u64,
}

impl Counts {
    /// Adds `timers` timers of one class.
    fn add(&mut self, under: &Setup, elsewhere: bool, class: Class, timers: u64) {
        let mut count = |kind, exits: u32| *self.exits.entry(kind).or_default() += u64::from(exits) * timers;
        let armed = under.exits(VcpuState::InGuestMode, elsewhere);
        count(TimerExit::Arm, armed.arming());
        let Some(state) = class.state.filter(|_| class.fired) else {
            self.not_known += if class.fired { timers } else { 0 };
            return;
        };
        let state = state_under(under, state);
        let exits = under.exits(state, elsewhere);
        count(TimerExit::PreemptionTimer, exits.preemption_timer_slow + exits.preemption_timer_fast);
        count(TimerExit::Interrupt, exits.external_interrupt);
        self.posted += if exits.fire == Fire::Posted { timers } else { 0 };
        let is_hrtimer = under.path(state, elsewhere) != dwell_policy::timer::Path::HvTimer;
        self.interrupts_elsewhere += if is_hrtimer && elsewhere { timers } else { 0 };
    }
}

impl Cost {
    fn add(&mut self, reason: String, exits: u64, time_ns: Option<f64>) {
        let row = self.reasons.entry(reason).or_insert(Reason { exits: 0, time_ns: Some(0.0) });
        row.exits += exits;
        row.time_ns = row.time_ns.zip(time_ns).map(|(all, some)| all + some);
    }
}

/// The set-up in force as far as a recording shows it, over `assumed`.
pub fn in_force(tally: &Tally, kernel: Version, assumed: &TimerVm) -> HostSetup {
    let halts =
        tally.halts().exits > 0 || tally.timers.keys().any(|class| class.state == Some(VcpuState::Blocked));
    let vm = TimerVm {
        preemption_timer: tally.preemption_timer || assumed.preemption_timer && tally.timers.is_empty(),
        apicv: assumed.apicv || tally.posted > 0,
        mwait_in_guest: assumed.mwait_in_guest && !halts,
        hlt_in_guest: assumed.hlt_in_guest && !halts,
        ..*assumed
    };
    let fired = |elsewhere: bool| {
        let of_class = tally.timers.iter().filter(|(class, _)| class.elsewhere == Some(elsewhere));
        of_class.map(|(_, timers)| *timers).sum::<u64>()
    };
    HostSetup { kernel, vm, busy_housekeeping: vm.pcpu == Pcpu::Isolated && fired(true) >= fired(false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_recording::timer::{Mechanism, TimerRecording, TimerRow};
    use dwell_testing::timers::{PATCH_OF_2019, exits_by_interrupts};
    use proptest::prelude::*;

    /// The oracle: one timer after the other, by the model alone.
    fn oracle(recording: &TimerRecording, in_force: &HostSetup, host: &HostSetup) -> Counts {
        let mut counts = Counts::default();
        let under = setup(host).unwrap();
        for timer in &recording.rows.timers {
            let same =
                host.vm.pcpu == in_force.vm.pcpu && host.vm.timer_migration == in_force.vm.timer_migration;
            let elsewhere = match (timer.mechanism, timer.fired_on, timer.vcpu_on, timer.fired_ns) {
                (Some(Mechanism::Hrtimer), Some(at), Some(of), Some(_)) if same => at != of,
                _ => under.fires_elsewhere(host.busy_housekeeping),
            };
            *counts.exits.entry(TimerExit::Arm).or_default() += 1;
            let (Some(_), Some(state)) = (timer.fired_ns, timer.state) else {
                counts.not_known += u64::from(timer.fired_ns.is_some());
                continue;
            };
            let state = if state == VcpuState::Blocked { under.idling() } else { state };
            let path = under.path(state, elsewhere);
            let exits = Exits::of(path, under.revision, state);
            *counts.exits.entry(TimerExit::PreemptionTimer).or_default() +=
                u64::from(exits.preemption_timer_fast + exits.preemption_timer_slow);
            *counts.exits.entry(TimerExit::Interrupt).or_default() += u64::from(exits.external_interrupt);
            counts.posted += u64::from(exits.fire == Fire::Posted);
            counts.interrupts_elsewhere += u64::from(path != dwell_policy::timer::Path::HvTimer && elsewhere);
        }
        counts
    }

    pub(crate) fn vm(bits: u32) -> TimerVm {
        TimerVm {
            pi_inject_timer: bits & 1 != 0,
            apicv: bits & 2 != 0,
            preemption_timer: bits & 4 != 0,
            mwait_in_guest: bits & 8 != 0,
            hlt_in_guest: bits & 16 != 0,
            pcpu: if bits & 32 != 0 { Pcpu::Isolated } else { Pcpu::Housekeeping },
            timer_migration: bits & 64 != 0,
        }
    }

    fn host(kernel: usize, bits: u32) -> HostSetup {
        let kernel = ["5.4.0", "5.4.193", "5.10.114", "5.18", "6.1.0", "6.6", "6.18", "7.2", "7.3"][kernel];
        let kernel = Version::parse(kernel).unwrap();
        HostSetup { kernel, vm: vm(bits), busy_housekeeping: bits & 128 != 0 }
    }

    fn timer() -> impl Strategy<Value = TimerRow> {
        let cpu = prop::option::of(0u32..3);
        let mechanism = prop::option::of(prop::sample::select(Mechanism::ALL.to_vec()));
        let state = prop::option::of(prop::sample::select(VcpuState::ALL.to_vec()));
        (0u32..2, any::<bool>(), cpu.clone(), cpu, mechanism, state).prop_map(
            |(vcpu, fired, fired_on, vcpu_on, mechanism, state)| TimerRow {
                fired_ns: fired.then_some(20),
                fired_on,
                vcpu_on,
                mechanism,
                state,
                ..TimerRow::new(vcpu, 10)
            },
        )
    }

    proptest! {
        #[test]
        fn classes_predict_what_timers_one_by_one_do(
            timers in prop::collection::vec(timer(), 0..60),
            before in (0usize..9, 0u32..256),
            after in (0usize..9, 0u32..256),
        ) {
            let mut recording = TimerRecording::default();
            recording.rows.timers = timers;
            recording.rows.vcpus = vec!["a".into(), "b".into()];
            let (before, after) = (host(before.0, before.1), host(after.0, after.1));
            let tally = Tally::of(&recording);
            let predictor = Predictor::new(&tally, before).unwrap();
            let halts_again = setup(&before).unwrap().idling() == VcpuState::InGuestMode
                && setup(&after).unwrap().idling() == VcpuState::Blocked;
            match predictor.predict(&after) {
                Err(PredictError::HaltsNotRecorded) => prop_assert!(halts_again),
                Err(other) => prop_assert!(false, "{other}"),
                Ok(cost) => {
                    prop_assert!(!halts_again);
                    let counts = oracle(&recording, &before, &after);
                    prop_assert_eq!(cost.timer_exits, counts.exits.values().sum::<u64>());
                    for kind in TimerExit::ALL {
                        let exits = cost.reasons.get(&tally.reason(kind)).map_or(0, |reason| reason.exits);
                        prop_assert_eq!(exits, counts.exits.get(&kind).copied().unwrap_or(0), "{:?}", kind);
                    }
                    prop_assert_eq!(
                        (cost.posted, cost.interrupts_elsewhere, cost.not_known),
                        (counts.posted, counts.interrupts_elsewhere, counts.not_known)
                    );
                }
            }
        }
    }

    #[test]
    fn the_experiment_of_the_patch_of_2019_is_predicted() {
        // A guest that executes MWAIT itself, so that hrtimers carry its timers, on isolated CPUs.
        let (exits_before, exits_after) = PATCH_OF_2019;
        assert_eq!((exits_before, exits_after), (42_916, 6_871));
        let recording = exits_by_interrupts(exits_before, exits_after);
        let tally = Tally::of(&recording);
        // MWAIT in the guest, isolated CPUs, timer migration, APICv, but no posting.
        let before =
            HostSetup { kernel: Version::new(5, 4), vm: vm(2 | 4 | 8 | 32 | 64), busy_housekeeping: true };
        let predictor = Predictor::new(&tally, before).unwrap();
        assert_eq!(predictor.predict(&before).unwrap().reasons["EXTERNAL_INTERRUPT"].exits, 42_916);
        assert_eq!(predictor.recorded().reasons["EXTERNAL_INTERRUPT"].exits, 42_916);
        let posting = HostSetup { vm: TimerVm { pi_inject_timer: true, ..before.vm }, ..before };
        let after = predictor.predict(&posting).unwrap();
        assert_eq!(after.reasons["EXTERNAL_INTERRUPT"].exits, 6_871);
        assert_eq!(after.posted, 42_916 - 6_871);
        // Arming stays, and each exit that stays has the recorded mean.
        assert_eq!(after.reasons["MSR_WRITE"], predictor.recorded().reasons["MSR_WRITE"]);
        assert_eq!(after.reasons["EXTERNAL_INTERRUPT"].time_ns, Some(6_871.0 * 700.0));
        // The rule of 2022 posts here too; without MWAIT in the guest, where nothing says when it halts,
        // nothing is predicted.
        let newest = HostSetup { kernel: Version::new(7, 3), ..posting };
        assert_eq!(predictor.predict(&newest).unwrap().posted, after.posted);
        let plain = HostSetup { vm: TimerVm { mwait_in_guest: false, ..posting.vm }, ..newest };
        assert_eq!(predictor.predict(&plain), Err(PredictError::HaltsNotRecorded));
    }

    #[test]
    fn time_of_exits_that_were_not_recorded_is_not_known() {
        let recording = exits_by_interrupts(100, 10);
        let tally = Tally::of(&recording);
        let before = HostSetup { kernel: Version::new(6, 18), vm: vm(8 | 32 | 64), busy_housekeeping: true };
        let predictor = Predictor::new(&tally, before).unwrap();
        // 7.2 arms in the fast path, which 6.18 does not: the slow path's time does not tell the fast one's.
        let newer = HostSetup { kernel: Version::new(7, 2), ..before };
        let cost = predictor.predict(&newer).unwrap();
        assert_eq!(cost.reasons["MSR_WRITE"].time_ns, None);
        assert_eq!(cost.timer_time_ns, None);
        assert!(cost.reasons["EXTERNAL_INTERRUPT"].time_ns.is_some());
        assert_eq!(predictor.without_timer_exits().exits(), 5);
    }

    #[test]
    fn what_replays_the_set_up_in_force_is_what_was_recorded() {
        let recording = exits_by_interrupts(100, 10);
        let tally = Tally::of(&recording);
        let host = in_force(&tally, Version::new(6, 18), &vm(8 | 32 | 64));
        assert!(host.busy_housekeeping && host.vm.mwait_in_guest);
        let predictor = Predictor::new(&tally, host).unwrap();
        let (replayed, recorded) = (predictor.predict(&host).unwrap(), predictor.recorded());
        assert_eq!((replayed.exits(), replayed.timer_exits), (recorded.exits(), recorded.timer_exits));
        assert_eq!(replayed.interrupts_elsewhere, recorded.interrupts_elsewhere);
    }
}
