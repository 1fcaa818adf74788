//! The live controller on a whole machine: its changes, what they save by the kernel's own count, and the
//! originals afterwards.

use crate::counted::Counted;
use crate::machine::{Job, Ran};
use dwell_testing::say;
use serde_json::Value;
use std::time::{Duration, Instant};

/// A load for so many seconds, and what was counted in half a second after them.
const PHASE: &str = "
    phase() {
        inside nap 0 $2 1000000 $3 >/dev/null & load=$!
        sleep $4
        counted $1.begun
        sleep 0.5
        counted $1.ended
        kill $load
    }
";

/// The halt cost \[us\].
const K: f64 = 60.0;

/// That the only layer of a status has had another setting since it is cheaper, by a replay or in turns.
pub(crate) fn has_gained(status: &Value, lines: &str) {
    let gains = status["layers"][0]["reasons"]["gain"].as_u64();
    assert!(gains >= Some(1), "nothing was changed: {lines}\n{status}");
}

/// Cost in a phase: CPU time polled and halts at their cost, as a share of a CPU.
fn cost(ran: &Ran, phase: &str) -> f64 {
    let [begun, ended] = ["begun", "ended"].map(|when| Counted::of(ran, &format!("{phase}.{when}")));
    let by = |file: &str| begun.per_s(&ended, "cpu0/cpuidle", file);
    (by("state0/time") + K * by("state1/usage")) / 1e6
}

/// Two loads one after the other, under the defaults and under control, which may use more of the slow
/// emulated CPU than it does by default.
pub(crate) fn the_guest_layer_is_controlled(test: &str) -> Result<(), String> {
    let script = format!(
        "{PHASE}
        counted first
        phase default.long 150 exponential 0.3
        at default.long
        phase default.short 30 constant 0.3
        at default.short
        echo 'cpu_limit = \"20%\"' >/run/control.toml
        dwell control --config /run/control.toml --mode active --layer guest --halt-cost 60us >/out/control.txt 2>&1 & control=$!
        until_succeeds grep -q 'guest: controls;' /out/control.txt
        phase controlled.long 150 exponential 2
        at controlled.long
        phase controlled.short 30 constant 2
        at controlled.short
        keep status.json dwell status --control --format json
        keep stop.json dwell control stop
        wait $control
        counted last
    "
    );
    let job = Job {
        options: crate::coarse_time(),
        append: "cpuidle_haltpoll.force=1",
        script: &script,
        limit: Duration::from_secs(600),
        ..Job::default()
    };
    let begun = Instant::now();
    let ran = job.run(test)?;
    ["status.json", "stop.json"].iter().for_each(|command| ran.succeeded(command));
    let lines = ran.text("control.txt");
    lines.lines().for_each(|line| say!("{test}: {line}"));
    let status = ran.json("status.json");
    for phase in ["long", "short"] {
        let [default, controlled] =
            ["default", "controlled"].map(|arm| cost(&ran, &format!("{arm}.{phase}")));
        say!(
            "{test}: {phase}: {:.1} % of a CPU by default, {:.1} % controlled",
            100.0 * default,
            100.0 * controlled
        );
        // What turns cost within a short time is judged where nothing else runs.
        let most = match phase {
            "long" => 0.8,
            _ if crate::is_long() => 1.02,
            _ => 1.5,
        };
        assert!(
            controlled <= most * default,
            "{phase}: {controlled} controlled, {default} by default: {lines}\n{status}"
        );
    }
    let own = status["layers"][0]["cpu_share"].as_f64().unwrap_or(f64::NAN);
    say!("{test}: dwell itself took {:.1} % of a CPU; {:.0} s", 100.0 * own, begun.elapsed().as_secs_f64());
    let [first, last] = ["first", "last"].map(|when| Counted::of(&ran, when).parameters);
    assert_eq!(last, first);
    assert!(lines.contains("guest: the originals are in force again"), "{lines}");
    has_gained(&status, &lines);
    assert!(!lines.contains("control ends"), "{lines}");
    Ok(())
}

