//! The policies of the kernel module `kernel/dwell_idle` against those of dwell-policy: every window has to be equal.
//!
//! The C code and the program that compares are compiled with `cc`. `DWELL_KERNEL_EPISODES` is the number of random
//! episodes (default 400000); `make -C kernel/dwell_idle test` takes ten million.

use dwell_policy::driver::{Choice, Driver, Params};
use dwell_policy::{Nanos, Outcome, Policy};
use dwell_recording::{Chunk, Columns, Reader};
use dwell_testing::say;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

fn module() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/dwell_idle")
}

/// The program that compares, or nothing where there is no C compiler.
fn compare(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("compare");
    let sources = ["test/compare.c", "policy.c"].map(|name| module().join(name));
    let built = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .args(sources)
        .status();
    match built {
        Ok(status) => assert!(status.success(), "cc {status}"),
        Err(_) => return None,
    }
    Some(program)
}

/// A busy time, an idle time, and for how long its poll was preempted.
type Episode = (u64, u64, u64);

/// What the program reads.
struct Stream {
    child: Child,
    records: BufWriter<std::process::ChildStdin>,
    episodes: u64,
}

impl Stream {
    fn to(program: &Path) -> Stream {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let records = BufWriter::with_capacity(1 << 20, child.stdin.take().unwrap());
        Stream { child, records, episodes: 0 }
    }

    fn record(&mut self, record: [u64; 5]) {
        for value in record {
            // At the first difference nobody reads any more; `end` has what was found.
            let _ = self.records.write_all(&value.to_ne_bytes());
        }
    }

    /// A series of one idler.
    fn series(&mut self, params: Params, episodes: impl Iterator<Item = Episode>) {
        let Params { halt_cost, wake_latency, max_window, choice } = params;
        self.record([0, choice as u64, halt_cost.get(), wake_latency.get(), max_window.get()]);
        let mut policy = Driver::new(params);
        for (busy, idle, lost) in episodes {
            let window = policy.window_after(Nanos(busy));
            // Who does not poll is not preempted in a poll.
            let lost = if window > Nanos::ZERO { lost } else { 0 };
            policy.observe(Outcome::of(Nanos(idle)).losing(Nanos(lost)));
            self.record([1, busy, idle, window.get(), lost]);
            self.episodes += 1;
        }
    }

    /// Whether the program found all equal, and what it printed.
    fn end(self) -> (bool, String, u64) {
        let Stream { child, records, episodes } = self;
        drop(records);
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap().trim().to_owned(), episodes)
    }
}

/// Lengths and busy times of one kind, relative to the halt cost.
fn episode(kind: u32, k: u64, step: u64, random: &mut impl Rng) -> (u64, u64) {
    let exponential = |mean: f64, random: &mut dyn Rng| -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ns = (-(1.0 - random.random::<f64>()).ln() * mean) as u64;
        ns
    };
    let scale = k.clamp(1, 1 << 40) as f64;
    match kind {
        // Any bits, short and long alike.
        0 => (
            random.random::<u64>() >> random.random_range(0..64),
            random.random::<u64>() >> random.random_range(0..64),
        ),
        // The ends of the range, and the limits of windows and classes with their neighbours.
        1 => {
            let edges = [0, 1, 2, k / 4, k / 2, k, k.saturating_mul(2), k.saturating_mul(3), u64::MAX];
            let near = |random: &mut dyn Rng| {
                let edge = edges[random.random_range(0..edges.len())];
                edge.saturating_add(random.random_range(0..3)).saturating_sub(random.random_range(0..3))
            };
            (near(random), near(random))
        }
        2 => (exponential(scale, random), exponential(2.0 * scale, random)),
        // Short or long by a coin, with a busy time that tells which.
        3 => {
            let long = random.random::<bool>();
            let busy = if long { 2.0 } else { 0.2 } * scale;
            let idle = if long { 12.0 } else { 0.4 } * scale;
            (exponential(busy, random), exponential(idle, random))
        }
        // Constant, changing every thousand.
        4 => (0, (k / 3).saturating_mul(1 + (step / 1_000) % 5)),
        // Bursts: nine short ones, then a long one.
        _ => (
            exponential(scale / 2.0, random),
            exponential(if step % 10 == 9 { 40.0 } else { 0.3 } * scale, random),
        ),
    }
}

/// For how long a poll was preempted: in one of `rarity` episodes, from the least to more than is charged.
fn lost(rarity: u64, k: u64, random: &mut impl Rng) -> u64 {
    if rarity == 0 || random.random_range(0..rarity) > 0 {
        return 0;
    }
    match random.random_range(0..4) {
        0 => k.saturating_mul(4).saturating_add(random.random_range(0..3)),
        1 => random.random::<u64>() >> random.random_range(0..64),
        _ => random.random_range(500_000..20_000_000),
    }
}

