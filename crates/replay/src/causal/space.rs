//! The settings that a search by work tries: of one layer those of its grid, of a guest and its host pairs.

use crate::grid;
use crate::rule::Rule;
use dwell_policy::param::{Setting, Unit};

/// The maxima that are printed beside the advice on one layer, and of which pairs are tried \[us\].
const MAXIMA_US: [i64; 8] = [10, 20, 50, 100, 200, 500, 1_000, 2_000];

/// A setting with another maximum \[ns\].
pub fn with_maximum(present: Setting, ns: i64) -> Setting {
    let mut setting = present;
    if let Some((param, _)) = present.iter().next() {
        let _ = setting.set(param.name, ns);
    }
    setting
}

/// The maximum of a rule \[ns\]: the first parameter of each layer.
pub fn maximum(setting: &Setting) -> i64 {
    setting.iter().next().map_or(0, |(_, ns)| ns)
}

/// A setting with each of the maxima.
fn maxima(setting: Setting) -> impl Iterator<Item = Setting> {
    MAXIMA_US.into_iter().map(move |us| with_maximum(setting, us * 1_000))
}

/// What a recommendation is compared with beside the setting in force, and what it is called: the default and *never*; of a guest
/// and its host, which of them polls. One that does not poll now has its default where it does.
pub fn references(present: &Rule) -> Vec<(&'static str, Rule)> {
    match *present {
        Rule::Policy(..) => vec![],
        Rule::Layer(setting) => {
            let default = Setting::defaults(setting.layer(), setting.version());
            vec![("default", Rule::Layer(default)), ("never", Rule::Layer(with_maximum(setting, 0)))]
        }
        Rule::Stacked { guest, host, .. } => {
            let polling = |setting: Setting| match maximum(&setting) {
                0 => Setting::defaults(setting.layer(), setting.version()),
                _ => setting,
            };
            let (never, guest, host) = (with_maximum(guest, 0), polling(guest), polling(host));
            let both = |guest, host| Rule::Stacked { guest, host, poll_control: true };
            vec![
                ("neither polls", guest_alone(present, never)),
                ("guest polls", guest_alone(present, guest)),
                ("host polls", both(never, host)),
                ("both poll", both(guest, host)),
            ]
        }
    }
}

/// The guest under a setting above a host that does not poll: one that does now has a maximum of 0.
fn guest_alone(present: &Rule, guest: Setting) -> Rule {
    match *present {
        Rule::Stacked { host, poll_control: true, .. } => {
            Rule::Stacked { guest, host: with_maximum(host, 0), poll_control: true }
        }
        Rule::Stacked { host, .. } => Rule::Stacked { guest, host, poll_control: false },
        _ => Rule::Layer(guest),
    }
}

/// The settings that are printed beside the advice on one layer.
pub(super) fn beside(present: &Rule) -> Vec<Rule> {
    match *present {
        Rule::Layer(setting) => maxima(setting).map(Rule::Layer).collect(),
        _ => vec![],
    }
}

/// What is tried first: of one layer a part of its grid, of two all pairs of maxima.
pub(super) fn coarse(present: &Rule) -> Vec<Rule> {
    match *present {
        Rule::Policy(..) => vec![],
        Rule::Layer(setting) => {
            grid::coarse(setting.layer(), setting.version()).into_iter().map(Rule::Layer).collect()
        }
        Rule::Stacked { guest, host, .. } => {
            let guests = [with_maximum(guest, 0)].into_iter().chain(maxima(guest));
            let above = |guest: Setting| {
                let hosts = maxima(host).map(move |host| Rule::Stacked { guest, host, poll_control: true });
                hosts.chain([guest_alone(present, guest)])
            };
            guests.flat_map(above).collect()
        }
    }
}

/// In which parameters settings are near each other.
#[derive(Clone, Copy)]
pub(super) enum Near {
    /// The same factors, and times that differ by at most a factor of 2. Of the best pair, of which only the maxima were tried,
    /// the coarse grid of either layer.
    Times,
    /// The same times.
    Factors,
}

impl Near {
    fn holds(self, centre: &Setting, other: &Setting) -> bool {
        centre.iter().zip(other.iter()).all(|((param, a), (_, b))| match (self, param.unit) {
            (Near::Times, Unit::Nanoseconds) => a <= 2 * b && b <= 2 * a,
            (Near::Factors, unit) if unit != Unit::Nanoseconds => true,
            _ => a == b,
        })
    }

    /// Those of the grid near one of these, which are of one rule.
    fn of(self, centres: &[Setting]) -> Vec<Setting> {
        let grid = centres.first().map(|first| grid::settings(first.layer(), first.version()));
        let is_near = |other: &Setting| centres.iter().any(|centre| self.holds(centre, other));
        grid.into_iter().flatten().filter(is_near).collect()
    }

