//! Programs that are loaded, their ring buffer and their counts of losses.

use super::btf::{Btf, KERNEL_TYPES};
use super::call::{self, Attach, Command};
use super::program::{Blueprint, Head, Maps};
use super::ring::{Numbers, Ring};
use crate::format::Format;
use crate::perf::Record;
use crate::probe::{Probe, TraceError};
use crate::rights::has_one_of;
use crate::system::System;
use dwell_machine::cpu;
use dwell_trace::event::TracepointKind;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Why a tracepoint is left out, and what a recording lacks then; where no program is written there is nothing that the kernel
/// could allow.
fn left_out(kind: TracepointKind, error: &TraceError) -> Option<String> {
    let why = match error {
        TraceError::NoProgram { .. } => return None,
        TraceError::Refused { event, source } => format!("{event}: {source}"),
        TraceError::Missing { event, missing } => format!("{event}: this kernel's BTF has no `{missing}`"),
        other => other.to_string(),
    };
    let lacks = match kind {
        TracepointKind::Reflect => "; a CPU's window is known only from its first change on",
        _ => "",
    };
    Some(why + lacks)
}

fn remedy_of_refusal(lacks: &[&str]) -> String {
    if lacks.is_empty() {
        return "a sandbox or security module forbids it; record outside of it, or use --source perf"
            .to_owned();
    }
    let them = if lacks.len() == 1 { "it" } else { "them" };
    format!("this process lacks {}; run as root or with {them}, or use --source perf", lacks.join(" and "))
}

const NEEDS: [&str; 2] = ["CAP_BPF", "CAP_PERFMON"];

#[derive(Debug)]
struct Loaded {
    event: String,
    attach: Attach,
    program: OwnedFd,
}

/// Programs on tracepoints of all CPUs.
#[derive(Debug)]
pub struct BpfSource {
    programs: Vec<Loaded>,
    /// While programs are attached.
    links: Vec<OwnedFd>,
    /// Whether programs stay attached between two recordings.
    stays: bool,
    /// One for each CPU that is online.
    rings: Vec<Ring>,
    losses: Numbers,
    /// While it is 0 programs write nothing.
    gate: Numbers,
    /// The tracepoints that could be done without and cannot be had, with the reason.
    left_out: Vec<String>,
    /// Of each CPU, the losses that its last record reported.
    told: BTreeMap<u32, u64>,
}

/// The ring buffers have so many bytes for each CPU, and together at least and at most so many: at 100,000 events/s of
/// 56 bytes 4 MiB hold three quarters of a second.
const FOR_EACH_CPU: usize = 4 << 20;
const LEAST: usize = 16 << 20;
const MOST: usize = 128 << 20;

impl BpfSource {
    /// Loads a program for each of `probes` that can be had, attached to nothing yet. Returns them, and for
    /// each of `probes` how its records are laid out. Filters are not looked at.
    ///
    /// # Errors
    /// Why there are no programs, or not one that is required.
    pub(crate) fn open(
        system: &dyn System,
        probes: &[Probe],
    ) -> Result<(BpfSource, Vec<Option<Format>>), TraceError> {
        let cpus = cpu::online(system);
        let count = cpus.len().max(1);
        let bytes = (FOR_EACH_CPU * count).clamp(LEAST, MOST) / count;
        BpfSource::open_sized(system, probes, &cpus, 1 << bytes.ilog2())
    }

