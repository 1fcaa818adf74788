//! `dwell iothread set`

use super::MonitorArgs;
use crate::command::apply::{self, How};
use crate::failure::Outcome;
use crate::output::{self, FormatArg};
use crate::state::StateArgs;
use anyhow::Context;
use dwell_knobs::change::Permission;
use dwell_knobs::iothread::{self, IoThread};
use dwell_knobs::journal::Id;
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::object_id::ObjectId;
use dwell_knobs::plan::Plan;
use dwell_policy::iothread::Property;
use dwell_policy::{Nanos, param};
use dwell_report::{Column, Table};
use serde::Serialize;

/// Set properties of an I/O thread and read them back
///
/// The values take effect at once and last until QEMU exits; the lines that keep them are printed. The values before go
/// into the journal first: `dwell status` lists them, and `dwell revert` restores them. Any write makes QEMU reset the
/// polling state of the thread, so a value that is in force already is not written. If QEMU refuses one value, those
/// written before it are restored.
#[derive(clap::Args)]
#[command(
    after_help = "Example: dwell iothread set --qmp /run/vm.qmp io0 poll-max-ns=300us poll-grow=2 --dry-run"
)]
pub(super) struct Args {
    #[command(flatten)]
    monitor: MonitorArgs,
    /// ID of the thread, as `dwell iothread list` prints it
    id: String,
    /// Property and value, such as poll-max-ns=300us
    ///
    /// poll-max-ns, poll-grow, poll-shrink, poll-weight (from QEMU 11.1), aio-max-batch, thread-pool-min and
    /// thread-pool-max.
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = assignment)]
    values: Vec<(String, i64)>,
    /// Print what would be sent, but send nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

/// `poll-max-ns=300us`, `poll_grow=2`. QEMU checks whether the property and the value exist.
fn assignment(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as poll-max-ns=300us")?;
    let name = name.trim().replace('_', "-");
    if let Some(number) = param::whole(value.trim()) {
        return Ok((name, number));
    }
    if name != Property::PollMaxNs.name() {
        return Err(format!("{name} takes a whole number"));
    }
    let ns: Nanos = value.trim().parse().map_err(|error| format!("`{}` {error}", value.trim()))?;
    i64::try_from(ns.get()).map(|ns| (name, ns)).map_err(|_| "more than 2^63 - 1 ns".to_owned())
}

#[derive(Serialize)]
struct Change {
    property: String,
    from: i64,
    to: i64,
}

#[derive(Serialize)]
struct Done<'a> {
    id: &'a ObjectId,
    /// In the order of the writes.
    changes: Vec<Change>,
    /// What is there already.
    unchanged: Vec<&'a str>,
    dry_run: bool,
    /// The number that reverts it; null if nothing was written.
    change: Option<Id>,
    commands: Vec<String>,
    /// Null for an ID that is not one of libvirt's.
    virsh: Option<String>,
    libvirt_xml: Option<String>,
    command_line: String,
}

pub(super) fn run(args: &Args) -> Outcome {
    let machine = args.state.machine()?;
    let socket = super::socket(&args.monitor.qmp)?;
    let mut monitor = iothread::connect(&machine, &socket)?;
    let thread = iothread::find(&mut monitor, &args.id)?;
    let target = IothreadTarget { socket, id: thread.id.clone(), domain: None };
    let plan = iothread::plan(&mut monitor, &thread, &args.values, target).context("nothing was changed")?;
    // A monitor serves one client at a time, and every write connects anew.
    drop(monitor);
    let change = if plan.writes.is_empty() {
        None
    } else {
        // What is asked for by hand is set although nothing may read it, as a factor where polling is off.
        let permission = Permission { force: false, no_effect: true };
        let how =
            How { persist: false, permission, dry_run: args.dry_run, verifying: false, has_overrides: false };
        apply::carry_out(&machine, &plan, &args.state, how)?.1
    };
    let lines = iothread::persistence(&thread.id, &after(&thread, &plan));
    let of_libvirt = iothread::libvirt_number(&thread.id);
    let is_written = |name: &String| plan.writes.iter().any(|write| write.knob == *name);
    let writes = plan.writes.iter();
    let done = Done {
        id: &thread.id,
        commands: writes.clone().map(|write| iothread::command(&thread.id, &write.knob, write.to)).collect(),
        changes: writes
            .map(|write| Change { property: write.knob.clone(), from: write.from, to: write.to })
            .collect(),
        unchanged: args
            .values
            .iter()
            .map(|(name, _)| name)
            .filter(|name| !is_written(name))
            .map(String::as_str)
            .collect(),
        dry_run: args.dry_run,
        change,
        virsh: of_libvirt.map(|_| lines.virsh),
        libvirt_xml: of_libvirt.map(|_| lines.xml),
        command_line: lines.object + &others(&plan),
    };
    let table = || {
        Table::of(&done.changes)
            .column(Column::text("property", "property"), |change| change.property.as_str())
            .column(Column::number("from", "from"), |change| change.from.to_string())
            .column(Column::number("to", "to"), |change| change.to.to_string())
            .table()
    };
    output::result(args.format.format, &done, table, || words(&done, &args.state))
}

