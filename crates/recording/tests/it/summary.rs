//! Statistics against plain sorting and counting.

use dwell_recording::summary::Summary;
use dwell_recording::{Episode, Layer, Metadata, Packing, Reader, TimeRecorded, Writer};
use proptest::prelude::*;
use std::path::Path;

fn summary(idles_ns: &[u64]) -> Summary {
    let packing = Packing { rows_per_group: 7, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Guest), packing).unwrap();
    for (start_ns, &idle_ns) in (0..).zip(idles_ns) {
        let idler = if start_ns % 2 == 0 { "even" } else { "odd" };
        let halted = Some(idle_ns > 100);
        writer.push(&Episode { halted, ..Episode::new(idler, start_ns, idle_ns) }).unwrap();
    }
    Summary::of(&Reader::from_bytes("memory", writer.close().unwrap().1).unwrap()).unwrap()
}

/// The value at a quantile is within 0.1 % of one of the values beside its rank.
fn near(found: u64, sorted: &[u64], quantile: f64) -> bool {
    let rank = quantile * sorted.len() as f64;
    let around = sorted.iter().enumerate().filter(|(at, _)| (*at as f64 + 0.5 - rank).abs() <= 1.5);
    around.map(|(_, &value)| value).any(|value| found.abs_diff(value) <= value / 1000 + 1)
}

proptest! {
    // Histograms that reach up to 2^64 are large to build; a few dozen cases have every bucket many times over.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_counting(idles_ns in prop::collection::vec(
        prop_oneof![3 => 0u64..1_000_000, 1 => any::<u64>(), 1 => Just(u64::MAX)], 1..100,
    )) {
        let summary = summary(&idles_ns);
        let mut sorted = idles_ns.clone();
        sorted.sort_unstable();
        let all = &summary.all;
        let total: u128 = idles_ns.iter().map(|&ns| u128::from(ns)).sum();
        prop_assert_eq!(all.episodes, idles_ns.len() as u64);
        prop_assert_eq!(all.total_idle_ns, u64::try_from(total).unwrap_or(u64::MAX));
        prop_assert_eq!((all.min_ns, all.max_ns), (sorted[0], sorted[sorted.len() - 1]));
        prop_assert_eq!(all.halted, idles_ns.iter().filter(|ns| **ns > 100).count() as u64);
        prop_assert_eq!(all.halted + all.polled, all.episodes);
        for (bits, &count) in all.log2_histogram.iter().enumerate() {
            let wanted = idles_ns.iter().filter(|ns| (64 - ns.leading_zeros()) as usize == bits).count();
            prop_assert_eq!(count, wanted as u64);
        }
        for quantile in &all.quantiles {
            prop_assert!(near(quantile.idle_ns, &sorted, quantile.quantile), "{:?} of {:?}", quantile, sorted);
        }
        let parts: u64 = summary.idlers.iter().map(|idler| idler.stats.episodes).sum();
        prop_assert_eq!((parts, summary.out_of_order), (all.episodes, 0));
    }
}

#[test]
fn nothing_recorded_is_nothing() {
    let summary = summary(&[]);
    assert_eq!((summary.all.episodes, summary.span_ns, summary.all.max_ns), (0, 0, 0));
    assert!(summary.all.quantiles.is_empty());
    serde_json::to_string(&summary).unwrap();
}

/// The quantiles that the manifest of the bundled recordings gives, by whoever took them.
#[test]
fn quantiles_of_a_bundled_recording_are_those_of_its_manifest() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings/guest-redis_poisson5k.parquet");
    let summary = Summary::of(&Reader::open(&path).unwrap()).unwrap();
    for (quantile, wanted) in
        [(0.05, 14_620), (0.25, 57_847), (0.5, 140_730), (0.75, 275_849), (0.95, 581_721)]
    {
        let found = summary.all.quantiles.iter().find(|q| q.quantile == quantile).unwrap().idle_ns;
        assert!(found.abs_diff(wanted) <= wanted / 500, "{quantile}: {found}, not {wanted}");
    }
}

#[test]
fn rates_are_over_the_time_recorded_and_not_from_first_to_last_episode() {
    // 300 waits of 100 us within 0.1 s of a recording of 4 s.
    let reader = |recorded: Option<TimeRecorded>| {
        let metadata = Metadata { recorded, ..Metadata::new(Layer::Iothread) };
        let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
        for wait in 0..300 {
            writer.push(&Episode::new("loop", 1_000_000_000 + wait * 333_333, 100_000)).unwrap();
        }
        Reader::from_bytes("memory", writer.close().unwrap().1).unwrap()
    };
    let recorded = |start_ns, end_ns| Some(TimeRecorded { start_ns, end_ns });
    let summary = Summary::of(&reader(recorded(500_000_000, 4_500_000_000))).unwrap();
    assert_eq!((summary.span_ns, summary.idlers[0].span_ns), (4_000_000_000, 4_000_000_000));
    // Not known: from the first start to the last end.
    assert_eq!(Summary::of(&reader(None)).unwrap().span_ns, 299 * 333_333 + 100_000);
    // Shorter than the episodes, or the wrong way round: never less than what is there.
    for wrong in [recorded(1_050_000_000, 1_060_000_000), recorded(1_090_000_000, 1_010_000_000)] {
        assert_eq!(reader(wrong).span_ns(), 299 * 333_333 + 100_000);
    }
}
