//! Traced decisions against the rule: what the block time may have been, and whether the rule then does what QEMU did.

use dwell_policy::iothread::{Change, ChangeKind, Params, Revision, classic};
use serde::{Deserialize, Serialize};

/// What became of the decisions in a trace: `poll_grow` and `poll_shrink`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionCounts {
    /// Those in the trace.
    pub traced: u64,
    /// Those for which the rule does what QEMU did, whatever the block time was within what is known of it.
    pub determined: u64,
    /// Those that the rule cannot have made.
    pub contradicted: u64,
    /// The line of the first of them, from 1; `None` where there is none, or the trace is no text.
    pub first_contradicted_line: Option<u64>,
}

impl DecisionCounts {
    pub(super) fn count(&mut self, verdict: Possibility) {
        self.traced += 1;
        match verdict {
            Possibility::Determined => self.determined += 1,
            Possibility::Possible => {}
            Possibility::Contradicted => self.contradicted += 1,
        }
    }
}

/// What is known of a block time \[ns\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) least: i64,
    pub(super) most: i64,
}

impl Bounds {
    pub(super) const UNKNOWN: Bounds = Bounds { least: 0, most: i64::MAX };
}

/// Whether the rule can have made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Possibility {
    Determined,
    Possible,
    Contradicted,
}

/// Whether the rule can have made this change of a polling time out of a block time within `bounds`.
///
/// In the weighted revision the block time acts through a smoothed one that the trace does not have; there only the
/// arithmetic of the step is looked at, and nothing is determined.
pub(super) fn judge(revision: Revision, params: &Params, change: Change, bounds: Bounds) -> Possibility {
    match revision {
        Revision::Global | Revision::PerHandler => judge_classic(params, change, bounds),
        Revision::Weighted if step_is_possible(params, change) => Possibility::Possible,
        Revision::Weighted => Possibility::Contradicted,
    }
}

fn judge_classic(params: &Params, change: Change, Bounds { least, most }: Bounds) -> Possibility {
    // The rule's outcomes are in order of the block time: nothing, growth, (at the maximum itself) nothing,
    // shrinking. So the least block time that can have this outcome decides, and the two ends tell whether
    // there is another outcome.
    let above = match change.kind {
        ChangeKind::Grow => change.old,
        ChangeKind::Shrink => change.old.max(params.poll_max_ns),
    };
    let candidate = least.max(above.saturating_add(1));
    if candidate > most || classic(change.old, candidate, params) != Some(change) {
        return Possibility::Contradicted;
    }
    let same = |block_ns| classic(change.old, block_ns, params) == Some(change);
    if same(least) && same(most) { Possibility::Determined } else { Possibility::Possible }
}

fn step_is_possible(params: &Params, change: Change) -> bool {
    let (max, old, new) = (params.poll_max_ns, change.old, change.new);
    match change.kind {
        ChangeKind::Grow => {
            let multiple = old.wrapping_mul(params.poll_grow);
            new == multiple.min(max) || (new > old && new > multiple && new <= max)
        }
        ChangeKind::Shrink => params.poll_shrink != 0 && new == old.wrapping_div(params.poll_shrink),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::iothread::{adjust, weighted};
    use proptest::prelude::*;

    /// Every block time tried.
    fn oracle(params: &Params, change: Change, bounds: Bounds) -> Possibility {
        let outcomes: Vec<bool> = (bounds.least..=bounds.most)
            .map(|block| classic(change.old, block, params) == Some(change))
            .collect();
        match (outcomes.iter().all(|&same| same), outcomes.iter().any(|&same| same)) {
            (true, true) => Possibility::Determined,
            (_, true) => Possibility::Possible,
            _ => Possibility::Contradicted,
        }
    }

    proptest! {
        #[test]
        fn bounds_are_judged_as_if_every_block_time_was_tried(
            max in 0i64..60, grow in 0i64..4, shrink in 0i64..4, old in 0i64..60, new in 0i64..60,
            grows: bool, made in prop::option::of(0i64..100), least in 0i64..80, length in 0i64..40,
        ) {
            let params = Params { poll_max_ns: max, poll_grow: grow, poll_shrink: shrink, poll_weight: 0 };
            let kind = if grows { ChangeKind::Grow } else { ChangeKind::Shrink };
            // Either anything, or something that the rule does make.
            let change = made.and_then(|block| classic(old, block, &params)).unwrap_or(Change { kind, old, new });
            let bounds = Bounds { least, most: least + length };
            prop_assert_eq!(judge_classic(&params, change, bounds), oracle(&params, change, bounds));
        }

        #[test]
        fn no_step_of_the_weighted_rule_is_contradicted(
            max in 0i64..100_000, grow in 1i64..5, shrink in 1i64..5, weight in 1i64..8,
            blocks in prop::collection::vec(0i64..120_000, 0..60),
        ) {
            let params = Params { poll_max_ns: max, poll_grow: grow, poll_shrink: shrink, poll_weight: weight };
            let (mut ns, mut poll_ns) = (0, 0);
            for block in blocks {
                ns = weighted(ns, block, true, &params);
                if let Some(change) = adjust(poll_ns, ns, &params) {
                    prop_assert_eq!(judge(Revision::Weighted, &params, change, Bounds::UNKNOWN), Possibility::Possible);
                    poll_ns = change.new;
                }
            }
        }
    }

    #[test]
    fn steps_that_no_rule_makes_are_contradicted() {
        let params = Params { poll_max_ns: 32_768, poll_grow: 2, poll_shrink: 2, poll_weight: 3 };
        let grow = |old, new| Change { kind: ChangeKind::Grow, old, new };
        let shrink = |old, new| Change { kind: ChangeKind::Shrink, old, new };
        for change in [grow(0, 40_000), grow(8_000, 9_000), shrink(8_000, 3_000)] {
            assert_eq!(
                judge(Revision::Weighted, &params, change, Bounds::UNKNOWN),
                Possibility::Contradicted
            );
        }
        assert_eq!(
            judge(Revision::Global, &params, grow(0, 8_000), Bounds::UNKNOWN),
            Possibility::Contradicted
        );
        assert_eq!(judge(Revision::Global, &params, grow(0, 4_000), Bounds::UNKNOWN), Possibility::Possible);
    }
}
