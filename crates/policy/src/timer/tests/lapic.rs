//! The timer of one vCPU: from a write to its registers to the interrupt in the guest.

use crate::Nanos;
use crate::timer::{
    Advance, GuestTsc, Revision, SwArmed, VcpuConfig, VcpuState, Waited, start_sw_tscdeadline,
};

/// The timer mode in the LVT timer register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TimerMode {
    /// Expires once, at a target time.
    Oneshot,
    /// Expires at a target time and every period after it.
    Periodic,
    /// Expires once, at a value of the TSC.
    TscDeadline,
}

/// What stays the same while a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Vcpu {
    /// The rules of the host's kernel.
    pub(crate) revision: Revision,
    /// What the posting predicate looks at.
    pub(crate) config: VcpuConfig,
    /// The guest's clock.
    pub(crate) tsc: GuestTsc,
}

impl Vcpu {
    fn can_use_hv_timer(&self) -> bool {
        self.revision.posting().can_use_hv_timer(&self.config)
    }
}

/// The clocks at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Clocks {
    /// The guest's TSC \[cycles\].
    pub(crate) guest_tsc: u64,
    /// The host's CLOCK_MONOTONIC \[ns\].
    pub(crate) ktime: Nanos,
}

/// What arming came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Armed {
    /// No timer runs: none was armed, or an interrupt is still pending.
    Nothing,
    /// The hv timer runs.
    HvTimer {
        /// Until expiry \[host TSC cycles\].
        delta_tsc: u64,
    },
    /// An hrtimer runs.
    Hrtimer {
        /// When it fires \[ns, CLOCK_MONOTONIC\].
        expires: Nanos,
    },
    /// The time has come already: [`LapicTimer::expire`] is to be called with [`ExpiredBy::Arming`].
    Expired,
}

/// What noticed that the time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ExpiredBy {
    /// Arming, on the vCPU's own thread: the deadline had passed or was nearer than the advance.
    Arming,
    /// An exit by the hv timer.
    HvTimer,
    /// The hrtimer's callback, on whichever pCPU it fired.
    Hrtimer,
}

/// What KVM requests of a vCPU that has a pending timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PendingRequest {
    /// `KVM_REQ_PENDING_TIMER`, up to 6.0.
    PendingTimer,
    /// `KVM_REQ_UNBLOCK`, from 6.1.
    Unblock,
}

/// How an expiry reaches the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Delivery {
    /// One is pending already; the guest sees a single interrupt.
    Coalesced,
    /// Injected on the spot, by the vCPU's own thread.
    Now,
    /// Posted into the running guest, from the pCPU on which the hrtimer fired.
    Posted {
        /// That pCPU spins until the deadline first: [`LapicTimer::wait_lapic_expire`].
        waits: bool,
    },
    /// Counted; delivered by [`LapicTimer::inject_pending`] before the next entry.
    Pending {
        /// What is requested of the vCPU.
        request: PendingRequest,
        /// Whether the vCPU is kicked: woken if it is blocked, made to exit if it runs.
        kick: bool,
    },
}

/// The local APIC timer of a vCPU, with the kernel's field names (`struct kvm_timer`).
///
/// ```
/// use dwell_policy::Nanos;
/// use dwell_policy::timer::*;
///
/// let vcpu = Vcpu { revision: Revision::V6_12, config: VcpuConfig::default(), tsc: GuestTsc::new(1_000_000) };
/// let mut timer = LapicTimer::new(TimerMode::TscDeadline, Advance::ADAPTIVE);
/// let now = Clocks { guest_tsc: 500, ktime: Nanos(1_000_000) };
///
/// // 50 µs ahead, set 1 µs early; no hv timer here, so an hrtimer carries it.
/// let armed = timer.write_tscdeadline(&vcpu, true, 50_500, now);
/// assert_eq!(armed, Armed::Hrtimer { expires: Nanos(1_049_000) });
///
/// let delivery = timer.expire(&vcpu, ExpiredBy::Hrtimer, VcpuState::InGuestMode, true);
/// assert_eq!(delivery, Delivery::Pending { request: PendingRequest::Unblock, kick: true });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LapicTimer {
    /// The mode in the LVT.
    pub(crate) mode: TimerMode,
    /// Guest TSC at which the interrupt is due \[cycles\]; 0: none. The hv timer needs it in every mode.
    pub(crate) tscdeadline: u64,
    /// The deadline of the expiry that is under way, for the wait \[cycles\]; 0: none.
    pub(crate) expired_tscdeadline: u64,
    /// When a one-shot or periodic timer expires \[ns, CLOCK_MONOTONIC\].
    pub(crate) target_expiration: Nanos,
    /// The period, after the least that KVM grants.
    pub(crate) period: Nanos,
    /// Expirations counted and not delivered; while not 0 the vCPU does not block.
    pub(crate) pending: u32,
    /// How early the timer is set.
    pub(crate) advance: Advance,
    /// The hv timer carries the present deadline.
    pub(crate) hv_timer_in_use: bool,
}

