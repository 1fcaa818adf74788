//! The I/O threads of running QEMUs: finding them, and what is seen of one.
//!
//! # What can be seen
//! A thread that does not poll sleeps through every episode, and the recorder of system calls sees how long
//! each was. One that polls ends most episodes without a system call: from outside nothing shows how many
//! there were. So it is made not to poll for the length of a burst (a *probe*: two writes of `poll-max-ns`),
//! every [`EVERY`], and sooner where its CPU time or its sleeps change.
//!
//! What the setting in force did is counted between two probes: sleeps, CPU time and the requests that QEMU
//! has served of the disks of this thread. For as many requests as in the probe, the CPU time on top of that
//! in the probe is what polling used. It is too low by the CPU time of the sleeps that polling saved.

use super::bursts::Bursts;
use super::observe::Source;
use crate::core::{Controller, Episode, Observed};
use anyhow::{Context, anyhow, ensure};
use dwell_capture::{Observer, RecordError, Target};
use dwell_knobs::iothread::{self, IoThread, IothreadError};
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::lease::{Lease, SetError, Subject};
use dwell_knobs::qmp::{Monitor, QmpError};
use dwell_knobs::value::ValueError;
use dwell_machine::threads::{Thread as KernelThread, Usage};
use dwell_machine::{Machine, Sysroot, Writable, io_thread_comm, process};
use dwell_policy::Nanos;
use dwell_policy::iothread::Property;
use dwell_policy::param::Setting;
use dwell_replay::{Counts, Span};
use dwell_stats::whole::whole;
use dwell_trace::pairing::PairedEpisode;
use std::time::{Duration, Instant};

/// The usual time between two probes.
const EVERY: Duration = Duration::from_secs(5);
/// The shortest time between two probes.
const SOONEST: Duration = Duration::from_millis(500);
/// A change of the CPU time or of the sleeps by this share is a change of the load …
const OTHER_LOAD: f64 = 0.25;
/// … unless it is below so many sleeps a second, or this share of a CPU.
const FEW_SLEEPS: f64 = 200.0;
const LITTLE_CPU: f64 = 0.05;
/// Writes that are left for changes: by the usual probes, and by those that come sooner.
const LEFT: usize = 6;
const LEFT_SOONER: usize = 20;
/// A probe is seldom, and so many times longer than the usual burst.
const LONGER: u32 = 5;
/// What uses less than this share of a CPU is not recorded.
const LEAST_CPU: f64 = 0.001;
/// The fewest requests by which two times are compared.
const FEWEST_REQUESTS: f64 = 16.0;

/// Why a thread was not observed or set.
pub(super) enum Trouble {
    /// Its QEMU does not answer, or is another one.
    Lost(String),
    /// Its values are not those that were written, or it cannot be recorded.
    Other(anyhow::Error),
}

impl From<SetError> for Trouble {
    fn from(error: SetError) -> Trouble {
        let lost = match &error {
            SetError::Restarted { .. } => true,
            SetError::Qemu(error) => is_lost(error),
            SetError::Value(ValueError::Qemu { source, .. }) => is_lost(source),
            _ => false,
        };
        Trouble::of(lost, error.into())
    }
}

impl From<IothreadError> for Trouble {
    fn from(error: IothreadError) -> Trouble {
        Trouble::of(is_lost(&error), error.into())
    }
}

impl From<RecordError> for Trouble {
    fn from(error: RecordError) -> Trouble {
        let lost = matches!(error, RecordError::NoProcess(_));
        Trouble::of(lost, anyhow!(error).context("cannot record the waits of the I/O thread"))
    }
}

impl Trouble {
    pub(super) fn of(lost: bool, error: anyhow::Error) -> Trouble {
        if lost { Trouble::Lost(format!("{error:#}")) } else { Trouble::Other(error) }
    }
}

fn is_lost(error: &IothreadError) -> bool {
    matches!(error, IothreadError::Qmp(error) if !error.is_refusal() && !matches!(error, QmpError::Path { .. }))
}

