use super::*;
use crate::fake::FakeEnvironment;
use crate::{Arms, Campaign, CampaignOptions, Trial, Unit};
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use std::convert::Infallible;
use std::sync::atomic::AtomicBool;

/// Runs so many rounds; each block gets the number of blocks before it.
fn measure(
    rounds: u32,
    figures: &[Figure],
    mut block: impl FnMut(&Trial<'_, f64>, u32) -> Block,
) -> Measurements {
    let options =
        CampaignOptions { min_rounds: 1, max_rounds: rounds, warm_up: false, ..CampaignOptions::default() };
    let campaign =
        Campaign::new("test", Arms::new("a", 1.0).arm("b", 2.0), figures.to_vec(), options).unwrap();
    let mut before = 0;
    let stop = AtomicBool::new(false);
    let run = campaign.run(&mut FakeEnvironment::disturbed([]), &stop, &mut |_| (), |trial| {
        before += 1;
        Ok::<_, Infallible>(block(trial, before - 1))
    });
    run.unwrap()
}

fn cost() -> Figure {
    Figure::of_block("cost", Unit::Nanos)
}

/// What is the same but for an even drift of 1 % a block comes out the same to a hundredth of that.
#[test]
fn an_even_drift_changes_no_comparison() {
    let measurements = measure(12, &[cost()], |trial, before| {
        Block::new(vec![]).figure("cost", trial.setting * (100.0 + f64::from(before)))
    });
    let results = measurements.results();
    for (arm, truth) in [("b", 2.0), ("a (A/A)", 1.0)] {
        let ratio = results.row(arm, "cost").unwrap().ratio().unwrap();
        assert!((ratio.value / truth - 1.0).abs() < 1e-4, "{arm}: {ratio:?}");
        assert!(ratio.ratio_half_width() < 1e-3, "{arm}: {ratio:?}");
    }
}

#[test]
fn figures_that_are_zero_or_missing_have_no_ratio_but_a_difference() {
    let measurements = measure(8, &[cost()], |trial, before| {
        let block = Block::new(vec![]);
        match trial.setting {
            1.0 => block.figure("cost", 0.0),
            // Not known in the first block of b, and so not in the first round.
            _ => block.figure("cost", if before == 1 { f64::NAN } else { 3.0 }),
        }
    });
    let results = measurements.results();
    let row = results.row("b", "cost").unwrap();
    assert_eq!(row.rounds, 7);
    let comparison = row.comparison.unwrap();
    assert_eq!((comparison.ratio, comparison.median_ratio), (None, None));
    assert_eq!(comparison.difference, Interval { low: 3.0, value: 3.0, high: 3.0 });
    let missing = Warning::Missing { arm: "b".to_owned(), figure: "cost".to_owned(), known: 7, rounds: 8 };
    assert_eq!(results.warnings, [missing]);
}

#[test]
fn a_control_that_differs_is_warned_of() {
    let measurements = measure(8, &[cost()], |trial, _| {
        Block::default().figure("cost", if trial.name == "a (A/A)" { 1.03 } else { 1.0 })
    });
    let warnings: Vec<String> = measurements.results().warnings.iter().map(ToString::to_string).collect();
    let differs = "cost: the baseline differs from its own control by +3.0 % [+3.0 %, +3.0 %]; smaller differences are not \
                   effects (of twenty figures one has this by chance)";
    assert_eq!(warnings, [differs]);
}

#[test]
fn a_control_is_not_judged_without_intervals() {
    for rounds in 1..6 {
        let measurements = measure(rounds, &[cost()], |trial, _| {
            Block::default().figure("cost", if trial.name == "a (A/A)" { 1.03 } else { 1.0 })
        });
        assert_eq!(measurements.results().warnings, [Warning::FewRounds { rounds }]);
    }
}

#[test]
fn findings_are_json_with_null_where_nothing_is_known() {
    let measurements = measure(1, &[cost()], |trial, _| Block::new(vec![]).figure("cost", *trial.setting));
    let json = serde_json::to_value(measurements.results()).unwrap();
    let row = &json["rows"][1];
    assert_eq!(
        (row["arm"].as_str(), row["role"].as_str(), row["unit"].as_str()),
        (Some("b"), Some("tried"), Some("nanos"))
    );
    assert_eq!(row["comparison"]["ratio"]["value"].as_f64(), Some(2.0));
    assert!(row["comparison"]["ratio"]["high"].is_null());
    assert_eq!(json["ended"].as_str(), Some("rounds"));
    assert_eq!(json["warnings"][0]["kind"].as_str(), Some("few_rounds"));
}

/// A made-up machine: costs wander from round to round, are noisy from block to block, and b costs 1.1
/// times a. Of 200 campaigns of 10 rounds the intervals hold the truth in 95 %: 190, with a standard error of 3.
#[test]
fn intervals_of_ratios_hold_the_truth() {
    const TRUTH: f64 = 1.1;
    let mut held = std::collections::BTreeMap::<(String, String), u32>::new();
    for campaign in 0..200 {
        let mut random = ChaCha8Rng::seed_from_u64(campaign);
        let normal = |random: &mut ChaCha8Rng| -> f64 { StandardNormal.sample(random) };
        let wander: Vec<f64> = (0..10).map(|_| (0.2 * normal(&mut random)).exp()).collect();
        let measurements = measure(10, &[cost()], |trial, _| {
            let scale = wander[trial.round as usize] * if *trial.setting == 2.0 { TRUTH } else { 1.0 };
            let noise = (0.05 * normal(&mut random)).exp();
            Block::default().figure("cost", scale * noise)
        });
        let bootstrap = Bootstrap { confidence: 0.95, resamples: 1_000, seed: campaign };
        for row in (Analysis { bootstrap, ..Analysis::new(&measurements, 0, |_| true) }).rows() {
            let truth = if row.arm == "b" { TRUTH } else { 1.0 };
            if let Some(ratio) = row.ratio() {
                *held.entry((row.arm, row.figure)).or_default() += u32::from(ratio.contains(truth));
            }
        }
    }
    assert_eq!(held.len(), 2);
    assert!(held.values().all(|held| (180..=200).contains(held)), "{held:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Ratios and differences are those of the rounds' means, written out.
    #[test]
    fn ratios_are_geometric_means_of_the_rounds_ratios(costs in prop::collection::vec(0.1f64..1e6, 6 * 5)) {
        let measurements = measure(5, &[cost()], |_, before| Block::new(vec![]).figure("cost", costs[before as usize]));
        let results = measurements.results();
        let of = |arm: usize, round: u32| {
            let found: Vec<f64> = measurements.blocks.iter().filter(|b| b.arm == arm && b.round == round)
                .map(|b| b.block.figures["cost"]).collect();
            (found[0] + found[1]) / 2.0
        };
        for (arm, name) in [(1, "b"), (2, "a (A/A)")] {
            let comparison = results.row(name, "cost").unwrap().comparison.unwrap();
            let ratio: f64 = (0..5).map(|round| of(arm, round) / of(0, round)).product();
            let difference: f64 = (0..5).map(|round| of(arm, round) - of(0, round)).sum();
            prop_assert!((comparison.ratio.unwrap().value / ratio.powf(0.2) - 1.0).abs() < 1e-9);
            prop_assert!((comparison.difference.value - difference / 5.0).abs() < 1e-3);
        }
    }
}
