//! Recording: a target, its tracepoints, its episodes, its file.

use crate::event::Event;
use crate::guest::{self, GuestSource};
use crate::host::HostPairing;
use crate::merge::Merge;
use crate::names::{self, ProcNames};
use crate::pairing::{Found, Pairing};
use crate::perf::OpenError;
use crate::probe::{Probe, Trace, TraceError};
use crate::settings::Watch;
use crate::system::{Machine, System, cpu_model, kernel_release};
use crate::thread::{self, ThreadPairing};
use crate::tracefs::{Tracefs, TracefsError};
use dwell_policy::version::Version;
use dwell_policy::{Layer, host};
use dwell_recording::{
    Clock, Contents, Episode, IdleIncludes, Metadata, NewFile, NewFileError, Packing, WriteError, Writer,
};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// What is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The vCPUs of this host.
    Host {
        /// Only those of the VM of this process.
        pid: Option<i32>,
        /// Take `kvm:kvm_exit` too, of HLT only: it tells the number of each vCPU for certain, where it fires, and costs
        /// the filter's time (a fraction of a microsecond) at every exit of every VM.
        exits: bool,
    },
    /// The CPUs of this machine, which may be a guest.
    Guest {
        /// What tells that a CPU idles.
        source: GuestSource,
    },
    /// Threads that wait in system calls.
    Thread {
        /// Those of this process, or this thread.
        pid: Option<i32>,
        /// Those of this name (threads have names of their own; 15 characters count).
        comm: Option<String>,
    },
}

impl Target {
    /// To which layer the episodes belong.
    pub const fn layer(&self) -> Layer {
        match self {
            Target::Host { .. } => Layer::Host,
            Target::Guest { .. } => Layer::Guest,
            Target::Thread { .. } => Layer::Iothread,
        }
    }

    const fn pid(&self) -> Option<i32> {
        match self {
            Target::Host { pid, .. } | Target::Thread { pid, .. } => *pid,
            Target::Guest { .. } => None,
        }
    }
}

/// Why nothing could be recorded, or not to the end. Where there is a remedy, it is part of the text.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Tracing could not begin.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There is no such process or thread.
    #[error("there is no process or thread {0}")]
    NoProcess(i32),
    /// Neither process nor name was given.
    #[error("say which threads to record: --pid N or --comm NAME")]
    NoThreads,
    /// Waiting for events, or switching them, failed.
    #[error("cannot {what} the tracepoints")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file could not be made.
    #[error(transparent)]
    File(#[from] NewFileError),
    /// The episodes could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The thread that writes is gone.
    #[error("the thread that writes the recording ended early")]
    WriterGone,
}

impl From<TracefsError> for RecordError {
    fn from(error: TracefsError) -> RecordError {
        RecordError::Trace(error.into())
    }
}

impl From<OpenError> for RecordError {
    fn from(error: OpenError) -> RecordError {
        RecordError::Trace(error.into())
    }
}

/// How a recording is going.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Since the recorder started.
    pub elapsed: Duration,
    /// Trace events read.
    pub events: u64,
    /// Episodes found.
    pub episodes: u64,
    /// Idlers that have at least one episode.
    pub idlers: usize,
    /// Trace events lost, those that came too late included.
    pub lost: u64,
    /// Episodes whose beginning or end was not seen.
    pub incomplete: u64,
}

/// Told what happens while recording.
pub trait Observer {
    /// How it is going; about ten times a second, and once at the end.
    fn status(&mut self, _status: &Status) {}
    /// Each event, in order of time.
    fn event(&mut self, _event: &Event) {}
}

/// Nobody watches.
impl Observer for () {}

/// How long to record.
#[derive(Clone, Copy, Debug)]
pub struct Until<'a> {
    /// At most so long; `None`: until `stop`.
    pub duration: Option<Duration>,
    /// Set by somebody else to end it; looked at ten times a second.
    pub stop: &'a AtomicBool,
}

/// How a recording went.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The last [`Status`].
    pub status: Status,
    /// What is in the recording.
    pub contents: Contents,
    /// What the recording says of itself.
    pub metadata: Metadata,
}

