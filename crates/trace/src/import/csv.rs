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

use super::{EventSpan, ImportError, ImportSummary, Input, Place, excerpt};
use crate::write::OverlapCheck;
use ::csv::ByteRecord;
use dwell_policy::Layer;
use dwell_recording::{COLUMNS, Column, Columns, Episode, WakeCause, WriteError, Writer};
use std::fmt::Display;
use std::io::Write;

fn known_columns() -> String {
    COLUMNS.each_ref().map(|column| column.name).join(", ")
}

/// The usual name of a layer's first idler.
pub const fn usual_idler(layer: Layer) -> &'static str {
    match layer {
        Layer::Guest | Layer::Driver => "cpu0",
        Layer::Host => "vcpu0",
        Layer::Iothread => "iothread0",
    }
}

/// Writes the episodes of a table. `idler`: whose they are where the table has no column `idler` or an empty field in it.
pub fn import<W: Write + Send>(
    mut input: Input<'_>,
    idler: &str,
    writer: &mut Writer<W>,
) -> Result<ImportSummary, ImportError> {
    let mut summary = ImportSummary::default();
    let header = Header::read(&mut input)?;
    let mut place = input.place();
    let mut fields = Fields::with(header.separator);
    let mut checks = (OverlapCheck::default(), EventSpan::default());
    let mut is_part = false;
    loop {
        place.line = input.line() + 1;
        let Some((line, has_no_end)) = input.next_line_or_part()? else { break };
        is_part = has_no_end;
        if line.is_empty() {
            summary.other_lines += 1;
            continue;
        }
        fields.split(line, &place)?;
        if fields.are_names() {
            return Err(ImportError::Refused(format!(
                "{place} names the columns of another table: import each table by itself, or remove the line if the rows below \
                 it have the columns of the first"
            )));
        }
        let (found, wanted) = (fields.record.len(), header.columns.len());
        if found != wanted {
            let text = excerpt(line);
            let what = format!("{place} has {found} fields, the first has {wanted}: `{text}`");
            return Err(ImportError::Refused(what));
        }
        push(&header, &fields, idler, &place, writer, &mut checks)?;
        summary.episodes += 1;
    }
    summary.lines = input.line();
    if summary.episodes == 0 {
        let what = format!("{}: no episodes: there is nothing after the column names", place.name);
        return Err(ImportError::NoEpisodes(what));
    }
    let metadata = writer.metadata_mut();
    if is_part {
        let what = "the last line has no line break: if the file was cut off there, its last number may be too small";
        summary.note(metadata, what.to_owned());
    }
    summary.set_overlaps(checks.0.overlaps(), metadata);
    summary.note_gap(checks.1, metadata);
    summary.format = "a table".to_owned();
    if metadata.source.tool.is_empty() {
        metadata.source.tool = "csv".to_owned();
    }
    Ok(summary)
}

fn push<W: Write + Send>(
    header: &Header,
    fields: &Fields,
    idler: &str,
    place: &Place,
    writer: &mut Writer<W>,
    (overlaps, span): &mut (OverlapCheck, EventSpan),
) -> Result<(), ImportError> {
    let mut episode = Episode::new(idler, 0, 0);
    let mut handlers: Vec<&str> = Vec::new();
    let mut ready = None;
    for (column, text) in header.columns.iter().zip(&fields.record) {
        let Some(column) = *column else { continue };
        let field = Field { column: column.name, text, place };
        match column.set {
            Columns::START_NS => episode.start_ns = field.required()?,
            Columns::IDLE_NS => episode.idle_ns = field.required()?,
            Columns::WINDOW_NS => episode.window_ns = field.number()?,
            Columns::WAKE_LATENCY_NS => episode.wake_latency_ns = field.number()?,
            Columns::ALONE_NS => episode.alone_ns = field.number()?,
            Columns::HALTED => episode.halted = field.flag()?,
            Columns::WAKE => episode.wake = field.wake()?,
            Columns::IDLER => episode.idler = field.string()?.unwrap_or(idler),
            Columns::READY => ready = field.string()?,
            _ => {}
        }
    }
    if let Some(ready) = ready {
        handlers.extend(ready.split(',').map(str::trim));
        episode.ready = Some(&handlers);
    }
    let Some(end_ns) = episode.start_ns.checked_add(episode.idle_ns) else {
        let text = episode.idle_ns.to_string();
        return Err(place.field("idle_ns", text.as_bytes(), "ends the episode after 2^64 - 1 ns"));
    };
    let write = |error| place.write_error(error);
    let idler = writer.idler(episode.idler).map_err(write)?;
    writer.push_numbered(idler, &episode).map_err(write)?;
    span.add(episode.start_ns, end_ns);
    overlaps.check((idler, episode.idler), (episode.start_ns, episode.idle_ns), 0, Some(place.line));
    Ok(())
}

