//! A small VMM: a machine of a few vCPUs whose program is this program.
//!
//! The guest stays at CPL3 in long mode and comes to CPL0 only to halt, to handle an interrupt, or to write
//! an MSR. Only what the architecture promises is used, so it runs under any KVM for x86-64; under flavours
//! that emulate CPL0 it runs the same instructions, more slowly.

mod image;
mod ioctl;
mod kvm_kind;
mod memory;
mod paging;
mod vcpu;

pub use kvm_kind::KvmKind;
pub use memory::Shared;
pub use vcpu::{GuestFault, Kicker, Vcpu};

use crate::guest::{Program, entry};
use image::Piece;
use kvm_bindings::{
    KVM_CAP_HALT_POLL, KVM_IRQ_ROUTING_MSI, KVM_MEM_READONLY, kvm_enable_cap, kvm_irq_routing_entry, kvm_msi,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, IoEventAddress, Kvm, NoDatamatch, VmFd};
use memory::Memory;
use paging::{Access, PageTables};
use std::io;
use std::sync::Arc;
use vmm_sys_util::eventfd::EventFd;

/// Why there is no machine, or why it stopped working.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// `/dev/kvm` does not exist or may not be used.
    #[error(
        "no KVM here: /dev/kvm: {0}; run on a machine with hardware or nested virtualization, as a member of group kvm or root"
    )]
    NoKvm(io::Error),
    #[error("this KVM lacks {0}")]
    Lacks(&'static str),
    /// A call of KVM's failed.
    #[error("{what}: {error}")]
    Kvm { what: &'static str, error: io::Error },
    /// A call of the operating system's failed.
    #[error("{what}: {error}")]
    Os { what: &'static str, error: io::Error },
    /// The region is full.
    #[error("the guest's memory of {} MiB is full", memory::SIZE >> 20)]
    OutOfMemory,
    /// The guest's program failed.
    #[error(transparent)]
    Fault(#[from] GuestFault),
}

impl VmError {
    fn os(what: &'static str) -> VmError {
        VmError::Os { what, error: io::Error::last_os_error() }
    }
}

/// Names the call that failed.
fn kvm(what: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> VmError {
    move |error| VmError::Kvm { what, error: error.into() }
}

/// Options of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The VM's own maximum of halt polling (`KVM_CAP_HALT_POLL`) \[ns\]; `None` leaves the module's.
    pub halt_poll_ns: Option<u32>,
    /// Whether HLT exits to this program instead of being handled in the kernel: then there is no interrupt
    /// controller in the kernel, no irqfd, and no local APIC.
    pub halts_in_user_space: bool,
}

/// A machine. Values that are placed in it last as long as it does.
#[derive(Debug)]
pub struct Machine {
    // In the order in which they have to go: the VM lets go of the memory before the memory is unmapped.
    vm: VmFd,
    kvm: Arc<Kvm>,
    options: Options,
    cr3: u64,
    gdt: u64,
    idt: u64,
    vcpus: u8,
    memory: Arc<Memory>,
}

/// Where the pieces of the program begin in guest-physical memory.
const IMAGE: u64 = 1 << 32;
/// Where KVM keeps three pages of its own on processors that need them (`KVM_SET_TSS_ADDR`).
const KVM_TSS: usize = 0xfffb_d000;
/// Code at CPL0, data at CPL0, data and code at CPL3: selectors of the descriptor table below.
const GDT: [u64; 8] =
    [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0, 0, 0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff, 0];
/// The first interrupt line that is not one of the emulated chips' pins.
const FIRST_GSI: u32 = 24;

impl Machine {
    /// Makes a machine without vCPUs. `vcpus` is how many it may get.
    ///
    /// # Errors
    /// [`VmError`]: without KVM, or if KVM lacks something.
    pub fn new(options: Options, vcpus: u8) -> Result<Machine, VmError> {
        let [machine] = Machine::together(options, vcpus)?;
        Ok(machine)
    }

    /// Makes machines that share one memory, as VMs do that pass each other messages: what is placed in one is at the same
    /// address in the others.
    ///
    /// # Errors
    /// As of [`Machine::new`].
    pub fn together<const N: usize>(options: Options, vcpus: u8) -> Result<[Machine; N], VmError> {
        let device = Kvm::new().map_err(|error| VmError::NoKvm(error.into()))?;
        let mut vms = vec![];
        for _ in 0..N {
            vms.push(vm(&device, options)?);
        }
        let memory = Arc::new(Memory::new()?);
        let tables = PageTables::new(&memory)?;
        let regions = regions(&memory)?;
        for Region { physical, from, bytes, access } in &regions {
            tables.map(*from, *physical, *bytes, *access)?;
        }
        tables.map(entry::APIC, entry::APIC, memory::PAGE as u64, Access::Device)?;
        let cr3 = tables.cr3();
        let (gdt, idt) = (memory.pages(1)?, memory.pages(1)?);
        for (at, descriptor) in (gdt..).step_by(8).zip(GDT) {
            memory.write(at, descriptor);
        }
        write_gates(&memory, idt, options.halts_in_user_space);
        let kvm = Arc::new(device);
        let mut machines = vec![];
        for vm in vms {
            show(&vm, &regions)?;
            let memory = Arc::clone(&memory);
            let machine = Machine { vm, kvm: Arc::clone(&kvm), options, cr3, gdt, idt, vcpus, memory };
            if let Some(ns) = options.halt_poll_ns {
                machine.set_halt_poll_ns(ns)?;
            }
            if !options.halts_in_user_space {
                machine.route_interrupts()?;
            }
            machines.push(machine);
        }
        machines.try_into().map_err(|_| VmError::OutOfMemory)
    }

    /// Places a zeroed value where host and guest both see it.
    ///
    /// # Errors
    /// [`VmError::OutOfMemory`].
    pub fn place<T: Shared>(&self) -> Result<&T, VmError> {
        self.memory.place()
    }

    /// Makes vCPU number `id`, which will run `program` with `argument`.
    ///
    /// # Errors
    /// [`VmError`], by the step that failed.
    pub fn vcpu<'m, T: Shared>(
        &'m self,
        id: u8,
        program: Program<T>,
        argument: &'m T,
    ) -> Result<Vcpu<'m>, VmError> {
        Vcpu::new(self, id, program as *const () as u64, std::ptr::from_ref(argument) as u64)
    }

    /// Sets the VM's own maximum of halt polling, at any time.
    ///
    /// # Errors
    /// KVM's, on kernels before 5.8.
    pub fn set_halt_poll_ns(&self, ns: u32) -> Result<(), VmError> {
        let mut enable = kvm_enable_cap { cap: KVM_CAP_HALT_POLL, ..Default::default() };
        enable.args[0] = ns.into();
        self.vm.enable_cap(&enable).map_err(kvm("KVM_CAP_HALT_POLL"))
    }

    /// A descriptor that wakes a vCPU by an interrupt when it is written to.
    ///
    /// # Errors
    /// The operating system's or KVM's.
    pub fn irqfd(&self, vcpu: u8) -> Result<EventFd, VmError> {
        let event = eventfd()?;
        let gsi = FIRST_GSI + u32::from(vcpu);
        self.vm.register_irqfd(&event, gsi).map_err(kvm("KVM_IRQFD"))?;
        Ok(event)
    }

    /// A descriptor that is written to when the guest writes to `port`.
    ///
    /// # Errors
    /// The operating system's or KVM's.
    pub fn ioeventfd(&self, port: u16) -> Result<EventFd, VmError> {
        let event = eventfd()?;
        self.rings(port, &event)?;
        Ok(event)
    }

    /// When the guest writes to `port`, this descriptor is written to, which may be an [irqfd](Machine::irqfd) of another
    /// machine.
    ///
    /// # Errors
    /// KVM's.
    pub fn rings(&self, port: u16, event: &EventFd) -> Result<(), VmError> {
        let at = IoEventAddress::Pio(port.into());
        self.vm.register_ioevent(event, &at, NoDatamatch).map_err(kvm("KVM_IOEVENTFD"))
    }

    /// Interrupts a vCPU without a descriptor (`KVM_SIGNAL_MSI`).
    ///
    /// # Errors
    /// KVM's.
    pub fn signal_msi(&self, vcpu: u8, vector: Vector) -> Result<(), VmError> {
        let (address_lo, data) = message(vcpu, vector);
        let msi = kvm_msi { address_lo, data, ..Default::default() };
        self.vm.signal_msi(msi).map(drop).map_err(kvm("KVM_SIGNAL_MSI"))
    }

    fn route_interrupts(&self) -> Result<(), VmError> {
        let mut routing = kvm_bindings::KvmIrqRouting::new(0).map_err(|_| VmError::OutOfMemory)?;
        for (gsi, vcpu) in (FIRST_GSI..).zip(0..self.vcpus) {
            let mut route = kvm_irq_routing_entry { gsi, type_: KVM_IRQ_ROUTING_MSI, ..Default::default() };
            let (address_lo, data) = message(vcpu, Vector::Wake);
            route.u.msi.address_lo = address_lo;
            route.u.msi.data = data;
            routing.push(route).map_err(|_| VmError::OutOfMemory)?;
        }
        self.vm.set_gsi_routing(&routing).map_err(kvm("KVM_SET_GSI_ROUTING"))
    }
}

/// What an interrupt is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vector {
    Wake,
    Timer,
}

