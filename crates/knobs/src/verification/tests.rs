use super::*;
use dwell_replay::Priced;
use dwell_replay::advice::Gain;

fn interval([low, value, high]: [f64; 3]) -> Interval {
    Interval { low, value, high }
}

fn around(value: f64) -> Interval {
    let half = value.abs() * 0.02;
    interval([value - half, value, value + half])
}

fn compared(figure: Figure, predicted: [f64; 2], measured: [f64; 2]) -> Compared {
    Compared {
        figure,
        predicted_before: predicted[0],
        predicted_after: predicted[1],
        before: Some(around(measured[0])),
        after: Some(around(measured[1])),
        difference: Some(around(measured[1] - measured[0])),
        control_difference: None,
    }
}

/// Work by second, and what the plan promises by unit of it, before and after.
fn work(unit: Unit, per_s: [f64; 2], promised_per_s: [f64; 2]) -> Work {
    let by = |side: usize| promised_per_s[side] / per_s[side];
    Work {
        unit,
        before: Some(around(per_s[0])),
        after: Some(around(per_s[1])),
        ratio: Some(around(per_s[1] / per_s[0])),
        promised_before: Some(around(by(0))),
        promised_after: Some(around(by(1))),
        promised_difference: Some(around(by(1) - by(0))),
    }
}

fn judge(figures: &[Compared], work: &[Work]) -> (Verdict, Vec<String>) {
    judge_after(&predicts(None), figures, work, 8)
}

/// What a plan predicts: of a second, or of work.
fn predicts(work: Option<[[f64; 3]; 2]>) -> Effect {
    let gain = |share| Gain { of: Figure::Cost, per_s: 4e8, share: interval(share) };
    Effect {
        present: Priced { episodes: 1_000, ..Priced::default() },
        speed: work.map(|[speed, _]| interval(speed)),
        gain: work.map(|[_, share]| gain(share)),
        ..Effect::default()
    }
}

fn judge_after(effect: &Effect, figures: &[Compared], work: &[Work], rounds: u32) -> (Verdict, Vec<String>) {
    Evidence { effect, promised: Figure::Cost, figures, work, halt_cost_ns: 20_000.0, rounds }.judge()
}

/// A second costs 40 % of a CPU less, with as much work; as predicted or not.
fn gain(predicted_after: f64, work_after: f64) -> (Verdict, Vec<String>) {
    let cost = [8e8, 4e8];
    let figures = [compared(Figure::Cost, [8e8, predicted_after], cost)];
    judge(&figures, &[work(Unit::Wakeup, [10_000.0, work_after], cost)])
}

#[test]
fn outside_the_prediction_in_either_direction_is_not_as_predicted() {
    assert_eq!(gain(4e8, 10_000.0), (Verdict::Confirmed, vec![]));
    assert_eq!(gain(3.5e8, 10_000.0).0, Verdict::Confirmed, "within a fifth");
    assert_eq!(gain(1e8, 10_000.0).0, Verdict::NotAsPredicted);
    let (verdict, why) = gain(7.9e8, 10_000.0);
    assert_eq!(verdict, Verdict::NotAsPredicted);
    assert_eq!(why, ["cost: -40.0 % measured, -1.00 % predicted as the difference"]);
}

#[test]
fn every_figure_is_compared_with_its_prediction() {
    let cost = [8e8, 4e8];
    let halts = |after| {
        let figures =
            [compared(Figure::Cost, cost, cost), compared(Figure::Halts, [100.0, 2_000.0], [100.0, after])];
        judge(&figures, &[work(Unit::Wakeup, [10_000.0; 2], cost)]).0
    };
    assert_eq!(halts(2_000.0), Verdict::Confirmed);
    assert_eq!(halts(2_200.0), Verdict::Confirmed, "within a fifth");
    assert_eq!(halts(8_000.0), Verdict::NotAsPredicted);
}

#[test]
fn less_work_is_a_regression_whatever_a_second_costs() {
    let (verdict, why) = gain(4e8, 9_000.0);
    assert_eq!(verdict, Verdict::Regression);
    assert_eq!(why, ["less work is done: 9,000 wakeups/s for 10,000 (-10 %)"]);
    assert_eq!(gain(4e8, 9_700.0).0, Verdict::Confirmed, "wakeups are not work itself");
    let cost = [8e8, 4e8];
    let figures = [compared(Figure::Cost, cost, cost)];
    let requests = work(Unit::Request, [10_000.0, 9_500.0], cost);
    assert_eq!(judge(&figures, &[requests]).0, Verdict::Regression);
}

