//! smoke
use dwell_lab::experiment::{Rig, waking};
use dwell_lab::experiment::pingpong;
use dwell_lab::method::*;
use dwell_policy::Nanos;
use std::sync::atomic::AtomicBool;

#[test]
fn wakes() {
    let rig = Rig::new();
    let stop = AtomicBool::new(false);
    let gaps = Gaps::open("exponential:100us".parse().unwrap(), Nanos(1_000_000_000)).unwrap().sequence(1, 0, 2000).gaps;
    for idle in ["host:0", "host:50us", "host:200us", "host:1ms", "user:never", "user:fixed=200us", "user:kvm", "guest:haltpoll", "guest:fixed=200us", "guest:always", "guest:haltpoll+host:200us", "guest:haltpoll+host:200us+no-poll-control"] {
        let w = waking::wake(&rig, &idle.parse().unwrap(), &gaps, &stop);
        match w {
            Ok(w) => { let mut l = w.latency_ns.clone(); l.sort();
                eprintln!("{idle:40} p50 {} p99 {} cpu/wake {:.1} share {:.2} switches {:.2} polls {:.2} ok {:.2} slept {:.2} exits {:.2} sig {} avoided {} idling {:?} user {:?}", l[l.len()/2], l[l.len()*99/100], w.per_wake(w.usage.cpu.get())/1e3, w.usage.cpu.get() as f64 / w.wall_ns as f64, w.per_wake(w.usage.switches()),
                w.per_wake(w.counters.halt_attempted_poll.unwrap()), w.per_wake(w.counters.halt_successful_poll.unwrap()), w.per_wake(w.counters.halt_wait_hist.clone().unwrap().iter().sum()), w.per_wake(w.counters.halt_exits.unwrap()), w.signalled, w.avoided, w.idling, w.user); }
            Err(e) => eprintln!("{idle}: {e}"),
        }
    }
    let arms = pingpong::figures();
    let think = Gaps::open("constant:20us".parse().unwrap(), Nanos(1_000_000_000)).unwrap();
    use pingpong::Players::*;
    let v = |s: &str| Vcpus(s.parse().unwrap());
    let arms2 = Arms::new("no polling", v("host:0")).arm("spin", Spin).arm("futex", Futex).arm("host", v("host:200us")).arm("guest", v("guest:haltpoll")).arm("both", v("guest:haltpoll+host:200us")).arm("both no pc", v("guest:haltpoll+host:200us+no-poll-control"));
    let c = Campaign::new("pp", arms2, arms, Plan { min_rounds: 2, max_rounds: 2, ..Plan::default() }).unwrap();
    let r = c.run(&mut Undisturbed::new(), &stop, &mut |_| (), |t| pingpong::block(&rig, &think, 1, 500, t, &stop)).unwrap();
    for row in r.findings().rows { eprintln!("{:12} {:28} {:?}", row.arm, row.figure, row.value.map(|v| v.value)); }
}
