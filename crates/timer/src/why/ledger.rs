//! The CPU time of one thread, laid over what it did.

use super::Cause;
use super::bill::Sum;
use std::collections::{BTreeMap, VecDeque};

/// A stretch of CPU time whose label may still change.
#[derive(Clone, Debug)]
struct Slice {
    from_ns: u64,
    to_ns: u64,
    cause: Cause,
}

/// The bill of one thread.
#[derive(Debug)]
pub(super) struct Ledger {
    /// What the thread does from a time on, in order; the first is as old as the last stretch, or older.
    states: VecDeque<(u64, Cause)>,
    open: Vec<Slice>,
    pub(super) sums: BTreeMap<Cause, Sum>,
    /// The sums when they were cut last.
    before: BTreeMap<Cause, Sum>,
    last_ns: u64,
}

/// Stretches that are kept for a later label. A burst has a handful.
const MOST_OPEN: usize = 4096;

impl Ledger {
    pub(super) fn new(first: Cause) -> Ledger {
        let (open, sums, before) = Default::default();
        Ledger { states: VecDeque::from([(0, first)]), open, sums, before, last_ns: 0 }
    }

    /// What the thread does now.
    pub(super) fn state(&self) -> &Cause {
        &self.states[self.states.len() - 1].1
    }

    /// From now on it does this.
    pub(super) fn enter(&mut self, at_ns: u64, cause: Cause) {
        let at_ns = at_ns.max(self.states[self.states.len() - 1].0);
        if self.states.len() >= MOST_OPEN {
            // A thread that is never seen to run: nothing is charged to what it did.
            self.states.drain(..MOST_OPEN / 2);
        }
        self.states.push_back((at_ns, cause));
    }

    pub(super) fn count(&mut self, cause: Cause) {
        self.sums.entry(cause).or_default().count += 1;
    }

    /// What was counted once as something else.
    pub(super) fn recount(&mut self, was: &Cause, is: Cause) {
        if let Some(sum) = self.sums.get_mut(was) {
            sum.count = sum.count.saturating_sub(1);
        }
        self.count(is);
    }

    /// It ran for `ns` up to `to_ns`.
    pub(super) fn ran(&mut self, to_ns: u64, ns: u64) {
        let from_ns = to_ns.saturating_sub(ns);
        let mut end_ns = to_ns;
        for (at, (since_ns, cause)) in self.states.iter().enumerate().rev() {
            let begin_ns = if at == 0 { from_ns } else { (*since_ns).clamp(from_ns, end_ns) };
            if begin_ns < end_ns {
                self.open.push(Slice { from_ns: begin_ns, to_ns: end_ns, cause: cause.clone() });
            }
            end_ns = begin_ns;
            if end_ns <= from_ns {
                break;
            }
        }
        // A clock that begins in the middle of a stretch.
        if to_ns - from_ns < ns {
            self.sums.entry(Cause::Rest).or_default().cpu_ns += ns - (to_ns - from_ns);
        }
        self.last_ns = self.last_ns.max(to_ns);
        while self.states.get(1).is_some_and(|(since_ns, _)| *since_ns <= self.last_ns) {
            self.states.pop_front();
        }
        if self.open.len() >= MOST_OPEN {
            self.settle();
        }
    }

    /// What it did in this time was something else, where `is` says so of what was thought.
    pub(super) fn relabel(
        &mut self,
        from_ns: u64,
        to_ns: u64,
        is: impl Fn(&Cause) -> bool,
        charged: &Cause,
        coming: &Cause,
    ) {
        let mut cut = vec![];
        for slice in &mut self.open {
            let (begin, end) = (slice.from_ns.max(from_ns), slice.to_ns.min(to_ns));
            if begin >= end || !is(&slice.cause) {
                continue;
            }
            let piece = |from_ns, to_ns| Slice { from_ns, to_ns, cause: slice.cause.clone() };
            cut.extend((slice.from_ns < begin).then(|| piece(slice.from_ns, begin)));
            cut.extend((end < slice.to_ns).then(|| piece(end, slice.to_ns)));
            *slice = Slice { from_ns: begin, to_ns: end, cause: charged.clone() };
        }
        self.open.append(&mut cut);
        // And of what is not charged yet.
        let mut states: Vec<(u64, Cause)> = vec![];
        let ends = self.states.iter().skip(1).map(|(since_ns, _)| *since_ns).chain([u64::MAX]);
        for ((since_ns, cause), end_ns) in self.states.iter().zip(ends) {
            let (begin, end) = ((*since_ns).max(from_ns), end_ns.min(to_ns));
            if begin >= end || !is(cause) {
                states.push((*since_ns, cause.clone()));
                continue;
            }
            states.extend((*since_ns < begin).then(|| (*since_ns, cause.clone())));
            states.push((begin, coming.clone()));
            states.extend((end < end_ns).then(|| (end, cause.clone())));
        }
        self.states = states.into();
    }

