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

use crate::journal::{Entry, Id};
use crate::knob::{IothreadTarget, Knob, Module};
use crate::place::Place;
use crate::value::{self, ValueError};
use crate::{iothread, libvirt, lines};
use dwell_machine::{Module as Loading, Writable};
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
    /// Something is there that dwell has not written, and that it could not put back.
    #[error("{place} holds {found}, which dwell has not written; move it elsewhere, and try again")]
    Foreign {
        /// Where.
        place: Place,
        /// What is there.
        found: String,
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
    machine: &dyn Writable,
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
        if original.as_ref().is_some_and(|original| !is_generated(&place, original)) {
            let found = value::shown(original.as_deref());
            return Err(KeepError::Foreign { place, found });
        }
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

/// The files and links that keep the values of one change, at most.
pub(crate) const MOST_ENTRIES: usize = 2;

/// Where the files of a change are, without its number.
const FILES: [(&str, &str); 4] = [
    ("/etc/modprobe.d/dwell-", ".conf"),
    ("/etc/tmpfiles.d/dwell-", ".conf"),
    ("/etc/systemd/system/dwell-", ".service"),
    (WANTED, ".service"),
];
const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/dwell-";

/// Whether a path is that of a file or link which keeps the values of this change.
pub(crate) fn is_of_change(path: &str, id: Id) -> bool {
    FILES.iter().any(|(begin, end)| path == format!("{begin}{id:06}{end}"))
}

/// Whether dwell generates such a text for a place: comments, and known parameters with numbers. Nothing else is put back
/// from a journal, whoever wrote it there.
pub fn is_generated(place: &Place, text: &str) -> bool {
    let lines = |is_line: &dyn Fn(&str) -> bool| {
        text.len() <= LONGEST_FILE
            && text.ends_with('\n')
            && text.lines().all(|line| is_comment(line) || is_line(line))
    };
    match place {
        Place::File(path) if path.starts_with("/etc/modprobe.d/") => lines(&is_options),
        Place::File(path) if path.starts_with("/etc/tmpfiles.d/") => lines(&is_tmpfiles_write),
        Place::File(path) if path.ends_with(".service") => lines(&is_of_unit),
        Place::Link(path) => path.strip_prefix(WANTED).is_some_and(|name| {
            text.strip_prefix("/etc/systemd/system/dwell-").is_some_and(|target| target == name)
        }),
        Place::Libvirt { .. } => libvirt::is_poll(text),
        _ => false,
    }
}

/// The longest file that keeps values \[bytes\]: 17 parameters of less than 200 bytes.
const LONGEST_FILE: usize = 8 << 10;

/// A comment on one line: without a backslash, which would continue it or the line after it.
fn is_comment(line: &str) -> bool {
    line.starts_with('#') && line.chars().all(|c| !c.is_control() && c != '\\')
}

/// `options MODULE NAME=VALUE …`
fn is_options(line: &str) -> bool {
    let mut words = line.split(' ');
    let module = (words.next() == Some("options")).then(|| words.next()).flatten();
    words.all(|word| {
        let Some((name, value)) = word.split_once('=') else { return false };
        Knob::find(name).and_then(Knob::module).is_some_and(|of| Some(of.name()) == module)
            && is_written(name, value)
    })
}

/// `w PATH - - - - VALUE`
fn is_tmpfiles_write(line: &str) -> bool {
    let write = line.strip_prefix("w ").and_then(|rest| rest.split_once(" - - - - "));
    write.is_some_and(|(path, value)| is_value_at(path, value))
}

/// A line of [`oneshot`].
fn is_of_unit(line: &str) -> bool {
    let exec = line.strip_prefix("ExecStart=/bin/sh -c 'echo ").and_then(|rest| rest.strip_suffix('\''));
    let number = line.strip_prefix("Description=Polling parameters set by dwell, change ");
    matches!(line, "" | "[Unit]" | "[Service]" | "Type=oneshot" | "[Install]" | "WantedBy=multi-user.target")
        || number.is_some_and(|number| number.parse::<Id>().is_ok())
        || exec.and_then(|exec| exec.split_once(" > ")).is_some_and(|(value, path)| is_value_at(path, value))
}

fn is_value_at(path: &str, value: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let place = Knob::find(name).and_then(|knob| knob.place(None));
    place == Some(Place::Parameter(path.to_owned())) && is_written(name, value)
}

/// Whether a value is written as [`Knob::written`] writes it.
fn is_written(name: &str, value: &str) -> bool {
    let number = value::number_of(Some(value));
    Knob::find(name).zip(number).is_some_and(|(knob, number)| knob.written(number) == value)
}

fn of_module(
    machine: &dyn Writable,
    id: Id,
    module: Module,
    setting: &Setting,
) -> Result<Vec<(Place, String)>, KeepError> {
    let any = |paths: &[&str]| paths.iter().any(|path| machine.exists(path));
    match Loading::read(machine, module.name()) {
        None => Err(KeepError::NoModule { module: module.name() }),
        Some(Loading::Loaded) => {
            let text = format!("{}{}\n", head(id, '#'), lines::module_options(module, setting));
            Ok(vec![(Place::File(format!("/etc/modprobe.d/dwell-{id:06}.conf")), text)])
        }
        Some(Loading::BuiltIn) if any(&["/usr/bin/systemd-tmpfiles", "/bin/systemd-tmpfiles"]) => {
            Ok(vec![(Place::File(format!("/etc/tmpfiles.d/dwell-{id:06}.conf")), tmpfiles(id, setting))])
        }
        Some(Loading::BuiltIn) if any(&["/usr/lib/systemd/systemd", "/lib/systemd/systemd"]) => {
            let unit = format!("/etc/systemd/system/dwell-{id:06}.service");
            let wanted = format!("/etc/systemd/system/multi-user.target.wants/dwell-{id:06}.service");
            Ok(vec![(Place::File(unit.clone()), oneshot(id, setting)), (Place::Link(wanted), unit)])
        }
        Some(Loading::BuiltIn) => Err(KeepError::KernelCommandLine {
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

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::Version;

    fn file(path: &str) -> Place {
        Place::File(path.to_owned())
    }

    #[test]
    fn what_is_generated_is_known_again() {
        for layer in [Layer::Guest, Layer::Host, Layer::Timer] {
            let setting = Setting::defaults(layer, Version::new(6, 18));
            let module = if layer == Layer::Guest { Module::Haltpoll } else { Module::Kvm };
            let options = format!("{}{}\n", head(7, '#'), lines::module_options(module, &setting));
            assert!(is_generated(&file("/etc/modprobe.d/dwell-000007.conf"), &options), "{options}");
            let writes = tmpfiles(7, &setting);
            assert!(is_generated(&file("/etc/tmpfiles.d/dwell-000007.conf"), &writes), "{writes}");
            let unit = oneshot(7, &setting);
            assert!(is_generated(&file("/etc/systemd/system/dwell-000007.service"), &unit), "{unit}");
        }
        let link = Place::Link(format!("{WANTED}000007.service"));
        assert!(is_generated(&link, "/etc/systemd/system/dwell-000007.service"));
        assert!(!is_generated(&link, "/etc/systemd/system/dwell-000008.service"));
        assert!(!is_generated(&link, "/tmp/dwell-000007.service"));
        assert!(is_of_change("/etc/modprobe.d/dwell-000007.conf", 7));
        assert!(!is_of_change("/etc/modprobe.d/dwell-000007.conf", 8));
        assert!(!is_of_change("/etc/modprobe.d/dwell-7.conf", 7));
    }

    #[test]
    fn commands_are_never_generated() {
        for text in [
            "install kvm /bin/sh -c 'id > /tmp/x'\n",
            "options kvm halt_poll_ns=1\ninstall kvm /bin/sh\n",
            "options kvm halt_poll_ns=1 other=2\n",
            "options kvm guest_halt_poll_ns=1\n",
            "options other halt_poll_ns=1\n",
            "options kvm halt_poll_ns=$(id)\n",
            "options kvm halt_poll_ns=1\r\ninstall kvm x\n",
            "# \\\noptions kvm halt_poll_ns=1\n",
            "options kvm halt_poll_ns=1",
            "softdep kvm pre: evil\n",
            "remove kvm x\n",
        ] {
            assert!(!is_generated(&file("/etc/modprobe.d/dwell-000001.conf"), text), "{text:?}");
        }
        for text in [
            "w /etc/shadow - - - - x\n",
            "w /sys/module/kvm/parameters/halt_poll_ns - - - - 1 x\n",
            "w /sys/module/kvm/parameters/../../../../etc/halt_poll_ns - - - - 1\n",
            "f /tmp/x - - - - 1\n",
        ] {
            assert!(!is_generated(&file("/etc/tmpfiles.d/dwell-000001.conf"), text), "{text:?}");
        }
        for text in [
            "[Service]\nExecStart=/bin/sh -c 'id'\n",
            "ExecStart=/bin/sh -c 'echo 1; id > /sys/module/kvm/parameters/halt_poll_ns'\n",
            "ExecStart=/bin/sh -c 'echo 1 > /sys/module/kvm/parameters/halt_poll_ns; id'\n",
            "ExecStart=/bin/sh -c 'echo 1 > /etc/passwd'\n",
            "User=root\n",
        ] {
            assert!(!is_generated(&file("/etc/systemd/system/dwell-000001.service"), text), "{text:?}");
        }
    }
}
