//! What is paired while ring buffers overflow: threads that change CPUs, the kernel's side of the buffers in
//! memory of our own, and what really happened as the oracle.

use crate::decode::Decoder;
use crate::format::Format;
use crate::perf::{Kernel, Sampler};
use crate::probe::Trace;
use crate::record::Round;
use dwell_trace::event::{Event, EventKind, SystemCall, TracepointKind};
use dwell_trace::pairing::{Names, PairedEpisode, Pairing};
use dwell_trace::thread::ThreadPairing;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};

/// Of both tracepoints of all system calls.
const FORMAT: &str = "name: x\nID: 1\nformat:\n\tfield:long id;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield:unsigned long args[6];\toffset:16;\tsize:48;\tsigned:0;\n\tfield:long ret;\toffset:16;\tsize:8;\tsigned:1;\n";
const ENTER: u16 = 0;
const LEAVE: u16 = 1;

/// Room for about twenty records; an eighth is more than the largest with a record of losses.
const RING_BYTES: usize = 2048;
const CPUS: u32 = 3;
const THREADS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The thread enters its wait, or leaves it.
    Call {
        thread: usize,
    },
    Migrate {
        thread: usize,
        cpu: usize,
    },
    /// The buffers are emptied; so many of the steps that follow happen while they are.
    Drain {
        during: usize,
    },
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let what = prop_oneof![
        16 => (0..THREADS).prop_map(|thread| Step::Call { thread }),
        4 => (0..THREADS, 0..CPUS as usize).prop_map(|(thread, cpu)| Step::Migrate { thread, cpu }),
        1 => (0usize..30).prop_map(|during| Step::Drain { during }),
    ];
    (1u64..50, what)
}

/// A buffer's writing end, and how many records did not fit since the last that did.
struct Cpu {
    kernel: Kernel,
    lost: u64,
}

/// Threads that wait, and the kernel that traces them.
struct World {
    steps: VecDeque<(u64, Step)>,
    now_ns: u64,
    cpus: Vec<Cpu>,
    /// Of each thread, its CPU and since when it waits.
    threads: [(usize, Option<u64>); THREADS],
    /// Every wait: thread, beginning, end.
    waits: BTreeSet<(i32, u64, u64)>,
    lost: u64,
}

fn tid(thread: usize) -> i32 {
    i32::try_from(thread).unwrap() + 1
}

/// A record of `perf_event_open(2)` with this type and body.
fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(8 + body.len()).unwrap();
    [&kind.to_ne_bytes()[..], &[0, 0], &size.to_ne_bytes(), body].concat()
}

impl World {
    fn call(&mut self, thread: usize) {
        let (cpu, waiting) = self.threads[thread];
        let number = if waiting.is_some() { LEAVE } else { ENTER };
        if let Some(since_ns) = waiting {
            self.waits.insert((tid(thread), since_ns, self.now_ns));
        }
        self.threads[thread].1 = if waiting.is_some() { None } else { Some(self.now_ns) };
        let poll = SystemCall::Poll.number().unwrap();
        // Waits without a timeout, which end with one descriptor ready.
        let last = if number == ENTER { [0, 0, u64::MAX] } else { [1, 0, 0] };
        let words = [poll.cast_unsigned(), last[0], last[1], last[2], 0, 0, 0];
        let raw: Vec<u8> =
            [u64::from(number)].iter().chain(&words).flat_map(|word| word.to_ne_bytes()).collect();
        let ids = [1, tid(thread)].map(i32::to_ne_bytes).concat();
        let length = u32::try_from(raw.len()).unwrap().to_ne_bytes();
        let sample = record(9, &[&ids[..], &self.now_ns.to_ne_bytes(), &[0; 8], &length, &raw].concat());
        self.write(cpu, &sample);
    }

    /// As `perf_output_begin`: what was lost is reported before the next record, if both fit.
    fn write(&mut self, cpu: usize, sample: &[u8]) {
        let Cpu { kernel, lost } = &mut self.cpus[cpu];
        let told: Vec<u8> = [7, *lost, 0, self.now_ns].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let both = if *lost > 0 { [&record(2, &told)[..], sample].concat() } else { sample.to_vec() };
        let fits = kernel.write(&both);
        self.lost += u64::from(!fits);
        *lost = if fits { 0 } else { *lost + 1 };
    }

    /// The next step; what it leaves to the reader is returned.
    fn next(&mut self) -> Option<Step> {
        let (after_ns, step) = self.steps.pop_front()?;
        self.now_ns += after_ns;
        match step {
            Step::Call { thread } => self.call(thread),
            Step::Migrate { thread, cpu } => self.threads[thread].0 = cpu,
            Step::Drain { .. } => {}
        }
        Some(step)
    }
}

struct Nameless;

impl Names for Nameless {
    fn process(&mut self, _: i32) -> Option<String> {
        None
    }
    fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
        Some(format!("t{tid}"))
    }
}

