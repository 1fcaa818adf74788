//! A screen as characters in rows and columns, and the escape sequences that show it.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// How text looks: the parameters of the escape sequence `SGR`, as `1;36`; none for plain text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style(pub(crate) &'static str);

/// Text that looks the same.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) style: Style,
    pub(crate) text: String,
}

pub(crate) fn styled(text: String, style: Style) -> Part {
    Part { style, text }
}

pub(crate) fn plain(text: String) -> Part {
    styled(text, Style::default())
}

/// The first parts, as many as fit, with blanks between them.
pub(crate) fn fitting(parts: Vec<Part>, width: usize) -> Vec<Part> {
    let mut line: Vec<Part> = vec![];
    let mut used = 0;
    for part in parts {
        let gap = if line.is_empty() { "" } else { "   " };
        used += gap.len() + part.text.width();
        if used > width {
            break;
        }
        line.extend([plain(gap.to_owned()), part]);
    }
    line
}

/// What is shown. Whatever is put outside of it is cut.
pub(crate) struct Grid {
    width: usize,
    /// A character of two columns is followed by none.
    rows: Vec<Vec<(Option<char>, Style)>>,
}

impl Grid {
    pub(crate) fn new(width: usize, height: usize) -> Grid {
        Grid { width, rows: vec![vec![(Some(' '), Style::default()); width]; height] }
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn height(&self) -> usize {
        self.rows.len()
    }

    /// Puts text from a column of a row on, up to another column. Returns the column after it.
    pub(crate) fn put(&mut self, y: usize, x: usize, end: usize, text: &str, style: Style) -> usize {
        let Some(row) = self.rows.get_mut(y) else { return x };
        let end = end.min(self.width);
        let mut x = x;
        for character in text.chars() {
            let width = character.width().unwrap_or(0);
            if width == 0 {
                continue;
            }
            if x + width > end {
                break;
            }
            row[x] = (Some(character), style);
            row[x + 1..x + width].fill((None, style));
            x += width;
        }
        x
    }

    /// Puts parts one after the other into a row.
    pub(crate) fn line(&mut self, y: usize, parts: &[Part]) {
        let mut x = 0;
        for part in parts {
            x = self.put(y, x, self.width, &part.text, part.style);
        }
    }

    /// Gives a whole row one style.
    pub(crate) fn restyle(&mut self, y: usize, style: Style) {
        for cell in self.rows.get_mut(y).into_iter().flatten() {
            cell.1 = style;
        }
    }

    /// The escape sequences that draw it over what a terminal shows.
    pub(crate) fn sequences(&self) -> String {
        let mut out = String::from("\x1b[H");
        for (y, row) in self.rows.iter().enumerate() {
            out.push_str(if y == 0 { "\x1b[m" } else { "\r\n\x1b[m" });
            let mut shown = Style::default();
            for &(character, style) in row {
                let Some(character) = character else { continue };
                if style != shown {
                    out.push_str("\x1b[0;");
                    out.push_str(style.0);
                    out.push('m');
                    shown = style;
                }
                out.push(character);
            }
        }
        out + "\x1b[m\x1b[J"
    }

    /// The characters, without blanks at the ends of lines.
    #[cfg(test)]
    pub(crate) fn text(&self) -> String {
        let line = |row: &Vec<(Option<char>, Style)>| {
            row.iter().filter_map(|cell| cell.0).collect::<String>().trim_end().to_owned() + "\n"
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_cut_at_the_edge_and_a_wide_character_is_not_halved() {
        let mut grid = Grid::new(5, 2);
        assert_eq!(grid.put(0, 0, 5, "a\u{301}日本x", Style::default()), 5);
        assert_eq!(grid.put(1, 4, 5, "日", Style::default()), 4);
        assert_eq!(grid.put(7, 3, 5, "below", Style::default()), 3);
        assert_eq!(grid.text(), "a日本\n\n");
    }

    #[test]
    fn styles_begin_and_end_where_they_change() {
        let mut grid = Grid::new(4, 1);
        grid.put(0, 1, 4, "ab", Style("1;36"));
        assert_eq!(grid.sequences(), "\x1b[H\x1b[m \x1b[0;1;36mab\x1b[0;m \x1b[m\x1b[J");
    }

    proptest! {
        /// Every row fills the width, whatever is put where.
        #[test]
        fn rows_keep_their_width(puts in proptest::collection::vec((0..6_usize, 0..12_usize, 0..14_usize, ".{0,8}"), 0..8)) {
            let mut grid = Grid::new(10, 4);
            for (y, x, end, text) in puts {
                grid.put(y, x, end, &text, Style::default());
            }
            for row in &grid.rows {
                prop_assert_eq!(row.len(), 10);
            }
        }
    }
}
