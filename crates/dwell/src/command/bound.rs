//! `dwell bound`

mod show;

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::{privileges, quantity};
use anyhow::{Context, bail, ensure};
use dwell_capture::kvm_stats::{Bound, Counted, Delta, Domstats, Source, StatsReader, VmId};
use dwell_policy::Nanos;
use dwell_report::duration;
use dwell_trace::import::Input;
use serde::Serialize;
use show::{LINES, csv_lines, line, page, table};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Print what halt polling costs now and an upper bound of any gain
///
/// Reads the counters that KVM keeps of polls and halts; nothing is traced and nothing is changed. The gain is an
/// upper bound for every policy, the offline optimum included. `dwell record host` and `dwell tune` report what a
/// setting would really gain.
#[derive(clap::Args)]
#[command(
    after_help = "Needs a running VM and root. Where the VMM keeps KVM's statistics files open (QEMU 8.1 and later),\n\
                        the number of halts and their lengths are exact. Otherwise they come from debugfs and are bounds,\n\
                        marked <=."
)]
pub(crate) struct Args {
    /// Compare two files of `virsh domstats --vcpu` in place of the counters of this machine
    #[arg(num_args = 2, value_names = ["FIRST", "SECOND"], requires = "between",
        conflicts_with_all = ["interval", "count", "duration", "pid"])]
    files: Vec<PathBuf>,
    /// Time between the two files, such as 60s
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, requires = "files")]
    between: Option<Nanos>,
    /// Print one line for each interval of this length, instead of one for all of --duration
    ///
    /// At least 10ms.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    interval: Option<Nanos>,
    /// Number of intervals, instead of as many as fit into --duration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// How long to measure
    #[arg(long, value_name = "TIME", value_parser = quantity::duration, default_value = "10s")]
    duration: Nanos,
    /// Cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// From 0 to 10ms. With 0, halts are free.
    #[arg(long, value_name = "TIME", value_parser = quantity::halt, default_value = "20us")]
    halt_cost: Nanos,
    /// Only the VMs of this process
    #[arg(long)]
    pid: Option<u32>,
    #[command(flatten)]
    format: FormatArg,
}

/// When to read the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    interval: Duration,
    count: u64,
}

/// The shortest interval: reading the counters more often would disturb what they count.
const SHORTEST: Nanos = Nanos(10_000_000);

fn plan(args: &Args) -> anyhow::Result<Plan> {
    let interval = args.interval.unwrap_or(args.duration);
    if interval < SHORTEST {
        bail!(
            "an interval of {} is too short for counters; the shortest is 10ms",
            duration(interval.get() as f64)
        );
    }
    let fit = args.duration.get().div_ceil(interval.get()).max(1);
    let count = args.count.unwrap_or(if args.interval.is_some() { fit } else { 1 });
    Ok(Plan { interval: Duration::from_nanos(interval.get()), count })
}

/// The figures of one interval.
#[derive(Serialize)]
struct Interval {
    /// Since the first reading, at the end of the interval \[ns\].
    at_ns: u64,
    /// Length of the interval \[ns\].
    span_ns: u64,
    halt_cost_ns: u64,
    /// VMs that ended within the interval.
    ended: usize,
    total: Figures,
    vms: Vec<OfVm>,
}

#[derive(Serialize)]
struct OfVm {
    vm: VmId,
    process: String,
    source: Option<Source>,
    #[serde(flatten)]
    figures: Figures,
}

/// A [`Bound`] with its rates.
#[derive(Clone, Copy, Serialize)]
struct Figures {
    #[serde(flatten)]
    bound: Bound,
    polled_ns_per_s: f64,
    /// Of one CPU.
    polled_share: f64,
    /// Share of the time polled; `None` if none was.
    wasted_share: Option<f64>,
    success_share: Option<f64>,
    halts_per_s: f64,
    gain_ns_per_s: f64,
    /// Of one CPU.
    gain_share: f64,
}

