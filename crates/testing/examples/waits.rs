//! Waits of the guard, or rounds of the event loop, for a look at them with other tools:
//!
//! `cargo run --release -p dwell-testing --features waits --example waits -- leader 100000`
//!
//! `.ci/instructions` runs this under callgrind and prints the instructions of one wait that halts at once
//! (reading the clock left out), and of one round of looks.

use dwell_eventloop::{Idler, Loop};
use dwell_idle::halt::Sleep;
use dwell_idle::policy::reference::{Always, Never};
use dwell_idle::{Halt, Nanos, Policy, Price};
use dwell_testing::waits::{Ends, Nothing, Steps, Word};
use std::hint::black_box;
use std::io;

#[inline(never)]
fn measured_waits(policy: impl Policy, count: u64) {
    let mut idler = Idler::with_clock(policy, Steps::of(500_000));
    for _ in 0..count {
        let mut idle = black_box(&mut idler).idle(None);
        if !idle.polls() {
            black_box(idle.halts());
        }
        idle.wakes(&[1]);
    }
    black_box(idler.totals());
}

#[inline(never)]
fn measured_rounds(looped: &mut Loop<'_, Always, Steps, (), Nothing>) -> io::Result<usize> {
    looped.step().map(|step| black_box(step.ran))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const USAGE: &str = "usage: waits never|leader|SOURCES COUNT";
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().ok_or(USAGE)?;
    let count = arguments.next().ok_or(USAGE)?.parse()?;
    let us = |us: u64| Nanos(us * 1_000);
    let halt = Halt::constant(Sleep { after: us(50), sleeper: us(16), waker: us(8), latency: us(15) });
    match what.as_str() {
        "never" => measured_waits(Never, count),
        "leader" => measured_waits(halt.leader(Price::default()), count),
        sources => {
            let idler = Idler::with_clock(Always, Steps::of(100));
            let mut looped = Loop::over(idler, Nothing);
            looped.push(Ends::after(count));
            for _ in 0..sources.parse::<u32>().map_err(|_| USAGE)? {
                looped.push(Word::default());
            }
            measured_rounds(&mut looped)?;
        }
    }
    Ok(())
}
