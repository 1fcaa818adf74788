//! How long the recorded CPUs took into and out of idle states. An idle time of a replay takes what was recorded of it where the
//! CPU polls or halts as it did then, and else what was recorded of others of that kind.

use super::Constants;
use super::estimates::{Estimate, FEWEST};
use crate::latency::{QUANTILES, quantiles};
use dwell_recording::{IdlePath, Segments, Way};
use std::collections::BTreeMap;

/// From the end of a segment to polling, at most, where no poll was recorded but halts \[ns\]: medians of 0.7 to 1.3 us were
/// recorded in a nested guest (`experiments/guest-loads`).
const ENTRY_NS: u64 = 1_000;

/// From one latency of a halt to the next of [`QUANTILES`]: without a divisor in common with their number, so that all of them
/// take turns.
const TURN: usize = 39;

/// The recorded times around idle states, and latencies of halts.
#[derive(Clone, Debug, Default)]
pub struct Idling {
    /// By number of the CPU.
    cpus: BTreeMap<u32, Around>,
    /// From the end of a halt to the start of a segment, on all CPUs \[ns\].
    exit_ns: u64,
    /// Of halts that a task ended, and of those that an interrupt ended.
    halts: [Halts; 2],
}

/// The time around idle states of a CPU \[ns\].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around {
    /// From the end of a segment to polling, and to halting.
    pub(super) entry_ns: [u64; 2],
    /// From the end of a halt to the start of a segment.
    pub(super) exit_ns: u64,
}

/// Lengths of idle times, by powers of two of a microsecond, and whatever is longer than those.
const CLASSES: usize = 16;

/// The class of an idle time so long after a segment \[ns\].
fn class(gap_ns: u64) -> usize {
    let bits = u64::BITS - (gap_ns / 1_000).leading_zeros();
    usize::try_from(bits).unwrap_or(CLASSES).min(CLASSES - 1)
}

/// Quantiles of latencies, in classes of the time idled: after a few microseconds a halt takes about two thirds of what it takes
/// after some hundred (16 and 25 us, `experiments/guest-loads/open-loop.sh`).
#[derive(Clone, Debug, Default)]
struct ByLength {
    latencies: Vec<[u64; QUANTILES]>,
    /// Which of them each class has: those of the nearest class that has enough.
    of_class: [usize; CLASSES],
}

impl ByLength {
    /// Of times idled and latencies \[ns\]; `None` of too few.
    fn new(halts: &[(u64, u64)]) -> Option<ByLength> {
        let mut classes: [Vec<u64>; CLASSES] = Default::default();
        halts.iter().for_each(|(gap_ns, late_ns)| classes[class(*gap_ns)].push(*late_ns));
        if classes.iter().all(|class| class.len() < FEWEST) {
            // None has enough, and all together may.
            classes = std::array::from_fn(|place| if place == 0 { classes.concat() } else { vec![] });
        }
        let mut found = vec![];
        for (place, mut latencies) in classes.into_iter().enumerate().filter(|(_, all)| all.len() >= FEWEST) {
            latencies.sort_unstable();
            found.extend(quantiles(&latencies).map(|quantiles| (place, quantiles)));
        }
        let nearest = |place: usize| (0..found.len()).min_by_key(|at| found[*at].0.abs_diff(place));
        let of_class = std::array::from_fn(|place| nearest(place).unwrap_or(0));
        let latencies: Vec<_> = found.into_iter().map(|(_, quantiles)| quantiles).collect();
        (!latencies.is_empty()).then_some(ByLength { latencies, of_class })
    }

    fn of(&self, gap_ns: u64, turn: usize) -> u64 {
        self.latencies[self.of_class[class(gap_ns)]][turn * TURN % QUANTILES]
    }
}

/// Latencies from a wakeup to running, after halts.
#[derive(Clone, Debug, Default)]
pub(super) struct Halts {
    /// Of halts, and of those after a poll.
    kinds: [Option<ByLength>; 2],
    /// The middle of all \[ns\].
    middle_ns: Option<u64>,
    /// Whether those of the segments themselves are halts as the constant has them.
    are_own: bool,
}

