//! Sources with which the event loop is measured.

use dwell_eventloop::{Source, SourceId, Wait};
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
