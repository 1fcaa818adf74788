//! The trace in a page of systrace (HTML): what is in its elements `<script class="trace-data">`.

use super::pieces::Pieces;
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
    /// What was read and not looked at.
    rest: Vec<u8>,
}

/// Whether a text begins like a page.
pub(super) fn is_page(start: &[u8]) -> bool {
    let start = start.trim_ascii_start();
    let begins = |tag: &[u8]| start.get(..tag.len()).is_some_and(|there| there.eq_ignore_ascii_case(tag));
    begins(b"<!DOCTYPE html") || begins(b"<html")
}

impl<R: BufRead> Page<R> {
    pub(super) fn new(input: R) -> Page<R> {
        Page { input, inside: false, found: false, rest: vec![] }
    }

    /// The next piece up to `end`; empty at the end of the page.
    fn up_to(&mut self, end: u8) -> io::Result<Vec<u8>> {
        let mut piece = std::mem::take(&mut self.rest);
        match piece.iter().position(|&byte| byte == end) {
            Some(at) => self.rest = piece.split_off(at + 1),
            None => {
                (&mut self.input).take(PIECE).read_until(end, &mut piece)?;
            }
        }
        Ok(piece)
    }
}

impl<R: BufRead> Pieces for Page<R> {
    fn piece(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        while text.is_empty() {
            let mut piece = self.up_to(if self.inside { b'\n' } else { b'>' })?;
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
            text.append(&mut piece);
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
