//! Recording: a target, its tracepoints, its episodes, its file.

use crate::clock::{now_ns, realtime_offset_ns};
use crate::energy::{ENERGY, Meter};
use crate::kvm_stats::{Snapshot, StatsReader};
use crate::names;
use crate::plan::{Plan, plan};
use crate::polling::poll_step;
use crate::probe::{Probe, Threads, Tids, Trace};
use crate::settings::{self, Watch};
use crate::switches::Switches;
use crate::system::System;
use crate::target::{RecordError, Target};
use crate::tracefs::Tracefs;
use dwell_machine::load::Stat;
use dwell_machine::{Machine, Sysroot, arch, cpu, identity, kernel};
use dwell_policy::{Layer, Nanos, Owner};
use dwell_recording::accounting::KVM_COUNTERS;
use dwell_recording::{
    CPU_TIME, Clock, Contents, HALT_ENTRY, Metadata, NewFile, POLL_STEP, Packing, REALTIME_OFFSET,
    RESIDENCY_SHORTER, SWITCHES, TimeRecorded, WriteError, Writer, kernel_on,
};
use dwell_trace::event::Event;
use dwell_trace::guest::GuestSource;
use dwell_trace::import::NOTES;
use dwell_trace::merge::Merge;
use dwell_trace::pairing::{PairedEpisode, Pairing};
use dwell_trace::write::{EpisodeWriter, OVERLAPS, Overlaps};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// How a recording is going.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Since the recording began; at the end, how long it was.
    pub elapsed: Duration,
    pub events: u64,
    pub episodes: u64,
    /// Idlers that have at least one episode.
    pub idlers: usize,
    /// Trace events lost, those that came too late included.
    pub lost: u64,
    /// Episodes whose beginning or end was not seen.
    pub incomplete: u64,
}

/// Gets the progress of a recording.
pub trait Observer {
    /// Events count from before this call, after which the duration of the recording begins …
    fn begins(&mut self) {}
    /// … to after this one. Whatever is read in both, such as counters, is read while events count.
    fn ends(&mut self) {}
    /// How it is going; about ten times a second, and once at the end.
    fn status(&mut self, _status: &Status) {}
    /// Each event, in order of time.
    fn event(&mut self, _event: &Event) {}
    /// Episodes that have ended, of the idlers with these names.
    fn episodes(&mut self, _names: &[String], _found: &[PairedEpisode]) {}
}

/// No observer.
impl Observer for () {}

/// How long to record.
#[derive(Clone, Copy, Debug)]
pub struct Until<'a> {
    /// At most so long; `None`: until `stop`.
    pub duration: Option<Duration>,
    /// Set to end the recording; read ten times a second.
    pub stop: &'a AtomicBool,
}

/// How a recording went.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The last [`Status`].
    pub status: Status,
    /// What is in the recording.
    pub contents: Contents,
    /// The metadata of the recording.
    pub metadata: Metadata,
}

/// Recording is prepared: everything that can be refused was granted.
pub struct Recorder {
    target: Target,
    session: Session<Layer>,
}

/// What is opened to record, of idle times or of timers; `O` is what the recording says it is of.
pub struct Session<O> {
    system: Arc<dyn System>,
    who: Who,
    trace: Trace,
    pairing: Box<dyn Pairing>,
    metadata: Metadata<O>,
    watch: Watch,
    meter: Meter,
    /// Of the CPUs of a guest, when the recording began.
    stat: Option<Stat>,
    /// The CPUs that were online then, which are recorded.
    online: Vec<u32>,
    threads: Watched,
    counters: Option<KvmCounters>,
    switches: Option<Switches>,
}

/// Whose events are recorded: everybody's, or those of a process and of threads of some names.
#[derive(Clone, Debug, Default)]
struct Who {
    pid: Option<i32>,
    comm: Vec<String>,
}

/// The key of [`Metadata::other`] under which a recording says what read the tracepoints: an object with `by`
/// (`perf` or `bpf`), and, where they were chosen, `because` or `not_by_bpf`; in `left_out` what BPF programs
/// could not have, with the reason.
pub const TRACING: &str = "dwell.tracing";

/// What the kernel did not let a recorder have, though it could do without, and what an imported text lacked: texts of the
/// recording.
pub fn left_out<O>(metadata: &Metadata<O>) -> Vec<String> {
    // A recorder has a handful of probes; whatever else is there is no recorder's.
    const MOST: usize = 16;
    let reasons = metadata.other.get(TRACING).and_then(|tracing| tracing["left_out"].as_array());
    let reasons = reasons.into_iter().flatten().filter_map(serde_json::Value::as_str).take(MOST);
    let left_out = reasons.map(|reason| format!("not recorded: {reason}"));
    let noted = metadata.other.get(NOTES).and_then(serde_json::Value::as_array).into_iter().flatten();
    let noted = noted.filter_map(serde_json::Value::as_str).take(MOST);
    left_out.chain(noted.map(str::to_owned)).collect()
}

