//! Where episodes come from: in batches of bounded size, grouped by idler.

use crate::idle_loop::IdleLoop;
use crate::latency::{self, Latencies};
use crate::number::{duration, number_of};
use crate::priced::Sample;
use dwell_policy::Nanos;
use dwell_recording::{Chunk, Columns, Ends, IdleIncludes, Layer, ReadError, Reader, TimeRecorded};
use std::ops::Range;
use std::sync::{Arc, OnceLock, mpsc};

/// Episodes of several idlers, those of each in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    runs: Vec<Run>,
    idle_loop: IdleLoop,
}

/// The number of no handler: where none became ready, none of those that there are learns from the episode.
const NO_HANDLER: u32 = u32::MAX;

/// Consecutive episodes of one idler.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Which idler, from 0.
    pub idler: usize,
    /// When its episodes began \[ns, the recording's clock\].
    pub start_ns: Vec<u64>,
    /// Their lengths \[ns\].
    pub idle_ns: Vec<u64>,
    /// For each episode how long a poll may last \[ns\]; empty if all may last to the end of their episodes. See
    /// [`Run::alone_ns`].
    alone_ns: Vec<u64>,
    idle_loop: IdleLoop,
    /// For each episode how much later the idler runs if it halts \[ns\]; empty if that is not known of any. See
    /// [`Run::latency_ns`].
    latency_ns: Vec<u64>,
    /// Handlers that became ready, one list after the other; see [`Run::ready`].
    ready: Vec<u32>,
    /// For each episode where its handlers end in `ready`; empty if no handlers are known of any episode.
    ready_ends: Vec<usize>,
}

impl Run {
    /// For each episode the time \[ns\] after which another task is runnable on the idler's core: the kernel
    /// ends a poll of KVM's then. As long as the episode or longer where none comes, and where that is not
    /// known. `None` if that is so of all episodes: then the column need not be looked at.
    #[inline]
    pub fn alone_ns(&self) -> Option<&[u64]> {
        (!self.alone_ns.is_empty()).then_some(self.alone_ns.as_slice())
    }

    /// For each episode the wakeup latency \[ns\]: how much later than the wakeup event the idler runs if it halts.
    /// That is what the rule of a kernel then learns from, see [`Player`](crate::Player). `None` where none is
    /// known.
    #[inline]
    pub fn latency_ns(&self) -> Option<&[u64]> {
        (!self.latency_ns.is_empty()).then_some(self.latency_ns.as_slice())
    }

    /// How long steps of the guest's idle loop take.
    #[inline]
    pub const fn idle_loop(&self) -> IdleLoop {
        self.idle_loop
    }

    /// The lengths of the episodes, each with the longest that a poll in it may last \[ns\].
    pub(crate) fn idle_and_alone(&self) -> impl Iterator<Item = (u64, u64)> {
        let alone = |episode: usize| self.alone_ns.get(episode).copied().unwrap_or(u64::MAX);
        self.idle_ns.iter().enumerate().map(move |(episode, &idle)| (idle, alone(episode)))
    }

    /// Appends an episode after which another task wanted the core `alone_ns` after the start, if that is known,
    /// and after a halt in which the idler runs `latency_ns` late, if that is known.
    fn push(&mut self, start_ns: u64, idle_ns: u64, latency_ns: Option<u64>, alone_ns: Option<u64>) {
        let alone_ns = alone_ns.filter(|&alone| alone < idle_ns);
        let append = |column: &mut Vec<u64>, value: Option<u64>, unknown: u64| {
            if value.is_some() || !column.is_empty() {
                column.resize(self.idle_ns.len(), unknown);
                column.push(value.unwrap_or(unknown));
            }
        };
        append(&mut self.alone_ns, alone_ns, u64::MAX);
        append(&mut self.latency_ns, latency_ns, 0);
        self.start_ns.push(start_ns);
        self.idle_ns.push(idle_ns);
    }

    /// The handlers that became ready at the end of an episode; empty where that is not known, and `u32::MAX`, which
    /// none has, where none did.
    #[inline]
    pub fn ready(&self, episode: usize) -> &[u32] {
        let Some(&end) = self.ready_ends.get(episode) else { return &[] };
        let start = if episode == 0 { 0 } else { self.ready_ends[episode - 1] };
        &self.ready[start..end]
    }
}

impl Batch {
    /// The runs that hold episodes, at most one per idler.
    pub fn runs(&self) -> impl Iterator<Item = &Run> + Clone {
        self.runs.iter().filter(|run| !run.idle_ns.is_empty())
    }

    pub fn episodes(&self) -> usize {
        self.runs.iter().map(|run| run.idle_ns.len()).sum()
    }

    pub fn clear(&mut self) {
        for run in &mut self.runs {
            run.start_ns.clear();
            run.idle_ns.clear();
            run.alone_ns.clear();
            run.latency_ns.clear();
            run.ready.clear();
            run.ready_ends.clear();
        }
    }

    /// Appends an episode of an idler that was never busy, and where known the wakeup latency that a halt in it has, and
    /// the time after which another task wanted the core \[ns\].
    pub fn push_late(&mut self, idler: usize, idle_ns: u64, latency_ns: Option<u64>, alone_ns: Option<u64>) {
        let run = self.run(idler);
        let last = run.start_ns.last().zip(run.idle_ns.last());
        let start_ns = last.map_or(0, |(start, idle)| start.saturating_add(*idle));
        run.push(start_ns, idle_ns, latency_ns, alone_ns);
    }

