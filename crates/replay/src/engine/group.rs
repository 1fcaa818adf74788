//! A number of lanes that run through a kernel together: their settings, windows and counts.

use super::lane::{Growth, Lane};
use crate::counts::Counts;
use std::mem::take;

/// Sixteen numbers in a cache line of their own.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
struct Line([i32; 16]);

/// A number per lane, aligned for any vector.
#[derive(Clone, Default)]
pub(super) struct Column(Vec<Line>);

impl Column {
    /// For each lane what `of` gives.
    fn new(lanes: &[Lane], of: impl Fn(&Lane) -> u32) -> Column {
        let number = |lane: Option<&Lane>| lane.map_or(0, |lane| of(lane).cast_signed());
        let line = |lanes: &[Lane]| Line(std::array::from_fn(|i| number(lanes.get(i))));
        Column(lanes.chunks(16).map(line).collect())
    }

    fn zeros(lanes: usize) -> Column {
        Column(vec![Line::default(); lanes.div_ceil(16)])
    }

    pub(super) fn as_ptr(&self) -> *const i32 {
        self.0.as_ptr().cast()
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut i32 {
        self.0.as_mut_ptr().cast()
    }

    pub(super) fn capacity(&self) -> usize {
        16 * self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = i32> {
        self.0.iter().flat_map(|line| line.0)
    }
}

/// Settings of the lanes of a group. The last lanes may be copies that only fill the vectors.
pub(super) struct LaneGroup {
    pub(super) max: Column,
    pub(super) grow: Column,
    pub(super) start: Column,
    /// The longest window that counts as zero.
    pub(super) below_floor: Column,
    pub(super) shift: Column,
    pub(super) factor: Column,
    pub(super) factor_bits: Column,
    pub(super) grow_shift: Column,
    /// What all growths have in common.
    pub(super) growth: Growth,
    /// All divisions are shifts.
    pub(super) shifts: bool,
    /// Only windows of zero have to be lifted to `start`.
    pub(super) grows_past_start: bool,
    /// Lanes with a setting.
    pub(super) lanes: usize,
    /// The lowest and the highest maximum of a lane \[ns\].
    pub(super) maxima: (i32, i32),
    /// Windows of each idler \[ns\]; negative after a poll that ran out without a halt, so that a guest's CPU halts at once in the
    /// next episode.
    windows: Vec<Column>,
    /// Episodes that began without a poll.
    pub(super) unpolled: Vec<u64>,
    /// Of those, the ones that do not halt: without length, or no longer than it takes to enter a halt.
    pub(super) neither: Vec<u64>,
    /// Episodes that outlasted the window.
    pub(super) halts: Vec<u64>,
    /// \[ns\]; 2^64 of them are 584 years of polling.
    pub(super) polled_ns: Vec<u64>,
}

impl LaneGroup {
    /// `lanes` in vectors that hold `capacity` together, a multiple of 8.
    pub(super) fn new(lanes: &[Lane], capacity: usize) -> LaneGroup {
        debug_assert!((1..=capacity).contains(&lanes.len()));
        let mut padded = lanes.to_vec();
        // As it does what a lane does that counts, it does not decide which kernel is taken or what is skipped.
        padded.resize(capacity, lanes[lanes.len() - 1]);
        let maxima = || lanes.iter().map(|lane| lane.max.cast_signed());
        let column = |of: &dyn Fn(&Lane) -> u32| Column::new(&padded, of);
        LaneGroup {
            max: column(&|lane| lane.max),
            grow: column(&|lane| lane.grow),
            start: column(&|lane| lane.start),
            below_floor: column(&|lane| lane.floor.max(1) - 1),
            shift: column(&|lane| lane.shift()),
            factor: column(&|lane| lane.reciprocal().0),
            factor_bits: column(&|lane| lane.reciprocal().1),
            grow_shift: column(&|lane| lane.grow_shift()),
            growth: lanes.iter().map(Lane::growth).max().unwrap_or(Growth::Any),
            shifts: lanes.iter().all(Lane::shifts),
            grows_past_start: lanes.iter().all(Lane::grows_past_start),
            lanes: lanes.len(),
            maxima: (maxima().min().unwrap_or(1), maxima().max().unwrap_or(1)),
            windows: vec![],
            unpolled: vec![0; capacity],
            neither: vec![0; capacity],
            halts: vec![0; capacity],
            polled_ns: vec![0; capacity],
        }
    }

    /// All windows are zero again.
    pub(super) fn restart(&mut self) {
        self.windows.iter_mut().for_each(|windows| windows.0.fill(Line::default()));
    }

    /// Lanes, those without a setting included.
    pub(super) fn capacity(&self) -> usize {
        self.halts.len()
    }

    /// The windows of an idler.
    pub(super) fn windows(&mut self, idler: usize) -> &mut Column {
        while self.windows.len() <= idler {
            self.windows.push(Column::zeros(self.halts.len()));
        }
        &mut self.windows[idler]
    }

    /// Episodes of no length.
    pub(super) fn count_instant(&mut self, idler: usize, episodes: u64) {
        self.windows(idler);
        let counts = self.unpolled.iter_mut().zip(&mut self.neither);
        for (window, (unpolled, neither)) in self.windows[idler].iter().zip(counts) {
            let no_poll = u64::from(window <= 0);
            *unpolled += no_poll * episodes;
            *neither += no_poll * episodes;
        }
    }

    /// What each lane with a setting did, in their order; `all` has the number of episodes and their length, which are the
    /// same for all lanes. Counts begin anew.
    pub(super) fn take(&mut self, all: Counts) -> impl Iterator<Item = Counts> {
        (0..self.lanes).map(move |lane| {
            let halts = take(&mut self.halts[lane]);
            Counts {
                polls: all.episodes - take(&mut self.unpolled[lane]),
                // An episode that does not halt succeeds, unless there was no window.
                polls_succeeded: all.episodes - halts - take(&mut self.neither[lane]),
                polled_ns: take(&mut self.polled_ns[lane]).into(),
                halts,
                exits: halts,
                ..all
            }
        })
    }
}
