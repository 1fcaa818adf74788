//! What files and the kernel's command line ask for, to compare with what is in force.
//!
//! A machine sets its parameters in this order, and the last one counts: the command line, which the boot loader has a copy
//! of, modprobe.d and rules of udev when a module is loaded, then tmpfiles.d and sysfsutils, then the active profile of
//! TuneD, then scripts. What is written by hand afterwards shows in none of them.

use crate::kernel;
use crate::seam::Machine;
use dwell_policy::param::{self, Param};
use serde::Serialize;
use std::collections::BTreeMap;

/// A value that something asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Wanted {
    /// What asks, as a name in a text: `/etc/modprobe.d/kvm.conf`, `the kernel's command line`.
    pub by: String,
    pub reader: Reader,
    /// The module that is named with it; empty where none is.
    pub module: String,
    pub name: String,
    /// The value, as it is written there.
    pub value: String,
    /// The parameter's row, if it is one of dwell's.
    #[serde(skip)]
    pub param: Option<&'static Param>,
    /// Whether the module is loaded and has no such parameter.
    #[serde(skip)]
    pub unknown: bool,
}

/// What reads a wanted value, in the order in which a machine starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reader {
    /// modprobe, when it loads a module.
    Modprobe,
    /// The kernel, from its command line.
    Kernel,
    /// A boot loader, which gives it to the kernel at the next boot.
    Bootloader,
    /// udev, when a module was loaded.
    Udev,
    Tmpfiles,
    /// sysfsutils of Debian.
    Sysfs,
    Tuned,
    /// A shell: rc.local, a unit of systemd, cron.
    Script,
}

impl Wanted {
    fn new(by: &str, reader: Reader, module: &str, name: &str, value: &str) -> Wanted {
        let plain = |text: &str| text.replace('-', "_");
        Wanted {
            by: by.to_owned(),
            reader,
            module: plain(module),
            name: plain(name),
            value: value.to_owned(),
            param: param::find(name).filter(|param| param.home.starts_with("/sys/module/")),
            unknown: false,
        }
    }

    /// Whether this is set after what a reader has of the file `by`, at a start of the machine.
    pub fn is_after(&self, reader: Reader, by: &str) -> bool {
        let name = |path: &str| path.rsplit('/').next().map(str::to_owned);
        (self.reader, name(&self.by)) > (reader, name(by))
    }

    /// The module that has the parameter.
    pub fn owner(&self) -> Option<&'static str> {
        self.param?.home.strip_prefix("/sys/module/")?.split('/').next()
    }
}

/// What a line of a file asks for.
type InLine = fn(&str, &str) -> Vec<Wanted>;

/// Directories and files, how the names in the directories end, and how a line is read.
const SOURCES: [(&[&str], &str, InLine); 6] = [
    (&["/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"], ".conf", modprobe),
    (&["/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline"], "", bootloader),
    (
        &["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"],
        ".rules",
        udev,
    ),
    (&["/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"], ".conf", tmpfiles),
    (&["/etc/sysfs.d", "/etc/sysfs.conf"], ".conf", sysfs),
    (
        &["/etc/systemd/system", "/etc/cron.d", "/etc/crontab", "/etc/rc.local", "/etc/rc.d/rc.local"],
        "",
        script,
    ),
];

/// Everything that is asked for of the modules on which idling depends, in the order in which it is set.
pub fn read(machine: &dyn Machine) -> Vec<Wanted> {
    let mut all = command_line(machine);
    for (paths, end, in_line) in SOURCES {
        for (path, text) in files(machine, paths, end) {
            // A backslash at its end continues a line.
            all.extend(text.replace("\\\n", " ").lines().flat_map(|line| in_line(&path, line)));
        }
    }
    all.extend(tuned(machine));
    // A profile also asks for what is set at the next boot.
    all.sort_by_key(|wanted| wanted.reader);
    let modules = ["kvm", "kvm_intel", "kvm_amd", "haltpoll", "cpuidle_haltpoll"];
    all.retain(|wanted| wanted.param.is_some() || modules.contains(&wanted.module.as_str()));
    for wanted in &mut all {
        let there = machine.names(&format!("/sys/module/{}/parameters", wanted.module)).unwrap_or_default();
        // Of other parameters those that were copied may be a few.
        let is_known = machine.is_whole() || wanted.name.contains("pol");
        let lacks = !there.is_empty() && !there.contains(&wanted.name);
        wanted.unknown = wanted.param.is_none() && is_known && lacks;
    }
    all
}

