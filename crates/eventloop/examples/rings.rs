//! A thread rings a loop, each time a while after it was heard: `cargo run --release -p dwell-eventloop
//! --example rings -- [GAP_US]`

use dwell_eventloop::{Bell, Idler, Loop};
use dwell_idle::{Halt, Price};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const RINGS: u64 = 20_000;
    let gap = Duration::from_micros(std::env::args().nth(1).map_or(Ok(10), |us| us.parse())?);
    let heard = AtomicU64::new(0);
    let (bell, doorbell) = Bell::new(|| {
        heard.fetch_add(1, Ordering::Release);
    })?;
    let mut looped = Loop::new(Idler::new(Halt::measure()?.leader(Price::default())))?;
    looped.add(bell)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for ring in 0..RINGS {
                let until = Instant::now() + gap;
                while heard.load(Ordering::Acquire) < ring || Instant::now() < until {
                    std::hint::spin_loop();
                }
                doorbell.ring();
            }
        });
        looped.run_until(|| heard.load(Ordering::Relaxed) == RINGS)
    })?;
    println!("{:?}", looped.idler().totals());
    Ok(())
}
