//! Settings that do nothing, that equal others, or that do harm.

use dwell_machine::parameter::{self as param, Parameter as Value};
use dwell_machine::{Absent, Facts, Guest, Host, Hypervisor, KvmDevice, Timer, Vmm};
use dwell_policy::guest::Revision as GuestRevision;
use dwell_policy::host::{MaxSource, Revision as HostRevision};
use dwell_policy::version::Version;
use serde::{Serialize, Serializer};

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Good to know: nothing is wrong, but a value does not mean what it seems to.
    Note,
    /// Somebody has set something that does not do what it was set for.
    Warning,
    /// CPU time burns without end, or what was switched on does not come down again.
    Danger,
}

/// Something worth knowing about how this machine idles, with the values it was drawn from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "code", content = "data", rename_all = "kebab-case")]
pub enum Finding {
    /// The rules of this kernel are not among those that dwell knows.
    KernelUnknown {
        /// `uname -r`.
        release: String,
        /// The versions that are known.
        known: &'static str,
    },
    /// A parameter file holds no number.
    ParameterUnreadable {
        /// The file.
        path: String,
    },
    /// A write to `halt_poll_ns` does not reach running VMs.
    HostMaxCopied {
        /// Number of running VMs that are visible.
        vms: usize,
        /// `halt_poll_ns` now \[ns\].
        halt_poll_ns: i64,
    },
    /// `halt_poll_ns` is 0, so the other parameters are not read.
    HostPollingOff {
        /// The others that somebody has changed.
        void: Vec<&'static str>,
    },
    /// `halt_poll_ns_grow` is 0: a window never grows, and it begins at zero.
    HostNeverGrows,
    /// `halt_poll_ns_grow_start` is 0: a window of zero stays zero.
    HostWedgedAtZero,
    /// `halt_poll_ns_grow` is 1: a window is `grow_start` or nothing.
    HostGrowOne {
        /// `halt_poll_ns_grow_start` \[ns\].
        grow_start: i64,
    },
    /// `halt_poll_ns_grow_start` lies above `halt_poll_ns`: the first growth gives the maximum.
    HostGrowStartAboveMax {
        /// `halt_poll_ns_grow_start` \[ns\].
        grow_start: i64,
        /// `halt_poll_ns` \[ns\].
        max: i64,
        /// Whether a shrink below `grow_start` drops to zero on this kernel.
        drops_to_zero: bool,
    },
    /// `halt_poll_ns_shrink` is 0: one long halt drops the window to zero.
    HostShrinkZero {
        /// The default of this kernel.
        default: Option<i64>,
    },
    /// `halt_poll_ns_shrink` is 1: long halts do not shrink the window.
    HostShrinkOne,
    /// `idle=` on the kernel's command line.
    IdleOverride {
        /// Its value.
        value: String,
    },
    /// The governor haltpoll is there, but no driver lets it decide.
    HaltpollVoid {
        /// Why there is no driver.
        cause: NoDriver,
        /// The parameters that somebody has changed.
        changed: Vec<&'static str>,
    },
    /// The haltpoll driver is there, but another governor decides.
    OtherGovernor {
        /// The one in use.
        governor: String,
    },
    /// The guest polls and cannot switch the host's polling off.
    BothLayersPoll,
    /// `guest_halt_poll_allow_shrink` is N: a limit once grown never comes down.
    AllowShrinkOff,
    /// `guest_halt_poll_ns` is 0: limits do not grow.
    GuestPollingOff,
    /// `guest_halt_poll_grow_start` is 0: a limit of zero stays zero.
    GuestWedgedAtZero,
    /// `guest_halt_poll_grow_start` lies above `guest_halt_poll_ns`.
    GuestGrowStartAboveMax {
        /// `guest_halt_poll_grow_start` \[ns\].
        grow_start: i64,
        /// `guest_halt_poll_ns` \[ns\].
        max: i64,
        /// Whether a shrink below `grow_start` drops to zero on this kernel (6.9).
        drops_to_zero: bool,
    },
    /// `guest_halt_poll_grow` is 0 or 1: every growth gives the same limit.
    GuestDoesNotGrow {
        /// `guest_halt_poll_grow`.
        grow: i64,
    },
    /// `guest_halt_poll_shrink` is 0: one long halt drops the limit to zero.
    GuestShrinkZero,
    /// `guest_halt_poll_shrink` is 1: long halts do not shrink the limit.
    GuestShrinkOne,
    /// Somebody asks for no wake-up latency at all.
    LatencyQosZero {
        /// The CPUs it concerns; empty: all of them.
        cpus: Vec<u32>,
        /// Whether haltpoll decides, which then keeps a window after the request is gone.
        haltpoll: bool,
    },
    /// `pi_inject_timer` is on, but interrupts cannot be posted into guests.
    PiInjectWithoutApicv {
        /// Whether a switch for it exists and is off; else the vendor module has none.
        switched_off: bool,
    },
    /// `pi_inject_timer` is on, and this kernel posts only for VMs that execute MWAIT or HLT themselves.
    PiInjectNeedsExitsDisabled,
    /// `pi_inject_timer` is on, but no CPU was set free of ticks.
    PiInjectWithoutHousekeeping,
    /// Timers may not move to another CPU, though CPUs were set free of ticks.
    TimersStay {
        /// CPUs without a tick.
        nohz_full: String,
    },
    /// CPUs are isolated from the scheduler, but not from timers.
    IsolatedWithTimers {
        /// The isolated CPUs.
        isolated: String,
    },
    /// `preemption_timer` is off.
    NoPreemptionTimer,
    /// The timer advance is fixed or off.
    FixedAdvance {
        /// The advance \[ns\]; 0 is off.
        advance_ns: i64,
    },
    /// An iothread with `poll-max-ns=0`.
    IothreadPollingOff {
        /// Its process.
        pid: u32,
        /// Its id.
        id: String,
        /// Other polling parameters that are set, and void.
        void: Vec<&'static str>,
    },
    /// An iothread whose `poll-shrink=0` means two things in two versions of QEMU.
    IothreadShrinkZero {
        /// Its process.
        pid: u32,
        /// Its id.
        id: String,
    },
    /// `/dev/kvm` is there, but closed to this user.
    KvmDenied,
    /// Files of other processes are hidden from this user.
    ProcessesUnseen {
        /// How many.
        processes: usize,
    },
}

