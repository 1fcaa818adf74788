//! The journal of original values: one file per change, on the disk before the first write.
//!
//! # The format
//! The state directory, `/var/lib/dwell`, holds `lock` and the directory `changes`. There each change has one
//! file, named after its number: `000001.journal`. Its first line is
//!
//! ```text
//! dwell journal 1 bytes=2345 crc32=89abcdef
//! ```
//!
//! with the [`FORMAT`], and length and CRC-32 of the rest: a [`Change`] as JSON, which people can read. A
//! file is replaced whole (written to `….dwell-new`, synced, renamed, the directory synced), so that a crash
//! leaves the old file or the new one. A file that does not agree with its first line was damaged by
//! something else, and is refused.
//!
//! # The states of a change
//! | state | what it means | then |
//! |---|---|---|
//! | `unfinished` | originals are on the disk, any of the writes may have happened | `applied`, or `rolled_back` if one fails |
//! | `applied` | every write happened and was read back | `reverted` |
//! | `rolled_back`, `reverted` | everything is as it was | |
//!
//! A process that dies leaves `unfinished` or `applied`; both are reverted alike, from whichever of dwell's
//! values is in force. While a change is verified, `verifying` is true and the values from before may be in
//! force.
//!
//! # Limits
//! No file is longer than [`LONGEST`] bytes, which is what is read back at most: a change that would need
//! more is refused before its first write, with room left for what is added later. Of its verifications the
//! last few are kept. So that a change can be closed when the disk is full, `spare` holds as many bytes as a
//! change needs; it is removed when a write fails for lack of space, and the write is tried again.
//!
//! # Trust
//! `dwell revert` writes as root what the journal has. So the state directory and every directory above it must be such
//! that no other user can change them, and of what is read only that is accepted which dwell itself writes:
//! values of known parameters at their places, and files of dwell's own with texts that dwell generates.
//!
//! # Concurrency
//! A process that writes holds `lock` with flock(2); it is free again when the process ends, however it ends. Others wait
//! for it, but no longer than [`PATIENCE`]. `verify.lock` is held during a verification, which switches between the values
//! of a change and locks the journal only while it writes: no change is begun meanwhile. `control.lock` is held by a
//! controller as long as it lives ([`lease::Holder`](crate::lease::Holder)).
//!
//! # What cannot be read
//! A change is decoded and checked before it is written, and one that could not be read back is refused before its first
//! write. If something else damages a file nevertheless, no change is begun until it is moved away, but the others can be
//! [reverted](Journal::open_to_revert). Of leases that were closed the latest [`KEPT_LEASES`] are kept.

pub(crate) mod id;
mod own;

pub use id::Id;

use crate::iothread::Process;
use crate::place::Place;
use crate::plan::{Plan, Write};
use crate::verification::Verification;
use crate::whole_file;
use dwell_machine::{Lock, Writable};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::{Duration, Instant};

/// The format that this version writes and reads.
pub const FORMAT: u32 = 1;

/// The default directory of the journal.
pub const STATE_DIRECTORY: &str = "/var/lib/dwell";

/// The longest file of the journal \[bytes\].
#[allow(clippy::cast_possible_truncation)] // A mebibyte fits.
pub const LONGEST: usize = dwell_machine::LONGEST_FILE as usize;

/// How much a change may grow after its first write \[bytes\]: values that the kernel clamped, and verifications.
const GROWTH: usize = 64 << 10;

/// How long a lock is waited for.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How often a lock that is waited for is tried.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// The closed leases that are kept, the latest: a controller takes several a day.
pub const KEPT_LEASES: usize = 32;

/// The verifications that are kept of a change, the latest.
const KEPT_VERIFICATIONS: usize = 8;

/// One change of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Its number, from 1.
    pub id: Id,
    pub state: State,
    /// When it was begun \[s since 1970\].
    pub begun_at_unix_s: u64,
    /// When it got into its state \[s since 1970\].
    pub since_unix_s: u64,
    /// The boot during which it was applied; what is not kept ends with it.
    pub boot_id: Option<String>,
    /// Name and version of the program that made it.
    pub tool: String,
    /// Whether the values are kept over a reboot.
    pub kept: bool,
    /// Whether it is a [lease](crate::lease): one of its values after the other is in force.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lease: bool,
    /// Whether the controller of a lease has ended and left the values that are `applied`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// The QEMU whose I/O thread it is of: another process has its own values, and nothing of it is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// The places with their original and new values, in the order of the first write to each.
    pub entries: Vec<Entry>,
    /// The writes that revert it, if that takes more than the originals in reverse order.
    pub back: Vec<Write>,
    /// The plan that it applied.
    pub plan: Plan,
    /// Whether it was being verified, and values from before may be in force.
    pub verifying: bool,
    /// The results of its verifications.
    pub verifications: Vec<Verification>,
}

