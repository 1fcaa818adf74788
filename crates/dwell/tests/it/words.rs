//! What people read: the short help of every command, and what commands print at 80 and 120 columns, as
//! snapshots, so that a change of words is seen in review. The long help is the book's command reference,
//! which `docs.rs` checks.
//!
//! `INSTA_UPDATE=always cargo test -p dwell --test it words::` writes new snapshots.

use dwell_policy::timer::Revision;
use dwell_policy::version::Version;
use dwell_recording::SettingValue;
use dwell_recording::timer::TimerRecording;
use dwell_testing::fixture::{self, Fixture};
use dwell_testing::machine::Fake;
use dwell_testing::timers::{self, Checked};
use dwell_timer::check::check;
use dwell_timer::predict::{HostSetup, Predictor, in_force};
use dwell_timer::tally::Tally;
use dwell_timer::{Pcpu, TimerVm};
use std::path::Path;
use std::process::{Command, Output};

/// Runs the program in the root of the workspace, without a home in which it might find a calibration.
fn dwell(args: &[&str], columns: usize) -> Output {
    let home = tempfile::tempdir().expect("a folder can be made");
    Command::new(env!("CARGO_BIN_EXE_dwell"))
        .args(args)
        .env("COLUMNS", columns.to_string())
        .env("NO_COLOR", "1")
        .env("HOME", home.path())
        .env_remove("XDG_STATE_HOME")
        .env_remove("XDG_DATA_HOME")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_CACHE_HOME")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .expect("the program can be started")
}

fn printed(args: &[&str], columns: usize) -> String {
    let output = dwell(args, columns);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("stdout is UTF-8").replace(env!("CARGO_PKG_VERSION"), "VERSION")
}

/// Compares a text with the snapshot of this name. Times since a change are replaced.
fn assert_snapshot(name: &str, text: &str) {
    let text: String = text.split_inclusive('\n').map(without_age).collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// A line with `0 s ago` for any number of seconds.
fn without_age(line: &str) -> String {
    let Some((before, after)) = line.split_once(" s ago") else { return line.to_owned() };
    format!("{}0 s ago{after}", before.trim_end_matches(|c: char| c.is_ascii_digit()))
}

/// Every command, sub-commands of sub-commands too.
fn commands(above: &[String]) -> Vec<Vec<String>> {
    let args: Vec<&str> = above.iter().map(String::as_str).chain(["--help"]).collect();
    let help = printed(&args, 100);
    // Those of the program are in groups.
    let listed = help
        .lines()
        .skip_while(|line| !["Everyday:", "Commands:"].contains(line))
        .take_while(|line| !["Options:", "Arguments:"].contains(line));
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let mut all = vec![above.to_vec()];
    for name in names {
        all.extend(commands(&[above, &[name.to_owned()]].concat()));
    }
    all
}

#[test]
fn help_begins_with_a_verb_phrase_of_at_most_80_characters() {
    let all = commands(&[]);
    assert!(all.len() > 30, "{all:?}");
    for command in &all {
        let args: Vec<&str> = command.iter().map(String::as_str).chain(["-h"]).collect();
        let short = printed(&args, 100);
        let name = [&["dwell".to_owned()], command.as_slice()].concat().join("-");
        assert_snapshot(&format!("help-{name}"), &short);
        let first = short.lines().next().unwrap_or_default();
        let verb = first.chars().next().is_some_and(char::is_uppercase) && !first.ends_with('.');
        assert!(first.chars().count() <= 80 && verb, "{command:?}: {first}");
    }
}

const GUEST: &str = "recordings/guest-mix.parquet";
const EVENT: &str = "recordings/event-pgbench_sel1.parquet";

/// Prints at both widths, keeps what is printed as a snapshot, and checks that tables fit. Paths of `folder`
/// are replaced.
fn assert_kept(name: &str, args: &[&str], folder: &Path) {
    for columns in [80, 120] {
        let folder = folder.to_str().expect("the path is UTF-8");
        let text = printed(args, columns).replace(folder, "FOLDER");
        assert_fits(args, columns, &text);
        assert_snapshot(&format!("{name}-{columns}"), &text);
    }
}

#[test]
fn parameters_policies_and_explanations() {
    let cases: [(&str, &[&str]); 4] = [
        ("params", &["params", "--layer", "host", "--kernel", "6.18"]),
        ("params-iothread", &["params", "--layer", "iothread", "--qemu", "11.1"]),
        ("policies", &["params", "--policies"]),
        ("explain", &["explain", "halt_poll_ns=0", "halt_poll_ns_shrink=2", "--kernel", "5.15"]),
    ];
    for (name, args) in cases {
        assert_kept(name, args, Path::new("/nowhere"));
    }
}

#[test]
fn who_may_post_timers() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let root = folder.path().to_str().expect("the path is UTF-8");
    let vm = ["--pcpu", "isolated", "--kernel", "5.10.114", "--upgrade", "6.18", "--sysroot", root];
    let explain = [&["timer", "explain", "--pi-inject-timer", "1"], vm.as_slice()].concat();
    assert_kept("timer-explain-upgrade", &explain, folder.path());
    let vm = ["--apicv", "off", "--disable-exits", "hlt,mwait", "--kernel", "6.18", "--sysroot", root];
    let explain = [&["timer", "explain"], vm.as_slice()].concat();
    assert_kept("timer-explain", &explain, folder.path());
    // In CSV, one table: the rules, or the upgrade that was asked for.
    let csv = printed(&[explain.as_slice(), &["--format", "csv"]].concat(), 80);
    assert_eq!(
        (csv.lines().count(), csv.lines().next().map(|head| head.starts_with("rule,"))),
        (5, Some(true))
    );
}

