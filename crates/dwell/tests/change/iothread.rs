//! `dwell iothread set`: through the journal, as every other change; and what `tune` knows of I/O threads.

use crate::fake_qemu::FakeQemu;
use crate::{FORKS, Scene, start};
use dwell_knobs::iothread;
use dwell_knobs::journal::STATE_DIRECTORY;
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::lease::{AdoptError, Holder, Lease, Subject};
use dwell_testing::fixture::{Fixture, guest_plan};
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

fn scene() -> (Scene, FakeQemu) {
    let machine = Fixture::guest();
    let qemu = FakeQemu::start(&machine);
    (Scene::new(machine, &guest_plan()), qemu)
}

const SET: [&str; 5] = ["iothread", "set", "--qmp", "/run/vm.qmp", "iothread1"];

#[test]
fn an_iothread_is_set_through_the_journal_listed_and_taken_back() {
    let (scene, qemu) = scene();
    let set = |more: &[&str]| scene.json(&[&SET, more].concat());
    let values = ["poll-max-ns=300us", "poll-grow=4", "aio-max-batch=8"];
    let shown = set(&[&values[..], &["--dry-run"]].concat());
    assert_eq!((shown["change"].is_null(), shown["changes"].as_array().unwrap().len()), (true, 3));
    assert!(qemu.writes().is_empty() && !scene.machine.path("/var/lib/dwell").exists());

    let done = set(&values);
    assert_eq!(done["change"], 1);
    assert!(done["command_line"].as_str().unwrap().ends_with(",poll-shrink=0,aio-max-batch=8"), "{done}");
    assert_eq!(qemu.writes(), ["poll-max-ns=300000", "poll-grow=4", "aio-max-batch=8"]);
    let status = scene.json(&["status", "--exit-code"]);
    let places = status[0]["places"].as_array().unwrap();
    assert_eq!(places.len(), 3);
    assert!(places.iter().all(|place| place["standing"] == "in_force"), "{status}");
    // What is there already is not written, for QEMU forgets what it has learnt with every write.
    assert!(set(&values)["change"].is_null());
    let as_of_qemu = ["iothread", "set", "--qmp", "unix:/run/vm.qmp,server=on,wait=off", "iothread1"];
    assert!(scene.json(&[&as_of_qemu[..], &values].concat())["change"].is_null());
    assert_eq!(qemu.writes().len(), 3);

    let reverted = scene.json(&["revert"]);
    assert!(reverted.as_array().unwrap().iter().all(|row| row["outcome"] == "restored"), "{reverted}");
    let values = ["poll-max-ns", "poll-grow", "aio-max-batch"].map(|name| qemu.get(name));
    assert_eq!(values, [32_768, 0, 0]);
}

#[test]
fn a_property_of_a_later_qemu_is_refused_with_its_release() {
    let (scene, qemu) = scene();
    let told = scene.refused(&[&SET[..], &["poll-max-ns=1us", "poll-weight=3"]].concat());
    assert!(told.contains("poll-weight does not exist in 7.2.22; it came with 11.1"), "{told}");
    assert!(qemu.writes().is_empty());
}

#[test]
fn libvirts_lines_are_for_threads_of_libvirt() {
    let (scene, qemu) = scene();
    let dry = |id: &'static str| [&SET[..4], &[id, "poll-grow=4", "--dry-run"]].concat();
    assert!(scene.stdout(&dry("iothread1")).contains("virsh iothreadset DOMAIN 1 "));
    qemu.rename("io0");
    let text = scene.stdout(&dry("io0"));
    assert!(text.contains("-object iothread,id=io0") && !text.contains("libvirt"), "{text}");
    assert!(scene.json(&dry("io0"))["virsh"].is_null());
}

