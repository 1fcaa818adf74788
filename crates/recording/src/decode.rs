//! Values of one Parquet column chunk into vectors.

use crate::chunk::{ReadySets, Scratch};
use parquet::column::reader::ColumnReader;
use parquet::data_type::{BoolType, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use std::collections::HashMap;
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

/// Turns lists of handler names into numbers, by idler.
pub(crate) struct ReadyParser<'a> {
    handlers: &'a [HashMap<String, u32>],
    set: Vec<u32>,
}

impl<'a> ReadyParser<'a> {
    pub(crate) fn new(handlers: &'a [HashMap<String, u32>]) -> ReadyParser<'a> {
        ReadyParser { handlers, set: Vec::new() }
    }

    /// Appends the set of the next row.
    pub(crate) fn push(
        &mut self,
        names: Option<&[u8]>,
        idlers: &[u32],
        out: &mut ReadySets,
    ) -> Result<(), String> {
        let Some(names) = names else {
            out.push(None);
            return Ok(());
        };
        self.set.clear();
        let idler = idlers.get(out.len()).and_then(|&idler| self.handlers.get(idler as usize));
        for name in utf8(names)?.split(',').filter(|name| !name.is_empty()) {
            let number = idler.and_then(|handlers| handlers.get(name)).copied();
            self.set
                .push(number.ok_or_else(|| {
                    format!("handler `{name}` is not in the list of handlers of its idler")
                })?);
        }
        out.push(Some(&self.set));
        Ok(())
    }
}
