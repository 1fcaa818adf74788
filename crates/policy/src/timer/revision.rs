//! Which kernel follows which rules.

use super::posting::PostingPredicate;
use crate::Owner;
use crate::version::{Backport, Distributor, Rules, UnknownVersion, Version};

/// The patch level from which a stable series has the posting predicate of 2022 (1714a4eb6fb0, "KVM: LAPIC: Enable
/// timer posted-interrupt only when mwait/hlt is advertised"): from the release announcements of 5.4.193, 5.10.115
/// and 5.15.39 (12 May 2022) and the review of 5.17.7. Series that ended before, such as 5.16, never got it.
const POSTING_BACKPORTS: [(u16, u16, u16); 4] = [(5, 4, 193), (5, 10, 115), (5, 15, 39), (5, 17, 7)];

/// What is known of the kernels of distributors.
pub static BACKPORTS: [Backport<Revision>; 5] = [
    Backport {
        distributor: Distributor::RedHat,
        series: (5, 14),
        from: 0,
        rules: &[Revision::V5_10],
        source: "SPECS/kernel.spec of openela-main/kernel, el-9.2: nothing on posted timers before 5.14.0-110.el9",
    },
    Backport {
        distributor: Distributor::RedHat,
        series: (5, 14),
        from: 110,
        rules: &[Revision::V5_18],
        source: "SPECS/kernel.spec of openela-main/kernel, el-9.2: \"KVM: LAPIC: Enable timer posted-interrupt only when \
                 mwait/hlt is advertised\" in 5.14.0-110.el9",
    },
    // RHEL 9.3 begins after 5.14.0-284, whose changelog is the newest that was read.
    Backport {
        distributor: Distributor::RedHat,
        series: (5, 14),
        from: 285,
        rules: &[Revision::V5_18, Revision::V6_12],
        source: "SPECS/kernel.spec of openela-main/kernel, el-9.2: the posting rule of 2022 in 5.14.0-110.el9; later \
                 changelogs were not read",
    },
    Backport {
        distributor: Distributor::Suse,
        series: (5, 14),
        from: 0,
        rules: &[Revision::V5_18, Revision::V6_12, Revision::V5_10],
        source: "patches.suse/KVM-LAPIC-Enable-timer-posted-interrupt-only-when-mw.patch of openSUSE/kernel-source has the \
                 posting rule of 2022; which builds have it was not read",
    },
    Backport {
        distributor: Distributor::OpenEuler,
        series: (5, 10),
        from: 0,
        rules: &[Revision::V5_18, Revision::V6_12, Revision::V5_10],
        source: "arch/x86/kvm/lapic.c of openeuler-mirror/kernel at 0cf5170e6cc5 has the posting rule of 2022; which builds have \
                 it was not read",
    },
];

/// Kernel versions that share one behaviour of the local APIC timer, in order of release.
///
/// Rules were read in six kernels (see the [module](super)); releases between two of them get the older one's
/// rules. Two changes also went to stable series, so that the patch level matters:
///
/// * the posting predicate of 2022. `5.10.114` is before, `5.10.115` after; `5.10` alone and a distribution's
///   `5.10.0-30-amd64` (a maintained 5.10, see [`Version::patch`]) count as after, an exact `5.10.0` as before;
/// * in 6.1.y, delivering at once only if the vCPU wants to run. Its patch level is not known: only an exact `6.1.0`
///   counts as before, and 6.1.1 to 6.1.191 may be misjudged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revision {
    /// 5.4 to 5.4.192, and 5.5 to 5.9: posting needs APICv only, no fast paths, every expiry kicks.
    V5_4,
    /// 5.4 from 5.4.193: posting also needs MWAIT or HLT in the guest.
    V5_4_193,
    /// 5.10 to 5.17 without the backport: fast paths for the hv timer; an hv expiry is delivered at once.
    V5_10,
    /// 5.18 to 6.0, and 5.10, 5.15 and 5.17 with the backport: posting also needs MWAIT or HLT in the guest.
    V5_18,
    /// 6.1.0, and 6.2 to 6.9: tunes the advance before it waits, requests UNBLOCK.
    V6_1,
    /// 6.1.y: delivers at once only if the vCPU wants to run.
    V6_1_192,
    /// 6.12 to 7.1, and 6.10 and 6.11: the advance is on or off, always adaptive (89a58812c47f, 6.10-rc3); wants-to-run
    /// as in 6.1.y, which was read in 6.12 only.
    V6_12,
    /// 7.2: fast path for arming whatever the mechanism; stricter `KVM_CAP_X86_DISABLE_EXITS`.
    V7_2,
    /// 7.3: the hv timer's limit follows CPUID leaf 0x15 on bare metal.
    V7_3,
}

impl Revision {
    /// Every revision, in order of release.
    pub const ALL: [Revision; 9] = [
        Revision::V5_4,
        Revision::V5_4_193,
        Revision::V5_10,
        Revision::V5_18,
        Revision::V6_1,
        Revision::V6_1_192,
        Revision::V6_12,
        Revision::V7_2,
        Revision::V7_3,
    ];

    /// The revision of a kernel release, 5.4 to 7.3; of those that it may have, the one that its version has.
    ///
    /// # Errors
    /// [`UnknownVersion`] for other releases, and for other architectures than x86-64.
    pub fn of(kernel: Version) -> Result<Revision, UnknownVersion> {
        Ok(Revision::rules(kernel)?.first)
    }

