//! How values are kept over a reboot: what is put where, as further entries of the same change.
//!
//! | what | where |
//! |---|---|
//! | parameters of a module that is loaded | `/etc/modprobe.d/dwell-NNNNNN.conf` |
//! | of one that is built in, with systemd | `/etc/tmpfiles.d/dwell-NNNNNN.conf` |
//! | the same, where systemd-tmpfiles is missing | a oneshot unit `dwell-NNNNNN.service`, linked from multi-user.target |
//! | an I/O thread that libvirt runs | `<poll>` in the domain's configuration |
//! | an I/O thread of another QEMU | its command line, which only who starts it can change |
//!
//! The number is the change's, with zeros in front, so that of two files the later change wins.

use crate::condition::is_loaded;
use crate::journal::{Entry, Id};
use crate::knob::{IothreadTarget, Knob, Module};
use crate::machine::Machine;
use crate::place::Place;
use crate::value::{self, ValueError};
use crate::{iothread, lines};
use dwell_policy::Layer;
use dwell_policy::param::Setting;

/// Why values cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// Neither libvirt nor anything else starts this QEMU that dwell could tell.
    #[error("dwell does not start this QEMU; to keep the values put on its command line: {line}")]
    CommandLine {
        /// What to put there.
        line: String,
    },
    /// No systemd.
    #[error(
        "{module} is built in and there is no systemd; to keep the values put on the kernel's command line: {line}"
    )]
    KernelCommandLine {
        /// The module.
        module: &'static str,
        /// What to put there.
        line: String,
    },
    /// The module is not there at all.
    #[error("/sys/module/{module} is not there")]
    NoModule {
        /// The module.
        module: &'static str,
    },
    /// libvirt calls its I/O threads by number.
    #[error("libvirt calls its I/O threads iothread1, iothread2, …; `{id}` is none of them")]
    NotLibvirts {
        /// The id of the object.
        id: String,
    },
    /// What is there now cannot be read.
    #[error(transparent)]
    Value(#[from] ValueError),
}

/// What has to be put where so that `setting` is in force after a reboot.
///
/// # Errors
/// [`KeepError`], with what to do by hand.
pub fn entries(
    machine: &dyn Machine,
    id: Id,
    setting: &Setting,
    iothread: Option<&IothreadTarget>,
) -> Result<Vec<Entry>, KeepError> {
    let wanted = match (setting.layer(), iothread) {
        (Layer::Host | Layer::Timer, _) => of_module(machine, id, Module::Kvm, setting)?,
        (Layer::Guest, _) => of_module(machine, id, Module::Haltpoll, setting)?,
        (Layer::Iothread, None) => vec![],
        (Layer::Iothread, Some(target)) => vec![of_iothread(setting, target)?],
    };
    let entry = |(place, text)| {
        let original = value::read(machine, &place)?;
        Ok(Entry { knob: None, place, original, applied: Some(text), between: vec![] })
    };
    wanted.into_iter().map(entry).collect()
}

/// What somebody who keeps a value there has to know.
pub fn proviso(place: &Place) -> Option<&'static str> {
    match place {
        Place::File(path) if path.starts_with("/etc/modprobe.d/") => Some(
            "a module that the initramfs loads reads the initramfs's copy of /etc/modprobe.d; rebuild it",
        ),
        Place::Libvirt { .. } => Some("libvirt's configuration counts from the next start of the domain on"),
        _ => None,
    }
}

fn of_module(
    machine: &dyn Machine,
    id: Id,
    module: Module,
    setting: &Setting,
) -> Result<Vec<(Place, String)>, KeepError> {
    let any = |paths: &[&str]| paths.iter().any(|path| machine.exists(path));
    match is_loaded(machine, module) {
        None => Err(KeepError::NoModule { module: module.name() }),
        Some(true) => {
            let text = format!("{}{}\n", head(id, '#'), lines::module_options(module, setting));
            Ok(vec![(Place::File(format!("/etc/modprobe.d/dwell-{id:06}.conf")), text)])
        }
        Some(false) if any(&["/usr/bin/systemd-tmpfiles", "/bin/systemd-tmpfiles"]) => {
            Ok(vec![(Place::File(format!("/etc/tmpfiles.d/dwell-{id:06}.conf")), tmpfiles(id, setting))])
        }
        Some(false) if any(&["/usr/lib/systemd/systemd", "/lib/systemd/systemd"]) => {
            let unit = format!("/etc/systemd/system/dwell-{id:06}.service");
            let wanted = format!("/etc/systemd/system/multi-user.target.wants/dwell-{id:06}.service");
            Ok(vec![(Place::File(unit.clone()), oneshot(id, setting)), (Place::Link(wanted), unit)])
        }
        Some(false) => Err(KeepError::KernelCommandLine {
            module: module.name(),
            line: lines::kernel_command_line(module, setting),
        }),
    }
}

fn head(id: Id, comment: char) -> String {
    format!("{comment} Change {id} of dwell; `dwell revert {id}` takes it away.\n")
}

fn tmpfiles(id: Id, setting: &Setting) -> String {
    let line = |(param, value): (_, i64)| {
        let knob = Knob { param };
        format!("w {}/{} - - - - {}\n", param.home, param.name, knob.written(value))
    };
    head(id, '#') + &setting.iter().map(line).collect::<String>()
}

fn oneshot(id: Id, setting: &Setting) -> String {
    let line = |(param, value)| format!("ExecStart=/bin/sh -c '{}'\n", Knob { param }.echo(value));
    let exec: String = setting.iter().map(line).collect();
    format!(
        "{}[Unit]\nDescription=Polling parameters set by dwell, change {id}\n\n[Service]\nType=oneshot\n{exec}\n\
         [Install]\nWantedBy=multi-user.target\n",
        head(id, '#')
    )
}

fn of_iothread(setting: &Setting, target: &IothreadTarget) -> Result<(Place, String), KeepError> {
    let values: Vec<(&str, i64)> = setting.iter().map(|(param, value)| (param.name, value)).collect();
    let persistence = iothread::persistence(&target.id, &values);
    let Some(domain) = &target.domain else {
        return Err(KeepError::CommandLine { line: persistence.object });
    };
    let number = target.id.strip_prefix("iothread").and_then(|number| number.parse().ok());
    let number = number.ok_or(KeepError::NotLibvirts { id: target.id.clone() })?;
    Ok((Place::Libvirt { domain: domain.clone(), number }, persistence.poll))
}
