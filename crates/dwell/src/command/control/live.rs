//! The controller on a machine.

use super::config::{Config, Mode, OnExit};
use super::metrics::{OfLayer, Published, Reason, Snapshot, Tally, cpu_time};
use super::notify::Manager;
use super::observe::Source;
use super::serve;
use super::socket::{self, Ask, Server};
use super::words;
use crate::failure::{Answer, Outcome};
use crate::output;
use anyhow::{Context, anyhow, bail, ensure};
use dwell_control::{Change, Controller, Terms};
use dwell_knobs::change::{self, Reverted};
use dwell_knobs::journal;
use dwell_knobs::lease::{self, Lease, SetError};
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
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest time without a look at the socket and a word to the service manager.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often a layer that was given up is looked at.
const GIVEN_UP: Duration = Duration::from_secs(1);

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
    /// Readable after a write to a parameter.
    writes: Option<OwnedFd>,
    metrics: Metrics,
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

/// Control of one layer.
struct Layered {
    layer: Layer,
    controller: Controller,
    source: Source,
    lease: Option<Lease>,
    /// Why it is left alone.
    given_up: Option<String>,
    /// The setting that was advised last.
    advised: Option<Setting>,
    tally: Tally,
}

impl<'a> Control<'a> {
    fn begin(
        machine: &'a Sysroot,
        state_directory: &'a str,
        config: Config,
        begun: Instant,
        metrics: Metrics,
    ) -> anyhow::Result<Control<'a>> {
        let layers = match config.layers.is_empty() {
            true => here(machine)?,
            false => config.layers.clone(),
        };
        let mut control =
            Control { machine, state_directory, config, begun, layers: vec![], writes: None, metrics };
        for layer in layers {
            let layered = control.layered(layer)?;
            say(
                layer,
                &match control.config.mode {
                    Mode::Advise => {
                        format!("advises only; the setting in force is {}", layered.controller.originals())
                    }
                    Mode::Active => format!("controls; the originals are {}", layered.controller.originals()),
                },
            );
            control.layers.push(layered);
        }
        control.writes = control.watch_writes();
        Ok(control)
    }

    fn layered(&self, layer: Layer) -> anyhow::Result<Layered> {
        let Config { mode, halt_cost, wakeup_latency: late, longest_window, period, burst, .. } = self.config;
        let (machine, state) = (self.machine, self.state_directory);
        match mode {
            Mode::Active => {
                let left = lease::end_left_open(machine, state, layer)?;
                if let Some(reverted) = left {
                    told_of(layer, "a controller that was killed had left its setting; ", &reverted)?;
                }
            }
            Mode::Advise => {
                if let Some(open) = lease::open_of(&journal::read_all(machine, state)?, layer) {
                    say(
                        layer,
                        &format!(
                            "a controller was killed and its setting is still in force; `dwell revert {}` restores the originals",
                            open.id
                        ),
                    );
                }
            }
        }
        let originals = setting(machine, layer)?;
        let terms = Terms { late, longest_window, period, ..Terms::at(halt_cost) };
        let mut controller = Controller::new(originals, terms)?;
        let source = Source::new(machine, layer, late, burst, halt_cost)?;
        let lease = match mode {
            Mode::Active => Some(Lease::take(machine, state, originals, controller.candidates())?),
            Mode::Advise => None,
        };
        controller.start(self.now_ns());
        let tally = Tally::default();
        Ok(Layered { layer, controller, source, lease, given_up: None, advised: None, tally })
    }

    /// A layer as at its start, but what it did is kept.
    fn layered_again(&self, at: usize) -> anyhow::Result<Layered> {
        let before = &self.layers[at];
        Ok(Layered { tally: before.tally.clone(), ..self.layered(before.layer)? })
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Without it, foreign writes are seen at the next decision.
    fn watch_writes(&self) -> Option<OwnedFd> {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
        for place in self.layers.iter().filter_map(|layered| layered.lease.as_ref()).flat_map(Lease::places) {
            let path: PathBuf = self.machine.path(&place.to_string());
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
            server.answer(|ask| match ask {
                Ask::Status => self.status(),
                Ask::Resume => self.resume(),
                Ask::Stop => {
                    stop = true;
                    json!({ "stopped": true })
                }
            });
            if stop {
                return Ok(());
            }
            self.look_for_foreign_writes()?;
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
            None => Duration::from_nanos(layered.controller.next_at_ns().saturating_sub(now)),
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
                let did: Vec<(Layer, Tally)> =
                    self.layers.drain(..).map(|layered| (layered.layer, layered.tally)).collect();
                *self = Control::begin(self.machine, self.state_directory, config, self.begun, metrics)?;
                for (layer, tally) in did {
                    if let Some(layered) = self.layers.iter_mut().find(|layered| layered.layer == layer) {
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
                self.give_up_if_foreign(at)?;
            }
        }
        Ok(())
    }

    fn give_up_if_foreign(&mut self, at: usize) -> anyhow::Result<()> {
        let lease = self.layers[at].lease.as_ref();
        match lease.map(|lease| lease.foreign(self.machine)) {
            Some(Ok(Some(foreign))) => {
                self.give_up(at, Reason::Foreign, &SetError::Foreign(foreign).to_string())
            }
            Some(Err(error)) => self.give_up(at, Reason::Failed, &format!("{:#}", anyhow!(error))),
            _ => Ok(()),
        }
    }

    /// Restores the originals of a layer, except values written by another program, and does not control the layer any more.
    fn give_up(&mut self, at: usize, reason: Reason, why: &str) -> anyhow::Result<()> {
        let layer = self.layers[at].layer;
        self.layers[at].tally.reason(reason);
        say(layer, &format!("control ends until `dwell control resume`: {why}"));
        self.layers[at].given_up = Some(why.to_owned());
        if let Some(lease) = self.layers[at].lease.take() {
            let reverted = lease::end(self.machine, self.state_directory, lease.id())?;
            told_of(layer, "", &reverted)?;
        }
        Ok(())
    }

    fn decide(&mut self) -> anyhow::Result<()> {
        for at in 0..self.layers.len() {
            let layered = &self.layers[at];
            if layered.given_up.is_none() && layered.controller.next_at_ns() <= self.now_ns() {
                let before = cpu_time();
                self.decide_one(at)?;
                let spent = cpu_time().saturating_sub(before);
                let layered = &mut self.layers[at];
                layered.tally.cpu += spent;
                layered.controller.spent(Nanos(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX)));
            }
        }
        Ok(())
    }

    fn decide_one(&mut self, at: usize) -> anyhow::Result<()> {
        self.give_up_if_foreign(at)?;
        if self.layers[at].given_up.is_some() {
            return Ok(());
        }
        if self.config.mode == Mode::Advise {
            self.follow_the_setting(at)?;
        }
        let observed = match self.layers[at].source.observe(self.machine) {
            Ok(observed) => observed,
            Err(error) => return self.give_up(at, Reason::Failed, &format!("{error:#}")),
        };
        let now_ns = self.now_ns();
        let layered = &mut self.layers[at];
        layered.tally.decisions += 1;
        let change = layered.controller.decide(now_ns, &observed);
        layered.tally.see(layered.controller.seen(), &layered.source);
        let Some(change) = change else { return Ok(()) };
        match self.config.mode {
            Mode::Advise => self.advise(at, &change),
            Mode::Active => self.act(at, &change),
        }
    }

    /// Without control the setting may be changed by anybody: advice is over the one in force.
    fn follow_the_setting(&mut self, at: usize) -> anyhow::Result<()> {
        let layered = &self.layers[at];
        if setting(self.machine, layered.layer)? != layered.controller.originals() {
            self.layers[at] = self.layered_again(at)?;
        }
        Ok(())
    }

    fn advise(&mut self, at: usize, change: &Change) -> anyhow::Result<()> {
        let (line, reason) = (words::line(change), Reason::of(&change.cause));
        let layered = &mut self.layers[at];
        if change.writes() == 0 {
            return self.give_up(at, reason, &line);
        }
        if layered.advised != Some(change.to) {
            layered.advised = Some(change.to);
            layered.tally.reason(reason);
            layered.tally.changes += 1;
            layered.tally.last = Some(line.clone());
            let layer = layered.layer;
            say(layer, &format!("advice: {line}"));
        }
        Ok(())
    }

    fn act(&mut self, at: usize, change: &Change) -> anyhow::Result<()> {
        let (line, reason) = (words::line(change), Reason::of(&change.cause));
        let layered = &mut self.layers[at];
        let Some(lease) = &mut layered.lease else { return Ok(()) };
        if let Err(error) = lease.set(self.machine, &change.to) {
            let reason = match error {
                SetError::Foreign(_) => Reason::Foreign,
                _ => Reason::Failed,
            };
            return self.give_up(at, reason, &format!("{:#}", anyhow!(error)));
        }
        layered.controller.changed(change);
        if layered.controller.status(change.at_ns).untrusted.is_some() {
            return self.give_up(at, reason, &line);
        }
        layered.tally.reason(reason);
        layered.tally.changes += 1;
        layered.tally.writes += change.writes() as u64;
        layered.tally.last = Some(line.clone());
        let layer = layered.layer;
        say(layer, &line);
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
            OfLayer { layer: layered.layer, state, present: status.present, lost, tally }
        };
        Snapshot { layers: self.layers.iter().map(of).collect() }
    }

    fn status(&self) -> Value {
        let (now, snapshot) = (self.now_ns(), self.snapshot());
        let of = |(layered, OfLayer { state, present, lost, tally, .. }): (&Layered, &OfLayer)| {
            let mut status = json!({
                "layer": layered.layer.name(),
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
            "layers": self.layers.iter().zip(&snapshot.layers).map(of).collect::<Vec<_>>(),
        })
    }

    /// Takes up what was given up, from the values that are there now.
    fn resume(&mut self) -> Value {
        let mut resumed = vec![];
        for at in 0..self.layers.len() {
            let layer = self.layers[at].layer;
            if self.layers[at].given_up.is_none() {
                continue;
            }
            match self.layered_again(at) {
                Ok(layered) => {
                    say(layer, &format!("resumed; the originals are {}", layered.controller.originals()));
                    self.layers[at] = layered;
                    resumed.push(layer.name());
                }
                Err(error) => return json!({ "error": format!("{}: {error:#}", layer.name()) }),
            }
        }
        self.writes = self.watch_writes();
        json!({ "resumed": resumed })
    }

    /// Restores the originals, or leaves the lease open where the setting is to stay.
    fn finish(&mut self) -> anyhow::Result<()> {
        let mut failed = Ok(());
        for at in 0..self.layers.len() {
            let layer = self.layers[at].layer;
            let Some(lease) = self.layers[at].lease.take() else { continue };
            if self.config.on_exit == OnExit::Keep {
                say(
                    layer,
                    &format!("the setting stays; `dwell revert {}` restores the originals", lease.id()),
                );
                continue;
            }
            let ended = lease::end(self.machine, self.state_directory, lease.id());
            let told = ended.map_err(Into::into).and_then(|reverted| told_of(layer, "", &reverted));
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

/// The layers that can be controlled here.
fn here(machine: &dyn Machine) -> anyhow::Result<Vec<Layer>> {
    let mut layers = vec![];
    if Cpuidle::read(machine).haltpoll_decides() {
        layers.push(Layer::Guest);
    }
    if machine.exists(&parameter::path(&param::table(Layer::Host)[0])) && machine.exists("/dev/kvm") {
        layers.push(Layer::Host);
    }
    if layers.is_empty() {
        bail!(
            "nothing can be controlled here: the haltpoll governor is not in use, and kvm is not loaded; `dwell doctor` has more"
        );
    }
    Ok(layers)
}

/// The setting in force. What a controller could not restore is refused.
fn setting(machine: &dyn Machine, layer: Layer) -> anyhow::Result<Setting> {
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

/// Restores the originals after a controller was killed.
pub(super) fn restore(machine: &Sysroot, state_directory: &str) -> Outcome {
    if machine.exists(state_directory) {
        ensure!(
            socket::ask(&directory(machine, state_directory), Ask::Status).is_err(),
            "a controller runs and holds its lease; end it: dwell control stop"
        );
        for layer in Layer::ALL {
            if let Some(reverted) = lease::end_left_open(machine, state_directory, layer)? {
                told_of(layer, "", &reverted)?;
            }
        }
    }
    Ok(Answer::Yes)
}

/// A line on stdout; a closed pipe is no error.
fn say(layer: Layer, what: &str) {
    let _ = output::text(&format!("{}: {what}\n", layer.name()));
}

/// Prints what the end of a lease has restored.
fn told_of(layer: Layer, why: &str, reverted: &Reverted) -> anyhow::Result<()> {
    for (place, original, outcome) in &reverted.places {
        if let change::Outcome::LeftAlone { found, .. } = outcome {
            say(
                layer,
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
        "{}: {why}some originals could not be restored; `dwell revert {}` tries again",
        layer.name(),
        reverted.id
    );
    say(layer, &format!("{why}the originals are in force again"));
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
