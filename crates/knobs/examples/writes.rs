//! Prints the writes that lead from the defaults of Linux 6.18 to another value, and writes nothing:
//!
//! `cargo run -p dwell-knobs --example writes -- guest_halt_poll_ns 50000`

use dwell_knobs::plan;
use dwell_policy::Layer;
use dwell_policy::param::{Setting, index_of};
use dwell_policy::version::Version;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const USAGE: &str = "usage: writes PARAMETER VALUE";
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or(USAGE)?;
    let value = arguments.next().ok_or(USAGE)?.parse()?;
    let layer = if index_of(Layer::Guest, &name).is_some() { Layer::Guest } else { Layer::Host };
    let present = Setting::defaults(layer, Version::new(6, 18));
    let mut wanted = present;
    wanted.set(&name, value)?;
    for write in plan::writes(&present, &wanted, None) {
        println!("{}: {} -> {}", write.place, write.from, write.to);
    }
    Ok(())
}
