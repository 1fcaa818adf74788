//! Capabilities that are not needed, or not any more.
//!
//! A program with file capabilities is executed by users who may read less than it: what they name is opened with their
//! rights alone. Commands that record nothing have no capability from the start; of the others those that read files
//! that are named by the user get theirs back when they record.
//!
//! A recorder reads names of processes and writes one file, or none. Of root's capabilities it keeps:
//!
//! | capability | for |
//! |---|---|
//! | `CAP_PERFMON`, or `CAP_SYS_ADMIN` before Linux 5.8 | events of threads that start later |
//! | `CAP_BPF` | to attach BPF programs, and to read how often they did not run |
//! | `CAP_SYS_PTRACE`, `CAP_DAC_READ_SEARCH` | the descriptors of VMs of other users, which give the IDs of vCPUs |
//! | `CAP_SYS_NICE` | real-time priority, so that fewer events are lost |
//! | `CAP_DAC_OVERRIDE`, `CAP_FOWNER` | the recording, where its directory belongs to another user |

use crate::changes;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Commands that record, and read no file that the user names.
const RECORD: [&str; 4] = ["record", "timer record", "top", "why"];
/// Commands that may read such a file, or record.
const READ_OR_RECORD: [&str; 6] = ["bound", "control", "doctor", "iothread bench", "tune", "verify"];

/// Leaves a command, by its words, no more than it needs, where a user other than root executes it.
pub(crate) fn are_those_of(command: &str) {
    let is = |names: &[&str]| names.iter().any(|name| changes::is_below(command, name));
    if geteuid().is_root() || is(&RECORD) {
        return;
    }
    if is(&READ_OR_RECORD) {
        effective(CapabilitySet::empty());
    } else {
        let none = CapabilitySet::empty();
        let _ =
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none });
    }
}

/// From now on this thread, and those that it starts, may do what the program was given for recording.
pub(crate) fn record() {
    effective(CapabilitySet::all());
}

/// Reads what the user names as that user.
pub(crate) fn as_user<T>(read: impl FnOnce() -> T) -> T {
    if geteuid().is_root() {
        return read();
    }
    let before = capabilities(None).map_or(CapabilitySet::empty(), |now| now.effective);
    effective(CapabilitySet::empty());
    let read = read();
    effective(before);
    read
}

fn effective(wanted: CapabilitySet) {
    let Ok(now) = capabilities(None) else { return };
    let _ = set_capabilities(None, CapabilitySets { effective: wanted & now.permitted, ..now });
}

/// Drops the capabilities that recording into `output` does not need, for this thread and those it starts. If they
/// cannot be dropped, recording goes on.
pub(crate) fn keep_those_for_recording(output: &Path) {
    keep(is_own_directory(output), CapabilitySet::empty());
}

/// As [`keep_those_for_recording`], where nothing is written and functions of the kernel are named.
pub(crate) fn keep_those_for_watching() {
    keep(true, CapabilitySet::SYSLOG);
}

fn keep(own_directory: bool, more: CapabilitySet) {
    let Ok(now) = capabilities(None) else { return };
    let keep = now.permitted & (needed(now.effective, own_directory) | more);
    let _ = set_capabilities(
        None,
        CapabilitySets {
            effective: keep & now.effective,
            permitted: keep,
            inheritable: CapabilitySet::empty(),
        },
    );
}

fn needed(effective: CapabilitySet, own_directory: bool) -> CapabilitySet {
    let mut needed = CapabilitySet::PERFMON
        | CapabilitySet::BPF
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::SYS_NICE;
    if !effective.contains(CapabilitySet::PERFMON) {
        needed |= CapabilitySet::SYS_ADMIN;
    }
    if !own_directory {
        needed |= CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
    }
    needed
}

/// Whether this user may write into the directory of a file as its owner, without capabilities.
fn is_own_directory(file: &Path) -> bool {
    let directory = match file.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    let may_write = 0o300;
    fs::metadata(directory)
        .is_ok_and(|there| there.uid() == geteuid().as_raw() && there.mode() & may_write == may_write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_recording_takes_is_kept() {
        let all = CapabilitySet::all();
        let kept = needed(all, true);
        for gone in [
            CapabilitySet::SYS_ADMIN,
            CapabilitySet::SYS_MODULE,
            CapabilitySet::SYS_RAWIO,
            CapabilitySet::DAC_OVERRIDE,
            CapabilitySet::SETUID,
            CapabilitySet::NET_ADMIN,
        ] {
            assert!(!kept.contains(gone), "{gone:?}");
        }
        assert!(kept.contains(CapabilitySet::PERFMON));
        assert!(needed(all, false).contains(CapabilitySet::DAC_OVERRIDE));
        assert!(needed(CapabilitySet::SYS_ADMIN, true).contains(CapabilitySet::SYS_ADMIN));
        let dir = tempfile::tempdir().unwrap();
        assert!(is_own_directory(&dir.path().join("a")));
        assert!(!is_own_directory("/no/such/directory/a".as_ref()));
    }
}
