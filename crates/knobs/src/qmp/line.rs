//! Lines out of a socket, by a deadline and of bounded length.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Why there is no line.
#[derive(Debug)]
pub(super) enum NoLine {
    Io(io::Error),
    Closed,
    TooLate,
    TooLong,
}

/// What was read and not yet used.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// Up to here the buffer has no line feed.
    searched: usize,
}

impl Lines {
    /// The next line without its end, by `deadline`. What is left of a line that came in part is kept.
    pub(super) fn next(
        &mut self,
        stream: &mut UnixStream,
        deadline: Instant,
        longest: usize,
    ) -> Result<Vec<u8>, NoLine> {
        loop {
            if let Some(line) = self.take() {
                return if line.len() > longest { Err(NoLine::TooLong) } else { Ok(line) };
            }
            if self.buffer.len() > longest {
                return Err(NoLine::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoLine::TooLate);
            }
            self.read(stream, left)?;
        }
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let found = self.buffer.iter().skip(self.searched).position(|&byte| byte == b'\n');
        let Some(found) = found else {
            self.searched = self.buffer.len();
            return None;
        };
        let rest = self.buffer.split_off(self.searched + found + 1);
        self.searched = 0;
        let mut line = std::mem::replace(&mut self.buffer, rest);
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(line)
    }

    fn read(&mut self, stream: &mut UnixStream, left: Duration) -> Result<(), NoLine> {
        stream.set_read_timeout(Some(left)).map_err(NoLine::Io)?;
        let mut chunk = [0; 1 << 14];
        match stream.read(&mut chunk) {
            Ok(0) => Err(NoLine::Closed),
            Ok(read) => {
                self.buffer.extend_from_slice(chunk.get(..read).unwrap_or_default());
                Ok(())
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(()),
                io::ErrorKind::ConnectionReset => Err(NoLine::Closed),
                _ => Err(NoLine::Io(error)),
            },
        }
    }
}
