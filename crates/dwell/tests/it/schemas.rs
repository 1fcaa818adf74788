//! The JSON of commands that need nothing but files has the form that the book says; `tests/change` and `tests/qemu` look at
//! those of others. `DWELL_UPDATE_DOCS=1 cargo test -p dwell` adds what is new.

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
    dwell(&["timer", "import", &trace, "-o", &timers]);
    fs::write(&csv, "idler,start_ns,idle_ns\nvcpu0,0,1000\nvcpu0,5000,70000\n").unwrap();
    fs::create_dir(here("sketches")).unwrap();
    fs::copy(kept.join("sketch.parquet"), here("sketches/one.parquet")).unwrap();
    let (bundled, imported, sketches) = (
        name(&tests.join("../../../recordings/guest-idle.parquet")),
        here("imported.parquet"),
        here("sketches"),
    );
    let recordings = name(folder.path().join("of").as_path());
    let domstats =
        |at: &str| name(&tests.join(format!("../../trace/tests/it/import/field/11-domstats-{at}.txt")));
    let (first, second) = (domstats("t0"), domstats("t60"));
    let commands: [&[&str]; 24] = [
        &["info", recording],
        &["info", &bundled],
        &["tune", recording, "--halt-cost", "20us"],
        &["tune", &bundled, "--layer", "guest", "--halt-cost", "20us"],
        &["replay", recording, "--halt-cost", "20us"],
        &["study", &recordings, "--halt-cost", "20us"],
        &["fleet", &sketches, "--halt-cost", "20us", "--kernel", "6.8.12"],
        &["sketch", "--check", recording],
        &["params"],
        &["explain", "halt_poll_ns=0", "--kernel", "6.8", "--sysroot", root],
        &["doctor", "--sysroot", root],
        &["status", "--sysroot", root],
        &["status", "--history", "--sysroot", root],
        &["revert", "--sysroot", root],
        &["apply", plan, "--dry-run", "--sysroot", root],
        &["apply", plan, "--sysroot", root],
        &["import", "--as", "csv", &csv, "--layer", "host", "-o", &imported],
        &["timer", "import", &trace, "-o", &again],
        &["timer", "tune", &timers],
        &["timer", "explain", "--kernel", "6.8", "--sysroot", root],
        &["timer", "exits", &trace],
        &["bound", &first, &second, "--between", "60s"],
        &["control", "--replay", recording, "--halt-cost", "20us"],
        &["report", recording, "--halt-cost", "20us"],
    ];
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