/// Recording is prepared: everything that can be refused was granted.
pub struct Recorder {
    system: Arc<dyn System>,
    target: Target,
    trace: Trace,
    pairing: Box<dyn Pairing>,
    metadata: Metadata,
    watch: Watch,
    threads: Vec<i32>,
}

/// How often the buffers are emptied at least, the status is told and `stop` looked at.
const ROUND: Duration = Duration::from_millis(100);
/// How long events are kept back to be put in order \[ns\]: a CPU may be stopped (by a hypervisor) between taking the time
/// of an event and publishing it.
const SLACK_NS: u64 = 100_000_000;
/// How often new threads and changed settings are looked for.
const LOOK_AROUND: Duration = Duration::from_millis(500);

impl Recorder {
    /// Prepares to record `target` on this machine. `command` is the command line, for the metadata.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    pub fn open(target: Target, command: Option<String>) -> Result<Recorder, RecordError> {
        Recorder::open_on(Arc::new(Machine), target, command)
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
        let threads = target.pid().map_or_else(Vec::new, |pid| names::threads(&*system, pid));
        match (&target, target.pid()) {
            (_, Some(pid)) if threads.is_empty() => return Err(RecordError::NoProcess(pid)),
            (Target::Thread { comm: None, .. }, None) => return Err(RecordError::NoThreads),
            _ => {}
        }
        let tracefs = Tracefs::open(&*system)?;
        let filter = thread_filter(&*system, &target, &threads);
        let (probes, pairing, idle_includes) = plan(&system, &tracefs, &target)?;
        let trace = Trace::open(&*system, &tracefs, &probes, filter.as_deref())?;
        let watch = Watch::start(&*system, target.layer());
        let mut metadata = Metadata::new(target.layer());
        metadata.source.tool = "dwell record".to_owned();
        metadata.source.events = trace.probes().iter().map(|probe| probe.kind.to_string()).collect();
        metadata.source.command = command;
        metadata.idle_includes = idle_includes;
        metadata.clock = Clock::Monotonic;
        metadata.kernel = kernel_release(&*system);
        metadata.cpu_model = cpu_model(&*system);
        metadata.lost.events = Some(0);
        Ok(Recorder { system, target, trace, pairing, metadata, watch, threads })
    }

    /// What the recording will say of itself, as far as it is known.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Records into the file `path`, which appears when it is complete.
    ///
    /// # Errors
    /// What went wrong; there is then no file.
    pub fn to_file(
        self,
        path: &Path,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Summary, RecordError> {
        let (summary, file) = self.write(NewFile::create(path)?, until, observer)?;
        file.keep()?;
        Ok(summary)
    }

    /// Records into memory: the bytes of a Parquet file, for [`Reader::from_bytes`](dwell_recording::Reader::from_bytes).
    ///
    /// # Errors
    /// What went wrong.
    pub fn to_memory(
        self,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Summary, Vec<u8>), RecordError> {
        self.write(Vec::new(), until, observer)
    }

    /// Records into `out`. Compressing and writing are done by a thread of their own, so that they do not keep the buffers
    /// from being emptied.
    ///
    /// # Errors
    /// What went wrong.
    pub fn write<W: Write + Send>(
        mut self,
        out: W,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Summary, W), RecordError> {
        let writer = Writer::new(out, self.metadata.clone(), Packing::default())?;
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(BATCHES_WAITING);
            let writing = scope.spawn(move || write_batches(writer, &receiver));
            let recorded = self.record(&sender, until, observer);
            drop(sender);
            let mut writer = writing.join().map_err(|_| RecordError::WriterGone)??;
            let status = recorded?;
            self.complete_metadata();
            *writer.metadata_mut() = self.metadata.clone();
            let (contents, out) = writer.close()?;
            Ok((Summary { status, contents, metadata: self.metadata }, out))
        })
    }

    fn record(
        &mut self,
        sender: &SyncSender<Batch>,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<Status, RecordError> {
        let io = |what| move |source| RecordError::Io { what, source };
        let started = Instant::now();
        let mut round = Round { merge: Merge::new(), status: Status::default(), named: 0 };
        let mut looked = started;
        self.trace.sampler().enable().map_err(io("switch on"))?;
        while !until.stop.load(Ordering::Relaxed) {
            let left = until.duration.map_or(ROUND, |duration| duration.saturating_sub(started.elapsed()));
            if left.is_zero() {
                break;
            }
            self.trace.sampler().wait(left.min(ROUND)).map_err(io("wait for"))?;
            let now = now_ns();
            self.read(&mut round);
            self.release(&mut round, now.saturating_sub(SLACK_NS), sender, observer)?;
            if looked.elapsed() >= LOOK_AROUND {
                looked = Instant::now();
                self.watch.look(&*self.system, now);
                if !self.follow_threads()? {
                    break;
                }
            }
            round.status.elapsed = started.elapsed();
            observer.status(&round.status);
        }
        self.trace.sampler().disable().map_err(io("switch off"))?;
        self.read(&mut round);
        self.release(&mut round, u64::MAX, sender, observer)?;
        let mut rows = Vec::new();
        self.pairing.finish(&mut rows);
        self.send(&mut round, rows, sender)?;
        round.status.elapsed = started.elapsed();
        observer.status(&round.status);
        Ok(round.status)
    }

    /// Empties the buffers.
    fn read(&mut self, round: &mut Round) {
        let mut late = Vec::new();
        let Round { merge, status, .. } = round;
        self.trace.drain(|event| {
            status.events += 1;
            if !merge.push(event) {
                late.push(event.cpu);
            }
        });
        late.into_iter().for_each(|cpu| self.trace.count_lost(cpu, 1));
    }

    /// Turns what is old enough into episodes and sends them off to be written.
    fn release(
        &mut self,
        round: &mut Round,
        until_ns: u64,
        sender: &SyncSender<Batch>,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        let mut rows = Vec::new();
        let pairing = &mut self.pairing;
        round.merge.release(until_ns, |event| {
            observer.event(event);
            pairing.observe(event, &mut rows);
        });
        self.send(round, rows, sender)
    }

    fn send(
        &mut self,
        round: &mut Round,
        rows: Vec<Found>,
        sender: &SyncSender<Batch>,
    ) -> Result<(), RecordError> {
        let idlers = self.pairing.idlers();
        let names = idlers.get(round.named..).unwrap_or_default().to_vec();
        round.named = idlers.len();
        round.status.idlers = idlers.len();
        round.status.episodes += rows.len() as u64;
        round.status.incomplete = self.pairing.incomplete();
        round.status.lost = self.trace.lost().values().sum();
        if rows.is_empty() && names.is_empty() {
            return Ok(());
        }
        // The thread that writes ends early only with an error of its own, which is then told in place of this one.
        sender.send(Batch { names, rows }).map_err(|_| RecordError::WriterGone)
    }

    /// Looks for threads that are new; answers `false` if the process has ended.
    fn follow_threads(&mut self) -> Result<bool, RecordError> {
        let Some(pid) = self.target.pid() else { return Ok(true) };
        let threads = names::threads(&*self.system, pid);
        if threads.is_empty() {
            return Ok(false);
        }
        if threads != self.threads {
            if let Some(filter) = thread_filter(&*self.system, &self.target, &threads) {
                self.trace.set_threads(&filter)?;
            }
            self.threads = threads;
        }
        Ok(true)
    }

    fn complete_metadata(&mut self) {
        for (cpu, count) in self.trace.lost() {
            self.metadata.lost.add(Some(*cpu), *count);
        }
        self.metadata.lost.incomplete_episodes = self.pairing.incomplete();
        self.metadata.settings = self.watch.changes().to_vec();
        self.metadata.other.extend(self.watch.notes());
        self.metadata.other.extend(self.pairing.notes());
    }
}

