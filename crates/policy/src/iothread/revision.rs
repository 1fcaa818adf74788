//! Which QEMU releases share one behaviour.

use crate::version::{UnknownVersion, Version};

crate::named! {
    /// The releases that adapt the polling time by one rule.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Revision {
        /// 2.9 to 9.2: one polling time per context, adapted by every `aio_poll`, whatever became ready.
        Global = "global",
        /// 10.0 to 11.0: one polling time per handler, adapted when that handler is dispatched; the context polls
        /// for the longest among the handlers it polls.
        PerHandler = "per-handler",
        /// 11.1: one polling time per context, driven by a smoothed block time per handler.
        Weighted = "weighted",
    }

    /// The name used on the command line and in files.
    pub fn name

    /// The revision of this name, if there is one.
    pub fn from_name
}

impl Revision {
    /// That of a version of QEMU; an error for versions before 2.9 and after 11.1. A patch level makes no difference: 7.2.22
    /// counts as 7.2.0, and a development snapshot `x.y.50` as `x.y`.
    ///
    /// # Errors
    /// [`UnknownVersion`].
    pub const fn of(version: Version) -> Result<Revision, UnknownVersion> {
        if !version.at_least(2, 9) || version.at_least(11, 2) {
            return Err(UnknownVersion { of: "QEMU", known: "2.9 to 11.1" });
        }
        Ok(if version.at_least(11, 1) {
            Revision::Weighted
        } else if version.at_least(10, 0) {
            Revision::PerHandler
        } else {
            Revision::Global
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision_of(text: &str) -> Result<Revision, UnknownVersion> {
        Revision::of(Version::parse(text).unwrap())
    }

    #[test]
    fn each_version_belongs_to_the_era_of_its_release() {
        for (revision, texts) in [
            (Revision::Global, &["2.9", "2.12.1", "4.2.0", "7.2.22 (Debian 1:7.2+dfsg-7)", "9.2.0"][..]),
            (Revision::PerHandler, &["10.0.0", "10.1", "10.2.0", "11.0.0"]),
            (Revision::Weighted, &["11.1.0-rc2", "11.1", "11.1.3"]),
        ] {
            for text in texts {
                assert_eq!(revision_of(text), Ok(revision), "{text}");
            }
            assert_eq!(Revision::from_name(revision.name()), Some(revision));
        }
    }

    #[test]
    fn versions_before_the_first_and_after_the_last_known_are_refused() {
        for text in ["1.7", "2.8.1", "11.2", "12.0"] {
            assert_eq!(revision_of(text), Err(UnknownVersion { of: "QEMU", known: "2.9 to 11.1" }), "{text}");
        }
    }
}
