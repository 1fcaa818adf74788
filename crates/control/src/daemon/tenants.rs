//! Which VM counts how much, and which has a veto.

use crate::core::Tenant;
use anyhow::{Context, bail, ensure};
use dwell_capture::kvm_stats::VmId;
use dwell_cli::quantity;
use dwell_machine::Machine;
use dwell_machine::process::Naming;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;

/// An entry of the configuration: a VM, and what it counts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Vm {
    pub by: By,
    pub tenant: Tenant,
}

/// How a VM is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// By the name or uuid on the command line of its VMM, or by the name of a recording.
    Name(String),
    /// By its control group, or one above it.
    Cgroup(String),
}

/// As written in TOML.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<String>,
    cgroup: Option<String>,
    weight: Option<f64>,
    most_loss: Option<String>,
}

impl TryFrom<Written> for Vm {
    type Error = anyhow::Error;

    fn try_from(written: Written) -> anyhow::Result<Vm> {
        let Written { name, cgroup, weight, most_loss } = written;
        let most_loss = most_loss.as_deref().map(share).transpose()?;
        let by = match (name, cgroup) {
            (Some(name), None) => {
                ensure!(!name.is_empty(), "vm: the name is empty");
                By::Name(name)
            }
            (None, Some(path)) => {
                ensure!(
                    path.starts_with('/'),
                    "vm: the control group `{path}` is not a path from the root on"
                );
                By::Cgroup(path)
            }
            _ => bail!("vm: it has either name or cgroup"),
        };
        let weight = weight.unwrap_or(1.0);
        ensure!((0.0..=1_000.0).contains(&weight), "vm: weight: {weight} is not from 0 to 1000");
        Ok(Vm { by, tenant: Tenant { weight, most_loss } })
    }
}

impl From<Vm> for Written {
    fn from(Vm { by, tenant: Tenant { weight, most_loss } }: Vm) -> Written {
        let (name, cgroup) = match by {
            By::Name(name) => (Some(name), None),
            By::Cgroup(cgroup) => (None, Some(cgroup)),
        };
        // The product of 0.07 and 100 is not 7 in binary.
        let most_loss = most_loss.map(|share| format!("{}%", (1e12 * share).round() / 1e10));
        Written { name, cgroup, weight: Some(weight), most_loss }
    }
}

/// `5%` or `0.05`.
fn share(text: &str) -> anyhow::Result<f64> {
    match quantity::cpus(text) {
        // Whoever writes 5 means 5 %.
        Ok(share) if share <= 1.0 || text.trim().ends_with('%') => Ok(share),
        _ => bail!("`{text}` is not a share; write it as 5% or 0.05, and one above 100% with the sign"),
    }
}

/// `NAME,weight=2,most-loss=5%`.
impl FromStr for Vm {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Vm> {
        let mut items = text.split(',');
        let name = items.next().unwrap_or_default().to_owned();
        ensure!(
            !["weight=", "most-loss="].iter().any(|key| name.starts_with(key)),
            "the name of the VM comes first: NAME,{name}"
        );
        let mut written = Written { name: Some(name), ..Written::default() };
        for item in items {
            match item.split_once('=') {
                Some(("weight", weight)) => {
                    let number = weight.parse().ok();
                    written.weight =
                        Some(number.with_context(|| format!("weight: `{weight}` is not a number"))?);
                }
                Some(("most-loss", loss)) => written.most_loss = Some(loss.to_owned()),
                _ => bail!("`{item}` is neither weight=NUMBER nor most-loss=SHARE"),
            }
        }
        written.try_into()
    }
}

impl Vm {
    /// Whether this is the VM.
    fn is(&self, naming: &Naming) -> bool {
        match &self.by {
            By::Name(name) => {
                naming.name.as_ref() == Some(name)
                    || naming.uuid.as_ref().is_some_and(|uuid| uuid.eq_ignore_ascii_case(name))
            }
            By::Cgroup(path) => {
                let path = path.trim_end_matches('/');
                let below = |group: &String| {
                    group.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                naming.cgroups.iter().any(below)
            }
        }
    }
}

/// What was found of a VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    /// Of its VMM's command line.
    pub(super) name: Option<String>,
    /// Whether an entry is of it.
    pub(super) listed: bool,
    pub tenant: Tenant,
}

