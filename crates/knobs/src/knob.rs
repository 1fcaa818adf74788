//! One table of all knobs: name, meaning, place on a machine, scope, and how a value is kept.
//!
//! Names, units, ranges, defaults and versions are those of [`dwell_policy::param`]; here is what a machine
//! adds to them. A [`Knob`] is looked up by name, and everything that is printed about one or written to one
//! comes from it.

use crate::object_id::ObjectId;
use crate::place::Place;
use dwell_machine::{Machine, parameter};
use dwell_policy::host::{MaxSource, Revision};
use dwell_policy::param::{self, Param};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Owner};

/// A parameter of a rule that can be set on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Name, layer, unit, range, defaults by version, meaning of 0.
    pub param: &'static Param,
}

/// The I/O thread of a knob that is a property of one.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IothreadTarget {
    /// UNIX socket of QEMU's monitor.
    pub socket: String,
    /// Id of the iothread object.
    pub id: ObjectId,
    /// The domain's name, if libvirt runs it; needed only to keep values over a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

impl IothreadTarget {
    /// Where a property of it is.
    pub fn place(&self, property: &str) -> Place {
        Place::Iothread { socket: self.socket.clone(), id: self.id.clone(), property: property.to_owned() }
    }
}

dwell_policy::named! {
    /// The kernel module that a knob is a parameter of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Module {
        /// `kvm`: built in or loaded, on the host.
        Kvm = "kvm",
        /// `haltpoll`, the cpuidle governor: nearly always built in, in the guest.
        Haltpoll = "haltpoll",
        /// `dwell_idle`, the idle driver that learns: always a module, in the guest.
        DwellIdle = "dwell_idle",
    }

    pub fn name
}

impl Module {
    /// The one whose parameters these are; `None` for properties of I/O threads.
    pub const fn of(owner: Owner) -> Option<Module> {
        match owner {
            Owner::Layer(Layer::Host) | Owner::Timer => Some(Module::Kvm),
            Owner::Layer(Layer::Guest) => Some(Module::Haltpoll),
            Owner::Layer(Layer::Driver) => Some(Module::DwellIdle),
            Owner::Layer(Layer::Iothread) => None,
        }
    }
}

dwell_policy::named! {
    /// What a write affects, and when.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Scope {
        NextHalt = "every vCPU at its next halt, running VMs included",
        NextHaltUnlessCap =
            "every vCPU at its next halt, running VMs included, except VMs whose VMM has set KVM_CAP_HALT_POLL",
        NewVms =
            "VMs that are created from now on (5.8 to 6.0 copy halt_poll_ns then); running VMs keep what they have",
        /// It is not known whether [`Scope::NewVms`] or [`Scope::NextHaltUnlessCap`].
        NewVmsOrNextHalt =
            "not known for this kernel: by the rule of 5.8 to 6.0 VMs that are created from now on, by that since 6.1 every \
             vCPU at its next halt",
        NewVcpus = "vCPUs that are created from now on",
        NextIdle = "every CPU of this guest at its next halt",
        NextIdleAnew = "every CPU of this guest at its next halt; it begins to learn anew",
        NextTimer = "every timer that is armed from now on, running VMs included",
        RunningThread = "the running thread at once; any write resets its polling state",
    }

    pub fn words
}

impl Scope {
    /// Of a write to `halt_poll_ns`, by where the longest window comes from; `None`: that is not known.
    pub const fn of_max(source: Option<MaxSource>) -> Scope {
        match source {
            Some(MaxSource::Live) => Scope::NextHalt,
            Some(MaxSource::CopiedAtCreation) => Scope::NewVms,
            Some(MaxSource::CapElseLive) => Scope::NextHaltUnlessCap,
            None => Scope::NewVmsOrNextHalt,
        }
    }
}

impl Knob {
    /// Every knob, in the order in which they are listed.
    pub fn all() -> impl Iterator<Item = Knob> {
        Owner::ALL.into_iter().flat_map(param::table).map(|param| Knob { param })
    }

    /// The knob of this name, `_` and `-` alike; `None` if there is none.
    pub fn find(name: &str) -> Option<Knob> {
        param::find(name).map(|param| Knob { param })
    }

    /// The knob of this name of a layer, or of timers.
    pub fn of(owner: impl Into<Owner>, name: &str) -> Option<Knob> {
        let owner = owner.into();
        let index = param::index_of(owner, name)?;
        param::table(owner).get(index).map(|param| Knob { param })
    }

    /// The module it is a parameter of; `None` for properties of I/O threads.
    pub const fn module(self) -> Option<Module> {
        Module::of(self.param.owner)
    }

    /// Its place on a machine; `None` for a property of an I/O thread if no thread is given.
    pub fn place(self, iothread: Option<&IothreadTarget>) -> Option<Place> {
        match (self.module(), iothread) {
            (Some(_), _) => Some(Place::Parameter(parameter::path(self.param))),
            (None, Some(target)) => Some(target.place(self.param.name)),
            (None, None) => None,
        }
    }

