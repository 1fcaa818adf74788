//! `kvm.jsonl`: whole halts of a vCPU, in ideal time and in a virtual clock where every step costs.

use crate::fields::Fields;
use dwell_policy::host::{BUCKETS, Change, Knobs, Params, Revision, Vcpu, bucket};
use dwell_policy::version::Version;
use serde_json::Value;

pub(crate) fn check(case: &Value) -> Result<usize, String> {
    let mut case = Fields::of(case)?;
    case.text("id")?;
    case.text("pattern")?;
    let version = Version::parse(case.text("kernel")?).ok_or("kernel is no version")?;
    let revision = Revision::of(version).map_err(|e| e.to_string())?;
    let clock = match case.text("mode")? {
        "ideal" => Clock::Ideal,
        "timed" => Clock::timed(case.get("virtual_clock")?)?,
        other => return Err(format!("unknown mode {other}")),
    };
    let params = params(case.get("params")?)?;
    let mut knobs = Knobs { cap_ns: case.optional_u32("cap_halt_poll")?, ..Knobs::of(params) };
    let mut vcpu = Vcpu::with_halt_poll_ns(revision, case.u32("initial_halt_poll_ns")?);
    let changes = case.array("changes")?;
    let durations = case.u64s("durations_ns")?;
    let busy_from = case.maybe_array("busy_from_ns", durations.len())?;
    let no_poll = case.maybe_array("no_poll", durations.len())?;
    let valid = case.maybe_array("valid_wakeup", durations.len())?;

    let mut stats = Stats::default();
    let mut trace = Vec::new();
    let (mut used, mut halt_ns, mut waited, mut after) = (vec![], vec![], vec![], vec![]);
    for (step, &wake_ns) in durations.iter().enumerate() {
        for change in changes.iter().filter(|c| c["at"] == step) {
            apply(change, &mut knobs)?;
        }
        let flag = |list: Option<&[Value]>, absent: u64| list.map_or(Some(absent), |l| l[step].as_u64());
        knobs.poll_control = flag(no_poll, 0).ok_or("no_poll is no number")? == 0;
        let mut env = World {
            clock,
            now: 0,
            wake_ns,
            busy_from_ns: busy_from.and_then(|l| l[step].as_u64()).unwrap_or(u64::MAX),
            stop_ns: 0,
            valid: flag(valid, 1).ok_or("valid_wakeup is no number")? != 0,
            knobs,
        };
        // The window before the poll control is looked at, which is what the vector records.
        let mut shadow = vcpu;
        shadow.enter(&knobs);
        env.stop_ns = u64::from(shadow.halt_poll_ns());
        used.push(u64::from(shadow.halt_poll_ns()));
        let halt = whole(&mut vcpu, revision, &mut env, &mut stats);
        halt_ns.push(halt.halt_ns);
        waited.push(halt.waited);
        after.push(u64::from(vcpu.halt_poll_ns()));
        if let Some(change) = halt.change {
            trace.push(serde_json::json!([
                step,
                if change.grow { "grow" } else { "shrink" },
                change.new,
                change.old
            ]));
        }
    }
    case.expect("poll_ns_used", &used)?;
    case.expect("halt_ns", &halt_ns)?;
    case.expect("waited", &waited)?;
    case.expect("poll_limit_ns_after", &after)?;
    case.expect("trace", &trace)?;
    check_stats(case.get("stats")?, &stats)?;
    case.all_used()?;
    Ok(durations.len())
}

fn params(value: &Value) -> Result<Params, String> {
    let mut fields = Fields::of(value)?;
    let params = Params {
        halt_poll_ns: fields.u32("halt_poll_ns")?,
        halt_poll_ns_grow: fields.u32("halt_poll_ns_grow")?,
        halt_poll_ns_grow_start: fields.u32("halt_poll_ns_grow_start")?,
        halt_poll_ns_shrink: fields.u32("halt_poll_ns_shrink")?,
    };
    fields.all_used()?;
    Ok(params)
}

fn apply(change: &Value, knobs: &mut Knobs) -> Result<(), String> {
    let mut fields = Fields::of(change)?;
    fields.get("at")?;
    if fields.has("params") {
        knobs.params = params(fields.get("params")?)?;
    }
    if fields.has("cap") {
        knobs.cap_ns = fields.optional_u32("cap")?;
    }
    fields.all_used()
}