/// The VMs of a host.
pub(super) struct Tenants {
    vms: Vec<Vm>,
    found: BTreeMap<VmId, Found>,
}

impl Tenants {
    pub(super) fn new(vms: Vec<Vm>) -> Tenants {
        Tenants { vms, found: BTreeMap::new() }
    }

    /// VMs were searched for: a number may be that of another process now.
    pub(super) fn forget(&mut self) {
        self.found.clear();
    }

    /// Without entries nothing is read.
    pub(super) fn find(&mut self, machine: &dyn Machine, id: VmId) -> Tenant {
        if self.vms.is_empty() {
            return Tenant::default();
        }
        let vms = &self.vms;
        let found = self.found.entry(id).or_insert_with(|| {
            let naming = Naming::of(machine, id.pid);
            let entry = vms.iter().find(|vm| vm.is(&naming));
            let tenant = entry.map_or_else(Tenant::default, |vm| vm.tenant);
            Found { name: naming.name, listed: entry.is_some(), tenant }
        });
        found.tenant
    }

    pub(super) fn found(&self, id: VmId) -> Found {
        self.found.get(&id).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;

    #[test]
    fn the_first_entry_that_a_vm_matches_counts() {
        let qemu =
            |name: &str, uuid: &str| format!("qemu\0-name\0guest={name},debug-threads=on\0-uuid\0{uuid}\0");
        let machine = Fake::new()
            .file("/proc/1/cmdline", &qemu("web", "AB-12"))
            .file("/proc/2/cmdline", &qemu("db", "cd-34"))
            .file("/proc/3/cmdline", "vmm\0")
            .file("/proc/3/cgroup", "0::/tenants/a/vm3\n")
            .file("/proc/4/cgroup", "0::/tenants/ab\n");
        let cgroup = |path: &str, weight| Vm {
            by: By::Cgroup(path.to_owned()),
            tenant: Tenant { weight, most_loss: None },
        };
        let vm = |text: &str| text.parse::<Vm>().unwrap();
        let vms = vec![
            vm("web,weight=2"),
            vm("ab-12,weight=9"),
            vm("CD-34,weight=3,most-loss=5%"),
            cgroup("/tenants/a/", 4.0),
        ];
        let mut tenants = Tenants::new(vms);
        let mut of = |pid| tenants.find(&machine, VmId { pid, fd: 0 });
        assert_eq!([1, 2, 3, 4, 5].map(|pid| of(pid).weight), [2.0, 3.0, 4.0, 1.0, 1.0]);
        assert_eq!(of(2).most_loss, Some(0.05));
        let found = tenants.found(VmId { pid: 2, fd: 0 });
        assert_eq!((found.name.as_deref(), found.listed), (Some("db"), true));
        assert!(!tenants.found(VmId { pid: 4, fd: 0 }).listed);
        // A file that is another process's is read only after a search.
        machine.set("/proc/4/cmdline", &qemu("web", "0"));
        assert_eq!(tenants.find(&machine, VmId { pid: 4, fd: 0 }).weight, 1.0);
        tenants.forget();
        assert_eq!(tenants.find(&machine, VmId { pid: 4, fd: 0 }).weight, 2.0);
    }

    #[test]
    fn what_is_no_vm_is_refused() {
        for (text, why) in [
            ("", "the name is empty"),
            ("a,2", "neither weight=NUMBER nor most-loss=SHARE"),
            ("weight=2", "the name of the VM comes first: NAME,weight=2"),
            ("a,weight=x", "weight: `x` is not a number"),
            ("a,weight=inf", "from 0 to 1000"),
            ("a,most-loss=-1%", "`-1%` is not a share"),
            ("a,most-loss=5", "`5` is not a share; write it as 5%"),
        ] {
            let error = format!("{:#}", text.parse::<Vm>().unwrap_err());
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
