//! The controller on a machine.

use super::config::{Config, Kept, Mode, OnExit};
use super::decisions::Log;
use super::iothread::{self, IothreadSource, Look, Trouble};
use super::metrics::{OfLayer, Published, Reason, Snapshot, Tally, cpu_time};
use super::notify::Manager;
use super::observe::Source;
use super::serve;
use super::socket::{self, Ask, Server};
use super::words;
use crate::failure::{Answer, Outcome};
use crate::output;
use anyhow::{Context, anyhow, bail, ensure};
use dwell_control::{Cause, Change, Controller, Observed, Terms};
use dwell_knobs::change::{self, Reverted};
use dwell_knobs::condition::NoEffect;
use dwell_knobs::journal;
use dwell_knobs::knob::Module;
use dwell_knobs::lease::{self, Lease, SetError, Subject};
use dwell_knobs::place::Place;
use dwell_knobs::value::shown;
use dwell_machine::{Cpuidle, Machine, Sysroot, Writable, kernel, parameter};
use dwell_policy::param::{self, Setting};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_replay::Values;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest time without a look at the socket and a word to the service manager.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often a layer that was given up is looked at.
const GIVEN_UP: Duration = Duration::from_secs(1);
/// How often a QEMU that does not answer is tried.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How often a veto of a VM has a line, at most \[ns\].
const VETOES_NS: u64 = 60_000_000_000;

/// Where and how to control.
pub(super) struct Task<'a> {
    pub(super) machine: Sysroot,
    pub(super) state_directory: String,
    pub(super) duration: Option<Nanos>,
    /// Reads the configuration, at the start and after SIGHUP.
    pub(super) configure: &'a dyn Fn() -> anyhow::Result<Config>,
}

/// Controls until it is asked to end.
pub(super) fn run(task: &Task<'_>) -> Outcome {
    let config = (task.configure)()?;
    let signals = signals()?;
    let (machine, state) = (&task.machine, task.state_directory.as_str());
    machine.make_directory(state).with_context(|| format!("cannot make the directory {state}"))?;
    machine.check_directory(state).with_context(|| format!("cannot use the directory {state}"))?;
    let server = Server::bind(&machine.path(state))?;
    let manager = Manager::of_environment();
    let begun = Instant::now();
    let metrics = Metrics::of(&config)?;
    let mut control = Control::begin(machine, state, config, begun, metrics)?;
    manager.tell("READY=1");
    let ended = control.until_told(task, &signals, &server, &manager);
    manager.tell("STOPPING=1");
    let finished = control.finish();
    ended.and(finished)?;
    Ok(Answer::Yes)
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
    log: Option<Log>,
    /// The CPU time of this process that is accounted for.
    accounted: Duration,
    /// CPU time of answers to those who ask what it does.
    answering: Duration,
}

/// Figures for those who ask over HTTP.
struct Metrics {
    published: Published,
    server: Option<serve::Server>,
}

impl Metrics {
    fn of(config: &Config) -> anyhow::Result<Metrics> {
        let published = Published::new();
        let server = serve::Server::start(&config.metrics, published.clone())?;
        if let Some(server) = &server {
            let _ = output::text(&format!("metrics: served at {}\n", server.address()));
        }
        Ok(Metrics { published, server })
    }
}

/// A QEMU whose I/O threads are controlled while it is there.
struct Qemu {
    socket: String,
    state: QemuState,
}

enum QemuState {
    /// It is tried again then; whether it was said why.
    Waiting(Instant, bool),
    /// Its I/O threads are among the layers.
    Here,
    /// They are, and it does not answer.
    Lost(String),
}

/// Control of one layer, or of one I/O thread.
struct Layered {
    subject: Subject,
    controller: Controller,
    source: Source,
    lease: Option<Lease>,
    /// Why it is left alone.
    given_up: Option<String>,
    /// The setting that was advised last.
    advised: Option<Setting>,
    /// What idlers vetoed last, and when that was said \[ns\].
    vetoed: BTreeMap<u64, (Setting, u64)>,
    tally: Tally,
}

impl Layered {
    /// When to look between two decisions \[ns\], if ever.
    fn next_look_ns(&self) -> Option<u64> {
        Some(self.source.next_look_ns()?.max(self.controller.out_of_budget_until_ns()))
    }

