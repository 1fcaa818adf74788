//! What can be recorded here, and what it takes where it cannot.

use super::facilities::{Facilities, Mounted, Perf};
use crate::kvm_stats::SourceError;
use dwell_machine::{Absent, Host, KvmDevice};
use serde::{Serialize, Serializer, ser::SerializeStruct};

/// One thing that can be recorded.
#[derive(Clone, Debug, Serialize)]
pub struct Recorder {
    /// What it is called on the command line.
    pub name: &'static str,
    pub about: &'static str,
    /// Whether it works here.
    pub verdict: Support,
    /// Obstacles, or what will be missing.
    pub obstacles: Vec<Obstacle>,
}

/// Whether something can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    Yes,
    /// Not all of it, or nothing right now.
    Partly,
    /// Not at all.
    No,
    /// The files of another machine do not show it.
    NotKnown,
}

/// Why a recorder cannot record, or not everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The kernel has no KVM.
    NoKvm,
    /// No VM runs, so there is nothing to record.
    NoVm,
    /// The kernel has no tracefs.
    NoTracefs,
    /// tracefs is not mounted, and this user may not mount it.
    TracefsNotMounted,
    /// tracefs is closed to this user.
    TracefsDenied { at: String },
    /// A tracepoint without which nothing works.
    NoTracepoint {
        /// `group:name`, or several of which one would do.
        name: &'static str,
    },
    /// A tracepoint without which something is missing.
    LessWithout {
        /// `group:name`.
        name: &'static str,
        what: &'static str,
    },
    /// perf is closed to this user.
    PerfDenied {
        /// `kernel.perf_event_paranoid`.
        paranoid: Option<i64>,
    },
    /// There is no perf.
    NoPerf,
    /// The kernel has no debugfs.
    NoDebugfs,
    /// debugfs is not mounted, and this user may not mount it.
    DebugfsNotMounted,
    /// debugfs is closed to this user.
    DebugfsDenied,
    /// The kernel is locked down: it hides KVM's counters in debugfs from everybody.
    DebugfsLockedDown {
        /// Whether some VMM keeps its statistics files open, which can be read all the same.
        stats_open: bool,
    },
    /// KVM does not show its statistics in debugfs.
    NoKvmStatistics,
    /// The files are those of another machine, so its kernel cannot be queried.
    NotAsked,
}

/// Either of these would do.
pub(super) const NO_SYSCALLS: &str = "syscalls:sys_enter_ppoll or raw_syscalls:sys_enter";

