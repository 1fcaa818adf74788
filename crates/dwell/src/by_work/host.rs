//! A guest and its host that were recorded together: which of the guest's halts the host polled through.

use crate::model::{self, Model};
use anyhow::{Context, ensure};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Metadata, Reader, Segments};
use dwell_replay::alignment::{Alignment, HaltsByHost, HostPolls, host_polls};
use dwell_replay::causal::{Calibrated, External, Idled, Program};
use dwell_replay::check::{CONTRADICTS, setting_of};
use dwell_replay::{Rule, Versions};
use dwell_report::{count, duration, percent};
use serde::Serialize;
use std::path::Path;

/// What the guest's recording lacks where nothing is predicted from it.
pub(crate) const TOO_LITTLE: &str = "the guest's recording has too little work in it to replay";

/// What it means that the host polls otherwise than by its rule.
const DIFFERS: &str = ": PREDICTIONS FROM THESE RECORDINGS ARE WRONG: a setting changed during the recording, or other \
                       tasks were runnable on the host's CPUs, where KVM does not poll";

/// The host's recording.
pub(crate) struct Host {
    reader: Reader,
    file: String,
    /// The release whose rule the host follows.
    pub(crate) version: Version,
    /// The setting that was in force, else the default.
    setting: Setting,
}

/// What the host has seen of the guest's halts.
#[derive(Serialize)]
pub(crate) struct Seen {
    file: String,
    /// Nothing where the guest has hardly halted.
    alignment: Option<Alignment>,
    /// Halts of the guest before segments.
    halts: usize,
    /// Those of which the host has recorded an episode.
    seen: usize,
    /// Those of these through which it polled until the wakeup.
    polled: usize,
    /// Those through which it would have by the rules in force.
    polled_by_rule: usize,
    #[serde(skip)]
    pub(crate) by_host: Vec<Option<bool>>,
    /// How much longer a halt takes the guest than the host, at least: the vCPU leaves the guest and comes back to it.
    exit_and_entry_ns: Option<u64>,
    #[serde(skip)]
    costs: HaltsByHost,
}

impl Host {
    /// `asked` is the release that was given as an option.
    pub(crate) fn open(path: &Path, asked: Option<Version>) -> anyhow::Result<Host> {
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

    /// A guest that was recorded at the same time.
    pub(crate) fn above(&self, guest: &Reader, model: &Model) -> anyhow::Result<Above> {
        let no_causes = "--host needs what woke the guest's tasks: a recording by `dwell record guest`, not --without-causes";
        let segments = super::segments(guest, Layer::Guest)?.context(no_causes)?;
        let polls = host_polls(guest, &segments, &self.reader)?.with_context(|| {
            format!(
                "{}: its halts and the guest's do not show by how much their clocks differ; record both at the same time, with \
                 `dwell record host` and `dwell record guest`, under a setting under which the guest halts",
                self.file
            )
        })?;
        let HostPolls { alignment, by_segment: by_host, polls, halts: costs } = polls;
        let halted = segments.rows.iter().zip(&by_host);
        let halts = halted.filter(|(row, seen)| row.halted == Some(true) || seen.is_some()).count();
        let (present, _) = model.present(guest.metadata());
        let present = Rule::Stacked { guest: present[0], host: self.setting, poll_control: polls };
        let (by_rule, _) = Program::new(&segments, External::Absolute).as_recorded(&present)?;
        let by_rule = by_rule.iter().zip(&by_host).filter(|(_, seen)| seen.is_some());
        let seen = Seen {
            file: self.file.clone(),
            alignment,
            halts,
            seen: by_host.iter().flatten().count(),
            polled: by_host.iter().flatten().filter(|polled| **polled).count(),
            polled_by_rule: by_rule.filter(|(idled, _)| **idled == Some(Idled::HostPolled)).count(),
            by_host,
            exit_and_entry_ns: costs.exit_and_entry.map(Nanos::get),
            costs,
        };
        Ok(Above { segments, seen, present })
    }

    /// The metadata of the host's recording.
    pub(crate) fn metadata(&self) -> &Metadata {
        self.reader.metadata()
    }
}

/// A guest above the host that it was recorded with.
pub(crate) struct Above {
    pub(crate) segments: Segments,
    pub(crate) seen: Seen,
    /// The settings that were in force.
    pub(crate) present: Rule,
}

impl Above {
    /// What is known of the guest's halts from elsewhere.
    pub(crate) fn calibrated(&self, model: &Model) -> Calibrated {
        Calibrated { by_host: self.seen.costs, ..model.calibrated() }
    }
}

impl Seen {
    pub(crate) fn words(&self) -> String {
        let Seen { file, alignment, halts, seen, polled, polled_by_rule, exit_and_entry_ns, .. } = self;
        let Some(alignment) = alignment else {
            return format!(
                " The guest has {} halts before segments, too few to find them in {file}.",
                count(*halts as u128)
            );
        };
        let shift_ns = alignment.shift_ns();
        let of_seen = |number: usize| number as f64 / (*seen).max(1) as f64;
        let differs = (of_seen(*polled) - of_seen(*polled_by_rule)).abs() > CONTRADICTS;
        format!(
            " {file} has {} of the guest's {} halts; the host polled through {} of these, and would have polled through {} by the rules in \
             force{}.{} \
             The guest's clock is {} {} the host's, give or take {}.",
            percent(*seen as f64 / (*halts).max(1) as f64),
            count(*halts as u128),
            percent(of_seen(*polled)),
            percent(of_seen(*polled_by_rule)),
            if differs { DIFFERS } else { "" },
            exit_and_entry_ns.map_or_else(String::new, |ns| {
                format!(
                    " A vCPU takes {} to leave the guest at a halt and to come back.",
                    duration(ns as f64)
                )
            }),
            duration(shift_ns.unsigned_abs() as f64),
            if shift_ns < 0 { "ahead of" } else { "behind" },
            duration((alignment.shift_most_ns - alignment.shift_least_ns) as f64 / 2.0),
        )
    }
}
