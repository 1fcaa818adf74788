//! The ends of leases: originals that are restored, and settings that stay.

use super::Control;
use super::notes::Notes;
use super::socket::{self, Ask};
use anyhow::{Context, ensure};
use dwell_knobs::change::{self, Reverted};
use dwell_knobs::journal::{self, JournalError, Readable};
use dwell_knobs::lease::{self, Holder, Lease, Subject};
use dwell_knobs::value::shown;
use dwell_machine::Writable;
use std::time::Duration;

/// How long a controller that was asked to end may take.
const LONGEST_END: Duration = Duration::from_secs(60);

/// What there was to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// A controller, which has ended.
    Running,
    /// No controller.
    Nothing,
}

/// Ends the running controller and waits until it has ended. Restores the originals of what it did not restore, or, if none
/// runs, of what one has left that was killed. A setting that is to stay is kept where its controller ran until now, and
/// with `unless_kept`.
///
/// # Errors
/// The controller does not end, or something could not be restored.
pub fn stop(
    machine: &dyn Writable,
    state_directory: &str,
    unless_kept: bool,
    notes: Notes<'_>,
) -> anyhow::Result<Stopped> {
    if !machine.exists(state_directory) {
        return Ok(Stopped::Nothing);
    }
    let (holder, stopped) = match Holder::begin(machine, state_directory) {
        Ok(holder) => (holder, Stopped::Nothing),
        Err(JournalError::Controlled { path }) => {
            socket::ask(&machine.path(state_directory), Ask::Stop, socket::LONG).with_context(|| {
                format!(
                    "cannot end the `dwell control` or `dwell iothread bench` that has locked {path}; end the process that \
                     `fuser {path}` prints with SIGTERM and try again"
                )
            })?;
            let holder = Holder::begin_within(machine, state_directory, LONGEST_END);
            (holder.context("it was asked to end, and has not ended yet")?, Stopped::Running)
        }
        Err(error) => return Err(error.into()),
    };
    let is_kept = unless_kept || stopped == Stopped::Running;
    end_left_open(machine, &holder, notes, |change| !(is_kept && change.left))?;
    Ok(stopped)
}

/// Ends the leases that controllers have left open, as many as can be ended.
pub(super) fn end_left_open(
    machine: &dyn Writable,
    holder: &Holder,
    notes: Notes<'_>,
    which: impl Fn(&journal::Change) -> bool,
) -> anyhow::Result<()> {
    let Readable { changes, unreadable } = journal::read_readable(machine, holder.state_directory())?;
    let mut failed = Ok(());
    for subject in lease::open(&changes).filter(|change| which(change)).filter_map(Subject::of) {
        let ended = lease::end_left_open(machine, holder, &subject).map_err(Into::into);
        let told = ended.and_then(|reverted| reverted.map_or(Ok(()), |it| told_of(notes, &subject, "", &it)));
        failed = failed.and(told);
    }
    for error in unreadable {
        match error {
            JournalError::Stray { .. } => notes.warn(&format!("dwell: {error}")),
            error => failed = failed.and(Err(error.into())),
        }
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
    let (mut left_alone, mut failed) = (false, String::new());
    for (place, original, outcome) in &reverted.places {
        if let change::Outcome::Failed { why } = outcome {
            failed = format!(": {why}");
        }
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
        "{subject}: {why}some originals could not be restored{failed}; `dwell revert {}` tries again",
        reverted.id
    );
    let gone = reverted.places.iter().any(|(_, _, outcome)| matches!(outcome, change::Outcome::Gone));
    let outcome = match (subject, gone) {
        (Subject::Iothread(_), true) => {
            "its QEMU has ended or was started anew, and there is nothing to restore"
        }
        (Subject::Layer(_), true) => "a reboot has ended what was set, and there is nothing to restore",
        _ if left_alone => "the other originals are in force again",
        _ => "the originals are in force again",
    };
    notes.say(subject, &format!("{why}{outcome}"));
    Ok(())
}

impl Control<'_> {
    /// Restores the originals, except values written by another program.
    pub(super) fn end(&self, leases: &[&Lease]) -> anyhow::Result<()> {
        let told = leases.iter().zip(lease::end(self.machine, leases)).map(|(lease, ended)| {
            let subject = lease.subject();
            told_of(self.notes, subject, "", &ended.with_context(|| subject.to_string())?)
        });
        told.fold(Ok(()), anyhow::Result::and)
    }

    /// The setting stays, and the lease with it.
    pub(super) fn leave(&self, lease: &Lease) -> anyhow::Result<()> {
        let (id, subject) = (lease.id(), lease.subject());
        let left = lease.leave(self.machine).with_context(|| {
            format!("{subject}: the setting stays, and the next start restores the originals, as `dwell control stop` does")
        })?;
        if !left {
            // Nothing in the journal leads back from it.
            return self.end(&[lease]);
        }
        let what = format!(
            "the setting stays, and the next start adopts it; `dwell revert {id}` restores the originals"
        );
        self.notes.say(subject, &what);
        Ok(())
    }
}