/// The longest time between two rounds, in which the buffers are emptied, the status is reported and `stop` is checked.
const ROUND: Duration = Duration::from_millis(100);
/// How long events are kept back to be put in order \[ns\]: a CPU may be stopped (by a hypervisor) between
/// taking the time of an event and publishing it.
const SLACK_NS: u64 = 100_000_000;
/// How often new threads and changed settings are looked for.
const LOOK_AROUND: Duration = Duration::from_millis(500);

impl Recorder {
    /// Prepares to record `target` on this machine. `command` is the command line, for the metadata.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    pub fn open(target: Target, command: Option<String>) -> Result<Recorder, RecordError> {
        Recorder::open_on(Arc::new(Sysroot::of_this_machine()), target, command)
    }

    /// As [`Recorder::open`], on a machine that is asked through `system`.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    pub fn open_on(
        system: Arc<dyn System>,
        target: Target,
        command: Option<String>,
    ) -> Result<Recorder, RecordError> {
        let comm = if let Target::Thread { comm, .. } = &target { comm.clone() } else { vec![] };
        if matches!(target, Target::Thread { pid: None, .. }) && comm.is_empty() {
            return Err(RecordError::NoThreads);
        }
        threads_of(&*system, target.pid())?;
        let tracefs = Tracefs::open(&*system)?;
        let mut plan = plan(&system, &tracefs, &target)?;
        let target = plan.chosen.take().unwrap_or(target);
        let who = Who { pid: target.pid(), comm };
        let mut session = Session::open(system, &tracefs, target.layer(), who, command, plan)?;
        session.counters = KvmCounters::of(&target);
        Ok(Recorder { target, session })
    }

    /// Counts the context switches of all CPUs for a quarter of a second before and after a recording as well
    /// ([`SWITCHES`]), which tell whether recording slows the load. Of CPUs that are recorded with
    /// causes; of others nothing is counted.
    pub fn count_switches(&mut self) {
        let counts = matches!(self.target, Target::Guest { causes: true, .. });
        self.session.switches = counts.then(Switches::default);
    }

    /// What is recorded: of the CPUs of this machine, with the source that was chosen.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// What the recording will say of itself, as far as it is known.
    pub fn metadata(&self) -> &Metadata {
        &self.session.metadata
    }

    /// Records into the file `path`, which appears when it is complete and has an episode.
    ///
    /// # Errors
    /// What went wrong; there is then no file.
    pub fn to_file(
        mut self,
        path: &Path,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Summary, RecordError> {
        let (summary, file) = self.write(NewFile::private(path)?, until, observer)?;
        if summary.contents.episodes > 0 {
            file.keep()?;
        }
        Ok(summary)
    }

    /// Records into memory: the bytes of a Parquet file, for
    /// [`Reader::from_bytes`](dwell_recording::Reader::from_bytes).
    ///
    /// # Errors
    /// What went wrong.
    pub fn to_memory(
        mut self,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Summary, Vec<u8>), RecordError> {
        self.write(Vec::new(), until, observer)
    }

    /// Records into `out`. Compressing and writing are done by a thread of their own, so that they do not
    /// keep the buffers from being emptied. May be called again, as [`Recorder::watch`].
    ///
    /// # Errors
    /// What went wrong.
    pub fn write<W: Write + Send>(
        &mut self,
        out: W,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Summary, W), RecordError> {
        let session = &mut self.session;
        let writer = Writer::new(out, session.metadata.clone(), Packing::default())?;
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(BATCHES_WAITING);
            let (used, spare) = channel();
            let outlet = Outlet { sender, spare };
            let writing = scope.spawn(move || write_batches(writer, &receiver, &used));
            let recorded = session.record(Some(&outlet), until, observer);
            drop(outlet);
            let (mut writer, overlaps) = writing.join().map_err(|_| RecordError::WriterGone)??;
            let status = recorded?;
            let mut metadata = session.complete().clone();
            if let Some(overlaps) = overlaps {
                metadata.other.insert(OVERLAPS.to_owned(), json!(overlaps));
            }
            *writer.metadata_mut() = metadata.clone();
            if let Some(segments) = session.pairing.take_segments() {
                writer.set_segments(segments);
            }
            let (contents, out) = writer.close()?;
            Ok((Summary { status, contents, metadata }, out))
        })
    }

    /// Reports to the observer and records nothing. May be called again, which costs less than another
    /// recorder: in between nothing is traced, the episodes of each call begin and end in it, and what was
    /// lost or incomplete is of all calls together.
    ///
    /// # Errors
    /// What went wrong.
    pub fn watch(&mut self, until: &Until<'_>, observer: &mut dyn Observer) -> Result<Status, RecordError> {
        self.session.run(until, observer)
    }

    /// Whether this stays ready for the next call, which then costs less still: for calls that follow each other within
    /// some tens of milliseconds. In between it costs some tens of nanoseconds an event, and shows nothing.
    pub fn stay(&mut self, stays: bool) {
        self.session.trace.stay(stays);
    }
}