#[test]
fn a_value_out_of_range_or_changed_by_others_is_left() {
    let (scene, qemu) = scene();
    for (value, why) in [
        ("poll-grow=-1", "cannot set poll-grow to -1"),
        ("aio-max-batch=-1", "cannot set aio-max-batch to -1"),
        ("poll-fast=1", "Property 'iothread.poll-fast' not found"),
    ] {
        let told = scene.refused(&[&SET[..], &["poll-max-ns=5us", value]].concat());
        assert!(told.contains(why) && told.contains("nothing was changed"), "{told}");
    }
    assert!(qemu.writes().is_empty() && !scene.machine.path("/var/lib/dwell").exists());
    scene.stdout(&[&SET[..], &["poll-max-ns=5us"]].concat());
    qemu.set("poll-max-ns", 7_000);
    let output = scene.run(&["revert"]);
    assert!(!output.status.success());
    assert_eq!(qemu.get("poll-max-ns"), 7_000);
}

/// Killed with SIGKILL before its first write is answered, and before its second.
#[test]
fn killed_in_the_middle_of_a_set_revert_restores_everything() {
    for writes in [0, 1] {
        let (scene, qemu) = scene();
        qemu.fall_silent_after(Some(writes));
        let words = scene.words(&[&SET[..], &["poll-max-ns=300us", "poll-grow=4"]].concat());
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let command = command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = start(command);
        let begun = Instant::now();
        while qemu.writes().len() <= writes {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not write");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        qemu.fall_silent_after(None);
        assert_eq!(qemu.get("poll-max-ns"), 300_000);
        assert_eq!(scene.json(&["status"])[0]["state"], "unfinished");
        scene.stdout(&["revert"]);
        assert_eq!((qemu.get("poll-max-ns"), qemu.get("poll-grow")), (32_768, 0));
    }
}

/// A recording of a thread of this name, with idle times that a window of 100 us would poll through and one
/// of 32 us does not.
fn recording(scene: &Scene, name: &str, thread: &str) -> String {
    let mut csv = "idler,start_ns,idle_ns\n".to_owned();
    let mut now = 1_000;
    for episode in 0..4_000u64 {
        let idle = 45_000 + episode * 7_919 % 10_000;
        writeln!(csv, "{thread},{now},{idle}").unwrap();
        now += idle + 5_000;
    }
    let (table, file) = (scene.plan.with_extension("csv"), scene.plan.with_file_name(name));
    std::fs::write(&table, csv).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args([
        "import",
        "--as",
        "csv",
        table.to_str().unwrap(),
        "--layer",
        "iothread",
        "--in-force",
        "poll-max-ns=32768",
    ]);
    let output = crate::output(
        command.args(["--in-force", "poll-grow=0", "--in-force", "poll-shrink=0", "-o"]).arg(&file),
    );
    assert!(output.status.success(), "{}", crate::stderr(&output));
    file.to_str().unwrap().to_owned()
}

fn tune(words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    crate::output(command.arg("tune").args(words).args(["--halt-cost", "100us"]))
}

#[test]
fn a_thread_that_is_not_qemus_gets_no_lines_for_qemu() {
    let (scene, _qemu) = scene();
    for (thread, lines) in
        [("redis-server/7/7", false), ("IO iothread1/5/9", true), ("qemu-system-x86/5/5", true)]
    {
        let file = recording(&scene, &format!("{}.parquet", thread.replace('/', "-")), thread);
        let output = tune(&[&file]);
        let shown = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(
            output.status.success() && shown.contains("recommended"),
            "{shown}{}",
            crate::stderr(&output)
        );
        assert_eq!(shown.contains("qom-set"), lines, "{thread}: {shown}");
        assert_eq!(shown.contains("are not QEMU's"), !lines, "{shown}");
        assert_eq!(shown.contains("does not say which QEMU"), lines, "{shown}");
        assert!(shown.contains("its halves have equally many episodes"), "{shown}");
    }
}

#[test]
fn a_plan_is_compared_with_the_thread_that_it_is_for() {
    let (scene, qemu) = scene();
    let file = recording(&scene, "own.parquet", "IO iothread1/5/9");
    let socket = scene.machine.path("/run/vm.qmp");
    let socket = socket.to_str().unwrap();
    let plan = scene.plan.with_file_name("tuned.toml");
    let plan_of = |id: &str, version: &str| {
        tune(&[&file, "--plan", plan.to_str().unwrap(), "--qmp", socket, "--iothread", id, "--qemu", version])
    };
    let refused = |id: &str, version: &str, why: &str| {
        let output = plan_of(id, version);
        let told = crate::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(why) && !plan.exists(), "{told}");
    };
    refused("iothread9", "7.2", "there is no iothread `iothread9`; QEMU has iothread1");
    refused("iothread1", "8.2", "--qemu 8.2: the QEMU at");
    // What the QEMU has in force is what the plan expects.
    for present in [50_000, 32_768] {
        qemu.set("poll-max-ns", present);
        let output = plan_of("iothread1", "7.2");
        assert!(output.status.success(), "{}", crate::stderr(&output));
        let written = std::fs::read_to_string(&plan).unwrap();
        assert!(written.contains(&present.to_string()), "{written}");
        std::fs::remove_file(&plan).unwrap();
    }
    assert!(qemu.writes().is_empty(), "tune reads only");
}

