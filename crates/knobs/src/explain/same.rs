//! Decides, by the models, whether two settings always give the same windows.
//!
//! # Idea
//! A rule looks at the length of a halt only through comparisons: is it within the window, within the
//! maximum? So of all lengths finitely many classes exist in each state, and one length of each class
//! represents all. From the first state on every pair of states that the two settings can get into by the
//! same halts is visited, breadth first. If a pair is found in which the windows differ, the halts that lead
//! there are the shortest such example. If none is left to visit, the settings are the same for every
//! sequence of halts, of any length.
//!
//! # Limits
//! Of QEMU 11.1 the state is a smoothed time, of which there are too many to visit: unless the settings are
//! the same once stored, an example is searched for; if none is found, the question is undecided. The idle
//! driver learns, and is undecided too.

use dwell_policy::param::Setting;
use dwell_policy::{Layer, Owner, guest, host, iothread};
use serde::Serialize;
use std::collections::{HashMap, VecDeque};

/// Whether two settings always give the same windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Sameness {
    /// After every sequence of halts.
    Same {
        /// The pairs of states that there are.
        states: usize,
    },
    /// Not after this one.
    Differ {
        /// The halts \[ns\]; for I/O threads the waits.
        halts_ns: Vec<u64>,
        /// The window of the first setting after them \[ns\].
        first_ns: u64,
        /// That of the second \[ns\].
        second_ns: u64,
        /// The release since which the rule is by which they are, where the kernel may have others, and they differ
        /// elsewhere.
        #[serde(skip_serializing_if = "Option::is_none")]
        by_rule_since: Option<&'static str>,
    },
    /// It depends on which of several rules the kernel has, and that is not known.
    NotKnown {
        /// The releases since which the rules are by which they are the same.
        same_since: Vec<&'static str>,
        /// The releases since which the rules are by which they are not, or it could not be decided.
        other_since: Vec<&'static str>,
    },
    /// It could not be decided.
    Undecided {
        /// The pairs of states that were visited.
        states: usize,
    },
}

impl Sameness {
    /// Whether they are the same after every sequence of halts.
    pub const fn is_same(&self) -> bool {
        matches!(self, Sameness::Same { .. })
    }
}

/// The most pairs of states that are visited.
const MOST_STATES: usize = 100_000;

/// Compares two settings of one layer and version. Of timers, which have no windows, only equal ones are the same.
pub fn compare<O: Copy + Into<Owner> + PartialEq>(a: &Setting<O>, b: &Setting<O>) -> Sameness {
    if a == b {
        return Sameness::Same { states: 1 };
    }
    let rules =
        |setting: &Setting<O>| setting.of_layer().map_or_else(Vec::new, |setting| Rule::all(&setting));
    let pairs: Vec<(&str, Rule, Rule)> =
        rules(a).into_iter().zip(rules(b)).map(|((since, a), (_, b))| (since, a, b)).collect();
    let verdict = |(since, a, b): &(&'static str, Rule, Rule)| {
        (*since, if a == b { Sameness::Same { states: 1 } } else { visit(a, b) })
    };
    let by_rule: Vec<(&str, Sameness)> = pairs.iter().map(verdict).collect();
    let since = |same: bool| -> Vec<&str> {
        let of = by_rule.iter().filter(|(_, verdict)| verdict.is_same() == same);
        of.map(|(since, _)| *since).collect()
    };
    match (by_rule.first(), since(true), since(false)) {
        (None, ..) => Sameness::Undecided { states: 0 },
        (Some((_, first)), _, other) if other.is_empty() => first.clone(),
        (Some(_), same, _) if same.is_empty() => not_same(&by_rule, &pairs),
        (_, same_since, other_since) => Sameness::NotKnown { same_since, other_since },
    }
}

/// How settings differ that are the same by no rule: by an example of all rules, if one of the shortest is.
fn not_same(by_rule: &[(&'static str, Sameness)], pairs: &[(&'static str, Rule, Rule)]) -> Sameness {
    let undecided = by_rule.iter().find(|(_, verdict)| matches!(verdict, Sameness::Undecided { .. }));
    let examples = |(_, verdict): &&(&str, Sameness)| match verdict {
        Sameness::Differ { halts_ns, first_ns, second_ns, .. } => pairs.iter().all(|(_, a, b)| {
            let after = |rule: &Rule| {
                rule.window(halts_ns.iter().fold((0, 0), |state, halt| rule.after(state, *halt)))
            };
            (after(a), after(b)) == (*first_ns, *second_ns)
        }),
        _ => false,
    };
    if let Some((_, verdict)) = undecided.or_else(|| by_rule.iter().find(examples)) {
        return verdict.clone();
    }
    match by_rule.first().cloned() {
        Some((since, Sameness::Differ { halts_ns, first_ns, second_ns, .. })) => {
            Sameness::Differ { halts_ns, first_ns, second_ns, by_rule_since: Some(since) }
        }
        _ => Sameness::Undecided { states: 0 },
    }
}

