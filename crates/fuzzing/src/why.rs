//! A saved bill, any text: an error, or lines that add up and are the same when they are saved again.

use dwell_timer::why::Report;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(report) = Report::parse(text) else { return };
    let again = serde_json::to_string(&report).unwrap();
    assert_eq!(Report::parse(&again).unwrap(), report);
}