/// What ended while QEMU polled caused no system call.
#[test]
fn system_calls_alone_are_enough_only_for_a_thread_that_did_not_poll() {
    let (scene, _qemu) = scene();
    let (text, file) = (scene.plan.with_extension("txt"), scene.plan.with_extension("parquet"));
    for (comm, in_force, note) in [
        ("IO io0", None, Some("while it was recorded;")),
        ("IO io0", Some("poll-max-ns=32us"), Some("while it was recorded (in force is 32000);")),
        ("IO io0", Some("poll-max-ns=0"), None),
        ("redis-server", None, None),
    ] {
        let waits = (0..512u64).flat_map(|wait| {
            let [begin, end] = [0, 60 + wait * 7 % 50].map(|us| 100_000_000 + wait * 200 + us);
            [(begin, "enter_ppoll: ufds: 0x1, nfds: 0x1, tsp: 0x0, sigmask: 0x0"), (end, "exit_ppoll: 0x1")]
                .map(|(us, what)| {
                    format!(
                        "{comm} 5/9 [000] {}.{:06}: syscalls:sys_{what}\n",
                        us / 1_000_000,
                        us % 1_000_000
                    )
                })
        });
        std::fs::write(&text, waits.collect::<String>()).unwrap();
        let mut import = Command::new(env!("CARGO_BIN_EXE_dwell"));
        import.args(["import", text.to_str().unwrap(), "--force", "-o", file.to_str().unwrap()]);
        import.args(in_force.iter().flat_map(|setting| ["--in-force", setting]));
        let imported = crate::output(&mut import);
        assert!(imported.status.success(), "{}", crate::stderr(&imported));
        let shown = String::from_utf8(tune(&[file.to_str().unwrap()]).stdout).unwrap();
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(shown.contains("while QEMU polled are not in it"), note.is_some(), "{comm}: {shown}");
        assert!(shown.contains(note.unwrap_or("Advice")), "{comm}: {shown}");
    }
}

/// By its name, or as another thread of this QEMU.
#[test]
fn no_plan_is_written_from_the_recording_of_another_thread() {
    let (scene, _qemu) = scene();
    let socket = scene.machine.path("/run/vm.qmp");
    let plan = scene.plan.with_file_name("tuned.toml");
    let main_loop = format!("qemu-system-x86/{0}/{0}", std::process::id());
    for (thread, is_other) in [("IO iothread2/5/9", true), (&main_loop, true), ("qemu-system-x86/5/5", false)]
    {
        let file = recording(&scene, &format!("{}.parquet", thread.replace('/', "-")), thread);
        let words = [&*file, "--qmp", socket.to_str().unwrap(), "--iothread", "iothread1"];
        let why = format!("the recording has {thread}, which is not I/O thread iothread1");
        let shown = tune(&words);
        let text = String::from_utf8_lossy(&shown.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.contains(&format!("note: {why}")), is_other, "{thread}: {text}");
        let refused = tune(&[&words[..], &["--plan", plan.to_str().unwrap()]].concat());
        assert_eq!((refused.status.success(), plan.exists()), (!is_other, !is_other), "{thread}");
        assert_eq!(crate::stderr(&refused).contains(&why), is_other, "{}", crate::stderr(&refused));
        assert!(
            tune(&[&words[..], &["--force", "--plan", plan.to_str().unwrap()]].concat()).status.success()
        );
        std::fs::remove_file(&plan).unwrap();
    }
}

