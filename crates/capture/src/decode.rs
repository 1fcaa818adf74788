//! How events are read out of the samples of a perf ring buffer.

use crate::format::{At, Format};
use dwell_trace::event::{EventKind, Interrupt, SystemCall, TracepointKind, TracepointKind as Kind};

/// The filter of `kvm:kvm_exit` that lets only HLT through: reason 12 on Intel (`isa` 1), 0x78 on AMD (`isa` 2).
pub const HLT_EXITS: &str = "(isa == 1 && exit_reason == 12) || (isa == 2 && exit_reason == 0x78)";

/// Reads one kind of tracepoint, by the offsets of the running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Decoder(Layout);

/// `type` of `kvm:kvm_mmio` (`KVM_TRACE_MMIO_WRITE`).
const MMIO_WRITE: u64 = 2;
/// The register in which a guest writes when its timer is due.
const IA32_TSC_DEADLINE: u64 = 0x6e0;
/// The register of the local APIC with the initial count of its timer.
const APIC_TMICT: u64 = 0x380;

/// The number of an exit reason: that of the instruction set (1: VMX, 2: SVM) above the processor's, without its flags.
pub const fn exit_number(isa: u32, reason: u32) -> u32 {
    isa << 16 | reason & 0xffff
}

/// `state` of `power:cpu_idle` when the idle state is left: `PWR_EVENT_EXIT`, (u32)-1.
const IDLE_LEFT: u32 = u32::MAX;

/// The states in `prev_state` of `sched:sched_switch` in which a thread is not runnable (`TASK_REPORT` and
/// the one above it); a preempted thread has the bit above them.
const SLEEP_STATES: u64 = 0xff;

/// Makes of one table what finds the fields of a tracepoint in the kernel's format, and what reads them.
macro_rules! decoders {
    (($kind:ident, $format:ident, $at:ident, $raw:ident, $cpu:ident) $($pattern:pat => $layout:ident {
        $($field:ident $(: $type:ty)? = $from:expr),*
    } => $event:expr;)*) => {
        #[derive(Clone, Copy, Debug)]
        enum Layout {
            $($layout { $($field: of_type!($($type)?)),* },)*
        }

        impl Decoder {
            /// Prepares to read `kind`.
            ///
            /// # Errors
            /// The name of a field that this kernel's format lacks.
            pub fn new($kind: TracepointKind, $format: &Format) -> Result<Decoder, &'static str> {
                let $at = |field: &'static str| $format.at(field).ok_or(field);
                Ok(Decoder(match $kind {
                    $($pattern => Layout::$layout { $($field: $from),* },)*
                    // Of texts only: a mask of CPUs has no fixed place, and no recorder asks for these.
                    TracepointKind::IpiRaise | TracepointKind::IpiSend => return Err("target_cpus"),
                }))
            }

            /// The event of the sample `raw`, taken on `cpu`; `None` if it is too short or of no use (a line that
            /// falls, a register that is not a timer's).
            // Returned through memory and copied out by halves, the result cost more than all else per event.
            #[inline(always)]
            pub fn decode(&self, $raw: &[u8], $cpu: u32) -> Option<EventKind> {
                Some(match self.0 {
                    $(Layout::$layout { $($field),* } => $event,)*
                })
            }
        }
    };
}

/// The type of a field: its place, unless the table gives another.
macro_rules! of_type {
    () => {
        At
    };
    ($type:ty) => {
        $type
    };
}

