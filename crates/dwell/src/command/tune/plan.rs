//! `dwell tune --plan`: what is recommended, as a plan for `dwell apply`.

use crate::model::Model;
use anyhow::{Context, bail};
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::plan::{Plan, RecordingFacts};
use dwell_policy::Layer;
use dwell_recording::{Metadata, Reader, newfile};
use dwell_replay::advice::Advice;
use std::path::PathBuf;

/// Options of the plan.
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    /// Write what is recommended into this file, as a plan for `dwell apply`
    ///
    /// A plan has the exact writes, what they are expected to bring and on what that rests; `dwell revert` undoes it.
    /// Where the advice is to leave the present setting as it is, no file is written.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// For the plan of an I/O thread: UNIX socket of QEMU's monitor
    #[arg(long, value_name = "SOCKET", requires_all = ["plan", "iothread"])]
    qmp: Option<PathBuf>,
    /// For the plan of an I/O thread: its id, as `dwell iothread list` prints it
    #[arg(long, value_name = "ID", requires = "qmp")]
    iothread: Option<String>,
    /// For the plan of an I/O thread: name of its domain, if libvirt runs it
    ///
    /// Needed to keep values over a restart.
    #[arg(long, value_name = "NAME", requires = "qmp")]
    domain: Option<String>,
}

impl PlanArgs {
    /// The I/O thread that is meant, which a plan for one has to say.
    pub(super) fn target(&self, layer: Layer) -> anyhow::Result<Option<IothreadTarget>> {
        let (Some(socket), Some(id)) = (&self.qmp, &self.iothread) else {
            if self.plan.is_some() && layer == Layer::Iothread {
                bail!("cannot plan for an I/O thread without its name: give --qmp SOCKET --iothread ID");
            }
            return Ok(None);
        };
        if layer != Layer::Iothread {
            bail!(
                "--qmp and --iothread are for plans of the iothread layer; this is the {} layer",
                layer.name()
            );
        }
        let socket = std::path::absolute(socket).with_context(|| format!("--qmp {}", socket.display()))?;
        let socket = socket.to_str().context("--qmp: the path of the socket is no UTF-8")?.to_owned();
        Ok(Some(IothreadTarget { socket, id: id.clone(), domain: self.domain.clone() }))
    }

    /// What a plan says of the recording; `None` if none is asked for.
    pub(super) fn facts(&self, file: &str, reader: &Reader) -> anyhow::Result<Option<RecordingFacts>> {
        if self.plan.is_none() {
            return Ok(None);
        }
        Ok(Some(RecordingFacts::of(file, reader).with_context(|| file.to_owned())?))
    }

    /// Writes the plan, if there is anything to plan.
    pub(super) fn write(
        &self,
        advice: &Advice,
        model: &Model,
        metadata: &Metadata,
        facts: RecordingFacts,
        target: Option<IothreadTarget>,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.plan else { return Ok(()) };
        let (_, recorded) = model.present(metadata);
        let Some(plan) = Plan::of(advice, metadata, recorded, facts, target) else {
            eprintln!("the advice is to leave it: there is no plan to write to {}", path.display());
            return Ok(());
        };
        newfile::write(path, plan.to_toml()?.as_bytes()).context("cannot write the plan")?;
        eprintln!("plan written; apply it with: dwell apply {}", path.display());
        Ok(())
    }
}
