//! Recordings that lie, and files that are none: found, named, and read in bounded memory.

use dwell_recording::summary::Summary;
use dwell_recording::{Columns, Episode, Layer, Metadata, Packing, Reader, Writer};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn recording<'a>(episodes: impl IntoIterator<Item = (&'a str, u64, u64)>) -> Vec<u8> {
    let packing = Packing { rows_per_group: 1 << 16, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Host), packing).unwrap();
    for (idler, start_ns, idle_ns) in episodes {
        writer.push(&Episode::new(idler, start_ns, idle_ns)).unwrap();
    }
    writer.close().unwrap().1
}

/// The file with another text of the same length in its metadata.
fn patched(mut bytes: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at =
        bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("it is in the footer");
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    bytes
}

fn summary(bytes: Vec<u8>) -> Summary {
    Summary::of(&Reader::from_bytes("test", bytes).unwrap()).unwrap()
}

fn regular() -> Vec<u8> {
    recording((0..100).map(|n| ("cpu0", 1_000 + n * 100, 50)))
}

#[test]
fn overlapping_episodes_are_counted_and_have_no_share() {
    let good = summary(regular());
    assert_eq!((good.overlapping, good.contradictions.len()), (0, 0));
    assert!((good.idlers[0].idle_share().unwrap() - 0.503).abs() < 0.01);
    // A thousand seconds of idling within one: 100000 %.
    let overlapping = summary(recording((0..1_000).map(|_| ("cpu0", 0, 1_000_000_000))));
    assert_eq!((overlapping.overlapping, overlapping.out_of_order), (999, 0));
    assert_eq!(overlapping.idlers[0].idle_share(), None);
    // Two idlers may idle at once.
    let two = summary(recording((0..100).flat_map(|n| [("a", n * 10, 10), ("b", n * 10, 10)])));
    assert_eq!(two.overlapping, 0);
}

#[test]
fn a_span_that_contradicts_the_rows_is_found() {
    let bytes = regular();
    // Wider than the rows: named. Narrower, or backwards: refused.
    let wide = summary(patched(bytes.clone(), "\"last_end_ns\":10950", "\"last_end_ns\":99950"));
    assert_eq!(
        wide.contradictions,
        ["the last end (start_ns + idle_ns) is 10950, and the file claims 99950"]
    );
    let refused = |bytes: Vec<u8>| {
        let reader = Reader::from_bytes("test", bytes).map_err(|error| error.to_string())?;
        Summary::of(&reader).map(drop).map_err(|error| error.to_string())
    };
    let narrow =
        refused(patched(bytes.clone(), "\"last_end_ns\":10950", "\"last_end_ns\":10949")).unwrap_err();
    assert!(narrow.contains("row 99 of row group 0, `idle_ns`: the episode is outside"), "{narrow}");
    let late =
        refused(patched(bytes.clone(), "\"first_start_ns\":1000", "\"first_start_ns\":1001")).unwrap_err();
    assert!(late.contains("row 0 of row group 0, `start_ns`: the episode is outside"), "{late}");
    let backwards = refused(patched(bytes, "\"first_start_ns\":1000", "\"first_start_ns\":\u{20}999")).err();
    assert!(backwards.is_none_or(|told| told.contains("outside")));
    let ends_first = refused(patched(
        regular(),
        "\"first_start_ns\":1000,\"last_end_ns\":10950",
        "\"first_start_ns\":9000,\"last_end_ns\":00001",
    ))
    .unwrap_err();
    assert!(!ends_first.is_empty());
}

#[test]
fn counts_of_idlers_that_contradict_the_rows_are_named() {
    let bytes = recording((0..100).map(|n| (if n % 2 == 0 { "a" } else { "b" }, n * 100, 50)));
    let swapped = patched(
        patched(bytes, "\"name\":\"a\",\"episodes\":50", "\"name\":\"a\",\"episodes\":51"),
        "\"name\":\"b\",\"episodes\":50",
        "\"name\":\"b\",\"episodes\":49",
    );
    assert_eq!(
        summary(swapped).contradictions,
        [
            "the number of episodes of `a` is 50, and the file claims 51",
            "the number of episodes of `b` is 50, and the file claims 49"
        ]
    );
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let begun = Instant::now();
    for (path, what) in
        [(fifo.as_path(), "a FIFO"), (Path::new("/dev/zero"), "a device"), (dir.path(), "a directory")]
    {
        let Err(error) = Reader::open(path) else { panic!("{} was opened", path.display()) };
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(what), "{source}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// The most memory that this process has used \[kB\].
fn peak_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// With an array of 66 kB for each, they took 5.7 GB.
#[test]
fn a_hundred_thousand_idlers_take_megabytes() {
    let names: Vec<String> = (0..100_000).map(|n| format!("process-name-{n}/{n}/vcpu{}", n % 64)).collect();
    let twice = names.iter().chain(&names).zip(0..).map(|(name, n)| (name.as_str(), n * 1_000, 70_000));
    let bytes = recording(twice);
    let summary = summary(bytes);
    assert_eq!((summary.idlers.len(), summary.all.episodes), (100_000, 200_000));
    assert_eq!(summary.idlers[99_999].stats.quantiles.len(), summary.all.quantiles.len());
    assert!(peak_kb() < 700_000, "{} kB", peak_kb());
    println!("summary of 100,000 idlers: peak memory {} kB", peak_kb());
}

#[test]
fn every_recording_of_the_repository_agrees_with_itself() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
    let mut recordings = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "parquet") {
            continue;
        }
        let reader = Reader::open(&path).unwrap();
        let summary = Summary::of(&reader).unwrap();
        assert_eq!(summary.contradictions, [""; 0], "{}", path.display());
        assert_eq!(summary.overlapping, 0, "{}", path.display());
        let mut chunk = dwell_recording::Chunk::default();
        (0..reader.row_groups()).for_each(|group| reader.read(group, Columns::ALL, &mut chunk).unwrap());
        recordings += 1;
    }
    assert!(recordings > 5, "{recordings}");
}

/// Figures of each are kept.
#[test]
fn a_recording_has_a_bounded_number_of_idlers() {
    use dwell_recording::{MOST_IDLERS, WriteError};
    let mut writer = Writer::new(vec![], Metadata::new(Layer::Host), Packing::default()).unwrap();
    for number in 0..MOST_IDLERS {
        writer.idler(&format!("cpu{number}")).unwrap();
    }
    let more = writer.idler("another").unwrap_err();
    assert!(
        matches!(more, WriteError::TooManyIdlers { episode: 0 }) && more.to_string().contains("100000"),
        "{more}"
    );
    assert!(writer.idler("cpu7").is_ok());
}
