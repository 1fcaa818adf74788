//! Work under other settings, in ranges: the constants are estimates, and when interrupts come is not known.
//!
//! Where a setting is to be chosen, the first half of a recording is for that, and the second for judging
//! ([`Predictor::judge`]); of settings that are given all of it is. A range has four parts,
//! of which the first three are independent of each other: each constant at both ends of its interval, the 95 %
//! interval of a bootstrap over blocks of the recording, and the measured error of the model. The fourth is added to them:
//! a load may run in halts or in polls under one setting, so that short parts are replayed from both, with all halts as long as
//! the middle one: whether a shorter one comes, after which a window has grown, is chance.

use super::delays::Stolen;
use super::estimates::{Before, Calibrated, Estimates, FEWEST};
use super::idling::Idling;
use super::{Constants, External, Idled, Outcome, Program, Windows};
use crate::rule::{Rule, RuleError};
use dwell_policy::Nanos;
use dwell_recording::{CauseShares, Segment, Segments};
use dwell_stats::{Bootstrap, Draw, Interval};
use rayon::prelude::*;
use serde::Serialize;
use std::sync::Arc;

/// Of what is for choosing, and of what is for judging, so many segments are replayed at most.
const MOST_SEGMENTS: usize = 1 << 17;
/// The blocks of what is for judging, of which none has fewer segments than this.
const BLOCKS: usize = 16;
const SHORTEST_BLOCK: usize = 32;
/// Of each block so many segments are replayed from windows of zero and from full ones: a window that grows grows within ten.
const LONGEST_PART: usize = 256;
/// From so many segments, of all rules together, several threads replay them: that takes over a millisecond.
const WORTH_THREADS: usize = 1 << 14;
/// The error of the model that is in no other part of a range, as a logarithm: what makes 93 % of the ranges of speed of eleven loads
/// under four maxima contain what was measured (`experiments/guest-loads/causes.py`, 26 November 2026).
const MODEL_ERROR: f64 = 0.2;
/// What a figure is at least, so that it has a logarithm; as little is nothing.
const LEAST: f64 = 1e-6;

/// How figures of several replays are compared.
#[derive(Clone, Copy)]
enum Scale {
    /// By their logarithms.
    Ratio,
    /// As they are: where a figure is 0 in one replay and not in another, no ratio says how far they are apart.
    Difference,
}

impl Scale {
    fn of(self, figure: f64) -> f64 {
        match self {
            Scale::Ratio => figure.max(LEAST).ln(),
            Scale::Difference => figure,
        }
    }

    fn figure(self, scaled: f64) -> f64 {
        match self {
            Scale::Ratio if scaled <= LEAST.ln() => 0.0,
            Scale::Ratio => scaled.exp(),
            Scale::Difference => scaled.max(0.0),
        }
    }
}

/// A figure with the least and the most that it may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// With the constants in the middle of their intervals, between both kinds of external causes.
    pub middle: f64,
    /// Least.
    pub low: f64,
    /// Most.
    pub high: f64,
}

impl From<Range> for Interval {
    fn from(range: Range) -> Interval {
        Interval { low: range.low, value: range.middle, high: range.high }
    }
}

/// What a setting does to the work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Work {
    /// Work a second over that under the present setting.
    pub speed: Range,
    /// CPU time polled and halts at their cost, for a unit of work \[ns\].
    pub cost_ns: Range,
    /// CPU time for a unit of work, with that of the segments, over that under the present setting.
    pub cpu: Range,
    /// From one unit of work of a leading task to the next \[ns\].
    pub cycle_ns: Range,
    /// CPU time of segments and polls in a second of all CPUs together \[s\].
    pub cpu_s: Range,
    /// CPU time polled in a second of all CPUs together \[s\].
    pub polled_s: Range,
    /// Halts in a second of all CPUs together.
    pub halts_per_s: Range,
}

/// A stretch of a recording.
pub(super) struct Stretch {
    segments: Segments,
    idled: Vec<Option<Idled>>,
    /// The work that was done in it, and in what time.
    recorded: Outcome,
}

impl Stretch {
    fn of(segments: Segments, idled: &[Option<Idled>]) -> Stretch {
        let (work, span_ns) = Program::new(&segments, External::Absolute).recorded_work(&segments);
        let recorded = Outcome { work, span_ns, ..Outcome::default() };
        Stretch { segments, idled: idled.to_vec(), recorded }
    }