/// Why the haltpoll driver is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoDriver {
    /// The hypervisor is not KVM, or there is none.
    NotAKvmGuest,
    /// `idle=` on the command line.
    IdleOverride,
    /// The hypervisor gives no REALTIME hint, and nobody has forced the driver.
    NoRealtimeHint {
        /// Whether this kernel's driver has a `force` parameter (5.7).
        can_be_forced: bool,
    },
    /// Another driver is in use.
    OtherDriver,
    /// It could load, but is not there.
    NotLoaded,
}

impl Finding {
    /// How grave it is.
    pub fn severity(&self) -> Severity {
        match self {
            Finding::AllowShrinkOff | Finding::LatencyQosZero { haltpoll: true, .. } => Severity::Danger,
            Finding::IdleOverride { value } if value == "poll" => Severity::Danger,
            Finding::HostMaxCopied { vms, .. } if *vms > 0 => Severity::Warning,
            Finding::HostPollingOff { void } if !void.is_empty() => Severity::Warning,
            Finding::HaltpollVoid { changed, .. } if !changed.is_empty() => Severity::Warning,
            Finding::IothreadPollingOff { void, .. } if !void.is_empty() => Severity::Warning,
            Finding::HostNeverGrows
            | Finding::HostWedgedAtZero
            | Finding::HostShrinkOne
            | Finding::OtherGovernor { .. }
            | Finding::BothLayersPoll
            | Finding::GuestWedgedAtZero
            | Finding::GuestShrinkOne
            | Finding::LatencyQosZero { .. }
            | Finding::PiInjectWithoutApicv { .. }
            | Finding::TimersStay { .. }
            | Finding::ParameterUnreadable { .. } => Severity::Warning,
            _ => Severity::Note,
        }
    }

