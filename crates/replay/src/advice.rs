//! What is advised, and the figures that it rests on: the result of [`tune`](crate::tune::tune).
//!
//! An [`Advice`] is a value: it serialises, and [`Advice::words`] is the sentence that every form of it
//! shows. "Recommended" is a setting that dwell recommends. Where the verdict is to leave the present
//! setting, no row has that role; the candidate that was not good enough is shown as [`Role::Rejected`].

use crate::calibration::HaltOf;
use crate::counts::Counts;
use crate::number::{duration, percent, ratio};
use crate::priced::{Figure, Priced, Row, Values};
use dwell_policy::Nanos;
use dwell_policy::catalogue::{Entry, LEADER, SAVINGS};
use dwell_policy::param::Setting;
pub use dwell_stats::Interval;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// What a good setting is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Least cost: polling CPU plus halts at their cost.
    #[default]
    LeastCost,
    /// Fewest halts among the settings that poll for at most this share of one CPU.
    MaxCpu(f64),
    /// Least polling CPU among the settings with at most so many halts per second.
    MaxHaltsPerSecond(f64),
}

impl Goal {
    /// The figure that is as low as can be.
    pub const fn figure(self) -> Figure {
        match self {
            Goal::LeastCost => Figure::Cost,
            Goal::MaxCpu(_) => Figure::Halts,
            Goal::MaxHaltsPerSecond(_) => Figure::PollingCpu,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::LeastCost => write!(f, "least cost"),
            Goal::MaxCpu(share) => {
                write!(f, "fewest halts with at most {} of a CPU polling", percent(*share))
            }
            Goal::MaxHaltsPerSecond(rate) => {
                write!(f, "least polling CPU with at most {rate} halts per second")
            }
        }
    }
}

/// Where a quantity comes from that need not be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The user gave it.
    Given,
    /// The recording has it.
    Recorded,
    /// The recording shows it in the segments after halts, and in those of the wakers.
    Segments,
    /// `dwell-lab calibrate` measured it by halts of the own CPUs of a system like the recorded one.
    MeasuredOwnCpu,
    /// `dwell-lab calibrate` measured it by halts of a vCPU, on a machine like the recorded one.
    MeasuredVcpu,
    /// A default, which was not measured.
    Default,
}

impl From<HaltOf> for Origin {
    fn from(halt_of: HaltOf) -> Origin {
        match halt_of {
            HaltOf::OwnCpu => Origin::MeasuredOwnCpu,
            HaltOf::Vcpu => Origin::MeasuredVcpu,
        }
    }
}

/// By how much a setting lowers a figure of the present one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gain {
    pub of: Figure,
    /// The same in the figure's own unit, per second; negative for a loss.
    pub per_s: f64,
    /// As a share of the present setting's; negative for a loss.
    pub share: Interval,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Set the recommended setting.
    Change,
    /// Leave it: the present setting is the best one.
    AlreadyBest,
    /// Leave it: the gain on the second half cannot be distinguished from noise.
    WithinNoise,
    /// Leave it: what was best on the first half is a loss on the second, beyond noise.
    Loss,
    /// Leave it: the gain is certain and too small to matter.
    TooSmall,
    /// Leave it: the candidate missed the goal's limit on the second half.
    MissedLimit,
    /// Leave it: no candidate meets the goal's limit on the first half.
    Unattainable,
    /// Leave it: the setting polls more, and others want the cores of this guest.
    SharedCores,
    /// Leave it: less work would be done, and a unit of it would take no less CPU time.
    Slower,
}

impl Conclusion {
    /// Of a candidate, by whether it and the present setting keep the goal's limit, and by its gain; `is_sure`: whether it is
    /// beyond noise, also in comparison with others.
    pub(crate) fn of(
        [present_meets, meets]: [bool; 2],
        gain: &Gain,
        is_sure: impl FnOnce() -> bool,
        worth: Worth,
    ) -> Conclusion {
        match () {
            () if !meets => Conclusion::MissedLimit,
            // The present setting breaks the limit: that the other keeps it is the gain.
            () if !present_meets => Conclusion::Change,
            () if gain.share.high < 0.0 => Conclusion::Loss,
            () if !is_sure() => Conclusion::WithinNoise,
            () if !worth.is_reached_by(gain) => Conclusion::TooSmall,
            () => Conclusion::Change,
        }
    }

