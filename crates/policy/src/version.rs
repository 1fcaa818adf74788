//! Release numbers of Linux and QEMU, parsed from `uname -r`, `--version` or a command line.

use crate::Owner;
use crate::arch::Arch;
use core::fmt;

/// The newest Linux release whose rules are known.
pub const NEWEST_KERNEL: Version = Version::new(7, 3);
/// The Linux releases whose rules are known, for error texts.
pub const KNOWN_KERNELS: &str = "5.4 to 7.3";
/// The newest QEMU release whose rule is known.
pub const NEWEST_QEMU: Version = Version::new(11, 1);

/// `major.minor[.patch]` of a kernel or QEMU release, with what else decides a kernel's rules: the build of a distributor
/// that takes over later changes, and the architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u16,
    /// The second number.
    pub minor: u16,
    /// The third number where it was given: the patch level. A distribution's `5.4.0-150-generic` is a maintained 5.4,
    /// not the first 5.4, so a 0 with a suffix counts as not given.
    pub patch: Option<u16>,
    /// The build of a distributor whose kernels have changes of later releases; `None` for others.
    pub build: Option<Build>,
    /// The architecture; x86-64 where the release does not name one.
    pub arch: Arch,
}

/// Who built a kernel, and which one it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Build {
    /// Who.
    pub distributor: Distributor,
    /// The first number after the version: 284 of `5.14.0-284.30.1.el9_2`, 150500 of `5.14.21-150500.55.19-default`.
    pub number: u32,
    /// The number of the distribution in the release: 9 of `el9_2`, 2203 of `oe2203`; 0 where it has none.
    pub release: u16,
}

crate::named! {
    /// Who builds kernels.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Distributor {
        /// Red Hat, and who builds from its sources: CentOS, Alma, Rocky, OpenELA.
        RedHat = "Red Hat",
        /// SUSE's enterprise kernels.
        Suse = "SUSE",
        /// openEuler.
        OpenEuler = "openEuler",
        /// Alibaba Cloud Linux, and Anolis.
        Alibaba = "Alibaba",
        /// TencentOS, and OpenCloudOS.
        Tencent = "Tencent",
        /// Kylin.
        Kylin = "Kylin",
        /// Oracle's UEK.
        Oracle = "Oracle",
        /// Amazon Linux.
        Amazon = "Amazon",
        /// Ubuntu.
        Ubuntu = "Ubuntu",
        /// Proxmox.
        Proxmox = "Proxmox",
        /// Debian.
        Debian = "Debian",
        /// Android, ChromeOS included.
        Android = "Android",
    }

    /// Its name.
    pub fn name
}

/// How each distributor's releases are recognised: what they contain, in the order in which it is looked for. Behind one
/// with a point in front is the number of the distribution.
const MARKS: [(&str, Distributor); 24] = [
    ("uek", Distributor::Oracle),
    (".el", Distributor::RedHat),
    (".oe", Distributor::OpenEuler),
    // Those of Huawei, China Telecom, China Unicom and UnionTech are made of openEuler.
    (".hce", Distributor::OpenEuler),
    (".eulerosv", Distributor::OpenEuler),
    (".ctl", Distributor::OpenEuler),
    (".ule", Distributor::OpenEuler),
    (".uelc", Distributor::OpenEuler),
    (".al", Distributor::Alibaba),
    (".an", Distributor::Alibaba),
    ("tlinux", Distributor::Tencent),
    (".tl", Distributor::Tencent),
    (".oc", Distributor::Tencent),
    (".ky", Distributor::Kylin),
    (".amzn", Distributor::Amazon),
    ("-pve", Distributor::Proxmox),
    ("-android", Distributor::Android),
    ("-generic", Distributor::Ubuntu),
    ("-lowlatency", Distributor::Ubuntu),
    ("-aws", Distributor::Ubuntu),
    ("-gcp", Distributor::Ubuntu),
    ("-azure", Distributor::Ubuntu),
    ("-amd64", Distributor::Debian),
    ("-cloud", Distributor::Debian),
];

impl Distributor {
    /// Whether its kernels have changes of later releases beyond those of the stable series, so that the version alone
    /// does not decide a rule.
    pub const fn backports(self) -> bool {
        matches!(
            self,
            Distributor::RedHat
                | Distributor::Suse
                | Distributor::OpenEuler
                | Distributor::Alibaba
                | Distributor::Tencent
                | Distributor::Kylin
                | Distributor::Oracle
        )
    }
}

