//! What control would have cost, as text and tables.

use super::{Controlled, Vm, Worst};
use crate::command::replay::table;
use crate::model;
use crate::output;
use dwell_control::daemon::decisions::{Slice, fewer};
use dwell_control::{Simulated, TENTH_NS};
use dwell_report::{Cell, Column, Table, duration, percent};

/// The costs of each tenth of a second, or of several together.
pub(super) fn costs(simulated: &Simulated) -> Vec<Slice> {
    let slice = |(number, &[measured_ns, originals_ns, optimum_ns]): (u64, &[f64; 3])| Slice {
        from_ns: number * TENTH_NS,
        to_ns: (number + 1) * TENTH_NS,
        measured_ns,
        originals_ns,
        optimum_ns,
    };
    fewer((0..).zip(&simulated.tenths_ns).map(slice).collect())
}

pub(super) fn changes(controlled: &Controlled) -> Table {
    Table::of(&controlled.changes)
        .column(Column::number("after", "at_ns"), |change| Cell::Nanos(change.at_ns as f64))
        .column(Column::text("setting", "setting"), |change| change.to.to_string())
        .column(Column::number("writes", "writes"), |change| change.writes)
        .column(Column::text("change and reason", "reason"), |change| change.reason.clone())
        .table()
}

/// What control costs each VM.
pub(super) fn vms(vms: &[Vm]) -> Table {
    Table::of(vms)
        .column(Column::text("VM", "file"), |vm| vm.file.as_str())
        .column(Column::number("weight", "weight"), |vm| vm.weight.to_string())
        .column(Column::number("limit", "most_loss"), |vm| Cell::share(vm.most_loss))
        .column(Column::number("cost", "controlled_ns"), |vm| Cell::Nanos(vm.controlled_ns as f64))
        .column(Column::number("originals", "originals_ns"), |vm| Cell::Nanos(vm.originals_ns as f64))
        .column(Column::number("ratio", "ratio"), |vm| {
            Cell::Ratio(vm.controlled_ns as f64 / vm.originals_ns as f64)
        })
        .column(Column::number("vetoes", "vetoes"), |vm| vm.vetoes)
        .table()
}

pub(super) fn words(controlled: &Controlled) -> String {
    let mut text = output::wrapped(&format!(
        "{}: {} over {}, {}",
        controlled.name(),
        model::episodes_of(controlled.episodes, controlled.idlers),
        duration(controlled.span_ns as f64),
        model::rule_of(controlled.layer, &controlled.version),
    ));
    let halt_cost = model::halt_cost_words(controlled.halt_cost_ns, controlled.halt_cost_origin);
    text += &output::wrapped(&format!("halt cost: {halt_cost}"));
    text += &output::wrapped(&format!("originals: {}", controlled.originals));
    text += "\n";
    for change in &controlled.changes {
        let at = format!("{:>9}  ", duration(change.at_ns as f64));
        text += &output::hanging(&at, &" ".repeat(at.len()), &change.reason);
    }
    let writes: usize = controlled.changes.iter().map(|change| change.writes).sum();
    let share = |kept: Option<f64>| kept.map_or_else(|| "there is none".to_owned(), percent);
    text += &format!(
        "{}decisions: {}, changes: {}, parameters written: {writes}\n\n{}\n",
        if controlled.changes.is_empty() { "" } else { "\n" },
        controlled.decisions,
        controlled.changes.len(),
        output::fitted(&table(&controlled.results, false)),
    );
    if !controlled.vms.is_empty() {
        text += &format!("{}\n", output::fitted(&vms(&controlled.vms)));
    }
    text += &format!(
        "kept of the gain of the leader             {}\n\
         kept of the gain of the best in hindsight  {}\n",
        share(controlled.keeps_of_leader),
        share(controlled.keeps_of_best)
    );
    let Worst { controlled_ns, originals_ns } = controlled.worst_ten_seconds;
    if originals_ns > 0.0 {
        text += &format!(
            "worst 10 s: {} under control, {} under the originals, ratio {:.3}\n",
            duration(controlled_ns),
            duration(originals_ns),
            controlled_ns / originals_ns
        );
    }
    text + &output::notes(&controlled.notes)
}
