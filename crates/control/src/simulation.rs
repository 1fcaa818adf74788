//! A controller over recorded episodes: the same decisions as live, without a machine.

use crate::controller::{Change, Controller, Observed, Terms};
use crate::draw::Histograms;
use crate::look::{Drawn, Looks};
use crate::pricing::play;
use crate::sample::{Episode, Stretches};
use dwell_policy::host::{BUCKETS, bucket};
use dwell_policy::param::Setting;
use dwell_replay::{Counts, Player, ReplayError, Rule, RuleError, Source};
use dwell_stats::SplitMix64;

/// What the controller can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// Episodes of each idler, as from a tracepoint.
    Episodes,
    /// KVM's statistics of each idler, as from the statistics files of VMs with one vCPU each: lengths are drawn from histograms.
    Statistics,
}

/// The episodes that are kept of a period, of all idlers together.
const KEPT: usize = 2048;
/// The lengths that are drawn of a period: at most so many of an idler, and twice as many of all.
const DRAWN: usize = 1024;
/// Costs are summed up over tenths of a second \[ns\].
pub const TENTH_NS: u64 = 100_000_000;
/// So many of them, 10 s, are compared with the originals.
const WINDOW: usize = 100;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Simulated {
    /// When the first episode began, and control with it \[ns\].
    pub started_ns: u64,
    /// What the idlers did under control.
    pub controlled: Counts,
    /// What they did under the originals.
    pub originals: Counts,
    /// Every change.
    pub changes: Vec<Change>,
    /// Decisions made.
    pub decisions: u64,
    /// The cost of each tenth of a second under control, under the originals and of the optimum \[ns\].
    pub tenths_ns: Vec<[f64; 3]>,
}

impl Simulated {
    /// The cost under control and under the originals \[ns\] in those 10 s in a row in which control cost most over 1.02 times the
    /// originals; all of it if there are fewer.
    pub fn worst_ten_seconds(&self) -> [f64; 2] {
        let number = WINDOW.min(self.tenths_ns.len()).max(1);
        let sum = |tenths: &[[f64; 3]]| {
            tenths.iter().fold([0.0; 2], |sum, tenth| [sum[0] + tenth[0], sum[1] + tenth[1]])
        };
        let over = |[controlled, originals]: &[f64; 2]| controlled - crate::account::TOLERANCE * originals;
        let all = self.tenths_ns.windows(number).map(sum);
        all.max_by(|a, b| over(a).total_cmp(&over(b))).unwrap_or_default()
    }
}

/// One idler of a simulation.
struct Idler {
    controlled: Player,
    originals: Player,
    /// Since the last decision.
    counted: Counts,
    seen: Stretches,
    counting: Counting,
    drawn: Drawn,
}

/// KVM's histograms since the last decision.
struct Counting {
    /// Of successful polls, failed polls, waits.
    buckets: [[u64; BUCKETS]; 3],
    success_ns: u64,
    fail_ns: u64,
}

impl Counting {
    const NONE: Counting = Counting { buckets: [[0; BUCKETS]; 3], success_ns: 0, fail_ns: 0 };

    fn count(&mut self, idle_ns: u64, late_ns: u64, did: &Counts) {
        let polled = u64::try_from(did.polled_ns).unwrap_or(u64::MAX);
        let halted = did.halts > 0;
        if did.polls > 0 {
            self.buckets[usize::from(halted)][bucket(polled)] += 1;
            *(if halted { &mut self.fail_ns } else { &mut self.success_ns }) += polled;
        }
        if halted {
            self.buckets[2][bucket((idle_ns - polled.min(idle_ns)).saturating_add(late_ns))] += 1;
        }
    }

    fn histograms(&self) -> Histograms<'_> {
        let [success, fail, wait] = &self.buckets;
        Histograms { success, fail, wait, success_ns: self.success_ns, fail_ns: self.fail_ns }
    }
}

/// A controller, and idlers that do what its settings say.
pub struct Simulation {
    controller: Controller,
    terms: Terms,
    observation: Observation,
    idlers: Vec<Idler>,
    most: usize,
    /// The lengths that are drawn of an idler.
    most_drawn: usize,
    looks: Looks,
    random: SplitMix64,
    started_ns: Option<u64>,
    result: Simulated,
}

