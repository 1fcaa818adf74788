//! Takes and restores the terminal.

use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::{DefaultTerminal, Frame};
use std::io;
use std::time::Duration;

/// The terminal in raw mode. It is restored when this is dropped, and on a panic before the message is printed.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Screen> {
        // Installs the panic hook, too.
        Ok(Screen { terminal: ratatui::try_init()? })
    }

    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// The next key, if one is pressed in time. A changed size ends the waiting, too, so that it is drawn anew.
    pub(crate) fn key(&mut self, wait: Duration) -> io::Result<Option<KeyEvent>> {
        if !event::poll(wait)? {
            return Ok(None);
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => Ok(Some(key)),
            _ => Ok(None),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