    /// The rows of equal parts.
    fn blocks(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let rows = self.segments.rows.len();
        let count = (rows / SHORTEST_BLOCK).clamp(1, BLOCKS);
        (0..count).map(move |block| rows * block / count..rows * (block + 1) / count)
    }

    fn part(&self, rows: std::ops::Range<usize>) -> Stretch {
        Stretch::of(self.segments.part(rows.clone()), &self.idled[rows])
    }

    /// Without what the recorder ran itself.
    fn without_recorder(&self) -> Stretch {
        let is_kept = |row: &Segment| !self.segments.is_recorder(row.task);
        let rows = self.segments.rows.iter().zip(&self.idled);
        Stretch {
            segments: self.segments.only(|_, row| is_kept(row)),
            idled: rows.filter(|(row, _)| is_kept(row)).map(|(_, idled)| *idled).collect(),
            recorded: self.recorded,
        }
    }
}

/// One way in which a stretch is replayed.
#[derive(Clone, Copy)]
struct Variant {
    external: External,
    windows: Windows,
    constants: Constants,
    /// Whether halts are as long as those recorded, or all of them as the constants have them.
    has_lengths: bool,
    /// Whether what held segments up has its own times, or comes with the work.
    has_delays: bool,
}

/// Replays a recording with causes under any setting.
pub struct Predictor {
    /// For choosing, and for judging.
    choosing: Stretch,
    judging: Stretch,
    present: Rule,
    /// What the windows are at the start of a replay of the present setting: what comes closer to the recorded work.
    present_windows: Windows,
    idling: Arc<Idling>,
    /// The same with all halts as the constants have them.
    idling_alike: Arc<Idling>,
    stolen: Stolen,
    leading: Vec<u32>,
    /// The constants.
    pub estimates: Estimates,
    /// Units of work a second in what is for judging.
    pub recorded_per_s: f64,
    /// By how much a replay of the present setting does more work a second than that, as a share.
    pub own_error: f64,
    /// The kinds of external causes that are possible; twice the same where the other recording tells.
    kinds: [External; 2],
    /// The other recording's work, predicted from this one.
    pub other: Option<OtherWork>,
    exit_and_entry: Option<Nanos>,
}

/// A recording of the same load under another setting, for what one setting cannot show.
pub struct Other<'a> {
    /// What ran in it.
    pub segments: &'a Segments,
    /// The setting that was in force.
    pub under: Rule,
}

/// Work of another recording, over that of this one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OtherWork {
    /// As both recordings have it.
    pub recorded_speed: f64,
    /// As a replay of what is for choosing in this one has it, with the constants of both.
    pub predicted_speed: f64,
}

impl OtherWork {
    fn error(self) -> f64 {
        (self.predicted_speed / self.recorded_speed).ln().abs()
    }
}

/// Where both kinds of external causes predict another recording within this, it does not tell which is right.
const ALIKE: f64 = 0.02;

/// A task's name without its number, which is another in each run.
fn program_of_task(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(program, _)| program)
}

