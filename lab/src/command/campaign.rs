//! Options, progress and Ctrl-C of all experiments.

use anyhow::{Context, ensure};
use clap::builder::{PathBufValueParser, TypedValueParser};
use dwell_cli::failure::{Answer, Outcome};
use dwell_cli::{command_line, output, progress, quantity, stop};
use dwell_lab::experiment::{LabError, Rig};
use dwell_lab::host::{ExperimentLoad, Pinned, load_of_programs, load_on};
use dwell_lab::samples::{self, About, SamplesError};
use dwell_policy::Nanos;
use dwell_recording::{NewFile, NewFileError};
use dwell_stats::{Arms, CampaignError, CampaignOptions, Measurements, Progress};
use std::cell::OnceCell;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Options of every experiment.
#[derive(Debug, clap::Args)]
pub(crate) struct CampaignArgs {
    /// Longest time to measure; a round that would end later is not started
    ///
    /// The first round is measured, however long it takes. Several campaigns share the time.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = budget)]
    budget: Duration,
    /// Largest number of rounds [default: no limit]
    ///
    /// A round measures each arm twice, the second time in reverse order.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seed of the gaps and of the bootstrap intervals
    ///
    /// The same seed gives the same gaps.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Repeat a block during which other programs used more than this much CPU time
    ///
    /// `4%` is a share of one CPU, `1.5` one and a half CPUs. With 0, every block in which another program ran is
    /// repeated.
    #[arg(long, value_name = "CPUS", default_value = "4%", value_parser = quantity::cpus)]
    foreign_limit: f64,
    /// Also write every sample and every block to this Parquet file
    ///
    /// An experiment with several campaigns writes FILE, FILE-2 and so on.
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(writable))]
    samples: Option<PathBuf>,
    /// Why samples could not be written, which does not cost the results.
    #[arg(skip)]
    lost: OnceCell<SamplesError>,
}

/// Refuses a file that could not be written, before anything is measured.
pub(crate) fn writable(path: PathBuf) -> Result<PathBuf, NewFileError> {
    NewFile::create(&path).map(|_| path)
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
    /// Refuses fewer rounds than intervals need.
    pub(crate) fn at_least(&self, rounds: usize) -> anyhow::Result<()> {
        let asked = self.rounds.unwrap_or(u32::MAX);
        ensure!(asked as usize >= rounds, "--rounds {asked}: at least {rounds} are needed for intervals");
        Ok(())
    }

    /// Options of one of `share` campaigns that share the budget.
    pub(crate) fn options(&self, share: usize) -> CampaignOptions {
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        CampaignOptions {
            seed: self.seed,
            max_rounds: self.rounds.unwrap_or(u32::MAX),
            budget: self.budget / share.max(1),
            foreign_limit: self.foreign_limit,
            ..CampaignOptions::default()
        }
    }

    /// Whether there is a --samples.
    pub(super) fn keeps_samples(&self) -> bool {
        self.samples.is_some()
    }

    /// Writes the measurements to the file of --samples, if given; of several campaigns, the second to
    /// `FILE-2` and so on, before the extension. Where that fails the command goes on, see [`CampaignArgs::end`].
    pub(crate) fn keep(&self, measurements: &Measurements, part: usize, gaps: &str, notes: &[String]) {
        let Some(path) = &self.samples else { return };
        let path = &numbered(path, part);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let about = About {
            command: command_line("dwell-lab"),
            gaps: Some(gaps.to_owned()),
            begun_s: now.map(|now| now.saturating_sub(measurements.elapsed).as_secs()),
            notes: [("notes".to_owned(), notes.into())].into_iter().collect(),
        };
        match samples::write(path, measurements, &about) {
            Ok(()) => output::note(&format!("samples: {}", path.display())),
            Err(error) => _ = self.lost.set(error),
        }
    }

    /// The end of a command whose results are printed.
    ///
    /// # Errors
    /// Samples could not be written.
    pub(crate) fn end(self) -> Outcome {
        match self.lost.into_inner() {
            None => Ok(Answer::Yes),
            Some(error) => Err(error).context("the results are complete, but not the files of --samples"),
        }
    }

    pub(crate) fn foreign_limit(&self) -> f64 {
        self.foreign_limit
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }
}

