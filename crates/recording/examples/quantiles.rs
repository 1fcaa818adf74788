//! Prints the idle quantiles of each idler of a recording:
//!
//! `cargo run -p dwell-recording --example quantiles -- FILE`

use dwell_recording::Reader;
use dwell_recording::summary::Summary;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: quantiles FILE")?;
    let summary = Summary::of(&Reader::open(path.as_ref())?)?;
    for idler in &summary.idlers {
        println!("{}: {} episodes", idler.name, idler.stats.episodes);
        for quantile in &idler.stats.quantiles {
            println!("  {:>7.2} % of them last at most {} ns", quantile.quantile * 100.0, quantile.idle_ns);
        }
    }
    Ok(())
}
