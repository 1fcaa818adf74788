//! Figures against what a loop over all episodes in memory comes to.

use super::*;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos, Outcome, Policy as _};
use dwell_recording::{Episode, Metadata, Packing, Reader, TimeRecorded, WakeCause, Writer};
use dwell_stats::SplitMix64;

struct Row {
    idler: usize,
    start_ns: u64,
    idle_ns: u64,
    window_ns: Option<u64>,
    halted: Option<bool>,
}

/// Episodes of so many idlers in turns.
fn rows(episodes: u64, idlers: usize) -> Vec<Row> {
    let mut random = SplitMix64::new(7);
    let mut now_ns = vec![1_000u64; idlers];
    let row = |number: u64| {
        let idler = usize::try_from(random.below(idlers as u64)).unwrap();
        let idle_ns = random.exponential(if number.is_multiple_of(3) { 15e3 } else { 120e3 });
        let start_ns = now_ns[idler];
        now_ns[idler] += idle_ns + random.exponential(20e3);
        let window_ns = (!number.is_multiple_of(5)).then_some(number % 4 * 50_000);
        Row { idler, start_ns, idle_ns, window_ns, halted: window_ns.map(|window| idle_ns > window) }
    };
    (0..episodes).map(row).collect()
}

fn source(rows: &[Row]) -> RecordingSource {
    source_of(Metadata::new(Layer::Host), rows)
}

fn source_of(metadata: Metadata, rows: &[Row]) -> RecordingSource {
    let mut writer = Writer::new(vec![], metadata, Packing::default()).unwrap();
    for row in rows {
        let name = format!("cpu{}", row.idler);
        let mut episode = Episode::new(name.as_str(), row.start_ns, row.idle_ns);
        episode.window_ns = row.window_ns;
        episode.halted = row.halted;
        episode.wake = Some(WakeCause::Timer);
        writer.push(&episode).unwrap();
    }
    let (_, bytes) = writer.close().unwrap();
    RecordingSource::new(Reader::from_bytes("test", bytes).unwrap(), false)
}

fn policies() -> Vec<Policy> {
    let present = Setting::defaults(Layer::Host, Version::new(6, 18));
    let policy = |name: &str, rule| Policy { name: name.to_owned(), rule };
    vec![policy("present", Rule::Layer(present)), policy("fixed", Rule::fixed(Nanos(40_000)))]
}

fn figures(rows: &[Row]) -> Figures {
    Figures::of(&source(rows), &policies(), &|_| ()).unwrap()
}

#[test]
fn counts_are_those_of_a_plain_loop() {
    let rows = rows(5_000, 3);
    let figures = figures(&rows);
    for (policy, told) in policies().iter().zip(&figures.policies) {
        let (mut polls, mut succeeded, mut polled, mut wasted, mut halts) = (0, 0, 0u128, 0u128, 0);
        for idler in 0..3 {
            let mut rule = policy.rule.policy().unwrap();
            for row in rows.iter().filter(|row| row.idler == idler) {
                let window = rule.window().get();
                rule.observe(Outcome::of(Nanos(row.idle_ns)));
                let (halted, took) = (row.idle_ns > window, u128::from(row.idle_ns.min(window)));
                polls += u64::from(window > 0);
                succeeded += u64::from(window > 0 && !halted);
                halts += u64::from(halted);
                polled += took;
                wasted += if halted { took } else { 0 };
            }
        }
        let of = |told: &PolicyFigures| {
            (told.polls, told.polls_succeeded, told.polled_ns, told.wasted_ns, told.halts)
        };
        assert_eq!(of(told), (polls, succeeded, polled, wasted, halts), "{}", policy.name);
        let ended = told.ends.iter().fold((0, 0), |sum, end| (sum.0 + end.succeeded, sum.1 + end.wasted));
        assert_eq!(ended, (succeeded, polls - succeeded));
    }
    assert_eq!(figures.policies[1].windows.p50_ns, 40_000);
}

#[test]
fn what_was_recorded_is_counted_where_it_is_known() {
    let rows = rows(2_000, 2);
    let recorded = figures(&rows).recorded;
    let known = || rows.iter().filter(|row| row.window_ns.is_some());
    assert_eq!((recorded.known, recorded.windows_known), (1_600, 1_600));
    assert_eq!(recorded.halts, known().filter(|row| row.halted == Some(true)).count() as u64);
    assert_eq!(recorded.polls, known().filter(|row| row.window_ns > Some(0)).count() as u64);
    let polled = known().map(|row| u128::from(row.idle_ns.min(row.window_ns.unwrap()))).sum::<u128>();
    assert_eq!(recorded.polled_ns, polled);
    assert_eq!(recorded.wakes, Wakes::from([("timer", 2_000)]));
}

