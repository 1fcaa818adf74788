//! The I/O threads of a QEMU or qemu-storage-daemon: reading and setting their properties.
//!
//! QEMU applies a property at once, to the running thread. It also *forgets what the thread has learnt*, with
//! every write and even if the value stays the same; so nothing that is already there is written. Since 11.1
//! writing 0 means the default, which is then what is read back; before, 0 is kept.
//!
//! All properties of an `iothread` object can be named, those that do not steer polling (`aio-max-batch`,
//! `thread-pool-min`, `thread-pool-max`) included; QEMU checks names and values.

use crate::knob::IothreadTarget;
use crate::object_id::{NotAnId, ObjectId};
use crate::plan;
use crate::qmp::{Limits, Monitor, QmpError};
use crate::read_only;
use dwell_machine::{Machine, Writable};
use dwell_policy::Layer;
use dwell_policy::iothread::{Params, Property, Revision};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// Properties of an iothread object that do not steer polling, and are set like those that do.
pub const OTHER_PROPERTIES: [&str; 3] = ["aio-max-batch", "thread-pool-min", "thread-pool-max"];

/// The most I/O threads that a monitor may report: QEMU's users have one a disk or one a CPU.
pub const MOST_THREADS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IoThread {
    /// The id of its object.
    pub id: ObjectId,
    /// Its thread ID; a qemu-storage-daemon does not report it.
    pub thread_id: Option<u32>,
    /// Its polling properties, by name; those that this QEMU has.
    pub properties: BTreeMap<String, i64>,
}

impl IoThread {
    /// Whether this QEMU smoothes by weight and keeps defaults in place of zeros (11.1).
    pub fn is_weighted(&self) -> bool {
        self.properties.contains_key(Property::PollWeight.name())
    }

    /// The value that QEMU keeps after `property` is set to `value`.
    pub fn stored(&self, property: &str, value: i64) -> i64 {
        match Property::from_name(property) {
            Some(known) if self.is_weighted() && value == 0 && known != Property::PollMaxNs => {
                Params::default_for(Revision::Weighted).get(known)
            }
            _ => value,
        }
    }
}

fn path(id: &str) -> String {
    format!("/objects/{id}")
}