impl Halts {
    /// Times idled and latencies of halts, and of those after a poll; `are_own` if the recording they are from is the one to replay,
    /// and they are not so few that they are longer than others.
    pub(super) fn new(kinds: &[Vec<(u64, u64)>; 2], are_own: bool) -> Halts {
        let all = kinds.concat();
        let middle_ns = middle(all.iter().map(|(_, late_ns)| *late_ns).collect());
        let kinds = if are_own {
            kinds.each_ref().map(|halts| ByLength::new(halts))
        } else {
            // Where halts are few, the kinds differ by chance, and the longest ones are from times when something else ran, which made
            // the poll before them fail.
            let most_ns = middle_ns.map_or(u64::MAX, |ns| ns.saturating_mul(2));
            let all: Vec<_> =
                all.into_iter().map(|(gap_ns, late_ns)| (gap_ns, late_ns.min(most_ns))).collect();
            let of_all = ByLength::new(&all);
            [of_all.clone(), of_all]
        };
        Halts { kinds, middle_ns, are_own }
    }
}

/// The median, of enough values.
fn middle(values: Vec<u64>) -> Option<u64> {
    Some(Estimate::of(values)?.ns)
}

/// An idle time of a replay, and the recorded one of the same segment.
pub(super) struct Idle {
    /// How the CPU idled in the recording, where that is known.
    pub(super) own: Option<IdlePath>,
    /// From the wakeup to running in the recording \[ns\].
    pub(super) late_ns: u64,
    /// From the end of the CPU's last segment to the wakeup in the recording, and in the replay \[ns\].
    pub(super) gaps_ns: [u64; 2],
    /// Whether the replay's CPU polls first, or halts at once.
    pub(super) polls: bool,
    pub(super) by_interrupt: bool,
    /// How often it has halted.
    pub(super) turn: usize,
}

/// What a CPU of a replay does in an idle time.
pub(super) struct Path {
    /// From the end of a segment to the idle state \[ns\].
    pub(super) entry_ns: u64,
    /// From the event to running, if it halts \[ns\].
    pub(super) halt_ns: u64,
    /// What of that is after the idle state \[ns\].
    pub(super) exit_ns: u64,
}

impl Path {
    /// The recorded one of a segment that ran `late_ns` after its wakeup.
    pub(super) fn of(own: Option<IdlePath>, late_ns: u64) -> Path {
        let [entry_ns, exit_ns] = own.map_or([0; 2], |path| [path.entry_ns, path.exit_ns].map(u64::from));
        Path { entry_ns, halt_ns: late_ns, exit_ns }
    }
}

impl Idling {
    /// Of halts that tasks ended, and of those that interrupts ended.
    pub(super) fn new(segments: &Segments, halts: [Halts; 2]) -> Idling {
        // Entries to polls, entries to halts, exits of halts.
        type Times = [Vec<u64>; 3];
        let mut cpus: BTreeMap<u32, Times> = BTreeMap::new();
        let mut all = Times::default();
        for (cpu, path) in segments.rows.iter().filter_map(|row| Some((row.cpu, row.idle?))) {
            for of in [cpus.entry(cpu).or_default(), &mut all] {
                of[usize::from(path.way == Way::Halted)].push(path.entry_ns.into());
                if path.way != Way::Polled {
                    of[2].push(path.exit_ns.into());
                }
            }
        }
        let others = all.map(middle);
        let poll_ns = others[0].unwrap_or(others[1].unwrap_or(0).min(ENTRY_NS));
        let others_ns = [poll_ns, others[1].unwrap_or(poll_ns), others[2].unwrap_or(0)];
        let around = |of: Times| {
            let [polls, halts, exits] = of.map(middle);
            let [poll_ns, halt_ns, exit_ns] = others_ns;
            Around {
                entry_ns: [polls.unwrap_or(poll_ns), halts.unwrap_or(halt_ns)],
                exit_ns: exits.unwrap_or(exit_ns),
            }
        };
        let cpus = cpus.into_iter().map(|(cpu, of)| (cpu, around(of))).collect();
        Idling { cpus, exit_ns: others_ns[2], halts }
    }

