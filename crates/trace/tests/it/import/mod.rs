//! What importers make of good, odd and broken text.

mod csv;
mod field;
mod gzip;
mod perf_guest;
mod perf_host;
mod perf_text;
mod qemu;

use dwell_recording::{Chunk, Columns, Layer, Metadata, Packing, Reader, Writer};
use dwell_trace::import::{ImportSummary, Input};

type Out = Writer<Vec<u8>>;

/// What came out of an import.
struct Imported {
    reader: Reader,
    summary: ImportSummary,
}

impl Imported {
    /// Every episode as `idler start idle window halted wake latency ready`, `-` for null; in the order of the file.
    fn rows(&self) -> Vec<String> {
        let mut chunk = Chunk::default();
        let mut rows = Vec::new();
        for row_group in 0..self.reader.row_groups() {
            self.reader.read(row_group, Columns::ALL, &mut chunk).unwrap();
            for row in 0..chunk.rows {
                let idler = &self.reader.contents().idlers[chunk.idler[row] as usize];
                let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
                let names = |set: &[u32]| -> Vec<&str> {
                    set.iter().map(|&number| idler.handlers[number as usize].as_str()).collect()
                };
                rows.push(format!(
                    "{} {} {} {} {} {} {} {}",
                    idler.name,
                    chunk.start_ns[row],
                    chunk.idle_ns[row],
                    or_dash(chunk.window_ns[row].map(|ns| ns.to_string())),
                    or_dash(chunk.halted[row].map(|halted| halted.to_string())),
                    or_dash(chunk.wake[row].map(|wake| wake.name().to_owned())),
                    or_dash(chunk.wake_latency_ns[row].map(|ns| ns.to_string())),
                    or_dash(chunk.ready(row).map(|set| names(set).join("+"))),
                ));
            }
        }
        rows
    }
}

fn import<E>(
    text: &[u8],
    layer: Layer,
    with: impl FnOnce(Input<'_>, &mut Out) -> Result<ImportSummary, E>,
) -> Result<Imported, String>
where
    E: std::error::Error,
{
    let mut writer = Writer::new(Vec::new(), Metadata::new(layer), Packing::default()).unwrap();
    let input = Input::new("t", text).map_err(|error| error.to_string())?;
    let summary = with(input, &mut writer).map_err(|error| error.to_string())?;
    let (contents, bytes) = writer.close().unwrap();
    assert_eq!(contents.episodes, summary.episodes);
    let reader = Reader::from_bytes("t", bytes).unwrap();
    Ok(Imported { reader, summary })
}
