//! The ends of leases: originals that are restored, and settings that stay.

use super::notes::Notes;
use super::socket::{self, Ask};
use super::{Control, directory};
use anyhow::{Context, ensure};
use dwell_knobs::change::{self, Reverted};
use dwell_knobs::journal;
use dwell_knobs::lease::{self, Lease, Subject};
use dwell_knobs::value::shown;
use dwell_machine::Writable;

/// Restores the originals after a controller was killed, and after one that has left its setting, too, unless
/// that is to be kept.
///
/// # Errors
/// A controller runs, or something could not be restored.
pub fn restore(
    machine: &dyn Writable,
    state_directory: &str,
    unless_kept: bool,
    notes: Notes<'_>,
) -> anyhow::Result<()> {
    if machine.exists(state_directory) {
        ensure!(
            socket::ask(&directory(machine, state_directory), Ask::Status).is_err(),
            "a controller runs and holds its lease; end it: dwell control stop"
        );
        end_left_open(machine, state_directory, notes, |change| !(unless_kept && change.left))?;
    }
    Ok(())
}

/// Ends the leases that controllers have left open, as many as can be ended.
pub(super) fn end_left_open(
    machine: &dyn Writable,
    state_directory: &str,
    notes: Notes<'_>,
    which: impl Fn(&journal::Change) -> bool,
) -> anyhow::Result<()> {
    let changes = journal::read_all(machine, state_directory)?;
    let mut failed = Ok(());
    for subject in lease::open(&changes).filter(|change| which(change)).filter_map(Subject::of) {
        let ended = lease::end_left_open(machine, state_directory, &subject).map_err(Into::into);
        let told = ended.and_then(|reverted| reverted.map_or(Ok(()), |it| told_of(notes, &subject, "", &it)));
        failed = failed.and(told);
    }
    failed
}

/// Prints what the end of a lease has restored.
pub(super) fn told_of(
    notes: Notes<'_>,
    subject: &Subject,
    why: &str,
    reverted: &Reverted,
) -> anyhow::Result<()> {
    let mut left_alone = false;
    for (place, original, outcome) in &reverted.places {
        if let change::Outcome::LeftAlone { found, .. } = outcome {
            left_alone = true;
            notes.say(
                subject,
                &format!(
                    "{place} is {}, which another program has set, and is left alone; the original was {}",
                    shown(found.as_deref()),
                    shown(original.as_deref())
                ),
            );
        }
    }
    ensure!(
        reverted.complete,
        "{subject}: {why}some originals could not be restored; `dwell revert {}` tries again",
        reverted.id
    );
    let gone = reverted.places.iter().any(|(_, _, outcome)| matches!(outcome, change::Outcome::Gone));
    let outcome = match (subject, gone) {
        (Subject::Iothread(_), true) => {
            "its QEMU has ended or was started anew, and there is nothing to restore"
        }
        _ if left_alone => "the other originals are in force again",
        _ => "the originals are in force again",
    };
    notes.say(subject, &format!("{why}{outcome}"));
    Ok(())
}

impl Control<'_> {
    /// Restores the originals, except values written by another program.
    pub(super) fn end(&self, subject: &Subject, lease: &Lease) -> anyhow::Result<()> {
        let reverted = lease::end(self.machine, self.state_directory, lease.id())?;
        told_of(self.notes, subject, "", &reverted)
    }

    /// The setting stays, and the lease with it.
    pub(super) fn leave(&self, subject: &Subject, lease: &Lease) -> anyhow::Result<()> {
        let id = lease.id();
        let left = lease.leave(self.machine, self.state_directory).with_context(|| {
            format!("{subject}: the setting stays, and the next start restores the originals, as `dwell revert {id}` does")
        })?;
        if left {
            let what = format!(
                "the setting stays, and the next start adopts it; `dwell revert {id}` restores the originals"
            );
            self.notes.say(subject, &what);
        }
        Ok(())
    }
}
