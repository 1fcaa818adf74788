//! What a controller gets from outside: the time, signals, questions, and what is seen of idlers.

use super::notify::Manager;
use super::observe::{self, Source, Wanted};
use super::socket::{Ask, Server};
use super::{cpu_time, nanos};
use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use serde_json::Value;
use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    End,
    ReadConfiguration,
}

/// The time, and what comes from outside. That of tests is in memory, and its time passes where it is waited.
pub(super) trait World {
    /// Since the start \[ns\].
    fn now_ns(&self) -> u64;
    /// CPU time of this process so far.
    fn cpu_time(&self) -> Duration;
    /// Waits for so long, or until there is something to do.
    fn wait(&self, at_most: Duration) -> anyhow::Result<()>;
    /// The next signal that came.
    fn signal(&self) -> anyhow::Result<Option<Told>>;
    /// Answers all who ask.
    fn answer(&self, reply: &mut dyn FnMut(Ask) -> Value);
    /// Tells the service manager.
    fn tell(&self, text: &str);
    /// From now on, waits end after a write to these files. Where that fails, foreign writes are seen at the
    /// next decision.
    fn watch(&self, files: &[PathBuf]);
    /// Whether one was written to since the last call.
    fn was_written(&self) -> bool;
    /// What is seen of the idlers of a layer.
    fn source(&self, wanted: &Wanted<'_>) -> anyhow::Result<Box<dyn Source>>;
}

/// This machine.
pub(super) struct Here {
    begun: Instant,
    signals: SignalFd,
    server: Server,
    manager: Manager,
    /// Readable after a write to a parameter.
    writes: RefCell<Option<OwnedFd>>,
}

impl Here {
    /// Listening in this directory.
    pub(super) fn listening(directory: &std::path::Path) -> anyhow::Result<Here> {
        let mut mask = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| mask.add(signal));
        // Before any other thread is started, which inherits it.
        mask.thread_block().context("cannot block signals")?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot wait for signals")?;
        Ok(Here {
            signals,
            server: Server::bind(directory)?,
            manager: Manager::of_environment(),
            begun: Instant::now(),
            writes: RefCell::new(None),
        })
    }
}

impl World for Here {
    fn now_ns(&self) -> u64 {
        nanos(self.begun.elapsed())
    }

    fn cpu_time(&self) -> Duration {
        cpu_time::of_process()
    }

    fn wait(&self, at_most: Duration) -> anyhow::Result<()> {
        let writes = self.writes.borrow();
        let mut files = vec![
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.server.listener().as_fd(), PollFlags::IN),
        ];
        files.extend(writes.as_ref().map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
        let timeout = Timespec::try_from(at_most).context("cannot wait")?;
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait"),
        }
    }

    fn signal(&self) -> anyhow::Result<Option<Told>> {
        let signal = self.signals.read_signal().context("cannot read signals")?;
        Ok(signal.map(|signal| match i32::try_from(signal.ssi_signo) == Ok(Signal::SIGHUP as i32) {
            true => Told::ReadConfiguration,
            false => Told::End,
        }))
    }

    fn answer(&self, reply: &mut dyn FnMut(Ask) -> Value) {
        self.server.answer(reply);
    }

    fn tell(&self, text: &str) {
        self.manager.tell(text);
    }

    fn watch(&self, files: &[PathBuf]) {
        *self.writes.borrow_mut() = watched(files);
    }

    fn was_written(&self) -> bool {
        let writes = self.writes.borrow();
        let Some(watch) = writes.as_ref() else { return false };
        let (mut events, mut any) = ([0u8; 4096], false);
        while rustix::io::read(watch, &mut events).is_ok_and(|bytes| bytes > 0) {
            any = true;
        }
        any
    }

    fn source(&self, wanted: &Wanted<'_>) -> anyhow::Result<Box<dyn Source>> {
        observe::of_layer(wanted)
    }
}

/// A file that is readable after a write to one of these.
fn watched(files: &[PathBuf]) -> Option<OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
    for file in files {
        inotify::add_watch(&watch, file, inotify::WatchFlags::MODIFY).ok()?;
    }
    Some(watch)
}