    /// From the end of a halt to the start of a segment \[ns\]; 0 where too few are recorded.
    pub(super) const fn exit_ns(&self) -> u64 {
        self.exit_ns
    }

    /// With all halts as the constants have them.
    pub(super) fn alike(&self) -> Idling {
        Idling { halts: Default::default(), ..self.clone() }
    }

    pub(super) fn around(&self, cpu: u32) -> Around {
        self.cpus.get(&cpu).copied().unwrap_or_default()
    }

    /// How a CPU goes through an idle time.
    pub(super) fn path(&self, constants: &Constants, around: Around, idle: &Idle) -> Path {
        let Idle { own, late_ns, gaps_ns: [own_gap_ns, gap_ns], polls, by_interrupt, turn } = *idle;
        let own = own.filter(|path| polls == (path.way != Way::Halted));
        let entry_ns = own.map_or(around.entry_ns[usize::from(!polls)], |path| path.entry_ns.into());
        let own = own.filter(|path| path.way != Way::Polled);
        let halts = &self.halts[usize::from(by_interrupt)];
        let like = match own {
            Some(_) if halts.are_own && class(own_gap_ns) == class(gap_ns) => Some(late_ns),
            _ => {
                let [like, other] = [polls, !polls].map(|polls| halts.kinds[usize::from(polls)].as_ref());
                like.or(other).map(|all| all.of(gap_ns, turn))
            }
        };
        let constant_ns = constants.halt_ns(by_interrupt);
        let halt_ns = match like.zip(halts.middle_ns) {
            // Their middle is the constant.
            Some((ns, middle_ns)) => {
                ns.saturating_add_signed(constant_ns.cast_signed() - middle_ns.cast_signed())
            }
            None => constant_ns,
        };
        Path { entry_ns, halt_ns, exit_ns: own.map_or(around.exit_ns, |path| path.exit_ns.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_recording::{Cause, Segment};

    impl Idling {
        /// Of CPUs that go into and out of idle states in these times.
        pub(in super::super) fn like(cpus: &[Around]) -> Idling {
            Idling { cpus: (0..).zip(cpus.iter().copied()).collect(), ..Idling::default() }
        }
    }

    fn idled(cpu: u32, entry_ns: u32, exit_ns: u32, way: Way) -> Segment {
        let idle = Some(IdlePath { entry_ns, exit_ns, way });
        Segment { task: 0, cpu, start_ns: 0, run_ns: 1, cause: Cause::Unknown, halted: None, idle }
    }

    /// CPU 0 has both kinds, CPU 1 halts only; what it has too few of is from the other.
    fn recorded() -> Segments {
        let mut rows = vec![];
        for _ in 0..FEWEST {
            rows.push(idled(0, 1_000, 1_500, Way::Polled));
            rows.push(idled(0, 7_000, 9_000, Way::Halted));
            rows.push(idled(1, 2_000, 4_000, Way::Halted));
        }
        Segments { tasks: vec!["task".to_owned()], rows, ..Segments::default() }
    }

    #[test]
    fn each_cpu_has_its_own_times_and_otherwise_those_of_all() {
        let idling = Idling::new(&recorded(), Default::default());
        let times = |cpu: u32| (idling.around(cpu).entry_ns, idling.around(cpu).exit_ns);
        assert_eq!(times(0), ([1_000, 7_000], 9_000));
        assert_eq!(times(1), ([1_000, 2_000], 4_000));
        assert_eq!(times(2), ([0, 0], 0));
        // Without any poll.
        let mut halts = recorded();
        halts.rows.retain(|row| row.idle.is_some_and(|path| path.way == Way::Halted));
        assert_eq!(Idling::new(&halts, Default::default()).around(0).entry_ns, [ENTRY_NS, 7_000]);
    }

    #[test]
    fn what_was_recorded_is_taken_where_the_replay_does_the_same() {
        let constants =
            Constants { after_halt: 20_000, external_halt: 16_000, hidden: 3_000, ..Constants::default() };
        let kinds = [vec![(50_000, 18_000); FEWEST + 2], vec![(50_000, 12_000); FEWEST]];
        let idling = Idling::new(&recorded(), [Halts::new(&kinds, true), Halts::new(&kinds, false)]);
        let own = |way: Way| IdlePath { entry_ns: 500, exit_ns: 700, way };
        let path = |own: IdlePath, polls: bool, by_interrupt: bool| {
            let gaps_ns = [50_000; 2];
            let idle = Idle { own: Some(own), late_ns: 15_000, gaps_ns, polls, by_interrupt, turn: 5 };
            let Path { entry_ns, halt_ns, exit_ns } = idling.path(&constants, idling.around(0), &idle);
            (entry_ns, halt_ns, exit_ns)
        };
        // The middle is 18 us, the constant 2 us more.
        assert_eq!(path(own(Way::Halted), false, false), (500, 17_000, 700));
        assert_eq!(path(own(Way::PolledAndHalted), true, false), (500, 17_000, 700));
        // Others: of the kind that the replay does.
        assert_eq!(path(own(Way::Halted), true, false), (1_000, 14_000, 9_000));
        assert_eq!(path(own(Way::PolledAndHalted), false, false), (7_000, 20_000, 9_000));
        // A poll says how it was entered, and nothing of a halt.
        assert_eq!(path(own(Way::Polled), true, false), (500, 14_000, 9_000));
        // Where they are not those of the constant they are not taken one by one, and both kinds are one.
        let by_interrupts = [false, true].map(|polls| path(own(Way::Halted), polls, true).1);
        assert_eq!(by_interrupts, [13_000; 2]);
        // Of seldom ones the longest are no longer than two middles.
        let seldom = [vec![(50_000, 10_000); FEWEST + 3], vec![(50_000, 900_000); 3]];
        let [all, few] = [true, false].map(|are_own| {
            let idling = Idling::new(&recorded(), [Halts::new(&seldom, are_own), Halts::default()]);
            let idle = |turn| Idle {
                own: None,
                late_ns: 0,
                gaps_ns: [0, 50_000],
                polls: true,
                by_interrupt: false,
                turn,
            };
            let halt_ns = |turn| idling.path(&constants, idling.around(0), &idle(turn)).halt_ns;
            (0..QUANTILES).map(halt_ns).max()
        });
        assert_eq!((all, few), (Some(20_000), Some(30_000)));
        let none = Idling::new(&recorded(), Default::default());
        let gaps_ns = [50_000; 2];
        let idle = Idle { own: None, late_ns: 15_000, gaps_ns, polls: false, by_interrupt: true, turn: 0 };
        let Path { halt_ns, .. } = none.path(&constants, none.around(0), &idle);
        assert_eq!(halt_ns, 19_000);
    }

    #[test]
    fn the_latency_of_a_halt_is_that_of_others_as_long() {
        let constants = Constants { after_halt: 20_000, ..Constants::default() };
        let halts = [(3_000, 16_000), (50_000, 20_000), (300_000, 25_000)];
        let mut halts: Vec<_> = halts.into_iter().flat_map(|halt| vec![halt; FEWEST]).collect();
        halts.push((800_000, 90_000));
        let idling = Idling::new(&recorded(), [Halts::new(&[halts, vec![]], true), Halts::default()]);
        let own = Some(IdlePath { entry_ns: 500, exit_ns: 700, way: Way::Halted });
        let halt_ns = |own_gap_ns, gap_ns| {
            let gaps_ns = [own_gap_ns, gap_ns];
            let idle = Idle { own, late_ns: 17_000, gaps_ns, polls: false, by_interrupt: false, turn: 3 };
            idling.path(&constants, idling.around(0), &idle).halt_ns
        };
        // Its own where it is about as long as it was, else that of the nearest length of which there are enough.
        assert_eq!([halt_ns(2_100, 3_900), halt_ns(2_100, 50_000)], [17_000, 20_000]);
        assert_eq!(
            [0, 3_900, 40_000, 900_000, u64::MAX].map(|gap_ns| halt_ns(20_000, gap_ns)),
            [16_000, 16_000, 20_000, 25_000, 25_000]
        );
    }
}
