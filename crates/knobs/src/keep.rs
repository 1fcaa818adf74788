//! How values are kept over a reboot, as further entries of the same change.
//!
//! | what | where |
//! |---|---|
//! | parameters of a module that is loaded | `/etc/modprobe.d/dwell-NNNNNN.conf` |
//! | of one that is built in, with systemd | `/etc/tmpfiles.d/dwell-NNNNNN.conf` |
//! | the same, where systemd-tmpfiles is missing | a oneshot unit `dwell-NNNNNN.service`, linked from multi-user.target |
//! | an I/O thread that libvirt runs | `<poll>` in the domain's configuration |
//! | an I/O thread of another QEMU | its command line, which only whatever starts it can change |
//!
//! The number is the change's, with zeros in front, so that of two files the later change wins.

use crate::journal::{Entry, Id};
use crate::kept::{head, is_generated, oneshot, tmpfiles};
use crate::knob::{IothreadTarget, Knob, Module};
use crate::place::Place;
use crate::value::{self, ValueError};
use crate::{condition, iothread, lines};
use dwell_machine::wanted::{self, Reader, Wanted};
use dwell_machine::{Loading, Writable, parameter};
use dwell_policy::Owner;
use dwell_policy::param::{Param, Setting};

/// Why values cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// This QEMU is not started by libvirt.
    #[error("cannot keep the values: this QEMU is not started by libvirt; add to its command line: {line}")]
    CommandLine {
        /// What to put there.
        line: String,
    },
    /// libvirt starts this QEMU and cannot set all of it.
    #[error(
        "cannot keep the values: libvirt cannot set {property}; leave it at its default, or set it over QMP after each start"
    )]
    NotOfLibvirt { property: &'static str },
    /// No systemd.
    #[error(
        "cannot keep the values: {module} is built in and there is no systemd; add to the kernel's command line: {line}"
    )]
    KernelCommandLine {
        module: &'static str,
        /// What to put there.
        line: String,
    },
    /// The module is not loaded.
    #[error("/sys/module/{module} does not exist")]
    NoModule { module: &'static str },
    /// libvirt numbers its I/O threads.
    #[error("`{id}` is not an I/O thread of libvirt, which names them iothread1, iothread2, …")]
    NotLibvirts {
        /// The id of the object.
        id: String,
    },
    /// A file that dwell did not write, and could not restore, is in the way.
    #[error("{place} has {found}, which dwell did not write; move it elsewhere and try again")]
    Foreign { place: Place, found: String },
    /// The present value cannot be read.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// The places and values that put `setting` in force after a reboot.
///
/// # Errors
/// [`KeepError`], with what to do by hand.
pub fn entries(
    machine: &dyn Writable,
    id: Id,
    setting: &Setting<Owner>,
    iothread: Option<&IothreadTarget>,
) -> Result<Vec<Entry>, KeepError> {
    let wanted = match (Module::of(setting.owner()), iothread) {
        (Some(module), _) => of_module(machine, id, module, setting)?,
        (None, Some(target)) => vec![of_iothread(setting, target)?],
        (None, None) => vec![],
    };
    let entry = |(place, text)| {
        let original = value::read(machine, &place)?;
        if original.as_ref().is_some_and(|original| !is_generated(&place, original)) {
            let found = value::shown(original.as_deref());
            return Err(KeepError::Foreign { place, found });
        }
        Ok(Entry { knob: None, place, original, applied: Some(text), between: vec![] })
    };
    wanted.into_iter().map(entry).collect()
}

/// A note for whoever keeps a value there.
pub fn proviso(place: &Place) -> Option<&'static str> {
    match place {
        Place::File(path) if path.starts_with("/etc/modprobe.d/") => Some(
            "a module that the initramfs loads reads the initramfs's copy of /etc/modprobe.d; rebuild the initramfs",
        ),
        Place::Libvirt { .. } => Some("libvirt's configuration counts from the next start of the domain on"),
        _ => None,
    }
}

/// What sets other values after what is kept there, at a start of the machine.
pub fn overridden(machine: &dyn Writable, place: &Place, setting: &Setting<Owner>) -> Vec<String> {
    let Place::File(path) = place else { return vec![] };
    let reader = match path {
        _ if path.starts_with("/etc/modprobe.d/") => Reader::Modprobe,
        _ if path.starts_with("/etc/tmpfiles.d/") => Reader::Tmpfiles,
        _ => Reader::Script,
    };
    let differs = |wanted: &Wanted| {
        let mut values = setting.iter().filter(|(param, _)| wanted.param == Some(*param));
        values.any(|(param, value)| {
            param.taken(&wanted.value, Some(setting.version())).is_some_and(|of| of != value)
        })
    };
    let later = wanted::read(machine).into_iter().filter(|wanted| wanted.is_after(reader, path));
    let told = later.filter(differs).map(|wanted| {
        let Wanted { by, name, value, .. } = wanted;
        format!("{by} asks for {name}={value}, which is set after what is kept here: change it there")
    });
    told.collect()
}

