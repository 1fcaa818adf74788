//! VM exits per timer: the bill for one arming and one expiry.
//!
//! Arming is never free: the write to the deadline register exits on every path. Only delivery can be.

use super::{Revision, VcpuState};
use core::fmt;

crate::named! {
    /// What carried a timer, and where it fired.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Path {
        /// The hv timer.
        HvTimer = "preemption timer",
        /// An hrtimer of a vCPU that is not POST-capable, on the pCPU that the vCPU runs on.
        HrtimerOwnPcpu = "hrtimer, own CPU",
        /// The same on another pCPU.
        HrtimerOtherPcpu = "hrtimer, other CPU",
        /// An hrtimer of a POST-capable vCPU, on the pCPU that the vCPU runs on.
        PostedOwnPcpu = "posted, own CPU",
        /// The same on another pCPU: what posting is for.
        PostedOtherPcpu = "posted, other CPU",
    }

    /// In a few words.
    pub fn words
}

crate::named! {
    /// How the expiry made itself felt: the reason for the exits of firing, or for their absence.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Fire {
        /// The hv timer's own exit.
        HvTimerExit = "hv-timer-exit",
        /// The host's timer interrupt made the guest exit.
        HostInterrupt = "host-interrupt",
        /// The kick from another pCPU made the guest exit.
        RescheduleIpi = "reschedule-ipi",
        /// Posted into the running guest.
        Posted = "posted",
        /// The vCPU was in the host already.
        AlreadyOutside = "already-outside",
        /// The vCPU was blocked after an HLT exit.
        WokenUp = "woken-up",
    }

    /// The name used in files.
    pub fn name
}

impl fmt::Display for Fire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fire::HvTimerExit => "preemption timer exit; no host interrupt",
            Fire::HostInterrupt => "exit by the host timer interrupt, then pending, then entry",
            Fire::RescheduleIpi => "exit by the reschedule IPI of the kick, then pending, then entry",
            Fire::Posted => "posted into the running guest, no exit",
            Fire::AlreadyOutside => "vCPU in the host: delivered at its next entry, no exit",
            Fire::WokenUp => "vCPU halted: no exit beyond the HLT's, wakeup latency instead",
        })
    }
}

/// The exits of one armed and fired timer, by the exit reasons of VMX. An HLT exit is not among them: it is the cost
/// of halting, not of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exits {
    /// `MSR_WRITE` through the whole exit handler: arming.
    pub msr_write_slow: u32,
    /// `MSR_WRITE` in the fast path, with the interrupts still off: arming.
    pub msr_write_fast: u32,
    /// `PREEMPTION_TIMER` through the whole exit handler: firing.
    pub preemption_timer_slow: u32,
    /// `PREEMPTION_TIMER` in the fast path: firing.
    pub preemption_timer_fast: u32,
    /// `EXTERNAL_INTERRUPT`: firing.
    pub external_interrupt: u32,
    /// What happened at expiry.
    pub fire: Fire,
}

impl Exits {
    /// The bill for a timer armed by a deadline write and fired while the vCPU is in `state`.
    ///
    /// Firing outside guest mode is derived from the rules of expiry; the source table has a running vCPU and a
    /// halted one. The hv timer then still exits once: it is programmed to 0 at the next entry.
    pub fn of(path: Path, revision: Revision, state: VcpuState) -> Exits {
        let on_hv_timer = path == Path::HvTimer;
        let arms_fast = revision >= if on_hv_timer { Revision::V5_10 } else { Revision::V7_2 };
        let fires_fast = revision >= Revision::V5_10;
        let fire = match (path, state) {
            (_, VcpuState::Blocked) => Fire::WokenUp,
            (Path::HvTimer, _) => Fire::HvTimerExit,
            (_, VcpuState::OutsideGuestMode) => Fire::AlreadyOutside,
            (Path::HrtimerOwnPcpu | Path::PostedOwnPcpu, VcpuState::InGuestMode) => Fire::HostInterrupt,
            (Path::HrtimerOtherPcpu, VcpuState::InGuestMode) => Fire::RescheduleIpi,
            (Path::PostedOtherPcpu, VcpuState::InGuestMode) => Fire::Posted,
        };
        let hv_timer_exit = fire == Fire::HvTimerExit;
        Exits {
            msr_write_slow: u32::from(!arms_fast),
            msr_write_fast: u32::from(arms_fast),
            preemption_timer_slow: u32::from(hv_timer_exit && !fires_fast),
            preemption_timer_fast: u32::from(hv_timer_exit && fires_fast),
            external_interrupt: u32::from(matches!(fire, Fire::HostInterrupt | Fire::RescheduleIpi)),
            fire,
        }
    }

    /// Exits of arming.
    pub const fn arming(&self) -> u32 {
        self.msr_write_slow + self.msr_write_fast
    }

    /// Exits of firing.
    pub const fn firing(&self) -> u32 {
        self.preemption_timer_slow + self.preemption_timer_fast + self.external_interrupt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arming_is_never_free() {
        for revision in Revision::ALL {
            for path in Path::ALL {
                for state in [VcpuState::InGuestMode, VcpuState::OutsideGuestMode, VcpuState::Blocked] {
                    assert_eq!(
                        Exits::of(path, revision, state).arming(),
                        1,
                        "{path:?} {revision:?} {state:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn running_guest_pays_for_delivery_unless_posted_from_elsewhere() {
        let firing = Path::ALL.map(|path| Exits::of(path, Revision::V6_12, VcpuState::InGuestMode).firing());
        assert_eq!(firing, [1, 1, 1, 1, 0]);
    }

    #[test]
    fn blocked_vcpu_pays_nothing_more() {
        for path in Path::ALL {
            let exits = Exits::of(path, Revision::V7_3, VcpuState::Blocked);
            assert_eq!((exits.firing(), exits.fire), (0, Fire::WokenUp), "{path:?}");
        }
    }

    #[test]
    fn hv_timer_has_fast_paths_from_5_10() {
        let slow = Exits::of(Path::HvTimer, Revision::V5_4_193, VcpuState::InGuestMode);
        assert_eq!((slow.msr_write_slow, slow.preemption_timer_slow), (1, 1));
        let fast = Exits::of(Path::HvTimer, Revision::V5_10, VcpuState::InGuestMode);
        assert_eq!((fast.msr_write_fast, fast.preemption_timer_fast), (1, 1));
    }

    #[test]
    fn other_mechanisms_arm_fast_from_7_2() {
        for path in &Path::ALL[1..] {
            assert_eq!(
                Exits::of(*path, Revision::V6_12, VcpuState::InGuestMode).msr_write_slow,
                1,
                "{path:?}"
            );
            assert_eq!(
                Exits::of(*path, Revision::V7_2, VcpuState::InGuestMode).msr_write_fast,
                1,
                "{path:?}"
            );
        }
    }

    #[test]
    fn hrtimer_interrupts_by_its_vector_here_and_by_ipi_from_elsewhere() {
        let fire = |path| Exits::of(path, Revision::V6_12, VcpuState::InGuestMode).fire;
        assert_eq!(fire(Path::HrtimerOwnPcpu), Fire::HostInterrupt);
        assert_eq!(fire(Path::HrtimerOtherPcpu), Fire::RescheduleIpi);
        assert_eq!(fire(Path::PostedOwnPcpu), Fire::HostInterrupt);
        assert_eq!(fire(Path::PostedOtherPcpu), Fire::Posted);
    }
}
