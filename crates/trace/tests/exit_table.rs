//! Every golden table of `perf kvm stat`, through the public API.
//!
//! Each case gives durations by reason and the rows that perf's own compiled functions printed for them. They are fed
//! in as pairs of exit and entry, and once more as the text of a trace. `DWELL_VECTORS=DIR` reads another folder.

use dwell_trace::exits::{ExitCounter, ExitTable};
use dwell_trace::import::Input;
use libtest_mimic::{Arguments, Failed, Trial};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const FILE: &str = "perf-kvm-stat.jsonl";
/// Widths of the name column.
const NARROW: usize = 20;
const WIDE: usize = 40;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    kernel: String,
    durations_ns: BTreeMap<String, Vec<u64>>,
    total_samples: u64,
    total_time_ns: u64,
    rows_width20: BTreeMap<String, String>,
}

impl Case {
    fn counted(&self) -> ExitTable {
        let mut counter = ExitCounter::default();
        let mut now_ns = 0;
        counter.entry(1, now_ns);
        for (reason, durations_ns) in &self.durations_ns {
            for &ns in durations_ns {
                counter.exit(1, now_ns, reason);
                now_ns += ns;
                counter.entry(1, now_ns);
            }
        }
        counter.finish()
    }

    fn traced(&self) -> Result<ExitTable, Failed> {
        let mut text = String::from("# a comment\n");
        let mut now_ns: u64 = 1_000_000_000;
        let line = |text: &mut String, now_ns: u64, event: &str| {
            let (s, ns) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
            let _ = writeln!(text, "CPU 0/KVM 12/34 [001] {s}.{ns:09}: kvm:{event}");
        };
        line(&mut text, now_ns, "kvm_entry: vcpu 0, rip 0x1");
        for (reason, durations_ns) in &self.durations_ns {
            for &ns in durations_ns {
                line(&mut text, now_ns, &format!("kvm_exit: vcpu 0 reason {reason} rip 0x1 info1 0x0"));
                now_ns += ns;
                line(&mut text, now_ns, "kvm_entry: vcpu 0, rip 0x1");
            }
        }
        Ok(ExitTable::read(Input::new("trace", text.as_bytes())?)?)
    }

    fn check(&self) -> Result<usize, String> {
        let table = self.counted();
        if self.kernel.is_empty() {
            return Err("no kernel".to_owned());
        }
        let totals = (table.total_samples, table.total_ns);
        if totals != (self.total_samples, self.total_time_ns) {
            return Err(format!("totals are {totals:?}"));
        }
        if table.rows.len() != self.rows_width20.len() || !table.rows.is_sorted_by_key(|row| !row.samples) {
            return Err(format!("{} rows, or not in order", table.rows.len()));
        }
        for row in &table.rows {
            let wanted =
                self.rows_width20.get(&row.reason).ok_or_else(|| format!("no row {}", row.reason))?;
            let found = row.render(&table, NARROW);
            if found != *wanted {
                return Err(format!("\n  wanted {wanted}\n  found  {found}"));
            }
            let wide = row.render(&table, WIDE);
            if wide.trim_start() != wanted.trim_start() || wide.len() != wanted.len() + WIDE - NARROW {
                return Err(format!("wide row {wide}"));
            }
            if !table.render(NARROW).contains(&format!("\n{wanted}\n")) {
                return Err(format!("the table lacks {wanted}"));
            }
        }
        match self.traced() {
            Ok(traced) if traced.rows == table.rows => Ok(table.rows.len()),
            Ok(_) => Err("the table of the trace differs".to_owned()),
            Err(error) => Err(format!("the trace: {error:?}")),
        }
    }
}

fn folder() -> PathBuf {
    match std::env::var_os("DWELL_VECTORS") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/vectors"),
    }
}

fn check_file(done: &Mutex<(usize, usize)>) -> Result<(), Failed> {
    let path = folder().join(FILE);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut failures = Vec::new();
    let (mut cases, mut rows) = (0, 0);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let case: Case = serde_json::from_str(line).map_err(|e| format!("{FILE}:{}: {e}", index + 1))?;
        cases += 1;
        match case.check() {
            Ok(count) => rows += count,
            Err(why) => failures.push(format!("{FILE}:{} {}: {why}", index + 1, case.id)),
        }
    }
    if cases == 0 {
        return Err(format!("{}: holds no case", path.display()).into());
    }
    if !failures.is_empty() {
        return Err(format!("{} of {cases} cases deviate:\n{}", failures.len(), failures.join("\n")).into());
    }
    *done.lock().map_err(|e| e.to_string())? = (cases, rows);
    Ok(())
}

fn main() -> std::process::ExitCode {
    let done = Arc::new(Mutex::new((0, 0)));
    let trial = {
        let done = Arc::clone(&done);
        Trial::test(FILE, move || check_file(&done))
    };
    let conclusion = libtest_mimic::run(&Arguments::from_args(), vec![trial]);
    println!("vectors checked, from {}:", folder().display());
    if let Ok(done) = done.lock() {
        println!("  {FILE:<22}{:>6} cases {:>9} rows", done.0, done.1);
    }
    conclusion.exit_code()
}
