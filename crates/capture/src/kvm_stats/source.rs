//! Finding and reading the counters of running VMs.

use super::binary::StatsFile;
use super::{Counters, Snapshot};
use crate::clock::now_ns;
use crate::detached::Detached;
use dwell_machine::{Absent, Machine, Sysroot, Writable, holds_vm, process};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::Serialize;
use std::collections::BTreeMap;

/// A VM: the process that holds it, and which of its descriptors the VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId {
    pub pid: u32,
    /// Its descriptor; 0 for all VMs of a process that is read through its statistics files.
    pub fd: u32,
}

/// `PID-FD`.
impl std::fmt::Display for VmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.pid, self.fd)
    }
}

impl Serialize for VmId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A VM's directory in debugfs. KVM names it `TID-FD`, after the thread that created the VM; that thread may be another
/// than the first of its process, or have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Directory {
    name: String,
    id: VmId,
}

impl Directory {
    fn of(root: &Sysroot, name: String) -> Option<Directory> {
        let (tid, fd) = name.split_once('-')?;
        let (tid, fd) = (tid.parse().ok()?, fd.parse().ok()?);
        Some(Directory { id: VmId { pid: process::of_thread(root, tid).unwrap_or(tid), fd }, name })
    }
}

/// Where counters come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// debugfs: sums, no histograms.
    Debugfs,
    /// Statistics files that the VMM keeps open: with histograms.
    StatisticsFiles,
}

/// Why the counters of VMs cannot be read. Each error has a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// KVM has no directory in debugfs.
    #[error("KVM has no statistics in debugfs; load the kvm module (modprobe kvm_intel or kvm_amd)")]
    NoKvm,
    /// debugfs is closed to this user.
    #[error("cannot read debugfs as this user; run as root")]
    Denied,
    /// The kernel is locked down: debugfs refuses files that could also be written, even to root.
    #[error(
        "this kernel is locked down and hides KVM's counters in debugfs, from root too; use a VMM that keeps its \
         statistics files open (QEMU 8.1 or later), or record instead: dwell record host"
    )]
    LockedDown,
    /// debugfs is not mounted and cannot be.
    #[error(
        "debugfs is not mounted and could not be mounted for this process alone; run as root (and with CONFIG_DEBUG_FS)"
    )]
    NotMounted,
    /// No VM runs.
    #[error("no VM is running here; start one, or run dwell on the host of the VM")]
    NoVm,
    /// The process holds no VM.
    #[error("process {pid} has no VM; `dwell doctor` lists the VMs")]
    NotAVm {
        /// The process asked for.
        pid: u32,
    },
}

/// The counters of running VMs, to be read again and again.
#[derive(Debug)]
pub struct StatsReader {
    root: Sysroot,
    debugfs: Result<Debugfs, SourceError>,
    pid: Option<u32>,
    /// Statistics files by process, where one is open for each of its vCPUs. They are looked for once: VMs that start
    /// later are seen only in debugfs.
    files: BTreeMap<u32, Vec<StatsFile>>,
}

/// debugfs, and what keeps it mounted.
#[derive(Debug)]
struct Debugfs {
    root: Sysroot,
    _mount: Option<Detached>,
}

const DEBUGFS: &str = "/sys/kernel/debug";
/// A counter that every kernel has, to see whether counters can be read.
const ANY_COUNTER: &str = "kvm/halt_attempted_poll";

impl Debugfs {
    /// debugfs where it is mounted, else mounted for this process alone.
    fn open(root: &Sysroot) -> Result<Debugfs, SourceError> {
        match root.names(DEBUGFS).map_err(Absent::from) {
            Ok(names) if !names.is_empty() => {
                Debugfs { root: Sysroot::at(root.path(DEBUGFS)), _mount: None }.readable()
            }
            Err(Absent::Denied) => Err(SourceError::Denied),
            _ => {
                let mount = Detached::new("debugfs").map_err(|_| SourceError::NotMounted)?;
                Debugfs { root: Sysroot::at(mount.path()), _mount: Some(mount) }.readable()
            }
        }
    }

