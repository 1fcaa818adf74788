//! One accounting of what was recorded: polls, halts and the time polled, as far as they are known.
//!
//! # One episode
//! | `halted` | `window_ns` | halted | polled |
//! |---|---|---|---|
//! | false | not known | no | the whole episode |
//! | false | 0 | no | nothing: the event was there before the idler slept |
//! | false | *w* > 0 | no | min(`idle_ns`, *w*, `alone_ns`) |
//! | true | not known | yes | not known |
//! | true | *w* | yes | min(`idle_ns`, *w*, `alone_ns`) |
//! | not known | *w* | if `idle_ns` > min(*w*, `alone_ns`) | min(`idle_ns`, *w*, `alone_ns`) |
//! | not known | not known | not known | not known |
//!
//! *w* is the length of the poll: of a guest of which it is known how far apart its looks at the clock are, up to the
//! first one after `window_ns`. An `alone_ns` that is not known cuts nothing short. What is not known is counted as such, and never as a
//! halt or a poll.

use crate::chunk::Chunk;
use crate::columns::Columns;
use crate::metadata::Metadata;
use dwell_policy::Layer;
use dwell_policy::guest::poll_end_ns;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::AddAssign;

/// The columns that the accounting needs.
pub const COLUMNS: Columns =
    Columns::IDLE_NS.union(Columns::WINDOW_NS).union(Columns::HALTED).union(Columns::ALONE_NS);

/// What is known of how an episode went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its length \[ns\].
    pub idle_ns: u64,
    /// Whether the idler halted.
    pub halted: Option<bool>,
    /// Whether it began with a poll.
    pub poll: Option<bool>,
    /// CPU time polled \[ns\].
    pub polled_ns: Option<u64>,
}

impl Outcome {
    /// From what a recording has of an episode, by the table of the [module](self).
    /// `poll_step_ns` is how long a guest takes from one look at the clock to the next, at the first of which after the
    /// window its poll ends; 0: a poll ends with its window.
    pub fn of(
        idle_ns: u64,
        window_ns: Option<u64>,
        halted: Option<bool>,
        alone_ns: Option<u64>,
        poll_step_ns: u64,
    ) -> Outcome {
        let poll_ns = window_ns.map(|window_ns| poll_end_ns(window_ns, poll_step_ns));
        let longest_ns = poll_ns.map(|poll_ns| poll_ns.min(alone_ns.unwrap_or(u64::MAX)));
        let polled_ns = longest_ns.map(|longest_ns| idle_ns.min(longest_ns));
        let whole_ns = (halted == Some(false)).then_some(idle_ns);
        Outcome {
            idle_ns,
            halted: halted.or_else(|| longest_ns.map(|longest_ns| idle_ns > longest_ns)),
            poll: window_ns.map(|window_ns| window_ns > 0).or(whole_ns.map(|_| true)),
            polled_ns: polled_ns.or(whole_ns),
        }
    }

    /// Of row `row` of a chunk that was read with [`COLUMNS`].
    pub fn of_row(chunk: &Chunk, row: usize) -> Outcome {
        let known = |column: &[Option<u64>]| column.get(row).copied().flatten();
        Outcome::of(
            chunk.idle_ns.get(row).copied().unwrap_or(0),
            known(&chunk.window_ns),
            chunk.halted.get(row).copied().flatten(),
            known(&chunk.alone_ns),
            chunk.poll_step_ns,
        )
    }
}

/// The longest that a guest CPU takes to end a poll \[ns\]: it tests for a task in each pass of its loop, and takes
/// microseconds. More shows that the host had taken the CPU away, or that the poll went on.
pub const LONGEST_POLL_END_NS: u64 = 20_000;

/// Whether the event of a poll that did not halt cannot have ended it, by the wakeup latency. Recorders ended a guest's
/// poll at any interrupt once, though it goes on if that wakes nobody; the latency is then the rest of the window.
pub fn poll_went_on(layer: Layer, halted: Option<bool>, wake_latency_ns: Option<u64>) -> bool {
    layer == Layer::Guest
        && halted == Some(false)
        && wake_latency_ns.is_some_and(|ns| ns > LONGEST_POLL_END_NS)
}

/// For how long others had the CPU of a guest while it polled \[ns\]: what the poll took, its wakeup latency included,
/// beyond its end, if that is more than [`LONGEST_POLL_END_NS`]. A poll that was preempted before its event came and
/// ended within its window does not show.
pub fn lost_in_poll_ns(chunk: &Chunk, row: usize, layer: Layer) -> Option<u64> {
    let window_ns = chunk.window_ns.get(row).copied().flatten().filter(|window_ns| *window_ns > 0)?;
    let polled = layer == Layer::Guest && chunk.halted.get(row).copied().flatten() == Some(false);
    let latency_ns = chunk.wake_latency_ns.get(row).copied().flatten().unwrap_or(0);
    let taken_ns = chunk.idle_ns.get(row).filter(|_| polled)?.saturating_add(latency_ns);
    let lost_ns = taken_ns.saturating_sub(poll_end_ns(window_ns, chunk.poll_step_ns));
    (lost_ns > LONGEST_POLL_END_NS).then_some(lost_ns)
}

