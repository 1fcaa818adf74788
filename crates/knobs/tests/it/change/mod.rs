//! Changes of a machine whose files are below a directory: carried out, taken back, and with every operation
//! failing once.

mod driver;
mod leased;
mod tampered;

use dwell_knobs::change::{
    self, ApplyError, Obstacle, Outcome, Permission, Ready, Side, Standing, standings,
};
use dwell_knobs::journal::{self, Journal, JournalError, State};
use dwell_knobs::place::Place;
use dwell_knobs::plan::Plan;
use dwell_machine::Writable;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_testing::fixture::{self, Fixture, HALTPOLL, guest_plan, host_plan};
use dwell_testing::machine::{Fault, Faulty};
use dwell_testing::say;
use std::time::Duration;

const STATE: &str = "/var/lib/dwell";

fn no_wait(_: Duration) {}

fn ready(machine: &dyn Writable, plan: &Plan, keep: bool) -> Ready {
    let changes = journal::read_all(machine, STATE).unwrap();
    change::check(machine, plan, keep, Permission::default(), &changes).unwrap()
}

/// Checks and applies, as the program does.
fn apply(machine: &dyn Writable, plan: &Plan, keep: bool) -> Result<u32, ApplyError> {
    let mut journal = Journal::open(machine, STATE).map_err(ApplyError::Journal)?;
    // What cannot be checked is not carried out, which the tests count as refused.
    let Ok(ready) = change::check(machine, plan, keep, Permission::default(), journal.changes()) else {
        return Ok(0);
    };
    change::apply(&mut journal, &ready, &mut no_wait).map(|change| change.id)
}

fn revert_all(machine: &dyn Writable, force: bool) -> Vec<change::Reverted> {
    let mut journal = Journal::open(machine, STATE).unwrap();
    let open: Vec<u32> = journal.changes().iter().rev().filter(|c| c.state.is_open()).map(|c| c.id).collect();
    open.into_iter().map(|id| change::revert(&mut journal, id, force, &mut no_wait).unwrap()).collect()
}

fn revert(fixture: &Fixture, id: u32, force: bool) -> change::Reverted {
    let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
    change::revert(&mut journal, id, force, &mut no_wait).unwrap()
}

fn obstacles(fixture: &Fixture, plan: &Plan, permission: Permission) -> String {
    let changes = journal::read_all(&fixture.machine, STATE).unwrap();
    match change::check(&fixture.machine, plan, false, permission, &changes) {
        Ok(_) => String::new(),
        Err(obstacles) => obstacles.iter().map(Obstacle::to_string).collect::<Vec<_>>().join("\n"),
    }
}

#[test]
fn what_is_applied_stands_and_is_taken_back() {
    for keep in [false, true] {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        let id = apply(&fixture.machine, &guest_plan(), keep).unwrap();
        assert_eq!(fixture.value("guest_halt_poll_ns"), "50000");
        assert_eq!(fixture.value("guest_halt_poll_grow_start"), "12500");
        let changes = journal::read_all(&fixture.machine, STATE).unwrap();
        assert_eq!((changes[0].id, changes[0].state), (id, State::Applied));
        let standings = standings(&fixture.machine, &changes[0], &changes);
        assert!(standings.iter().all(|standing| *standing == Ok(Standing::InForce)), "{standings:?}");
        let conf = fixture.text("/etc/tmpfiles.d/dwell-000001.conf");
        assert_eq!(conf.is_some(), keep);
        if let Some(conf) = conf {
            assert!(conf.contains(&format!("w {HALTPOLL}/guest_halt_poll_ns - - - - 50000\n")), "{conf}");
            assert!(conf.contains("guest_halt_poll_allow_shrink - - - - Y\n"), "{conf}");
        }
        let reverted = revert_all(&fixture.machine, false);
        assert!(reverted.iter().all(|reverted| reverted.complete), "{reverted:?}");
        assert_eq!(fixture.snapshot(), before);
        assert_eq!(journal::read_all(&fixture.machine, STATE).unwrap()[0].state, State::Reverted);
        assert!(revert_all(&fixture.machine, false).is_empty());
    }
}

