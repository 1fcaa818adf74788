//! Events as the recorders see them, and how they are read out of a sample.

use crate::format::{At, Format};
use std::fmt;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When \[ns, CLOCK_MONOTONIC\].
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// In which process; 0 is an idle task.
    pub pid: i32,
    /// In which thread; 0 is an idle task.
    pub tid: i32,
    /// What it was.
    pub what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `kvm:kvm_vcpu_wakeup`: a halt of the vCPU that this thread runs is over.
    VcpuWakeup {
        /// How long it took \[ns\].
        ns: u64,
        /// Whether the thread slept.
        waited: bool,
        /// Whether the wake was a valid one; always so on x86.
        valid: bool,
    },
    /// `kvm:kvm_halt_poll_ns`: the vCPU's window was grown or shrunk, in the halt whose `VcpuWakeup` follows.
    HaltPoll {
        /// Number of the vCPU in its VM.
        vcpu: u32,
        /// Grown, else shrunk.
        grow: bool,
        /// The window after \[ns\].
        new: u32,
        /// The window before \[ns\].
        old: u32,
    },
    /// `kvm:kvm_exit` by HLT: this thread runs this vCPU.
    HltExit {
        /// Number of the vCPU in its VM.
        vcpu: u32,
    },
    /// `power:cpu_idle`: this CPU enters an idle state, or leaves it.
    CpuIdle {
        /// Whose state.
        cpu: u32,
        /// Which one; `None`: it is left.
        state: Option<u32>,
    },
    /// `power:guest_halt_poll_ns`: the haltpoll governor grew or shrank this CPU's limit.
    GuestHaltPoll {
        /// The limit after \[ns\].
        new: u32,
        /// The limit before \[ns\].
        old: u32,
    },
    /// `sched:sched_switch`, or perf's own record of a switch.
    Switch {
        /// The thread that leaves the CPU.
        prev: i32,
        /// The thread that gets it.
        next: i32,
    },
    /// `sched:sched_waking`: this thread (or an interrupt while it runs) is about to wake another.
    Waking {
        /// The thread that is woken.
        woken: i32,
        /// The CPU it ran on last; where it will run is not decided yet.
        target: u32,
    },
    /// An interrupt is handled.
    Interrupt(Interrupt),
    /// A system call that can wait begins.
    Enter {
        /// Which.
        call: Call,
        /// How long it may wait.
        patience: Patience,
    },
    /// It is over.
    Leave {
        /// Which.
        call: Call,
        /// What it returned: how many are ready, or a negative error.
        result: i64,
    },
    /// Events of this CPU were lost just before.
    Lost {
        /// How many.
        count: u64,
    },
}

/// The kinds of interrupt that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interrupt {
    /// The local timer.
    Timer,
    /// Sent by another CPU.
    Ipi,
    /// Of a device.
    Device,
}

/// How long a system call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Patience {
    /// Not at all: it only looks.
    None,
    /// At most so long \[ms\].
    Millis(u32),
    /// At most some time, which lies in the caller's memory and is not traced.
    Limited,
    /// For ever.
    Unlimited,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $call:ident, $name:literal, $argument:literal, $meaning:ident, $number:expr;)*) => {
        /// The system calls in which event loops wait.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Call { $($(#[$doc])* $call,)* }

        impl Call {
            /// All of them.
            pub const ALL: &'static [Call] = &[$(Call::$call,)*];

            /// The kernel's name.
            pub const fn name(self) -> &'static str {
                match self { $(Call::$call => $name,)* }
            }

            /// Its number on this architecture, if it has it.
            pub const fn number(self) -> Option<i64> {
                match self { $(Call::$call => $number,)* }
            }

            /// Which of its arguments, from 0, says how long it may wait, and how.
            const fn patience_argument(self) -> (usize, PatienceArgument) {
                match self { $(Call::$call => ($argument, PatienceArgument::$meaning),)* }
            }
        }
    };
}

/// What an argument says about patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatienceArgument {
    /// A signed number of milliseconds.
    Millis,
    /// A pointer to a time; null waits for ever.
    Pointer,
    /// How many completions to wait for; zero waits for none.
    Completions,
}

/// Newer architectures have only the younger calls.
#[cfg(target_arch = "x86_64")]
const fn old(number: i64) -> Option<i64> {
    Some(number)
}
#[cfg(not(target_arch = "x86_64"))]
const fn old(_: i64) -> Option<i64> {
    None
}

