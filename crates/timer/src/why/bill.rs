//! The bill: lines that add up to what /proc counted.

use super::removal::share;
use super::watch::{Watch, Watched};
use super::{Cause, Class};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A cause with its CPU time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub class: Class,
    /// The thread, where there are several kinds of its class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    #[serde(flatten)]
    pub cause: Cause,
    /// CPU time \[ns\].
    pub cpu_ns: u64,
    /// How often.
    pub count: u64,
    /// How often it woke a CPU of this machine.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wakeups: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Bill {
    pub(super) fn of(cpu_ns: u64, mut lines: Vec<Line>) -> Bill {
        lines.retain(|line| line.cpu_ns > 0);
        lines.sort_by_key(|line| (line.cause == Cause::Rest, std::cmp::Reverse(line.cpu_ns)));
        Bill { cpu_ns, lines }
    }

    /// By the events alone.
    pub(super) fn of_events(sums: Sums) -> Bill {
        Bill::of(sums.values().map(|sum| sum.cpu_ns).sum(), lines(sums))
    }
}

/// What KVM counted of polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polls {
    pub success_ns: u64,
    pub success: u64,
    pub fail_ns: u64,
}

/// What was counted beside the events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Of each thread, by its number \[ns of CPU\].
    pub threads: BTreeMap<i32, u64>,
    /// Of the process, threads that began or ended meanwhile and those of the kernel included \[ns of CPU\].
    pub process_ns: u64,
    pub polls: Option<Polls>,
}

/// The CPU time of a process, by cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bill {
    /// What /proc counted \[ns\]; the lines add up to it.
    pub cpu_ns: u64,
    /// The largest first, and last what has no cause.
    pub lines: Vec<Line>,
}

/// CPU time, and how often it was for this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) cpu_ns: u64,
    pub(super) count: u64,
    pub(super) wakeups: u64,
}

impl Sum {
    pub(super) fn add(&mut self, other: Sum) {
        self.cpu_ns += other.cpu_ns;
        self.count += other.count;
        self.wakeups += other.wakeups;
    }

    pub(super) fn since(self, before: Option<&Sum>) -> Sum {
        let before = before.copied().unwrap_or_default();
        Sum {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            count: self.count.saturating_sub(before.count),
            wakeups: self.wakeups.saturating_sub(before.wakeups),
        }
    }
}

/// By what is one line.
pub(super) type Sums = BTreeMap<(Class, Option<String>, Cause), Sum>;

pub(super) fn lines(sums: Sums) -> Vec<Line> {
    let line = |((class, thread, cause), Sum { cpu_ns, count, wakeups })| Line {
        class,
        thread,
        cause,
        cpu_ns,
        count,
        wakeups,
    };
    sums.into_iter().map(line).collect()
}

impl Watch {
    /// A slice of the time ends, and another begins.
    pub fn cut(&mut self) {
        let mut sums = Sums::new();
        for Watched { task, ledger, .. } in &mut self.threads {
            for (cause, sum) in ledger.cut() {
                sums.entry((task.class, task.label(), cause)).or_default().add(sum);
            }
        }
        self.slices.push(Bill::of_events(sums));
    }

    /// The bill of each slice, by the events alone.
    pub fn take_slices(&mut self) -> Vec<Bill> {
        std::mem::take(&mut self.slices)
    }

    /// No event follows.
    pub fn finish(mut self, counted: &Counted) -> Bill {
        let mut sums = Sums::new();
        let mut add = |class, thread, cause, cpu_ns, count| {
            sums.entry((class, thread, cause)).or_default().add(Sum { cpu_ns, count, wakeups: 0 });
        };
        let mut known_ns = 0;
        for Watched { task, ledger, .. } in &mut self.threads {
            ledger.settle();
            let charged = ledger.charged_ns();
            let cpu_ns = counted.threads.get(&task.tid).copied().unwrap_or(charged);
            known_ns += cpu_ns;
            let mut rest_ns = cpu_ns;
            for (cause, sum) in std::mem::take(&mut ledger.sums) {
                // Stretches at the edges are in the events whole, and in /proc in part.
                let part = if charged > cpu_ns { share(sum.cpu_ns, cpu_ns, charged) } else { sum.cpu_ns };
                rest_ns -= part;
                add(task.class, task.label(), cause, part, sum.count);
            }
            add(task.class, task.label(), Cause::Rest, rest_ns, 0);
        }
        let cpu_ns = counted.process_ns.max(known_ns);
        add(Class::Other, None, Cause::Rest, cpu_ns - known_ns, 0);
        let mut lines = lines(sums);
        if let Some(polls) = counted.polls {
            polled(&mut lines, polls);
        }
        Bill::of(cpu_ns, lines)
    }
}

/// The time of vCPUs before they slept is a failed poll for as long as KVM says that they polled; what is more is going
/// to sleep. Polls that no event shows are in what has no cause.
fn polled(lines: &mut Vec<Line>, polls: Polls) {
    let of = |lines: &[Line], cause: &Cause| {
        lines.iter().find(|line| is_of_vcpus(line, cause)).map_or(0, |line| line.cpu_ns)
    };
    let failed_ns = of(lines, &Cause::FailedPoll);
    shift(lines, &Cause::FailedPoll, Cause::Halt, failed_ns.saturating_sub(polls.fail_ns));
    shift(lines, &Cause::Rest, Cause::FailedPoll, polls.fail_ns.saturating_sub(failed_ns));
    let successful_ns = of(lines, &Cause::SuccessfulPoll);
    shift(lines, &Cause::Rest, Cause::SuccessfulPoll, polls.success_ns.saturating_sub(successful_ns));
    for line in lines.iter_mut().filter(|line| is_of_vcpus(line, &Cause::SuccessfulPoll)) {
        line.count = line.count.max(polls.success);
    }
}

fn is_of_vcpus(line: &Line, cause: &Cause) -> bool {
    line.class == Class::Vcpu && line.cause == *cause
}

/// Moves at most so much of the vCPUs' time from one cause to another.
fn shift(lines: &mut Vec<Line>, from: &Cause, to: Cause, ns: u64) {
    let Some(from) = lines.iter_mut().find(|line| is_of_vcpus(line, from)) else { return };
    let ns = ns.min(from.cpu_ns);
    from.cpu_ns -= ns;
    match lines.iter_mut().find(|line| is_of_vcpus(line, &to)) {
        Some(to) => to.cpu_ns += ns,
        None => {
            lines.push(Line { class: Class::Vcpu, thread: None, cause: to, cpu_ns: ns, count: 0, wakeups: 0 })
        }
    }
}
