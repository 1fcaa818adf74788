//! The QEMUs whose I/O threads are controlled: waited for, taken up, and parted from.

use super::Control;
use super::config::Mode;
use super::iothread;
use super::layered::Layered;
use super::leases::{end_left_open, told_of};
use dwell_knobs::journal;
use dwell_knobs::lease;

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
    /// Ends the leases that a killed controller left of QEMUs that are no longer to be controlled.
    pub(super) fn end_of_other_qemus(&self) -> anyhow::Result<()> {
        if self.config.mode == Mode::Advise {
            return Ok(());
        }
        let is_other = |change: &journal::Change| {
            let socket = change.plan.iothread.as_ref().map(|target| &target.socket);
            socket.is_some_and(|socket| self.qemus.iter().all(|qemu| qemu.socket != *socket))
        };
        end_left_open(self.machine, self.state_directory, self.notes, is_other)
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
                    for lease in layers.into_iter().filter_map(|layered: Layered| layered.lease) {
                        lease::end(self.machine, self.state_directory, lease.id())?;
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
        for parted in self.layers.extract_if(.., is_of) {
            let Some(lease) = parted.lease else { continue };
            let reverted = lease::end(self.machine, self.state_directory, lease.id())?;
            if reverted.complete {
                told_of(self.notes, &parted.subject, "", &reverted)?;
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
