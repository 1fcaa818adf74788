//! `dwell verify --set`: a setting that is in force only while it is measured.

use super::record::target;
use crate::model::{HALT_COST, calibrated};
use crate::{quantity, settings};
use anyhow::{Context, bail, ensure};
use dwell_capture::Recorder;
use dwell_knobs::condition;
use dwell_knobs::knob::Knob;
use dwell_knobs::plan::Plan;
use dwell_machine::{Writable, kernel, parameter};
use dwell_policy::param::{self, Setting};
use dwell_policy::{Layer, Nanos, Owner};
use dwell_replay::calibration::HaltCosts;

/// A setting of this machine that no change has applied.
#[derive(clap::Args)]
pub(super) struct SetArgs {
    /// Measure this setting and restore the present one
    ///
    /// It need not be applied. Parameters of one layer of this machine, separated by commas; the others keep their values.
    /// The originals are in the journal before anything is written. [default: measure an applied change]
    #[arg(
        long,
        value_name = "NAME=VALUE",
        value_delimiter = ',',
        conflicts_with_all = ["id", "revert_if_worse"]
    )]
    set: Vec<String>,
    /// Cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// From 0 to 10ms. With 0, halts are free. [default: measured by `dwell-lab calibrate` on this machine, else 20us]
    #[arg(long, value_name = "TIME", value_parser = quantity::halt, requires = "set")]
    halt_cost: Option<Nanos>,
}

/// Whose parameters a kernel has.
const OWNERS: [Owner; 4] =
    [Owner::Layer(Layer::Guest), Owner::Layer(Layer::Driver), Owner::Layer(Layer::Host), Owner::Timer];

impl SetArgs {
    pub(super) fn is_given(&self) -> bool {
        !self.set.is_empty()
    }

    /// What is to be written, and nothing predicted of it.
    pub(super) fn plan(&self, machine: &dyn Writable) -> anyhow::Result<Plan> {
        let release = kernel::release(machine).context("cannot read the release of this kernel")?;
        let version = kernel::version(machine).context("cannot read the release of this kernel")?;
        let present: Vec<Setting<Owner>> = OWNERS
            .into_iter()
            .filter(|owner| param::known_version(*owner, version).is_ok())
            .map(|owner| (owner, parameter::read(machine, owner, Some(version))))
            .filter(|(_, there)| !there.is_empty())
            .map(|(owner, there)| parameter::setting(owner, version, &there))
            .collect();
        ensure!(!present.is_empty(), "Linux {release} has no parameters here whose rule is known");
        let wanted = settings::groups("--set", &self.set, &present)?;
        let [wanted] = &wanted[..] else {
            bail!("--set {}: name each parameter once", self.set.join(","));
        };
        let mut differing = present.into_iter().zip(wanted).filter(|(present, wanted)| present != *wanted);
        let Some((present, wanted)) = differing.next() else {
            bail!("--set {}: these values are in force already", self.set.join(","));
        };
        ensure!(differing.next().is_none(), "--set {}: name parameters of one layer", self.set.join(","));
        let mut plan = Plan::by_hand(present, *wanted, None);
        for write in &plan.writes {
            if let Some(why) = Knob::find(&write.knob).and_then(|knob| condition::no_effect(machine, knob)) {
                bail!("cannot measure {}: {why}", write.knob);
            }
        }
        plan.conditions.halt_cost_ns = self.halt_cost(plan.owner)?.get();
        Ok(plan)
    }

    /// What a halt costs here. Fails where this machine cannot be recorded.
    fn halt_cost(&self, owner: Owner) -> anyhow::Result<Nanos> {
        let recorder =
            Recorder::open(target(owner), None).context("cannot measure the setting; nothing was changed")?;
        let measured = match self.halt_cost {
            Some(given) => Some(given),
            None => calibrated(recorder.metadata()).as_ref().and_then(HaltCosts::halt_cpu),
        };
        Ok(measured.unwrap_or(HALT_COST))
    }
}