#[test]
fn each_module_is_kept_where_it_is_read_at_boot() {
    let module = Fixture::host("6.18.44");
    module.write("/sys/module/kvm/initstate", "live\n");
    apply(&module.machine, &host_plan("6.18"), true).unwrap();
    let conf = module.text("/etc/modprobe.d/dwell-000001.conf").unwrap();
    assert!(conf.ends_with("options kvm halt_poll_ns=50000 halt_poll_ns_grow=2 halt_poll_ns_grow_start=10000 halt_poll_ns_shrink=2\n"), "{conf}");

    let unit = Fixture::guest();
    std::fs::remove_file(unit.path("/usr/bin/systemd-tmpfiles")).unwrap();
    unit.write("/usr/lib/systemd/systemd", "");
    let before = unit.snapshot();
    apply(&unit.machine, &guest_plan(), true).unwrap();
    let text = unit.text("/etc/systemd/system/dwell-000001.service").unwrap();
    assert!(
        text.contains(&format!("ExecStart=/bin/sh -c 'echo 50000 > {HALTPOLL}/guest_halt_poll_ns'\n")),
        "{text}"
    );
    let link = unit.path("/etc/systemd/system/multi-user.target.wants/dwell-000001.service");
    assert_eq!(std::fs::read_link(&link).unwrap().to_str(), Some("/etc/systemd/system/dwell-000001.service"));
    revert_all(&unit.machine, false);
    assert_eq!(unit.snapshot(), before);

    std::fs::remove_file(unit.path("/usr/lib/systemd/systemd")).unwrap();
    let error = change::check(&unit.machine, &guest_plan(), true, Permission::default(), &[]).unwrap_err();
    assert!(
        error[0].to_string().contains("kernel's command line: haltpoll.guest_halt_poll_ns=50000"),
        "{error:?}"
    );
}

/// At the next start another value would be in force than the one that was kept.
#[test]
fn what_sets_a_kept_value_later_is_named() {
    let fixture = Fixture::host("6.18.44");
    fixture.write("/sys/module/kvm/initstate", "live\n");
    let later = || {
        let notes = ready(&fixture.machine, &host_plan("6.18"), true).notes;
        notes.into_iter().filter(|note| note.contains("set after what is kept here")).collect::<Vec<_>>()
    };
    fixture.write("/etc/modprobe.d/a.conf", "options kvm halt_poll_ns=7\n");
    fixture.write("/etc/tmpfiles.d/a.conf", "w /sys/module/kvm/parameters/halt_poll_ns - - - - 50000\n");
    assert_eq!(later(), [""; 0], "an earlier one, and the same");
    fixture.write("/etc/modprobe.d/z.conf", "options kvm halt_poll_ns=8\n");
    fixture.write("/etc/rc.local", "echo 9 > /sys/module/kvm/parameters/halt_poll_ns\n");
    let by = ["/etc/modprobe.d/z.conf asks for halt_poll_ns=8,", "/etc/rc.local asks for halt_poll_ns=9,"];
    assert!(
        later().iter().zip(by).all(|(note, by)| note.starts_with(by)) && later().len() == 2,
        "{:?}",
        later()
    );
}

