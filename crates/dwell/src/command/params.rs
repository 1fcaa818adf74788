//! `dwell params`

use crate::failure::Outcome;
use crate::output::{self, Format, FormatArg};
use crate::settings;
use dwell_policy::Owner;
use dwell_policy::arch::Arch;
use dwell_policy::catalogue::Entry;
use dwell_policy::param::{self, Param};
use dwell_policy::version::{NEWEST_KERNEL, NEWEST_QEMU, Version};
use dwell_replay::{Catalogue, Versions};
use dwell_report::{Column, Table};
use serde::Serialize;

/// List the parameters of every rule, with units, ranges and defaults
///
/// Also prints what 0 means and where each parameter is set.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only parameters of this layer: guest, host, timer, driver or iothread
    #[arg(long, value_parser = crate::suggest::owners(settings::owner))]
    layer: Option<Owner>,
    /// Kernel release whose parameters and defaults to list, for guest, host, timer and driver
    #[arg(long, value_name = "VERSION", hide_possible_values = true, value_parser = crate::suggest::kernels(settings::kernel), default_value_t = NEWEST_KERNEL)]
    kernel: Version,
    /// Architecture whose parameters and defaults to list, as uname -m prints it
    ///
    /// [default: that of the release, else x86_64]
    #[arg(long, value_name = "ARCH", value_parser = settings::arch)]
    arch: Option<Arch>,
    /// QEMU release whose parameters and defaults to list, for iothread
    #[arg(long, value_name = "VERSION", hide_possible_values = true, value_parser = crate::suggest::qemus(settings::qemu), default_value_t = NEWEST_QEMU)]
    qemu: Version,
    /// List the policies that --policy accepts instead, with their syntax
    #[arg(long, conflicts_with_all = ["layer", "kernel", "qemu", "arch"])]
    policies: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// A policy of the catalogue.
#[derive(Serialize)]
struct Policy {
    name: &'static str,
    grammar: String,
    about: &'static str,
}

fn policies(format: Format) -> Outcome {
    let catalogue = Catalogue::default();
    let policy =
        |entry: &Entry| Policy { name: entry.name, grammar: entry.grammar().to_string(), about: entry.about };
    let all: Vec<Policy> = catalogue.entries().map(policy).collect();
    let table = || {
        Table::of(&all)
            .column(Column::text("policy", "grammar"), |policy| policy.grammar.as_str())
            .column(Column::text("what it does", "about").rank(1), |policy| policy.about)
            .table()
    };
    output::result(format, &all, table, || output::fitted(&table()))
}

#[derive(Serialize)]
struct Described {
    layer: &'static str,
    name: &'static str,
    unit: &'static str,
    min: i64,
    max: i64,
    default: i64,
    version: String,
    zero: &'static str,
    about: &'static str,
    home: &'static str,
    source: &'static str,
}

impl Described {
    fn of(param: &'static Param, version: Version) -> Option<Described> {
        Some(Described {
            layer: param.owner.name(),
            name: param.name,
            unit: param.unit.name(),
            min: param.min,
            max: param.max,
            default: param.default_in(version)?,
            version: version.to_string(),
            zero: param.zero,
            about: param.about,
            home: param.home,
            source: param.source,
        })
    }
}

pub(crate) fn run(args: Args) -> Outcome {
    if args.policies {
        return policies(args.format.format);
    }
    let mut described = vec![];
    let kernel = args.kernel.on(args.arch.unwrap_or(args.kernel.arch));
    let versions = Versions { kernel, qemu: args.qemu };
    for owner in Owner::ALL.into_iter().filter(|owner| args.layer.is_none_or(|asked| asked == *owner)) {
        let version = versions.of(owner);
        described.extend(param::of_version(owner, version).filter_map(|param| Described::of(param, version)));
    }
    let lacks = args.layer.filter(|_| described.is_empty()).and_then(|owner| kernel.arch.lacks(owner));
    lacks.iter().for_each(|why| output::note(why));
    output::result(
        args.format.format,
        &described,
        || table(&described, true),
        || output::fitted(&table(&described, false)),
    )
}

fn table(described: &[Described], all_columns: bool) -> Table {
    let table = Table::of(described)
        .column(Column::text("layer", "layer").rank(0), |param| param.layer)
        .column(Column::text("parameter", "name"), |param| param.name)
        .column(Column::text("unit", "unit").rank(2), |param| param.unit)
        .column(Column::number("least", "min").rank(3), |param| param.min.to_string())
        .column(Column::number("greatest", "max").rank(3), |param| param.max.to_string())
        .column(Column::number("default", "default"), |param| param.default.to_string())
        .column(Column::text("version", "version").rank(4), |param| param.version.as_str())
        .column(Column::text("what it does", "about").rank(1), |param| param.about)
        .column(Column::text("0 means", "zero").rank(5), |param| param.zero)
        .column(Column::text("where it is set", "home").rank(6), |param| param.home);
    if !all_columns {
        return table.table();
    }
    table.column(Column::text("source", "source"), |param| param.source).table()
}