/// An I/O thread as it was found.
pub(super) struct Found {
    pub(super) subject: Subject,
    pub(super) setting: Setting,
    pub(super) thread: KernelThread,
}

/// The I/O threads of the QEMU at a socket.
pub(super) fn find(machine: &dyn Writable, socket: &str) -> anyhow::Result<Vec<Found>> {
    let mut monitor = iothread::connect(machine, socket)?;
    let version = monitor.greeting().version.clone();
    let threads = iothread::list(&mut monitor)?;
    ensure!(!threads.is_empty(), "the QEMU at {socket} has no I/O thread");
    let found = threads.into_iter().map(|thread| {
        let (pid, tid) = kernel_thread(&monitor, &thread, None)?;
        let peer = monitor.peer_pid().filter(|peer| *peer != 0);
        ensure!(
            peer.is_none_or(|peer| peer == pid),
            "the monitor at {socket} is of process {}, and reports thread {tid}, which is of process {pid}",
            peer.unwrap_or_default()
        );
        let setting = iothread::setting(&thread, &version)?;
        let target = IothreadTarget { socket: socket.to_owned(), id: thread.id, domain: None };
        Ok(Found { subject: Subject::Iothread(target), setting, thread: KernelThread::of(pid, tid) })
    });
    found.collect()
}

pub(super) fn find_one(machine: &dyn Writable, target: &IothreadTarget) -> anyhow::Result<Found> {
    let all = find(machine, &target.socket)?;
    let found = all.into_iter().find(|found| found.subject.iothread().is_some_and(|it| it.id == target.id));
    found.with_context(|| format!("the QEMU at {} has no I/O thread {}", target.socket, target.id))
}

/// The counters of a thread and its QEMU at one time.
#[derive(Clone, Copy)]
pub struct Reading {
    at: Instant,
    usage: Usage,
    /// Of its disks; `None` where that is not known.
    requests: Option<u64>,
}

/// What happened between two readings.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Its length \[s\].
    pub seconds: f64,
    /// CPU time of the thread \[ns\].
    pub cpu_ns: f64,
    /// How often the thread slept.
    pub sleeps: f64,
    /// Requests that the VM's disks served; 0 where that is not known.
    pub requests: f64,
}

impl Reading {
    /// The counters of a thread now.
    ///
    /// # Errors
    /// Where there is no such thread.
    pub fn of(thread: KernelThread, requests: Option<u64>) -> anyhow::Result<Reading> {
        Ok(Reading { at: Instant::now(), usage: usage(thread)?, requests })
    }

    /// What happened since an earlier reading.
    pub fn since(&self, before: &Reading) -> Turn {
        let used = self.usage - before.usage;
        let requests =
            self.requests.zip(before.requests).map_or(0, |(now, before)| now.saturating_sub(before));
        Turn {
            seconds: self.at.duration_since(before.at).as_secs_f64().max(1e-9),
            cpu_ns: used.cpu.get() as f64,
            sleeps: used.switches.voluntary as f64,
            requests: requests as f64,
        }
    }
}

/// What a thread used each second.
#[derive(Clone, Copy)]
struct Rates {
    cpu: f64,
    sleeps: f64,
}

impl Rates {
    fn of(turn: &Turn) -> Rates {
        Rates { cpu: turn.cpu_ns / 1e9 / turn.seconds, sleeps: turn.sleeps / turn.seconds }
    }

    /// Whether this is another load.
    fn differ(self, other: Rates) -> bool {
        let differ = |a: f64, b: f64, little: f64| (a - b).abs() > (OTHER_LOAD * a.max(b)).max(little);
        differ(self.cpu, other.cpu, LITTLE_CPU) || differ(self.sleeps, other.sleeps, FEW_SLEEPS)
    }
}

/// What is seen of one I/O thread.
pub(super) struct IothreadSource {
    target: IothreadTarget,
    thread: KernelThread,
    burst: Duration,
    halt_cost: Nanos,
    /// Since then the setting in force has been so without a probe.
    since: Option<Reading>,
    /// When it was last looked at.
    looked: Option<Reading>,
    /// The rates first seen after the last probe.
    rates: Option<Rates>,
    probed: Option<Instant>,
    /// When its values were last compared with those written.
    checked: Instant,
    bursts: Bursts,
    /// Whether it was said that a thread that polls cannot be advised on.
    told: bool,
}