fn check_stats(expected: &Value, stats: &Stats) -> Result<(), String> {
    let mut fields = Fields::of(expected)?;
    let names: Vec<String> = fields.names();
    for name in &names {
        match name.as_str() {
            "halt_attempted_poll" => fields.expect(name, &stats.halt_attempted_poll)?,
            "halt_successful_poll" => fields.expect(name, &stats.halt_successful_poll)?,
            "halt_poll_invalid" => fields.expect(name, &stats.halt_poll_invalid)?,
            "halt_poll_success_ns" => fields.expect(name, &stats.halt_poll_success_ns)?,
            "halt_poll_fail_ns" => fields.expect(name, &stats.halt_poll_fail_ns)?,
            "halt_wait_ns" => fields.expect(name, &stats.halt_wait_ns)?,
            "halt_poll_success_hist" => fields.expect(name, &stats.halt_poll_success_hist)?,
            "halt_poll_fail_hist" => fields.expect(name, &stats.halt_poll_fail_hist)?,
            "halt_wait_hist" => fields.expect(name, &stats.halt_wait_hist)?,
            _ => return Err(format!("unknown statistic {name}")),
        }
    }
    fields.all_used()
}

#[derive(Clone, Copy)]
enum Clock {
    /// Everything is free; between two tests time runs on to the next thing that happens.
    Ideal,
    Timed {
        check_ns: u64,
        relax_ns: u64,
        clock_ns: u64,
        sched_ns: u64,
    },
}

impl Clock {
    fn timed(value: &Value) -> Result<Clock, String> {
        let mut fields = Fields::of(value)?;
        let clock = Clock::Timed {
            check_ns: fields.u64("check_ns")?,
            relax_ns: fields.u64("relax_ns")?,
            clock_ns: fields.u64("clock_ns")?,
            sched_ns: fields.u64("sched_ns")?,
        };
        fields.all_used()?;
        Ok(clock)
    }
}

struct World {
    clock: Clock,
    now: u64,
    wake_ns: u64,
    busy_from_ns: u64,
    /// End of the window, which ideal time must not run past.
    stop_ns: u64,
    valid: bool,
    knobs: Knobs,
}

impl World {
    fn spend(&mut self, cost: impl Fn(&Clock) -> u64) {
        self.now = self.now.saturating_add(cost(&self.clock));
    }
}

impl World {
    fn clock(&mut self) -> u64 {
        self.spend(|c| if let Clock::Timed { clock_ns, .. } = c { *clock_ns } else { 0 });
        self.now
    }

    fn wake_condition(&mut self) -> bool {
        self.spend(|c| if let Clock::Timed { check_ns, .. } = c { *check_ns } else { 0 });
        if self.now >= self.wake_ns {
            return true;
        }
        if let Clock::Ideal = self.clock {
            self.now = self.now.max(self.wake_ns.min(self.busy_from_ns).min(self.stop_ns));
        }
        false
    }

    fn relax(&mut self) {
        self.spend(|c| if let Clock::Timed { relax_ns, .. } = c { *relax_ns } else { 0 });
    }

    fn alone(&mut self) -> bool {
        self.now < self.busy_from_ns
    }

    fn block(&mut self) -> bool {
        if let Clock::Ideal = self.clock {
            let slept = self.now < self.wake_ns;
            self.now = self.now.max(self.wake_ns);
            return slept;
        }
        let mut slept = false;
        while !self.wake_condition() {
            slept = true;
            self.now = self.now.max(self.wake_ns);
            self.spend(|c| if let Clock::Timed { sched_ns, .. } = c { *sched_ns } else { 0 });
        }
        slept
    }

    fn valid_wakeup(&mut self) -> bool {
        self.valid
    }

    fn knobs(&mut self) -> Knobs {
        self.knobs
    }
}

/// One finished halt.
struct Halt {
    /// The length of the halt as the decision saw it and as `kvm_vcpu_wakeup` prints it \[ns\].
    halt_ns: u64,
    /// Whether the thread slept.
    waited: bool,
    /// The tracepoint `kvm_halt_poll_ns`, if it fired.
    change: Option<Change>,
}