impl Place {
    fn field(&self, column: &str, text: &[u8], what: impl Display) -> ImportError {
        let text = excerpt(text);
        ImportError::Refused(format!("{self}, column `{column}`: `{text}` {what}"))
    }

    fn write_error(&self, error: WriteError) -> ImportError {
        match error {
            WriteError::OutOfOrder { idler, start_ns, previous_ns, .. } => self.field(
                "start_ns",
                start_ns.to_string().as_bytes(),
                format!("is before {previous_ns}, the start of the episode of idler `{idler}` before it; sort the table"),
            ),
            WriteError::HandlerName { handler, .. } => {
                self.field("ready", handler.as_bytes(), "is no name of a handler")
            }
            source => self.not_written(source),
        }
    }
}

/// The columns of a table; `None`: an index without a name.
struct Header {
    columns: Vec<Option<&'static Column>>,
    separator: u8,
}

/// Lines that may precede the names of the columns.
const BANNER: usize = 16;

impl Header {
    fn read(input: &mut Input<'_>) -> Result<Header, ImportError> {
        let mut place = input.place();
        // The first line, if none names the columns.
        let mut first: Option<(Place, Vec<u8>)> = None;
        for _ in 0..BANNER {
            place.line = input.line() + 1;
            let Some(line) = input.next_line()? else { break };
            if line.is_empty() {
                continue;
            }
            for separator in [b',', b';', b'\t'] {
                let mut fields = Fields::with(separator);
                if fields.split(line, &place).is_ok() && fields.are_names() {
                    return Header::of(&fields, &place);
                }
            }
            first.get_or_insert_with(|| (place.clone(), line.to_vec()));
        }
        let Some((place, text)) = first else {
            return Err(ImportError::Refused(format!(
                "{}: the file is empty; the first line must name the columns, such as `start_ns,idle_ns`",
                place.name
            )));
        };
        let mut fields = Fields::with(b',');
        fields.split(&text, &place)?;
        Header::of(&fields, &place)
    }

    fn of(fields: &Fields, place: &Place) -> Result<Header, ImportError> {
        let mut columns = Vec::new();
        for (index, text) in fields.record.iter().enumerate() {
            if index == 0 && fields.record.len() > 1 && (text.is_empty() || text == b"Unnamed: 0") {
                columns.push(None);
                continue;
            }
            let refused = |what: String| Err(ImportError::Refused(format!("{place}: {what}")));
            let name = excerpt(text);
            let Some(column) = COLUMNS.iter().find(|column| column.name.as_bytes() == text) else {
                return refused(format!("unknown column `{name}`; known: {}", known_columns()));
            };
            if has(&columns, column.set) {
                return refused(format!("column `{name}` is there twice"));
            }
            columns.push(Some(column));
        }
        let required = |column: &&Column| [Columns::START_NS, Columns::IDLE_NS].contains(&column.set);
        match COLUMNS.iter().filter(required).find(|column| !has(&columns, column.set)) {
            Some(Column { name, .. }) => Err(ImportError::Refused(format!(
                "{place}: no column `{name}`; `start_ns` and `idle_ns` must be there"
            ))),
            None => Ok(Header { columns, separator: fields.separator }),
        }
    }
}

