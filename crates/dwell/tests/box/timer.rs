//! The timer layer: the timers of a vCPU on emulated SVM, and its exits.

use crate::machine::{Job, Kernel, Ran};
use dwell_policy::timer::{Fire, Revision};
use dwell_policy::version::Version;
use dwell_recording::timer::{TimerPart, TimerRecording, TimerRow};
use dwell_testing::qemu::Release;
use dwell_testing::say;
use dwell_testing::timers::Checked;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What is recorded by perf, for `dwell timer import`.
const EVENTS: &str = "kvm:kvm_exit,kvm:kvm_entry,kvm:kvm_msr,kvm:kvm_apic,kvm:kvm_hv_timer_state,\
    kvm:kvm_apic_accept_irq,kvm:kvm_wait_lapic_expire,kvm:kvm_vcpu_wakeup,timer:hrtimer_start,\
    timer:hrtimer_expire_entry,sched:sched_migrate_task,irq_vectors:local_timer_entry,irq_vectors:reschedule_entry";

/// A guest sets timers, halts or spins until they fire, and moves between CPUs. Its timers' paths are the
/// model's, and its exits are those that `perf kvm stat` counts in the same trace.
pub(crate) fn every_timer_of_a_vcpu_is_the_models(test: &str) -> Result<(), String> {
    timers_are_the_models(test, Kernel::V6_12)
}

/// The same on a host whose kernel has another rule of delivery: the advance is tuned before the wait.
pub(crate) fn every_timer_of_a_vcpu_is_the_models_on_6_1(test: &str) -> Result<(), String> {
    timers_are_the_models(test, Kernel::V6_1)
}

/// The same on a host whose kernel has the fast path for arming by an hrtimer.
pub(crate) fn every_timer_of_a_vcpu_is_the_models_on_newer(test: &str) -> Result<(), String> {
    timers_are_the_models(test, Kernel::Newer)
}

/// Where KVM emits `kvm_exit`, `dwell why` has the exits of a live vCPU by their reasons and by what they are for.
pub(crate) fn why_has_exits_by_reason(test: &str) -> Result<(), String> {
    let script = "insmod /mod/later/kvm_amd.ko nested=0
        inside timers 1000000 1000000 >/dev/null & vm=$!
        sleep 0.5
        keep why.json dwell why $vm --duration 1s --format json
        kill $vm
    ";
    let job = Job {
        kernel: Kernel::V6_12,
        options: crate::time_of(Kernel::V6_12),
        modules: &["kvm"],
        later: &["kvm_amd"],
        memory_mib: 1536,
        limit: Duration::from_secs(300),
        script,
        ..Job::default()
    };
    let ran = job.run(test)?;
    ran.succeeded("why.json");
    let why = ran.json("why.json");
    let bill = &why["bills"][0];
    let lines = bill["lines"].as_array().expect("a list of lines");
    let ns = |line: &serde_json::Value| line["cpu_ns"].as_u64().unwrap_or(0);
    let all = bill["cpu_ns"].as_u64().expect("what /proc counts");
    assert_eq!(lines.iter().map(ns).sum::<u64>(), all, "{why}");
    let rest: u64 = lines.iter().filter(|line| line["cause"] == "rest").map(ns).sum();
    let exits: Vec<_> = lines.iter().filter(|line| line["cause"] == "exit").collect();
    say!("{test}: {exits:?}, rest {rest} of {all} ns, {} events lost", why["lost_events"]);
    let has = |reason: &str, device: Option<&str>| {
        exits.iter().any(|line| line["reason"] == reason && line["device"].as_str() == device && ns(line) > 0)
    };
    // The guest sets the deadline of its timer, and halts.
    assert!(has("msr", Some("local_timer")) && has("hlt", None), "{why}");
    assert!(why["untraced"].is_null() && rest * 20 <= all, "{why}");
    Ok(())
}

