//! One sampled tracepoint on one CPU.

use perf_event_open_sys as sys;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use sys::bindings as abi;

/// What can be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The tracepoint of this number, [`Format::id`](crate::format::Format::id): every hit becomes a sample of time
    /// (CLOCK_MONOTONIC), process, thread and raw data.
    Tracepoint(u16),
    /// Context switches to and from idling, as records of their own: they come from both threads of a switch,
    /// so that they come even where perf gets nothing from the idle task of a CPU (seen on a 6.18 kernel).
    Switches,
}

/// What is asked of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub source: Source,
    /// How full the ring buffer must be before a reader that waits is woken \[bytes\].
    pub watermark_bytes: u32,
    /// Whether the event counts the records that did not fit into the ring buffer (Linux 6.0 and later; an older kernel
    /// refuses it with `EINVAL`).
    pub counts_lost: bool,
}

/// Opens an event on one CPU for all processes, disabled.
///
/// # Errors
/// What `perf_event_open(2)` says.
pub fn open(attributes: &Attributes, cpu: u32) -> io::Result<OwnedFd> {
    let (kind, config) = match attributes.source {
        Source::Tracepoint(id) => (abi::PERF_TYPE_TRACEPOINT, u64::from(id)),
        Source::Switches => (abi::PERF_TYPE_SOFTWARE, u64::from(abi::PERF_COUNT_SW_DUMMY)),
    };
    let mut attr = abi::perf_event_attr {
        type_: kind,
        size: u32::try_from(size_of::<abi::perf_event_attr>()).unwrap_or(u32::MAX),
        config,
        sample_type: SAMPLE_TYPE,
        clockid: libc::CLOCK_MONOTONIC,
        read_format: if attributes.counts_lost { abi::PERF_FORMAT_LOST.into() } else { 0 },
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = 1;
    attr.__bindgen_anon_2.wakeup_watermark = attributes.watermark_bytes;
    attr.set_watermark(1);
    attr.set_use_clockid(1);
    attr.set_disabled(1);
    attr.set_sample_id_all(1);
    attr.set_context_switch(u64::from(attributes.source == Source::Switches));
    let cpu = i32::try_from(cpu).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    // SAFETY: `attr` outlives the call and says its own size; the kernel reads that many bytes (and writes only
    // `size`, on E2BIG). The other arguments are numbers. The result is checked below.
    let fd = unsafe { sys::perf_event_open(&raw mut attr, -1, cpu, -1, abi::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `fd` is an open descriptor which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What every sample has, in this order; `record` takes it apart.
///
/// A tracepoint that counts something other than its hits, as `sched_stat_runtime` counts nanoseconds, makes one sample a
/// hit only if samples have their period: else it makes one a nanosecond (`perf_swevent_event` in the kernel).
pub(super) const SAMPLE_TYPE: u64 = abi::PERF_SAMPLE_TID as u64
    | abi::PERF_SAMPLE_TIME as u64
    | abi::PERF_SAMPLE_PERIOD as u64
    | abi::PERF_SAMPLE_RAW as u64;

/// The records of an event that did not fit into its ring buffer so far; the event must count them.
///
/// The kernel writes `PERF_RECORD_LOST` only when there is room again and another record follows, so what is
/// lost after the last record is in no ring buffer. This count has everything.
pub(super) fn lost(event: BorrowedFd<'_>) -> io::Result<u64> {
    // `u64 value; u64 lost;`, which is what PERF_FORMAT_LOST alone asks for.
    let mut counts = [0; 16];
    match rustix::io::read(event, &mut counts)? {
        16 => Ok(u64::from_ne_bytes([
            counts[8], counts[9], counts[10], counts[11], counts[12], counts[13], counts[14], counts[15],
        ])),
        read => Err(io::Error::other(format!("an event has {read} bytes of counts, 16 were expected"))),
    }
}

pub(super) fn enable(event: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: ENABLE takes a number and touches no memory of ours; the descriptor is open while it is borrowed.
    check(unsafe { sys::ioctls::ENABLE(event.as_raw_fd(), 0) })
}

pub(super) fn disable(event: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: as for ENABLE.
    check(unsafe { sys::ioctls::DISABLE(event.as_raw_fd(), 0) })
}

/// Sends the samples of `event` into the ring buffer of `owner`, which must be of the same CPU and clock.
pub(super) fn redirect(event: BorrowedFd<'_>, owner: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: SET_OUTPUT takes a descriptor by number; both are open while they are borrowed. The kernel keeps the ring
    // buffer alive for as long as an event writes to it.
    check(unsafe { sys::ioctls::SET_OUTPUT(event.as_raw_fd(), owner.as_raw_fd()) })
}

/// Lets the kernel drop what does not fit `filter`, in the language of `events/*/filter`.
pub(super) fn set_filter(event: BorrowedFd<'_>, filter: &str) -> io::Result<()> {
    let filter = CString::new(filter).map_err(io::Error::other)?;
    // SAFETY: `filter` is a string with its NUL that outlives the call; the kernel copies it and, whatever the type
    // of the argument says, writes nothing to it.
    check(unsafe { sys::ioctls::SET_FILTER(event.as_raw_fd(), filter.as_ptr().cast_mut()) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
