//! A machine whose files in /proc and /sys hold anything, cut at every 0xff: facts and findings, printed.

use dwell_capture::bpf::Command;
use dwell_capture::detached::Detached;
use dwell_capture::doctor::Recordable;
use dwell_capture::format::Format;
use dwell_capture::kvm_stats::SourceError;
use dwell_capture::perf::Attributes;
use dwell_capture::system::System;
use dwell_knobs::finding;
use dwell_machine::{Facts, Hypervisor, KvmDevice, Machine};
use dwell_testing::machine::Fake;
use std::io;
use std::os::fd::OwnedFd;

/// Files, and a kernel that refuses to be traced.
struct Files(Fake);

impl Machine for Files {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.0.read(path)
    }
    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.0.names(path)
    }
    fn target(&self, path: &str) -> io::Result<String> {
        self.0.target(path)
    }
    fn exists(&self, path: &str) -> bool {
        self.0.exists(path)
    }
    fn hypervisor(&self) -> Option<Hypervisor> {
        None
    }
    fn kvm_device(&self) -> KvmDevice {
        KvmDevice::NotAsked
    }
    fn latency_request_us(&self) -> Option<i32> {
        Some(0)
    }
}

impl System for Files {
    fn mount_tracefs(&self) -> io::Result<Detached> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn open_event(&self, _: &Attributes, _: u32) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn open_bpf(&self, _: &Command<'_>) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn btf(&self) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
    fn kvm_statistics(&self) -> Option<Result<(), SourceError>> {
        None
    }
}

const FILES: [&str; 37] = [
    "/proc/sys/kernel/osrelease",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/mounts",
    "/proc/self/mountinfo",
    "/proc/self/status",
    "/proc/7/cmdline",
    "/proc/7/comm",
    "/proc/7/status",
    "/proc/7/stat",
    "/proc/7/task/7/comm",
    "/proc/7/task/8/comm",
    "/proc/sys/kernel/perf_event_paranoid",
    "/proc/sys/kernel/random/boot_id",
    "/sys/module/kvm/parameters/halt_poll_ns",
    "/sys/module/kvm/parameters/halt_poll_ns_grow",
    "/sys/module/kvm/parameters/halt_poll_ns_shrink",
    "/sys/module/kvm/parameters/halt_poll_ns_grow_start",
    "/sys/module/kvm/parameters/lapic_timer_advance_ns",
    "/sys/module/haltpoll/parameters/guest_halt_poll_ns",
    "/sys/module/haltpoll/parameters/guest_halt_poll_grow_start",
    "/sys/devices/system/cpu/cpuidle/current_driver",
    "/sys/devices/system/cpu/cpuidle/current_governor",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/cpu0/cpuidle/state0/name",
    "/sys/devices/system/cpu/cpu0/cpuidle/state0/latency",
    "/sys/kernel/security/lockdown",
    "/etc/modprobe.d/a.conf",
    "/etc/tmpfiles.d/a.conf",
    "/etc/default/grub",
    "/etc/udev/rules.d/a.rules",
    "/etc/sysfs.conf",
    "/etc/rc.local",
    "/etc/tuned/active_profile",
    "/etc/tuned/a/tuned.conf",
    "/etc/libvirt/qemu/vm.xml",
    "/sys/kernel/btf/vmlinux",
];

pub fn run(data: &[u8]) {
    let mut machine = Fake::new()
        .with_link("/proc/7/fd/3", "anon_inode:kvm-vm")
        .with_link("/proc/7/fd/4", "anon_inode:kvm-vcpu:0");
    for (path, bytes) in FILES.into_iter().zip(data.split(|byte| *byte == 0xff)) {
        machine = machine.file(path, &String::from_utf8_lossy(bytes));
    }
    let machine = Files(machine);
    let facts = Facts::read(&machine);
    let report = (Recordable::examine(&machine, &facts), finding::of(&facts), facts);
    assert!(!serde_json::to_string(&report).unwrap().is_empty());
    let _ = Format::parse(&String::from_utf8_lossy(data));
}