#[test]
fn what_cannot_work_here_is_refused_before_anything_is_written() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let refused = |told: &str, permission: Permission| {
        let all = obstacles(&fixture, &guest_plan(), permission);
        assert!(all.contains(told), "{told:?} in:\n{all}");
    };
    let (none, force) = (Permission::default(), Permission { force: true, no_effect: false });
    let no_effect = Permission { force: false, no_effect: true };

    fixture.write("/sys/devices/system/cpu/cpuidle/current_driver", "none\n");
    refused("no cpuidle driver is in use", none);
    assert_eq!(obstacles(&fixture, &guest_plan(), no_effect), "");
    // Nor where the values are there already.
    let set = |max: &str, start: &str| {
        fixture.set("guest_halt_poll_ns", max);
        fixture.set("guest_halt_poll_grow_start", start);
    };
    set("50000\n", "12500\n");
    refused("no cpuidle driver is in use", none);
    set("200000\n", "50000\n");
    fixture.write("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n");
    fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", "menu\n");
    refused("the cpuidle governor in use is menu", none);
    fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", "haltpoll\n");

    fixture.write("/proc/sys/kernel/osrelease", "6.6.1-generic\n");
    refused("the plan was made for Linux 6.18, but this is 6.6.1-generic", no_effect);
    assert_eq!(obstacles(&fixture, &guest_plan(), force), "");
    fixture.write("/proc/sys/kernel/osrelease", "6.18.44\n");

    fixture.set("guest_halt_poll_ns", "100000\n");
    refused("guest_halt_poll_ns is 100000, but the plan expects 200000", none);
    fixture.set("guest_halt_poll_ns", "200000\n");
    // One that the plan does not write, but that its prediction rests on.
    fixture.set("guest_halt_poll_allow_shrink", "N\n");
    refused("guest_halt_poll_allow_shrink is N, but the plan expects 1", none);
    fixture.set("guest_halt_poll_allow_shrink", "Y\n");
    fixture.set("guest_halt_poll_shrink", "much\n");
    refused("has the value much, which is out of its range", force);
    fixture.set("guest_halt_poll_shrink", "2\n");

    fixture.mode("guest_halt_poll_ns", 0o444);
    refused("is read-only on this kernel", force);
    fixture.mode("guest_halt_poll_ns", 0o644);
    let hidden = fixture.path(HALTPOLL);
    std::fs::rename(&hidden, hidden.with_extension("gone")).unwrap();
    refused("guest_halt_poll_ns does not exist", force);
    std::fs::rename(hidden.with_extension("gone"), &hidden).unwrap();
    assert_eq!(fixture.snapshot(), before);
    assert_eq!(obstacles(&fixture, &guest_plan(), none), "");
}

/// What Ansible and the like do: the same plan again and again.
#[test]
fn a_plan_whose_values_are_in_force_already_succeeds_and_writes_nothing() {
    for keep in [false, true] {
        let fixture = Fixture::guest();
        assert_eq!(apply(&fixture.machine, &guest_plan(), keep).unwrap(), 1);
        let after = fixture.snapshot();
        let again = ready(&fixture.machine, &guest_plan(), keep);
        assert!(again.is_nothing() && again.writes.is_empty(), "{:?}", again.entries);
        assert_eq!(fixture.snapshot(), after);
    }
    // Set by hand to what the plan wants: the same.
    let fixture = Fixture::guest();
    fixture.set("guest_halt_poll_ns", "50000\n");
    fixture.set("guest_halt_poll_grow_start", "12500\n");
    assert!(ready(&fixture.machine, &guest_plan(), false).is_nothing());
    // Not kept yet, so keeping it is something.
    assert!(!ready(&fixture.machine, &guest_plan(), true).is_nothing());
}

#[test]
fn a_plan_of_another_machine_is_refused_unless_forced() {
    let fixture = Fixture::guest();
    let mut plan = guest_plan();
    plan.conditions.machine = Some("0123456789abcdef0123456789abcdef".to_owned());
    // A machine without an identity cannot be compared.
    assert_eq!(obstacles(&fixture, &plan, Permission::default()), "");
    fixture.write("/etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4\n");
    let refused = obstacles(&fixture, &plan, Permission::default());
    assert!(refused.contains("a recording of another machine"), "{refused}");
    assert_eq!(obstacles(&fixture, &plan, Permission { force: true, no_effect: false }), "");
    plan.conditions.machine = dwell_machine::identity::machine_id(&fixture.machine);
    assert_eq!(obstacles(&fixture, &plan, Permission::default()), "");
}

#[test]
fn a_plan_that_is_equivalent_to_what_is_there_is_refused_as_one_without_effect() {
    let fixture = Fixture::host("6.18.44");
    fixture.write("/sys/module/kvm/parameters/halt_poll_ns_grow_start", "300000\n");
    let mut present = Setting::defaults(Layer::Host, Version::new(6, 18));
    present.set("halt_poll_ns_grow_start", 300_000).unwrap();
    let plan = fixture::plan(present, &[("halt_poll_ns_grow_start", 200_000)]);
    let refused = obstacles(&fixture, &plan, Permission::default());
    assert!(refused.contains("halt_poll_ns_grow_start would have no effect"), "{refused}");
    assert_eq!(obstacles(&fixture, &plan, Permission { force: false, no_effect: true }), "");
}