#[test]
fn advice_on_timers() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("timer.parquet");
    let (before, after) = timers::PATCH_OF_2019;
    timers::exits_by_interrupts(before, after).write(&file).expect("the recording is written");
    let file = file.to_str().expect("the path is UTF-8");
    let vm =
        ["--kernel", "5.10.114", "--disable-exits", "mwait", "--pcpu", "isolated", "--tsc-khz", "2000000"];
    let tune = [&["timer", "tune", file], vm.as_slice()].concat();
    assert_kept("timer-tune", &tune, folder.path());
    let by_reason = [tune.as_slice(), &["--by-reason"]].concat();
    assert_kept("timer-tune-by-reason", &by_reason, folder.path());
    // The experiment of the patch of 2019: the exits by interrupts of a second, as recorded and under posting.
    let csv = printed(&[by_reason.as_slice(), &["--format", "csv"]].concat(), 80);
    let exits = |setup: &str| {
        let row = |line: &&str| line.starts_with("EXTERNAL_INTERRUPT,") && line.ends_with(setup);
        csv.lines().find(row).and_then(|line| line.split(',').nth(1)).map(str::to_owned)
    };
    assert_eq!(exits("as recorded"), Some(before.to_string()));
    assert_eq!(exits(",pi_inject_timer"), Some(after.to_string()), "{csv}");
    // What can be set at run time becomes a plan.
    let path = folder.path().join("plan.toml");
    let with_plan = [tune.as_slice(), &["--plan", path.to_str().expect("the path is UTF-8")]].concat();
    printed(&with_plan, 80);
    let plan = std::fs::read_to_string(&path).expect("the plan is there");
    let plan = dwell_knobs::plan::Plan::from_toml(&plan).expect("it fits together");
    let writes: Vec<_> =
        plan.writes.iter().map(|write| (write.place.to_string(), (write.from, write.to))).collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert!(writes[0].0.ends_with("/sys/module/kvm/parameters/pi_inject_timer"), "{writes:?}");
    assert_eq!(writes[0].1, (0, 1));
    // Commands about polling refuse it, and a recording of idle times has no timers: each names the right command.
    for (args, right) in [
        (vec!["tune", file], "dwell timer tune"),
        (vec!["report", file], "dwell timer tune"),
        (vec!["replay", file, "--layer", "host"], "dwell timer tune"),
        (vec!["control", "--replay", file], "dwell timer tune"),
        (vec!["tune", GUEST, "--layer", "timer"], "dwell timer"),
        (vec!["timer", "tune", GUEST], "dwell timer record"),
    ] {
        let output = dwell(&args, 80);
        assert!(!output.status.success(), "{args:?}");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(why.contains(right), "{args:?}: {why}");
    }
}

