//! Timers and exits of vCPUs out of a text of events.

use crate::pairing::{Class, OPTIONAL, REQUIRED, ReasonNames, TimerPairing};
use dwell_policy::arch::Arch;
use dwell_recording::Owner;
use dwell_recording::timer::{TimerRows, TimerWriter};
use dwell_trace::event::{Event, EventKind, TracepointKind};
use dwell_trace::import::perf::{self, EventReader, EventSink, PerfOptions, TextEvent};
use dwell_trace::import::{ImportError, ImportSummary, Input, Place};
use dwell_trace::merge::Merge;
use std::collections::BTreeSet;
use std::io::Write;

/// Writes the timers and exits in the text; [`TimerPairing`] says of which events they are made. Sets the
/// same metadata as [`perf::import`](perf::import()).
///
/// # Errors
/// Where the text is not what it should be, with the line.
pub fn import<W: Write + Send>(
    mut input: Input<'_>,
    options: &PerfOptions,
    writer: &mut TimerWriter<W>,
) -> Result<ImportSummary, ImportError> {
    let mut reader = EventReader::new(input.name(), options, options.arch.or(Arch::HERE));
    let reasons = ReasonNames::default();
    let mut timers = Timers {
        pairing: TimerPairing::new(None, Box::new(reader.names()), reasons.clone()),
        reasons,
        name: input.name().to_owned(),
        interrupted: Interrupted::default(),
        armed: 0,
        found: TimerRows::default(),
        writer,
    };
    reader.read(&mut input, &mut timers)?;
    timers.finish(reader)
}

/// What to record, by what is there instead of exits.
fn how_to_record(summary: &ImportSummary) -> &'static str {
    let has = |name: &str| summary.used.keys().chain(summary.ignored.keys()).any(|of| of.ends_with(name));
    if has("kvm_vcpu_wakeup") && !has("kvm_exit") && !has("kvm_entry") {
        "vCPUs ran, so kvm:kvm_exit and kvm:kvm_entry were not recorded, or this flavour of KVM emits neither; record on a \
         host with kvm_intel or kvm_amd, with \
         `perf record -a -k CLOCK_MONOTONIC -e 'kvm:*,timer:hrtimer_start,timer:hrtimer_expire_entry'`"
    } else {
        "record with `perf record -a -k CLOCK_MONOTONIC -e 'kvm:*,timer:hrtimer_start,timer:hrtimer_expire_entry'`"
    }
}

/// The tracepoints that timers are made of and that the text does not have.
fn missing(summary: &ImportSummary) -> Vec<String> {
    let names = || summary.used.keys().chain(summary.ignored.keys());
    let is_there = |kind| names().any(|name| TracepointKind::from_name(name) == Some(kind));
    REQUIRED.into_iter().filter(|&kind| !is_there(kind)).map(|kind| kind.to_string()).collect()
}

/// The events of a text on their way to timers and exits.
struct Timers<'a, W: Write + Send> {
    pairing: TimerPairing,
    reasons: ReasonNames,
    name: String,
    interrupted: Interrupted,
    /// Synthetic timers of Hyper-V that the guests armed by their registers.
    armed: u64,
    found: TimerRows,
    writer: &'a mut TimerWriter<W>,
}

/// Exits by an interrupt of the host, and whether that interrupt is in the trace.
#[derive(Default)]
struct Interrupted {
    exits: u64,
    seen: u64,
    /// The CPUs that have such an exit and no entry yet.
    open: BTreeSet<u32>,
}

impl Interrupted {
    fn observe(&mut self, event: &Event, reasons: &ReasonNames) {
        match event.kind {
            EventKind::Exit { reason, .. } if Class::of(&reasons.name(reason)) == Class::Interrupt => {
                self.exits += 1;
                self.open.insert(event.cpu);
            }
            EventKind::Interrupt(_) | EventKind::HrtimerExpire { .. } => {
                self.seen += u64::from(self.open.remove(&event.cpu));
            }
            EventKind::Entry { .. } => {
                self.open.remove(&event.cpu);
            }
            _ => {}
        }
    }

    /// perf before 6.0, or without the option, leaves all of them out.
    fn note(&self, perf: Option<&str>) -> Option<String> {
        let version = perf.map_or_else(String::new, |perf| format!(" (this is perf {perf})"));
        (self.exits > 0 && self.seen == 0).then(|| {
            format!(
                "{} exits are by an interrupt, and none of these interrupts is in the trace: timers that fired while the \
                 guest ran seem not to have fired, and exits as they fire are too few. perf leaves these events out but \
                 for `perf script --guest-code` of perf 6.0 or later{version}; trace-cmd and dwell timer record do not",
                self.exits
            )
        })
    }
}

