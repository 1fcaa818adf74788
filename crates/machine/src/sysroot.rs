//! The real machine: its files below a directory, `/` for the one that this process runs on.

use crate::hypervisor::{self, Hypervisor};
use crate::kvm::{self, KvmDevice};
use crate::safe;
use crate::seam::{Lock, Machine, Writable};
use rustix::fs::{FlockOperation, OFlags, flock, fstatfs};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A machine whose files are below a directory.
///
/// With the directory `/` it is the machine that this process runs on, and instructions and devices are
/// asked, too. With any other it is a copy of a machine's files: [`Machine::hypervisor`] is `None`,
/// [`Machine::kvm_device`] is [`KvmDevice::NotAsked`].
#[derive(Clone, Debug)]
pub struct Sysroot {
    root: PathBuf,
}

/// `SYSFS_MAGIC` of linux/magic.h.
const SYSFS: i64 = 0x6265_6572;

impl Sysroot {
    /// The machine that this process runs on.
    pub fn of_this_machine() -> Sysroot {
        Sysroot::at("/")
    }

    /// A machine below a directory.
    pub fn at(root: impl Into<PathBuf>) -> Sysroot {
        Sysroot { root: root.into() }
    }

    /// Whether it is the machine that this process runs on.
    pub fn is_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    fn below(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Machine for Sysroot {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        safe::read(&self.below(path))
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = fs::read_dir(self.below(path))?.map(name).collect::<io::Result<_>>()?;
        names.sort();
        Ok(names)
    }

    fn target(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(self.below(path))?.to_string_lossy().into_owned())
    }

    fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.below(path)).is_ok()
    }

    fn hypervisor(&self) -> Option<Hypervisor> {
        if self.is_this_machine() { hypervisor::below_this_cpu() } else { None }
    }

    fn kvm_device(&self) -> KvmDevice {
        if self.is_this_machine() { kvm::ask() } else { KvmDevice::NotAsked }
    }

    fn is_whole(&self) -> bool {
        self.is_this_machine()
    }

    fn asks_cpuid(&self) -> bool {
        // Built for another architecture this program may still run here, emulated.
        self.is_this_machine() && cfg!(target_arch = "x86_64")
    }

    fn uname_machine(&self) -> Option<String> {
        let name = rustix::system::uname().machine().to_string_lossy().into_owned();
        self.is_this_machine().then_some(name)
    }

    fn contains(&self, path: &str, bytes: &[u8]) -> io::Result<bool> {
        safe::contains(&self.below(path), bytes)
    }

    fn latency_request_us(&self) -> Option<i32> {
        // The device returns 32 bits. Opening it to read asks for nothing.
        let mut bytes = [0; 4];
        // Below another root it may be a FIFO, which is not waited for.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.below("/dev/cpu_dma_latency"));
        file.ok()?.read_exact(&mut bytes).ok()?;
        Some(i32::from_ne_bytes(bytes))
    }
}

impl Writable for Sysroot {
    fn path(&self, path: &str) -> PathBuf {
        self.below(path)
    }

    fn read_own(&self, path: &str) -> io::Result<Vec<u8>> {
        safe::read_own(&self.below(path))
    }

    fn check_directory(&self, path: &str) -> io::Result<()> {
        safe::check_directory(&self.below(path))
    }

    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.below(path))?;
        if fstatfs(&file)?.f_type == SYSFS {
            return write_at_once(&mut file, bytes);
        }
        // Copies of parameters are ordinary files, which keep the end of a longer value. Empty lines
        // overwrite it in the same call, so that these files, too, hold the value before or the one after,
        // whenever this process is killed; then they are cut.
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let mut padded = [bytes, b"\n"].concat();
        padded.resize(length.max(padded.len()), b'\n');
        write_at_once(&mut file, &padded)?;
        file.set_len(bytes.len() as u64 + 1)
    }

    fn create(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        safe::create(&self.below(path), bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.below(from), self.below(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.below(path))
    }

    fn link(&self, target: &str, path: &str) -> io::Result<()> {
        std::os::unix::fs::symlink(target, self.below(path))
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        safe::make_directory(&self.below(path))
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        File::open(self.below(path))?.sync_all()
    }

    fn try_writing(&self, path: &str) -> io::Result<()> {
        let path = self.below(path);
        if fs::metadata(&path)?.permissions().mode() & 0o222 == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        OpenOptions::new().write(true).open(path).map(drop)
    }

    fn lock(&self, path: &str) -> io::Result<Option<Lock>> {
        let file = safe::open_lock(&self.below(path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Box::new(OwnedFd::from(file)))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String> {
        let mut child = Command::new(self.below(program))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            // A program that does not read its input reports why on its standard error.
            let _ = pipe.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let printed = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
            let name = program.rsplit('/').next().unwrap_or(program);
            return Err(io::Error::other(format!("{name} {} failed: {printed}", arguments.join(" "))));
        }
        String::from_utf8(output.stdout).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// The kernel takes a parameter whole or not at all, with one call.
fn write_at_once(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    match file.write(bytes)? {
        written if written == bytes.len() => Ok(()),
        written => {
            let short = format!("only {written} of {} bytes were taken", bytes.len());
            Err(io::Error::new(io::ErrorKind::WriteZero, short))
        }
    }
}

impl fmt::Display for Sysroot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Absent;

    #[test]
    fn missing_files_are_reported_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Sysroot::at(dir.path());
        assert_eq!(machine.read("/proc/cmdline").map_err(Absent::from), Err(Absent::Missing));
        assert_eq!(machine.names("/proc").map_err(Absent::from), Err(Absent::Missing));
        assert!(!machine.exists("/proc"));
        assert_eq!(machine.kvm_device(), KvmDevice::NotAsked);
        assert!(!machine.is_this_machine() && Sysroot::of_this_machine().is_this_machine());
    }

    #[test]
    fn a_fifo_in_place_of_a_device_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Sysroot::at(dir.path());
        fs::create_dir(dir.path().join("dev")).unwrap();
        let fifo = dir.path().join("dev/cpu_dma_latency");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(machine.latency_request_us(), None);
    }

    #[test]
    fn a_shorter_value_leaves_nothing_of_a_longer_one() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Sysroot::at(dir.path());
        machine.create("/p", b"200000\n").unwrap();
        machine.write("/p", b"7").unwrap();
        assert_eq!(machine.read("/p").unwrap(), b"7\n");
    }
}
