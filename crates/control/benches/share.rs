//! What share of a CPU does control use?
//!
//! Question: does a controller stay below 0.5 % of a CPU over 64 vCPUs that wake up 10,000 times a second
//! each, and below 0.1 % over 64 that idle? It runs in real time: it sleeps, looks at statistics and decides
//! when it is due, and changes the maximum of the simulated vCPUs. Its CPU time is that of the thread less
//! what the simulation takes; reading a statistics file, which is not simulated, is added as measured on a
//! real one. The row of vCPUs that idle is the baseline. It would be surprising if anything were above 0.5 %,
//! as the controller makes its periods longer then.
//!
//! `cargo bench -p dwell-control --bench share`; a number after `--` is how many seconds each takes, 20 by default.

use dwell_control::{Controller, Drawn, Histograms, Looks, Observed, Terms};
use dwell_policy::host::{BUCKETS, bucket};
use dwell_policy::param::Setting;
use dwell_policy::version::NEWEST_KERNEL;
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Player, Rule};
use dwell_stats::SplitMix64;
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Reading one statistics file \[ns\]: the most of what was measured, 340 to 580.
const READ_NS: u64 = 580;
/// Lengths that are drawn in all, as `dwell control` does.
const DRAWN: usize = 2_048;
/// From the wakeup event to the guest.
const LATE: Nanos = Nanos(12_000);
/// A second is simulated at a time.
const SECOND_NS: u64 = 1_000_000_000;

/// A vCPU, and what KVM has counted of it since the last look.
struct Vcpu {
    rule: Player,
    mean_ns: f64,
    random: SplitMix64,
    success: [u64; BUCKETS],
    fail: [u64; BUCKETS],
    wait: [u64; BUCKETS],
    sums_ns: [u64; 2],
}

impl Vcpu {
    fn idles(&mut self, times: u64) {
        for _ in 0..times {
            let idle = self.random.exponential(self.mean_ns);
            let did = self.rule.play_late(Nanos(idle), LATE);
            let polled = u64::try_from(did.polled_ns).unwrap_or(u64::MAX);
            if did.halts > 0 {
                self.wait[bucket(idle - polled.min(idle) + LATE.get())] += 1;
            }
            if did.polls > 0 {
                let failed = usize::from(did.halts > 0);
                [&mut self.success, &mut self.fail][failed][bucket(polled)] += 1;
                self.sums_ns[failed] += polled;
            }
        }
    }
}

/// CPU time of this thread \[ns\].
fn used_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(used.tv_sec * 1_000_000_000 + used.tv_nsec).unwrap_or(0)
}

#[derive(Default)]
struct Run {
    decisions: u32,
    looks: u32,
    changes: u32,
    cpu_ns: u64,
}

fn run(vcpus: u64, wakeups_per_s: u64, seconds: u64) -> Run {
    let originals = Setting::defaults(Layer::Host, NEWEST_KERNEL);
    let rule = Rule::Layer(originals).start_late(1).expect("a rule that can be replayed");
    // Twelve loads, so that no setting is right for all.
    let mut all: Vec<Vcpu> = (0..vcpus)
        .map(|vcpu| Vcpu {
            rule: rule.clone(),
            mean_ns: 8_000.0 * (1 + vcpu % 12) as f64,
            random: SplitMix64::new(vcpu),
            success: [0; BUCKETS],
            fail: [0; BUCKETS],
            wait: [0; BUCKETS],
            sums_ns: [0; 2],
        })
        .collect();
    let most = DRAWN / all.len();
    let terms = Terms { late: LATE, ..Terms::at(Nanos(20_000)) };
    let mut controller = Controller::new(originals, terms).expect("a rule that can be replayed");
    let (mut looks, mut drawn) = (Looks::default(), vec![Drawn::new(most); all.len()]);
    let (mut random, mut run, mut simulated_ns) = (SplitMix64::new(1), Run::default(), 0);
    let (begun, mut before_ns, mut spent_ns) = (Instant::now(), used_ns(), 0);
    let first_ns = before_ns;
    controller.start(0);
    let now_ns = || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    loop {
        let look_ns = looks.next_ns.max(controller.out_of_budget_until_ns());
        let due_ns = controller.next_at_ns().min(look_ns);
        if due_ns > seconds * SECOND_NS {
            break;
        }
        std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns())));
        let now = now_ns();
        let simulation_ns = used_ns();
        let times = now * wakeups_per_s / SECOND_NS - simulated_ns * wakeups_per_s / SECOND_NS;
        simulated_ns = now;
        all.iter_mut().for_each(|vcpu| vcpu.idles(times));
        let simulation_ns = used_ns() - simulation_ns;
        let mut episodes = 0;
        for (vcpu, drawn) in all.iter_mut().zip(&mut drawn) {
            let [success_ns, fail_ns] = std::mem::take(&mut vcpu.sums_ns);
            let [success, fail, wait] = [&mut vcpu.success, &mut vcpu.fail, &mut vcpu.wait]
                .map(|of| std::mem::replace(of, [0; BUCKETS]));
            let counted = Histograms { success: &success, fail: &fail, wait: &wait, success_ns, fail_ns };
            episodes += counted.episodes();
            drawn.look(&counted, LATE, &mut random);
        }
        looks.looked(now, all.len(), episodes);
        run.looks += 1;
        if controller.next_at_ns() <= now {
            let observed: Vec<Observed> = (0..)
                .zip(&mut drawn)
                .map(|(idler, drawn)| {
                    let (counted, episodes) = drawn.take();
                    Observed::drawn(idler, counted, episodes)
                })
                .collect();
            run.decisions += 1;
            if let Some(change) = controller.decide(now, &observed) {
                controller.changed(&change);
                all.iter_mut().for_each(|vcpu| vcpu.rule.set(&change.to));
                run.changes += 1;
            }
        }
        let after_ns = used_ns();
        let cpu_ns = after_ns - before_ns - simulation_ns + READ_NS * vcpus;
        before_ns = after_ns;
        spent_ns += simulation_ns;
        run.cpu_ns += READ_NS * vcpus;
        controller.spent(now, Nanos(cpu_ns));
    }
    run.cpu_ns += used_ns() - first_ns - spent_ns;
    run
}

fn main() {
    let seconds = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(20);
    println!("vCPUs, wakeups/s of each: % of a CPU, decisions/s, looks/s, changes ({seconds} s each)");
    for (vcpus, wakeups_per_s) in [(1, 10_000), (13, 10_000), (64, 10_000), (64, 0)] {
        let Run { decisions, looks, changes, cpu_ns } = run(vcpus, wakeups_per_s, seconds);
        let share = cpu_ns as f64 / (seconds * SECOND_NS) as f64 * 100.0;
        let per_s = |number: u32| f64::from(number) / seconds as f64;
        println!(
            "{vcpus}, {wakeups_per_s}: {share:.3} %, {:.1}, {:.1}, {changes}",
            per_s(decisions),
            per_s(looks)
        );
    }
}
