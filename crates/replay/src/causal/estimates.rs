//! What a recording shows of the constants, with intervals, and what is assumed of the rest.

use super::idling::{Halts, Idling};
use super::{Constants, External, Idled, Program};
use crate::alignment::HaltsByHost;
use crate::calibration::HaltCosts;
use crate::rule::{Rule, RuleError};
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Cause, Segment, Segments, Way};
use serde::Serialize;
use std::collections::BTreeMap;

/// A constant must have been seen so many times before a recording is taken for its source.
pub(super) const FEWEST: usize = 20;

/// A constant with its interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// \[ns\].
    pub ns: u64,
    /// \[ns\].
    pub low_ns: u64,
    /// \[ns\].
    pub high_ns: u64,
    /// How many wakeups of the recording it is from, with a 95 % interval; 0: it is assumed or calibrated.
    pub seen: u64,
    /// Whether it was given, or measured by `dwell-lab calibrate` on the machine of the recording.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub calibrated: bool,
}

/// What is known of halts from elsewhere, for constants that a recording does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calibrated {
    /// The latency of a halt, given or measured.
    pub after_halt: Option<Nanos>,
    /// How much longer the waker runs where it ends a halt, as measured.
    pub ipi: Option<Nanos>,
    /// Of a guest, what its host's recording has of its halts.
    pub by_host: HaltsByHost,
}

impl From<&HaltCosts> for Calibrated {
    fn from(measured: &HaltCosts) -> Calibrated {
        Calibrated {
            after_halt: measured.halt_latency(),
            ipi: measured.halt_waker(),
            by_host: HaltsByHost::default(),
        }
    }
}

impl Estimate {
    const fn assumed(ns: u64, low_ns: u64, high_ns: u64) -> Estimate {
        Estimate { ns, low_ns, high_ns, seen: 0, calibrated: false }
    }

    /// As measured between two threads: that of a load may be half or twice as much.
    const fn calibrated(Nanos(ns): Nanos) -> Estimate {
        Estimate { calibrated: true, ..Estimate::assumed(ns, ns / 2, ns.saturating_mul(2)) }
    }

    /// The median and its interval by order statistics; `None` of too few values.
    pub(crate) fn of(values: Vec<u64>) -> Option<Estimate> {
        Estimate::at(values, 2)
    }

    /// The same of the quantile of one in so many, two or more.
    fn at(mut values: Vec<u64>, one_in: usize) -> Option<Estimate> {
        values.sort_unstable();
        let count = values.len();
        // The normal approximation of the binomial distribution: 1.96 standard deviations are at most 0.98 roots of the count.
        let (middle, beside) = (count / one_in, count.isqrt() + 1);
        let at = |place: usize| values.get(place.min(count.saturating_sub(1))).copied();
        let (ns, low_ns, high_ns) =
            (at(middle)?, at(middle.saturating_sub(beside))?, at(middle.saturating_add(beside))?);
        (count >= FEWEST).then_some(Estimate { ns, low_ns, high_ns, seen: count as u64, calibrated: false })
    }

    /// Of a halt among many, by halts among many polls: on one machine those were 1.05 to 1.9 times as long for eight loads, a
    /// host that polls for idle vCPUs itself having stopped that, and on another one 0.7 to 0.8 times for five.
    const fn among_many(self) -> Estimate {
        let high_ns = self.high_ns.saturating_mul(3) / 2;
        Estimate { ns: self.ns / 8 * 7, low_ns: self.low_ns / 2, high_ns, ..self }
    }

    /// From another recording, or from two together: between two runs of one load constants differ by more than within one.
    /// With a factor of 1.5 the ranges of eleven loads contain 38 of 44 speeds measured, without it 34, and those of one
    /// recording 41 (`experiments/guest-loads/README.md`).
    fn between_runs(self) -> Estimate {
        Estimate {
            low_ns: self.low_ns.min(self.ns * 2 / 3),
            high_ns: self.high_ns.max(self.ns.saturating_mul(3) / 2),
            ..self
        }
    }

