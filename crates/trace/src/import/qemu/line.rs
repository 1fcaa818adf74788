//! One line of QEMU's log: an optional time stamp, the event, its arguments.
//!
//! | QEMU | without `-msg timestamp=on` | with |
//! |---|---|---|
//! | to 10.0 | `poll_grow ctx 0x… old 0 new 4000` | `TID@SECONDS.MICROS:poll_grow ctx …` |
//! | 11.1 | 〃 | `2026-11-22T00:13:23.433299Z poll_grow ctx …`, with `guest-name=on` the guest's name before the event |
//!
//! `qemu-trace-stap`, for builds with the dtrace back end (RHEL, CentOS, Fedora), writes the same events as
//! `PID@NANOS poll_grow ctx …`.

use crate::event::Aio;

/// What the times of QEMU's own log resolve \[ns\].
pub(super) const RESOLUTION_NS: u64 = 1_000;

/// When a line was written, by CLOCK_REALTIME, cut to what it resolves, and by which thread, where the line has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) ns: u64,
    pub(super) resolution_ns: u64,
    pub(super) tid: Option<i32>,
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
    pub(super) name: &'static str,
    pub(super) ctx: u64,
    pub(super) what: Aio,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Event(LogEvent),
    /// Names this event and is not as QEMU writes it.
    Unparsable(&'static str),
    /// Another trace event, a message, a blank line.
    Other,
}

impl Line {
    pub(super) fn parse(line: &str) -> Line {
        let Some((at, name)) = named_in(line) else { return Line::Other };
        let (before, after) = line.split_at(at);
        let event = || {
            let stamp = stamp(before)?;
            let mut words = Words(after.get(name.len()..)?.split_ascii_whitespace());
            let ctx = words.address("ctx")?;
            let what = what(name, &mut words)?;
            words.0.next().is_none().then_some(LogEvent { stamp, name, ctx, what })
        };
        event().map_or(Line::Unparsable(name), Line::Event)
    }
}

/// Where in a line which event is named, as a word of its own followed by its context.
fn named_in(line: &str) -> Option<(usize, &'static str)> {
    NAMES.into_iter().find_map(|name| {
        let at = line.find(name)?;
        let alone_before = line.get(..at)?.bytes().next_back().is_none_or(|b| b == b' ' || b == b':');
        let alone_after = line.get(at + name.len()..)?.starts_with(" ctx");
        (alone_before && alone_after).then_some((at, name))
    })
}

fn what(name: &str, words: &mut Words<'_>) -> Option<Aio> {
    Some(match name {
        "run_poll_handlers_begin" => {
            let max_ns = words.number("max_ns")?;
            words.number("timeout")?;
            Aio::PollBegin { max_ns }
        }
        "run_poll_handlers_end" => {
            let progress = words.number("progress")?;
            words.word("new")?;
            Aio::PollEnd { progress: progress != 0, timeout_ns: words.number("timeout")? }
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

/// `name value` after `name value`.
struct Words<'a>(std::str::SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self, name: &str) -> Option<()> {
        (self.0.next()? == name).then_some(())
    }

    fn value(&mut self, name: &str) -> Option<&'a str> {
        self.word(name)?;
        self.0.next()
    }

    fn number(&mut self, name: &str) -> Option<i64> {
        let text = self.value(name)?;
        // The standard library would take a plus sign.
        text.starts_with(|c: char| c == '-' || c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    }

    fn address(&mut self, name: &str) -> Option<u64> {
        let digits = self.value(name)?.strip_prefix("0x")?;
        digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    }
}

/// What precedes the event: nothing, or a time. `None` if it is neither.
fn stamp(before: &str) -> Option<Option<Stamp>> {
    if before.is_empty() {
        return Some(None);
    }
    let stamp = match before.strip_suffix(':') {
        Some(text) => {
            let (tid, time) = text.split_once('@')?;
            let (seconds, micros) = time.split_once('.')?;
            let seconds = digits(seconds)?;
            let tid = Some(i32::try_from(digits(tid)?).ok()?);
            Stamp { ns: nanos(seconds, micros)?, resolution_ns: RESOLUTION_NS, tid }
        }
        None => {
            let time = before.split(' ').next()?;
            match time.split_once('@') {
                // SystemTap has the process, and no thread.
                Some((pid, ns)) if before.trim_end() == time => {
                    digits(pid)?;
                    Stamp { ns: digits(ns)?, resolution_ns: 1, tid: None }
                }
                _ => Stamp { ns: date(time)?, resolution_ns: RESOLUTION_NS, tid: None },
            }
        }
    };
    Some(Some(stamp))
}

fn digits(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
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
    let [hour, minute, second] = split(clock, ':')?;
    let in_range = (1970..=2500).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !in_range {
        return None;
    }
    let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    nanos(seconds, micros)
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