    /// The settings of the grid near one of these, the best of which is first; of a guest and its host one of the two is moved.
    pub(super) fn to(self, centres: &[Rule]) -> Vec<Rule> {
        match (self, centres) {
            (Near::Times, [best @ Rule::Stacked { .. }, ..]) => {
                either_layer(best, |setting| grid::coarse(setting.layer(), setting.version()))
            }
            (Near::Factors, [Rule::Stacked { .. }, ..]) => centres
                .iter()
                .flat_map(|centre| either_layer(centre, |setting| self.of(&[setting])))
                .collect(),
            _ => {
                let of_layer =
                    |rule: &Rule| if let Rule::Layer(setting) = *rule { Some(setting) } else { None };
                let centres: Vec<Setting> = centres.iter().filter_map(of_layer).collect();
                self.of(&centres).into_iter().map(Rule::Layer).collect()
            }
        }
    }
}

/// A guest and its host with other settings of one of the two; of the host only where it may poll.
fn either_layer(pair: &Rule, others: impl Fn(Setting) -> Vec<Setting>) -> Vec<Rule> {
    let Rule::Stacked { guest, host, poll_control } = *pair else { return vec![] };
    let stacked = |guest, host| Rule::Stacked { guest, host, poll_control };
    let of_guest = others(guest).into_iter().map(|guest| stacked(guest, host));
    let hosts = if poll_control { others(host) } else { vec![] };
    of_guest.chain(hosts.into_iter().map(|host| stacked(guest, host))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;

    fn stacked(guest_ns: i64, host_ns: i64, poll_control: bool) -> Rule {
        let of = |layer, ns| with_maximum(Setting::defaults(layer, Version::new(6, 18)), ns);
        Rule::Stacked { guest: of(Layer::Guest, guest_ns), host: of(Layer::Host, host_ns), poll_control }
    }

    fn maxima_of(rule: &Rule) -> [i64; 3] {
        match rule {
            Rule::Stacked { guest, host, poll_control } => {
                [maximum(guest), maximum(host), i64::from(*poll_control)]
            }
            _ => unreachable!(),
        }
    }

    #[test]
    fn of_a_guest_and_its_host_all_pairs_of_maxima_are_tried() {
        for (present, alone) in
            [(stacked(200_000, 200_000, false), [200_000, 0]), (stacked(0, 100_000, true), [0, 1])]
        {
            let all: Vec<[i64; 3]> = coarse(&present).iter().map(maxima_of).collect();
            assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 81);
            // A host that may not poll for the guest keeps its maximum; one that may gets none.
            let hosts = all.iter().filter(|[.., control]| *control == 1).count();
            assert_eq!(hosts, if alone[1] == 1 { 81 } else { 72 });
            assert!(all.contains(&[50_000, alone[0], alone[1]]), "{all:?}");
        }
    }

    #[test]
    fn near_a_pair_one_of_the_two_is_moved() {
        let centre = stacked(100_000, 50_000, true);
        let Rule::Stacked { guest, host, .. } = centre else { unreachable!() };
        for near in [Near::Times, Near::Factors] {
            let all = near.to(&[centre]);
            let moved = |rule: &Rule| match rule {
                Rule::Stacked { guest: other, host: below, .. } => [*other != guest, *below != host],
                _ => unreachable!(),
            };
            let both: Vec<[bool; 2]> = all.iter().map(moved).collect();
            assert!(both.contains(&[true, false]) && both.contains(&[false, true]));
            assert!(!both.contains(&[true, true]));
        }
        let silent = Near::Times.to(&[stacked(100_000, 50_000, false)]);
        assert!(silent.iter().all(|rule| maxima_of(rule)[1..] == [50_000, 0]));
    }

    #[test]
    fn who_polls_is_compared_with_what_is_in_force() {
        let named = |present: &Rule| -> Vec<(&str, [i64; 3])> {
            references(present).iter().map(|(role, rule)| (*role, maxima_of(rule))).collect()
        };
        assert_eq!(
            named(&stacked(200_000, 100_000, false)),
            [
                ("neither polls", [0, 100_000, 0]),
                ("guest polls", [200_000, 100_000, 0]),
                ("host polls", [0, 100_000, 1]),
                ("both poll", [200_000, 100_000, 1]),
            ]
        );
        assert_eq!(
            named(&stacked(0, 0, true)),
            [
                ("neither polls", [0, 0, 1]),
                ("guest polls", [200_000, 0, 1]),
                ("host polls", [0, 200_000, 1]),
                ("both poll", [200_000, 200_000, 1]),
            ]
        );
    }
}
