//! Tables of episodes, as a spreadsheet, pandas or a script writes them.
//!
//! The first line names the columns, in any order: `start_ns` and `idle_ns` must be there; `idler`, `window_ns`,
//! `halted`, `wake`, `wake_latency_ns`, `ready` and `alone_ns` may be. They mean what they mean in a
//! recording. An empty field is a value that is not known. Numbers are decimal digits; `halted` is `true`,
//! `false`, `1` or `0`; `ready` lists handlers with commas between them, so it needs quotes if it has more
//! than one. A quoted field may hold commas and, doubled, quotes, but no line break. Blank lines are skipped.
//!
//! Other tools' habits are taken where they can mean one thing only: semicolons or tabs between the fields, lines before
//! the one with the names, a first column without a name (the index of pandas), `200000.0`, `nan`.
//!
//! A table shows episodes, not for how long was recorded before the first and after the last: the time
//! recorded is not known.
//!
//! What does not fit is an error with its line and column; nothing is guessed and nothing is left out.

use super::{ImportSummary, Input, InputError, excerpt};
use crate::write::OverlapCheck;
use dwell_policy::Layer;
use dwell_recording::{COLUMNS, Columns};
use dwell_recording::{Episode, WakeCause};
use dwell_recording::{WriteError, Writer};
use std::io::Write;

/// Why a table could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum CsvError {
    /// The text could not be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The episodes could not be written.
    #[error("cannot write the episode of line {line}")]
    Write {
        /// From 1.
        line: u64,
        source: WriteError,
    },
    /// There is nothing in it.
    #[error("{name}: the file is empty; the first line must name the columns, such as `start_ns,idle_ns`")]
    Empty { name: String },
    /// There is a line with column names, and nothing below.
    #[error("{name}: no episodes: there is nothing after the column names")]
    NoEpisodes { name: String },
    /// The first line names a column that does not exist.
    #[error("{name}: line {line}: unknown column `{column}`; known: {}", known_columns())]
    UnknownColumn {
        name: String,
        /// From 1.
        line: u64,
        column: String,
    },
    /// The first line names a column twice.
    #[error("{name}: line {line}: column `{column}` is there twice")]
    RepeatedColumn {
        name: String,
        /// From 1.
        line: u64,
        column: String,
    },
    /// The first line lacks a column.
    #[error("{name}: line {line}: no column `{column}`; `start_ns` and `idle_ns` must be there")]
    MissingColumn {
        name: String,
        /// From 1.
        line: u64,
        column: &'static str,
    },
    /// A line has too few or too many fields.
    #[error("{name}: line {line} has {found} fields, the first has {wanted}: `{text}`")]
    FieldCount {
        name: String,
        /// From 1.
        line: u64,
        /// Fields in this line.
        found: usize,
        /// Fields in the first.
        wanted: usize,
        /// The line, or its beginning.
        text: String,
    },
    /// A quoted field does not end in its line.
    #[error("{name}: line {line}: a quoted field does not end: `{text}`")]
    Quote {
        name: String,
        /// From 1.
        line: u64,
        /// The line, or its beginning.
        text: String,
    },
    /// A field is not what its column holds.
    #[error("{name}: line {line}, column `{column}`: `{text}` {what}")]
    Field {
        name: String,
        /// From 1.
        line: u64,
        column: &'static str,
        /// The field, or its beginning.
        text: String,
        /// What is wrong with it.
        what: String,
    },
}

fn known_columns() -> String {
    COLUMNS.each_ref().map(|column| column.name).join(", ")
}

/// What a table does not tell.
#[derive(Clone, Debug)]
pub struct CsvOptions {
    /// Name of the idler where the table has no column `idler` or an empty field in it.
    pub idler: String,
}

