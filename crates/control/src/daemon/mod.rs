//! The controller on a machine: its loop, from the start to the end.
//!
//! `config` has its settings. `machine` has what can be controlled, `observe` what is seen of CPUs and VMs and
//! `iothread` of I/O threads, `layered` how control of a layer begins, `qemus` when that of I/O threads
//! does, `decide` the decisions, and `leases` how originals are restored. `answers` is what is answered
//! to those who ask through the `socket`; `metrics` are its figures, which `serve` serves over HTTP;
//! the service manager is `notify`'d. `tenants` has which VM counts how much. `words` has the line of
//! a change, which goes to `notes`, and `decisions` all of them over time, as JSON.

mod answers;
mod bursts;
mod by_work;
pub mod config;
mod counters;
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
#[cfg(test)]
mod tests;
pub mod words;
mod world;

use anyhow::{anyhow, ensure};
use config::{Config, Mode, OnExit};
use decisions::Log;
use dwell_knobs::condition;
use dwell_knobs::lease::{Holder, Lease, Subject};
use dwell_knobs::place::Place;
use dwell_knobs::qmp;
use dwell_machine::{Sysroot, Writable, threads};
use dwell_policy::{Layer, Nanos};
pub use iothread::{Reading, Turn, kernel_thread, usage};
use layered::Layered;
use leases::end_left_open;
pub use leases::{Stopped, stop};
use machine::{here, refuse_unread, setting};
use metrics::{OfLayer, Published, Tally};
pub use notes::Notes;
use qemus::{Qemu, QemuState};
use serde_json::json;
use serve::Server;
use socket::Ask;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use world::{Here, Told, World};

/// The longest time without a look at the socket and a word to the service manager.
const LOOK_AROUND: Duration = Duration::from_secs(1);
/// How often it is looked whether a monitor has answered.
const ASKED: Duration = Duration::from_millis(20);
/// How long the end waits for monitors: the service manager waits 15 s.
const LAST_ANSWERS: Duration = Duration::from_secs(8);

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
    let (machine, state) = (&task.machine, task.state_directory.as_str());
    let holder = Holder::begin(machine, state)?;
    let world = Here::listening(machine, &machine.path(state))?;
    let (published, notes) = (&Published::new(), task.notes);
    control(&Scene { machine, holder: &holder, world: &world, published, notes }, task, config)
}

/// The same in a world.
fn control(scene: &Scene<'_>, task: &Task<'_>, config: Config) -> anyhow::Result<End> {
    let metrics = serve(&config, scene.published, scene.notes)?;
    let mut control = Control::begin(*scene, config, metrics)?;
    scene.world.tell("READY=1");
    let ended = control.until_told(task);
    scene.world.tell("STOPPING=1");
    let finished = control.finish();
    finished.and(ended)
}

#[derive(Clone, Copy)]
struct Scene<'a> {
    machine: &'a dyn Writable,
    holder: &'a Holder,
    world: &'a dyn World,
    /// Figures for those who ask over HTTP.
    published: &'a Published,
    notes: Notes<'a>,
}

/// Control of some layers.
struct Control<'a> {
    machine: &'a dyn Writable,
    holder: &'a Holder,
    world: &'a dyn World,
    config: Config,
    layers: Vec<Layered>,
    qemus: Vec<Qemu>,
    published: &'a Published,
    metrics: Option<Rc<Server>>,
    log: Option<Log<'a>>,
    notes: Notes<'a>,
    /// What the service manager was told last.
    told: String,
    /// The CPU time of this process that is accounted for.
    accounted: Duration,
    /// The place of the layer that comes first at the next decision.
    first: usize,
    /// Whether a QEMU that did not answer may have kept what control has set.
    has_parted: bool,
    /// CPU time of answers to those who ask what it does.
    answering: Duration,
    /// Whether a guest is controlled, whose settings are compared by causes.
    has_guest: bool,
}

/// The server of metrics, if there is one.
fn serve(config: &Config, published: &Published, notes: Notes<'_>) -> anyhow::Result<Option<Rc<Server>>> {
    let server = Server::start(&config.metrics, published)?.map(Rc::new);
    if let Some(server) = &server {
        notes.say(&"metrics", &format!("served at {}", server.address));
    }
    Ok(server)
}

