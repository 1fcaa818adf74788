//! The thread of a running QEMU, whose settings take turns.

use super::{CPU_PER_REQUEST, CPU_SHARE, REQUESTS_PER_S, SLEEPS_PER_REQUEST, SLEEPS_PER_S};
use anyhow::{Context, bail};
use dwell_control::daemon::{Reading, Turn};
use dwell_knobs::change::Outcome;
use dwell_knobs::iothread;
use dwell_knobs::lease::{self, Lease};
use dwell_machine::Sysroot;
use dwell_machine::threads::Thread;
use dwell_policy::param::Setting;
use dwell_stats::{Block, Trial};
use std::time::Duration;

/// A running QEMU whose I/O thread is being set.
pub(super) struct Live<'a> {
    pub(super) machine: &'a Sysroot,
    pub(super) lease: Lease,
    pub(super) observed: Thread,
}

impl Live<'_> {
    pub(super) fn set(&mut self, setting: &Setting) -> anyhow::Result<()> {
        Ok(self.lease.set(self.machine, setting)?)
    }

    /// Ends the lease: the present values are in force again.
    pub(super) fn restore(&self) -> anyhow::Result<()> {
        let id = self.lease.id();
        let ended = lease::end(self.machine, &[&self.lease]).pop();
        let ended = ended.transpose().with_context(|| format!("cannot restore all values of change {id}"))?;
        for (place, original, outcome) in ended.into_iter().flat_map(|reverted| reverted.places) {
            let original = original.unwrap_or_default();
            match outcome {
                Outcome::Failed { why } => {
                    bail!("cannot set {place} to {original} again: {why}; `dwell control stop` tries again")
                }
                Outcome::LeftAlone { found, .. } => bail!(
                    "{place} was changed outside dwell to {}; it is left alone, and was {original}",
                    found.unwrap_or_default()
                ),
                _ => {}
            }
        }
        Ok(())
    }

    /// Requests served so far by all block devices.
    pub(super) fn requests(&self) -> anyhow::Result<u64> {
        let target = self.lease.subject().iothread().context("not of an I/O thread")?;
        Ok(iothread::requests(&mut iothread::connect(self.machine, &target.socket)?, None)?)
    }

    fn read(&self) -> anyhow::Result<Reading> {
        Reading::of(self.observed, Some(self.requests()?))
    }

    pub(super) fn turn(
        &mut self,
        trial: &Trial<'_, Setting>,
        settle: Duration,
        length: Duration,
    ) -> anyhow::Result<Block> {
        self.set(trial.setting)?;
        std::thread::sleep(settle);
        let begin = self.read()?;
        std::thread::sleep(length);
        let end = self.read()?;
        let Turn { seconds, cpu_ns, sleeps, requests } = end.since(&begin);
        let block = Block::default()
            .figure(CPU_SHARE, cpu_ns / 1e9 / seconds)
            .figure(SLEEPS_PER_S, sleeps / seconds)
            .figure(REQUESTS_PER_S, requests / seconds);
        // Without requests this is not finite, which means not known.
        Ok(block.figure(CPU_PER_REQUEST, cpu_ns / requests).figure(SLEEPS_PER_REQUEST, sleeps / requests))
    }
}
