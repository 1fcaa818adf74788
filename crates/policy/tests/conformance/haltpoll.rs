//! `haltpoll.jsonl`: the governor's decisions alone, and whole idle periods in virtual time.

use crate::fields::Fields;
use dwell_policy::guest::{Change, Cpu, Environment, Params, Revision, State};
use dwell_policy::version::Version;
use serde_json::{Value, json};

pub(crate) fn check(case: &Value) -> Result<usize, String> {
    let mut case = Fields::of(case)?;
    case.text("id")?;
    case.text("pattern")?;
    let version = Version::parse(case.text("kernel")?).ok_or("kernel is no version")?;
    let revision = Revision::of(version).map_err(|e| e.to_string())?;
    let params = params(case.get("params")?)?;
    let steps = match case.text("mode")? {
        "adjust" => adjust(&mut case, revision, params)?,
        "episode" => episode(&mut case, revision, params)?,
        other => return Err(format!("unknown mode {other}")),
    };
    case.all_used()?;
    Ok(steps)
}

fn params(value: &Value) -> Result<Params, String> {
    let mut fields = Fields::of(value)?;
    let params = Params {
        guest_halt_poll_ns: fields.u32("guest_halt_poll_ns")?,
        guest_halt_poll_shrink: fields.u32("guest_halt_poll_shrink")?,
        guest_halt_poll_grow: fields.u32("guest_halt_poll_grow")?,
        guest_halt_poll_grow_start: fields.u32("guest_halt_poll_grow_start")?,
        guest_halt_poll_allow_shrink: fields.flag("guest_halt_poll_allow_shrink")?,
    };
    fields.all_used()?;
    Ok(params)
}

fn state(index: u64) -> Result<State, String> {
    match index {
        0 => Ok(State::Poll),
        1 => Ok(State::Halt),
        other => Err(format!("no state {other}")),
    }
}

fn index(state: State) -> u64 {
    match state {
        State::Poll => 0,
        State::Halt => 1,
    }
}

/// What the tracepoint would print, in kernels that have it.
struct Trace {
    revision: Revision,
    lines: Vec<Value>,
}

impl Trace {
    fn add(&mut self, step: usize, change: Option<Change>) {
        if let Some(change) = change {
            let kind = if change.grow { "grow" } else { "shrink" };
            self.lines.push(json!([step, kind, change.new, change.old]));
        }
    }

    fn json(self) -> Value {
        // Before, there is no tracepoint `power:guest_halt_poll_ns`.
        if self.revision >= Revision::V6_0 { Value::Array(self.lines) } else { Value::Null }
    }
}

fn adjust(case: &mut Fields<'_>, revision: Revision, mut params: Params) -> Result<usize, String> {
    let last = state(case.u64("initial_last_state_idx")?)?;
    let mut cpu = Cpu::with_state(revision, case.u64("initial_poll_limit_ns")?, last);
    let changes = case.array("param_changes")?;
    let durations = case.u64s("durations_ns")?;
    let states = case.u64s("state_idx")?;
    if states.len() != durations.len() {
        return Err("state_idx and durations_ns differ in length".into());
    }
    let mut trace = Trace { revision, lines: vec![] };
    let (mut limits, mut selected, mut stop_tick) = (vec![], vec![], vec![]);
    for (step, (&duration, &entered)) in durations.iter().zip(&states).enumerate() {
        for change in changes.iter().filter(|c| c["at"] == step) {
            params = changed(change)?;
        }
        trace.add(step, cpu.reflect(&params, state(entered)?, duration));
        let selection = cpu.select(i64::MAX);
        limits.push(cpu.poll_limit_ns());
        selected.push(index(selection.state));
        stop_tick.push(selection.stop_tick);
    }
    case.expect("poll_limit_ns_after", &limits)?;
    case.expect("next_select", &selected)?;
    case.expect("stop_tick", &stop_tick)?;
    case.expect("trace", &trace.json())?;
    Ok(durations.len())
}

