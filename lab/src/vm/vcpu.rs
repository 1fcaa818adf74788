//! A vCPU: made ready for a program at CPL3, and run.

use super::{Machine, VmError, ioctl, kvm};
use crate::guest::entry;
use dwell_capture::kvm_stats::{LayoutError, StatsFile};
use dwell_machine::threads::Thread;
use kvm_bindings::{
    KVM_MAX_CPUID_ENTRIES, KVM_MP_STATE_RUNNABLE, kvm_dtable, kvm_mp_state, kvm_regs, kvm_segment,
};
use kvm_ioctls::{VcpuExit, VcpuFd};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// Selectors of the machine's descriptor table.
pub(super) const CODE0: u16 = 0x08;
const DATA3: u16 = 0x2b;
const CODE3: u16 = 0x33;
const TSS: u16 = 0x40;

/// The task state segment: 104 bytes, then where the I/O bitmap begins (all zero: every port is allowed),
/// then the byte of ones that ends it. Intel SDM vol. 1, 19.5.2.
const TSS_BYTES: u64 = 104;
const IO_BITMAP_BYTES: u64 = 8192;
/// Pages of stack at CPL3 and at CPL0.
const STACK3_PAGES: usize = 16;
const STACK0_PAGES: usize = 1;

/// RFLAGS: the bit that is always set, and ports allowed at CPL3 (IOPL) without a look at the I/O bitmap:
/// QEMU's emulator of SVM refuses every port where the bitmap's TSS is marked busy, which it is while it is
/// in use.
const RFLAGS: u64 = 1 << 1 | 3 << 12;
/// CR4: physical address extension, SSE and its exceptions.
const CR4: u64 = 1 << 5 | 1 << 9 | 1 << 10;
/// CR0: protection, coprocessor, numeric errors, write protection, alignment, paging.
const CR0: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 18 | 1 << 31;
/// EFER: long mode enabled and active, no-execute.
const EFER: u64 = 1 << 8 | 1 << 10 | 1 << 11;

/// A vCPU of a machine, ready to run.
#[derive(Debug)]
pub struct Vcpu<'m> {
    machine: &'m Machine,
    fd: VcpuFd,
    kicker: Kicker,
}

/// The guest's program failed: an unexpected exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the guest's program failed: exception {vector} at {address:#x} (CR2 {cr2:#x}, program at {program:#x}); it used \
     something that a guest does not have"
)]
pub struct GuestFault {
    pub vector: u64,
    pub address: u64,
    /// The address of the last page fault.
    pub cr2: u64,
    /// Where the guest's program begins, to find the instruction in this program.
    pub program: u64,
}