fn timers_are_the_models(test: &str, kernel: Kernel) -> Result<(), String> {
    let perf = Path::new("/usr/bin/perf");
    if !perf.exists() {
        return Err("no perf".to_owned());
    }
    let live = std::env::var_os("DWELL_BOX_LIVE").is_some();
    let timers = std::env::var("DWELL_BOX_TIMERS").ok().and_then(|number| number.parse().ok());
    let timers = timers.unwrap_or(if live { 1_500 } else { 12_000 });
    // In real time an exit takes about 50 us in the emulator, and a timer that comes sooner never finds the
    // guest running.
    let cycles = if kernel == Kernel::V6_1 { 1_000_000 } else { 50_000 };
    let (begin, end) = if live {
        let begin = "dwell timer record -o /out/live.parquet >/out/live.txt 2>&1 & live=$!; sleep 1";
        (begin, "sleep 0.2; kill -INT $live; keep live wait $live")
    } else {
        ("", "")
    };
    let script = format!(
        "insmod /mod/later/kvm_amd.ko nested=0
        mkdir -p /tmp
        {begin}
        keep perf perf record -a -k mono -m 4096 -o /out/perf.data -e {EVENTS} -- inside timers {timers} {cycles}
        {end}
    "
    );
    let job = Job {
        kernel,
        // In real time the emulator of QEMU 7.2 stops this guest soon, see `inside`; that of 10.0 has no
        // virtual time that works.
        qemu: if kernel == Kernel::V6_1 { Release::Unpacked("10.0") } else { Release::Installed },
        options: crate::time_of(kernel),
        modules: &["kvm"],
        later: &["kvm_amd"],
        memory_mib: 1536,
        limit: Duration::from_secs(600),
        programs: vec![(perf.to_owned(), "perf")],
        script: &script,
        ..Job::default()
    };
    let begun = Instant::now();
    let ran = job.run(test)?;
    ran.succeeded("perf");
    let kernel = ran.said.lines().find_map(|line| line.split_once("up: ")?.1.split(',').next());
    let kernel = kernel.expect("the job prints its kernel");
    let (recording, text) = imported(&ran, kernel);
    exits_are_those_of_perf(test, &ran, &text, &recording);

    let recording = TimerRecording::open(&recording).unwrap();
    let version = Version::parse(kernel).expect("a version");
    let checked = Checked::of(&recording, Revision::of(version).expect("a kernel that is known"));
    say!("{test}: {checked:?}, in {:.0} s", begun.elapsed().as_secs_f64());
    assert_eq!(recording.metadata.lost.events.unwrap_or(0), 0, "{:?}", recording.metadata.lost);
    assert_eq!(checked.deviations, Vec::<TimerRow>::new(), "{checked:?}");
    assert!(checked.timers >= timers, "{checked:?}");
    assert!(checked.deviations_if_off > timers / 10, "a model that is off deviates: {checked:?}");
    for fire in [Fire::HostInterrupt, Fire::WokenUp] {
        assert!(checked.by_fire.get(fire.name()).is_some_and(|&number| number > timers / 10), "{checked:?}");
    }
    let exits = |part| recording.rows.exits.iter().filter(|exit| exit.cause == Some(part)).count() as u64;
    // The guest may have been left for the last time in between.
    assert!(exits(TimerPart::Arm).abs_diff(checked.armings) <= 1, "{} {checked:?}", exits(TimerPart::Arm));
    assert!(exits(TimerPart::Fire).abs_diff(checked.firings) <= 1, "{} {checked:?}", exits(TimerPart::Fire));
    if live {
        ran.succeeded("live");
        say!("{test}: live: {}", ran.text("live.txt").trim());
        live_is_as_good(&TimerRecording::open(&ran.path("live.parquet")).unwrap(), &recording, &checked);
    }
    Ok(())
}

/// What `dwell timer record` has recorded at the same time, and what perf has.
fn live_is_as_good(live: &TimerRecording, of_perf: &TimerRecording, checked: &Checked) {
    assert_eq!(live.metadata.lost.events, Some(0), "{:?}", live.metadata.lost);
    let version = live.metadata.kernel.as_deref().and_then(Version::parse).expect("a kernel");
    let found = Checked::of(live, Revision::of(version).expect("a kernel that is known"));
    assert_eq!(found.deviations, Vec::<TimerRow>::new(), "{found:?}");
    // perf and dwell begin and end at different times, but the guest begins after both and ends before. Each
    // takes the time of an event by itself.
    assert_eq!((found.timers, &found.by_fire), (checked.timers, &checked.by_fire));
    let exits = |recording: &TimerRecording| {
        let mut exits: BTreeMap<String, u64> = BTreeMap::new();
        for exit in &recording.rows.exits {
            *exits.entry(recording.rows.reasons[exit.reason as usize].clone()).or_default() += 1;
        }
        exits
    };
    assert_eq!(exits(live), exits(of_perf));
}

/// The recording that dwell makes of perf's, and its text.
fn imported(ran: &Ran, kernel: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    let (data, text, recording) = (ran.path("perf.data"), ran.path("perf.txt"), ran.path("timer.parquet"));
    let script = Command::new("perf")
        .args([
            "script",
            "--ns",
            "--header",
            "--show-task-events",
            "--show-lost-events",
            "--guest-code",
            "-F",
            "+pid",
            "-i",
        ])
        .arg(data)
        .output()
        .unwrap();
    std::fs::write(&text, script.stdout).unwrap();
    let import = Command::new(env!("CARGO_BIN_EXE_dwell"))
        .args(["timer", "import", "--kernel", kernel, "-o"])
        .args([&recording, &text])
        .output()
        .unwrap();
    assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
    (recording, text)
}

/// `perf kvm stat report`, and `dwell timer exits` of the text and of the recording, print the same bytes.
fn exits_are_those_of_perf(test: &str, ran: &Ran, text: &Path, recording: &Path) {
    let perf = Command::new("perf")
        .args(["kvm", "-i"])
        .arg(ran.path("perf.data"))
        .args(["stat", "report", "--force"])
        .output()
        .unwrap();
    // perf prints the table as it prints messages.
    let perf = String::from_utf8_lossy(&perf.stderr).into_owned();
    assert!(perf.lines().count() > 8, "{perf}");
    std::fs::write(ran.path("perf-kvm-stat.txt"), &perf).unwrap();
    for file in [text, recording] {
        let exits = Command::new(env!("CARGO_BIN_EXE_dwell"))
            .args(["timer", "exits", "--as-perf"])
            .arg(file)
            .output();
        let exits = exits.unwrap();
        let said = String::from_utf8_lossy(&exits.stderr).into_owned();
        assert_eq!(String::from_utf8_lossy(&exits.stdout), perf, "{}: {said}", file.display());
        said.lines().for_each(|line| say!("{test}: {line}"));
    }
    say!("{test}: dwell timer exits prints what perf kvm stat prints:\n{perf}");
}
