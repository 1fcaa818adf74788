//! Tables from Python: recordings as files in memory, episodes, and costs.

use crate::episodes::{METADATA, column, needed};
use crate::{refused, wrong};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchReader};
use arrow_schema::DataType;
use dwell_fleet::alike::FirstLengths;
use dwell_fleet::{Costs, Input, Question, Row, vm_of};
use dwell_recording::{Episode, Layer, Metadata, Packing, Writer};
use pyo3::PyResult;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Names of the columns with the path and the bytes of a file: as of Ray and Spark, and of DuckDB.
const PATH: [&str; 2] = ["path", "filename"];
const BYTES: [&str; 2] = ["bytes", "content"];

/// What was given to `costs`.
pub(crate) enum Recordings {
    /// Whole files: batches with their paths and bytes.
    Files(Vec<(ArrayRef, ArrayRef)>),
    /// Recordings in memory by their names.
    Episodes(Vec<(String, Vec<u8>)>),
}

/// Files or episodes of a table.
pub(crate) fn recordings(batches: impl RecordBatchReader, layer: Layer) -> PyResult<Recordings> {
    let schema = batches.schema();
    if BYTES.iter().any(|name| schema.index_of(name).is_ok()) {
        let mut files = vec![];
        for batch in batches {
            let batch = batch.map_err(wrong)?;
            let paths = needed(&batch, &PATH, &DataType::Utf8)?;
            files.push((paths, needed(&batch, &BYTES, &DataType::LargeBinary)?));
        }
        return Ok(Recordings::Files(files));
    }
    if layer == Layer::Iothread {
        return Err(refused(
            "cannot replay episodes of I/O threads from a table, which has no handlers: give the files, with columns \
             `path` and `bytes`",
        ));
    }
    let metadata = match schema.metadata().get(METADATA) {
        Some(text) => serde_json::from_str(text).map_err(wrong)?,
        None => Metadata::new(layer),
    };
    let mut found: BTreeMap<String, Episodes> = BTreeMap::new();
    for batch in batches {
        add_episodes(&batch.map_err(wrong)?, &metadata, &mut found)?;
    }
    let written =
        found.into_iter().map(|(name, episodes)| Ok((name, episodes.writer.close().map_err(wrong)?.1)));
    Ok(Recordings::Episodes(written.collect::<PyResult<_>>()?))
}

impl Recordings {
    /// The costs of all, on all cores, in their order; of those that have not begun none once `stop` is set.
    pub(crate) fn rows(self, question: &Question, stop: &AtomicBool) -> Vec<Row> {
        let row = |name: &str, bytes: &[u8]| {
            let opened = (!stop.load(Ordering::Relaxed)).then(|| Input::from_bytes(name, bytes))?;
            Some(Row::new(name.to_owned(), name, question, opened))
        };
        match self {
            Recordings::Files(files) => {
                let of_batch = |(paths, bytes): &(ArrayRef, ArrayRef)| -> Vec<Row> {
                    let (paths, bytes) = (paths.as_string::<i32>(), bytes.as_binary::<i64>());
                    let files = (0..paths.len()).into_par_iter();
                    files.filter_map(|at| row(paths.value(at), bytes.value(at))).collect()
                };
                files.iter().flat_map(of_batch).collect()
            }
            Recordings::Episodes(all) => {
                all.par_iter().filter_map(|(name, bytes)| row(name, bytes)).collect()
            }
        }
    }
}

/// A recording in the making.
struct Episodes {
    writer: Writer<Vec<u8>>,
    /// Of each idler the end of its last episode \[ns\], where the table has no starts.
    ends_ns: BTreeMap<String, u64>,
}

/// The name of the one recording of a table without names.
const ALONE: &str = "recording";

fn add_episodes(
    batch: &RecordBatch,
    metadata: &Metadata,
    found: &mut BTreeMap<String, Episodes>,
) -> PyResult<()> {
    let optional = |names: &[&str], kind: &DataType| column(batch, names, kind);
    let number = |array: &Option<ArrayRef>, at: usize| {
        array
            .as_ref()
            .filter(|array| array.is_valid(at))
            .map(|array| array.as_primitive::<UInt64Type>().value(at))
    };
    let (names, idlers) =
        (optional(&["recording", "vm"], &DataType::Utf8)?, optional(&["idler"], &DataType::Utf8)?);
    let text = |array: &Option<ArrayRef>, at: usize, otherwise: &'static str| match array {
        Some(array) => array.as_string::<i32>().value(at).to_owned(),
        None => otherwise.to_owned(),
    };
    let idle = needed(batch, &["idle_ns"], &DataType::UInt64)?;
    let starts = optional(&["start_ns"], &DataType::UInt64)?;
    let windows = optional(&["window_ns"], &DataType::UInt64)?;
    let halted = optional(&["halted"], &DataType::Boolean)?;
    let latencies = optional(&["wake_latency_ns"], &DataType::UInt64)?;
    let alone = optional(&["alone_ns"], &DataType::UInt64)?;
    // Of the other columns null is what is not known.
    all_known("idle_ns", Some(&idle))?;
    all_known("recording", names.as_ref())?;
    all_known("idler", idlers.as_ref())?;
    all_known("start_ns", starts.as_ref())?;
    for at in 0..batch.num_rows() {
        let idle_ns = idle.as_primitive::<UInt64Type>().value(at);
        let name = text(&names, at, ALONE);
        if !found.contains_key(&name) {
            let packing = Packing { zstd_level: 1, ..Packing::default() };
            let writer = Writer::new(vec![], metadata.clone(), packing).map_err(wrong)?;
            found.insert(name.clone(), Episodes { writer, ends_ns: BTreeMap::new() });
        }
        let Some(recording) = found.get_mut(&name) else { continue };
        let idler = text(&idlers, at, "idler");
        let end_ns = recording.ends_ns.entry(idler.clone()).or_default();
        let start_ns = number(&starts, at).unwrap_or(*end_ns);
        *end_ns = start_ns.saturating_add(idle_ns);
        let known = halted.as_ref().filter(|array| array.is_valid(at));
        let episode = Episode {
            window_ns: number(&windows, at),
            halted: known.map(|array| array.as_boolean().value(at)),
            wake_latency_ns: number(&latencies, at),
            alone_ns: number(&alone, at),
            ..Episode::new(idler.as_str(), start_ns, idle_ns)
        };
        recording.writer.push(&episode).map_err(wrong)?;
    }
    Ok(())
}

