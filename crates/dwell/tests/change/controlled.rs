//! `dwell control`, killed at every system call and under whatever else a machine may do to it: the originals
//! are in force afterwards, or what a person has set.
//!
//! What is controlled is a host below a directory. What is observed is a vCPU of this machine, if it has KVM:
//! then there are changes.

use crate::killed::{Calls, End, at_every, run, run_on};
use crate::{FORKS, Scene, output, start, stderr};
use dwell_control::{Controller, Terms};
use dwell_knobs::journal::{self, Entry, STATE_DIRECTORY};
use dwell_knobs::lease::{Holder, Lease, Subject};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_stats::SplitMix64;
use dwell_testing::fixture::{Fixture, host_plan};
use dwell_testing::process::Process;
use dwell_testing::vcpu::HaltingVcpu;
use dwell_testing::{say, shim};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const KERNEL: &str = "6.18.44";
pub(crate) const HOST: &str = "/sys/module/kvm/parameters";
/// Between two wakeups of the vCPU, and a halt cost at which it should have polled.
const GAP_NS: u64 = 100_000;
const HALT_COST: &str = "1ms";

/// A host whose VMs do not poll: the vCPU's maximum is 0, whatever else this machine does. A setting that
/// polls is then thought to gain, and a few periods later is not trusted, as the vCPU still does not poll.
fn host() -> Scene {
    let scene = Scene::new(Fixture::host(KERNEL), &host_plan("6.18"));
    scene.machine.write(&format!("{HOST}/halt_poll_ns"), "0\n");
    scene
}

/// A vCPU of this machine that halts again and again, while `work` runs. Where there is no KVM it runs alone.
fn beside_a_vcpu<T>(work: impl FnOnce() -> T) -> T {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, (made, made_by)) = (&stop, channel());
        scope.spawn(move || {
            let vcpu = HaltingVcpu::new(Some(0));
            made.send(vcpu.as_ref().map(|_| ()).map_err(String::clone)).unwrap();
            drop(vcpu.map(|mut vcpu| vcpu.run_until(stop, GAP_NS)));
        });
        let _stop = Stop(stop);
        if let Err(why) = made_by.recv().unwrap() {
            say!("no vCPU here: {why}");
        }
        work()
    })
}

fn control(scene: &Scene, more: &[&str]) -> Vec<String> {
    let words = ["control", "--mode", "active", "--layer", "host", "--halt-cost", HALT_COST];
    scene.words(&[&words[..], more].concat())
}

/// What is below the directory, without the line ends: a shorter value is padded with them where a file keeps
/// its length.
pub(crate) fn values(scene: &Scene) -> BTreeMap<PathBuf, String> {
    let all = scene.machine.snapshot();
    all.into_iter().map(|(path, text)| (path, text.trim().to_owned())).collect()
}

/// Whether some parameter is not as at the start. Panics where it has a value that no open lease has: then somebody has
/// written what could not be taken back.
fn is_changed(scene: &Scene, before: &BTreeMap<PathBuf, String>) -> bool {
    let changes = match scene.machine.path(STATE_DIRECTORY).exists() {
        true => journal::read_all(&scene.machine.machine, STATE_DIRECTORY).unwrap(),
        false => vec![],
    };
    let now = values(scene);
    for (path, value) in now.iter().filter(|(path, value)| before.get(*path) != Some(value)) {
        let mut open = changes.iter().filter(|change| change.lease && change.state.is_open());
        let is_it = |entry: &&Entry| path.ends_with(entry.knob.as_deref().unwrap_or_default());
        let leased = open.any(|change| {
            let mut entries = change.entries.iter().filter(is_it);
            entries.any(|entry| entry.between.iter().any(|one| one == value.trim()))
        });
        assert!(leased, "{} = {value}, and no open lease has it", path.display());
    }
    now != *before
}

/// Killed at this stop from its start, without a change: whether there was such a stop.
fn from_the_start(last: usize, calls: Calls) -> Result<bool, Errno> {
    let scene = host();
    let before = values(&scene);
    let end = run(&control(&scene, &["--duration", "20ms"]), last, calls)?;
    is_restored(&scene, &before, last, &end);
    Ok(end == End::Killed)
}

