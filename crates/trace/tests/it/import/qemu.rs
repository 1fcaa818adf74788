use super::{Imported, import};
use dwell_policy::iothread::{Aio, Event, Handler, Kind, Params, Revision};
use dwell_policy::version::Version;
use dwell_recording::{
    Clock, Episode, IdleIncludes, Layer, Metadata, Packing, REALTIME_OFFSET, Reader, TimeRecorded, WakeCause,
    Writer,
};
use dwell_trace::import::qemu::{self, LEAST_LENGTHS, QemuOptions, Sleeps};
use proptest::prelude::*;

fn qemu_with(options: QemuOptions, text: impl AsRef<[u8]>) -> Result<Imported, String> {
    import(text.as_ref(), Layer::Host, |input, writer| qemu::import(input, options, writer))
}

fn qemu(text: impl AsRef<[u8]>) -> Result<Imported, String> {
    qemu_with(QemuOptions::default(), text)
}

fn error(text: impl AsRef<[u8]>) -> String {
    qemu(text).err().expect("an error")
}

fn rule(revision: Revision) -> Option<(Revision, Params)> {
    Some((revision, Params::default_for(revision)))
}

/// A recording of the waits of thread 7, from its clock's zero, which is `offset` before that of the log.
fn sleeps(offset: u64, waits: &[(u64, u64)]) -> Sleeps {
    let mut writer = Writer::new(vec![], Metadata::new(Layer::Iothread), Packing::default()).unwrap();
    for &(start, length) in waits {
        writer
            .push(&Episode { wake: Some(WakeCause::Io), ..Episode::new("IO io0/1/7", start, length) })
            .unwrap();
    }
    writer.metadata_mut().clock = Clock::Monotonic;
    writer.metadata_mut().other.insert(REALTIME_OFFSET.to_owned(), offset.into());
    Sleeps::read("s", &Reader::from_bytes("s", writer.close().unwrap().1).unwrap()).unwrap()
}

/// As a QEMU 7.2 writes it with `-msg timestamp=on`: a hit, an attempt in vain that ends in a shrink, a growth without
/// an attempt, and an attempt that nothing follows.
const LOG_7_2: &str = "\
7@100.000000:poll_add ctx 0x5 node 0x9 fd 7 revents 0x1
7@100.000010:run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1
7@100.000012:run_poll_handlers_end ctx 0x5 progress 1 new timeout 0
qemu-system-x86_64: a message
7@100.000020:run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1
7@100.000025:run_poll_handlers_end ctx 0x5 progress 0 new timeout -1
7@100.000100:poll_shrink ctx 0x5 old 4000 new 0
7@100.000120:poll_grow ctx 0x5 old 0 new 4000
7@100.000130:run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1
";

#[test]
fn attempts_are_episodes_and_what_has_no_beginning_is_counted() {
    let imported = qemu(LOG_7_2).unwrap();
    assert_eq!(
        imported.rows(),
        ["ctx-0x5 100000010000 2000 4000 false io - -", "ctx-0x5 100000020000 80000 4000 true unknown - -"]
    );
    let summary = &imported.summary;
    assert_eq!((summary.lines, summary.other_lines, summary.resolution_ns), (9, 1, 1_000));
    assert_eq!(summary.incomplete_episodes, 2);
    assert_eq!((summary.used["run_poll_handlers_begin"], summary.decisions), (3, None));
    let metadata = imported.reader.metadata();
    assert_eq!((metadata.layer, metadata.clock), (Layer::Iothread, Clock::Unknown));
    assert_eq!((metadata.idle_includes, metadata.resolution_ns), (IdleIncludes::Wake, Some(1_000)));
    assert_eq!((metadata.lost.events, metadata.lost.incomplete_episodes), (None, 2));
    let recorded = TimeRecorded { start_ns: 100_000_000_000, end_ns: 100_000_130_000 };
    assert_eq!(metadata.recorded, Some(recorded));
    assert_eq!(metadata.other["contexts"]["ctx-0x5"]["handlers"][0]["fd"], 7);
    assert!(!metadata.other.contains_key(LEAST_LENGTHS));
}

