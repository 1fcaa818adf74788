//! The live controller on a whole machine: its changes, what they save by the kernel's own count, and the originals afterwards.

use crate::VIRTUAL_TIME;
use crate::counted::Counted;
use crate::machine::{Job, Ran};
use dwell_testing::say;
use std::time::{Duration, Instant};

/// A load for so many seconds, and what was counted in the second after them.
const PHASE: &str = "
    phase() {
        inside nap 0 $2 1000000 $3 >/dev/null & load=$!
        sleep $4
        counted $1.begun
        sleep 1
        counted $1.ended
        kill $load
    }
";

/// The halt cost \[us\].
const K: f64 = 60.0;

/// Cost in a phase: CPU time polled and halts at their cost, as a share of a CPU.
fn cost(ran: &Ran, phase: &str) -> f64 {
    let [begun, ended] = ["begun", "ended"].map(|when| Counted::of(ran, &format!("{phase}.{when}")));
    let by = |file: &str| begun.per_s(&ended, "cpu0/cpuidle", file);
    (by("state0/time") + K * by("state1/usage")) / 1e6
}

/// Two loads one after the other, under the defaults and under control.
pub(crate) fn the_guest_layer_is_controlled(test: &str) -> Result<(), String> {
    let script = format!(
        "{PHASE}
        counted first
        phase default.long 150 exponential 0.3
        at default.long
        phase default.short 30 constant 0.3
        at default.short
        dwell control --mode active --layer guest --halt-cost 60us >/out/control.txt 2>&1 & control=$!
        sleep 0.5
        phase controlled.long 150 exponential 2
        at controlled.long
        keep status.json dwell control status
        phase controlled.short 30 constant 2
        at controlled.short
        keep stop.json dwell control stop
        wait $control
        counted last
    "
    );
    let job = Job {
        options: &VIRTUAL_TIME,
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
    }
    let own = status["layers"][0]["cpu_share"].as_f64().unwrap_or(f64::NAN);
    say!("{test}: dwell itself took {:.1} % of a CPU; {:.0} s", 100.0 * own, begun.elapsed().as_secs_f64());
    let [first, last] = ["first", "last"].map(|when| Counted::of(&ran, when).parameters);
    assert_eq!(last, first);
    assert!(lines.contains("guest: the originals are in force again"), "{lines}");
    assert!(lines.contains("an episode instead of"), "nothing was changed: {lines}\n{status}");
    Ok(())
}
