//! Tracepoints of every CPU, read together.

use super::event::{self, Attributes, Source};
use super::record::{Record, Records};
use super::ring::{Ring, Taken};
use crate::probe::TraceError;
use crate::rights::has_one_of;
use crate::system::System;
use dwell_machine::cpu;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A tracepoint to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracepoint {
    /// As `category:name`, for messages.
    pub name: String,
    /// What it is for perf.
    pub source: Source,
    /// What the kernel lets through, in the language of `events/*/filter`; `None`: everything.
    pub filter: Option<String>,
}

impl Tracepoint {
    fn not_sampled(&self, cpu: u32, source: io::Error) -> TraceError {
        TraceError::failed(format!("cannot sample {} on CPU {cpu}", self.name), source)
    }
}

/// The ring buffer of one CPU and the tracepoints that fill it.
#[derive(Debug)]
struct CpuBuffer {
    cpu: u32,
    ring: Ring,
    /// One for each tracepoint, in their order, then what was added; the first owns the ring buffer.
    events: Vec<OwnedFd>,
}

/// All tracepoints on all CPUs.
#[derive(Debug)]
pub struct Sampler {
    tracepoints: Vec<Tracepoint>,
    buffers: Vec<CpuBuffer>,
    /// For what wraps around the end of a ring buffer.
    spare: Vec<u8>,
    bytes: usize,
    /// Whether events count what did not fit, which kernels before 6.0 cannot.
    counts_lost: bool,
}

/// What all ring buffers together may take \[bytes\].
const ALL_RINGS: usize = 128 << 20;
/// The size of a ring buffer where there are few CPUs \[bytes\]: at 200,000 events/s of 80 bytes on one CPU it holds a
/// second. With 4 MiB events were lost where four other tasks wanted each core.
const RING: usize = 16 << 20;
/// The least that is worth while \[bytes\]; the limit for users without privilege is 516 kiB for all.
const LEAST_RING: usize = 64 << 10;

impl Sampler {
    /// Opens `tracepoints` on every CPU, disabled.
    ///
    /// # Errors
    /// Which of the things that can be refused is refused.
    pub fn open(system: &dyn System, tracepoints: Vec<Tracepoint>) -> Result<Sampler, TraceError> {
        let cpus = cpu::online(system);
        let share = (ALL_RINGS / cpus.len().max(1)).max(LEAST_RING);
        let bytes = RING.min(1 << share.ilog2());
        raise_descriptor_limit();
        let mut sampler = Sampler { tracepoints, buffers: vec![], spare: vec![], bytes, counts_lost: true };
        for cpu in cpus {
            if let Some(buffer) = sampler.open_cpu(system, cpu)? {
                sampler.buffers.push(buffer);
            }
        }
        Ok(sampler)
    }

    /// `None` if the CPU has gone offline.
    fn open_cpu(&mut self, system: &dyn System, cpu: u32) -> Result<Option<CpuBuffer>, TraceError> {
        let mut events: Vec<OwnedFd> = vec![];
        let mut ring = None;
        for tracepoint in &self.tracepoints {
            let mut opened = system.open_event(&self.attributes(tracepoint), cpu);
            if self.counts_lost && opened.as_ref().is_err_and(is_invalid) {
                let without = Attributes { counts_lost: false, ..self.attributes(tracepoint) };
                opened = system.open_event(&without, cpu);
                // Where both are refused, the reason is another one.
                self.counts_lost = opened.as_ref().is_err_and(is_invalid);
            }
            let Some(fd) = self.prepare(system, tracepoint, cpu, opened)? else { return Ok(None) };
            match events.first() {
                None => ring = Some(map(&fd, &mut self.bytes, cpu)?),
                Some(owner) => event::redirect(fd.as_fd(), owner.as_fd())
                    .map_err(|source| tracepoint.not_sampled(cpu, source))?,
            }
            events.push(fd);
        }
        Ok(ring.map(|ring| CpuBuffer { cpu, ring, events }))
    }

    /// An event that was opened, with its filter; `None` if the CPU has gone offline.
    fn prepare(
        &self,
        system: &dyn System,
        tracepoint: &Tracepoint,
        cpu: u32,
        opened: io::Result<OwnedFd>,
    ) -> Result<Option<OwnedFd>, TraceError> {
        let fd = match opened {
            Ok(fd) => fd,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(error) => return Err(self.why(system, tracepoint, cpu, error)),
        };
        if let Some(filter) = &tracepoint.filter {
            event::set_filter(fd.as_fd(), filter).map_err(|source| {
                let name = &tracepoint.name;
                let what = format!("cannot filter {name}: the kernel refuses the filter `{filter}`");
                TraceError::failed(what, source)
            })?;
        }
        Ok(Some(fd))
    }

    fn attributes(&self, tracepoint: &Tracepoint) -> Attributes {
        let watermark_bytes = u32::try_from(self.bytes / 4).unwrap_or(u32::MAX);
        Attributes { source: tracepoint.source, watermark_bytes, counts_lost: self.counts_lost }
    }

