//! An outer controller, simulated: what can be had by only re-setting the parameters of KVM's rule, with no
//! other kernel.
//!
//! # The idea
//! KVM's rule can be set to do three things well. With `halt_poll_ns` = `halt_poll_ns_grow_start` = *W* and
//! `halt_poll_ns_shrink` = 1 it polls for *W*, always. With `halt_poll_ns_shrink` = 0 it polls for *W* after
//! an episode that *W* covered, and not at all after a longer one. With `halt_poll_ns` = 0 it never polls.
//! What each of these would have cost can be read off a histogram of the last seconds, if that has for each
//! length also the length before; the controller takes the cheapest, every [`Terms::period`].
//!
//! # The steps
//! 1. Each episode is counted in a bin, and in the row of the bin of the episode before: 13 by 13 numbers and
//!    sums of time, 2.7 KB in a kernel's map. Bins end at the windows that are tried, so that the cost of
//!    each is exact.
//! 2. At the end of each period: the cost of *never*, of *always W* and of *W after short* for twelve windows
//!    *W* from an eighth of the halt cost to twice. If the least of them is lower than that of the present by
//!    a sixteenth of the latter (hysteresis), its parameters are written.
//! 3. All numbers are halved: a period counts twice as much as the one before it.
//!
//! While fewer than [`FEWEST`] episodes are known, nothing is decided and nothing halved; until the first
//! decision the rule has the parameters that it began with.
//!
//! # Limits
//! Each idler has a controller and parameters of its own here. On a machine `halt_poll_ns` can be set for a VM
//! (`KVM_CAP_HALT_POLL`), the other parameters for the host only; several vCPUs share what is set. Reading
//! and writing cost nothing here and take no time.

use dwell_policy::host::{Knobs, Params, Revision, Vcpu};
use dwell_policy::{Nanos, account};

/// The fewest episodes to decide on.
pub const FEWEST: u64 = 64;

/// A change has to promise more than this share of the present cost, as a shift: a sixteenth.
const HYSTERESIS: u32 = 4;

/// The windows that are tried, in sixteenths of the halt cost.
const SIXTEENTHS: [u64; 12] = [2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32];
const BINS: usize = SIXTEENTHS.len() + 1;

/// What a controller needs to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// CPU time of one halt and wakeup.
    pub halt_cost: Nanos,
    /// How long it waits between two decisions.
    pub period: Nanos,
}

/// A way that KVM's rule can be set to, with a number of [`SIXTEENTHS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Never,
    Always(usize),
    AfterShort(usize),
}

/// Lengths by the length before: how many episodes, and how long they were together.
#[derive(Clone, Debug)]
struct Pairs {
    windows: [u64; BINS - 1],
    episodes: [[u64; BINS]; BINS],
    idle_ns: [[u64; BINS]; BINS],
    before: usize,
}

impl Pairs {
    fn new(halt_cost: u64) -> Pairs {
        let windows = SIXTEENTHS.map(|sixteenths| (halt_cost * sixteenths) >> 4);
        Pairs { windows, episodes: [[0; BINS]; BINS], idle_ns: [[0; BINS]; BINS], before: BINS - 1 }
    }

    fn count(&mut self, idle: u64) {
        let bin = self.windows.partition_point(|window| *window < idle);
        self.episodes[self.before][bin] += 1;
        let sum = &mut self.idle_ns[self.before][bin];
        *sum = sum.saturating_add(idle);
        self.before = bin;
    }

    fn halve(&mut self) {
        let all = self.episodes.iter_mut().chain(&mut self.idle_ns).flatten();
        all.for_each(|number| *number /= 2);
    }

    fn all(&self) -> u64 {
        self.episodes.iter().flatten().sum()
    }

    /// What the episodes after one of bin `before` cost under window number `window`; `None` is none.
    fn cost_after(&self, before: usize, window: Option<usize>, halt_cost: u64) -> u128 {
        let covered = window.map_or(0, |window| window + 1);
        let price = halt_cost + window.map_or(0, |window| self.windows[window]);
        let caught: u128 = self.idle_ns[before][..covered].iter().copied().map(u128::from).sum();
        let missed: u64 = self.episodes[before][covered..].iter().sum();
        caught + u128::from(missed) * u128::from(price)
    }

    fn cost(&self, way: Way, halt_cost: u64) -> u128 {
        let window = |before: usize| match way {
            Way::Never => None,
            Way::Always(window) => Some(window),
            Way::AfterShort(window) => (before <= window).then_some(window),
        };
        (0..BINS).map(|before| self.cost_after(before, window(before), halt_cost)).sum()
    }
}

/// KVM's rule for one idler, and its controller.
#[derive(Clone, Debug)]
pub(crate) struct Controlled {
    vcpu: Vcpu,
    knobs: Knobs,
    pairs: Pairs,
    halt_cost: u64,
    period: u64,
    /// What was set; `None`: as it began.
    way: Option<Way>,
    decides_at: Option<u64>,
}

impl Controlled {
    /// At the beginning of an idler's life, under these parameters.
    pub(crate) fn new(revision: Revision, params: Params, terms: Terms) -> Controlled {
        let halt_cost = terms.halt_cost.min(account::MOST).get();
        Controlled {
            vcpu: Vcpu::new(revision),
            knobs: Knobs::of(params),
            pairs: Pairs::new(halt_cost),
            halt_cost,
            period: terms.period.get().max(1),
            way: None,
            decides_at: None,
        }
    }

