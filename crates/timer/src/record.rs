//! Recording timers and VM exits of vCPUs.

use crate::describe::{HOST, TSC_KHZ};
use crate::pairing::{OPTIONAL, REQUIRED, ReasonNames, TimerPairing};
use dwell_capture::format;
use dwell_capture::names::ProcNames;
use dwell_capture::probe::Probe;
use dwell_capture::system::System;
use dwell_capture::tracefs::Tracefs;
use dwell_capture::{Observer, RecordError, Session, Status, Until};
use dwell_machine::{Machine, Sysroot, TimerHost};
use dwell_policy::Owner;
use dwell_recording::timer::{TimerContents, TimerRows, TimerWriter};
use dwell_recording::{IdleIncludes, Metadata, WriteError};
use dwell_trace::event::{Event, TracepointKind};
use dwell_trace::pairing::{PairedEpisode, Pairing};
use dwell_trace::tracepoint::exit_number;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Rows on their way to the file together.
const ROWS: usize = 1 << 12;
/// Batches of rows that wait for the thread that writes, at most.
const WAITING: usize = 16;

/// How a recording of timers went.
#[derive(Clone, Debug)]
pub struct TimerSummary {
    /// The last status; it counts no episodes.
    pub status: Status,
    /// What is in the recording.
    pub contents: TimerContents,
    /// The metadata of the recording.
    pub metadata: Metadata<Owner>,
}

fn no_exits(others: bool) -> &'static str {
    if others {
        "cannot record timers: vCPUs ran, but this flavour of KVM emits neither kvm:kvm_exit nor kvm:kvm_entry; record on a \
         host with kvm_intel or kvm_amd"
    } else {
        "cannot record timers: no vCPU was entered and left; is a VM running?"
    }
}

/// Recording of timers is prepared: everything that can be refused was granted.
pub struct TimerRecorder {
    session: Session<Owner>,
    rows: Receiver<Batch>,
}

impl TimerRecorder {
    /// Prepares to record the timers of this host's vCPUs, or of the VM of process `pid`. `command` is the
    /// command line, for the metadata.
    ///
    /// # Errors
    /// Why they cannot be recorded.
    pub fn open(pid: Option<i32>, command: Option<String>) -> Result<TimerRecorder, RecordError> {
        TimerRecorder::open_on(Arc::new(Sysroot::of_this_machine()), pid, command)
    }

    /// As [`TimerRecorder::open`], on a machine that is asked through `system`.
    ///
    /// # Errors
    /// Why they cannot be recorded.
    pub fn open_on(
        system: Arc<dyn System>,
        pid: Option<i32>,
        command: Option<String>,
    ) -> Result<TimerRecorder, RecordError> {
        let tracefs = Tracefs::open(&*system)?;
        let reasons = reasons(&tracefs.format_text(&*system, &TracepointKind::Exit.to_string())?);
        let pairing = TimerPairing::new(pid, Box::new(ProcNames::new(system.clone())), reasons);
        let (sender, rows) = sync_channel(WAITING);
        let sink = Sink { pairing, found: TimerRows::default(), sender: Some(sender) };
        let mut probes: Vec<Probe> = REQUIRED.map(Probe::of).to_vec();
        probes.extend(OPTIONAL.map(|kind| Probe::of(kind).optional()));
        let sink = (probes, Box::new(sink) as Box<dyn Pairing>);
        let mut session = Session::through_perf(system.clone(), &tracefs, Owner::Timer, pid, command, sink)?;
        let facts = host(&*system, session.tsc_khz());
        session.metadata_mut().other.extend(facts);
        Ok(TimerRecorder { session, rows })
    }

    /// Records into the file `path`, which appears when it is complete.
    ///
    /// # Errors
    /// What went wrong, [`RecordError::Nothing`] where there was nothing; there is then no file.
    pub fn to_file(
        self,
        path: &Path,
        until: &Until<'_>,
        observer: &mut dyn Observer,
    ) -> Result<TimerSummary, RecordError> {
        let TimerRecorder { mut session, rows } = self;
        let writer = TimerWriter::create(path, session.metadata().clone())?;
        let (status, written) = std::thread::scope(|scope| {
            let stop = until.stop;
            let writing = scope.spawn(move || {
                let written = write(writer, &rows);
                if written.is_err() {
                    // What follows cannot be written.
                    stop.store(true, Ordering::Relaxed);
                }
                written
            });
            let status = session.run(until, observer);
            // Whatever happened, no row follows.
            session.finish();
            let written = writing.join().map_err(|_| RecordError::WriterGone)?;
            Ok::<_, RecordError>((status, written))
        })?;
        let (mut writer, others) = written?;
        let status = status?;
        if writer.contents().exits() == 0 {
            return Err(RecordError::Nothing(no_exits(others)));
        }
        let metadata = session.complete().clone();
        *writer.metadata_mut() = metadata.clone();
        Ok(TimerSummary { status, contents: writer.finish()?, metadata })
    }
}

