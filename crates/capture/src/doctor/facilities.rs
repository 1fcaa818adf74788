//! What this machine lets a recorder use.

use crate::bpf::BpfSource;
use crate::kvm_stats::SourceError;
use crate::perf::{Attributes, Source};
use crate::plan::guest_probes;
use crate::probe::TraceError;
use crate::rights::capabilities;
use crate::system::System;
use crate::tracefs::mount_points;
use dwell_machine::{Absent, Machine};
use dwell_trace::guest::GuestSource;
use serde::Serialize;
use std::io;

/// The ways into the kernel, and whether they are open.
#[derive(Clone, Debug, Serialize)]
pub struct Facilities {
    /// Effective user; `None` if it cannot be read.
    pub euid: Option<u32>,
    /// The capabilities that matter here, those that this process has.
    pub capabilities: Vec<&'static str>,
    /// Where tracefs is mounted.
    pub tracefs: Mounted,
    /// Where debugfs is mounted.
    pub debugfs: Mounted,
    /// `kernel.perf_event_paranoid`; `None` if the kernel has no perf.
    pub perf_event_paranoid: Option<i64>,
    /// Whether perf may watch every task on a CPU.
    pub perf: Perf,
    /// Whether the kernel describes its types (`/sys/kernel/btf/vmlinux`), which portable BPF programs need.
    pub btf: bool,
    /// Whether the BPF programs of `record guest --source bpf` can be loaded.
    pub bpf: Bpf,
    /// The tracepoints that recorders use, as far as they are there; `None` if tracefs could not be looked into.
    pub tracepoints: Option<Vec<&'static str>>,
    /// What hinders reading KVM's counters in debugfs; `None` if nothing does or that could not be asked.
    pub kvm_statistics: Option<String>,
    /// The same, as a value.
    #[serde(skip)]
    pub(super) kvm_statistics_error: Option<SourceError>,
}

/// Whether perf may watch every task on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Perf {
    Allowed,
    /// The kernel refuses it to this user.
    Denied,
    /// The kernel has no perf, or a sandbox hides it.
    Missing,
    /// The files are those of another machine; its kernel cannot be queried.
    NotAsked,
}

impl Perf {
    /// Opens, and closes again, an event of all tasks on one CPU that counts nothing: what recording tracepoints needs.
    fn examine(system: &dyn System) -> Perf {
        let attributes = Attributes { source: Source::Switches, watermark_bytes: 1, counts_lost: false };
        match system.open_event(&attributes, 0) {
            Ok(_) => Perf::Allowed,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Perf::Denied,
            // A kernel without perf returns ENOSYS, which is of this kind but has a number.
            Err(error) if error.kind() == io::ErrorKind::Unsupported && error.raw_os_error().is_none() => {
                Perf::NotAsked
            }
            Err(_) => Perf::Missing,
        }
    }
}

/// Whether the BPF programs of `record guest --source bpf` can be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Bpf {
    Allowed {
        /// The tracepoints that are left out, with the reason.
        left_out: Vec<String>,
    },
    Refused {
        /// Why, with the remedy.
        why: String,
    },
    /// The files are those of another machine; its kernel cannot be queried.
    NotAsked,
}

impl Bpf {
    /// Loads the programs, attaches none, and unloads them again.
    fn examine(system: &dyn System) -> Bpf {
        match BpfSource::try_out(system, &guest_probes(system, GuestSource::Bpf, true)) {
            Ok(left_out) => Bpf::Allowed { left_out },
            Err(TraceError::NoBtf { source }) if source.kind() == io::ErrorKind::Unsupported => Bpf::NotAsked,
            Err(error) => Bpf::Refused { why: error.to_string() },
        }
    }
}

/// A kernel file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Mounted {
    /// The kernel has none.
    Unknown,
    /// The kernel has it, but it is not mounted.
    No,
    /// It is mounted, but this user may not look into it.
    Denied { at: String },
    /// It is mounted and open.
    At { at: String },
}

impl Mounted {
    /// Where it can be looked into.
    pub fn open(&self) -> Option<&str> {
        match self {
            Mounted::At { at } => Some(at),
            _ => None,
        }
    }
}

/// Every tracepoint that a recorder uses, as `group:name`.
pub(super) const TRACEPOINTS: [&str; 19] = [
    "kvm:kvm_vcpu_wakeup",
    "kvm:kvm_halt_poll_ns",
    "kvm:kvm_entry",
    "kvm:kvm_exit",
    "power:cpu_idle",
    "power:guest_halt_poll_ns",
    "sched:sched_switch",
    "sched:sched_waking",
    "irq:irq_handler_entry",
    "raw_syscalls:sys_enter",
    "syscalls:sys_enter_poll",
    "syscalls:sys_enter_ppoll",
    "syscalls:sys_enter_epoll_wait",
    "syscalls:sys_enter_epoll_pwait",
    "syscalls:sys_enter_epoll_pwait2",
    "syscalls:sys_enter_select",
    "syscalls:sys_enter_pselect6",
    "syscalls:sys_enter_io_uring_enter",
    "irq_vectors:local_timer_entry",
];

impl Facilities {
    pub(super) fn examine(system: &dyn System) -> Facilities {
        let status = system.text("/proc/self/status").unwrap_or_default();
        let tracefs = mounted(system, "tracefs");
        let debugfs = mounted(system, "debugfs");
        let statistics = system.kvm_statistics().and_then(Result::err);
        Facilities {
            euid: euid(&status),
            capabilities: capabilities(&status),
            perf_event_paranoid: system.number("/proc/sys/kernel/perf_event_paranoid"),
            perf: Perf::examine(system),
            btf: system.exists("/sys/kernel/btf/vmlinux"),
            bpf: Bpf::examine(system),
            tracepoints: tracefs.open().map(|at| tracepoints(system, at)),
            kvm_statistics: statistics.map(|error| error.to_string()),
            kvm_statistics_error: statistics,
            tracefs,
            debugfs,
        }
    }

    /// Whether this process may mount file systems for itself.
    pub fn may_mount(&self) -> bool {
        self.capabilities.contains(&"CAP_SYS_ADMIN")
    }

    /// Whether a tracepoint is there; `None` if that is not known.
    pub(super) fn has(&self, tracepoint: &str) -> Option<bool> {
        Some(self.tracepoints.as_ref()?.contains(&tracepoint))
    }
}

/// The line `Uid:` has the real, effective, saved and file-system user.
fn euid(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn mounted(machine: &dyn Machine, filesystem: &str) -> Mounted {
    let Some(at) = mount_points(machine, filesystem).into_iter().next() else {
        let filesystems = machine.text("/proc/filesystems").unwrap_or_default();
        let known = filesystems.lines().any(|line| line.split_ascii_whitespace().last() == Some(filesystem));
        return if known { Mounted::No } else { Mounted::Unknown };
    };
    match machine.names(&at).map_err(Absent::from) {
        Err(Absent::Denied) => Mounted::Denied { at },
        _ => Mounted::At { at },
    }
}

fn tracepoints(machine: &dyn Machine, tracefs: &str) -> Vec<&'static str> {
    let there = |tracepoint: &&&str| {
        let path = tracepoint.replace(':', "/");
        machine.exists(&format!("{tracefs}/events/{path}"))
    };
    TRACEPOINTS.iter().filter(there).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_this_process_from_its_status() {
        let status = "Name:\tdwell\nUid:\t1000\t0\t0\t0\nCapEff:\t0000004000200000\n";
        assert_eq!(euid(status), Some(0));
        assert_eq!(capabilities(status), ["CAP_SYS_ADMIN", "CAP_PERFMON"]);
    }
}
