use super::*;
use crate::fake::FakeEnvironment;
use crate::{Unit, Warning};
use proptest::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::convert::Infallible;

const QUIET: CampaignOptions = CampaignOptions {
    seed: 1,
    min_rounds: 2,
    max_rounds: 3,
    budget: Duration::from_secs(3600),
    foreign_limit: 0.02,
    repeats: 2,
    quiet_wait: Duration::ZERO,
    give_up_after: 2,
    confidence: 0.95,
    warm_up: false,
};

fn figures() -> [Figure; 1] {
    [Figure::of_block("cost", Unit::Nanos)]
}

fn campaign(options: CampaignOptions) -> Campaign<u64> {
    Campaign::new("test", Arms::new("a", 10).arm("b", 20), figures(), options).unwrap()
}

/// A trial that was taken.
struct Taken {
    shown: String,
    sequence: u64,
    attempt: u32,
}

/// Every block takes a second and costs what its setting says.
fn run(campaign: &Campaign<u64>, environment: &FakeEnvironment) -> (Measurements, Vec<Taken>) {
    let mut trials = vec![];
    let measurements = campaign
        .run(&mut environment.clone(), &AtomicBool::new(false), &mut |_| (), |trial| {
            let Trial { name, round, pass, sequence, attempt, warm_up, .. } = *trial;
            let shown =
                format!("{name} {round}{pass}{sequence}{attempt}{}", if warm_up { " warm-up" } else { "" });
            trials.push(Taken { shown, sequence, attempt });
            environment.pass(Duration::from_secs(1));
            Ok::<_, Infallible>(Block::new(vec![*trial.setting]).figure("cost", *trial.setting as f64))
        })
        .unwrap();
    (measurements, trials)
}

#[test]
fn blocks_come_in_palindromes_with_one_sequence_of_gaps_a_pass() {
    let options = CampaignOptions { warm_up: true, max_rounds: 2, ..QUIET };
    let (measurements, trials) = run(&campaign(options), &FakeEnvironment::disturbed([]));
    let shown: Vec<&str> = trials.iter().map(|trial| trial.shown.as_str()).collect();
    assert_eq!(
        shown,
        [
            "a 0000 warm-up",
            "b 0000 warm-up",
            "a (A/A) 0000 warm-up",
            "a 0000",
            "b 0000",
            "a (A/A) 0000",
            "a (A/A) 0110",
            "b 0110",
            "a 0110",
            "b 1020",
            "a (A/A) 1020",
            "a 1020",
            "a 1130",
            "a (A/A) 1130",
            "b 1130",
        ]
    );
    assert_eq!(
        (measurements.rounds, measurements.blocks.len(), measurements.ended),
        (2, 12, StopReason::Rounds)
    );
    assert_eq!(measurements.elapsed, Duration::from_secs(15));
    assert_eq!(measurements.gating.source, "a fake");
    assert!(measurements.blocks.iter().all(|block| block.elapsed == Duration::from_secs(1)));
}

#[test]
fn a_disturbed_block_is_repeated_and_the_least_disturbed_attempt_counts() {
    let environment = FakeEnvironment::disturbed([0.0, 0.5, 0.3, 0.4, 0.01, 0.9, 0.02]);
    let (measurements, trials) = run(&campaign(CampaignOptions { max_rounds: 1, ..QUIET }), &environment);
    let attempts: Vec<u32> = trials.iter().map(|trial| trial.attempt).collect();
    assert_eq!(attempts, [0, 0, 1, 2, 0, 0, 1, 0, 0]);
    let statuses: Vec<BlockStatus> = measurements.blocks.iter().map(|block| block.status).collect();
    use BlockStatus::{Kept, KeptDisturbed, Rejected};
    assert_eq!(statuses, [Kept, Rejected, KeptDisturbed, Rejected, Kept, Rejected, Kept, Kept, Kept]);
    let gating = &measurements.gating;
    assert_eq!((gating.blocks, gating.rejected, gating.disturbed, gating.unknown), (6, 3, 1, 0));
    assert_eq!((gating.given_up(), environment.waits()), (false, 3));
    assert!(trials[1..4].iter().all(|trial| trial.sequence == 0), "all attempts have the same gaps");
    let warnings = measurements.results().warnings;
    assert!(warnings.contains(&Warning::Disturbed { disturbed: 1, blocks: 6, limit: 0.02 }), "{warnings:?}");
}

