//! A lease: parameters that a controller changes all the time, under one change of the journal.
//!
//! # The idea
//! An ordinary change puts every value into the journal before it is written. A controller writes many times
//! a minute, so it takes a *lease*: one change whose originals, and all values that it may ever write, are on
//! the disk before the first write. Writes of these do not touch the journal. A revert of the change, in
//! whatever process and however the controller ended, finds each value either among those, and restores the
//! original, or not, and leaves it alone.
//!
//! A lease is held as long as its controller lives: only the process that is the [`Holder`] takes leases and ends them, and
//! a revert in another process has to become the holder first. A lease has its originals in memory as well, so that its
//! controller restores them whatever has become of the journal. Before each write it is compared with the journal, and where
//! that was changed nothing more is written.
//!
//! There is at most one open lease for a [`Subject`], and none is taken while a change of it is open that was interrupted, so
//! that originals are never taken from values that a controller has set, or a verification.
//!
//! A controller that ends may *leave* its setting, and the lease with it. The next one *adopts* both, without
//! a write to any parameter, where the journal has every value that it finds as the one that was left, in the
//! same boot. What a controller left that was killed is not adopted: what it would have written next is not
//! known.
//!
//! A lease of an I/O thread is of one process: a QEMU that was started anew has the values of its command line, so the
//! lease is closed and nothing is restored.
//!
//! # Limits
//! A value written by another program that the controller might have written cannot be distinguished from its
//! own, once the controller is gone. While it runs it compares with the value that it wrote last.

use crate::change::{self, Outcome, RevertError, Reverted};
use crate::condition::{NoEffect, Readers, writable};
use crate::iothread::{self, IothreadError, Process};
use crate::journal::{self, Against, Change, Entry, Id, Journal, JournalError, State};
use crate::knob::{IothreadTarget, Knob, Scope};
use crate::place::Place;
use crate::plan::{Plan, writes};
use crate::value::{self, Changed, ValueError, shown};
use dwell_machine::{Lock, Writable, identity};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long the lock of a controller is waited for: one that ends unlocks it.
const PATIENCE: Duration = Duration::from_secs(1);

/// The one process that may take leases and end them, until the last clone is dropped. While there is none, every open
/// lease is one that a controller left or was killed with.
#[derive(Clone, Debug)]
pub struct Holder {
    state_directory: String,
    _lock: Rc<Lock>,
}

impl Holder {
    /// Becomes the holder.
    ///
    /// # Errors
    /// [`JournalError::Controlled`] if another process is; the state directory cannot be used.
    pub fn begin(machine: &dyn Writable, state_directory: &str) -> Result<Holder, JournalError> {
        Holder::begin_within(machine, state_directory, PATIENCE)
    }

    /// As [`Holder::begin`], after a wait of at most `patience`.
    ///
    /// # Errors
    /// As [`Holder::begin`].
    pub fn begin_within(
        machine: &dyn Writable,
        state_directory: &str,
        patience: Duration,
    ) -> Result<Holder, JournalError> {
        let lock = journal::lock(machine, state_directory, Against::Controllers, patience)?;
        Ok(Holder { state_directory: state_directory.to_owned(), _lock: Rc::new(lock) })
    }

    /// The directory of the journal.
    pub fn state_directory(&self) -> &str {
        &self.state_directory
    }
}

/// What is leased: its parameters are changed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A layer of this machine.
    Layer(Layer),
    Iothread(IothreadTarget),
}

impl Subject {
    pub const fn layer(&self) -> Layer {
        match self {
            Subject::Layer(layer) => *layer,
            Subject::Iothread(_) => Layer::Iothread,
        }
    }

    /// The I/O thread, if it is one.
    pub const fn iothread(&self) -> Option<&IothreadTarget> {
        match self {
            Subject::Layer(_) => None,
            Subject::Iothread(target) => Some(target),
        }
    }

