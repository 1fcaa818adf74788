//! vCPUs seen from their host: `kvm:kvm_vcpu_wakeup` and `kvm:kvm_halt_poll_ns`.
//!
//! One episode a wakeup. `ns` is from the begin of the halt to the vCPU running on, so `idle_ns` includes the wake-up
//! latency of a halt. An idler is a thread, called by the first name that it had and its id, for two virtual machines
//! may both have a vCPU 0.

use super::fields::Point;
use super::line::Event;
use super::stream::{Done, Sink, Stream};
use dwell_recording::WriteError;
use std::collections::{BTreeMap, HashMap};

#[derive(Default)]
pub(super) struct Host {
    threads: HashMap<i64, Thread>,
    /// The vCPU numbers that were told, by idler.
    vcpus: BTreeMap<String, u32>,
}

struct Thread {
    stream: Stream,
    /// The window of the halt whose wakeup comes next.
    own: Option<u32>,
}

impl Host {
    pub(super) fn event(
        &mut self,
        event: &Event<'_>,
        point: Point<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        let thread = self.threads.entry(event.tid).or_insert_with(|| Thread {
            stream: Stream::new(format!("{}/{}", event.comm, event.tid)),
            own: None,
        });
        match point {
            Point::HostWindow { vcpu, new, old } => {
                self.vcpus.entry(thread.stream.name().to_owned()).or_insert(vcpu);
                thread.own = Some(old);
                thread.stream.window(new, old, sink)
            }
            Point::Wakeup { ns, waited } => {
                // A trace may begin within a halt that is older than its clock.
                let start_ns = event.time_ns.saturating_sub(ns);
                let done = Done { halted: Some(waited), ..Done::new(start_ns, ns) };
                thread.stream.push(done, thread.own.take(), sink)
            }
            _ => Ok(()),
        }
    }

    /// Which CPU lost events does not say which vCPUs did.
    pub(super) fn lost(&mut self, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        for thread in self.threads.values_mut() {
            thread.own = None;
            thread.stream.forget(sink)?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let mut threads: Vec<_> = self.threads.iter_mut().collect();
        threads.sort_by_key(|(tid, _)| **tid);
        for (_, thread) in threads {
            sink.summary.incomplete_at_end += u64::from(thread.own.is_some());
            thread.stream.forget(sink)?;
        }
        Ok(())
    }

    pub(super) fn vcpus(&self) -> &BTreeMap<String, u32> {
        &self.vcpus
    }
}
