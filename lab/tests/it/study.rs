//! `dwell-lab study`: policies over the recordings of a folder.

use dwell_lab::study::Subject;
use dwell_recording::{Episode, Layer, Metadata, Packing, Writer};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn study(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell-lab"));
    command.arg("study").arg(folder).args(args).output().expect("the program can be started")
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let output = study(folder, &[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("stdout is JSON")
}

fn text(folder: &Path, args: &[&str]) -> String {
    let output = study(folder, args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn refused(folder: &Path) -> String {
    let output = study(folder, &[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    stderr(&output)
}

fn refused_in_one_line(folder: &Path) -> String {
    let told = refused(folder);
    assert_eq!(told.lines().count(), 1, "{told}");
    told
}

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recordings")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder can be made")
}

fn copy(name: &str, to: &Path) {
    std::fs::copy(recordings().join(name), to).expect("a recording can be copied");
}

/// A recording of one idler, of starts and lengths \[ns\].
fn record(to: &Path, episodes: impl IntoIterator<Item = (u64, u64)>) {
    let file = std::fs::File::create(to).unwrap();
    let mut writer = Writer::new(file, Metadata::new(Layer::Host), Packing::default()).unwrap();
    for (start_ns, idle_ns) in episodes {
        writer.push(&Episode::new("vcpu0", start_ns, idle_ns)).unwrap();
    }
    writer.close().unwrap();
}

/// Rows of one idler that idles for `idle_ns`, 10 us apart.
fn spaced(idle_ns: impl Fn(u64) -> u64) -> impl Iterator<Item = (u64, u64)> {
    (0..2_000).map(move |at| (at * 10_000, idle_ns(at)))
}

/// The mean of a policy over all recordings at one price.
fn mean(at: &Value, policy: &str) -> f64 {
    let rows = at["summary"].as_array().unwrap();
    let row = rows.iter().find(|row| row["policy"] == policy).unwrap();
    row["geometric_mean"].as_f64().unwrap()
}

#[test]
fn the_leader_is_near_the_optimum_and_below_what_is_there_today() {
    let studied = json(&recordings(), &[]);
    let prices = studied["prices"].as_array().unwrap();
    assert_eq!(prices.len(), 3);
    for (at, (halt_cost, limit)) in prices.iter().zip([(5_000, 1.05), (20_000, 1.09), (50_000, 1.11)]) {
        assert_eq!(at["halt_cost_ns"], halt_cost);
        let leader = mean(at, "leader");
        assert!((1.0..=limit).contains(&leader), "{halt_cost}: {leader}");
        for other in ["never", "kvm", "haltpoll", "ski rental", "savings", "best kvm"] {
            assert!(leader < mean(at, other), "{halt_cost}: {leader}, {other} {}", mean(at, other));
        }
        // At 5 us hardly anything is worth a poll, and one look before each halt is all there is to gain.
        assert!(leader < mean(at, "best fixed") + 2e-4, "{leader} {}", mean(at, "best fixed"));
        assert!(mean(at, "savings") < mean(at, "kvm").min(mean(at, "haltpoll")));
        let worst = at["summary"].as_array().unwrap().iter().find(|row| row["policy"] == "leader").unwrap();
        assert!(worst["worst"].as_f64().unwrap() < 2.0 && worst["worst_recording"].is_string());
    }
}

#[test]
fn it_is_said_on_which_recordings_the_leader_was_fitted() {
    let studied = json(&recordings(), &["--halt-cost", "20us"]);
    let recordings = studied["prices"][0]["recordings"].as_array().unwrap();
    assert_eq!(recordings.len(), 13);
    for (place, one) in recordings.iter().enumerate() {
        // The first, the third, and so on, in the order of their names.
        assert_eq!(one["fitted"], place % 2 == 0, "{one}");
    }
    assert!(studied["split"].as_str().unwrap().contains("7 of the 13"));
}

#[test]
fn the_latency_is_taken_out_of_idle_times_that_include_it_and_of_no_others() {
    let bound = |latency: &str| {
        let studied = json(&recordings(), &["--halt-cost", "20us", "--wakeup-latency", latency]);
        studied["prices"][0]["recordings"].clone()
    };
    let (as_recorded, without) = (bound("0"), bound("5us"));
    for (before, after) in as_recorded.as_array().unwrap().iter().zip(without.as_array().unwrap()) {
        let [before_ns, after_ns] = [before, after].map(|one| one["optimum_cost_ns"].as_u64().unwrap());
        let includes = before["idle_includes"] == "wake";
        assert_eq!(after_ns < before_ns, includes, "{before}");
        assert!(includes || after_ns == before_ns);
    }
}

#[test]
fn what_cannot_be_read_is_named_and_the_others_are_compared() {
    let folder = folder();
    copy("guest-idle.parquet", &folder.path().join("a.parquet"));
    std::fs::write(folder.path().join("b.parquet"), "no recording").unwrap();
    std::fs::write(folder.path().join("c.txt"), "not looked at").unwrap();
    let output = study(folder.path(), &["--halt-cost", "20us", "--format", "csv"]);
    assert!(output.status.success());
    let told = stderr(&output);
    assert!(told.contains("b.parquet") && !told.contains("c.txt"), "{told}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1 + Subject::all().len(), "{text}");
    std::fs::remove_file(folder.path().join("a.parquet")).unwrap();
    assert!(refused_in_one_line(folder.path()).contains("b.parquet"));
    assert!(refused_in_one_line(Path::new("/nowhere")).contains("/nowhere"));
}

#[test]
fn folders_without_episodes_are_one_sentence() {
    let folder = folder();
    let file = folder.path().join("none.parquet");
    assert!(refused_in_one_line(folder.path()).contains("no recording"));
    record(&file, []);
    let line = refused_in_one_line(folder.path());
    assert!(line.contains("none.parquet") && line.contains("no episodes"), "{line}");
    std::fs::copy(&file, folder.path().join("too.parquet")).unwrap();
    let lines = refused(folder.path());
    assert!(
        lines.matches("no episodes").count() == 2 && lines.contains("none of its 2 recordings"),
        "{lines}"
    );
}

#[test]
fn episodes_that_overlap_are_refused_where_they_cannot_be_and_counted_where_they_can() {
    let folder = folder();
    record(&folder.path().join("too-long.parquet"), spaced(|_| 11_000));
    record(&folder.path().join("some.parquet"), spaced(|at| if at % 500 == 0 { 12_000 } else { 6_000 }));
    let studied = json(folder.path(), &["--halt-cost", "20us"]);
    let notes = studied["notes"].to_string();
    assert!(notes.contains("some: 4 of 2,000 episodes start before the previous one"), "{notes}");
    assert!(studied["unreadable"].to_string().contains("cannot idle for"), "{studied}");
}

#[test]
fn recordings_without_the_time_recorded_are_named_and_a_name_stays_on_its_line() {
    let folder = folder();
    record(&folder.path().join("od\nd.parquet"), spaced(|_| 5_000).take(200));
    copy("guest-idle.parquet", &folder.path().join("other.parquet"));
    let text = text(folder.path(), &["--halt-cost", "20us"]);
    assert!(text.contains("od\\nd") && !text.contains("od\nd"), "{text}");
    let text = text.replace('\n', " ");
    assert_eq!(text.matches("do not contain the time recorded").count(), 1, "{text}");
    assert!(!text.contains("fewer than 128"), "{text}");
}

#[test]
fn options_that_cannot_be_are_refused_with_what_can() {
    for (args, says) in [
        (["--halt-cost", "5"], "write 5s, "),
        (["--kernel", "4.19"], "5.4 to 7.3"),
        (["--kernel", "new"], "5.4 to 7.3"),
    ] {
        let output = study(&recordings(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(says), "{args:?}: {}", stderr(&output));
    }
}
