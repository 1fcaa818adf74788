//! `dwell bound`

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::quantity;
use anyhow::{Context, bail};
use dwell_capture::kvm_stats::{Bound, Delta, Domstats, Source, StatsReader, VmId};
use dwell_policy::Nanos;
use dwell_recording::regular;
use dwell_report::{Cell, Column, Table, count, duration, number_of, percent};
use serde::Serialize;
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
    if between == Nanos(0) {
        bail!("--between 0: the files are of the same time");
    }
    let read = |path: &Path| {
        let text =
            regular::read_text(path, LONGEST).with_context(|| format!("cannot read {}", path.display()))?;
        Domstats::parse(&text).with_context(|| format!("cannot read {} as `virsh domstats`", path.display()))
    };
    let (delta, names) = read(second)?.since(&read(first)?, between.get());
    if delta.vms.is_empty() {
        bail!("{} and {} have no domain in common", first.display(), second.display());
    }
    let name = |id: VmId| names.get(&id).cloned().unwrap_or_default();
    let interval = interval(&delta, between.get(), &BTreeMap::new(), &name, args.halt_cost)?;
    match args.format.format {
        Format::Json => output::json(&[interval])?,
        Format::Csv => output::text(&csv_lines(&interval, true)?)?,
        Format::Table => output::text(&page(&interval))?,
    }
    Ok(Answer::Yes)
}

/// The most bytes of a file: readings of some thousand VMs.
const LONGEST: u64 = 64 << 20;

