//! What this machine's own CPUs run, and what wakes them where they idle.
//!
//! Each CPU has a stack: its task, and above it interrupts, softirqs and the timers that they call. The time between two
//! events of a CPU is of what is on top. An interrupt that comes while the CPU halts is a wakeup of it; if it is the tick
//! and a timer of the timer wheel expires after it, it came for that timer.

use super::bill::{Sum, Sums, lines};
use super::{Bill, Cause, Class};
use dwell_trace::event::{Event, EventKind, Interrupt};
use dwell_trace::pairing::ByNumber;
use std::collections::BTreeMap;

/// What wakes a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Waker {
    Task(i32),
    Timer(u64),
    Interrupt(Interrupt),
    Softirq(u32),
}

/// What a CPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doing {
    IdleTask,
    /// With an outcome that is not known.
    Poll,
    FailedPoll,
    SuccessfulPoll,
    Task {
        tid: i32,
        woken_by: Option<Waker>,
    },
    Work {
        function: u64,
    },
    Timer {
        function: u64,
        wakes: Option<i32>,
    },
    Interrupt(Interrupt),
    Line(u32),
    Softirq(u32),
}

/// An interrupt, a softirq, or what it calls.
#[derive(Debug)]
struct Frame {
    doing: Doing,
    cpu_ns: u64,
    woke: bool,
}

#[derive(Debug, Default)]
struct Cpu {
    task: Option<Doing>,
    /// Whether the idle state that it is in polls.
    polls: Option<bool>,
    /// Polled in a state that may be left or not; what follows shows whether it was in vain.
    polled_ns: u64,
    frames: Vec<Frame>,
    last_ns: u64,
    /// What woke it last.
    woken_by: Option<Doing>,
}

/// The name of a task, by its number.
pub type NameOf = Box<dyn FnMut(i32) -> Option<String> + Send>;

/// Watches the CPUs of this machine.
pub struct Cpus {
    cpus: ByNumber<u32, Cpu>,
    sums: BTreeMap<Doing, Sum>,
    /// What woke a task last, and whether it has not run since.
    woken: ByNumber<i32, (Waker, bool)>,
    names: BTreeMap<i32, String>,
    name_of: NameOf,
    polling_state: Option<u32>,
    begun_ns: u64,
    /// The sums at the end of each slice of the time.
    cuts: Vec<BTreeMap<Doing, Sum>>,
}

/// What names the numbers that events have.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    pub functions: BTreeMap<u64, String>,
    pub lines: BTreeMap<u32, String>,
}

/// Softirqs, in the order of their numbers.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

impl Cpus {
    /// Watches from `begun_ns` on.
    pub fn new(polling_state: Option<u32>, begun_ns: u64, name_of: NameOf) -> Cpus {
        let (cpus, sums, woken, names, cuts) = Default::default();
        Cpus { cpus, sums, woken, names, name_of, polling_state, begun_ns, cuts }
    }

    /// A slice of the time ends, and another begins.
    pub fn cut(&mut self) {
        self.cuts.push(self.sums.clone());
    }

    /// The bill of each slice, by the events alone.
    pub fn slices(&self, numbers: &Numbers) -> Vec<Bill> {
        let none = BTreeMap::new();
        let before = std::iter::once(&none).chain(&self.cuts);
        let of = |(now, before): (&BTreeMap<Doing, Sum>, &BTreeMap<Doing, Sum>)| {
            let since = now.iter().map(|(doing, sum)| (*doing, sum.since(before.get(doing))));
            Bill::of_events(self.named_alike(since, numbers))
        };
        self.cuts.iter().zip(before).map(of).collect()
    }

