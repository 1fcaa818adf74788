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
    /// Of all different sets.
    numbers: Vec<u32>,
    /// For each different set the end of its numbers.
    ends: Vec<usize>,
    /// For each row its set.
    rows: Vec<Option<u32>>,
}

impl ReadySets {
    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The set of `row`.
    pub fn get(&self, row: usize) -> Option<&[u32]> {
        let set = (*self.rows.get(row)?)? as usize;
        let begin = set.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |&end| end);
        self.numbers.get(begin..*self.ends.get(set)?)
    }

    /// A set for [`push`](ReadySets::push).
    pub(crate) fn add(&mut self, set: &[u32]) -> u32 {
        self.numbers.extend_from_slice(set);
        self.ends.push(self.numbers.len());
        u32::try_from(self.ends.len() - 1).unwrap_or(u32::MAX)
    }

    /// Appends a row.
    pub(crate) fn push(&mut self, set: Option<u32>) {
        self.rows.push(set);
    }

    #[cfg(test)]
    pub(crate) fn numbers(&self) -> usize {
        self.numbers.len()
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.ends.clear();
        self.rows.clear();
    }
}