impl CsvOptions {
    /// The usual name of a layer's first idler: `cpu0`, `vcpu0`, `iothread0`.
    pub fn for_layer(layer: Layer) -> CsvOptions {
        let idler = match layer {
            Layer::Guest | Layer::Driver => "cpu0",
            Layer::Host => "vcpu0",
            Layer::Iothread => "iothread0",
        };
        CsvOptions { idler: idler.to_owned() }
    }
}

/// Writes the episodes of a table.
pub fn import<W: Write + Send>(
    mut input: Input<'_>,
    options: &CsvOptions,
    writer: &mut Writer<W>,
) -> Result<ImportSummary, CsvError> {
    let mut summary = ImportSummary::default();
    let header = Header::read(&mut input)?;
    let name = input.name().to_owned();
    let mut fields = Fields::with(header.separator);
    let mut overlaps = OverlapCheck::default();
    loop {
        let number = input.line() + 1;
        let Some(line) = input.next_line()? else { break };
        if line.is_empty() {
            summary.other_lines += 1;
            continue;
        }
        let place = Place { name: &name, line: number };
        fields.split(line, &place)?;
        if fields.len() != header.columns.len() {
            let (found, wanted) = (fields.len(), header.columns.len());
            return Err(CsvError::FieldCount { name, line: number, found, wanted, text: excerpt(line) });
        }
        push(&header, &fields, options, &place, writer, &mut overlaps)?;
        summary.episodes += 1;
    }
    summary.lines = input.line();
    if summary.episodes == 0 {
        return Err(CsvError::NoEpisodes { name });
    }
    let metadata = writer.metadata_mut();
    summary.set_overlaps(overlaps.overlaps(), metadata);
    summary.format = "a table".to_owned();
    if metadata.source.tool.is_empty() {
        metadata.source.tool = "csv".to_owned();
    }
    Ok(summary)
}

fn push<W: Write + Send>(
    header: &Header,
    fields: &Fields,
    options: &CsvOptions,
    place: &Place<'_>,
    writer: &mut Writer<W>,
    overlaps: &mut OverlapCheck,
) -> Result<(), CsvError> {
    let mut episode = Episode::new(&options.idler, 0, 0);
    let mut handlers: Vec<&str> = Vec::new();
    let mut ready = None;
    for (index, column) in header.columns.iter().enumerate() {
        let Some(column) = *column else { continue };
        let field =
            Field { column: COLUMNS.get(column).map_or("", |c| c.name), text: fields.get(index), place };
        match COLUMNS.get(column).map(|column| column.set) {
            Some(Columns::START_NS) => episode.start_ns = field.required()?,
            Some(Columns::IDLE_NS) => episode.idle_ns = field.required()?,
            Some(Columns::WINDOW_NS) => episode.window_ns = field.number()?,
            Some(Columns::WAKE_LATENCY_NS) => episode.wake_latency_ns = field.number()?,
            Some(Columns::ALONE_NS) => episode.alone_ns = field.number()?,
            Some(Columns::HALTED) => episode.halted = field.flag()?,
            Some(Columns::WAKE) => episode.wake = field.wake()?,
            Some(Columns::IDLER) => episode.idler = field.string()?.unwrap_or(&options.idler),
            Some(Columns::READY) => ready = field.string()?,
            _ => {}
        }
    }
    if let Some(ready) = ready {
        handlers.extend(ready.split(',').map(str::trim));
        episode.ready = Some(&handlers);
    }
    if episode.start_ns.checked_add(episode.idle_ns).is_none() {
        let text = episode.idle_ns.to_string();
        return Err(place.field("idle_ns", text.as_bytes(), "ends the episode after 2^64 - 1 ns"));
    }
    let write = |error| place.write_error(error);
    let idler = writer.idler(episode.idler).map_err(write)?;
    writer.push_numbered(idler, &episode).map_err(write)?;
    overlaps.check((idler, episode.idler), (episode.start_ns, episode.idle_ns), 0, Some(place.line));
    Ok(())
}

/// Where in the text something is.
struct Place<'a> {
    name: &'a str,
    line: u64,
}