    /// A line for each VM that vetoes another setting than before.
    fn say_vetoes(&mut self, now_ns: u64) {
        let here = |idler: &u64| self.controller.seen().iter().any(|seen| seen.idler == *idler);
        self.vetoed.retain(|idler, _| here(idler));
        for veto in self.controller.vetoes() {
            let said = self.vetoed.get(&veto.idler);
            if said.is_some_and(|(setting, at_ns)| {
                *setting == veto.setting || now_ns.saturating_sub(*at_ns) < VETOES_NS
            }) {
                continue;
            }
            self.vetoed.insert(veto.idler, (veto.setting, now_ns));
            let present = self.controller.status(now_ns).present;
            say(&self.subject, &words::veto(&present, veto, &self.source.called(veto.idler)));
        }
    }
}

impl<'a> Control<'a> {
    fn begin(
        machine: &'a Sysroot,
        state_directory: &'a str,
        config: Config,
        begun: Instant,
        metrics: Metrics,
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
        let waiting = |qemu: &super::config::Qemu| Qemu {
            socket: qemu.qmp.clone(),
            state: QemuState::Waiting(begun, false),
        };
        let qemus = qemus().map(waiting).collect();
        let log = open_log(&config.log)?;
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
            accounted: Duration::ZERO,
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
            Mode::Advise => format!("advises only; the setting in force is {originals}"),
            Mode::Active => format!("controls; the originals are {originals}"),
        };
        say(&layered.subject, &line);
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

    /// Ends the leases that a killed controller left of QEMUs that are no longer to be controlled.
    fn end_of_other_qemus(&self) -> anyhow::Result<()> {
        if self.config.mode == Mode::Advise {
            return Ok(());
        }
        let is_other = |change: &journal::Change| {
            let socket = change.plan.iothread.as_ref().map(|target| &target.socket);
            socket.is_some_and(|socket| self.qemus.iter().all(|qemu| qemu.socket != *socket))
        };
        end_left_open(self.machine, self.state_directory, is_other)
    }

    /// Takes up the I/O threads of QEMUs that answer, and parts from those of QEMUs that do not.
    fn meet_qemus(&mut self) -> anyhow::Result<()> {
        for at in 0..self.qemus.len() {
            if let QemuState::Lost(why) = &self.qemus[at].state {
                let why = why.clone();
                self.part_from(at, &why)?;
            }
            let QemuState::Waiting(next, told) = self.qemus[at].state else { continue };
            if Instant::now() < next {
                continue;
            }
            let socket = self.qemus[at].socket.clone();
            match self.threads_of(&socket) {
                Ok(layers) => {
                    layers.into_iter().for_each(|layered| self.take_up(layered));
                    self.qemus[at].state = QemuState::Here;
                }
                Err(error) => {
                    if !told {
                        say_of_iothreads(&format!("waiting for the QEMU at {socket}: {error:#}"));
                    }
                    self.qemus[at].state = QemuState::Waiting(Instant::now() + TRY_AGAIN, true);
                }
            }
        }
        Ok(())
    }

    fn threads_of(&self, socket: &str) -> anyhow::Result<Vec<Layered>> {
        let mut layers = vec![];
        for found in iothread::find(self.machine, socket)? {
            match self.layered(&found.subject) {
                Ok(layered) => layers.push(layered),
                Err(error) => {
                    // All of them or none.
                    for lease in layers.into_iter().filter_map(|layered: Layered| layered.lease) {
                        lease::end(self.machine, self.state_directory, lease.id())?;
                    }
                    return Err(error.context(found.subject.to_string()));
                }
            }
        }
        Ok(layers)
    }

    /// Ends the leases of a QEMU that does not answer. Where it runs nevertheless, they stay open, and are ended when it answers.
    fn part_from(&mut self, at: usize, why: &str) -> anyhow::Result<()> {
        let socket = self.qemus[at].socket.clone();
        say_of_iothreads(&format!("waiting for the QEMU at {socket}: {why}"));
        self.qemus[at].state = QemuState::Waiting(Instant::now(), true);
        let is_of =
            |layered: &mut Layered| layered.subject.iothread().is_some_and(|target| target.socket == socket);
        for parted in self.layers.extract_if(.., is_of) {
            let Some(lease) = parted.lease else { continue };
            let reverted = lease::end(self.machine, self.state_directory, lease.id())?;
            if reverted.complete {
                told_of(&parted.subject, "", &reverted)?;
            }
        }
        Ok(())
    }