impl<O: Copy + Into<Owner>> Session<O> {
    /// Opens these tracepoints through perf's ring buffers, everybody's or those of a process; `pairing` gets the
    /// events. `command` is the command line, for the metadata.
    ///
    /// # Errors
    /// Why they cannot be opened.
    pub fn through_perf(
        system: Arc<dyn System>,
        tracefs: &Tracefs,
        recorded: O,
        pid: Option<i32>,
        command: Option<String>,
        (probes, pairing): (Vec<Probe>, Box<dyn Pairing>),
    ) -> Result<Session<O>, RecordError> {
        let plan = Plan::through_perf(probes, pairing);
        Session::open(system, tracefs, recorded, Who { pid, ..Who::default() }, command, plan)
    }

    /// Opens what is planned; `recorded` is what the recording is of.
    fn open(
        system: Arc<dyn System>,
        tracefs: &Tracefs,
        recorded: O,
        who: Who,
        command: Option<String>,
        plan: Plan,
    ) -> Result<Session<O>, RecordError> {
        let threads = threads_of(&*system, who.pid)?;
        let mut watched = Watched::new(&*system, &threads);
        let wanted = Threads { names: &who.comm, tids: watched.more(&threads) };
        let Plan { probes, pairing, trace, tracing, .. } = plan;
        let trace = match trace {
            Some(trace) => trace,
            None => Trace::open(&*system, tracefs, &probes, Some(&wanted))?,
        };
        let watch = Watch::start(&*system, recorded.into());
        let meter = Meter::open(&*system);
        let mut metadata = Metadata::new(recorded);
        metadata.source.tool = "dwell record".to_owned();
        metadata.source.events = trace.probes().iter().map(|probe| probe.kind.to_string()).collect();
        metadata.source.command = command;
        metadata.idle_includes = pairing.idle_includes();
        metadata.clock = Clock::Monotonic;
        // The rules of another machine are not those of this one.
        metadata.kernel = kernel::release(&*system).map(|release| kernel_on(release, arch::read(&*system)));
        metadata.cpu_model = cpu::model(&*system);
        metadata.machine = identity::machine_id(&*system);
        metadata.lost.events = Some(0);
        metadata.lost.at_least = !trace.counts_lost();
        metadata.other.insert(TRACING.to_owned(), tracing);
        metadata.other.insert(REALTIME_OFFSET.to_owned(), realtime_offset_ns().into());
        let is_guest = recorded.into() == Owner::Layer(Layer::Guest);
        if is_guest {
            metadata.other.extend([settings::cpuidle(&*system)]);
        }
        let stat = Stat::of_all(&*system).filter(|_| is_guest);
        let (threads, counters, online, switches) = (watched, None, cpu::online(&*system), None);
        let mut session = Session {
            system,
            who,
            trace,
            pairing,
            metadata,
            watch,
            meter,
            stat,
            online,
            threads,
            counters,
            switches,
        };
        session.measure_poll_step();
        Ok(session)
    }

    /// What the recording will say of itself, as far as it is known.
    pub fn metadata(&self) -> &Metadata<O> {
        &self.metadata
    }

    /// What it will say of itself, to be added to.
    pub fn metadata_mut(&mut self) -> &mut Metadata<O> {
        &mut self.metadata
    }

    /// The frequency of this host's time-stamp counter \[kHz\], where the kernel computes its time from it.
    pub fn tsc_khz(&self) -> Option<u32> {
        self.trace.tsc_khz()
    }

    /// Gives the events to the pairing, and leaves out the episodes that it finds.
    ///
    /// # Errors
    /// What went wrong.
    pub fn run(&mut self, until: &Until<'_>, observer: &mut dyn Observer) -> Result<Status, RecordError> {
        self.record(None, until, observer)
    }

