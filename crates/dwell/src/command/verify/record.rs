//! `dwell verify --record`: what idles under each setting, and what woke it.

use crate::overwrite::ForceArg;
use crate::progress;
use anyhow::bail;
use dwell_capture::{GuestSource, Recorder, Target, Until};
use dwell_policy::{Layer, Owner};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A recording of each side.
#[derive(clap::Args)]
pub(super) struct RecordArgs {
    /// Also record with both settings
    ///
    /// Under the values from before and from after, each for an eighth of --budget, with what woke tasks or vCPUs: `dwell
    /// tune BEFORE --also AFTER` predicts other settings from both recordings.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"])]
    record: Option<Vec<PathBuf>>,
    #[command(flatten)]
    force: ForceArg,
}

/// What is recorded to measure a layer.
pub(super) fn target(owner: Owner) -> Target {
    match owner {
        Owner::Layer(Layer::Guest | Layer::Driver) => {
            Target::Guest { source: GuestSource::Auto, causes: false }
        }
        _ => Target::Host { pid: None, exits: false, contention: false, causes: false },
    }
}

impl RecordArgs {
    /// Refuses files that are there already.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.record.iter().flatten().try_for_each(|file| self.force.may_write(file, []))
    }

    /// Records into one file after the other, with everything that a recording can have.
    pub(super) fn record(
        &self,
        target: &Target,
        budget: Duration,
        stop: &AtomicBool,
        mut before_each: impl FnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let target = match target.clone() {
            Target::Guest { source, .. } => Target::Guest { source, causes: true },
            Target::Host { pid, exits, .. } => Target::Host { pid, exits, contention: true, causes: true },
            other @ Target::Thread { .. } => other,
        };
        let duration = budget / 8;
        for (side, file) in self.record.iter().flatten().enumerate() {
            before_each(side)?;
            let until = Until { duration: Some(duration), stop };
            let recorder = Recorder::open(target.clone(), Some(dwell_cli::command_line("dwell")))?;
            let summary = recorder.to_file(file, &until, &mut progress::Recording::new(until.duration));
            if summary?.contents.episodes == 0 {
                bail!("cannot write {}: nothing idled in {} ms", file.display(), duration.as_millis());
            }
        }
        Ok(())
    }

    /// Where nothing can be recorded.
    pub(super) fn refuse(&self, why: &str) -> anyhow::Result<()> {
        match self.record {
            Some(_) => bail!("cannot record the sides of the change: {why}"),
            None => Ok(()),
        }
    }

    /// What to do with the recordings.
    pub(super) fn note(&self) -> Option<String> {
        let [before, after] = &self.record.as_ref()?[..] else { return None };
        Some(format!(
            "recorded under both settings; next: dwell tune {} --also {}",
            before.display(),
            after.display()
        ))
    }
}
