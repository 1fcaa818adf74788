//! `dwell explain`, as a user asks.

use crate::{Scene, output, stderr};
use dwell_testing::fixture::{self, Fixture};
use serde_json::Value;
use std::process::Command;

fn explain(words: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    let output = output(command.arg("explain").args(words).args(["--format", "json"]));
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn grow_start_of_24_ms_and_of_2_4_ms_are_equivalent_on_every_kernel() {
    for kernel in ["5.4", "5.10", "5.15", "6.1", "6.6", "6.18", "7.2"] {
        for (max, start) in [
            ("guest_halt_poll_ns", "guest_halt_poll_grow_start"),
            ("halt_poll_ns", "halt_poll_ns_grow_start"),
        ] {
            let words = [format!("{max}=2400us"), format!("{start}=24ms"), format!("{start}=2400us")];
            let words: Vec<&str> = words.iter().map(String::as_str).chain(["--kernel", kernel]).collect();
            let told = explain(&words);
            assert_eq!(told["comparisons"][0]["verdict"], "same", "{kernel}: {told}");
            assert_eq!(told["comparisons"][0]["second"], format!("{start}=2400000"));
        }
    }
}

#[test]
fn what_is_void_or_reaches_nobody_yet_is_told_by_version() {
    let told = explain(&["halt_poll_ns=0", "halt_poll_ns_shrink=2", "--kernel", "5.15"]);
    assert_eq!(told["explained"][1]["effect"], "no_effect");
    assert_eq!(told["explained"][0]["scope"], "new_vms");
    let told = explain(&["grow_start=0", "--layer", "host", "--kernel", "6.18"]);
    let same = told["explained"][0]["same_as"].as_array().unwrap();
    assert!(told["explained"][0]["effect"] == "effective" && same.is_empty(), "{told}");
    let told = explain(&[
        "KVM_CAP_HALT_POLL=50us",
        "poll-shrink=0",
        "poll-shrink=2",
        "--qemu",
        "11.1",
        "--kernel",
        "6.18",
    ]);
    assert!(told["capability"]["only"].as_str().unwrap().contains("only the VMM"));
    assert!(told["capability"]["call"].as_str().unwrap().ends_with("args[0]=50000"), "{told}");
    assert_eq!(told["comparisons"][0]["verdict"], "same");
}

#[test]
fn on_a_machine_what_is_set_there_and_what_reads_it_counts() {
    let scene = Scene::new(Fixture::guest(), &fixture::guest_plan());
    let told = scene.json(&["explain", "guest_halt_poll_grow_start=400us"]);
    assert_eq!(told["explained"][0]["effect"], "effective");
    assert!(told["explained"][0]["same_as"].as_array().unwrap().contains(&200_000.into()), "{told}");
    scene.machine.write("/sys/devices/system/cpu/cpuidle/current_driver", "none\n");
    let told = scene.json(&["explain", "guest_halt_poll_grow_start=400us"]);
    assert_eq!(told["explained"][0]["effect"], "no_effect");
    assert!(told["explained"][0]["why"].as_str().unwrap().contains("no cpuidle driver"));
    assert!(scene.refused(&["explain", "grow_start=1"]).contains("write the whole name or give --layer"));
    assert!(scene.refused(&["explain", "halt_pol=1"]).contains("no such parameter"));
    assert!(scene.refused(&["explain", "lapic_timer_advance_ns"]).contains("went with 6.10"));
}
