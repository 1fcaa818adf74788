//! Which architecture a machine has, from what it shows: never from what this program was built for.

use crate::seam::Machine;
use dwell_policy::arch::Arch;
use dwell_policy::version::Version;

/// What a line of `/proc/cpuinfo` begins with, and what it then holds, by architecture.
const CPUINFO: [(&str, &str, Arch); 8] = [
    ("vendor_id", "IBM/S390", Arch::S390x),
    ("vendor_id", "GenuineIntel", Arch::X86_64),
    ("vendor_id", "AuthenticAMD", Arch::X86_64),
    ("vendor_id", "HygonGenuine", Arch::X86_64),
    ("CPU implementer", "0x", Arch::Arm64),
    ("cpu", "POWER", Arch::Power),
    ("isa", "rv64", Arch::RiscV),
    ("CPU Family", "Loongson", Arch::LoongArch),
];

/// The architecture of a machine; `None` if it does not show which.
pub fn read(machine: &dyn Machine) -> Option<Arch> {
    let of_release = crate::kernel::release(machine).and_then(|release| Version::split_arch(&release).1);
    let named = machine.text("/proc/sys/kernel/arch").and_then(|name| Arch::from_name(&name));
    let uname = || Arch::from_name(&machine.uname_machine()?);
    of_release.or(named).or_else(uname).or_else(|| of_cpuinfo(&machine.text("/proc/cpuinfo")?))
}

fn of_cpuinfo(info: &str) -> Option<Arch> {
    info.lines().filter_map(|line| line.split_once(':')).find_map(|(key, value)| {
        let (key, value) = (key.trim(), value.trim());
        let fits = |(name, begin, _): &&(&str, &str, Arch)| *name == key && value.starts_with(begin);
        CPUINFO.iter().find(fits).map(|(.., arch)| *arch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn what_a_machine_shows_decides() {
        let of = |path: &str, text: &str| read(&Fake::new().file(path, text));
        for (text, arch) in [
            ("vendor_id       : IBM/S390\n# processors    : 16", Arch::S390x),
            ("vendor_id\t: AuthenticAMD\nmodel name\t: AMD", Arch::X86_64),
            ("processor\t: 0\nCPU implementer\t: 0x48", Arch::Arm64),
            ("processor\t: 0\ncpu\t\t: POWER9 (raw), altivec supported", Arch::Power),
            ("processor\t: 0\nhart\t\t: 1\nisa\t\t: rv64imafdc", Arch::RiscV),
            ("CPU Family\t\t: Loongson-64bit", Arch::LoongArch),
        ] {
            assert_eq!(of("/proc/cpuinfo", text), Some(arch), "{text}");
        }
        assert_eq!(of("/proc/sys/kernel/arch", "aarch64\n"), Some(Arch::Arm64));
        assert_eq!(of("/proc/sys/kernel/osrelease", "5.14.0-284.el9.s390x\n"), Some(Arch::S390x));
        assert_eq!(of("/proc/cpuinfo", "processor : 0"), None);
    }
}