impl Predictor {
    /// Prepares a recording that was made under `present`, its first half for choosing and its second for judging. `None`
    /// where it has too little work in it. Of a guest whose host was recorded with it, `by_host` has for each segment whether
    /// the host polled through the halt before it, where it saw one ([`host_polls`](crate::alignment::host_polls())).
    /// Of the other recording it takes the constants that this one does not show, the kind of external causes that predicts its
    /// work better, and the error of that prediction where that is larger than the model's.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn new(
        segments: &Segments,
        present: &Rule,
        by_host: &[Option<bool>],
        known: Calibrated,
        other: Option<&Other<'_>>,
    ) -> Result<Option<Predictor>, RuleError> {
        Predictor::judging_from(segments.rows.len() / 2, segments, present, by_host, known, other)
    }

    /// The same with all of it for judging, of settings that are not chosen by it.
    ///
    /// # Errors
    /// As there.
    pub fn of_all(
        segments: &Segments,
        present: &Rule,
        by_host: &[Option<bool>],
        known: Calibrated,
    ) -> Result<Option<Predictor>, RuleError> {
        Predictor::judging_from(0, segments, present, by_host, known, None)
    }

    fn judging_from(
        from: usize,
        segments: &Segments,
        present: &Rule,
        by_host: &[Option<bool>],
        known: Calibrated,
        other: Option<&Other<'_>>,
    ) -> Result<Option<Predictor>, RuleError> {
        let before = Before::of(segments, present, by_host)?;
        let before_other = other.map(|other| Before::of(other.segments, &other.under, &[])).transpose()?;
        let recordings: Vec<(&Segments, &Before)> = std::iter::once((segments, &before))
            .chain(other.map(|other| other.segments).zip(before_other.as_ref()))
            .collect();
        let (estimates, idling) = Estimates::of(&recordings, present, known);
        let (half, all) = (segments.rows.len() / 2, segments.rows.len());
        let stretch = |from: usize, to: usize| {
            let rows = from..to.min(from + MOST_SEGMENTS);
            Stretch::of(segments.part(rows.clone()), &before.idled[rows])
        };
        let (choosing, judging) = (stretch(0, half), stretch(from, all));
        if choosing.recorded.work.min(judging.recorded.work) < FEWEST as u64 {
            return Ok(None);
        }
        let recorded_per_s = judging.recorded.work_per_s().unwrap_or(0.0);
        let program = Program::new(&judging.segments, External::Absolute);
        let mut predictor = Predictor {
            choosing,
            judging,
            present: *present,
            present_windows: Windows::Full,
            idling_alike: Arc::new(idling.alike()),
            idling: Arc::new(idling),
            stolen: Stolen::of(segments),
            leading: program.leading().to_vec(),
            estimates,
            recorded_per_s,
            own_error: f64::NAN,
            kinds: [External::ByTask, External::ByTaskElseRelative],
            other: None,
            exit_and_entry: known.by_host.exit_and_entry,
        };
        for windows in [Windows::Full, Windows::Zero] {
            let variant = predictor.middle(External::ByTask, windows);
            let outcome = predictor.program(&predictor.judging, variant).replay(present, windows)?;
            let error = outcome.work_per_s().unwrap_or(0.0) / recorded_per_s - 1.0;
            if predictor.own_error.is_nan() || error.abs() < predictor.own_error.abs() {
                predictor.own_error = error;
                predictor.present_windows = windows;
            }
        }
        if let Some(other) = other {
            predictor.predict_other(segments, other)?;
        }
        // Both recordings have the recorder in them, and what is predicted has not: under polls, where a load does the most, it
        // takes the most of the CPUs.
        predictor.choosing = predictor.choosing.without_recorder();
        predictor.judging = predictor.judging.without_recorder();
        Ok(Some(predictor))
    }

    /// Predicts the other recording's work from what is for choosing in this one, with both kinds of external causes. Nothing where
    /// other tasks do the work in it.
    fn predict_other(&mut self, segments: &Segments, other: &Other<'_>) -> Result<(), RuleError> {
        let program = Program::new(other.segments, External::Absolute);
        let names = |of: &Segments, tasks: &[u32]| -> std::collections::BTreeSet<String> {
            let name = |task: &u32| of.tasks.get(*task as usize).map(|name| program_of_task(name).to_owned());
            tasks.iter().filter_map(name).collect()
        };
        let per_s = |outcome: &Outcome| outcome.work_per_s().filter(|per_s| *per_s > 0.0);
        let (work, span_ns) = program.recorded_work(other.segments);
        let recorded = [self.choosing.recorded, Outcome { work, span_ns, ..Outcome::default() }];
        let is_same = names(segments, &self.leading) == names(other.segments, program.leading());
        let (Some(here), Some(there), true) = (per_s(&recorded[0]), per_s(&recorded[1]), is_same) else {
            return Ok(());
        };
        let mut found = vec![];
        for kind in self.kinds {
            let variant = self.middle(kind, Windows::Full);
            let outcomes = self.outcomes(&self.choosing, variant, &[self.present, other.under])?;
            if let [Some(present), Some(under)] = [per_s(&outcomes[0]), per_s(&outcomes[1])] {
                let work = OtherWork { recorded_speed: there / here, predicted_speed: under / present };
                found.push((kind, work));
            }
        }
        let [(by_task, first), (relative, second)] = found[..] else { return Ok(()) };
        let (kind, work) = if second.error() < first.error() { (relative, second) } else { (by_task, first) };
        if (first.predicted_speed / second.predicted_speed).ln().abs() > ALIKE {
            self.kinds = [kind; 2];
        }
        self.other = Some(work);
        Ok(())
    }

    /// What a halt takes at least in CPU time, as far as the recordings show it: it makes the segment longer that it begins, and
    /// the waker's where a task of another CPU wakes; and a vCPU leaves the guest and comes back to it.
    pub fn added_by_halt(&self) -> Nanos {
        let CauseShares { segments, coupled, .. } = self.judging.segments.shares();
        let Estimates { longer_segment, ipi, .. } = self.estimates;
        let [longer_ns, ipi_ns] = [longer_segment, ipi].map(|of| if of.seen > 0 { of.low_ns } else { 0 });
        let own_ns = longer_ns.saturating_add(self.exit_and_entry.map_or(0, Nanos::get));
        Nanos(own_ns.saturating_add(ipi_ns.saturating_mul(coupled) / segments.max(1)))
    }

    /// The leading tasks, whose segments are the units of work: indices into the recording's.
    pub fn leading(&self) -> &[u32] {
        &self.leading
    }

    fn middle(&self, external: External, windows: Windows) -> Variant {
        let constants = Constants::from(self.estimates.all().map(|of| of.ns));
        Variant { external, windows, constants, has_lengths: true, has_delays: true }
    }

    /// What rules do in short parts of a stretch, each from the same windows: whether a load gets out of halts, where a window grows
    /// at all or by chance only.
    fn in_parts(
        &self,
        windows: Windows,
        of: &Stretch,
        kind: External,
        rules: &[Rule],
    ) -> Result<Vec<Outcome>, RuleError> {
        let variant = Variant { has_lengths: false, ..self.middle(kind, windows) };
        let mut sums = vec![Outcome::default(); rules.len()];
        for rows in of.blocks() {
            let part = of.part(rows.start..rows.end.min(rows.start + LONGEST_PART));
            add_to(&mut sums, &self.outcomes(&part, variant, rules)?);
        }
        Ok(sums)
    }

    fn program(&self, of: &Stretch, variant: Variant) -> Program {
        let Variant { external, constants, has_lengths, has_delays, .. } = variant;
        let segments = &of.segments;
        let idling = if has_lengths { &self.idling } else { &self.idling_alike };
        let program =
            Program::without(segments, external, constants, &of.idled).with_idling(segments, idling);
        if has_delays { program.with_delays(segments, self.stolen) } else { program }
    }

    /// What the rules do in a stretch.
    fn outcomes(&self, of: &Stretch, variant: Variant, rules: &[Rule]) -> Result<Vec<Outcome>, RuleError> {
        let program = self.program(of, variant);
        let one = |rule: &Rule| {
            let is_present = *rule == self.present;
            program.replay(rule, if is_present { self.present_windows } else { variant.windows })
        };
        // Little is not worth other threads, which a daemon does without.
        match rules.len().saturating_mul(of.segments.rows.len()) < WORTH_THREADS {
            true => rules.iter().map(one).collect(),
            false => rules.par_iter().map(one).collect(),
        }
    }

    /// What rules do in what is for choosing, or in as much of it as so many segments: both kinds of external causes together, and
    /// in halts, so that of two rules the one is better that gets out of them: what short parts show of that counts as much as one
    /// of the others.
    pub(super) fn fit(&self, rules: &[Rule], most: usize) -> Result<Vec<Outcome>, RuleError> {
        let rows = self.choosing.segments.rows.len();
        let part = (most < rows).then(|| self.choosing.part(0..most));
        let of = part.as_ref().unwrap_or(&self.choosing);
        let mut sums = vec![Outcome::default(); rules.len()];
        for external in self.kinds {
            add_to(&mut sums, &self.outcomes(of, self.middle(external, Windows::Full), rules)?);
        }
        let replayed: usize = of.blocks().map(|rows| rows.len().min(LONGEST_PART)).sum();
        let in_halts = self.in_parts(Windows::AfterHalts, of, self.kinds[0], rules)?;
        for _ in 0..of.segments.rows.len() / replayed.max(1) {
            add_to(&mut sums, &in_halts);
        }
        Ok(sums)
    }

    /// What rules do in what is for judging; the first of them is the present one.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn judge(&self, rules: &[Rule]) -> Result<Judged, RuleError> {
        let judging = &self.judging;
        let replayed = |variant: Variant| self.outcomes(judging, variant, rules);
        type Outcomes = Result<Vec<Outcome>, RuleError>;
        let both = |of: &dyn Fn(External) -> Outcomes| -> Result<[Vec<Outcome>; 2], RuleError> {
            Ok([of(self.kinds[0])?, of(self.kinds[1])?])
        };
        let full = both(&|kind| replayed(self.middle(kind, Windows::Full)))?;
        let in_polls = both(&|kind| self.in_parts(Windows::Full, judging, kind, rules))?;
        let in_halts = both(&|kind| self.in_parts(Windows::AfterHalts, judging, kind, rules))?;
        let middle = self.middle(self.kinds[0], Windows::Full);
        let all = self.estimates.all();
        let mut ends = vec![vec![replayed(Variant { has_delays: false, ..middle })?]];
        for (number, estimate) in all.iter().enumerate() {
            let mut pair = vec![];
            for end_ns in [estimate.low_ns, estimate.high_ns].into_iter().filter(|end| *end != estimate.ns) {
                let mut values = all.map(|of| of.ns);
                values[number] = end_ns;
                pair.push(replayed(Variant { constants: Constants::from(values), ..middle })?);
            }
            ends.push(pair);
        }
        let mut blocks = vec![];
        for rows in judging.blocks() {
            blocks.push(self.outcomes(&judging.part(rows), middle, rules)?);
        }
        let slowed = judging.segments.slowed.unwrap_or(1.0);
        let recorder_share = (1.0 - 1.0 / slowed).min(MOST_RECORDER);
        let model_error = self.other.map_or(MODEL_ERROR, |other| MODEL_ERROR.max(other.error()));
        Ok(Judged {
            full,
            in_polls,
            in_halts,
            ends,
            blocks,
            leading: self.leading.len(),
            model_error,
            recorder_share,
        })
    }
}