    /// What is assumed of a halt through which the host did not poll, where this is how long those take through which it did: the
    /// host's own halt comes on top.
    const fn and_halt_of_host(self) -> Estimate {
        let of_host = ASSUMED_OF_VCPUS.after_halt;
        Estimate::assumed(
            self.ns.saturating_add(of_host.ns),
            self.low_ns.saturating_add(of_host.low_ns),
            self.high_ns.saturating_add(of_host.high_ns),
        )
    }

    /// How much more the first is than the second, at least 0.
    fn difference(more: Estimate, less: Estimate) -> Estimate {
        Estimate {
            ns: more.ns.saturating_sub(less.ns),
            low_ns: more.low_ns.saturating_sub(less.high_ns),
            high_ns: more.high_ns.saturating_sub(less.low_ns),
            seen: more.seen.min(less.seen),
            calibrated: false,
        }
    }
}

/// The [`Constants`], each with its interval and source.
pub type Estimates = Constants<Estimate>;

/// What constants are assumed to be where a recording does not show them: about what they were on one machine, a nested guest
/// of 2 vCPUs, with intervals as wide as what loads differ by there, and the latency of a halt as on a second one, too (32 to
/// 60 us, `experiments/guest-loads/README.md`). An interrupt waits for the whole of a halt where another CPU handles it (24 us,
/// a disk), and a timer for part of it (11 us).
const ASSUMED: Estimates = Estimates {
    after_poll: Estimate::assumed(2_000, 1_000, 4_000),
    after_halt: Estimate::assumed(20_000, 10_000, 60_000),
    external_poll: Estimate::assumed(4_000, 2_000, 8_000),
    external_halt: Estimate::assumed(16_000, 8_000, 32_000),
    ipi: Estimate::assumed(5_000, 0, 20_000),
    longer_segment: Estimate::assumed(1_000, 0, 5_000),
    hidden: Estimate::assumed(3_000, 0, 6_000),
    after_host_poll: Estimate::assumed(0, 0, 0),
};

/// The same of a wakeup through which the host polled: the latency of a halt without what the host takes to run the vCPU, which was
/// 32 us where 27 us were measured. Where that was not recorded it is a part of the latency of a halt, 0.29 and 0.30 of two vCPUs on
/// one machine, and 0.57 and 0.63 on another. (`dwell-lab pingpong --predict --layers`, 28 and 30 November 2026.)
fn of_host_poll(after_halt: Estimate, by_host: Option<Nanos>) -> Estimate {
    let Estimate { ns, low_ns, high_ns, seen, .. } = after_halt;
    let Some(Nanos(by_host)) = by_host else {
        return Estimate::assumed(ns / 20 * 9, low_ns / 40 * 9, high_ns / 10 * 9);
    };
    let ns = ns.saturating_sub(by_host).max(ASSUMED_OF_VCPUS.after_poll.ns);
    Estimate { seen, ..Estimate::assumed(ns, ns / 2, high_ns.min(ns * 2)) }
}

/// What an interrupt costs a waker whose host was recorded: it leaves the guest, and the vCPU that it wakes comes back to it, which
/// is all that a wakeup takes through which the host polls; for the way back, half of what a halt takes out and back is left
/// out. It is the lower end: 16 us where 17 to 21 us were seen (`dwell-lab pingpong --predict --layers`, 30 November 2026).
/// `None` where it is not known how long such a wakeup takes.
fn of_waker(after_host_poll: Estimate, exit_and_entry: Nanos) -> Option<Estimate> {
    let ns = after_host_poll.ns.saturating_sub(exit_and_entry.get() / 2);
    let estimate = Estimate { ns, low_ns: ns, high_ns: ns.saturating_mul(3) / 2, ..after_host_poll };
    (after_host_poll.seen > 0).then_some(estimate)
}

/// The same of vCPUs, as their host sees them: what those of the lab had on the same machine under 200 us, which shows both
/// polls and halts (`dwell-lab pingpong --predict --format json`, 27 November 2026).
const ASSUMED_OF_VCPUS: Estimates = Estimates {
    after_poll: Estimate::assumed(1_000, 500, 2_000),
    ipi: Estimate::assumed(8_000, 0, 20_000),
    longer_segment: Estimate::assumed(10_000, 0, 20_000),
    ..ASSUMED
};