#[test]
fn more_work_is_a_gain_that_no_replay_predicts() {
    let (verdict, why) = gain(4e8, 30_000.0);
    assert_eq!(verdict, Verdict::NotAsPredicted);
    assert!(why[0].starts_with("more work is done: 30,000 wakeups/s for 10,000 (+200 %)"), "{why:?}");
}

/// A plan from causes says that the load does three times the work at a quarter less for a unit: a second costs more.
#[test]
fn a_plan_from_causes_is_judged_by_the_work_that_it_predicts() {
    let verify = |work_after: f64, cost_after: f64| {
        let cost = [4e8, cost_after];
        let effect = predicts(Some([[2.1, 3.0, 3.6], [0.1, 0.25, 0.4]]));
        // By the second it predicts more than twice the cost.
        let figures = [compared(Figure::Cost, [4e8, 9e8], cost)];
        judge_after(&effect, &figures, &[work(Unit::Wakeup, [10_000.0, work_after], cost)], 8)
    };
    assert_eq!(verify(30_000.0, 9e8), (Verdict::Confirmed, vec![]));
    assert_eq!(verify(20_900.0, 6.5e8), (Verdict::Confirmed, vec![]), "at the end of both ranges");
    let (verdict, why) = verify(15_000.0, 4.5e8);
    assert_eq!(verdict, Verdict::NotAsPredicted);
    assert_eq!(why, ["work a second, after / before: 1.50 measured, 3.00 (2.10 to 3.60) predicted"]);
    let (verdict, why) = verify(30_000.0, 6e8);
    assert_eq!(verdict, Verdict::NotAsPredicted);
    assert_eq!(why, ["cost of a unit, after / before: 0.50 measured, 0.75 (0.60 to 0.90) predicted"]);
    assert_eq!(verify(9_000.0, 1e8).0, Verdict::Regression, "less work");
    assert_eq!(verify(10_000.0, 8e8).0, Verdict::Regression, "a unit costs twice as much");
}

/// Redis at `guest_halt_poll_ns=6300`, at 5 us a halt, as a newcomer measured it: "confirmed: the gain is as
/// predicted", and two thirds of the requests were gone.
#[test]
fn redis_at_a_window_that_is_too_short_is_a_regression() {
    let cost = [451_074_261.0, 210_388_166.0];
    let figures = [
        compared(Figure::Cost, [450_658_177.0, 438_961_631.0], cost),
        compared(Figure::PollingCpu, [450_212_212.0, 428_689_427.0], [450_700_236.0, 16_336_669.0]),
        compared(Figure::Halts, [89.0, 2_054.0], [75.0, 38_810.0]),
    ];
    let wakeups = work(Unit::Wakeup, [118_000.0, 41_000.0], cost);
    let (verdict, why) =
        judge(&figures, &[wakeups.clone(), work(Unit::ContextSwitch, [236_000.0, 82_000.0], cost)]);
    assert_eq!(verdict, Verdict::Regression, "{why:?}");
    // An open loop whose wakeups became fewer by chance does not hide it: a unit costs more.
    let constant = Work { ratio: Some(interval([0.5, 0.97, 1.5])), ..wakeups };
    let (verdict, why) = judge(&figures, &[constant]);
    assert_eq!((verdict, why), (Verdict::Regression, vec!["more cost for each wakeup".to_owned()]));
}

/// The ping-pong at 5000/5000 was "no difference", and 8.3 times slower.
#[test]
fn a_ping_pong_that_halts_is_a_regression() {
    let cost = [4.05e8, 2.18e8];
    let figures = [Compared {
        difference: Some(interval([-3e8, -1.9e8, 1e7])),
        ..compared(Figure::Cost, [1.9e8, 1.82e8], cost)
    }];
    let (verdict, _) = judge(&figures, &[work(Unit::Wakeup, [367_000.0, 44_000.0], cost)]);
    assert_eq!(verdict, Verdict::Regression);
}

