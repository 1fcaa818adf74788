//! The part of the host that an experiment uses: cores, a clock, and KVM.

use super::LabError;
use crate::guest::{IdleState, Sleeper, sleeper};
use crate::host::{Cores, Cpu, Pinned, Realtime, Ticks, Tsc, TscClock, TscHz};
use crate::idle::Idle;
use crate::vm::{KvmKind, Machine, Options, VmError};
use dwell_policy::Nanos;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// Priority under SCHED_FIFO: above everything that is not real-time.
const PRIORITY: u8 = 10;
/// How long the time-stamp counter is measured.
const CALIBRATION: Duration = Duration::from_millis(100);

/// The cores of an experiment's threads, and the clock that they share with the guest.
#[derive(Clone, Debug)]
pub struct Rig {
    cores: Cores,
    clock: TscClock,
    kvm_kind: KvmKind,
    /// Held while this rig or a copy of it lives.
    _alone: Arc<File>,
}

/// A thread is in its place: on its core, under SCHED_FIFO where that is allowed.
#[derive(Debug)]
#[must_use = "the thread is in its place only while this lives"]
pub struct Placed {
    // Dropped in this order: a thread that is no longer real-time may move.
    _realtime: Realtime,
    _pinned: Pinned,
}

impl Rig {
    /// Finds cores for `vcpus` vCPUs and one for whoever measures, tries KVM, and measures the clock.
    ///
    /// # Errors
    /// [`LabError`]: without KVM, with fewer than two CPUs, where the time-stamp counter is no clock, or beside another
    /// experiment.
    pub fn open(vcpus: usize) -> Result<Rig, LabError> {
        let cores = Cores::choose(vcpus)?;
        let machine = Machine::new(Options::default(), 1)?;
        let alone = alone()?;
        let khz = machine.vcpu(0, sleeper, machine.place::<Sleeper>()?)?.tsc_khz()?;
        let clock = TscClock::calibrate(TscHz::from_khz(khz), CALIBRATION)?;
        Ok(Rig { cores, clock, kvm_kind: KvmKind::detect(), _alone: Arc::new(alone) })
    }

    /// The rate of the clock.
    pub fn hz(&self) -> TscHz {
        self.clock.hz
    }

    /// Which cores are used.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Which KVM this is.
    pub fn kvm_kind(&self) -> &KvmKind {
        &self.kvm_kind
    }

    /// Notes on this machine that limit the figures.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("this KVM: {}", self.kvm_kind)];
        if self.cores.siblings {
            notes.push(
                "two of the CPUs used are hyperthreads of one core: one that polls slows the other"
                    .to_owned(),
            );
        }
        if !self.clock.reliable() {
            notes.push(
                "neither the CPU nor the kernel vouches for the time-stamp counter, the clock used here"
                    .to_owned(),
            );
        }
        if let Some(refused) = Realtime::ask(PRIORITY).refused() {
            notes.push(refused.to_string());
        }
        notes
    }

    /// Stores the policy by which a guest polls, if it polls at all, where its vCPU finds it.
    ///
    /// # Errors
    /// If the policy cannot be run.
    pub fn set_policy(&self, idle_state: &IdleState, idle: &Idle) -> Result<(), LabError> {
        if let Some(rule) = &idle.guest {
            idle_state.make(rule.policy()?, self.hz());
        }
        Ok(())
    }

    /// Puts this thread, which runs vCPU number `id`, in its place.
    ///
    /// # Errors
    /// If the core may not be used any more.
    pub fn vcpu_thread(&self, id: usize) -> Result<Placed, LabError> {
        Ok(Placed { _pinned: Pinned::to(self.core(id))?, _realtime: Realtime::ask(PRIORITY) })
    }

    /// Puts this thread on the core of vCPU number `id`, under the fair scheduler: it may share it with others.
    ///
    /// # Errors
    /// If the core may not be used any more.
    pub fn fair_thread(&self, id: usize) -> Result<Pinned, LabError> {
        Ok(Pinned::to(self.core(id))?)
    }

    fn core(&self, id: usize) -> Cpu {
        self.cores.vcpus.get(id).copied().unwrap_or(self.cores.stimulus)
    }

    /// Puts this thread, which wakes the vCPUs and measures, in its place.
    ///
    /// # Errors
    /// If the core may not be used any more.
    pub fn stimulus_thread(&self) -> Result<Placed, LabError> {
        Ok(Placed { _pinned: Pinned::to(self.cores.stimulus)?, _realtime: Realtime::ask(PRIORITY) })
    }

    /// Puts this thread, which watches over those of an experiment, on the stimulus's core and above them:
    /// one that spins there could not be ended otherwise.
    ///
    /// # Errors
    /// If the core may not be used any more.
    pub fn supervisor_thread(&self) -> Result<Placed, LabError> {
        Ok(Placed { _pinned: Pinned::to(self.cores.stimulus)?, _realtime: Realtime::ask(PRIORITY + 1) })
    }

    /// Keeps this thread, which has other work, away from the cores of the vCPUs: KVM stops polling where anything else
    /// wants to run.
    ///
    /// # Errors
    /// If the core may not be used any more.
    pub fn aside(&self) -> Result<Pinned, LabError> {
        Ok(Pinned::to(self.cores.stimulus)?)
    }

    /// The time since then.
    #[inline]
    pub fn since(&self, then: Tsc) -> Nanos {
        self.clock.between(then, Tsc::now())
    }

    /// From one time to another.
    pub fn between(&self, begin: Tsc, end: Tsc) -> Nanos {
        self.clock.between(begin, end)
    }

    /// A number of cycles as time \[ns\].
    pub fn nanos(&self, cycles: u64) -> u64 {
        self.clock.hz.nanos(Ticks(cycles)).get()
    }

    /// A time in cycles.
    pub fn cycles(&self, time: Nanos) -> u64 {
        self.clock.hz.ticks(time).0
    }

    /// Spins for so long.
    #[inline]
    pub fn spin(&self, time: Nanos) {
        self.clock.after(Tsc::now(), time).spin_until();
    }
}

/// Keeps experiments apart, of other processes too: their real-time threads would wait for each other's cores
/// for ever. The lock is on `/dev/kvm` itself, which no other program locks, and ends with the process.
fn alone() -> Result<File, LabError> {
    let kvm = File::open("/dev/kvm").map_err(VmError::NoKvm)?;
    match flock(&kvm, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(kvm),
        Err(_) => Err(LabError::NotAlone),
    }
}