/// A thread is recorded on whatever CPU it runs.
const ANY_CPU: &str = "";
/// How often values are compared between bursts: each time QEMU is connected to.
const CHECK: Duration = Duration::from_secs(1);

impl IothreadSource {
    pub(super) fn new(
        target: IothreadTarget,
        thread: KernelThread,
        burst: Nanos,
        halt_cost: Nanos,
    ) -> IothreadSource {
        IothreadSource {
            target,
            thread,
            burst: Duration::from_nanos(burst.get()),
            halt_cost,
            since: None,
            looked: None,
            rates: None,
            probed: None,
            checked: Instant::now(),
            bursts: Bursts::of(Target::Thread {
                pid: i32::try_from(thread.tid()).ok(),
                comm: vec![],
                causes: false,
            }),
            told: false,
        }
    }
}

impl Source for IothreadSource {
    fn lost(&self) -> u64 {
        self.bursts.lost
    }

    fn is_to_be_checked(&mut self) -> bool {
        let due = self.checked.elapsed() >= CHECK;
        if due {
            self.checked = Instant::now();
        }
        due
    }

    fn observe(
        &mut self,
        machine: &dyn Writable,
        controller: &mut Controller,
        lease: Option<&mut Lease>,
        now_ns: u64,
    ) -> Result<Look, Trouble> {
        let now = self.counters(None)?;
        let Some(looked) = self.looked.replace(now) else {
            self.since = Some(self.reading(machine)?);
            return Ok(Look::Nothing { quiet: false });
        };
        let rates = Rates::of(&now.since(&looked));
        if rates.cpu + rates.sleeps * self.halt_cost.get() as f64 / 1e9 <= LEAST_CPU {
            return Ok(Look::Nothing { quiet: true });
        }
        let present = controller.status(now_ns).present;
        let polls = present.get(Property::PollMaxNs.name()) != Some(0);
        let Some(lease) = lease.filter(|_| polls) else {
            // Without a lease nothing may be written.
            return match polls {
                true if std::mem::replace(&mut self.told, true) => Ok(Look::Nothing { quiet: true }),
                true => Ok(Look::Polls),
                false => self.burst(machine).map(Look::Episodes),
            };
        };
        if !self.is_due(rates, controller, now_ns) {
            return Ok(Look::Nothing { quiet: false });
        }
        let observed = self.probe(machine, lease, &present)?;
        controller.wrote(now_ns, 2);
        Ok(Look::Episodes(observed))
    }
}

impl IothreadSource {
    fn is_due(&mut self, rates: Rates, controller: &mut Controller, now_ns: u64) -> bool {
        let Some(probed) = self.probed else { return controller.may_write_more(now_ns, 2) };
        let before = *self.rates.get_or_insert(rates);
        if probed.elapsed() >= EVERY {
            return controller.may_write_more(now_ns, 2 + LEFT);
        }
        probed.elapsed() >= SOONEST
            && rates.differ(before)
            && controller.may_write_more(now_ns, 2 + LEFT_SOONER)
    }

    /// Episodes of a thread that does not poll, and whose setting in force that is.
    fn burst(&mut self, machine: &dyn Writable) -> Result<Vec<Observed>, Trouble> {
        let (begun, before) = (Instant::now(), self.since);
        let recorded = self.record(self.burst)?;
        let took = begun.elapsed();
        let after = self.reading(machine)?;
        self.since = Some(after);
        self.looked = Some(after);
        let since = before.map_or(took, |before| after.at.duration_since(before.at));
        let halts = recorded.episodes.len() as u64;
        let counted = Counts { episodes: halts, halts, exits: halts, ..Counts::default() };
        Ok(recorded.observed(counted, false, since))
    }