    /// How long steps of the idle loop take in the guests whose episodes these are.
    pub fn set_idle_loop(&mut self, idle_loop: IdleLoop) {
        self.idle_loop = idle_loop;
        self.runs.iter_mut().for_each(|run| run.idle_loop = idle_loop);
    }

    fn run(&mut self, idler: usize) -> &mut Run {
        while self.runs.len() <= idler {
            let idle_loop = self.idle_loop;
            self.runs.push(Run { idler: self.runs.len(), idle_loop, ..Run::default() });
        }
        &mut self.runs[idler]
    }
}

/// From the first start of some episodes to the last end \[ns\], or the time recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    limits: Option<(u64, u64)>,
}

impl Span {
    /// Takes in an episode.
    pub fn add(&mut self, start_ns: u64, idle_ns: u64) {
        let end_ns = start_ns.saturating_add(idle_ns);
        let (first, last) = self.limits.unwrap_or((start_ns, end_ns));
        self.limits = Some((first.min(start_ns), last.max(end_ns)));
    }

    pub const fn of(recorded: TimeRecorded) -> Span {
        Span { limits: Some((recorded.start_ns, recorded.start_ns + recorded.ns())) }
    }

    /// Takes in the span of other episodes.
    pub fn extend(&mut self, other: Span) {
        if let Some((first, last)) = other.limits {
            self.add(first, last - first);
        }
    }

    /// The whole time of two parts, the first of which has ended by `to_ns` and the second begun from `from_ns` on: a few rows
    /// may be out of the order of time, and a long idle time is in both.
    fn parted(first: Span, second: Span, (from_ns, to_ns): (u64, u64)) -> [Span; 2] {
        let (Some((a, a_end)), Some((b, b_end))) = (first.limits, second.limits) else {
            return [first, second];
        };
        let (start_ns, end_ns) = (a.min(b), a_end.max(b_end));
        let limits = [(start_ns, a_end.min(to_ns).max(start_ns)), (b.max(from_ns).min(end_ns), end_ns)];
        limits.map(|limits| Span { limits: Some(limits) })
    }

    /// Its length \[ns\]; 0 where there was no episode.
    pub fn ns(&self) -> u64 {
        self.limits.map_or(0, |(first, last)| last - first)
    }
}

/// The episodes of an idler overlap so much that shares and rates have no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} cannot idle for {} in the {} of the recording: episodes of one idler overlap; `dwell info` counts them",
    number_of(*.idlers as u128, "idler"),
    duration(*.idle_ns as f64),
    duration(*.span_ns as f64)
)]
pub struct Overlapping {
    /// How many idlers there are.
    pub idlers: usize,
    /// How long all episodes are, or the longest that a number can be \[ns\].
    pub idle_ns: u64,
    /// How long the recording is \[ns\].
    pub span_ns: u64,
}

impl Overlapping {
    /// Refuses idle times that are together longer than is possible.
    ///
    /// # Errors
    /// [`Overlapping`].
    pub fn check(source: &dyn Source, idle_ns: u128, span: Span) -> Result<(), Overlapping> {
        let (idlers, span_ns) = (source.idlers(), span.ns());
        if idle_ns <= longest_idle_ns(span_ns, idlers as u64, source.resolution_ns(), source.episodes()) {
            return Ok(());
        }
        let idle_ns = u64::try_from(idle_ns).unwrap_or(u64::MAX);
        Err(Overlapping { idlers, idle_ns, span_ns })
    }
}

/// The longest that so many idlers can idle together in this time, where each length of an episode may be off by what
/// the times resolve \[ns\].
pub fn longest_idle_ns(span_ns: u64, idlers: u64, resolution_ns: u64, episodes: u64) -> u128 {
    u128::from(span_ns) * u128::from(idlers) + u128::from(resolution_ns) * u128::from(episodes)
}

/// The halves of a recording: the first to choose on, the second to judge on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    /// The first row of the second half.
    pub second: u64,
    /// The halves of the time recorded. `None`: it is not known; then the halves have equally many episodes,
    /// and each is as long as its episodes took.
    pub spans: Option<[Span; 2]>,
}

/// Episodes that can be read again and again, in part or in whole.
pub trait Source: Sync {
    /// Number of episodes; a row is an episode, in the order of the file.
    fn episodes(&self) -> u64;

    /// How many episodes of two parts are in the time of the other one; once all were visited in two parts.
    fn out_of_time(&self) -> u64 {
        0
    }

    fn idlers(&self) -> usize;

    /// What its times resolve \[ns\]; 0 where that is not known.
    fn resolution_ns(&self) -> u64 {
        0
    }

    /// The most handlers that any idler has; 0 where handlers are not known.
    fn handlers(&self) -> usize {
        0
    }

    /// From when to when it was recorded; `None` where that is not known.
    fn when_recorded(&self) -> Option<TimeRecorded>;

    /// The first row whose episode starts at this time or later \[ns, the recording's clock\]; the number of rows if
    /// there is none.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    fn first_row_from(&self, time_ns: u64) -> Result<u64, ReadError>;

    /// The time recorded; `None` where it is not known.
    fn time_recorded(&self) -> Option<Span> {
        self.when_recorded().map(Span::of)
    }