fn changed(change: &Value) -> Result<Params, String> {
    let mut fields = Fields::of(change)?;
    fields.get("at")?;
    let params = params(fields.get("params")?)?;
    fields.all_used()?;
    Ok(params)
}

fn episode(case: &mut Fields<'_>, revision: Revision, params: Params) -> Result<usize, String> {
    let clock = VirtualClock::of(case.get("virtual_clock")?)?;
    let durations = case.u64s("durations_ns")?;
    let irqs = case.maybe_array("irqs_ns", durations.len())?;
    let latency = case.maybe_array("latency_req_ns", durations.len())?;
    let mut cpu = Cpu::new(revision);
    let mut trace = Trace { revision, lines: vec![] };
    let (mut limits, mut polled, mut halted, mut entries) = (vec![], vec![], vec![], vec![]);
    for (step, &wake_ns) in durations.iter().enumerate() {
        let mut period = Period { clock: &clock, now: 0, wake_ns };
        let latency_req = match latency {
            Some(list) => list[step].as_i64().ok_or("latency_req_ns is no number")?,
            None => i64::MAX,
        };
        let irqs: Vec<u64> = match irqs {
            Some(list) => serde_json::from_value(list[step].clone()).map_err(|e| format!("irqs_ns: {e}"))?,
            None => vec![],
        };
        let (mut poll_ns, mut halt_ns, mut entered) = (0, 0, vec![]);
        while !period.need_resched() {
            let selection = cpu.select(latency_req);
            let since = period.now;
            match selection.state {
                State::Poll => cpu.poll(&mut period, clock.tick_nsec),
                State::Halt => period.halt(&irqs),
            }
            let residency = period.now - since;
            trace.add(step, cpu.reflect(&params, selection.state, residency));
            match selection.state {
                State::Poll => poll_ns += residency,
                State::Halt => halt_ns += residency,
            }
            let expired = selection.state == State::Poll && cpu.expired();
            entered.push(json!([
                index(selection.state),
                residency,
                u8::from(expired),
                u8::from(selection.stop_tick),
                cpu.poll_limit_ns()
            ]));
        }
        limits.push(cpu.poll_limit_ns());
        polled.push(poll_ns);
        halted.push(halt_ns);
        entries.push(entered);
    }
    case.expect("entries", &entries)?;
    case.expect("poll_limit_ns_after", &limits)?;
    case.expect("poll_ns", &polled)?;
    case.expect("halt_ns", &halted)?;
    case.expect("trace", &trace.json())?;
    Ok(durations.len())
}

struct VirtualClock {
    relax_ns: u64,
    clock_ns: u64,
    tick_nsec: u64,
}

impl VirtualClock {
    fn of(value: &Value) -> Result<VirtualClock, String> {
        let mut fields = Fields::of(value)?;
        let clock = VirtualClock {
            relax_ns: fields.u64("relax_ns")?,
            clock_ns: fields.u64("clock_ns")?,
            tick_nsec: fields.u64("tick_nsec")?,
        };
        fields.all_used()?;
        Ok(clock)
    }
}

/// One idle period: a task is to run from `wake_ns` on.
struct Period<'a> {
    clock: &'a VirtualClock,
    now: u64,
    wake_ns: u64,
}

impl Period<'_> {
    /// A halt ends at the next interrupt, whether or not it wakes a task.
    fn halt(&mut self, irqs: &[u64]) {
        let next_irq = irqs.iter().copied().filter(|&t| t > self.now).min().unwrap_or(u64::MAX);
        self.now = next_irq.min(self.wake_ns);
    }
}

impl Environment for Period<'_> {
    fn clock(&mut self) -> u64 {
        self.now += self.clock.clock_ns;
        self.now
    }

    fn relax(&mut self) {
        self.now += self.clock.relax_ns;
    }

    fn need_resched(&mut self) -> bool {
        self.now >= self.wake_ns
    }
}
