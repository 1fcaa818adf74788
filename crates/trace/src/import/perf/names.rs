//! The names of tasks, as the text shows them.

use crate::event::Event;
use crate::pairing::Names;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Names of the tasks that the text has shown so far; shared by the reader, which learns them, and a pairing.
#[derive(Clone, Debug, Default)]
pub struct TaskNames(Arc<Mutex<HashMap<i32, String>>>);

impl TaskNames {
    /// Thread `tid` is called `comm` now.
    pub(super) fn learn(&self, tid: i32, comm: &str) {
        // What perf writes where it does not know the name: `:1234`.
        if comm.is_empty() || comm.strip_prefix(':').is_some_and(|id| id.parse::<i32>().is_ok()) {
            return;
        }
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get_mut(&tid) {
            Some(known) if known == comm => {}
            Some(known) => comm.clone_into(known),
            None => {
                names.insert(tid, comm.to_owned());
            }
        }
    }

    fn of(&self, tid: i32) -> Option<String> {
        if tid == Event::UNKNOWN_ID {
            return None;
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&tid).cloned()
    }
}

impl Names for TaskNames {
    /// A process is called what its first thread is, which has its number.
    fn process(&mut self, pid: i32) -> Option<String> {
        self.of(pid)
    }

    fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
        self.of(tid)
    }
}
