//! `validate`: the errors of predictions.
//!
//! A vCPU is recorded by dwell's own recorder under one setting of host polling. From only that recording and
//! the cost of a halt on this host, dwell predicts other settings; then these are run with the same gaps.
//!
//! # The model
//! * A recorded idle period that halted is too long by the wakeup latency (`idle_excess`); one that
//!   ended in the poll is exact. Without that excess it is the time of the wakeup event.
//! * The rule of the running kernel is replayed over these times; after a halt it learns from a period that
//!   is longer by the same excess, as in the kernel.
//! * Where other tasks are put on the core of the vCPU, a poll ends when the recording shows one to be
//!   runnable, and takes at least one pass of KVM's loop, whose length follows from KVM's counters.
//! * CPU time is what the recorded run used beyond polling and halting, plus the polling and halts that are predicted.

use super::halt_costs::{halt_cpu_after, idle_excess};
use super::recorded::record_during;
use super::waking::{self, WARM_UP, WakeupBlock};
use super::{LabError, Rig};
use crate::gaps::Gaps;
use crate::idle::{Halts, Idle};
use dwell_capture::{Recorder, Target};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Chunk, Columns, Reader, SettingValue};
use dwell_replay::calibration::HaltCosts;
use dwell_replay::check::self_check;
use dwell_replay::{Counts, RecordingSource, Rule};
use dwell_stats::Bootstrap;
use dwell_stats::{Block, BlockStatus, Figure, Interval, MeasuredBlock, Measurements, Trial, Unit, median};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// The figures that are predicted and measured, per wakeup, in the order in which they are shown.
pub const FIGURES: [&str; 5] = ["polls", "polls_succeeded", "polled_ns", "halts", "cpu_ns"];

/// The name of a block's figure: what was measured of an arm.
pub fn measured(figure: &str) -> String {
    format!("{figure}_per_wakeup")
}

/// The name of a figure of the recorded block: what was predicted for another arm.
pub fn predicted(arm: &str, figure: &str) -> String {
    format!("predicted {figure}_per_wakeup of {arm}")
}

/// The figures of a campaign, measured of every arm. Predictions are in the blocks of the baseline, which is
/// recorded, under other names.
pub fn figures() -> Vec<Figure> {
    let unit = |figure: &str| if figure.ends_with("_ns") { Unit::Nanos } else { Unit::Count };
    FIGURES.into_iter().map(|figure| Figure::of_block(measured(figure), unit(figure))).collect()
}

/// A figure, predicted and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    pub arm: String,
    /// One of [`FIGURES`].
    pub figure: Cow<'static, str>,
    /// Per wakeup.
    pub predicted: f64,
    /// Per wakeup.
    pub measured: f64,
    /// Predicted / measured - 1; see [`RARE`]. Of the sums over all blocks.
    pub error: Interval,
    /// The same for the median pair of blocks: a recorded one, and one of the arm with the same gaps. One
    /// interrupt of 20 us is a tenth of what 1,000 polls of one pass of KVM's loop take, so that a sum of
    /// short polls can be that of a few interrupts. Of the pairs that no other program disturbed, if there
    /// are [`FEWEST_PAIRS`], else of all.
    #[serde(default)]
    pub median_error: Option<f64>,
    /// Pairs of blocks that no other program disturbed.
    #[serde(default)]
    pub undisturbed_pairs: usize,
}

/// So many pairs of blocks have a median that one of them does not determine.
pub const FEWEST_PAIRS: usize = 8;

/// Below this many per wakeup, the error is the difference as a share of all wakeups: the ratio of a few events is
/// meaningless.
pub const RARE: f64 = 0.01;

