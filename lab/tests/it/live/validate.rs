//! A prediction from a live recording against the same gaps under other settings.

use super::alone::{self, Alone, Missed, holds, repeated};
use dwell_lab::experiment::calibrate::{cost, halted_for_polling, measure};
use dwell_lab::experiment::validate::{
    FEWEST_PAIRS, FIGURES, Others, Prediction, block, figures, predictions,
};
use dwell_lab::experiment::{LabError, Rig};
use dwell_lab::gaps::Gaps;
use dwell_lab::host::load_on;
use dwell_lab::host::thread::Contenders;
use dwell_lab::idle::Idle;
use dwell_policy::Nanos;
use dwell_replay::calibration::{HaltCosts, HaltOf};
use dwell_stats::{Arms, Block, Campaign, CampaignError, CampaignOptions, Measurements};
use dwell_testing::say;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What is predicted may be off by so much on a machine that others use too; `dwell-lab validate` tells how far it is.
const TOLERANCE: f64 = 0.25;

/// On a shared core, of each setting, the median over pairs of blocks.
const SHARED_TOLERANCE: f64 = 0.1;

/// KVM does not poll there, so that a halt would seem to cost nothing.
#[test]
fn a_calibration_beside_another_task_is_known_for_one() {
    let test = "a_calibration_beside_another_task_is_known_for_one";
    let Some(Alone { rig, .. }) = &alone::rig(1, test) else { return };
    let _contender = Contenders::on(rig.cores().vcpus.first().copied(), 1).unwrap();
    let once = CampaignOptions { min_rounds: 1, max_rounds: 1, repeats: 0, ..CampaignOptions::default() };
    let begun = Instant::now();
    let measured =
        measure(rig, Nanos(1_000_000), once, &mut || begun.elapsed(), &AtomicBool::new(false), &mut |_| ());
    let halted = halted_for_polling(&measured.unwrap());
    assert!(halted.is_none_or(|share| share > 0.5), "{halted:?}");
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn predictions_come_true() {
    let test = "predictions_come_true";
    let Some(Alone { rig, .. }) = &alone::rig(1, test) else { return };
    repeated(test, || {
        let Some(Validated { predictions, disturbed, .. }) = validated(rig, test, 0) else { return Ok(()) };
        // What does not depend on the machine: with a long window hardly anybody halts, without one nearly all do.
        let [long, none] = ["host:1ms", "host:0"].map(|arm| of(&predictions, arm, "halts").predicted);
        holds!(long < 0.1 && none > 0.5, "{long} and {none} halts");
        let judged = [("host:0", "halts"), ("host:100us", "polls"), ("host:1ms", "polls_succeeded")];
        let errors = judged.map(|(arm, figure)| (arm, figure, of(&predictions, arm, figure).error.value));
        within(&errors, TOLERANCE, disturbed)
    });
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn predictions_come_true_on_a_shared_core() {
    let test = "predictions_come_true_on_a_shared_core";
    let Some(Alone { rig, .. }) = &alone::rig(1, test) else { return };
    for tasks in [1, 2] {
        repeated(test, || {
            let Some(Validated { predictions, undisturbed, .. }) = validated(rig, test, tasks) else {
                return Ok(());
            };
            // KVM polls for one pass of its loop, whatever the window: nearly as many halt as without one.
            // Where a halt takes long, the shortest gaps are over before the vCPU gets there.
            let [long, none] = ["host:1ms", "host:0"].map(|arm| of(&predictions, arm, "halts").predicted);
            holds!(long > 0.95 * none && none > 0.5, "{long} and {none} halts");
            let judged = predictions.iter().filter(|v| ["polls", "polled_ns", "halts"].contains(&&*v.figure));
            let errors: Vec<_> =
                judged.map(|v| (v.arm.as_str(), &*v.figure, v.median_error.unwrap())).collect();
            say!(
                "{tasks} tasks: {} medians of errors judged, of {undisturbed} undisturbed pairs of blocks each",
                errors.len()
            );
            within(&errors, SHARED_TOLERANCE, undisturbed < FEWEST_PAIRS)
        });
    }
}

/// Whether all errors are within a tolerance; where others disturbed what was measured, one that is not says nothing.
fn within(errors: &[(&str, &str, f64)], tolerance: f64, disturbed: bool) -> Result<(), Missed> {
    let beyond = errors.iter().filter(|(_, _, error)| error.is_nan() || error.abs() >= tolerance);
    let beyond: Vec<String> = beyond
        .map(|(arm, figure, error)| format!("{arm} {figure} is predicted {:+.1} % off", error * 100.0))
        .collect();
    match (beyond.is_empty(), disturbed) {
        (true, _) => Ok(()),
        (false, true) => Err(Missed::Disturbed(beyond.join(", "))),
        (false, false) => Err(Missed::Wrong(beyond.join(", "))),
    }
}

fn of<'v>(predictions: &'v [Prediction], arm: &str, figure: &str) -> &'v Prediction {
    predictions.iter().find(|v| v.arm == arm && v.figure == figure).unwrap()
}

