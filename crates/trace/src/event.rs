//! Events: what every source of a trace yields, and what every pairing takes.

pub use crate::tracepoint::TracepointKind;
use dwell_policy::arch::Arch;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When \[ns, the clock of the trace; CLOCK_MONOTONIC for live capture\].
    pub time_ns: u64,
    /// On which CPU. 0 where the source has no CPU and the kind needs none.
    pub cpu: u32,
    /// In which process; 0 is an idle task, [`Event::UNKNOWN_ID`] is not known.
    pub pid: i32,
    /// In which thread; 0 is an idle task, [`Event::UNKNOWN_ID`] is not known.
    pub tid: i32,
    pub kind: EventKind,
}

impl Event {
    /// The number of a process or thread that the source does not have: perf's own for a task outside of the
    /// reader's PID namespace, and that of a text without this column.
    pub const UNKNOWN_ID: i32 = -1;

    /// Whether it is of this process or thread, if there is one, or a loss, which may be of any.
    pub fn is_of(&self, only_pid: Option<i32>) -> bool {
        only_pid.is_none_or(|pid| pid == self.pid || pid == self.tid) || self.is_loss()
    }

    /// Whether events are missing, here or from here on.
    pub const fn is_loss(&self) -> bool {
        matches!(self.kind, EventKind::Gap { .. } | EventKind::Lost { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// `kvm:kvm_vcpu_wakeup`: a halt of the vCPU that this thread runs is over.
    VcpuWakeup {
        /// How long it took \[ns\].
        ns: u64,
        /// Whether the thread slept.
        waited: bool,
        /// Whether KVM lets this wakeup change the window; always so on x86.
        valid: bool,
    },
    /// `kvm:kvm_halt_poll_ns`: the vCPU's window was changed, in the halt whose `VcpuWakeup` follows.
    HaltPoll {
        /// Number of the vCPU in its VM.
        vcpu: u32,
        grow: bool,
        /// The window after \[ns\].
        new: u32,
        /// The window before \[ns\].
        old: u32,
    },
    /// `kvm:kvm_exit`: this thread leaves its guest.
    Exit {
        /// Number of the vCPU in its VM; kernels before 5.10 do not name it.
        vcpu: Option<u32>,
        /// Why, as a number of the source.
        reason: u32,
    },
    /// `kvm:kvm_entry`: this thread enters its guest.
    Entry {
        /// Number of the vCPU in its VM.
        vcpu: Option<u32>,
    },
    /// `kvm:kvm_msr`: the guest of this thread has written a register of its timer, `IA32_TSC_DEADLINE`. What
    /// that started comes before.
    DeadlineWritten {
        /// What was written \[guest TSC\]; 0: no timer.
        value: u64,
    },
    /// `kvm:kvm_msr`: the guest of this thread has read or written another register, or was refused.
    Msr { register: u32 },
    /// `kvm:kvm_hv_stimer_expiration`: a synthetic timer of Hyper-V, of the vCPU of this thread, has sent its interrupt.
    SyntheticTimer,
    /// `kvm:kvm_apic`: the guest of this thread writes the initial count of its timer. What that starts comes after.
    CountWritten {
        /// What is written; 0: no timer.
        value: u64,
    },
    /// `kvm:kvm_hv_timer_state`: the timer of this thread's vCPU was started, or an attempt was made.
    HvTimerState {
        /// With the preemption timer, else with an hrtimer.
        in_use: bool,
    },
    /// `timer:hrtimer_start`: an hrtimer is enqueued.
    HrtimerStart {
        timer: u64,
        /// The address of its function, or a digest of its name.
        function: u64,
        /// When it is to expire \[ns, its clock, which is CLOCK_MONOTONIC for KVM's\].
        expires_ns: u64,
    },
    /// `timer:hrtimer_expire_entry`: an hrtimer fires, in an interrupt of this thread.
    HrtimerExpire {
        timer: u64,
        /// As of [`EventKind::HrtimerStart`].
        function: u64,
    },
    /// `kvm:kvm_apic_accept_irq`: an interrupt is put into a virtual local APIC.
    ApicAccept {
        /// Whose: its number, which is that of the vCPU.
        apic: u32,
    },
    /// `kvm:kvm_wait_lapic_expire`: how late the guest of this thread would be entered, were there no wait.
    LapicWait {
        /// \[guest TSC cycles\]; negative: early.
        delta: i64,
    },
    /// `power:cpu_idle`: a CPU enters an idle state, or leaves it.
    CpuIdle {
        /// Whose state.
        cpu: u32,
        /// Which one; `None`: it is left.
        state: Option<u32>,
    },
    /// `power:guest_halt_poll_ns`: the haltpoll governor changed this CPU's window.
    GuestHaltPoll {
        /// The window after \[ns\].
        new: u32,
        /// The window before \[ns\].
        old: u32,
    },
    /// `dwell_idle:dwell_idle_episode`: the driver dwell_idle ends an episode of this CPU.
    DwellIdle {
        /// The window of the episode \[ns\].
        window_ns: u64,
        /// Whether the CPU halted.
        halted: bool,
    },
    /// The haltpoll governor takes in how long an idle state lasted (its function `haltpoll_reflect`, which a
    /// BPF program can see). A [`EventKind::GuestHaltPoll`] that it causes follows.
    Reflect {
        /// The state that was left.
        state: u32,
        /// How long it lasted, as the governor has it \[ns\].
        residency_ns: u64,
        /// The governor's window before \[ns\].
        limit_ns: u64,
    },
    /// `sched:sched_switch`, or perf's own record of a switch.
    Switch {
        /// The thread that leaves the CPU; 0 is the idle task.
        prev: i32,
        /// Whether it remains runnable: it was preempted, or yielded. `None` where the source does not have its state.
        prev_runnable: Option<bool>,
        /// The thread that gets it; 0 is the idle task.
        next: i32,
    },
    /// `sched:sched_wakeup` or `sched:sched_wakeup_new`: a thread is runnable from now on.
    Wakeup {
        woken: i32,
        /// The CPU whose queue it is in.
        target: u32,
    },
    /// `sched:sched_migrate_task`: a thread moves from one CPU's queue to another's.
    Migrate {
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
    /// A softirq begins, of this number.
    Softirq { vector: u32 },
    /// A timer of the timer wheel expires, or a work of a work queue begins: this function is called.
    Callback {
        /// Its address.
        function: u64,
        /// Whether it is a work.
        is_work: bool,
    },
    /// An interrupt or a softirq is over.
    HandlerEnd {
        /// The number of the interrupt, if it was a device's.
        line: Option<u32>,
    },
    /// `ipi:ipi_raise` or `ipi:ipi_send_cpu`: this CPU sends others an interrupt.
    IpiRaise {
        /// The first CPU of the mask.
        first: u32,
        /// A bit for each CPU from there on.
        mask: u64,
    },
    /// A system call that can wait begins.
    Enter {
        call: SystemCall,
        /// How long it may wait.
        timeout: Timeout,
    },
    Leave {
        call: SystemCall,
        /// What it returned: how many are ready, or a negative error.
        result: i64,
    },
    /// Another system call begins, one that does not wait.
    Call {
        /// Its number on this architecture.
        number: i64,
        /// Its first two arguments; of most calls the first is a descriptor.
        arguments: [u64; 2],
    },
    /// Another system call ends.
    Return,
    /// `sched:sched_stat_runtime`: a thread ran, without interruption, up to this event.
    Ran {
        task: i32,
        /// For how long, as the scheduler accounts it \[ns\].
        ns: u64,
    },
    /// `kvm:kvm_userspace_exit`: this thread returns from `KVM_RUN` to its VMM.
    UserspaceExit {
        /// Why (`KVM_EXIT_*`); `None`: a signal or an error.
        reason: Option<u32>,
    },
    /// `kvm:kvm_pio`: the guest of this thread accesses a port. A write comes before its device is asked, a read after.
    Port { port: u32, write: bool },
    /// `kvm:kvm_mmio`: the guest of this thread accesses memory that is none. A read comes before and after.
    Mmio { address: u64, write: bool },
    /// `kvm:kvm_set_irq`: this thread raises an interrupt line of a VM.
    LineRaised { gsi: u32 },
    /// `kvm:kvm_msi_set_irq`: this thread sends a VM an interrupt as a message.
    MessageSent { vector: u8 },
    /// An event of QEMU's own trace, of one of its contexts.
    Aio {
        /// The address of the context.
        ctx: u64,
        what: Aio,
    },
    /// From here on the system calls of this thread are not in the trace, though other events may be.
    Untraced,
    /// From here on events of a CPU may be missing, on no other: its buffer was full. The [`EventKind::Lost`]
    /// that counts them comes later, with the next event that found room.
    Gap {
        cpu: u32,
        /// Until when \[ns\].
        until_ns: u64,
    },
    /// Events were lost just before.
    Lost {
        /// Of which CPU; `None`: of any.
        cpu: Option<u32>,
        count: u64,
    },
}

/// What QEMU traces of a context (`AioContext`), an event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// `run_poll_handlers_begin`: a polling attempt begins.
    PollBegin {
        /// For how long at most \[ns\].
        max_ns: i64,
    },
    /// `run_poll_handlers_end`: it ends.
    PollEnd {
        /// Whether a handler found something to do.
        progress: bool,
        /// How long the context may sleep now \[ns\]; 0: not at all, -1: without a limit.
        timeout_ns: i64,
    },
    /// `poll_grow` or `poll_shrink`: the window was changed.
    Window {
        grow: bool,
        /// The window after \[ns\].
        new: i64,
        /// The window before \[ns\].
        old: i64,
    },
    /// `poll_add` or `poll_remove`: a handler joins the list of those that are polled, or leaves it.
    Handler {
        /// The address of the handler.
        node: u64,
        fd: i64,
        joins: bool,
    },
}

/// The kinds of interrupt that are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interrupt {
    Timer,
    /// Sent by another CPU.
    Ipi,
    Device,
}

/// How long a system call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timeout {
    /// Not at all.
    Zero,
    /// At most so long \[ms\].
    Millis(u32),
    /// At most some time, which is in the caller's memory and not in the trace.
    Limited,
    /// Until an event comes.
    Unlimited,
}

macro_rules! calls {
    ($($(#[$doc:meta])* $call:ident, $name:literal, $argument:literal, $form:ident, $x86:expr, $generic:expr, $s390:expr, $power:expr;)*) => {
        /// The system calls in which event loops wait.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum SystemCall { $($(#[$doc])* $call,)* }

        impl SystemCall {
            /// All of them.
            pub const ALL: &'static [SystemCall] = &[$(SystemCall::$call,)*];

            /// The kernel's name.
            pub const fn name(self) -> &'static str {
                match self { $(SystemCall::$call => $name,)* }
            }

            /// Its number on an architecture, if it has it. Arm, RISC-V and LoongArch have the kernel's generic table.
            pub const fn number_on(self, arch: Arch) -> Option<i64> {
                match (self, arch) {
                    $((SystemCall::$call, Arch::X86_64) => $x86,
                    (SystemCall::$call, Arch::Arm64 | Arch::RiscV | Arch::LoongArch) => $generic,
                    (SystemCall::$call, Arch::S390x) => $s390,
                    (SystemCall::$call, Arch::Power) => $power,)*
                }
            }

            /// Which of its arguments, from 0, is the timeout.
            pub const fn timeout_argument(self) -> usize {
                match self { $(SystemCall::$call => $argument,)* }
            }

            pub(crate) const fn timeout_form(self) -> TimeoutForm {
                match self { $(SystemCall::$call => TimeoutForm::$form,)* }
            }
        }
    };
}

/// How an argument gives a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeoutForm {
    /// A signed number of milliseconds.
    Millis,
    /// A pointer to a time; null: no limit.
    Pointer,
    /// How many completions to wait for; zero: do not wait.
    Completions,
}

calls! {
    /// `poll(2)`
    Poll, "poll", 2, Millis, Some(7), None, Some(168), Some(167);
    /// `ppoll(2)`, what QEMU's main loop and I/O threads use
    Ppoll, "ppoll", 2, Pointer, Some(271), Some(73), Some(302), Some(281);
    /// `epoll_wait(2)`
    EpollWait, "epoll_wait", 3, Millis, Some(232), None, Some(250), Some(238);
    /// `epoll_pwait(2)`
    EpollPwait, "epoll_pwait", 3, Millis, Some(281), Some(22), Some(312), Some(303);
    /// `epoll_pwait2(2)`
    EpollPwait2, "epoll_pwait2", 3, Pointer, Some(441), Some(441), Some(441), Some(441);
    /// `io_uring_enter(2)`
    IoUringEnter, "io_uring_enter", 2, Completions, Some(426), Some(426), Some(426), Some(426);
    /// `select(2)`
    Select, "select", 4, Pointer, Some(23), None, Some(142), Some(142);
    /// `pselect(2)`
    Pselect6, "pselect6", 4, Pointer, Some(270), Some(72), Some(301), Some(280);
}

impl SystemCall {
    /// Its number on this machine, if it has it.
    pub fn number(self) -> Option<i64> {
        self.number_on(Arch::HERE?)
    }

