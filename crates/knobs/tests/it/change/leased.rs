//! Leases: a controller changes values at will, and whatever happens to it the originals come back.

use super::{STATE, no_wait, obstacles, ready};
use dwell_knobs::change::{self, Outcome, Permission, Ready, RevertError, Reverted};
use dwell_knobs::journal::{self, Id, Journal, JournalError, KEPT_LEASES, State};
use dwell_knobs::lease::{self, AdoptError, Holder, Lease, LeaseError, SetError, Subject};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_testing::fixture::{Fixture, guest_plan, plan};
use std::time::Duration;

const GUEST: Subject = Subject::Layer(Layer::Guest);

fn originals() -> Setting {
    Setting::defaults(Layer::Guest, Version::new(6, 18))
}

fn with(window: i64, shrink: i64) -> Setting {
    let mut setting = originals();
    setting.set("guest_halt_poll_ns", window).unwrap();
    setting.set("guest_halt_poll_shrink", shrink).unwrap();
    setting
}

fn settings() -> Vec<Setting> {
    vec![with(0, 0), with(20_000, 0), with(20_000, 1), with(40_000, 2)]
}

fn holder(fixture: &Fixture) -> Holder {
    Holder::begin(&fixture.machine, STATE).unwrap()
}

/// By the one controller there is.
fn take(fixture: &Fixture) -> Result<Lease, LeaseError> {
    Lease::take(&fixture.machine, &holder(fixture), &GUEST, originals(), &settings())
}

fn end(fixture: &Fixture, lease: &Lease) -> Reverted {
    lease::end(&fixture.machine, &[lease]).remove(0).unwrap()
}

/// What the next controller, or `dwell control stop`, does about one that was killed.
fn end_left_open(fixture: &Fixture) -> Option<Reverted> {
    lease::end_left_open(&fixture.machine, &holder(fixture), &GUEST).unwrap()
}

#[test]
fn values_come_and_go_and_the_originals_come_back() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let mut lease = take(&fixture).unwrap();
    assert_eq!(fixture.snapshot(), before, "nothing is written before the first change");
    for setting in settings() {
        lease.set(&fixture.machine, &setting).unwrap();
        assert_eq!(
            fixture.value("guest_halt_poll_ns"),
            setting.get("guest_halt_poll_ns").unwrap().to_string()
        );
        lease.check(&fixture.machine).unwrap();
    }
    // One change, whatever was written.
    let changes = journal::read_all(&fixture.machine, STATE).unwrap();
    assert!(changes.len() == 1 && changes[0].lease && changes[0].state == State::Applied);
    assert!(end(&fixture, &lease).complete);
    assert_eq!(fixture.snapshot(), before);
}

#[test]
fn a_controller_that_was_killed_leaves_what_revert_and_the_next_start_put_back() {
    for by_revert in [false, true] {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        let mut lease = take(&fixture).unwrap();
        lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
        let id = lease.id();
        drop(lease);
        // The originals would be taken from what the dead controller has set.
        assert!(matches!(take(&fixture), Err(LeaseError::Taken { id: taken, .. }) if taken == id));
        if by_revert {
            let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
            let reverted = change::revert(&mut journal, id, false, &mut no_wait).unwrap();
            assert!(reverted.complete);
        } else {
            assert_eq!(end_left_open(&fixture).unwrap().id, id);
        }
        assert_eq!(fixture.snapshot(), before);
        assert!(end_left_open(&fixture).is_none());
        take(&fixture).unwrap();
    }
}

/// As long as its controller lives, it knows which value of the lease is its own.
#[test]
fn a_value_of_the_lease_that_somebody_else_writes_is_left_alone() {
    for readable in [true, false] {
        let fixture = Fixture::guest();
        let mut lease = take(&fixture).unwrap();
        lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
        fixture.set("guest_halt_poll_ns", "40000\n");
        assert!(matches!(lease.set(&fixture.machine, &with(0, 0)), Err(SetError::Foreign(_))));
        if !readable {
            fixture.write("/var/lib/dwell/changes/000001.journal", "torn");
        }
        let ended = end(&fixture, &lease);
        let values = ["guest_halt_poll_ns", "guest_halt_poll_shrink"].map(|name| fixture.value(name));
        assert_eq!(values, ["40000", "2"], "{ended:?}");
    }
}

