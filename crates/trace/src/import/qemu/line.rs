//! One line of QEMU's log: an optional time stamp, the event, its arguments.
//!
//! | QEMU | without `-msg timestamp=on` | with |
//! |---|---|---|
//! | to 10.0 | `poll_grow ctx 0x… old 0 new 4000` | `TID@SECONDS.MICROS:poll_grow ctx …` |
//! | to 3.0 | 〃, without `timeout` |
//! | 11.1 | 〃 | `2026-11-22T00:13:23.433299Z poll_grow ctx …`, with `guest-name=on` the guest's name before the event |
//!
//! The other back ends of QEMU and their tools write the same events:
//!
//! | by | line |
//! |---|---|
//! | `qemu-trace-stap`, for the dtrace back end (RHEL, CentOS, Fedora) | `PID@NANOS poll_grow ctx …` |
//! | `simpletrace.py` | `poll_grow 12.345 pid=7 ctx=0x… old=0x0 new=0xfa0`: the time is in µs since the line before |
//! | the syslog, and `journalctl` | `Nov 25 10:00:00.123456 host qemu[7]: poll_grow ctx …` |
//! | ftrace's trace_marker | `qemu-7 [001] ..... 12.345678: tracing_mark_write: poll_grow ctx …` |
//! | `babeltrace`, of LTTng | `[10:00:00.123456789] (+…) host qemu:poll_grow: { cpu_id = 3 }, { ctx = 0x…, old = 0, … }` |

use crate::event::{Aio, Event};
use crate::import::number::{digits, hexadecimal};
use crate::import::perf::Line as EventLine;
use std::borrow::Cow;

/// What the times of QEMU's own log resolve \[ns\].
pub(super) const RESOLUTION_NS: u64 = 1_000;

/// When a line was written, cut to what it resolves, and by which thread, where the line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) ns: u64,
    pub(super) resolution_ns: u64,
    pub(super) tid: Option<i32>,
    /// The process, where the line has that and no thread.
    pub(super) pid: Option<i32>,
    pub(super) clock: Clock,
}

/// From when a time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    Day,
    /// Of a day, month or year that the line does not have, or since the machine began.
    Other,
    /// Since the line before, which may be of any event; below zero in two's complement.
    Before,
}

impl Stamp {
    const fn day(ns: u64, resolution_ns: u64, tid: Option<i32>) -> Stamp {
        Stamp { ns, resolution_ns, tid, pid: None, clock: Clock::Day }
    }
}

/// The trace events that are read.
pub(super) const NAMES: [&str; 6] = [
    "run_poll_handlers_begin",
    "run_poll_handlers_end",
    "poll_grow",
    "poll_shrink",
    "poll_add",
    "poll_remove",
];

/// A line that is an event of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogEvent {
    pub(super) stamp: Option<Stamp>,
    /// The line has a time of whole seconds, which is of no use here.
    pub(super) whole_seconds: bool,
    pub(super) name: &'static str,
    pub(super) ctx: u64,
    pub(super) what: Aio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Event(LogEvent),
    /// Names this event and is not as QEMU writes it.
    Unparsable(&'static str),
    /// Another event of `simpletrace.py`: time passes, and perhaps events were dropped.
    Passed {
        ns: u64,
        dropped: u64,
    },
    /// Another trace event, a message, a blank line.
    Other,
}

impl Line {
    pub(super) fn parse(line: &str) -> Line {
        let Some((at, name)) = named_in(line) else {
            return passed(line).or_else(|| suppressed(line)).unwrap_or(Line::Other);
        };
        let (before, after) = line.split_at(at);
        let event = || {
            let after = after.get(name.len()..)?;
            let ((stamp, whole_seconds), arguments) = match lttng(before, after) {
                Some((stamp, fields)) => ((Some(stamp), false), Cow::Owned(loose(fields, " = "))),
                None => match simple(after) {
                    Some((stamp, fields)) if before.is_empty() => {
                        ((Some(stamp), false), Cow::Owned(loose(fields, "=")))
                    }
                    _ => (stamp(before)?, Cow::Borrowed(after)),
                },
            };
            let loose = matches!(arguments, Cow::Owned(_));
            let mut words = Words { words: arguments.split_ascii_whitespace(), loose };
            let ctx = words.address("ctx")?;
            let what = what(name, &mut words)?;
            words.words.next().is_none().then_some(LogEvent { stamp, whole_seconds, name, ctx, what })
        };
        event().map_or(Line::Unparsable(name), Line::Event)
    }
}

