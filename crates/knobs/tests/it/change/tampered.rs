//! Journals that dwell has not written so, and changes that would not fit into one.

use super::{STATE, apply, no_wait, ready, revert_all};
use dwell_knobs::change::{self, ApplyError};
use dwell_knobs::journal::{self, Change, Entry, Journal, JournalError, LONGEST, State, encode};
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::place::Place;
use dwell_knobs::plan::{Plan, Write};
use dwell_knobs::verification::{Figure, Verdict, Verification};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_recording::with_causes;
use dwell_testing::fixture::{Fixture, HALTPOLL, guest_plan, host_plan};
use dwell_testing::say;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

const JOURNAL: &str = "/var/lib/dwell/changes/000001.journal";

/// A change of the host's module, kept in modprobe.d.
fn kept() -> Fixture {
    let fixture = Fixture::host("6.18.44");
    fixture.write("/sys/module/kvm/initstate", "live\n");
    apply(&fixture.machine, &host_plan("6.18"), true).unwrap();
    fixture
}

/// The place of what keeps the values.
fn file(change: &Change) -> usize {
    change.entries.iter().position(|entry| entry.knob.is_none()).unwrap()
}

/// What another program does to a change.
type Tamper = Box<dyn FnOnce(&mut Change)>;

/// Opens the journal after `tamper` had it, with a checksum that is right.
fn refusal(fixture: &Fixture, tamper: impl FnOnce(&mut Change)) -> String {
    let path = fixture.path(JOURNAL);
    let whole = fs::read(&path).unwrap();
    let mut change = journal::read_all(&fixture.machine, STATE).unwrap().remove(0);
    tamper(&mut change);
    fs::write(&path, encode(&change)).unwrap();
    let before = fixture.snapshot();
    let told = Journal::open(&fixture.machine, STATE).err().map(|error| error.to_string());
    assert_eq!(fixture.snapshot(), before);
    fs::write(&path, whole).unwrap();
    told.unwrap_or_default()
}

