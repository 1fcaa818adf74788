//! `dwell-lab sketch`: sketches beside the exact replay of their recordings.

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
