//! The figures of each idler, and the state of the user interface.

use super::action::Action;
use super::feed::{Batch, Seen};
use clap::ValueEnum;
use dwell_recording::accounting::{Account, Outcome};
use dwell_report::count;
use dwell_stats::{LogHistogram, Resolution};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Figures cover at most this time; older batches are dropped.
const REMEMBERED: Duration = Duration::from_secs(10);

/// A column to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Wakeups per second.
    #[value(alias = "wakes")]
    Wakeups,
    /// Median idle time.
    P50,
    /// 99th percentile of the idle time.
    P99,
    /// Polling window in force.
    Window,
    /// Share of polls that succeed.
    Success,
    /// Polling CPU.
    Cpu,
    /// Name.
    Name,
}

impl Sort {
    /// The columns, from left to right.
    pub(crate) const ALL: [Sort; 7] =
        [Sort::Name, Sort::Wakeups, Sort::P50, Sort::P99, Sort::Window, Sort::Success, Sort::Cpu];

    /// The heading of the column.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Sort::Name => "idler",
            Sort::Wakeups => "wakeups/s",
            Sort::P50 => "idle p50",
            Sort::P99 => "idle p99",
            Sort::Window => "window",
            Sort::Success => "success",
            Sort::Cpu => "polling",
        }
    }

    fn after(self, steps: usize) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + steps) % Sort::ALL.len()]
    }
}

/// What one idler did in one batch.
#[derive(Clone, Debug)]
struct Slice {
    wakes: u64,
    polls: u64,
    successes: u64,
    polled_ns: u64,
    /// Whether the polled time of any episode is known.
    windows: bool,
    idle: LogHistogram,
}

impl Slice {
    fn new() -> Slice {
        Slice {
            wakes: 0,
            polls: 0,
            successes: 0,
            polled_ns: 0,
            windows: false,
            idle: LogHistogram::new(Resolution::Eighth),
        }
    }

    fn add(&mut self, seen: &Seen) {
        self.wakes += 1;
        self.idle.add(seen.idle_ns);
        let mut account = Account::default();
        account.add(Outcome::of(seen.idle_ns, seen.window_ns, seen.halted, None));
        self.windows |= account.polls_known > 0;
        self.polls += account.polls;
        self.successes += account.polls_succeeded;
        self.polled_ns = self.polled_ns.saturating_add(u64::try_from(account.polled_ns).unwrap_or(u64::MAX));
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
        let sum = |of: fn(&Slice) -> u64| self.slices.values().map(of).fold(0, u64::saturating_add);
        let (wakes, polls, polling) = (sum(|s| s.wakes), sum(|s| s.polls), sum(|s| s.polled_ns));
        let idle = self.idle();
        let quantile = |q: f64| idle.quantile(q).map_or(0, |bucket| bucket.from_ns);
        Row {
            idler: Arc::clone(name),
            wakeups_per_s: wakes as f64 / seconds,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            window_ns: self.window_ns,
            success: (polls > 0).then(|| sum(|s| s.successes) as f64 / polls as f64),
            polling: self.slices.values().any(|s| s.windows).then(|| polling as f64 / 1e9 / seconds),
        }
    }

    fn idle(&self) -> LogHistogram {
        let mut idle = LogHistogram::new(Resolution::Eighth);
        self.slices.values().for_each(|slice| idle.merge(&slice.idle));
        idle
    }
}

/// The state of the screen.
#[derive(Debug)]
pub(crate) struct State {
    target: &'static str,
    idlers: BTreeMap<Arc<str>, Idler>,
    /// Number and length of the batches kept.
    spans: VecDeque<(u64, Duration)>,
    batches: u64,
    lost: u64,
    losses_unknown: bool,
    sort: Sort,
    reversed: bool,
    filter: String,
    /// The filter as it was before it was changed.
    editing: Option<String>,
    selected: Option<Arc<str>>,
    paused: bool,
    help: bool,
    /// What a controller does, in lines.
    control: Vec<String>,
}

impl State {
    pub(crate) fn new(target: &'static str, sort: Sort, filter: &str) -> State {
        State {
            target,
            idlers: BTreeMap::new(),
            spans: VecDeque::new(),
            batches: 0,
            lost: 0,
            losses_unknown: false,
            sort,
            reversed: false,
            filter: filter.to_owned(),
            editing: None,
            selected: None,
            paused: false,
            help: false,
            control: vec![],
        }
    }

    /// What a controller does now.
    pub(crate) fn set_control(&mut self, lines: Vec<String>) {
        self.control = lines;
    }

