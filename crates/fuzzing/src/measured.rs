//! What a command is said to have measured, any text: an error, or rows.

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(measured) = dwell_report::measured::parse(text) else { return };
    let json = serde_json::to_string(&measured).unwrap();
    assert!(json.len() >= 2);
}
