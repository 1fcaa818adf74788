//! The guest's code at CPL0: what a program at CPL3 cannot do itself.
//!
//! The program runs at CPL3 with interrupts off. It comes here through software interrupts, since under some flavours of KVM
//! CPL0 is emulated instruction by instruction: the fewer there are, the better. `int3` halts with interrupts on until one
//! has been handled; `int 4` writes an MSR. An exception ends at a port that the VMM knows.

use std::arch::global_asm;

/// Vector of the software interrupt that halts.
pub(crate) const HALT: u8 = 3;
/// Vector of the software interrupt that writes the MSR `ecx` with `edx:eax`.
pub(crate) const WRITE_MSR: u8 = 4;
/// Vector of interrupts from other vCPUs and from the host.
pub(crate) const WAKE: u8 = 0x31;
/// Vector of the local APIC timer.
pub(crate) const TIMER: u8 = 0x32;
/// Where the guest sees its local APIC.
pub(crate) const APIC: u64 = 0xfee0_0000;
/// Exceptions that the processor defines.
pub(crate) const EXCEPTIONS: u8 = 32;
/// The port at which a program reports.
pub(crate) const REPORT_PORT: u16 = 0xd0;
/// The port at which an exception ends.
pub(crate) const FAULT_PORT: u16 = 0xee;
/// Size of the code for one exception \[bytes\].
const EXCEPTION_BYTES: u64 = 16;

global_asm!(
    ".pushsection .text.dwell_guest, \"ax\", @progbits",
    ".balign 16",
    "dwell_guest_halt:",
    "sti",
    "hlt",
    "iretq",
    ".balign 16",
    "dwell_guest_write_msr:",
    "wrmsr",
    "iretq",
    // The end of interrupt: any write to the local APIC's register at 0xb0.
    ".balign 16",
    "dwell_guest_interrupt:",
    "movabs dword ptr [0xfee000b0], eax",
    "iretq",
    // The same where there is no interrupt controller.
    ".balign 16",
    "dwell_guest_bare_interrupt:",
    "iretq",
    // One entry of 16 bytes for each exception, which puts its number on the stack.
    ".balign 16",
    "dwell_guest_exceptions:",
    ".set vector, 0",
    ".rept 32",
    ".balign 16",
    "push vector",
    "jmp dwell_guest_fault",
    ".set vector, vector + 1",
    ".endr",
    ".balign 16",
    "dwell_guest_fault:",
    "out 0xee, al",
    "hlt",
    "jmp dwell_guest_fault",
    ".popsection",
);

unsafe extern "C" {
    fn dwell_guest_halt();
    fn dwell_guest_write_msr();
    fn dwell_guest_interrupt();
    fn dwell_guest_bare_interrupt();
    fn dwell_guest_exceptions();
}

/// Where the service that halts begins.
pub(crate) fn halt_address() -> u64 {
    dwell_guest_halt as *const () as u64
}

/// Where the service that writes an MSR begins.
pub(crate) fn write_msr_address() -> u64 {
    dwell_guest_write_msr as *const () as u64
}

/// Where the handler of interrupts begins; the bare one is for machines without an interrupt controller.
pub(crate) fn interrupt_address(bare: bool) -> u64 {
    if bare {
        dwell_guest_bare_interrupt as *const () as u64
    } else {
        dwell_guest_interrupt as *const () as u64
    }
}

/// Where the handler of an exception begins.
pub(crate) fn exception_address(vector: u8) -> u64 {
    dwell_guest_exceptions as *const () as u64 + EXCEPTION_BYTES * u64::from(vector)
}