    /// What a lease of the journal is of; `None` for timers, which no controller leases.
    pub fn of(change: &Change) -> Option<Subject> {
        match &change.plan.iothread {
            Some(target) => Some(Subject::Iothread(target.clone())),
            None => Layer::try_from(change.plan.owner).map(Subject::Layer).ok(),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Layer(layer) => f.write_str(layer.name()),
            Subject::Iothread(target) => write!(f, "iothread {} of {}", target.id, target.socket),
        }
    }
}

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("cannot take a lease, nothing was changed")]
    Journal(#[from] JournalError),
    /// A parameter cannot be read or written.
    #[error("cannot take a lease, nothing was changed")]
    Value(#[from] ValueError),
    /// The I/O thread cannot be asked.
    #[error("cannot take a lease, nothing was changed")]
    Qemu(#[from] IothreadError),
    #[error("{subject} is leased already (change {id}); `dwell control stop` ends that")]
    Taken { subject: Box<Subject>, id: Id },
    /// What a killed process has set may be in force.
    #[error(
        "change {id} was interrupted, and what is in force may not be the originals; revert it first: dwell revert {id}"
    )]
    Interrupted { id: Id },
    /// A parameter has another value than the originals.
    #[error(transparent)]
    Meanwhile(#[from] Box<Changed>),
    /// What is written could not be restored, or would do nothing.
    #[error("cannot control {knob} here: {why}")]
    Unfit { knob: String, why: String },
}

/// Why a setting was not written.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// Another program has changed a value.
    #[error(transparent)]
    Foreign(#[from] Box<Changed>),
    /// A value is not one that the lease has.
    #[error("{knob} = {value} is not a value of the lease")]
    NotLeased { knob: String, value: i64 },
    /// Another process serves the monitor: QEMU was started anew.
    #[error("the QEMU at {socket} was started anew")]
    Restarted {
        /// The socket of its monitor.
        socket: String,
    },
    /// The lease in the journal is not the one that was taken.
    #[error("another program has closed or changed the lease in the journal (change {id})")]
    Closed { id: Id },
    /// The I/O thread cannot be asked.
    #[error(transparent)]
    Qemu(#[from] IothreadError),
    /// It cannot be read or written.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// Why a lease is not adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Its controller has not left it, but was killed.
    #[error("its controller was killed")]
    Killed,
    /// It is of another boot.
    #[error("the machine was booted since")]
    Rebooted,
    /// It is of another process.
    #[error("the QEMU at {socket} was started anew")]
    Restarted {
        /// The socket of its monitor.
        socket: String,
    },
    /// A parameter has another value than the one that was left.
    #[error("{knob} is {} and not {left}", shown(.found.as_deref()))]
    OtherValue {
        knob: String,
        /// The value that was left.
        left: String,
        found: Option<String>,
    },
    /// The lease does not have a value that the new controller may write.
    #[error("{knob} = {value}, which this configuration may write, is not a value of the lease")]
    NotLeased { knob: String, value: i64 },
    /// The originals are of another version than the machine.
    #[error("it is of version {was}, and this is {is}")]
    OtherVersion { was: String, is: String },
    /// What is written could not be restored, or would do nothing.
    #[error(transparent)]
    Unfit(#[from] LeaseError),
}

/// The parameters of a layer or of an I/O thread, to be changed at will.
#[derive(Clone, Debug)]
pub struct Lease {
    holder: Holder,
    /// Its file in the journal.
    recorded: Vec<u8>,
    subject: Subject,
    change: Change,
    /// What was written last.
    now: Setting,
    /// What was to be written then, of which any value may be in force where that has failed.
    tried: Setting,
    /// Parameters written since they were last counted.
    writes: u64,
}

impl Lease {
    /// Leases the parameters in which `settings` differ from each other or from `originals`, which are in force.
    ///
    /// # Errors
    /// [`LeaseError`]; nothing was then written but, at most, the journal.
    pub fn take(
        machine: &dyn Writable,
        holder: &Holder,
        subject: &Subject,
        originals: Setting,
        settings: &[Setting],
    ) -> Result<Lease, LeaseError> {
        let process = process_of(machine, subject)?;
        // Before the values are read: while the journal is locked, no other dwell is between two writes.
        let mut journal = Journal::open(machine, &holder.state_directory)?;
        journal.is_not_verified()?;
        let is_of = |change: &&Change| change.state.is_open() && has(change, subject, process);
        if let Some(taken) = journal.changes().iter().filter(is_of).find(|change| change.lease) {
            return Err(LeaseError::Taken { subject: Box::new(subject.clone()), id: taken.id });
        }
        if let Some(id) = interrupted(machine, journal.changes(), subject)? {
            return Err(LeaseError::Interrupted { id });
        }
        let entries = entries(machine, subject, originals, settings)?;
        fit(machine, &entries, originals)?;
        let plan = Plan {
            advice: "leased by `dwell control` or `dwell iothread bench`".to_owned(),
            ..Plan::by_hand(originals, originals, subject.iothread().cloned())
        };
        // Each of its values is as good as another: there is nothing that an interruption leaves half-way.
        let change = change::begun(&journal, State::Applied, plan, entries)?;
        let change = Change { lease: true, process, ..change };
        journal.save(&change)?;
        Ok(Lease::of(holder, subject, change, originals))
    }

    fn of(holder: &Holder, subject: &Subject, change: Change, now: Setting) -> Lease {
        let (holder, recorded) = (holder.clone(), journal::encode(&change));
        Lease { holder, recorded, subject: subject.clone(), change, now, tried: now, writes: 0 }
    }

    /// Goes on with a lease that a controller has [left](Lease::leave), in which `present` is in force and
    /// `settings` are what may be written. No parameter is written. From then on it is as any other: what a
    /// killed controller has set is not adopted again.
    ///
    /// # Errors
    /// [`AdoptError`]; the lease is then as it was.
    pub fn adopt(
        machine: &dyn Writable,
        holder: &Holder,
        subject: &Subject,
        present: Setting,
        settings: &[Setting],
    ) -> Result<Lease, AdoptError> {
        let mut journal = Journal::open(machine, &holder.state_directory).map_err(LeaseError::Journal)?;
        journal.is_not_verified().map_err(LeaseError::Journal)?;
        let left = open_of(journal.changes(), subject).filter(|change| change.left);
        let change = left.ok_or(AdoptError::Killed)?.clone();
        if change.boot_id.is_none() || change.boot_id != identity::boot_id(machine) {
            return Err(AdoptError::Rebooted);
        }
        if let Subject::Iothread(target) = subject {
            let process = iothread::present(machine, target).map_err(LeaseError::Qemu)?.1;
            if process.is_none() || process != change.process {
                return Err(AdoptError::Restarted { socket: target.socket.clone() });
            }
        }
        is_as_left(&change, present)?;
        for setting in settings {
            has_values(&change, present, setting)?;
        }
        fit(machine, &change.entries, present)?;
        let entries =
            change.entries.iter().map(|entry| Entry { applied: entry.original.clone(), ..entry.clone() });
        let change = Change { left: false, entries: entries.collect(), ..change };
        journal.save(&change).map_err(LeaseError::Journal)?;
        Ok(Lease::of(holder, subject, change, present))
    }

    /// The controller ends, and what it wrote last stays, for the next one to [adopt](Lease::adopt). Where
    /// that cannot be recorded, the lease is as that of a controller that was killed. Returns whether it was
    /// still open.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn leave(&self, machine: &dyn Writable) -> Result<bool, JournalError> {
        let mut journal = Journal::open_to_revert(machine, &self.holder.state_directory)?;
        let Ok(change) = journal.change(self.change.id) else { return Ok(false) };
        if !change.state.is_open() {
            return Ok(false);
        }
        let mut change = change.clone();
        for entry in &mut change.entries {
            if let Some(value) = self.expected(entry) {
                entry.applied = Some(value);
            }
        }
        change.left = true;
        journal.save(&change)?;
        Ok(true)
    }

    /// The change of the journal.
    pub fn id(&self) -> Id {
        self.change.id
    }

    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The setting that was written last.
    pub fn now(&self) -> Setting {
        self.now
    }

    /// How many parameters were written since the last call.
    pub fn take_writes(&mut self) -> u64 {
        std::mem::take(&mut self.writes)
    }

    /// The places that it has.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.change.entries.iter().map(|entry| &entry.place)
    }

    /// Whether every value is the one that was written last.
    ///
    /// # Errors
    /// [`SetError::Foreign`] for the first that is not, [`SetError::Restarted`], and what else keeps them
    /// from being read.
    pub fn check(&self, machine: &dyn Writable) -> Result<(), SetError> {
        let found = self.found(machine)?;
        for (entry, found) in self.change.entries.iter().zip(found) {
            let Some(expected) = self.expected(entry) else { continue };
            Changed::check(&entry.place, Some(&expected), found)?;
        }
        Ok(())
    }

    /// The value of each entry; those of an I/O thread over one connection.
    fn found(&self, machine: &dyn Writable) -> Result<Vec<Option<String>>, SetError> {
        let Subject::Iothread(target) = &self.subject else {
            return Ok(self
                .change
                .entries
                .iter()
                .map(|entry| value::read(machine, &entry.place))
                .collect::<Result<_, _>>()?);
        };
        let (thread, process) = iothread::present(machine, target)?;
        if process != self.change.process {
            return Err(SetError::Restarted { socket: target.socket.clone() });
        }
        let of = |entry: &Entry| thread.properties.get(entry.knob.as_ref()?).map(ToString::to_string);
        Ok(self.change.entries.iter().map(of).collect())
    }

    /// What was written last to a place.
    fn expected(&self, entry: &Entry) -> Option<String> {
        written(&self.now, entry)
    }

    /// Its entries, without the values that it might have written and has not: those are another program's.
    fn as_written(&self) -> Vec<Entry> {
        let of = |entry: &Entry| Entry {
            applied: self.expected(entry),
            between: written(&self.tried, entry).into_iter().collect(),
            ..entry.clone()
        };
        self.change.entries.iter().map(of).collect()
    }

    /// Puts a setting into force: every value is compared before, and each that is written is read back.
    ///
    /// # Errors
    /// [`SetError`]. After [`SetError::Foreign`], [`SetError::Closed`] and [`SetError::NotLeased`] nothing was written.
    pub fn set(&mut self, machine: &dyn Writable, to: &Setting) -> Result<(), SetError> {
        let writes = writes(&self.now, to, self.subject.iothread());
        for write in &writes {
            let entry = self.change.entries.iter().find(|entry| entry.place == write.place);
            if !entry.is_some_and(|entry| change::is_known(entry, Some(&write.text()))) {
                return Err(SetError::NotLeased { knob: write.knob.clone(), value: write.to });
            }
        }
        let path = journal::path(&self.holder.state_directory, self.change.id);
        if machine.read_own(&path).ok().as_ref() != Some(&self.recorded) {
            return Err(SetError::Closed { id: self.change.id });
        }
        self.check(machine)?;
        self.tried = *to;
        for write in &writes {
            value::write(machine, &write.place, Some(&write.text()))?;
            self.writes += 1;
            // In the range of the parameter, as it is a value of the lease.
            let _ = self.now.set(&write.knob, write.to);
        }
        Ok(())
    }
}

/// The value of a place under a setting, as it is written.
fn written(setting: &Setting, entry: &Entry) -> Option<String> {
    let name = entry.knob.as_deref()?;
    let knob = Knob::of(setting.layer(), name)?;
    Some(knob.written(setting.get(name)?))
}

/// Whether every parameter has the value that was left, and those that are not leased their originals.
fn is_as_left(change: &Change, present: Setting) -> Result<(), AdoptError> {
    let originals = originals(change).ok_or(AdoptError::Killed)?;
    if originals.version() != present.version() {
        let [was, is] = [originals, present].map(|setting| setting.version().to_string());
        return Err(AdoptError::OtherVersion { was, is });
    }
    for (param, value) in present.iter() {
        let Some(knob) = Knob::of(present.layer(), param.name) else { continue };
        let found = knob.written(value);
        let left = match entry_of(change, param.name) {
            Some(entry) => entry.applied.clone().unwrap_or_default(),
            None => knob.written(originals.get(param.name).unwrap_or_default()),
        };
        if knob.number_of(&left) != Some(value) {
            return Err(AdoptError::OtherValue { knob: param.name.to_owned(), left, found: Some(found) });
        }
    }
    Ok(())
}

/// Whether the lease has every value of a setting.
fn has_values(change: &Change, present: Setting, setting: &Setting) -> Result<(), AdoptError> {
    for (param, value) in setting.iter() {
        let has = match entry_of(change, param.name) {
            Some(entry) => {
                let text = Knob::of(present.layer(), param.name).map(|knob| knob.written(value));
                change::is_known(entry, text.as_deref())
            }
            None => present.get(param.name) == Some(value),
        };
        if !has {
            return Err(AdoptError::NotLeased { knob: param.name.to_owned(), value });
        }
    }
    Ok(())
}

fn entry_of<'a>(change: &'a Change, knob: &str) -> Option<&'a Entry> {
    change.entries.iter().find(|entry| entry.knob.as_deref() == Some(knob))
}

