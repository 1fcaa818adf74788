//! Tracefs: where it is, which tracepoints there are, and how their samples are laid out.
//!
//! It is looked for in `/proc/mounts`, then at its usual places. Where it is mounted nowhere, a *detached* mount is
//! made: it has no path, only a file descriptor, and ends with it. Nothing is left behind, whatever happens.

use crate::detached::Detached;
use crate::format::Format;
use crate::probe::TraceError;
use crate::rights::has_one_of;
use crate::system::System;
use dwell_machine::{Machine, kernel};
use std::io;

fn remedy_of_refusal(lacks: Option<&'static str>) -> &'static str {
    match lacks {
        Some(READ) => {
            "this process lacks CAP_DAC_READ_SEARCH; run as root, or with CAP_PERFMON and CAP_DAC_READ_SEARCH"
        }
        Some(_) => {
            "this process lacks CAP_SYS_ADMIN; run as root, or mount it before: mount -t tracefs tracefs \
             /sys/kernel/tracing"
        }
        None => "a sandbox or security module forbids it; record outside of it",
    }
}

/// What it takes to read tracefs, which is root's, and to mount it.
const READ: &str = "CAP_DAC_READ_SEARCH";
const MOUNT: &str = "CAP_SYS_ADMIN";

fn remedy_of_category(category: &str) -> &'static str {
    match category {
        "kvm" => "KVM is not there; load kvm_intel or kvm_amd, or record the layer `guest` instead",
        "syscalls" => "it was built without CONFIG_FTRACE_SYSCALLS",
        _ => "it was built without them",
    }
}

/// A tracefs that can be read.
#[derive(Debug)]
pub struct Tracefs {
    /// Where it is; for a mount of our own a path through `/proc/self/fd`, valid in this process only.
    root: String,
    kernel: String,
    /// Keeps a mount of our own alive; `root` leads through it.
    _mount: Option<Detached>,
}

const USUAL_PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

impl Tracefs {
    /// Finds tracefs, or mounts it for this process alone.
    ///
    /// # Errors
    /// Where there is none, or it may not be read or mounted.
    pub fn open(system: &dyn System) -> Result<Tracefs, TraceError> {
        let kernel = kernel::release(system).unwrap_or_else(|| "of unknown release".to_owned());
        let mut refused = None;
        for root in mounted(system).into_iter().chain(USUAL_PLACES.map(str::to_owned)) {
            match system.names(&format!("{root}/events")) {
                Ok(_) => return Ok(Tracefs { root, kernel, _mount: None }),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    refused = Some((format!("read {root}"), error));
                }
                Err(_) => {}
            }
        }
        match system.mount_tracefs() {
            Ok(mount) => Ok(Tracefs { root: mount.path(), kernel, _mount: Some(mount) }),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(TraceError::Lacks(
                "this kernel has no tracefs: it needs CONFIG_FTRACE or CONFIG_EVENT_TRACING; boot a kernel with \
                 tracepoints"
                    .to_owned(),
            )),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let needs = if refused.is_some() { READ } else { MOUNT };
                let (what, source) = refused.unwrap_or_else(|| ("mount tracefs".to_owned(), error));
                Err(not_permitted(system, what, needs, source))
            }
            Err(source) => Err(TraceError::failed("cannot mount tracefs", source)),
        }
    }

    /// Whether there is this tracepoint, as `category:name`.
    pub fn has(&self, machine: &dyn Machine, event: &str) -> bool {
        machine.read(&format!("{}/id", self.path(event))).is_ok()
    }

    fn path(&self, event: &str) -> String {
        let (category, name) = event.split_once(':').unwrap_or(("", event));
        format!("{}/events/{category}/{name}", self.root)
    }

    /// The layout of a tracepoint, given as `category:name`.
    ///
    /// # Errors
    /// Which of the things that can be missing is missing.
    pub fn format(&self, machine: &dyn Machine, event: &str) -> Result<Format, TraceError> {
        Format::parse(&self.format_text(machine, event)?).map_err(|source| {
            let what = format!(
                "cannot understand the format of tracepoint `{event}`; please report this kernel to dwell's developers"
            );
            TraceError::failed(what, source)
        })
    }

    /// The text of an event's format.
    ///
    /// # Errors
    /// Where the kernel has no such event, or it cannot be read.
    pub fn format_text(&self, machine: &dyn Machine, event: &str) -> Result<String, TraceError> {
        let path = format!("{}/format", self.path(event));
        let bytes = machine.read(&path).map_err(|error| self.why(machine, event, error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The error for a field that a tracepoint lacks.
    pub fn missing_field(&self, event: &str, field: &'static str) -> TraceError {
        TraceError::Lacks(format!(
            "kernel {}: tracepoint `{event}` has no field `{field}`; please report this kernel to dwell's developers",
            self.kernel
        ))
    }

    fn why(&self, machine: &dyn Machine, event: &str, error: io::Error) -> TraceError {
        let kernel = &self.kernel;
        match error.kind() {
            io::ErrorKind::NotFound => {
                let (category, _) = event.split_once(':').unwrap_or(("", event));
                match machine.names(&format!("{}/events/{category}", self.root)) {
                    Ok(_) => TraceError::Lacks(format!(
                        "kernel {kernel} has no tracepoint `{event}`; it is too old, or was built without it"
                    )),
                    Err(_) => TraceError::Lacks(format!(
                        "kernel {kernel} has no tracepoints `{category}`: {}",
                        remedy_of_category(category)
                    )),
                }
            }
            io::ErrorKind::PermissionDenied => {
                not_permitted(machine, format!("read the format of {event}"), READ, error)
            }
            _ => TraceError::failed(format!("cannot read the format of {event}"), error),
        }
    }
}

fn not_permitted(machine: &dyn Machine, what: String, needs: &'static str, source: io::Error) -> TraceError {
    let lacks = (!has_one_of(machine, &[needs])).then_some(needs);
    TraceError::failed(format!("no permission to {what}: {}", remedy_of_refusal(lacks)), source)
}

/// The mount points of tracefs, and of debugfs with a tracefs in it.
fn mounted(machine: &dyn Machine) -> Vec<String> {
    let debugfs = mount_points(machine, "debugfs").into_iter().map(|place| format!("{place}/tracing"));
    mount_points(machine, "tracefs").into_iter().chain(debugfs).collect()
}

/// Where file systems of a type are mounted.
pub(crate) fn mount_points(machine: &dyn Machine, filesystem: &str) -> Vec<String> {
    let mounts =
        machine.text("/proc/self/mounts").or_else(|| machine.text("/proc/mounts")).unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2) == Some(&filesystem))
        .filter_map(|fields| fields.get(1).map(|place| unescape(place)))
        .collect()
}