/// Where in a line which event is named, as a word of its own followed by its context.
fn named_in(line: &str) -> Option<(usize, &'static str)> {
    NAMES.into_iter().find_map(|name| {
        let at = line.find(name)?;
        let alone_before = line.get(..at)?.bytes().next_back().is_none_or(|b| b == b' ' || b == b':');
        let after = line.get(at + name.len()..)?;
        let alone_after = after.starts_with(" ctx") || after.starts_with(": {") || simple(after).is_some();
        (alone_before && alone_after).then_some((at, name))
    })
}

/// What follows an event's name in `simpletrace.py`'s output: ` 12.345 pid=7 …`. Threads may overtake each other by a
/// little, so that a time may be below zero.
fn simple(after: &str) -> Option<(Stamp, &str)> {
    let (time, rest) = after.strip_prefix(' ')?.split_once(" pid=")?;
    let (pid, fields) = rest.split_once(' ').unwrap_or((rest, ""));
    digits::<u64>(pid)?;
    let (micros, nanos) = time.strip_prefix('-').unwrap_or(time).split_once('.')?;
    let part: u64 = if nanos.len() == 3 { digits(nanos)? } else { return None };
    let ns = digits::<u64>(micros)?.checked_mul(1_000)?.checked_add(part)?;
    let ns = if time.starts_with('-') { ns.wrapping_neg() } else { ns };
    Some((Stamp { ns, resolution_ns: 1, tid: None, pid: None, clock: Clock::Before }, fields))
}

/// An event in `simpletrace.py`'s output of which only the time counts.
pub(super) fn passed(line: &str) -> Option<Line> {
    let (name, _) = line.split_once(' ')?;
    let (Stamp { ns, .. }, fields) = simple(line.get(name.len()..)?)?;
    let dropped = if name == "Dropped_Event" { fields.strip_prefix("num_events_dropped=0x")? } else { "0" };
    Some(Line::Passed { ns, dropped: u64::from_str_radix(dropped.trim_end(), 16).ok()? })
}

/// What a tool says it has left out: `Suppressed 2215 messages from vm.service` of journald, rsyslog's `225 messages lost due
/// to rate-limiting`, and SystemTap's `There were 153 transport failures` and `skipped probes: 15`.
fn suppressed(line: &str) -> Option<Line> {
    let before = |words: &str| line.split_once(words)?.0.rsplit(' ').next();
    let count = match () {
        () if line.contains(": Suppressed ") => before(" messages "),
        () if line.contains(" messages lost due to rate-limiting") => before(" messages lost"),
        () if line.contains("There were ") => before(" transport failures"),
        () => line.split_once("skipped probes: ").map(|(_, count)| count.trim()),
    };
    Some(Line::Passed { ns: 0, dropped: digits(count?)? })
}

