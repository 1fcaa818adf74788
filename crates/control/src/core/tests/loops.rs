//! Tests of turns in simulated worlds: open loops, and closed ones, whose episodes are other ones because the
//! setting is.

use crate::core::account::TOLERANCE;
use crate::core::pace::{MINUTE_NS, MOST_WRITES};
use crate::core::pricing::{fresh, play};
use crate::core::{Cause, Change, Controller, Episode, Observed, Stretches, Terms};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_replay::Counts;
use dwell_stats::SplitMix64;

const K: Nanos = Nanos(20_000);
const SECOND_NS: u64 = 1_000_000_000;

/// One idler, and what it waits for.
#[derive(Clone, Copy)]
struct World {
    layer: Layer,
    /// Lengths of episodes after one in which it polled to the end, and after one in which it halted: the
    /// peer sleeps, too, then.
    after_poll: [u64; 8],
    after_halt: [u64; 8],
    /// Time between two episodes.
    busy_ns: u64,
    /// One episode of so many lasts for 400 us more.
    long_ones: u64,
    /// Lengths are so much longer or shorter for 7 ms, at random.
    noise: f64,
}

impl World {
    const fn open(idle_ns: u64) -> World {
        World::closed(idle_ns, idle_ns)
    }

    const fn closed(polled_ns: u64, halted_ns: u64) -> World {
        let (after_poll, after_halt) = ([polled_ns; 8], [halted_ns; 8]);
        World { layer: Layer::Guest, after_poll, after_halt, busy_ns: 10_000, long_ones: 100, noise: 0.0 }
    }

    fn originals(&self) -> Setting {
        Setting::defaults(self.layer, Version::new(6, 18))
    }

    fn never(&self) -> Setting {
        let mut setting = self.originals();
        let maximum = setting.iter().next().unwrap().0.name;
        setting.set(maximum, 0).unwrap();
        setting
    }
}

/// What came of control in a world.
struct Outcome {
    changes: Vec<Change>,
    /// What was paid, and the episodes, in the last half of the time.
    late: (f64, f64),
    /// What was paid in all of it, and what the originals cost as predicted.
    paid_ns: f64,
    originals_ns: f64,
    present: Setting,
}

impl Outcome {
    /// A line for each change.
    fn lines(&self) -> String {
        let line = |change: &Change| {
            let values: Vec<i64> = change.to.iter().map(|(_, value)| value).collect();
            format!("\n{:.3} s {values:?} {:?}", change.at_ns as f64 / 1e9, change.cause)
        };
        self.changes.iter().map(line).collect()
    }

    fn of_one(&self) -> f64 {
        self.late.0 / self.late.1
    }

    fn number(&self, which: impl Fn(&Cause) -> bool) -> usize {
        self.changes.iter().filter(|change| which(&change.cause)).count()
    }
}

fn verified(every: u64) -> Terms {
    Terms { verify: Some(Nanos(every)), ..Terms::at(K) }
}

/// Control of a world from these originals on; the world from half of the time on may be another one.
fn live(worlds: [World; 2], originals: Setting, terms: Terms, seconds: u64, seed: u64) -> Outcome {
    let mut controller = Controller::new(originals, terms).unwrap();
    controller.start(0);
    let mut player = fresh(originals).unwrap();
    let mut random = SplitMix64::new(seed);
    let (mut now_ns, mut counted, mut seen) = (0, Counts::default(), Stretches::new(16_384));
    let mut out =
        Outcome { changes: vec![], late: (0.0, 0.0), paid_ns: 0.0, originals_ns: 0.0, present: originals };
    let (mut halted, mut noise, mut noisy_until_ns) = (false, 1.0, 0);
    while now_ns < seconds * SECOND_NS {
        let late = now_ns >= seconds * SECOND_NS / 2;
        let world = worlds[usize::from(late)];
        if now_ns >= noisy_until_ns {
            let unit = random.below(1 << 20) as f64 / f64::from(1 << 20);
            noise = 1.0 + world.noise * (2.0 * unit - 1.0);
            noisy_until_ns = now_ns + 7_000_000;
        }
        let lengths = if halted { world.after_halt } else { world.after_poll };
        let length = lengths[usize::try_from(random.below(8)).unwrap()];
        // A tenth more or less, so that no length is just a window.
        let length = length * 9 / 10 + random.below(length / 5 + 1);
        let length = if random.below(world.long_ones) == 0 { length + 400_000 } else { length };
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let episode = Episode::of((length as f64 * noise) as u64);
        let did = play(&mut player, episode);
        halted = did.halts > 0;
        counted += did;
        seen.push(episode);
        let cost_ns = did.cost_ns(K) as f64;
        out.paid_ns += cost_ns;
        if late {
            out.late.0 += cost_ns;
            out.late.1 += 1.0;
        }
        now_ns += episode.idle_ns + world.busy_ns;
        while controller.next_at_ns() <= now_ns {
            let at_ns = controller.next_at_ns();
            let observed = Observed::new(0, std::mem::take(&mut counted), seen.take());
            let controlled = controller.status(at_ns).present != originals;
            let change = controller.decide(at_ns, &[observed]);
            for costs in controller.seen().iter().filter_map(|seen| seen.costs) {
                out.originals_ns += if controlled { costs.originals } else { costs.measured };
            }
            if let Some(change) = change {
                player.set(&change.to);
                controller.changed(&change);
                out.changes.push(change);
            }
        }
    }
    for (place, change) in out.changes.iter().enumerate() {
        let minute = out.changes[place..].iter().take_while(|later| later.at_ns < change.at_ns + MINUTE_NS);
        assert!(minute.map(Change::writes).sum::<usize>() <= MOST_WRITES, "{}", out.lines());
    }
    out.present = controller.status(now_ns).present;
    out
}

