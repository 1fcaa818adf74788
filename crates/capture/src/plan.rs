//! What is traced for each target, and what pairs it.

use crate::decode::HLT_EXITS;
use crate::names::{self, ProcNames};
use crate::probe::{Probe, Trace, any_of};
use crate::system::System;
use crate::target::{RecordError, Target};
use crate::tracefs::Tracefs;
use dwell_machine::{Cpuidle, cpu, kernel, process};
use dwell_policy::arch::Arch;
use dwell_policy::host;
use dwell_trace::contention::{self, Contention};
use dwell_trace::event::{EventKind, SystemCall, TracepointKind};
use dwell_trace::guest::{GuestPairing, GuestSource};
use dwell_trace::host::{HostPairing, vcpu_of_name};
use dwell_trace::pairing::Pairing;
use dwell_trace::thread::ThreadPairing;
use dwell_trace::vcpu_causes;
use dwell_trace::waking;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What to trace, and what pairs it.
pub(crate) struct Plan {
    pub(crate) probes: Vec<Probe>,
    pub(crate) pairing: Box<dyn Pairing>,
    /// Of the CPUs of this machine, what was chosen to show that they idle, and whether causes are recorded.
    pub(crate) chosen: Option<Target>,
    /// The probes, if they are read through BPF.
    pub(crate) trace: Option<Trace>,
    /// What reads the probes and why, for the metadata.
    pub(crate) tracing: Value,
}

impl Plan {
    /// Read through perf's rings.
    pub(crate) fn through_perf(probes: Vec<Probe>, pairing: Box<dyn Pairing>) -> Plan {
        Plan { probes, pairing, chosen: None, trace: None, tracing: json!({ "by": "perf" }) }
    }
}

/// Decides what to trace for `target`.
pub(crate) fn plan(
    system: &Arc<dyn System>,
    tracefs: &Tracefs,
    target: &Target,
) -> Result<Plan, RecordError> {
    Ok(match target {
        Target::Host { pid, exits, contention, causes } => {
            let revision = kernel::version(&**system).and_then(|version| host::Revision::of(version).ok());
            let mut pairing = HostPairing::new(revision, *pid, Box::new(ProcNames::new(system.clone())));
            let mut probes = host_probes(*exits);
            let with_contention = *contention && can_see(&**system, tracefs, &contention::TRACEPOINTS);
            let causes = *causes && can_see(&**system, tracefs, &vcpu_causes::TRACEPOINTS);
            let cpus = if with_contention || causes { cpus_of_vcpus(&**system, *pid) } else { None };
            if causes {
                probes.extend(filtered_by_cpu(&vcpu_causes::TRACEPOINTS, cpus.as_ref()));
                probes.extend(waking::INTERRUPTS.map(|kind| Probe::of(kind).optional()));
                pairing = pairing.with_segments();
            }
            if with_contention {
                probes.extend(filtered_by_cpu(&contention::TRACEPOINTS, cpus.as_ref()));
                pairing = pairing.with_contention(Contention::new(cpus));
            }
            Plan::through_perf(probes, Box::new(pairing))
        }
        Target::Guest { source, causes } => guest(system, tracefs, *source, *causes)?,
        Target::Thread { pid, causes, .. } => {
            let mut pairing = ThreadPairing::new(*pid, Box::new(ProcNames::new(system.clone())));
            let mut probes = thread_probes(&**system, tracefs);
            if *causes && can_see(&**system, tracefs, &[TracepointKind::Waking]) {
                probes.push(Probe::of(TracepointKind::Waking).by_thread());
                probes.extend(waking::INTERRUPTS.map(|kind| Probe::of(kind).optional()));
                pairing = pairing.with_segments();
            }
            Plan::through_perf(probes, Box::new(pairing))
        }
    })
}

/// The tracepoints of which vCPUs' episodes are made, `kvm:kvm_exit` among them if `exits`.
fn host_probes(exits: bool) -> Vec<Probe> {
    let mut probes = vec![
        Probe::of(TracepointKind::VcpuWakeup).by_thread(),
        Probe::of(TracepointKind::HaltPoll).by_thread(),
    ];
    if exits {
        probes.push(Probe::of(TracepointKind::Exit).filtered(HLT_EXITS).by_thread().optional());
    }
    probes
}

/// Whether the kernel has these tracepoints, and the numbers of threads in them are those that perf gives for the same
/// threads: in a PID namespace they are not.
fn can_see(system: &dyn System, tracefs: &Tracefs, kinds: &[TracepointKind]) -> bool {
    names::pids_are_global(system) && kinds.iter().all(|kind| tracefs.has(system, &kind.to_string()))
}

/// Tracepoints, those of the scheduler filtered in the kernel to what concerns `cpus`.
fn filtered_by_cpu(kinds: &[TracepointKind], cpus: Option<&BTreeSet<u32>>) -> Vec<Probe> {
    let any = |field: &str| Some(any_of(field, cpus?));
    let probe = |kind| {
        let filter = match kind {
            TracepointKind::Switch => any("CPU"),
            TracepointKind::Migrate => {
                any("orig_cpu").zip(any("dest_cpu")).map(|(from, to)| format!("{from} || {to}"))
            }
            TracepointKind::ApicAccept => None,
            _ => any("target_cpu"),
        };
        Probe { filter, ..Probe::of(kind) }
    };
    kinds.iter().copied().map(probe).collect()
}

