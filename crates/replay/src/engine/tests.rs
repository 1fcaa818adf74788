//! The engine against the scalar replay, every count of every setting, on every instruction set of this CPU.

use super::Isa;
use crate::source::{Memory, Source};
use crate::{Bank, Counts, Rule};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use proptest::prelude::*;

/// One of each revision of the host.
const HOSTS: [&str; 9] = ["5.4.0", "5.4", "5.8", "5.10", "5.13", "5.15", "5.17", "6.1", "6.18"];
/// One of each revision of the guest.
const GUESTS: [&str; 6] = ["5.4", "5.5", "5.11", "6.0", "6.9", "7.2"];

fn setting(layer: Layer, version: &str, values: &[(&str, i64)]) -> Rule {
    let mut setting = Setting::defaults(layer, Version::parse(version).unwrap());
    for (name, value) in values {
        setting.set(name, *value).unwrap();
    }
    Rule::Layer(setting)
}

fn host(version: &str, [max, grow, start, shrink]: [u32; 4]) -> Rule {
    let values = [
        ("halt_poll_ns", max.into()),
        ("halt_poll_ns_grow", grow.into()),
        ("halt_poll_ns_grow_start", start.into()),
        ("halt_poll_ns_shrink", shrink.into()),
    ];
    setting(Layer::Host, version, &values)
}

fn guest(version: &str, [max, grow, start, shrink]: [u32; 4], allow_shrink: bool) -> Rule {
    let values = [
        ("guest_halt_poll_ns", max.into()),
        ("guest_halt_poll_grow", grow.into()),
        ("guest_halt_poll_grow_start", start.into()),
        ("guest_halt_poll_shrink", shrink.into()),
        ("guest_halt_poll_allow_shrink", allow_shrink.into()),
    ];
    setting(Layer::Guest, version, &values)
}

/// Counts of two parts of the episodes, cut anywhere.
fn halves(mut bank: Bank, episodes: &Memory, cuts: &[u64]) -> Vec<Vec<Counts>> {
    let mut from = 0;
    let mut counts = vec![];
    for &to in cuts.iter().chain([&u64::MAX]) {
        episodes.visit(from..to, &mut |batch| bank.feed(batch)).unwrap();
        counts.push(bank.take());
        from = to;
    }
    counts
}

fn same_as_scalar(rules: &[Rule], episodes: &Memory, cuts: &[u64]) {
    let expected = halves(Bank::scalar(rules, 0).unwrap(), episodes, cuts);
    for &isa in Isa::available() {
        let counts = halves(Bank::with_isa(rules, 0, Some(isa)).unwrap(), episodes, cuts);
        for (part, (counts, expected)) in counts.iter().zip(&expected).enumerate() {
            for ((rule, counts), expected) in rules.iter().zip(counts).zip(expected) {
                assert_eq!(counts, expected, "{} differs in part {part}: {rule:?}", isa.name());
            }
        }
    }
}