impl LapicTimer {
    /// A timer that is not armed.
    pub(crate) const fn new(mode: TimerMode, advance: Advance) -> LapicTimer {
        LapicTimer {
            mode,
            tscdeadline: 0,
            expired_tscdeadline: 0,
            target_expiration: Nanos::ZERO,
            period: Nanos::ZERO,
            pending: 0,
            advance,
            hv_timer_in_use: false,
        }
    }

    /// The guest writes `IA32_TSC_DEADLINE`. Ignored without an APIC (`apic_present`) and in the other modes.
    pub(crate) fn write_tscdeadline(
        &mut self,
        vcpu: &Vcpu,
        apic_present: bool,
        tscdeadline: u64,
        now: Clocks,
    ) -> Armed {
        if !apic_present || self.mode != TimerMode::TscDeadline {
            return Armed::Nothing;
        }
        self.tscdeadline = tscdeadline;
        self.pending = 0;
        self.restart(vcpu, now)
    }

    /// Sets a host timer by the registers: the hv timer, or if that refuses an hrtimer. Also what a vCPU
    /// does after it blocked, and what it does with an hv timer after it moved to another pCPU.
    pub(crate) fn restart(&mut self, vcpu: &Vcpu, now: Clocks) -> Armed {
        if self.mode != TimerMode::Periodic && self.pending > 0 {
            return Armed::Nothing;
        }
        match self.start_hv_timer(vcpu, now.guest_tsc) {
            Some(armed) => armed,
            None => self.switch_to_sw_timer(vcpu, now),
        }
    }

    fn start_hv_timer(&mut self, vcpu: &Vcpu, guest_tsc: u64) -> Option<Armed> {
        if !vcpu.can_use_hv_timer() || self.tscdeadline == 0 {
            return None;
        }
        let hv_timer = vcpu.config.hv_timer?;
        let armed = hv_timer.set(&vcpu.tsc, guest_tsc, self.tscdeadline, self.advance.ns()).ok()?;
        self.hv_timer_in_use = true;
        Some(if armed.expired() && self.mode != TimerMode::Periodic {
            Armed::Expired
        } else {
            Armed::HvTimer { delta_tsc: armed.delta_tsc }
        })
    }

    /// Hands the deadline to an hrtimer: where the hv timer refuses it, and before the vCPU blocks.
    pub(crate) fn switch_to_sw_timer(&mut self, vcpu: &Vcpu, now: Clocks) -> Armed {
        self.hv_timer_in_use = false;
        match self.mode {
            TimerMode::TscDeadline => {
                let advance_ns = self.advance.ns();
                match start_sw_tscdeadline(&vcpu.tsc, now.guest_tsc, self.tscdeadline, advance_ns, now.ktime)
                {
                    SwArmed::Nothing => Armed::Nothing,
                    SwArmed::Expired => Armed::Expired,
                    SwArmed::Hrtimer { expires } => Armed::Hrtimer { expires },
                }
            }
            TimerMode::Oneshot | TimerMode::Periodic => Armed::Hrtimer { expires: self.target_expiration },
        }
    }