impl<'a> Control<'a> {
    fn begin(scene: Scene<'a>, config: Config, metrics: Option<Rc<Server>>) -> anyhow::Result<Control<'a>> {
        let Scene { machine, holder, world, published, notes } = scene;
        let layers = layers(machine, &config)?;
        say_unused(&config, notes);
        let qemus = qemus(&config).map(|qemu| Qemu::new(&qemu.qmp)).collect();
        let log = open_log(&config, notes)?;
        let mut control = Control {
            machine,
            holder,
            world,
            config,
            layers: vec![],
            qemus,
            published,
            metrics,
            log,
            notes,
            told: String::new(),
            accounted: Duration::ZERO,
            first: 0,
            has_parted: false,
            answering: Duration::ZERO,
            has_guest: layers.contains(&Layer::Guest),
        };
        for layer in layers {
            let layered = control.layered(&Subject::Layer(layer))?;
            control.take_up(layered);
        }
        control.end_of_others()?;
        control.meet_qemus()?;
        control.watch_writes();
        // What is done once takes as much CPU time as ten seconds may, in which nothing would be decided.
        control.accounted = control.used();
        Ok(control)
    }

    fn take_up(&mut self, layered: Layered) {
        let originals = layered.controller.originals();
        let line = match self.config.mode {
            Mode::Advise => {
                let layer = layered.subject.layer();
                let how = match layer {
                    Layer::Guest => {
                        "by replay of idle times and of what wakes tasks: what a load then does is not measured"
                    }
                    _ => {
                        "by replay alone: whether a load that waits for its own answers would do less is not known"
                    }
                };
                let turns = if self.config.compares(layer) { ", which --mode active takes" } else { "" };
                format!("advises only, {how} without turns{turns}; the setting in force is {originals}")
            }
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
    fn tell_state(&mut self) {
        let of = |layer: &OfLayer| format!("{}: {}", layer.subject, layer.state);
        let all: Vec<String> = self.snapshot().layers.iter().map(of).collect();
        let status = format!("STATUS={}", all.join(", "));
        if self.told != status {
            self.world.tell(&status);
            self.told = status;
        }
    }

    fn now_ns(&self) -> u64 {
        self.world.now_ns()
    }

    /// Without it, foreign writes are seen at the next decision.
    fn watch_writes(&self) {
        let leases = self.layers.iter().filter_map(|layered| layered.lease.as_ref());
        let files: Vec<PathBuf> = leases
            .flat_map(Lease::places)
            .filter_map(|place| match place {
                Place::Parameter(path) => Some(self.machine.path(path)),
                _ => None,
            })
            .collect();
        self.world.watch(&files);
    }

    fn until_told(&mut self, task: &Task<'_>) -> anyhow::Result<End> {
        let world = self.world;
        let ends_ns = task.duration.map(Nanos::get);
        loop {
            let mut wait = LOOK_AROUND.min(self.until_next());
            if let Some(ends_ns) = ends_ns {
                wait = wait.min(Duration::from_nanos(ends_ns.saturating_sub(world.now_ns())));
            }
            let woken = world.wait(wait)?;
            world.tell("WATCHDOG=1");
            if ends_ns.is_some_and(|ends_ns| world.now_ns() >= ends_ns) {
                return Ok(End::Duration);
            }
            if woken && let Some(end) = self.hear(task)? {
                return Ok(end);
            }
            self.meet_qemus()?;
            // A look is much cheaper than to say how things are.
            if self.decide()? {
                continue;
            }
            self.tell_state();
            if self.metrics.is_some() {
                self.published.publish(self.snapshot());
            }
        }
    }

    /// What comes from outside: signals, questions, and values that somebody else writes; whether control ends.
    fn hear(&mut self, task: &Task<'_>) -> anyhow::Result<Option<End>> {
        let world = self.world;
        while let Some(told) = world.signal()? {
            match told {
                Told::End => return Ok(Some(End::Signal)),
                Told::ReadConfiguration => self.configure_again(task)?,
            }
        }
        let mut stop = false;
        let before = world.cpu_time();
        world.answer(&mut |ask| match ask {
            Ask::Status => self.status(),
            Ask::Resume => self.resume(),
            Ask::Stop => {
                stop = true;
                json!({ "ends": true })
            }
        });
        self.answering += world.cpu_time().saturating_sub(before);
        if stop {
            return Ok(Some(End::Stopped));
        }
        self.look_for_foreign_writes()?;
        Ok(None)
    }

    fn until_next(&self) -> Duration {
        let now = self.now_ns();
        let next = self.layers.iter().filter(|layered| layered.given_up.is_none()).map(|layered| {
            let look = layered.next_look_ns().unwrap_or(u64::MAX);
            Duration::from_nanos(layered.next_at_ns().min(look).saturating_sub(now))
        });
        let asked = self.qemus.iter().any(|qemu| matches!(qemu.state, QemuState::Asked));
        next.chain(asked.then_some(ASKED)).min().unwrap_or(LOOK_AROUND)
    }

    /// A configuration that cannot be used changes nothing.
    fn configure_again(&mut self, task: &Task<'_>) -> anyhow::Result<()> {
        let config = match self.other_configuration(task) {
            Ok(Some(config)) => config,
            Ok(None) => {
                if let Some(Err(error)) = self.log.as_mut().map(Log::open_again) {
                    self.notes.warn(&format!("dwell: {error:#}; the log goes on in the file from before"));
                }
                return Ok(());
            }
            Err(error) => {
                self.notes.warn(&stays(&error));
                return Ok(());
            }
        };
        self.finish()?;
        let did: Vec<(Subject, Tally)> =
            self.layers.drain(..).map(|layered| (layered.subject, layered.tally)).collect();
        let Control { machine, holder, world, published, notes, .. } = *self;
        let scene = Scene { machine, holder, world, published, notes };
        let before = Config { metrics: config.metrics.clone(), ..self.config.clone() };
        let metrics = self.metrics.take();
        let begin = |config| Control::begin(scene, config, metrics.clone());
        *self = match begin(config) {
            Ok(control) => control,
            Err(error) => {
                notes.warn(&stays(&error));
                begin(before)?
            }
        };
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
        open_log(&config, self.notes)?;
        for layer in layers(self.machine, &config)? {
            refuse_unread(self.machine, layer)?;
            setting(self.machine, layer)?;
        }
        if config.mode == Mode::Active {
            let leases = self.layers.iter().filter_map(|layered| layered.lease.as_ref());
            for place in leases.flat_map(Lease::places) {
                condition::writable(self.machine, place).map_err(|_| anyhow!("{place} cannot be written"))?;
            }
        }
        if config.metrics != self.config.metrics {
            // The address from before may be part of the other one.
            self.metrics = None;
            match serve(&config, self.published, self.notes) {
                Ok(server) => self.metrics = server,
                Err(error) => {
                    self.metrics = serve(&self.config, self.published, self.notes)?;
                    // The CPU time of the server from before was not control's.
                    self.accounted = self.used();
                    return Err(error);
                }
            }
        }
        Ok(Some(config))
    }

    fn look_for_foreign_writes(&mut self) -> anyhow::Result<()> {
        if self.world.was_written() {
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
        let leases: Vec<Lease> = self.layers.iter_mut().filter_map(|layered| layered.lease.take()).collect();
        // One that panics restores.
        let end = || match self.config.on_exit == OnExit::Keep && !std::thread::panicking() {
            true => leases.iter().map(|lease| self.leave(lease)).fold(Ok(()), anyhow::Result::and),
            false => self.end(&leases.iter().collect::<Vec<_>>()),
        };
        let ended = qmp::within(LAST_ANSWERS, end).0;
        // What could not be ended of a QEMU that did not answer is tried once more, and is an error then.
        let left = match std::mem::take(&mut self.has_parted) {
            true => end_left_open(self.machine, self.holder, self.notes, |change| !change.left),
            false => Ok(()),
        };
        ended.and(left)
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

/// Whether `layers` has it, or names none.
fn may_control(config: &Config, layer: Layer) -> bool {
    config.layers.is_empty() || config.layers.contains(&layer)
}

/// The QEMUs of a configuration whose I/O threads are to be controlled.
fn qemus(config: &Config) -> impl Iterator<Item = &config::Qemu> {
    let asked = may_control(config, Layer::Iothread);
    config.qemus.iter().filter(move |_| asked)
}

/// The layers to be controlled but for I/O threads.
fn layers(machine: &dyn Writable, config: &Config) -> anyhow::Result<Vec<Layer>> {
    let mut layers = match config.layers.is_empty() {
        true => here(machine, qemus(config).next().is_some())?,
        false => config.layers.clone(),
    };
    layers.retain(|layer| *layer != Layer::Iothread);
    ensure!(
        !config.layers.contains(&Layer::Iothread) || !config.qemus.is_empty(),
        "the layer iothread needs the monitor of a QEMU: --qmp SOCKET, or [[qemu]] in the configuration"
    );
    Ok(layers)
}

/// Prints what the configuration gives for layers that it leaves out.
fn say_unused(config: &Config, notes: Notes<'_>) {
    let given = [
        (Layer::Iothread, "--qmp or [[qemu]]", config.qemus.is_empty()),
        (Layer::Host, "--vm or [[vm]]", config.vms.is_empty()),
    ];
    for (layer, given, is_none) in given {
        if !is_none && !may_control(config, layer) {
            let line = format!("not controlled, since `layers` leaves it out; {given} is not used");
            notes.say(&layer.name(), &line);
        }
    }
}

fn stays(error: &anyhow::Error) -> String {
    format!("dwell: the configuration stays as it was: {error:#}")
}

fn open_log<'a>(config: &Config, notes: Notes<'a>) -> anyhow::Result<Option<Log<'a>>> {
    config.log.as_deref().map(|path| Log::open(path, notes)).transpose()
}

/// The CPU time of this process.
fn cpu_time() -> Duration {
    Duration::from_nanos(threads::process_cpu_time(std::process::id()).unwrap_or_default().get())
}

/// In nanoseconds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
