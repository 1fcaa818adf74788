//! Changes of the parameters of the idle driver dwell_idle, one of which is a name and two of which read as what was
//! measured where 0 was written.

use super::{STATE, apply, obstacles, ready, revert_all};
use dwell_knobs::change::{Permission, Standing, standings};
use dwell_knobs::journal;
use dwell_knobs::plan::Plan;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_testing::fixture::{DWELL_IDLE, Fixture, guest_plan, plan};

/// What the driver has measured, and else its defaults.
fn present() -> Setting {
    let mut present = Setting::defaults(Layer::Driver, Version::new(6, 18));
    present.set("halt_cost_ns", 7_312).unwrap();
    present.set("wake_latency_ns", 7_312).unwrap();
    present
}

/// A guest with the driver.
fn guest() -> Fixture {
    Fixture::under_dwell_idle(&[("halt_cost_ns", "7312"), ("wake_latency_ns", "7312")])
}

fn value(fixture: &Fixture, name: &str) -> String {
    fixture.text(&format!("{DWELL_IDLE}/{name}")).unwrap().trim().to_owned()
}

fn to_savings() -> Plan {
    plan(present(), &[("halt_cost_ns", 20_000), ("max_window_ns", 40_000), ("policy", 1)])
}

#[test]
fn the_drivers_policy_is_written_by_name_kept_and_reverted() {
    for keep in [false, true] {
        let fixture = guest();
        let before = fixture.snapshot();
        let as_text = to_savings().to_toml().unwrap();
        let plan = Plan::from_toml(&as_text).unwrap();
        assert_eq!(plan.writes.len(), 3, "{as_text}");
        apply(&fixture.machine, &plan, keep).unwrap();
        let now =
            ["halt_cost_ns", "wake_latency_ns", "max_window_ns", "policy"].map(|name| value(&fixture, name));
        assert_eq!(now, ["20000", "7312", "40000", "savings"]);
        // The kernel ends the text with a line break.
        fixture.write(&format!("{DWELL_IDLE}/policy"), "savings\n");
        let changes = journal::read_all(&fixture.machine, STATE).unwrap();
        let standings = standings(&fixture.machine, &changes[0], &changes);
        assert!(standings.iter().all(|standing| *standing == Ok(Standing::InForce)), "{standings:?}");
        let conf = fixture.text("/etc/modprobe.d/dwell-000001.conf");
        assert_eq!(conf.is_some(), keep);
        if let Some(conf) = conf {
            let line = "options dwell_idle halt_cost_ns=20000 wake_latency_ns=7312 max_window_ns=40000 policy=savings\n";
            assert!(conf.ends_with(line), "{conf}");
        }
        let reverted = revert_all(&fixture.machine, false);
        assert!(reverted.iter().all(|reverted| reverted.complete), "{reverted:?}");
        assert_eq!(fixture.snapshot(), before);
    }
}

#[test]
fn a_policy_that_was_changed_outside_dwell_is_left_alone() {
    let fixture = guest();
    apply(&fixture.machine, &to_savings(), false).unwrap();
    fixture.write(&format!("{DWELL_IDLE}/policy"), "never\n");
    let reverted = revert_all(&fixture.machine, false);
    assert!(!reverted[0].complete, "{reverted:?}");
    assert_eq!((value(&fixture, "policy"), value(&fixture, "halt_cost_ns")), ("never".into(), "7312".into()));
    revert_all(&fixture.machine, true);
    assert_eq!(value(&fixture, "policy"), "leader");
}

#[test]
fn what_the_driver_would_measure_is_refused() {
    let fixture = guest();
    let measure = plan(present(), &[("halt_cost_ns", 0)]);
    let every = Permission { force: true, no_effect: true };
    let why = obstacles(&fixture, &measure, every);
    assert!(why.contains("halt_cost_ns = 0 has the kernel measure it"), "{why}");
    assert!(why.contains(&format!("echo 0 > {DWELL_IDLE}/halt_cost_ns")), "{why}");
    let never = plan(present(), &[("max_window_ns", 0)]);
    assert_eq!(ready(&fixture.machine, &never, false).writes.len(), 1);
}

#[test]
fn a_plan_for_a_driver_that_is_not_loaded_and_one_for_haltpoll_beside_it_are_refused() {
    let without = Fixture::guest();
    let why = obstacles(&without, &to_savings(), Permission::default());
    assert!(why.contains("/sys/module/dwell_idle/parameters/policy does not exist"), "{why}");
    let beside = guest();
    let why = obstacles(&beside, &guest_plan(), Permission::default());
    assert!(why.contains("would have no effect: the idle driver dwell_idle decides"), "{why}");
}

#[test]
fn a_name_that_the_driver_does_not_have_is_no_value() {
    let fixture = guest();
    fixture.write(&format!("{DWELL_IDLE}/policy"), "other\n");
    let why = obstacles(&fixture, &to_savings(), Permission::default());
    assert!(why.contains("policy has the value other, which is out of its range"), "{why}");
}
