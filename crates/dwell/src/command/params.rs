//! `dwell params`

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::settings;
use dwell_policy::Owner;
use dwell_policy::arch::Arch;
use dwell_policy::catalogue::Entry;
use dwell_policy::param::{self, Param};
use dwell_policy::version::{NEWEST_KERNEL, NEWEST_QEMU, Version};
use dwell_replay::{Catalogue, Versions};
use dwell_report::{Cell, Column, Table};
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
    let mut table =
        Table::new([Column::text("policy", "grammar"), Column::text("what it does", "about").rank(1)]);
    for policy in &all {
        table.push([Cell::Text(policy.grammar.clone()), Cell::Text(policy.about.to_owned())]);
    }
    match format {
        Format::Json => output::json(&all)?,
        Format::Csv => output::csv(&table)?,
        Format::Table => output::text(&output::fitted(&table))?,
    }
    Ok(Answer::Yes)
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
    match args.format.format {
        Format::Json => output::json(&described)?,
        Format::Csv => output::csv(&table(&described, true))?,
        Format::Table => output::text(&output::fitted(&table(&described, false)))?,
    }
    Ok(Answer::Yes)
}

fn table(described: &[Described], all_columns: bool) -> Table {
    let mut columns = vec![
        Column::text("layer", "layer").rank(0),
        Column::text("parameter", "name"),
        Column::text("unit", "unit").rank(2),
        Column::number("least", "min").rank(3),
        Column::number("greatest", "max").rank(3),
        Column::number("default", "default"),
        Column::text("version", "version").rank(4),
        Column::text("what it does", "about").rank(1),
        Column::text("0 means", "zero").rank(5),
        Column::text("where it is set", "home").rank(6),
    ];
    if all_columns {
        columns.push(Column::text("source", "source"));
    }
    let mut table = Table::new(columns);
    for param in described {
        let number = |n: i64| Cell::Text(n.to_string());
        let text = |t: &str| Cell::Text(t.to_owned());
        let mut row = vec![
            text(param.layer),
            text(param.name),
            text(param.unit),
            number(param.min),
            number(param.max),
            number(param.default),
            text(&param.version),
            text(param.about),
            text(param.zero),
            text(param.home),
        ];
        if all_columns {
            row.push(text(param.source));
        }
        table.push(row);
    }
    table
}
