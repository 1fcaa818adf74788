//! What does it cost to record what woke event loops, beside their waits?
//!
//! ```text
//! cargo bench -p dwell-capture --bench loops
//! ```
//! Two threads on CPUs of their own pass a byte to and fro, and wait for it in `poll`. Each round runs them without a recorder,
//! under one of their waits, and under one of waits and causes, in an order that turns around from round to round. Per
//! wait, as medians over the rounds with their range:
//!
//! * events: what was read from the kernel;
//! * in the thread: its CPU time, in which the kernel writes the events;
//! * in the recorder: the CPU time of its thread.
//!
//! Causes cost one event more for a wait that sleeps. It would be surprising if they cost more than the waits.

mod common;

use common::{own_cpu_ns, pin, range, recorded, rounds};
use dwell_capture::{Recorder, Target};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::atomic::AtomicBool;

const WAITS: u32 = 20_000;
const NAMES: [&str; 2] = ["dwell-loop-a", "dwell-loop-b"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    Nothing,
    Waits,
    WaitsAndCauses,
}

/// Per wait.
struct Cost {
    events: f64,
    thread_ns: f64,
    recorder_ns: f64,
}

fn main() {
    let forms = [Recorded::Nothing, Recorded::Waits, Recorded::WaitsAndCauses];
    let mut costs: Vec<(Recorded, Cost)> = vec![];
    for round in 0..rounds() {
        let mut order = forms;
        if round % 2 == 1 {
            order.reverse();
        }
        for recorded in order {
            match measure(recorded) {
                Ok(cost) => costs.push((recorded, cost)),
                Err(error) => return println!("SKIP {error}: loops"),
            }
        }
    }
    println!("{WAITS} waits of each thread; medians of {} rounds, with their range", rounds());
    println!("| recorded | events/wait | in the thread, ns/wait | in the recorder, ns/wait |");
    println!("|---|---|---|---|");
    for form in forms {
        let of = |value: fn(&Cost) -> f64, digits| {
            let of_form = costs.iter().filter(|(recorded, _)| *recorded == form);
            range(of_form.map(|(_, cost)| value(cost)).collect(), digits)
        };
        let (events, thread) = (of(|cost| cost.events, 1), of(|cost| cost.thread_ns, 0));
        println!("| {form:?} | {events} | {thread} | {} |", of(|cost| cost.recorder_ns, 0));
    }
}

fn measure(what: Recorded) -> Result<Cost, String> {
    let target = |causes| {
        let comm = NAMES.map(str::to_owned).to_vec();
        Recorder::open(Target::Thread { pid: None, comm, causes }, None).map_err(|error| error.to_string())
    };
    let recorder = match what {
        Recorded::Nothing => None,
        Recorded::Waits => Some(target(false)?),
        Recorded::WaitsAndCauses => Some(target(true)?),
    };
    let (thread_ns, events, recorder_ns) = recorded(recorder, &AtomicBool::new(false), load);
    let each = |number: u64| number as f64 / f64::from(2 * WAITS);
    Ok(Cost { events: each(events), thread_ns: each(thread_ns), recorder_ns: each(recorder_ns) })
}

/// The CPU time of both threads \[ns\].
fn load() -> u64 {
    let ((a, mut to_a), (b, to_b)) = (pipe().expect("a pipe"), pipe().expect("a pipe"));
    to_a.write_all(&[1]).expect("the pipe is open");
    let spawn = |cpu: usize, from, to| {
        let named = std::thread::Builder::new().name(NAMES[cpu].to_owned());
        named.spawn(move || pass(cpu, from, to)).expect("a thread")
    };
    let threads = [spawn(0, a, to_b), spawn(1, b, to_a)];
    threads.map(|thread| thread.join().expect("it passes bytes")).into_iter().sum()
}

fn pass(cpu: usize, mut from: PipeReader, mut to: PipeWriter) -> u64 {
    pin(None, cpu);
    for _ in 0..WAITS {
        poll(&mut [PollFd::new(&from, PollFlags::IN)], None).expect("poll");
        from.read_exact(&mut [0]).expect("a byte");
        // The other one has ended where this was the last.
        let _ = to.write_all(&[1]);
    }
    own_cpu_ns()
}
