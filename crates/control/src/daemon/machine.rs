//! What can be controlled on a machine, and the setting in force there.

use anyhow::{Context, anyhow, bail, ensure};
use dwell_knobs::condition::Readers;
use dwell_knobs::knob::Module;
use dwell_machine::{Cpuidle, Machine, kernel, parameter};
use dwell_policy::Layer;
use dwell_policy::param::{self, Setting};

/// The layers that can be controlled here; there have to be some unless there are `others`.
pub(super) fn here(machine: &dyn Machine, others: bool) -> anyhow::Result<Vec<Layer>> {
    let mut layers = vec![];
    match Cpuidle::read(machine) {
        cpuidle if cpuidle.driver.as_deref() == Some(Module::DwellIdle.name()) => layers.push(Layer::Driver),
        cpuidle if cpuidle.haltpoll_decides() => layers.push(Layer::Guest),
        _ => {}
    }
    if machine.exists(&parameter::path(&param::table(Layer::Host)[0])) && machine.exists("/dev/kvm") {
        layers.push(Layer::Host);
    }
    if layers.is_empty() && !others {
        bail!(
            "nothing can be controlled here: neither the haltpoll governor nor the driver dwell_idle is in use, and there \
             is no KVM (/dev/kvm and its parameters); `dwell doctor` has more"
        );
    }
    Ok(layers)
}

/// Refuses to control a layer whose rule is not in force: haltpoll's where another governor decides, or none, or
/// dwell_idle, and that of dwell_idle where it is not the driver in use.
pub(super) fn refuse_unread(machine: &dyn Machine, layer: Layer) -> anyhow::Result<()> {
    if let (Layer::Guest, Some(why)) = (layer, Readers::of(machine).haltpoll()) {
        bail!("cannot control the guest layer: {why}");
    }
    let driver = Cpuidle::read(machine).driver;
    ensure!(
        layer != Layer::Driver || driver.as_deref() == Some(Module::DwellIdle.name()),
        "cannot control the driver layer: the idle driver in use is {}; load dwell_idle (modprobe dwell_idle)",
        driver.as_deref().unwrap_or("none")
    );
    Ok(())
}

/// The setting in force. What a controller could not restore is refused.
pub(super) fn setting(machine: &dyn Machine, layer: Layer) -> anyhow::Result<Setting> {
    let release = kernel::release(machine).context("cannot read the release of this kernel")?;
    let version = kernel::version(machine).filter(|version| param::known_version(layer, *version).is_ok());
    let version = version
        .with_context(|| format!("the rule of the {} layer of Linux {release} is not known", layer.name()))?;
    let there = parameter::read(machine, layer, Some(version));
    let mut setting = Setting::defaults(layer, version);
    for (param, _) in setting.clone().iter() {
        let path = parameter::path(param);
        let value = parameter::get(&there, param.name)
            .with_context(|| format!("cannot control the {} layer: {path} cannot be read", layer.name()))?;
        setting.set(param.name, value).map_err(|why| {
            anyhow!("cannot control the {} layer, as {path} could not be restored: {why}", layer.name())
        })?;
    }
    Ok(setting)
}