impl<'m> Vcpu<'m> {
    pub(super) fn new(
        machine: &'m Machine,
        id: u8,
        program: u64,
        argument: u64,
    ) -> Result<Vcpu<'m>, VmError> {
        let fd = machine.vm.create_vcpu(id.into()).map_err(kvm("KVM_CREATE_VCPU"))?;
        set_cpuid(machine, &fd, id)?;
        set_segments(machine, &fd)?;
        let stack = machine.memory.pages(STACK3_PAGES)? + (STACK3_PAGES * super::memory::PAGE) as u64;
        let regs = kvm_regs {
            rip: program,
            rdi: argument,
            // As after a call: the return address would be at a multiple of 16.
            rsp: stack - 8,
            rflags: RFLAGS,
            ..Default::default()
        };
        fd.set_regs(&regs).map_err(kvm("KVM_SET_REGS"))?;
        if !machine.options.halts_in_user_space {
            enable_apic(&fd)?;
        }
        same_tsc(&fd);
        let kicker = Kicker { program, ..Kicker::default() };
        Ok(Vcpu { machine, fd, kicker })
    }

    /// Its statistics.
    ///
    /// # Errors
    /// Without `KVM_CAP_BINARY_STATS_FD` (Linux 5.14).
    pub fn stats(&self) -> Result<StatsFile, VmError> {
        StatsFile::new(ioctl::stats_fd(&self.fd)?).map_err(|error| match error {
            LayoutError::Read(error) => VmError::Os { what: "KVM statistics", error },
            LayoutError::Implausible { .. } => VmError::Lacks("statistics that can be read"),
        })
    }

    /// The frequency of its time-stamp counter \[kHz\].
    ///
    /// # Errors
    /// KVM's.
    pub fn tsc_khz(&self) -> Result<u32, VmError> {
        self.fd.get_tsc_khz().map_err(kvm("KVM_GET_TSC_KHZ"))
    }

    /// What can stop it from another thread.
    pub fn kicker(&self) -> Kicker {
        self.kicker.clone()
    }

    /// Runs the program until it reports, or until it is kicked. Where halts come to user space, `idle` has
    /// to wait for the event; then the vCPU is interrupted and goes on.
    ///
    /// # Errors
    /// [`VmError::Fault`] if the program failed, or the error of KVM.
    pub fn run(&mut self, mut idle: impl FnMut() -> ControlFlow<()>) -> Result<(), VmError> {
        let _running = self.kicker.running()?;
        while !self.kicker.kicked() {
            match self.fd.run() {
                Ok(VcpuExit::IoOut(entry::REPORT_PORT, _)) => return Ok(()),
                Ok(VcpuExit::IoOut(entry::FAULT_PORT, _)) => return Err(self.fault()?.into()),
                Ok(VcpuExit::Hlt) => {
                    if idle().is_break() {
                        return Ok(());
                    }
                    ioctl::interrupt(&self.fd, entry::WAKE)?;
                }
                Ok(VcpuExit::Intr) => {}
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return Err(VmError::Kvm { what: "KVM_RUN", error: error.into() }),
                Ok(exit) => {
                    let error = io::Error::other(format!("exit {exit:?}"));
                    return Err(VmError::Os { what: "KVM_RUN", error });
                }
            }
        }
        Ok(())
    }

    /// What the handler of exceptions left on the stack: its number, an error code for some, and the instruction.
    fn fault(&self) -> Result<GuestFault, VmError> {
        let regs = self.fd.get_regs().map_err(kvm("KVM_GET_REGS"))?;
        let sregs = self.fd.get_sregs().map_err(kvm("KVM_GET_SREGS"))?;
        let word = |n: u64| self.machine.memory.read(regs.rsp + 8 * n).unwrap_or(0);
        let vector = word(0);
        let has_error_code = matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30);
        let address = word(if has_error_code { 2 } else { 1 });
        Ok(GuestFault { vector, address, cr2: sregs.cr2, program: self.kicker.program })
    }
}

fn set_cpuid(machine: &Machine, fd: &VcpuFd, id: u8) -> Result<(), VmError> {
    let mut cpuid =
        machine.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(kvm("KVM_GET_SUPPORTED_CPUID"))?;
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            1 => {
                entry.ebx = entry.ebx & 0x00ff_ffff | u32::from(id) << 24;
                // The TSC-deadline timer, which the kernel's local APIC has.
                entry.ecx |= 1 << 24;
            }
            0xb | 0x1f => entry.edx = id.into(),
            0x8000_001e => entry.eax = id.into(),
            _ => {}
        }
    }
    fd.set_cpuid2(&cpuid).map_err(kvm("KVM_SET_CPUID2"))
}

