//! A load recorded under one setting of haltpoll, predicted for others and measured under them: an open loop, in virtual time, and
//! two threads that wait for each other, on CPUs emulated in parallel.

use crate::machine::{Job, Ran, dwell_json};
use dwell_testing::say;
use serde_json::Value;
use std::time::Duration;

/// `guest_halt_poll_ns` and `guest_halt_poll_grow_start` \[ns\]: ten times the usual values, as the emulated CPU takes 20 us to wake,
/// and the recorder's probes 10 us around a poll.
const SETTINGS: [[u64; 2]; 3] = [[250_000, 62_500], [500_000, 500_000], [2_000_000, 500_000]];

/// How far polls, halts and polled time may be off.
const OFF: f64 = 0.05;

/// Recorded under each of three settings, predicted for the other two. The load sleeps for 2 ms on average under all of them. Under
/// the first there are 52 polls a second: in 16 s they are enough for what is chance to be less than that bound.
pub(crate) fn an_open_loop_is_predicted(test: &str) -> Result<(), String> {
    let script: String = SETTINGS
        .map(|[max_ns, start_ns]| {
            format!(
                "echo {max_ns} >/sys/module/haltpoll/parameters/guest_halt_poll_ns
                echo {start_ns} >/sys/module/haltpoll/parameters/guest_halt_poll_grow_start
                inside nap 0 2000 1000000 exponential >/dev/null & load=$!
                sleep 0.1
                keep {max_ns} dwell record guest --source bpf --duration 16s -o /out/{max_ns}.parquet
                kill $load\n"
            )
        })
        .concat();
    let limit = Duration::from_secs(900);
    let options = crate::coarse_time();
    let ran =
        Job { options, append: crate::guest::FORCED, cpus: 1, script: &script, limit, ..Job::default() };
    let ran = ran.run(test)?;
    let of = |[recorded_ns, _]: [u64; 2], [max_ns, start_ns]: [u64; 2]| {
        ran.succeeded(&recorded_ns.to_string());
        let [max, start] =
            [format!("guest_halt_poll_ns={max_ns}ns"), format!("guest_halt_poll_grow_start={start_ns}ns")];
        let file = ran.path(&format!("{recorded_ns}.parquet"));
        dwell_json(&["replay", "--halt-cost", "20us", "--set", &max, "--set", &start], &[&file])
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    // Polls, halts, and time polled \[ns\], in a second.
    let recorded = SETTINGS.map(|setting| {
        let found = of(setting, setting);
        let figures = found["self_check"]["figures"].as_array().expect("figures");
        let figure = |name: &str| {
            number(&figures.iter().find(|figure| figure["figure"] == name).expect(name)["recorded"])
        };
        ["polls", "halts", "polled_ns"].map(|name| figure(name) * 1e9 / number(&found["span_ns"]))
    });
    let mut worst = 0f64;
    for (from, under) in SETTINGS.into_iter().enumerate() {
        for (to, setting) in SETTINGS.into_iter().enumerate().filter(|(to, _)| *to != from) {
            let found = of(under, setting);
            let rows = found["results"].as_array().expect("results");
            let row = rows.iter().find(|row| row["policy"] == "haltpoll").expect("haltpoll");
            let per_s = 1e9 / number(&found["span_ns"]);
            let predicted = [
                number(&row["polls"]) * per_s,
                number(&row["halts_per_s"]),
                number(&row["polling_ns_per_s"]),
            ];
            let off: [f64; 3] = std::array::from_fn(|figure| predicted[figure] / recorded[to][figure] - 1.0);
            say!(
                "{test}: from {} to {} ns: polls, halts, polled ns a second {predicted:.0?}, {:.0?} recorded, off by {off:.3?}",
                under[0],
                setting[0],
                recorded[to]
            );
            worst = off.into_iter().map(f64::abs).fold(worst, f64::max);
        }
    }
    assert!(worst <= OFF, "off by {worst:.3}");
    Ok(())
}

/// `guest_halt_poll_ns`: never, and the default.
const MAXIMA: [u64; 2] = [0, 200_000];

/// How long each of the two runs before it wakes the other \[us\]. An emulated CPU takes 40 to 70 us to wake.
const WORK_US: [u64; 3] = [1, 20, 100];

/// How often: an emulated CPU is twice as fast in one second as in another, and what is compared has to be of the same ones.
const ROUNDS: usize = 3;
/// Turns under each maximum in a round.
const TURNS: usize = 3;

/// The recorder's BPF programs are emulated as well and make segments 10 to 20 us longer, so that only the range is tested: it has to
/// contain what was measured without a recorder. Both are means of the rounds.
pub(crate) fn loads_that_react_are_predicted(test: &str) -> Result<(), String> {
    let mut failed = vec![];
    for work_us in WORK_US {
        let ran = under_both(test, work_us)?;
        let faster = faster(&ran);
        for (from, to) in [(0, 1), (1, 0)] {
            let [middle, low, high] = predicted(&ran, MAXIMA[from], MAXIMA[to]);
            let measured = if from == 0 { faster } else { 1.0 / faster };
            say!(
                "{test}: {work_us} us of work, from {} to {} us: {middle:.2} ({low:.2} to {high:.2}) predicted, {measured:.2} measured",
                MAXIMA[from] / 1_000,
                MAXIMA[to] / 1_000
            );
            if !(low..=high).contains(&measured) {
                failed.push((work_us, from, to, measured, [middle, low, high]));
            }
        }
    }
    assert!(failed.is_empty(), "outside the range: {failed:?}");
    Ok(())
}

/// The work under the second maximum over that under the first, by pairs of turns.
fn faster(ran: &Ran) -> f64 {
    let rates: Vec<f64> =
        ran.text("rates").lines().map(|line| line.parse().expect("a rate is a number")).collect();
    assert_eq!(rates.len(), 2 * TURNS * ROUNDS);
    geometric_mean(rates.chunks(2).map(|pair| pair[1] / pair[0]))
}

fn geometric_mean(of: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = of.len() as f64;
    (of.map(f64::ln).sum::<f64>() / count).exp()
}

/// In each round turns under both maxima without a recording, and a recording under each.
fn under_both(test: &str, work_us: u64) -> Result<Ran, String> {
    let [never, default] = MAXIMA;
    let script = format!(
        "max() {{ echo $1 >/sys/module/haltpoll/parameters/guest_halt_poll_ns; inside pingpong {work_us} 100 >/dev/null; }}
        for round in $(seq {ROUNDS}); do
            for turn in $(seq {TURNS}); do
                max {never}; inside pingpong {work_us} 400 >>/out/rates
                max {default}; inside pingpong {work_us} 400 >>/out/rates
            done
            for max in {never} {default}; do
                max $max
                inside pingpong {work_us} 9000 >/dev/null & load=$!
                sleep 0.4
                keep $max.$round dwell record guest --duration 1s -o /out/$max.$round.parquet
                kill $load
            done
        done"
    );
    let job = Job { append: crate::guest::FORCED, script: &script, ..Job::in_parallel() };
    job.run(test)
}

/// What `tune` says of the speed under another maximum than was recorded, all else being as it was: the middle, and the ends of its
/// range.
fn predicted(ran: &Ran, recorded_ns: u64, max_ns: u64) -> [f64; 3] {
    const MAXIMUM: &str = "guest_halt_poll_ns";
    let rounds: Vec<[f64; 3]> = (1..=ROUNDS)
        .map(|round| {
            let name = format!("{recorded_ns}.{round}");
            ran.succeeded(&name);
            let recording = ran.path(&format!("{name}.parquet"));
            let tune = dwell_json(&["tune", "--halt-cost", "20us", "--despite-self-check"], &[&recording]);
            let settings = tune["work"]["settings"].as_array().expect("a table of work");
            let mut wanted = settings[0]["setting"].clone();
            wanted[MAXIMUM] = max_ns.into();
            let row = settings.iter().find(|row| row["setting"] == wanted);
            let speed = &row.expect("the maximum is in the table")["speed"];
            ["middle", "low", "high"].map(|end| speed[end].as_f64().expect("a number"))
        })
        .collect();
    std::array::from_fn(|end| geometric_mean(rounds.iter().map(|round| round[end])))
}