/// The statistics KVM keeps per vCPU (the names are those of the binary statistics file descriptor).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stats {
    /// Halts that polled.
    halt_attempted_poll: u64,
    /// Of those, the ones that did not sleep.
    halt_successful_poll: u64,
    /// Of those, the ones whose wakeup was invalid.
    halt_poll_invalid: u64,
    /// Time polled in halts that did not sleep \[ns\]; since 5.8.
    halt_poll_success_ns: u64,
    /// Time polled in halts that slept \[ns\]; since 5.8.
    halt_poll_fail_ns: u64,
    /// Time slept \[ns\]; modelled since 5.17.
    halt_wait_ns: u64,
    /// Lengths of successful polls, see [`bucket`]; modelled since 5.17.
    halt_poll_success_hist: [u64; BUCKETS],
    /// Lengths of failed polls; modelled since 5.17.
    halt_poll_fail_hist: [u64; BUCKETS],
    /// Lengths of sleeps; modelled since 5.17.
    halt_wait_hist: [u64; BUCKETS],
}

struct Measured {
    polls: bool,
    found_in_loop: bool,
    waited: bool,
    valid: bool,
    poll_ns: u64,
    wait_ns: u64,
}

impl Stats {
    fn count(&mut self, revision: Revision, halt: &Measured) {
        let reconciled = revision >= Revision::V5_17;
        if halt.polls {
            self.halt_attempted_poll += 1;
            let success = if reconciled { !halt.waited } else { halt.found_in_loop };
            self.halt_successful_poll += u64::from(success);
            self.halt_poll_invalid += u64::from(success && !halt.valid);
        }
        let has_times = revision >= Revision::V5_8;
        if has_times && (halt.polls || !reconciled) {
            let sum = if halt.waited { &mut self.halt_poll_fail_ns } else { &mut self.halt_poll_success_ns };
            *sum = sum.wrapping_add(halt.poll_ns);
        }
        if !reconciled {
            return;
        }
        if halt.polls {
            let hist =
                if halt.waited { &mut self.halt_poll_fail_hist } else { &mut self.halt_poll_success_hist };
            hist[bucket(halt.poll_ns)] += 1;
        }
        if halt.waited {
            self.halt_wait_ns = self.halt_wait_ns.wrapping_add(halt.wait_ns);
            self.halt_wait_hist[bucket(halt.wait_ns)] += 1;
        }
    }
}

/// One whole halt in time: polls, sleeps, counts and adjusts, with `env` for everything outside the vCPU, called in
/// the order and as often as the kernel does.
fn whole(vcpu: &mut Vcpu, revision: Revision, env: &mut World, stats: &mut Stats) -> Halt {
    let at_entry = env.knobs();
    let window = vcpu.enter(&at_entry);
    let polls = window != 0;
    let start = env.clock();
    let mut now = start;
    let mut poll_end = start;
    let mut found_in_loop = false;
    if polls {
        let from = if revision >= Revision::V5_17 { start } else { env.clock() };
        let stop = from.wrapping_add(u64::from(window));
        loop {
            if env.wake_condition() {
                found_in_loop = true;
                break;
            }
            if revision >= Revision::V5_15 {
                env.relax();
            }
            now = env.clock();
            poll_end = now;
            let stay = env.alone() && now < stop;
            if !stay {
                break;
            }
        }
    }
    let mut waited = false;
    if !found_in_loop {
        waited = env.block();
        now = env.clock();
    }
    let valid = env.valid_wakeup();
    let measured = Measured {
        polls,
        found_in_loop,
        waited,
        valid,
        poll_ns: poll_end.wrapping_sub(start),
        wait_ns: now.wrapping_sub(poll_end),
    };
    stats.count(revision, &measured);
    let halt_ns = now.wrapping_sub(start);
    let mut at_exit = env.knobs();
    if revision.clamps_at_entry() {
        // The poll control was read once, before the halt; the maximum is read again.
        at_exit.poll_control = at_entry.poll_control;
    }
    let change = vcpu.decide(&at_exit, halt_ns, valid);
    Halt { halt_ns, waited, change }
}
