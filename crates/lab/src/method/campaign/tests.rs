use super::*;
use crate::method::fake::Machine;
use crate::method::{Unit, Warning};
use proptest::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use std::convert::Infallible;

const QUIET: Plan = Plan {
    seed: 1,
    min_rounds: 2,
    max_rounds: 3,
    budget: Duration::from_hours(1),
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

fn campaign(plan: Plan) -> Campaign<u64> {
    Campaign::new("test", Arms::new("a", 10).arm("b", 20), figures(), plan).unwrap()
}

/// A turn that was taken.
struct Taken {
    shown: String,
    sequence: u64,
    attempt: u32,
}

/// Every block takes a second and costs what its setting says.
fn run(campaign: &Campaign<u64>, machine: &Machine) -> (Record, Vec<Taken>) {
    let mut turns = vec![];
    let record = campaign
        .run(&mut machine.clone(), &AtomicBool::new(false), &mut |_| (), |turn| {
            let Turn { name, round, pass, sequence, attempt, warm_up, .. } = *turn;
            let shown =
                format!("{name} {round}{pass}{sequence}{attempt}{}", if warm_up { " warm-up" } else { "" });
            turns.push(Taken { shown, sequence, attempt });
            machine.pass(Duration::from_secs(1));
            Ok::<_, Infallible>(Block::new(vec![*turn.setting]).figure("cost", *turn.setting as f64))
        })
        .unwrap();
    (record, turns)
}

#[test]
fn blocks_come_in_palindromes_with_one_sequence_of_gaps_a_pass() {
    let plan = Plan { warm_up: true, max_rounds: 2, ..QUIET };
    let (record, turns) = run(&campaign(plan), &Machine::disturbed([]));
    let shown: Vec<&str> = turns.iter().map(|turn| turn.shown.as_str()).collect();
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
    assert_eq!((record.rounds, record.blocks.len(), record.ended), (2, 12, Ended::Rounds));
    assert_eq!(record.elapsed, Duration::from_secs(15));
    assert_eq!(record.gating.source, "a fake");
    assert!(record.blocks.iter().all(|block| block.elapsed == Duration::from_secs(1)));
}

#[test]
fn a_disturbed_block_is_repeated_and_the_least_disturbed_attempt_counts() {
    let machine = Machine::disturbed([0.0, 0.5, 0.3, 0.4, 0.01, 0.9, 0.02]);
    let (record, turns) = run(&campaign(Plan { max_rounds: 1, ..QUIET }), &machine);
    let attempts: Vec<u32> = turns.iter().map(|turn| turn.attempt).collect();
    assert_eq!(attempts, [0, 0, 1, 2, 0, 0, 1, 0, 0]);
    let verdicts: Vec<Verdict> = record.blocks.iter().map(|block| block.verdict).collect();
    use Verdict::{Kept, KeptDisturbed, Rejected};
    assert_eq!(verdicts, [Kept, Rejected, KeptDisturbed, Rejected, Kept, Rejected, Kept, Kept, Kept]);
    let gating = &record.gating;
    assert_eq!((gating.blocks, gating.rejected, gating.disturbed, gating.unknown), (6, 3, 1, 0));
    assert_eq!((gating.given_up(), machine.waited.get()), (false, 3));
    assert!(turns[1..4].iter().all(|turn| turn.sequence == 0), "all attempts have the same gaps");
    let warnings = record.findings().warnings;
    assert!(warnings.contains(&Warning::Disturbed { disturbed: 1, blocks: 6, limit: 0.02 }), "{warnings:?}");
}

#[test]
fn gating_is_given_up_where_the_machine_is_never_quiet_and_the_findings_say_so() {
    let machine = Machine::always(Some(0.2));
    let (record, turns) = run(&campaign(QUIET), &machine);
    // Three attempts at each of two blocks, then one at each of the 16 others.
    assert_eq!(turns.len(), 2 * 3 + 16);
    assert_eq!((record.rounds, record.gating.given_up_in_round), (3, Some(0)));
    assert_eq!((record.gating.disturbed, record.gating.rejected), (18, 4));
    let warnings = record.findings().warnings;
    assert!(warnings.contains(&Warning::NeverQuiet { round: 0, limit: 0.02 }), "{warnings:?}");
    assert!(
        warnings.contains(&Warning::Disturbed { disturbed: 18, blocks: 18, limit: 0.02 }),
        "{warnings:?}"
    );
}

#[test]
fn what_cannot_be_known_is_not_repeated_and_said() {
    let (record, turns) = run(&campaign(QUIET), &Machine::always(None));
    assert_eq!((turns.len(), record.gating.unknown, record.gating.disturbed), (18, 18, 0));
    assert!(record.findings().warnings.contains(&Warning::NotGated { blocks: 18 }));
}

#[test]
fn the_first_round_is_run_whatever_the_budget_and_none_begun_that_does_not_fit() {
    for (budget, rounds) in [(0, 1), (6, 1), (12, 2), (13, 2), (17, 2), (18, 3)] {
        let plan = Plan { budget: Duration::from_secs(budget), max_rounds: u32::MAX, ..QUIET };
        let (record, turns) = run(&campaign(plan), &Machine::disturbed([]));
        assert_eq!((record.rounds, record.ended), (rounds, Ended::Budget), "{budget} s");
        assert_eq!(turns.len(), 6 * rounds as usize);
    }
}

#[test]
fn no_block_is_repeated_when_time_is_up() {
    let plan = Plan { budget: Duration::from_secs(1), ..QUIET };
    let (record, turns) = run(&campaign(plan), &Machine::always(Some(0.5)));
    // The first block ends with the budget and is repeated once; then there is time for nothing but the round.
    assert_eq!((turns.len(), record.rounds), (7, 1));
}

/// Blocks that take ever longer: the round that begins in time does not end in time.
#[test]
fn a_round_that_takes_too_long_is_broken_off_and_does_not_count() {
    let plan = Plan { budget: Duration::from_secs(13), max_rounds: u32::MAX, ..QUIET };
    let machine = Machine::disturbed([]);
    let mut blocks = 0;
    let record = campaign(plan)
        .run(&mut machine.clone(), &AtomicBool::new(false), &mut |_| (), |_| {
            blocks += 1;
            machine.pass(Duration::from_secs(if blocks > 6 { 4 } else { 1 }));
            Ok::<_, Infallible>(Block::new(vec![]))
        })
        .unwrap();
    assert_eq!((record.rounds, record.blocks.len(), record.ended), (1, 8, Ended::Budget));
}

#[test]
fn rounds_are_added_until_the_figures_are_precise_and_no_longer() {
    let within = |half_width| {
        let figures = [Figure::of_block("cost", Unit::Nanos).within(half_width), Figure::quantile(0.5)];
        Campaign::new(
            "test",
            Arms::new("a", 10u64).arm("b", 20),
            figures,
            Plan { min_rounds: 3, max_rounds: 200, ..QUIET },
        )
        .unwrap()
    };
    let noisy = |campaign: &Campaign<u64>| {
        let mut random = ChaCha8Rng::seed_from_u64(4);
        let mut told = vec![];
        let record = campaign
            .run(
                &mut Machine::disturbed([]),
                &AtomicBool::new(false),
                &mut |progress| told.push(progress.widest.map(|(figure, ..)| figure.to_owned())),
                |turn| {
                    let noise = random.random_range(0.8..1.2);
                    Ok::<_, Infallible>(Block::new(vec![]).figure("cost", *turn.setting as f64 * noise))
                },
            )
            .unwrap();
        assert!(told.iter().take(36).all(Option::is_none));
        assert!(told.iter().skip(36).all(|figure| figure.as_deref() == Some("cost")));
        record
    };
    let (few, many) = (noisy(&within(0.2)), noisy(&within(0.03)));
    for (record, wanted) in [(&few, 0.2), (&many, 0.03)] {
        assert_eq!(record.ended, Ended::Precise);
        let ratio = record.findings().row("b", "cost").unwrap().ratio().unwrap();
        assert!(ratio.ratio_half_width() < wanted * 1.05 && ratio.contains(2.0), "{ratio:?}");
    }
    assert!(
        few.rounds >= 6 && few.rounds < many.rounds && many.rounds < 200,
        "{} {}",
        few.rounds,
        many.rounds
    );
    let never = noisy(&within(1e-6));
    assert_eq!((never.ended, never.rounds), (Ended::Rounds, 200));
    let warnings = never.findings().warnings;
    let imprecise = warnings.iter().filter(|warning| matches!(warning, Warning::Imprecise { .. })).count();
    assert_eq!(imprecise, 2, "{warnings:?}");
}

#[test]
fn stopping_ends_it_with_the_rounds_that_are_complete() {
    let stop = AtomicBool::new(false);
    let mut blocks = 0;
    let record = campaign(QUIET)
        .run(&mut Machine::disturbed([]), &stop, &mut |_| (), |_| {
            blocks += 1;
            stop.store(blocks == 8, Ordering::Relaxed);
            Ok::<_, Infallible>(Block::new(vec![1]))
        })
        .unwrap();
    assert_eq!((record.rounds, record.blocks.len(), record.ended), (1, 8, Ended::Stopped));
    assert_eq!(record.rounds_of(1).iter().map(Vec::len).collect::<Vec<_>>(), [2]);
    assert!(record.findings().warnings.contains(&Warning::Stopped { rounds: 1 }));
    let at_once = campaign(Plan { warm_up: true, ..QUIET })
        .run(
            &mut Machine::disturbed([]),
            &AtomicBool::new(true),
            &mut |_| (),
            |_| -> Result<Block, Infallible> { panic!("nothing is measured") },
        )
        .unwrap();
    assert_eq!((at_once.rounds, at_once.ended), (0, Ended::Stopped));
    assert!(at_once.findings().rows.iter().all(|row| row.value.is_none()));
}

#[test]
fn a_failure_names_arm_and_round_and_keeps_what_was_measured() {
    let mut blocks = 0;
    let error = campaign(QUIET)
        .run(&mut Machine::disturbed([]), &AtomicBool::new(false), &mut |_| (), |_| {
            blocks += 1;
            if blocks == 8 { Err(std::io::Error::other("broken")) } else { Ok(Block::new(vec![])) }
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "cannot measure `a (A/A)` in round 1");
    let CampaignError::Block { source, record, .. } = error;
    assert_eq!(source.to_string(), "broken");
    assert_eq!((record.rounds, record.blocks.len(), record.ended), (1, 7, Ended::Failed));
}

#[test]
fn names_are_told_apart() {
    let twice = Campaign::new("test", Arms::new("a", 1).arm("a", 2), figures(), QUIET).unwrap_err();
    assert_eq!(twice.to_string(), "two arms are called `a`");
    let figures = [Figure::quantile(0.5), Figure::quantile(0.5)];
    let twice = Campaign::new("test", Arms::new("a", 1), figures, QUIET).unwrap_err();
    assert_eq!(twice, NamesError::Figure { name: "p50".to_owned() });
}

proptest! {
    /// Whatever others do: each place of each complete round counts once, with the best of its attempts.
    #[test]
    fn every_place_counts_once(
        foreign in prop::collection::vec(prop_oneof![Just(0.0), 0.0f64..0.1], 0..60),
        repeats in 0u32..4,
        give_up_after in 1u32..4,
    ) {
        let plan = Plan { repeats, give_up_after, ..QUIET };
        let (record, _) = run(&campaign(plan), &Machine::disturbed(foreign));
        prop_assert_eq!(record.rounds, 3);
        for arm in 0..3 {
            prop_assert!(record.rounds_of(arm).iter().all(|blocks| blocks.len() == 2));
        }
        let rejected = record.blocks.iter().filter(|block| block.verdict == Verdict::Rejected);
        for rejected in rejected.clone() {
            let same = |block: &&Measured| {
                (block.arm, block.round, block.pass) == (rejected.arm, rejected.round, rejected.pass)
                    && block.verdict != Verdict::Rejected
            };
            let chosen: Vec<&Measured> = record.blocks.iter().filter(same).collect();
            prop_assert_eq!(chosen.len(), 1);
            prop_assert!(chosen[0].disturbance.unwrap().foreign <= rejected.disturbance.unwrap().foreign);
        }
        let gating = &record.gating;
        prop_assert_eq!(gating.rejected, rejected.count() as u64);
        prop_assert_eq!(gating.blocks + gating.rejected, record.blocks.len() as u64);
        let disturbed = record.blocks.iter().filter(|block| block.verdict == Verdict::KeptDisturbed).count();
        prop_assert_eq!(gating.disturbed, disturbed as u64);
    }
}