/// What is assumed under this rule, on a machine that takes `exit_ns` from the end of a halt to the next segment.
fn assumed_under(present: &Rule, exit_ns: u64) -> Estimates {
    let exit_ns = exit_ns.max(ASSUMED_EXIT_NS);
    let after_poll = |of: Estimate| {
        let ns = of.ns.saturating_add(exit_ns - ASSUMED_EXIT_NS);
        Estimate::assumed(ns, ns / 2, ns.saturating_mul(2))
    };
    let in_proportion = |of: Estimate| {
        let ns = |ns: u64| ns.saturating_mul(exit_ns) / ASSUMED_EXIT_NS;
        Estimate::assumed(ns(of.ns), ns(of.low_ns), ns(of.high_ns))
    };
    match present {
        Rule::Layer(setting) if matches!(setting.layer(), Layer::Host) => ASSUMED_OF_VCPUS,
        _ => Estimates {
            after_poll: after_poll(ASSUMED.after_poll),
            external_poll: after_poll(ASSUMED.external_poll),
            longer_segment: in_proportion(ASSUMED.longer_segment),
            ..ASSUMED
        },
    }
}

/// From the end of a halt to the next segment on the machine of [`ASSUMED`] \[ns\]. After a poll a CPU runs the same code without
/// the interrupt. In emulated guests that took 20 to 35 us, and 17 to 28 us after a poll.
const ASSUMED_EXIT_NS: u64 = 7_000;

/// Where fewer than one idle time in so many halts, the latency is not that of frequent halts: in an emulated guest it was 84 to
/// 88 us where 5 or 6 in a hundred halted, and 68 us where all did.
const SELDOM: usize = 10;

impl Estimates {
    /// Estimates what recordings of one load show, the first of which is to be replayed: latencies of wakeups by tasks, and
    /// the lengths of segments of one task before and after its waking of another, after polls and after halts. What the first
    /// does not show is from the next that does. What is calibrated takes the place of what is assumed.
    ///
    /// Also how the CPUs of the first idled, with the latencies of halts.
    pub(super) fn of(
        recordings: &[(&Segments, &Before)],
        present: &Rule,
        known: Calibrated,
    ) -> (Estimates, Idling) {
        let mut lengths = [BTreeMap::new(), BTreeMap::new()];
        let mut each: Vec<Seen> =
            recordings.iter().map(|(segments, before)| Seen::of(segments, before, &mut lengths)).collect();
        let [until_waking, after_waking] = lengths;
        // Halts among many are better than seldom ones, and those better than none.
        let place = each.iter().position(|seen| seen.late.halted() >= FEWEST && !seen.halts_seldom());
        let late = &each[place.unwrap_or(0)].late;
        let is_seldom = late.halted() >= FEWEST && each[place.unwrap_or(0)].halts_seldom();
        let halts = [&late.halts, &each[0].external.halts];
        let idling = Idling::new(
            recordings[0].0,
            [Halts::new(halts[0], place == Some(0)), Halts::new(halts[1], true)],
        );
        let assumed_of = assumed_under(present, idling.exit_ns());
        let is_stacked = matches!(present, Rule::Stacked { .. });
        let host_polls = [&each[0].late.host_polls[..], &each[0].external.host_polls].concat();
        let host_poll = Estimate::of(host_polls).filter(|_| is_stacked);
        let of_halt = |assumed| host_poll.map_or(assumed, Estimate::and_halt_of_host);
        let assumed = known.after_halt.map_or_else(|| of_halt(assumed_of.after_halt), Estimate::calibrated);
        let ipi = known.ipi.map_or(assumed_of.ipi, Estimate::calibrated);
        let of_polls = |late: &Late| {
            Estimate::of(late.polls.clone()).filter(|_| !are_rare(late.polls.len(), late.halted()))
        };
        let first =
            |of: &dyn Fn(&Seen) -> Option<Estimate>, assumed| each.iter().find_map(of).unwrap_or(assumed);
        let after_poll = first(&|seen| of_polls(&seen.late), assumed_of.after_poll);
        let external_poll = first(&|seen| of_polls(&seen.external), assumed_of.external_poll);
        let external_halt =
            first(&|seen| Estimate::of(seen.external.halts()), of_halt(assumed_of.external_halt));
        let after_halt = Estimate::of(late.halts()).unwrap_or(assumed);
        let after_halt =
            if place.is_some_and(|place| place > 0) { after_halt.between_runs() } else { after_halt };
        let is_of_one = recordings.len() == 1;
        let pooled = |of: Estimate| if is_of_one { of } else { of.between_runs() };
        let after_host_poll = match is_stacked {
            true => host_poll.unwrap_or_else(|| of_host_poll(after_halt, known.by_host.latency)),
            false => assumed_of.after_host_poll,
        };
        let ipi = of_halts(&after_waking, After::Poll)
            .map(|by| pooled(by.added))
            .or_else(|| of_halts(&after_waking, After::NoState).map(AddedByHalts::interrupt))
            .or_else(|| of_waker(after_host_poll, known.by_host.exit_and_entry?))
            .unwrap_or_else(|| within(ipi, &after_waking));
        // Long segments have more to lose, without the interrupts that they send: of a server in Python it was 32 us, of fio 6.
        let runs = each.swap_remove(0).runs.into_iter();
        let runs = runs.map(|(ns, wakes)| ns.saturating_sub(if wakes { ipi.ns } else { 0 })).collect();
        let half_ns = Estimate::of(runs).map_or(0, |of| of.ns / 2);
        let longer_segment =
            Estimate { high_ns: half_ns.max(assumed_of.longer_segment.high_ns), ..assumed_of.longer_segment };
        let estimates = Estimates {
            after_poll,
            after_halt: match (is_seldom, known.after_halt) {
                (true, Some(_)) => assumed,
                (true, None) => after_halt.among_many(),
                (false, _) => after_halt,
            },
            external_poll,
            external_halt,
            ipi,
            longer_segment: of_halts(&until_waking, After::Poll)
                .map_or(longer_segment, |by| pooled(by.added)),
            hidden: assumed_of.hidden,
            after_host_poll,
        };
        (estimates, idling)
    }
}