/// The other properties that the plan writes, for `-object`; libvirt's lines have polling only.
fn others(plan: &Plan) -> String {
    let writes = plan.writes.iter().filter(|write| Property::from_name(&write.knob).is_none());
    writes.map(|write| format!(",{}={}", write.knob, write.to)).collect()
}

/// The polling properties after the plan is applied.
fn after<'a>(thread: &'a IoThread, plan: &Plan) -> Vec<(&'a str, i64)> {
    let there = Property::ALL.iter().filter_map(|property| thread.properties.get_key_value(property.name()));
    let value = |name: &str, now: i64| {
        plan.writes.iter().find(|write| write.knob == name).map_or(now, |write| write.to)
    };
    there.map(|(name, now)| (name.as_str(), value(name, *now))).collect()
}

fn words(done: &Done<'_>, state: &StateArgs) -> String {
    let mut text = String::new();
    for Change { property, from, to } in &done.changes {
        let verb = if done.dry_run { "would set" } else { "set" };
        text += &format!("{verb} {property} of {}: {from} -> {to}\n", done.id);
    }
    for property in &done.unchanged {
        text += &format!("{property} of {} has this value already; not written\n", done.id);
    }
    if done.dry_run {
        done.commands.iter().for_each(|command| text += &format!("  {command}\n"));
    }
    if let Some(id) = done.change {
        text += &format!("change {id}; revert it with: {}\n", state.revert(id));
    }
    text += &format!("\n# to keep it, on QEMU's command line:\n{}\n", done.command_line);
    if let (Some(xml), Some(virsh)) = (&done.libvirt_xml, &done.virsh) {
        text +=
            &format!("# or in libvirt's <iothreadids>:\n{xml}\n# to set it now through libvirt:\n{virsh}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_and_the_maximum_also_a_time() {
        assert_eq!(assignment("poll_max_ns=300us"), Ok(("poll-max-ns".to_owned(), 300_000)));
        assert_eq!(assignment("poll-grow=-1"), Ok(("poll-grow".to_owned(), -1)));
        assert_eq!(assignment("aio-max-batch = 4"), Ok(("aio-max-batch".to_owned(), 4)));
        // As QEMU reads numbers.
        for (text, number) in
            [("0x10", 16), ("010", 8), ("+5", 5), ("0", 0), ("9223372036854775807", i64::MAX)]
        {
            assert_eq!(assignment(&format!("poll-max-ns={text}")), Ok(("poll-max-ns".to_owned(), number)));
        }
        for (wrong, why) in [
            ("poll-grow=2us", "poll-grow takes a whole number"),
            ("poll-grow=09", "poll-grow takes a whole number"),
            ("poll-max-ns", "write NAME=VALUE"),
            ("poll-max-ns=fast", "`fast` "),
            ("poll-max-ns=", "`` "),
            ("poll-max-ns=9223372036854775808", "more than 2^63 - 1 ns"),
            ("poll-max-ns=10000000000s", "more than 2^63 - 1 ns"),
        ] {
            let told = assignment(wrong).unwrap_err();
            assert!(told.contains(why), "{wrong}: {told}");
        }
    }
}
