//! KVM's local APIC timer: which mechanism carries a guest's timer, what that costs, and how early it is set.

pub mod disable_exits;
pub mod housekeeping;

mod advance;
mod arm;
mod era;
mod exits;
mod lapic;
mod posting;
mod tsc;

pub use advance::{
    ADJUST_MAX_CYCLES, ADJUST_MIN_CYCLES, ADJUST_STEP, ADVANCE_NS_INIT, ADVANCE_NS_MAX, Advance,
    AdvanceParameter, Delay, LAPIC_TIMER_ADVANCE_DEFAULT, LAPIC_TIMER_ADVANCE_NS_DEFAULT, Waited,
    adjust_timer_advance, wait,
};
pub use arm::{
    Cpuid15, HvArmed, HvRefused, HvTimer, MIN_TIMER_PERIOD_US_DEFAULT, SwArmed, advance_periodic_target,
    limit_periodic_timer, start_sw_tscdeadline,
};
pub use era::Era;
pub use exits::{Exits, Fire, Path};
pub use lapic::{Armed, Clocks, Delivery, ExpiredBy, LapicTimer, PendingRequest, TimerMode, Vcpu};
pub use posting::{
    PI_INJECT_TIMER_DEFAULT, PostingPredicate, VcpuConfig, VcpuState, pi_inject_timer_at_init,
};
pub use tsc::{GuestTsc, Scale};
