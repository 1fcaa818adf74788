//! `KVM_CAP_X86_DISABLE_EXITS`: which idle instructions a VM may execute without an exit.
//!
//! A VMM sets bits before it runs the guest; the timer's [predicates](super::PostingPredicate) look at what was
//! granted. Older kernels promise less than their answer suggests: they accept a bit that they then ignore.

use super::Revision;
use core::fmt;

/// MWAIT does not exit (`KVM_X86_DISABLE_EXITS_MWAIT`).
pub const MWAIT: u64 = 1 << 0;
/// HLT does not exit (`KVM_X86_DISABLE_EXITS_HLT`).
pub const HLT: u64 = 1 << 1;
/// PAUSE does not exit (`KVM_X86_DISABLE_EXITS_PAUSE`).
pub const PAUSE: u64 = 1 << 2;
/// The guest may read the C-state residency counters (`KVM_X86_DISABLE_EXITS_CSTATE`).
pub const CSTATE: u64 = 1 << 3;
/// The guest may read APERF and MPERF (`KVM_X86_DISABLE_EXITS_APERFMPERF`); 7.2, not 6.12.
pub const APERFMPERF: u64 = 1 << 4;

/// What the host's CPU and command line allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Host {
    /// The CPU has MONITOR/MWAIT.
    pub mwait: bool,
    /// The APIC timer keeps running in deep C-states.
    pub arat: bool,
    /// The CPU's MONITOR is known to miss wakeups (`X86_BUG_MONITOR`).
    pub monitor_bug: bool,
    /// KVM's parameter `mitigate_smt_rsb` is on; it exists from 6.1.
    pub mitigate_smt_rsb: bool,
    /// The CPU counts APERF and MPERF. Assumed to be what [`APERFMPERF`] depends on; the specification names no
    /// condition.
    pub aperfmperf: bool,
}

/// Why a kernel answered `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DisableExitsError {
    /// These bits are not defined (up to 6.12) or not offered (7.2 and later).
    InvalidBits(u64),
    /// The VM has a vCPU already, which 7.2 and later refuse.
    VcpuExists,
}

impl fmt::Display for DisableExitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisableExitsError::InvalidBits(bits) => {
                write!(f, "KVM_CAP_X86_DISABLE_EXITS: the kernel does not take bits {bits:#x}")
            }
            DisableExitsError::VcpuExists => {
                write!(f, "KVM_CAP_X86_DISABLE_EXITS: must be enabled before the first vCPU is created")
            }
        }
    }
}

impl core::error::Error for DisableExitsError {}

/// The bits that this revision's kernels define at all.
const fn defined(revision: Revision) -> u64 {
    let old = MWAIT | HLT | PAUSE | CSTATE;
    match revision {
        Revision::V7_2 | Revision::V7_3 => old | APERFMPERF,
        _ => old,
    }
}

/// What `KVM_CHECK_EXTENSION` returns: the bits that this host offers.
pub fn offered(revision: Revision, host: &Host) -> u64 {
    let mut bits = PAUSE;
    if host.aperfmperf {
        bits |= APERFMPERF;
    }
    if revision < Revision::V6_1 || !host.mitigate_smt_rsb {
        bits |= HLT | CSTATE;
        if host.mwait && host.arat && !host.monitor_bug {
            bits |= MWAIT;
        }
    }
    bits & defined(revision)
}

/// What `KVM_ENABLE_CAP` with `requested` does: the bits that take effect, or why the answer is `EINVAL`.
///
/// Up to 6.12 a bit that is defined but not offered is accepted and silently ignored, at any time.
pub fn enable(
    revision: Revision,
    host: &Host,
    requested: u64,
    vcpu_exists: bool,
) -> Result<u64, DisableExitsError> {
    let offered = offered(revision, host);
    let strict = revision >= Revision::V7_2;
    let invalid = requested & !if strict { offered } else { defined(revision) };
    if invalid != 0 {
        return Err(DisableExitsError::InvalidBits(invalid));
    }
    if strict && vcpu_exists {
        return Err(DisableExitsError::VcpuExists);
    }
    Ok(requested & offered)
}

/// Whether KVM takes `PV_UNHALT` out of the guest's feature leaf: with HLT in the guest there is no halt to end.
pub const fn strips_pv_unhalt(granted: u64) -> bool {
    granted & HLT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE_METAL: Host =
        Host { mwait: true, arat: true, monitor_bug: false, mitigate_smt_rsb: false, aperfmperf: true };

    #[test]
    fn host_without_mwait_offers_what_the_6_18_host_did() {
        assert_eq!(offered(Revision::V6_12, &Host::default()), 0xe);
    }

    #[test]
    fn aperfmperf_is_offered_from_7_2() {
        assert_eq!(offered(Revision::V6_12, &BARE_METAL), 0xf);
        assert_eq!(offered(Revision::V7_2, &BARE_METAL), 0x1f);
    }

    #[test]
    fn smt_rsb_mitigation_leaves_pause_from_6_1() {
        let host = Host { mitigate_smt_rsb: true, aperfmperf: false, ..BARE_METAL };
        assert_eq!(offered(Revision::V5_18, &host), 0xf);
        assert_eq!(offered(Revision::V6_1, &host), PAUSE);
        assert_eq!(offered(Revision::V7_3, &host), PAUSE);
    }

    #[test]
    fn mwait_needs_all_three_conditions() {
        for host in [
            Host { mwait: false, ..BARE_METAL },
            Host { arat: false, ..BARE_METAL },
            Host { monitor_bug: true, ..BARE_METAL },
        ] {
            assert_eq!(offered(Revision::V6_12, &host) & MWAIT, 0, "{host:?}");
        }
    }

    #[test]
    fn impossible_mwait_is_ignored_up_to_6_12_and_refused_from_7_2() {
        let host = Host::default();
        assert_eq!(enable(Revision::V6_12, &host, MWAIT | HLT, false), Ok(HLT));
        assert_eq!(
            enable(Revision::V7_2, &host, MWAIT | HLT, false),
            Err(DisableExitsError::InvalidBits(MWAIT))
        );
    }

    #[test]
    fn undefined_bits_are_refused_in_every_revision() {
        for revision in Revision::ALL {
            assert_eq!(
                enable(revision, &BARE_METAL, 1 << 40 | HLT, false),
                Err(DisableExitsError::InvalidBits(1 << 40)),
                "{revision:?}"
            );
        }
    }

    #[test]
    fn existing_vcpu_is_an_error_from_7_2_only() {
        assert_eq!(enable(Revision::V6_12, &BARE_METAL, HLT, true), Ok(HLT));
        assert_eq!(enable(Revision::V7_2, &BARE_METAL, HLT, true), Err(DisableExitsError::VcpuExists));
    }

    #[test]
    fn hlt_in_guest_strips_pv_unhalt() {
        assert!(strips_pv_unhalt(HLT | PAUSE));
        assert!(!strips_pv_unhalt(MWAIT | PAUSE));
    }
}
