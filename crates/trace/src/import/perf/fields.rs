//! The texts of the tracepoints that are used, as Linux's `TP_printk`, the plugins of perf and trace-cmd, and
//! `trace-cmd report -R` write them.

use super::line::{Dialect, TextEvent};
use crate::event::{EventKind, Interrupt, SystemCall, TracepointKind};
use crate::import::number::{self, digits};
use dwell_policy::arch::Arch;

/// The state that `power:cpu_idle` names when a CPU leaves idle.
pub const LEAVE: u32 = u32::MAX;

/// What the text of a tracepoint reports: `None` if it cannot be parsed, `Some(None)` if it is of no use (an
/// exit that is not by HLT, a system call that cannot wait).
pub fn parse(
    tracepoint: TracepointKind,
    event: &TextEvent<'_>,
    arch: Option<Arch>,
) -> Option<Option<EventKind>> {
    let parsed = printed(tracepoint, event, arch);
    if parsed.is_none() && event.dialect == Dialect::Ftrace {
        return raw(tracepoint, event.text, arch);
    }
    parsed
}

fn printed(
    tracepoint: TracepointKind,
    event: &TextEvent<'_>,
    arch: Option<Arch>,
) -> Option<Option<EventKind>> {
    let text = event.text;
    let kind = match tracepoint {
        TracepointKind::VcpuWakeup => wakeup(text)?,
        TracepointKind::HaltPoll => host_window(text)?,
        TracepointKind::Exit => return halt_exit(text),
        TracepointKind::Entry => EventKind::Entry { vcpu: vcpu_of(text) },
        TracepointKind::Msr => return msr(text),
        TracepointKind::Apic => return apic(text),
        TracepointKind::ApicAccept => {
            let apic = first_word(text.strip_prefix("apicid ")?);
            EventKind::ApicAccept { apic: u32::from_str_radix(apic, 16).ok()? }
        }
        // Of live bills only.
        TracepointKind::UserspaceExit
        | TracepointKind::Port
        | TracepointKind::Mmio
        | TracepointKind::LineRaised
        | TracepointKind::MessageSent
        | TracepointKind::Ran
        | TracepointKind::SyntheticTimer
        | TracepointKind::TimerInterruptEnd
        | TracepointKind::RescheduleInterruptEnd
        | TracepointKind::CallInterruptEnd
        | TracepointKind::DeviceInterruptEnd
        | TracepointKind::Softirq
        | TracepointKind::SoftirqEnd
        | TracepointKind::TimerExpire
        | TracepointKind::WorkStart => return Some(None),
        TracepointKind::HvTimerState => {
            EventKind::HvTimerState { in_use: digits::<u32>(last_field(text, " hv_timer ")?)? != 0 }
        }
        TracepointKind::LapicWait => {
            EventKind::LapicWait { delta: last_field(text, ": delta ")?.parse().ok()? }
        }
        TracepointKind::HrtimerStart => EventKind::HrtimerStart {
            timer: pointer(last_field(text, "hrtimer=")?)?,
            function: function(last_field(text, " function=")?),
            // KTIME_MAX and what is before the clock's beginning are of no timer of KVM's.
            expires_ns: last_field(text, " expires=")?.parse().ok()?,
        },
        TracepointKind::HrtimerExpire => EventKind::HrtimerExpire {
            timer: pointer(last_field(text, "hrtimer=")?)?,
            function: function(last_field(text, " function=")?),
        },
        TracepointKind::CpuIdle => cpu_idle(text)?,
        TracepointKind::GuestHaltPoll => {
            let (_, new, old) = window(text)?;
            EventKind::GuestHaltPoll { new, old }
        }
        TracepointKind::DwellIdle => dwell_idle(text)?,
        TracepointKind::Reflect => reflect(text)?,
        TracepointKind::Switch => switch(text)?,
        TracepointKind::ContextSwitch => return context_switch(text, event.tid),
        TracepointKind::Waking => {
            let (woken, target) = wakeup_of(text, event.cpu)?;
            EventKind::Waking { woken, target }
        }
        TracepointKind::Wakeup | TracepointKind::WakeupNew => {
            let (woken, target) = wakeup_of(text, event.cpu)?;
            EventKind::Wakeup { woken, target }
        }
        TracepointKind::Migrate => migrate(text)?,
        TracepointKind::TimerInterrupt => EventKind::Interrupt(Interrupt::Timer),
        TracepointKind::RescheduleInterrupt | TracepointKind::CallInterrupt | TracepointKind::IpiEntry => {
            EventKind::Interrupt(Interrupt::Ipi)
        }
        TracepointKind::IpiRaise => return raised(text),
        TracepointKind::IpiSend => {
            EventKind::IpiRaise { first: digits(first_word(text.strip_prefix("cpu=")?))?, mask: 1 }
        }
        // The timer of Arm is a device like others.
        TracepointKind::DeviceInterrupt if text.ends_with(" name=arch_timer") => {
            EventKind::Interrupt(Interrupt::Timer)
        }
        TracepointKind::DeviceInterrupt => EventKind::Interrupt(Interrupt::Device),
        TracepointKind::Enter(call) => enter(call, text)?,
        TracepointKind::Leave(call) => EventKind::Leave { call, result: result(text)? },
        TracepointKind::AnyEnter => return any_enter(text, arch),
        TracepointKind::AnyLeave => return any_leave(text, arch),
    };
    Some(Some(kind))
}

