//! The daemon in virtual time: a machine below a directory, a CPU that idles as its parameters make it, and a
//! clock that passes where the daemon waits.

use super::config::{Config, Mode, Options};
use super::decisions::{Decisions, Run};
use super::iothread::{Found, Look, Trouble};
use super::machine::setting;
use super::metrics::Published;
use super::observe::{Source, WakeupLatency};
use super::serve::{Address, FRESH};
use super::socket::Ask;
use super::world::{Told, World};
use super::{End, Notes, Scene, Stopped, Task, control, stop};
use crate::core::by_work::tests::in_turns;
use crate::core::{Controller, Episode, Observed, Terms};
use dwell_knobs::journal::{self, Change, Journal, STATE_DIRECTORY, State};
use dwell_knobs::lease::{self, Holder, Lease, Subject};
use dwell_machine::Writable;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::Segments;
use dwell_replay::{Counts, Player, Rule};
use dwell_testing::fixture::Fixture;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

const MILLISECOND_NS: u64 = 1_000_000;
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What a CPU waits for: every episode is this long, and it is busy for 10 us after each.
#[derive(Clone, Copy)]
struct Load {
    idle_ns: u64,
    /// Whether the kernel counts what its rule does not do.
    miscounted: bool,
    /// What runs in between and what wakes it, where that can be recorded.
    causes: Option<fn() -> anyhow::Result<Segments>>,
    /// The CPU time of a look at it.
    look: Duration,
    /// Why it cannot be observed.
    unseen: Option<&'static str>,
}

/// A machine without load, whose CPU is quiet.
const QUIET: Load =
    Load { idle_ns: 4 * MILLISECOND_NS, miscounted: false, causes: None, look: Duration::ZERO, unseen: None };
const BUSY_NS: u64 = 10_000;
/// The wakeup latency of a halt.
const LATENCY_NS: u64 = 14_000;

enum Event {
    Signal(Told),
    Ask(Ask),
    /// Somebody writes a parameter.
    Write(&'static str, &'static str),
    Load(Load),
    Do(Box<dyn FnOnce()>),
}

impl Notes<'_> {
    pub(super) const SILENT: Notes<'static> = Notes { line: &|_| (), warning: &|_| () };
}

/// A world in memory.
struct Simulated<'a> {
    fixture: &'a Fixture,
    now_ns: Cell<u64>,
    script: RefCell<Vec<(u64, Event)>>,
    signals: RefCell<Vec<Told>>,
    asked: RefCell<Vec<Ask>>,
    answers: RefCell<Vec<Value>>,
    written: Cell<bool>,
    manager: RefCell<Vec<String>>,
    /// When it was shown to be alive.
    watched: RefCell<Vec<u64>>,
    cpu_time: Rc<Cell<Duration>>,
    load: Rc<Cell<Load>>,
    /// When monitors were asked; each is silent for 2 s.
    looks: RefCell<Vec<u64>>,
}

impl World for Simulated<'_> {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn cpu_time(&self) -> Duration {
        self.cpu_time.get()
    }

    fn wait(&self, at_most: Duration) -> anyhow::Result<bool> {
        // A daemon that does not wait would stop the time.
        let until_ns = self.now_ns.get() + u64::try_from(at_most.as_nanos())?.max(1_000);
        let next_ns = self.script.borrow().first().map_or(u64::MAX, |(at_ns, _)| *at_ns);
        self.now_ns.set(until_ns.min(next_ns.max(self.now_ns.get())));
        while self.script.borrow().first().is_some_and(|(at_ns, _)| *at_ns <= self.now_ns.get()) {
            let (_, event) = self.script.borrow_mut().remove(0);
            match event {
                Event::Signal(told) => self.signals.borrow_mut().push(told),
                Event::Ask(ask) => self.asked.borrow_mut().push(ask),
                Event::Write(name, value) => {
                    self.fixture.set(name, value);
                    self.written.set(true);
                }
                Event::Load(load) => self.load.set(load),
                Event::Do(what) => what(),
            }
        }
        Ok(true)
    }

    fn signal(&self) -> anyhow::Result<Option<Told>> {
        Ok(self.signals.borrow_mut().pop())
    }

    fn answer(&self, reply: &mut dyn FnMut(Ask) -> Value) {
        for ask in self.asked.borrow_mut().drain(..) {
            self.answers.borrow_mut().push(reply(ask));
        }
    }

    fn tell(&self, text: &str) {
        if text == "WATCHDOG=1" {
            self.watched.borrow_mut().push(self.now_ns.get());
        }
        self.manager.borrow_mut().push(text.to_owned());
    }

    fn watch(&self, _: &[PathBuf]) {}

    fn was_written(&self) -> bool {
        self.written.take()
    }

    fn source(&self, _: Layer, _: WakeupLatency, _: &Config) -> anyhow::Result<Box<dyn Source>> {
        Ok(Box::new(Cpu {
            load: Rc::clone(&self.load),
            cpu_time: Rc::clone(&self.cpu_time),
            rule: None,
            seen_ns: self.now_ns.get(),
        }))
    }

    fn look_for_iothreads(&self, _: &str) {
        self.looks.borrow_mut().push(self.now_ns.get());
    }

    fn found_iothreads(&self, _: &str) -> Option<anyhow::Result<Vec<Found>>> {
        let after_ns = self.looks.borrow().last()? + 2_000 * MILLISECOND_NS;
        (self.now_ns.get() >= after_ns).then(|| Err(anyhow::anyhow!("it is silent")))
    }
}

/// A CPU whose governor does what its parameters say.
struct Cpu {
    load: Rc<Cell<Load>>,
    cpu_time: Rc<Cell<Duration>>,
    rule: Option<(Setting, Player)>,
    seen_ns: u64,
}

