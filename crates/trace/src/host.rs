//! vCPUs seen from their host: `kvm:kvm_vcpu_wakeup` and `kvm:kvm_halt_poll_ns` into episodes.
//!
//! KVM reports how long a halt took when it is over, so that every `kvm_vcpu_wakeup` is an episode by itself,
//! whatever was lost before it. `kvm_halt_poll_ns` comes first, out of the same halt, with the window that
//! was polled (`old`) and the next one (`new`, to be cut to a maximum that is not traced).
//!
//! # Idlers
//! A vCPU is a thread. Its number is in `kvm_halt_poll_ns` and `kvm_exit`; before one of them has come it is
//! taken from the thread's name, where the VMM uses one of the usual names. An idler is named
//! `comm/pid/vcpuN` after its VM's process, or `comm/pid/tidN` where the number of the vCPU is not known when
//! its first episode ends. The notes of the recording have what became known until the end. Only what a trace
//! contains is used (events, names of tasks), so that a trace read later gives the same names; where it lacks
//! processes, the thread's own name is used, as `comm/tidN`.
//!
//! A thread that shows another process or another vCPU than before is a new vCPU: the kernel reuses numbers of threads.
//!
//! # The window
//! It is known where an event has reported it: in a halt with a `kvm_halt_poll_ns` event, `old`; after that,
//! `new` cut to the VM's maximum, if that has shown itself (a window that came out smaller than what it had
//! grown to). Kernels before 6.1 do not cut at the beginning of a halt, so that `new` is the next window. It
//! is known when the episode ends, without waiting for a later event, so that a live view has it too; the
//! price is that the first few episodes after a growth beyond everything seen so far have no window.
//!
//! A guest may switch polling off (`MSR_KVM_POLL_CONTROL`, which its haltpoll driver writes). No event
//! reports that; KVM then neither polls nor changes the window. It shows in a halt that lasted longer than
//! the window and left it as it was: of that halt and those after it the window is 0, until a poll or a
//! change is seen.
//!
//! # The time alone
//! With [`HostPairing::with_contention`], from the scheduler's events; see [`contention`](crate::contention).

use crate::contention::Contention;
use crate::event::{Event, EventKind};
use crate::pairing::{ByNumber, Idlers, Names, PairedEpisode, Pairing};
use crate::vcpu_causes::OfVcpus;
use dwell_policy::host::Revision;
use dwell_recording::{IdleIncludes, Segments};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Makes episodes of vCPUs.
#[derive(Default)]
pub struct HostPairing {
    names: Box<dyn Names>,
    clamps_at_entry: bool,
    only_pid: Option<i32>,
    idlers: Idlers,
    vcpus: Vec<Vcpu>,
    /// The vCPU that a thread runs now, by process and thread: a place in `vcpus`.
    current: ByNumber<(i32, i32), usize>,
    /// Those whose number is known, by process, thread and number.
    known: ByNumber<(i32, i32, u32), usize>,
    invalid: u64,
    /// Halts that began before the times do.
    early: u64,
    /// Until when events of some CPU may be missing \[ns\].
    gap_until_ns: u64,
    contention: Option<Contention>,
    /// What vCPUs run between the episodes.
    segments: Option<OfVcpus>,
}

/// What is known of one vCPU.
#[derive(Debug, Default)]
struct Vcpu {
    pid: i32,
    tid: i32,
    /// From an event.
    number: Option<u32>,
    /// From the name of the thread.
    guess: Option<u32>,
    idler: Option<u32>,
    window: Window,
}

/// What is known of a vCPU's window, `vcpu->halt_poll_ns` in the kernel.
#[derive(Debug, Default)]
struct Window {
    /// What it was set to last \[ns\], before the maximum cuts it.
    set_ns: Option<u32>,
    /// The VM's maximum \[ns\], once it has shown itself.
    max_ns: Option<u32>,
    /// The largest window that was in force: the maximum is at least that \[ns\].
    seen_ns: u32,
    /// The window of the halt that is about to end, from its `kvm_halt_poll_ns` \[ns\].
    now_ns: Option<u32>,
    /// The guest has switched polling off.
    off: bool,
}

impl Vcpu {
    /// Its number in its VM, as far as it is known.
    fn known_number(&self) -> Option<u32> {
        self.number.or(self.guess)
    }
}

