//! What a setting does to the work, of recordings that have what woke the tasks.

use super::other::{self, OtherByWork};
use crate::model::Model;
use crate::output;
use crate::progress;
use anyhow::ensure;
use dwell_knobs::plan::{Effect, Plan};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::{CauseShares, Reader};
use dwell_replay::advice::{Conclusion, Goal, Worth};
use dwell_replay::causal::{self, Estimates, Other, Predictor, Range, RowByWork, Task};
use dwell_replay::tune::Decided;
use dwell_replay::{Figure, Rule, Values};
use dwell_report::{Cell, Column, Table, count, duration, percent, ratio, rounded};
use dwell_stats::Interval;
use serde::Serialize;
use std::path::Path;

/// Advice by the work done.
#[derive(Serialize)]
pub(crate) struct ByWork {
    causes: CauseShares,
    /// The tasks whose segments are the units of work.
    unit_of_work: Vec<String>,
    recorded_work_per_s: f64,
    /// By how much a replay of the present setting is faster than the recording, as a share.
    own_error: f64,
    constants: Estimates,
    /// The setting of the other recording, and its work over that of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<OtherByWork>,
    #[serde(flatten)]
    advice: causal::ByWork,
    #[serde(skip)]
    present: Setting,
    #[serde(skip)]
    goal: Goal,
    #[serde(skip)]
    predictor: Predictor,
}

impl ByWork {
    /// Of a recording of a guest that has causes; `None` of others.
    ///
    /// # Errors
    /// If the other recording cannot be read or has no causes.
    pub(super) fn of(
        reader: &Reader,
        also: Option<&Path>,
        model: &Model,
        present: Setting,
        goal: Goal,
        worth_a_change: Worth,
    ) -> anyhow::Result<Option<ByWork>> {
        let Some(segments) = reader.segments()?.filter(|_| present.layer() == Layer::Guest) else {
            ensure!(
                also.is_none(),
                "--also needs a recording of a guest with what woke the tasks, as `dwell record guest` keeps it"
            );
            return Ok(None);
        };
        let another = also.map(|path| other::read(path, model).map(|other| (path, other))).transpose()?;
        let other =
            another.as_ref().map(|(_, (segments, setting))| Other { segments, under: Rule::Layer(*setting) });
        let predictor =
            Predictor::new(&segments, &Rule::Layer(present), model.known_latency(), other.as_ref())?;
        let Some(predictor) = predictor else {
            return Ok(None);
        };
        let other = another.as_ref().map(|(path, (_, setting))| OtherByWork {
            file: path.display().to_string(),
            setting: Values::from(setting).differing_from(&Values::from(&present)),
            work: predictor.other,
        });
        let bar = progress::steps(causal::STEPS, "replaying causes");
        let advice = causal::advise(&Task {
            predictor: &predictor,
            present,
            goal,
            halt_cost: model.halt_cost,
            wakeup_latency: &model.wakeup_latency,
            worth_a_change,
            progress: &|| bar.inc(1),
        });
        bar.finish_and_clear();
        let name = |task: &u32| segments.tasks.get(*task as usize).cloned().unwrap_or_default();
        Ok(Some(ByWork {
            causes: segments.shares(),
            unit_of_work: predictor.leading().iter().map(name).collect(),
            recorded_work_per_s: predictor.recorded_per_s,
            own_error: predictor.own_error,
            constants: predictor.estimates,
            other,
            advice: advice?,
            present,
            goal,
            predictor,
        }))
    }

    /// As [`Advice::gives_way`](dwell_replay::advice::Advice::gives_way), where that has refused the setting.
    pub(super) fn gives_way(&mut self) {
        self.advice.verdict = Conclusion::SharedCores;
        for row in self.advice.settings.iter_mut().filter(|row| row.role == "recommended") {
            row.role = "rejected";
        }
    }

    /// What the other search is to take over.
    pub(super) fn decided(&self) -> Decided {
        self.advice.decided()
    }

    /// The advice as a sentence, and why it is not what idle times as recorded would advise.
    pub(super) fn advice(&mut self, by_idle_times: Option<Setting>, model: &Model) -> anyhow::Result<String> {
        let recommended = self.advice.chosen.filter(|_| self.advice.verdict.is_change());
        let words = self.sentence();
        if by_idle_times == recommended {
            return Ok(words);
        }
        let differing =
            |setting: Setting| Values::from(&setting).differing_from(&Values::from(&self.present));
        let would =
            by_idle_times.map_or("leave it".to_owned(), |setting| format!("set {}", differing(setting)));
        let (name, setting) = match (by_idle_times, recommended) {
            (Some(setting), _) => ("that setting", setting),
            (None, other) => ("the setting by work", other.unwrap_or(self.present)),
        };
        let row = self.advice.compare(&self.predictor, self.present, setting, model.halt_cost)?;
        Ok(format!(
            "{words}. With the idle times as recorded the advice would be: {would}. They would not stay as recorded: under \
             {name} the load does {} ({}) times the work a second, at {} ({}) a unit",
            ratio(row.work.speed.middle),
            between(row.work.speed, ratio),
            duration(row.work.cost_ns.middle),
            between(row.work.cost_ns, duration),
        ))
    }