const COMMAND_LINE: &str = "the kernel's command line";

fn command_line(machine: &dyn Machine) -> Vec<Wanted> {
    words(COMMAND_LINE, Reader::Kernel, &machine.text("/proc/cmdline").unwrap_or_default())
}

/// The words of a command line of the kernel.
fn words(by: &str, reader: Reader, line: &str) -> Vec<Wanted> {
    kernel::own_arguments(line)
        .filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            let (module, name) = name.split_once('.').unwrap_or(("", name));
            Some(Wanted::new(by, reader, module, name, value))
        })
        .collect()
}

/// The first word of a line and what is behind it.
fn first(line: &str) -> Option<(&str, &str)> {
    line.trim_ascii().split_once(|c: char| c.is_ascii_whitespace())
}

/// The options of a module, as `options` of modprobe.d has them behind its name.
fn options(by: &str, module: &str, line: &str) -> Vec<Wanted> {
    let words = kernel::words(line).into_iter().take_while(|word| !word.starts_with('#'));
    words
        .filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            Some(Wanted::new(by, Reader::Modprobe, module, name, value))
        })
        .collect()
}

/// `options kvm halt_poll_ns=0`, `install kvm /sbin/modprobe --ignore-install kvm halt_poll_ns=0`
fn modprobe(by: &str, line: &str) -> Vec<Wanted> {
    let Some(("options" | "install", rest)) = first(line) else { return vec![] };
    first(rest).map_or_else(Vec::new, |(module, rest)| options(by, module, rest))
}

/// `GRUB_CMDLINE_LINUX="quiet kvm.halt_poll_ns=0"`, elsewhere the words alone.
fn bootloader(by: &str, line: &str) -> Vec<Wanted> {
    let of_grub = || line.strip_prefix("GRUB_CMDLINE_LINUX")?.split_once('=');
    let line = if by.starts_with("/etc/default/") { of_grub().map_or("", |(_, line)| line) } else { line };
    words(by, Reader::Bootloader, line.trim_ascii().trim_matches(['"', '\'']))
}

/// `SUBSYSTEM=="module", KERNEL=="kvm", ATTR{parameters/halt_poll_ns}="0"`, or what a rule runs.
fn udev(by: &str, line: &str) -> Vec<Wanted> {
    let value = |of: &str, key: &str| Some(of.split_once(key)?.1.split_once('"')?.0.to_owned());
    let module = value(line, "KERNEL==\"").filter(|_| !line.trim_ascii().starts_with('#'));
    let set = line.split("ATTR{parameters/").skip(1).filter_map(|rest| {
        let name = rest.split_once('}')?.0;
        Some(Wanted::new(by, Reader::Udev, module.as_deref()?, name, &value(rest, "}=\"")?))
    });
    set.chain(script(by, line)).collect()
}

/// `w /sys/module/kvm/parameters/halt_poll_ns - - - - 0`
fn tmpfiles(by: &str, line: &str) -> Vec<Wanted> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    match words.as_slice() {
        [kind, target, _, _, _, _, value, ..] if kind.starts_with('w') => {
            of_path(by, Reader::Tmpfiles, target, value).into_iter().collect()
        }
        _ => vec![],
    }
}

/// `module/kvm/parameters/halt_poll_ns = 0`
fn sysfs(by: &str, line: &str) -> Vec<Wanted> {
    let (path, value) = line.split('#').next().and_then(|line| line.split_once('=')).unwrap_or_default();
    of_path(by, Reader::Sysfs, &format!("/sys/{}", path.trim()), value).into_iter().collect()
}

