//! What idlers that are threads run between their idle times, and who woke them: vCPUs, event loops.
//!
//! The waker is the thread in whose context a wakeup is recorded (`sched:sched_waking`), unless its CPU has just taken an
//! interrupt ([`IN_INTERRUPT_NS`]). Wakeups by a thread that an idler has woken less than 1 ms before, such as a vhost worker,
//! count as that idler's, and may come after the end of its segment. All others come at times of their own, or a fixed time
//! after a request.

use crate::causes::{IN_INTERRUPT_NS, Rows, Running};
use crate::event::{Event, EventKind, Interrupt, TracepointKind};
use crate::pairing::{ByNumber, PairedEpisode};
use dwell_recording::{Cause, Segments};
use std::collections::VecDeque;

/// What shows that a waking is an interrupt's and not the task's below it.
pub const INTERRUPTS: [TracepointKind; 2] = [TracepointKind::TimerInterrupt, TracepointKind::DeviceInterrupt];

/// So many of the events that may have woken an idler are remembered: most idle times have one or two.
const MOST_WAKEUPS: usize = 16;

/// How long after an idler has woken a thread the wakeups by that thread count as the idler's \[ns\].
const SERVES_NS: u64 = 1_000_000;

/// A thread that an idler has woken.
#[derive(Clone, Copy)]
struct Served {
    number: u32,
    start_ns: u64,
    woken_ns: u64,
}

/// What may have woken an idler.
#[derive(Clone, Copy)]
pub(crate) struct Wakeup {
    pub(crate) at_ns: u64,
    pub(crate) cause: Cause,
    /// By whom.
    pub(crate) tid: i32,
    /// Whether the thread was woken, so that the idler is known.
    pub(crate) of_thread: bool,
}

#[derive(Default)]
struct Idler {
    /// Between two idle times.
    running: Option<Running>,
    /// Since the last idle time ended, in order of time.
    wakeups: VecDeque<Wakeup>,
}

/// The segments of idlers that are threads.
#[derive(Default)]
pub(crate) struct Waking {
    /// By number.
    idlers: Vec<Idler>,
    /// The idler of a thread.
    threads: ByNumber<i32, u32>,
    /// By thread that is no idler, who has woken it.
    serves: ByNumber<i32, Served>,
    /// By CPU, the last interrupt and when it was \[ns\].
    interrupts: ByNumber<u32, (u64, Interrupt)>,
    pub(crate) rows: Rows,
}

impl Waking {
    /// The segments whose end was seen, and [wakers](Rows::finish) that still run, of idlers with these names.
    pub(crate) fn finish(&mut self, names: &[String]) -> Segments {
        let running = (0..).zip(&mut self.idlers);
        let running = running.filter_map(|(idler, of)| Some((of.running.take()?, (idler, idler))));
        Segments {
            tasks: names.to_vec(),
            rows: self.rows.finish(running, |place| place),
            ..Segments::default()
        }
    }

    /// Takes an event that is not of one layer only.
    pub(crate) fn observe(&mut self, event: &Event) {
        match event.kind {
            EventKind::Waking { woken, .. } => self.thread_is_woken(event, woken),
            EventKind::Interrupt(kind) => {
                self.interrupts.insert(event.cpu, (event.time_ns, kind));
            }
            EventKind::Gap { .. } | EventKind::Lost { .. } => self.lost(),
            _ => {}
        }
    }

    /// The idler that this thread is.
    pub(crate) fn idler(&self, tid: i32) -> Option<u32> {
        self.threads.get(&tid).copied()
    }