    /// What is the case.
    pub fn what(&self) -> String {
        match self {
            Finding::KernelUnknown { release, known } => {
                format!("kernel {release} is outside the versions whose rules dwell knows ({known})")
            }
            Finding::ParameterUnreadable { path } => format!("{path} holds no number"),
            Finding::HostMaxCopied { vms: 0, .. } => {
                "this kernel copies halt_poll_ns when a VM is created".to_owned()
            }
            Finding::HostMaxCopied { vms, halt_poll_ns } => format!(
                "halt_poll_ns = {halt_poll_ns} ns may not be what the {vms} running VM{} use{}",
                if *vms == 1 { "" } else { "s" },
                if *vms == 1 { "s" } else { "" }
            ),
            Finding::HostPollingOff { void } if void.is_empty() => {
                "halt_poll_ns = 0: the host never polls".to_owned()
            }
            Finding::HostPollingOff { void } => format!("halt_poll_ns = 0 makes {} void", void.join(", ")),
            Finding::HostNeverGrows => "halt_poll_ns_grow = 0: the host never polls".to_owned(),
            Finding::HostWedgedAtZero => "halt_poll_ns_grow_start = 0: the host never polls".to_owned(),
            Finding::HostGrowOne { grow_start } => {
                format!("halt_poll_ns_grow = 1: a window is {grow_start} ns or nothing")
            }
            Finding::HostGrowStartAboveMax { grow_start, max, .. } => {
                format!("halt_poll_ns_grow_start = {grow_start} ns lies above halt_poll_ns = {max} ns")
            }
            Finding::HostShrinkZero { .. } => {
                "halt_poll_ns_shrink = 0: one long halt drops the window to zero".to_owned()
            }
            Finding::HostShrinkOne => {
                "halt_poll_ns_shrink = 1: long halts do not shrink the window".to_owned()
            }
            Finding::IdleOverride { value } if value == "poll" => {
                "idle=poll on the kernel's command line: no CPU ever halts".to_owned()
            }
            Finding::IdleOverride { value } => format!("idle={value} on the kernel's command line"),
            Finding::HaltpollVoid { changed, .. } if changed.is_empty() => {
                "the haltpoll governor is there, but no driver lets it decide".to_owned()
            }
            Finding::HaltpollVoid { changed, .. } => {
                format!("{} void: no cpuidle driver lets haltpoll decide", changed.join(", "))
            }
            Finding::OtherGovernor { governor } => {
                format!("the haltpoll driver is there, but governor {governor} decides")
            }
            Finding::BothLayersPoll => "guest and host both poll".to_owned(),
            Finding::AllowShrinkOff => {
                "guest_halt_poll_allow_shrink = N: a limit once grown never comes down".to_owned()
            }
            Finding::GuestPollingOff => "guest_halt_poll_ns = 0: limits do not grow".to_owned(),
            Finding::GuestWedgedAtZero => {
                "guest_halt_poll_grow_start = 0: a limit of zero stays zero".to_owned()
            }
            Finding::GuestGrowStartAboveMax { grow_start, max, .. } => {
                format!(
                    "guest_halt_poll_grow_start = {grow_start} ns lies above guest_halt_poll_ns = {max} ns"
                )
            }
            Finding::GuestDoesNotGrow { grow } => {
                format!("guest_halt_poll_grow = {grow}: every growth gives grow_start")
            }
            Finding::GuestShrinkZero => {
                "guest_halt_poll_shrink = 0: one long halt drops the limit to zero".to_owned()
            }
            Finding::GuestShrinkOne => {
                "guest_halt_poll_shrink = 1: long halts do not shrink the limit".to_owned()
            }
            Finding::LatencyQosZero { cpus, .. } if cpus.is_empty() => {
                "somebody asks for a wake-up latency of 0 on all CPUs (/dev/cpu_dma_latency)".to_owned()
            }
            Finding::LatencyQosZero { cpus, .. } => {
                let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
                format!("a wake-up latency of 0 is asked for on CPU {}", cpus.join(", "))
            }
            Finding::PiInjectWithoutApicv { switched_off: true } => {
                "pi_inject_timer is on, but APICv (AVIC) is off".to_owned()
            }
            Finding::PiInjectWithoutApicv { switched_off: false } => {
                "pi_inject_timer is on, but this flavour of KVM has no APICv or AVIC".to_owned()
            }
            Finding::PiInjectNeedsExitsDisabled => {
                "pi_inject_timer works only for VMs that execute MWAIT or HLT themselves".to_owned()
            }
            Finding::PiInjectWithoutHousekeeping => "pi_inject_timer is on without nohz_full=".to_owned(),
            Finding::TimersStay { nohz_full } => {
                format!("kernel.timer_migration = 0 keeps timers on the CPUs without a tick ({nohz_full})")
            }
            Finding::IsolatedWithTimers { isolated } => {
                format!("CPUs {isolated} are isolated, but timers still fire there")
            }
            Finding::NoPreemptionTimer => "preemption_timer is off".to_owned(),
            Finding::FixedAdvance { advance_ns: 0 } => "the timer advance is off".to_owned(),
            Finding::FixedAdvance { advance_ns } => {
                format!("lapic_timer_advance_ns = {advance_ns}: fixed, not learned")
            }
            Finding::IothreadPollingOff { pid, id, void } if void.is_empty() => {
                format!("iothread {id} of process {pid} never polls (poll-max-ns=0)")
            }
            Finding::IothreadPollingOff { pid, id, void } => {
                format!("poll-max-ns=0 makes {} void (iothread {id} of process {pid})", void.join(", "))
            }
            Finding::IothreadShrinkZero { pid, id } => {
                format!("iothread {id} of process {pid} has poll-shrink=0")
            }
            Finding::KvmDenied => "/dev/kvm is closed to this user".to_owned(),
            Finding::ProcessesUnseen { processes } => {
                format!("the open files of {processes} processes are hidden; VMs may be among them")
            }
        }
    }

