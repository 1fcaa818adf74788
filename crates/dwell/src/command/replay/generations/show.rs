//! Rules compared, as text and tables.

use super::{Compared, Result, Weight};
use crate::model;
use crate::output;
use dwell_policy::iothread::{Release, Revision};
use dwell_policy::version::Version;
use dwell_recording::Metadata;
use dwell_report::{Cell, Column, Table, duration, percent, priced};

/// From the recorded generation, else the oldest, to the newest, each with its defaults.
pub(super) fn upgrade(results: &[Result], metadata: &Metadata, handlers: usize) -> String {
    let recorded = metadata.qemu.as_deref().and_then(Version::parse);
    let revision = recorded
        .and_then(|version| Release::new(version).ok())
        .map_or(Revision::Global, |release| release.revision());
    let defaults =
        |revision: Revision| results.iter().find(|r| r.rule == revision.name() && r.which == "defaults");
    let (Some(old), Some(new)) = (defaults(revision), defaults(Revision::Weighted)) else {
        return String::new();
    };
    if revision == Revision::Weighted {
        return format!("the recorded QEMU already has the rule of {}", new.qemu);
    }
    let change = |old: f64, new: f64| match old {
        _ if old == new => "the same".to_owned(),
        0.0 => "more than none".to_owned(),
        _ => format!("{}{}", if new > old { "+" } else { "-" }, percent((new - old).abs() / old)),
    };
    // The rules since 10.0 keep a time for each handler.
    let of = match handlers {
        0 | 1 => {
            " and replayed as if one handler did everything, since the recording has none (with several the sign may \
                  be the opposite)"
        }
        _ => "",
    };
    format!(
        "from {} to {}, each with its defaults{of}: polling CPU {}, halts {}, cost {}",
        old.qemu,
        new.qemu,
        change(old.row.figures.polled_ns as f64, new.row.figures.polled_ns as f64),
        change(old.row.figures.halts as f64, new.row.figures.halts as f64),
        change(old.row.figures.cost_ns as f64, new.row.figures.cost_ns as f64),
    )
}

pub(super) fn table(results: &[Result]) -> Table {
    let mut columns = vec![
        Column::text("QEMU", "qemu"),
        Column::text("rule", "rule").rank(4),
        Column::text("setting", "which"),
    ];
    columns.extend(priced::columns(false));
    columns.push(Column::text("values", "values").below());
    let mut table = Table::new(columns);
    for Result { qemu, rule, which, row } in results {
        let mut cells =
            vec![Cell::Text(qemu.clone()), Cell::Text((*rule).to_owned()), Cell::Text((*which).to_owned())];
        cells.extend(priced::cells(&row.figures, false));
        cells.push(Cell::Text(row.setting.to_string()));
        table.push(cells);
    }
    table
}

fn weights_table(smoothed: &[Weight]) -> Table {
    Table::of(smoothed)
        .column(Column::number("weight", "weight"), |row| row.weight.to_string())
        .column(Column::number("smoothed block time", "mean_handler_ns"), |row| {
            Cell::Nanos(row.mean_handler_ns)
        })
        .column(Column::number("forgotten", "forgotten_share"), |row| Cell::Share(row.forgotten_share))
        .column(Column::number("polling time", "mean_window_ns"), |row| Cell::Nanos(row.mean_window_ns))
        .table()
}

pub(super) fn print(compared: &Compared) -> anyhow::Result<()> {
    output::text(&output::wrapped(&format!(
        "{}: {} over {}; halt cost {}",
        compared.file,
        model::episodes_of(compared.episodes, compared.idlers),
        duration(compared.span_ns as f64),
        duration(compared.halt_cost_ns as f64),
    )))?;
    let optimum = duration(compared.optimum_cost_ns as f64);
    output::text(&format!("optimum, a lower bound for any policy: {optimum}\n\n"))?;
    output::text(&output::fitted(&table(&compared.results)))?;
    if let Some(span_ns) = compared.best_span_ns {
        let span = duration(span_ns as f64);
        let heading =
            format!("Best setting of each, chosen on the first half, measured on the second ({span}):");
        output::text(&format!("\n{}\n", output::wrapped(&heading)))?;
        output::text(&output::fitted(&table(&compared.best)))?;
    }
    let heading =
        "Rule of 11.1 by poll-weight (a new block time counts for 1/2^weight), means over all episodes:";
    output::text(&format!("\n{}\n", output::wrapped(heading)))?;
    output::text(&output::fitted(&weights_table(&compared.smoothed)))?;
    output::text(&format!("\n{}", output::wrapped(&format!("Upgrade: {}", compared.upgrade))))?;
    for note in &compared.notes {
        output::text(&output::wrapped(&format!("note: {note}")))?;
    }
    Ok(())
}
