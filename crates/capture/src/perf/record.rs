//! What is in a ring buffer, cut into records.

use crate::native::{half, long, word};
use perf_event_open_sys::bindings as abi;

/// One record, its data borrowed from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A tracepoint was hit.
    Sample {
        /// When \[ns, CLOCK_MONOTONIC\].
        time_ns: u64,
        /// Process, in the reader's PID namespace; 0 is an idle task, -1 one that has no number there.
        pid: i32,
        tid: i32,
        /// The fields of the tracepoint, laid out as its [`Format`](crate::format::Format) says.
        raw: &'a [u8],
    },
    /// A CPU went idle, or stopped idling.
    Switch {
        /// When \[ns, CLOCK_MONOTONIC\].
        time_ns: u64,
        /// The thread that leaves; 0 is the idle task.
        prev: i32,
        /// The thread that gets the CPU.
        next: i32,
    },
    /// The buffer was full.
    Lost {
        /// When room was found again \[ns, CLOCK_MONOTONIC\]; `None` where the record does not say.
        time_ns: Option<u64>,
        /// How many records did not fit.
        count: u64,
    },
    /// The buffer was so full that something may have been lost since the record before, up to now. Not the
    /// kernel's: its own record of losses comes later, if there were any.
    Full,
    /// Bytes that are no record; what follows them cannot be read either.
    Malformed,
}

/// The records in some bytes; other kinds are passed over.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Records in `bytes`, which begin with one.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { rest: bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        while !self.rest.is_empty() {
            let Some((kind, misc, body, rest)) = split(self.rest) else {
                self.rest = &[];
                return Some(Record::Malformed);
            };
            self.rest = rest;
            match kind {
                abi::PERF_RECORD_SAMPLE => return Some(sample(body).unwrap_or(Record::Malformed)),
                abi::PERF_RECORD_LOST => return Some(lost(body).unwrap_or(Record::Malformed)),
                abi::PERF_RECORD_SWITCH_CPU_WIDE => match switch(misc, body) {
                    Some(Some(switch)) => return Some(switch),
                    Some(None) => {}
                    None => return Some(Record::Malformed),
                },
                _ => {}
            }
        }
        None
    }
}

/// Kind, flags, body and what follows: `struct perf_event_header { u32 type; u16 misc; u16 size; }`.
#[inline]
fn split(bytes: &[u8]) -> Option<(u32, u16, &[u8], &[u8])> {
    let (kind, misc, size) = (word(bytes, 0)?, half(bytes, 4)?, half(bytes, 6)?);
    let body = bytes.get(HEADER..usize::from(size))?;
    Some((kind, misc, body, bytes.get(usize::from(size)..)?))
}

const HEADER: usize = 8;

/// `u32 pid, tid; u64 time, period; u32 size; char raw[size]`, which is what `SAMPLE_TYPE` asks for.
#[inline]
fn sample(body: &[u8]) -> Option<Record<'_>> {
    let raw_size = usize::try_from(word(body, 24)?).ok()?;
    Some(Record::Sample {
        pid: word(body, 0)?.cast_signed(),
        tid: word(body, 4)?.cast_signed(),
        time_ns: long(body, 8)?,
        raw: body.get(28..)?.get(..raw_size)?,
    })
}

/// `u32 other_pid, other_tid;` and, as every record but samples, `u32 pid, tid; u64 time`.
///
/// Each switch comes twice, from the thread that leaves and from the one that gets the CPU. The idle task of
/// a CPU may be silent, so that its coming is taken from the thread before it and its going from the thread
/// after it. Switches between two other threads are passed over.
fn switch(misc: u16, body: &[u8]) -> Option<Option<Record<'_>>> {
    let other = word(body, 4)?.cast_signed();
    let own = word(body, 12)?.cast_signed();
    let out = u32::from(misc) & abi::PERF_RECORD_MISC_SWITCH_OUT != 0;
    let (prev, next) = if out { (own, other) } else { (other, own) };
    let time_ns = long(body, 16)?;
    Some((other == 0).then_some(Record::Switch { time_ns, prev, next }))
}

/// `u64 id, lost;` and, as every record but samples, `u32 pid, tid; u64 time`.
fn lost(body: &[u8]) -> Option<Record<'_>> {
    Some(Record::Lost { count: long(body, 8)?, time_ns: long(body, 24) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let size = u16::try_from(HEADER + body.len()).unwrap();
        [&kind.to_ne_bytes()[..], &[0, 0], &size.to_ne_bytes(), body].concat()
    }

    fn sample_bytes(pid: i32, tid: i32, time: u64, raw: &[u8]) -> Vec<u8> {
        let size = u32::try_from(raw.len()).unwrap();
        let parts = [
            &pid.to_ne_bytes()[..],
            &tid.to_ne_bytes(),
            &time.to_ne_bytes(),
            &[0; 8],
            &size.to_ne_bytes(),
            raw,
        ];
        record(abi::PERF_RECORD_SAMPLE, &parts.concat())
    }

    #[test]
    fn samples_and_losses_come_in_order() {
        let mut bytes = sample_bytes(7, 8, 9, b"abcd");
        let words: Vec<u8> = [1u64, 42, 0, 77].iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(record(abi::PERF_RECORD_LOST, &words));
        bytes.extend(record(999, b"unknown!"));
        bytes.extend(record(abi::PERF_RECORD_LOST, &words[..16]));
        let records: Vec<Record<'_>> = Records::new(&bytes).collect();
        assert_eq!(
            records,
            [
                Record::Sample { time_ns: 9, pid: 7, tid: 8, raw: b"abcd" },
                Record::Lost { time_ns: Some(77), count: 42 },
                Record::Lost { time_ns: None, count: 42 },
            ]
        );
    }

    #[test]
    fn idling_begins_and_ends_as_the_other_thread_tells() {
        let record = |out: bool, other: u32, own: u32| {
            let words = [other, other, own, own, 99, 0];
            let body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut bytes = record(abi::PERF_RECORD_SWITCH_CPU_WIDE, &body);
            let misc = if out { u16::try_from(abi::PERF_RECORD_MISC_SWITCH_OUT).unwrap() } else { 0 };
            bytes[4..6].copy_from_slice(&misc.to_ne_bytes());
            bytes
        };
        // 41 to idle, idle to 31, 31 to 41; each recorded on both sides.
        let bytes = [
            record(true, 0, 41),
            record(false, 41, 0),
            record(true, 31, 0),
            record(false, 0, 31),
            record(true, 41, 31),
            record(false, 31, 41),
        ]
        .concat();
        let records: Vec<Record<'_>> = Records::new(&bytes).collect();
        assert_eq!(
            records,
            [
                Record::Switch { time_ns: 99, prev: 41, next: 0 },
                Record::Switch { time_ns: 99, prev: 0, next: 31 }
            ]
        );
    }

    #[test]
    fn a_size_that_leads_nowhere_ends_the_reading() {
        for size in [0u16, 7, 9, u16::MAX] {
            let mut bytes = sample_bytes(1, 1, 1, b"");
            bytes[6..8].copy_from_slice(&size.to_ne_bytes());
            assert_eq!(Records::new(&bytes).next(), Some(Record::Malformed), "{size}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Records::new(&bytes).count() <= bytes.len() / HEADER + 1);
        }
    }
}