/// A rule, with the release since which it is.
type Named = (&'static str, Rule);

/// A rule with its parameters and its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Host(host::Revision, host::Knobs),
    Guest(guest::Revision, guest::Params),
    Classic(iothread::Params),
    Weighted(iothread::Params),
}

/// The state of a rule: a window, and in the weighted rule also a smoothed time.
type State = (u64, u64);

impl Rule {
    /// Those that the kernel of a setting may have.
    fn all(setting: &Setting) -> Vec<Named> {
        let version = setting.version();
        match setting.layer() {
            Layer::Host => {
                let knobs = host::Knobs::of(host::Params::from(setting));
                let named = |rule: host::Revision| (rule.since_release(), Rule::Host(rule, knobs));
                host::Revision::rules(version)
                    .map_or_else(|_| vec![], |rules| rules.iter().map(named).collect())
            }
            Layer::Guest => {
                let params = guest::Params::from(setting);
                let named = |rule: guest::Revision| (rule.since_release(), Rule::Guest(rule, params));
                guest::Revision::rules(version)
                    .map_or_else(|_| vec![], |rules| rules.iter().map(named).collect())
            }
            Layer::Iothread => {
                let Ok(revision) = iothread::Revision::of(version) else { return vec![] };
                let params = iothread::Params::from(setting).stored(revision);
                vec![match revision {
                    iothread::Revision::Weighted => ("11.1", Rule::Weighted(params)),
                    _ => ("2.9", Rule::Classic(params)),
                }]
            }
            Layer::Driver => vec![],
        }
    }

    /// The window with which the next halt begins \[ns\].
    fn window(&self, (remembered, _): State) -> u64 {
        match self {
            Rule::Host(revision, knobs) => {
                u64::from(host::Vcpu::with_halt_poll_ns(*revision, narrow(remembered)).enter(knobs))
            }
            Rule::Guest(..) | Rule::Weighted(_) => remembered,
            Rule::Classic(params) if params.poll_max_ns == 0 => 0,
            Rule::Classic(_) => remembered,
        }
    }

    /// What it remembers after a halt of this length.
    fn after(&self, (remembered, smoothed): State, halt_ns: u64) -> State {
        match self {
            Rule::Host(revision, knobs) => {
                let mut vcpu = host::Vcpu::with_halt_poll_ns(*revision, narrow(remembered));
                vcpu.enter(knobs);
                vcpu.decide(knobs, halt_ns, true);
                (u64::from(vcpu.halt_poll_ns()), 0)
            }
            Rule::Guest(revision, params) => {
                let mut cpu = guest::Cpu::with_state(*revision, remembered, guest::State::Halt);
                cpu.reflect(params, guest::State::Halt, halt_ns);
                (cpu.poll_limit_ns(), 0)
            }
            Rule::Classic(params) if params.poll_max_ns == 0 => (0, 0),
            Rule::Classic(params) => {
                let change = iothread::classic(signed(remembered), signed(halt_ns), params);
                (change.map_or(remembered, |change| change.new.cast_unsigned()), 0)
            }
            Rule::Weighted(params) => {
                let smoothed = iothread::weighted(signed(smoothed), signed(halt_ns), true, params);
                let change = iothread::adjust(signed(remembered), smoothed, params);
                let next = change.map_or(remembered, |change| change.new.cast_unsigned());
                (next, smoothed.cast_unsigned())
            }
        }
    }

    /// The longest window \[ns\].
    fn max_ns(&self) -> u64 {
        match self {
            Rule::Host(revision, knobs) => u64::from(knobs.max_ns(*revision)),
            Rule::Guest(_, params) => u64::from(params.guest_halt_poll_ns),
            Rule::Classic(params) | Rule::Weighted(params) => params.poll_max_ns.max(0).cast_unsigned(),
        }
    }
}

