//! A machine whose time and strangers are made up.

use super::{Disturbance, Surroundings};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// A machine without a clock of its own; what is cloned is the same machine.
#[derive(Clone, Default)]
pub(crate) struct Machine {
    now: Rc<Cell<Duration>>,
    /// What others do in the next blocks; when it is used up, `always`.
    next: Rc<RefCell<VecDeque<f64>>>,
    always: Option<f64>,
    pub(crate) waited: Rc<Cell<u32>>,
}

impl Machine {
    /// Others take this share of a CPU in the first blocks, and nothing after.
    pub(crate) fn disturbed(first: impl IntoIterator<Item = f64>) -> Machine {
        Machine {
            next: Rc::new(RefCell::new(first.into_iter().collect())),
            always: Some(0.0),
            ..Machine::default()
        }
    }

    /// Others always take this share; `None`: that is not known.
    pub(crate) fn always(foreign: Option<f64>) -> Machine {
        Machine { always: foreign, ..Machine::default() }
    }

    /// Time passes.
    pub(crate) fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }
}

impl Surroundings for Machine {
    fn now(&mut self) -> Duration {
        self.now.get()
    }

    fn begin(&mut self) {}

    fn end(&mut self) -> Option<Disturbance> {
        let foreign = self.next.borrow_mut().pop_front().or(self.always)?;
        Some(Disturbance { foreign, ..Disturbance::default() })
    }

    fn wait_quiet(&mut self, _limit: f64, _most: Duration) -> bool {
        self.waited.set(self.waited.get() + 1);
        true
    }

    fn source(&self) -> String {
        "a fake".to_owned()
    }
}
