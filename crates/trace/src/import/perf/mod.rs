//! Episodes out of a text of events: of `perf script`, `trace-cmd report` or ftrace.
//!
//! The events of the text become [`Event`](crate::event::Event)s and go through the same ordering and pairing
//! as those of live capture, so that one trace gives one recording, whichever way it comes.
//!
//! | events in the text | layer | an episode is |
//! |---|---|---|
//! | `kvm:kvm_vcpu_wakeup`, `kvm:kvm_halt_poll_ns`, `kvm:kvm_exit`; for the time alone `sched:sched_switch`, `sched_wakeup`, `sched_wakeup_new`, `sched_migrate_task`; for what woke them `kvm:kvm_apic_accept_irq`, `sched:sched_waking` | host | one wakeup of a vCPU: [`HostPairing`] |
//! | `power:cpu_idle`, or `sched:sched_switch` or switches as perf records them by itself; `sched:sched_waking`; interrupts; `power:guest_halt_poll_ns`; `dwell_idle:dwell_idle_episode` | guest | one period of idling of a CPU: [`GuestPairing`] |
//! | `syscalls:sys_enter_*` and `sys_exit_*` of the calls that wait, or `raw_syscalls` | iothread | one call that may wait: [`ThreadPairing`] |
//!
//! Which of these it is, is decided by the first megabytes of the text. If the events of several layers are
//! there (a trace of a host whose own idling was recorded too), the caller must choose one.
//!
//! Lines may come with or without CPU, with `tid` or `pid/tid`, with microseconds or (`perf script --ns`) nanoseconds,
//! among comments, call chains and reports of lost events. After a loss, what was open on that CPU is dropped and
//! counted: it may have ended unseen. Everything else that is not used is counted by kind.
//!
//! perf puts the events of all CPUs in order of time, as far as its buffers reach. Events that come up to
//! [`SLACK_NS`] late are put in order; later ones are lost and counted in [`ImportSummary::out_of_order`].

mod events;
mod fields;
mod line;
mod names;

pub use events::{EventReader, EventSink, SLACK_NS};
pub use fields::{exit_reason, parse, vcpu_of};
pub use line::TextEvent;

pub(crate) use events::{Order, named_in};
pub(crate) use line::{Line, ThreadVcpus, has_time};

use super::{ImportError, ImportSummary, Input, Place, text};
use crate::contention::{self, Contention};
use crate::event::{EventKind, TracepointKind};
use crate::guest::{GuestPairing, GuestSource, polling_state};
use crate::host::HostPairing;
use crate::merge::Merge;
use crate::pairing::{PairedEpisode, Pairing};
use crate::thread::ThreadPairing;
use crate::vcpu_causes;
use crate::waking;
use crate::write::EpisodeWriter;
use dwell_policy::arch::Arch;
use dwell_policy::version::Version;
use dwell_policy::{Layer, host};
use dwell_recording::{Writer, kernel_on};
use events::Header;
use names::TaskNames;
use std::collections::BTreeSet;
use std::io::Write;

/// How much of the text decides what it is: 30,000 lines or more.
const LOOK_AHEAD: u64 = 4 << 20;

/// What to record for episodes of a layer.
fn how_to_record(layer: Option<Layer>) -> String {
    let of = |layer| match layer {
        Layer::Host => ("a host", "-e kvm:kvm_vcpu_wakeup -e kvm:kvm_halt_poll_ns", "dwell record host"),
        Layer::Guest | Layer::Driver => (
            "a guest",
            "-e power:cpu_idle -e sched:sched_waking -e irq_vectors:local_timer_entry -e irq:irq_handler_entry",
            "dwell record guest",
        ),
        Layer::Iothread => {
            ("threads", "-e 'syscalls:sys_enter_*poll*' -e 'syscalls:sys_exit_*poll*'", "dwell record thread")
        }
    };
    match layer {
        Some(layer) => {
            let (what, events, dwell) = of(layer);
            format!("record {what} with `perf record -a {events}`, `trace-cmd record {events}` or `{dwell}`")
        }
        None => {
            let each = [Layer::Host, Layer::Guest, Layer::Iothread].map(|layer| {
                let (what, events, _) = of(layer);
                format!("{what} with `{events}`")
            });
            format!("record by `perf record -a` or `trace-cmd record` {}", each.join(", "))
        }
    }
}