/// What `babeltrace` has before and behind an event's name: `[10:00:00.123456789] (+0.000001234) host qemu:`, and the
/// fields in braces, of which the last have the event's own.
fn lttng<'a>(before: &str, after: &'a str) -> Option<(Stamp, &'a str)> {
    let groups = after.strip_prefix(": {")?;
    let (time, _) = before.strip_prefix('[')?.split_once("] ")?;
    let own = groups.rsplit_once('{').map_or(groups, |(_, own)| own).trim().strip_suffix('}')?;
    let contexts = groups.get(..groups.len() - own.len() - 1).unwrap_or_default();
    let tid = contexts.split([',', '{', '}']).find_map(|field| field.trim().strip_prefix("vtid = "));
    let tid = tid.map(|tid| digits(tid.trim()));
    let time = time.rsplit(' ').next()?;
    let (whole, part) = time.split_once('.')?;
    let part: u64 = if part.len() == 9 { digits(part)? } else { return None };
    let (seconds, clock) = match digits::<u64>(whole) {
        Some(seconds) => (seconds, Clock::Day),
        None => (seconds_of_day(whole)?, Clock::Other),
    };
    let ns = seconds.checked_mul(1_000_000_000)?.checked_add(part)?;
    Some((Stamp { ns, resolution_ns: 1, tid: tid.flatten(), pid: None, clock }, own))
}

/// `name=value name=value` and `name = value, name = value` as the log has it: `name value name value`.
fn loose(fields: &str, equals: &str) -> String {
    fields.replace(equals, " ").replace(',', " ")
}

fn what(name: &str, words: &mut Words<'_>) -> Option<Aio> {
    Some(match name {
        "run_poll_handlers_begin" => {
            let max_ns = words.number("max_ns")?;
            if !words.is_empty() {
                words.number("timeout")?;
            }
            Aio::PollBegin { max_ns }
        }
        "run_poll_handlers_end" => {
            let progress = words.number("progress")?;
            let progress = progress != 0;
            // QEMU before 3.1 has no timeouts here: what made progress is not waited for.
            if words.is_empty() {
                return Some(Aio::PollEnd { progress, timeout_ns: if progress { 0 } else { -1 } });
            }
            if !words.loose {
                words.word("new")?;
            }
            Aio::PollEnd { progress, timeout_ns: words.number("timeout")? }
        }
        "poll_grow" | "poll_shrink" => {
            let (old, new) = (words.number("old")?, words.number("new")?);
            Aio::Window { grow: name == "poll_grow", new, old }
        }
        "poll_add" => {
            let (node, fd) = (words.address("node")?, words.number("fd")?);
            words.address("revents")?;
            Aio::Handler { node, fd, joins: true }
        }
        _ => Aio::Handler { node: words.address("node")?, fd: words.number("fd")?, joins: false },
    })
}

/// `name value` after `name value`. Tools other than QEMU's log may write any number in hexadecimal.
struct Words<'a> {
    words: std::str::SplitAsciiWhitespace<'a>,
    loose: bool,
}

impl<'a> Words<'a> {
    fn is_empty(&self) -> bool {
        self.words.clone().next().is_none()
    }

    fn word(&mut self, name: &str) -> Option<()> {
        (self.words.next()? == name).then_some(())
    }

    fn value(&mut self, name: &str) -> Option<&'a str> {
        self.word(name)?;
        self.words.next()
    }

    fn number(&mut self, name: &str) -> Option<i64> {
        let text = self.value(name)?;
        if self.loose && text.starts_with("0x") {
            return hexadecimal(text).map(u64::cast_signed);
        }
        // The standard library would take a plus sign.
        text.starts_with(|c: char| c == '-' || c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    }

    fn address(&mut self, name: &str) -> Option<u64> {
        let text = self.value(name)?;
        if self.loose && !text.starts_with("0x") { digits(text) } else { hexadecimal(text) }
    }
}

/// What precedes the event: nothing, or a time, and whether that is of whole seconds, which are left out. `None` if it
/// is neither.
fn stamp(before: &str) -> Option<(Option<Stamp>, bool)> {
    // `Nov 25 10:00:00 host qemu[7]: `, and QEMU's own time behind it where it has one.
    let (head, own) = match before.rsplit_once("]: ") {
        Some((head, own)) => (Some(head), own),
        None => (None, before),
    };
    if before.ends_with("tracing_mark_write: ") {
        return Some((Some(marked(before)?), false));
    }
    match (head, own) {
        (None, "") => Some((None, false)),
        (Some(head), "") => syslog(head),
        _ => Some((Some(own_stamp(own)?), false)),
    }
}

