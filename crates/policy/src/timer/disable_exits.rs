//! `KVM_CAP_X86_DISABLE_EXITS`: which idle instructions a VM may execute without an exit.
//!
//! A VMM sets bits before it runs the guest; the timer's [predicates](super::PostingPredicate) look at what was
//! granted. Older kernels promise less than their answer suggests: up to 6.12 they accept a bit that they do not offer,
//! and ignore it.

use super::Revision;

/// MWAIT does not exit (`KVM_X86_DISABLE_EXITS_MWAIT`).
pub const MWAIT: u64 = 1 << 0;
/// HLT does not exit (`KVM_X86_DISABLE_EXITS_HLT`).
pub const HLT: u64 = 1 << 1;

/// Whether `KVM_ENABLE_CAP` returns `EINVAL` for a VM that has a vCPU already.
pub const fn refused_with_vcpus(revision: Revision) -> bool {
    matches!(revision, Revision::V7_2 | Revision::V7_3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_vcpu_is_an_error_from_7_2_only() {
        assert!(!refused_with_vcpus(Revision::V6_12));
        assert!(refused_with_vcpus(Revision::V7_2));
    }
}