    /// What has become of a layer that could not be observed or set.
    fn trouble(&mut self, at: usize, trouble: Trouble) -> anyhow::Result<()> {
        match (trouble, self.layers[at].subject.iothread()) {
            (Trouble::Lost(why), Some(target)) => {
                for qemu in self.qemus.iter_mut().filter(|qemu| qemu.socket == target.socket) {
                    qemu.state = QemuState::Lost(why.clone());
                }
                Ok(())
            }
            (Trouble::Lost(why), None) => self.give_up(at, Reason::Failed, &why),
            (Trouble::Other(error), _) => {
                let foreign = error.downcast_ref().is_some_and(|error| matches!(error, SetError::Foreign(_)));
                let reason = if foreign { Reason::Foreign } else { Reason::Failed };
                self.give_up(at, reason, &format!("{error:#}"))
            }
        }
    }

    /// Whether it is of a QEMU that does not answer.
    fn is_lost(&self, at: usize) -> bool {
        let target = self.layers[at].subject.iothread();
        target.is_some_and(|target| {
            let is_lost =
                |qemu: &Qemu| qemu.socket == target.socket && matches!(qemu.state, QemuState::Lost(_));
            self.qemus.iter().any(is_lost)
        })
    }

    fn layered(&self, subject: &Subject) -> anyhow::Result<Layered> {
        let Config { mode, halt_cost, burst, .. } = self.config;
        let (machine, state) = (self.machine, self.state_directory);
        refuse_other_driver(machine, subject.layer())?;
        let adopted = self.adopted(subject)?;
        let (present, source) = match subject {
            Subject::Layer(layer) => {
                let present = setting(machine, *layer)?;
                let late = self.late(&present);
                (present, Source::new(machine, *layer, late, burst, halt_cost, &self.config.vms)?)
            }
            Subject::Iothread(target) => {
                let found = iothread::find_one(machine, target)?;
                let source = IothreadSource::new(target.clone(), found.thread, burst, halt_cost);
                (found.setting, Source::Iothread(Box::new(source)))
            }
        };
        let (mut controller, lease) = match (adopted, mode) {
            (Some((controller, lease)), _) => (controller, Some(lease)),
            (None, Mode::Advise) => (self.controller(subject, present)?, None),
            (None, Mode::Active) => {
                let controller = self.controller(subject, present)?;
                let lease = Lease::take(machine, state, subject, present, controller.candidates())?;
                (controller, Some(lease))
            }
        };
        controller.start(self.now_ns());
        let tally = Tally::default();
        Ok(Layered {
            subject: subject.clone(),
            controller,
            source,
            lease,
            given_up: None,
            advised: None,
            vetoed: BTreeMap::new(),
            tally,
        })
    }

    /// The wakeup latency; dwell_idle has its own, which no candidate changes.
    fn late(&self, setting: &Setting) -> Nanos {
        let own = setting.get("wake_latency_ns").and_then(|own| u64::try_from(own).ok());
        own.map_or(self.config.wakeup_latency, Nanos)
    }

    fn controller(&self, subject: &Subject, originals: Setting) -> anyhow::Result<Controller> {
        let Config { mode, halt_cost, longest_window, period, cpu_limit, verify, .. } = self.config;
        let late = self.late(&originals);
        // Advice writes nothing, of an I/O thread too little is seen in a turn, and dwell_idle learns anew in each.
        let alike = matches!(subject.layer(), Layer::Host | Layer::Guest);
        let turns = mode == Mode::Active && alike && verify > Nanos::ZERO;
        let verify = turns.then_some(verify);
        let terms = Terms { late, longest_window, period, cpu_limit, verify, ..Terms::at(halt_cost) };
        Ok(Controller::new(originals, terms)?)
    }

