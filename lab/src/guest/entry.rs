//! The guest's code at CPL0: what a program at CPL3 cannot do itself.
//!
//! The program runs at CPL3 with interrupts off. It comes here through software interrupts, since under some
//! flavours of KVM CPL0 is emulated instruction by instruction: the fewer there are, the better. `int3` halts
//! with interrupts on until one has been handled; `int 4` writes an MSR. An exception ends at a port that the
//! VMM knows.

use std::arch::naked_asm;

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

#[unsafe(naked)]
extern "sysv64" fn halt() {
    naked_asm!("sti", "hlt", "iretq")
}

#[unsafe(naked)]
extern "sysv64" fn write_msr() {
    naked_asm!("wrmsr", "iretq")
}

/// Signals the end of the interrupt to the local APIC: any write to its register at 0xb0.
#[unsafe(naked)]
extern "sysv64" fn interrupt() {
    naked_asm!("movabs dword ptr [0xfee000b0], eax", "iretq")
}

/// The same where there is no interrupt controller.
#[unsafe(naked)]
extern "sysv64" fn bare_interrupt() {
    naked_asm!("iretq")
}

/// One entry of 16 bytes for each exception, which puts its number on the stack and ends at the port.
#[unsafe(naked)]
extern "sysv64" fn exceptions() {
    naked_asm!(
        ".set dwell_vector, 0",
        ".rept 32",
        ".balign 16",
        "push dwell_vector",
        "jmp {fault}",
        ".set dwell_vector, dwell_vector + 1",
        ".endr",
        fault = sym fault,
    )
}

#[unsafe(naked)]
extern "sysv64" fn fault() {
    naked_asm!("2:", "out 0xee, al", "hlt", "jmp 2b")
}

/// Where the service that halts begins.
pub(crate) fn halt_address() -> u64 {
    halt as *const () as u64
}

/// Where the service that writes an MSR begins.
pub(crate) fn write_msr_address() -> u64 {
    write_msr as *const () as u64
}

/// Where the handler of interrupts begins; the bare one is for machines without an interrupt controller.
pub(crate) fn interrupt_address(bare: bool) -> u64 {
    if bare { bare_interrupt as *const () as u64 } else { interrupt as *const () as u64 }
}

/// Where the handler of an exception begins.
pub(crate) fn exception_address(vector: u8) -> u64 {
    exceptions as *const () as u64 + EXCEPTION_BYTES * u64::from(vector)
}