dwell_policy::named! {
    /// The state of a change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        /// Originals are on the disk; any of the writes may have happened.
        Unfinished = "unfinished",
        /// Every write happened and was read back.
        Applied = "applied",
        /// A write failed, and everything is as it was.
        RolledBack = "rolled back",
        Reverted = "reverted",
    }

    pub fn name
}

impl State {
    /// Whether anything of it may still be in force.
    pub const fn is_open(self) -> bool {
        matches!(self, State::Unfinished | State::Applied)
    }
}

/// One place of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The knob; `None` for a file of dwell that keeps values.
    pub knob: Option<String>,
    pub place: Place,
    /// The original value, as text; `None`: there was none.
    pub original: Option<String>,
    /// The value to set.
    pub applied: Option<String>,
    /// Values that dwell wrote in between.
    pub between: Vec<String>,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process is changing this machine.
    #[error(
        "another dwell is changing this machine (it has locked {path} for more than {} s); wait until it ends and try again",
        PATIENCE.as_secs()
    )]
    Locked { path: String },
    /// A controller runs, and has the leases.
    #[error(
        "a `dwell control` runs, or a `dwell iothread bench` (it has locked {path}); end it first, a controller by: dwell control stop"
    )]
    Controlled { path: String },
    /// A change is being verified.
    #[error("a `dwell verify` runs (it has locked {path}); wait until it ends and try again")]
    Verified { path: String },
    #[error("cannot {what} {path}{}", hint(.source))]
    Io { what: &'static str, path: String, source: io::Error },
    /// A file in the journal does not begin as one of its own.
    #[error("{path} is not a file of dwell's journal; move it elsewhere and try again")]
    Foreign { path: String },
    /// A file in the journal does not have the name of a change.
    #[error("{path} is not a file of dwell's journal; move it elsewhere and try again")]
    Stray { path: String },
    /// A newer or older version wrote it.
    #[error("{path} has format {found}, but this dwell supports only {FORMAT}; use the dwell that wrote it")]
    Format { path: String, found: String },
    /// Its content is not what was written.
    #[error(
        "{path} is damaged: {why}. Restore by hand the values under `original` that are readable, then \
         move it elsewhere and try again"
    )]
    Torn { path: String, why: String },
    /// It could be read, but dwell did not write it like this.
    #[error(
        "{path} was changed by another program: {why}. Restore by hand the values under \
         `original`, move it elsewhere and try again"
    )]
    Tampered {
        path: String,
        /// What dwell would not write.
        why: String,
    },
    /// A change could not be read back.
    #[error("change {id} cannot be put into the journal, as it could not be read back: {why}")]
    Unreadable { id: Id, why: String },
    /// A change is longer than what can be read back.
    #[error(
        "change {id} needs {bytes} bytes in the journal, more than the limit of {most}; shorten the texts of the plan \
         (`goal`, `advice`, `cpu_model`, `idlers`)"
    )]
    TooLong {
        id: Id,
        /// Its length \[bytes\].
        bytes: usize,
        /// The most that is allowed \[bytes\].
        most: usize,
    },
    /// The largest number is in use.
    #[error("{path} has the largest number that a change can have; move it elsewhere and try again")]
    NoNumber { path: String },
    /// There is no such change.
    #[error("there is no change {id}; `dwell status --history` lists the changes")]
    NoSuch {
        /// The number asked for.
        id: Id,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root, or give another directory with --state-dir",
        io::ErrorKind::StorageFull => "; free some space, or give another directory with --state-dir",
        io::ErrorKind::ReadOnlyFilesystem => {
            "; mount it for writing, or give another directory with --state-dir"
        }
        // A file of another kind or length than those that dwell writes.
        io::ErrorKind::InvalidData | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
            "; move it elsewhere, or give another directory with --state-dir"
        }
        // One that another user owns or can write to.
        io::ErrorKind::InvalidInput => {
            "; if it is your own, run `chown root` and `chmod go-w` on it; if not, move it elsewhere, or give another \
             directory with --state-dir"
        }
        _ => "",
    }
}

