//! Which idle driver costs least: a table out of ftrace texts of the same gaps under several drivers and policies.
//!
//! `cargo run -p dwell-replay --example idle_drivers -- HALT_COST_NS FOLDER...`
//!
//! A folder has files `ARM-PATTERN-ROUND.txt` with `power:cpu_idle` of one CPU and, for the arms of dwell_idle,
//! `dwell_idle:dwell_idle_episode`; the chapter on the idle driver has the script that makes them. The cost
//! of an arm in a round is the time polled plus the halt cost for each halt; the optimum of its episodes is
//! the sum of min(length, halt cost), and `best fixed` what the best fixed window in hindsight would have
//! cost in them, as a multiple of the optimum. Where gaps are independent of each other and of the work
//! before, no policy that does not know the next one costs less in the mean than the best window that knows
//! their distribution; `best fixed` knows even the gaps themselves, so that it is below that. `cost / best
//! fixed` is how far an arm is from it, round by round. Intervals are of the mean over the rounds, at 95 %.

use dwell_stats::bootstrap::Bootstrap;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

/// What a CPU did in one round.
#[derive(Clone, Debug, Default)]
struct Round {
    lengths: Vec<u64>,
    polled_ns: u64,
    halts: u64,
}

impl Round {
    fn cost_ns(&self, halt_cost_ns: u64) -> u64 {
        self.polled_ns + self.halts * halt_cost_ns
    }

    fn optimum_ns(&self, halt_cost_ns: u64) -> u64 {
        self.lengths.iter().map(|length| *length.min(&halt_cost_ns)).sum()
    }

    /// What the best window of all would have cost: 0, or the length of an episode.
    fn best_fixed_ns(&self, halt_cost_ns: u64) -> u64 {
        let mut lengths = self.lengths.clone();
        lengths.sort_unstable();
        let mut left = lengths.len() as u64;
        let (mut best, mut within) = (left * halt_cost_ns, 0);
        for window in lengths {
            within += window;
            left -= 1;
            best = best.min(within + left * (window + halt_cost_ns));
        }
        best
    }

    fn per_episode(&self, sum: f64) -> f64 {
        sum / self.lengths.len() as f64
    }

    fn add(&mut self, length_ns: u64, polled_ns: u64, halted: bool) {
        self.lengths.push(length_ns);
        self.polled_ns += polled_ns;
        self.halts += u64::from(halted);
    }
}

/// The number after `name` and `=`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

/// An event of ftrace's text.
struct Event<'a> {
    time_ns: u64,
    /// Whether a task was to run (`N` among the flags).
    needs_resched: bool,
    name: &'a str,
    text: &'a str,
}

fn event(line: &str) -> Option<Event<'_>> {
    let (_, rest) = line.split_once("] ")?;
    let mut words = rest.splitn(4, ": ");
    let (flags, time) = words.next()?.split_once(' ')?;
    let (name, text) = (words.next()?, words.next()?);
    let (seconds, micros) = time.trim().split_once('.')?;
    let time_ns = seconds.parse::<u64>().ok()? * 1_000_000_000 + micros.parse::<u64>().ok()? * 1_000;
    Some(Event { time_ns, needs_resched: flags.contains('N'), name, text })
}

/// dwell_idle reports each episode: the window, and the length with the wakeup.
fn of_dwell_idle(trace: &str) -> Option<Round> {
    let mut round = Round::default();
    for Event { name, text, .. } in trace.lines().filter_map(event) {
        if name == "dwell_idle_episode" {
            let (idle, window) = (field(text, "idle_ns")?, field(text, "window_ns")?);
            let halted = field(text, "halted")? == 1;
            round.add(idle, idle.min(window), halted);
        }
    }
    Some(round)
}

