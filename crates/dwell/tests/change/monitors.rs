//! `dwell control` beside monitors that are held by another client, slow, or flood it: it controls everything else, and ends
//! when it is told to.

use crate::controlled::{decisions, running, signal, values};
use crate::fake_qemu::FakeQemu;
use crate::{Scene, stderr};
use dwell_testing::say;
use nix::sys::signal::Signal;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A monitor, and what it does with a connection.
fn monitor(scene: &Scene, name: &str, does: fn(&mut UnixStream)) -> PathBuf {
    let path = scene.machine.path(&format!("/run/{name}"));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || does(&mut stream.unwrap()));
        }
    });
    format!("/run/{name}").into()
}

fn is_silent(stream: &mut UnixStream) {
    std::thread::sleep(Duration::from_secs(600));
    let _ = stream.write_all(b"too late");
}

fn floods(stream: &mut UnixStream) {
    let events = b"{\"event\": \"E\"}\n\n".repeat(1_000);
    while stream.write_all(&events).is_ok() {}
}

/// Of all threads that it has and had; its name has no space.
fn cpu_time(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.split(' ').collect();
    let ticks: u64 = fields[13..15].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// One after the other, each of them would be waited for for 2 s.
const SILENT: usize = 45;
const ONE_AFTER_THE_OTHER: Duration = Duration::from_secs(90);

#[test]
fn monitors_that_are_silent_or_flood_keep_nothing_else_from_being_controlled() {
    let scene = Scene::guest();
    let mut words = vec!["control", "--mode", "active", "--halt-cost", "20us"];
    let mut monitors: Vec<PathBuf> =
        (0..SILENT).map(|number| monitor(&scene, &format!("silent{number}"), is_silent)).collect();
    monitors.push(monitor(&scene, "floods", floods));
    let before = values(&scene);
    for monitor in &monitors {
        words.extend(["--qmp", monitor.to_str().unwrap()]);
    }
    let begun = Instant::now();
    let mut child = running(&scene, &scene.words(&words), |_| ());
    let ready = begun.elapsed();
    let (begun, before_cpu) = (Instant::now(), cpu_time(child.id()));
    std::thread::sleep(Duration::from_secs(4));
    let share = (cpu_time(child.id()) - before_cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    while decisions(&scene).unwrap() == 0 {
        assert!(begun.elapsed() < ONE_AFTER_THE_OTHER, "it decides nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let begun = Instant::now();
    signal(&child, Signal::SIGTERM);
    assert!(child.wait().unwrap().success());
    let ended = begun.elapsed();
    say!(
        "beside {SILENT} silent monitors and a flood: ready in {ready:.2?}, {:.1} % of a CPU, ended in {ended:.2?}",
        100.0 * share
    );
    assert!(ready < ONE_AFTER_THE_OTHER && ended < ONE_AFTER_THE_OTHER, "{ready:?} {ended:?}");
    assert!(share < 0.25, "{share}");
    assert_eq!(values(&scene), before);
}

/// It takes the first write and does not answer.
#[test]
fn a_qemu_that_falls_silent_keeps_control_from_nothing_but_its_originals() {
    let scene = Scene::guest();
    let (qemu, before) = (FakeQemu::start(&scene.machine), values(&scene));
    qemu.fall_silent_after(Some(0));
    let words = scene.words(&["control", "--mode", "active", "--halt-cost", "20us", "--qmp", "/run/vm.qmp"]);
    let mut child = running(&scene, &words, |command| {
        command.stderr(Stdio::piped());
    });
    let begun = Instant::now();
    while qemu.writes().is_empty() {
        assert!(begun.elapsed() < ONE_AFTER_THE_OTHER && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let original = 32_768;
    assert_ne!(qemu.get("poll-max-ns"), original);
    let begun = Instant::now();
    signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    let (told, ended) = (stderr(&output), begun.elapsed());
    assert!(output.status.code() == Some(2) && ended < ONE_AFTER_THE_OTHER, "{ended:?} {told}");
    assert!(
        told.contains("iothread iothread1 of /run/vm.qmp: some originals could not be restored: "),
        "{told}"
    );
    assert!(told.contains("did not send") && told.contains("; `dwell revert "), "{told}");
    // Where another layer was controlled its originals are in force.
    assert_eq!(values(&scene), before);
    qemu.fall_silent_after(None);
    scene.stdout(&["control", "stop"]);
    assert_eq!(qemu.get("poll-max-ns"), original);
}
