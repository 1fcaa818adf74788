//! `dwell top`: its parts.
//!
//! A [`feed`](mod@feed) gives episodes as they end; [`state`](mod@state) keeps the last seconds of each idler and what
//! the user looks at; [`action`](mod@action) is the one table of keys; [`draw`](mod@draw) turns the state
//! into a screen, in the colours of [`theme`]. [`once`] is the screen as text.

mod action;
mod bills;
mod draw;
mod feed;
mod once;
mod state;
mod theme;

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::quantity;
use crate::stop;
use action::Action;
use anyhow::ensure;
use bills::Bills;
use dwell_knobs::journal::STATE_DIRECTORY;
use dwell_policy::Nanos;
use feed::{Feed, Target};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use state::{Sort, State};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use theme::Theme;

/// Watch idlers live: wakeups, idle times, windows, polls, polling CPU
///
/// Shows every idler that woke up in the last ten seconds, and a histogram of the idle times of the selected one. Where
/// `dwell control` runs, what it does is shown above.
/// Press `?` for the keys.
#[derive(clap::Args)]
#[command(after_help = "Polling CPU is the time polled as a share of one CPU, where windows are known.")]
pub(crate) struct Args {
    /// What to watch: host (vCPUs), guest (this machine's CPUs) or thread (event loops)
    #[arg(default_value = "host")]
    target: Target,
    /// Only the VM or the threads of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Only threads with this name; for the target `thread`
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Show above what uses CPU time, as `dwell why`
    ///
    /// That of the VMs, or of this machine's CPUs, in the last ten seconds; with --once, in one interval. More events are
    /// traced for it.
    #[arg(long)]
    why: bool,
    /// Time between updates
    ///
    /// At least 50ms.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "1s")]
    interval: Nanos,
    /// Column to sort by
    #[arg(long, value_enum, default_value_t = Sort::Wakeups)]
    sort: Sort,
    /// Show only idlers whose name contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print one table after one interval, then exit; the default without a terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// What would redraw faster than it can be read.
const SHORTEST: Nanos = Nanos(50_000_000);

pub(crate) fn run(args: Args) -> Outcome {
    ensure!(args.interval >= SHORTEST, "--interval: at least 50ms");
    let interval = Duration::from_nanos(args.interval.get());
    let mut feed = feed::live(args.target, args.pid, args.comm.as_deref())?;
    let subject = bills::subject(args.target, args.pid);
    let mut state = State::new(args.target.name(), args.sort, &args.filter);
    if args.once || args.format.format != Format::Table || !io::stdout().is_terminal() {
        let bills = Bills::default();
        match args.why {
            true => drop(bills.renew(&subject, interval)),
            false => std::thread::sleep(interval),
        }
        state.take(feed.next()?);
        state.control = above(&bills);
        match args.format.format {
            Format::Json => output::json(&once::rows(&state))?,
            Format::Csv => {
                output::csv(&once::table(&state))?;
                if let Some(losses) = state.losses() {
                    output::note(&format!("{losses}; counts are lower bounds"));
                }
            }
            Format::Table => output::text(&once::text(&state))?,
        }
    } else {
        let bills = if args.why { Bills::start(subject) } else { Bills::default() };
        // Restores the terminal on a panic, too, and not by itself on a signal.
        let stop = stop::patiently()?;
        let mut terminal = ratatui::try_init()?;
        let watched = watch(&mut terminal, &mut state, &mut feed, &bills, interval, &stop);
        ratatui::restore();
        watched?;
    }
    Ok(Answer::Yes)
}

/// What the controller of this machine does, if one runs, and what the CPU time goes for.
fn above(bills: &Bills) -> Vec<String> {
    let mut lines = crate::command::control::lines(Path::new(STATE_DIRECTORY));
    lines.extend(bills.lines());
    lines
}

fn watch(
    terminal: &mut DefaultTerminal,
    state: &mut State,
    feed: &mut Feed,
    bills: &Bills,
    interval: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let theme = Theme::of_environment();
    let mut due = Instant::now() + interval;
    while !stop.load(Ordering::Relaxed) {
        terminal.draw(|frame| draw::draw(frame, state, &theme))?;
        if let Some(key) = key(due, stop)? {
            match action::of(key, state.is_editing()) {
                Some(Action::Quit) => return Ok(()),
                Some(action) => state.apply(action),
                None => {}
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            state.take(feed.next()?);
            state.control = above(bills);
        }
    }
    Ok(())
}

/// How long a signal waits until the program ends.
const LOOK: Duration = Duration::from_millis(100);

/// The next key, if one is pressed in time. A changed size ends the waiting, too, so that it is drawn anew.
fn key(due: Instant, stop: &AtomicBool) -> io::Result<Option<KeyEvent>> {
    while !event::poll(due.saturating_duration_since(Instant::now()).min(LOOK))? {
        if stop.load(Ordering::Relaxed) || Instant::now() >= due {
            return Ok(None);
        }
    }
    match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => Ok(Some(key)),
        _ => Ok(None),
    }
}