impl Simulation {
    /// Of so many idlers, all under `originals` at first.
    ///
    /// # Errors
    /// [`RuleError`] if the rule cannot be replayed.
    pub fn new(
        originals: Setting,
        terms: Terms,
        observation: Observation,
        idlers: usize,
    ) -> Result<Simulation, RuleError> {
        Ok(Simulation {
            controller: Controller::new(originals, terms)?,
            terms,
            observation,
            idlers: vec![],
            most: KEPT / idlers.max(1),
            most_drawn: DRAWN.min(2 * DRAWN / idlers.max(1)).max(1),
            looks: Looks::new(),
            random: SplitMix64::new(1),
            started_ns: None,
            result: Simulated::default(),
        })
    }

    /// The next episode. Episodes come in the order of their starts.
    ///
    /// # Errors
    /// [`RuleError`] if the rule cannot be replayed.
    pub fn episode(&mut self, idler: usize, start_ns: u64, episode: Episode) -> Result<(), RuleError> {
        let started_ns = match self.started_ns {
            Some(started_ns) => started_ns,
            None => {
                self.controller.start(start_ns);
                self.result.started_ns = start_ns;
                *self.started_ns.insert(start_ns)
            }
        };
        loop {
            let decision_ns = self.controller.next_at_ns();
            let look_ns = match self.observation {
                Observation::Episodes => u64::MAX,
                Observation::Statistics => self.looks.next_ns().saturating_add(self.result.started_ns),
            };
            let at_ns = decision_ns.min(look_ns);
            if at_ns > start_ns {
                break;
            }
            if self.observation == Observation::Statistics {
                self.look(at_ns);
            }
            if decision_ns == at_ns {
                self.decide();
            }
        }
        while self.idlers.len() <= idler {
            let player = |setting: Setting| Rule::Layer(setting).start_late(1);
            self.idlers.push(Idler {
                controlled: player(self.controller.status(start_ns).present)?,
                originals: player(self.controller.originals())?,
                counted: Counts::default(),
                seen: Stretches::new(self.most),
                counting: Counting::NONE,
                drawn: Drawn::new(self.most_drawn),
            });
        }
        let late = self.terms.late;
        let one = &mut self.idlers[idler];
        let did = play(&mut one.controlled, episode, late);
        let otherwise = play(&mut one.originals, episode, late);
        match self.observation {
            Observation::Episodes => {
                one.counted += did;
                one.seen.push(episode);
            }
            Observation::Statistics => one.counting.count(episode.idle_ns, late.get(), &did),
        }
        let tenth = usize::try_from(start_ns.saturating_sub(started_ns) / TENTH_NS).unwrap_or(usize::MAX);
        self.book(tenth, episode, &did, &otherwise);
        Ok(())
    }

    fn book(&mut self, tenth: usize, episode: Episode, did: &Counts, otherwise: &Counts) {
        self.result.controlled += *did;
        self.result.originals += *otherwise;
        let cost = |counts: &Counts| counts.cost_ns(self.terms.halt_cost) as f64;
        let tenths = &mut self.result.tenths_ns;
        if tenths.len() <= tenth {
            tenths.resize(tenth + 1, [0.0; 3]);
        }
        tenths[tenth][0] += cost(did);
        tenths[tenth][1] += cost(otherwise);
        tenths[tenth][2] += episode.least_cost_ns(self.terms.halt_cost.get()) as f64;
    }

    fn look(&mut self, now_ns: u64) {
        let mut episodes = 0;
        for idler in &mut self.idlers {
            let counting = std::mem::replace(&mut idler.counting, Counting::NONE);
            let histograms = counting.histograms();
            episodes += histograms.episodes();
            idler.drawn.look(&histograms, self.terms.late, &mut self.random);
        }
        let since_ns = now_ns.saturating_sub(self.result.started_ns);
        self.looks.looked(since_ns, self.idlers.len(), episodes);
    }

    fn decide(&mut self) {
        let now_ns = self.controller.next_at_ns();
        let observed: Vec<Observed> = match self.observation {
            Observation::Episodes => {
                let of = |(number, idler): (u64, &mut Idler)| {
                    Observed::new(number, std::mem::take(&mut idler.counted), idler.seen.take())
                };
                (0..).zip(&mut self.idlers).map(of).collect()
            }
            Observation::Statistics => {
                let of = |(number, idler): (u64, &mut Idler)| {
                    let (counted, drawn) = idler.drawn.take();
                    Observed::drawn(number, counted, drawn)
                };
                (0..).zip(&mut self.idlers).map(of).collect()
            }
        };
        self.result.decisions += 1;
        if let Some(change) = self.controller.decide(now_ns, &observed) {
            self.idlers.iter_mut().for_each(|idler| idler.controlled.set(&change.to));
            self.controller.changed(&change);
            self.result.changes.push(change);
        }
    }