    /// The halves of the recording: of the time recorded where it is known.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    fn halves(&self) -> Result<Halves, ReadError> {
        let Some(recorded) = self.when_recorded() else {
            return Ok(Halves { second: self.episodes() / 2, spans: None });
        };
        let middle_ns = recorded.middle_ns();
        let halves = [
            TimeRecorded { end_ns: middle_ns, ..recorded },
            TimeRecorded { start_ns: middle_ns, ..recorded },
        ];
        Ok(Halves { second: self.first_row_from(middle_ns)?, spans: Some(halves.map(Span::of)) })
    }

    /// Hands over the episodes of `rows`, batch after batch, and returns when they took place.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    fn visit(&self, rows: Range<u64>, see: &mut dyn FnMut(&Batch)) -> Result<Span, ReadError> {
        let spans = self.visit_parts(&[rows.start, rows.end], &mut |_, batch| see(batch))?;
        Ok(spans[0])
    }

    /// Hands over episodes in parts, which `cuts` end: part number *i* is from row `cuts[i]` to row `cuts[i + 1]`, the
    /// first of the latter not included. All batches of a part, each with its number, come before those of the next.
    /// Returns when each part took place. Every row is read once.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    fn visit_parts(&self, cuts: &[u64], see: &mut dyn FnMut(usize, &Batch)) -> Result<Vec<Span>, ReadError>;
}

/// A Parquet recording, read row group by row group, so that memory does not grow with its length.
pub struct RecordingSource {
    reader: Arc<Reader>,
    with_handlers: bool,
    /// The wakeup latency of all halts, if it was given.
    given: Option<Nanos>,
    /// That of halts of which the recording has none.
    otherwise: Option<Nanos>,
    latencies: OnceLock<Latencies>,
    /// Counted by the first visit of all episodes.
    overlapping: OnceLock<u64>,
    /// Counted by the first visit in two parts.
    out_of_time: OnceLock<u64>,
    poll_pass: Nanos,
}

impl RecordingSource {
    /// The episodes of a recording, with its own wakeup latencies; ready handlers are read only with
    /// `with_handlers`.
    pub fn new(reader: impl Into<Arc<Reader>>, with_handlers: bool) -> RecordingSource {
        RecordingSource {
            reader: reader.into(),
            with_handlers,
            given: None,
            otherwise: None,
            latencies: OnceLock::new(),
            overlapping: OnceLock::new(),
            out_of_time: OnceLock::new(),
            poll_pass: Nanos::ZERO,
        }
    }

    /// The same, with the wakeup latency of all halts, if one is `given`, and else with that of the recording, or
    /// `otherwise` where it has none. [`latency`](mod@crate::latency) has what becomes of it.
    #[must_use]
    pub fn with_latency(mut self, given: Option<Nanos>, otherwise: Option<Nanos>) -> RecordingSource {
        (self.given, self.otherwise) = (given, otherwise);
        self
    }

    /// The same episodes with this wakeup latency of all halts: the other end to try where it is not known.
    #[must_use]
    pub fn at_latency(&self, latency: Nanos) -> RecordingSource {
        RecordingSource::new(Arc::clone(&self.reader), self.with_handlers)
            .with_latency(Some(latency), None)
            .with_poll_pass(self.poll_pass)
    }

