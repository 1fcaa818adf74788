//! CPUs by `power:cpu_idle`: from entering an idle state to leaving it.
//!
//! The time to leave includes the wake-up latency. Where the cpuidle driver has a POLL state (state 0), an idle
//! period is two entries: a poll that runs out, then a halt. They are put together: a poll that is followed by
//! another entry within [`GAP_NS`] did not find a task to run.

use super::fields::Point;
use super::line::Event;
use super::stream::{Done, Sink, Stream};
use dwell_recording::WriteError;
use std::collections::BTreeMap;

/// From the end of a poll that ran out to the entry of the halt: the idle loop needs well under a microsecond, on a
/// slow machine and with tracing a few. A task that ran in between would need two switches, longer than that.
const GAP_NS: u64 = 5_000;

pub(super) struct Idle {
    cpus: BTreeMap<u32, Cpu>,
    merge: bool,
}

struct Cpu {
    stream: Stream,
    now: Now,
    /// The window of the episode that is over, where the governor told it.
    own: Option<u32>,
}

/// What a CPU does.
#[derive(Clone, Copy)]
enum Now {
    /// Nothing was seen of it yet, or events were lost.
    Unknown,
    /// It runs, and what was idle is written.
    Runs,
    Idles(Period),
    /// It left; whether the period goes on is to be seen. Time of leaving.
    Left(Period, u64),
}

/// An idle period: one entry, or polls and what followed.
#[derive(Clone, Copy)]
struct Period {
    start_ns: u64,
    polled: bool,
    /// The state entered last.
    state: u32,
    /// Length of the polls that ran out.
    polls_ns: Option<u64>,
}

impl Idle {
    pub(super) fn new(merge: bool) -> Idle {
        Idle { cpus: BTreeMap::new(), merge }
    }

    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        point: Point<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        let number = match point {
            Point::Enter { cpu, .. } | Point::Leave { cpu } => cpu,
            Point::GuestWindow { .. } => event.cpu.unwrap_or(0),
            _ => return Ok(()),
        };
        let cpu = self.cpus.entry(number).or_insert_with(|| Cpu {
            stream: Stream::new(format!("cpu{number}")),
            now: Now::Unknown,
            own: None,
        });
        match point {
            Point::Enter { state, .. } => cpu.enter(event.time_ns, state, self.merge, sink),
            Point::Leave { .. } => {
                cpu.leave(event.time_ns, sink);
                Ok(())
            }
            Point::GuestWindow { new, old } => {
                if matches!(cpu.now, Now::Left(..)) && cpu.own.is_none() {
                    cpu.own = Some(old);
                }
                cpu.stream.window(new, old, sink)
            }
            _ => Ok(()),
        }
    }

    /// What is open may have ended unseen.
    pub(super) fn lost(&mut self, cpu: Option<u32>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let all = self.cpus.iter_mut().filter(|(number, _)| cpu.is_none_or(|cpu| cpu == **number));
        for (_, cpu) in all {
            cpu.settle(sink)?;
            cpu.now = Now::Unknown;
            cpu.stream.forget(sink)?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        self.lost(None, sink)
    }
}

impl Cpu {
    fn enter(
        &mut self,
        time_ns: u64,
        state: u32,
        merge: bool,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        if let Now::Left(period, left_ns) = self.now
            && merge
            && period.state == 0
            && time_ns.checked_sub(left_ns).is_some_and(|gap| gap <= GAP_NS)
        {
            sink.summary.merged_polls += 1;
            let polls_ns = Some(left_ns.saturating_sub(period.start_ns));
            self.now = Now::Idles(Period { state, polls_ns, ..period });
            return Ok(());
        }
        self.settle(sink)?;
        let polled = state == 0;
        self.now = Now::Idles(Period { start_ns: time_ns, polled, state, polls_ns: None });
        Ok(())
    }

    fn leave(&mut self, time_ns: u64, sink: &mut Sink<'_>) {
        self.now = match self.now {
            Now::Idles(period) if time_ns >= period.start_ns => Now::Left(period, time_ns),
            Now::Idles(_) => {
                sink.summary.out_of_order += 1;
                sink.summary.incomplete_at_end += 1;
                Now::Runs
            }
            // Its entry is not in the text.
            now => {
                sink.summary.incomplete_at_start += 1;
                if matches!(now, Now::Unknown) { Now::Runs } else { now }
            }
        };
    }

    /// Writes what is over, and counts what will have no end.
    fn settle(&mut self, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let own = self.own.take();
        match std::mem::replace(&mut self.now, Now::Runs) {
            Now::Left(period, left_ns) => self.stream.push(period.done(left_ns), own, sink),
            Now::Idles(_) => {
                sink.summary.incomplete_at_end += 1;
                Ok(())
            }
            Now::Runs | Now::Unknown => Ok(()),
        }
    }
}

impl Period {
    fn done(self, left_ns: u64) -> Done {
        let halted = self.state != 0;
        Done {
            window_ns: if halted { self.polls_ns } else { None },
            halted: Some(halted),
            polled: Some(self.polled),
            ..Done::new(self.start_ns, left_ns.saturating_sub(self.start_ns))
        }
    }
}