/// `name=value name=value`, as `trace-cmd report -R` writes the fields of a tracepoint.
fn raw(tracepoint: TracepointKind, text: &str, arch: Option<Arch>) -> Option<Option<EventKind>> {
    let field = |name: &str| raw_field(text, name);
    let number = |name: &str| u32::try_from(field(name)?).ok();
    let id = |name: &str| i32::try_from(field(name)?.cast_signed()).ok();
    Some(Some(match tracepoint {
        TracepointKind::VcpuWakeup => EventKind::VcpuWakeup {
            ns: field("ns")?,
            waited: field("waited")? != 0,
            valid: field("valid")? != 0,
        },
        TracepointKind::HaltPoll => EventKind::HaltPoll {
            vcpu: number("vcpu_id")?,
            grow: field("grow")? != 0,
            new: number("new")?,
            old: number("old")?,
        },
        TracepointKind::GuestHaltPoll => {
            EventKind::GuestHaltPoll { new: number("new")?, old: number("old")? }
        }
        TracepointKind::Exit => {
            let is_halt = matches!((field("isa"), field("exit_reason")?), (Some(1), 12) | (Some(2), 0x78));
            let vcpu = number("vcpu_id").filter(|_| is_halt);
            return Some(vcpu.map(|vcpu| EventKind::Exit { vcpu: Some(vcpu), reason: 0 }));
        }
        TracepointKind::Switch => EventKind::Switch {
            prev: id("prev_pid")?,
            prev_runnable: Some(field("prev_state")? & 0xff == 0),
            next: id("next_pid")?,
        },
        TracepointKind::AnyEnter => {
            let Some(call) = SystemCall::from_number_on(arch, field("id")?.cast_signed()) else {
                return Some(None);
            };
            // The bytes of six longs.
            let (_, bytes) = text.split_once("args=ARRAY[")?;
            let bytes = bytes.split(']').next()?.split(", ").skip(8 * call.timeout_argument()).take(8);
            let bytes: Vec<u8> = bytes.filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
            let argument = bytes.first_chunk()?;
            let argument = if arch == Some(Arch::S390x) {
                u64::from_be_bytes(*argument)
            } else {
                u64::from_le_bytes(*argument)
            };
            EventKind::Enter { call, timeout: call.timeout(argument) }
        }
        TracepointKind::AnyLeave => {
            let Some(call) = SystemCall::from_number_on(arch, field("id")?.cast_signed()) else {
                return Some(None);
            };
            EventKind::Leave { call, result: field("ret")?.cast_signed() }
        }
        TracepointKind::Enter(call) => {
            let (_, arguments) = text.split_once("nr=")?;
            let (_, argument) =
                arguments.split_whitespace().nth(1 + call.timeout_argument())?.split_once('=')?;
            EventKind::Enter { call, timeout: call.timeout(raw_number(argument)?) }
        }
        TracepointKind::Leave(call) => EventKind::Leave { call, result: field("ret")?.cast_signed() },
        _ => return None,
    }))
}

/// The value of the last ` name=`, or of one at the beginning.
fn raw_field(text: &str, name: &str) -> Option<u64> {
    let mut found = None;
    for (at, _) in text.match_indices(name) {
        let alone = text.get(..at)?.bytes().next_back().is_none_or(|b| b == b' ');
        let value = text.get(at + name.len()..).and_then(|rest| rest.strip_prefix('='));
        found = value.filter(|_| alone).or(found);
    }
    raw_number(first_word(found?))
}

/// `12`, `-4` in two's complement, `0x1f`.
fn raw_number(text: &str) -> Option<u64> {
    match text.strip_prefix('-') {
        Some(_) => text.parse().ok().map(i64::cast_unsigned),
        None => digits(text).or_else(|| hexadecimal(text)),
    }
}

