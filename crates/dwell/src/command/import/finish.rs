//! Writes the recording, and reports what was imported.

use super::{Common, Imported};
use crate::failure::Outcome;
use crate::output::{self};
use crate::settings;
use anyhow::anyhow;
use dwell_policy::Owner;
use dwell_policy::param::Setting;
use dwell_recording::{Contents, Metadata, SettingValue, SettingsChange, TimeRecorded, Writer};
use dwell_replay::Versions;
use dwell_report::{Column, Table, count, duration, percent};
use dwell_trace::import::qemu::DecisionCounts;
use dwell_trace::import::{ImportSummary, Input};
use dwell_trace::write::Overlaps;

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
        self.force.may_write(&self.output, [&self.file])?;
        let mut writer = Writer::create(&self.output, metadata)?;
        let summary = read(input, &mut writer)?;
        let recorded = writer.metadata_mut().recorded;
        let contents = writer.finish()?;
        let what = crate::model::episodes_of(contents.episodes, contents.idlers.len());
        self.report(&what, &summary, &contents, recorded)
    }

    /// `what`: the numbers of what was imported, in words.
    pub(in crate::command) fn report(
        &self,
        what: &str,
        summary: &ImportSummary,
        contents: &Contents,
        recorded: Option<TimeRecorded>,
    ) -> Outcome {
        // By which later commands have rates.
        let of_recording = |time: TimeRecorded| time.with(contents.first_start_ns, contents.last_end_ns).ns();
        let span_ns = recorded.map_or_else(|| contents.span_ns(), of_recording);
        let imported = Imported {
            file: self.file.display().to_string(),
            output: self.output.display().to_string(),
            summary,
            idlers: contents.idlers.len(),
            span_ns,
        };
        let table = || self.table(&imported, contents);
        output::result(self.format.format, &imported, table, || self.words(what, summary, span_ns))
    }

    fn table(&self, imported: &Imported<'_>, contents: &Contents) -> Table {
        let summary = imported.summary;
        let numbers = [
            ("lines", summary.lines),
            ("episodes", summary.episodes),
            ("idlers", contents.idlers.len() as u64),
            ("span_ns", imported.span_ns),
            ("incomplete_episodes", summary.incomplete_episodes),
            ("unparsable", summary.unparsable),
            ("out_of_order", summary.out_of_order),
            ("overlapping_episodes", summary.overlaps.as_ref().map_or(0, |overlaps| overlaps.episodes)),
        ];
        let table = Table::of([self])
            .column(Column::text("file", "file"), |common| common.file.display().to_string())
            .column(Column::text("output", "output"), |common| common.output.display().to_string());
        numbers
            .into_iter()
            .fold(table, |table, (name, number)| table.column(Column::number(name, name), |_| number))
            .column(Column::number("lost_events", "lost_events"), |_| summary.lost.events)
            .table()
    }

    fn words(&self, what: &str, summary: &ImportSummary, span_ns: u64) -> String {
        let has_times = !summary.notes.iter().any(|note| note == dwell_recording::LEAST_LENGTHS_NOTE);
        let over = if has_times { format!(" over {}", duration(span_ns as f64)) } else { String::new() };
        let mut text = output::wrapped(&format!(
            "{}: {what}{over}, from {} lines of {} ({})",
            self.output.display(),
            count(summary.lines.into()),
            self.file.display(),
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
        // Late events are missing too, but the recorder had them.
        let lost = summary.lost.events.unwrap_or(0).saturating_sub(summary.out_of_order);
        note(lost, "events lost by the recorder");
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
        dwell_report::harmless::line(&overlaps.idler),
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
    let groups = settings::groups("--in-force", asked, &[base])?;
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