impl Obstacle {
    /// Whether it makes recording impossible.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Obstacle::NoVm | Obstacle::LessWithout { .. } | Obstacle::NotAsked)
    }

    /// What it is, in a few words.
    pub fn what(&self) -> String {
        match self {
            Obstacle::NoKvm => "this kernel has no KVM".to_owned(),
            Obstacle::NoVm => "no running VM is visible".to_owned(),
            Obstacle::NoTracefs => "this kernel has no tracefs".to_owned(),
            Obstacle::TracefsNotMounted => "tracefs is not mounted".to_owned(),
            Obstacle::TracefsDenied { at } => format!("{at} is closed to this user"),
            Obstacle::NoTracepoint { name } => format!("no tracepoint {name}"),
            Obstacle::LessWithout { name, what } => format!("no tracepoint {name}: {what}"),
            Obstacle::PerfDenied { paranoid: Some(level) } => {
                format!("perf may not trace all tasks (kernel.perf_event_paranoid = {level})")
            }
            Obstacle::PerfDenied { paranoid: None } => "perf may not trace all tasks".to_owned(),
            Obstacle::NoPerf => "no perf_event_open".to_owned(),
            Obstacle::NoDebugfs => "this kernel has no debugfs".to_owned(),
            Obstacle::DebugfsNotMounted => "debugfs is not mounted".to_owned(),
            Obstacle::DebugfsDenied => "debugfs is closed to this user".to_owned(),
            Obstacle::DebugfsLockedDown { .. } => {
                "the kernel is locked down: debugfs hides KVM's counters, from root too".to_owned()
            }
            Obstacle::NoKvmStatistics => "KVM shows no statistics in debugfs".to_owned(),
            Obstacle::NotAsked => "not known for the files of another machine".to_owned(),
        }
    }

    /// What to do about it, in one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Obstacle::NoKvm => {
                "load it: modprobe kvm_intel (or kvm_amd); in a guest, switch nested virtualization on"
            }
            Obstacle::NoVm => "start a VM, or look as root: another user's VMs are not visible",
            Obstacle::NoTracefs => "needs a kernel with CONFIG_FTRACE and CONFIG_TRACEPOINTS",
            Obstacle::TracefsNotMounted => "run as root: dwell then mounts it for itself alone",
            Obstacle::TracefsDenied { .. } => "run as root, or open it: mount -o remount,mode=755 PATH",
            Obstacle::NoTracepoint { name } if name.starts_with("kvm:") => {
                "load the kvm module, or use a newer kernel"
            }
            Obstacle::NoTracepoint { name: NO_SYSCALLS } => "needs a kernel with CONFIG_FTRACE_SYSCALLS",
            Obstacle::NoTracepoint { .. } => "needs a kernel with CONFIG_TRACEPOINTS",
            Obstacle::LessWithout { name: "power:guest_halt_poll_ns", .. } => "needs Linux 6.0 or later",
            Obstacle::LessWithout { .. } => {
                "nothing to do; the metadata of the recording has what it includes"
            }
            Obstacle::PerfDenied { .. } => {
                "run as root, or: setcap cap_perfmon+ep dwell, or: sysctl kernel.perf_event_paranoid=-1"
            }
            Obstacle::NoPerf => {
                "needs CONFIG_PERF_EVENTS, and a sandbox (seccomp) that lets perf_event_open through"
            }
            Obstacle::NoDebugfs => {
                "needs CONFIG_DEBUG_FS; a VMM of your own can read its statistics files (Linux 5.14)"
            }
            Obstacle::DebugfsNotMounted => "run as root: dwell then mounts it for itself alone",
            Obstacle::DebugfsDenied => "run as root",
            Obstacle::DebugfsLockedDown { .. } => {
                "use a VMM that keeps its statistics files open (QEMU 8.1 or later), or dwell record host"
            }
            Obstacle::NoKvmStatistics => "load the kvm module",
            Obstacle::NotAsked => "run dwell doctor on that machine",
        }
    }
}

impl Serialize for Obstacle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Obstacle", 3)?;
        fields.serialize_field("what", &self.what())?;
        fields.serialize_field("fatal", &self.is_fatal())?;
        fields.serialize_field("remedy", self.remedy())?;
        fields.end()
    }
}

/// Every recorder and what it can do here.
pub(super) fn all(host: &Host, facilities: &Facilities) -> Vec<Recorder> {
    let mut all = everything(host, facilities);
    if facilities.perf == Perf::NotAsked {
        // What files do not show may be there all the same.
        all.iter_mut().for_each(|one| *one = recorder(one.name, one.about, vec![Obstacle::NotAsked]));
    }
    all
}

fn everything(host: &Host, facilities: &Facilities) -> Vec<Recorder> {
    vec![
        recorder("record host", "halts of vCPUs, from KVM's tracepoints", host_obstacles(host, facilities)),
        recorder("record guest", "idle periods of this machine's CPUs", guest_obstacles(facilities)),
        recorder("record thread", "blocking calls of any event loop", thread_obstacles(facilities)),
        recorder(
            "bound",
            "what any setting could gain at most, from KVM's counters",
            bound_obstacles(host, facilities),
        ),
    ]
}

fn recorder(name: &'static str, about: &'static str, obstacles: Vec<Obstacle>) -> Recorder {
    let verdict = if obstacles.contains(&Obstacle::NotAsked) {
        Support::NotKnown
    } else if obstacles.iter().any(Obstacle::is_fatal) {
        Support::No
    } else if obstacles.is_empty() {
        Support::Yes
    } else {
        Support::Partly
    };
    Recorder { name, about, verdict, obstacles }
}

