//! Whether the rule, replayed, does what was counted.
//!
//! Where it does not, the originals are in force for 1 s, after the next loss of trust for 2 s, and so on up to
//! 64 s, or until the load changes. What is known of idlers is kept.

use crate::core::window::{LONGEST_REST_NS, Rest};
use dwell_replay::Counts;
use serde::Serialize;

/// How far polls or halts may be apart, as a share of those counted.
pub const LIMIT: f64 = 0.1;
/// How long the originals are in force after the first loss of trust \[ns\].
const FIRST_NS: u64 = 1_000_000_000;
/// So many periods in a row end trust.
pub const PERIODS: u32 = 3;

/// Differences below this share of the episodes decide nothing: a tenth of a number that is small itself.
pub(crate) const SHARE: f64 = 0.02;
/// Nor do differences within so many standard deviations of what is counted.
const DEVIATIONS: f64 = 4.0;

/// As [`LIMIT`] and [`SHARE`], where lengths are drawn from histograms: whether a window covers them is then
/// less certain.
const DRAWN: [f64; 2] = [0.2, 0.05];
/// As [`LIMIT`] and [`SHARE`], where what was counted is of other episodes than what was replayed, and may
/// have halts elsewhere.
const APART: [f64; 2] = [0.25, 0.3];

/// How what is compared was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// Counted of other episodes than those that were replayed.
    pub(crate) elsewhere: bool,
    /// Drawn from histograms.
    pub(crate) drawn: bool,
}

dwell_policy::named! {
    /// A figure that is predicted and counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Figure {
        /// Episodes that began with a poll.
        Polls = "polls",
        /// Episodes that ended in a halt.
        Halts = "halts",
    }

    pub fn name
}

/// A figure that is not as predicted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Apart {
    pub figure: Figure,
    /// How often it was predicted.
    pub predicted: f64,
    /// How often it was counted.
    pub counted: u64,
}

/// Trust that is lost, and until when the originals are in force, unless the load changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lost {
    /// `None` where nothing could be observed.
    pub apart: Option<Apart>,
    /// Until when \[ns\].
    pub until_ns: u64,
}

/// The periods in a row that were apart, and what follows from them.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    apart: u32,
    /// Why it is lost.
    pub(crate) lost: Option<Lost>,
    rest: Rest,
    /// Since when it has not been lost \[ns\].
    since_ns: u64,
}

impl Trust {
    /// Not lost at this time.
    pub(crate) const fn new(now_ns: u64) -> Trust {
        Trust { apart: 0, lost: None, rest: Rest::new(FIRST_NS, LONGEST_REST_NS), since_ns: now_ns }
    }

    /// It is lost, for so long \[ns\].
    pub(crate) fn lose(&mut self, now_ns: u64, apart: Option<Apart>) -> u64 {
        // After a long time of trust this is another load.
        if now_ns.saturating_sub(self.since_ns) >= LONGEST_REST_NS {
            self.rest.begin_anew();
        }
        let rest_ns = self.rest.take_ns();
        self.lost = Some(Lost { apart, until_ns: now_ns.saturating_add(rest_ns) });
        self.apart = 0;
        rest_ns
    }

    /// Whether it is still lost, where the load has changed or not.
    pub(crate) fn is_lost(&mut self, now_ns: u64, load_changed: bool) -> bool {
        if load_changed {
            self.rest.begin_anew();
        }
        let Some(lost) = self.lost else { return false };
        let over = load_changed || now_ns >= lost.until_ns;
        if over {
            (self.lost, self.since_ns) = (None, now_ns);
        }
        !over
    }

    /// Compares a period with polls and halts as predicted in several ways, one of which has to agree; the
    /// figure that ended trust is returned.
    pub(crate) fn compare(&mut self, predicted: &[[f64; 2]], counted: &Counts, seen: Seen) -> Option<Apart> {
        let all: Option<Vec<Apart>> = predicted.iter().map(|one| apart(*one, counted, seen)).collect();
        let apart = all.and_then(|all| all.first().copied());
        self.apart = if apart.is_some() { self.apart + 1 } else { 0 };
        apart.filter(|_| self.apart >= PERIODS)
    }
}

