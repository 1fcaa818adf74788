//! The JSON of commands that need nothing but files has the form that the book says; `tests/change` and `tests/qemu` look at
//! those of others. `DWELL_UPDATE_DOCS=1 cargo test -p dwell` adds what is new.

use crate::report::inputs::Inputs;
use dwell_testing::schema;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

fn dwell(words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_dwell")).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

#[test]
fn the_json_of_commands_is_of_their_schemas() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let kept = tests.join("kept/0.1.0");
    let folder = tempfile::tempdir().unwrap();
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let here = |file: &str| name(&folder.path().join(file));
    let copied = Command::new("cp").arg("-r").arg(&kept).arg(here("of")).status().unwrap();
    assert!(copied.success());
    let (recording, plan, root) =
        (here("of/recording.parquet"), name(&kept.join("plan.toml")), here("of/machine"));
    let (recording, plan, root) = (recording.as_str(), plan.as_str(), root.as_str());
    let trace = name(&tests.join("timers/guest-6.12.perf.txt.gz"));
    let (timers, again, csv) = (here("timers.parquet"), here("again.parquet"), here("idle.csv"));
    let before = here("before.parquet");
    for to in [&timers, &before] {
        dwell(&["timer", "import", &trace, "-o", to]);
    }
    fs::write(&csv, "idler,start_ns,idle_ns\nvcpu0,0,1000\nvcpu0,5000,70000\n").unwrap();
    fs::create_dir(here("sketches")).unwrap();
    fs::copy(kept.join("sketch.parquet"), here("sketches/one.parquet")).unwrap();
    let (bundled, imported, sketches) = (
        name(&tests.join("../../../recordings/guest-idle.parquet")),
        here("imported.parquet"),
        here("sketches"),
    );
    // The setting in force is the best one.
    let kept_as_it_is = name(&tests.join("../../../recordings/guest-mix.parquet"));
    let domstats =
        |at: &str| name(&tests.join(format!("../../trace/tests/it/import/field/11-domstats-{at}.txt")));
    let (first, second) = (domstats("t0"), domstats("t60"));
    let inputs = Inputs::new();
    // Two with decisions and without a kernel.
    let (decided, other) = (inputs.host("decided", &["vcpu0"], 1), inputs.host("other", &["vcpu0"], 2));
    let iothread = here("iothread.parquet");
    let waits: String =
        (0..600).map(|at| format!("io0,{},{}\n", at * 100_000, 5_000 + at % 7 * 9_000)).collect();
    fs::write(here("waits.csv"), format!("idler,start_ns,idle_ns\n{waits}")).unwrap();
    dwell(&["import", "--as", "csv", &here("waits.csv"), "--layer", "iothread", "-o", &iothread]);
    let sketch = here("sketch.parquet");
    let commands: [&[&str]; 42] = [
        &["info", recording],
        &["info", &bundled],
        &["info", &decided],
        &["tune", recording, "--halt-cost", "20us"],
        &["tune", &bundled, "--layer", "guest", "--halt-cost", "20us"],
        &["tune", &bundled, "--layer", "guest", "--halt-cost", "20us", "--max-cpu", "2%"],
        &["tune", &bundled, "--layer", "guest", "--halt-cost", "20us", "--min-gain", "100%"],
        &["tune", &iothread, "--halt-cost", "20us"],
        &["tune", &decided, "--halt-cost", "20us"],
        &["replay", recording, "--halt-cost", "20us"],
        &["replay", recording, "--halt-cost", "0"],
        &["replay", &decided, "--halt-cost", "20us"],
        &["fleet", &sketches, "--halt-cost", "20us", "--kernel", "6.8.12"],
        &["fleet", &sketches, "--halt-cost", "0", "--kernel", "6.8.12"],
        &["sketch", recording, "-o", &sketch],
        &["params"],
        &["params", "--policies"],
        &["explain", "halt_poll_ns=0", "--kernel", "6.8", "--sysroot", root],
        &["explain", "halt_poll_ns=200us", "--kernel", "6.8"],
        &[
            "explain",
            "halt_poll_ns=0",
            "halt_poll_ns_grow=2",
            "halt_poll_ns=0",
            "halt_poll_ns_grow=4",
            "--kernel",
            "6.8",
        ],
        &["doctor", "--sysroot", root],
        &["status", "--sysroot", root],
        &["status", "--history", "--sysroot", root],
        &["revert", "--sysroot", root],
        &["apply", plan, "--dry-run", "--sysroot", root],
        &["apply", plan, "--sysroot", root],
        &["import", "--as", "csv", &csv, "--layer", "host", "-o", &imported],
        &["timer", "import", &trace, "-o", &again],
        &["timer", "tune", &timers],
        &["timer", "tune", &timers, "--before", &before],
        &["timer", "explain", "--kernel", "6.8", "--sysroot", root],
        &["timer", "exits", &trace],
        &["bound", &first, &second, "--between", "60s"],
        &["control", "--replay", recording, "--halt-cost", "20us"],
        &["report", recording, "--halt-cost", "20us"],
        &["report", &decided, "--halt-cost", "20us"],
        &["report", "--before", &decided, "--after", &other, "--halt-cost", "20us"],
        // What may be null.
        &["tune", &kept_as_it_is, "--halt-cost", "20us"],
        &["report", &kept_as_it_is, "--halt-cost", "20us"],
        &["report", &imported, "--halt-cost", "20us"],
        &["report", "--before", &decided, "--after", &bundled, "--halt-cost", "20us"],
        &["fleet", &sketches, "--class", "kernel", "--kernel", "6.8.12"],
    ];
    schema::check("info-timer", &dwell(&["info", &timers, "--format", "json"]));
    for command in commands {
        schema::check(&schema::name(command), &dwell(&[command, &["--format", "json"]].concat()));
    }
}

#[test]
fn the_book_lists_the_schemas() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
    let book = fs::read_to_string(docs.join("stability.md")).unwrap();
    let files = fs::read_dir(docs.join("reference/schemas")).unwrap().map(|file| file.unwrap().file_name());
    let mut files: Vec<String> = files.map(|name| name.to_str().unwrap().to_owned()).collect();
    let listed =
        book.lines().filter_map(|line| line.strip_prefix("* [`dwell ")?.split_once("(reference/schemas/"));
    let mut listed: Vec<String> = listed.map(|(_, file)| file.trim_end_matches(')').to_owned()).collect();
    files.sort();
    listed.sort();
    assert_eq!(listed, files);
}
