//! The program of each tracepoint, and the layout of what it writes.
//!
//! | bytes | of a record |
//! |---|---|
//! | 0 to 7 | when \[ns, CLOCK_MONOTONIC\], taken first of all |
//! | 8 to 15 | thread, and process in the upper half |
//! | 16 to 23 | records of this CPU that found no room so far |
//! | 24 to 27 | CPU |
//! | 28 to 31 | number of the program |
//! | 32 to the end | eight bytes for each field |

use super::assembler::{Assembler, Helper, Instruction, Register, Width};
use super::btf::{Btf, Kind, Place};
use super::call::Attach;
use crate::format::{At, Field, Format};
use crate::native::{long, word};
use crate::probe::TraceError;
use dwell_trace::tracepoint::{InBpf, TracepointKind};
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a field is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// The argument of this number.
    Argument(i16),
    /// What is there behind the pointer that this argument is.
    Behind(i16, Place),
}

/// What a tracepoint's program is attached to and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blueprint {
    pub(super) attach: Attach,
    /// Each field with the name that it has in the tracepoint's format.
    fields: Vec<(&'static str, Value)>,
}

/// The maps that every program uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps<'a> {
    /// The ring buffer of each CPU: if CPUs shared one, they would contend for its lock and cache lines at each record.
    pub(super) rings: BorrowedFd<'a>,
    /// By CPU, the records that found no room.
    pub(super) losses: BorrowedFd<'a>,
    /// One number: while it is 0 nothing is written. Programs are attached and detached one after the other,
    /// some of them slowly; without this the first and the last events would be those of some programs only.
    pub(super) gate: BorrowedFd<'a>,
}

impl Blueprint {
    /// Of one kind of tracepoint.
    pub(super) fn of(kind: TracepointKind, btf: &Btf) -> Result<Blueprint, TraceError> {
        if !kind.has_program() {
            return Err(TraceError::NoProgram { event: kind.to_string() });
        }
        let name = kind.to_string();
        let missing = |missing| TraceError::Missing { event: kind.to_string(), missing };
        let (category, name) = name.split_once(':').unwrap_or_default();
        let number = |kind, name: String| btf.find(kind, &name).ok_or_else(|| missing(name));
        // Each tracepoint of the kernel image has a type of this name; without it there is nothing to attach to.
        let number = match category {
            "fentry" => number(Kind::Function, name.to_owned())?,
            _ => number(Kind::Typedef, format!("btf_trace_{name}"))?,
        };
        let fields = kind.fields().iter().filter_map(|field| Some((field.name, field.bpf?)));
        let fields = fields.map(|(name, of)| Ok((name, value(btf, of, number).map_err(missing)?)));
        let fields = fields.collect::<Result<Vec<_>, TraceError>>()?;
        let follows = fields.iter().any(|(_, value)| matches!(value, Value::Behind(..)));
        let attach = match category {
            "fentry" => Attach::Function(number),
            _ if follows => Attach::TypedTracepoint(number),
            _ => Attach::RawTracepoint(name.to_owned()),
        };
        Ok(Blueprint { attach, fields })
    }

    /// How many bytes a record has.
    fn bytes(&self) -> i32 {
        i32::from(FIELDS) + 8 * i32::try_from(self.fields.len()).unwrap_or(0)
    }

    /// How the fields lie in what [`Head::rest`] returns.
    pub(super) fn format(&self, number: u16) -> Format {
        let at = |offset, size| At { offset, size, signed: false };
        let offsets = (FIELDS.unsigned_abs() - NUMBER.unsigned_abs()..).step_by(8);
        let mut fields = vec![Field { name: "common_type".to_owned(), at: at(0, 2) }];
        fields.extend(self.fields.iter().zip(offsets).map(|((name, value), offset)| {
            let size = match value {
                Value::Argument(_) => 4,
                Value::Behind(_, place) => place.size,
            };
            Field { name: (*name).to_owned(), at: at(offset, size) }
        }));
        Format { name: String::new(), id: number, fields }
    }