/// What a recording says of the host.
fn host(machine: &dyn Machine, tsc_khz: Option<u32>) -> Vec<(String, Value)> {
    let mut facts = vec![(HOST.to_owned(), json!(TimerHost::read(machine)))];
    facts.extend(tsc_khz.map(|khz| (TSC_KHZ.to_owned(), khz.into())));
    facts
}

/// The names of the exit reasons of both instruction sets: the kernel prints those of VMX from the first list
/// of the format of `kvm:kvm_exit` and those of SVM from the second.
pub(crate) fn reasons(format_text: &str) -> ReasonNames {
    let lists = format::symbols(format_text);
    let named = [1, 2].into_iter().zip(lists).flat_map(|(isa, list)| {
        list.into_iter().map(move |(number, name)| {
            // The low bits of a negative number are its reason.
            let [a, b, ..] = number.to_le_bytes();
            (exit_number(isa, u32::from(u16::from_le_bytes([a, b]))), name)
        })
    });
    ReasonNames::of(named)
}

struct Batch {
    rows: TimerRows,
    /// Whether events show that vCPUs ran whose exits are not emitted.
    others: bool,
}

/// A pairing that finds no episodes: it sends timers and exits to the thread that writes them.
struct Sink {
    pairing: TimerPairing,
    found: TimerRows,
    /// `None` after the end.
    sender: Option<SyncSender<Batch>>,
}

impl Sink {
    fn send(&mut self) {
        let Sink { pairing, found, sender } = self;
        let batch = Batch { rows: std::mem::take(found), others: pairing.runs_without_exits() };
        // The thread that writes ends early only with an error of its own, which is returned.
        let _ = sender.as_ref().map(|sender| sender.send(batch));
    }
}

impl Pairing for Sink {
    fn observe(&mut self, event: &Event, _: &mut Vec<PairedEpisode>) {
        self.pairing.observe(event, &mut self.found);
        if self.found.timers.len() + self.found.exits.len() >= ROWS {
            self.send();
        }
    }

    fn finish(&mut self, _: &mut Vec<PairedEpisode>) {
        if self.sender.is_some() {
            self.pairing.finish(&mut self.found);
            self.send();
            self.sender = None;
        }
    }

    fn idlers(&self) -> &[String] {
        self.pairing.vcpus()
    }

    fn incomplete(&self) -> u64 {
        self.pairing.incomplete()
    }

    fn idle_includes(&self) -> IdleIncludes {
        IdleIncludes::Unknown
    }
}

/// Writes all rows; whether vCPUs ran without exits.
fn write<W: Write + Send>(
    mut writer: TimerWriter<W>,
    batches: &Receiver<Batch>,
) -> Result<(TimerWriter<W>, bool), WriteError> {
    let mut ran_without_exits = false;
    for mut batch in batches {
        ran_without_exits = batch.others;
        writer.push(&mut batch.rows)?;
    }
    Ok((writer, ran_without_exits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;
    use std::collections::BTreeMap;

    const FORMAT: &str = "name: kvm_exit\nID: 9\nformat:\nprint fmt: \"%s\", (REC->isa == 1) ? __print_symbolic(REC->exit_reason \
        & 0xffff, { 12, \"HLT\" }) : __print_symbolic(REC->exit_reason, { 0x078, \"hlt\" }, { -1, \"invalid\" }), \
        __print_flags(REC->exit_reason, \" \", { 0x80000000, \"FAILED\" })";

    #[test]
    fn reasons_are_named_as_the_kernel_names_them() {
        let names = reasons(FORMAT);
        assert_eq!(names.name(exit_number(1, 12)), "HLT");
        assert_eq!(names.name(exit_number(2, 0x78)), "hlt");
        assert_eq!(names.name(exit_number(2, 0xffff_ffff)), "invalid");
        assert_eq!(names.name(exit_number(1, 0x99)), "0x99");
    }

    #[test]
    fn a_recording_of_timers_has_what_its_host_has_for_them() {
        let machine = Fake::new()
            .file("/sys/module/kvm_intel/parameters/enable_apicv", "Y")
            .file("/sys/module/kvm_intel/parameters/preemption_timer", "N")
            .file("/sys/devices/system/cpu/nohz_full", "2-3");
        let facts: BTreeMap<_, _> = host(&machine, Some(2_000_000)).into_iter().collect();
        let found = &facts[HOST];
        assert_eq!((&found["apicv"], &found["preemption_timer"]), (&json!(true), &json!(false)));
        assert_eq!((&found["nohz_full"], &found["timer_migration"]), (&json!(true), &json!(null)));
        assert_eq!(facts[TSC_KHZ], 2_000_000);
        assert!(host(&machine, None).iter().all(|(key, _)| key != TSC_KHZ));
    }
}
