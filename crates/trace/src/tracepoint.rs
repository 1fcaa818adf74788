//! The tracepoints that can be read: one table of their names, their fields, where each source has a field, and
//! the event that the fields make.
//!
//! A field has the name that the kernel's `format` file has for it, and there its place in a sample. In a text it
//! is found by its name or as the table says; a BPF program takes it from an argument of the tracepoint.

use crate::event::{EventKind, Interrupt, SystemCall};
use dwell_policy::arch::Arch;
use std::fmt;

/// One field of a tracepoint.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the kernel's `format` file.
    pub name: &'static str,
    /// Where the text has it that the kernel's `TP_printk` makes.
    pub text: InText,
    /// What a BPF program takes it from.
    pub bpf: Option<InBpf>,
}

/// Where a field is in the text of a tracepoint. Where there are several labels, behind the first that is there.
#[derive(Clone, Copy, Debug)]
pub enum InText {
    /// A number behind the last ` name=`, or the first at the beginning.
    Named,
    /// Digits behind a label.
    Digits(&'static [&'static str]),
    /// A number behind a label, which may be negative.
    Signed(&'static str),
    /// Behind a label, with `0x` before the digits.
    Hexadecimal(&'static [&'static str]),
    /// Behind a label, without `0x`.
    Bare(&'static [&'static str]),
    /// What the first of these words stands for that is there, with a blank or nothing behind it. An empty one is always there.
    Words(&'static [(&'static str, u64)]),
}

