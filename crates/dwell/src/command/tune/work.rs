//! What a setting does to the work, of recordings that have what woke the tasks.

use super::other::{self, OtherByWork};
use crate::by_work::host::{Above, Host, Seen, TOO_LITTLE};
use crate::by_work::{self, Basis, between};
use crate::model::Model;
use crate::progress;
use anyhow::{Context, bail, ensure};
use dwell_knobs::plan::{Effect, Plan};
use dwell_policy::param::Setting;
use dwell_recording::Reader;
use dwell_replay::advice::{Conclusion, Goal, Worth};
use dwell_replay::causal::{self, Other, Predictor, Range, Task, Work};
use dwell_replay::tune::Decided;
use dwell_replay::{Figure, Rule, Values};
use dwell_report::{count, duration, percent, ratio};
use dwell_stats::Interval;
use serde::Serialize;
use std::path::Path;

/// Advice by the work done.
#[derive(Serialize)]
pub(crate) struct ByWork {
    #[serde(flatten)]
    basis: Basis,
    /// The setting of the other recording, and its work over that of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<OtherByWork>,
    /// What the host's recording has of the guest's halts.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Seen>,
    #[serde(flatten)]
    advice: causal::AdviceByWork,
    #[serde(skip)]
    present: Rule,
    #[serde(skip)]
    goal: Goal,
    #[serde(skip)]
    predictor: Predictor,
}

impl ByWork {
    /// Of a recording that has causes; `None` of others. What halts add to its segments is the least that they cost.
    ///
    /// # Errors
    /// If the other recording cannot be read or has no causes.
    pub(super) fn of(
        reader: &Reader,
        also: Option<&Path>,
        model: &mut Model,
        present: Setting,
        goal: Goal,
        worth_a_change: Worth,
    ) -> anyhow::Result<Option<ByWork>> {
        let Some(segments) = by_work::segments(reader, present.layer())? else {
            if also.is_some() {
                ensure!(
                    reader.cause_shares()?.is_some(),
                    "--also needs a recording with what woke the tasks, vCPUs or threads, as `dwell record` keeps it"
                );
                bail!(
                    "--also has no effect: work is predicted only where vCPUs or threads wait for each other, and for the \
                     layer of the recording"
                );
            }
            return Ok(None);
        };
        let another = also
            .map(|path| other::read(path, present.layer(), model).map(|other| (path, other)))
            .transpose()?;
        let other =
            another.as_ref().map(|(_, (segments, setting))| Other { segments, under: Rule::Layer(*setting) });
        let (under, known) = (Rule::Layer(present), model.calibrated());
        let Some(predictor) = Predictor::new(&segments, &under, &[], known, other.as_ref())? else {
            ensure!(also.is_none(), "--also has no effect: too little work was recorded for a prediction");
            return Ok(None);
        };
        let other = another.as_ref().map(|(path, (_, setting))| OtherByWork {
            file: path.display().to_string(),
            setting: Values::from(setting).differing_from(&Values::from(&present)),
            work: predictor.other,
        });
        let basis = Basis::of(&segments, &predictor, by_work::can_verify(present, reader));
        let work = ByWork::advised(basis, predictor, under, model, goal, worth_a_change)?;
        Ok(Some(ByWork { other, ..work }))
    }

    /// Of a guest and its host that were recorded together.
    pub(super) fn of_both(
        host: &Host,
        guest: &Reader,
        model: &mut Model,
        goal: Goal,
        worth_a_change: Worth,
    ) -> anyhow::Result<ByWork> {
        let above = host.above(guest, model)?;
        let known = above.calibrated(model);
        let Above { segments, seen, present } = above;
        let predictor = Predictor::new(&segments, &present, &seen.by_host, known, None)?;
        let predictor = predictor.context(TOO_LITTLE)?;
        let basis = Basis::of(&segments, &predictor, false);
        let work = ByWork::advised(basis, predictor, present, model, goal, worth_a_change)?;
        Ok(ByWork { host: Some(seen), ..work })
    }

    fn advised(
        basis: Basis,
        predictor: Predictor,
        present: Rule,
        model: &mut Model,
        goal: Goal,
        worth_a_change: Worth,
    ) -> anyhow::Result<ByWork> {
        model.halts_cost_at_least(predictor.added_by_halt());
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
        Ok(ByWork { basis, other: None, host: None, advice: advice?, present, goal, predictor })
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
        let (by_idle_times, recommended) = (by_idle_times.map(Rule::Layer), self.recommended());
        let words = self.sentence();
        if by_idle_times == recommended {
            return Ok(words);
        }
        let would =
            by_idle_times.map_or("leave it".to_owned(), |rule| format!("set {}", self.differing(&rule)));
        let (name, rule) = match (by_idle_times, recommended) {
            (Some(rule), _) => ("that setting", rule),
            (None, other) => ("the setting by work", other.unwrap_or(self.present)),
        };
        let row = self.advice.compare(&self.predictor, self.present, rule, model.halt_cost)?;
        Ok(format!(
            "{words}. With the idle times as recorded the advice would be: {would}. They would not stay as recorded: under \
             {name} the load does {} ({}) times the work a second, at {} ({}) a unit",
            ratio(row.work.speed.middle),
            between(row.work.speed, ratio),
            duration(row.work.cost_ns.middle),
            between(row.work.cost_ns, duration),
        ))
    }

