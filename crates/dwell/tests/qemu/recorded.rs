//! What a user can record without a shim, QEMU's trace and the waits of its thread, against the rule.

use crate::guest::{Options, Qemu, Release, TRACE};
use dwell_capture::{Recorder, Target, Until};
use dwell_knobs::iothread;
use dwell_knobs::qmp::{Limits, Monitor};
use dwell_policy::iothread::{Params, Revision};
use dwell_policy::version::Version;
use dwell_recording::{Layer, Metadata, Packing, REALTIME_OFFSET, Reader, Writer};
use dwell_testing::say;
use dwell_trace::import::qemu::{self, QemuOptions, Sleeps};
use dwell_trace::import::{ImportSummary, Input};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long is recorded.
const LENGTH: Duration = Duration::from_secs(2);

/// The lines of a log that were written while the recording ran, by their own stamps.
fn within(log: &str, sleeps: &Reader) -> String {
    let offset = sleeps.metadata().other[REALTIME_OFFSET].as_u64().unwrap();
    let contents = sleeps.contents();
    let (first, last) = (contents.first_start_ns.unwrap() + offset, contents.last_end_ns.unwrap() + offset);
    let during = |line: &&str| {
        let Some((_, time)) = line.split_once(':').and_then(|(stamp, _)| stamp.split_once('@')) else {
            // 11.1 writes a date; what is outside is then judged by less.
            return true;
        };
        let (seconds, micros) = time.split_once('.').unwrap();
        let at = seconds.parse::<u64>().unwrap() * 1_000_000_000 + micros.parse::<u64>().unwrap() * 1_000;
        (first..=last).contains(&at)
    };
    log.lines().filter(during).map(|line| format!("{line}\n")).collect()
}

/// The context that the thread runs, where lines tell no thread: the one with the most attempts.
fn busiest(log: &str) -> Option<u64> {
    let mut counts = std::collections::BTreeMap::<u64, u64>::new();
    for line in log.lines().filter(|line| line.contains("run_poll_handlers_begin")) {
        let ctx = line.split_once("ctx 0x").and_then(|(_, rest)| rest.split(' ').next());
        if let Some(ctx) = ctx.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            *counts.entry(ctx).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(ctx, _)| ctx)
}

fn record(release: Release, max_ns: i64) -> Result<(String, ImportSummary), String> {
    let iothread = format!("poll-max-ns={max_ns}");
    let more: Vec<&str> = TRACE.into_iter().chain(["-msg", "timestamp=on", "-D", "{dir}/log"]).collect();
    let mut qemu =
        Qemu::booted(release, &Options { iothread: &iothread, more: &more, ..Options::default() })?;
    let mut monitor = Monitor::connect(&qemu.monitor(), Limits::default()).expect("QEMU has a monitor");
    let version = monitor.greeting().version.clone();
    let tid = iothread::find(&mut monitor, "io0").unwrap().thread_id.unwrap();
    let target = Target::Thread { pid: Some(i32::try_from(tid).unwrap()), comm: vec![], causes: false };
    let recorder = Recorder::open(target, None).map_err(|error| error.to_string())?;
    let until = Until { duration: Some(LENGTH), stop: &AtomicBool::new(false) };
    let (recorded, bytes) = recorder.to_memory(&until, &mut ()).expect("the thread is recorded");
    qemu.end();
    assert_eq!(recorded.status.lost, 0);
    let reader = Reader::from_bytes("waits", bytes).unwrap();
    let log = within(&std::fs::read_to_string(qemu.file("log")).unwrap(), &reader);
    let revision = Revision::of(Version::parse(&version).unwrap()).unwrap();
    let params = Params { poll_max_ns: max_ns, ..Params::default_for(revision) };
    let with_thread = log.contains('@');
    let options = QemuOptions {
        rule: Some((revision, params)),
        sleeps: Some(Sleeps::read("waits", &reader).unwrap()),
        context: if with_thread { None } else { busiest(&log) },
        skip_unparsable: false,
    };
    let mut writer = Writer::new(vec![], Metadata::new(Layer::Iothread), Packing::default()).unwrap();
    let summary = qemu::import(Input::new("log", log.as_bytes()).unwrap(), options, &mut writer).unwrap();
    Ok((version, summary))
}

fn is_not_contradicted(release: Release, test: &str) {
    let _alone = crate::alone();
    for max_ns in [32_768, 300_000] {
        let (version, summary) = match record(release, max_ns) {
            Ok(recorded) => recorded,
            Err(cause) => return dwell_testing::skip!("qemu", test, "{cause}"),
        };
        let decisions = summary.decisions.unwrap_or_default();
        say!(
            "{test}: QEMU {version}, poll-max-ns={max_ns}: {} episodes, {} decisions, {} contradicted, {} determined ({:.1} %)",
            summary.episodes,
            decisions.traced,
            decisions.contradicted,
            decisions.determined,
            100.0 * decisions.determined as f64 / decisions.traced.max(1) as f64,
        );
        assert!(summary.episodes > 100 && decisions.traced > 100, "{summary:?}");
        assert_eq!(decisions.contradicted, 0, "{decisions:?}");
    }
}

#[test]
fn no_decision_of_the_installed_qemu_is_contradicted_by_what_a_user_records() {
    let test = "no_decision_of_the_installed_qemu_is_contradicted_by_what_a_user_records";
    is_not_contradicted(Release::Installed, test);
}

#[test]
fn no_decision_of_qemu_10_0_is_contradicted_by_what_a_user_records() {
    let test = "no_decision_of_qemu_10_0_is_contradicted_by_what_a_user_records";
    is_not_contradicted(Release::Unpacked("10.0"), test);
}

#[test]
fn no_decision_of_qemu_11_1_is_contradicted_by_what_a_user_records() {
    let test = "no_decision_of_qemu_11_1_is_contradicted_by_what_a_user_records";
    is_not_contradicted(Release::Unpacked("11.1"), test);
}
