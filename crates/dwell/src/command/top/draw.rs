//! The screen: a line about all, one for each layer under `dwell control`, the table, the histogram of the
//! selected idler, a line about the keys.

use super::action::KEYS;
use super::state::{Row, Sort, State};
use super::theme::Theme;
use dwell_report::{duration, histogram, number_of, percent, rounded};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row as Drawn, Table, TableState};

/// Draws everything from the state.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State, theme: &Theme) {
    let rows = state.rows();
    let selected = state.selected(&rows);
    let chart_text = selected.map_or_else(String::new, |at| histogram(&state.octaves(&rows[at].idler)));
    let wanted = u16::try_from(chart_text.lines().count() + 2).unwrap_or(u16::MAX);
    let below = wanted.min(frame.area().height / 2);
    let controlled = u16::try_from(state.control.len()).unwrap_or(u16::MAX).min(frame.area().height / 4);
    let [title, control, table, chart, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(controlled),
        Constraint::Min(3),
        Constraint::Length(below),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(about(state, &rows, theme, title.width), title);
    let lines: Vec<Line<'_>> = state.control.iter().map(|line| Line::raw(printable(line))).collect();
    frame.render_widget(Paragraph::new(lines), control);
    idlers(frame, table, state, &rows, selected, theme);
    if let Some(at) = selected {
        frame.render_widget(idle_times(&rows[at], &chart_text, theme), chart);
    }
    frame.render_widget(bottom(state, theme, keys.width), keys);
    if state.help {
        help(frame, theme);
    }
}

/// Names come from the machine: control characters are replaced.
pub(crate) fn printable(name: &str) -> String {
    name.chars().map(|c| if dwell_report::harmless::is_harmful(c) { '?' } else { c }).collect()
}

/// The cell of a column and an idler.
pub(crate) fn cell(row: &Row, column: Sort) -> String {
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
    match column {
        Sort::Name => printable(&row.idler),
        Sort::Wakeups => rounded(row.wakeups_per_s),
        Sort::P50 => duration(row.p50_ns as f64),
        Sort::P99 => duration(row.p99_ns as f64),
        Sort::Window => row.window_ns.map_or_else(|| "-".to_owned(), |ns| duration(ns as f64)),
        Sort::Success => share(row.success),
        Sort::Cpu => share(row.polling),
    }
}

/// What concerns all idlers: alarms first, then as much as fits.
fn about<'a>(state: &State, rows: &[Row], theme: &Theme, width: u16) -> Line<'a> {
    let wakeups: f64 = rows.iter().map(|row| row.wakeups_per_s).sum();
    let polling: f64 = rows.iter().filter_map(|row| row.polling).sum();
    let alarm = |text: String| Span::styled(text, theme.alarm);
    let mut parts = vec![Span::styled(format!("dwell top  {}", state.target), theme.title)];
    parts.extend(state.paused.then(|| alarm("paused".to_owned())));
    parts.extend(state.losses().map(alarm));
    parts.extend([
        Span::raw(number_of(rows.len() as u128, "idler")),
        Span::raw(format!("{}{} wakeups/s", state.at_least(), rounded(wakeups))),
        Span::raw(format!("polling {}", percent(polling))),
        Span::raw(format!("last {}", duration(state.span().as_nanos() as f64))),
    ]);
    Line::from(fitting(parts, width))
}

/// The first parts, as many as fit, with blanks between them.
fn fitting<'a>(parts: Vec<Span<'a>>, width: u16) -> Vec<Span<'a>> {
    let mut line: Vec<Span<'a>> = vec![];
    let mut used = 0;
    for part in parts {
        let gap = if line.is_empty() { "" } else { "   " };
        used += gap.len() + part.width();
        if used > usize::from(width) {
            break;
        }
        line.extend([Span::raw(gap), part]);
    }
    line
}