    /// Who is affected by a write in this version (of Linux, of QEMU for I/O threads).
    pub fn scope(self, version: Version) -> Scope {
        match self.param.owner {
            Owner::Layer(Layer::Guest) => Scope::NextIdle,
            Owner::Layer(Layer::Driver) => Scope::NextIdleAnew,
            Owner::Layer(Layer::Iothread) => Scope::RunningThread,
            Owner::Timer if self.param.name.starts_with("lapic_timer_advance") => Scope::NewVcpus,
            Owner::Timer => Scope::NextTimer,
            // The other three are read at each use in every version.
            Owner::Layer(Layer::Host) if self.param.name != "halt_poll_ns" => Scope::NextHalt,
            Owner::Layer(Layer::Host) => Scope::of_max(
                Revision::rules(version).ok().and_then(|rules| rules.agreed(Revision::max_source)),
            ),
        }
    }

    /// The same on a machine, as its kernel shows it.
    pub fn scope_on(self, machine: &dyn Machine, version: Version) -> Scope {
        match self.param.name {
            "halt_poll_ns" => Scope::of_max(dwell_machine::max_source(machine, Some(version))),
            _ => self.scope(version),
        }
    }

    /// A value as the parameter's file takes it: switches are Y and N.
    pub fn written(self, value: i64) -> String {
        parameter::written(self.param, value)
    }

    /// The number of a value as the parameter's file has it: switches are 0 and 1, and a name is its place
    /// among the names.
    pub fn number_of(self, text: &str) -> Option<i64> {
        parameter::number_of(self.param, text)
    }

    /// The knob of a kernel parameter at this place.
    pub fn at(place: &Place) -> Option<Knob> {
        let Place::Parameter(path) = place else { return None };
        let of_module = |knob: &Knob| knob.module().is_some() && parameter::path(knob.param) == *path;
        Knob::all().find(of_module)
    }

    /// The line of a shell that sets a module parameter now.
    pub fn echo(self, value: i64) -> String {
        format!("echo {} > {}", self.written(value), parameter::path(self.param))
    }

    /// `name=value`, as an option of its module.
    pub fn option(self, value: i64) -> String {
        format!("{}={}", self.param.name, self.written(value))
    }

    /// How it is kept over a reboot or a restart, in words.
    pub const fn kept_by(self) -> &'static str {
        match self.module() {
            Some(Module::Kvm) => {
                "/etc/modprobe.d where kvm is a module, tmpfiles.d (or a oneshot unit of systemd) where it is built in"
            }
            Some(Module::Haltpoll) => {
                "tmpfiles.d (or a oneshot unit of systemd) where haltpoll is built in, /etc/modprobe.d where it is a module"
            }
            Some(Module::DwellIdle) => {
                "/etc/modprobe.d; that the module is loaded at boot is for /etc/modules-load.d"
            }
            None => "<poll> in libvirt's <iothreadids>, or -object iothread on QEMU's command line",
        }
    }
}

/// What only the VMM can set: `KVM_CAP_HALT_POLL`, a VM's own longest window in place of `halt_poll_ns`.
///
/// It is an ioctl on the file descriptor of the VM, which only the process that made the VM has. It can be
/// set again, but neither read nor reset; 0 disables polling for this VM.
pub mod capability {
    /// What it is called.
    pub const NAME: &str = "KVM_CAP_HALT_POLL";
    pub const NUMBER: u32 = 182;
    /// What to pass to which VMM.
    pub const VMMS: [(&str, &str); 4] = [
        (
            "QEMU",
            "has no option for it: set halt_poll_ns for the whole host, or let the guest poll (-cpu …,kvm-poll-control=on)",
        ),
        ("libvirt", "has no element for it, since QEMU has no option"),
        ("Firecracker, Cloud Hypervisor, crosvm", "have no option that dwell knows of"),
        ("a VMM of your own", "calls KVM_ENABLE_CAP on its VM; with kvm-ioctls, VmFd::enable_cap"),
    ];

    /// The call that sets it.
    pub fn call(halt_poll_ns: i64) -> String {
        format!("KVM_ENABLE_CAP: cap={NAME} ({NUMBER}) args[0]={halt_poll_ns}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_whatever_their_dashes() {
        assert_eq!(Knob::find("poll_max_ns").unwrap().param.name, "poll-max-ns");
        assert_eq!(Knob::find("guest-halt-poll-ns").unwrap().param.owner, Layer::Guest);
        assert_eq!(Knob::find("halt_pol"), None);
        assert_eq!(Knob::all().count(), 22);
    }

    #[test]
    fn a_write_to_halt_poll_ns_reaches_running_vms_except_where_it_is_copied() {
        let scope =
            |version: &str| Knob::find("halt_poll_ns").unwrap().scope(Version::parse(version).unwrap());
        assert_eq!(scope("5.4"), Scope::NextHalt);
        for copied in ["5.8", "5.10", "5.15", "6.0"] {
            assert_eq!(scope(copied), Scope::NewVms, "{copied}");
        }
        assert_eq!(scope("6.1"), Scope::NextHaltUnlessCap);
        let shrink = Knob::find("halt_poll_ns_shrink").unwrap();
        assert_eq!(shrink.scope(Version::new(5, 15)), Scope::NextHalt);
    }

    #[test]
    fn switches_are_written_as_the_kernel_prints_them() {
        let knob = Knob::find("guest_halt_poll_allow_shrink").unwrap();
        assert_eq!(knob.echo(0), "echo N > /sys/module/haltpoll/parameters/guest_halt_poll_allow_shrink");
        // -1 of pi_inject_timer means "choose at load".
        assert_eq!(Knob::find("pi_inject_timer").unwrap().written(-1), "-1");
    }
}