impl Source for Cpu {
    fn observe(
        &mut self,
        machine: &dyn Writable,
        _: &mut Controller,
        _: Option<&mut Lease>,
        now_ns: u64,
    ) -> Result<Look, Trouble> {
        let present = setting(machine, Layer::Guest).map_err(Trouble::Other)?;
        let (before, player) = self.rule.get_or_insert_with(|| {
            (present, Rule::Layer(present).start_late(1).expect("a rule that is known"))
        });
        if *before != present {
            player.set(&present);
            *before = present;
        }
        let Load { idle_ns, miscounted, look, unseen, .. } = self.load.get();
        if let Some(why) = unseen {
            return Err(Trouble::Other(anyhow::anyhow!(why)));
        }
        self.cpu_time.set(self.cpu_time.get() + look);
        let number = (now_ns - self.seen_ns) / (idle_ns + BUSY_NS);
        self.seen_ns = now_ns;
        let (mut counted, mut episodes) = (Counts::default(), vec![]);
        for _ in 0..number {
            let did = player.play_late(Nanos(idle_ns), Nanos(LATENCY_NS));
            counted += did;
            let latency_ns = (did.halts > 0).then_some(LATENCY_NS);
            episodes.push(Episode { busy_ns: BUSY_NS, latency_ns, ..Episode::of(idle_ns) });
        }
        if miscounted {
            counted = Counts {
                polls: 0,
                polls_succeeded: 0,
                polled_ns: 0,
                halts: number,
                exits: number,
                ..counted
            };
        }
        Ok(Look::Episodes(vec![Observed::new(0, counted, episodes)]))
    }

    fn segments(&mut self, _: Duration) -> anyhow::Result<Option<Segments>> {
        let Load { causes, look, .. } = self.load.get();
        self.cpu_time.set(self.cpu_time.get() + look);
        causes.map(|segments| segments()).transpose()
    }
}

/// What came of a run.
struct Ran {
    end: anyhow::Result<End>,
    lines: Vec<String>,
    warnings: Vec<String>,
    answers: Vec<Value>,
    manager: Vec<String>,
    watched: Vec<u64>,
    looks: Vec<u64>,
}

impl Ran {
    fn text(&self) -> String {
        self.lines.join("\n")
    }

    fn has(&self, part: &str) -> bool {
        self.lines.iter().any(|line| line.contains(part))
    }
}

fn configuration(mode: Mode) -> Config {
    let options = Options { mode: Some(mode), halt_cost: Some(Nanos(20_000)), wakeup_latency: None };
    Config { layers: vec![Layer::Guest], ..Config::read(None, options).unwrap() }
}

/// Runs the daemon for this time, while this happens.
fn run(
    fixture: &Fixture,
    configure: &dyn Fn() -> anyhow::Result<Config>,
    load: Load,
    seconds: f64,
    script: Vec<(f64, Event)>,
) -> Ran {
    let ns = |seconds: f64| u64::try_from(Duration::from_secs_f64(seconds).as_nanos()).unwrap();
    let script = script.into_iter().map(|(at_s, event)| (ns(at_s), event)).collect();
    let world = Simulated {
        fixture,
        now_ns: Cell::new(0),
        script: RefCell::new(script),
        signals: RefCell::default(),
        asked: RefCell::default(),
        answers: RefCell::default(),
        written: Cell::new(false),
        manager: RefCell::default(),
        watched: RefCell::default(),
        cpu_time: Rc::default(),
        load: Rc::new(Cell::new(load)),
        looks: RefCell::default(),
    };
    let (lines, warnings) = (RefCell::new(vec![]), RefCell::new(vec![]));
    let line = |text: &str| lines.borrow_mut().push(text.to_owned());
    let warning = |text: &str| warnings.borrow_mut().push(text.to_owned());
    let notes = Notes { line: &line, warning: &warning };
    let machine = &fixture.machine;
    let holder = Holder::begin(machine, STATE_DIRECTORY).unwrap();
    let task = Task {
        machine: machine.clone(),
        state_directory: STATE_DIRECTORY.to_owned(),
        duration: Some(Nanos(ns(seconds))),
        configure,
        notes,
    };
    let scene = Scene { machine, holder: &holder, world: &world, published: &Published::new(), notes };
    let end = configure().and_then(|config| control(&scene, &task, config));
    Ran {
        end,
        lines: lines.take(),
        warnings: warnings.take(),
        answers: world.answers.take(),
        manager: world.manager.take(),
        watched: world.watched.take(),
        looks: world.looks.take(),
    }
}

/// As [`run`], of a machine without load.
fn of_quiet(fixture: &Fixture, config: &Config, seconds: f64, script: Vec<(f64, Event)>) -> Ran {
    run(fixture, &|| Ok(config.clone()), QUIET, seconds, script)
}

fn open_changes(fixture: &Fixture) -> usize {
    let changes = journal::read_all(&fixture.machine, STATE_DIRECTORY).unwrap();
    lease::open(&changes).count()
}

#[test]
fn advice_writes_nothing_and_takes_no_lease() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let load = Load { idle_ns: 150_000, ..QUIET };
    let ran = run(&fixture, &|| Ok(configuration(Mode::Advise)), load, 20.0, vec![]);
    assert_eq!(ran.end.unwrap(), End::Duration);
    assert!(ran.lines[0].starts_with("guest: advises only, by replay of idle times and"), "{:?}", ran.lines);
    assert!(
        ran.lines[1].contains("advice, by replay alone: guest_halt_poll_ns 200000 -> 0"),
        "{:?}",
        ran.lines
    );
    assert_eq!((ran.lines.len(), fixture.snapshot(), open_changes(&fixture)), (2, before, 0));
}