#[test]
fn without_times_lengths_are_the_least_that_the_decisions_allow() {
    let text: String =
        LOG_7_2.lines().map(|line| format!("{}\n", line.split_once(':').unwrap().1.trim())).collect();
    let imported =
        qemu_with(QemuOptions { rule: rule(Revision::Global), ..QemuOptions::default() }, &text).unwrap();
    // The shrink says that it took longer than the maximum.
    assert_eq!(imported.rows(), ["ctx-0x5 0 0 4000 false io - -", "ctx-0x5 0 32769 4000 true unknown - -"]);
    assert_eq!(imported.reader.metadata().other[LEAST_LENGTHS], true);
    assert_eq!(imported.reader.metadata().recorded, None);
    let decisions = imported.summary.decisions.unwrap();
    assert_eq!((decisions.traced, decisions.determined, decisions.contradicted), (2, 0, 0));
    // Nobody says what the maximum is: it outlasted what it polled.
    assert_eq!(qemu(&text).unwrap().rows()[1], "ctx-0x5 0 4001 4000 true unknown - -");
}

#[test]
fn a_log_that_ends_within_a_line_is_used_without_it() {
    let imported = qemu(format!("{LOG_7_2}7@100.000135:poll_grow ctx 0x5 ol")).unwrap();
    assert_eq!(imported.rows(), qemu(LOG_7_2).unwrap().rows());
    assert_eq!((imported.summary.unparsable, imported.summary.lines), (1, 10));
    assert!(imported.summary.notes.join(" ").contains("the last line is cut off"));
}

#[test]
fn recorded_sleeps_tell_what_the_trace_does_not() {
    let offset = 99_000_000_000;
    let recorded =
        [(999_000_000, 1_000), (1_000_026_000, 70_000), (1_000_099_000, 19_000), (1_000_140_000, 5_000)];
    let options = QemuOptions {
        rule: rule(Revision::Global),
        sleeps: Some(sleeps(offset, &recorded)),
        ..QemuOptions::default()
    };
    let imported = qemu_with(options, LOG_7_2).unwrap();
    assert_eq!(
        imported.rows(),
        [
            "IO io0/1/7/ctx-0x5 999000000 1000 0 true io - -",
            "IO io0/1/7/ctx-0x5 1000010000 2000 4000 false io - -",
            "IO io0/1/7/ctx-0x5 1000020000 76000 4000 true io - -",
            "IO io0/1/7/ctx-0x5 1000099000 19000 0 true io - -",
        ]
    );
    let summary = &imported.summary;
    assert_eq!(summary.incomplete_episodes, 1);
    // 75 us or more are more than 32.8 us; more than 19 us and less than 21 are less.
    let decisions = summary.decisions.unwrap();
    assert_eq!((decisions.traced, decisions.determined, decisions.contradicted), (2, 2, 0));
    assert_eq!(imported.reader.metadata().clock, Clock::Monotonic);
    let recorded = TimeRecorded { start_ns: 1_000_000_000, end_ns: 1_000_130_000 };
    assert_eq!(imported.reader.metadata().recorded, Some(recorded));
}

/// As with something to do at once: the rule learns from it, and a replay cannot.
#[test]
fn what_neither_polled_nor_slept_is_counted_beside_recorded_sleeps() {
    let log = "\
7@100.000020:run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1
7@100.000025:run_poll_handlers_end ctx 0x5 progress 0 new timeout -1
7@100.000100:poll_shrink ctx 0x5 old 4000 new 0
7@100.000130:poll_grow ctx 0x5 old 0 new 4000
";
    let options = QemuOptions {
        sleeps: Some(sleeps(99_000_000_000, &[(1_000_026_000, 70_000)])),
        ..QemuOptions::default()
    };
    let Imported { summary, .. } = qemu_with(options, log).unwrap();
    assert_eq!((summary.episodes, summary.incomplete_episodes), (1, 1));
    assert!(summary.notes[0].starts_with("1 episodes are incomplete and 1 are not"), "{:?}", summary.notes);
}

#[test]
fn a_decision_that_the_rule_cannot_have_made_is_told_with_its_line() {
    let text = LOG_7_2.replace("old 0 new 4000\n7@100.000130", "old 0 new 8000\n7@100.000130");
    let options = || QemuOptions { rule: rule(Revision::Global), ..QemuOptions::default() };
    let decisions = qemu_with(options(), &text).unwrap().summary.decisions.unwrap();
    assert_eq!((decisions.contradicted, decisions.first_contradicted_line), (1, Some(8)));
    // A shrink after 14 us at most.
    let text = LOG_7_2.replace("100.000100", "100.000026");
    let decisions = qemu_with(options(), &text).unwrap().summary.decisions.unwrap();
    assert_eq!((decisions.contradicted, decisions.first_contradicted_line), (1, Some(7)));
}