    /// Whether to change anything.
    pub const fn is_change(self) -> bool {
        matches!(self, Conclusion::Change)
    }
}

/// What a row of an advice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Never polls.
    Never,
    Always,
    /// The setting in force.
    Present,
    /// Chosen on the first half, and recommended.
    Recommended,
    /// Chosen on the first half, and not recommended for what it did on the second.
    Rejected,
    /// The best of all candidates on the second half.
    BestInHindsight,
    /// The best fixed window for the second half.
    BestFixedWindow,
    /// What no policy can go below.
    Optimum,
    /// A policy that learns, which no kernel has.
    #[serde(untagged)]
    Learner(#[serde(serialize_with = "name_of")] &'static Entry),
}

fn name_of<S: Serializer>(entry: &Entry, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(entry.name)
}

impl Role {
    pub const LEADER: Role = Role::Learner(LEADER);
    pub const SAVINGS: Role = Role::Learner(SAVINGS);

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Never => "never",
            Role::Always => "always",
            Role::Present => "present",
            Role::Recommended => "recommended",
            Role::Rejected => "rejected",
            Role::BestInHindsight => "best in hindsight",
            Role::BestFixedWindow => "best fixed window",
            Role::Learner(entry) => entry.name,
            Role::Optimum => "optimum",
        }
    }
}

/// One policy on the second half.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdviceRow {
    /// What it is here.
    pub role: Role,
    /// The policy, its setting and its figures on the second half.
    #[serde(flatten)]
    pub row: Row,
    /// Its figures on the first half.
    pub fitted: Priced,
}

/// What any policy could gain at most: the present cost less the optimum's, on the second half \[ns/s\].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpperBound {
    /// What the present setting costs.
    pub present_cost_ns_per_s: f64,
    /// What the optimum costs.
    pub optimum_cost_ns_per_s: f64,
    pub gain_ns_per_s: f64,
}

/// The halt costs between which the advice holds, by the figures of the second half: beyond them the other
/// setting would cost less. Without a limit it holds for every halt cost on that side.
///
/// Of a change it is where the recommended setting costs less than the present one; of an advice to leave it, where no
/// setting that was tried gains enough to be worth a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BreakEven {
    /// Below this halt cost the advice is another one \[ns\].
    pub from_ns: Option<f64>,
    /// Above this halt cost the advice is another one \[ns\].
    pub to_ns: Option<f64>,
}

impl BreakEven {
    /// Where `other` costs less than `present`.
    pub(crate) fn of_change(present: &Counts, other: &Counts) -> BreakEven {
        let (more_polling, fewer_halts) = differences(present, other);
        let HalfLine(from, to) = HalfLine::above(fewer_halts, more_polling);
        BreakEven { from_ns: (from > 0.0).then_some(from), to_ns: to.is_finite().then_some(to) }
    }

    /// Where none of the `others` is `worth` a change from `present`, around `halt_cost`; those that are worth one at
    /// `halt_cost` itself are not counted: they were not chosen.
    pub(crate) fn of_staying(
        present: &Counts,
        others: &[Counts],
        halt_cost: Nanos,
        worth: Worth,
        span_ns: u64,
    ) -> BreakEven {
        let now = halt_cost.get() as f64;
        let least_gain = worth.cpu_share * span_ns as f64;
        let mut limits = BreakEven::default();
        for other in others {
            let (more_polling, fewer_halts) = differences(present, other);
            // Gain as a function of the halt cost h: fewer_halts · h - more_polling, which has to exceed two lines.
            let enough = HalfLine::above(fewer_halts, more_polling + least_gain);
            let share = worth.share;
            let kept = (1.0 - share) * present.halts as f64 - other.halts as f64;
            let polled = other.polled_ns as f64 - (1.0 - share) * present.polled_ns as f64;
            let (from, to) = enough.and(HalfLine::above(kept, polled));
            if from >= to {
                continue;
            }
            if from > now {
                limits.to_ns = Some(limits.to_ns.map_or(from, |to| to.min(from)));
            } else if to < now {
                limits.from_ns = Some(limits.from_ns.map_or(to, |from| from.max(to)));
            }
        }
        limits
    }
}