#[test]
fn forced_over_another_value_the_value_that_was_there_comes_back() {
    let fixture = Fixture::guest();
    fixture.set("guest_halt_poll_ns", "100000\n");
    let permission = Permission { force: true, no_effect: false };
    let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
    let ready = change::check(&fixture.machine, &guest_plan(), false, permission, journal.changes()).unwrap();
    assert!(ready.notes[0].contains("is 100000, but the plan expects 200000"), "{:?}", ready.notes);
    change::apply(&mut journal, &ready, &mut no_wait).unwrap();
    drop(journal);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "50000");
    revert_all(&fixture.machine, false);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "100000");
}

#[test]
fn what_somebody_else_has_set_since_is_left_alone_and_named() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), true).unwrap();
    fixture.set("guest_halt_poll_ns", "77\n");
    let reverted = revert_all(&fixture.machine, false);
    let left: Vec<&Place> = reverted[0]
        .places
        .iter()
        .filter(|(_, _, outcome)| *outcome == Outcome::LeftAlone { found: Some("77".to_owned()), by: None })
        .map(|(place, _, _)| place)
        .collect();
    assert_eq!(
        left.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [format!("{HALTPOLL}/guest_halt_poll_ns")]
    );
    assert_eq!(fixture.value("guest_halt_poll_ns"), "77");
    // The rest is back, and what kept the values is gone.
    assert_eq!(fixture.value("guest_halt_poll_grow_start"), "50000");
    assert_eq!(fixture.text("/etc/tmpfiles.d/dwell-000001.conf"), None);
    let forced = revert_all(&fixture.machine, true);
    assert!(forced[0].complete);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");
}

#[test]
fn of_two_changes_the_earlier_one_names_the_later() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
    let second = fixture::plan_from(&guest_plan(), &[("guest_halt_poll_ns", 30_000)]);
    apply(&fixture.machine, &second, false).unwrap();
    let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
    let first = change::revert(&mut journal, 1, false, &mut no_wait).unwrap();
    assert!(!first.complete);
    assert!(
        first.places.iter().any(|(_, _, outcome)| matches!(outcome, Outcome::LeftAlone { by: Some(2), .. }))
    );
    drop(journal);
    assert!(revert_all(&fixture.machine, false).iter().all(|reverted| reverted.complete));
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");
    assert_eq!(fixture.value("guest_halt_poll_grow_start"), "50000");
}

/// The later change has set what was there before the earlier one: that is no reason to forget the earlier one.
#[test]
fn a_later_change_back_to_the_original_is_reverted_first_or_restores_that_original() {
    let both = || {
        let fixture = Fixture::guest();
        apply(&fixture.machine, &guest_plan(), false).unwrap();
        let back = fixture::plan_from(
            &guest_plan(),
            &[("guest_halt_poll_ns", 200_000), ("guest_halt_poll_grow_start", 50_000)],
        );
        assert_eq!(apply(&fixture.machine, &back, false).unwrap(), 2);
        fixture
    };
    let fixture = both();
    let first = revert(&fixture, 1, false);
    let left = |(_, _, outcome): &(_, _, Outcome)| matches!(outcome, Outcome::LeftAlone { by: Some(2), .. });
    assert!(!first.complete && first.places.iter().all(left), "{first:?}");
    assert!(revert(&fixture, 2, false).complete);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "50000");
    assert!(revert(&fixture, 1, false).complete);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");

    let fixture = both();
    assert!(revert(&fixture, 1, true).complete && revert(&fixture, 2, false).complete);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");
    assert_eq!(fixture.value("guest_halt_poll_grow_start"), "50000");
}

/// A reboot has undone the later change, whose place is free.
#[test]
fn a_later_change_of_another_boot_keeps_nothing_from_being_reverted() {
    let fixture = Fixture::guest();
    fixture.write("/proc/sys/kernel/random/boot_id", "one\n");
    apply(&fixture.machine, &guest_plan(), true).unwrap();
    let second = fixture::plan_from(&guest_plan(), &[("guest_halt_poll_ns", 30_000)]);
    apply(&fixture.machine, &second, false).unwrap();
    fixture.write("/proc/sys/kernel/random/boot_id", "two\n");
    fixture.set("guest_halt_poll_ns", "50000\n");
    assert!(revert(&fixture, 1, false).complete);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");
}