/// `qemu-7 [001] ..... 12.345678: tracing_mark_write: `, by `trace-cmd report` with `print: ` before the last word.
fn marked(before: &str) -> Option<Stamp> {
    let EventLine::Event(event) = EventLine::parse(before) else { return None };
    let tid = Some(event.tid).filter(|&tid| tid != Event::UNKNOWN_ID);
    Some(Stamp { ns: event.time_ns, resolution_ns: event.resolution_ns, tid, pid: None, clock: Clock::Other })
}

/// What QEMU itself stamps a line with. Before it may be what a container's log has.
fn own_stamp(before: &str) -> Option<Stamp> {
    match before.strip_suffix(':') {
        Some(text) => {
            let (tid, time) = last_word(text).split_once('@')?;
            let (seconds, micros) = time.split_once('.')?;
            let seconds = digits(seconds)?;
            let tid = Some(digits(tid)?);
            Some(Stamp::day(nanos(seconds, micros)?, RESOLUTION_NS, tid))
        }
        None => {
            // SystemTap has the process, and no thread.
            let of_process = || {
                let (pid, ns) = last_word(before.trim_end()).split_once('@')?;
                Some(Stamp { pid: Some(digits(pid)?), ..Stamp::day(digits(ns)?, 1, None) })
            };
            let of_date = || Some(Stamp::day(before.rsplit(' ').find_map(date)?, RESOLUTION_NS, None));
            of_process().or_else(of_date)
        }
    }
}

/// `grep` puts the name of the file or the number of the line in front, with a colon.
fn last_word(text: &str) -> &str {
    text.rsplit([' ', '\t', ':']).next().unwrap_or_default()
}

/// The time that the syslog or `journalctl` writes: `Nov 25 10:00:00.123456` (`-o short-precise`; without the fraction
/// it is of whole seconds), `2026-11-22T00:13:23.433299+00:00`, `[  123.456789]` (`-o short-monotonic`).
fn syslog(head: &str) -> Option<(Option<Stamp>, bool)> {
    let other = |ns| (Some(Stamp { clock: Clock::Other, ..Stamp::day(ns, RESOLUTION_NS, None) }), false);
    if let Some(time) = head.strip_prefix('[') {
        let (seconds, micros) = time.split_once(']')?.0.trim().split_once('.')?;
        return Some(other(nanos(digits(seconds)?, micros)?));
    }
    let mut words = head.split_ascii_whitespace();
    let mut first = words.next()?;
    // `-o short-unix`
    if let Some(ns) = first.split_once('.').and_then(|(seconds, micros)| nanos(digits(seconds)?, micros)) {
        return Some((Some(Stamp::day(ns, RESOLUTION_NS, None)), false));
    }
    // `Tue 2025-11-25 10:00:02 UTC`, `-o short-full` and `with-unit`
    if ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"].contains(&first) {
        first = words.next()?;
        return seconds_of_day(words.next()?).filter(|_| split(first, '-').is_some()).map(|_| (None, true));
    }
    if first.contains('T') && first.contains(':') {
        if !first.contains('.') {
            return zoned(first).map(|_| (None, true));
        }
        return zoned(first).map(|ns| (Some(Stamp::day(ns, RESOLUTION_NS, None)), false));
    }
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = (1..).zip(MONTHS).find(|(_, name)| *name == first)?.0;
    let day = digits::<u64>(words.next()?).filter(|day| (1..=31).contains(day))?;
    let time = words.next()?;
    let Some((clock, micros)) = time.split_once('.') else {
        return seconds_of_day(time).map(|_| (None, true));
    };
    // Of a leap year, so that each day has its place.
    let seconds =
        days_since_1970(2024, month, day).checked_mul(86_400)?.checked_add(seconds_of_day(clock)?)?;
    Some(other(nanos(seconds, micros)?))
}

