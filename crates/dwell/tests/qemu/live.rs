//! `dwell iothread` on a running QEMU.

use crate::guest::{Options, Qemu, Release};
use dwell_knobs::knob::IothreadTarget;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_replay::Figure;
use dwell_replay::advice::{Gain, Interval};
use dwell_testing::fixture;
use dwell_testing::process::Process;
use dwell_testing::{say, schema};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn dwell(words: &[&str], monitor: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.arg("iothread").arg(words[0]).arg("--qmp").arg(monitor).args(&words[1..]);
    if ["set", "bench"].contains(&words[0]) {
        // Beside the monitor: its folder is removed with the QEMU.
        command.arg("--state-dir").arg(monitor.with_file_name("state"));
    }
    command
}

fn run(words: &[&str], monitor: &Path) -> Output {
    dwell(words, monitor).output().expect("the program can be started")
}

fn json(words: &[&str], monitor: &Path) -> Value {
    let output = run(words, monitor);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let output = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    schema::check_required(&format!("iothread-{}", words[0]), &output);
    output
}

fn refused(words: &[&str], monitor: &Path) -> String {
    let output = run(words, monitor);
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

fn properties(monitor: &Path) -> Value {
    json(&["list", "--format", "json"], monitor)["iothreads"][0]["properties"].clone()
}

fn booted(release: Release, test: &str) -> Option<Qemu> {
    match Qemu::booted(release, &Options::default()) {
        Ok(qemu) => Some(qemu),
        Err(cause) => {
            dwell_testing::skip!("qemu", test, "{cause}");
            None
        }
    }
}

#[test]
fn properties_are_listed_set_and_refused_in_qemus_words() {
    let _alone = crate::alone();
    let test = "properties_are_listed_set_and_refused_in_qemus_words";
    for release in Release::ALL {
        let mut options = Options { more: &["-S"], ..Options::default() };
        options.iothread = "poll-max-ns=20000";
        let qemu = match Qemu::start(release, &options) {
            Ok(qemu) => qemu,
            Err(cause) => {
                dwell_testing::skip!("qemu", test, "{cause}");
                continue;
            }
        };
        let monitor = qemu.monitor();
        let begun = Instant::now();
        while !run(&["list"], &monitor).status.success() {
            assert!(begun.elapsed() < Duration::from_secs(30), "QEMU has no monitor");
            std::thread::sleep(Duration::from_millis(100));
        }
        let before = properties(&monitor);
        assert_eq!(before["poll-max-ns"], 20_000);
        json(&["set", "io0", "poll-max-ns=1ms", "--dry-run", "--format", "json"], &monitor);
        assert_eq!(properties(&monitor), before);
        let same = json(&["set", "io0", "poll-max-ns=20us", "--format", "json"], &monitor);
        assert_eq!(
            (&same["changes"], &same["unchanged"][0]),
            (&Value::from(Vec::<Value>::new()), &"poll-max-ns".into())
        );
        let out_of_range = refused(&["set", "io0", "poll-max-ns=5", "poll-grow=-1"], &monitor);
        assert!(out_of_range.contains("cannot set poll-grow to -1"), "{out_of_range}");
        let unknown = refused(&["set", "io0", "poll-max-ns=5", "poll-fast=1"], &monitor);
        assert!(unknown.contains("Property 'iothread.poll-fast' not found"), "{unknown}");
        let weight = ["set", "io0", "poll-weight=64"];
        let heavy = refused(&weight, &monitor);
        let weighted = before.get("poll-weight").is_some();
        let words = if weighted { "cannot set poll-weight to 64" } else { "poll-weight does not exist in " };
        assert!(heavy.contains(words), "{heavy}");
        assert!(
            refused(&["set", "io9", "poll-grow=1"], &monitor)
                .contains("there is no iothread `io9`; QEMU has io0")
        );
        assert_eq!(properties(&monitor), before);
        json(&["set", "io0", "poll-max-ns=0", "poll-grow=3", "--format", "json"], &monitor);
        assert_eq!(
            (&properties(&monitor)["poll-max-ns"], &properties(&monitor)["poll-grow"]),
            (&0.into(), &3.into())
        );
        say!("{test}: {release:?}: set and refused as it should");
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn longer_polling_sleeps_less_as_predicted() {
    let _alone = crate::alone();
    let test = "longer_polling_sleeps_less_as_predicted";
    let Some(qemu) = booted(Release::Installed, test) else { return };
    let monitor = qemu.monitor();
    json(&["set", "io0", "poll-max-ns=0", "--format", "json"], &monitor);
    let before = properties(&monitor);
    let words = [
        "bench",
        "--set",
        "poll-max-ns=300us",
        "--set",
        "poll-max-ns=1ms",
        "--predict",
        "--budget",
        "25s",
        "--turn",
        "200ms",
        "--format",
        "json",
    ];
    let output = run(&words, &monitor);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(properties(&monitor), before, "{stderr}");
    if stderr.contains("cannot record the thread") {
        return dwell_testing::skip!("tracing", test, "{}", stderr.trim());
    }
    assert!(output.status.success(), "{stderr}");
    let benched: Value = serde_json::from_slice(&output.stdout).unwrap();
    schema::check_required("iothread-bench", &benched);
    let rows = benched["findings"]["rows"].as_array().unwrap();
    let measured = |arm: &str, figure: &str| {
        let row = rows.iter().find(|row| row["arm"] == arm && row["figure"] == figure);
        row.and_then(|row| row["value"]["value"].as_f64()).unwrap_or(f64::NAN)
    };
    say!("{test}: per request: sleeps measured/predicted, CPU us measured/predicted, and requests a second");
    let base_cpu = measured("present", "cpu_ns_per_request");
    for arm in benched["arms"].as_array().unwrap() {
        let name = arm["name"].as_str().unwrap();
        say!(
            "  {name:<22} {:.2}/{:.2}  {:.1}/{:.1}  {:.0}",
            measured(name, "sleeps_per_request"),
            arm["predicted"]["sleeps"].as_f64().unwrap(),
            measured(name, "cpu_ns_per_request") / 1e3,
            (base_cpu + arm["predicted"]["polled_ns"].as_f64().unwrap()) / 1e3,
            measured(name, "requests_per_s"),
        );
    }
    say!("  {} rounds; {}", benched["findings"]["rounds"], benched["findings"]["warnings"]);
    let sleeps = |arm: &str| measured(arm, "sleeps_per_request");
    let cpu = |arm: &str| measured(arm, "cpu_ns_per_request");
    assert!(sleeps("poll-max-ns=1000000") < 0.9 * sleeps("present"));
    assert!(cpu("poll-max-ns=1000000") > cpu("present"));
}

#[test]
fn an_interrupted_bench_puts_back_what_was_there() {
    let _alone = crate::alone();
    let test = "an_interrupted_bench_puts_back_what_was_there";
    let Some(qemu) = booted(Release::Installed, test) else { return };
    let monitor = qemu.monitor();
    let before = properties(&monitor);
    let words = ["bench", "--set", "poll-max-ns=123456", "--set", "poll-grow=7"];
    let bench =
        Process(dwell(&words, &monitor).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    std::thread::sleep(Duration::from_secs(2));
    let interrupt = Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let begun = Instant::now();
    let output = bench.wait_with_output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60), "it did not end");
    // Its first round takes longer.
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && told.contains("the present values are in force again"),
        "{told}"
    );
    assert_eq!(properties(&monitor), before);
    say!("{test}: ended and put back in {:?}", begun.elapsed());

    // What is killed restores nothing, and the journal has it all.
    let mut killed =
        Process(dwell(&words, &monitor).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let begun = Instant::now();
    while properties(&monitor) == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was set");
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut stop = Command::new(env!("CARGO_BIN_EXE_dwell"));
    stop.args(["control", "stop", "--state-dir"]).arg(monitor.with_file_name("state"));
    let stopped = stop.output().unwrap();
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    assert_eq!(properties(&monitor), before, "{}", String::from_utf8_lossy(&stopped.stdout));
}

/// A plan for `io0` that promises fewer sleeps.
fn plan(monitor: &Path, wanted: i64) -> dwell_knobs::plan::Plan {
    let there = properties(monitor);
    let listed = json(&["list", "--format", "json"], monitor);
    let version = Version::parse(listed["qemu"].as_str().unwrap()).unwrap();
    let mut present = Setting::defaults(Layer::Iothread, version);
    for (name, value) in there.as_object().unwrap() {
        present.set(name, value.as_i64().unwrap()).unwrap();
    }
    let socket = monitor.to_str().unwrap().to_owned();
    let target = IothreadTarget { socket, id: "io0".parse().unwrap(), domain: None };
    let mut plan = fixture::plan_for(present, &[("poll-max-ns", wanted)], Some(target));
    let share = Interval { low: 0.4, value: 0.5, high: 0.6 };
    plan.effect.gain = Some(Gain { of: Figure::Halts, per_s: 1_000.0, share });
    (plan.effect.present.halts_per_s, plan.effect.recommended.halts_per_s) = (2_000.0, 1_000.0);
    plan
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn verify_tells_a_gain_from_its_opposite_and_takes_that_back() {
    let _alone = crate::alone();
    let test = "verify_tells_a_gain_from_its_opposite_and_takes_that_back";
    let Some(qemu) = booted(Release::Installed, test) else { return };
    let monitor = qemu.monitor();
    let folder = tempfile::tempdir().unwrap();
    let change = |words: &[&str]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let command =
            command.args(words).args(["--format", "json", "--state-dir"]).arg(folder.path().join("state"));
        let output = command.output().expect("the program can be started");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("stdout is JSON")
    };
    let apply = |wanted: i64| {
        let file = folder.path().join("plan.toml");
        std::fs::write(&file, plan(&monitor, wanted).to_toml().unwrap()).unwrap();
        change(&["apply", file.to_str().unwrap()]);
        let verified = change(&["verify", "--budget", "20s", "--turn", "200ms", "--revert-if-worse"]);
        let sleeps = &verified["figures"][2];
        say!(
            "{test}: poll-max-ns={wanted}: {}; sleeps/s {:.0} before, {:.0} after",
            verified["verdict"],
            sleeps["before"]["value"].as_f64().unwrap(),
            sleeps["after"]["value"].as_f64().unwrap()
        );
        verified
    };
    json(&["set", "io0", "poll-max-ns=0", "--format", "json"], &monitor);
    let gain = apply(1_000_000);
    // The plan comes from a recording without episodes.
    assert_eq!(gain["verdict"], "gain", "{gain}");
    assert_eq!((&gain["reverted"], &properties(&monitor)["poll-max-ns"]), (&false.into(), &1_000_000.into()));
    let opposite = apply(0);
    assert_eq!(
        (&opposite["verdict"], &opposite["reverted"]),
        (&"regression".into(), &true.into()),
        "{opposite}"
    );
    assert_eq!(properties(&monitor)["poll-max-ns"], 1_000_000);
    change(&["revert", "--all"]);
    assert_eq!(properties(&monitor)["poll-max-ns"], 0);
}
