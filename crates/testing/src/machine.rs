//! A fake machine for tests: files in memory, and operations that fail on request.
//!
//! [`Fake`] is a machine of which every file is written down. [`Faulty`] is any machine on which chosen
//! operations fail, so that each error path has a test without a disk that is full.

use dwell_machine::{Hypervisor, KvmDevice, Lock, Machine, Writable};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A machine in memory. Directories are there as long as something is in them, or once they were made.
#[derive(Debug)]
pub struct Fake {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    nodes: BTreeMap<String, Node>,
    forbidden: Vec<String>,
    locked: BTreeSet<String>,
    hypervisor: Option<Hypervisor>,
    device: KvmDevice,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    File { bytes: Vec<u8>, writable: bool },
    Link(String),
    Directory,
}

/// The files of [`Fake::quiet`] that do not depend on the release.
const QUIET: [(&str, &str); 26] = [
    ("/proc/sys/kernel/arch", "x86_64"),
    ("/proc/cmdline", "quiet"),
    ("/proc/sys/kernel/timer_migration", "1"),
    ("/proc/sys/kernel/perf_event_paranoid", "2"),
    ("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"),
    ("/proc/self/mounts", "none /sys/kernel/tracing tracefs rw 0 0\nnone /sys/kernel/debug debugfs rw 0 0\n"),
    ("/sys/kernel/debug/kvm/halt_exits", "0"),
    ("/sys/devices/system/cpu/nohz_full", ""),
    ("/sys/devices/system/cpu/isolated", ""),
    ("/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", "0"),
    ("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll"),
    ("/sys/devices/system/cpu/cpuidle/current_governor", "haltpoll"),
    ("/sys/devices/system/cpu/cpuidle/available_governors", "menu haltpoll"),
    ("/sys/module/kvm/parameters/halt_poll_ns", "200000"),
    ("/sys/module/kvm/parameters/halt_poll_ns_grow", "2"),
    ("/sys/module/kvm/parameters/halt_poll_ns_grow_start", "10000"),
    ("/sys/module/kvm/parameters/halt_poll_ns_shrink", "2"),
    ("/sys/module/kvm/parameters/pi_inject_timer", "0"),
    ("/sys/module/kvm_intel/parameters/enable_apicv", "Y"),
    ("/sys/module/kvm_intel/parameters/preemption_timer", "Y"),
    ("/sys/module/cpuidle_haltpoll/parameters/force", "N"),
    ("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000"),
    ("/sys/module/haltpoll/parameters/guest_halt_poll_shrink", "2"),
    ("/sys/module/haltpoll/parameters/guest_halt_poll_grow", "2"),
    ("/sys/module/haltpoll/parameters/guest_halt_poll_grow_start", "50000"),
    ("/sys/module/haltpoll/parameters/guest_halt_poll_allow_shrink", "Y"),
];

/// `errno` of `linux/errno.h`.
mod errno {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EINVAL: i32 = 22;
}

fn system_error<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

impl Default for Fake {
    fn default() -> Fake {
        Fake::new()
    }
}

impl Fake {
    /// A machine without files, hypervisor and `/dev/kvm`.
    pub fn new() -> Fake {
        let state = State {
            nodes: BTreeMap::new(),
            forbidden: vec![],
            locked: BTreeSet::new(),
            hypervisor: None,
            device: KvmDevice::NotAsked,
        };
        Fake { state: Arc::new(Mutex::new(state)) }
    }

    /// A host with KVM, one QEMU and default parameters, which is itself a guest whose haltpoll governor
    /// decides: nothing on it is worth a remark. Its rights are those of root, and tracefs and debugfs are
    /// mounted.
    pub fn quiet(release: &str) -> Fake {
        let fake = Fake::new().on(Some(Hypervisor::kvm(1 << 12, 1))).with_kvm(KvmDevice::Open {
            halt_poll: true,
            disable_exits: 15,
            binary_stats: true,
        });
        for (path, text) in QUIET {
            fake.set(path, text);
        }
        fake.set("/proc/sys/kernel/osrelease", release);
        fake.vm(
            100,
            &["/usr/bin/qemu-system-x86_64", "-name", "web", "-object", "iothread,id=io0,poll-max-ns=32768"],
        );
        fake
    }

