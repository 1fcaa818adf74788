//! Decisions, what is made of them, and the end of control of a layer.

use super::config::Mode;
use super::iothread::{Look, Trouble};
use super::layered::Layered;
use super::metrics::Reason;
use super::observe::called;
use super::words;
use super::{Control, nanos};
use crate::core::{Cause, Change, Observed};
use dwell_knobs::lease::{Lease, SetError};
use dwell_policy::Nanos;
use std::time::Duration;

impl Control<'_> {
    /// What has become of a layer that could not be observed or set.
    fn trouble(&mut self, at: usize, trouble: Trouble) -> anyhow::Result<()> {
        match (trouble, self.layers[at].subject.iothread()) {
            (Trouble::Lost(why), Some(target)) => {
                let socket = target.socket.clone();
                self.mark_lost(&socket, &why);
                Ok(())
            }
            (Trouble::Lost(why), None) => self.give_up(at, Reason::Failed, &why),
            (Trouble::Other(error), _) => {
                let foreign = error.downcast_ref().is_some_and(|error| matches!(error, SetError::Foreign(_)));
                let reason = if foreign { Reason::Foreign } else { Reason::Failed };
                self.give_up(at, reason, &format!("{error:#}"))
            }
        }
    }

    /// What cannot be observed now may be later: until then the originals are in force. The same reason is told once.
    fn unseen(&mut self, at: usize, trouble: Trouble) -> anyhow::Result<()> {
        let error = match trouble {
            // What cannot be set is not a matter of what can be seen.
            Trouble::Other(error) if !error.is::<SetError>() => error,
            trouble => return self.trouble(at, trouble),
        };
        let now_ns = self.now_ns();
        let layered = &mut self.layers[at];
        let why = format!("{error:#}");
        let change = layered.controller.unseen(now_ns);
        if layered.unseen.as_ref() == Some(&why) {
            layered.controller.changed(&change);
            layered.tally.reason(Reason::Failed);
            return Ok(());
        }
        let line = format!("{}: {why}", self.line(at, &change));
        self.layers[at].unseen = Some(why);
        match self.config.mode {
            Mode::Active => self.act(at, &change, &line),
            Mode::Advise => {
                self.layers[at].controller.changed(&change);
                self.advise(at, &change, &line);
                Ok(())
            }
        }
    }

    fn seen_again(&mut self, at: usize) {
        if self.layers[at].unseen.take().is_some() {
            self.notes.say(&self.layers[at].subject, "it can be observed again");
        }
    }

    /// One line of a change.
    fn line(&self, at: usize, change: &Change) -> String {
        let source = &*self.layers[at].source;
        words::line(change, &|idler| called(source, idler))
    }

    pub(super) fn give_up_if_foreign(&mut self, at: usize) -> anyhow::Result<()> {
        let lease = self.layers[at].lease.as_ref();
        match lease.map(|lease| lease.check(self.machine)) {
            Some(Err(error)) => self.trouble(at, error.into()),
            _ => Ok(()),
        }
    }

    /// Restores the originals of a layer, except values written by another program, and does not control the
    /// layer any more.
    fn give_up(&mut self, at: usize, reason: Reason, why: &str) -> anyhow::Result<()> {
        let subject = self.layers[at].subject.clone();
        self.layers[at].tally.reason(reason);
        let now_ns = self.now_ns();
        let controller = &self.layers[at].controller;
        let (present, originals) = (controller.status(now_ns).present, controller.originals());
        if let Some(log) = &mut self.log {
            log.ended(&subject, now_ns, &present, &originals, reason.name(), why);
        }
        self.notes.say(&subject, &format!("control ends until `dwell control resume`: {why}"));
        self.layers[at].given_up = Some(why.to_owned());
        match self.layers[at].lease.take() {
            Some(lease) => self.end(&[&lease]),
            None => Ok(()),
        }
    }

    /// Decides for the layers that are due. Where CPU time is short all of them become due at the same time
    /// and the first one uses what there is, so that they take turns to be first. Whether nothing but looks were due.
    pub(super) fn decide(&mut self) -> anyhow::Result<bool> {
        let (number, first) = (self.layers.len(), self.first);
        let (mut looked, mut decided) = (false, false);
        for at in (0..number).map(|step| (first + step) % number) {
            let now = self.now_ns();
            let layered = &self.layers[at];
            if layered.given_up.is_some() {
                continue;
            }
            let due = layered.next_at_ns() <= now;
            let look = !due && layered.next_look_ns().is_some_and(|next| next <= now);
            if due && !self.is_lost(at) {
                self.first = (at + 1) % number;
                match layered.subject.iothread() {
                    Some(_) => {
                        let (decided, waited) = self.asking(|control| control.decide_one(at));
                        decided?;
                        self.leave_alone(at, waited);
                    }
                    None => self.decide_one(at)?,
                }
            } else if look {
                // A decision meets the same trouble.
                let Layered { source, controller, .. } = &mut self.layers[at];
                let _ = source.look(controller, now);
            }
            if due {
                let next_ns = self.layers[at].next_at_ns();
                let until_next_ns = next_ns.saturating_sub(self.now_ns());
                self.layers[at].source.rest(until_next_ns);
            }
            if due || look {
                self.account(at);
            }
            (looked, decided) = (looked || look, decided || due);
        }
        Ok(looked && !decided)
    }

    /// The CPU time of this process but for what it does for others: whoever asks for figures is not to make
    /// decisions rare.
    pub(super) fn used(&self) -> Duration {
        let serving = self.metrics.as_ref().map_or(Duration::ZERO, |server| server.cpu_time());
        self.world.cpu_time().saturating_sub(serving + self.answering)
    }

    /// Whatever this process did since the last call is accounted for, no matter what for: all layers
    /// together are to use no more than one may.
    fn account(&mut self, at: usize) {
        let (now_ns, used) = (self.now_ns(), self.used());
        let spent = used.saturating_sub(std::mem::replace(&mut self.accounted, used));
        let Layered { source, tally, comparisons, lease, .. } = &mut self.layers[at];
        tally.cpu += spent;
        tally.writes += lease.as_mut().map_or(0, Lease::take_writes);
        let limited = spent.saturating_sub(source.take_searched() + comparisons.take_used());
        let limited = Nanos(nanos(limited));
        self.layers.iter_mut().for_each(|layered| layered.controller.spent(now_ns, limited));
    }

    fn decide_one(&mut self, at: usize) -> anyhow::Result<()> {
        if self.layers[at].source.is_to_be_checked() {
            let is_known = match self.config.mode {
                Mode::Active => self.give_up_if_foreign(at).map(|()| true),
                Mode::Advise => self.follows_the_setting(at),
            };
            if !is_known? {
                return Ok(());
            }
        }
        if self.layers[at].given_up.is_some() || self.is_lost(at) {
            return Ok(());
        }
        let Some(observed) = self.look(at)? else { return Ok(()) };
        let now_ns = self.now_ns();
        let layered = &mut self.layers[at];
        layered.tally.decisions += 1;
        let change = layered.controller.decide(now_ns, &observed);
        layered.tally.see(layered.controller.seen(), layered.controller.vetoes(), &*layered.source);
        layered.say_vetoes(now_ns, self.notes);
        if let Some(log) = &mut self.log {
            log.saw(&layered.subject, now_ns, layered.controller.seen());
        }
        match self.config.mode {
            Mode::Advise => {
                let advice = self.by_work(at, change);
                advice.iter().for_each(|change| self.advise(at, change, &self.line(at, change)));
                Ok(())
            }
            Mode::Active => {
                let change = change.or_else(|| self.compared(at));
                change.map_or(Ok(()), |change| self.act(at, &change, &self.line(at, &change)))
            }
        }
    }

    /// What was seen; `None` if nothing of it decides.
    fn look(&mut self, at: usize) -> anyhow::Result<Option<Vec<Observed>>> {
        let now_ns = self.now_ns();
        let Layered { source, controller, lease, .. } = &mut self.layers[at];
        if controller.settles() && source.vms().is_none() {
            return Ok(Some(vec![]));
        }
        let quiet = match source.observe(self.machine, controller, lease.as_mut(), now_ns) {
            Ok(Look::Episodes(observed)) => {
                self.seen_again(at);
                return Ok(Some(observed));
            }
            Ok(Look::Nothing { quiet }) => quiet,
            Ok(Look::Polls) => {
                let what = "no advice: it polls, and episodes that end while it polls cannot be recorded; with \
                            --mode active its polling is disabled for short times";
                self.notes.say(&self.layers[at].subject, what);
                true
            }
            Err(trouble) => {
                self.unseen(at, trouble)?;
                return Ok(None);
            }
        };
        self.seen_again(at);
        let now_ns = self.now_ns();
        self.layers[at].controller.postpone(now_ns, quiet);
        Ok(None)
    }

    /// Without control the setting may be changed by anybody: advice is over the one in force.
    fn follows_the_setting(&mut self, at: usize) -> anyhow::Result<bool> {
        let layered = &self.layers[at];
        let is_iothread = layered.subject.iothread().is_some();
        let followed = match self.present(&layered.subject) {
            Ok(now) if now == layered.controller.originals() => Ok(()),
            Ok(_) => self.renew(at),
            Err(error) => Err(error),
        };
        match followed {
            Ok(()) => Ok(true),
            Err(error) => self.unseen(at, Trouble::of(is_iothread, error)).map(|()| false),
        }
    }

    fn advise(&mut self, at: usize, change: &Change, line: &str) {
        let layered = &mut self.layers[at];
        layered.tally.change(change.at_ns, Reason::of(&change.cause), line);
        if let Some(log) = &mut self.log {
            log.changed(&layered.subject, change, line);
        }
        let gives_none = matches!(change.cause, Cause::Untrusted { .. } | Cause::Unseen { .. });
        let line = match change.cause {
            _ if gives_none => format!("no advice; {line}"),
            _ if change.writes() == 0 => format!("advice: leave the setting as it is: {line}"),
            Cause::Work { .. } => format!("advice: {line}"),
            _ => format!("advice, by replay alone: {line}"),
        };
        if !gives_none {
            layered.controller.advised(change);
        }
        self.notes.say(&layered.subject, &line);
    }

    fn act(&mut self, at: usize, change: &Change, line: &str) -> anyhow::Result<()> {
        let layered = &mut self.layers[at];
        let reason = Reason::of(&change.cause);
        let Some(lease) = &mut layered.lease else { return Ok(()) };
        if let Err(error) = lease.set(self.machine, &change.to) {
            return self.trouble(at, error.into());
        }
        layered.controller.changed(change);
        if let Some(log) = &mut self.log {
            log.changed(&layered.subject, change, line);
        }
        if change.cause == Cause::Turn {
            return Ok(());
        }
        layered.tally.change(change.at_ns, reason, line);
        self.notes.say(&layered.subject, line);
        Ok(())
    }
}