    /// The longest wakeup latency to try where it is not known: [`latency::UPPER`], but no longer than 99 in 100 of the
    /// lengths that include it.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    pub fn upper_latency(&self) -> Result<Nanos, ReadError> {
        let lengths = self.late_lengths()?;
        let short = lengths.get(lengths.len() / 100).map_or(latency::UPPER, |&ns| Nanos(ns));
        Ok(short.min(latency::UPPER))
    }

    /// A sample of the lengths that include the wakeup latency \[ns\], sorted.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    pub fn late_lengths(&self) -> Result<Vec<u64>, ReadError> {
        let (mut chunk, mut lengths) = (Chunk::default(), Sample::new(1 << 12));
        for row_group in 0..self.reader.row_groups() {
            self.reader.read(row_group, Columns::IDLE_NS | Latencies::COLUMNS, &mut chunk)?;
            let late = (0..chunk.rows).filter(|&row| self.includes_latency(&chunk, row));
            late.for_each(|row| lengths.add(chunk.idle_ns[row]));
        }
        Ok(lengths.sorted())
    }

    /// Whether the wakeup latency of its halts is known: given, recorded, or measured elsewhere.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    pub fn knows_latency(&self) -> Result<bool, ReadError> {
        Ok(self.given.is_some() || self.otherwise.is_some() || self.latencies()?.any())
    }

    /// The same, for a host one pass of whose polling loop takes `pass`: KVM looks for other tasks at the end
    /// of a pass, so that a poll takes at least one. Of use where [`Run::alone_ns`] is known and short; zero
    /// is the ideal loop.
    #[must_use]
    pub fn with_poll_pass(mut self, pass: Nanos) -> RecordingSource {
        self.poll_pass = pass;
        self
    }

    fn idle_loop(&self) -> IdleLoop {
        let metadata = self.reader.metadata();
        let entry_ns = metadata.halt_entry_ns().filter(|_| metadata.layer == Layer::Guest);
        IdleLoop::new(Nanos(self.reader.poll_step_ns()), Nanos(entry_ns.unwrap_or(0)))
    }

    /// Whether the end of polls by other tasks is part of the episodes. KVM looks for other tasks while it
    /// polls. haltpoll in a guest cannot see those of the host, which take the vCPU's core while it polls on
    /// by the clock; an event loop does not look for any.
    fn with_alone(&self) -> bool {
        self.reader.metadata().layer == Layer::Host
    }

    /// The episodes as they were recorded, with the handlers of an event loop: what the rule in force learned from.
    /// Lengths that include the wakeup latency are left as they are.
    #[must_use]
    pub fn as_recorded(&self) -> RecordingSource {
        let metadata = self.reader.metadata();
        let with_handlers = metadata.layer == Layer::Iothread;
        let source = RecordingSource::new(Arc::clone(&self.reader), with_handlers);
        if metadata.idle_includes == IdleIncludes::Wake {
            source.with_latency(Some(Nanos::ZERO), None)
        } else {
            source.with_latency(self.given, self.otherwise)
        }
    }

    /// How many episodes start before the one before them of the same idler has ended. Once all episodes were visited
    /// nothing is read for it.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    pub fn overlapping(&self) -> Result<u64, ReadError> {
        if self.overlapping.get().is_none() {
            self.visit(0..u64::MAX, &mut |_| ())?;
        }
        Ok(self.overlapping.get().copied().unwrap_or(0))
    }

    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The latencies of the recording, read once.
    fn latencies(&self) -> Result<&Latencies, ReadError> {
        if self.latencies.get().is_none() {
            let found =
                if self.given.is_some() { Latencies::default() } else { Latencies::of(&self.reader)? };
            // Another thread may have been first, with the same.
            let _ = self.latencies.set(found);
        }
        Ok(self.latencies.get_or_init(Latencies::default))
    }

    /// Whether any halt has a latency; one of zero is none.
    fn is_late(&self, latencies: &Latencies) -> bool {
        match self.given {
            Some(given) => given > Nanos::ZERO,
            None => latencies.any() || self.otherwise.is_some_and(|otherwise| otherwise > Nanos::ZERO),
        }
    }

    fn columns(&self, late: bool) -> Columns {
        let mut columns = Columns::IDLER | Columns::START_NS | Columns::IDLE_NS;
        if self.handlers() > 0 {
            columns = columns | Columns::READY;
        }
        if late {
            columns = columns | Latencies::COLUMNS;
        }
        if self.with_alone() {
            columns = columns | Columns::ALONE_NS;
        }
        if self.idle_loop().halt_entry_ns() > 0 {
            columns = columns | Columns::WINDOW_NS | Columns::HALTED;
        }
        columns
    }
}

impl Source for RecordingSource {
    fn episodes(&self) -> u64 {
        self.reader.episodes()
    }

    fn out_of_time(&self) -> u64 {
        self.out_of_time.get().copied().unwrap_or(0)
    }

    fn when_recorded(&self) -> Option<TimeRecorded> {
        self.reader.time_recorded()
    }

    fn first_row_from(&self, time_ns: u64) -> Result<u64, ReadError> {
        let (mut first_row, mut chunk) = (0, Chunk::default());
        for row_group in 0..self.reader.row_groups() {
            self.reader.read(row_group, Columns::START_NS, &mut chunk)?;
            if let Some(row) = chunk.start_ns.iter().position(|&start_ns| start_ns >= time_ns) {
                return Ok(first_row + row as u64);
            }
            first_row += self.reader.row_group_rows(row_group);
        }
        Ok(first_row)
    }

    fn idlers(&self) -> usize {
        self.reader.contents().idlers.len()
    }

    fn resolution_ns(&self) -> u64 {
        self.reader.metadata().resolution_ns.unwrap_or(0)
    }

    fn handlers(&self) -> usize {
        if !self.with_handlers {
            return 0;
        }
        self.reader.contents().idlers.iter().map(|idler| idler.handlers.len()).max().unwrap_or(0)
    }

    fn visit_parts(&self, cuts: &[u64], see: &mut dyn FnMut(usize, &Batch)) -> Result<Vec<Span>, ReadError> {
        let parts: Vec<Range<u64>> = cuts.windows(2).map(|ends| ends[0]..ends[1]).collect();
        let mut spans = vec![Span::default(); parts.len()];
        let mut batch = Batch::default();
        batch.set_idle_loop(self.idle_loop());
        let latencies = self.latencies()?;
        let late = Some(latencies).filter(|latencies| self.is_late(latencies));
        let is_whole = cuts.first() == Some(&0) && cuts.last().is_some_and(|&end| end >= self.episodes());
        let mut ends = Some(Ends::default()).filter(|_| is_whole && self.overlapping.get().is_none());
        let (mut overlapping, tolerance_ns) = (0, self.reader.metadata().overlap_tolerance_ns());
        let are_two = is_whole && parts.len() == 2;
        let border = if are_two { self.border(parts[0].end)? } else { None };
        let (counts, mut out_of_time) = (self.out_of_time.get().is_none(), 0);
        self.read_ahead(&parts, self.columns(late.is_some()), |rows, chunk| {
            if let Some(ends) = &mut ends {
                overlapping += (0..chunk.rows)
                    .filter(|&row| {
                        let (start_ns, idle_ns) = (chunk.start_ns[row], chunk.idle_ns[row]);
                        ends.overlaps(chunk.idler[row] as usize, start_ns, idle_ns, tolerance_ns)
                    })
                    .count() as u64;
            }
            if let Some((from_ns, to_ns)) = border.filter(|_| counts) {
                let is_out = |&row: &usize| {
                    let start_ns = chunk.start_ns[row];
                    let is_first = rows.start + (row as u64) < parts[0].end;
                    if is_first {
                        start_ns >= to_ns
                    } else {
                        start_ns.saturating_add(chunk.idle_ns[row]) <= from_ns
                    }
                };
                out_of_time += (0..chunk.rows).filter(is_out).count() as u64;
            }
            for (number, part) in parts.iter().enumerate() {
                let wanted = rows.start.max(part.start)..rows.end.min(part.end);
                if !wanted.is_empty() {
                    let within = |row: u64| usize::try_from(row - rows.start).unwrap_or(usize::MAX);
                    self.fill(
                        &mut batch,
                        &mut spans[number],
                        (rows.start, chunk),
                        within(wanted.start)..within(wanted.end),
                        late,
                    );
                    see(number, &batch);
                }
            }
        })?;
        if let (Some(border), [first, second]) = (border, &mut spans[..]) {
            let _ = self.out_of_time.set(out_of_time);
            [*first, *second] = Span::parted(*first, *second, border);
        }
        if ends.is_some() {
            let _ = self.overlapping.set(overlapping);
        }
        Ok(spans)
    }
}

