//! `dwell iothread set`

use super::MonitorArgs;
use crate::command::apply::{self, How};
use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::state::StateArgs;
use anyhow::Context;
use dwell_knobs::change::Permission;
use dwell_knobs::iothread::{self, IoThread, Plan};
use dwell_knobs::journal::Id;
use dwell_knobs::knob::IothreadTarget;
use dwell_policy::Nanos;
use dwell_policy::iothread::Property;
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
    if let Ok(number) = value.trim().parse() {
        return Ok((name, number));
    }
    if name != Property::PollMaxNs.name() {
        return Err(format!("{name} takes a whole number"));
    }
    let ns: Nanos = value.trim().parse().map_err(|error| format!("`{}` {error}", value.trim()))?;
    i64::try_from(ns.get()).map(|ns| (name, ns)).map_err(|_| "more than 2^63 - 1 ns".to_owned())
}

#[derive(Serialize)]
struct Done<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    dry_run: bool,
    /// The number that takes it back; null if nothing was written.
    change: Option<Id>,
    commands: Vec<String>,
    virsh: String,
    libvirt_xml: String,
    command_line: String,
}

pub(super) fn run(args: &Args) -> Outcome {
    let machine = args.state.machine()?;
    let socket = args.monitor.socket()?;
    let mut monitor = iothread::connect(&machine, &socket)?;
    let thread = iothread::find(&mut monitor, &args.id)?;
    let plan = iothread::plan(&mut monitor, &thread, &args.values).context("nothing was changed")?;
    let version = monitor.greeting().version.clone();
    // A monitor serves one client at a time, and every write connects anew.
    drop(monitor);
    let target = IothreadTarget { socket, id: thread.id.clone(), domain: None };
    let journaled = plan.journaled(&thread, &version, target).context("nothing was changed")?;
    let change = if plan.changes.is_empty() {
        None
    } else {
        // What is asked for by hand is set although nothing may read it, as a factor where polling is off.
        let permission = Permission { force: false, no_effect: true };
        let how = How { persist: false, permission, dry_run: args.dry_run };
        apply::carry_out(&machine, &journaled, &args.state, how)?.1
    };
    let lines = iothread::persistence(&thread.id, &after(&thread, &plan));
    let done = Done {
        commands: plan.commands(),
        plan: &plan,
        dry_run: args.dry_run,
        change,
        virsh: lines.virsh,
        libvirt_xml: lines.xml,
        command_line: lines.object,
    };
    match args.format.format {
        Format::Json => output::json(&done)?,
        Format::Table | Format::Csv => output::text(&words(&done))?,
    }
    Ok(Answer::Yes)
}

/// The polling properties after the plan is applied.
fn after<'a>(thread: &'a IoThread, plan: &Plan) -> Vec<(&'a str, i64)> {
    let there = Property::ALL.iter().filter_map(|property| thread.properties.get_key_value(property.name()));
    let value = |name: &str, now: i64| {
        plan.changes.iter().find(|change| change.property == name).map_or(now, |change| change.to)
    };
    there.map(|(name, now)| (name.as_str(), value(name, *now))).collect()
}

fn words(done: &Done<'_>) -> String {
    let plan = done.plan;
    let mut text = String::new();
    for change in &plan.changes {
        let verb = if done.dry_run { "would set" } else { "set" };
        text += &format!("{verb} {} of {}: {} -> {}\n", change.property, plan.id, change.from, change.to);
    }
    for property in &plan.unchanged {
        text += &format!("{property} of {} has this value already; not written\n", plan.id);
    }
    if done.dry_run {
        done.commands.iter().for_each(|command| text += &format!("  {command}\n"));
    }
    if let Some(id) = done.change {
        text += &format!("change {id}; take it back with: dwell revert {id}\n");
    }
    text += &format!(
        "\n# to keep it, on QEMU's command line:\n{}\n# or in libvirt's <iothreadids>:\n{}\n# to set it now through libvirt:\n{}\n",
        done.command_line, done.libvirt_xml, done.virsh
    );
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
        for wrong in ["poll-grow=2us", "poll-max-ns", "poll-max-ns=fast", "poll-max-ns="] {
            assert!(assignment(wrong).is_err(), "{wrong}");
        }
    }
}
