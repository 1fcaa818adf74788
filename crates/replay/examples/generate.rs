//! Writes a recording of any length, to measure time and memory on: a mixture of exponential and bimodal idle times on
//! a few idlers, the same for the same number of episodes.
//!
//! `cargo run --release -p dwell-replay --example generate -- EPISODES FILE [IDLERS]`

use dwell_policy::Layer;
use dwell_recording::{Clock, Episode, IdleIncludes, Metadata, Writer};
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (episodes, file, idlers) = match args.as_slice() {
        [episodes, file] => (episodes.parse()?, PathBuf::from(file), 4),
        [episodes, file, idlers] => (episodes.parse()?, PathBuf::from(file), idlers.parse()?),
        _ => return Err("usage: generate EPISODES FILE [IDLERS]".into()),
    };
    generate(episodes, idlers, &file)
}

fn generate(episodes: u64, idlers: usize, file: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let mut metadata = Metadata::new(Layer::Host);
    metadata.idle_includes = IdleIncludes::Event;
    metadata.clock = Clock::Unknown;
    metadata.source.tool = "generate".to_owned();
    let names: Vec<String> = (0..idlers.max(1)).map(|idler| format!("vcpu{idler}")).collect();
    let mut clocks = vec![0u64; names.len()];
    let mut writer = Writer::create(file, metadata)?;
    let mut random = XorShift(0x9e37_79b9_7f4a_7c15);
    for _ in 0..episodes {
        let idler = random.below(names.len() as u64);
        let idle_ns = random.idle_ns();
        let busy_ns = 1_000 + random.below(9_000) as u64;
        writer.push(&Episode::new(&names[idler], clocks[idler], idle_ns))?;
        clocks[idler] += idle_ns + busy_ns;
    }
    let contents = writer.finish()?;
    println!("{}: {} episodes of {} idlers", file.display(), contents.episodes, contents.idlers.len());
    Ok(())
}

/// Marsaglia's xorshift64.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> usize {
        usize::try_from((u128::from(self.next()) * u128::from(n)) >> 64).unwrap_or(0)
    }

    /// Half exponential with a mean of 100 us, half bimodal: 8 or 300 us, give or take a quarter.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn idle_ns(&mut self) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        match self.next() % 4 {
            0 | 1 => (-(1.0 - uniform).ln() * 100_000.0) as u64,
            2 => (8_000.0 * (0.75 + uniform / 2.0)) as u64,
            _ => (300_000.0 * (0.75 + uniform / 2.0)) as u64,
        }
    }
}
