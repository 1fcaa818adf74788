//! Whether the host may poll when the guest halts: `MSR_KVM_POLL_CONTROL`.

use super::write_msr;
use crate::vm::Shared;
use std::sync::atomic::{AtomicU32, Ordering};

/// `MSR_KVM_POLL_CONTROL`: bit 0 lets the host poll (`Documentation/virt/kvm/x86/msr.rst`).
const MSR_KVM_POLL_CONTROL: u32 = 0x4b56_4d05;

/// The value that a guest will write.
#[repr(transparent)]
pub struct PollControl {
    /// 0: it writes nothing; else 1 + the value to write.
    said: AtomicU32,
}

// SAFETY: an atomic; zero is valid.
unsafe impl Shared for PollControl {}

impl PollControl {
    /// Before the guest runs: it will write `allowed` to `MSR_KVM_POLL_CONTROL`, if there is anything to say.
    pub fn set(&self, allowed: Option<bool>) {
        let said = allowed.map_or(0, |allowed| 1 + u32::from(allowed));
        self.said.store(said, Ordering::Release);
    }

    /// In the guest: writes it.
    pub(super) fn say(&self) {
        let said = self.said.load(Ordering::Acquire);
        if said > 0 {
            write_msr(MSR_KVM_POLL_CONTROL, u64::from(said - 1));
        }
    }
}
