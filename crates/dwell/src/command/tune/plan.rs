//! `dwell tune --plan`: the recommended setting as a plan for `dwell apply`.

use super::Tuned;
use crate::model::Model;
use crate::output;
use crate::overwrite::may_write;
use anyhow::{Context, bail};
use dwell_knobs::change::{self, Permission};
use dwell_knobs::iothread;
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::object_id::ObjectId;
use dwell_knobs::plan::{Plan, RecordedOn, RecordingFacts};
use dwell_machine::{Sysroot, io_thread_comm};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::{Metadata, Reader, newfile};
use dwell_trace::import::qemu::ids;
use std::path::{Path, PathBuf};

/// The release of a QEMU and what its I/O thread has now; and what was recorded that is not this thread.
pub(super) fn in_force<'n>(
    target: &IothreadTarget,
    recorded: impl Iterator<Item = &'n str>,
) -> anyhow::Result<(Setting, Option<String>)> {
    let machine = Sysroot::of_this_machine();
    let mut monitor = iothread::connect(&machine, &target.socket)?;
    let thread = iothread::find(&mut monitor, &target.id)?;
    let qemu = iothread::process(&machine, &monitor, &thread).map(|process| process.pid);
    let is_known = qemu.is_some() && thread.thread_id.is_some();
    let own = io_thread_comm(&thread.id);
    let is_other = |name: &&str| {
        ids(name).is_some_and(|(tid, pid, comm)| {
            let [pid, tid] = [pid, tid].map(|id| u32::try_from(id).ok());
            comm.starts_with("IO ") && comm != own || is_known && pid == qemu && tid != thread.thread_id
        })
    };
    let others: Vec<&str> = recorded.filter(is_other).collect();
    let others = others.split_first().map(|(first, more)| {
        let which = match more.len() {
            0 => ", which is not".to_owned(),
            more => format!(" and {more} more, which are not"),
        };
        let alone = thread.thread_id.map_or_else(|| "TID".to_owned(), |tid| tid.to_string());
        let id = &thread.id;
        format!(
            "the recording has {first}{which} I/O thread {id}; record that alone: dwell record thread --pid {alone}"
        )
    });
    Ok((iothread::setting(&thread, &monitor.greeting().version)?, others))
}

/// Options of the plan.
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    /// Write the recommended setting to this file, as a plan for `dwell apply`
    ///
    /// A plan has the exact writes, their predicted effect and the basis of the prediction. `dwell revert` undoes it.
    /// If the advice is to leave the present setting as it is, no file is written.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// UNIX socket of QEMU's monitor (QMP) of the recorded I/O thread
    ///
    /// QEMU is asked for its release and for the setting in force. Needed for the plan of an I/O thread.
    #[arg(long, value_name = "SOCKET", requires_all = ["iothread", "file"])]
    qmp: Option<PathBuf>,
    /// ID of the I/O thread, as `dwell iothread list` prints it
    #[arg(long, value_name = "ID", requires = "qmp")]
    iothread: Option<ObjectId>,
    /// Name of the libvirt domain of the I/O thread, if libvirt runs it
    ///
    /// Needed to keep the values over a restart.
    #[arg(long, value_name = "NAME", requires = "qmp")]
    domain: Option<String>,
    /// Write the plan even if it does not fit this machine, and replace an existing file
    ///
    /// It does not fit if the recording is of another machine, or if present values or versions differ from it.
    #[arg(long, requires = "plan")]
    force: bool,
}