/// The waits that were found, those there were, and how many events were lost.
struct Outcome {
    found: BTreeSet<(i32, u64, u64)>,
    waits: BTreeSet<(i32, u64, u64)>,
    lost: u64,
}

/// As [`Recorder`](crate::Recorder) records, with this slack. `heeds_gaps`: whether the pairing learns of gaps.
fn run(steps: Vec<(u64, Step)>, slack_ns: u64, heeds_gaps: bool) -> Outcome {
    let (kernels, sampler) = Sampler::in_memory(CPUS, RING_BYTES);
    let format = Format::parse(FORMAT).unwrap();
    let decoders = [TracepointKind::AnyEnter, TracepointKind::AnyLeave];
    let mut trace = Trace::of(sampler, &decoders.map(|kind| Decoder::new(kind, &format).unwrap()));
    let world = RefCell::new(World {
        steps: steps.into(),
        now_ns: 1_000,
        cpus: kernels.into_iter().map(|kernel| Cpu { kernel, lost: 0 }).collect(),
        threads: [(0, None); THREADS],
        waits: BTreeSet::new(),
        lost: 0,
    });
    let mut pairing = ThreadPairing::new(None, Box::new(Nameless));
    let (mut found, mut round) = (vec![], Round::default());
    let mut observe = |event: &Event, found: &mut Vec<PairedEpisode>| {
        if heeds_gaps || !matches!(event.kind, EventKind::Gap { .. }) {
            pairing.observe(event, found);
        }
    };
    loop {
        let step = world.borrow_mut().next();
        let (during, last) = match step {
            Some(Step::Drain { during }) => (during, false),
            Some(_) => continue,
            None => (0, true),
        };
        let now_ns = world.borrow().now_ns;
        let meanwhile = Cell::new(during);
        let go_on = || {
            if let Some(left) = meanwhile.get().checked_sub(1) {
                meanwhile.set(left);
                world.borrow_mut().next();
            }
            world.borrow().now_ns
        };
        trace.drain_at(go_on, |event| {
            go_on();
            round.take(event);
        });
        round.take_late(&mut trace);
        let until_ns = if last { u64::MAX } else { now_ns.saturating_sub(slack_ns) };
        round.merge.release(until_ns, |event| observe(event, &mut found));
        if last {
            break;
        }
    }
    let World { waits, lost, .. } = world.into_inner();
    let of = |row: &PairedEpisode| {
        let name = &pairing.idlers()[row.idler as usize];
        (name.rsplit('/').next().unwrap().parse().unwrap(), row.start_ns, row.start_ns + row.idle_ns)
    };
    Outcome { found: found.iter().map(of).collect(), waits, lost }
}

/// A thread enters a wait on CPU 0, leaves it and enters another one on CPU 1, whose buffer is full, and leaves that on
/// CPU 0: of these two waits none was seen whole. Another thread has filled the buffer.
fn joined() -> Vec<(u64, Step)> {
    let (call, migrate) =
        (|thread| (10, Step::Call { thread }), |cpu| (10, Step::Migrate { thread: 0, cpu }));
    let mut steps = vec![(1, Step::Migrate { thread: 1, cpu: 1 })];
    steps.extend([call(1); 40]);
    steps.extend([call(0), migrate(1), call(0), call(0), migrate(0), call(0)]);
    steps.extend([(10, Step::Drain { during: 0 }), (1_000, Step::Drain { during: 0 }), call(1), call(1)]);
    steps
}

#[test]
fn no_wait_is_joined_over_a_gap_that_the_kernel_tells_of_later() {
    let Outcome { found, waits, lost } = run(joined(), 100, true);
    assert!(lost > 0 && !found.is_empty() && found.is_subset(&waits), "{lost} lost, {found:?} of {waits:?}");
    // Without the gap the two would be one wait.
    let Outcome { found, waits, .. } = run(joined(), 100, false);
    let wrong: Vec<_> = found.difference(&waits).collect();
    assert!(matches!(wrong[..], [(1, ..)]), "{wrong:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    /// However threads move and buffers overflow, every wait found is one that there was; and all are found
    /// where nothing was lost and no buffer was full.
    #[test]
    fn every_wait_found_is_one_that_there_was(
        steps in prop::collection::vec(step(), 0..500),
        slack_ns in 0u64..500,
    ) {
        let Outcome { found, waits, lost } = run(steps, slack_ns, true);
        prop_assert!(found.is_subset(&waits), "{lost} lost: {:?}", found.difference(&waits).collect::<Vec<_>>());
    }

    #[test]
    fn every_wait_is_found_where_buffers_suffice(steps in prop::collection::vec(step(), 0..9)) {
        let Outcome { found, waits, lost } = run(steps, 500, true);
        prop_assert_eq!((found, lost), (waits, 0));
    }
}
