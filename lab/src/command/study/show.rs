//! Costs of policies as text and tables.

use super::{AtPrice, Studied, SummaryJson};
use dwell_cli::output;
use dwell_lab::study::Subject;
use dwell_recording::IdleIncludes;
use dwell_replay::latency;
use dwell_report::{Cell, Column, Table, duration, harmless};

/// Recordings by policies, and below them the means and the worst.
fn table(at: &AtPrice) -> Table {
    let subjects = Subject::all();
    // Today's rules, the leader and the best in hindsight are the most important columns.
    let rank = |name: &str| match name {
        "kvm" | "haltpoll" | "leader" | "best fixed" => 0,
        "best kvm" | "savings" => 1,
        "never" | "ski rental" => 2,
        _ => 3,
    };
    let policies = subjects
        .iter()
        .map(|subject| Column::number(subject.name(), subject.name()).rank(rank(subject.name())));
    let head = [Column::text("recording", "recording"), Column::number("episodes", "episodes").rank(9)];
    let mut table = Table::new(head.into_iter().chain(policies));
    for one in &at.recordings {
        let late = if one.about.idle_includes == IdleIncludes::Wake { "†" } else { "" };
        // No blank: a name and its marks stay on one line.
        let name = format!("{}{}{late}", one.about.recording, if one.about.fitted { "*" } else { "" });
        let ratios = subjects.iter().map(|subject| Cell::ratio(one.cost_over_optimum[subject.name()]));
        let first = [Cell::Text(name), Cell::Count(one.about.episodes.into())];
        table.push(first.into_iter().chain(ratios));
    }
    let mut row = |name: &str, value: &dyn Fn(&SummaryJson) -> Cell| {
        let cells = at.summary.iter().map(value);
        let first = [Cell::Text(name.to_owned()), Cell::Text(String::new())];
        table.push(first.into_iter().chain(cells));
    };
    // Means differ in their fourth digit.
    let fine = |mean: Option<f64>| mean.map_or(Cell::Missing, |mean| Cell::Text(format!("{mean:.4}")));
    row("geometric mean", &|of| fine(of.geometric_mean));
    if at.recordings.iter().any(|one| !one.about.latency_known) {
        let name = format!("  with {} of latency or what there is", duration(latency::UPPER.get() as f64));
        row(&name, &|of| fine(of.geometric_mean_late));
    }
    if at.recordings.iter().any(|one| one.about.fitted) {
        row("  of those with *", &|of| fine(of.geometric_mean_fitted));
        row("  of the others", &|of| fine(of.geometric_mean_others));
    }
    row("worst", &|of| Cell::ratio(of.worst));
    table
}

/// A row for each price, recording and policy.
pub(super) fn long(studied: &Studied) -> Table {
    let recordings = studied.prices.iter().flat_map(|at| at.recordings.iter().map(move |one| (at, one)));
    let rows =
        recordings.flat_map(|(at, one)| Subject::all().into_iter().map(move |subject| (at, one, subject)));
    Table::of(rows)
        .column(Column::number("halt cost", "halt_cost_ns"), |(at, ..)| at.halt_cost_ns)
        .column(Column::text("recording", "recording"), |(_, one, _)| one.about.recording.as_str())
        .column(Column::text("layer", "layer"), |(_, one, _)| one.about.layer)
        .column(Column::text("fitted", "fitted"), |(_, one, _)| one.about.fitted.to_string())
        .column(Column::number("episodes", "episodes"), |(_, one, _)| one.about.episodes)
        .column(Column::text("policy", "policy"), |(.., subject)| subject.name())
        .column(Column::number("/optimum", "cost_over_optimum"), |(_, one, subject)| {
            Cell::ratio(one.cost_over_optimum[subject.name()])
        })
        .table()
}

pub(super) fn words(studied: &Studied) -> String {
    let episodes: u64 = studied.prices[0].recordings.iter().map(|one| one.about.episodes).sum();
    let head = format!(
        "{}: {} of {}, rules of Linux {}; cost / optimum",
        studied.folder,
        dwell_report::number_of(episodes.into(), "episode"),
        dwell_report::number_of(studied.prices[0].recordings.len() as u128, "recording"),
        studied.kernel,
    );
    let any_fitted = studied.prices[0].recordings.iter().any(|one| one.about.fitted);
    let split = if any_fitted { output::wrapped(&studied.split) } else { String::new() };
    let mut text = output::wrapped(&head) + &split;
    for at in &studied.prices {
        let price = duration(at.halt_cost_ns as f64);
        text += &format!("\nHalt cost {price}:\n\n{}", output::fitted(&table(at)));
    }
    for note in &studied.notes {
        text += &format!("\n{}", output::wrapped(&harmless::line(&format!("note: {note}"))));
    }
    text
}
