use crate::harmless;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};
use dwell_replay::number;
use std::io::{self, Write};

/// A column: its heading for people, its name and unit suffix for programs.
#[derive(Clone, Debug)]
pub struct Column {
    heading: String,
    name: String,
    right: bool,
    rank: u8,
    below: bool,
}

impl Column {
    /// A column of words.
    pub fn text(heading: &str, name: &str) -> Column {
        Column { heading: heading.to_owned(), name: name.to_owned(), right: false, rank: 0, below: false }
    }

    /// A column of numbers.
    pub fn number(heading: &str, name: &str) -> Column {
        Column { heading: heading.to_owned(), name: name.to_owned(), right: true, rank: 0, below: false }
    }

    /// How little interest it is of: where a table is wider than the terminal, columns of the highest rank are left out
    /// first, of equals the last one. Those of rank 0, as all columns are at first, are always shown.
    #[must_use]
    pub fn rank(self, rank: u8) -> Column {
        Column { rank, ..self }
    }

    /// Where a table is wider than the terminal, the words of this column are below their row, on lines of
    /// their own without a heading, so that more of the other columns fit. For the last column.
    #[must_use]
    pub fn below(self) -> Column {
        Column { below: true, ..self }
    }
}

/// One value of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    Count(u128),
    /// A span of time \[ns\].
    Nanos(f64),
    /// A sum of whole nanoseconds, of which programs get all digits.
    Time(u128),
    /// A share of one, shown in percent.
    Share(f64),
    /// A ratio or a rate.
    Ratio(f64),
    /// A number that people need only in whole.
    Rounded(f64),
    /// Nothing is known or nothing applies.
    Missing,
}

impl Cell {
    /// A share, or nothing.
    pub fn share(value: Option<f64>) -> Cell {
        value.map_or(Cell::Missing, Cell::Share)
    }

    /// A ratio, or nothing.
    pub fn ratio(value: Option<f64>) -> Cell {
        value.map_or(Cell::Missing, Cell::Ratio)
    }

    fn for_people(&self) -> String {
        match self {
            Cell::Text(text) => harmless::cell(text),
            Cell::Count(number) => number::count(*number),
            Cell::Nanos(ns) => number::duration(*ns),
            Cell::Time(ns) => number::duration(*ns as f64),
            Cell::Share(share) => number::percent(*share),
            Cell::Ratio(ratio) => number::ratio(*ratio),
            // Seldom is not never.
            Cell::Rounded(number) if (0.005..0.5).contains(&number.abs()) => number::ratio(*number),
            Cell::Rounded(number) => number::rounded(*number),
            Cell::Missing => "-".to_owned(),
        }
    }