    /// Takes the next event, in order of time.
    pub fn observe(&mut self, event: &Event) {
        let Cpus { cpus, sums, woken, names, name_of, polling_state, begun_ns, .. } = self;
        let number = if let EventKind::CpuIdle { cpu, .. } = event.kind { cpu } else { event.cpu };
        let cpu = cpus.entry(number).or_insert_with(|| Cpu { last_ns: *begun_ns, ..Cpu::default() });
        let mut learn = |tid: i32| {
            names.entry(tid).or_insert_with(|| name_of(tid).unwrap_or_else(|| ENDED.to_owned()));
        };
        cpu.charge(event.time_ns, sums);
        match event.kind {
            EventKind::Switch { next, .. } => {
                cpu.close(sums);
                cpu.decide(Doing::SuccessfulPoll, sums);
                let mut fresh = false;
                if next > 0 {
                    learn(next);
                }
                let waker = woken.get_mut(&next).map(|(waker, is_fresh)| {
                    fresh = std::mem::take(is_fresh);
                    *waker
                });
                let doing = match next {
                    0 => Doing::IdleTask,
                    tid => Doing::Task { tid, woken_by: waker },
                };
                cpu.task = Some(doing);
                sums.entry(doing).or_default().count += u64::from(fresh || next == 0);
                cpu.polls = None;
            }
            EventKind::CpuIdle { state, .. } => {
                cpu.close(sums);
                let polls = state.map(|state| Some(state) == *polling_state);
                if polls == Some(false) {
                    cpu.decide(Doing::FailedPoll, sums);
                    cpu.woken_by = None;
                }
                cpu.task.get_or_insert(Doing::IdleTask);
                cpu.polls = polls;
            }
            EventKind::Waking { woken: tid, .. } => {
                let waker = match cpu.frames.last_mut().map(|frame| &mut frame.doing) {
                    Some(Doing::Timer { function, wakes }) => {
                        wakes.get_or_insert(tid);
                        learn(tid);
                        Waker::Timer(*function)
                    }
                    Some(Doing::Interrupt(kind)) => Waker::Interrupt(*kind),
                    Some(Doing::Softirq(vector)) => Waker::Softirq(*vector),
                    _ => Waker::Task(event.tid),
                };
                woken.insert(tid, (waker, true));
            }
            EventKind::Interrupt(kind) => {
                let woke = cpu.polls == Some(false) && cpu.frames.is_empty();
                cpu.frames.push(Frame { doing: Doing::Interrupt(kind), cpu_ns: 0, woke });
            }
            EventKind::Softirq { vector } => {
                cpu.frames.push(Frame { doing: Doing::Softirq(vector), cpu_ns: 0, woke: false });
            }
            EventKind::HrtimerExpire { function, .. } => cpu.calls(function, sums),
            EventKind::Callback { function, is_work: false } => {
                cpu.calls(function, sums);
                // The tick wakes no task.
                let tick = cpu.woken_by.take_if(|doing| matches!(doing, Doing::Timer { wakes: None, .. }));
                if let (Some(tick), Some(frame)) = (tick, cpu.frames.last_mut()) {
                    let sum = sums.entry(tick).or_default();
                    sum.wakeups = sum.wakeups.saturating_sub(1);
                    frame.woke = true;
                }
            }
            EventKind::Callback { function, is_work: true } => {
                let doing = Doing::Work { function };
                cpu.task = Some(doing);
                sums.entry(doing).or_default().count += 1;
            }
            EventKind::HandlerEnd { line } => {
                if let Some(mut frame) = cpu.frames.pop() {
                    if let (Doing::Interrupt(Interrupt::Device), Some(line)) = (frame.doing, line) {
                        frame.doing = Doing::Line(line);
                    }
                    cpu.woken_by = cpu.woken_by.or(frame.woke.then_some(frame.doing));
                    frame.add(sums);
                }
            }
            EventKind::Lost { .. } | EventKind::Gap { .. } => cpu.close(sums),
            _ => {}
        }
    }