/// The error of what was attempted on a path.
fn failed(machine: &dyn Writable, what: &'static str, path: &str) -> impl FnOnce(io::Error) -> JournalError {
    let path = named(machine, path);
    move |source| JournalError::Io { what, path, source }
}

/// A path as it is named where `/` is another directory: what is to be moved is not this machine's.
fn named(machine: &dyn Writable, path: &str) -> String {
    machine.path(path).display().to_string()
}

dwell_policy::named! {
    /// What a lock is against.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Against {
        /// Other processes that write to the journal.
        Writers = "lock",
        /// Other verifications, and changes that are begun.
        Verifiers = "verify.lock",
        /// Other controllers.
        Controllers = "control.lock",
    }

    /// The name of its file.
    fn file
}

impl Against {
    fn taken(self, path: String) -> JournalError {
        match self {
            Against::Writers => JournalError::Locked { path },
            Against::Verifiers => JournalError::Verified { path },
            Against::Controllers => JournalError::Controlled { path },
        }
    }
}

/// Takes a lock of a state directory, which is made if it is not there, and waits for it no longer than `patience`.
///
/// # Errors
/// [`JournalError`]: it is taken, or the directory cannot be used.
pub(crate) fn lock(
    machine: &dyn Writable,
    state_directory: &str,
    against: Against,
    patience: Duration,
) -> Result<Lock, JournalError> {
    let directory = folder(state_directory);
    let safe = |directory: &str| {
        machine.check_directory(directory).map_err(failed(machine, "use the directory", directory))
    };
    safe(state_directory)?;
    safe(&directory)?;
    machine.make_directory(&directory).map_err(failed(machine, "make the directory", &directory))?;
    safe(&directory)?;
    let path = format!("{}/{}", state_directory.trim_end_matches('/'), against.file());
    let begun = Instant::now();
    loop {
        if let Some(lock) = machine.lock(&path).map_err(failed(machine, "lock", &path))? {
            return Ok(lock);
        }
        if begun.elapsed() >= patience {
            return Err(against.taken(named(machine, &path)));
        }
        std::thread::sleep(TRY_AGAIN.min(patience));
    }
}

/// The lock of a verification: as long as it is held no other one begins, and no change.
///
/// # Errors
/// [`JournalError::Verified`] if another process has it; the directory cannot be used.
pub fn lock_for_verifying(machine: &dyn Writable, state_directory: &str) -> Result<Lock, JournalError> {
    lock(machine, state_directory, Against::Verifiers, Duration::from_secs(1))
}

/// Refuses while a change of this state directory is being verified: the values are in force for a moment only.
///
/// # Errors
/// [`JournalError::Verified`].
pub fn is_not_verified(machine: &dyn Writable, state_directory: &str) -> Result<(), JournalError> {
    if !machine.exists(state_directory) {
        return Ok(());
    }
    lock(machine, state_directory, Against::Verifiers, Duration::ZERO).map(drop)
}

/// The journal of a machine, locked for writing.
pub struct Journal<'a> {
    machine: &'a dyn Writable,
    changes: Vec<Change>,
    /// What could not be read.
    unreadable: Vec<JournalError>,
    state_directory: String,
    _lock: Lock,
}

impl<'a> Journal<'a> {
    /// Locks and reads the journal; creates it if there is none.
    ///
    /// # Errors
    /// [`JournalError`] if another process has it for longer than [`PATIENCE`], or it is not as it was written.
    pub fn open(machine: &'a dyn Writable, state_directory: &str) -> Result<Journal<'a>, JournalError> {
        let mut journal = Journal::open_to_revert(machine, state_directory)?;
        match journal.unreadable.is_empty() {
            true => Ok(journal),
            false => Err(journal.unreadable.swap_remove(0)),
        }
    }

    /// As [`Journal::open`], but files that cannot be read do not keep the other changes from being reverted. No change can
    /// be begun then.
    ///
    /// # Errors
    /// [`JournalError`] if another process has it for longer than [`PATIENCE`], or its directory cannot be used.
    pub fn open_to_revert(
        machine: &'a dyn Writable,
        state_directory: &str,
    ) -> Result<Journal<'a>, JournalError> {
        Journal::open_within(machine, state_directory, PATIENCE)
    }

