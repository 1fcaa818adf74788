//! How, where and with which settings a recording was made.

use super::remarks;
use crate::model;
use crate::output;
use dwell_recording::summary::Summary;
use dwell_recording::{CauseShares, Metadata, SettingValue};
use dwell_report::{count, duration, percent};

pub(super) fn head(file: &str, summary: &Summary) -> String {
    let metadata = &summary.metadata;
    let over = match metadata.has_least_lengths() {
        true => String::new(),
        false => format!(" over {}", duration(summary.span_ns as f64)),
    };
    let mut text = output::wrapped(&format!(
        "{file}: {}{over}, {} layer",
        model::episodes_of(summary.all.episodes, summary.idlers.len()),
        metadata.layer.name()
    ));
    text += &facts(metadata, Some(metadata.idle_includes.words()));
    summary.causes.iter().for_each(|causes| text += &label("causes:", &caused(causes)));
    remarks(summary).iter().for_each(|(name, what)| text += &label(name, what));
    text
}

pub(super) fn label(name: &str, value: &str) -> String {
    output::hanging(&format!("{name:<LABEL$}"), &" ".repeat(LABEL), value)
}

/// What woke the tasks. An interrupt or a timer may come at its own time, or so long after the task asked for it.
fn caused(causes: &CauseShares) -> String {
    let share = |number: u64| percent(number as f64 / causes.segments.max(1) as f64);
    format!(
        "of {} segments of tasks, woken by recorded tasks {} (coupled), by interrupts {} and timers {} (absolute or relative: \
         not distinguished), preempted {}, unknown {}",
        count(causes.segments.into()),
        share(causes.coupled),
        share(causes.interrupts),
        share(causes.timers),
        share(causes.preempted),
        share(causes.unknown)
    )
}

/// What a recording says of itself.
pub(super) fn facts<O>(metadata: &Metadata<O>, idle_times: Option<&str>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text += &label(name, value);
    idle_times.into_iter().for_each(|what| line("idle times:", what));
    let steps = metadata.resolution_ns.filter(|&ns| ns > 1);
    let steps = steps.map(|ns| format!("; times in steps of {}", duration(ns as f64)));
    line("clock:", &(metadata.clock.words().to_owned() + &steps.unwrap_or_default()));
    line("source:", &source(metadata));
    let known = [
        ("kernel:", &metadata.kernel),
        ("QEMU:", &metadata.qemu),
        ("CPU:", &metadata.cpu_model),
        ("command:", &metadata.source.command),
        ("provenance:", &metadata.provenance),
    ];
    for (label, value) in known {
        if let Some(value) = value {
            line(label, &dwell_report::harmless::line(value));
        }
    }
    settings(metadata).iter().for_each(|setting| line("settings:", setting));
    if let Some(by) = metadata.decided_in_place_of_haltpoll() {
        line("", &format!("haltpoll decided nothing: {by}"));
    }
    line("losses:", &losses(metadata));
    text
}

/// Width of the labels.
const LABEL: usize = 12;

fn source<O>(metadata: &Metadata<O>) -> String {
    let source = &metadata.source;
    let tool = if source.tool.is_empty() { "not known" } else { &source.tool };
    let events =
        if source.events.is_empty() { String::new() } else { format!(" ({})", source.events.join(", ")) };
    dwell_report::harmless::line(&format!("{tool}{events}, written by {}", metadata.tool_version))
}

pub(super) fn settings<O>(metadata: &Metadata<O>) -> Vec<String> {
    if metadata.settings.is_empty() {
        return vec!["not known".to_owned()];
    }
    let value = |value: &SettingValue| match value {
        SettingValue::Flag(flag) => flag.to_string(),
        SettingValue::Number(number) => number.to_string(),
        SettingValue::Negative(number) => number.to_string(),
        SettingValue::Text(text) => dwell_report::harmless::line(text),
    };
    let line = |change: &dwell_recording::SettingsChange| {
        let values: Vec<String> = change
            .values
            .iter()
            .map(|(name, v)| format!("{}={}", dwell_report::harmless::line(name), value(v)))
            .collect();
        let when = change.at_ns.map_or("from the start".to_owned(), |at| format!("from {at} ns on"));
        format!("{} {when}: {}", change.owner.name(), values.join(" "))
    };
    metadata.settings.iter().map(line).collect()
}

pub(super) fn losses<O>(metadata: &Metadata<O>) -> String {
    let lost = &metadata.lost;
    let events = match lost.events {
        None => "events: not counted".to_owned(),
        Some(events) if lost.at_least => format!("at least {} events", count(events.into())),
        Some(0) => "no events".to_owned(),
        Some(events) => format!("{} events", count(events.into())),
    };
    let by_cpu: Vec<String> =
        lost.by_cpu.iter().map(|loss| format!("CPU {}: {}", loss.cpu, loss.events)).collect();
    let by_cpu = if by_cpu.is_empty() { String::new() } else { format!(" ({})", by_cpu.join(", ")) };
    let incomplete = match lost.incomplete_episodes {
        0 => String::new(),
        episodes => format!("; {} incomplete episodes left out", count(episodes.into())),
    };
    format!("{events}{by_cpu}{incomplete}")
}