impl Build {
    /// The build of a release as `uname -r` prints it.
    pub fn of(release: &str) -> Option<Build> {
        let (_, suffix) = release.split_once('-')?;
        let first = number::<u32>(suffix).map_or(0, |(first, _)| first);
        let mark = |(mark, _): &&(&str, Distributor)| {
            let numbered =
                |after: &str| !mark.starts_with('.') || after.starts_with(|c: char| c.is_ascii_digit());
            release.split(mark).skip(1).any(numbered)
        };
        let (distributor, release) = match MARKS.iter().find(mark) {
            // ELRepo builds the kernels of kernel.org.
            Some(_) if release.contains("elrepo") => return None,
            // 150500 is SLES 15 SP5, 160000 SLES 16.0. Its kernel for Azure ends as Ubuntu's does.
            _ if (150_000..170_000).contains(&first) => (Distributor::Suse, 0),
            Some((mark, distributor)) => {
                let after = release.split(mark).nth(1).unwrap_or_default();
                (*distributor, number(after).map_or(0, |(release, _)| release))
            }
            None => return None,
        };
        Some(Build { distributor, number: first, release })
    }
}

impl Version {
    /// `major.minor`, of whatever patch level, on x86-64.
    pub const fn new(major: u16, minor: u16) -> Version {
        Version { major, minor, patch: None, build: None, arch: Arch::X86_64 }
    }

    /// The same release on another architecture.
    #[must_use]
    pub const fn on(self, arch: Arch) -> Version {
        Version { arch, ..self }
    }

    /// Reads `6.18`, `v6.18`, `6.18.44`, `6.1.0-32-amd64`, `5.14.0-284.30.1.el9_2.x86_64`, `11.1.0-rc2`, also with the name
    /// of a package or image before it or a package's epoch, `QEMU emulator version 9.0.2 (…)` and what `uname -a` prints;
    /// `None` for anything that does not begin with two numbers then.
    pub fn parse(text: &str) -> Option<Version> {
        let text = text.split_once(" version ").map_or(text, |(_, version)| version).trim();
        let text = text.strip_prefix("Linux ").and_then(|words| words.split(' ').nth(1)).unwrap_or(text);
        let (name, rest) = text.split_at(text.find(|c: char| !"-_".contains(c) && !c.is_ascii_lowercase())?);
        let has_name = name == "v" || name.ends_with(['-', '_']) && !name.starts_with(['-', '_']);
        let text = if has_name { rest } else { text };
        let is_epoch = |epoch: &str| !epoch.is_empty() && epoch.bytes().all(|byte| byte.is_ascii_digit());
        let text =
            text.split_once(':').filter(|(epoch, _)| is_epoch(epoch)).map_or(text, |(_, version)| version);
        let (numbers, arch) = Version::split_arch(text);
        let (major, rest) = number(numbers)?;
        let (minor, rest) = number(rest.strip_prefix('.')?)?;
        let patch = match rest.strip_prefix('.') {
            None if rest.is_empty() || rest.starts_with(['-', '+', '~', ' ', '(', 'r']) => None,
            None => return None,
            Some(rest) => {
                let (patch, rest) = number(rest)?;
                (rest.is_empty() && numbers == text || patch > 0 && !rest.starts_with(' ')).then_some(patch)
            }
        };
        let release = text.split([' ', '(']).next().unwrap_or_default();
        let build = Build::of(release).filter(|build| build.distributor.backports());
        Some(Version { major, minor, patch, build, arch: arch.unwrap_or_default() })
    }

    /// A release without the architecture that it ends with, if it names one.
    pub fn split_arch(text: &str) -> (&str, Option<Arch>) {
        let named = text.rfind(['.', '-']).and_then(|at| {
            // `aarch64+64k` has pages of 64 KiB.
            let name = text[at + 1..].split('+').next()?;
            Some((&text[..at], Arch::from_name(name)?))
        });
        named.map_or((text, None), |(numbers, arch)| (numbers, Some(arch)))
    }

    /// Whether this release is `major.minor` or later, whatever its patch level.
    pub const fn at_least(self, major: u16, minor: u16) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }

    /// Whether the rules of `of` are known in this release of the kernel.
    ///
    /// # Errors
    /// [`UnknownVersion`] before 5.4 and after 7.3, the newest kernel that was read, and, with the words of `elsewhere`, on
    /// an architecture that lacks what this rule is of.
    pub(crate) fn is_known_kernel(self, of: Owner, elsewhere: &'static str) -> Result<(), UnknownVersion> {
        let known = match self.arch.lacks(of) {
            Some(_) => elsewhere,
            None if self.at_least(5, 4) && !self.at_least(7, 4) => return Ok(()),
            None => KNOWN_KERNELS,
        };
        Err(UnknownVersion { of: "kernel", known })
    }

    /// Whether it is of a series that has a change since one of these patch levels, given with the series.
    pub(crate) fn has_since(self, backports: &[(u16, u16, u16)]) -> bool {
        backports.iter().any(|&(major, minor, patch)| {
            (self.major, self.minor) == (major, minor) && self.patch.is_none_or(|p| p >= patch)
        })
    }
}