/// So many rows before and after the first one of the second part show when that part begins.
const NEAR: u64 = 32;

impl RecordingSource {
    /// When the rows before this one end and those from it on begin, as the medians of its neighbours have it: the
    /// second is begun from the first time on, and the first has ended by the second. `None` at either end.
    fn border(&self, row: u64) -> Result<Option<(u64, u64)>, ReadError> {
        let near = row.saturating_sub(NEAR)..self.episodes().min(row.saturating_add(NEAR));
        let (mut starts, mut ends) = (vec![], vec![]);
        self.read_ahead(std::slice::from_ref(&near), Columns::START_NS | Columns::IDLE_NS, |rows, chunk| {
            let at = |row: u64| usize::try_from(row - rows.start).unwrap_or(usize::MAX);
            for row in at(rows.start.max(near.start))..at(rows.end.min(near.end)) {
                starts.push(chunk.start_ns[row]);
                ends.push(chunk.start_ns[row].saturating_add(chunk.idle_ns[row]));
            }
        })?;
        starts.sort_unstable();
        ends.sort_unstable();
        let before = usize::try_from(row.saturating_sub(near.start)).unwrap_or(usize::MAX);
        let last_end = before.checked_sub(1).and_then(|last| ends.get(last));
        Ok(starts.get(before).copied().zip(last_end.copied()))
    }

    /// Hands over the row groups that hold some of `parts`, in order, with the rows that they are; one thread decodes
    /// the next while the caller works through this one.
    fn read_ahead(
        &self,
        parts: &[Range<u64>],
        columns: Columns,
        mut see: impl FnMut(Range<u64>, &Chunk),
    ) -> Result<(), ReadError> {
        let mut first_row = 0;
        let mut wanted = vec![];
        for row_group in 0..self.reader.row_groups() {
            let rows = first_row..first_row + self.reader.row_group_rows(row_group);
            first_row = rows.end;
            if parts.iter().any(|part| part.start.max(rows.start) < part.end.min(rows.end)) {
                wanted.push((row_group, rows));
            }
        }
        let (decoded, next) = mpsc::sync_channel::<Result<(Range<u64>, Chunk), ReadError>>(1);
        let (used, again) = mpsc::channel::<Chunk>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (row_group, rows) in wanted {
                    let mut chunk = again.try_recv().unwrap_or_default();
                    let read = self.reader.read(row_group, columns, &mut chunk);
                    // The reader has ended with an error.
                    if decoded.send(read.map(|()| (rows, chunk))).is_err() {
                        return;
                    }
                }
            });
            for read in next {
                let (rows, chunk) = read?;
                see(rows, &chunk);
                // The other side may have nothing left to read.
                let _ = used.send(chunk);
            }
            Ok(())
        })
    }

    /// The rows of a chunk that begins with row `first` as a batch, with the `late` latencies of halts if there are any.
    fn fill(
        &self,
        batch: &mut Batch,
        span: &mut Span,
        (first, chunk): (u64, &Chunk),
        rows: Range<usize>,
        late: Option<&Latencies>,
    ) {
        let with_ready = self.handlers() > 0;
        let shorter_ns = self.reader.metadata().residency_shorter_ns();
        batch.clear();
        for row in rows {
            let idler = chunk.idler[row] as usize;
            let latency_ns = late.map(|latencies| self.latency_of(latencies, chunk, row, first + row as u64));
            let within_ns = latency_ns.filter(|_| self.includes_latency(chunk, row)).unwrap_or(0);
            let recorded_ns = chunk.idle_ns[row];
            // What another task cut short halted, so that the event came later.
            let alone_ns = chunk.alone_ns.get(row).copied().flatten();
            let least_ns = alone_ns.filter(|&alone| alone < recorded_ns).map_or(0, |alone| alone + 1);
            let idle_ns = recorded_ns.saturating_sub(within_ns).max(least_ns);
            // No more than there is: together they are what was recorded.
            let latency_ns = latency_ns.map(|ns| if within_ns > 0 { recorded_ns - idle_ns } else { ns });
            let latency_ns = latency_ns.map(|ns| ns.saturating_sub(shorter_ns));
            span.add(chunk.start_ns[row], idle_ns);
            let alone_ns = alone_ns.map(|alone| alone.max(self.poll_pass.get()));
            let run = batch.run(idler);
            // What halted at once would have been idle sooner with a poll.
            let halts_at_once = || chunk.window_ns[row] == Some(0) && chunk.halted[row] == Some(true);
            let entry_ns = u64::from(run.idle_loop.halt_entry_ns());
            let sooner_ns = if entry_ns > 0 && halts_at_once() { entry_ns } else { 0 };
            let start_ns = chunk.start_ns[row].saturating_sub(sooner_ns);
            run.push(start_ns, idle_ns.saturating_add(sooner_ns), latency_ns, alone_ns);
            if with_ready {
                run.ready.extend_from_slice(match chunk.ready(row) {
                    Some([]) => &[NO_HANDLER],
                    ready => ready.unwrap_or_default(),
                });
                run.ready_ends.push(run.ready.len());
            }
        }
    }

    fn latency_of(&self, latencies: &Latencies, chunk: &Chunk, row: usize, number: u64) -> u64 {
        if let Some(given) = self.given {
            return given.get();
        }
        let drawn = || latencies.drawn(chunk.idler[row] as usize, number);
        let otherwise = || self.otherwise.map_or(0, Nanos::get);
        latency::recorded(chunk, row).or_else(drawn).unwrap_or_else(otherwise)
    }

    /// Whether the length of an episode ends when the idler runs again.
    fn includes_latency(&self, chunk: &Chunk, row: usize) -> bool {
        let metadata = self.reader.metadata();
        match chunk.halted[row] {
            Some(false) => false,
            _ if metadata.idle_includes == IdleIncludes::Wake => true,
            // `record guest` saw no event.
            Some(true) => chunk.wake_latency_ns[row].is_none() && metadata.other.contains_key("dwell.guest"),
            None => false,
        }
    }
}

