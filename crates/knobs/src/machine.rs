//! The seam between what dwell decides and what the system does: every file operation of a change, one by one.
//!
//! Paths are those of the machine. [`Sysroot`] puts them below a directory, `/` for this machine; tests put a machine's files
//! elsewhere, and let the n-th operation fail.

use crate::iothread::IothreadError;
use crate::qmp::{Limits, Monitor};
use crate::safe;
use rustix::fs::{FlockOperation, flock, fstatfs};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What changing a machine takes.
pub trait Machine {
    /// The bytes of a regular file of at most a mebibyte.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` for a file of another kind or a longer one.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    /// As [`read`](Machine::read), of a file that only root or this user can have written.
    ///
    /// # Errors
    /// As [`read`](Machine::read); `InvalidInput` if another user owns the file or can write to it.
    fn read_own(&self, path: &str) -> io::Result<Vec<u8>>;
    /// Checks that no user but root and this one can change what is in a directory, nor put another one in its place. Of
    /// a path that is not there, what is there of it is checked.
    ///
    /// # Errors
    /// `InvalidInput` with the directory and the reason.
    fn check_directory(&self, path: &str) -> io::Result<()>;
    /// Writes into a file that is there, with one system call, as parameters of the kernel are written.
    ///
    /// # Errors
    /// As the system says.
    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file that is not there yet and writes it through to the disk.
    ///
    /// # Errors
    /// The system's error; `AlreadyExists` if anything has this name, a symbolic link included.
    fn create(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
    /// Gives a file another name, in place of what has that name.
    ///
    /// # Errors
    /// As the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file or a link.
    ///
    /// # Errors
    /// As the system says.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As the system says.
    fn link(&self, target: &str, path: &str) -> io::Result<()>;
    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// As the system says.
    fn target(&self, path: &str) -> io::Result<String>;
    /// Makes a directory and those above it.
    ///
    /// # Errors
    /// As the system says.
    fn make_directory(&self, path: &str) -> io::Result<()>;
    /// Writes the names in a directory through to the disk.
    ///
    /// # Errors
    /// As the system says.
    fn sync_directory(&self, path: &str) -> io::Result<()>;
    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// As the system says.
    fn names(&self, path: &str) -> io::Result<Vec<String>>;
    /// Whether something is there.
    fn exists(&self, path: &str) -> bool;
    /// Opens a file for writing and closes it again; its mode counts for root, too, as it does in sysfs.
    ///
    /// # Errors
    /// As the system says; `PermissionDenied` if no mode bit allows writing.
    fn try_writing(&self, path: &str) -> io::Result<()>;
    /// Locks a file against other processes, until the answer is dropped; `None` if another one has it.
    ///
    /// # Errors
    /// As the system says.
    fn lock(&self, path: &str) -> io::Result<Option<Lock>>;
    /// Connects to QEMU's monitor.
    ///
    /// # Errors
    /// [`IothreadError`] if nobody is there.
    fn monitor(&self, socket: &str) -> Result<Monitor, IothreadError>;
    /// Runs libvirt's shell with this on its standard input; answers what it prints.
    ///
    /// # Errors
    /// As the system says, or with the shell's own words.
    fn virsh(&self, arguments: &[&str], input: &str) -> io::Result<String>;
}

/// A lock that is held.
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

/// A machine whose files are below a directory.
#[derive(Clone, Debug)]
pub struct Sysroot {
    root: PathBuf,
}

/// `SYSFS_MAGIC` of linux/magic.h.
const SYSFS: i64 = 0x6265_6572;

impl Sysroot {
    /// This machine.
    pub fn of_this_machine() -> Sysroot {
        Sysroot::at("/")
    }

    /// A machine below a directory.
    pub fn at(root: impl Into<PathBuf>) -> Sysroot {
        Sysroot { root: root.into() }
    }

    /// Where a path of the machine is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Machine for Sysroot {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        safe::read(&self.path(path))
    }

    fn read_own(&self, path: &str) -> io::Result<Vec<u8>> {
        safe::read_own(&self.path(path))
    }

