//! `lapic-advance.jsonl`: advance tuning, the wait, and conversion to cycles.

use crate::fields::Fields;
use dwell_policy::Nanos;
use dwell_policy::timer::{Delay, GuestTsc, Revision, adjust_timer_advance, wait};
use dwell_policy::version::Version;
use serde_json::{Map, Value, json};

pub(crate) fn check(case: &Value) -> Result<usize, String> {
    let mut case = Fields::of(case)?;
    check_kernels(case.text("kernel")?)?;
    case.text("id")?;
    let mut params = Fields::of(case.get("params")?)?;
    let steps = match case.text("mode")? {
        "advance" => check_advance(&mut case, &mut params),
        "wait" => check_rows(&mut case, &mut params, wait_row),
        "ns_to_cycles" => check_rows(&mut case, &mut params, ns_to_cycles_row),
        mode => Err(format!("unknown mode {mode:?}")),
    }?;
    params.all_used()?;
    case.all_used()?;
    Ok(steps)
}

/// `7.3` or `5.4..7.3`: every kernel named must have a revision; none of what is checked here differs between
/// revisions.
fn check_kernels(kernels: &str) -> Result<(), String> {
    for kernel in kernels.split("..") {
        let version = Version::parse(kernel).ok_or_else(|| format!("kernel {kernel:?} is no version"))?;
        Revision::of(version).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn check_advance(case: &mut Fields<'_>, params: &mut Fields<'_>) -> Result<usize, String> {
    case.text("pattern")?;
    let khz = params.u32("virtual_tsc_khz")?;
    let mut advance_ns = params.u32("initial_advance_ns")?;
    let deltas = case.array("delta_cycles")?;
    let after = case.array("advance_ns_after")?;
    if deltas.is_empty() || deltas.len() != after.len() {
        return Err(format!("{} deltas but {} results", deltas.len(), after.len()));
    }
    for (step, (delta, after)) in deltas.iter().zip(after).enumerate() {
        let delta = delta.as_i64().ok_or_else(|| format!("step {step}: delta {delta} is no i64"))?;
        advance_ns = adjust_timer_advance(advance_ns, delta, khz);
        if json!(advance_ns) != *after {
            return Err(format!("step {step}, delta {delta}: advance is {advance_ns}, not {after}"));
        }
    }
    Ok(deltas.len())
}

/// Computes the result columns of a row from its input columns.
type Row = fn(&GuestTsc, &mut Fields<'_>) -> Result<Value, String>;

/// Checks every row of a case: `row` reads its input columns and returns an object of the result columns,
/// whose values must be those in the row.
fn check_rows(case: &mut Fields<'_>, params: &mut Fields<'_>, row: Row) -> Result<usize, String> {
    let tsc = guest_tsc(params)?;
    let columns = case.array("columns")?;
    let rows = case.array("rows")?;
    if rows.is_empty() {
        return Err("holds no row".into());
    }
    for (index, cells) in rows.iter().enumerate() {
        check_row(&tsc, columns, cells, row).map_err(|e| format!("row {index} {cells}: {e}"))?;
    }
    Ok(rows.len())
}

fn check_row(tsc: &GuestTsc, columns: &[Value], cells: &Value, row: Row) -> Result<(), String> {
    let cells = cells.as_array().ok_or("is no array")?;
    if cells.len() != columns.len() {
        return Err(format!("{} cells for {} columns", cells.len(), columns.len()));
    }
    let mut named = Map::new();
    for (column, cell) in columns.iter().zip(cells) {
        let name = column.as_str().ok_or("a column has no name")?;
        if named.insert(name.into(), cell.clone()).is_some() {
            return Err(format!("column {name} is there twice"));
        }
    }
    let named = Value::Object(named);
    let mut given = Fields::of(&named)?;
    let computed = row(tsc, &mut given)?;
    for (name, value) in computed.as_object().ok_or("the result is no object")? {
        given.expect(name, value)?;
    }
    given.all_used()
}

fn guest_tsc(params: &mut Fields<'_>) -> Result<GuestTsc, String> {
    let khz = params.u32("virtual_tsc_khz")?;
    let scaled = params.has("tsc_scaled") && params.flag("tsc_scaled")?;
    // The vectors do not say by how much; the wait only asks whether.
    let ratio = if scaled { GuestTsc::RATIO_ONE / 2 } else { GuestTsc::RATIO_ONE };
    let tsc = GuestTsc::scaled(khz, ratio);
    if params.has("virtual_tsc_shift") || params.has("virtual_tsc_mult") {
        params.expect("virtual_tsc_shift", &tsc.scale().shift())?;
        params.expect("virtual_tsc_mult", &tsc.scale().mult())?;
    }
    Ok(tsc)
}

fn wait_row(tsc: &GuestTsc, row: &mut Fields<'_>) -> Result<Value, String> {
    let delay = wait(tsc, row.u32("advance_ns")?, row.u64("guest_cycles")?);
    let (name, value) = match delay {
        Delay::Cycles(cycles) => ("delay_cycles", cycles),
        Delay::Nanos(ns) => ("delay_ns", u64::from(ns)),
    };
    Ok(json!({ name: value }))
}

fn ns_to_cycles_row(tsc: &GuestTsc, row: &mut Fields<'_>) -> Result<Value, String> {
    Ok(json!({ "cycles": tsc.cycles(Nanos(row.u64("ns")?)) }))
}