    /// Who woke at this event; `None` where it is not known.
    pub(crate) fn waker(&self, event: &Event) -> Option<Cause> {
        let woken_ns = event.time_ns;
        let recent = self.interrupts.get(&event.cpu);
        let recent = recent.filter(|(at_ns, _)| woken_ns.saturating_sub(*at_ns) <= IN_INTERRUPT_NS);
        match (recent, self.idler(event.tid)) {
            (Some((_, Interrupt::Timer)), _) => Some(Cause::Timer { woken_ns }),
            (Some((_, Interrupt::Device)), _) => Some(Cause::Interrupt { woken_ns }),
            (_, None) => Some(match self.serves.get(&event.tid) {
                Some(Served { number, start_ns, woken_ns: served_ns })
                    if woken_ns.saturating_sub(*served_ns) <= SERVES_NS =>
                {
                    Cause::Task { waker: *number, offset_ns: woken_ns.saturating_sub(*start_ns) }
                }
                _ => Cause::Interrupt { woken_ns },
            }),
            (_, Some(idler)) => {
                let Running { start_ns, number, .. } = self.idlers.get(idler as usize)?.running?;
                Some(Cause::Task { waker: number, offset_ns: woken_ns.checked_sub(start_ns)? })
            }
        }
    }

    fn thread_is_woken(&mut self, event: &Event, woken: i32) {
        let cause = self.waker(event);
        let Some(idler) = self.idler(woken) else {
            match cause {
                Some(Cause::Task { waker: number, offset_ns }) if self.threads.contains_key(&event.tid) => {
                    let start_ns = event.time_ns - offset_ns;
                    self.serves.insert(woken, Served { number, start_ns, woken_ns: event.time_ns })
                }
                _ => self.serves.remove(&woken),
            };
            return;
        };
        let Some(cause) = cause else { return };
        self.may_be_woken(idler, Wakeup { at_ns: event.time_ns, cause, tid: event.tid, of_thread: true });
    }

    /// Remembers what may have woken an idler.
    pub(crate) fn may_be_woken(&mut self, idler: u32, wakeup: Wakeup) {
        let Some(Idler { wakeups, .. }) = self.idlers.get_mut(idler as usize) else { return };
        if wakeups.len() == MOST_WAKEUPS {
            wakeups.pop_front();
        }
        wakeups.push_back(wakeup);
    }

    /// An idle time is over at `event`, which is of the idler's thread; `cause` chooses among what may have ended it. Returns
    /// whether the thread was not known as this idler.
    pub(crate) fn idled(
        &mut self,
        event: &Event,
        episode: &PairedEpisode,
        cause: impl FnOnce(&VecDeque<Wakeup>) -> (Cause, Option<bool>),
    ) -> bool {
        let place = episode.idler as usize;
        if place >= self.idlers.len() {
            self.idlers.resize_with(place + 1, Idler::default);
        }
        let idler = &mut self.idlers[place];
        let is_new = self.threads.insert(event.tid, episode.idler) != Some(episode.idler);
        if is_new {
            // One that is new, or goes on in another thread.
            *idler = Idler::default();
        }
        if let Some(running) = idler.running.take() {
            self.rows.end(running, (episode.idler, episode.idler), episode.start_ns);
        }
        let (cause, halted) = cause(&idler.wakeups);
        idler.wakeups.clear();
        idler.running = self.rows.begin(event.time_ns, cause, halted);
        is_new
    }

    /// What runs, and what was woken, is not known from here on.
    fn lost(&mut self) {
        self.idlers.iter_mut().for_each(|idler| *idler = Idler::default());
        self.serves.clear();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use dwell_recording::{Cause, Segments};
    use proptest::prelude::*;

    /// Segments are in order of their start and of one idler do not overlap, and a waker has begun before what it wakes.
    pub(crate) fn are_in_order(segments: &Segments) -> Result<(), TestCaseError> {
        let mut ended_ns = vec![0; segments.tasks.len()];
        for (number, row) in segments.rows.iter().enumerate() {
            prop_assert!(number == 0 || segments.rows[number - 1].start_ns <= row.start_ns);
            prop_assert!(ended_ns[row.task as usize] <= row.start_ns);
            ended_ns[row.task as usize] = row.end_ns();
            if let Cause::Task { waker, .. } = row.cause {
                prop_assert!((waker as usize) < number);
            }
            prop_assert!(segments.woken_ns(row).is_none_or(|woken_ns| woken_ns <= row.start_ns));
        }
        Ok(())
    }
}