/// Adds what each rule did.
fn add_to(sums: &mut [Outcome], outcomes: &[Outcome]) {
    sums.iter_mut().zip(outcomes).for_each(|(sum, outcome)| *sum += *outcome);
}

/// What rules did in what is for judging, in every way in which it was replayed: by variant, then by rule.
pub struct Judged {
    /// Both kinds of external causes.
    full: [Vec<Outcome>; 2],
    /// Short parts of it, from windows of either kind.
    in_polls: [Vec<Outcome>; 2],
    in_halts: [Vec<Outcome>; 2],
    /// What held segments up as a part of the work; and by constant, at the ends of its interval.
    ends: Vec<Vec<Vec<Outcome>>>,
    blocks: Vec<Vec<Outcome>>,
    leading: usize,
    model_error: f64,
    /// The recorder's share in the time of a unit of work, which is in the segments.
    recorder_share: f64,
}

/// Of the time of a unit of work the recorder is assumed to take this share at most.
const MOST_RECORDER: f64 = 0.75;

/// The speed of a load that is not recorded: a unit of work takes less time, by the same under both settings, which is the recorder's
/// share in it under the present one.
fn unrecorded(speed: f64, recorder_share: f64) -> f64 {
    if speed <= 0.0 {
        return speed;
    }
    let time = 1.0 / speed;
    (1.0 - recorder_share) / (time - recorder_share.min(time * MOST_RECORDER))
}

