//! Colours in text, the same for every command that has them.

/// Paints words, or leaves them as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// With colours if the output is a terminal and `NO_COLOR` is not set to anything.
    pub(crate) fn on(terminal: bool) -> Paint {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Paint { on: terminal && !refused }
    }

    #[cfg(test)]
    pub(crate) fn colours() -> Paint {
        Paint { on: true }
    }

    fn code(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// The title of a section.
    pub(crate) fn heading(self, text: &str) -> String {
        self.code("1", text)
    }

    /// All is well.
    pub(crate) fn good(self, text: &str) -> String {
        self.code("32", text)
    }

    /// To be looked at.
    pub(crate) fn warning(self, text: &str) -> String {
        self.code("33", text)
    }

    /// To be changed.
    pub(crate) fn danger(self, text: &str) -> String {
        self.code("31", text)
    }
}