/// `idle_ns=812 window_ns=7500 busy_ns=1290 halted=0`.
fn dwell_idle(text: &str) -> Option<EventKind> {
    let field = |name| text.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let halted = match field("halted")? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    Some(EventKind::DwellIdle { window_ns: field("window_ns")?.parse().ok()?, halted })
}

/// `wait time 12345 ns, polling valid`, `poll time 0 ns, polling invalid`.
fn wakeup(text: &str) -> Option<EventKind> {
    let (how, rest) = text.split_once(" time ")?;
    let (ns, rest) = rest.split_once(" ns")?;
    let waited = match how {
        "wait" => true,
        "poll" => false,
        _ => return None,
    };
    let valid = match rest.strip_prefix(", polling ").map(first_word) {
        Some("valid") => true,
        Some("invalid") => false,
        None if rest.is_empty() => true,
        _ => return None,
    };
    Some(EventKind::VcpuWakeup { ns: digits(ns)?, waited, valid })
}

/// `vcpu 0: halt_poll_ns 20000 (grow 10000)`.
fn host_window(text: &str) -> Option<EventKind> {
    let (vcpu, rest) = text.strip_prefix("vcpu ")?.split_once(": ")?;
    let (grow, new, old) = window(rest)?;
    Some(EventKind::HaltPoll { vcpu: digits(vcpu)?, grow, new, old })
}

/// `halt_poll_ns 20000 (grow 10000)`: whether grown, new and old.
fn window(text: &str) -> Option<(bool, u32, u32)> {
    let (new, rest) = text.strip_prefix("halt_poll_ns ")?.split_once(" (")?;
    let (grow, old) = match rest.strip_prefix("grow ") {
        Some(old) => (true, old),
        None => (false, rest.strip_prefix("shrink ")?),
    };
    Some((grow, digits(new)?, digits(old.split_once(')')?.0)?))
}

/// `state=1 cpu_id=0`.
fn cpu_idle(text: &str) -> Option<EventKind> {
    let (state, cpu) = text.strip_prefix("state=")?.split_once(" cpu_id=")?;
    let state = Some(digits(state)?).filter(|&state| state != LEAVE);
    Some(EventKind::CpuIdle { cpu: digits(first_word(cpu))?, state })
}

/// `state=1 residency_ns=123 limit_ns=50000`, as this crate's export writes it.
fn reflect(text: &str) -> Option<EventKind> {
    let (state, rest) = text.strip_prefix("state=")?.split_once(" residency_ns=")?;
    let (residency, limit) = rest.split_once(" limit_ns=")?;
    Some(EventKind::Reflect {
        state: digits(state)?,
        residency_ns: residency.parse().ok()?,
        limit_ns: first_word(limit).parse().ok()?,
    })
}

/// `prev_comm=a prev_pid=1 … ==> next_comm=b next_pid=2 next_prio=120`, or from perf's plugin
/// `a:1 [120] S ==> b:2 [120]`. A task's name may look like a field, so they are sought from the right.
fn switch(text: &str) -> Option<EventKind> {
    let (prev, next) = text.rsplit_once(" ==> ")?;
    if next.starts_with("next_comm=") {
        return Some(EventKind::Switch {
            prev: id(last_field(prev, "prev_pid=")?)?,
            prev_runnable: last_field(prev, "prev_state=").map(|state| state.starts_with('R')),
            next: id(last_field(next, "next_pid=")?)?,
        });
    }
    let pid = |side: &str| id(side.rsplit_once(" [")?.0.rsplit_once(':')?.1);
    let prev_runnable = prev.rsplit_once("] ").map(|(_, state)| state.starts_with('R'));
    Some(EventKind::Switch { prev: pid(prev)?, prev_runnable, next: pid(next)? })
}

/// `OUT preempt next pid/tid: 12/34`, `IN prev pid/tid: 12/34`. Each switch is recorded twice, by the thread
/// that leaves and by the one that gets the CPU. The idle task of a CPU may record nothing, so that a switch
/// to or from it is taken from the other thread.
fn context_switch(text: &str, own: i32) -> Option<Option<EventKind>> {
    let (direction, ids) = text.split_once("pid/tid:")?;
    let other: i32 = first_word(ids).split_once('/')?.1.parse().ok()?;
    let (prev, next) = match first_word(direction) {
        "OUT" => (own, other),
        "IN" => (other, own),
        _ => return None,
    };
    Some((other == 0).then_some(EventKind::Switch { prev, prev_runnable: None, next }))
}