/// Killed at this stop from its first decision. `changed` counts the cases in which another setting was in force then.
fn from_the_first_decision(last: usize, calls: Calls, changed: &AtomicUsize) -> Result<bool, Errno> {
    let scene = host();
    let before = values(&scene);
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args(control(&scene, &["--duration", "3s"])).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = start(&mut command);
    let begun = Instant::now();
    while decisions(&scene).is_none_or(|made| made == 0) {
        assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    let end = run_on(&child, last, calls)?;
    changed.fetch_add(usize::from(is_changed(&scene, &before)), Ordering::Relaxed);
    is_restored(&scene, &before, last, &end);
    Ok(end == End::Killed)
}

/// What the controller answers; `None` if it does not yet.
pub(crate) fn status(scene: &Scene) -> Option<Value> {
    let mut socket = UnixStream::connect(scene.machine.path("/var/lib/dwell/control.sock")).ok()?;
    socket.write_all(b"status\n").ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    serde_json::from_str(&answer).ok()
}

/// How many decisions it has made.
pub(crate) fn decisions(scene: &Scene) -> Option<u64> {
    status(scene)?["layers"][0]["decisions"].as_u64()
}

fn is_restored(scene: &Scene, before: &BTreeMap<PathBuf, String>, last: usize, end: &End) {
    if let End::Exited { code, stops } = end {
        assert!(*code == 0 && *stops < last, "{code} after {stops} stops");
        assert_eq!(values(scene), *before, "ended by itself");
    }
    is_changed(scene, before);
    // Every other time a person has set something in the meantime.
    let (knob, person) = (format!("{HOST}/halt_poll_ns"), last.is_multiple_of(2));
    if person {
        scene.machine.write(&knob, "77777\n");
    }
    let restored = scene.run(&["control", "stop"]);
    assert!(restored.status.success(), "killed at stop {last}: {}", stderr(&restored));
    if person {
        assert_eq!(scene.machine.text(&knob).as_deref(), Some("77777\n"), "killed at stop {last}");
        scene.machine.write(&knob, &before[&scene.machine.path(&knob)]);
    }
    assert_eq!(values(scene), *before, "killed at stop {last}");
    let again = scene.run(&["control", "stop"]);
    assert!(again.status.success() && again.stdout.is_empty(), "{}", stderr(&again));
}

/// Kills at one stop in `step`.
fn kill_and_restore(name: &str, calls: Calls, step: usize) {
    let changed = AtomicUsize::new(0);
    let cases = beside_a_vcpu(|| {
        let first = at_every(step, |last| from_the_start(last, calls))?;
        Some([first, at_every(step, |last| from_the_first_decision(last, calls, &changed))?])
    });
    let Some([first, later]) = cases else {
        dwell_testing::skip!("machine", name, "ptrace is not permitted");
        return;
    };
    let changed = changed.into_inner();
    let which = match (calls, step) {
        (Calls::Writing, _) => "each system call that writes".to_owned(),
        (Calls::All, 1) => "each system call of all threads".to_owned(),
        (Calls::All, step) => format!("one in {step} of the system calls of all threads"),
    };
    say!(
        "kill -9 of dwell control at entry and exit of {which}: {first} from its start, and {later} from its first decision: originals \
         restored in all of them, or the person's value; another setting was in force in {changed}"
    );
    assert!(first * step > 50, "{first}");
    if changed == 0 {
        say!("UNKNOWN {name}: no change was made (no KVM, or no time to halt)");
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn killed_at_any_system_call_that_writes_control_is_restored() {
    kill_and_restore("killed_at_any_system_call_that_writes_control_is_restored", Calls::Writing, 1);
}

/// All of them with `DWELL_KILL_ALL=1`, which takes long.
#[test]
#[ignore = "measures time; .ci/long runs it"]
fn killed_at_any_system_call_of_any_thread_control_is_restored() {
    let all = std::env::var("DWELL_KILL_ALL").is_ok_and(|value| value == "1");
    let step = if all { 1 } else { 41 };
    kill_and_restore("killed_at_any_system_call_of_any_thread_control_is_restored", Calls::All, step);
}

/// Killed at this stop while it adopts what another has left, and while it leaves it: the values that were
/// left are in force all the time. `adoptable` counts the cases in which the next start would adopt them.
fn from_what_was_left(last: usize, calls: Calls, adoptable: &AtomicUsize) -> Result<bool, Errno> {
    let scene = Scene::guest();
    scene.machine.write("/keep.toml", "on_exit = \"keep\"\n");
    let before = values(&scene);
    let left = {
        let _no_forks = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        leave(&scene)
    };
    assert_ne!(left, before);
    let config = scene.machine.path("/keep.toml");
    let words = guest(&scene, &["--config", config.to_str().unwrap(), "--duration", "20ms"]);
    let end = run(&words, last, calls)?;
    if let End::Exited { code, .. } = end {
        assert_eq!(code, 0);
    }
    assert_eq!(values(&scene), left, "killed at stop {last}");
    is_changed(&scene, &before);
    let run = |words: &[&str]| {
        let restored = scene.run(words);
        assert!(restored.status.success(), "killed at stop {last}: {}", stderr(&restored));
        restored
    };
    run(&["control", "stop", "--unless-kept"]);
    let now = values(&scene);
    assert!(now == left || now == before, "killed at stop {last}");
    adoptable.fetch_add(usize::from(now == left), Ordering::Relaxed);
    run(&["control", "stop"]);
    assert_eq!(values(&scene), before, "killed at stop {last}");
    assert!(run(&["control", "stop"]).stdout.is_empty());
    Ok(end == End::Killed)
}

/// The lease of a controller that has set *never poll*.
pub(crate) fn leased(scene: &Scene) -> Lease {
    let originals = Setting::defaults(Layer::Guest, Version::parse(KERNEL).unwrap());
    let controller = Controller::new(originals, Terms::at(Nanos(20_000))).unwrap();
    let (machine, settings) = (&scene.machine.machine, controller.candidates());
    let holder = Holder::begin(machine, STATE_DIRECTORY).unwrap();
    let mut lease =
        Lease::take(machine, &holder, &Subject::Layer(Layer::Guest), originals, settings).unwrap();
    lease.set(machine, &settings[1]).unwrap();
    let differ =
        settings[1].iter().zip(originals.iter()).filter(|(one, other)| one.1 != other.1).count() as u64;
    assert_eq!((lease.take_writes(), lease.take_writes()), (differ, 0));
    lease
}

/// What a controller leaves that ends then.
fn leave(scene: &Scene) -> BTreeMap<PathBuf, String> {
    assert!(leased(scene).leave(&scene.machine.machine).unwrap());
    values(scene)
}

#[test]
fn killed_at_any_system_call_of_an_adoption_nothing_is_lost() {
    const NAME: &str = "killed_at_any_system_call_of_an_adoption_nothing_is_lost";
    let adoptable = AtomicUsize::new(0);
    let Some(cases) = at_every(1, |last| from_what_was_left(last, Calls::Writing, &adoptable)) else {
        return dwell_testing::skip!("machine", NAME, "ptrace is not permitted");
    };
    let adoptable = adoptable.into_inner();
    say!(
        "kill -9 of dwell control at each system call that writes, from the adoption of a setting to its end: {cases}, in {adoptable} \
         of them the next start adopts it; the originals restored in all of them"
    );
    assert!(cases > 30 && adoptable > 5 && adoptable < cases, "{cases} {adoptable}");
}

/// A running controller of a machine below a directory, that has taken its lease.
pub(crate) fn running(scene: &Scene, words: &[String], prepare: impl FnOnce(&mut Command)) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
    prepare(&mut command);
    let mut child = start(&mut command);
    let begun = Instant::now();
    while decisions(scene).is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

pub(crate) fn signal(child: &Process, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

fn guest(scene: &Scene, more: &[&str]) -> Vec<String> {
    scene.words(&[&["control", "--mode", "active", "--layer", "guest"], more].concat())
}

#[test]
fn a_vm_that_goes_away_ends_nothing_and_leaves_the_originals() {
    const NAME: &str = "a_vm_that_goes_away_ends_nothing_and_leaves_the_originals";
    if let Err(why) = HaltingVcpu::new(None) {
        return dwell_testing::skip!("kvm", NAME, "{why}");
    }
    let scene = host();
    let before = values(&scene);
    let mut child = beside_a_vcpu(|| {
        let child = running(&scene, &control(&scene, &[]), |_| ());
        // Until it has changed something, if it does.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) && !is_changed(&scene, &before) {
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    });
    let made = decisions(&scene).unwrap();
    let begun = Instant::now();
    while decisions(&scene).unwrap() <= made {
        assert!(begun.elapsed() < Duration::from_secs(60), "no decision without a VM");
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(&child, Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(values(&scene), before);
}

#[test]
fn on_a_full_disk_nothing_is_taken_and_everything_is_given_back() {
    const NAME: &str = "on_a_full_disk_nothing_is_taken_and_everything_is_given_back";
    // In a mount namespace of its own: the file system is gone when the script has ended.
    const SCRIPT: &str = r#"
        root=$1 state=$1/var/lib/dwell knob=$1/sys/module/haltpoll/parameters/guest_halt_poll_ns dwell=$2
        mkdir -p "$state" && mount -t tmpfs -o size=1m,mode=700 tmpfs "$state" || { echo "no mount"; exit; }
        full() { head -c 2M /dev/zero >"$state/full" 2>/dev/null; }
        show() { echo "$1 $2 $(cat "$knob" | tr -d ' \n')"; }
        up() { for try in $(seq 600); do "$dwell" status --control --format json --sysroot "$root" 2>/dev/null | grep -q '"controls"' && return; sleep 0.1; done; }
        full; "$dwell" control --mode active --layer guest --sysroot "$1" --duration 50ms >&2; show taken $?
        rm "$state/full"
        "$dwell" control --mode active --layer guest --sysroot "$1" >&2 & pid=$!
        up
        full; kill $pid; wait $pid; show ended $?
        rm "$state/full"; "$dwell" control stop --sysroot "$1" >&2; show restored $?
        "$dwell" control --mode active --layer guest --sysroot "$1" >&2 & pid=$!
        up
        kill -9 $pid; wait $pid; echo 0 >"$knob"; show killed 0
        full; "$dwell" control stop --sysroot "$1" >&2; show full $?
        rm "$state/full"; "$dwell" control stop --sysroot "$1" >&2; show again $?
        "$dwell" status --exit-code --sysroot "$1" >&2; show status $?
    "#;
    let scene = Scene::guest();
    let root = scene.machine.path("/");
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "sh", "-c", SCRIPT, "sh"])
        .arg(root.as_os_str().to_str().unwrap().trim_end_matches('/'));
    let output = output(unshare.arg(env!("CARGO_BIN_EXE_dwell")));
    let (told, errors) = (String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output));
    if !output.status.success() || told.contains("no mount") {
        dwell_testing::skip!("root", NAME, "no mount namespace: {}", errors.trim());
        return;
    }
    let lines: Vec<&str> = told.lines().collect();
    say!("{NAME}: {}", lines.join(", "));
    assert_eq!(lines[0], "taken 2 200000", "{errors}");
    assert!(errors.contains("nothing was changed"), "{errors}");
    // Restored, whether or not the end could be recorded.
    assert!(lines[1].ends_with(" 200000"), "{told}{errors}");
    assert_eq!(lines[2], "restored 0 200000", "{errors}");
    assert_eq!(lines[3], "killed 0 0", "{errors}");
    assert!(lines[4].starts_with("full "), "{told}");
    assert_eq!(lines[5..], ["again 0 200000", "status 0 200000"], "{errors}");
}

#[test]
fn counters_that_are_torn_and_run_backwards_do_no_harm() {
    const NAME: &str = "counters_that_are_torn_and_run_backwards_do_no_harm";
    let scene = Scene::guest();
    // Its bursts are of this machine.
    let mut record = Command::new(env!("CARGO_BIN_EXE_dwell"));
    record.args(["record", "guest", "--duration", "50ms", "-o"]).arg(scene.machine.path("/burst"));
    let recorded = output(&mut record);
    if stderr(&recorded).contains("no permission") {
        return dwell_testing::skip!("tracing", NAME, "{}", stderr(&recorded).trim());
    }
    // It has a file where something idled.
    let _ = std::fs::remove_file(scene.machine.path("/burst"));
    let file = |cpu: u32, state: u32, what: &str| {
        format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/{what}")
    };
    let files: Vec<String> = (0..2)
        .flat_map(|cpu| (0..2).flat_map(move |state| ["usage", "time"].map(|what| (cpu, state, what))))
        .map(|(cpu, state, what)| file(cpu, state, what))
        .collect();
    files.iter().for_each(|file| scene.machine.write(file, "7\n"));
    let parameters =
        || values(&scene).into_iter().filter(|(path, _)| path.to_str().unwrap().contains("haltpoll"));
    let before: BTreeMap<PathBuf, String> = parameters().collect();
    let mut child = running(&scene, &guest(&scene, &["--halt-cost", "1ms"]), |_| ());
    let mut numbers = SplitMix64::new(3);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        for file in &files {
            let number = numbers.bits();
            let text = match number % 6 {
                0 => String::new(),
                1 => "18446744073709551615\n".to_owned(),
                2 => "-5\n".to_owned(),
                3 => "0".to_owned(),
                4 => format!("{}\n", number >> 20),
                _ => "12\n34x".to_owned(),
            };
            scene.machine.write(file, &text);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(decisions(&scene).unwrap() > 0);
    signal(&child, Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(parameters().collect::<BTreeMap<_, _>>(), before);
}

/// The calendar clock goes forwards and backwards by years at each look, the monotonic one as ever.
const JUMPS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (!result && clock == CLOCK_REALTIME)
        time->tv_sec += (random() % 200 - 100) * 31536000L;
    return result;
}
"#;

#[test]
fn a_calendar_that_jumps_by_years_changes_nothing() {
    const NAME: &str = "a_calendar_that_jumps_by_years_changes_nothing";
    let folder = tempfile::tempdir().unwrap();
    let library = match shim::compiled(folder.path(), JUMPS) {
        Ok(library) => library,
        Err(cause) => {
            dwell_testing::skip!("programs", NAME, "{cause}");
            return;
        }
    };
    for _ in 0..5 {
        let scene = Scene::guest();
        let before = values(&scene);
        let jumping = |command: &mut Command| {
            command.env("LD_PRELOAD", &library);
        };
        let mut child = running(&scene, &guest(&scene, &[]), jumping);
        let (begun, first) = (Instant::now(), decisions(&scene).unwrap());
        std::thread::sleep(Duration::from_secs(2));
        let made = || decisions(&scene).unwrap() - first;
        while made() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it decides nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
        let made = made();
        // 10, 20, 40 … ms after the start, then one a second.
        let most = 8 + begun.elapsed().as_secs();
        assert!(made <= most, "{made} decisions");
        signal(&child, Signal::SIGTERM);
        assert!(child.wait().unwrap().success());
        let mut history = Command::new(env!("CARGO_BIN_EXE_dwell"));
        jumping(history.args(scene.words(&["status", "--history"])));
        assert!(output(&mut history).status.success());
        assert_eq!(values(&scene), before);
    }
}

#[test]
fn reconfigured_again_and_again_it_loses_no_descriptor() {
    let scene = Scene::guest();
    let file = scene.machine.path("/control.toml");
    let write = |number: usize| {
        let text = format!("mode = \"active\"\nlayers = [\"guest\"]\nhalt_cost = \"{}us\"\n", 5 + number);
        fs::write(&file, text).unwrap();
    };
    write(0);
    let words = scene.words(&["control", "--config", file.to_str().unwrap()]);
    let mut child = running(&scene, &words, |_| ());
    let open = || fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count();
    let before = open();
    for number in 1..20 {
        write(number);
        signal(&child, Signal::SIGHUP);
        let begun = Instant::now();
        while status(&scene).is_none_or(|status| status["halt_cost_ns"] != 1_000 * (5 + number)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "not reconfigured");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // A decision has files open for a moment.
    let begun = Instant::now();
    while open() != before {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} descriptors instead of {before}", open());
        std::thread::sleep(Duration::from_millis(2));
    }
    signal(&child, Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
    let mut left = scene.json(&["status"]);
    assert_eq!(left.take().as_array().map(Vec::len), Some(0));
}
