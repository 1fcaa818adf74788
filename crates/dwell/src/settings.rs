//! Versions and settings as people type them.

use crate::quantity;
use crate::suggest;
use anyhow::{Context, anyhow, ensure};
use dwell_policy::arch::Arch;
use dwell_policy::param::{self, Setting};
use dwell_policy::version::{Build, Version};
use dwell_policy::{Layer, Owner};
use dwell_replay::{Catalogue, Rule, Versions};
use std::fmt::Display;

/// Releases that decide the rules and their defaults.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct VersionArgs {
    /// Kernel release whose rules and defaults to use, 5.4 to 7.3
    ///
    /// [default: that of the recording, else 7.3, the newest known] For all but I/O threads. `5.4` is the maintained stable series, `5.4.0` its first release.
    #[arg(long, value_name = "VERSION", value_parser = suggest::kernels(kernel), hide_possible_values = true)]
    pub(crate) kernel: Option<Version>,
    /// QEMU release whose rule and defaults to use, 2.9 to 11.1
    ///
    /// [default: that of the recording, else 11.1, the newest known] For the layer iothread.
    #[arg(long, value_name = "VERSION", value_parser = suggest::qemus(qemu), hide_possible_values = true)]
    pub(crate) qemu: Option<Version>,
}

impl VersionArgs {
    /// The releases as asked, else as `otherwise`.
    pub(crate) fn over(&self, otherwise: Versions) -> Versions {
        Versions {
            kernel: self.kernel.unwrap_or(otherwise.kernel),
            qemu: self.qemu.unwrap_or(otherwise.qemu),
        }
    }

    /// Refuses a release that has no effect on the layers in use.
    pub(crate) fn check(&self, layers: &[Layer]) -> anyhow::Result<()> {
        let iothread = layers.contains(&Layer::Iothread);
        let kernel = layers.iter().any(|layer| *layer != Layer::Iothread);
        ensure!(kernel || self.kernel.is_none(), "--kernel has no effect on layer iothread; use --qemu");
        ensure!(
            iothread || self.qemu.is_none(),
            "--qemu has no effect on layers other than iothread; use --kernel"
        );
        Ok(())
    }
}

/// A kernel release whose rules are known.
pub(crate) fn kernel(text: &str) -> Result<Version, String> {
    quantity::release(Layer::Host, text)
}

/// A QEMU release whose rule is known.
pub(crate) fn qemu(text: &str) -> Result<Version, String> {
    quantity::release(Layer::Iothread, text)
}

/// Why nothing is known of the running kernel's rules.
pub(crate) fn unknown_here(release: Option<&str>) -> String {
    let Some(release) = release else {
        return "cannot read the release of the running kernel: neither proc/sys/kernel/osrelease nor proc/version shows \
                it; name one to assume with --kernel"
            .to_owned();
    };
    let why = kernel(release).err().unwrap_or_default();
    let of = Build::of(release).filter(|build| build.distributor.backports());
    let of = of.map(|build| {
        format!("; {} has taken over later rules into it, which are not known", build.distributor.name())
    });
    format!("the running kernel {release}: {why}{}; name one to assume with --kernel", of.unwrap_or_default())
}

/// An architecture by its name in `uname -m`.
pub(crate) fn arch(text: &str) -> Result<Arch, String> {
    let names = || Arch::ALL.map(Arch::machine).join(", ");
    Arch::from_name(text)
        .ok_or_else(|| format!("no architecture whose defaults are known; known are {}", names()))
}

/// Whose parameters, by name.
pub(crate) fn owner(text: &str) -> Result<Owner, String> {
    Owner::from_name(text)
        .ok_or_else(|| format!("no such layer; known are {}", Owner::ALL.map(Owner::name).join(", ")))
}

/// A policy with its parameters.
pub(crate) fn policy(text: &str) -> Result<Rule, String> {
    text.parse::<Rule>().map_err(|error| error.to_string())
}

/// Long help of `--policy`: every policy of the catalogue.
pub(crate) fn policy_help() -> String {
    let mut help =
        "Policy to replay in addition to the settings, such as leader@20us\n\nCan be repeated.\n".to_owned();
    let catalogue = Catalogue::default();
    for entry in catalogue.entries() {
        help += &format!("\n  {}\n          {}", entry.grammar(), entry.about);
    }
    help + "\n\nThe first TIME is the halt cost (of `fixed`, the window). late=TIME is a wakeup latency that is part of the \
            measured idle times; it has no effect on a replay. NAME=VALUE is a parameter that `dwell params` lists."
}

/// Names and values as they are typed, with blanks between them.
pub(crate) fn pairs<N: Display, V: Display>(pairs: impl IntoIterator<Item = (N, V)>) -> String {
    let pairs = pairs.into_iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join(" ")
}

/// Those of a setting's values that another does not have.
pub(crate) fn differing<O: Copy + Into<Owner>>(setting: &Setting<O>, other: &Setting<O>) -> String {
    let both = setting.iter().zip(other.iter());
    pairs(both.filter(|((_, a), (_, b))| a != b).map(|((param, value), _)| (param.name, value)))
}