/// All settings of small parameters in all revisions, through all short streams of small lengths that a
/// generator of all words of an alphabet gives.
#[test]
fn every_small_setting_agrees_on_every_short_stream() {
    let small = [0, 1, 2, 3, 5];
    let mut rules = vec![];
    for max in [0, 1, 2, 5, 6] {
        for grow in [0, 1, 2, 3] {
            for start in [0, 1, 2, 6, 7] {
                for shrink in small {
                    let params = [max, grow, start, shrink];
                    rules.extend(["5.4.0", "6.18"].map(|version| host(version, params)));
                    rules.extend(["5.5", "6.9"].map(|version| guest(version, params, true)));
                    rules.push(guest("6.9", params, false));
                }
            }
        }
    }
    // Each idler has the lengths of one word over the alphabet; states of all words at once would take 11 GB.
    let alphabet: [u64; 8] = [0, 1, 2, 5, 6, 7, 12, 13];
    let words = 8u64.pow(4);
    let letter = |word: u64, i: u32| alphabet[usize::try_from(word / 8u64.pow(i) % 8).unwrap()];
    for first in (0..words).step_by(64) {
        let episodes = (0..64).flat_map(|word| (0..4).map(move |i| (word, i)));
        let memory =
            Memory::new(episodes.map(|(word, i)| (usize::try_from(word).unwrap(), letter(first + word, i))));
        same_as_scalar(&rules, &memory, &[]);
    }
    // And one idler through all of them, also with so few settings of a maximum that they go with those of others.
    let one: Vec<u64> = (0..words).flat_map(|word| (0..4).map(move |i| letter(word, i))).collect();
    let late = one.iter().enumerate().map(|(i, &idle)| (0, idle, Some([0, 1, 5, 3][i % 4]), None));
    let late = Memory::late(late);
    same_as_scalar(&rules, &late, &[7_777]);
    // Each step with a third of them.
    for step in 1..4 {
        let third: Vec<Rule> = rules.iter().copied().skip(step - 1).step_by(3).collect();
        let step = Nanos(step as u64);
        same_as_scalar(&third, &late.clone().with_idle_loop(step, Nanos::ZERO), &[7_777]);
        same_as_scalar(&third, &late.clone().with_idle_loop(step, step), &[7_777]);
    }
    same_as_scalar(&rules, &late.clone().with_idle_loop(Nanos::ZERO, Nanos(3)), &[7_777]);
    let one = Memory::of_one(&one);
    same_as_scalar(&rules, &one, &[7_777]);
    for first in (0..rules.len() / 8).step_by(3) {
        let few: Vec<Rule> = rules.iter().copied().skip(first).step_by(rules.len() / 8).collect();
        same_as_scalar(&few, &one, &[]);
    }
}

/// The bundled recordings' kind of parameters, with all revisions, through streams longer than a segment.
#[test]
fn grids_agree_on_long_streams_of_every_kind() {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let edges = [0, 1, 9_999, 10_000, 10_001, 199_999, 200_000, 200_001, 400_000, 400_001, 1 << 31, u64::MAX];
    let mut episodes = vec![];
    for i in 0..30_000u64 {
        let r = next();
        let idle = match i / 5_000 {
            0 => r % 300_000,
            1 => r % 9_000 + 1,
            2 => r % 5_000_000 + 1,
            3 => edges[usize::try_from(r % 12).unwrap()],
            4 => {
                if i % 100 < 90 {
                    r % 9_000 + 1
                } else {
                    1_000_000 + r % 3
                }
            }
            _ => {
                if i % 100 < 10 {
                    r % 9_000
                } else {
                    1_000_000 + r % 3
                }
            }
        };
        episodes.push((usize::from(next() % 3 == 0), idle));
    }
    let mut rules =
        vec![Rule::NEVER, Rule::ALWAYS, Rule::ski_rental(Nanos(5_000)), Rule::fixed(Nanos(u64::MAX - 1))];
    for max in [10_000, 200_000, 3_000_000] {
        for grow in [1, 2, 3, 16] {
            for start in [1, 5_000, 10_000, 200_001] {
                for shrink in [0, 1, 2, 3, 7] {
                    let params = [max, grow, start, shrink];
                    rules.extend(["5.13", "6.18"].map(|version| host(version, params)));
                    rules.extend(["5.4", "6.0", "7.2"].map(|version| guest(version, params, true)));
                    rules.push(guest("7.2", params, false));
                }
            }
        }
    }
    let cuts = [3, 11_111, 11_112, 20_000];
    let plain = Memory::new(episodes.iter().copied());
    same_as_scalar(&rules, &plain, &cuts);
    same_as_scalar(&rules, &plain.with_idle_loop(Nanos(4_950), Nanos::ZERO), &cuts);
    // Latencies of a few us, some far longer, and none in a part.
    let late = episodes.into_iter().enumerate().map(|(place, (idler, idle))| {
        let latency = match next() % 50 {
            0 => next() % 5_000_000,
            1 => 0,
            _ => 9_000 + next() % 9_000,
        };
        (idler, idle, (place < 26_000).then_some(latency), None)
    });
    let late = Memory::late(late);
    same_as_scalar(&rules, &late, &cuts);
    same_as_scalar(&rules, &late.clone().with_idle_loop(Nanos::ZERO, Nanos(6_000)), &cuts);
    same_as_scalar(&rules, &late.with_idle_loop(Nanos(4_950), Nanos(9_000)), &cuts);
}