#[test]
fn the_log_of_11_1_has_dates_and_no_threads() {
    let text = "\
2026-11-22T00:13:23.433299Z run_poll_handlers_begin ctx 0x5 max_ns 100 timeout -1
2026-11-22T00:13:23.433301Z run_poll_handlers_end ctx 0x5 progress 0 new timeout 0
2026-11-22T00:13:23.433305Z poll_grow ctx 0x5 old 100 new 30000
2026-11-22T00:13:23.433306Z poll_grow ctx 0x6 old 0 new 1
";
    let imported = qemu(text).unwrap();
    assert_eq!(imported.rows(), ["ctx-0x5 1795306403433299000 2000 100 false unknown - -"]);
    let beside =
        |context| QemuOptions { sleeps: Some(sleeps(0, &[(0, 1)])), context, ..QemuOptions::default() };
    let refused = qemu_with(beside(None), text).err().unwrap();
    assert!(refused.starts_with("t: line 1 has no thread"), "{refused}");
    let imported = qemu_with(beside(Some(5)), text).unwrap();
    assert_eq!((imported.rows().len(), imported.summary.ignored["poll_grow"]), (1, 1));
}

#[test]
fn what_does_not_fit_is_an_error_with_its_line() {
    let broken = format!("{LOG_7_2}7@100.000130:poll_grow ctx 0x5 old x new 4000\n");
    let wanted = "t: line 10 names `poll_grow` but cannot be parsed: `7@100.000130:poll_grow ctx 0x5 old x new 4000`; \
         if lines were wrapped or cut off, make the text anew; else --skip-unparsable counts such lines";
    assert_eq!(error(&broken), wanted);
    let skip = QemuOptions { skip_unparsable: true, ..QemuOptions::default() };
    assert_eq!(qemu_with(skip, &broken).unwrap().summary.unparsable, 1);
    assert!(
        error(format!("{LOG_7_2}poll_grow ctx 0x5 old 0 new 4\n"))
            .starts_with("t: line 10 has no time, unlike")
    );
    assert!(error("no trace at all\n").contains("no episodes in 1 lines; trace QEMU with"));
    assert!(error("no trace at all").contains("in 1 lines, the last of which is cut off"));
    let of = |context| QemuOptions { context: Some(context), ..QemuOptions::default() };
    assert_eq!(
        qemu_with(of(0x6), LOG_7_2).err().unwrap(),
        "t: no event of the context 0x6; events are of 0x5"
    );
    assert_eq!(qemu_with(of(0x5), LOG_7_2).unwrap().rows(), qemu(LOG_7_2).unwrap().rows());
    let beside = QemuOptions { sleeps: Some(sleeps(0, &[(0, 1)])), ..QemuOptions::default() };
    let refused = qemu_with(beside, "poll_grow ctx 0x5 old 0 new 4000\n").err().unwrap();
    assert!(
        refused.starts_with("t: line 1 has no time of day, so that it cannot be compared with"),
        "{refused}"
    );
}

/// The times of `simpletrace.py` are since the line before, also since one that is skipped.
#[test]
fn time_passes_in_lines_that_are_skipped() {
    let text = "run_poll_handlers_begin 0.000 pid=7 ctx=0x5 max_ns=0xfa0 timeout=0xffffffffffffffff\n\
                poll_grow 500.000 pid=7 ctx=0x5 old=zz new=0x1\n\
                run_poll_handlers_end 2.000 pid=7 ctx=0x5 progress=0x1 timeout=0x0\n";
    let skip = QemuOptions { skip_unparsable: true, ..QemuOptions::default() };
    let rows = qemu_with(skip, text).unwrap().rows();
    assert!(rows.len() == 1 && rows[0].split(' ').nth(2) == Some("502000"), "{rows:?}");
}

