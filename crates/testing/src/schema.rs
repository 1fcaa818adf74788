//! The JSON that commands print has the form that the book's schemas say: `docs/src/reference/schemas`.
//!
//! A schema is that of the outputs that tests see, one for each command, together with what was in it before. An output that
//! lacks a field which all had, has a new one, or has another type in one, is not of its schema. With `DWELL_UPDATE_DOCS=1`
//! [`check`] adds what is new; what has gone is removed by hand.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Objects whose names are data: parameters with their values, figures of CPUs and of exits by their reason.
const MAPS: [&str; 10] = [
    "setting",
    "originals",
    "from",
    "to",
    "present",
    "recommended",
    "values",
    "parameters",
    "fired_per_s",
    "reasons",
];

/// Commands that print something else with an option, after which the schema is named.
const OF_OPTIONS: [&str; 3] = ["status", "params", "timer-tune"];

/// The schema of one output.
pub fn schema(value: &Value) -> Value {
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
pub fn merged(one: &Value, other: &Value) -> Value {
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

/// The command whose output has a schema of its own, of the words on its command line: as its file is named.
pub fn name(words: &[&str]) -> String {
    match words {
        ["status", others @ ..] if others.contains(&"--history") => "status-history".to_owned(),
        ["status", others @ ..] if others.contains(&"--control") => "status-control".to_owned(),
        ["params", others @ ..] if others.contains(&"--policies") => "params-policies".to_owned(),
        ["timer", "tune", others @ ..] if others.contains(&"--before") => "timer-tune-before".to_owned(),
        ["timer" | "iothread", action, ..] => format!("{}-{action}", words[0]),
        ["fleet", "merge", ..] => "fleet-merge".to_owned(),
        _ => words.first().copied().unwrap_or_default().to_owned(),
    }
}

/// Fails unless the output of a command is of the schema of this name.
pub fn check(name: &str, output: &Value) {
    compare(name, output, |now, was| now == was);
}

/// The same of what a machine shows, which may lack what others have: fails where a field is missing that is always there.
pub fn check_required(name: &str, output: &Value) {
    compare(name, output, |now, was| required(now) == required(was));
}

/// The fields that are always there, at all levels.
fn required(schema: &Value) -> BTreeSet<String> {
    let mut all = words(schema, "required");
    let below = schema["properties"].as_object().into_iter().flatten();
    let below = below.map(|(name, schema)| (name.as_str(), schema));
    let others = ["items", "additionalProperties"].map(|key| (key, &schema[key]));
    for (name, schema) in below.chain(others).filter(|(_, schema)| schema.is_object()) {
        all.extend(required(schema).into_iter().map(|field| format!("{name}.{field}")));
    }
    all
}

fn compare(name: &str, output: &Value, alike: impl Fn(&Value, &Value) -> bool) {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/schemas");
    let path = schemas.join(format!("{name}.json"));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let known: Value = serde_json::from_str(&text).unwrap_or_default();
    let new = schema(output);
    let both = if known.is_null() { new } else { merged(&known, &new) };
    let command = match OF_OPTIONS.iter().find_map(|of| Some((of, name.strip_prefix(of)?.strip_prefix('-')?)))
    {
        Some((command, option)) => format!("{} --{option}", command.replace('-', " ")),
        None => name.replace('-', " "),
    };
    let mut page = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("dwell {command} --format json"),
    });
    if let (Some(page), Some(both)) = (page.as_object_mut(), both.as_object()) {
        page.extend(both.clone());
    }
    let printed = format!("{page:#}\n");
    if std::env::var_os("DWELL_UPDATE_DOCS").is_some() {
        fs::create_dir_all(&schemas)
            .and_then(|()| fs::write(&path, &printed))
            .expect("a schema can be written");
    } else if !alike(&page, &known) {
        let differs = printed.lines().zip(text.lines()).find(|(now, was)| now != was);
        panic!("not of its schema, {name}.json: {differs:?}: {output}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn what_is_required_is_found_at_all_levels() {
        let of = |value: Value| required(&schema(&value));
        let all: BTreeSet<String> = ["a", "a.items.b", "a.items.b.c"].map(str::to_owned).into();
        assert_eq!(of(json!({"a": [{"b": {"c": 1}}]})), all);
        assert_eq!(of(json!([1, null])), BTreeSet::new());
    }

    #[test]
    fn a_command_has_its_own_schema() {
        assert_eq!(name(&["status", "--sysroot", "x", "--history"]), "status-history");
        assert_eq!(name(&["iothread", "set", "--qmp", "x"]), "iothread-set");
        assert_eq!(name(&["apply", "PLAN"]), "apply");
        assert_eq!(name(&["sketch", "x"]), "sketch");
        assert_eq!(name(&["timer", "tune", "x", "--before", "y"]), "timer-tune-before");
    }
}
