//! A guest's clock beside its host's, from when both saw the same vCPU halt.
//!
//! What the host records of a vCPU is part of what its guest records: the guest halts, which the host sees a
//! little later, and the host lets it run again before it notices. So each episode of the host lies within a
//! halt of the guest. A shift of the guest's clock says which ones do; the shift for which most do is the one
//! between the clocks, and how far it may be moved without losing one is how exactly it is known.
//!
//! The time of day of both says about where to look. Where idle times repeat themselves, another shift does
//! as well, and there is no answer. The clocks are taken to be equally fast for as long as the recordings
//! last.

use crate::causal::{Estimate, halt_latency, maximum};
use crate::check::in_force;
use crate::versions::Versions;
use dwell_policy::{Layer, Nanos};
use dwell_recording::accounting::{self, Outcome};
use dwell_recording::{Chunk, Columns, ReadError, Reader, Segments, TableReadError, Way};
use serde::Serialize;
use std::collections::BTreeMap;

/// From the begin of a halt to its end \[ns, the clock of its recording\].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halt {
    pub start_ns: i64,
    pub end_ns: i64,
    /// Whether the host polled until its end; of a guest's always false.
    pub polled: bool,
}

impl Halt {
    fn length(self) -> i64 {
        self.end_ns - self.start_ns
    }
}

/// How a guest's clock is to be shifted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alignment {
    pub guest: String,
    pub host: String,
    /// What to add to the guest's clock to get the host's: at least \[ns\].
    pub shift_least_ns: i64,
    /// The same: at most \[ns\].
    pub shift_most_ns: i64,
    /// What the time of day says that the shift is \[ns\].
    pub shift_by_time_of_day_ns: i64,
    /// Episodes of the host while the guest was recorded.
    pub host_episodes: u64,
    /// Those that lie within a halt of the guest.
    pub within: u64,
}

impl Alignment {
    /// The middle of the possible shifts \[ns\].
    pub fn shift_ns(&self) -> i64 {
        self.shift_least_ns.midpoint(self.shift_most_ns)
    }
}

/// How far the time of day of a guest may be off \[ns\]: a clock that was set in whole seconds is by one.
const RANGE_NS: i64 = 2_000_000_000;
/// Episodes of the host that are looked for at first, the longest: they fit into the fewest halts of the guest.
const LONGEST: usize = 200;
/// How far the shift may be off after that \[ns\].
const NEAR_NS: i64 = 1_000_000;
/// Episodes of one idler that are looked at, the first ones.
const MOST: usize = 1 << 20;
/// So many of the guest's CPUs and of the host's vCPUs are looked at, the busiest.
const CANDIDATES: usize = 16;

/// Shifts the clock of `guest` to that of `host`; `None` where their halts do not determine by how much, or the time of day of
/// one of them is not known.
///
/// # Errors
/// [`ReadError`].
pub fn align(guest: &Reader, host: &Reader) -> Result<Option<Alignment>, ReadError> {
    let Some(by_time_of_day_ns) = by_time_of_day(guest, host) else { return Ok(None) };
    aligned(guest, host, &vcpus(host)?, by_time_of_day_ns)
}

/// By how much the host's clock is ahead of the guest's by what both say of the time of day \[ns\].
fn by_time_of_day(guest: &Reader, host: &Reader) -> Option<i64> {
    let offset_ns = |reader: &Reader| reader.metadata().realtime_offset_ns();
    offset_ns(guest)?.checked_sub(offset_ns(host)?)
}

/// The busiest vCPUs of a host, with their episodes.
fn vcpus(host: &Reader) -> Result<Vec<(usize, Vec<Halt>)>, ReadError> {
    let busiest = busiest(host);
    let episodes = halts(host, &busiest, false)?;
    Ok(busiest.into_iter().zip(episodes).collect())
}

