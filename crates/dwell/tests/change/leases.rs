//! What other commands do while a controller runs: none of them ends its lease, or writes what it writes, and
//! `dwell control stop` has restored the originals when it has ended, whoever had locked the journal.

use crate::controlled::{leased, running, signal, status, values};
use crate::{Scene, locked_by_another, start, stderr};
use dwell_knobs::journal::{self, STATE_DIRECTORY, State};
use nix::sys::signal::Signal;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_change_whose_values_a_controller_holds_is_neither_verified_nor_reverted() {
    let (scene, words) = scene();
    scene.stdout(&["apply", "PLAN"]);
    let applied = values(&scene);
    let mut child = running(&scene, &words, |_| ());
    for (words, why) in [
        (
            &["verify", "1"][..],
            "its values are those of a `dwell control` (change 2); `dwell control stop` ends that",
        ),
        (&["revert", "1"], "change 2 has set it since"),
    ] {
        let output = scene.run(words);
        let told = stderr(&output);
        assert!(output.status.code() == Some(2) && told.contains(why), "{words:?}: {told}");
        assert!(is_leased(&scene), "{words:?}");
    }
    scene.stdout(&["control", "stop"]);
    assert!(child.wait().unwrap().success());
    assert_eq!(values(&scene), applied);
    scene.stdout(&["revert", "1"]);
}

/// A guest, and the words that control it.
fn scene() -> (Scene, Vec<String>) {
    let scene = Scene::guest();
    let words = scene.words(&["control", "--mode", "active", "--layer", "guest"]);
    (scene, words)
}

fn is_leased(scene: &Scene) -> bool {
    let changes = journal::read_all(&scene.machine.machine, STATE_DIRECTORY).unwrap();
    changes.iter().any(|change| change.lease && change.state.is_open())
}

