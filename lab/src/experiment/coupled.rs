//! `pingpong --predict`: what a replay of causes predicts of two idlers that wait for each other, and what they do.
//!
//! The two are recorded under one maximum of polling, as by `dwell record host` or `thread`. From that recording alone the work
//! done under each other maximum is predicted; then these are run, without the recorder.

use super::pingpong::{EXCHANGES_PER_S, WARM_UP, vcpus};
use super::recorded::record_during;
use super::{LabError, Rig, loops};
use crate::gaps::Gaps;
use crate::idle::Idle;
use dwell_capture::{Recorder, Target};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_recording::{CauseShares, Reader, Segments};
use dwell_replay::Rule;
use dwell_replay::calibration::Calibration;
use dwell_replay::causal::{Calibrated, Estimates, Predictor, with_maximum};
use dwell_replay::check::setting_of;
use dwell_stats::{Interval, median};
use serde::Serialize;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// The work done under one maximum, predicted from a recording under another, over that under the recorded one.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// The maximum that was recorded under \[ns\].
    pub recorded_ns: u32,
    /// The maximum that is predicted for \[ns\].
    pub maximum_ns: u32,
    pub predicted: Interval,
    pub measured: f64,
}

impl Prediction {
    /// Predicted / measured - 1.
    pub fn error(&self) -> f64 {
        self.predicted.value / self.measured - 1.0
    }

    /// Whether the range has what was measured.
    pub fn is_in_range(&self) -> bool {
        (self.predicted.low..=self.predicted.high).contains(&self.measured)
    }
}

/// A recording of the two under one maximum.
#[derive(Clone, Debug, Serialize)]
pub struct Recorded {
    /// \[ns\]
    pub maximum_ns: u32,
    /// As the recording has it, with the recorder, which takes CPU time.
    pub exchanges_per_s: f64,
    /// Without the recorder: the median of the rounds.
    pub measured_per_s: f64,
    /// What woke the two.
    pub causes: CauseShares,
    /// What the recording shows of polls and halts, or what is calibrated or assumed of them.
    pub constants: Estimates,
}

/// What one recording is, and what else is known of the machine.
struct Watched {
    per_s: f64,
    segments: Segments,
    present: Setting,
    known: Calibrated,
}

/// Who waits for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Between {
    /// Two vCPUs of one VM, by IPIs.
    Vcpus,
    /// vCPUs of two VMs, by doorbells.
    Vms,
    /// Two threads, by eventfds, which poll as QEMU's event loops do.
    Threads,
}

impl Between {
    const fn layer(self) -> Layer {
        match self {
            Between::Vcpus | Between::Vms => Layer::Host,
            Between::Threads => Layer::Iothread,
        }
    }
}

/// The release of QEMU whose rule the threads follow.
const QEMU: Version = Version::new(10, 0);

/// What is run.
pub struct Pair<'a> {
    pub rig: &'a Rig,
    pub between: Between,
    /// The thinking times of the first one.
    pub think: &'a Gaps,
    pub seed: u64,
    pub exchanges: usize,
}

