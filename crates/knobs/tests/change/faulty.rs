//! A machine on which operations fail.

use dwell_knobs::iothread::IothreadError;
use dwell_knobs::machine::{Lock, Machine, Sysroot};
use dwell_knobs::qmp::Monitor;
use std::cell::Cell;
use std::io;

/// What goes wrong.
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// The operation of this number, from 0.
    Once { number: u32, error: i32 },
    /// That one and every one after it that changes something; a full disk can still be read, and files removed.
    From { number: u32, error: i32 },
    /// A parameter takes any value and keeps another one.
    Clamp { path: String, to: String },
}

pub(crate) struct Faulty<'a> {
    machine: &'a Sysroot,
    fault: Fault,
    operations: Cell<u32>,
}

impl<'a> Faulty<'a> {
    pub(crate) fn new(machine: &'a Sysroot, fault: Fault) -> Faulty<'a> {
        Faulty { machine, fault, operations: Cell::new(0) }
    }

    /// How many there were so far.
    pub(crate) fn operations(&self) -> u32 {
        self.operations.get()
    }

    fn operation(&self, changes: bool) -> io::Result<()> {
        let this = self.operations.replace(self.operations.get() + 1);
        match self.fault {
            Fault::Once { number, error } if this == number => Err(io::Error::from_raw_os_error(error)),
            Fault::From { number, error } if this >= number && changes => {
                Err(io::Error::from_raw_os_error(error))
            }
            _ => Ok(()),
        }
    }
}

impl Machine for Faulty<'_> {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.operation(false)?;
        self.machine.read(path)
    }

    fn read_own(&self, path: &str) -> io::Result<Vec<u8>> {
        self.operation(false)?;
        self.machine.read_own(path)
    }

    fn check_directory(&self, path: &str) -> io::Result<()> {
        self.operation(false)?;
        self.machine.check_directory(path)
    }

    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        // A disk that is full takes parameters of the kernel all the same.
        self.operation(!matches!(self.fault, Fault::From { error: libc::ENOSPC | libc::EROFS, .. }))?;
        match &self.fault {
            Fault::Clamp { path: clamped, to } if clamped == path && bytes != b"50000" => {
                self.machine.write(path, to.as_bytes())
            }
            _ => self.machine.write(path, bytes),
        }
    }

    fn create(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.operation(true).inspect_err(|_| {
            // What a disk that has run full leaves: the beginning.
            let _ = self.machine.create(path, &bytes[..bytes.len() / 2]);
        })?;
        self.machine.create(path, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.operation(!matches!(self.fault, Fault::From { error: libc::ENOSPC, .. }))?;
        self.machine.remove(path)
    }

    fn link(&self, target: &str, path: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.link(target, path)
    }

    fn target(&self, path: &str) -> io::Result<String> {
        self.operation(false)?;
        self.machine.target(path)
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.make_directory(path)
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.sync_directory(path)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.operation(false)?;
        self.machine.names(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.machine.exists(path)
    }

    fn try_writing(&self, path: &str) -> io::Result<()> {
        self.operation(false)?;
        self.machine.try_writing(path)
    }

    fn lock(&self, path: &str) -> io::Result<Option<Lock>> {
        self.operation(true)?;
        self.machine.lock(path)
    }

    fn monitor(&self, socket: &str) -> Result<Monitor, IothreadError> {
        self.machine.monitor(socket)
    }

    fn virsh(&self, arguments: &[&str], input: &str) -> io::Result<String> {
        self.machine.virsh(arguments, input)
    }
}
