//! Whether the rule, replayed, does what was counted.

use dwell_replay::Counts;
use serde::Serialize;

/// How far polls or halts may be apart, as a share of those counted.
pub const LIMIT: f64 = 0.1;
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

/// A figure that is predicted and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Episodes that began with a poll.
    Polls,
    /// Episodes that ended in a halt.
    Halts,
}

impl Figure {
    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Figure::Polls => "polls",
            Figure::Halts => "halts",
        }
    }
}

/// A figure that is not as predicted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Apart {
    /// Which.
    pub figure: Figure,
    /// How often it was predicted.
    pub predicted: f64,
    /// How often it was counted.
    pub counted: u64,
}

/// The periods in a row that were apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    apart: u32,
}

impl Trust {
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
        let mut trust = Trust::default();
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
            let mut trust = Trust::default();
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