    /// Starts a QEMU with one VM, one vCPU and one I/O thread `io0`, in place of the process that has the number.
    pub fn vm(&self, pid: u32, arguments: &[&str]) {
        self.remove_all(&format!("/proc/{pid}"));
        let line: String = arguments.iter().map(|word| format!("{word}\0")).collect();
        self.set(&format!("/proc/{pid}/comm"), "qemu-system-x86\n");
        self.set(&format!("/proc/{pid}/cmdline"), &line);
        for (tid, comm) in [(pid, "qemu-system-x86"), (pid + 1, "CPU 0/KVM"), (pid + 2, "IO io0")] {
            self.set(&format!("/proc/{pid}/task/{tid}/comm"), comm);
        }
        for (fd, target) in ["/dev/kvm", "anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0"].iter().enumerate() {
            let link = Node::Link((*target).to_owned());
            self.state().nodes.insert(format!("/proc/{pid}/fd/{fd}"), link);
        }
    }

    pub fn set_hypervisor(&self, hypervisor: Option<Hypervisor>) {
        self.state().hypervisor = hypervisor;
    }

    /// Exchanges `/dev/kvm`.
    pub fn set_kvm(&self, device: KvmDevice) {
        self.state().device = device;
    }

    #[must_use]
    pub fn file(self, path: &str, text: &str) -> Fake {
        self.set(path, text);
        self
    }

    /// With a symbolic link.
    #[must_use]
    pub fn with_link(self, path: &str, target: &str) -> Fake {
        self.state().nodes.insert(path.to_owned(), Node::Link(target.to_owned()));
        self
    }

    /// Everything at and below `path` exists and may not be read.
    #[must_use]
    pub fn forbid(self, path: &str) -> Fake {
        self.state().forbidden.push(path.to_owned());
        self
    }

    #[must_use]
    pub fn on(self, hypervisor: Option<Hypervisor>) -> Fake {
        self.state().hypervisor = hypervisor;
        self
    }

    /// With this `/dev/kvm`.
    #[must_use]
    pub fn with_kvm(self, device: KvmDevice) -> Fake {
        self.state().device = device;
        self
    }

    /// Puts a file there, whatever was there before.
    pub fn set(&self, path: &str, text: &str) {
        let file = Node::File { bytes: text.as_bytes().to_vec(), writable: true };
        self.state().nodes.insert(path.to_owned(), file);
    }

