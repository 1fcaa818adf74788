//! `dwell verify`, interrupted, and without the counter that it is given.

use crate::{Scene, start};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Verifying switches back and forth. Killed in between, whatever is there is taken back.
#[test]
fn a_verification_that_was_interrupted_is_told_and_taken_back() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    scene.stdout(&["apply", "PLAN"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    let mut child = start(
        command
            .args(scene.words(&["verify", "--turn", "20ms", "--settle", "1ms"]))
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    let journal = || scene.machine.text("/var/lib/dwell/changes/000001.journal").unwrap();
    let mut ended = false;
    while !ended && !journal().contains("\"verifying\": true") {
        ended = child.try_wait().unwrap().is_some();
        std::thread::sleep(Duration::from_millis(1));
    }
    if ended {
        child.wait().unwrap();
        dwell_testing::skip!(
            "tracing",
            "a_verification_that_was_interrupted_is_told_and_taken_back",
            "this machine cannot be recorded"
        );
        return;
    }
    // Within the first rounds, at whatever side.
    std::thread::sleep(Duration::from_millis(150));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(scene.stdout(&["status"]).contains("`dwell verify 1` was interrupted"));
    scene.stdout(&["revert"]);
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
        let told = scene.refused(&[&["verify"], counter].concat());
        let cannot_record = ["cannot record", "no permission"]
            .iter()
            .any(|why| told.contains(&format!("no value was switched: {why}")));
        if cannot_record {
            dwell_testing::skip!(
                "tracing",
                "a_counter_that_cannot_be_read_is_told_before_a_value_is_switched",
                "this machine cannot be recorded"
            );
            return;
        }
        assert!(told.contains(why), "{told}");
        assert_eq!(scene.machine.snapshot(), applied);
    }
}