    /// With a ring of `bytes` for each of `cpus`; what happens on others counts as lost.
    fn open_sized(
        system: &dyn System,
        probes: &[Probe],
        cpus: &[u32],
        bytes: usize,
    ) -> Result<(BpfSource, Vec<Option<Format>>), TraceError> {
        let btf = system.btf().map_err(|source| TraceError::NoBtf { source })?;
        let btf = Btf::parse(btf).map_err(|source| {
            let what = format!(
                "cannot understand {KERNEL_TYPES}; use --source perf, and please report this kernel to dwell's developers"
            );
            TraceError::failed(what, source)
        })?;
        raise_locked_memory_limit();
        let create = |what, command| system.open_bpf(&command).map_err(|error| why(system, what, error));
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let ring = |_: &u32| create("make a BPF ring buffer", Command::Ring { bytes: size });
        let each = cpus.iter().map(ring).collect::<Result<Vec<_>, _>>()?;
        let possible = possible_cpus(system);
        let count = u32::try_from(possible).unwrap_or(u32::MAX);
        let no_cpus =
            || TraceError::Lacks("the kernel lists no CPU that is online; use --source perf".to_owned());
        let one = each.first().ok_or_else(no_cpus)?.as_fd();
        let rings = create("make a map of BPF ring buffers", Command::Rings { count, one })?;
        for (cpu, ring) in cpus.iter().zip(&each) {
            let put = call::put(rings.as_fd(), *cpu, ring.as_fd());
            put.map_err(|error| why(system, "keep BPF ring buffers in a map", error))?;
        }
        let losses = create("make a BPF map", Command::Numbers { count })?;
        let gate = create("make a BPF map", Command::Numbers { count: 1 })?;
        let maps = Maps { rings: rings.as_fd(), losses: losses.as_fd(), gate: gate.as_fd() };
        let (mut programs, mut formats, mut all_left_out) = (vec![], vec![], vec![]);
        for (probe, number) in probes.iter().zip(0u16..) {
            match load(system, probe.kind, &btf, number, maps) {
                Ok((program, format)) => {
                    programs.push(program);
                    formats.push(Some(format));
                }
                Err(error) if probe.required => return Err(error),
                Err(error) => {
                    formats.push(None);
                    all_left_out.extend(left_out(probe.kind, &error));
                }
            }
        }
        let mapped =
            |source| TraceError::failed(format!("cannot map a BPF ring buffer of {bytes} bytes"), source);
        let gate = Numbers::map(gate.as_fd(), 1).map_err(mapped)?;
        let losses = Numbers::map(losses.as_fd(), possible).map_err(mapped)?;
        let rings = each.iter().map(|ring| Ring::map(ring.as_fd(), bytes));
        let rings = rings.collect::<io::Result<Vec<_>>>().map_err(mapped)?;
        let (links, told) = (vec![], BTreeMap::new());
        let (stays, left_out) = (false, all_left_out);
        let source = BpfSource { programs, links, stays, rings, losses, gate, left_out, told };
        Ok((source, formats))
    }

    /// Loads a program for each of `probes`, attaches none and unloads them again; returns what is left out
    /// of those that can be done without, with the reason.
    ///
    /// # Errors
    /// Why there are no programs, or not one that is required.
    pub(crate) fn try_out(system: &dyn System, probes: &[Probe]) -> Result<Vec<String>, TraceError> {
        let (source, _) = BpfSource::open_sized(system, probes, &[0], rustix::param::page_size())?;
        Ok(source.left_out)
    }

    /// The tracepoints that could be done without and cannot be had, with the reason.
    pub(crate) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Attaches all programs, and lets them write when all are.
    ///
    /// # Errors
    /// The system's error, with the tracepoint.
    pub fn enable(&mut self) -> io::Result<()> {
        for one in &self.programs[self.links.len()..] {
            let link = call::open(&Command::Link { attach: &one.attach, program: one.program.as_fd() });
            let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", one.event));
            self.links.push(link.map_err(named)?);
        }
        self.gate.set_first(1);
        Ok(())
    }

    /// Lets no program write, and detaches all unless they stay; records that are written remain.
    pub fn disable(&mut self) {
        self.gate.set_first(0);
        if !self.stays {
            self.links.clear();
        }
    }

    /// Between two recordings, whether programs stay attached: the kernel changes its own code to attach and to detach one,
    /// and interrupts every CPU for that. One that may not write takes some tens of nanoseconds an event.
    pub fn stay(&mut self, stays: bool) {
        self.stays = stays;
        if !stays {
            self.disable();
        }
    }