/// Episodes in memory: for tests and benchmarks, and of several recordings together.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    episodes: Vec<MemoryEpisode>,
    idlers: usize,
    recorded: Option<TimeRecorded>,
    idle_loop: IdleLoop,
}

#[derive(Clone, Copy, Debug)]
struct MemoryEpisode {
    idler: usize,
    start_ns: u64,
    idle_ns: u64,
    latency_ns: Option<u64>,
    alone_ns: Option<u64>,
}

impl Memory {
    /// Pairs of idler and length \[ns\], in order.
    pub fn new(episodes: impl IntoIterator<Item = (usize, u64)>) -> Memory {
        Memory::contended(episodes.into_iter().map(|(idler, idle_ns)| (idler, idle_ns, None)))
    }

    /// Idler, length, and where known the time after which another task wanted the core \[ns\], in order.
    pub fn contended(episodes: impl IntoIterator<Item = (usize, u64, Option<u64>)>) -> Memory {
        Memory::late(episodes.into_iter().map(|(idler, idle_ns, alone_ns)| (idler, idle_ns, None, alone_ns)))
    }

    /// Idler, length, and where known the wakeup latency of a halt and the time after which another task wanted
    /// the core \[ns\], in order.
    pub fn late(episodes: impl IntoIterator<Item = (usize, u64, Option<u64>, Option<u64>)>) -> Memory {
        let mut now = 0u64;
        let mut memory = Memory::default();
        for (idler, idle_ns, latency_ns, alone_ns) in episodes {
            memory.episodes.push(MemoryEpisode { idler, start_ns: now, idle_ns, latency_ns, alone_ns });
            memory.idlers = memory.idlers.max(idler + 1);
            now = now.saturating_add(idle_ns);
        }
        memory
    }

    /// The same, recorded from `start_ns` to `end_ns`; the first episode starts at 0.
    #[must_use]
    pub fn recorded(mut self, start_ns: u64, end_ns: u64) -> Memory {
        self.recorded = Some(TimeRecorded { start_ns, end_ns });
        self
    }

    /// The same in a guest with this idle loop.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_idle_loop(mut self, poll_step: Nanos, halt_entry: Nanos) -> Memory {
        self.idle_loop = IdleLoop::new(poll_step, halt_entry);
        self
    }

    /// The idlers of all of these, at the same time for `span_ns`: each source begins at 0, is repeated from
    /// its start where it is shorter, and cut where it is longer. Idlers are numbered in the order of the
    /// sources.
    ///
    /// # Errors
    /// [`ReadError`] if one cannot be read.
    pub fn together(sources: &[&dyn Source], span_ns: u64) -> Result<Memory, ReadError> {
        let mut all = Memory::default();
        for source in sources {
            let mut one: Vec<MemoryEpisode> = vec![];
            let (mut first_ns, before) = (u64::MAX, all.idlers);
            let span = source.visit(0..u64::MAX, &mut |batch| {
                for run in batch.runs() {
                    all.idle_loop = run.idle_loop;
                    let idler = before + run.idler;
                    for (place, (&start_ns, &idle_ns)) in run.start_ns.iter().zip(&run.idle_ns).enumerate() {
                        let alone_ns = run.alone_ns().map(|alone| alone[place]);
                        let latency_ns = run.latency_ns().map(|latency| latency[place]);
                        first_ns = first_ns.min(start_ns);
                        one.push(MemoryEpisode { idler, start_ns, idle_ns, latency_ns, alone_ns });
                    }
                }
            })?;
            all.idlers += source.idlers();
            let mut shift_ns = 0;
            while shift_ns < span_ns && !one.is_empty() {
                let shifted = |episode: &MemoryEpisode| MemoryEpisode {
                    start_ns: (episode.start_ns - first_ns).saturating_add(shift_ns),
                    ..*episode
                };
                all.episodes.extend(one.iter().map(shifted).filter(|episode| episode.start_ns < span_ns));
                shift_ns = shift_ns.saturating_add(span.ns().max(1));
            }
        }
        all.episodes.sort_by_key(|episode| (episode.start_ns, episode.idler));
        Ok(all)
    }

    /// The episodes of one idler.
    pub fn of_one(idle_ns: &[u64]) -> Memory {
        Memory::new(idle_ns.iter().map(|&idle| (0, idle)))
    }
}