/// Every figure of every arm that was predicted.
pub fn predictions(record: &Measurements, others: &[(String, Idle)]) -> Vec<Prediction> {
    let bootstrap =
        Bootstrap { confidence: record.options.confidence, resamples: 2_000, seed: record.options.seed };
    let recorded = record.rounds_of(0);
    let mut predictions = vec![];
    for (name, _) in others {
        let Some(arm) = record.arms.iter().position(|arm| arm.name == *name) else { continue };
        let (run, pairs) = (record.rounds_of(arm), Pairs::of(record, arm));
        for figure in FIGURES {
            let sums = |rounds: &[Vec<&Block>], name: &str| -> Vec<f64> {
                let of = |block: &&Block| block.figures.get(name).copied().unwrap_or(0.0);
                rounds.iter().map(|blocks| blocks.iter().map(of).sum()).collect()
            };
            let (p, m) = (sums(&recorded, &predicted(name, figure)), sums(&run, &measured(figure)));
            let blocks: f64 = run.iter().map(|blocks| blocks.len() as f64).sum::<f64>().max(1.0);
            let mean = |sums: &[f64]| sums.iter().sum::<f64>() / blocks;
            let count = !figure.ends_with("_ns");
            let error = bootstrap.percentile(p.len().min(m.len()), |draw| {
                let weigh = |sums: &[f64]| -> f64 { draw.picks.iter().map(|pick| sums[*pick]).sum() };
                let wakes = draw.picks.len() as f64 * blocks / p.len().max(1) as f64;
                Some(error(weigh(&p), weigh(&m), if count { RARE * wakes } else { 0.0 }))
            });
            let error = error.unwrap_or_else(|| Interval::unknown(f64::NAN));
            predictions.push(Prediction {
                arm: name.clone(),
                figure: figure.into(),
                predicted: mean(&p),
                measured: mean(&m),
                error,
                median_error: pairs.median_error(name, figure),
                undisturbed_pairs: pairs.undisturbed,
            });
        }
    }
    predictions
}

/// Pairs of blocks with the same gaps: a recorded one, and one of an arm.
struct Pairs<'m> {
    /// All, or if there are enough of them, those that no other program disturbed.
    pairs: Vec<[&'m Block; 2]>,
    undisturbed: usize,
}

impl<'m> Pairs<'m> {
    fn of(record: &'m Measurements, arm: usize) -> Pairs<'m> {
        let of_arm = |arm: usize| {
            let counts = move |one: &&MeasuredBlock| {
                one.arm == arm && one.round < record.rounds && one.status != BlockStatus::Rejected
            };
            record.blocks.iter().filter(counts)
        };
        let run: BTreeMap<u64, &MeasuredBlock> = of_arm(arm).map(|one| (one.sequence, one)).collect();
        let pairs = of_arm(0).filter_map(|recorded| Some([recorded, *run.get(&recorded.sequence)?]));
        let (undisturbed, disturbed): (Vec<_>, Vec<_>) =
            pairs.partition(|pair| pair.iter().all(|one| one.status == BlockStatus::Kept));
        let count = undisturbed.len();
        let judged = if count < FEWEST_PAIRS { [undisturbed, disturbed].concat() } else { undisturbed };
        let pairs = judged.into_iter().map(|pair| pair.map(|one| &one.block)).collect();
        Pairs { pairs, undisturbed: count }
    }

    /// The median of the errors of one figure; `None` without blocks.
    fn median_error(&self, arm: &str, figure: &str) -> Option<f64> {
        let rare = if figure.ends_with("_ns") { 0.0 } else { RARE };
        let value = |block: &Block, name: &str| block.figures.get(name).copied().unwrap_or(0.0);
        let of = |[recorded, run]: &[&Block; 2]| {
            error(value(recorded, &predicted(arm, figure)), value(run, &measured(figure)), rare)
        };
        median(self.pairs.iter().map(of).collect())
    }
}

/// The relative error; if both are below `rare`, their difference as a share of all wakeups.
fn error(predicted: f64, measured: f64, rare: f64) -> f64 {
    if measured.max(predicted) <= rare {
        // `rare` is RARE of all.
        return if rare > 0.0 { (predicted - measured) / rare * RARE } else { 0.0 };
    }
    if measured > 0.0 { predicted / measured - 1.0 } else { f64::INFINITY }
}

/// The median of the absolute errors of one figure; `None` without predictions.
pub fn median_error(predictions: &[Prediction], figure: &str) -> Option<f64> {
    median(predictions.iter().filter(|v| v.figure == figure).map(|v| v.error.value.abs()).collect())
}

/// What is predicted from a block that is recorded.
#[derive(Clone, Copy)]
pub struct Others<'a> {
    /// The other arms, by name.
    pub settings: &'a [(String, Idle)],
    /// The cost of a halt here.
    pub calibration: &'a HaltCosts,
    /// Whether other tasks want the vCPU's core: the scheduler's events are recorded then.
    pub contended: bool,
}

