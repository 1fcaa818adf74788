//! A million waits, recorded while they happen, and replayed by `dwell-replay`: no window deviates.

use dwell_idle::halt::Sleep;
use dwell_idle::policy::Unreported;
use dwell_idle::policy::catalogue::{Any, Entry, Start, Terms};
use dwell_idle::policy::iothread::{Aio, Handler, Kind, Params, Revision};
use dwell_idle::policy::reference::Never;
use dwell_idle::policy::trial::Trial;
use dwell_idle::{Clock, Halt, Idler, Monotonic, Nanos, Policy, Price, Record, Recorder};
use dwell_recording::{IdleIncludes, Layer, Reader, summary::Summary};
use dwell_replay::Rule;
use dwell_testing::{say, windows};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HALT: Halt = Halt::constant(Sleep {
    after: Nanos(50_000),
    sleeper: Nanos(3_000),
    waker: Nanos(1_000),
    latency: Nanos(4_000),
});

/// What [`Halt::leader`] makes, for a replay.
static ADAPTIVE: Entry = Entry {
    name: "adaptive",
    start: Start::Learner(|terms| Any::other(terms.start(Trial::leader))),
    about: "polls as dwell-idle does",
};

/// Waits for events of this thread's own making, which are due a while after the wait began; sleeps are real.
fn live<P: Policy, R: Record>(idler: &mut Idler<P, Monotonic, R>, waits: u32, until: Instant) -> u32 {
    let mut state = 7u64;
    let mut below = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for done in 0..waits {
        if done.is_multiple_of(1024) && Instant::now() > until {
            return done;
        }
        // Phases: events that are there, near ones, and ones for which it is better to sleep.
        let after = match (done / 5_000 % 40, below(8)) {
            (0, _) => 20_000,
            (1..12, 0..6) => below(3_000),
            _ => below(200),
        };
        let due = Nanos(Monotonic.now().get() + after);
        let mut idle = idler.idle(Some(Duration::from_millis(5)));
        let mut ready = Monotonic.now() >= due;
        while !ready && idle.polls() {
            ready = Monotonic.now() >= due;
        }
        if !ready && idle.halts() != Some(Duration::ZERO) {
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(Monotonic.now()).get()));
        }
        idle.wakes(&[done % 3]);
    }
    waits
}

/// Records `waits` under this policy and compares every window with that of the rule in a replay.
fn record_and_replay<P: Policy>(name: &str, policy: P, rule: Rule, waits: u32) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("waits.parquet");
    let recorder = Recorder::create(&path).unwrap();
    // A recording has no times lost, so that a replay cannot give way.
    let mut idler = Idler::new(Unreported(policy)).recording(recorder.sink_of("loop", waits as usize));
    let done = live(&mut idler, waits, Instant::now() + Duration::from_secs(60));
    let totals = idler.totals();
    let contents = recorder.finish().unwrap();
    let reader = Arc::new(Reader::open(&path).unwrap());
    let metadata = reader.metadata();
    let lost = metadata.lost.events.unwrap();
    assert_eq!(contents.episodes + lost, u64::from(done));
    assert_eq!((metadata.layer, metadata.idle_includes), (Layer::Iothread, IdleIncludes::Wake));
    assert!(Summary::of(&reader).unwrap().all.episodes == contents.episodes);

    let (recorded, replayed) = windows::recorded_and_replayed(&reader, &rule);
    assert_eq!(replayed.len(), recorded.len());
    let deviations = replayed.iter().zip(&recorded).filter(|(a, b)| a != b).count();
    say!(
        "{name}: {} windows recorded live ({} polled through, {} halts, {lost} lost), {deviations} deviations in the replay",
        recorded.len(),
        totals.caught,
        totals.halts,
    );
    assert_eq!((lost, deviations), (0, 0));
    assert!(totals.halts > 0 && totals.caught > 0, "nothing to decide: {totals:?}");
}

#[test]
fn million_windows_recorded_live_replay_without_deviation() {
    let price = Price::default();
    let terms = Terms { halt_cost: HALT.cost(price), wake_latency: HALT.typical(price).latency };
    let rule = Rule::Policy(&ADAPTIVE, terms);
    record_and_replay("leader with trials", HALT.leader(price), rule, 1_000_000);
}

/// A ring that is too small loses rows, and the recording counts them.
#[test]
fn lost_rows_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("waits.parquet");
    let recorder = Recorder::create(&path).unwrap();
    let mut idler = Idler::new(HALT.leader(Price::FREE)).recording(recorder.sink_of("loop", 2));
    for _ in 0..10_000 {
        idler.idle(None).wakes(&[]);
    }
    let contents = recorder.finish().unwrap();
    let lost = Reader::open(&path).unwrap().metadata().lost.events.unwrap();
    assert!(lost > 0 && contents.episodes > 0, "{lost}");
    assert_eq!(contents.episodes + lost, 10_000);
    // Unfinished, there is no file.
    drop(Recorder::create(&folder.path().join("other.parquet")).unwrap());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Two sinks of one name lost the whole recording: the rows of the second begin before the last one of the first.
#[test]
fn threads_of_one_name_are_one_idler() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("waits.parquet");
    let recorder = Recorder::create(&path).unwrap();
    let mut idlers = [(); 2].map(|()| Idler::new(Never).recording(recorder.sink_of("pool", 16)));
    for _ in 0..3 {
        idlers.iter_mut().for_each(|idler| idler.idle(None).wakes(&[]));
    }
    assert_eq!(recorder.finish().unwrap().episodes, 6);
    let summary = Summary::of(&Reader::open(&path).unwrap()).unwrap();
    assert_eq!((summary.all.episodes, summary.idlers.len()), (6, 1));
}

/// It went on until the threads did no longer.
#[test]
fn recording_ends_while_threads_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(&folder.path().join("waits.parquet")).unwrap();
    let over = AtomicBool::new(false);
    let limit = Instant::now() + Duration::from_secs(20);
    let all: Vec<u32> = (0..24).collect();
    std::thread::scope(|scope| {
        for name in ["one", "other"] {
            let mut idler = Idler::new(Never).recording(recorder.sink(name));
            let (over, all) = (&over, &all);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) && Instant::now() < limit {
                    (0..1_000).for_each(|_| idler.idle(None).wakes(all));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(recorder.finish().unwrap().episodes > 0);
        over.store(true, Ordering::Relaxed);
    });
    assert!(Instant::now() < limit, "it waited for the threads");
}

#[test]
fn windows_of_qemu_recorded_live_replay_without_deviation() {
    for revision in Revision::ALL {
        let params = Params::default_for(revision);
        let version = match revision {
            Revision::Global => (9, 2),
            Revision::PerHandler => (11, 0),
            Revision::Weighted => (11, 1),
        };
        let version = dwell_idle::policy::version::Version::new(version.0, version.1);
        let setting = dwell_idle::policy::param::Setting::defaults(Layer::Iothread, version);
        let aio = Aio::new(revision, params, [Handler::new(Kind::Polled); 3]);
        record_and_replay(revision.name(), aio, Rule::Layer(setting), 50_000);
    }
}
