//! Progress of long work on stderr: a live line on a terminal, plain lines elsewhere.

use crate::output::note;
use dwell_stats::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

/// Progress as a live line on a terminal, elsewhere as a plain line every few seconds. The line is removed when this is
/// dropped.
pub struct Live {
    line: Option<ProgressBar>,
    shown_at: Option<Instant>,
}

impl Default for Live {
    fn default() -> Live {
        let line = io::stderr().is_terminal().then(|| {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
                .with_style(style("{spinner} {msg}"))
                .with_finish(ProgressFinish::AndClear)
        });
        Live { line, shown_at: None }
    }
}

impl Live {
    /// Nothing is shown of work that is done before the first line is due.
    pub fn after(begun: Instant) -> Live {
        Live { shown_at: Some(begun), ..Live::default() }
    }

    /// Time between two lines.
    pub fn every(&self) -> Duration {
        if self.line.is_some() { Duration::from_millis(500) } else { Duration::from_secs(5) }
    }

    /// Whether the next line is due.
    pub fn due(&self) -> bool {
        self.shown_at.is_none_or(|shown_at| shown_at.elapsed() >= self.every())
    }

    pub fn show(&mut self, words: &str) {
        match &self.line {
            Some(line) => {
                line.set_message(words.to_owned());
                line.tick();
            }
            None => note(words),
        }
        self.shown_at = Some(Instant::now());
    }

    /// Removes the live line until there is more to show.
    pub fn clear(&self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

/// Progress of a campaign; `what` names it if there are several.
pub fn of_campaign(what: &str, progress: &Progress<'_>) -> String {
    let Progress { arm, round, block, blocks, elapsed, budget, gating, widest } = progress;
    let seconds = |time: &Duration| dwell_report::duration(time.as_nanos() as f64);
    let precision = widest.map_or_else(String::new, |(figure, half_width, wanted)| {
        format!("; {figure} ±{:.1} % of ±{:.1} %", half_width * 100.0, wanted * 100.0)
    });
    let repeated =
        if gating.rejected > 0 { format!("; {} repeated", gating.rejected) } else { String::new() };
    let what = if what.is_empty() { String::new() } else { format!("{what}: ") };
    format!(
        "{what}round {}, block {} of {blocks} ({arm}), {} of {}{precision}{repeated}",
        round + 1,
        block + 1,
        seconds(elapsed),
        seconds(budget)
    )
}

/// A bar over episodes.
pub fn episodes(total: u64, what: &'static str) -> ProgressBar {
    bar(total, what, "{msg} {wide_bar} {percent}% of {human_len} episodes, {eta} left")
}

/// A bar over steps that take about as long as each other.
pub fn steps(total: u64, what: &'static str) -> ProgressBar {
    bar(total, what, "{msg} {wide_bar} {percent}%, {eta} left")
}

fn bar(total: u64, what: &'static str, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    bar.set_style(style(template));
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// How a bar or a line is drawn.
pub fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
