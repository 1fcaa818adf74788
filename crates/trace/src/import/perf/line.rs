//! One line of `perf script`: `comm pid/tid [cpu] time: event: text`.

use std::borrow::Cow;

/// A line that is an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextEvent<'a> {
    pub(crate) comm: &'a str,
    /// Present only if perf was asked for it (`-F +pid`).
    pub(crate) pid: Option<i32>,
    pub(crate) tid: i32,
    /// Absent if perf was asked to leave it out.
    pub(crate) cpu: Option<u32>,
    pub(crate) time_ns: u64,
    /// What the digits of the time resolve: 1 ns with `--ns`, 1000 ns without.
    pub(crate) resolution_ns: u64,
    /// Such as `kvm:kvm_exit`.
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
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

/// Text of bytes that may be no UTF-8: the name of a task can be anything.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

impl<'a> Line<'a> {
    pub(crate) fn parse(line: &'a str) -> Line<'a> {
        if let Some(comment) = line.strip_prefix('#') {
            return Line::Comment(comment.trim());
        }
        let Some((head, time_ns, resolution_ns, rest)) = split_at_time(line) else {
            return match lost(line) {
                Some(events) => Line::Lost { cpu: cpu_in_words(line), time_ns: None, events },
                None => Line::Other,
            };
        };
        let record = rest.strip_prefix("unknown:").unwrap_or(rest).trim_start();
        if record.starts_with("PERF_RECORD_LOST") {
            return Line::Lost { cpu: head.cpu, time_ns: Some(time_ns), events: lost(record).unwrap_or(1) };
        }
        if let Some(name) = record.strip_prefix("PERF_RECORD_COMM").and_then(task_name) {
            return name;
        }
        let switch = record.strip_prefix("PERF_RECORD_SWITCH_CPU_WIDE").map(|text| (SWITCHES, text.trim()));
        match switch.or_else(|| event_and_text(rest)) {
            Some((name, text)) => Line::Event(TextEvent {
                comm: head.comm,
                pid: head.pid,
                tid: head.tid,
                cpu: head.cpu,
                time_ns,
                resolution_ns,
                name,
                text,
            }),
            None => Line::Other,
        }
    }
}

struct Head<'a> {
    comm: &'a str,
    pid: Option<i32>,
    tid: i32,
    cpu: Option<u32>,
}

/// Finds the time, from the left: the first word like `12.345678:` that has a pid and perhaps a CPU before it.
/// The name of a task may hold blanks, slashes, brackets and colons, so it cannot be found by splitting.
fn split_at_time(line: &str) -> Option<(Head<'_>, u64, u64, &str)> {
    for (colon, _) in line.match_indices(':') {
        let (before, after) = (line.get(..colon)?, line.get(colon + 1..)?);
        if !(after.is_empty() || after.starts_with([' ', '\t'])) {
            continue;
        }
        let word = before.rfind([' ', '\t']).map_or(0, |blank| blank + 1);
        let Some((time_ns, resolution_ns)) = before.get(word..).and_then(time) else { continue };
        if let Some(head) = before.get(..word).and_then(head) {
            return Some((head, time_ns, resolution_ns, after.trim()));
        }
    }
    None
}

/// Seconds with decimals, in ns, and what the decimals resolve.
fn time(word: &str) -> Option<(u64, u64)> {
    let (seconds, decimals) = word.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(decimals) {
        return None;
    }
    let resolution = 10u64.pow(9u32.checked_sub(u32::try_from(decimals.len()).ok()?)?);
    let part = decimals.parse::<u64>().ok()?.checked_mul(resolution)?;
    let whole = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?;
    Some((whole.checked_add(part)?, resolution))
}

/// What is before the time: `comm pid`, `comm pid/tid`, each perhaps with `[cpu]`, that perhaps with flags (`d.h.`).
fn head(text: &str) -> Option<Head<'_>> {
    let text = text.trim_end();
    let (before, last) = split_last_word(text);
    if let Some(cpu) = bracketed(last) {
        return comm_and_tid(before, Some(cpu));
    }
    let (before_flags, maybe_cpu) = split_last_word(before);
    if let Some(cpu) = bracketed(maybe_cpu)
        && let Some(head) = comm_and_tid(before_flags, Some(cpu))
        && !last.contains(|c: char| c.is_ascii_digit() && c != '1' && c != '2')
    {
        return Some(head);
    }
    comm_and_tid(text, None)
}

fn comm_and_tid(text: &str, cpu: Option<u32>) -> Option<Head<'_>> {
    let (comm, word) = split_last_word(text);
    let (pid, tid) = match word.rsplit_once('/') {
        Some((pid, tid)) => (Some(pid.parse().ok()?), tid),
        None => (None, word),
    };
    Some(Head { comm: comm.trim(), pid, tid: tid.parse().ok()?, cpu })
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

/// `[period] name: text`.
fn event_and_text(rest: &str) -> Option<(&str, &str)> {
    let split = |text| match str::split_once(text, [' ', '\t']) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    };
    let (mut word, mut text) = split(rest);
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        (word, text) = split(text);
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
        ] {
            let event = event(line);
            assert_eq!((event.comm, event.pid, event.tid, event.cpu), (comm, pid, tid, cpu), "{line:?}");
            assert_eq!((event.time_ns, event.name, event.text), (876_855_418_000, "a:b", "t"), "{line:?}");
        }
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
            ("PERF_RECORD_LOST_SAMPLES", None, None, 1),
        ] {
            assert_eq!(Line::parse(line), Line::Lost { cpu, time_ns, events }, "{line:?}");
        }
        assert_eq!(Line::parse("\tffffffff81000000 lost_page+0x12 ([kernel.kallsyms])"), Line::Other);
    }
}