/// Else the CPUs of this machine would be recorded first, and taken for the thread.
#[test]
fn for_an_io_thread_a_recording_is_needed() {
    let output = tune(&["--qmp", "/nowhere", "--iothread", "io0"]);
    let told = crate::stderr(&output);
    assert!(told.contains("<FILE>") && !told.contains("recording this machine"), "{told}");
}

/// A controller would take what the bench sets for another program's.
#[test]
fn a_thread_that_is_leased_is_not_measured() {
    let (scene, qemu) = scene();
    let before = qemu.get("poll-max-ns");
    scene.run(&["control", "--mode", "active", "--layer", "guest", "--duration", "1ms"]);
    let machine = &scene.machine.machine;
    let (thread, _) = iothread::present(machine, &target()).unwrap();
    let present = iothread::setting(&thread, "7.2.22").unwrap();
    let mut never = present;
    never.set("poll-max-ns", 0).unwrap();
    let bench = ["iothread", "bench", "--qmp", "/run/vm.qmp", "--set", "poll-max-ns=0", "--budget", "1s"];
    {
        let _no_forks = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        let holder = Holder::begin(machine, STATE_DIRECTORY).unwrap();
        Lease::take(machine, &holder, &Subject::Iothread(target()), present, &[never]).unwrap();
    }
    let told = scene.refused(&bench);
    assert!(told.contains("is leased already (change 2); `dwell control stop` ends that"), "{told}");
    assert_eq!((qemu.get("poll-max-ns"), qemu.writes().len()), (before, 0));
    scene.stdout(&["control", "stop"]);
    // This monitor counts no requests.
    let output = scene.run(&bench);
    assert!(crate::stderr(&output).contains("query-blockstats"), "{}", crate::stderr(&output));
    assert_eq!(qemu.get("poll-max-ns"), before);
}

/// Another process may have the same number.
#[test]
fn what_was_left_of_a_qemu_that_was_started_anew_is_not_adopted() {
    let (scene, qemu) = scene();
    let machine = &scene.machine.machine;
    let started = |ticks: u32| {
        let pid = std::process::id();
        scene
            .machine
            .write(&format!("/proc/{pid}/stat"), &format!("{pid} (qemu) S{} {ticks}", " 0".repeat(18)));
    };
    started(100);
    let (thread, process) = iothread::present(machine, &target()).unwrap();
    assert_eq!(process.map(|process| process.started), Some(100));
    let present = iothread::setting(&thread, "7.2.22").unwrap();
    let mut never = present;
    never.set("poll-max-ns", 0).unwrap();
    let (subject, settings) = (Subject::Iothread(target()), [never]);
    let _no_forks = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    let holder = Holder::begin(machine, STATE_DIRECTORY).unwrap();
    let mut lease = Lease::take(machine, &holder, &subject, present, &settings).unwrap();
    lease.set(machine, &never).unwrap();
    assert!(lease.leave(machine).unwrap());
    started(200);
    let refused = Lease::adopt(machine, &holder, &subject, never, &settings).unwrap_err();
    assert!(matches!(refused, AdoptError::Restarted { .. }), "{refused}");
    started(100);
    Lease::adopt(machine, &holder, &subject, never, &settings).unwrap();
    assert_eq!(qemu.writes(), ["poll-max-ns=0"]);
}

/// The process of the monitor, as the machine has it: started at this time, or not there.
fn process(scene: &Scene, started: Option<u32>) {
    process_in(scene, "S", started);
}

fn process_in(scene: &Scene, state: &str, started: Option<u32>) {
    let pid = std::process::id();
    let stat = |ticks: u32| format!("{pid} (qemu) {state}{} {ticks}", " 0".repeat(18));
    scene.machine.write(&format!("/proc/{pid}/stat"), &started.map(stat).unwrap_or_default());
}

