//! The seam to the kernel's tracing: what a recorder needs from a machine in addition to its files.
//!
//! It is [`Machine`] with five more calls. They are here and not in the crate `dwell-machine` because each
//! returns something that only a recorder can use and takes what only this crate has: `unsafe` to open a perf
//! event or a BPF program, and a thread with a mount namespace of its own. All that can be refused goes
//! through here, so that each refusal has a test without a machine that refuses.

use crate::bpf;
use crate::detached::Detached;
use crate::kvm_stats::{SourceError, debugfs_readable};
use crate::perf::Attributes;
use dwell_machine::{Machine, Sysroot};
use std::io;
use std::os::fd::OwnedFd;

/// A machine whose kernel can be traced.
pub trait System: Machine {
    /// A tracefs that no other process sees.
    ///
    /// # Errors
    /// `ENODEV` where the kernel has no tracefs, `EPERM` without `CAP_SYS_ADMIN`;
    /// [`io::ErrorKind::Unsupported`] where only another machine's files are at hand.
    fn mount_tracefs(&self) -> io::Result<Detached>;

    /// A sampled event on one CPU, for all processes, not yet enabled.
    ///
    /// # Errors
    /// The error of `perf_event_open(2)`; [`io::ErrorKind::Unsupported`] where only another machine's files
    /// are at hand.
    fn open_event(&self, attributes: &Attributes, cpu: u32) -> io::Result<OwnedFd>;

    /// A BPF map, program or link.
    ///
    /// # Errors
    /// The error of `bpf(2)`; [`io::ErrorKind::Unsupported`] where only another machine's files are at hand.
    fn open_bpf(&self, command: &bpf::Command<'_>) -> io::Result<OwnedFd>;

    /// The kernel's own types, which are larger than any other file that is read.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::Unsupported`] where only another machine's files are at hand.
    fn btf(&self) -> io::Result<Vec<u8>>;

    /// Whether KVM's counters can be read from debugfs; `None` where only another machine's files are at hand.
    fn kvm_statistics(&self) -> Option<Result<(), SourceError>>;
}

/// Fails where only another machine's files are at hand.
fn only_here(root: &Sysroot) -> io::Result<()> {
    if root.is_this_machine() { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

impl System for Sysroot {
    fn mount_tracefs(&self) -> io::Result<Detached> {
        only_here(self)?;
        Detached::new("tracefs")
    }

    fn open_event(&self, attributes: &Attributes, cpu: u32) -> io::Result<OwnedFd> {
        only_here(self)?;
        crate::perf::open(attributes, cpu)
    }

    fn open_bpf(&self, command: &bpf::Command<'_>) -> io::Result<OwnedFd> {
        only_here(self)?;
        bpf::open(command)
    }

    fn btf(&self) -> io::Result<Vec<u8>> {
        only_here(self)?;
        std::fs::read(bpf::KERNEL_TYPES)
    }

    fn kvm_statistics(&self) -> Option<Result<(), SourceError>> {
        self.is_this_machine().then(debugfs_readable)
    }
}