    /// Makes a file read-only for everyone, as a parameter of mode 0444.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn read_only(&self, path: &str, is_read_only: bool) {
        match self.state().nodes.get_mut(path) {
            Some(Node::File { writable, .. }) => *writable = !is_read_only,
            other => panic!("{path} is no file of the fake machine: {other:?}"),
        }
    }

    /// Removes a file, or a directory with all that is in it.
    pub fn remove_all(&self, path: &str) {
        self.state().nodes.retain(|other, _| !is_at_or_below(other, path));
    }

    /// Every file and link that is not below one of `ignored`, with its text.
    pub fn snapshot(&self, ignored: &[&str]) -> BTreeMap<String, String> {
        let text = |node: &Node| match node {
            Node::File { bytes, .. } => Some(String::from_utf8_lossy(bytes).into_owned()),
            Node::Link(target) => Some(format!("-> {target}")),
            Node::Directory => None,
        };
        let state = self.state();
        let nodes =
            state.nodes.iter().filter(|(path, _)| !ignored.iter().any(|top| is_at_or_below(path, top)));
        nodes.filter_map(|(path, node)| Some((path.clone(), text(node)?))).collect()
    }

    /// Writes the files below a directory, where a [`Sysroot`](dwell_machine::Sysroot) finds them.
    ///
    /// # Errors
    /// The system's error.
    pub fn write_below(&self, directory: &Path) -> io::Result<()> {
        for (path, node) in &self.state().nodes {
            let path = directory.join(path.trim_start_matches('/'));
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            match node {
                Node::File { bytes, .. } => std::fs::write(path, bytes)?,
                Node::Link(target) => std::os::unix::fs::symlink(target, path)?,
                Node::Directory => std::fs::create_dir_all(path)?,
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_at_or_below(path: &str, top: &str) -> bool {
    Path::new(path).starts_with(top)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent })
}

impl State {
    fn permitted(&self, path: &str) -> io::Result<()> {
        match self.forbidden.iter().any(|top| is_at_or_below(path, top)) {
            true => system_error(errno::EACCES),
            false => Ok(()),
        }
    }

    fn exists(&self, path: &str) -> bool {
        path == "/" || self.nodes.keys().any(|other| is_at_or_below(other, path))
    }

    fn is_directory(&self, path: &str) -> bool {
        path == "/"
            || self.nodes.get(path) == Some(&Node::Directory)
            || self.nodes.keys().any(|other| other != path && is_at_or_below(other, path))
    }

    fn needs_parent(&self, path: &str) -> io::Result<()> {
        if self.is_directory(parent(path)) { Ok(()) } else { system_error(errno::ENOENT) }
    }

    /// A file that can be opened for writing.
    fn writable(&mut self, path: &str) -> io::Result<&mut Vec<u8>> {
        self.permitted(path)?;
        match self.nodes.get_mut(path) {
            // As the mode of a file in sysfs, which has no number of the system.
            Some(Node::File { writable: false, .. }) => Err(io::ErrorKind::PermissionDenied.into()),
            Some(Node::File { bytes, .. }) => Ok(bytes),
            Some(_) => system_error(errno::EINVAL),
            None => system_error(errno::ENOENT),
        }
    }
}

impl Machine for Fake {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        state.permitted(path)?;
        match state.nodes.get(path) {
            Some(Node::File { bytes, .. }) => Ok(bytes.clone()),
            Some(_) => system_error(errno::EINVAL),
            None => system_error(errno::ENOENT),
        }
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        state.permitted(path)?;
        if !state.is_directory(path) {
            return system_error(errno::ENOENT);
        }
        let below = |other: &String| {
            let name = Path::new(other).strip_prefix(path).ok()?.components().next()?;
            Some(name.as_os_str().to_string_lossy().into_owned())
        };
        let names: BTreeSet<String> = state.nodes.keys().filter_map(below).collect();
        Ok(names.into_iter().collect())
    }

    fn target(&self, path: &str) -> io::Result<String> {
        let state = self.state();
        state.permitted(path)?;
        match state.nodes.get(path) {
            Some(Node::Link(target)) => Ok(target.clone()),
            Some(_) => system_error(errno::EINVAL),
            None => system_error(errno::ENOENT),
        }
    }

    fn exists(&self, path: &str) -> bool {
        self.state().exists(path)
    }

    fn hypervisor(&self) -> Option<Hypervisor> {
        self.state().hypervisor.clone()
    }

    fn kvm_device(&self) -> KvmDevice {
        self.state().device.clone()
    }

    fn latency_request_us(&self) -> Option<i32> {
        let bytes = self.read("/dev/cpu_dma_latency").ok()?;
        Some(i32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
    }
}

impl Writable for Fake {
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(path)
    }

    fn read_own(&self, path: &str) -> io::Result<Vec<u8>> {
        self.read(path)
    }

    fn check_directory(&self, path: &str) -> io::Result<()> {
        self.state().permitted(path)
    }

    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        *state.writable(path)? = [bytes.trim_ascii_end(), b"\n"].concat();
        Ok(())
    }

    fn create(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.needs_parent(path)?;
        if state.exists(path) {
            return system_error(errno::EEXIST);
        }
        state.nodes.insert(path.to_owned(), Node::File { bytes: bytes.to_vec(), writable: true });
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.needs_parent(to)?;
        let Some(node) = state.nodes.remove(from) else { return system_error(errno::ENOENT) };
        state.nodes.insert(to.to_owned(), node);
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        match self.state().nodes.remove(path) {
            Some(_) => Ok(()),
            None => system_error(errno::ENOENT),
        }
    }

    fn link(&self, target: &str, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.needs_parent(path)?;
        if state.exists(path) {
            return system_error(errno::EEXIST);
        }
        state.nodes.insert(path.to_owned(), Node::Link(target.to_owned()));
        Ok(())
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        if !state.is_directory(path) {
            state.nodes.insert(path.to_owned(), Node::Directory);
        }
        Ok(())
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        if self.state().is_directory(path) { Ok(()) } else { system_error(errno::ENOENT) }
    }

    fn try_writing(&self, path: &str) -> io::Result<()> {
        self.state().writable(path).map(drop)
    }

    fn lock(&self, path: &str) -> io::Result<Option<Lock>> {
        let mut state = self.state();
        state.needs_parent(path)?;
        if !state.locked.insert(path.to_owned()) {
            return Ok(None);
        }
        let held = Held { state: Arc::clone(&self.state), path: path.to_owned() };
        let empty = Node::File { bytes: vec![], writable: true };
        state.nodes.entry(path.to_owned()).or_insert(empty);
        Ok(Some(Box::new(held)))
    }

    fn run(&self, _: &str, _: &[&str], _: &str) -> io::Result<String> {
        system_error(errno::ENOENT)
    }
}

