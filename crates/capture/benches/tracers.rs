//! What does an event cost that is read through a BPF program, beside one that is read through perf's ring buffer?
//!
//! ```text
//! cargo bench -p dwell-capture --bench tracers
//! ```
//! Two threads on one CPU wake each other by turns: one `sched:sched_waking` (and one switch) each. Rounds of
//! the load run without a tracer, with perf and with BPF, in an order that turns around from round to round.
//! Two costs are printed, as medians over the rounds with their quartiles:
//!
//! * in the traced threads: their CPU time above that without a tracer, per event;
//! * in the reader: the CPU time of taking the events out and decoding them, per event.
//!
//! It would be surprising if BPF cost the traced threads more than perf.
//!
//! And what does it cost to record causes? Two threads on two CPUs wake each other under `dwell record guest`, with causes
//! and without: the CPU time of the threads above that without a recorder, and that of the recorder, its file included,
//! per wakeup and per event. It would be surprising if an event cost more with causes than without.

use dwell_capture::probe::{Probe, Trace};
use dwell_capture::tracefs::Tracefs;
use dwell_capture::{GuestSource, Observer, Recorder, Status, Target, Until};
use dwell_machine::{Sysroot, cpu};
use dwell_trace::event::{EventKind, TracepointKind};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracer {
    None,
    Perf,
    Bpf,
}

const ALL: [Tracer; 3] = [Tracer::None, Tracer::Perf, Tracer::Bpf];

/// \[ns\], per event.
#[derive(Clone, Copy, Debug)]
struct Cost {
    threads: f64,
    reader: f64,
}

fn main() {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (rounds, wakings) = (number("DWELL_ROUNDS", 15), number("DWELL_WAKINGS", 40_000));
    let machine = Sysroot::of_this_machine();
    let cpus = cpu::online(&machine);
    let (load_on, reader_on) = (*cpus.last().unwrap_or(&0), *cpus.first().unwrap_or(&0));
    pin(reader_on);
    let mut costs: Vec<(Tracer, Cost)> = vec![];
    for round in 0..rounds {
        let mut order = ALL;
        if round % 2 == 1 {
            order.reverse();
        }
        for tracer in order {
            match measure(&machine, tracer, wakings, load_on) {
                Ok(cost) => costs.push((tracer, cost)),
                Err(error) => return println!("SKIP {error}: {tracer:?}"),
            }
        }
    }
    print(&costs, rounds, wakings);
    if load_on == reader_on {
        return println!("SKIP one CPU only: causes");
    }
    unpin(&cpus);
    if let Err(error) = causes(rounds, wakings, [reader_on, load_on]) {
        println!("SKIP {error}: causes");
    }
}

/// The CPU time of the load, and of its recorder with and without causes.
fn causes(rounds: u64, wakings: u64, on: [u32; 2]) -> Result<(), String> {
    let mut costs: [Vec<[f64; 4]>; 2] = [vec![], vec![]];
    for round in 0..rounds {
        let base = load(wakings, on) as f64 / wakings as f64;
        for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let (threads, recorder, events) = recorded(wakings, on, which == 1)?;
            let (more, events) = (threads as f64 / wakings as f64 - base, events as f64);
            let recorder = recorder as f64;
            let of_events = wakings as f64 / events;
            costs[which].push([more, recorder / wakings as f64, more * of_events, recorder / events]);
        }
    }
    println!("{rounds} rounds of {wakings} wakeups between two CPUs");
    println!(
        "| recorder | threads, ns/wakeup | recorder, ns/wakeup | threads, ns/event | recorder, ns/event |"
    );
    println!("|---|---|---|---|---|");
    for (costs, name) in costs.iter().zip(["without causes", "with causes"]) {
        let column = |column: usize| {
            let mut values: Vec<f64> = costs.iter().map(|cost| cost[column]).collect();
            values.sort_by(f64::total_cmp);
            range(&values)
        };
        println!("| {name} | {} | {} | {} | {} |", column(0), column(1), column(2), column(3));
    }
    Ok(())
}

/// The CPU time of the load and of its recorder \[ns\], and the events recorded.
fn recorded(wakings: u64, on: [u32; 2], causes: bool) -> Result<(u64, u64, u64), String> {
    let target = Target::Guest { source: GuestSource::Auto, causes };
    let recorder = Recorder::open(target, None).map_err(|error| error.to_string())?;
    let (stop, begins) = (AtomicBool::new(false), AtomicBool::new(false));
    let before = process_cpu_ns();
    let (threads, summary) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !begins.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let threads = load(wakings, on);
            stop.store(true, Ordering::Relaxed);
            threads
        });
        let until = Until { duration: None, stop: &stop };
        let recorded = recorder.to_memory(&until, &mut Begun(&begins));
        stop.store(true, Ordering::Relaxed);
        begins.store(true, Ordering::Relaxed);
        (load.join().expect("the load runs"), recorded)
    });
    let all = process_cpu_ns() - before;
    let (summary, _) = summary.map_err(|error| error.to_string())?;
    if summary.status.lost > 0 {
        return Err(format!("{} events were lost", summary.status.lost));
    }
    Ok((threads, all.saturating_sub(threads), summary.status.events))
}

