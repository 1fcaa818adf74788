//! Whether a text is OpenMetrics, as far as a controller's figures need it, and whether Prometheus's own
//! checker agrees.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

/// The value of each sample, by its name and labels as they are in the text.
///
/// # Errors
/// The first line that is wrong, and why.
pub fn read(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with # EOF")?;
    let (mut families, mut samples) = (BTreeMap::new(), BTreeMap::new());
    let mut helped = BTreeSet::new();
    for line in body.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", family, help] if !help.is_empty() => {
                if !helped.insert(family) {
                    return Err(wrong("a second help"));
                }
            }
            ["#", "TYPE", family, kind @ ("counter" | "gauge")] if helped.contains(family) => {
                families.insert(family, kind);
            }
            ["#", "UNIT", family, unit] if family.ends_with(&format!("_{unit}")) => {}
            ["#", ..] => return Err(wrong("a comment that is none of HELP, TYPE and UNIT in this order")),
            _ => {
                let (series, value) = line.rsplit_once(' ').ok_or_else(|| wrong("no value"))?;
                let name = series.split('{').next().unwrap_or_default();
                let family = match families.get(name) {
                    Some(&"gauge") => Some(name),
                    _ => name
                        .strip_suffix("_total")
                        .filter(|family| families.get(family).is_some_and(|kind| *kind == "counter")),
                };
                if family.is_none() {
                    return Err(wrong("no family"));
                }
                labels(series).map_err(|why| wrong(&why))?;
                let value: f64 = value.parse().map_err(|_| wrong("not a number"))?;
                if samples.insert(series.to_owned(), value).is_some() {
                    return Err(wrong("twice"));
                }
            }
        }
    }
    Ok(samples)
}

/// Names of labels are unique, values are quoted.
fn labels(series: &str) -> Result<(), String> {
    let Some((_, rest)) = series.split_once('{') else { return Ok(()) };
    let rest = rest.strip_suffix('}').ok_or("no closing brace")?;
    let mut names = BTreeSet::new();
    for label in rest.split(',') {
        let (name, value) = label.split_once('=').ok_or("a label without value")?;
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let quoted = quoted.ok_or("a label that is not quoted")?;
        if quoted.contains(['"', '\\']) || !names.insert(name) {
            return Err(format!("label {name}"));
        }
    }
    Ok(())
}

/// In the older text format, which `promtool check metrics` reads: there counters have their suffix in HELP
/// and TYPE too.
fn older(text: &str) -> String {
    let counters: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let of = |line: &str| {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "UNIT" | "EOF", ..] => String::new(),
            ["#", what, family, rest] if counters.contains(family) => {
                format!("# {what} {family}_total {rest}\n")
            }
            _ => format!("{line}\n"),
        }
    };
    text.lines().map(of).collect()
}

/// What `promtool check metrics` has against it; `None` without promtool.
pub fn promtool(text: &str) -> Option<Result<(), String>> {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().ok()?;
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(older(text).as_bytes()));
    let output = child.wait_with_output().ok()?;
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let fine = output.status.success() && told.trim().is_empty() && matches!(written, Some(Ok(())));
    Some(if fine { Ok(()) } else { Err(told) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
                        a_seconds_total{of=\"x\"} 1.5\na_seconds_total{of=\"y\"} 2\n# HELP b Number.\n# TYPE b gauge\nb 3\n# EOF\n";

    #[test]
    fn what_is_right_is_read() {
        let samples = read(GOOD).unwrap();
        assert_eq!(samples["a_seconds_total{of=\"x\"}"], 1.5);
        assert_eq!(samples["b"], 3.0);
        if let Some(checked) = promtool(GOOD) {
            assert_eq!(checked, Ok(()));
            assert!(promtool(&GOOD.replace("# HELP b Number.\n", "")).unwrap().is_err());
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, why) in [
            ("# EOF\n", "", "# EOF"),
            ("# TYPE b gauge", "# TYPE c gauge", "TYPE"),
            ("\nb 3", "\nc 3", "no family"),
            ("a_seconds_total{of=\"y\"}", "a_seconds{of=\"y\"}", "no family"),
            ("b 3", "b three", "not a number"),
            ("{of=\"y\"}", "{of=\"x\"}", "twice"),
            ("{of=\"y\"}", "{of=y}", "not quoted"),
            ("{of=\"y\"}", "{of=\"y\",of=\"z\"}", "label of"),
            (" seconds\n", " minutes\n", "UNIT"),
        ] {
            let wrong = GOOD.replace(from, to);
            assert!(read(&wrong).unwrap_err().contains(why), "{wrong}");
        }
    }
}
