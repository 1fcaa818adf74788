//! vCPUs seen from their host: `kvm:kvm_vcpu_wakeup` and `kvm:kvm_halt_poll_ns` into episodes.
//!
//! KVM says how long a halt took when it is over, so that every `kvm_vcpu_wakeup` is an episode by itself, whatever was
//! lost before it. `kvm_halt_poll_ns` comes first, out of the same halt, and tells the window that was polled (`old`) and
//! the next one (`new`, to be cut to a maximum that is not traced).
//!
//! # Who idles
//! A vCPU is a thread. Its VM's process and name are known, its number often only from `kvm_halt_poll_ns` or `kvm_exit`;
//! before one of them has fired, from the thread's name or from the process's open files. An idler is named
//! `comm/pid/vcpuN`, or `comm/pid/tidN` where the number cannot be known in time; the notes of the recording have all that
//! became known until the end.
//!
//! # The window
//! It is known where an event has told it since: in a halt with a `kvm_halt_poll_ns` event, `old`; after that, `new` cut to
//! the VM's maximum, if that has shown itself (a window that came out smaller than what it had grown to). Kernels before
//! 6.1 do not cut at the beginning of a halt, so that `new` is the next window.
//!
//! # The time alone
//! With [`HostPairing::with_contention`], from the scheduler's events; see [`contention`](crate::contention).

use crate::contention::Contention;
use crate::event::{Event, What};
use crate::pairing::{ByNumber, Found, Idlers, Names, Pairing};
use dwell_policy::host::Revision;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Makes episodes of vCPUs.
pub struct HostPairing {
    names: Box<dyn Names>,
    clamps_at_entry: bool,
    only_pid: Option<i32>,
    idlers: Idlers,
    vcpus: ByNumber<i32, Vcpu>,
    invalid: u64,
    contention: Option<Contention>,
}

/// What is known of one vCPU.
#[derive(Debug, Default)]
struct Vcpu {
    pid: i32,
    number: Option<u32>,
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

    /// The window of the halt that ends now \[ns\].
    fn take(&mut self) -> Option<u32> {
        if let Some(now) = self.now_ns.take() {
            return Some(now);
        }
        let set = self.set_ns?;
        match self.max_ns {
            Some(max) => Some(set.min(max)),
            None => (set <= self.seen_ns).then_some(set),
        }
    }
}

impl HostPairing {
    /// For a kernel of `revision` (`None`: not known, then windows are told only where an event tells them), for the VM of
    /// process `only_pid` or for all.
    pub fn new(revision: Option<Revision>, only_pid: Option<i32>, names: Box<dyn Names>) -> HostPairing {
        HostPairing {
            names,
            clamps_at_entry: revision.is_none_or(Revision::clamps_at_entry),
            only_pid,
            idlers: Idlers::default(),
            vcpus: ByNumber::default(),
            invalid: 0,
            contention: None,
        }
    }

    /// The same, with the time alone of each episode, from the scheduler's events of the CPUs that are watched.
    #[must_use]
    pub fn with_contention(mut self, contention: Contention) -> HostPairing {
        self.contention = Some(contention);
        self
    }

    fn vcpu(&mut self, event: &Event) -> &mut Vcpu {
        self.vcpus.entry(event.tid).or_insert_with(|| Vcpu { pid: event.pid, ..Vcpu::default() })
    }

    /// The idler of this thread; it is named when its first episode ends, and keeps that name.
    fn idler(&mut self, event: &Event) -> u32 {
        let known = self.vcpu(event);
        if let Some(idler) = known.idler {
            return idler;
        }
        let number = known.number.or_else(|| number_by_name(&mut *self.names, event.pid, event.tid));
        let process = self.names.process(event.pid).unwrap_or_else(|| "unknown".to_owned());
        let by_thread = format!("{process}/{}/tid{}", event.pid, event.tid);
        let by_number = number.map(|number| format!("{process}/{}/vcpu{number}", event.pid));
        // A number that another thread has already is a guess gone wrong, or a vCPU that changed its thread.
        let name = by_number.filter(|name| !self.idlers.names().contains(name)).unwrap_or(by_thread);
        let idler = self.idlers.number(name);
        let vcpu = self.vcpu(event);
        vcpu.idler = Some(idler);
        vcpu.number = number;
        idler
    }
}

