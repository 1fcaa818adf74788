//! What each part of the policy `leader` gains, and what parts that it does not have would gain: cost / optimum,
//! geometric mean over the recordings on which it was fitted and over the others, in brackets the worst:
//!
//! `cargo run --release -p dwell-lab --example leader_ablation -- recordings [second-half]`
//!
//! Variants are a plain model of the policy: rows of any size, in 64 bits. The first line is the policy itself. With
//! `second-half` all learn from the first episode on, and the second half of the episodes is counted.

use dwell_lab::study::{FITTED, Summary};
use dwell_policy::account::Account;
use dwell_policy::leader::Leader;
use dwell_policy::{Nanos, Outcome, Policy};
use dwell_recording::Reader;
use dwell_replay::{RecordingSource, Source};
use std::path::Path;

/// Busy time before, and length of, each episode \[ns\].
type Episodes = Vec<(u64, u64)>;

/// Upper limits of classes in sixteenths of the halt cost.
type Limits = &'static [u64];
const BUSY: Limits = &[4, 6, 8, 12, 16, 24, 32, 48, 64];
const OCTAVES: Limits = &[4, 8, 16, 32];
const LAST: Limits = &[8, 48];
const LAST_FINE: Limits = &[4, 8, 16, 48];
const BEFORE: Limits = &[16];
const RUN: Limits = &[1, 3];
const NONE: Limits = &[];

#[derive(Clone)]
struct Table {
    busy: Limits,
    last: Limits,
    before: Limits,
    /// The busy time before the last episode.
    last_busy: Limits,
    /// Episodes shorter than the halt cost since the last longer one.
    run: Limits,
    /// Its sums count for one in so many.
    share: u64,
}

const TODAY: Table = Table { busy: BUSY, last: LAST, before: BEFORE, last_busy: NONE, run: NONE, share: 1 };
const COMMON: Table = Table { busy: NONE, last: NONE, before: NONE, share: 16, ..TODAY };

struct Variant {
    tables: Vec<Table>,
    /// Each episode an old one counts one in so many less.
    memory: u64,
    /// Windows between none and the longest, in sixteenths of the halt cost.
    windows: Vec<u64>,
}

impl Variant {
    fn of(tables: impl IntoIterator<Item = Table>) -> Variant {
        Variant { tables: tables.into_iter().collect(), memory: 128, windows: vec![3, 6, 10, 16, 24, 32] }
    }
}

/// A row of a table: the classes of a moment.
type Class = [usize; 5];

impl Variant {
    /// Cost over the optimum's.
    fn cost(&self, episodes: &Episodes, first: usize, halt_cost: u64) -> f64 {
        let mut windows = vec![0, 1];
        windows.extend(self.windows.iter().map(|sixteenths| halt_cost * sixteenths / 16));
        let class = |value: u64, limits: Limits| limits.iter().filter(|limit| value > **limit).count();
        let sixteenths = |time: u64| (16 * time).div_ceil(halt_cost);
        let mut tables = vec![std::collections::BTreeMap::<Class, Vec<u64>>::new(); self.tables.len()];
        let mut account = Account::new(Nanos(halt_cost));
        let (mut last, mut before, mut last_busy, mut run) = (0, 0, 0, 0);
        let (mut cost, mut optimum) = (0, 0);
        for (number, &(busy, idle)) in episodes.iter().enumerate() {
            let class_in = |table: &Table| {
                [
                    class(sixteenths(busy), table.busy),
                    class(sixteenths(last), table.last),
                    class(sixteenths(before), table.before),
                    class(sixteenths(last_busy), table.last_busy),
                    class(run, table.run),
                ]
            };
            let rows: Vec<Class> = self.tables.iter().map(class_in).collect();
            let mut sums = vec![0; windows.len()];
            for ((table, sums_of), row) in self.tables.iter().zip(&mut tables).zip(&rows) {
                let own = sums_of.entry(*row).or_insert_with(|| vec![0; windows.len()]);
                sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += *own / table.share);
            }
            let least = (0..windows.len()).min_by_key(|place| sums[*place]).unwrap_or(0);
            let window = account.allow(Nanos(busy), Nanos(windows[least]));
            // No recording has losses.
            assert!(account.settle(window, &Outcome::of(Nanos(idle))));
            if number >= first {
                cost += if idle <= window.get() { idle } else { window.get() + halt_cost };
                optimum += idle.min(halt_cost);
            }
            let length = idle.min(8 * halt_cost);
            for (sums, row) in tables.iter_mut().zip(&rows) {
                for (sum, window) in sums.get_mut(row).into_iter().flatten().zip(&windows) {
                    *sum = *sum - *sum / self.memory
                        + if length <= *window { length } else { window + halt_cost };
                }
            }
            run = if idle > halt_cost { 0 } else { run + 1 };
            (before, last, last_busy) = (last, idle, busy);
        }
        cost as f64 / optimum as f64
    }
}