fn aligned(
    guest: &Reader,
    host: &Reader,
    vcpus: &[(usize, Vec<Halt>)],
    by_time_of_day_ns: i64,
) -> Result<Option<Alignment>, ReadError> {
    let busiest = busiest(guest);
    let each = busiest.iter().zip(halts(guest, &busiest, true)?);
    // The busiest may hardly halt: of two CPUs that wait for each other, one may poll until the other wakes it.
    let Some((&cpu, halts)) = each.min_by_key(|(_, halts)| std::cmp::Reverse(halts.len())) else {
        return Ok(None);
    };
    let found = vcpus.iter().filter_map(|(vcpu, episodes)| {
        let best = shift(&halts, episodes, by_time_of_day_ns)?;
        Some(Alignment {
            guest: guest.contents().idlers[cpu].name.clone(),
            host: host.contents().idlers[*vcpu].name.clone(),
            shift_least_ns: best.least,
            shift_most_ns: best.most,
            shift_by_time_of_day_ns: by_time_of_day_ns,
            host_episodes: during(&halts, episodes, best.least.midpoint(best.most)),
            within: best.within,
        })
    });
    // Nine of ten, as some begin or end while the guest does not see it; of several vCPUs the one that fits best.
    let fits = |found: &Alignment| found.within >= 10 && 10 * found.within >= 9 * found.host_episodes;
    Ok(found.filter(fits).max_by_key(|found| found.within))
}

/// The idlers with the most episodes, busiest first.
fn busiest(reader: &Reader) -> Vec<usize> {
    let idlers = &reader.contents().idlers;
    let mut order: Vec<usize> = (0..idlers.len()).collect();
    order.sort_by_key(|&idler| std::cmp::Reverse(idlers[idler].episodes));
    order.truncate(CANDIDATES);
    order
}

/// What a host's recording has of the cost of its guest's halts, each where it has enough of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HaltsByHost {
    /// From the wakeup of a vCPU that halted to running on the host: the median.
    pub latency: Option<Nanos>,
    /// How much longer a halt takes the guest than the host's episode in it: the vCPU leaves the guest and comes back to it, which
    /// takes CPU time. The lower end of the median's interval; with the 1 or 2 us of the guest's idle task around the halt
    /// where that is not known apart.
    pub exit_and_entry: Option<Nanos>,
}

/// What a host has recorded of its guest's halts.
#[derive(Clone, Debug)]
pub struct HostPolls {
    /// How the two were put beside each other; `None` where the guest has hardly halted.
    pub alignment: Option<Alignment>,
    /// For each segment of the guest whether the host polled through the halt before it; `None` where it has seen none.
    pub by_segment: Vec<Option<bool>>,
    /// Whether the host polls: through one of these halts or, where they are not known, for any of its busiest vCPUs.
    pub polls: bool,
    /// What they cost.
    pub halts: HaltsByHost,
}

/// Where a larger share of a guest's segments begins after a halt, the host's part in these must be known.
const FEW_HALTS: f64 = 0.05;

/// Which of its guest's halts a host polled through, by the episodes of a vCPU that lie within the idle times of a CPU. `None`
/// where the guest's halts do not determine which are which.
///
/// # Errors
/// [`TableReadError`].
pub fn host_polls(
    guest: &Reader,
    segments: &Segments,
    host: &Reader,
) -> Result<Option<HostPolls>, TableReadError> {
    let halts = segments.rows.iter().filter(|row| row.halted == Some(true)).count() as f64;
    let vcpus = vcpus(host)?;
    let alignment = match by_time_of_day(guest, host) {
        Some(by_time_of_day_ns) => aligned(guest, host, &vcpus, by_time_of_day_ns)?,
        None => None,
    };
    let (by_segment, longer, polls) = match &alignment {
        Some(alignment) => {
            let metadata = guest.metadata();
            let version = Versions::of_recording(metadata).of(Layer::Guest);
            let setting = in_force(Layer::Guest, version, metadata);
            let guest_polls = setting.is_some_and(|setting| maximum(&setting) > 0);
            let (by_segment, longer) = polled_through(segments, guest_polls, &vcpus, alignment);
            let polls = by_segment.contains(&Some(true));
            (by_segment, longer, polls)
        }
        None if halts <= FEW_HALTS * segments.rows.len() as f64 => {
            let polls = vcpus.iter().flat_map(|(_, episodes)| episodes).any(|episode| episode.polled);
            (vec![None; segments.rows.len()], vec![], polls)
        }
        None => return Ok(None),
    };
    let halts = HaltsByHost {
        latency: host.segments()?.as_ref().and_then(halt_latency),
        exit_and_entry: Estimate::of(longer).map(|of| Nanos(of.low_ns)),
    };
    Ok(Some(HostPolls { alignment, by_segment, polls, halts }))
}

