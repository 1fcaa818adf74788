//! `pingpong --predict`: what a replay of causes predicts of two idlers that wait for each other, and what they do.
//!
//! The two are recorded under one setting of polling, as by `dwell record host` or `thread`, and where the guest polls, too, by the
//! guest itself at the same time. From that recording alone the work done under each other setting is predicted, and a setting
//! is advised as by `dwell tune`; then all of them are run, without the recorder.

use super::pingpong::{CPU_PER_EXCHANGE, EXCHANGES_PER_S, WARM_UP, vcpus};
use super::recorded::record_during;
use super::{LabError, Rig, layers, loops};
use crate::gaps::Gaps;
use crate::guest::pingpong::Exchange;
use crate::idle::Idle;
use dwell_capture::{Recorder, Target};
use dwell_policy::param::Setting;
use dwell_policy::version::{NEWEST_KERNEL, Version};
use dwell_policy::{Layer, Nanos};
use dwell_recording::{CauseShares, Reader, Segments};
use dwell_replay::advice::{Conclusion, Goal, Worth};
use dwell_replay::alignment::host_polls;
use dwell_replay::calibration::Calibration;
use dwell_replay::causal::{
    self, Calibrated, Estimates, Judged, Predictor, Task, distinct, maximum, references, with_maximum,
};
use dwell_replay::check::setting_of;
use dwell_replay::{Rule, Values, WakeupLatency};
use dwell_stats::{Bootstrap, Interval, median};
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// The longest that is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Maxima {
    /// By the guest \[ns\]; 0 where only another layer polls.
    pub guest_ns: u32,
    /// By the host, or by the threads \[ns\].
    pub maximum_ns: u32,
}

impl Maxima {
    /// Of one layer \[ns\].
    pub const fn of(maximum_ns: u32) -> Maxima {
        Maxima { guest_ns: 0, maximum_ns }
    }
}

/// What was done in a block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Did {
    /// Exchanges a second.
    pub per_s: f64,
    /// CPU time of both for an exchange \[ns\].
    pub cpu_ns: f64,
}

/// What was predicted of a setting, over the recorded one, and what was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Judgement {
    pub predicted: Interval,
    pub measured: f64,
}

impl Judgement {
    /// Predicted / measured - 1.
    pub fn error(&self) -> f64 {
        self.predicted.value / self.measured - 1.0
    }

    /// Whether the range has what was measured.
    pub fn is_in_range(&self) -> bool {
        (self.predicted.low..=self.predicted.high).contains(&self.measured)
    }
}

/// What one setting does, predicted from a recording under another.
#[derive(Clone, Debug, Serialize)]
pub struct Prediction {
    /// What was recorded under.
    pub recorded: Maxima,
    /// What is predicted for.
    pub other: Maxima,
    /// Exchanges a second.
    pub speed: Judgement,
    /// CPU time of an exchange.
    pub cpu: Judgement,
}

/// What is advised from one recording, and what it does.
#[derive(Clone, Debug, Serialize)]
pub struct Advised {
    /// What was recorded under.
    pub recorded: Maxima,
    pub verdict: Conclusion,
    /// The parameters to be changed, with their values; none where the setting is to be left.
    pub change: Values,
    /// Exchanges a second, over the recorded setting.
    pub speed: Judgement,
    /// CPU time of an exchange, over the recorded setting.
    pub cpu: Judgement,
    /// What took the least CPU time of an exchange of the recorded setting, the default and never (of two layers: which of
    /// them polls).
    pub best: Values,
    /// CPU time of an exchange, over that of the best: the mean of the rounds with its interval.
    pub over_best: Interval,
}

/// A recording of the two under one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Recorded {
    pub maxima: Maxima,
    /// As the recording has it, with the recorder, which takes CPU time.
    pub exchanges_per_s: f64,
    /// Without the recorder: the medians of the rounds.
    pub measured: Did,
    /// What woke the two.
    pub causes: CauseShares,
    /// What the recording shows of polls and halts, or what is calibrated or assumed of them.
    pub constants: Estimates,
}

/// What is predicted, advised and measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Compared {
    pub recordings: Vec<Recorded>,
    pub cells: Vec<Prediction>,
    pub advised: Vec<Advised>,
}

/// What one recording is, and what else is known of the machine.
struct Watched {
    per_s: f64,
    segments: Segments,
    /// Of a guest that polls, too: which of its halts the host polled through.
    by_host: Vec<Option<bool>>,
    /// The host's or the threads' parameters other than the maximum.
    others: Setting,
    known: Calibrated,
}

