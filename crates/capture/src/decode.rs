//! How events are read out of the samples of a perf ring buffer.

use crate::format::{At, Format};
use dwell_trace::event::EventKind;
use dwell_trace::tracepoint::{Field, Fields, Places, Sample, TracepointKind};

/// The filter of `kvm:kvm_exit` that lets only HLT through: reason 12 on Intel (`isa` 1), 0x78 on AMD (`isa` 2).
pub const HLT_EXITS: &str = "(isa == 1 && exit_reason == 12) || (isa == 2 && exit_reason == 0x78)";

/// Reads one kind of tracepoint, by the offsets of the running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Decoder(Fields<At>);

impl Decoder {
    /// Prepares to read `kind`.
    ///
    /// # Errors
    /// The name of a field that this kernel's format lacks.
    pub fn new(kind: TracepointKind, format: &Format) -> Result<Decoder, &'static str> {
        Fields::find(kind, format).map(Decoder)
    }

    /// The event of the sample `raw`, taken on `cpu`; `None` if it is too short or of no use (a line that falls, a
    /// register that is not a timer's).
    #[inline(always)]
    pub fn decode(&self, raw: &[u8], cpu: u32) -> Option<EventKind> {
        self.0.event(&Raw(raw), cpu).flatten()
    }
}

impl Places for Format {
    type Place = At;

    fn at(&self, field: &'static Field) -> Option<At> {
        Format::at(self, field.name)
    }

    /// Arguments follow the call's number, in their order.
    fn argument(&self, number: usize) -> Option<At> {
        let call = self.fields.iter().position(|field| field.name == "__syscall_nr" || field.name == "nr")?;
        self.fields.get(call + 1 + number).map(|field| field.at)
    }
}

/// A sample as the kernel wrote it.
struct Raw<'a>(&'a [u8]);

impl Sample<At> for Raw<'_> {
    #[inline(always)]
    fn number(&self, at: At) -> Option<u64> {
        at.read(self.0)
    }

    /// The low 32 bits.
    #[inline(always)]
    fn u32(&self, at: At) -> Option<u32> {
        let [a, b, c, d, ..] = self.number(at)?.to_le_bytes();
        Some(u32::from_le_bytes([a, b, c, d]))
    }

    #[inline(always)]
    fn i32(&self, at: At) -> Option<i32> {
        self.u32(at).map(u32::cast_signed)
    }

    #[inline(always)]
    fn nth(&self, array: At, index: usize) -> Option<u64> {
        let size = array.size / 6;
        let offset = array.offset.checked_add(u16::try_from(index).ok()?.checked_mul(size)?)?;
        At { offset, size, signed: false }.read(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_trace::event::{SystemCall, Timeout};
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