    /// Why it is so, or why it matters.
    pub fn why(&self) -> &'static str {
        match self {
            Finding::KernelUnknown { .. } => {
                "defaults and effects below are those of no known version, and left out"
            }
            Finding::ParameterUnreadable { .. } => "the effect of the setting cannot be told",
            Finding::HostMaxCopied { .. } => {
                "from 5.8 to 6.0 a VM keeps the value of its creation; 6.1 reads it at every halt again"
            }
            Finding::HostPollingOff { .. } => {
                "with a maximum of 0 the window is 0 after every halt, whatever the rest"
            }
            Finding::HostNeverGrows => {
                "a window begins at zero and nothing makes it larger; the same as halt_poll_ns = 0"
            }
            Finding::HostWedgedAtZero => {
                "growth from zero gives zero times the factor, at least grow_start: zero; the same as halt_poll_ns = 0"
            }
            Finding::HostGrowOne { .. } => {
                "growth multiplies by 1, and the least that it gives is grow_start"
            }
            Finding::HostGrowStartAboveMax { drops_to_zero: true, .. } => {
                "the first growth gives the maximum at once, and a shrink goes to zero: any larger value acts the same"
            }
            Finding::HostGrowStartAboveMax { .. } => {
                "the first growth gives the maximum at once: any larger value acts the same"
            }
            Finding::HostShrinkZero { default: Some(0) } => "the default of this kernel; since 6.11 it is 2",
            Finding::HostShrinkZero { .. } => {
                "the window then has to grow again from grow_start, one halt after another"
            }
            Finding::HostShrinkOne => "the full window is polled in vain before every long halt",
            Finding::IdleOverride { value } if value == "poll" => {
                "every idle CPU burns 100 %, and the haltpoll driver refuses to load"
            }
            Finding::IdleOverride { .. } => "the haltpoll driver refuses to load with any idle=",
            Finding::HaltpollVoid { cause, .. } => cause.why(),
            Finding::OtherGovernor { .. } => "guest_halt_poll_* are read by the governor haltpoll only",
            Finding::BothLayersPoll => {
                "the hypervisor offers no poll control, so after the guest has polled in vain the host polls once more"
            }
            Finding::AllowShrinkOff => "it is polled in full before every halt, however idle the CPU is",
            Finding::GuestPollingOff => {
                "no halt is within a maximum of 0, so growth never happens; limits only shrink"
            }
            Finding::GuestWedgedAtZero => {
                "growth from zero gives zero times the factor, at least grow_start: zero"
            }
            Finding::GuestGrowStartAboveMax { drops_to_zero: true, .. } => {
                "the maximum wins: the first growth gives it at once, and the first shrink drops to zero; any larger value \
                 acts the same"
            }
            Finding::GuestGrowStartAboveMax { .. } => {
                "the maximum wins: the first growth gives it at once; any larger value acts the same"
            }
            Finding::GuestDoesNotGrow { .. } => {
                "the product is never above grow_start, which is the least that growth gives"
            }
            Finding::GuestShrinkZero => {
                "the limit then has to grow again from grow_start, one halt after another"
            }
            Finding::GuestShrinkOne => "the full limit is polled in vain before every long halt",
            Finding::LatencyQosZero { haltpoll: true, .. } => {
                "the CPU polls without end, and when the request is gone a default window stays behind"
            }
            Finding::LatencyQosZero { .. } => {
                "the shallowest idle state is taken always; in a guest that is polling"
            }
            Finding::PiInjectWithoutApicv { .. } => {
                "a timer can be posted into a running guest only with APICv or AVIC"
            }
            Finding::PiInjectNeedsExitsDisabled => {
                "since 5.18 (and in stable 5.4, 5.10, 5.15) other VMs take the ordinary path; which VMs those are cannot be \
                 seen from outside"
            }
            Finding::PiInjectWithoutHousekeeping => {
                "a timer that fires on the vCPU's own CPU exits the guest all the same; it takes other CPUs to fire it"
            }
            Finding::TimersStay { .. } => {
                "each timer fires on the CPU that armed it, and interrupts the guest there"
            }
            Finding::IsolatedWithTimers { .. } => {
                "isolcpus= alone takes no timers away, and pi_inject_timer switches itself on only with nohz_full="
            }
            Finding::NoPreemptionTimer => {
                "every timer of a running guest then costs a host interrupt and an exit"
            }
            Finding::FixedAdvance { advance_ns: 0 } => {
                "timers reach the guest late by the whole way through the host"
            }
            Finding::FixedAdvance { .. } => {
                "too large wastes CPU spinning, too small fires late; learning finds it by itself"
            }
            Finding::IothreadPollingOff { .. } => "with a maximum of 0 the event loop sleeps at once",
            Finding::IothreadShrinkZero { .. } => {
                "before QEMU 11.1 it means \"drop to zero at once\", since 11.1 it stands for the default, 2"
            }
            Finding::KvmDenied => "VMs of this user cannot use KVM",
            Finding::ProcessesUnseen { .. } => "only root sees what other users' processes have open",
        }
    }

    /// What to do about it, in one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Finding::KernelUnknown { .. } => {
                "give a version whose rule fits with --kernel where a command takes it"
            }
            Finding::ParameterUnreadable { .. } => "look at the file as root",
            Finding::HostMaxCopied { .. } => {
                "restart or migrate VMs after a write, or have the VMM set KVM_CAP_HALT_POLL, or use 6.1"
            }
            Finding::HostPollingOff { .. } => "nothing, if that is meant; else set halt_poll_ns",
            Finding::HostNeverGrows => {
                "set halt_poll_ns_grow=2 (the default); to switch polling off, halt_poll_ns=0 says so"
            }
            Finding::HostWedgedAtZero => {
                "set halt_poll_ns_grow_start=10000 (the default); to switch polling off, halt_poll_ns=0 says so"
            }
            Finding::HostGrowOne { .. } => "nothing, if a fixed window is meant; the default is 2",
            Finding::HostGrowStartAboveMax { .. } => {
                "to say the same plainly: halt_poll_ns_grow_start = halt_poll_ns"
            }
            Finding::HostShrinkZero { .. } => {
                "halt_poll_ns_shrink=2 where wakes come in bursts; dwell tune tells"
            }
            Finding::HostShrinkOne => "set halt_poll_ns_shrink=2, or 0",
            Finding::IdleOverride { value } if value == "poll" => {
                "remove it and use haltpoll, which polls for a while and then halts"
            }
            Finding::IdleOverride { .. } => "remove it if haltpoll is wanted",
            Finding::HaltpollVoid { cause, .. } => cause.remedy(),
            Finding::OtherGovernor { .. } => {
                "echo haltpoll > /sys/devices/system/cpu/cpuidle/current_governor, and drop cpuidle.governor="
            }
            Finding::BothLayersPoll => {
                "update the host, or set halt_poll_ns=0 there (or KVM_CAP_HALT_POLL 0 for this VM)"
            }
            Finding::AllowShrinkOff => {
                "set shrink=0, guest_halt_poll_ns=1000, allow_shrink=Y, wait a second, then write the values wanted"
            }
            Finding::GuestPollingOff => "nothing, if that is meant",
            Finding::GuestWedgedAtZero => "set guest_halt_poll_grow_start=50000 (the default)",
            Finding::GuestGrowStartAboveMax { .. } => {
                "to say the same plainly: guest_halt_poll_grow_start = guest_halt_poll_ns"
            }
            Finding::GuestDoesNotGrow { .. } => "nothing, if a fixed limit is meant; the default is 2",
            Finding::GuestShrinkZero => "nothing, if that is meant; the default is 2",
            Finding::GuestShrinkOne => "set guest_halt_poll_shrink=2 (the default)",
            Finding::LatencyQosZero { haltpoll: true, .. } => {
                "end who holds it (lsof /dev/cpu_dma_latency); then write any cpuidle state attribute, which zeroes the window"
            }
            Finding::LatencyQosZero { .. } => {
                "end who holds it (lsof /dev/cpu_dma_latency), or ask for 1 us instead"
            }
            Finding::PiInjectWithoutApicv { switched_off: true } => {
                "load kvm_intel with enable_apicv=1 (kvm_amd with avic=1), or set pi_inject_timer=0"
            }
            Finding::PiInjectWithoutApicv { .. } => "set pi_inject_timer=0: it changes nothing here",
            Finding::PiInjectNeedsExitsDisabled => {
                "start such VMs with QEMU's -overcommit cpu-pm=on, on CPUs of their own"
            }
            Finding::PiInjectWithoutHousekeeping => {
                "boot with nohz_full= for the CPUs of VMs and leave others to the host"
            }
            Finding::TimersStay { .. } => "sysctl kernel.timer_migration=1",
            Finding::IsolatedWithTimers { .. } => "boot with nohz_full= for the same CPUs",
            Finding::NoPreemptionTimer => "load kvm_intel with preemption_timer=1 (the default)",
            Finding::FixedAdvance { .. } => {
                "lapic_timer_advance_ns=-1, or lapic_timer_advance=Y since 6.12, when kvm loads"
            }
            Finding::IothreadPollingOff { .. } => {
                "nothing, if that is meant; else set poll-max-ns (the default is 32768)"
            }
            Finding::IothreadShrinkZero { .. } => {
                "write the divisor that is meant; 2 halves in every version"
            }
            Finding::KvmDenied => "join the group that owns it (usually kvm)",
            Finding::ProcessesUnseen { .. } => "run as root",
        }
    }
}

