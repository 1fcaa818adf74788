//! Which tracepoints a recorder wants, and what they are on this machine.

use crate::bpf::{BpfSource, KERNEL_TYPES};
use crate::clock::now_ns;
use crate::decode::Decoder;
use crate::format::At;
use crate::perf::{Record, Sampler, Source, Tracepoint};
use crate::system::System;
use crate::tracefs::Tracefs;
use dwell_trace::event::{Event, EventKind, TracepointKind};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

/// A tracepoint that a recorder wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub kind: TracepointKind,
    /// What the kernel is to let through.
    pub filter: Option<String>,
    /// Whether only the chosen threads' events are wanted, beside `filter`.
    pub by_thread: bool,
    /// Whether nothing can be recorded without it.
    pub required: bool,
}

impl Probe {
    pub fn of(kind: TracepointKind) -> Probe {
        Probe { kind, filter: None, by_thread: false, required: true }
    }

    /// Only what passes `filter`.
    #[must_use]
    pub fn filtered(mut self, filter: impl Into<String>) -> Probe {
        self.filter = Some(filter.into());
        self
    }

    /// Only the chosen threads'.
    #[must_use]
    pub fn by_thread(mut self) -> Probe {
        self.by_thread = true;
        self
    }

    /// Used where it exists.
    #[must_use]
    pub fn optional(mut self) -> Probe {
        self.required = false;
        self
    }

    fn filter_with(&self, threads: Option<&Threads>) -> Option<String> {
        let number = match self.kind {
            // The one that is woken, of which the event has name and number.
            TracepointKind::Waking => "pid",
            _ => "common_pid",
        };
        let threads = threads.filter(|_| self.by_thread).and_then(|threads| threads.filter(number));
        both(self.filter.clone(), threads)
    }
}

/// The threads whose events are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads<'a> {
    /// Of one of these names; empty: of any.
    pub names: &'a [String],
    /// `None`: of any number.
    pub tids: Option<Tids>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tids {
    These(Vec<i32>),
    Above(i32),
}

/// The kernel keeps this many bytes of a thread's name (`TASK_COMM_LEN` less the NUL).
const COMM: usize = 15;

impl Threads<'_> {
    /// The filter, where the field `number` has the thread's number; `None` where all are wanted.
    fn filter(&self, number: &str) -> Option<String> {
        let name = |comm: &String| {
            let ends = comm.char_indices().map(|(at, c)| at + c.len_utf8());
            let end = ends.take_while(|&end| end <= COMM).last().unwrap_or(0);
            let quote = if comm.contains('"') { '\'' } else { '"' };
            format!("comm == {quote}{}{quote}", comm.get(..end).unwrap_or_default())
        };
        let names = self.names.iter().map(name).collect::<Vec<_>>().join(" || ");
        let tids = self.tids.as_ref().map(|tids| match tids {
            Tids::These(tids) => any_of(number, tids),
            Tids::Above(last) => format!("{number} > {last}"),
        });
        both((!names.is_empty()).then_some(names), tids)
    }
}

/// A filter that lets through what both let through; `None` lets through everything.
fn both(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("({one}) && ({other})")),
        (one, other) => one.or(other),
    }
}

/// A filter that lets through what has one of these numbers in a field.
pub fn any_of(field: &str, numbers: impl IntoIterator<Item: fmt::Display>) -> String {
    let terms: Vec<String> = numbers.into_iter().map(|number| format!("{field} == {number}")).collect();
    terms.join(" || ")
}

/// Why tracing could not begin.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Something failed; the text has the remedy.
    #[error("{what}")]
    Failed { what: String, source: Box<dyn Error + Send + Sync> },
    /// The kernel lacks something; the text has the remedy.
    #[error("{0}")]
    Lacks(String),
    /// The kernel's types cannot be read.
    #[error(
        "cannot read {KERNEL_TYPES}: recording through BPF needs CONFIG_DEBUG_INFO_BTF; use --source perf"
    )]
    NoBtf { source: io::Error },
    /// A type, function or field of a tracepoint, as `category:name`, is not among the kernel's types.
    #[error("{event}: this kernel's BTF has no `{missing}`; use --source perf")]
    Missing { event: String, missing: String },
    /// There is no BPF program for this tracepoint.
    #[error("{event} cannot be recorded through BPF; use --source perf")]
    NoProgram { event: String },
    /// The kernel does not take a BPF program; the source ends with its explanation.
    #[error("{event}: the kernel does not take the BPF program; use --source perf")]
    Refused { event: String, source: io::Error },
}

