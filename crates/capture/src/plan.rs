//! What is traced for each target, and what pairs it.

use crate::decode::HLT_EXITS;
use crate::names::ProcNames;
use crate::probe::{Probe, Trace};
use crate::record::{RecordError, Target};
use crate::system::System;
use crate::tracefs::Tracefs;
use dwell_machine::{cpu, kernel};
use dwell_policy::host;
use dwell_policy::version::Version;
use dwell_recording::IdleIncludes;
use dwell_trace::event::{Call, Kind, What};
use dwell_trace::guest::{GuestPairing, GuestSource};
use dwell_trace::host::HostPairing;
use dwell_trace::pairing::Pairing;
use dwell_trace::thread::ThreadPairing;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What to trace, what pairs it, and what `idle_ns` includes.
pub(crate) type Plan = (Vec<Probe>, Box<dyn Pairing>, IdleIncludes);

/// Decides what to trace for `target`.
pub(crate) fn plan(
    system: &Arc<dyn System>,
    tracefs: &Tracefs,
    target: &Target,
) -> Result<Plan, RecordError> {
    Ok(match target {
        Target::Host { pid, exits } => {
            let revision = kernel::release(&**system)
                .and_then(|release| Version::parse(&release))
                .and_then(|version| host::Revision::of(version).ok());
            let pairing = HostPairing::new(revision, *pid, Box::new(ProcNames::new(system.clone())));
            (host_probes(*exits), Box::new(pairing), IdleIncludes::Wake)
        }
        Target::Guest { source } => guest(&**system, tracefs, *source)?,
        Target::Thread { pid, .. } => {
            let pairing = ThreadPairing::new(*pid, Box::new(ProcNames::new(system.clone())));
            (thread_probes(&**system, tracefs), Box::new(pairing), IdleIncludes::Wake)
        }
    })
}

/// The tracepoints of which vCPUs' episodes are made, `kvm:kvm_exit` among them if `exits`.
fn host_probes(exits: bool) -> Vec<Probe> {
    let mut probes = vec![Probe::of(Kind::VcpuWakeup).by_thread(), Probe::of(Kind::HaltPoll).by_thread()];
    if exits {
        probes.push(Probe::of(Kind::HltExit).filtered(HLT_EXITS).by_thread().optional());
    }
    probes
}

/// The tracepoints of which threads' episodes are made: two for each system call, or, where the kernel has none for single
/// calls, two for all.
fn thread_probes(system: &dyn System, tracefs: &Tracefs) -> Vec<Probe> {
    if tracefs.has(system, &Kind::Enter(Call::Ppoll).to_string()) {
        let pairs = Call::ALL.iter().flat_map(|&call| [Kind::Enter(call), Kind::Leave(call)]);
        return pairs.map(|kind| Probe::of(kind).by_thread().optional()).collect();
    }
    let numbers: Vec<String> =
        Call::ALL.iter().filter_map(|call| call.number()).map(|number| format!("id == {number}")).collect();
    let probe = |kind| Probe::of(kind).filtered(numbers.join(" || ")).by_thread();
    vec![probe(Kind::AnyEnter), probe(Kind::AnyLeave)]
}

/// Decides on a source and what it takes.
fn guest(system: &dyn System, tracefs: &Tracefs, asked: GuestSource) -> Result<Plan, RecordError> {
    let (source, silent) = match asked {
        GuestSource::Auto => detect(system, tracefs)?,
        _ => (asked, vec![]),
    };
    let main = match source {
        GuestSource::Switch => Probe::of(Kind::ContextSwitch),
        _ => Probe::of(Kind::CpuIdle),
    };
    let helpers = [
        Kind::GuestHaltPoll,
        Kind::TimerInterrupt,
        Kind::RescheduleInterrupt,
        Kind::CallInterrupt,
        Kind::DeviceInterrupt,
    ];
    let mut probes = vec![main, Probe::of(Kind::Waking)];
    probes.extend(helpers.map(|kind| Probe::of(kind).optional()));
    Ok((probes, Box::new(GuestPairing::of(source, silent)), IdleIncludes::Event))
}

/// Makes every CPU busy and idle a few times, and answers the source to use and the CPUs that went idle without saying so.
fn detect(system: &dyn System, tracefs: &Tracefs) -> Result<(GuestSource, Vec<u32>), RecordError> {
    if !tracefs.has(system, &Kind::CpuIdle.to_string()) {
        return Ok((GuestSource::Switch, cpu::online(system)));
    }
    let probes = [Probe::of(Kind::CpuIdle), Probe::of(Kind::Switch).filtered("next_pid == 0")];
    let mut trace = Trace::open(system, tracefs, &probes, None)?;
    let io = |what| move |source| RecordError::Io { what, source };
    trace.sampler().enable().map_err(io("switch on"))?;
    visit_every_cpu(system);
    trace.sampler().disable().map_err(io("switch off"))?;
    let mut seen: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    trace.drain(|event| match event.what {
        What::CpuIdle { cpu, .. } => seen.entry(cpu).or_default().0 += 1,
        What::Switch { .. } => seen.entry(event.cpu).or_default().1 += 1,
        _ => {}
    });
    // A CPU that was not seen to idle has not shown that its idle task speaks.
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
