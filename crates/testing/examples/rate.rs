//! One replay of one family of settings over one stream, for a look at the engine with other tools:
//!
//! `cargo run --release -p dwell-testing --features engine --example rate -- --isa AVX2 --family 'host,
//! apart' --stream exponential`
//!
//! Families and streams are those of the benchmark `engine` whose names contain what is asked for; all by default. It
//! prints episodes times settings, and the rate. To learn how many instructions each of them takes, divide what
//! callgrind says was "Collected" by what is printed:
//!
//! `valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*Stream*replay*'
//! target/release/examples/rate …`

use dwell_policy::Layer;
use dwell_replay::engine::Isa;
use dwell_testing::engine::{Method, families, streams};

/// Any error, for the end of the program.
type Failure = Box<dyn std::error::Error>;

struct Arguments {
    isa: Isa,
    family: String,
    stream: String,
    times: u32,
}

fn arguments() -> Result<Arguments, Failure> {
    let mut asked = Arguments { isa: Isa::best(), family: String::new(), stream: String::new(), times: 1 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value =
            arguments.next().ok_or("usage: rate [--isa NAME] [--family NAME] [--stream NAME] [--times N]")?;
        match argument.as_str() {
            "--isa" => {
                let found = Isa::available().iter().find(|isa| isa.name().eq_ignore_ascii_case(&value));
                asked.isa = *found.ok_or_else(|| format!("this CPU has no {value}"))?;
            }
            "--family" => asked.family = value,
            "--stream" => asked.stream = value,
            "--times" => asked.times = value.parse()?,
            _ => return Err(format!("no such option: {argument}").into()),
        }
    }
    Ok(asked)
}

fn main() -> Result<(), Failure> {
    let asked = arguments()?;
    let method = Method::new(Some(asked.isa), 1);
    let streams = streams();
    for family in [Layer::Host, Layer::Guest].into_iter().flat_map(families) {
        if !family.name.contains(&asked.family) {
            continue;
        }
        for stream in streams.iter().filter(|stream| stream.name.contains(&asked.stream)) {
            let mut took: Vec<_> = (0..asked.times).map(|_| method.replay(&family.rules, stream)).collect();
            took.sort();
            let pairs = stream.episodes * family.rules.len() as u64;
            let rate = pairs as f64 / took[took.len() / 2].as_secs_f64() / 1e9;
            println!("{:16} {:28} {:10} {pairs:>12} {rate:8.2} G/s", family.name, stream.name, method.name);
        }
    }
    Ok(())
}