    /// The call of this number on an architecture; none is known of one without a name.
    pub fn from_number_on(arch: Option<Arch>, number: i64) -> Option<SystemCall> {
        let arch = arch?;
        SystemCall::ALL.iter().copied().find(|call| call.number_on(arch) == Some(number))
    }

    /// The call of this name.
    pub fn from_name(name: &str) -> Option<SystemCall> {
        SystemCall::ALL.iter().copied().find(|call| call.name() == name)
    }

    /// Which of its arguments, from 0, has flags of which the lowest one lets it wait: `IORING_ENTER_GETEVENTS`.
    pub(crate) fn flags_argument(self) -> Option<usize> {
        (self == SystemCall::IoUringEnter).then_some(3)
    }

    /// How long the call may wait, by its flags, if it has them, and the value of its timeout argument.
    pub(crate) fn timeout_with(self, flags: Option<u64>, argument: u64) -> Timeout {
        if flags.is_some_and(|flags| flags & 1 == 0) { Timeout::Zero } else { self.timeout(argument) }
    }

    /// How long the call may wait, by the value of its [`timeout_argument`](SystemCall::timeout_argument).
    pub fn timeout(self, argument: u64) -> Timeout {
        let [a, b, c, d, ..] = argument.to_le_bytes();
        let int = i32::from_le_bytes([a, b, c, d]);
        match (self.timeout_form(), int, argument) {
            (TimeoutForm::Millis, 0, _) | (TimeoutForm::Completions, 0, _) => Timeout::Zero,
            (TimeoutForm::Millis, _, _) => u32::try_from(int).map_or(Timeout::Unlimited, Timeout::Millis),
            (TimeoutForm::Pointer, _, 0) | (TimeoutForm::Completions, _, _) => Timeout::Unlimited,
            (TimeoutForm::Pointer, _, _) => Timeout::Limited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_read_as_each_call_gives_it() {
        let minus_one = u64::from(u32::MAX);
        assert_eq!(SystemCall::Poll.timeout(minus_one), Timeout::Unlimited);
        assert_eq!(SystemCall::EpollWait.timeout(u64::MAX), Timeout::Unlimited);
        assert_eq!(SystemCall::EpollWait.timeout(0), Timeout::Zero);
        assert_eq!(SystemCall::EpollPwait.timeout(250), Timeout::Millis(250));
        assert_eq!(SystemCall::Ppoll.timeout(0), Timeout::Unlimited);
        assert_eq!(SystemCall::Ppoll.timeout(0x7fff_0000_0000), Timeout::Limited);
        assert_eq!(SystemCall::IoUringEnter.timeout(0), Timeout::Zero);
        assert_eq!(SystemCall::IoUringEnter.timeout(1), Timeout::Unlimited);
    }

    /// The numbers of the C library that this is built with.
    #[test]
    fn system_calls_have_the_numbers_of_this_machine() {
        let known = [
            (SystemCall::Ppoll, libc::SYS_ppoll),
            (SystemCall::EpollPwait, libc::SYS_epoll_pwait),
            (SystemCall::IoUringEnter, libc::SYS_io_uring_enter),
            (SystemCall::Pselect6, libc::SYS_pselect6),
            #[cfg(target_arch = "x86_64")]
            (SystemCall::Poll, libc::SYS_poll),
            #[cfg(target_arch = "x86_64")]
            (SystemCall::EpollWait, libc::SYS_epoll_wait),
            #[cfg(target_arch = "x86_64")]
            (SystemCall::Select, libc::SYS_select),
        ];
        for (call, number) in known {
            assert_eq!(call.number(), Some(number), "{call:?}");
        }
    }
}
