//! Which mechanism carries the timers of a VM on a host, where they fire, and how many exits that costs.

use super::{Exits, Path, PostingPredicate, Revision, VcpuConfig, VcpuState};

/// A host and a VM on it, as far as the delivery of the VM's timers depends on them.
///
/// The timers are ordinary ones: in the future by more than the advance and within the hv timer's limit.
///
/// ```
/// use dwell_policy::timer::*;
///
/// let isolated = VcpuConfig { pi_inject_timer: true, apicv_active: true, ..VcpuConfig::default() };
/// let exits = |revision| Setup::of(revision, isolated).exits(VcpuState::InGuestMode, true).firing();
/// assert_eq!((exits(Revision::V5_10), exits(Revision::V5_18)), (0, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Setup {
    /// The rules of the host's kernel.
    pub revision: Revision,
    /// Its posting predicate: that of the revision, or a proposal as if it had been merged.
    pub posting: PostingPredicate,
    /// What the predicate looks at.
    pub config: VcpuConfig,
    /// sysctl `kernel.timer_migration`.
    pub timer_migration: bool,
}

impl Setup {
    /// A kernel as it was released, with `kernel.timer_migration` on as by default.
    pub const fn of(revision: Revision, config: VcpuConfig) -> Setup {
        Setup { revision, posting: revision.posting(), config, timer_migration: true }
    }

    /// Whether the VM's timers may be posted.
    pub const fn can_post(&self) -> bool {
        self.posting.can_post_timer_interrupt(&self.config)
    }

    /// Where a vCPU is while its guest idles: in guest mode if HLT or MWAIT does not exit. A guest that may
    /// use MWAIT is taken to use it.
    pub const fn idling(&self) -> VcpuState {
        if self.config.hlt_in_guest || self.config.mwait_in_guest {
            VcpuState::InGuestMode
        } else {
            VcpuState::Blocked
        }
    }

    /// What carries a timer while the vCPU is in `state`; `elsewhere`: whether its hrtimer is on another pCPU than the
    /// vCPU. Before a vCPU blocks, an hrtimer takes over from the hv timer.
    pub const fn path(&self, state: VcpuState, elsewhere: bool) -> Path {
        let blocked = matches!(state, VcpuState::Blocked);
        if !blocked && self.posting.can_use_hv_timer(&self.config) {
            return Path::HvTimer;
        }
        match (self.can_post(), elsewhere) {
            (false, false) => Path::HrtimerOwnPcpu,
            (false, true) => Path::HrtimerOtherPcpu,
            (true, false) => Path::PostedOwnPcpu,
            (true, true) => Path::PostedOtherPcpu,
        }
    }

    /// The exits of a timer that was armed by the running guest and fires while the vCPU is in `state`.
    pub fn exits(&self, state: VcpuState, elsewhere: bool) -> Exits {
        let armed = Exits::of(self.path(VcpuState::InGuestMode, elsewhere), self.revision, state);
        let fired = Exits::of(self.path(state, elsewhere), self.revision, state);
        Exits { msr_write_slow: armed.msr_write_slow, msr_write_fast: armed.msr_write_fast, ..fired }
    }

    /// Whether an hrtimer fires on another pCPU than the vCPU's, which runs the vCPU and so is not idle. With `busy`,
    /// a housekeeping pCPU runs and has its next event before the timer; without, the others are idle and would have to
    /// be reprogrammed, so that the timer stays where it was started.
    pub const fn fires_elsewhere(&self, busy: bool) -> bool {
        self.timer_migration && !self.config.pcpu_is_timer_housekeeping && busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanos;
    use crate::timer::tests::config;
    use crate::timer::tests::housekeeping::{Cpu, Host, Hrtimer, target};

    fn setup(revision: Revision, bits: u32) -> Setup {
        Setup { timer_migration: bits & 64 != 0, ..Setup::of(revision, config(bits)) }
    }

    fn all() -> impl Iterator<Item = Setup> {
        Revision::ALL.into_iter().flat_map(|revision| (0..1 << 7).map(move |bits| setup(revision, bits)))
    }

    /// The oracle: a host of two pCPUs, the vCPU's and a housekeeping one.
    #[test]
    fn timers_move_away_from_isolated_cpus_to_busy_ones_only() {
        for setup in all() {
            for busy in [false, true] {
                let housekeeping = setup.config.pcpu_is_timer_housekeeping;
                let own =
                    Cpu { online: true, idle: false, housekeeping, numa_distance: 10, next_event: Nanos(0) };
                let next_event = if busy { Nanos(0) } else { Nanos::MAX };
                let other = Cpu { idle: !busy, housekeeping: true, next_event, ..own };
                let (timer_migration, cpus) = (setup.timer_migration, &[own, other]);
                let host = Host { timer_migration, cpus, current: 0, domains: &[&[0, 1]] };
                let target = target(setup.revision, &host, &Hrtimer { pinned: false, expires: Nanos(1_000) });
                assert_eq!(setup.fires_elsewhere(busy), target != 0, "{setup:?}");
            }
        }
    }

    #[test]
    fn arming_costs_one_exit_and_only_posting_from_elsewhere_to_a_running_guest_saves_the_other() {
        for setup in all() {
            for elsewhere in [false, true] {
                let exits = setup.exits(VcpuState::InGuestMode, elsewhere);
                assert_eq!(exits.arming(), 1, "{setup:?}");
                assert_eq!(exits.firing(), u32::from(!(setup.can_post() && elsewhere)), "{setup:?}");
                assert_eq!(setup.exits(VcpuState::Blocked, elsewhere).firing(), 0, "{setup:?}");
            }
        }
    }

    #[test]
    fn blocked_vcpu_arms_by_the_hv_timer_and_is_woken_by_an_hrtimer() {
        let setup = setup(Revision::V6_12, 32);
        assert_eq!(setup.path(VcpuState::InGuestMode, false), Path::HvTimer);
        assert_eq!(setup.path(VcpuState::Blocked, false), Path::HrtimerOwnPcpu);
        assert_eq!(setup.exits(VcpuState::Blocked, false).msr_write_fast, 1);
    }

    #[test]
    fn a_blocked_vcpu_is_woken_by_an_hrtimer() {
        for setup in all() {
            for elsewhere in [false, true] {
                assert_ne!(setup.path(VcpuState::Blocked, elsewhere), Path::HvTimer, "{setup:?}");
            }
        }
    }
}
