//! The doorbell as a source.

use crate::doorbell::Word;
use crate::source::Source;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fmt;
use std::io;
use std::sync::Arc;

#[derive(Debug)]
struct Shared {
    word: Word,
    eventfd: OwnedFd,
}

/// Calls a loop from any thread. While the loop is awake that is one atomic instruction and no system call.
#[derive(Clone, Debug)]
pub struct Doorbell(Arc<Shared>);

impl Doorbell {
    /// Calls the loop; it runs its [`Bell`] once or more after this.
    pub fn ring(&self) {
        if self.0.word.ring() {
            // Only a counter at its limit of 2^64 - 2 refuses, and then the descriptor is readable anyway.
            let _ = rustix::io::write(&self.0.eventfd, &1u64.to_ne_bytes());
        }
    }
}

/// The loop's side: a source that runs a closure when the bell was rung.
pub struct Bell<F> {
    shared: Arc<Shared>,
    run: F,
}

impl<F: FnMut()> Bell<F> {
    /// A doorbell, and the source that answers it.
    ///
    /// # Errors
    /// No eventfd could be made.
    pub fn new(run: F) -> io::Result<(Bell<F>, Doorbell)> {
        let eventfd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { word: Word::new(), eventfd });
        Ok((Bell { shared: Arc::clone(&shared), run }, Doorbell(shared)))
    }
}

impl<F> fmt::Debug for Bell<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl<F: FnMut()> Source for Bell<F> {
    fn look(&mut self) -> bool {
        self.shared.word.look()
    }

    fn quiet(&mut self) {
        self.shared.word.wakes();
    }

    fn loud(&mut self) {
        // Where it does not sleep because the bell was rung, the look that follows sees that.
        let _ = self.shared.word.sleeps();
    }

    fn run(&mut self, _: u32) -> bool {
        if self.shared.word.answer() {
            (self.run)();
        }
        false
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.eventfd.as_fd())
    }
}
