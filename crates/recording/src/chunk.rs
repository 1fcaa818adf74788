//! Episodes in memory, one vector a column.

use crate::episode::WakeCause;

/// The rows of one row group, as far as they were asked for. It is meant to be used again for the next one.
///
/// A column that was asked for has [`rows`](Chunk::rows) entries, all `None` where the file lacks it; a column that
/// was not asked for is empty.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// Number of rows.
    pub rows: usize,
    /// Index into [`Contents::idlers`](crate::Contents::idlers).
    pub idler: Vec<u32>,
    /// When the episode began \[ns, the recording's clock\].
    pub start_ns: Vec<u64>,
    /// How long it took \[ns\].
    pub idle_ns: Vec<u64>,
    /// How long the idler would have polled \[ns\].
    pub window_ns: Vec<Option<u64>>,
    /// Whether the idler halted.
    pub halted: Vec<Option<bool>>,
    /// What kind of event ended the episode.
    pub wake: Vec<Option<WakeCause>>,
    /// From the wakeup event to the idler running \[ns\].
    pub wake_latency_ns: Vec<Option<u64>>,
    /// Which handlers became ready.
    pub ready: ReadySets,
    /// How long no other task was runnable on the idler's CPU \[ns\]; see [`Episode`](crate::Episode::alone_ns).
    pub alone_ns: Vec<Option<u64>>,
    /// How long a guest polls between two looks at the clock \[ns\]; 0: not known. The same in all rows.
    pub poll_step_ns: u64,
    pub(crate) scratch: Scratch,
}

/// Buffers of the reader that keep their memory between row groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) levels: Vec<i16>,
    pub(crate) integers: Vec<i64>,
}

impl Chunk {
    /// Which handlers became ready in episode `row`, as indices into the [`handlers`](crate::Idler::handlers) of its
    /// idler; `None` where that is not known, was not asked for, or there is no such row.
    pub fn ready(&self, row: usize) -> Option<&[u32]> {
        self.ready.get(row)
    }

    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        self.idler.clear();
        self.start_ns.clear();
        self.idle_ns.clear();
        self.window_ns.clear();
        self.halted.clear();
        self.wake.clear();
        self.wake_latency_ns.clear();
        self.ready.clear();
        self.alone_ns.clear();
    }
}

/// For each row a set of handler numbers, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadySets {
    numbers: Vec<u32>,
    /// For each row the end of its numbers, and whether it has any set.
    ends: Vec<(usize, bool)>,
}

impl ReadySets {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The set of `row`.
    pub fn get(&self, row: usize) -> Option<&[u32]> {
        let &(end, known) = self.ends.get(row)?;
        let begin = row.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |&(end, _)| end);
        if known { self.numbers.get(begin..end) } else { None }
    }

    pub(crate) fn push(&mut self, set: Option<&[u32]>) {
        self.numbers.extend_from_slice(set.unwrap_or_default());
        self.ends.push((self.numbers.len(), set.is_some()));
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.ends.clear();
    }
}
