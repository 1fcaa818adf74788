//! The figures of each idler, and the state of the user interface.

mod sort;

use super::action::Action;
use super::feed::{Batch, Seen};
use dwell_recording::accounting::Account;
use dwell_report::count;
use dwell_stats::{LogHistogram, Resolution};
pub(crate) use sort::Sort;
use sort::compare;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Figures cover at most this time; older batches are dropped.
const REMEMBERED: Duration = Duration::from_secs(10);

/// What one idler did in one batch.
#[derive(Clone, Debug)]
struct Slice {
    account: Account,
    idle: LogHistogram,
}

impl Slice {
    fn new() -> Slice {
        Slice { account: Account::default(), idle: LogHistogram::new(Resolution::Eighth) }
    }

    fn add(&mut self, seen: &Seen) {
        self.idle.add(seen.outcome.idle_ns);
        self.account.add(seen.outcome);
    }
}

/// The figures of an idler over the time shown.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) idler: Arc<str>,
    pub(crate) wakeups_per_s: f64,
    /// Quantiles of the idle time \[ns\], to an eighth.
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    /// The last window \[ns\].
    pub(crate) window_ns: Option<u64>,
    pub(crate) success: Option<f64>,
    /// Time polled as a share of one CPU.
    pub(crate) polling: Option<f64>,
}

#[derive(Clone, Debug, Default)]
struct Idler {
    slices: BTreeMap<u64, Slice>,
    window_ns: Option<u64>,
}

impl Idler {
    fn row(&self, name: &Arc<str>, span: Duration) -> Row {
        let seconds = span.as_secs_f64().max(1e-9);
        let mut account = Account::default();
        self.slices.values().for_each(|slice| account += slice.account);
        let Account { episodes, polls, polls_succeeded, polls_known, polled_ns, .. } = account;
        let idle = self.idle();
        let quantile = |q: f64| idle.quantile(q).map_or(0, |bucket| bucket.from_ns);
        Row {
            idler: Arc::clone(name),
            wakeups_per_s: episodes as f64 / seconds,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            window_ns: self.window_ns,
            success: (polls > 0).then(|| polls_succeeded as f64 / polls as f64),
            polling: (polls_known > 0).then(|| polled_ns as f64 / 1e9 / seconds),
        }
    }

    fn idle(&self) -> LogHistogram {
        let mut idle = LogHistogram::new(Resolution::Eighth);
        self.slices.values().for_each(|slice| idle.merge(&slice.idle));
        idle
    }
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) target: &'static str,
    idlers: BTreeMap<Arc<str>, Idler>,
    /// Number and length of the batches kept.
    spans: VecDeque<(u64, Duration)>,
    batches: u64,
    lost: u64,
    losses_unknown: bool,
    pub(super) sort: Sort,
    pub(super) reversed: bool,
    pub(super) filter: String,
    /// The filter as it was before it was changed.
    editing: Option<String>,
    selected: Option<Arc<str>>,
    pub(super) paused: bool,
    pub(super) help: bool,
    /// What is shown above the idlers: what a controller does and what the CPU time goes for, in lines.
    pub(super) control: Vec<String>,
}

impl State {
    pub(crate) fn new(target: &'static str, sort: Sort, filter: &str) -> State {
        State { target, sort, filter: filter.to_owned(), ..State::default() }
    }

    /// Adds a batch. While paused, episodes are ignored but losses are counted.
    pub(crate) fn take(&mut self, batch: Batch) {
        self.lost = self.lost.saturating_add(batch.lost);
        self.losses_unknown |= batch.losses_unknown;
        if self.paused {
            return;
        }
        self.batches += 1;
        self.spans.push_back((self.batches, batch.span));
        for seen in &batch.episodes {
            let idler = self.idlers.entry(Arc::clone(&seen.idler)).or_default();
            idler.window_ns = seen.window_ns.or(idler.window_ns);
            idler.slices.entry(self.batches).or_insert_with(Slice::new).add(seen);
        }
        self.forget();
    }

    fn forget(&mut self) {
        while self.spans.len() > 1 && self.span() > REMEMBERED {
            self.spans.pop_front();
        }
        let oldest = self.spans.front().map_or(0, |(number, _)| *number);
        self.idlers.retain(|_, idler| {
            idler.slices.retain(|number, _| *number >= oldest);
            !idler.slices.is_empty()
        });
    }

    /// The time that the figures cover.
    pub(crate) fn span(&self) -> Duration {
        self.spans.iter().map(|(_, span)| *span).sum()
    }

    /// The idlers to be shown, in order.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let span = self.span();
        let shown = self.idlers.iter().filter(|(name, _)| name.contains(&self.filter));
        let mut rows: Vec<Row> = shown.map(|(name, idler)| idler.row(name, span)).collect();
        rows.sort_by(|a, b| compare(self.sort, a, b).then_with(|| a.idler.cmp(&b.idler)));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// The one that is selected, or else the first.
    pub(crate) fn selected(&self, rows: &[Row]) -> Option<usize> {
        let chosen = self.selected.as_ref().and_then(|name| rows.iter().position(|row| row.idler == *name));
        chosen.or_else(|| (!rows.is_empty()).then_some(0))
    }

    /// The idle times of an idler by octave: bucket 0 counts zeros, *k* those from 2^(*k*-1) to 2^*k* - 1 ns.
    pub(crate) fn octaves(&self, idler: &str) -> Vec<u64> {
        self.idlers.get(idler).map(|idler| idler.idle().octaves().to_vec()).unwrap_or_default()
    }

    pub(crate) fn apply(&mut self, action: Action) {
        match action {
            Action::Up => self.step(|at, _| at.saturating_sub(1)),
            Action::Down => self.step(|at, last| (at + 1).min(last)),
            Action::First => self.step(|_, _| 0),
            Action::Last => self.step(|_, last| last),
            Action::NextColumn => self.sort = self.sort.after(1),
            Action::PreviousColumn => self.sort = self.sort.after(Sort::ALL.len() - 1),
            Action::Reverse => self.reversed = !self.reversed,
            Action::Pause => self.paused = !self.paused,
            Action::Help => self.help = !self.help,
            Action::Clear => {
                self.idlers.clear();
                self.spans.clear();
                self.lost = 0;
            }
            Action::Filter => self.editing = Some(self.filter.clone()),
            Action::Letter(letter) => self.filter.push(letter),
            Action::Erase => drop(self.filter.pop()),
            Action::Accept => self.editing = None,
            Action::Abandon => self.filter = self.editing.take().unwrap_or_default(),
            Action::Quit => {}
        }
    }

    fn step(&mut self, to: fn(usize, usize) -> usize) {
        let rows = self.rows();
        if let Some(at) = self.selected(&rows) {
            let next = to(at, rows.len() - 1);
            self.selected = rows.get(next).map(|row| Arc::clone(&row.idler));
        }
    }

    pub(crate) fn is_editing(&self) -> bool {
        self.editing.is_some()
    }

    /// The losses in words; `None` without losses.
    pub(crate) fn losses(&self) -> Option<String> {
        match (self.lost, self.losses_unknown) {
            (0, false) => None,
            (0, true) => Some("losses not counted by this kernel".to_owned()),
            (lost, _) => Some(format!("at least {} events lost", count(lost.into()))),
        }
    }

    /// The words before a count: with losses, or where they are not known, there may have been more.
    pub(crate) fn at_least(&self) -> &'static str {
        if self.lost > 0 || self.losses_unknown { "at least " } else { "" }
    }
}

#[cfg(test)]
pub(crate) mod tests;
