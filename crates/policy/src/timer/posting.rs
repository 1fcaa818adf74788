//! May a timer interrupt be posted into a running guest, and may the hv timer be used?

/// Value of the module parameter `pi_inject_timer` at load: let KVM decide (arch/x86/kvm/x86.c).
pub const PI_INJECT_TIMER_DEFAULT: i32 = -1;

/// What `pi_inject_timer` becomes when KVM initialises: −1 turns into whether the host has timer housekeeping
/// (`nohz_full=` was given), any other value stays and counts as on unless it is 0. Later writes set it outright.
pub const fn pi_inject_timer_at_init(parameter: i32, timer_housekeeping: bool) -> bool {
    match parameter {
        PI_INJECT_TIMER_DEFAULT => timer_housekeeping,
        value => value != 0,
    }
}

/// What the predicates look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VcpuConfig {
    /// The module parameter after initialisation; see [`pi_inject_timer_at_init`].
    pub pi_inject_timer: bool,
    /// The CPU delivers interrupts to this vCPU without an exit (VMX APICv or SVM AVIC, not inhibited).
    pub apicv_active: bool,
    /// MWAIT does not exit; see [`disable_exits`](super::disable_exits).
    pub mwait_in_guest: bool,
    /// HLT does not exit.
    pub hlt_in_guest: bool,
    /// The pCPU that the vCPU runs on is a housekeeping CPU for timers. Only [`PostingPredicate::Yao2021`] uses it.
    pub pcpu_is_timer_housekeeping: bool,
    /// The host has the vendor's timer that exits from the guest, the VMX preemption timer, and uses it. SVM has none.
    pub hv_timer: bool,
}

crate::named! {
    /// Where a vCPU is at one instant.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum VcpuState {
        /// It runs guest code, or halts with HLT or MWAIT inside the guest (`IN_GUEST_MODE`).
        InGuestMode = "in-guest-mode",
        /// Its thread runs in the host: an exit is being handled (`OUTSIDE_GUEST_MODE`).
        OutsideGuestMode = "outside-guest-mode",
        /// Its thread sleeps or polls after an HLT exit.
        Blocked = "blocked",
    }

    /// The name used in files.
    pub fn name
}

crate::named! {
    /// When KVM may post a timer interrupt: the rules that were merged, and the proposals between them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum PostingPredicate {
        /// Since 5.3, 0c5f81dad46c "KVM: LAPIC: Inject timer interrupt via posted interrupt".
        Merged2019 = "merged-2019",
        /// A. Yao, Nov 2021, "KVM: LAPIC: Per vCPU control over `kvm_can_post_timer_interrupt`", not merged: not for
        /// a vCPU on a housekeeping CPU. Objections: a vCPU that is not loaded has no CPU (−1); a forced
        /// `pi_inject_timer=1` stops working; the answer changes when the vCPU moves.
        Yao2021 = "yao-2021",
        /// W. Li, Nov 2021, the counter-proposal, not merged: only with MWAIT in the guest.
        Li2021 = "li-2021",
        /// Since 5.18 and in stable series, 1714a4eb6fb0: only with MWAIT or HLT in the guest.
        Merged2022 = "merged-2022",
    }

    /// Its name: `merged-2019`, `yao-2021`, `li-2021` or `merged-2022`.
    pub fn name
}

impl PostingPredicate {
    /// POST-capable: whether this vCPU's timers may be posted at all; `kvm_can_post_timer_interrupt`.
    pub const fn can_post_timer_interrupt(self, vcpu: &VcpuConfig) -> bool {
        let asked = match self {
            PostingPredicate::Merged2019 => true,
            PostingPredicate::Yao2021 => !vcpu.pcpu_is_timer_housekeeping,
            PostingPredicate::Li2021 => vcpu.mwait_in_guest,
            PostingPredicate::Merged2022 => vcpu.mwait_in_guest || vcpu.hlt_in_guest,
        };
        vcpu.pi_inject_timer && vcpu.apicv_active && asked
    }

    /// HV-usable: whether arming tries the hv timer first; `kvm_can_use_hv_timer`.
    ///
    /// Li's proposal requires MWAIT alone; since it posts only with MWAIT, the common rule gives the same.
    pub const fn can_use_hv_timer(self, vcpu: &VcpuConfig) -> bool {
        vcpu.hv_timer && !(vcpu.mwait_in_guest || self.can_post_timer_interrupt(vcpu))
    }

    /// Whether an hrtimer is cancelled and started anew on the pCPU to which the vCPU moves. The timer of a vCPU
    /// whose timers can be posted is left where it is.
    pub const fn hrtimer_follows_vcpu(self, vcpu: &VcpuConfig) -> bool {
        !self.can_post_timer_interrupt(vcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timer::tests::config;

    fn configs() -> impl Iterator<Item = VcpuConfig> {
        (0..1 << 6).map(config)
    }

    #[test]
    fn parameter_left_alone_follows_nohz_full() {
        assert!(pi_inject_timer_at_init(-1, true));
        assert!(!pi_inject_timer_at_init(-1, false));
        assert!(!pi_inject_timer_at_init(0, true));
        assert!(pi_inject_timer_at_init(1, false));
    }

    #[test]
    fn posting_needs_parameter_and_apicv_under_every_rule() {
        for vcpu in configs().filter(|vcpu| !(vcpu.pi_inject_timer && vcpu.apicv_active)) {
            for rule in PostingPredicate::ALL {
                assert!(!rule.can_post_timer_interrupt(&vcpu), "{rule:?} {vcpu:?}");
            }
        }
    }

    #[test]
    fn hlt_in_guest_posts_under_the_merged_rules_only() {
        let vcpu = VcpuConfig {
            pi_inject_timer: true,
            apicv_active: true,
            hlt_in_guest: true,
            pcpu_is_timer_housekeeping: true,
            ..VcpuConfig::default()
        };
        let posts = PostingPredicate::ALL.map(|rule| rule.can_post_timer_interrupt(&vcpu));
        assert_eq!(posts, [true, false, false, true]);
    }

    #[test]
    fn plain_guest_on_an_isolated_cpu_lost_posting_in_2022() {
        let vcpu = VcpuConfig { pi_inject_timer: true, apicv_active: true, ..VcpuConfig::default() };
        let posts = PostingPredicate::ALL.map(|rule| rule.can_post_timer_interrupt(&vcpu));
        assert_eq!(posts, [true, true, false, false]);
    }

    #[test]
    fn li_2021_uses_the_hv_timer_exactly_without_mwait() {
        for vcpu in configs() {
            let said = vcpu.hv_timer && !vcpu.mwait_in_guest;
            assert_eq!(PostingPredicate::Li2021.can_use_hv_timer(&vcpu), said, "{vcpu:?}");
        }
    }

    #[test]
    fn hv_timer_and_posting_exclude_each_other() {
        for vcpu in configs() {
            for rule in PostingPredicate::ALL {
                assert!(!(rule.can_use_hv_timer(&vcpu) && rule.can_post_timer_interrupt(&vcpu)));
            }
        }
    }
}