/// `comm=a pid=1 prio=120 target_cpu=003`, or from perf's plugin `a:1 [120] CPU:003`; of old kernels with `success=1`
/// before the CPU.
fn wakeup_of(text: &str, cpu: Option<u32>) -> Option<(i32, u32)> {
    if text.contains("pid=") {
        let target = last_field(text, "target_cpu=").and_then(digits).or(cpu).unwrap_or(0);
        return Some((id(last_field(text, " pid=")?)?, target));
    }
    let (task, rest) = text.rsplit_once(" [")?;
    let target = last_field(rest, "CPU:").and_then(digits).or(cpu).unwrap_or(0);
    Some((id(task.rsplit_once(':')?.1)?, target))
}

/// `target_mask=00000000,00000008 (Rescheduling interrupts)`: words of 32 CPUs, the last of which is the first. Of no
/// use without the mask, and for CPUs that are more than 64 apart.
fn raised(text: &str) -> Option<Option<EventKind>> {
    let Some(words) = text.strip_prefix("target_mask=") else { return Some(None) };
    let (mut first, mut mask, mut none) = (0, 0u64, true);
    for (place, word) in (0u32..).zip(first_word(words).rsplit(',')) {
        let word = u64::from(u32::from_str_radix(word, 16).ok()?);
        if word == 0 {
            continue;
        }
        if none {
            (first, none) = (place.checked_mul(32)?, false);
        }
        match place.checked_mul(32)?.checked_sub(first)? {
            0 => mask |= word,
            32 => mask |= word << 32,
            _ => return Some(None),
        }
    }
    Some((!none).then_some(EventKind::IpiRaise { first, mask }))
}

/// `comm=a pid=1 prio=120 orig_cpu=0 dest_cpu=1`.
fn migrate(text: &str) -> Option<EventKind> {
    Some(EventKind::Migrate {
        task: id(last_field(text, " pid=")?)?,
        from: digits(last_field(text, "orig_cpu=")?)?,
        to: digits(last_field(text, "dest_cpu=")?)?,
    })
}

/// `vcpu 0 reason HLT rip 0x…`, of s390 `00[…]: exit sie icptcode 28 (Wait state)`: this thread runs this vCPU. Kernels before
/// 5.10 do not name the vCPU.
fn halt_exit(text: &str) -> Option<Option<EventKind>> {
    let is_halt = matches!(exit_reason(text)?, "HLT" | "hlt" | "Wait state");
    Some(vcpu_of(text).filter(|_| is_halt).map(|vcpu| EventKind::Exit { vcpu: Some(vcpu), reason: 0 }))
}

/// `vcpu 0 reason …`, `vcpu 0, rip 0x1`, of s390 `00[…]: …`.
pub fn vcpu_of(text: &str) -> Option<u32> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return digits(text.split_once('[')?.0);
    }
    digits(first_word(text.strip_prefix("vcpu ")?).trim_end_matches(','))
}

/// `msr_write 6e0 = 0x27e1f4bbc`, of a write that was refused with ` (#GP)` behind it.
fn msr(text: &str) -> Option<Option<EventKind>> {
    let (access, value) = text.split_once(" = ")?;
    let is_deadline = access == "msr_write 6e0" && !value.ends_with("(#GP)");
    let value = hexadecimal(value)?;
    Some(is_deadline.then_some(EventKind::DeadlineWritten { value }))
}

/// `apic_write APIC_TMICT = 0x1e848`.
fn apic(text: &str) -> Option<Option<EventKind>> {
    let (access, value) = text.split_once(" = ")?;
    let value = hexadecimal(value)?;
    Some((access == "apic_write APIC_TMICT").then_some(EventKind::CountWritten { value }))
}

/// `0xffff9c1d4a3b2010`; ftrace itself writes `000000001a2b3c4d`, which is not the address but as good as one.
fn pointer(text: &str) -> Option<u64> {
    hexadecimal(text).or_else(|| u64::from_str_radix(text, 16).ok())
}

/// A function by its address, or by its name: FNV-1a.
fn function(text: &str) -> u64 {
    let digest = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    hexadecimal(text).unwrap_or_else(|| text.bytes().fold(0xcbf2_9ce4_8422_2325, digest))
}