/// Whether polls are enough of the episodes to be reported as a cause: 1 %.
pub fn are_many(polls: u64, episodes: u64) -> bool {
    polls > 0 && polls.saturating_mul(100) >= episodes
}

/// Sums over episodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Number of episodes.
    pub episodes: u64,
    /// Their lengths \[ns\].
    pub idle_ns: u128,
    /// Episodes of which it is known whether the idler halted.
    pub ends_known: u64,
    /// Of those, the ones in which it did.
    pub halts: u64,
    /// Episodes of which it is known whether and for how long the idler polled.
    pub polls_known: u64,
    /// Of those, the ones that began with a poll.
    pub polls: u64,
    /// Of those, the ones in which the idler did not halt.
    pub polls_succeeded: u64,
    /// CPU time polled in the episodes of `polls_known` \[ns\].
    pub polled_ns: u128,
}

impl Account {
    /// Takes an episode in.
    pub fn add(&mut self, outcome: Outcome) {
        self.episodes += 1;
        self.idle_ns += u128::from(outcome.idle_ns);
        if let Some(halted) = outcome.halted {
            self.ends_known += 1;
            self.halts += u64::from(halted);
        }
        if let (Some(poll), Some(polled_ns)) = (outcome.poll, outcome.polled_ns) {
            self.polls_known += 1;
            self.polls += u64::from(poll);
            self.polls_succeeded += u64::from(poll && outcome.halted == Some(false));
            self.polled_ns += u128::from(polled_ns);
        }
    }

    /// The most halts that there can have been: every episode of which it is not known counts as one.
    pub fn halts_at_most(&self) -> u64 {
        self.halts + (self.episodes - self.ends_known)
    }
}

impl AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.episodes += other.episodes;
        self.idle_ns += other.idle_ns;
        self.ends_known += other.ends_known;
        self.halts += other.halts;
        self.polls_known += other.polls_known;
        self.polls += other.polls;
        self.polls_succeeded += other.polls_succeeded;
        self.polled_ns += other.polled_ns;
    }
}

/// The key of [`Metadata::other`] under which a recorder of vCPUs puts KVM's counters: an object with `start`
/// and `end`, each with `at_ns` and, by VM, `vms`; the counters have KVM's names.
pub const KVM_COUNTERS: &str = "dwell.kvm_counters";

/// What KVM itself counted while a recording of vCPUs ran, over all VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmCounted {
    /// Between the two readings \[ns\].
    pub span_ns: u64,
    /// Halts that polled (`halt_attempted_poll`).
    pub polls: u64,
    /// Of those, the ones that did not sleep (`halt_successful_poll`).
    pub polls_succeeded: u64,
    /// Time polled \[ns\] (`halt_poll_success_ns`, `halt_poll_fail_ns`); `None` before Linux 5.8.
    pub polled_ns: Option<u64>,
}

