//! A QEMU with a Linux guest that reads its disk for ever, through an I/O thread called `io0`.
//!
//! The guest and the newer QEMUs come from `.ci/qemu`, in the folder DWELL_QEMU. Whatever a test does, the
//! QEMU it started ends with it.

use dwell_policy::iothread::Revision;
use dwell_policy::version::Version;
use dwell_testing::process::Process;
pub(crate) use dwell_testing::qemu::Release;
use dwell_testing::qemu::{KERNEL, folder};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Stdio};
use std::time::{Duration, Instant};

/// How long the guest may take to read its disk, on a busy machine.
const BOOT: Duration = Duration::from_secs(90);
/// The disk: longer than a guest reads in a test.
const DISK_BYTES: u64 = 1 << 30;

/// The rule of this QEMU, by what it says of its version; or why it cannot be started.
pub(crate) fn revision(release: Release) -> Result<Revision, String> {
    let output = release.command()?.arg("--version").output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_once("version ").and_then(|(_, rest)| Version::parse(rest));
    let version = version.ok_or_else(|| format!("QEMU does not tell its version: {text}"))?;
    Revision::of(version).map_err(|error| error.to_string())
}

/// A running QEMU. It ends when this is dropped.
pub(crate) struct Qemu {
    child: Process,
    dir: tempfile::TempDir,
}

/// How a QEMU is started.
#[derive(Default)]
pub(crate) struct Options<'a> {
    /// Of the I/O thread, such as `poll-max-ns=0`.
    pub(crate) iothread: &'a str,
    /// More words of the command line.
    pub(crate) more: &'a [&'a str],
    /// Loaded first.
    pub(crate) preload: Option<&'a Path>,
    /// Whether stderr, and with it the trace, goes to a pipe.
    pub(crate) piped: bool,
}

impl Qemu {
    /// Starts it; the error is the cause why that cannot be.
    pub(crate) fn start(release: Release, options: &Options<'_>) -> Result<Qemu, String> {
        let mut command = release.command()?;
        let (kernel, initramfs) = (folder().join("vmlinuz"), folder().join("initramfs.gz"));
        if !kernel.exists() || !initramfs.exists() {
            return Err("no guest; .ci/qemu makes one".to_owned());
        }
        let dir = tempfile::tempdir().expect("a folder can be made");
        let disk = dir.path().join("disk");
        File::create(&disk).and_then(|file| file.set_len(DISK_BYTES)).expect("a disk can be made");
        let separator = if options.iothread.is_empty() { "" } else { "," };
        command
            .args(["-name", "guest,debug-threads=on", "-machine", "pc,accel=tcg", "-cpu", "max", "-m", "256"])
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-append", KERNEL])
            .args(["-object", &format!("iothread,id=io0{separator}{}", options.iothread)])
            .args(["-device", "virtio-blk-pci,drive=d0,iothread=io0"])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initramfs)
            .arg("-serial")
            .arg(format!("file:{}", dir.path().join("console").display()))
            .arg("-drive")
            .arg(format!(
                "if=none,id=d0,format=raw,cache=none,aio=native,read-only=on,file={}",
                disk.display()
            ))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", dir.path().join("qmp").display()))
            .args(options.more.iter().map(|word| word.replace("{dir}", &dir.path().display().to_string())))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(if options.piped { Stdio::piped() } else { Stdio::null() });
        if let Some(library) = options.preload {
            command.env("LD_PRELOAD", library);
        }
        let child = command.spawn().map_err(|error| format!("QEMU cannot be started: {error}"))?;
        Ok(Qemu { child: Process(child), dir })
    }

    /// Starts it and waits until its guest reads the disk.
    pub(crate) fn booted(release: Release, options: &Options<'_>) -> Result<Qemu, String> {
        let mut qemu = Qemu::start(release, options)?;
        qemu.wait_for_guest();
        Ok(qemu)
    }

    pub(crate) fn wait_for_guest(&mut self) {
        let begun = Instant::now();
        while !self.console().contains("dwell-guest: ready") {
            assert!(begun.elapsed() < BOOT, "the guest does not start: {}", self.console());
            assert_eq!(self.child.try_wait().expect("QEMU is a child"), None, "QEMU ended");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn console(&self) -> String {
        std::fs::read(self.dir.path().join("console"))
            .map_or_else(|_| String::new(), |b| String::from_utf8_lossy(&b).into())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn monitor(&self) -> PathBuf {
        self.dir.path().join("qmp")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().expect("stderr goes to a pipe")
    }

    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What makes QEMU trace its decisions and what they rest on.
pub(crate) const TRACE: [&str; 8] =
    ["-trace", "run_poll_handlers_*", "-trace", "poll_grow", "-trace", "poll_shrink", "-trace", "poll_add"];

/// Compiles the shim; the error is the cause why that cannot be.
pub(crate) fn shim(dir: &Path) -> Result<PathBuf, String> {
    dwell_testing::shim::compiled(dir, include_str!("shim.c"))
}