/// Advice was about parameters that nothing read, or never came.
#[test]
fn a_guest_that_haltpoll_does_not_decide_for_is_not_controlled() {
    for (driver, governor, why) in [
        ("none", "menu", "no cpuidle driver is in use"),
        ("intel_idle", "menu", "the cpuidle governor in use is menu"),
        ("dwell_idle", "haltpoll", "the idle driver dwell_idle decides"),
    ] {
        let fixture = Fixture::guest();
        fixture.write("/sys/devices/system/cpu/cpuidle/current_driver", driver);
        fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", governor);
        for mode in [Mode::Advise, Mode::Active] {
            let refused = run(&fixture, &|| Ok(configuration(mode)), QUIET, 1.0, vec![]).end.unwrap_err();
            assert!(
                refused.to_string().starts_with(&format!("cannot control the guest layer: {why}")),
                "{refused}"
            );
        }
        assert_eq!(open_changes(&fixture), 0);
    }
}

/// The lines of two minutes of advice about a load, with *never* in force.
fn advised(idle_ns: u64, causes: Option<fn() -> anyhow::Result<Segments>>) -> Vec<String> {
    let fixture = Fixture::guest();
    fixture.set("guest_halt_poll_ns", "0");
    let load = Load { idle_ns, causes, ..QUIET };
    let ran = run(&fixture, &|| Ok(configuration(Mode::Advise)), load, 120.0, vec![]);
    assert_eq!(ran.end.unwrap(), End::Duration);
    ran.lines[1..].to_vec()
}

#[test]
fn tasks_that_wait_for_each_other_are_advised_to_poll_once_though_a_replay_of_idle_times_prefers_halts() {
    let lines = advised(150_000, Some(|| Ok(in_turns(None))));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.starts_with("guest: advice: guest_halt_poll_ns 0 -> 80000, "), "{line}");
    assert!(line.contains(" times the work a second, and "), "{line}");
    assert_eq!(advised(150_000, None), [""; 0]);
}

#[test]
fn advice_by_idle_times_that_causes_contradict_is_named_once_and_not_given() {
    let lines = advised(5_000, Some(|| Ok(in_turns(Some(45_000)))));
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(
        line.starts_with("guest: no advice: a replay of idle times would advise guest_halt_poll_ns 0 -> "),
        "{line}"
    );
    assert!(line.contains(" times the work a second, and "), "{line}");
    assert!(advised(5_000, None)[0].starts_with("guest: advice, by replay alone: guest_halt_poll_ns 0 -> "));
}

#[test]
fn why_causes_cannot_be_recorded_is_said_once_and_in_the_state() {
    let fixture = Fixture::guest();
    let causes: fn() -> anyhow::Result<Segments> = || Err(anyhow::anyhow!("no room").context("cannot write"));
    let load = Load { idle_ns: 150_000, causes: Some(causes), ..QUIET };
    let script = vec![(59.0, Event::Ask(Ask::Status))];
    let ran = run(&fixture, &|| Ok(configuration(Mode::Advise)), load, 60.0, script);
    let said: Vec<&String> = ran.lines.iter().filter(|line| line.contains("cannot write: no room")).collect();
    assert_eq!(
        said,
        [
            "guest: cannot record what wakes tasks, so settings are compared by idle times alone: cannot write: no room"
        ]
    );
    assert!(ran.has("advice, by replay alone: "), "{:?}", ran.lines);
    assert_eq!(ran.answers[0]["layers"][0]["causes_failed"].as_str(), Some("cannot write: no room"));
}

/// The lines of a minute of control of a load, with *never* in force, and how many values were written.
fn controlled(idle_ns: u64, causes: Option<fn() -> anyhow::Result<Segments>>) -> (Vec<String>, u64) {
    let fixture = Fixture::guest();
    fixture.set("guest_halt_poll_ns", "0");
    let load = Load { idle_ns, causes, ..QUIET };
    let script = vec![(59.0, Event::Ask(Ask::Status))];
    let ran = run(&fixture, &|| Ok(configuration(Mode::Active)), load, 60.0, script);
    assert_eq!(ran.end.unwrap(), End::Duration);
    (ran.lines[1..ran.lines.len() - 1].to_vec(), ran.answers[0]["layers"][0]["writes"].as_u64().unwrap())
}

#[test]
fn what_causes_contradict_is_named_once_and_not_chosen() {
    let (lines, _) = controlled(5_000, Some(|| Ok(in_turns(Some(45_000)))));
    let line = &lines[0];
    assert!(
        line.starts_with("guest: no change: a replay of idle times would choose guest_halt_poll_ns 0 -> "),
        "{line}"
    );
    assert!(line.contains(" times the work a second, and "), "{line}");
    println!("{lines:?}");
    // Turns judge what causes do not contradict.
    for causes in [None, Some((|| Ok(in_turns(None))) as fn() -> anyhow::Result<Segments>)] {
        let (lines, writes) = controlled(5_000, causes);
        assert!(lines[1].starts_with("guest: verified in turns: ") && writes == 3, "{lines:?} {writes}");
    }
}