    /// The time has come. `state` is where the vCPU is at this instant; `wants_to_run` whether its VMM lets it enter
    /// the guest (no immediate exit requested), which counts from 6.1.y.
    pub(crate) fn expire(
        &mut self,
        vcpu: &Vcpu,
        by: ExpiredBy,
        state: VcpuState,
        wants_to_run: bool,
    ) -> Delivery {
        let hv_timer_in_use = core::mem::take(&mut self.hv_timer_in_use);
        if self.pending > 0 {
            return Delivery::Coalesced;
        }
        if self.mode == TimerMode::TscDeadline || hv_timer_in_use {
            self.expired_tscdeadline = self.tscdeadline;
        }
        let revision = vcpu.revision;
        let from_timer_fn = by == ExpiredBy::Hrtimer;
        let at_once = !from_timer_fn && vcpu.config.apicv_active && revision >= Revision::V5_10;
        if at_once && (wants_to_run || revision < Revision::V6_1_192) {
            self.delivered();
            return Delivery::Now;
        }
        let can_post = revision.posting().can_post_timer_interrupt(&vcpu.config);
        if can_post && state == VcpuState::InGuestMode {
            self.delivered();
            return Delivery::Posted { waits: self.expired_tscdeadline != 0 && self.advance.ns() != 0 };
        }
        self.pending += 1;
        let request =
            if revision < Revision::V6_1 { PendingRequest::PendingTimer } else { PendingRequest::Unblock };
        Delivery::Pending { request, kick: from_timer_fn || revision < Revision::V5_10 }
    }

    /// Delivers what is pending, in the run loop before an entry; whether there was any.
    pub(crate) fn inject_pending(&mut self) -> bool {
        let pending = core::mem::take(&mut self.pending) > 0;
        if pending {
            self.delivered();
        }
        pending
    }

    fn delivered(&mut self) {
        if self.mode != TimerMode::Periodic {
            self.tscdeadline = 0;
        }
        if self.mode == TimerMode::Oneshot {
            self.target_expiration = Nanos::ZERO;
        }
    }

    /// A periodic timer goes on: moves the target and returns it \[ns, CLOCK_MONOTONIC\].
    pub(crate) fn next_period(&mut self, now: Nanos) -> Nanos {
        self.target_expiration = advance_periodic_target(self.target_expiration, self.period, now);
        self.target_expiration
    }

    /// Waits and tunes, before an entry or while posting; see [`Advance::wait_lapic_expire`]. Before an entry
    /// `vector_found` is whether the timer's vector is in the ISR (with APICv: the IRR); while posting it holds.
    pub(crate) fn wait_lapic_expire(
        &mut self,
        vcpu: &Vcpu,
        vector_found: bool,
        guest_tsc: u64,
        reread: impl FnOnce() -> u64,
    ) -> Option<Waited> {
        if !vector_found {
            return None;
        }
        let waited = self.advance.wait_lapic_expire(
            vcpu.revision,
            &vcpu.tsc,
            self.expired_tscdeadline,
            guest_tsc,
            reread,
        )?;
        self.expired_tscdeadline = 0;
        Some(waited)
    }
}

