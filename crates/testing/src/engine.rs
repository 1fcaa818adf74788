//! The streams and settings that the engine is measured with: by its benchmark, and by the example `rate`.

use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_recording::Reader;
use dwell_replay::engine::Isa;
use dwell_replay::{Bank, Batch, Counts, Memory, RecordingSource, Rule, Source, grid};
use dwell_stats::SplitMix64;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Episodes of a stream: enough to fill all caches, few enough for a run of minutes.
const EPISODES: usize = 1 << 15;

/// Settings with maxima far apart: few enough that each vector holds rather different ones.
const SPREAD: usize = 512;

/// Lengths of one or more idlers, in memory.
pub struct Stream {
    /// The kind of its lengths, or the recording.
    pub name: String,
    /// Whether it is from a recording.
    pub recorded: bool,
    /// Whether its halts have wakeup latencies.
    pub late: bool,
    /// How many there are.
    pub episodes: u64,
    batches: Vec<Batch>,
}

impl Stream {
    fn new(name: String, recorded: bool, source: &dyn Source) -> Stream {
        let mut batches = vec![];
        source
            .visit(0..EPISODES as u64, &mut |batch| batches.push(batch.clone()))
            .expect("a readable recording");
        let late = batches.iter().flat_map(Batch::runs).any(|run| run.latency_ns().is_some());
        Stream { name, recorded, late, batches, episodes: source.episodes().min(EPISODES as u64) }
    }

    /// Lets every rule of a bank live through it.
    #[inline(never)]
    pub fn replay(&self, bank: &mut Bank) -> Vec<Counts> {
        self.batches.iter().for_each(|batch| bank.feed(batch));
        let counts = bank.take();
        assert!(counts.iter().all(|counts| counts.episodes == self.episodes));
        counts
    }
}

/// Random lengths without order, each kind also with wakeup latencies of 9 to 19 us.
fn generated() -> Vec<Stream> {
    type Draw = fn(&mut SplitMix64) -> u64;
    let kinds: [(&str, Draw); 3] = [
        ("exponential 100 us", |r| r.exponential(100e3)),
        ("bimodal 15 us, 2 ms", |r| if r.below(4) == 0 { r.exponential(2e6) } else { r.exponential(15e3) }),
        ("uniform 1 us to 1 ms", |r| 1_000 + r.below(999_000)),
    ];
    let stream = |(name, draw): (&str, Draw)| {
        let mut random = SplitMix64::new(1);
        let lengths: Vec<u64> = (0..EPISODES).map(|_| draw(&mut random)).collect();
        let late = lengths.iter().map(|&idle| (0, idle, Some(9_000 + random.below(10_000)), None));
        let late = Memory::late(late);
        [
            Stream::new(name.to_owned(), false, &Memory::of_one(&lengths)),
            Stream::new(format!("{name}, late"), false, &late),
        ]
    };
    kinds.into_iter().flat_map(stream).collect()
}

fn recorded() -> Vec<Stream> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the bundled recordings")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "parquet"))
        .collect();
    files.sort();
    let stream = |path: PathBuf| {
        let name = path.file_stem().map_or(String::new(), |stem| stem.to_string_lossy().into_owned());
        let reader = Reader::open(&path).expect("a recording");
        Stream::new(name, true, &RecordingSource::new(reader, false))
    };
    files.into_iter().map(stream).collect()
}

pub fn streams() -> Vec<Stream> {
    generated().into_iter().chain(recorded()).collect()
}

/// Rules of one layer.
pub struct Family {
    /// The layer and what the rules have in common.
    pub name: String,
    pub rules: Vec<Rule>,
}

