//! `dwell timer tune`

use super::change::Change;
use super::vm::{VM_AND_HOST, VmArgs};
use super::words;
use crate::command::record::command_line;
use crate::command::tune::plan;
use crate::failure::{Answer, Outcome};
use crate::output::{self, FormatArg};
use crate::overwrite::may_write;
use crate::{quantity, settings};
use anyhow::Context;
use dwell_machine::Sysroot;
use dwell_policy::version::Version;
use dwell_recording::newfile;
use dwell_timer::advice::Verdict;
use dwell_timer::page::Page;
use dwell_timer::recorded::{Question, Timers, timers};
use std::path::{Path, PathBuf};

/// Predict what another set-up would save for recorded timers, and recommend one
///
/// Keeps what the guest did (when it armed a timer, whether it fired, where the vCPU was then) and replays it under
/// other set-ups: pi_inject_timer, APICv, HLT exits, isolated CPUs, busy or idle housekeeping CPUs, and with
/// --upgrade another kernel. Prints the self-check, the bound that no set-up can exceed, exits and their time in the
/// host per set-up, how late timers are under each advance, and the advice with what is missing for it. APICv, the
/// preemption timer and nohz_full are taken from the options, else from the recording, else from this machine if it
/// is the one recorded, else assumed. Nothing on the machine is changed.
#[derive(clap::Args)]
#[command(after_help = "Example: dwell timer tune timer.parquet --disable-exits mwait --pcpu isolated")]
pub(crate) struct Args {
    /// Recording of timers, written by `dwell timer record` or `dwell timer import`
    file: PathBuf,
    /// Write the advised parameters to this file, as a plan for `dwell apply`
    ///
    /// Written where pi_inject_timer is all that is missing, and for lapic_timer_advance_ns. If the advice is to leave
    /// the present set-up as it is, or needs more than a parameter, no file is written.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Write a page with charts of all figures to this file
    ///
    /// One self-contained HTML file: exits by reason as recorded and under each set-up, how late hrtimers fired, the
    /// time from firing to the guest, and the load of CPUs by timers.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Compare with this recording from before a change
    ///
    /// Prints what was recorded before and after, in place of what was predicted: exits by reason, hrtimers that fired
    /// on each CPU, and how late.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plan", "by_reason", "exit_code"])]
    before: Option<PathBuf>,
    /// Print the exits by reason of each set-up, in place of their costs
    #[arg(long)]
    by_reason: bool,
    #[command(flatten)]
    vm: VmArgs,
    /// Frequency of the guests' TSC in kHz
    ///
    /// From 1. Lateness is recorded in cycles; without a frequency, what an advance gains is not known. [default: that of
    /// the recording]
    #[arg(long, value_name = "KHZ", value_parser = clap::value_parser!(u32).range(1..), help_heading = VM_AND_HOST)]
    tsc_khz: Option<u32>,
    /// Kernel release of the host, 5.4 to 7.3 [default: that of the recording]
    #[arg(long, value_name = "VERSION", value_parser = crate::suggest::kernels(settings::kernel), hide_possible_values = true, help_heading = VM_AND_HOST)]
    kernel: Option<Version>,
    /// Smallest gain that is worth a change, as a share of one CPU, such as 0.5% or 0.005
    ///
    /// From 0 to 1 (100%), for all vCPUs together.
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, default_value = "0.5%")]
    min_gain: f64,
    /// Replace the plan or page if it exists, and write the plan even if it does not fit this machine
    ///
    /// That is, if the recording is of another machine, or if present values or versions differ from it.
    #[arg(long)]
    force: bool,
    /// Exit with 1 if the advice is to leave the present set-up as it is
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &Args) -> Outcome {
    for path in args.plan.iter().chain(&args.page) {
        may_write(path, args.force, "--force replaces it", args.before.iter().chain([&args.file]))?;
    }
    let after = read(args, &args.file)?;
    let before = args.before.as_deref().map(|file| read(args, file)).transpose()?;
    if let Some(path) = &args.page {
        write_page(path, &after, before.as_ref())?;
    }
    if let Some(before) = &before {
        let change = Change { before, after: &after };
        output::result(
            args.format.format,
            &Page::of(&after, Some(before), &command_line()),
            || change.exits_table(),
            || change.text(),
        )?;
        return Ok(Answer::Yes);
    }
    words::print(&after, args.format.format, args.by_reason)?;
    if let Some(path) = &args.plan {
        write_plan(path, &after, args.force)?;
    }
    let negative = args.exit_code && matches!(after.advice.verdict, Verdict::Leave { .. });
    Ok(if negative { Answer::No } else { Answer::Yes })
}

fn read(args: &Args, file: &Path) -> anyhow::Result<Timers> {
    let question = Question {
        kernel: args.kernel,
        vm: args.vm.given(None),
        upgrade: args.vm.upgrade,
        tsc_khz: args.tsc_khz,
        min_gain: args.min_gain,
    };
    Ok(timers(file, &question, &Sysroot::of_this_machine())?)
}

fn write_page(path: &Path, timers: &Timers, before: Option<&Timers>) -> anyhow::Result<()> {
    let names = before.into_iter().chain([timers]).map(Timers::name);
    let title = format!("{} - dwell timer", names.collect::<Vec<_>>().join(" and "));
    let data = serde_json::to_string(&Page::of(timers, before, &command_line()))?;
    let page = dwell_report::page::page(&title, &(dwell_report::page::embeddable(&data) + "\n"));
    newfile::write(path, page.as_bytes()).context("cannot write the page")?;
    output::note(&format!("{}: {} bytes", path.display(), dwell_report::count(page.len() as u128)));
    Ok(())
}

fn write_plan(path: &Path, timers: &Timers, force: bool) -> anyhow::Result<()> {
    let Some(plan) = timers.plan() else {
        output::note(&format!(
            "no plan is written to {}: the advice is to leave the present set-up, or needs more than a parameter",
            path.display()
        ));
        return Ok(());
    };
    plan::refuse_other_machine(&timers.metadata, force)?;
    plan::finish(path, &plan, &timers.metadata, force)
}
