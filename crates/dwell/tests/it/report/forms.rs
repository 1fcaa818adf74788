//! The same figures in every form, and what is said when something is wrong.

use super::inputs::{Inputs, bundled, done, dwell};
use dwell_policy::Layer;
use dwell_recording::{Clock, Episode, Metadata, REALTIME_OFFSET, TimeRecorded, Writer};
use serde_json::Value;
use std::path::Path;

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn all_forms_hold_the_same_figures() {
    let file = bundled("guest-memcached_poisson10k.parquet");
    let args = ["report", &file, "--layer", "host", "--halt-cost", "20us", "--format"];
    let form = |form: &str| text(done(&[&args[..], &[form]].concat()));
    let json_text = form("json");
    let json: Value = serde_json::from_str(&json_text).unwrap();
    let recording = &json["recordings"][0];
    assert_eq!(recording["figures"]["idle"][0]["episodes"], 60_000);
    let present = &recording["figures"]["policies"][0];
    assert_eq!(present["policy"], "present");

    // As `dwell replay` counts, which reads another way.
    let replayed: Value = serde_json::from_slice(&done(&[
        "replay",
        &file,
        "--layer",
        "host",
        "--halt-cost",
        "20us",
        "--format",
        "json",
    ]))
    .unwrap();
    for figure in ["polls", "polls_succeeded", "polled_ns", "halts"] {
        assert_eq!(present[figure], replayed["results"][2][figure], "{figure}");
    }
    // As `dwell tune` and `dwell info` say.
    let mut tuned: Value = serde_json::from_slice(&done(&[
        "tune",
        &file,
        "--layer",
        "host",
        "--halt-cost",
        "20us",
        "--front",
        "--format",
        "json",
    ]))
    .unwrap();
    assert_eq!(recording["tune"], tuned.take());
    let info: Value = serde_json::from_slice(&done(&["info", &file, "--format", "json"])).unwrap();
    assert_eq!(recording["info"], info);

    assert!(form("html").contains(json_text.trim_end()));
}

#[test]
fn before_and_after_are_compared_with_intervals() {
    let inputs = Inputs::new();
    let (before, after) = (inputs.host("a", &["vcpu0"], 1), inputs.host("b", &["vcpu0"], 2));
    let (exits, why) = (inputs.exits(), inputs.why());
    let args = ["report", "--before", &before, "--after", &after, "--exits", &exits, "--why", &why];
    let json: Value = serde_json::from_slice(&done(&[&args[..], &["--format", "json"]].concat())).unwrap();
    let of = |figure: &str| {
        let all = json["comparison"].as_array().unwrap();
        all.iter().find(|row| row["figure"] == figure).unwrap().clone()
    };
    let idle = of("mean_idle_ns");
    assert!((idle["ratio"]["value"].as_f64().unwrap() - 2.0).abs() < 0.01, "{idle}");
    assert!(idle["ratio"]["low"].as_f64().unwrap() > 1.5, "{idle}");
    assert!(of("polling_ns_per_s")["before"].as_f64().unwrap() > 0.0);
    assert!(of("mean_wake_latency_ns")["ratio"]["value"].is_number());
    assert_eq!(json["exits"][0]["rows"][0]["reason"], "HLT");
    assert_eq!(json["why"][0]["bills"][0]["lines"][0]["cause"], "halt");
    let words = json["why"][0]["words"][0].as_str().unwrap();
    assert!(words.starts_with("<b>web\\u{1b}[2J (process 7): 50.0 % of a CPU in 1.00 s"), "{words}");
}

#[test]
fn a_change_that_was_given_backwards_or_of_two_layers_is_noted() {
    let inputs = Inputs::new();
    let file = |name: &str, layer: Layer, minute: u64| {
        let mut metadata = Metadata::new(layer);
        metadata.clock = Clock::Monotonic;
        metadata.recorded =
            Some(TimeRecorded { start_ns: minute * 60_000_000_000, end_ns: (minute + 1) * 60_000_000_000 });
        metadata.other.insert(REALTIME_OFFSET.to_owned(), 1_700_000_000_000_000_000u64.into());
        let path = inputs.text(name);
        let mut writer = Writer::create(Path::new(&path), metadata).unwrap();
        writer.push(&Episode::new("cpu0", minute * 60_000_000_000, 1_000)).unwrap();
        writer.finish().unwrap();
        path
    };
    let [first, second] = [file("1", Layer::Guest, 1), file("2", Layer::Guest, 2)];
    let host = file("3", Layer::Host, 3);
    let notes = |before: &str, after: &str| {
        let args = ["report", "--before", before, "--after", after, "--format", "json"];
        let json: Value = serde_json::from_slice(&done(&args)).unwrap();
        json["recordings"][1]["notes"].to_string()
    };
    assert!(notes(&second, &first).contains("are the two swapped?"));
    let of_order = notes(&first, &second);
    assert!(!of_order.contains("swapped") && !of_order.contains("do not compare"), "{of_order}");
    assert!(
        notes(&first, &host).contains("it is of the host layer, and the one from before of the guest layer")
    );
}

#[test]
fn a_plan_is_drawn_in_place_of_the_recommended_setting() {
    let inputs = Inputs::new();
    let (file, plan) = (bundled("guest-memcached_poisson10k.parquet"), inputs.text("plan.toml"));
    done(&["tune", &file, "--layer", "host", "--halt-cost", "20us", "--plan", &plan, "--force"]);
    let args = ["report", &file, "--plan", &plan, "--format", "json", "--halt-cost", "20us"];
    let json: Value = serde_json::from_slice(&done(&[&args[..], &["--layer", "host"]].concat())).unwrap();
    let policies = &json["recordings"][0]["figures"]["policies"];
    assert_eq!(policies[1]["policy"], "plan");
    assert_eq!(policies[1]["polls"], 0, "the plan of this recording is not to poll");
    let other = dwell(&args);
    assert_eq!(other.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&other.stderr).contains("the plan sets the host layer"));
}

#[test]
fn a_recording_too_short_for_advice_is_drawn_all_the_same() {
    let inputs = Inputs::new();
    let table = inputs.write("t.csv", "start_ns,idle_ns\n0,1000\n5000,0\n9000,70000\n");
    let recording = inputs.text("t.parquet");
    done(&["import", "--as", "csv", &table, "--layer", "guest", "-o", &recording]);
    let json: Value = serde_json::from_slice(&done(&["report", &recording, "--format", "json"])).unwrap();
    let drawn = &json["recordings"][0];
    assert!(drawn["tune"].is_null());
    assert!(drawn["no_advice"].as_str().unwrap().contains("too few episodes"), "{drawn}");
    assert_eq!(drawn["figures"]["closeup"]["idle_ns"], serde_json::json!([1000, 0, 70000]));
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let inputs = Inputs::new();
    let file = bundled("guest-idle.parquet");
    let nonsense = inputs.write("x.json", "{}");
    for (args, says) in [
        (vec!["report", "nowhere.parquet"], "nowhere.parquet"),
        (vec!["report", &file, "--measured", &nonsense], "dwell-lab validate"),
        (vec!["report", &file, "--exits", &nonsense], "no exit"),
        (vec!["report", &file, "--why", &nonsense], "dwell why --format json"),
        (vec!["report", &file, "--plan", &nonsense], "it is not a plan"),
        (vec!["report", &file, "--format", "json", "-o", "/dev/null/x"], "cannot create a file in /dev/null"),
    ] {
        let output = dwell(&args);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains(says) && told.lines().count() == 1, "{args:?}: {told}");
    }
}
