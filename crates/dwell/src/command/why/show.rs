//! Bills, as text and tables.

use crate::output;
use dwell_report::{Cell, Column, Rows, Table, count, duration, number_of, percent};
use dwell_timer::why::{Cause, Line, OfSubject, Report};

/// What a line is for, in words.
fn words(cause: &Cause) -> String {
    match cause {
        Cause::FailedPoll => "failed polls".to_owned(),
        Cause::SuccessfulPoll => "successful polls".to_owned(),
        Cause::Halt => "halts: going to sleep and waking up".to_owned(),
        Cause::Run { wake } => format!("guest, woken by: {wake}"),
        Cause::Exit { reason, device: None } => format!("exit {reason}, in KVM"),
        Cause::Exit { reason, device: Some(device) } => format!("exit {reason}, in KVM: {}", device.name()),
        Cause::Device { device } => format!("device served by the VMM: {}", device.name()),
        Cause::Vmm => "in the VMM, for no device".to_owned(),
        Cause::Wait => "waiting: system calls, sleeping and waking up".to_owned(),
        Cause::BeforeWait => "user space before the next wait: polling or computing".to_owned(),
        Cause::Timeout { device: Some(device) } => format!("work for a timer: {}", device.name()),
        Cause::Timeout { device: None } => "work after a timeout".to_owned(),
        Cause::Ready { descriptor: Some(kind), by: Some(by) } => {
            format!("work for a descriptor: {kind}, written by {by}")
        }
        Cause::Ready { descriptor: Some(kind), by: None } => format!("work for a descriptor: {kind}"),
        Cause::Ready { descriptor: None, .. } => "work for a descriptor".to_owned(),
        Cause::Poll => "polls of idle CPUs".to_owned(),
        Cause::Task { woken_by: Some(by) } => format!("task, woken by: {by}"),
        Cause::Task { woken_by: None } => "task, not woken while watched".to_owned(),
        Cause::Work { function } => format!("work: {function}"),
        Cause::Timer { function, wakes: Some(task) } => format!("timer: {function}, for {task}"),
        Cause::Timer { function, wakes: None } => format!("timer: {function}"),
        Cause::Interrupt { name } => name.clone(),
        Cause::IdleTask => "idle task: to an idle state and back".to_owned(),
        Cause::Whole => "whole thread".to_owned(),
        Cause::Rest => "rest: no event shows what for".to_owned(),
    }
}

/// The threads that a line is of.
fn whose(line: &Line) -> &str {
    line.thread.as_deref().unwrap_or_else(|| line.class.name())
}

/// Lines of a bill that are shown one by one, the largest.
const MOST_LINES: usize = 30;

/// The columns of lines, over a span. Of a machine's CPUs there are wakeups.
fn columns<'a, T: Copy>(
    table: Rows<T>,
    span_ns: u64,
    with_wakeups: bool,
    of: impl Fn(T) -> &'a Line,
) -> Rows<T> {
    let span = span_ns.max(1) as f64;
    let often = |number: u64| (number > 0).then_some(number as f64);
    let rate = |number: u64| often(number).map(|often| Cell::Rounded(often * 1e9 / span));
    let mut table = table
        .column(Column::number("CPU", "cpu_share"), |row| Cell::Share(of(row).cpu_ns as f64 / span))
        .column(Column::number("time", "cpu_ns").rank(2), |row| Cell::Nanos(of(row).cpu_ns as f64))
        .column(Column::number("a second", "per_s"), |row| rate(of(row).count))
        .column(Column::number("each", "each_ns").rank(1), |row| {
            often(of(row).count).map(|often| Cell::Nanos(of(row).cpu_ns as f64 / often))
        });
    if with_wakeups {
        table = table.column(Column::number("wakeups/s", "wakeups_per_s"), |row| rate(of(row).wakeups));
    }
    table
        .column(Column::text("thread", "thread"), |row| whose(of(row)))
        .column(Column::text("what for", "cause"), |row| words(&of(row).cause))
}

/// The lines of all bills.
pub(super) fn csv(report: &Report) -> Table {
    let lines = report.bills.iter().flat_map(|bill| bill.bill.lines.iter().map(move |line| (bill, line)));
    let table = Table::of(lines)
        .column(Column::number("process", "pid"), |(bill, _)| bill.pid)
        .column(Column::text("VM", "name"), |(bill, _)| bill.name.as_str());
    columns(table, report.span_ns, true, |(_, line)| line).table()
}

pub(super) fn text(report: &Report) -> String {
    report.bills.iter().map(|one| bill(one, report.span_ns)).collect::<Vec<_>>().join("\n")
}

/// What is missing of the lines.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let untraced = report.untraced.as_ref().map(|why| {
        format!("nothing was traced, so that there are only whole threads and the counters of polls: {why}")
    });
    let lost = (report.lost_events > 0).then(|| {
        format!(
            "{} of {} events were lost; what they show is in other lines or in the rest",
            count(report.lost_events.into()),
            count((report.events + report.lost_events).into())
        )
    });
    untraced.into_iter().chain(lost).collect()
}

