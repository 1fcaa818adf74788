//! The guest's page tables: four levels, pages of 4 KiB, everything open to CPL3.

use super::VmError;
use super::memory::{Memory, PAGE};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What may be done with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    ReadOnly,
    /// Read, written and run.
    ReadWrite,
    /// Registers of a device: written through and not cached.
    Device,
}

/// The tables, which grow as pages are mapped.
#[derive(Debug)]
pub(super) struct PageTables<'m> {
    memory: &'m Memory,
    root: u64,
}

impl<'m> PageTables<'m> {
    pub(super) fn new(memory: &'m Memory) -> Result<PageTables<'m>, VmError> {
        Ok(PageTables { memory, root: memory.pages(1)? })
    }

    /// The value of CR3.
    pub(super) fn cr3(&self) -> u64 {
        self.memory.physical(self.root)
    }

    /// Maps `bytes` (whole pages) at the virtual address to the physical one.
    pub(super) fn map(&self, from: u64, physical: u64, bytes: u64, access: Access) -> Result<(), VmError> {
        for offset in (0..bytes).step_by(PAGE) {
            self.map_page(from + offset, physical + offset, access)?;
        }
        Ok(())
    }

    fn map_page(&self, at: u64, physical: u64, access: Access) -> Result<(), VmError> {
        let mut table = self.root;
        for level in [39, 30, 21] {
            let entry = table + 8 * (at >> level & 511);
            let value = self.memory.read(entry).unwrap_or(0);
            table = if value & PRESENT != 0 {
                self.memory.address() + (value & ADDRESS)
            } else {
                let next = self.memory.pages(1)?;
                self.memory.write(entry, self.memory.physical(next) | PRESENT | WRITABLE | USER);
                next
            };
        }
        let flags = match access {
            Access::ReadOnly => PRESENT | USER,
            Access::ReadWrite => PRESENT | USER | WRITABLE,
            Access::Device => PRESENT | USER | WRITABLE | WRITE_THROUGH | UNCACHED,
        };
        self.memory.write(table + 8 * (at >> 12 & 511), physical | flags);
        Ok(())
    }
}