    fn readable(self) -> Result<Debugfs, SourceError> {
        let readable = self.root.read(ANY_COUNTER).map_err(Absent::from);
        match (readable, self.root.names("kvm").map_err(Absent::from)) {
            (Ok(_), _) => Ok(self),
            (Err(Absent::Denied), Ok(_)) => Err(SourceError::LockedDown),
            (_, Err(Absent::Denied)) => Err(SourceError::Denied),
            _ => Err(SourceError::NoKvm),
        }
    }
}

/// Whether KVM's counters can be read from debugfs here.
///
/// # Errors
/// [`SourceError`], which has a remedy.
pub fn debugfs_readable() -> Result<(), SourceError> {
    Debugfs::open(&Sysroot::of_this_machine()).map(|_| ())
}

impl StatsReader {
    /// Looks for the VMs of this machine, or of one process.
    ///
    /// # Errors
    /// [`SourceError`], which has a remedy.
    pub fn new(pid: Option<u32>) -> Result<StatsReader, SourceError> {
        let root = Sysroot::of_this_machine();
        let debugfs = Debugfs::open(&root);
        StatsReader::of(root, debugfs, pid)
    }

    fn of(
        root: Sysroot,
        debugfs: Result<Debugfs, SourceError>,
        pid: Option<u32>,
    ) -> Result<StatsReader, SourceError> {
        let pids = pid.map_or_else(|| root.numbers("/proc"), |pid| vec![pid]);
        let files =
            pids.iter().copied().filter_map(|pid| Some((pid, statistics_files(&root, pid)?))).collect();
        let mut reader = StatsReader { root, debugfs, pid, files };
        if !reader.snapshot().0.vms.is_empty() {
            return Ok(reader);
        }
        let none = reader.pid.map_or(SourceError::NoVm, |pid| SourceError::NotAVm { pid });
        match reader.debugfs {
            // What hinders the reading matters only where there may be something to read.
            Err(why) if pids.into_iter().any(|pid| may_hold_vm(&reader.root, pid)) => Err(why),
            _ => Err(none),
        }
    }

    fn directories(&self) -> Vec<Directory> {
        let names = self.debugfs.as_ref().map(|debugfs| debugfs.root.names("kvm").unwrap_or_default());
        let wanted = |vm: &Directory| self.pid.is_none_or(|pid| pid == vm.id.pid);
        let found = names.unwrap_or_default().into_iter().filter_map(|name| Directory::of(&self.root, name));
        found.filter(wanted).collect()
    }

    /// The counters now, and where those of each VM come from. VMs that have ended are left out.
    pub fn snapshot(&mut self) -> (Snapshot, BTreeMap<VmId, Source>) {
        let at_ns = now_ns();
        let mut found = vec![];
        // A copy of a statistics file would keep a VM in the kernel after its process has ended.
        let root = &self.root;
        self.files.retain(|pid, _| root.exists(&format!("/proc/{pid}")));
        for (pid, files) in &self.files {
            let counters: Result<Vec<Counters>, _> = files.iter().map(StatsFile::counters).collect();
            let sum = counters.ok().and_then(Counters::sum);
            found.extend(sum.map(|sum| (VmId { pid: *pid, fd: 0 }, sum, Source::StatisticsFiles)));
        }
        for Directory { name, id } in self.directories() {
            let Ok(debugfs) = &self.debugfs else { break };
            if !self.files.contains_key(&id.pid) {
                found.push((id, from_debugfs(&debugfs.root, &name), Source::Debugfs));
            }
        }
        found.retain(|(_, counters, _)| counters.halt_attempted_poll.is_some());
        let sources = found.iter().map(|(id, _, source)| (*id, *source)).collect();
        (
            Snapshot { at_ns, vms: found.into_iter().map(|(id, counters, _)| (id, counters)).collect() },
            sources,
        )
    }

    /// The name of a VM's process.
    pub fn comm(&self, id: VmId) -> String {
        self.root.text(&format!("/proc/{}/comm", id.pid)).unwrap_or_default()
    }
}

/// Whether a process holds a VM, or its open files are hidden from this user.
fn may_hold_vm(root: &Sysroot, pid: u32) -> bool {
    holds_vm(root, pid).unwrap_or_else(|error| Absent::from(error) != Absent::Missing)
}