/// The reason in the text of `kvm:kvm_exit`: `vcpu 0 reason MSR_WRITE rip 0xffffffff81000000 info1 …`, of old kernels
/// `reason MSR_WRITE rip 0x…`.
pub fn exit_reason(text: &str) -> Option<&str> {
    // Of s390: `01[0706c00180000000-0000000000112233]: exit sie icptcode 28 (Wait state)`.
    if let Some((_, code)) = text.split_once(" sie icptcode ") {
        let name = code.split_once('(').and_then(|(_, name)| name.split_once(')')).map(|(name, _)| name);
        return name
            .filter(|name| !name.is_empty())
            .or_else(|| code.split(' ').next())
            .filter(|name| !name.is_empty());
    }
    // Of arm64: `TRAP: HSR_EC: 0x0001 (WFx), PC: 0x…`, `IRQ: HSR_EC: …`.
    if let Some((how, class)) = text.split_once(": HSR_EC: ").or_else(|| text.split_once(": ESR_EC: ")) {
        return if how == "TRAP" { Some(class.split_once('(')?.1.split_once(')')?.0) } else { Some(how) };
    }
    let rest = match text.strip_prefix("reason ") {
        Some(rest) => rest,
        None => text.split_once(" reason ")?.1,
    };
    let reason = match rest.split_once(" rip ") {
        Some((reason, _)) => reason,
        None => rest.split_whitespace().next()?,
    };
    let reason = reason.trim();
    if reason.is_empty() { None } else { Some(reason) }
}

/// `ufds: 0x7ffe, nfds: 0x00000001, timeout_msecs: 0x00000064`: the arguments in their order. Between them a kernel may
/// show what a pointer points to; that has no colon after a single word.
fn enter(call: SystemCall, text: &str) -> Option<EventKind> {
    // ftrace: `(ufds: 7ffe, nfds: 1, …)`.
    let inside = text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    let (_, argument) = inside.unwrap_or(text).split(", ").nth(call.timeout_argument())?.split_once(": ")?;
    let argument = match inside {
        Some(_) => u64::from_str_radix(first_word(argument), 16).ok()?,
        None => hexadecimal(argument)?,
    };
    Some(EventKind::Enter { call, timeout: call.timeout(argument) })
}

/// `0x1`, `0xfffffffffffffffc`, of ftrace `-> 0x1`.
fn result(text: &str) -> Option<i64> {
    hexadecimal(text.strip_prefix("-> ").unwrap_or(text)).map(u64::cast_signed)
}

/// `NR 271 (7ffe, 1, 0, 0, 8, 0)`.
fn any_enter(text: &str, arch: Option<Arch>) -> Option<Option<EventKind>> {
    let (number, arguments) = text.strip_prefix("NR ")?.split_once(" (")?;
    let Some(call) = SystemCall::from_number_on(arch, number.parse().ok()?) else { return Some(None) };
    let argument = arguments.split_once(')')?.0.split(", ").nth(call.timeout_argument())?;
    let timeout = call.timeout(u64::from_str_radix(argument, 16).ok()?);
    Some(Some(EventKind::Enter { call, timeout }))
}

/// `NR 271 = 1`.
fn any_leave(text: &str, arch: Option<Arch>) -> Option<Option<EventKind>> {
    let (number, result) = text.strip_prefix("NR ")?.split_once(" = ")?;
    let Some(call) = SystemCall::from_number_on(arch, number.parse().ok()?) else { return Some(None) };
    Some(Some(EventKind::Leave { call, result: first_word(result).parse().ok()? }))
}

/// What is after the last ` name=`.
fn last_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    Some(first_word(text.get(text.rfind(name)?..)?.strip_prefix(name)?))
}

