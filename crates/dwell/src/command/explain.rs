//! `dwell explain`

mod words;

use crate::failure::Outcome;
use crate::output::{self, FormatArg};
use crate::settings::{self, differing};
use crate::state::SysrootArg;
use anyhow::{anyhow, bail, ensure};
use dwell_knobs::explain::related::related;
use dwell_knobs::explain::same::{Sameness, compare};
use dwell_knobs::explain::{Explained, explain};
use dwell_knobs::knob::{Knob, capability};
use dwell_knobs::typed;
use dwell_machine::{Machine, kernel, parameter};
use dwell_policy::arch::Arch;
use dwell_policy::param::{Param, Setting, known_version};
use dwell_policy::version::{NEWEST_QEMU, Version};
use dwell_policy::{Layer, Nanos, Owner};
use serde::Serialize;

/// Explain what a value does, what reads it, and which values do the same
///
/// Whether two values act the same is decided by the models of the kernel's and QEMU's rules, for every sequence of
/// halts. Parameters that are not given have the values of this machine, or the defaults of --kernel. A name that is
/// given again begins another setting, which is compared with the first. Nothing is changed.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  dwell explain guest_halt_poll_ns=2400us guest_halt_poll_grow_start=24ms \
                  guest_halt_poll_grow_start=2400us\n  dwell explain halt_poll_ns=0 halt_poll_ns_shrink=2 --kernel 5.15\n  \
                  dwell explain KVM_CAP_HALT_POLL=50us"
)]
pub(crate) struct Args {
    /// Parameter, or parameter and value, such as halt_poll_ns=200us
    ///
    /// Also as it is written elsewhere: kvm.halt_poll_ns=0, options kvm halt_poll_ns=0, or the path below /sys/module.
    /// With --layer the end of a name is enough, such as grow_start.
    #[arg(required = true, value_name = "KNOB[=VALUE]")]
    knobs: Vec<String>,
    /// Layer of abbreviated names: guest, host, timer, driver or iothread
    #[arg(long, value_parser = crate::suggest::owners(settings::owner))]
    layer: Option<Owner>,
    /// Kernel release whose rules and defaults to use, 5.4 to 7.3
    ///
    /// [default: the running kernel, with the values of this machine]
    #[arg(long, value_name = "VERSION", hide_possible_values = true, value_parser = crate::suggest::kernels(settings::kernel))]
    kernel: Option<Version>,
    /// Architecture whose rules and defaults to use, as uname -m prints it
    ///
    /// [default: that of the release, else that of this machine]
    #[arg(long, value_name = "ARCH", value_parser = settings::arch)]
    arch: Option<Arch>,
    /// QEMU release whose rules to use for I/O threads, 2.9 to 11.1
    #[arg(long, value_name = "VERSION", hide_possible_values = true, value_parser = crate::suggest::qemus(settings::qemu), default_value_t = NEWEST_QEMU)]
    qemu: Version,
    #[command(flatten)]
    sysroot: SysrootArg,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Told {
    /// Which values the parameters have that were not named.
    base: String,
    explained: Vec<Explained>,
    comparisons: Vec<Comparison>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capability: Option<Capability>,
}

#[derive(Serialize)]
struct Comparison {
    layer: &'static str,
    first: String,
    second: String,
    #[serde(flatten)]
    sameness: Sameness,
}

#[derive(Serialize)]
struct Capability {
    name: &'static str,
    number: u32,
    only: &'static str,
    call: Option<String>,
    vmms: Vec<(&'static str, &'static str)>,
}

/// Settings of all layers, and which parameters were named in making them.
#[derive(Clone)]
struct Group {
    settings: Vec<Setting<Owner>>,
    named: Vec<&'static Param>,
}

pub(crate) fn run(args: Args) -> Outcome {
    let machine = args.sysroot.machine()?;
    let base = Base::of(&args, &machine)?;
    let typed = typed::plain(&args.knobs)?;
    let (capability, knobs): (Vec<&String>, Vec<&String>) =
        typed.iter().partition(|text| text.split('=').next() == Some(capability::NAME));
    let here = base.is_here.then_some(&machine as &dyn Machine);
    ensure!(capability.len() < 2, "{} is given {} times; give it once", capability::NAME, capability.len());
    let groups = groups(&knobs, &args, &base.settings, here)?;
    let explained: Vec<Explained> = groups.iter().flat_map(|group| explain_all(group, here)).collect();
    let told = Told {
        explained,
        comparisons: comparisons(&groups),
        capability: capability.last().map(|asked| told_of_capability(asked)).transpose()?,
        base: base.told,
    };
    output::result(args.format.format, &told, || words::table(&told), || words::words(&told))
}

fn told_of_capability(asked: &str) -> anyhow::Result<Capability> {
    let value = asked.split_once('=').map(|(_, value)| value.parse::<Nanos>());
    let value = value.transpose().map_err(|why| anyhow!("{asked}: the value {why}"))?;
    let longest = || anyhow!("{asked}: it takes 32 bits, at most {} ns", u32::MAX);
    let call = value.map(|ns| u32::try_from(ns.get()).map_err(|_| longest())).transpose()?;
    Ok(Capability {
        name: capability::NAME,
        number: capability::NUMBER,
        only: "only the VMM can set it, on its own VM; it can be neither read nor reset",
        call: call.map(|ns| capability::call(ns.into())),
        vmms: capability::VMMS.to_vec(),
    })
}

/// The settings of every layer before the named values.
struct Base {
    settings: Vec<Setting<Owner>>,
    told: String,
    /// Whether the state of this machine is used.
    is_here: bool,
}

impl Base {
    fn of(args: &Args, machine: &dyn Machine) -> anyhow::Result<Base> {
        let qemu = args.qemu;
        let running = || kernel::version(machine).filter(|version| is_known(*version));
        let Some(version) = args.kernel.or_else(running) else {
            bail!("{}", settings::unknown_here(kernel::release(machine).as_deref()));
        };
        let kernel = version.on(args.arch.unwrap_or(version.arch));
        let is_here = args.kernel.is_none() && kernel.arch == version.arch;
        let of = |owner| Setting::defaults(owner, if owner == Layer::Iothread { qemu } else { kernel });
        let mut settings: Vec<Setting<Owner>> = Owner::ALL.map(of).to_vec();
        if is_here {
            let here = |setting: &Setting<Owner>| {
                let (owner, version) = (setting.owner(), setting.version());
                parameter::setting(owner, version, &parameter::read(machine, owner, Some(version)))
            };
            settings.iter_mut().for_each(|setting| *setting = here(setting));
        }
        let values =
            if is_here { "the values of this machine where they can be read" } else { "the defaults" };
        let on = match kernel.arch {
            Arch::X86_64 => String::new(),
            arch => format!(" on {}", arch.name()),
        };
        let told = format!("Linux {}{on}, QEMU {qemu}; other parameters: {values}", kernel.on(Arch::X86_64));
        Ok(Base { settings, told, is_here })
    }
}

/// Whether the rules of the layers that a kernel has are known.
fn is_known(version: Version) -> bool {
    version.arch.lacks(Owner::Layer(Layer::Host)).is_some() || known_version(Layer::Host, version).is_ok()
}

fn groups(
    asked: &[&String],
    args: &Args,
    base: &[Setting<Owner>],
    here: Option<&dyn Machine>,
) -> anyhow::Result<Vec<Group>> {
    let mut groups = vec![Group { settings: base.to_vec(), named: vec![] }];
    for text in asked {
        let (name, value) =
            text.split_once('=').map_or((text.as_str(), None), |(n, v)| (n.trim(), Some(v.trim())));
        let param = resolve(name, args.layer)?;
        exists(param, base, here)?;
        if groups.last().is_some_and(|group| group.named.contains(&param)) {
            // It differs from the setting before in this parameter only.
            let settings = groups.last().map_or_else(Vec::new, |group| group.settings.clone());
            groups.push(Group { settings, named: vec![] });
        }
        let Some(group) = groups.last_mut() else { continue };
        if let Some(value) = value {
            settings::set(&mut group.settings, param.name, value).map_err(|why| anyhow!("{text}: {why}"))?;
        }
        group.named.push(param);
    }
    groups.retain(|group| !group.named.is_empty());
    Ok(groups)
}

/// A parameter by its name, or by the end of it.
fn resolve(name: &str, layer: Option<Owner>) -> anyhow::Result<&'static Param> {
    let plain = |name: &str| name.replace('-', "_");
    let of_layer = |knob: &Knob| layer.is_none_or(|layer| knob.param.owner == layer);
    let all: Vec<&'static Param> = Knob::all().filter(of_layer).map(|knob| knob.param).collect();
    if let Some(param) = all.iter().find(|param| plain(param.name) == plain(name)) {
        return Ok(param);
    }
    let ending = format!("_{}", plain(name));
    let fits: Vec<&'static Param> =
        all.iter().copied().filter(|param| plain(param.name).ends_with(&ending)).collect();
    match fits.as_slice() {
        [param] => Ok(param),
        [] => match related(name) {
            Some(words) => bail!(
                "{name}: is no parameter of a rule, but changes the effect of some: {words}; `dwell doctor` reports what is in force"
            ),
            None => bail!("{name}: no such parameter; `dwell params` lists all"),
        },
        several => {
            let told: Vec<String> =
                several.iter().map(|param| format!("{} ({})", param.name, param.owner.name())).collect();
            bail!("{name} may be {}; write the whole name or give --layer", told.join(" or "))
        }
    }
}