/// For each segment what the vCPU did whose episodes are those of the segment's CPU; and by how much the guest's halts, those
/// without a poll of its own, are longer than these episodes \[ns\]. `guest_polls`: whether its setting polls.
fn polled_through(
    segments: &Segments,
    guest_polls: bool,
    vcpus: &[(usize, Vec<Halt>)],
    alignment: &Alignment,
) -> (Vec<Option<bool>>, Vec<u64>) {
    // By CPU, the idle times by the host's clock, and the segments after them.
    let mut idle: BTreeMap<u32, (Vec<Halt>, Vec<usize>)> = BTreeMap::new();
    let mut ended = BTreeMap::new();
    for (place, row) in segments.rows.iter().enumerate() {
        let times = ended.insert(row.cpu, row.end_ns()).map(|ended_ns| [ended_ns, row.start_ns]);
        let Some([Ok(start_ns), Ok(end_ns)]) = times.map(|times| times.map(i64::try_from)) else { continue };
        if start_ns < end_ns {
            let [start_ns, end_ns] = [start_ns, end_ns].map(|ns| ns.saturating_add(alignment.shift_ns()));
            let (halts, places) = idle.entry(row.cpu).or_default();
            halts.push(Halt { start_ns, end_ns, polled: false });
            places.push(place);
        }
    }
    let (mut by_host, mut longer) = (vec![None; segments.rows.len()], vec![]);
    for (idle, places) in idle.values() {
        let seen = vcpus.iter().map(|(_, episodes)| -> Vec<(usize, bool, i64)> {
            let within = |episode: &Halt| {
                let at = idle.partition_point(|halt| halt.end_ns < episode.end_ns);
                let halt = idle.get(at).filter(|halt| halt.start_ns <= episode.start_ns)?;
                Some((places[at], episode.polled, halt.length() - episode.length()))
            };
            episodes.iter().filter_map(within).collect()
        });
        for (place, polled, longer_ns) in seen.max_by_key(Vec::len).into_iter().flatten() {
            by_host[place] = Some(polled);
            let row = &segments.rows[place];
            let around_ns = match row.idle {
                Some(path) if path.way == Way::Halted => u64::from(path.entry_ns) + u64::from(path.exit_ns),
                None if !guest_polls && row.halted == Some(true) => 0,
                _ => continue,
            };
            longer.push(u64::try_from(longer_ns).unwrap_or(0).saturating_sub(around_ns));
        }
    }
    (by_host, longer)
}

/// For each of these idlers when it halted, or, not `only_halts`, when it idled.
fn halts(reader: &Reader, idlers: &[usize], only_halts: bool) -> Result<Vec<Vec<Halt>>, ReadError> {
    let columns = accounting::COLUMNS | Columns::IDLER | Columns::START_NS;
    let (mut halts, mut chunk) = (vec![vec![]; idlers.len()], Chunk::default());
    for group in 0..reader.row_groups() {
        reader.read(group, columns, &mut chunk)?;
        for row in 0..chunk.rows {
            let idler = usize::try_from(chunk.idler[row]).ok();
            let Some(place) = idlers.iter().position(|wanted| Some(*wanted) == idler) else { continue };
            let outcome = Outcome::of_row(&chunk, row);
            let (polled_ns, wanted) = match only_halts {
                true => (outcome.polled_ns.unwrap_or(0), outcome.halted == Some(true)),
                false => (0, true),
            };
            let start_ns = chunk.start_ns[row];
            let ends = [start_ns.checked_add(polled_ns), start_ns.checked_add(chunk.idle_ns[row])];
            let [Some(Ok(start_ns)), Some(Ok(end_ns))] = ends.map(|ns| ns.map(i64::try_from)) else {
                continue;
            };
            if wanted && start_ns < end_ns && halts[place].len() < MOST {
                let polled = !only_halts && outcome.halted == Some(false);
                halts[place].push(Halt { start_ns, end_ns, polled });
            }
        }
    }
    halts.iter_mut().for_each(|halts| halts.sort_by_key(|halt| halt.start_ns));
    Ok(halts)
}

