//! Text that is made of a file piece by piece.

use std::io::{self, Read};

pub(super) trait Pieces {
    /// Appends the next piece; nothing at the end.
    ///
    /// # Errors
    /// What the text is made of cannot be read.
    fn piece(&mut self, text: &mut Vec<u8>) -> io::Result<()>;
}

/// The text as an input.
pub(super) struct Text<P> {
    pieces: P,
    text: Vec<u8>,
    /// How much of `text` was read \[bytes\].
    read: usize,
}

impl<P: Pieces> Text<P> {
    pub(super) fn of(pieces: P) -> Text<P> {
        Text { pieces, text: vec![], read: 0 }
    }
}

impl<P: Pieces> Read for Text<P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read == self.text.len() {
            self.text.clear();
            self.read = 0;
            self.pieces.piece(&mut self.text)?;
        }
        let read = self.text.get(self.read..).unwrap_or_default().read(buffer)?;
        self.read += read;
        Ok(read)
    }
}