/// What the text does not contain.
#[derive(Clone, Copy, Debug, Default)]
pub struct PerfOptions {
    /// Whose events to use; `None`: whoever's are there.
    pub layer: Option<Layer>,
    /// What shows that a CPU idles, where both are there.
    pub source: GuestSource,
    /// The machine's architecture, if the text has no header that says it.
    pub arch: Option<Arch>,
    /// Whether a line that should be an event but cannot be parsed is counted instead of being an error.
    pub skip_unparsable: bool,
}

/// Writes the episodes of the text. Sets layer, source, clock, losses, what `idle_ns` includes and the time
/// recorded (from the first event of the text to the last, used or not) in the metadata, and kernel, CPU
/// model and command line where the text has a header (`perf script --header`). The kernel release in the
/// metadata, or else in the header, decides which rule the windows of vCPUs follow.
///
/// # Errors
/// Where the text is not what it should be, with the line.
pub fn import<W: Write + Send>(
    mut input: Input<'_>,
    options: &PerfOptions,
    writer: &mut Writer<W>,
) -> Result<ImportSummary, ImportError> {
    let (seen, header) = beginning(&input.look_ahead(LOOK_AHEAD)?);
    let kernel = writer.metadata_mut().kernel.clone().or(header.kernel);
    let known = options.arch.map(Some).or(header.arch).or(seen.arch.map(Some));
    let arch = known.unwrap_or(Arch::HERE);
    // The numbers of system calls of 32 bits are others.
    let of_calls = arch.filter(|_| !header.has_32_bits || options.arch.is_some());
    let mut reader = EventReader::new(input.name(), options, of_calls);
    let mut episodes = Episodes {
        arch,
        arch_is_known: known.is_some(),
        choice: None,
        name: input.name().to_owned(),
        options,
        kernel,
        names: reader.names(),
        found: vec![],
        episodes: EpisodeWriter::default(),
        writer,
    };
    episodes.choose(&seen)?;
    reader.read(&mut input, &mut episodes)?;
    episodes.finish(reader)
}

/// The events of use, and on which CPUs they show idling.
#[derive(Default)]
struct Seen {
    /// As the names of events show it.
    arch: Option<Arch>,
    tracepoints: BTreeSet<TracepointKind>,
    cpus_with_cpu_idle: BTreeSet<u32>,
    cpus_that_switch: BTreeSet<u32>,
}

impl Seen {
    fn add(&mut self, tracepoint: TracepointKind, event: &TextEvent<'_>) {
        self.tracepoints.insert(tracepoint);
        // Neither of these depends on the architecture.
        match fields::parse(tracepoint, event, Arch::HERE).flatten() {
            Some(EventKind::CpuIdle { cpu, .. }) => {
                self.cpus_with_cpu_idle.insert(cpu);
            }
            Some(EventKind::Switch { prev, next, .. }) if prev == 0 || next == 0 => {
                self.cpus_that_switch.extend(event.cpu);
            }
            _ => {}
        }
    }

    fn has(&self, tracepoint: TracepointKind) -> bool {
        self.tracepoints.contains(&tracepoint)
    }
}

/// What the beginning of a text contains.
fn beginning(bytes: &[u8]) -> (Seen, Header) {
    let (mut seen, mut header) = (Seen::default(), Header::default());
    for line in bytes.split(|&byte| byte == b'\n') {
        match Line::parse(&text(line)) {
            Line::Event(event) => {
                seen.arch = seen.arch.or_else(|| arch_of(&event));
                if let Some(tracepoint) = event.tracepoint() {
                    seen.add(tracepoint, &event);
                }
            }
            Line::Comment(comment) => header.read(comment),
            _ => {}
        }
    }
    (seen, header)
}