#[test]
fn what_somebody_else_writes_is_seen_before_a_write_and_left_alone() {
    let fixture = Fixture::guest();
    let mut lease = take(&fixture).unwrap();
    lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
    fixture.set("guest_halt_poll_ns", "77777\n");
    let Err(SetError::Foreign(foreign)) = lease.check(&fixture.machine) else { panic!() };
    assert_eq!((foreign.expected.as_deref(), foreign.found.as_deref()), (Some("20000"), Some("77777")));
    assert!(matches!(lease.set(&fixture.machine, &with(0, 0)), Err(SetError::Foreign(_))));
    assert_eq!(fixture.value("guest_halt_poll_shrink"), "1", "nothing is written beside it");
    let ended = end(&fixture, &lease);
    assert!(ended.complete);
    let left = ended.places.iter().filter(|(_, _, outcome)| matches!(outcome, Outcome::LeftAlone { .. }));
    assert_eq!(left.count(), 1);
    assert_eq!(
        (fixture.value("guest_halt_poll_ns"), fixture.value("guest_halt_poll_shrink")),
        ("77777".into(), "2".into())
    );
    // Its new value is the original of the next lease.
    let mut own = originals();
    own.set("guest_halt_poll_ns", 77_777).unwrap();
    drop(lease);
    Lease::take(&fixture.machine, &holder(&fixture), &GUEST, own, &settings()).unwrap();
}

#[test]
fn what_is_not_leased_cannot_be_restored_or_has_no_effect_is_refused() {
    let fixture = Fixture::guest();
    let mut lease = take(&fixture).unwrap();
    assert!(matches!(
        lease.set(&fixture.machine, &with(30_000, 1)),
        Err(SetError::NotLeased { value: 30_000, .. })
    ));
    assert_eq!(fixture.value("guest_halt_poll_shrink"), "2");
    let refused = |fixture: &Fixture| take(fixture).unwrap_err().to_string();
    let read_only = Fixture::guest();
    read_only.mode("guest_halt_poll_ns", 0o444);
    assert!(refused(&read_only).contains("read-only"), "{}", refused(&read_only));
    let other = Fixture::guest();
    other.write("/sys/devices/system/cpu/cpuidle/current_governor", "menu\n");
    assert!(refused(&other).contains("governor in use is menu"), "{}", refused(&other));
    let old = Fixture::host("5.15.100");
    let host = Setting::defaults(Layer::Host, Version::new(5, 15));
    let mut never = host;
    never.set("halt_poll_ns", 0).unwrap();
    let subject = Subject::Layer(Layer::Host);
    let error = Lease::take(&old.machine, &holder(&old), &subject, host, &[never]).unwrap_err().to_string();
    assert!(error.contains("VMs that are created from now on"), "{error}");
    for fixture in [&read_only, &other, &old] {
        assert!(fixture.text("/var/lib/dwell/changes/000001.journal").is_none(), "nothing is in the journal");
    }
}

const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A controller has left this setting.
fn left(fixture: &Fixture, setting: Setting) -> Id {
    let mut lease = take(fixture).unwrap();
    lease.set(&fixture.machine, &setting).unwrap();
    assert!(lease.leave(&fixture.machine).unwrap());
    lease.id()
}

fn adopt(fixture: &Fixture, present: Setting, settings: &[Setting]) -> Result<Lease, AdoptError> {
    Lease::adopt(&fixture.machine, &holder(fixture), &GUEST, present, settings)
}

#[test]
fn what_was_left_is_adopted_without_a_write_and_its_originals_come_back() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    // The originals themselves may be what is left.
    for setting in [with(20_000, 1), originals()] {
        let id = left(&fixture, setting);
        for again in [true, false] {
            let in_force = fixture.snapshot();
            let mut lease = adopt(&fixture, setting, &settings()).unwrap();
            assert_eq!((fixture.snapshot(), lease.id(), lease.now()), (in_force, id, setting));
            let changes = journal::read_all(&fixture.machine, STATE).unwrap();
            let change = changes.iter().find(|change| change.id == id).unwrap();
            assert!(!change.left && lease::originals(change) == Some(originals()));
            if again {
                lease.set(&fixture.machine, &with(40_000, 2)).unwrap();
                lease.set(&fixture.machine, &setting).unwrap();
                assert!(lease.leave(&fixture.machine).unwrap());
            }
        }
        // Killed, it leaves nothing that would be adopted.
        assert!(matches!(adopt(&fixture, setting, &settings()), Err(AdoptError::Killed)));
        assert!(end_left_open(&fixture).unwrap().complete);
        assert_eq!(fixture.snapshot(), before);
    }
}