fn of_module(
    machine: &dyn Writable,
    id: Id,
    module: Module,
    setting: &Setting<Owner>,
) -> Result<Vec<(Place, String)>, KeepError> {
    let any = |paths: &[&str]| paths.iter().any(|path| machine.exists(path));
    // A write that is refused would fail at each start, and end the unit before its other writes.
    let writable = |(param, value): (&'static Param, i64)| {
        let place = Place::Parameter(parameter::path(param));
        let is_writable = param.takes(value) && condition::writable(machine, &place).is_ok();
        is_writable.then_some((Knob { param }, value))
    };
    let values = || setting.iter().filter_map(writable).collect::<Vec<_>>();
    match Loading::read(machine, module.name()) {
        None => Err(KeepError::NoModule { module: module.name() }),
        Some(Loading::Loaded) => {
            let text = format!("{}{}\n", head(id, '#'), lines::module_options(module, setting));
            Ok(vec![(Place::File(format!("/etc/modprobe.d/dwell-{id:06}.conf")), text)])
        }
        Some(Loading::BuiltIn) if any(&["/usr/bin/systemd-tmpfiles", "/bin/systemd-tmpfiles"]) => {
            Ok(vec![(Place::File(format!("/etc/tmpfiles.d/dwell-{id:06}.conf")), tmpfiles(id, &values()))])
        }
        Some(Loading::BuiltIn) if any(&["/usr/lib/systemd/systemd", "/lib/systemd/systemd"]) => {
            let unit = format!("/etc/systemd/system/dwell-{id:06}.service");
            let wanted = format!("/etc/systemd/system/multi-user.target.wants/dwell-{id:06}.service");
            Ok(vec![(Place::File(unit.clone()), oneshot(id, &values())), (Place::Link(wanted), unit)])
        }
        Some(Loading::BuiltIn) => Err(KeepError::KernelCommandLine {
            module: module.name(),
            line: lines::kernel_command_line(module, setting),
        }),
    }
}

fn of_iothread(setting: &Setting<Owner>, target: &IothreadTarget) -> Result<(Place, String), KeepError> {
    let values: Vec<(&str, i64)> = setting.iter().map(|(param, value)| (param.name, value)).collect();
    let persistence = iothread::persistence(&target.id, &values);
    let Some(domain) = &target.domain else {
        return Err(KeepError::CommandLine { line: persistence.object });
    };
    let property = iothread::NOT_LIBVIRTS;
    if setting
        .iter()
        .any(|(param, value)| param.name == property && param.default_in(setting.version()) != Some(value))
    {
        return Err(KeepError::NotOfLibvirt { property });
    }
    let number =
        iothread::libvirt_number(&target.id).ok_or(KeepError::NotLibvirts { id: target.id.to_string() })?;
    Ok((Place::Libvirt { domain: domain.clone(), number }, persistence.poll))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;

    #[test]
    fn a_weight_that_libvirt_cannot_set_is_refused_and_its_default_left_out() {
        let target = |domain: Option<&str>, id: &str| IothreadTarget {
            socket: "/run/vm.qmp".to_owned(),
            id: id.parse().unwrap(),
            domain: domain.map(str::to_owned),
        };
        let mut setting = Setting::defaults(Owner::from(Layer::Iothread), Version::new(11, 1));
        setting.set("poll-max-ns", 50_000).unwrap();
        let kept = of_iothread(&setting, &target(Some("web"), "iothread2")).unwrap();
        assert_eq!(kept.0, Place::Libvirt { domain: "web".to_owned(), number: 2 });
        assert!(kept.1.contains("50000") && !kept.1.contains("weight"), "{}", kept.1);
        let refused = |setting: &Setting<Owner>, domain: Option<&str>, id: &str| {
            of_iothread(setting, &target(domain, id)).unwrap_err().to_string()
        };
        assert!(refused(&setting, Some("web"), "io0").contains("`io0` is not an I/O thread of libvirt"));
        setting.set("poll-weight", 5).unwrap();
        let told = refused(&setting, Some("web"), "iothread2");
        assert!(told.contains("libvirt cannot set poll-weight; leave it at its default"), "{told}");
        // A command line can.
        assert!(refused(&setting, None, "iothread2").contains("poll-weight=5"));
    }
}