/// An error of a block, which may be that the user stopped it.
pub(crate) trait MayBeStopped: std::error::Error + Send + Sync + 'static {
    fn is_stopped(&self) -> bool;
}

impl MayBeStopped for LabError {
    fn is_stopped(&self) -> bool {
        matches!(self, LabError::Stopped)
    }
}

/// Foreign load, Ctrl-C and the progress line, for all campaigns of a command.
pub(crate) struct Session {
    pub(crate) load: ExperimentLoad,
    pub(crate) stop: Arc<AtomicBool>,
    line: progress::Live,
    what: String,
    /// Keeps this thread on a core of the experiment, of which alone the load is read.
    _aside: Option<Pinned>,
}

impl Session {
    /// # Errors
    /// The load of the cores cannot be read.
    pub(crate) fn open(rig: &Rig) -> anyhow::Result<Session> {
        Session::of(stop::on_ctrl_c()?, load_on(rig.cores().all())?, Some(rig.aside()?))
    }

    fn of(stop: Arc<AtomicBool>, load: ExperimentLoad, aside: Option<Pinned>) -> anyhow::Result<Session> {
        Ok(Session { load, stop, line: progress::Live::default(), what: String::new(), _aside: aside })
    }

    /// Of an experiment on all CPUs, whose programs this process starts, and that has to restore something at
    /// its end: Ctrl-C does not end it at once.
    ///
    /// # Errors
    /// The load of the machine cannot be read.
    pub(crate) fn of_programs() -> anyhow::Result<Session> {
        let stop = stop::patiently()?;
        Session::of(stop, load_of_programs()?, None)
    }

    /// Names the next campaign, where there are several.
    pub(crate) fn about(&mut self, what: impl Into<String>) {
        self.what = what.into();
    }

    /// Whether the user pressed Ctrl-C.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a campaign. `None`: the user stopped it before its first round was complete.
    pub(crate) fn run<E: MayBeStopped>(
        &mut self,
        campaign: impl FnOnce(
            &mut ExperimentLoad,
            &AtomicBool,
            &mut dyn FnMut(&Progress<'_>),
        ) -> Result<Measurements, CampaignError<E>>,
    ) -> anyhow::Result<Option<Measurements>> {
        let Session { load, stop, line, what, .. } = self;
        let mut show = |now: &Progress<'_>| {
            if line.due() {
                line.show(&progress::of_campaign(what, now));
            }
        };
        let done = campaign(load, stop, &mut show);
        line.clear();
        match done {
            Ok(measurements) => Ok(with_a_round(measurements)),
            Err(CampaignError::Block { source, measurements, .. }) if source.is_stopped() => {
                Ok(with_a_round(*measurements))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// As [`run`](Session::run), for a command of one campaign.
    pub(crate) fn run_only(
        &mut self,
        campaign: impl FnOnce(
            &mut ExperimentLoad,
            &AtomicBool,
            &mut dyn FnMut(&Progress<'_>),
        ) -> Result<Measurements, CampaignError<LabError>>,
    ) -> anyhow::Result<Measurements> {
        self.run(campaign)?.context(STOPPED_EARLY)
    }
}

/// Why there are no results.
pub(crate) const STOPPED_EARLY: &str = "stopped before the first round was complete; there are no results";

fn with_a_round(measurements: Measurements) -> Option<Measurements> {
    (measurements.rounds > 0).then_some(measurements)
}

/// The values given, or the default.
pub(crate) fn given_or<S>(given: Vec<S>, default: &[&str]) -> anyhow::Result<Vec<S>>
where
    S: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    if !given.is_empty() {
        return Ok(given);
    }
    Ok(default.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}

/// The arms given, or the default ones; the first is the baseline.
pub(crate) fn arms<S>(given: Vec<S>, default: &[&str]) -> anyhow::Result<Arms<S>>
where
    S: Clone + Display + FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let settings = given_or(given, default)?;
    let (first, rest) = settings.split_first().context("cannot measure: no arm is given")?;
    let arms = Arms::new(&first.to_string(), first.clone());
    Ok(rest.iter().fold(arms, |arms, setting| arms.arm(&setting.to_string(), setting.clone())))
}

/// Length of a block: long enough for hundreds of wakeups, short enough to be repeated.
pub(crate) const BLOCK: Nanos = Nanos::from_micros(150_000);
