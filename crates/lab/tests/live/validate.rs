//! A prediction from a live recording against the same gaps under other settings.

use crate::alone::{self, Alone};
use dwell_lab::experiment::LabError;
use dwell_lab::experiment::calibrate::{Calibration, cost, measure};
use dwell_lab::experiment::validate::{FIGURES, Others, Prediction, block, figures, predictions};
use dwell_lab::gaps::Gaps;
use dwell_lab::host::Load;
use dwell_lab::host::thread::Contenders;
use dwell_lab::idle::Idle;
use dwell_policy::Nanos;
use dwell_stats::{Arms, Block, Campaign, CampaignError, CampaignOptions, Measurements};
use dwell_testing::say;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// What is predicted may be off by so much on a machine that others use too; `dwell lab validate` tells how far it is.
const TOLERANCE: f64 = 0.25;

/// On a shared core, of each setting, the median over pairs of blocks.
const SHARED_TOLERANCE: f64 = 0.1;

/// The median of fewer rounds, of two pairs of blocks each, is no more robust than their sum.
const FEWEST_ROUNDS: u32 = 4;

#[test]
fn predictions_come_true() {
    let Some((predictions, undisturbed)) = validated("predictions_come_true", 0) else { return };
    let error = |arm: &str, figure: &str| of(&predictions, arm, figure).error.value;
    // What does not depend on the machine: with a long window hardly anybody halts, without one nearly all do.
    assert!(of(&predictions, "host:1ms", "halts").predicted < 0.1);
    assert!(of(&predictions, "host:0", "halts").predicted > 0.5);
    if undisturbed {
        for (arm, figure) in [("host:0", "halts"), ("host:100us", "polls"), ("host:1ms", "polls_succeeded")] {
            let error = error(arm, figure);
            assert!(error.abs() < TOLERANCE, "{arm} {figure}: {error}");
        }
    }
}

#[test]
fn predictions_come_true_on_a_shared_core() {
    for tasks in [1, 2] {
        let Some((predictions, undisturbed)) = validated("predictions_come_true_on_a_shared_core", tasks)
        else {
            return;
        };
        // KVM polls for one pass of its loop, whatever the window: nearly all halt.
        assert!(of(&predictions, "host:1ms", "halts").predicted > 0.9);
        if undisturbed {
            for figure in ["polls", "polled_ns", "halts"] {
                for v in predictions.iter().filter(|v| v.figure == figure) {
                    let error = v.median_error.unwrap();
                    assert!(error.abs() < SHARED_TOLERANCE, "{tasks} tasks: {} {figure}: {error}", v.arm);
                }
            }
        }
    }
}

fn of<'v>(predictions: &'v [Prediction], arm: &str, figure: &str) -> &'v Prediction {
    predictions.iter().find(|v| v.arm == arm && v.figure == figure).unwrap()
}

/// Predicted beside measured, with so many CPU-bound tasks on the vCPU's core, and whether the machine was ours alone; `None`
/// where it cannot be measured here.
fn validated(test: &str, tasks: usize) -> Option<(Vec<Prediction>, bool)> {
    let Alone { rig, .. } = &alone::rig(1, test)?;
    let (stop, mut load) = (AtomicBool::new(false), Load::open().unwrap());
    // A poll on a shared core is one pass of KVM's loop, whose length depends on what else the machine does in that block.
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
    let calibration = Calibration {
        format: 1,
        cpu_model: String::new(),
        kernel: String::new(),
        measured_at_unix_s: 0,
        costs,
    };
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
            say!("SKIP {error}: {test}");
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
    let disturbed =
        record.gating.disturbed > 0 || load.over(Duration::from_millis(300)).is_ok_and(|d| d.exceeds(0.04));
    if disturbed {
        say!("SKIP others use this machine: {test}, as far as it compares figures");
    }
    let few = tasks > 0 && record.rounds < FEWEST_ROUNDS;
    if few {
        say!("SKIP only {} rounds within the budget: {test}, as far as it compares figures", record.rounds);
    }
    Some((predictions, !disturbed && !few))
}

/// How long a poll took in each block, beside the wakeup latency of the block: where the core is slower both are longer.
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