#[test]
fn what_is_not_as_it_was_left_is_not_adopted() {
    let setting = with(20_000, 1);
    let refused = |prepare: &dyn Fn(&Fixture), present: Setting, settings: &[Setting]| {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        left(&fixture, setting);
        prepare(&fixture);
        let in_force = fixture.snapshot();
        let journal = fixture.text("/var/lib/dwell/changes/000001.journal");
        let error = adopt(&fixture, present, settings).unwrap_err();
        assert_eq!(fixture.snapshot(), in_force);
        assert_eq!(fixture.text("/var/lib/dwell/changes/000001.journal"), journal);
        fixture.write(BOOT, "8a0d4b7c\n");
        fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", "haltpoll\n");
        if present == setting {
            assert!(end_left_open(&fixture).unwrap().complete);
            assert_eq!(fixture.snapshot(), before);
        }
        error
    };
    let nothing = |_: &Fixture| ();
    let error = refused(&|fixture| fixture.write(BOOT, "another\n"), setting, &settings());
    assert!(matches!(error, AdoptError::Rebooted), "{error}");
    let foreign = |fixture: &Fixture| fixture.set("guest_halt_poll_ns", "77777\n");
    let error = refused(&foreign, with(77_777, 1), &settings());
    assert_eq!(error.to_string(), "guest_halt_poll_ns is 77777 and not 20000");
    // A parameter that the lease does not have.
    let mut beside = setting;
    beside.set("guest_halt_poll_grow", 3).unwrap();
    let error = refused(&|fixture| fixture.set("guest_halt_poll_grow", "3\n"), beside, &settings());
    assert_eq!(error.to_string(), "guest_halt_poll_grow is 3 and not 2");
    let error = refused(&nothing, setting, &[settings(), vec![with(30_000, 1)]].concat());
    assert!(matches!(error, AdoptError::NotLeased { value: 30_000, .. }), "{error}");
    let mut beside = with(20_000, 0);
    beside.set("guest_halt_poll_grow", 4).unwrap();
    let error = refused(&nothing, setting, &[beside]);
    assert!(matches!(error, AdoptError::NotLeased { value: 4, .. }), "{error}");
    let menu = |fixture: &Fixture| {
        fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", "menu\n");
    };
    let error = refused(&menu, setting, &settings());
    assert!(error.to_string().contains("governor in use is menu"), "{error}");
    let mut other = Setting::defaults(Layer::Guest, Version::new(6, 1));
    setting.iter().for_each(|(param, value)| other.set(param.name, value).unwrap());
    let error = refused(&nothing, other, &settings());
    assert!(matches!(error, AdoptError::OtherVersion { .. }), "{error}");
}

#[test]
fn a_lease_that_was_reverted_is_not_left() {
    let fixture = Fixture::guest();
    let lease = take(&fixture).unwrap();
    end(&fixture, &lease);
    assert!(!lease.leave(&fixture.machine).unwrap());
    drop(lease);
    assert!(matches!(adopt(&fixture, originals(), &settings()), Err(AdoptError::Killed)));
}

fn revert(fixture: &Fixture, id: Id) -> Result<Reverted, RevertError> {
    let mut journal = Journal::open_to_revert(&fixture.machine, STATE).unwrap();
    change::revert(&mut journal, id, false, &mut no_wait)
}

#[test]
fn a_lease_is_not_reverted_while_its_controller_runs_and_there_is_one_controller() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let mut lease = take(&fixture).unwrap();
    let refused = revert(&fixture, lease.id()).unwrap_err();
    assert!(matches!(refused, RevertError::Journal(JournalError::Controlled { .. })), "{refused}");
    assert!(refused.to_string().contains("dwell control stop"), "{refused}");
    let second = Holder::begin_within(&fixture.machine, STATE, Duration::ZERO);
    assert!(matches!(second, Err(JournalError::Controlled { .. })));
    lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
    let id = lease.id();
    drop(lease);
    assert!(revert(&fixture, id).unwrap().complete);
    assert_eq!(fixture.snapshot(), before);
}

