//! How a loop sleeps; by epoll, unless it is given another way.

use crate::source::SourceId;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Duration;

/// How a loop sleeps.
pub trait Wait {
    /// Waits for at most `timeout` (`None`: without end) for file descriptors, and passes whose are ready.
    /// May return early.
    ///
    /// # Errors
    /// The system call's.
    fn wait(&mut self, timeout: Option<Duration>, ready: impl FnMut(SourceId)) -> io::Result<()>;

    /// Of a way to wait that shows ready file descriptors without a system call, such as io_uring: whether it
    /// has any. `None`: it does not.
    fn ring(&mut self) -> Option<bool> {
        None
    }
}

/// A way to wait that watches the file descriptors of sources.
pub trait Watch: Wait {
    /// Watches a file descriptor for readability: `edge` by edges, for sources that are looked at and need
    /// not be drained; else by level.
    ///
    /// # Errors
    /// The system call's.
    fn watch(&mut self, id: SourceId, fd: BorrowedFd<'_>, edge: bool) -> io::Result<()>;

    /// Watches it no longer.
    ///
    /// # Errors
    /// The system call's.
    fn forget(&mut self, id: SourceId, fd: BorrowedFd<'_>) -> io::Result<()>;
}

/// Waits for file descriptors by `epoll_wait`, and where there is a time-out by `ppoll` before it: that takes
/// nanoseconds, where `epoll_wait` takes milliseconds and `epoll_pwait2` needs Linux 5.11.
pub struct Epoll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl fmt::Debug for Epoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoll").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

impl Epoll {
    /// An epoll instance of its own.
    ///
    /// # Errors
    /// The system call's.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll { epoll: epoll::create(CreateFlags::CLOEXEC)?, events: Vec::with_capacity(64) })
    }
}

impl Watch for Epoll {
    fn watch(&mut self, id: SourceId, fd: BorrowedFd<'_>, edge: bool) -> io::Result<()> {
        let flags = if edge { EventFlags::IN | EventFlags::ET } else { EventFlags::IN };
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(id.0.into()), flags)?)
    }

    fn forget(&mut self, _: SourceId, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }
}

impl Wait for Epoll {
    fn wait(&mut self, timeout: Option<Duration>, mut ready: impl FnMut(SourceId)) -> io::Result<()> {
        if let Some(time) = timeout.filter(|time| !time.is_zero()) {
            let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&time)) {
                Ok(0) | Err(Errno::INTR) => return Ok(()),
                ready => ready?,
            };
        }
        let timeout = timeout.map(|_| Timespec::default());
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) => {}
            // A signal: the loop looks around and sleeps again.
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        for event in &self.events {
            let Event { data, .. } = *event;
            ready(SourceId(u32::try_from(data.u64()).unwrap_or(u32::MAX)));
        }
        Ok(())
    }
}
