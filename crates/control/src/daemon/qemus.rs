//! The QEMUs whose I/O threads are controlled: waited for, taken up, and parted from.
//!
//! A monitor is not trusted, neither to answer nor to be quick. It is asked for its I/O threads on a thread of its own, and
//! only one that answers is asked anything by the loop, which has a deadline for all that it asks for one purpose
//! ([`PATIENCE`]). Together monitors take [one part in so many](ONE_IN) of its time.

use super::config::Mode;
use super::iothread::Found;
use super::layered::Layered;
use super::leases::{end_left_open, told_of};
use super::{Control, nanos};
use anyhow::Context;
use dwell_knobs::journal;
use dwell_knobs::lease::{self, Lease, Subject};
use dwell_knobs::qmp;
use std::time::Duration;

/// How long to wait before a QEMU that does not answer is tried again \[ns\]: twice as long each time, …
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
/// … up to so long. One that was controlled for as long begins with the first.
const LONGEST_PAUSE_NS: u64 = 64_000_000_000;

/// How long the loop waits for one monitor until it does something else: the service manager waits 20 s for a word, and 15 s
/// for the end.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// One that has been waited for is left alone for as long that all of them take one part in so many of the time.
const ONE_IN: u32 = 4;
/// The most threads that ask monitors at the same time; the unit allows 32.
const MOST_ASKED: usize = 8;

/// A QEMU whose I/O threads are controlled while it is there.
pub(super) struct Qemu {
    pub(super) socket: String,
    pub(super) state: QemuState,
    /// The pause before it was tried last; 0 before the first time \[ns\].
    pub(super) pause_ns: u64,
    /// When it was tried last \[ns\].
    pub(super) tried_ns: u64,
}

impl Qemu {
    pub(super) fn new(socket: &str) -> Qemu {
        Qemu { socket: socket.to_owned(), state: QemuState::Waiting(0), pause_ns: 0, tried_ns: 0 }
    }

    fn wait(&mut self, now_ns: u64) {
        let was_here = now_ns.saturating_sub(self.tried_ns) >= LONGEST_PAUSE_NS + FIRST_PAUSE_NS;
        let before = if was_here { 0 } else { self.pause_ns };
        self.pause_ns = (2 * before).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
        self.state = QemuState::Waiting(now_ns + self.pause_ns);
    }
}

pub(super) enum QemuState {
    /// It is tried again then \[ns\].
    Waiting(u64),
    /// A thread asks its monitor.
    Asked,
    /// Its I/O threads are among the layers.
    Here,
    /// They are, and it does not answer.
    Lost(String),
}