impl PlanArgs {
    /// Refuses a file that is there, unless it is to be replaced.
    pub(super) fn check<'a>(&self, inputs: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
        self.plan.as_ref().map_or(Ok(()), |path| may_write(path, self.force, "--force replaces it", inputs))
    }

    /// The I/O thread of the plan.
    pub(super) fn target(&self, layer: Layer) -> anyhow::Result<Option<IothreadTarget>> {
        let (Some(socket), Some(id)) = (&self.qmp, &self.iothread) else {
            if self.plan.is_some() && layer == Layer::Iothread {
                bail!(
                    "cannot write a plan for an I/O thread without its ID: give --qmp SOCKET --iothread ID"
                );
            }
            return Ok(None);
        };
        if layer != Layer::Iothread {
            bail!(
                "--qmp and --iothread are for plans of the iothread layer; this is the {} layer",
                layer.name()
            );
        }
        let socket = crate::command::iothread::socket(socket)?;
        Ok(Some(IothreadTarget { socket, id: id.clone(), domain: self.domain.clone() }))
    }

    /// The identity of the recording for the plan; `None` without --plan.
    pub(super) fn facts(&self, file: &str, reader: &Reader) -> anyhow::Result<Option<RecordingFacts>> {
        if self.plan.is_none() {
            return Ok(None);
        }
        Ok(Some(RecordingFacts::of(file, reader).with_context(|| file.to_owned())?))
    }

    /// Refuses a recording of another machine, if a plan is to be written.
    pub(super) fn refuse_other_machine(&self, metadata: &Metadata) -> anyhow::Result<()> {
        if self.plan.is_some() { refuse_other_machine(metadata, self.force) } else { Ok(()) }
    }

    /// Refuses a recording of other threads, if a plan is to be written.
    pub(super) fn refuse_other_threads(&self, others: Option<&String>) -> anyhow::Result<()> {
        match others.filter(|_| self.plan.is_some() && !self.force) {
            Some(others) => bail!("cannot write the plan: {others}; --force writes it anyway"),
            None => Ok(()),
        }
    }

    /// No plan is written from the bundled recording, which is used for the reason `why`.
    pub(super) fn refuse_bundled(&self, why: &str) -> anyhow::Result<()> {
        match &self.plan {
            Some(path) => {
                bail!("cannot write the plan {}: {why}; record it first: dwell record", path.display())
            }
            None => Ok(()),
        }
    }

    /// Writes the plan, if there is anything to plan.
    pub(super) fn write(
        &self,
        tuned: &Tuned,
        model: &Model,
        metadata: &Metadata,
        facts: RecordingFacts,
        target: Option<IothreadTarget>,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.plan else { return Ok(()) };
        let (_, recorded) = model.present(metadata);
        let Some(plan) = Plan::of(&tuned.advice, metadata, recorded, facts, target) else {
            output::note(&format!(
                "the advice is to leave the present setting: no plan is written to {}",
                path.display()
            ));
            return Ok(());
        };
        let plan = match &tuned.work {
            Some(work) => work.plan(plan, &tuned.words),
            None => plan,
        };
        finish(path, &plan, metadata, self.force)
    }
}

/// Without `--force`, no plan is written from a recording of another machine.
pub(crate) fn refuse_other_machine<O>(metadata: &Metadata<O>, force: bool) -> anyhow::Result<()> {
    match RecordedOn::of(metadata, &Sysroot::of_this_machine()) {
        RecordedOn::OtherMachine { why } if !force => {
            bail!(
                "cannot write the plan: the recording is of another machine ({why}); --force writes it anyway"
            )
        }
        _ => Ok(()),
    }
}

/// Compares the plan with this machine where that is the one that was recorded, and with the QEMU at
/// `--qmp`: the I/O thread, its present values and the version. Reads only.
fn check<O>(plan: &Plan, metadata: &Metadata<O>, force: bool) -> anyhow::Result<()> {
    let machine = Sysroot::of_this_machine();
    if let Some(target) = &plan.iothread {
        let mut monitor = iothread::connect(&machine, &target.socket)?;
        iothread::find(&mut monitor, &target.id)?;
    } else if RecordedOn::of(metadata, &machine) != RecordedOn::ThisMachine {
        return Ok(());
    }
    let Err(obstacles) = change::check(&machine, plan, false, Permission::default(), &[]) else {
        return Ok(());
    };
    let found: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    match force {
        true => output::note(&format!("note: the plan does not fit this machine: {}", found.join("; "))),
        false => bail!(
            "cannot write the plan, since it does not fit this machine: {}; --force writes it anyway",
            found.join("; ")
        ),
    }
    Ok(())
}

/// Compares a plan with this machine and writes it.
pub(crate) fn finish<O>(path: &Path, plan: &Plan, metadata: &Metadata<O>, force: bool) -> anyhow::Result<()> {
    check(plan, metadata, force)?;
    newfile::write(path, plan.to_toml()?.as_bytes()).context("cannot write the plan")?;
    output::note(&format!("plan written; apply it with: dwell apply {}", path.display()));
    Ok(())
}