/// `/proc/mounts` writes blank, tab, newline and backslash as three octal digits.
fn unescape(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_owned(), |path, (escaped, plain)| path.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detached::{by_descriptor, in_namespace};
    use crate::tests::fake::Fake;
    use dwell_machine::Sysroot;

    #[test]
    fn private_mounts_show_events_and_leave_nothing_behind() {
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let before = mounts();
        for way in [by_descriptor as fn(&'static str) -> io::Result<Detached>, in_namespace] {
            let mount = match way("tracefs") {
                Ok(mount) => mount,
                Err(error) => {
                    const NAME: &str = "private_mounts_show_events_and_leave_nothing_behind";
                    dwell_testing::skip!("tracing", NAME, "{error}");
                    continue;
                }
            };
            let root = mount.path();
            let here = Sysroot::of_this_machine();
            let kernel = "test".to_owned();
            let tracefs = Tracefs { root, kernel, _mount: Some(mount) };
            let format = tracefs.format(&here, "sched:sched_switch").unwrap();
            assert_eq!(format.name, "sched_switch");
            let missing = tracefs.format(&here, "sched:no_such_thing").unwrap_err().to_string();
            assert!(missing.contains("has no tracepoint `sched:no_such_thing`"), "{missing}");
            assert_eq!(mounts(), before);
        }
        assert_eq!(mounts(), before);
    }

    #[test]
    fn found_where_it_is_mounted() {
        let fake = Fake::new()
            .file("/proc/mounts", "none /odd\\040place tracefs rw 0 0\n")
            .file("/odd place/events/kvm/kvm_vcpu_wakeup/id", "41\n");
        let tracefs = Tracefs::open(&fake).unwrap();
        assert_eq!(tracefs.root, "/odd place");
        assert!(tracefs.has(&fake, "kvm:kvm_vcpu_wakeup"));
        assert!(tracefs._mount.is_none());
    }

    #[test]
    fn found_below_debugfs() {
        let fake = Fake::new()
            .file("/proc/mounts", "none /sys/kernel/debug debugfs rw 0 0\n")
            .file("/sys/kernel/debug/tracing/events/enable", "0\n");
        assert_eq!(Tracefs::open(&fake).unwrap().root, "/sys/kernel/debug/tracing");
    }

    #[test]
    fn each_lack_has_its_own_remedy() {
        let none = Fake::new().mount_fails(libc::ENODEV);
        let error = Tracefs::open(&none).unwrap_err().to_string();
        assert!(error.starts_with("this kernel has no tracefs: "), "{error}");
        let user = Fake::new().mount_fails(libc::EPERM);
        let error = Tracefs::open(&user).unwrap_err().to_string();
        assert!(error.contains("mount tracefs") && error.contains("run as root"), "{error}");

        let bare = Fake::new()
            .file("/proc/sys/kernel/osrelease", "5.4.0\n")
            .file("/sys/kernel/tracing/events/kvm/kvm_exit/format", "name: kvm_exit\n");
        let tracefs = Tracefs::open(&bare).unwrap();
        let text = |event: &str| tracefs.format(&bare, event).unwrap_err().to_string();
        assert_eq!(
            text("kvm:kvm_vcpu_wakeup"),
            "kernel 5.4.0 has no tracepoint `kvm:kvm_vcpu_wakeup`; it is too old, or was built without it"
        );
        assert!(text("syscalls:sys_enter_poll").contains("CONFIG_FTRACE_SYSCALLS"));
        assert!(text("kvm:kvm_exit").contains("report this kernel"));
    }
}
