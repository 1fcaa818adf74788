//! Compares a plan with the machine that it is for.

use super::is_ours;
use crate::condition::{self, NoEffect, Readers, Unwritable};
use crate::explain::same::compare;
use crate::iothread::{self, IothreadError};
use crate::journal::{self, Change, Entry, Id, State};
use crate::keep::{self, KeepError};
use crate::knob::Knob;
use crate::lease;
use crate::place::Place;
use crate::plan::{self, Plan, PlanError, Write};
use crate::value::{self, ValueError, shown};
use dwell_machine::{Loading, Writable, arch, identity, kernel};
use dwell_policy::arch::Arch;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Owner};
use dwell_recording::with_causes;
use std::collections::BTreeSet;

/// The obstacles that the user overrides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    /// Another version, other values than the plan expects.
    pub force: bool,
    /// Knobs that nothing reads here.
    pub no_effect: bool,
}

/// The option that overrides an obstacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    Nothing,
    /// `--force`.
    Force,
    /// `--allow-no-effect`.
    AllowNoEffect,
}

/// A reason not to apply a plan to a machine.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    /// It is for another version.
    #[error(
        "the plan was made for {} {plan}, but this is {}; its prediction may not hold",
        if *.owner == Layer::Iothread { "QEMU" } else { "Linux" },
        .here.as_deref().unwrap_or("an unknown version")
    )]
    OtherVersion {
        /// The layer: the version is of Linux, or of QEMU for I/O threads.
        owner: Owner,
        plan: String,
        /// The one here; `None` if it is not known.
        here: Option<String>,
    },
    /// It is for another architecture, whose defaults and rules differ.
    #[error(
        "the plan was made for {}, but this machine is {}; rules and defaults differ",
        .plan.name(),
        .here.name()
    )]
    OtherArchitecture { plan: Arch, here: Arch },
    #[error("the plan was made from a recording of another machine; its prediction may not hold here")]
    OtherMachine,
    /// A parameter has another value than the plan expects.
    #[error("{knob} is {}, but the plan expects {expected}{}", shown(.found.as_deref()), set_by(*.by))]
    OtherValue {
        knob: String,
        /// What the plan expects.
        expected: i64,
        found: Option<String>,
        /// The change of dwell's own that put it there.
        by: Option<Id>,
    },
    #[error("{place} does not exist")]
    Missing {
        /// Where it would be.
        place: Place,
    },
    #[error("{place} is read-only on this kernel; it can be set only at the next start, by {instead}")]
    ReadOnly {
        place: Place,
        /// How it can be set instead.
        instead: String,
    },
    /// It cannot be read or opened for writing.
    #[error("{}", with_causes(.0))]
    Refused(ValueError),
    /// The monitor of the plan's QEMU does not answer.
    #[error("{}", with_causes(.0))]
    Monitor(IothreadError),
    /// It has no effect here.
    #[error("{} would have no effect: {why}", .knobs.join(", "))]
    NoEffect { knobs: Vec<String>, why: NoEffect },
    /// The kernel measures it in place of this value, so that what would be read back is not what was written.
    #[error(
        "{knob} = 0 has the kernel measure it, and reads back as what was measured; run `echo 0 > {place}`, then plan \
         with the value that is read there"
    )]
    Measured { knob: String, place: Place },
    /// It cannot be kept.
    #[error("{}", with_causes(.0))]
    Keep(KeepError),
    #[error("change {0} was interrupted; revert it first: dwell revert {0}")]
    Unfinished(Id),
    /// A controller has the parameters, or had them when it was killed.
    #[error(
        "change {0} is the lease of a `dwell control`, which sets these parameters; end it first: dwell control stop"
    )]
    Leased(Id),
    #[error("{0}")]
    Plan(PlanError),
}