    /// The program; `None` if a field is too far from the beginning of its structure, or of an odd size.
    pub(super) fn program(&self, number: u16, maps: Maps<'_>) -> Option<Vec<Instruction>> {
        use Register::{Frame, R0, R1, R2, R3, R6, R7, R8, R9};
        let mut a = Assembler::default();
        let (lost, end) = (a.label(), a.label());
        a.load_value(R2, maps.gate.as_raw_fd());
        a.load(Width::Eight, R2, R2, 0);
        a.jump_if_zero(R2, end);
        a.copy(R6, R1);
        a.call(Helper::TimeNs);
        a.copy(R9, R0);
        a.call(Helper::Cpu);
        a.copy(R8, R0);
        a.store(Width::Four, Frame, -4, R0);
        let of_this_cpu = |a: &mut Assembler, map: BorrowedFd<'_>, missing| {
            a.load_map(R1, map.as_raw_fd());
            a.copy(R2, Frame);
            a.add(R2, -4);
            a.call(Helper::MapLookup);
            a.jump_if_zero(R0, missing);
        };
        // The count of this CPU's losses.
        of_this_cpu(&mut a, maps.losses, end);
        a.copy(R7, R0);
        // Room for a record in its ring.
        of_this_cpu(&mut a, maps.rings, lost);
        a.copy(R1, R0);
        a.set(R2, self.bytes());
        a.set(R3, 0);
        a.call(Helper::RingReserve);
        a.jump_if_zero(R0, lost);
        a.store(Width::Eight, R0, TIME, R9);
        a.copy(R9, R0);
        a.store(Width::Four, R9, CPU, R8);
        a.store_number(Width::Four, R9, NUMBER, number.into());
        a.load(Width::Eight, R1, R7, 0);
        a.store(Width::Eight, R9, LOST, R1);
        a.call(Helper::ProcessAndThread);
        a.store(Width::Eight, R9, TASK, R0);
        for ((_, value), offset) in self.fields.iter().zip((FIELDS..).step_by(8)) {
            match value {
                Value::Argument(argument) => a.load(Width::Eight, R1, R6, 8 * argument),
                Value::Behind(argument, place) => {
                    a.load(Width::Eight, R1, R6, 8 * argument);
                    a.load(Width::of(place.size)?, R1, R1, i16::try_from(place.offset).ok()?);
                }
            }
            a.store(Width::Eight, R9, offset, R1);
        }
        a.copy(R1, R9);
        a.set(R2, NO_WAKEUP);
        a.call(Helper::RingSubmit);
        a.jump(end);
        a.place(lost);
        a.set(R1, 1);
        a.add_atomically(R7, R1);
        a.place(end);
        a.set(R0, 0);
        a.exit();
        Some(a.finish())
    }
}

/// Where a field is taken from in this kernel, of a tracepoint whose type has this number. The error is what the BTF does
/// not have.
fn value(btf: &Btf, of: InBpf, tracepoint: u32) -> Result<Value, String> {
    match of {
        InBpf::Argument(argument) => Ok(Value::Argument(argument)),
        InBpf::Behind(argument, structure, path) => {
            let missing = || format!("{structure}.{}", path.join("."));
            btf.field(structure, path).map(|place| Value::Behind(argument, place)).ok_or_else(missing)
        }
        InBpf::First(all) => {
            let count = btf.arguments(tracepoint).and_then(|count| i16::try_from(count).ok()).unwrap_or(0);
            let is_there = |of: &InBpf| !matches!(of, InBpf::Argument(argument) if *argument >= count);
            let found = all.iter().filter(|of| is_there(of)).map(|of| value(btf, *of, tracepoint));
            found.reduce(Result::or).unwrap_or_else(|| Err(String::new()))
        }
    }
}

/// The reader comes by itself: to be woken by each record would wake it as often as what it watches.
const NO_WAKEUP: i32 = 1;

const TIME: i16 = 0;
const TASK: i16 = 8;
const LOST: i16 = 16;
const CPU: i16 = 24;
const NUMBER: i16 = 28;
const FIELDS: i16 = 32;

/// What every record begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    pub(super) time_ns: u64,
    pub(super) pid: i32,
    pub(super) tid: i32,
    pub(super) lost: u64,
    pub(super) cpu: u32,
    /// From the number of the program on, laid out as [`Blueprint::format`] says.
    pub(super) rest: &'a [u8],
}

impl Head<'_> {
    /// Of a record; `None` if it is too short.
    #[inline]
    pub(super) fn of(record: &[u8]) -> Option<Head<'_>> {
        let at = |offset: i16| usize::from(offset.unsigned_abs());
        let [t0, t1, t2, t3, p0, p1, p2, p3] = long(record, at(TASK))?.to_le_bytes();
        Some(Head {
            time_ns: long(record, at(TIME))?,
            pid: i32::from_le_bytes([p0, p1, p2, p3]),
            tid: i32::from_le_bytes([t0, t1, t2, t3]),
            lost: long(record, at(LOST))?,
            cpu: word(record, at(CPU))?,
            rest: record.get(at(NUMBER)..)?,
        })
    }
}
