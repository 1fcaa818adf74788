//! Release numbers of Linux and QEMU, parsed from `uname -r`, `--version` or a command line.

use core::fmt;

/// The newest Linux release whose rules are known.
pub const NEWEST_KERNEL: Version = Version::new(7, 3);
/// The newest QEMU release whose rule is known.
pub const NEWEST_QEMU: Version = Version::new(11, 1);

/// `major.minor[.patch]` of a kernel or QEMU release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u16,
    /// The second number.
    pub minor: u16,
    /// The third number where it was given and nothing followed it. A distribution's `5.4.0-150-generic` is a
    /// maintained 5.4, not the first 5.4, so a third number with a suffix counts as not given.
    pub patch: Option<u16>,
}

impl Version {
    /// `major.minor`, of whatever patch level.
    pub const fn new(major: u16, minor: u16) -> Version {
        Version { major, minor, patch: None }
    }

    /// Reads `6.18`, `v6.18`, `6.18.44`, `6.1.0-32-amd64`, `11.1.0-rc2`; `None` for anything that does not begin
    /// with two numbers.
    pub fn parse(text: &str) -> Option<Version> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let (major, rest) = number(text)?;
        let (minor, rest) = number(rest.strip_prefix('.')?)?;
        let patch = match rest.strip_prefix('.') {
            None if rest.is_empty() || rest.starts_with(['-', '+', '~', ' ', '(', 'r']) => None,
            None => return None,
            Some(rest) => {
                let (patch, rest) = number(rest)?;
                rest.is_empty().then_some(patch)
            }
        };
        Some(Version { major, minor, patch })
    }

    /// Whether this release is `major.minor` or later, whatever its patch level.
    pub const fn at_least(self, major: u16, minor: u16) -> bool {
        self.major > major || (self.major == major && self.minor >= minor)
    }
}

fn number(text: &str) -> Option<(u16, &str)> {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        match self.patch {
            Some(patch) => write!(f, ".{patch}"),
            None => Ok(()),
        }
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
    use super::*;

    fn v(major: u16, minor: u16, patch: Option<u16>) -> Option<Version> {
        Some(Version { major, minor, patch })
    }

    #[test]
    fn reads_what_uname_and_qemu_print() {
        assert_eq!(Version::parse("6.18"), v(6, 18, None));
        assert_eq!(Version::parse("v5.4"), v(5, 4, None));
        assert_eq!(Version::parse("6.18.44"), v(6, 18, Some(44)));
        assert_eq!(Version::parse("5.4.0"), v(5, 4, Some(0)));
        assert_eq!(Version::parse("5.4.0-150-generic"), v(5, 4, None));
        assert_eq!(Version::parse("11.1.0-rc2"), v(11, 1, None));
        assert_eq!(Version::parse("7.2.22 (Debian 1:7.2+dfsg-7)"), v(7, 2, None));
    }

    #[test]
    fn refuses_what_is_no_version() {
        for text in ["", "6", "6.", ".1", "6.x", "six.one", "6.18x", "99999999.1", "6,1"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
