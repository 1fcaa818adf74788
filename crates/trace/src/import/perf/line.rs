//! One line of a text of events, as three tools write it:
//!
//! | tool | line |
//! |---|---|
//! | `perf script` | `comm pid/tid [cpu] time: group:event: text` |
//! | `trace-cmd report` | `comm-tid [cpu] time: event: text`, with `-l` flags behind the number of the CPU: `comm-tid 1d.h. time: …` |
//! | ftrace's `trace` and `trace_pipe` | `comm-tid (tgid) [cpu] flags time: event: text` |

use super::fields::vcpu_of;
use crate::event::{Event, SystemCall, TracepointKind};
use crate::host::vcpu_of_name;
use crate::import::number::digits;
use crate::pairing::ByNumber;

dwell_policy::named! {
    /// Which tool writes a line like this.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Dialect {
        #[default]
        Perf = "perf script",
        /// `trace-cmd report`, or ftrace itself.
        Ftrace = "trace-cmd or ftrace",
    }

    pub(crate) fn name
}

/// A line that is an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextEvent<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) comm: &'a str,
    /// Present only if perf was asked for it (`-F +pid`), or ftrace (`record-tgid`).
    pub(crate) pid: Option<i32>,
    /// [`Event::UNKNOWN_ID`](crate::event::Event::UNKNOWN_ID) if perf was asked to leave it out.
    pub(crate) tid: i32,
    /// Absent if perf was asked to leave it out.
    pub(crate) cpu: Option<u32>,
    pub(crate) time_ns: u64,
    /// What the digits of the time resolve: 1 ns with `--ns`, 1000 ns without.
    pub(crate) resolution_ns: u64,
    /// Such as `kvm:kvm_exit`; ftrace's have no group.
    pub(crate) name: &'a str,
    /// What follows the name.
    pub text: &'a str,
}

impl TextEvent<'_> {
    /// Which tracepoint it is, if it is of use. ftrace writes `sys_ppoll(…)` and `sys_ppoll -> …` for those of a call.
    pub(crate) fn tracepoint(&self) -> Option<TracepointKind> {
        let call = || SystemCall::from_name(self.name.strip_prefix("sys_")?);
        match self.text.as_bytes().first() {
            Some(b'(') if self.dialect == Dialect::Ftrace => call().map(TracepointKind::Enter),
            Some(b'-') if self.dialect == Dialect::Ftrace => call().map(TracepointKind::Leave),
            _ => TracepointKind::from_name(self.name),
        }
    }

    /// Whether the text has no column for the thread.
    pub(crate) fn lacks_thread(&self) -> bool {
        self.tid == Event::UNKNOWN_ID && self.comm.is_empty()
    }
}

/// The vCPU of each thread. A second vCPU shows that the lines have the process in place of the thread: `perf script -F
/// comm,pid` writes `comm pid` where `-F comm,tid` writes `comm tid`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadVcpus {
    /// By what an event says, which on x86 is the number of the local APIC.
    numbered: ByNumber<i32, u32>,
    /// By the name that the VMM gives the thread.
    named: ByNumber<i32, u32>,
}

impl ThreadVcpus {
    /// Takes an event of a vCPU. The error says that its thread ran another one before.
    pub(crate) fn check(&mut self, event: &TextEvent<'_>) -> Result<(), String> {
        if event.dialect != Dialect::Perf || event.pid.is_some() {
            return Ok(());
        }
        let ThreadVcpus { numbered, named } = self;
        for (vcpus, vcpu) in [(numbered, vcpu_of(event.text)), (named, vcpu_of_name(event.comm))] {
            let Some(vcpu) = vcpu else { continue };
            let first = *vcpus.entry(event.tid).or_insert(vcpu);
            if first != vcpu {
                return Err(format!(
                    "is of vCPU {vcpu}, but {tid} ran vCPU {first} before: {tid} is a process, and vCPUs are told apart by \
                     threads; use `perf script -F +pid,+tid`",
                    tid = event.tid
                ));
            }
        }
        Ok(())
    }
}

