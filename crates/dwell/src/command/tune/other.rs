//! A second recording of the load, under another setting.

use crate::model::{self, Model};
use anyhow::Context;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::Segments;
use dwell_replay::Values;
use dwell_replay::causal;
use dwell_replay::check::in_force;
use dwell_report::ratio;
use serde::Serialize;
use std::path::Path;

/// Another recording of the load, and what was predicted of it.
#[derive(Serialize)]
pub(super) struct OtherByWork {
    pub(super) file: String,
    pub(super) setting: Values,
    #[serde(flatten)]
    pub(super) work: Option<causal::OtherWork>,
}

impl OtherByWork {
    pub(super) fn words(&self) -> String {
        let file = dwell_report::harmless::line(&self.file);
        let setting = &self.setting;
        match self.work {
            Some(of) => format!(
                " {file}, recorded under {setting}, has {} times the work a second; {} was predicted of it.",
                ratio(of.recorded_speed),
                ratio(of.predicted_speed)
            ),
            None => format!(
                " In {file}, recorded under {setting}, other tasks do the work, or too little: only constants are from it."
            ),
        }
    }
}

/// What ran in another recording, and the setting that was in force.
pub(super) fn read(path: &Path, layer: Layer, model: &Model) -> anyhow::Result<(Segments, Setting)> {
    let file = path.display();
    let reader = model::open(path)?;
    let setting = in_force(layer, model.version, reader.metadata())
        .with_context(|| format!("cannot use {file}: it does not have the setting in force"))?;
    let segments = reader.segments()?.with_context(|| {
        format!(
            "cannot use {file}: it does not have what woke the tasks; record again without --without-causes"
        )
    })?;
    Ok((segments, setting))
}