/// What a BPF program takes a field from. The arguments are those of the kernel's `TRACE_EVENT`, in their order.
#[derive(Clone, Copy, Debug)]
pub enum InBpf {
    /// The argument of this number.
    Argument(i16),
    /// This field of the structure that an argument points to.
    Behind(i16, &'static str, &'static [&'static str]),
    /// The first of these that the kernel has.
    First(&'static [InBpf]),
}

const fn field(name: &'static str) -> Field {
    Field { name, text: InText::Named, bpf: None }
}

impl Field {
    const fn text(self, text: InText) -> Field {
        Field { text, ..self }
    }

    const fn argument(self, number: i16) -> Field {
        Field { bpf: Some(InBpf::Argument(number)), ..self }
    }

    const fn behind(self, argument: i16, structure: &'static str, path: &'static [&'static str]) -> Field {
        Field { bpf: Some(InBpf::Behind(argument, structure, path)), ..self }
    }
}

/// Knows where the fields of one tracepoint are.
pub trait Places {
    /// A place, or what is there already.
    type Place: Copy;

    /// Where a field is, if it is there.
    fn at(&self, field: &'static Field) -> Option<Self::Place>;

    /// Where a system call's argument of this number is. Their names differ between kernels.
    fn argument(&self, number: usize) -> Option<Self::Place>;
}

/// Reads the fields of one sample.
pub trait Sample<P: Copy> {
    /// What is there; a negative number in two's complement.
    fn number(&self, place: P) -> Option<u64>;

    /// What is there, of 32 bits.
    fn u32(&self, place: P) -> Option<u32>;

    /// What is there, of 32 bits with a sign.
    fn i32(&self, place: P) -> Option<i32>;

    /// The number of this index in an array of six.
    fn nth(&self, place: P, index: usize) -> Option<u64>;

    /// The architecture, for the numbers of its system calls.
    fn arch(&self) -> Option<Arch> {
        Arch::HERE
    }

    /// Whether what is there is not 0.
    fn is_set(&self, place: P) -> Option<bool> {
        Some(self.number(place)? != 0)
    }
}

/// `state` of `power:cpu_idle` when the idle state is left: `PWR_EVENT_EXIT`, (u32)-1.
pub const IDLE_LEFT: u32 = u32::MAX;
/// `type` of `kvm:kvm_mmio` (`KVM_TRACE_MMIO_WRITE`).
const MMIO_WRITE: u64 = 2;
/// The register in which a guest writes when its timer is due.
const IA32_TSC_DEADLINE: u64 = 0x6e0;
/// The register of the local APIC with the initial count of its timer.
const APIC_TMICT: u64 = 0x380;
/// The states in `prev_state` of `sched:sched_switch` in which a thread is not runnable (`TASK_REPORT` and
/// the one above it); a preempted thread has the bit above them.
const SLEEP_STATES: u64 = 0xff;

/// The number of an exit reason: that of the instruction set (1: VMX, 2: SVM) above the processor's, without its flags.
pub const fn exit_number(isa: u32, reason: u32) -> u32 {
    isa << 16 | reason & 0xffff
}

macro_rules! place {
    ($place:ty) => {
        $place
    };
    ($place:ty, optional) => {
        Option<$place>
    };
}

macro_rules! find {
    ($source:ident, $field:expr) => {{
        const FIELD: &Field = &$field;
        $source.at(FIELD).ok_or(FIELD.name)?
    }};
    ($source:ident, $field:expr, optional) => {{
        const FIELD: &Field = &$field;
        $source.at(FIELD)
    }};
}

macro_rules! has_program {
    () => {
        false
    };
    (bpf) => {
        true
    };
}

macro_rules! tracepoints {
    (($s:ident, $cpu:ident) $($kind:ident $name:literal $($bpf:ident)? {
        $($field:ident $($optional:ident)? = $spec:expr),*
    } => $event:expr;)*) => {
        /// A kind of tracepoint that can be read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum TracepointKind {
            $(#[doc = concat!("`", $name, "`")] $kind,)*
            /// `syscalls:sys_enter_*`
            Enter(SystemCall),
            /// `syscalls:sys_exit_*`
            Leave(SystemCall),
        }

        impl TracepointKind {
            const NAMED: &'static [(TracepointKind, &'static str)] = &[$((TracepointKind::$kind, $name),)*];

            /// Its fields, but for those of a system call.
            pub const fn fields(self) -> &'static [Field] {
                match self {
                    $(TracepointKind::$kind => const { &[$($spec),*] },)*
                    TracepointKind::Enter(_) | TracepointKind::Leave(_) => &[],
                }
            }

            /// Whether a BPF program can take its fields.
            pub const fn has_program(self) -> bool {
                match self {
                    $(TracepointKind::$kind => has_program!($($bpf)?),)*
                    TracepointKind::Enter(_) | TracepointKind::Leave(_) => false,
                }
            }
        }

        /// The places of a tracepoint's fields.
        pub enum Fields<P> {
            $($kind { $($field: place!(P $(, $optional)?)),* },)*
            Enter { call: SystemCall, argument: P, flags: Option<P> },
            Leave { call: SystemCall, result: P },
        }

        impl<P: Copy> Fields<P> {
            /// Of a tracepoint.
            ///
            /// # Errors
            /// The name of a field that is not there.
            pub fn find(kind: TracepointKind, source: &impl Places<Place = P>) -> Result<Fields<P>, &'static str> {
                Ok(match kind {
                    $(TracepointKind::$kind => Fields::$kind { $($field: find!(source, $spec $(, $optional)?)),* },)*
                    TracepointKind::Enter(call) => {
                        let argument = source.argument(call.timeout_argument()).ok_or("__syscall_nr")?;
                        let flags = call.flags_argument().and_then(|number| source.argument(number));
                        Fields::Enter { call, argument, flags }
                    }
                    TracepointKind::Leave(call) => Fields::Leave { call, result: find!(source, RESULT) },
                })
            }

            /// The event of a sample that was taken on a CPU: `None` if it cannot be read, `Some(None)` if it is of no
            /// use (a line that falls, a register that is not a timer's).
            // Returned through memory and copied out by halves, the result cost more than all else per event.
            #[inline(always)]
            pub fn event(&self, $s: &impl Sample<P>, $cpu: u32) -> Option<Option<EventKind>> {
                Some(match *self {
                    $(Fields::$kind { $($field),* } => $event,)*
                    Fields::Enter { call, argument, flags } => {
                        let flags = flags.and_then(|flags| $s.number(flags));
                        let timeout = call.timeout_with(flags, $s.number(argument)?);
                        Some(EventKind::Enter { call, timeout })
                    }
                    Fields::Leave { call, result } => {
                        Some(EventKind::Leave { call, result: $s.number(result)?.cast_signed() })
                    }
                })
            }
        }
    };
}

/// What a system call returned.
const RESULT: Field = field("ret").text(InText::Hexadecimal(&["-> ", ""]));
const VCPU: Field = field("vcpu_id").text(InText::Digits(&["vcpu "]));
const NEW: Field = field("new").text(InText::Digits(&["halt_poll_ns "]));
const OLD: Field = field("old").text(InText::Digits(&["(grow ", "(shrink "]));
/// Of a task that is the first argument.
const TASK: Field = field("pid").behind(0, "task_struct", &["pid"]);
const TARGET: Field = field("target_cpu").behind(0, "task_struct", &["thread_info", "cpu"]);

// Tracepoint, its name, whether a BPF program can take its fields, { its fields } => the event; `None`: of no use.
tracepoints! {
    (s, cpu)
    VcpuWakeup "kvm:kvm_vcpu_wakeup" {
        ns = field("ns").text(InText::Digits(&[" time "])),
        waited = field("waited").text(InText::Words(&[("wait", 1), ("poll", 0)])),
        // Older kernels do not report it.
        valid = field("valid").text(InText::Words(&[(", polling valid", 1), (", polling invalid", 0), (" ns", 1)]))
    } => Some(EventKind::VcpuWakeup { ns: s.number(ns)?, waited: s.is_set(waited)?, valid: s.is_set(valid)? });
    HaltPoll "kvm:kvm_halt_poll_ns" {
        vcpu = VCPU, grow = field("grow").text(InText::Words(&[("(grow", 1), ("(shrink", 0)])), new = NEW, old = OLD
    } => Some(EventKind::HaltPoll { vcpu: s.u32(vcpu)?, grow: s.is_set(grow)?, new: s.u32(new)?, old: s.u32(old)? });
    Exit "kvm:kvm_exit" { vcpu = VCPU, isa = field("isa"), reason = field("exit_reason") }
        => Some(EventKind::Exit { vcpu: Some(s.u32(vcpu)?), reason: exit_number(s.u32(isa)?, s.u32(reason)?) });
    Entry "kvm:kvm_entry" { vcpu = VCPU } => Some(EventKind::Entry { vcpu: Some(s.u32(vcpu)?) });
    Msr "kvm:kvm_msr" {
        write = field("write").text(InText::Words(&[("msr_write", 1), ("msr_read", 0)])),
        register = field("ecx").text(InText::Bare(&["msr_write ", "msr_read "])),
        value = field("data").text(InText::Hexadecimal(&[" = "])),
        refused = field("exception").text(InText::Words(&[("(#GP)", 1), ("", 0)]))
    } => {
        let is_deadline = s.is_set(write)? && s.number(register)? == IA32_TSC_DEADLINE;
        Some(if !is_deadline || s.is_set(refused)? {
            EventKind::Msr { register: s.u32(register)? }
        } else {
            EventKind::DeadlineWritten { value: s.number(value)? }
        })
    };
    SyntheticTimer "kvm:kvm_hv_stimer_expiration" {} => Some(EventKind::SyntheticTimer);
    Apic "kvm:kvm_apic" {
        write = field("rw").text(InText::Words(&[("apic_write", 1), ("apic_read", 0)])),
        register = field("reg").text(InText::Words(&[("APIC_TMICT", APIC_TMICT), ("", 0)])),
        value = field("val").text(InText::Hexadecimal(&[" = "]))
    } => match s.is_set(write)? && s.number(register)? == APIC_TMICT {
        true => Some(EventKind::CountWritten { value: s.number(value)? }),
        false => None,
    };
    ApicAccept "kvm:kvm_apic_accept_irq" { apic = field("apicid").text(InText::Bare(&["apicid "])) }
        => Some(EventKind::ApicAccept { apic: s.u32(apic)? });
    UserspaceExit "kvm:kvm_userspace_exit" { reason = field("reason"), errno = field("errno") }
        => Some(EventKind::UserspaceExit {
            reason: Some(s.u32(reason)?).filter(|_| s.i32(errno).is_some_and(|errno| errno >= 0)),
        });
    Port "kvm:kvm_pio" { port = field("port"), write = field("rw") }
        => Some(EventKind::Port { port: s.u32(port)?, write: s.is_set(write)? });
    Mmio "kvm:kvm_mmio" { address = field("gpa"), access = field("type") }
        => Some(EventKind::Mmio { address: s.number(address)?, write: s.number(access)? == MMIO_WRITE });
    LineRaised "kvm:kvm_set_irq" { gsi = field("gsi"), level = field("level") } => match s.is_set(level)? {
        true => Some(EventKind::LineRaised { gsi: s.u32(gsi)? }),
        false => None,
    };
    MessageSent "kvm:kvm_msi_set_irq" { data = field("data") }
        => Some(EventKind::MessageSent { vector: s.number(data)?.to_le_bytes()[0] });
    Ran "sched:sched_stat_runtime" { task = field("pid"), ns = field("runtime") }
        => Some(EventKind::Ran { task: s.i32(task)?, ns: s.number(ns)? });
    HvTimerState "kvm:kvm_hv_timer_state" {
        in_use = field("hv_timer_in_use").text(InText::Digits(&[" hv_timer "]))
    } => Some(EventKind::HvTimerState { in_use: s.is_set(in_use)? });
    LapicWait "kvm:kvm_wait_lapic_expire" { delta = field("delta").text(InText::Signed(": delta ")) }
        => Some(EventKind::LapicWait { delta: s.number(delta)?.cast_signed() });
    HrtimerStart "timer:hrtimer_start" {
        timer = field("hrtimer"), function = field("function"), expires = field("expires")
    } => Some(EventKind::HrtimerStart {
        timer: s.number(timer)?,
        function: s.number(function)?,
        // KTIME_MAX and what is before the clock's beginning are of no timer of KVM's.
        expires_ns: s.number(expires)?,
    });
    HrtimerExpire "timer:hrtimer_expire_entry" bpf {
        timer = field("hrtimer").argument(0), function = field("function").behind(0, "hrtimer", &["function"])
    } => Some(EventKind::HrtimerExpire { timer: s.number(timer)?, function: s.number(function)? });
    CpuIdle "power:cpu_idle" bpf { state = field("state").argument(0), which = field("cpu_id").argument(1) }
        => Some(EventKind::CpuIdle {
            cpu: s.u32(which)?,
            state: Some(s.u32(state)?).filter(|&state| state != IDLE_LEFT),
        });
    GuestHaltPoll "power:guest_halt_poll_ns" bpf { new = NEW.argument(1), old = OLD.argument(2) }
        => Some(EventKind::GuestHaltPoll { new: s.u32(new)?, old: s.u32(old)? });
    DwellIdle "dwell_idle:dwell_idle_episode" { window = field("window_ns"), halted = field("halted") }
        => Some(EventKind::DwellIdle { window_ns: s.number(window)?, halted: s.is_set(halted)? });
    // The kernel's function, which is no tracepoint.
    Reflect "fentry:haltpoll_reflect" bpf {
        state = field("index").argument(1),
        residency = field("last_residency_ns").behind(0, "cpuidle_device", &["last_residency_ns"]),
        limit = field("poll_limit_ns").behind(0, "cpuidle_device", &["poll_limit_ns"])
    } => Some(EventKind::Reflect {
        state: s.u32(state)?,
        residency_ns: s.number(residency)?,
        limit_ns: s.number(limit)?,
    });
    Switch "sched:sched_switch" bpf {
        preempt optional = field("preempt").argument(0),
        prev = field("prev_pid").behind(1, "task_struct", &["pid"]),
        next = field("next_pid").behind(2, "task_struct", &["pid"]),
        // Since Linux 5.18 the state is an argument. Before that the task has it, as `state` up to 5.13.
        prev_state optional = Field {
            bpf: Some(InBpf::First(&[
                InBpf::Argument(3),
                InBpf::Behind(1, "task_struct", &["__state"]),
                InBpf::Behind(1, "task_struct", &["state"]),
            ])),
            ..field("prev_state")
        }
    } => Some(EventKind::Switch {
        prev: s.i32(prev)?,
        prev_runnable: match (preempt, prev_state) {
            // A BPF program gets the state as the scheduler has it: 0 is runnable.
            (Some(preempt), Some(state)) => Some(s.number(preempt)? & 0xff != 0 || s.number(state)? == 0),
            (None, Some(state)) => Some(s.number(state)? & SLEEP_STATES == 0),
            (_, None) => None,
        },
        next: s.i32(next)?,
    });
    Wakeup "sched:sched_wakeup" { woken = field("pid"), target = field("target_cpu") }
        => Some(EventKind::Wakeup { woken: s.i32(woken)?, target: s.u32(target)? });
    WakeupNew "sched:sched_wakeup_new" { woken = field("pid"), target = field("target_cpu") }
        => Some(EventKind::Wakeup { woken: s.i32(woken)?, target: s.u32(target)? });
    Migrate "sched:sched_migrate_task" { task = field("pid"), from = field("orig_cpu"), to = field("dest_cpu") }
        => Some(EventKind::Migrate { task: s.i32(task)?, from: s.u32(from)?, to: s.u32(to)? });
    // Context switches as perf records them by itself, without a tracepoint.
    ContextSwitch "perf:context_switch" {} => None;
    Waking "sched:sched_waking" bpf { woken = TASK, target = TARGET }
        => Some(EventKind::Waking { woken: s.i32(woken)?, target: s.u32(target).unwrap_or(cpu) });
    TimerInterrupt "irq_vectors:local_timer_entry" bpf {} => Some(EventKind::Interrupt(Interrupt::Timer));
    RescheduleInterrupt "irq_vectors:reschedule_entry" bpf {} => Some(EventKind::Interrupt(Interrupt::Ipi));
    CallInterrupt "irq_vectors:call_function_single_entry" bpf {} => Some(EventKind::Interrupt(Interrupt::Ipi));
    // Of Arm.
    IpiEntry "ipi:ipi_entry" bpf {} => Some(EventKind::Interrupt(Interrupt::Ipi));
    // Of Arm, and of texts only: a mask of CPUs has no fixed place.
    IpiRaise "ipi:ipi_raise" {} => None;
    IpiSend "ipi:ipi_send_cpu" { to = field("cpu") } => Some(EventKind::IpiRaise { first: s.u32(to)?, mask: 1 });
    DeviceInterrupt "irq:irq_handler_entry" bpf {} => Some(EventKind::Interrupt(Interrupt::Device));
    TimerInterruptEnd "irq_vectors:local_timer_exit" bpf {} => Some(EventKind::HandlerEnd { line: None });
    RescheduleInterruptEnd "irq_vectors:reschedule_exit" bpf {} => Some(EventKind::HandlerEnd { line: None });
    CallInterruptEnd "irq_vectors:call_function_single_exit" bpf {} => Some(EventKind::HandlerEnd { line: None });
    DeviceInterruptEnd "irq:irq_handler_exit" bpf { line = field("irq").argument(0) }
        => Some(EventKind::HandlerEnd { line: Some(s.u32(line)?) });
    Softirq "irq:softirq_entry" bpf { vector = field("vec").argument(0) }
        => Some(EventKind::Softirq { vector: s.u32(vector)? });
    SoftirqEnd "irq:softirq_exit" bpf {} => Some(EventKind::HandlerEnd { line: None });
    TimerExpire "timer:timer_expire_entry" bpf {
        function = field("function").behind(0, "timer_list", &["function"])
    } => Some(EventKind::Callback { function: s.number(function)?, is_work: false });
    WorkStart "workqueue:workqueue_execute_start" bpf {
        function = field("function").behind(0, "work_struct", &["func"])
    } => Some(EventKind::Callback { function: s.number(function)?, is_work: true });
    AnyEnter "raw_syscalls:sys_enter" {
        number = field("id").text(InText::Signed("NR ")), arguments = field("args")
    } => {
        let number = s.number(number)?.cast_signed();
        let argument = |index| s.nth(arguments, index);
        Some(match SystemCall::from_number_on(s.arch(), number) {
            Some(call) => {
                let flags = call.flags_argument().and_then(argument);
                EventKind::Enter { call, timeout: call.timeout_with(flags, argument(call.timeout_argument())?) }
            }
            None => EventKind::Call { number, arguments: [argument(0)?, argument(1)?] },
        })
    };
    AnyLeave "raw_syscalls:sys_exit" {
        number = field("id").text(InText::Signed("NR ")), result = field("ret").text(InText::Signed(" = "))
    } => {
        let result = s.number(result)?.cast_signed();
        Some(match SystemCall::from_number_on(s.arch(), s.number(number)?.cast_signed()) {
            Some(call) => EventKind::Leave { call, result },
            None => EventKind::Return,
        })
    };
}

impl<P: Copy> Copy for Fields<P> {}

impl<P: Copy> Clone for Fields<P> {
    fn clone(&self) -> Fields<P> {
        *self
    }
}

impl<P> fmt::Debug for Fields<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fields")
    }
}

