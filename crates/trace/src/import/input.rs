//! Lines of a text that may be compressed.

use super::perf::{Line, has_time};
use super::qemu::is_event;
use super::{ImportError, excerpt};
use dwell_recording::{COMPRESSED, FOREIGN, UTF_16, WriteError, regular};
use flate2::bufread::MultiGzDecoder;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

/// A line may have this many bytes. None of the formats comes near; what does is not text, and would fill the memory.
const LONGEST_LINE: u64 = 1 << 20;
/// As many bytes as decide of compressed data, and of what it is that was compressed.
const MAGIC: usize = 10;
const START: usize = 4096;
const BOM: &[u8] = b"\xef\xbb\xbf";

/// A line of a text; errors begin with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What errors call the text.
    pub name: String,
    /// From 1.
    pub line: u64,
}

impl Place {
    /// The error of a line that names this event and is not one.
    pub(super) fn unparsable(&self, event: &dyn fmt::Display, line: &str) -> ImportError {
        let text = excerpt(line.trim().as_bytes());
        let how = remedy(event, line).unwrap_or(
            "if lines were wrapped or cut off, make the text anew; else --skip-unparsable counts such lines",
        );
        ImportError::Refused(format!("{self} names `{event}` but cannot be parsed: `{text}`; {how}"))
    }

    /// The error of an episode that ends here and could not be written.
    pub fn not_written(&self, source: WriteError) -> ImportError {
        let Place { name, line } = self;
        ImportError::Write {
            what: format!("{name}: cannot write the episode that ends in line {line}"),
            source,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {}", self.name, self.line)
    }
}

/// Text of bytes that may be no UTF-8: the name of a task can be anything. Without the colours of a terminal, and with
/// plain spaces in place of the no-break spaces of web pages.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    let mut text = String::from_utf8_lossy(bytes);
    if text.contains(NO_BREAK) {
        text = Cow::Owned(text.replace(NO_BREAK, " "));
    }
    if !text.contains(COLOUR) {
        return text;
    }
    let mut parts = text.split(COLOUR);
    let first = parts.next().unwrap_or_default().to_owned();
    // `ESC [ 01;31 m`
    let shown = |part| {
        let mut rest = str::trim_start_matches(part, |c: char| c.is_ascii_digit() || c == ';').chars();
        rest.next();
        rest.as_str()
    };
    Cow::Owned(parts.fold(first, |line, part| line + shown(part)))
}

const NO_BREAK: char = '\u{a0}';
/// What begins a colour.
const COLOUR: &str = "\x1b[";

/// What to do about a line of this event that cannot be parsed, where its form shows it.
pub(crate) fn remedy(event: &dyn fmt::Display, line: &str) -> Option<&'static str> {
    if line.contains(" exit_reason=") {
        return Some(
            "it has the number of the exit and not its name; make the text without `trace-cmd report -R`, on a machine that \
             has trace-cmd's or perf's plugin for KVM",
        );
    }
    let (before, of_qemu) = line.split_at(line.find(&format!("{event} ctx")).unwrap_or(0));
    if !before.is_empty() && is_event(of_qemu) {
        return Some(
            "what is before the event is no time that QEMU or the syslog writes: remove it, and for lengths that are no lower bounds \
             start QEMU with `-msg timestamp=on`",
        );
    }
    let (_, text) = line.split_once(&format!("{event}:"))?;
    // The address of `-F +ip`.
    let is_address = |word: &str| word.len() > 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    if text.split_whitespace().next().is_none_or(is_address) {
        return Some("it has no fields of the event; use `perf script -F +trace`");
    }
    (has_time(line) && !matches!(Line::parse(line), Line::Event(_))).then_some(
        "it has no thread before its time; use `perf script -F +comm,+tid`, or make the text anew if lines were wrapped; else \
         --skip-unparsable counts such lines",
    )
}

/// Why the text could not be read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The system would not open it.
    #[error("cannot open {name}")]
    Open { name: String, source: io::Error },
    /// Reading or decompressing failed.
    #[error("{name}: cannot read past line {line}{hint}")]
    Read {
        name: String,
        /// The last complete line, from 1; 0 if there is none.
        line: u64,
        /// What may be the reason, with a semicolon in front; empty if there is nothing to say.
        hint: String,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// A file of a tool that can print it.
    #[error("{name}: is {}; make a text with `{} > FILE.txt`", kind.words(), shell(&kind.command(name)))]
    Binary { name: String, kind: Binary },
    /// The same, compressed or on stdin, where that tool does not read it.
    #[error("{name}: is {}, compressed or on stdin, which no other program converts; save it as a plain file and give --convert", kind.words())]
    NoFile { name: String, kind: Binary },
    /// A text of another encoding.
    #[error(
        "{0}: is UTF-16, as some shells of Windows write it; make it UTF-8 with `iconv -f UTF-16 -t UTF-8`"
    )]
    Utf16(String),
    /// A text of one line, by the ends of the others.
    #[error("{0}: its lines end with CR alone; make them end with LF by `tr '\\r' '\\n' < FILE`")]
    CarriageReturns(String),
    /// It is longer than any text of its kind.
    #[error("{name} has more than {longest} bytes: this is not the text it should be")]
    TooLong { name: String, longest: u64 },
    /// No text has such lines.
    #[error("{0} has more than {LONGEST_LINE} bytes: this is not the text it should be")]
    LineTooLong(Place),
}