/// The number of a task. It is -1 where the reader of the events could not see the task.
fn id(text: &str) -> Option<i32> {
    let number = text.strip_prefix('-').unwrap_or(text);
    if number.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Up to the first blank: with `-F +ip` perf puts an address behind the text.
fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

fn hexadecimal(text: &str) -> Option<u64> {
    number::hexadecimal(first_word(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Timeout;

    /// The outer `None`: cannot be parsed.
    fn read(name: &str, text: &str) -> Option<Option<EventKind>> {
        let event = TextEvent {
            dialect: if name.contains(':') { Dialect::Perf } else { Dialect::Ftrace },
            comm: "",
            pid: None,
            tid: 77,
            cpu: Some(6),
            time_ns: 0,
            resolution_ns: 1,
            name,
            text,
        };
        parse(event.tracepoint().expect("a tracepoint of use"), &event, Some(Arch::X86_64))
    }

    #[test]
    fn reads_every_tracepoint() {
        use SystemCall::{EpollWait, IoUringEnter, Ppoll};
        let wakeup = |ns, waited, valid| EventKind::VcpuWakeup { ns, waited, valid };
        for (name, text, kind) in [
            ("kvm:kvm_vcpu_wakeup", "wait time 12 ns, polling valid", wakeup(12, true, true)),
            ("kvm:kvm_vcpu_wakeup", "poll time 0 ns, polling invalid", wakeup(0, false, false)),
            ("kvm:kvm_vcpu_wakeup", "poll time 7 ns", wakeup(7, false, true)),
            (
                "kvm:kvm_halt_poll_ns",
                "vcpu 7: halt_poll_ns 0 (shrink 4294967295)",
                EventKind::HaltPoll { vcpu: 7, grow: false, new: 0, old: u32::MAX },
            ),
            ("power:cpu_idle", "state=4294967295 cpu_id=3", EventKind::CpuIdle { cpu: 3, state: None }),
            ("power:cpu_idle", "state=0 cpu_id=3", EventKind::CpuIdle { cpu: 3, state: Some(0) }),
            (
                "power:guest_halt_poll_ns",
                "halt_poll_ns 50000 (grow 0)",
                EventKind::GuestHaltPoll { new: 50_000, old: 0 },
            ),
            (
                "dwell_idle:dwell_idle_episode",
                "idle_ns=812 window_ns=7500 busy_ns=1290 halted=0",
                EventKind::DwellIdle { window_ns: 7_500, halted: false },
            ),
            (
                "sched:sched_switch",
                "prev_comm=a ==> b prev_pid=6 prev_prio=120 prev_state=R+ ==> next_comm=x next_pid=0 next_pid=7 next_prio=0",
                EventKind::Switch { prev: 6, prev_runnable: Some(true), next: 7 },
            ),
            (
                "sched:sched_switch",
                "a b:6 [120] S ==> swapper/0:0 [120]",
                EventKind::Switch { prev: 6, prev_runnable: Some(false), next: 0 },
            ),
            (
                "sched:sched_waking",
                "comm=x pid=1 pid=64 prio=120 target_cpu=002",
                EventKind::Waking { woken: 64, target: 2 },
            ),
            ("sched:sched_waking", "comm=x pid=64 prio=120", EventKind::Waking { woken: 64, target: 6 }),
            ("sched:sched_waking", "a b:64 [120] CPU:003", EventKind::Waking { woken: 64, target: 3 }),
            (
                "sched:sched_waking",
                "a b:64 [120] success=1 CPU:003",
                EventKind::Waking { woken: 64, target: 3 },
            ),
            (
                "perf:context_switch",
                "OUT          next pid/tid:     0/0",
                EventKind::Switch { prev: 77, prev_runnable: None, next: 0 },
            ),
            (
                "perf:context_switch",
                "IN           prev pid/tid:     0/0",
                EventKind::Switch { prev: 0, prev_runnable: None, next: 77 },
            ),
            (
                "sched:sched_wakeup_new",
                "comm=x pid=64 prio=120 target_cpu=002",
                EventKind::Wakeup { woken: 64, target: 2 },
            ),
            (
                "sched:sched_migrate_task",
                "comm=x pid=64 prio=120 orig_cpu=2 dest_cpu=0",
                EventKind::Migrate { task: 64, from: 2, to: 0 },
            ),
            (
                "kvm:kvm_exit",
                "vcpu 2 reason HLT rip 0x1 info1 0x0",
                EventKind::Exit { vcpu: Some(2), reason: 0 },
            ),
            ("irq_vectors:local_timer_entry", "vector=236", EventKind::Interrupt(Interrupt::Timer)),
            ("irq_vectors:reschedule_entry", "vector=253", EventKind::Interrupt(Interrupt::Ipi)),
            ("irq:irq_handler_entry", "irq=24 name=virtio0", EventKind::Interrupt(Interrupt::Device)),
            ("ipi:ipi_entry", "(Rescheduling interrupts)", EventKind::Interrupt(Interrupt::Ipi)),
            (
                "ipi:ipi_raise",
                "target_mask=00000008 (Rescheduling interrupts)",
                EventKind::IpiRaise { first: 0, mask: 8 },
            ),
            (
                "ipi:ipi_raise",
                "target_mask=00000001,80000000,00000000 (Function call interrupts)",
                EventKind::IpiRaise { first: 32, mask: 1 << 32 | 1 << 31 },
            ),
            (
                "ipi:ipi_send_cpu",
                "cpu=3 callsite=ttwu_queue_wakelist+0xf8 callback=0x0",
                EventKind::IpiRaise { first: 3, mask: 1 },
            ),
            (
                "syscalls:sys_enter_ppoll",
                "ufds: 0x7ffe5e9d, nfds: 0x00000001, tsp: 0x00000000, sigmask: 0x00000000, sigsetsize: 0x00000008",
                EventKind::Enter { call: Ppoll, timeout: Timeout::Unlimited },
            ),
            (
                "syscalls:sys_enter_epoll_wait",
                "epfd: 0x00000004, events: 0x55d0, maxevents: 0x00000400, timeout: 0x00000064",
                EventKind::Enter { call: EpollWait, timeout: Timeout::Millis(100) },
            ),
            ("syscalls:sys_exit_ppoll", "0xfffffffffffffffc", EventKind::Leave { call: Ppoll, result: -4 }),
            (
                "raw_syscalls:sys_enter",
                "NR 426 (7, 1, 1, 1, 0, 8)",
                EventKind::Enter { call: IoUringEnter, timeout: Timeout::Unlimited },
            ),
            ("raw_syscalls:sys_exit", "NR 426 = -62", EventKind::Leave { call: IoUringEnter, result: -62 }),
        ] {
            assert_eq!(read(name, text), Some(Some(kind)), "{name}: {text}");
        }
    }

    /// The texts of the calls and of `trace-cmd report -R`, as Linux 6.18 and trace-cmd 3.1 write them.
    #[test]
    fn reads_what_ftrace_and_trace_cmd_write_otherwise() {
        use SystemCall::{Poll, Ppoll};
        let arguments =
            "01, 00, 00, 00, 00, 00, 00, 00, 01, 00, 00, 00, 00, 00, 00, 00, 64, 00, 00, 00, 00, 00, 00, 00";
        for (name, text, kind) in [
            (
                "sys_ppoll",
                "(ufds: 7ffe, nfds: 1, tsp: 0, sigmask: 0)",
                EventKind::Enter { call: Ppoll, timeout: Timeout::Unlimited },
            ),
            ("sys_ppoll", "-> 0xfffffffffffffffc", EventKind::Leave { call: Ppoll, result: -4 }),
            (
                "sys_enter",
                &format!("id=7 args=ARRAY[{arguments}]"),
                EventKind::Enter { call: Poll, timeout: Timeout::Millis(100) },
            ),
            ("sys_exit", "id=7 ret=-4", EventKind::Leave { call: Poll, result: -4 }),
            (
                "sys_enter_poll",
                "__syscall_nr=7 ufds=0x7f nfds=1 timeout_msecs=100",
                EventKind::Enter { call: Poll, timeout: Timeout::Millis(100) },
            ),
            ("sys_exit_poll", "__syscall_nr=7 ret=1", EventKind::Leave { call: Poll, result: 1 }),
            (
                "sched_switch",
                "prev_comm=a prev_pid=4 next_pid=9 prev_pid=6 prev_prio=120 prev_state=1 next_comm=opt x next_pid=7 next_prio=120",
                EventKind::Switch { prev: 6, prev_runnable: Some(false), next: 7 },
            ),
            (
                "sched_switch",
                "bash:405 [120] R ==> opt 8:406 [120]",
                EventKind::Switch { prev: 405, prev_runnable: Some(true), next: 406 },
            ),
            (
                "kvm_vcpu_wakeup",
                "ns=91252 waited=1 valid=1",
                EventKind::VcpuWakeup { ns: 91_252, waited: true, valid: true },
            ),
            (
                "kvm_halt_poll_ns",
                "grow=1 vcpu_id=3 new=10000 old=0",
                EventKind::HaltPoll { vcpu: 3, grow: true, new: 10_000, old: 0 },
            ),
            (
                "kvm_exit",
                "exit_reason=12 guest_rip=0x1 isa=1 info1=0x0 vcpu_id=2",
                EventKind::Exit { vcpu: Some(2), reason: 0 },
            ),
            (
                "hrtimer_start",
                "hrtimer=00000000e7a81c3d function=tick_nohz_handler/0x0 expires=1558472000000 softexpires=1558472000000",
                EventKind::HrtimerStart {
                    timer: 0xe7a8_1c3d,
                    function: function("tick_nohz_handler/0x0"),
                    expires_ns: 1_558_472_000_000,
                },
            ),
        ] {
            assert_eq!(read(name, text), Some(Some(kind)), "{name}: {text}");
        }
    }

    #[test]
    fn the_numbers_of_system_calls_are_the_architectures() {
        let leave = |arch, number: &str| any_leave(&format!("NR {number} = 1"), arch).unwrap();
        let of = |call| Some(EventKind::Leave { call, result: 1 });
        for (arch, number, kind) in [
            (Some(Arch::X86_64), "22", None),
            (Some(Arch::X86_64), "23", of(SystemCall::Select)),
            (Some(Arch::Arm64), "22", of(SystemCall::EpollPwait)),
            (Some(Arch::Arm64), "23", None),
            (Some(Arch::S390x), "302", of(SystemCall::Ppoll)),
            (Some(Arch::Power), "281", of(SystemCall::Ppoll)),
            (None, "441", None),
        ] {
            assert_eq!(leave(arch, number), kind, "{arch:?} {number}");
        }
        assert_eq!(exit_reason("TRAP: HSR_EC: 0x0001 (WFx), PC: 0x1"), Some("WFx"));
        assert_eq!(exit_reason("IRQ: HSR_EC: 0x0000 (UNKNOWN), PC: 0x1"), Some("IRQ"));
    }

    #[test]
    fn passes_over_what_is_of_no_use() {
        for (name, text) in [
            ("perf:context_switch", "OUT preempt  next pid/tid: 12/34"),
            ("perf:context_switch", "IN           prev pid/tid: 12/34"),
            ("kvm:kvm_exit", "vcpu 0 reason MSR_WRITE rip 0x1 info1 0x0"),
            ("kvm:kvm_exit", "reason HLT rip 0x1"),
            ("ipi:ipi_raise", "target_mask=00000001,00000000,00000001 (CPU stop interrupts)"),
            ("ipi:ipi_raise", ""),
            ("raw_syscalls:sys_enter", "NR 99999 (0, 1, 2, 3, 4, 5)"),
            ("raw_syscalls:sys_exit", "NR 99999 = 3"),
        ] {
            assert_eq!(read(name, text), Some(None), "{name}: {text}");
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
            ("syscalls:sys_exit_poll", "0x1"),
            ("raw_syscalls:sys_exit", "NR 7 = 1"),
        ] {
            let with = format!("{text} ffffffff813aa9c4");
            assert!(read(name, text).is_some(), "{name}: {text}");
            assert_eq!(read(name, &with), read(name, text));
        }
    }

    #[test]
    fn reads_the_reason_of_an_exit() {
        assert_eq!(exit_reason("vcpu 0 reason MSR_WRITE rip 0x1 info1 0x0"), Some("MSR_WRITE"));
        assert_eq!(exit_reason("reason HLT rip 0x1"), Some("HLT"));
        assert_eq!(exit_reason("reason HLT"), Some("HLT"));
        assert_eq!(exit_reason("vcpu 0"), None);
        let of_s390 = |code| exit_reason(code).zip(vcpu_of(code));
        let at = "01[0706c00180000000-0000000000112233]: ";
        let [halt, unknown] =
            ["28 (Wait state)", "99 ()"].map(|code| format!("{at}exit sie icptcode {code}"));
        assert_eq!(of_s390(&halt), Some(("Wait state", 1)));
        assert_eq!(of_s390(&unknown), Some(("99", 1)));
        assert_eq!(halt_exit(&halt), Some(Some(EventKind::Exit { vcpu: Some(1), reason: 0 })));
        assert_eq!(vcpu_of(&format!("{at}entering sie flags 0")), Some(1));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for (name, text) in [
            ("kvm:kvm_vcpu_wakeup", "wait time -5 ns, polling valid"),
            ("kvm:kvm_vcpu_wakeup", "wait time 99999999999999999999 ns, polling valid"),
            ("kvm:kvm_vcpu_wakeup", "doze time 5 ns, polling valid"),
            ("kvm:kvm_vcpu_wakeup", "wait time 5 ns, polling perhaps"),
            ("kvm:kvm_vcpu_wakeup", ""),
            ("kvm:kvm_halt_poll_ns", "vcpu 0: halt_poll_ns 4294967296 (grow 0)"),
            ("power:cpu_idle", "state=1"),
            ("sched:sched_switch", "prev_comm=a prev_pid=6"),
            ("kvm:kvm_exit", "vcpu 0"),
            ("ipi:ipi_raise", "target_mask=0000000x (CPU stop interrupts)"),
            ("ipi:ipi_send_cpu", "cpu= callsite=0x0"),
            ("syscalls:sys_enter_ppoll", "ufds: 0x7ffe5e9d, nfds: 0x00000001"),
            ("syscalls:sys_enter_poll", "ufds: 0x7, nfds: 0x1, timeout_msecs: 100"),
            ("syscalls:sys_exit_ppoll", "1"),
            ("raw_syscalls:sys_enter", "NR 7 (1, 2)"),
            ("raw_syscalls:sys_exit", "NR 7"),
        ] {
            assert_eq!(read(name, text), None, "{name}: {text}");
        }
    }
}