/// What is advised from one recording.
struct Advice {
    verdict: Conclusion,
    /// The setting that is in force afterwards.
    rule: Rule,
    /// What is predicted of it: exchanges a second and CPU time of one, over the recorded setting.
    speed: Interval,
    cpu: Interval,
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
    /// Two vCPUs of one VM, which poll themselves, as the haltpoll governor does, above a host that polls.
    Layers,
}

impl Between {
    const fn layer(self) -> Layer {
        match self {
            Between::Vcpus | Between::Vms | Between::Layers => Layer::Host,
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
    /// What one halt and wakeup costs in CPU time; for an advice no less than what halts add to segments.
    pub halt_cost: Nanos,
}

/// haltpoll's setting with this maximum \[ns\].
fn haltpoll(maximum_ns: u32) -> Setting {
    with_maximum(Setting::defaults(Layer::Guest, NEWEST_KERNEL), maximum_ns.into())
}

/// How vCPUs idle under a rule. Of a host only the maximum can be set: its other parameters are the module's.
fn idle(rule: &Rule) -> Idle {
    let most = |setting: &Setting| u32::try_from(maximum(setting)).unwrap_or(u32::MAX);
    match rule {
        Rule::Layer(host) => Idle::host(most(host)),
        Rule::Stacked { guest, host, poll_control } => {
            let below = if *poll_control { most(host) } else { 0 };
            match maximum(guest) {
                0 => Idle::host(below),
                _ => Idle::guest(Rule::Layer(*guest)).above_host(below),
            }
        }
        Rule::Policy(..) => Idle::guest(*rule),
    }
}

impl Pair<'_> {
    fn run(&self, rule: &Rule, round: u32, stop: &AtomicBool) -> Result<Did, LabError> {
        self.run_and_see(rule, round, stop, |_| ())
    }

    fn run_and_see(
        &self,
        rule: &Rule,
        round: u32,
        stop: &AtomicBool,
        ended: impl FnOnce(&Exchange),
    ) -> Result<Did, LabError> {
        let think = self.think.sequence(self.seed, round.into(), WARM_UP + self.exchanges).gaps;
        if self.between == Between::Threads {
            return loops::exchanges(self.rig, &think, WARM_UP, rule, stop);
        }
        let apart = self.between == Between::Vms;
        let block = vcpus(self.rig, &think, &idle(rule), apart, stop, ended)?;
        let figure = |name| block.figures.get(name).copied().unwrap_or(f64::NAN);
        Ok(Did { per_s: figure(EXCHANGES_PER_S), cpu_ns: figure(CPU_PER_EXCHANGE) })
    }

    /// Runs the pair under each rule in turns, in an order that rotates: by rule, then by round.
    fn turns(&self, rules: &[Rule], rounds: u32, stop: &AtomicBool) -> Result<Vec<Vec<Did>>, LabError> {
        let mut did = vec![vec![]; rules.len()];
        for round in 0..rounds {
            let order = (0..rules.len()).cycle().skip(round as usize % rules.len()).take(rules.len());
            for arm in order {
                did[arm].push(self.run(&rules[arm], round, stop)?);
            }
        }
        Ok(did)
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

    /// The rule of a setting, whose other parameters these are.
    fn rule(&self, Maxima { guest_ns, maximum_ns }: Maxima, others: Setting) -> Rule {
        let own = with_maximum(others, maximum_ns.into());
        match self.between {
            Between::Layers => {
                Rule::Stacked { guest: haltpoll(guest_ns), host: own, poll_control: maximum_ns > 0 }
            }
            _ => Rule::Layer(own),
        }
    }

    /// What of a rule can be run, as one rule for all that are run alike.
    fn runnable(&self, rule: &Rule, others: Setting) -> Rule {
        match *rule {
            Rule::Layer(own) if self.between != Between::Threads => {
                Rule::Layer(with_maximum(others, maximum(&own)))
            }
            Rule::Stacked { guest, host, poll_control } => {
                let most = if poll_control { maximum(&host) } else { 0 };
                Rule::Stacked { guest, host: with_maximum(others, most), poll_control: most > 0 }
            }
            _ => *rule,
        }
    }

    fn recorded(&self, maxima: Maxima, stop: &AtomicBool) -> Result<Watched, LabError> {
        let recorder = Recorder::open(self.target(), None)?;
        let layer = self.between.layer();
        let mut players = None;
        let (did, bytes) = record_during(self.rig, recorder, || {
            let rule = self.rule(maxima, Setting::defaults(layer, self.version()));
            self.run_and_see(&rule, 0, stop, |exchange| {
                let clock = layers::Monotonic::now(self.rig);
                let exchanges = WARM_UP + self.exchanges;
                players = Some(([0, 1].map(|player| exchange.exchanged(player, exchanges)), clock));
            })
        })?;
        let reader = Reader::from_bytes("the lab's recording", bytes)?;
        let metadata = reader.metadata();
        let version = match layer {
            Layer::Iothread => QEMU,
            _ => metadata.kernel.as_deref().and_then(Version::parse).ok_or(LabError::UnknownKernel)?,
        };
        // The module's parameters; the maximum is that of the VM.
        let others = setting_of(layer, version, &metadata.settings)
            .unwrap_or_else(|| Setting::defaults(layer, version));
        let known = Calibration::load_for(metadata).ok().flatten().as_ref().map(Calibrated::from);
        let of_guest = players.filter(|_| self.between == Between::Layers).map(|(players, clock)| {
            layers::recording(&players, &clock, &haltpoll(maxima.guest_ns), metadata)
        });
        let of_guest = of_guest.transpose()?;
        let segments = of_guest.as_ref().unwrap_or(&reader).segments()?.ok_or(LabError::NoCauses)?;
        let (mut by_host, mut known) = (vec![], known.unwrap_or_default());
        if let Some(guest) = &of_guest {
            let polls = host_polls(guest, &segments, &reader)?.ok_or(LabError::NotAligned)?;
            (by_host, known.by_host) = (polls.by_segment, polls.halts);
        }
        Ok(Watched { per_s: did.per_s, segments, by_host, others, known })
    }

    /// Of the default with which the two run before anything was recorded; only the maximum is taken from it.
    const fn version(&self) -> Version {
        match self.between {
            Between::Threads => QEMU,
            _ => NEWEST_KERNEL,
        }
    }

    /// What one rule does over the first one.
    fn over_first(&self, judged: &Judged, rule: usize) -> [Interval; 2] {
        [
            judged.work(rule, self.halt_cost).speed,
            judged.over_present(rule, |of| of.cpu_per_work(self.halt_cost)),
        ]
        .map(Interval::from)
    }

    /// What `dwell tune` advises from a recording under a rule, of which what can be run; `None` where too little was recorded.
    fn advice(&self, watched: &Watched, present: Rule) -> Result<Option<Advice>, LabError> {
        let Watched { segments, by_host, known, others, .. } = watched;
        let Some(predictor) = Predictor::new(segments, &present, by_host, *known, None)? else {
            return Ok(None);
        };
        let advice = causal::advise(&Task {
            predictor: &predictor,
            present,
            goal: Goal::LeastCost,
            halt_cost: self.halt_cost.max(predictor.added_by_halt()),
            wakeup_latency: &WakeupLatency::constant(Nanos::ZERO),
            worth_a_change: Worth::default(),
            progress: &|| (),
        })?;
        let change = advice.chosen.filter(|_| advice.verdict.is_change());
        let rule = change.map_or(present, |rule| self.runnable(&rule, *others));
        let judged = predictor.judge(&[present, rule])?;
        let [speed, cpu] = self.over_first(&judged, 1);
        Ok(Some(Advice { verdict: advice.verdict, rule, speed, cpu }))
    }

    /// Runs the pair under each setting, records it under each, and predicts each from each other; then runs in turns the settings,
    /// what is advised from each recording, and what an advice is compared with. Threads are recorded without polls only, as
    /// their polls cannot be seen.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn predict(&self, settings: &[Maxima], rounds: u32, stop: &AtomicBool) -> Result<Compared, LabError> {
        let before = Setting::defaults(self.between.layer(), self.version());
        let before: Vec<Rule> = settings.iter().map(|maxima| self.rule(*maxima, before)).collect();
        let before = self.turns(&before, rounds / 2, stop)?;
        let is_seen = |maxima: &Maxima| maxima.maximum_ns == 0 || self.between != Between::Threads;
        let mut watched = vec![];
        for maxima in settings.iter().filter(|maxima| is_seen(maxima)) {
            watched.push((*maxima, self.recorded(*maxima, stop)?));
        }
        let Some(others) = watched.first().map(|(_, of)| of.others) else {
            return Ok(Compared::default());
        };

        let rules: Vec<Rule> = settings.iter().map(|maxima| self.rule(*maxima, others)).collect();
        let (mut advice, mut arms) = (vec![], rules.clone());
        for (maxima, watched) in &watched {
            let present = self.rule(*maxima, others);
            let of = self.advice(watched, present)?;
            arms.extend(references(&present).iter().map(|(_, rule)| self.runnable(rule, others)));
            arms.extend(of.as_ref().map(|of| of.rule));
            advice.push(of);
        }
        let arms = distinct(arms, |rule| *rule);
        let after = self.turns(&arms, rounds, stop)?;
        let turns = Turns { arms, before, after };

        let mut compared = Compared::default();
        for ((recorded, watched), advice) in watched.iter().zip(advice) {
            let present = self.rule(*recorded, others);
            let Watched { per_s, segments, by_host, known, .. } = watched;
            let predictor = match self.between {
                Between::Layers => Predictor::of_all(segments, &present, by_host, *known)?,
                _ => Predictor::new(segments, &present, &[], *known, None)?,
            };
            let predictor = predictor.ok_or(LabError::NoCauses)?;
            compared.recordings.push(Recorded {
                maxima: *recorded,
                exchanges_per_s: *per_s,
                measured: turns.measured(&present),
                causes: segments.shares(),
                constants: predictor.estimates,
            });
            let other = || settings.iter().zip(&rules).filter(|(other, _)| *other != recorded);
            let judged: Vec<Rule> = [present].into_iter().chain(other().map(|(_, rule)| *rule)).collect();
            let judged = predictor.judge(&judged)?;
            for (row, (other, rule)) in (1..).zip(other()) {
                let [speed, cpu] = turns.beside(self.over_first(&judged, row), rule, &present);
                compared.cells.push(Prediction { recorded: *recorded, other: *other, speed, cpu });
            }
            let references = references(&present).into_iter().map(|(_, rule)| self.runnable(&rule, others));
            let references: Vec<Rule> = references.chain([present]).collect();
            let advised = advice.and_then(|advice| turns.advised(*recorded, &present, &references, &advice));
            compared.advised.extend(advised);
        }
        Ok(compared)
    }
}

/// What rules did in turns.
struct Turns {
    arms: Vec<Rule>,
    /// By rule, then by round: before the recordings, of the settings, which are the first rules; and after them, of all.
    before: Vec<Vec<Did>>,
    after: Vec<Vec<Did>>,
}

impl Turns {
    /// A rule's blocks after the recordings, and all of them.
    fn of(&self, rule: &Rule) -> (&[Did], impl Iterator<Item = &Did> + Clone) {
        let arm = self.arms.iter().position(|arm| arm == rule).unwrap_or(self.arms.len());
        let [before, after] = [&self.before, &self.after].map(|all| all.get(arm).map_or(&[][..], |of| of));
        (after, before.iter().chain(after))
    }

