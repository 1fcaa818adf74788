//! The settings that a search tries.
//!
//! Times follow the preferred numbers of ISO 3, ten to a decade, from 1 us to 10 ms: more than 20 000 settings of the
//! host's rule, and as many of the guest's. Factors are few, since a window moves between its limits in a
//! handful of steps whatever they are. Settings that are the same rule by another name (a first window above
//! the maximum, a divisor that is never used) are left out. A fleet is searched on a [`coarse`] grid of
//! several hundred of them.

use dwell_policy::param::{DRIVER, Setting, Unit, index_of, known_version};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};

/// ISO 3, R10, as commonly rounded: the preferred numbers of a decade.
pub const R10: [i64; 10] = [100, 125, 160, 200, 250, 315, 400, 500, 630, 800];
const SHORTEST_NS: i64 = 1_000;
const LONGEST_NS: i64 = 10_000_000;

/// Preferred numbers from 1 us to 10 ms, `step` of the ten in a decade apart.
fn times(step: usize) -> impl Iterator<Item = i64> + Clone {
    let decades = [10, 100, 1_000, 10_000];
    let below =
        decades.into_iter().flat_map(move |decade| R10.into_iter().step_by(step).map(move |m| m * decade));
    below.chain([LONGEST_NS]).filter(|&t| t >= SHORTEST_NS)
}

/// Every setting to try for the rule that a layer has in a version; the first is "do not poll". None where the layer has no rule
/// in that version, as haltpoll has none on s390x.
pub fn settings(layer: Layer, version: Version) -> Vec<Setting> {
    let mut grid = Vec::new();
    if known_version(layer, version).is_err() {
        return grid;
    }
    let base = Setting::defaults(layer, version);
    let mut add = |values: &[(&str, i64)]| {
        let mut setting = base;
        let taken = values.iter().all(|(name, value)| setting.set(name, *value).is_ok());
        debug_assert!(taken, "the grid leaves the range of {values:?}");
        grid.push(setting);
    };
    match layer {
        Layer::Host => {
            let names =
                ["halt_poll_ns", "halt_poll_ns_grow", "halt_poll_ns_grow_start", "halt_poll_ns_shrink"];
            halt_polling(&mut add, names, None);
        }
        Layer::Guest => {
            let names = [
                "guest_halt_poll_ns",
                "guest_halt_poll_grow",
                "guest_halt_poll_grow_start",
                "guest_halt_poll_shrink",
            ];
            halt_polling(&mut add, names, Some("guest_halt_poll_allow_shrink"));
        }
        Layer::Iothread => iothread(&mut add, version),
        Layer::Driver => {}
    }
    grid
}

/// The settings of the idle driver dwell_idle that are searched, from the present one, at this halt cost: its
/// policies that learn, and those that do not with the windows that can be best. A fixed window above the
/// halt cost is never better than that window.
pub fn driver(present: &Setting, halt_cost: Nanos) -> Vec<Setting> {
    debug_assert!(present.layer() == Layer::Driver);
    let cost = i64::try_from(halt_cost.get()).unwrap_or(i64::MAX);
    // The longest window of leader is twice the halt cost.
    let longest = present.get("max_window_ns").unwrap_or(0).max(cost.saturating_mul(2));
    let fixed = times(1).filter(|&window| window < cost).chain([cost]).map(|window| ("fixed", window));
    let all = [("leader", longest), ("savings", longest), ("never", longest)].into_iter().chain(fixed);
    let setting = |(policy, window)| {
        let mut setting = *present;
        let number = index_of(Layer::Driver, "policy").and_then(|at| DRIVER.get(at)?.parse_name(policy))?;
        let values = [("halt_cost_ns", cost), ("max_window_ns", window), ("policy", number)];
        values.into_iter().all(|(name, value)| setting.set(name, value).is_ok()).then_some(setting)
    };
    all.filter_map(setting).collect()
}

/// A part of [`settings`] of several hundred, for many recordings: five maxima and first windows to a decade,
/// windows that double, and that keep their length, fall to zero or halve. The first is "do not poll", and
/// the second the default of the version.
pub fn coarse(layer: Layer, version: Version) -> Vec<Setting> {
    let is_time = |value: i64| value == 0 || times(2).any(|time| time == value);
    let is_coarse = |setting: &Setting| {
        setting.iter().all(|(param, value)| match param.name {
            _ if param.unit == Unit::Nanoseconds => is_time(value),
            "halt_poll_ns_grow" | "guest_halt_poll_grow" => value == 2,
            "poll-grow" => value == 2 || value == 4,
            "halt_poll_ns_shrink" | "guest_halt_poll_shrink" => (0..=2).contains(&value),
            "poll-shrink" => value == 0 || value == 2 || value == 4,
            _ => true,
        })
    };
    let mut all = settings(layer, version);
    if all.is_empty() {
        return all;
    }
    let never = all.remove(0);
    let default = Setting::defaults(layer, version);
    all.retain(|setting| is_coarse(setting) && *setting != default);
    all.splice(..0, [never, default]);
    all
}

