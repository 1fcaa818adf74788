//! Events as the text of `perf script`, for other tools and for [`import::perf`](dwell_trace::import::perf).
//!
//! Everything that an event has is written, so that the text gives the same recording as the events. What an
//! event does not have (priorities, states of tasks, addresses) is written as zero or as the usual value.
//! perf has no words for the events of QEMU's own trace, nor for the beginning of a gap; they are left out.

use dwell_policy::arch::Arch;
use dwell_trace::event::{Event, EventKind, Interrupt, SystemCall, Timeout};
use dwell_trace::pairing::Names;
use dwell_trace::tracepoint::{IDLE_LEFT, TracepointKind};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Write};

/// A time \[ns\] as seconds with nine decimals.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A value of the call's [`timeout_argument`](SystemCall::timeout_argument) with which it may wait for so long.
fn argument(call: SystemCall, timeout: Timeout) -> u64 {
    let usual = [0, 1, u64::from(u32::MAX)].into_iter().find(|argument| call.timeout(*argument) == timeout);
    match timeout {
        Timeout::Millis(ms) => ms.into(),
        _ => usual.unwrap_or(u64::from(timeout == Timeout::Limited)),
    }
}

/// Writes events as `perf script --ns --show-task-events -F comm,pid,tid,cpu,time,event,trace` does.
pub struct PerfText<W: Write> {
    out: W,
    names: Box<dyn Names>,
    threads: HashMap<(i32, i32), String>,
    processes: HashSet<i32>,
}

impl<W: Write> PerfText<W> {
    /// A text that begins with the header of a machine with this kernel, whose clock is CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W, kernel: Option<&str>, names: Box<dyn Names>) -> io::Result<PerfText<W>> {
        if let Some(kernel) = kernel {
            writeln!(out, "# os release : {kernel}")?;
        }
        writeln!(out, "# arch : {}", Arch::HERE.map_or("other", Arch::machine))?;
        writeln!(out, "# clockid: monotonic (1)")?;
        Ok(PerfText { out, names, threads: HashMap::new(), processes: HashSet::new() })
    }

    /// Appends the line of one event, and before it that of the name of its process, where that is new.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let Event { pid, tid, kind, .. } = *event;
        if matches!(kind, EventKind::Aio { .. } | EventKind::Untraced | EventKind::Gap { .. }) {
            return Ok(());
        }
        if pid > 0
            && self.processes.insert(pid)
            && let Some(name) = self.names.process(pid)
        {
            let (at, name) = (Time(event.time_ns), clean(&name));
            writeln!(
                self.out,
                "{name:>16} {pid}/{pid} [{:03}] {at}: PERF_RECORD_COMM: {name}:{pid}/{pid}",
                event.cpu
            )?;
        }
        let names = &mut self.names;
        let comm = self.threads.entry((pid, tid)).or_insert_with(|| match tid {
            0 => "swapper".to_owned(),
            _ => names.thread(pid, tid).map_or_else(|| format!(":{tid}"), |name| clean(&name)),
        });
        write!(self.out, "{comm:>16} ")?;
        if pid != Event::UNKNOWN_ID {
            write!(self.out, "{pid}/")?;
        }
        write!(self.out, "{tid} ")?;
        match kind {
            EventKind::Lost { cpu: None, .. } => {}
            EventKind::Lost { cpu: Some(cpu), .. } => write!(self.out, "[{cpu:03}] ")?,
            _ => write!(self.out, "[{:03}] ", event.cpu)?,
        }
        writeln!(self.out, "{}: {}", Time(event.time_ns), Text(&kind))
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.out
    }
}

/// A name of a task on one line.
fn clean(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    name.trim().to_owned()
}

