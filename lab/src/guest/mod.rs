//! What runs inside the lab's VM: functions of this program, at CPL3.
//!
//! A guest program is an `extern "sysv64" fn(&T) -> !` that never returns but reports its end ([`report`])
//! for ever. It may compute, use atomics of the memory that it shares with the host, read the TSC, halt, and
//! send interrupts. It must not allocate, print, panic, or use anything that needs the operating system or
//! thread-local storage: there is none. What goes wrong all the same ends as an exception, which the VMM
//! reports with its address.

pub mod doorbell;
pub(crate) mod entry;
mod idle;
pub mod pingpong;
mod poll_control;
mod rounds;
mod sleeper;
pub mod timer;

pub(crate) use idle::{IdleCounters, Looks};
pub use idle::{IdleCounts, IdleState, Idler};
pub use poll_control::PollControl;
pub use rounds::{MOST_ROUNDS, Rounds};
pub use sleeper::{Sleeper, sleeper};

use std::arch::asm;

/// The local APIC's interrupt command register, and the half that holds the destination (xAPIC offsets).
const ICR: u64 = 0x300;
const ICR_DESTINATION: u64 = 0x310;

/// A program that a vCPU runs.
pub type Program<T> = extern "sysv64" fn(&T) -> !;

#[inline]
pub fn tsc() -> u64 {
    // SAFETY: RDTSC is there on every x86-64 processor, and allowed at CPL3 (CR4.TSD is clear).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Spins for so many cycles of the time-stamp counter.
#[inline]
pub fn spin(cycles: u64) {
    let began = tsc();
    while tsc() - began < cycles {
        std::hint::spin_loop();
    }
}

/// Halts until an interrupt has come and been handled. One that is there already is handled at once.
#[inline]
pub fn halt() {
    // SAFETY: in the guest vector 3 is the halting service (see `entry`), which changes no register but eax.
    unsafe { asm!("int3", inout("eax") 0 => _) }
}

/// Writes a model-specific register.
#[inline]
pub fn write_msr(register: u32, value: u64) {
    let (low, high) = (value & 0xffff_ffff, value >> 32);
    // SAFETY: in the guest vector 4 is the service that writes an MSR; a wrong one is an exception, which is reported.
    unsafe { asm!("int 4", in("rcx") u64::from(register), in("rax") low, in("rdx") high) }
}

/// Sends the waking interrupt to another vCPU, through the local APIC.
#[inline]
pub fn send_wake(vcpu: u8) {
    apic_write(ICR_DESTINATION, u32::from(vcpu) << 24);
    apic_write(ICR, u32::from(entry::WAKE));
}

/// Writes a register of the local APIC, by its xAPIC offset.
#[inline]
pub fn apic_write(offset: u64, value: u32) {
    let at = (entry::APIC + offset) as *mut u32;
    // SAFETY: in the guest the page is mapped, writable at CPL3, and is the local APIC.
    unsafe { at.write_volatile(value) }
}

/// Writes a byte to a port: an exit, or a doorbell.
#[inline]
pub fn out(port: u16) {
    // SAFETY: the I/O bitmap of the guest's TSS allows every port at CPL3.
    unsafe { asm!("out dx, al", in("dx") port, in("al") 0u8) }
}

/// Lets the vCPU's thread return from running; when it is run again, the program goes on from here.
#[inline]
pub fn report() {
    out(entry::REPORT_PORT);
}