    /// No event follows, whether or not all went well.
    pub fn finish(&mut self) {
        self.pairing.finish(&mut vec![]);
    }

    fn record(
        &mut self,
        outlet: Option<&Outlet>,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Status, RecordError> {
        let io = |what| move |source| RecordError::Io { what, source };
        let mut round = Round::default();
        self.count_beside(until);
        let _first = come_first();
        self.trace.enable().map_err(io("switch on"))?;
        let start_ns = now_ns();
        round.start_ns = start_ns;
        self.counters.iter_mut().for_each(KvmCounters::read);
        self.switches.iter_mut().for_each(|switches| switches.read(&*self.system));
        observer.begins();
        let started = Instant::now();
        let mut looked = started;
        while !until.stop.load(Ordering::Relaxed) {
            let left = until.duration.map_or(ROUND, |duration| duration.saturating_sub(started.elapsed()));
            if left.is_zero() {
                break;
            }
            self.trace.wait(left.min(ROUND)).map_err(io("wait for"))?;
            let now = now_ns();
            self.read(&mut round);
            self.release(&mut round, now.saturating_sub(SLACK_NS), outlet, observer)?;
            if looked.elapsed() >= LOOK_AROUND {
                looked = Instant::now();
                self.watch.look(&*self.system, now);
                self.measure_poll_step();
                if !self.follow_threads()? {
                    break;
                }
            }
            round.status.elapsed = started.elapsed();
            observer.status(&round.status);
        }
        observer.ends();
        self.counters.iter_mut().for_each(KvmCounters::read);
        self.switches.iter_mut().for_each(|switches| switches.read(&*self.system));
        let end_ns = now_ns();
        round.end_ns = Some(end_ns);
        // The time that it takes to end is not recorded.
        round.status.elapsed = Duration::from_nanos(end_ns.saturating_sub(start_ns));
        self.trace.disable().map_err(io("switch off"))?;
        self.count_beside(until);
        self.metadata.recorded = Some(TimeRecorded { start_ns, end_ns });
        self.read(&mut round);
        self.trace.settle_losses().map_err(io("read the lost counts of"))?;
        self.release(&mut round, u64::MAX, outlet, observer)?;
        let mut rows = Vec::new();
        self.pairing.finish(&mut rows);
        self.send(&mut round, rows, outlet, observer)?;
        observer.status(&round.status);
        Ok(round.status)
    }

    /// Counts context switches while nothing is recorded.
    fn count_beside(&mut self, until: &Until<'_>) {
        if let Some(switches) = &mut self.switches {
            switches.count(&*self.system, until.duration);
        }
    }

    /// How far apart a guest's looks at the clock are: the shortest time that was measured so far.
    fn measure_poll_step(&mut self) {
        if self.metadata.layer.into() == Owner::Layer(Layer::Guest)
            && let Some(step) = poll_step().map(Nanos::get)
        {
            let known_ns = self.metadata.poll_step_ns().unwrap_or(u64::MAX);
            self.metadata.other.insert(POLL_STEP.to_owned(), step.min(known_ns).into());
        }
    }

    fn read(&mut self, round: &mut Round) {
        self.trace.drain(|event| round.take(event));
        round.take_late(&mut self.trace);
    }

    /// Turns what is old enough into episodes and sends them off to be written.
    fn release(
        &mut self,
        round: &mut Round,
        until_ns: u64,
        outlet: Option<&Outlet>,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        // About two events make an episode.
        let spare = outlet.and_then(|outlet| outlet.spare.try_recv().ok());
        let mut rows = spare.unwrap_or_else(|| std::mem::take(&mut round.spare));
        rows.reserve(round.merge.pending() / 2);
        let pairing = &mut self.pairing;
        round.merge.release(until_ns, |event| {
            observer.event(event);
            pairing.observe(event, &mut rows);
        });
        self.send(round, rows, outlet, observer)
    }

    fn send(
        &mut self,
        round: &mut Round,
        mut rows: Vec<PairedEpisode>,
        outlet: Option<&Outlet>,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        let idlers = self.pairing.idlers();
        observer.episodes(idlers, &rows);
        let names = idlers.get(round.named..).unwrap_or_default().to_vec();
        round.named = idlers.len();
        round.status.idlers = idlers.len();
        round.status.episodes += rows.len() as u64;
        round.status.incomplete = self.pairing.incomplete();
        round.status.lost = self.trace.lost().values().sum();
        let Some(outlet) = outlet.filter(|_| !rows.is_empty() || !names.is_empty()) else {
            rows.clear();
            round.spare = rows;
            return Ok(());
        };
        // The thread that writes ends early only with an error of its own, which is then returned in place of this one.
        outlet.sender.send(Batch { names, rows }).map_err(|_| RecordError::WriterGone)
    }

    /// Looks for threads that are new; returns `false` if the process has ended.
    fn follow_threads(&mut self) -> Result<bool, RecordError> {
        let Some(pid) = self.who.pid else { return Ok(true) };
        let threads = names::threads(&*self.system, pid);
        if threads.is_empty() {
            return Ok(false);
        }
        if let tids @ Some(_) = self.threads.more(&threads) {
            self.trace.add_threads(&*self.system, &Threads { names: &self.who.comm, tids })?;
        }
        Ok(true)
    }

    /// What the recording says of itself after its end.
    pub fn complete(&mut self) -> &Metadata<O> {
        // They are of all calls together.
        self.metadata.lost.events = Some(0);
        self.metadata.lost.by_cpu.clear();
        for (cpu, count) in self.trace.lost() {
            self.metadata.lost.add(Some(*cpu), *count);
        }
        let missed = self.trace.missed().unwrap_or_else(|_| {
            self.metadata.lost.at_least = true;
            0
        });
        self.metadata.lost.add(None, missed);
        self.metadata.lost.incomplete_episodes = self.pairing.incomplete();
        self.metadata.settings = self.watch.changes().to_vec();
        self.metadata.idle_includes = self.pairing.idle_includes();
        self.metadata.other.extend(self.pairing.notes());
        let step_ns = self.metadata.poll_step_ns().and_then(|about_ns| self.pairing.poll_step_ns(about_ns));
        self.metadata.other.extend(step_ns.map(|ns| (POLL_STEP.to_owned(), ns.into())));
        self.metadata.other.extend(self.pairing.halt_entry_ns().map(|ns| (HALT_ENTRY.to_owned(), ns.into())));
        let max_ns = self.metadata.value_all_the_time(Layer::Guest.into(), "guest_halt_poll_ns");
        let shorter_ns = max_ns.map(|max_ns| self.pairing.residency_shorter_ns(max_ns));
        self.metadata.other.extend(shorter_ns.map(|ns| (RESIDENCY_SHORTER.to_owned(), ns.into())));
        if let Some(counted) = self.counters.as_ref().and_then(KvmCounters::counted) {
            self.metadata.other.insert(KVM_COUNTERS.to_owned(), counted);
        }
        if let Some((before, after)) = self.stat.zip(Stat::of_all(&*self.system)) {
            let ns = |of: fn(&Stat) -> Nanos| of(&after).saturating_sub(of(&before)).get();
            let used = json!({ "busy": ns(|stat| stat.busy), "steal": ns(|stat| stat.steal) });
            self.metadata.other.insert(CPU_TIME.to_owned(), used);
        }
        if let Some(note) = came_online(&self.online, &cpu::online(&*self.system)) {
            self.metadata.other.insert(NOTES.to_owned(), json!([note]));
        }
        if let Some(per_s) = self.switches.as_ref().and_then(Switches::per_s) {
            self.metadata.other.insert(SWITCHES.to_owned(), per_s);
        }
        let used = self.meter.used(&*self.system);
        if !used.is_empty() {
            self.metadata.other.insert(ENERGY.to_owned(), json!(used));
        }
        &self.metadata
    }
}

/// What is missing of CPUs that were not online when recording began.
fn came_online(before: &[u32], now: &[u32]) -> Option<String> {
    let new: Vec<String> =
        now.iter().filter(|cpu| !before.contains(cpu)).map(|cpu| format!("CPU {cpu}")).collect();
    let cpus = new.join(", ");
    (!new.is_empty()).then(|| {
        format!(
            "{cpus} came online while recording: what happened there is not recorded, or lost; record again"
        )
    })
}

/// The threads of the process that is to be recorded, if one was chosen.
fn threads_of(system: &dyn System, pid: Option<i32>) -> Result<Vec<i32>, RecordError> {
    let threads = pid.map_or_else(Vec::new, |pid| names::threads(system, pid));
    match pid {
        Some(pid) if threads.is_empty() => Err(RecordError::NoProcess(pid)),
        _ => Ok(threads),
    }
}

/// KVM's own counters at the start and the end of a recording of vCPUs, where they can be read.
struct KvmCounters {
    reader: StatsReader,
    /// The last two.
    snapshots: [Option<Snapshot>; 2],
}

impl KvmCounters {
    fn of(target: &Target) -> Option<KvmCounters> {
        let Target::Host { pid, .. } = target else { return None };
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        Some(KvmCounters { reader: StatsReader::new(pid).ok()?, snapshots: [None, None] })
    }