fn has(columns: &[Option<&Column>], set: Columns) -> bool {
    columns.iter().flatten().any(|column| column.set == set)
}

/// The fields of one line, without quotes and the blanks around them.
struct Fields {
    separator: u8,
    record: ByteRecord,
    /// As they are in a line with quotes.
    quoted: ByteRecord,
}

impl Fields {
    fn with(separator: u8) -> Fields {
        Fields { separator, record: ByteRecord::new(), quoted: ByteRecord::new() }
    }

    /// Whether they name the columns that every table has.
    fn are_names(&self) -> bool {
        ["start_ns", "idle_ns"].iter().all(|name| self.record.iter().any(|field| field == name.as_bytes()))
    }

    fn split(&mut self, line: &[u8], place: &Place) -> Result<(), ImportError> {
        let Fields { separator, record, quoted } = self;
        record.clear();
        if !line.contains(&b'"') {
            line.split(|byte| byte == separator).for_each(|field| record.push_field(field.trim_ascii()));
            return Ok(());
        }
        let unclosed =
            || ImportError::Refused(format!("{place}: a quoted field does not end: `{}`", excerpt(line)));
        // Every quote opens, closes, or is doubled: an odd number leaves one open.
        if !line.iter().filter(|&&byte| byte == b'"').count().is_multiple_of(2) {
            return Err(unclosed());
        }
        let mut reader = ::csv::ReaderBuilder::new()
            .delimiter(*separator)
            .has_headers(false)
            .flexible(true)
            .from_reader(line);
        let read = reader.read_byte_record(quoted);
        quoted.iter().for_each(|field| record.push_field(field.trim_ascii()));
        if read.is_ok_and(|any| any) { Ok(()) } else { Err(unclosed()) }
    }
}

/// One field, and where it is.
struct Field<'a> {
    column: &'static str,
    text: &'a [u8],
    place: &'a Place,
}

impl<'a> Field<'a> {
    fn error(&self, what: impl Display) -> ImportError {
        self.place.field(self.column, self.text, what)
    }

    fn required(&self) -> Result<u64, ImportError> {
        self.number()?.ok_or_else(|| self.error("is empty; every episode has a start and a length"))
    }

    fn number(&self) -> Result<Option<u64>, ImportError> {
        if self.text.is_empty() || self.text.eq_ignore_ascii_case(b"nan") {
            return Ok(None);
        }
        // pandas writes a column that has a gap as floating-point numbers. `1.000` may be a thousand.
        let whole = self.text.strip_suffix(b".0").filter(|whole| !whole.is_empty()).unwrap_or(self.text);
        if !whole.iter().all(u8::is_ascii_digit) {
            return Err(self.error("is not a whole number of nanoseconds, in digits"));
        }
        let add = |number: u64, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
        let number = whole.iter().copied().try_fold(0, add);
        number.map(Some).ok_or_else(|| self.error("is more than 2^64 - 1"))
    }

    fn flag(&self) -> Result<Option<bool>, ImportError> {
        match self.text.to_ascii_lowercase().as_slice() {
            b"" | b"nan" => Ok(None),
            b"1" | b"1.0" | b"true" => Ok(Some(true)),
            b"0" | b"0.0" | b"false" => Ok(Some(false)),
            _ => Err(self.error("is neither `true` nor `false`")),
        }
    }

    fn wake(&self) -> Result<Option<WakeCause>, ImportError> {
        let Some(name) = self.string()? else { return Ok(None) };
        let known = || WakeCause::ALL.map(WakeCause::name).join(", ");
        WakeCause::from_name(name)
            .map(Some)
            .ok_or_else(|| self.error(format!("is no kind of wakeup event; known: {}", known())))
    }

    fn string(&self) -> Result<Option<&'a str>, ImportError> {
        let text = std::str::from_utf8(self.text).map_err(|_| self.error("is not UTF-8"))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}