/// A parameter that this version has, and the kernel here, which knows better.
fn exists(param: &'static Param, base: &[Setting<Owner>], here: Option<&dyn Machine>) -> anyhow::Result<()> {
    let path = parameter::path(param);
    let shows = |path: &str| here.is_some_and(|machine| machine.exists(path));
    let setting = base.iter().find(|setting| setting.owner() == param.owner);
    match setting.map(|setting| setting.to_owned().set(param.name, param.min)) {
        Some(Err(missing)) if shows(&path) => {
            bail!(
                "{path} is there, but by its version this kernel does not have it ({missing}): no rule is known for it"
            )
        }
        Some(Err(missing)) => bail!("{missing}"),
        _ if shows(param.home) && !shows(&path) => {
            bail!("{}: this kernel does not have it: {} is there without it", param.name, param.home)
        }
        _ => Ok(()),
    }
}

fn explain_all<'a>(
    group: &'a Group,
    machine: Option<&'a dyn Machine>,
) -> impl Iterator<Item = Explained> + 'a {
    group.named.iter().filter_map(move |param| {
        let setting = group.settings.iter().find(|setting| setting.owner() == param.owner)?;
        explain(setting, param, machine)
    })
}

/// Each further setting compared with the first.
fn comparisons(groups: &[Group]) -> Vec<Comparison> {
    let Some((first, rest)) = groups.split_first() else { return vec![] };
    let pairs = rest.iter().flat_map(|other| first.settings.iter().zip(&other.settings));
    let compared = pairs.filter(|(a, b)| a != b).map(|(a, b)| Comparison {
        layer: a.owner().name(),
        first: differing(a, b),
        second: differing(b, a),
        sameness: compare(a, b),
    });
    compared.collect()
}
