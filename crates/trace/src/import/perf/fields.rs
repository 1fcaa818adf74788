//! The texts of the tracepoints that are used, as Linux's `TP_printk` and perf's plugins write them.

use super::line::Event;

/// The state that `power:cpu_idle` names when a CPU leaves idle.
const LEAVE: u32 = u32::MAX;

/// A tracepoint of use, with its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point<'a> {
    /// `kvm:kvm_vcpu_wakeup`: a vCPU's halt is over.
    Wakeup { ns: u64, waited: bool },
    /// `kvm:kvm_halt_poll_ns`: the window of a vCPU was changed.
    HostWindow { vcpu: u32, new: u32, old: u32 },
    /// `power:cpu_idle`, state not -1.
    Enter { cpu: u32, state: u32 },
    /// `power:cpu_idle`, state -1.
    Leave { cpu: u32 },
    /// `power:guest_halt_poll_ns`: the window of the CPU on which it is emitted was changed.
    GuestWindow { new: u32, old: u32 },
    /// `sched:sched_switch`.
    Switch { prev: u32, next: u32 },
    /// `sched:sched_waking`.
    Waking { pid: u32 },
    /// `kvm:kvm_exit`.
    Exit { reason: &'a str },
    /// `kvm:kvm_entry`.
    Entry,
}

/// Names of the tracepoints of [`Point`].
pub(crate) const NAMES: [&str; 8] = [
    "kvm:kvm_vcpu_wakeup",
    "kvm:kvm_halt_poll_ns",
    "power:cpu_idle",
    "power:guest_halt_poll_ns",
    "sched:sched_switch",
    "sched:sched_waking",
    "kvm:kvm_exit",
    "kvm:kvm_entry",
];

impl<'a> Point<'a> {
    /// The tracepoint of an event: `None` for one that is of no use, `Some(None)` if its text cannot be parsed.
    pub(crate) fn parse(event: &Event<'a>) -> Option<Option<Point<'a>>> {
        let text = event.text;
        Some(match event.name {
            "kvm:kvm_vcpu_wakeup" => wakeup(text),
            "kvm:kvm_halt_poll_ns" => host_window(text),
            "power:cpu_idle" => cpu_idle(text),
            "power:guest_halt_poll_ns" => window(text).map(|(new, old)| Point::GuestWindow { new, old }),
            "sched:sched_switch" => switch(text),
            "sched:sched_waking" => last_field(text, "pid=").map(|pid| Point::Waking { pid }),
            "kvm:kvm_exit" => exit(text),
            "kvm:kvm_entry" => Some(Point::Entry),
            _ => return None,
        })
    }

    /// Of which tracepoint a line speaks that is no event, for all that can be told.
    pub(crate) fn named_in(line: &str) -> Option<&'static str> {
        NAMES.into_iter().find(|name| {
            let after = line.find(name).and_then(|at| line.get(at + name.len()..));
            after.is_some_and(|after| after.starts_with(':'))
        })
    }
}

/// `wait time 12345 ns, polling valid`, `poll time 0 ns, polling invalid`.
fn wakeup<'a>(text: &str) -> Option<Point<'a>> {
    let (how, rest) = text.split_once(" time ")?;
    let (ns, rest) = rest.split_once(" ns")?;
    let waited = match how {
        "wait" => true,
        "poll" => false,
        _ => return None,
    };
    let valid = rest.strip_prefix(", polling ").map(first_word);
    if rest.is_empty() || matches!(valid, Some("valid" | "invalid")) {
        Some(Point::Wakeup { ns: digits(ns)?, waited })
    } else {
        None
    }
}

/// `vcpu 0: halt_poll_ns 20000 (grow 10000)`.
fn host_window<'a>(text: &str) -> Option<Point<'a>> {
    let (vcpu, rest) = text.strip_prefix("vcpu ")?.split_once(": ")?;
    let (new, old) = window(rest)?;
    Some(Point::HostWindow { vcpu: digits(vcpu)?, new, old })
}

/// `halt_poll_ns 20000 (grow 10000)`: new and old.
fn window(text: &str) -> Option<(u32, u32)> {
    let (new, rest) = text.strip_prefix("halt_poll_ns ")?.split_once(" (")?;
    let old = rest.strip_prefix("grow ").or_else(|| rest.strip_prefix("shrink "))?;
    Some((digits(new)?, digits(old.split_once(')')?.0)?))
}

/// `state=1 cpu_id=0`.
fn cpu_idle<'a>(text: &str) -> Option<Point<'a>> {
    let (state, cpu) = text.strip_prefix("state=")?.split_once(" cpu_id=")?;
    let (state, cpu) = (digits(state)?, digits(first_word(cpu))?);
    Some(if state == LEAVE { Point::Leave { cpu } } else { Point::Enter { cpu, state } })
}

/// `prev_comm=a prev_pid=1 … ==> next_comm=b next_pid=2 next_prio=120`, or from perf's plugin
/// `a:1 [120] S ==> b:2 [120]`. A task's name may look like a field, so they are sought from the right.
fn switch<'a>(text: &str) -> Option<Point<'a>> {
    let (prev, next) = text.rsplit_once(" ==> ")?;
    if next.starts_with("next_comm=") {
        return Some(Point::Switch {
            prev: last_field(prev, "prev_pid=")?,
            next: last_field(next, "next_pid=")?,
        });
    }
    let pid = |side: &str| digits(side.rsplit_once(" [")?.0.rsplit_once(':')?.1);
    Some(Point::Switch { prev: pid(prev)?, next: pid(next)? })
}