/// Shifts for which equally many episodes lie within halts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shift {
    least: i64,
    most: i64,
    within: u64,
}

/// The shift of the guest's halts for which most of the host's episodes lie within them; `None` where another
/// one, far from it, is nearly as good.
fn shift(guest: &[Halt], host: &[Halt], about: i64) -> Option<Shift> {
    let mut longest = host.to_vec();
    longest.sort_by_key(|halt| std::cmp::Reverse(halt.length()));
    longest.truncate(LONGEST);
    let [from, to] = [about.saturating_sub(RANGE_NS), about.saturating_add(RANGE_NS)];
    let rough = most(guest, &longest, from, to, None)?;
    let (far, middle) = (guest.iter().map(|halt| halt.length()).max()?, rough.least.midpoint(rough.most));
    let near = (middle.saturating_sub(far), middle.saturating_add(far));
    let other = most(guest, &longest, from, to, Some(near));
    if other.is_some_and(|other| 10 * other.within >= 9 * rough.within) {
        return None;
    }
    most(guest, host, middle.saturating_sub(NEAR_NS), middle.saturating_add(NEAR_NS), None)
}

/// The shift from `from` to `to`, but not in `except`, for which most episodes lie within halts.
fn most(guest: &[Halt], host: &[Halt], from: i64, to: i64, except: Option<(i64, i64)>) -> Option<Shift> {
    // Each halt that an episode fits into allows some shifts: where they begin, and end.
    let mut ends: Vec<(i64, bool)> = vec![];
    for episode in host {
        let first = guest.partition_point(|halt| halt.end_ns.saturating_add(to) < episode.end_ns);
        for halt in &guest[first..] {
            let [least, most] = [episode.end_ns - halt.end_ns, episode.start_ns - halt.start_ns];
            if most < from {
                break;
            }
            let apart = except.is_none_or(|(least_not, most_not)| most < least_not || least > most_not);
            if least <= most && apart {
                ends.extend([(least.max(from), false), (most.min(to), true)]);
            }
        }
    }
    ends.sort_unstable();
    let (mut open, mut best) = (0, None::<Shift>);
    for (at, &(least, closes)) in ends.iter().enumerate() {
        if closes {
            open -= 1;
            continue;
        }
        open += 1;
        if best.is_none_or(|best| best.within < open) {
            // Until the next end: it is that of an interval that is open here.
            let most = ends[at..].iter().find(|(_, closes)| *closes).map_or(least, |(most, _)| *most);
            best = Some(Shift { least, most, within: open });
        }
    }
    best
}

