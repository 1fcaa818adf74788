//! The JSON that commands print has the form that the book's schemas say: `docs/src/reference/schemas`.
//!
//! A schema is that of the outputs here, one for each command, together with what was in it before. An output that lacks a
//! field which all had, has a new one, or has another type in one, is not of its schema.
//! `DWELL_UPDATE_DOCS=1 cargo test -p dwell --test it schemas::` adds what is new; what has gone is removed by hand.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Objects whose names are data: parameters with their values.
const MAPS: [&str; 8] =
    ["setting", "originals", "from", "to", "present", "recommended", "values", "parameters"];

/// The schema of one output.
fn schema(value: &Value) -> Value {
    match value {
        Value::Null => json!({"type": ["null"]}),
        Value::Bool(_) => json!({"type": ["boolean"]}),
        Value::Number(number) if number.is_f64() => json!({"type": ["number"]}),
        Value::Number(_) => json!({"type": ["integer"]}),
        Value::String(_) => json!({"type": ["string"]}),
        Value::Array(all) => {
            let items = all.iter().map(schema).reduce(|one, other| merged(&one, &other));
            items.map_or(json!({"type": ["array"]}), |items| json!({"type": ["array"], "items": items}))
        }
        Value::Object(fields) => {
            let of = |(name, value): (&String, &Value)| match (MAPS.contains(&name.as_str()), value) {
                (true, Value::Object(values)) => {
                    let values = values.values().map(schema).reduce(|one, other| merged(&one, &other));
                    let values = values.unwrap_or(json!({}));
                    (name.clone(), json!({"type": ["object"], "additionalProperties": values}))
                }
                _ => (name.clone(), schema(value)),
            };
            let properties: Map<String, Value> = fields.iter().map(of).collect();
            let required: Vec<&String> = fields.keys().collect();
            json!({"type": ["object"], "properties": properties, "required": required})
        }
    }
}

