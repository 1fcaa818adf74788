//! What a sleep of 100 us costs beside spinning as long, as the shortest whole experiment:
//!
//! `cargo run --release -p dwell-lab --example campaign -- [FILE]`
//!
//! writes every sample to FILE (Parquet), if one is named.

use dwell_lab::gaps::{GapSpec, Gaps};
use dwell_lab::host::{Cores, Pinned, Realtime, Tsc, TscClock};
use dwell_lab::sampled::latency;
use dwell_lab::samples;
use dwell_machine::load::Load;
use dwell_machine::threads::own_cpu_time;
use dwell_policy::Nanos;
use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Figure, Unit};
use std::error::Error;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const WAKES: usize = 500;

/// How the gaps are waited for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Sleeping,
    Spinning,
}

fn main() -> Result<(), Box<dyn Error>> {
    let gaps = Gaps::open("exponential:100us".parse::<GapSpec>()?, Nanos::from_micros(1_000))?;
    let _pinned = Pinned::to(Cores::choose(1)?.vcpus[0])?;
    let realtime = Realtime::ask(10);
    realtime.refused().iter().for_each(|why| eprintln!("{why}"));
    let clock = TscClock::calibrate(None, Duration::from_millis(100))?;

    let plan = CampaignOptions { budget: Duration::from_secs(20), ..CampaignOptions::default() };
    let arms = Arms::new("sleep", Wait::Sleeping).arm("spin", Wait::Spinning);
    let figures = [Figure::of_block("cpu_ns_per_wakeup", Unit::Nanos).within(0.05)];
    let figures = figures.into_iter().chain(latency());
    let seed = plan.seed;
    let campaign = Campaign::new("sleep", arms, figures, plan)?;
    let record = campaign.run(&mut Load::open()?, &AtomicBool::new(false), &mut |_| (), |turn| {
        let begin = own_cpu_time();
        let wait = |gap: &Nanos| late(&clock, *turn.setting, *gap);
        let late_ns: Vec<u64> = gaps.sequence(seed, turn.sequence, WAKES).gaps.iter().map(wait).collect();
        let cpu_ns = own_cpu_time().saturating_sub(begin).get() as f64;
        Ok::<_, std::convert::Infallible>(
            Block::new(late_ns).figure("cpu_ns_per_wakeup", cpu_ns / WAKES as f64),
        )
    })?;

    let findings = record.results();
    println!("{} rounds, ended {:?}, {:?}", findings.rounds, findings.ended, findings.gating);
    for row in &findings.rows {
        let ratio = row
            .ratio()
            .map_or_else(String::new, |r| format!("× {:.3} [{:.3}, {:.3}]", r.value, r.low, r.high));
        let value = row.value.map_or(f64::NAN, |value| value.value);
        println!("{:<16} {:<12} {value:>10.0} ns  {ratio}", row.figure, row.arm);
    }
    findings.warnings.iter().for_each(|warning| println!("{warning}"));
    if let Some(file) = std::env::args().nth(1) {
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let about =
            samples::About { command, gaps: Some(gaps.spec().to_string()), ..samples::About::default() };
        samples::write(Path::new(&file), &record, &about)?;
    }
    Ok(())
}

/// Waits for so long; how much longer it took \[ns\].
fn late(clock: &TscClock, wait: Wait, gap: Nanos) -> u64 {
    let due = clock.after(Tsc::now(), gap);
    match wait {
        Wait::Sleeping => std::thread::sleep(Duration::from_nanos(gap.get())),
        Wait::Spinning => {
            due.spin_until();
        }
    }
    clock.between(due, Tsc::now()).get()
}
