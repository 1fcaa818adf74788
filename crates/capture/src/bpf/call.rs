//! bpf(2): maps, programs, and where programs are attached.

use super::assembler::Instruction;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// To what a program is to be attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attach {
    /// The tracepoint of this name, without its category: the program gets its arguments.
    RawTracepoint(String),
    /// The tracepoint of this type in BTF: the program gets its arguments, and may read what they point to.
    TypedTracepoint(u32),
    /// The function of this number in BTF, before it runs: the program gets its arguments, and may read what
    /// they point to.
    Function(u32),
}

/// What opens a descriptor.
#[derive(Debug)]
pub enum Command<'a> {
    /// A ring buffer of so many bytes, a power of two.
    Ring {
        /// The size of its data \[bytes\].
        bytes: u32,
    },
    /// A map of `count` ring buffers by index, each as large as `one`.
    Rings { count: u32, one: BorrowedFd<'a> },
    /// Numbers of 64 bits, by index, that can be mapped.
    Numbers { count: u32 },
    /// A program, checked by the kernel.
    Program {
        /// To what it is to be attached.
        attach: &'a Attach,
        instructions: &'a [Instruction],
    },
    /// The program runs whenever what it is for happens, until the descriptor is closed.
    Link { attach: &'a Attach, program: BorrowedFd<'a> },
}

const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const PROGRAM_LOAD: i32 = 5;
const INFO_BY_DESCRIPTOR: i32 = 15;
const RAW_TRACEPOINT_OPEN: i32 = 17;

const MAP_ARRAY: u32 = 2;
const MAP_OF_MAPS: u32 = 12;
const MAP_RING: u32 = 27;
const MAPPABLE: u32 = 1 << 10;

const PROGRAM_RAW_TRACEPOINT: u32 = 17;
const PROGRAM_TRACING: u32 = 26;
const ATTACH_RAW_TRACEPOINT: u32 = 23;
const ATTACH_FUNCTION_ENTRY: u32 = 24;

/// `union bpf_attr`, of which no command here uses more than the first 112 bytes. A kernel that knows less
/// takes it as long as the rest is zero.
type Attributes = [u64; 16];

/// Two fields of 32 bits, one after the other in memory.
const fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        first as u64 | (second as u64) << 32
    } else {
        second as u64 | (first as u64) << 32
    }
}

/// Of an open descriptor.
fn number(descriptor: &impl AsRawFd) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// Does what `command` says.
///
/// # Errors
/// What bpf(2) says; of a program that the kernel refuses, with the end of its explanation.
pub fn open(command: &Command<'_>) -> io::Result<OwnedFd> {
    match command {
        Command::Ring { bytes } => create_map([pair(MAP_RING, 0), pair(0, *bytes), 0]),
        Command::Rings { count, one } => {
            create_map([pair(MAP_OF_MAPS, 4), pair(4, *count), pair(0, number(one))])
        }
        Command::Numbers { count } => create_map([pair(MAP_ARRAY, 4), pair(8, *count), pair(MAPPABLE, 0)]),
        Command::Program { attach, instructions } => {
            load(attach, instructions, None).or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL | libc::EACCES) => explain(attach, instructions, error),
                _ => Err(error),
            })
        }
        Command::Link { attach, program } => {
            let name = match attach {
                Attach::RawTracepoint(name) => Some(CString::new(name.as_str()).map_err(io::Error::other)?),
                _ => None,
            };
            let mut attributes: Attributes = [0; 16];
            attributes[0] = name.as_ref().map_or(0, |name| name.as_ptr().addr() as u64);
            attributes[1] = pair(number(program), 0);
            // SAFETY: the kernel reads the name, if there is one, which ends with its NUL and outlives the call. It
            // writes to no memory of ours.
            unsafe { descriptor(RAW_TRACEPOINT_OPEN, &mut attributes) }
        }
    }
}

/// `map_type`, `key_size`, `value_size`, `max_entries`, `map_flags`, `inner_map_fd`.
fn create_map(words: [u64; 3]) -> io::Result<OwnedFd> {
    let mut attributes: Attributes = [0; 16];
    attributes[..3].copy_from_slice(&words);
    // SAFETY: MAP_CREATE has no pointers.
    unsafe { descriptor(MAP_CREATE, &mut attributes) }
}

/// The licence decides which of the kernel's functions a program may call: those that tell time want one that
/// is compatible with the GPL.
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";

