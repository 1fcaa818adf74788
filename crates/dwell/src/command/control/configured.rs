//! The configuration, with the options over it.

use super::Args;
use crate::command::iothread::socket;
use crate::model::{ModelArgs, Whose, or_left_out};
use anyhow::{Context, ensure};
use dwell_control::daemon::config::{self, Config, Options};
use dwell_machine::{Sysroot, cpu, kernel};
use dwell_policy::Nanos;
use dwell_replay::calibration::{Calibration, HaltOf};

/// The latency of a vCPU's halts on this machine, where it was calibrated.
fn calibrated_latency() -> Option<Nanos> {
    let stored = or_left_out(Calibration::load(&Calibration::path()?))?;
    let machine = Sysroot::of_this_machine();
    let here = cpu::model(&machine)? == stored.cpu_model && kernel::release(&machine)? == stored.kernel;
    here.then(|| stored.halt_of(HaltOf::Vcpu)?.halt_latency()).flatten()
}

/// The configuration, with the options over it.
pub(super) fn configuration(args: &Args) -> anyhow::Result<Config> {
    let ModelArgs { halt_cost, wakeup_latency, .. } = args.model;
    let options = Options { mode: args.mode, halt_cost, wakeup_latency };
    let mut config = Config::read(args.config.as_deref().or(config::default_file()), options)?;
    config.calibrated_latency = calibrated_latency();
    if let Some(log) = &args.log {
        // It may be relative to the directory in which the program was started.
        let path = std::path::absolute(log).with_context(|| format!("--log {}", log.display()))?;
        ensure!(path.to_str().is_some(), "--log: the path {} is no UTF-8", path.display());
        config.log = Some(path);
    }
    for qmp in &args.qmp {
        let qmp = socket(qmp)?;
        config.qemus.retain(|qemu| qemu.qmp != qmp);
        config.qemus.push(config::Qemu { qmp });
    }
    config.vms.splice(0..0, args.vm.iter().cloned());
    if let Some(Whose::One(layer)) = args.model.layer {
        config.layers = vec![layer];
    }
    Ok(config)
}
