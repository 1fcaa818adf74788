//! Settings by the work done under them. A load that waits for its own answers has other idle times under another setting;
//! a replay of causes predicts them without that setting being tried.

use crate::core::change::{Cause, Change};
use crate::core::choice::WORTH;
use crate::core::turns::worth;
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_recording::Segments;
use dwell_replay::causal::{Calibrated, Outcome, Predictor, Range};
use dwell_replay::{Rule, RuleError};
use std::time::Duration;

/// The most segments that are replayed.
const MOST_SEGMENTS: usize = 1024;
/// How long causes are recorded at least …
const SHORTEST: Duration = Duration::from_millis(10);
/// … at most for advice …
pub(crate) const LONGEST_FOR_ADVICE: Duration = Duration::from_millis(100);
/// … and before a change, as a setting that costs too much is in force meanwhile.
pub(crate) const LONGEST_BEFORE_A_CHANGE: Duration = Duration::from_millis(30);
/// By how much a replay of the setting in force may miss the work that was recorded, as a share.
const OWN_ERROR: f64 = 0.2;

/// What is to be compared.
pub struct Question {
    /// The one in force first, and none twice.
    settings: Vec<Setting>,
    /// For how long to record causes.
    pub length: Duration,
}

impl Question {
    /// With so many episodes a second, each of which is followed by a segment at least; causes are recorded for no longer than
    /// `longest`.
    pub(crate) fn of(settings: impl IntoIterator<Item = Setting>, per_s: f64, longest: Duration) -> Question {
        let mut of: Vec<Setting> = vec![];
        for setting in settings {
            if !of.contains(&setting) {
                of.push(setting);
            }
        }
        let length = Duration::from_secs_f64(MOST_SEGMENTS as f64 / per_s.max(1.0));
        Question { settings: of, length: length.clamp(SHORTEST, longest) }
    }
}

/// What settings do to the work.
pub struct ByWork {
    /// The one in force first.
    rows: Vec<Row>,
    segments: usize,
}

struct Row {
    setting: Setting,
    /// Work a second, over that under the setting in force.
    speed: Range,
    /// What a unit of work costs \[ns\].
    cost_ns: f64,
    /// What a unit of work costs times the square of its time, over that under the setting in force: the measure of turns.
    worth: Range,
}

fn work(outcome: &Outcome) -> f64 {
    outcome.work.max(1) as f64
}

impl ByWork {
    /// Replays what was recorded under the setting in force. `None` where it has too little work in it, or where a
    /// replay of that setting does not do what was recorded.
    ///
    /// # Errors
    /// [`RuleError`] for a setting that cannot be replayed.
    pub fn of(
        segments: &Segments,
        question: &Question,
        halt_cost: Nanos,
    ) -> Result<Option<ByWork>, RuleError> {
        let segments = segments.part(0..segments.rows.len().min(MOST_SEGMENTS));
        let of = &question.settings;
        let rules: Vec<Rule> = of.iter().copied().map(Rule::Layer).collect();
        let Some(present) = rules.first() else { return Ok(None) };
        let predictor = Predictor::of_all(&segments, present, &[], Calibrated::default())?;
        let Some(predictor) = predictor.filter(|of| of.own_error.abs() <= OWN_ERROR) else {
            return Ok(None);
        };
        let halt_cost = halt_cost.max(predictor.added_by_halt());
        let judged = predictor.judge(&rules)?;
        let cost_ns = |outcome: &Outcome| outcome.cost_ns(halt_cost).max(1) as f64 / work(outcome);
        let rows = of.iter().enumerate().map(|(number, setting)| Row {
            setting: *setting,
            speed: judged.over_present(number, |outcome| work(outcome) / outcome.span_ns as f64),
            cost_ns: cost_ns(&judged.outcome(number)),
            worth: judged.over_present(number, |outcome| {
                cost_ns(outcome) * (outcome.span_ns as f64 / work(outcome)).powi(2)
            }),
        });
        Ok(Some(ByWork { rows: rows.collect(), segments: segments.rows.len() }))
    }

    /// What to use: the best of those that are better than the setting in force, or else that one. The choice of a replay
    /// of idle times, and what was advised `before`, have to be better by what a change has to save; others for certain. What
    /// was advised before stays unless another one is better than it by as much.
    pub fn choose(&self, by_idle_times: Option<Setting>, before: Setting) -> Setting {
        let is_better = |row: &&Row| match Some(row.setting) == by_idle_times || row.setting == before {
            true => row.worth.middle <= 1.0 - WORTH,
            false => row.worth.high < 1.0,
        };
        let better = || self.rows.iter().skip(1).filter(is_better);
        let best = better().min_by(|a, b| a.worth.middle.total_cmp(&b.worth.middle));
        let kept = better().find(|row| row.setting == before);
        let stays = |best: &Row, kept: &Row| best.worth.middle > kept.worth.middle * (1.0 - WORTH);
        match (best, kept) {
            (Some(best), Some(kept)) if stays(best, kept) => before,
            (best, _) => best.unwrap_or(&self.rows[0]).setting,
        }
    }

