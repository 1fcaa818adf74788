//! Policies to compare the others with.
//!
//! With the halt cost *K* (CPU time of one halt and wakeup \[ns\]), an episode of length *d* under a window
//! *w* costs *d* if the wakeup came within the window, else *w* + *K*. Then
//!
//! * [`Never`] polls nothing and always pays *K*; [`Always`] never halts and always pays *d*;
//! * [`Fixed`] has the same window in every episode;
//! * [`SkiRental`] is the window *K*: it pays at most twice what the optimum pays, whatever the episodes (buy
//!   the skis when the rent has reached their price), and no deterministic policy that has only the past can
//!   guarantee less;
//! * [`Optimum`], the offline optimum, has *d* beforehand and pays the smaller of *d* and *K*: no policy can do better.

use crate::{Nanos, Outcome, Policy};

/// Halts at once, always.
#[derive(Clone, Copy, Debug, Default)]
pub struct Never;

impl Policy for Never {
    #[inline]
    fn window(&mut self) -> Nanos {
        Nanos::ZERO
    }
    #[inline]
    fn observe(&mut self, _: Outcome<'_>) {}
}

/// Polls until the wakeup, always.
#[derive(Clone, Copy, Debug, Default)]
pub struct Always;

impl Policy for Always {
    #[inline]
    fn window(&mut self) -> Nanos {
        Nanos::MAX
    }
    #[inline]
    fn observe(&mut self, _: Outcome<'_>) {}
}

/// Polls for the same window in every episode.
#[derive(Clone, Copy, Debug)]
pub struct Fixed(pub Nanos);

impl Policy for Fixed {
    #[inline]
    fn window(&mut self) -> Nanos {
        self.0
    }
    #[inline]
    fn observe(&mut self, _: Outcome<'_>) {}
}

/// Polls for as long as a halt costs, then halts: at most twice the cost of the optimum, whatever the episodes.
#[derive(Clone, Copy, Debug)]
pub struct SkiRental {
    /// CPU time of one halt and wakeup.
    pub halt_cost: Nanos,
}

impl Policy for SkiRental {
    #[inline]
    fn window(&mut self) -> Nanos {
        self.halt_cost
    }
    #[inline]
    fn observe(&mut self, _: Outcome<'_>) {}
}

/// The offline optimum. Not a [`Policy`]: it needs the length of the episode beforehand.
#[derive(Clone, Copy, Debug)]
pub struct Optimum {
    /// CPU time of one halt and wakeup.
    pub halt_cost: Nanos,
}

impl Optimum {
    /// The best window for an episode of this length: all of it, or none.
    #[inline]
    pub const fn window(&self, idle: Nanos) -> Nanos {
        if idle.0 <= self.halt_cost.0 { idle } else { Nanos::ZERO }
    }

    /// What the episode costs under that window: the smaller of its length and the halt cost.
    #[inline]
    pub const fn cost(&self, idle: Nanos) -> Nanos {
        if idle.0 <= self.halt_cost.0 { idle } else { self.halt_cost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cost(window: Nanos, idle: u64, halt_cost: u64) -> u64 {
        if idle <= window.get() { idle } else { window.get() + halt_cost }
    }

    proptest! {
        #[test]
        fn ski_rental_pays_at_most_twice_the_optimum(idle in 0u64..1 << 40, k in 0u64..1 << 30) {
            let halt_cost = Nanos(k);
            let bound = Optimum { halt_cost }.cost(Nanos(idle)).get();
            let window = SkiRental { halt_cost }.window();
            prop_assert!(cost(window, idle, k) <= 2 * bound);
        }

        #[test]
        fn no_window_beats_the_optimum(idle in 0u64..1 << 40, k in 0u64..1 << 30, w in 0u64..1 << 41) {
            let optimum = Optimum { halt_cost: Nanos(k) };
            let bound = optimum.cost(Nanos(idle)).get();
            prop_assert!(cost(Nanos(w), idle, k) >= bound);
            prop_assert_eq!(cost(optimum.window(Nanos(idle)), idle, k), bound);
        }
    }
}
