//! The idle driver beside a neighbour on its core: what its polls take from it.
//!
//! A guest of one CPU and a neighbour share a core of this machine. The emulator sleeps where the guest halts, and uses the CPU
//! where it polls, as a vCPU of KVM does; all else in the guest is slow.

use crate::REAL_TIME;
use crate::machine::{Job, Kernel, Ran};
use crate::module::{self, BEGIN};
use dwell_lab::host::{Cpu, Pinned, allowed, load_of_programs};
use dwell_machine::load::SHARED_CORE;
use dwell_stats::{Environment, ForeignLoad, median};
use dwell_testing::say;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a neighbour with bursts computes, and how long it sleeps then: 15 times the halt cost, as in `dwell-lab neighbour`. A
/// loss of less than four is not taken for a preemption.
const BURST: Duration = Duration::from_millis(3);

/// The naps of an arm.
const NAPS: u64 = 20_000;

/// The script's part that all arms have: `arm NAME` is a load of naps under the setting in force. The neighbour rests in that
/// called `alone`.
fn arm() -> String {
    format!("\narm() {{ at \"begin $1\"; inside nap 0 50 {NAPS} constant >>/out/$1; at \"end $1\"; }}\n")
}

/// Of each arm, the neighbour's work a second in each round.
type Work = BTreeMap<String, Vec<f64>>;

pub(crate) fn the_idle_driver_gives_way_to_a_neighbour(test: &str) -> Result<(), String> {
    let core = *allowed().map_err(|error| error.to_string())?.last().ok_or("no CPU is allowed")?;
    let arm = arm();
    let haltpoll = format!(
        "{arm}
        sleep 3
        P=/sys/module/haltpoll/parameters/guest_halt_poll_ns
        for round in 1 2 3; do echo 0 >$P; arm never; echo 200000 >$P; arm haltpoll; done
        "
    );
    let driver = format!(
        "{BEGIN}{arm}
        keep load insmod /dwell_idle.ko halt_cost_ns=200000 wake_latency_ns=20000 max_window_ns=400000
        counters begun; arm alone; counters alone.ended
        for round in 1 2 3; do echo never >$parameters/policy; arm never; echo leader >$parameters/policy; counters before.$round; arm dwell_idle; counters after.$round; done
        counters left; arm alone; counters ended
        "
    );
    let file = module::file(Kernel::V6_12)?;
    for bursts in [false, true] {
        let of = |append: &str, files, script: &str| {
            let job = Job { options: &REAL_TIME, cpus: 1, append, files, script, ..Job::default() };
            beside_a_neighbour(test, &job, core, bursts)
        };
        let (beside_haltpoll, ..) = of("cpuidle_haltpoll.force=1", vec![], &haltpoll)?;
        let (beside_driver, loads, ran) = of("", vec![file.clone()], &driver)?;
        assert_eq!(loads.len(), 2, "{}", ran.said);
        let mut disturbed = false;
        // Alone it polls, before and right after. It gives way to other programs that preempt a poll, too.
        for ((from, to), load) in [("begun", "alone.ended"), ("left", "ended")].into_iter().zip(loads) {
            let [polled, halted, preempted] =
                ["polls_successful", "halts", "preemptions"].map(|name| module::rise(&ran, from, to, name));
            let alone = format!(
                "alone: {polled} of {NAPS} polled, {halted} halted, {preempted} times preempted, {load:?}"
            );
            say!("{test}: {alone}");
            let others = preempted > 0 && load.is_some_and(|load| load.exceeds(SHARED_CORE));
            assert!(polled > NAPS / 2 || others, "{alone}");
            disturbed |= polled <= NAPS / 2;
        }
        for round in 1..=3 {
            let of = |name| module::rise(&ran, &format!("before.{round}"), &format!("after.{round}"), name);
            let [polled, halted, preempted] = ["polls_successful", "halts", "preemptions"].map(of);
            let [polled_ns, lost_ns] = [of("poll_success_ns") + of("poll_fail_ns"), of("lost_ns")];
            say!(
                "{test}: beside it: {polled} polled, {halted} halted, {preempted} times preempted; {:.1} ms polled, {:.1} ms lost",
                polled_ns as f64 / 1e6,
                lost_ns as f64 / 1e6
            );
        }
        let works = [beside_haltpoll, beside_driver];
        let share = |work: &Work, arm: &str| {
            let of = |name: &str| median(work[name].clone()).unwrap_or(f64::NAN);
            of(arm) / of("never")
        };
        let [haltpoll, dwell_idle] = [share(&works[0], "haltpoll"), share(&works[1], "dwell_idle")];
        let kind = if bursts { "bursts" } else { "busy" };
        say!(
            "{test}: {kind}: the neighbour's work beside never's: haltpoll {haltpoll:.3}, dwell_idle {dwell_idle:.3}"
        );
        if disturbed {
            say!("UNKNOWN {test}: {kind}: others use this machine");
            continue;
        }
        assert!(dwell_idle >= 0.9, "{kind}: {dwell_idle} {works:?}");
    }
    Ok(())
}

