//! What benchmarks of recorders share.

use dwell_capture::{Observer, Recorder, Status, Until};
use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set once the recorder runs.
struct Ready<'a>(&'a AtomicBool);

impl Observer for Ready<'_> {
    fn status(&mut self, _: &Status) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a load returns that runs while this recorder does, if there is one; how many events that reads, and its CPU time \[ns\].
/// The flag is set when the load is over.
pub(crate) fn recorded<T>(
    recorder: Option<Recorder>,
    stop: &AtomicBool,
    load: impl FnOnce() -> T,
) -> (T, u64, u64) {
    let ready = AtomicBool::new(recorder.is_none());
    std::thread::scope(|scope| {
        let recording = recorder.map(|recorder| {
            scope.spawn(|| {
                let until = Until { duration: None, stop };
                let (summary, _) = recorder.to_memory(&until, &mut Ready(&ready)).expect("it is recorded");
                (summary.status.events, own_cpu_ns())
            })
        });
        while !ready.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let done = load();
        stop.store(true, Ordering::Relaxed);
        let (events, cpu_ns) = recording.map_or((0, 0), |thread| thread.join().expect("it is recorded"));
        (done, events, cpu_ns)
    })
}

/// `None`: the calling thread.
pub(crate) fn pin(thread: Option<Pid>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(thread.or(Some(gettid())), &set).expect("the CPU may be used");
}

pub(crate) fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// How many rounds are measured.
pub(crate) fn rounds() -> u32 {
    std::env::var("DWELL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(9)
}

/// The median with the least and the largest.
pub(crate) fn range(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    format!(
        "{:.digits$} ({:.digits$} to {:.digits$})",
        at(values.len() / 2),
        at(0),
        at(values.len().saturating_sub(1))
    )
}
