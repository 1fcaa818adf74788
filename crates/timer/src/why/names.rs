//! Devices by the addresses that guests access them at, and what wakes vCPUs.

use super::Class;
use serde::{Deserialize, Serialize};
use std::fmt;

dwell_policy::named! {
    /// A device of a PC.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Device {
        Hpet = "HPET",
        Pit = "PIT",
        Rtc = "RTC",
        AcpiTimer = "ACPI PM timer",
        /// The deadline register of the local APIC's timer.
        LocalTimer = "deadline of the local APIC timer",
        Apic = "APIC",
        /// Synthetic timers of Hyper-V.
        SyntheticTimer = "Hyper-V synthetic timer",
        /// Other registers of Hyper-V: the time, the end of an interrupt, ...
        HyperV = "another register of Hyper-V",
        Pic = "PIC",
        Serial = "serial port",
        Keyboard = "keyboard controller",
        Vga = "VGA",
        Ide = "IDE",
        PciConfig = "PCI configuration",
        /// Another port.
        Port = "another port",
        /// Memory of a device: a virtio device, a PCI device.
        Memory = "memory of a device",
        /// What a display that is open shows.
        Display = "display",
    }

    /// As tables have it.
    pub fn name
}

impl Device {
    /// By port. The ACPI timer is where QEMU's machines have it (PMBASE 0x600), and at 0xb008 of an old one.
    pub const fn at_port(port: u32) -> Device {
        match port {
            0x40..=0x43 | 0x61 => Device::Pit,
            0x70 | 0x71 => Device::Rtc,
            0x608..=0x60b | 0xb008..=0xb00b => Device::AcpiTimer,
            0x20 | 0x21 | 0xa0 | 0xa1 => Device::Pic,
            0x3f8..=0x3ff | 0x2f8..=0x2ff => Device::Serial,
            0x60 | 0x64 => Device::Keyboard,
            0x3b0..=0x3df => Device::Vga,
            0x1f0..=0x1f7 | 0x170..=0x177 | 0x3f6 | 0x376 => Device::Ide,
            0xcf8..=0xcff => Device::PciConfig,
            _ => Device::Port,
        }
    }

    /// By model-specific register; those of Hyper-V are in its specification (TLFS).
    pub const fn at_register(register: u32) -> Option<Device> {
        match register {
            0x6e0 => Some(Device::LocalTimer),
            0x1b | 0x800..=0x8ff => Some(Device::Apic),
            0x4000_00b0..=0x4000_00b7 => Some(Device::SyntheticTimer),
            0x4000_0000..=0x4000_01ff => Some(Device::HyperV),
            _ => None,
        }
    }

    /// By physical address of the guest.
    pub const fn at_address(address: u64) -> Device {
        match address {
            0xfed0_0000..=0xfed0_03ff => Device::Hpet,
            0xfee0_0000..=0xfeef_ffff | 0xfec0_0000..=0xfec0_0fff => Device::Apic,
            0xa_0000..=0xb_ffff => Device::Vga,
            _ => Device::Memory,
        }
    }
}

/// What woke a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wake {
    /// The timer of its own local APIC.
    LocalTimer,
    /// A synthetic timer of Hyper-V.
    SyntheticTimer,
    /// An interrupt line, raised by a thread of this class.
    Line { gsi: u32, by: Class },
    /// An interrupt sent as a message by a thread of this class.
    Message { by: Class },
    /// Another vCPU.
    Ipi,
    /// No event shows it.
    Unknown,
}

impl Wake {
    /// The timer of the PC behind it, if it is one's line: the PIT is in the kernel or in the VMM, and the HPET, which
    /// is in the VMM, has the lines of the PIT and the RTC where it replaces them.
    pub const fn pc_timer(self) -> Option<Device> {
        match self {
            Wake::Line { gsi: 0, by: Class::Kernel } => Some(Device::Pit),
            Wake::Line { gsi: 0 | 2, .. } => Some(Device::Hpet),
            Wake::Line { gsi: 8, .. } => Some(Device::Rtc),
            _ => None,
        }
    }
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.pc_timer()) {
            (_, Some(Device::Hpet)) => f.write_str("HPET (or a PIT of the VMM)"),
            (_, Some(timer)) => f.write_str(timer.name()),
            (Wake::SyntheticTimer, _) => f.write_str(Device::SyntheticTimer.name()),
            (Wake::LocalTimer, _) => f.write_str("local APIC timer"),
            (Wake::Line { gsi, by }, _) => write!(f, "interrupt line {gsi}, from the {}", by.name()),
            (Wake::Message { by }, _) => write!(f, "message interrupt, from the {}", by.name()),
            (Wake::Ipi, _) => f.write_str("another vCPU"),
            (Wake::Unknown, _) => f.write_str("unknown, no event shows it"),
        }
    }
}