/// Measures a block, and where `others` names arms, records it and predicts what they will do.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    gaps: &Gaps,
    wakes: usize,
    seed: u64,
    trial: &Trial<'_, Idle>,
    others: Option<Others<'_>>,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let gaps = gaps.sequence(seed, trial.sequence, WARM_UP + wakes).gaps;
    let Some(Others { settings, calibration, contended }) = others else {
        return Ok(told(&waking::wake(rig, trial.setting, &gaps, stop)?));
    };
    let (waking, recording) = recorded(rig, trial.setting, &gaps, contended, stop)?;
    let mut block = told(&waking);
    let wakes = waking.wakes().max(1) as f64;
    for (name, other) in settings {
        let counts = predict(&recording, other, calibration)?;
        let cpu = recording.base_cpu(&waking, calibration) + counts.polled_ns() + counts.halt_cpu_ns;
        let figures = [
            counts.all.polls as f64,
            counts.all.polls_succeeded as f64,
            counts.polled_ns(),
            counts.all.halts as f64,
            cpu,
        ];
        for (figure, value) in FIGURES.into_iter().zip(figures) {
            block = block.figure(predicted(name, figure), value / wakes);
        }
    }
    Ok(block)
}

fn told(waking: &WakeupBlock) -> Block {
    let counters = &waking.counters;
    let figures = [
        counters.halt_attempted_poll.unwrap_or(0),
        counters.halt_successful_poll.unwrap_or(0),
        waking.host_polled_ns(),
        waking.slept().unwrap_or(0),
        waking.usage.cpu.get(),
    ];
    let told = Block::new(waking.latency_ns.clone());
    FIGURES
        .into_iter()
        .zip(figures)
        .fold(told, |block, (figure, value)| block.figure(measured(figure), waking.per_wake(value)))
}

struct Recording {
    /// Every idle period in order. A wake that comes before the guest has come to rest ends none.
    episodes: Vec<Episode>,
    version: Version,
    /// The module's parameters, as recorded.
    parameters: Vec<(String, i64)>,
}

#[derive(Clone, Copy)]
struct Episode {
    idle: Nanos,
    halted: bool,
    /// How long a poll in it may last.
    alone: Nanos,
    /// Whether its wake is one of those that count.
    counts: bool,
}

impl Episode {
    /// From its beginning to the event that woke.
    fn event(&self, calibration: &HaltCosts) -> Nanos {
        if !self.halted {
            return self.idle;
        }
        // The excess depends on the length without it; two steps are enough, as it changes slowly.
        let once = self.idle.saturating_sub(idle_excess(calibration, self.idle));
        let event = self.idle.saturating_sub(idle_excess(calibration, once));
        // It halted, so that the poll which another task ended had not seen the event: the event came later.
        if self.alone < self.idle { event.max(Nanos(self.alone.get().saturating_add(1))) } else { event }
    }
}

impl Recording {
    /// CPU time that is neither polling nor halting \[ns\], over all wakes that count.
    fn base_cpu(&self, waking: &WakeupBlock, calibration: &HaltCosts) -> f64 {
        let halts = self.episodes.iter().filter(|episode| episode.counts && episode.halted);
        let halting: u64 =
            halts.map(|episode| halt_cpu_after(calibration, episode.event(calibration)).get()).sum();
        waking.usage.cpu.get() as f64 - waking.host_polled_ns() as f64 - halting as f64
    }
}

