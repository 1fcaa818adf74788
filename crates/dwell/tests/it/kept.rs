//! Files that earlier versions wrote are read, and what they changed is reverted: see `tests/kept/README.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of the versions.
fn versions() -> Vec<PathBuf> {
    let all = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept")).unwrap();
    let folders: Vec<PathBuf> = all.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect();
    assert!(!folders.is_empty());
    folders
}

/// What is printed on success.
fn good(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_dwell")).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

const WINDOW: &str = "sys/module/kvm/parameters/halt_poll_ns";

/// The machine as it was after the change, as a copy.
fn machine(version: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let copied =
        Command::new("cp").arg("-r").arg(version.join("machine/.")).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    copy
}

#[test]
fn recordings_sketches_and_plans_of_every_version_are_read() {
    for version in versions() {
        let at = |file: &str| version.join(file);
        let tuned = good(&["tune", name(&at("recording.parquet")), "--halt-cost", "20us", "--format", "csv"]);
        assert!(tuned.lines().any(|line| line.starts_with("recommended,")), "{version:?}: {tuned}");
        let of_vms = tempfile::tempdir().unwrap();
        fs::copy(at("sketch.parquet"), of_vms.path().join("sketch.parquet")).unwrap();
        let fleet = good(&[
            "fleet",
            name(of_vms.path()),
            "--halt-cost",
            "20us",
            "--kernel",
            "6.8.12",
            "--format",
            "json",
        ]);
        assert!(fleet.contains("\"halt_poll_ns\""), "{version:?}: {fleet}");
        let machine = machine(&version);
        fs::write(machine.path().join(WINDOW), "200000\n").unwrap();
        let plan = at("plan.toml");
        let words = ["apply", name(&plan), "--dry-run", "--format", "csv", "--sysroot", name(machine.path())];
        let shown = good(&words);
        assert!(shown.contains("halt_poll_ns,200000,0,"), "{version:?}: {shown}");
    }
}

/// An upgrade while a change is in force: the journal of the older program is the newer one's.
#[test]
fn what_an_earlier_version_changed_is_reverted() {
    for version in versions() {
        let machine = machine(&version);
        let below = |file: &str| machine.path().join(file);
        let status = good(&["status", "--sysroot", name(machine.path()), "--format", "csv"]);
        assert!(status.contains("halt_poll_ns,200000,0,"), "{version:?}: {status}");
        assert_eq!(fs::read_to_string(below(WINDOW)).unwrap().trim(), "0");
        assert!(below("etc/modprobe.d/dwell-000001.conf").exists());
        good(&["revert", "--sysroot", name(machine.path())]);
        assert_eq!(fs::read_to_string(below(WINDOW)).unwrap().trim(), "200000");
        assert!(!below("etc/modprobe.d/dwell-000001.conf").exists());
        assert!(good(&["status", "--sysroot", name(machine.path())]).contains("nothing"));
    }
}
