//! Whether the second column of numbers differs from the first, with 95 % intervals.
//!
//! Reads one round a line, two numbers with a space between, from stdin. A round is what resembles itself:
//! both numbers were measured one shortly after the other, so they are compared within it.
//!
//! `seq 20 | awk '{ print 100 + $1 % 3, 90 + $1 % 4 }' | cargo run -p dwell-stats --example compare`

use dwell_stats::{Bootstrap, Interval, MIN_ROUNDS};
use std::error::Error;
use std::io::BufRead;

fn main() -> Result<(), Box<dyn Error>> {
    let mut rounds = vec![];
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (before, after) = line.trim().split_once(' ').ok_or("a line has not two numbers")?;
        rounds.push((before.parse::<f64>()?, after.trim().parse::<f64>()?));
    }
    let bootstrap = Bootstrap { confidence: 0.95, resamples: 10_000, seed: 1 };
    let differences: Vec<f64> = rounds.iter().map(|(before, after)| after - before).collect();
    let Interval { low, value, high } = bootstrap.mean(&differences).ok_or("there are no rounds")?;
    println!("second - first: {value} [{low}, {high}] in {} rounds", rounds.len());
    match rounds.len() {
        MIN_ROUNDS.. if low > 0.0 || high < 0.0 => println!("they differ"),
        MIN_ROUNDS.. => println!("no difference is seen: the interval includes 0"),
        _ => println!("too few rounds; {MIN_ROUNDS} are needed"),
    }
    Ok(())
}