#[test]
fn what_cannot_be_observed_for_a_while_is_controlled_again_afterwards() {
    const WHY: &str = "cannot record: CPU 3 went offline";
    for mode in [Mode::Active, Mode::Advise] {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        let load = Load { idle_ns: 150_000, ..QUIET };
        let maximum = fixture.value("guest_halt_poll_ns");
        let during = {
            let path = fixture.path("/sys/module/haltpoll/parameters/guest_halt_poll_ns");
            move || assert_eq!(fs::read_to_string(&path).unwrap().trim(), maximum)
        };
        let script = vec![
            (10.0, Event::Load(Load { unseen: Some(WHY), ..load })),
            (40.0, Event::Ask(Ask::Status)),
            (40.0, Event::Do(Box::new(during))),
            (50.0, Event::Load(load)),
            (119.0, Event::Ask(Ask::Status)),
        ];
        let ran = run(&fixture, &|| Ok(configuration(mode)), load, 120.0, script);
        assert_eq!(ran.end.as_ref().unwrap(), &End::Duration);
        let of = |part: &str| ran.lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!((of(WHY), of("guest: it can be observed again")), (1, 1), "{}", ran.text());
        let [unseen, seen] = [0, 1].map(|at| &ran.answers[at]["layers"][0]);
        assert_eq!(unseen["state"], "untrusted");
        let why = unseen["why"].as_str().unwrap();
        assert!(why.starts_with(WHY) && why.contains("; it tries again in "), "{why}");
        // After 1, 2, 4, 8 and 16 s.
        assert_eq!(unseen["reasons"]["failed"], 5, "{}", ran.text());
        let (state, setting) = if mode == Mode::Active { ("controls", 0) } else { ("advises", 200_000) };
        assert_eq!((&seen["state"], &seen["why"]), (&Value::from(state), &Value::Null));
        assert_eq!(seen["present"]["guest_halt_poll_ns"], setting, "{}", ran.text());
        assert_eq!((fixture.snapshot(), open_changes(&fixture)), (before, 0));
    }
}

#[test]
fn a_lease_is_held_while_control_goes_on_and_ended_with_it() {
    for by_signal in [true, false] {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        let load = Load { idle_ns: 150_000, ..QUIET };
        let end = if by_signal { Event::Signal(Told::End) } else { Event::Ask(Ask::Stop) };
        let script = vec![(2.0, Event::Ask(Ask::Status)), (3.0, end)];
        let ran = run(&fixture, &|| Ok(configuration(Mode::Active)), load, 9.0, script);
        assert_eq!(ran.end.as_ref().unwrap(), if by_signal { &End::Signal } else { &End::Stopped });
        assert!(ran.has("guest: controls; the originals are guest_halt_poll_ns=200000"), "{}", ran.text());
        assert!(
            ran.has("guest: guest_halt_poll_ns 200000 -> 0")
                && ran.has(": 20.0 us an episode instead of 120 us"),
            "{}",
            ran.text()
        );
        let layer = &ran.answers[0]["layers"][0];
        assert_eq!((&layer["state"], &layer["change"]), (&Value::from("controls"), &Value::from(1)));
        assert_eq!(layer["present"]["guest_halt_poll_ns"], 0);
        assert_eq!(layer["wakeup_latency_ns"], LATENCY_NS);
        assert_eq!(ran.lines.last().unwrap(), "guest: the originals are in force again");
        assert_eq!((fixture.snapshot(), open_changes(&fixture)), (before, 0));
        assert_eq!(ran.manager.first().unwrap(), "READY=1");
        assert_eq!(ran.manager.last().unwrap(), "STOPPING=1");
        assert!(ran.manager.contains(&"STATUS=guest: controls".to_owned()), "{:?}", ran.manager);
    }
}

/// The service manager ends a controller that does not show for 20 s that it is alive.
#[test]
fn the_service_manager_is_told_every_second_and_before_a_monitor_is_asked() {
    let fixture = Fixture::guest();
    let script = vec![
        (1.25, Event::Write("guest_halt_poll_ns", "77777\n")),
        // Control of a layer begins anew as that of an I/O thread does, and may have to ask a monitor.
        (2.125, Event::Ask(Ask::Resume)),
    ];
    let ran = of_quiet(&fixture, &configuration(Mode::Active), 30.0, script);
    assert_eq!(ran.manager.first().unwrap(), "READY=1");
    let watched = &ran.watched;
    let gaps = watched.windows(2).map(|times| times[1] - times[0]).chain(watched.first().copied());
    assert!(watched.len() >= 30 && gaps.max().unwrap() <= 1_000 * MILLISECOND_NS, "{watched:?}");
    let number = |at_ms: u64| watched.iter().filter(|time| **time == at_ms * MILLISECOND_NS).count();
    assert_eq!((number(1_250), number(2_125)), (1, 2), "{watched:?}");
}

/// The first layer is controlled when it is found that the second cannot be.
#[test]
fn where_one_layer_cannot_be_controlled_the_lease_of_another_is_ended() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    let config = Config { layers: vec![Layer::Guest, Layer::Host], ..configuration(Mode::Active) };
    let ran = of_quiet(&fixture, &config, 1.0, vec![]);
    let error = format!("{:#}", ran.end.as_ref().unwrap_err());
    assert!(error.contains("cannot be read"), "{error}");
    assert!(ran.has("guest: controls; the originals are "), "{}", ran.text());
    assert_eq!(ran.lines.last().unwrap(), "guest: the originals are in force again");
    assert_eq!((fixture.snapshot(), open_changes(&fixture)), (before, 0));
}