/// Polling that `other` adds \[ns\], and halts that it saves.
fn differences(present: &Counts, other: &Counts) -> (f64, f64) {
    (other.polled_ns as f64 - present.polled_ns as f64, present.halts as f64 - other.halts as f64)
}

/// Halt costs from one on or up to one, from 0.
#[derive(Clone, Copy)]
struct HalfLine(f64, f64);

impl HalfLine {
    /// Where `slope · h > height`.
    fn above(slope: f64, height: f64) -> HalfLine {
        match () {
            () if slope > 0.0 => HalfLine((height / slope).max(0.0), f64::INFINITY),
            () if slope < 0.0 => HalfLine(0.0, (height / slope).max(0.0)),
            () if height < 0.0 => HalfLine(0.0, f64::INFINITY),
            () => HalfLine(0.0, 0.0),
        }
    }

    fn and(self, other: HalfLine) -> (f64, f64) {
        (self.0.max(other.0), self.1.min(other.1))
    }
}

/// What a gain must reach to be worth a change, however certain it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Worth {
    /// Share of the present setting's figure.
    pub share: f64,
    /// Share of one CPU, of gains in cost or polling CPU.
    pub cpu_share: f64,
}

impl Default for Worth {
    /// 1 % of the figure, 0.5 % of a CPU.
    fn default() -> Worth {
        Worth { share: 0.01, cpu_share: 0.005 }
    }
}

impl Worth {
    /// Whether a gain reaches it.
    pub(crate) fn is_reached_by(self, gain: &Gain) -> bool {
        let cpu = gain.of == Figure::Halts || gain.per_s / 1e9 >= self.cpu_share;
        gain.share.value >= self.share && cpu
    }
}

/// The advice and what it rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    pub verdict: Conclusion,
    pub goal: Goal,
    /// What one halt and wakeup costs in CPU time \[ns\].
    pub halt_cost_ns: u64,
    /// The latency that a halt adds to its wakeup, on average \[ns\].
    pub wakeup_latency_ns: f64,
    /// What a gain has to reach.
    pub worth_a_change: Worth,
    /// Settings that were tried.
    pub settings_tried: usize,
    /// Length of the first half \[ns\].
    pub fitted_span_ns: u64,
    /// Length of the second half \[ns\].
    pub judged_span_ns: u64,
    /// What could be gained at most.
    pub upper_bound: UpperBound,
    /// Gain of the recommended or rejected over the present setting on the second half; nothing where neither is.
    pub gain: Option<Gain>,
    /// For which halt costs the advice holds; nothing where the goal is a limit.
    pub break_even: Option<BreakEven>,
    /// Policies and bounds on the second half.
    pub rows: Vec<AdviceRow>,
    /// Of the settings tried, on the second half, those than which no other both polls less and halts less: in order of
    /// the polling CPU, so that halts, and with them the added latency, fall.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub front: Vec<Row>,
    /// The setting in force.
    #[serde(skip)]
    pub present: Setting,
    /// The setting that was chosen on the first half, whether it is recommended or rejected; the present one
    /// where that is best. Nothing where no setting meets the goal's limit.
    #[serde(skip)]
    pub chosen: Option<Setting>,
    /// What is recommended with the idle times as recorded, whatever was decided by the work done.
    #[serde(skip)]
    pub by_idle_times: Option<Setting>,
}

impl Advice {
    /// The row of a role.
    pub fn row(&self, role: Role) -> Option<&AdviceRow> {
        self.rows.iter().find(|row| row.role == role)
    }

    /// What the present setting costs, as a multiple of the optimum, on the first half and on the second, if one of the
    /// two is more than 1.25 times the other: the load has changed.
    pub fn halves_differ(&self) -> Option<(f64, f64)> {
        const DIFFERENT: f64 = 1.25;
        let present = self.row(Role::Present)?;
        let (fitted, judged) = (present.fitted.cost_over_optimum?, present.row.figures.cost_over_optimum?);
        (fitted > judged * DIFFERENT || judged > fitted * DIFFERENT).then_some((fitted, judged))
    }

    /// The figures of a role; those of nothing where it has no row.
    pub fn figures(&self, role: Role) -> Priced {
        self.row(role).map_or_else(Priced::default, |row| row.row.figures.clone())
    }