/// Values that a parameter of 32 bits may have, the odd ones above all.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        prop::sample::select(vec![
            0,
            1,
            2,
            3,
            10,
            16,
            255,
            1_000,
            1_001,
            10_000,
            65_536,
            199_999,
            200_000,
            200_001,
            (1 << 27) - (1 << 20) - 1,
            (1 << 27) - (1 << 20),
            1 << 27,
            1 << 30,
            i32::MAX.cast_unsigned(),
            1 << 31,
            u32::MAX - 1,
            u32::MAX,
        ]),
        0u32..20,
        0u32..500_000,
        any::<u32>(),
    ]
}

fn factor() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..6, 1 => 0u32..70, 1 => number()]
}

/// Settings around a few maxima, so that some share one and others do not.
fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let params = (0usize..3, factor(), number(), factor(), any::<prop::sample::Index>(), 0u8..4);
    (prop::collection::vec(number(), 3), prop::collection::vec(params, 1..150)).prop_map(|(maxima, all)| {
        let rule = |(max, grow, start, shrink, version, kind): (_, _, _, _, prop::sample::Index, _)| {
            let max: u32 = maxima[max];
            let start = if kind == 3 { start % max.max(1).saturating_add(2).max(1) } else { start };
            let params = [max, grow, start, shrink];
            match kind {
                0 => guest(GUESTS[version.index(GUESTS.len())], params, true),
                1 => guest(GUESTS[version.index(GUESTS.len())], params, false),
                _ => host(HOSTS[version.index(HOSTS.len())], params),
            }
        };
        let mut rules: Vec<Rule> = all.into_iter().map(rule).collect();
        rules.extend(maxima.iter().map(|&max| Rule::fixed(Nanos(max.into()))));
        rules
    })
}

/// Lengths around the windows that the rules can have, and any others.
fn episodes(rules: &[Rule]) -> impl Strategy<Value = Vec<(usize, u64)>> + use<> {
    let mut near: Vec<u64> = vec![0, 1, 999, 1_000, u32::MAX.into(), i32::MAX as u64, u64::MAX];
    for rule in rules {
        let values: Vec<u64> = rule.values().iter().map(|(_, value)| value.cast_unsigned()).collect();
        near.extend(&values);
        near.extend(values.iter().flat_map(|v| [v * 2, v / 2, v * 4, v + 999]));
        if let [max, _, start, ..] = values[..] {
            near.push(max + start);
        }
    }
    let around = (prop::sample::select(near), -1i64..=1).prop_map(|(at, by)| at.saturating_add_signed(by));
    let length = prop_oneof![
        6 => around,
        2 => 1u64..500_000,
        1 => 0u64..30,
        1 => any::<u64>(),
        1 => Just(0u64),
    ];
    // Some lengths come many times in a row: that is what the engine skips.
    let row = (0usize..3, length, prop_oneof![4 => 1usize..4, 1 => 30usize..200]);
    prop::collection::vec(row, 0..60).prop_map(|rows| {
        rows.into_iter().flat_map(|(idler, idle, times)| std::iter::repeat_n((idler, idle), times)).collect()
    })
}

