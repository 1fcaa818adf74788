//! The bill of processes of this machine, from their events and counters.

use super::removal::per_s;
use super::slices::{SLICES, Slicing, half_width};
use super::{Bill, Counted, Describe, Polls, Report, Task, Watch};
use crate::record::reasons;
use dwell_capture::kvm_stats::{Counters, StatsReader};
use dwell_capture::names::pids_are_global;
use dwell_capture::probe::{Probe, Trace, TraceError, any_of};
use dwell_capture::system::System;
use dwell_capture::tracefs::Tracefs;
use dwell_capture::{Until, now_ns};
use dwell_machine::threads::{Thread, process_cpu_time};
use dwell_machine::{Machine, Vmm};
use dwell_trace::event::{Event, SystemCall, TracepointKind};
use dwell_trace::merge::Merge;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The bills of some processes.
#[derive(Debug)]
pub struct Bills {
    /// In the order of the processes.
    pub bills: Vec<Bill>,
    /// Of each, the bill of each slice of the time.
    pub slices: Vec<Vec<Bill>>,
    /// What each used before it was watched \[ns of CPU a second\]: events cost those that cause them. `None`: nothing was
    /// traced, or it was not counted.
    pub unwatched_ns_per_s: Vec<Option<u64>>,
    /// Half the width of the interval of that, as a share of it.
    pub unwatched_half_width: Vec<Option<f64>>,
    /// What was watched, without the bills.
    pub seen: Report,
}

/// The longest time between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// How long events are kept back to be put in order \[ns\].
const SLACK_NS: u64 = 100_000_000;
/// A filter is at most a page long.
const MOST_RANGES: usize = 40;

/// Watches processes, each with what is known of its VMM. `on_open` is called when the events are open, before any comes:
/// it may drop privileges.
pub fn watch(
    system: &Arc<dyn System>,
    processes: &[(u32, Option<&Vmm>)],
    until: &Until<'_>,
    on_open: fn(),
) -> Bills {
    let machine: &dyn Machine = &**system;
    let tasks: Vec<Vec<Task>> = processes.iter().map(|(pid, vmm)| Task::all(machine, *pid, *vmm)).collect();
    let (opened, names) = match open(&**system, &tasks) {
        Ok((trace, names)) => (Ok(trace), names),
        Err(why) => (Err(why), reasons("")),
    };
    on_open();
    let mut watches: Vec<Watch> = processes
        .iter()
        .zip(&tasks)
        .map(|((pid, _), tasks)| Watch::new(tasks.clone(), names.clone(), describe(system.clone(), *pid)))
        .collect();
    let mut readers: Vec<Option<StatsReader>> =
        processes.iter().map(|(pid, _)| StatsReader::new(Some(*pid)).ok()).collect();
    let duration = until.duration.map(|whole| whole - whole / UNWATCHED);
    let unwatched = match (&opened, until.duration) {
        (Ok(_), Some(whole)) => unwatched(processes, &tasks, whole / UNWATCHED, until),
        _ => vec![(None, None); processes.len()],
    };
    let mut round = Round::begin(opened, duration);
    let before: Vec<Reading> = readings(processes, &tasks, &mut readers);
    let mut each = |event: Option<&Event>| match event {
        Some(event) => watches.iter_mut().for_each(|watch| watch.observe(event)),
        None => watches.iter_mut().for_each(Watch::cut),
    };
    round.read(until, &mut each);
    let after: Vec<Reading> = readings(processes, &tasks, &mut readers);
    round.end(now_ns(), &mut each);
    let slices = watches.iter_mut().map(Watch::take_slices).collect();
    let (unwatched_ns_per_s, unwatched_half_width) = unwatched.into_iter().unzip();
    let both = watches.into_iter().zip(before.iter().zip(&after));
    Bills {
        bills: both.map(|(watch, (before, after))| watch.finish(&after.since(before))).collect(),
        slices,
        unwatched_ns_per_s,
        unwatched_half_width,
        seen: round.seen,
    }
}

/// The part of the duration in which nothing is traced yet: one of so many.
const UNWATCHED: u32 = 4;

/// What processes use while nothing is traced \[ns of CPU a second\], and the half width of the interval of that.
fn unwatched(
    processes: &[(u32, Option<&Vmm>)],
    tasks: &[Vec<Task>],
    span: Duration,
    until: &Until<'_>,
) -> Vec<(Option<u64>, Option<f64>)> {
    let mut none: Vec<Option<StatsReader>> = processes.iter().map(|_| None).collect();
    let begun = Instant::now();
    let mut read = || readings(processes, tasks, &mut none).into_iter().map(|one| one.process_ns).collect();
    let mut all: Vec<Vec<Option<u64>>> = vec![read()];
    while begun.elapsed() < span && !until.stop.load(Ordering::Relaxed) {
        std::thread::sleep((span / SLICES).min(ROUND).min(span.saturating_sub(begun.elapsed())));
        all.push(read());
    }
    let span_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let used = |process: usize| {
        let since = |before: &Vec<Option<u64>>, after: &Vec<Option<u64>>| {
            Some(after[process]?.saturating_sub(before[process]?))
        };
        let whole = since(&all[0], &all[all.len() - 1]).map(|ns| per_s(ns, span_ns));
        let each: Option<Vec<f64>> =
            all.windows(2).map(|two| Some(since(&two[0], &two[1])? as f64)).collect();
        (whole, each.and_then(|each| half_width(&each, &vec![1.0; each.len()])))
    };
    (0..processes.len()).map(used).collect()
}

