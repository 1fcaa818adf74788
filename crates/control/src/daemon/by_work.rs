//! Advice by the work done: where no turns are taken, a replay of causes predicts what a load that waits for its own
//! answers does under other settings.

use super::layered::Layered;
use super::{Control, nanos, words};
use crate::core::{ByWork, Cause, Change};
use dwell_policy::param::Setting;
use std::time::Duration;

/// How long causes are recorded.
const RECORDED: Duration = Duration::from_millis(100);
/// How often, without advice of a replay of idle times \[ns\].
const EVERY_NS: u64 = 16_000_000_000;
/// Of the CPU time that control may use, comparisons use at most one part in so many.
const ONE_IN: u64 = 2;

/// When settings are compared by the work done.
#[derive(Default)]
pub(super) struct Comparisons {
    /// When to compare next, if idlers mostly halt \[ns\].
    next_ns: u64,
    /// No comparison is made before, as CPU time is limited, and nothing is advised without one \[ns\].
    rests_until_ns: u64,
    /// Whether a line was printed, since the last advice, about advice by idle times that is not given.
    has_refused: bool,
}

impl Control<'_> {
    /// What to advise, given the advice of a replay of idle times: that one, another one or none. Where causes cannot be
    /// recorded it is that one.
    pub(super) fn by_work(&mut self, at: usize, advice: Option<Change>) -> Option<Change> {
        let now_ns = self.now_ns();
        let Layered { controller, comparisons, .. } = &self.layers[at];
        let due = match &advice {
            Some(Change { cause: Cause::Gain { .. }, .. }) => true,
            Some(_) => false,
            None => now_ns >= comparisons.next_ns,
        };
        let settings = if due { controller.to_compare(advice.as_ref()) } else { vec![] };
        if settings.is_empty() {
            return advice;
        }
        if now_ns < comparisons.rests_until_ns {
            return None;
        }
        let Some(by_work) = self.compare(at, now_ns, &settings) else { return advice };
        let Layered { subject, controller, comparisons, .. } = &mut self.layers[at];
        let best = by_work.choose(advice.as_ref().map(|change| change.to), controller.advice());
        let change = by_work.change(now_ns, best);
        if best != controller.advice() {
            comparisons.has_refused = false;
            return Some(change);
        }
        if let Some(advice) = advice {
            // Where other advice was given before, it stays, and no line is needed.
            if change.writes() == 0 && advice.writes() > 0 && !comparisons.has_refused {
                let line = words::line(&by_work.change(now_ns, advice.to), &|_| String::new());
                self.notes.say(subject, &format!("no advice: a replay of idle times would advise {line}"));
                comparisons.has_refused = true;
            }
            controller.advised(&change);
        }
        None
    }

    /// Records causes and compares settings; `None` where causes cannot be recorded, or show too little.
    fn compare(&mut self, at: usize, now_ns: u64, settings: &[Setting]) -> Option<ByWork> {
        let before = self.used();
        let Layered { source, .. } = &mut self.layers[at];
        let segments = source.segments(RECORDED);
        let by_work = segments.map(|segments| ByWork::of(&segments, settings, self.config.halt_cost));
        let took_ns = nanos(self.used().saturating_sub(before));
        let rest_ns = took_ns.saturating_mul(ONE_IN * 1_000_000_000 / self.config.cpu_limit.get().max(1));
        let Layered { comparisons, .. } = &mut self.layers[at];
        comparisons.rests_until_ns = now_ns.saturating_add(rest_ns);
        comparisons.next_ns = now_ns.saturating_add(rest_ns.max(EVERY_NS));
        by_work?.ok()?
    }
}