impl TracepointKind {
    /// KVM on s390 has names of its own.
    const OF_S390: &'static [(TracepointKind, &'static str)] =
        &[(TracepointKind::Exit, "kvm:kvm_s390_sie_exit"), (TracepointKind::Entry, "kvm:kvm_s390_sie_enter")];

    /// Those of single system calls.
    pub fn of_calls() -> impl Iterator<Item = TracepointKind> {
        SystemCall::ALL.iter().flat_map(|&call| [TracepointKind::Enter(call), TracepointKind::Leave(call)])
    }

    /// The kind of this name: `category:name`, or the name alone, as ftrace and trace-cmd write it.
    pub fn from_name(name: &str) -> Option<TracepointKind> {
        let alone = !name.contains(':');
        let is = |known: &str| {
            if alone { known.split_once(':').is_some_and(|(_, n)| n == name) } else { known == name }
        };
        let named = TracepointKind::NAMED.iter().chain(TracepointKind::OF_S390);
        if let Some((kind, _)) = named.into_iter().find(|(_, known)| is(known)) {
            return Some(*kind);
        }
        let call = if alone { name.strip_prefix("sys_")? } else { name.strip_prefix("syscalls:sys_")? };
        match call.strip_prefix("enter_") {
            Some(call) => SystemCall::from_name(call).map(TracepointKind::Enter),
            None => SystemCall::from_name(call.strip_prefix("exit_")?).map(TracepointKind::Leave),
        }
    }
}

