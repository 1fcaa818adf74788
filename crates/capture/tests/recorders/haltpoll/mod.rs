//! The haltpoll governor of this machine, where it is in force: every decision is compared with the policy.
//!
//! Where BPF sees the governor, none may deviate. Where the kernel does not allow that, the times of
//! `power:cpu_idle` are compared, and one decision of 50 may, if a rule that is off deviates five times as
//! often: what keeps a CPU between the reading of the clock and the event cannot be seen.
//!
//! `DWELL_DECISIONS` is how many decisions are wanted (20,000 if it is not set, 100,000 for the long form).

mod decisions;

use decisions::{Counts, Follower};
use dwell_capture::{GuestSource, Observer, Recorder, Status, Target, Until};
use dwell_machine::{Machine, Sysroot, cpu, kernel};
use dwell_policy::guest::{Params, Revision};
use dwell_policy::version::Version;
use dwell_recording::{Chunk, Columns, Reader};
use dwell_testing::say;
use dwell_trace::event::Event;
use std::collections::BTreeMap;
use std::fs;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PARAMETERS: &str = "/sys/module/haltpoll/parameters";
const NAMES: [&str; 5] = [
    "guest_halt_poll_ns",
    "guest_halt_poll_shrink",
    "guest_halt_poll_grow",
    "guest_halt_poll_grow_start",
    "guest_halt_poll_allow_shrink",
];

fn read() -> Option<BTreeMap<&'static str, String>> {
    NAMES.iter().map(|name| Some((*name, fs::read_to_string(format!("{PARAMETERS}/{name}")).ok()?))).collect()
}

/// What is in force, and is put back at the end whatever happens.
struct Originals(BTreeMap<&'static str, String>);

impl Originals {
    fn put_back(&self) {
        for (name, value) in &self.0 {
            fs::write(format!("{PARAMETERS}/{name}"), value.trim()).unwrap();
        }
    }
}

impl Drop for Originals {
    fn drop(&mut self) {
        self.put_back();
        assert!(read().as_ref() == Some(&self.0) || std::thread::panicking(), "the originals are not back");
    }
}

fn write(params: &Params) {
    let flag = if params.guest_halt_poll_allow_shrink { "Y" } else { "N" };
    let values = [
        params.guest_halt_poll_ns.to_string(),
        params.guest_halt_poll_shrink.to_string(),
        params.guest_halt_poll_grow.to_string(),
        params.guest_halt_poll_grow_start.to_string(),
        flag.to_owned(),
    ];
    for (name, value) in NAMES.iter().zip(values) {
        fs::write(format!("{PARAMETERS}/{name}"), value).unwrap();
    }
}

/// Whether these are in force now: another process may have changed them.
fn in_force(params: &Params) -> bool {
    let Some(now) = read() else { return false };
    let is = |name: &str, value: u32| now[name].trim() == value.to_string();
    is(NAMES[0], params.guest_halt_poll_ns)
        && is(NAMES[1], params.guest_halt_poll_shrink)
        && is(NAMES[2], params.guest_halt_poll_grow)
        && is(NAMES[3], params.guest_halt_poll_grow_start)
        && (now[NAMES[4]].trim() == "Y") == params.guest_halt_poll_allow_shrink
}

/// The governor is asked for states, and its parameters can be written.
fn is_native(machine: &Sysroot) -> bool {
    let is = |name: &str| {
        let path = format!("/sys/devices/system/cpu/cpuidle/{name}");
        machine.text(&path).is_some_and(|text| text.trim() == "haltpoll")
    };
    let writable =
        |name: &&str| fs::OpenOptions::new().write(true).open(format!("{PARAMETERS}/{name}")).is_ok();
    is("current_driver") && is("current_governor") && NAMES.iter().all(writable)
}

/// The same events through four eyes: the governor's figures, the times of `power:cpu_idle`, and a policy
/// that is wrong with both.
struct Tap<'a> {
    exact: Follower,
    by_clock: Follower,
    wrong: [Follower; 2],
    wanted: u64,
    enough: &'a AtomicBool,
}

