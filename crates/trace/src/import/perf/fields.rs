//! The texts of the tracepoints that are used, as Linux's `TP_printk`, the plugins of perf and trace-cmd, and
//! `trace-cmd report -R` write them. Where each field is says the [table of tracepoints](crate::tracepoint).

use super::line::{Dialect, TextEvent};
use crate::event::{EventKind, Interrupt};
use crate::import::number::{self, digits};
use crate::tracepoint::{Field, Fields, InText, Places, Sample, TracepointKind, exit_number};
use dwell_policy::arch::Arch;
use std::borrow::Cow;

/// What the text of a tracepoint reports: `None` if it cannot be parsed, `Some(None)` if it is of no use (an
/// exit that is not by HLT, a system call that cannot wait).
pub fn parse(
    tracepoint: TracepointKind,
    event: &TextEvent<'_>,
    arch: Option<Arch>,
) -> Option<Option<EventKind>> {
    let text = event.text;
    let read = |raw| {
        let text = Text { text, arch, raw };
        Fields::find(tracepoint, &text).ok()?.event(&text, event.cpu.unwrap_or(0))
    };
    let printed = match tracepoint {
        TracepointKind::Exit => halt_exit(text),
        TracepointKind::Entry => Some(Some(EventKind::Entry { vcpu: vcpu_of(text) })),
        TracepointKind::ContextSwitch => context_switch(text, event.tid),
        TracepointKind::IpiRaise => raised(text),
        // The timers of Arm and RISC-V are devices like others.
        TracepointKind::DeviceInterrupt if timer_of(text).is_some() => {
            Some(Some(EventKind::Interrupt(Interrupt::Timer)))
        }
        _ => read(false),
    };
    // Where it does not understand the format of an event, perf's library writes the fields, too.
    let is_raw = event.dialect == Dialect::Ftrace || text.starts_with("[FAILED TO PARSE]");
    let found = printed.or_else(|| read(true).filter(|_| is_raw))?;
    // A CPU reports its own state: 1 of CPU 12 was cut off.
    if let (Some(EventKind::CpuIdle { cpu, .. }), Some(own)) = (found, event.cpu)
        && [10, 100, 1000].iter().any(|&cut| own >= cut && cpu == own / cut)
    {
        return None;
    }
    Some(found.and_then(|kind| match kind {
        EventKind::Msr { .. } | EventKind::Call { .. } | EventKind::Return => None,
        EventKind::Exit { vcpu, reason } => {
            let is_halt = [0, exit_number(1, 12), exit_number(2, 0x78)].contains(&reason);
            is_halt.then_some(EventKind::Exit { vcpu, reason: 0 })
        }
        kind => Some(kind),
    }))
}

/// The text of a tracepoint.
struct Text<'a> {
    text: &'a str,
    arch: Option<Arch>,
    /// `name=value name=value`, as `trace-cmd report -R` writes the fields.
    raw: bool,
}

impl Text<'_> {
    /// A field by its name, or of perf's plugin by its place: `a:1 [120] S ==> b:2 [120]`, `a:1 [120] CPU:003`, of old
    /// kernels with `success=1` before the CPU. A task's name may look like a field, so they are sought from the right.
    fn named(&self, name: &str) -> Option<&str> {
        let (text, of_plugin) = match self.text.rsplit_once(" ==> ") {
            Some((prev, next)) => {
                (if name.starts_with("prev_") { prev } else { next }, !next.starts_with("next_comm="))
            }
            None => (self.text, !self.text.contains("pid=")),
        };
        match name {
            "prev_pid" | "next_pid" | "pid" if of_plugin => {
                Some(text.rsplit_once(" [")?.0.rsplit_once(':')?.1)
            }
            "prev_state" if of_plugin => Some(text.rsplit_once("] ")?.1),
            "target_cpu" if of_plugin => Some(first_word(text.rsplit_once("CPU:")?.1)),
            _ => {
                let is_alone =
                    |at| text.get(..at).is_some_and(|before| before.is_empty() || before.ends_with(' '));
                let value = |at: usize| text.get(at + name.len()..)?.strip_prefix('=');
                let mut found = text.rmatch_indices(name).filter(|&(at, _)| is_alone(at));
                let value = found.find_map(|(at, _)| value(at))?;
                // A priority is behind it: where the text ends in the number, that was cut off.
                let is_cut = matches!(name, "pid" | "next_pid") && !value.contains(' ');
                (!is_cut).then(|| first_word(value))
            }
        }
    }
}