impl Obstacle {
    /// The option that overrides it.
    pub const fn past(&self) -> Override {
        match self {
            Obstacle::OtherVersion { .. }
            | Obstacle::OtherArchitecture { .. }
            | Obstacle::OtherMachine
            | Obstacle::OtherValue { .. } => Override::Force,
            Obstacle::NoEffect { .. } => Override::AllowNoEffect,
            _ => Override::Nothing,
        }
    }
}

/// Which change of dwell's own set a value, for an error.
fn set_by(change: Option<Id>) -> String {
    change.map_or_else(String::new, |id| {
        format!(" (dwell's change {id} set it; `dwell revert {id}` reverts it)")
    })
}

/// A plan that fits this machine, with everything needed to apply it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    pub plan: Plan,
    /// The writes, from the present values.
    pub writes: Vec<Write>,
    /// Present and new values: the knobs first, then the files that keep them.
    pub entries: Vec<Entry>,
    /// The writes that revert it, if that takes more than the originals.
    pub back: Vec<Write>,
    /// Whether values are kept over a reboot.
    pub kept: bool,
    /// Whether the values are in force only to be measured, and are reverted then.
    pub verifying: bool,
    /// Obstacles that were overridden, and other notes.
    pub notes: Vec<String>,
}

impl Ready {
    /// Whether the values of the plan are in force already.
    pub fn is_nothing(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| value::same(&entry.place, entry.original.as_deref(), entry.applied.as_deref()))
    }
}

/// Compares a plan with a machine. Reads only.
///
/// # Errors
/// All obstacles that are not overridden.
pub fn check(
    machine: &dyn Writable,
    plan: &Plan,
    keep: bool,
    permission: Permission,
    changes: &[Change],
) -> Result<Ready, Vec<Obstacle>> {
    let mut checked = Checked { machine, plan, changes, obstacles: vec![] };
    let ready = checked.examine(keep);
    let passes = |obstacle: &Obstacle| match obstacle.past() {
        Override::Nothing => false,
        Override::Force => permission.force,
        Override::AllowNoEffect => permission.no_effect || permission.force,
    };
    let (passed, left): (Vec<_>, Vec<_>) = checked.obstacles.into_iter().partition(passes);
    match ready {
        Some(mut ready) if left.is_empty() => {
            ready.notes.splice(0..0, passed.iter().map(ToString::to_string));
            Ok(ready)
        }
        _ => Err(left),
    }
}

struct Checked<'a> {
    machine: &'a dyn Writable,
    plan: &'a Plan,
    changes: &'a [Change],
    obstacles: Vec<Obstacle>,
}

