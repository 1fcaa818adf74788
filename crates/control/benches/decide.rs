//! What does watching and deciding cost?
//!
//! Question: how long does one decision take over the statistics of 1, 13 and 64 vCPUs that wake up 10,000
//! times a second each? Control may use 0.5 % of a CPU, which is 500 us for each decision if there are ten in
//! a second. Baseline in the same run: drawing the lengths alone. Reading KVM's statistics files is part of
//! neither. The total number of lengths does not depend on the number of vCPUs, so it would be surprising if
//! 64 took more than a few times as long as one.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dwell_control::{Controller, Histograms, Observed, Terms};
use dwell_policy::host::{BUCKETS, bucket};
use dwell_policy::param::Setting;
use dwell_policy::version::NEWEST_KERNEL;
use dwell_policy::{Layer, Nanos};
use dwell_stats::SplitMix64;
use std::hint::black_box;

/// Wakeups of a vCPU in 100 ms.
const WAKEUPS: u64 = 1_000;
/// Lengths that are drawn in all, as `dwell control` does.
const DRAWN: usize = 2_048;

/// What KVM counts of a vCPU in a period in which it never polls, with exponential idle times of this mean \[ns\].
struct Counted {
    wait: [u64; BUCKETS],
}

impl Counted {
    fn of(mean: f64, seed: u64) -> Counted {
        let mut random = SplitMix64::new(seed);
        let mut wait = [0; BUCKETS];
        (0..WAKEUPS).for_each(|_| wait[bucket(random.exponential(mean) + 12_000)] += 1);
        Counted { wait }
    }

    fn histograms(&self) -> Histograms<'_> {
        Histograms { success: &[], fail: &[], wait: &self.wait, success_ns: 0, fail_ns: 0 }
    }

    fn observed(&self, idler: u64, most: usize, random: &mut SplitMix64) -> Observed {
        let histograms = self.histograms();
        Observed::drawn(idler, histograms.counts(), histograms.draw(most, 12_000, random))
    }
}

fn decide(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a period of 100 ms");
    for vcpus in [1u64, 13, 64] {
        // Twelve loads, so that no setting is right for all.
        let counted: Vec<Counted> =
            (0..vcpus).map(|vcpu| Counted::of(8_000.0 * (1 + vcpu % 12) as f64, vcpu)).collect();
        let mut random = SplitMix64::new(1);
        let most = DRAWN / counted.len();
        let mut draw = || -> Vec<Observed> {
            (0u64..)
                .zip(&counted)
                .map(|(idler, counted)| counted.observed(idler, most, &mut random))
                .collect()
        };
        group.bench_function(BenchmarkId::new("baseline: lengths drawn", vcpus), |b| b.iter(&mut draw));
        let observed = draw();
        let mut originals = Setting::defaults(Layer::Host, NEWEST_KERNEL);
        originals.set("halt_poll_ns", 0).expect("a value of halt_poll_ns");
        let terms = Terms { late: Nanos(12_000), ..Terms::at(Nanos(20_000)) };
        let mut controller = Controller::new(originals, terms).expect("a rule that can be replayed");
        controller.start(0);
        group.bench_function(BenchmarkId::new("decided", vcpus), |b| {
            // The change is not made, so that each decision searches anew.
            b.iter(|| black_box(controller.decide(controller.next_at_ns(), &observed)));
        });
    }
    group.finish();
}

criterion_group!(benches, decide);
criterion_main!(benches);