impl Place<'_> {
    fn field(&self, column: &'static str, text: &[u8], what: impl Into<String>) -> CsvError {
        let (name, line) = (self.name.to_owned(), self.line);
        CsvError::Field { name, line, column, text: excerpt(text), what: what.into() }
    }

    fn write_error(&self, error: WriteError) -> CsvError {
        match error {
            WriteError::OutOfOrder { idler, start_ns, previous_ns, .. } => self.field(
                "start_ns",
                start_ns.to_string().as_bytes(),
                format!("is before {previous_ns}, the start of the episode of idler `{idler}` before it; sort the table"),
            ),
            WriteError::HandlerName { handler, .. } => {
                self.field("ready", handler.as_bytes(), "is no name of a handler")
            }
            source => CsvError::Write { line: self.line, source },
        }
    }
}

/// The columns of a table, as indices into [`COLUMNS`]; `None`: an index without a name.
struct Header {
    columns: Vec<Option<usize>>,
    separator: u8,
}

/// Lines that may precede the names of the columns.
const BANNER: usize = 16;

impl Header {
    fn read(input: &mut Input<'_>) -> Result<Header, CsvError> {
        let name = input.name().to_owned();
        // The first line, if none names the columns.
        let mut first: Option<(u64, Vec<u8>)> = None;
        for _ in 0..BANNER {
            let number = input.line() + 1;
            let Some(line) = input.next_line()? else { break };
            if line.is_empty() {
                continue;
            }
            for separator in [b',', b';', b'\t'] {
                let mut fields = Fields::with(separator);
                let place = Place { name: &name, line: number };
                let named = |fields: &Fields, wanted: &[u8]| {
                    (0..fields.len()).any(|index| fields.get(index) == wanted)
                };
                if fields.split(line, &place).is_ok()
                    && named(&fields, b"start_ns")
                    && named(&fields, b"idle_ns")
                {
                    return Header::of(&fields, separator, (&name, number));
                }
            }
            first.get_or_insert_with(|| (number, line.to_vec()));
        }
        let Some((line, text)) = first else { return Err(CsvError::Empty { name }) };
        let mut fields = Fields::with(b',');
        fields.split(&text, &Place { name: &name, line })?;
        Header::of(&fields, b',', (&name, line))
    }

    fn of(fields: &Fields, separator: u8, (name, line): (&str, u64)) -> Result<Header, CsvError> {
        let mut columns = Vec::new();
        for index in 0..fields.len() {
            let (name, text) = (name.to_owned(), fields.get(index));
            if index == 0 && fields.len() > 1 && (text.is_empty() || text == b"Unnamed: 0") {
                columns.push(None);
                continue;
            }
            let Some(column) = COLUMNS.iter().position(|column| column.name.as_bytes() == text) else {
                return Err(CsvError::UnknownColumn { name, line, column: excerpt(text) });
            };
            if columns.contains(&Some(column)) {
                return Err(CsvError::RepeatedColumn { name, line, column: excerpt(text) });
            }
            columns.push(Some(column));
        }
        for (index, column) in COLUMNS.iter().enumerate() {
            let must = column.set == Columns::START_NS || column.set == Columns::IDLE_NS;
            if must && !columns.contains(&Some(index)) {
                return Err(CsvError::MissingColumn { name: name.to_owned(), line, column: column.name });
            }
        }
        Ok(Header { columns, separator })
    }
}

/// The fields of one line, without quotes and the blanks around them.
struct Fields {
    separator: u8,
    text: Vec<u8>,
    ends: Vec<usize>,
    record: ::csv::ByteRecord,
}

impl Fields {
    fn with(separator: u8) -> Fields {
        Fields { separator, text: vec![], ends: vec![], record: ::csv::ByteRecord::new() }
    }

