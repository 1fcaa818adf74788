//! The KVM ioctls that the VMM issues itself, because `kvm-ioctls` has no wrapper for them, in one table: number, the
//! capability that gates each, and the Linux version that has it. Numbers are those of
//! `Documentation/virt/kvm/api.rst`.

use super::VmError;
use kvm_bindings::{
    KVM_CAP_BINARY_STATS_FD, KVM_CAP_VCPU_ATTRIBUTES, KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET,
    kvm_device_attr, kvm_interrupt,
};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// KVM's own letter in ioctl numbers (`KVMIO`).
const KVMIO: libc::Ioctl = 0xae;

/// An ioctl of KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Its name in the kernel's headers.
    pub(super) name: &'static str,
    pub(super) number: libc::Ioctl,
    /// The capability that gates it, by its number for `KVM_CHECK_EXTENSION`; `None`: every KVM has it.
    pub(super) capability: Option<u32>,
    /// The capability's name and the first Linux that has it, for error messages.
    pub(super) since: &'static str,
}

/// `_IO(KVMIO, nr)`.
const fn io(nr: u8) -> libc::Ioctl {
    KVMIO << 8 | nr as libc::Ioctl
}

/// `_IOW(KVMIO, nr, struct of so many bytes)`.
const fn iow(nr: u8, bytes: usize) -> libc::Ioctl {
    // Sizes of structs of the ABI have 14 bits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    let size = bytes as libc::Ioctl;
    1 << 30 | size << 16 | io(nr)
}

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $number:expr, $capability:expr, $since:literal;)*) => {
        $($(#[$doc])* pub(super) const $name: Request =
            Request { name: stringify!($name), number: $number, capability: $capability, since: $since };)*

        /// All of them.
        #[cfg(test)]
        const ALL: &[Request] = &[$($name),*];
    };
}

requests! {
    /// Injects an interrupt into a vCPU without an interrupt controller in the kernel. Reads a `kvm_interrupt`.
    KVM_INTERRUPT = iow(0x86, size_of::<kvm_interrupt>()), None, "every KVM";
    /// Returns a descriptor of a vCPU's statistics. Takes no argument.
    KVM_GET_STATS_FD = io(0xce), Some(KVM_CAP_BINARY_STATS_FD), "KVM_CAP_BINARY_STATS_FD (Linux 5.14)";
    /// Sets an attribute of a vCPU. Reads a `kvm_device_attr` and what it points to.
    KVM_SET_DEVICE_ATTR =
        iow(0xe1, size_of::<kvm_device_attr>()), Some(KVM_CAP_VCPU_ATTRIBUTES), "KVM_CAP_VCPU_ATTRIBUTES (Linux 5.16)";
}

/// Injects `vector` into a vCPU.
///
/// # Errors
/// What KVM returns.
#[allow(unsafe_code)]
pub(super) fn interrupt(vcpu: &impl AsRawFd, vector: u8) -> Result<(), VmError> {
    let interrupt = kvm_interrupt { irq: vector.into() };
    // SAFETY: KVM_INTERRUPT reads one `kvm_interrupt`, which outlives the call; its size is part of the
    // number. The result is checked below.
    let result = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_INTERRUPT.number, &raw const interrupt) };
    if result == 0 { Ok(()) } else { Err(failed(KVM_INTERRUPT)) }
}

/// Opens the statistics of a vCPU.
///
/// # Errors
/// Without `KVM_CAP_BINARY_STATS_FD`.
#[allow(unsafe_code)]
pub(super) fn stats_fd(vcpu: &impl AsRawFd) -> Result<OwnedFd, VmError> {
    // SAFETY: KVM_GET_STATS_FD takes no argument and returns a new descriptor or an error, which is checked below.
    let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD.number, 0) };
    if fd < 0 {
        return Err(failed(KVM_GET_STATS_FD));
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the offset of a vCPU's time-stamp counter to 0, so that the guest reads that of the host.
///
/// # Errors
/// Without `KVM_CAP_VCPU_ATTRIBUTES`.
#[allow(unsafe_code)]
pub(super) fn zero_tsc_offset(vcpu: &impl AsRawFd) -> Result<(), VmError> {
    let offset = 0u64;
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        addr: &raw const offset as u64,
        flags: 0,
    };
    // SAFETY: KVM_SET_DEVICE_ATTR reads one `kvm_device_attr`, whose size is part of the number, and for this
    // attribute the 64-bit word at `addr`; both outlive the call. The result is checked below.
    let result = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR.number, &raw const attribute) };
    if result == 0 { Ok(()) } else { Err(failed(KVM_SET_DEVICE_ATTR)) }
}

/// The error of an ioctl that failed; one that this KVM does not have is named with the capability that gates it.
fn failed(request: Request) -> VmError {
    let error = io::Error::last_os_error();
    match (request.capability, error.raw_os_error()) {
        (Some(_), Some(libc::ENOTTY | libc::EINVAL | libc::ENXIO)) => VmError::Lacks(request.since),
        _ => VmError::Os { what: request.name, error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that the kernel's headers give on x86-64.
    #[test]
    fn numbers_are_those_of_the_headers() {
        let numbers: Vec<_> = ALL.iter().map(|request| (request.name, request.number)).collect();
        assert_eq!(
            numbers,
            [
                ("KVM_INTERRUPT", 0x4004_ae86),
                ("KVM_GET_STATS_FD", 0xaece),
                ("KVM_SET_DEVICE_ATTR", 0x4018_aee1)
            ]
        );
    }

    /// What is gated by a capability works where KVM reports the capability, and is named where it does not.
    #[test]
    fn every_capability_is_one_that_kvm_can_be_asked_for() {
        let Ok(kvm) = kvm_ioctls::Kvm::new() else {
            dwell_testing::skip!("kvm", "every_capability_is_one_that_kvm_can_be_asked_for", "no KVM");
            return;
        };
        let vm = kvm.create_vm().unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        for (request, works) in
            [(KVM_GET_STATS_FD, stats_fd(&vcpu).map(drop)), (KVM_SET_DEVICE_ATTR, zero_tsc_offset(&vcpu))]
        {
            let has = vm.check_extension_raw(request.capability.unwrap().into()) > 0;
            match works {
                Ok(()) => assert!(has, "{} works without its capability", request.name),
                Err(error) => assert!(!has, "{}: {error}", request.name),
            }
        }
    }
}