/// The figure that is furthest from its prediction, if that is too far; `predicted` has polls and halts.
pub(crate) fn apart(predicted: [f64; 2], counted: &Counts, seen: Seen) -> Option<Apart> {
    let [limit, share] = match seen {
        Seen { elsewhere: true, .. } => APART,
        Seen { drawn: true, .. } => DRAWN,
        _ => [LIMIT, SHARE],
    };
    let figures = [(Figure::Polls, counted.polls), (Figure::Halts, counted.halts)];
    let far = figures.into_iter().zip(predicted).filter_map(|((figure, counted_here), predicted)| {
        let number = counted_here as f64;
        let tolerated = (limit * number).max(DEVIATIONS * number.sqrt()).max(share * counted.episodes as f64);
        let by = (predicted - number).abs();
        (by > tolerated).then_some((by, Apart { figure, predicted, counted: counted_here }))
    });
    far.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, apart)| apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(episodes: u64, polls: u64, halts: u64) -> Counts {
        Counts { episodes, polls, halts, ..Counts::default() }
    }

    #[test]
    fn three_times_in_a_row_end_trust_and_two_do_not() {
        let mut trust = Trust::new(0);
        let (good, bad) = ([1_000.0, 400.0], [1_000.0, 500.0]);
        let counted = counts(1_000, 1_000, 400);
        let told: Vec<bool> = [bad, bad, good, bad, bad, bad]
            .into_iter()
            .map(|predicted| trust.compare(&[predicted], &counted, Seen::default()).is_some())
            .collect();
        assert_eq!(told, [false, false, false, false, false, true]);
        assert!(trust.compare(&[bad, good], &counted, Seen::default()).is_none(), "one of the two agrees");
        (0..2).for_each(|_| assert!(trust.compare(&[bad], &counted, Seen::default()).is_none()));
        let apart = trust.compare(&[bad, bad], &counted, Seen::default()).unwrap();
        assert_eq!((apart.figure, apart.counted), (Figure::Halts, 400));
    }

    #[test]
    fn lost_trust_comes_back_later_and_later_and_at_once_with_another_load() {
        const SECOND_NS: u64 = 1_000_000_000;
        let apart = Some(Apart { figure: Figure::Polls, predicted: 1.0, counted: 9 });
        let (mut trust, mut now_ns, mut rests) = (Trust::new(0), SECOND_NS, vec![]);
        for _ in 0..8 {
            let rest_ns = trust.lose(now_ns, apart);
            assert_eq!(trust.lost, Some(Lost { apart, until_ns: now_ns + rest_ns }));
            assert!(trust.is_lost(now_ns + rest_ns - 1, false));
            now_ns += rest_ns;
            assert!(!trust.is_lost(now_ns, false) && trust.lost.is_none());
            rests.push(rest_ns / SECOND_NS);
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 64]);
        trust.lose(now_ns, apart);
        assert!(!trust.is_lost(now_ns + 1, true));
        assert_eq!(
            [trust.lose(now_ns + 2, apart), trust.lose(now_ns + 3, apart)],
            [SECOND_NS, 2 * SECOND_NS]
        );
        assert!(!trust.is_lost(now_ns + 3 * SECOND_NS, false));
        assert_eq!(trust.lose(now_ns + 70 * SECOND_NS, apart), SECOND_NS);
    }

    #[test]
    fn small_numbers_may_be_apart() {
        // 8 of 10,000 halts where 40 were predicted: under 2 % of the episodes.
        assert_eq!(apart([10_000.0, 40.0], &counts(10_000, 10_000, 8), Seen::default()), None);
        // 20 of 80 where 30 were predicted: within four deviations of 20.
        assert_eq!(apart([80.0, 30.0], &counts(80, 80, 20), Seen::default()), None);
        assert!(apart([80.0, 60.0], &counts(80, 80, 20), Seen::default()).is_some());
    }

    #[test]
    fn what_was_counted_of_other_episodes_is_compared_loosely() {
        for (predicted, loosely) in [(650.0, false), (720.0, true)] {
            let mut trust = Trust::new(0);
            let mut told = |elsewhere| {
                (0..3).any(|_| {
                    trust
                        .compare(
                            &[[0.0, predicted]],
                            &counts(1_000, 0, 400),
                            Seen { elsewhere, drawn: false },
                        )
                        .is_some()
                })
            };
            assert_eq!((told(true), told(false)), (loosely, true), "{predicted}");
        }
    }
}
