//! Writes the recording, and reports what was imported.

use super::{Common, Imported, MOST_CONTRADICTED, Qemu};
use crate::failure::{Answer, Outcome};
use crate::output::{self, Format};
use crate::settings;
use anyhow::{Context, anyhow, bail};
use dwell_policy::iothread::{Params, Release};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Owner};
use dwell_recording::{Contents, Metadata, Reader, SettingValue, SettingsChange, Writer};
use dwell_replay::Versions;
use dwell_report::{Cell, Column, Table, count, duration, percent};
use dwell_trace::import::qemu::{DecisionCounts, QemuOptions, Sleeps};
use dwell_trace::import::{self, ImportSummary, Input};
use dwell_trace::write::Overlaps;

impl Qemu {
    pub(super) fn import(self, input: Input<'_>) -> Outcome {
        let metadata = self.common.metadata(Layer::Iothread)?;
        let options = self.options(&metadata)?;
        self.common.import(input, metadata, |input, writer| {
            let summary = import::qemu::import(input, options, writer)?;
            self.refuse_contradictions(&summary)?;
            Ok(summary)
        })
    }

    pub(super) fn refuse_contradictions(&self, summary: &ImportSummary) -> anyhow::Result<()> {
        let Some(decisions) = &summary.decisions else { return Ok(()) };
        let contradicted = decisions.contradicted as f64 > decisions.traced as f64 * MOST_CONTRADICTED;
        if self.allow_contradictions || !contradicted {
            return Ok(());
        }
        let assumed = match self.common.in_force.is_empty() {
            true => "QEMU's defaults, which are assumed: give the values in force with --in-force NAME=VALUE",
            false => "the values of --in-force: were they changed meanwhile?",
        };
        bail!(
            "cannot write {}: {} of {} decisions in {} contradict {assumed}; `dwell import qemu --allow-contradictions` \
             writes it anyway",
            self.files.output.display(),
            count(decisions.contradicted.into()),
            count(decisions.traced.into()),
            self.files.file.display(),
        )
    }

    pub(super) fn options(&self, metadata: &Metadata) -> anyhow::Result<QemuOptions> {
        let rule = match &self.common.qemu {
            None => None,
            Some(text) => {
                let version = settings::qemu(text).map_err(|why| anyhow!("--qemu {text}: {why}"))?;
                let setting = settings::recorded(Layer::Iothread, version, metadata)
                    .unwrap_or_else(|| Setting::defaults(Layer::Iothread, version));
                Some((Release::new(version)?.revision(), Params::from(&setting)))
            }
        };
        let sleeps = match &self.sleeps {
            None => None,
            Some(path) => Some(Sleeps::read(&path.display().to_string(), &Reader::open(path)?)?),
        };
        Ok(QemuOptions { rule, sleeps, context: self.context, skip_unparsable: self.skip_unparsable })
    }
}

impl Common {
    pub(in crate::command) fn metadata<O: Copy + Into<Owner>>(
        &self,
        layer: O,
    ) -> anyhow::Result<Metadata<O>> {
        let mut metadata = Metadata::new(layer);
        metadata.kernel.clone_from(&self.kernel);
        metadata.qemu.clone_from(&self.qemu);
        metadata.provenance.clone_from(&self.provenance);
        if !self.in_force.is_empty() {
            metadata.settings.push(in_force(&self.in_force, layer.into(), &metadata)?);
        }
        Ok(metadata)
    }

    pub(super) fn import<'a>(
        &self,
        input: Input<'a>,
        metadata: Metadata,
        read: impl FnOnce(Input<'a>, &mut Writer<dwell_recording::NewFile>) -> anyhow::Result<ImportSummary>,
    ) -> Outcome {
        self.force.may_write(&self.files.output)?;
        let mut writer = Writer::create(&self.files.output, metadata)?;
        let summary = read(input, &mut writer)?;
        let contents = writer.finish()?;
        self.report(&summary, &contents)
    }

    pub(in crate::command) fn report(&self, summary: &ImportSummary, contents: &Contents) -> Outcome {
        match self.format.format {
            Format::Json => output::json(&Imported {
                file: self.files.file.display().to_string(),
                output: self.files.output.display().to_string(),
                summary,
                idlers: contents.idlers.len(),
                span_ns: contents.span_ns(),
            })?,
            Format::Table => {
                let what = crate::model::episodes_of(contents.episodes, contents.idlers.len());
                output::text(&self.words(&what, summary, contents))?;
            }
            Format::Csv => output::csv(&self.table(summary, contents))?,
        }
        Ok(Answer::Yes)
    }

