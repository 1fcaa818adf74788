//! Control of one layer, or of one I/O thread: how it begins, from the values that are there or from those
//! that an earlier controller has left.

use super::Control;
use super::by_work::{Comparisons, ONE_IN};
use super::config::{Config, Mode};
use super::iothread::{self, IothreadSource};
use super::leases::told_of;
use super::machine::{refuse_unread, setting};
use super::metrics::Tally;
use super::notes::Notes;
use super::observe::{Source, WakeupLatency, called};
use super::words;
use crate::core::{Controller, Terms};
use anyhow::Context;
use dwell_knobs::journal::{self, Change, Journal};
use dwell_knobs::lease::{self, Lease, Subject};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use std::collections::BTreeMap;

/// How often a veto of a VM has a line, at most \[ns\].
const VETOES_NS: u64 = 60_000_000_000;

/// Control of one layer, or of one I/O thread.
pub(super) struct Layered {
    pub(super) subject: Subject,
    pub(super) controller: Controller,
    pub(super) source: Box<dyn Source>,
    pub(super) lease: Option<Lease>,
    /// Why it is left alone.
    pub(super) given_up: Option<String>,
    /// Why it could not be observed when that was last tried.
    pub(super) unseen: Option<String>,
    /// What idlers vetoed last, and when that was said \[ns\].
    vetoed: BTreeMap<u64, (Setting, u64)>,
    pub(super) tally: Tally,
    /// Until then its monitor is left alone \[ns\].
    pub(super) rests_until_ns: u64,
    pub(super) comparisons: Comparisons,
}

impl Layered {
    /// When the next decision is due \[ns\].
    pub(super) fn next_at_ns(&self) -> u64 {
        self.controller.next_at_ns().max(self.rests_until_ns)
    }

    /// When to look between two decisions \[ns\], if ever.
    pub(super) fn next_look_ns(&self) -> Option<u64> {
        self.source.next_look_ns(&self.controller)
    }

    /// A line for each VM that vetoes another setting than before.
    pub(super) fn say_vetoes(&mut self, now_ns: u64, notes: Notes<'_>) {
        let here = |idler: &u64| self.controller.seen().iter().any(|seen| seen.idler == *idler);
        self.vetoed.retain(|idler, _| here(idler));
        for veto in self.controller.vetoes() {
            let said = self.vetoed.get(&veto.idler);
            if said.is_some_and(|(setting, at_ns)| {
                *setting == veto.setting || now_ns.saturating_sub(*at_ns) < VETOES_NS
            }) {
                continue;
            }
            self.vetoed.insert(veto.idler, (veto.setting, now_ns));
            let present = self.controller.status(now_ns).present;
            notes.say(&self.subject, &words::veto(&present, veto, &called(&*self.source, veto.idler)));
        }
    }
}