#[test]
fn a_tampered_journal_is_refused_with_the_remedy_and_never_followed() {
    let fixture = kept();
    let thread = || IothreadTarget {
        socket: "/run/vm.qmp".to_owned(),
        id: "iothread1".parse().unwrap(),
        domain: Some("vm".to_owned()),
    };
    // The keeper is of the libvirt domain of the plan's I/O thread, by its number and its `<poll>`.
    let libvirt = |number: u32, poll: &str| -> Tamper {
        let (target, poll) = (thread(), Some(poll.to_owned()));
        Box::new(move |change| {
            let (at, domain) = (file(change), "vm".to_owned());
            change.plan.iothread = Some(target);
            change.entries[at] = Entry {
                place: Place::Libvirt { domain, number },
                applied: poll,
                ..change.entries[at].clone()
            };
            change.entries[at].original = None;
        })
    };
    // A property of an I/O thread that has no range but that it is not negative.
    let property = |place: &str, values: [&str; 2]| -> Tamper {
        let (target, place) = (thread(), thread().place(place));
        let [original, applied] = values.map(|value| Some(value.to_owned()));
        Box::new(move |change| {
            change.plan.iothread = Some(target);
            let knob = Some("aio-max-batch".to_owned());
            change.entries[0] = Entry { knob, place, original, applied, between: vec![] };
        })
    };
    let back = |to: i64| -> Tamper {
        Box::new(move |change| {
            let write = change.plan.writes[0].clone();
            change.back = vec![Write { to, ..write }];
        })
    };
    let cases: [(&str, Tamper); 20] = [
        ("a write to halt_poll_ns has a value or a wait that is out of its range", back(-1)),
        ("a write to halt_poll_ns has a value or a wait that is out of its range", back(i64::MAX)),
        (
            "it has more than 66 entries",
            Box::new(|change| change.entries = vec![change.entries[0].clone(); 67]),
        ),
        ("more than 64 writes", Box::new(|change| change.back = vec![change.plan.writes[0].clone(); 65])),
        ("is not the I/O thread of its plan", libvirt(2, "<poll max='1'/>")),
        ("the <poll> of libvirt:vm:iothread1 is not one", libvirt(1, "<poll max='1'><x/></poll>")),
        ("aio-max-batch has a value that is out of its range", property("aio-max-batch", ["-1", "8"])),
        ("aio-max-batch has a value that is out of its range", property("aio-max-batch", ["0", "-8"])),
        (
            "aio-max-batch is not at qmp:/run/vm.qmp:iothread1:poll-max-ns",
            property("poll-max-ns", ["0", "8"]),
        ),
        (
            "the original text of file:/etc/modprobe.d/dwell-000001.conf",
            Box::new(|change| {
                let at = file(change);
                change.entries[at].original = Some("install kvm /bin/sh -c 'id > /tmp/pwned'\n".to_owned());
            }),
        ),
        (
            "is not a file of change 1",
            Box::new(|change| {
                let at = file(change);
                change.entries[at].place = Place::File("/etc/modprobe.d/dwell-000002.conf".to_owned());
            }),
        ),
        (
            "is not a file of change 1",
            Box::new(|change| {
                let at = file(change);
                change.entries[at].place = Place::File("/etc/modprobe.d/dwell-x.conf".to_owned());
            }),
        ),
        ("no parameter of the host layer", Box::new(|change| change.entries[0].knob = Some("nx".to_owned()))),
        (
            "halt_poll_ns is not at /sys/module/kvm/parameters/tdp_mmu",
            Box::new(|change| {
                change.entries[0].place = Place::Parameter("/sys/module/kvm/parameters/tdp_mmu".to_owned());
            }),
        ),
        ("out of its range", Box::new(|change| change.entries[0].original = Some("Y; id".to_owned()))),
        ("out of its range", Box::new(|change| change.entries[0].original = Some(i64::MAX.to_string()))),
        ("out of its range", Box::new(|change| change.entries[0].original = None)),
        ("is a parameter and has no name", Box::new(|change| change.entries[0].knob = None)),
        (
            "halt_poll_ns is not at",
            Box::new(|change| {
                let mut write = change.plan.writes[0].clone();
                write.place = Place::Parameter("/sys/module/kvm/parameters/tdp_mmu".to_owned());
                change.back = vec![write];
            }),
        ),
        (
            "out of its range",
            Box::new(|change| {
                let mut write = change.plan.writes[0].clone();
                write.then_wait_ms = u64::MAX;
                change.back = vec![write];
            }),
        ),
    ];
    for (why, tamper) in cases {
        let told = refusal(&fixture, tamper);
        assert!(told.contains(why), "{why}: {told}");
        assert!(told.contains("changed by another program") && told.contains("move it elsewhere"), "{told}");
    }
    assert!(revert_all(&fixture.machine, false).iter().all(|reverted| reverted.complete));
}

/// The places of all values that are neither lists nor objects, as JSON pointers.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut below = |key: &str, value: &Value| leaves(value, &format!("{at}/{key}"), found);
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| below(key, value)),
        Value::Array(list) => list.iter().enumerate().for_each(|(n, value)| below(&n.to_string(), value)),
        _ => found.push(at.to_owned()),
    }
}

/// A file of the journal with a first line that is right.
fn file_of(body: &[u8]) -> Vec<u8> {
    let sum = crc32fast::hash(body);
    let first = format!("dwell journal {} bytes={} crc32={sum:08x}\n", journal::FORMAT, body.len());
    [first.as_bytes(), body].concat()
}