impl Source for Memory {
    fn episodes(&self) -> u64 {
        self.episodes.len() as u64
    }

    fn when_recorded(&self) -> Option<TimeRecorded> {
        self.recorded
    }

    fn first_row_from(&self, time_ns: u64) -> Result<u64, ReadError> {
        let row = self.episodes.iter().position(|episode| episode.start_ns >= time_ns);
        Ok(row.unwrap_or(self.episodes.len()) as u64)
    }

    fn idlers(&self) -> usize {
        self.idlers
    }

    fn visit_parts(&self, cuts: &[u64], see: &mut dyn FnMut(usize, &Batch)) -> Result<Vec<Span>, ReadError> {
        const ROWS: usize = 1 << 16;
        let mut batch = Batch::default();
        batch.set_idle_loop(self.idle_loop);
        let at = |row: u64| usize::try_from(row).unwrap_or(usize::MAX).min(self.episodes.len());
        let part = |(number, ends): (usize, &[u64])| {
            let mut span = Span::default();
            let (from, to) = (at(ends[0]), at(ends[1]));
            for episodes in self.episodes[from.min(to)..to].chunks(ROWS) {
                batch.clear();
                for episode in episodes {
                    span.add(episode.start_ns, episode.idle_ns);
                    let MemoryEpisode { idler, start_ns, idle_ns, latency_ns, alone_ns } = *episode;
                    batch.run(idler).push(start_ns, idle_ns, latency_ns, alone_ns);
                }
                see(number, &batch);
            }
            span
        };
        Ok(cuts.windows(2).enumerate().map(part).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rule;
    use dwell_policy::Layer;
    use dwell_policy::param::Setting;
    use dwell_policy::version::Version;
    use dwell_recording::{Episode, Metadata, Packing, Writer};

    /// 30 episodes in the first tenth of a second and 10 in the last of four, two idlers, in row groups of 7.
    fn recording(recorded: Option<TimeRecorded>) -> RecordingSource {
        let metadata = Metadata { recorded, ..Metadata::new(Layer::Host) };
        let packing = Packing { rows_per_group: 7, zstd_level: 1 };
        let mut writer = Writer::new(Vec::new(), metadata, packing).unwrap();
        let starts = (0..30u64).map(|n| n * 3_000_000).chain((0..10).map(|n| 3_900_000_000 + n * 3_000_000));
        for (start_ns, idler) in starts.zip(["a", "b"].into_iter().cycle()) {
            writer.push(&Episode::new(idler, start_ns, 1_000_000)).unwrap();
        }
        RecordingSource::new(Reader::from_bytes("memory", writer.close().unwrap().1).unwrap(), false)
    }

    #[test]
    fn halves_are_halves_of_the_time_recorded() {
        let source = recording(Some(TimeRecorded { start_ns: 0, end_ns: 4_000_000_000 }));
        let halves = source.halves().unwrap();
        assert_eq!(halves.second, 30);
        assert_eq!(halves.spans.unwrap().map(|span| span.ns()), [2_000_000_000; 2]);
        assert_eq!(source.time_recorded().unwrap().ns(), 4_000_000_000);
        // All episodes in one half.
        let source = recording(Some(TimeRecorded { start_ns: 0, end_ns: 40_000_000_000 }));
        assert_eq!(source.halves().unwrap().second, 40);
        // Not known: as many episodes in each.
        assert_eq!(recording(None).halves().unwrap(), Halves { second: 20, spans: None });
        assert_eq!(recording(None).time_recorded(), None);
    }

    /// A CPU that halted at once would have been in its idle state sooner with a poll, and one that polled later without.
    #[test]
    fn idle_times_are_of_a_cpu_that_polls_first() {
        let mut metadata = Metadata::new(Layer::Guest);
        metadata.other.insert(dwell_recording::HALT_ENTRY.to_owned(), 6_000.into());
        let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
        let ways = [(0, true), (50_000, false), (50_000, true), (0, true)];
        for (start_ns, (window_ns, halted)) in (1..).map(|n| n * 1_000_000).zip(ways) {
            let (window_ns, halted) = (Some(window_ns), Some(halted));
            writer.push(&Episode { window_ns, halted, ..Episode::new("cpu0", start_ns, 44_000) }).unwrap();
        }
        let reader = Reader::from_bytes("memory", writer.close().unwrap().1).unwrap();
        let source = RecordingSource::new(reader, false);
        let (mut seen, mut polled) = (vec![], vec![]);
        source
            .visit(0..u64::MAX, &mut |batch| {
                for run in batch.runs() {
                    seen.extend(run.start_ns.iter().copied().zip(run.idle_ns.iter().copied()));
                    for max_ns in [44_000, 43_000] {
                        let mut setting = Setting::defaults(Layer::Guest, Version::new(6, 18));
                        setting.set("guest_halt_poll_ns", max_ns).unwrap();
                        setting.set("guest_halt_poll_grow_start", max_ns).unwrap();
                        let mut player = Rule::Layer(setting).start(1).unwrap();
                        let mut windows = vec![];
                        player.follow(run, |seen| windows.push(seen.window.get()));
                        polled.push(windows);
                    }
                }
            })
            .unwrap();
        assert_eq!(
            seen,
            [(994_000, 50_000), (2_000_000, 44_000), (3_000_000, 44_000), (3_994_000, 50_000)],
            "they end when they did"
        );
        // With a window of zero 44 us of idling grow it to 44 us, which 44 us do not outlast and 50 do; under a maximum of 43 us
        // only one of 38 us does. The poll of the next runs out on its way to the halt, so that the last halts at once.
        assert_eq!(polled, [vec![0, 44_000, 44_000, 44_000], vec![0, 0, 43_000, 0]]);
    }

    /// A foreign recording has no name where no handler became ready.
    #[test]
    fn where_no_handler_became_ready_the_first_does_not_learn() {
        let packing = Packing { rows_per_group: 7, zstd_level: 1 };
        let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Iothread), packing).unwrap();
        let names: [Option<&[&str]>; 4] = [Some(&["a", "b"]), Some(&[]), None, Some(&["b"])];
        for (ready, start_ns) in names.into_iter().zip((0..).step_by(10_000)) {
            writer.push(&Episode { ready, ..Episode::new("io", start_ns, 5_000) }).unwrap();
        }
        let reader = Reader::from_bytes("memory", writer.close().unwrap().1).unwrap();
        let mut seen = vec![];
        RecordingSource::new(reader, true)
            .visit(0..u64::MAX, &mut |batch| {
                for run in batch.runs() {
                    seen.extend((0..run.idle_ns.len()).map(|episode| run.ready(episode).to_vec()));
                }
            })
            .unwrap();
        assert_eq!(seen, [vec![0, 1], vec![NO_HANDLER], vec![], vec![1]]);
        // Under QEMU 10.0 a handler polls once it became ready.
        let setting = Setting::defaults(Layer::Iothread, Version::new(10, 0));
        let mut aio = Rule::Layer(setting).start(2).unwrap();
        let mut windows = |ready: &[u32]| {
            let one = Run { start_ns: vec![0; 3], idle_ns: vec![5_000; 3], ..Run::default() };
            let ends = (1..=3).map(|episode| episode * ready.len()).collect();
            let run = Run { ready: ready.repeat(3), ready_ends: ends, ..one };
            aio.play(&run).polls
        };
        assert_eq!(windows(&[NO_HANDLER]), 0);
        assert!(windows(&[]) > 0);
    }

