//! `dwell why`

pub(crate) mod show;
#[cfg(test)]
mod tests;

use crate::failure::Outcome;
use crate::model::HALT_COST;
use crate::output::{self, Format, FormatArg};
use crate::{privileges, quantity, stop};
use anyhow::bail;
use dwell_capture::Until;
use dwell_capture::system::System;
use dwell_machine::{Facts, Machine, Sysroot, Vmm};
use dwell_policy::Nanos;
use dwell_timer::why::live::{Bills, watch};
use dwell_timer::why::{Bill, CpusBill, Known, OfSubject, Report, removals, removals_of_cpus, watch_cpus};
use std::sync::Arc;
use std::time::Duration;

/// Report what uses the CPU time of a VM or machine, and what removes it
///
/// For a VM, or any process, it watches the threads: how long vCPUs poll, what wakes them, which devices they access
/// in the VMM; what wakes the VMM's event loops, and how long these poll; and the kernel's threads for the VM. The
/// lines add up to the CPU time that /proc counts. Changes nothing.
///
/// Tracing takes CPU time from what is traced. So nothing is traced in the first quarter of the time, and savings are
/// scaled to the CPU time used then.
///
/// With --cpus, or where no VM runs, as in a guest, it watches this machine's CPUs: which tasks, timers (by the
/// function that is called) and interrupts run, how often they wake an idle CPU, and how long CPUs poll. The lines
/// add up to what /proc/stat does not count as idle, plus the polls, which it counts as idle. In a guest, what a
/// removal saves the host is estimated at 20 us for each wakeup.
///
/// Where tracing is not possible, only the times of threads and the poll counters of KVM or cpuidle are printed.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  dwell why\n  dwell why web --duration 30s\n  dwell why --all --format csv\n  dwell why --cpus"
)]
pub(crate) struct Args {
    #[command(flatten)]
    of: Of,
    /// How long to watch
    #[arg(long, value_name = "TIME", value_parser = quantity::recording_time, default_value = "10s")]
    duration: Nanos,
    #[command(flatten)]
    format: FormatArg,
}

/// What to watch.
#[derive(Default, clap::Args)]
pub(crate) struct Of {
    /// VM, by the name on its command line or by its process; any process by its number [default: the only VM, or --cpus if there is none]
    #[arg(value_name = "VM|PID", conflicts_with = "all")]
    pub(crate) vm: Option<String>,
    /// Every VM of this host
    #[arg(long)]
    pub(crate) all: bool,
    /// The CPUs of this machine
    #[arg(long, conflicts_with_all = ["vm", "all"])]
    pub(crate) cpus: bool,
}

/// What is watched: a process.
#[derive(Clone, Debug)]
struct Subject {
    pid: u32,
    /// The VM's name, else that of the process.
    name: String,
    vmm: Option<Vmm>,
}

pub(crate) fn run(args: Args) -> Outcome {
    let stop = stop::on_ctrl_c()?;
    let until = Until { duration: Some(Duration::from_nanos(args.duration.get())), stop: &stop };
    let report = watched(&args.of, &until)?;
    let format = args.format.format;
    let answer = output::result(format, &report, || show::csv(&report), || show::text(&report))?;
    if format != Format::Json {
        show::notes(&report).iter().for_each(|note| output::note(note));
    }
    Ok(answer)
}

/// Watches what is asked for.
pub(crate) fn watched(of: &Of, until: &Until<'_>) -> anyhow::Result<Report> {
    let system = Arc::new(Sysroot::of_this_machine());
    let subjects = if of.cpus { vec![] } else { subjects(of, &Facts::read(&*system))? };
    let system: Arc<dyn System> = system;
    Ok(match subjects.is_empty() {
        true => of_cpus(&system, until),
        false => of_processes(&system, subjects, until),
    })
}

