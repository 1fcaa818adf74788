//! One event of a bundle, as name and text.

use super::wire::{Damaged, Value, fields, numbers};
use std::collections::HashMap;
use std::fmt::Write as _;

/// The fields of `FtraceEvent` that are of every event.
const TIME: u32 = 1;
const PID: u32 = 2;
const FLAGS: u32 = 5;
/// Those of events whose text is made here.
const SWITCH: u32 = 4;
const GENERIC: u32 = 327;
const SYS_ENTER: u32 = 329;
const SYS_EXIT: u32 = 330;
const KVM_EXIT: u32 = 377;

/// How a field is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    Text,
}

type Field = (u32, &'static str, Kind);

/// With what an event of a task begins.
const TASK: &[Field] = &[(1, "comm", Kind::Text), (2, "pid", Kind::Signed)];

const WAKING: &[Field] = &[
    (1, "comm", Kind::Text),
    (2, "pid", Kind::Signed),
    (3, "prio", Kind::Signed),
    (5, "target_cpu", Kind::Signed),
];

/// Events of use, with what of them is of use, in the order in which ftrace prints it.
const EVENTS: [(u32, &str, &[Field]); 10] = [
    (13, "cpu_idle", &[(1, "state", Kind::Unsigned), (2, "cpu_id", Kind::Unsigned)]),
    (20, "sched_waking", WAKING),
    (17, "sched_wakeup", WAKING),
    (114, "sched_wakeup_new", WAKING),
    (
        491,
        "sched_migrate_task",
        &[
            (1, "comm", Kind::Text),
            (2, "pid", Kind::Signed),
            (3, "prio", Kind::Signed),
            (4, "orig_cpu", Kind::Signed),
            (5, "dest_cpu", Kind::Signed),
        ],
    ),
    (36, "irq_handler_entry", &[(1, "irq", Kind::Signed), (2, "name", Kind::Text)]),
    (21, "ipi_entry", &[(1, "reason", Kind::Text)]),
    (559, "local_timer_entry", &[(1, "vector", Kind::Signed)]),
    (
        400,
        "kvm_vcpu_wakeup",
        &[(1, "ns", Kind::Unsigned), (3, "waited", Kind::Unsigned), (2, "valid", Kind::Unsigned)],
    ),
    (376, "kvm_entry", &[(1, "vcpu_pc", Kind::Unsigned)]),
];

/// Exception classes of arm64 by number, for those that leave a guest often.
const CLASSES: [(u64, &str); 9] = [
    (0x01, "WFx"),
    (0x07, "FP_ASIMD"),
    (0x16, "HVC64"),
    (0x17, "SMC64"),
    (0x18, "SYS64"),
    (0x19, "SVE"),
    (0x20, "IABT_LOW"),
    (0x24, "DABT_LOW"),
    (0x3c, "BRK64"),
];

/// Events that a trace describes itself: by the number of its field, the name and those of its fields.
pub(super) type Described = HashMap<u32, (String, HashMap<u32, String>)>;

/// An event as ftrace would print it, and the names of tasks that it has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Printed {
    pub(super) time_ns: u64,
    pub(super) pid: Option<i32>,
    pub(super) name: String,
    pub(super) text: String,
    pub(super) tasks: Vec<(i32, String)>,
}

impl Printed {
    pub(super) fn read(bytes: &[u8], described: &Described) -> Result<Printed, Damaged> {
        let mut event = Printed::default();
        let mut what = None;
        for field in fields(bytes) {
            match field? {
                (TIME, Value::Number(ns)) => event.time_ns = ns,
                (PID, Value::Number(pid)) => event.pid = Some(int(pid)),
                (FLAGS, _) => {}
                (number, Value::Bytes(bytes)) => what = Some((number, bytes)),
                _ => {}
            }
        }
        let (number, bytes) = what.unwrap_or_default();
        event.fill(number, bytes, described)?;
        Ok(event)
    }

    fn fill(&mut self, number: u32, bytes: &[u8], described: &Described) -> Result<(), Damaged> {
        if let Some((_, name, wanted)) = EVENTS.iter().find(|(known, ..)| *known == number) {
            self.name.push_str(name);
            if wanted.starts_with(TASK) {
                self.task(bytes, 1, 2)?;
            }
            return self.known(bytes, wanted);
        }
        match number {
            SWITCH => self.switch(bytes),
            GENERIC => self.generic(bytes),
            SYS_ENTER => self.enter(bytes),
            SYS_EXIT => self.leave(bytes),
            KVM_EXIT => self.kvm_exit(bytes),
            _ => self.described(number, bytes, described),
        }
    }

    fn put(&mut self, name: &str, value: impl std::fmt::Display) {
        let blank = if self.text.is_empty() { "" } else { " " };
        let _ = write!(self.text, "{blank}{name}={value}");
    }

    fn known(&mut self, bytes: &[u8], wanted: &[Field]) -> Result<(), Damaged> {
        for (number, name, kind) in wanted {
            let value = last(bytes, *number)?;
            let digits = value.and_then(Value::number).unwrap_or(0);
            match kind {
                Kind::Signed => self.put(name, digits.cast_signed()),
                Kind::Unsigned => self.put(name, digits),
                Kind::Text => self.put(name, line(value.and_then(Value::bytes).unwrap_or_default())),
            }
        }
        Ok(())
    }

    /// Keeps the name that an event has of a task, by the numbers of its fields.
    fn task(&mut self, bytes: &[u8], comm: u32, pid: u32) -> Result<(), Damaged> {
        let id = last(bytes, pid)?.and_then(Value::number);
        let comm = last(bytes, comm)?.and_then(Value::bytes);
        self.tasks.extend(id.zip(comm).map(|(id, comm)| (int(id), line(comm))));
        Ok(())
    }