#[test]
fn gating_is_given_up_where_the_machine_is_never_quiet_and_the_findings_say_so() {
    let environment = FakeEnvironment::always(Some(0.2));
    let (measurements, trials) = run(&campaign(QUIET), &environment);
    // Three attempts at each of two blocks, then one at each of the 16 others.
    assert_eq!(trials.len(), 2 * 3 + 16);
    assert_eq!((measurements.rounds, measurements.gating.given_up_in_round), (3, Some(0)));
    assert_eq!((measurements.gating.disturbed, measurements.gating.rejected), (18, 4));
    let warnings = measurements.results().warnings;
    assert!(warnings.contains(&Warning::NeverQuiet { round: 0, limit: 0.02 }), "{warnings:?}");
    assert!(
        warnings.contains(&Warning::Disturbed { disturbed: 18, blocks: 18, limit: 0.02 }),
        "{warnings:?}"
    );
}

#[test]
fn what_cannot_be_known_is_not_repeated_and_said() {
    let (measurements, trials) = run(&campaign(QUIET), &FakeEnvironment::always(None));
    assert_eq!((trials.len(), measurements.gating.unknown, measurements.gating.disturbed), (18, 18, 0));
    assert!(measurements.results().warnings.contains(&Warning::NotGated { blocks: 18 }));
}

#[test]
fn the_first_round_is_run_whatever_the_budget_and_none_begun_that_does_not_fit() {
    for (budget, rounds) in [(0, 1), (6, 1), (12, 2), (13, 2), (17, 2), (18, 3)] {
        let options = CampaignOptions { budget: Duration::from_secs(budget), max_rounds: u32::MAX, ..QUIET };
        let (measurements, trials) = run(&campaign(options), &FakeEnvironment::disturbed([]));
        assert_eq!((measurements.rounds, measurements.ended), (rounds, StopReason::Budget), "{budget} s");
        assert_eq!(trials.len(), 6 * rounds as usize);
    }
}

#[test]
fn no_block_is_repeated_when_time_is_up() {
    let options = CampaignOptions { budget: Duration::from_secs(1), ..QUIET };
    let (measurements, trials) = run(&campaign(options), &FakeEnvironment::always(Some(0.5)));
    // The first block ends with the budget and is repeated once; then there is time for nothing but the round.
    assert_eq!((trials.len(), measurements.rounds), (7, 1));
}

/// Blocks that take ever longer: the round that begins in time does not end in time.
#[test]
fn a_round_that_takes_too_long_is_broken_off_and_does_not_count() {
    let options = CampaignOptions { budget: Duration::from_secs(13), max_rounds: u32::MAX, ..QUIET };
    let environment = FakeEnvironment::disturbed([]);
    let mut blocks = 0;
    let measurements = campaign(options)
        .run(&mut environment.clone(), &AtomicBool::new(false), &mut |_| (), |_| {
            blocks += 1;
            environment.pass(Duration::from_secs(if blocks > 6 { 4 } else { 1 }));
            Ok::<_, Infallible>(Block::new(vec![]))
        })
        .unwrap();
    assert_eq!(
        (measurements.rounds, measurements.blocks.len(), measurements.ended),
        (1, 8, StopReason::Budget)
    );
}

#[test]
fn rounds_are_added_until_the_figures_are_precise_and_no_longer() {
    let within = |half_width| {
        let figures = [Figure::of_block("cost", Unit::Nanos).within(half_width)];
        Campaign::new(
            "test",
            Arms::new("a", 10u64).arm("b", 20),
            figures,
            CampaignOptions { min_rounds: 3, max_rounds: 200, ..QUIET },
        )
        .unwrap()
    };
    let noisy = |campaign: &Campaign<u64>| {
        let mut random = ChaCha8Rng::seed_from_u64(4);
        let mut told = vec![];
        let measurements = campaign
            .run(
                &mut FakeEnvironment::disturbed([]),
                &AtomicBool::new(false),
                &mut |progress| told.push(progress.widest.map(|(figure, ..)| figure.to_owned())),
                |trial| {
                    let noise = random.random_range(0.8..1.2);
                    Ok::<_, Infallible>(Block::new(vec![]).figure("cost", *trial.setting as f64 * noise))
                },
            )
            .unwrap();
        assert!(told.iter().take(36).all(Option::is_none));
        assert!(told.iter().skip(36).all(|figure| figure.as_deref() == Some("cost")));
        measurements
    };
    let (few, many) = (noisy(&within(0.2)), noisy(&within(0.03)));
    for (measurements, wanted) in [(&few, 0.2), (&many, 0.03)] {
        assert_eq!(measurements.ended, StopReason::Precise);
        let ratio = measurements.results().row("b", "cost").unwrap().ratio().unwrap();
        assert!(ratio.ratio_half_width() < wanted * 1.05 && ratio.contains(2.0), "{ratio:?}");
    }
    assert!(
        few.rounds >= 6 && few.rounds < many.rounds && many.rounds < 200,
        "{} {}",
        few.rounds,
        many.rounds
    );
    let never = noisy(&within(1e-6));
    assert_eq!((never.ended, never.rounds), (StopReason::Rounds, 200));
    let warnings = never.results().warnings;
    let imprecise = warnings.iter().filter(|warning| matches!(warning, Warning::Imprecise { .. })).count();
    assert_eq!(imprecise, 2, "{warnings:?}");
}

