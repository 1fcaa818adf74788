//! The screen: a line about all, one for each layer under `dwell control`, the table, the histogram of the
//! selected idler, a line about the keys.

use super::action::KEYS;
use super::grid::{Grid, Part, Style, fitting, plain, styled};
use super::state::{Row, Sort, State};
use super::theme::Theme;
use dwell_report::{count, duration, histogram, number_of, percent};
use std::ops::Range;
use unicode_width::UnicodeWidthStr;

/// The fewest lines of the table, if there are as many.
const TABLE: usize = 3;

/// Draws everything from the state.
pub(crate) fn draw(grid: &mut Grid, state: &State, theme: &Theme) {
    let rows = state.rows();
    let selected = state.selected(&rows);
    let chart_text = selected.map_or_else(String::new, |at| histogram(&state.octaves(&rows[at].idler)));
    let height = grid.height();
    // From the top: the title, the controller's lines, the table, the chart, the keys.
    let controlled = state.control().len().min(height / 4);
    let table = 1 + controlled;
    let keys = height.saturating_sub(1);
    let below = (chart_text.lines().count() + 2).min(height / 2).min(keys.saturating_sub(table + TABLE));
    let chart = keys - below;
    grid.line(0, &about(state, &rows, theme, grid.width()));
    for (y, line) in state.control().iter().take(controlled).enumerate() {
        grid.line(1 + y, &[plain(printable(line))]);
    }
    idlers(grid, table..chart, state, &rows, selected, theme);
    if let Some(at) = selected {
        idle_times(grid, chart..keys, &rows[at], &chart_text, theme);
    }
    // On a screen of one line the title is of more use.
    if keys > 0 {
        grid.line(keys, &bottom(state, theme, grid.width()));
    }
    if state.shows_help() {
        help(grid, theme);
    }
}

/// Names come from the machine: control characters are replaced.
pub(crate) fn printable(name: &str) -> String {
    name.chars().map(|c| if dwell_report::harmless::is_harmful(c) { '?' } else { c }).collect()
}

fn whole(number: f64) -> String {
    // Saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    count(number.round() as u128)
}

/// The cell of a column and an idler.
pub(crate) fn cell(row: &Row, column: Sort) -> String {
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
    match column {
        Sort::Name => printable(&row.idler),
        Sort::Wakeups => whole(row.wakeups_per_s),
        Sort::P50 => duration(row.p50_ns as f64),
        Sort::P99 => duration(row.p99_ns as f64),
        Sort::Window => row.window_ns.map_or_else(|| "-".to_owned(), |ns| duration(ns as f64)),
        Sort::Success => share(row.success),
        Sort::Cpu => share(row.polling),
    }
}

/// What concerns all idlers: alarms first, then as much as fits.
fn about(state: &State, rows: &[Row], theme: &Theme, width: usize) -> Vec<Part> {
    let wakeups: f64 = rows.iter().map(|row| row.wakeups_per_s).sum();
    // From zero: the sum of nothing is minus zero.
    let polling = rows.iter().filter_map(|row| row.polling).fold(0.0, |sum, polling| sum + polling);
    let alarm = |text: String| styled(text, theme.alarm);
    let mut parts = vec![styled(format!("dwell top  {}", state.target()), theme.title)];
    parts.extend(state.is_paused().then(|| alarm("paused".to_owned())));
    parts.extend(state.losses().map(alarm));
    parts.extend([
        plain(number_of(rows.len() as u128, "idler")),
        plain(format!("{}{} wakeups/s", state.at_least(), whole(wakeups))),
        plain(format!("polling {}", percent(polling))),
        plain(format!("last {}", duration(state.span().as_nanos() as f64))),
    ]);
    fitting(parts, width)
}

