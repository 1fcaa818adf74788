//! The seam between what dwell decides and what the system does: every operation on a machine, one by one.

use crate::hypervisor::Hypervisor;
use crate::kvm::KvmDevice;
use crate::value::Value;
use std::any::Any;
use std::io;
use std::path::PathBuf;

/// A machine that can be read. Paths are absolute, as the machine has them.
///
/// The first seven methods are the seam; the others are made of them.
pub trait Machine: Send + Sync {
    /// The bytes of a regular file of at most [`LONGEST_FILE`](crate::LONGEST_FILE) bytes.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` for a file of another kind or a longer one.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// The system's error.
    fn names(&self, path: &str) -> io::Result<Vec<String>>;

    /// The target of a symbolic link, as it is written.
    ///
    /// # Errors
    /// The system's error.
    fn target(&self, path: &str) -> io::Result<String>;

    /// Whether something is there, as far as this user can see.
    fn exists(&self, path: &str) -> bool;

    /// The hypervisor below this machine, from CPUID; `None` on bare metal, or where it cannot be read.
    fn hypervisor(&self) -> Option<Hypervisor>;

    /// The state and capabilities of `/dev/kvm`.
    fn kvm_device(&self) -> KvmDevice;

    /// The least wakeup latency that any process asks for, of all CPUs together (`/dev/cpu_dma_latency`)
    /// \[us\]; `None` if it may not be read.
    fn latency_request_us(&self) -> Option<i32>;

    /// Whether what does not show here is not there: so on a machine that runs, not among files that were copied.
    fn is_whole(&self) -> bool {
        true
    }

    /// Whether [`Machine::hypervisor`] asks CPUID, so that `None` means that there is none.
    fn asks_cpuid(&self) -> bool {
        self.is_whole()
    }

    /// What `uname -m` prints; `None` if it cannot be asked.
    fn uname_machine(&self) -> Option<String> {
        None
    }

    /// Whether a file, of whatever length, has these bytes.
    ///
    /// # Errors
    /// The system's error.
    fn contains(&self, path: &str, bytes: &[u8]) -> io::Result<bool> {
        Ok(self.read(path)?.windows(bytes.len()).any(|window| window == bytes))
    }

    /// The text of a file without the white space around it; bytes that are not UTF-8 are replaced. `None` if
    /// it cannot be read.
    fn text(&self, path: &str) -> Option<String> {
        Some(String::from_utf8_lossy(&self.read(path).ok()?).trim().to_owned())
    }

    /// A file that holds one number, or `Y` or `N` for 1 and 0; `None` if it cannot be read or holds something else.
    fn number(&self, path: &str) -> Option<i64> {
        Value::parse(&self.text(path)?).number()
    }

    /// A file that holds a switch: a number other than 0, or `Y`, is on. `None` if it cannot be read or holds something
    /// else.
    fn switch(&self, path: &str) -> Option<bool> {
        Some(self.number(path)? != 0)
    }

    /// The numbers among the names in a directory, in order: processes, threads, descriptors. Empty if it
    /// cannot be listed.
    fn numbers(&self, path: &str) -> Vec<u32> {
        self.numbered(path, "")
    }

    /// The numbers of the names in a directory that are `prefix` and a number, in order. Empty if it cannot be
    /// listed.
    fn numbered(&self, path: &str, prefix: &str) -> Vec<u32> {
        let names = self.names(path).unwrap_or_default();
        let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
        let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// A machine that can be changed.
pub trait Writable: Machine {
    /// Where a path of this machine is in the file system of this process: for sockets, which are connected to by path.
    fn path(&self, path: &str) -> PathBuf;

    /// As [`Machine::read`], of a file that only root or this user can have written.
    ///
    /// # Errors
    /// As [`Machine::read`]; `InvalidInput` if another user owns the file or can write to it.
    fn read_own(&self, path: &str) -> io::Result<Vec<u8>>;

    /// Checks that no user but root and this one can change what is in a directory, nor put another one in
    /// its place. Of a path that is not there, what is there of it is checked.
    ///
    /// # Errors
    /// `InvalidInput` with the directory and the reason.
    fn check_directory(&self, path: &str) -> io::Result<()>;

    /// Writes into a file that is there, with one system call, as parameters of the kernel are written.
    ///
    /// # Errors
    /// The system's error.
    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file that is not there yet and writes it through to the disk.
    ///
    /// # Errors
    /// The system's error; `AlreadyExists` if anything has this name, a symbolic link included.
    fn create(&self, path: &str, bytes: &[u8]) -> io::Result<()>;

    /// Gives a file another name, in place of what has that name.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file or a link.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The system's error.
    fn link(&self, target: &str, path: &str) -> io::Result<()>;

    /// Makes a directory and those above it.
    ///
    /// # Errors
    /// The system's error.
    fn make_directory(&self, path: &str) -> io::Result<()>;

    /// Writes the names in a directory through to the disk.
    ///
    /// # Errors
    /// The system's error.
    fn sync_directory(&self, path: &str) -> io::Result<()>;

    /// Opens a file for writing and closes it again; its mode counts for root, too, as it does in sysfs.
    ///
    /// # Errors
    /// The system's error; `PermissionDenied` without a number of the system if no mode bit allows writing.
    fn try_writing(&self, path: &str) -> io::Result<()>;

    /// Locks a file against other processes until the returned lock is dropped; `None` if another one has it.
    ///
    /// # Errors
    /// The system's error.
    fn lock(&self, path: &str) -> io::Result<Option<Lock>>;

    /// Runs a program of this machine with `input` on its standard input, and returns what it prints.
    ///
    /// # Errors
    /// The system's error, or what the program printed on its standard error.
    fn run(&self, program: &str, arguments: &[&str], input: &str) -> io::Result<String>;
}

/// A lock, which is released when this is dropped.
pub type Lock = Box<dyn Any + Send>;