impl TraceError {
    pub(crate) fn failed(
        what: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> TraceError {
        TraceError::Failed { what: what.into(), source: source.into() }
    }
}

#[derive(Debug)]
enum Tracer {
    Perf(Sampler),
    Bpf(BpfSource),
}

/// Probes that are open: samples in, [`Event`]s out.
#[derive(Debug)]
pub struct Trace {
    tracer: Tracer,
    probes: Vec<Probe>,
    /// Where a sample has the number of its tracepoint.
    type_at: At,
    /// By number of the tracepoint.
    decoders: Vec<Option<Decoder>>,
    lost: BTreeMap<u32, u64>,
    /// Of those, the ones that a record in a ring buffer reported.
    told: BTreeMap<u32, u64>,
}

/// Where every kernel so far has it; the format file of the first probe is asked first.
const COMMON_TYPE: At = At { offset: 0, size: 2, signed: false };

impl Trace {
    /// Opens `probes` on every CPU, disabled. `threads` is the filter for those that want chosen threads only.
    ///
    /// # Errors
    /// What is missing or refused. Optional probes that are missing are left out.
    pub fn open(
        system: &dyn System,
        tracefs: &Tracefs,
        probes: &[Probe],
        threads: Option<&Threads<'_>>,
    ) -> Result<Trace, TraceError> {
        let (mut kept, mut tracepoints, mut decoders) = (vec![], vec![], vec![]);
        let mut type_at = COMMON_TYPE;
        for probe in probes {
            let name = probe.kind.to_string();
            if probe.kind == TracepointKind::ContextSwitch {
                tracepoints.push(Tracepoint { name, source: Source::Switches, filter: None });
                kept.push(probe.clone());
                continue;
            }
            let (id, decoder, at) = match describe(system, tracefs, probe.kind, &name) {
                Ok(known) => known,
                Err(_) if !probe.required => continue,
                Err(error) => return Err(error),
            };
            type_at = at;
            let place = usize::from(id);
            decoders.resize(decoders.len().max(place + 1), None);
            if let Some(slot) = decoders.get_mut(place) {
                *slot = Some(decoder);
            }
            let source = Source::Tracepoint(id);
            tracepoints.push(Tracepoint { name, source, filter: probe.filter_with(threads) });
            kept.push(probe.clone());
        }
        let trace = Trace::new(Tracer::Perf(Sampler::open(system, tracepoints)?), kept, decoders);
        Ok(Trace { type_at, ..trace })
    }

    /// Opens `probes` through BPF, on every CPU, attached to nothing yet. Filters are not looked at.
    ///
    /// # Errors
    /// What is missing or refused. Optional probes that are missing are left out.
    pub fn open_bpf(system: &dyn System, probes: &[Probe]) -> Result<Trace, TraceError> {
        let (source, formats) = BpfSource::open(system, probes)?;
        let (mut kept, mut decoders) = (vec![], vec![]);
        for (probe, format) in probes.iter().zip(formats) {
            let decoder = match format.map(|format| Decoder::new(probe.kind, &format)) {
                Some(Ok(decoder)) => Some(decoder),
                Some(Err(missing)) => {
                    let (event, missing) = (probe.kind.to_string(), missing.to_owned());
                    return Err(TraceError::Missing { event, missing });
                }
                None => None,
            };
            kept.extend(decoder.is_some().then(|| probe.clone()));
            decoders.push(decoder);
        }
        Ok(Trace::new(Tracer::Bpf(source), kept, decoders))
    }

    /// Of samples whose type is a place in `decoders`.
    #[cfg(test)]
    pub(crate) fn of(sampler: Sampler, decoders: &[Decoder]) -> Trace {
        Trace::new(Tracer::Perf(sampler), vec![], decoders.iter().copied().map(Some).collect())
    }

    fn new(tracer: Tracer, probes: Vec<Probe>, decoders: Vec<Option<Decoder>>) -> Trace {
        let (lost, told) = (BTreeMap::new(), BTreeMap::new());
        Trace { tracer, probes, type_at: COMMON_TYPE, decoders, lost, told }
    }