/// The table in some lines, of which the last ones show the selected idler if it is further below.
fn idlers(
    grid: &mut Grid,
    lines: Range<usize>,
    state: &State,
    rows: &[Row],
    selected: Option<usize>,
    theme: &Theme,
) {
    let columns = shown(grid.width(), state.sort());
    let numbers: usize =
        columns.iter().filter(|at| **at != Sort::Name).map(|at| width_of(*at, state.sort()) + 1).sum();
    let name = grid.width().saturating_sub(numbers).max(NAME);
    // Names begin at the left edge of their column, numbers end at the right one.
    let put = |grid: &mut Grid, y: usize, cell: &dyn Fn(Sort) -> (String, Style)| {
        let mut x = 0;
        for &column in &columns {
            let (text, style) = cell(column);
            let width = if column == Sort::Name { name } else { width_of(column, state.sort()) };
            let indent = if column == Sort::Name { 0 } else { width.saturating_sub(text.width()) };
            grid.put(y, x + indent, x + width, &text, style);
            x += width + 1;
        }
    };
    if lines.is_empty() {
        return;
    }
    let arrow = if state.reversed() { "^" } else { "v" };
    put(grid, lines.start, &|column| match column == state.sort() {
        true => (format!("{arrow} {}", column.heading()), theme.sorted),
        false => (column.heading().to_owned(), theme.heading),
    });
    let first = selected.map_or(0, |at| (at + 2).saturating_sub(lines.len()));
    for (at, y) in (first..rows.len()).zip(lines.start + 1..lines.end) {
        put(grid, y, &|column| (cell(&rows[at], column), Style::default()));
        if Some(at) == selected {
            grid.restyle(y, theme.selected);
        }
    }
}

/// The least width of a name.
const NAME: usize = 16;

/// The width of a number under its heading; the sorted one has an arrow before it.
fn width_of(column: Sort, sorted: Sort) -> usize {
    if column == sorted { 11 } else { 9 }
}

/// The columns that fit, in order: those of least interest are left out first, never the sorted one.
fn shown(width: usize, sorted: Sort) -> Vec<Sort> {
    let mut columns = Sort::ALL.to_vec();
    let mut left_out = [Sort::Window, Sort::P99, Sort::Success, Sort::P50, Sort::Wakeups, Sort::Cpu]
        .into_iter()
        .filter(|column| *column != sorted);
    let needed = |columns: &[Sort]| {
        let numbers = columns.iter().filter(|column| **column != Sort::Name);
        NAME + numbers.map(|column| width_of(*column, sorted) + 1).sum::<usize>()
    };
    while needed(&columns) > width {
        let Some(out) = left_out.next() else { break };
        columns.retain(|column| *column != out);
    }
    columns
}

fn idle_times(grid: &mut Grid, lines: Range<usize>, row: &Row, chart: &str, theme: &Theme) {
    let heading = format!("{:>10}  {:>12}  {:>7}  {:>7}", "from", "episodes", "share", "up to");
    let above = [
        styled(format!("idle times of {}", printable(&row.idler)), theme.title),
        styled(heading, theme.heading),
    ];
    let bars = chart.lines().map(|line| styled(line.to_owned(), theme.bar));
    for (y, part) in lines.zip(above.into_iter().chain(bars)) {
        grid.line(y, &[part]);
    }
}

fn bottom(state: &State, theme: &Theme, width: usize) -> Vec<Part> {
    if state.is_editing() {
        let filter = printable(state.filter());
        return vec![plain(format!("show only names that contain: {filter}_   (enter: keep, esc: cancel)"))];
    }
    let quiet = |text: String| styled(text, theme.quiet);
    let filter = (!state.filter().is_empty()).then(|| format!("[names with {}]", printable(state.filter())));
    let keys = KEYS.iter().filter(|key| !key.name.is_empty());
    let keys = keys.map(|key| format!("{} {}", key.name, key.about));
    fitting(filter.into_iter().chain(keys).map(quiet).collect(), width)
}

