//! The VMM on the real KVM: every way to idle wakes for every event, and does what it says.

use super::alone::{self, Alone, holds, repeated, say};
use dwell_lab::experiment::waking::{WARM_UP, WakeupBlock, wake};
use dwell_lab::experiment::{LabError, Rig, pingpong};
use dwell_lab::gaps::Gaps;
use dwell_lab::idle::Idle;
use dwell_policy::Nanos;
use dwell_stats::{Arms, Campaign, CampaignOptions, Results};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const WAKES: usize = 300;

fn rig(test: &str) -> Option<Alone> {
    alone::rig(2, test)
}

fn run(rig: &Rig, idle: &str, gaps: &str) -> Result<WakeupBlock, LabError> {
    let gaps = Gaps::open(gaps.parse().unwrap(), Nanos::MAX).unwrap();
    let idle: Idle = idle.parse().unwrap();
    wake(rig, &idle, &gaps.sequence(1, 0, WARM_UP + WAKES).gaps, &AtomicBool::new(false))
}

#[test]
fn every_way_to_idle_sees_every_event() {
    let Some(Alone { rig, .. }) = &rig("every_way_to_idle_sees_every_event") else { return };
    say!("idle                               gaps                  p50 us  CPU us/wake  HLT exits  signals");
    for idle in [
        "host:0",
        "host:200us",
        "guest:haltpoll",
        "guest:kvm@5.10,halt_poll_ns=100us",
        "guest:aio@7.2",
        "guest:ski-rental=30us+host:50us",
        "user:never",
        "user:fixed=100us",
        "user:haltpoll",
        "user:savings@20us,late=10us",
        "user:leader@20us,late=10us",
        "guest:savings@20us,late=10us",
        "guest:leader@20us,late=10us",
        "guest:fixed=20us+user:kvm",
    ] {
        for gaps in ["exponential:60us", "bimodal:1us,150us,0.5"] {
            let waking = run(rig, idle, gaps).unwrap();
            assert_eq!(waking.wakes(), WAKES as u64, "{idle} {gaps}");
            assert_eq!(waking.signalled + waking.avoided, WAKES as u64, "{idle} {gaps}");
            let mut latency = waking.latency_ns.clone();
            latency.sort_unstable();
            say!(
                "{idle:<34} {gaps:<20} {:>7.1} {:>12.1} {:>10} {:>8}",
                latency[latency.len() / 2] as f64 / 1e3,
                waking.per_wake(waking.usage.cpu.get()) / 1e3,
                waking.counters.halt_exits.unwrap_or(0),
                waking.signalled
            );
        }
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn the_host_polls_as_it_is_told() {
    let test = "the_host_polls_as_it_is_told";
    let Some(Alone { rig, .. }) = &rig(test) else { return };
    repeated(test, || {
        let never = run(rig, "host:0", "constant:60us").unwrap();
        assert_eq!(never.counters.halt_attempted_poll, Some(0));
        let slept = never.slept();
        holds!(slept > Some(WAKES as u64 / 2), "{slept:?}");
        let polled = run(rig, "host:10ms", "constant:60us").unwrap().counters.halt_attempted_poll;
        holds!(polled > Some(WAKES as u64 / 2), "{polled:?}");
        Ok(())
    });
}

#[test]
fn poll_control_switches_host_polling_off() {
    let Some(Alone { rig, .. }) = &rig("poll_control_switches_host_polling_off") else { return };
    let allowed = run(rig, "host:10ms", "constant:60us").unwrap();
    let forbidden = run(rig, "host:10ms+no-poll-control", "constant:60us").unwrap();
    say!(
        "poll control: halt_attempted_poll {:?} when allowed, {:?} when forbidden",
        allowed.counters.halt_attempted_poll,
        forbidden.counters.halt_attempted_poll
    );
    assert!(allowed.counters.halt_attempted_poll > Some(0));
    assert_eq!(forbidden.counters.halt_attempted_poll, Some(0));
    assert!(forbidden.counters.halt_exits > Some(0));
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn a_guest_that_polls_needs_no_halt_and_no_interrupt() {
    let test = "a_guest_that_polls_needs_no_halt_and_no_interrupt";
    let Some(Alone { rig, .. }) = &rig(test) else { return };
    repeated(test, || {
        let waking = run(rig, "guest:always", "constant:60us").unwrap();
        assert_eq!(waking.guest.halts, 0);
        assert_eq!(waking.guest.polls, WAKES as u64);
        assert_eq!(waking.guest.polls_succeeded, WAKES as u64);
        // A guest that is kept from running when it is about to lie down is not seen to poll, and is signalled once too
        // often.
        holds!(waking.signalled < WAKES as u64 / 10, "{}", waking.signalled);
        let polled = rig.nanos(waking.guest.polled_cycles);
        holds!(polled > 30_000 * WAKES as u64, "{polled}");
        Ok(())
    });
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn user_space_polls_by_the_policy() {
    let test = "user_space_polls_by_the_policy";
    let Some(Alone { rig, .. }) = &rig(test) else { return };
    repeated(test, || {
        let never = run(rig, "user:never", "constant:100us").unwrap();
        assert_eq!(never.user.polls, 0);
        assert!(never.user.halts > 0);
        // When counters are read, first and last, the guest is about to halt or has halted. A guest that is kept from
        // running for a whole gap does not halt in it.
        let halts = never.counters.halt_exits.unwrap();
        holds!(halts.abs_diff(WAKES as u64) <= 1, "{halts}");
        Ok(())
    });
    let always = run(rig, "user:always", "constant:100us").unwrap();
    assert_eq!((always.user.halts, always.signalled), (0, 0));
    assert_eq!(always.user.polls_succeeded, WAKES as u64);
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn policies_that_learn_find_out_live_what_is_worth_a_poll() {
    let test = "policies_that_learn_find_out_live_what_is_worth_a_poll";
    let Some(Alone { rig, .. }) = &rig(test) else { return };
    for (place, policy) in ["user", "guest"].into_iter().flat_map(|p| ["savings", "leader"].map(|q| (p, q))) {
        repeated(test, || {
            // At 200 us for a halt every gap of 60 us is worth a poll; at 10 us none of 300 us is.
            let short = run(rig, &format!("{place}:{policy}@200us,late=15us"), "constant:60us").unwrap();
            let long = run(rig, &format!("{place}:{policy}@10us,late=8us"), "constant:300us").unwrap();
            let [short, long] =
                [short, long].map(|waking| if place == "user" { waking.user } else { waking.guest });
            holds!(short.polls_succeeded > WAKES as u64 / 2, "{place} {policy}: {short:?}");
            holds!(long.halts > WAKES as u64 * 9 / 10, "{place} {policy}: {long:?}");
            Ok(())
        });
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn players_exchange_every_message() {
    let test = "players_exchange_every_message";
    let Some(Alone { rig, .. }) = &rig(test) else { return };
    repeated(test, || {
        let findings = exchanged(rig);
        let value = |arm: &str, figure: &str| findings.row(arm, figure).unwrap().value.unwrap().value;
        for arm in ["no polling", "futex", "spin", "guest polling", "no poll control"] {
            assert_eq!(findings.row(arm, "p50").unwrap().samples, Some(2 * WAKES as u64));
            say!("{arm:<16} p50 {:>9.0} ns", value(arm, "p50"));
        }
        assert_eq!(value("no polling", "ipis_avoided_per_exchange"), 0.0);
        assert_eq!(value("no poll control", "host_polls_per_exchange"), 0.0);
        let sent = value("no polling", "ipis_sent_per_exchange");
        holds!(sent >= 1.9, "{sent}");
        let [avoided, sent] = ["ipis_avoided_per_exchange", "ipis_sent_per_exchange"]
            .map(|figure| value("guest polling", figure));
        holds!(avoided > sent, "{avoided} and {sent}");
        Ok(())
    });
}

fn exchanged(rig: &Rig) -> Results {
    let stop = AtomicBool::new(false);
    let think = Gaps::open("constant:20us".parse().unwrap(), Nanos::MAX).unwrap();
    let vcpus = |idle: &str| pingpong::Participants::Vcpus(Box::new(idle.parse().unwrap()));
    let arms = Arms::new("no polling", vcpus("host:0"))
        .arm("futex", pingpong::Participants::Futex)
        .arm("spin", pingpong::Participants::Spin)
        .arm("guest polling", vcpus("guest:haltpoll"))
        .arm("no poll control", vcpus("host:200us+no-poll-control"));
    let plan = CampaignOptions { min_rounds: 1, max_rounds: 1, ..CampaignOptions::default() };
    let campaign = Campaign::new("pingpong", arms, pingpong::figures(), plan).unwrap();
    let start = Instant::now();
    let record = campaign
        .run(&mut || start.elapsed(), &stop, &mut |_| (), |turn| {
            pingpong::block(rig, &think, 1, WAKES, turn, &stop)
        })
        .unwrap();
    record.results()
}

#[test]
fn what_is_stopped_leaves_no_thread_behind() {
    let Some(Alone { rig, .. }) = &rig("what_is_stopped_leaves_no_thread_behind") else { return };
    let stop = AtomicBool::new(true);
    for idle in ["host:0", "guest:always", "user:never"] {
        let gaps = vec![Nanos(50_000); WARM_UP + WAKES];
        let stopped = wake(rig, &idle.parse().unwrap(), &gaps, &stop).unwrap_err();
        assert!(matches!(stopped, LabError::Stopped), "{stopped}");
    }
    assert_eq!(alone::threads_left(), 0);
}