    /// Labels do not change any more.
    pub(super) fn settle(&mut self) {
        for slice in self.open.drain(..) {
            self.sums.entry(slice.cause).or_default().cpu_ns += slice.to_ns - slice.from_ns;
        }
    }

    /// What was charged since the last cut. What may be labelled anew is part of the next.
    pub(super) fn cut(&mut self) -> BTreeMap<Cause, Sum> {
        let since = self.sums.iter().map(|(cause, sum)| (cause.clone(), sum.since(self.before.get(cause))));
        let since = since.collect();
        self.before = self.sums.clone();
        since
    }

    /// What it ran, all together.
    pub(super) fn charged_ns(&self) -> u64 {
        self.sums.values().map(|sum| sum.cpu_ns).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::Wake;
    use proptest::prelude::*;

    const RUN: Cause = Cause::Run { wake: Wake::Unknown };

    fn of(ledger: &mut Ledger, cause: &Cause) -> u64 {
        ledger.settle();
        ledger.sums.get(cause).map_or(0, |sum| sum.cpu_ns)
    }

    #[test]
    fn a_stretch_is_divided_where_what_is_done_changes() {
        let mut ledger = Ledger::new(RUN);
        ledger.enter(1_000, Cause::Vmm);
        ledger.enter(1_300, RUN);
        // From 900 to 1,500.
        ledger.ran(1_500, 600);
        assert_eq!(of(&mut ledger, &Cause::Vmm), 300);
        assert_eq!(of(&mut ledger, &RUN), 300);
    }

    #[test]
    fn a_label_is_laid_on_what_is_past_and_on_what_is_not_charged_yet() {
        let mut ledger = Ledger::new(RUN);
        ledger.ran(1_000, 500);
        // The halt began at 800; it was polled until 1,000, slept, and woken at 5,000, seen at 5,100.
        ledger.relabel(800, 5_100, |_| true, &Cause::FailedPoll, &Cause::Halt);
        ledger.enter(5_100, RUN);
        ledger.ran(5_400, 400);
        assert_eq!(of(&mut ledger, &Cause::FailedPoll), 200);
        assert_eq!(of(&mut ledger, &Cause::Halt), 100);
        assert_eq!(of(&mut ledger, &RUN), 300 + 300);
    }

    fn causes() -> impl Strategy<Value = Cause> {
        prop::sample::select(vec![RUN, Cause::Vmm, Cause::Wait, Cause::Halt, Cause::FailedPoll])
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(Cause),
        Ran(u64),
        Relabel(u64, u64, Cause, Cause),
        Settle,
    }

    proptest! {
        /// However it is labelled: what is charged is what ran, and nothing is charged twice.
        #[test]
        fn what_is_charged_is_what_ran(steps in prop::collection::vec((0u64..100, prop_oneof![
            causes().prop_map(Step::Enter),
            (0u64..200).prop_map(Step::Ran),
            (0u64..300, 0u64..300, causes(), causes()).prop_map(|(a, b, c, d)| Step::Relabel(a, b, c, d)),
            Just(Step::Settle),
        ]), 0..60)) {
            let mut ledger = Ledger::new(RUN);
            let (mut now, mut ran) = (0, 0);
            for (wait, step) in steps {
                now += wait;
                match step {
                    Step::Enter(cause) => ledger.enter(now, cause),
                    Step::Ran(ns) => {
                        ledger.ran(now, ns);
                        ran += ns;
                    }
                    Step::Relabel(back, length, charged, coming) => {
                        let from = now.saturating_sub(back);
                        ledger.relabel(from, (from + length).min(now), |cause| *cause != Cause::Vmm, &charged, &coming);
                    }
                    Step::Settle => ledger.settle(),
                }
                prop_assert!(ledger.states.iter().zip(ledger.states.iter().skip(1)).all(|(a, b)| a.0 <= b.0));
            }
            ledger.settle();
            prop_assert_eq!(ledger.charged_ns(), ran);
        }
    }
}