    fn for_programs(&self) -> String {
        match self {
            Cell::Text(text) => harmless::csv(text),
            Cell::Count(number) | Cell::Time(number) => number.to_string(),
            Cell::Nanos(value) | Cell::Share(value) | Cell::Ratio(value) | Cell::Rounded(value)
                if value.is_finite() =>
            {
                value.to_string()
            }
            // An unknown limit of an interval is infinite; JSON has null for it.
            _ => String::new(),
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

macro_rules! counts {
    ($($number:ty)*) => {
        $(impl From<$number> for Cell {
            fn from(number: $number) -> Cell {
                Cell::Count(number.into())
            }
        })*
    };
}

counts!(u32 u64 u128);

impl From<usize> for Cell {
    fn from(number: usize) -> Cell {
        Cell::Count(number as u128)
    }
}

impl<C: Into<Cell>> From<Option<C>> for Cell {
    fn from(value: Option<C>) -> Cell {
        value.map_or(Cell::Missing, Into::into)
    }
}

/// Blanks between two columns.
const GAP: u16 = 2;

/// Blanks before words that are below their row.
const INDENT: usize = 4;

/// Words are not wrapped into less than this, unless they are shorter.
const WORDS: usize = 24;

/// What follows a number after a blank.
const UNITS: [&str; 7] = ["%", "ns", "us", "ms", "s", "min", "h"];

/// Text in lines of at most so many characters, broken at blanks; ends with a line break.
pub fn wrap(text: &str, width: usize) -> String {
    let (mut lines, mut length) = (String::new(), 0);
    // A number stays with its unit.
    let mut words: Vec<String> = vec![];
    for word in text.split(' ') {
        let unit = word.trim_end_matches([',', '.', ';', ':', ')', ']']);
        match words.last_mut() {
            Some(number) if UNITS.contains(&unit) && number.ends_with(|c: char| c.is_ascii_digit()) => {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    for word in &words {
        let more = word.chars().count();
        if length > 0 && length + 1 + more > width {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += more;
    }
    lines.push('\n');
    lines
}

#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table { columns: columns.into_iter().collect(), rows: vec![] }
    }

    /// A table of these rows, without columns.
    pub fn of<T: Copy>(rows: impl IntoIterator<Item = T>) -> Rows<T> {
        let rows: Vec<T> = rows.into_iter().collect();
        Rows { table: Table { columns: vec![], rows: vec![vec![]; rows.len()] }, rows }
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row; what is missing at its end is shown as missing.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let mut row: Vec<Cell> = row.into_iter().collect();
        row.resize(self.columns.len(), Cell::Missing);
        self.rows.push(row);
    }

    /// The rows of both, in the columns of both: those of one name are one column.
    #[must_use]
    pub fn followed_by(mut self, other: Table) -> Table {
        let mut places = vec![];
        for column in other.columns {
            let known = self.columns.iter().position(|one| one.name == column.name);
            places.push(known.unwrap_or(self.columns.len()));
            if known.is_none() {
                self.columns.push(column);
            }
        }
        self.rows.iter_mut().for_each(|row| row.resize(self.columns.len(), Cell::Missing));
        for cells in other.rows {
            let mut row = vec![Cell::Missing; self.columns.len()];
            for (place, cell) in places.iter().zip(cells) {
                row[*place] = cell;
            }
            self.rows.push(row);
        }
        self
    }

    /// All columns, aligned, for a file read by people; ends with a line break.
    pub fn to_text(&self) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        self.draw(&all, None)
    }

    /// As [`to_text`](Table::to_text), in lines of at most so many characters: columns of least interest are
    /// left out, which a last line names; then words are wrapped, but no number is. A column that may be
    /// [below](Column::below) its row is put there first.
    pub fn to_text_within(&self, width: usize) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        let below = self.columns.iter().position(|column| column.below);
        if let Some(below) = below.filter(|_| self.width(&all, Table::least_width) > width) {
            let above: Vec<usize> = all.iter().copied().filter(|&column| column != below).collect();
            let (shown, left_out) = self.fit(above, width, Table::whole_width);
            if self.width(&shown, Table::whole_width) <= width {
                return self.draw_above(&shown, below, width) + &self.hint(left_out, width);
            }
        }
        let (shown, left_out) = self.fit(all, width, Table::least_width);
        self.draw(&shown, Some(width)) + &self.hint(left_out, width)
    }

    /// How wide these columns are with their gaps, each as wide as `of` says.
    fn width(&self, shown: &[usize], of: impl Fn(&Table, usize) -> usize) -> usize {
        let cells: usize = shown.iter().map(|&column| of(self, column)).sum();
        cells + usize::from(GAP) * shown.len().saturating_sub(1)
    }

    /// The columns without those of least interest that do not fit, and those that were left out.
    fn fit(
        &self,
        mut shown: Vec<usize>,
        width: usize,
        of: impl Fn(&Table, usize) -> usize,
    ) -> (Vec<usize>, Vec<usize>) {
        let mut left_out = vec![];
        while self.width(&shown, &of) > width {
            let rank = |&&column: &&usize| (self.columns[column].rank, column);
            let Some(&last) = shown.iter().max_by_key(rank).filter(|&&column| self.columns[column].rank > 0)
            else {
                break;
            };
            shown.retain(|&column| column != last);
            left_out.push(last);
        }
        left_out.sort_unstable();
        (shown, left_out)
    }

    /// The line that names the columns left out; empty if there are none.
    fn hint(&self, left_out: Vec<usize>, width: usize) -> String {
        if left_out.is_empty() {
            return String::new();
        }
        let names: Vec<&str> =
            left_out.into_iter().map(|column| self.columns[column].heading.as_str()).collect();
        wrap(&format!("(--wide also shows {})", names.join(", ")), width)
    }

    /// The columns, with the words of another below each row.
    fn draw_above(&self, shown: &[usize], below: usize, width: usize) -> String {
        let drawn = self.draw(shown, None);
        let mut lines = drawn.lines();
        let mut text = lines.next().map_or_else(String::new, |heading| format!("{heading}\n"));
        // Without a limit every row is one line.
        for (line, row) in lines.zip(&self.rows) {
            text += &format!("{line}\n");
            let words = row[below].for_people();
            if !words.is_empty() {
                for line in wrap(&words, width.saturating_sub(INDENT)).lines() {
                    text += &format!("{:INDENT$}{line}\n", "");
                }
            }
        }
        text
    }

    /// How wide a column is if nothing is wrapped.
    fn whole_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].for_people());
        let cells = cells.chain([self.columns[column].heading.clone()]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    /// The narrowest that a column can be: no number is cut, and words get at least a line of [`WORDS`].
    fn least_width(&self, column: usize) -> usize {
        let Column { heading, right, .. } = &self.columns[column];
        let cells = self.rows.iter().map(|row| row[column].for_people()).chain([heading.clone()]);
        let whole = cells.map(|cell| {
            let length = |text: &str| text.chars().count();
            let words = cell.split(' ').map(length).max().unwrap_or(0);
            if *right { length(&cell) } else { words.max(length(&cell).min(WORDS)) }
        });
        whole.max().unwrap_or(0)
    }

    fn draw(&self, shown: &[usize], width: Option<usize>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if let Some(width) = width.and_then(|width| u16::try_from(width).ok()) {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        table.set_header(shown.iter().map(|&column| &self.columns[column].heading));
        for (place, &column) in shown.iter().enumerate() {
            let padding = if place == 0 { 0 } else { GAP };
            let least = u16::try_from(self.least_width(column)).unwrap_or(u16::MAX).saturating_add(padding);
            if let Some(drawn) = table.column_mut(place) {
                let (right, alignment) = (self.columns[column].right, CellAlignment::Right);
                drawn.set_padding((padding, 0));
                drawn.set_cell_alignment(if right { alignment } else { CellAlignment::Left });
                if width.is_some() {
                    drawn.set_constraint(match right {
                        true => ColumnConstraint::ContentWidth,
                        false => ColumnConstraint::LowerBoundary(Width::Fixed(least)),
                    });
                }
            }
        }
        for row in &self.rows {
            table.add_row(shown.iter().map(|&column| row[column].for_people()));
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Comma-separated, exact, in base units. Texts are made harmless for terminals and spreadsheets, see [`harmless`].
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write_csv(&self, out: impl Write) -> io::Result<()> {
        let mut csv = csv::Writer::from_writer(out);
        csv.write_record(self.columns.iter().map(|column| &column.name))?;
        for row in &self.rows {
            csv.write_record(row.iter().map(Cell::for_programs))?;
        }
        csv.flush()
    }
}

/// A table that gets its columns one by one, each with what it shows of a row.
pub struct Rows<T> {
    rows: Vec<T>,
    table: Table,
}

impl<T: Copy> Rows<T> {
    /// Adds a column.
    #[must_use]
    pub fn column<C: Into<Cell>>(mut self, column: Column, cell: impl Fn(T) -> C) -> Rows<T> {
        self.table.columns.push(column);
        for (row, cells) in self.rows.iter().zip(&mut self.table.rows) {
            cells.push(cell(*row).into());
        }
        self
    }

    /// The table.
    pub fn table(self) -> Table {
        self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([
            Column::text("policy", "policy"),
            Column::number("cost", "cost_ns"),
            Column::number("success", "success_rate"),
        ]);
        table.push([Cell::Text("kvm".into()), Cell::Nanos(12_345.0), Cell::Share(0.25)]);
        table.push([Cell::Text("a,\"b\"\x1b[2J".into()), Cell::Count(1_000)]);
        table
    }

    #[test]
    fn columns_are_of_the_rows() {
        let rows = [("a", 7, Some(0.5)), ("b", 8, None)];
        let table = Table::of(&rows)
            .column(Column::text("name", "name"), |row| row.0)
            .column(Column::number("count", "count"), |row| row.1 as u64)
            .column(Column::number("share", "share"), |row| row.2.map(Cell::Share))
            .table();
        let mut out = vec![];
        table.write_csv(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "name,count,share\na,7,0.5\nb,8,\n");
    }

    #[test]
    fn a_rate_of_what_is_seldom_is_not_0() {
        for (rate, text) in
            [(0.28, "0.28"), (-0.3, "-0.30"), (0.6, "1"), (0.0, "0"), (0.001, "0"), (12.4, "12")]
        {
            assert_eq!(Cell::Rounded(rate).for_people(), text);
        }
    }

    #[test]
    fn two_tables_have_the_columns_of_both() {
        let both = table().followed_by({
            let mut other = Table::new([Column::number("speed", "speed"), Column::text("policy", "policy")]);
            other.push([Cell::Ratio(2.0), "never".into()]);
            other
        });
        let mut out = vec![];
        both.write_csv(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "policy,cost_ns,success_rate,speed");
        assert_eq!((lines[1], lines.last()), ("kvm,12345,0.25,", Some(&"never,,,2")));
    }

    #[test]
    fn text_is_aligned_and_harmless() {
        assert_eq!(
            table().to_text(),
            "policy             cost  success\n\
             kvm             12.3 us   25.0 %\n\
             a,\"b\"\\u{1b}[2J    1,000        -\n"
        );
    }

    #[test]
    fn narrow_terminals_get_the_columns_of_most_interest() {
        let mut table = Table::new([
            Column::text("policy", "policy"),
            Column::number("polls", "polls").rank(2),
            Column::number("cost", "cost_ns"),
            Column::number("p99 latency", "p99_ns").rank(1),
            Column::text("setting", "setting"),
        ]);
        let setting = "halt_poll_ns=200000 halt_poll_ns_grow=2 halt_poll_ns_shrink=2";
        let row = [
            Cell::Text("kvm".into()),
            Cell::Count(1_234_567),
            Cell::Rounded(-1_273.0),
            Cell::Nanos(5e3),
            Cell::Text(setting.into()),
        ];
        table.push(row);
        assert_eq!(table.to_text_within(200), table.to_text());
        for width in 40..110 {
            let text = table.to_text_within(width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.contains("-1,273") && text.contains("halt_poll_ns=200000"), "{width}:\n{text}");
            assert_eq!(text.contains("--wide"), !text.contains("1,234,567"), "{width}:\n{text}");
        }
        assert!(
            table.to_text_within(60).ends_with("(--wide also shows polls)\n"),
            "{}",
            table.to_text_within(60)
        );
    }

    #[test]
    fn words_below_their_row_leave_room_for_figures() {
        let mut table = Table::new([
            Column::text("policy", "policy"),
            Column::number("cost", "cost_ns"),
            Column::number("/optimum", "ratio").rank(1),
            Column::number("total cost", "total_ns").rank(2),
            Column::text("setting", "setting").below(),
        ]);
        let setting = "guest_halt_poll_ns=200000 guest_halt_poll_grow_start=50000";
        table.push([
            Cell::Text("present".into()),
            Cell::Nanos(5e3),
            Cell::Ratio(1.5),
            Cell::Nanos(7e3),
            Cell::Text(setting.into()),
        ]);
        let never = [
            Cell::Text("never".into()),
            Cell::Nanos(6e3),
            Cell::Ratio(1.8),
            Cell::Nanos(8e3),
            Cell::Text("".into()),
        ];
        table.push(never);
        assert_eq!(table.to_text_within(200), table.to_text());
        assert_eq!(
            table.to_text_within(40),
            "policy      cost  /optimum  total cost\n\
             present  5.00 us      1.50     7.00 us\n    \
                 guest_halt_poll_ns=200000\n    \
                 guest_halt_poll_grow_start=50000\n\
             never    6.00 us      1.80     8.00 us\n"
        );
        assert_eq!(
            table.to_text_within(36).lines().last(),
            Some("(--wide also shows total cost)"),
            "{}",
            table.to_text_within(36)
        );
    }

    #[test]
    fn numbers_stay_with_their_units() {
        assert_eq!(wrap("cost 12 % (95 % interval 1.5 us)", 9), "cost 12 %\n(95 %\ninterval\n1.5 us)\n");
        assert_eq!(wrap("a", 1), "a\n");
    }

    #[test]
    fn csv_is_exact() {
        let mut out = vec![];
        table().write_csv(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "policy,cost_ns,success_rate\nkvm,12345,0.25\n\"a,\"\"b\"\"\\u{1b}[2J\",1000,\n"
        );
    }

    #[test]
    fn limits_that_are_not_known_are_empty_in_csv() {
        let mut table = Table::new(["low", "value", "high"].map(|name| Column::number(name, name)));
        table.push([f64::NEG_INFINITY, 1.5, f64::INFINITY].map(Cell::Ratio));
        let mut out = vec![];
        table.write_csv(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "low,value,high\n,1.5,\n");
    }
}
