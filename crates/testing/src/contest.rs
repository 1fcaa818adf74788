//! Programs that serve the same requests in turns: the table of what was measured, and the rows that lose.

use dwell_stats::{
    Arms, Block, Campaign, CampaignError, CampaignOptions, Environment, Figure, Gating, Interval,
    Measurements, Results,
};
use std::error::Error;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A column of the table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub head: &'static str,
    /// The figure of an arm.
    pub figure: &'static str,
    /// What the figure is divided by.
    pub scale: f64,
    /// The ratio to the first row instead of the value.
    pub ratio: bool,
}

impl Column {
    pub const fn value(head: &'static str, figure: &'static str, scale: f64) -> Column {
        Column { head, figure, scale, ratio: false }
    }

    /// The figure's ratio to the first row.
    pub const fn ratio(head: &'static str, figure: &'static str) -> Column {
        Column { head, figure, scale: 1.0, ratio: true }
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table of each cell, with intervals.
    Cells,
    /// Tables as the book has them: a column of each cell.
    Markdown,
}

impl FromStr for Format {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Format, &'static str> {
        match text {
            "cells" => Ok(Format::Cells),
            "markdown" => Ok(Format::Markdown),
            _ => Err("it is `cells` or `markdown`"),
        }
    }
}

/// What was measured of a cell.
#[derive(Debug)]
pub struct Measured {
    /// Where its column is in [`Format::Markdown`]: the name of the table, and the head of the column.
    pub column: (String, String),
    /// The servers in the order of the rows.
    pub rows: Vec<String>,
    pub measurements: Measurements,
    pub results: Results,
}

/// The cells whose name contains every one of `parts`.
///
/// # Errors
/// There is none; the names of all.
pub fn chosen<C: Copy>(cells: &[C], name: impl Fn(C) -> String, parts: &[String]) -> Result<Vec<C>, String> {
    let contains = |cell: &C| parts.iter().all(|part| name(*cell).contains(part));
    let chosen: Vec<C> = cells.iter().copied().filter(contains).collect();
    if chosen.is_empty() {
        let names: Vec<String> = cells.iter().map(|cell| name(*cell)).collect();
        return Err(format!(
            "no cell's name contains {}; they are:\n{}",
            parts.join(" and "),
            names.join("\n")
        ));
    }
    Ok(chosen)
}

/// Rounds that an interval needs.
const MIN_ROUNDS: u32 = 6;

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
    /// How results are printed.
    pub format: Format,
    /// The rows that have lost.
    pub losing: Vec<String>,
    /// The cells so far.
    pub measured: Vec<Measured>,
}