fn idlers(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    rows: &[Row],
    selected: Option<usize>,
    theme: &Theme,
) {
    let arrow = if state.reversed { "^" } else { "v" };
    let columns = shown(area.width, state.sort);
    let heading = columns.iter().map(|&column| {
        let sorted = column == state.sort;
        let text = if sorted { format!("{arrow} {}", column.heading()) } else { column.heading().to_owned() };
        aligned(column, text).style(if sorted { theme.sorted } else { theme.heading })
    });
    let heading = Drawn::new(heading);
    let drawn =
        rows.iter().map(|row| Drawn::new(columns.iter().map(|&column| aligned(column, cell(row, column)))));
    let widths = columns.iter().map(|&column| match column {
        Sort::Name => Constraint::Min(NAME),
        _ => Constraint::Length(width_of(column, state.sort)),
    });
    let table = Table::new(drawn, widths).header(heading).row_highlight_style(theme.selected);
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

/// The least width of a name.
const NAME: u16 = 16;

/// The width of a number under its heading; the sorted one has an arrow before it.
fn width_of(column: Sort, sorted: Sort) -> u16 {
    if column == sorted { 11 } else { 9 }
}

/// The columns that fit, in order: those of least interest are left out first, never the sorted one.
fn shown(width: u16, sorted: Sort) -> Vec<Sort> {
    let mut columns = Sort::ALL.to_vec();
    let mut left_out = [Sort::Window, Sort::P99, Sort::Success, Sort::P50, Sort::Wakeups, Sort::Cpu]
        .into_iter()
        .filter(|column| *column != sorted);
    let needed = |columns: &[Sort]| {
        let numbers = columns.iter().filter(|column| **column != Sort::Name);
        NAME + numbers.map(|column| width_of(*column, sorted) + 1).sum::<u16>()
    };
    while needed(&columns) > width {
        let Some(out) = left_out.next() else { break };
        columns.retain(|column| *column != out);
    }
    columns
}

fn aligned<'a>(column: Sort, text: String) -> Cell<'a> {
    let line = Line::from(text);
    Cell::from(if column == Sort::Name { line } else { line.right_aligned() })
}

fn idle_times<'a>(row: &Row, lines: &str, theme: &Theme) -> Paragraph<'a> {
    let mut text = vec![
        Line::from(Span::styled(format!("idle times of {}", printable(&row.idler)), theme.title)),
        Line::from(Span::styled(
            format!("{:>10}  {:>12}  {:>7}  {:>7}", "from", "episodes", "share", "up to"),
            theme.heading,
        )),
    ];
    text.extend(lines.lines().map(|line| Line::from(Span::styled(line.to_owned(), theme.bar))));
    Paragraph::new(text)
}

fn bottom<'a>(state: &State, theme: &Theme, width: u16) -> Line<'a> {
    if state.is_editing() {
        return Line::from(format!(
            "show only names that contain: {}_   (enter: keep, esc: cancel)",
            state.filter
        ));
    }
    let quiet = |text: String| Span::styled(text, theme.quiet);
    let filter = (!state.filter.is_empty()).then(|| format!("[names with {}]", printable(&state.filter)));
    let keys = KEYS.iter().filter(|key| !key.name.is_empty());
    let keys = keys.map(|key| format!("{} {}", key.name, key.about));
    Line::from(fitting(filter.into_iter().chain(keys).map(quiet).collect(), width))
}

fn help(frame: &mut Frame<'_>, theme: &Theme) {
    let named = KEYS.iter().filter(|key| !key.name.is_empty());
    let lines: Vec<Line<'_>> =
        named.map(|key| Line::from(format!(" {:<12} {}", key.name, key.about))).collect();
    let area = frame.area();
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).min(area.height);
    let width = 46.min(area.width);
    let middle = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, middle);
    frame.render_widget(Paragraph::new(lines).style(theme.selected), middle);
}

#[cfg(test)]
mod tests {
    use super::super::action::Action;
    use super::super::state::tests::{example, seen};
    use super::*;
    use crate::command::top::feed::Batch;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, &Theme::plain())).unwrap();
        let buffer = terminal.backend().buffer();
        let line =
            |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
        (0..height).map(line).collect()
    }

    #[test]
    fn what_a_controller_does_is_above_the_idlers() {
        let mut state = example();
        let before = screen(&state, 79, 12);
        state.control = vec!["control of host: rests\u{1b}".to_owned()];
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
        assert!(screen(&empty, 80, 10).contains("0 idlers   0 wakeups/s"));
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