const HOUR: u64 = 3_600 * SECOND_NS;

/// A peer that sleeps as soon as the idler does: 12 us if it polls, 50 us if it halts. *Never* costs 20 us an
/// episode and polling 12, and every replay of the long episodes says the opposite.
#[test]
fn control_that_begins_without_polling_finds_that_polling_is_cheaper() {
    for layer in [Layer::Host, Layer::Guest] {
        for noise in [0.0, 0.3] {
            let world = World { layer, noise, ..World::closed(12_000, 50_000) };
            let without = live([world; 2], world.never(), Terms::at(K), 6, 1);
            assert!(without.changes.is_empty() && without.of_one() > 19_900.0, "locked in");
            for seed in 1..6 {
                let with = live([world; 2], world.never(), verified(HOUR), 6, seed);
                assert!(with.of_one() < 14_000.0, "{layer:?} {noise}: {} {}", with.of_one(), with.lines());
                let tried = with.changes.iter().find(|change| matches!(change.cause, Cause::Tried(_)));
                let tried = tried.unwrap_or_else(|| panic!("{}", with.lines()));
                assert!(tried.at_ns < SECOND_NS, "{tried:?}");
                let Cause::Tried(measured) = tried.cause else { unreachable!() };
                assert!(
                    measured.setting_per_s > measured.reference_per_s.map(|per_s| 2.0 * per_s),
                    "{measured:?}"
                );
            }
        }
    }
}

/// The same with the defaults as originals, on which control has taken *never* while the load was another one.
#[test]
fn control_that_has_come_to_halt_goes_back_to_polling_when_the_load_is_closed() {
    for noise in [0.0, 0.3] {
        let worlds =
            [World { noise, ..World::open(150_000) }, World { noise, ..World::closed(12_000, 50_000) }];
        for seed in 1..6 {
            let without = live(worlds, worlds[0].originals(), Terms::at(K), 20, seed);
            assert!(without.of_one() > 19_900.0, "{}", without.of_one());
            let with = live(worlds, worlds[0].originals(), verified(HOUR), 20, seed);
            // The default's first window is 50 us: by haltpoll's rule noise sometimes keeps it from growing.
            let most = if noise > 0.0 { 18_000.0 } else { 15_000.0 };
            assert!(with.of_one() < most, "{noise}: {} {}", with.of_one(), with.lines());
        }
    }
}

/// Loads on which *never* is right stay with it, and trials in vain cost next to nothing.
#[test]
fn where_polling_does_not_help_trials_cost_little_and_change_nothing() {
    for noise in [0.0, 0.3] {
        for world in [World::open(150_000), World::open(45_000), World::closed(85_000, 90_000)] {
            let world = World { noise, ..world };
            for seed in 1..4 {
                let with = live([world; 2], world.never(), verified(HOUR), 40, seed);
                assert!(with.of_one() <= 20_200.0, "{}: {}", with.of_one(), with.lines());
                assert_eq!(with.present, world.never());
                assert_eq!(with.number(|cause| matches!(cause, Cause::Tried(_))), 0, "{}", with.lines());
                // After 0.5, 2, 8, 32 s of halting.
                let turns = with.number(|cause| *cause == Cause::Turn);
                assert!((4..=20).contains(&turns), "{turns}");
                let allowed = TOLERANCE * with.originals_ns;
                assert!(with.paid_ns <= allowed, "{} of {}", with.paid_ns, with.originals_ns);
                // From the defaults it comes to the same.
                let from_polling = live([world; 2], world.originals(), verified(HOUR), 40, seed);
                assert!(
                    from_polling.of_one() <= 21_000.0,
                    "{}: {}",
                    from_polling.of_one(),
                    from_polling.lines()
                );
            }
        }
    }
}