/// The setting that was in force when a lease was taken; `None` if the journal does not have it whole.
pub fn originals(change: &Change) -> Option<Setting> {
    change.plan.present_setting().ok()?.of_layer()
}

pub fn open(changes: &[Change]) -> impl Iterator<Item = &Change> {
    changes.iter().filter(|change| change.lease && change.state.is_open())
}

/// The open lease of a subject.
pub fn open_of<'a>(changes: &'a [Change], subject: &Subject) -> Option<&'a Change> {
    open(changes).find(|change| Subject::of(change).as_ref() == Some(subject))
}

/// Whether a change is of a subject: of the I/O thread `id` of the QEMU at a socket, or in a process, which may have several
/// monitors.
fn has(change: &Change, subject: &Subject, process: Option<Process>) -> bool {
    match (subject, &change.plan.iothread) {
        (Subject::Iothread(target), Some(leased)) => {
            let is_of_process = process.is_some() && process == change.process;
            leased.id == target.id && (leased.socket == target.socket || is_of_process)
        }
        _ => Subject::of(change).as_ref() == Some(subject),
    }
}

/// The process of an I/O thread.
fn process_of(machine: &dyn Writable, subject: &Subject) -> Result<Option<Process>, LeaseError> {
    Ok(match subject {
        Subject::Layer(_) => None,
        Subject::Iothread(target) => iothread::present(machine, target)?.1,
    })
}