#[test]
fn a_monitor_that_nobody_serves_is_gone_only_with_its_process() {
    let (scene, qemu) = scene();
    process(&scene, Some(100));
    scene.stdout(&[&SET[..], &["poll-max-ns=300us"]].concat());
    let (socket, aside) = (scene.machine.path("/run/vm.qmp"), scene.machine.path("/run/aside.qmp"));
    std::fs::rename(&socket, &aside).unwrap();
    let output = scene.run(&["revert"]);
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), crate::stderr(&output));
    let pid = std::process::id();
    assert!(!output.status.success() && told.contains(&format!("though its process {pid} runs")), "{told}");
    std::fs::rename(&aside, &socket).unwrap();
    scene.stdout(&["revert"]);
    assert_eq!(qemu.get("poll-max-ns"), 32_768);

    // Ended, and its parent has not waited for it; not there.
    for (state, started) in [("Z", Some(100)), ("", None)] {
        process(&scene, Some(100));
        scene.stdout(&[&SET[..], &["poll-max-ns=300us"]].concat());
        std::fs::rename(&socket, &aside).unwrap();
        process_in(&scene, state, started);
        let reverted = scene.json(&["revert"]);
        assert!(reverted.as_array().unwrap().iter().all(|row| row["outcome"] == "gone"), "{reverted}");
        std::fs::rename(&aside, &socket).unwrap();
        qemu.set("poll-max-ns", 32_768);
    }
}

#[test]
fn a_monitor_that_does_not_answer_is_reported_once_for_all_values() {
    let (scene, _qemu) = scene();
    process(&scene, Some(100));
    let plan = scene.plan.with_file_name("tuned.toml");
    let (file, socket) =
        (recording(&scene, "own.parquet", "IO iothread1/5/9"), scene.machine.path("/run/vm.qmp"));
    let (to, from) = (plan.to_str().unwrap(), socket.to_str().unwrap());
    let tuned =
        tune(&[&file, "--plan", to, "--qmp", from, "--iothread", "iothread1", "--qemu", "7.2", "--force"]);
    assert!(tuned.status.success(), "{}", crate::stderr(&tuned));
    // Applied, its socket is below the root of the scene.
    let text = std::fs::read_to_string(&plan).unwrap().replace(from, "/run/vm.qmp");
    std::fs::write(&plan, text).unwrap();
    scene.stdout(&[&SET[..], &["poll-max-ns=300us", "poll-grow=4"]].concat());
    std::fs::rename(&socket, scene.machine.path("/run/aside.qmp")).unwrap();
    // As of a QEMU that is stopped: it is connected to and does not answer.
    let _stopped = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for words in [vec!["status"], vec!["revert"], vec!["apply", to, "--dry-run"]] {
        let output = scene.run(&words);
        let told = format!("{} {}", String::from_utf8_lossy(&output.stdout), crate::stderr(&output));
        let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(told.matches("did not send").count(), 1, "{words:?}: {told}");
        assert!(told.contains("or its QEMU stopped?") && !told.contains("unknown version"), "{told}");
    }
}

/// It has the values of its command line, whatever these are.
#[test]
fn a_qemu_that_was_started_anew_is_left_as_it_is() {
    for there in [300_000, 77_777] {
        let (scene, qemu) = scene();
        process(&scene, Some(100));
        scene.stdout(&[&SET[..], &["poll-max-ns=300us"]].concat());
        process(&scene, Some(200));
        qemu.set("poll-max-ns", there);
        let (told, status) = (scene.stdout(&["status"]), scene.json(&["status"]));
        assert!(
            told.contains("no longer in force") && told.contains("its QEMU has ended or was started anew"),
            "{told}"
        );
        assert_eq!(status[0]["places"][0]["standing"], "gone");
        assert_eq!(scene.run(&["status", "--exit-code"]).status.code(), Some(1));
        let reverted = scene.json(&["revert"]);
        assert!(reverted.as_array().unwrap().iter().all(|row| row["outcome"] == "gone"), "{reverted}");
        assert_eq!(qemu.get("poll-max-ns"), there);
    }
}

fn target() -> IothreadTarget {
    IothreadTarget { socket: "/run/vm.qmp".to_owned(), id: "iothread1".parse().unwrap(), domain: None }
}