impl Checked<'_> {
    /// `None` if there is an obstacle that no option overrides.
    fn examine(&mut self, keep: bool) -> Option<Ready> {
        let unfinished = self.changes.iter().filter(|change| change.state == State::Unfinished);
        self.obstacles.extend(unfinished.map(|change| Obstacle::Unfinished(change.id)));
        let (present, wanted) =
            (self.setting(self.plan.present_setting())?, self.setting(self.plan.recommended_setting())?);
        self.version(present.version())?;
        self.identity();
        let actual = self.values(&present, &wanted);
        let target = self.plan.iothread.as_ref();
        let (writes, back) = (plan::writes(&actual, &wanted, target), plan::writes(&wanted, &actual, target));
        // The way back matters only where it is more than the way forth in reverse.
        let back = if back.iter().any(|write| write.then_wait_ms > 0) { back } else { vec![] };
        self.leased(&writes);
        self.measured(&writes);
        self.writable(&writes);
        self.no_effect(&writes, &actual, &wanted);
        let mut entries = self.entries(&writes, &back, &wanted)?;
        let mut writes = writes;
        for (write, entry) in self.others()? {
            writes.push(write);
            entries.push(entry);
        }
        let mut notes = self.notes(&writes, wanted.version());
        if keep && !(writes.is_empty() && self.is_kept_already(&wanted)) {
            let kept = self.keep(&wanted)?;
            notes.extend(kept.iter().find_map(|entry| keep::proviso(&entry.place)).map(str::to_owned));
            notes.extend(kept.iter().flat_map(|entry| keep::overridden(self.machine, &entry.place, &wanted)));
            entries.extend(kept);
        }
        Some(Ready { plan: self.plan.clone(), writes, entries, back, kept: keep, verifying: false, notes })
    }

    fn setting(&mut self, setting: Result<Setting<Owner>, PlanError>) -> Option<Setting<Owner>> {
        setting.map_err(|error| self.obstacles.push(Obstacle::Plan(error))).ok()
    }

    /// The version here is the plan's, but for the patch level. `None` if a monitor does not answer: no value can be
    /// read through it either.
    fn version(&mut self, of_rule: Version) -> Option<()> {
        let here = match (self.plan.owner, &self.plan.iothread) {
            (Owner::Layer(Layer::Iothread), Some(target)) => {
                match iothread::connect(self.machine, &target.socket) {
                    Ok(monitor) => Some(monitor.greeting().version.clone()),
                    Err(error) => {
                        self.obstacles.push(Obstacle::Monitor(error));
                        return None;
                    }
                }
            }
            _ => kernel::release(self.machine),
        };
        if let Some(here) = arch::read(self.machine)
            && Layer::try_from(self.plan.owner) != Ok(Layer::Iothread)
            && here != of_rule.arch
        {
            self.obstacles.push(Obstacle::OtherArchitecture { plan: of_rule.arch, here });
        }
        let same = |here: Version| (here.major, here.minor) == (of_rule.major, of_rule.minor);
        if !here.as_deref().and_then(Version::parse).is_some_and(same) {
            let (owner, plan) = (self.plan.owner, self.plan.version.clone());
            self.obstacles.push(Obstacle::OtherVersion { owner, plan, here });
        }
        Some(())
    }

    /// The machine here is the one that was recorded, where both have an identity.
    fn identity(&mut self) {
        let here = identity::machine_id(self.machine);
        if self.plan.conditions.machine.as_ref().zip(here).is_some_and(|(plan, here)| *plan != here) {
            self.obstacles.push(Obstacle::OtherMachine);
        }
    }

    /// The setting that is really there, as far as it can be read. Where it is the one that is wanted, it
    /// does not matter that the plan leads from another.
    fn values(&mut self, present: &Setting<Owner>, wanted: &Setting<Owner>) -> Setting<Owner> {
        let mut actual = *present;
        let mut other = vec![];
        for (param, expected) in present.iter() {
            let knob = Knob { param };
            let Some(place) = knob.place(self.plan.iothread.as_ref()) else { continue };
            let Some(found) = self.read(&place) else { continue };
            if value::same(&place, found.as_deref(), Some(&expected.to_string())) {
                continue;
            }
            if found.is_none() {
                self.obstacles.push(Obstacle::Missing { place });
                continue;
            }
            let number = value::number_of(&place, found.as_deref());
            let taken = number.is_some_and(|number| actual.set(param.name, number).is_ok());
            let by = self.who_set(&place, found.as_deref());
            // What is no number of its range cannot be led from, forced or not.
            match taken {
                true => other.push(Obstacle::OtherValue { knob: param.name.to_owned(), expected, found, by }),
                false => {
                    let found = shown(found.as_deref());
                    self.obstacles.push(Obstacle::Refused(ValueError::NoNumber { place, found }));
                }
            }
        }
        if actual != *wanted {
            self.obstacles.extend(other);
        }
        actual
    }

    fn read(&mut self, place: &Place) -> Option<Option<String>> {
        let read = value::read(self.machine, place);
        read.map_err(|error| self.obstacles.push(Obstacle::Refused(error))).ok()
    }

    fn who_set(&self, place: &Place, found: Option<&str>) -> Option<Id> {
        let ours = |change: &&Change| {
            change.state.is_open()
                && change.entries.iter().any(|entry| entry.place == *place && is_ours(entry, found))
        };
        self.changes.iter().rev().find(ours).map(|change| change.id)
    }

    /// What a controller has set is no value to begin from, and what it sets later would be taken for that of the plan.
    fn leased(&mut self, writes: &[Write]) {
        let has = |lease: &&Change| {
            let is_of = (lease.plan.owner, &lease.plan.iothread) == (self.plan.owner, &self.plan.iothread);
            is_of || lease.entries.iter().any(|entry| writes.iter().any(|write| write.place == entry.place))
        };
        let leased = lease::open(self.changes).filter(has).map(|lease| Obstacle::Leased(lease.id));
        if !writes.is_empty() {
            self.obstacles.extend(leased);
        }
    }

    /// The costs of the idle driver are never 0 there: 0 has it measure them.
    fn measured(&mut self, writes: &[Write]) {
        let is_cost = |write: &&Write| matches!(write.knob.as_str(), "halt_cost_ns" | "wake_latency_ns");
        let zeros = writes.iter().filter(|write| self.plan.owner == Layer::Driver && write.to == 0);
        let measured =
            |write: &Write| Obstacle::Measured { knob: write.knob.clone(), place: write.place.clone() };
        self.obstacles.extend(zeros.filter(is_cost).map(measured));
    }

    fn writable(&mut self, writes: &[Write]) {
        let places: BTreeSet<(&Place, &str)> =
            writes.iter().map(|write| (&write.place, write.knob.as_str())).collect();
        for (place, name) in places {
            let place = place.clone();
            match condition::writable(self.machine, &place) {
                // That it is missing was reported when it was read.
                Ok(()) | Err(Unwritable::Missing) => {}
                Err(Unwritable::ReadOnly) => {
                    let instead = self.at_start(name);
                    self.obstacles.push(Obstacle::ReadOnly { place, instead });
                }
                Err(Unwritable::Refused(source)) => {
                    self.obstacles.push(Obstacle::Refused(ValueError::Io { what: "write", place, source }));
                }
            }
        }
    }

    /// How a parameter gets its value when its module starts.
    fn at_start(&self, name: &str) -> String {
        let to = self.plan.recommended.get(name).unwrap_or_default();
        let knob = Knob::of(self.plan.owner, name);
        let Some((knob, module)) = knob.and_then(|knob| Some((knob, knob.module()?))) else {
            return "the program that starts it".to_owned();
        };
        match Loading::read(self.machine, module.name()) {
            Some(Loading::Loaded) => {
                format!("`options {} {}` in /etc/modprobe.d", module.name(), knob.option(to))
            }
            _ => format!("`{}.{}` on the kernel's command line", module.name(), knob.option(to)),
        }
    }

    fn no_effect(&mut self, writes: &[Write], actual: &Setting<Owner>, wanted: &Setting<Owner>) {
        // Values that are there already may have no effect either.
        let of = if writes.is_empty() { &self.plan.writes } else { writes };
        let names: BTreeSet<&str> = of.iter().map(|write| write.knob.as_str()).collect();
        let readers = Readers::of(self.machine);
        let why = |name: &str| readers.no_effect(Knob::of(self.plan.owner, name)?);
        let mut found: Vec<(Vec<String>, NoEffect)> = vec![];
        for (name, why) in names.iter().filter_map(|name| Some(((*name).to_owned(), why(name)?))) {
            match found.iter_mut().find(|(_, same)| *same == why) {
                Some((knobs, _)) => knobs.push(name),
                None => found.push((vec![name], why)),
            }
        }
        if found.is_empty() && !writes.is_empty() && compare(actual, wanted).is_same() {
            found.push((names.into_iter().map(str::to_owned).collect(), NoEffect::Equivalent));
        }
        self.obstacles.extend(found.into_iter().map(|(knobs, why)| Obstacle::NoEffect { knobs, why }));
    }

    /// One for each place that is written on the way there or on the way back.
    fn entries(&mut self, writes: &[Write], back: &[Write], wanted: &Setting<Owner>) -> Option<Vec<Entry>> {
        let mut entries: Vec<Entry> = vec![];
        for write in writes.iter().chain(back) {
            if entries.iter().any(|entry| entry.place == write.place) {
                continue;
            }
            let original = self.read(&write.place)?;
            let knob = Knob::of(self.plan.owner, &write.knob)?;
            let all = writes.iter().chain(back).filter(|other| other.place == write.place);
            let mut between: Vec<String> = all.map(|other| knob.written(other.to)).collect();
            let applied = wanted.get(&write.knob).map(|value| knob.written(value));
            between.retain(|text| {
                let is = |value: &Option<String>| value::same(&write.place, Some(text), value.as_deref());
                !is(&applied) && !is(&original)
            });
            let knob = Some(write.knob.clone());
            entries.push(Entry { knob, place: write.place.clone(), original, applied, between });
        }
        Some(entries)
    }

    /// What the plan sets of an I/O thread beside its polling, from what is there. `None` where it cannot be read.
    fn others(&mut self) -> Option<Vec<(Write, Entry)>> {
        let is_other = |write: &&Write| iothread::OTHER_PROPERTIES.contains(&write.knob.as_str());
        let mut others = vec![];
        for write in self.plan.writes.iter().filter(is_other) {
            let found = self.read(&write.place)?;
            let Some(from) = value::number_of(&write.place, found.as_deref()) else {
                self.obstacles.push(Obstacle::Missing { place: write.place.clone() });
                return None;
            };
            if from == write.to {
                continue;
            }
            let (knob, place) = (Some(write.knob.clone()), write.place.clone());
            let applied = Some(write.to.to_string());
            others.push((
                Write { from, ..write.clone() },
                Entry { knob, place, original: found, applied, between: vec![] },
            ));
        }
        Some(others)
    }

    /// Whether a change of dwell's own keeps this very setting, and what keeps it is in place.
    fn is_kept_already(&self, wanted: &Setting<Owner>) -> bool {
        let keeps = |change: &Change| {
            let mut keepers = change.entries.iter().filter(|entry| entry.knob.is_none()).peekable();
            let in_place = |entry: &Entry| {
                let found = value::read(self.machine, &entry.place).ok().flatten();
                value::same(&entry.place, found.as_deref(), entry.applied.as_deref())
            };
            change.kept && change.state.is_open() && keepers.peek().is_some() && keepers.all(in_place)
        };
        let whose =
            |plan: &Plan| plan.iothread.as_ref().map(|target| (target.id.clone(), target.domain.clone()));
        let sets = |change: &Change| {
            whose(&change.plan) == whose(self.plan)
                && change.plan.recommended_setting().is_ok_and(|set| set == *wanted)
        };
        self.changes.iter().any(|change| sets(change) && keeps(change))
    }

    fn keep(&mut self, wanted: &Setting<Owner>) -> Option<Vec<Entry>> {
        // Without a number that is free, the journal refuses to begin the change.
        let id = journal::after(journal::latest(self.changes)).unwrap_or(Id::MAX);
        keep::entries(self.machine, id, wanted, self.plan.iothread.as_ref())
            .map_err(|error| self.obstacles.push(Obstacle::Keep(error)))
            .ok()
    }

    fn notes(&self, writes: &[Write], version: Version) -> Vec<String> {
        let of = |write: &Write| {
            let knob = Knob::of(self.plan.owner, &write.knob)?;
            let provisos = condition::provisos(knob, version, Some(self.machine))
                .into_iter()
                .map(|why| format!("; {why}"));
            Some(format!(
                "{}: {}{}",
                write.knob,
                knob.scope_on(self.machine, version).words(),
                provisos.collect::<String>()
            ))
        };
        writes.iter().filter_map(of).collect::<BTreeSet<String>>().into_iter().collect()
    }
}