impl<W: Write + Send> Timers<'_, W> {
    fn write(&mut self, line: u64) -> Result<(), ImportError> {
        let Timers { found, writer, name, .. } = self;
        writer.push(found).map_err(|source| Place { name: name.clone(), line }.not_written(source))
    }

    fn finish(mut self, mut reader: EventReader) -> Result<ImportSummary, ImportError> {
        self.pairing.finish(&mut self.found);
        self.write(reader.summary.lines)?;
        reader.summary.incomplete_episodes = self.pairing.incomplete();
        let rows = self.writer.contents();
        reader.summary.episodes = rows.timers() + rows.exits();
        if rows.exits() == 0 {
            return Err(ImportError::NoEpisodes(format!(
                "{}: no VM exits, each from a kvm_exit to the next kvm_entry, in {}; {}",
                self.name,
                reader.summary.lines_in_words(),
                how_to_record(&reader.summary)
            )));
        }
        let metadata = self.writer.metadata_mut();
        if let Some(note) = self.interrupted.note(reader.perf()) {
            reader.summary.note(metadata, note);
        }
        let exits = |reason: &str| self.reasons.has(reason);
        // The halts of each; RISC-V has numbers only.
        let halts = [("WFx", Arch::Arm64), ("Wait state", Arch::S390x), ("0x16", Arch::RiscV)];
        let shown = || halts.into_iter().find_map(|(halt, arch)| exits(halt).then_some(arch));
        let other = reader.arch().or_else(shown).and_then(|arch| Some((arch, arch.lacks(Owner::Timer)?)));
        if let Some((arch, why)) = other {
            let note =
                format!("the trace is of {}, and {why}: no timer of its guests is counted", arch.name());
            reader.summary.note(metadata, note);
        }
        let of_windows =
            |name: &str| name.rsplit(':').next().is_some_and(|name| name.starts_with("kvm_hv_stimer_start"));
        let started: u64 =
            reader.summary.ignored.iter().filter(|(name, _)| of_windows(name)).map(|(_, count)| count).sum();
        let hyperv = started.max(self.armed);
        if hyperv > 0 {
            let note = format!(
                "{hyperv} Hyper-V timers (kvm_hv_stimer_start_*, or kvm_msr of their registers), as Windows guests use them, \
                 are in the trace; neither they nor their exits are counted as timers"
            );
            reader.summary.note(metadata, note);
        }
        let missing = missing(&reader.summary);
        if !missing.is_empty() && other.is_none() && hyperv == 0 {
            let note = format!(
                "the text has no {}, of which timers are made as well: timers and their exits are too few; {}",
                missing.join(", "),
                how_to_record(&reader.summary)
            );
            reader.summary.note(metadata, note);
        }
        Ok(reader.fill(Owner::Timer, metadata))
    }
}

impl<W: Write + Send> EventSink for Timers<'_, W> {
    fn wants(&self, tracepoint: TracepointKind) -> bool {
        REQUIRED.contains(&tracepoint) || OPTIONAL.contains(&tracepoint)
    }

    /// An exit by any reason is of use here.
    fn parse(
        &mut self,
        tracepoint: TracepointKind,
        event: &TextEvent<'_>,
        arch: Option<Arch>,
    ) -> Option<Option<EventKind>> {
        if tracepoint != TracepointKind::Exit {
            // The counts of the four synthetic timers; 0 stops one.
            let is_count =
                |register: &str| matches!(register, "400000b1" | "400000b3" | "400000b5" | "400000b7");
            let write = event.text.strip_prefix("msr_write ").and_then(|text| text.split_once(" = "));
            self.armed +=
                u64::from(write.is_some_and(|(register, value)| is_count(register) && value != "0x0"));
            return perf::parse(tracepoint, event, arch);
        }
        let reason = self.reasons.number(&perf::exit_reason(event.text)?);
        Some(Some(EventKind::Exit { vcpu: perf::vcpu_of(event.text), reason }))
    }

    fn needs_cpu(&self, _: &EventKind) -> bool {
        true
    }

    fn needs_thread(&self, kind: &EventKind) -> bool {
        !matches!(kind, EventKind::Interrupt(_) | EventKind::HrtimerExpire { .. })
    }

    fn release(
        &mut self,
        events: &mut Merge,
        until_ns: u64,
        _: &mut ImportSummary,
        line: u64,
    ) -> Result<(), ImportError> {
        let Timers { pairing, found, interrupted, reasons, .. } = self;
        events.release(until_ns, |event| {
            interrupted.observe(event, reasons);
            pairing.observe(event, found);
        });
        self.write(line)
    }
}