#[test]
fn figures_of_a_recording() {
    let cases: [(&str, &[&str]); 5] = [
        ("info", &["info", GUEST]),
        ("tune", &["tune", EVENT, "--layer", "host", "--kernel", "6.18", "--halt-cost", "20us"]),
        ("tune-front", &["tune", EVENT, "--layer", "host", "--kernel", "6.18", "--max-cpu", "2%", "--front"]),
        ("replay", &["replay", GUEST, "--layer", "host", "--kernel", "6.18", "--policy", "leader@20us"]),
        ("replay-stacked", &["replay", GUEST, "--layer", "guest+host", "--kernel", "6.18"]),
    ];
    for (name, args) in cases {
        assert_kept(name, args, Path::new("/nowhere"));
    }
}

const EXITS: &str = "\
CPU 0/KVM  7 [000]     1.000001000: kvm:kvm_entry: vcpu 0, rip 0x1
CPU 0/KVM  7 [000]     1.000002000: kvm:kvm_exit: vcpu 0 reason HLT rip 0x1 info1 0x0 info2 0x0
CPU 0/KVM  7 [000]     1.000012000: kvm:kvm_entry: vcpu 0, rip 0x1
CPU 0/KVM  7 [000]     1.000013000: kvm:kvm_exit: vcpu 0 reason MSR_WRITE rip 0x1 info1 0x0 info2 0x0
CPU 0/KVM  7 [000]     1.000015000: kvm:kvm_entry: vcpu 0, rip 0x1
";

#[test]
fn exits_of_vcpus() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = |name: &str| folder.path().join(name).to_str().expect("the path is UTF-8").to_owned();
    let exits = path("exits.txt");
    std::fs::write(&exits, EXITS).expect("a file can be written");
    // As wide as perf's own table.
    assert_snapshot("timer-exits", &printed(&["timer", "exits", &exits], 80));
}

/// A plan for a guest is applied, listed and reverted, on a machine of files.
#[test]
fn a_change_from_apply_to_revert() {
    let fixture = Fixture::guest();
    let (root, plan) = (fixture.path("/"), fixture.path("/plan.toml"));
    std::fs::write(&plan, fixture::guest_plan().to_toml().expect("a plan is text"))
        .expect("it can be written");
    let (root, plan) = (root.to_str().expect("UTF-8"), plan.to_str().expect("UTF-8"));
    let steps: [(&str, &[&str]); 6] = [
        ("apply-dry-run", &["apply", plan, "--dry-run"]),
        ("apply", &["apply", plan]),
        ("status", &["status"]),
        ("apply-again", &["apply", plan]),
        ("revert", &["revert"]),
        ("history", &["status", "--history"]),
    ];
    for (name, args) in steps {
        let text = printed(&[args, &["--sysroot", root]].concat(), 80);
        let text = text.replace(plan, "PLAN").replace(root, "/");
        assert_fits(args, 80, &text);
        assert_snapshot(name, &text);
    }
}

/// A guest's timers as perf recorded them, without a cut: 700 that fire and some that do not, on Linux 6.12
/// with emulated SVM, by the job `every_timer_of_a_vcpu_is_the_models` of the test `box` with
/// `DWELL_BOX_TIMERS=700`. Beside it is what `perf kvm stat report` printed of the same trace.
const TIMERS: &str = "crates/dwell/tests/timers/guest-6.12.perf.txt.gz";
const TIMERS_BY_PERF: &[u8] = include_bytes!("../timers/guest-6.12.perf-kvm-stat.txt");

