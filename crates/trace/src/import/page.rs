//! The trace in a page of systrace (HTML): what is in its elements `<script class="trace-data">`.

use std::io::{self, BufRead, Read};

/// So much of a page is looked at at a time, if it has no `>` or line end before.
const PIECE: u64 = 1 << 20;
const MARK: &[u8] = b"class=\"trace-data\"";
const END: &[u8] = b"</script>";

/// The text of the traces in the page that `input` yields.
pub(super) struct Page<R> {
    input: R,
    inside: bool,
    found: bool,
    /// What was read and not looked at, and what was found and not given away.
    rest: Vec<u8>,
    text: Vec<u8>,
    given: usize,
}

/// Whether a text begins like a page.
pub(super) fn is_page(start: &[u8]) -> bool {
    let start = start.trim_ascii_start();
    let begins = |tag: &[u8]| start.get(..tag.len()).is_some_and(|there| there.eq_ignore_ascii_case(tag));
    begins(b"<!DOCTYPE html") || begins(b"<html")
}

impl<R: BufRead> Page<R> {
    pub(super) fn new(input: R) -> Page<R> {
        Page { input, inside: false, found: false, rest: vec![], text: vec![], given: 0 }
    }

    /// The next piece up to `end`; empty at the end of the page.
    fn piece(&mut self, end: u8) -> io::Result<Vec<u8>> {
        let mut piece = std::mem::take(&mut self.rest);
        match piece.iter().position(|&byte| byte == end) {
            Some(at) => self.rest = piece.split_off(at + 1),
            None => {
                (&mut self.input).take(PIECE).read_until(end, &mut piece)?;
            }
        }
        Ok(piece)
    }

    fn make_text(&mut self) -> io::Result<()> {
        self.text.clear();
        self.given = 0;
        while self.text.is_empty() {
            let mut piece = self.piece(if self.inside { b'\n' } else { b'>' })?;
            if piece.is_empty() {
                return if self.found { Ok(()) } else { Err(no_trace()) };
            }
            if !self.inside {
                self.inside = find(&piece, MARK).is_some();
                self.found |= self.inside;
                continue;
            }
            if let Some(at) = find(&piece, END) {
                self.inside = false;
                let after = piece.split_off(at);
                self.rest.splice(..0, after);
                piece.push(b'\n');
            }
            self.text = piece;
        }
        Ok(())
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|there| there == what)
}

fn no_trace() -> io::Error {
    io::Error::other("the page has no <script class=\"trace-data\">, in which systrace writes its trace")
}

impl<R: BufRead> Read for Page<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.text.len() {
            self.make_text()?;
        }
        let read = self.text.get(self.given..).unwrap_or_default().read(buffer)?;
        self.given += read;
        Ok(read)
    }
}
