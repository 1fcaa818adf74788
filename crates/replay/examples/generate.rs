//! Writes a recording of any length in bounded memory, to try replay and `dwell tune` on:
//!
//! `cargo run --release -p dwell-replay --example generate -- --episodes 50000000 -o FILE`
//!
//! Four idlers take turns in stretches of a thousand episodes. Two in three episodes are exponential with mean 100 us;
//! the others are short (mean 15 us) three times in four, and long (mean 2 ms) otherwise. The same number of episodes
//! gives the same file.

use dwell_recording::{Episode, Layer, Metadata, Writer};
use dwell_stats::SplitMix64;
use std::path::PathBuf;

const IDLERS: [&str; 4] = ["cpu0", "cpu1", "cpu2", "cpu3"];
const STRETCH: u64 = 1_000;

/// Any error, for the end of the program.
type Failure = Box<dyn std::error::Error>;

/// The length of an episode \[ns\].
fn idle_ns(random: &mut SplitMix64) -> u64 {
    match random.below(12) {
        0..8 => random.exponential(100e3),
        8..11 => random.exponential(15e3),
        _ => random.exponential(2e6),
    }
}

fn arguments() -> Result<(u64, PathBuf), Failure> {
    let (mut episodes, mut file) = (1_000_000, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or("usage: generate --episodes N -o FILE")?;
        match argument.as_str() {
            "--episodes" => episodes = value.parse()?,
            "-o" => file = Some(PathBuf::from(value)),
            _ => return Err(format!("no such option: {argument}").into()),
        }
    }
    Ok((episodes, file.ok_or("-o FILE is missing")?))
}

fn main() -> Result<(), Failure> {
    let (episodes, file) = arguments()?;
    let mut writer = Writer::create(&file, Metadata::new(Layer::Host))?;
    let mut random = SplitMix64::new(1);
    let mut now_ns = [0u64; IDLERS.len()];
    for episode in 0..episodes {
        let idler = usize::try_from(episode / STRETCH % IDLERS.len() as u64)?;
        let idle_ns = idle_ns(&mut random);
        writer.push(&Episode::new(IDLERS[idler], now_ns[idler], idle_ns))?;
        // Busy for a while after each.
        now_ns[idler] += idle_ns + random.exponential(20e3);
    }
    let contents = writer.finish()?;
    println!("{}: {} episodes of {} idlers", file.display(), contents.episodes, contents.idlers.len());
    Ok(())
}