/// A lock on a file of a fake machine.
struct Held {
    state: Arc<Mutex<State>>,
    path: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).locked.remove(&self.path);
    }
}

/// What goes wrong on a [`Faulty`] machine.
#[derive(Clone, Debug)]
pub enum Fault {
    None,
    /// The operation of this number, from 0.
    Once {
        number: u32,
        /// The system's number of the error.
        errno: i32,
    },
    /// The operation of this number, from 0, and every later one that changes something: a full disk can still be read,
    /// its files can be removed, and parameters of the kernel can be written.
    From {
        /// Which is the first.
        number: u32,
        /// The system's number of the error.
        errno: i32,
    },
    /// A parameter takes any value and keeps another one, except for the value `unless`.
    Clamp {
        path: String,
        /// The value it keeps.
        to: String,
        /// The value that it takes as it is.
        unless: String,
    },
}

/// A machine on which operations fail. Whether something exists can always be asked.
pub struct Faulty<'a> {
    machine: &'a dyn Writable,
    fault: Fault,
    operations: AtomicU32,
}

/// A disk without free space, and one that was mounted for reading only.
const DISK: [i32; 2] = [28, 30];
const FULL: i32 = 28;

impl<'a> Faulty<'a> {
    /// `machine`, with this fault.
    pub fn new(machine: &'a dyn Writable, fault: Fault) -> Faulty<'a> {
        Faulty { machine, fault, operations: AtomicU32::new(0) }
    }

    /// How many operations there were so far.
    pub fn operations(&self) -> u32 {
        self.operations.load(Ordering::Relaxed)
    }

    fn operation(&self, changes: bool) -> io::Result<()> {
        let this = self.operations.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Fault::Once { number, errno } if this == number => system_error(errno),
            Fault::From { number, errno } if this >= number && changes => system_error(errno),
            _ => Ok(()),
        }
    }

    fn persists(&self, among: &[i32]) -> bool {
        matches!(self.fault, Fault::From { errno, .. } if among.contains(&errno))
    }
}

impl Machine for Faulty<'_> {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.operation(false)?;
        self.machine.read(path)
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        self.operation(false)?;
        self.machine.names(path)
    }

    fn target(&self, path: &str) -> io::Result<String> {
        self.operation(false)?;
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

    fn is_whole(&self) -> bool {
        self.machine.is_whole()
    }

    fn latency_request_us(&self) -> Option<i32> {
        self.machine.latency_request_us()
    }
}

impl Writable for Faulty<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.machine.path(path)
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
        // A disk that is full does not hinder parameters of the kernel.
        self.operation(!self.persists(&DISK))?;
        match &self.fault {
            Fault::Clamp { path: clamped, to, unless } if clamped == path && bytes != unless.as_bytes() => {
                self.machine.write(path, to.as_bytes())
            }
            _ => self.machine.write(path, bytes),
        }
    }

    fn create(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.operation(true).inspect_err(|_| {
            // What a disk that has run full leaves: the beginning.
            let _ = self.machine.create(path, bytes.get(..bytes.len() / 2).unwrap_or_default());
        })?;
        self.machine.create(path, bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.operation(!self.persists(&[FULL]))?;
        self.machine.remove(path)
    }

    fn link(&self, target: &str, path: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.link(target, path)
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.make_directory(path)
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.operation(true)?;
        self.machine.sync_directory(path)
    }

    fn try_writing(&self, path: &str) -> io::Result<()> {
        self.operation(false)?;
        self.machine.try_writing(path)
    }

    fn lock(&self, path: &str) -> io::Result<Option<Lock>> {
        self.operation(true)?;
        self.machine.lock(path)
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
        self.operation(true)?;
        self.machine.run(program, arguments, input)
    }
}