/// A filter is at most a page long; above this many CPUs all are watched.
const MOST_CPUS_IN_FILTER: usize = 64;

/// The CPUs on which the vCPUs of process `pid`, or of all VMs, may run; `None`: any. They are looked for
/// once: a vCPU that moves elsewhere later has no time alone.
fn cpus_of_vcpus(system: &dyn System, pid: Option<i32>) -> Option<BTreeSet<u32>> {
    let pids = pid.map_or_else(|| names::processes_with_vm(system), |pid| vec![pid]);
    let online: BTreeSet<u32> = cpu::online(system).into_iter().collect();
    let mut cpus = BTreeSet::new();
    for pid in pids {
        let threads = names::threads(system, pid);
        let named = |tid: &&i32| {
            system
                .text(&format!("/proc/{pid}/task/{tid}/comm"))
                .is_some_and(|name| vcpu_of_name(&name).is_some())
        };
        let vcpus: Vec<i32> = threads.iter().filter(named).copied().collect();
        for tid in if vcpus.is_empty() { threads } else { vcpus } {
            let status = system.text(&format!("/proc/{pid}/task/{tid}/status"))?;
            let allowed = process::field(&status, "Cpus_allowed_list")?;
            cpus.extend(cpu::parse_list(allowed).into_iter().filter(|cpu| online.contains(cpu)));
        }
    }
    let some = !cpus.is_empty() && cpus.len() < online.len() && cpus.len() <= MOST_CPUS_IN_FILTER;
    some.then_some(cpus)
}

/// The tracepoints of which threads' episodes are made: two for each system call, or, where the kernel has
/// none for single calls, two for all.
fn thread_probes(system: &dyn System, tracefs: &Tracefs) -> Vec<Probe> {
    if tracefs.has(system, &TracepointKind::Enter(SystemCall::Ppoll).to_string()) {
        return TracepointKind::of_calls().map(|kind| Probe::of(kind).by_thread().optional()).collect();
    }
    let numbers = any_of("id", SystemCall::ALL.iter().filter_map(|call| call.number()));
    let probe = |kind| Probe::of(kind).filtered(numbers.clone()).by_thread();
    vec![probe(TracepointKind::AnyEnter), probe(TracepointKind::AnyLeave)]
}

/// Decides on a source and what it takes.
fn guest(
    system: &Arc<dyn System>,
    tracefs: &Tracefs,
    asked: GuestSource,
    causes: bool,
) -> Result<Plan, RecordError> {
    let (mut source, silent) = match asked {
        GuestSource::Auto | GuestSource::Perf => detect(&**system, tracefs)?,
        // It is recorded as asked, and the CPUs that it misses are named.
        GuestSource::CpuIdle => (asked, detect(&**system, tracefs)?.1),
        _ => (asked, vec![]),
    };
    let mut tracing = json!({ "by": "perf" });
    // No BPF program reads the tracepoint of the driver dwell_idle, from which its windows come.
    let has_own_driver = tracefs.has(&**system, &TracepointKind::DwellIdle.to_string());
    if asked == GuestSource::Auto && source == GuestSource::Switch && !has_own_driver {
        // perf misses CPUs; what BPF sees of them is worth more than their switches.
        match Trace::open_bpf(&**system, &guest_probes(&**system, GuestSource::Bpf, causes)) {
            Ok(trace) => {
                let why =
                    json!({ "by": "bpf", "because": "perf gets nothing from the idle task of some CPUs" });
                return Ok(through_bpf(system, trace, silent, why));
            }
            Err(error) => tracing["not_by_bpf"] = error.to_string().into(),
        }
    }
    if source == GuestSource::Bpf {
        let trace = Trace::open_bpf(&**system, &guest_probes(&**system, source, causes))?;
        return Ok(through_bpf(system, trace, silent, json!({ "by": "bpf" })));
    }
    if source != GuestSource::CpuIdle {
        source = GuestSource::Switch;
    }
    let causes = causes
        && source == GuestSource::CpuIdle
        && tracefs.has(&**system, &TracepointKind::Switch.to_string());
    let pairing = pairing(system, source, silent, causes);
    let perf = Plan::through_perf(guest_probes(&**system, source, causes), pairing);
    Ok(Plan { chosen: Some(Target::Guest { source, causes }), tracing, ..perf })
}

/// The first idle state polls where it is called so; where that cannot be read, as the architecture has it.
fn pairing(
    system: &Arc<dyn System>,
    source: GuestSource,
    silent: Vec<u32>,
    causes: bool,
) -> Box<dyn Pairing> {
    let mut pairing = GuestPairing::new(source, silent);
    if let Some(name) = system.text("/sys/devices/system/cpu/cpu0/cpuidle/state0/name") {
        pairing = pairing.with_polling_state((name.trim() == "POLL").then_some(0));
    }
    if causes {
        pairing = pairing.with_segments(Box::new(ProcNames::new(system.clone())));
    }
    Box::new(pairing)
}