    /// As [`Journal::open_to_revert`], with another limit.
    ///
    /// # Errors
    /// As [`Journal::open_to_revert`].
    pub fn open_within(
        machine: &'a dyn Writable,
        state_directory: &str,
        patience: Duration,
    ) -> Result<Journal<'a>, JournalError> {
        let lock = lock(machine, state_directory, Against::Writers, patience)?;
        let directory = folder(state_directory);
        let state_directory = state_directory.trim_end_matches('/');
        // The directory itself has to outlast a power failure as well.
        for path in [state_directory, whole_file::parent(state_directory)] {
            machine.sync_directory(path).map_err(failed(machine, "sync", path))?;
        }
        // Leftovers of a process that was killed. Only the holder of the lock writes here.
        for directory in [state_directory, &directory] {
            let unfinished = |name: &&String| name.ends_with(whole_file::UNFINISHED);
            for name in names(machine, directory)?.iter().filter(unfinished) {
                let path = format!("{directory}/{name}");
                whole_file::take_away(machine, &path).map_err(failed(machine, "remove", &path))?;
            }
        }
        let Readable { changes, unreadable } = read_readable(machine, state_directory)?;
        let state_directory = state_directory.to_owned();
        Ok(Journal { machine, changes, unreadable, state_directory, _lock: lock })
    }

    /// What of it could not be read.
    pub fn unreadable(&self) -> &[JournalError] {
        &self.unreadable
    }

    pub fn state_directory(&self) -> &str {
        &self.state_directory
    }

    /// Refuses where a change is being verified: its values come and go.
    ///
    /// # Errors
    /// [`JournalError::Verified`].
    pub fn is_not_verified(&self) -> Result<(), JournalError> {
        is_not_verified(self.machine, &self.state_directory)
    }

    /// Every change, the oldest first.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// The change of this number.
    ///
    /// # Errors
    /// [`JournalError::NoSuch`].
    pub fn change(&self, id: Id) -> Result<&Change, JournalError> {
        self.changes.iter().find(|change| change.id == id).ok_or(JournalError::NoSuch { id })
    }

    /// The number that the next change gets.
    ///
    /// # Errors
    /// [`JournalError::NoNumber`] if the greatest is taken.
    pub fn next_id(&self) -> Result<Id, JournalError> {
        let latest = latest(&self.changes);
        let path = || named(self.machine, &path(&self.state_directory, latest));
        after(latest).ok_or_else(|| JournalError::NoNumber { path: path() })
    }

    /// The machine whose journal it is.
    pub fn machine(&self) -> &'a dyn Writable {
        self.machine
    }

    /// Writes a change to the disk, replacing the file of its number. Of its verifications the latest are kept.
    ///
    /// # Errors
    /// [`JournalError::Unreadable`] if it could not be read back, [`JournalError::TooLong`] if it could not now or with what
    /// is added to a new one later; [`JournalError::Io`]. The old file then remains. With [`Journal::open_to_revert`] also
    /// why another change could not be read, if this one is new.
    pub fn save(&mut self, change: &Change) -> Result<(), JournalError> {
        let change = Change { verifications: latest_of(&change.verifications), ..change.clone() };
        let bytes = encode(&change);
        is_readable(&change, &bytes)?;
        let known = self.changes.iter().position(|known| known.id == change.id);
        let most = if known.is_some() { LONGEST } else { LONGEST - GROWTH };
        if bytes.len() > most {
            return Err(JournalError::TooLong { id: change.id, bytes: bytes.len(), most });
        }
        if known.is_none() {
            if !self.unreadable.is_empty() {
                return Err(self.unreadable.swap_remove(0));
            }
            self.reserve(bytes.len() + GROWTH)?;
        }
        let path = path(&self.state_directory, change.id);
        let put = || whole_file::put(self.machine, &path, &bytes);
        let is_full = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        let saved = match put() {
            Err(error) if is_full(&error) && self.machine.remove(&self.spare()).is_ok() => put(),
            saved => saved,
        };
        saved.map_err(failed(self.machine, "write", &path))?;
        match known.and_then(|at| self.changes.get_mut(at)) {
            Some(known) => *known = change,
            None => {
                let is_lease = change.lease;
                self.changes.push(change);
                if is_lease {
                    self.prune();
                }
            }
        }
        Ok(())
    }

    /// Removes the oldest leases that are closed. What cannot be removed stays.
    fn prune(&mut self) {
        let is_closed = |change: &&Change| change.lease && !change.state.is_open();
        let closed: Vec<Id> = self.changes.iter().filter(is_closed).map(|change| change.id).collect();
        for id in closed.iter().take(closed.len().saturating_sub(KEPT_LEASES)) {
            if whole_file::take_away(self.machine, &path(&self.state_directory, *id)).is_ok() {
                self.changes.retain(|change| change.id != *id);
            }
        }
    }

    fn spare(&self) -> String {
        format!("{}/spare", self.state_directory)
    }

    /// Makes sure that `spare` has so many bytes.
    fn reserve(&self, bytes: usize) -> Result<(), JournalError> {
        let path = self.spare();
        if self.machine.read_own(&path).is_ok_and(|spare| spare.len() >= bytes) {
            return Ok(());
        }
        whole_file::put(self.machine, &path, &vec![b'\n'; bytes.min(LONGEST)]).map_err(failed(
            self.machine,
            "write",
            &path,
        ))
    }
}

