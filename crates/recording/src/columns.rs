//! The columns of a recording: names, types, encodings, and which of them to read.

use crate::table::{Field, Kind};
use std::ops::BitOr;

/// A set of columns of a recording.
///
/// ```
/// use dwell_recording::Columns;
/// let columns = Columns::IDLER | Columns::IDLE_NS;
/// assert!(columns.contains(Columns::IDLER));
/// assert!(!columns.contains(Columns::IDLER | Columns::WAKE));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns(u16);

impl Columns {
    /// `idler`: UTF-8, never null.
    pub const IDLER: Columns = Columns(1);
    /// `start_ns`: u64, never null.
    pub const START_NS: Columns = Columns(1 << 1);
    /// `idle_ns`: u64, never null.
    pub const IDLE_NS: Columns = Columns(1 << 2);
    /// `window_ns`: u64.
    pub const WINDOW_NS: Columns = Columns(1 << 3);
    /// `halted`: boolean.
    pub const HALTED: Columns = Columns(1 << 4);
    /// `wake`: UTF-8, one of [`WakeCause::ALL`](crate::WakeCause::ALL).
    pub const WAKE: Columns = Columns(1 << 5);
    /// `wake_latency_ns`: u64.
    pub const WAKE_LATENCY_NS: Columns = Columns(1 << 6);
    /// `ready`: UTF-8, names of handlers with a comma between them.
    pub const READY: Columns = Columns(1 << 7);
    /// `alone_ns`: u64.
    pub const ALONE_NS: Columns = Columns(1 << 8);
    /// Who idled, when and for how long, and whether it polled and halted.
    pub(crate) const COURSE: Columns = Columns::IDLER
        .union(Columns::START_NS)
        .union(Columns::IDLE_NS)
        .union(Columns::WINDOW_NS)
        .union(Columns::HALTED)
        .union(Columns::WAKE_LATENCY_NS);
    /// Every column.
    pub const ALL: Columns = Columns((1 << 9) - 1);

    /// The columns of both sets.
    #[must_use]
    pub const fn union(self, other: Columns) -> Columns {
        Columns(self.0 | other.0)
    }

    /// The columns of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Columns) -> Columns {
        Columns(self.0 & !other.0)
    }

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Columns) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Columns {
    type Output = Columns;

    fn bitor(self, other: Columns) -> Columns {
        Columns(self.0 | other.0)
    }
}

/// One column of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The set of this column alone.
    pub set: Columns,
    /// Its name in the file.
    pub name: &'static str,
    /// The type of its values.
    pub kind: Kind,
    /// Whether it must be in every file and is never null.
    pub required: bool,
}

const fn column(set: Columns, name: &'static str, kind: Kind, required: bool) -> Column {
    Column { set, name, kind, required }
}

/// All columns, in the order in which they are written; a new one goes to the end. A writer always writes all of them
/// (an all-null column costs a few bytes per row group), so that `SELECT … FROM 'recordings/*.parquet'` finds
/// one schema in all files of one version.
pub const COLUMNS: [Column; 9] = [
    column(Columns::IDLER, "idler", Kind::Text, true),
    column(Columns::START_NS, "start_ns", Kind::Unsigned, true),
    column(Columns::IDLE_NS, "idle_ns", Kind::Unsigned, true),
    column(Columns::WINDOW_NS, "window_ns", Kind::Unsigned, false),
    column(Columns::HALTED, "halted", Kind::Flag, false),
    column(Columns::WAKE, "wake", Kind::Text, false),
    column(Columns::WAKE_LATENCY_NS, "wake_latency_ns", Kind::Unsigned, false),
    column(Columns::READY, "ready", Kind::Text, false),
    column(Columns::ALONE_NS, "alone_ns", Kind::Unsigned, false),
];

pub(crate) fn fields() -> impl Iterator<Item = Field> {
    COLUMNS.iter().map(|&Column { name, kind, required, .. }| Field { name, kind, required })
}