fn number<T: core::str::FromStr>(text: &str) -> Option<(T, &str)> {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

/// What a parser reads as the same version.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        match (self.patch, self.build) {
            (Some(patch), _) => write!(f, ".{patch}")?,
            (None, Some(_)) => f.write_str(".0")?,
            (None, None) => {}
        }
        if let Some(Build { distributor, number, release }) = self.build {
            write!(f, "-{number}")?;
            match MARKS.iter().find(|(mark, of)| mark.starts_with('.') && *of == distributor) {
                Some((mark, _)) => write!(f, "{mark}{release}")?,
                None if distributor == Distributor::Oracle => f.write_str(".uek")?,
                None => f.write_str("-default")?,
            }
        }
        if self.arch != Arch::X86_64 { write!(f, ".{}", self.arch.machine()) } else { Ok(()) }
    }
}

/// The rules that a release may follow: more than one where its distributor may have taken over later changes, and no
/// source says whether it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules<R: 'static> {
    /// The rule that it follows if nothing was taken over beyond what is known.
    pub first: R,
    /// The others.
    pub others: &'static [R],
    /// Where it is known from, other than from the version.
    pub source: Option<&'static str>,
}

impl<R: Copy> Rules<R> {
    /// That of its version.
    pub(crate) const fn certain(first: R) -> Rules<R> {
        Rules { first, others: &[], source: None }
    }

    /// Every one.
    pub fn iter(self) -> impl Iterator<Item = R> {
        core::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// What all of them have in common; `None` where they differ.
    pub fn agreed<T: PartialEq>(self, of: impl Fn(R) -> T) -> Option<T> {
        let first = of(self.first);
        self.others.iter().all(|other| of(*other) == first).then_some(first)
    }
}

/// From which build on the kernels of a distributor's series follow which rules.
#[derive(Clone, Copy, Debug)]
pub struct Backport<R: 'static> {
    /// Whose kernels.
    pub distributor: Distributor,
    /// The version that they are based on.
    pub series: (u16, u16),
    /// The first build.
    pub from: u32,
    /// The rule, the likeliest first if more than one is possible.
    pub rules: &'static [R],
    /// Where it is known from.
    pub source: &'static str,
}

impl<R: Copy> Backport<R> {
    /// What a table has about a release: its last row that applies.
    pub(crate) fn find(table: &'static [Backport<R>], version: Version) -> Option<Rules<R>> {
        let build = version.build?;
        let applies = |row: &&Backport<R>| {
            row.distributor == build.distributor
                && row.series == (version.major, version.minor)
                && row.from <= build.number
        };
        let row = table.iter().rfind(applies)?;
        let (first, others) = row.rules.split_first()?;
        Some(Rules { first: *first, others, source: Some(row.source) })
    }
}

/// A release whose behaviour is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVersion {
    /// What the versions are of: `kernel` or `QEMU`.
    pub of: &'static str,
    /// The versions that are known, for the user.
    pub known: &'static str,
}

impl fmt::Display for UnknownVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a {} version whose rule is known; known: {}", self.of, self.known)
    }
}

impl core::error::Error for UnknownVersion {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn v(major: u16, minor: u16, patch: Option<u16>) -> Option<Version> {
        Some(Version { patch, ..Version::new(major, minor) })
    }

    #[test]
    fn reads_what_uname_and_qemu_print() {
        assert_eq!(Version::parse("6.18"), v(6, 18, None));
        assert_eq!(Version::parse("v5.4"), v(5, 4, None));
        assert_eq!(Version::parse("6.18.44"), v(6, 18, Some(44)));
        assert_eq!(Version::parse("5.4.0"), v(5, 4, Some(0)));
        assert_eq!(Version::parse("5.4.0-150-generic"), v(5, 4, None));
        // ChromeOS, WSL and Debian after the patch level.
        for suffix in ["+", ".3-microsoft-standard-WSL2", "+deb13-amd64", "-amd64"] {
            assert_eq!(Version::parse(&std::format!("5.10.55{suffix}")), v(5, 10, Some(55)), "{suffix}");
        }
        assert_eq!(Version::parse("11.1.0-rc2"), v(11, 1, None));
        assert_eq!(Version::parse("7.2.22 (Debian 1:7.2+dfsg-7)"), v(7, 2, None));
        let program = "QEMU emulator version 9.0.2 (qemu-kvm-9.0.0-10.el9)";
        assert_eq!(Version::parse(program), v(9, 0, None));
        assert_eq!(Version::parse("vmlinuz-6.8.0-45-generic"), v(6, 8, None));
        for (text, release) in [
            ("kernel-5.14.0-284.el9.x86_64", "5.14.0-284.el9.x86_64"),
            ("linux-image-6.1.0-32-amd64", "6.1.0-32-amd64"),
            ("Linux host 6.8.12-4-pve #1 SMP PREEMPT_DYNAMIC x86_64 GNU/Linux", "6.8.12-4-pve"),
            ("pve-qemu-kvm_9.0.2-4", "9.0.2-4"),
            ("1:7.2+dfsg-7+deb12u13", "7.2+dfsg-7+deb12u13"),
        ] {
            let read = Version::parse(text);
            assert!(read.is_some() && read == Version::parse(release), "{text}: {read:?}");
        }
    }