    /// What an earlier controller has left, if it can be gone on with. Otherwise the originals are restored, or where nothing is to be
    /// written it is said that they are not in force.
    fn adopted(&self, subject: &Subject) -> anyhow::Result<Option<(Controller, Lease)>> {
        let (machine, state) = (self.machine, self.state_directory);
        let changes = journal::read_all(machine, state)?;
        let Some(open) = lease::open_of(&changes, subject) else { return Ok(None) };
        if self.config.mode == Mode::Advise {
            let how = if open.left {
                "has ended and left its setting"
            } else {
                "was killed and its setting is still in force"
            };
            say(subject, &format!("a controller {how}; `dwell revert {}` restores the originals", open.id));
            return Ok(None);
        }
        let why = match self.adopt(subject, open) {
            Ok(adopted) => {
                let present = adopted.1.now();
                say(subject, &format!("adopts the setting that was left (change {}): {present}", open.id));
                return Ok(Some(adopted));
            }
            Err(_) if !open.left => "a controller that was killed had left its setting; ".to_owned(),
            Err(error) => format!("the setting that was left is not adopted, as {error:#}; "),
        };
        if let Some(reverted) = lease::end_left_open(machine, state, subject)? {
            told_of(subject, &why, &reverted)?;
        }
        Ok(None)
    }

    fn adopt(&self, subject: &Subject, open: &journal::Change) -> anyhow::Result<(Controller, Lease)> {
        let (machine, state) = (self.machine, self.state_directory);
        let originals = lease::originals(open).context("the journal does not have the originals")?;
        let controller = self.controller(subject, originals)?;
        let present = match subject {
            Subject::Layer(layer) => setting(machine, *layer)?,
            Subject::Iothread(target) => iothread::find_one(machine, target)?.setting,
        };
        let lease = Lease::adopt(machine, state, subject, present, controller.candidates())?;
        Ok((controller.adopting(present)?, lease))
    }

    /// A layer as at its start, but what it did is kept.
    fn layered_again(&self, at: usize) -> anyhow::Result<Layered> {
        let before = &self.layers[at];
        Ok(Layered { tally: before.tally.clone(), ..self.layered(&before.subject)? })
    }