impl KvmCounted {
    /// From the metadata of a recording; `None` where it has no counters, or not these.
    pub fn of(metadata: &Metadata) -> Option<KvmCounted> {
        let both = metadata.other.get(KVM_COUNTERS)?;
        let (start, end) = (both.get("start")?, both.get("end")?);
        let at_ns = |snapshot: &Value| snapshot.get("at_ns").and_then(Value::as_u64);
        // A VM that started in between counts from zero; a counter that was cleared counts as nothing.
        let counted = |name: &str| {
            let vms = end.get("vms")?.as_object()?;
            vms.iter().try_fold(0u64, |sum, (vm, counters)| {
                let before = start.get("vms").and_then(|vms| vms.get(vm)).and_then(|vm| vm.get(name));
                let before = before.and_then(Value::as_u64).unwrap_or(0);
                Some(sum.saturating_add(counters.get(name)?.as_u64()?.saturating_sub(before)))
            })
        };
        Some(KvmCounted {
            span_ns: at_ns(end)?.saturating_sub(at_ns(start)?),
            polls: counted("halt_attempted_poll")?,
            polls_succeeded: counted("halt_successful_poll")?,
            polled_ns: counted("halt_poll_success_ns")
                .zip(counted("halt_poll_fail_ns"))
                .map(|(succeeded, failed)| succeeded.saturating_add(failed)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A step of 30 ns and a window of 70 ns: the first look after it is at 90 ns.
    #[test]
    fn a_guest_polls_to_the_first_look_after_its_window() {
        let of = |idle_ns, window_ns| {
            let outcome = Outcome::of(idle_ns, Some(window_ns), None, None, 30);
            (outcome.halted, outcome.polled_ns)
        };
        assert_eq!(of(80, 70), (Some(false), Some(80)));
        assert_eq!(of(100, 70), (Some(true), Some(90)));
        assert_eq!(of(100, 60), (Some(true), Some(90)));
        assert_eq!(of(100, 0), (Some(true), Some(0)));
    }

    #[test]
    fn a_poll_that_takes_longer_than_polls_do_was_preempted() {
        let lost = |layer, halted, window_ns, idle_ns, latency_ns| {
            let chunk = Chunk {
                rows: 1,
                idle_ns: vec![idle_ns],
                window_ns: vec![window_ns],
                halted: vec![halted],
                wake_latency_ns: vec![latency_ns],
                poll_step_ns: 5_000,
                ..Chunk::default()
            };
            lost_in_poll_ns(&chunk, 0, layer)
        };
        let (guest, polled) = (Layer::Guest, Some(false));
        // The poll ends at 55 us.
        assert_eq!(lost(guest, polled, Some(50_000), 75_000, None), None);
        assert_eq!(lost(guest, polled, Some(50_000), 75_001, None), Some(20_001));
        assert_eq!(lost(guest, polled, Some(50_000), 40_000, Some(3_000_000)), Some(2_985_000));
        assert_eq!(lost(guest, polled, Some(50_000), u64::MAX, Some(1)), Some(u64::MAX - 55_000));
        assert_eq!(lost(guest, Some(true), Some(50_000), 3_000_000, None), None);
        assert_eq!(lost(guest, polled, Some(0), 3_000_000, None), None);
        assert_eq!(lost(guest, polled, None, 3_000_000, None), None);
        assert_eq!(lost(Layer::Host, polled, Some(50_000), 3_000_000, None), None);
    }

    #[test]
    fn every_row_of_the_table() {
        for (window, halted, alone, wanted) in [
            (None, Some(false), None, (Some(false), Some(true), Some(100))),
            (Some(0), Some(false), None, (Some(false), Some(false), Some(0))),
            (Some(40), Some(false), None, (Some(false), Some(true), Some(40))),
            (None, Some(true), Some(7), (Some(true), None, None)),
            (Some(300), Some(true), None, (Some(true), Some(true), Some(100))),
            (Some(300), Some(true), Some(0), (Some(true), Some(true), Some(0))),
            (Some(99), None, None, (Some(true), Some(true), Some(99))),
            (Some(100), None, None, (Some(false), Some(true), Some(100))),
            (Some(100), None, Some(99), (Some(true), Some(true), Some(99))),
            (None, None, Some(0), (None, None, None)),
        ] {
            let outcome = Outcome::of(100, window, halted, alone, 0);
            let found = (outcome.halted, outcome.poll, outcome.polled_ns);
            assert_eq!(found, wanted, "{window:?} {halted:?} {alone:?}");
        }
    }

    #[test]
    fn what_is_not_known_is_neither_a_halt_nor_a_poll() {
        let mut account = Account::default();
        for (window, halted) in [(None, None), (None, Some(true)), (Some(50), Some(true)), (Some(200), None)]
        {
            account.add(Outcome::of(100, window, halted, None, 0));
        }
        let wanted = Account {
            episodes: 4,
            idle_ns: 400,
            ends_known: 3,
            halts: 2,
            polls_known: 2,
            polls: 2,
            polls_succeeded: 1,
            polled_ns: 150,
        };
        assert_eq!(account, wanted);
        assert_eq!(account.halts_at_most(), 3);
    }

    #[test]
    fn counters_are_summed_over_vms_and_absent_ones_are_not_zero() {
        let vm = |polls: u64, succeeded: u64| json!({ "halt_attempted_poll": polls, "halt_successful_poll": succeeded, "halt_poll_success_ns": null });
        let mut metadata = Metadata::new(Layer::Host);
        assert_eq!(KvmCounted::of(&metadata), None);
        let counters = json!({
            "start": { "at_ns": 5, "vms": { "7-9": vm(10, 4) } },
            "end": { "at_ns": 25, "vms": { "7-9": vm(13, 5), "8-9": vm(100, 50) } },
        });
        metadata.other.insert(KVM_COUNTERS.to_owned(), counters);
        let counted = KvmCounted { span_ns: 20, polls: 103, polls_succeeded: 51, polled_ns: None };
        assert_eq!(KvmCounted::of(&metadata), Some(counted));
    }
}