/// Polling costs 35 us an episode instead of 20, and more than twice as much is done. From the default, which polls, *never*
/// would be a gain by replay.
#[test]
fn a_setting_that_costs_more_and_does_twice_the_work_is_taken_and_kept() {
    for layer in [Layer::Host, Layer::Guest] {
        for noise in [0.0, 0.3] {
            let world = World { layer, noise, ..World::closed(35_000, 70_000) };
            let best = live(
                [world; 2],
                world.originals(),
                Terms { verify: None, ..Terms::at(Nanos(1 << 40)) },
                30,
                1,
            );
            for seed in 1..3 {
                for originals in [world.never(), world.originals()] {
                    let with = live([world; 2], originals, verified(HOUR), 30, seed);
                    let work = with.late.1 / best.late.1;
                    assert!(
                        work > if noise > 0.0 { 0.8 } else { 0.9 },
                        "{layer:?} {noise} {originals:?}: {work} {}",
                        with.lines()
                    );
                }
            }
        }
    }
}

/// One halt makes all episodes longer: what a shorter window was to save of the long ones is lost.
#[test]
fn a_setting_that_changes_the_load_for_the_worse_is_refuted() {
    let mut after_poll = [6_000; 8];
    after_poll[7] = 60_000;
    for noise in [0.0, 0.3] {
        let world =
            World { layer: Layer::Host, after_poll, after_halt: [100_000; 8], noise, ..World::open(0) };
        for seed in 1..4 {
            let without = live([world; 2], world.originals(), Terms::at(K), 30, seed);
            assert!(without.of_one() > 19_900.0, "{} {}", without.of_one(), without.lines());
            let with = live([world; 2], world.originals(), verified(HOUR), 30, seed);
            assert!(with.of_one() < 17_000.0, "{noise}: {} {}", with.of_one(), with.lines());
        }
    }
}

#[test]
fn a_gain_is_verified_when_it_is_taken_and_again_later() {
    for noise in [0.0, 0.3] {
        let world = World { noise, ..World::open(150_000) };
        let out = live([world; 2], world.originals(), verified(30 * SECOND_NS), 70, 1);
        let verified = |change: &&Change| matches!(change.cause, Cause::Verified(_));
        let at_s = out.changes.iter().filter(verified).map(|change| change.at_ns as f64 / 1e9);
        let at_s: Vec<f64> = at_s.collect();
        assert!(at_s.len() >= 2 && at_s[0] < 0.3, "{at_s:?}");
        assert_ne!(out.present, world.originals());
        let Some(Cause::Verified(measured)) = out.changes.iter().find(verified).map(|change| change.cause)
        else {
            unreachable!()
        };
        assert!((measured.reference_ns / 150_000.0 - 1.0).abs() < 0.3, "{}", out.lines());
        assert!((measured.setting_ns / 20_000.0 - 1.0).abs() < 0.02, "{}", out.lines());
        assert!(
            measured.ratio.unwrap().contains(measured.setting_ns / measured.reference_ns),
            "{measured:?}"
        );
    }
}

#[test]
fn an_idle_machine_makes_no_trial() {
    let originals = World::open(0).never();
    let mut controller = Controller::new(originals, verified(HOUR)).unwrap();
    controller.start(0);
    // 64 CPUs with a tick of 4 ms, or 2 with next to nothing.
    for (idlers, per_s) in [(64, 250), (2, 5)] {
        for _ in 0..200 {
            let before_ns = controller.next_at_ns();
            controller.postpone(before_ns, false);
            let at_ns = controller.next_at_ns();
            let episodes = (at_ns - before_ns) * per_s / SECOND_NS;
            let counted = Counts { episodes, halts: episodes, exits: episodes, ..Counts::default() };
            let seen = vec![Episode::of(3_900_000); usize::try_from(episodes).unwrap()];
            let observed: Vec<Observed> =
                (0..idlers).map(|idler| Observed::new(idler, counted, seen.clone())).collect();
            assert_eq!(controller.decide(at_ns, &observed), None);
        }
    }
}
