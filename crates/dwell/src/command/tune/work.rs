//! What a setting does to the work, of recordings that have what woke the tasks.

use crate::model::Model;
use crate::output;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::{CauseShares, Reader};
use dwell_replay::causal::{Estimates, Predictor, Range, Work};
use dwell_replay::{Rule, Values};
use dwell_report::{Cell, Column, Table, count, duration, percent, ratio};
use serde::Serialize;

/// The maxima that are compared \[us\].
const MAXIMA_US: [i64; 9] = [0, 10, 20, 50, 100, 200, 500, 1_000, 2_000];
/// The parameter with the maximum.
const MAXIMUM: &str = "guest_halt_poll_ns";

/// Settings by the work done under them.
#[derive(Serialize)]
pub(crate) struct ByWork {
    causes: CauseShares,
    /// The tasks whose segments are the units of work.
    unit_of_work: Vec<String>,
    recorded_work_per_s: f64,
    /// By how much a replay of the present setting is faster than the recording, as a share.
    own_error: Range,
    constants: Estimates,
    /// The present setting first.
    settings: Vec<SettingByWork>,
    #[serde(skip)]
    recommended: Option<usize>,
}

#[derive(Serialize)]
struct SettingByWork {
    role: &'static str,
    setting: Values,
    #[serde(flatten)]
    work: Work,
}

impl ByWork {
    /// Of a recording of a guest that has causes; `None` of others.
    pub(super) fn of(
        reader: &Reader,
        model: &Model,
        present: Setting,
        recommended: Option<Setting>,
    ) -> anyhow::Result<Option<ByWork>> {
        let Some(segments) = reader.segments()?.filter(|_| present.layer() == Layer::Guest) else {
            return Ok(None);
        };
        let rule = Rule::Layer(present);
        let after_halt = model.known_latency();
        let Some(predictor) = Predictor::new(&segments, &rule, model.halt_cost, after_halt)? else {
            return Ok(None);
        };
        let mut asked = vec![("present", present)];
        asked.extend(recommended.map(|setting| ("recommended", setting)));
        for us in MAXIMA_US {
            let mut setting = present;
            setting.set(MAXIMUM, us * 1_000)?;
            if asked.iter().all(|(_, other)| *other != setting) {
                asked.push(("", setting));
            }
        }
        let mut settings = vec![];
        for (role, setting) in asked {
            let work = predictor.predict(&Rule::Layer(setting))?;
            settings.push(SettingByWork { role, setting: Values::from(&setting), work });
        }
        let name = |task: &u32| segments.tasks.get(*task as usize).cloned().unwrap_or_default();
        Ok(Some(ByWork {
            causes: segments.shares(),
            unit_of_work: predictor.leading().iter().map(name).collect(),
            recorded_work_per_s: predictor.recorded_per_s,
            own_error: predictor.own_error(),
            constants: predictor.estimates,
            settings,
            recommended: recommended.map(|_| 1),
        }))
    }

    /// What of the advice does not hold for the work.
    pub(super) fn contradiction(&self) -> Option<String> {
        let (present, recommended) = (self.settings.first()?, self.settings.get(self.recommended?)?);
        let (speed, cost) = (recommended.work.speed, recommended.work.cost_ns);
        let costs_more = cost.middle > present.work.cost_ns.middle;
        (costs_more || speed.middle < SLOWER).then(|| {
            format!(
                "This does not hold for the work: with causes replayed, it does {} ({}) times the work a second, at {} ({}) \
                 a unit of work instead of {}",
                ratio(speed.middle),
                between(speed, ratio),
                duration(cost.middle),
                between(cost, duration),
                duration(present.work.cost_ns.middle)
            )
        })
    }

    /// As text.
    pub(super) fn words(&self) -> String {
        let names: Vec<String> =
            self.unit_of_work.iter().map(|name| name.escape_debug().to_string()).collect();
        let opening = format!(
            "By work: causes were replayed, which let the idle times change with the setting; the table above keeps \
             those of the recording. {} of {} segments were woken by recorded tasks. Unit of work: a segment of {}; {} a second \
             were recorded, and the present setting replayed does {} of that. In brackets: both ends of the constants, and \
             interrupts and timers at their own times or so long after a request.",
            percent(self.causes.coupled as f64 / self.causes.segments.max(1) as f64),
            count(self.causes.segments.into()),
            names.join(", "),
            format_args!("{:.0}", self.recorded_work_per_s),
            percent(1.0 + self.own_error.middle),
        );
        format!(
            "\n{}\n{}\n{}",
            output::wrapped(&opening),
            output::fitted(&self.table()),
            output::wrapped(&self.sources())
        )
    }

    fn table(&self) -> Table {
        let present = self.settings.first().map(|row| row.setting.clone()).unwrap_or_default();
        let setting = |row: &SettingByWork| {
            let differing = row.setting.differing_from(&present);
            if differing.is_empty() { row.setting.to_string() } else { differing.to_string() }
        };
        Table::of(&self.settings)
            .column(Column::text("policy", "role"), |row| row.role)
            .column(Column::number("speed", "speed"), |row| Cell::Ratio(row.work.speed.middle))
            .column(Column::text("", "speed_range"), |row| format!("({})", between(row.work.speed, ratio)))
            .column(Column::number("cost/work", "cost_per_work_ns"), |row| duration(row.work.cost_ns.middle))
            .column(Column::text("", "cost_range"), |row| {
                format!("({})", between(row.work.cost_ns, duration))
            })
            .column(Column::number("cycle", "cycle_ns"), |row| duration(row.work.cycle_ns.middle))
            .column(Column::number("CPU/s", "cpu_s"), |row| Cell::Ratio(row.work.cpu_s.middle))
            .column(Column::text("setting", "setting").below(), setting)
            .table()
    }

    fn sources(&self) -> String {
        let Estimates { after_poll, after_halt, ipi, longer_segment, hidden } = self.constants;
        let named = [
            ("wakeup after a poll", after_poll),
            ("after a halt", after_halt),
            ("interrupt, for the waker", ipi),
            ("longer segment after a halt", longer_segment),
            ("part of a halt that hides an interrupt", hidden),
        ];
        let words = named.map(|(name, of)| {
            let source = match of.seen {
                0 => "assumed".to_owned(),
                seen => format!("{} in the recording", count(seen.into())),
            };
            let [ns, low, high] = [of.ns, of.low_ns, of.high_ns].map(|ns| duration(ns as f64));
            format!("{name} {ns} ({low} to {high}, {source})")
        });
        format!("Constants: {}. The scheduler's choice of CPUs is taken to stay.", words.join("; "))
    }
}

/// Less work than this share of the present setting's is less.
const SLOWER: f64 = 0.98;

fn between(range: Range, words: impl Fn(f64) -> String) -> String {
    format!("{} to {}", words(range.low), words(range.high))
}