impl NoDriver {
    fn why(self) -> &'static str {
        match self {
            NoDriver::NotAKvmGuest => {
                "the driver and the governor need KVM's signature in CPUID, and it is not there"
            }
            NoDriver::IdleOverride => "the driver refuses to load with idle= on the kernel's command line",
            NoDriver::NoRealtimeHint { .. } => {
                "the driver loads only if the hypervisor gives the REALTIME hint (or if forced), so its parameters are not read"
            }
            NoDriver::OtherDriver => "another cpuidle driver is registered, and only one can be",
            NoDriver::NotLoaded => "without the driver cpuidle-haltpoll nobody reads these parameters",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            NoDriver::NotAKvmGuest => "nothing to do here",
            NoDriver::IdleOverride => "remove idle= from the command line",
            NoDriver::NoRealtimeHint { can_be_forced: true } => {
                "boot with cpuidle_haltpoll.force=1 (a module: modprobe cpuidle-haltpoll force=1), or start the VM with \
                 -cpu …,kvm-hint-dedicated=on"
            }
            NoDriver::NoRealtimeHint { can_be_forced: false } => {
                "start the VM with -cpu …,kvm-hint-dedicated=on, or use 5.7, whose driver can be forced"
            }
            NoDriver::OtherDriver => "boot with intel_idle.max_cstate=0 if haltpoll is wanted",
            NoDriver::NotLoaded => "modprobe cpuidle-haltpoll",
        }
    }
}