    /// The records of each CPU that found no room so far.
    pub fn lost(&self) -> Vec<(u32, u64)> {
        (0u32..).zip(self.losses.read()).filter(|(_, lost)| *lost > 0).collect()
    }

    /// How often a program did not run since it was running on that CPU already.
    ///
    /// # Errors
    /// The system's error.
    pub fn missed(&self) -> io::Result<u64> {
        self.programs.iter().map(|one| call::missed(one.program.as_fd())).sum()
    }

    /// Hands over every record that is there; returns how many bytes they took.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(u32, Record<'_>)) -> u64 {
        let BpfSource { rings, told, .. } = self;
        let mut all = 0;
        for ring in rings {
            let bytes = ring.take(|record| {
                let Some(head) = Head::of(record) else { return each(0, Record::Malformed) };
                let Head { time_ns, pid, tid, lost, cpu, rest } = head;
                let told = told.entry(cpu).or_default();
                if lost > *told {
                    each(cpu, Record::Lost { time_ns: Some(time_ns), count: lost - *told });
                    *told = lost;
                }
                each(cpu, Record::Sample { time_ns, pid, tid, raw: rest });
            });
            match bytes {
                Some(bytes) => all += bytes,
                None => each(0, Record::Malformed),
            }
        }
        all
    }
}

/// Loads the program of this number, and returns how its records are laid out.
fn load(
    system: &dyn System,
    kind: TracepointKind,
    btf: &Btf,
    number: u16,
    maps: Maps<'_>,
) -> Result<(Loaded, Format), TraceError> {
    let event = kind.to_string();
    let blueprint = Blueprint::of(kind, btf)?;
    let Some(instructions) = blueprint.program(number, maps) else {
        return Err(TraceError::NoProgram { event });
    };
    let command = Command::Program { attach: &blueprint.attach, instructions: &instructions };
    match system.open_bpf(&command) {
        Ok(program) => {
            let format = blueprint.format(number);
            Ok((Loaded { event, attach: blueprint.attach, program }, format))
        }
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied && !lacking(system).is_empty() => {
            Err(why(system, "load a BPF program", source))
        }
        Err(source) => Err(TraceError::Refused { event, source }),
    }
}

/// The capabilities that this process lacks for it.
fn lacking(system: &dyn System) -> Vec<&'static str> {
    NEEDS.into_iter().filter(|needed| !has_one_of(system, &[needed, "CAP_SYS_ADMIN"])).collect()
}

fn why(system: &dyn System, what: &str, source: io::Error) -> TraceError {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            let remedy = remedy_of_refusal(&lacking(system));
            TraceError::failed(format!("no permission to load BPF programs: {remedy}"), source)
        }
        _ => {
            let needs = "recording through BPF needs Linux 5.8 with CONFIG_BPF_SYSCALL; use --source perf";
            TraceError::failed(format!("this kernel cannot {what}: {needs}"), source)
        }
    }
}

/// How many CPUs there can be: the highest number and one.
fn possible_cpus(system: &dyn System) -> usize {
    let listed = system.text("/sys/devices/system/cpu/possible").unwrap_or_default();
    let highest = cpu::parse_list(listed.trim()).into_iter().chain(cpu::online(system)).max();
    highest.map_or(1, |highest| highest as usize + 1)
}