/// Runs a job on a core that a neighbour shares. What other programs used in each arm `alone` is returned, too.
fn beside_a_neighbour(
    test: &str,
    job: &Job<'_>,
    core: Cpu,
    bursts: bool,
) -> Result<(Work, Vec<Option<ForeignLoad>>, Ran), String> {
    let (done, stop, works) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| neighbour(core, bursts, &done, [&works, &stop]));
        let machine = scope.spawn(|| {
            // What it starts runs there, too. Once that has started, this thread need not preempt it.
            let mut pinned = Some(Pinned::to(core).map_err(|error| error.to_string())?);
            let (mut seen, mut begun, mut work) = (0, None, Work::new());
            let mut load = load_of_programs().map_err(|error| error.to_string())?;
            let mut loads = vec![];
            let ran = job.run_watched(test, &mut |said| {
                drop(pinned.take());
                // The last line may not be whole yet.
                let whole = said.rfind('\n').map_or("", |end| &said[..end]);
                for line in whole.lines().skip(seen) {
                    seen += 1;
                    let (now, count) = (Instant::now(), done.load(Ordering::Relaxed));
                    match line.split(' ').collect::<Vec<_>>()[..] {
                        [_, "begin", arm] => {
                            works.store(arm != "alone", Ordering::Relaxed);
                            load.begin();
                            begun = Some((now, count));
                        }
                        [_, "end", arm] => {
                            works.store(false, Ordering::Relaxed);
                            let others = load.end();
                            if arm == "alone" {
                                loads.push(others);
                            }
                            let (from, before) = begun.take().expect("an arm that ends has begun");
                            let per_s = (count - before) as f64 / (now - from).as_secs_f64();
                            work.entry(arm.to_owned()).or_default().push(per_s);
                        }
                        _ => {}
                    }
                }
            })?;
            for arm in work.keys() {
                say!("{test}: {arm}: {}", ran.text(arm).trim().replace('\n', "; "));
            }
            Ok((work, loads, ran))
        });
        let work = machine.join().expect("the machine's thread ends");
        stop.store(true, Ordering::Relaxed);
        neighbour.join().expect("the neighbour ends")?;
        work
    })
}

/// Counts what it computes while it works.
fn neighbour(
    core: Cpu,
    bursts: bool,
    done: &AtomicU64,
    [works, stop]: [&AtomicBool; 2],
) -> Result<(), String> {
    let _pinned = Pinned::to(core).map_err(|error| error.to_string())?;
    let mut number = 1u64;
    while !stop.load(Ordering::Relaxed) {
        if !works.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let begun = Instant::now();
        while begun.elapsed() < BURST {
            (0..1_000)
                .for_each(|_| number = std::hint::black_box(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            done.fetch_add(1, Ordering::Relaxed);
        }
        if bursts {
            std::thread::sleep(BURST);
        }
    }
    Ok(())
}
