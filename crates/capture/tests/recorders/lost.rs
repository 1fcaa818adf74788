//! Against an independent counter: a thread that makes exactly so many calls. Whatever the recorder does not
//! read is counted as lost, also when the recorder is stopped while the load runs and ends, and nothing
//! follows on that CPU.

use dwell_capture::{Observer, Recorder, Status, Target, Until};
use dwell_testing::say;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

const NAME: &str = "dwell-calls";
/// A ring buffer holds 16 MiB; enter and exit of a call take about 150 bytes.
const CALLS: u64 = 150_000;

/// Holds the recorder from its first round until it is let go.
struct Held {
    begun: Option<Sender<()>>,
    go_on: Receiver<()>,
}

impl Observer for Held {
    fn status(&mut self, _: &Status) {
        if let Some(begun) = self.begun.take() {
            begun.send(()).unwrap();
            self.go_on.recv().unwrap();
        }
    }
}

/// Makes exactly `calls` calls that wait for nothing, on one CPU, in a thread of its own.
fn make_calls(calls: u64) {
    let thread = std::thread::Builder::new().name(NAME.to_owned());
    let run = move || {
        let allowed = sched_getaffinity(None).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        let ready = eventfd(1, EventfdFlags::empty()).unwrap();
        for _ in 0..calls {
            let mut fds = [PollFd::new(&ready, PollFlags::IN)];
            assert_eq!(poll(&mut fds, None).unwrap(), 1);
        }
    };
    thread.spawn(run).unwrap().join().unwrap();
}

/// What a recorder that was held meanwhile has counted; `None` where nothing can be recorded.
fn record(test: &str) -> Option<(Status, bool)> {
    let target = Target::Thread { pid: None, comm: vec![NAME.to_owned()], causes: false };
    let recorder = match Recorder::open(target, None) {
        Ok(recorder) => recorder,
        Err(error) => {
            dwell_testing::skip!("tracing", test, "{error}");
            return None;
        }
    };
    let ((begun, has_begun), (let_go, go_on)) = (channel(), channel());
    let (stop, mut held) = (AtomicBool::new(false), Held { begun: Some(begun), go_on });
    let (summary, _) = std::thread::scope(|scope| {
        let recording = scope.spawn(|| recorder.to_memory(&Until { duration: None, stop: &stop }, &mut held));
        has_begun.recv().unwrap();
        make_calls(CALLS);
        stop.store(true, Ordering::Relaxed);
        let_go.send(()).unwrap();
        recording.join().unwrap().unwrap()
    });
    assert_eq!(summary.metadata.lost.events, Some(summary.status.lost));
    Some((summary.status, summary.metadata.lost.at_least))
}

#[test]
fn episodes_and_losses_are_the_calls_that_were_made_in_20_of_20_runs() {
    const TEST: &str = "episodes_and_losses_are_the_calls_that_were_made_in_20_of_20_runs";
    let _alone = crate::alone();
    const RUNS: u32 = 20;
    let (mut lost, mut least) = (0, u64::MAX);
    for run in 0..RUNS {
        let Some((status, at_least)) = record(TEST) else { return };
        if at_least {
            return dwell_testing::skip!(
                "tracing",
                TEST,
                "this kernel (before 6.0) does not count losses by event"
            );
        }
        assert_eq!(status.events + status.lost, 2 * CALLS, "run {run}: {status:?}");
        // A call is an episode, or one or both of its events are lost; one of them alone is incomplete.
        let lost_calls = (status.lost + status.incomplete) / 2;
        assert_eq!(status.episodes + lost_calls, CALLS, "run {run}: {status:?}");
        (lost, least) = (lost + status.lost, least.min(status.lost));
    }
    assert!(least > 0, "nothing was lost in some run, which shows nothing");
    say!(
        "{RUNS} of {RUNS} runs: episodes + lost = calls ({CALLS} each), the recorder stopped meanwhile; {lost} events lost, at \
         least {least} in each run"
    );
}
