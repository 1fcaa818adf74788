//! A trace of Perfetto (Android, ChromeOS, Linux) as the text that ftrace prints of its events.
//!
//! A trace is packets. Those of use: the bundles of ftrace events, one for each CPU and reading of its buffer, with
//! switches and wakings packed in arrays or not; what the kernel is; the names of processes and threads. Packets may be
//! compressed together. An event of any other kind comes out with a name and no text, so that it is counted.
//!
//! The events of one CPU are in order of time, those of different ones are not. Here they are put in order, as far as
//! [`MOST_WAITING`] events reach: for a trace of any length no more of it is in the memory.

mod event;
mod wire;

pub(super) use wire::begins_with_packet;

use super::pieces::Pieces;
use crate::import::perf::Time;
use event::{Described, Printed, describe, int, line, switch_text};
use flate2::bufread::ZlibDecoder;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, BufRead, Read};
use wire::{Damaged, Value, fields, numbers};

/// A packet may have this many bytes, and what is compressed in one: Perfetto's own limit is half a megabyte.
const MOST_BYTES: u64 = 64 << 20;

/// So many events wait to be put in order at most.
const MOST_WAITING: usize = 1 << 19;

/// So much text is made at a time.
const ENOUGH: usize = 1 << 16;

/// The text of the trace that `input` yields.
pub(super) struct Perfetto<R> {
    input: R,
    trace: Trace,
    ended: bool,
}

impl<R: BufRead> Perfetto<R> {
    pub(super) fn new(input: R) -> Perfetto<R> {
        Perfetto { input, trace: Trace::default(), ended: false }
    }
}

impl<R: BufRead> Pieces for Perfetto<R> {
    fn piece(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        while text.len() < ENOUGH && !self.ended {
            match packet(&mut self.input)? {
                Some(packet) => self.trace.packet(&packet, false)?,
                None => self.ended = true,
            }
            text.append(&mut self.trace.header);
            let most = if self.ended { 0 } else { MOST_WAITING };
            self.trace.release(most, text);
        }
        if self.ended && !self.trace.has_events {
            return Err(io::Error::other(
                "the trace has no events of the kernel; record with the data source linux.ftrace, and \
                 ftrace_events: \"power/cpu_idle\", \"sched/sched_waking\", \"irq/irq_handler_entry\"",
            ));
        }
        Ok(())
    }
}

/// The next packet of a file; `None` at its end.
fn packet(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let Some(key) = input.fill_buf()?.first().copied() else { return Ok(None) };
    input.consume(1);
    if key != 0x0a {
        return Err(damaged());
    }
    let mut length = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        length |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    let mut bytes = vec![];
    if length > MOST_BYTES || input.take(length).read_to_end(&mut bytes)? as u64 != length {
        return Err(damaged());
    }
    Ok(Some(bytes))
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Damaged)
}

/// A line that waits: its time, and its place among those of the same time.
type Waiting = Reverse<(u64, u64, Box<str>)>;

#[derive(Default)]
struct Trace {
    waiting: BinaryHeap<Waiting>,
    lines: u64,
    has_events: bool,
    /// Comments about the machine, and the names of processes.
    header: Vec<u8>,
    /// The name of each thread, and its process.
    names: HashMap<i32, String>,
    processes: HashMap<i32, i32>,
    described: Described,
    /// The thread that each CPU runs, as far as packed switches show it.
    running: HashMap<u32, i32>,
    /// The writers of packets of which there was one with events.
    writers: HashSet<u64>,
}

impl Trace {
    fn packet(&mut self, bytes: &[u8], unpacked: bool) -> io::Result<()> {
        let (mut bundle, mut writer, mut dropped) = (None, 0, false);
        for field in fields(bytes) {
            match field.map_err(|_| damaged())? {
                (1, Value::Bytes(bytes)) => bundle = Some(bytes),
                (2, Value::Bytes(tree)) => self.process_tree(tree).map_err(|_| damaged())?,
                (45, Value::Bytes(info)) => self.system_info(info).map_err(|_| damaged())?,
                (50, Value::Bytes(bytes)) if !unpacked => self.packets(ZlibDecoder::new(bytes))?,
                (133, Value::Bytes(bytes)) if !unpacked => {
                    self.packets(zstd::Decoder::with_buffer(bytes)?)?
                }
                (10, Value::Number(number)) => writer = number,
                (42, Value::Number(number)) => dropped = number != 0,
                _ => {}
            }
        }
        let Some(bundle) = bundle else { return Ok(()) };
        // Before the first of a writer nothing is missed.
        let missed = !self.writers.insert(writer) && dropped;
        self.bundle(bundle, missed).map_err(|_| damaged())
    }