    fn sentence(&self) -> String {
        let chosen = self.advice.chosen.unwrap_or(self.present);
        let differing = Values::from(&chosen).differing_from(&Values::from(&self.present));
        let unit = match self.goal.figure() {
            Figure::Cost => "cost",
            figure => figure.words(),
        };
        let gain = self.advice.gain.map_or_else(String::new, |gain| {
            let speed = self.advice.row(&chosen).map(|row| row.work.speed);
            let speed = speed.map_or_else(String::new, |speed| {
                format!(", at {} ({}) times the work a second", ratio(speed.middle), between(speed, ratio))
            });
            format!(
                "{} less {unit} for a unit of work than under the present setting (range {} to {}){speed}",
                percent(gain.share.value),
                percent(gain.share.low),
                percent(gain.share.high)
            )
        });
        match self.advice.verdict {
            Conclusion::Change => format!("set {differing}: by work, {gain}"),
            Conclusion::AlreadyBest => {
                "leave it: by work, of all settings tried the present one is best on the first half"
                    .to_owned()
            }
            Conclusion::WithinNoise | Conclusion::Loss => format!(
                "leave it: by work, {differing} was best on the first half, but its range on the second does not exclude that it \
                 is worse than the present setting, the default or never: {gain}"
            ),
            Conclusion::TooSmall => format!("leave it: by work, {differing} is not worth a change: {gain}"),
            Conclusion::MissedLimit => {
                format!(
                    "leave it: by work, {differing} kept the limit on the first half and broke it on the second"
                )
            }
            Conclusion::Unattainable => {
                "leave it: by work, none of the settings tried meets the limit on the first half".to_owned()
            }
            Conclusion::SharedCores => format!(
                "leave it: by work, {differing} polls more, and others want the cores of this guest; alone on them: {gain}"
            ),
        }
    }

    /// The plan with what is predicted by work.
    pub(super) fn plan(&self, plan: Plan, words: &str) -> Plan {
        let [present, recommended] = self.advice.priced.clone();
        let chosen = self.advice.chosen.and_then(|chosen| self.advice.row(&chosen));
        let speed = chosen.map(|row| Interval::from(row.work.speed));
        let effect = Effect { present, recommended, gain: self.advice.gain, speed, ..Effect::default() };
        Plan { advice: words.to_owned(), effect, ..plan }
    }

    /// As text.
    pub(super) fn words(&self) -> String {
        let names: Vec<String> =
            self.unit_of_work.iter().map(|name| name.escape_debug().to_string()).collect();
        let opening = format!(
            "By work: causes were replayed, which let the idle times change with the setting; the table above keeps \
             those of the recording. {} of {} segments were woken by recorded tasks. Unit of work: a segment of {}; {} a second \
             were recorded, and the present setting replayed does {} of that. {} settings were tried on the first half; \
             figures are of the second. In brackets: what the constants, the recording's length, the times of interrupts and \
             the model's measured error leave open.",
            percent(self.causes.coupled as f64 / self.causes.segments.max(1) as f64),
            count(self.causes.segments.into()),
            names.join(", "),
            format_args!("{:.0}", self.recorded_work_per_s),
            percent(1.0 + self.own_error),
            count(self.advice.settings_tried as u128),
        );
        let other = self.other.as_ref().map_or_else(String::new, OtherByWork::words);
        format!(
            "\n{}\n{}\n{}",
            output::wrapped(&(opening + &other)),
            output::fitted(&self.table()),
            output::wrapped(&self.sources())
        )
    }

    fn table(&self) -> Table {
        let present = self.advice.settings.first().map(|row| row.setting.clone()).unwrap_or_default();
        let setting = |row: &RowByWork| {
            let differing = row.setting.differing_from(&present);
            if differing.is_empty() { row.setting.to_string() } else { differing.to_string() }
        };
        Table::of(&self.advice.settings)
            .column(Column::text("policy", "role"), |row| row.role)
            .column(Column::number("speed", "speed"), |row| Cell::Ratio(row.work.speed.middle))
            .column(Column::text("", "speed_range"), |row| format!("({})", between(row.work.speed, ratio)))
            .column(Column::number("cost/work", "cost_per_work_ns"), |row| duration(row.work.cost_ns.middle))
            .column(Column::text("", "cost_range"), |row| {
                format!("({})", between(row.work.cost_ns, duration))
            })
            .column(Column::number("cycle", "cycle_ns"), |row| duration(row.work.cycle_ns.middle))
            .column(Column::number("CPU/s", "cpu_s"), |row| Cell::Ratio(row.work.cpu_s.middle))
            .column(Column::number("polling", "polled_s").rank(1), |row| percent(row.work.polled_s.middle))
            .column(Column::number("halts/s", "halts_per_s").rank(1), |row| {
                rounded(row.work.halts_per_s.middle)
            })
            .column(Column::text("setting", "setting").below(), setting)
            .table()
    }

    fn sources(&self) -> String {
        let Estimates { after_poll, after_halt, external_poll, external_halt, ipi, longer_segment, hidden } =
            self.constants;
        let named = [
            ("wakeup by a task after a poll", after_poll),
            ("after a halt", after_halt),
            ("by an interrupt or timer after a poll", external_poll),
            ("after a halt", external_halt),
            ("interrupt, for the waker", ipi),
            ("longer segment after a halt", longer_segment),
            ("part of a halt that hides an interrupt", hidden),
        ];
        let plural = if self.other.is_some() { "s" } else { "" };
        let words = named.map(|(name, of)| {
            let source = match of.seen {
                0 => "assumed".to_owned(),
                seen => format!("{} in the recording{plural}", count(seen.into())),
            };
            let [ns, low, high] = [of.ns, of.low_ns, of.high_ns].map(|ns| duration(ns as f64));
            format!("{name} {ns} ({low} to {high}, {source})")
        });
        format!("Constants: {}. The scheduler's choice of CPUs is taken to stay.", words.join("; "))
    }
}

fn between(range: Range, words: impl Fn(f64) -> String) -> String {
    format!("{} to {}", words(range.low), words(range.high))
}