    /// The probes that are open.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The optional probes that the kernel does not let BPF programs have, with the reason.
    pub fn left_out(&self) -> &[String] {
        match &self.tracer {
            Tracer::Perf(_) => &[],
            Tracer::Bpf(source) => source.left_out(),
        }
    }

    /// Lets events come.
    ///
    /// # Errors
    /// The system's error.
    pub fn enable(&mut self) -> io::Result<()> {
        match &mut self.tracer {
            Tracer::Perf(sampler) => sampler.enable(),
            Tracer::Bpf(source) => source.enable(),
        }
    }

    /// No more events after this; those that are waiting remain.
    ///
    /// # Errors
    /// The system's error.
    pub fn disable(&mut self) -> io::Result<()> {
        match &mut self.tracer {
            Tracer::Perf(sampler) => sampler.disable()?,
            Tracer::Bpf(source) => source.disable(),
        }
        Ok(())
    }

    /// Between two recordings, whether what is fast to let come again stays ready for it; it then costs a little.
    pub fn stay(&mut self, stays: bool) {
        if let Tracer::Bpf(source) = &mut self.tracer {
            source.stay(stays);
        }
    }

    /// Waits until there is much to read, or for `timeout`.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        match &self.tracer {
            Tracer::Perf(sampler) => sampler.wait(timeout)?,
            // Nothing wakes the reader earlier: it would run as often as what it watches.
            Tracer::Bpf(_) => std::thread::sleep(timeout),
        }
        Ok(())
    }

    /// Whether every event that is lost is counted.
    pub fn counts_lost(&self) -> bool {
        match &self.tracer {
            Tracer::Perf(sampler) => sampler.counts_lost(),
            Tracer::Bpf(_) => true,
        }
    }

    /// The frequency of this machine's time-stamp counter \[kHz\], as perf's buffers show it.
    pub fn tsc_khz(&self) -> Option<u32> {
        match &self.tracer {
            Tracer::Perf(sampler) => sampler.tsc_khz(),
            Tracer::Bpf(_) => None,
        }
    }

    /// Watches more threads, of those probes that want chosen threads only. `threads` must not let through
    /// what is watched already.
    ///
    /// # Errors
    /// What is refused.
    pub fn add_threads(&mut self, system: &dyn System, threads: &Threads<'_>) -> Result<(), TraceError> {
        // A BPF source is not used for chosen threads.
        let Tracer::Perf(sampler) = &mut self.tracer else { return Ok(()) };
        let known = self.probes.iter().zip(sampler.tracepoints());
        let more: Vec<Tracepoint> = known
            .filter(|(probe, _)| probe.by_thread)
            .map(|(probe, known)| Tracepoint { filter: probe.filter_with(Some(threads)), ..known.clone() })
            .collect();
        sampler.add(system, &more)
    }

    /// Hands over every event that is there, CPU by CPU; returns how many bytes they took. Whatever is
    /// counted as lost comes as [`EventKind::Lost`] too, so that nothing is paired across it.
    ///
    /// Where a buffer was full an [`EventKind::Gap`] comes as well, which begins at the last event before it.
    pub fn drain(&mut self, each: impl FnMut(Event)) -> u64 {
        self.drain_at(now_ns, each)
    }

    /// As [`Trace::drain`], by this clock \[ns, CLOCK_MONOTONIC\].
    pub(crate) fn drain_at(&mut self, now_ns: impl Fn() -> u64, mut each: impl FnMut(Event)) -> u64 {
        let Trace { tracer, type_at, decoders, lost, told, .. } = self;
        // A loss without a time of its own is put where the last event was.
        let mut last_ns = 0;
        let loss = |cpu, time_ns, count| Event {
            time_ns,
            cpu,
            pid: 0,
            tid: 0,
            kind: EventKind::Lost { cpu: Some(cpu), count },
        };
        let take = |cpu: u32, record: Record<'_>| match record {
            Record::Sample { time_ns, pid, tid, raw } => {
                last_ns = time_ns;
                let decoder =
                    type_at.read(raw).and_then(|id| decoders.get(usize::try_from(id).ok()?)?.as_ref());
                match decoder.map(|decoder| decoder.decode(raw, cpu)) {
                    Some(Some(kind)) => each(Event { time_ns, cpu, pid, tid, kind }),
                    // One of no use.
                    Some(None) if raw.len() >= 16 => {}
                    _ => {
                        *lost.entry(cpu).or_default() += 1;
                        each(loss(cpu, time_ns, 1));
                    }
                }
            }
            Record::Switch { time_ns, prev, next } => {
                last_ns = time_ns;
                each(Event {
                    time_ns,
                    cpu,
                    pid: prev,
                    tid: prev,
                    kind: EventKind::Switch { prev, prev_runnable: None, next },
                });
            }
            Record::Lost { time_ns, count } => {
                *lost.entry(cpu).or_default() += count;
                *told.entry(cpu).or_default() += count;
                each(loss(cpu, time_ns.unwrap_or(last_ns), count));
            }
            Record::Full => {
                let kind = EventKind::Gap { cpu, until_ns: now_ns() };
                each(Event { time_ns: last_ns, cpu, pid: 0, tid: 0, kind });
            }
            Record::Malformed => {
                *lost.entry(cpu).or_default() += 1;
                each(loss(cpu, last_ns, 1));
            }
        };
        match tracer {
            Tracer::Perf(sampler) => sampler.drain(take),
            Tracer::Bpf(source) => source.drain(take),
        }
    }

    /// Counts events that came, but too late to be of use.
    pub fn count_lost(&mut self, cpu: u32, count: u64) {
        *self.lost.entry(cpu).or_default() += count;
    }

    /// Counts what was lost after the last record of each CPU, which no ring buffer reports. To be called
    /// when the events are disabled and everything is read; returns how many.
    ///
    /// # Errors
    /// The system's error.
    pub fn settle_losses(&mut self) -> io::Result<u64> {
        let mut more = 0;
        let lost = match &self.tracer {
            Tracer::Perf(sampler) => sampler.lost()?.unwrap_or_default(),
            Tracer::Bpf(source) => source.lost(),
        };
        for (cpu, all) in lost {
            let told = self.told.entry(cpu).or_default();
            let untold = all.saturating_sub(*told);
            *told += untold;
            if untold > 0 {
                self.count_lost(cpu, untold);
                more += untold;
            }
        }
        Ok(more)
    }

    /// Events that were lost on a CPU that is not known.
    ///
    /// # Errors
    /// The system's error.
    pub fn missed(&self) -> io::Result<u64> {
        match &self.tracer {
            Tracer::Perf(_) => Ok(0),
            Tracer::Bpf(source) => source.missed(),
        }
    }

    /// Events lost so far, by CPU; a CPU that lost none is not in it.
    pub fn lost(&self) -> &BTreeMap<u32, u64> {
        &self.lost
    }
}