/// Then the kernel has the values of its command line, whatever these are.
#[test]
fn what_a_reboot_has_undone_is_not_written() {
    for there in [200_000, 50_000, 77_777] {
        let fixture = Fixture::guest();
        apply(&fixture.machine, &guest_plan(), false).unwrap();
        fixture.write("/proc/sys/kernel/random/boot_id", "another\n");
        fixture.set("guest_halt_poll_ns", &format!("{there}\n"));
        let changes = journal::read_all(&fixture.machine, STATE).unwrap();
        let standings = standings(&fixture.machine, &changes[0], &changes);
        assert!(!standings.contains(&Ok(Standing::InForce)), "{standings:?}");
        // A change of this boot has originals of its own.
        let mut present = guest_plan().recommended_setting().unwrap();
        present.set("guest_halt_poll_ns", there).unwrap();
        let second = fixture::plan(present, &[("guest_halt_poll_ns", 30_000)]);
        assert_eq!(apply(&fixture.machine, &second, false).unwrap(), 2);
        let reverted = revert(&fixture, 1, false);
        assert!(reverted.places.iter().all(|(.., of)| *of == Outcome::Gone), "{reverted:?}");
        assert!(revert(&fixture, 2, false).complete);
        let values = ["guest_halt_poll_ns", "guest_halt_poll_grow_start"].map(|name| fixture.value(name));
        assert_eq!(values, [there.to_string(), "12500".to_owned()]);
    }
}

/// What it wrote would let windows shrink for a moment.
#[test]
fn after_a_reboot_nothing_is_written_on_the_way_back_either() {
    let fixture = Fixture::guest();
    fixture.set("guest_halt_poll_allow_shrink", "N\n");
    fixture.set("guest_halt_poll_ns", "20000\n");
    apply(&fixture.machine, &fixture::trap_plan(), false).unwrap();
    fixture.write("/proc/sys/kernel/random/boot_id", "another\n");
    let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
    assert!(change::revert(&mut journal, 1, false, &mut |_| panic!("it waits")).unwrap().complete);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");
}

/// Reverting the later change leaves what the earlier one had set.
#[test]
fn below_a_change_that_was_kept_over_a_reboot_the_originals_come_back() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
    let second = fixture::plan_from(&guest_plan(), &[("guest_halt_poll_ns", 30_000)]);
    apply(&fixture.machine, &second, true).unwrap();
    fixture.write("/proc/sys/kernel/random/boot_id", "another\n");
    assert!(revert_all(&fixture.machine, false).iter().all(|reverted| reverted.complete));
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");
}

/// A rescue system without /sys shows no parameter, and none of them is gone.
#[test]
fn parameters_that_cannot_be_seen_are_not_gone() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
    let (sys, aside) = (fixture.path("/sys/module"), fixture.path("/sys/aside"));
    std::fs::rename(&sys, &aside).unwrap();
    let failed = |(_, _, outcome): &(_, _, Outcome)| matches!(outcome, Outcome::Failed { .. });
    let reverted = revert_all(&fixture.machine, false);
    assert!(!reverted[0].complete && reverted[0].places.iter().all(failed), "{reverted:?}");
    std::fs::rename(&aside, &sys).unwrap();
    assert!(revert_all(&fixture.machine, false)[0].complete);
    assert_eq!(fixture.value("guest_halt_poll_ns"), "200000");
}

/// A value that somebody else has set stays, and the others get their side.
#[test]
fn a_foreign_value_keeps_no_other_value_from_its_side() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
    let change = journal::read_all(&fixture.machine, STATE).unwrap().remove(0);
    change::switch(&fixture.machine, &change, Side::Before, &mut no_wait).unwrap();
    fixture.set("guest_halt_poll_ns", "60000\n");
    let error = change::switch(&fixture.machine, &change, Side::After, &mut no_wait).unwrap_err();
    assert!(error.to_string().contains("guest_halt_poll_ns"), "{error}");
    let values = ["guest_halt_poll_ns", "guest_halt_poll_grow_start"].map(|name| fixture.value(name));
    assert_eq!(values, ["60000", "12500"]);
}

