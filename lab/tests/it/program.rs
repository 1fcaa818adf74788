//! `dwell-lab`, as a user runs it; and its command lines in the book.

use dwell_testing::help::{Help, Line, calls, inline_code, lines};
use dwell_testing::say;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn lab(state: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell-lab"));
    command.env("XDG_STATE_HOME", state).args(args).output().expect("the program can be started")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An experiment. One that fails is tried once more: a host that starves its guests can hold one up for
/// longer than the lab waits, but hardly twice.
fn experiment(state: &Path, args: &[&str]) -> Output {
    let output = lab(state, args);
    if output.status.success() || cannot(&output) {
        return output;
    }
    say!("tried again after: {}", stderr(&output).trim());
    lab(state, args)
}

/// Whether this machine has no KVM that may be used, or too few CPUs. Any other failure is one of the test.
fn cannot(output: &Output) -> bool {
    let told = stderr(output);
    output.status.code() == Some(2) && (told.contains("no KVM here") || told.contains("needs 2 CPUs"))
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).expect("JSON on stdout")
}

#[test]
fn wrong_words_name_the_right_ones() {
    let state = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["wake", "--idle", "host"][..], "such as 200us"),
        (&["wake", "--idle", "guest:sometimes"][..], "ski-rental"),
        (&["wake", "--gaps", "poisson:3"][..], "exponential:100us"),
        (&["wake", "--gaps", "recording:nowhere.parquet"][..], "nowhere.parquet"),
        (&["pingpong", "--guest", "kvm,halt_pol_ns=3"][..], "halt_poll_ns"),
        (&["validate", "--idle", "guest:never"][..], "host:TIME"),
        (&["timer", "--timer", "spin-late"][..], "spin-early=15us"),
        (&["doorbell", "--serve", "adaptive:qemu"][..], "ski-rental"),
        (&["doorbell", "--serve", "blocking+suppress"][..], "needs its doorbell"),
        (&["wake", "--budget", "soon"][..], "200us"),
        (&["guest", "--load", "idle"][..], "redis-paced"),
        (&["guest", "--block", "10ms"][..], "from 1s to 1min"),
        (&["wake", "--samples", "/nowhere/a.parquet"][..], "create the directory first"),
    ] {
        let output = lab(state.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn without_kvm_one_line_says_why() {
    const NOBODY: u32 = 65_534;
    const TEST: &str = "without_kvm_one_line_says_why";
    for experiment in ["wake", "control", "pingpong", "timer", "doorbell", "validate"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell-lab"));
        command.args([experiment]).env("XDG_STATE_HOME", "/nonexistent");
        if Path::new("/dev/kvm").exists() {
            // Poller there is a KVM, somebody who may not use it stands for one who has none.
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(error) => return dwell_testing::skip!("root", TEST, "cannot run as another user ({error})"),
        };
        if output.status.success() {
            return dwell_testing::skip!("root", TEST, "everybody may use /dev/kvm here");
        }
        assert_eq!(output.status.code(), Some(2), "{experiment}");
        let told = stderr(&output);
        assert!(
            told.starts_with("dwell-lab: no KVM here") && told.lines().count() == 1,
            "{experiment}: {told}"
        );
    }
}

#[test]
fn a_short_wake_has_every_arm_figure_and_sample() {
    const TEST: &str = "a_short_wake_has_every_arm_figure_and_sample";
    let _alone = crate::alone();
    let state = tempfile::tempdir().unwrap();
    let samples = state.path().join("samples.parquet");
    let output = experiment(
        state.path(),
        &[
            "wake",
            "--rounds",
            "1",
            "--idle",
            "host:0",
            "--idle",
            "guest:always",
            "--gaps",
            "bimodal:50us,30ms,0.99",
            "--foreign-limit",
            "100",
            "--samples",
            samples.to_str().unwrap(),
            "--format",
            "json",
        ],
    );
    if cannot(&output) {
        return dwell_testing::skip!(
            "kvm",
            TEST,
            "{}",
            stderr(&output).trim().trim_start_matches("dwell-lab: ")
        );
    }
    let told = json(&output);
    assert_eq!(told["gaps"], "bimodal:50us,30ms,0.99");
    assert!(stderr(&output).contains("of 1,000 gaps are longer than 20.0 ms"), "{}", stderr(&output));
    let rows = told["rows"].as_array().unwrap();
    for arm in ["host:0", "guest:always", "host:0 (A/A)"] {
        for figure in ["p50", "p99.9", "cpu_ns_per_wakeup", "halts_per_wakeup", "hlt_exits_per_wakeup"] {
            let row = rows.iter().find(|row| row["arm"] == arm && row["figure"] == figure);
            assert!(row.is_some_and(|row| row["value"]["value"].is_number()), "{arm} {figure}");
        }
    }
    assert!(samples.metadata().unwrap().len() > 1_000);
    let warnings = told["warnings"].as_array().unwrap();
    assert!(warnings.iter().any(|warning| warning["kind"] == "few_rounds"), "{warnings:?}");

    // No file may be longer than 512 bytes: the samples are lost, and nothing else is.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 1; trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_dwell-lab")])
        .args(["wake", "--rounds", "1", "--idle", "host:0", "--format", "csv", "--samples"])
        .arg(state.path().join("lost.parquet"))
        .output()
        .expect("sh can be started");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("the results are complete, but"), "{}", stderr(&output));
    assert!(!state.path().join("lost.parquet").exists());
    // One round has no interval: its limits are empty.
    let csv = String::from_utf8(output.stdout).unwrap();
    assert!(csv.contains("p50") && csv.contains(",,") && !csv.contains("inf"), "{csv}");
}

#[test]
fn a_short_timer_and_a_short_doorbell_have_every_arm_and_kvms_numbers() {
    const TEST: &str = "a_short_timer_and_a_short_doorbell_have_every_arm_and_kvms_numbers";
    let _alone = crate::alone();
    let state = tempfile::tempdir().unwrap();
    for (args, figure, kvm) in [
        (
            ["timer", "--timer", "in-kernel", "--timer", "spin-early=90us"],
            "early_share",
            "kvm_statistics_per_timer",
        ),
        (
            ["doorbell", "--serve", "blocking", "--serve", "busy"],
            "sleeps_per_request",
            "kvm_statistics_per_request",
        ),
    ] {
        let common = ["--rounds", "1", "--foreign-limit", "100", "--format", "json"];
        let output = experiment(state.path(), &[&args[..], &common].concat());
        if cannot(&output) {
            return dwell_testing::skip!(
                "kvm",
                TEST,
                "{}",
                stderr(&output).trim().trim_start_matches("dwell-lab: ")
            );
        }
        let told = json(&output);
        let rows = told["rows"].as_array().unwrap();
        for arm in [args[2], args[4]] {
            for figure in ["p50", "mean", figure] {
                let row = rows.iter().find(|row| row["arm"] == arm && row["figure"] == figure);
                assert!(row.is_some_and(|row| row["value"]["value"].is_number()), "{arm} {figure}");
            }
            let of_arm = told[kvm].as_array().unwrap().iter().find(|of| of["arm"] == arm).unwrap();
            assert!(of_arm["per_round"]["halt_exits"].as_f64().unwrap() > 0.5, "{of_arm}");
        }
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn live_policies_are_compared_in_both_places() {
    const TEST: &str = "live_policies_are_compared_in_both_places";
    let _alone = crate::alone();
    let state = tempfile::tempdir().unwrap();
    let args = ["policies", "--rounds", "1", "--gaps", "exponential:60us", "--foreign-limit", "100"];
    let output = experiment(state.path(), &[&args[..], &["--format", "json"]].concat());
    if cannot(&output) {
        return dwell_testing::skip!(
            "kvm",
            TEST,
            "{}",
            stderr(&output).trim().trim_start_matches("dwell-lab: ")
        );
    }
    let told = json(&output);
    let campaigns = told["campaigns"].as_array().unwrap();
    assert_eq!(campaigns.len(), 2);
    for campaign in campaigns {
        let rows = campaign["findings"]["rows"].as_array().unwrap();
        let leader = campaign["leader"].as_str().unwrap();
        let value = |figure: &str| {
            let row = rows.iter().find(|row| row["arm"] == leader && row["figure"] == figure).unwrap();
            row["value"]["value"].as_f64().unwrap()
        };
        let cost = value("polled_ns_per_wakeup") + 20_000.0 * value("halts_per_wakeup");
        assert!((value("cost_ns_per_wakeup") / cost - 1.0).abs() < 1e-6, "{cost}");
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn a_neighbour_is_measured_under_every_way_to_idle() {
    const TEST: &str = "a_neighbour_is_measured_under_every_way_to_idle";
    let _alone = crate::alone();
    let state = tempfile::tempdir().unwrap();
    let args = ["neighbour", "--rounds", "1", "--foreign-limit", "100", "--format", "json"];
    let output = experiment(state.path(), &args);
    if cannot(&output) {
        return dwell_testing::skip!(
            "kvm",
            TEST,
            "{}",
            stderr(&output).trim().trim_start_matches("dwell-lab: ")
        );
    }
    let told = json(&output);
    let campaigns = told["campaigns"].as_array().unwrap();
    assert_eq!(campaigns.len(), 5);
    for campaign in campaigns {
        let rows = campaign["findings"]["rows"].as_array().unwrap();
        let value = |arm: &str, figure: &str| {
            let row = rows.iter().find(|row| row["arm"] == arm && row["figure"] == figure)?;
            row["value"]["value"].as_f64()
        };
        for arm in ["never", "haltpoll", "leader, not told", "leader"] {
            // Neither starves.
            assert!(value(arm, "neighbour_work_per_s").unwrap() > 100.0, "{campaign}");
            assert!(value(arm, "wakeups_per_s").unwrap() > 10.0, "{campaign}");
        }
        assert!(value("haltpoll", "recovery_ns").unwrap() < 1.2e9, "{campaign}");
        assert_eq!(value("never", "recovery_ns"), None);
        assert_eq!(value("leader, not told", "preemptions_per_s"), Some(0.0));
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn a_controlled_vm_is_compared_with_fixed_maxima() {
    const TEST: &str = "a_controlled_vm_is_compared_with_fixed_maxima";
    let _alone = crate::alone();
    let state = tempfile::tempdir().unwrap();
    let args = ["control", "--rounds", "1", "--gaps", "exponential:150us", "--block", "200ms"];
    let common = ["--halt-cost", "20us", "--foreign-limit", "100", "--format", "json"];
    let output = experiment(state.path(), &[&args[..], &common].concat());
    if cannot(&output) {
        return dwell_testing::skip!(
            "kvm",
            TEST,
            "{}",
            stderr(&output).trim().trim_start_matches("dwell-lab: ")
        );
    }
    let told = json(&output);
    let [campaign] = told["campaigns"].as_array().unwrap().as_slice() else { panic!("{told}") };
    let rows = campaign["findings"]["rows"].as_array().unwrap();
    let value = |arm: &str, figure: &str| {
        let row = rows.iter().find(|row| row["arm"] == arm && row["figure"] == figure);
        row.and_then(|row| row["value"]["value"].as_f64())
            .unwrap_or_else(|| panic!("{arm} {figure}: {rows:?}"))
    };
    let priced = rows.iter().filter(|row| row["figure"] == "cost_ns_per_wakeup");
    let arms: BTreeSet<&str> = priced.map(|row| row["arm"].as_str().unwrap()).collect();
    // The default, 0, and the guest that polls are there as well.
    assert!(arms.contains("controlled") && arms.len() >= 4, "{arms:?}");
    for arm in arms {
        let halts = value(arm, "halts_per_wakeup");
        let cost = value(arm, "polled_ns_per_wakeup") + 20_000.0 * halts;
        assert!((value(arm, "cost_ns_per_wakeup") / cost - 1.0).abs() < 1e-6, "{arm}: {cost}");
        // Every wakeup ends a halt or a poll.
        assert!(halts < 1.1, "{arm}: {halts}");
    }
}

/// Ctrl-C before the first round is complete: one sentence, and no table without values.
#[test]
fn what_is_stopped_early_says_so_in_one_sentence() {
    const TEST: &str = "what_is_stopped_early_says_so_in_one_sentence";
    let _alone = crate::alone();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell-lab"));
    // A round of twelve blocks of 150 ms, after six of warm-up.
    let mut child = command
        .args(["wake", "--budget", "1min", "--foreign-limit", "100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    // The first line of progress, when the first block is due.
    told.read_line(&mut first).unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    if child.try_wait().unwrap().is_none() {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    }
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    if first.contains("no KVM here") || first.contains("needs 2 CPUs") {
        return dwell_testing::skip!("kvm", TEST, "{}", first.trim().trim_start_matches("dwell-lab: "));
    }
    assert!(first.starts_with("round 1, block 1"), "{first}");
    assert_eq!(rest, "dwell-lab: stopped before the first round was complete; there are no results\n");
    assert!(output.stdout.is_empty() && output.status.code() == Some(2), "{output:?}");
}

#[test]
fn a_calibration_with_too_little_time_names_the_least_budget() {
    const TEST: &str = "a_calibration_with_too_little_time_names_the_least_budget";
    let _alone = crate::alone();
    let state = tempfile::tempdir().unwrap();
    let output = lab(state.path(), &["calibrate", "--budget", "100ms", "--foreign-limit", "100"]);
    let told = stderr(&output);
    if cannot(&output) || told.contains("no KVM here") {
        return dwell_testing::skip!("kvm", TEST, "no KVM");
    }
    assert_eq!(output.status.code(), Some(2), "{told}");
    let last = told.lines().last().unwrap_or_default();
    assert!(last.starts_with("dwell-lab: cannot measure the cost of a halt: only 1 of 6 rounds"), "{told}");
    let least = last.rsplit_once("use --budget ").and_then(|(_, rest)| rest.strip_suffix("s or more"));
    assert!(least.is_some_and(|seconds| (4..=900).contains(&seconds.parse().unwrap())), "{told}");
    assert!(!told.contains("warning: vCPU"), "{told}");
    // What was measured of own CPUs is not lost.
    let stored = std::fs::read_to_string(state.path().join("dwell/halt-cost.json")).unwrap();
    let stored: Value = serde_json::from_str(&stored).unwrap();
    let [own] = stored["halts"].as_array().unwrap().as_slice() else { panic!("{stored}") };
    assert!(
        own["halt_of"] == "own_cpu" && String::from_utf8_lossy(&output.stdout).contains("own CPUs"),
        "{output:?}"
    );
}

#[test]
fn a_calibration_that_cannot_be_stored_is_refused_before_it_is_measured() {
    let output = lab(Path::new("/dev/null"), &["calibrate"]);
    let told = stderr(&output);
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains("cannot store the calibration at /dev/null/dwell/halt-cost.json"), "{told}");
    assert!(told.contains("or use --dry-run"), "{told}");
}

/// Of a guest without /dev/kvm a vCPU below it was asked for.
#[test]
fn own_halts_are_calibrated_without_kvm() {
    const NOBODY: u32 = 65_534;
    const TEST: &str = "own_halts_are_calibrated_without_kvm";
    let _alone = crate::alone();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell-lab"));
    command.args(["calibrate", "--dry-run", "--foreign-limit", "100", "--format", "json"]);
    command.env_remove("XDG_STATE_HOME").env_remove("HOME");
    if Path::new("/dev/kvm").exists() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return dwell_testing::skip!("root", TEST, "cannot run as another user ({error})"),
    };
    if cannot(&output) {
        return dwell_testing::skip!(
            "kvm",
            TEST,
            "{}",
            stderr(&output).trim().trim_start_matches("dwell-lab: ")
        );
    }
    let measured = json(&output);
    let [own] = measured["halts"].as_array().unwrap().as_slice() else { panic!("{measured}") };
    assert_eq!(own["halt_of"], "own_cpu");
    for cost in own["costs"].as_array().unwrap() {
        let cpu_ns = cost["cpu_ns"]["value"].as_f64().unwrap();
        assert!((100.0..10e6).contains(&cpu_ns), "{cost}");
    }
    assert!(
        stderr(&output).contains("halts of a vCPU were not measured: no KVM here"),
        "{}",
        stderr(&output)
    );
    // Samples are of a vCPU's halts alone. The program may run as another user, who can write to this folder.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    let refused = command.arg("--samples").arg(folder.path().join("samples.parquet")).output().unwrap();
    let told = stderr(&refused);
    assert!(
        told.starts_with("dwell-lab: cannot write --samples, which are of a vCPU's halts: no KVM here"),
        "{told}"
    );
    assert_eq!(refused.status.code(), Some(2), "{told}");
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn a_guest_is_measured_under_control_and_its_parameters_are_restored() {
    const TEST: &str = "a_guest_is_measured_under_control_and_its_parameters_are_restored";
    const KNOB: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
    let _alone = crate::alone();
    let state = tempfile::tempdir().unwrap();
    let before = std::fs::read_to_string(KNOB).ok();
    let directory = state.path().to_str().unwrap();
    let short = ["--rounds", "1", "--block", "1s", "--settle", "100ms", "--foreign-limit", "1000"];
    let words = ["guest", "--load", "pipe", "--format", "json", "--state-dir", directory];
    let output = lab(state.path(), &[&words[..], &short].concat());
    let told = stderr(&output);
    if !output.status.success() {
        // Another test of this machine's haltpoll runs beside it, or there is none, or it may not be written
        // or recorded.
        let causes = [
            "another program changed it",
            "cannot control the guest layer",
            "cannot take a lease",
            "cannot record",
        ];
        let known = causes.iter().any(|cause| told.contains(cause)) || told.contains("no effect");
        assert!(known, "{told}");
        return dwell_testing::skip!("kvm", TEST, "{}", told.lines().last().unwrap_or_default());
    }
    assert_eq!(std::fs::read_to_string(KNOB).ok(), before);
    let measured: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = measured["campaigns"][0]["findings"]["rows"].as_array().unwrap();
    for arm in ["default", "never", "controlled", "default (A/A)"] {
        let requests =
            rows.iter().find(|row| row["arm"] == arm && row["figure"] == "requests_per_s").unwrap();
        assert!(requests["value"]["value"].as_f64().unwrap() > 10.0, "{requests}");
    }
}

#[test]
fn command_lines_of_the_book_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let help = Help::read(Path::new(env!("CARGO_BIN_EXE_dwell-lab")));
    let pages = [root.join("README.md"), root.join("lab/blk/README.md")];
    let book = std::fs::read_dir(root.join("docs/src")).unwrap().map(|entry| entry.unwrap().path());
    let (mut wrong, mut checked) = (vec![], 0);
    for page in pages.into_iter().chain(book).filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for line in lines(&text) {
            let code = match line {
                Line::Prose(line) => inline_code(line),
                Line::Code(_, line) => vec![line],
            };
            for call in code.into_iter().flat_map(|code| calls(code, "dwell-lab")) {
                checked += 1;
                wrong.extend(help.check(&call).map(|problem| format!("{}: {problem}", page.display())));
            }
        }
    }
    assert!(wrong.is_empty() && checked > 20, "{checked}: {wrong:#?}");
}