/// Two threads that wake each other after 20, 1 and 100 us of work, with an idle machine between: round trips a second of each phase.
const PING_PONG: &str = "
    phases() {
        for work_us in 20 0 1 100 20; do
            if [ $work_us = 0 ]; then inside nap 0 20000 300 constant >/dev/null; continue; fi
            echo $1 $work_us $(inside pingpong $work_us 10000) >>/out/rates
        done
    }
    max() { echo $1 >/sys/module/haltpoll/parameters/guest_halt_poll_ns; inside pingpong 20 300 >/dev/null; }
    controlled() {
        max $1
        dwell control --mode active --layer guest --halt-cost 200us >/out/control.$1.txt 2>&1 & control=$!
        until_succeeds grep -q 'guest: controls;' /out/control.$1.txt
        phases controlled.$1
        keep stop.$1 dwell control stop
        wait $control
    }
";

/// The least work under control, as a share of that under the better of *never* and the default. The recorder and dwell are emulated
/// too, and take ten times as long.
const LEAST_WORK: f64 = 0.7;

/// Loads that react, one after the other, under control that begins with *never* or with the default.
pub(crate) fn loads_that_react_are_controlled(test: &str) -> Result<(), String> {
    let script = format!(
        "{PING_PONG}
        for max in 0 200000; do max $max; phases fixed.$max; done
        for max in 0 200000; do controlled $max; done"
    );
    let limit = Duration::from_secs(400);
    let job = Job { append: crate::guest::FORCED, script: &script, limit, ..Job::in_parallel() };
    let ran = job.run(test)?;
    let rates = ran.text("rates");
    let rates_of = |arm: &str| -> Vec<f64> {
        let of = rates.lines().filter_map(|line| line.strip_prefix(arm)?.split(' ').next_back());
        of.map(|rate| rate.parse().expect("a rate is a number")).collect()
    };
    let [never, default] = ["fixed.0", "fixed.200000"].map(rates_of);
    let mut failed = vec![];
    for from in ["0", "200000"] {
        ran.succeeded(&format!("stop.{from}"));
        ran.text(&format!("control.{from}.txt")).lines().for_each(|line| say!("{test}: {line}"));
        let controlled = rates_of(&format!("controlled.{from} "));
        assert!(controlled.len() == 4 && never.len() == 4 && default.len() == 4, "{rates}");
        for (phase, rate) in controlled.iter().enumerate() {
            let work = rate / never[phase].max(default[phase]);
            say!(
                "{test}: from {from}, phase {phase}: {rate:.0} a second, {:.0} never, {:.0} by default: {work:.2}",
                never[phase],
                default[phase]
            );
            if work < LEAST_WORK {
                failed.push((from, phase, work));
            }
        }
    }
    assert!(failed.is_empty(), "too little work: {failed:?}");
    Ok(())
}

/// KVM, of which two VMs keep their statistics files open; each has a vCPU on a CPU of its own, is woken from
/// another one, and has its load in a file. The controller has the last CPU, so that no other task ends a
/// poll.
const HOST: &str = "
    insmod /mod/later/kvm_amd.ko nested=0
    maximum=/sys/module/kvm/parameters/halt_poll_ns
    echo 8000000 >$maximum
    echo constant:50ms | tee /run/a >/run/b
    inside vm 0 /run/a 1 & echo $! >/out/a
    inside vm 2 /run/b 1 & echo $! >/out/b
    kvm() {
        grep -H . /sys/kernel/debug/kvm/*-*/halt_* /proc/uptime >/out/$1.counted
        grep -H . /sys/module/kvm/parameters/halt_poll* >/out/$1.parameters
    }
    phase() {
        echo $2 >/run/a
        echo $3 >/run/b
        sleep $4
        kvm $1.begun
        sleep $judged
        kvm $1.ended
        at $1
    }
    phases() {
        phase $1.sparse exponential:6ms constant:50ms $2
        phase $1.short constant:600us constant:50ms $3
        phase $1.both constant:600us exponential:6ms $3
    }
    control() {
        taskset 10 dwell control --mode active --layer host --halt-cost 1200us >/out/$1.txt 2>&1 & control=$!
    }
    until grep -q . /sys/kernel/debug/kvm/*-*/halt_exits; do sleep 0.1; done 2>/dev/null
    sleep 0.2
    kvm first
    phases default 0.5 0.5
    control control
    phases controlled 12 $before
    keep status.json dwell status --control --format json
    keep stop.json dwell control stop
    wait $control
    kvm stopped
    control again
    phase again exponential:6ms exponential:6ms 4
    until [ $(cat $maximum) != 8000000 ]; do sleep 0.01; done
    echo 123456 >$maximum
    sleep 0.2
    keep foreign.json dwell status --control --format json
    keep end.json dwell control stop
    wait $control
    kvm last
    killall inside