/// First windows up to a maximum, the maximum itself among them.
fn first_windows(max: i64) -> impl Iterator<Item = i64> {
    times(1).filter(move |&t| t < max).chain([max])
}

/// Divisors of windows; 0 drops them to zero.
const DIVISORS: [i64; 7] = [0, 1, 2, 3, 4, 8, 16];

/// Growth factors that make a difference between a first window and a maximum.
fn factors(first: i64, max: i64) -> impl Iterator<Item = i64> {
    [2, 3, 4, 8].into_iter().take(if first < max { 4 } else { 1 })
}

/// The rules of host and guest, whose parameters are the maximum, the growth factor, the first window and the divisor; and
/// `kept` is the switch of a rule whose windows may also keep their length, by its name.
fn halt_polling(
    add: &mut impl FnMut(&[(&str, i64)]),
    [max_name, grow_name, start_name, shrink_name]: [&str; 4],
    kept: Option<&str>,
) {
    let divisors = DIVISORS.map(|divisor| vec![(shrink_name, divisor)]).into_iter();
    let shrinks: Vec<Vec<(&str, i64)>> =
        divisors.chain(kept.map(|switch| vec![(shrink_name, 2), (switch, 0)])).collect();
    add(&[(max_name, 0)]);
    for max in times(1) {
        for first in first_windows(max) {
            for grow in factors(first, max) {
                for shrink in &shrinks {
                    let values = [(max_name, max), (grow_name, grow), (start_name, first)];
                    add(&[&values[..], shrink].concat());
                }
            }
        }
    }
}

fn iothread(add: &mut impl FnMut(&[(&str, i64)]), version: Version) {
    let weighted = version.at_least(11, 1);
    add(&[("poll-max-ns", 0)]);
    for max in times(1) {
        for grow in [2, 3, 4, 8, 16] {
            for shrink in DIVISORS {
                let values = [("poll-max-ns", max), ("poll-grow", grow), ("poll-shrink", shrink)];
                if !weighted {
                    add(&values);
                    continue;
                }
                // 0 is another name for 2 here.
                for weight in (1..=6).take(if shrink == 0 { 0 } else { 6 }) {
                    let [max, grow, shrink] = values;
                    add(&[max, grow, shrink, ("poll-weight", weight)]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn grids_hold_thousands_of_different_settings() {
        for (layer, version, least) in [
            (Layer::Host, Version::new(6, 18), 20_000),
            (Layer::Guest, Version::new(6, 18), 20_000),
            (Layer::Iothread, Version::new(7, 2), 1_400),
            (Layer::Iothread, Version::new(11, 1), 1_400),
        ] {
            let grid = settings(layer, version);
            let distinct: HashSet<Setting> = grid.iter().copied().collect();
            assert_eq!(distinct.len(), grid.len());
            assert!(grid.len() > least, "{layer:?} {version}: {}", grid.len());
        }
    }

    #[test]
    fn coarse_grids_are_a_part_of_several_hundred_and_the_default() {
        for (layer, version) in [
            (Layer::Host, Version::new(6, 18)),
            (Layer::Guest, Version::new(6, 18)),
            (Layer::Iothread, Version::new(7, 2)),
            (Layer::Iothread, Version::new(11, 1)),
        ] {
            let (fine, coarse) = (settings(layer, version), coarse(layer, version));
            let distinct: HashSet<Setting> = coarse.iter().copied().collect();
            assert_eq!(distinct.len(), coarse.len());
            assert_eq!((coarse[0], coarse[1]), (fine[0], Setting::defaults(layer, version)));
            assert!(coarse[2..].iter().all(|setting| fine.contains(setting)));
            assert!((100..=1_000).contains(&coarse.len()), "{layer:?} {version}: {}", coarse.len());
        }
    }

    #[test]
    fn the_drivers_policies_are_searched_at_the_halt_cost() {
        let present = Setting::defaults(Layer::Driver, Version::new(6, 12));
        let all = driver(&present, Nanos(20_000));
        let distinct: HashSet<Setting> = all.iter().copied().collect();
        assert_eq!(distinct.len(), all.len());
        let policies: HashSet<Option<i64>> = all.iter().map(|setting| setting.get("policy")).collect();
        assert_eq!(policies.len(), 4);
        assert!(all.iter().all(|setting| setting.get("halt_cost_ns") == Some(20_000)));
        let fixed = all.iter().filter(|setting| setting.get("policy") == Some(2));
        assert!(fixed.clone().count() > 10 && fixed.clone().all(|s| s.get("max_window_ns") <= Some(20_000)));
        assert!(driver(&present, Nanos(1 << 40)).is_empty());
    }

    #[test]
    fn times_span_one_microsecond_to_ten_milliseconds() {
        let all: Vec<i64> = times(1).collect();
        assert_eq!((all.len(), all.first(), all.last()), (41, Some(&1_000), Some(&10_000_000)));
        assert!(all.is_sorted());
    }
}