impl Window {
    fn changed(&mut self, new: u32, old: u32, clamps_at_entry: bool) {
        if clamps_at_entry && self.set_ns.is_some_and(|set| old < set) {
            self.max_ns = Some(old);
            self.seen_ns = old;
        } else if self.max_ns.is_some_and(|max| old > max) {
            self.max_ns = None;
        }
        self.seen_ns = self.seen_ns.max(old);
        self.set_ns = Some(new);
        self.now_ns = Some(old);
        if !clamps_at_entry {
            self.seen_ns = u32::MAX;
        }
    }

    /// The window of the halt that ends now after `ns`, and `waited` or was over while KVM polled \[ns\].
    fn take(&mut self, ns: u64, waited: bool) -> Option<u32> {
        if let Some(now) = self.now_ns.take() {
            self.off = false;
            return Some(now);
        }
        let set = self.set_ns?;
        let window = match self.max_ns {
            Some(max) => Some(set.min(max)),
            None => (set <= self.seen_ns).then_some(set),
        };
        if !waited {
            // Without polling a wakeup that is there at once looks the same.
            return if std::mem::take(&mut self.off) { None } else { window };
        }
        // A halt that outlasts its window grows or shrinks it where KVM polls, but for one that takes exactly the maximum:
        // up to the next change it looks as if polling were off.
        self.off |= window.is_some_and(|window| window > 0 && u64::from(window) < ns);
        if self.off { Some(0) } else { window }
    }
}

impl HostPairing {
    /// For a kernel of `revision` (`None`: not known, then a window is known only where an event reports it),
    /// for the VM of process `only_pid` or for all.
    pub fn new(revision: Option<Revision>, only_pid: Option<i32>, names: Box<dyn Names>) -> HostPairing {
        let clamps_at_entry = revision.is_none_or(Revision::clamps_at_entry);
        HostPairing { names, clamps_at_entry, only_pid, ..HostPairing::default() }
    }

    /// The same, with the time alone of each episode, from the scheduler's events of the CPUs that are watched.
    #[must_use]
    pub fn with_contention(mut self, contention: Contention) -> HostPairing {
        self.contention = Some(contention);
        self
    }

    /// The same, with the segments of vCPUs between the episodes.
    #[must_use]
    pub fn with_segments(mut self) -> HostPairing {
        self.segments = Some(OfVcpus::default());
        self
    }

    /// Any vCPU may have changed its window unseen.
    fn forget_windows(&mut self) {
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.window = Window::default());
    }

    /// The place of the vCPU that this thread runs.
    fn place(&mut self, event: &Event) -> usize {
        let HostPairing { current, vcpus, .. } = self;
        *current.entry((event.pid, event.tid)).or_insert_with(|| new_vcpu(vcpus, event))
    }

    fn vcpu(&mut self, event: &Event) -> &mut Vcpu {
        let place = self.place(event);
        // Places are given out by `new_vcpu`, and nothing leaves the list.
        &mut self.vcpus[place]
    }

    /// As [`HostPairing::vcpu`], where the event has the vCPU's number.
    fn numbered(&mut self, event: &Event, number: u32) -> &mut Vcpu {
        let place = self.place(event);
        if self.vcpus[place].number == Some(number) {
            return &mut self.vcpus[place];
        }
        let HostPairing { current, known, vcpus, .. } = self;
        let first = vcpus[place].number.is_none();
        let place = *known
            .entry((event.pid, event.tid, number))
            .or_insert_with(|| if first { place } else { new_vcpu(vcpus, event) });
        current.insert((event.pid, event.tid), place);
        vcpus[place].number = Some(number);
        &mut vcpus[place]
    }

    /// The idler of this thread; it is named when its first episode ends, and keeps that name.
    fn idler(&mut self, event: &Event) -> u32 {
        let known = self.vcpu(event);
        if let Some(idler) = known.idler {
            return idler;
        }
        let number = known.number;
        let (idler, guess) = name_vcpu(&mut self.idlers, &mut *self.names, event, number);
        let vcpu = self.vcpu(event);
        (vcpu.idler, vcpu.guess) = (Some(idler), guess);
        idler
    }

    /// Takes the next event, and returns the episode that it ends.
    fn pair(&mut self, event: &Event) -> Option<PairedEpisode> {
        if let Some(contention) = &mut self.contention {
            contention.observe(event);
        }
        if !event.is_of(self.only_pid) {
            return None;
        }
        match event.kind {
            EventKind::HaltPoll { vcpu: number, new, old, .. } => {
                let clamps_at_entry = self.clamps_at_entry;
                self.numbered(event, number).window.changed(new, old, clamps_at_entry);
            }
            EventKind::Exit { vcpu: Some(number), .. } => {
                self.numbered(event, number);
            }
            EventKind::VcpuWakeup { ns, waited, valid } => {
                self.invalid += u64::from(!valid);
                let in_gap = event.time_ns < self.gap_until_ns;
                let window = &mut self.vcpu(event).window;
                let window_ns = window.take(ns, waited).map(u64::from);
                if in_gap {
                    *window = Window::default();
                }
                // Times may count from the first event of a text.
                let Some(start_ns) = event.time_ns.checked_sub(ns) else {
                    self.early += 1;
                    return None;
                };
                let idler = self.idler(event);
                let contention = self.contention.as_mut();
                let alone_ns = contention.and_then(|contention| contention.alone_ns(event, ns, waited));
                // The trace is made a little after the end that `ns` was taken at.
                let episode = PairedEpisode::new(idler, start_ns, ns);
                return Some(PairedEpisode { window_ns, halted: Some(waited), alone_ns, ..episode });
            }
            EventKind::Gap { until_ns, .. } => {
                self.gap_until_ns = self.gap_until_ns.max(until_ns);
                self.forget_windows();
            }
            EventKind::Lost { .. } => self.forget_windows(),
            _ => {}
        }
        None
    }
}