/// What goes on from round to round.
struct Round {
    merge: Merge,
    status: Status,
    /// How many idlers' names were sent off.
    named: usize,
}

/// Episodes on their way to the file, and the names that are new in them.
struct Batch {
    names: Vec<String>,
    rows: Vec<Found>,
}

/// At 200,000 episodes/s a batch is a tenth of a second, 20,000 rows of 80 bytes.
const BATCHES_WAITING: usize = 16;

fn write_batches<W: Write + Send>(
    mut writer: Writer<W>,
    batches: &Receiver<Batch>,
) -> Result<Writer<W>, WriteError> {
    let mut names: Vec<String> = Vec::new();
    for batch in batches {
        names.extend(batch.names);
        for row in batch.rows {
            let Some(idler) = names.get(row.idler as usize) else { continue };
            writer.push(&Episode {
                window_ns: row.window_ns,
                halted: row.halted,
                wake: row.wake,
                wake_latency_ns: row.wake_latency_ns,
                ..Episode::new(idler, row.start_ns, row.idle_ns)
            })?;
        }
    }
    Ok(writer)
}

type Plan = (Vec<Probe>, Box<dyn Pairing>, IdleIncludes);

fn plan(system: &Arc<dyn System>, tracefs: &Tracefs, target: &Target) -> Result<Plan, RecordError> {
    Ok(match target {
        Target::Host { pid, exits } => {
            let era = kernel_release(&**system)
                .and_then(|release| Version::parse(&release))
                .and_then(|version| host::Era::of(version).ok());
            let pairing = HostPairing::new(era, *pid, Box::new(ProcNames::new(system.clone())));
            (crate::host::probes(*exits), Box::new(pairing), IdleIncludes::Wake)
        }
        Target::Guest { source } => guest::plan(&**system, tracefs, *source)?,
        Target::Thread { pid, .. } => {
            let pairing = ThreadPairing::new(*pid, Box::new(ProcNames::new(system.clone())));
            (thread::probes(&**system, tracefs), Box::new(pairing), IdleIncludes::Wake)
        }
    })
}

