//! What is remembered of the idlers, and how a period of theirs compares with what was predicted of it.

use crate::core::checks::BUSY_PER_S;
use crate::core::haltpoll;
use crate::core::latency::{self, Latency};
use crate::core::observed::Observed;
use crate::core::order::Order;
use crate::core::period::Period;
use crate::core::pricing::{fresh, play_all};
use crate::core::sample::{Episode, Sample};
use crate::core::status::{Costs, Seen};
use crate::core::tenant::{Own, Tenant};
use crate::core::terms::Terms;
use crate::core::trust::apart;
use dwell_policy::param::Setting;
use dwell_replay::{Counts, Player};
use dwell_stats::SplitMix64;
use std::collections::btree_map::{BTreeMap, Entry};

/// More than one idler can count in a period: counters that were torn, or ran backwards.
const NONSENSE: u64 = 1 << 40;

/// The way of predicting from the widest window.
const WIDENED: usize = 2;

/// What is known of one idler.
pub(crate) struct Idler {
    pub(crate) tenant: Tenant,
    own: Own,
    pub(crate) sample: Sample,
    order: Order,
    latency: Latency,
    originals: Player,
    present: Player,
    /// The longest window of haltpoll that it can have \[ns\].
    longest_window_ns: i64,
}

impl Idler {
    fn new(originals: Setting, present: Setting, longest_window_ns: i64) -> Option<Idler> {
        Some(Idler {
            tenant: Tenant::default(),
            own: Own::new(),
            sample: Sample::default(),
            order: Order::default(),
            latency: Latency::default(),
            originals: fresh(originals).ok()?,
            present: fresh(present).ok()?,
            longest_window_ns,
        })
    }
}

/// The idlers that are known.
pub(crate) struct Idlers {
    known: BTreeMap<u64, Idler>,
    /// What the last period showed of each.
    pub(crate) seen: Vec<Seen>,
    /// Orders the episodes that are drawn.
    random: SplitMix64,
    /// The longest window of haltpoll that a setting in force has ever given \[ns\].
    longest_window_ns: i64,
}

impl Idlers {
    pub(crate) fn new(originals: &Setting) -> Idlers {
        let longest_window_ns = haltpoll::longest(originals);
        Idlers { known: BTreeMap::new(), seen: vec![], random: SplitMix64::new(1), longest_window_ns }
    }