/// Which of the lengths are compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum After {
    Halt,
    Poll,
    /// The idle task of the CPU had begun and was in no idle state yet. It looks for what is to run before it enters one, so
    /// that its waker sends no interrupt.
    NoState,
}

impl After {
    /// What follows a poll of the host is as after neither.
    fn idle(idled: Idled) -> Option<After> {
        match idled {
            Idled::Polled => Some(After::Poll),
            Idled::HostPolled => None,
            Idled::Halted => Some(After::Halt),
        }
    }
}

/// Lengths by task \[ns\].
type Lengths<'a> = BTreeMap<(&'a str, After), Vec<u64>>;

/// Latencies of wakeups \[ns\].
#[derive(Default)]
struct Late {
    polls: Vec<u64>,
    /// Of halts, and of those after a poll: the time from the CPU's last segment to the wakeup, and the latency.
    halts: [Vec<(u64, u64)>; 2],
    /// Of halts through which the host polled.
    host_polls: Vec<u64>,
}

impl Late {
    /// A wakeup of this segment at `woken_ns`, on a CPU whose last one had ended at `ended_ns`.
    fn add(&mut self, idled: Idled, row: &Segment, ended_ns: u64, woken_ns: u64) {
        let ns = row.start_ns.saturating_sub(woken_ns);
        let has_polled = row.idle.is_some_and(|path| path.way == Way::PolledAndHalted);
        match idled {
            Idled::Polled => self.polls.push(ns),
            Idled::HostPolled => self.host_polls.push(ns),
            Idled::Halted => {
                self.halts[usize::from(has_polled)].push((woken_ns.saturating_sub(ended_ns), ns));
            }
        }
    }

    fn halts(&self) -> Vec<u64> {
        self.halts.iter().flatten().map(|(_, late_ns)| *late_ns).collect()
    }

    /// How many of [`Late::halts`] there are.
    fn halted(&self) -> usize {
        self.halts.iter().map(Vec::len).sum()
    }
}

/// What one recording shows \[ns\].
#[derive(Default)]
struct Seen {
    /// Of wakeups by tasks of other CPUs.
    late: Late,
    /// Of wakeups by interrupts and timers.
    external: Late,
    /// Lengths of segments that began with an idle time, and whether they wake a task.
    runs: Vec<(u64, bool)>,
}

