//! Prints what never polling, KVM's default and the optimum cost on a recording:
//!
//! `cargo run --release -p dwell-replay --example cost -- FILE`

use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::Reader;
use dwell_replay::{RecordingSource, Rule, replay};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: cost FILE")?;
    let source = RecordingSource::new(Reader::open(path.as_ref())?, false);
    let rules = [Rule::NEVER, Rule::Layer(Setting::defaults(Layer::Host, Version::new(6, 18)))];
    let halt_cost = Nanos::from_micros(20);
    let replayed = replay(&source, &rules, halt_cost, &|_| ())?;
    for (rule, counts) in rules.iter().zip(&replayed.counts) {
        println!("{}: {} ns in {} halts", rule.name(), counts.cost_ns(halt_cost), counts.halts);
    }
    println!("optimum: {} ns in {} halts", replayed.optimum.cost_ns(halt_cost), replayed.optimum.halts);
    Ok(())
}
