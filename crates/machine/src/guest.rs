//! How this machine's own CPUs idle, if it is a guest.

use crate::hypervisor::Hypervisor;
use crate::kernel::Kernel;
use crate::parameter::{self, Parameter};
use crate::seam::Machine;
use crate::value::Value;
use dwell_policy::Layer;
use dwell_policy::arch::Arch;
use serde::Serialize;

/// The cpuidle driver and governors of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Cpuidle {
    /// Whether the machine shows which driver there is, or that there is none.
    #[serde(rename = "driver_known")]
    pub is_known: bool,
    /// The driver; `None` if there is none, or it is not known.
    pub driver: Option<String>,
    /// The governor in use, though without a driver it decides nothing.
    pub governor: Option<String>,
    /// The governors that could be used.
    pub governors: Vec<String>,
    /// Whether the governor can be changed while the kernel runs (`current_governor` is there).
    #[serde(skip)]
    pub governor_can_be_set: bool,
}

const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";
const HALTPOLL: &str = "haltpoll";

impl Cpuidle {
    /// Reads the driver and the governors.
    pub fn read(machine: &dyn Machine) -> Cpuidle {
        let read = |name: &str| machine.text(&format!("{CPUIDLE}/{name}")).filter(|text| !text.is_empty());
        Cpuidle {
            is_known: machine.is_whole() || machine.exists(&format!("{CPUIDLE}/current_driver")),
            driver: read("current_driver").filter(|name| name != "none"),
            governor: read("current_governor").or_else(|| read("current_governor_ro")),
            governors: read("available_governors")
                .unwrap_or_default()
                .split_ascii_whitespace()
                .map(str::to_owned)
                .collect(),
            governor_can_be_set: machine.exists(&format!("{CPUIDLE}/current_governor")),
        }
    }

    /// Whether the haltpoll governor decides.
    pub fn haltpoll_decides(&self) -> bool {
        self.driver.is_some() && self.governor.as_deref() == Some(HALTPOLL)
    }

    /// Whether the driver is haltpoll's.
    pub fn has_haltpoll_driver(&self) -> bool {
        self.driver.as_deref() == Some(HALTPOLL)
    }

    /// Whether this kernel has the governor haltpoll and it could be used here. On kernels that do not list their
    /// governors this is not known, and `true`.
    pub fn has_haltpoll_governor(&self) -> bool {
        self.governors.is_empty() || self.governors.iter().any(|name| name == HALTPOLL)
    }
}

/// The driver dwell_idle, which learns how long to poll, with its parameters in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DwellIdle {
    /// `leader`, `savings`, `fixed` or `never`.
    pub policy: String,
    /// What a halt and the wakeup from it are worth \[ns\].
    pub halt_cost_ns: i64,
    /// What a halt adds to the measured length of an episode \[ns\].
    pub wake_latency_ns: i64,
    /// The longest poll \[ns\].
    pub max_window_ns: i64,
    /// The CPUs that poll, as a list; empty: none.
    pub cpus: String,
    /// Whether it switches KVM's own polling off, where KVM lets it.
    pub poll_control: bool,
}

impl DwellIdle {
    /// Reads the parameters; `None` if the driver is not loaded.
    pub fn read(machine: &dyn Machine) -> Option<DwellIdle> {
        const PARAMETERS: &str = "/sys/module/dwell_idle/parameters";
        let number = |name: &str| machine.number(&format!("{PARAMETERS}/{name}"));
        let text = |name: &str| machine.text(&format!("{PARAMETERS}/{name}"));
        Some(DwellIdle {
            policy: text("policy")?,
            halt_cost_ns: number("halt_cost_ns")?,
            wake_latency_ns: number("wake_latency_ns")?,
            max_window_ns: number("max_window_ns")?,
            cpus: text("cpus")?,
            poll_control: machine.switch(&format!("{PARAMETERS}/poll_control"))?,
        })
    }

    /// Whether any CPU ever polls.
    pub fn polls(&self) -> bool {
        self.policy != "never" && self.max_window_ns > 0 && !self.cpus.is_empty()
    }
}

/// What determines the idling of this machine's CPUs.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Guest {
    /// The hypervisor below; `None` on bare metal, or if it was not asked.
    pub hypervisor: Option<Hypervisor>,
    /// Whether this is a guest of KVM; `None` if that is not known.
    pub kvm_guest: Option<bool>,
    /// Whether the hypervisor lets the guest switch host polling off; `None` if that is not known.
    pub poll_control: Option<bool>,
    /// Whether the hypervisor promises that vCPUs are not preempted; `None` if that is not known.
    pub realtime_hint: Option<bool>,
    /// The cpuidle driver and governors.
    #[serde(flatten)]
    pub cpuidle: Cpuidle,
    /// The idle states of CPU 0, from shallow to deep.
    pub states: Vec<String>,
    /// `idle=` on the kernel's command line, which x86 alone reads.
    pub idle_override: Option<String>,
    /// The word of the kernel's command line by which idle CPUs poll all the time.
    #[serde(skip)]
    pub polls_by: Option<&'static str>,
    /// Whether the kernel's command line switches cpuidle off, with its drivers and governors.
    #[serde(skip)]
    pub cpuidle_off: bool,
    /// The `force` parameter of the haltpoll driver; `None` if the driver is not there.
    pub force: Option<bool>,
    /// The driver dwell_idle, if it is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dwell_idle: Option<DwellIdle>,
    /// The parameters of the haltpoll governor.
    pub parameters: Vec<Parameter>,
    /// The least wakeup latency that any process asks for, of all CPUs together \[us\]; `None` if it may not be read.
    pub latency_qos_us: Option<i32>,
    /// CPUs for which a wakeup latency of zero is asked for.
    pub zero_latency_cpus: Vec<u32>,
    /// CPUs of which every idle state is disabled but the one that polls.
    #[serde(skip)]
    pub polling_only_cpus: Vec<u32>,
}

