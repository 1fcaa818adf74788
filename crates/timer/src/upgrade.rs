//! What another kernel on the host changes for the timers of a VM.

use super::posting::{in_words, missing, saves_exit};
use super::{Bill, Bills, TimerVm};
use dwell_policy::timer::{AdvanceParameter, Revision, disable_exits};
use serde::Serialize;

/// One property of a VM's timers under two kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub what: &'static str,
    /// Under the first kernel.
    pub before: String,
    /// Under the second.
    pub after: String,
    pub changes: bool,
}

/// Every property under both kernels, in the order of a timer's life.
pub fn compare(vm: &TimerVm, before: Revision, after: Revision) -> Vec<Change> {
    let (before, after) = (properties(vm, before), properties(vm, after));
    let pair = |((what, before), (_, after)): ((&'static str, String), (&'static str, String))| {
        let changes = before != after;
        Change { what, before, after, changes }
    };
    before.into_iter().zip(after).map(pair).collect()
}

fn properties(vm: &TimerVm, revision: Revision) -> Vec<(&'static str, String)> {
    let setup = vm.setup(revision);
    let bills = Bills::of(&setup);
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let saves = |vm: &TimerVm| saves_exit(&vm.setup(revision));
    vec![
        ("posting rule", setup.posting.name().to_owned()),
        ("timers may be posted", yes_no(setup.can_post())),
        ("missing to post", in_words(&missing(vm, |vm| vm.setup(revision).can_post()))),
        ("missing for delivery without an exit", in_words(&missing(vm, saves))),
        ("running guest, busy housekeeping", words(&bills.running)),
        ("running guest, idle housekeeping", words(&bills.running_beside_idle)),
        ("idling guest", words(&bills.idling)),
        ("hrtimer moves with its vCPU", yes_no(setup.posting.hrtimer_follows_vcpu(&setup.config))),
        ("advance by default", default_advance(revision)),
        ("exits disabled after a vCPU exists", disabling_late(revision)),
    ]
}

/// Path and exits of a bill.
pub fn words(bill: &Bill) -> String {
    let speed = if bill.arming_is_fast { "fast" } else { "slow" };
    format!("{}; exits: {} {speed} to arm, {} to fire", bill.path, bill.arming, bill.firing)
}

fn default_advance(revision: Revision) -> String {
    match AdvanceParameter::default_of(revision) {
        AdvanceParameter::LapicTimerAdvanceNs(ns) => format!("lapic_timer_advance_ns={ns}"),
        AdvanceParameter::LapicTimerAdvance(on) => {
            format!("lapic_timer_advance={}", if on { "Y" } else { "N" })
        }
    }
}

fn disabling_late(revision: Revision) -> String {
    if disable_exits::refused_with_vcpus(revision) { "refused (EINVAL)" } else { "accepted" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VM;

    fn changed(vm: &TimerVm, before: Revision, after: Revision) -> Vec<&'static str> {
        compare(vm, before, after).into_iter().filter(|change| change.changes).map(|c| c.what).collect()
    }

    #[test]
    fn posting_is_lost_between_5_10_and_5_18_without_disabled_exits_only() {
        let lost = changed(&VM, Revision::V5_10, Revision::V5_18);
        assert!(lost.contains(&"timers may be posted") && lost.contains(&"running guest, busy housekeeping"));
        let kept = TimerVm { hlt_in_guest: true, ..VM };
        assert_eq!(changed(&kept, Revision::V5_10, Revision::V5_18), ["posting rule"]);
    }

    #[test]
    fn nothing_changes_without_an_upgrade() {
        for revision in Revision::ALL {
            assert!(changed(&VM, revision, revision).is_empty());
        }
    }

    #[test]
    fn arming_by_hrtimer_is_fast_from_7_2_and_disabled_exits_come_before_vcpus() {
        let vm = TimerVm { preemption_timer: false, ..VM };
        let changes = compare(&vm, Revision::V6_12, Revision::V7_2);
        let of = |what| changes.iter().find(|change| change.what == what).unwrap();
        let running = of("running guest, busy housekeeping");
        assert!(running.before.contains("1 slow to arm") && running.after.contains("1 fast to arm"));
        assert_eq!(of("exits disabled after a vCPU exists").after, "refused (EINVAL)");
    }
}
