//! Takes and restores the terminal, and reads its keys.

use super::grid::Grid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    /// A letter together with Control.
    Control(char),
    Esc,
    Enter,
    Backspace,
    Up,
    Down,
    Left,
    Right,
    Home,
    End,
}

/// The terminal as it was found, while it is taken.
static FOUND: Mutex<Option<(File, Termios)>> = Mutex::new(None);

/// The terminal in raw mode. It is restored when this is dropped, and on a panic before the message is printed.
pub(crate) struct Screen {
    terminal: File,
    keys: VecDeque<Key>,
    /// The beginning of a character whose end has not been read.
    partial: Vec<u8>,
}

impl Screen {
    pub(crate) fn take() -> io::Result<Screen> {
        let terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let found = tcgetattr(&terminal)?;
        let mut raw = found.clone();
        raw.make_raw();
        *FOUND.lock().unwrap_or_else(PoisonError::into_inner) = Some((terminal.try_clone()?, found));
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                next(panic);
            }));
        });
        let mut screen = Screen { terminal, keys: VecDeque::new(), partial: vec![] };
        tcsetattr(&screen.terminal, OptionalActions::Now, &raw)?;
        // The other screen, without a cursor.
        screen.terminal.write_all(b"\x1b[?1049h\x1b[?25l")?;
        Ok(screen)
    }

    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Grid)) -> io::Result<()> {
        let size = tcgetwinsize(&self.terminal)?;
        // One that does not know its size has none.
        let known = |size: u16, usual| if size == 0 { usual } else { usize::from(size) };
        let mut grid = Grid::new(known(size.ws_col, 80), known(size.ws_row, 24));
        draw(&mut grid);
        self.terminal.write_all(grid.sequences().as_bytes())
    }

    /// The next key, if one is pressed in time, or within a second: whoever draws then draws for another size, too.
    pub(crate) fn key(&mut self, wait: Duration) -> io::Result<Option<Key>> {
        if self.keys.is_empty() {
            let wait = Timespec::try_from(wait.min(Duration::from_secs(1))).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut bytes = [0; 256];
            let read = self.terminal.read(&mut bytes)?;
            if read == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal is gone"));
            }
            self.partial.extend_from_slice(&bytes[..read]);
            let used = keys(&self.partial, &mut self.keys);
            self.partial.drain(..used);
        }
        Ok(self.keys.pop_front())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it is taken.
fn restore() {
    if let Some((mut terminal, found)) = FOUND.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // Nothing is left to do about a terminal that cannot be written.
        let _ = terminal.write_all(b"\x1b[m\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(&terminal, OptionalActions::Now, &found);
    }
}

/// Appends the keys of what a terminal has sent. Returns how much of it they are: all but the beginning of a character.
fn keys(bytes: &[u8], found: &mut VecDeque<Key>) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (length, key) = match rest[0] {
            // Escape, then `[` or `O`, parameters, and a letter that names the key. Escape alone is a key.
            0x1b if matches!(rest.get(1), Some(b'[' | b'O')) => {
                let parameters = rest[2..].iter().take_while(|byte| (0x20..0x40).contains(*byte)).count();
                let (parameters, last) = rest[2..].split_at(parameters);
                (parameters.len() + 3, last.first().and_then(|last| named(*last, parameters)))
            }
            0x1b => (1, Some(Key::Esc)),
            b'\r' | b'\n' => (1, Some(Key::Enter)),
            0x08 | 0x7f => (1, Some(Key::Backspace)),
            control @ 1..=26 => (1, Some(Key::Control(char::from(control + b'a' - 1)))),
            0..0x20 => (1, None),
            _ => {
                let four = &rest[..rest.len().min(4)];
                let text = match std::str::from_utf8(four) {
                    Ok(text) => text,
                    Err(error) if error.valid_up_to() > 0 => {
                        std::str::from_utf8(&four[..error.valid_up_to()]).unwrap_or_default()
                    }
                    // Its end is still to come.
                    Err(error) if error.error_len().is_none() => return at,
                    Err(_) => "",
                };
                text.chars().next().map_or((1, None), |letter| (letter.len_utf8(), Some(Key::Char(letter))))
            }
        };
        found.extend(key);
        at += length;
    }
    bytes.len()
}

/// The key of a sequence that ends with a letter, by its first parameter where the letter is `~`.
fn named(last: u8, parameters: &[u8]) -> Option<Key> {
    match (last, parameters.split(|byte| *byte == b';').next()) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'C', _) => Some(Key::Right),
        (b'D', _) => Some(Key::Left),
        (b'H', _) | (b'~', Some(b"1" | b"7")) => Some(Key::Home),
        (b'F', _) | (b'~', Some(b"4" | b"8")) => Some(Key::End),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> (Vec<Key>, usize) {
        let mut found = VecDeque::new();
        let used = keys(bytes, &mut found);
        (found.into(), used)
    }

    #[test]
    fn keys_of_terminals() {
        use Key::*;
        for (bytes, expected) in [
            ("q?", vec![Char('q'), Char('?')]),
            ("\x1b", vec![Esc]),
            ("\x1bq", vec![Esc, Char('q')]),
            ("\x1b[A\x1bOB\x1b[1;5C\x1b[D", vec![Up, Down, Right, Left]),
            ("\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[7~\x1b[8~", vec![Home, End, Home, End, Home, End]),
            ("\x1b[5~\x1b[200~\x1b[I", vec![]),
            ("\r\n\x7f\x08\x03", vec![Enter, Enter, Backspace, Backspace, Control('c')]),
            ("é日🦀", vec![Char('é'), Char('日'), Char('🦀')]),
        ] {
            assert_eq!(read(bytes.as_bytes()), (expected, bytes.len()), "{bytes:?}");
        }
        // A character that arrives in two parts, and what is none.
        assert_eq!(read(b"a\xe6\x97"), (vec![Char('a')], 1));
        assert_eq!(read(b"\xffa"), (vec![Char('a')], 2));
    }

    proptest! {
        #[test]
        fn whatever_a_terminal_sends_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let (found, used) = read(&bytes);
            prop_assert!(found.len() <= bytes.len() && used <= bytes.len() && bytes.len() - used < 4);
        }

        #[test]
        fn text_is_read_as_its_characters(text in "[a-zäß日🦀]{0,20}") {
            prop_assert_eq!(read(text.as_bytes()).0, text.chars().map(Key::Char).collect::<Vec<_>>());
        }
    }
}