    /// Control of a layer begins anew.
    fn renew(&mut self, at: usize) -> anyhow::Result<()> {
        let layered = self.layered_again(at)?;
        self.log_start(&layered);
        self.layers[at] = layered;
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
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
    ) -> anyhow::Result<()> {
        let ends = task.duration.map(|duration| self.begun + Duration::from_nanos(duration.get()));
        loop {
            let mut wait = LOOK_AROUND.min(self.until_next());
            if let Some(ends) = ends {
                wait = wait.min(ends.saturating_duration_since(Instant::now()));
            }
            self.wait(wait, signals, server)?;
            manager.tell("WATCHDOG=1");
            if ends.is_some_and(|ends| Instant::now() >= ends) {
                return Ok(());
            }
            while let Some(signal) = signals.read_signal().context("cannot read signals")? {
                if i32::try_from(signal.ssi_signo) != Ok(Signal::SIGHUP as i32) {
                    return Ok(());
                }
                self.configure_again(task)?;
            }
            let mut stop = false;
            let before = cpu_time();
            server.answer(|ask| match ask {
                Ask::Status => self.status(),
                Ask::Resume => self.resume(),
                Ask::Stop => {
                    stop = true;
                    json!({ "stopped": true })
                }
            });
            self.answering += cpu_time().saturating_sub(before);
            if stop {
                return Ok(());
            }
            self.look_for_foreign_writes()?;
            self.meet_qemus()?;
            self.decide()?;
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
        match (task.configure)() {
            Ok(config) if config == self.config => {}
            Ok(config) => {
                // Not before it is known that it can be used.
                if let Err(error) = open_log(&config.log) {
                    output::note(&format!("dwell: the configuration stays as it was: {error:#}"));
                    return Ok(());
                }
                if config.metrics != self.config.metrics {
                    match Metrics::of(&config) {
                        Ok(metrics) => self.metrics = metrics,
                        Err(error) => {
                            output::note(&format!("dwell: the configuration stays as it was: {error:#}"));
                            return Ok(());
                        }
                    }
                }
                self.finish()?;
                let published = self.metrics.published.clone();
                let metrics = Metrics { published, server: self.metrics.server.take() };
                let did: Vec<(Subject, Tally)> =
                    self.layers.drain(..).map(|layered| (layered.subject, layered.tally)).collect();
                *self = Control::begin(self.machine, self.state_directory, config, self.begun, metrics)?;
                for (subject, tally) in did {
                    if let Some(layered) = self.layers.iter_mut().find(|layered| layered.subject == subject) {
                        layered.tally = tally;
                    }
                }
            }
            Err(error) => output::note(&format!("dwell: the configuration stays as it was: {error:#}")),
        }
        Ok(())
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

    fn give_up_if_foreign(&mut self, at: usize) -> anyhow::Result<()> {
        let lease = self.layers[at].lease.as_ref();
        match lease.map(|lease| lease.check(self.machine)) {
            Some(Err(error)) => self.trouble(at, error.into()),
            _ => Ok(()),
        }
    }

    /// Restores the originals of a layer, except values written by another program, and does not control the layer any more.
    fn give_up(&mut self, at: usize, reason: Reason, why: &str) -> anyhow::Result<()> {
        let subject = self.layers[at].subject.clone();
        self.layers[at].tally.reason(reason);
        let now_ns = self.now_ns();
        let controller = &self.layers[at].controller;
        let (present, originals) = (controller.status(now_ns).present, controller.originals());
        if let Some(log) = &mut self.log {
            log.ended(&subject, now_ns, &present, &originals, reason.name(), why);
        }
        say(&subject, &format!("control ends until `dwell control resume`: {why}"));
        self.layers[at].given_up = Some(why.to_owned());
        if let Some(lease) = self.layers[at].lease.take() {
            let reverted = lease::end(self.machine, self.state_directory, lease.id())?;
            told_of(&subject, "", &reverted)?;
        }
        Ok(())
    }

    fn decide(&mut self) -> anyhow::Result<()> {
        for at in 0..self.layers.len() {
            let now = self.now_ns();
            let layered = &self.layers[at];
            if layered.given_up.is_some() {
                continue;
            }
            let due = layered.controller.next_at_ns() <= now;
            let look = !due && layered.next_look_ns().is_some_and(|next| next <= now);
            if due && !self.is_lost(at) {
                self.decide_one(at)?;
            } else if look {
                // A decision meets the same trouble.
                let _ = self.layers[at].source.look(now);
            }
            if due || look {
                self.account(at);
            }
        }
        Ok(())
    }

    /// The CPU time of this process but for what it does for others: whoever asks for figures is not to make decisions rare.
    fn used(&self) -> Duration {
        let serving = self.metrics.server.as_ref().map_or(Duration::ZERO, serve::Server::cpu_time);
        cpu_time().saturating_sub(serving + self.answering)
    }

    /// Whatever this process did since the last call is accounted for, no matter what for: all layers together are to use no more
    /// than one may.
    fn account(&mut self, at: usize) {
        let (now_ns, used) = (self.now_ns(), self.used());
        let spent = used.saturating_sub(std::mem::replace(&mut self.accounted, used));
        let Layered { source, tally, .. } = &mut self.layers[at];
        tally.cpu += spent;
        let limited = spent.saturating_sub(source.take_searched());
        let limited = Nanos(u64::try_from(limited.as_nanos()).unwrap_or(u64::MAX));
        self.layers.iter_mut().for_each(|layered| layered.controller.spent(now_ns, limited));
    }

    fn decide_one(&mut self, at: usize) -> anyhow::Result<()> {
        if self.layers[at].source.is_to_be_checked() {
            match self.config.mode {
                Mode::Active => self.give_up_if_foreign(at)?,
                Mode::Advise => self.follow_the_setting(at)?,
            }
        }
        if self.layers[at].given_up.is_some() || self.is_lost(at) {
            return Ok(());
        }
        let Some(observed) = self.look(at)? else { return Ok(()) };
        let now_ns = self.now_ns();
        let layered = &mut self.layers[at];
        layered.tally.decisions += 1;
        let change = layered.controller.decide(now_ns, &observed);
        layered.tally.see(layered.controller.seen(), layered.controller.vetoes(), &layered.source);
        layered.say_vetoes(now_ns);
        if let Some(log) = &mut self.log {
            log.saw(&layered.subject, now_ns, layered.controller.seen());
        }
        let Some(change) = change else { return Ok(()) };
        match self.config.mode {
            Mode::Advise => self.advise(at, &change),
            Mode::Active => self.act(at, &change),
        }
    }

    /// What was seen; `None` if nothing of it decides.
    fn look(&mut self, at: usize) -> anyhow::Result<Option<Vec<Observed>>> {
        let now_ns = self.now_ns();
        let Layered { source, controller, lease, .. } = &mut self.layers[at];
        if controller.settles() && source.is_in_bursts() {
            return Ok(Some(vec![]));
        }
        let quiet = match source.observe(self.machine, controller, lease.as_mut(), now_ns) {
            Ok(Look::Episodes(observed)) => return Ok(Some(observed)),
            Ok(Look::Nothing { quiet }) => quiet,
            Ok(Look::Polls { told }) => {
                if !told {
                    let what = "no advice: it polls, and episodes that end while it polls cannot be recorded; with \
                                --mode active its polling is disabled for short times";
                    say(&self.layers[at].subject, what);
                }
                true
            }
            Err(trouble) => {
                self.trouble(at, trouble)?;
                return Ok(None);
            }
        };
        let now_ns = self.now_ns();
        self.layers[at].controller.postpone(now_ns, quiet);
        Ok(None)
    }

    /// Without control the setting may be changed by anybody: advice is over the one in force.
    fn follow_the_setting(&mut self, at: usize) -> anyhow::Result<()> {
        let layered = &self.layers[at];
        let now = match &layered.subject {
            Subject::Layer(layer) => setting(self.machine, *layer)?,
            Subject::Iothread(target) => match iothread::find_one(self.machine, target) {
                Ok(found) => found.setting,
                Err(error) => return self.trouble(at, Trouble::Lost(format!("{error:#}"))),
            },
        };
        if now != layered.controller.originals() {
            self.renew(at)?;
        }
        Ok(())
    }

    fn advise(&mut self, at: usize, change: &Change) -> anyhow::Result<()> {
        let layered = &mut self.layers[at];
        let line = words::line(change, &|idler| layered.source.called(idler));
        let reason = Reason::of(&change.cause);
        if change.writes() == 0 {
            return self.give_up(at, reason, &line);
        }
        if layered.advised != Some(change.to) {
            layered.advised = Some(change.to);
            layered.tally.reason(reason);
            layered.tally.changes += 1;
            layered.tally.last = Some(line.clone());
            if let Some(log) = &mut self.log {
                log.changed(&layered.subject, change, &line);
            }
            say(&layered.subject, &format!("advice: {line}"));
        }
        Ok(())
    }

    fn act(&mut self, at: usize, change: &Change) -> anyhow::Result<()> {
        let layered = &mut self.layers[at];
        let line = words::line(change, &|idler| layered.source.called(idler));
        let reason = Reason::of(&change.cause);
        let Some(lease) = &mut layered.lease else { return Ok(()) };
        if let Err(error) = lease.set(self.machine, &change.to) {
            return self.trouble(at, error.into());
        }
        layered.controller.changed(change);
        if layered.controller.status(change.at_ns).untrusted.is_some() {
            return self.give_up(at, reason, &line);
        }
        layered.tally.writes += change.writes() as u64;
        if let Some(log) = &mut self.log {
            log.changed(&layered.subject, change, &line);
        }
        if change.cause == Cause::Turn {
            return Ok(());
        }
        layered.tally.reason(reason);
        layered.tally.changes += 1;
        layered.tally.last = Some(line.clone());
        say(&layered.subject, &line);
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        let now = self.now_ns();
        let of = |layered: &Layered| {
            let status = layered.controller.status(now);
            let state = match (&layered.given_up, self.config.mode) {
                (Some(_), _) => "given_up",
                (None, Mode::Advise) => "advises",
                (None, Mode::Active) if status.rests => "rests",
                (None, Mode::Active) => "controls",
            };
            let (lost, tally) = (layered.source.lost(), layered.tally.clone());
            OfLayer { subject: layered.subject.clone(), state, present: status.present, lost, tally }
        };
        Snapshot { layers: self.layers.iter().map(of).collect() }
    }

    fn status(&self) -> Value {
        let (now, snapshot) = (self.now_ns(), self.snapshot());
        let of = |(layered, OfLayer { state, present, lost, tally, .. }): (&Layered, &OfLayer)| {
            let mut status = json!({
                "layer": layered.subject.layer().name(),
                "qmp": layered.subject.iothread().map(|target| &target.socket),
                "iothread": layered.subject.iothread().map(|target| &target.id),
                "state": state,
                "why": layered.given_up,
                "change": layered.lease.as_ref().map(Lease::id),
                "originals": Values::from(&layered.controller.originals()),
                "present": Values::from(present),
                "owed_ns": layered.controller.status(now).owed_ns,
                "cpu_share": tally.cpu.as_secs_f64() / self.begun.elapsed().as_secs_f64(),
                "lost": lost,
            });
            if let (Value::Object(status), Value::Object(did)) = (&mut status, json!(tally)) {
                status.extend(did);
            }
            status
        };
        json!({
            "pid": std::process::id(),
            "for_s": self.begun.elapsed().as_secs_f64(),
            "halt_cost_ns": self.config.halt_cost.get(),
            "metrics": self.metrics.server.as_ref().map(|server| server.address().to_string()),
            "waiting_for": self.qemus.iter().filter(|qemu| !matches!(qemu.state, QemuState::Here)).map(|qemu| &qemu.socket).collect::<Vec<_>>(),
            "layers": self.layers.iter().zip(&snapshot.layers).map(of).collect::<Vec<_>>(),
        })
    }

    /// Takes up what was given up, from the values that are there now.
    fn resume(&mut self) -> Value {
        let mut resumed = vec![];
        for at in 0..self.layers.len() {
            let subject = self.layers[at].subject.clone();
            if self.layers[at].given_up.is_none() {
                continue;
            }
            match self.renew(at) {
                Ok(()) => {
                    let originals = self.layers[at].controller.originals();
                    say(&subject, &format!("resumed; the originals are {originals}"));
                    resumed.push(subject.to_string());
                }
                Err(error) => return json!({ "error": format!("{subject}: {error:#}") }),
            }
        }
        self.writes = self.watch_writes();
        json!({ "resumed": resumed })
    }

    /// The setting stays, and the lease with it.
    fn leave(&self, subject: &Subject, lease: &Lease) -> anyhow::Result<()> {
        let id = lease.id();
        let left = lease.leave(self.machine, self.state_directory).with_context(|| {
            format!("{subject}: the setting stays, and the next start restores the originals, as `dwell revert {id}` does")
        })?;
        if left {
            let what = format!(
                "the setting stays, and the next start adopts it; `dwell revert {id}` restores the originals"
            );
            say(subject, &what);
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
            let ended = lease::end(self.machine, self.state_directory, lease.id());
            let told = ended.map_err(Into::into).and_then(|reverted| told_of(&subject, "", &reverted));
            failed = failed.and(told);
        }
        failed
    }
}

/// Also where the program panics.
impl Drop for Control<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            output::note(&format!("dwell: {error:#}"));
        }
    }
}