impl Observer for Tap<'_> {
    fn event(&mut self, event: &Event) {
        self.wrong.iter_mut().chain([&mut self.exact, &mut self.by_clock]).for_each(|one| one.observe(event));
    }

    fn status(&mut self, _: &Status) {
        // Where the governor cannot be seen, only times by the clock are there.
        if self.exact.counts().decisions.max(self.by_clock.counts().decisions) >= self.wanted {
            self.enough.store(true, Ordering::Relaxed);
        }
    }
}

fn pin(cpu: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Times from nothing to `most`, reproducible.
struct Times(u64);

impl Times {
    fn next(&mut self, most: u64) -> Duration {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Duration::from_nanos((self.0 >> 33) % most)
    }
}

/// On each CPU a thread that sleeps, and between two CPUs threads that wake each other through pipes. One
/// time of eight they sleep before: else each idle time ends within the first window where nothing disturbs
/// them, and no window ever changes.
fn load(stop: &AtomicBool, cpus: &[u32]) {
    let pass = |mut from: PipeReader, mut to: PipeWriter, cpu: u32| {
        pin(cpu);
        let (mut times, mut byte) = (Times(cpu.into()), [0]);
        while !stop.load(Ordering::Relaxed) && from.read_exact(&mut byte).is_ok() {
            let until = Instant::now() + times.next(60_000);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            if times.next(8).is_zero() {
                std::thread::sleep(times.next(1_500_000));
            }
            if to.write_all(&byte).is_err() {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for &cpu in cpus {
            scope.spawn(move || {
                pin(cpu);
                let mut times = Times(7 * u64::from(cpu));
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(times.next(400_000));
                }
            });
        }
        let (first, mut into_first) = std::io::pipe().unwrap();
        let (second, into_second) = std::io::pipe().unwrap();
        into_first.write_all(&[1]).unwrap();
        let (one, other) = (cpus[0], *cpus.last().unwrap());
        scope.spawn(move || pass(first, into_second, one));
        scope.spawn(move || pass(second, into_first, other));
    });
}

struct Run {
    /// Whether BPF sees the governor's own figures.
    seen: bool,
    exact: Counts,
    by_clock: Counts,
    wrong: Counts,
    cpus: usize,
    reader: Reader,
}

/// Records under load until there are `wanted` decisions; `None` with the reason where that cannot be.
fn run(params: Params, revision: Revision, wanted: u64, cpus: &[u32]) -> Result<Run, String> {
    write(&params);
    let recorder = Recorder::open(Target::Guest { source: GuestSource::Bpf, causes: false }, None)
        .map_err(|error| error.to_string())?;
    let enough = AtomicBool::new(false);
    let other = Params { guest_halt_poll_grow: params.guest_halt_poll_grow + 1, ..params };
    let mut tap = Tap {
        exact: Follower::new(revision, params, true),
        by_clock: Follower::new(revision, params, false),
        wrong: [false, true].map(|exact| Follower::new(revision, other, exact)),
        wanted,
        enough: &enough,
    };
    // 5,000 decisions take a second or two where CPUs idle.
    let patience = Duration::from_secs(15 + wanted / 500);
    let until = Until { duration: Some(patience), stop: &enough };
    let done = AtomicBool::new(false);
    let (summary, bytes) = std::thread::scope(|scope| {
        scope.spawn(|| load(&done, cpus));
        let recorded = recorder.to_memory(&until, &mut tap);
        done.store(true, Ordering::Relaxed);
        recorded.unwrap()
    });
    if !in_force(&params) {
        return Err("another process changed the parameters of haltpoll".to_owned());
    }
    let seen = summary.metadata.source.events.iter().any(|event| event == "fentry:haltpoll_reflect");
    Ok(Run {
        seen,
        exact: tap.exact.counts().clone(),
        by_clock: tap.by_clock.counts().clone(),
        wrong: tap.wrong[usize::from(seen)].counts().clone(),
        cpus: summary.status.idlers,
        reader: Reader::from_bytes("live", bytes).unwrap(),
    })
}

/// How many episodes say what window was in force.
fn windows(reader: &Reader) -> (usize, usize) {
    let (mut chunk, mut known, mut rows) = (Chunk::default(), 0, 0);
    for group in 0..reader.row_groups() {
        reader.read(group, Columns::WINDOW_NS, &mut chunk).unwrap();
        known += chunk.window_ns.iter().flatten().count();
        rows += chunk.rows;
    }
    (known, rows)
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn every_decision_of_this_machines_governor_is_the_policys() {
    const TEST: &str = "every_decision_of_this_machines_governor_is_the_policys";
    let _alone = crate::alone();
    let machine = Sysroot::of_this_machine();
    if !is_native(&machine) {
        return dwell_testing::skip!(
            "haltpoll",
            TEST,
            "haltpoll is not in force on this machine, or may not be set"
        );
    }
    let version = kernel::release(&machine).and_then(|release| Version::parse(&release));
    let Some(Ok(revision)) = version.map(Revision::of) else {
        return dwell_testing::skip!("haltpoll", TEST, "the rule of this kernel is not known");
    };
    let wanted = std::env::var("DWELL_DECISIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let originals = Originals(read().unwrap());
    let settings = [
        Params::default(),
        Params { guest_halt_poll_ns: 100_000, guest_halt_poll_grow: 3, ..Params::default() },
        Params { guest_halt_poll_grow_start: 10_000, guest_halt_poll_shrink: 3, ..Params::default() },
        Params { guest_halt_poll_ns: 400_000, guest_halt_poll_shrink: 0, ..Params::default() },
    ];
    let cpus = cpu::online(&machine);
    say!(
        "max_ns  decisions  halts  changes  unexplained  past_window  clock_differs  by_clock(near/unexplained)  wrong_rule  windows"
    );
    let mut all = Counts::default();
    let (mut wrong, mut by_the_clock) = (0, false);
    for params in settings {
        let run = match run(params, revision, wanted / settings.len() as u64, &cpus) {
            Ok(run) => run,
            Err(why) => return dwell_testing::skip!("tracing", TEST, "{why}"),
        };
        let Run { seen, by_clock, .. } = &run;
        let exact = if *seen { &run.exact } else { by_clock };
        let (known, rows) = windows(&run.reader);
        say!(
            "{:>6}  {:>9}  {:>5}  {:>7}  {:>11}  {:>11}  {:>13}  {:>6}/{:<19}  {:>10}  {known}/{rows}",
            params.guest_halt_poll_ns,
            exact.decisions,
            exact.halts,
            exact.changes,
            exact.deviations,
            exact.explained.woken_past_the_window,
            exact.clock_differs,
            by_clock.explained.near_a_threshold,
            by_clock.deviations,
            run.wrong.deviations,
        );
        if *seen {
            assert_eq!((exact.deviations, &exact.first), (0, &vec![]), "{exact:?}");
            assert_eq!(exact.explained.near_a_threshold + exact.explained.setting_changed, 0);
        } else {
            // Between the two readings of the governor a hypervisor may take the CPU away, which the events
            // do not show.
            say!(
                "the governor's own figures are not to be had here; by the times of power:cpu_idle: {:?}",
                exact
            );
        }
        by_the_clock |= !seen;
        all.deviations += exact.deviations;
        all.explained.near_a_threshold += exact.explained.near_a_threshold;
        all.decisions += exact.decisions;
        all.halts += exact.halts;
        all.changes += exact.changes;
        all.explained.woken_past_the_window += exact.explained.woken_past_the_window;
        all.clock_differs += exact.clock_differs;
        all.resumed += exact.resumed;
        wrong += run.wrong.deviations;
        if exact.decisions > 1_000 {
            assert_eq!(run.cpus, cpus.len(), "CPUs that were seen to idle");
        }
    }
    drop(originals);
    say!(
        "all: {} decisions, {} halts, {} changes of the window, {} unexplained deviations; explained: {} polls woken past their window, {} near a threshold; {} \
         halts with another outcome by the times of power:cpu_idle; resumed {} times after losses; {wrong} deviations of a rule that is off",
        all.decisions,
        all.halts,
        all.changes,
        all.deviations,
        all.explained.woken_past_the_window,
        all.explained.near_a_threshold,
        all.clock_differs,
        all.resumed
    );
    if all.decisions < wanted {
        say!("UNKNOWN {TEST}: other work kept the CPUs busy: {} of {wanted} decisions", all.decisions);
    } else if by_the_clock && wrong <= 100 {
        say!("UNKNOWN {TEST}: too few decisions tell the rule from one that is off");
    } else {
        assert!(wrong > 100 && wrong > 5 * all.deviations, "a rule that is off deviates {wrong} times");
        assert!(all.deviations * 50 <= all.decisions, "{all:?}");
    }
}
