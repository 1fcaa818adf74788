//! The thread of a running QEMU, whose settings take turns.

use super::{CPU_PER_REQUEST, CPU_SHARE, REQUESTS_PER_S, SLEEPS_PER_REQUEST, SLEEPS_PER_S, values_of};
use crate::command::iothread::turn::{Reading, Turn};
use crate::settings::pairs;
use anyhow::{Context, bail};
use dwell_knobs::iothread::{self, IoThread};
use dwell_knobs::qmp::Monitor;
use dwell_machine::threads::Thread;
use dwell_policy::param::Setting;
use dwell_stats::{Block, Trial};
use std::time::Duration;

/// A running QEMU whose I/O thread is being set.
pub(super) struct Live {
    pub(super) monitor: Monitor,
    pub(super) before: IoThread,
    /// The values that were set last.
    pub(super) now: IoThread,
    pub(super) observed: Thread,
    pub(super) restored: bool,
}

impl Live {
    pub(super) fn set(&mut self, values: &[(String, i64)]) -> anyhow::Result<()> {
        self.nobody_else()?;
        let plan = iothread::plan(&mut self.monitor, &self.now, values)?;
        let applied = iothread::apply(&mut self.monitor, &plan);
        if applied.is_ok() {
            for change in &plan.changes {
                self.now.properties.insert(change.property.clone(), change.to);
            }
        }
        Ok(applied?)
    }

    /// Whether the thread still has the values that were set last.
    fn nobody_else(&mut self) -> anyhow::Result<()> {
        let there = iothread::find(&mut self.monitor, &self.now.id)?;
        for (name, value) in &self.now.properties {
            let found = there.properties.get(name);
            if found != Some(value) {
                bail!(
                    "{name} of `{}` was changed outside dwell to {}; it is left alone",
                    self.now.id,
                    found.map_or("nothing".to_owned(), ToString::to_string)
                );
            }
        }
        Ok(())
    }

    pub(super) fn restore(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.restored, true) {
            return Ok(());
        }
        let values: Vec<(String, i64)> = self.before.properties.clone().into_iter().collect();
        let restored = self.set(&values);
        restored.with_context(|| {
            format!("cannot restore iothread `{}` ({})", self.before.id, pairs(self.before.properties.iter()))
        })
    }

    /// Requests served so far by all block devices.
    pub(super) fn requests(&mut self) -> anyhow::Result<u64> {
        Ok(iothread::requests(&mut self.monitor, None)?)
    }

    fn read(&mut self) -> anyhow::Result<Reading> {
        let requests = self.requests()?;
        Reading::of(self.observed, requests)
    }

    pub(super) fn turn(
        &mut self,
        trial: &Trial<'_, Setting>,
        settle: Duration,
        length: Duration,
    ) -> anyhow::Result<Block> {
        self.set(&values_of(trial.setting))?;
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

/// Also where the program panics.
impl Drop for Live {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            crate::output::note(&format!("dwell: {error:#}"));
        }
    }
}
