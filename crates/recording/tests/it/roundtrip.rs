//! What is written is what is read, over the whole range of values.

use dwell_recording::{
    Cause, Chunk, Clock, Columns, Episode, IdleIncludes, Layer, Metadata, Packing, Reader, Segment, Segments,
    SettingValue, SettingsChange, WakeCause, WriteError, Writer,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// An episode that owns what it is made of.
#[derive(Clone, Debug, PartialEq)]
struct Owned {
    idler: String,
    start_ns: u64,
    idle_ns: u64,
    window_ns: Option<u64>,
    halted: Option<bool>,
    wake: Option<WakeCause>,
    wake_latency_ns: Option<u64>,
    ready: Option<Vec<String>>,
    alone_ns: Option<u64>,
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..1_000_000,
        1 => any::<u64>(),
        1 => prop::sample::select(vec![0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1]),
    ]
}

fn episode() -> impl Strategy<Value = Owned> {
    let name = prop::sample::select(vec!["cpu0", "cpu1", "CPU 2/KVM/1234", "", "ü"]);
    let handlers = prop::sample::subsequence(vec!["0", "1", "fd 7", "virtio-blk"], 0..3).prop_shuffle();
    (
        name,
        number(),
        number(),
        prop::option::of(number()),
        any::<Option<bool>>(),
        prop::option::of(prop::sample::select(WakeCause::ALL.to_vec())),
        prop::option::of(number()),
        prop::option::of(handlers),
        prop::option::of(number()),
    )
        .prop_map(
            |(idler, start_ns, idle_ns, window_ns, halted, wake, wake_latency_ns, ready, alone_ns)| Owned {
                idler: idler.to_owned(),
                start_ns,
                idle_ns,
                window_ns,
                halted,
                wake,
                wake_latency_ns,
                ready: ready.map(|names| names.into_iter().map(str::to_owned).collect()),
                alone_ns,
            },
        )
}

fn episodes() -> impl Strategy<Value = Vec<Owned>> {
    prop::collection::vec(episode(), 0..200).prop_map(|mut episodes| {
        episodes.sort_by_key(|episode| episode.start_ns);
        episodes
    })
}

fn write(episodes: &[Owned], metadata: Metadata, rows_per_group: usize) -> Vec<u8> {
    let packing = Packing { rows_per_group, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), metadata, packing).unwrap();
    for episode in episodes {
        let ready: Option<Vec<&str>> =
            episode.ready.as_ref().map(|names| names.iter().map(String::as_str).collect());
        writer
            .push(&Episode {
                idler: &episode.idler,
                start_ns: episode.start_ns,
                idle_ns: episode.idle_ns,
                window_ns: episode.window_ns,
                halted: episode.halted,
                wake: episode.wake,
                wake_latency_ns: episode.wake_latency_ns,
                ready: ready.as_deref(),
                alone_ns: episode.alone_ns,
            })
            .unwrap();
    }
    writer.close().unwrap().1
}

fn read(reader: &Reader) -> Vec<Owned> {
    let idlers = &reader.contents().idlers;
    let mut chunk = Chunk::default();
    let mut episodes = Vec::new();
    for row_group in 0..reader.row_groups() {
        reader.read(row_group, Columns::ALL, &mut chunk).unwrap();
        for row in 0..chunk.rows {
            let idler = &idlers[chunk.idler[row] as usize];
            episodes.push(Owned {
                idler: idler.name.clone(),
                start_ns: chunk.start_ns[row],
                idle_ns: chunk.idle_ns[row],
                window_ns: chunk.window_ns[row],
                halted: chunk.halted[row],
                wake: chunk.wake[row],
                wake_latency_ns: chunk.wake_latency_ns[row],
                ready: chunk
                    .ready(row)
                    .map(|set| set.iter().map(|&n| idler.handlers[n as usize].clone()).collect()),
                alone_ns: chunk.alone_ns[row],
            });
        }
    }
    episodes
}

proptest! {
    #[test]
    fn episodes_survive(episodes in episodes(), rows_per_group in 1usize..300) {
        let bytes = write(&episodes, Metadata::new(Layer::Iothread), rows_per_group);
        let reader = Reader::from_bytes("memory", bytes).unwrap();
        prop_assert_eq!(reader.episodes(), episodes.len() as u64);
        for idler in &reader.contents().idlers {
            let count = episodes.iter().filter(|episode| episode.idler == idler.name).count();
            prop_assert_eq!(idler.episodes, count as u64);
        }
        prop_assert_eq!(read(&reader), episodes);
    }

    #[test]
    fn a_step_back_is_refused_with_both_times(first in 1u64.., by in 1u64..) {
        let second = first.saturating_sub(by);
        let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Host), Packing::default()).unwrap();
        writer.push(&Episode::new("vcpu0", first, 0)).unwrap();
        writer.push(&Episode::new("vcpu1", 0, 0)).unwrap();
        let error = writer.push(&Episode::new("vcpu0", second, 0)).unwrap_err();
        let WriteError::OutOfOrder { episode: 2, idler, start_ns, previous_ns } = error else { panic!("{error}") };
        prop_assert_eq!((idler.as_str(), start_ns, previous_ns), ("vcpu0", second, first));
    }
}