impl Seen {
    /// Adds to the lengths of segments until they wake a task, and from then on.
    fn of<'a>(
        segments: &'a Segments,
        before: &Before,
        [until_waking, after_waking]: &mut [Lengths<'a>; 2],
    ) -> Seen {
        let mut seen = Seen::default();
        let name = |task: u32| segments.tasks.get(task as usize).map_or("", |name| &**name);
        let add = |lengths: &mut Lengths<'a>, task: u32, after: Option<After>, ns: u64| {
            if let Some(after) = after {
                lengths.entry((name(task), after)).or_default().push(ns);
            }
        };
        let mut woken_by_it = vec![0u32; segments.rows.len()];
        for row in &segments.rows {
            if let Cause::Task { waker, .. } = row.cause {
                woken_by_it[waker as usize] += 1;
            }
        }
        let mut ended: BTreeMap<u32, u64> = BTreeMap::new();
        for (place, row) in segments.rows.iter().enumerate() {
            let idled = before.idled(place);
            let ended_ns = ended.insert(row.cpu, row.end_ns()).unwrap_or(0);
            if let Some(idled) = idled {
                seen.runs.push((row.run_ns, woken_by_it[place] > 0));
                if let Cause::Interrupt { woken_ns } | Cause::Timer { woken_ns } = row.cause {
                    if woken_by_it[place] == 0 {
                        add(until_waking, row.task, After::idle(idled), row.run_ns);
                    }
                    seen.external.add(idled, row, ended_ns, woken_ns);
                }
            }
            let Cause::Task { waker, offset_ns } = row.cause else { continue };
            let by = segments.rows[waker as usize];
            if by.cpu == row.cpu {
                continue;
            }
            if let Some(idled) = idled {
                let woken_ns = by.start_ns.saturating_add(offset_ns);
                seen.late.add(idled, row, ended_ns, woken_ns);
            }
            if woken_by_it[waker as usize] != 1 || offset_ns > by.run_ns {
                continue;
            }
            let interrupt = match idled {
                Some(idled) => Some(if idled.needs_interrupt() { After::Halt } else { After::Poll }),
                None => before.is_in_no_state(row).then_some(After::NoState),
            };
            add(after_waking, by.task, interrupt, by.run_ns.saturating_sub(offset_ns));
            let own = idled.and_then(|_| before.idled(waker as usize)).and_then(After::idle);
            add(until_waking, by.task, own, offset_ns);
        }
        seen
    }

    fn halts_seldom(&self) -> bool {
        self.late.halted().saturating_mul(SELDOM) < self.late.polls.len()
    }
}

/// Whether polls show no constant: fewer than one in fifty halts are those of windows that a setting that never polls has
/// left, or what was taken for polls. Halts are halts however rare.
const fn are_rare(polls: usize, halts: usize) -> bool {
    polls.saturating_mul(50) < halts
}

/// Rare halts mostly follow polls that timed out because something delayed the waking CPU, and the delay goes on after the wakeup. In
/// an emulated guest the median of wakers then ran 18 to 47 us longer than after polls, where halts were frequent 10 us; the
/// shortest tenth of wakers ran 5 to 14 us longer (a ping-pong and redis, `guest_halt_poll_ns` of 0 and 200000).
const UNDISTURBED: usize = 10;

/// How much longer the segments of a task are with halts.
#[derive(Clone, Copy)]
struct AddedByHalts {
    added: Estimate,
    /// How long they are with them.
    halted: Estimate,
}

impl AddedByHalts {
    /// The interrupt, in comparison with wakeups that needed none: at most as long as wakers run after they have woken a CPU that
    /// halted.
    fn interrupt(self) -> Estimate {
        let of = self.added.between_runs();
        Estimate { high_ns: of.high_ns.min(self.halted.high_ns), ..of }
    }
}