calls! {
    /// `poll(2)`
    Poll, "poll", 2, Millis, old(7);
    /// `ppoll(2)`, what QEMU's main loop and I/O threads use
    Ppoll, "ppoll", 2, Pointer, Some(libc::SYS_ppoll);
    /// `epoll_wait(2)`
    EpollWait, "epoll_wait", 3, Millis, old(232);
    /// `epoll_pwait(2)`
    EpollPwait, "epoll_pwait", 3, Millis, Some(libc::SYS_epoll_pwait);
    /// `epoll_pwait2(2)`
    EpollPwait2, "epoll_pwait2", 3, Pointer, Some(441);
    /// `io_uring_enter(2)`
    IoUringEnter, "io_uring_enter", 2, Completions, Some(libc::SYS_io_uring_enter);
    /// `select(2)`
    Select, "select", 4, Pointer, old(23);
    /// `pselect(2)`
    Pselect6, "pselect6", 4, Pointer, Some(libc::SYS_pselect6);
}

impl Call {
    /// The call of this number on this architecture.
    pub fn from_number(number: i64) -> Option<Call> {
        Call::ALL.iter().copied().find(|call| call.number() == Some(number))
    }

    fn patience(self, argument: u64) -> Patience {
        let [a, b, c, d, ..] = argument.to_le_bytes();
        let int = i32::from_le_bytes([a, b, c, d]);
        match (self.patience_argument().1, int, argument) {
            (PatienceArgument::Millis, 0, _) | (PatienceArgument::Completions, 0, _) => Patience::None,
            (PatienceArgument::Millis, _, _) => {
                u32::try_from(int).map_or(Patience::Unlimited, Patience::Millis)
            }
            (PatienceArgument::Pointer, _, 0) | (PatienceArgument::Completions, _, _) => Patience::Unlimited,
            (PatienceArgument::Pointer, _, _) => Patience::Limited,
        }
    }
}

/// A kind of tracepoint that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `kvm:kvm_vcpu_wakeup`
    VcpuWakeup,
    /// `kvm:kvm_halt_poll_ns`
    HaltPoll,
    /// `kvm:kvm_exit`, to be filtered by [`HLT_EXITS`]
    HltExit,
    /// `power:cpu_idle`
    CpuIdle,
    /// `power:guest_halt_poll_ns`
    GuestHaltPoll,
    /// `sched:sched_switch`
    Switch,
    /// Context switches as perf records them by itself, without a tracepoint
    ContextSwitch,
    /// `sched:sched_waking`
    Waking,
    /// `irq_vectors:local_timer_entry`
    TimerInterrupt,
    /// `irq_vectors:reschedule_entry`
    RescheduleInterrupt,
    /// `irq_vectors:call_function_single_entry`
    CallInterrupt,
    /// `irq:irq_handler_entry`
    DeviceInterrupt,
    /// `syscalls:sys_enter_*`
    Enter(Call),
    /// `syscalls:sys_exit_*`
    Leave(Call),
    /// `raw_syscalls:sys_enter`
    AnyEnter,
    /// `raw_syscalls:sys_exit`
    AnyLeave,
}

/// The filter of `kvm:kvm_exit` that lets only HLT through: reason 12 on Intel (`isa` 1), 0x78 on AMD (`isa` 2).
pub const HLT_EXITS: &str = "(isa == 1 && exit_reason == 12) || (isa == 2 && exit_reason == 0x78)";

impl fmt::Display for Kind {
    /// As `category:name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::VcpuWakeup => "kvm:kvm_vcpu_wakeup",
            Kind::HaltPoll => "kvm:kvm_halt_poll_ns",
            Kind::HltExit => "kvm:kvm_exit",
            Kind::CpuIdle => "power:cpu_idle",
            Kind::GuestHaltPoll => "power:guest_halt_poll_ns",
            Kind::Switch => "sched:sched_switch",
            Kind::ContextSwitch => "perf:context_switch",
            Kind::Waking => "sched:sched_waking",
            Kind::TimerInterrupt => "irq_vectors:local_timer_entry",
            Kind::RescheduleInterrupt => "irq_vectors:reschedule_entry",
            Kind::CallInterrupt => "irq_vectors:call_function_single_entry",
            Kind::DeviceInterrupt => "irq:irq_handler_entry",
            Kind::AnyEnter => "raw_syscalls:sys_enter",
            Kind::AnyLeave => "raw_syscalls:sys_exit",
            Kind::Enter(call) => return write!(f, "syscalls:sys_enter_{}", call.name()),
            Kind::Leave(call) => return write!(f, "syscalls:sys_exit_{}", call.name()),
        })
    }
}

/// Reads one kind of tracepoint, by the offsets of the running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Decoder(Layout);

#[derive(Clone, Copy, Debug)]
enum Layout {
    VcpuWakeup { ns: At, waited: At, valid: At },
    HaltPoll { vcpu: At, grow: At, new: At, old: At },
    HltExit { vcpu: At },
    CpuIdle { state: At, cpu: At },
    GuestHaltPoll { new: At, old: At },
    Switch { prev: At, next: At },
    Waking { woken: At, target: At },
    Interrupt(Interrupt),
    Enter { call: Call, argument: At },
    Leave { call: Call, result: At },
    AnyEnter { number: At, arguments: At },
    AnyLeave { number: At, result: At },
}