impl Contest<'_> {
    /// Measures one cell, whose column is `column`: an equal part of what is left of the time, of so many
    /// cells with this one. `measure` takes the place of a server in `servers` and the number of the block;
    /// the first server is what the others are compared with.
    ///
    /// # Errors
    /// A block cannot be measured.
    ///
    /// # Panics
    /// Two servers, or two figures, have one name.
    pub fn cell<E: Error + 'static>(
        &mut self,
        (cell, column): (&str, (String, String)),
        servers: &[&str],
        cells_left: usize,
        environment: &mut dyn Environment,
        mut measure: impl FnMut(usize, u64) -> Result<Block, E>,
    ) -> Result<(), CampaignError<E>> {
        let mut arms = Arms::new(servers[0], 0usize);
        for (place, name) in servers.iter().enumerate().skip(1) {
            arms = arms.arm(name, place);
        }
        let rows = rows(&arms);
        let left = self.ends.saturating_duration_since(Instant::now());
        let options = CampaignOptions {
            min_rounds: MIN_ROUNDS,
            budget: left / u32::try_from(cells_left.max(1)).unwrap_or(u32::MAX),
            foreign_limit: 0.1,
            repeats: 2,
            quiet_wait: Duration::from_millis(500),
            ..CampaignOptions::default()
        };
        let campaign = Campaign::new(cell, arms, self.figures.clone(), options).expect("different names");
        let measurements = campaign.run(environment, &AtomicBool::new(false), &mut |_| (), |trial| {
            measure(*trial.setting, trial.sequence)
        })?;
        let results = measurements.results();
        if self.format == Format::Cells {
            print(cell, &results, &rows, self.columns);
        }
        self.losing.extend(losing(cell, &results, &rows, self.compared, self.ours));
        self.measured.push(Measured { column, rows, measurements, results });
        Ok(())
    }

    /// Prints what there is to print when all cells are measured: the tables of the book, if these are asked
    /// for, and the rows that lose.
    pub fn print_end(&self) {
        if self.format == Format::Markdown {
            print_tables(&self.measured, self.compared);
        }
        self.print_losing();
    }

    /// Prints the rows that lose, of all cells.
    fn print_losing(&self) {
        // In the book it is no section of its own.
        let (begin, end) = if self.format == Format::Cells { ("### ", "") } else { ("", ":") };
        println!("\n{begin}Rows that lose to the first one beyond the intervals{end}\n");
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

/// Prints the table of one cell.
fn print(cell: &str, results: &Results, rows: &[String], columns: &[Column]) {
    println!("\n### {cell}\n");
    println!("{} rounds; {}\n", results.rounds, gating(&results.gating));
    println!("| server |{}", columns.iter().map(|column| format!(" {} |", column.head)).collect::<String>());
    println!("|---|{}", "--:|".repeat(columns.len()));
    for arm in rows {
        let cells = columns.iter().map(|column| {
            let value = match column.ratio {
                true => ratio(results, arm, column.figure),
                false => value(results, arm, column.figure),
            };
            format!(" {} |", shown(value, column.scale))
        });
        println!("| {arm} |{}", cells.collect::<String>());
    }
    results.warnings.iter().for_each(|warning| println!("* {warning}"));
}

fn gating(gating: &Gating) -> String {
    let Gating { blocks, rejected, disturbed, .. } = gating;
    format!("of {blocks} blocks {disturbed} count in spite of foreign load, {rejected} attempts do not")
}

fn value(results: &Results, arm: &str, figure: &str) -> Option<Interval> {
    results.row(arm, figure)?.value
}

fn ratio(results: &Results, arm: &str, figure: &str) -> Option<Interval> {
    results.row(arm, figure)?.ratio()
}

/// The rows of which `ours` holds that have more CPU time per request, or fewer requests, than the first one,
/// beyond the intervals.
fn losing(
    cell: &str,
    results: &Results,
    rows: &[String],
    [cpu, requests]: [&str; 2],
    ours: impl Fn(&str) -> bool,
) -> Vec<String> {
    let loses = |arm: &String| {
        let dearer = ratio(results, arm, cpu).is_some_and(|cpu| cpu.low > 1.0);
        let slower = ratio(results, arm, requests).is_some_and(|requests| requests.high < 1.0);
        let what = [(dearer, "more CPU per request"), (slower, "fewer requests")];
        let what: Vec<&str> = what.iter().filter(|(is, _)| *is).map(|(_, what)| *what).collect();
        (!what.is_empty()).then(|| format!("{cell}: {arm}: {} than {}", what.join(" and "), rows[0]))
    };
    rows.iter().filter(|arm| ours(arm)).filter_map(loses).collect()
}

/// Prints the tables of the book: a row of each server, a column of each cell.
fn print_tables(measured: &[Measured], [cpu, requests]: [&str; 2]) {
    let mut names: Vec<&str> = measured.iter().map(|cell| cell.column.0.as_str()).collect();
    names.dedup();
    for name in names {
        let cells: Vec<&Measured> = measured.iter().filter(|cell| cell.column.0 == name).collect();
        let heads = cells.iter().map(|cell| format!(" {} |", cell.column.1)).collect::<String>();
        println!("\n| {name}: CPU time per request / requests per second, ratios |{heads}");
        println!("|---|{}", "--:|".repeat(cells.len()));
        for (place, arm) in cells[0].rows.iter().enumerate() {
            let of = |cell: &&Measured| match place {
                0 => {
                    let shown = |figure| short(value(&cell.results, arm, figure).map(|of| of.value / 1e3));
                    format!(" {}, {} |", shown(cpu), shown(requests))
                }
                _ => {
                    let shown = |figure| short(ratio(&cell.results, arm, figure).map(|of| of.value));
                    format!(" {} / {} |", shown(cpu), shown(requests))
                }
            };
            let unit = if place == 0 { ": us per request, thousand requests/s" } else { "" };
            println!("| {arm}{unit} |{}", cells.iter().map(of).collect::<String>());
        }
    }
    let rounds = measured.iter().map(|cell| cell.results.rounds);
    let mut all = Gating::default();
    for Gating { blocks, rejected, disturbed, .. } in measured.iter().map(|cell| &cell.results.gating) {
        all.blocks += blocks;
        all.rejected += rejected;
        all.disturbed += disturbed;
    }
    let (least, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
    println!("\n{least} to {most} rounds of each cell; {}", gating(&all));
}

/// What a figure of a row has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// At most so much of the other row's; without another row, at most so much.
    AtMost(f64),
    /// More than the other row's.
    More,
    /// Not less than the other row's, as far as the interval shows.
    NotLess,
    /// Not more than the other row's, as far as the interval shows.
    NotMore,
}

impl Limit {
    fn is_met(self, found: Interval) -> bool {
        match self {
            Limit::AtMost(most) => found.value <= most,
            Limit::More => found.value > 1.0,
            Limit::NotLess => found.limits().map_or(found.value, |[_, high]| high) >= 1.0,
            Limit::NotMore => found.limits().map_or(found.value, |[low, _]| low) <= 1.0,
        }
    }

    fn shown(self) -> String {
        match self {
            Limit::AtMost(most) => format!("at most {most:.2}"),
            Limit::More => "more than 1".into(),
            Limit::NotLess => "not less than 1".into(),
            Limit::NotMore => "not more than 1".into(),
        }
    }
}

/// Something that was to be reached.
#[derive(Clone, Debug)]
pub struct Goal {
    pub cell: String,
    pub arm: String,
    /// The row with which it is compared; `None`: the figures themselves.
    pub against: Option<String>,
    /// Names for people, figures, limits.
    pub conditions: Vec<(&'static str, &'static str, Limit)>,
}

impl Goal {
    /// A line of the list of goals.
    fn line(&self, measured: &[Measured]) -> String {
        let found = measured.iter().find(|cell| cell.measurements.name == self.cell);
        let figures: Option<Vec<Interval>> = found.and_then(|cell| {
            let of = |figure| match &self.against {
                Some(against) => cell.measurements.ratio(&self.arm, against, figure),
                None => value(&cell.results, &self.arm, figure),
            };
            // Of fewer rounds an interval is too narrow.
            let known = |found: Interval| match cell.results.rounds {
                MIN_ROUNDS.. => found,
                _ => Interval::unknown(found.value),
            };
            self.conditions.iter().map(|(_, figure, _)| of(figure).map(known)).collect()
        });
        let (mut shows, mut verdict) = (vec![], "not measured");
        if let Some(figures) = figures {
            let met = self.conditions.iter().zip(&figures).all(|((.., limit), found)| limit.is_met(*found));
            verdict = if met { "met" } else { "**not met**" };
            let show = |((name, ..), found): (&(&str, &str, Limit), &Interval)| {
                format!("{name} {}", shown(Some(*found), 1.0))
            };
            shows = self.conditions.iter().zip(&figures).map(show).collect();
        }
        let limits: Vec<String> =
            self.conditions.iter().map(|(name, _, limit)| format!("{name} {}", limit.shown())).collect();
        let against = self.against.as_ref().map(|against| format!(" : {against}")).unwrap_or_default();
        format!(
            "| {} | {}{against} | {} | {} | {verdict} |",
            self.cell,
            self.arm,
            limits.join(", "),
            shows.join(", ")
        )
    }
}

/// Prints which goals are met.
pub fn print_goals(goals: &[Goal], measured: &[Measured]) {
    println!("\n| goal: cell | ratio of rows | wanted | measured | verdict |\n|---|---|---|---|---|");
    goals.iter().for_each(|goal| println!("{}", goal.line(measured)));
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

/// A number in three digits.
fn short(number: Option<f64>) -> String {
    match number {
        Some(number) if number.abs() >= 100.0 => format!("{number:.0}"),
        Some(number) if number.abs() >= 10.0 => format!("{number:.1}"),
        Some(number) => format!("{number:.2}"),
        None => "–".into(),
    }
}

/// The machine's load average, as the kernel prints it.
pub fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::FakeEnvironment;
    use dwell_stats::Unit;

    /// A server that takes 10 us of CPU time for a request, and one that takes 4, in so many rounds.
    fn measured(rounds: u32) -> Measured {
        let arms = Arms::new("old", 10_000.0).arm("new", 4_000.0);
        let names = rows(&arms);
        let figures = [Figure::of_block("cpu", Unit::Nanos), Figure::of_block("iops", Unit::PerSecond)];
        let options =
            CampaignOptions { min_rounds: rounds, max_rounds: rounds, ..CampaignOptions::default() };
        let mut environment = FakeEnvironment::always(Some(0.0));
        let clock = environment.clone();
        let measurements = Campaign::new("cell", arms, figures, options)
            .unwrap()
            .run(&mut environment, &AtomicBool::new(false), &mut |_| (), |trial| {
                clock.pass(Duration::from_millis(10));
                let cpu: f64 = *trial.setting + f64::from(u8::try_from(trial.sequence % 7).unwrap());
                Ok::<_, std::io::Error>(Block::new(vec![]).figure("cpu", cpu).figure("iops", 1e9 / cpu))
            })
            .unwrap();
        let results = measurements.results();
        Measured { column: ("null".into(), "1".into()), rows: names, measurements, results }
    }

    fn goal(limit: Limit, against: Option<&str>) -> Goal {
        Goal {
            cell: "cell".into(),
            arm: "new".into(),
            against: against.map(str::to_owned),
            conditions: vec![("CPU", "cpu", limit), ("requests/s", "iops", Limit::AtMost(f64::INFINITY))],
        }
    }

    #[test]
    fn goals_are_met_or_not_or_not_measured() {
        let cells = [measured(8)];
        let verdict = |goal: &Goal| goal.line(&cells).rsplit(" | ").next().unwrap().to_owned();
        assert_eq!(verdict(&goal(Limit::AtMost(0.41), Some("old"))), "met |");
        assert_eq!(verdict(&goal(Limit::AtMost(0.39), Some("old"))), "**not met** |");
        assert_eq!(verdict(&goal(Limit::More, Some("old"))), "**not met** |");
        assert_eq!(verdict(&goal(Limit::NotMore, Some("old"))), "met |");
        assert_eq!(verdict(&goal(Limit::NotLess, Some("old"))), "**not met** |");
        assert_eq!(verdict(&goal(Limit::AtMost(4_100.0), None)), "met |");
        assert_eq!(verdict(&goal(Limit::AtMost(1.0), None)), "**not met** |");
        assert_eq!(verdict(&goal(Limit::AtMost(0.41), Some("other"))), "not measured |");
        assert_eq!(verdict(&Goal { cell: "other".into(), ..goal(Limit::More, None) }), "not measured |");
    }

    #[test]
    fn rows_are_compared_with_any_other() {
        let goal = Goal { arm: "old".into(), ..goal(Limit::More, Some("new")) };
        let line = goal.line(&[measured(8)]);
        assert!(line.contains("CPU 2.50 [") && line.ends_with("| met |"), "{line}");
    }

    #[test]
    fn intervals_are_shown_where_there_are_enough_rounds() {
        let goal = goal(Limit::AtMost(0.4), Some("old"));
        assert!(goal.line(&[measured(8)]).contains("CPU 0.40 ["));
        assert!(goal.line(&[measured(5)]).contains("CPU 0.40,"));
    }
}