/// The number of the vCPU that a thread runs, from what VMMs call their threads (`CPU 3/KVM`, `fc_vcpu 3`, `vcpu3`), or
/// because the process has only one.
fn number_by_name(names: &mut dyn Names, pid: i32, tid: i32) -> Option<u32> {
    if let Some(number) = vcpu_of_name(&names.thread(pid, tid).unwrap_or_default()) {
        return Some(number);
    }
    match names.vcpus(pid)[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// The number of the vCPU that a thread of this name runs, if the name is one that VMMs give.
pub fn vcpu_of_name(thread: &str) -> Option<u32> {
    let rest =
        ["CPU ", "fc_vcpu ", "vcpu", "crosvm_vcpu"].iter().find_map(|prefix| thread.strip_prefix(prefix))?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Pairing for HostPairing {
    fn observe(&mut self, event: &Event, found: &mut Vec<Found>) {
        if let Some(contention) = &mut self.contention {
            contention.observe(event);
        }
        if self.only_pid.is_some_and(|pid| pid != event.pid && pid != event.tid)
            && !matches!(event.what, What::Lost { .. })
        {
            return;
        }
        match event.what {
            What::HaltPoll { vcpu: number, new, old, .. } => {
                let clamps_at_entry = self.clamps_at_entry;
                let vcpu = self.vcpu(event);
                vcpu.number = Some(number);
                vcpu.window.changed(new, old, clamps_at_entry);
            }
            What::HltExit { vcpu: number } => self.vcpu(event).number = Some(number),
            What::VcpuWakeup { ns, waited, valid } => {
                self.invalid += u64::from(!valid);
                let idler = self.idler(event);
                let window_ns = self.vcpu(event).window.take().map(u64::from);
                let contention = self.contention.as_mut();
                let alone_ns = contention.and_then(|contention| contention.alone_ns(event, ns, waited));
                found.push(Found {
                    idler,
                    // The trace is made a little after the end that `ns` was taken at.
                    start_ns: event.time_ns.saturating_sub(ns),
                    idle_ns: ns,
                    window_ns,
                    halted: Some(waited),
                    wake: None,
                    wake_latency_ns: None,
                    alone_ns,
                });
            }
            // Any vCPU may have changed its window unseen.
            What::Lost { .. } => self.vcpus.values_mut().for_each(|vcpu| vcpu.window = Window::default()),
            _ => {}
        }
    }

    fn idlers(&self) -> &[String] {
        self.idlers.names()
    }

    fn incomplete(&self) -> u64 {
        0
    }

    fn notes(&self) -> BTreeMap<String, Value> {
        let mut vcpus = BTreeMap::new();
        for (tid, vcpu) in &self.vcpus {
            let Some(idler) = vcpu.idler else { continue };
            let about =
                json!({ "pid": vcpu.pid, "tid": tid, "vcpu_id": vcpu.number, "max_ns": vcpu.window.max_ns });
            vcpus.insert(self.idlers.name(idler).to_owned(), about);
        }
        let mut notes = BTreeMap::from([("dwell.vcpus".to_owned(), json!(vcpus))]);
        if self.invalid > 0 {
            notes.insert("dwell.invalid_wakeups".to_owned(), json!(self.invalid));
        }
        notes
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
        fn vcpus(&mut self, pid: i32) -> Vec<u32> {
            if pid == 20 { vec![7] } else { vec![0, 1] }
        }
    }

    fn event(time_ns: u64, tid: i32, what: What) -> Event {
        Event { time_ns, cpu: 0, pid: tid / 10 * 10, tid, what }
    }

    fn wakeup(ns: u64, waited: bool) -> What {
        What::VcpuWakeup { ns, waited, valid: true }
    }

    fn run(pairing: &mut HostPairing, events: &[Event]) -> Vec<Found> {
        let mut found = vec![];
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        found
    }

    #[test]
    fn a_vcpu_is_named_by_event_thread_or_process_else_by_tid() {
        let mut pairing = HostPairing::new(Some(Revision::V6_11), None, Box::new(Few));
        run(
            &mut pairing,
            &[
                event(1, 12, What::HaltPoll { vcpu: 5, grow: true, new: 10_000, old: 0 }),
                event(1, 12, wakeup(1, true)),
                event(2, 11, wakeup(1, true)),
                event(3, 21, wakeup(1, true)),
                event(4, 13, wakeup(1, true)),
                event(5, 13, What::HaltPoll { vcpu: 9, grow: true, new: 10_000, old: 0 }),
                event(5, 13, wakeup(1, true)),
            ],
        );
        assert_eq!(
            pairing.idlers(),
            ["vmm10/10/vcpu5", "vmm10/10/vcpu3", "vmm20/20/vcpu7", "vmm10/10/tid13"]
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

    #[test]
    fn a_loss_makes_the_window_unknown() {
        let mut pairing = HostPairing::new(Some(Revision::V6_11), None, Box::new(Few));
        let grown = What::HaltPoll { vcpu: 0, grow: false, new: 10_000, old: 20_000 };
        let found = run(
            &mut pairing,
            &[
                event(1, 11, grown),
                event(1, 11, wakeup(1, true)),
                event(2, 11, wakeup(1, true)),
                event(3, 0, What::Lost { count: 1 }),
                event(4, 11, wakeup(1, true)),
            ],
        );
        let windows: Vec<_> = found.iter().map(|found| found.window_ns).collect();
        assert_eq!(windows, [Some(20_000), Some(10_000), None]);
    }

    proptest! {
        /// The oracle is the kernel's rule itself: every window that is told is the one that was in force, and every halt
        /// comes out as it went in.
        #[test]
        fn windows_told_are_windows_in_force(
            halts in prop::collection::vec(0u64..600_000, 1..300),
            max in prop_oneof![Just(0u32), Just(10_000), Just(50_000), Just(200_000), Just(400_000), any::<u32>()],
            revision in prop_oneof![Just(Revision::V5_10), Just(Revision::V5_17), Just(Revision::V6_1), Just(Revision::V6_11)],
        ) {
            let knobs = Knobs { cap_ns: Some(max), ..Knobs::of(Params::default_for(revision)) };
            let mut model = Model::new(revision);
            let mut pairing = HostPairing::new(Some(revision), None, Box::new(Few));
            let (mut time, mut found) = (0, vec![]);
            for ns in halts {
                time += ns + 1_000;
                let window = model.enter(&knobs);
                if let Some(change) = model.decide(&knobs, ns, true) {
                    let what = What::HaltPoll { vcpu: 0, grow: change.grow, new: change.new, old: change.old };
                    pairing.observe(&event(time, 11, what), &mut found);
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