/// `state` of `power:cpu_idle` when the idle state is left: `PWR_EVENT_EXIT`, (u32)-1.
const IDLE_LEFT: u32 = u32::MAX;

impl Decoder {
    /// Prepares to read `kind`.
    ///
    /// # Errors
    /// The name of a field that this kernel's format lacks.
    pub fn new(kind: Kind, format: &Format) -> Result<Decoder, &'static str> {
        let at = |field: &'static str| format.at(field).ok_or(field);
        Ok(Decoder(match kind {
            Kind::VcpuWakeup => {
                Layout::VcpuWakeup { ns: at("ns")?, waited: at("waited")?, valid: at("valid")? }
            }
            Kind::HaltPoll => {
                Layout::HaltPoll { vcpu: at("vcpu_id")?, grow: at("grow")?, new: at("new")?, old: at("old")? }
            }
            Kind::HltExit => {
                // The filter needs them.
                at("isa").and(at("exit_reason"))?;
                Layout::HltExit { vcpu: at("vcpu_id")? }
            }
            Kind::CpuIdle => Layout::CpuIdle { state: at("state")?, cpu: at("cpu_id")? },
            Kind::GuestHaltPoll => Layout::GuestHaltPoll { new: at("new")?, old: at("old")? },
            Kind::Switch | Kind::ContextSwitch => {
                Layout::Switch { prev: at("prev_pid")?, next: at("next_pid")? }
            }
            Kind::Waking => Layout::Waking { woken: at("pid")?, target: at("target_cpu")? },
            Kind::TimerInterrupt => Layout::Interrupt(Interrupt::Timer),
            Kind::RescheduleInterrupt | Kind::CallInterrupt => Layout::Interrupt(Interrupt::Ipi),
            Kind::DeviceInterrupt => Layout::Interrupt(Interrupt::Device),
            Kind::Enter(call) => Layout::Enter { call, argument: argument_of(call, format)? },
            Kind::Leave(call) => Layout::Leave { call, result: at("ret")? },
            Kind::AnyEnter => Layout::AnyEnter { number: at("id")?, arguments: at("args")? },
            Kind::AnyLeave => Layout::AnyLeave { number: at("id")?, result: at("ret")? },
        }))
    }

    /// What the sample `raw`, taken on `cpu`, says; `None` if it is too short or of a call that nobody asked for.
    // Returned through memory and copied out by halves, the result cost more than everything else per event.
    #[inline(always)]
    pub fn decode(&self, raw: &[u8], cpu: u32) -> Option<What> {
        Some(match self.0 {
            Layout::VcpuWakeup { ns, waited, valid } => What::VcpuWakeup {
                ns: ns.read(raw)?,
                waited: waited.read(raw)? != 0,
                valid: valid.read(raw)? != 0,
            },
            Layout::HaltPoll { vcpu, grow, new, old } => What::HaltPoll {
                vcpu: vcpu.read_u32(raw)?,
                grow: grow.read(raw)? != 0,
                new: new.read_u32(raw)?,
                old: old.read_u32(raw)?,
            },
            Layout::HltExit { vcpu } => What::HltExit { vcpu: vcpu.read_u32(raw)? },
            Layout::CpuIdle { state, cpu } => What::CpuIdle {
                cpu: cpu.read_u32(raw)?,
                state: Some(state.read_u32(raw)?).filter(|&state| state != IDLE_LEFT),
            },
            Layout::GuestHaltPoll { new, old } => {
                What::GuestHaltPoll { new: new.read_u32(raw)?, old: old.read_u32(raw)? }
            }
            Layout::Switch { prev, next } => {
                What::Switch { prev: prev.read_i32(raw)?, next: next.read_i32(raw)? }
            }
            Layout::Waking { woken, target } => {
                What::Waking { woken: woken.read_i32(raw)?, target: target.read_u32(raw).unwrap_or(cpu) }
            }
            Layout::Interrupt(interrupt) => What::Interrupt(interrupt),
            Layout::Enter { call, argument } => {
                What::Enter { call, patience: call.patience(argument.read(raw)?) }
            }
            Layout::Leave { call, result } => What::Leave { call, result: result.read(raw)?.cast_signed() },
            Layout::AnyEnter { number, arguments } => {
                let call = Call::from_number(number.read(raw)?.cast_signed())?;
                let argument = nth_of_array(arguments, call.patience_argument().0)?;
                What::Enter { call, patience: call.patience(argument.read(raw)?) }
            }
            Layout::AnyLeave { number, result } => What::Leave {
                call: Call::from_number(number.read(raw)?.cast_signed())?,
                result: result.read(raw)?.cast_signed(),
            },
        })
    }
}