/// The name that `uname -m` has for an architecture.
fn machine(arch: Option<Arch>) -> &'static str {
    arch.map_or("other", Arch::machine)
}

/// The architecture, if only one has such an event.
fn arch_of(event: &TextEvent<'_>) -> Option<Arch> {
    let name = event.name.rsplit(':').next().unwrap_or_default();
    match name {
        _ if event.name.starts_with("irq_vectors:") || name == "local_timer_entry" => Some(Arch::X86_64),
        _ if name.ends_with("_arm64") || event.text.contains("HSR_EC: ") => Some(Arch::Arm64),
        _ if name.starts_with("kvm_s390_") => Some(Arch::S390x),
        _ if event.text.contains(" SCAUSE:") => Some(Arch::RiscV),
        "irq_handler_entry" => fields::timer_of(event.text),
        _ => None,
    }
}

/// The layer whose episodes an event begins or ends. Others add to the episodes of any layer, and decide nothing.
const fn layer_of(tracepoint: TracepointKind) -> Option<Layer> {
    Some(match tracepoint {
        TracepointKind::VcpuWakeup | TracepointKind::HaltPoll => Layer::Host,
        TracepointKind::CpuIdle
        | TracepointKind::GuestHaltPoll
        | TracepointKind::DwellIdle
        | TracepointKind::Reflect
        | TracepointKind::Switch
        | TracepointKind::ContextSwitch => Layer::Guest,
        TracepointKind::Enter(_)
        | TracepointKind::Leave(_)
        | TracepointKind::AnyEnter
        | TracepointKind::AnyLeave => Layer::Iothread,
        _ => return None,
    })
}

/// Which events of a text make episodes, and how.
struct Choice {
    layer: Layer,
    /// Of two sources of the same thing, the one that is used.
    used: Vec<TracepointKind>,
    pairing: Box<dyn Pairing>,
}

impl Choice {
    fn uses(&self, tracepoint: TracepointKind) -> bool {
        self.used.contains(&tracepoint)
    }
}

/// What shows how the CPUs of a guest idle, beside switches.
const OF_GUEST: [TracepointKind; 12] = [
    TracepointKind::CpuIdle,
    TracepointKind::GuestHaltPoll,
    TracepointKind::DwellIdle,
    TracepointKind::Reflect,
    TracepointKind::Waking,
    TracepointKind::TimerInterrupt,
    TracepointKind::RescheduleInterrupt,
    TracepointKind::CallInterrupt,
    TracepointKind::IpiEntry,
    TracepointKind::IpiRaise,
    TracepointKind::IpiSend,
    TracepointKind::DeviceInterrupt,
];

/// The events of a text on their way to episodes.
struct Episodes<'a, W: Write + Send> {
    choice: Option<Choice>,
    name: String,
    options: &'a PerfOptions,
    kernel: Option<String>,
    arch: Option<Arch>,
    arch_is_known: bool,
    names: TaskNames,
    found: Vec<PairedEpisode>,
    episodes: EpisodeWriter,
    writer: &'a mut Writer<W>,
}