    fn read(&mut self) {
        self.snapshots = [self.snapshots[1].take(), Some(self.reader.snapshot().0)];
    }

    /// Both, in the form that [`KvmCounted`](dwell_recording::accounting::KvmCounted) is read from; `None` where a VM
    /// ended in between, which takes its counters along.
    fn counted(&self) -> Option<serde_json::Value> {
        let [Some(start), Some(end)] = &self.snapshots else { return None };
        (end.since(start).ended == 0 && !end.vms.is_empty()).then(|| json!({ "start": start, "end": end }))
    }
}

/// What goes on from round to round.
#[derive(Default)]
pub(crate) struct Round {
    /// Events before and after these do not count: to switch events on and off interrupts each CPU several
    /// times, whose idle times are then the recorder's, a few microseconds each.
    start_ns: u64,
    end_ns: Option<u64>,
    pub(crate) merge: Merge,
    /// Events that came after later ones had been released.
    late: Vec<Event>,
    status: Status,
    /// How many idlers' names were sent off.
    named: usize,
    /// For episodes that are not written, and those that come first.
    spare: Vec<PairedEpisode>,
}

impl Round {
    /// Puts an event in order.
    pub(crate) fn take(&mut self, event: Event) {
        let counts = event.time_ns >= self.start_ns && self.end_ns.is_none_or(|end| event.time_ns <= end);
        if !counts && !event.is_loss() {
            return;
        }
        match self.merge.push(event) {
            true => self.status.events += u64::from(!event.is_loss()),
            false => self.late.push(event),
        }
    }

