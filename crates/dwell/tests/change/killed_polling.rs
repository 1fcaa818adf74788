//! `dwell control` of an I/O thread, killed at every system call that writes, to a file or to a monitor: the properties are
//! the originals or those of an open lease, and afterwards the originals.

use crate::killed::{Calls, End, at_every, run, run_on};
use crate::pairs::Machine;
use dwell_testing::say;
use nix::errno::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn control(duration: &'static str) -> [&'static str; 9] {
    let words = ["control", "--mode", "active", "--layer", "iothread", "--qmp", "/run/vm.qmp", "--duration"];
    std::array::from_fn(|at| words.get(at).copied().unwrap_or(duration))
}

fn is_restored(machine: &Machine, last: usize, end: &End) -> bool {
    if let End::Exited { code, stops } = end {
        assert!(*code == 0 && *stops < last, "{code} after {stops} stops");
    }
    machine.check(&format!("killed at stop {last}"));
    machine.is_as_before(&format!("killed at stop {last}"));
    *end == End::Killed
}

/// Killed at this stop from its start.
fn from_the_start(last: usize) -> Result<bool, Errno> {
    let machine = Machine::new();
    let end = run(&machine.scene.words(&control("200ms")), last, Calls::Writing)?;
    Ok(is_restored(&machine, last, &end))
}

/// Killed at this stop from its first probe on, for which it makes the thread not poll. `probing` counts the cases in which
/// it did not poll then.
fn from_the_first_probe(last: usize, probing: &AtomicUsize) -> Result<bool, Errno> {
    let machine = Machine::new();
    let mut child = machine.start(&control("3s"));
    let begun = Instant::now();
    while machine.qemu.writes().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    let end = run_on(&child, last, Calls::Writing)?;
    probing.fetch_add(usize::from(machine.qemu.get("poll-max-ns") == 0), Ordering::Relaxed);
    Ok(is_restored(&machine, last, &end))
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn killed_at_any_write_of_a_control_of_an_iothread_everything_is_restored() {
    const NAME: &str = "killed_at_any_write_of_a_control_of_an_iothread_everything_is_restored";
    let probing = AtomicUsize::new(0);
    let cases = at_every(1, from_the_start)
        .and_then(|first| Some((first, at_every(1, |last| from_the_first_probe(last, &probing))?)));
    let Some((first, later)) = cases else {
        return dwell_testing::skip!("machine", NAME, "ptrace is not permitted");
    };
    let probing = probing.into_inner();
    say!(
        "kill -9 of dwell control of an I/O thread at each system call that writes: {first} from its start, and {later} from its \
         first probe, in {probing} of them the thread did not poll then: originals restored in all of them"
    );
    assert!(first > 20 && later > 20, "{first} {later}");
}