impl Control<'_> {
    pub(super) fn layered(&self, subject: &Subject) -> anyhow::Result<Layered> {
        let Config { mode, halt_cost, burst, .. } = self.config;
        let machine = self.machine;
        refuse_unread(machine, subject.layer())?;
        let adopted = self.adopted(subject)?;
        let (present, source) = match subject {
            Subject::Layer(layer) => {
                let present = setting(machine, *layer)?;
                (present, self.world.source(*layer, self.latency(&present), &self.config)?)
            }
            Subject::Iothread(target) => {
                let found = iothread::find_one(machine, target)?;
                let source = IothreadSource::new(target.clone(), found.thread, burst, halt_cost);
                (found.setting, Box::new(source) as Box<dyn Source>)
            }
        };
        let (mut controller, lease) = match (adopted, mode) {
            (Some((controller, lease)), _) => (controller, Some(lease)),
            (None, Mode::Advise) => (self.controller(subject, present)?, None),
            (None, Mode::Active) => {
                let controller = self.controller(subject, present)?;
                let lease = Lease::take(machine, self.holder, subject, present, controller.candidates())?;
                (controller, Some(lease))
            }
        };
        controller.start(self.now_ns());
        Ok(Layered {
            subject: subject.clone(),
            controller,
            source,
            lease,
            given_up: None,
            unseen: None,
            vetoed: BTreeMap::new(),
            tally: Tally::default(),
            rests_until_ns: 0,
            comparisons: Comparisons::default(),
        })
    }

    /// The wakeup latency. dwell_idle has its own, which no candidate changes. Bursts of a guest measure it:
    /// until one has seen a halt it is taken to be the halt cost, as in a replay. Waits of an I/O thread
    /// include it.
    fn latency(&self, setting: &Setting) -> WakeupLatency {
        let own = setting.get("wake_latency_ns").and_then(|own| u64::try_from(own).ok());
        let Config { wakeup_latency, calibrated_latency, halt_cost, .. } = self.config;
        let (assumed, measured) = match (own.map(Nanos).or(wakeup_latency), setting.layer()) {
            (Some(given), _) => (given, false),
            (None, Layer::Guest) => (halt_cost, true),
            (None, Layer::Host) => (calibrated_latency.unwrap_or(Nanos::ZERO), false),
            (None, _) => (Nanos::ZERO, false),
        };
        WakeupLatency { assumed, measured }
    }

    pub(super) fn controller(&self, subject: &Subject, originals: Setting) -> anyhow::Result<Controller> {
        let Config { mode, halt_cost, longest_window, period, cpu_limit, verify, .. } = self.config;
        let late = self.latency(&originals).assumed;
        let turns = mode == Mode::Active && self.config.compares(subject.layer());
        let verify = turns.then_some(verify);
        let by_work = turns && subject.layer() == Layer::Guest;
        // Comparisons of a guest's settings have the rest.
        let cpu_limit = Nanos(cpu_limit.get() - if self.has_guest { cpu_limit.get() / ONE_IN } else { 0 });
        let terms =
            Terms { late, longest_window, period, cpu_limit, verify, by_work, ..Terms::at(halt_cost) };
        Ok(Controller::new(originals, terms)?)
    }

    /// What an earlier controller has left, if it can be gone on with. Otherwise the originals are restored,
    /// or where nothing is to be written it is said that they are not in force.
    fn adopted(&self, subject: &Subject) -> anyhow::Result<Option<(Controller, Lease)>> {
        let machine = self.machine;
        let changes = journal::read_all(machine, self.holder.state_directory())?;
        if self.config.mode == Mode::Advise {
            self.say_interrupted(subject, &changes)?;
        }
        let Some(open) = lease::open_of(&changes, subject) else { return Ok(None) };
        if self.config.mode == Mode::Advise {
            let how = if open.left {
                "has ended and left its setting"
            } else {
                "was killed and its setting is still in force"
            };
            self.notes
                .say(subject, &format!("a controller {how}; `dwell control stop` restores the originals"));
            return Ok(None);
        }
        let why = match self.adopt(subject, open) {
            Ok(adopted) => {
                let present = adopted.1.now();
                self.notes.say(
                    subject,
                    &format!("adopts the setting that was left (change {}): {present}", open.id),
                );
                return Ok(Some(adopted));
            }
            Err(_) if !open.left => "a controller that was killed had left its setting; ".to_owned(),
            Err(error) => format!("the setting that was left is not adopted, as {error:#}; "),
        };
        if let Some(reverted) = lease::end_left_open(machine, self.holder, subject)? {
            told_of(self.notes, subject, &why, &reverted)?;
        }
        Ok(None)
    }

    /// A line where what is in force may be what an interrupted change, or verification of one, has left.
    fn say_interrupted(&self, subject: &Subject, changes: &[Change]) -> anyhow::Result<()> {
        let (machine, state_directory) = (self.machine, self.holder.state_directory());
        let is_verified = || journal::is_not_verified(machine, state_directory).is_err();
        if lease::interrupted(machine, changes, subject)?.is_none() || is_verified() {
            return Ok(());
        }
        // While the journal is locked, no other dwell is between two writes.
        let journal = Journal::open(machine, state_directory)?;
        if let Some(id) = lease::interrupted(machine, journal.changes(), subject)? {
            let line = format!(
                "change {id} was interrupted, and what is in force may be left from it; `dwell revert {id}` restores the \
                 originals"
            );
            self.notes.say(subject, &line);
        }
        Ok(())
    }

    fn adopt(&self, subject: &Subject, open: &Change) -> anyhow::Result<(Controller, Lease)> {
        let machine = self.machine;
        let originals = lease::originals(open).context("the journal does not have the originals")?;
        let controller = self.controller(subject, originals)?;
        let present = self.present(subject)?;
        let lease = Lease::adopt(machine, self.holder, subject, present, controller.candidates())?;
        Ok((controller.adopting(present)?, lease))
    }

    /// The setting in force.
    pub(super) fn present(&self, subject: &Subject) -> anyhow::Result<Setting> {
        match subject {
            Subject::Layer(layer) => setting(self.machine, *layer),
            Subject::Iothread(target) => Ok(iothread::find_one(self.machine, target)?.setting),
        }
    }

    /// Control of a layer begins anew; what it did is kept.
    pub(super) fn renew(&mut self, at: usize) -> anyhow::Result<()> {
        let subject = self.layers[at].subject.clone();
        let layered = self.asking(|control| control.layered(&subject)).0?;
        self.log_start(&layered);
        let tally = std::mem::take(&mut self.layers[at].tally);
        self.layers[at] = Layered { tally, ..layered };
        Ok(())
    }
}
