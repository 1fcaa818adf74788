//! `dwell control` over two I/O threads whose disks differ: what each costs before, under and after control.

use crate::control::{Place, wait_for};
use crate::guest::{Options, Qemu, Release};
use dwell_knobs::iothread::{self, IoThread};
use dwell_machine::Sysroot;
use dwell_machine::threads::{Thread, Usage};
use dwell_testing::say;
use std::time::{Duration, Instant};

const IDS: [&str; 2] = ["io0", "io1"];
/// The halt cost \[us\].
const K_US: f64 = 20.0;
/// The longest stretch that may cost no more than the originals.
const STRETCH: Duration = Duration::from_secs(10);

/// The counters of a thread at one time.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    usage: Usage,
    requests: u64,
}

/// What a thread used between two readings.
#[derive(Clone, Copy)]
struct Used {
    seconds: f64,
    cpu_us: f64,
    sleeps: f64,
    requests: f64,
}

impl Used {
    fn between(from: Reading, to: Reading) -> Used {
        let used = to.usage - from.usage;
        Used {
            seconds: (to.at - from.at).as_secs_f64(),
            cpu_us: used.cpu.get() as f64 / 1e3,
            sleeps: used.switches.voluntary as f64,
            requests: (to.requests - from.requests) as f64,
        }
    }

    fn cost_us(self) -> f64 {
        self.cpu_us + K_US * self.sleeps
    }

    fn per_request(self) -> f64 {
        self.cost_us() / self.requests
    }

    /// As a share of a CPU.
    fn per_second(self) -> f64 {
        self.cost_us() / 1e6 / self.seconds
    }
}

/// Reads both threads once a second for so long.
fn readings(place: &Place, threads: [Thread; 2], duration: Duration) -> Vec<[Reading; 2]> {
    let machine = Sysroot::of_this_machine();
    let begun = Instant::now();
    let mut readings = vec![];
    loop {
        let mut monitor = iothread::connect(&machine, &place.monitor).expect("the monitor");
        readings.push([0, 1].map(|number| Reading {
            requests: iothread::requests(&mut monitor, Some(IDS[number])).expect("requests are counted"),
            at: Instant::now(),
            usage: Usage::of(threads[number]).expect("the thread is there"),
        }));
        // It serves one client at a time.
        drop(monitor);
        if begun.elapsed() >= duration {
            return readings;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// What one thread used in all of the time, and the most that a request and a second cost in a stretch.
fn used(readings: &[[Reading; 2]], number: usize) -> (Used, [f64; 2]) {
    let of: Vec<Reading> = readings.iter().map(|both| both[number]).collect();
    let whole = Used::between(of[0], of[of.len() - 1]);
    let ends = |from: &Reading| of.iter().find(|to| to.at - from.at >= STRETCH).copied();
    let stretches = of.iter().filter_map(|from| Some(Used::between(*from, ends(from)?)));
    let worst = stretches.fold([f64::NAN; 2], |worst, used| {
        [worst[0].max(used.per_request()), worst[1].max(used.per_second())]
    });
    (whole, worst)
}

/// Seconds under the originals, under control, and under the originals again: as `DWELL_CONTROL_SECONDS` has
/// it, or a few.
fn seconds() -> [u64; 3] {
    let asked = std::env::var("DWELL_CONTROL_SECONDS").ok().and_then(|number| number.parse().ok());
    asked.map_or([5, 20, 5], |seconds| [seconds; 3])
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn two_threads_with_different_disks_each_get_their_own_setting() {
    const NAME: &str = "two_threads_with_different_disks_each_get_their_own_setting";
    let _alone = crate::alone();
    // io0 reads a file; each request of io1 takes half a millisecond.
    let more = [
        "-object",
        "iothread,id=io1,poll-max-ns=1000000",
        "-blockdev",
        "null-co,node-name=d1,size=1073741824,latency-ns=500000,read-zeroes=on",
        "-device",
        "virtio-blk-pci,drive=d1,iothread=io1",
    ];
    let options = Options { iothread: "poll-max-ns=1000000", more: &more, ..Options::default() };
    let qemu = match Qemu::booted(Release::Installed, &options) {
        Ok(qemu) => qemu,
        Err(cause) => return dwell_testing::skip!("qemu", NAME, "{cause}"),
    };
    let place = Place::new(&qemu.monitor(), qemu.file("").as_path());
    let mut monitor = iothread::connect(&Sysroot::of_this_machine(), &place.monitor).unwrap();
    let listed = iothread::list(&mut monitor).unwrap();
    let requests = |id| iothread::requests(&mut monitor, Some(id)).unwrap();
    let [_, of_io1] = IDS.map(requests);
    drop(monitor);
    let tid = |id: &str| {
        listed.iter().find(|thread| *thread.id == *id).and_then(|IoThread { thread_id, .. }| *thread_id)
    };
    let threads = IDS.map(|id| Thread::of(qemu.pid(), tid(id).expect("the number of the thread")));
    let originals = IDS.map(|id| place.properties(id));
    let [before_s, control_s, after_s] = seconds().map(Duration::from_secs);
    std::thread::sleep(Duration::from_secs(1));
    let before = readings(&place, threads, before_s);
    if before.last().is_none_or(|last| last[1].requests == of_io1) {
        return dwell_testing::skip!(
            "qemu",
            NAME,
            "the guest reads its first disk only; .ci/qemu makes one that reads all"
        );
    }
    let mut running = place.control("active");
    let started = running.line();
    if started.contains("cannot record") {
        return dwell_testing::skip!("qemu", NAME, "{}", started.trim());
    }
    let controlled = readings(&place, threads, control_s);
    let maxima =
        || IDS.map(|id| place.of(id).and_then(|thread| thread["present"]["poll-max-ns"].as_i64()).unwrap());
    // In its bursts a thread does not poll: what is chosen is what the controller reports.
    let settings = wait_for("both have another setting", || {
        Some(maxima()).filter(|ns| ns.iter().all(|ns| *ns < 1_000_000))
    });
    place.stop();
    let lines = running.ended();
    lines.lines().for_each(|line| say!("{NAME}: {line}"));
    assert_eq!(IDS.map(|id| place.properties(id)), originals);
    let after = readings(&place, threads, after_s);
    for (number, id) in IDS.iter().enumerate() {
        let arms = [("original, before", &before), ("controlled", &controlled), ("original, after", &after)];
        let [first, controlled, last] = arms.map(|(arm, readings)| {
            let (used, [worst_request, worst_second]) = used(readings, number);
            say!(
                "{NAME}: {id}: {arm}: {:.0} us of CPU and {:.2} sleeps per request, cost {:.0} us per request and {:.3} of a CPU; \
                 {:.0} requests/s; the worst 10 s {worst_request:.0} us and {worst_second:.3}",
                used.cpu_us / used.requests,
                used.sleeps / used.requests,
                used.per_request(),
                used.per_second(),
                used.requests / used.seconds
            );
            (used.per_request(), worst_request)
        });
        let original = first.0.min(last.0);
        assert!(controlled.1 <= 1.02 * original, "{id}: {} us, originally {original} us", controlled.1);
    }
    // Each had a change that was decided on its own episodes.
    let changes = |id: &str| {
        lines.lines().filter(|line| line.contains(id) && line.contains("an episode instead of")).count()
    };
    assert!(IDS.iter().all(|id| changes(id) >= 1), "{lines}");
    assert!(settings.iter().all(|ns| *ns <= 40_000), "{settings:?}");
    assert_ne!(settings[0], settings[1]);
}