fn open_log(kept: &Kept) -> anyhow::Result<Option<Log>> {
    kept.0.as_deref().map(Log::open).transpose()
}

/// The layers that can be controlled here; there have to be some unless there are `others`.
fn here(machine: &dyn Machine, others: bool) -> anyhow::Result<Vec<Layer>> {
    let mut layers = vec![];
    match Cpuidle::read(machine) {
        cpuidle if cpuidle.driver.as_deref() == Some(Module::DwellIdle.name()) => layers.push(Layer::Driver),
        cpuidle if cpuidle.haltpoll_decides() => layers.push(Layer::Guest),
        _ => {}
    }
    if machine.exists(&parameter::path(&param::table(Layer::Host)[0])) && machine.exists("/dev/kvm") {
        layers.push(Layer::Host);
    }
    if layers.is_empty() && !others {
        bail!(
            "nothing can be controlled here: neither the haltpoll governor nor the driver dwell_idle is in use, and kvm is not \
             loaded; `dwell doctor` has more"
        );
    }
    Ok(layers)
}

/// Refuses to control the guest layer where the rule in force is not haltpoll's but that of dwell_idle, and that one where it is not
/// in force.
fn refuse_other_driver(machine: &dyn Machine, layer: Layer) -> anyhow::Result<()> {
    let driver = Cpuidle::read(machine).driver;
    let is_dwell_idle = driver.as_deref() == Some(Module::DwellIdle.name());
    match (layer, is_dwell_idle) {
        (Layer::Guest, true) => bail!("cannot control the guest layer: {}", NoEffect::DwellIdle),
        (Layer::Driver, false) => bail!(
            "cannot control the driver layer: the idle driver in use is {}; load dwell_idle (modprobe dwell_idle)",
            driver.as_deref().unwrap_or("none")
        ),
        _ => Ok(()),
    }
}