#[test]
fn lost_trust_comes_back_and_is_seen_from_outside() {
    let fixture = Fixture::guest();
    let wrong = Load { idle_ns: 90_000, miscounted: true, ..QUIET };
    let load = Load { idle_ns: 150_000, ..QUIET };
    let script =
        vec![(1.0, Event::Ask(Ask::Status)), (12.0, Event::Load(load)), (19.0, Event::Ask(Ask::Status))];
    let ran = run(&fixture, &|| Ok(configuration(Mode::Active)), wrong, 20.0, script);
    let lost = |line: &&String| line.contains("the rule does not describe this load");
    let rests: Vec<&str> =
        ran.lines.iter().filter(lost).map(|line| &line[..line.find(", unless").unwrap()]).collect();
    let expected =
        ["1.00", "2.00", "4.00", "8.00"].map(|rest_s| format!("guest: the originals for {rest_s} s"));
    assert_eq!(rests, expected, "{}", ran.text());
    let [first, last] = [&ran.answers[0]["layers"][0], &ran.answers[1]["layers"][0]];
    assert_eq!(first["state"], "untrusted");
    let why = first["why"].as_str().unwrap();
    assert!(why.contains("were counted and") && why.contains("it tries again in "), "{why}");
    assert_eq!(
        (&last["state"], &last["present"]["guest_halt_poll_ns"]),
        (&Value::from("controls"), &Value::from(0))
    );
    let states: Vec<&String> = ran.manager.iter().filter(|text| text.starts_with("STATUS=")).collect();
    assert_eq!(states[..2], ["STATUS=guest: controls", "STATUS=guest: untrusted"]);
    assert_eq!(states.last().unwrap().as_str(), "STATUS=guest: controls");
}

/// A controller that has ended and left *never poll*, with what one of this halt cost may write.
fn leave(fixture: &Fixture, halt_cost_ns: u64, is_left: bool) {
    let originals = Setting::defaults(Layer::Guest, Version::parse("6.18.44").unwrap());
    let controller = Controller::new(originals, Terms::at(Nanos(halt_cost_ns))).unwrap();
    let (machine, settings) = (&fixture.machine, controller.candidates());
    let subject = Subject::Layer(Layer::Guest);
    let holder = Holder::begin(machine, STATE_DIRECTORY).unwrap();
    let mut lease = Lease::take(machine, &holder, &subject, originals, settings).unwrap();
    lease.set(machine, &settings[1]).unwrap();
    if is_left {
        assert!(lease.leave(machine).unwrap());
    }
    assert_eq!(fixture.value("guest_halt_poll_ns"), "0");
}

/// `dwell control stop` where no controller runs.
fn stop_nothing(fixture: &Fixture, unless_kept: bool) {
    let stopped = stop(&fixture.machine, STATE_DIRECTORY, unless_kept, Notes::SILENT).unwrap();
    assert_eq!(stopped, Stopped::Nothing);
}

#[test]
fn what_a_controller_has_left_is_adopted_by_the_next_start_and_by_the_next_configuration() {
    let fixture = Fixture::guest();
    let before = fixture.snapshot();
    leave(&fixture, 20_000, true);
    let in_force = fixture.snapshot();
    stop_nothing(&fixture, true);
    assert_eq!(fixture.snapshot(), in_force, "it is kept");
    let keep = Config { on_exit: super::config::OnExit::Keep, ..configuration(Mode::Active) };
    let configured = Cell::new(0);
    let configure = || {
        configured.set(configured.get() + 1);
        let period = Nanos(if configured.get() > 2 { 200 } else { 100 } * MILLISECOND_NS);
        Ok(Config { period, ..keep.clone() })
    };
    let script = vec![
        (1.0, Event::Ask(Ask::Status)),
        (2.0, Event::Signal(Told::ReadConfiguration)),
        (2.1, Event::Signal(Told::ReadConfiguration)),
        (3.0, Event::Ask(Ask::Status)),
    ];
    let ran = run(&fixture, &configure, QUIET, 4.0, script);
    assert_eq!(ran.end.as_ref().unwrap(), &End::Duration);
    let adopts = "guest: adopts the setting that was left (change 1): guest_halt_poll_ns=0 ";
    assert_eq!(ran.lines.iter().filter(|line| line.starts_with(adopts)).count(), 2, "{}", ran.text());
    for answer in &ran.answers {
        let layer = &answer["layers"][0];
        assert_eq!((&layer["state"], &layer["change"]), (&Value::from("controls"), &Value::from(1)));
        assert_eq!(
            [&layer["present"], &layer["originals"]].map(|of| of["guest_halt_poll_ns"].as_u64()),
            [Some(0), Some(200_000)]
        );
    }
    assert!(ran.lines.last().unwrap().contains("`dwell revert 1` restores"), "{}", ran.text());
    assert_eq!(fixture.snapshot(), in_force);
    let advice = of_quiet(&fixture, &configuration(Mode::Advise), 1.0, vec![]);
    assert!(
        advice.has("a controller has ended and left its setting; `dwell control stop`"),
        "{}",
        advice.text()
    );
    stop_nothing(&fixture, false);
    assert_eq!((fixture.snapshot(), open_changes(&fixture)), (before, 0));
}

#[test]
fn what_a_killed_controller_has_left_is_restored() {
    for by_start in [true, false] {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        leave(&fixture, 20_000, false);
        let advice = of_quiet(&fixture, &configuration(Mode::Advise), 1.0, vec![]);
        assert!(advice.has("a controller was killed and its setting is still in force"), "{}", advice.text());
        match by_start {
            true => {
                let ran = of_quiet(&fixture, &configuration(Mode::Active), 1.0, vec![]);
                assert!(ran.has("had left its setting; the originals are in force again"), "{}", ran.text());
                assert!(ran.has("the originals are guest_halt_poll_ns=200000"), "{}", ran.text());
            }
            // What is killed is restored even where a setting that was left is to be kept.
            false => stop_nothing(&fixture, true),
        }
        assert_eq!((fixture.snapshot(), open_changes(&fixture)), (before, 0));
    }
}