    /// Episodes of a thread that polls, while it does not, and what it did since the last probe.
    fn probe(
        &mut self,
        machine: &dyn Writable,
        lease: &mut Lease,
        present: &Setting,
    ) -> Result<Vec<Observed>, Trouble> {
        let mut never = *present;
        let _ = never.set(Property::PollMaxNs.name(), 0);
        // What takes long is done before the setting is changed.
        self.bursts.open(ANY_CPU)?;
        let last = self.reading(machine)?;
        lease.set(machine, &never)?;
        let probed = self.reading(machine).and_then(|begin| {
            let recorded = self.record(self.burst * LONGER)?;
            Ok((begin, recorded, self.reading(machine)?))
        });
        // Whatever happened meanwhile.
        lease.set(machine, present)?;
        let (begin, recorded, end) = probed?;
        let first = self.since.replace(self.reading(machine)?).unwrap_or(last);
        self.looked = self.since;
        (self.probed, self.rates) = (Some(Instant::now()), None);
        let took = end.at.duration_since(begin.at);
        let counted = recorded.counted([first, last], [begin, end]);
        let since = took + last.at.duration_since(first.at);
        Ok(recorded.observed(counted, true, since))
    }

    fn record(&mut self, length: Duration) -> Result<Recorded, Trouble> {
        let mut recorded = Recorded::default();
        self.bursts.watch(ANY_CPU, length, &mut recorded)?;
        Ok(recorded)
    }

    fn counters(&self, requests: Option<u64>) -> Result<Reading, Trouble> {
        Reading::of(self.thread, requests).map_err(|error| Trouble::Lost(format!("{error:#}")))
    }

    fn reading(&self, machine: &dyn Writable) -> Result<Reading, Trouble> {
        let mut monitor = iothread::connect(machine, &self.target.socket)?;
        let requests = iothread::requests(&mut monitor, Some(&self.target.id));
        let requests = match requests {
            Ok(requests) => Some(requests),
            Err(error) if is_lost(&error) => return Err(error.into()),
            // A qemu-storage-daemon does not count them.
            Err(_) => None,
        };
        self.counters(requests)
    }
}

/// What is seen of a thread.
pub(super) enum Look {
    /// Nothing that decides; `quiet`: it is next to idle.
    Nothing {
        /// Whether the next look can be late.
        quiet: bool,
    },
    /// It polls, which was not found before, and may not be made not to.
    Polls,
    Episodes(Vec<Observed>),
}

/// The episodes of a burst, from the first start to the last end.
#[derive(Default)]
struct Recorded {
    episodes: Vec<Episode>,
    span: Span,
}

impl Observer for Recorded {
    fn episodes(&mut self, _: &[String], found: &[PairedEpisode]) {
        for episode in found {
            self.episodes.push(Episode::of(episode.idle_ns));
            self.span.add(episode.start_ns, episode.idle_ns);
        }
    }
}

impl Recorded {
    /// With what was counted under the setting in force, in all of the time since the last burst.
    fn observed(self, counted: Counts, elsewhere: bool, since: Duration) -> Vec<Observed> {
        if self.episodes.is_empty() {
            return vec![];
        }
        let share = (self.span.ns() as f64 / since.as_nanos().max(1) as f64).clamp(1e-6, 1.0);
        vec![Observed { share, elsewhere, ..Observed::new(0, counted, self.episodes) }]
    }

    /// What a setting did between the readings `force`, for as much work as there was in the time of these
    /// episodes: a part of that between the readings `probe`.
    fn counted(&self, force: [Reading; 2], probe: [Reading; 2]) -> Counts {
        let [force, probe] = [force, probe].map(|[from, to]| to.since(&from));
        // The readings are taken before and after the recorder works.
        let part = (self.span.ns() as f64 / 1e9 / probe.seconds).min(1.0);
        let scale = part
            * match force.requests.min(probe.requests) >= FEWEST_REQUESTS {
                true => probe.requests / force.requests,
                false => probe.seconds / force.seconds,
            };
        let episodes = self.episodes.len() as u64;
        // Without polls every episode sleeps, and the thread sleeps elsewhere, too.
        let sleeps_of_one = (part * probe.sleeps / episodes.max(1) as f64).max(1.0);
        // No more than there were.
        let halts = whole((force.sleeps * scale / sleeps_of_one).round()).min(episodes);
        let polled_ns = whole(force.cpu_ns * scale - probe.cpu_ns * part).into();
        Counts { episodes, halts, exits: halts, polled_ns, ..Counts::default() }
    }
}