fn words(schema: &Value, key: &str) -> BTreeSet<String> {
    let all = schema[key].as_array().into_iter().flatten();
    all.map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// The schema of what either describes.
fn merged(one: &Value, other: &Value) -> Value {
    let mut types: BTreeSet<String> = words(one, "type").union(&words(other, "type")).cloned().collect();
    if types.contains("number") {
        types.remove("integer");
    }
    let mut all = json!({"type": types});
    for key in ["items", "additionalProperties"] {
        match (one.get(key), other.get(key)) {
            (Some(one), Some(other)) => all[key] = merged(one, other),
            (Some(only), None) | (None, Some(only)) => all[key] = only.clone(),
            (None, None) => {}
        }
    }
    match (one["properties"].as_object(), other["properties"].as_object()) {
        (Some(fields), Some(others)) => {
            let mut properties = fields.clone();
            for (name, other) in others {
                let both = fields.get(name).map_or_else(|| other.clone(), |one| merged(one, other));
                properties.insert(name.clone(), both);
            }
            let required: BTreeSet<String> =
                words(one, "required").intersection(&words(other, "required")).cloned().collect();
            all["properties"] = properties.into();
            all["required"] = json!(required);
        }
        (None, None) => {}
        (one_has, _) => {
            let only = if one_has.is_some() { one } else { other };
            all["properties"] = only["properties"].clone();
            all["required"] = only["required"].clone();
        }
    }
    all
}

fn dwell(words: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_dwell")).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

#[test]
fn the_json_of_commands_is_of_their_schemas() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let kept = tests.join("kept/0.1.0");
    let folder = tempfile::tempdir().unwrap();
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let here = |file: &str| name(&folder.path().join(file));
    let copied = Command::new("cp").arg("-r").arg(&kept).arg(here("of")).status().unwrap();
    assert!(copied.success());
    let (recording, plan, root) =
        (here("of/recording.parquet"), name(&kept.join("plan.toml")), here("of/machine"));
    let (recording, plan, root) = (recording.as_str(), plan.as_str(), root.as_str());
    let trace = name(&tests.join("timers/guest-6.12.perf.txt.gz"));
    let (timers, csv) = (here("timers.parquet"), here("idle.csv"));
    dwell(&["timer", "import", &trace, "-o", &timers]);
    fs::write(&csv, "idler,start_ns,idle_ns\nvcpu0,0,1000\nvcpu0,5000,70000\n").unwrap();
    fs::create_dir(here("sketches")).unwrap();
    fs::copy(kept.join("sketch.parquet"), here("sketches/one.parquet")).unwrap();
    let (bundled, imported, sketches) = (
        name(&tests.join("../../../recordings/guest-idle.parquet")),
        here("imported.parquet"),
        here("sketches"),
    );
    let recordings = name(folder.path().join("of").as_path());
    let domstats =
        |at: &str| name(&tests.join(format!("../../trace/tests/it/import/field/11-domstats-{at}.txt")));
    let (first, second) = (domstats("t0"), domstats("t60"));
    let commands: [&[&str]; 22] = [
        &["info", recording],
        &["info", &bundled],
        &["tune", recording, "--halt-cost", "20us"],
        &["tune", &bundled, "--layer", "guest", "--halt-cost", "20us"],
        &["replay", recording, "--halt-cost", "20us"],
        &["study", &recordings, "--halt-cost", "20us"],
        &["fleet", &sketches, "--halt-cost", "20us", "--kernel", "6.8.12"],
        &["sketch", "--check", recording],
        &["params"],
        &["explain", "halt_poll_ns=0", "--kernel", "6.8", "--sysroot", root],
        &["doctor", "--sysroot", root],
        &["status", "--sysroot", root],
        &["status", "--history", "--sysroot", root],
        &["revert", "--sysroot", root],
        &["apply", plan, "--dry-run", "--sysroot", root],
        &["apply", plan, "--sysroot", root],
        &["import", "--as", "csv", &csv, "--layer", "host", "-o", &imported],
        &["timer", "tune", &timers],
        &["timer", "explain", "--kernel", "6.8", "--sysroot", root],
        &["timer", "exits", &trace],
        &["bound", &first, &second, "--between", "60s"],
        &["control", "--replay", recording, "--halt-cost", "20us"],
    ];
    let schemas = tests.join("../../../docs/src/reference/schemas");
    let updates = std::env::var_os("DWELL_UPDATE_DOCS").is_some();
    let mut wrong = vec![];
    for command in commands {
        let output = dwell(&[command, &["--format", "json"]].concat());
        let of: Vec<&str> =
            command.iter().copied().take_while(|word| word.len() < 9 && !word.starts_with('-')).collect();
        let of = if command[0] == "timer" { of.join("-") } else { of[0].to_owned() };
        let of = if command.contains(&"--history") { "status-history".to_owned() } else { of };
        let path = schemas.join(format!("{of}.json"));
        let text = fs::read_to_string(&path).unwrap_or_default();
        let known: Option<Value> = serde_json::from_str(&text).ok();
        let new = schema(&output);
        let both = known.as_ref().map_or_else(|| new.clone(), |known| merged(known, &new));
        let mut page = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": format!("dwell {} --format json", of.replace("-history", " --history").replace('-', " ")),
        });
        page.as_object_mut().unwrap().extend(both.as_object().unwrap().clone());
        let page = serde_json::to_string_pretty(&page).unwrap() + "\n";
        if updates {
            fs::create_dir_all(&schemas).unwrap();
            fs::write(&path, &page).unwrap();
        } else if page != text {
            let differs = page.lines().zip(text.lines()).find(|(now, was)| now != was);
            wrong.push(format!("{command:?}: {of}.json: {differs:?}"));
        }
    }
    assert!(wrong.is_empty(), "not of its schema: {wrong:#?}");
}

#[test]
fn what_lacks_a_field_or_has_another_type_is_of_another_schema() {
    let known = schema(&json!([{"a": 1, "b": null}, {"a": 2.5, "b": "x", "setting": {"p": 1}}]));
    let is_of = |value: Value| merged(&known, &schema(&value)) == merged(&known, &known);
    assert!(is_of(json!([{"a": 1, "b": null, "setting": {"q": 7}}])) && is_of(json!([])));
    assert!(!is_of(json!([{"a": 1}])), "lacks b");
    assert!(!is_of(json!([{"a": "1", "b": null}])), "another type");
    assert!(!is_of(json!([{"a": 1, "b": null, "c": 1}])), "a new field");
    assert!(!is_of(json!({"a": 1})));
}