fn set_segments(machine: &Machine, fd: &VcpuFd) -> Result<(), VmError> {
    let segment = |selector: u16, type_: u8, l: u8| kvm_segment {
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 3,
        db: 1 - l,
        s: 1,
        l,
        g: 1,
        ..Default::default()
    };
    let memory = &machine.memory;
    let stack0 = memory.pages(STACK0_PAGES)? + (STACK0_PAGES * super::memory::PAGE) as u64;
    let tss = memory.pages(3)?;
    memory.write(tss + 4, stack0);
    // The offset of the I/O bitmap is the upper half of the word at 100.
    memory.write(tss + 100, u32::try_from(TSS_BYTES << 16).unwrap_or(0));
    memory.write(tss + TSS_BYTES + IO_BITMAP_BYTES, 0xffu8);
    let mut sregs = fd.get_sregs().map_err(kvm("KVM_GET_SREGS"))?;
    sregs.cs = segment(CODE3, 11, 1);
    sregs.ss = segment(DATA3, 3, 0);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs) = (sregs.ss, sregs.ss, sregs.ss, sregs.ss);
    sregs.tr = kvm_segment {
        base: tss,
        limit: u32::try_from(TSS_BYTES + IO_BITMAP_BYTES).unwrap_or(0),
        selector: TSS,
        type_: 11,
        present: 1,
        ..Default::default()
    };
    let table = |base: u64, bytes: u16| kvm_dtable { base, limit: bytes - 1, padding: [0; 3] };
    sregs.gdt = table(machine.gdt, 64);
    sregs.idt = table(machine.idt, 4096);
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (CR0, machine.cr3, CR4, EFER);
    fd.set_sregs(&sregs).map_err(kvm("KVM_SET_SREGS"))
}

/// Switches the local APIC on: every priority accepted, the timer masked and undivided. Offsets are those of xAPIC.
fn enable_apic(fd: &VcpuFd) -> Result<(), VmError> {
    let mut apic = fd.get_lapic().map_err(kvm("KVM_GET_LAPIC"))?;
    for (offset, value) in [(0xf0, 0x1ffu32), (0x80, 0), (0x320, 0x1_0000), (0x3e0, 0xb)] {
        for (register, byte) in apic.regs[offset..].iter_mut().zip(value.to_le_bytes()) {
            *register = byte.cast_signed();
        }
    }
    fd.set_lapic(&apic).map_err(kvm("KVM_SET_LAPIC"))?;
    let running = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
    fd.set_mp_state(running).map_err(kvm("KVM_SET_MP_STATE"))
}

/// Lets the guest read the host's time-stamp counter as it is. Where KVM cannot (before 5.16), times of the
/// guest and of the host cannot be compared, which the experiments find out by themselves.
fn same_tsc(fd: &VcpuFd) {
    let _ = ioctl::zero_tsc_offset(fd);
}

/// Stops a vCPU from another thread, whatever its guest does.
#[derive(Clone, Debug, Default)]
pub struct Kicker {
    kicked: Arc<AtomicBool>,
    /// The thread that runs it; 0 before and after.
    tid: Arc<AtomicI32>,
    program: u64,
}

/// The signal that makes `KVM_RUN` return; its handler does nothing.
fn signal() -> i32 {
    libc::SIGRTMIN()
}

struct Running<'k>(&'k Kicker);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.tid.store(0, Ordering::SeqCst);
    }
}

extern "C" fn ignore(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

impl Kicker {
    fn running(&self) -> Result<Running<'_>, VmError> {
        vmm_sys_util::signal::register_signal_handler(signal(), ignore).map_err(|error| VmError::Os {
            what: "sigaction",
            error: io::Error::from_raw_os_error(error.errno()),
        })?;
        self.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        Ok(Running(self))
    }

    fn kicked(&self) -> bool {
        self.kicked.load(Ordering::SeqCst)
    }

    fn tid(&self) -> Option<i32> {
        Some(self.tid.load(Ordering::SeqCst)).filter(|tid| *tid != 0)
    }

    /// The thread that runs the vCPU, while it does.
    pub fn thread(&self) -> Option<Thread> {
        Some(Thread::of(std::process::id(), self.tid()?.unsigned_abs()))
    }

    /// Kicks the vCPU until it has stopped. One that does not run yet will not.
    pub fn kick(&self) {
        self.kicked.store(true, Ordering::SeqCst);
        while let Some(tid) = self.tid() {
            // SAFETY: signals a thread of this process; one that has ended meanwhile is an error that does no harm.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal()) };
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
