//! The posting rules side by side: which kernels have them, who may post under them, and what is missing.

use super::{Bills, Pcpu, TimerVm};
use dwell_policy::timer::{PostingPredicate, Revision, Setup, VcpuState};
use serde::Serialize;

dwell_policy::named! {
    /// What a VM or its host may lack for posting.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Precondition {
        PiInjectTimer = "pi_inject_timer",
        /// Interrupt delivery by the CPU.
        Apicv = "APICv/AVIC",
        /// HLT without an exit.
        HltInGuest = "HLT in the guest",
        /// MWAIT without an exit.
        MwaitInGuest = "MWAIT in the guest",
        /// vCPUs on CPUs of `nohz_full=`.
        IsolatedPcpu = "vCPUs on isolated CPUs",
        /// sysctl `kernel.timer_migration`.
        TimerMigration = "kernel.timer_migration",
    }

    /// In a few words.
    pub fn words
}

impl Precondition {
    /// What brings it about.
    pub const fn remedy(self) -> &'static str {
        match self {
            Precondition::PiInjectTimer => {
                "echo 1 > /sys/module/kvm/parameters/pi_inject_timer, or kvm.pi_inject_timer=1 on the kernel command line"
            }
            Precondition::Apicv => {
                "kvm_intel.enable_apicv=1 or kvm_amd.avic=1 on the kernel command line, where the CPU has it"
            }
            Precondition::HltInGuest | Precondition::MwaitInGuest => {
                "-overcommit cpu-pm=on of QEMU (KVM_CAP_X86_DISABLE_EXITS), and a pCPU for each vCPU alone"
            }
            Precondition::IsolatedPcpu => {
                "nohz_full= with the pCPUs of the vCPUs on the kernel command line, and each vCPU pinned to one"
            }
            Precondition::TimerMigration => "sysctl kernel.timer_migration=1",
        }
    }

    /// Whether a VM has it.
    pub fn met(self, vm: &TimerVm) -> bool {
        let mut with = *vm;
        self.meet(&mut with);
        with == *vm
    }

    fn meet(self, vm: &mut TimerVm) {
        match self {
            Precondition::PiInjectTimer => vm.pi_inject_timer = true,
            Precondition::Apicv => vm.apicv = true,
            Precondition::HltInGuest => vm.hlt_in_guest = true,
            Precondition::MwaitInGuest => vm.mwait_in_guest = true,
            Precondition::IsolatedPcpu => vm.pcpu = Pcpu::Isolated,
            Precondition::TimerMigration => vm.timer_migration = true,
        }
    }
}

/// The smallest sets of preconditions with which `reached` holds, by trying all; one empty set if it holds
/// already, none if no set is enough.
pub fn missing(vm: &TimerVm, reached: impl Fn(&TimerVm) -> bool) -> Vec<Vec<Precondition>> {
    let lacked: Vec<Precondition> = Precondition::ALL.into_iter().filter(|one| !one.met(vm)).collect();
    let mut enough: Vec<Vec<Precondition>> = (0..1_u32 << lacked.len())
        .map(|bits| {
            let with_bit = lacked.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
            with_bit.map(|(_, one)| *one).collect::<Vec<_>>()
        })
        .filter(|set| {
            let mut changed = *vm;
            set.iter().for_each(|one| one.meet(&mut changed));
            reached(&changed)
        })
        .collect();
    enough.sort_by_key(|set| (set.len(), set.clone()));
    let mut smallest: Vec<Vec<Precondition>> = vec![];
    for set in enough {
        if !smallest.iter().any(|smaller| smaller.iter().all(|one| set.contains(one))) {
            smallest.push(set);
        }
    }
    smallest
}

/// Sets of preconditions in words: `a + b, or a + c`; `nothing` if all are met.
pub fn in_words(missing: &[Vec<Precondition>]) -> String {
    let set = |set: &Vec<Precondition>| set.iter().map(|one| one.words()).collect::<Vec<_>>().join(" + ");
    match missing {
        [] => "cannot be reached".to_owned(),
        [nothing] if nothing.is_empty() => "nothing".to_owned(),
        sets => sets.iter().map(set).collect::<Vec<_>>().join(", or "),
    }
}

/// One rule for one VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleRow {
    pub rule: &'static str,
    /// Kernels that have it, of those whose rules are known; empty if it was not merged.
    pub kernels: &'static [&'static str],
    /// Whether it is the rule of the kernel that was asked for.
    pub in_force: bool,
    /// Whether timers of the VM may be posted.
    pub may_post: bool,
    /// The smallest sets of what is missing for it.
    pub missing_to_post: Vec<Vec<Precondition>>,
    /// The same for a running guest to get its timers without an exit while a housekeeping CPU is busy.
    pub missing_to_save_exit: Vec<Vec<Precondition>>,
    /// Whether an hrtimer is started anew where the vCPU moves to.
    pub follows_vcpu: bool,
    /// Whether mechanism or exits depend on `pi_inject_timer` for this VM.
    pub depends_on_pi_inject_timer: bool,
    /// The exits of one timer.
    #[serde(flatten)]
    pub bills: Bills,
}