/// For JSON: the finding with its words.
#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    severity: Severity,
    what: String,
    why: &'static str,
    remedy: &'static str,
}

/// Findings as JSON has them: code and values, then severity, what, why and remedy in words.
pub(super) fn explained<S: Serializer>(findings: &[Finding], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(findings.iter().map(|finding| Explained {
        finding,
        severity: finding.severity(),
        what: finding.what(),
        why: finding.why(),
        remedy: finding.remedy(),
    }))
}

/// Everything that is to be said of a machine, the gravest first.
pub(super) fn of(report: &Facts) -> Vec<Finding> {
    let version = report.kernel.version;
    let mut findings = vec![];
    if let Some(release) = report.kernel.release.clone().filter(|_| !report.kernel.rules_known) {
        findings.push(Finding::KernelUnknown { release, known: report.kernel.known });
    }
    let values = [&report.host.parameters, &report.guest.parameters, &report.timer.parameters];
    let unreadable = values.into_iter().flatten().filter(|value| value.value.is_none());
    findings.extend(unreadable.map(|value| Finding::ParameterUnreadable { path: value.path.clone() }));
    host(&report.host, version, &mut findings);
    guest(&report.guest, version, &mut findings);
    timer(&report.timer, report.host.kvm.is_some(), &mut findings);
    report.vmms.iter().for_each(|vmm| iothreads(vmm, &mut findings));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity()));
    findings
}