#[test]
fn every_episode_of_a_shown_idler_is_in_a_slice_and_busy_ones_are_shown() {
    let rows = rows(20_000, SHOWN + 3);
    let figures = figures(&rows);
    assert_eq!(figures.idle.len(), 1 + SHOWN);
    assert_eq!(figures.idlers_left_out, 3);
    assert_eq!(figures.idle[0].episodes, 20_000);
    for (of, line) in figures.idle[1..].iter().zip(&figures.timeline.idlers) {
        assert_eq!(of.idler.as_ref(), Some(&line.idler));
        assert_eq!(line.episodes.iter().sum::<u64>(), of.episodes);
        assert!(line.slice.iter().all(|&slice| slice < SLICES));
        let (p10, p90) = (&line.idle_p10_ns, &line.idle_p90_ns);
        assert!(p10.iter().zip(p90).all(|(low, high)| low <= high));
        let [present, fixed] = line.windows.as_slice() else { panic!("two policies") };
        assert!(present.min_ns.iter().zip(&present.mean_ns).all(|(min, mean)| min <= mean));
        assert!(fixed.mean_ns.iter().all(|&mean| mean == 40_000));
        let of_idler = || rows.iter().filter(|row| format!("cpu{}", row.idler) == line.idler);
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        let ended = |halted| of_idler().filter(|row| row.halted == Some(halted)).count() as u64;
        assert_eq!(
            (sum(&line.recorded.halts), sum(&line.recorded.polls_succeeded)),
            (ended(true), ended(false))
        );
        let windows = of_idler().filter_map(|row| row.window_ns);
        let (least, most) = (windows.clone().min().unwrap(), windows.max().unwrap());
        let means: Vec<u64> = line.recorded.window_mean_ns.iter().copied().flatten().collect();
        assert!(!means.is_empty() && means.iter().all(|mean| (least..=most).contains(mean)), "{means:?}");
    }
}

#[test]
fn the_closeup_is_consecutive_episodes_out_of_the_middle() {
    let rows = rows(9_000, 2);
    let closeup = figures(&rows).closeup.unwrap();
    let of_idler: Vec<&Row> =
        rows.iter().filter(|row| format!("cpu{}", row.idler) == closeup.idler).collect();
    let first = usize::try_from(closeup.first_episode).unwrap();
    assert_eq!(first, of_idler.len() / 2 - CLOSEUP / 2);
    let wanted: Vec<u64> = of_idler[first..first + CLOSEUP].iter().map(|row| row.idle_ns).collect();
    assert_eq!(closeup.idle_ns, wanted);
    assert_eq!(closeup.windows[1].window_ns, vec![40_000; CLOSEUP]);
    assert!(closeup.windows[0].window_ns.iter().any(|&window| window > 0));
}

#[test]
fn a_recording_beside_itself_differs_by_nothing() {
    let all = rows(4_000, 2);
    let blocks = figures(&all).blocks;
    assert_eq!(blocks.iter().map(|block| block.episodes).sum::<u64>(), 4_000);
    for compared in compare(&blocks, &blocks) {
        let Some(ratio) = compared.ratio else {
            assert_eq!(compared.figure, "mean_wake_latency_ns");
            continue;
        };
        assert!((ratio.value - 1.0).abs() < 1e-9, "{compared:?}");
        assert!(ratio.low <= 1.0 && 1.0 <= ratio.high, "{compared:?}");
    }
}

#[test]
fn time_in_which_nothing_idled_counts() {
    let mut rows: Vec<Row> = rows(200, 1);
    for row in &mut rows {
        (row.idle_ns, row.window_ns, row.halted) = (row.idle_ns.max(1_000), Some(1_000), Some(true));
    }
    for row in &mut rows[100..] {
        row.start_ns += 5_000_000_000;
    }
    let mut metadata = Metadata::new(Layer::Host);
    metadata.recorded = Some(TimeRecorded { start_ns: 0, end_ns: 10_000_000_000 });
    let blocks = Figures::of(&source_of(metadata, &rows), &policies(), &|_| ()).unwrap().blocks;
    let per_s = |name: &str| {
        let compared = compare(&blocks, &blocks);
        compared.into_iter().find(|compared| compared.figure == name).unwrap().before.unwrap()
    };
    for (figure, value) in [("episodes_per_s", 20.0), ("halts_per_s", 20.0), ("polling_ns_per_s", 20_000.0)] {
        assert!((per_s(figure) / value - 1.0).abs() < 1e-6, "{figure}: {}", per_s(figure));
    }
}

#[test]
fn what_was_not_recorded_is_not_known_where_nothing_idled() {
    let mut rows = rows(200, 1);
    rows.iter_mut().for_each(|row| (row.window_ns, row.halted) = (None, None));
    rows[199].start_ns += 5_000_000_000;
    let blocks = figures(&rows).blocks;
    for compared in compare(&blocks, &blocks).iter().filter(|compared| compared.figure.ends_with("_per_s")) {
        assert_eq!(compared.before.is_some(), compared.figure == "episodes_per_s", "{compared:?}");
    }
}

#[test]
fn half_the_idling_is_seen_as_half() {
    let all = rows(4_000, 1);
    let mut halved: Vec<Row> = rows(4_000, 1);
    for row in &mut halved {
        row.idle_ns /= 2;
    }
    let of = |rows: &[Row]| figures(rows).blocks;
    let compared = compare(&of(&all), &of(&halved));
    let idle = compared.iter().find(|compared| compared.figure == "mean_idle_ns").unwrap();
    let ratio = idle.ratio.unwrap();
    assert!((ratio.value - 0.5).abs() < 0.01 && ratio.low < 0.5 && 0.5 < ratio.high, "{ratio:?}");
    assert!(ratio.high < 0.6 && ratio.low > 0.4, "{ratio:?}");
}

#[test]
fn figures_are_json_whatever_is_in_them() {
    let json = serde_json::to_value(figures(&rows(200, 1))).unwrap();
    assert!(json["recorded"]["wasted_ns"].is_number());
    assert_eq!(json["policies"][1]["setting"], "window_ns=40000");
}
