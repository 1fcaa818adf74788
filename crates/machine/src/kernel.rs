//! Which kernel runs, and with which parameters it was booted.

use crate::arch;
use crate::seam::Machine;
use dwell_policy::arch::Arch;
use dwell_policy::param;
use dwell_policy::version::{KNOWN_KERNELS, Version};
use dwell_policy::{Layer, Owner};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Kernel {
    /// `uname -r`; `None` if it cannot be read.
    pub release: Option<String>,
    /// The version of the release, on its architecture; x86-64 if that is not known.
    #[serde(skip)]
    pub version: Option<Version>,
    /// The architecture; `None` if the machine does not show it.
    #[serde(serialize_with = "name_of")]
    pub arch: Option<Arch>,
    /// Whether the rules of the layers that it has are known for it.
    pub rules_known: bool,
    /// The versions whose rules are known.
    pub known: &'static str,
    /// The parameters on its command line that concern idling, in the order given.
    pub command_line: Vec<String>,
}

/// Parameters on the kernel's command line that concern idling, as the text before `=` or the first dot.
const CONCERNED: [&str; 15] = [
    "idle",
    "nohlt",
    "hlt",
    "powersave",
    "nohz_full",
    "isolcpus",
    "nohz",
    "cpuidle",
    "cpuidle_haltpoll",
    "haltpoll",
    "kvm",
    "kvm_intel",
    "kvm_amd",
    "intel_idle",
    "processor",
];

/// `uname -r`; `None` if it cannot be read. Copied files show it elsewhere as well: in the third word of `/proc/version` and
/// of `uname`, as sosreport has it, and in the name of the only directory of modules.
pub fn release(machine: &dyn Machine) -> Option<String> {
    let third = |path| machine.text(path)?.split_ascii_whitespace().nth(2).map(str::to_owned);
    let of_modules = || match machine.names("/lib/modules").ok()?.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    let copied = || third("/uname").or_else(of_modules).filter(|_| !machine.is_whole());
    let release = machine.text("/proc/sys/kernel/osrelease").filter(|release| !release.is_empty());
    release.or_else(|| third("/proc/version")).or_else(copied)
}

/// The version of the running kernel, on the architecture that the machine shows, else x86-64; `None` if it cannot be
/// read or is none.
pub fn version(machine: &dyn Machine) -> Option<Version> {
    let version = Version::parse(&release(machine)?)?;
    Some(version.on(arch::read(machine).unwrap_or_default()))
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
fn name_of<S: serde::Serializer>(arch: &Option<Arch>, out: S) -> Result<S::Ok, S::Error> {
    arch.map(Arch::name).serialize(out)
}

impl Kernel {
    pub(crate) fn read(machine: &dyn Machine) -> Kernel {
        let release = release(machine);
        let arch = arch::read(machine);
        let version = version(machine);
        let known = |layer| {
            version.is_some_and(|version| {
                version.arch.lacks(Owner::Layer(layer)).is_some()
                    || param::known_version(layer, version).is_ok()
            })
        };
        let line = machine.text("/proc/cmdline").unwrap_or_default();
        Kernel {
            release,
            version,
            arch,
            rules_known: known(Layer::Host) && known(Layer::Guest),
            known: KNOWN_KERNELS,
            command_line: own_arguments(&line).filter(|word| concerns_idling(word)).collect(),
        }
    }

    /// The value of a parameter on the command line, the last one if given again.
    pub fn argument(&self, name: &str) -> Option<&str> {
        self.command_line.iter().rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

/// The words before ` -- `: the rest is for the first process.
pub(crate) fn own_arguments(line: &str) -> impl Iterator<Item = String> {
    words(line).into_iter().take_while(|word| word != "--")
}

/// The parameters on a line, as the kernel splits it: white space in double quotes is part of a word, and quotes around
/// a word or its value are not.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut quoted = false;
    let is_end = |c: char| {
        quoted ^= c == '"';
        !quoted && c.is_ascii_whitespace()
    };
    let plain = |word: &str| {
        let word = word.strip_prefix('"').map_or(word, |rest| rest.strip_suffix('"').unwrap_or(rest));
        match word.split_once("=\"") {
            Some((name, value)) if !name.contains('=') => {
                format!("{name}={}", value.strip_suffix('"').unwrap_or(value))
            }
            _ => word.to_owned(),
        }
    };
    line.split(is_end).filter(|word| !word.is_empty()).map(plain).collect()
}

fn concerns_idling(word: &str) -> bool {
    let name = word.split(['=', '.']).next().unwrap_or(word).replace('-', "_");
    CONCERNED.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_the_first_process_are_not_the_kernels() {
        let words: Vec<String> = own_arguments("quiet idle=poll -- idle=halt").collect();
        assert_eq!(words, ["quiet", "idle=poll"]);
    }

    #[test]
    fn quotes_are_not_part_of_a_parameter() {
        assert_eq!(
            words("quiet  \"kvm.halt_poll_ns=0\" kvm.x=\"1\" a=\"b c\" \"d=e f\" g=h\"i\n"),
            ["quiet", "kvm.halt_poll_ns=0", "kvm.x=1", "a=b c", "d=e f", "g=h\"i\n"]
        );
    }

    #[test]
    fn parameters_of_modules_are_recognised_with_either_dash() {
        assert!(concerns_idling("cpuidle-haltpoll.force=1"));
        assert!(concerns_idling("kvm.halt_poll_ns=0"));
        assert!(concerns_idling("nohz_full=2-7"));
        assert!(!concerns_idling("console=ttyS0"));
    }
}
