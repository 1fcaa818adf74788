//! How this machine's own CPUs idle, if it is a guest.

use super::kernel::Kernel;
use super::machine::{Hypervisor, Machine};
use super::param::{self, Value};
use super::root::Root;
use dwell_policy::Layer;
use serde::Serialize;

/// What rules the idling of this machine's CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Guest {
    /// The hypervisor below; `None` on bare metal, or if it was not asked.
    pub hypervisor: Option<Hypervisor>,
    /// Whether the hypervisor lets the guest switch host polling off; `None` if that is not known.
    pub poll_control: Option<bool>,
    /// Whether the hypervisor promises that vCPUs are not preempted; `None` if that is not known.
    pub realtime_hint: Option<bool>,
    /// The cpuidle driver; `None` if there is none.
    pub driver: Option<String>,
    /// The cpuidle governor in use, though without a driver it decides nothing.
    pub governor: Option<String>,
    /// The governors that could be used.
    pub governors: Vec<String>,
    /// The idle states of CPU 0, from shallow to deep.
    pub states: Vec<String>,
    /// `idle=` on the kernel's command line.
    pub idle_override: Option<String>,
    /// The `force` parameter of the haltpoll driver; `None` if the driver is not there.
    pub force: Option<bool>,
    /// The parameters of the haltpoll governor.
    pub parameters: Vec<Value>,
    /// The least wake-up latency anybody asks for, of all CPUs together \[us\]; `None` if it may not be read.
    pub latency_qos_us: Option<i32>,
    /// CPUs of which somebody asks for no wake-up latency at all.
    pub zero_latency_cpus: Vec<u32>,
}

const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";

impl Guest {
    pub(super) fn examine(root: &Root, machine: &dyn Machine, kernel: &Kernel) -> Guest {
        let hypervisor = machine.hypervisor();
        let of_kvm = hypervisor.as_ref().filter(|below| below.is_kvm());
        Guest {
            poll_control: of_kvm.map(Hypervisor::poll_control),
            realtime_hint: of_kvm.map(Hypervisor::realtime),
            driver: root.text(&format!("{CPUIDLE}/current_driver")).ok().filter(|name| name != "none"),
            governor: governor(root),
            governors: words(root, &format!("{CPUIDLE}/available_governors")),
            states: states(root),
            idle_override: kernel.argument("idle").map(str::to_owned),
            force: root.number("/sys/module/cpuidle_haltpoll/parameters/force").map(|force| force != 0),
            parameters: param::values(root, Layer::Guest, kernel.version),
            latency_qos_us: latency_qos(root),
            zero_latency_cpus: zero_latency_cpus(root),
            hypervisor,
        }
    }

    /// Whether the haltpoll governor decides here.
    pub fn haltpoll_decides(&self) -> bool {
        self.driver.is_some() && self.governor.as_deref() == Some("haltpoll")
    }
}

fn governor(root: &Root) -> Option<String> {
    let read = |name: &str| root.text(&format!("{CPUIDLE}/{name}")).ok();
    read("current_governor").or_else(|| read("current_governor_ro"))
}

fn words(root: &Root, path: &str) -> Vec<String> {
    root.text(path).unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect()
}

fn states(root: &Root) -> Vec<String> {
    const CPU0: &str = "/sys/devices/system/cpu/cpu0/cpuidle";
    let mut numbered: Vec<(u32, String)> = root
        .names(CPU0)
        .unwrap_or_default()
        .iter()
        .filter_map(|name| name.strip_prefix("state")?.parse().ok())
        .filter_map(|index: u32| Some((index, root.text(&format!("{CPU0}/state{index}/name")).ok()?)))
        .collect();
    numbered.sort();
    numbered.into_iter().map(|(_, name)| name).collect()
}

/// The device answers the least latency asked for as 32 bits. Opening it to read asks for nothing.
fn latency_qos(root: &Root) -> Option<i32> {
    let bytes = root.bytes("/dev/cpu_dma_latency").ok()?;
    Some(i32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// In this file `n/a` means that no latency is tolerated; 0 means that any is.
fn zero_latency_cpus(root: &Root) -> Vec<u32> {
    let zero = |cpu: &u32| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us");
        root.text(&path).is_ok_and(|text| text == "n/a")
    };
    let names = root.names("/sys/devices/system/cpu").unwrap_or_default();
    let mut cpus: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok()).collect();
    cpus.sort_unstable();
    cpus.retain(zero);
    cpus
}
