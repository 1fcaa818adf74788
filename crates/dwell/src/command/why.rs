//! `dwell why`

mod show;

use crate::failure::{Answer, Outcome};
use crate::model::HALT_COST;
use crate::output::{self, Format, FormatArg};
use crate::{privileges, quantity, stop};
use anyhow::bail;
use dwell_capture::Until;
use dwell_machine::{Facts, Sysroot, Vmm};
use dwell_policy::Nanos;
use dwell_timer::why::live::{Bills, watch};
use dwell_timer::why::{Bill, Known, Removal, removals};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Report where the CPU time of a VM goes, by cause, and what removes it
///
/// Watches the threads of a VM, or of any process: what its vCPUs poll, what wakes them, which devices they access in the
/// VMM; what wakes the VMM's event loops, and how long they poll; and the threads that the kernel has for it. The lines add
/// up to what /proc counts in the same time. Changes nothing.
///
/// Events cost those that cause them. So in the first quarter of the time nothing is traced, and what is saved is scaled
/// to what was used then.
///
/// Where tracing is not possible there are only the threads' times and KVM's counters of polls.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  dwell why\n  dwell why web --duration 30s\n  dwell why --all --format csv"
)]
pub(crate) struct Args {
    /// VM, by the name on its command line or by its process; any process by its number [default: the only VM]
    #[arg(value_name = "VM|PID", conflicts_with = "all")]
    vm: Option<String>,
    /// Every VM of this host
    #[arg(long)]
    all: bool,
    /// How long to watch
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "10s")]
    duration: Nanos,
    #[command(flatten)]
    format: FormatArg,
}

/// What is watched.
#[derive(Clone, Debug, Serialize)]
struct Subject {
    pid: u32,
    /// The VM's name, else that of the process.
    name: String,
    #[serde(skip)]
    vmm: Option<Vmm>,
}

#[derive(Serialize)]
struct Report {
    span_ns: u64,
    events: u64,
    lost_events: u64,
    /// Why nothing was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    untraced: Option<String>,
    bills: Vec<OfSubject>,
}

#[derive(Serialize)]
struct OfSubject {
    #[serde(flatten)]
    subject: Subject,
    /// What it used before it was watched \[ns of CPU a second\].
    unwatched_ns_per_s: Option<u64>,
    #[serde(flatten)]
    bill: Bill,
    removals: Vec<Removal>,
}

pub(crate) fn run(args: Args) -> Outcome {
    let system = Arc::new(Sysroot::of_this_machine());
    let facts = Facts::read(&*system);
    let subjects = subjects(&args, &facts)?;
    privileges::keep_those_for_watching();
    let stop = stop::on_ctrl_c()?;
    let until = Until { duration: Some(Duration::from_nanos(args.duration.get())), stop: &stop };
    let processes: Vec<(u32, Option<&Vmm>)> =
        subjects.iter().map(|subject| (subject.pid, subject.vmm.as_ref())).collect();
    let system: Arc<dyn dwell_capture::system::System> = system;
    let Bills { bills, unwatched_ns_per_s, span_ns, events, lost, untraced } =
        watch(&system, &processes, &until);
    let of = |((subject, bill), unwatched_ns_per_s): ((Subject, Bill), Option<u64>)| {
        let known = Known { vmm: subject.vmm.as_ref(), span_ns, unwatched_ns_per_s, halt_cost: HALT_COST };
        OfSubject { removals: removals(&bill, &known), unwatched_ns_per_s, subject, bill }
    };
    let bills = subjects.into_iter().zip(bills).zip(unwatched_ns_per_s).map(of);
    let report = Report { span_ns, events, lost_events: lost, untraced, bills: bills.collect() };
    match args.format.format {
        Format::Json => output::json(&report)?,
        Format::Csv => output::csv(&show::csv(&report))?,
        Format::Table => show::print(&report)?,
    }
    Ok(Answer::Yes)
}

/// The processes that are asked for.
fn subjects(args: &Args, facts: &Facts) -> anyhow::Result<Vec<Subject>> {
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
    match (&args.vm, args.all) {
        (None, true) if vms.is_empty() => bail!("--all: no VM is running that this user can see"),
        (None, true) => Ok(vms),
        (None, false) => match vms.as_slice() {
            [only] => Ok(vec![only.clone()]),
            [] => bail!(
                "no VM is running that this user can see; give the process to look into, or run as root"
            ),
            _ => bail!("several VMs are running: {}; name one, or give --all", listed()),
        },
        (Some(asked), _) => {
            let named: Vec<&Subject> = vms.iter().filter(|vm| vm.name == *asked).collect();
            match (named.as_slice(), asked.parse::<u32>()) {
                ([only], _) => Ok(vec![(*only).clone()]),
                ([], Ok(pid)) => of_process(pid, facts),
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
