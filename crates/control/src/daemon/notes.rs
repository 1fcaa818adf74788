//! Where the lines of a controller go.

use std::fmt::Display;

/// What takes the lines of a controller, each without its end.
#[derive(Clone, Copy)]
pub struct Notes<'a> {
    pub line: &'a dyn Fn(&str),
    /// What went wrong and does not end it.
    pub warning: &'a dyn Fn(&str),
}

impl Notes<'_> {
    /// A line about a layer or an I/O thread.
    pub(super) fn say(&self, subject: &dyn Display, what: &str) {
        (self.line)(&format!("{subject}: {what}"));
    }

    pub(super) fn warn(&self, what: &str) {
        (self.warning)(what);
    }
}
