//! CPUs by `sched:sched_switch` and `sched:sched_waking`: from the switch to the idle task to the waking of the task
//! that ends it.
//!
//! If that task was woken while the CPU was idle, the episode ends there, and the time until the task runs is the
//! wake-up latency. Otherwise (it was woken before and moved here, or its waking was not recorded) the episode ends
//! with the switch and the latency is not known. `power:cpu_idle`, where recorded too, tells whether the CPU halted.

use super::fields::Point;
use super::line::Event;
use super::stream::{Done, Sink, Stream};
use dwell_recording::WakeCause;
use dwell_recording::WriteError;
use std::collections::{BTreeMap, HashMap};

#[derive(Default)]
pub(super) struct Sched {
    cpus: BTreeMap<u32, Cpu>,
    /// When each task was woken that did not run since: one entry a task at most.
    woken_ns: HashMap<u32, u64>,
}

struct Cpu {
    stream: Stream,
    now: Now,
}

/// What a CPU does.
#[derive(Clone, Copy)]
enum Now {
    Unknown,
    Runs,
    Idles(Period),
}

#[derive(Clone, Copy)]
struct Period {
    start_ns: u64,
    halted: Option<bool>,
    polled: Option<bool>,
    own: Option<u32>,
}

impl Sched {
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        point: Point<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        match point {
            Point::Waking { pid } => {
                self.woken_ns.entry(pid).or_insert(event.time_ns);
                Ok(())
            }
            Point::Switch { prev, next } => self.switch(event, prev, next, sink),
            Point::Enter { cpu, state } => {
                if let Now::Idles(period) = &mut self.cpu(cpu).now {
                    period.polled.get_or_insert(state == 0);
                    period.halted = Some(period.halted == Some(true) || state != 0);
                }
                Ok(())
            }
            Point::GuestWindow { new, old } => {
                let cpu = self.cpu(event.cpu.unwrap_or(0));
                if let Now::Idles(period) = &mut cpu.now {
                    period.own.get_or_insert(old);
                }
                cpu.stream.window(new, old, sink)
            }
            _ => Ok(()),
        }
    }

    fn cpu(&mut self, number: u32) -> &mut Cpu {
        self.cpus
            .entry(number)
            .or_insert_with(|| Cpu { stream: Stream::new(format!("cpu{number}")), now: Now::Unknown })
    }

    fn switch(
        &mut self,
        event: &Event<'_>,
        prev: u32,
        next: u32,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        let woken_ns = if next == 0 { None } else { self.woken_ns.remove(&next) };
        let cpu = self.cpu(event.cpu.unwrap_or(0));
        let then = match next {
            0 => Now::Idles(Period { start_ns: event.time_ns, halted: None, polled: None, own: None }),
            _ => Now::Runs,
        };
        match std::mem::replace(&mut cpu.now, then) {
            Now::Idles(period) if prev == 0 && next != 0 => match period.done(woken_ns, event.time_ns) {
                Some(done) => cpu.stream.push(done, period.own, sink)?,
                None => {
                    sink.summary.out_of_order += 1;
                    sink.summary.incomplete_at_end += 1;
                }
            },
            Now::Idles(_) => sink.summary.incomplete_at_end += 1,
            Now::Unknown | Now::Runs if prev == 0 && next != 0 => sink.summary.incomplete_at_start += 1,
            Now::Unknown | Now::Runs => {}
        }
        Ok(())
    }

    /// What is open may have ended unseen, and tasks may have run unseen since they were woken.
    pub(super) fn lost(&mut self, cpu: Option<u32>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        self.woken_ns.clear();
        let all = self.cpus.iter_mut().filter(|(number, _)| cpu.is_none_or(|cpu| cpu == **number));
        for (_, cpu) in all {
            sink.summary.incomplete_at_end += u64::from(matches!(cpu.now, Now::Idles(_)));
            cpu.now = Now::Unknown;
            cpu.stream.forget(sink)?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        self.lost(None, sink)
    }
}

impl Period {
    /// `None` if it ends before it began.
    fn done(self, woken_ns: Option<u64>, switched_ns: u64) -> Option<Done> {
        let whole_ns = switched_ns.checked_sub(self.start_ns)?;
        let done = Done { halted: self.halted, polled: self.polled, ..Done::new(self.start_ns, whole_ns) };
        match woken_ns {
            Some(woken_ns) if (self.start_ns..=switched_ns).contains(&woken_ns) => Some(Done {
                idle_ns: woken_ns - self.start_ns,
                wake: Some(WakeCause::Task),
                wake_latency_ns: Some(switched_ns - woken_ns),
                ..done
            }),
            _ => Some(done),
        }
    }
}