/// Names the vCPU that this thread runs, `comm/pid/vcpuN`, and returns its number among the idlers, and the
/// number that the thread's name has.
pub fn name_vcpu(
    idlers: &mut Idlers,
    names: &mut dyn Names,
    event: &Event,
    number: Option<u32>,
) -> (u32, Option<u32>) {
    let (pid, tid) = (event.pid, event.tid);
    let thread = names.thread(pid, tid);
    let guess = thread.as_deref().and_then(vcpu_of_name);
    let unknown = || "unknown".to_owned();
    if pid == Event::UNKNOWN_ID {
        return (idlers.add(format!("{}/tid{tid}", thread.unwrap_or_else(unknown))), guess);
    }
    let process = names.process(pid).or(thread).unwrap_or_else(unknown);
    let by_number = number.or(guess).map(|number| format!("{process}/{pid}/vcpu{number}"));
    // A number that another thread has already is a guess gone wrong, or a vCPU that changed its thread.
    let free = by_number.filter(|name| !idlers.has(name));
    (idlers.add(free.unwrap_or_else(|| format!("{process}/{pid}/tid{tid}"))), guess)
}

fn new_vcpu(vcpus: &mut Vec<Vcpu>, event: &Event) -> usize {
    vcpus.push(Vcpu { pid: event.pid, tid: event.tid, ..Vcpu::default() });
    vcpus.len() - 1
}