#[test]
fn stopping_ends_it_with_the_rounds_that_are_complete() {
    let stop = AtomicBool::new(false);
    let mut blocks = 0;
    let measurements = campaign(QUIET)
        .run(&mut FakeEnvironment::disturbed([]), &stop, &mut |_| (), |_| {
            blocks += 1;
            stop.store(blocks == 8, Ordering::Relaxed);
            Ok::<_, Infallible>(Block::new(vec![1]))
        })
        .unwrap();
    assert_eq!(
        (measurements.rounds, measurements.blocks.len(), measurements.ended),
        (1, 8, StopReason::Stopped)
    );
    assert_eq!(measurements.rounds_of(1).iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    assert!(measurements.results().warnings.contains(&Warning::Stopped { rounds: 1 }));
    let at_once = campaign(CampaignOptions { warm_up: true, ..QUIET })
        .run(
            &mut FakeEnvironment::disturbed([]),
            &AtomicBool::new(true),
            &mut |_| (),
            |_| -> Result<Block, Infallible> { panic!("nothing is measured") },
        )
        .unwrap();
    assert_eq!((at_once.rounds, at_once.ended), (0, StopReason::Stopped));
    assert!(at_once.results().rows.iter().all(|row| row.value.is_none()));
}

#[test]
fn a_failure_names_arm_and_round_and_keeps_what_was_measured() {
    let mut blocks = 0;
    let error = campaign(QUIET)
        .run(&mut FakeEnvironment::disturbed([]), &AtomicBool::new(false), &mut |_| (), |_| {
            blocks += 1;
            if blocks == 8 { Err(std::io::Error::other("broken")) } else { Ok(Block::new(vec![])) }
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "cannot measure arm `a (A/A)` in round 2");
    let CampaignError::Block { source, measurements, .. } = error;
    assert_eq!(source.to_string(), "broken");
    assert_eq!(
        (measurements.rounds, measurements.blocks.len(), measurements.ended),
        (1, 7, StopReason::Failed)
    );
}

#[test]
fn names_are_told_apart() {
    let twice = Campaign::new("test", Arms::new("a", 1).arm("a", 2), figures(), QUIET).unwrap_err();
    assert_eq!(twice.to_string(), "two arms have the name `a`");
    let figures = ["cost", "cost"].map(|name| Figure::of_block(name, Unit::Nanos));
    let twice = Campaign::new("test", Arms::new("a", 1), figures, QUIET).unwrap_err();
    assert_eq!(twice, DuplicateName::Figure { name: "cost".to_owned() });
}

proptest! {
    /// Whatever others do: each place of each complete round counts once, with the best of its attempts.
    #[test]
    fn every_place_counts_once(
        foreign in prop::collection::vec(prop_oneof![Just(0.0), 0.0f64..0.1], 0..60),
        repeats in 0u32..4,
        give_up_after in 1u32..4,
    ) {
        let options = CampaignOptions { repeats, give_up_after, ..QUIET };
        let (measurements, _) = run(&campaign(options), &FakeEnvironment::disturbed(foreign));
        prop_assert_eq!(measurements.rounds, 3);
        for arm in 0..3 {
            prop_assert!(measurements.rounds_of(arm).iter().all(|blocks| blocks.len() == 2));
        }
        let rejected = measurements.blocks.iter().filter(|block| block.status == BlockStatus::Rejected);
        for rejected in rejected.clone() {
            let same = |block: &&MeasuredBlock| {
                (block.arm, block.round, block.pass) == (rejected.arm, rejected.round, rejected.pass)
                    && block.status != BlockStatus::Rejected
            };
            let chosen: Vec<&MeasuredBlock> = measurements.blocks.iter().filter(same).collect();
            prop_assert_eq!(chosen.len(), 1);
            prop_assert!(chosen[0].load.unwrap().foreign <= rejected.load.unwrap().foreign);
        }
        let gating = &measurements.gating;
        prop_assert_eq!(gating.rejected, rejected.count() as u64);
        prop_assert_eq!(gating.blocks + gating.rejected, measurements.blocks.len() as u64);
        let disturbed = measurements.blocks.iter().filter(|block| block.status == BlockStatus::KeptDisturbed).count();
        prop_assert_eq!(gating.disturbed, disturbed as u64);
    }
}
