//! Programs that serve the same requests in turns: the table of what was measured, and the rows that lose.

use dwell_stats::{
    Arms, Block, Campaign, CampaignError, CampaignOptions, Environment, Figure, Gating, Interval, Results,
};
use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A column of the table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// The figure of an arm.
    pub figure: &'static str,
    /// What the figure is divided by.
    pub scale: f64,
    /// The ratio to the first row instead of the value.
    pub ratio: bool,
}

impl Column {
    /// The figure itself.
    pub const fn value(head: &'static str, figure: &'static str, scale: f64) -> Column {
        Column { head, figure, scale, ratio: false }
    }

    /// The figure's ratio to the first row.
    pub const fn ratio(head: &'static str, figure: &'static str) -> Column {
        Column { head, figure, scale: 1.0, ratio: true }
    }
}

/// Programs that serve the same requests in turns, in some cells within one budget of time.
pub struct Contest<'a> {
    /// What is measured of a block.
    pub figures: Vec<Figure>,
    /// What is printed of it.
    pub columns: &'a [Column],
    /// CPU time per request and requests per second, by which rows lose.
    pub compared: [&'a str; 2],
    /// Whether a row that loses is one of ours.
    pub ours: fn(&str) -> bool,
    /// When all has to be over.
    pub ends: Instant,
    /// The rows that have lost.
    pub losing: Vec<String>,
}

impl Contest<'_> {
    /// Measures one cell and prints its table: an equal part of what is left of the time, of so many cells with this one.
    /// `measure` takes the place of a server in `servers` and the number of the block; the first server is what the others are
    /// compared with.
    ///
    /// # Errors
    /// A block cannot be measured.
    ///
    /// # Panics
    /// Two servers, or two figures, have one name.
    pub fn cell<E: Error + 'static>(
        &mut self,
        cell: &str,
        servers: &[&str],
        cells_left: usize,
        environment: &mut dyn Environment,
        mut measure: impl FnMut(usize, u64) -> Result<Block, E>,
    ) -> Result<Results, CampaignError<E>> {
        let mut arms = Arms::new(servers[0], 0usize);
        for (place, name) in servers.iter().enumerate().skip(1) {
            arms = arms.arm(name, place);
        }
        let rows = rows(&arms);
        let left = self.ends.saturating_duration_since(Instant::now());
        let options = CampaignOptions {
            min_rounds: 6,
            budget: left / u32::try_from(cells_left.max(1)).unwrap_or(u32::MAX),
            foreign_limit: 0.1,
            repeats: 2,
            quiet_wait: Duration::from_millis(500),
            ..CampaignOptions::default()
        };
        let campaign = Campaign::new(cell, arms, self.figures.clone(), options).expect("different names");
        let measured = campaign.run(environment, &AtomicBool::new(false), &mut |_| (), |trial| {
            measure(*trial.setting, trial.sequence)
        })?;
        let results = measured.results();
        self.losing.extend(print(cell, &results, &rows, self.columns, self.compared, self.ours));
        Ok(results)
    }

    /// Prints the rows that lose, of all cells.
    pub fn print_losing(&self) {
        println!("\n### Rows that lose to the first one beyond the intervals\n");
        self.losing.iter().for_each(|row| println!("* {row}"));
        if self.losing.is_empty() {
            println!("none");
        }
        println!("\nload average at the end: {}", load_average());
    }
}

/// The arms in the order of the rows: what the others are compared with, the same once more (A/A), the others.
fn rows<S>(arms: &Arms<S>) -> Vec<String> {
    let mut rows: Vec<String> = arms.as_slice().iter().map(|arm| arm.name.clone()).collect();
    rows.rotate_right(1);
    rows.swap(0, 1);
    rows
}

/// Prints the table of one cell. Returns the rows of which `ours` holds that have more CPU time per request, or fewer requests, than
/// the first one, beyond the intervals.
fn print(
    cell: &str,
    results: &Results,
    rows: &[String],
    columns: &[Column],
    [cpu, requests]: [&str; 2],
    ours: impl Fn(&str) -> bool,
) -> Vec<String> {
    println!("\n### {cell}\n");
    let Gating { blocks, rejected, disturbed, .. } = results.gating;
    println!(
        "{} rounds; of {blocks} blocks {disturbed} count in spite of foreign load, {rejected} attempts do not\n",
        results.rounds
    );
    println!("| server |{}", columns.iter().map(|column| format!(" {} |", column.head)).collect::<String>());
    println!("|---|{}", "--:|".repeat(columns.len()));
    let mut losing = vec![];
    for arm in rows {
        let ratio = |figure| results.row(arm, figure).and_then(|row| row.ratio());
        let cells = columns.iter().map(|column| {
            let value = results.row(arm, column.figure).and_then(|row| row.value);
            let value = if column.ratio { ratio(column.figure) } else { value };
            format!(" {} |", shown(value, column.scale))
        });
        println!("| {arm} |{}", cells.collect::<String>());
        let dearer = ratio(cpu).is_some_and(|cpu| cpu.low > 1.0);
        let slower = ratio(requests).is_some_and(|requests| requests.high < 1.0);
        if ours(arm) && (dearer || slower) {
            let what = [(dearer, "more CPU per request"), (slower, "fewer requests")];
            let what: Vec<&str> = what.iter().filter(|(is, _)| *is).map(|(_, what)| *what).collect();
            losing.push(format!("{cell}: {arm}: {} than {}", what.join(" and "), rows[0]));
        }
    }
    results.warnings.iter().for_each(|warning| println!("* {warning}"));
    losing
}

/// An interval in three digits.
fn shown(interval: Option<Interval>, scale: f64) -> String {
    let digits = |value: f64| match value.abs() {
        100.0.. => 0,
        10.0..100.0 => 1,
        _ => 2,
    };
    match interval.map(|interval| (interval.value / scale, interval.limits())) {
        Some((value, Some([low, high]))) => {
            let digits = digits(value);
            format!("{value:.digits$} [{:.digits$}, {:.digits$}]", low / scale, high / scale)
        }
        Some((value, None)) => format!("{value:.*}", digits(value)),
        None => "–".into(),
    }
}

/// The machine's load average, as the kernel prints it.
pub fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}
