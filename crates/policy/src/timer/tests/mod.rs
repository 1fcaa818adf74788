//! The oracle of [`Setup`](super::Setup): the pCPU on which an hrtimer fires.

pub(super) mod housekeeping;

use super::VcpuConfig;

/// Every combination of the six inputs, for the numbers below 64.
pub(super) fn config(bits: u32) -> VcpuConfig {
    VcpuConfig {
        pi_inject_timer: bits & 1 != 0,
        apicv_active: bits & 2 != 0,
        mwait_in_guest: bits & 4 != 0,
        hlt_in_guest: bits & 8 != 0,
        pcpu_is_timer_housekeeping: bits & 16 != 0,
        hv_timer: bits & 32 != 0,
    }
}
