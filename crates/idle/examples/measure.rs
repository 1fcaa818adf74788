//! Prints what a sleep costs here, and the halt cost at several prices of latency: `cargo run --release -p
//! dwell-idle --example measure`

use dwell_idle::{Halt, Nanos, Price};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let halt = Halt::measure()?;
    let us = |time: Nanos| time.get() as f64 / 1e3;
    println!("{:>12} {:>12} {:>12} {:>12}", "idle for", "sleeper", "waker", "latency");
    for sleep in halt.sleeps() {
        let [after, sleeper, waker, latency] =
            [sleep.after, sleep.sleeper, sleep.waker, sleep.latency].map(us);
        println!("{after:>9.0} us {sleeper:>9.1} us {waker:>9.1} us {latency:>9.1} us");
    }
    for percent in [0, 100, 1_000] {
        println!("halt cost at a price of {percent} %: {:.1} us", us(halt.cost(Price::percent(percent))));
    }
    Ok(())
}