/// Arguments follow the call's number, in their order; their names differ between kernels.
fn argument_of(call: Call, format: &Format) -> Result<At, &'static str> {
    let (argument, _) = call.patience_argument();
    let number = format.fields.iter().position(|field| field.name == "__syscall_nr" || field.name == "nr");
    let number = number.ok_or("__syscall_nr")?;
    format.fields.get(number + 1 + argument).map(|field| field.at).ok_or("timeout")
}

/// Number `index` of an array of six longs.
fn nth_of_array(array: At, index: usize) -> Option<At> {
    let size = array.size / 6;
    let offset = array.offset.checked_add(u16::try_from(index).ok()?.checked_mul(size)?)?;
    Some(At { offset, size, signed: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format(fields: &[(&str, u16, u16)]) -> Format {
        let mut text = "name: x\nID: 1\nformat:\n".to_owned();
        for (name, offset, size) in fields {
            text += &format!("\tfield:int {name};\toffset:{offset};\tsize:{size};\tsigned:0;\n");
        }
        Format::parse(&text).unwrap()
    }

    #[test]
    fn a_missing_field_is_named() {
        let format = format(&[("ns", 8, 8), ("waited", 16, 1)]);
        assert_eq!(Decoder::new(Kind::VcpuWakeup, &format).unwrap_err(), "valid");
        assert_eq!(Decoder::new(Kind::Enter(Call::Poll), &format).unwrap_err(), "__syscall_nr");
    }

    #[test]
    fn leaving_idle_is_no_state() {
        let decoder = Decoder::new(Kind::CpuIdle, &format(&[("state", 8, 4), ("cpu_id", 12, 4)])).unwrap();
        let raw = |state: u32| [&[0; 8][..], &state.to_ne_bytes(), &3u32.to_ne_bytes()].concat();
        assert_eq!(decoder.decode(&raw(1), 0), Some(What::CpuIdle { cpu: 3, state: Some(1) }));
        assert_eq!(decoder.decode(&raw(u32::MAX), 0), Some(What::CpuIdle { cpu: 3, state: None }));
        assert_eq!(decoder.decode(&raw(1)[..14], 0), None);
    }

    #[test]
    fn patience_is_read_as_each_call_gives_it() {
        let minus_one = u64::from(u32::MAX);
        assert_eq!(Call::Poll.patience(minus_one), Patience::Unlimited);
        assert_eq!(Call::EpollWait.patience(u64::MAX), Patience::Unlimited);
        assert_eq!(Call::EpollWait.patience(0), Patience::None);
        assert_eq!(Call::EpollPwait.patience(250), Patience::Millis(250));
        assert_eq!(Call::Ppoll.patience(0), Patience::Unlimited);
        assert_eq!(Call::Ppoll.patience(0x7fff_0000_0000), Patience::Limited);
        assert_eq!(Call::IoUringEnter.patience(0), Patience::None);
        assert_eq!(Call::IoUringEnter.patience(1), Patience::Unlimited);
    }

    #[test]
    fn raw_system_calls_are_told_by_number() {
        let decoder = Decoder::new(Kind::AnyEnter, &format(&[("id", 8, 8), ("args", 16, 48)])).unwrap();
        let raw = |number: i64, fourth: u64| {
            let mut raw = vec![0; 8];
            raw.extend(number.to_ne_bytes());
            raw.extend([0, 0, 0, fourth, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()));
            raw
        };
        let number = Call::EpollPwait.number().unwrap();
        assert_eq!(
            decoder.decode(&raw(number, 5), 0),
            Some(What::Enter { call: Call::EpollPwait, patience: Patience::Millis(5) })
        );
        assert_eq!(decoder.decode(&raw(-1, 5), 0), None);
    }

    proptest! {
        #[test]
        fn any_sample_is_read_or_refused(raw in prop::collection::vec(any::<u8>(), 0..80), size in 0u16..70) {
            let names = ["ns", "waited", "valid", "vcpu_id", "grow", "new", "old", "state", "cpu_id", "prev_pid",
                "next_pid", "pid", "target_cpu", "isa", "exit_reason", "ret", "id", "args", "__syscall_nr", "a", "b", "c", "d", "e", "f"];
            let fields: Vec<_> = (4u16..).zip(names).map(|(offset, name)| (name, offset, size)).collect();
            let format = format(&fields);
            let kinds = [Kind::VcpuWakeup, Kind::HaltPoll, Kind::HltExit, Kind::CpuIdle, Kind::GuestHaltPoll,
                Kind::Switch, Kind::Waking, Kind::TimerInterrupt, Kind::AnyEnter, Kind::AnyLeave,
                Kind::Enter(Call::Ppoll), Kind::Leave(Call::Ppoll)];
            for kind in kinds {
                let _ = Decoder::new(kind, &format).unwrap().decode(&raw, 0);
            }
        }
    }
}