/// Before Linux 5.11 maps count as locked memory. Failing to raise the limit shows when the ring buffer is made.
fn raise_locked_memory_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if getrlimit(Resource::Memlock).current.is_some() {
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::Fake;
    use dwell_machine::Sysroot;
    use dwell_testing::say;
    use std::time::{Duration, Instant};

    fn with_btf() -> Option<Fake> {
        Some(Fake { btf: Some(std::fs::read(KERNEL_TYPES).ok()?), ..Fake::new() })
    }

    #[test]
    fn each_refusal_has_its_own_remedy() {
        const TEST: &str = "each_refusal_has_its_own_remedy";
        let probes = [Probe::of(TracepointKind::CpuIdle)];
        let refused = |fake: Fake| BpfSource::open(&fake, &probes).map(drop).unwrap_err().to_string();
        let no_btf = "cannot read /sys/kernel/btf/vmlinux: recording through BPF needs CONFIG_DEBUG_INFO_BTF; use --source \
                      perf";
        assert_eq!(refused(Fake::new()), no_btf);
        let status = |capabilities: &str| {
            let fake = with_btf()?.file("/proc/self/status", &format!("CapEff:\t{capabilities}\n"));
            Some(fake.file("/sys/devices/system/cpu/possible", "0-1\n"))
        };
        let Some(none) = status("0000000000000000") else {
            return dwell_testing::skip!("tracing", TEST, "this kernel has no BTF");
        };
        assert_eq!(
            refused(none),
            "no permission to load BPF programs: this process lacks CAP_BPF and CAP_PERFMON; run as root or with them, or \
             use --source perf"
        );
        assert_eq!(
            refused(status("0000004000000000").unwrap()),
            "no permission to load BPF programs: this process lacks CAP_BPF; run as root or with it, or use --source perf"
        );
        let both = refused(status("000000c000000000").unwrap());
        assert!(both.contains("a sandbox or security module forbids it"), "{both}");
        let old = refused(status("000000c000000000").unwrap().bpf_fails(libc::EINVAL));
        assert!(old.starts_with("this kernel cannot make a BPF ring buffer: "), "{old}");
    }

    /// What is read and what is counted as lost is as much as the kernel says that the program ran.
    #[test]
    fn every_record_is_read_or_counted_as_lost() {
        const TEST: &str = "every_record_is_read_or_counted_as_lost";
        let machine = Sysroot::of_this_machine();
        let probes = [Probe::of(TracepointKind::Waking)];
        let cpus = cpu::online(&machine);
        // Room for a hundred records a CPU.
        let (mut source, _) = match BpfSource::open_sized(&machine, &probes, &cpus, 8_192) {
            Ok(opened) => opened,
            Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
        };
        let _counting = match call::count_runs() {
            Ok(counting) => counting,
            Err(error) => {
                return dwell_testing::skip!("tracing", TEST, "the kernel does not count runs: {error}");
            }
        };
        let runs = |source: &BpfSource| -> u64 {
            source.programs.iter().map(|one| call::runs(one.program.as_fd()).unwrap()).sum()
        };
        // Attached with the gate open, so that every run counts, and detached before it is closed.
        source.gate.set_first(1);
        source.enable().unwrap();
        let (mut read, mut told) = (0u64, 0);
        let begun = Instant::now();
        let mut take = |source: &mut BpfSource| {
            source.drain(|_, record| match record {
                Record::Sample { .. } => read += 1,
                Record::Lost { count, .. } => told += count,
                _ => panic!("{record:?}"),
            });
        };
        // Full, emptied, and full again: the first record after that reports the losses before.
        for _ in 0..2 {
            let before: u64 = source.lost().iter().map(|(_, lost)| lost).sum();
            while source.lost().iter().map(|(_, lost)| lost).sum::<u64>() < before + 100 {
                std::thread::sleep(Duration::from_micros(50));
                assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", source.lost());
            }
            take(&mut source);
        }
        std::thread::sleep(Duration::from_millis(5));
        source.links.clear();
        // A program that is running now is over after this.
        std::thread::sleep(Duration::from_millis(50));
        take(&mut source);
        let lost: u64 = source.lost().iter().map(|(_, lost)| lost).sum();
        let runs = runs(&source);
        say!(
            "{runs} runs: {read} records read, {lost} lost, {told} of them told by a record, {} missed",
            source.missed().unwrap()
        );
        assert_eq!(read + lost, runs);
        assert!(told >= 100 && told <= lost, "{told} of {lost}");
    }
}