// Tracepoints => the layout { its fields, and where they are } => what they say.
decoders! {
    (kind, format, at, raw, cpu)
    Kind::VcpuWakeup => VcpuWakeup { ns = at("ns")?, waited = at("waited")?, valid = at("valid")? }
        => EventKind::VcpuWakeup {
            ns: ns.read(raw)?,
            waited: waited.read(raw)? != 0,
            valid: valid.read(raw)? != 0,
        };
    Kind::HaltPoll => HaltPoll {
        vcpu = at("vcpu_id")?, grow = at("grow")?, new = at("new")?, old = at("old")?
    } => EventKind::HaltPoll {
        vcpu: vcpu.read_u32(raw)?,
        grow: grow.read(raw)? != 0,
        new: new.read_u32(raw)?,
        old: old.read_u32(raw)?,
    };
    Kind::Exit => Exit { vcpu = at("vcpu_id")?, isa = at("isa")?, reason = at("exit_reason")? }
        => EventKind::Exit {
            vcpu: Some(vcpu.read_u32(raw)?),
            reason: exit_number(isa.read_u32(raw)?, reason.read_u32(raw)?),
        };
    Kind::Entry => Entry { vcpu = at("vcpu_id")? } => EventKind::Entry { vcpu: Some(vcpu.read_u32(raw)?) };
    Kind::Msr => Msr {
        write = at("write")?, register = at("ecx")?, value = at("data")?, refused = at("exception")?
    } => {
        let is_deadline = write.read(raw)? != 0 && register.read(raw)? == IA32_TSC_DEADLINE;
        if !is_deadline || refused.read(raw)? != 0 {
            return Some(EventKind::Msr { register: register.read_u32(raw)? });
        }
        EventKind::DeadlineWritten { value: value.read(raw)? }
    };
    Kind::SyntheticTimer => SyntheticTimer {} => EventKind::SyntheticTimer;
    Kind::Apic => Apic { write = at("rw")?, register = at("reg")?, value = at("val")? } => {
        if write.read(raw)? == 0 || register.read(raw)? != APIC_TMICT {
            return None;
        }
        EventKind::CountWritten { value: value.read(raw)? }
    };
    Kind::ApicAccept => ApicAccept { apic = at("apicid")? }
        => EventKind::ApicAccept { apic: apic.read_u32(raw)? };
    Kind::UserspaceExit => UserspaceExit { reason = at("reason")?, errno = at("errno")? }
        => EventKind::UserspaceExit {
            reason: Some(reason.read_u32(raw)?)
                .filter(|_| errno.read_i32(raw).is_some_and(|errno| errno >= 0)),
        };
    Kind::Port => Port { port = at("port")?, write = at("rw")? }
        => EventKind::Port { port: port.read_u32(raw)?, write: write.read(raw)? != 0 };
    Kind::Mmio => Mmio { address = at("gpa")?, kind = at("type")? }
        => EventKind::Mmio { address: address.read(raw)?, write: kind.read(raw)? == MMIO_WRITE };
    Kind::LineRaised => LineRaised { gsi = at("gsi")?, level = at("level")? } => {
        if level.read(raw)? == 0 {
            return None;
        }
        EventKind::LineRaised { gsi: gsi.read_u32(raw)? }
    };
    Kind::MessageSent => MessageSent { data = at("data")? }
        => EventKind::MessageSent { vector: data.read(raw)?.to_le_bytes()[0] };
    Kind::Ran => Ran { task = at("pid")?, ns = at("runtime")? }
        => EventKind::Ran { task: task.read_i32(raw)?, ns: ns.read(raw)? };
    Kind::HvTimerState => HvTimerState { in_use = at("hv_timer_in_use")? }
        => EventKind::HvTimerState { in_use: in_use.read(raw)? != 0 };
    Kind::LapicWait => LapicWait { delta = at("delta")? }
        => EventKind::LapicWait { delta: delta.read(raw)?.cast_signed() };
    Kind::HrtimerStart => HrtimerStart {
        timer = at("hrtimer")?, function = at("function")?, expires = at("expires")?
    } => EventKind::HrtimerStart {
        timer: timer.read(raw)?,
        function: function.read(raw)?,
        expires_ns: expires.read(raw)?,
    };
    Kind::HrtimerExpire => HrtimerExpire { timer = at("hrtimer")?, function = at("function")? }
        => EventKind::HrtimerExpire { timer: timer.read(raw)?, function: function.read(raw)? };
    Kind::CpuIdle => CpuIdle { state = at("state")?, cpu = at("cpu_id")? } => EventKind::CpuIdle {
        cpu: cpu.read_u32(raw)?,
        state: Some(state.read_u32(raw)?).filter(|&state| state != IDLE_LEFT),
    };
    Kind::GuestHaltPoll => GuestHaltPoll { new = at("new")?, old = at("old")? }
        => EventKind::GuestHaltPoll { new: new.read_u32(raw)?, old: old.read_u32(raw)? };
    Kind::DwellIdle => DwellIdle { window = at("window_ns")?, halted = at("halted")? }
        => EventKind::DwellIdle { window_ns: window.read(raw)?, halted: halted.read(raw)? != 0 };
    Kind::Reflect => Reflect {
        state = at("index")?, residency = at("last_residency_ns")?, limit = at("poll_limit_ns")?
    } => EventKind::Reflect {
        state: state.read_u32(raw)?,
        residency_ns: residency.read(raw)?,
        limit_ns: limit.read(raw)?,
    };
    Kind::Switch | Kind::ContextSwitch => Switch {
        prev = at("prev_pid")?, preempt: Option<At> = format.at("preempt"),
        prev_state: Option<At> = format.at("prev_state"), next = at("next_pid")?
    } => EventKind::Switch {
        prev: prev.read_i32(raw)?,
        prev_runnable: match (preempt, prev_state) {
            // A BPF program gets the state as the scheduler has it: 0 is runnable.
            (Some(preempt), Some(state)) => {
                Some(preempt.read(raw)? & 0xff != 0 || state.read(raw)? == 0)
            }
            (None, Some(state)) => Some(state.read(raw)? & SLEEP_STATES == 0),
            (_, None) => None,
        },
        next: next.read_i32(raw)?,
    };
    Kind::Wakeup | Kind::WakeupNew => Wakeup { woken = at("pid")?, target = at("target_cpu")? }
        => EventKind::Wakeup { woken: woken.read_i32(raw)?, target: target.read_u32(raw)? };
    Kind::Migrate => Migrate { task = at("pid")?, from = at("orig_cpu")?, to = at("dest_cpu")? }
        => EventKind::Migrate { task: task.read_i32(raw)?, from: from.read_u32(raw)?, to: to.read_u32(raw)? };
    Kind::Waking => Waking { woken = at("pid")?, target = at("target_cpu")? }
        => EventKind::Waking { woken: woken.read_i32(raw)?, target: target.read_u32(raw).unwrap_or(cpu) };
    Kind::TimerInterrupt => TimerInterrupt {} => EventKind::Interrupt(Interrupt::Timer);
    Kind::RescheduleInterrupt | Kind::CallInterrupt | Kind::IpiEntry => Ipi {}
        => EventKind::Interrupt(Interrupt::Ipi);
    Kind::DeviceInterrupt => DeviceInterrupt {} => EventKind::Interrupt(Interrupt::Device);
    Kind::TimerInterruptEnd | Kind::RescheduleInterruptEnd | Kind::CallInterruptEnd | Kind::SoftirqEnd
        => HandlerEnd {} => EventKind::HandlerEnd { line: None };
    Kind::DeviceInterruptEnd => DeviceEnd { line = at("irq")? }
        => EventKind::HandlerEnd { line: Some(line.read_u32(raw)?) };
    Kind::Softirq => Softirq { vector = at("vec")? } => EventKind::Softirq { vector: vector.read_u32(raw)? };
    Kind::TimerExpire | Kind::WorkStart => Callback {
        function = at("function")?, is_work: bool = kind == Kind::WorkStart
    } => EventKind::Callback { function: function.read(raw)?, is_work };
    Kind::Enter(call) => Enter { call: SystemCall = call, argument = argument_of(call, format)? }
        => EventKind::Enter { call, timeout: call.timeout(argument.read(raw)?) };
    Kind::Leave(call) => Leave { call: SystemCall = call, result = at("ret")? }
        => EventKind::Leave { call, result: result.read(raw)?.cast_signed() };
    Kind::AnyEnter => AnyEnter { number = at("id")?, arguments = at("args")? } => {
        let number = number.read(raw)?.cast_signed();
        let argument = |index| nth_of_array(arguments, index)?.read(raw);
        match SystemCall::from_number(number) {
            Some(call) => {
                EventKind::Enter { call, timeout: call.timeout(argument(call.timeout_argument())?) }
            }
            None => EventKind::Call { number, arguments: [argument(0)?, argument(1)?] },
        }
    };
    Kind::AnyLeave => AnyLeave { number = at("id")?, result = at("ret")? } => {
        let result = result.read(raw)?.cast_signed();
        match SystemCall::from_number(number.read(raw)?.cast_signed()) {
            Some(call) => EventKind::Leave { call, result },
            None => EventKind::Return,
        }
    };
}