struct Validated {
    predictions: Vec<Prediction>,
    /// The fewest undisturbed pairs of blocks of an arm.
    undisturbed: usize,
    /// Whether others used the cores in a block that counts.
    disturbed: bool,
}

/// With so many CPU-bound tasks on the vCPU's core; `None` where it cannot be measured here.
fn validated(rig: &Rig, test: &str, tasks: usize) -> Option<Validated> {
    // All threads of this process are on the cores of the experiment, so that the others' are told apart.
    let _aside = rig.aside().unwrap();
    let (stop, mut load) = (AtomicBool::new(false), load_on(rig.cores().all()).unwrap());
    // A poll on a shared core is one pass of KVM's loop, whose length depends on what else the machine does
    // in that block.
    let rounds = if tasks > 0 { 8 } else { 2 };
    let plan = CampaignOptions {
        min_rounds: rounds,
        max_rounds: rounds,
        foreign_limit: 0.04,
        repeats: 2,
        quiet_wait: Duration::from_millis(500),
        ..CampaignOptions::default()
    };
    let mut costs = vec![];
    let brief = CampaignOptions { min_rounds: 2, max_rounds: 2, ..plan.clone() };
    for gap in [Nanos(50_000), Nanos(300_000)] {
        let record = measure(rig, gap, brief.clone(), &mut load, &stop, &mut |_| ()).unwrap();
        costs.extend(cost(gap, &record));
    }
    let calibration = HaltCosts { halt_of: HaltOf::Vcpu, costs };
    let others: Vec<(String, Idle)> =
        ["host:0", "host:100us", "host:1ms"].map(|text| (text.to_owned(), text.parse().unwrap())).into();
    let gaps = Gaps::open("exponential:80us".parse().unwrap(), Nanos(20_000_000)).unwrap();
    let arms = others
        .iter()
        .fold(Arms::new("recorded", Idle::host(200_000)), |arms, (name, idle)| arms.arm(name, idle.clone()));
    let campaign = Campaign::new("validate", arms, figures(), plan).unwrap();
    let _contenders = Contenders::on(rig.cores().vcpus.first().copied(), tasks).unwrap();
    // On a shared core a wakeup waits for the other tasks' time slices, milliseconds each.
    let wakeups = if tasks > 0 { 120 } else { 800 };
    let record = campaign.run(&mut load, &stop, &mut |_| (), |turn| {
        let all = Others { settings: &others, calibration: &calibration, contended: tasks > 0 };
        let predict = (turn.arm == 0).then_some(all);
        block(rig, &gaps, wakeups, 1, turn, predict, &stop)
    });
    let record = match record {
        Ok(record) => record,
        Err(CampaignError::Block { source: LabError::Record(error), .. }) => {
            dwell_testing::skip!("kvm", test, "{error}");
            return None;
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    };
    let predictions = predictions(&record, &others);
    assert_eq!(predictions.len(), others.len() * FIGURES.len());
    say!("{tasks} tasks on the core\nsetting     figure             predicted   measured    error   median");
    for v in &predictions {
        say!(
            "{:<11} {:<16} {:>11.3} {:>10.3} {:>+7.1} % {:>+7.1} %",
            v.arm,
            v.figure,
            v.predicted,
            v.measured,
            v.error.value * 100.0,
            v.median_error.unwrap() * 100.0
        );
    }
    if tasks > 0 {
        print_polls(&record);
    }
    // Without a window nobody polls.
    let never = of(&predictions, "host:0", "polls");
    assert_eq!((never.predicted, never.measured), (0.0, 0.0));
    Some(Validated {
        undisturbed: predictions.iter().map(|v| v.undisturbed_pairs).min().unwrap_or(0),
        disturbed: record.gating.disturbed > 0,
        predictions,
    })
}

/// How long a poll took in each block, beside the wakeup latency of the block: where the core is slower both
/// are longer.
fn print_polls(record: &Measurements) {
    for (number, arm) in record.arms.iter().enumerate() {
        let of = |block: &Block| {
            let polls = alone::figure(block, "polls_per_wakeup");
            let polled_ns = alone::figure(block, "polled_ns_per_wakeup");
            (polls > 0.0).then(|| (polled_ns / polls, alone::median_us(block)))
        };
        let mut blocks: Vec<(f64, f64)> =
            record.rounds_of(number).into_iter().flatten().filter_map(of).collect();
        blocks.sort_by(|a, b| a.0.total_cmp(&b.0));
        let text = |(poll, latency): &(f64, f64)| format!("{poll:.0}/{latency:.0}");
        let texts: Vec<String> = blocks.iter().map(text).collect();
        if !texts.is_empty() {
            say!("{}: poll, ns / p50 of the wakeup latency, us, by block: {}", arm.name, texts.join(" "));
        }
    }
}
