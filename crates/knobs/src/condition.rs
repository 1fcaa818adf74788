//! Whether a knob can be set here, and whether it has an effect.

use crate::knob::Knob;
use crate::place::Place;
use dwell_machine::{Apicv, Cpuidle, Facts, Machine, Writable};
use dwell_policy::Layer;
use dwell_policy::timer::{PostingPredicate, Revision};
use dwell_policy::version::Version;
use serde::Serialize;
use std::fmt;
use std::io;

/// Why a knob has no effect in the present state of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
#[non_exhaustive]
pub enum NoEffect {
    /// haltpoll is there, but without a cpuidle driver no governor is asked.
    NoCpuidleDriver,
    /// Another cpuidle governor decides.
    OtherGovernor {
        /// Which.
        governor: String,
    },
    /// Another cpuidle governor decides, and this kernel has no haltpoll governor.
    NoHaltpollGovernor {
        /// The one that decides.
        governor: String,
    },
    /// `pi_inject_timer` posts interrupts, and this KVM cannot.
    NoApicv {
        /// The switch that is off, if there is one.
        switch: Option<String>,
    },
    /// The windows do not depend on it: decided by the model of the rule.
    NoWindow {
        /// The other parameters that make it so, as `name = value`; none if they do only together.
        beside: Option<String>,
    },
    /// The setting that is wanted gives the same windows as the one that is there: decided by the model of the rule.
    Equivalent,
}

impl fmt::Display for NoEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoEffect::NoCpuidleDriver => f.write_str(
                "no cpuidle driver is in use, so no governor is asked and nothing reads the parameters of haltpoll; see \
                 `dwell doctor`",
            ),
            NoEffect::OtherGovernor { governor } => {
                write!(f, "the cpuidle governor in use is {governor}; only haltpoll reads its parameters")
            }
            NoEffect::NoHaltpollGovernor { governor } => write!(
                f,
                "the cpuidle governor in use is {governor}, and this kernel has no haltpoll governor \
                 (CONFIG_CPU_IDLE_GOV_HALTPOLL)"
            ),
            NoEffect::NoApicv { switch: Some(switch) } => {
                write!(f, "interrupts can be posted into guests only with APICv or AVIC, and {switch} is off")
            }
            NoEffect::NoApicv { switch: None } => f.write_str(
                "interrupts can be posted into guests only with APICv or AVIC, and neither kvm_intel nor kvm_amd is there",
            ),
            NoEffect::NoWindow { beside: Some(other) } => {
                write!(f, "beside {other} no value makes a difference to any window")
            }
            NoEffect::NoWindow { beside: None } => {
                f.write_str("beside the other values none makes a difference to any window")
            }
            NoEffect::Equivalent => f.write_str(
                "the setting that is there gives the same window after every sequence of halts; see `dwell explain`",
            ),
        }
    }
}

/// What on a machine decides whether parameters are read.
#[derive(Clone, Debug)]
pub struct Readers {
    cpuidle: Cpuidle,
    apicv: Option<Apicv>,
}

impl From<&Facts> for Readers {
    fn from(facts: &Facts) -> Readers {
        Readers { cpuidle: facts.guest.cpuidle.clone(), apicv: facts.timer.apicv }
    }
}

impl Readers {
    /// Reads them from a machine.
    pub fn of(machine: &dyn Machine) -> Readers {
        Readers { cpuidle: Cpuidle::read(machine), apicv: Apicv::read(machine) }
    }

    /// Why nothing reads this knob; `None` if something does, as far as a machine shows.
    pub fn no_effect(&self, knob: Knob) -> Option<NoEffect> {
        match knob.param.layer {
            Layer::Guest => self.haltpoll(),
            Layer::Timer if knob.param.name == "pi_inject_timer" => self.posting(),
            _ => None,
        }
    }

    fn haltpoll(&self) -> Option<NoEffect> {
        if self.cpuidle.driver.is_none() {
            return Some(NoEffect::NoCpuidleDriver);
        }
        let governor = self.cpuidle.governor.clone()?;
        match (self.cpuidle.haltpoll_decides(), self.cpuidle.has_haltpoll_governor()) {
            (true, _) => None,
            (false, true) => Some(NoEffect::OtherGovernor { governor }),
            (false, false) => Some(NoEffect::NoHaltpollGovernor { governor }),
        }
    }

    fn posting(&self) -> Option<NoEffect> {
        match self.apicv {
            Some(switch) if switch.on => None,
            switch => Some(NoEffect::NoApicv { switch: switch.map(|switch| switch.path.to_owned()) }),
        }
    }
}

/// Why this knob has no effect on a machine; `None` if something reads it, as far as a machine shows.
pub fn no_effect(machine: &dyn Machine, knob: Knob) -> Option<NoEffect> {
    Readers::of(machine).no_effect(knob)
}

/// What a machine does not show and a person who sets this knob has to know.
pub fn proviso(knob: Knob, version: Version) -> Option<&'static str> {
    let merged_2022 =
        || Revision::of(version).is_ok_and(|revision| revision.posting() == PostingPredicate::Merged2022);
    match knob.param.name {
        "pi_inject_timer" if merged_2022() => Some(
            "this kernel posts only for VMs that execute MWAIT or HLT themselves (-overcommit cpu-pm=on of QEMU)",
        ),
        "halt_poll_ns" if version.at_least(5, 8) => Some(
            "VMs whose VMM has set KVM_CAP_HALT_POLL keep their own maximum, which cannot be read from outside",
        ),
        _ => None,
    }
}

/// Why a knob cannot be written here.
#[derive(Debug)]
pub enum Unwritable {
    /// It is not there.
    Missing,
    /// The kernel does not let anybody write it.
    ReadOnly,
    /// It cannot be opened for writing.
    Refused(io::Error),
}

/// Whether a place can be written; nothing is.
///
/// # Errors
/// [`Unwritable`]. Of a QEMU only a write tells.
pub fn writable(machine: &dyn Writable, place: &Place) -> Result<(), Unwritable> {
    let Place::Parameter(path) = place else { return Ok(()) };
    match machine.try_writing(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unwritable::Missing),
        // The kernel's own words have a number; a mode without any bit for writing has none.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none() => {
            Err(Unwritable::ReadOnly)
        }
        Err(error) => Err(Unwritable::Refused(error)),
    }
}
