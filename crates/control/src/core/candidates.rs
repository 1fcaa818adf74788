//! The settings to choose from.
//!
//! KVM's rule, and haltpoll's, can be set to do four things: never poll; poll for *W* always (maximum and
//! first window *W*, divisor 1); poll for *W* after an episode that *W* covered (divisor 0); and adapt
//! between a first window and a maximum. The windows are multiples of the halt cost, since only windows
//! around it can be worth anything. QEMU's rule has a maximum and two factors. dwell_idle has two policies
//! that learn, for this halt cost, fixed windows up to it, and *never*.

use dwell_policy::iothread::Revision;
use dwell_policy::param::{DRIVER_POLICIES, Setting};
use dwell_policy::{Layer, Nanos};
use std::collections::HashSet;

/// The windows of *always* and *after short*, in sixteenths of the halt cost.
const WINDOWS: [u64; 12] = [2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32];
/// The maxima of the rule's own adaptation, in sixteenths of the halt cost.
const MAXIMA: [u64; 9] = [4, 8, 12, 16, 20, 24, 32, 48, 64];
/// First windows, as divisors of the maximum.
const FIRST: [u64; 4] = [8, 4, 2, 1];

/// The maximum, the factor, the first window and the divisor of KVM's rule, and of haltpoll's.
const HOST: [&str; 4] =
    ["halt_poll_ns", "halt_poll_ns_grow", "halt_poll_ns_grow_start", "halt_poll_ns_shrink"];
const GUEST: [&str; 4] =
    ["guest_halt_poll_ns", "guest_halt_poll_grow", "guest_halt_poll_grow_start", "guest_halt_poll_shrink"];

/// Which parameters can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of the layer.
    All,
    /// The maximum alone: what a VMM can set for its VM (`KVM_CAP_HALT_POLL`).
    Maximum,
}

/// The settings that are tried in place of `originals`: these first, then *never*, then the others. None has
/// a window above `longest`, the originals excepted.
pub(crate) fn candidates(originals: Setting, halt_cost: Nanos, longest: Nanos, reach: Reach) -> Vec<Setting> {
    let mut all = vec![originals];
    let mut add = |values: &[(&str, u64)]| {
        let mut setting = originals;
        let set = |(name, value): &(&str, u64)| setting.set(name, i64::try_from(*value).unwrap_or(i64::MAX));
        if values.iter().map(set).all(|taken| taken.is_ok()) {
            all.push(setting);
        }
    };
    let of = |sixteenths: &u64| halt_cost.get().saturating_mul(*sixteenths) / 16;
    let short_enough = |window: &u64| *window > 0 && *window <= longest.get();
    let windows = || WINDOWS.iter().map(of).filter(short_enough);
    let maxima = || MAXIMA.iter().map(of).filter(short_enough);
    match originals.layer() {
        Layer::Host if reach == Reach::Maximum => {
            add(&[("halt_poll_ns", 0)]);
            windows().chain(maxima()).for_each(|max| add(&[("halt_poll_ns", max)]));
        }
        layer @ (Layer::Host | Layer::Guest) => {
            let (names, also) = match layer {
                Layer::Host => (HOST, None),
                _ => (GUEST, Some(("guest_halt_poll_allow_shrink", 1))),
            };
            let mut rule = |max, first, shrink| {
                let values: Vec<_> = names.into_iter().zip([max, 2, first, shrink]).chain(also).collect();
                add(&values);
            };
            rule(0, 0, 0);
            windows().for_each(|window| rule(window, window, 0));
            windows().for_each(|window| rule(window, window, 1));
            for max in maxima() {
                for first in FIRST.map(|divisor| max / divisor) {
                    [0, 1, 2].into_iter().for_each(|shrink| rule(max, first, shrink));
                }
            }
        }
        Layer::Iothread => {
            add(&[("poll-max-ns", 0)]);
            // From 11.1 on a divisor of 0 stands for the default.
            let weighted = Revision::of(originals.version()) == Ok(Revision::Weighted);
            for max in windows() {
                for (grow, shrink) in [(2, 0), (2, 2), (2, 4), (4, 0), (4, 2), (8, 0), (8, 2), (16, 2)] {
                    if shrink == 0 && weighted {
                        continue;
                    }
                    add(&[("poll-max-ns", max), ("poll-grow", grow), ("poll-shrink", shrink)]);
                }
            }
        }
        Layer::Driver => {
            let policy =
                |name: &str| DRIVER_POLICIES.iter().position(|policy| *policy == name).unwrap_or(0) as u64;
            add(&[("policy", policy("never"))]);
            // A fixed window above the halt cost is never better than that window. 0 has the driver measure
            // the halt cost.
            for max in windows().filter(|window| *window <= halt_cost.get()) {
                add(&[("policy", policy("fixed")), ("max_window_ns", max)]);
            }
            // The longest window of leader is twice the halt cost.
            let max = halt_cost.get().saturating_mul(2).min(longest.get());
            for learner in ["leader", "savings"].iter().filter(|_| halt_cost > Nanos::ZERO) {
                add(&[
                    ("policy", policy(learner)),
                    ("halt_cost_ns", halt_cost.get()),
                    ("max_window_ns", max),
                ]);
            }
        }
    }
    let mut seen = HashSet::new();
    all.retain(|setting| seen.insert(*setting));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::permitted;
    use dwell_policy::version::Version;

    #[test]
    fn about_130_with_the_originals_first() {
        let of = |layer, version, k| {
            candidates(Setting::defaults(layer, version), Nanos(k), Nanos::from_micros(400), Reach::All)
        };
        for (layer, version, least, most) in [
            (Layer::Host, Version::new(6, 18), 120, 134),
            (Layer::Guest, Version::new(6, 18), 120, 134),
            (Layer::Iothread, Version::new(10, 0), 90, 134),
            (Layer::Iothread, Version::new(11, 1), 50, 70),
            (Layer::Driver, Version::new(6, 18), 13, 13),
        ] {
            let all = of(layer, version, 20_000);
            assert!((least..=most).contains(&all.len()), "{layer:?}: {}", all.len());
            assert_eq!(all[0], Setting::defaults(layer, version));
        }
        // Nothing but the originals and never is left where halts are free.
        assert_eq!(of(Layer::Host, Version::new(6, 18), 0).len(), 2);
        assert_eq!(of(Layer::Driver, Version::new(6, 18), 0).len(), 2);
    }

    #[test]
    fn no_window_is_longer_than_permitted_but_the_original() {
        let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
        let all = candidates(originals, Nanos(50_000), Nanos(60_000), Reach::All);
        for (name, least, most) in permitted(&all[1..]) {
            let limit = if name.ends_with("shrink") || name.ends_with("grow") { 2 } else { 60_000 };
            assert!(least >= 0 && most <= limit, "{name}: {least} to {most}");
        }
        assert_eq!(permitted(&all)[0], ("halt_poll_ns", 0, 200_000));
        let maxima = candidates(originals, Nanos(20_000), Nanos(80_000), Reach::Maximum);
        assert!(maxima.len() > 12 && permitted(&maxima)[1..].iter().all(|(_, least, most)| least == most));
    }
}
