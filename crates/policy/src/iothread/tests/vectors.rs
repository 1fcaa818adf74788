//! QEMU adaptive polling: single `aio_poll`s whose length is given, and whole event loops in virtual time.

extern crate std;

use super::super::{Aio, ChangeKind, Event, Handler, Kind, Params, Revision};
use super::aio_poll::{self, Context, Env, Monitor, Via};
use crate::version::Version;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::VecDeque;
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, fs};

/// `DWELL_VECTORS=DIR` reads another folder with the same file names.
#[test]
fn every_vector_of_qemu_is_what_the_model_does() {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let folder = std::env::var_os("DWELL_VECTORS").map_or(own, Into::into);
    for (name, least) in [("aio-classic.jsonl", 124), ("aio-weighted.jsonl", 98)] {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        let (mut cases, mut steps) = (0, 0);
        for line in text.lines() {
            let case = serde_json::from_str(line).unwrap();
            steps += check(&case).unwrap_or_else(|why| panic!("{name}:{}: {why}", cases + 1));
            cases += 1;
        }
        assert!(cases >= least && steps > cases, "{name}: {cases} cases, {steps} steps");
    }
}

/// Checks one case under every release that it holds for; its steps count once.
fn check(case: &Value) -> Result<usize, String> {
    let mut fields = case.as_object().ok_or("not an object")?.clone();
    let mut take = |name: &str| fields.remove(name).ok_or(format!("no field {name:?}"));
    parse::<String>(take("id")?)?;
    let kind: String = parse(take("kind")?)?;
    let variant: String = parse(take("variant")?)?;
    let mut versions: Vec<String> = parse(take("also_identical_in")?)?;
    versions.insert(0, parse(take("qemu")?)?);
    let revision = Revision::from_name(&variant).ok_or(format!("unknown variant {variant:?}"))?;
    let params = parse::<Setting>(take("params")?)?.params(revision)?;
    let kinds = handler_kinds(&parse::<String>(take("handlers")?)?)?;
    let rest = Value::Object(fields);

    let run: &dyn Fn(Version) -> Result<usize, String> = match kind.as_str() {
        "unit" => {
            let case: Unit = parse(rest)?;
            &move |version| case.check(version, params, &kinds)
        }
        "loop" => {
            let case: Loop = parse(rest)?;
            &move |version| case.check(version, params, &kinds)
        }
        _ => return Err(format!("unknown kind {kind:?}")),
    };
    let mut steps = 0;
    for text in &versions {
        let version = Version::parse(text).ok_or(format!("QEMU {text:?}: not a version"))?;
        let found = Revision::of(version).map_err(|e| format!("QEMU {text}: {e}"))?;
        expect(&format!("QEMU {text}: revision"), &found, &revision)?;
        steps = run(version).map_err(|e| format!("QEMU {text}: {e}"))?;
    }
    Ok(steps)
}

fn parse<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    let text = value.to_string();
    serde_json::from_value(value).map_err(|e| format!("{e} in {text:.80}"))
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what} is {got:?}, expected {expected:?}")) }
}

/// The kinds of the handlers, one letter each.
fn handler_kinds(letters: &str) -> Result<Vec<Kind>, String> {
    let kind = |letter| match letter {
        'p' => Ok(Kind::Polled),
        'v' => Ok(Kind::PolledQuietly),
        'f' => Ok(Kind::FdOnly),
        _ => Err(format!("unknown handler {letter:?}")),
    };
    letters.chars().map(kind).collect()
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    poll_max_ns: i64,
    poll_grow: i64,
    poll_shrink: i64,
    poll_weight: Option<i64>,
}

impl Setting {
    fn params(self, revision: Revision) -> Result<Params, String> {
        let Setting { poll_max_ns, poll_grow, poll_shrink, poll_weight } = self;
        expect("presence of poll_weight", &poll_weight.is_some(), &(revision == Revision::Weighted))?;
        Ok(Params { poll_max_ns, poll_grow, poll_shrink, poll_weight: poll_weight.unwrap_or(0) })
    }
}