fn halt_cost(random: &mut impl Rng) -> u64 {
    match random.random_range(0..8) {
        0 => random.random_range(0..20),
        1 => u64::from(u32::MAX) - random.random_range(0..3),
        2 => random.random::<u64>() >> random.random_range(0..64),
        _ => random.random_range(1_000..200_000),
    }
}

/// The parameter `max_window_ns`: most windows are cut by it, some, or none.
fn longest(k: u64, random: &mut impl Rng) -> u64 {
    match random.random_range(0..4) {
        0 => random.random_range(0..=k.max(1)),
        1 => k.saturating_mul(random.random_range(1..4)),
        2 => random.random::<u64>() >> random.random_range(0..64),
        _ => u64::MAX,
    }
}

fn params(choice: Choice, halt_cost: u64, wake_latency: u64, max_window: u64) -> Params {
    let [halt_cost, wake_latency, max_window] = [halt_cost, wake_latency, max_window].map(Nanos);
    Params { halt_cost, wake_latency, max_window, choice }
}

#[test]
fn every_window_is_that_of_rust() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compare(folder.path()) else {
        dwell_testing::skip!("programs", "every_window_is_that_of_rust", "no C compiler");
        return;
    };
    let wanted: u64 = std::env::var("DWELL_KERNEL_EPISODES").map_or(400_000, |text| text.parse().unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(17);
    let mut stream = Stream::to(&program);
    while stream.episodes < wanted {
        let (kind, k) = (random.random_range(0..6), halt_cost(&mut random));
        let latency = if random.random::<bool>() { 0 } else { random.random_range(0..=k.max(1)) };
        let count = [1, 30, 1_000, 20_000][random.random_range(0..4)];
        let rarity = [0, 2, 50, 3_000][random.random_range(0..4)];
        let one = |step| {
            let (busy, idle) = episode(kind, k, step, &mut random);
            (busy, idle, lost(rarity, k, &mut random))
        };
        let episodes: Vec<_> = (0..count).map(one).collect();
        let max_window = longest(k, &mut random);
        for choice in [Choice::Leader, Choice::Savings, Choice::Fixed, Choice::Never] {
            stream.series(params(choice, k, latency, max_window), episodes.iter().copied());
        }
    }
    let (equal, text, _) = stream.end();
    assert!(equal, "{text}");
    say!("random: {text}");
}

#[test]
fn every_window_on_the_recordings_is_that_of_rust() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compare(folder.path()) else {
        dwell_testing::skip!("programs", "every_window_on_the_recordings_is_that_of_rust", "no C compiler");
        return;
    };
    let mut stream = Stream::to(&program);
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
    for entry in std::fs::read_dir(recordings).unwrap() {
        for episodes in idlers(&entry.unwrap().path()) {
            for k in [5_000, 20_000, 50_000] {
                for (choice, latency) in [(Choice::Leader, 0), (Choice::Leader, k), (Choice::Savings, 0)] {
                    stream.series(params(choice, k, latency, 200_000), episodes.iter().copied());
                }
            }
        }
    }
    assert!(stream.episodes > 1_000_000, "{}", stream.episodes);
    let (equal, text, _) = stream.end();
    assert!(equal, "{text}");
    say!("recordings: {text}");
}

/// The episodes of each idler of a recording, with the time that it was busy before.
fn idlers(path: &Path) -> Vec<Vec<Episode>> {
    let reader = Reader::open(path).unwrap();
    let mut found = vec![(0u64, Vec::new()); reader.contents().idlers.len()];
    let mut chunk = Chunk::default();
    for group in 0..reader.row_groups() {
        reader.read(group, Columns::IDLER | Columns::START_NS | Columns::IDLE_NS, &mut chunk).unwrap();
        for row in 0..chunk.rows {
            let (ended, episodes) = &mut found[chunk.idler[row] as usize];
            let (start, idle) = (chunk.start_ns[row], chunk.idle_ns[row]);
            let busy = if episodes.is_empty() { 0 } else { start.saturating_sub(*ended) };
            episodes.push((busy, idle, 0));
            *ended = start.saturating_add(idle);
        }
    }
    found.into_iter().map(|(_, episodes)| episodes).collect()
}

#[test]
fn a_wrong_window_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compare(folder.path()) else {
        dwell_testing::skip!("programs", "a_wrong_window_is_found", "no C compiler");
        return;
    };
    let mut stream = Stream::to(&program);
    stream.series(params(Choice::Leader, 20_000, 0, 200_000), (0..500).map(|_| (0, 7_000, 0)));
    // It polls for 7500 ns by now.
    stream.record([1, 0, 7_000, 7_501, 0]);
    let (equal, text, episodes) = stream.end();
    assert!(!equal);
    assert_eq!(text, format!("series 1, episode {episodes}: window 7500, in Rust 7501"));
}