/// haltpoll polls in state 0 and halts in state 1. A poll that was left without a task to run belongs to the
/// halt after it.
fn of_haltpoll(trace: &str) -> Option<Round> {
    const LEFT: u64 = u32::MAX as u64;
    let mut round = Round::default();
    let mut failed_poll_ns = 0;
    let mut entered: Option<(u64, u64)> = None;
    for event in trace.lines().filter_map(event).filter(|event| event.name == "cpu_idle") {
        let state = field(event.text, "state")?;
        if state != LEFT {
            entered = Some((state, event.time_ns));
        } else if let Some((state, since)) = entered.take() {
            let length = event.time_ns - since;
            match (state, event.needs_resched) {
                (0, true) => round.add(failed_poll_ns + length, failed_poll_ns + length, false),
                (0, false) => {
                    failed_poll_ns += length;
                    continue;
                }
                _ => round.add(failed_poll_ns + length, failed_poll_ns, true),
            }
            failed_poll_ns = 0;
        }
    }
    Some(round)
}

type Rounds = BTreeMap<(String, String), BTreeMap<u32, Round>>;

fn read(folder: &Path, rounds: &mut Rounds) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let parts: Vec<&str> = stem.split('-').collect();
        let [arm, pattern, number] = parts[..] else { continue };
        let trace = std::fs::read_to_string(&path)?;
        let round = match arm {
            "haltpoll" | "tuned" => of_haltpoll(&trace),
            _ => of_dwell_idle(&trace),
        };
        let round = round.filter(|round| !round.lengths.is_empty());
        let round = round.ok_or_else(|| format!("{}: no episodes that can be read", path.display()))?;
        let key = (pattern.to_owned(), arm.to_owned());
        rounds.entry(key).or_default().insert(number.parse()?, round);
    }
    Ok(())
}

fn interval(values: &[f64]) -> String {
    match Bootstrap::RECORDING.mean(values) {
        Some(mean) => format!("{:.3} ({:.3} to {:.3})", mean.value, mean.low, mean.high),
        None => "-".to_owned(),
    }
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count() as f64
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (halt_cost, folders) = arguments.split_first().ok_or("usage: idle_drivers HALT_COST_NS FOLDER...")?;
    let halt_cost_ns: u64 = halt_cost.parse()?;
    let mut rounds = Rounds::new();
    for folder in folders {
        read(Path::new(folder), &mut rounds)?;
    }
    println!(
        "| gaps | arm | rounds | cost / optimum | best fixed / optimum | cost / best fixed | cost / cost of haltpoll | halts per \
         episode | polling us per episode |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for ((pattern, arm), of) in &rounds {
        let over = |cost: fn(&Round, u64) -> u64| -> Vec<f64> {
            let optimum = |round: &Round| round.optimum_ns(halt_cost_ns) as f64;
            of.values().map(|round| cost(round, halt_cost_ns) as f64 / optimum(round)).collect()
        };
        let (costs, best_fixed) = (over(Round::cost_ns), over(Round::best_fixed_ns));
        let from_best: Vec<f64> = costs.iter().zip(&best_fixed).map(|(cost, best)| cost / best).collect();
        let haltpoll = rounds.get(&(pattern.clone(), "haltpoll".to_owned()));
        let paired: Vec<f64> = of
            .iter()
            .filter_map(|(number, r)| Some((r, haltpoll?.get(number)?)))
            .map(|(r, theirs)| r.cost_ns(halt_cost_ns) as f64 / theirs.cost_ns(halt_cost_ns) as f64)
            .collect();
        let halts = mean(of.values().map(|r| r.per_episode(r.halts as f64)));
        let polled = mean(of.values().map(|r| r.per_episode(r.polled_ns as f64 / 1e3)));
        println!(
            "| {pattern} | {arm} | {} | {} | {} | {} | {} | {halts:.2} | {polled:.1} |",
            of.len(),
            interval(&costs),
            interval(&best_fixed),
            interval(&from_best),
            if paired.is_empty() || arm == "haltpoll" { "1".to_owned() } else { interval(&paired) },
        );
    }
    Ok(())
}