    fn measured(&self, rule: &Rule) -> Did {
        let (_, all) = self.of(rule);
        let figure = |of: fn(&Did) -> f64| median(all.clone().map(of).collect()).unwrap_or(f64::NAN);
        Did { per_s: figure(|did| did.per_s), cpu_ns: figure(|did| did.cpu_ns) }
    }

    /// What was predicted of a rule over another one, beside what was measured.
    fn beside(&self, [speed, cpu]: [Interval; 2], rule: &Rule, than: &Rule) -> [Judgement; 2] {
        let [did, than] = [rule, than].map(|rule| self.measured(rule));
        [
            Judgement { predicted: speed, measured: did.per_s / than.per_s },
            Judgement { predicted: cpu, measured: did.cpu_ns / than.cpu_ns },
        ]
    }

    /// What an advice does beside the recorded rule, and beside the best of some.
    fn advised(
        &self,
        recorded: Maxima,
        present: &Rule,
        references: &[Rule],
        advice: &Advice,
    ) -> Option<Advised> {
        let Advice { verdict, rule, speed, cpu } = advice;
        let cpu_of = |rule: &Rule| self.measured(rule).cpu_ns;
        let best = references.iter().min_by(|a, b| cpu_of(a).total_cmp(&cpu_of(b)))?;
        let rounds = self.of(rule).0.iter().zip(self.of(best).0);
        let ratios: Vec<f64> = rounds.map(|(own, best)| (own.cpu_ns / best.cpu_ns).ln()).collect();
        let over_best = Bootstrap::RECORDING.paired(&ratios)?.map(f64::exp);
        let [speed, cpu] = self.beside([*speed, *cpu], rule, present);
        let differing = |rule: &Rule| Values::from(rule).differing_from(&Values::from(present));
        let (change, best) = (differing(rule), differing(best));
        Some(Advised { recorded, verdict: *verdict, change, speed, cpu, best, over_best })
    }
}