impl Pair<'_> {
    fn run(&self, maximum_ns: u32, round: u64, stop: &AtomicBool) -> Result<f64, LabError> {
        let think = self.think.sequence(self.seed, round, WARM_UP + self.exchanges).gaps;
        if self.between == Between::Threads {
            let default = Setting::defaults(Layer::Iothread, QEMU);
            let rule = Rule::Layer(with_maximum(default, maximum_ns.into()));
            return loops::exchanges_per_s(self.rig, &think, WARM_UP, &rule, stop);
        }
        let apart = self.between == Between::Vms;
        let block = vcpus(self.rig, &think, &Idle::host(maximum_ns), apart, stop)?;
        Ok(block.figures.get(EXCHANGES_PER_S).copied().unwrap_or(f64::NAN))
    }

    /// Of the threads that will run, none is there yet.
    fn target(&self) -> Target {
        match self.between {
            Between::Threads => {
                let comm = loops::NAMES.map(str::to_owned).to_vec();
                Target::Thread { pid: None, comm, causes: true }
            }
            _ => Target::Host { pid: None, exits: false, contention: false, causes: true },
        }
    }

    fn recorded(&self, maximum_ns: u32, stop: &AtomicBool) -> Result<Watched, LabError> {
        let recorder = Recorder::open(self.target(), None)?;
        let (per_s, bytes) = record_during(self.rig, recorder, || self.run(maximum_ns, 0, stop))?;
        let reader = Reader::from_bytes("the lab's recording", bytes)?;
        let metadata = reader.metadata();
        let layer = self.between.layer();
        let version = match layer {
            Layer::Iothread => QEMU,
            _ => metadata.kernel.as_deref().and_then(Version::parse).ok_or(LabError::UnknownKernel)?,
        };
        // The module's parameters; the maximum is that of the VM.
        let others = setting_of(layer, version, &metadata.settings)
            .unwrap_or_else(|| Setting::defaults(layer, version));
        let segments = reader.segments()?.ok_or(LabError::NoCauses)?;
        let known = Calibration::load_for(metadata).ok().flatten().as_ref().map(Calibrated::from);
        let present = with_maximum(others, maximum_ns.into());
        Ok(Watched { per_s, segments, present, known: known.unwrap_or_default() })
    }

    /// Runs the pair under each maximum in turns, in an order that rotates, records it under each after half of the rounds, and
    /// predicts each from each other. Threads are recorded without polls only, as their polls cannot be seen.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn predict(
        &self,
        maxima_ns: &[u32],
        rounds: u32,
        stop: &AtomicBool,
    ) -> Result<(Vec<Recorded>, Vec<Prediction>), LabError> {
        let mut per_s = vec![vec![]; maxima_ns.len()];
        let mut turns = |rounds: Range<u32>| -> Result<(), LabError> {
            for round in rounds {
                let arms = 0..maxima_ns.len();
                for arm in arms.clone().cycle().skip(round as usize % arms.len()).take(arms.len()) {
                    per_s[arm].push(self.run(maxima_ns[arm], round.into(), stop)?);
                }
            }
            Ok(())
        };
        turns(0..rounds / 2)?;
        let is_seen = |maximum_ns: &u32| *maximum_ns == 0 || self.between != Between::Threads;
        let watched: Vec<Option<Watched>> = maxima_ns
            .iter()
            .map(|ns| is_seen(ns).then(|| self.recorded(*ns, stop)).transpose())
            .collect::<Result<_, _>>()?;
        turns(rounds / 2..rounds)?;
        let measured: Vec<f64> = per_s.into_iter().map(|all| median(all).unwrap_or(f64::NAN)).collect();
        let (mut recordings, mut cells) = (vec![], vec![]);
        for ((recorded_ns, measured_per_s), watched) in maxima_ns.iter().zip(&measured).zip(watched) {
            let Some(Watched { per_s, segments, present, known }) = watched else { continue };
            let causes = segments.shares();
            let Some(predictor) = Predictor::new(&segments, &Rule::Layer(present), known, None)? else {
                return Err(LabError::NoCauses);
            };
            recordings.push(Recorded {
                maximum_ns: *recorded_ns,
                exchanges_per_s: per_s,
                measured_per_s: *measured_per_s,
                causes,
                constants: predictor.estimates,
            });
            let others = || maxima_ns.iter().zip(&measured).filter(|(other, _)| *other != recorded_ns);
            let rules: Vec<Rule> = std::iter::once(present)
                .chain(others().map(|(other, _)| with_maximum(present, (*other).into())))
                .map(Rule::Layer)
                .collect();
            let judged = predictor.judge(&rules)?;
            for (row, (maximum_ns, per_s)) in (1..).zip(others()) {
                cells.push(Prediction {
                    recorded_ns: *recorded_ns,
                    maximum_ns: *maximum_ns,
                    predicted: judged.work(row, dwell_policy::Nanos::ZERO).speed.into(),
                    measured: per_s / measured_per_s,
                });
            }
        }
        Ok((recordings, cells))
    }
}
