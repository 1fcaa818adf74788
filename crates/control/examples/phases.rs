//! One vCPU whose load changes every three seconds, under KVM's defaults and under control.
//!
//! `cargo run -p dwell-control --example phases`

use dwell_control::{Episode, Observation, Simulation, Terms};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let halt_cost = Nanos::from_micros(20);
    let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
    let mut simulation = Simulation::new(originals, Terms::at(halt_cost), Observation::Episodes, 1, &[])?;
    let mut now_ns = 0;
    while now_ns < 12_000_000_000 {
        let idle_ns = if now_ns / 3_000_000_000 % 2 == 0 { 12_000 } else { 150_000 };
        simulation.episode(0, now_ns, Episode::of(idle_ns))?;
        now_ns += idle_ns + 5_000;
    }
    let simulated = simulation.finish();
    for change in &simulated.changes {
        println!("{:.2} s: {}", change.at_ns as f64 / 1e9, change.to);
    }
    let seconds = |counts: dwell_replay::Counts| counts.cost_ns(halt_cost) as f64 / 1e9;
    println!(
        "originals {:.2} s, controlled {:.2} s",
        seconds(simulated.originals),
        seconds(simulated.controlled)
    );
    Ok(())
}
