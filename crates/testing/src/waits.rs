//! Sources and clocks with which waits and the event loop are measured.

use dwell_eventloop::{Source, SourceId, Wait};
use dwell_idle::{Clock, Monotonic, Nanos};
use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// As a virtqueue: an index that has not changed.
#[derive(Debug, Default)]
pub struct Word(AtomicU16);

impl Source for Word {
    fn look(&mut self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
    fn run(&mut self, _: u32) -> bool {
        false
    }
}

/// Has an event after so many looks, again and again.
#[derive(Debug)]
pub struct Ends {
    after: u64,
    looks: u64,
}

impl Ends {
    /// An event after so many looks.
    pub const fn after(looks: u64) -> Ends {
        Ends { after: looks, looks: 0 }
    }
}

impl Source for Ends {
    fn look(&mut self) -> bool {
        self.looks += 1;
        self.looks > self.after
    }
    fn run(&mut self, _: u32) -> bool {
        self.looks = 0;
        false
    }
}

/// A way to sleep that is never asked, since the policy polls for ever.
#[derive(Debug)]
pub struct Nothing;

impl Wait for Nothing {
    fn wait(&mut self, _: Option<Duration>, _: impl FnMut(SourceId)) -> io::Result<()> {
        Ok(())
    }
}

/// A clock of which each reading is so much later than the last one \[ns\], so that no wait looks preempted.
#[derive(Debug)]
pub struct Steps {
    now: Cell<u64>,
    step: u64,
}

impl Steps {
    /// So much later each time \[ns\].
    pub const fn of(step: u64) -> Steps {
        Steps { now: Cell::new(0), step }
    }
}

impl Clock for Steps {
    fn now(&self) -> Nanos {
        self.now.set(self.now.get() + self.step);
        Nanos(self.now.get())
    }
}

/// The same at the cost of the real clock: without it, a benchmark that is interrupted would go on with waits
/// that stand down, which are quicker.
#[derive(Debug)]
pub struct RealSteps(Steps);

impl RealSteps {
    /// So much later each time \[ns\].
    pub const fn of(step: u64) -> RealSteps {
        RealSteps(Steps::of(step))
    }
}

impl Clock for RealSteps {
    fn now(&self) -> Nanos {
        black_box(Monotonic.now());
        self.0.now()
    }
}