#[test]
fn limits_come_down_on_the_way_there_and_on_the_way_back() {
    let fixture = Fixture::guest();
    fixture.set("guest_halt_poll_allow_shrink", "N\n");
    fixture.set("guest_halt_poll_ns", "20000\n");
    let before = fixture.snapshot();
    let trap = fixture::trap_plan();
    let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
    let ready = ready(&fixture.machine, &trap, false);
    assert!(ready.back.iter().any(|write| write.then_wait_ms == 1_000));
    change::apply(&mut journal, &ready, &mut |_| panic!("nothing has to come down on the way up")).unwrap();
    let mut seen = vec![];
    let mut look = |time: Duration| {
        seen.push((time, fixture.value("guest_halt_poll_ns"), fixture.value("guest_halt_poll_allow_shrink")));
    };
    assert!(change::revert(&mut journal, 1, false, &mut look).unwrap().complete);
    assert_eq!(seen, [(Duration::from_secs(1), "1000".to_owned(), "Y".to_owned())]);
    drop(journal);
    assert_eq!(fixture.snapshot(), before);
}

/// Windows grow under the values from before, and would stay under those from after.
#[test]
fn limits_come_down_at_each_switch_of_a_comparison() {
    let fixture = Fixture::guest();
    fixture.set("guest_halt_poll_allow_shrink", "N\n");
    for (from, to, down) in [(20_000, 200_000, Side::Before), (200_000, 20_000, Side::After)] {
        fixture.set("guest_halt_poll_ns", &format!("{from}\n"));
        let mut present = Setting::defaults(Layer::Guest, Version::new(6, 18));
        present.set("guest_halt_poll_ns", from).unwrap();
        present.set("guest_halt_poll_allow_shrink", 0).unwrap();
        let plan = fixture::plan(present, &[("guest_halt_poll_ns", to)]);
        let id = apply(&fixture.machine, &plan, false).unwrap();
        let changes = journal::read_all(&fixture.machine, STATE).unwrap();
        let applied = changes.iter().find(|change| change.id == id).unwrap();
        for side in [Side::Before, Side::After, Side::After, Side::Before, Side::After] {
            let begins_with = fixture.value("guest_halt_poll_ns");
            let mut seen = vec![];
            let mut look = |_: Duration| {
                seen.push((
                    fixture.value("guest_halt_poll_ns"),
                    fixture.value("guest_halt_poll_allow_shrink"),
                ));
            };
            change::switch(&fixture.machine, applied, side, &mut look).unwrap();
            let value = if side == Side::Before { from } else { to };
            assert_eq!(fixture.value("guest_halt_poll_ns"), value.to_string());
            assert_eq!(fixture.value("guest_halt_poll_allow_shrink"), "N");
            let comes_down = side == down && begins_with != value.to_string();
            let expected = if comes_down { vec![("1000".to_owned(), "Y".to_owned())] } else { vec![] };
            assert_eq!(seen, expected, "{from} to {to}: {side:?}");
        }
        assert!(revert_all(&fixture.machine, false)[0].complete);
    }
}

#[test]
fn a_value_that_the_kernel_makes_another_of_is_an_error_and_nothing_stays_changed() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let place = format!("{HALTPOLL}/guest_halt_poll_grow_start");
    let clamping = Faulty::new(
        &fixture.machine,
        Fault::Clamp { path: place, to: "4096\n".to_owned(), unless: "50000".to_owned() },
    );
    let error = apply(&clamping, &guest_plan(), true).unwrap_err();
    let ApplyError::RolledBack { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("wrote 12500 to"), "{source}");
    assert_eq!(fixture.snapshot(), before);
    assert_eq!(journal::read_all(&fixture.machine, STATE).unwrap()[0].state, State::RolledBack);
}