/// The change of a subject that was interrupted in this boot and process, or whose verification was. Neither runs while the
/// journal is locked and no change is verified.
///
/// # Errors
/// [`LeaseError`] where the monitor of an I/O thread does not answer.
pub fn interrupted(
    machine: &dyn Writable,
    changes: &[Change],
    subject: &Subject,
) -> Result<Option<Id>, LeaseError> {
    let (process, booted) = (process_of(machine, subject)?, identity::boot_id(machine));
    let is_interrupted = |change: &&Change| {
        change.state.is_open()
            && has(change, subject, process)
            && (change.state == State::Unfinished || change.verifying)
            && !change::is_undone(change, booted.as_deref())
            && (change.process.is_none() || change.process == process)
    };
    Ok(changes.iter().find(is_interrupted).map(|change| change.id))
}

/// Ends leases: originals are restored, values that another program has written stay, and the changes are closed either
/// way. A lease that the journal does not have any more, or that cannot be recorded, is ended all the same. The results are
/// in the order of the leases.
///
/// # Errors
/// [`RevertError`]. Where an original could not be restored, the change stays open, and the result has the reason.
pub fn end(machine: &dyn Writable, leases: &[&Lease]) -> Vec<Result<Reverted, RevertError>> {
    let Some(first) = leases.first() else { return vec![] };
    match Journal::open_to_revert(machine, &first.holder.state_directory) {
        Ok(mut journal) => {
            // A monitor that does not answer is not asked once for each of its threads.
            let mut silent: Vec<String> = vec![];
            let end = |lease: &&Lease| {
                let socket = lease.subject.iothread().map(|target| &*target.socket);
                if socket.is_some_and(|socket| silent.iter().any(|silent| silent == socket)) {
                    return Ok(Reverted { id: lease.change.id, places: vec![], complete: false });
                }
                let ended = end_in(&mut journal, lease);
                if ended.as_ref().is_ok_and(|reverted| !reverted.complete) {
                    let is_silent = |socket: &&str| iothread::connect(machine, socket).is_err();
                    silent.extend(socket.filter(is_silent).map(str::to_owned));
                }
                ended
            };
            leases.iter().map(end).collect()
        }
        Err(error) => {
            let (error, state) = (Arc::new(error), &first.holder.state_directory);
            // That it is locked does not keep it from being read.
            let changes = journal::read_readable(machine, state).map_or_else(|_| vec![], |read| read.changes);
            let end = |lease: &&Lease| match lease.put_back(machine, &changes) {
                reverted if reverted.complete => {
                    Err(RevertError::Unrecorded { id: lease.change.id, source: Arc::clone(&error) })
                }
                reverted => Ok(reverted),
            };
            leases.iter().map(end).collect()
        }
    }
}

