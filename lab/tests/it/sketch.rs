//! `dwell-lab sketch`: sketches beside the exact replay of their recordings.

use dwell_recording::{Episode, Layer, Metadata, Writer};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn the_bounds_of_a_sketch_hold_and_its_settings_are_exact() {
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recordings/guest-redis_c1.parquet");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell-lab"));
    let output =
        command.args(["sketch", "--exit-code", "--format", "json"]).arg(&recording).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [one] = checked.as_array().unwrap().as_slice() else { panic!("{checked}") };
    assert_eq!((&one["largest_error"], &one["holds"]), (&0.0.into(), &true.into()), "{one}");
    assert!(one["settings"].as_u64().unwrap() > 100 && one["bytes"].as_u64().unwrap() < 100_000, "{one}");
}

#[test]
fn a_recording_of_which_there_is_no_sketch_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("centuries.parquet");
    let mut writer = Writer::create(&path, Metadata::new(Layer::Host)).unwrap();
    writer.push(&Episode::new("vcpu0", 0, u64::MAX)).unwrap();
    writer.finish().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_dwell-lab")).arg("sketch").arg(&path).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.starts_with(&format!("dwell-lab: cannot make a sketch of {}: ", path.display())), "{told}");
}
