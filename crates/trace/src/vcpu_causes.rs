//! What vCPUs run between their halts, and what woke them, as their host sees it.
//!
//! A segment of a vCPU lasts from the end of one halt to the beginning of the next; `kvm:kvm_vcpu_wakeup` has both times. A
//! halt ends because an interrupt was put into the vCPU's local APIC (`kvm:kvm_apic_accept_irq`); if the vCPU's thread slept,
//! it was also woken (`sched:sched_waking`). Both events are recorded in the context of the [waker](crate::waking), mostly the
//! thread of another vCPU that sends an IPI or rings a doorbell.
//!
//! The interrupt event has the number of the vCPU, but not its VM. It is taken to be for the vCPU of this number in the
//! waker's process, or in any process if the waker's has none. A vCPU has the number that `kvm:kvm_halt_poll_ns` has, and
//! until that is seen the one in the name of its thread.

use crate::event::{Event, EventKind, TracepointKind};
use crate::pairing::{ByNumber, PairedEpisode};
use crate::waking::{Wakeup, Waking};
use dwell_recording::Cause;
use std::collections::VecDeque;

/// The tracepoints that show what wakes vCPUs.
pub const TRACEPOINTS: [TracepointKind; 2] = [TracepointKind::Waking, TracepointKind::ApicAccept];

/// From the guest's HLT to the beginning of KVM's halt, at most \[ns\]: an interrupt in between is pending when the halt begins.
const ON_THE_WAY_NS: u64 = 10_000;

/// What ended the halt that began then.
fn cause(wakeups: &VecDeque<Wakeup>, idle_since_ns: u64, waited: bool) -> Cause {
    let since = || wakeups.iter().filter(|wakeup| wakeup.at_ns >= idle_since_ns);
    let woken = since().find(|wakeup| wakeup.of_thread == waited).or_else(|| since().next());
    // The thread is woken because of the interrupt.
    let because = woken.and_then(|woken| since().find(|wakeup| wakeup.tid == woken.tid));
    // With an interrupt pending, a halt ends at once.
    let found = wakeups
        .back()
        .filter(|last| !waited && last.at_ns < idle_since_ns && idle_since_ns - last.at_ns <= ON_THE_WAY_NS);
    because.or(woken).or(found).map_or(Cause::Unknown, |wakeup| wakeup.cause)
}

/// The segments of vCPUs.
#[derive(Default)]
pub(crate) struct OfVcpus {
    pub(crate) waking: Waking,
    /// The idlers that are vCPUs of this number in a process, and in any ([`Event::UNKNOWN_ID`]).
    numbered: ByNumber<(i32, u32), Vec<u32>>,
}

impl OfVcpus {
    fn interrupt_is_accepted(&mut self, event: &Event, apic: u32) {
        let Some(cause) = self.waking.waker(event) else { return };
        let own = self.waking.idler(event.tid);
        let of = |process: i32| self.numbered.get(&(process, apic));
        let woken = of(event.pid).or_else(|| of(Event::UNKNOWN_ID)).into_iter().flatten();
        for idler in woken.filter(|idler| own != Some(**idler)) {
            let wakeup = Wakeup { at_ns: event.time_ns, cause, tid: event.tid, of_thread: false };
            self.waking.may_be_woken(*idler, wakeup);
        }
    }

    /// Takes the next event, and the episode that it ends: of the vCPU of this number, if that is known.
    pub(crate) fn observe(
        &mut self,
        event: &Event,
        ended: Option<&PairedEpisode>,
        number: impl FnOnce(u32) -> Option<u32>,
    ) {
        match (event.kind, ended) {
            (EventKind::VcpuWakeup { .. }, Some(episode)) => self.halt_is_over(event, episode, number),
            (EventKind::ApicAccept { apic }, _) => self.interrupt_is_accepted(event, apic),
            (EventKind::HaltPoll { vcpu, .. }, _) => self.number_is_seen(event, vcpu),
            _ => self.waking.observe(event),
        }
    }

    /// The halt of an idler is over.
    fn halt_is_over(
        &mut self,
        event: &Event,
        episode: &PairedEpisode,
        number: impl FnOnce(u32) -> Option<u32>,
    ) {
        let waited = episode.halted == Some(true);
        let is_new = self
            .waking
            .idled(event, episode, |wakeups| (cause(wakeups, episode.start_ns, waited), episode.halted));
        if let Some(number) = is_new.then(|| number(episode.idler)).flatten() {
            self.add(episode.idler, event.pid, number);
        }
    }

    /// Adds an idler to those that are vCPUs of this number.
    fn add(&mut self, idler: u32, process: i32, number: u32) {
        for process in [process, Event::UNKNOWN_ID] {
            let same = self.numbered.entry((process, number)).or_default();
            if !same.contains(&idler) {
                same.push(idler);
            }
        }
    }