fn of_processes(system: &Arc<dyn System>, subjects: Vec<Subject>, until: &Until<'_>) -> Report {
    let processes: Vec<(u32, Option<&Vmm>)> =
        subjects.iter().map(|subject| (subject.pid, subject.vmm.as_ref())).collect();
    let Bills { bills, slices, unwatched_ns_per_s, unwatched_half_width, seen } =
        watch(system, &processes, until, privileges::keep_those_for_watching);
    let of = |(place, (subject, bill)): (usize, (&Subject, Bill))| {
        let unwatched_ns_per_s = unwatched_ns_per_s[place];
        let known = Known {
            vmm: subject.vmm.as_ref(),
            span_ns: seen.span_ns,
            unwatched_ns_per_s,
            slices: &slices[place],
            used_half_width: unwatched_half_width[place],
            halt_cost: HALT_COST,
        };
        let removals = removals(&bill, &known);
        let (pid, name) = (Some(subject.pid), subject.name.clone());
        OfSubject { pid, name, unwatched_ns_per_s, busy_ns: None, steal_ns: None, bill, removals }
    };
    let bills = subjects.iter().zip(bills).enumerate().map(of);
    Report { bills: bills.collect(), ..seen }
}

fn of_cpus(system: &Arc<dyn System>, until: &Until<'_>) -> Report {
    let found = watch_cpus(system, until, privileges::keep_those_for_watching);
    let host_halts = Machine::hypervisor(&**system).is_some().then_some(HALT_COST);
    let removals = removals_of_cpus(&found, &**system, host_halts);
    let CpusBill { bill, busy_ns, steal_ns, seen, .. } = found;
    let of = OfSubject {
        pid: None,
        name: "CPUs of this machine".to_owned(),
        unwatched_ns_per_s: None,
        busy_ns,
        steal_ns: Some(steal_ns),
        bill,
        removals,
    };
    Report { bills: vec![of], ..seen }
}

/// The processes that are asked for; none: the CPUs of this machine.
fn subjects(of: &Of, facts: &Facts) -> anyhow::Result<Vec<Subject>> {
    let vms: Vec<Subject> = facts
        .host
        .vms
        .iter()
        .map(|vm| {
            let vmm = facts.vmms.iter().find(|vmm| vmm.pid == vm.pid).cloned();
            Subject { pid: vm.pid, name: vm.name.clone().unwrap_or_else(|| vm.comm.clone()), vmm }
        })
        .collect();
    let listed = || {
        let names: Vec<String> = vms.iter().map(|vm| format!("{} ({})", vm.name, vm.pid)).collect();
        names.join(", ")
    };
    match (&of.vm, of.all) {
        (None, false) if vms.is_empty() => Ok(vec![]),
        (None, true) if vms.is_empty() => bail!("--all: no VM is running that this user can see"),
        (None, true) => Ok(vms),
        (None, false) => match vms.as_slice() {
            [only] => Ok(vec![only.clone()]),
            _ => bail!("several VMs are running: {}; name one, or give --all", listed()),
        },
        (Some(asked), _) => {
            let named: Vec<&Subject> = vms.iter().filter(|vm| vm.name == *asked).collect();
            match (named.as_slice(), asked.parse::<u32>()) {
                ([only], _) => Ok(vec![(*only).clone()]),
                ([], Ok(pid)) => of_process(pid, facts),
                ([], Err(_)) if vms.is_empty() => bail!("no VM is running that this user can see"),
                ([], Err(_)) => bail!("no VM is named {asked}; running are: {}", listed()),
                _ => bail!("several VMs are named {asked}: {}; give the process", listed()),
            }
        }
    }
}

/// Any process.
fn of_process(pid: u32, facts: &Facts) -> anyhow::Result<Vec<Subject>> {
    let Ok(comm) = std::fs::read_to_string(format!("/proc/{pid}/comm")) else {
        bail!("there is no process {pid}");
    };
    let vmm = facts.vmms.iter().find(|vmm| vmm.pid == pid).cloned();
    let name = vmm.as_ref().and_then(|vmm| vmm.name.clone());
    Ok(vec![Subject { pid, name: name.unwrap_or_else(|| comm.trim().to_owned()), vmm }])
}
