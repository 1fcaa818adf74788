//! A prediction from a live recording against the same gaps under other settings.

#[path = "../../capture/tests/say/mod.rs"]
mod say;

use dwell_lab::experiment::calibrate::{Calibration, cost, measure};
use dwell_lab::experiment::validate::{FIGURES, Others, block, figures, verdicts};
use dwell_lab::experiment::{LabError, Rig};
use dwell_lab::gaps::Gaps;
use dwell_lab::host::Load;
use dwell_lab::idle::Idle;
use dwell_policy::Nanos;
use dwell_stats::{Arms, Campaign, CampaignError, CampaignOptions};
use say::say;
use std::sync::atomic::AtomicBool;

/// What is predicted may be off by so much on a machine that others use too; `dwell lab validate` tells how far it is.
const TOLERANCE: f64 = 0.25;

#[test]
fn predictions_come_true() {
    const TEST: &str = "predictions_come_true";
    let rig = match Rig::open(1) {
        Ok(rig) => rig,
        Err(error) => return say!("SKIP {error}: {TEST}"),
    };
    let (stop, mut load) = (AtomicBool::new(false), Load::open().unwrap());
    let plan = CampaignOptions {
        min_rounds: 2,
        max_rounds: 2,
        foreign_limit: 0.04,
        repeats: 2,
        ..CampaignOptions::default()
    };
    let mut costs = vec![];
    for gap in [Nanos(50_000), Nanos(300_000)] {
        let record = measure(&rig, gap, plan.clone(), &mut load, &stop, &mut |_| ()).unwrap();
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
    let record = campaign.run(&mut load, &stop, &mut |_| (), |turn| {
        let all = Others { settings: &others, calibration: &calibration, contended: false };
        let predict = (turn.arm == 0).then_some(all);
        block(&rig, &gaps, 800, 1, turn, predict, &stop)
    });
    let record = match record {
        Ok(record) => record,
        Err(CampaignError::Block { source: LabError::Record(error), .. }) => {
            return say!("SKIP {error}: {TEST}");
        }
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    };
    let verdicts = verdicts(&record, &others);
    assert_eq!(verdicts.len(), others.len() * FIGURES.len());
    say!("setting     figure             predicted   measured    error");
    for v in &verdicts {
        say!(
            "{:<11} {:<16} {:>11.3} {:>10.3} {:>+7.1} %",
            v.arm,
            v.figure,
            v.predicted,
            v.measured,
            v.error.value * 100.0
        );
    }
    let value =
        |arm: &str, figure: &str| verdicts.iter().find(|v| v.arm == arm && v.figure == figure).unwrap();
    // What does not depend on the machine: without a window nobody polls, and with a long one hardly anybody halts.
    assert_eq!((value("host:0", "polls").predicted, value("host:0", "polls").measured), (0.0, 0.0));
    assert!(value("host:1ms", "halts").predicted < 0.1);
    assert!(value("host:0", "halts").predicted > 0.5);
    if record.gating.disturbed > 0
        || load.over(std::time::Duration::from_millis(300)).is_ok_and(|d| d.exceeds(0.04))
    {
        return say!("SKIP others use this machine: {TEST}, as far as it compares figures");
    }
    for (arm, figure) in [("host:0", "halts"), ("host:100us", "polls"), ("host:1ms", "polls_succeeded")] {
        let error = value(arm, figure).error.value;
        assert!(error.abs() < TOLERANCE, "{arm} {figure}: {error}");
    }
}