impl<W: Write + Send> Episodes<'_, W> {
    /// Decides what to use, if the events seen decide it.
    fn choose(&mut self, seen: &Seen) -> Result<(), ImportError> {
        // Under the driver dwell_idle it is a guest that idles.
        let asked = self.options.layer.map(|layer| if layer == Layer::Driver { Layer::Guest } else { layer });
        let mut layers = seen.tracepoints.iter().filter_map(|&kind| Some((layer_of(kind)?, kind)));
        let layer = match (asked, layers.next()) {
            (Some(layer), _) => layer,
            (None, None) => return Ok(()),
            (None, Some((layer, first))) => match layers.find(|(other, _)| *other != layer) {
                Some((other, second)) => return Err(self.ambiguous((layer, first), (other, second))),
                None => layer,
            },
        };
        let has_all = |kinds: &[TracepointKind]| kinds.iter().all(|kind| seen.has(*kind));
        let names = Box::new(self.names.clone());
        let mut used = vec![];
        let pairing: Box<dyn Pairing> = match layer {
            Layer::Host => {
                used.extend([TracepointKind::VcpuWakeup, TracepointKind::HaltPoll, TracepointKind::Exit]);
                let mut host = HostPairing::new(self.revision(), None, names);
                // Only if all are there that show which tasks are runnable.
                if has_all(&[TracepointKind::Switch, TracepointKind::Wakeup, TracepointKind::Migrate]) {
                    used.extend(contention::TRACEPOINTS);
                    host = host.with_contention(Contention::new(None));
                }
                if has_all(&vcpu_causes::TRACEPOINTS) {
                    used.extend(vcpu_causes::TRACEPOINTS.into_iter().chain(waking::INTERRUPTS));
                    host = host.with_segments();
                }
                Box::new(host)
            }
            Layer::Guest | Layer::Driver => {
                let source = self.source(seen);
                let causes = has_all(&[TracepointKind::Switch, TracepointKind::Waking]);
                // perf's own records of switches, for lack of `sched:sched_switch`.
                let own = seen.has(TracepointKind::ContextSwitch) && !seen.has(TracepointKind::Switch);
                let by_switches = source == GuestSource::Switch;
                used.extend(OF_GUEST);
                used.extend((by_switches && own).then_some(TracepointKind::ContextSwitch));
                used.extend((by_switches && !own || causes).then_some(TracepointKind::Switch));
                let silent = seen.cpus_that_switch.difference(&seen.cpus_with_cpu_idle).copied();
                let silent = if seen.cpus_with_cpu_idle.is_empty() { vec![] } else { silent.collect() };
                let has_haltpoll =
                    seen.has(TracepointKind::GuestHaltPoll) || seen.has(TracepointKind::Reflect);
                let polling_state = polling_state(self.arch, has_haltpoll);
                let guest = GuestPairing::new(source, silent).with_polling_state(polling_state);
                Box::new(if causes { guest.with_segments(names) } else { guest })
            }
            Layer::Iothread => {
                // `raw_syscalls` for lack of `syscalls`.
                match seen.tracepoints.iter().any(|kind| matches!(kind, TracepointKind::Enter(_))) {
                    true => used.extend(TracepointKind::of_calls()),
                    false => used.extend([TracepointKind::AnyEnter, TracepointKind::AnyLeave]),
                }
                let threads = ThreadPairing::new(None, names);
                match seen.has(TracepointKind::Waking) {
                    true => {
                        used.push(TracepointKind::Waking);
                        used.extend(waking::INTERRUPTS);
                        Box::new(threads.with_segments())
                    }
                    false => Box::new(threads),
                }
            }
        };
        // Where a layer was asked for, its events may begin later than what is seen so far.
        if seen.tracepoints.iter().any(|&kind| layer_of(kind) == Some(layer)) {
            self.choice = Some(Choice { layer, used, pairing });
        }
        Ok(())
    }

    /// As live capture does it: `cpu_idle` if every CPU emits it that is seen to idle.
    fn source(&self, seen: &Seen) -> GuestSource {
        let all = seen.cpus_that_switch.is_subset(&seen.cpus_with_cpu_idle);
        match self.options.source {
            GuestSource::Auto | GuestSource::Perf if all && !seen.cpus_with_cpu_idle.is_empty() => {
                GuestSource::CpuIdle
            }
            GuestSource::Auto | GuestSource::Perf => GuestSource::Switch,
            asked => asked,
        }
    }

    fn revision(&self) -> Option<host::Revision> {
        let version = Version::parse(self.kernel.as_deref()?)?;
        host::Revision::of(version).ok()
    }

    fn ambiguous(&self, first: (Layer, TracepointKind), second: (Layer, TracepointKind)) -> ImportError {
        let ((one, first), (other, second)) = ((first.0.name(), first.1), (second.0.name(), second.1));
        ImportError::Refused(format!(
            "{}: has events of the layers {one} ({first}) and {other} ({second}); choose one with `--layer {one}` or \
             `--layer {other}`",
            self.name
        ))
    }

    /// An event that the beginning of the text did not have decides, or contradicts.
    fn check_layer(
        &mut self,
        tracepoint: TracepointKind,
        event: &TextEvent<'_>,
        summary: &ImportSummary,
    ) -> Result<(), ImportError> {
        let Some(layer) = layer_of(tracepoint) else { return Ok(()) };
        match &self.choice {
            None => {
                let mut seen = Seen::default();
                seen.add(tracepoint, event);
                self.choose(&seen)
            }
            Some(choice) if choice.layer != layer && self.options.layer.is_none() => {
                let of = |layer| {
                    let used = summary.used.keys().filter_map(|name| TracepointKind::from_name(name));
                    used.into_iter().find(|&kind| layer_of(kind) == Some(layer))
                };
                let first = of(choice.layer).unwrap_or(tracepoint);
                Err(self.ambiguous((choice.layer, first), (layer, tracepoint)))
            }
            Some(_) => Ok(()),
        }
    }

    fn write(&mut self, summary: &mut ImportSummary, line: u64) -> Result<(), ImportError> {
        let Episodes { choice, found, episodes, writer, name, .. } = self;
        let Some(choice) = choice else { return Ok(()) };
        episodes.resolve(summary.resolution_ns);
        summary.episodes += found.len() as u64;
        let written = episodes.push_all(writer, choice.pairing.idlers(), found);
        written.map_err(|source| Place { name: name.clone(), line }.not_written(source))
    }

    /// That the architecture is not known, or not that of the header, where it matters.
    fn assumed(&self, reader: &EventReader) -> Option<String> {
        let used =
            |kind| reader.summary.used.keys().any(|name| TracepointKind::from_name(name) == Some(kind));
        let matters = match self.choice.as_ref()?.layer {
            Layer::Guest => used(TracepointKind::CpuIdle),
            Layer::Iothread => used(TracepointKind::AnyEnter),
            _ => false,
        };
        let assumed = machine(self.arch);
        match reader.arch() {
            _ if !matters => None,
            _ if !self.arch_is_known => Some(format!(
                "the text does not say of which architecture it is; {assumed} is assumed (--arch, or perf script --header)"
            )),
            Some(named) if Some(named) != self.arch => Some(format!(
                "the text is of {} by its header, and read as of {assumed}, which --arch gives",
                named.machine()
            )),
            _ => None,
        }
    }

    fn finish(mut self, mut reader: EventReader) -> Result<ImportSummary, ImportError> {
        if let Some(choice) = &mut self.choice {
            choice.pairing.finish(&mut self.found);
            reader.summary.incomplete_episodes = choice.pairing.incomplete();
        }
        let lines = reader.summary.lines;
        self.write(&mut reader.summary, lines)?;
        let assumed = self.assumed(&reader);
        let Episodes { choice, episodes, writer, name, arch, arch_is_known, options, .. } = self;
        let chosen = choice.as_ref().map(|choice| choice.layer);
        let of = |layer| chosen == Some(layer);
        let Some(mut choice) = choice.filter(|_| reader.summary.episodes > 0) else {
            let lines = reader.summary.lines_in_words();
            let ignores = |name: &str| reader.summary.ignored.keys().any(|of| of.ends_with(name));
            let of_qemu = reader.summary.ignored.keys().any(|name| name.contains("run_poll_handlers_"));
            let how = match () {
                () if !arch_is_known && ignores("sys_enter") => format!(
                    "the text does not say of which architecture it is, and none of its system calls waits on {} (--arch, or \
                     perf script --header)",
                    machine(arch)
                ),
                () if of(Layer::Iothread)
                    && !reader.summary.used.is_empty()
                    && reader.summary.incomplete_episodes == 0 =>
                {
                    "no call waited: all had a timeout of 0, as in a loop that polls by itself".to_owned()
                }
                () if of(Layer::Guest) && reader.summary.incomplete_episodes == 0 => {
                    "no CPU idled: all were busy; record for longer, or while there is less to do".to_owned()
                }
                () if of_qemu => {
                    "perf has events of QEMU without the names of their fields; use `qemu-trace-stap run \
                    qemu-system-x86_64 'run_poll_handlers_*' 'poll_*'`"
                        .to_owned()
                }
                () if reader.summary.incomplete_episodes > 0 => format!(
                    "{} began before it, or had no end in it; record for longer",
                    reader.summary.incomplete_episodes
                ),
                () if ignores("kvm_exit") && ignores("kvm_entry") => format!(
                    "it has exits, which `dwell timer import` and `dwell timer exits` read; {}",
                    how_to_record(options.layer)
                ),
                () => how_to_record(options.layer),
            };
            return Err(ImportError::NoEpisodes(format!("{name}: no episodes in {lines}; {how}")));
        };
        if let Some(segments) = choice.pairing.take_segments() {
            writer.set_segments(segments);
        }
        let metadata = writer.metadata_mut();
        metadata.other.insert("dwell.arch".to_owned(), machine(arch).into());
        if let Some(note) = assumed {
            reader.summary.note(metadata, note);
        }
        reader.summary.set_overlaps(episodes.overlaps(), metadata);
        metadata.idle_includes = choice.pairing.idle_includes();
        metadata.other.extend(choice.pairing.notes());
        let summary = reader.fill(choice.layer, metadata);
        // The rules of another architecture are not those of x86-64.
        metadata.kernel = metadata.kernel.take().map(|release| kernel_on(release, arch));
        Ok(summary)
    }
}