/// Every rule for a VM, with the exits as the kernel of `revision` would have them.
pub fn compare(vm: &TimerVm, revision: Revision) -> Vec<RuleRow> {
    PostingPredicate::ALL.into_iter().map(|rule| row(vm, revision, rule)).collect()
}

fn row(vm: &TimerVm, revision: Revision, rule: PostingPredicate) -> RuleRow {
    let under = |vm: &TimerVm| Setup { posting: rule, ..vm.setup(revision) };
    let setup = under(vm);
    RuleRow {
        rule: rule.name(),
        kernels: kernels(rule),
        in_force: rule == revision.posting(),
        may_post: setup.can_post(),
        missing_to_post: missing(vm, |vm| under(vm).can_post()),
        missing_to_save_exit: missing(vm, |vm| saves_exit(&under(vm))),
        follows_vcpu: rule.hrtimer_follows_vcpu(&setup.config),
        depends_on_pi_inject_timer: {
            let with = |pi_inject_timer| Bills::of(&under(&TimerVm { pi_inject_timer, ..*vm }));
            with(false) != with(true)
        },
        bills: Bills::of(&setup),
    }
}

/// Whether a running guest gets its timers without an exit while a housekeeping CPU is busy.
pub(super) fn saves_exit(setup: &Setup) -> bool {
    setup.exits(VcpuState::InGuestMode, setup.fires_elsewhere(true)).firing() == 0
}

/// The kernels that have a rule, in ranges; `y` is the last of a stable series.
const fn kernels(rule: PostingPredicate) -> &'static [&'static str] {
    match rule {
        PostingPredicate::Merged2019 => &[
            "5.4.0 to 5.4.192",
            "5.5 to 5.9",
            "5.10.0 to 5.10.114",
            "5.11 to 5.14",
            "5.15.0 to 5.15.38",
            "5.16",
            "5.17.0 to 5.17.6",
        ],
        PostingPredicate::Yao2021 | PostingPredicate::Li2021 => &[],
        PostingPredicate::Merged2022 => &[
            "5.4.193 to 5.4.y",
            "5.10.115 to 5.10.y",
            "5.15.39 to 5.15.y",
            "5.17.7 to 5.17.y",
            "5.18 to 7.3",
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VM;
    use dwell_policy::version::Version;

    /// Every series and patch level is asked for.
    #[test]
    fn a_rule_lists_the_kernels_that_have_it() {
        let limit = |text: &str, patch: u16| {
            let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(u16::MAX));
            [numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap_or(patch)]
        };
        let range = |text: &&str| {
            let (first, last) = text.split_once(" to ").unwrap_or((text, text));
            limit(first, 0)..=limit(last, u16::MAX)
        };
        for rule in PostingPredicate::ALL {
            let ranges: Vec<_> = kernels(rule).iter().map(range).collect();
            // 5.19 was followed by 6.0, and 6.19 by 7.0.
            for (major, minor) in (5..=9).flat_map(|major| (0..=19).map(move |minor| (major, minor))) {
                for patch in 0..500 {
                    let version = Version { patch: Some(patch), ..Version::new(major, minor) };
                    let has = Revision::of(version).is_ok_and(|revision| revision.posting() == rule);
                    let listed = ranges.iter().any(|range| range.contains(&[major, minor, patch]));
                    assert_eq!(listed, has, "{version} {rule:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_missing_is_the_least_that_suffices() {
        use Precondition::{Apicv, HltInGuest, IsolatedPcpu, MwaitInGuest, PiInjectTimer};
        let nothing = TimerVm { pi_inject_timer: false, apicv: false, pcpu: Pcpu::Housekeeping, ..VM };
        let rows = compare(&nothing, Revision::V6_12);
        assert_eq!(rows[0].missing_to_post, [vec![PiInjectTimer, Apicv]]);
        assert_eq!(rows[1].missing_to_post, [vec![PiInjectTimer, Apicv, IsolatedPcpu]]);
        assert_eq!(rows[2].missing_to_post, [vec![PiInjectTimer, Apicv, MwaitInGuest]]);
        assert_eq!(
            rows[3].missing_to_post,
            [vec![PiInjectTimer, Apicv, HltInGuest], vec![PiInjectTimer, Apicv, MwaitInGuest]]
        );
        assert_eq!(rows[0].missing_to_save_exit, [vec![PiInjectTimer, Apicv, IsolatedPcpu]]);
        assert_eq!(in_words(&rows[0].missing_to_post), "pi_inject_timer + APICv/AVIC");
    }

    #[test]
    fn plain_vm_on_isolated_cpus_loses_posting_with_the_rule_of_2022() {
        let rows = compare(&VM, Revision::V6_12);
        assert_eq!(rows.iter().map(|row| row.may_post).collect::<Vec<_>>(), [true, true, false, false]);
        assert_eq!(rows.iter().map(|row| row.bills.running.firing).collect::<Vec<_>>(), [0, 0, 1, 1]);
        assert_eq!(
            (rows[0].bills.running.path, rows[3].bills.running.path),
            ("posted, other CPU", "preemption timer")
        );
        // Beside idle housekeeping CPUs the timer stays where it was started.
        assert_eq!(rows[0].bills.running_beside_idle.firing, 1);
        assert_eq!(in_words(&rows[0].missing_to_post), "nothing");
    }
}
