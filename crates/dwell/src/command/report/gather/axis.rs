//! Recordings on one axis of time.

use super::{Recording, Role, TimeAxis};
use crate::model;
use dwell_policy::Layer;
use dwell_recording::{Contents, Metadata};
use dwell_replay::alignment::{self, Alignment};
use std::path::PathBuf;

/// Start and end of a recording by the time of day \[ns since 1970\], if it has them.
pub(super) fn wall_clock(metadata: &Metadata, contents: &Contents) -> Option<(i128, i128)> {
    let offset = i128::from(metadata.realtime_offset_ns()?);
    Some((i128::from(contents.first_start_ns?) + offset, i128::from(contents.last_end_ns?) + offset))
}

/// Where the recordings are of a guest and its host: aligns their clocks by their halts, if these determine
/// how, and shifts what the guest's says of the time of day.
pub(super) fn align(
    files: &[(Role, &PathBuf)],
    spans: &mut [Option<(i128, i128)>],
) -> anyhow::Result<Option<Alignment>> {
    let &[(_, first), (_, second)] = files else { return Ok(None) };
    let readers = [model::open(first)?, model::open(second)?];
    let of = |layer: Layer| readers.iter().position(|reader| reader.metadata().layer == layer);
    let (Some(guest), Some(host)) = (of(Layer::Guest), of(Layer::Host)) else { return Ok(None) };
    let alignment = alignment::align(&readers[guest], &readers[host])?;
    if let (Some(alignment), Some(span)) = (&alignment, &mut spans[guest]) {
        let later = i128::from(alignment.shift_ns()) - i128::from(alignment.shift_by_time_of_day_ns);
        *span = (span.0 + later, span.1 + later);
    }
    Ok(alignment)
}

/// Aligns recordings that overlap in time on one axis; all others start at zero.
pub(super) fn lay_on_axis(recordings: &mut [Recording], spans: &[Option<(i128, i128)>]) -> TimeAxis {
    let Some(starts) = starts_on_axis(spans) else { return TimeAxis::OwnStart };
    for (recording, start) in recordings.iter_mut().zip(starts) {
        recording.axis_start_ns = start;
    }
    TimeAxis::Common
}

/// Start of each after the first \[ns\]; `None` unless there are several and all overlap.
pub(super) fn starts_on_axis(spans: &[Option<(i128, i128)>]) -> Option<Vec<u64>> {
    let spans: Vec<(i128, i128)> = spans.iter().copied().collect::<Option<_>>()?;
    let first = spans.iter().map(|span| span.0).min()?;
    let last_start = spans.iter().map(|span| span.0).max()?;
    let first_end = spans.iter().map(|span| span.1).min()?;
    let common = spans.len() > 1 && last_start < first_end;
    common.then(|| spans.iter().map(|span| u64::try_from(span.0 - first).unwrap_or(0)).collect())
}
