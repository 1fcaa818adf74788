//! Windows over time, above idle times: a recording of any length in a fixed number of slices.

use super::Policy;
use crate::Run;
use dwell_recording::Contents;
use dwell_stats::LogHistogram;
use serde::Serialize;

/// Slices that the time of a recording is cut into: more than a wide screen has room for, few enough to send round.
pub const SLICES: u64 = 500;

/// Windows and idle times over the time of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// When the first slice begins \[ns, the recording's clock\].
    pub first_ns: u64,
    /// How long a slice is \[ns\].
    pub slice_ns: u64,
    pub idlers: Vec<IdlerTimeline>,
}

/// One idler. The lists have one entry for each slice in which an episode begins.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdlerTimeline {
    pub idler: String,
    /// Number of the slice.
    pub slice: Vec<u64>,
    /// Episodes that begin in it.
    pub episodes: Vec<u64>,
    /// One in ten of them is not longer \[ns\]; as all quantiles here the middle of a bucket that is 12 % wide.
    pub idle_p10_ns: Vec<u64>,
    /// Half of them are not longer \[ns\].
    pub idle_p50_ns: Vec<u64>,
    /// Nine in ten of them are not longer \[ns\].
    pub idle_p90_ns: Vec<u64>,
    /// The windows of each policy.
    pub windows: Vec<WindowLine>,
    /// What really happened in the slice.
    pub recorded: RecordedLine,
}

/// What really happened over time, where it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RecordedLine {
    /// Episodes that ended in a halt.
    pub halts: Vec<u64>,
    /// Episodes that ended while the idler polled, or before it could halt.
    pub polls_succeeded: Vec<u64>,
    /// Mean of the windows, rounded down \[ns\]; `None` where none is known.
    pub window_mean_ns: Vec<Option<u64>>,
}

/// The windows of a policy over time \[ns\].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowLine {
    /// What it is called.
    pub policy: String,
    /// Shortest of a slice.
    pub min_ns: Vec<u64>,
    /// Mean of a slice, rounded down.
    pub mean_ns: Vec<u64>,
    /// Longest of a slice.
    pub max_ns: Vec<u64>,
}

/// The time of a recording, cut into slices of one length.
pub(super) struct Cut {
    first_ns: u64,
    /// How long a slice is \[ns\].
    pub(super) slice_ns: u64,
    slices: u64,
}

impl Cut {
    pub(super) fn new(first_ns: u64, span_ns: u64, slices: u64) -> Cut {
        Cut { first_ns, slice_ns: span_ns / slices + 1, slices }
    }

    /// The number of the slice in which an episode is that starts at this time.
    pub(super) fn slice(&self, start_ns: u64) -> usize {
        let number = start_ns.saturating_sub(self.first_ns) / self.slice_ns;
        // A damaged recording may claim less time than it holds.
        usize::try_from(number.min(self.slices - 1)).unwrap_or(0)
    }
}

/// [`Timeline`] in the making.
pub(super) struct TimelineMaker {
    cut: Cut,
    /// For each idler its slices.
    slices: Vec<Vec<Slice>>,
    policies: usize,
}

#[derive(Clone, Default)]
struct Slice {
    idle: LogHistogram,
    windows: Vec<Extent>,
    halts: u64,
    polls_succeeded: u64,
    recorded: Extent,
    windows_recorded: u64,
}

/// Least, sum and greatest of some windows \[ns\].
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) min: u64,
    pub(super) sum: u128,
    pub(super) max: u64,
}

impl Default for Extent {
    fn default() -> Extent {
        Extent { min: u64::MAX, sum: 0, max: 0 }
    }
}

impl Extent {
    pub(super) fn add(&mut self, window_ns: u64) {
        self.min = self.min.min(window_ns);
        self.sum += u128::from(window_ns);
        self.max = self.max.max(window_ns);
    }

    /// The mean of so many, rounded down.
    fn mean(&self, windows: u64) -> Option<u64> {
        let mean = self.sum.checked_div(u128::from(windows))?;
        Some(u64::try_from(mean).unwrap_or(u64::MAX))
    }
}