/// `echo 0 > /sys/module/kvm/parameters/halt_poll_ns`, `echo 0 | tee …`; values of variables are not known.
fn script(by: &str, line: &str) -> Vec<Wanted> {
    let commands = line.split([';', '&']).take_while(|_| !line.trim_ascii().starts_with('#'));
    let written = commands.filter_map(|command| {
        let (before, path) = command.split_once("/sys/module/")?;
        let (value, _) = before.rsplit_once("echo ")?.1.split_once(['>', '|'])?;
        let path = path.split([' ', '\t', '"', '\'']).next()?;
        let value = value.trim_ascii().trim_matches(['"', '\'']);
        of_path(by, Reader::Script, &format!("/sys/module/{path}"), value).filter(|_| !value.contains('$'))
    });
    written.collect()
}

/// Files, and those of directories of which an earlier one hides files of the same name in later ones, by name.
fn files(machine: &dyn Machine, paths: &[&str], end: &str) -> Vec<(String, String)> {
    let mut by_name: BTreeMap<String, String> = BTreeMap::new();
    for path in paths {
        let (dir, names) = match machine.names(path) {
            Ok(names) => (*path, names),
            Err(_) => path.rsplit_once('/').map_or(("", vec![]), |(dir, name)| (dir, vec![name.to_owned()])),
        };
        for name in names.into_iter().filter(|name| name.ends_with(end)) {
            let path = format!("{dir}/{name}");
            if machine.exists(&path) {
                by_name.entry(name).or_insert(path);
            }
        }
    }
    by_name.into_values().filter_map(|path| Some((path.clone(), machine.text(&path)?))).collect()
}

fn of_path(by: &str, reader: Reader, path: &str, value: &str) -> Option<Wanted> {
    let (module, name) = path.trim().strip_prefix("/sys/module/")?.split_once("/parameters/")?;
    Some(Wanted::new(by, reader, module, name, value.trim()))
}

fn tuned(machine: &dyn Machine) -> Vec<Wanted> {
    let active = machine.text("/etc/tuned/active_profile").unwrap_or_default();
    let mut seen = vec![];
    active.split_ascii_whitespace().flat_map(|name| profile(machine, name, &mut seen)).collect()
}