    /// The event has the number of the vCPU that its thread runs; the thread's name may have had another one.
    fn number_is_seen(&mut self, event: &Event, number: u32) {
        let Some(idler) = self.waking.idler(event.tid) else { return };
        if self.numbered.get(&(event.pid, number)).is_some_and(|same| same.contains(&idler)) {
            return;
        }
        self.numbered.values_mut().for_each(|same| same.retain(|other| *other != idler));
        self.add(idler, event.pid, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Interrupt;
    use crate::host::HostPairing;
    use crate::pairing::{Names, Pairing};
    use crate::waking::tests::are_in_order;
    use dwell_recording::Segments;
    use proptest::prelude::*;

    /// Thread 10 N + K of process 10 N is vCPU K.
    struct Vcpus;

    impl Names for Vcpus {
        fn process(&mut self, _: i32) -> Option<String> {
            Some("vmm".to_owned())
        }
        fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
            (tid < 100).then(|| format!("CPU {}/KVM", tid % 10))
        }
    }

    fn event(time_ns: u64, tid: i32, kind: EventKind) -> Event {
        let cpu = u32::try_from(tid % 10).unwrap();
        Event { time_ns, cpu, pid: tid / 10 * 10, tid, kind }
    }

    fn halt(time_ns: u64, tid: i32, ns: u64, waited: bool) -> Event {
        event(time_ns, tid, EventKind::VcpuWakeup { ns, waited, valid: true })
    }

    fn waking(time_ns: u64, tid: i32, woken: i32) -> Event {
        event(time_ns, tid, EventKind::Waking { woken, target: 0 })
    }

    fn accept(time_ns: u64, tid: i32, apic: u32) -> Event {
        event(time_ns, tid, EventKind::ApicAccept { apic })
    }

    fn segments(events: &[Event]) -> Segments {
        let mut pairing = HostPairing::new(None, None, Box::new(Vcpus)).with_segments();
        let mut found = vec![];
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        pairing.take_segments().unwrap()
    }

    fn causes(events: &[Event]) -> Vec<(u32, u64, u64, Cause)> {
        segments(events).rows.iter().map(|row| (row.task, row.start_ns, row.run_ns, row.cause)).collect()
    }

    #[test]
    fn a_vcpu_that_wakes_another_is_its_waker() {
        let events = [
            halt(10_000, 10, 1_000, true),
            halt(11_000, 11, 1_000, true),
            // Halts at 12,000; polls, so that no thread is woken.
            accept(15_000, 10, 1),
            halt(16_000, 11, 4_000, false),
            // Halts at 17,000, and sleeps.
            accept(20_000, 11, 0),
            waking(20_500, 11, 10),
            halt(30_000, 10, 13_000, true),
            halt(40_000, 11, 5_000, true),
            halt(50_000, 10, 5_000, false),
        ];
        assert_eq!(
            causes(&events),
            [
                (0, 10_000, 7_000, Cause::Unknown),
                (1, 11_000, 1_000, Cause::Unknown),
                (1, 16_000, 19_000, Cause::Task { waker: 0, offset_ns: 5_000 }),
                (0, 30_000, 15_000, Cause::Task { waker: 2, offset_ns: 4_000 }),
            ]
        );
        let segments = segments(&events);
        assert_eq!(segments.tasks, ["vmm/10/vcpu0", "vmm/10/vcpu1"]);
        assert_eq!(segments.rows[2].halted, Some(false));
    }

    /// Thread 105 serves the doorbell of vCPU 0, until an interrupt wakes it.
    #[test]
    fn a_thread_that_a_vcpu_has_woken_wakes_for_it() {
        let found = causes(&[
            halt(10_000, 10, 1_000, true),
            halt(11_000, 11, 1_000, true),
            waking(15_000, 10, 105),
            halt(16_000, 10, 500, true),
            waking(19_000, 105, 11),
            halt(25_000, 11, 10_000, true),
            event(30_000, 105, EventKind::Interrupt(Interrupt::Device)),
            waking(31_000, 105, 105),
            waking(45_000, 105, 11),
            halt(55_000, 11, 20_000, true),
            halt(65_000, 11, 1_000, true),
        ]);
        let causes: Vec<(u64, Cause)> = found.iter().map(|row| (row.1, row.3)).collect();
        let served = Cause::Task { waker: 0, offset_ns: 9_000 };
        assert!(causes.contains(&(25_000, served)), "{causes:?}");
        assert!(causes.contains(&(55_000, Cause::Interrupt { woken_ns: 45_000 })), "{causes:?}");
    }

    #[test]
    fn a_halt_may_find_its_interrupt() {
        let found = |accepted_ns: u64, waited: bool| {
            let halts = [halt(10_000, 10, 1_000, true), halt(11_000, 11, 1_000, true)];
            let ends = [(40_000, 11), (50_000, 11), (60_000, 10)].map(|(ns, tid)| halt(ns, tid, 500, waited));
            causes(&[&halts[..], &[accept(accepted_ns, 10, 1)], &ends].concat()).last().unwrap().3
        };
        assert_eq!(found(38_000, false), Cause::Task { waker: 0, offset_ns: 28_000 });
        assert_eq!(found(38_000, true), Cause::Unknown);
        assert_eq!(found(20_000, false), Cause::Unknown);
    }

    /// vCPUs of two VMs have the number 1; the thread that is woken tells which, and otherwise the waker's process.
    #[test]
    fn an_interrupt_is_of_the_wakers_vm_unless_another_thread_is_woken() {
        let found = causes(&[
            halt(1_000, 10, 500, true),
            halt(1_100, 11, 500, true),
            halt(1_200, 21, 500, true),
            accept(5_000, 10, 1),
            halt(6_000, 11, 3_000, false),
            halt(6_100, 21, 3_000, true),
            accept(7_000, 10, 1),
            waking(7_100, 10, 21),
            halt(8_000, 21, 1_000, true),
            halt(9_000, 11, 100, true),
            halt(9_100, 21, 100, true),
            halt(9_200, 10, 100, true),
        ]);
        let causes: Vec<(u64, Cause)> = found.iter().map(|row| (row.1, row.3)).collect();
        let by_first = |offset_ns| Cause::Task { waker: 0, offset_ns };
        assert!(
            causes.contains(&(6_000, by_first(4_000))) && causes.contains(&(6_100, Cause::Unknown)),
            "{causes:?}"
        );
        assert!(causes.contains(&(8_000, by_first(6_100))), "{causes:?}");
    }

    /// Thread 11 is called vCPU 1, and KVM calls it vCPU 0: of a VM of its own, in the process of another one.
    #[test]
    fn the_number_that_kvm_has_counts_and_not_the_name() {
        let waking = |named_by_kvm: bool| {
            let vcpu = EventKind::HaltPoll { vcpu: 0, grow: true, new: 10_000, old: 0 };
            let mut events = vec![halt(10_000, 10, 1_000, true), halt(11_000, 11, 1_000, true)];
            events.extend(named_by_kvm.then(|| event(11_500, 11, vcpu)));
            events.extend([
                accept(15_000, 10, 0),
                halt(16_000, 11, 4_000, false),
                accept(17_000, 10, 1),
                halt(30_000, 11, 13_000, false),
                halt(40_000, 10, 5_000, true),
                halt(50_000, 11, 5_000, true),
            ]);
            let rows = causes(&events).into_iter().filter(|row| row.0 == 1);
            rows.map(|row| (row.1, row.3)).skip(1).collect::<Vec<_>>()
        };
        let by_first = |offset_ns| Cause::Task { waker: 0, offset_ns };
        assert_eq!(waking(false), [(16_000, Cause::Unknown), (30_000, by_first(7_000))]);
        assert_eq!(waking(true), [(16_000, by_first(5_000)), (30_000, Cause::Unknown)]);
    }

    proptest! {
        /// Whatever comes in whatever order.
        #[test]
        fn any_events_give_segments_in_order(
            steps in prop::collection::vec((0u64..30_000, 0usize..5, 0u64..40_000, 0u8..7, any::<bool>()), 0..200),
        ) {
            let tids = [10, 11, 20, 21, 105];
            let mut time_ns = 1_000_000;
            let mut events = vec![];
            for (ns, tid, idle_ns, kind, waited) in steps {
                time_ns += ns;
                let (tid, other) = (tids[tid], tids[usize::try_from(idle_ns % 5).unwrap()]);
                events.push(match kind {
                    0 | 1 => halt(time_ns, tid, idle_ns, waited),
                    2 => waking(time_ns, tid, other),
                    3 => accept(time_ns, tid, u32::try_from(idle_ns % 2).unwrap()),
                    4 => event(time_ns, tid, EventKind::Interrupt(Interrupt::Timer)),
                    5 => event(time_ns, tid, EventKind::Interrupt(Interrupt::Device)),
                    _ => event(time_ns, tid, EventKind::Lost { cpu: None, count: 1 }),
                });
            }
            are_in_order(&segments(&events))?;
        }
    }

    #[test]
    fn timers_devices_and_other_threads_are_no_vcpus() {
        let found = causes(&[
            halt(10_000, 10, 1_000, true),
            halt(11_000, 11, 1_000, true),
            event(20_000, 10, EventKind::Interrupt(Interrupt::Timer)),
            waking(21_000, 10, 11),
            halt(25_000, 11, 10_000, true),
            waking(50_000, 105, 11),
            halt(55_000, 11, 10_000, true),
            // Its own, which ended before.
            accept(70_000, 11, 1),
            halt(75_000, 11, 10_000, false),
            event(80_000, 11, EventKind::Lost { cpu: None, count: 1 }),
            halt(85_000, 11, 1_000, true),
            halt(95_000, 11, 1_000, true),
        ]);
        let causes: Vec<(u64, Cause)> = found.iter().map(|row| (row.1, row.3)).collect();
        assert_eq!(
            causes,
            [
                (11_000, Cause::Unknown),
                (25_000, Cause::Timer { woken_ns: 21_000 }),
                (55_000, Cause::Interrupt { woken_ns: 50_000 }),
                (85_000, Cause::Unknown),
            ]
        );
    }
}
