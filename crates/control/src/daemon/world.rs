//! What a controller gets from outside: the time, signals, questions, and what is seen of idlers.

use super::config::Config;
use super::iothread::{self, Found};
use super::nanos;
use super::notify::Manager;
use super::observe::{self, Source, WakeupLatency};
use super::socket::{Ask, Server};
use anyhow::{Context, anyhow};
use dwell_machine::Sysroot;
use dwell_policy::Layer;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
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
    /// Waits for so long, or until something comes from outside; whether anything may have.
    fn wait(&self, at_most: Duration) -> anyhow::Result<bool>;
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
    fn source(&self, layer: Layer, late: WakeupLatency, config: &Config) -> anyhow::Result<Box<dyn Source>>;
    /// Begins to look for the I/O threads of the QEMU at a socket, however long that takes.
    fn look_for_iothreads(&self, socket: &str);
    /// What was found there, once; `None` until then.
    fn found_iothreads(&self, socket: &str) -> Option<anyhow::Result<Vec<Found>>>;
}

pub(super) struct Here {
    machine: Sysroot,
    begun: Instant,
    signals: SignalFd,
    server: Server,
    manager: Manager,
    /// Readable after a write to a parameter.
    writes: RefCell<Option<OwnedFd>>,
    /// Threads that look for I/O threads, by the socket.
    looks: RefCell<BTreeMap<String, Receiver<anyhow::Result<Vec<Found>>>>>,
}

impl Here {
    /// Of a machine, listening in this directory.
    pub(super) fn listening(machine: &Sysroot, directory: &Path) -> anyhow::Result<Here> {
        let mut mask = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| mask.add(signal));
        // Before any other thread is started, which inherits it.
        mask.thread_block().context("cannot block signals")?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .context("cannot wait for signals")?;
        Ok(Here {
            machine: machine.clone(),
            signals,
            server: Server::bind(directory)?,
            manager: Manager::of_environment(),
            begun: Instant::now(),
            writes: RefCell::new(None),
            looks: RefCell::default(),
        })
    }
}

impl World for Here {
    fn now_ns(&self) -> u64 {
        nanos(self.begun.elapsed())
    }

    fn cpu_time(&self) -> Duration {
        super::cpu_time()
    }

    fn wait(&self, at_most: Duration) -> anyhow::Result<bool> {
        let writes = self.writes.borrow();
        let mut files = vec![
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.server.listener.as_fd(), PollFlags::IN),
        ];
        files.extend(writes.as_ref().map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
        let timeout = Timespec::try_from(at_most).context("cannot wait")?;
        match poll(&mut files, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
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

    fn source(&self, layer: Layer, late: WakeupLatency, config: &Config) -> anyhow::Result<Box<dyn Source>> {
        observe::of_layer(&self.machine, layer, late, config)
    }

    fn look_for_iothreads(&self, socket: &str) {
        let (machine, at) = (self.machine.clone(), socket.to_owned());
        let (found, finds) = channel();
        let failed = found.clone();
        let look = move || drop(found.send(iothread::find(&machine, &at)));
        if let Err(error) = std::thread::Builder::new().name("monitor".to_owned()).spawn(look) {
            let _ = failed.send(Err(error).context("cannot start a thread that asks the monitor"));
        }
        self.looks.borrow_mut().insert(socket.to_owned(), finds);
    }

    fn found_iothreads(&self, socket: &str) -> Option<anyhow::Result<Vec<Found>>> {
        let mut looks = self.looks.borrow_mut();
        let found = match looks.get(socket)?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            found => found.unwrap_or_else(|_| Err(anyhow!("the thread that asks the monitor has ended"))),
        };
        looks.remove(socket);
        Some(found)
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