    /// Takes a loss for each event that came too late.
    pub(crate) fn take_late(&mut self, trace: &mut Trace) {
        for event in self.late.drain(..) {
            // What a record of losses counts is counted already.
            if !event.is_loss() {
                trace.count_lost(event.cpu, 1);
            }
            self.merge.push_loss(&event);
        }
    }
}

/// Episodes on their way to the file, and the names that are new in them.
struct Batch {
    names: Vec<String>,
    rows: Vec<PairedEpisode>,
}

/// The way to the thread that writes, and what comes back: memory is used again, since touching a megabyte of
/// new memory for each batch costs more than filling it.
struct Outlet {
    sender: SyncSender<Batch>,
    spare: Receiver<Vec<PairedEpisode>>,
}

/// At 200,000 episodes/s a batch is a tenth of a second, 20,000 rows of 88 bytes.
const BATCHES_WAITING: usize = 16;

fn write_batches<W: Write + Send>(
    mut writer: Writer<W>,
    batches: &Receiver<Batch>,
    used: &Sender<Vec<PairedEpisode>>,
) -> Result<(Writer<W>, Option<Overlaps>), WriteError> {
    let mut names: Vec<String> = Vec::new();
    let mut episodes = EpisodeWriter::default();
    for mut batch in batches {
        names.extend(batch.names);
        episodes.push_all(&mut writer, &names, &mut batch.rows)?;
        // At the end it is not used any more.
        let _ = used.send(batch.rows);
    }
    Ok((writer, episodes.overlaps().cloned()))
}

/// The threads that the kernel lets through, as filters on their numbers.
#[derive(Debug, Default)]
struct Watched {
    /// Whether the kernel filters by number at all.
    filters: bool,
    threads: BTreeSet<i32>,
    additions: usize,
    /// From here on everything is let through, and sorted out later.
    open_above: Option<i32>,
}

impl Watched {
    fn new(machine: &dyn Machine, threads: &[i32]) -> Watched {
        let filters = !threads.is_empty() && names::pids_are_global(machine);
        Watched { filters, ..Watched::default() }
    }