fn describe(
    system: &dyn System,
    tracefs: &Tracefs,
    kind: TracepointKind,
    name: &str,
) -> Result<(u16, Decoder, At), TraceError> {
    let format = tracefs.format(system, name)?;
    let decoder = Decoder::new(kind, &format).map_err(|field| tracefs.missing_field(name, field))?;
    Ok((format.id, decoder, format.at("common_type").unwrap_or(COMMON_TYPE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(names: &[&str], tids: Option<Tids>, kind: TracepointKind) -> String {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let threads = Threads { names: &names, tids };
        Probe::of(kind).by_thread().filter_with(Some(&threads)).unwrap()
    }

    #[test]
    fn names_are_cut_as_the_kernel_cuts_them() {
        let by_name = |names: &[&str]| filter(names, None, TracepointKind::Waking);
        assert_eq!(by_name(&["redis-server"]), "comm == \"redis-server\"");
        assert_eq!(by_name(&["qemu-system-x86_64"]), "comm == \"qemu-system-x86\"");
        assert_eq!(by_name(&["x", "say \"y\""]), "comm == \"x\" || comm == 'say \"y\"'");
    }

    #[test]
    fn a_waking_has_the_number_of_the_one_that_is_woken() {
        let of = |kind| filter(&["common_pid == 5"], Some(Tids::These(vec![5, 6])), kind);
        let waking = "(comm == \"common_pid == 5\") && (pid == 5 || pid == 6)";
        assert_eq!(of(TracepointKind::Waking), waking);
        let others = "(comm == \"common_pid == 5\") && (common_pid == 5 || common_pid == 6)";
        assert_eq!(of(TracepointKind::AnyEnter), others);
        assert_eq!(filter(&[], Some(Tids::Above(7)), TracepointKind::AnyLeave), "common_pid > 7");
    }
}
