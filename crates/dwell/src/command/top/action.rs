//! What a key does: one table, from which the help is drawn, too.

use super::terminal::Key;

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
pub(crate) struct Binding {
    pub(crate) key: Key,
    pub(crate) action: Action,
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
}

const fn key(key: Key, action: Action, name: &'static str, about: &'static str) -> Binding {
    Binding { key, action, name, about }
}

/// Every key while the table is looked at. Those without words are second names.
pub(crate) const KEYS: [Binding; 19] = [
    key(Key::Char('q'), Action::Quit, "q", "quit"),
    key(Key::Esc, Action::Quit, "", ""),
    key(Key::Char('?'), Action::Help, "?", "help"),
    key(Key::Up, Action::Up, "up down", "select an idler"),
    key(Key::Char('k'), Action::Up, "", ""),
    key(Key::Down, Action::Down, "", ""),
    key(Key::Char('j'), Action::Down, "", ""),
    key(Key::Home, Action::First, "home end", "the first, the last"),
    key(Key::Char('g'), Action::First, "", ""),
    key(Key::End, Action::Last, "", ""),
    key(Key::Char('G'), Action::Last, "", ""),
    key(Key::Right, Action::NextColumn, "left right", "sort by another column"),
    key(Key::Char('s'), Action::NextColumn, "", ""),
    key(Key::Left, Action::PreviousColumn, "", ""),
    key(Key::Char('r'), Action::Reverse, "r", "reverse the order"),
    key(Key::Char('/'), Action::Filter, "/", "show only names that contain"),
    key(Key::Char('p'), Action::Pause, "p", "pause, continue"),
    key(Key::Char(' '), Action::Pause, "", ""),
    key(Key::Char('c'), Action::Clear, "c", "clear the figures"),
];

/// What a key does, while the filter is being typed or not.
pub(crate) fn of(key: Key, editing: bool) -> Option<Action> {
    match key {
        Key::Control(letter) => (letter == 'c').then_some(Action::Quit),
        _ if !editing => KEYS.iter().find(|bound| bound.key == key).map(|bound| bound.action),
        Key::Char(letter) => Some(Action::Letter(letter)),
        Key::Backspace => Some(Action::Erase),
        Key::Enter => Some(Action::Accept),
        Key::Esc => Some(Action::Abandon),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_has_two_meanings() {
        for (index, bound) in KEYS.iter().enumerate() {
            assert!(KEYS[..index].iter().all(|other| other.key != bound.key), "{:?}", bound.key);
        }
    }

    #[test]
    fn letters_are_letters_while_the_filter_is_typed() {
        assert_eq!(of(Key::Char('q'), false), Some(Action::Quit));
        assert_eq!(of(Key::Char('q'), true), Some(Action::Letter('q')));
        assert_eq!(of(Key::Esc, true), Some(Action::Abandon));
        assert_eq!(of(Key::Enter, false), None);
        assert_eq!(of(Key::Control('c'), true), Some(Action::Quit));
        assert_eq!(of(Key::Control('c'), false), Some(Action::Quit));
        assert_eq!(of(Key::Control('q'), false), None);
    }
}