/// The name of the events of lines with `PERF_RECORD_SWITCH_CPU_WIDE`.
const SWITCHES: &str = "perf:context_switch";

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    Event(TextEvent<'a>),
    Lost {
        cpu: Option<u32>,
        /// Not there in perf's messages about the whole trace.
        time_ns: Option<u64>,
        events: u64,
    },
    /// A task has got this name: `PERF_RECORD_COMM`, which `perf script --show-task-events` writes.
    TaskName {
        pid: i32,
        tid: i32,
        comm: &'a str,
    },
    /// A comment; without its `#`.
    Comment(&'a str),
    /// Anything else: call chains, blank lines, messages.
    Other,
}

impl<'a> Line<'a> {
    pub(crate) fn parse(line: &'a str) -> Line<'a> {
        if let Some(comment) = line.strip_prefix('#') {
            return Line::Comment(comment.trim());
        }
        let Some((head, rest)) = split_at_time(line) else {
            // A header, behind what a mail (`> `), a page or `grep -n` has put in front.
            if let Some((_, comment)) = line.split_once("# ").filter(|(_, comment)| comment.contains(" : ")) {
                return Line::Comment(comment.trim());
            }
            return match lost_share(line).or_else(|| lost(line)).or_else(|| dropped(line)) {
                Some(events) => Line::Lost { cpu: cpu_in_words(line), time_ns: None, events },
                None => Line::Other,
            };
        };
        let record = rest.strip_prefix("unknown:").unwrap_or(rest).trim_start();
        if record.starts_with("PERF_RECORD_LOST") {
            return Line::Lost {
                cpu: head.cpu,
                time_ns: Some(head.time_ns),
                events: lost(record).unwrap_or(1),
            };
        }
        if let Some(name) = record.strip_prefix("PERF_RECORD_COMM").and_then(task_name) {
            return name;
        }
        let switch = record.strip_prefix("PERF_RECORD_SWITCH_CPU_WIDE").map(|text| (SWITCHES, text.trim()));
        match switch.or_else(|| event_and_text(rest)) {
            Some((name, text)) => Line::Event(TextEvent { name, text, ..head }),
            None => Line::Other,
        }
    }
}

/// Finds the time, from the left: the first word like `12.345678:` that has a pid and perhaps a CPU before it.
/// The name of a task may hold blanks, slashes, brackets and colons, so it cannot be found by splitting.
fn split_at_time(line: &str) -> Option<(TextEvent<'_>, &str)> {
    split_with(line, head).or_else(|| split_with(line, head_without_task))
}

fn split_with<'a>(
    line: &'a str,
    head: impl Fn(&'a str) -> Option<TextEvent<'a>>,
) -> Option<(TextEvent<'a>, &'a str)> {
    for (colon, _) in line.match_indices(':') {
        let (before, after) = (line.get(..colon)?, line.get(colon + 1..)?);
        if !(after.is_empty() || after.starts_with([' ', '\t'])) {
            continue;
        }
        let word = before.rfind([' ', '\t']).map_or(0, |blank| blank + 1);
        let Some((time_ns, resolution_ns)) = before.get(word..).and_then(time) else { continue };
        if let Some(head) = before.get(..word).and_then(&head) {
            return Some((TextEvent { time_ns, resolution_ns, ..head }, after.trim()));
        }
    }
    None
}

/// Seconds with decimals, in ns, and what the decimals resolve.
fn time(word: &str) -> Option<(u64, u64)> {
    let (seconds, decimals) = word.split_once('.')?;
    let resolution = 10u64.pow(9u32.checked_sub(u32::try_from(decimals.len()).ok()?)?);
    let part = digits::<u64>(decimals)?.checked_mul(resolution)?;
    let whole = digits::<u64>(seconds)?.checked_mul(1_000_000_000)?;
    Some((whole.checked_add(part)?, resolution))
}

/// What is before the time: `comm pid`, `comm pid/tid`, `comm-tid`, each perhaps with `[cpu]`, that perhaps with flags
/// (`d.h.`).
fn head(text: &str) -> Option<TextEvent<'_>> {
    let text = text.trim_end();
    let (before, last) = split_last_word(text);
    // `-F +tod`: `2026-11-25 10:00:00.123456`.
    if last.matches(':').count() == 2
        && let (before, day) = split_last_word(before)
        && day.matches('-').count() == 2
    {
        return head(before);
    }
    if let Some(cpu) = bracketed(last) {
        return task(before, Some(cpu));
    }
    let (before_flags, maybe_cpu) = split_last_word(before);
    if let Some(cpu) = bracketed(maybe_cpu)
        && let Some(head) = task(before_flags, Some(cpu))
        && (head.dialect == Dialect::Ftrace
            || !last.contains(|c: char| c.is_ascii_digit() && c != '1' && c != '2'))
    {
        return Some(head);
    }
    if let Some(cpu) = cpu_with_flags(last)
        && let Some(head) = comm_dash_tid(before, Some(cpu))
    {
        return Some(head);
    }
    comm_and_tid(text, None)
}

/// `perf script` without its task: nothing, or `[cpu]`, before the time.
fn head_without_task(text: &str) -> Option<TextEvent<'_>> {
    let text = text.trim();
    let cpu = if text.is_empty() { None } else { Some(bracketed(text)?) };
    Some(TextEvent { tid: Event::UNKNOWN_ID, cpu, ..TextEvent::default() })
}