    /// The controller as it is now.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// What came of it.
    pub fn finish(self) -> Simulated {
        self.result
    }
}

/// Controls the idlers of a recording, which begin under `originals`. `progress` gets the number of episodes since its last
/// call.
///
/// # Errors
/// [`ReplayError`] if the recording cannot be read or the rule not be replayed.
pub fn simulate(
    source: &dyn Source,
    originals: Setting,
    terms: Terms,
    observation: Observation,
    progress: &dyn Fn(u64),
) -> Result<Simulated, ReplayError> {
    let mut simulation = Simulation::new(originals, terms, observation, source.idlers())?;
    let mut failed = None;
    source.visit(0..u64::MAX, &mut |batch| {
        let mut episodes: Vec<(u64, usize, Episode)> = vec![];
        for run in batch.runs() {
            let alone = |place: usize| run.alone_ns().map_or(u64::MAX, |alone| alone[place]);
            let all = run.start_ns.iter().zip(&run.idle_ns).enumerate();
            episodes.extend(all.map(|(place, (&start, &idle_ns))| {
                (start, run.idler, Episode { idle_ns, alone_ns: alone(place) })
            }));
        }
        episodes.sort_by_key(|(start, idler, _)| (*start, *idler));
        for (start, idler, episode) in episodes {
            if failed.is_none() {
                failed = simulation.episode(idler, start, episode).err();
            }
        }
        progress(batch.episodes() as u64);
    })?;
    failed.map_or(Ok(simulation.finish()), |error| Err(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{MINUTE_NS, MOST_WRITES};
    use dwell_policy::version::Version;
    use dwell_policy::{Layer, Nanos};
    use proptest::prelude::*;

    const K: Nanos = Nanos(20_000);

    fn originals(layer: Layer) -> Setting {
        Setting::defaults(layer, Version::new(6, 18))
    }

    /// Episodes with busy times between them, from one phase after the other.
    fn run(layer: Layer, observation: Observation, phases: &[Phase], seed: u64) -> (Simulated, Controller) {
        run_with(Terms::at(K), layer, observation, phases, seed)
    }

    fn run_with(
        terms: Terms,
        layer: Layer,
        observation: Observation,
        phases: &[Phase],
        seed: u64,
    ) -> (Simulated, Controller) {
        let mut simulation = Simulation::new(originals(layer), terms, observation, 1).unwrap();
        let mut random = SplitMix64::new(seed);
        let mut now = 0;
        for phase in phases {
            let end = now + phase.ns;
            while now < end {
                let idle = phase.idle(&mut random);
                simulation.episode(0, now, Episode::of(idle)).unwrap();
                now += idle + phase.busy_ns;
            }
        }
        let Simulation { controller, result, .. } = simulation;
        (result, controller)
    }

    /// A load for a time.
    #[derive(Clone, Debug)]
    struct Phase {
        ns: u64,
        busy_ns: u64,
        /// Lengths, one after the other or at random.
        idle: Vec<u64>,
        in_turns: bool,
    }

    impl Phase {
        fn of(ns: u64, idle: &[u64]) -> Phase {
            Phase { ns, busy_ns: 5_000, idle: idle.to_vec(), in_turns: false }
        }

        fn idle(&self, random: &mut SplitMix64) -> u64 {
            let number = self.idle.len() as u64;
            let place = if self.in_turns { random.bits() % number } else { random.below(number) };
            // A tenth more or less, so that no length is just a window.
            let length = self.idle[usize::try_from(place).unwrap()];
            length * 9 / 10 + random.below(length / 5 + 1)
        }
    }

    fn phases() -> impl Strategy<Value = Vec<Phase>> {
        let length = prop_oneof![
            500u64..5_000,
            5_000u64..30_000,
            15_000u64..45_000,
            30_000u64..400_000,
            1_000_000u64..9_000_000
        ];
        let ns = prop_oneof![5_000_000u64..150_000_000, 100_000_000u64..2_000_000_000];
        let phase = (ns, 1_000u64..100_000, prop::collection::vec(length, 1..4), any::<bool>())
            .prop_map(|(ns, busy_ns, idle, in_turns)| Phase { ns, busy_ns, idle, in_turns });
        prop::collection::vec(phase, 1..14)
    }

    fn cost(counts: &Counts) -> f64 {
        counts.cost_ns(K) as f64
    }

    #[test]
    fn a_load_that_changes_every_three_seconds_costs_a_fraction_of_the_default() {
        let two = [Phase::of(3_000_000_000, &[12_000]), Phase::of(3_000_000_000, &[150_000])];
        let phases = [two.clone(), two].concat();
        for layer in [Layer::Host, Layer::Guest] {
            for observation in [Observation::Episodes, Observation::Statistics] {
                let (simulated, _) = run(layer, observation, &phases, 1);
                let share = cost(&simulated.controlled) / cost(&simulated.originals);
                assert!(share < 0.75, "{layer:?} {observation:?}: {share}");
                let [worst, of] = simulated.worst_ten_seconds();
                assert!(worst < 1.02 * of, "{layer:?} {observation:?}: {worst} of {of}");
            }
        }
    }

    #[test]
    fn nothing_is_changed_while_nothing_runs() {
        let (simulated, _) =
            run(Layer::Host, Observation::Episodes, &[Phase::of(60_000_000_000, &[4_000_000])], 1);
        // 250 episodes a second cost less than a percent of a CPU under any setting, and still never polling is cheaper.
        assert!(simulated.changes.len() <= 2, "{:?}", simulated.changes);
        let idle = Phase { busy_ns: 90_000_000, ..Phase::of(60_000_000_000, &[9_000_000]) };
        let (simulated, _) = run(Layer::Host, Observation::Episodes, &[idle], 1);
        assert_eq!(simulated.changes, []);
        assert!(simulated.decisions < 100, "{}", simulated.decisions);
    }

    #[test]
    fn the_same_episodes_give_the_same_changes() {
        let two = [Phase::of(700_000_000, &[12_000, 90_000]), Phase::of(400_000_000, &[150_000])];
        let phases = [two.clone(), two].concat();
        for observation in [Observation::Episodes, Observation::Statistics] {
            let (a, _) = run(Layer::Host, observation, &phases, 5);
            let (b, _) = run(Layer::Host, observation, &phases, 5);
            assert_eq!(a.changes, b.changes);
            assert_eq!(a.controlled, b.controlled);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Whatever the load does: no value out of the permitted range, no more writes than permitted, and a bounded loss.
        #[test]
        fn no_load_makes_control_cost_much_more(
            phases in phases(), seed in any::<u64>(), guest in any::<bool>(), by_statistics in any::<bool>(),
            verified in any::<bool>(),
        ) {
            let layer = if guest { Layer::Guest } else { Layer::Host };
            let observation = if by_statistics { Observation::Statistics } else { Observation::Episodes };
            let verify = verified.then_some(Nanos(5_000_000_000));
            let terms = Terms { verify, ..Terms::at(K) };
            let (simulated, controller) = run_with(terms, layer, observation, &phases, seed);
            let permitted = controller.permitted();
            for change in &simulated.changes {
                for ((param, value), (name, least, most)) in change.to.iter().zip(&permitted) {
                    prop_assert!(param.name == *name && (*least..=*most).contains(&value), "{change:?}");
                }
            }
            for (place, change) in simulated.changes.iter().enumerate() {
                let minute = simulated.changes[place..].iter().take_while(|later| later.at_ns < change.at_ns + MINUTE_NS);
                prop_assert!(minute.map(Change::writes).sum::<usize>() <= MOST_WRITES);
            }
            let [worst, of] = simulated.worst_ten_seconds();
            // Each loss that leads back to the originals is a quarter of a second's worth and what one more period costs; four of
            // them fit into 10 s, with rests of 1, 2 and 4 s between them.
            let costliest = simulated.tenths_ns.iter().map(|tenth| tenth[0]).fold(0.0, f64::max);
            prop_assert!(worst <= 1.02 * of + 20.0 * costliest, "{worst} against {of}; {costliest} in a tenth of a second");
        }
    }
}