impl Guest {
    pub(crate) fn read(machine: &dyn Machine, kernel: &Kernel) -> Guest {
        let hypervisor = machine.hypervisor();
        let kvm = hypervisor.as_ref().filter(|below| below.is_kvm());
        let cpuidle = Cpuidle::read(machine);
        let parameters = parameter::read(machine, Layer::Guest, kernel.version);
        let is_x86 = kernel.arch.unwrap_or_default() == Arch::X86_64;
        Guest {
            kvm_guest: kvm_guest(machine, kernel, hypervisor.as_ref(), &cpuidle, !parameters.is_empty()),
            poll_control: kvm.map(Hypervisor::poll_control),
            realtime_hint: kvm.map(Hypervisor::realtime),
            cpuidle,
            states: states(machine),
            idle_override: kernel.argument("idle").filter(|_| is_x86).map(str::to_owned),
            polls_by: polls_by(kernel),
            cpuidle_off: kernel.argument("cpuidle.off").and_then(|text| Value::parse(text).number())
                > Some(0),
            force: machine.switch("/sys/module/cpuidle_haltpoll/parameters/force"),
            dwell_idle: DwellIdle::read(machine),
            parameters,
            latency_qos_us: machine.latency_request_us(),
            zero_latency_cpus: cpus(machine, has_zero_latency),
            polling_only_cpus: cpus(machine, only_polls),
            hypervisor,
        }
    }
}

/// `hlt` takes back a `nohlt` before it.
fn polls_by(kernel: &Kernel) -> Option<&'static str> {
    let last = |words: &[&str]| kernel.command_line.iter().rev().find(|word| words.contains(&word.as_str()));
    match kernel.arch.unwrap_or_default() {
        Arch::X86_64 => (kernel.argument("idle") == Some("poll")).then_some("idle=poll"),
        Arch::Power if last(&["powersave=off"]).is_some() => Some("powersave=off"),
        Arch::Arm64 | Arch::RiscV | Arch::Power => {
            last(&["nohlt", "hlt"]).is_some_and(|word| word == "nohlt").then_some("nohlt")
        }
        Arch::S390x | Arch::LoongArch => None,
    }
}

/// Whether a machine is a guest of KVM, from CPUID, else from what only a guest of KVM has, else from the CPU's flags.
fn kvm_guest(
    machine: &dyn Machine,
    kernel: &Kernel,
    below: Option<&Hypervisor>,
    cpuidle: &Cpuidle,
    has_haltpoll: bool,
) -> Option<bool> {
    // Only x86-64 has CPUID, and only there the governor registers itself for guests of KVM alone.
    if kernel.arch.is_some_and(|arch| arch != Arch::X86_64) {
        return None;
    }
    let flags = || {
        let info = machine.text("/proc/cpuinfo")?;
        let flags = info.lines().find(|line| line.starts_with("flags"))?.split_ascii_whitespace();
        flags.into_iter().all(|flag| flag != "hypervisor").then_some(false)
    };
    match below {
        Some(below) => Some(below.is_kvm()),
        None if machine.asks_cpuid() => Some(false),
        None if cpuidle.governors.iter().chain(&cpuidle.driver).any(|name| name == HALTPOLL) => Some(true),
        // The kernel has the governor, which has found that this is none.
        None if has_haltpoll && !cpuidle.governors.is_empty() && kernel.arch.is_some() => Some(false),
        None => flags(),
    }
}

fn states(machine: &dyn Machine) -> Vec<String> {
    const CPU0: &str = "/sys/devices/system/cpu/cpu0/cpuidle";
    let name = |state: u32| machine.text(&format!("{CPU0}/state{state}/name"));
    machine.numbered(CPU0, "state").into_iter().filter_map(name).collect()
}

/// The CPUs of which, with their folder, this is so.
fn cpus(machine: &dyn Machine, is: fn(&dyn Machine, &str) -> bool) -> Vec<u32> {
    const CPUS: &str = "/sys/devices/system/cpu";
    let is = |cpu: &u32| is(machine, &format!("{CPUS}/cpu{cpu}"));
    machine.numbered(CPUS, "cpu").into_iter().filter(is).collect()
}

/// In this file `n/a` means that no latency is tolerated; 0 means that any is.
fn has_zero_latency(machine: &dyn Machine, cpu: &str) -> bool {
    machine.text(&format!("{cpu}/power/pm_qos_resume_latency_us")).is_some_and(|text| text == "n/a")
}

/// `cpupower idle-set -D 0` disables every state with a latency above 0. State 0 of x86 polls, and that of POWER.
fn only_polls(machine: &dyn Machine, cpu: &str) -> bool {
    let states = machine.numbered(&format!("{cpu}/cpuidle"), "state");
    let disabled = |state: &u32| machine.number(&format!("{cpu}/cpuidle/state{state}/disable")) > Some(0);
    let polls = || {
        machine
            .text(&format!("{cpu}/cpuidle/state0/name"))
            .is_some_and(|name| name == "POLL" || name == "snooze")
    };
    states.len() > 1 && states.iter().skip(1).all(disabled) && polls()
}
