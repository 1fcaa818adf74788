//! `dwell iothread`

mod bench;
mod predict;
mod set;

use crate::failure::Outcome;
use crate::output::{self, FormatArg};
use anyhow::Context;
use clap::Subcommand;
pub(crate) use dwell_control::daemon::{kernel_thread, usage};
use dwell_knobs::iothread::{self, IoThread};
use dwell_machine::Sysroot;
use dwell_policy::iothread::Property;
use dwell_report::{Column, Table};
use serde::Serialize;
use std::path::{Path, PathBuf};

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

/// The path of a monitor's socket, from the root on; as QEMU's option has it, too: `unix:PATH,server=on`.
pub(crate) fn socket(qmp: &Path) -> anyhow::Result<String> {
    let path = qmp.to_str().context("--qmp: the path of the socket is not UTF-8")?;
    let path = path.strip_prefix("unix:").map_or(path, |path| path.split(',').next().unwrap_or(path));
    let path = std::path::absolute(path).with_context(|| format!("--qmp {}", qmp.display()))?;
    Ok(path.to_str().context("--qmp: the path of the socket is not UTF-8")?.to_owned())
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
    let mut monitor = iothread::connect(&Sysroot::of_this_machine(), &socket(&args.monitor.qmp)?)?;
    let iothreads = iothread::list(&mut monitor)?;
    let greeting = monitor.greeting();
    let listed = Listed { qemu: greeting.version.clone(), package: greeting.package.clone(), iothreads };
    let table = || table(&listed.iothreads);
    output::result(args.format.format, &listed, table, || {
        let threads = match listed.iothreads.is_empty() {
            true => "this QEMU has no I/O thread; -object iothread,id=io0 adds one\n".to_owned(),
            false => output::fitted(&table()),
        };
        format!("QEMU {} {}\n{threads}", listed.qemu, listed.package)
    })
}

fn table(iothreads: &[IoThread]) -> Table {
    let mut table = Table::of(iothreads)
        .column(Column::text("id", "id"), |thread| thread.id.to_string())
        .column(Column::number("thread", "thread_id"), |thread| thread.thread_id.map(|tid| tid.to_string()));
    for property in Property::ALL.map(Property::name) {
        table = table.column(Column::number(property, property), |thread| {
            thread.properties.get(property).map(i64::to_string)
        });
    }
    table.table()
}
