//! How fast does a replay go through episodes and settings?
//!
//! Every method replays the same streams: the naive one takes one setting after the other through its policy, the
//! others are the engine with plain loops (the compiler's vectors), with AVX2 and with AVX-512, on one core and on all.
//! `grid` is the grid of `dwell tune`; `apart` has a maximum of its own for each setting, so that nothing is shared or
//! skipped: the general path. The unit is interval-configurations: episodes times settings.
//!
//! Surprising would be an engine below ten times the naive replay, or a portable one far above what it was compiled
//! for. Times of one core are CPU times of its thread, those of all cores are by the clock. After criterion's own report the medians stand in one table, with the geometric mean over the recordings.
//!
//! `cargo bench -p dwell-replay --bench engine -- [FILTER]`

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_recording::Reader;
use dwell_replay::engine::Isa;
use dwell_replay::{Bank, Batch, Memory, RecordingSource, Rule, Source, grid};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Episodes of a stream: enough to fill all caches, few enough for a run of minutes.
const EPISODES: usize = 1 << 15;

/// Settings that the slow methods are measured on, evenly drawn from all.
const FEW: usize = 64;

struct Stream {
    name: String,
    recorded: bool,
    batches: Vec<Batch>,
    episodes: u64,
}

impl Stream {
    fn new(name: String, recorded: bool, source: &dyn Source) -> Stream {
        let mut batches = vec![];
        source
            .visit(0..EPISODES as u64, &mut |batch| batches.push(batch.clone()))
            .expect("a readable recording");
        Stream { name, recorded, batches, episodes: source.episodes().min(EPISODES as u64) }
    }
}

/// Steele, Lea and Flood's SplitMix64: the same streams in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Above 0, at most 1.
    fn share(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean_ns: f64) -> u64 {
        let length = (-self.share().ln() * mean_ns).ceil();
        // At most 37 means.
        #[allow(clippy::cast_possible_truncation)]
        let length = length as u64;
        length
    }
}

fn generated() -> Vec<Stream> {
    type Draw = fn(&mut Random) -> u64;
    let kinds: [(&str, Draw); 3] = [
        ("exponential 100 us", |r| r.exponential(100e3)),
        ("bimodal 15 us, 2 ms", |r| {
            if r.next().is_multiple_of(4) { r.exponential(2e6) } else { r.exponential(15e3) }
        }),
        ("uniform 1 us to 1 ms", |r| 1_000 + r.next() % 999_000),
    ];
    let stream = |(name, draw): (&str, Draw)| {
        let mut random = Random(1);
        let lengths: Vec<u64> = (0..EPISODES).map(|_| draw(&mut random)).collect();
        Stream::new(name.to_owned(), false, &Memory::of_one(&lengths))
    };
    kinds.into_iter().map(stream).collect()
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

fn version() -> Version {
    Version::new(6, 18)
}

fn tuned(layer: Layer) -> Vec<Rule> {
    grid::settings(layer, version()).into_iter().map(Rule::Layer).collect()
}

/// Every eighth setting of the grid, with maxima moved a little so that no two have the same.
fn apart(layer: Layer) -> Vec<Rule> {
    let name = match layer {
        Layer::Guest => "guest_halt_poll_ns",
        _ => "halt_poll_ns",
    };
    let moved = |(by, mut setting): (i64, Setting)| {
        let max = setting.get(name).unwrap_or(0);
        setting.set(name, max + by).expect("a maximum in range");
        Rule::Layer(setting)
    };
    (0..).zip(grid::settings(layer, version())).skip(1).step_by(8).map(moved).collect()
}

/// Some of the rules, evenly drawn: what the naive replay is measured on.
fn sample(rules: &[Rule], size: usize) -> Vec<Rule> {
    rules.iter().copied().step_by((rules.len() / size).max(1)).collect()
}

/// CPU time of the calling thread: what one core did does not depend on who else wanted it.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

struct Method {
    name: String,
    isa: Option<Isa>,
    threads: usize,
}

fn methods(all: usize) -> Vec<Method> {
    let method = |name: &str, isa, threads| Method { name: name.to_owned(), isa, threads };
    let mut methods = vec![method("naive, 1 core", None, 1)];
    for &isa in Isa::available() {
        methods.push(method(&format!("{}, 1 core", isa.name()), Some(isa), 1));
    }
    methods.push(method(&format!("{}, {all} cores", Isa::best().name()), Some(Isa::best()), all));
    methods
}

/// Median seconds by family, method and stream.
type Medians = BTreeMap<(String, String, String), f64>;

fn measure(
    criterion: &mut Criterion,
    family: &str,
    rules: &[Rule],
    stream: &Stream,
    method: &Method,
    medians: &mut Medians,
) {
    let rules = if method.isa.is_none() { sample(rules, FEW) } else { rules.to_vec() };
    let pairs = stream.episodes * rules.len() as u64;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(method.threads).build().expect("threads");
    let mut rates = vec![];
    let mut group = criterion.benchmark_group(family);
    group.throughput(Throughput::Elements(pairs));
    group.sampling_mode(SamplingMode::Flat);
    group.sample_size(10);
    group.nresamples(1_000);
    group.warm_up_time(Duration::from_millis(50));
    group.measurement_time(Duration::from_millis(400));
    group.bench_function(BenchmarkId::new(&method.name, &stream.name), |bencher| {
        bencher.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times {
                let mut bank = match method.isa {
                    Some(isa) => Bank::with_isa(&rules, 0, isa),
                    None => Bank::scalar(&rules, 0),
                }
                .expect("rules of known versions");
                let (counts, took) = pool.install(|| {
                    let (start, cpu) = (Instant::now(), cpu_time());
                    stream.batches.iter().for_each(|batch| bank.feed(batch));
                    let counts = std::hint::black_box(bank.take());
                    (counts, if method.threads == 1 { cpu_time() - cpu } else { start.elapsed() })
                });
                assert_eq!(counts[0].episodes, stream.episodes);
                rates.push(pairs as f64 / took.as_secs_f64());
                spent += took;
            }
            spent
        });
    });
    group.finish();
    rates.sort_by(f64::total_cmp);
    if let Some(median) = rates.get(rates.len() / 2) {
        let key = (family.to_owned(), method.name.clone(), stream.name.clone());
        medians.insert(key, *median);
    }
}

