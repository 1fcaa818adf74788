use super::*;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

const BOOTSTRAP: Bootstrap = Bootstrap { confidence: 0.95, resamples: 2_000, seed: 7 };

fn normals(random: &mut ChaCha8Rng, n: usize) -> Vec<f64> {
    (0..n).map(|_| StandardNormal.sample(random)).collect()
}

fn student_interval(values: &[f64], confidence: f64) -> Interval {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let t = StudentsT::new(0.0, 1.0, n - 1.0).unwrap().inverse_cdf(f64::midpoint(1.0, confidence));
    let half = t * deviation / n.sqrt();
    Interval { low: mean - half, value: mean, high: mean + half }
}

/// Of 40 normal values, the interval of the mean is Student's to a tenth of its width.
#[test]
fn the_mean_of_normal_values_has_the_interval_of_the_textbook() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for confidence in [0.8, 0.95, 0.99] {
        let values = normals(&mut random, 40);
        let ours = Bootstrap { confidence, resamples: 20_000, ..BOOTSTRAP }.mean(&values).unwrap();
        let textbook = student_interval(&values, confidence);
        let width = textbook.high - textbook.low;
        assert!((ours.value - textbook.value).abs() < 1e-12);
        assert!((ours.low - textbook.low).abs() < 0.1 * width, "{ours:?} {textbook:?}");
        assert!((ours.high - textbook.high).abs() < 0.1 * width, "{ours:?} {textbook:?}");
    }
}

/// How many of 1000 intervals hold the truth.
fn coverage(
    draw: impl Fn(&mut ChaCha8Rng) -> Vec<f64>,
    interval: impl Fn(&[f64]) -> Interval,
    truth: f64,
) -> u32 {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    (0..1_000).map(|_| u32::from(interval(&draw(&mut random)).contains(truth))).sum()
}

/// 95 % of the intervals hold the truth: of 1000, 950 with a standard error of 7. The percentile interval of
/// the median of few values can only be one between two of them, and is wider than it says.
#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let mean = |values: &[f64]| BOOTSTRAP.mean(values).unwrap();
    let median = |values: &[f64]| BOOTSTRAP.median(values).unwrap();
    let normal = |n| move |random: &mut ChaCha8Rng| normals(random, n);
    let skewed = |n| {
        move |random: &mut ChaCha8Rng| {
            normals(random, n).into_iter().map(|x| (0.5 * x).exp()).collect::<Vec<_>>()
        }
    };
    let mean_of_skewed = (0.125f64).exp();
    for (what, held, wanted) in [
        ("mean of 8 normals", coverage(normal(8), mean, 0.0), 930..=970),
        ("mean of 30 normals", coverage(normal(30), mean, 0.0), 930..=970),
        ("mean of 30 lognormals", coverage(skewed(30), mean, mean_of_skewed), 930..=970),
        ("median of 8 normals", coverage(normal(8), median, 0.0), 930..=1_000),
        ("median of 30 lognormals", coverage(skewed(30), median, 1.0), 930..=970),
    ] {
        assert!(wanted.contains(&held), "{what}: {held} of 1000");
    }
}

/// Differences of two arms that do the same: in one round of ten an arm has a block that costs ten times as much, or a burst
/// of load is in one block and not in the next. Intervals of resamples exclude 0 up to three times as often as they say.
#[test]
fn differences_without_an_effect_are_found_none_whatever_a_single_round_is() {
    let paired = |values: &[f64]| BOOTSTRAP.paired(values).unwrap();
    let rare = |n: usize, size: f64| {
        move |random: &mut ChaCha8Rng| {
            let hit = normals(random, 2 * n);
            let one =
                |at: usize| if hit[at] > 1.28 { size * hit[n + at].signum() } else { 0.02 * hit[n + at] };
            (0..n).map(one).collect::<Vec<_>>()
        }
    };
    let normal = |n| move |random: &mut ChaCha8Rng| normals(random, n);
    for (what, held, wanted) in [
        // The steps of so few rounds are coarse: of 64 gaps 2 are left out.
        ("6 normals", coverage(normal(6), paired, 0.0), 955..=985),
        ("10 normals", coverage(normal(10), paired, 0.0), 930..=970),
        ("30 normals", coverage(normal(30), paired, 0.0), 930..=970),
        ("6 with a spike", coverage(rare(6, 1.7), paired, 0.0), 955..=985),
        ("10 with a spike", coverage(rare(10, 1.7), paired, 0.0), 930..=970),
        ("10 with a burst", coverage(rare(10, 6.0), paired, 0.0), 930..=970),
        ("30 with spikes", coverage(rare(30, 1.7), paired, 0.0), 930..=970),
    ] {
        assert!(wanted.contains(&held), "{what}: {held} of 1000");
    }
    let resampled = coverage(rare(10, 1.7), |values| BOOTSTRAP.mean(values).unwrap(), 0.0);
    assert!(resampled < 900, "{resampled}");
}