    /// The window of an episode, from which it then learns.
    pub(crate) fn play(&mut self, start_ns: u64, idle_ns: u64) -> u64 {
        self.decide(start_ns);
        let window = self.vcpu.enter(&self.knobs);
        self.vcpu.decide(&self.knobs, idle_ns, true);
        self.pairs.count(idle_ns);
        window.into()
    }

    fn decide(&mut self, now: u64) {
        let at = *self.decides_at.get_or_insert(now.saturating_add(self.period));
        if now < at {
            return;
        }
        self.decides_at = Some(now.saturating_add(self.period));
        // What is known of a quiet idler is kept until there is enough of it.
        if self.pairs.all() >= FEWEST {
            self.choose();
            self.pairs.halve();
        }
    }

    fn choose(&mut self) {
        let windows = 0..SIXTEENTHS.len();
        let ways = windows.clone().map(Way::AfterShort).chain(windows.map(Way::Always));
        let cost = |way: Way| self.pairs.cost(way, self.halt_cost);
        let never = (cost(Way::Never), Way::Never);
        let (least, best) =
            ways.map(|way| (cost(way), way)).fold(never, |a, b| if b.0 < a.0 { b } else { a });
        let worth_it = self.way.is_none_or(|present| {
            let present = cost(present);
            least < present - (present >> HYSTERESIS)
        });
        if worth_it {
            self.way = Some(best);
            self.set(best);
        }
    }

    fn set(&mut self, way: Way) {
        let (window, shrink) = match way {
            Way::Never => (0, 0),
            Way::Always(window) => (self.pairs.windows[window], 1),
            Way::AfterShort(window) => (self.pairs.windows[window], 0),
        };
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        self.knobs.params = Params {
            halt_poll_ns: window,
            halt_poll_ns_grow: 2,
            halt_poll_ns_grow_start: window,
            halt_poll_ns_shrink: shrink,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const K: u64 = 16_000;

    fn fresh(period: u64) -> Controlled {
        let revision = Revision::V6_11;
        Controlled::new(
            revision,
            Params::default_for(revision),
            Terms { halt_cost: Nanos(K), period: Nanos(period) },
        )
    }

    /// The cost of episodes back to back.
    fn cost_of(controlled: &mut Controlled, now: &mut u64, idle: impl IntoIterator<Item = u64>) -> u128 {
        let mut cost = 0;
        for idle in idle {
            let window = controlled.play(*now, idle);
            cost += u128::from(if idle <= window { idle } else { window + K });
            *now += idle;
        }
        cost
    }

    fn ways() -> impl Strategy<Value = Way> {
        let window = 0..SIXTEENTHS.len();
        prop_oneof![Just(Way::Never), window.clone().prop_map(Way::Always), window.prop_map(Way::AfterShort)]
    }

    proptest! {
        /// The cost of a way by the histogram is what KVM's rule costs when it is set so.
        #[test]
        fn histogram_has_the_cost_of_the_rule(
            way in ways(), idle in prop::collection::vec(1u64..3 * K, 1..300),
        ) {
            let mut controlled = fresh(u64::MAX);
            controlled.set(way);
            // An episode that every window covers sets the rule going.
            cost_of(&mut controlled, &mut 0, [1]);
            controlled.pairs = Pairs { before: 0, ..Pairs::new(K) };
            // No length is just a window: whether the kernel grows or stays at equality makes no difference to us.
            let idle = idle.into_iter().map(|idle| idle | 1);
            let cost = cost_of(&mut controlled, &mut 0, idle);
            prop_assert_eq!(controlled.pairs.cost(way, K), cost);
        }
    }

    #[test]
    fn sets_what_the_last_seconds_ask_for_and_stays_with_it() {
        let (mut controlled, mut now) = (fresh(1_000_000), 0);
        cost_of(&mut controlled, &mut now, [9_001; 400]);
        assert_eq!(controlled.way, Some(Way::Always(5)), "ten sixteenths cover 9 us");
        // Some are a little longer: the next window would be better, but not by a sixteenth.
        let present = controlled.way;
        let mostly = (0..2_000).map(|n| if n % 50 == 0 { 10_501 } else { 9_001 });
        cost_of(&mut controlled, &mut now, mostly);
        assert_eq!(controlled.way, present);
        // Few in a period, and long: as soon as enough of them are known they are halted through at once.
        cost_of(&mut controlled, &mut now, [300_001; 100]);
        assert_eq!(cost_of(&mut controlled, &mut now, [300_001; 10]), 10 * u128::from(K));
        // One short, one long: only polling after a long one would help, which the rule cannot.
        cost_of(&mut controlled, &mut now, [3_001, 300_001].repeat(400));
        let Some(Way::Always(window)) = controlled.way else { panic!("{:?}", controlled.way) };
        assert!(controlled.pairs.windows[window] > 3_001);
    }

    #[test]
    fn too_few_episodes_decide_nothing() {
        let (mut controlled, mut now) = (fresh(1_000_000), 0);
        cost_of(&mut controlled, &mut now, [500_001; 60]);
        assert_eq!(controlled.way, None);
        assert_eq!(controlled.knobs.params, Params::default_for(Revision::V6_11));
    }

    #[test]
    fn no_price_and_no_clock_is_too_large() {
        for terms in [(u64::MAX, u64::MAX), (u64::MAX, 0), (0, 0)] {
            let terms = Terms { halt_cost: Nanos(terms.0), period: Nanos(terms.1) };
            let mut controlled =
                Controlled::new(Revision::V6_11, Params::default_for(Revision::V6_11), terms);
            for (start, idle) in [(0, u64::MAX), (u64::MAX, u64::MAX), (0, 5), (u64::MAX, 0)].repeat(50) {
                controlled.play(start, idle);
            }
        }
    }
}
