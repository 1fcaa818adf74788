//! The state and capabilities of `/dev/kvm`.

use crate::absent::Absent;
use kvm_ioctls::Kvm;
use serde::Serialize;

/// `KVM_CAP_HALT_POLL`: a VM may have its own longest window.
const KVM_CAP_HALT_POLL: std::ffi::c_ulong = 182;
/// `KVM_CAP_X86_DISABLE_EXITS`: the mask of exits that may be disabled.
const KVM_CAP_X86_DISABLE_EXITS: std::ffi::c_ulong = 143;
/// `KVM_CAP_BINARY_STATS_FD`.
const KVM_CAP_BINARY_STATS_FD: std::ffi::c_ulong = 203;

/// The state and capabilities of `/dev/kvm`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum KvmDevice {
    /// It cannot be opened.
    Closed { why: Absent },
    Open {
        /// Whether `KVM_CAP_HALT_POLL` is there, with which a VMM overrides `halt_poll_ns` for its VM.
        halt_poll: bool,
        /// Exits that a VMM may disable: 1 MWAIT, 2 HLT, 4 PAUSE, 8 CSTATE.
        disable_exits: u32,
        /// Whether KVM has binary statistics.
        binary_stats: bool,
    },
    /// Another machine's files are read; its device cannot be asked.
    NotAsked,
}

/// Opens the device of this machine.
pub(crate) fn ask() -> KvmDevice {
    match Kvm::new() {
        Err(error) => KvmDevice::Closed { why: std::io::Error::from_raw_os_error(error.errno()).into() },
        Ok(kvm) => KvmDevice::Open {
            halt_poll: kvm.check_extension_raw(KVM_CAP_HALT_POLL) > 0,
            disable_exits: u32::try_from(kvm.check_extension_raw(KVM_CAP_X86_DISABLE_EXITS)).unwrap_or(0),
            binary_stats: kvm.check_extension_raw(KVM_CAP_BINARY_STATS_FD) > 0,
        },
    }
}