/// The number of the vCPU that a thread of this name runs, by what VMMs call their threads: `CPU 3/KVM`
/// (QEMU), `fc_vcpu 3` (Firecracker), `vcpu3` (Cloud Hypervisor), `crosvm_vcpu3`, `kvm-vcpu-3` (kvmtool).
pub fn vcpu_of_name(thread: &str) -> Option<u32> {
    let prefixes = ["CPU ", "fc_vcpu ", "vcpu", "crosvm_vcpu", "kvm-vcpu-"];
    let rest = prefixes.iter().find_map(|prefix| thread.strip_prefix(prefix))?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Pairing for HostPairing {
    fn observe(&mut self, event: &Event, found: &mut Vec<PairedEpisode>) {
        let ended = self.pair(event);
        if let Some(segments) = &mut self.segments {
            let of = |idler| self.vcpus.iter().find(|vcpu| vcpu.idler == Some(idler));
            segments.observe(event, ended.as_ref(), |idler| of(idler)?.known_number());
        }
        found.extend(ended);
    }

    fn idlers(&self) -> &[String] {
        self.idlers.names()
    }

    fn incomplete(&self) -> u64 {
        self.early
    }

    fn idle_includes(&self) -> IdleIncludes {
        IdleIncludes::Wake
    }

    fn notes(&self) -> BTreeMap<String, Value> {
        let mut vcpus = BTreeMap::new();
        for vcpu in &self.vcpus {
            let Some(idler) = vcpu.idler else { continue };
            let about = json!({ "pid": vcpu.pid, "tid": vcpu.tid, "vcpu_id": vcpu.known_number(), "max_ns": vcpu.window.max_ns });
            vcpus.insert(self.idlers.name(idler).to_owned(), about);
        }
        let mut notes = BTreeMap::from([("dwell.vcpus".to_owned(), json!(vcpus))]);
        if self.invalid > 0 {
            notes.insert("dwell.invalid_wakeups".to_owned(), json!(self.invalid));
        }
        self.segments.iter().for_each(|segments| segments.waking.rows.note(&mut notes));
        notes
    }

    fn take_segments(&mut self) -> Option<Segments> {
        Some(self.segments.as_mut()?.waking.finish(self.idlers.names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::host::{Knobs, Params, Vcpu as Model};
    use proptest::prelude::*;

    /// Processes 10, 20, … with threads of their own.
    struct Few;

    impl Names for Few {
        fn process(&mut self, pid: i32) -> Option<String> {
            Some(format!("vmm{pid}"))
        }
        fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
            (tid == 11).then(|| "CPU 3/KVM".to_owned())
        }
    }

    fn event(time_ns: u64, tid: i32, kind: EventKind) -> Event {
        Event { time_ns, cpu: 0, pid: tid / 10 * 10, tid, kind }
    }

    fn wakeup(ns: u64, waited: bool) -> EventKind {
        EventKind::VcpuWakeup { ns, waited, valid: true }
    }

    fn run(pairing: &mut HostPairing, events: &[Event]) -> Vec<PairedEpisode> {
        let mut found = vec![];
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        found
    }

    #[test]
    fn a_vcpu_is_named_by_event_or_thread_else_by_tid() {
        let mut pairing = HostPairing::new(Some(Revision::V6_11), None, Box::new(Few));
        run(
            &mut pairing,
            &[
                event(1, 12, EventKind::HaltPoll { vcpu: 5, grow: true, new: 10_000, old: 0 }),
                event(1, 12, wakeup(1, true)),
                event(2, 11, wakeup(1, true)),
                event(3, 21, wakeup(1, true)),
                event(4, 13, wakeup(1, true)),
                event(5, 13, EventKind::HaltPoll { vcpu: 9, grow: true, new: 10_000, old: 0 }),
                event(5, 13, wakeup(1, true)),
            ],
        );
        assert_eq!(
            pairing.idlers(),
            ["vmm10/10/vcpu5", "vmm10/10/vcpu3", "vmm20/20/tid21", "vmm10/10/tid13"]
        );
        assert_eq!(pairing.notes()["dwell.vcpus"]["vmm10/10/tid13"]["vcpu_id"], 9);
    }

    #[test]
    fn other_processes_are_left_out() {
        let mut pairing = HostPairing::new(Some(Revision::V6_11), Some(20), Box::new(Few));
        let found = run(&mut pairing, &[event(10, 11, wakeup(1, true)), event(30, 21, wakeup(20, false))]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].start_ns, found[0].idle_ns, found[0].halted), (10, 20, Some(false)));
    }

    /// A thread ends and another VM's gets its number; then one thread runs another vCPU of its VM.
    #[test]
    fn a_reused_thread_is_a_new_vcpu() {
        let mut pairing = HostPairing::new(Some(Revision::V6_11), None, Box::new(Few));
        let grown = |vcpu| EventKind::HaltPoll { vcpu, grow: false, new: 10_000, old: 20_000 };
        let other = |time, kind| Event { pid: 20, ..event(time, 11, kind) };
        let found = run(
            &mut pairing,
            &[
                event(1, 11, grown(0)),
                event(1, 11, wakeup(1, true)),
                other(20, wakeup(1, true)),
                other(30, grown(3)),
                other(30, wakeup(1, true)),
                other(40, grown(4)),
                other(40, wakeup(1, true)),
                other(50, grown(3)),
                other(50, wakeup(1, true)),
            ],
        );
        let seen: Vec<_> =
            found.iter().map(|f| (pairing.idlers()[f.idler as usize].as_str(), f.window_ns)).collect();
        assert_eq!(
            seen,
            [
                ("vmm10/10/vcpu0", Some(20_000)),
                // The window of the other VM's vCPU is not this one's.
                ("vmm20/20/vcpu3", None),
                ("vmm20/20/vcpu3", Some(20_000)),
                ("vmm20/20/vcpu4", Some(20_000)),
                ("vmm20/20/vcpu3", Some(20_000)),
            ]
        );
        assert_eq!(pairing.notes()["dwell.vcpus"]["vmm10/10/vcpu0"]["vcpu_id"], 0);
        assert_eq!(pairing.notes()["dwell.vcpus"]["vmm20/20/vcpu4"]["vcpu_id"], 4);
    }

    #[test]
    fn polling_that_the_guest_has_switched_off_has_no_window() {
        let mut pairing = HostPairing::new(Some(Revision::V6_11), None, Box::new(Few));
        let changed = |time, new, old| event(time, 11, EventKind::HaltPoll { vcpu: 0, grow: true, new, old });
        let found = run(
            &mut pairing,
            &[
                changed(101_000, 20_000, 20_000),
                event(102_000, 11, wakeup(30_000, true)),
                // As long as the window or shorter: nothing to change.
                event(103_000, 11, wakeup(20_000, true)),
                event(104_000, 11, wakeup(5_000, false)),
                // Longer, and nothing was changed.
                event(105_000, 11, wakeup(20_001, true)),
                event(106_000, 11, wakeup(15_000, true)),
                event(107_000, 11, wakeup(1_000, false)),
                event(108_000, 11, wakeup(30_000, true)),
                changed(109_000, 40_000, 20_000),
                event(109_000, 11, wakeup(30_000, true)),
                event(110_000, 11, wakeup(10_000, false)),
            ],
        );
        let windows: Vec<Option<u64>> = found.iter().map(|episode| episode.window_ns).collect();
        let known = [20_000, 20_000, 20_000, 0, 0].map(Some);
        let later = [None, Some(0), Some(20_000), None];
        assert_eq!(windows, [&known[..], &later[..]].concat());
    }

    #[test]
    fn without_processes_a_vcpu_has_its_threads_name() {
        let mut pairing = HostPairing::new(None, None, Box::new(Few));
        let nowhere = |tid| Event { pid: Event::UNKNOWN_ID, ..event(9, tid, wakeup(1, true)) };
        run(&mut pairing, &[nowhere(11), nowhere(12)]);
        assert_eq!(pairing.idlers(), ["CPU 3/KVM/tid11", "unknown/tid12"]);
    }

    #[test]
    fn numbers_are_read_out_of_the_names_of_threads() {
        for (name, number) in [
            ("CPU 3/KVM", Some(3)),
            ("fc_vcpu 12", Some(12)),
            ("vcpu0", Some(0)),
            ("kvm-vcpu-7", Some(7)),
            ("crosvm_vcpu1", Some(1)),
            ("vcpu", None),
            ("CPU 99999999999/KVM", None),
            ("worker", None),
        ] {
            assert_eq!(vcpu_of_name(name), number, "{name}");
        }
    }

    #[test]
    fn a_loss_makes_the_window_unknown() {
        let mut pairing = HostPairing::new(Some(Revision::V6_11), None, Box::new(Few));
        let grown = EventKind::HaltPoll { vcpu: 0, grow: false, new: 10_000, old: 20_000 };
        let found = run(
            &mut pairing,
            &[
                event(1, 11, grown),
                event(1, 11, wakeup(1, true)),
                event(2, 11, wakeup(1, true)),
                event(3, 0, EventKind::Lost { cpu: Some(0), count: 1 }),
                event(4, 11, wakeup(1, true)),
            ],
        );
        let windows: Vec<_> = found.iter().map(|found| found.window_ns).collect();
        assert_eq!(windows, [Some(20_000), Some(10_000), None]);
    }

    proptest! {
        /// The oracle is the kernel's rule itself: every window that is reported is the one that was in
        /// force, and every halt comes out as it went in.
        #[test]
        fn windows_reported_are_windows_in_force(
            halts in prop::collection::vec(0u64..600_000, 1..300),
            max in prop_oneof![Just(0u32), Just(10_000), Just(50_000), Just(200_000), Just(400_000), any::<u32>()],
            revision in prop_oneof![Just(Revision::V5_10), Just(Revision::V5_17), Just(Revision::V6_1), Just(Revision::V6_11)],
        ) {
            let knobs = Knobs { cap_ns: Some(max), ..Knobs::of(Params::default_for(revision)) };
            let mut model = Model::new(revision);
            let mut pairing = HostPairing::new(Some(revision), None, Box::new(Few));
            let (mut time, mut found) = (0, vec![]);
            // One of exactly the maximum looks as if polling were off.
            for ns in halts.into_iter().filter(|ns| *ns != u64::from(max)) {
                time += ns + 1_000;
                let window = model.enter(&knobs);
                if let Some(change) = model.decide(&knobs, ns, true) {
                    let kind = EventKind::HaltPoll { vcpu: 0, grow: change.grow, new: change.new, old: change.old };
                    pairing.observe(&event(time, 11, kind), &mut found);
                }
                pairing.observe(&event(time, 11, wakeup(ns, true)), &mut found);
                let last = found.last().unwrap();
                prop_assert_eq!((last.start_ns, last.idle_ns), (time - ns, ns));
                if let Some(known) = last.window_ns {
                    prop_assert_eq!(known, u64::from(window));
                }
            }
        }
    }
}