fn all_known(name: &str, array: Option<&ArrayRef>) -> PyResult<()> {
    let null = array.and_then(|array| (0..array.len()).find(|&at| array.is_null(at)));
    null.map_or(Ok(()), |at| Err(refused(format!("`{name}` of row {at} is null"))))
}

/// Each idle time of a table.
pub(crate) fn idle_times(batches: impl RecordBatchReader, see: &mut dyn FnMut(u64)) -> PyResult<()> {
    for batch in batches {
        let idle = needed(&batch.map_err(wrong)?, &["idle_ns"], &DataType::UInt64)?;
        all_known("idle_ns", Some(&idle))?;
        idle.as_primitive::<UInt64Type>().values().iter().copied().for_each(&mut *see);
    }
    Ok(())
}

/// Rows of a table of costs.
pub(crate) fn costs(batches: impl RecordBatchReader) -> PyResult<Vec<Row>> {
    let mut rows = vec![];
    for batch in batches {
        let batch = batch.map_err(wrong)?;
        let text = |name: &str| needed(&batch, &[name], &DataType::Utf8);
        let number = |name: &str| needed(&batch, &[name], &DataType::Int64);
        let [recordings, layers, classes, errors, today] =
            [text("recording")?, text("layer")?, text("class")?, text("error")?, text("today")?];
        let [episodes, idlers, span, optimum, today_ns] = [
            number("episodes")?,
            number("idlers")?,
            number("span_ns")?,
            number("optimum_ns")?,
            number("today_ns")?,
        ];
        let list =
            DataType::List(std::sync::Arc::new(arrow_schema::Field::new("element", DataType::Int64, true)));
        let costs = needed(&batch, &["cost_ns"], &list)?;
        // Tables of older versions do not have it.
        let first = column(&batch, &["first_lengths"], &list)?;
        let words = |array: &ArrayRef, at: usize| {
            array.is_valid(at).then(|| array.as_string::<i32>().value(at).to_owned())
        };
        for at in 0..batch.num_rows() {
            let recording = words(&recordings, at).ok_or_else(|| refused("`recording` is null"))?;
            let unsigned = |array: &ArrayRef| {
                let known = array.is_valid(at).then(|| array.as_primitive::<Int64Type>().value(at));
                let number = known.and_then(|number| u64::try_from(number).ok());
                number
                    .ok_or_else(|| refused(format!("{recording}: a number of its costs is null or negative")))
            };
            let of_row = || -> PyResult<Costs> {
                let list = costs.as_list::<i32>().value(at);
                let list = list.as_primitive::<Int64Type>();
                let each = list.iter().map(|cost| cost.and_then(|cost| u64::try_from(cost).ok()));
                let cost_ns: Option<Vec<u64>> = each.collect();
                let layer = words(&layers, at).and_then(|name| Layer::from_name(&name));
                let first = first.as_ref().filter(|first| first.is_valid(at)).and_then(|first| {
                    let list = first.as_list::<i32>().value(at);
                    let each = list.as_primitive::<Int64Type>().iter();
                    let numbers: Option<Vec<u64>> =
                        each.map(|number| number.and_then(|number| u64::try_from(number).ok())).collect();
                    numbers?.try_into().ok().map(FirstLengths)
                });
                Ok(Costs {
                    // The table has no columns of these, and the choice of settings does not look at them.
                    latency_known: true,
                    of_sketch: false,
                    today_changed: false,
                    ended_unix_ns: None,
                    first,
                    layer: layer.ok_or_else(|| refused(format!("{recording}: its layer is not known")))?,
                    class: words(&classes, at),
                    episodes: unsigned(&episodes)?,
                    idlers: unsigned(&idlers)?,
                    span_ns: unsigned(&span)?,
                    optimum_ns: unsigned(&optimum)?,
                    today_ns: unsigned(&today_ns)?,
                    today: words(&today, at).map(|text| text.parse()).transpose().map_err(wrong)?,
                    cost_ns: cost_ns
                        .ok_or_else(|| refused(format!("{recording}: a cost is null or negative")))?,
                })
            };
            let costs = match words(&errors, at) {
                Some(error) => Err(error),
                None => Ok(of_row()?),
            };
            rows.push(Row { vm: vm_of(&recording), recording, costs });
        }
    }
    Ok(rows)
}