    pub(super) fn table(&self, summary: &ImportSummary, contents: &Contents) -> Table {
        let numbers = [
            ("lines", summary.lines),
            ("episodes", summary.episodes),
            ("idlers", contents.idlers.len() as u64),
            ("span_ns", contents.span_ns()),
            ("incomplete_episodes", summary.incomplete_episodes),
            ("unparsable", summary.unparsable),
            ("out_of_order", summary.out_of_order),
            ("overlapping_episodes", summary.overlaps.as_ref().map_or(0, |overlaps| overlaps.episodes)),
        ];
        let columns = [Column::text("file", "file"), Column::text("output", "output")];
        let lost = Column::number("lost_events", "lost_events");
        let mut table = Table::new(
            columns.into_iter().chain(numbers.map(|(name, _)| Column::number(name, name))).chain([lost]),
        );
        let texts = [&self.files.file, &self.files.output].map(|path| Cell::Text(path.display().to_string()));
        let lost = summary.lost.events.map_or(Cell::Missing, |events| Cell::Count(events.into()));
        let numbers = numbers.map(|(_, number)| Cell::Count(number.into()));
        table.push(texts.into_iter().chain(numbers).chain([lost]));
        table
    }

    pub(in crate::command) fn words(
        &self,
        what: &str,
        summary: &ImportSummary,
        contents: &Contents,
    ) -> String {
        let mut text = output::wrapped(&format!(
            "{}: {what} over {}, from {} lines of {} ({})",
            self.files.output.display(),
            duration(contents.span_ns() as f64),
            count(summary.lines.into()),
            self.files.file.display(),
            summary.format
        ));
        let mut note = |number: u64, what: &str| {
            if number > 0 {
                text.push_str(&format!("  {} {what}\n", count(number.into())));
            }
        };
        for (event, number) in &summary.used {
            note(*number, &format!("{event} used"));
        }
        for (event, number) in &summary.ignored {
            note(*number, &format!("{event} ignored"));
        }
        note(summary.lost.events.unwrap_or(0), "events lost by the recorder");
        note(summary.incomplete_episodes, "incomplete episodes left out (start or end not in the text)");
        note(summary.unparsable, "lines with events that could not be parsed");
        note(summary.out_of_order, "events too far out of order, not used");
        summary.notes.iter().for_each(|note| text += &output::hanging("  note: ", "    ", note));
        if let Some(overlaps) = &summary.overlaps {
            text.push_str(&overlapping(overlaps));
        }
        if let Some(decisions) = &summary.decisions {
            text.push_str(&judged(decisions));
        }
        text
    }
}

/// A warning that episodes of one idler overlap.
fn overlapping(overlaps: &Overlaps) -> String {
    let place = overlaps.line.map_or_else(
        || format!("at {} ns", overlaps.start_ns),
        |line| format!("in line {}", count(line.into())),
    );
    format!(
        "  {} episodes start before the previous one of the same idler has ended, the first of {} {place}; times \
         and rates cannot be trusted: is this one trace, and do the idlers have different names?\n",
        count(overlaps.episodes.into()),
        overlaps.idler.escape_debug(),
    )
}

/// Compares the decisions in a trace with the rule.
fn judged(decisions: &DecisionCounts) -> String {
    let share =
        if decisions.traced > 0 { decisions.determined as f64 / decisions.traced as f64 } else { 0.0 };
    let line = |text: &str| output::hanging("  ", "    ", text);
    let mut text = line(&format!(
        "{} decisions checked against the rule: {} contradict it; for {} ({}) the known times allow only this decision",
        count(decisions.traced.into()),
        count(decisions.contradicted.into()),
        count(decisions.determined.into()),
        percent(share),
    ));
    if let Some(number) = decisions.first_contradicted_line {
        text += &line(&format!(
            "the first contradiction is in line {number}; were other parameters in force (--in-force), or changed meanwhile?"
        ));
    }
    text
}

pub(super) fn in_force<O>(
    asked: &[String],
    owner: Owner,
    metadata: &Metadata<O>,
) -> anyhow::Result<SettingsChange> {
    let version = Versions::of_recording(metadata).of(owner);
    let base = Setting::defaults(owner, version);
    let groups = settings::groups(asked, &[base]).context("--in-force")?;
    let [group] = groups.as_slice() else {
        return Err(anyhow!("--in-force: a parameter is given twice"));
    };
    let named: Vec<&str> =
        asked.iter().flat_map(|a| a.split(',')).filter_map(|a| Some(a.split_once('=')?.0)).collect();
    let was_named = |name: &str| named.iter().any(|n| n.trim().replace('-', "_") == name.replace('-', "_"));
    let values = group[0].iter().filter(|(param, _)| was_named(param.name)).map(|(param, value)| {
        let value = u64::try_from(value).map_or(SettingValue::Negative(value), SettingValue::Number);
        (param.name.to_owned(), value)
    });
    Ok(SettingsChange { at_ns: None, owner, values: values.collect() })
}