fn heading(one: &OfSubject, span_ns: u64) -> String {
    let of_cpu = |ns: u64| percent(ns as f64 / span_ns.max(1) as f64);
    let name = &one.name;
    let (all, span) = (of_cpu(one.bill.cpu_ns), duration(span_ns as f64));
    let Some(pid) = one.pid else {
        let busy = one.busy_ns.map_or("?".to_owned(), of_cpu);
        let steal = one.steal_ns.filter(|ns| *ns > 0);
        let steal = steal.map_or_else(String::new, |ns| format!(", {} of it steal", of_cpu(ns)));
        return format!("{name}: {all} of a CPU in {span}; busy by /proc/stat: {busy}{steal}");
    };
    let before = one.unwatched_ns_per_s;
    let before =
        before.map_or_else(String::new, |ns| format!("; {} before it was watched", percent(ns as f64 / 1e9)));
    format!("{name} (process {pid}): {all} of a CPU in {span}, by /proc{before}")
}

/// A line for each bill, and one for what removes most of it.
pub(crate) fn brief(report: &Report) -> Vec<String> {
    let of_cpu = |ns: u64| percent(ns as f64 / report.span_ns.max(1) as f64);
    let of = |one: &OfSubject| {
        let largest = one.bill.lines.iter().filter(|line| line.cause != Cause::Rest).take(3);
        let shown = |line: &Line| format!("{} {}: {}", of_cpu(line.cpu_ns), whose(line), words(&line.cause));
        let largest: Vec<String> = largest.map(shown).collect();
        let all = of_cpu(one.bill.cpu_ns);
        let removal = one.removals.first();
        let removal =
            removal.map(|first| format!("  saves {} if removed: {}", of_cpu(first.saves_ns), first.what));
        [Some(format!("why {}: {all} of a CPU: {}", one.name, largest.join("; "))), removal]
    };
    let untraced = report.untraced.as_ref().map(|why| format!("why: nothing was traced: {why}"));
    report.bills.iter().flat_map(of).flatten().chain(untraced).collect()
}

/// As its owner reads it.
pub(crate) fn bill(one: &OfSubject, span_ns: u64) -> String {
    let OfSubject { pid, bill, removals, .. } = one;
    let of_cpu = |ns: u64| percent(ns as f64 / span_ns.max(1) as f64);
    let heading = heading(one, span_ns);
    let mut text = output::wrapped(&heading);
    let with_wakeups = pid.is_none();
    // What is shown as nothing is one line, and what nobody reads.
    let is_nothing = |ns: u64| ns < span_ns / 20_000;
    let is_small = |(place, line): &(usize, &Line)| {
        is_nothing(line.cpu_ns) || *place >= MOST_LINES && line.cause != Cause::Rest
    };
    let (small, shown): (Vec<_>, Vec<_>) = bill.lines.iter().enumerate().partition(is_small);
    let lines = shown.into_iter().map(|(_, line)| line);
    let mut table = columns(Table::of(lines), span_ns, with_wakeups, |line| line).table();
    if !small.is_empty() {
        let cpu_ns = small.iter().map(|(_, line)| line.cpu_ns).sum::<u64>() as f64;
        let numbers = [Cell::Share(cpu_ns / span_ns.max(1) as f64), Cell::Nanos(cpu_ns)];
        let missing = std::iter::repeat_n(Cell::Missing, if with_wakeups { 3 } else { 2 });
        let words = [
            Cell::Text("-".to_owned()),
            Cell::Text(format!("{} (--format csv has all)", number_of(small.len() as u128, "smaller cause"))),
        ];
        table.push(numbers.into_iter().chain(missing).chain(words));
    }
    text += &format!("\n{}", output::fitted(&table));
    if removals.is_empty() {
        return text + "\nNothing that dwell knows removes 0.1 % of a CPU of it.\n";
    }
    text += "\nWhat removes it, and what each alone saves:\n";
    for removal in removals {
        let first = format!("  {:>6}  ", of_cpu(removal.saves_ns));
        let rest = " ".repeat(first.chars().count());
        let on_host = removal
            .saves_on_host_ns
            .filter(|ns| !is_nothing(*ns))
            .map_or_else(String::new, |ns| format!("; on the host about {}", of_cpu(ns)));
        let limits = |[low, high]: [u64; 2]| format!(" (95 % interval {} to {})", of_cpu(low), of_cpu(high));
        let limits = removal.saves_interval_ns.map_or_else(String::new, limits);
        text += &output::hanging(&first, &rest, &format!("{}{limits}{on_host}", removal.what));
        let further = format!("{rest}       ");
        text += &output::hanging(&format!("{rest}do:    "), &further, &removal.how);
        text += &output::hanging(&format!("{rest}costs: "), &further, &removal.costs);
    }
    text
}
