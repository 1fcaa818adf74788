//! How a loop sleeps in io_uring.

use crate::source::SourceId;
use crate::wait::{Wait, Watch};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Duration;

/// Entries of the submission queue; the completion queue has twice as many, and what does not fit waits in the kernel.
const ENTRIES: u32 = 256;
/// The number of an entry whose completion says nothing.
const NOBODY: u64 = u64::MAX;
/// `POLLIN`.
const IN: u32 = 1;

/// Waits for file descriptors by polls of io_uring (Linux 5.13).
///
/// Whether one is ready is seen in memory, so that looking at file descriptors while the loop polls takes no
/// system call. In return each event of one that cannot be looked at is asked for again, which is an entry to
/// submit before the loop looks at them again. Regular files count as always readable, which epoll refuses.
pub struct Uring {
    ring: IoUring,
    /// By the numbers of the sources.
    watched: Vec<Option<Watched>>,
    /// Those that are to be asked for again.
    again: Vec<u64>,
    /// The number of watches so far: a source may get the number of one that is gone, whose completions may still come.
    generation: u32,
}

#[derive(Clone, Copy)]
struct Watched {
    fd: RawFd,
    edge: bool,
    user_data: u64,
}

impl Watched {
    fn entry(self) -> squeue::Entry {
        // One that stays reports every notification; one that does not reports that there is something to read.
        let poll = opcode::PollAdd::new(types::Fd(self.fd), IN).multi(self.edge);
        poll.build().user_data(self.user_data)
    }
}

/// The source of an entry.
fn source(user_data: u64) -> SourceId {
    let [a, b, c, d, ..] = user_data.to_le_bytes();
    SourceId(u32::from_le_bytes([a, b, c, d]))
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring").field("fd", &self.ring.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Uring {
    /// A ring of its own.
    ///
    /// # Errors
    /// The system call's: there is no io_uring, or it is forbidden here.
    pub fn new() -> io::Result<Uring> {
        // Completions then come without an interrupt, and a flag says so (Linux 5.19).
        let cooperative = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES);
        let ring = cooperative.or_else(|_| IoUring::new(ENTRIES))?;
        Ok(Uring { ring, watched: vec![], again: vec![], generation: 0 })
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: polls and their cancellation refer to a file descriptor and to no memory.
            #[allow(unsafe_code)]
            let pushed = unsafe { self.ring.submission().push(entry) };
            match pushed {
                Ok(()) => return Ok(()),
                Err(_) => self.enter(Some(Duration::ZERO))?,
            }
        }
    }

    /// Enters the kernel: submits what is to be submitted, and waits for a completion for at most so long.
    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let entered = match timeout {
            Some(Duration::ZERO) => submitter.submit(),
            Some(time) => {
                let time = types::Timespec::from(time);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
            None => submitter.submit_and_wait(1),
        };
        match entered.as_ref().err().and_then(Errno::from_io_error) {
            // The time is over, a signal came, or completions have to be taken first: the loop looks around
            // and comes back.
            Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
            _ => entered.map(drop),
        }
    }

    /// Whether there are entries to submit, or completions as soon as the thread enters the kernel.
    fn is_due(&mut self) -> bool {
        let submission = self.ring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    fn ask_again(&mut self) -> io::Result<()> {
        while let Some(&user_data) = self.again.last() {
            if let Some(watched) = self.current(user_data) {
                self.push(&watched.entry())?;
            }
            self.again.pop();
        }
        Ok(())
    }

    /// The watch that an entry belongs to, if it is still there.
    fn current(&self, user_data: u64) -> Option<Watched> {
        let watched = self.watched.get(source(user_data).0 as usize).copied().flatten();
        watched.filter(|watched| watched.user_data == user_data)
    }

    /// Passes the sources of all completions.
    fn take(&mut self, mut ready: impl FnMut(SourceId)) -> io::Result<()> {
        let mut failed = None;
        loop {
            let done = self.ring.completion().next();
            let Some(done) = done else { break };
            let user_data = done.user_data();
            let Some(watched) = self.current(user_data) else { continue };
            match done.result() {
                result if result >= 0 => {
                    ready(source(user_data));
                    if !watched.edge || !cqueue::more(done.flags()) {
                        self.again.push(user_data);
                    }
                }
                // The thread that asked has ended, and the kernel cancels what it asked for.
                error if error == -Errno::CANCELED.raw_os_error() => self.again.push(user_data),
                error => {
                    self.watched[source(user_data).0 as usize] = None;
                    failed = Some(io::Error::from_raw_os_error(-error));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

impl Watch for Uring {
    fn watch(&mut self, id: SourceId, fd: BorrowedFd<'_>, edge: bool) -> io::Result<()> {
        self.generation = self.generation.wrapping_add(1);
        let user_data = u64::from(self.generation) << 32 | u64::from(id.0);
        let watched = Watched { fd: fd.as_raw_fd(), edge, user_data };
        let place = id.0 as usize;
        if self.watched.len() <= place {
            self.watched.resize(place + 1, None);
        }
        self.watched[place] = Some(watched);
        self.push(&watched.entry())?;
        // Before the descriptor can be closed.
        self.enter(Some(Duration::ZERO))
    }

    fn forget(&mut self, id: SourceId, _: BorrowedFd<'_>) -> io::Result<()> {
        let watched = self.watched.get_mut(id.0 as usize).and_then(Option::take);
        let watched = watched.ok_or(io::ErrorKind::NotFound)?;
        self.push(&opcode::PollRemove::new(watched.user_data).build().user_data(NOBODY))?;
        self.enter(Some(Duration::ZERO))
    }
}

impl Wait for Uring {
    fn wait(&mut self, timeout: Option<Duration>, ready: impl FnMut(SourceId)) -> io::Result<()> {
        self.ask_again()?;
        let any = !self.ring.completion().is_empty();
        if !any && timeout != Some(Duration::ZERO) {
            self.enter(timeout)?;
        } else if self.is_due() {
            self.enter(Some(Duration::ZERO))?;
        }
        self.take(ready)
    }

    /// Also where it has to be asked again.
    fn ring(&mut self) -> Option<bool> {
        Some(!self.again.is_empty() || !self.ring.completion().is_empty() || self.is_due())
    }
}