";

/// The halt cost of the host layer \[us\].
const HOST_K: f64 = 1200.0;

/// Cost of a VM in a phase, by KVM's own count: CPU time polled and halts at their cost, as a share of a CPU.
fn cost_of_vm(ran: &Ran, phase: &str, vm: &str) -> f64 {
    let [begun, ended] = ["begun", "ended"].map(|when| Counted::of(ran, &format!("{phase}.{when}")));
    let begin = format!("/kvm/{}-", ran.text(vm).trim());
    let by = |file: &str| begun.per_s(&ended, &begin, &format!("/{file}"));
    let polled_us = (by("halt_poll_success_ns") + by("halt_poll_fail_ns")) / 1e3;
    (polled_us + HOST_K * (by("halt_exits") - by("halt_successful_poll"))) / 1e6
}

/// One VM under two loads one after the other, then two VMs with one load each, under the defaults and under control.
pub(crate) fn the_host_layer_is_controlled(test: &str) -> Result<(), String> {
    // For how many seconds each load is counted, and for how many those that only the long form judges run before that.
    let (judged, before) = if crate::is_long() { (3, 12) } else { (1, 1) };
    let script = format!("judged={judged}\nbefore={before}\n{HOST}");
    let job = Job {
        options: crate::coarse_time(),
        cpus: 5,
        memory_mib: 1536,
        modules: &["kvm"],
        later: &["kvm_amd"],
        script: &script,
        limit: Duration::from_secs(1200),
        ..Job::default()
    };
    let begun = Instant::now();
    let ran = job.run(test)?;
    ["status.json", "stop.json", "foreign.json", "end.json"]
        .iter()
        .for_each(|command| ran.succeeded(command));
    for lines in ["control.txt", "again.txt"] {
        ran.text(lines).lines().for_each(|line| say!("{test}: {line}"));
    }
    let cost = |phase: &str, vm: &str| {
        let [default, controlled] =
            ["default", "controlled"].map(|arm| cost_of_vm(&ran, &format!("{arm}.{phase}"), vm));
        say!(
            "{test}: {phase}: VM {vm}: {:.1} % of a CPU by default, {:.1} % controlled",
            100.0 * default,
            100.0 * controlled
        );
        [default, controlled]
    };
    let [sparse, short] = ["sparse", "short"].map(|phase| cost(phase, "a"));
    let both = ["a", "b"].map(|vm| cost("both", vm));
    let own = ran.json("status.json")["layers"][0]["cpu_share"].as_f64().unwrap_or(f64::NAN);
    say!("{test}: dwell itself took {:.1} % of a CPU; {:.0} s", 100.0 * own, begun.elapsed().as_secs_f64());
    // Long gaps, then short ones, which cost the originals next to the least that is possible; then both
    // under one setting. The last two depend on what turns show within seconds, by the clock of a busy machine.
    assert!(sparse[1] < 0.6 * sparse[0], "{sparse:?}");
    if crate::is_long() {
        assert!(short[1] < 1.2 * short[0], "{short:?}");
        let [default, controlled] = [0, 1].map(|arm| both[0][arm] + both[1][arm]);
        assert!(controlled < 0.95 * default, "{both:?}");
    }

    let [first, stopped, last] = ["first", "stopped", "last"].map(|when| Counted::of(&ran, when).parameters);
    assert_eq!(stopped, first);
    // A value that another program writes stays, and the other parameters go back.
    let foreign = ran.json("foreign.json")["layers"][0].clone();
    assert_eq!(foreign["state"], "given_up", "{foreign}");
    let lines = ran.text("again.txt");
    let own =
        lines.split_once("halt_poll_ns is 123456 and not ").and_then(|(_, after)| after.split_once(':'));
    assert!(own.is_some_and(|(own, _)| own.parse().is_ok_and(|own: u32| own < 8_000_000)), "{lines}");
    assert_eq!(last, first.replace("halt_poll_ns:8000000", "halt_poll_ns:123456"));
    Ok(())
}
