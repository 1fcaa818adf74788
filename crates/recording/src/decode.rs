//! Values of one Parquet column chunk into vectors.

use crate::chunk::{ReadySets, Scratch};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{BoolType, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Rows that are read at a time, so that values are still in the cache when they are converted.
const BATCH: usize = 1 << 13;

const NULL: &str = "null, where there must be a value";

/// What can go wrong within a column.
#[derive(Debug)]
pub(crate) enum Failure {
    Parquet(ParquetError),
    Value { row: usize, what: String },
}

impl From<ParquetError> for Failure {
    fn from(error: ParquetError) -> Failure {
        Failure::Parquet(error)
    }
}

/// Runs what calls the Parquet library on untrusted bytes. That library promises errors, yet damaged files have made
/// it panic before; such a panic becomes an error here. The default panic hook still prints its line to stderr.
pub(crate) fn guard<T, E: From<ParquetError>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(ParquetError::General(format!("the parquet library panicked: {text}")).into())
        }
    }
}

/// A column of one row group.
pub(crate) enum Input {
    /// The file has no such column: every row is null.
    Absent,
    /// It has; `nullable` if it may hold nulls.
    Present { reader: Box<ColumnReader>, nullable: bool },
}

impl Input {
    /// Integers without nulls. Parquet stores unsigned integers as signed ones of the same bits.
    pub(crate) fn unsigned(
        self,
        rows: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u64>,
    ) -> Result<(), Failure> {
        let Scratch { levels, integers } = scratch;
        self.batches::<Int64Type>(rows, levels, integers, |batch| {
            batch.refuse_nulls()?;
            out.extend(batch.values.iter().map(|value| value.cast_unsigned()));
            Ok(())
        })
    }

    /// Integers, or nulls.
    pub(crate) fn optional(
        self,
        rows: usize,
        scratch: &mut Scratch,
        out: &mut Vec<Option<u64>>,
    ) -> Result<(), Failure> {
        let Scratch { levels, integers } = scratch;
        self.batches::<Int64Type>(rows, levels, integers, |batch| {
            batch.each(|value| {
                out.push(value.map(|value| value.cast_unsigned()));
                Ok(())
            })
        })
    }

    /// Booleans, or nulls.
    pub(crate) fn flags(
        self,
        rows: usize,
        scratch: &mut Scratch,
        out: &mut Vec<Option<bool>>,
    ) -> Result<(), Failure> {
        self.batches::<BoolType>(rows, &mut scratch.levels, &mut Vec::new(), |batch| {
            batch.each(|value| {
                out.push(value.copied());
                Ok(())
            })
        })
    }

    /// Strings, or nulls; `push` says what is wrong with one.
    pub(crate) fn texts(
        self,
        rows: usize,
        scratch: &mut Scratch,
        mut push: impl FnMut(Option<&[u8]>) -> Result<(), String>,
    ) -> Result<(), Failure> {
        self.batches::<ByteArrayType>(rows, &mut scratch.levels, &mut Vec::new(), |batch| {
            batch.each(|value| push(value.map(|value| value.data())))
        })
    }

    /// Gives `take` the rows in order, some at a time.
    fn batches<T: DataType>(
        self,
        rows: usize,
        levels: &mut Vec<i16>,
        values: &mut Vec<T::T>,
        mut take: impl FnMut(Batch<'_, T::T>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Input::Present { reader, nullable } = self else {
            levels.clear();
            levels.resize(rows, 0);
            return take(Batch { first: 0, levels: Some(levels), values: &[] });
        };
        let mut reader =
            T::get_column_reader(*reader).ok_or_else(|| general("the column chunk is of another type"))?;
        let mut first = 0;
        loop {
            levels.clear();
            values.clear();
            let (records, ..) =
                reader.read_records(BATCH, nullable.then_some(&mut *levels), None, &mut *values)?;
            if records == 0 && first == rows {
                return Ok(());
            }
            if records == 0 || records > rows - first {
                return Err(general(&format!("{rows} rows are claimed, there are {}", first + records)));
            }
            take(Batch { first, levels: nullable.then_some(levels), values })?;
            first += records;
        }
    }
}

fn general(text: &str) -> Failure {
    Failure::Parquet(ParquetError::General(text.to_owned()))
}

/// Some consecutive rows of a column: its values without the nulls, and which rows have one.
struct Batch<'a, T> {
    first: usize,
    levels: Option<&'a Vec<i16>>,
    values: &'a [T],
}

impl<T> Batch<'_, T> {
    fn refuse_nulls(&self) -> Result<(), Failure> {
        let null = self.levels.and_then(|levels| levels.iter().position(|&level| level == 0));
        match null {
            Some(at) => Err(Failure::Value { row: self.first + at, what: NULL.to_owned() }),
            None => Ok(()),
        }
    }

    fn each(&self, mut take: impl FnMut(Option<&T>) -> Result<(), String>) -> Result<(), Failure> {
        let fail = |at: usize| move |what| Failure::Value { row: self.first + at, what };
        let Some(levels) = self.levels else {
            return self
                .values
                .iter()
                .enumerate()
                .try_for_each(|(at, value)| take(Some(value)).map_err(fail(at)));
        };
        let mut values = self.values.iter();
        for (at, &level) in levels.iter().enumerate() {
            let value = if level == 0 { None } else { values.next() };
            take(value).map_err(fail(at))?;
        }
        Ok(())
    }
}

/// Strings that are compared before any is hashed. A few compares of short names cost less than one hash.
const COMPARED: usize = 8;