fn host_obstacles(host: &Host, facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = kvm_obstacles(host);
    if obstacles.contains(&Obstacle::NoKvm) {
        return obstacles;
    }
    obstacles.extend(tracing_obstacles(facilities));
    need(facilities, "kvm:kvm_vcpu_wakeup", &mut obstacles);
    less(facilities, "kvm:kvm_halt_poll_ns", "windows cannot be checked", &mut obstacles);
    obstacles
}

fn guest_obstacles(facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = tracing_obstacles(facilities);
    need(facilities, "sched:sched_waking", &mut obstacles);
    less(facilities, "power:cpu_idle", "idle periods come from context switches instead", &mut obstacles);
    less(facilities, "power:guest_halt_poll_ns", "windows of haltpoll cannot be checked", &mut obstacles);
    obstacles
}

fn thread_obstacles(facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = tracing_obstacles(facilities);
    // Single calls if there are tracepoints for them, else all calls.
    let either = ["syscalls:sys_enter_ppoll", "raw_syscalls:sys_enter"];
    if either.iter().all(|name| facilities.has(name) == Some(false)) {
        obstacles.push(Obstacle::NoTracepoint { name: NO_SYSCALLS });
    }
    obstacles
}

fn bound_obstacles(host: &Host, facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = kvm_obstacles(host);
    if obstacles.contains(&Obstacle::NoKvm) {
        return obstacles;
    }
    // VMMs that keep their statistics files open can be read without debugfs.
    let stats_open = host.vms.iter().any(|vm| vm.stats_open);
    obstacles.extend(facilities.kvm_statistics_error.and_then(|error| match error {
        SourceError::NoKvm => Some(Obstacle::NoKvmStatistics),
        SourceError::Denied => Some(Obstacle::DebugfsDenied),
        SourceError::LockedDown => Some(Obstacle::DebugfsLockedDown { stats_open }),
        SourceError::NotMounted if facilities.debugfs == Mounted::Unknown => Some(Obstacle::NoDebugfs),
        SourceError::NotMounted => Some(Obstacle::DebugfsNotMounted),
        SourceError::NoVm | SourceError::NotAVm { .. } => None,
    }));
    obstacles
}

fn kvm_obstacles(host: &Host) -> Vec<Obstacle> {
    let gone = host.kvm.is_none()
        && matches!(host.device, KvmDevice::Closed { why: Absent::Missing } | KvmDevice::NotAsked);
    if gone {
        vec![Obstacle::NoKvm]
    } else if host.vms.is_empty() {
        vec![Obstacle::NoVm]
    } else {
        vec![]
    }
}

fn tracing_obstacles(facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = vec![];
    match &facilities.tracefs {
        Mounted::Unknown => obstacles.push(Obstacle::NoTracefs),
        Mounted::No if !facilities.may_mount() => obstacles.push(Obstacle::TracefsNotMounted),
        Mounted::Denied { at } => obstacles.push(Obstacle::TracefsDenied { at: at.clone() }),
        Mounted::No | Mounted::At { .. } => {}
    }
    match facilities.perf {
        Perf::Allowed => {}
        Perf::Denied => obstacles.push(Obstacle::PerfDenied { paranoid: facilities.perf_event_paranoid }),
        Perf::Missing => obstacles.push(Obstacle::NoPerf),
        Perf::NotAsked => {}
    }
    obstacles
}

fn need(facilities: &Facilities, name: &'static str, obstacles: &mut Vec<Obstacle>) {
    if facilities.has(name) == Some(false) {
        obstacles.push(Obstacle::NoTracepoint { name });
    }
}

fn less(facilities: &Facilities, name: &'static str, what: &'static str, obstacles: &mut Vec<Obstacle>) {
    if facilities.has(name) == Some(false) {
        obstacles.push(Obstacle::LessWithout { name, what });
    }
}