    /// What a controller does, in a line for each layer.
    pub(crate) fn control(&self) -> &[String] {
        &self.control
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

    pub(crate) fn target(&self) -> &'static str {
        self.target
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

    pub(crate) fn sort(&self) -> Sort {
        self.sort
    }

    pub(crate) fn reversed(&self) -> bool {
        self.reversed
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn shows_help(&self) -> bool {
        self.help
    }
}

/// Largest first, names from A to Z; unknown values last.
fn compare(sort: Sort, a: &Row, b: &Row) -> Ordering {
    let known = |a: Option<f64>, b: Option<f64>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
    match sort {
        Sort::Name => a.idler.cmp(&b.idler),
        Sort::Wakeups => b.wakeups_per_s.total_cmp(&a.wakeups_per_s),
        Sort::P50 => b.p50_ns.cmp(&a.p50_ns),
        Sort::P99 => b.p99_ns.cmp(&a.p99_ns),
        Sort::Window => b.window_ns.cmp(&a.window_ns),
        Sort::Success => known(a.success, b.success),
        Sort::Cpu => known(a.polling, b.polling),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn seen(idler: &str, idle_ns: u64, window_ns: Option<u64>) -> Seen {
        Seen { idler: idler.into(), idle_ns, window_ns, halted: window_ns.map(|window| idle_ns > window) }
    }

    fn batch(episodes: Vec<Seen>) -> Batch {
        Batch { span: Duration::from_secs(1), episodes, ..Batch::default() }
    }

    /// Two vCPUs that poll and one thread of which no window is known.
    pub(crate) fn example() -> State {
        let mut state = State::new("host", Sort::Wakeups, "");
        let mut episodes = vec![];
        episodes.extend((0..1_000).map(|_| seen("web/0", 50_000, Some(200_000))));
        episodes.extend((0..100).map(|_| seen("web/1", 1_000_000, Some(10_000))));
        episodes.extend((0..10).map(|_| seen("redis", 8, None)));
        state.take(Batch { lost: 3, ..batch(episodes) });
        state
    }

    fn names(state: &State) -> Vec<String> {
        state.rows().iter().map(|row| row.idler.to_string()).collect()
    }

    #[test]
    fn rows_tell_rates_quantiles_and_polling() {
        let state = example();
        let rows = state.rows();
        assert_eq!(names(&state), ["web/0", "web/1", "redis"]);
        assert_eq!((rows[0].wakeups_per_s, rows[0].success), (1_000.0, Some(1.0)));
        assert!((rows[0].polling.unwrap() - 0.05).abs() < 1e-9);
        assert_eq!((rows[0].p50_ns, rows[0].window_ns), (49_152, Some(200_000)));
        assert_eq!((rows[1].success, rows[1].polling), (Some(0.0), Some(0.001)));
        assert_eq!((rows[2].p99_ns, rows[2].success, rows[2].polling), (8, None, None));
        assert_eq!(state.octaves("web/0")[16], 1_000);
    }

    #[test]
    fn what_is_older_than_ten_seconds_is_forgotten() {
        let mut state = example();
        for _ in 0..10 {
            state.take(batch(vec![seen("web/1", 100, None)]));
        }
        assert_eq!((names(&state), state.span()), (vec!["web/1".to_owned()], Duration::from_secs(10)));
        assert!((state.rows()[0].wakeups_per_s - 1.0).abs() < 1e-9);
        assert_eq!(state.lost, 3);
    }

    #[test]
    fn selection_stays_with_its_idler_when_the_order_changes() {
        let mut state = example();
        state.apply(Action::Down);
        assert_eq!(state.selected(&state.rows()), Some(1));
        state.apply(Action::Reverse);
        assert_eq!(names(&state), ["redis", "web/1", "web/0"]);
        assert_eq!(state.selected(&state.rows()), Some(1));
        state.apply(Action::Last);
        state.apply(Action::Down);
        assert_eq!(state.selected(&state.rows()), Some(2));
        state.apply(Action::PreviousColumn);
        assert_eq!(state.sort(), Sort::Name);
    }

    #[test]
    fn filter_is_typed_kept_and_abandoned() {
        let mut state = example();
        state.apply(Action::Filter);
        for letter in "web".chars() {
            state.apply(Action::Letter(letter));
        }
        assert!(state.is_editing() && names(&state).len() == 2);
        state.apply(Action::Accept);
        state.apply(Action::Filter);
        state.apply(Action::Letter('x'));
        assert_eq!(names(&state), Vec::<String>::new());
        assert_eq!(state.selected(&state.rows()), None);
        state.apply(Action::Down);
        state.apply(Action::Abandon);
        assert_eq!((state.filter(), names(&state).len()), ("web", 2));
    }

    #[test]
    fn pause_passes_over_episodes_but_not_losses() {
        let mut state = example();
        state.apply(Action::Pause);
        state.take(Batch { lost: 4, ..batch(vec![seen("new", 1, None)]) });
        assert_eq!((names(&state).len(), state.lost), (3, 7));
    }

    #[test]
    fn counts_are_at_least_where_losses_are_known_or_unknowable() {
        let mut state = State::new("host", Sort::Wakeups, "");
        state.take(batch(vec![seen("a", 1, None)]));
        assert_eq!((state.at_least(), state.losses()), ("", None));
        state.take(Batch { losses_unknown: true, ..Batch::default() });
        assert_eq!(
            (state.at_least(), &*state.losses().unwrap()),
            ("at least ", "losses not counted by this kernel")
        );
        // It stays so, and is a matter of the kernel.
        state.apply(Action::Clear);
        state.take(Batch::default());
        assert_eq!(state.at_least(), "at least ");
        assert_eq!(example().losses().unwrap(), "at least 3 events lost");
        let mut example = example();
        example.apply(Action::Clear);
        assert_eq!((example.at_least(), example.losses()), ("", None));
    }
}