#[test]
fn no_plan_is_applied_and_no_other_change_verified_while_a_change_is_verified() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let verified = journal::lock_for_verifying(&fixture.machine, STATE).unwrap();
    let refused = apply(&fixture.machine, &guest_plan(), true).unwrap_err();
    assert!(matches!(refused, ApplyError::Journal(JournalError::Verified { .. })), "{refused}");
    assert_eq!(fixture.snapshot(), before);
    assert!(journal::read_all(&fixture.machine, STATE).unwrap().is_empty());
    let second = journal::lock_for_verifying(&fixture.machine, STATE).map(drop);
    assert!(matches!(second, Err(JournalError::Verified { .. })), "{second:?}");
    drop(verified);
    apply(&fixture.machine, &guest_plan(), true).unwrap();
}

#[test]
fn a_torn_or_foreign_journal_is_refused_with_what_to_do() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
    let path = fixture.path("/var/lib/dwell/changes/000001.journal");
    let whole = std::fs::read(&path).unwrap();
    let told = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Journal::open(&fixture.machine, STATE).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(told(&whole), "");
    for length in 0..whole.len() {
        let error = told(&whole[..length]);
        assert!(error.contains("move it elsewhere"), "{length}: {error}");
    }
    let other = String::from_utf8(whole.clone()).unwrap().replacen("journal 1", "journal 9", 1);
    assert!(told(other.as_bytes()).contains("has format 9, but this dwell supports only 1"));
    assert!(told(b"{}").contains("is not a file of dwell's journal"));
}

/// Every operation of apply fails once, and then every operation from there on, as a full disk, a file system mounted
/// read-only and a lost permission do; nothing is ever half-changed, or else the journal leads back.
#[test]
fn whichever_operation_fails_nothing_stays_half_changed() {
    let (mut cases, mut rolled_back, mut stuck) = (0, 0, 0);
    for keep in [false, true] {
        let operations = {
            let fixture = Fixture::guest();
            let counting = Faulty::new(&fixture.machine, Fault::None);
            apply(&counting, &guest_plan(), keep).unwrap();
            counting.operations()
        };
        for error in [libc::ENOSPC, libc::EROFS, libc::EPERM] {
            for number in 0..operations {
                for fault in [Fault::Once { number, errno: error }, Fault::From { number, errno: error }] {
                    let fixture = Fixture::guest();
                    let before = fixture.snapshot();
                    let outcome = apply(&Faulty::new(&fixture.machine, fault), &guest_plan(), keep);
                    cases += 1;
                    match outcome {
                        Ok(_) | Err(ApplyError::Journal(_)) => {}
                        Err(ApplyError::RolledBack { .. }) => {
                            rolled_back += 1;
                            assert_eq!(fixture.snapshot(), before, "{number} {error}");
                        }
                        Err(ApplyError::Stuck { .. }) => {
                            stuck += 1;
                            assert!(journal::read_all(&fixture.machine, STATE).unwrap()[0].state.is_open());
                        }
                    }
                    let reverted = revert_all(&fixture.machine, false);
                    assert!(reverted.iter().all(|reverted| reverted.complete), "{reverted:?}");
                    assert_eq!(fixture.snapshot(), before, "{number} {error}");
                }
            }
        }
    }
    say!(
        "{cases} failures of apply: {rolled_back} rolled back at once, {stuck} by a later revert, the rest before the first write"
    );
    assert!(rolled_back > 100 && stuck > 10);
}

/// The same for revert: whatever fails, the next revert finishes it.
#[test]
fn whichever_operation_of_revert_fails_the_next_revert_finishes_it() {
    let mut cases = 0;
    for number in 0.. {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        apply(&fixture.machine, &guest_plan(), true).unwrap();
        let faulty = Faulty::new(&fixture.machine, Fault::Once { number, errno: libc::EIO });
        let done = Journal::open(&faulty, STATE)
            .ok()
            .and_then(|mut journal| change::revert(&mut journal, 1, false, &mut no_wait).ok());
        let went_well = done.is_some_and(|reverted| reverted.complete);
        revert_all(&fixture.machine, false);
        assert_eq!(fixture.snapshot(), before, "{number}");
        if went_well && faulty.operations() <= number {
            break;
        }
        cases += 1;
    }
    say!("{cases} failures of revert, finished by the next one");
    assert!(cases >= 20, "{cases}");
}