/// Episodes of the host from the first halt of the guest to its last.
fn during(guest: &[Halt], host: &[Halt], shift: i64) -> u64 {
    let (Some(first), Some(last)) = (guest.first(), guest.last()) else { return 0 };
    let (first, last) = (first.start_ns.saturating_add(shift), last.end_ns.saturating_add(shift));
    host.iter().filter(|episode| first <= episode.start_ns && episode.end_ns <= last).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_recording::{Cause, IdlePath, Segment};
    use proptest::prelude::*;

    /// Halts of these lengths with times between them.
    fn halts(of: &[(u16, u16)]) -> Vec<Halt> {
        let mut now = 0;
        let mut next = |&(busy, length): &(u16, u16)| {
            now += 1 + i64::from(busy);
            let start_ns = now;
            now += i64::from(length);
            Halt { start_ns, end_ns: now, polled: false }
        };
        of.iter().map(&mut next).collect()
    }

    fn within(guest: &[Halt], host: &[Halt], shift: i64) -> u64 {
        let is_in = |episode: &&Halt| {
            guest.iter().any(|halt| {
                halt.start_ns + shift <= episode.start_ns && episode.end_ns <= halt.end_ns + shift
            })
        };
        host.iter().filter(is_in).count() as u64
    }

    proptest! {
        /// Beside counting for every shift there is.
        #[test]
        fn the_shift_is_the_best_of_all(
            guest in prop::collection::vec((0u16..20, 0u16..20), 1..12),
            host in prop::collection::vec((0u16..20, 0u16..20), 1..12),
        ) {
            let (guest, host) = (halts(&guest), halts(&host));
            let best = (-40..=40).map(|shift| within(&guest, &host, shift)).max().unwrap();
            let found = most(&guest, &host, -40, 40, None);
            prop_assert_eq!(found.map_or(0, |found| found.within), best);
            if let Some(Shift { least, most, .. }) = found {
                prop_assert!((least..=most).all(|shift| within(&guest, &host, shift) == best));
            }
        }
    }

    /// A halt is longer than the host's episode in it by the way out of the guest and back; what was polled before is none of that.
    #[test]
    fn the_way_out_of_a_guest_and_back_is_what_the_host_does_not_see() {
        let row = |place: u64, way: Option<Way>| Segment {
            task: 0,
            cpu: 0,
            start_ns: 100_000 * place,
            run_ns: 10_000,
            cause: Cause::Unknown,
            halted: Some(true),
            idle: way.map(|way| IdlePath { entry_ns: 1_000, exit_ns: 2_000, way }),
        };
        let ways =
            [Some(Way::Halted), Some(Way::Halted), Some(Way::PolledAndHalted), None, Some(Way::Halted)];
        let rows = (0..).zip(ways).map(|(place, way)| row(place, way)).collect();
        let segments = Segments { tasks: vec!["task".to_owned()], rows, ..Segments::default() };
        // In the first idle time, in the second until a poll of the host ends, and in the third; none in the fourth.
        let episode = |start_ns, end_ns, polled| Halt { start_ns, end_ns, polled };
        let episodes = [
            episode(20_000, 80_000, false),
            episode(121_000, 192_000, true),
            episode(250_000, 280_000, false),
        ];
        let alignment = Alignment {
            guest: "cpu0".to_owned(),
            host: "vm/vcpu0".to_owned(),
            shift_least_ns: -500,
            shift_most_ns: 500,
            shift_by_time_of_day_ns: 0,
            host_episodes: 3,
            within: 3,
        };
        let vcpus = [(0, episodes.to_vec())];
        let longer = |polls: bool| {
            let (by_segment, longer) = polled_through(&segments, polls, &vcpus, &alignment);
            assert_eq!(by_segment, [None, Some(false), Some(true), Some(false), None]);
            longer
        };
        // 90 us between segments, 3 us of them beside the idle state. How the guest idled in the third is known by its setting only.
        assert_eq!((longer(true), longer(false)), (vec![27_000], vec![27_000, 60_000]));
    }

    #[test]
    fn a_clock_is_found_again_and_a_repeated_load_is_refused() {
        let lengths: Vec<(u16, u16)> =
            (0..2_000u64).map(|n| (5_000, 1_000 + u16::try_from(n * n * 7_919 % 60_000).unwrap())).collect();
        let guest = halts(&lengths);
        let ahead = 1_234_567_890;
        let seen = |guest: &[Halt]| -> Vec<Halt> {
            let later = |halt: &Halt| Halt {
                start_ns: halt.start_ns + ahead + 300 + halt.length() % 7,
                end_ns: halt.end_ns + ahead - 400 - halt.length() % 11,
                polled: false,
            };
            guest[500..1_500].iter().map(later).collect()
        };
        let found = shift(&guest, &seen(&guest), 0).unwrap();
        assert_eq!(found.within, 1_000);
        assert!(found.least <= ahead && ahead <= found.most && found.most - found.least <= 700, "{found:?}");
        assert_eq!(during(&guest, &seen(&guest), ahead), 1_000);
        let same = halts(&[(5_000, 20_000); 2_000]);
        assert_eq!(shift(&same, &seen(&same), 0), None);
    }
}
