//! Events: what every source of a trace yields and every pairing takes.

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
    /// `sched:sched_switch`, with the state of the thread that leaves.
    RunqueueSwitch {
        /// The thread that leaves the CPU; 0 is the idle task.
        prev: i32,
        /// Whether it remains runnable: it was preempted, or yielded.
        prev_runnable: bool,
        /// The thread that gets it; 0 is the idle task.
        next: i32,
    },
    /// `sched:sched_wakeup` or `sched:sched_wakeup_new`: a thread is runnable from now on.
    Wakeup {
        /// The thread.
        woken: i32,
        /// The CPU whose queue it is in.
        target: u32,
    },
    /// `sched:sched_migrate_task`: a thread moves from one CPU's queue to another's.
    Migrate {
        /// The thread.
        task: i32,
        /// The CPU it leaves.
        from: u32,
        /// The CPU it goes to.
        to: u32,
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
            pub const fn patience_argument(self) -> (usize, PatienceArgument) {
                match self { $(Call::$call => ($argument, PatienceArgument::$meaning),)* }
            }
        }
    };
}

/// How an argument gives the timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatienceArgument {
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

    /// How long a call may wait, by the value of that argument.
    pub fn patience(self, argument: u64) -> Patience {
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
    /// `sched:sched_switch`, with the state of the thread that leaves
    RunqueueSwitch,
    /// `sched:sched_wakeup`
    Wakeup,
    /// `sched:sched_wakeup_new`
    WakeupNew,
    /// `sched:sched_migrate_task`
    Migrate,
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

impl fmt::Display for Kind {
    /// As `category:name`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::VcpuWakeup => "kvm:kvm_vcpu_wakeup",
            Kind::HaltPoll => "kvm:kvm_halt_poll_ns",
            Kind::HltExit => "kvm:kvm_exit",
            Kind::CpuIdle => "power:cpu_idle",
            Kind::GuestHaltPoll => "power:guest_halt_poll_ns",
            Kind::Switch | Kind::RunqueueSwitch => "sched:sched_switch",
            Kind::Wakeup => "sched:sched_wakeup",
            Kind::WakeupNew => "sched:sched_wakeup_new",
            Kind::Migrate => "sched:sched_migrate_task",
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
