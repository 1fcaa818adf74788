use crate::number;
use comfy_table::{CellAlignment, ContentArrangement, presets};
use std::io::{self, Write};

/// A column: its heading for people, its name and unit suffix for programs.
#[derive(Clone, Debug)]
pub struct Column {
    heading: String,
    name: String,
    right: bool,
}

impl Column {
    /// A column of words.
    pub fn text(heading: &str, name: &str) -> Column {
        Column { heading: heading.to_owned(), name: name.to_owned(), right: false }
    }

    /// A column of numbers.
    pub fn number(heading: &str, name: &str) -> Column {
        Column { heading: heading.to_owned(), name: name.to_owned(), right: true }
    }
}

/// One value of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A whole number.
    Count(u128),
    /// A span of time \[ns\].
    Nanos(f64),
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
            Cell::Text(text) => printable(text),
            Cell::Count(number) => number::count(*number),
            Cell::Nanos(ns) => number::duration(*ns),
            Cell::Share(share) => number::percent(*share),
            Cell::Ratio(ratio) => number::ratio(*ratio),
            Cell::Rounded(number) => number::rounded(*number),
            Cell::Missing => "-".to_owned(),
        }
    }

    fn for_programs(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(number) => number.to_string(),
            Cell::Nanos(value) | Cell::Share(value) | Cell::Ratio(value) | Cell::Rounded(value) => {
                value.to_string()
            }
            Cell::Missing => String::new(),
        }
    }
}

/// Names come from recordings: what would steer the terminal is shown, not sent.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Rows under columns.
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

    /// Adds a row; what is missing at its end is shown as missing.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) {
        let mut row: Vec<Cell> = row.into_iter().collect();
        row.resize(self.columns.len(), Cell::Missing);
        self.rows.push(row);
    }

    /// Aligned, for a terminal or a file read by people; ends with a line break.
    pub fn to_text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(self.columns.iter().map(|column| &column.heading));
        for (index, column) in self.columns.iter().enumerate() {
            if let Some(drawn) = table.column_mut(index) {
                let right = CellAlignment::Right;
                drawn.set_padding((if index == 0 { 0 } else { 2 }, 0));
                drawn.set_cell_alignment(if column.right { right } else { CellAlignment::Left });
            }
        }
        for row in &self.rows {
            table.add_row(row.iter().map(Cell::for_people));
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Comma-separated, exact, in base units.
    ///
    /// # Errors
    /// What `out` answers.
    pub fn write_csv(&self, out: impl Write) -> io::Result<()> {
        let mut csv = csv::Writer::from_writer(out);
        csv.write_record(self.columns.iter().map(|column| &column.name))?;
        for row in &self.rows {
            csv.write_record(row.iter().map(Cell::for_programs))?;
        }
        csv.flush()
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
    fn text_is_aligned_and_harmless() {
        assert_eq!(
            table().to_text(),
            "policy             cost  success\n\
             kvm             12.3 us   25.0 %\n\
             a,\"b\"\\u{1b}[2J    1 000        -\n"
        );
    }

    #[test]
    fn csv_is_exact() {
        let mut out = vec![];
        table().write_csv(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "policy,cost_ns,success_rate\nkvm,12345,0.25\n\"a,\"\"b\"\"\x1b[2J\",1000,\n"
        );
    }
}
