//! `dwell verify`, interrupted, and without the counter that it is given.

use crate::{Scene, locked_by_another, start, stderr};
use dwell_testing::needs::recorded;
use dwell_testing::process::Sleeper;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Starts `dwell verify` with these words and kills it when it has begun to switch. What it printed, if it ended before.
fn killed(scene: &Scene, words: &[&str]) -> Option<Output> {
    let words = [&["verify", "--turn", "20ms", "--settle", "1ms"], words].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    let mut child = start(command.args(scene.words(&words)).stdout(Stdio::null()).stderr(Stdio::piped()));
    let begun = || {
        let journal = scene.machine.text("/var/lib/dwell/changes/000001.journal");
        journal.is_some_and(|journal| journal.contains("\"verifying\": true"))
    };
    let mut ended = false;
    while !ended && !begun() {
        ended = child.try_wait().unwrap().is_some();
        std::thread::sleep(Duration::from_millis(1));
    }
    if !ended {
        // Within the first rounds, at whatever side.
        std::thread::sleep(Duration::from_millis(150));
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    ended.then_some(output)
}

/// Verifying switches back and forth. Killed in between, whatever is there is taken back: an applied change, and a
/// setting that was in force for the measurement only.
#[test]
fn a_verification_that_was_interrupted_is_told_and_taken_back() {
    const NAME: &str = "a_verification_that_was_interrupted_is_told_and_taken_back";
    for set in [&[][..], &["--set", "guest_halt_poll_ns=0,guest_halt_poll_grow=4"]] {
        let scene = Scene::guest();
        let before = scene.machine.snapshot();
        if set.is_empty() {
            scene.stdout(&["apply", "PLAN"]);
        }
        if let Some(output) = killed(&scene, set) {
            assert!(!recorded(&output, NAME), "it ended before it was killed");
            return;
        }
        assert!(scene.stdout(&["status"]).contains("a `dwell verify` of it was interrupted"));
        let told = scene.refused(&["control", "--mode", "active", "--layer", "guest", "--duration", "1ms"]);
        assert!(told.contains("change 1 was interrupted") && told.contains("dwell revert 1"), "{told}");
        scene.stdout(&["revert"]);
        assert_eq!(scene.machine.snapshot(), before);
    }
}

/// The files below the directory have no effect on the kernel that is measured: both sides are alike.
#[test]
fn a_setting_is_measured_and_recorded_and_is_gone_afterwards() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    let folder = tempfile::tempdir().unwrap();
    let files = ["a.parquet", "b.parquet"].map(|name| folder.path().join(name));
    let names = files.each_ref().map(|file| file.to_str().unwrap());
    let words = ["verify", "--set", "guest_halt_poll_ns=0", "--budget", "4s", "--turn", "20ms"];
    let words = [&words[..], &["--record", names[0], names[1]]].concat();
    let _idles = Sleeper::start();
    let output = scene.run(&words);
    if !recorded(&output, "a_setting_is_measured_and_recorded_and_is_gone_afterwards") {
        assert_eq!(scene.machine.snapshot(), before);
        return;
    }
    let shown = String::from_utf8(output.stdout).unwrap();
    for part in ["guest_halt_poll_ns=0", "context switches/s", "the values from before are in force again"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains("predicted"), "{shown}");
    assert_eq!(scene.machine.snapshot(), before);
    let history = scene.stdout(&["status", "--history"]);
    assert!(history.contains("reverted") && history.contains("guest_halt_poll_ns=0"), "{history}");
    for file in &files {
        let segments = dwell_recording::Reader::open(file).unwrap().segments().unwrap();
        assert!(segments.is_some_and(|segments| !segments.rows.is_empty()), "{}", file.display());
    }
    // What is there is not replaced.
    assert!(scene.refused(&words).contains("a.parquet: the file exists; --force replaces it"));
    assert_eq!(scene.machine.snapshot(), before);
}

/// Another process has the lock of a verification.
#[test]
fn of_two_verifications_at_once_the_second_is_refused_and_no_change_is_begun() {
    let scene = Scene::guest();
    scene.stdout(&["apply", "PLAN"]);
    let (applied, journal) = (scene.machine.snapshot(), "/var/lib/dwell/changes/000001.journal");
    let recorded = scene.machine.text(journal);
    let mut other = locked_by_another(&scene, "verify.lock");
    for words in
        [&["verify"][..], &["verify", "1", "--revert-if-worse"], &["verify", "--set", "guest_halt_poll_ns=0"]]
    {
        let told = scene.refused(words);
        assert!(told.contains("a `dwell verify` runs"), "{words:?}: {told}");
        assert_eq!(
            (scene.machine.snapshot(), scene.machine.text(journal)),
            (applied.clone(), recorded.clone())
        );
    }
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn a_setting_that_cannot_be_measured_is_refused_with_the_reason() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    for (set, why) in [
        ("guest_halt_poll_ns", "write NAME=VALUE"),
        ("guest_halt_poll_ns=200000", "these values are in force already"),
        ("guest_halt_poll_ns=0,guest_halt_poll_ns=1", "name each parameter once"),
        ("guest_halt_poll=0", "no such parameter here; known are guest_halt_poll_ns"),
        ("guest_halt_poll_ns=5s", "0 to 4294967295 ns"),
    ] {
        let told = scene.refused(&["verify", "--set", set]);
        assert!(told.contains(why), "{set}: {told}");
    }
    scene.machine.write("/sys/devices/system/cpu/cpuidle/current_driver", "none\n");
    let told = scene.refused(&["verify", "--set", "guest_halt_poll_ns=0"]);
    assert!(
        told.contains("cannot measure guest_halt_poll_ns: ") && told.contains("no cpuidle driver"),
        "{told}"
    );
    scene.machine.write("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n");
    assert_eq!(scene.machine.snapshot(), before);
}

#[test]
fn a_counter_that_cannot_be_read_is_told_before_a_value_is_switched() {
    let scene = Scene::guest();
    scene.stdout(&["apply", "PLAN"]);
    let applied = scene.machine.snapshot();
    for (counter, why) in [
        (&["--work", "echo none"][..], "it printed `none`; it has to print one number"),
        (&["--work", "exit 3"], "--work `exit 3`: exit status: 3"),
        (
            &["--work-metric", "http://127.0.0.1:1/metrics", "served_total"],
            "--work-metric http://127.0.0.1:1/metrics",
        ),
        (&["--work-metric", "https://localhost/metrics", "served_total"], "write http://HOST:PORT/PATH"),
    ] {
        let output = scene.run(&[&["verify"], counter].concat());
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        if !told.contains(why) {
            assert!(!recorded(&output, "a_counter_that_cannot_be_read_is_told_before_a_value_is_switched"));
            return;
        }
        assert_eq!(scene.machine.snapshot(), applied);
    }
}
