//! The controller on a machine: its loop, from the start to the end.
//!
//! [`config`] has its settings. [`machine`] has what can be controlled, [`observe`] what is seen of CPUs and VMs and
//! [`iothread`] of I/O threads, [`layered`] how control of a layer begins, [`qemus`] when that of I/O threads
//! does, [`decide`] the decisions, and [`leases`] how originals are restored. [`answers`] is what is answered
//! to those who ask through the [`socket`]; [`metrics`] are its figures, which [`serve`] serves over HTTP;
//! the service manager is [`notify`]'d. [`tenants`] has which VM counts how much. [`words`] has the line of
//! a change, which goes to [`notes`], and [`decisions`] all of them over time, as JSON.

// What the program uses of it is no interface of a library.
#![allow(missing_docs)]

mod answers;
mod bursts;
pub mod config;
mod cpu_time;
mod decide;
pub mod decisions;
mod iothread;
mod layered;
mod leases;
mod machine;
mod metrics;
mod notes;
mod notify;
mod observe;
mod qemus;
mod serve;
pub mod socket;
pub mod tenants;
pub mod words;

use config::{Config, Kept, Mode, OnExit};
use decisions::Log;
use metrics::{OfLayer, Published, Tally};
use notify::Manager;
use socket::{Ask, Server};
use anyhow::{Context, ensure};
use dwell_knobs::lease::{Lease, Subject};
use dwell_knobs::place::Place;
use dwell_machine::{Sysroot, Writable};
use dwell_policy::{Layer, Nanos};
use layered::Layered;
pub use iothread::{kernel_thread, usage};
pub use leases::restore;
use machine::here;
pub use notes::Notes;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use qemus::{Qemu, QemuState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use serde_json::json;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest time without a look at the socket and a word to the service manager.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often a layer that was given up is looked at.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// Where and how to control.
pub struct Task<'a> {
    pub machine: Sysroot,
    pub state_directory: String,
    pub duration: Option<Nanos>,
    /// Reads the configuration, at the start and after SIGHUP.
    pub configure: &'a dyn Fn() -> anyhow::Result<Config>,
    pub notes: Notes<'a>,
}

/// Why a controller has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The time was over.
    Duration,
    /// A signal.
    Signal,
    /// `dwell control stop`.
    Stopped,
}

/// Controls until it is asked to end.
///
/// # Errors
/// What cannot be controlled, or restored at the end.
pub fn run(task: &Task<'_>) -> anyhow::Result<End> {
    let config = (task.configure)()?;
    let signals = signals()?;
    let (machine, state) = (&task.machine, task.state_directory.as_str());
    machine.make_directory(state).with_context(|| format!("cannot make the directory {state}"))?;
    machine.check_directory(state).with_context(|| format!("cannot use the directory {state}"))?;
    let server = Server::bind(&machine.path(state))?;
    let manager = Manager::of_environment();
    let begun = Instant::now();
    let metrics = Metrics::of(&config, task.notes)?;
    let mut control = Control::begin(machine, state, config, begun, metrics, task.notes)?;
    manager.tell("READY=1");
    let ended = control.until_told(task, &signals, &server, &manager);
    manager.tell("STOPPING=1");
    let finished = control.finish();
    finished.and(ended)
}

/// The signals that end programs, and SIGHUP, as a file.
fn signals() -> anyhow::Result<SignalFd> {
    let mut mask = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| mask.add(signal));
    // Before any other thread is started, which inherits it.
    mask.thread_block().context("cannot block signals")?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("cannot wait for signals")
}

/// Control of some layers.
struct Control<'a> {
    machine: &'a Sysroot,
    state_directory: &'a str,
    config: Config,
    begun: Instant,
    layers: Vec<Layered>,
    qemus: Vec<Qemu>,
    /// Readable after a write to a parameter.
    writes: Option<OwnedFd>,
    metrics: Metrics,
    log: Option<Log<'a>>,
    notes: Notes<'a>,
    /// What the service manager was told last.
    told: String,
    /// The CPU time of this process that is accounted for.
    accounted: Duration,
    /// The place of the layer that comes first at the next decision.
    first: usize,
    /// CPU time of answers to those who ask what it does.
    answering: Duration,
}

/// Figures for those who ask over HTTP.
struct Metrics {
    published: Published,
    server: Option<serve::Server>,
}

impl Metrics {
    fn of(config: &Config, notes: Notes<'_>) -> anyhow::Result<Metrics> {
        let published = Published::new();
        let server = serve::Server::start(&config.metrics, published.clone())?;
        if let Some(server) = &server {
            notes.say(&"metrics", &format!("served at {}", server.address()));
        }
        Ok(Metrics { published, server })
    }
}