impl<W: Write + Send> EventSink for Episodes<'_, W> {
    fn uses(
        &mut self,
        tracepoint: TracepointKind,
        event: &TextEvent<'_>,
        summary: &ImportSummary,
    ) -> Result<bool, ImportError> {
        self.check_layer(tracepoint, event, summary)?;
        Ok(self.choice.as_ref().is_some_and(|choice| choice.uses(tracepoint)))
    }

    fn wants(&self, tracepoint: TracepointKind) -> bool {
        self.choice.as_ref().is_none_or(|choice| choice.uses(tracepoint))
    }

    /// An exit only names the vCPU.
    fn parse(
        &mut self,
        tracepoint: TracepointKind,
        event: &TextEvent<'_>,
        arch: Option<Arch>,
    ) -> Option<Option<EventKind>> {
        let parsed = fields::parse(tracepoint, event, arch);
        if tracepoint == TracepointKind::Exit { parsed.or(Some(None)) } else { parsed }
    }

    fn needs_thread(&self, kind: &EventKind) -> bool {
        matches!(
            kind,
            EventKind::VcpuWakeup { .. }
                | EventKind::HaltPoll { .. }
                | EventKind::Exit { .. }
                | EventKind::Enter { .. }
                | EventKind::Leave { .. }
        )
    }

    fn needs_cpu(&self, kind: &EventKind) -> bool {
        matches!(
            kind,
            EventKind::Switch { .. }
                | EventKind::GuestHaltPoll { .. }
                | EventKind::DwellIdle { .. }
                | EventKind::Reflect { .. }
                | EventKind::Waking { .. }
                | EventKind::Interrupt(_)
                | EventKind::IpiRaise { .. }
        )
    }

    fn release(
        &mut self,
        events: &mut Merge,
        until_ns: u64,
        summary: &mut ImportSummary,
        line: u64,
    ) -> Result<(), ImportError> {
        let Episodes { choice, found, .. } = self;
        let Some(choice) = choice else { return Ok(()) };
        events.release(until_ns, |event| choice.pairing.observe(event, found));
        self.write(summary, line)
    }
}