impl Lease {
    fn put_back(&self, machine: &dyn Writable, changes: &[Change]) -> Reverted {
        change::put_all_back(
            machine,
            &Change { entries: self.as_written(), ..self.change.clone() },
            changes,
            false,
        )
    }
}

fn end_in(journal: &mut Journal<'_>, lease: &Lease) -> Result<Reverted, RevertError> {
    match journal.change(lease.change.id) {
        Ok(change) if change.state.is_open() => end_open(journal, lease.change.id, Some(lease.as_written())),
        // It was closed, or cannot be read any more: what that means for the values is not known.
        _ => Ok(is_as_complete(lease.put_back(journal.machine(), journal.changes()))),
    }
}

/// What is left alone does not keep a lease open.
fn is_as_complete(reverted: Reverted) -> Reverted {
    let failed = reverted.places.iter().any(|(_, _, outcome)| matches!(outcome, Outcome::Failed { .. }));
    Reverted { complete: !failed, ..reverted }
}

fn end_open(journal: &mut Journal<'_>, id: Id, entries: Option<Vec<Entry>>) -> Result<Reverted, RevertError> {
    let reverted = change::of_holder(journal, id, entries, false, &mut std::thread::sleep)?;
    let (was_closed, reverted) = (reverted.complete, is_as_complete(reverted));
    if reverted.complete && !was_closed {
        let closed = change::in_state(journal.change(id)?, State::Reverted);
        let unrecorded = |source| RevertError::Unrecorded { id, source: Arc::new(source) };
        journal.save(&closed).map_err(unrecorded)?;
    }
    Ok(reverted)
}