/// Groups of `--set` as settings over `base`: a name that a group already has begins the next group, and so does the
/// word `default`. One `--set` may have several pairs, separated by commas. `option` is its name in errors.
pub(crate) fn groups<O: Copy + Into<Owner>>(
    option: &str,
    asked: &[String],
    base: &[Setting<O>],
) -> anyhow::Result<Vec<Vec<Setting<O>>>> {
    let mut groups: Vec<Vec<Setting<O>>> = vec![];
    // Those that the last group has; none where it is complete.
    let mut names: Option<Vec<String>> = None;
    for item in asked.iter().flat_map(|text| text.split(',')) {
        if item.trim() == "default" {
            groups.push(base.to_vec());
            names = None;
            continue;
        }
        let (name, value) = item
            .split_once('=')
            .with_context(|| format!("{option} {item}: write NAME=VALUE, such as halt_poll_ns=160000"))?;
        let (name, value) = (name.trim(), value.trim());
        let plain = name.replace('-', "_");
        match &mut names {
            Some(names) if !names.contains(&plain) => names.push(plain),
            _ => {
                groups.push(base.to_vec());
                names = Some(vec![plain]);
            }
        }
        if let Some(group) = groups.last_mut() {
            set(group, name, value).map_err(|why| anyhow!("{option} {name}={value}: {why}"))?;
        }
    }
    Ok(groups)
}

/// Gives a parameter the value that was typed, in the setting that has it.
pub(crate) fn set<O: Copy + Into<Owner>>(
    settings: &mut [Setting<O>],
    name: &str,
    value: &str,
) -> Result<(), String> {
    let found = settings.iter_mut().find_map(|setting| {
        let owner = setting.owner();
        Some((&param::table(owner)[param::index_of(owner, name)?], setting))
    });
    let Some((param, setting)) = found else {
        let known: Vec<&str> = settings.iter().flat_map(Setting::iter).map(|(param, _)| param.name).collect();
        // `kvm.halt_poll_ns` of the kernel's command line, and the path in `/sys/module`.
        let last = name.rsplit(['.', '/']).next().map(|last| last.replace('-', "_")).unwrap_or_default();
        return Err(match known.contains(&last.as_str()) {
            true => format!("no such parameter here; the name is {last}, without what is before it"),
            false => format!("no such parameter here; known are {}", known.join(", ")),
        });
    };
    let number = param.parse(value).map_err(|why| why.to_string())?;
    setting.set(name, number).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Vec<Setting> {
        vec![Setting::defaults(Layer::Host, Version::new(6, 18))]
    }

    fn texts(asked: &[&str], base: &[Setting]) -> Result<Vec<String>, String> {
        let asked: Vec<String> = asked.iter().map(|&s| s.to_owned()).collect();
        let groups = groups("--set", &asked, base).map_err(|e| e.to_string())?;
        Ok(groups.iter().map(|g| g.iter().map(Setting::to_string).collect::<Vec<_>>().join(" ")).collect())
    }

    #[test]
    fn repeated_name_begins_the_next_setting() {
        let asked = [
            "halt_poll_ns=160us",
            "halt_poll_ns_shrink=2",
            "halt_poll_ns=50000,halt-poll-ns-grow=4",
            "default",
            "halt_poll_ns=0",
        ];
        assert_eq!(
            texts(&asked, &host()).unwrap(),
            [
                "halt_poll_ns=160000 halt_poll_ns_grow=2 halt_poll_ns_grow_start=10000 halt_poll_ns_shrink=2",
                "halt_poll_ns=50000 halt_poll_ns_grow=4 halt_poll_ns_grow_start=10000 halt_poll_ns_shrink=2",
                "halt_poll_ns=200000 halt_poll_ns_grow=2 halt_poll_ns_grow_start=10000 halt_poll_ns_shrink=2",
                "halt_poll_ns=0 halt_poll_ns_grow=2 halt_poll_ns_grow_start=10000 halt_poll_ns_shrink=2",
            ]
        );
    }

    #[test]
    fn errors_name_what_is_valid() {
        let error = |asked: &str| texts(&[asked], &host()).unwrap_err();
        assert!(error("halt_poll=5").contains("known are halt_poll_ns, halt_poll_ns_grow"));
        for asked in ["kvm.halt-poll-ns=5", "/sys/module/kvm/parameters/halt_poll_ns=5"] {
            assert!(
                error(asked).ends_with("; the name is halt_poll_ns, without what is before it"),
                "{asked}"
            );
        }
        assert!(error("halt_poll_ns").contains("NAME=VALUE"));
        assert!(error("halt_poll_ns=5m").contains("200us"));
        assert!(error("halt_poll_ns=5s").contains("0 to 4294967295 ns"));
        assert!(error("halt_poll_ns=-1").contains("0 to 4294967295 ns"));
        assert!(error("halt_poll_ns_grow=two").contains("whole number"));
    }

    #[test]
    fn unknown_versions_name_the_known_ones() {
        for text in ["4.19", "9.9", "new"] {
            assert!(kernel(text).unwrap_err().contains("5.4 to 7.3"), "{text}");
        }
        assert!(qemu("12.0").unwrap_err().contains("2.9 to 11.1"));
    }

    #[test]
    fn help_names_the_newest_versions() {
        let help =
            <VersionArgs as clap::Args>::augment_args(clap::Command::new("x")).render_long_help().to_string();
        let newest = Versions::NEWEST;
        assert!(help.contains(&format!("else {}, the newest known", newest.kernel)), "{help}");
        assert!(help.contains(&format!("else {}, the newest known", newest.qemu)), "{help}");
    }

    #[test]
    fn release_without_effect_is_refused() {
        let asked = VersionArgs { kernel: Some(Version::new(6, 18)), qemu: None };
        assert!(asked.check(&[Layer::Iothread]).unwrap_err().to_string().contains("use --qemu"));
        asked.check(&[Layer::Guest, Layer::Host]).unwrap();
        let asked = VersionArgs { kernel: None, qemu: Some(Version::new(10, 0)) };
        assert!(asked.check(&[Layer::Host]).unwrap_err().to_string().contains("use --kernel"));
        asked.check(&[Layer::Iothread]).unwrap();
    }
}