/// Killed while a change is verified, or half-way through its writes.
#[test]
fn advice_names_the_interrupted_change_that_has_left_what_is_in_force() {
    for (state, verifying) in [(State::Applied, true), (State::Unfinished, false)] {
        let fixture = Fixture::guest();
        leave(&fixture, 20_000, false);
        {
            let mut journal = Journal::open(&fixture.machine, STATE_DIRECTORY).unwrap();
            let change = journal.change(1).unwrap().clone();
            journal.save(&Change { lease: false, state, verifying, ..change }).unwrap();
        }
        let advice = || of_quiet(&fixture, &configuration(Mode::Advise), 1.0, vec![]);
        let line = "guest: change 1 was interrupted, and what is in force may be left from it; `dwell revert 1` restores";
        assert!(advice().lines[0].starts_with(line), "{}", advice().text());
        let verifies = journal::lock_for_verifying(&fixture.machine, STATE_DIRECTORY).unwrap();
        assert!(!advice().has("was interrupted"), "{}", advice().text());
        drop(verifies);
        fixture.write(BOOT, "another\n");
        assert!(!advice().has("was interrupted"), "{}", advice().text());
    }
}

#[test]
fn what_is_not_as_it_was_left_is_restored_with_the_reason() {
    type Prepare = fn(&Fixture);
    let cases: [(Prepare, u64, &str); 4] = [
        (|_| (), 50_000, "which this configuration may write, is not a value of the lease"),
        (|fixture| fixture.write(BOOT, "another\n"), 20_000, "the machine was booted since"),
        (|fixture| fixture.set("guest_halt_poll_grow", "3\n"), 20_000, "guest_halt_poll_grow is 3 and not 2"),
        (
            |fixture| fixture.set("guest_halt_poll_ns", "5000\n"),
            20_000,
            "guest_halt_poll_ns is 5000 and not 0",
        ),
    ];
    for (prepare, halt_cost_ns, why) in cases {
        let fixture = Fixture::guest();
        let before = fixture.snapshot();
        leave(&fixture, 20_000, true);
        prepare(&fixture);
        // What is there after a reboot is the kernel's.
        let (before, end) = match why.contains("booted") {
            true => {
                (fixture.snapshot(), "; a reboot has ended what was set, and there is nothing to restore")
            }
            false => (before, "; the originals are in force again"),
        };
        let halt_cost = Nanos(halt_cost_ns);
        let longest_window = Nanos(4 * halt_cost_ns);
        let config = Config { halt_cost, longest_window, ..configuration(Mode::Active) };
        let ran = of_quiet(&fixture, &config, 0.01, vec![]);
        let line = &ran.lines[0];
        assert!(line.starts_with("guest: the setting that was left is not adopted, as "), "{line}");
        assert!(line.contains(why) && line.ends_with(end), "{line}");
        if why.contains("grow") {
            fixture.set("guest_halt_poll_grow", "2\n");
        }
        assert_eq!(fixture.snapshot(), before, "{why}");
    }
}

#[test]
fn a_value_that_somebody_else_writes_ends_control_until_resume() {
    let fixture = Fixture::guest();
    let script = vec![
        (1.0, Event::Write("guest_halt_poll_ns", "77777\n")),
        (1.5, Event::Ask(Ask::Status)),
        (2.0, Event::Ask(Ask::Resume)),
        (3.0, Event::Ask(Ask::Status)),
    ];
    let ran = of_quiet(&fixture, &configuration(Mode::Active), 4.0, script);
    let [given_up, resumed, again] = &ran.answers[..] else { panic!("{:?}", ran.answers) };
    let layer = &given_up["layers"][0];
    assert_eq!((&layer["state"], &layer["reasons"]["foreign"]), (&Value::from("given_up"), &Value::from(1)));
    let why = layer["why"].as_str().unwrap();
    assert!(why.contains("guest_halt_poll_ns is 77777 and not 200000"), "{why}");
    assert_eq!(resumed["resumed"][0], "guest");
    assert_eq!(again["layers"][0]["state"], "controls");
    assert_eq!(again["layers"][0]["originals"]["guest_halt_poll_ns"], 77_777);
    assert!(
        ran.has("77777, which another program has set, and is left alone; the original was 200000"),
        "{}",
        ran.text()
    );
    let number = |line: &str| ran.lines.iter().filter(|other| *other == line).count();
    assert_eq!(number("guest: the other originals are in force again"), 1, "{}", ran.text());
    assert_eq!(number("guest: the originals are in force again"), 1, "{}", ran.text());
    assert_eq!((fixture.value("guest_halt_poll_ns").as_str(), open_changes(&fixture)), ("77777", 0));
}

#[test]
fn the_configuration_is_read_again_and_a_wrong_one_changes_nothing() {
    let fixture = Fixture::guest();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("control.toml");
    fs::write(&file, "mode = \"advise\"\nlayers = [\"guest\"]\n").unwrap();
    let configure = || Config::read(Some(&file), Options::default());
    let write = |text: &'static str| {
        let file = file.clone();
        Event::Do(Box::new(move || fs::write(file, text).unwrap()))
    };
    let script = vec![
        (1.0, write("mode = \"activ\"\n")),
        (1.0, Event::Signal(Told::ReadConfiguration)),
        (2.0, Event::Ask(Ask::Status)),
        (3.0, write("mode = \"active\"\nlayers = [\"guest\"]\nhalt_cost = \"5us\"\n")),
        (3.0, Event::Signal(Told::ReadConfiguration)),
        (4.0, Event::Ask(Ask::Status)),
    ];
    let ran = run(&fixture, &configure, QUIET, 5.0, script);
    assert_eq!(ran.end.as_ref().unwrap(), &End::Duration);
    let states: Vec<&Value> = ran.answers.iter().map(|answer| &answer["layers"][0]["state"]).collect();
    assert_eq!(states, ["advises", "controls"]);
    assert_eq!(ran.answers[1]["halt_cost_ns"], 5_000);
    let [warning] = &ran.warnings[..] else { panic!("{:?}", ran.warnings) };
    assert!(
        warning.contains("the configuration stays as it was: ") && warning.contains("activ"),
        "{warning}"
    );
}