/// Times without a date or a year go on after midnight and new year.
#[test]
fn midnight_and_new_year_pass() {
    let lttng = |time: &str, name: &str, fields: &str| {
        format!("[{time}] (+0.000001000) host qemu:{name}: {{ vtid = 7 }}, {{ ctx = 0x5, {fields} }}\n")
    };
    let syslog = |time: &str, what: &str| format!("{time} host qemu[7]: {what}\n");
    let [begin, end] = ["max_ns = 4000, timeout = -1", "progress = 1, timeout = 0"];
    let (plain_begin, plain_end) = (
        "run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1",
        "run_poll_handlers_end ctx 0x5 progress 1 new timeout 0",
    );
    for text in [
        lttng("23:59:59.999999000", "run_poll_handlers_begin", begin)
            + &lttng("00:00:00.000001000", "run_poll_handlers_end", end)
            + &lttng("00:00:00.000010000", "run_poll_handlers_begin", begin)
            + &lttng("00:00:00.000012000", "run_poll_handlers_end", end),
        syslog("Dec 31 23:59:59.999999", plain_begin)
            + &syslog("Jan  1 00:00:00.000001", plain_end)
            + &syslog("Jan  1 00:00:00.000010", plain_begin)
            + &syslog("Jan  1 00:00:00.000012", plain_end),
    ] {
        let rows = qemu(&text).unwrap().rows();
        let times: Vec<Vec<u64>> = rows
            .iter()
            .map(|row| row.split(' ').skip(1).take(2).map(|number| number.parse().unwrap()).collect())
            .collect();
        assert_eq!((times[0][1], times[1][1], times[1][0] - times[0][0]), (2_000, 2_000, 11_000), "{rows:?}");
    }
}

#[test]
fn two_qemus_with_a_context_of_the_same_address_are_refused() {
    let other = "8@100.000011:run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1\n";
    let both = LOG_7_2.replacen("7@100.000012", &format!("{other}7@100.000012"), 1);
    let told = error(&both);
    assert!(told.contains("context 0x5 while 7 polls it: two QEMUs"), "{told}");
    let stap =
        |text: &str| text.replace('.', "").replace(':', "000 ").replace("qemu-system", "# qemu-system");
    let told = error(stap(&both));
    assert!(told.contains("context 0x5 while 7 polls it"), "{told}");
    assert_eq!(qemu(stap(LOG_7_2)).unwrap().summary.episodes, 2);
    // One after the other, as a thread of it that takes over a context.
    qemu(LOG_7_2.replace("7@100.00002", "8@100.00002")).unwrap();
}

#[test]
fn a_gap_in_the_trace_is_counted_as_a_loss() {
    let text = LOG_7_2
        .replace("7@100.000025:run_poll_handlers_end ctx 0x5 progress 0 new timeout -1\n", "")
        .replace("old 0 new 4000\n7@100.000130", "old 9 new 18\n7@100.000130");
    let options = QemuOptions { rule: rule(Revision::Global), ..QemuOptions::default() };
    let summary = qemu_with(options, text).unwrap().summary;
    assert_eq!(summary.lost.events, Some(2));
    assert_eq!(summary.episodes, 1);
}

#[test]
fn the_waits_of_something_else_are_refused() {
    let writer = Writer::new(vec![], Metadata::new(Layer::Guest), Packing::default()).unwrap();
    let guest = Reader::from_bytes("g", writer.close().unwrap().1).unwrap();
    assert!(Sleeps::read("g", &guest).err().unwrap().to_string().contains("is a recording of layer guest"));
    let writer = Writer::new(vec![], Metadata::new(Layer::Iothread), Packing::default()).unwrap();
    let old = Reader::from_bytes("o", writer.close().unwrap().1).unwrap();
    assert!(Sleeps::read("o", &old).err().unwrap().to_string().contains("it has no time of day"));
}

/// The trace of a context that lives through these block times \[us\], one `aio_poll` each, as QEMU would write it; and
/// the waits that a recorder of its thread would have seen.
fn written(version: Version, params: Params, blocks_us: &[u32]) -> (String, Vec<(u64, u64)>, u64) {
    let revision = Revision::of(version).unwrap();
    let mut aio = Aio::new(revision, params, [Handler::new(Kind::Polled)]);
    let (mut text, mut waits, mut decisions) = (String::new(), vec![(0, 1)], 0);
    let mut now = 1_000_000u64;
    for &block in blocks_us {
        let (start, end) = (now, now + u64::from(block) * 1_000);
        let line =
            |at: u64, what: &str| format!("7@{}.{:06}:{what}\n", at / 1_000_000_000, at / 1_000 % 1_000_000);
        let window = if aio.handlers()[0].in_poll() { u64::try_from(aio.effective()).unwrap() } else { 0 };
        if window > 0 {
            text += &line(start, &format!("run_poll_handlers_begin ctx 0x5 max_ns {window} timeout -1"));
            let (at, progress, timeout) =
                if start + window >= end { (end, 1, 0) } else { (start + window, 0, -1) };
            text += &line(
                at,
                &format!("run_poll_handlers_end ctx 0x5 progress {progress} new timeout {timeout}"),
            );
        }
        if start + window < end {
            waits.push((start + window, end - start - window));
        }
        aio.finish(i64::from(block) * 1_000, &[0], |event| match event {
            Event::Adapted { change, .. } => {
                decisions += 1;
                let name = format!("{:?}", change.kind).to_lowercase();
                text += &line(end, &format!("poll_{name} ctx 0x5 old {} new {}", change.old, change.new));
            }
            Event::PollAdd(_) => text += &line(end, "poll_add ctx 0x5 node 0x9 fd 7 revents 0x1"),
        });
        now = end + 50_000;
    }
    waits.push((now, 1));
    (text, waits, decisions)
}