    #[test]
    fn releases_of_distributors() {
        let build = |text: &str| Build::of(text).map(|b| (b.distributor, b.number, b.release));
        for (text, expected) in [
            ("5.14.0-284.30.1.el9_2.x86_64", Some((Distributor::RedHat, 284, 9))),
            ("6.12.0-211.el10", Some((Distributor::RedHat, 211, 10))),
            ("5.14.21-150500.55.19-default", Some((Distributor::Suse, 150_500, 0))),
            ("6.4.0-150600.8.14-azure", Some((Distributor::Suse, 150_600, 0))),
            ("5.10.0-136.12.0.86.oe2203sp1.aarch64", Some((Distributor::OpenEuler, 136, 2203))),
            ("5.10.134-16.1.al8.x86_64", Some((Distributor::Alibaba, 16, 8))),
            ("6.6.25-2.an23.x86_64", Some((Distributor::Alibaba, 2, 23))),
            ("5.4.241-1-tlinux4-0017", Some((Distributor::Tencent, 1, 4))),
            ("6.6.47-12.oc9.x86_64", Some((Distributor::Tencent, 12, 9))),
            ("6.6.0-32.7.v2505.ky11.x86_64", Some((Distributor::Kylin, 32, 11))),
            ("5.10.0-60.18.0.50.r865_35.hce2", Some((Distributor::OpenEuler, 60, 2))),
            ("5.10.0-136.12.0.86.h1032.eulerosv2r12.x86_64", Some((Distributor::OpenEuler, 136, 2))),
            ("5.10.0-136.12.0.86.ctl3.x86_64", Some((Distributor::OpenEuler, 136, 3))),
            ("5.15.0-200.131.27.el9uek.x86_64", Some((Distributor::Oracle, 200, 0))),
            ("6.1.115-126.197.amzn2023.x86_64", Some((Distributor::Amazon, 126, 2023))),
            ("6.8.0-45-generic", Some((Distributor::Ubuntu, 45, 0))),
            ("6.8.12-4-pve", Some((Distributor::Proxmox, 4, 0))),
            ("6.1.0-32-cloud-amd64", Some((Distributor::Debian, 32, 0))),
            ("5.10.157-android13-4-00003", Some((Distributor::Android, 0, 13))),
            ("6.1.10-1.el9.elrepo.x86_64", None),
            ("6.18.44", None),
        ] {
            assert_eq!(build(text), expected, "{text}");
            let version = Version::parse(text).unwrap();
            let backports = expected.is_some_and(|(distributor, ..)| distributor.backports());
            assert_eq!(version.build.is_some(), backports, "{text}");
            assert_eq!(Version::parse(&std::string::ToString::to_string(&version)), Some(version), "{text}");
        }
        assert_eq!(Version::parse("5.14.21-150500.55.19-default").unwrap().patch, Some(21));
        assert_eq!(Version::parse("6.8.12-4-pve").unwrap().patch, Some(12));
    }

    #[test]
    fn architectures_at_the_end_of_a_release() {
        for (text, arch) in [
            ("5.10.0-136.12.0.86.oe2203sp1.aarch64", Arch::Arm64),
            ("5.14.0-503.el9.aarch64+64k", Arch::Arm64),
            ("6.1.0-32-s390x", Arch::S390x),
            ("6.1-ppc64le", Arch::Power),
            ("6.1.riscv64", Arch::RiscV),
            ("6.1.0-32-amd64", Arch::X86_64),
        ] {
            let version = Version::parse(text).unwrap();
            assert_eq!((version.arch, version.patch), (arch, None), "{text}");
            assert_eq!(Version::parse(&std::string::ToString::to_string(&version)), Some(version), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_version() {
        for text in [
            "",
            "6",
            "6.",
            ".1",
            "6.x",
            "six.one",
            "6.18x",
            "99999999.1",
            "6,1",
            "x6.1",
            "-6.1",
            "linux-image-amd64",
        ] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
