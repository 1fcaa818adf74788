//! Choices as text and tables.

use super::Printed;
use crate::model;
use crate::output;
use dwell_fleet::{Choice, Used};
use dwell_report::{Cell, Column, Table, duration};

/// Their number, as in `1 VM`.
pub(super) fn vms(number: usize) -> String {
    dwell_report::number_of(number as u128, "VM")
}

/// Choices by their figures; with the class of each if asked for.
pub(super) fn table_of<'a>(choices: impl IntoIterator<Item = &'a Choice>, with_class: bool) -> Table {
    let mut table =
        Table::of(choices).column(Column::text("choice", "choice"), |choice| choice.choice.as_str());
    if with_class {
        table = table.column(Column::text("class", "class"), |choice| choice.class.as_deref());
    }
    table
        .column(Column::number("VMs", "vms"), |choice| choice.vms)
        .column(Column::number("cost", "cost_ns").rank(3), |choice| Cell::Time(choice.cost_ns))
        .column(Column::number("/optimum", "cost_over_optimum"), |choice| {
            Cell::ratio(choice.cost_over_optimum)
        })
        .column(Column::number("gain", "gain_over_today"), |choice| Cell::share(choice.gain_over_today))
        .column(Column::number("regret", "regret"), |choice| Cell::share(choice.regret))
        .column(Column::number("p50", "regret_p50").rank(4), |choice| Cell::share(choice.regret_p50))
        .column(Column::number("p95", "regret_p95").rank(1), |choice| Cell::share(choice.regret_p95))
        .column(Column::number("p99", "regret_p99").rank(4), |choice| Cell::share(choice.regret_p99))
        .column(Column::number("worst", "regret_worst").rank(1), |choice| Cell::share(choice.regret_worst))
        .column(Column::text("worst VM", "worst_vm").rank(2), |choice| choice.worst_vm.as_deref())
        .column(Column::number("worse", "vms_worse_than_today"), |choice| choice.vms_worse_than_today)
        .column(Column::text("settings", "settings").below(), |choice| settings_words(&choice.settings))
        .table()
}

/// Settings with the VMs that have them, if there are several.
fn settings_words(settings: &[Used]) -> String {
    let alone = settings.len() == 1;
    let word = |used: &Used| {
        if alone { used.setting.to_string() } else { format!("{} ({})", used.setting, vms(used.vms)) }
    };
    settings.iter().map(word).collect::<Vec<_>>().join("; ")
}

pub(super) fn words(printed: &Printed<'_>) -> String {
    let rollout = printed.rollout;
    let mut text = output::wrapped(&format!(
        "{}: {} of {}, {}; {} settings at a halt cost of {}; chosen on {}, figures of {}",
        printed.folder,
        model::episodes(printed.episodes),
        dwell_report::number_of((printed.recordings - printed.left_out.len()) as u128, "recording"),
        model::rule_of(printed.layer, &printed.version),
        dwell_report::count(printed.settings_tried as u128),
        duration(printed.halt_cost_ns as f64),
        vms(rollout.vms_chosen_on),
        vms(rollout.vms_reported_on),
    ));
    let whole = rollout.choices.iter().filter(|choice| choice.class.is_none());
    text += &format!("\n{}", output::fitted(&table_of(whole, false)));
    let classes = |choice: &&Choice| choice.class.is_some() && choice.choice == dwell_fleet::A_CLASS;
    let classes: Vec<Choice> = rollout
        .choices
        .iter()
        .filter(classes)
        .map(|choice| Choice { choice: choice.class.clone().unwrap_or_default(), ..choice.clone() })
        .collect();
    if !classes.is_empty() {
        let table = output::fitted(&table_of(&classes, false));
        text += &format!("\nOne setting for each class:\n\n{table}");
    }
    for note in &printed.notes {
        text += &format!("\n{}", output::wrapped(&dwell_report::harmless::line(&format!("note: {note}"))));
    }
    text
}