/// The greatest number of a change; 0 if there is none.
pub(crate) fn latest(changes: &[Change]) -> Id {
    changes.iter().map(|change| change.id).max().unwrap_or(0)
}

/// The number after `latest`; `None` after the greatest.
pub(crate) fn after(latest: Id) -> Option<Id> {
    latest.checked_add(1)
}

/// The latest verifications, with notes of bounded length.
fn latest_of(verifications: &[Verification]) -> Vec<Verification> {
    let first = verifications.len().saturating_sub(KEPT_VERIFICATIONS);
    let mut latest = verifications.get(first..).unwrap_or_default().to_vec();
    for verification in &mut latest {
        verification.notes.truncate(MOST_NOTES);
        verification.why.truncate(MOST_REASONS);
        let texts = verification.notes.iter_mut().chain(&mut verification.why);
        texts.for_each(|text| crate::plan::shorten(text, LONGEST_NOTE));
    }
    latest
}

/// The notes that are kept of a verification.
const MOST_NOTES: usize = 8;
/// The reasons of a verdict that are kept.
const MOST_REASONS: usize = 4;
/// The longest of them \[characters\].
const LONGEST_NOTE: usize = 200;

fn folder(state_directory: &str) -> String {
    format!("{}/changes", state_directory.trim_end_matches('/'))
}

fn name(id: Id) -> String {
    format!("{id:06}.journal")
}

fn id_of(name: &str) -> Option<Id> {
    let id = name.strip_suffix(".journal")?.parse().ok()?;
    (self::name(id) == name && id > 0).then_some(id)
}

fn names(machine: &dyn Writable, directory: &str) -> Result<Vec<String>, JournalError> {
    match machine.names(directory) {
        Ok(names) => Ok(names),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(error) => Err(failed(machine, "list", directory)(error)),
    }
}

/// The file of a change.
pub(crate) fn path(state_directory: &str, id: Id) -> String {
    format!("{}/{}", folder(state_directory), name(id))
}

/// Every change of a journal, the oldest first; it is not locked, and nothing is written.
///
/// # Errors
/// [`JournalError`] if it is not as it was written.
pub fn read_all(machine: &dyn Writable, state_directory: &str) -> Result<Vec<Change>, JournalError> {
    let Readable { changes, unreadable } = read_readable(machine, state_directory)?;
    unreadable.into_iter().next().map_or(Ok(changes), Err)
}

/// What of a journal can be read, and what cannot.
#[derive(Debug)]
pub struct Readable {
    /// The changes, the oldest first.
    pub changes: Vec<Change>,
    /// Why others cannot be read. A file without the name of a change is a [stray](JournalError::Stray) one.
    pub unreadable: Vec<JournalError>,
}