/// Where neighbouring blocks of a recording are alike, intervals that take them for independent hold the truth in 73 of 100
/// cases at a correlation of 0.5, and in 51 at 0.75.
#[test]
fn intervals_of_blocks_are_wider_where_neighbours_are_alike() {
    let alike = |next: f64| {
        move |random: &mut ChaCha8Rng| {
            let mut last = 0.0;
            let step = |(number, noise): (usize, f64)| {
                let scale = if number == 0 { 1.0 } else { (1.0 - next * next).sqrt() };
                last = next * last + scale * noise;
                last
            };
            normals(random, BLOCKS).into_iter().enumerate().map(step).collect::<Vec<_>>()
        }
    };
    let share = |values: &[f64], draw: &Draw| {
        Some(draw.picks.iter().map(|&pick| values[pick]).sum::<f64>() / draw.picks.len() as f64)
    };
    let one = |values: &[f64]| BOOTSTRAP.blocks(values.len(), |draw| share(values, draw)).unwrap();
    // The second sample hardly matters.
    let two = |values: &[f64]| {
        let both = |a: &Draw, b: &Draw| Some(share(values, a)? + 1e-3 * share(values, b)?);
        BOOTSTRAP.two_samples([values.len(), values.len()], both).unwrap()
    };
    for (next, wanted) in [(0.0, 920..=965), (0.3, 900..=950), (0.5, 890..=945), (0.75, 800..=900)] {
        let held = [coverage(alike(next), one, 0.0), coverage(alike(next), two, 0.0)];
        assert!(held.iter().all(|held| wanted.contains(held)), "{next}: {held:?} of 1000");
    }
}

/// Of few rounds all subsets are taken: the limits can be written down.
#[test]
fn limits_of_few_differences_are_means_of_subsets() {
    let of = |values: &[f64]| BOOTSTRAP.paired(values);
    assert_eq!(of(&[]), None);
    assert_eq!(
        of(&[1.0, 2.0, 3.0, 4.0, 5.0]),
        Some(Interval::unknown(3.0)),
        "of 32 gaps none may be left out"
    );
    let six = of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    assert_eq!(six, Interval { low: 1.0, value: 3.5, high: 6.0 });
    assert_eq!(of(&[0.0; 8]), Some(Interval { low: 0.0, value: 0.0, high: 0.0 }));
    // More than 64 are drawn, as all are too many.
    let many = of(&(0..100).map(f64::from).collect::<Vec<_>>()).unwrap();
    assert!(many.low > 40.0 && many.low < many.value && many.high < 59.0, "{many:?}");
}

#[test]
fn little_is_known_of_one_round_and_nothing_of_none() {
    assert_eq!(BOOTSTRAP.mean(&[]), None);
    assert_eq!(BOOTSTRAP.median(&[]), None);
    assert_eq!(BOOTSTRAP.mean(&[3.0]), Some(Interval::unknown(3.0)));
    assert_eq!(BOOTSTRAP.mean(&[3.0; 10]), Some(Interval { low: 3.0, value: 3.0, high: 3.0 }));
    assert_eq!(BOOTSTRAP.median(&[4.0, 1.0, 2.0, 3.0]).unwrap().value, 2.5);
}

/// The correction of BCa for a statistic that is skewed: both limits move towards the long tail (Efron and Tibshirani,
/// chapter 14).
#[test]
fn the_interval_of_a_skewed_mean_reaches_farther_into_the_tail() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let values: Vec<f64> = normals(&mut random, 30).into_iter().map(f64::exp).collect();
    let mean = |draw: &Draw| {
        Some(draw.picks.iter().map(|pick| values[*pick]).sum::<f64>() / draw.picks.len() as f64)
    };
    let percentile = BOOTSTRAP.percentile(values.len(), mean).unwrap();
    let corrected = BOOTSTRAP.bca(values.len(), mean).unwrap();
    assert!(
        corrected.low > percentile.low && corrected.high > percentile.high,
        "{percentile:?} {corrected:?}"
    );
}

