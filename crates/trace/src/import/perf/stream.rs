//! The episodes of one idler on their way to the recording.

use crate::import::ImportSummary;
use dwell_recording::WriteError;
use dwell_recording::{Episode, WakeCause};

/// Episodes of an idler that wait for their window at most: a few seconds of a busy vCPU. Beyond, they are written
/// without one.
const WAITING: usize = 4096;

/// Where episodes go.
pub(super) struct Sink<'a> {
    pub(super) push: &'a mut dyn FnMut(&Episode<'_>) -> Result<(), WriteError>,
    pub(super) summary: &'a mut ImportSummary,
}

/// An episode that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) start_ns: u64,
    pub(super) idle_ns: u64,
    pub(super) window_ns: Option<u64>,
    pub(super) halted: Option<bool>,
    pub(super) wake: Option<WakeCause>,
    pub(super) wake_latency_ns: Option<u64>,
    /// Whether it began with a poll; where it is known not to have, the idler's window was not in force.
    pub(super) polled: Option<bool>,
}

impl Done {
    /// An episode of which only start and length are known.
    pub(super) fn new(start_ns: u64, idle_ns: u64) -> Done {
        Done {
            start_ns,
            idle_ns,
            window_ns: None,
            halted: None,
            wake: None,
            wake_latency_ns: None,
            polled: None,
        }
    }

    fn set_window(&mut self, window_ns: u64) {
        if self.polled != Some(false) || window_ns == 0 {
            self.window_ns = Some(window_ns);
        }
    }
}

/// One idler, and what is known of its window.
///
/// The kernel tells a window only when it changes it, as `new` and `old`. Between two such events it can only have
/// come down (it is cut to a lowered maximum without a word), and growing again would have been told. So if the
/// later `old` is the earlier `new`, that was the window all along; if not, it is not known for the episodes between,
/// and stays null. Therefore episodes wait for the next change.
#[derive(Debug)]
pub(super) struct Stream {
    name: String,
    told: Option<u32>,
    waiting: Vec<Done>,
    last_start_ns: u64,
}

impl Stream {
    pub(super) fn new(name: String) -> Stream {
        Stream { name, told: None, waiting: Vec::new(), last_start_ns: 0 }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The window was `old` until now and is `new` from now on.
    pub(super) fn window(&mut self, new: u32, old: u32, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let known = self.told == Some(old);
        self.flush(known.then_some(old), sink)?;
        self.told = Some(new);
        Ok(())
    }

    /// An episode is over; `own` is its window, where an event of its own told it.
    pub(super) fn push(
        &mut self,
        mut done: Done,
        own: Option<u32>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        if let Some(own) = own {
            done.set_window(u64::from(own));
            // Whatever waited was settled by the event that told the window.
            return self.write(done, sink);
        }
        if self.told.is_none() {
            return self.write(done, sink);
        }
        if self.waiting.len() >= WAITING {
            self.flush(None, sink)?;
        }
        self.waiting.push(done);
        Ok(())
    }

    /// Nothing is known of the window any more: events were lost, or the text has ended.
    pub(super) fn forget(&mut self, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        self.told = None;
        self.flush(None, sink)
    }

    fn flush(&mut self, window: Option<u32>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        for mut done in waiting.drain(..) {
            if let Some(window) = window {
                done.set_window(u64::from(window));
            }
            self.write(done, sink)?;
        }
        self.waiting = waiting;
        Ok(())
    }

    /// Starts must not go back. They can: by less than the resolution of the text, because start is end less length;
    /// by more if perf did not put events in order, which is counted. The start is then moved to the one before.
    fn write(&mut self, done: Done, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let back_ns = self.last_start_ns.saturating_sub(done.start_ns);
        if back_ns > sink.summary.resolution_ns {
            sink.summary.out_of_order += 1;
        }
        self.last_start_ns = self.last_start_ns.max(done.start_ns);
        sink.summary.episodes += 1;
        (sink.push)(&Episode {
            idler: &self.name,
            start_ns: self.last_start_ns,
            idle_ns: done.idle_ns,
            window_ns: done.window_ns,
            halted: done.halted,
            wake: done.wake,
            wake_latency_ns: done.wake_latency_ns,
            ready: None,
            alone_ns: None,
        })
    }
}