fn from_debugfs(debugfs: &Sysroot, directory: &str) -> Counters {
    // A histogram's file holds its first bucket only.
    Counters::gather(|name| debugfs.text(&format!("kvm/{directory}/{name}"))?.parse().ok(), |_| None)
}

/// Copies of the statistics files that a process keeps open, if there is one for each of its vCPUs.
fn statistics_files(root: &Sysroot, pid: u32) -> Option<Vec<StatsFile>> {
    let directory = format!("/proc/{pid}/fd");
    let mut vcpus = 0;
    let mut open = BTreeMap::new();
    for fd in root.numbers(&directory) {
        // What was open when the directory was listed may be closed now, the listing itself first of all.
        let Ok(link) = root.target(&format!("{directory}/{fd}")) else { continue };
        if link.starts_with("anon_inode:kvm-vcpu:") {
            vcpus += 1;
        } else if let Some(vcpu) = link.strip_prefix("anon_inode:kvm-vcpu-stats:") {
            open.entry(vcpu.to_owned()).or_insert(fd);
        }
    }
    if open.is_empty() || open.len() != vcpus {
        return None;
    }
    let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    let copy = |fd: u32| {
        let fd = pidfd_getfd(&process, i32::try_from(fd).ok()?, PidfdGetfdFlags::empty()).ok()?;
        StatsFile::new(fd).ok()
    };
    open.into_values().map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn machine(vms: &[(&str, u64)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let kvm = dir.path().join("sys/kernel/debug/kvm");
        fs::create_dir_all(&kvm).unwrap();
        fs::write(kvm.join("halt_attempted_poll"), "99\n").unwrap();
        for (name, attempted) in vms {
            fs::create_dir(kvm.join(name)).unwrap();
            fs::write(kvm.join(name).join("halt_attempted_poll"), format!("{attempted}\n")).unwrap();
            fs::write(kvm.join(name).join("halt_wait_hist"), "3\n").unwrap();
        }
        dir
    }

    fn reader(root: &std::path::Path, pid: Option<u32>) -> Result<StatsReader, SourceError> {
        let root = Sysroot::at(root);
        let debugfs = Debugfs { root: Sysroot::at(root.path(DEBUGFS)), _mount: None }.readable();
        StatsReader::of(root, debugfs, pid)
    }

    #[test]
    fn vms_of_debugfs_by_process() {
        let dir = machine(&[("100-9", 5), ("200-12", 7), ("stray", 1)]);
        let mut all = reader(dir.path(), None).unwrap();
        let (snapshot, sources) = all.snapshot();
        let id = VmId { pid: 200, fd: 12 };
        assert_eq!((snapshot.vms.len(), sources[&id]), (2, Source::Debugfs));
        assert_eq!(snapshot.vms[&id].halt_attempted_poll, Some(7));
        assert_eq!(snapshot.vms[&id].halt_wait_hist, None);
        // Thread 100 of process 90 has created the VM.
        fs::create_dir_all(dir.path().join("proc/100")).unwrap();
        fs::write(dir.path().join("proc/100/status"), "Name:\tvmm\nTgid:\t90\nPid:\t100\n").unwrap();
        let mut one = reader(dir.path(), Some(90)).unwrap();
        assert_eq!(one.snapshot().0.vms.keys().collect::<Vec<_>>(), [&VmId { pid: 90, fd: 9 }]);
        assert!(reader(dir.path(), Some(100)).is_err());
    }

    #[test]
    fn each_reason_has_its_remedy() {
        let none = machine(&[]);
        let error = |root: &tempfile::TempDir, pid| reader(root.path(), pid).map(|_| ()).unwrap_err();
        assert_eq!(error(&none, None), SourceError::NoVm);
        assert_eq!(error(&none, Some(4)), SourceError::NotAVm { pid: 4 });
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(error(&nothing, None), SourceError::NoVm);
        let fds = nothing.path().join("proc/5/fd");
        fs::create_dir_all(&fds).unwrap();
        std::os::unix::fs::symlink("anon_inode:kvm-vm", fds.join("3")).unwrap();
        assert_eq!(error(&nothing, None), SourceError::NoKvm);
        assert!(SourceError::NoVm.to_string().contains("start one"));
    }
}