    fn packets(&mut self, compressed: impl Read) -> io::Result<()> {
        let mut bytes = vec![];
        if compressed.take(MOST_BYTES).read_to_end(&mut bytes)? as u64 == MOST_BYTES {
            return Err(damaged());
        }
        for field in fields(&bytes) {
            match field.map_err(|_| damaged())? {
                (1, Value::Bytes(packet)) => self.packet(packet, true)?,
                _ => return Err(damaged()),
            }
        }
        Ok(())
    }

    /// Writes out all but the last `most` lines.
    fn release(&mut self, most: usize, text: &mut Vec<u8>) {
        while self.waiting.len() > most {
            let Some(Reverse((_, _, line))) = self.waiting.pop() else { return };
            text.extend_from_slice(line.as_bytes());
        }
    }

    /// `utsname`: release and machine.
    fn system_info(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        for field in fields(bytes) {
            let (1, Value::Bytes(name)) = field? else { continue };
            for field in fields(name) {
                let (what, value) = match field? {
                    (3, Value::Bytes(release)) => ("os release", release),
                    (4, Value::Bytes(machine)) => ("arch", machine),
                    _ => continue,
                };
                self.header.extend_from_slice(format!("# {what} : {}\n", line(value)).as_bytes());
            }
        }
        Ok(())
    }

    /// Names of processes (their first argument, without its path) and of threads.
    fn process_tree(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        for field in fields(bytes) {
            let (number, Value::Bytes(task)) = field? else { continue };
            let (mut id, mut process, mut name) = (None, None, None);
            for field in fields(task) {
                match (number, field?) {
                    (1 | 2, (1, Value::Number(number))) => id = Some(int(number)),
                    (2, (3, Value::Number(number))) => process = Some(int(number)),
                    (2, (2, Value::Bytes(text))) => name = Some(line(text)),
                    (1, (3, Value::Bytes(text))) if name.is_none() => {
                        let path = line(text);
                        name = Some(path.rsplit('/').next().unwrap_or_default().to_owned());
                    }
                    _ => {}
                }
            }
            let Some(id) = id else { continue };
            if number == 1 {
                process = Some(id);
                if let Some(name) = &name {
                    let line = format!("{name} {id}/{id} 0.000000000: PERF_RECORD_COMM: {name}:{id}/{id}\n");
                    self.header.extend_from_slice(line.as_bytes());
                }
            }
            self.processes.extend(process.map(|process| (id, process)));
            self.names.extend(name.filter(|name| !name.is_empty()).map(|name| (id, name)));
        }
        Ok(())
    }

    fn bundle(&mut self, bytes: &[u8], missed: bool) -> Result<(), Damaged> {
        let (mut cpu, mut lost, mut packed) = (0, false, None);
        for field in fields(bytes) {
            match field? {
                (1, Value::Number(number)) => cpu = u32::try_from(number).map_err(|_| Damaged)?,
                (3, Value::Number(number)) => lost = number != 0,
                (4, Value::Bytes(bytes)) => packed = Some(bytes),
                (11, Value::Bytes(bytes)) => describe(bytes, &mut self.described)?,
                _ => {}
            }
        }
        let (before, mut first_ns) = (self.lines, u64::MAX);
        self.lines += 1;
        match (missed, lost) {
            (true, _) => self.running.clear(),
            (false, true) => drop(self.running.remove(&cpu)),
            (false, false) => {}
        }
        for field in fields(bytes) {
            let (2, Value::Bytes(bytes)) = field? else { continue };
            let event = Printed::read(bytes, &self.described)?;
            self.names.extend(event.tasks);
            first_ns = first_ns.min(event.time_ns);
            self.push(event.time_ns, (cpu, event.pid), (&event.name, &event.text));
        }
        if let Some(packed) = packed {
            first_ns = first_ns.min(self.packed(packed, cpu)?);
        }
        if (lost || missed) && first_ns < u64::MAX {
            // What a packet had that is missing may be of any CPU.
            let cpu = if missed { String::new() } else { format!("[{cpu:03}] ") };
            let line = format!("{cpu}{}: PERF_RECORD_LOST lost 1\n", Time(first_ns));
            self.waiting.push(Reverse((first_ns, before, line.into())));
        }
        Ok(())
    }