/// Times alone at, around and far from what they cut short: the length of the episode and the windows.
fn alone(rules: &[Rule]) -> impl Strategy<Value = Option<u64>> + use<> {
    let near: Vec<u64> =
        rules.iter().flat_map(Rule::values).map(|(_, value)| value.cast_unsigned()).collect();
    let around = (prop::sample::select(near), -1i64..=1).prop_map(|(at, by)| at.saturating_add_signed(by));
    prop_oneof![
        2 => Just(None),
        1 => Just(Some(0)),
        3 => around.prop_map(Some),
        1 => (0u64..500_000).prop_map(Some),
        1 => any::<u64>().prop_map(Some),
    ]
}

/// Latencies around what a rule compares, and any others.
fn latency(rules: &[Rule]) -> impl Strategy<Value = u64> + use<> {
    let near: Vec<u64> =
        rules.iter().flat_map(Rule::values).map(|(_, value)| value.cast_unsigned()).collect();
    let around = (prop::sample::select(near), -1i64..=1).prop_map(|(at, by)| at.saturating_add_signed(by));
    prop_oneof![4 => 0u64..20_000, 2 => 0u64..4, 2 => around, 1 => any::<u64>()]
}

/// Times between two looks at the clock, or of an entry into a halt: none, and any.
fn step() -> impl Strategy<Value = Nanos> {
    prop_oneof![2 => Just(0), 1 => 1u64..5, 3 => 1u64..20_000, 1 => any::<u64>()].prop_map(Nanos)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn engine_is_the_scalar_replay_with_latencies(
        (rules, episodes, late, times) in rules().prop_flat_map(|rules| {
            let episodes = episodes(&rules);
            let late = prop::collection::vec(latency(&rules), 1..60);
            let times = prop::collection::vec(alone(&rules), 1..60);
            (Just(rules), episodes, late, times)
        }),
        cuts in prop::collection::vec(0u64..2_000, 0..4),
        // None, some or all episodes are contended; the same latency comes several times in a row, or not.
        (contended, share) in (prop_oneof![Just(0usize), Just(50), Just(1)], 1usize..7),
        (step, halt_entry) in (step(), step()),
    ) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        let all = episodes.into_iter().enumerate().map(|(place, (idler, idle))| {
            let time = times[place % times.len()].filter(|_| contended > 0 && place % contended == 0);
            (idler, idle, Some(late[place / share % late.len()]), time)
        });
        let mut rules = rules;
        rules.extend([Rule::NEVER, Rule::ALWAYS, Rule::fixed(Nanos(20_000))]);
        let memory = Memory::late(all).with_idle_loop(step, halt_entry);
        same_as_scalar(&rules, &memory, &cuts);
    }

    #[test]
    fn engine_is_the_scalar_replay_under_contention(
        (rules, episodes, times) in rules().prop_flat_map(|rules| {
            let episodes = episodes(&rules);
            let times = prop::collection::vec(alone(&rules), 1..60);
            (Just(rules), episodes, times)
        }),
        cuts in prop::collection::vec(0u64..2_000, 0..4),
        // Some streams are contended in a part only, so that both kinds of segment occur.
        (from, share) in (0usize..1_500, 1usize..7),
    ) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        let contended = |(place, (idler, idle)): (usize, (usize, u64))| {
            let time = times[place / share % times.len()].filter(|_| place >= from || place % 50 == 7);
            (idler, idle, time)
        };
        let mut rules = rules;
        rules.extend([Rule::NEVER, Rule::ALWAYS, Rule::ski_rental(Nanos(20_000)), Rule::fixed(Nanos(u64::MAX - 1))]);
        same_as_scalar(&rules, &Memory::contended(episodes.into_iter().enumerate().map(contended)), &cuts);
    }

    #[test]
    fn engine_is_the_scalar_replay(
        (rules, episodes) in rules().prop_flat_map(|rules| { let e = episodes(&rules); (Just(rules), e) }),
        cuts in prop::collection::vec(0u64..2_000, 0..4), (step, halt_entry) in (step(), step()),
    ) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        let memory = Memory::new(episodes).with_idle_loop(step, halt_entry);
        same_as_scalar(&rules, &memory, &cuts);
    }
}