struct Begun<'a>(&'a AtomicBool);

impl Observer for Begun<'_> {
    fn status(&mut self, _: &Status) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn measure(machine: &Sysroot, tracer: Tracer, wakings: u64, on: u32) -> Result<Cost, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let probes = [Probe::of(TracepointKind::Waking)];
    let mut trace = match tracer {
        Tracer::None => None,
        Tracer::Perf => {
            let tracefs = Tracefs::open(machine).map_err(|error| text(&error))?;
            Some(Trace::open(machine, &tracefs, &probes, None).map_err(|error| text(&error))?)
        }
        Tracer::Bpf => Some(Trace::open_bpf(machine, &probes).map_err(|error| text(&error))?),
    };
    if let Some(trace) = &mut trace {
        trace.enable().map_err(|error| text(&error))?;
    }
    let threads = load(wakings, [on, on]) as f64 / wakings as f64;
    let Some(trace) = &mut trace else { return Ok(Cost { threads, reader: 0.0 }) };
    trace.disable().map_err(|error| text(&error))?;
    let (begun, mut events) = (cpu_ns(), 0u64);
    trace.drain(|event| events += u64::from(!matches!(event.kind, EventKind::Lost { .. })));
    let reader = (cpu_ns() - begun) as f64 / events as f64;
    trace.settle_losses().map_err(|error| text(&error))?;
    let lost: u64 = trace.lost().values().sum();
    // A thread that finds its token there does not sleep, and is not woken.
    if lost > 0 || events < wakings / 2 {
        return Err(format!("{events} of {wakings} events came, {lost} were lost"));
    }
    Ok(Cost { threads, reader })
}

/// The CPU time of two threads that wake each other so many times \[ns\].
fn load(wakings: u64, on: [u32; 2]) -> u64 {
    let half = |mine: Receiver<()>, other: SyncSender<()>, on: u32| {
        move || {
            pin(on);
            let begun = cpu_ns();
            for _ in 0..wakings / 2 {
                if mine.recv().is_err() || other.send(()).is_err() {
                    break;
                }
            }
            cpu_ns() - begun
        }
    };
    let (to_first, first) = sync_channel(1);
    let (to_second, second) = sync_channel(1);
    to_first.send(()).expect("the receiver is there");
    // The last token is left where it is.
    let keep = (to_first.clone(), to_second.clone());
    let first = std::thread::spawn(half(first, to_second, on[0]));
    let threads = [first, std::thread::spawn(half(second, to_first, on[1]))];
    let used = threads.map(|thread| thread.join().expect("the load runs"));
    drop(keep);
    used.iter().sum()
}

fn pin(cpu: u32) {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).expect("an online CPU");
}

fn unpin(cpus: &[u32]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
    sched_setaffinity(None, &set).expect("online CPUs");
}

fn cpu_ns() -> u64 {
    used_ns(ClockId::ThreadCPUTime)
}

fn process_cpu_ns() -> u64 {
    used_ns(ClockId::ProcessCPUTime)
}

fn used_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

fn print(costs: &[(Tracer, Cost)], rounds: u64, wakings: u64) {
    let of = |tracer: Tracer, value: fn(&Cost) -> f64| -> Vec<f64> {
        let mut values: Vec<f64> =
            costs.iter().filter(|(of, _)| *of == tracer).map(|(_, cost)| value(cost)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let base = at(&of(Tracer::None, |cost| cost.threads), 2);
    println!("{rounds} rounds of {wakings} wakeups; without a tracer {base:.0} ns of CPU each");
    println!("| tracer | in the traced threads, ns/event | in the reader, ns/event |");
    println!("|---|---|---|");
    for (tracer, name) in [(Tracer::Perf, "perf's ring buffer"), (Tracer::Bpf, "BPF program and ring buffer")]
    {
        let threads: Vec<f64> = of(tracer, |cost| cost.threads).iter().map(|ns| ns - base).collect();
        let reader = of(tracer, |cost| cost.reader);
        println!("| {name} | {} | {} |", range(&threads), range(&reader));
    }
}

/// A quartile of sorted values.
fn at(values: &[f64], quarter: usize) -> f64 {
    values.get(values.len().saturating_sub(1) * quarter / 4).copied().unwrap_or(f64::NAN)
}

fn range(values: &[f64]) -> String {
    format!("{:.0} ({:.0} to {:.0})", at(values, 2), at(values, 1), at(values, 3))
}