proptest! {
    #[test]
    fn what_the_models_write_is_read_back_and_not_contradicted(
        version in prop::sample::select(vec![(7, 2), (9, 2), (10, 0), (11, 0), (11, 1)]),
        max_us in 1i64..300, grow in 0i64..4, shrink in 0i64..4,
        blocks in prop::collection::vec(1u32..400, 1..100),
    ) {
        let version = Version::new(version.0, version.1);
        let revision = Revision::of(version).unwrap();
        let params = Params { poll_max_ns: max_us * 1_000, poll_grow: grow, poll_shrink: shrink, poll_weight: 3 };
        let params = params.stored(revision);
        let (text, waits, traced) = written(version, params, &blocks);
        let options = QemuOptions { rule: Some((revision, params)), sleeps: Some(sleeps(0, &waits)), ..QemuOptions::default() };
        let Ok(imported) = qemu_with(options, &text) else {
            prop_assert!(!text.contains("begin") && waits.len() < 4);
            return Ok(());
        };
        let decisions = imported.summary.decisions.unwrap_or_default();
        prop_assert_eq!((decisions.traced, decisions.contradicted), (traced, 0));
        prop_assert_eq!(imported.summary.lost.events, None);
        // Every length is there, but for those after the last line, which the log does not reach.
        let lengths: Vec<u64> = imported.rows().iter().map(|row| row.rsplit(' ').nth(5).unwrap().parse().unwrap()).collect();
        let lengths = if lengths.first() == Some(&1) { &lengths[1..] } else { &lengths[..] };
        for (length, block) in lengths.iter().zip(&blocks) {
            prop_assert!(length.abs_diff(u64::from(*block) * 1_000) <= 1_000, "{} {}", length, block);
        }
    }

    #[test]
    fn no_text_panics_and_every_line_is_counted(
        lines in prop::collection::vec((0usize..8, 0u64..3, -2i64..9_000, -2i64..2, 0u64..40), 0..80), stamped: bool,
    ) {
        let mut at = 5_000_000u64;
        let text: String = lines.iter().map(|&(kind, ctx, a, b, gap)| {
            at += gap;
            let what = match kind {
                0 => format!("run_poll_handlers_begin ctx {ctx:#x} max_ns {a} timeout {b}"),
                1 => format!("run_poll_handlers_end ctx {ctx:#x} progress {} new timeout {b}", a % 2),
                2 => format!("poll_grow ctx {ctx:#x} old {b} new {a}"),
                3 => format!("poll_shrink ctx {ctx:#x} old {a} new {b}"),
                4 => format!("poll_add ctx {ctx:#x} node 0x1 fd {b} revents 0x1"),
                5 => format!("poll_remove ctx {ctx:#x} node 0x1 fd {b}"),
                6 => format!("poll_grow ctx {ctx:#x} old"),
                _ => "something else".to_owned(),
            };
            if stamped { format!("7@{}.{:06}:{what}\n", at / 1_000_000, at % 1_000_000) } else { format!("{what}\n") }
        }).collect();
        for revision in [None, rule(Revision::Global), rule(Revision::PerHandler), rule(Revision::Weighted)] {
            for beside in [None, stamped.then(|| sleeps(0, &[(0, 10), (5_000_000_000, 7), (5_000_010_000, 900)]))] {
                let options = QemuOptions { rule: revision, sleeps: beside, skip_unparsable: true, ..QemuOptions::default() };
                let Ok(imported) = qemu_with(options, &text) else { continue };
                let summary = imported.summary;
                let used: u64 = summary.used.values().sum();
                prop_assert_eq!(used + summary.unparsable + summary.other_lines, summary.lines);
                prop_assert_eq!(summary.lines, lines.len() as u64);
            }
        }
    }
}