/// When a periodic timer expires after its expiry at `target`: one period later, or now if that has passed. Missed
/// periods are not caught up.
fn advance_periodic_target(target: Nanos, period: Nanos, now: Nanos) -> Nanos {
    Nanos(target.get().wrapping_add(period.get())).max(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::HvTimer;
    use proptest::prelude::*;

    const NOW: Clocks = Clocks { guest_tsc: 1_000, ktime: Nanos(1_000_000) };
    const HV: HvTimer = HvTimer { rate_shift: 5, max_value: u32::MAX as u64 };

    fn vcpu(revision: Revision, config: VcpuConfig) -> Vcpu {
        Vcpu { revision, config, tsc: GuestTsc::new(1_000_000) }
    }

    fn with_hv(revision: Revision) -> Vcpu {
        vcpu(revision, VcpuConfig { hv_timer: Some(HV), apicv_active: true, ..VcpuConfig::default() })
    }

    fn posting(revision: Revision) -> Vcpu {
        let config = VcpuConfig { pi_inject_timer: true, hlt_in_guest: true, ..with_hv(revision).config };
        vcpu(revision, config)
    }

    fn armed(vcpu: &Vcpu, deadline: u64) -> (LapicTimer, Armed) {
        let mut timer = LapicTimer::new(TimerMode::TscDeadline, Advance::ADAPTIVE);
        let armed = timer.write_tscdeadline(vcpu, true, deadline, NOW);
        (timer, armed)
    }

    #[test]
    fn missed_periods_are_not_caught_up() {
        assert_eq!(advance_periodic_target(Nanos(100), Nanos(10), Nanos(105)), Nanos(110));
        assert_eq!(advance_periodic_target(Nanos(100), Nanos(10), Nanos(155)), Nanos(155));
    }

    #[test]
    fn deadline_goes_to_the_hv_timer_if_it_may() {
        assert_eq!(armed(&with_hv(Revision::V6_12), 51_000).1, Armed::HvTimer { delta_tsc: 49_000 });
        assert_eq!(armed(&posting(Revision::V6_12), 51_000).1, Armed::Hrtimer { expires: Nanos(1_049_000) });
    }

    #[test]
    fn deadline_too_far_for_the_hv_timer_goes_to_an_hrtimer() {
        let (timer, armed) = armed(&with_hv(Revision::V6_12), 1 << 38);
        assert_eq!(armed, Armed::Hrtimer { expires: Nanos(1_000_000 + (1 << 38) - 1_000 - 1_000) });
        assert!(!timer.hv_timer_in_use);
    }

    #[test]
    fn deadline_zero_disarms() {
        let vcpu = with_hv(Revision::V6_12);
        let (mut timer, _) = armed(&vcpu, 51_000);
        assert_eq!(timer.write_tscdeadline(&vcpu, true, 0, NOW), Armed::Nothing);
        assert!(!timer.hv_timer_in_use);
    }

    #[test]
    fn write_is_ignored_without_an_apic_or_in_another_mode() {
        let vcpu = with_hv(Revision::V6_12);
        let mut timer = LapicTimer::new(TimerMode::Oneshot, Advance::ADAPTIVE);
        assert_eq!(timer.write_tscdeadline(&vcpu, true, 51_000, NOW), Armed::Nothing);
        timer.mode = TimerMode::TscDeadline;
        assert_eq!(timer.write_tscdeadline(&vcpu, false, 51_000, NOW), Armed::Nothing);
        assert_eq!(timer.tscdeadline, 0);
    }

    #[test]
    fn restart_with_a_pending_interrupt_does_nothing_unless_periodic() {
        let vcpu = with_hv(Revision::V6_12);
        let (mut timer, _) = armed(&vcpu, 51_000);
        timer.pending = 1;
        assert_eq!(timer.restart(&vcpu, NOW), Armed::Nothing);
        timer.mode = TimerMode::Periodic;
        assert_eq!(timer.restart(&vcpu, NOW), Armed::HvTimer { delta_tsc: 49_000 });
    }

    #[test]
    fn periodic_hv_timer_that_expired_as_it_was_set_is_left_to_the_next_entry() {
        let vcpu = with_hv(Revision::V6_12);
        let mut timer = LapicTimer::new(TimerMode::Periodic, Advance::ADAPTIVE);
        timer.tscdeadline = 1;
        assert_eq!(timer.restart(&vcpu, NOW), Armed::HvTimer { delta_tsc: 0 });
        timer.mode = TimerMode::TscDeadline;
        assert_eq!(timer.restart(&vcpu, NOW), Armed::Expired);
    }

    #[test]
    fn hv_expiry_is_delivered_at_once_from_5_10() {
        let expire = |revision| {
            let vcpu = with_hv(revision);
            let (mut timer, _) = armed(&vcpu, 51_000);
            let delivery = timer.expire(&vcpu, ExpiredBy::HvTimer, VcpuState::OutsideGuestMode, true);
            (delivery, timer.expired_tscdeadline, timer.tscdeadline)
        };
        let pending = Delivery::Pending { request: PendingRequest::PendingTimer, kick: true };
        assert_eq!(expire(Revision::V5_4), (pending, 51_000, 51_000));
        assert_eq!(expire(Revision::V5_10), (Delivery::Now, 51_000, 0));
    }

    #[test]
    fn vcpu_that_does_not_want_to_run_gets_it_pending_from_6_1_y() {
        let expire = |revision| {
            let vcpu = with_hv(revision);
            armed(&vcpu, 1).0.expire(&vcpu, ExpiredBy::Arming, VcpuState::OutsideGuestMode, false)
        };
        let pending = Delivery::Pending { request: PendingRequest::Unblock, kick: false };
        assert_eq!(expire(Revision::V6_1), Delivery::Now);
        assert_eq!(expire(Revision::V6_1_192), pending);
        assert_eq!(expire(Revision::V7_3), pending);
    }

    #[test]
    fn hrtimer_posts_into_a_running_guest_and_kicks_any_other() {
        let vcpu = posting(Revision::V6_12);
        let (timer, _) = armed(&vcpu, 51_000);
        let expire = |state| timer.clone().expire(&vcpu, ExpiredBy::Hrtimer, state, true);
        assert_eq!(expire(VcpuState::InGuestMode), Delivery::Posted { waits: true });
        let pending = Delivery::Pending { request: PendingRequest::Unblock, kick: true };
        assert_eq!(expire(VcpuState::OutsideGuestMode), pending);
        assert_eq!(expire(VcpuState::Blocked), pending);
    }

    #[test]
    fn posting_without_an_advance_does_not_wait() {
        let vcpu = posting(Revision::V6_12);
        let mut timer = LapicTimer::new(TimerMode::TscDeadline, Advance::OFF);
        timer.write_tscdeadline(&vcpu, true, 51_000, NOW);
        let delivery = timer.expire(&vcpu, ExpiredBy::Hrtimer, VcpuState::InGuestMode, true);
        assert_eq!(delivery, Delivery::Posted { waits: false });
    }

    #[test]
    fn second_expiry_is_coalesced_until_the_first_is_injected() {
        let vcpu = vcpu(Revision::V6_12, VcpuConfig::default());
        let (mut timer, _) = armed(&vcpu, 51_000);
        let mut expire = || timer.expire(&vcpu, ExpiredBy::Hrtimer, VcpuState::InGuestMode, true);
        assert!(matches!(expire(), Delivery::Pending { .. }));
        assert_eq!(expire(), Delivery::Coalesced);
        assert!(timer.inject_pending());
        assert_eq!((timer.pending, timer.tscdeadline), (0, 0));
        assert!(!timer.inject_pending());
    }

    #[test]
    fn wait_needs_the_vector_and_happens_once() {
        let vcpu = with_hv(Revision::V6_12);
        let (mut timer, _) = armed(&vcpu, 51_000);
        timer.expire(&vcpu, ExpiredBy::HvTimer, VcpuState::OutsideGuestMode, true);
        assert_eq!(timer.wait_lapic_expire(&vcpu, false, 50_500, || 50_500), None);
        assert_eq!(
            timer.wait_lapic_expire(&vcpu, true, 50_500, || 50_500).map(|w| w.delta_cycles),
            Some(-500)
        );
        assert_eq!(timer.wait_lapic_expire(&vcpu, true, 50_500, || 50_500), None);
    }

    #[test]
    fn one_shot_delivery_clears_deadline_and_target_and_periodic_keeps_both() {
        for (mode, left) in [(TimerMode::Oneshot, (0, Nanos(0))), (TimerMode::Periodic, (7, Nanos(9)))] {
            let mut timer = LapicTimer::new(mode, Advance::ADAPTIVE);
            (timer.tscdeadline, timer.target_expiration, timer.pending) = (7, Nanos(9), 1);
            timer.inject_pending();
            assert_eq!((timer.tscdeadline, timer.target_expiration), left, "{mode:?}");
        }
    }

    #[test]
    fn periodic_timer_keeps_its_grid_until_it_misses_a_period() {
        let mut timer = LapicTimer::new(TimerMode::Periodic, Advance::ADAPTIVE);
        (timer.target_expiration, timer.period) = (Nanos(1_000), Nanos(200));
        assert_eq!(timer.next_period(Nanos(1_050)), Nanos(1_200));
        assert_eq!(timer.next_period(Nanos(1_900)), Nanos(1_900));
        let vcpu = vcpu(Revision::V6_12, VcpuConfig::default());
        assert_eq!(timer.restart(&vcpu, NOW), Armed::Hrtimer { expires: Nanos(1_900) });
    }

    proptest! {
        #[test]
        fn exactly_one_mechanism_carries_a_deadline(
            deadline in 1u64..,
            guest_tsc: u64,
            can_post: bool,
            mwait_in_guest: bool,
        ) {
            let mut vcpu = if can_post { posting(Revision::V7_3) } else { with_hv(Revision::V7_3) };
            vcpu.config.mwait_in_guest = mwait_in_guest;
            let mut timer = LapicTimer::new(TimerMode::TscDeadline, Advance::ADAPTIVE);
            let armed = timer.write_tscdeadline(&vcpu, true, deadline, Clocks { guest_tsc, ktime: Nanos(0) });
            match armed {
                Armed::Nothing => prop_assert!(false, "a deadline was given"),
                Armed::HvTimer { .. } => prop_assert!(timer.hv_timer_in_use),
                Armed::Hrtimer { .. } => prop_assert!(!timer.hv_timer_in_use),
                Armed::Expired => {}
            }
        }
    }
}
