//! `lapic-advance.jsonl`: advance tuning, the wait, conversion to cycles, and both ways of arming.

use dwell_policy::Nanos;
use dwell_policy::timer::{
    Delay, Era, GuestTsc, HvTimer, SwArmed, adjust_timer_advance, start_sw_tscdeadline, wait,
};
use dwell_policy::version::Version;
use serde_json::{Map, Value, json};

pub(crate) fn check(case: &Value) -> Result<usize, String> {
    let case = Object::of(case, "case")?;
    check_kernels(case.text("kernel")?)?;
    case.text("id")?;
    let params = Object::of(case.get("params")?, "params")?;
    match case.text("mode")? {
        "advance" => check_advance(&case, &params),
        "wait" => {
            check_rows(&case, &params, &["virtual_tsc_shift", "virtual_tsc_mult", "tsc_scaled"], wait_row)
        }
        "ns_to_cycles" => check_rows(&case, &params, &[], ns_to_cycles_row),
        "sw_timer" => check_rows(&case, &params, &[], sw_timer_row),
        "hv_timer" => check_rows(&case, &params, &[], hv_timer_row),
        mode => Err(format!("unknown mode {mode:?}")),
    }
}

/// `7.3` or `5.4..7.3`: every kernel named must have an era; none of what is checked here differs between eras.
fn check_kernels(kernels: &str) -> Result<(), String> {
    for kernel in kernels.split("..") {
        let version = Version::parse(kernel).ok_or_else(|| format!("kernel {kernel:?} is no version"))?;
        Era::of(version).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn check_advance(case: &Object<'_>, params: &Object<'_>) -> Result<usize, String> {
    case.only(&["id", "kernel", "mode", "params", "pattern", "delta_cycles", "advance_ns_after"])?;
    params.only(&["virtual_tsc_khz", "initial_advance_ns"])?;
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
type Row = fn(&GuestTsc, &Object<'_>) -> Result<Value, String>;

/// Checks every row of a case: `row` demands its columns and returns an object of the result columns, whose values must
/// be those in the row.
fn check_rows(
    case: &Object<'_>,
    params: &Object<'_>,
    more_params: &[&str],
    row: Row,
) -> Result<usize, String> {
    case.only(&["id", "kernel", "mode", "params", "columns", "rows"])?;
    params.only(&[&["virtual_tsc_khz"], more_params].concat())?;
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
    let given = Object { what: "row", fields: &named };
    let computed = row(tsc, &given)?;
    let computed = Object::of(&computed, "result")?;
    for (name, value) in computed.fields {
        if given.get(name)? != value {
            return Err(format!("{name} is {value}"));
        }
    }
    Ok(())
}

fn guest_tsc(params: &Object<'_>) -> Result<GuestTsc, String> {
    let khz = params.u32("virtual_tsc_khz")?;
    let scaled = match params.fields.get("tsc_scaled") {
        None => false,
        Some(flag) => flag.as_bool().ok_or("tsc_scaled is no flag")?,
    };
    // The vectors do not say by how much; the wait only asks whether.
    let ratio = if scaled { GuestTsc::RATIO_ONE / 2 } else { GuestTsc::RATIO_ONE };
    let tsc = GuestTsc::scaled(khz, ratio);
    if params.fields.contains_key("virtual_tsc_shift") || params.fields.contains_key("virtual_tsc_mult") {
        let given = (params.get("virtual_tsc_shift")?, params.get("virtual_tsc_mult")?);
        let scale = tsc.scale();
        if given != (&json!(scale.shift()), &json!(scale.mult())) {
            return Err(format!("{khz} kHz scale by {scale:?}, not {given:?}"));
        }
    }
    Ok(tsc)
}

fn wait_row(tsc: &GuestTsc, row: &Object<'_>) -> Result<Value, String> {
    let delay = wait(tsc, row.u32("advance_ns")?, row.u64("guest_cycles")?);
    let (name, value) = match delay {
        Delay::Cycles(cycles) => ("delay_cycles", cycles),
        Delay::Nanos(ns) => ("delay_ns", u64::from(ns)),
    };
    row.only(&["advance_ns", "guest_cycles", name])?;
    Ok(json!({ name: value }))
}

fn ns_to_cycles_row(tsc: &GuestTsc, row: &Object<'_>) -> Result<Value, String> {
    row.only(&["ns", "cycles"])?;
    Ok(json!({ "cycles": tsc.cycles(Nanos(row.u64("ns")?)) }))
}

fn sw_timer_row(tsc: &GuestTsc, row: &Object<'_>) -> Result<Value, String> {
    row.only(&[
        "advance_ns",
        "guest_tsc",
        "tscdeadline",
        "ktime_now",
        "expired_immediately",
        "hrtimer_expires_ns",
    ])?;
    let armed = start_sw_tscdeadline(
        tsc,
        row.u64("guest_tsc")?,
        row.u64("tscdeadline")?,
        row.u32("advance_ns")?,
        Nanos(row.u64("ktime_now")?),
    );
    let expires = match armed {
        SwArmed::Hrtimer { expires } => Some(expires.get()),
        SwArmed::Expired | SwArmed::Nothing => None,
    };
    Ok(json!({ "expired_immediately": armed == SwArmed::Expired, "hrtimer_expires_ns": expires }))
}

fn hv_timer_row(tsc: &GuestTsc, row: &Object<'_>) -> Result<Value, String> {
    row.only(&[
        "advance_ns",
        "guest_tsc",
        "tscdeadline",
        "rate_shift",
        "max_value",
        "ret",
        "expired",
        "delta_tsc",
    ])?;
    let rate_shift = u8::try_from(row.u64("rate_shift")?).map_err(|e| format!("rate_shift: {e}"))?;
    let hv_timer = HvTimer { rate_shift, max_value: row.u64("max_value")? };
    Ok(match hv_timer.set(tsc, row.u64("guest_tsc")?, row.u64("tscdeadline")?, row.u32("advance_ns")?) {
        Ok(armed) => json!({ "ret": 0, "expired": armed.expired(), "delta_tsc": armed.delta_tsc }),
        Err(refused) => json!({ "ret": refused.ret(), "expired": false, "delta_tsc": null }),
    })
}

/// A JSON object whose fields are asked for by name, with errors that say which.
struct Object<'a> {
    what: &'static str,
    fields: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    fn of(value: &'a Value, what: &'static str) -> Result<Object<'a>, String> {
        let fields = value.as_object().ok_or_else(|| format!("{what} is no object"))?;
        Ok(Object { what, fields })
    }

    /// Exactly these fields are there.
    fn only(&self, known: &[&str]) -> Result<(), String> {
        if let Some(missing) = known.iter().find(|name| !self.fields.contains_key(**name)) {
            return Err(format!("{} has no {missing}", self.what));
        }
        match self.fields.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(format!("{} has an unknown {name}", self.what)),
            None => Ok(()),
        }
    }

    fn get(&self, name: &str) -> Result<&'a Value, String> {
        self.fields.get(name).ok_or_else(|| format!("{} has no {name}", self.what))
    }

    fn text(&self, name: &str) -> Result<&'a str, String> {
        self.get(name)?.as_str().ok_or_else(|| format!("{name} is no text"))
    }

    fn array(&self, name: &str) -> Result<&'a [Value], String> {
        self.get(name)?.as_array().map(Vec::as_slice).ok_or_else(|| format!("{name} is no array"))
    }

    fn u64(&self, name: &str) -> Result<u64, String> {
        self.get(name)?.as_u64().ok_or_else(|| format!("{name} is no u64"))
    }

    fn u32(&self, name: &str) -> Result<u32, String> {
        u32::try_from(self.u64(name)?).map_err(|e| format!("{name}: {e}"))
    }
}