/// The families of a layer: `grid` is the grid of `dwell tune`. In `apart` no two of 2 700 settings have the same
/// maximum: the general path. In `spread` 512 of them are all there are, so that little is common to the settings of
/// a vector: the general path at its worst. `straight` shares nothing.
pub fn families(layer: Layer) -> Vec<Family> {
    let name = match layer {
        Layer::Host => "host",
        Layer::Guest => "guest",
        Layer::Driver => "driver",
        Layer::Iothread => "iothread",
    };
    let family = |of: &str, settings: Vec<Setting>| Family {
        name: format!("{name}, {of}"),
        rules: settings.into_iter().map(Rule::Layer).collect(),
    };
    match layer {
        Layer::Iothread => [(7, 2), (10, 0), (11, 1)]
            .map(|(major, minor)| {
                let version = Version::new(major, minor);
                family(&format!("QEMU {version}"), grid::settings(layer, version))
            })
            .into(),
        _ => {
            let all = grid::settings(layer, Version::new(6, 18));
            let apart = apart(&all);
            let spread = apart.iter().copied().step_by(apart.len() / SPREAD).take(SPREAD).collect();
            let mut families = vec![family("grid", all), family("apart", apart), family("spread", spread)];
            if layer == Layer::Host {
                families.push(family("straight", straight()));
            }
            families
        }
    }
}

/// Every eighth setting, with maxima moved a little so that no two have the same.
fn apart(settings: &[Setting]) -> Vec<Setting> {
    let moved = |(by, setting): (i64, &Setting)| {
        let mut setting = *setting;
        let (max, now) =
            setting.iter().next().map(|(param, value)| (param.name, value)).expect("a parameter");
        setting.set(max, now + by).expect("a maximum in range");
        setting
    };
    (0..).zip(settings).skip(1).step_by(8).map(moved).collect()
}

/// Settings that the engine does not run together, as their windows might grow by too much: every episode asks
/// everything of each of them, by the same instructions whatever its length. What these reach is held against the
/// bound of the general kernel.
fn straight() -> Vec<Setting> {
    let setting = |i: i64| {
        let mut setting = Setting::defaults(Layer::Host, Version::new(6, 18));
        let values = [
            ("halt_poll_ns", 5_000_000 + i * 9_000),
            ("halt_poll_ns_grow", 256),
            ("halt_poll_ns_grow_start", 1_000 + i % 50 * 1_000),
            ("halt_poll_ns_shrink", [0, 1, 2, 4, 8, 16][usize::try_from(i % 6).unwrap_or(0)]),
        ];
        values.iter().for_each(|(name, value)| setting.set(name, *value).expect("a value in range"));
        setting
    };
    (0..).map(setting).take(SPREAD).collect()
}

/// Some of the rules, evenly drawn.
pub fn sample(rules: &[Rule], size: usize) -> Vec<Rule> {
    rules.iter().copied().step_by((rules.len() / size).max(1)).take(size).collect()
}

/// How rules are replayed.
pub struct Method {
    /// The instructions and the number of cores.
    pub name: String,
    /// Through the engine, or one setting after the other through its policy.
    pub isa: Option<Isa>,
    pool: rayon::ThreadPool,
}

impl Method {
    /// With these instructions on so many cores.
    pub fn new(isa: Option<Isa>, threads: usize) -> Method {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let cores = if threads == 1 { "1 core".to_owned() } else { format!("{threads} cores") };
        Method { name: format!("{}, {cores}", isa.map_or("naive", Isa::name)), isa, pool }
    }

    /// The time that a replay takes: on one core the CPU time of its thread, which does not depend on who else wanted
    /// the core, and on more of them by the clock.
    pub fn replay(&self, rules: &[Rule], stream: &Stream) -> Duration {
        let mut bank = Bank::with_isa(rules, 0, self.isa).expect("rules of known versions");
        self.pool.install(|| {
            let (start, cpu) = (Instant::now(), cpu_time());
            std::hint::black_box(stream.replay(&mut bank));
            if self.pool.current_num_threads() == 1 { cpu_time() - cpu } else { start.elapsed() }
        })
    }
}

/// CPU time of the calling thread.
#[allow(unsafe_code)] // The C library has no safe clock, and one that asks the vDSO by itself does not run in valgrind.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that lives through the call, which writes it and keeps no pointer.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(answer, 0, "Linux has a CPU clock for each thread");
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
}