    /// What is to be set in place of the setting in force.
    pub(super) fn recommended(&self) -> Option<Rule> {
        self.advice.chosen.filter(|_| self.advice.verdict.is_change())
    }

    pub(super) fn present(&self) -> Rule {
        self.present
    }

    /// The parameters that differ from those in force.
    fn differing(&self, rule: &Rule) -> Values {
        Values::from(rule).differing_from(&Values::from(&self.present))
    }

    /// The advice as a sentence.
    pub(super) fn sentence(&self) -> String {
        let chosen = self.advice.chosen.unwrap_or(self.present);
        let differing = self.differing(&chosen);
        let unit = match self.goal.figure() {
            Figure::Cost => "cost",
            figure => figure.words(),
        };
        let gain = self.advice.gain.map_or_else(String::new, |gain| {
            let speed = self.advice.row(&chosen).map_or_else(String::new, |row| {
                let times = |of: Range| format!("{} ({})", ratio(of.middle), between(of, ratio));
                let Work { speed, cpu, .. } = row.work;
                let cpu = match speed.middle < 1.0 {
                    true => {
                        format!(" and {} of the CPU time for a unit of it, segments included", times(cpu))
                    }
                    false => String::new(),
                };
                format!(", at {} times the work a second{cpu}", times(speed))
            });
            format!(
                "{} less {unit} for a unit of work than under the present setting (range {} to {}){speed}",
                percent(gain.share.value),
                percent(gain.share.low),
                percent(gain.share.high)
            )
        });
        let words = match self.advice.verdict {
            Conclusion::Change => return format!("set {differing}: by work, {gain}"),
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
            Conclusion::Slower => format!(
                "leave it: by work, with {differing} less work would be done, and a unit of it would take no less CPU time, its \
                 segments included: {gain}"
            ),
        };
        words + &self.faster().unwrap_or_default()
    }

    /// Of the settings shown, the one with which most work is done, if its range excludes less than now, and the halt cost above
    /// which a unit costs less there. The cost of a unit does not show how long the work takes.
    fn faster(&self) -> Option<String> {
        let (present, others) = self.advice.settings.split_first()?;
        if self.goal.figure() != Figure::Cost {
            return None;
        }
        let faster = others.iter().filter(|row| row.work.speed.low > 1.0);
        // Of those that hardly differ the first one, the default if it is among them.
        let fastest = faster.clone().map(|row| row.work.speed.middle).fold(1.0, f64::max);
        let row = faster.into_iter().find(|row| row.work.speed.middle > 0.98 * fastest)?;
        // Polled time and halts for as much work as the present setting does in a second.
        let for_same =
            |work: &Work| [work.polled_s, work.halts_per_s].map(|of| of.middle / work.speed.middle);
        let ([polled_s, halts], [polled_now_s, halts_now]) = (for_same(&row.work), for_same(&present.work));
        let even_s = (polled_s - polled_now_s) / (halts_now - halts);
        let dearer = (halts_now > halts && even_s > 0.0).then(|| {
            format!("; a unit costs less there if a halt costs more than {}", duration(even_s * 1e9))
        });
        Some(format!(
            ". With {} the load does {} ({}) times the work a second{}",
            row.setting.differing_from(&Values::from(&self.present)),
            ratio(row.work.speed.middle),
            between(row.work.speed, ratio),
            dearer.unwrap_or_default()
        ))
    }

    /// The plan with what is predicted by work.
    pub(super) fn plan(&self, plan: Plan, words: &str) -> Plan {
        let [present, recommended] = self.advice.priced.clone();
        let chosen = self.advice.chosen.and_then(|chosen| self.advice.row(&chosen));
        let speed = chosen.map(|row| Interval::from(row.work.speed));
        let effect = Effect { present, recommended, gain: self.advice.gain, speed, ..Effect::default() };
        Plan { advice: words.to_owned(), effect, ..plan }
    }

    /// The settings that are shown.
    pub(super) fn rows(&self) -> &[causal::RowByWork] {
        &self.advice.settings
    }

    /// As text.
    pub(super) fn words(&self) -> String {
        let tried = format!(
            "{} settings were tried on the first half; figures are of the second.",
            count(self.advice.settings_tried as u128)
        );
        let host = self.host.as_ref().map_or_else(String::new, Seen::words);
        let other = self.other.as_ref().map_or_else(String::new, OtherByWork::words);
        self.basis.words(&(tried + &host), &other, &self.advice.settings)
    }
}