impl Places for Text<'_> {
    /// The value of a field.
    type Place = u64;

    fn at(&self, field: &'static Field) -> Option<u64> {
        let behind = |labels: &[&str]| {
            let begin = labels.iter().find_map(|label| Some(self.text.find(label)? + label.len()))?;
            Some(first_word(self.text.get(begin..)?).trim_end_matches([':', ')', ',']))
        };
        match field.text {
            _ if self.raw => {}
            InText::Named => {}
            InText::Digits(labels) => return digits(behind(labels)?),
            InText::Signed(label) => return number(behind(&[label])?),
            InText::Hexadecimal(labels) => return hexadecimal(behind(labels)?),
            InText::Bare(labels) => return u64::from_str_radix(behind(labels)?, 16).ok(),
            InText::Words(words) => {
                let is_there = |word: &str| {
                    let mut behind = self.text.split(word).skip(1);
                    word.is_empty() || behind.any(|rest| rest.is_empty() || rest.starts_with(' '))
                };
                return words.iter().find(|(word, _)| is_there(word)).map(|(_, value)| *value);
            }
        }
        match (field.name, self.named(field.name)) {
            ("args", _) => Some(0),
            (_, None) => None,
            // `%03d`: of fewer digits the rest was cut off.
            ("target_cpu", Some(cpu)) if !self.raw && cpu.len() < 3 => None,
            ("hrtimer", Some(pointer)) => {
                // ftrace itself writes `000000001a2b3c4d`, which is not the address but as good as one.
                hexadecimal(pointer).or_else(|| u64::from_str_radix(pointer, 16).ok())
            }
            ("function", Some(name)) => Some(function(name)),
            ("prev_state", Some(letters)) if letters.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                Some(u64::from(!letters.starts_with('R')))
            }
            (_, Some(value)) => number(value),
        }
    }

    fn argument(&self, number: usize) -> Option<u64> {
        // The bytes of six longs.
        if let Some((_, bytes)) = self.text.split_once("args=ARRAY[") {
            let bytes = bytes.split(']').next()?.split(", ").skip(8 * number).take(8);
            let bytes: Vec<u8> = bytes.filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
            let bytes = *bytes.first_chunk()?;
            let is_big_endian = self.arch == Some(Arch::S390x);
            return Some(if is_big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) });
        }
        if self.raw {
            let (_, arguments) = self.text.split_once("nr=")?;
            return self::number(arguments.split_whitespace().nth(1 + number)?.split_once('=')?.1);
        }
        // `NR 271 (7ffe, 1, 0, 0, 8, 0)`.
        if let Some((_, arguments)) = self.text.strip_prefix("NR ").and_then(|text| text.split_once(" (")) {
            let argument = arguments.split_once(')')?.0.split(", ").nth(number)?;
            return u64::from_str_radix(argument, 16).ok();
        }
        // `ufds: 0x7ffe, nfds: 0x00000001`, of ftrace `(ufds: 7ffe, nfds: 1)`. Between them a kernel may show what a
        // pointer points to; that has no colon after a single word.
        let inside = self.text.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
        let (_, argument) = inside.unwrap_or(self.text).split(", ").nth(number)?.split_once(": ")?;
        match inside {
            Some(_) => u64::from_str_radix(first_word(argument), 16).ok(),
            None => hexadecimal(argument),
        }
    }
}