impl Judged {
    /// What a rule does in the middle.
    pub fn outcome(&self, rule: usize) -> Outcome {
        self.full[0][rule]
    }

    /// What a rule does to the work; the first one is the present one.
    pub fn work(&self, rule: usize, halt_cost: Nanos) -> Work {
        let per_s = |outcome: &Outcome| outcome.work_per_s().unwrap_or(0.0);
        let per_ns = |outcome: &Outcome, sum: f64| sum / outcome.span_ns.max(1) as f64;
        let polled_ns = |outcome: &Outcome| outcome.counts.polled_ns;
        Work {
            speed: self.with_unrecorded(self.over_present(rule, per_s)),
            cost_ns: self.range(rule, |all| all[rule].per_work(all[rule].cost_ns(halt_cost) as f64)),
            cpu: self.over_present(rule, |of| of.cpu_per_work(halt_cost)),
            cycle_ns: self.range(rule, |all| self.leading as f64 * 1e9 / per_s(&all[rule])),
            cpu_s: self.range(rule, |all| {
                per_ns(&all[rule], (all[rule].busy_ns + all[rule].cost_ns(Nanos::ZERO)) as f64)
            }),
            polled_s: self
                .range_by(Scale::Difference, rule, |all| per_ns(&all[rule], polled_ns(&all[rule]) as f64)),
            halts_per_s: self.range_by(Scale::Difference, rule, |all| {
                per_ns(&all[rule], all[rule].counts.halts as f64 * 1e9)
            }),
        }
    }