    /// Each with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Idler)> {
        self.known.iter().map(|(number, idler)| (*number, idler))
    }

    /// Whether no idler can have a window that a setting would leave too long for ever.
    pub(crate) fn can_follow(&self, setting: &Setting) -> bool {
        self.known.values().all(|idler| !haltpoll::stays(idler.longest_window_ns, setting))
    }

    /// The episodes that are known of all of them.
    pub(crate) fn episodes(&self) -> usize {
        self.known.values().map(|idler| idler.sample.known()).sum()
    }

    /// The wakeup latency of a halt, as recorded of these idlers \[ns\].
    pub(crate) fn latency_ns(&self) -> Option<u64> {
        latency::median(self.known.values().filter_map(|idler| idler.latency.median_ns))
    }

    /// A decision was made on their episodes.
    pub(crate) fn grow_old(&mut self) {
        self.known.values_mut().for_each(|idler| idler.sample.grow_old());
    }

    /// What is remembered is of another setting, under which the load may be another one.
    pub(crate) fn forget_episodes(&mut self) {
        self.known.values_mut().for_each(|idler| idler.sample = Sample::default());
    }

    /// The same of what was remembered before the last decision.
    pub(crate) fn forget_old_episodes(&mut self) {
        self.known.values_mut().for_each(|idler| idler.sample.forget_old());
    }

    /// Another setting is in force.
    pub(crate) fn changed(&mut self, present: &Setting) {
        let longest_ns = haltpoll::longest(present);
        self.longest_window_ns = self.longest_window_ns.max(longest_ns);
        for idler in self.known.values_mut() {
            idler.present.set(present);
            idler.longest_window_ns = idler.longest_window_ns.max(longest_ns);
        }
    }

    /// Nothing is known of the windows.
    #[cfg(test)]
    pub(crate) fn predict_afresh(&mut self, present: &Setting) {
        self.known.values_mut().for_each(|idler| idler.present = fresh(*present).unwrap());
    }

    /// Whether most episodes of the idlers that have many end in a halt.
    pub(crate) fn mostly_halt(&self, span_ns: u64) -> bool {
        let least = BUSY_PER_S * span_ns as f64 / 1e9;
        let busy = self.seen.iter().filter(|seen| seen.counted.episodes as f64 / seen.share >= least);
        let of = |(halts, episodes): (f64, f64), seen: &Seen| {
            let of_one = |number: u64| number as f64 / seen.share;
            (halts + of_one(seen.counted.halts), episodes + of_one(seen.counted.episodes))
        };
        let (halts, episodes) = busy.fold((0.0, 0.0), of);
        2.0 * halts > episodes
    }

    /// Remembers what was seen in a period of `span_ns` that ends now, and replays the originals and the
    /// setting in force over it.
    pub(crate) fn take_in(
        &mut self,
        now_ns: u64,
        span_ns: u64,
        observed: &[Observed],
        terms: &Terms,
        [originals, present]: [Setting; 2],
    ) -> Period {
        let Terms { halt_cost, late, .. } = *terms;
        let controlled = present != originals;
        let (mut period, mut replayed) = (Period::default(), vec![]);
        period.part.ns = span_ns;
        self.seen.clear();
        for Observed { idler, tenant, share, counted, switches, elsewhere, drawn, episodes } in observed {
            let Counts { idle_ns, polled_ns, polls_succeeded, exits, .. } = *counted;
            let numbers =
                counted.episodes.max(counted.polls).max(counted.halts).max(polls_succeeded).max(exits);
            if u128::from(numbers).max(idle_ns).max(polled_ns) > u128::from(NONSENSE) {
                continue;
            }
            let mut random = SplitMix64::new(self.random.bits());
            let of_others_ns = self.latency_ns();
            let Some(known) = self.known(*idler, originals, present) else { continue };
            known.latency.take_in(episodes);
            let assumed_ns = known.latency.median_ns.or(of_others_ns).unwrap_or(late.get());
            let late = |episode: &Episode| Episode {
                latency_ns: episode.latency_ns.or(Some(assumed_ns)),
                ..*episode
            };
            let mut episodes: Vec<Episode> = episodes.iter().map(late).collect();
            if *drawn {
                episodes = known.order.arrange(&episodes, counted, &known.present, &mut random);
            }
            known.tenant = *tenant;
            known.sample.push(counted.episodes, &episodes);
            period.counted += *counted;
            if let Some(switches) = switches {
                period.part.switches = Some(period.part.switches.unwrap_or(0.0) + *switches as f64 / share);
            }
            if episodes.is_empty() {
                self.seen.push(Seen { idler: *idler, share: *share, counted: *counted, costs: None });
                continue;
            }
            let under_originals = play_all(&mut known.originals, &episodes);
            let under_present = play_all(&mut known.present, &episodes);
            known.longest_window_ns = haltpoll::longest_left(known.longest_window_ns, &present, &episodes);
            let optimum: u64 = episodes.iter().map(|episode| episode.least_cost_ns(halt_cost.get())).sum();
            let scale = counted.episodes as f64 / episodes.len() as f64;
            let cost_ns = counted.cost_ns(halt_cost) as f64;
            period.cpu_ns += cost_ns / share;
            period.part.cost_ns += tenant.weight * cost_ns / share;
            period.gain_ns += (cost_ns - scale * optimum as f64).max(0.0) / share;
            let originals_ns = scale * under_originals.cost_ns(halt_cost) as f64;
            period.originals_ns += tenant.weight * originals_ns / share;
            if tenant.most_loss.is_some() {
                let excess =
                    known.own.book(now_ns, cost_ns / share, originals_ns / share, controlled, tenant);
                period.excess = period.excess.or(excess.map(|excess| (*idler, excess)));
            }
            period.part.episodes += tenant.weight * counted.episodes as f64 / share;
            period.part.halts += tenant.weight * counted.halts as f64 / share;
            period.part.seen += counted.episodes;
            let logs: f64 = episodes.iter().map(|episode| (episode.idle_ns.max(1) as f64).log2()).sum();
            period.part.logs += tenant.weight * scale * logs / share;
            period.predict(0, &under_present, scale, *elsewhere);
            period.how.elsewhere |= *elsewhere;
            period.how.drawn |= *drawn;
            let costs = Costs {
                measured: cost_ns,
                predicted: scale * under_present.cost_ns(halt_cost) as f64,
                originals: originals_ns,
                optimum: scale * optimum as f64,
            };
            self.seen.push(Seen { idler: *idler, share: *share, counted: *counted, costs: Some(costs) });
            replayed.push((*idler, episodes, scale, *elsewhere));
        }
        // Only what does not agree needs other ways.
        let agrees =
            |period: &Period, way: usize| apart(period.predicted[way], &period.counted, period.how).is_none();
        for way in 1..=WIDENED {
            let start = match way {
                _ if agrees(&period, way - 1) => None,
                WIDENED => haltpoll::widened(present, self.longest_window_ns),
                _ => fresh(present).ok(),
            };
            let Some(start) = start else {
                period.predicted[way] = period.predicted[way - 1];
                continue;
            };
            let mut players = vec![];
            for (idler, episodes, scale, elsewhere) in &replayed {
                let mut player = start.clone();
                let did = play_all(&mut player, episodes);
                period.predict(way, &did, *scale, *elsewhere);
                players.push((idler, player));
            }
            // A window that was left stays for as long as no poll fails, so that it has to be known for the
            // next period.
            if way == WIDENED && agrees(&period, way) {
                for (idler, player) in players {
                    self.known.entry(*idler).and_modify(|known| known.present = player);
                }
            }
        }
        // Idlers that are no longer observed are removed.
        let seen = |idler: &u64| observed.iter().any(|seen| seen.idler == *idler);
        self.known.retain(|idler, known| seen(idler) || !known.sample.is_empty());
        period
    }

    fn known(&mut self, idler: u64, originals: Setting, present: Setting) -> Option<&mut Idler> {
        Some(match self.known.entry(idler) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Idler::new(originals, present, self.longest_window_ns)?),
        })
    }
}
