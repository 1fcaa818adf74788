//! `dwell top`: what is where.
//!
//! A [`feed`](mod@feed) gives episodes as they end; [`state`](mod@state) keeps the last seconds of each idler and what
//! the user looks at; [`action`](mod@action) is the one table of keys; [`draw`](mod@draw) turns the state into a screen,
//! in the colours of [`theme`]; [`terminal`] is left as it was found. [`once`] is the screen as text.

mod action;
mod draw;
mod feed;
mod once;
mod state;
mod terminal;
mod theme;

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::quantity;
use action::Action;
use anyhow::bail;
use dwell_policy::Nanos;
use feed::{Feed, Target};
use state::{Sort, State};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use terminal::Screen;
use theme::Theme;

/// Watch idlers live: wakeups, idle times, windows, polls, polling CPU
///
/// Shows the last ten seconds of every idler that has woken in them, and a histogram of the idle times of the selected
/// one. Keys: `?` lists them.
#[derive(clap::Args)]
#[command(after_help = "CPU burnt is the time polled, where windows are known; it is a share of one CPU.\n\
                        Without a terminal, or with --once, one screen is printed as text after one interval.")]
pub(crate) struct Args {
    /// What to watch: host (vCPUs), guest (this machine's CPUs) or thread (event loops)
    #[arg(default_value = "host")]
    target: Target,
    /// Only the VM, or the threads, of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Only threads of this name; for thread
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// How often to look
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "1s")]
    interval: Nanos,
    /// Sort by this column
    #[arg(long, value_enum, default_value_t = Sort::Wakes)]
    sort: Sort,
    /// Show only idlers whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print one screen as text, after one interval
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// What would redraw faster than it can be read.
const SHORTEST: Nanos = Nanos(50_000_000);

pub(crate) fn run(args: Args) -> Outcome {
    if args.interval < SHORTEST {
        bail!("--interval: at least 50ms");
    }
    let interval = Duration::from_nanos(args.interval.get());
    let mut feed = feed::live(args.target, args.pid, args.comm.as_deref())?;
    let mut state = State::new(args.target.name(), args.sort, &args.filter);
    if args.once || args.format.format != Format::Table || !io::stdout().is_terminal() {
        std::thread::sleep(interval);
        state.take(feed.next()?);
        match args.format.format {
            Format::Json => output::json(&once::rows(&state))?,
            Format::Csv => output::csv(&once::table(&state))?,
            Format::Table => output::text(&once::text(&state))?,
        }
    } else {
        watch(&mut state, &mut *feed, interval)?;
    }
    Ok(Answer::Yes)
}

fn watch(state: &mut State, feed: &mut dyn Feed, interval: Duration) -> anyhow::Result<()> {
    let mut screen = Screen::take()?;
    let theme = Theme::of_environment();
    let mut due = Instant::now() + interval;
    loop {
        screen.draw(|frame| draw::draw(frame, state, &theme))?;
        if let Some(key) = screen.key(due.saturating_duration_since(Instant::now()))? {
            match action::of(key, state.is_editing()) {
                Some(Action::Quit) => return Ok(()),
                Some(action) => state.apply(action),
                None => {}
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            state.take(feed.next()?);
        }
    }
}