/// Ends the lease of a subject that a controller left open; `None` if there is none.
///
/// # Errors
/// As [`end`].
pub fn end_left_open(
    machine: &dyn Writable,
    holder: &Holder,
    subject: &Subject,
) -> Result<Option<Reverted>, RevertError> {
    let mut journal = Journal::open_to_revert(machine, &holder.state_directory)?;
    let Some(id) = open_of(journal.changes(), subject).map(|change| change.id) else { return Ok(None) };
    end_open(&mut journal, id, None).map(Some)
}

/// One for each parameter that is ever written, with every value that it may get.
fn entries(
    machine: &dyn Writable,
    subject: &Subject,
    originals: Setting,
    settings: &[Setting],
) -> Result<Vec<Entry>, LeaseError> {
    let mut entries = vec![];
    for (param, original) in originals.iter() {
        let mut values: Vec<i64> = settings.iter().filter_map(|setting| setting.get(param.name)).collect();
        values.sort_unstable();
        values.dedup();
        values.retain(|value| *value != original);
        if values.is_empty() {
            continue;
        }
        let unfit = |why: &str| LeaseError::Unfit { knob: param.name.to_owned(), why: why.to_owned() };
        let knob = Knob::of(originals.layer(), param.name).ok_or_else(|| unfit("it has no place"))?;
        let place = knob.place(subject.iothread()).ok_or_else(|| unfit("it has no place in sysfs"))?;
        let found = value::read(machine, &place)?;
        let expected = knob.written(original);
        if found.is_none() {
            return Err(unfit(&format!("{place} does not exist")));
        }
        Changed::check(&place, Some(&expected), found.clone())?;
        entries.push(Entry {
            knob: Some(param.name.to_owned()),
            place,
            original: found,
            applied: Some(expected),
            between: values.into_iter().map(|value| knob.written(value)).collect(),
        });
    }
    Ok(entries)
}

/// Refuses what cannot be written, or has no effect on what runs.
fn fit(machine: &dyn Writable, entries: &[Entry], originals: Setting) -> Result<(), LeaseError> {
    let readers = Readers::of(machine);
    for entry in entries {
        let name = entry.knob.clone().unwrap_or_default();
        let unfit = |why: String| LeaseError::Unfit { knob: name.clone(), why };
        writable(machine, &entry.place).map_err(|why| unfit(why.to_string()))?;
        let Some(knob) = Knob::of(originals.layer(), &name) else { continue };
        if let Some(why) = readers.no_effect(knob) {
            return Err(unfit(NoEffect::to_string(&why)));
        }
        let scope = knob.scope_on(machine, originals.version());
        if matches!(scope, Scope::NewVms | Scope::NewVmsOrNextHalt) {
            return Err(unfit(format!(
                "running VMs may keep their value; scope of a write: {}",
                scope.words()
            )));
        }
    }
    Ok(())
}
