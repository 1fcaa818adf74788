//! What a command is said to have measured, any text: an error, or rows.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/dwell/src/command/report/measured.rs"]
mod measured;

fuzz_target!(|text: &str| {
    let Ok(measured) = measured::parse("fuzz".to_owned(), text) else { return };
    let json = serde_json::to_string(&measured).unwrap();
    assert!(json.len() >= 2);
});
