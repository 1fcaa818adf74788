//! KVM's statistics of each arm, per round of the experiment.

use dwell_lab::experiment::KvmCountsByArm;
use dwell_report::{Cell, Column, Table};
use dwell_stats::Measurements;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Of one arm.
#[derive(Serialize)]
pub(crate) struct ArmCounts {
    arm: String,
    /// By KVM's names; zeros are left out.
    per_round: BTreeMap<String, f64>,
}

pub(crate) fn of(record: &Measurements, kept: &KvmCountsByArm) -> Vec<ArmCounts> {
    let arms = record.arms.iter().enumerate();
    arms.map(|(number, arm)| ArmCounts {
        arm: arm.name.clone(),
        per_round: kept.per_round(number).into_iter().map(|(name, n)| (name.to_owned(), n)).collect(),
    })
    .collect()
}

/// Fewer than this many per round would be printed as 0.
const SHOWN_AS_NONE: f64 = 0.005;

/// As a table under a heading; a round is called `round`.
pub(crate) fn text(arms: &[ArmCounts], round: &str) -> String {
    let shown = arms.iter().flat_map(|arm| arm.per_round.iter().filter(|(_, n)| **n >= SHOWN_AS_NONE));
    let names: BTreeSet<&String> = shown.map(|(name, _)| name).collect();
    // The first arm is the baseline.
    let columns = (0..).zip(arms).map(|(place, arm)| Column::number(&arm.arm, &arm.arm).rank(place));
    let mut table = Table::new([Column::text("KVM's name", "name")].into_iter().chain(columns));
    for name in names {
        let cell =
            |value: &f64| if name.ends_with("_ns") { Cell::Nanos(*value) } else { Cell::Ratio(*value) };
        let cells = arms.iter().map(|arm| arm.per_round.get(name).map_or(Cell::Missing, cell));
        table.push([Cell::Text(name.clone())].into_iter().chain(cells));
    }
    format!(
        "\nMeasured: KVM's statistics of the vCPU per {round}; zeros are left out:\n\n{}",
        dwell_cli::output::fitted(&table)
    )
}