/// Events in order, and the slices of the time.
pub(super) struct Round {
    trace: Option<Trace>,
    /// Why nothing is traced, if it is not.
    pub(super) seen: Report,
    merge: Merge,
    slicing: Slicing,
    duration: Option<Duration>,
    pub(super) start_ns: u64,
}

impl Round {
    /// Lets events come, which are read for `duration`.
    pub(super) fn begin(opened: Result<Trace, String>, duration: Option<Duration>) -> Round {
        let enabled = opened.and_then(|mut trace| match trace.enable() {
            Ok(()) => Ok(trace),
            Err(error) => Err(error.to_string()),
        });
        let seen = Report { untraced: enabled.as_ref().err().cloned(), ..Report::default() };
        let (start_ns, merge) = (now_ns(), Merge::default());
        let slicing = Slicing::new(start_ns, duration);
        Round { trace: enabled.ok(), seen, merge, slicing, duration, start_ns }
    }

    /// Reads events for the duration, or until it is stopped. `each` takes them, and `None` where a slice of the time ends
    /// and another begins.
    pub(super) fn read(&mut self, until: &Until<'_>, each: &mut dyn FnMut(Option<&Event>)) {
        let begun = Instant::now();
        while !until.stop.load(Ordering::Relaxed) {
            let left = self.duration.map_or(ROUND, |duration| duration.saturating_sub(begun.elapsed()));
            match &self.trace {
                _ if left.is_zero() => break,
                None => std::thread::sleep(left.min(ROUND)),
                Some(trace) => {
                    // What a wait that fails leaves is read at the end.
                    let _ = trace.wait(left.min(ROUND));
                    self.pass(now_ns().saturating_sub(SLACK_NS), each);
                }
            }
        }
    }

    /// Reads what is left of the events up to `end_ns`.
    pub(super) fn end(&mut self, end_ns: u64, each: &mut dyn FnMut(Option<&Event>)) {
        let _ = self.trace.as_mut().map(Trace::disable);
        self.seen.span_ns = end_ns - self.start_ns;
        self.pass(end_ns, each);
        if let Some(trace) = &mut self.trace {
            let _ = trace.settle_losses();
            self.seen.lost_events += trace.lost().values().sum::<u64>();
        }
        while self.slicing.ends(end_ns) {
            each(None);
        }
    }

    /// Passes on the events up to `until_ns`.
    fn pass(&mut self, until_ns: u64, each: &mut dyn FnMut(Option<&Event>)) {
        let Round { trace: Some(trace), merge, slicing, start_ns, seen, .. } = self else { return };
        trace.drain(|event| {
            if event.time_ns >= *start_ns {
                seen.events += 1;
                seen.lost_events += u64::from(!merge.push(event));
            }
        });
        merge.release(until_ns, |event| {
            while slicing.ends(event.time_ns) {
                each(None);
            }
            each(Some(event));
        });
    }
}

/// The probes of these threads, and the names of VM exits.
fn open(system: &dyn System, tasks: &[Vec<Task>]) -> Result<(Trace, crate::pairing::ReasonNames), String> {
    if !pids_are_global(system) {
        return Err(
            "in a PID namespace the kernel does not know the threads by their numbers here".to_owned()
        );
    }
    let words = |error: TraceError| error.to_string();
    let tracefs = Tracefs::open(system).map_err(words)?;
    let mut tids: Vec<i32> = tasks.iter().flatten().map(|task| task.tid).collect();
    tids.sort_unstable();
    let of_threads = |kind| Probe::of(kind).filtered(filter("common_pid", &tids)).optional();
    let mut probes = vec![Probe::of(TracepointKind::Ran).filtered(filter("pid", &tids))];
    probes.extend(
        [
            TracepointKind::VcpuWakeup,
            TracepointKind::HaltPoll,
            TracepointKind::Exit,
            TracepointKind::Entry,
            TracepointKind::UserspaceExit,
            TracepointKind::Port,
            TracepointKind::Mmio,
            TracepointKind::Msr,
            TracepointKind::SyntheticTimer,
            TracepointKind::ApicAccept,
            TracepointKind::LineRaised,
            TracepointKind::MessageSent,
            TracepointKind::AnyEnter,
        ]
        .map(of_threads),
    );
    probes.push(Probe::of(TracepointKind::AnyLeave).filtered(returns(tasks, &tids)).optional());
    let names = tracefs.format_text(system, &TracepointKind::Exit.to_string()).unwrap_or_default();
    Ok((Trace::open(system, &tracefs, &probes, None).map_err(words)?, reasons(&names)))
}