/// Every value of a journal, replaced in turn by what an adversary would like there: it is refused with the
/// remedy, or what is written are parameters within their ranges, and nothing else changes.
#[test]
fn whichever_value_is_replaced_only_parameters_and_own_files_are_written() {
    let hostile = [
        json!(null),
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!([]),
        json!(""),
        json!("7\nw /etc/passwd - - - - x"),
        json!("/etc/cron.d/dwell"),
        json!("file:/etc/cron.d/dwell"),
        json!("/sys/module/haltpoll/parameters/../../../../etc/shadow"),
        json!("install kvm /bin/sh -c id"),
        json!("x".repeat(2 * LONGEST)),
    ];
    let applied = || {
        let fixture = Fixture::guest();
        apply(&fixture.machine, &guest_plan(), true).unwrap();
        fixture.write("/etc/shadow", "precious");
        fixture
    };
    let mut fixture = applied();
    let whole = fs::read(fixture.path(JOURNAL)).unwrap();
    let body = whole.iter().position(|byte| *byte == b'\n').map(|end| &whole[end + 1..]).unwrap();
    let change: Value = serde_json::from_slice(body).unwrap();
    let mut places = vec![];
    leaves(&change, "", &mut places);
    let (mut refused, mut followed) = (0, 0);
    for place in &places {
        for value in &hostile {
            let mut tampered = change.clone();
            *tampered.pointer_mut(place).unwrap() = value.clone();
            fs::write(fixture.path(JOURNAL), file_of(&serde_json::to_vec(&tampered).unwrap())).unwrap();
            let before = fixture.snapshot();
            let shown = || format!("{place} = {:.60}", value.to_string());
            let error = match Journal::open(&fixture.machine, STATE) {
                Err(error) => Some(with_causes(&error)),
                Ok(mut journal) => {
                    let ids: Vec<u32> = journal.changes().iter().map(|change| change.id).collect();
                    ids.iter().for_each(|id| drop(change::revert(&mut journal, *id, true, &mut no_wait)));
                    None
                }
            };
            let after = fixture.snapshot();
            if let Some(error) = error {
                assert!(error.contains("move it elsewhere"), "{}: {error}", shown());
                assert_eq!(after, before, "{}", shown());
                refused += 1;
                continue;
            }
            followed += 1;
            let own = fixture.path("/etc/tmpfiles.d/dwell-000001.conf");
            assert!(after.keys().all(|path| before.contains_key(path)), "{}: a new file", shown());
            for (path, text) in &before {
                let now = after.get(path);
                if now == Some(text) || (*path == own && now.is_none()) {
                    continue;
                }
                let name = path.file_name().unwrap().to_str().unwrap();
                let number = now.unwrap().trim().replace('Y', "1").replace('N', "0").parse().unwrap();
                assert!(path.starts_with(fixture.path(HALTPOLL)), "{}: {path:?}", shown());
                let mut setting = Setting::defaults(Layer::Guest, Version::new(6, 18));
                assert!(setting.set(name, number).is_ok(), "{}: {name}={number}", shown());
            }
            fixture = applied();
        }
    }
    say!(
        "{} values of a journal replaced in {} ways: {refused} refused with the remedy, {followed} followed to known \
         parameters and own files only",
        places.len(),
        hostile.len()
    );
    assert!(refused > 0 && followed > 0);
}

/// Every byte of a journal changed in turn.
#[test]
fn whichever_byte_is_changed_the_journal_is_refused() {
    let fixture = kept();
    let path = fixture.path(JOURNAL);
    let whole = fs::read(&path).unwrap();
    let before = fixture.snapshot();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = Journal::open(&fixture.machine, STATE).err().map(|error| with_causes(&error));
        let error = error.unwrap_or_else(|| panic!("byte {at}"));
        assert!(
            error.contains("move it elsewhere") || error.contains("use the dwell that wrote it"),
            "{at}: {error}"
        );
    }
    assert_eq!(fixture.snapshot(), before);
    say!("{} bytes of a journal changed: each refused with the remedy", whole.len());
}