fn changed(values: &[Value]) -> Vec<&'static str> {
    values.iter().filter(|value| value.changed()).map(|value| value.name).collect()
}

fn host(host: &Host, version: Option<Version>, findings: &mut Vec<Finding>) {
    if matches!(host.device, KvmDevice::Closed { why: Absent::Denied }) {
        findings.push(Finding::KvmDenied);
    }
    if host.kvm.is_some() && host.unseen_processes > 0 {
        findings.push(Finding::ProcessesUnseen { processes: host.unseen_processes });
    }
    let get = |name| param::get(&host.parameters, name);
    let Some(max) = get("halt_poll_ns") else { return };
    let revision = version.and_then(|version| HostRevision::of(version).ok());
    if revision.is_some_and(|revision| revision.max_source() == MaxSource::CopiedAtCreation) {
        let vms = host.vms.iter().map(|vm| vm.count).sum();
        findings.push(Finding::HostMaxCopied { vms, halt_poll_ns: max });
    }
    if max == 0 {
        findings.push(Finding::HostPollingOff { void: changed(&host.parameters[1..]) });
        return;
    }
    match (get("halt_poll_ns_grow"), get("halt_poll_ns_grow_start")) {
        (Some(0), _) => findings.push(Finding::HostNeverGrows),
        (_, Some(0)) => findings.push(Finding::HostWedgedAtZero),
        (_, Some(grow_start)) if grow_start > max => {
            let drops_to_zero = revision.is_some_and(HostRevision::shrinks_to_zero_below_grow_start);
            findings.push(Finding::HostGrowStartAboveMax { grow_start, max, drops_to_zero });
        }
        (Some(1), Some(grow_start)) => findings.push(Finding::HostGrowOne { grow_start }),
        _ => {}
    }
    match get("halt_poll_ns_shrink") {
        Some(0) => {
            let default = host.parameters.iter().find(|value| value.name == "halt_poll_ns_shrink");
            findings.push(Finding::HostShrinkZero { default: default.and_then(|value| value.default) });
        }
        Some(1) => findings.push(Finding::HostShrinkOne),
        _ => {}
    }
}

fn guest(guest: &Guest, version: Option<Version>, findings: &mut Vec<Finding>) {
    if let Some(value) = guest.idle_override.clone() {
        findings.push(Finding::IdleOverride { value });
    }
    let decides = guest.cpuidle.haltpoll_decides();
    if guest.cpuidle.driver.is_some()
        && (guest.latency_qos_us == Some(0) || !guest.zero_latency_cpus.is_empty())
    {
        let cpus = if guest.latency_qos_us == Some(0) { vec![] } else { guest.zero_latency_cpus.clone() };
        findings.push(Finding::LatencyQosZero { cpus, haltpoll: decides });
    }
    if guest.cpuidle.driver.as_deref() == Some("haltpoll") && !decides {
        findings
            .push(Finding::OtherGovernor { governor: guest.cpuidle.governor.clone().unwrap_or_default() });
        return;
    }
    if guest.parameters.is_empty() {
        return;
    }
    if !decides {
        let changed = changed(&guest.parameters);
        findings.push(Finding::HaltpollVoid { cause: no_driver(guest, version), changed });
        return;
    }
    if guest.poll_control == Some(false) {
        findings.push(Finding::BothLayersPoll);
    }
    haltpoll(guest, version, findings);
}

