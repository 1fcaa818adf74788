//! `validate`: how true predictions are.
//!
//! A vCPU is recorded by dwell's own recorder under one setting of host polling. From nothing but that recording, and the
//! cost of a halt on this host, dwell predicts what other settings would have done; then these are run with the same gaps.
//!
//! # The model
//! * A recorded idle period that halted is too long by what the wake took ([`Calibration::idle_excess`]); one that ended in
//!   the poll is exact. Without that excess it is the time of the wake event.
//! * The rule of the running kernel is replayed over these times; after a halt it learns from a period that is longer by
//!   the same excess, as in the kernel.
//! * CPU time is what the recorded run used beyond polling and halting, plus the polling and halts that are predicted.

use super::calibrate::Calibration;
use super::waking::{self, WARM_UP, Waking};
use super::{LabError, Rig};
use crate::idle::{Halts, Idle};
use crate::method::{Block, Gaps, Turn};
use dwell_capture::{Recorder, Status, Target, Until};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Chunk, Columns, Reader, SettingValue};
use dwell_replay::{Counts, Rule};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

/// What is predicted and measured, per wake, in the order in which it is shown.
pub const FIGURES: [&str; 5] = ["polls", "polls_succeeded", "polled_ns", "halts", "cpu_ns"];

/// The name of a block's figure: what was measured of an arm.
pub fn measured(figure: &str) -> String {
    format!("{figure}_per_wake")
}

/// The name of a figure of the recorded block: what was predicted for another arm.
pub fn predicted(arm: &str, figure: &str) -> String {
    format!("predicted {figure}_per_wake of {arm}")
}

/// Measures a block, and where `of_others` names arms, records it and predicts what they will do.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    gaps: &Gaps,
    wakes: usize,
    seed: u64,
    turn: &Turn<'_, Idle>,
    others: Option<(&[(String, Idle)], &Calibration)>,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let gaps = gaps.sequence(seed, turn.sequence, WARM_UP + wakes).gaps;
    let Some((others, calibration)) = others else {
        return Ok(told(&waking::wake(rig, turn.setting, &gaps, stop)?));
    };
    let (waking, recording) = recorded(rig, turn.setting, &gaps, stop)?;
    let mut block = told(&waking);
    let wakes = waking.wakes().max(1) as f64;
    for (name, other) in others {
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

fn told(waking: &Waking) -> Block {
    let counters = &waking.counters;
    let slept: u64 = counters.halt_wait_hist.iter().flatten().sum();
    let figures = [
        counters.halt_attempted_poll.unwrap_or(0),
        counters.halt_successful_poll.unwrap_or(0),
        polled_ns(waking),
        slept,
        waking.usage.cpu.get(),
    ];
    let told = Block::new(waking.latency_ns.clone());
    FIGURES
        .into_iter()
        .zip(figures)
        .fold(told, |block, (figure, value)| block.figure(measured(figure), waking.per_wake(value)))
}

fn polled_ns(waking: &Waking) -> u64 {
    waking.counters.halt_poll_success_ns.unwrap_or(0) + waking.counters.halt_poll_fail_ns.unwrap_or(0)
}

/// What the recorder saw.
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
    /// Whether its wake is one of those that count.
    counts: bool,
}

impl Episode {
    /// From its beginning to the event that woke.
    fn event(&self, calibration: &Calibration) -> Nanos {
        if !self.halted {
            return self.idle;
        }
        // The excess is told by the length without it; two steps are enough, as it changes slowly.
        let once = self.idle.saturating_sub(calibration.idle_excess(self.idle));
        self.idle.saturating_sub(calibration.idle_excess(once))
    }
}

impl Recording {
    /// CPU time that is neither polling nor halting \[ns\], over all wakes that count.
    fn base_cpu(&self, waking: &Waking, calibration: &Calibration) -> f64 {
        let halts = self.episodes.iter().filter(|episode| episode.counts && episode.halted);
        let halting: u64 =
            halts.map(|episode| calibration.halt_cpu_after(episode.event(calibration)).get()).sum();
        waking.usage.cpu.get() as f64 - polled_ns(waking) as f64 - halting as f64
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

fn predict(recording: &Recording, other: &Idle, calibration: &Calibration) -> Result<Predicted, LabError> {
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
        let counts = player.play_late(event, calibration.idle_excess(event));
        if episode.counts {
            predicted.all += counts;
            predicted.halt_cpu_ns += counts.halts as f64 * calibration.halt_cpu_after(event).get() as f64;
        }
    }
    Ok(predicted)
}

/// Tells when the recorder runs.
struct Started(Option<Sender<()>>);

impl dwell_capture::Observer for Started {
    fn status(&mut self, _: &Status) {
        if let Some(started) = self.0.take() {
            let _ = started.send(());
        }
    }
}

/// A block that dwell's recorder watches.
fn recorded(
    rig: &Rig,
    idle: &Idle,
    gaps: &[Nanos],
    stop: &AtomicBool,
) -> Result<(Waking, Recording), LabError> {
    let target = Target::Host { pid: i32::try_from(std::process::id()).ok(), exits: false };
    let recorder = Recorder::open(target, None)?;
    let enough = AtomicBool::new(false);
    let (started, ready) = channel();
    let (waking, bytes) = std::thread::scope(|scope| {
        let recording = std::thread::Builder::new()
            .spawn_scoped(scope, || {
                let _aside = rig.aside()?;
                let until = Until { duration: None, stop: &enough };
                recorder.to_memory(&until, &mut Started(Some(started))).map_err(LabError::Record)
            })
            .map_err(LabError::Thread)?;
        // If it fails before it starts, nothing comes, and its error is told below.
        let waking = match ready.recv() {
            Ok(()) => waking::wake(rig, idle, gaps, stop),
            Err(_) => Err(LabError::Gone),
        };
        enough.store(true, Ordering::Relaxed);
        let (summary, bytes) = recording.join().map_err(|_| LabError::Panicked)??;
        let waking = waking?;
        let lost = summary.status.lost;
        if lost > 0 { Err(LabError::LostEvents { lost }) } else { Ok((waking, bytes)) }
    })?;
    let recording = read(bytes, &waking)?;
    Ok((waking, recording))
}

fn read(bytes: Vec<u8>, waking: &Waking) -> Result<Recording, LabError> {
    let reader = Reader::from_bytes("the lab's recording", bytes)?;
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
        reader.read(group, Columns::START_NS | Columns::IDLE_NS | Columns::HALTED, &mut chunk)?;
        episodes.extend((0..chunk.rows).map(|row| Episode {
            idle: Nanos(chunk.idle_ns[row]),
            halted: chunk.halted[row] == Some(true),
            counts: waking.counted.contains(&chunk.start_ns[row].saturating_add(chunk.idle_ns[row])),
        }));
    }
    Ok(Recording { episodes, version, parameters })
}
