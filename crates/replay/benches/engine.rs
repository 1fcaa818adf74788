//! How fast does a replay go through episodes and settings?
//!
//! Every method replays the same streams: the naive one takes one setting after the other through its policy, the
//! others are the engine with plain loops (the compiler's vectors), with AVX2 and with AVX-512, on one core and on all.
//! `grid` is the grid of `dwell tune`; `apart` has a maximum of its own for each setting: the general path; `spread`
//! is that at its worst, and `straight` the general kernel alone. Streams that are `late` have wakeup latencies. Event loops have no engine: their settings
//! are shared among the cores. The unit is interval-configurations: episodes times settings. The slow methods
//! take a sample of the settings, evenly drawn.
//!
//! Surprising would be an engine below ten times the naive replay, or a portable one far above what it was compiled
//! for. Times of one core are CPU times of its thread, those of all cores are by the clock. After criterion's own
//! report the medians stand in tables, with geometric means over the random streams and over the recordings.
//!
//! `cargo bench -p dwell-replay --bench engine -- [FILTER]`: all of it takes about four minutes on two cores.

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};
use dwell_policy::Layer;
use dwell_replay::engine::Isa;
use dwell_testing::engine::{Family, Method, Stream, families, sample, streams};
use std::collections::BTreeMap;
use std::time::Duration;

/// Settings that the naive replay is measured on.
const NAIVE: usize = 32;

/// Settings that the portable engine is measured on.
const PORTABLE: usize = 2_048;

/// What a layer's rules are replayed with.
fn methods(layer: Layer, all: usize) -> Vec<Method> {
    let mut methods = vec![Method::new(None, 1)];
    if layer == Layer::Iothread {
        methods.push(Method::new(None, all));
        return methods;
    }
    methods.extend(Isa::available().iter().map(|&isa| Method::new(Some(isa), 1)));
    methods.extend(Isa::available().iter().skip(1).map(|&isa| Method::new(Some(isa), all)));
    methods
}

/// Median rates by method and stream.
type Medians = BTreeMap<(String, String), f64>;

fn measure(
    criterion: &mut Criterion,
    family: &Family,
    stream: &Stream,
    method: &Method,
    medians: &mut Medians,
) {
    let rules = match method.isa {
        None => sample(&family.rules, NAIVE),
        Some(Isa::Portable) => sample(&family.rules, PORTABLE),
        Some(_) => family.rules.clone(),
    };
    let pairs = stream.episodes * rules.len() as u64;
    let mut rates = vec![];
    let mut group = criterion.benchmark_group(&family.name);
    group.throughput(Throughput::Elements(pairs));
    group.sampling_mode(SamplingMode::Flat);
    group.sample_size(10);
    group.nresamples(2_000);
    group.warm_up_time(Duration::from_millis(1));
    group.measurement_time(Duration::from_millis(100));
    group.bench_function(BenchmarkId::new(&method.name, &stream.name), |bencher| {
        bencher.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times {
                let took = method.replay(&rules, stream);
                rates.push(pairs as f64 / took.as_secs_f64());
                spent += took;
            }
            spent
        });
    });
    group.finish();
    rates.sort_by(f64::total_cmp);
    if let Some(median) = rates.get(rates.len() / 2) {
        medians.insert((method.name.clone(), stream.name.clone()), *median);
    }
}

/// A table of one family: streams by methods.
fn print(family: &Family, medians: &Medians, streams: &[Stream], methods: &[Method]) {
    if medians.is_empty() {
        return;
    }
    let unit = if methods.iter().any(|method| method.isa.is_some()) { 1e9 } else { 1e6 };
    println!("\n{}: {} interval-configurations per second", family.name, if unit == 1e9 { "G" } else { "M" });
    print!("{:32}", "");
    methods.iter().for_each(|method| print!("{:>18}", method.name));
    let rate =
        |method: &Method, stream: &Stream| medians.get(&(method.name.clone(), stream.name.clone())).copied();
    let row = |name: &str, rates: &[Option<f64>]| {
        print!("\n{name:32}");
        for rate in rates {
            rate.map_or_else(|| print!("{:>18}", "-"), |rate| print!("{:>18.2}", rate / unit));
        }
    };
    for stream in streams {
        let rates: Vec<Option<f64>> = methods.iter().map(|method| rate(method, stream)).collect();
        if rates.iter().any(Option::is_some) {
            row(&stream.name, &rates);
        }
    }
    let means = [
        ("geometric mean, random", false, false),
        ("geometric mean, random, late", false, true),
        ("geometric mean, recordings", true, false),
    ];
    for (name, recorded, late) in means {
        let mean = |method: &Method| {
            let of_kind = streams.iter().filter(|stream| (stream.recorded, stream.late) == (recorded, late));
            let logs: Vec<f64> = of_kind.filter_map(|stream| rate(method, stream)).map(f64::ln).collect();
            (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
        };
        row(name, &methods.iter().map(mean).collect::<Vec<_>>());
    }
    println!();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().without_plots();
    let streams = streams();
    let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut tables = vec![];
    for layer in [Layer::Host, Layer::Guest, Layer::Iothread] {
        for family in families(layer) {
            let methods = methods(layer, all);
            let mut medians = Medians::new();
            for stream in &streams {
                for method in &methods {
                    measure(&mut criterion, &family, stream, method, &mut medians);
                }
            }
            tables.push((family, medians, methods));
        }
    }
    criterion.final_summary();
    for (family, medians, methods) in &tables {
        print(family, medians, &streams, methods);
    }
}
