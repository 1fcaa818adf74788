//! What a recording shows of the ways into a halt, and of what the haltpoll governor measures of one.

use crate::full_polls::{ENOUGH, MOST, middle};

/// Times from a task that followed a halt to the idle state \[ns\]: of CPUs that polled first, and of those that halted at once.
#[derive(Debug, Default)]
pub(crate) struct Entries([Vec<u64>; 2]);

impl Entries {
    pub(crate) fn add(&mut self, polls: bool, took_ns: u64) {
        let all = &mut self.0[usize::from(!polls)];
        if all.len() < MOST {
            all.push(took_ns);
        }
    }

    /// By how much the median of those that halt is longer; `None` of too few.
    pub(crate) fn later_ns(&self) -> Option<u64> {
        let [polls, halts] = self.0.each_ref().map(|all| (all.len() >= ENOUGH).then(|| middle(all.clone())));
        halts?.checked_sub(polls?)
    }
}

/// Halts after which haltpoll changed its window, as long as events have them \[ns\]: those after which it grew, which the governor
/// has found no longer than its maximum, and those after which it shrank or stayed at zero, which were longer.
///
/// The governor reads its clock after the event that begins a halt and what a recorder does with that, so that it finds each halt a
/// little shorter.
#[derive(Debug, Default)]
pub(crate) struct Residencies {
    grew: Vec<u64>,
    shrank: Vec<u64>,
}

/// A recorder takes no longer than this for an event \[ns\].
const MOST_SHORTER_NS: u64 = 20_000;

impl Residencies {
    /// The window was changed from `old` to `new` after a halt.
    pub(crate) fn add(&mut self, halt_ns: u64, old: u32, new: u32) {
        // One that grew by a factor of 1 looks like one that stayed.
        let all = match () {
            () if new > old => &mut self.grew,
            () if new < old || new == 0 => &mut self.shrank,
            () => return,
        };
        if all.len() < MOST {
            all.push(halt_ns);
        }
    }

    /// How much shorter the governor finds a halt under this maximum \[ns\]: the least under which the fewest of its decisions are
    /// other than they would be.
    pub(crate) fn shorter_ns(&self, max_ns: u64) -> u64 {
        let beyond = |all: &[u64]| -> Vec<u64> {
            let mut all: Vec<u64> = all.iter().filter_map(|ns| ns.checked_sub(max_ns)).collect();
            all.retain(|ns| (1..=MOST_SHORTER_NS).contains(ns));
            all.sort_unstable();
            all
        };
        let (grew, shrank) = (beyond(&self.grew), beyond(&self.shrank));
        let others = |shorter_ns: u64| {
            let still_grew = grew.len() - grew.partition_point(|ns| *ns <= shorter_ns);
            still_grew + shrank.partition_point(|ns| *ns <= shorter_ns)
        };
        [0].into_iter().chain(grew.iter().copied()).min_by_key(|ns| (others(*ns), *ns)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decisions_show_how_much_shorter_a_halt_is_for_the_governor() {
        let mut halts = Residencies::default();
        assert_eq!(halts.shorter_ns(50_000), 0);
        for ns in (30_000..80_000).step_by(10) {
            let grows = ns - 310 <= 50_000;
            halts.add(ns, 0, if grows { 50_000 } else { 0 });
        }
        // Something held up the kernel before it read its clock, and a factor of 1.
        halts.add(57_000, 0, 50_000);
        halts.add(50_010, 50_000, 50_000);
        assert_eq!(halts.shorter_ns(50_000), 310);
        assert_eq!(halts.shorter_ns(0), 0);
    }

    proptest! {
        /// Under what is found no more decisions differ than under any other time.
        #[test]
        fn no_time_explains_more_decisions(
            halts in prop::collection::vec((0u64..60, any::<bool>()), 0..80), max_ns in 0u64..40, other_ns in 0u64..60,
        ) {
            let mut all = Residencies::default();
            halts.iter().for_each(|(ns, grew)| all.add(*ns, u32::from(!grew), u32::from(*grew)));
            let others = |shorter_ns: u64| {
                let of = |(ns, grew): &&(u64, bool)| *ns > max_ns && *grew != (*ns <= max_ns + shorter_ns);
                halts.iter().filter(of).count()
            };
            prop_assert!(others(all.shorter_ns(max_ns)) <= others(other_ns));
        }
    }
}
