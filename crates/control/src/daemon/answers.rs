//! What is answered to those who ask, over the socket and over HTTP.

use super::Control;
use super::config::Mode;
use super::layered::Layered;
use super::metrics::{OfLayer, Snapshot};
use super::qemus::QemuState;
use super::words;
use dwell_knobs::lease::Lease;
use dwell_replay::Values;
use serde_json::{Value, json};
use std::time::Duration;

impl Control<'_> {
    pub(super) fn snapshot(&self) -> Snapshot {
        let now = self.now_ns();
        let of = |layered: &Layered| {
            let status = layered.controller.status(now);
            let state = match (&layered.given_up, self.config.mode) {
                (Some(_), _) => "given_up",
                (None, _) if status.untrusted.is_some() => "untrusted",
                (None, Mode::Advise) => "advises",
                (None, Mode::Active) if status.rests => "rests",
                (None, Mode::Active) => "controls",
            };
            let present = layered.given_up.is_none().then_some(status.present);
            let (lost, tally) = (layered.source.lost(), layered.tally.clone());
            OfLayer { subject: layered.subject.clone(), state, present, lost, tally }
        };
        Snapshot { layers: self.layers.iter().map(of).collect() }
    }

    pub(super) fn status(&self) -> Value {
        let (now, snapshot) = (self.now_ns(), self.snapshot());
        let of = |(layered, OfLayer { state, present, lost, tally, .. }): (&Layered, &OfLayer)| {
            let seen = layered.controller.status(now);
            let untrusted =
                seen.untrusted.map(|lost| words::untrusted(&lost, layered.unseen.as_deref(), now));
            let mut status = json!({
                "layer": layered.subject.layer().name(),
                "qmp": layered.subject.iothread().map(|target| &target.socket),
                "iothread": layered.subject.iothread().map(|target| &target.id),
                "state": state,
                "why": layered.given_up.clone().or(untrusted),
                "causes_failed": layered.comparisons.failed,
                "change": layered.lease.as_ref().map(Lease::id),
                "originals": Values::from(&layered.controller.originals()),
                "present": present.as_ref().map(Values::from),
                "owed_ns": seen.owed_ns,
                "wakeup_latency_ns": seen.latency_ns,
                "cpu_share": tally.cpu.as_secs_f64() / Duration::from_nanos(now).as_secs_f64(),
                "lost": lost,
                "last_ago_s": tally.last_ns.map(|ns| Duration::from_nanos(now.saturating_sub(ns)).as_secs_f64()),
            });
            if let (Value::Object(status), Value::Object(did)) = (&mut status, json!(tally)) {
                status.extend(did);
            }
            status
        };
        json!({
            "pid": std::process::id(),
            "for_s": Duration::from_nanos(now).as_secs_f64(),
            "halt_cost_ns": self.config.halt_cost.get(),
            "metrics": self.metrics.as_ref().map(|server| server.address.to_string()),
            "waiting_for": self.qemus.iter().filter(|qemu| !matches!(qemu.state, QemuState::Here)).map(|qemu| &qemu.socket).collect::<Vec<_>>(),
            "layers": self.layers.iter().zip(&snapshot.layers).map(of).collect::<Vec<_>>(),
        })
    }

    /// Takes up what was given up, from the values that are there now.
    pub(super) fn resume(&mut self) -> Value {
        let (mut resumed, mut failed) = (vec![], vec![]);
        for at in 0..self.layers.len() {
            let subject = self.layers[at].subject.clone();
            let (given_up, now_ns) = (self.layers[at].given_up.is_some(), self.now_ns());
            let controller = &mut self.layers[at].controller;
            if !given_up && controller.status(now_ns).untrusted.is_none() {
                continue;
            }
            controller.start(now_ns);
            match if given_up { self.renew(at) } else { Ok(()) } {
                Ok(()) => {
                    let originals = self.layers[at].controller.originals();
                    self.notes.say(&subject, &format!("resumed; the originals are {originals}"));
                    resumed.push(subject.to_string());
                }
                Err(error) => failed.push(format!("{subject}: {error:#}")),
            }
        }
        self.watch_writes();
        match failed.is_empty() {
            true => json!({ "resumed": resumed }),
            false => {
                let others = resumed.iter().map(|subject| format!("{subject}: resumed"));
                json!({ "error": failed.into_iter().chain(others).collect::<Vec<_>>().join("; ") })
            }
        }
    }
}