/// Cost over the optimum's of the policy itself.
fn cost_of_leader(episodes: &Episodes, first: usize, halt_cost: u64) -> f64 {
    let mut policy = Leader::new(Nanos(halt_cost));
    let (mut cost, mut optimum) = (0, 0);
    for (number, &(busy, idle)) in episodes.iter().enumerate() {
        let window = policy.window_after(Nanos(busy)).get();
        if number >= first {
            cost += if idle <= window { idle } else { window + halt_cost };
            optimum += idle.min(halt_cost);
        }
        policy.observe(Outcome::of(Nanos(idle)));
    }
    cost as f64 / optimum as f64
}

fn read(path: &Path) -> Result<Episodes, Box<dyn std::error::Error>> {
    let source = RecordingSource::new(Reader::open(path)?, false);
    let (mut episodes, mut end_ns) = (Episodes::new(), None);
    source.visit(0..u64::MAX, &mut |batch| {
        for run in batch.runs() {
            for (&start_ns, &idle_ns) in run.start_ns.iter().zip(&run.idle_ns) {
                let busy_ns = end_ns.map_or(0, |end_ns| start_ns.saturating_sub(end_ns));
                episodes.push((busy_ns, idle_ns));
                end_ns = Some(start_ns + idle_ns);
            }
        }
    })?;
    if source.idlers() != 1 {
        return Err(format!("{} has {} idlers, and this wants one", path.display(), source.idlers()).into());
    }
    Ok(episodes)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: leader_ablation FOLDER [second-half]")?;
    let half = arguments.next().is_some_and(|word| word == "second-half");
    let (mut fitted, mut others) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "parquet") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let group = if FITTED.contains(&name.as_str()) { &mut fitted } else { &mut others };
            group.push(read(&path)?);
        }
    }
    let with = |table: Table| Variant::of([table, COMMON]);
    let memory = |memory| Variant { memory, ..with(TODAY) };
    let small = || Table { share: 4, ..TODAY };
    let variants = [
        ("the same in 64 bits", with(TODAY)),
        ("without classes", Variant::of([COMMON])),
        ("without the busy time", with(Table { busy: NONE, ..TODAY })),
        ("without lengths", with(Table { last: NONE, before: NONE, ..TODAY })),
        ("without the length before the last", with(Table { before: NONE, ..TODAY })),
        ("without the common row", Variant::of([TODAY])),
        ("a memory of 64", memory(64)),
        ("a memory of 256", memory(256)),
        ("a memory without end", memory(u64::MAX)),
        ("17 windows", Variant { windows: (1..=16).map(|n| 2 * n).collect(), ..with(TODAY) }),
        ("busy time in octaves", with(Table { busy: OCTAVES, ..TODAY })),
        ("the last length in 5 classes", with(Table { last: LAST_FINE, ..TODAY })),
        ("the run of short ones for the one before", with(Table { before: NONE, run: RUN, ..TODAY })),
        ("and the busy time before the last, in octaves", with(Table { last_busy: OCTAVES, ..TODAY })),
        (
            "that, and today's row as its parent, 250 rows more",
            Variant::of([Table { last_busy: OCTAVES, ..TODAY }, small(), COMMON]),
        ),
        (
            "that, the last length in 5 classes, 500 rows more",
            Variant::of([Table { last_busy: OCTAVES, last: LAST_FINE, ..TODAY }, small(), COMMON]),
        ),
    ];
    let print = |name: &str, cost: &dyn Fn(&Episodes, usize, u64) -> f64| {
        print!("{name:<52}");
        for group in [&fitted, &others] {
            for halt_cost in [5_000, 20_000, 50_000] {
                let first = |episodes: &Episodes| if half { episodes.len() / 2 } else { 0 };
                let ratios = group.iter().map(|episodes| cost(episodes, first(episodes), halt_cost));
                let Some(summary) = Summary::of(ratios) else {
                    print!("  {:>13}", "-");
                    continue;
                };
                print!("  {:.4} ({:.2})", summary.geometric_mean, summary.worst);
            }
        }
        println!();
    };
    println!("{:<52}  fitted: 5, 20, 50 us{:24}  the others: 5, 20, 50 us", "", "");
    print("leader", &cost_of_leader);
    for (name, variant) in &variants {
        print(name, &|episodes, first, halt_cost| variant.cost(episodes, first, halt_cost));
    }
    Ok(())
}