fn load(attach: &Attach, instructions: &[Instruction], log: Option<&mut [u8]>) -> io::Result<OwnedFd> {
    let (kind, expected, of_type) = match attach {
        Attach::RawTracepoint(_) => (PROGRAM_RAW_TRACEPOINT, 0, 0),
        Attach::TypedTracepoint(number) => (PROGRAM_TRACING, ATTACH_RAW_TRACEPOINT, *number),
        Attach::Function(number) => (PROGRAM_TRACING, ATTACH_FUNCTION_ENTRY, *number),
    };
    let mut attributes: Attributes = [0; 16];
    attributes[0] = pair(kind, u32::try_from(instructions.len()).map_err(io::Error::other)?);
    attributes[1] = instructions.as_ptr().addr() as u64;
    attributes[2] = LICENCE.as_ptr().addr() as u64;
    if let Some(log) = log {
        attributes[3] = pair(1, u32::try_from(log.len()).map_err(io::Error::other)?);
        attributes[4] = log.as_mut_ptr().expose_provenance() as u64;
    }
    // `prog_name`, which tools show.
    attributes[6] = u64::from_ne_bytes(*b"dwell\0\0\0");
    // `prog_ifindex` and `expected_attach_type`; `line_info_cnt` and `attach_btf_id`.
    attributes[8] = pair(0, expected);
    attributes[13] = pair(0, of_type);
    // SAFETY: the kernel reads `instructions.len()` instructions of eight bytes and the licence with its NUL,
    // and writes at most the length of the log into it, which is borrowed exclusively; all outlive the call.
    unsafe { descriptor(PROGRAM_LOAD, &mut attributes) }
}

/// Loads again, with room for the kernel's explanation.
fn explain(attach: &Attach, instructions: &[Instruction], error: io::Error) -> io::Result<OwnedFd> {
    let mut log = vec![0; 1 << 18];
    let loaded = load(attach, instructions, Some(&mut log));
    loaded.map_err(|_| {
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.trim_end_matches('\0').lines().collect();
        let last = lines.iter().rev().find(|line| !line.starts_with("processed ")).unwrap_or(&"");
        io::Error::new(error.kind(), format!("{error}: {last}"))
    })
}

/// Puts a ring buffer at an index of a [`Command::Rings`].
pub(super) fn put(rings: BorrowedFd<'_>, index: u32, ring: BorrowedFd<'_>) -> io::Result<()> {
    let value = number(&ring);
    let mut attributes: Attributes = [0; 16];
    attributes[0] = pair(number(&rings), 0);
    attributes[1] = (&raw const index).addr() as u64;
    attributes[2] = (&raw const value).addr() as u64;
    // SAFETY: the kernel reads the index and the descriptor, of four bytes each as the map was made for, which outlive the
    // call. It writes to no memory of ours.
    unsafe { call(MAP_UPDATE, &mut attributes) }.map(drop)
}

/// How often a program did not run because it was running on that CPU already (`recursion_misses`, Linux 5.12
/// and later).
pub(super) fn missed(program: BorrowedFd<'_>) -> io::Result<u64> {
    info(program, 208)
}

/// How often a program ran while [`count_runs`] was in force (`run_cnt`).
#[cfg(test)]
pub(super) fn runs(program: BorrowedFd<'_>) -> io::Result<u64> {
    info(program, 200)
}

/// While the descriptor is open, the kernel counts runs of programs.
#[cfg(test)]
pub(super) fn count_runs() -> io::Result<OwnedFd> {
    const ENABLE_STATISTICS: i32 = 32;
    // SAFETY: the command has no pointers; type 0 is `BPF_STATS_RUN_TIME`.
    unsafe { descriptor(ENABLE_STATISTICS, &mut [0; 16]) }
}

/// The eight bytes at `offset` of what the kernel says of a program (`struct bpf_prog_info`); 0 of an older
/// kernel that has less to say.
fn info(program: BorrowedFd<'_>, offset: usize) -> io::Result<u64> {
    let mut info = [0u8; 232];
    let mut attributes: Attributes = [0; 16];
    attributes[0] = pair(number(&program), 232);
    attributes[1] = info.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the kernel writes at most 232 bytes into `info`, which has them and outlives the call. Its other pointers
    // (into the info, for arrays) are null and their lengths zero.
    unsafe { call(INFO_BY_DESCRIPTOR, &mut attributes) }?;
    let bytes = info.get(offset..).and_then(|rest| rest.first_chunk());
    Ok(bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes)))
}

/// # Safety
/// As for [`call`]; the command must be one that opens a descriptor.
unsafe fn descriptor(command: i32, attributes: &mut Attributes) -> io::Result<OwnedFd> {
    // SAFETY: by the condition above.
    let fd = unsafe { call(command, attributes) }?;
    // SAFETY: the call succeeded, so `fd` is an open descriptor which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// The pointers in `attributes` must lead to what the command takes there.
unsafe fn call(command: i32, attributes: &mut Attributes) -> io::Result<i32> {
    // SAFETY: `attributes` outlives the call and has as many bytes as the kernel is given; it reads them, and
    // writes only into them. What the pointers in them lead to is the caller's matter.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of::<Attributes>()) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