/// The keys, in the middle, over what is there.
fn help(grid: &mut Grid, theme: &Theme) {
    let named = KEYS.iter().filter(|key| !key.name.is_empty());
    let lines: Vec<String> = named.map(|key| format!(" {:<12} {}", key.name, key.about)).collect();
    let width = 46.min(grid.width());
    let x = (grid.width() - width) / 2;
    let y = grid.height().saturating_sub(lines.len()) / 2;
    for (at, line) in lines.iter().enumerate() {
        grid.put(y + at, x, x + width, &format!("{line:<width$}"), theme.selected);
    }
}

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::super::state::tests::{example, seen};
    use super::*;
    use crate::command::top::feed::Batch;

    fn screen(state: &State, width: usize, height: usize) -> String {
        let mut grid = Grid::new(width, height);
        draw(&mut grid, state, &Theme::plain());
        grid.text()
    }

    #[test]
    fn what_a_controller_does_is_above_the_idlers() {
        let mut state = example();
        let before = screen(&state, 79, 12);
        state.set_control(vec!["control of host: rests\u{1b}".to_owned()]);
        let screen = screen(&state, 79, 12);
        let lines: Vec<&str> = screen.lines().collect();
        assert_eq!(lines[1], "control of host: rests?", "{screen}");
        assert_eq!((lines[0], lines[2]), (before.lines().next().unwrap(), before.lines().nth(1).unwrap()));
    }

    #[test]
    fn screen_with_idlers_and_the_histogram_of_the_first() {
        let expected = "\
dwell top  host   at least 3 events lost   3 idlers   at least 1,110 wakeups/s
idler              v wakeups/s  idle p50  idle p99    window   success   polling
web/0                    1,000   49.2 us   49.2 us    200 us     100 %    5.00 %
web/1                      100    983 us    983 us   10.0 us    0.00 %    0.10 %
redis                       10      8 ns      8 ns         -         -         -

idle times of web/0
      from      episodes    share    up to
   32.8 us         1,000    100 %    100 %  ████████████████████████████████████
q quit   ? help   up down select an idler   home end the first, the last
";
        let drawn = screen(&example(), 80, 10);
        assert_eq!(drawn, expected, "\n{drawn}");
    }

    #[test]
    fn selected_sorted_filtered_and_paused_are_seen() {
        let mut state = example();
        state.apply(Action::Reverse);
        state.apply(Action::Pause);
        state.apply(Action::Filter);
        state.apply(Action::Letter('1'));
        let drawn = screen(&state, 120, 12);
        assert!(
            drawn.contains("^ wakeups/s") && drawn.contains("host   paused   at least 3 events lost"),
            "{drawn}"
        );
        assert!(drawn.contains("show only names that contain: 1_"), "{drawn}");
        assert!(drawn.contains("idle times of web/1") && !drawn.contains("web/0"), "{drawn}");
        state.apply(Action::Accept);
        assert!(screen(&state, 120, 12).contains("[names with 1]"));
    }

    /// At 60 columns headings lost their beginnings, and `1.88 ms` was `.88 ms`.
    #[test]
    fn columns_that_do_not_fit_are_left_out() {
        let drawn = screen(&example(), 60, 10);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[1], "idler              v wakeups/s  idle p50   success   polling", "{drawn}");
        assert!(lines[2].ends_with("1,000   49.2 us     100 %    5.00 %"), "{drawn}");
        for sorted in Sort::ALL {
            for width in 1..100 {
                let columns = shown(width, sorted);
                assert!(columns.contains(&sorted) && columns[0] == Sort::Name, "{width}: {columns:?}");
            }
        }
    }

    #[test]
    fn help_lists_the_keys() {
        let mut state = example();
        state.apply(Action::Help);
        let drawn = screen(&state, 80, 24);
        assert!(drawn.contains("left right   sort by another column"), "{drawn}");
    }

    #[test]
    fn nothing_to_show_and_hardly_any_room_are_no_trouble() {
        let empty = State::new("guest", Sort::Cpu, "");
        assert!(screen(&empty, 80, 10).contains("0 idlers   0 wakeups/s   polling 0.00 %"));
        for (width, height) in [(1, 1), (5, 2), (20, 3), (200, 4)] {
            let mut state = example();
            screen(&state, width, height);
            state.apply(Action::Help);
            screen(&state, width, height);
        }
    }

    #[test]
    fn names_do_not_steer_the_terminal() {
        let mut state = State::new("thread", Sort::Wakeups, "");
        let span = std::time::Duration::from_secs(1);
        state.take(Batch { span, episodes: vec![seen("evil\u{1b}[2J", 1, None)], ..Batch::default() });
        assert!(screen(&state, 80, 10).contains("evil?[2J"));
    }
}