    fn why(&self, system: &dyn System, tracepoint: &Tracepoint, cpu: u32, source: io::Error) -> TraceError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                let paranoid = system.text("/proc/sys/kernel/perf_event_paranoid");
                let paranoid: Option<i32> = paranoid.and_then(|text| text.parse().ok());
                let level = paranoid.map(|level| format!(" (kernel.perf_event_paranoid is {level})"));
                let remedy = match (has_one_of(system, &PERFMON), paranoid.is_some_and(|level| level > -1)) {
                    (true, _) => {
                        "this process has CAP_PERFMON, so a sandbox or security module forbids it; record outside of it"
                    }
                    (false, true) => {
                        "this process lacks CAP_PERFMON; run as root or with it, or set kernel.perf_event_paranoid=-1"
                    }
                    (false, false) => "this process lacks CAP_PERFMON; run as root or with it",
                };
                let what = "no permission to sample tracepoints of all processes";
                TraceError::failed(format!("{what}{}: {remedy}", level.unwrap_or_default()), source)
            }
            Some(libc::ENOSYS) => TraceError::failed(
                "perf_event_open is not available: the kernel lacks CONFIG_PERF_EVENTS or a sandbox forbids it; record \
                 outside the sandbox",
                source,
            ),
            Some(libc::EMFILE | libc::ENFILE) => {
                let needed = self.tracepoints.len() * cpu::online(system).len();
                let limit = needed + 100;
                let what = format!(
                    "cannot record: {needed} file descriptors are needed; raise the limit with `ulimit -n {limit}`"
                );
                TraceError::failed(what, source)
            }
            _ => tracepoint.not_sampled(cpu, source),
        }
    }

    /// Of buffers in memory of our own, one for each CPU, and the kernel's ends of them.
    #[cfg(test)]
    pub(crate) fn in_memory(cpus: u32, bytes: usize) -> (Vec<super::Kernel>, Sampler) {
        let both = |cpu| {
            let (kernel, ring) = super::Kernel::new(bytes, 0);
            (kernel, CpuBuffer { cpu, ring, events: vec![] })
        };
        let (kernels, buffers) = (0..cpus).map(both).unzip();
        (kernels, Sampler { tracepoints: vec![], buffers, spare: vec![], bytes, counts_lost: false })
    }

    /// The tracepoints, in the order in which they were given.
    pub fn tracepoints(&self) -> &[Tracepoint] {
        &self.tracepoints
    }

    /// The frequency of this machine's time-stamp counter \[kHz\]; `None` where the kernel does not compute
    /// its time from it.
    pub fn tsc_khz(&self) -> Option<u32> {
        self.buffers.first().and_then(|buffer| buffer.ring.tsc_khz())
    }

    /// Lets samples come.
    ///
    /// # Errors
    /// The system's error.
    pub fn enable(&self) -> io::Result<()> {
        self.all().try_for_each(|fd| event::enable(fd.as_fd()))
    }

    /// No more samples after this; those in the buffers remain.
    ///
    /// # Errors
    /// The system's error.
    pub fn disable(&self) -> io::Result<()> {
        self.all().try_for_each(|fd| event::disable(fd.as_fd()))
    }

    /// Whether [`Sampler::lost`] counts every record that did not fit. Otherwise (before Linux 6.0) only
    /// those are known that a [`Record::Lost`] reports, and what is lost after the last record of a CPU is
    /// not.
    pub fn counts_lost(&self) -> bool {
        self.counts_lost
    }

    /// The records of each CPU that did not fit into its ring buffer so far; `None` if they are not counted.
    ///
    /// # Errors
    /// The system's error.
    pub fn lost(&self) -> io::Result<Option<Vec<(u32, u64)>>> {
        if !self.counts_lost {
            return Ok(None);
        }
        let of_cpu = |buffer: &CpuBuffer| {
            let counts = buffer.events.iter().map(|fd| event::lost(fd.as_fd()));
            Ok((buffer.cpu, counts.sum::<io::Result<u64>>()?))
        };
        self.buffers.iter().map(of_cpu).collect::<io::Result<_>>().map(Some)
    }

    fn all(&self) -> impl Iterator<Item = &OwnedFd> {
        self.buffers.iter().flat_map(|buffer| &buffer.events)
    }

    /// Lets more through: each of `more` is a known tracepoint again with another filter, into the same ring
    /// buffers and at once. The kernel never replaces the filter of an event, so that what is to be watched
    /// in addition takes events of its own; a hit that passes two filters comes twice.
    ///
    /// # Errors
    /// As for [`Sampler::open`]; on some CPUs it may then be done already.
    pub fn add(&mut self, system: &dyn System, more: &[Tracepoint]) -> Result<(), TraceError> {
        for index in 0..self.buffers.len() {
            for tracepoint in more {
                let Some(CpuBuffer { cpu, events, .. }) = self.buffers.get(index) else { continue };
                let (cpu, Some(owner)) = (*cpu, events.first()) else { continue };
                let opened = system.open_event(&self.attributes(tracepoint), cpu);
                let Some(fd) = self.prepare(system, tracepoint, cpu, opened)? else { continue };
                event::redirect(fd.as_fd(), owner.as_fd())
                    .and_then(|()| event::enable(fd.as_fd()))
                    .map_err(|source| tracepoint.not_sampled(cpu, source))?;
                if let Some(buffer) = self.buffers.get_mut(index) {
                    buffer.events.push(fd);
                }
            }
        }
        Ok(())
    }

    /// Waits until a buffer is a quarter full, or for `timeout`.
    ///
    /// # Errors
    /// What the system says, except for being interrupted.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let owners = self.buffers.iter().filter_map(|buffer| buffer.events.first());
        let mut fds: Vec<PollFd<'_>> = owners.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands over every record that is there, CPU by CPU; returns how many bytes they took.
    pub fn drain(&mut self, mut each: impl FnMut(u32, Record<'_>)) -> u64 {
        let mut bytes = 0;
        for buffer in &mut self.buffers {
            let CpuBuffer { cpu, ring, .. } = buffer;
            let taken = ring.take(&mut self.spare, |contents| {
                bytes += contents.len() as u64;
                Records::new(contents).for_each(|record| each(*cpu, record));
            });
            match taken {
                Taken::All => {}
                Taken::Full => each(*cpu, Record::Full),
                Taken::Senseless => each(*cpu, Record::Malformed),
            }
        }
        bytes
    }
}

