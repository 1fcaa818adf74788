//! What a running controller answers, for a person.

use crate::settings::pairs;
use crate::state::seconds_ago;
use dwell_report::{duration, percent};
use dwell_stats::whole::whole;
use serde_json::Value;

/// The answer to `status`, for a person.
pub(super) fn text(status: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let mut text = format!(
        "process {}, for {}, halt cost {}\n",
        status["pid"],
        duration(1e9 * number(&status["for_s"])),
        duration(number(&status["halt_cost_ns"]))
    );
    for (line, layer) in of_status(status).iter().zip(status["layers"].as_array().into_iter().flatten()) {
        text += line;
        let latency = layer["wakeup_latency_ns"].as_f64();
        let latency = latency.map_or(String::new(), |ns| format!(", wakeup latency {}", duration(ns)));
        text += &format!(
            "\n  {} changes, {} decisions, {} events lost, own CPU time {}{latency}\n",
            layer["changes"],
            layer["decisions"],
            layer["lost"],
            percent(number(&layer["cpu_share"]))
        );
        if let Some(why) = layer["causes_failed"].as_str() {
            text += &format!("  what wakes tasks cannot be recorded: {why}\n");
        }
    }
    for socket in status["waiting_for"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text += &format!("waiting for the QEMU at {socket}\n");
    }
    text
}

/// A line for each layer of the answer to `status`: its state, the setting in force, what was saved, and the
/// last change.
pub(super) fn of_status(status: &Value) -> Vec<String> {
    let layers = status["layers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let of = |layer: &Value| {
        let state = text(&layer["state"]).replace('_', " ");
        let mut line = format!("control of {}: {state}", text(&layer["layer"]));
        // What was given up is set by others.
        if let Some(present) = layer["present"].as_object() {
            line += &format!(", {}", pairs(present));
        }
        let sum = |figure: &str| -> f64 {
            let all = layer["figures"].as_object().into_iter().flatten();
            all.filter_map(|(_, figures)| figures[figure].as_f64()).sum()
        };
        let (measured, originals) = (sum("measured_s"), sum("originals_s"));
        if originals > 0.0 {
            line += &format!("; cost {} of the originals'", percent(measured / originals));
        }
        match (layer["why"].as_str(), layer["last"].as_str(), layer["last_ago_s"].as_f64()) {
            (Some(why), ..) => line + "; " + why,
            (None, Some(last), Some(ago_s)) => {
                format!("{line}; {}: {last}", seconds_ago(whole(ago_s)))
            }
            _ => line,
        }
    };
    layers.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_is_a_line_for_each_layer() {
        let figures = |measured: f64| json!({ "measured_s": measured, "originals_s": 2.0 });
        let status = json!({ "layers": [
            { "layer": "host", "state": "controls", "present": { "halt_poll_ns": 20_000 }, "last": "because",
              "last_ago_s": 180.5, "figures": { "1-0": figures(1.0), "2-0": figures(0.5) } },
            { "layer": "guest", "state": "given_up", "present": null, "why": "it is", "last": "because" },
        ] });
        assert_eq!(
            of_status(&status),
            [
                "control of host: controls, halt_poll_ns=20000; cost 37.5 % of the originals'; 3 min ago: because",
                "control of guest: given up; it is",
            ]
        );
        assert_eq!(of_status(&json!({})), [""; 0]);
    }
}
