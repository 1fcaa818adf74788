//! KVM's local APIC timer: which mechanism carries a guest's timer, what that costs, and how early it is set.
//!
//! # Idea
//!
//! A guest arms an interrupt at a future value of its time stamp counter. KVM has no hardware for every
//! guest timer, so it uses one of the host's: the VMX preemption timer, which runs only while the vCPU runs, or
//! an hrtimer, which fires on some host CPU. Whichever it is, the guest leaves guest mode at least once (to arm) and
//! often twice (to be notified). With a third way, *posting*, the hrtimer fires on another host CPU and puts the
//! interrupt into the running guest without an exit; the condition under which that is allowed has changed since 2019.
//!
//! Because reaching the guest takes time, KVM sets timers early by an *advance* that it learns from how early or
//! late the previous ones were, and spins away what is left just before the guest is entered.
//!
//! # Terms
//!
//! * **tscdeadline**: the guest TSC value at which the interrupt is due \[cycles\]; 0 means no timer.
//! * **pCPU**: a host CPU. **hv timer**: the VMX preemption timer. **sw timer**: an hrtimer.
//! * **pending**: expirations that were counted but not delivered yet; delivered before the next guest entry.
//! * **APICv**: interrupt delivery into a running guest by the CPU itself.
//! * **housekeeping**: pCPUs that `nohz_full=` left to the kernel's own chores, timers among them.
//!
//! # Steps
//!
//! 1. [`Revision::of`] a kernel version decides which rules apply.
//! 2. [`PostingPredicate`] decides whether a vCPU's timers may be posted or use the hv timer; what [`disable_exits`]
//!    granted to the guest is an input to both.
//! 3. Arming is an attempt to use the hv timer where that is allowed, else an hrtimer.
//! 4. [`Setup::fires_elsewhere`] decides whether an hrtimer fires on the vCPU's pCPU.
//! 5. [`Advance::wait_lapic_expire`] spins until the deadline and tunes the advance. Cycles and nanoseconds
//!    convert through [`GuestTsc`].
//! 6. [`Exits::of`] counts the VM exits per timer that was armed and fired; [`Setup`] puts a host and a VM together.
//!
//! # Limits
//!
//! * The rules were derived from kernels 5.4.286, 5.10.223, 6.1.192, 6.12.117, 7.2.13 and 7.3.4. A release between two
//!   of them gets the rules of the older one except where a change is known to have come later; see [`Revision`].
//! * Arithmetic (advance, wait, cycles) is checked against the kernel's own compiled functions.
//!   Paths, exit counts and the pCPUs of hrtimers come from reading; no vector covers them.
//! * The steps are not put together into a timer here. When it expires is not modelled, nor are one-shot and periodic
//!   timers.
//! * Nested guests, the instruction-level fast paths' own refusals, and timers of a guest that is being migrated
//!   between hosts are outside the model.
//! * Time is always an argument; nothing here reads a clock.

pub mod disable_exits;

mod advance;
mod exits;
mod posting;
mod revision;
mod setup;
#[cfg(test)]
mod tests;
mod tsc;

pub use advance::{
    ADJUST_MAX_CYCLES, ADJUST_MIN_CYCLES, ADJUST_STEP, ADVANCE_NS_INIT, ADVANCE_NS_MAX, Advance,
    AdvanceParameter, Delay, LAPIC_TIMER_ADVANCE_DEFAULT, LAPIC_TIMER_ADVANCE_NS_DEFAULT, Waited,
    adjust_timer_advance, wait,
};
pub use exits::{Exits, Fire, Path};
pub use posting::{
    PI_INJECT_TIMER_DEFAULT, PostingPredicate, VcpuConfig, VcpuState, pi_inject_timer_at_init,
};
pub use revision::{BACKPORTS, Revision};
pub use setup::Setup;
pub use tsc::{GuestTsc, Scale};