/// The CPU time and switches of an I/O thread so far.
///
/// # Errors
/// It no longer exists.
pub fn usage(thread: KernelThread) -> anyhow::Result<Usage> {
    Usage::of(thread).context("the I/O thread no longer exists; did QEMU exit?")
}

/// Process and thread, by the kernel's numbers.
///
/// # Errors
/// QEMU does not report the thread, or it is not one of this PID namespace.
pub fn kernel_thread(monitor: &Monitor, thread: &IoThread, asked: Option<u32>) -> anyhow::Result<(u32, u32)> {
    let machine = Sysroot::of_this_machine();
    let named = || {
        let pid = monitor.peer_pid()?;
        let comm = io_thread_comm(&thread.id);
        let tids = machine.numbers(&format!("/proc/{pid}/task"));
        tids.into_iter().find(|tid| {
            machine.text(&format!("/proc/{pid}/task/{tid}/comm")).is_some_and(|name| name == comm.trim())
        })
    };
    let tid = asked.or(thread.thread_id).or_else(named);
    let tid = tid.context("QEMU does not report the TID of this thread; give it with --thread TID")?;
    let pid = process::of_thread(&machine, tid).with_context(|| {
        format!("no thread {tid} here; if QEMU is in another PID namespace, give --thread TID")
    })?;
    Ok((pid, tid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_machine::threads::Switches;

    fn reading(after_ms: u64, cpu_us: u64, sleeps: u64, requests: Option<u64>, begun: Instant) -> Reading {
        let switches = Switches { voluntary: sleeps, involuntary: 0 };
        let usage = Usage { cpu: Nanos::from_micros(cpu_us), switches };
        Reading { at: begun + Duration::from_millis(after_ms), usage, requests }
    }

    #[test]
    fn what_was_counted_between_probes_is_that_of_as_many_requests() {
        let begun = Instant::now();
        let of = |requests: fn(u64) -> Option<u64>| {
            // 10,000 requests in 5 s, a quarter of which sleeps, twice; then 100 in 100 ms, two sleeps each
            // and one elsewhere.
            let force = [
                reading(0, 0, 0, requests(0), begun),
                reading(5_000, 1_000_000, 5_000, requests(10_000), begun),
            ];
            let probe = [
                reading(5_000, 1_000_000, 5_000, requests(10_000), begun),
                reading(5_100, 1_004_000, 5_300, requests(10_100), begun),
            ];
            // Recorded for half of the probe.
            let mut recorded = Recorded { episodes: vec![Episode::of(9); 100], span: Span::default() };
            recorded.span.add(7, 50_000_000);
            recorded.counted(force, probe)
        };
        let by_requests = of(Some);
        // 50 sleeps of which every third is elsewhere; 10,000 us less 4,000; and half of that.
        assert_eq!((by_requests.halts, by_requests.polled_ns, by_requests.episodes), (17, 3_000_000, 100));
        let by_time = of(|_| None);
        assert_eq!((by_time.halts, by_time.polled_ns), (33, 8_000_000));
    }

    #[test]
    fn another_load_is_one_of_other_rates() {
        let rates = |cpu: f64, sleeps: f64| Rates { cpu, sleeps };
        assert!(!rates(0.5, 4_000.0).differ(rates(0.6, 4_900.0)));
        assert!(rates(0.5, 4_000.0).differ(rates(0.7, 4_000.0)));
        assert!(rates(0.5, 4_000.0).differ(rates(0.5, 2_000.0)));
        assert!(!rates(0.0, 100.0).differ(rates(0.04, 250.0)), "little of both");
    }
}