    /// The setting that is recommended; nothing where the present one is to be left as it is.
    pub fn recommended(&self) -> Option<Setting> {
        self.chosen.filter(|_| self.verdict.is_change())
    }

    /// Others want the cores of this guest, so that polls take their time: a setting that polls more is not recommended.
    /// Whether one was.
    pub fn gives_way(&mut self) -> bool {
        let polling = |role| self.figures(role).polling_ns_per_s;
        let more = self.verdict.is_change() && polling(Role::Recommended) > polling(Role::Present);
        if more {
            self.verdict = Conclusion::SharedCores;
            self.break_even = None;
            for row in self.rows.iter_mut().filter(|row| row.role == Role::Recommended) {
                row.role = Role::Rejected;
            }
        }
        more
    }

    /// The advice as a sentence.
    pub fn words(&self) -> String {
        let chosen = self.chosen.unwrap_or(self.present);
        let differing = Values::from(&chosen).differing_from(&Values::from(&self.present));
        let words = match self.verdict {
            Conclusion::Change => format!("set {differing}: {}", self.change_words()),
            Conclusion::AlreadyBest => {
                "leave it: of all settings tried, the present one is best on the first half".to_owned()
            }
            Conclusion::WithinNoise => format!(
                "leave it: {differing} was best on the first half, but its gain cannot be distinguished from noise: {}",
                self.gain_words()
            ),
            Conclusion::Loss => format!(
                "leave it: {differing} was best on the first half, but is a loss on the second: {}",
                self.gain_words()
            ),
            Conclusion::TooSmall => format!(
                "leave it: {differing} would be {}, which is not worth a change (less than {} of it, or {} of a CPU)",
                self.gain_words(),
                percent(self.worth_a_change.share),
                percent(self.worth_a_change.cpu_share),
            ),
            Conclusion::MissedLimit => format!(
                "leave it: {differing} kept the limit on the first half and broke it on the second; \
                 this load changes too much for that limit, or the recording is too short"
            ),
            Conclusion::Unattainable => {
                "leave it: none of the settings tried meets the limit on the first half; \
                 the rows `never` and `always` show how far the rule can go"
                    .to_owned()
            }
            Conclusion::SharedCores => format!(
                "leave it: {differing} polls more, and others want the cores of this guest; alone on them it would be {}",
                self.gain_words()
            ),
            Conclusion::Slower => format!(
                "leave it: with {differing} less work would be done, and a unit of it would take no less CPU time"
            ),
        };
        match self.break_even.and_then(|limits| limits.words(self.halt_cost_ns)) {
            Some(limits) => format!("{words}. {limits}"),
            None => words,
        }
    }

    fn change_words(&self) -> String {
        let Some(gain) = self.gain else { return String::new() };
        if gain.share.value < 0.0 {
            return format!(
                "the present setting breaks the limit, this one keeps it on both halves, at {} more {}",
                percent(-gain.share.value),
                gain.of.words()
            );
        }
        let row = self.row(Role::Recommended);
        let shown = |value: Option<f64>| value.map_or("-".to_owned(), ratio);
        format!(
            "{}; cost {} times the optimum there, {} on the first half",
            self.gain_words(),
            shown(row.and_then(|row| row.row.figures.cost_over_optimum)),
            shown(row.and_then(|row| row.fitted.cost_over_optimum)),
        )
    }

    /// How much less, of what, and how much latency that adds or takes away.
    fn gain_words(&self) -> String {
        let Some(gain) = self.gain else { return String::new() };
        let Interval { low, value, high } = gain.share;
        let (share, limits, less) =
            if value < 0.0 { (-value, [-high, -low], "more") } else { (value, [low, high], "less") };
        let cpu = match gain.of {
            Figure::Halts => String::new(),
            Figure::PollingCpu => format!(", {} of a CPU", percent(gain.per_s.abs() / 1e9)),
            Figure::Cost => {
                format!(", a price of {} of a CPU{}", percent(gain.per_s.abs() / 1e9), self.price_words())
            }
        };
        format!(
            "{} {less} {} than the present setting on the second half (95 % interval {} to {}){cpu}{}",
            percent(share),
            gain.of.words(),
            percent(limits[0]),
            percent(limits[1]),
            self.latency_words()
        )
    }