    #[test]
    fn sources_together_are_repeated_or_cut_to_one_span() {
        let two = Memory::new([(0, 10), (1, 20)]);
        let one = Memory::contended([(0, 50, Some(40)), (0, 30, None)]);
        let together = Memory::together(&[&two, &one], 70).unwrap();
        assert_eq!(together.idlers(), 3);
        let episodes: Vec<(usize, u64, u64, Option<u64>)> = together
            .episodes
            .iter()
            .map(|e| (e.idler, e.start_ns, e.idle_ns, e.alone_ns.filter(|&ns| ns < e.idle_ns)))
            .collect();
        assert_eq!(
            episodes,
            [
                (0, 0, 10, None),
                (2, 0, 50, Some(40)),
                (1, 10, 20, None),
                (0, 30, 10, None),
                (1, 40, 20, None),
                (2, 50, 30, None),
                (0, 60, 10, None),
            ]
        );
        assert_eq!(Memory::together(&[&Memory::of_one(&[]), &two], 10).unwrap().episodes(), 1);
    }

    #[test]
    fn idlers_idle_no_longer_than_they_were_recorded() {
        assert_eq!(longest_idle_ns(100, 2, 3, 10), 230);
        let check = |idle_ns: &[u64]| {
            let memory = Memory::of_one(idle_ns).recorded(0, 100);
            crate::replay(&memory, &[], Nanos(1), &|_| ()).map(|replayed| replayed.optimum.idle_ns)
        };
        assert_eq!(check(&[50, 50]).unwrap(), 100);
        let error = check(&[50, 51]).unwrap_err().to_string();
        assert!(error.contains("1 idler cannot idle for 101 ns in the 100 ns"), "{error}");
    }

    #[test]
    fn memory_has_the_same_halves() {
        let memory = Memory::of_one(&[10, 10, 10, 70]).recorded(0, 100);
        let halves = memory.halves().unwrap();
        assert_eq!((halves.second, halves.spans.unwrap().map(|span| span.ns())), (4, [50, 50]));
        assert_eq!(Memory::of_one(&[10; 4]).halves().unwrap(), Halves { second: 2, spans: None });
    }
}
