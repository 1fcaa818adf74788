//! Colours in text, the same for every command that has them.
//!
//! Text comes from processes and files, too, and may hold control characters. So colours are marks, which begin with a
//! number that cannot be guessed, until the text is printed: then everything else that steers a terminal is escaped.

use dwell_report::harmless;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// What a mark begins with.
static MARK: LazyLock<String> =
    LazyLock::new(|| format!("\u{1}{:016x}", RandomState::new().hash_one("mark")));

/// What is sent to the terminal: marks as colours, everything else harmless.
pub fn for_terminal(text: &str) -> String {
    text.split(MARK.as_str()).map(harmless::lines).collect::<Vec<_>>().join("\x1b[")
}

/// Paints words, or leaves them as they are.
#[derive(Clone, Copy, Debug)]
pub struct Paint {
    on: bool,
}

impl Paint {
    /// With colours if the output is a terminal that has them and `NO_COLOR` is not set to anything.
    pub fn on(terminal: bool) -> Paint {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Paint { on: terminal && !refused }
    }

    pub fn colours() -> Paint {
        Paint { on: true }
    }

    fn code(self, code: &str, text: &str) -> String {
        let mark = MARK.as_str();
        if self.on { format!("{mark}{code}m{text}{mark}0m") } else { text.to_owned() }
    }

    /// The title of a section.
    pub fn heading(self, text: &str) -> String {
        self.code("1", text)
    }

    pub fn good(self, text: &str) -> String {
        self.code("32", text)
    }

    pub fn warning(self, text: &str) -> String {
        self.code("33", text)
    }

    pub fn danger(self, text: &str) -> String {
        self.code("31", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_colours_reach_the_terminal() {
        let text = format!("{}\n\x1b[31m\u{9b}\u{202e}\u{1}", Paint::colours().danger("a\x1bb"));
        assert_eq!(for_terminal(&text), "\x1b[31ma\\u{1b}b\x1b[0m\n\\u{1b}[31m\\u{9b}\\u{202e}\\u{1}");
        assert_eq!(for_terminal(&Paint { on: false }.good("a")), "a");
    }
}