/// Why no driver lets the governor decide; in the order in which the driver itself looks.
fn no_driver(guest: &Guest, version: Option<Version>) -> NoDriver {
    if guest.cpuidle.driver.is_some() {
        NoDriver::OtherDriver
    } else if guest.idle_override.is_some() {
        NoDriver::IdleOverride
    } else if !guest.hypervisor.as_ref().is_some_and(Hypervisor::is_kvm) {
        NoDriver::NotAKvmGuest
    } else if guest.realtime_hint != Some(true) && guest.force != Some(true) {
        let can_be_forced = guest.force.is_some() || version.is_some_and(|version| version.at_least(5, 7));
        NoDriver::NoRealtimeHint { can_be_forced }
    } else {
        NoDriver::NotLoaded
    }
}

fn haltpoll(guest: &Guest, version: Option<Version>, findings: &mut Vec<Finding>) {
    let get = |name| param::get(&guest.parameters, name);
    let shrinks = get("guest_halt_poll_allow_shrink") != Some(0);
    if !shrinks {
        findings.push(Finding::AllowShrinkOff);
    }
    let Some(max) = get("guest_halt_poll_ns") else { return };
    if max == 0 {
        findings.push(Finding::GuestPollingOff);
        return;
    }
    match (get("guest_halt_poll_grow"), get("guest_halt_poll_grow_start")) {
        (_, Some(0)) => findings.push(Finding::GuestWedgedAtZero),
        (_, Some(grow_start)) if grow_start > max => {
            let revision = version.and_then(|version| GuestRevision::of(version).ok());
            let drops_to_zero = revision.is_some_and(GuestRevision::shrinks_to_zero_below_grow_start);
            findings.push(Finding::GuestGrowStartAboveMax { grow_start, max, drops_to_zero });
        }
        (Some(grow @ 0..=1), _) => findings.push(Finding::GuestDoesNotGrow { grow }),
        _ => {}
    }
    match get("guest_halt_poll_shrink").filter(|_| shrinks) {
        Some(0) => findings.push(Finding::GuestShrinkZero),
        Some(1) => findings.push(Finding::GuestShrinkOne),
        _ => {}
    }
}

fn timer(timer: &Timer, kvm: bool, findings: &mut Vec<Finding>) {
    let get = |name| param::get(&timer.parameters, name);
    let posts = get("pi_inject_timer").is_some_and(|value| value > 0);
    if posts && timer.apicv.is_none_or(|switch| !switch.on) {
        findings.push(Finding::PiInjectWithoutApicv { switched_off: timer.apicv.is_some() });
    } else if posts && timer.posting_needs_disabled_exits() {
        findings.push(Finding::PiInjectNeedsExitsDisabled);
    }
    if posts && timer.nohz_full.is_empty() {
        findings.push(Finding::PiInjectWithoutHousekeeping);
    }
    if timer.timer_migration == Some(false) && !timer.nohz_full.is_empty() {
        findings.push(Finding::TimersStay { nohz_full: timer.nohz_full.clone() });
    }
    if kvm && !timer.isolated.is_empty() && timer.nohz_full.is_empty() {
        findings.push(Finding::IsolatedWithTimers { isolated: timer.isolated.clone() });
    }
    if timer.preemption_timer == Some(false) {
        findings.push(Finding::NoPreemptionTimer);
    }
    let fixed = get("lapic_timer_advance_ns").filter(|value| *value >= 0);
    let off = get("lapic_timer_advance").filter(|value| *value == 0);
    findings.extend(fixed.or(off).map(|advance_ns| Finding::FixedAdvance { advance_ns }));
}

fn iothreads(vmm: &Vmm, findings: &mut Vec<Finding>) {
    if !vmm.is_qemu() {
        return;
    }
    for thread in &vmm.io_threads {
        let id = thread.id.clone().unwrap_or_default();
        let set = |name: &str| thread.parameters.get(name).copied();
        if set("poll-max-ns") == Some(0) {
            let void = thread.parameters.keys().copied().filter(|name| *name != "poll-max-ns").collect();
            findings.push(Finding::IothreadPollingOff { pid: vmm.pid, id, void });
        } else if set("poll-shrink") == Some(0) && !vmm.at_least_version.is_some_and(|v| v.at_least(11, 1)) {
            findings.push(Finding::IothreadShrinkZero { pid: vmm.pid, id });
        }
    }
}
