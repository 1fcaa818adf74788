//! Whether a knob can be set here, and whether it has an effect.

use crate::knob::{Knob, Module};
use crate::place::Place;
use dwell_machine::{Apicv, Cpuidle, Facts, Machine, Writable, can_post, max_source};
use dwell_policy::arch::Arch;
use dwell_policy::host::{self, MaxSource};
use dwell_policy::timer::{PostingPredicate, Revision};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Owner};
use serde::Serialize;
use std::io;

/// Why a knob has no effect in the present state of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "cause")]
#[non_exhaustive]
pub enum NoEffect {
    /// haltpoll is available, but without a cpuidle driver no governor runs.
    #[error(
        "no cpuidle driver is in use, so no governor runs and nothing reads the parameters of haltpoll; see `dwell doctor`"
    )]
    NoCpuidleDriver,
    #[error(
        "the idle driver dwell_idle decides in place of haltpoll, and learns; set its own parameters (`dwell tune` and \
         `dwell apply`, with a recording made under it, or `dwell control --layer driver`), or run `rmmod dwell_idle` and \
         load haltpoll"
    )]
    DwellIdle,
    #[error("the cpuidle governor in use is {governor}; only haltpoll reads its parameters")]
    OtherGovernor { governor: String },
    #[error(
        "the cpuidle governor in use is {governor}, and this kernel has no haltpoll governor (CONFIG_CPU_IDLE_GOV_HALTPOLL)"
    )]
    NoHaltpollGovernor {
        /// The one that decides.
        governor: String,
    },
    /// `pi_inject_timer` posts interrupts, and this KVM cannot.
    #[error(
        "interrupts can be posted into guests only with APICv or AVIC, and {}",
        .switch.as_ref().map_or("neither kvm_intel nor kvm_amd is loaded".to_owned(), |switch| format!("{switch} is off"))
    )]
    NoApicv {
        /// The switch that is off, if there is one.
        switch: Option<String>,
    },
    /// The windows do not depend on it: decided by the model of the rule.
    #[error("with {}, no value changes any window", .beside.as_deref().unwrap_or("the other values"))]
    NoWindow {
        /// The other parameter that is the reason, as `name = value`; `None` if several are together.
        beside: Option<String>,
    },
    /// The wanted setting gives the same windows as the present one: decided by the model of the rule.
    #[error("the present setting gives the same window after every sequence of halts; see `dwell explain`")]
    Equivalent,
}

/// The name of the idle driver dwell_idle.
const DWELL_IDLE: &str = Module::DwellIdle.name();

/// The facts of a machine that decide whether parameters are read.
#[derive(Clone, Debug)]
pub struct Readers {
    cpuidle: Cpuidle,
    apicv: Option<Apicv>,
    can_post: Option<bool>,
}

impl From<&Facts> for Readers {
    fn from(facts: &Facts) -> Readers {
        let (apicv, can_post) = (facts.timer.apicv, facts.timer.can_post);
        Readers { cpuidle: facts.guest.cpuidle.clone(), apicv, can_post }
    }
}

impl Readers {
    /// Reads them from a machine.
    pub fn of(machine: &dyn Machine) -> Readers {
        let (apicv, can_post) = (Apicv::read(machine), can_post(machine));
        Readers { cpuidle: Cpuidle::read(machine), apicv, can_post }
    }