#[test]
fn a_log_that_was_put_aside_is_opened_anew_with_what_is_in_force() {
    let fixture = Fixture::guest();
    let folder = tempfile::tempdir().unwrap();
    let [log, aside] = ["log", "log.1"].map(|name| folder.path().join(name));
    let config = Config { log: Some(log.clone()), ..configuration(Mode::Active) };
    let put_aside = {
        let [log, aside] = [log.clone(), aside.clone()];
        move || fs::rename(&log, &aside).unwrap()
    };
    let load = Load { idle_ns: 150_000, ..QUIET };
    let script = vec![
        (5.0, Event::Do(Box::new(put_aside))),
        (5.0, Event::Signal(Told::ReadConfiguration)),
        // Nothing was put aside here.
        (7.0, Event::Signal(Told::ReadConfiguration)),
    ];
    let ran = run(&fixture, &|| Ok(config.clone()), load, 10.0, script);
    assert!(ran.end.is_ok() && ran.warnings.is_empty(), "{:?}", ran.warnings);
    let [before, after] = [&aside, &log].map(|path| Decisions::read(path).unwrap().runs);
    assert_eq!((before.len(), after.len()), (1, 1));
    let maximum = |run: &Run| run.present.get("guest_halt_poll_ns");
    assert_eq!([maximum(&before[0]), maximum(&after[0])], [Some(200_000), Some(0)]);
    let ends_ns = |run: &Run| run.costs.last().map(|slice| slice.to_ns / (1_000 * MILLISECOND_NS));
    assert!(ends_ns(&before[0]) <= Some(5) && ends_ns(&after[0]) >= Some(8), "{after:?}");
    assert!(!before[0].changes.is_empty());
}

/// What is served at a socket.
fn scraped(socket: PathBuf, texts: &Rc<RefCell<Vec<String>>>) -> Event {
    let texts = Rc::clone(texts);
    Event::Do(Box::new(move || {
        // For so long an answer is used again.
        std::thread::sleep(FRESH);
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        texts.borrow_mut().push(text);
    }))
}

#[test]
fn figures_are_of_one_process_wherever_they_are_served_and_of_settings_that_control_has_set() {
    let fixture = Fixture::guest();
    let folder = tempfile::tempdir().unwrap();
    let [first, second, none] = ["first", "second", "none/third"].map(|name| folder.path().join(name));
    let at = Rc::new(RefCell::new(first.clone()));
    let configure =
        || Ok(Config { metrics: Address::Unix(at.borrow().clone()), ..configuration(Mode::Active) });
    let read_again = |path: &PathBuf| {
        let (at, path) = (Rc::clone(&at), path.clone());
        Event::Do(Box::new(move || *at.borrow_mut() = path))
    };
    let texts = Rc::default();
    let script = vec![
        (1.0, scraped(first.clone(), &texts)),
        (1.1, read_again(&none)),
        (1.1, Event::Signal(Told::ReadConfiguration)),
        (1.2, scraped(first.clone(), &texts)),
        (1.3, read_again(&second)),
        (1.3, Event::Signal(Told::ReadConfiguration)),
        (1.4, scraped(second.clone(), &texts)),
        (1.5, Event::Write("guest_halt_poll_ns", "77777\n")),
        (3.0, scraped(second.clone(), &texts)),
    ];
    let ran = run(&fixture, &configure, QUIET, 4.0, script);
    assert_eq!(ran.end.as_ref().unwrap(), &End::Duration);
    let of = |text: &String, name: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
    let texts: Vec<String> = texts.take();
    let [before, refused, elsewhere, given_up] = &texts[..] else { panic!("{texts:?}") };
    for other in [refused, elsewhere, given_up] {
        assert_eq!(of(other, "process_start_time_seconds "), of(before, "process_start_time_seconds "));
    }
    assert!(of(elsewhere, "dwell_setting_seconds{").is_some(), "{elsewhere}");
    assert!(of(given_up, "dwell_mode{layer=\"guest\",mode=\"given_up\"} 1").is_some(), "{given_up}");
    assert_eq!(of(given_up, "dwell_setting_seconds{"), None);
}

/// What cannot be carried out is found before the present control ends, and where it is not, that begins again.
#[test]
fn a_configuration_that_cannot_be_carried_out_changes_nothing() {
    let active = || configuration(Mode::Active);
    let qemu = |qmp: &str| super::config::Qemu { qmp: qmp.to_owned() };
    let cases: [(Config, &str, usize); 4] = [
        (Config { layers: vec![Layer::Iothread], ..active() }, "needs the monitor of a QEMU", 1),
        (Config { layers: vec![Layer::Guest, Layer::Driver], ..active() }, "load dwell_idle", 1),
        (Config { layers: vec![Layer::Guest, Layer::Host], ..active() }, "cannot be read", 1),
        // A QEMU that is not there yet is waited for.
        (
            Config {
                layers: vec![Layer::Guest, Layer::Iothread],
                qemus: vec![qemu("/run/vm.qmp")],
                ..active()
            },
            "",
            2,
        ),
    ];
    for (config, why, changes) in cases {
        let fixture = Fixture::guest();
        let configured = Cell::new(0);
        let configure = || {
            configured.set(configured.get() + 1);
            Ok(if configured.get() > 1 { config.clone() } else { active() })
        };
        let script = vec![(1.0, Event::Signal(Told::ReadConfiguration)), (2.0, Event::Ask(Ask::Status))];
        let ran = run(&fixture, &configure, QUIET, 3.0, script);
        assert_eq!(ran.end.as_ref().unwrap(), &End::Duration, "{why}");
        let layer = &ran.answers[0]["layers"][0];
        assert_eq!((&layer["state"], &layer["layer"]), (&Value::from("controls"), &Value::from("guest")));
        assert_eq!(layer["change"], changes, "{why}");
        let warned = |warning: &String| {
            warning.contains("the configuration stays as it was: ") && warning.contains(why)
        };
        assert!(why.is_empty() || ran.warnings.iter().any(warned), "{why}: {:?}", ran.warnings);
        assert_eq!(open_changes(&fixture), 0);
    }
}