    /// The functions whose names are wanted.
    pub fn functions(&self) -> impl Iterator<Item = u64> + '_ {
        let of = |doing: &Doing| match *doing {
            Doing::Timer { function, .. } | Doing::Work { function } => Some(function),
            Doing::Task { woken_by: Some(Waker::Timer(function)), .. } => Some(function),
            _ => None,
        };
        self.sums.keys().filter_map(of)
    }

    /// The tasks of a name.
    pub fn tasks(&self) -> impl Iterator<Item = (i32, &str)> {
        self.names.iter().map(|(tid, name)| (*tid, name.as_str()))
    }

    /// The bill up to `end_ns`. `busy_ns` is what /proc/stat counts as not idle, to which the time polled is added:
    /// `polled_ns`, where there are no events.
    pub fn finish(&mut self, end_ns: u64, busy_ns: Option<u64>, polled_ns: u64, numbers: &Numbers) -> Bill {
        if polled_ns > 0 {
            self.sums.insert(Doing::Poll, Sum { cpu_ns: polled_ns, ..Sum::default() });
        }
        for cpu in self.cpus.values_mut() {
            cpu.charge(end_ns, &mut self.sums);
            cpu.close(&mut self.sums);
            cpu.decide(Doing::FailedPoll, &mut self.sums);
        }
        let mut sums = self.named_alike(self.sums.iter().map(|(doing, sum)| (*doing, *sum)), numbers);
        let is_poll =
            |cause: &Cause| matches!(cause, Cause::Poll | Cause::FailedPoll | Cause::SuccessfulPoll);
        let (mut seen_ns, mut polled_ns) = (0, 0);
        for ((_, _, cause), sum) in &sums {
            seen_ns += sum.cpu_ns;
            polled_ns += if is_poll(cause) { sum.cpu_ns } else { 0 };
        }
        let cpu_ns = busy_ns.map_or(seen_ns, |busy| seen_ns.max(busy + polled_ns));
        sums.entry((Class::Cpu, None, Cause::Rest)).or_default().cpu_ns = cpu_ns - seen_ns;
        Bill::of(cpu_ns, lines(sums))
    }

    /// What is named alike is one.
    fn named_alike(&self, sums: impl Iterator<Item = (Doing, Sum)>, numbers: &Numbers) -> Sums {
        let mut alike = Sums::new();
        for (doing, sum) in sums {
            let (thread, cause) = self.named(doing, numbers);
            alike.entry((Class::Cpu, thread, cause)).or_default().add(sum);
        }
        alike
    }

    fn named(&self, doing: Doing, numbers: &Numbers) -> (Option<String>, Cause) {
        let task = |tid: i32| match (tid, self.names.get(&tid)) {
            (0, _) => "idle task".to_owned(),
            // The rest of such a name is the CPU and the last work.
            (_, Some(name)) if name.starts_with("kworker/") => "kworker".to_owned(),
            (_, name) => name.map_or(ENDED, String::as_str).to_owned(),
        };
        let function = |at: u64| numbers.functions.get(&at).cloned().unwrap_or_else(|| format!("{at:#x}"));
        let softirq = |vector: u32| {
            let name = usize::try_from(vector).ok().and_then(|vector| SOFTIRQS.get(vector));
            name.map_or_else(|| format!("softirq {vector}"), |name| format!("softirq {name}"))
        };
        let interrupt = |kind: Interrupt| match kind {
            Interrupt::Timer => "timer interrupt",
            Interrupt::Ipi => "interrupt of another CPU",
            Interrupt::Device => "interrupt of a device",
        };
        let waker = |waker: Waker| match waker {
            Waker::Task(tid) => task(tid),
            Waker::Timer(at) => format!("timer {}", function(at)),
            Waker::Interrupt(kind) => interrupt(kind).to_owned(),
            Waker::Softirq(vector) => softirq(vector),
        };
        match doing {
            Doing::IdleTask => (None, Cause::IdleTask),
            Doing::Poll => (None, Cause::Poll),
            Doing::FailedPoll => (None, Cause::FailedPoll),
            Doing::SuccessfulPoll => (None, Cause::SuccessfulPoll),
            Doing::Task { tid, woken_by } => (Some(task(tid)), Cause::Task { woken_by: woken_by.map(waker) }),
            Doing::Work { function: at } => {
                (Some("kworker".to_owned()), Cause::Work { function: function(at) })
            }
            Doing::Timer { function: at, wakes } => {
                (None, Cause::Timer { function: function(at), wakes: wakes.map(task) })
            }
            Doing::Interrupt(kind) => (None, Cause::Interrupt { name: interrupt(kind).to_owned() }),
            Doing::Softirq(vector) => (None, Cause::Interrupt { name: softirq(vector) }),
            Doing::Line(line) => {
                let name = numbers.lines.get(&line).map_or("", String::as_str);
                (None, Cause::Interrupt { name: format!("interrupt {line} {name}").trim().to_owned() })
            }
        }
    }
}

/// A task whose name could not be read: it ended before.
const ENDED: &str = "tasks that ended";

impl Frame {
    fn add(self, sums: &mut BTreeMap<Doing, Sum>) {
        let once = Sum { cpu_ns: self.cpu_ns, count: 1, wakeups: self.woke.into() };
        sums.entry(self.doing).or_default().add(once);
    }
}

impl Cpu {
    fn charge(&mut self, now_ns: u64, sums: &mut BTreeMap<Doing, Sum>) {
        let ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = self.last_ns.max(now_ns);
        match (self.frames.last_mut(), self.polls, self.task) {
            (Some(frame), ..) => frame.cpu_ns += ns,
            (None, Some(true), _) => self.polled_ns += ns,
            // It halts, or what it does is not known yet.
            (None, Some(false), _) | (None, None, None) => {}
            (None, None, Some(task)) => sums.entry(task).or_default().cpu_ns += ns,
        }
    }

    /// Nothing interrupts it any more.
    fn close(&mut self, sums: &mut BTreeMap<Doing, Sum>) {
        self.frames.drain(..).for_each(|frame| frame.add(sums));
    }

    /// What came of the last poll.
    fn decide(&mut self, outcome: Doing, sums: &mut BTreeMap<Doing, Sum>) {
        let polled_ns = std::mem::take(&mut self.polled_ns);
        if polled_ns > 0 {
            Frame { doing: outcome, cpu_ns: polled_ns, woke: false }.add(sums);
        }
    }

    /// A timer's function is called.
    fn calls(&mut self, function: u64, sums: &mut BTreeMap<Doing, Sum>) {
        let doing = Doing::Timer { function, wakes: None };
        let Some(frame) = self.frames.last_mut() else {
            return self.frames.push(Frame { doing, cpu_ns: 0, woke: false });
        };
        match frame.doing {
            // What the interrupt took so far is for its first timer.
            Doing::Interrupt(_) | Doing::Softirq(_) => frame.doing = doing,
            _ => std::mem::replace(frame, Frame { doing, cpu_ns: 0, woke: false }).add(sums),
        }
    }
}