impl TimelineMaker {
    pub(super) fn new(contents: &Contents, idlers: usize, policies: usize) -> TimelineMaker {
        TimelineMaker {
            cut: Cut::new(contents.first_start_ns.unwrap_or(0), contents.span_ns(), SLICES),
            slices: vec![vec![]; idlers],
            policies,
        }
    }

    /// The slice of an idler, by its place among those that are shown, at this time.
    fn slice(&mut self, place: usize, start_ns: u64) -> &mut Slice {
        let number = self.cut.slice(start_ns);
        let slices = &mut self.slices[place];
        if slices.len() <= number {
            let windows = vec![Extent::default(); self.policies];
            slices.resize(number + 1, Slice { windows, ..Slice::default() });
        }
        &mut slices[number]
    }

    /// Takes in what was recorded of an episode.
    pub(super) fn take_recorded(
        &mut self,
        place: usize,
        start_ns: u64,
        window_ns: Option<u64>,
        halted: Option<bool>,
    ) {
        let slice = self.slice(place, start_ns);
        slice.halts += u64::from(halted == Some(true));
        slice.polls_succeeded += u64::from(halted == Some(false));
        if let Some(window_ns) = window_ns {
            slice.recorded.add(window_ns);
            slice.windows_recorded += 1;
        }
    }

    /// Takes in episodes of an idler, by its place among those that are shown, and the windows of each policy.
    pub(super) fn take(&mut self, place: usize, run: &Run, windows: &[&[u64]]) {
        for (episode, (&start_ns, &idle_ns)) in run.start_ns.iter().zip(&run.idle_ns).enumerate() {
            let slice = self.slice(place, start_ns);
            slice.idle.add(idle_ns);
            for (extent, windows) in slice.windows.iter_mut().zip(windows) {
                extent.add(windows[episode]);
            }
        }
    }

    pub(super) fn finish(self, contents: &Contents, policies: &[Policy]) -> Timeline {
        let TimelineMaker { cut: Cut { first_ns, slice_ns, .. }, slices, .. } = self;
        let names = super::busiest(contents).into_iter().map(|idler| contents.idlers[idler].name.clone());
        let idlers = names.zip(&slices).map(|(name, slices)| timeline(name, slices, policies));
        Timeline { first_ns, slice_ns, idlers: idlers.collect() }
    }
}

fn timeline(idler: String, slices: &[Slice], policies: &[Policy]) -> IdlerTimeline {
    let held: Vec<(u64, &Slice)> = (0..).zip(slices).filter(|(_, slice)| slice.idle.total() > 0).collect();
    let quantile = |q: f64| held.iter().map(|(_, slice)| quantile(&slice.idle, q)).collect();
    let line = |(number, policy): (usize, &Policy)| {
        let of = |figure: fn(&Extent, u64) -> u64| {
            held.iter().map(|(_, slice)| figure(&slice.windows[number], slice.idle.total())).collect()
        };
        WindowLine {
            policy: policy.name.clone(),
            min_ns: of(|extent, _| extent.min),
            mean_ns: of(|extent, episodes| extent.mean(episodes).unwrap_or(0)),
            max_ns: of(|extent, _| extent.max),
        }
    };
    let recorded = RecordedLine {
        halts: held.iter().map(|(_, slice)| slice.halts).collect(),
        polls_succeeded: held.iter().map(|(_, slice)| slice.polls_succeeded).collect(),
        window_mean_ns: held.iter().map(|(_, slice)| slice.recorded.mean(slice.windows_recorded)).collect(),
    };
    IdlerTimeline {
        idler,
        slice: held.iter().map(|(number, _)| *number).collect(),
        episodes: held.iter().map(|(_, slice)| slice.idle.total()).collect(),
        idle_p10_ns: quantile(0.1),
        idle_p50_ns: quantile(0.5),
        idle_p90_ns: quantile(0.9),
        windows: policies.iter().enumerate().map(line).collect(),
        recorded,
    }
}

/// The middle of the bucket that holds this quantile.
fn quantile(histogram: &LogHistogram, q: f64) -> u64 {
    histogram.quantile(q).map_or(0, |bucket| bucket.middle_ns())
}