/// The setting in force. What a controller could not restore is refused.
pub(crate) fn setting(machine: &dyn Machine, layer: Layer) -> anyhow::Result<Setting> {
    let release = kernel::release(machine).context("cannot read the release of this kernel")?;
    let version = Version::parse(&release).filter(|version| param::known_version(layer, *version).is_ok());
    let version = version
        .with_context(|| format!("the rule of the {} layer of Linux {release} is not known", layer.name()))?;
    let there = parameter::read(machine, layer, Some(version));
    let mut setting = Setting::defaults(layer, version);
    for (param, _) in setting.clone().iter() {
        let path = parameter::path(param);
        let value = parameter::get(&there, param.name)
            .with_context(|| format!("cannot control the {} layer: {path} cannot be read", layer.name()))?;
        setting.set(param.name, value).map_err(|why| {
            anyhow!("cannot control the {} layer, as {path} could not be restored: {why}", layer.name())
        })?;
    }
    Ok(setting)
}

/// Restores the originals after a controller was killed, and after one that has left its setting, too, unless that is to be kept.
pub(super) fn restore(machine: &Sysroot, state_directory: &str, unless_kept: bool) -> Outcome {
    if machine.exists(state_directory) {
        ensure!(
            socket::ask(&directory(machine, state_directory), Ask::Status).is_err(),
            "a controller runs and holds its lease; end it: dwell control stop"
        );
        end_left_open(machine, state_directory, |change| !(unless_kept && change.left))?;
    }
    Ok(Answer::Yes)
}

