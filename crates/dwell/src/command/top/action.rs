//! What a key does: one table, from which the help is drawn, too.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// An action of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Up,
    Down,
    First,
    Last,
    NextColumn,
    PreviousColumn,
    Reverse,
    Filter,
    Pause,
    Clear,
    Help,
    /// While the filter is being typed.
    Letter(char),
    Erase,
    Accept,
    Abandon,
}

/// A key, what it does, and the words for the help.
pub(crate) struct Key {
    pub(crate) code: KeyCode,
    pub(crate) action: Action,
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
}

const fn key(code: KeyCode, action: Action, name: &'static str, about: &'static str) -> Key {
    Key { code, action, name, about }
}

/// Every key while the table is looked at. Those without words are second names.
pub(crate) const KEYS: [Key; 19] = [
    key(KeyCode::Char('q'), Action::Quit, "q", "quit"),
    key(KeyCode::Esc, Action::Quit, "", ""),
    key(KeyCode::Char('?'), Action::Help, "?", "help"),
    key(KeyCode::Up, Action::Up, "up down", "select an idler"),
    key(KeyCode::Char('k'), Action::Up, "", ""),
    key(KeyCode::Down, Action::Down, "", ""),
    key(KeyCode::Char('j'), Action::Down, "", ""),
    key(KeyCode::Home, Action::First, "home end", "the first, the last"),
    key(KeyCode::Char('g'), Action::First, "", ""),
    key(KeyCode::End, Action::Last, "", ""),
    key(KeyCode::Char('G'), Action::Last, "", ""),
    key(KeyCode::Right, Action::NextColumn, "left right", "sort by another column"),
    key(KeyCode::Char('s'), Action::NextColumn, "", ""),
    key(KeyCode::Left, Action::PreviousColumn, "", ""),
    key(KeyCode::Char('r'), Action::Reverse, "r", "reverse the order"),
    key(KeyCode::Char('/'), Action::Filter, "/", "show only names that contain"),
    key(KeyCode::Char('p'), Action::Pause, "p", "pause, continue"),
    key(KeyCode::Char(' '), Action::Pause, "", ""),
    key(KeyCode::Char('c'), Action::Clear, "c", "clear the figures"),
];

/// What a key does, while the filter is being typed or not.
pub(crate) fn of(event: KeyEvent, editing: bool) -> Option<Action> {
    if event.modifiers.contains(KeyModifiers::CONTROL) {
        return (event.code == KeyCode::Char('c')).then_some(Action::Quit);
    }
    if editing {
        return match event.code {
            KeyCode::Char(letter) => Some(Action::Letter(letter)),
            KeyCode::Backspace => Some(Action::Erase),
            KeyCode::Enter => Some(Action::Accept),
            KeyCode::Esc => Some(Action::Abandon),
            _ => None,
        };
    }
    KEYS.iter().find(|key| key.code == event.code).map(|key| key.action)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(code: KeyCode, editing: bool) -> Option<Action> {
        of(KeyEvent::new(code, KeyModifiers::NONE), editing)
    }

    #[test]
    fn no_key_has_two_meanings() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..index].iter().all(|other| other.code != key.code), "{:?}", key.code);
        }
    }

    #[test]
    fn letters_are_letters_while_the_filter_is_typed() {
        assert_eq!(pressed(KeyCode::Char('q'), false), Some(Action::Quit));
        assert_eq!(pressed(KeyCode::Char('q'), true), Some(Action::Letter('q')));
        assert_eq!(pressed(KeyCode::Esc, true), Some(Action::Abandon));
        assert_eq!(pressed(KeyCode::F(1), false), None);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(of(control_c, true), Some(Action::Quit));
        assert_eq!(of(control_c, false), Some(Action::Quit));
    }
}