/// A killed controller has left the lease of a layer that the next one does not control.
#[test]
fn what_a_killed_controller_left_of_other_layers_is_restored_at_the_start() {
    let fixture = Fixture::guest();
    leave(&fixture, 20_000, false);
    let qemus = vec![super::config::Qemu { qmp: "/run/vm.qmp".to_owned() }];
    let config = Config { layers: vec![Layer::Iothread], qemus, ..configuration(Mode::Active) };
    let ran = of_quiet(&fixture, &config, 1.0, vec![]);
    assert_eq!(ran.end.as_ref().unwrap(), &End::Duration);
    assert_eq!(ran.lines[0], "guest: the originals are in force again");
    assert_eq!((fixture.value("guest_halt_poll_ns").as_str(), open_changes(&fixture)), ("200000", 0));
}

#[test]
fn what_is_given_for_a_layer_that_is_left_out_is_said() {
    let fixture = Fixture::guest();
    let qemus = vec![super::config::Qemu { qmp: "/run/vm.qmp".to_owned() }];
    let of = |layers: Vec<Layer>| {
        let config = Config { layers, qemus: qemus.clone(), ..configuration(Mode::Active) };
        let ran = of_quiet(&fixture, &config, 1.0, vec![]);
        ran.lines.iter().filter(|line| line.starts_with("iothread: not controlled")).count()
    };
    assert_eq!([of(vec![Layer::Guest]), of(vec![Layer::Guest, Layer::Iothread])], [1, 0]);
}

#[test]
fn what_cannot_be_restored_is_not_controlled() {
    type Prepare = fn(&Fixture);
    let cases: [(Prepare, &str); 3] = [
        (|fixture| fixture.set("guest_halt_poll_shrink", "much\n"), "guest_halt_poll_shrink cannot be read"),
        (|fixture| fixture.mode("guest_halt_poll_ns", 0o444), "read-only"),
        (
            |fixture| fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", "menu\n"),
            "governor in use is menu",
        ),
    ];
    for (prepare, why) in cases {
        let fixture = Fixture::guest();
        prepare(&fixture);
        let before = fixture.snapshot();
        let ran = of_quiet(&fixture, &configuration(Mode::Active), 0.01, vec![]);
        let error = format!("{:#}", ran.end.unwrap_err());
        assert!(error.contains(why), "{error}");
        assert_eq!((fixture.snapshot(), open_changes(&fixture)), (before, 0));
    }
}

/// One that does not answer is asked ever more seldom, and nothing else is kept waiting.
#[test]
fn a_silent_monitor_keeps_nothing_from_being_decided() {
    let of = |qemus: &[&str]| {
        let fixture = Fixture::guest();
        let qemus = qemus.iter().map(|qmp| super::config::Qemu { qmp: (*qmp).to_owned() }).collect();
        let config = Config { qemus, ..configuration(Mode::Active) };
        let config = Config { layers: vec![], ..config };
        let load = Load { idle_ns: 150_000, ..QUIET };
        let script = vec![(599.0, Event::Ask(Ask::Status))];
        let ran = run(&fixture, &|| Ok(config.clone()), load, 600.0, script);
        let decisions = ran.answers[0]["layers"][0]["decisions"].as_u64().unwrap();
        (decisions, ran)
    };
    let (alone, _) = of(&["/run/none.qmp"][..0]);
    let (beside, ran) = of(&["/run/silent.qmp"]);
    assert!(alone > 1_000 && beside.abs_diff(alone) <= 2, "{beside} {alone}");
    assert_eq!(ran.manager.first().unwrap(), "READY=1");
    assert!(ran.has("waiting for the QEMU at /run/silent.qmp: it is silent"), "{}", ran.text());
    let pauses: Vec<u64> = ran.looks.windows(2).map(|looks| (looks[1] - looks[0]) / 1_000_000_000).collect();
    assert_eq!(pauses[..8], [3, 4, 6, 10, 18, 34, 66, 66], "{pauses:?}");
}

/// What makes decisions rarer is the CPU time of the whole process.
#[test]
fn all_cpu_time_of_the_process_is_accounted_for() {
    let of = |look: Duration, layers: &[Layer]| {
        let fixture = Fixture::guest();
        let load = Load { idle_ns: 90_000, look, ..QUIET };
        let script = vec![(59.0, Event::Ask(Ask::Status))];
        let config = Config { layers: layers.to_vec(), ..configuration(Mode::Advise) };
        let ran = run(&fixture, &|| Ok(config.clone()), load, 60.0, script);
        let layer = &ran.answers[0]["layers"][0];
        (layer["decisions"].as_u64().unwrap(), layer["cpu_share"].as_f64().unwrap())
    };
    let (many, little) = of(Duration::from_micros(200), &[Layer::Guest]);
    assert!(many > 500 && little < 0.003, "{many} {little}");
    // Of a CPU three quarters of 0.45 % are used by decisions, and a quarter of 0.5 % by comparisons, some of it at once.
    let (few, limited) = of(Duration::from_millis(7), &[Layer::Guest]);
    assert!((22..38).contains(&few) && (0.0034..0.005).contains(&limited), "{few} {limited}");
    // The same where the layers are those that the machine has.
    assert_eq!(of(Duration::from_millis(7), &[]), (few, limited));
}