/// What closes a lease is not a dwell of this version.
#[test]
fn a_lease_that_was_closed_or_changed_in_the_journal_is_not_written_any_more_and_its_originals_come_back() {
    type Do = fn(&Fixture, &std::path::Path);
    let closed: Do = |fixture, path| {
        let mut change = journal::read_all(&fixture.machine, STATE).unwrap().remove(0);
        change.state = State::Reverted;
        std::fs::write(path, journal::encode(&change)).unwrap();
    };
    let removed: Do = |_, path| std::fs::remove_file(path).unwrap();
    let torn: Do = |_, path| std::fs::write(path, "dwell journal 1 bytes=7").unwrap();
    for what in [closed, removed, torn] {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        let mut lease = take(&fixture).unwrap();
        lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
        let in_force = fixture.snapshot();
        what(&fixture, &fixture.path("/var/lib/dwell/changes/000001.journal"));
        let refused = lease.set(&fixture.machine, &with(0, 0)).unwrap_err();
        assert!(matches!(refused, SetError::Closed { id: 1 }), "{refused}");
        assert_eq!(fixture.snapshot(), in_force);
        let ended = end(&fixture, &lease);
        let restored = |(_, _, outcome): &(_, _, Outcome)| *outcome == Outcome::Restored;
        assert!(ended.complete && ended.places.iter().any(restored), "{ended:?}");
        assert_eq!(fixture.snapshot(), before);
    }
}

#[test]
fn a_lease_whose_end_cannot_be_recorded_is_restored_all_the_same() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let mut lease = take(&fixture).unwrap();
    lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
    let locked = Journal::open(&fixture.machine, STATE).unwrap();
    let error = lease::end(&fixture.machine, &[&lease]).remove(0).unwrap_err();
    assert!(matches!(error, RevertError::Unrecorded { id: 1, .. }), "{error}");
    assert_eq!(fixture.snapshot(), before);
    drop((locked, lease));
    assert!(end_left_open(&fixture).unwrap().complete);
    assert!(end_left_open(&fixture).is_none());
}

/// While a change is verified, the values from before are in force now and then.
#[test]
fn nothing_is_taken_or_adopted_while_a_change_is_verified() {
    let fixture = Fixture::guest();
    let setting = with(20_000, 1);
    left(&fixture, setting);
    let (before, recorded) = (fixture.snapshot(), fixture.text("/var/lib/dwell/changes/000001.journal"));
    let verified = journal::lock_for_verifying(&fixture.machine, STATE).unwrap();
    let is_refusal = |error: LeaseError| matches!(error, LeaseError::Journal(JournalError::Verified { .. }));
    assert!(is_refusal(take(&fixture).unwrap_err()));
    let Err(AdoptError::Unfit(error)) = adopt(&fixture, setting, &settings()) else { panic!("adopted") };
    assert!(is_refusal(error));
    assert_eq!(fixture.snapshot(), before);
    assert_eq!(fixture.text("/var/lib/dwell/changes/000001.journal"), recorded);
    drop(verified);
    adopt(&fixture, setting, &settings()).unwrap();
}

/// Killed while a setting is measured, or half-way through its writes.
#[test]
fn what_an_interrupted_change_has_set_is_not_taken_for_the_originals() {
    for state in [State::Applied, State::Unfinished] {
        let fixture = Fixture::guest();
        let (before, plan) = (fixture.snapshot(), plan(originals(), &[("guest_halt_poll_ns", 50_000)]));
        let measured = Ready { verifying: true, ..ready(&fixture.machine, &plan, false) };
        {
            let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
            let applied = change::apply(&mut journal, &measured, &mut no_wait).unwrap();
            let verifying = applied.verifying && state == State::Applied;
            journal.save(&journal::Change { state, verifying, ..applied }).unwrap();
        }
        let mut present = originals();
        present.set("guest_halt_poll_ns", 50_000).unwrap();
        let take = || Lease::take(&fixture.machine, &holder(&fixture), &GUEST, present, &settings());
        let refused = take().unwrap_err();
        assert!(matches!(refused, LeaseError::Interrupted { id: 1 }), "{refused}");
        assert!(refused.to_string().contains("dwell revert 1"), "{refused}");
        // What is in force after a reboot is not of the change.
        fixture.write(BOOT, "another\n");
        end(&fixture, &take().unwrap());
        fixture.write(BOOT, "8a0d4b7c\n");
        assert!(revert(&fixture, 1).unwrap().complete);
        super::leased::take(&fixture).unwrap();
        assert_eq!(fixture.snapshot(), before);
    }
}