/// What went wrong with an I/O thread.
#[derive(Debug, thiserror::Error)]
pub enum IothreadError {
    /// The monitor or QEMU itself.
    #[error(transparent)]
    Qmp(#[from] QmpError),
    /// A response does not have the expected form.
    #[error("QEMU did not return {wanted} for `{command}`: `{got}`")]
    Answer {
        command: &'static str,
        /// What it should return.
        wanted: &'static str,
        /// What it did return, or its beginning.
        got: String,
    },
    /// What a monitor reports as an I/O thread has no id that QEMU allows.
    #[error("cannot use the I/O threads that the monitor reports")]
    NoId(#[from] NotAnId),
    /// Two I/O threads have one id.
    #[error("the monitor reports the I/O thread `{id}` twice")]
    SameId { id: ObjectId },
    /// There are more than any QEMU has.
    #[error("the monitor reports {found} I/O threads, more than {MOST_THREADS}")]
    TooMany { found: usize },
    /// There is no such object.
    #[error("there is no iothread `{id}`; QEMU has {}", if .known.is_empty() { "none".to_owned() } else { .known.iter().map(|id| &**id).collect::<Vec<_>>().join(", ") })]
    NoSuch {
        id: String,
        /// Those that there are.
        known: Vec<ObjectId>,
    },
    /// QEMU does not have a version that could be read.
    #[error("the version of QEMU, `{}`, cannot be read", .version.escape_default())]
    Version { version: String },
    /// The property does not take the value.
    #[error("cannot set {property} to {value}: {why}")]
    Value { property: String, value: i64, why: String },
    /// The property is none that the journal has.
    #[error("cannot set {property}: dwell does not know this property; QEMU's qom-set sets it")]
    Unknown { property: String },
    /// A property is to be set twice.
    #[error("{property} is given twice")]
    Twice { property: String },
}

/// The command that sets a property, as QMP has it.
pub fn command(id: &str, property: &str, value: i64) -> String {
    json!({ "execute": "qom-set", "arguments": arguments(id, property, Some(value)) }).to_string()
}

fn arguments(id: &str, property: &str, value: Option<i64>) -> Value {
    match value {
        Some(value) => json!({ "path": path(id), "property": property, "value": value }),
        None => json!({ "path": path(id), "property": property }),
    }
}

/// A running process: its number, and when it was started, as numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// By the kernel's number.
    pub pid: u32,
    /// Since boot \[clock ticks\].
    pub started: u64,
}

/// The process that an I/O thread is in; `None` where `/proc` does not have it, as in another PID namespace.
pub fn process(machine: &dyn Machine, monitor: &Monitor, thread: &IoThread) -> Option<Process> {
    let of_thread = |tid| dwell_machine::process::of_thread(machine, tid);
    let pid = thread.thread_id.and_then(of_thread).or_else(|| monitor.peer_pid())?;
    Some(Process { pid, started: started(machine, pid)? })
}

/// When a process was started; `None` if there is none, or it has ended and its parent has not waited for it.
fn started(machine: &dyn Machine, pid: u32) -> Option<u64> {
    let stat = machine.text(&format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may have any character; the state is the first field after it, the start the
    // twentieth.
    let state = stat.rsplit_once(')')?.1.trim_start();
    if state.starts_with(['Z', 'X']) { None } else { dwell_machine::process::stat_field(&stat, 22) }
}

impl Process {
    /// Whether it still runs.
    pub fn runs(self, machine: &dyn Machine) -> bool {
        started(machine, self.pid) == Some(self.started)
    }
}

/// What is at a monitor now: the thread of this id, and its process.
///
/// # Errors
/// As [`find`].
pub fn present(
    machine: &dyn Writable,
    target: &IothreadTarget,
) -> Result<(IoThread, Option<Process>), IothreadError> {
    let mut monitor = connect(machine, &target.socket)?;
    let thread = find(&mut monitor, &target.id)?;
    let process = process(machine, &monitor, &thread);
    Ok((thread, process))
}

impl IothreadError {
    /// Whether no process serves the socket any more, or it has no such object.
    pub fn is_gone(&self) -> bool {
        match self {
            IothreadError::Qmp(QmpError::Connect { source, .. }) => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
            }
            IothreadError::Qmp(QmpError::Refused { class, .. }) => class == "DeviceNotFound",
            _ => false,
        }
    }
}

fn refused(property: &str, value: i64, why: &dyn std::fmt::Display) -> IothreadError {
    IothreadError::Value { property: property.to_owned(), value, why: why.to_string() }
}

fn release(version: &str) -> Result<Version, IothreadError> {
    Version::parse(version)
        .ok_or_else(|| IothreadError::Version { version: version.chars().take(80).collect() })
}

/// The setting of a thread: its polling properties under the rule of this version.
///
/// # Errors
/// [`IothreadError::Version`], and [`IothreadError::Value`] for a value that is out of the rule's range.
pub fn setting(thread: &IoThread, version: &str) -> Result<Setting, IothreadError> {
    let mut setting = Setting::defaults(Layer::Iothread, release(version)?);
    for (param, _) in setting.clone().iter() {
        let Some(value) = thread.properties.get(param.name) else { continue };
        setting.set(param.name, *value).map_err(|error| refused(param.name, *value, &error))?;
    }
    Ok(setting)
}

/// How long a connection for a few commands may take in all: a controller asks many monitors.
const EXCHANGE: Duration = Duration::from_secs(2);
/// Bytes of events and blank lines in it, before each response: a few hundred events, which take less than a millisecond of
/// CPU time.
const NOISE: usize = 1 << 16;

/// Connects to the monitor at a socket of a machine, for a few commands that are executed at once.
///
/// # Errors
/// [`QmpError`] if nothing listens there, or it is not a monitor.
pub fn connect(machine: &dyn Writable, socket: &str) -> Result<Monitor, IothreadError> {
    let limits = Limits { exchange_within: Some(EXCHANGE), noise_bytes: NOISE, ..Limits::default() };
    Ok(Monitor::connect(&machine.path(socket), limits)?)
}

/// The I/O threads that users made, in QEMU's order. QEMU's own, such as `mon_iothread`, are not listed.
///
/// # Errors
/// [`IothreadError`] if the monitor fails or a response is malformed.
pub fn list(monitor: &mut Monitor) -> Result<Vec<IoThread>, IothreadError> {
    let threads = match monitor.execute("query-iothreads", None) {
        Ok(answer) => from_query(&answer)?,
        Err(error) if error.is_unknown_command() => walk(monitor)?,
        Err(error) => return Err(error.into()),
    };
    let mut ids: Vec<&ObjectId> = threads.iter().map(|thread| &thread.id).collect();
    ids.sort();
    if let Some(same) = ids.windows(2).find(|ids| ids[0] == ids[1]) {
        return Err(IothreadError::SameId { id: same[0].clone() });
    }
    Ok(threads)
}

fn not_too_many(found: usize) -> Result<(), IothreadError> {
    if found > MOST_THREADS { Err(IothreadError::TooMany { found }) } else { Ok(()) }
}

/// The I/O thread of this id.
///
/// # Errors
/// As [`list`], and if there is no such thread.
pub fn find(monitor: &mut Monitor, id: &str) -> Result<IoThread, IothreadError> {
    let all = list(monitor)?;
    let known = all.iter().map(|thread| thread.id.clone()).collect();
    all.into_iter().find(|thread| *thread.id == *id).ok_or(IothreadError::NoSuch { id: id.to_owned(), known })
}

fn from_query(answer: &Value) -> Result<Vec<IoThread>, IothreadError> {
    let wrong = || answer_error("query-iothreads", "a list of iothreads", answer);
    let thread = |item: &Value| {
        let value =
            |property: Property| Some((property.name().to_owned(), item.get(property.name())?.as_i64()?));
        let id = item.get("id").and_then(Value::as_str).ok_or_else(wrong)?;
        Ok(IoThread {
            id: id.parse()?,
            thread_id: item.get("thread-id").and_then(Value::as_u64).and_then(|tid| u32::try_from(tid).ok()),
            properties: Property::ALL.into_iter().filter_map(value).collect(),
        })
    };
    let items = answer.as_array().ok_or_else(wrong)?;
    not_too_many(items.len())?;
    items.iter().map(thread).collect()
}

/// For a qemu-storage-daemon, which does not know `query-iothreads`.
fn walk(monitor: &mut Monitor) -> Result<Vec<IoThread>, IothreadError> {
    let answer = monitor.execute("qom-list", Some(json!({ "path": "/objects" })))?;
    let wrong = || answer_error("qom-list", "a list of properties", &answer);
    let mut threads: Vec<IoThread> = vec![];
    for item in answer.as_array().ok_or_else(wrong)? {
        not_too_many(threads.len())?;
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        let (name, kind) = text("name").zip(text("type")).ok_or_else(wrong)?;
        if kind != "child<iothread>" {
            continue;
        }
        let mut thread = IoThread { id: name.parse()?, thread_id: None, properties: BTreeMap::new() };
        for property in Property::ALL {
            match get(monitor, name, property.name()) {
                Ok(value) => {
                    thread.properties.insert(property.name().to_owned(), value);
                }
                Err(IothreadError::Qmp(error)) if error.is_refusal() => {}
                Err(error) => return Err(error),
            }
        }
        threads.push(thread);
    }
    Ok(threads)
}

/// Reads one property.
///
/// # Errors
/// [`IothreadError`]; with QEMU's words if there is no such property.
pub fn get(monitor: &mut Monitor, id: &str, property: &str) -> Result<i64, IothreadError> {
    let answer = monitor.execute("qom-get", Some(arguments(id, property, None)))?;
    answer.as_i64().ok_or_else(|| answer_error("qom-get", "a whole number", &answer))
}

/// A plan by which the thread has these values, to be checked, journaled, applied and reverted as any other: each is written
/// at most once, and none that it has.
///
/// # Errors
/// With QEMU's words if the thread has no such property; if one is given twice, has a value that QEMU does not take, or is not
/// known to be one of numbers only.
pub fn plan(
    monitor: &mut Monitor,
    thread: &IoThread,
    wanted: &[(String, i64)],
    target: IothreadTarget,
) -> Result<plan::Plan, IothreadError> {
    let present = setting(thread, &monitor.greeting().version)?;
    let (mut to_be, mut others) = (present, vec![]);
    for (index, (property, value)) in wanted.iter().enumerate() {
        if wanted.iter().take(index).any(|(other, _)| other == property) {
            return Err(IothreadError::Twice { property: property.clone() });
        }
        let from = match thread.properties.get(property) {
            Some(value) => *value,
            None => {
                // Refused with the release that it came with, where that is known.
                if Property::from_name(property).is_some() {
                    let mut known = present;
                    known.set(property, *value).map_err(|error| refused(property, *value, &error))?;
                }
                get(monitor, &thread.id, property)?
            }
        };
        let to = thread.stored(property, *value);
        if from == to {
            continue;
        }
        if OTHER_PROPERTIES.contains(&property.as_str()) {
            if to < 0 {
                return Err(refused(property, to, &"it is negative"));
            }
            let (knob, place) = (property.clone(), target.place(property));
            others.push(plan::Write { knob, place, from, to, then_wait_ms: 0, why: None });
        } else if Property::from_name(property).is_some() {
            to_be.set(property, to).map_err(|error| refused(property, to, &error))?;
        } else {
            return Err(IothreadError::Unknown { property: property.clone() });
        }
    }
    let mut plan = plan::Plan::by_hand(present, to_be, Some(target));
    plan.writes.extend(others);
    Ok(plan)
}

/// Requests that block devices have served so far: those of the I/O thread of this id, or of all.
///
/// # Errors
/// [`IothreadError`] if the monitor fails or a response is malformed.
pub fn requests(monitor: &mut Monitor, id: Option<&str>) -> Result<u64, IothreadError> {
    const KINDS: [&str; 4] = ["rd_operations", "wr_operations", "flush_operations", "unmap_operations"];
    let answer = monitor.execute("query-blockstats", None)?;
    let wrong = || answer_error("query-blockstats", "a list of devices", &answer);
    let mut sum = 0u64;
    for device in answer.as_array().ok_or_else(wrong)? {
        if let Some(id) = id
            && !is_of(monitor, device, id)?
        {
            continue;
        }
        let count = |name: &str| device.get("stats")?.get(name)?.as_u64();
        sum = KINDS.iter().filter_map(|name| count(name)).fold(sum, u64::saturating_add);
    }
    Ok(sum)
}

/// Whether a block device is served by an I/O thread, as its property `iothread` says.
fn is_of(monitor: &mut Monitor, device: &Value, id: &str) -> Result<bool, IothreadError> {
    let Some(qdev) = device.get("qdev").and_then(Value::as_str) else { return Ok(false) };
    let arguments = json!({ "path": qdev, "property": "iothread" });
    match monitor.execute("qom-get", Some(arguments)) {
        Ok(link) => Ok(link.as_str() == Some(&path(id))),
        Err(error) if error.is_refusal() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes one property and does not read it back.
///
/// # Errors
/// [`IothreadError`]; with QEMU's words if there is no such property, or it does not take the value.
pub fn put(monitor: &mut Monitor, id: &str, property: &str, value: i64) -> Result<(), IothreadError> {
    read_only::check().map_err(|source| monitor.cannot("set a property by", source))?;
    monitor.execute("qom-set", Some(arguments(id, property, Some(value))))?;
    Ok(())
}

fn answer_error(command: &'static str, wanted: &'static str, got: &Value) -> IothreadError {
    let text: String = got.to_string().chars().take(80).flat_map(char::escape_debug).collect();
    IothreadError::Answer { command, wanted, got: text }
}

/// The polling property that no libvirt can set.
pub const NOT_LIBVIRTS: &str = "poll-weight";

/// The number that libvirt has for an I/O thread: it calls their objects `iothread1`, `iothread2`, …
pub fn libvirt_number(id: &str) -> Option<u32> {
    id.strip_prefix("iothread")?.parse().ok()
}

/// How to have polling values at the next start, and how to set them through libvirt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Persistence {
    /// Over QMP, now: one `qom-set` a property.
    pub qmp: Vec<String>,
    pub virsh: String,
    /// With libvirt, at the next start: inside `<iothreadids>`.
    pub xml: String,
    /// Of that, the element that holds the values.
    pub poll: String,
    /// On QEMU's command line.
    pub object: String,
}

/// The lines for an I/O thread of this id (`ID` where it is not known) and these polling properties.
///
/// libvirt's lines have no [`NOT_LIBVIRTS`], and for an id that is not libvirt's the word NUMBER.
pub fn persistence(id: &str, values: &[(&str, i64)]) -> Persistence {
    let number = libvirt_number(id).map_or_else(|| "NUMBER".to_owned(), |number| number.to_string());
    let of_libvirt: Vec<(&str, i64)> =
        values.iter().filter(|(name, _)| *name != NOT_LIBVIRTS).copied().collect();
    let each = |values: &[(&str, i64)], form: &dyn Fn(&str, i64) -> String, separator: &str| {
        values.iter().map(|(name, value)| form(name, *value)).collect::<Vec<_>>().join(separator)
    };
    let short = |name: &str| name.trim_start_matches("poll-").trim_end_matches("-ns").to_owned();
    let poll = format!("<poll {}/>", each(&of_libvirt, &|n, v| format!("{}='{v}'", short(n)), " "));
    let set = |(name, value): &(&str, i64)| {
        // Written by hand: serde_json would order the names by the alphabet.
        format!(
            "{{\"execute\":\"qom-set\",\"arguments\":{{\"path\":\"{}\",\"property\":\"{name}\",\"value\":{value}}}}}",
            path(id)
        )
    };
    Persistence {
        qmp: values.iter().map(set).collect(),
        virsh: format!(
            "virsh iothreadset DOMAIN {number} {} --live",
            each(&of_libvirt, &|n, v| format!("--{n} {v}"), " ")
        ),
        xml: format!("<iothread id='{number}'>{poll}</iothread>"),
        poll,
        object: format!("-object iothread,id={id},{}", each(values, &|n, v| format!("{n}={v}"), ",")),
    }
}