/// A trace event as the vectors write it; handler -1 is the notifier.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(tag = "ev", rename_all = "snake_case", deny_unknown_fields)]
enum Traced {
    Begin { max_ns: i64, timeout: i64 },
    End { progress: u8, timeout: i64 },
    Grow { h: Option<i64>, old: i64, new: i64 },
    Shrink { h: Option<i64>, old: i64, new: i64 },
    PollAdd { h: i64 },
    PollRemove { h: i64 },
}

impl Traced {
    /// `event` of a context whose notifier, if it has one, is its last handler.
    fn new(event: Event, name: impl Fn(u32) -> i64) -> Traced {
        match event {
            Event::Adapted { handler, change } => {
                let (h, old, new) = (handler.map(name), change.old, change.new);
                match change.kind {
                    ChangeKind::Grow => Traced::Grow { h, old, new },
                    ChangeKind::Shrink => Traced::Shrink { h, old, new },
                }
            }
            Event::PollAdd(h) => Traced::PollAdd { h: name(h) },
        }
    }
}

fn ns_of(handlers: &[Handler]) -> Vec<i64> {
    handlers.iter().map(Handler::ns).collect()
}

fn in_poll(handlers: &[Handler]) -> Vec<u8> {
    handlers.iter().map(|handler| handler.in_poll().into()).collect()
}

fn table(kinds: &[Kind]) -> Vec<Handler> {
    kinds.iter().copied().map(Handler::new).collect()
}

