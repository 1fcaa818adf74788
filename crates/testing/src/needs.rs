//! What tests need of the machine, and how it is reported where it is absent.
//!
//! A test that cannot run calls [`skip!`](crate::skip!) and passes, except where `DWELL_NEED` names what it needs: there
//! it fails. `cargo test` ends with one line that counts what was skipped (`.cargo/rustdoc`).

use std::fmt::Arguments;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;

/// What a machine may lack, and what provides it.
const NEEDS: [(&str, &str); 10] = [
    ("root", "run as root"),
    ("kvm", "a /dev/kvm that this user may open"),
    ("qemu", "QEMU and `.ci/qemu`"),
    ("box", "`.ci/qemu && .ci/box && .ci/module` as root"),
    ("tracing", "root, or the capabilities of docs/src/privileges.md"),
    ("debugfs", "a kernel that is not locked down"),
    ("haltpoll", "root in a guest whose cpuidle driver is haltpoll"),
    ("programs", "the packages that `.ci/run` installs"),
    ("idle", "a machine with a CPU that idles now and then"),
    ("machine", "two CPUs, io_uring, direct I/O and ptrace"),
];

/// Passes a test, or a part of it, that this machine cannot run: `skip!(need, test, "cause {}", …)`.
///
/// # Panics
/// If `DWELL_NEED` names what it needs, or nothing has that name.
#[macro_export]
macro_rules! skip {
    ($need:expr, $test:expr, $($cause:tt)+) => {
        $crate::needs::skipped($need, &$test, ::std::format_args!($($cause)+))
    };
}

/// As the macro [`skip!`](crate::skip!).
///
/// # Panics
/// As there.
pub fn skipped(need: &str, test: &str, cause: Arguments<'_>) {
    let how = NEEDS.iter().find(|(name, _)| *name == need).map(|(_, how)| how);
    let how = how.unwrap_or_else(|| panic!("nothing is named {need}"));
    let asked = std::env::var("DWELL_NEED").unwrap_or_default();
    assert!(!is_in(need, &asked), "{test} needs {need}, which DWELL_NEED asks for: {cause}");
    crate::say!("SKIP {need}: {test}: {cause}");
    // Where there is no such folder, nobody prints a summary.
    let file = file().and_then(|path| OpenOptions::new().create(true).append(true).open(path).ok());
    let _ = file.map(|mut file| file.write_all(format!("{need} ({how})\n").as_bytes()));
}

/// What the program reports where this machine cannot be recorded, or had nothing to record, and the need.
const UNRECORDED: [(&str, &str); 7] = [
    ("every CPU was busy", "idle"),
    ("nothing idled", "idle"),
    ("no permission to ", "tracing"),
    ("has no tracepoint", "tracing"),
    ("this kernel has no tracefs", "tracing"),
    ("perf_event_open is not available", "tracing"),
    ("cannot map a ring buffer", "tracing"),
];

/// Whether the program recorded something. Otherwise the test, or a part of it, is skipped: for want of an idle CPU
/// where all of them were busy, which is what a shared machine may be at any time, or for want of tracing.
///
/// # Panics
/// As [`skip!`](crate::skip!); if the program failed for any other reason.
#[must_use]
pub fn recorded(output: &Output, test: &str) -> bool {
    if output.status.success() {
        return true;
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let need = unrecorded(output.status.code(), &why);
    let need = need.unwrap_or_else(|| panic!("{test}: {}: {why}", output.status));
    skipped(need, test, format_args!("{}", why.trim()));
    false
}

/// What the machine lacks where the program ended with this exit code and these errors; `None` if it failed otherwise.
fn unrecorded(code: Option<i32>, why: &str) -> Option<&'static str> {
    let named = UNRECORDED.iter().find(|(text, _)| why.contains(text)).map(|(_, need)| *need);
    named.filter(|_| code == Some(2))
}

fn is_in(need: &str, list: &str) -> bool {
    list.split(',').any(|name| name.trim() == need)
}

/// The file of this run of cargo: all programs that a shell starts as one job have one process group.
fn file() -> Option<PathBuf> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // PID (COMMAND) STATE PARENT GROUP …; a command may contain anything, parentheses too.
    let group = stat.rsplit_once(") ")?.1.split(' ').nth(2)?.to_owned();
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, PathBuf::from);
    target.is_dir().then(|| target.join(format!("skipped-{group}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_a_whole_word_of_the_list() {
        assert!(is_in("kvm", "root, kvm") && is_in("kvm", "kvm"));
        assert!(!is_in("kvm", "") && !is_in("box", "boxes,xbox"));
    }

    #[test]
    fn only_a_refusal_to_record_is_a_reason_to_skip() {
        let busy = "dwell: nothing was recorded: every CPU was busy; record for longer";
        assert_eq!(unrecorded(Some(2), busy), Some("idle"));
        let refused = "dwell: no permission to sample tracepoints of all processes: run as root";
        assert_eq!(unrecorded(Some(2), refused), Some("tracing"));
        // A panic, a signal, another error.
        assert_eq!(unrecorded(Some(101), busy), None);
        assert_eq!(unrecorded(None, refused), None);
        assert_eq!(unrecorded(Some(2), "dwell: cannot write out.parquet: no space left on device"), None);
    }

    #[test]
    #[should_panic(expected = "nothing is named luck")]
    fn a_need_that_is_none_is_an_error() {
        skipped("luck", "a test", format_args!("there is none"));
    }
}
