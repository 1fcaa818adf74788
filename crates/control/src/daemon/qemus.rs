//! The QEMUs whose I/O threads are controlled: waited for, taken up, and parted from.

use super::Control;
use super::config::Mode;
use super::iothread;
use super::layered::Layered;
use super::leases::{end_left_open, told_of};
use dwell_knobs::journal;
use dwell_knobs::lease::{self, Lease, Subject};

/// How often a QEMU that does not answer is tried \[ns\].
const TRY_AGAIN_NS: u64 = 1_000_000_000;

/// A QEMU whose I/O threads are controlled while it is there.
pub(super) struct Qemu {
    pub(super) socket: String,
    pub(super) state: QemuState,
}

pub(super) enum QemuState {
    /// It is tried again then \[ns\]; whether it was said why.
    Waiting(u64, bool),
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
        for at in 0..self.qemus.len() {
            if let QemuState::Lost(why) = &self.qemus[at].state {
                let why = why.clone();
                self.part_from(at, &why)?;
            }
            let QemuState::Waiting(next, told) = self.qemus[at].state else { continue };
            if self.now_ns() < next {
                continue;
            }
            let socket = self.qemus[at].socket.clone();
            match self.threads_of(&socket) {
                Ok(layers) => {
                    layers.into_iter().for_each(|layered| self.take_up(layered));
                    self.qemus[at].state = QemuState::Here;
                }
                Err(error) => {
                    if !told {
                        self.say_of_iothreads(&format!("waiting for the QEMU at {socket}: {error:#}"));
                    }
                    self.qemus[at].state = QemuState::Waiting(self.now_ns() + TRY_AGAIN_NS, true);
                }
            }
        }
        Ok(())
    }

    fn threads_of(&self, socket: &str) -> anyhow::Result<Vec<Layered>> {
        let mut layers = vec![];
        for found in iothread::find(self.machine, socket)? {
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
        self.qemus[at].state = QemuState::Waiting(self.now_ns(), true);
        let is_of =
            |layered: &mut Layered| layered.subject.iothread().is_some_and(|target| target.socket == socket);
        let parted: Vec<Layered> = self.layers.extract_if(.., is_of).collect();
        let leases: Vec<&Lease> = parted.iter().filter_map(|layered| layered.lease.as_ref()).collect();
        for (lease, ended) in leases.iter().zip(lease::end(self.machine, &leases)) {
            let reverted = ended?;
            if reverted.complete {
                told_of(self.notes, lease.subject(), "", &reverted)?;
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