/// As [`read_all`], but a file that cannot be read keeps no other from being read.
///
/// # Errors
/// [`JournalError`] if the directory cannot be listed.
pub fn read_readable(machine: &dyn Writable, state_directory: &str) -> Result<Readable, JournalError> {
    let directory = folder(state_directory);
    let (mut changes, mut unreadable) = (vec![], vec![]);
    for name in names(machine, &directory)?.iter().filter(|name| !name.ends_with(whole_file::UNFINISHED)) {
        match read_one(machine, format!("{directory}/{name}"), id_of(name)) {
            Ok(change) => changes.push(change),
            Err(error) => unreadable.push(error),
        }
    }
    Ok(Readable { changes, unreadable })
}

fn read_one(machine: &dyn Writable, path: String, id: Option<Id>) -> Result<Change, JournalError> {
    let place = path;
    let path = named(machine, &place);
    let Some(id) = id else { return Err(JournalError::Stray { path }) };
    let bytes = machine.read_own(&place).map_err(failed(machine, "read", &place))?;
    let change = decode(&path, &bytes)?;
    if change.id != id {
        return Err(JournalError::Torn { path, why: format!("it is of change {}", change.id) });
    }
    match own::check(&change) {
        Ok(()) => Ok(change),
        Err(why) => Err(JournalError::Tampered { path, why }),
    }
}

/// Refuses what could not be read back, or not as what it is.
fn is_readable(change: &Change, bytes: &[u8]) -> Result<(), JournalError> {
    let unreadable = |why: String| JournalError::Unreadable { id: change.id, why };
    let read = decode("", bytes).map_err(|wrong| match wrong {
        JournalError::Torn { why, .. } => unreadable(why),
        _ => unreadable("it has no first line".to_owned()),
    })?;
    own::check(&read).map_err(unreadable)?;
    // All by which it is reverted; of other numbers the last digit may differ.
    let is_same = read.id == change.id
        && (read.state, read.lease, read.left) == (change.state, change.lease, change.left)
        && read.process == change.process
        && read.entries == change.entries
        && read.back == change.back
        && (read.plan.owner, &read.plan.iothread) == (change.plan.owner, &change.plan.iothread);
    is_same.then_some(()).ok_or_else(|| unreadable("it would be another one".to_owned()))
}

/// The bytes of a file of the journal.
pub fn encode(change: &Change) -> Vec<u8> {
    // Of maps with text for keys and of finite numbers, all of which JSON has.
    let body = serde_json::to_vec_pretty(change).unwrap_or_default();
    let mut bytes =
        format!("dwell journal {FORMAT} bytes={} crc32={:08x}\n", body.len(), crc32fast::hash(&body))
            .into_bytes();
    bytes.extend(body);
    bytes
}

/// The change in the bytes of the file of the journal at `path`.
///
/// # Errors
/// [`JournalError::Foreign`], [`JournalError::Format`] or [`JournalError::Torn`] if they are not what [`encode`] made.
pub fn decode(path: &str, bytes: &[u8]) -> Result<Change, JournalError> {
    let torn = |why: &str| JournalError::Torn { path: path.to_owned(), why: why.to_owned() };
    let Some(rest) = bytes.strip_prefix(b"dwell journal ") else {
        return Err(match bytes.is_empty() {
            true => torn("it is empty"),
            false => JournalError::Foreign { path: path.to_owned() },
        });
    };
    let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(|| torn("its first line has no end"))?;
    let (head, body) = rest.split_at(end);
    let body = body.get(1..).unwrap_or_default();
    let head = String::from_utf8_lossy(head);
    let mut words = head.split(' ');
    match words.next() {
        Some(format) if format == FORMAT.to_string() => {}
        other => {
            let found = other.unwrap_or("none").escape_debug().to_string();
            return Err(JournalError::Format { path: path.to_owned(), found });
        }
    }
    let mut number = |name: &str, radix| {
        let word = words.next()?.strip_prefix(name)?.strip_prefix('=')?;
        u64::from_str_radix(word, radix).ok()
    };
    let (length, sum) =
        number("bytes", 10).zip(number("crc32", 16)).ok_or_else(|| torn("its first line is not whole"))?;
    if body.len() as u64 != length {
        return Err(torn(&format!("it has {} of {length} bytes", body.len())));
    }
    if u64::from(crc32fast::hash(body)) != sum {
        return Err(torn("its bytes are not those that were written"));
    }
    serde_json::from_slice(body).map_err(|error| torn(&error.to_string()))
}