#[test]
fn what_a_controller_has_set_counts_as_in_force_until_another_program_changes_it() {
    let scene = Scene::guest();
    let _lease = leased(&scene);
    let code = || scene.run(&["status", "--exit-code"]).status.code();
    assert_eq!(code(), Some(0));
    scene.machine.write("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "77777\n");
    assert_eq!(code(), Some(1));
}

#[test]
fn the_lease_of_a_killed_controller_is_listed_with_the_command_that_ends_it() {
    let (scene, words) = scene();
    let mut child = running(&scene, &words, |_| ());
    let remark = || scene.json(&["status"])[0]["remark"].as_str().unwrap().to_owned();
    assert!(!remark().contains("was killed"), "{}", remark());
    child.kill().unwrap();
    child.wait().unwrap();
    let stop = "dwell control stop --sysroot ";
    assert!(remark().contains(&format!("was killed; restore the originals: {stop}")), "{}", remark());
    let note = || stderr(&scene.run(&["revert"]));
    assert!(note().starts_with(&format!("change 1, a lease, is not reverted; end it: {stop}")), "{}", note());
    scene.stdout(&["control", "stop"]);
    assert_eq!(note(), "");
}

#[test]
fn no_other_command_ends_the_lease_of_a_running_controller() {
    let (scene, words) = scene();
    let before = values(&scene);
    let mut child = running(&scene, &words, |_| ());
    assert_eq!(scene.stdout(&["revert"]), "nothing to revert\n");
    let listed = scene.stdout(&["status"]);
    assert!(
        listed.contains("guest_halt_poll_ns") && listed.contains("it is the lease of a `dwell control`"),
        "{listed}"
    );
    for (words, why) in [
        (&["revert", "1"][..], "cannot revert change 1, a lease: a `dwell control` runs"),
        (&["revert", "--all"], "cannot revert change 1, a lease: a `dwell control` runs"),
        (&["verify"], "no change is applied"),
        (&["verify", "1", "--revert-if-worse"], "it is a lease"),
        (&["apply", "PLAN"], "change 1 is the lease of a `dwell control`"),
        (&["apply", "PLAN", "--force", "--persist"], "change 1 is the lease of a `dwell control`"),
        (&["control", "--mode", "active", "--layer", "guest", "--duration", "1s"], "a `dwell control` runs"),
        (&["control", "--layer", "guest", "--duration", "1s"], "a `dwell control` runs"),
    ] {
        let output = scene.run(words);
        let told = stderr(&output);
        assert!(output.status.code() == Some(2) && told.contains(why), "{words:?}: {told}");
        assert!(is_leased(&scene), "{words:?}");
    }
    assert_eq!(status(&scene).unwrap()["layers"][0]["state"], "controls");
    assert_eq!(scene.stdout(&["control", "stop"]), "the controller has ended\n");
    assert!(child.wait().unwrap().success());
    assert!(!is_leased(&scene));
    // What is not leased any more is changed by others again.
    scene.stdout(&["apply", "PLAN"]);
    scene.stdout(&["revert"]);
    let parameters = |values: std::collections::BTreeMap<_, String>| values.into_values().collect::<Vec<_>>();
    assert_eq!(parameters(values(&scene)), parameters(before));
}

/// Another program has locked the journal when it is asked to stop.
#[test]
fn control_stop_waits_for_the_journal_and_for_the_end() {
    let (scene, words) = scene();
    let before = values(&scene);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut child = running(&scene, &words, |command| {
        command.env("NOTIFY_SOCKET", &socket);
    });
    let mut other = locked_by_another(&scene, "lock");
    let mut stop = Command::new(env!("CARGO_BIN_EXE_dwell"));
    stop.args(scene.words(&["control", "stop"])).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut stop = start(stop.stderr(Stdio::piped()));
    // It has been asked to end, and waits for the journal for at most 5 s.
    let mut told = [0; 512];
    while manager.recv(&mut told).is_ok_and(|length| told[..length] != *b"STOPPING=1") {}
    std::thread::sleep(Duration::from_millis(200));
    assert!(stop.try_wait().unwrap().is_none(), "it does not report what has not happened");
    drop(other.stdin.take());
    other.wait().unwrap();
    let output = stop.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    child.wait().unwrap();
    assert!(!is_leased(&scene));
    assert_eq!(values(&scene), before);
}

/// The socket of the controller was removed, or it is another program that has the lock.
#[test]
fn control_stop_that_nobody_answers_reports_what_to_end() {
    let (scene, words) = scene();
    let before = values(&scene);
    let mut child = running(&scene, &words, |_| ());
    std::fs::remove_file(scene.machine.path("/var/lib/dwell/control.sock")).unwrap();
    let told = scene.refused(&["control", "stop"]);
    let lock = scene.machine.path("/var/lib/dwell/control.lock").display().to_string();
    let remedy = format!(
        "that has locked {lock}; end the process that `fuser {lock}` prints with SIGTERM and try again"
    );
    assert!(told.contains(&remedy), "{told}");
    assert!(told.contains("no dwell control answers at") && is_leased(&scene), "{told}");
    signal(&child, Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(scene.stdout(&["control", "stop"]), "");
    assert_eq!(values(&scene), before);
}

/// An editor's copy and a damaged file lie beside the lease of a controller that is killed.
#[test]
fn a_damaged_file_keeps_no_other_change_from_being_reverted() {
    let (scene, words) = scene();
    let before = values(&scene);
    let mut child = running(&scene, &words, |_| ());
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    // As the killed one would have written it.
    scene.machine.set("guest_halt_poll_ns", "0\n");
    let damaged = "/var/lib/dwell/changes/000009.journal";
    scene.machine.write("/var/lib/dwell/changes/000001.journal~", "a copy");
    scene.machine.write(damaged, "dwell journal 1 bytes=5 crc32=00000000\n{");
    let output = scene.run(&["control", "stop"]);
    let told = stderr(&output);
    assert!(output.status.code() == Some(2) && told.contains("000009.journal is damaged"), "{told}");
    let change = journal::read_readable(&scene.machine.machine, STATE_DIRECTORY).unwrap().changes.remove(0);
    assert_eq!(
        (change.state, scene.machine.value("guest_halt_poll_ns").as_str()),
        (State::Reverted, "200000")
    );
    std::fs::remove_file(scene.machine.path(damaged)).unwrap();
    // The copy is nobody's change.
    assert_eq!(scene.stdout(&["revert", "--all"]), "nothing to revert\n");
    let output = scene.run(&["control", "stop"]);
    assert!(output.status.success() && stderr(&output).contains("000001.journal~ is not a file of dwell's"));
    std::fs::remove_file(scene.machine.path("/var/lib/dwell/changes/000001.journal~")).unwrap();
    assert_eq!(values(&scene), before);
}