/// A file of events that is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// Of `perf record`.
    Perf,
    /// The same, with what interrupts a running guest, which perf leaves out unless it is asked for it (perf 6.0).
    PerfOfGuests,
    /// Of `trace-cmd record`.
    TraceCmd,
    /// Of Perfetto (Android, ChromeOS).
    Perfetto,
}

impl Binary {
    /// By the first bytes of a file.
    pub fn of(start: &[u8]) -> Option<Binary> {
        // A trace of Perfetto has no magic number: it begins with the key of a packet.
        let is_text = |byte: &u8| *byte >= b' ' || byte.is_ascii_whitespace();
        let is_packet = start.first() == Some(&0x0a) && !start.iter().all(is_text);
        let [perf, reversed, trace_cmd] = FOREIGN.map(|(magic, _)| start.starts_with(magic));
        [(perf || reversed, Binary::Perf), (trace_cmd, Binary::TraceCmd), (is_packet, Binary::Perfetto)]
            .into_iter()
            .find_map(|(is, kind)| is.then_some(kind))
    }

    /// What it is, in a sentence.
    pub const fn words(self) -> &'static str {
        let [(_, perf), _, (_, trace_cmd)] = FOREIGN;
        match self {
            Binary::Perf | Binary::PerfOfGuests => perf,
            Binary::TraceCmd => trace_cmd,
            Binary::Perfetto => "a trace of Perfetto",
        }
    }

    /// The command that prints it as this program reads it.
    pub fn command(self, name: &str) -> Vec<&str> {
        match self {
            Binary::Perf => {
                vec!["perf", "script", "--ns", "--header", "--show-task-events", "-F", "+pid", "-i", name]
            }
            Binary::PerfOfGuests => {
                let mut command = Binary::Perf.command(name);
                command.insert(2, "--guest-code");
                command
            }
            Binary::TraceCmd => vec!["trace-cmd", "report", "-t", "-i", name],
            Binary::Perfetto => vec!["traceconv", "systrace", name],
        }
    }
}

/// What errors call a text that is read from stdin.
pub const STDIN: &str = "stdin";

/// A command as a shell reads it.
fn shell(words: &[&str]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word for a shell.
pub fn quoted(word: &str) -> String {
    match word.chars().all(|c| c.is_alphanumeric() || "/._-+:=,@".contains(c)) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Text to import, plain or compressed with gzip (also of several members), xz or zstd.
pub struct Input<'a> {
    name: String,
    text: Box<dyn BufRead + 'a>,
    /// What may be the reason why it cannot be read, as errors have it.
    hint: String,
    line: u64,
    buffer: Vec<u8>,
}

impl Input<'static> {
    /// The text in the regular file at `path`.
    pub fn open(path: &Path) -> Result<Input<'static>, InputError> {
        let name = path.display().to_string();
        match regular::open(path) {
            Ok(file) => Input::new(&name, file),
            Err(source) => Err(InputError::Open { name, source }),
        }
    }
}