/// Name and text of an event.
struct Text<'a>(&'a EventKind);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = |grow| if grow { "grow" } else { "shrink" };
        if let EventKind::Lost { count, .. } = self.0 {
            return write!(f, "PERF_RECORD_LOST lost {count}");
        }
        if let Some(name) = name(self.0) {
            write!(f, "{name}: ")?;
        }
        match *self.0 {
            EventKind::VcpuWakeup { ns, waited, valid } => {
                let (how, valid) =
                    (if waited { "wait" } else { "poll" }, if valid { "valid" } else { "invalid" });
                write!(f, "{how} time {ns} ns, polling {valid}")
            }
            EventKind::HaltPoll { vcpu, grow, new, old } => {
                write!(f, "vcpu {vcpu}: halt_poll_ns {new} ({} {old})", step(grow))
            }
            // Layers that are exported use no exit but that of HLT.
            EventKind::Exit { vcpu, .. } => {
                vcpu.map_or(Ok(()), |vcpu| write!(f, "vcpu {vcpu} "))?;
                write!(f, "reason HLT rip 0x0 info1 0x0")
            }
            EventKind::Entry { vcpu } => {
                vcpu.map_or(Ok(()), |vcpu| write!(f, "vcpu {vcpu}, "))?;
                write!(f, "rip 0x0")
            }
            EventKind::DeadlineWritten { value } => write!(f, "msr_write 6e0 = {value:#x}"),
            EventKind::CountWritten { value } => write!(f, "apic_write APIC_TMICT = {value:#x}"),
            EventKind::HvTimerState { in_use } => write!(f, "vcpu_id 0 hv_timer {}", u8::from(in_use)),
            EventKind::HrtimerStart { timer, function, expires_ns } => {
                write!(f, "hrtimer={timer:#x} function={function:#x} expires={expires_ns}")
            }
            EventKind::HrtimerExpire { timer, function } => {
                write!(f, "hrtimer={timer:#x} function={function:#x} now=0")
            }
            EventKind::ApicAccept { apic } => write!(f, "apicid {apic:x} vec 0 (Fixed|edge)"),
            EventKind::LapicWait { delta } => write!(f, "vcpu 0: delta {delta}"),
            EventKind::CpuIdle { cpu, state } => {
                write!(f, "state={} cpu_id={cpu}", state.unwrap_or(IDLE_LEFT))
            }
            EventKind::GuestHaltPoll { new, old } => {
                write!(f, "halt_poll_ns {new} ({} {old})", step(new > old))
            }
            EventKind::DwellIdle { window_ns, halted } => {
                write!(f, "idle_ns=0 window_ns={window_ns} busy_ns=0 halted={}", u8::from(halted))
            }
            EventKind::Reflect { state, residency_ns, limit_ns } => {
                write!(f, "index={state} last_residency_ns={residency_ns} poll_limit_ns={limit_ns}")
            }
            EventKind::Switch { prev, prev_runnable, next } => {
                write!(f, "prev_comm=- prev_pid={prev} prev_prio=120 ")?;
                if let Some(runnable) = prev_runnable {
                    write!(f, "prev_state={} ", if runnable { "R" } else { "S" })?;
                }
                write!(f, "==> next_comm=- next_pid={next} next_prio=120")
            }
            EventKind::Migrate { task, from, to } => {
                write!(f, "comm=- pid={task} prio=120 orig_cpu={from} dest_cpu={to}")
            }
            EventKind::Waking { woken, target } | EventKind::Wakeup { woken, target } => {
                write!(f, "comm=- pid={woken} prio=120 target_cpu={target:03}")
            }
            EventKind::Interrupt(Interrupt::Device) => write!(f, "irq=0 name=-"),
            EventKind::Interrupt(_) => write!(f, "vector=0"),
            EventKind::IpiRaise { first, mask } => {
                // Words of 32 CPUs, the first CPUs last.
                let zeros = ",00000000".repeat(usize::try_from(first / 32).unwrap_or(0));
                let shifted = u128::from(mask) << (first % 32);
                let [low, middle, high] =
                    [shifted, shifted >> 32, shifted >> 64].map(|word| word & 0xffff_ffff);
                write!(f, "target_mask={high:08x},{middle:08x},{low:08x}{zeros} (-)")
            }
            EventKind::Enter { call, timeout } => {
                for argument in 0..call.timeout_argument() {
                    write!(f, "arg{argument}: 0x00000000, ")?;
                }
                write!(f, "timeout: {:#010x}", argument(call, timeout))
            }
            EventKind::Leave { result, .. } => write!(f, "{result:#x}"),
            EventKind::Aio { .. }
            | EventKind::Untraced
            | EventKind::Gap { .. }
            | EventKind::Lost { .. }
            | EventKind::Call { .. }
            | EventKind::Return
            | EventKind::Msr { .. }
            | EventKind::SyntheticTimer
            | EventKind::Softirq { .. }
            | EventKind::Callback { .. }
            | EventKind::HandlerEnd { .. }
            | EventKind::Ran { .. }
            | EventKind::UserspaceExit { .. }
            | EventKind::Port { .. }
            | EventKind::Mmio { .. }
            | EventKind::LineRaised { .. }
            | EventKind::MessageSent { .. } => Ok(()),
        }
    }
}