/// How much halts add, of the task of which the most is known. Polls may not be rare.
fn of_halts(lengths: &Lengths<'_>, other: After) -> Option<AddedByHalts> {
    let both =
        lengths.iter().filter(|((_, after), _)| *after == After::Halt).filter_map(|((task, _), halted)| {
            let others = lengths.get(&(*task, other))?;
            let is_known = other != After::Poll || !are_rare(others.len(), halted.len());
            is_known.then_some((halted.len().min(others.len()), halted, others))
        });
    let (_, halted, others) = both.max_by_key(|(fewer, ..)| *fewer)?;
    let quantiles =
        |one_in| Some((Estimate::at(halted.clone(), one_in)?, Estimate::at(others.clone(), one_in)?));
    let (median, of_others) = quantiles(2)?;
    let mut added = Estimate::difference(median, of_others);
    if halted.len().saturating_mul(SELDOM) < others.len() {
        let (shortest, of_others) = quantiles(UNDISTURBED)?;
        let undisturbed = Estimate::difference(shortest, of_others);
        added = Estimate { high_ns: added.high_ns.max(undisturbed.ns), ..undisturbed };
    }
    Some(AddedByHalts { added, halted: median })
}

/// The median latency of the halts of a recording, from what woke them; `None` where it has hardly any.
pub(crate) fn halt_latency(segments: &Segments) -> Option<Nanos> {
    let halts = segments.rows.iter().filter(|row| row.halted == Some(true));
    let late = halts.filter_map(|row| row.start_ns.checked_sub(segments.woken_ns(row)?));
    Some(Nanos(Estimate::of(late.collect())?.ns))
}

/// What an interrupt is assumed to cost the waker: no more than wakers run after they have woken a halted CPU (the median of the task
/// that runs shortest then), which can be less than 2 us. The upper end is at least that unless it is calibrated: in a nested guest
/// without hardware help an interrupt took 70 us.
fn within(assumed: Estimate, after_waking: &Lengths<'_>) -> Estimate {
    let halted = after_waking.iter().filter(|((_, after), _)| *after == After::Halt);
    let shortest = halted.filter_map(|(_, lengths)| Estimate::of(lengths.clone())).map(|of| of.ns).min();
    let Some(shortest) = shortest else { return assumed };
    Estimate {
        ns: assumed.ns.min(shortest),
        low_ns: assumed.low_ns.min(shortest),
        high_ns: if assumed.calibrated { assumed.high_ns } else { assumed.high_ns.max(shortest) },
        ..assumed
    }
}

/// What each segment's CPU did right before it, by the recording or else by the rule that was in force.
pub(super) struct Before {
    pub(super) idled: Vec<Option<Idled>>,
    /// Whether the recording has idle states: what most CPUs did is recorded.
    has_states: bool,
}

impl Before {
    /// `by_host` has of each halt whether the host polled through it, where that was recorded.
    pub(super) fn of(
        segments: &Segments,
        present: &Rule,
        by_host: &[Option<bool>],
    ) -> Result<Before, RuleError> {
        let mut idled = Program::new(segments, External::Absolute).as_recorded(present)?.0;
        let known = segments.rows.iter().filter(|row| row.halted.is_some()).count();
        let has_states = known * 2 > segments.rows.len();
        // By CPU, when the segment before ended.
        let mut ended: BTreeMap<u32, u64> = BTreeMap::new();
        for (place, (idled, row)) in idled.iter_mut().zip(&segments.rows).enumerate() {
            // Of a halt that the host has not been seen in, the rule says whether it polled.
            let by_rule = (*idled == Some(Idled::HostPolled)).then_some(true);
            let recorded = Idled::recorded(row.halted, by_host.get(place).copied().flatten().or(by_rule));
            let before = ended.insert(row.cpu, row.end_ns());
            if before == Some(row.start_ns) || (has_states && recorded.is_none()) {
                // Another task was switched out for it, whose own wakeup may not have been seen; or the idle task, before it
                // was in an idle state.
                *idled = None;
            } else if let (Some(idled), Some(recorded)) = (idled.as_mut(), recorded) {
                *idled = recorded;
            }
        }
        Ok(Before { idled, has_states })
    }

    /// Whether the idle task was switched out for this segment before it was in an idle state.
    const fn is_in_no_state(&self, row: &Segment) -> bool {
        self.has_states && row.halted.is_none() && row.idle.is_none()
    }

    /// `None`: did not idle.
    fn idled(&self, segment: usize) -> Option<Idled> {
        self.idled.get(segment).copied().flatten()
    }
}