/// Windows of the kernel are 32 bits wide.
fn narrow(ns: u64) -> u32 {
    u32::try_from(ns).unwrap_or(u32::MAX)
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// One length of each class: at every value that something is compared with, right beside it, and beside it
/// in the whole microseconds in which 5.4 measures; and one beyond all.
fn lengths(thresholds: &[u64]) -> Vec<u64> {
    let beside = |t: &u64| {
        let up = t.div_ceil(1_000).saturating_mul(1_000);
        [t.saturating_sub(1), *t, t.saturating_add(1), t.saturating_sub(1_000), up, up.saturating_add(1_000)]
    };
    let mut lengths: Vec<u64> = thresholds.iter().flat_map(beside).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    lengths.extend([0, 1, 1_000, longest.saturating_add(1_000_000_000)]);
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// Where a pair of states came from: the pair before and the halt between.
type Origin = Option<((State, State), u64)>;

fn visit(a: &Rule, b: &Rule) -> Sameness {
    let start = ((0, 0), (0, 0));
    let mut origins: HashMap<(State, State), Origin> = HashMap::from([(start, None)]);
    let mut waiting = VecDeque::from([start]);
    while let Some(pair) = waiting.pop_front() {
        let (first_ns, second_ns) = (a.window(pair.0), b.window(pair.1));
        if first_ns != second_ns {
            return Sameness::Differ {
                halts_ns: halts(&origins, pair),
                first_ns,
                second_ns,
                by_rule_since: None,
            };
        }
        if origins.len() >= MOST_STATES {
            return Sameness::Undecided { states: origins.len() };
        }
        let (p, q) = pair;
        for length in lengths(&[p.0, q.0, p.1, q.1, first_ns, a.max_ns(), b.max_ns()]) {
            let next = (a.after(p, length), b.after(q, length));
            origins.entry(next).or_insert_with(|| {
                waiting.push_back(next);
                Some((pair, length))
            });
        }
    }
    Sameness::Same { states: origins.len() }
}

/// The halts that lead to a pair of states.
fn halts(origins: &HashMap<(State, State), Origin>, pair: (State, State)) -> Vec<u64> {
    let step = |at: &((State, State), u64)| origins.get(&at.0).copied().flatten();
    let back = std::iter::successors(origins.get(&pair).copied().flatten(), step);
    let mut halts: Vec<u64> = back.map(|(_, length)| length).collect();
    halts.reverse();
    halts
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::Version;
    use proptest::prelude::*;

    fn setting(layer: Layer, version: &str, values: &[(&str, i64)]) -> Setting {
        let mut setting = Setting::defaults(layer, Version::parse(version).unwrap());
        values.iter().for_each(|(name, value)| setting.set(name, *value).unwrap());
        setting
    }

    fn is_same(layer: Layer, version: &str, a: &[(&str, i64)], b: &[(&str, i64)]) -> bool {
        compare(&setting(layer, version, a), &setting(layer, version, b)).is_same()
    }

    #[test]
    fn saps_grow_start_of_24_ms_is_that_of_2_4_ms() {
        for version in ["5.4", "5.10", "6.1", "6.6", "6.18", "7.2"] {
            let with = |start| [("guest_halt_poll_ns", 2_400_000), ("guest_halt_poll_grow_start", start)];
            assert!(is_same(Layer::Guest, version, &with(2_400_000), &with(24_000_000)), "{version}");
            assert!(!is_same(Layer::Guest, version, &with(2_400_000), &with(2_399_999)), "{version}");
        }
    }

    /// The haltpoll of RHEL 9 is that of 5.14, or drops a window below `guest_halt_poll_grow_start` as since 6.9.
    #[test]
    fn an_example_names_its_rule_unless_it_is_one_of_every_rule() {
        let differ = |a: i64, b: i64| {
            let of = |shrink| setting(Layer::Guest, "5.14.0-284.el9", &[("guest_halt_poll_shrink", shrink)]);
            compare(&of(a), &of(b))
        };
        let Sameness::Differ { halts_ns, by_rule_since, .. } = differ(3, 4) else { panic!() };
        assert_eq!((halts_ns.len(), by_rule_since), (4, None));
        let Sameness::Differ { by_rule_since, .. } = differ(1, 2) else { panic!() };
        assert_eq!(by_rule_since, Some("5.11"));
        let Sameness::Differ { by_rule_since, .. } = differ(0, 1) else { panic!() };
        assert_eq!(by_rule_since, None);
    }

    #[test]
    fn settings_that_never_poll_are_found_by_the_models() {
        let host = |a: &[(&str, i64)], b: &[(&str, i64)]| is_same(Layer::Host, "6.18", a, b);
        assert!(host(&[("halt_poll_ns", 0)], &[("halt_poll_ns", 0), ("halt_poll_ns_shrink", 7)]));
        assert!(host(&[("halt_poll_ns_grow_start", 0)], &[("halt_poll_ns", 0)]));
        assert!(host(&[("halt_poll_ns_grow", 0)], &[("halt_poll_ns", 0)]));
        assert!(!host(&[("halt_poll_ns_shrink", 0)], &[("halt_poll_ns_shrink", 1)]));
        // Until 6.8 what shrank below grow_start stayed; since 6.9 it drops to zero.
        let guest = |version| {
            is_same(
                Layer::Guest,
                version,
                &[("guest_halt_poll_grow_start", 200_000)],
                &[("guest_halt_poll_grow_start", 400_000)],
            )
        };
        assert!(guest("6.6") && guest("6.9"));
        let never = |version| {
            is_same(
                Layer::Guest,
                version,
                &[("guest_halt_poll_ns", 0)],
                &[("guest_halt_poll_ns", 0), ("guest_halt_poll_grow", 9)],
            )
        };
        assert!(never("6.18"));
    }

    #[test]
    fn zeros_of_qemu_are_its_defaults() {
        let same = |version, name: &str, a, b| is_same(Layer::Iothread, version, &[(name, a)], &[(name, b)]);
        assert!(same("7.2", "poll-grow", 0, 2) && same("10.0", "poll-grow", 0, 2));
        assert!(!same("7.2", "poll-shrink", 0, 2) && same("11.1", "poll-shrink", 0, 2));
        assert!(same("11.1", "poll-weight", 0, 3) && !same("11.1", "poll-weight", 3, 4));
    }

    #[test]
    fn the_example_is_one() {
        let (a, b) =
            (setting(Layer::Host, "6.18", &[]), setting(Layer::Host, "6.18", &[("halt_poll_ns_grow", 3)]));
        let Sameness::Differ { halts_ns, first_ns, second_ns, .. } = compare(&a, &b) else {
            panic!("they differ")
        };
        let play = |setting: &Setting| {
            let (_, rule) = Rule::all(setting)[0];
            let last = halts_ns.iter().fold((0, 0), |state, halt| rule.after(state, *halt));
            rule.window(last)
        };
        assert_eq!((play(&a), play(&b)), (first_ns, second_ns));
        assert_eq!((first_ns, second_ns), (20_000, 30_000));
    }

    proptest! {
        /// The oracle: what is called the same gives the same windows after random halts of all sizes.
        #[test]
        fn what_is_called_the_same_never_differs_on_random_halts(
            layer in prop::sample::select(vec![Layer::Host, Layer::Guest, Layer::Iothread]),
            release in 0usize..4,
            a in prop::collection::vec(prop::sample::select(vec![0i64, 1, 2, 3, 1_000, 4_000, 50_000]), 5),
            change in (0usize..5, prop::sample::select(vec![0i64, 1, 2, 4, 50_000, 60_000])),
            halts in prop::collection::vec(prop_oneof![0u64..10, 0u64..5_000, 0u64..200_000], 1..60),
        ) {
            let version = if layer == Layer::Iothread { ["7.2", "10.0", "11.0", "11.1"] } else { ["5.4", "5.10", "6.6", "6.18"] }[release];
            let mut first = setting(layer, version, &[]);
            let names: Vec<_> = first.iter().map(|(param, _)| param).collect();
            for (param, value) in names.iter().zip(&a) {
                first.set(param.name, (*value).min(param.max)).unwrap();
            }
            let mut second = first;
            if let Some(param) = names.get(change.0) {
                second.set(param.name, change.1.min(param.max)).unwrap();
            }
            let ((_, p), (_, q)) = (Rule::all(&first)[0], Rule::all(&second)[0]);
            if compare(&first, &second).is_same() {
                let (mut x, mut y) = ((0, 0), (0, 0));
                for halt in halts {
                    prop_assert_eq!(p.window(x), q.window(y));
                    (x, y) = (p.after(x, halt), q.after(y, halt));
                }
                prop_assert_eq!(p.window(x), q.window(y));
            }
        }
    }
}