#[test]
fn a_lock_is_waited_for() {
    let fixture = Fixture::guest();
    let machine = &fixture.machine;
    let locked = Journal::open(machine, STATE).unwrap();
    std::thread::scope(|scope| {
        let (waits, begun) = std::sync::mpsc::channel();
        let waiting = scope.spawn(move || {
            waits.send(()).unwrap();
            // As long as it takes.
            Journal::open_within(machine, STATE, Duration::from_secs(600)).map(drop)
        });
        begun.recv().unwrap();
        drop(locked);
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_plan_is_not_applied_to_what_is_leased_and_a_later_value_is_left_alone() {
    let fixture = Fixture::guest();
    let mut lease = take(&fixture).unwrap();
    let told = obstacles(&fixture, &guest_plan(), Permission { force: true, no_effect: true });
    assert!(told.contains("change 1 is the lease of a `dwell control`"), "{told}");
    assert!(told.contains("dwell control stop"), "{told}");
    lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
    // A dwell of an earlier version has applied it nevertheless, with a value that the lease has as well.
    let mut later = journal::read_all(&fixture.machine, STATE).unwrap().remove(0);
    (later.id, later.lease) = (2, false);
    later.entries.retain(|entry| entry.knob.as_deref() == Some("guest_halt_poll_ns"));
    later.entries[0].applied = Some("40000".to_owned());
    later.entries[0].between.clear();
    Journal::open(&fixture.machine, STATE).unwrap().save(&later).unwrap();
    fixture.set("guest_halt_poll_ns", "40000\n");
    let ended = end(&fixture, &lease);
    let by = |(_, _, outcome): &(_, _, Outcome)| matches!(outcome, Outcome::LeftAlone { by: Some(2), .. });
    assert!(ended.complete && ended.places.iter().any(by), "{ended:?}");
    assert_eq!(
        [fixture.value("guest_halt_poll_ns"), fixture.value("guest_halt_poll_shrink")],
        ["40000", "2"]
    );
}

#[test]
fn a_file_that_cannot_be_read_keeps_no_other_change_from_being_reverted() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let mut lease = take(&fixture).unwrap();
    lease.set(&fixture.machine, &with(20_000, 1)).unwrap();
    let id = lease.id();
    drop(lease);
    let (torn, stray) = ("/var/lib/dwell/changes/000007.journal", "/var/lib/dwell/changes/notes.txt");
    for file in [torn, stray] {
        fixture.write(file, "dwell journal 1 bytes=7\n");
    }
    let journal = Journal::open_to_revert(&fixture.machine, STATE).unwrap();
    let why: Vec<String> = journal.unreadable().iter().map(ToString::to_string).collect();
    assert!(
        why[0].contains("is damaged") && why[1].contains("notes.txt is not a file of dwell's"),
        "{why:?}"
    );
    drop(journal);
    assert!(revert(&fixture, id).unwrap().complete);
    // No change is begun whose originals could be those of another.
    assert!(matches!(take(&fixture), Err(LeaseError::Journal(JournalError::Torn { .. }))));
    [torn, stray].into_iter().for_each(|file| std::fs::remove_file(fixture.path(file)).unwrap());
    assert_eq!(fixture.snapshot(), before);
}

/// A controller that is started and stopped every day for years.
#[test]
fn of_closed_leases_the_latest_are_kept() {
    let fixture = Fixture::guest();
    for id in 1..=Id::try_from(KEPT_LEASES).unwrap() + 5 {
        let lease = take(&fixture).unwrap();
        assert_eq!(lease.id(), id);
        end(&fixture, &lease);
    }
    let ids: Vec<Id> =
        journal::read_all(&fixture.machine, STATE).unwrap().iter().map(|change| change.id).collect();
    let last = Id::try_from(KEPT_LEASES).unwrap() + 5;
    assert_eq!(ids, (last - Id::try_from(KEPT_LEASES).unwrap()..=last).collect::<Vec<_>>());
}