/// Arguments follow the call's number, in their order; their names differ between kernels.
fn argument_of(call: SystemCall, format: &Format) -> Result<At, &'static str> {
    let argument = call.timeout_argument();
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
    use dwell_trace::event::Timeout;
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
        assert_eq!(Decoder::new(TracepointKind::VcpuWakeup, &format).unwrap_err(), "valid");
        assert_eq!(
            Decoder::new(TracepointKind::Enter(SystemCall::Poll), &format).unwrap_err(),
            "__syscall_nr"
        );
    }

    #[test]
    fn leaving_idle_is_no_state() {
        let decoder =
            Decoder::new(TracepointKind::CpuIdle, &format(&[("state", 8, 4), ("cpu_id", 12, 4)])).unwrap();
        let raw = |state: u32| [&[0; 8][..], &state.to_ne_bytes(), &3u32.to_ne_bytes()].concat();
        assert_eq!(decoder.decode(&raw(1), 0), Some(EventKind::CpuIdle { cpu: 3, state: Some(1) }));
        assert_eq!(decoder.decode(&raw(u32::MAX), 0), Some(EventKind::CpuIdle { cpu: 3, state: None }));
        assert_eq!(decoder.decode(&raw(1)[..14], 0), None);
    }

    #[test]
    fn raw_system_calls_are_known_by_number() {
        let decoder =
            Decoder::new(TracepointKind::AnyEnter, &format(&[("id", 8, 8), ("args", 16, 48)])).unwrap();
        let raw = |number: i64, fourth: u64| {
            let mut raw = vec![0; 8];
            raw.extend(number.to_ne_bytes());
            raw.extend([0, 0, 0, fourth, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()));
            raw
        };
        let number = SystemCall::EpollPwait.number().unwrap();
        assert_eq!(
            decoder.decode(&raw(number, 5), 0),
            Some(EventKind::Enter { call: SystemCall::EpollPwait, timeout: Timeout::Millis(5) })
        );
        assert_eq!(decoder.decode(&raw(-1, 5), 0), Some(EventKind::Call { number: -1, arguments: [0, 0] }));
    }

    proptest! {
        #[test]
        fn any_sample_is_read_or_refused(raw in prop::collection::vec(any::<u8>(), 0..80), size in 0u16..70) {
            let names = ["ns", "waited", "valid", "vcpu_id", "grow", "new", "old", "state", "cpu_id", "prev_pid",
                "next_pid", "prev_state", "orig_cpu", "dest_cpu", "pid", "target_cpu", "isa", "exit_reason", "ret", "id", "args", "__syscall_nr", "a", "b", "c", "d", "e", "f", "window_ns", "halted", "write", "ecx", "data", "exception", "rw", "reg", "val", "apicid", "hv_timer_in_use", "delta", "hrtimer", "function", "expires", "reason", "errno", "port", "gpa", "type", "gsi", "level", "runtime", "irq", "vec"];
            let fields: Vec<_> = (4u16..).zip(names).map(|(offset, name)| (name, offset, size)).collect();
            let format = format(&fields);
            let kinds = [TracepointKind::VcpuWakeup, TracepointKind::HaltPoll, TracepointKind::Exit, TracepointKind::Entry, TracepointKind::Msr, TracepointKind::Apic, TracepointKind::ApicAccept, TracepointKind::UserspaceExit, TracepointKind::Port, TracepointKind::Mmio, TracepointKind::LineRaised, TracepointKind::MessageSent, TracepointKind::Ran, TracepointKind::HvTimerState, TracepointKind::LapicWait, TracepointKind::HrtimerStart, TracepointKind::HrtimerExpire, TracepointKind::CpuIdle, TracepointKind::GuestHaltPoll, TracepointKind::DwellIdle,
                TracepointKind::Switch, TracepointKind::Wakeup, TracepointKind::Migrate, TracepointKind::Waking, TracepointKind::TimerInterrupt, TracepointKind::AnyEnter, TracepointKind::AnyLeave, TracepointKind::DeviceInterruptEnd, TracepointKind::Softirq, TracepointKind::TimerExpire,
                TracepointKind::Enter(SystemCall::Ppoll), TracepointKind::Leave(SystemCall::Ppoll)];
            for kind in kinds {
                let _ = Decoder::new(kind, &format).unwrap().decode(&raw, 0);
            }
        }
    }
}
