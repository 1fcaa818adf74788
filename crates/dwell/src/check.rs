//! The self-check in front of everything that predicts from a recording.

use anyhow::bail;
use dwell_replay::RecordingSource;
use dwell_replay::check::{CONTRADICTS, SelfCheck, Verdict, self_check};

/// Whether to believe a recording that contradicts itself.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Advise even if replaying the setting in force differs by more than 20 % from what was recorded
    ///
    /// The replay is compared with the polls, successful polls, halts and polled time of the recording. Where they differ,
    /// predictions of other settings are wrong as well, by as much or more.
    #[arg(long)]
    despite_self_check: bool,
}

impl CheckArgs {
    /// Refuses to advise on a recording that contradicts itself.
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

/// The result as a note, if anything was compared.
pub(crate) fn note(check: &SelfCheck) -> Option<String> {
    let checked = check.checked()?;
    Some(match checked.verdict {
        Verdict::Agrees => format!("self-check: {checked}"),
        Verdict::Differs => format!("self-check: {checked}. Predictions may be off by as much"),
        Verdict::Contradicts => format!("self-check: {checked}. Predictions from this recording are wrong"),
    })
}