    /// The settings that are better than this one, with what a unit of work may cost of what it costs under it for the work done.
    pub(crate) fn worths(&self, over: &Setting) -> impl Iterator<Item = (Setting, f64)> {
        let of = self.rows.iter().find(|row| row.setting == *over);
        let better =
            move |row: &&Row| of.is_some_and(|of| row.worth.middle < of.worth.middle * (1.0 - WORTH));
        let more = move |row: &Row| of.map_or(1.0, |of| row.speed.middle / of.speed.middle);
        self.rows.iter().filter(better).map(move |row| (row.setting, worth(more(row))))
    }

    /// The change from the setting in force to one of the settings, with what that does to the work.
    pub fn change(&self, at_ns: u64, to: Setting) -> Change {
        let present = &self.rows[0];
        let row = self.rows.iter().find(|row| row.setting == to).unwrap_or(present);
        let (chosen_ns, present_ns) = (row.cost_ns, present.cost_ns);
        let cause = Cause::Work { segments: self.segments, speed: row.speed, chosen_ns, present_ns };
        Change { at_ns, from: present.setting, to: row.setting, cause }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;
    use dwell_recording::{Cause as Woken, Segment};
    use dwell_replay::causal::with_maximum;

    const HALT_COST: Nanos = Nanos(20_000);
    const WORK_NS: u64 = 15_000;
    const LATENCY_NS: u64 = 20_000;

    /// Two tasks on two CPUs, in turn for `WORK_NS`, every one after a halt: woken by the other one, or else by a timer that
    /// comes `every_ns`.
    pub(crate) fn in_turns(every_ns: Option<u64>) -> Segments {
        let row = |number: u32| {
            let period_ns = every_ns.unwrap_or(WORK_NS + LATENCY_NS);
            let start_ns = (u64::from(number) + 1) * period_ns;
            let cause = match (every_ns, number.checked_sub(1)) {
                (Some(_), _) => Woken::Timer { woken_ns: start_ns - LATENCY_NS },
                (None, Some(waker)) => Woken::Task { waker, offset_ns: WORK_NS },
                (None, None) => Woken::Unknown,
            };
            let (task, cpu) = (number % 2, number % 2);
            Segment { task, cpu, start_ns, run_ns: WORK_NS, cause, halted: Some(true), idle: None }
        };
        let tasks = vec!["ping/1".to_owned(), "pong/2".to_owned()];
        Segments { tasks, rows: (0..2_000).map(row).collect(), ..Segments::default() }
    }

    fn settings() -> [Setting; 3] {
        let default = Setting::defaults(Layer::Guest, Version::new(6, 18));
        [0, 80_000, 200_000].map(|ns| with_maximum(default, ns))
    }

    pub(crate) fn of(segments: &Segments, settings: &[Setting]) -> Option<ByWork> {
        let question = Question::of(settings.iter().copied(), 0.0, LONGEST_FOR_ADVICE);
        ByWork::of(segments, &question, HALT_COST).unwrap()
    }

    #[test]
    fn tasks_that_wait_for_each_other_are_to_poll_though_every_idle_time_costs_more_than_a_halt() {
        let [never, polls, default] = settings();
        let by_work = of(&in_turns(None), &[never, polls, never]).unwrap();
        assert_eq!((by_work.choose(None, never), by_work.choose(Some(never), never)), (polls, polls));
        let change = by_work.change(7, polls);
        assert_eq!((change.at_ns, change.from, change.to), (7, never, polls));
        let Cause::Work { segments, speed, chosen_ns, present_ns } = change.cause else {
            panic!("{change:?}")
        };
        // 35 us a turn become 15 and what a wakeup from a poll takes, which such a recording does not show.
        assert!(
            segments == MOST_SEGMENTS && speed.low > 1.3 && speed.middle < 35.0 / 15.0 * 1.5,
            "{change:?}"
        );
        assert!(chosen_ns < present_ns && (present_ns - 20_000.0).abs() < 500.0, "{change:?}");
        // What was advised stays beside what is as good.
        let by_work = of(&in_turns(None), &[never, default, polls]).unwrap();
        assert_eq!(by_work.choose(Some(polls), default), default);
        assert_eq!(by_work.choose(Some(default), polls), polls);
        // Recorded under never, it is not what the default does.
        assert!(of(&in_turns(None), &[default, never]).is_none());
    }

    #[test]
    fn tasks_that_wait_for_timers_are_to_halt() {
        let [never, polls, _] = settings();
        let by_work = of(&in_turns(Some(45_000)), &[never, polls]).unwrap();
        assert_eq!((by_work.choose(None, never), by_work.choose(Some(polls), never)), (never, never));
        let Cause::Work { speed, chosen_ns, .. } = by_work.change(0, polls).cause else { panic!() };
        // Timers may be set anew after each wakeup, so that they come sooner after earlier ones.
        assert!(speed.low < 1.0 && speed.high > 1.0 && chosen_ns > 40_000.0, "{speed:?} {chosen_ns}");
    }

    #[test]
    fn too_little_shows_nothing() {
        let [never, polls, _] = settings();
        let few = in_turns(None).part(0..30);
        assert!(of(&few, &[never, polls]).is_none());
        assert!(of(&in_turns(None), &[]).is_none());
    }
}