    fn split(&mut self, line: &[u8], place: &Place<'_>) -> Result<(), CsvError> {
        self.text.clear();
        self.ends.clear();
        let separator = self.separator;
        if !line.contains(&b'"') {
            for field in line.split(|&byte| byte == separator) {
                self.add(field);
            }
            return Ok(());
        }
        let unclosed =
            || CsvError::Quote { name: place.name.to_owned(), line: place.line, text: excerpt(line) };
        // Every quote opens, closes, or is doubled: an odd number leaves one open.
        if !line.iter().filter(|&&byte| byte == b'"').count().is_multiple_of(2) {
            return Err(unclosed());
        }
        let mut reader = ::csv::ReaderBuilder::new()
            .delimiter(separator)
            .has_headers(false)
            .flexible(true)
            .from_reader(line);
        let mut record = std::mem::take(&mut self.record);
        let read = reader.read_byte_record(&mut record);
        for field in &record {
            self.add(field);
        }
        self.record = record;
        if read.is_ok_and(|any| any) { Ok(()) } else { Err(unclosed()) }
    }

    fn add(&mut self, field: &[u8]) {
        self.text.extend_from_slice(field.trim_ascii());
        self.ends.push(self.text.len());
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &[u8] {
        let begin = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(index).copied().unwrap_or(begin);
        self.text.get(begin..end).unwrap_or_default()
    }
}

/// One field, and where it is.
struct Field<'a> {
    column: &'static str,
    text: &'a [u8],
    place: &'a Place<'a>,
}

impl<'a> Field<'a> {
    fn error(&self, what: impl Into<String>) -> CsvError {
        self.place.field(self.column, self.text, what)
    }

    fn required(&self) -> Result<u64, CsvError> {
        self.number()?.ok_or_else(|| self.error("is empty; every episode has a start and a length"))
    }

    fn number(&self) -> Result<Option<u64>, CsvError> {
        if self.text.is_empty() || self.text.eq_ignore_ascii_case(b"nan") {
            return Ok(None);
        }
        // pandas writes a column that has a gap as floating-point numbers.
        let whole = match self.text.iter().position(|&byte| byte == b'.') {
            Some(point) if point > 0 && self.text.len() > point + 1 => {
                let (whole, decimals) = self.text.split_at(point);
                if decimals.iter().skip(1).all(|&byte| byte == b'0') { whole } else { self.text }
            }
            _ => self.text,
        };
        let mut number: u64 = 0;
        for &byte in whole {
            if !byte.is_ascii_digit() {
                return Err(self.error("is not a whole number of nanoseconds, in digits"));
            }
            let next = number.checked_mul(10).and_then(|ten| ten.checked_add(u64::from(byte - b'0')));
            number = next.ok_or_else(|| self.error("is more than 2^64 - 1"))?;
        }
        Ok(Some(number))
    }

    fn flag(&self) -> Result<Option<bool>, CsvError> {
        match self.text {
            b"" => Ok(None),
            b"1" | b"1.0" => Ok(Some(true)),
            b"0" | b"0.0" => Ok(Some(false)),
            text if text.eq_ignore_ascii_case(b"nan") => Ok(None),
            text if text.eq_ignore_ascii_case(b"true") => Ok(Some(true)),
            text if text.eq_ignore_ascii_case(b"false") => Ok(Some(false)),
            _ => Err(self.error("is neither `true` nor `false`")),
        }
    }

    fn wake(&self) -> Result<Option<WakeCause>, CsvError> {
        let Some(name) = self.string()? else { return Ok(None) };
        let known = || WakeCause::ALL.map(WakeCause::name).join(", ");
        WakeCause::from_name(name)
            .map(Some)
            .ok_or_else(|| self.error(format!("is no kind of wake event; known: {}", known())))
    }

    fn string(&self) -> Result<Option<&'a str>, CsvError> {
        match std::str::from_utf8(self.text) {
            Ok("") => Ok(None),
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(self.error("is not UTF-8")),
        }
    }
}