impl Sample<u64> for Text<'_> {
    fn number(&self, value: u64) -> Option<u64> {
        Some(value)
    }

    fn u32(&self, value: u64) -> Option<u32> {
        u32::try_from(value).ok()
    }

    fn i32(&self, value: u64) -> Option<i32> {
        i32::try_from(value.cast_signed()).ok()
    }

    fn nth(&self, _: u64, index: usize) -> Option<u64> {
        self.argument(index)
    }

    fn arch(&self) -> Option<Arch> {
        self.arch
    }
}

/// `12`, `-4` in two's complement, `0x1f`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix('-') {
        Some(_) => text.parse().ok().map(i64::cast_unsigned),
        None => digits(text).or_else(|| hexadecimal(text)),
    }
}

/// The architecture whose timer an interrupt is of.
pub(super) fn timer_of(text: &str) -> Option<Arch> {
    match text.rsplit_once(" name=")?.1 {
        "arch_timer" => Some(Arch::Arm64),
        "riscv-timer" => Some(Arch::RiscV),
        _ => None,
    }
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

/// `vcpu 0 reason HLT rip 0x…`, of s390 `00[…]: exit sie icptcode 28 (Wait state)`: this thread runs this vCPU. Kernels before
/// 5.10 do not name the vCPU.
fn halt_exit(text: &str) -> Option<Option<EventKind>> {
    let is_halt = matches!(&*exit_reason(text)?, "HLT" | "hlt" | "Wait state");
    Some(vcpu_of(text).filter(|_| is_halt).map(|vcpu| EventKind::Exit { vcpu: Some(vcpu), reason: 0 }))
}

/// `vcpu 0 reason …`, `vcpu 0, rip 0x1`, `vcpu 0: halt_poll_ns …`, of s390 `00[…]: …`.
pub fn vcpu_of(text: &str) -> Option<u32> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return digits(text.split_once('[')?.0);
    }
    digits(first_word(text.strip_prefix("vcpu ")?).trim_end_matches([',', ':']))
}

/// A function by its address, or by its name: FNV-1a.
fn function(text: &str) -> u64 {
    let digest = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    hexadecimal(text).unwrap_or_else(|| text.bytes().fold(0xcbf2_9ce4_8422_2325, digest))
}

/// The reason in the text of `kvm:kvm_exit`: `vcpu 0 reason MSR_WRITE rip 0xffffffff81000000 info1 …`, of old kernels
/// `reason MSR_WRITE rip 0x…`. As the kernel names it: the plugin of perf and trace-cmd writes `EXIT_HLT` for SVM's `hlt`.
pub fn exit_reason(text: &str) -> Option<Cow<'_, str>> {
    let name = named_reason(text).filter(|name| !name.is_empty())?;
    Some(match name.strip_prefix("EXIT_") {
        Some("INTR") => "interrupt".into(),
        Some("IOIO") => "io".into(),
        Some(name) => name.to_ascii_lowercase().into(),
        None => name.into(),
    })
}

