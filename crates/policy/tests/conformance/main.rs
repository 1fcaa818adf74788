//! Every golden vector, through the public API.
//!
//! The vectors are what the kernel's and QEMU's own compiled functions did. `DWELL_VECTORS=DIR` reads another
//! folder with the same file names. No case and no field is skipped; a file that is absent fails.

mod fields;
mod haltpoll;
mod kvm;
mod lapic;

use libtest_mimic::{Arguments, Trial};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// What was checked in one file.
#[derive(Clone, Copy, Default)]
pub struct Checked {
    /// Cases, one a line.
    pub cases: usize,
    /// Steps within them: decisions, loop iterations or rows.
    pub steps: usize,
}

/// Checks one case, given as the JSON of its line; returns the number of steps that it holds.
pub type CheckCase = fn(&serde_json::Value) -> Result<usize, String>;

const FILES: [(&str, CheckCase); 3] =
    [("haltpoll.jsonl", haltpoll::check), ("kvm.jsonl", kvm::check), ("lapic-advance.jsonl", lapic::check)];

fn folder() -> PathBuf {
    match std::env::var_os("DWELL_VECTORS") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors"),
    }
}

fn check_file(name: &str, check: CheckCase) -> Result<Checked, String> {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut checked = Checked::default();
    let mut failures = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let case: serde_json::Value =
            serde_json::from_str(line).map_err(|e| format!("{name}:{}: {e}", index + 1))?;
        checked.cases += 1;
        match check(&case) {
            Ok(steps) => checked.steps += steps,
            Err(why) => failures.push(format!("{name}:{} {}: {why}", index + 1, case["id"])),
        }
    }
    if checked.cases == 0 {
        return Err(format!("{}: holds no case", path.display()));
    }
    if failures.is_empty() {
        return Ok(checked);
    }
    let count = failures.len();
    failures.truncate(10);
    Err(format!("{count} of {} cases deviate; the first:\n{}", checked.cases, failures.join("\n")))
}

fn main() -> std::process::ExitCode {
    let results = Arc::new(Mutex::new(Vec::new()));
    let trials = FILES
        .into_iter()
        .map(|(name, check)| {
            let results = Arc::clone(&results);
            Trial::test(name, move || {
                let checked = check_file(name, check)?;
                results.lock().unwrap().push((name, checked));
                Ok(())
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    println!("vectors checked, from {}:", folder().display());
    for (name, _) in FILES {
        if let Some((_, checked)) = results.lock().unwrap().iter().find(|(n, _)| *n == name) {
            println!("  {name:<22}{:>6} cases {:>9} steps", checked.cases, checked.steps);
        }
    }
    conclusion.exit_code()
}
