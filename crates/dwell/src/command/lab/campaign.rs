//! What all experiments have in common: how long they run, what they are told and what they tell meanwhile.

use crate::command::record::command_line;
use crate::{progress, quantity, stop};
use anyhow::Context;
use dwell_lab::experiment::LabError;
use dwell_lab::host::Load;
use dwell_lab::samples::{self, About};
use dwell_policy::Nanos;
use dwell_stats::{Arms, CampaignError, CampaignOptions, Measurements, Progress};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Options of every experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct CampaignArgs {
    /// Time at most; a round that would not end in time is not begun
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = budget)]
    budget: Duration,
    /// Rounds at most; a round measures each arm twice, there and back [default: as many as the budget allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// From which the gaps and the resamples of the intervals are drawn; the same seed gives the same gaps
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Repeat a block during which other programs took more than this share of one CPU
    #[arg(long, value_name = "SHARE", default_value = "4%", value_parser = quantity::share)]
    foreign_limit: f64,
    /// Write every sample and every block to this Parquet file as well; validate writes FILE, FILE-2 and so on
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
}

fn numbered(path: &Path, part: usize) -> PathBuf {
    if part == 0 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", part + 1));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

fn budget(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let minutes = text.strip_suffix("min").map(|number| number.trim().parse::<u32>());
    match minutes {
        Some(Ok(minutes)) => Ok(Duration::from_secs(60 * u64::from(minutes))),
        _ => quantity::duration(text).map(|ns| Duration::from_nanos(ns.get())),
    }
}

impl CampaignArgs {
    /// The plan, of which `share` campaigns share the budget.
    pub(crate) fn plan(&self, share: u32) -> CampaignOptions {
        CampaignOptions {
            seed: self.seed,
            max_rounds: self.rounds.unwrap_or(u32::MAX),
            budget: self.budget / share.max(1),
            foreign_limit: self.foreign_limit,
            ..CampaignOptions::default()
        }
    }

    /// Writes what was measured to the file that was asked for, if one was; of several campaigns the second to `FILE-2`
    /// and so on, before the ending.
    pub(crate) fn keep(
        &self,
        record: &Measurements,
        part: usize,
        gaps: &str,
        notes: &[String],
    ) -> anyhow::Result<()> {
        let Some(path) = &self.samples else { return Ok(()) };
        let path = &numbered(path, part);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let about = About {
            command: command_line(),
            gaps: Some(gaps.to_owned()),
            begun_s: now.map(|now| now.saturating_sub(record.elapsed).as_secs()),
            notes: [("notes".to_owned(), notes.into())].into_iter().collect(),
        };
        samples::write(path, record, &about)?;
        eprintln!("samples: {}", path.display());
        Ok(())
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
}

/// What goes along with campaigns: the gate, the user's wish to stop, and the line of progress.
pub(crate) struct Along {
    pub(crate) load: Load,
    pub(crate) stop: Arc<AtomicBool>,
    line: progress::Live,
    what: String,
}

impl Along {
    /// # Errors
    /// Where the load of the machine cannot be read.
    pub(crate) fn open() -> anyhow::Result<Along> {
        let stop = stop::on_ctrl_c()?;
        Ok(Along { load: Load::open()?, stop, line: progress::Live::new(), what: String::new() })
    }

    /// What the next campaign is about, where there are several.
    pub(crate) fn about(&mut self, what: impl Into<String>) {
        self.what = what.into();
    }

    /// Whether the user wants no more.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a campaign. One that the user stops gives what it has, if it has a round.
    pub(crate) fn run(
        &mut self,
        campaign: impl FnOnce(
            &mut Load,
            &AtomicBool,
            &mut dyn FnMut(&Progress<'_>),
        ) -> Result<Measurements, CampaignError<LabError>>,
    ) -> anyhow::Result<Measurements> {
        let Along { load, stop, line, what } = self;
        let mut tell = |now: &Progress<'_>| {
            if line.due() {
                line.tell(&progress::of_campaign(what, now));
            }
        };
        let done = campaign(load, stop, &mut tell);
        line.clear();
        match done {
            Ok(record) => Ok(record),
            Err(CampaignError::Block { source: LabError::Stopped, measurements, .. }) => Ok(*measurements),
            Err(error) => Err(error.into()),
        }
    }
}

/// What was asked for, or else the default.
pub(crate) fn given_or<S>(given: Vec<S>, default: &[&str]) -> anyhow::Result<Vec<S>>
where
    S: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    if !given.is_empty() {
        return Ok(given);
    }
    Ok(default.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}

/// The arms that were asked for, or else the default ones; the first is the baseline.
pub(crate) fn arms<S>(given: Vec<S>, default: &[&str]) -> anyhow::Result<Arms<S>>
where
    S: Clone + Display + FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let settings = given_or(given, default)?;
    let (first, rest) = settings.split_first().context("no arm to measure")?;
    let arms = Arms::new(&first.to_string(), first.clone());
    Ok(rest.iter().fold(arms, |arms, setting| arms.arm(&setting.to_string(), setting.clone())))
}

/// A block's length: long enough for hundreds of wakes, short enough to be repeated.
pub(crate) const BLOCK: Nanos = Nanos::from_micros(150_000);
