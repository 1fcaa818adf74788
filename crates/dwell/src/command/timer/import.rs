//! `dwell timer import`

use crate::command::import::{Common, open, recognise};
use crate::failure::Outcome;
use crate::settings;
use dwell_policy::Owner;
use dwell_policy::arch::Arch;
use dwell_recording::timer::TimerWriter;
use dwell_recording::{Contents, Idler};
use dwell_trace::import::perf::PerfOptions;

/// Import the timers and VM exits of vCPUs from text of `perf script`
///
/// Text of `trace-cmd report` and ftrace is read as well. Reads kvm:kvm_exit, kvm:kvm_entry, kvm:kvm_msr, kvm:kvm_apic,
/// kvm:kvm_hv_timer_state, kvm:kvm_apic_accept_irq, kvm:kvm_wait_lapic_expire, kvm:kvm_vcpu_wakeup, timer:hrtimer_start, timer:hrtimer_expire_entry, and where they are
/// there sched:sched_migrate_task and the interrupts of a guest; other events are counted and ignored. The text must be
/// made with `perf script --guest-code` (perf 6.0 or later): without it perf leaves out what interrupts a running
/// guest, and those timers seem not to have fired; trace-cmd does not. Record with
/// `perf record -a -k CLOCK_MONOTONIC -e 'kvm:*,timer:hrtimer_*' -- sleep 10` and convert with
/// `perf script --ns --header --show-task-events --guest-code -F +pid > timer.txt`.
#[derive(clap::Args)]
#[command(after_help = "Example: dwell timer import timer.txt -o timer.parquet")]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// Architecture of the traced machine, as `uname -m` prints it: x86_64, aarch64, riscv64, s390x, ppc64le
    /// or loongarch64
    ///
    /// [default: that of the text's header, else of this machine]
    #[arg(long, value_name = "NAME", value_parser = settings::arch)]
    arch: Option<Arch>,
    /// Have a perf.data or trace.dat converted to text by `perf script` or `trace-cmd report`
    #[arg(long)]
    convert: bool,
    /// Count lines that cannot be parsed, instead of stopping at the first one
    ///
    /// This concerns lines that name an event; other lines are always skipped.
    #[arg(long)]
    skip_unparsable: bool,
}

pub(super) fn run(args: Args) -> Outcome {
    let common = &args.common;
    let metadata = common.metadata(Owner::Timer)?;
    let options =
        PerfOptions { skip_unparsable: args.skip_unparsable, arch: args.arch, ..PerfOptions::default() };
    let mut input = open(&common.file, args.convert, true)?;
    recognise(&mut input)?;
    common.force.may_write(&common.output, [&common.file])?;
    let mut writer = TimerWriter::create(&common.output, metadata)?;
    let summary = dwell_timer::import::import(input, &options, &mut writer)?;
    let recorded = writer.metadata_mut().recorded;
    let rows = writer.finish()?;
    // As the report has it, a vCPU is an idler, and each of its rows an episode.
    let idlers = rows.vcpus.iter().map(|vcpu| Idler {
        name: vcpu.name.clone(),
        episodes: vcpu.timers + vcpu.exits,
        handlers: vec![],
    });
    let contents = Contents {
        episodes: rows.timers() + rows.exits(),
        first_start_ns: rows.first_ns,
        last_end_ns: rows.last_ns,
        idlers: idlers.collect(),
    };
    common.report(&crate::model::timers_of(&rows), &summary, &contents, recorded)
}
