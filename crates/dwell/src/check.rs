//! The self-check that precedes every prediction from a recording.

use anyhow::bail;
use dwell_replay::RecordingSource;
use dwell_replay::check::{CONTRADICTS, SelfCheck, self_check};

/// Whether to give advice although the self-check fails.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Give advice even if the self-check differs by more than 20 %
    ///
    /// The self-check replays the setting in force and compares polls, successful polls, halts and polled time with
    /// those recorded. Where they differ, predictions for other settings are off by as much or more.
    #[arg(long)]
    despite_self_check: bool,
}

impl CheckArgs {
    /// Refuses to give advice on a recording that fails the self-check.
    pub(crate) fn refuse(self, file: &str, check: &SelfCheck) -> anyhow::Result<()> {
        if check.contradicts() && !self.despite_self_check {
            let limit = 100.0 * CONTRADICTS;
            bail!(
                "{file}: cannot advise: {check}. Predictions from this recording would be off by more than {limit:.0} %; \
                 --despite-self-check shows them all the same"
            );
        }
        Ok(())
    }
}

/// Compares a recording with itself; the source returned knows the length of a poll that is ended at once, where the
/// recording shows it.
pub(crate) fn check(source: RecordingSource) -> anyhow::Result<(RecordingSource, SelfCheck)> {
    let check = self_check(&source)?;
    Ok((source.with_poll_pass(check.poll_pass()), check))
}
