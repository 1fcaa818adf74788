//! Advice by the work done: without turns, a replay of causes says what a load that waits for its own answers would do.

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

/// What was compared by the work done.
#[derive(Default)]
pub(super) struct Compared {
    /// When to compare next, if idlers mostly halt \[ns\].
    next_ns: u64,
    /// Until then there is no CPU time for a comparison, without which nothing is advised \[ns\].
    rests_until_ns: u64,
    /// Whether a line has said, since the last advice, that causes speak against that of idle times.
    has_refused: bool,
}

impl Control<'_> {
    /// What to advise in place of what a replay of idle times does, which may be nothing. The same where causes are not to be
    /// had.
    pub(super) fn by_work(&mut self, at: usize, advice: Option<Change>) -> Option<Change> {
        let now_ns = self.now_ns();
        let Layered { controller, by_work: compared, .. } = &self.layers[at];
        let due = match &advice {
            Some(Change { cause: Cause::Gain { .. }, .. }) => true,
            Some(_) => false,
            None => now_ns >= compared.next_ns,
        };
        let settings = if due { controller.to_compare(advice.as_ref()) } else { vec![] };
        if settings.is_empty() {
            return advice;
        }
        if now_ns < compared.rests_until_ns {
            return None;
        }
        let Some(by_work) = self.compared(at, now_ns, &settings) else { return advice };
        let Layered { subject, controller, by_work: compared, .. } = &mut self.layers[at];
        let best = by_work.choose(advice.as_ref().map(|change| change.to), controller.advice());
        let change = by_work.change(now_ns, best);
        if best != controller.advice() {
            compared.has_refused = false;
            return Some(change);
        }
        if let Some(advice) = advice {
            // Advice that was given stays without a word.
            if change.writes() == 0 && advice.writes() > 0 && !compared.has_refused {
                let said = words::line(&by_work.change(now_ns, advice.to), &|_| String::new());
                self.notes.say(subject, &format!("no advice: a replay of idle times would advise {said}"));
                compared.has_refused = true;
            }
            controller.advised(&change);
        }
        None
    }

    /// Records causes and compares settings; `None` where causes are not to be had, or show too little.
    fn compared(&mut self, at: usize, now_ns: u64, settings: &[Setting]) -> Option<ByWork> {
        let before = self.used();
        let Layered { source, .. } = &mut self.layers[at];
        let segments = source.segments(RECORDED);
        let by_work = segments.map(|segments| ByWork::of(&segments, settings, self.config.halt_cost));
        let took_ns = nanos(self.used().saturating_sub(before));
        let rest_ns = took_ns.saturating_mul(ONE_IN * 1_000_000_000 / self.config.cpu_limit.get().max(1));
        let Layered { by_work: compared, .. } = &mut self.layers[at];
        compared.rests_until_ns = now_ns.saturating_add(rest_ns);
        compared.next_ns = now_ns.saturating_add(rest_ns.max(EVERY_NS));
        by_work?.ok()?
    }
}