#[test]
fn every_recorded_timer_is_the_models() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("timer.parquet");
    let file = path.to_str().expect("the path is UTF-8");
    printed(&["timer", "import", TIMERS, "-o", file], 80);
    // The command of the trace is one word, and not wrapped.
    assert_snapshot("info-recorded-timers", &printed(&["info", file], 120).replace(file, "FILE"));
    // The table is as wide as perf's.
    assert_snapshot("timer-exits-recorded", &printed(&["timer", "exits", file], 120));
    let tune = ["timer", "tune", file, "--apicv", "off", "--preemption-timer", "off"];
    assert_kept("timer-tune-recorded", &tune, folder.path());
    // Byte for byte what perf prints of the trace.
    for input in [TIMERS, file] {
        let found = dwell(&["timer", "exits", "--as-perf", input], 80);
        assert_eq!(found.stdout, TIMERS_BY_PERF, "{input}: {}", String::from_utf8_lossy(&found.stderr));
    }

    let recording = TimerRecording::open(&path).expect("it can be read");
    assert_eq!(recording.metadata.lost.events.unwrap_or(0), 0, "{:?}", recording.metadata.lost);
    let kernel = recording.metadata.kernel.as_deref().and_then(Version::parse).expect("the trace has it");
    let checked = Checked::of(&recording, Revision::of(kernel).expect("a kernel that is known"));
    assert_eq!(checked.deviations, [], "{checked:?}");
    assert!(checked.timers >= 700 && checked.by_fire.len() >= 3, "{checked:?}");
    // Models that are wrong: of where the vCPU is, and of what carries its timers.
    assert!(checked.deviations_if_off > checked.timers / 10, "{checked:?}");
    let vm = TimerVm {
        pi_inject_timer: false,
        apicv: false,
        preemption_timer: false,
        mwait_in_guest: false,
        hlt_in_guest: false,
        pcpu: Pcpu::Housekeeping,
        timer_migration: true,
    };
    let tally = Tally::of(&recording);
    let mut setup = in_force(&tally, kernel, &vm);
    let deviations =
        |setup: &HostSetup| check(&recording, &Predictor::new(&tally, *setup).unwrap()).deviations();
    assert_eq!(deviations(&setup), 0);
    setup.vm.preemption_timer = true;
    assert!(deviations(&setup) > checked.timers / 10);
}

/// A host with KVM, as files in a folder, with these values of parameters.
fn machine(values: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let fake = Fake::quiet("6.18.44");
    values.iter().for_each(|(parameter, value)| fake.set(&format!("/sys/module/{parameter}"), value));
    fake.write_below(folder.path()).expect("the files can be written");
    folder
}

#[test]
fn posting_is_planned_applied_and_reverted() {
    let apicv = "kvm_intel/parameters/enable_apicv";
    let kvm = [("pi_inject_timer", "0"), ("lapic_timer_advance", "Y"), ("min_timer_period_us", "200")];
    let kvm = kvm.map(|(name, value)| (format!("kvm/parameters/{name}"), value));
    let mut values: Vec<(&str, &str)> = kvm.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    values.push((apicv, "Y"));
    let folder = machine(&values);
    let text = |name: &str| folder.path().join(name).to_str().expect("the path is UTF-8").to_owned();
    let (root, file, plan) = (text(""), text("timer.parquet"), text("plan.toml"));
    timers::exits_by_interrupts(1_000, 100).write(Path::new(&file)).expect("the recording is written");
    let vm = [
        "--kernel",
        "6.18",
        "--disable-exits",
        "mwait",
        "--pcpu",
        "isolated",
        "--plan",
        &plan,
        "--min-gain",
        "0",
    ];
    printed(&[&["timer", "tune", &file], vm.as_slice()].concat(), 80);
    let value = || {
        let path = folder.path().join("sys/module/kvm/parameters/pi_inject_timer");
        let text = std::fs::read_to_string(path).expect("the parameter is there");
        matches!(text.trim(), "1" | "Y")
    };
    assert!(!value());
    printed(&["apply", &plan, "--sysroot", &root], 80);
    assert!(value());
    printed(&["revert", "--sysroot", &root], 80);
    assert!(!value());
    // Without APICv it would have no effect.
    std::fs::write(folder.path().join("sys/module").join(apicv), "N\n").expect("it can be written");
    let refused = dwell(&["apply", &plan, "--sysroot", &root], 80);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("APICv"), "{why}");
    assert!(!value());
}