    /// The candidate and the present setting.
    fn compared(&self) -> Option<(&AdviceRow, &AdviceRow)> {
        let candidate = self.row(Role::Recommended).or_else(|| self.row(Role::Rejected));
        candidate.zip(self.row(Role::Present))
    }

    /// Halts a second that the recommended or rejected setting adds to those of the present one.
    pub fn more_halts_per_s(&self) -> Option<f64> {
        let (candidate, present) = self.compared()?;
        Some(candidate.row.figures.halts_per_s - present.row.figures.halts_per_s)
    }

    /// Of a price, the CPU time and the halts at what one is taken to cost.
    fn price_words(&self) -> String {
        let Some((candidate, present)) = self.compared() else { return String::new() };
        let change = |of: fn(&Priced) -> f64| of(&candidate.row.figures) - of(&present.row.figures);
        let halts = change(|figures| figures.halts_per_s) * self.halt_cost_ns as f64 / 1e9;
        let words = |share: f64| {
            let more = if share > 0.0 { "more" } else { "less" };
            format!("{} {more}", percent(share.abs()))
        };
        format!(
            " ({} CPU time polled, {} for halts at {} each)",
            words(change(Priced::polling_share)),
            words(halts),
            duration(self.halt_cost_ns as f64)
        )
    }

    fn latency_words(&self) -> String {
        let Some((candidate, present)) = self.compared() else { return String::new() };
        let mean = |row: &AdviceRow| row.row.figures.mean_added_latency_ns;
        let added = mean(candidate) - mean(present);
        if added.abs() < 0.5 {
            return String::new();
        }
        let more = if added > 0.0 { "more" } else { "less" };
        format!(", {} {more} latency a wakeup", duration(added.abs()))
    }
}

impl BreakEven {
    /// For which halt costs the advice holds; nothing where there is no limit and the halt cost is 0.
    fn words(self, halt_cost_ns: u64) -> Option<String> {
        let now = halt_cost_ns as f64;
        Some(match (self.from_ns, self.to_ns) {
            (None, None) => "This holds at any halt cost".to_owned(),
            (Some(from), None) => format!("This holds for halt costs above {}", duration(from)),
            (None, Some(to)) => format!("This holds for halt costs below {}", duration(to)),
            (Some(from), Some(to)) => {
                format!("This holds for halt costs from {} to {}", duration(from), duration(to))
            }
        })
        .filter(|_| now > 0.0 || self != BreakEven::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(polled_us: u64, halts: u64) -> Counts {
        Counts { polled_ns: u128::from(polled_us) * 1_000, halts, episodes: 1_000, ..Counts::default() }
    }

    #[test]
    fn a_change_to_more_polling_holds_above_a_halt_cost() {
        // 1000 us more polling save 100 halts: worth it above 10 us a halt.
        let change = BreakEven::of_change(&counts(1_000, 500), &counts(2_000, 400));
        assert_eq!(change, BreakEven { from_ns: Some(10_000.0), to_ns: None });
        let back = BreakEven::of_change(&counts(2_000, 400), &counts(1_000, 500));
        assert_eq!(back, BreakEven { from_ns: None, to_ns: Some(10_000.0) });
        // Less of both is better at any halt cost.
        assert_eq!(BreakEven::of_change(&counts(2_000, 400), &counts(1_000, 400)), BreakEven::default());
    }

    #[test]
    fn staying_holds_up_to_the_nearest_halt_cost_at_which_something_is_worth_a_change() {
        let worth = Worth { share: 0.0, cpu_share: 0.0 };
        let others = [counts(2_000, 400), counts(6_000, 300), counts(500, 600), counts(1_000, 500)];
        let stay = BreakEven::of_staying(&counts(1_000, 500), &others, Nanos(7_000), worth, 1_000_000_000);
        assert_eq!(stay, BreakEven { from_ns: Some(5_000.0), to_ns: Some(10_000.0) });
        // A gain of 1 ms in a second is asked for: 100 halts have to save 1 ms more than they cost.
        let worth = Worth { share: 0.0, cpu_share: 0.001 };
        let stay = BreakEven::of_staying(&counts(1_000, 500), &others, Nanos(7_000), worth, 1_000_000_000);
        assert_eq!(stay.to_ns, Some(20_000.0));
        assert_eq!(stay.from_ns, None);
    }
}