    fn push(&mut self, time_ns: u64, (cpu, pid): (u32, Option<i32>), (name, text): (&str, &str)) {
        self.has_events = true;
        let mut line = match pid {
            Some(0) => "<idle>-0".to_owned(),
            Some(pid) => format!("{}-{pid}", self.names.get(&pid).map_or("<...>", String::as_str)),
            None => "<...>-?".to_owned(),
        };
        if let Some(process) = pid.and_then(|pid| self.processes.get(&pid)) {
            let _ = write!(line, " ({process})");
        }
        let _ = writeln!(line, " [{cpu:03}] {}: {name}: {text}", Time(time_ns));
        self.waiting.push(Reverse((time_ns, self.lines, line.into())));
        self.lines += 1;
    }

    /// Switches and wakings in arrays: times as differences, names by their place in a table. Returns the first time.
    fn packed(&mut self, bytes: &[u8], cpu: u32) -> Result<u64, Damaged> {
        let mut names = vec![];
        let mut columns: [Vec<u64>; 13] = Default::default();
        for field in fields(bytes) {
            match field? {
                (5, Value::Bytes(name)) => names.push(line(name)),
                (number, value) => {
                    let column = usize::try_from(number).ok().and_then(|number| columns.get_mut(number));
                    column.map_or(Ok(()), |column| numbers(value, column))?;
                }
            }
        }
        let name = |place: u64| usize::try_from(place).ok().and_then(|place| names.get(place)).cloned();
        let [_, switch_ns, state, next, _, _, next_name, waking_ns, woken, target, prio, woken_name, _] =
            columns;
        let same = |columns: &[&Vec<u64>], length| columns.iter().all(|column| column.len() == length);
        if !same(&[&state, &next, &next_name], switch_ns.len())
            || !same(&[&woken, &target, &prio, &woken_name], waking_ns.len())
        {
            return Err(Damaged);
        }
        let mut switches =
            times(switch_ns)?.into_iter().zip(state).zip(next.into_iter().zip(next_name)).peekable();
        let mut wakings = times(waking_ns)?
            .into_iter()
            .zip(woken.into_iter().zip(target))
            .zip(prio.into_iter().zip(woken_name))
            .peekable();
        let mut first_ns = u64::MAX;
        loop {
            let switch_ns = switches.peek().map_or(u64::MAX, |((ns, _), _)| *ns);
            let waking_ns = wakings.peek().map_or(u64::MAX, |((ns, _), _)| *ns);
            first_ns = first_ns.min(switch_ns).min(waking_ns);
            if switch_ns < waking_ns
                && let Some(((ns, state), (next, place))) = switches.next()
            {
                let next = int(next);
                self.names.extend(name(place).map(|name| (next, name)));
                let prev = self.running.insert(cpu, next);
                let text = switch_text(prev.unwrap_or(-1), state.cast_signed(), next);
                self.push(ns, (cpu, prev), ("sched_switch", &text));
            } else if let Some(((ns, (woken, target)), (prio, place))) = wakings.next() {
                let (woken, comm) = (int(woken), name(place).unwrap_or_default());
                self.names.insert(woken, comm.clone());
                let text =
                    format!("comm={comm} pid={woken} prio={} target_cpu={:03}", int(prio), int(target));
                self.push(ns, (cpu, self.running.get(&cpu).copied()), ("sched_waking", &text));
            } else {
                return Ok(first_ns);
            }
        }
    }
}

/// Differences, the first of which is a time, as times.
fn times(differences: Vec<u64>) -> Result<Vec<u64>, Damaged> {
    let mut now_ns = 0u64;
    let next = |difference| {
        now_ns = now_ns.checked_add(difference).filter(|ns| *ns < u64::MAX).ok_or(Damaged)?;
        Ok(now_ns)
    };
    differences.into_iter().map(next).collect()
}
