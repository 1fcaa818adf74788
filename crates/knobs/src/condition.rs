//! Whether a knob can be set here, and whether anything reads it.

use crate::knob::Knob;
use crate::place::Place;
use dwell_machine::{Apicv, Cpuidle, Machine, Writable};
use dwell_policy::Layer;
use dwell_policy::timer::{PostingPredicate, Revision};
use dwell_policy::version::Version;
use serde::Serialize;
use std::fmt;
use std::io;

/// Why nothing reads a knob in the present state of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Void {
    /// haltpoll is there, but without a cpuidle driver no governor is asked.
    NoCpuidleDriver,
    /// Another cpuidle governor decides.
    OtherGovernor {
        /// Which.
        governor: String,
    },
    /// `pi_inject_timer` posts interrupts, and this KVM cannot.
    NoApicv {
        /// The switch that is off, if there is one.
        switch: Option<String>,
    },
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Void::NoCpuidleDriver => f.write_str(
                "no cpuidle driver is in use, so no governor is asked and nothing reads the parameters of haltpoll; \
                 `dwell doctor` says why",
            ),
            Void::OtherGovernor { governor } => {
                write!(f, "the cpuidle governor in use is {governor}; only haltpoll reads its parameters")
            }
            Void::NoApicv { switch: Some(switch) } => {
                write!(f, "interrupts can be posted into guests only with APICv or AVIC, and {switch} is off")
            }
            Void::NoApicv { switch: None } => f.write_str(
                "interrupts can be posted into guests only with APICv or AVIC, and neither kvm_intel nor kvm_amd is there",
            ),
        }
    }
}

/// Why nothing reads this knob here; `None` if something does, as far as a machine tells.
pub fn void(machine: &dyn Machine, knob: Knob) -> Option<Void> {
    match knob.param.layer {
        Layer::Guest => haltpoll(machine),
        Layer::Timer if knob.param.name == "pi_inject_timer" => apicv(machine),
        _ => None,
    }
}

fn haltpoll(machine: &dyn Machine) -> Option<Void> {
    let cpuidle = Cpuidle::read(machine);
    if cpuidle.driver.is_none() {
        return Some(Void::NoCpuidleDriver);
    }
    let governor = cpuidle.governor?;
    (governor != "haltpoll").then_some(Void::OtherGovernor { governor })
}

fn apicv(machine: &dyn Machine) -> Option<Void> {
    match Apicv::read(machine) {
        Some(switch) if switch.on => None,
        switch => Some(Void::NoApicv { switch: switch.map(|switch| switch.path.to_owned()) }),
    }
}

/// What a machine does not tell and somebody who sets this knob has to know.
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