#[test]
fn a_journal_of_another_kind_length_or_owner_is_refused() {
    let fixture = kept();
    let path = fixture.path(JOURNAL);
    let whole = fs::read(&path).unwrap();
    let told =
        || Journal::open(&fixture.machine, STATE).err().map_or(String::new(), |error| with_causes(&error));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(told().contains("lets other users write"), "{}", told());
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    assert!(!told().is_empty());
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(told().contains("a FIFO"), "{}", told());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(
        told().contains("; move it elsewhere, or give another")
            && told().ends_with("it is a directory, not a regular file"),
        "{}",
        told()
    );
    fs::remove_dir(&path).unwrap();
    // A file in the place of the state directory.
    fixture.write("/var/lib/file", "");
    let error = with_causes(&journal::read_all(&fixture.machine, "/var/lib/file").unwrap_err());
    assert!(error.contains("; move it elsewhere, or give another directory with --state-dir"), "{error}");
    fs::write(&path, [whole.clone(), vec![b' '; LONGEST]].concat()).unwrap();
    assert!(
        told().contains("longer than 1048576 bytes") && told().contains("move it elsewhere"),
        "{}",
        told()
    );
    fs::write(&path, &whole).unwrap();
    assert_eq!(told(), "");
}

#[test]
fn a_state_directory_that_another_user_can_write_is_refused() {
    let fixture = Fixture::guest();
    fixture.write("/var/lib/x", "");
    for mode in [0o777, 0o775, 0o1777] {
        let state = fixture.path(STATE);
        fs::create_dir_all(&state).unwrap();
        fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
        let before = fixture.snapshot();
        let error = apply(&fixture.machine, &guest_plan(), false).unwrap_err();
        // A sticky directory above the one with the journal will do; what is in it is dwell's own.
        assert!(with_causes(&error).contains("lets other users write"), "{mode:o}: {}", with_causes(&error));
        assert!(with_causes(&error).contains("chown root"), "{}", with_causes(&error));
        assert_eq!(fixture.snapshot(), before);
        fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(fixture.path("/var/lib"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(
        with_causes(&apply(&fixture.machine, &guest_plan(), false).unwrap_err())
            .contains("lib: its mode 0777")
    );
    fs::set_permissions(fixture.path("/var/lib"), fs::Permissions::from_mode(0o755)).unwrap();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
}

#[test]
fn what_is_kept_is_not_written_through_a_link_or_into_a_directory_of_others() {
    let fixture = Fixture::guest();
    fixture.write("/etc/tmpfiles.d/x", "");
    // A link with the name that a temporary file had until now leads nowhere.
    let victim = fixture.path("/victim");
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, fixture.path("/etc/tmpfiles.d/dwell-000001.conf.dwell-new")).unwrap();
    apply(&fixture.machine, &guest_plan(), true).unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    revert_all(&fixture.machine, false);
    fs::set_permissions(fixture.path("/etc/tmpfiles.d"), fs::Permissions::from_mode(0o777)).unwrap();
    let before = fixture.snapshot();
    let error = apply(&fixture.machine, &guest_plan(), true).unwrap_err();
    assert!(with_causes(&error).contains("lets other users write"), "{}", with_causes(&error));
    assert_eq!(fixture.snapshot(), before);
}

/// As a unit of systemd, which is enabled by a link, values are kept where there is no systemd-tmpfiles.
#[test]
fn what_is_kept_is_not_linked_into_a_directory_of_others() {
    let fixture = Fixture::guest();
    fs::remove_file(fixture.path("/usr/bin/systemd-tmpfiles")).unwrap();
    fixture.write("/usr/lib/systemd/systemd", "");
    let wants = fixture.path("/etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    fs::set_permissions(&wants, fs::Permissions::from_mode(0o777)).unwrap();
    let before = fixture.snapshot();
    let error = with_causes(&apply(&fixture.machine, &guest_plan(), true).unwrap_err());
    assert!(error.contains("multi-user.target.wants") && error.contains("lets other users write"), "{error}");
    assert_eq!(fixture.snapshot(), before);
    fs::set_permissions(&wants, fs::Permissions::from_mode(0o755)).unwrap();
    apply(&fixture.machine, &guest_plan(), true).unwrap();
}

#[test]
fn a_file_that_dwell_has_not_written_is_not_replaced() {
    let fixture = Fixture::guest();
    fixture.write("/etc/tmpfiles.d/dwell-000001.conf", "w /etc/motd - - - - hello\n");
    let changes = journal::read_all(&fixture.machine, STATE).unwrap();
    let obstacles =
        change::check(&fixture.machine, &guest_plan(), true, change::Permission::default(), &changes)
            .unwrap_err();
    assert!(obstacles[0].to_string().contains("which dwell did not write"), "{}", obstacles[0]);
}

/// What an adversary's plan or recording may bring, all at once.
fn bloated(mut plan: Plan) -> Plan {
    plan.advice = "g".repeat(2 << 20);
    plan.conditions.cpu_model = Some("\u{1b}\"x".repeat(400_000));
    plan.recording.idlers = (0..60_000).map(|n| format!("process-name-{n}/{n}/vcpu{n}")).collect();
    plan
}

#[test]
fn what_apply_writes_can_be_read_back_however_long_the_texts_of_its_plan() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    apply(&fixture.machine, &bloated(guest_plan()), true).unwrap();
    let bytes = fs::read(fixture.path(JOURNAL)).unwrap().len();
    assert!(bytes < LONGEST / 4, "{bytes}");
    assert!(revert_all(&fixture.machine, false)[0].complete);
    assert_eq!(fixture.snapshot(), before);
    assert!(
        Plan::from_toml(&bloated(guest_plan()).to_toml().unwrap()).unwrap().recording.more_idlers > 50_000
    );
}

#[test]
fn a_change_that_could_not_be_read_back_is_refused_before_anything_is_written() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let mut ready = ready(&fixture.machine, &guest_plan(), false);
    ready.entries[0].between = vec!["7".repeat(LONGEST)];
    let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
    let error = change::apply(&mut journal, &ready, &mut no_wait).unwrap_err();
    assert!(matches!(&error, ApplyError::Journal(JournalError::TooLong { .. })), "{error:?}");
    drop(journal);
    assert_eq!(fixture.snapshot(), before);
    assert!(journal::read_all(&fixture.machine, STATE).unwrap().is_empty());
}

#[test]
fn of_500_verifications_the_last_few_are_kept() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
    let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
    for at_unix_s in 0..500 {
        let mut change = journal.change(1).unwrap().clone();
        change.verifications.push(Verification {
            at_unix_s,
            verdict: Verdict::NotMeasured,
            why: vec!["w".repeat(10_000); 100],
            promised: Figure::Cost,
            figures: vec![],
            work: vec![],
            rounds: 1,
            elapsed_s: 1.0,
            wakeups_per_s: None,
            planned_wakeups_per_s: None,
            reverted: false,
            notes: vec!["n".repeat(10_000); 100],
        });
        journal.save(&change).unwrap();
    }
    drop(journal);
    let kept = &journal::read_all(&fixture.machine, STATE).unwrap()[0].verifications;
    assert_eq!(kept.iter().map(|v| v.at_unix_s).collect::<Vec<_>>(), (492..500).collect::<Vec<_>>());
    assert!(revert_all(&fixture.machine, false)[0].complete);
}

