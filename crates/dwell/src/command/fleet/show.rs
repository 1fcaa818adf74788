//! Choices as text and tables.

use super::Printed;
use crate::model;
use crate::output;
use dwell_fleet::{Choice, Used};
use dwell_policy::Layer;
use dwell_report::{Cell, Column, Table, duration};

/// Their number, as in `1 VM`.
pub(super) fn vms(number: usize) -> String {
    dwell_report::number_of(number as u128, "VM")
}

/// Choices by their figures; with the class of each if asked for.
pub(super) fn table_of(choices: &[&Choice], with_class: bool) -> Table {
    let class = with_class.then(|| Column::text("class", "class"));
    let columns = [
        Column::number("VMs", "vms"),
        Column::number("cost", "cost_ns").rank(3),
        Column::number("/optimum", "cost_over_optimum"),
        Column::number("gain", "gain_over_today"),
        Column::number("regret", "regret"),
        Column::number("p50", "regret_p50").rank(4),
        Column::number("p95", "regret_p95").rank(1),
        Column::number("p99", "regret_p99").rank(4),
        Column::number("worst", "regret_worst").rank(1),
        Column::text("worst VM", "worst_vm").rank(2),
        Column::number("worse", "vms_worse_than_today"),
        Column::text("settings", "settings").below(),
    ];
    let first = std::iter::once(Column::text("choice", "choice"));
    let mut table = Table::new(first.chain(class).chain(columns));
    for choice in choices {
        let text = |text: &Option<String>| text.clone().map_or(Cell::Missing, Cell::Text);
        let class = with_class.then(|| text(&choice.class));
        let cells = [
            Cell::Count(choice.vms as u128),
            // Shown as a time; programs get all digits.
            if with_class { Cell::Count(choice.cost_ns) } else { Cell::Nanos(choice.cost_ns as f64) },
            Cell::ratio(choice.cost_over_optimum),
            Cell::share(choice.gain_over_today),
            Cell::share(choice.regret),
            Cell::share(choice.regret_p50),
            Cell::share(choice.regret_p95),
            Cell::share(choice.regret_p99),
            Cell::share(choice.regret_worst),
            text(&choice.worst_vm),
            Cell::Count(choice.vms_worse_than_today as u128),
            Cell::Text(settings_words(&choice.settings)),
        ];
        table.push(std::iter::once(Cell::Text(choice.choice.clone())).chain(class).chain(cells));
    }
    table
}

/// Settings with the VMs that have them, if there are several.
fn settings_words(settings: &[Used]) -> String {
    let alone = settings.len() == 1;
    let word = |used: &Used| {
        if alone { used.setting.to_string() } else { format!("{} ({})", used.setting, vms(used.vms)) }
    };
    settings.iter().map(word).collect::<Vec<_>>().join("; ")
}

pub(super) fn print(printed: &Printed<'_>) -> anyhow::Result<()> {
    let rollout = printed.rollout;
    output::text(&output::wrapped(&format!(
        "{}: {} of {} recordings, {} layer, rule of {} {}; {} settings at a halt cost of {}; chosen on {}, figures of {}",
        printed.folder,
        model::episodes(printed.episodes),
        dwell_report::count((printed.recordings - printed.left_out.len()) as u128),
        printed.layer,
        if printed.layer == Layer::Iothread.name() { "QEMU" } else { "Linux" },
        printed.version,
        dwell_report::count(printed.settings_tried as u128),
        duration(printed.halt_cost_ns as f64),
        vms(rollout.vms_chosen_on),
        vms(rollout.vms_reported_on),
    )))?;
    let whole: Vec<&Choice> = rollout.choices.iter().filter(|choice| choice.class.is_none()).collect();
    output::text(&format!("\n{}", output::fitted(&table_of(&whole, false))))?;
    let classes = |choice: &&Choice| choice.class.is_some() && choice.choice == dwell_fleet::A_CLASS;
    let classes: Vec<Choice> = rollout
        .choices
        .iter()
        .filter(classes)
        .map(|choice| Choice { choice: choice.class.clone().unwrap_or_default(), ..choice.clone() })
        .collect();
    if !classes.is_empty() {
        let table = table_of(&classes.iter().collect::<Vec<_>>(), false);
        output::text(&format!("\nOne setting for each class:\n\n{}", output::fitted(&table)))?;
    }
    for note in &printed.notes {
        output::text(&format!("\n{}", output::wrapped(&format!("note: {note}"))))?;
    }
    Ok(())
}
