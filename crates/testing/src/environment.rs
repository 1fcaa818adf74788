//! An environment whose time and foreign load are made up, for tests of experiments.

use dwell_stats::{Environment, ForeignLoad};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// An environment whose time passes only by [`pass`](FakeEnvironment::pass). Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct FakeEnvironment {
    now: Rc<Cell<Duration>>,
    /// Foreign load of the next blocks; `always` when none is left.
    next: Rc<RefCell<VecDeque<f64>>>,
    always: Option<f64>,
    waits: Rc<Cell<u32>>,
}

impl FakeEnvironment {
    /// Foreign load of the first blocks, as shares of one CPU; none after them.
    pub fn disturbed(first: impl IntoIterator<Item = f64>) -> FakeEnvironment {
        FakeEnvironment {
            next: Rc::new(RefCell::new(first.into_iter().collect())),
            always: Some(0.0),
            ..FakeEnvironment::default()
        }
    }

    /// The same foreign load in every block, as a share of one CPU; `None`: not known.
    pub fn always(foreign: Option<f64>) -> FakeEnvironment {
        FakeEnvironment { always: foreign, ..FakeEnvironment::default() }
    }

    pub fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    /// How often a campaign waited for foreign load to end.
    pub fn waits(&self) -> u32 {
        self.waits.get()
    }
}

impl Environment for FakeEnvironment {
    fn now(&mut self) -> Duration {
        self.now.get()
    }

    fn begin(&mut self) {}

    fn end(&mut self) -> Option<ForeignLoad> {
        let foreign = self.next.borrow_mut().pop_front().or(self.always)?;
        Some(ForeignLoad { foreign, ..ForeignLoad::default() })
    }

    fn wait_quiet(&mut self, _limit: f64, _longest: Duration) -> bool {
        self.waits.set(self.waits.get() + 1);
        true
    }

    fn source(&self) -> String {
        "a fake".to_owned()
    }
}
