//! `dwell iothread`

mod bench;
mod predict;
mod set;
pub(crate) mod turn;

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use anyhow::Context;
use clap::Subcommand;
pub(crate) use dwell_control::daemon::{kernel_thread, usage};
use dwell_knobs::iothread::{self, IoThread};
use dwell_knobs::qmp::{Limits, Monitor};
use dwell_policy::iothread::Property;
use dwell_report::{Cell, Column, Table};
use serde::Serialize;
use std::path::PathBuf;

/// List, set and measure the I/O threads of a running QEMU
///
/// Needs the QMP monitor of QEMU or qemu-storage-daemon as a UNIX socket (`-qmp unix:PATH,server=on,wait=off`), which
/// serves one client at a time. Two commands change values: `set`, which `dwell revert` undoes, and `bench`, which
/// restores them at the end.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List I/O threads with their polling properties
    List(List),
    Set(set::Args),
    Bench(bench::Args),
}

#[derive(clap::Args)]
struct MonitorArgs {
    /// UNIX socket of QEMU's monitor (QMP)
    #[arg(long, value_name = "SOCKET")]
    qmp: PathBuf,
}

impl MonitorArgs {
    /// The socket, from the root on.
    fn socket(&self) -> anyhow::Result<String> {
        let path = std::path::absolute(&self.qmp).with_context(|| format!("--qmp {}", self.qmp.display()))?;
        Ok(path.to_str().context("--qmp: the path of the socket is no UTF-8")?.to_owned())
    }

    fn connect(&self) -> anyhow::Result<Monitor> {
        Ok(Monitor::connect(&self.qmp, Limits::default())?)
    }
}

#[derive(clap::Args)]
struct List {
    #[command(flatten)]
    monitor: MonitorArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Listed {
    qemu: String,
    package: String,
    iothreads: Vec<IoThread>,
}

pub(crate) fn run(args: Args) -> Outcome {
    match args.what {
        What::List(args) => list(&args),
        What::Set(args) => set::run(&args),
        What::Bench(args) => bench::run(&args),
    }
}

fn list(args: &List) -> Outcome {
    let mut monitor = args.monitor.connect()?;
    let iothreads = iothread::list(&mut monitor)?;
    let greeting = monitor.greeting();
    let listed = Listed { qemu: greeting.version.clone(), package: greeting.package.clone(), iothreads };
    match args.format.format {
        Format::Json => output::json(&listed)?,
        Format::Csv => output::csv(&table(&listed.iothreads))?,
        Format::Table => {
            output::text(&format!("QEMU {} {}\n", listed.qemu, listed.package))?;
            if listed.iothreads.is_empty() {
                output::text("this QEMU has no I/O thread; -object iothread,id=io0 adds one\n")?;
            } else {
                output::text(&output::fitted(&table(&listed.iothreads)))?;
            }
        }
    }
    Ok(Answer::Yes)
}

fn table(iothreads: &[IoThread]) -> Table {
    let columns = [Column::text("id", "id"), Column::number("thread", "thread_id")];
    let properties = Property::ALL.map(|property| Column::number(property.name(), property.name()));
    let mut table = Table::new(columns.into_iter().chain(properties));
    for thread in iothreads {
        let value = |property: Property| {
            let value = thread.properties.get(property.name());
            value.map_or(Cell::Missing, |value| Cell::Text(value.to_string()))
        };
        let tid = thread.thread_id.map_or(Cell::Missing, |tid| Cell::Text(tid.to_string()));
        table.push([Cell::Text(thread.id.to_string()), tid].into_iter().chain(Property::ALL.map(value)));
    }
    table
}