    /// What a machine does not show, where whether anything reads this knob depends on it.
    pub fn not_known(&self, knob: Knob) -> Option<&'static str> {
        match knob.param.owner {
            Owner::Layer(Layer::Guest) if !self.cpuidle.is_known => {
                Some("which cpuidle driver is in use does not show here")
            }
            Owner::Timer if knob.param.name == "pi_inject_timer" && self.can_post.is_none() => {
                Some("whether APICv or AVIC is on does not show here")
            }
            _ => None,
        }
    }

    /// Why nothing reads this knob; `None` if something does, or that is [not known](Readers::not_known).
    pub fn no_effect(&self, knob: Knob) -> Option<NoEffect> {
        match knob.param.owner {
            Owner::Layer(Layer::Guest) => self.haltpoll(),
            Owner::Timer if knob.param.name == "pi_inject_timer" => self.posting(),
            _ => None,
        }
    }

    /// Why nothing reads haltpoll's parameters.
    pub fn haltpoll(&self) -> Option<NoEffect> {
        match self.cpuidle.driver.as_deref() {
            None if !self.cpuidle.is_known => return None,
            None => return Some(NoEffect::NoCpuidleDriver),
            Some(DWELL_IDLE) => return Some(NoEffect::DwellIdle),
            Some(_) => {}
        }
        let governor = self.cpuidle.governor.clone()?;
        match (self.cpuidle.haltpoll_decides(), self.cpuidle.has_haltpoll_governor()) {
            (true, _) => None,
            (false, true) => Some(NoEffect::OtherGovernor { governor }),
            (false, false) => Some(NoEffect::NoHaltpollGovernor { governor }),
        }
    }

    fn posting(&self) -> Option<NoEffect> {
        let switch = self.apicv.map(|switch| switch.path.to_owned());
        (self.can_post == Some(false)).then_some(NoEffect::NoApicv { switch })
    }
}

/// Why this knob has no effect on a machine; `None` if something reads it, as far as a machine shows.
pub fn no_effect(machine: &dyn Machine, knob: Knob) -> Option<NoEffect> {
    Readers::of(machine).no_effect(knob)
}

/// Limits that dwell cannot check and that whoever sets this knob has to know.
pub fn provisos(knob: Knob, version: Version, machine: Option<&dyn Machine>) -> Vec<&'static str> {
    match knob.param.name {
        "pi_inject_timer" => match Revision::rules(version).map(|rules| rules.agreed(Revision::posting)) {
            Ok(Some(PostingPredicate::Merged2022)) => vec![
                "this kernel posts only for VMs that execute MWAIT or HLT themselves (-overcommit cpu-pm=on of QEMU)",
            ],
            Ok(None) => vec![
                "whether this kernel posts for every VM, or only for those that execute MWAIT or HLT themselves \
                 (-overcommit cpu-pm=on of QEMU), is not known: its distributor may have taken over the rule of 2022",
            ],
            _ => vec![],
        },
        "halt_poll_ns" => {
            let of_version =
                || host::Revision::rules(version).ok().and_then(|r| r.agreed(host::Revision::max_source));
            let source = machine.map_or_else(of_version, |machine| max_source(machine, Some(version)));
            let mut all = vec![];
            if source != Some(MaxSource::Live) {
                all.push("VMs whose VMM has set KVM_CAP_HALT_POLL keep their own maximum, which cannot be read from outside");
            }
            if source == Some(MaxSource::CopiedAtCreation) {
                all.push(
                    "what is written before a VM starts, and the old value after it, is a setting of this VM alone",
                );
            }
            if version.arch == Arch::X86_64 {
                all.push(
                    "no VM uses the value whose HLT does not exit (-overcommit cpu-pm=on of QEMU), or whose guest has \
                     switched host polling off (haltpoll, with poll control)",
                );
            }
            all.extend(version.arch.host_proviso());
            all
        }
        "halt_poll_max_steal" => version.arch.host_proviso().into_iter().collect(),
        _ => vec![],
    }
}

/// Why a knob cannot be written here.
#[derive(Debug, thiserror::Error)]
pub enum Unwritable {
    #[error("it does not exist")]
    Missing,
    #[error("it is read-only on this kernel")]
    ReadOnly,
    #[error("it cannot be opened for writing: {0}")]
    Refused(io::Error),
}

/// Whether a place can be written. Nothing is written.
///
/// # Errors
/// [`Unwritable`]. For a QEMU only a write shows it.
pub fn writable(machine: &dyn Writable, place: &Place) -> Result<(), Unwritable> {
    let Place::Parameter(path) = place else { return Ok(()) };
    match machine.try_writing(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unwritable::Missing),
        // An error of the kernel has a number; a mode without write permission has none.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none() => {
            Err(Unwritable::ReadOnly)
        }
        Err(error) => Err(Unwritable::Refused(error)),
    }
}