/// The MSI that interrupts a vCPU: address and data.
fn message(vcpu: u8, vector: Vector) -> (u32, u32) {
    let vector = match vector {
        Vector::Wake => entry::WAKE,
        Vector::Timer => entry::TIMER,
    };
    (0xfee0_0000 | u32::from(vcpu) << 12, vector.into())
}

fn eventfd() -> Result<EventFd, VmError> {
    EventFd::new(libc::EFD_NONBLOCK).map_err(|error| VmError::Os { what: "eventfd", error })
}

/// A VM without memory.
fn vm(device: &Kvm, options: Options) -> Result<VmFd, VmError> {
    // A signal such as SIGINT interrupts KVM_CREATE_VM. The caller checks its stop flag.
    let vm = loop {
        match device.create_vm() {
            Err(error) if error.errno() == libc::EINTR => {}
            created => break created.map_err(kvm("KVM_CREATE_VM"))?,
        }
    };
    if !vm.check_extension(Cap::ReadonlyMem) {
        return Err(VmError::Lacks("KVM_CAP_READONLY_MEM"));
    }
    vm.set_tss_address(KVM_TSS).map_err(kvm("KVM_SET_TSS_ADDR"))?;
    if !options.halts_in_user_space {
        vm.create_irq_chip().map_err(kvm("KVM_CREATE_IRQCHIP"))?;
    }
    Ok(vm)
}