/// What a setting is predicted to do.
#[derive(Default)]
struct Predicted {
    all: Counts,
    halt_cpu_ns: f64,
}

impl Predicted {
    fn polled_ns(&self) -> f64 {
        self.all.polled_ns as f64
    }
}

fn predict(recording: &Recording, other: &Idle, calibration: &HaltCosts) -> Result<Predicted, LabError> {
    let Halts::InKernel(max) = &other.halts else { return Err(LabError::NeedsKernelHalts) };
    let mut setting = Setting::defaults(Layer::Host, recording.version);
    for (name, value) in &recording.parameters {
        // What the rule of this version does not have, it does not read.
        let _ = setting.set(name, *value);
    }
    setting.set("halt_poll_ns", i64::try_from(max.get()).unwrap_or(i64::MAX)).map_err(LabError::Setting)?;
    let mut player = Rule::Layer(setting).start(1)?;
    let mut predicted = Predicted::default();
    for episode in &recording.episodes {
        let event = episode.event(calibration);
        let counts =
            player.play_one(Some(0), event.get(), idle_excess(calibration, event).get(), episode.alone.get());
        if episode.counts {
            predicted.all += counts;
            predicted.halt_cpu_ns += counts.halts as f64 * halt_cpu_after(calibration, event).get() as f64;
        }
    }
    Ok(predicted)
}

/// A recorder of this process's vCPUs. Opening one before the first block shows what permission it lacks.
///
/// # Errors
/// If this process may not record, or the kernel cannot.
pub fn recorder(contended: bool) -> Result<Recorder, LabError> {
    let pid = i32::try_from(std::process::id()).ok();
    Ok(Recorder::open(Target::Host { pid, exits: false, contention: contended, causes: false }, None)?)
}

/// A block that dwell's recorder watches.
fn recorded(
    rig: &Rig,
    idle: &Idle,
    gaps: &[Nanos],
    contended: bool,
    stop: &AtomicBool,
) -> Result<(WakeupBlock, Recording), LabError> {
    let (waking, bytes) = waking::wake_within(rig, idle, gaps, stop, |drive| {
        // Opened now, when the vCPU's thread is there: it would be found later too, but not while the cores are busy.
        record_during(rig, recorder(contended)?, drive)
    })?;
    let recording = read(bytes, &waking)?;
    Ok((waking, recording))
}

fn read(bytes: Vec<u8>, waking: &WakeupBlock) -> Result<Recording, LabError> {
    let reader = Reader::from_bytes("the lab's recording", bytes)?;
    let source = RecordingSource::new(reader, false);
    let pass = self_check(&source)?.poll_pass();
    let reader = source.reader();
    let metadata = reader.metadata();
    let version = metadata.kernel.as_deref().and_then(Version::parse).ok_or(LabError::UnknownKernel)?;
    let settings = metadata.settings.first();
    let number = |(name, value): (&String, &SettingValue)| match value {
        SettingValue::Number(number) => Some((name.clone(), i64::try_from(*number).ok()?)),
        _ => None,
    };
    let parameters = settings.into_iter().flat_map(|at| at.values.iter().filter_map(number)).collect();
    let mut episodes = vec![];
    let mut chunk = Chunk::default();
    for group in 0..reader.row_groups() {
        let columns = Columns::START_NS | Columns::IDLE_NS | Columns::HALTED | Columns::ALONE_NS;
        reader.read(group, columns, &mut chunk)?;
        episodes.extend((0..chunk.rows).map(|row| Episode {
            idle: Nanos(chunk.idle_ns[row]),
            halted: chunk.halted[row] == Some(true),
            alone: alone_of(chunk.alone_ns[row], chunk.idle_ns[row], pass),
            counts: waking.counted.contains(&chunk.start_ns[row].saturating_add(chunk.idle_ns[row])),
        }));
    }
    Ok(Recording { episodes, version, parameters })
}