    /// Without names, which may look like fields.
    fn switch(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        self.name.push_str("sched_switch");
        self.task(bytes, 1, 2)?;
        self.task(bytes, 5, 6)?;
        let [prev, state, next] = [2, 4, 6].map(|number| last(bytes, number));
        let number = |value: Option<Value<'_>>| value.and_then(Value::number).unwrap_or(0);
        let (prev, next) = (int(number(prev?)), int(number(next?)));
        self.text = switch_text(prev, number(state?).cast_signed(), next);
        Ok(())
    }

    /// An event without a type of its own: its name, and name and value of each field.
    fn generic(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        for field in fields(bytes) {
            match field? {
                (1, Value::Bytes(name)) => self.name = word(name),
                (2, Value::Bytes(field)) => {
                    let name = last(field, 1)?.and_then(Value::bytes).map(word).unwrap_or_default();
                    for (number, signed) in [(4, true), (5, false)] {
                        match last(field, number)?.and_then(Value::number) {
                            Some(value) if signed => self.put(&name, value.cast_signed()),
                            Some(value) => self.put(&name, value),
                            None => {}
                        }
                    }
                    if let Some(value) = last(field, 3)?.and_then(Value::bytes) {
                        self.put(&name, line(value));
                    }
                }
                _ => {}
            }
        }
        if self.name.is_empty() { Err(Damaged) } else { Ok(()) }
    }

    fn described(&mut self, number: u32, bytes: &[u8], described: &Described) -> Result<(), Damaged> {
        let Some((name, names)) = described.get(&number) else {
            self.name = format!("perfetto_event_{number}");
            return Ok(());
        };
        self.name.clone_from(name);
        for field in fields(bytes) {
            let (number, value) = field?;
            let Some(name) = names.get(&number) else { continue };
            match value {
                // Numbers below zero have all 64 bits, too.
                Value::Number(value) => self.put(name, value.cast_signed()),
                Value::Bytes(value) => self.put(name, line(value)),
            }
        }
        Ok(())
    }

    fn enter(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        self.name.push_str("sys_enter");
        let mut arguments = vec![];
        for field in fields(bytes) {
            if let (2, value) = field? {
                numbers(value, &mut arguments)?;
            }
        }
        let arguments: Vec<String> = arguments.iter().map(|argument| format!("{argument:x}")).collect();
        let call = last(bytes, 1)?.and_then(Value::number).unwrap_or(0).cast_signed();
        self.text = format!("NR {call} ({})", arguments.join(", "));
        Ok(())
    }

    fn leave(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        self.name.push_str("sys_exit");
        let [call, result] = [last(bytes, 1)?, last(bytes, 2)?]
            .map(|value| value.and_then(Value::number).unwrap_or(0).cast_signed());
        self.text = format!("NR {call} = {result}");
        Ok(())
    }

    /// Of arm64, whose event has no vCPU. Of the events of other architectures Perfetto keeps no field.
    fn kvm_exit(&mut self, bytes: &[u8]) -> Result<(), Damaged> {
        self.name.push_str("kvm_exit");
        if bytes.is_empty() {
            return Ok(());
        }
        let [class, how, pc] = [last(bytes, 1)?, last(bytes, 2)?, last(bytes, 3)?]
            .map(|value| value.and_then(Value::number).unwrap_or(0));
        let name = CLASSES.iter().find(|(number, _)| *number == class).map(|(_, name)| (*name).to_owned());
        let name = name.unwrap_or_else(|| format!("EC {class:#04x}"));
        let how = match how {
            0 => "IRQ",
            1 => "SERROR",
            2 => "TRAP",
            _ => "HYP_GONE",
        };
        self.text = format!("{how}: HSR_EC: {class:#06x} ({name}), PC: {pc:#018x}");
        Ok(())
    }
}

/// As `trace-cmd report -R` prints it.
pub(super) fn switch_text(prev: i32, state: i64, next: i32) -> String {
    format!("prev_pid={prev} prev_state={state} next_pid={next}")
}

/// The last value of a field, which is the one that counts.
fn last(bytes: &[u8], number: u32) -> Result<Option<Value<'_>>, Damaged> {
    let mut found = None;
    for field in fields(bytes) {
        let (there, value) = field?;
        if there == number {
            found = Some(value);
        }
    }
    Ok(found)
}

/// Of a field of 32 bits; one below zero is written as 64.
pub(super) fn int(number: u64) -> i32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// A text with nothing that ends a line.
pub(super) fn line(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(char::is_control, "?")
}

/// A name that is one word.
fn word(bytes: &[u8]) -> String {
    line(bytes).replace([' ', ':', '='], "_")
}

/// What an entry of `generic_event_descriptors` describes: a message, by the number of its field in an event.
pub(super) fn describe(bytes: &[u8], into: &mut Described) -> Result<(), Damaged> {
    let number = last(bytes, 1)?.and_then(Value::number).and_then(|number| u32::try_from(number).ok());
    let descriptor = last(bytes, 2)?.and_then(Value::bytes).unwrap_or_default();
    let (mut name, mut names) = (String::new(), HashMap::new());
    for field in fields(descriptor) {
        match field? {
            (1, Value::Bytes(bytes)) => name = word(bytes),
            (2, Value::Bytes(field)) => {
                let number = last(field, 3)?.and_then(Value::number);
                if let Some(number) = number.and_then(|number| u32::try_from(number).ok()) {
                    let name = last(field, 1)?.and_then(Value::bytes).map(word).unwrap_or_default();
                    names.insert(number, name);
                }
            }
            _ => {}
        }
    }
    if let Some(number) = number.filter(|_| !name.is_empty()) {
        into.insert(number, (name, names));
    }
    Ok(())
}