    /// The revisions that a kernel release may have, for all that is known of its distributor.
    ///
    /// # Errors
    /// As [`Revision::of`].
    pub fn rules(kernel: Version) -> Result<Rules<Revision>, UnknownVersion> {
        let elsewhere = "5.4 to 7.3 on x86-64, which alone has a local APIC timer";
        kernel.is_known_kernel(Owner::Timer, elsewhere)?;
        let base = Revision::of_version(kernel);
        if let Some(rules) = Backport::find(&BACKPORTS, kernel) {
            return Ok(rules);
        }
        let others: &[Revision] = match (kernel.build, base) {
            (Some(_), Revision::V5_4) => &[Revision::V5_4_193, Revision::V6_12],
            (Some(_), Revision::V5_10) => &[Revision::V5_18, Revision::V6_12],
            (Some(_), older) if older < Revision::V6_12 => &[Revision::V6_12],
            _ => &[],
        };
        Ok(Rules { others, ..Rules::certain(base) })
    }

    fn of_version(kernel: Version) -> Revision {
        let backported = kernel.has_since(&POSTING_BACKPORTS);
        match (kernel.major, kernel.minor) {
            (5, ..=9) if backported => Revision::V5_4_193,
            (5, ..=9) => Revision::V5_4,
            (5, 10..=17) if !backported => Revision::V5_10,
            (5, _) | (6, 0) => Revision::V5_18,
            (6, 1) if kernel.patch != Some(0) => Revision::V6_1_192,
            (6, ..=9) => Revision::V6_1,
            (6, _) | (7, ..=1) => Revision::V6_12,
            (7, 2) => Revision::V7_2,
            _ => Revision::V7_3,
        }
    }

    /// The rule by which this revision's kernels decide that a timer may be posted.
    pub const fn posting(self) -> PostingPredicate {
        match self {
            Revision::V5_4 | Revision::V5_10 => PostingPredicate::Merged2019,
            _ => PostingPredicate::Merged2022,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(text: &str) -> Option<Revision> {
        Revision::of(Version::parse(text).unwrap()).ok()
    }

    #[test]
    fn read_kernels_have_the_era_named_after_them() {
        assert_eq!(revision("5.4.286"), Some(Revision::V5_4_193));
        assert_eq!(revision("5.10.223"), Some(Revision::V5_18));
        assert_eq!(revision("6.1.192"), Some(Revision::V6_1_192));
        assert_eq!(revision("6.12.117"), Some(Revision::V6_12));
        assert_eq!(revision("7.2.13"), Some(Revision::V7_2));
        assert_eq!(revision("7.3.4"), Some(Revision::V7_3));
    }

    #[test]
    fn patch_level_decides_about_the_backported_predicate() {
        for (before, after) in [
            ("5.4.192", "5.4.193"),
            ("5.10.114", "5.10.115"),
            ("5.15.38", "5.15.39"),
            ("5.17.6", "5.17.7"),
            ("5.10.0", "5.10.0-30-amd64"),
            ("5.4.0", "5.4"),
            ("5.17.0", "5.18.0"),
        ] {
            assert_eq!(
                revision(before).map(Revision::posting),
                Some(PostingPredicate::Merged2019),
                "{before}"
            );
            assert_eq!(revision(after).map(Revision::posting), Some(PostingPredicate::Merged2022), "{after}");
        }
        assert_eq!(revision("5.16.20"), Some(Revision::V5_10));
        assert_eq!(revision("5.9.16"), Some(Revision::V5_4));
    }

    #[test]
    fn the_builds_of_a_distributor_decide_where_a_source_has_them() {
        let posting =
            |text: &str| Revision::rules(Version::parse(text).unwrap()).unwrap().agreed(Revision::posting);
        for (text, expected) in [
            ("5.14.0-70.13.1.el9_0.x86_64", Some(PostingPredicate::Merged2019)),
            ("5.14.0-110.el9.x86_64", Some(PostingPredicate::Merged2022)),
            ("5.14.0-284.30.1.el9_2.x86_64", Some(PostingPredicate::Merged2022)),
            ("5.14.0-503.11.1.el9_5.x86_64", Some(PostingPredicate::Merged2022)),
            ("6.12.0-211.el10", Some(PostingPredicate::Merged2022)),
            // No source: both.
            ("5.14.21-150500.55.19-default", None),
            ("5.10.0-136.12.0.86.oe2203sp1.x86_64", None),
            ("6.6.0-72.0.0.76.oe2403sp1.x86_64", Some(PostingPredicate::Merged2022)),
        ] {
            assert_eq!(posting(text), expected, "{text}");
        }
        assert!(Revision::of(Version::new(6, 1).on(crate::arch::Arch::Arm64)).is_err());
    }

    #[test]
    fn exact_6_1_0_is_before_wants_to_run() {
        assert_eq!(revision("6.1.0"), Some(Revision::V6_1));
        assert_eq!(revision("6.1.0-32-amd64"), Some(Revision::V6_1_192));
        assert_eq!((revision("6.9.12"), revision("6.10")), (Some(Revision::V6_1), Some(Revision::V6_12)));
    }

    #[test]
    fn kernels_outside_what_was_read_are_refused() {
        for text in ["5.3", "4.19", "7.4", "7.10", "8.0"] {
            assert_eq!(revision(text), None, "{text}");
        }
        let error = Revision::of(Version::new(5, 3)).unwrap_err();
        assert_eq!((error.of, error.known), ("kernel", "5.4 to 7.3"));
    }

    #[test]
    fn eras_are_listed_in_order() {
        assert!(Revision::ALL.is_sorted());
    }
}
