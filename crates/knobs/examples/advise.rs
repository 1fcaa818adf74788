//! From a recording to advice, and from advice to the lines that set it and to a plan, without the program.
//!
//! `cargo run -p dwell-knobs --example advise -- recordings/guest-memcached_poisson10k.parquet`

use dwell_knobs::lines::{self, Lines};
use dwell_knobs::plan::{Plan, RecordingFacts};
use dwell_machine::Sysroot;
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use dwell_recording::Reader;
use dwell_replay::advice::{Goal, Worth};
use dwell_replay::tune::{Task, tune};
use dwell_replay::{RecordingSource, Versions, WakeupLatency, grid};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("name a recording in Parquet")?;
    let reader = Reader::open(Path::new(&file))?;
    let facts = RecordingFacts::of(&file, &reader)?;
    let metadata = reader.metadata().clone();
    let halt_cost = Nanos::from_micros(20);
    let wakeup_latency =
        WakeupLatency::of_recording(&reader)?.unwrap_or_else(|| WakeupLatency::constant(halt_cost));

    // KVM halt polling as it is by default in the recorded kernel.
    let version = Versions::of_recording(&metadata).of(Layer::Host);
    let present = Setting::defaults(Layer::Host, version);
    let advice = tune(&Task {
        source: &RecordingSource::new(reader, false),
        present,
        candidates: &grid::settings(Layer::Host, version),
        goal: Goal::LeastCost,
        halt_cost,
        wakeup_latency: &wakeup_latency,
        worth_a_change: Worth::default(),
        decided: None,
        progress: &|_| {},
    })?;
    println!("{}", advice.words());
    if let Some(setting) = advice.recommended() {
        for Lines { about, lines } in
            lines::for_recording(&setting, &present, &metadata, &Sysroot::of_this_machine())
        {
            println!("# {about}\n{}", lines.join("\n"));
        }
    }

    // The recording does not have the setting in force, so the plan is from the default.
    match Plan::of(&advice, &metadata, false, facts, None) {
        Some(plan) => println!("{}", plan.to_toml()?),
        None => println!("nothing to apply"),
    }
    Ok(())
}