/// The intervals that `dwell tune` and `dwell report` print: a fixed seed, and the draws of one generator in
/// order, so that the same recording gives the same digits with every release.
#[test]
fn intervals_of_a_recording_are_the_same_for_ever() {
    let cost: Vec<(f64, f64)> =
        (0..32).map(|block| (1_000.0 + f64::from(block % 7), 900.0 + f64::from(block * 13 % 32))).collect();
    // Neighbours are not alike: nothing is wider.
    let gain = |draw: &Draw| {
        let sum = |(a, b): (f64, f64), pick: &usize| (a + cost[*pick].0, b + cost[*pick].1);
        let (before, after) = draw.picks.iter().fold((0.0, 0.0), sum);
        Some((before - after) / before)
    };
    let interval = Bootstrap::RECORDING.blocks(cost.len(), gain).unwrap();
    // As a loop over the generator gives them, written out.
    let mut random = SplitMix64::new(0x6477_656c_6c21);
    let mut drawn: Vec<f64> = (0..2_000)
        .map(|_| {
            let picks: Vec<usize> = (0..32).map(|_| usize::try_from(random.below(32)).unwrap()).collect();
            let (before, after) = picks.iter().fold((0.0, 0.0), |(a, b), p| (a + cost[*p].0, b + cost[*p].1));
            (before - after) / before
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    assert_eq!((interval.low, interval.high), (drawn[50], drawn[1_949]));
    let ratio = |a: &Draw, b: &Draw| {
        let sum =
            |draw: &Draw, of: fn(&(f64, f64)) -> f64| draw.picks.iter().map(|p| of(&cost[*p])).sum::<f64>();
        Some(sum(b, |c| c.1) / sum(a, |c| c.0))
    };
    let ratio = Bootstrap::RECORDING.two_samples([32, 32], ratio).unwrap();
    assert!(ratio.low < ratio.value && ratio.value < ratio.high, "{ratio:?}");
}

#[test]
fn a_statistic_without_a_value_has_no_interval() {
    assert_eq!(Bootstrap::RECORDING.blocks(4, |_| None), None);
    // Known of all units, of no resample but that: the limits are the value.
    let only_all = |draw: &Draw| draw.weights.iter().all(|weight| *weight == 1).then_some(2.0);
    let interval = Bootstrap::RECORDING.blocks(32, only_all).unwrap();
    assert_eq!(interval, Interval { low: 2.0, value: 2.0, high: 2.0 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn limits_enclose_the_estimate_and_keep_to_the_range_and_seed(
        values in prop::collection::vec(-1e6f64..1e6, 2..30),
        seed: u64,
    ) {
        let bootstrap = Bootstrap { resamples: 200, seed, ..BOOTSTRAP };
        for interval in [bootstrap.mean(&values).unwrap(), bootstrap.median(&values).unwrap()] {
            prop_assert!(interval.low <= interval.value && interval.value <= interval.high);
            let slack = 1e-9 * values.iter().fold(1.0f64, |most, x| most.max(x.abs()));
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(l, m), x| (l.min(*x), m.max(*x)));
            prop_assert!(interval.low >= least - slack && interval.high <= most + slack);
        }
        prop_assert_eq!(bootstrap.mean(&values), bootstrap.mean(&values));
    }

    #[test]
    fn the_weighted_median_is_that_of_the_values_written_out(
        weighted in prop::collection::vec((0u32..50, 0u32..3), 1..20),
    ) {
        let (values, weights): (Vec<f64>, Vec<u32>) =
            weighted.into_iter().map(|(value, weight)| (f64::from(value), weight)).unzip();
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        let mut all: Vec<f64> = values.iter().zip(&weights)
            .flat_map(|(value, weight)| std::iter::repeat_n(*value, *weight as usize)).collect();
        all.sort_by(f64::total_cmp);
        let expected = (!all.is_empty()).then(|| f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2]));
        prop_assert_eq!(weighted_median(&values, &order, &weights), expected);
    }
}
