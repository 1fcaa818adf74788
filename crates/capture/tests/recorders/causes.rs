//! What woke the tasks and threads of this machine, recorded live.

use dwell_capture::{GuestSource, Observer, Recorder, Status, Target, Until};
use dwell_machine::{Sysroot, cpu};
use dwell_recording::{Cause, Reader, Segment, Segments};
use dwell_testing::say;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Reports that the recording has begun.
struct Begun(Option<Sender<()>>);

impl Observer for Begun {
    fn status(&mut self, _: &Status) {
        // Whoever waits for this may be gone.
        let _ = self.0.take().map(|begun| begun.send(()));
    }
}

/// The CPUs of this machine, with what runs on them.
const CPUS: Target = Target::Guest { source: GuestSource::Auto, causes: true };

/// Records while `load` runs; `None` where that cannot be done.
fn recorded<T: Send>(test: &str, target: Target, load: impl FnOnce() -> T + Send) -> Option<(T, Segments)> {
    let _alone = crate::alone();
    let recorder = match Recorder::open(target, None) {
        Ok(recorder) => recorder,
        Err(error) => {
            dwell_testing::skip!("tracing", test, "{error}");
            return None;
        }
    };
    if matches!(recorder.target(), Target::Guest { causes: false, .. }) {
        dwell_testing::skip!("tracing", test, "no causes by {:?}", recorder.target());
        return None;
    }
    let (begun, ready) = channel();
    let stop = AtomicBool::new(false);
    let (done, (summary, bytes)) = std::thread::scope(|scope| {
        let stop = &stop;
        let load = scope.spawn(move || {
            ready.recv().unwrap();
            let done = load();
            stop.store(true, Ordering::Relaxed);
            done
        });
        let recorded = recorder.to_memory(&Until { duration: None, stop }, &mut Begun(Some(begun)));
        (load.join().unwrap(), recorded.unwrap())
    });
    let segments = Reader::from_bytes("live", bytes).unwrap().segments().unwrap().unwrap();
    say!("{test}: {:?}, {} lost", segments.shares(), summary.status.lost);
    Some((done, segments))
}

/// Whether a segment is of this thread, which may have ended before its name was read.
fn is_of(segments: &Segments, row: &Segment, tid: i32) -> bool {
    let name = &segments.tasks[row.task as usize];
    name.rsplit('/').next() == Some(&tid.to_string())
}

fn of(segments: &Segments, tid: i32) -> Vec<&Segment> {
    segments.rows.iter().filter(|row| is_of(segments, row, tid)).collect()
}

fn tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Passes on what comes, on a CPU of its own.
fn pass(cpu: u32, times: u32, mut from: PipeReader, mut to: PipeWriter) -> i32 {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
    for _ in 0..times {
        from.read_exact(&mut [0]).unwrap();
        // The other one has ended where this was the last.
        let _ = to.write_all(&[1]);
    }
    tid()
}

/// Each waits for the other, on CPUs of their own. Where the machine is busy they wait less often, and are preempted, but
/// what wakes them is still the other one.
#[test]
fn two_that_pass_a_byte_wake_each_other() {
    const TEST: &str = "two_that_pass_a_byte_wake_each_other";
    const TIMES: u32 = 2_000;
    let [first, second] = match cpu::online(&Sysroot::of_this_machine())[..] {
        [first, second, ..] => [first, second],
        _ => return dwell_testing::skip!("machine", TEST, "one CPU only"),
    };
    let load = || {
        let ((a, mut to_a), (b, to_b)) = (pipe().unwrap(), pipe().unwrap());
        to_a.write_all(&[1]).unwrap();
        let ping = std::thread::spawn(move || pass(first, TIMES, a, to_b));
        let pong = std::thread::spawn(move || pass(second, TIMES, b, to_a));
        [ping, pong].map(|thread| thread.join().unwrap())
    };
    let Some(([ping, pong], segments)) = recorded(TEST, CPUS, load) else { return };
    for (this, other) in [(ping, pong), (pong, ping)] {
        let (mut by_other, mut by_others) = (0u32, 0u32);
        for row in of(&segments, this) {
            let Cause::Task { waker, offset_ns } = row.cause else { continue };
            let waker = &segments.rows[waker as usize];
            assert!(offset_ns <= waker.run_ns, "{row:?} {waker:?}");
            match is_of(&segments, waker, other) {
                true => by_other += 1,
                false => by_others += 1,
            }
        }
        say!("{TEST}: {this} {by_other} times by {other}, {by_others} times by others");
        // Whoever started the thread woke it first.
        assert!(by_other >= TIMES / 10 && by_others <= 2, "{by_other} {by_others}");
    }
}

#[test]
fn what_sleeps_is_woken_by_a_timer() {
    const TEST: &str = "what_sleeps_is_woken_by_a_timer";
    let load = || {
        (0..200).for_each(|_| std::thread::sleep(Duration::from_micros(700)));
        tid()
    };
    let Some((sleeper, segments)) = recorded(TEST, CPUS, load) else { return };
    let naps = of(&segments, sleeper);
    let timers = naps.iter().filter(|row| matches!(row.cause, Cause::Timer { .. })).count();
    let coupled = naps.iter().filter(|row| matches!(row.cause, Cause::Task { .. })).count();
    say!("{TEST}: {timers} by timers and {coupled} by tasks of {} segments", naps.len());
    assert!(timers >= 50 && timers > 2 * coupled, "{timers} {coupled}");
}

/// Waits for what comes in a call that is recorded, and passes it on.
fn wait_and_pass(times: u32, mut from: PipeReader, mut to: PipeWriter) {
    for _ in 0..times {
        let mut fds = [rustix::event::PollFd::new(&from, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        from.read_exact(&mut [0]).unwrap();
        // The other one has ended where this was the last.
        let _ = to.write_all(&[1]);
    }
}

/// Two event loops by their names: each wait that slept was ended by the other one, but for the first.
#[test]
fn event_loops_that_wait_for_each_other_wake_each_other() {
    const TEST: &str = "event_loops_that_wait_for_each_other_wake_each_other";
    const TIMES: u32 = 2_000;
    const NAMES: [&str; 2] = ["dwell-loop-a", "dwell-loop-b"];
    let load = || {
        let ((a, mut to_a), (b, to_b)) = (pipe().unwrap(), pipe().unwrap());
        to_a.write_all(&[1]).unwrap();
        let spawn = |name: &str, from, to| {
            let named = std::thread::Builder::new().name(name.to_owned());
            named.spawn(move || wait_and_pass(TIMES, from, to)).unwrap()
        };
        let loops = [spawn(NAMES[0], a, to_b), spawn(NAMES[1], b, to_a)];
        loops.into_iter().for_each(|thread| thread.join().unwrap());
    };
    let target = Target::Thread { pid: None, comm: NAMES.map(str::to_owned).to_vec(), causes: true };
    let Some(((), segments)) = recorded(TEST, target, load) else { return };
    assert_eq!(segments.tasks.len(), 2, "{:?}", segments.tasks);
    let slept = segments.rows.iter().filter(|row| row.halted == Some(true));
    let (mut by_other, mut by_others) = (0u32, 0u32);
    for row in slept {
        match row.cause {
            Cause::Task { waker, .. } if segments.rows[waker as usize].task != row.task => by_other += 1,
            _ => by_others += 1,
        }
    }
    say!("{TEST}: {by_other} times by the other one, {by_others} times not");
    assert!(by_other >= TIMES / 10 && by_others <= by_other / 20, "{by_other} {by_others}");
}