/// How long a poll may last: to the end where no other task came, or where it is not known.
fn alone_of(alone_ns: Option<u64>, idle_ns: u64, pass: Nanos) -> Nanos {
    let short = alone_ns.filter(|&alone_ns| alone_ns < idle_ns);
    short.map_or(Nanos::MAX, |alone_ns| Nanos(alone_ns).max(pass))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_stats::{Arms, Campaign, CampaignOptions};
    use dwell_testing::environment::FakeEnvironment;

    fn prediction(figure: &'static str, value: f64) -> Prediction {
        Prediction {
            arm: "x".to_owned(),
            figure: figure.into(),
            predicted: 0.0,
            measured: 0.0,
            error: Interval::unknown(value),
            median_error: Some(value),
            undisturbed_pairs: 0,
        }
    }

    #[test]
    fn errors_are_ratios_but_of_rare_things_shares() {
        assert_eq!(error(110.0, 100.0, 10.0), 110.0 / 100.0 - 1.0);
        assert_eq!(error(0.0, 100.0, 10.0), -1.0);
        // 3 against 1 in 1000 wakes: 0.2 % of the wakes.
        assert!((error(3.0, 1.0, 10.0) - 0.002).abs() < 1e-12);
        assert_eq!(error(0.0, 0.0, 10.0), 0.0);
        assert_eq!(error(0.0, 0.0, 0.0), 0.0);
        assert_eq!(error(20.0, 0.0, 10.0), f64::INFINITY);
    }

    /// A campaign in which the first `disturbed` blocks of each arm were disturbed, and measured 1 where 2
    /// was predicted; all others measured 2.
    fn disturbed_at_first(disturbed: u32, rounds: u32) -> Prediction {
        let others = [("host:0".to_owned(), Idle::host(0))];
        let arms = Arms::new("recorded", Idle::host(200_000)).arm("host:0", Idle::host(0));
        let options = CampaignOptions {
            min_rounds: rounds,
            max_rounds: rounds,
            repeats: 0,
            ..CampaignOptions::default()
        };
        let campaign = Campaign::new("validate", arms, figures(), options).unwrap();
        let blocks_a_round = 6; // Two arms and the control, twice.
        let loads = (0..blocks_a_round * rounds).map(|at| if at < 3 * disturbed { 0.5 } else { 0.0 });
        let mut environment = FakeEnvironment::disturbed(loads);
        let record = campaign.run(&mut environment, &AtomicBool::new(false), &mut |_| (), |trial| {
            let polls = if trial.sequence < u64::from(disturbed) { 1.0 } else { 2.0 };
            let block = Block::new(vec![1]).figure(measured("polls"), polls);
            Ok::<_, LabError>(block.figure(predicted("host:0", "polls"), 2.0))
        });
        let found = predictions(&record.unwrap(), &others);
        found.into_iter().find(|v| v.figure == "polls").unwrap()
    }

    #[test]
    fn the_median_pair_is_of_those_that_nobody_disturbed() {
        let of = |prediction: Prediction| (prediction.undisturbed_pairs, prediction.median_error);
        assert_eq!(of(disturbed_at_first(0, 8)), (16, Some(0.0)));
        assert_eq!(of(disturbed_at_first(12, 10)), (8, Some(0.0)));
        // Too few are undisturbed: the median is of all.
        assert_eq!(of(disturbed_at_first(13, 10)), (7, Some(1.0)));
    }

    #[test]
    fn the_median_is_that_of_absolute_errors_of_one_figure() {
        let predictions = [
            prediction("polls", -0.5),
            prediction("polls", 0.1),
            prediction("halts", 9.0),
            prediction("polls", 0.2),
        ];
        assert_eq!(median_error(&predictions, "polls"), Some(0.2));
        assert_eq!(median_error(&predictions[..2], "polls"), Some(0.3));
        assert_eq!(median_error(&predictions, "cpu_ns"), None);
    }
}