/// Of two figures that go along with work, one alone decides nothing.
#[test]
fn wakeups_and_switches_have_to_agree() {
    let cost = [8e8, 4e8];
    let figures = [compared(Figure::Cost, cost, cost)];
    let wakeups = |after| work(Unit::Wakeup, [10_000.0, after], cost);
    let switches = |after| work(Unit::ContextSwitch, [20_000.0, after], cost);
    assert_eq!(judge(&figures, &[wakeups(7_000.0), switches(20_000.0)]).0, Verdict::Confirmed);
    assert_eq!(judge(&figures, &[wakeups(7_000.0), switches(14_000.0)]).0, Verdict::Regression);
    // What the user counts is work itself: the others no longer count.
    let served = work(Unit::Work, [5_000.0, 5_000.0], cost);
    assert_eq!(judge(&figures, &[wakeups(7_000.0), switches(14_000.0), served]).0, Verdict::Confirmed);
}

#[test]
fn a_counter_that_stands_still_measures_nothing() {
    let cost = [8e8, 4e8];
    let figures = [compared(Figure::Cost, cost, cost)];
    let still = Work { ratio: None, ..work(Unit::Work, [1.0, 1.0], cost) };
    assert_eq!(judge(&figures, std::slice::from_ref(&still)).0, Verdict::NotMeasured);
    // A QEMU without requests is not asked about them.
    let idle = Work { unit: Unit::Request, ..still };
    assert_eq!(judge(&figures, &[idle]).0, Verdict::Confirmed);
}

#[test]
fn a_difference_that_may_be_none_is_none() {
    let cost = [8e8, 8e8];
    let figures = [compared(Figure::Cost, [8e8, 4e8], cost)];
    let same = Work {
        promised_difference: Some(interval([-10.0, 0.0, 10.0])),
        ..work(Unit::Wakeup, [10_000.0; 2], cost)
    };
    assert_eq!(judge(&figures, &[same]).0, Verdict::NoDifference);
    let figures = [Compared { difference: Some(Interval::unknown(-1e8)), ..figures[0].clone() }];
    assert_eq!(judge(&figures, &[]).0, Verdict::NotMeasured);
}

#[test]
fn a_plan_without_a_prediction_can_be_a_gain_only() {
    let cost = [8e8, 4e8];
    let figures = [compared(Figure::Cost, [0.0; 2], cost)];
    let wakeups = [work(Unit::Wakeup, [10_000.0; 2], cost)];
    assert_eq!(judge_after(&Effect::default(), &figures, &wakeups, 8), (Verdict::Gain, vec![]));
}

/// For a limit that must be kept, polling more, or halting more, is what was promised.
#[test]
fn more_is_a_gain_where_more_is_predicted() {
    let cost = [4e8, 8e8];
    let figures = [compared(Figure::Cost, cost, cost)];
    assert_eq!(judge(&figures, &[work(Unit::Wakeup, [10_000.0; 2], cost)]).0, Verdict::Confirmed);
    let less = [8e8, 4e8];
    let figures = [compared(Figure::Cost, cost, less)];
    assert_eq!(judge(&figures, &[work(Unit::Wakeup, [10_000.0; 2], less)]).0, Verdict::Regression);
}

/// Two rounds gave "the predicted effect came", from an interval between two values.
#[test]
fn a_few_rounds_confirm_nothing() {
    let cost = [8e8, 4e8];
    let figures = [compared(Figure::Cost, cost, cost)];
    let wakeups = [work(Unit::Wakeup, [10_000.0; 2], cost)];
    for rounds in 0..8 {
        let wanted = if rounds < 6 { Verdict::NotEnoughRounds } else { Verdict::Confirmed };
        let verdict = judge_after(&predicts(None), &figures, &wakeups, rounds).0;
        assert_eq!(verdict, wanted, "{rounds}");
    }
}

#[test]
fn verdicts_of_older_journals_are_read() {
    for (old, verdict) in [
        ("came", Verdict::Confirmed),
        ("came_in_part", Verdict::NotAsPredicted),
        ("partly_confirmed", Verdict::NotAsPredicted),
        ("not_seen", Verdict::NoDifference),
        ("worse", Verdict::Regression),
        ("void", Verdict::NoEffect),
        ("unknown", Verdict::NotMeasured),
    ] {
        let read: Verdict = serde_json::from_value(old.into()).unwrap();
        assert_eq!(read, verdict);
    }
    assert_eq!(serde_json::to_value(Verdict::NotEnoughRounds).unwrap(), "not_enough_rounds");
}