/// Whether a line that is no event has a time, so that it lacks the thread.
pub(crate) fn has_time(line: &str) -> bool {
    split_with(line, |_| Some(TextEvent::default())).is_some()
}

fn task(text: &str, cpu: Option<u32>) -> Option<TextEvent<'_>> {
    comm_and_tid(text, cpu).or_else(|| comm_dash_tid(text, cpu))
}

fn comm_and_tid(text: &str, cpu: Option<u32>) -> Option<TextEvent<'_>> {
    let (comm, word) = split_last_word(text);
    let (pid, tid) = match word.rsplit_once('/') {
        Some((pid, tid)) => (Some(pid.parse().ok()?), tid),
        None => (None, word),
    };
    Some(TextEvent { comm: name(comm), pid, tid: tid.parse().ok()?, cpu, ..TextEvent::default() })
}

/// The name of a task. The kernel's have at most 15 bytes, before which tools write blanks up to 16: of what is longer,
/// that before the blanks is the time or the host that `ts` or the syslog has put in front.
fn name(text: &str) -> &str {
    let text = text.trim();
    match text.rsplit_once("  ") {
        Some((_, name)) if text.len() > 15 && !text.starts_with("VM:") => name,
        _ => text,
    }
}

/// `comm-tid`, and behind it perhaps `(tgid)` or `(-----)`. The tid may be `?`.
fn comm_dash_tid(text: &str, cpu: Option<u32>) -> Option<TextEvent<'_>> {
    let text = text.trim_end();
    let (task, pid) = match text.strip_suffix(')').and_then(|text| text.rsplit_once('(')) {
        Some((task, tgid)) if tgid.bytes().all(|b| b == b'-') => (task.trim_end(), None),
        Some((task, tgid)) => (task.trim_end(), Some(tgid.trim().parse().ok()?)),
        None => (text, None),
    };
    let (comm, tid) = task.rsplit_once('-')?;
    let tid = match tid {
        "?" => Event::UNKNOWN_ID,
        _ => digits(tid)?,
    };
    // Of an instance of ftrace trace-cmd writes `instance:        comm-tid`.
    let comm = comm.split_once(":  ").map_or(comm, |(_, comm)| comm);
    // The idle tasks of all CPUs, and a task whose name was forgotten.
    let comm = match name(comm) {
        "<idle>" => "swapper",
        "<...>" => "",
        comm => comm,
    };
    Some(TextEvent { dialect: Dialect::Ftrace, comm, pid, tid, cpu, ..TextEvent::default() })
}

