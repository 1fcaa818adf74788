//! What can be recorded here, and what it takes where it cannot.

use super::facilities::{Facilities, Mounted, Perf};
use crate::kvm_stats::SourceError;
use dwell_machine::{Absence, Absent, Host, KvmDevice};
use serde::Serialize;

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// What it is, in a few words.
    pub what: String,
    /// Whether it makes recording impossible.
    pub fatal: bool,
    /// What to do about it, in one line.
    pub remedy: &'static str,
}

impl Obstacle {
    fn fatal(what: impl Into<String>, remedy: &'static str) -> Obstacle {
        Obstacle { what: what.into(), fatal: true, remedy }
    }

    fn partial(what: impl Into<String>, remedy: &'static str) -> Obstacle {
        Obstacle { what: what.into(), fatal: false, remedy }
    }
}

const MOUNTS_AS_ROOT: &str = "run as root: dwell then mounts it for itself alone";

/// Every recorder and what it can do here.
pub(super) fn all(host: &Host, facilities: &Facilities) -> Vec<Recorder> {
    let mut all = everything(host, facilities);
    if facilities.perf == Perf::NotAsked {
        // What files do not show may be there all the same.
        let not_known = "not known for the files of another machine";
        for recorder in &mut all {
            recorder.verdict = Support::NotKnown;
            recorder.obstacles = vec![Obstacle::partial(not_known, "run dwell doctor on that machine")];
        }
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
    let verdict = if has_fatal(&obstacles) {
        Support::No
    } else if obstacles.is_empty() {
        Support::Yes
    } else {
        Support::Partly
    };
    Recorder { name, about, verdict, obstacles }
}

fn has_fatal(obstacles: &[Obstacle]) -> bool {
    obstacles.iter().any(|obstacle| obstacle.fatal)
}

fn host_obstacles(host: &Host, facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = kvm_obstacles(host);
    if has_fatal(&obstacles) {
        return obstacles;
    }
    obstacles.extend(tracing_obstacles(facilities));
    obstacles.extend(need(facilities, "kvm:kvm_vcpu_wakeup", "load the kvm module, or use a newer kernel"));
    obstacles.extend(less(facilities, "kvm:kvm_halt_poll_ns", "windows cannot be checked", NOTHING_TO_DO));
    obstacles
}

fn guest_obstacles(facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = tracing_obstacles(facilities);
    obstacles.extend(need(facilities, "sched:sched_waking", "needs a kernel with CONFIG_TRACEPOINTS"));
    let by_switches = "idle periods come from context switches instead";
    obstacles.extend(less(facilities, "power:cpu_idle", by_switches, NOTHING_TO_DO));
    let unchecked = "windows of haltpoll cannot be checked";
    obstacles.extend(less(facilities, "power:guest_halt_poll_ns", unchecked, "needs Linux 6.0 or later"));
    obstacles
}

fn thread_obstacles(facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = tracing_obstacles(facilities);
    // Single calls if there are tracepoints for them, else all calls.
    let either = ["syscalls:sys_enter_ppoll", "raw_syscalls:sys_enter"];
    if either.iter().all(|name| facilities.has(name) == Some(false)) {
        let what = format!("no tracepoint {}", either.join(" or "));
        obstacles.push(Obstacle::fatal(what, "needs a kernel with CONFIG_FTRACE_SYSCALLS"));
    }
    obstacles
}

fn bound_obstacles(host: &Host, facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = kvm_obstacles(host);
    if has_fatal(&obstacles) {
        return obstacles;
    }
    obstacles.extend(facilities.kvm_statistics_error.and_then(|error| {
        let (what, remedy) = match error {
            SourceError::NoKvm => ("KVM shows no statistics in debugfs", "load the kvm module"),
            SourceError::Denied => ("debugfs is closed to this user", "run as root"),
            SourceError::LockedDown => (
                "the kernel is locked down: debugfs hides KVM's counters, from root too",
                "use a VMM that keeps its statistics files open (QEMU 8.1 or later), or dwell record host",
            ),
            SourceError::NotMounted if facilities.debugfs == Mounted::Unknown => (
                "this kernel has no debugfs",
                "needs CONFIG_DEBUG_FS; a VMM of your own can read its statistics files (Linux 5.14)",
            ),
            SourceError::NotMounted => ("debugfs is not mounted", MOUNTS_AS_ROOT),
            SourceError::NoVm | SourceError::NotAVm { .. } => return None,
        };
        Some(Obstacle::fatal(what, remedy))
    }));
    obstacles
}

fn kvm_obstacles(host: &Host) -> Vec<Obstacle> {
    let gone = host.kvm.is_none()
        && matches!(host.device, KvmDevice::Closed { why: Absent::Missing } | KvmDevice::NotAsked);
    if gone {
        vec![Obstacle::fatal(
            match host.kvm_absence {
                Absence::NotBuilt => "this kernel has no KVM",
                _ => "KVM is not loaded",
            },
            "load it: modprobe kvm_intel (or kvm_amd); in a guest, switch nested virtualization on",
        )]
    } else if host.vms.is_empty() {
        vec![Obstacle::partial(
            "no running VM is visible",
            "start a VM; those of other users are visible to root only",
        )]
    } else {
        vec![]
    }
}

fn tracing_obstacles(facilities: &Facilities) -> Vec<Obstacle> {
    let mut obstacles = vec![];
    match &facilities.tracefs {
        Mounted::Unknown => obstacles.push(Obstacle::fatal(
            "this kernel has no tracefs",
            "needs a kernel with CONFIG_FTRACE and CONFIG_TRACEPOINTS",
        )),
        Mounted::No if !facilities.may_mount() => {
            obstacles.push(Obstacle::fatal("tracefs is not mounted", MOUNTS_AS_ROOT));
        }
        Mounted::Denied { at } => obstacles.push(Obstacle::fatal(
            format!("{at} is closed to this user"),
            "run as root, or open it: mount -o remount,mode=755 PATH",
        )),
        Mounted::No | Mounted::At { .. } => {}
    }
    match facilities.perf {
        Perf::Denied => {
            let level = facilities.perf_event_paranoid;
            let level =
                level.map_or_else(String::new, |level| format!(" (kernel.perf_event_paranoid = {level})"));
            obstacles.push(Obstacle::fatal(
                format!("perf may not trace all tasks{level}"),
                "run as root, or: setcap cap_perfmon+ep dwell, or: sysctl kernel.perf_event_paranoid=-1",
            ));
        }
        Perf::Missing => obstacles.push(Obstacle::fatal(
            "no perf_event_open",
            "needs CONFIG_PERF_EVENTS, and a sandbox (seccomp) that lets perf_event_open through",
        )),
        Perf::Allowed | Perf::NotAsked => {}
    }
    obstacles
}

/// Nothing works without this tracepoint.
fn need(facilities: &Facilities, name: &str, remedy: &'static str) -> Option<Obstacle> {
    let is_missing = facilities.has(name) == Some(false);
    is_missing.then(|| Obstacle::fatal(format!("no tracepoint {name}"), remedy))
}

const NOTHING_TO_DO: &str = "nothing to do; the metadata of the recording has what it includes";

/// Something is missing without this tracepoint.
fn less(facilities: &Facilities, name: &str, what: &str, remedy: &'static str) -> Option<Obstacle> {
    let is_missing = facilities.has(name) == Some(false);
    is_missing.then(|| Obstacle::partial(format!("no tracepoint {name}: {what}"), remedy))
}