/// Ends the leases that controllers have left open, as many as can be ended.
fn end_left_open(
    machine: &Sysroot,
    state_directory: &str,
    which: impl Fn(&journal::Change) -> bool,
) -> anyhow::Result<()> {
    let changes = journal::read_all(machine, state_directory)?;
    let mut failed = Ok(());
    for subject in lease::open(&changes).filter(|change| which(change)).map(Subject::of) {
        let ended = lease::end_left_open(machine, state_directory, &subject).map_err(Into::into);
        let told = ended.and_then(|reverted| reverted.map_or(Ok(()), |it| told_of(&subject, "", &it)));
        failed = failed.and(told);
    }
    failed
}

/// A line on stdout; a closed pipe is no error.
fn say(subject: &Subject, what: &str) {
    let _ = output::text(&format!("{subject}: {what}\n"));
}

/// The same of a QEMU.
fn say_of_iothreads(what: &str) {
    let _ = output::text(&format!("{}: {what}\n", Layer::Iothread.name()));
}

/// Prints what the end of a lease has restored.
fn told_of(subject: &Subject, why: &str, reverted: &Reverted) -> anyhow::Result<()> {
    for (place, original, outcome) in &reverted.places {
        if let change::Outcome::LeftAlone { found, .. } = outcome {
            say(
                subject,
                &format!(
                    "{place} is {}, which another program has set, and is left alone; the original was {}",
                    shown(found.as_deref()),
                    shown(original.as_deref())
                ),
            );
        }
    }
    ensure!(
        reverted.complete,
        "{subject}: {why}some originals could not be restored; `dwell revert {}` tries again",
        reverted.id
    );
    let gone = reverted.places.iter().any(|(_, _, outcome)| matches!(outcome, change::Outcome::Gone));
    let outcome = match (subject, gone) {
        (Subject::Iothread(_), true) => {
            "its QEMU has ended or was started anew, and there is nothing to restore"
        }
        _ => "the originals are in force again",
    };
    say(subject, &format!("{why}{outcome}"));
    Ok(())
}

/// The directory of the socket of a controller.
pub(super) fn directory(machine: &dyn Writable, state_directory: &str) -> PathBuf {
    machine.path(state_directory)
}

/// The default configuration file, if it is there.
pub(super) fn default_file() -> Option<&'static Path> {
    const FILE: &str = "/etc/dwell/control.toml";
    let file = Path::new(FILE);
    file.exists().then_some(file)
}