    fn check_directory(&self, path: &str) -> io::Result<()> {
        safe::check_directory(&self.path(path))
    }

    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.path(path))?;
        if fstatfs(&file)?.f_type == SYSFS {
            return write_at_once(&mut file, bytes);
        }
        // Copies of parameters are ordinary files, which keep the end of a longer value. Lines without anything overwrite it
        // in the same call, so that these files, too, hold the value before or the one after, whenever this process is
        // killed; then they are cut.
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let mut padded = [bytes, b"\n"].concat();
        padded.resize(length.max(padded.len()), b'\n');
        write_at_once(&mut file, &padded)?;
        file.set_len(bytes.len() as u64 + 1)
    }

    fn create(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        safe::create(&self.path(path), bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.path(path))
    }

    fn link(&self, target: &str, path: &str) -> io::Result<()> {
        std::os::unix::fs::symlink(target, self.path(path))
    }

    fn target(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_link(self.path(path))?.to_string_lossy().into_owned())
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        safe::make_directory(&self.path(path))
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        File::open(self.path(path))?.sync_all()
    }

    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = fs::read_dir(self.path(path))?.map(name).collect::<io::Result<_>>()?;
        names.sort();
        Ok(names)
    }

    fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    fn try_writing(&self, path: &str) -> io::Result<()> {
        let path = self.path(path);
        if fs::metadata(&path)?.permissions().mode() & 0o222 == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        OpenOptions::new().write(true).open(path).map(drop)
    }

    fn lock(&self, path: &str) -> io::Result<Option<Lock>> {
        let file = safe::open_lock(&self.path(path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file.into() })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn monitor(&self, socket: &str) -> Result<Monitor, IothreadError> {
        Ok(Monitor::connect(&self.path(socket), Limits::default())?)
    }

    fn virsh(&self, arguments: &[&str], input: &str) -> io::Result<String> {
        let mut child = Command::new(self.path(VIRSH))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut pipe) = child.stdin.take() {
            // A shell that does not read says on its standard error why.
            let _ = pipe.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
            return Err(io::Error::other(format!("virsh {} says: {said}", arguments.join(" "))));
        }
        String::from_utf8(output.stdout).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

/// The kernel takes a parameter whole or not at all, with one call.
fn write_at_once(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    match file.write(bytes)? {
        written if written == bytes.len() => Ok(()),
        written => {
            let told = format!("only {written} of {} bytes were taken", bytes.len());
            Err(io::Error::new(io::ErrorKind::WriteZero, told))
        }
    }
}

/// libvirt's shell.
const VIRSH: &str = "/usr/bin/virsh";

/// The directory that a path is in.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent })
}

/// How the name of a file ends while it is not complete.
pub(crate) const UNFINISHED: &str = ".dwell-new";

/// The name of a file while it is not complete. Nobody can guess it and put something there first.
fn unfinished(path: &str) -> String {
    let random = RandomState::new().hash_one(path);
    format!("{path}.{random:016x}{UNFINISHED}")
}

/// Removes what writes that were cut short have left beside a file.
pub(crate) fn remove_unfinished(machine: &dyn Machine, path: &str) -> io::Result<()> {
    let directory = parent(path);
    let names = match machine.names(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    let base = format!("{}.", path.rsplit('/').next().unwrap_or(path));
    for name in names.iter().filter(|name| name.starts_with(&base) && name.ends_with(UNFINISHED)) {
        take_away(machine, &format!("{directory}/{name}"))?;
    }
    Ok(())
}

/// Puts a file there whole or not at all, and on the disk. Its directory must be one that no other user can change.
pub(crate) fn put(machine: &dyn Machine, path: &str, bytes: &[u8]) -> io::Result<()> {
    machine.check_directory(parent(path))?;
    let beside = unfinished(path);
    let put = || {
        machine.create(&beside, bytes)?;
        machine.rename(&beside, path)?;
        machine.sync_directory(parent(path))
    };
    put().inspect_err(|_| {
        // What is left of it is removed at the next start; the error that matters is the first.
        let _ = machine.remove(&beside);
    })
}

/// Removes a file, and from the disk; one that is not there is no trouble.
pub(crate) fn take_away(machine: &dyn Machine, path: &str) -> io::Result<()> {
    match machine.remove(path) {
        Ok(()) => machine.sync_directory(parent(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The text of a file without the white space around it; `None` if it cannot be read.
pub(crate) fn text(machine: &dyn Machine, path: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&machine.read(path).ok()?).trim().to_owned())
}

/// `uname -r`; `None` if it cannot be read.
pub fn kernel_release(machine: &dyn Machine) -> Option<String> {
    text(machine, "/proc/sys/kernel/osrelease")
}

/// What differs from boot to boot; `None` if it cannot be read.
pub fn boot_id(machine: &dyn Machine) -> Option<String> {
    text(machine, "/proc/sys/kernel/random/boot_id")
}

impl fmt::Display for Sysroot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.display().fmt(f)
    }
}