/// `2026-11-22T00:13:23.433299+01:00`, in ns since 1970; also with `Z`, and `+0100`.
fn zoned(text: &str) -> Option<u64> {
    if text.ends_with('Z') {
        return date(text);
    }
    let sign = text.rfind(['+', '-'])?;
    let (local, zone) = text.split_at(sign);
    let (ahead, offset) = (zone.starts_with('+'), zone.get(1..)?.replace(':', ""));
    let offset: u64 = if offset.len() == 4 { digits(&offset)? } else { return None };
    let offset_ns = (offset / 100 * 60 + offset % 100).checked_mul(60_000_000_000)?;
    let ns = date(&format!("{local}Z"))?;
    if ahead { ns.checked_sub(offset_ns) } else { ns.checked_add(offset_ns) }
}

/// `10:00:00`.
fn seconds_of_day(text: &str) -> Option<u64> {
    let [hour, minute, second] = split(text, ':')?;
    (hour < 24 && minute < 60 && second <= 60).then(|| (hour * 60 + minute) * 60 + second)
}

fn nanos(seconds: u64, micros: &str) -> Option<u64> {
    let micros = if micros.len() == 6 { digits(micros)? } else { return None };
    seconds.checked_mul(1_000_000)?.checked_add(micros)?.checked_mul(1_000)
}

/// `2026-11-22T00:13:23.433299Z`, in ns since 1970. GLib leaves the fraction out where it is zero: one line
/// in a million.
fn date(text: &str) -> Option<u64> {
    let (day, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = split(day, '-')?;
    let (clock, micros) = time.split_once('.').unwrap_or((time, "000000"));
    let in_range = (1970..=2500).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !in_range {
        return None;
    }
    nanos(days_since_1970(year, month, day) * 86_400 + seconds_of_day(clock)?, micros)
}

fn split(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator).map(digits);
    let all = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(all)
}