/// `1d.h.`: trace-cmd's number of the CPU, with four to seven characters of flags behind it.
fn cpu_with_flags(word: &str) -> Option<u32> {
    let digits = word.bytes().position(|b| !b.is_ascii_digit())?;
    let (cpu, flags) = word.split_at(digits);
    let flag = |b: u8| b == b'.' || b == b'#' || b.is_ascii_alphanumeric();
    ((4..=7).contains(&flags.len()) && flags.bytes().all(flag)).then(|| cpu.parse().ok())?
}

/// `: comm:pid/tid` and ` exec: comm:pid/tid`, after `PERF_RECORD_COMM`.
fn task_name(text: &str) -> Option<Line<'_>> {
    let text = text.strip_prefix(" exec").unwrap_or(text).strip_prefix(": ")?;
    let (comm, ids) = text.rsplit_once(':')?;
    let (pid, tid) = ids.trim_end().split_once('/')?;
    Some(Line::TaskName { pid: pid.parse().ok()?, tid: tid.parse().ok()?, comm })
}

fn bracketed(word: &str) -> Option<u32> {
    word.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

fn split_last_word(text: &str) -> (&str, &str) {
    let text = text.trim_end();
    let word = text.rfind([' ', '\t']).map_or(0, |blank| blank + 1);
    (text.get(..word).unwrap_or_default().trim_end(), text.get(word..).unwrap_or_default())
}

/// `[period] name: text`, with `trace-cmd report --ts-diff` the time since the line before in front: `(+12)`.
fn event_and_text(rest: &str) -> Option<(&str, &str)> {
    let split = |text| match str::split_once(text, [' ', '\t']) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    };
    let (mut word, mut text) = split(rest);
    if word.bytes().all(|byte| byte.is_ascii_digit()) || word.starts_with("(+") && word.ends_with(')') {
        (word, text) = split(text);
    }
    if word.starts_with("sys_") && (word.contains('(') || text.starts_with("-> ")) {
        // `sys_ppoll(ufds: 7ffc, …)`, `sys_ppoll -> 0x1`
        let end = rest.find(['(', ' '])?;
        let text = rest.get(end..)?.trim_start();
        return text.starts_with(['(', '-']).then_some((rest.get(..end)?, text));
    }
    let name = word.strip_suffix(':').filter(|name| !name.is_empty())?;
    Some((name, text))
}

/// The number in `lost 5`, `LOST 123 events!`, `[LOST 12 EVENTS]`, `PERF_RECORD_LOST lost=7`.
fn lost(line: &str) -> Option<u64> {
    let lower = line.to_ascii_lowercase();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in lower.match_indices("lost") {
        let before = lower.get(..at).and_then(|text| text.chars().next_back());
        let after = lower.get(at + "lost".len()..).unwrap_or_default();
        if before.is_some_and(word) || !after.starts_with([' ', '=', ':']) {
            continue;
        }
        let after = after.trim_start_matches([' ', '=', ':']);
        let end = after.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(after.len());
        let (digits, rest) = after.split_at(end);
        if !rest.starts_with(word)
            && let Ok(events) = digits.parse()
        {
            return Some(events);
        }
    }
    lower.contains("perf_record_lost").then_some(1)
}

/// What the share is of in `Processed 100 samples and lost 3.00%!`.
fn lost_share(line: &str) -> Option<u64> {
    let (samples, share) = line.split_once("Processed ")?.1.split_once(" samples and lost ")?;
    let (whole, hundredths) =
        share.split_once('%')?.0.trim().split_once('.').filter(|(_, part)| part.len() == 2)?;
    let share = digits::<u64>(whole)?.checked_mul(100)?.checked_add(digits(hundredths)?)?;
    Some(digits::<u64>(samples)?.checked_mul(share)?.div_ceil(10_000))
}