/// Waits of all threads that return, and every system call of I/O threads, in which it is of interest what they do after
/// the last one.
fn returns(tasks: &[Vec<Task>], tids: &[i32]) -> String {
    let waits = any_of("id", SystemCall::ALL.iter().filter_map(|call| call.number()));
    let all = format!("({}) && ({waits})", filter("common_pid", tids));
    let mut io: Vec<i32> =
        tasks.iter().flatten().filter(|task| task.may_poll()).map(|task| task.tid).collect();
    io.sort_unstable();
    if io.is_empty() { all } else { format!("{all} || ({})", filter("common_pid", &io)) }
}

/// Threads whose numbers follow each other are one range; where there are too many ranges, what is between is let
/// through too, and sorted out later.
fn filter(field: &str, tids: &[i32]) -> String {
    let mut ranges: Vec<(i32, i32)> = vec![];
    for tid in tids {
        match ranges.last_mut() {
            Some((_, last)) if *tid <= *last + 1 => *last = *tid,
            _ => ranges.push((*tid, *tid)),
        }
    }
    if ranges.len() > MOST_RANGES {
        ranges = vec![(ranges[0].0, ranges[ranges.len() - 1].1)];
    }
    let term = |(first, last): &(i32, i32)| match first == last {
        true => format!("{field} == {first}"),
        false => format!("({field} >= {first} && {field} <= {last})"),
    };
    ranges.iter().map(term).collect::<Vec<_>>().join(" || ")
}

/// Descriptors by their kind: what is in brackets in their names is a number.
fn describe(system: Arc<dyn System>, pid: u32) -> Describe {
    let mut known = BTreeMap::new();
    Box::new(move |fd| {
        let kind = known.entry(fd).or_insert_with(|| {
            let target = system.target(&format!("/proc/{pid}/fd/{fd}")).ok()?;
            let name = target.strip_prefix("anon_inode:").unwrap_or(&target);
            Some(match name.split_once(':') {
                Some((kind, _)) if !name.starts_with('/') => kind.to_owned(),
                _ => name.trim_matches(['[', ']']).to_owned(),
            })
        });
        kind.clone()
    })
}

/// The counters of a process at one time, and of the kernel's threads for it.
struct Reading {
    threads: BTreeMap<i32, u64>,
    process_ns: Option<u64>,
    counters: Option<Counters>,
}

fn readings(
    processes: &[(u32, Option<&Vmm>)],
    tasks: &[Vec<Task>],
    readers: &mut [Option<StatsReader>],
) -> Vec<Reading> {
    let of = |((pid, _), (tasks, reader)): (&(u32, _), (&Vec<Task>, &mut Option<StatsReader>))| {
        let cpu = |task: &Task| {
            let tid = u32::try_from(task.tid).ok()?;
            Some((task.tid, Thread::of(tid, tid).cpu_time().ok()?.get()))
        };
        let threads: BTreeMap<i32, u64> = tasks.iter().filter_map(cpu).collect();
        let others = tasks.iter().filter(|task| !task.own).filter_map(|task| threads.get(&task.tid));
        let others: u64 = others.sum();
        let all = reader.as_mut().map(|reader| reader.snapshot().0);
        Reading {
            threads,
            process_ns: process_cpu_time(*pid).ok().map(|own| own.get() + others),
            counters: all.and_then(|all| Counters::sum(all.vms.into_values())),
        }
    };
    processes.iter().zip(tasks.iter().zip(readers)).map(of).collect()
}

impl Reading {
    fn since(&self, before: &Reading) -> Counted {
        let threads: BTreeMap<i32, u64> = self
            .threads
            .iter()
            .filter_map(|(tid, now)| Some((*tid, now.saturating_sub(*before.threads.get(tid)?))))
            .collect();
        let counted =
            self.counters.clone().zip(before.counters.clone()).map(|(now, before)| now.since(before));
        let polls = counted.and_then(|counted| {
            Some(Polls {
                success_ns: counted.halt_poll_success_ns?,
                success: counted.halt_successful_poll?,
                fail_ns: counted.halt_poll_fail_ns?,
            })
        });
        let process_ns =
            self.process_ns.zip(before.process_ns).map(|(now, before)| now.saturating_sub(before));
        Counted { process_ns: process_ns.unwrap_or(0), threads, polls }
    }
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn a_filter_is_short_and_lets_every_thread_through() {
        assert_eq!(filter("pid", &[7, 8, 9, 12]), "(pid >= 7 && pid <= 9) || pid == 12");
        let far: Vec<i32> = (1..200).map(|tid| tid * 10).collect();
        assert_eq!(filter("pid", &far), "(pid >= 10 && pid <= 1990)");
    }
}
