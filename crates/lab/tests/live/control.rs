//! A VMM that controls its own VM: KVM's statistics in, `KVM_CAP_HALT_POLL` out.

use crate::alone::{self, Alone};
use dwell_capture::kvm_stats::{Counters, StatsFile};
use dwell_control::{Histograms, SetMaximum, Terms, VmController};
use dwell_lab::experiment::LabError;
use dwell_lab::guest::{Sleeper, sleeper};
use dwell_lab::vm::{Machine, Options, VmError};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_stats::SplitMix64;
use dwell_testing::say;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

const K: Nanos = Nanos::from_micros(20);
/// The latency of a wakeup, which KVM counts as part of the wait.
const LATE: Nanos = Nanos::from_micros(12);
/// The mean gaps of the phases, and how long each lasts.
const GAPS: [Nanos; 2] = [Nanos::from_micros(12), Nanos::from_micros(150)];
const PHASE: Duration = Duration::from_secs(2);

struct Vm<'m>(&'m Machine);

impl SetMaximum for Vm<'_> {
    type Error = VmError;

    fn set_halt_poll_ns(&mut self, ns: u32) -> Result<(), VmError> {
        self.0.set_halt_poll_ns(ns)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Default,
    Never,
    Controlled,
}

/// What a phase cost for each wakeup.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    wakes: u64,
    polled_ns: u64,
    halts: u64,
    changes: u64,
}

impl Cost {
    fn per_wake_us(&self) -> f64 {
        (self.polled_ns + K.get() * self.halts) as f64 / self.wakes.max(1) as f64 / 1e3
    }
}

fn histograms(counters: &Counters) -> Histograms<'_> {
    Histograms {
        success: counters.halt_poll_success_hist.as_deref().unwrap_or_default(),
        fail: counters.halt_poll_fail_hist.as_deref().unwrap_or_default(),
        wait: counters.halt_wait_hist.as_deref().unwrap_or_default(),
        success_ns: counters.halt_poll_success_ns.unwrap_or(0),
        fail_ns: counters.halt_poll_fail_ns.unwrap_or(0),
    }
}

#[test]
fn a_vmm_controls_its_own_vm() {
    const NAME: &str = "a_vmm_controls_its_own_vm";
    let Some(Alone { rig, .. }) = &alone::rig(1, NAME) else { return };
    let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
    let max = u32::try_from(originals.get("halt_poll_ns").unwrap()).unwrap();
    let machine = Machine::new(Options { halt_poll_ns: Some(max), ..Options::default() }, 1).unwrap();
    let shared: &Sleeper = machine.place().unwrap();
    shared.always_interrupts();
    let irqfd = machine.irqfd(0).unwrap();
    let mut vcpu = machine.vcpu(0, sleeper, shared).unwrap();
    let stats = vcpu.stats().unwrap();
    let kicker = vcpu.kicker();
    std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            let _place = rig.vcpu_thread(0)?;
            vcpu.run(|| ControlFlow::Break(())).map_err(LabError::from)
        });
        while kicker.thread().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        let mut event = 0;
        let mut wake = |gap: Nanos| {
            rig.spin(gap);
            event += 1;
            shared.post(event);
            irqfd.write(1).unwrap();
            let began = Instant::now();
            while shared.seen().0 != event {
                assert!(began.elapsed() < Duration::from_secs(5), "a wakeup is lost");
                std::hint::spin_loop();
            }
        };
        let mut costs: Vec<(Arm, usize, Cost)> = vec![];
        for arm in [Arm::Default, Arm::Never, Arm::Controlled, Arm::Controlled, Arm::Never, Arm::Default] {
            let place = rig.stimulus_thread().unwrap();
            machine.set_halt_poll_ns(if arm == Arm::Never { 0 } else { max }).unwrap();
            let mut control = VmController::new(originals, Terms { late: LATE, ..Terms::at(K) }).unwrap();
            let begun = Instant::now();
            let now_ns = || u64::try_from(begun.elapsed().as_nanos()).unwrap();
            control.controller().start(now_ns());
            let read = |stats: &StatsFile| stats.counters().unwrap();
            let mut last = read(&stats);
            let mut random = SplitMix64::new(7);
            for number in 0..4 {
                let (ends, before) = (Instant::now() + PHASE, read(&stats));
                let mut cost = Cost::default();
                while Instant::now() < ends {
                    wake(Nanos(random.exponential(GAPS[number % 2].get() as f64)));
                    cost.wakes += 1;
                    if arm == Arm::Controlled && now_ns() >= control.controller().next_at_ns() {
                        let now = read(&stats);
                        let counted = now.clone().since(std::mem::replace(&mut last, now));
                        let changed =
                            control.step(now_ns(), &histograms(&counted), &mut Vm(&machine)).unwrap();
                        if let Some(change) = changed {
                            say!(
                                "{:5} ms: gaps of {} us: {} {:?}",
                                now_ns() / 1_000_000,
                                GAPS[number % 2].get() / 1_000,
                                change.to,
                                change.cause
                            );
                            cost.changes += 1;
                        }
                    }
                }
                let counted = read(&stats).since(before);
                let counts = histograms(&counted).counts();
                cost.polled_ns = u64::try_from(counts.polled_ns).unwrap();
                cost.halts = counts.halts;
                // Every wakeup is a halt or a poll; one that was under way at an end is counted at the other.
                assert!(counts.episodes <= cost.wakes + 2, "{counts:?} {cost:?}");
                costs.push((arm, number % 2, cost));
            }
            drop(place);
        }
        shared.stop();
        event_of_the_end(shared, &irqfd, 1 << 40);
        running.join().unwrap().unwrap();
        report(&costs);
    });
}

/// Wakes the guest for the last time.
fn event_of_the_end(shared: &Sleeper, irqfd: &vmm_sys_util::eventfd::EventFd, event: u64) {
    shared.post(event);
    irqfd.write(1).unwrap();
}

fn report(costs: &[(Arm, usize, Cost)]) {
    say!(
        "{:12} {:>6} {:>9} {:>12} {:>12} {:>8}",
        "arm",
        "gap",
        "wakes",
        "cost/wake",
        "halts/wake",
        "changes"
    );
    for arm in [Arm::Default, Arm::Never, Arm::Controlled] {
        for (phase, gap) in GAPS.iter().enumerate() {
            let of = costs.iter().filter(|(a, p, _)| (*a, *p) == (arm, phase)).map(|(_, _, cost)| *cost);
            let sum = of.reduce(|a, b| Cost {
                wakes: a.wakes + b.wakes,
                polled_ns: a.polled_ns + b.polled_ns,
                halts: a.halts + b.halts,
                changes: a.changes + b.changes,
            });
            let sum = sum.unwrap_or_default();
            let halts = sum.halts as f64 / sum.wakes.max(1) as f64;
            let arm = format!("{arm:?}");
            say!(
                "{arm:12} {:>3} us {:>9} {:>9.2} us {halts:>12.3} {:>8}",
                gap.get() / 1_000,
                sum.wakes,
                sum.per_wake_us(),
                sum.changes
            );
            assert!(sum.wakes > 0);
        }
    }
}