/// The number in trace-cmd's `CPU:0 [12 EVENTS DROPPED]`; where it does not say how many, at least one.
fn dropped(line: &str) -> Option<u64> {
    let (_, count) = line.strip_suffix("EVENTS DROPPED]")?.split_once('[')?;
    if count.is_empty() { Some(1) } else { count.trim().parse().ok() }
}

/// The number in `CPU:3` and `CPU 3`.
fn cpu_in_words(line: &str) -> Option<u32> {
    let after = line.get(line.find("CPU")? + "CPU".len()..)?.trim_start_matches([' ', ':']);
    let end = after.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(after.len());
    after.get(..end)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> TextEvent<'_> {
        match Line::parse(line) {
            Line::Event(event) => event,
            other => panic!("{line:?} is {other:?}"),
        }
    }

    #[test]
    fn finds_its_way_through_names_of_tasks() {
        for (line, comm, pid, tid, cpu) in [
            ("   CPU 0/KVM  1234 [003]   876.855418: a:b: t", "CPU 0/KVM", None, 1234, Some(3)),
            ("CPU 0/KVM 12/34 876.855418: a:b: t", "CPU 0/KVM", Some(12), 34, None),
            ("[kworker/0:1] 7 [000] 876.855418: a:b: t", "[kworker/0:1]", None, 7, Some(0)),
            ("a [1] 3 7 876.855418: a:b: t", "a [1] 3", None, 7, None),
            ("a 1.5: 2: 7/8 [011] d.h2. 876.855418: a:b: t", "a 1.5: 2:", Some(7), 8, Some(11)),
            (":99 99 [000] 876.855418:          1 a:b: t", ":99", None, 99, Some(0)),
            ("unknown -1 [000] 876.855418: a:b: t", "unknown", None, -1, Some(0)),
            ("Nov 25 10:00:07       CPU 0/KVM 7 [000] 876.855418: a:b: t", "CPU 0/KVM", None, 7, Some(0)),
            (
                "1 2025-11-25T10:00:07Z h a 7 - -  qemu-system-x86 7 876.855418: a:b: t",
                "qemu-system-x86",
                None,
                7,
                None,
            ),
            ("a  b 7 [000] 876.855418: a:b: t", "a  b", None, 7, Some(0)),
        ] {
            let event = event(line);
            assert_eq!((event.comm, event.pid, event.tid, event.cpu), (comm, pid, tid, cpu), "{line:?}");
            assert_eq!((event.time_ns, event.name, event.text), (876_855_418_000, "a:b", "t"), "{line:?}");
        }
    }

    #[test]
    fn reads_the_heads_of_ftrace_and_trace_cmd() {
        for (line, comm, pid, tid, cpu) in [
            ("       fc_vcpu 0-41207 [003]  876.855418: b: t", "fc_vcpu 0", None, 41207, Some(3)),
            (" opt 8ejp-x-406   [001]  876.855418: b:          t", "opt 8ejp-x", None, 406, Some(1)),
            ("    bash-405     1.....  876.855418: b:  t", "bash", None, 405, Some(1)),
            ("  <idle>-0       0d.h1. 876.855418: b: t", "swapper", None, 0, Some(0)),
            ("  bash-405     (    405) [001] .....  876.855418: b: t", "bash", Some(405), 405, Some(1)),
            ("  <...>-405     (-----) [001] d..2.  876.855418: b: t", "", None, 405, Some(1)),
            ("four:          python3-405   [001]  876.855418: b: t", "python3", None, 405, Some(1)),
            ("Nov 25 10:00:07           <idle>-0   [001]  876.855418: b: t", "swapper", None, 0, Some(1)),
            ("  kworker/0:1-7 [000] d.h. 876.855418: b: t", "kworker/0:1", None, 7, Some(0)),
            ("  CPU 0/KVM-1234 [003] dN.34 876.855418: b: t", "CPU 0/KVM", None, 1234, Some(3)),
        ] {
            let event = event(line);
            assert_eq!((event.comm, event.pid, event.tid, event.cpu), (comm, pid, tid, cpu), "{line:?}");
            let rest = (event.time_ns, event.name, event.text, event.dialect);
            assert_eq!(rest, (876_855_418_000, "b", "t", Dialect::Ftrace), "{line:?}");
        }
        assert_eq!(Line::parse("cpus=8"), Line::Other);
        for (line, text, kind) in [
            (
                "a-1 [000] ..... 1.5: sys_ppoll(ufds: 7f, nfds: 1)",
                "(ufds: 7f, nfds: 1)",
                TracepointKind::Enter(SystemCall::Ppoll),
            ),
            ("a-1 [000] ..... 1.5: sys_ppoll -> 0x1", "-> 0x1", TracepointKind::Leave(SystemCall::Ppoll)),
        ] {
            assert_eq!((event(line).text, event(line).tracepoint()), (text, Some(kind)));
        }
    }

    #[test]
    fn a_task_may_be_missing() {
        for (line, cpu) in [("[001]   7.000005:  a:b: t", Some(1)), ("  7.000005: a:b: t", None)] {
            let event = event(line);
            assert_eq!((event.comm, event.tid, event.cpu), ("", Event::UNKNOWN_ID, cpu), "{line:?}");
        }
        assert_eq!(Line::parse("see 7.000005: a:b: t"), Line::Other);
    }

    #[test]
    fn reads_the_names_of_tasks() {
        for text in ["PERF_RECORD_COMM: a:b 1:2/3", "PERF_RECORD_COMM exec: a:b 1:2/3"] {
            let line = format!("  perf     0 [000]     0.000000: {text}");
            assert_eq!(Line::parse(&line), Line::TaskName { pid: 2, tid: 3, comm: "a:b 1" });
        }
        assert_eq!(Line::parse("perf 0 [000] 0.000000: PERF_RECORD_COMM exec: a"), Line::Other);
    }

    #[test]
    fn reads_six_and_nine_decimals() {
        let times = |line| (event(line).time_ns, event(line).resolution_ns);
        assert_eq!(times("a 1 [000] 1.000002: a:b: t"), (1_000_002_000, 1000));
        assert_eq!(times("a 1 [000] 1.000000002: a:b: t"), (1_000_000_002, 1));
        assert_eq!(Line::parse("a 1 [000] 99999999999999999999.000001: a:b: t"), Line::Other);
        assert_eq!(Line::parse("a 1 [000] 18446744073.999999: a:b: t"), Line::Other);
    }

    #[test]
    fn counts_what_was_lost_in_any_of_the_forms() {
        let at = Some(876_855_418_000);
        for (line, cpu, time_ns, events) in [
            ("swapper     0 [002]   876.855418: PERF_RECORD_LOST lost 5", Some(2), at, 5),
            ("swapper 0/0 [002] 876.855418: unknown: PERF_RECORD_LOST lost 9", Some(2), at, 9),
            ("PERF_RECORD_LOST lost=7", None, None, 7),
            ("LOST 123 events!", None, None, 123),
            ("CPU:3 [LOST 12 EVENTS]", Some(3), None, 12),
            ("Processed 10 events and lost 2 chunks!", None, None, 2),
            ("Processed 200 samples and lost 3.00%!", None, None, 6),
            ("PERF_RECORD_LOST_SAMPLES", None, None, 1),
            ("CPU:1 [12 EVENTS DROPPED]", Some(1), None, 12),
            ("CPU:1 [EVENTS DROPPED]", Some(1), None, 1),
        ] {
            assert_eq!(Line::parse(line), Line::Lost { cpu, time_ns, events }, "{line:?}");
        }
        assert_eq!(Line::parse("\tffffffff81000000 lost_page+0x12 ([kernel.kallsyms])"), Line::Other);
    }
}
