//! What the CPU time goes for, as `dwell why` reports it, beside what idles.

use super::feed::Target;
use crate::command::why::{Of, show, watched};
use dwell_capture::Until;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long each bill is over.
const SPAN: Duration = Duration::from_secs(10);

/// The lines of the last bills.
#[derive(Clone, Default)]
pub(crate) struct Bills(Arc<Mutex<Vec<String>>>);

impl Bills {
    /// Those of a target, again and again until the program ends, or until they cannot be had.
    pub(crate) fn start(of: Of) -> Bills {
        let bills = Bills(Arc::new(Mutex::new(vec!["why: the first bill takes ten seconds".to_owned()])));
        let shown = bills.clone();
        std::thread::spawn(move || while shown.renew(&of, SPAN) {});
        bills
    }

    /// Watches for this long; returns whether there are bills.
    pub(crate) fn renew(&self, of: &Of, span: Duration) -> bool {
        let stop = AtomicBool::new(false);
        let report = watched(of, &Until { duration: Some(span), stop: &stop });
        let is_there = report.is_ok();
        let lines =
            report.map_or_else(|error| vec![format!("why: {error:#}")], |report| show::brief(&report));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = lines;
        is_there
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is watched for the bills: the CPUs of this machine, a process, or all VMs.
pub(crate) fn subject(target: Target, pid: Option<u32>) -> Of {
    let cpus = target == Target::Guest;
    Of { vm: pid.map(|pid| pid.to_string()), all: pid.is_none() && !cpus, cpus }
}