#[test]
fn metadata_survives_with_keys_that_this_version_does_not_know() {
    let mut metadata = Metadata::new(Layer::Guest);
    metadata.idle_includes = IdleIncludes::Wake;
    metadata.clock = Clock::RecorderStart;
    metadata.kernel = Some("6.18.0".to_owned());
    metadata.lost.add(Some(3), 7);
    metadata.lost.add(None, 1);
    metadata.settings.push(SettingsChange {
        at_ns: None,
        owner: Layer::Guest.into(),
        values: BTreeMap::from([
            ("guest_halt_poll_ns".to_owned(), SettingValue::Number(u64::MAX)),
            ("guest_halt_poll_allow_shrink".to_owned(), SettingValue::Flag(true)),
            ("lapic_timer_advance_ns".to_owned(), SettingValue::Negative(-1)),
        ]),
    });
    metadata.other.insert("weather".to_owned(), serde_json::json!({"rain": [1, 2]}));
    let reader = Reader::from_bytes("memory", write(&[], metadata.clone(), 1)).unwrap();
    assert_eq!(reader.metadata(), &metadata);
    assert_eq!(reader.contents().span_ns(), 0);
}

#[test]
fn a_file_gets_its_name_only_when_it_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let mut writer = Writer::create(&path, Metadata::new(Layer::Guest)).unwrap();
    writer.push(&Episode::new("cpu0", 5, 10)).unwrap();
    assert!(!path.exists());
    drop(writer);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");

    let mut writer = Writer::create(&path, Metadata::new(Layer::Guest)).unwrap();
    writer.push(&Episode::new("cpu0", 5, 10)).unwrap();
    assert_eq!(writer.finish().unwrap().span_ns(), 10);
    assert_eq!(Reader::open(&path).unwrap().episodes(), 1);
}

#[test]
fn threads_share_one_reader_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let packing = Packing { rows_per_group: 1000, zstd_level: 1 };
    let mut writer = Writer::create_packed(&path, Metadata::new(Layer::Guest), packing).unwrap();
    for start_ns in 0..40_000 {
        writer
            .push(&Episode::new(if start_ns % 2 == 0 { "cpu0" } else { "cpu1" }, start_ns, start_ns))
            .unwrap();
    }
    writer.finish().unwrap();
    let reader = Reader::open(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let reader = &reader;
            scope.spawn(move || {
                let mut chunk = Chunk::default();
                for row_group in (0..reader.row_groups()).filter(|group| group % 4 == thread) {
                    reader.read(row_group, Columns::IDLER | Columns::IDLE_NS, &mut chunk).unwrap();
                    let first = row_group as u64 * 1000;
                    assert!(chunk.idle_ns.iter().copied().eq(first..first + 1000));
                    assert!(chunk.idler.iter().copied().eq((0..1000).map(|row| row % 2)));
                }
            });
        }
    });
}

proptest! {
    /// A part is copied without the rows before it; taking it row by row is the same.
    #[test]
    fn a_part_of_the_segments_is_those_rows_one_by_one(
        back in prop::collection::vec(0u32..6, 1..60),
        (from, to) in (0usize..70, 0usize..70),
    ) {
        let row = |(number, back): (u32, u32)| Segment {
            task: number % 3,
            cpu: number % 2,
            start_ns: u64::from(number) * 100,
            run_ns: 50,
            // A wakeup by each of the five rows before it, or none.
            cause: match number.checked_sub(back) {
                Some(waker) if back > 0 => Cause::Task { waker, offset_ns: 20 },
                _ => Cause::Unknown,
            },
            halted: Some(number % 4 == 0),
            idle: None,
        };
        let tasks = ["a", "b", "c"].map(str::to_owned).to_vec();
        let whole = Segments { tasks, rows: (0..).zip(back).map(row).collect(), ..Segments::default() };
        prop_assert_eq!(whole.part(from..to), whole.only(|place, _| (from..to).contains(&place)));
    }
}
