//! A fake machine whose kernel refuses to be traced, or seems to allow it.

use crate::bpf;
use crate::detached::Detached;
use crate::kvm_stats::SourceError;
use crate::perf::Attributes;
use crate::system::System;
use dwell_machine::{Hypervisor, KvmDevice, Machine};
use dwell_testing::machine;
use std::io;
use std::os::fd::OwnedFd;

/// [`machine::Fake`] with the five calls of a recorder.
#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) machine: machine::Fake,
    pub(crate) mount_errno: i32,
    pub(crate) perf_errno: i32,
    pub(crate) bpf_errno: i32,
    /// `None`: the kernel has no BTF.
    pub(crate) btf: Option<Vec<u8>>,
    /// Whether it is a kernel before 6.0, which does not count lost records by event.
    pub(crate) old_perf: bool,
    pub(crate) statistics: Option<Result<(), SourceError>>,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        Fake {
            machine: machine::Fake::new(),
            mount_errno: libc::ENODEV,
            perf_errno: libc::EACCES,
            bpf_errno: libc::EPERM,
            btf: None,
            old_perf: false,
            statistics: None,
        }
    }

    /// A machine on which everything can be recorded.
    pub(crate) fn quiet(release: &str) -> Fake {
        let machine = machine::Fake::quiet(release);
        Fake { machine, perf_errno: 0, statistics: Some(Ok(())), ..Fake::new() }
    }

    pub(crate) fn file(mut self, path: &str, text: &str) -> Fake {
        self.machine = self.machine.file(path, text);
        self
    }

    pub(crate) fn link(mut self, path: &str, target: &str) -> Fake {
        self.machine = self.machine.with_link(path, target);
        self
    }

    /// Everything below `path` exists and may not be read.
    pub(crate) fn forbid(mut self, path: &str) -> Fake {
        self.machine = self.machine.forbid(path);
        self
    }

    pub(crate) fn mount_fails(mut self, errno: i32) -> Fake {
        self.mount_errno = errno;
        self
    }

    /// With errno 0 an event can be opened.
    pub(crate) fn perf_fails(mut self, errno: i32) -> Fake {
        self.perf_errno = errno;
        self
    }

    /// What bpf(2) returns.
    pub(crate) fn bpf_fails(mut self, errno: i32) -> Fake {
        self.bpf_errno = errno;
        self
    }

    /// The refusal for `perf_fails` comes only without the counts of lost records, which this kernel does not have.
    pub(crate) fn old_perf(mut self) -> Fake {
        self.old_perf = true;
        self
    }
}

impl Machine for Fake {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.machine.read(path)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.machine.names(path)
    }

    fn target(&self, path: &str) -> io::Result<String> {
        self.machine.target(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.machine.exists(path)
    }

    fn hypervisor(&self) -> Option<Hypervisor> {
        self.machine.hypervisor()
    }

    fn kvm_device(&self) -> KvmDevice {
        self.machine.kvm_device()
    }

    fn latency_request_us(&self) -> Option<i32> {
        self.machine.latency_request_us()
    }
}

impl System for Fake {
    fn mount_tracefs(&self) -> io::Result<Detached> {
        Err(io::Error::from_raw_os_error(self.mount_errno))
    }

    fn open_event(&self, attributes: &Attributes, _: u32) -> io::Result<OwnedFd> {
        if self.old_perf && attributes.counts_lost {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        match self.perf_errno {
            0 => Ok(std::fs::File::open("/dev/null")?.into()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn open_bpf(&self, _: &bpf::Command<'_>) -> io::Result<OwnedFd> {
        Err(io::Error::from_raw_os_error(self.bpf_errno))
    }

    fn btf(&self) -> io::Result<Vec<u8>> {
        self.btf.clone().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn kvm_statistics(&self) -> Option<Result<(), SourceError>> {
        self.statistics
    }
}
