//! Progress of long work on stderr: a bar or a live line on a terminal, plain lines elsewhere for some commands.

use anyhow::Context;
use dwell_capture::{Observer, Status};
use dwell_cli::progress::{Live, of_campaign, style};
pub(crate) use dwell_cli::progress::{episodes, steps};
use dwell_policy::Nanos;
use dwell_recording::regular;
use dwell_replay::{ReplayError, Replayed, Rule, Source};
use dwell_stats::{Block, Campaign, Environment, Progress, Results, Trial};
use dwell_trace::import::{Input, STDIN};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Replays rules over all episodes of a source, with a bar.
pub(crate) fn replay(source: &dyn Source, rules: &[Rule], halt_cost: Nanos) -> Result<Replayed, ReplayError> {
    let bar = episodes(source.episodes(), "replaying");
    let replayed = dwell_replay::replay(source, rules, halt_cost, &|episodes| bar.inc(episodes));
    bar.finish_and_clear();
    replayed
}

/// A bar over the bytes of a text; - is stdin, whose length is not known.
pub(crate) fn text(path: &Path) -> anyhow::Result<Input<'static>> {
    if path == Path::new("-") {
        return Ok(Input::new(STDIN, io::stdin())?);
    }
    let name = path.display().to_string();
    let file = regular::open(path).with_context(|| match fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => {
            format!("cannot read {name}; pipe it to stdin and give - as the file")
        }
        _ => format!("cannot open {name}"),
    })?;
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    // The bar is cleared when the reader, which holds it, is dropped at the end of the input.
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        .with_style(style("{msg} {wide_bar} {bytes} of {total_bytes}, {eta} left"))
        .with_message("reading")
        .with_finish(ProgressFinish::AndClear);
    Ok(Input::new(&name, bar.wrap_read(file))?)
}

/// The error of a block, as a campaign takes it.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct BlockError(anyhow::Error);

/// Runs a campaign, with a live line.
pub(crate) fn campaign<S>(
    campaign: &Campaign<S>,
    environment: &mut dyn Environment,
    stop: &AtomicBool,
    mut block: impl FnMut(&Trial<'_, S>) -> anyhow::Result<Block>,
) -> anyhow::Result<Results> {
    let mut live = Live::default();
    let mut show = |now: &Progress<'_>| {
        if live.due() {
            live.show(&of_campaign("", now));
        }
    };
    let measured = campaign.run(environment, stop, &mut show, |trial| block(trial).map_err(BlockError))?;
    Ok(measured.results())
}

/// Progress over recordings, which several threads work through.
pub(crate) struct Recordings {
    live: Mutex<Live>,
    begun: Instant,
    done: AtomicU64,
    total: u64,
}

/// Progress over so many recordings; nothing is shown of work that is done before the first line is due.
pub(crate) fn recordings(total: u64) -> Recordings {
    let begun = Instant::now();
    let live = Live::after(begun);
    Recordings { live: Mutex::new(live), begun, done: AtomicU64::new(0), total }
}

impl Recordings {
    /// One more is worked through.
    pub(crate) fn done(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        // Another thread that is about to show it will do.
        let Ok(mut live) = self.live.try_lock() else { return };
        if live.due() {
            let seconds = self.begun.elapsed().as_secs_f64();
            let left = seconds * 1e9 * (self.total.saturating_sub(done) as f64 / done as f64);
            live.show(&format!(
                "{} of {}, {} left",
                dwell_report::count(done.into()),
                dwell_report::number_of(self.total.into(), "recording"),
                dwell_report::duration(left)
            ));
        }
    }
}

/// The status of a recording.
pub(crate) struct Recording {
    live: Live,
    duration: Option<Duration>,
    before: Status,
    /// Whether episodes are recorded.
    episodes: bool,
}

impl Recording {
    pub(crate) fn new(duration: Option<Duration>) -> Recording {
        Recording { live: Live::default(), duration, before: Status::default(), episodes: true }
    }

    /// The status of a recording of timers.
    pub(crate) fn of_timers(duration: Option<Duration>) -> Recording {
        Recording { episodes: false, ..Recording::new(duration) }
    }

    fn words(&self, now: &Status) -> String {
        let seconds = (now.elapsed - self.before.elapsed).as_secs_f64();
        let of = self
            .duration
            .map_or_else(String::new, |d| format!(" of {}", dwell_report::duration(d.as_nanos() as f64)));
        let episodes = format!(
            "{} episodes/s of {}, {} in all; ",
            per_second(now.episodes - self.before.episodes, seconds),
            dwell_report::number_of(now.idlers as u128, "idler"),
            dwell_report::count(now.episodes.into()),
        );
        format!(
            "{:.0} s{of}: {}{} events/s, {} lost{}",
            now.elapsed.as_secs_f64(),
            if self.episodes { &episodes } else { "" },
            per_second(now.events - self.before.events, seconds),
            dwell_report::count(now.lost.into()),
            if self.duration.is_none() { " (Ctrl-C ends)" } else { "" },
        )
    }
}

impl Observer for Recording {
    fn status(&mut self, now: &Status) {
        if now.elapsed.saturating_sub(self.before.elapsed) < self.live.every() {
            return;
        }
        let words = self.words(now);
        self.live.show(&words);
        self.before = *now;
    }
}

/// A whole number per second.
pub(crate) fn per_second(number: u64, seconds: f64) -> String {
    dwell_report::rounded(number as f64 / seconds.max(1e-9))
}
