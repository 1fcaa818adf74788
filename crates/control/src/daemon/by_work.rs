//! Settings by the work done: before turns, and where none are taken, a replay of causes predicts what a load that waits for
//! its own answers does under other settings.

use super::layered::Layered;
use super::notes::Notes;
use super::{Control, nanos, words};
use crate::core::{ByWork, Cause, Change, Question};
use dwell_knobs::lease::Subject;
use std::time::Duration;

/// How often, without advice of a replay of idle times \[ns\].
const EVERY_NS: u64 = 16_000_000_000;
/// Of the CPU time that control may use, comparisons have one part in so many.
pub(super) const ONE_IN: u64 = 4;
/// A comparison may use what of that is of the next so many seconds \[ns\].
const DEBT_NS: u64 = 20_000_000_000;

/// When settings are compared by the work done.
#[derive(Default)]
pub(super) struct Comparisons {
    /// When to compare next, if idlers mostly halt \[ns\].
    next_ns: u64,
    /// When comparisons will have used no more than they may \[ns\].
    paid_ns: u64,
    /// The CPU time of those that are not accounted for yet.
    used: Duration,
    /// Whether a line was printed, since the last advice or change, about a choice by idle times that is not followed.
    has_refused: bool,
    /// Why causes could not be recorded the last time.
    pub(super) failed: Option<String>,
}

impl Comparisons {
    fn are_affordable(&self, now_ns: u64) -> bool {
        self.paid_ns <= now_ns.saturating_add(DEBT_NS)
    }

    /// Prints, once, which choice by idle times is not followed.
    fn refuse(&mut self, notes: Notes<'_>, subject: &Subject, refused: &Change, [none, would]: [&str; 2]) {
        if !std::mem::replace(&mut self.has_refused, true) {
            let line = words::line(refused, &|_| String::new());
            notes.say(subject, &format!("{none}: a replay of idle times would {would} {line}"));
        }
    }

    /// The CPU time of comparisons since the last call.
    pub(super) fn take_used(&mut self) -> Duration {
        std::mem::take(&mut self.used)
    }
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
        let question = controller.question(advice.as_ref()).filter(|_| due);
        let Some(question) = question else { return advice };
        if !comparisons.are_affordable(now_ns) {
            return None;
        }
        let Some(by_work) = self.compare(at, now_ns, &question) else { return advice };
        let Layered { subject, controller, comparisons, .. } = &mut self.layers[at];
        let best = by_work.choose(advice.as_ref().map(|change| change.to), controller.advice());
        let change = by_work.change(now_ns, best);
        if best != controller.advice() {
            comparisons.has_refused = false;
            return Some(change);
        }
        if let Some(advice) = advice {
            // Where other advice was given before, it stays, and no line is needed.
            if change.writes() == 0 && advice.writes() > 0 {
                let refused = by_work.change(now_ns, advice.to);
                comparisons.refuse(self.notes, subject, &refused, ["no advice", "advise"]);
            }
            controller.advised(&change);
        }
        None
    }

    /// What to do where a comparison by the work done is waited for. Turns judge it if causes cannot be recorded, or
    /// if CPU time is short.
    pub(super) fn compared(&mut self, at: usize) -> Option<Change> {
        let controller = &self.layers[at].controller;
        if !controller.waits() {
            return None;
        }
        let question = controller.question(None)?;
        let now_ns = self.now_ns();
        let affordable = self.layers[at].comparisons.are_affordable(now_ns);
        let by_work = if affordable { self.compare(at, now_ns, &question) } else { None };
        let now_ns = self.now_ns();
        let Layered { subject, controller, comparisons, .. } = &mut self.layers[at];
        let present = controller.status(now_ns).present;
        if let Some((by_work, to)) = by_work.as_ref().zip(controller.waits_for())
            && by_work.choose(Some(to), present) == present
        {
            let refused = by_work.change(now_ns, to);
            comparisons.refuse(self.notes, subject, &refused, ["no change", "choose"]);
        }
        let change = controller.compared(now_ns, by_work.as_ref());
        comparisons.has_refused &= change.is_none();
        change
    }

    /// Records causes and compares settings; `None` where causes cannot be recorded, which is said once, or show too little.
    fn compare(&mut self, at: usize, now_ns: u64, question: &Question) -> Option<ByWork> {
        let before = self.used();
        let Layered { source, .. } = &mut self.layers[at];
        let of = |segments| Ok(ByWork::of(&segments, question, self.config.halt_cost)?);
        let by_work = source.segments(question.length).and_then(|segments| segments.map(of).transpose());
        let took = self.used().saturating_sub(before);
        let rest_ns = nanos(took).saturating_mul(ONE_IN * 1_000_000_000 / self.config.cpu_limit.get().max(1));
        let Layered { subject, comparisons, .. } = &mut self.layers[at];
        let failed = by_work.as_ref().err().map(|error| format!("{error:#}"));
        if let Some(why) = failed.as_ref().filter(|why| comparisons.failed.as_ref() != Some(*why)) {
            self.notes.say(
                subject,
                &format!(
                    "cannot record what wakes tasks, so settings are compared by idle times alone: {why}"
                ),
            );
        }
        comparisons.failed = failed;
        comparisons.used += took;
        comparisons.paid_ns = comparisons.paid_ns.max(now_ns).saturating_add(rest_ns);
        comparisons.next_ns = now_ns.saturating_add(rest_ns.max(EVERY_NS));
        by_work.ok()??
    }
}