fn print(medians: &Medians, streams: &[Stream], methods: &[Method]) {
    println!("\nG interval-configurations per second, medians");
    let families: std::collections::BTreeSet<&String> = medians.keys().map(|(family, _, _)| family).collect();
    for family in families {
        println!("\n{family}");
        print!("{:32}", "");
        methods.iter().for_each(|method| print!("{:>18}", method.name));
        println!();
        let rate = |method: &Method, stream: &Stream| {
            medians.get(&(family.clone(), method.name.clone(), stream.name.clone())).copied()
        };
        for stream in streams {
            let rates: Vec<Option<f64>> = methods.iter().map(|method| rate(method, stream)).collect();
            if rates.iter().any(Option::is_some) {
                print!("{:32}", stream.name);
                rates.iter().for_each(|rate| print!("{:>18.2}", rate.unwrap_or(f64::NAN) / 1e9));
                println!();
            }
        }
        for (name, recorded) in [("geometric mean, generated", false), ("geometric mean, recordings", true)] {
            print!("{name:32}");
            for method in methods {
                let logs: Vec<f64> = streams
                    .iter()
                    .filter(|stream| stream.recorded == recorded)
                    .filter_map(|stream| rate(method, stream))
                    .map(f64::ln)
                    .collect();
                print!("{:>18.2}", (logs.iter().sum::<f64>() / logs.len() as f64).exp() / 1e9);
            }
            println!();
        }
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().without_plots();
    let streams: Vec<Stream> = generated().into_iter().chain(recorded()).collect();
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let methods = methods(all);
    let mut medians = Medians::new();
    for (layer, name) in [(Layer::Host, "host"), (Layer::Guest, "guest")] {
        let families = [(format!("{name}, grid"), tuned(layer)), (format!("{name}, apart"), apart(layer))];
        for (family, rules) in &families {
            for stream in &streams {
                for method in &methods {
                    measure(&mut criterion, family, rules, stream, method, &mut medians);
                }
            }
        }
    }
    criterion.final_summary();
    print(&medians, &streams, &methods);
}
