//! Timers on the real KVM: whoever keeps them, each fires, and none before its deadline.

use super::alone::{self, Alone, Missed, figure, holds, median_us, repeated, say, trial};
use dwell_lab::experiment::timer::{Timer, block, predicted};
use dwell_lab::experiment::{KvmCountsByArm, Rig};
use dwell_lab::gaps::Gaps;
use dwell_policy::Nanos;
use std::sync::atomic::AtomicBool;

const TIMERS: usize = 300;
/// So early that the guest has to poll, however slow this machine wakes it.
const EARLY: &str = "spin-early=90us";
/// A median lateness that only an overcommitted host shows: then nothing can be said of how early a wake is.
const STARVED_US: f64 = 80.0;
const ARMS: [&str; 7] =
    ["in-kernel", "in-kernel+host:200us", "spin", "spin+msi", EARLY, "spin-early=90us+msi", "timerfd"];

fn ahead() -> Gaps {
    Gaps::open("constant:100us".parse().unwrap(), Nanos::MAX).unwrap()
}

fn timer(text: &str) -> Timer {
    text.parse().unwrap()
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn every_timer_fires_and_none_before_its_deadline() {
    let test = "every_timer_fires_and_none_before_its_deadline";
    let Some(Alone { rig, .. }) = &alone::rig(1, test) else { return };
    repeated(test, || measured_once(rig));
}

fn measured_once(rig: &Rig) -> Result<(), Missed> {
    let never = AtomicBool::new(false);
    let blocks = ARMS.map(|arm| {
        let mut kept = KvmCountsByArm::default();
        let block = block(rig, &ahead(), 1, TIMERS, &trial(arm, &timer(arm)), &mut kept, &never).unwrap();
        (block, kept)
    });
    let of = |arm: &str| &blocks[ARMS.iter().position(|name| *name == arm).unwrap()].0;
    say!("timer                      p50 us   early  vCPU us  keeper us  HLT exits");
    for arm in ARMS {
        let value = |name: &str| figure(of(arm), name);
        say!(
            "{arm:<24} {:>8.2} {:>7.2} {:>8.1} {:>10.1} {:>10.2}",
            median_us(of(arm)),
            value("early_share"),
            value("vcpu_cpu_ns_per_timer") / 1e3,
            value("housekeeper_cpu_ns_per_timer") / 1e3,
            value("hlt_exits_per_timer"),
        );
        assert_eq!(of(arm).samples_ns.len(), TIMERS, "{arm}");
        if !arm.starts_with("spin-early") {
            assert_eq!(value("early_share"), 0.0, "{arm}");
        }
    }
    for (arm, (_, kept)) in ARMS.iter().zip(&blocks) {
        let counted = kept.per_round(0);
        assert!(!counted.contains_key("halt_attempted_poll") || arm.contains("host:"), "{arm}: {counted:?}");
        let exits = counted.get("halt_exits").copied().unwrap_or(0.0);
        holds!(exits >= 0.5, "{arm}: {counted:?}");
    }
    let in_kernel = median_us(of("in-kernel"));
    if in_kernel > STARVED_US {
        return Err(Missed::Disturbed(format!("a timer is {in_kernel:.0} us late")));
    }
    let early = figure(of(EARLY), "early_share");
    holds!(early > 0.5, "{early}");
    let early = median_us(of(EARLY));
    holds!(early < in_kernel, "medians of {early} us and {in_kernel} us");
    // Who spins uses the CPU, who sleeps uses little of it, and the kernel's timer needs no thread at all.
    let [spin, timerfd, none] =
        ["spin", "timerfd", "in-kernel"].map(|arm| figure(of(arm), "housekeeper_cpu_share"));
    holds!(spin > timerfd && none < 0.01, "{spin}, {timerfd} and {none} of a CPU");
    Ok(())
}

#[test]
fn the_model_has_a_row_for_this_host() {
    let Some(Alone { rig, .. }) = &alone::rig(1, "the_model_has_a_row_for_this_host") else { return };
    match predicted(rig) {
        Ok(rows) => {
            assert!(rows.len() > 12);
            assert_eq!(rows[0].host, "this host");
            assert!(rows.iter().all(|row| row.running.arming == 1 && row.halted.firing <= 1), "{rows:?}");
        }
        Err(error) => dwell_testing::skip!("kvm", "the_model_has_a_row_for_this_host", "{error}"),
    }
}

#[test]
fn what_is_stopped_ends() {
    alone::ends_when_stopped(&["in-kernel", "spin", "timerfd"], |rig, text, stop| {
        let (setting, kept) = (timer(text), &mut KvmCountsByArm::default());
        block(rig, &ahead(), 1, 3_000, &trial(text, &setting), kept, stop)
    });
}

#[test]
fn what_is_written_is_read_back() {
    for text in ARMS {
        assert_eq!(timer(text).to_string(), text);
    }
    assert_eq!(timer("spin-early=20000 + host:1000+msi").to_string(), "spin-early=20us+msi+host:1us");
    for (text, told) in [
        ("", "spin-early=15us"),
        ("spin=1us", "spin-early=15us"),
        ("spin-early=x", "`x`"),
        ("in-kernel+msi", "not the kernel"),
        ("spin+msi+irqfd", "said once"),
        ("spin+user:never", "halts in the kernel"),
        ("spin+guest:always", "halts in the kernel"),
        ("spin+mso", "mso"),
    ] {
        let error = text.parse::<Timer>().unwrap_err().to_string();
        assert!(error.contains(told), "{text}: {error}");
    }
}