impl Figures {
    fn of(bound: Bound, span_ns: u64) -> Figures {
        let seconds = (span_ns.max(1)) as f64 / 1e9;
        let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let polled = bound.polled_ns as f64 / seconds;
        let gain = bound.gain_ns as f64 / seconds;
        Figures {
            bound,
            polled_ns_per_s: polled,
            polled_share: polled / 1e9,
            wasted_share: share(bound.wasted_ns, bound.polled_ns),
            success_share: share(bound.polls_succeeded, bound.polls),
            halts_per_s: bound.halts as f64 / seconds,
            gain_ns_per_s: gain,
            gain_share: gain / 1e9,
        }
    }
}

/// From two readings in files.
fn of_files(first: &Path, second: &Path, between: Nanos, args: &Args) -> Outcome {
    ensure!(between > Nanos::ZERO, "--between 0: the files are of the same time");
    let read = |path: &Path| {
        let text = Input::open(path)?.whole(LONGEST)?;
        Domstats::parse(&text).with_context(|| format!("cannot read {} as `virsh domstats`", path.display()))
    };
    let Counted { delta, names, notes } = read(second)?.since(&read(first)?, between.get())?;
    notes.iter().for_each(|note| output::remark(&format!("note: {note}")));
    ensure!(!delta.vms.is_empty(), "{} and {} have no domain in common", first.display(), second.display());
    let name = |id: VmId| names.get(&id).cloned().unwrap_or_default();
    let interval = interval(&delta, between.get(), &BTreeMap::new(), &name, args.halt_cost)?;
    output::result(args.format.format, &[&interval], || table(&interval), || page(&interval))
}

/// The most bytes of a file: readings of some thousand VMs.
const LONGEST: u64 = 64 << 20;

pub(crate) fn run(args: Args) -> Outcome {
    if let ([first, second], Some(between)) = (args.files.as_slice(), args.between) {
        return of_files(first, second, between, &args);
    }
    let plan = plan(&args)?;
    privileges::record();
    let mut reader = StatsReader::new(args.pid)?;
    let (first, _) = reader.snapshot();
    let (begin, mut last) = (Instant::now(), first.clone());
    let mut all = vec![];
    for number in 1..=plan.count {
        // Counted from the start, so that intervals do not drift.
        let due = plan.interval.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        let (now, sources) = reader.snapshot();
        if now.vms.is_empty() {
            bail!("the last VM ended after {}", duration(begin.elapsed().as_nanos() as f64));
        }
        let at_ns = now.at_ns.saturating_sub(first.at_ns);
        let interval = interval(&now.since(&last), at_ns, &sources, &|id| reader.comm(id), args.halt_cost)?;
        last = now;
        match args.format.format {
            Format::Json => all.push(interval),
            Format::Csv => output::text(&csv_lines(&interval, number == 1)?)?,
            Format::Table if plan.count == 1 => output::text(&page(&interval))?,
            Format::Table => output::text(&line(&interval, (number - 1) % LINES == 0))?,
        }
    }
    if args.format.format == Format::Json {
        output::json(&all)?;
    }
    Ok(Answer::Yes)
}

fn interval(
    delta: &Delta,
    at_ns: u64,
    sources: &BTreeMap<VmId, Source>,
    name: &dyn Fn(VmId) -> String,
    halt_cost: Nanos,
) -> anyhow::Result<Interval> {
    let mut vms = vec![];
    for (id, counters) in &delta.vms {
        vms.push(OfVm {
            vm: *id,
            process: name(*id),
            source: sources.get(id).copied(),
            figures: Figures::of(Bound::of(counters, halt_cost)?, delta.span_ns),
        });
    }
    // Bounds of single VMs add up to a closer one than the bound of their sums.
    let total = Bound::sum(vms.iter().map(|vm| vm.figures.bound));
    let figures = Figures::of(total, delta.span_ns);
    Ok(Interval {
        at_ns,
        span_ns: delta.span_ns,
        halt_cost_ns: halt_cost.get(),
        ended: delta.ended,
        total: figures,
        vms,
    })
}

#[cfg(test)]
mod tests;