#[test]
fn the_greatest_number_is_the_last() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), false).unwrap();
    revert_all(&fixture.machine, false);
    let path = fixture.path(JOURNAL);
    let mut change = journal::read_all(&fixture.machine, STATE).unwrap().remove(0);
    change.id = u32::MAX;
    fs::remove_file(&path).unwrap();
    fs::write(path.with_file_name("4294967295.journal"), encode(&change)).unwrap();
    let before = fixture.snapshot();
    for keep in [false, true] {
        let error = with_causes(&apply(&fixture.machine, &guest_plan(), keep).unwrap_err());
        assert!(error.contains("4294967295.journal has the largest number"), "{error}");
        assert_eq!(fixture.snapshot(), before);
    }
}

#[test]
fn what_a_killed_process_left_is_removed_at_the_next_start() {
    let fixture = Fixture::guest();
    apply(&fixture.machine, &guest_plan(), true).unwrap();
    let left = [
        "/var/lib/dwell/changes/000002.journal.0123456789abcdef.dwell-new",
        "/var/lib/dwell/spare.0123456789abcdef.dwell-new",
        "/etc/tmpfiles.d/dwell-000001.conf.0123456789abcdef.dwell-new",
    ];
    left.iter().for_each(|path| fixture.write(path, "half"));
    revert_all(&fixture.machine, false);
    left.iter().for_each(|path| assert_eq!(fixture.text(path), None, "{path}"));
}