fn named_reason(text: &str) -> Option<&str> {
    // Of s390: `01[0706c00180000000-0000000000112233]: exit sie icptcode 28 (Wait state)`.
    if let Some((_, code)) = text.split_once(" sie icptcode ") {
        let name = code.split_once('(').and_then(|(_, name)| name.split_once(')')).map(|(name, _)| name);
        return name.filter(|name| !name.is_empty()).or_else(|| code.split(' ').next());
    }
    // Of arm64: `TRAP: HSR_EC: 0x0001 (WFx), PC: 0x…`, `IRQ: HSR_EC: …`.
    if let Some((how, class)) = text.split_once(": HSR_EC: ").or_else(|| text.split_once(": ESR_EC: ")) {
        return if how == "TRAP" { Some(class.split_once('(')?.1.split_once(')')?.0) } else { Some(how) };
    }
    // Of RISC-V, which names none: `SEPC:0x…, SCAUSE:0x16, STVAL:…`.
    if let Some((_, cause)) = text.split_once(" SCAUSE:") {
        return cause.split(',').next();
    }
    let rest = match text.strip_prefix("reason ") {
        Some(rest) => rest,
        None => text.split_once(" reason ")?.1,
    };
    match rest.split_once(" rip ") {
        Some((reason, _)) => Some(reason.trim()),
        None => rest.split_whitespace().next(),
    }
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
    use crate::event::{SystemCall, Timeout};

    /// The outer `None`: cannot be parsed.
    fn read(name: &str, text: &str) -> Option<Option<EventKind>> {
        read_on(name, text, Some(Arch::X86_64))
    }

    fn read_on(name: &str, text: &str, arch: Option<Arch>) -> Option<Option<EventKind>> {
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
        parse(event.tracepoint().expect("a tracepoint of use"), &event, arch)
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
            // Without IORING_ENTER_GETEVENTS it only submits.
            (
                "raw_syscalls:sys_enter",
                "NR 426 (7, 1, 1, 8, 0, 8)",
                EventKind::Enter { call: IoUringEnter, timeout: Timeout::Zero },
            ),
            (
                "syscalls:sys_enter_io_uring_enter",
                "fd: 0x00000007, to_submit: 0x00000001, min_complete: 0x00000001, flags: 0x00000000, argp: 0x0, argsz: 0x8",
                EventKind::Enter { call: IoUringEnter, timeout: Timeout::Zero },
            ),
            (
                "syscalls:sys_enter_io_uring_enter",
                "fd: 0x00000007, to_submit: 0x00000001, min_complete: 0x00000001, flags: 0x00000019, argp: 0x0, argsz: 0x8",
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
        let leave =
            |arch, number: &str| read_on("raw_syscalls:sys_exit", &format!("NR {number} = 1"), arch).unwrap();
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
        assert_eq!(exit_reason("TRAP: HSR_EC: 0x0001 (WFx), PC: 0x1").unwrap(), "WFx");
        assert_eq!(exit_reason("IRQ: HSR_EC: 0x0000 (UNKNOWN), PC: 0x1").unwrap(), "IRQ");
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
        for (text, name) in [
            ("vcpu 0 reason MSR_WRITE rip 0x1 info1 0x0", "MSR_WRITE"),
            ("reason HLT rip 0x1", "HLT"),
            ("reason HLT", "HLT"),
            ("reason EXIT_HLT rip 0x1 info 0 0", "hlt"),
            ("reason EXIT_INTR rip 0x1 info 0 0", "interrupt"),
            ("reason EXIT_IOIO rip 0x1 info 0 0", "io"),
            ("reason EXIT_VINTR rip 0x1 info 0 0", "vintr"),
            ("reason UNKNOWN (163) rip 0x1 info 0 0", "UNKNOWN (163)"),
        ] {
            assert_eq!(exit_reason(text).unwrap(), name);
        }
        assert_eq!(exit_reason("vcpu 0"), None);
        let of_s390 = |code| exit_reason(code).zip(vcpu_of(code));
        let at = "01[0706c00180000000-0000000000112233]: ";
        let [halt, unknown] =
            ["28 (Wait state)", "99 ()"].map(|code| format!("{at}exit sie icptcode {code}"));
        assert_eq!(of_s390(&halt), Some(("Wait state".into(), 1)));
        assert_eq!(of_s390(&unknown), Some(("99".into(), 1)));
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
            // Wrapped by a terminal.
            (
                "sched:sched_switch",
                "prev_comm=a prev_pid=6 prev_prio=0 prev_state=S ==> next_comm=b next_pid=7",
            ),
            ("sched:sched_waking", "comm=x pid=64 prio=120"),
            ("sched_waking", "comm=x pid=64 prio=120 targ"),
            ("sched:sched_waking", "comm=x pid=64 prio=120 target_cpu=0"),
            ("sched:sched_waking", "a b:64 [120] CPU:00"),
            ("sched:sched_wakeup", "comm=x pid=64 prio=120 target_cpu="),
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