/// A part of the host's memory that a guest sees.
struct Region {
    physical: u64,
    /// The virtual address, in the host as in the guest.
    from: u64,
    bytes: u64,
    access: Access,
}

/// The guest's own memory, from the physical address 0 on, and this program, which the guest may read and run but not
/// write.
fn regions(memory: &Memory) -> Result<Vec<Region>, VmError> {
    let own =
        Region { physical: 0, from: memory.address(), bytes: memory::SIZE as u64, access: Access::ReadWrite };
    let mut regions = vec![own];
    let mut physical = IMAGE;
    for Piece { from, bytes } in image::pieces()? {
        regions.push(Region { physical, from, bytes, access: Access::ReadOnly });
        physical += bytes;
    }
    Ok(regions)
}

fn show(vm: &VmFd, regions: &[Region]) -> Result<(), VmError> {
    for (slot, Region { physical, from, bytes, access }) in (0..).zip(regions) {
        let region = kvm_userspace_memory_region {
            slot,
            guest_phys_addr: *physical,
            memory_size: *bytes,
            userspace_addr: *from,
            flags: if *access == Access::ReadOnly { KVM_MEM_READONLY } else { 0 },
        };
        // SAFETY: the guest's own memory is mapped as long as said, and unmapped only after the VM is closed (order of
        // Machine's fields); else they are mapped files of this program, which stay for its life, and which the guest cannot
        // write to.
        unsafe { vm.set_user_memory_region(region) }.map_err(kvm("KVM_SET_USER_MEMORY_REGION"))?;
    }
    Ok(())
}

/// The interrupt descriptor table: exceptions, the two services that CPL3 may ask for, and the interrupts.
fn write_gates(memory: &Memory, idt: u64, bare: bool) {
    let gate = |vector: u8, address: u64, from_cpl3: bool| {
        let kind: u64 = if from_cpl3 { 0xee } else { 0x8e };
        let selector = u64::from(vcpu::CODE0);
        let low = address & 0xffff | selector << 16 | kind << 40 | (address >> 16 & 0xffff) << 48;
        let at = idt + 16 * u64::from(vector);
        memory.write(at, low);
        memory.write(at + 8, address >> 32);
    };
    for vector in 0..entry::EXCEPTIONS {
        gate(vector, entry::exception_address(vector), false);
    }
    gate(entry::HALT, entry::halt_address(), true);
    gate(entry::WRITE_MSR, entry::write_msr_address(), true);
    gate(entry::WAKE, entry::interrupt_address(bare), false);
    gate(entry::TIMER, entry::interrupt_address(bare), false);
}