/// What includes the right to sample all processes.
const PERFMON: [&str; 2] = ["CAP_PERFMON", "CAP_SYS_ADMIN"];

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EINVAL)
}

/// Maps a ring buffer of `bytes`, or of less where that much may not be locked; `bytes` is then what was possible.
fn map(owner: &OwnedFd, bytes: &mut usize, cpu: u32) -> Result<Ring, TraceError> {
    loop {
        match Ring::map(owner.as_fd(), *bytes) {
            Ok(ring) => return Ok(ring),
            Err(_) if *bytes > LEAST_RING => *bytes /= 2,
            Err(source) => {
                let what = format!(
                    "cannot map a ring buffer of {bytes} bytes for CPU {cpu}; raise kernel.perf_event_mlock_kb or `ulimit -l`"
                );
                return Err(TraceError::failed(what, source));
            }
        }
    }
}

/// One descriptor for each tracepoint on each CPU soon exceeds the usual soft limit of 1024. Failing to raise it shows
/// when descriptors run out.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::Fake;

    fn refused(errno: i32, paranoid: &str) -> String {
        let fake = Fake::new().perf_fails(errno).file("/proc/sys/kernel/perf_event_paranoid", paranoid);
        let tracepoint = Tracepoint {
            name: "kvm:kvm_vcpu_wakeup".to_owned(),
            source: Source::Tracepoint(41),
            filter: None,
        };
        Sampler::open(&fake, vec![tracepoint]).unwrap_err().to_string()
    }

    /// A kernel that does not count losses by event is asked again without; its refusal is then the error.
    #[test]
    fn before_6_0_events_are_opened_without_counts_of_losses() {
        let fake = Fake::new().old_perf().perf_fails(libc::EMFILE);
        let source = Source::Tracepoint(41);
        let tracepoint = Tracepoint { name: "kvm:kvm_vcpu_wakeup".to_owned(), source, filter: None };
        let mut sampler = Sampler {
            tracepoints: vec![tracepoint],
            buffers: vec![],
            spare: vec![],
            bytes: RING,
            counts_lost: true,
        };
        let refused = sampler.open_cpu(&fake, 0).unwrap_err();
        assert!(refused.to_string().contains(" file descriptors are needed"), "{refused}");
        assert!(!sampler.counts_lost());
        assert_eq!(sampler.lost().unwrap(), None);
    }

    #[test]
    fn each_refusal_has_its_own_remedy() {
        assert_eq!(
            refused(libc::EACCES, "3\n"),
            "no permission to sample tracepoints of all processes (kernel.perf_event_paranoid is 3): this process lacks \
             CAP_PERFMON; run as root or with it, or set kernel.perf_event_paranoid=-1"
        );
        assert_eq!(
            refused(libc::EPERM, "-1\n"),
            "no permission to sample tracepoints of all processes (kernel.perf_event_paranoid is -1): this process lacks \
             CAP_PERFMON; run as root or with it"
        );
        // What this process has is not what it lacks.
        let privileged =
            Fake::new().perf_fails(libc::EACCES).file("/proc/self/status", "CapEff:\t0000004000000000\n");
        let source = Source::Tracepoint(41);
        let tracepoint = Tracepoint { name: "kvm:kvm_vcpu_wakeup".to_owned(), source, filter: None };
        let told = Sampler::open(&privileged, vec![tracepoint]).unwrap_err().to_string();
        assert!(told.contains("has CAP_PERFMON, so a sandbox"), "{told}");
        assert!(refused(libc::ENOSYS, "2").contains("CONFIG_PERF_EVENTS"));
        assert!(refused(libc::EMFILE, "2").contains("ulimit -n 101"));
        assert_eq!(refused(libc::EINVAL, "2"), "cannot sample kvm:kvm_vcpu_wakeup on CPU 0");
    }
}
