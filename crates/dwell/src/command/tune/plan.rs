//! `dwell tune --plan`: the advice as a plan that `dwell apply` carries out.

use super::{RowJson, Tuned, recommended};
use crate::model::Model;
use anyhow::{Context, bail};
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::plan::{self, Conditions, Effect, FORMAT, Gain, Plan, Predicted, Quantile, RecordingFacts};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::summary::{self, Summary};
use dwell_recording::{Metadata, Reader};
use dwell_replay::tune::{Advice, Role};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

/// Options of the plan.
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    /// Write what is advised into this file: the exact writes, what they are expected to bring and on what that rests
    ///
    /// `dwell apply` carries it out and `dwell revert` takes it back. Where the advice is to leave things as they are no
    /// file is written.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// For the plan of an I/O thread: UNIX socket of QEMU's monitor
    #[arg(long, value_name = "SOCKET", requires_all = ["plan", "iothread"])]
    qmp: Option<PathBuf>,
    /// For the plan of an I/O thread: its id, as `dwell iothread list` prints it
    #[arg(long, value_name = "ID", requires = "qmp")]
    iothread: Option<String>,
    /// For the plan of an I/O thread: the name of its domain, if libvirt runs it, so that values can be kept
    #[arg(long, value_name = "NAME", requires = "qmp")]
    domain: Option<String>,
}

/// What the tuning has told.
pub(super) struct Told<'a> {
    pub(super) tuned: &'a Tuned,
    pub(super) model: &'a Model,
    pub(super) metadata: &'a Metadata,
    pub(super) present: Setting,
    /// Whether `present` comes from the recording.
    pub(super) told: bool,
    pub(super) target: Option<IothreadTarget>,
}

impl PlanArgs {
    /// The I/O thread that is meant, which a plan for one has to say.
    pub(super) fn target(&self, layer: Layer) -> anyhow::Result<Option<IothreadTarget>> {
        let (Some(socket), Some(id)) = (&self.qmp, &self.iothread) else {
            if self.plan.is_some() && layer == Layer::Iothread {
                bail!("a plan for an I/O thread has to say which: --qmp SOCKET --iothread ID");
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
        let summary = Summary::of(reader).with_context(|| file.to_owned())?;
        let quantile = |q: &summary::Quantile| Quantile { quantile: q.quantile, idle_ns: q.idle_ns };
        Ok(Some(RecordingFacts {
            file: file.to_owned(),
            bytes: std::fs::metadata(file).ok().map(|metadata| metadata.len()),
            layer: summary.metadata.layer,
            span_ns: summary.span_ns,
            judged_span_ns: 0,
            episodes: summary.all.episodes,
            idlers: summary.idlers.iter().map(|idler| idler.name.clone()).collect(),
            more_idlers: 0,
            quantiles: summary.all.quantiles.iter().map(quantile).collect(),
        }))
    }

    /// Writes the plan, if there is anything to plan.
    pub(super) fn write(
        &self,
        told: &Told<'_>,
        advice: &Advice,
        facts: RecordingFacts,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.plan else { return Ok(()) };
        let Some(wanted) = recommended(advice) else {
            eprintln!(
                "the advice is to leave it, so there is nothing to plan: {} is not written",
                path.display()
            );
            return Ok(());
        };
        let text = plan_of(told, &wanted, facts).to_toml()?;
        std::fs::write(path, text).with_context(|| format!("cannot write the plan {}", path.display()))?;
        eprintln!("plan written; carry it out with: dwell apply {}", path.display());
        Ok(())
    }
}

fn plan_of(told: &Told<'_>, wanted: &Setting, facts: RecordingFacts) -> Plan {
    let Told { tuned, model, metadata, present, .. } = told;
    let predicted = |role: Role| {
        let row = tuned.rows.iter().find(|row| row.role == role.name());
        row.map_or_else(Predicted::default, |row| predicted(row, tuned.judged_span_ns))
    };
    let gain = tuned.gain.as_ref().map_or_else(Gain::default, |gain| Gain {
        of: gain.of.to_owned(),
        share: gain.share,
        low_95: gain.low_95,
        high_95: gain.high_95,
    });
    Plan {
        format: FORMAT,
        tool: concat!("dwell ", env!("CARGO_PKG_VERSION")).to_owned(),
        made_at_unix_s: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        layer: present.layer(),
        version: model.version.to_string(),
        advice: tuned.advice.clone(),
        present_is_recorded: told.told,
        present: values(present),
        recommended: values(wanted),
        effect: Effect {
            present: predicted(Role::Present),
            recommended: predicted(Role::Recommended),
            optimum: predicted(Role::Optimum),
            gain,
        },
        conditions: Conditions {
            goal: tuned.goal.clone(),
            halt_cost_ns: tuned.halt_cost_ns,
            wake_latency_ns: tuned.wake_latency_ns,
            kernel: metadata.kernel.clone(),
            qemu: metadata.qemu.clone(),
            cpu_model: metadata.cpu_model.clone(),
        },
        recording: RecordingFacts { judged_span_ns: tuned.judged_span_ns, ..facts },
        writes: plan::writes(present, wanted, told.target.as_ref()),
        iothread: told.target.clone(),
    }
}

fn values(setting: &Setting) -> BTreeMap<String, i64> {
    setting.iter().map(|(param, value)| (param.name.to_owned(), value)).collect()
}

fn predicted(row: &RowJson, span_ns: u64) -> Predicted {
    let seconds = span_ns.max(1) as f64 / 1e9;
    Predicted {
        cpu_burnt_ns_per_s: row.cpu_burnt_ns_per_s,
        halts_per_s: row.halts_per_s,
        polls: row.polls,
        polls_succeeded: row.polls_succeeded,
        mean_added_latency_ns: row.mean_added_latency_ns,
        p99_added_latency_ns: row.p99_added_latency_ns,
        cost_ns_per_s: row.cost_ns as f64 / seconds,
    }
}
