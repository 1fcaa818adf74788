//! A guest and its host that were recorded together: which of the guest's halts the host polled through.

use crate::model;
use anyhow::{Context, ensure};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_recording::{Reader, Segments};
use dwell_replay::alignment::{Alignment, HostPolls, host_polls};
use dwell_replay::causal::{maximum, with_maximum};
use dwell_replay::check::setting_of;
use dwell_replay::{Rule, Versions};
use dwell_report::{count, duration, percent};
use serde::Serialize;
use std::path::Path;

/// The host's recording.
pub(super) struct Host {
    reader: Reader,
    file: String,
    /// The release whose rule the host follows.
    pub(super) version: Version,
    /// The setting that was in force, else the default.
    setting: Setting,
}

/// What the host has seen of the guest's halts.
#[derive(Serialize)]
pub(super) struct Seen {
    file: String,
    /// Nothing where the guest has hardly halted.
    alignment: Option<Alignment>,
    /// Halts of the guest before segments.
    halts: usize,
    /// Those of which the host has recorded an episode.
    seen: usize,
    /// Those of these through which it polled until the wakeup.
    polled: usize,
    #[serde(skip)]
    polls: bool,
    #[serde(skip)]
    pub(super) by_host: Vec<Option<bool>>,
}

impl Host {
    /// `asked` is the release that was given as an option.
    pub(super) fn open(path: &Path, asked: Option<Version>) -> anyhow::Result<Host> {
        let reader = model::open(path)?;
        let (file, metadata) = (path.display().to_string(), reader.metadata());
        ensure!(
            metadata.layer == Layer::Host,
            "{file} is of the layer {}, not host; `dwell record host` makes one",
            metadata.layer.name()
        );
        let version = asked.unwrap_or_else(|| Versions::of_recording(metadata).of(Layer::Host));
        let setting = setting_of(Layer::Host, version, &metadata.settings);
        let setting = setting.unwrap_or_else(|| Setting::defaults(Layer::Host, version));
        Ok(Host { file, version, setting, reader })
    }

    /// What it has seen of these segments of the guest's recording.
    pub(super) fn seen(&self, guest: &Reader, segments: &Segments) -> anyhow::Result<Seen> {
        let polls = host_polls(guest, segments, &self.reader)?.with_context(|| {
            format!(
                "{}: its halts and the guest's do not show by how much their clocks differ; record both at the same time, with \
                 `dwell record host` and `dwell record guest`, under a setting under which the guest halts",
                self.file
            )
        })?;
        let HostPolls { alignment, by_segment: by_host, polls } = polls;
        let halted = segments.rows.iter().zip(&by_host);
        let halts = halted.filter(|(row, seen)| row.halted == Some(true) || seen.is_some()).count();
        Ok(Seen {
            file: self.file.clone(),
            alignment,
            halts,
            seen: by_host.iter().flatten().count(),
            polled: by_host.iter().flatten().filter(|polled| **polled).count(),
            polls,
            by_host,
        })
    }

    /// The rule in force, where the guest's setting is this.
    pub(super) fn in_force(&self, guest: Setting, seen: &Seen) -> Rule {
        Rule::Stacked { guest, host: self.setting, poll_control: seen.polls }
    }

    /// Which of the two polls: settings with what to call them, the one in force first.
    pub(super) fn who_polls(&self, guest: Setting, seen: &Seen) -> Vec<(&'static str, Rule)> {
        let polling = |setting: Setting| match maximum(&setting) {
            0 => Setting::defaults(setting.layer(), setting.version()),
            _ => setting,
        };
        let (no_guest, no_host) = (with_maximum(guest, 0), with_maximum(self.setting, 0));
        let stacked = |guest, host, poll_control| Rule::Stacked { guest, host, poll_control };
        vec![
            ("in force", self.in_force(guest, seen)),
            ("neither polls", stacked(no_guest, no_host, false)),
            ("guest polls", stacked(polling(guest), no_host, false)),
            ("host polls", stacked(no_guest, polling(self.setting), true)),
            ("both poll", stacked(polling(guest), polling(self.setting), true)),
        ]
    }
}

impl Seen {
    pub(super) fn words(&self) -> String {
        let Seen { file, alignment, halts, seen, polled, .. } = self;
        let Some(alignment) = alignment else {
            return format!(
                " The guest has {} halts before segments, too few to find them in {file}.",
                count(*halts as u128)
            );
        };
        let shift_ns = alignment.shift_ns();
        format!(
            " {file} has {} of the guest's {} halts; the host polled through {} of these. The guest's clock is {} {} the host's, \
             give or take {}.",
            percent(*seen as f64 / (*halts).max(1) as f64),
            count(*halts as u128),
            percent(*polled as f64 / (*seen).max(1) as f64),
            duration(shift_ns.unsigned_abs() as f64),
            if shift_ns < 0 { "ahead of" } else { "behind" },
            duration((alignment.shift_most_ns - alignment.shift_least_ns) as f64 / 2.0),
        )
    }
}