    /// A range that contains the speed without the recorder, too.
    fn with_unrecorded(&self, Range { middle, low, high }: Range) -> Range {
        let unrecorded = |end: f64| unrecorded(end, self.recorder_share);
        Range { middle, low: low.min(unrecorded(low)), high: high.max(unrecorded(high)) }
    }

    /// A figure of what a rule does, over that of the present one.
    pub fn over_present(&self, rule: usize, figure: impl Fn(&Outcome) -> f64) -> Range {
        self.range(rule, |all| figure(&all[rule]) / figure(&all[0]))
    }

    /// A figure of what a rule does, or does in comparison with others.
    pub(super) fn range(&self, rule: usize, figure: impl Fn(&[Outcome]) -> f64) -> Range {
        self.range_by(Scale::Ratio, rule, figure)
    }

    fn range_by(&self, scale: Scale, rule: usize, figure: impl Fn(&[Outcome]) -> f64) -> Range {
        let of = |outcomes: &[Outcome]| scale.of(figure(outcomes));
        let [by_task, relative] = [of(&self.full[0]), of(&self.full[1])];
        let middle = f64::midpoint(by_task, relative);
        let model = match scale {
            _ if rule == 0 => 0.0,
            Scale::Ratio => self.model_error,
            Scale::Difference => self.model_error * middle,
        };
        let mut squares = [(by_task - relative).powi(2) / 4.0 + model * model; 2];
        let mut add = |down: f64, up: f64| {
            squares[0] += down.min(0.0).powi(2);
            squares[1] += up.max(0.0).powi(2);
        };
        for pair in &self.ends {
            let shifts = || pair.iter().map(|outcomes| of(outcomes) - by_task);
            add(shifts().fold(0.0, f64::min), shifts().fold(0.0, f64::max));
        }
        let drawn = |draw: &Draw| {
            let mut sums = vec![Outcome::default(); self.full[0].len()];
            for &block in &draw.picks {
                add_to(&mut sums, &self.blocks[block]);
            }
            Some(of(&sums))
        };
        if let Some(sampled) = Bootstrap::RECORDING.percentile(self.blocks.len(), drawn) {
            add(sampled.low - sampled.value, sampled.high - sampled.value);
        }
        // In halts, where that is something else.
        let [a, b] = [0, 1].map(|kind| of(&self.in_halts[kind]) - of(&self.in_polls[kind]));
        let mode = f64::midpoint(a, b);
        Range {
            middle: scale.figure(middle),
            low: scale.figure(middle - squares[0].sqrt() + mode.min(0.0)),
            high: scale.figure(middle + squares[1].sqrt() + mode.max(0.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::unrecorded;

    #[test]
    fn without_the_recorder_what_is_fast_is_faster_and_what_is_slow_is_slower() {
        // A unit takes 60 us and 20 us, and 40 us more where it is recorded.
        assert!((unrecorded(100.0 / 60.0, 0.4) - 60.0 / 20.0).abs() < 1e-9);
        // The other way round: 20 us and 60 us.
        assert!((unrecorded(60.0 / 100.0, 40.0 / 60.0) - 20.0 / 60.0).abs() < 1e-9);
        assert_eq!([unrecorded(1.0, 0.4), unrecorded(3.0, 0.0), unrecorded(0.0, 0.4)], [1.0, 3.0, 0.0]);
        assert!((unrecorded(4.0, 0.5) - 8.0).abs() < 1e-9, "three quarters of a time of 0.25, and no more");
    }
}