fn name(kind: &EventKind) -> Option<TracepointKind> {
    Some(match *kind {
        EventKind::VcpuWakeup { .. } => TracepointKind::VcpuWakeup,
        EventKind::HaltPoll { .. } => TracepointKind::HaltPoll,
        EventKind::Exit { .. } => TracepointKind::Exit,
        EventKind::Entry { .. } => TracepointKind::Entry,
        EventKind::DeadlineWritten { .. } => TracepointKind::Msr,
        EventKind::CountWritten { .. } => TracepointKind::Apic,
        EventKind::HvTimerState { .. } => TracepointKind::HvTimerState,
        EventKind::HrtimerStart { .. } => TracepointKind::HrtimerStart,
        EventKind::HrtimerExpire { .. } => TracepointKind::HrtimerExpire,
        EventKind::ApicAccept { .. } => TracepointKind::ApicAccept,
        EventKind::LapicWait { .. } => TracepointKind::LapicWait,
        EventKind::CpuIdle { .. } => TracepointKind::CpuIdle,
        EventKind::GuestHaltPoll { .. } => TracepointKind::GuestHaltPoll,
        EventKind::DwellIdle { .. } => TracepointKind::DwellIdle,
        EventKind::Reflect { .. } => TracepointKind::Reflect,
        EventKind::Switch { .. } => TracepointKind::Switch,
        EventKind::Waking { .. } => TracepointKind::Waking,
        EventKind::Wakeup { .. } => TracepointKind::Wakeup,
        EventKind::Migrate { .. } => TracepointKind::Migrate,
        EventKind::Interrupt(Interrupt::Timer) => TracepointKind::TimerInterrupt,
        EventKind::Interrupt(Interrupt::Ipi) => TracepointKind::RescheduleInterrupt,
        EventKind::Interrupt(Interrupt::Device) => TracepointKind::DeviceInterrupt,
        EventKind::IpiRaise { .. } => TracepointKind::IpiRaise,
        EventKind::Enter { call, .. } => TracepointKind::Enter(call),
        EventKind::Leave { call, .. } => TracepointKind::Leave(call),
        // Those of which no episodes are made are in no export.
        EventKind::Aio { .. }
        | EventKind::Untraced
        | EventKind::Gap { .. }
        | EventKind::Lost { .. }
        | EventKind::Call { .. }
        | EventKind::Return
        | EventKind::Msr { .. }
        | EventKind::SyntheticTimer
        | EventKind::Softirq { .. }
        | EventKind::Callback { .. }
        | EventKind::HandlerEnd { .. }
        | EventKind::Ran { .. }
        | EventKind::UserspaceExit { .. }
        | EventKind::Port { .. }
        | EventKind::Mmio { .. }
        | EventKind::LineRaised { .. }
        | EventKind::MessageSent { .. } => {
            return None;
        }
    })
}