fn through_bpf(system: &Arc<dyn System>, trace: Trace, silent: Vec<u32>, mut tracing: Value) -> Plan {
    if !trace.left_out().is_empty() {
        tracing["left_out"] = json!(trace.left_out());
    }
    let causes = trace.probes().iter().any(|probe| probe.kind == TracepointKind::Switch);
    Plan {
        probes: vec![],
        pairing: pairing(system, GuestSource::Bpf, silent, causes),
        chosen: Some(Target::Guest { source: GuestSource::Bpf, causes }),
        trace: Some(trace),
        tracing,
    }
}

/// The tracepoints of which CPUs' episodes are made, what else shows how they end, and what runs in between if `causes`.
pub(crate) fn guest_probes(system: &dyn System, source: GuestSource, causes: bool) -> Vec<Probe> {
    let main = match source {
        GuestSource::Switch => TracepointKind::ContextSwitch,
        _ => TracepointKind::CpuIdle,
    };
    let mut helpers = vec![
        TracepointKind::GuestHaltPoll,
        TracepointKind::DwellIdle,
        TracepointKind::TimerInterrupt,
        TracepointKind::RescheduleInterrupt,
        TracepointKind::CallInterrupt,
        TracepointKind::DeviceInterrupt,
    ];
    if source == GuestSource::Bpf && Cpuidle::read(system).haltpoll_decides() {
        helpers.push(TracepointKind::Reflect);
    }
    if causes {
        helpers.push(TracepointKind::Switch);
    }
    if Arch::HERE == Some(Arch::Arm64) {
        helpers.push(TracepointKind::IpiEntry);
    }
    let mut probes = vec![Probe::of(main), Probe::of(TracepointKind::Waking)];
    probes.extend(helpers.into_iter().map(|kind| Probe::of(kind).optional()));
    probes
}

/// Makes every CPU busy and idle a few times, and returns the source to use and the CPUs that went idle
/// without saying so.
fn detect(system: &dyn System, tracefs: &Tracefs) -> Result<(GuestSource, Vec<u32>), RecordError> {
    if !tracefs.has(system, &TracepointKind::CpuIdle.to_string()) {
        return Ok((GuestSource::Switch, cpu::online(system)));
    }
    let probes =
        [Probe::of(TracepointKind::CpuIdle), Probe::of(TracepointKind::Switch).filtered("next_pid == 0")];
    let mut trace = Trace::open(system, tracefs, &probes, None)?;
    let io = |what| move |source| RecordError::Io { what, source };
    trace.enable().map_err(io("switch on"))?;
    visit_every_cpu(system);
    trace.disable().map_err(io("switch off"))?;
    let mut seen: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    trace.drain(|event| match event.kind {
        EventKind::CpuIdle { cpu, .. } => seen.entry(cpu).or_default().0 += 1,
        EventKind::Switch { .. } => seen.entry(event.cpu).or_default().1 += 1,
        _ => {}
    });
    // A CPU that was not seen to idle has not shown that its idle task has events.
    let speaks = |cpu: &u32| seen.get(cpu).is_some_and(|(spoke, _)| *spoke > 0);
    let silent = seen.iter().filter(|(_, (spoke, idled))| *spoke == 0 && *idled > 0).map(|(cpu, _)| *cpu);
    let silent = silent.collect();
    let all_speak = cpu::online(system).iter().all(speaks);
    Ok((if all_speak { GuestSource::CpuIdle } else { GuestSource::Switch }, silent))
}

/// Runs and sleeps on each CPU in turn, in a thread of its own, so that the caller's affinity is left alone. A CPU on
/// which this may not run goes idle by itself, or shows nothing.
fn visit_every_cpu(system: &dyn System) {
    let cpus = cpu::online(system);
    let visit = move || {
        for cpu in cpus {
            let mut set = rustix::thread::CpuSet::new();
            set.set(cpu as usize);
            for _ in 0..3 {
                if rustix::thread::sched_setaffinity(None, &set).is_ok() {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    };
    let visitor = std::thread::Builder::new().name("dwell-visit".to_owned()).spawn(visit);
    // Without the visit there is still what the CPUs did by themselves.
    let _ = visitor.map(std::thread::JoinHandle::join);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::Fake;

    #[test]
    fn the_governors_function_is_probed_where_haltpoll_decides() {
        let probes_it = |fake: &Fake| {
            guest_probes(fake, GuestSource::Bpf, true)
                .iter()
                .any(|probe| probe.kind == TracepointKind::Reflect)
        };
        for (driver, governor, expected) in
            [("haltpoll", "haltpoll", true), ("none", "haltpoll", false), ("intel_idle", "menu", false)]
        {
            let fake = Fake::new()
                .file("/sys/devices/system/cpu/cpuidle/current_driver", driver)
                .file("/sys/devices/system/cpu/cpuidle/current_governor", governor);
            assert_eq!(probes_it(&fake), expected, "{driver} {governor}");
        }
    }
}
