//! The order in which arms are measured.

/// The role of an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// What the others are compared with.
    Baseline,
    /// What is compared with the baseline.
    Tried,
    /// The baseline once more: any difference is the error of the method.
    Control,
}

/// One setting that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arm<S> {
    /// Its name in every result.
    pub name: String,
    pub role: Role,
    /// What the experiment sets; the control has the setting of the baseline.
    pub setting: S,
}

/// The arms of a campaign: the baseline, those tried, and last the control, which is always there.
#[derive(Clone, Debug)]
pub struct Arms<S> {
    arms: Vec<Arm<S>>,
}

impl<S: Clone> Arms<S> {
    /// The baseline and its control, `NAME (A/A)`.
    pub fn new(name: &str, baseline: S) -> Arms<S> {
        let arm = |name: String, role, setting| Arm { name, role, setting };
        Arms {
            arms: vec![
                arm(name.to_owned(), Role::Baseline, baseline.clone()),
                arm(format!("{name} (A/A)"), Role::Control, baseline),
            ],
        }
    }

    /// Adds a setting to try.
    #[must_use]
    pub fn arm(mut self, name: &str, setting: S) -> Arms<S> {
        let control = self.arms.len().saturating_sub(1);
        self.arms.insert(control, Arm { name: name.to_owned(), role: Role::Tried, setting });
        self
    }
}

impl<S> Arms<S> {
    /// All arms: the baseline first, the control last.
    pub fn as_slice(&self) -> &[Arm<S>] {
        &self.arms
    }
}

/// One place in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index of the arm in [`Arms::as_slice`].
    pub arm: usize,
    /// 0: the first pass, 1: the second, in reverse order.
    pub pass: u8,
}

/// Passes of a round.
pub const PASSES: u8 = 2;

/// The order of a number of arms in round number `round`, from 0.
///
/// A round is a palindrome: each arm is measured twice, and the mean of its two times is the same for all
/// arms, so that a linear drift changes no comparison. The order is rotated by one from round to round, so
/// that no arm is always first, last, or in the middle where it follows itself.
///
/// ```
/// use dwell_stats::schedule;
/// let order = |round| schedule::round(3, round).map(|slot| slot.arm).collect::<Vec<_>>();
/// assert_eq!(order(0), [0, 1, 2, 2, 1, 0]);
/// assert_eq!(order(1), [1, 2, 0, 0, 2, 1]);
/// ```
pub fn round(arms: usize, round: u32) -> impl Iterator<Item = Slot> {
    let turned = round as usize % arms.max(1);
    (0..2 * arms).map(move |place| {
        let (at, pass) = if place < arms { (place, 0) } else { (2 * arms - 1 - place, 1) };
        Slot { arm: (at + turned) % arms, pass }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_control_has_the_setting_of_the_baseline_and_comes_last() {
        let arms = Arms::new("off", 0).arm("on", 1).arm("more", 2);
        let listed: Vec<_> =
            arms.as_slice().iter().map(|arm| (arm.name.as_str(), arm.role, arm.setting)).collect();
        assert_eq!(
            listed,
            [
                ("off", Role::Baseline, 0),
                ("on", Role::Tried, 1),
                ("more", Role::Tried, 2),
                ("off (A/A)", Role::Control, 0)
            ]
        );
    }

    #[test]
    fn two_arms_are_measured_a_b_b_a() {
        let slots: Vec<_> = round(2, 0).map(|slot| (slot.arm, slot.pass)).collect();
        assert_eq!(slots, [(0, 0), (1, 0), (1, 1), (0, 1)]);
    }

    proptest! {
        #[test]
        fn every_round_cancels_drift_and_every_arm_takes_every_place(arms in 1usize..12, first in 0u32..1000) {
            let mut places = vec![vec![0; 2 * arms]; arms];
            for number in (first..).take(arms) {
                let slots: Vec<Slot> = round(arms, number).collect();
                prop_assert_eq!(slots.len(), 2 * arms);
                prop_assert!(slots.iter().rev().map(|slot| slot.arm).eq(slots.iter().map(|slot| slot.arm)));
                for (arm, places) in places.iter_mut().enumerate() {
                    let mine: Vec<usize> = (0..2 * arms).filter(|at| slots[*at].arm == arm).collect();
                    prop_assert_eq!(mine.len(), 2);
                    prop_assert_eq!(mine.iter().sum::<usize>(), 2 * arms - 1);
                    prop_assert_eq!([slots[mine[0]].pass, slots[mine[1]].pass], [0, 1]);
                    mine.iter().for_each(|at| places[*at] += 1);
                }
            }
            prop_assert!(places.iter().flatten().all(|times| *times == 1));
        }
    }
}
