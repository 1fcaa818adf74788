//! `policies`: learning policies, run live, against the kernel's rules, all at one halt cost.
//!
//! A live policy is judged as in a replay: by the time polled, as measured, plus its halts, as counted, at one halt cost. CPU
//! time and latency are measured as well, but are not part of the cost. A kernel's rule runs in the same place as the policy
//! that it is compared with (in user space or in the guest), since a halt there has another cost and another latency than one
//! in the kernel. The kernel's own halt polling is one more arm.

use super::wake::{self, Polling};
use super::waking::{WARM_UP, wake};
use super::{LabError, Rig};
use crate::gaps::Gaps;
use crate::idle::Idle;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Rule, Terms};
use dwell_stats::{Arms, Block, Figure, Trial, Unit};
use std::sync::atomic::AtomicBool;

/// The figure by which policies are judged: time polled plus halts x halt cost, per wakeup.
pub const COST: &str = "cost_ns_per_wakeup";

/// Where the policy polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poller {
    /// The VMM's thread, which handles the halts.
    UserSpace,
    /// The guest, above a kernel that does not poll.
    Guest,
}

impl Poller {
    /// Both.
    pub const ALL: [Poller; 2] = [Poller::UserSpace, Poller::Guest];

    fn idle(self, rule: Rule) -> Idle {
        match self {
            Poller::UserSpace => Idle::user(rule),
            Poller::Guest => Idle::guest(rule),
        }
    }

    /// The rule of today's kernels here, with its defaults in a version.
    fn rule(self, version: Version) -> Rule {
        Rule::Layer(Setting::defaults(
            if self == Poller::Guest { Layer::Guest } else { Layer::Host },
            version,
        ))
    }

    /// The leader's arm.
    pub fn leader(self, terms: Terms) -> Idle {
        self.idle(Rule::leader(terms))
    }

    /// The arms: today's rule, which is the baseline, policies that do not learn, those that do, and the kernel's own
    /// polling with its default of 200 us.
    pub fn arms(self, version: Version, terms: Terms) -> Arms<Idle> {
        let others =
            [Rule::Never, Rule::SkiRental(terms.halt_cost), Rule::savings(terms), Rule::leader(terms)];
        let kernel = (self == Poller::UserSpace).then(|| Idle::host(200_000));
        let others = others.into_iter().map(|rule| self.idle(rule)).chain(kernel);
        let first = self.idle(self.rule(version));
        let arms = Arms::new(&first.to_string(), first);
        others.fold(arms, |arms, idle| arms.arm(&idle.to_string(), idle))
    }

    /// The wakeup latency of a halt in this place: by how much longer measured idle times are if it never polls than if it
    /// always polls.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn late(self, rig: &Rig, stop: &AtomicBool) -> Result<Nanos, LabError> {
        const WAKES: usize = 1_000;
        const GAP: Nanos = Nanos::from_micros(100);
        let mean = |rule: Rule| -> Result<Nanos, LabError> {
            let waking = wake(rig, &self.idle(rule), &[GAP; WARM_UP + WAKES], stop)?;
            let idling = if self == Poller::Guest { waking.guest } else { waking.user };
            Ok(Nanos(rig.nanos(idling.idled_cycles) / waking.wakes().max(1)))
        };
        Ok(mean(Rule::Never)?.saturating_sub(mean(Rule::Always)?))
    }
}

/// The figures of an arm: those of [`wake::figures`], and [`COST`].
pub fn figures() -> Vec<Figure> {
    let mut figures = wake::figures();
    figures.push(Figure::of_block(COST, Unit::Nanos).within(0.05));
    figures
}

/// Measures one block, at this halt cost.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    gaps: &Gaps,
    seed: u64,
    wakes: usize,
    halt_cost: Nanos,
    trial: &Trial<'_, Idle>,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let sequence = gaps.sequence(seed, trial.sequence, WARM_UP + wakes);
    let waking = wake(rig, trial.setting, &sequence.gaps, stop)?;
    let polling = Polling::of(rig, trial.setting, &waking);
    let block = wake::told(rig, trial.setting, &waking);
    let Some(halts) = polling.halts else { return Ok(block) };
    let cost = waking.per_wake(polling.polled_ns) + waking.per_wake(halts) * halt_cost.get() as f64;
    Ok(block.figure(COST, cost))
}