impl<'a> Control<'a> {
    fn begin(
        machine: &'a Sysroot,
        state_directory: &'a str,
        config: Config,
        begun: Instant,
        metrics: Metrics,
        notes: Notes<'a>,
    ) -> anyhow::Result<Control<'a>> {
        let asked = |layer| config.layers.is_empty() || config.layers.contains(&layer);
        let qemus = || config.qemus.iter().filter(|_| asked(Layer::Iothread));
        let mut layers = match config.layers.is_empty() {
            true => here(machine, qemus().next().is_some())?,
            false => config.layers.clone(),
        };
        layers.retain(|layer| *layer != Layer::Iothread);
        ensure!(
            !config.layers.contains(&Layer::Iothread) || !config.qemus.is_empty(),
            "the layer iothread needs the monitor of a QEMU: --qmp SOCKET, or [[qemu]] in the configuration"
        );
        let waiting = |qemu: &config::Qemu| Qemu {
            socket: qemu.qmp.clone(),
            state: QemuState::Waiting(begun, false),
        };
        let qemus = qemus().map(waiting).collect();
        let log = open_log(&config.log, notes)?;
        let mut control = Control {
            machine,
            state_directory,
            config,
            begun,
            layers: vec![],
            qemus,
            writes: None,
            metrics,
            log,
            notes,
            told: String::new(),
            accounted: Duration::ZERO,
            first: 0,
            answering: Duration::ZERO,
        };
        for layer in layers {
            let layered = control.layered(&Subject::Layer(layer))?;
            control.take_up(layered);
        }
        control.end_of_other_qemus()?;
        control.meet_qemus()?;
        control.writes = control.watch_writes();
        // What is done once takes as much CPU time as ten seconds may, in which nothing would be decided.
        control.accounted = control.used();
        Ok(control)
    }

    fn take_up(&mut self, layered: Layered) {
        let originals = layered.controller.originals();
        let line = match self.config.mode {
            Mode::Advise => format!(
                "advises only, by replay alone: whether a load that waits for its own answers would do less is not \
                 known without turns, which --mode active takes; the setting in force is {originals}"
            ),
            Mode::Active => format!("controls; the originals are {originals}"),
        };
        self.notes.say(&layered.subject, &line);
        self.log_start(&layered);
        self.layers.push(layered);
    }

    fn log_start(&mut self, layered: &Layered) {
        let now_ns = self.now_ns();
        let Some(log) = &mut self.log else { return };
        let mode = match self.config.mode {
            Mode::Advise => "advise",
            Mode::Active => "active",
        };
        let Layered { subject, controller, .. } = layered;
        let present = controller.status(now_ns).present;
        log.began(subject, now_ns, mode, self.config.halt_cost, &controller.originals(), &present);
    }

    /// A line about a QEMU.
    fn say_of_iothreads(&self, what: &str) {
        self.notes.say(&Layer::Iothread.name(), what);
    }

    /// Tells the service manager what each layer does, if that is another thing than before.
    fn tell_state(&mut self, manager: &Manager) {
        let of = |layer: &OfLayer| format!("{}: {}", layer.subject, layer.state);
        let all: Vec<String> = self.snapshot().layers.iter().map(of).collect();
        let status = format!("STATUS={}", all.join(", "));
        if self.told != status {
            manager.tell(&status);
            self.told = status;
        }
    }

    fn now_ns(&self) -> u64 {
        nanos(self.begun.elapsed())
    }

    /// Without it, foreign writes are seen at the next decision.
    fn watch_writes(&self) -> Option<OwnedFd> {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
        for place in self.layers.iter().filter_map(|layered| layered.lease.as_ref()).flat_map(Lease::places) {
            let Place::Parameter(path) = place else { continue };
            let path: PathBuf = self.machine.path(path);
            inotify::add_watch(&watch, path, inotify::WatchFlags::MODIFY).ok()?;
        }
        Some(watch)
    }

    fn until_told(
        &mut self,
        task: &Task<'_>,
        signals: &SignalFd,
        server: &Server,
        manager: &Manager,
    ) -> anyhow::Result<End> {
        let ends = task.duration.map(|duration| self.begun + Duration::from_nanos(duration.get()));
        loop {
            let mut wait = LOOK_AROUND.min(self.until_next());
            if let Some(ends) = ends {
                wait = wait.min(ends.saturating_duration_since(Instant::now()));
            }
            self.wait(wait, signals, server)?;
            manager.tell("WATCHDOG=1");
            if ends.is_some_and(|ends| Instant::now() >= ends) {
                return Ok(End::Duration);
            }
            while let Some(signal) = signals.read_signal().context("cannot read signals")? {
                if i32::try_from(signal.ssi_signo) != Ok(Signal::SIGHUP as i32) {
                    return Ok(End::Signal);
                }
                self.configure_again(task)?;
            }
            let mut stop = false;
            let before = cpu_time::of_process();
            server.answer(|ask| match ask {
                Ask::Status => self.status(),
                Ask::Resume => self.resume(),
                Ask::Stop => {
                    stop = true;
                    json!({ "stopped": true })
                }
            });
            self.answering += cpu_time::of_process().saturating_sub(before);
            if stop {
                return Ok(End::Stopped);
            }
            self.look_for_foreign_writes()?;
            self.meet_qemus()?;
            self.decide()?;
            self.tell_state(manager);
            if self.metrics.server.is_some() {
                self.metrics.published.publish(self.snapshot());
            }
        }
    }

    fn until_next(&self) -> Duration {
        let now = self.now_ns();
        let next = self.layers.iter().map(|layered| match layered.given_up {
            Some(_) => GIVEN_UP,
            None => {
                let look = layered.next_look_ns().unwrap_or(u64::MAX);
                Duration::from_nanos(layered.controller.next_at_ns().min(look).saturating_sub(now))
            }
        });
        next.min().unwrap_or(LOOK_AROUND)
    }

    fn wait(&self, time: Duration, signals: &SignalFd, server: &Server) -> anyhow::Result<()> {
        let mut files = vec![
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(server.listener().as_fd(), PollFlags::IN),
        ];
        files
            .extend(self.writes.as_ref().map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
        let timeout = Timespec::try_from(time).context("cannot wait")?;
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait"),
        }
    }

    /// A configuration that cannot be used changes nothing.
    fn configure_again(&mut self, task: &Task<'_>) -> anyhow::Result<()> {
        let config = match self.other_configuration(task) {
            Ok(Some(config)) => config,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.notes.warn(&format!("dwell: the configuration stays as it was: {error:#}"));
                return Ok(());
            }
        };
        self.finish()?;
        let published = self.metrics.published.clone();
        let metrics = Metrics { published, server: self.metrics.server.take() };
        let did: Vec<(Subject, Tally)> =
            self.layers.drain(..).map(|layered| (layered.subject, layered.tally)).collect();
        *self = Control::begin(self.machine, self.state_directory, config, self.begun, metrics, self.notes)?;
        for (subject, tally) in did {
            if let Some(layered) = self.layers.iter_mut().find(|layered| layered.subject == subject) {
                layered.tally = tally;
            }
        }
        Ok(())
    }

    /// The configuration, if it is another one. It can be used then; its metrics are served already.
    fn other_configuration(&mut self, task: &Task<'_>) -> anyhow::Result<Option<Config>> {
        let config = (task.configure)()?;
        if config == self.config {
            return Ok(None);
        }
        open_log(&config.log, self.notes)?;
        if config.metrics != self.config.metrics {
            self.metrics = Metrics::of(&config, self.notes)?;
        }
        Ok(Some(config))
    }

    fn look_for_foreign_writes(&mut self) -> anyhow::Result<()> {
        let Some(watch) = &self.writes else { return Ok(()) };
        let mut events = [0u8; 4096];
        let mut any = false;
        while rustix::io::read(watch, &mut events).is_ok_and(|bytes| bytes > 0) {
            any = true;
        }
        if any {
            for at in 0..self.layers.len() {
                // No event tells of a write to a QEMU.
                if self.layers[at].subject.iothread().is_none() {
                    self.give_up_if_foreign(at)?;
                }
            }
        }
        Ok(())
    }

    /// Restores the originals, or leaves the lease open where the setting is to stay.
    fn finish(&mut self) -> anyhow::Result<()> {
        let mut failed = Ok(());
        for at in 0..self.layers.len() {
            let subject = self.layers[at].subject.clone();
            let Some(lease) = self.layers[at].lease.take() else { continue };
            // One that panics restores.
            if self.config.on_exit == OnExit::Keep && !std::thread::panicking() {
                failed = failed.and(self.leave(&subject, &lease));
                continue;
            }
            failed = failed.and(self.end(&subject, &lease));
        }
        failed
    }
}

/// Also where the program panics.
impl Drop for Control<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            self.notes.warn(&format!("dwell: {error:#}"));
        }
    }
}

fn open_log<'a>(kept: &Kept, notes: Notes<'a>) -> anyhow::Result<Option<Log<'a>>> {
    kept.0.as_deref().map(|path| Log::open(path, notes)).transpose()
}

/// The directory of the socket of a controller.
pub fn directory(machine: &dyn Writable, state_directory: &str) -> PathBuf {
    machine.path(state_directory)
}

/// In nanoseconds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