/// Translates strings, of which a column holds few different ones.
pub(crate) struct Translator<V, F> {
    translate: F,
    /// The first few that came up.
    first: Vec<(Vec<u8>, V)>,
    rest: HashMap<Vec<u8>, V>,
}

impl<V: Copy, F: FnMut(&str) -> Result<V, String>> Translator<V, F> {
    pub(crate) fn new(translate: F) -> Self {
        Translator { translate, first: Vec::new(), rest: HashMap::new() }
    }

    pub(crate) fn get(&mut self, text: &[u8]) -> Result<V, String> {
        if let Some(value) = self.known(text) {
            return Ok(value);
        }
        let value = (self.translate)(utf8(text)?)?;
        if self.first.len() < COMPARED {
            self.first.push((text.to_owned(), value));
        } else {
            self.rest.insert(text.to_owned(), value);
        }
        Ok(value)
    }

    fn known(&self, text: &[u8]) -> Option<V> {
        let first = self.first.iter().find(|(known, _)| known == text).map(|(_, value)| *value);
        first.or_else(|| self.rest.get(text).copied())
    }

    pub(crate) fn get_some(&mut self, text: Option<&[u8]>) -> Result<V, String> {
        self.get(text.ok_or_else(|| NULL.to_owned())?)
    }
}

fn utf8(text: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(text).map_err(|_| format!("`{}` is not UTF-8", text.escape_ascii()))
}

/// Handlers of one set at most.
pub(crate) const MOST_READY: usize = 4096;
/// Bytes of all different texts of a column that are held at a time, at most.
pub(crate) const MOST_TEXT: usize = 64 << 20;

/// What is wrong with the names of a set of handlers, if anything is.
pub(crate) fn check_set<'n>(names: impl Iterator<Item = &'n str>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("handler `{name}` is in the set twice"));
        }
        if seen.len() > MOST_READY {
            return Err(format!("the set has more than {MOST_READY} handlers"));
        }
    }
    Ok(())
}

/// Turns lists of handler names into numbers, by idler.
pub(crate) struct ReadyParser<'a> {
    handlers: &'a [HashMap<String, u32>],
    /// The number of the set of each text of an idler.
    known: HashMap<u32, HashMap<Vec<u8>, u32>>,
    /// Of these texts.
    bytes: usize,
}

impl<'a> ReadyParser<'a> {
    pub(crate) fn new(handlers: &'a [HashMap<String, u32>]) -> ReadyParser<'a> {
        ReadyParser { handlers, known: HashMap::new(), bytes: 0 }
    }

    /// Appends the set of the next row.
    pub(crate) fn push(
        &mut self,
        names: Option<&[u8]>,
        idlers: &[u32],
        out: &mut ReadySets,
    ) -> Result<(), String> {
        let idler = idlers.get(out.len()).copied().unwrap_or(u32::MAX);
        let set = names.map(|names| self.set(names, idler, out)).transpose()?;
        out.push(set);
        Ok(())
    }

    /// The number of a set, which is parsed and stored once.
    fn set(&mut self, text: &[u8], idler: u32, out: &mut ReadySets) -> Result<u32, String> {
        let known = self.known.entry(idler).or_default();
        if let Some(&set) = known.get(text) {
            return Ok(set);
        }
        self.bytes = within(self.bytes, text)?;
        let names = utf8(text)?.split(',').filter(|name| !name.is_empty());
        check_set(names.clone())?;
        let handlers = self.handlers.get(idler as usize);
        let numbers = names.map(|name| {
            let number = handlers.and_then(|handlers| handlers.get(name)).copied();
            number.ok_or_else(|| format!("handler `{name}` is not in the list of handlers of its idler"))
        });
        let set = out.add(&numbers.collect::<Result<Vec<u32>, String>>()?);
        known.insert(text.to_owned(), set);
        Ok(set)
    }
}

/// The bytes of the different texts of a column with a further one.
pub(crate) fn within(bytes: usize, text: &[u8]) -> Result<usize, String> {
    let all = bytes.saturating_add(text.len());
    if all <= MOST_TEXT { Ok(all) } else { Err(format!("different texts of more than {MOST_TEXT} bytes")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_stored_once_for_each_idler_and_refused_where_it_is_none() {
        let handlers = ["a,b", "b,a"].map(|names| names.split(',').map(str::to_owned).zip(0..).collect());
        let idlers = [0, 1].repeat(500);
        let (mut parser, mut out) = (ReadyParser::new(&handlers), ReadySets::default());
        for _ in 0..999 {
            parser.push(Some(b"a,b"), &idlers, &mut out).unwrap();
        }
        let sets = [0, 1, 998, 999].map(|row| out.get(row));
        assert_eq!(sets, [Some(&[0, 1][..]), Some(&[1, 0]), Some(&[0, 1]), None]);
        assert_eq!(out.numbers(), 4);
        let many = (0..=MOST_READY).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        for (text, why) in [
            ("a,b,a", "handler `a` is in the set twice"),
            ("a,c", "handler `c` is not in the list of handlers of its idler"),
            (&many, "the set has more than 4096 handlers"),
        ] {
            assert_eq!(parser.push(Some(text.as_bytes()), &idlers, &mut out).unwrap_err(), why);
        }
        parser.bytes = MOST_TEXT;
        assert_eq!(parser.push(Some(b"a,b"), &idlers, &mut out), Ok(()));
        let error = parser.push(Some(b"a"), &[0; 2000], &mut out).unwrap_err();
        assert_eq!(error, "different texts of more than 67108864 bytes");
    }
}