/// Text as it may come from a monitor, a command line, a recording or a file's name.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9./_-]{0,12}",
        "\\PC{0,8}",
        any::<String>().prop_map(|text| text.chars().take(30).collect()),
        Just("/run/vm.qmp".to_owned()),
        Just("iothread1".to_owned()),
        Just("poll-max-ns".to_owned()),
        Just("x".repeat(2_000)),
    ]
}

fn value() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        any::<i64>().prop_map(|number| Some(number.to_string())),
        (0..1_000_000i64).prop_map(|number| Some(number.to_string())),
        text().prop_map(Some),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        text().prop_map(Place::Parameter),
        Just(Place::Parameter(format!("{HALTPOLL}/guest_halt_poll_ns"))),
        (text(), text()).prop_map(|(socket, property)| Place::Iothread {
            socket,
            id: "io0".parse().unwrap(),
            property
        }),
        (text(), any::<u32>()).prop_map(|(domain, number)| Place::Libvirt { domain, number }),
        text().prop_map(Place::File),
        text().prop_map(Place::Link),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a change has in it, it is refused before its first write or can be read back and reverted. The change that
    /// was there before can be reverted either way.
    #[test]
    fn what_is_put_into_the_journal_can_be_read_back(
        place in place(),
        knob in proptest::option::of(prop_oneof![Just("guest_halt_poll_ns".to_owned()), text()]),
        values in [value(), value(), value()],
        target in proptest::option::of((text(), proptest::option::of(text()))),
        texts in [text(), text(), text()],
        lease in any::<bool>(),
    ) {
        let fixture = Fixture::guest();
        super::apply(&fixture.machine, &guest_plan(), false).unwrap();
        let before = fixture.snapshot();
        let mut change = journal::read_all(&fixture.machine, STATE).unwrap().remove(0);
        (change.id, change.lease, change.state) = (2, lease, State::Unfinished);
        let [original, applied, between] = values;
        let entry = Entry { knob, place, original, applied, between: between.into_iter().collect() };
        change.entries = vec![entry];
        let [tool, advice, boot_id] = texts;
        (change.tool, change.plan.advice, change.boot_id) = (tool, advice, Some(boot_id));
        change.plan.iothread = target.map(|(socket, domain)| IothreadTarget {
            socket,
            id: "iothread1".parse().unwrap(),
            domain,
        });
        let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
        let saved = journal.save(&change);
        drop(journal);
        match saved {
            Ok(()) => prop_assert_eq!(&journal::read_all(&fixture.machine, STATE).unwrap()[1], &change),
            Err(_) => prop_assert_eq!(fixture.snapshot(), before),
        }
        let mut journal = Journal::open(&fixture.machine, STATE).unwrap();
        prop_assert!(change::revert(&mut journal, 1, false, &mut no_wait).unwrap().complete);
    }
}