/// A profile after those that it includes; each is read once.
fn profile(machine: &dyn Machine, name: &str, seen: &mut Vec<String>) -> Vec<Wanted> {
    if seen.iter().any(|other| other == name) {
        return vec![];
    }
    seen.push(name.to_owned());
    let dirs = ["/etc/tuned/profiles", "/etc/tuned", "/usr/lib/tuned/profiles", "/usr/lib/tuned"];
    let is_name =
        name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && !name.starts_with('.');
    let paths = dirs.iter().map(|dir| format!("{dir}/{name}/tuned.conf"));
    let found = paths.filter(|_| is_name).find_map(|path| Some((path.clone(), machine.text(&path)?)));
    let Some((path, text)) = found else { return vec![] };
    let (mut section, mut included, mut own) = ("", vec![], vec![]);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
        } else if let Some((key, value)) = line.split_once('=') {
            match (section, key.trim()) {
                ("main", "include") => {
                    let names = value.split([',', ' ']).filter(|name| !name.is_empty());
                    included.extend(names.flat_map(|name| profile(machine, name, seen)));
                }
                // The values of variables are not known.
                _ if value.contains("${") => {}
                ("sysfs", key) => own.extend(of_path(&path, Reader::Tuned, key, value)),
                ("bootloader", key) if key.starts_with("cmdline") => {
                    let value = value.trim().trim_start_matches('+');
                    let by = format!("{path} [bootloader]");
                    own.extend(words(&by, Reader::Bootloader, value.trim_matches('"')));
                }
                ("modules", module) => {
                    let value = value.trim().trim_start_matches("+r").trim_start_matches(',');
                    own.extend(options(&format!("{path} [modules]"), module, value));
                }
                _ => {}
            }
        }
    }
    included.extend(own);
    included
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn every_source_in_the_order_in_which_it_is_set() {
        let machine = Fake::new()
            .file(
                "/proc/cmdline",
                "ro kvm.halt_poll_ns=-1 halt_poll_ns_grow=4 console=ttyS0 -- kvm.halt_poll_ns=3",
            )
            .file(
                "/etc/modprobe.d/b.conf",
                "# options kvm x=1\ninstall kvm-intel modprobe -i kvm-intel preemption_timer=0\noptions kvm \\\n  halt-poll-ns=7 # why",
            )
            .file("/usr/lib/modprobe.d/b.conf", "options kvm halt_poll_ns=8")
            .file("/etc/tmpfiles.d/p.conf", "w /sys/module/kvm/parameters/halt_poll_ns - - - - 9")
            .file(
                "/etc/default/grub",
                "#GRUB_CMDLINE_LINUX=\"kvm.halt_poll_ns=1\"\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet kvm.halt_poll_ns=14\"",
            )
            .file("/etc/sysfs.conf", "# module/kvm/parameters/x = 1\nmodule/kvm/parameters/halt_poll_ns = 10 # why")
            .file(
                "/usr/lib/udev/rules.d/k.rules",
                "SUBSYSTEM==\"module\", KERNEL==\"kvm\", ATTR{parameters/halt_poll_ns}=\"11\"\n\
                 KERNEL==\"kvm\", RUN+=\"/bin/sh -c 'echo 12 > /sys/module/kvm/parameters/halt_poll_ns'\"",
            )
            .file(
                "/etc/rc.local",
                "#!/bin/sh\n# echo 1 > /sys/module/kvm/parameters/halt_poll_ns\nx=1; echo $x > \
                 /sys/module/kvm/parameters/halt_poll_ns && echo '13' | tee /sys/module/kvm/parameters/halt_poll_ns",
            )
            .file("/etc/tuned/active_profile", "mine\n")
            .file(
                "/etc/tuned/mine/tuned.conf",
                "[main]\ninclude=base\n[sysfs]\n/sys/module/haltpoll/parameters/guest_halt_poll_ns = 5\n",
            )
            .file(
                "/usr/lib/tuned/base/tuned.conf",
                "[main]\ninclude=mine\n[sysfs]\n/sys/module/kvm/parameters/halt_poll_ns=6\n[bootloader]\n\
                 cmdline_rt=+nohz_full=${cpus}\ncmdline_mine=+isolcpus=2 kvm.halt_poll_ns_shrink=4\n[modules]\n\
                 cpuidle_haltpoll=+r force=Y\n",
            );
        let seen: Vec<String> = read(&machine)
            .iter()
            .map(|w| format!("{:?} {} {}={}", w.reader, w.module, w.name, w.value))
            .collect();
        assert_eq!(
            seen.iter().take(10).map(String::as_str).collect::<Vec<_>>(),
            [
                "Modprobe kvm_intel preemption_timer=0",
                "Modprobe kvm halt_poll_ns=7",
                "Modprobe cpuidle_haltpoll force=Y",
                "Kernel kvm halt_poll_ns=-1",
                "Kernel  halt_poll_ns_grow=4",
                "Bootloader kvm halt_poll_ns=14",
                "Bootloader kvm halt_poll_ns_shrink=4",
                "Udev kvm halt_poll_ns=11",
                "Tmpfiles kvm halt_poll_ns=9",
                "Sysfs kvm halt_poll_ns=10",
            ]
        );
        assert_eq!(
            seen[seen.len() - 3..],
            [
                "Tuned haltpoll guest_halt_poll_ns=5",
                "Script kvm halt_poll_ns=12",
                "Script kvm halt_poll_ns=13"
            ]
        );
        assert!(read(&Fake::new().file("/etc/tuned/active_profile", "../../x")).is_empty());
    }
}
