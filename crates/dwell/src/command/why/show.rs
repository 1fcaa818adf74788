//! Bills, as text and tables.

use super::Report;
use crate::output;
use dwell_report::{Cell, Column, Table, count, duration, percent};
use dwell_timer::why::{Cause, Line};

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
        Cause::Timeout => "work after a timeout".to_owned(),
        Cause::Ready { descriptor: Some(kind) } => format!("work for a descriptor: {kind}"),
        Cause::Ready { descriptor: None } => "work for a descriptor".to_owned(),
        Cause::Whole => "whole thread".to_owned(),
        Cause::Rest => "rest: no event shows what for".to_owned(),
    }
}

/// The lines of all bills.
pub(super) fn table(report: &Report, for_programs: bool) -> Table {
    let mut columns = vec![];
    if for_programs {
        columns.extend([Column::number("process", "pid"), Column::text("VM", "name")]);
    }
    columns.extend([
        Column::number("CPU", "cpu_share"),
        Column::number("time", "cpu_ns").rank(2),
        Column::number("a second", "per_s"),
        Column::number("each", "each_ns").rank(1),
        Column::text("thread", "thread"),
        Column::text("what for", "cause"),
    ]);
    let mut table = Table::new(columns);
    for one in &report.bills {
        for line in &one.bill.lines {
            let mut cells = vec![];
            if for_programs {
                cells.extend([Cell::Count(one.subject.pid.into()), Cell::Text(one.subject.name.clone())]);
            }
            cells.extend(of_line(line, report.span_ns));
            table.push(cells);
        }
    }
    table
}

fn of_line(line: &Line, span_ns: u64) -> [Cell; 6] {
    let span = span_ns.max(1) as f64;
    let often = (line.count > 0).then_some(line.count as f64);
    [
        Cell::Share(line.cpu_ns as f64 / span),
        Cell::Nanos(line.cpu_ns as f64),
        often.map_or(Cell::Missing, |often| Cell::Rounded(often * 1e9 / span)),
        often.map_or(Cell::Missing, |often| Cell::Nanos(line.cpu_ns as f64 / often)),
        Cell::Text(line.thread.clone().unwrap_or_else(|| line.class.name().to_owned())),
        Cell::Text(words(&line.cause)),
    ]
}

pub(super) fn print(report: &Report) -> anyhow::Result<()> {
    let span = report.span_ns.max(1) as f64;
    for one in &report.bills {
        let heading = format!(
            "{} (process {}): {} of a CPU in {}, by /proc",
            one.subject.name,
            one.subject.pid,
            percent(one.bill.cpu_ns as f64 / span),
            duration(span)
        );
        output::text(&output::wrapped(&heading))?;
        output::text("\n")?;
    }
    output::text(&output::fitted(&table(report, report.bills.len() > 1)))?;
    if let Some(why) = &report.untraced {
        output::note(&format!(
            "nothing was traced, so that there are only whole threads and KVM's counters: {why}"
        ));
    }
    if report.lost_events > 0 {
        output::note(&format!(
            "{} of {} events were lost; what they show is in other lines or in the rest",
            count(report.lost_events.into()),
            count((report.events + report.lost_events).into())
        ));
    }
    Ok(())
}