/// A field that may be null but not absent.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// Single `aio_poll`s; polling itself is kept from happening.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unit {
    steps: Vec<Step>,
    expect: Vec<UnitState>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Step {
    #[serde(rename = "step")]
    Finish {
        block_ns: i64,
        ready: Vec<u32>,
    },
    Set {
        poll_max_ns: i64,
        poll_grow: i64,
        poll_shrink: i64,
        poll_weight: Option<i64>,
    },
    Rereg {
        h: u32,
    },
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct UnitState {
    poll_ns: i64,
    h: Option<Vec<i64>>,
    in_poll: Vec<u8>,
    /// Without order.
    trace: Vec<Traced>,
}

impl Unit {
    fn check(&self, version: Version, params: Params, kinds: &[Kind]) -> Result<usize, String> {
        let revision = Revision::of(version).unwrap();
        let mut aio = Aio::new(revision, params, table(kinds));
        let mut expected = self.expect.iter();
        for (index, step) in self.steps.iter().enumerate() {
            match *step {
                Step::Set { poll_max_ns, poll_grow, poll_shrink, poll_weight } => {
                    let setting = Setting { poll_max_ns, poll_grow, poll_shrink, poll_weight };
                    aio.set_params(setting.params(revision)?);
                }
                Step::Rereg { h } if h as usize >= kinds.len() => return Err(format!("no handler {h}")),
                Step::Rereg { h } => aio.reregister(h),
                Step::Finish { block_ns, ref ready } => {
                    let mut trace = Vec::new();
                    aio.finish(block_ns, ready, |event| trace.push(Traced::new(event, i64::from)));
                    trace.sort_unstable();
                    let expected = expected.next().ok_or("more steps than expectations")?;
                    let mut expected_trace = expected.trace.clone();
                    expected_trace.sort_unstable();
                    let per_handler = revision != Revision::Global;
                    let what = |field: &str| format!("step {index}: {field}");
                    expect(&what("poll_ns"), &aio.effective(), &expected.poll_ns)?;
                    expect(&what("h"), &per_handler.then(|| ns_of(aio.handlers())), &expected.h)?;
                    expect(&what("in_poll"), &in_poll(aio.handlers()), &expected.in_poll)?;
                    expect(&what("trace"), &trace, &expected_trace)?;
                }
            }
        }
        expect("number of expectations left over", &expected.len(), &0)?;
        Ok(self.expect.len())
    }
}

/// A whole event loop in virtual time.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Loop {
    fdmon: Fdmon,
    cost: Cost,
    /// When events come, by handler.
    arrivals: Vec<Vec<i64>>,
    /// When another thread calls `aio_notify`.
    notify: Vec<i64>,
    timers: Vec<i64>,
    /// How many `aio_poll`s at most; the loop ends before where nothing is left to happen.
    iters: usize,
    expect: Vec<LoopState>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fdmon {
    Poll,
    Uring,
}

/// What things cost, in ns.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    clock: i64,
    io_poll: i64,
    wait: i64,
    wake: i64,
    work: i64,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct LoopState {
    t: i64,
    #[serde(deserialize_with = "nullable")]
    wait: Option<i64>,
    dispatched: Vec<(i64, String)>,
    trace: Vec<Traced>,
    poll_ns: i64,
    h: Option<Vec<i64>>,
    hn: Option<i64>,
    in_poll: Vec<u8>,
    started: u8,
    t_end: i64,
}

impl LoopState {
    /// The state after an iteration that began at `t`; what the world has seen in it is taken.
    fn after(t: i64, context: &Context, world: &mut World) -> Result<LoopState, String> {
        let aio = &context.aio;
        let (notifier, handlers) = aio.handlers().split_last().ok_or("no handlers")?;
        let per_handler = aio.revision != Revision::Global;
        Ok(LoopState {
            t,
            wait: world.waited,
            dispatched: std::mem::take(&mut world.dispatched),
            trace: std::mem::take(&mut world.trace),
            poll_ns: aio.effective(),
            h: per_handler.then(|| ns_of(handlers)),
            hn: per_handler.then(|| notifier.ns()),
            in_poll: in_poll(handlers),
            started: context.started.into(),
            t_end: world.now,
        })
    }
}

impl Loop {
    fn check(&self, version: Version, params: Params, kinds: &[Kind]) -> Result<usize, String> {
        expect("number of arrival lists", &self.arrivals.len(), &kinds.len())?;
        let mut world = World::new(self, kinds);
        let mut handlers = table(kinds);
        handlers.push(Handler::new(Kind::Notifier));
        let mut aio = Context::new(version, params, handlers);
        for (index, expected) in self.expect.iter().enumerate() {
            let t = world.now;
            (world.waited, world.dispatched, world.trace) = (None, Vec::new(), Vec::new());
            aio.aio_poll(&mut world, true);
            let got = LoopState::after(t, &aio, &mut world)?;
            expect(&format!("iteration {index}"), &got, expected)?;
        }
        if self.expect.len() > self.iters {
            return Err(format!("{} iterations expected of at most {}", self.expect.len(), self.iters));
        }
        Ok(self.expect.len())
    }
}

/// When virtual time begins.
const EPOCH: i64 = 1_000_000_000_000;

/// The virtual world around a context; handler numbers are those of the case, and the notifier's follows them.
struct World {
    now: i64,
    cost: Cost,
    fdmon: Fdmon,
    sources: Vec<Source>,
    notifications: VecDeque<i64>,
    timers: Vec<i64>,
    notified: bool,
    notify_me: bool,
    /// The notifier's file descriptor was written to.
    eventfd: bool,
    waited: Option<i64>,
    dispatched: Vec<(i64, String)>,
    trace: Vec<Traced>,
}

/// What a handler watches.
struct Source {
    /// When events that are not consumed came or will come.
    arrivals: VecDeque<i64>,
    /// Since when an arrival raises the file descriptor; `None` while it does not.
    armed_since: Option<i64>,
}

impl Source {
    /// When the first event that raises the file descriptor comes.
    fn raised_at(&self) -> Option<i64> {
        let since = self.armed_since?;
        self.arrivals.iter().copied().find(|&at| at >= since)
    }
}

impl World {
    fn new(case: &Loop, kinds: &[Kind]) -> World {
        let absolute = |offsets: &[i64]| offsets.iter().map(|offset| EPOCH + offset).collect::<VecDeque<_>>();
        let source = |offsets: &Vec<i64>| Source { arrivals: absolute(offsets), armed_since: Some(i64::MIN) };
        debug_assert_eq!(case.arrivals.len(), kinds.len());
        World {
            now: EPOCH,
            cost: case.cost,
            fdmon: case.fdmon,
            sources: case.arrivals.iter().map(source).collect(),
            notifications: absolute(&case.notify),
            timers: absolute(&case.timers).into(),
            notified: true, // setting the parameters at the start notifies
            notify_me: false,
            eventfd: false,
            waited: None,
            dispatched: Vec::new(),
            trace: Vec::new(),
        }
    }

    fn notifier(&self) -> u32 {
        u32::try_from(self.sources.len()).expect("few handlers")
    }

    /// The name of a handler in the vectors.
    fn name(&self, h: u32) -> i64 {
        if h == self.notifier() { -1 } else { h.into() }
    }

    /// Time passes; other threads notify meanwhile.
    fn pass(&mut self, ns: i64) {
        self.now += ns;
        while self.notifications.front().is_some_and(|at| *at <= self.now) {
            self.notifications.pop_front();
            self.notified = true;
            self.eventfd |= self.notify_me;
        }
    }

    fn is_raised(&self, h: u32) -> bool {
        match self.sources.get(h as usize) {
            Some(source) => source.raised_at().is_some_and(|at| at <= self.now),
            None => self.eventfd,
        }
    }

    /// In the order of the scan: the newest first, the notifier, registered first, last.
    fn raised(&self) -> Vec<u32> {
        let newest_first = (0..self.notifier()).rev().chain([self.notifier()]);
        newest_first.filter(|&h| self.is_raised(h)).collect()
    }
}

impl Env for World {
    fn now(&mut self) -> i64 {
        let now = self.now;
        self.pass(self.cost.clock);
        now
    }

    fn monitor(&self) -> Monitor {
        match self.fdmon {
            Fdmon::Poll => Monitor::Poll,
            Fdmon::Uring => Monitor::Uring,
        }
    }

    fn ring_needs_service(&mut self) -> bool {
        !self.raised().is_empty()
    }

    fn timeout(&mut self) -> i64 {
        self.timers.iter().min().map_or(-1, |at| (at - self.now).max(0))
    }

    fn io_poll(&mut self, h: u32) -> bool {
        self.pass(self.cost.io_poll);
        match self.sources.get(h as usize) {
            Some(source) => source.arrivals.front().is_some_and(|&at| at <= self.now),
            None => self.notified,
        }
    }

    fn io_poll_begin(&mut self, h: u32) {
        self.sources[h as usize].armed_since = None;
    }

    fn io_poll_end(&mut self, h: u32) {
        self.sources[h as usize].armed_since = Some(self.now);
    }

    fn announce_wait(&mut self) -> bool {
        self.notify_me = true;
        self.notified
    }

    fn retract_wait(&mut self) {
        self.notify_me = false;
    }

    fn accept_notifications(&mut self) {
        self.notified = false;
    }

    fn wait(&mut self, timeout_ns: i64, ready: impl FnMut(u32)) {
        self.waited = Some(timeout_ns);
        self.pass(self.cost.wait);
        if self.raised().is_empty() && timeout_ns != 0 {
            let deadline = (timeout_ns >= 0).then_some(self.now + timeout_ns);
            let arrivals = self.sources.iter().filter_map(Source::raised_at);
            let first = arrivals.chain(self.notifications.front().copied()).chain(deadline).min();
            let first = first.expect("something to wait for");
            self.pass(first - self.now);
            self.pass(self.cost.wake);
        }
        self.raised().into_iter().for_each(ready);
    }

    fn run_bottom_halves(&mut self) -> bool {
        false
    }

    fn dispatch(&mut self, h: u32, via: Via) {
        let way = match via {
            Via::Fd => "fd",
            Via::Poll => "poll",
        };
        self.dispatched.push((self.name(h), way.into()));
        match self.sources.get_mut(h as usize) {
            Some(source) => {
                let now = self.now;
                while source.arrivals.front().is_some_and(|at| *at <= now) {
                    source.arrivals.pop_front();
                }
                self.pass(self.cost.work);
            }
            None => self.eventfd &= via == Via::Poll,
        }
    }

    fn run_timers(&mut self) -> bool {
        let before = self.timers.len();
        self.timers.retain(|&at| at > self.now);
        self.timers.len() < before
    }

    fn trace(&mut self, event: aio_poll::Traced) {
        use aio_poll::Traced::{Aio, PollBegin, PollEnd, PollRemove};
        let traced = match event {
            Aio(event) => Traced::new(event, |h| self.name(h)),
            PollRemove(h) => Traced::PollRemove { h: self.name(h) },
            PollBegin { max_ns, timeout_ns } => Traced::Begin { max_ns, timeout: timeout_ns },
            PollEnd { progress, timeout_ns } => {
                Traced::End { progress: progress.into(), timeout: timeout_ns }
            }
        };
        self.trace.push(traced);
    }
}