/// By the Gregorian calendar, counted in years that begin with March, so that the leap day is the last of its year.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    let before_month = (153 * month + 2) / 5;
    // 719 468 days from the first of March of the year 0 to 1970.
    year * 365 + leap_days + before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> LogEvent {
        match Line::parse(line) {
            Line::Event(event) => event,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_six_events_of_7_2() {
        let whats = [
            ("poll_grow ctx 0x56 old 0 new 4000", Aio::Window { grow: true, old: 0, new: 4_000 }),
            ("poll_shrink ctx 0x56 old 4000 new -1", Aio::Window { grow: false, old: 4_000, new: -1 }),
            ("run_poll_handlers_begin ctx 0x56 max_ns 9 timeout -1", Aio::PollBegin { max_ns: 9 }),
            (
                "run_poll_handlers_end ctx 0x56 progress 1 new timeout 0",
                Aio::PollEnd { progress: true, timeout_ns: 0 },
            ),
            ("poll_add ctx 0x56 node 0x9f fd 7 revents 0x1", Aio::Handler { node: 0x9f, fd: 7, joins: true }),
            ("poll_remove ctx 0x56 node 0x9f fd 7", Aio::Handler { node: 0x9f, fd: 7, joins: false }),
        ];
        for (line, what) in whats {
            let event = event(line);
            assert_eq!((event.ctx, event.what, event.stamp), (0x56, what, None));
        }
    }

    #[test]
    fn systemtap_stamps_with_process_and_nanoseconds() {
        let stamp = event("22106@1764064800123456789 poll_grow ctx 0x5 old 0 new 4000").stamp.unwrap();
        assert_eq!((stamp.ns, stamp.resolution_ns, stamp.tid), (1_764_064_800_123_456_789, 1, None));
        assert_eq!(stamp.pid, Some(22_106));
        for line in ["x@5 poll_grow ctx 0x5 old 0 new 4000", "1@5 x poll_grow ctx 0x5 old 0 new 4000"] {
            assert!(matches!(Line::parse(line), Line::Unparsable(_)), "{line}");
        }
    }

    #[test]
    fn stamps_with_thread_and_with_date() {
        let old = event("20063@1795306189.194730:poll_grow ctx 0x5 old 0 new 4000").stamp.unwrap();
        assert_eq!((old.ns, old.tid), (1_795_306_189_194_730_000, Some(20_063)));
        for name in ["", "guest one "] {
            let line =
                format!("2026-11-22T00:13:23.433299Z {name}poll_add ctx 0x5 node 0x5 fd 15 revents 0x1");
            let new = event(&line).stamp.unwrap();
            assert_eq!((new.ns, new.tid), (1_795_306_403_433_299_000, None));
        }
    }

    #[test]
    fn simpletrace_stamps_with_microseconds_since_the_line_before() {
        let grown = event("poll_grow 12.345 pid=7 ctx=0x5 old=0x0 new=0xfa0");
        assert_eq!((grown.ctx, grown.what), (5, Aio::Window { grow: true, old: 0, new: 4_000 }));
        let stamp = Stamp { ns: 12_345, resolution_ns: 1, tid: None, pid: None, clock: Clock::Before };
        assert_eq!(grown.stamp, Some(stamp));
        let end = event("run_poll_handlers_end -0.500 pid=7 ctx=0x5 progress=0x0 timeout=0xffffffffffffffff");
        assert_eq!(end.what, Aio::PollEnd { progress: false, timeout_ns: -1 });
        assert_eq!(end.stamp.map(|stamp| stamp.ns.cast_signed()), Some(-500));
        assert_eq!(Line::parse("aio_bh 1.000 pid=7 x=0x1"), Line::Passed { ns: 1_000, dropped: 0 });
        assert_eq!(
            Line::parse("Dropped_Event 0.001 pid=7 num_events_dropped=0x1f"),
            Line::Passed { ns: 1, dropped: 31 }
        );
        for line in
            ["poll_grow 12.345 pid=7 ctx=0x5 old=0x0", "x 1 poll_grow 1.000 pid=7 ctx=0x5 old=0x0 new=0x1"]
        {
            assert_eq!(Line::parse(line), Line::Unparsable("poll_grow"), "{line}");
        }
    }

    #[test]
    fn the_syslog_stamps_by_its_own_time_where_qemu_has_none() {
        let grown = "poll_grow ctx 0x5 old 0 new 4000";
        let stamp = |head: &str| event(&format!("{head}{grown}")).stamp.unwrap();
        let day = stamp("2026-11-22T00:13:23.433299+01:00 host qemu-system-x86_64[7]: ");
        assert_eq!((day.ns, day.clock), (1_795_302_803_433_299_000, Clock::Day));
        assert_eq!(stamp("2026-11-22T00:13:23.433299Z host qemu[7]: ").ns - day.ns, 3_600_000_000_000);
        let [first, next] = ["Feb 28 23:59:59.999999", "Mar  1 00:00:00.000001"]
            .map(|time| stamp(&format!("{time} host qemu[7]: ")));
        assert_eq!((next.ns - first.ns, first.clock), (86_400_000_002_000, Clock::Other));
        assert_eq!(stamp("[  123.456789] host qemu[7]: ").ns, 123_456_789_000);
        let own = stamp("Nov 25 10:00:00 host qemu[7]: 8@1.000002:");
        assert_eq!((own.ns, own.tid, own.clock), (1_000_002_000, Some(8), Clock::Day));
        let whole = event(&format!("Nov 25 10:00:00 host qemu[7]: {grown}"));
        assert_eq!((whole.stamp, whole.whole_seconds), (None, true));
        let iso = event(&format!("2026-11-22T00:13:23+0100 host qemu[7]: {grown}"));
        assert_eq!((iso.stamp, iso.whole_seconds), (None, true));
        for head in ["Nov 32 10:00:00 host qemu[7]: ", "Nov 25 host qemu[7]: ", "25 10:00:00 host qemu[7]: "]
        {
            assert_eq!(Line::parse(&format!("{head}{grown}")), Line::Unparsable("poll_grow"), "{head}");
        }
    }

    #[test]
    fn babeltrace_stamps_with_the_time_of_day() {
        let at = "[10:00:00.000000007] (+0.000001234) host";
        let line = format!(
            "{at} qemu:poll_add: {{ cpu_id = 3 }}, {{ vpid = 7, vtid = 9 }}, {{ ctx = 0x5A, node = 0x9F, fd = -1, revents = 1 }}"
        );
        let added = event(&line);
        assert_eq!((added.ctx, added.what), (0x5a, Aio::Handler { node: 0x9f, fd: -1, joins: true }));
        let wanted =
            Stamp { ns: 36_000_000_000_007, resolution_ns: 1, tid: Some(9), pid: None, clock: Clock::Other };
        assert_eq!(added.stamp, Some(wanted));
        let line = "[1764064802.100000001] (+?.?????????) host qemu:poll_shrink: { cpu_id = 3 }, { ctx = 0x5, old = 4000, new = 0 }";
        let shrunk = event(line);
        assert_eq!(shrunk.what, Aio::Window { grow: false, old: 4_000, new: 0 });
        assert_eq!(
            shrunk.stamp.map(|s| (s.ns, s.tid, s.clock)),
            Some((1_764_064_802_100_000_001, None, Clock::Day))
        );
        assert_eq!(
            Line::parse(
                "[10:00:00.5] host qemu:poll_grow: { cpu_id = 3 }, { ctx = 0x5, old = 4000, new = 0 }"
            ),
            Line::Unparsable("poll_grow")
        );
    }

    /// CI met such a line: it ended the import of a whole log.
    #[test]
    fn a_date_on_the_full_second_has_no_fraction() {
        let full = event("2026-11-22T03:11:45Z poll_grow ctx 0x5 old 0 new 4000").stamp.unwrap();
        let next = event("2026-11-22T03:11:45.000001Z poll_grow ctx 0x5 old 0 new 4000").stamp.unwrap();
        assert_eq!(next.ns - full.ns, 1_000);
        assert_eq!(
            Line::parse("2026-11-22T03:11:45.Z poll_grow ctx 0x5 old 0 new 1"),
            Line::Unparsable("poll_grow")
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(days_since_1970(1970, 1, 1), 0);
        assert_eq!(days_since_1970(2000, 2, 29), 11_016);
        assert_eq!(days_since_1970(2000, 3, 1), 11_017);
        assert_eq!(days_since_1970(2100, 3, 1) - days_since_1970(2100, 2, 28), 1);
        let mut last = 0;
        for year in 1970..=2400 {
            let length = days_since_1970(year + 1, 1, 1) - days_since_1970(year, 1, 1);
            assert_eq!(length, if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 });
            for (month, days) in [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].into_iter().enumerate() {
                let first = days_since_1970(year, month as u64 + 1, 1);
                assert!(first > last || first == 0);
                last = first + days - 1;
            }
        }
    }

    #[test]
    fn what_names_an_event_and_is_not_one_is_told_apart_from_other_lines() {
        for line in [
            "poll_grow ctx 56 old 0 new 4000",
            "poll_grow ctx 0x56 old 0 new",
            "poll_grow ctx 0x56 old +1 new 4000",
            "poll_grow ctx 0x56 old 0 new 4000 more",
            "poll_grow ctx",
            "run_poll_handlers_end ctx 0x56 progress 1 new timeout 99999999999999999999",
            "1@2.3:poll_grow ctx 0x56 old 0 new 4000",
            "2026-13-22T00:13:23.433299Z poll_grow ctx 0x56 old 0 new 4000",
            "something poll_grow ctx 0x56 old 0 new 4000",
        ] {
            assert!(matches!(Line::parse(line), Line::Unparsable(_)), "{line}");
        }
        for line in
            ["", "poll_grown ctx 0x5", "qemu: terminating", "my_poll_grow ctx 0x56 old 0 new 1", "poll_grow"]
        {
            assert_eq!(Line::parse(line), Line::Other, "{line}");
        }
    }
}
