//! The files that keep values over a reboot: their names, their texts, and whether a text is one of these.

use crate::journal::id::Id;
use crate::knob::Knob;
use crate::libvirt;
use crate::place::{OWN, Place, WANTED};

/// The files and links that keep the values of one change, at most.
pub(crate) const MOST_ENTRIES: usize = 2;

/// Whether a path is that of a file or link which keeps the values of this change.
pub(crate) fn is_of_change(path: &str, id: Id) -> bool {
    OWN.iter().any(|(begin, end)| path == format!("{begin}{id:06}{end}"))
}

/// Whether dwell generates such a text for a place: comments, and known parameters with numbers. Nothing else
/// is put back from a journal, whoever wrote it there.
pub(crate) fn is_generated(place: &Place, text: &str) -> bool {
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

/// The longest file that keeps values \[bytes\]: 21 parameters of less than 200 bytes.
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

/// Whether a value is in the range of its parameter, or a default as earlier versions kept it, and written as [`Knob::written`] writes it.
fn is_written(name: &str, value: &str) -> bool {
    let knob = Knob::find(name);
    let number = knob.and_then(|knob| knob.number_of(value));
    let is_written = |(knob, number): (Knob, i64)| {
        let is_default = || knob.param.defaults.iter().any(|default| default.value == number);
        (knob.param.takes(number) || is_default()) && knob.written(number) == value
    };
    knob.zip(number).is_some_and(is_written)
}

pub(crate) fn head(id: Id, comment: char) -> String {
    format!("{comment} Change {id} of dwell; `dwell revert {id}` removes it.\n")
}

pub(crate) fn tmpfiles(id: Id, values: &[(Knob, i64)]) -> String {
    let line = |(knob, value): &(Knob, i64)| {
        format!("w {}/{} - - - - {}\n", knob.param.home, knob.param.name, knob.written(*value))
    };
    head(id, '#') + &values.iter().map(line).collect::<String>()
}

pub(crate) fn oneshot(id: Id, values: &[(Knob, i64)]) -> String {
    let line = |(knob, value): &(Knob, i64)| format!("ExecStart=/bin/sh -c '{}'\n", knob.echo(*value));
    let exec: String = values.iter().map(line).collect();
    format!(
        "{}[Unit]\nDescription=Polling parameters set by dwell, change {id}\n\n[Service]\nType=oneshot\n{exec}\n\
         [Install]\nWantedBy=multi-user.target\n",
        head(id, '#')
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::Module;
    use crate::lines;
    use dwell_policy::param::Setting;
    use dwell_policy::version::Version;
    use dwell_policy::{Layer, Owner};

    fn file(path: &str) -> Place {
        Place::File(path.to_owned())
    }

    #[test]
    fn what_is_generated_is_known_again() {
        for owner in Owner::ALL.into_iter().filter(|owner| *owner != Layer::Iothread) {
            let setting = Setting::defaults(owner, Version::new(6, 18));
            let module = Module::of(owner).unwrap();
            let options = format!("{}{}\n", head(7, '#'), lines::module_options(module, &setting));
            assert!(is_generated(&file("/etc/modprobe.d/dwell-000007.conf"), &options), "{options}");
            let values: Vec<_> = setting.iter().map(|(param, value)| (Knob { param }, value)).collect();
            let writes = tmpfiles(7, &values);
            assert!(is_generated(&file("/etc/tmpfiles.d/dwell-000007.conf"), &writes), "{writes}");
            let unit = oneshot(7, &values);
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
            "options dwell_idle policy=other\n",
            "options dwell_idle policy=7\n",
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
