//! A text of metrics, as a server has it, and the metric that a user names: a sum, or an error.

use dwell_knobs::open_metrics;

/// Runs the target: the first line is the name.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (name, text) = text.split_once('\n').unwrap_or((text, ""));
    if let Ok(sum) = open_metrics::sum(name, text) {
        assert!(!sum.is_nan(), "{name}");
    }
}