/// What the kernel is to let through so that only the chosen threads cost anything; `None`: everything.
fn thread_filter(system: &dyn System, target: &Target, threads: &[i32]) -> Option<String> {
    let name = match target {
        Target::Thread { comm: Some(comm), .. } => {
            let end = comm.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&end| end <= COMM).last();
            Some(format!("comm == \"{}\"", comm.get(..end.unwrap_or(0)).unwrap_or_default()))
        }
        _ => None,
    };
    let numbers = match threads {
        [] => None,
        _ if !names::pids_are_global(system) => None,
        few if few.len() <= MOST_IN_FILTER => {
            Some(few.iter().map(|tid| format!("common_pid == {tid}")).collect::<Vec<_>>().join(" || "))
        }
        many => {
            let (first, last) = (many.iter().min()?, many.iter().max()?);
            Some(format!("common_pid >= {first} && common_pid <= {last}"))
        }
    };
    match (name, numbers) {
        (Some(name), Some(numbers)) => Some(format!("{name} && ({numbers})")),
        (name, numbers) => name.or(numbers),
    }
}

/// The kernel keeps this many bytes of a thread's name (`TASK_COMM_LEN` less the NUL).
const COMM: usize = 15;
/// A filter is at most a page long. What a range lets through beyond the threads is sorted out later.
const MOST_IN_FILTER: usize = 64;

/// CLOCK_MONOTONIC \[ns\].
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Records the best that there is here into memory: the vCPUs of this host if any halted, else the CPUs of this machine.
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
    let running = running_vms(&Machine);
    if running > 0
        && let Ok(recorder) = Recorder::open(Target::Host { pid: None, exits: false }, None)
    {
        let (summary, bytes) = recorder.to_memory(&until, observer)?;
        if summary.contents.episodes > 0 || stop.load(Ordering::Relaxed) {
            return Ok((summary, bytes));
        }
    }
    Recorder::open(Target::Guest { source: GuestSource::Auto }, None)?.to_memory(&until, observer)
}

/// Processes that have a VM open.
fn running_vms(system: &dyn System) -> usize {
    let processes = system.list(Path::new("/proc")).unwrap_or_default();
    let pids = processes.iter().filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    pids.filter(|pid| {
        let dir = format!("/proc/{pid}/fd");
        let fds = system.list(Path::new(&dir)).unwrap_or_default();
        fds.iter().any(|fd| {
            system.read_link(Path::new(&format!("{dir}/{fd}"))).is_ok_and(|link| link == "anon_inode:kvm-vm")
        })
    })
    .count()
}