impl fmt::Display for TracepointKind {
    /// As `category:name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TracepointKind::Enter(call) => write!(f, "syscalls:sys_enter_{}", call.name()),
            TracepointKind::Leave(call) => write!(f, "syscalls:sys_exit_{}", call.name()),
            _ => {
                let name = TracepointKind::NAMED.iter().find(|(kind, _)| kind == self);
                f.write_str(name.map_or("", |(_, name)| name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tracepoint_is_found_by_its_name() {
        let calls = SystemCall::ALL
            .iter()
            .flat_map(|&call| [TracepointKind::Enter(call), TracepointKind::Leave(call)]);
        for kind in TracepointKind::NAMED.iter().map(|(kind, _)| *kind).chain(calls) {
            let name = kind.to_string();
            assert_eq!(TracepointKind::from_name(&name), Some(kind));
            assert_eq!(TracepointKind::from_name(name.split_once(':').unwrap().1), Some(kind));
        }
        assert_eq!(TracepointKind::from_name("syscalls:sys_enter_read"), None);
    }

    /// A program writes each field that a live event is made of.
    #[test]
    fn a_program_takes_all_fields() {
        for (kind, _) in TracepointKind::NAMED.iter().filter(|(kind, _)| kind.has_program()) {
            assert!(kind.fields().iter().all(|field| field.bpf.is_some()), "{kind}");
        }
    }
}