#[test]
fn a_better_advance_is_planned_applied_and_reverted_where_it_can_be_written() {
    // Off, timers are 3 us late.
    let late = |parameter: &str, value: SettingValue| {
        let mut recording = timers::exits_by_interrupts(1_000, 1_000);
        recording.rows.timers.iter_mut().for_each(|timer| timer.late_tsc = Some(6_000));
        recording.metadata.settings[0].values.insert(parameter.to_owned(), value);
        recording
    };
    let kvm = "kvm/parameters/lapic_timer_advance_ns";
    let folder = tempfile::tempdir().expect("a folder can be made");
    let fake = Fake::quiet("5.10.200");
    let posting = [("kvm/parameters/pi_inject_timer", "N"), ("kvm/parameters/min_timer_period_us", "200")];
    for (parameter, value) in posting.into_iter().chain([(kvm, "0")]) {
        fake.set(&format!("/sys/module/{parameter}"), value);
    }
    fake.write_below(folder.path()).expect("the files can be written");
    let text = |name: &str| folder.path().join(name).to_str().expect("the path is UTF-8").to_owned();
    let (root, file, plan) = (text(""), text("timer.parquet"), text("plan.toml"));
    let off = late("lapic_timer_advance_ns", SettingValue::Number(0));
    off.write(Path::new(&file)).expect("the recording is written");
    let tune =
        ["timer", "tune", &file, "--tsc-khz", "2000000", "--apicv", "off", "--preemption-timer", "off"];
    let advice = printed(&[tune.as_slice(), &["--plan", &plan, "--kernel", "5.10.200"]].concat(), 200);
    assert!(advice.contains("Advance: lapic_timer_advance_ns=-1 (adaptive)"), "{advice}");
    let value = || std::fs::read_to_string(folder.path().join("sys/module").join(kvm)).expect("it is there");
    printed(&["apply", &plan, "--sysroot", &root], 80);
    assert_eq!(value().trim(), "-1");
    printed(&["revert", "--sysroot", &root], 80);
    assert_eq!(value().trim(), "0");

    // From 6.12 on it is read-only: a line, and no plan.
    let off = late("lapic_timer_advance", SettingValue::Flag(false));
    off.write(Path::new(&file)).expect("the recording is written");
    std::fs::remove_file(&plan).expect("the plan was written");
    let advice = printed(&[tune.as_slice(), &["--plan", &plan, "--kernel", "6.12.95"]].concat(), 200);
    assert!(advice.contains("Advance: lapic_timer_advance=Y (adaptive)"), "{advice}");
    assert!(advice.contains("read-only") && !Path::new(&plan).exists(), "{advice}");
}

#[test]
fn doctor_on_a_machine_of_files() {
    let grow_start = ("kvm/parameters/halt_poll_ns_grow_start", "0");
    let folder = machine(&[grow_start, ("haltpoll/parameters/guest_halt_poll_shrink", "1")]);
    let path = folder.path().to_str().expect("the path is UTF-8");
    let text = printed(&["doctor", "--sysroot", path], 120);
    assert_snapshot("doctor", &text.replace(path, "FOLDER"));
}

