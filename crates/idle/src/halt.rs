//! What a sleep costs, and what a policy makes of it.

use crate::Nanos;
use dwell_policy::late::Late;
use dwell_policy::leader::Leader;
use dwell_policy::trial::Trial;

/// What one sleep and wakeup costs, after idling for about so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sleep {
    /// How long the thread slept until the event: the CPU sinks deeper the longer it is idle.
    pub after: Nanos,
    /// CPU time of the thread that sleeps: to go to sleep and to come back.
    pub sleeper: Nanos,
    /// CPU time of the thread that wakes it, in its system call.
    pub waker: Nanos,
    /// From the event to the thread running again.
    pub latency: Nanos,
}

impl Sleep {
    /// CPU time of both sides, and the latency at its price.
    pub const fn cost(&self, price: Price) -> Nanos {
        let latency = self.latency.get().saturating_mul(price.0 as u64) / 100;
        Nanos(self.sleeper.get().saturating_add(self.waker.get()).saturating_add(latency))
    }
}

/// What latency is worth: how much CPU time you would give for a wakeup that comes earlier \[percent of the
/// time gained\].
///
/// 0: only CPU time counts; the thread polls where that takes less CPU time than sleeping, on both sides
/// together. 100 (the default): a microsecond of latency is worth a microsecond of CPU time. 1,000: a thread
/// polls for ten microseconds to be one earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(u32);

impl Price {
    /// Only CPU time counts.
    pub const FREE: Price = Price(0);

    /// So many percent.
    pub const fn percent(percent: u32) -> Price {
        Price(percent)
    }
}

impl Default for Price {
    fn default() -> Price {
        Price(100)
    }
}

/// How many lengths a [`Halt`] has.
pub const LENGTHS: usize = 5;

/// [`Halt::leader`]'s policy.
pub type Adaptive = Late<Trial<Leader>>;

/// What sleeps of several lengths cost on a machine, in ascending order of the lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halt {
    sleeps: [Sleep; LENGTHS],
}

impl Halt {
    /// Of a machine whose costs are known; the lengths in ascending order.
    pub const fn new(sleeps: [Sleep; LENGTHS]) -> Halt {
        Halt { sleeps }
    }

    /// As [`Halt::new`], where sleeps of all lengths cost the same.
    pub const fn constant(sleep: Sleep) -> Halt {
        Halt { sleeps: [sleep; LENGTHS] }
    }

    /// What the lengths cost.
    pub const fn sleeps(&self) -> &[Sleep; LENGTHS] {
        &self.sleeps
    }

    /// The sleeps that are worth thinking about: a policy polls through episodes up to about the halt cost,
    /// so what counts is the cost of a sleep that lasts about as long as it costs. The first length that is
    /// not below its own cost, else the last.
    pub fn typical(&self, price: Price) -> Sleep {
        let worth = |sleep: &&Sleep| sleep.cost(price) <= sleep.after;
        let [.., last] = self.sleeps;
        self.sleeps.iter().find(worth).copied().unwrap_or(last)
    }

    /// The halt cost: what the [typical](Halt::typical) sleep costs.
    pub fn cost(&self, price: Price) -> Nanos {
        self.typical(price).cost(price)
    }

    /// The policy to begin with: [`Leader`] at this halt cost, with [trial bursts](Trial), and with the latency of the
    /// typical sleep [taken out](Late) of what it learns.
    pub fn leader(&self, price: Price) -> Adaptive {
        let sleep = self.typical(price);
        Late::new(Trial::leader(sleep.cost(price)), sleep.latency)
    }

    /// As [`leader`](Halt::leader), for waits that an interrupt ends, such as a disk's: no thread spends CPU
    /// time on waking this one. How late the thread wakes is not known, but it is less than after a wakeup by
    /// another CPU, and nothing is taken out of the lengths.
    pub fn leader_for_interrupts(&self, price: Price) -> Adaptive {
        let alone = Halt::new(self.sleeps.map(|sleep| Sleep { waker: Nanos::ZERO, ..sleep }));
        Late::new(Trial::leader(alone.cost(price)), Nanos::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    const fn sleep(us: [u64; 4]) -> Sleep {
        let [after, sleeper, waker, latency] = us;
        Sleep {
            after: Nanos::from_micros(after),
            sleeper: Nanos::from_micros(sleeper),
            waker: Nanos::from_micros(waker),
            latency: Nanos::from_micros(latency),
        }
    }

    const HALT: Halt = Halt::new([
        sleep([10, 16, 7, 15]),
        sleep([50, 17, 8, 15]),
        sleep([200, 18, 9, 16]),
        sleep([1_000, 20, 12, 26]),
        sleep([10_000, 32, 18, 66]),
    ]);

    #[test]
    fn cost_is_that_of_a_sleep_as_long_as_it_costs() {
        assert_eq!(HALT.cost(Price::FREE), Nanos::from_micros(25));
        assert_eq!(HALT.cost(Price::default()), Nanos::from_micros(40));
        // 17 + 8 + 30 are more than 50.
        assert_eq!(HALT.cost(Price::percent(200)), Nanos::from_micros(18 + 9 + 32));
        assert_eq!(HALT.cost(Price::percent(100_000)), Nanos::from_micros(50 + 66_000));
        assert_eq!(HALT.cost(Price::percent(u32::MAX)).get() / 1_000_000_000, 2_834);
        let slow = Halt::constant(sleep([10, 30, 30, 30]));
        assert_eq!((slow.cost(Price::FREE), slow.sleeps().len()), (Nanos::from_micros(60), LENGTHS));
    }

    #[test]
    fn interrupts_cost_no_waker_anything() {
        for (price, cost) in [(0, 17), (100, 32)] {
            let policy = HALT.leader_for_interrupts(Price::percent(price));
            assert_eq!(policy.policy().account().halt_cost(), Nanos::from_micros(cost));
        }
    }

    #[test]
    fn leader_gets_the_cost_and_the_latency_of_the_same_sleep() {
        let mut policy = HALT.leader(Price::default());
        assert_eq!(policy.policy().account().halt_cost(), Nanos::from_micros(40));
        // 30 us and 15 us of latency: learnt as 30 us, which is worth polling for.
        for _ in 0..300 {
            policy.window();
            policy.observe(crate::policy::Outcome::of(Nanos::from_micros(45)));
        }
        assert!(policy.window() >= Nanos::from_micros(30));
    }
}