impl<'a> Input<'a> {
    /// The text that `source` yields; errors call it by `name`.
    pub fn new(name: &str, source: impl Read + 'a) -> Result<Input<'a>, InputError> {
        let failed =
            |source| InputError::Read { name: name.to_owned(), line: 0, hint: String::new(), source };
        let (start, raw) = peek::<MAGIC>(BufReader::with_capacity(1 << 16, source)).map_err(failed)?;
        let buffered = |reader: Box<dyn Read + 'a>| Box::new(BufReader::with_capacity(1 << 16, reader));
        let [gzip, xz, zstd] = COMPRESSED.map(|magic| start.starts_with(magic));
        let (text, program): (Box<dyn BufRead + 'a>, _) = if gzip {
            (buffered(Box::new(MultiGzDecoder::new(raw))), Some("gzip"))
        } else if xz {
            (buffered(Box::new(lzma_rust2::XzReader::new(raw, true))), Some("xz"))
        } else if zstd {
            (buffered(Box::new(zstd::Decoder::with_buffer(raw).map_err(failed)?)), Some("zstd"))
        } else {
            (Box::new(raw), None)
        };
        let hint = program.map_or_else(String::new, |program| {
            format!(
                "; the {program} data is cut off or damaged (`{program} -dc FILE | dwell import -` reads what is there)"
            )
        });
        let mut input = Input { name: name.to_owned(), text, hint, line: 0, buffer: Vec::new() };
        let (start, text) = peek::<START>(std::mem::replace(&mut input.text, Box::new(io::empty())))
            .map_err(|source| input.failed(source))?;
        input.text = Box::new(text);
        if let Some(kind) = Binary::of(&start) {
            let (name, is_file) = (name.to_owned(), !(gzip || xz || zstd || name == STDIN));
            return Err(match is_file {
                true => InputError::Binary { name, kind },
                false => InputError::NoFile { name, kind },
            });
        }
        if UTF_16.iter().any(|mark| start.starts_with(mark)) {
            return Err(InputError::Utf16(name.to_owned()));
        }
        let has = |byte: u8| start.contains(&byte);
        if has(b'\r') && !has(b'\n') && !has(0) {
            return Err(InputError::CarriageReturns(name.to_owned()));
        }
        if start.starts_with(BOM) {
            input.text.consume(BOM.len());
        }
        Ok(input)
    }

    /// The whole text, of at most `longest` bytes; what is no UTF-8 in it is replaced.
    ///
    /// # Errors
    /// If it cannot be read or is longer.
    pub fn whole(mut self, longest: u64) -> Result<String, InputError> {
        let text = self.look_ahead(longest.saturating_add(1))?;
        if text.len() as u64 > longest {
            return Err(InputError::TooLong { name: self.name, longest });
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// What errors call the text.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of the last line read, from 1; 0 before the first.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// The last line read.
    pub(crate) fn place(&self) -> Place {
        Place { name: self.name.clone(), line: self.line }
    }

    /// The next line without its end, be that LF or CRLF; `None` after the last.
    pub(crate) fn next_line(&mut self) -> Result<Option<&[u8]>, InputError> {
        Ok(self.next_line_or_part()?.map(|(line, _)| line))
    }

    /// The same, and whether the line has no end: the text may have been cut off in it.
    pub(crate) fn next_line_or_part(&mut self) -> Result<Option<(&[u8], bool)>, InputError> {
        self.buffer.clear();
        let result = (&mut self.text).take(LONGEST_LINE + 1).read_until(b'\n', &mut self.buffer);
        match result {
            Err(source) => return Err(self.failed(source)),
            Ok(0) => return Ok(None),
            Ok(_) => self.line += 1,
        }
        if self.buffer.len() as u64 > LONGEST_LINE {
            return Err(InputError::LineTooLong(self.place()));
        }
        let ended = self.buffer.strip_suffix(b"\n");
        let line = ended.unwrap_or(&self.buffer);
        Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), ended.is_none())))
    }

    /// The first `bytes` of what was not read yet, or fewer if the text is shorter. They are read again as lines.
    pub(crate) fn look_ahead(&mut self, bytes: u64) -> Result<Vec<u8>, InputError> {
        let mut start = Vec::new();
        if let Err(source) = (&mut self.text).take(bytes).read_to_end(&mut start) {
            self.line += start.split_inclusive(|&byte| byte == b'\n').count() as u64;
            return Err(self.failed(source));
        }
        let rest = std::mem::replace(&mut self.text, Box::new(io::empty()));
        self.text = Box::new(Cursor::new(start.clone()).chain(rest));
        Ok(start)
    }

    fn failed(&self, source: io::Error) -> InputError {
        // As zstd's library says it.
        let hint = match source.to_string().contains("requires too much memory") {
            true => "; its zstd data refers back by more than 128 MiB (`zstd --long=28` to 31): `zstd -dc --long=31 FILE | \
                     dwell import -` reads it"
                .to_owned(),
            false => self.hint.clone(),
        };
        InputError::Read { name: self.name.clone(), line: self.line, hint, source }
    }
}

type Peeked<R> = io::Chain<Cursor<Vec<u8>>, R>;

/// The first `N` bytes, or fewer if there are no more, and a reader that yields them again.
fn peek<const N: usize>(mut reader: impl BufRead) -> io::Result<(Vec<u8>, Peeked<impl BufRead>)> {
    let mut start = Vec::with_capacity(N);
    reader.by_ref().take(N as u64).read_to_end(&mut start)?;
    Ok((start.clone(), Cursor::new(start).chain(reader)))
}