/// `vcpu 0 reason MSR_WRITE rip 0xffffffff81000000 info1 …`, of old kernels `reason MSR_WRITE rip 0x…`.
fn exit(text: &str) -> Option<Point<'_>> {
    let rest = match text.strip_prefix("reason ") {
        Some(rest) => rest,
        None => text.split_once(" reason ")?.1,
    };
    let reason = match rest.split_once(" rip ") {
        Some((reason, _)) => reason,
        None => rest.split_whitespace().next()?,
    };
    let reason = reason.trim();
    if reason.is_empty() { None } else { Some(Point::Exit { reason }) }
}

/// The number after the last ` name=`.
fn last_field(text: &str, name: &str) -> Option<u32> {
    let rest = text.get(text.rfind(name)?..)?.strip_prefix(name)?;
    digits(first_word(rest))
}

/// Up to the first blank: with `-F +ip` perf puts an address behind the text.
fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// A number of digits only, without sign.
fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    // An empty text has only digits, and is no number.
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<'a>(name: &'a str, text: &'a str) -> Option<Point<'a>> {
        let event = Event { comm: "", tid: 0, cpu: None, time_ns: 0, resolution_ns: 1, name, text };
        Point::parse(&event).expect("an event of use")
    }

    #[test]
    fn reads_every_tracepoint() {
        for (name, text, point) in [
            ("kvm:kvm_vcpu_wakeup", "wait time 12 ns, polling valid", Point::Wakeup { ns: 12, waited: true }),
            (
                "kvm:kvm_vcpu_wakeup",
                "poll time 0 ns, polling invalid",
                Point::Wakeup { ns: 0, waited: false },
            ),
            (
                "kvm:kvm_halt_poll_ns",
                "vcpu 7: halt_poll_ns 0 (shrink 4294967295)",
                Point::HostWindow { vcpu: 7, new: 0, old: u32::MAX },
            ),
            ("power:cpu_idle", "state=4294967295 cpu_id=3", Point::Leave { cpu: 3 }),
            ("power:cpu_idle", "state=0 cpu_id=3", Point::Enter { cpu: 3, state: 0 }),
            (
                "power:guest_halt_poll_ns",
                "halt_poll_ns 50000 (grow 0)",
                Point::GuestWindow { new: 50_000, old: 0 },
            ),
            (
                "sched:sched_switch",
                "prev_comm=a ==> b prev_pid=6 prev_prio=120 prev_state=R+ ==> next_comm=x next_pid=0 next_pid=7 next_prio=0",
                Point::Switch { prev: 6, next: 7 },
            ),
            ("sched:sched_switch", "a b:6 [120] S ==> swapper/0:0 [120]", Point::Switch { prev: 6, next: 0 }),
            ("sched:sched_waking", "comm=x pid=1 pid=64 prio=120 target_cpu=000", Point::Waking { pid: 64 }),
            (
                "kvm:kvm_exit",
                "vcpu 0 reason MSR_WRITE rip 0x1 info1 0x0",
                Point::Exit { reason: "MSR_WRITE" },
            ),
            ("kvm:kvm_exit", "reason HLT rip 0x1", Point::Exit { reason: "HLT" }),
            ("kvm:kvm_exit", "reason HLT", Point::Exit { reason: "HLT" }),
            ("kvm:kvm_entry", "vcpu 0, rip 0x1", Point::Entry),
        ] {
            assert_eq!(parse(name, text), Some(point), "{name}: {text}");
        }
    }

    #[test]
    fn ignores_an_address_behind_the_text() {
        for (name, text) in [
            ("kvm:kvm_vcpu_wakeup", "wait time 12 ns, polling valid"),
            ("kvm:kvm_halt_poll_ns", "vcpu 7: halt_poll_ns 0 (shrink 5)"),
            ("power:cpu_idle", "state=1 cpu_id=3"),
            ("sched:sched_switch", "prev_comm=a prev_pid=1 ==> next_comm=b next_pid=2 next_prio=0"),
            ("sched:sched_waking", "comm=x pid=64 prio=120 target_cpu=000"),
        ] {
            let with = format!("{text} ffffffff813aa9c4");
            assert!(parse(name, text).is_some());
            assert_eq!(parse(name, &with), parse(name, text));
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for (name, text) in [
            ("kvm:kvm_vcpu_wakeup", "wait time -5 ns, polling valid"),
            ("kvm:kvm_vcpu_wakeup", "wait time 99999999999999999999 ns, polling valid"),
            ("kvm:kvm_vcpu_wakeup", "doze time 5 ns, polling valid"),
            ("kvm:kvm_vcpu_wakeup", ""),
            ("kvm:kvm_halt_poll_ns", "vcpu 0: halt_poll_ns 4294967296 (grow 0)"),
            ("power:cpu_idle", "state=1"),
            ("sched:sched_switch", "prev_comm=a prev_pid=6"),
            ("kvm:kvm_exit", "vcpu 0"),
        ] {
            assert_eq!(parse(name, text), None, "{name}: {text}");
        }
    }
}
