//! What files and the kernel's command line ask for, to compare with what is in force.
//!
//! A machine sets its parameters in this order, and the last one counts: the command line and modprobe.d when a module is
//! loaded, then tmpfiles.d, then the active profile of TuneD. What is written by hand afterwards shows in none of them.

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
}

/// What reads a wanted value, in the order in which a machine starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reader {
    /// modprobe, when it loads a module.
    Modprobe,
    /// The kernel, from its command line.
    Kernel,
    Tmpfiles,
    Tuned,
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
        }
    }

    /// The module that has the parameter.
    pub fn owner(&self) -> Option<&'static str> {
        self.param?.home.strip_prefix("/sys/module/")?.split('/').next()
    }
}

/// Everything that is asked for of the modules on which idling depends, in the order in which it is set.
pub fn read(machine: &dyn Machine) -> Vec<Wanted> {
    let mut all = modprobe(machine);
    all.extend(command_line(machine));
    all.extend(tmpfiles(machine));
    all.extend(tuned(machine));
    // A profile also asks for what is set at the next boot.
    all.sort_by_key(|wanted| wanted.reader);
    let concerns = |wanted: &Wanted| {
        wanted.param.is_some() || matches!(wanted.module.as_str(), "kvm" | "haltpoll" | "cpuidle_haltpoll")
    };
    all.retain(concerns);
    all
}

const COMMAND_LINE: &str = "the kernel's command line";

fn command_line(machine: &dyn Machine) -> Vec<Wanted> {
    words(COMMAND_LINE, &machine.text("/proc/cmdline").unwrap_or_default())
}

/// The words of a command line of the kernel.
fn words(by: &str, line: &str) -> Vec<Wanted> {
    kernel::own_arguments(line)
        .filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            let (module, name) = name.split_once('.').unwrap_or(("", name));
            Some(Wanted::new(by, Reader::Kernel, module, name, value))
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

fn modprobe(machine: &dyn Machine) -> Vec<Wanted> {
    let dirs = ["/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];
    let mut all = vec![];
    for (path, text) in files(machine, &dirs) {
        // A backslash at its end continues a line.
        for line in text.replace("\\\n", " ").lines() {
            let Some(("options", rest)) = first(line) else { continue };
            let Some((module, rest)) = first(rest) else { continue };
            all.extend(options(&path, module, rest));
        }
    }
    all
}

fn tmpfiles(machine: &dyn Machine) -> Vec<Wanted> {
    let dirs = ["/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/lib/tmpfiles.d"];
    let mut all = vec![];
    for (path, text) in files(machine, &dirs) {
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [kind, target, _, _, _, _, value, ..] = words.as_slice() else { continue };
            if kind.starts_with('w') {
                all.extend(of_path(&path, Reader::Tmpfiles, target, value));
            }
        }
    }
    all
}

/// The files of directories of which an earlier one hides files of the same name in later ones, by name.
fn files(machine: &dyn Machine, dirs: &[&str]) -> Vec<(String, String)> {
    let mut by_name: BTreeMap<String, String> = BTreeMap::new();
    for dir in dirs {
        for name in machine.names(dir).unwrap_or_default().into_iter().filter(|name| name.ends_with(".conf"))
        {
            by_name.entry(name.clone()).or_insert_with(|| format!("{dir}/{name}"));
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
                    own.extend(words(&format!("{path} [bootloader]"), value.trim_matches('"')));
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
                "# options kvm x=1\noptions kvm-intel preemption_timer=0\noptions kvm \\\n  halt-poll-ns=7 # why",
            )
            .file("/usr/lib/modprobe.d/b.conf", "options kvm halt_poll_ns=8")
            .file("/etc/tmpfiles.d/p.conf", "w /sys/module/kvm/parameters/halt_poll_ns - - - - 9")
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
            seen.iter().take(6).map(String::as_str).collect::<Vec<_>>(),
            [
                "Modprobe kvm halt_poll_ns=7",
                "Modprobe cpuidle_haltpoll force=Y",
                "Kernel kvm halt_poll_ns=-1",
                "Kernel  halt_poll_ns_grow=4",
                "Kernel kvm halt_poll_ns_shrink=4",
                "Tmpfiles kvm halt_poll_ns=9",
            ]
        );
        assert_eq!(seen.last().map(String::as_str), Some("Tuned haltpoll guest_halt_poll_ns=5"));
        assert!(read(&Fake::new().file("/etc/tuned/active_profile", "../../x")).is_empty());
    }
}