impl Control<'_> {
    /// Ends the leases that an earlier controller left of what is not controlled any more: all that are open are then this
    /// controller's, or of a QEMU that it waits for.
    pub(super) fn end_of_others(&self) -> anyhow::Result<()> {
        if self.config.mode == Mode::Advise {
            return Ok(());
        }
        let is_other = |change: &journal::Change| match Subject::of(change) {
            Some(Subject::Iothread(target)) => self.qemus.iter().all(|qemu| qemu.socket != target.socket),
            subject => self.layers.iter().all(|layered| Some(&layered.subject) != subject.as_ref()),
        };
        end_left_open(self.machine, self.holder, self.notes, is_other)
    }

    /// Takes up the I/O threads of QEMUs that answer, and parts from those of QEMUs that do not.
    pub(super) fn meet_qemus(&mut self) -> anyhow::Result<()> {
        let mut asked = self.qemus.iter().filter(|qemu| matches!(qemu.state, QemuState::Asked)).count();
        for at in 0..self.qemus.len() {
            let socket = self.qemus[at].socket.clone();
            match &self.qemus[at].state {
                QemuState::Lost(why) => {
                    let why = why.clone();
                    self.part_from(at, &why)?;
                }
                QemuState::Waiting(next) if *next <= self.now_ns() && asked < MOST_ASKED => {
                    asked += 1;
                    self.qemus[at].tried_ns = self.now_ns();
                    self.qemus[at].state = QemuState::Asked;
                    self.world.look_for_iothreads(&socket);
                }
                QemuState::Asked => {
                    let Some(found) = self.world.found_iothreads(&socket) else { continue };
                    let layers = found
                        .and_then(|all| self.asking(|control| control.threads_of(all)).0)
                        .map(|layers| layers.into_iter().for_each(|layered| self.take_up(layered)));
                    let now_ns = self.now_ns();
                    match layers {
                        Ok(()) => self.qemus[at].state = QemuState::Here,
                        Err(error) => {
                            if self.qemus[at].pause_ns == 0 {
                                self.say_of_iothreads(&format!(
                                    "waiting for the QEMU at {socket}: {error:#}"
                                ));
                            }
                            self.qemus[at].wait(now_ns);
                        }
                    }
                }
                QemuState::Waiting(_) | QemuState::Here => {}
            }
        }
        Ok(())
    }

    /// Does what asks one monitor. Returns as well how long that was waited for.
    pub(super) fn asking<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> (T, Duration) {
        self.world.tell("WATCHDOG=1");
        qmp::within(PATIENCE, || work(self))
    }

    /// The monitor of this layer was waited for so long.
    pub(super) fn leave_alone(&mut self, at: usize, waited: Duration) {
        let socket = self.layers[at].subject.iothread().map(|target| target.socket.clone());
        let rest = waited * ONE_IN * u32::try_from(self.qemus.len()).unwrap_or(u32::MAX);
        let until_ns = self.now_ns() + nanos(rest);
        for layered in &mut self.layers {
            if layered.subject.iothread().map(|target| &target.socket) == socket.as_ref() {
                layered.rests_until_ns = until_ns;
            }
        }
    }

    fn threads_of(&self, all: Vec<Found>) -> anyhow::Result<Vec<Layered>> {
        let mut layers = vec![];
        // Before the first lease.
        for found in &all {
            self.controller(&found.subject, found.setting).with_context(|| found.subject.to_string())?;
        }
        for found in all {
            match self.layered(&found.subject) {
                Ok(layered) => layers.push(layered),
                Err(error) => {
                    // All of them or none.
                    let taken: Vec<&Lease> =
                        layers.iter().filter_map(|layered: &Layered| layered.lease.as_ref()).collect();
                    for ended in lease::end(self.machine, &taken) {
                        ended?;
                    }
                    return Err(error.context(found.subject.to_string()));
                }
            }
        }
        Ok(layers)
    }

    /// Ends the leases of a QEMU that does not answer. Where it runs nevertheless, they stay open, and are
    /// ended when it answers.
    fn part_from(&mut self, at: usize, why: &str) -> anyhow::Result<()> {
        let socket = self.qemus[at].socket.clone();
        self.say_of_iothreads(&format!("waiting for the QEMU at {socket}: {why}"));
        let now_ns = self.now_ns();
        self.qemus[at].wait(now_ns);
        let is_of =
            |layered: &mut Layered| layered.subject.iothread().is_some_and(|target| target.socket == socket);
        let parted: Vec<Layered> = self.layers.extract_if(.., is_of).collect();
        let leases: Vec<&Lease> = parted.iter().filter_map(|layered| layered.lease.as_ref()).collect();
        let (ended, _) = self.asking(|control| lease::end(control.machine, &leases));
        for (lease, ended) in leases.iter().zip(ended) {
            let reverted = ended?;
            match reverted.complete {
                true => told_of(self.notes, lease.subject(), "", &reverted)?,
                false => self.has_parted = true,
            }
        }
        Ok(())
    }

    /// Whether it is of a QEMU that does not answer.
    pub(super) fn is_lost(&self, at: usize) -> bool {
        let target = self.layers[at].subject.iothread();
        target.is_some_and(|target| {
            let is_lost =
                |qemu: &Qemu| qemu.socket == target.socket && matches!(qemu.state, QemuState::Lost(_));
            self.qemus.iter().any(is_lost)
        })
    }

    /// The QEMU with this socket does not answer.
    pub(super) fn mark_lost(&mut self, socket: &str, why: &str) {
        for qemu in self.qemus.iter_mut().filter(|qemu| qemu.socket == socket) {
            qemu.state = QemuState::Lost(why.to_owned());
        }
    }
}