#[test]
fn without_a_change_status_and_history_say_so() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let root = folder.path().to_str().expect("the path is UTF-8");
    for (name, command) in [("status", &["status"][..]), ("history", &["status", "--history"])] {
        let text = printed(&[command, &["--sysroot", root]].concat(), 80);
        assert_snapshot(&format!("{name}-empty"), &text);
    }
}

#[test]
fn every_column_is_there_with_wide_and_in_csv() {
    let args = ["replay", GUEST, "--layer", "host", "--kernel", "6.18"];
    let narrow = printed(&args, 80);
    let wide = printed(&[&args[..], &["--wide"]].concat(), 80);
    assert!(narrow.contains("--wide also shows") && !narrow.contains("total cost  "), "{narrow}");
    assert!(wide.contains("total cost") && !wide.contains("--wide"), "{wide}");
    let csv = printed(&[&args[..], &["--format", "csv"]].concat(), 80);
    let columns = csv.lines().next().map_or(0, |line| line.split(',').count());
    assert_eq!(columns, 13, "{csv}");
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
}

#[test]
fn completions_have_the_values_of_layers_kernels_and_policies() {
    let bash = printed(&["generate", "bash"], 80);
    for values in ["host guest driver iothread guest+host", "5.4 5.10 5.15 6.1", "7.2 8.2", "ski-rental"] {
        assert!(bash.contains(values), "{values}");
    }
}

/// They offered two layers at once, and refused them.
#[test]
fn commands_offer_the_layers_that_they_accept() {
    for (command, file) in [("control", "--replay"), ("tune", GUEST), ("report", GUEST)] {
        let help = printed(&[command, "--help"], 120);
        assert!(help.contains("[possible values: host, guest, driver, iothread]"), "{help}");
        let output = dwell(&[command, "--layer", "guest+host", file, GUEST], 80);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("give one layer: host, guest, driver or iothread"), "{error}");
        assert!(error.contains("`dwell tune GUEST --host HOST`"), "{error}");
    }
}

#[test]
fn manual_pages_are_clean_and_there_is_one_for_each_command() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let out = folder.path().to_str().expect("the path is UTF-8");
    printed(&["generate", "man", "--out", out], 80);
    let all = commands(&[]);
    let page = |command: &Vec<String>| {
        let name = [&["dwell".to_owned()], command.as_slice()].concat().join("-");
        folder.path().join(format!("{name}.1"))
    };
    for command in &all {
        assert!(page(command).exists(), "{command:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("it can be listed").count(), all.len());
    for command in &all {
        // In roff a hyphen is `\-`.
        let text = std::fs::read_to_string(page(command)).expect("it can be read").replace('\\', "");
        for named in text.split_whitespace().filter_map(|word| word.strip_suffix("(1)")) {
            assert!(folder.path().join(format!("{named}.1")).exists(), "{command:?}: {named}(1)");
        }
        let Ok(lint) = Command::new("mandoc").args(["-T", "lint", "-W", "style"]).arg(page(command)).output()
        else {
            dwell_testing::skip!("programs", "manual pages are clean", "no mandoc");
            return;
        };
        let found = String::from_utf8_lossy(&lint.stdout);
        // A page made from a program's help has no date of its own.
        let found: Vec<&str> = found.lines().filter(|line| !line.contains("missing date")).collect();
        assert!(found.is_empty(), "{command:?}: {found:#?}");
    }
}

/// No line is wider than the terminal, except those to type.
fn assert_fits(args: &[&str], columns: usize, text: &str) {
    for line in text.lines().filter(|line| is_of_a_table(line)) {
        assert!(line.chars().count() <= columns, "{args:?} at {columns}: {line}");
    }
}

/// Lines to type are as long as they are, and so are paths.
fn is_of_a_table(line: &str) -> bool {
    !["echo ", "options ", "kvm.", "haltpoll.", "KVM_", "#", "made with"]
        .iter()
        .any(|begin| line.starts_with(begin))
}