    /// Those of `threads` that were not let through so far; `None` if there are none.
    fn more(&mut self, threads: &[i32]) -> Option<Tids> {
        let passes =
            |tid: &i32| self.threads.contains(tid) || self.open_above.is_some_and(|last| *tid > last);
        let new: Vec<i32> = threads.iter().copied().filter(|tid| !passes(tid)).collect();
        if !self.filters || new.is_empty() || self.open_above.is_some() {
            return None;
        }
        self.additions += 1;
        let last = self.threads.last().copied().unwrap_or(0);
        self.threads.extend(&new);
        if self.additions > MOST_ADDITIONS || new.len() > MOST_IN_FILTER {
            // Threads come and go; numbers rise. Below, those already known are left out.
            self.open_above = Some(last);
            return Some(Tids::Above(last));
        }
        Some(Tids::These(new))
    }
}

/// A filter is at most a page long.
const MOST_IN_FILTER: usize = 100;
/// Each addition takes a descriptor for each tracepoint on each CPU, and costs time at each hit.
const MOST_ADDITIONS: usize = 16;

/// Gives this thread the highest priority among ordinary ones, where that is allowed: it runs for a few
/// milliseconds ten times a second, and what it is kept waiting for too long is lost. The calling thread gets
/// its own back at the end.
fn come_first() -> Priority {
    let before = rustix::process::getpriority_process(None).unwrap_or(0);
    let _ = rustix::process::setpriority_process(None, -20);
    Priority(before)
}

/// What the priority was.
struct Priority(i32);

impl Drop for Priority {
    fn drop(&mut self) {
        let _ = rustix::process::setpriority_process(None, self.0);
    }
}

/// Records the best that there is here into memory: the vCPUs of this host if any halted, else the CPUs of
/// this machine.
///
/// Where VMs run but none of their vCPUs halts in `duration`, it takes twice as long.
///
/// # Errors
/// Why nothing can be recorded.
pub fn record_anything(
    duration: Duration,
    stop: &AtomicBool,
    observer: &mut dyn Observer,
) -> Result<(Summary, Vec<u8>), RecordError> {
    let until = Until { duration: Some(duration), stop };
    if !names::processes_with_vm(&Sysroot::of_this_machine()).is_empty()
        && let Ok(recorder) =
            Recorder::open(Target::Host { pid: None, exits: false, contention: true, causes: false }, None)
    {
        let (summary, bytes) = recorder.to_memory(&until, observer)?;
        if summary.contents.episodes > 0 || stop.load(Ordering::Relaxed) {
            return Ok((summary, bytes));
        }
    }
    let mut recorder = Recorder::open(Target::Guest { source: GuestSource::Auto, causes: true }, None)?;
    recorder.count_switches();
    recorder.to_memory(&until, observer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::Fake;
    use dwell_trace::event::EventKind;
    use proptest::prelude::*;

    const FORMAT: &str = "name: x\nID: 7\nformat:\n\tfield:u64 ns;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:bool waited;\toffset:16;\tsize:1;\tsigned:0;\n\tfield:bool valid;\toffset:17;\tsize:1;\tsigned:0;\n\
        \tfield:u32 vcpu_id;\toffset:18;\tsize:4;\tsigned:0;\n\tfield:bool grow;\toffset:22;\tsize:1;\tsigned:0;\n\
        \tfield:u32 new;\toffset:24;\tsize:4;\tsigned:0;\n\tfield:u32 old;\toffset:28;\tsize:4;\tsigned:0;\n";
    const EVENTS: &str = "/sys/kernel/tracing/events";

    fn machine() -> Fake {
        Fake::new()
            .file("/proc/sys/kernel/osrelease", "6.18.44\n")
            .file("/proc/sys/kernel/perf_event_paranoid", "3\n")
            .file(&format!("{EVENTS}/sched/sched_switch/id"), "1\n")
    }

    fn with_kvm() -> Fake {
        machine()
            .file(&format!("{EVENTS}/kvm/kvm_vcpu_wakeup/format"), FORMAT)
            .file(&format!("{EVENTS}/kvm/kvm_halt_poll_ns/format"), FORMAT)
    }

    #[test]
    fn cpus_that_came_online_are_named() {
        assert_eq!(came_online(&[0, 1], &[0]), None);
        assert!(
            came_online(&[0], &[0, 3, 7]).unwrap().starts_with("CPU 3, CPU 7 came online while recording")
        );
    }

    #[test]
    fn what_comes_while_events_are_switched_on_or_off_does_not_count() {
        let mut round = Round { start_ns: 100, ..Round::default() };
        let at = |time_ns, kind| Event { time_ns, cpu: 0, pid: 0, tid: 0, kind };
        let idle = EventKind::CpuIdle { cpu: 0, state: None };
        let take =
            |round: &mut Round, times: &[u64]| times.iter().for_each(|time| round.take(at(*time, idle)));
        take(&mut round, &[90, 99, 100, 150]);
        round.take(at(95, EventKind::Lost { cpu: Some(0), count: 3 }));
        round.end_ns = Some(200);
        take(&mut round, &[200, 201, 900]);
        let mut times = vec![];
        round.merge.release(u64::MAX, |event| times.push(event.time_ns));
        assert_eq!((times, round.status.events), (vec![95, 100, 150, 200], 3));
    }

    const HOST: Target = Target::Host { pid: None, exits: false, contention: false, causes: false };

    /// The message, as one line.
    fn refusal(fake: Fake, target: Target) -> String {
        let Err(error) = Recorder::open_on(Arc::new(fake), target, None) else { panic!("opened") };
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }

    #[test]
    fn each_refusal_has_its_own_remedy() {
        let not_root = with_kvm().forbid("/sys/kernel/tracing").mount_fails(libc::EPERM);
        let no_tracefs = Fake::new().mount_fails(libc::ENODEV);
        let not_mounted = Fake::new().mount_fails(libc::EPERM);
        let no_kvm = machine();
        let paranoid = with_kvm().perf_fails(libc::EACCES);
        let old = machine().file(&format!("{EVENTS}/kvm/kvm_exit/format"), FORMAT);
        let odd = with_kvm()
            .file(&format!("{EVENTS}/kvm/kvm_vcpu_wakeup/format"), &FORMAT.replace("waited", "slept"));
        let lines = [
            (
                not_root,
                "no permission to read /sys/kernel/tracing: this process lacks CAP_DAC_READ_SEARCH; run as root, or with \
                CAP_PERFMON and CAP_DAC_READ_SEARCH",
            ),
            (
                not_mounted,
                "no permission to mount tracefs: this process lacks CAP_SYS_ADMIN; run as root, or mount it before: mount \
                -t tracefs tracefs /sys/kernel/tracing",
            ),
            (
                no_tracefs,
                "this kernel has no tracefs: it needs CONFIG_FTRACE or CONFIG_EVENT_TRACING; boot a kernel with \
                tracepoints",
            ),
            (
                no_kvm,
                "kernel 6.18.44 has no tracepoints `kvm`: KVM is not there; load kvm_intel or kvm_amd, or record the \
                layer `guest` instead",
            ),
            (
                paranoid,
                "no permission to sample tracepoints of all processes (kernel.perf_event_paranoid is 3): this process \
                lacks CAP_PERFMON; run as root or with it, or set kernel.perf_event_paranoid=-1",
            ),
            (
                old,
                "kernel 6.18.44 has no tracepoint `kvm:kvm_vcpu_wakeup`; it is too old, or was built without it",
            ),
            (
                odd,
                "kernel 6.18.44: tracepoint `kvm:kvm_vcpu_wakeup` has no field `waited`; please report this kernel to \
                dwell's developers",
            ),
        ];
        for (fake, line) in lines {
            assert_eq!(refusal(fake, HOST), line);
        }
    }

    #[test]
    fn threads_must_be_named_and_exist() {
        let nobody = Target::Thread { pid: None, comm: vec![], causes: false };
        assert_eq!(
            refusal(machine(), nobody),
            "cannot choose the threads to record; give --pid PID or --comm NAME"
        );
        let gone = Target::Thread { pid: Some(77), comm: vec![], causes: false };
        assert_eq!(refusal(machine(), gone), "cannot record: there is no process or thread 77");
    }

    #[test]
    fn a_thread_is_let_through_once() {
        let global = Fake::new().link("/proc/self/ns/pid", "pid:[4026531836]");
        let mut watched = Watched::new(&global, &[5, 6]);
        assert_eq!(watched.more(&[5, 6]), Some(Tids::These(vec![5, 6])));
        assert_eq!(watched.more(&[5]), None);
        assert_eq!(watched.more(&[5, 9]), Some(Tids::These(vec![9])));
        let mut inside = Watched::new(&Fake::new(), &[5, 6]);
        assert_eq!(inside.more(&[5, 6]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// However threads come and go: each passes exactly one filter, unless its number is lower than one that passed
        /// before everything above was opened.
        #[test]
        fn no_thread_is_let_through_twice(rounds in prop::collection::vec(prop::collection::vec(1i32..500, 0..110), 1..20)) {
            let global = Fake::new().link("/proc/self/ns/pid", "pid:[4026531836]");
            let mut watched = Watched::new(&global, &[1]);
            let mut filters: Vec<Tids> = vec![];
            for threads in rounds {
                filters.extend(watched.more(&threads));
                let open = watched.open_above;
                for tid in threads {
                    let passes = |filter: &&Tids| match filter {
                        Tids::These(numbers) => numbers.contains(&tid),
                        Tids::Above(last) => tid > *last,
                    };
                    let count = filters.iter().filter(passes).count();
                    prop_assert!(count == 1 || (count == 0 && open.is_some_and(|last| tid <= last)), "{tid}: {count}");
                }
            }
        }
    }
}