pub(crate) fn run(args: Args) -> Outcome {
    if let ([first, second], Some(between)) = (args.files.as_slice(), args.between) {
        return of_files(first, second, between, &args);
    }
    let plan = plan(&args)?;
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

/// Lines of an interval report between two headings.
const LINES: u64 = 20;

/// One line for a terminal, with a heading where asked for.
fn line(interval: &Interval, heading: bool) -> String {
    let f = &interval.total;
    let mark = if f.bound.halts_exact { "" } else { "<=" };
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
    let row = format!(
        "{:>9}  {:>10}  {:>8}  {:>8}  {:>12}  {:>12}  {:>8}\n",
        duration(interval.at_ns as f64),
        percent(f.polled_share),
        share(f.success_share),
        share(f.wasted_share),
        format!("{mark}{}", whole(f.halts_per_s)),
        format!("<={}/s", duration(f.gain_ns_per_s)),
        format!("<={}", percent(f.gain_share)),
    );
    let head = format!(
        "{:>9}  {:>10}  {:>8}  {:>8}  {:>12}  {:>12}  {:>8}\n",
        "after", "CPU polled", "success", "failed", "halts/s", "gain", "of a CPU"
    );
    if heading { head + &row } else { row }
}

fn whole(number: f64) -> String {
    // Saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    count(number.round() as u128)
}

/// One interval, explained.
fn page(interval: &Interval) -> String {
    let f = &interval.total;
    let bound = &f.bound;
    let exactly = if bound.halts_exact { "" } else { "at most " };
    let halt_cost = duration(interval.halt_cost_ns as f64);
    let share_of = |part: Option<f64>| part.map_or_else(|| "none".to_owned(), percent);
    let mut text = format!(
        "{} over {}, halt cost {halt_cost}\n\n\
         polling CPU        {}/s, {} of a CPU\n\
         \x20 in failed polls  {}/s, {}\n\
         successful polls   {} of {} polls/s\n\
         halts              {exactly}{}/s, costing {}/s\n\
         least cost         {}/s, a lower bound for any policy\n\
         gain               at most {}/s, {} of a CPU, for any setting\n",
        number_of(interval.vms.len() as u128, "VM"),
        duration(interval.span_ns as f64),
        duration(f.polled_ns_per_s),
        percent(f.polled_share),
        duration(f.polled_ns_per_s * f.wasted_share.unwrap_or(0.0)),
        share_of(f.wasted_share),
        share_of(f.success_share),
        whole(bound.polls as f64 / interval.span_ns.max(1) as f64 * 1e9),
        whole(f.halts_per_s),
        duration(f.halts_per_s * interval.halt_cost_ns as f64),
        duration(bound.least_cost_ns as f64 / interval.span_ns.max(1) as f64 * 1e9),
        duration(f.gain_ns_per_s),
        percent(f.gain_share),
    );
    if interval.vms.len() > 1 {
        text.push_str(&format!("\n{}", output::fitted(&table(interval))));
    }
    if !bound.halts_exact {
        text.push_str(
            "\nnote: these counters have no lengths of halts, so the bound is loose; for a closer estimate run `dwell record host` \
             and `dwell tune`\n",
        );
    }
    if interval.ended > 0 {
        text.push_str(&format!(
            "\nnote: counts of {} that ended during the measurement are lost\n",
            number_of(interval.ended as u128, "VM")
        ));
    }
    text
}

fn table(interval: &Interval) -> Table {
    let mut table = Table::new([
        Column::number("after", "at_ns").rank(5),
        Column::number("over", "span_ns").rank(5),
        Column::text("VM", "vm"),
        Column::text("process", "process").rank(2),
        Column::number("polling CPU", "polled_share"),
        Column::number("failed polls", "wasted_share").rank(4),
        Column::number("success", "success_share").rank(3),
        Column::number("polls", "polls").rank(4),
        Column::number("halts", "halts").rank(3),
        Column::text("halts are", "halts_are").rank(6),
        Column::number("cost", "cost_ns"),
        Column::number("least cost", "least_cost_ns"),
        Column::number("gain at most", "gain_ns"),
    ]);
    let rows = interval.vms.iter().map(|vm| (vm.vm.to_string(), vm.process.clone(), &vm.figures));
    for (vm, process, f) in rows.chain([("all".to_owned(), String::new(), &interval.total)]) {
        let exactly = if f.bound.halts_exact { "exact" } else { "at most" };
        table.push([
            Cell::Nanos(interval.at_ns as f64),
            Cell::Nanos(interval.span_ns as f64),
            Cell::Text(vm),
            Cell::Text(process),
            Cell::Share(f.polled_share),
            Cell::share(f.wasted_share),
            Cell::share(f.success_share),
            Cell::Count(f.bound.polls.into()),
            Cell::Count(f.bound.halts.into()),
            Cell::Text(exactly.to_owned()),
            Cell::Nanos(f.bound.cost_ns as f64),
            Cell::Nanos(f.bound.least_cost_ns as f64),
            Cell::Nanos(f.bound.gain_ns as f64),
        ]);
    }
    table
}

/// The rows of an interval as CSV, with a heading before the first.
fn csv_lines(interval: &Interval, heading: bool) -> anyhow::Result<String> {
    let mut bytes = vec![];
    table(interval).write_csv(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if heading { text } else { text.split_once('\n').map_or(String::new(), |(_, rows)| rows.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn planned(words: &[&str]) -> anyhow::Result<(u128, u64)> {
        let cli = Cli::try_parse_from([&["bound"], words].concat())?;
        plan(&cli.args).map(|plan| (plan.interval.as_millis(), plan.count))
    }

    #[test]
    fn intervals_from_what_was_asked() {
        assert_eq!(planned(&[]).unwrap(), (10_000, 1));
        assert_eq!(planned(&["--interval", "1s"]).unwrap(), (1_000, 10));
        assert_eq!(planned(&["--interval", "3s", "--duration", "10s"]).unwrap(), (3_000, 4));
        assert_eq!(planned(&["--interval", "1s", "--count", "3"]).unwrap(), (1_000, 3));
        assert_eq!(planned(&["--count", "3"]).unwrap(), (10_000, 3));
        assert!(planned(&["--interval", "1ms"]).unwrap_err().to_string().contains("10ms"));
        assert!(planned(&["--count", "0"]).is_err());
    }

    fn example(halts_exact: bool) -> Interval {
        let bound = Bound {
            polls: 9_000,
            polls_succeeded: 3_000,
            polled_ns: 400_000_000,
            wasted_ns: 300_000_000,
            halts: 6_000,
            halts_exact,
            cost_ns: 520_000_000,
            least_cost_ns: 160_000_000,
            gain_ns: 360_000_000,
        };
        let figures = Figures::of(bound, 2_000_000_000);
        let of_vm = |pid| OfVm {
            vm: VmId { pid, fd: 9 },
            process: "qemu".to_owned(),
            source: Some(Source::Debugfs),
            figures,
        };
        Interval {
            at_ns: 2_000_000_000,
            span_ns: 2_000_000_000,
            halt_cost_ns: 20_000,
            ended: 0,
            total: figures,
            vms: vec![of_vm(7), of_vm(8)],
        }
    }

    #[test]
    fn lines_say_what_is_exact_and_what_is_a_bound() {
        assert_eq!(
            line(&example(false), true),
            "    after  CPU polled   success    failed       halts/s          gain  of a CPU\n\
             \x20  2.00 s      20.0 %    33.3 %    75.0 %       <=3,000    <=180 ms/s  <=18.0 %\n"
        );
        assert!(line(&example(true), false).contains("       3,000  "));
    }

    #[test]
    fn page_explains_one_interval() {
        let page = page(&example(true));
        assert!(page.contains("polling CPU        200 ms/s, 20.0 % of a CPU\n"), "{page}");
        assert!(page.contains("  in failed polls  150 ms/s, 75.0 %\n"), "{page}");
        assert!(
            page.contains("gain               at most 180 ms/s, 18.0 % of a CPU, for any setting\n"),
            "{page}"
        );
        assert!(!page.contains("note"));
        assert!(super::page(&example(false)).contains("the bound is loose"));
    }

    #[test]
    fn csv_has_one_heading() {
        let first = csv_lines(&example(true), true).unwrap();
        assert!(first.starts_with("at_ns,span_ns,vm,process,polled_share"), "{first}");
        assert_eq!(first.lines().count(), 4);
        let next = csv_lines(&example(true), false).unwrap();
        assert!(next.starts_with("2000000000,2000000000,7-9,qemu,0.2,0.75"), "{next}");
    }
}
