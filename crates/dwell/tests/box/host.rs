//! The host layer: the KVM of a stock kernel on emulated SVM, with a vCPU that halts.

use crate::cycle::Cycle;
use crate::machine::{Job, Kernel, program_of_test};
use dwell_policy::host::{Knobs, Params, Revision, Vcpu};
use dwell_policy::version::Version;
use dwell_recording::{Chunk, Columns, Reader};
use dwell_testing::say;
use std::path::Path;
use std::time::{Duration, Instant};

/// Nested virtualization of its own is not needed.
const KVM: &str = "insmod /mod/later/kvm_amd.ko nested=0";
/// The maximum of polling under which the host is recorded \[ns\].
const MAX_NS: u32 = 2_000_000;

fn job() -> Job<'static> {
    Job {
        options: crate::coarse_time(),
        modules: &["kvm"],
        later: &["kvm_amd"],
        memory_mib: 1536,
        limit: Duration::from_secs(500),
        ..Job::default()
    }
}

/// A host is recorded and tuned, the plan is applied, verified and reverted; KVM's own counters show the
/// effect. Two rounds of `verify` are not enough for a verdict, and `bound` reads KVM's counters from both of
/// their sources.
pub(crate) fn from_record_to_revert(test: &str) -> Result<(), String> {
    let load = format!(
        "{KVM}
        echo {MAX_NS} >/sys/module/kvm/parameters/halt_poll_ns
        inside halt 600 10000000 exponential statistics &"
    );
    let applied = "
        keep short.json dwell verify --budget 1200ms --turn 60ms --settle 20ms --format json
        inside halt 2000 10000000 constant none & other=$!
        sleep 0.2
        keep bound.json dwell bound --duration 500ms --format json
        kill $other
    ";
    let cycle = Cycle {
        layer: "host",
        load: &load,
        record: "2s",
        tune: "--halt-cost 20us",
        verify: "--budget 5s --turn 60ms --settle 20ms",
        applied,
        polls: ("debug/kvm/", "halt_attempted_poll"),
    };
    let ran = cycle.run(test, job())?;

    let windows = Windows::of(&ran.path("host.parquet"))?;
    say!("{test}: {windows:?}");
    assert_eq!(windows.deviations, 0, "{windows:?}");
    assert!(
        windows.decisions > 1_000 && windows.changes > 100 && windows.deviations_if_off > 10,
        "{windows:?}"
    );

    let short = ran.json("short.json");
    let rounds = short["rounds"].as_u64().unwrap_or(0);
    assert!((1..=2).contains(&rounds) && short["verdict"] == "not_enough_rounds", "{short}");

    let bound = ran.json("bound.json");
    let vms = bound[0]["vms"].as_array().expect("a list of VMs");
    let of = |source: &str| {
        vms.iter().find(|vm| vm["source"] == source).unwrap_or_else(|| panic!("{source}: {bound}"))
    };
    let (files, debugfs) = (of("statistics_files"), of("debugfs"));
    assert!(files["halts_exact"] == true && debugfs["halts_exact"] == false, "{bound}");
    let halts = |vm: &serde_json::Value| vm["halts"].as_u64().unwrap_or(0);
    say!("{test}: bound: {} halts of one VM, <= {} of the other, in 500 ms", halts(files), halts(debugfs));
    assert!(halts(files) > 300 && halts(debugfs) > 100, "{bound}");
    Ok(())
}

/// The windows that a recording has, beside those of the model.
#[derive(Debug, Default)]
struct Windows {
    /// Episodes before and after which the window is known.
    decisions: u64,
    changes: u64,
    /// The model's window after an episode is not the one recorded.
    deviations: u64,
    /// The same for a model that grows threefold.
    deviations_if_off: u64,
}

impl Windows {
    fn of(path: &Path) -> Result<Windows, String> {
        let version =
            Version::parse(&Kernel::V6_12.text("release")?).ok_or("the kernel's version is not known")?;
        let revision = Revision::of(version).map_err(|error| error.to_string())?;
        let params = Params { halt_poll_ns: MAX_NS, ..Params::default_for(revision) };
        let off = Params { halt_poll_ns_grow: params.halt_poll_ns_grow + 1, ..params };
        let after = |params: Params, window: u32, idle_ns: u64| {
            let (mut vcpu, knobs) = (Vcpu::with_halt_poll_ns(revision, window), Knobs::of(params));
            vcpu.enter(&knobs);
            vcpu.decide(&knobs, idle_ns, true);
            vcpu.enter(&knobs)
        };
        let reader = Reader::open(path).unwrap();
        let (mut windows, mut chunk, mut last) = (Windows::default(), Chunk::default(), None);
        for group in 0..reader.row_groups() {
            reader.read(group, Columns::IDLE_NS | Columns::WINDOW_NS, &mut chunk).unwrap();
            for (idle_ns, window) in chunk.idle_ns.iter().zip(&chunk.window_ns) {
                let window = window.map(|ns| u32::try_from(ns).expect("less than the maximum"));
                if let (Some((before, idle_ns)), Some(window)) = (last, window) {
                    windows.decisions += 1;
                    windows.changes += u64::from(window != before);
                    windows.deviations += u64::from(window != after(params, before, idle_ns));
                    windows.deviations_if_off += u64::from(window != after(off, before, idle_ns));
                }
                last = window.map(|window| (window, *idle_ns));
            }
        }
        Ok(windows)
    }
}

/// On this host the tests `vcpu` of the crate dwell-capture, in which every decision that the kernel traced is
/// the model's, and its tests `kvm_stats`, which read KVM's counters in both ways.
pub(crate) fn every_decision_of_kvm_is_the_models(test: &str) -> Result<(), String> {
    let long = crate::is_long();
    let wakes = if long { 3_000 } else { 300 };
    let script = format!(
        "{KVM}
        export DWELL_WAKES={wakes} DWELL_WAKER_SLEEPS=1
        keep vcpu recorders vcpu:: --nocapture
        keep kvm_stats recorders kvm_stats:: --nocapture --test-threads=1
    "
    );
    let programs = vec![(program_of_test("recorders")?, "recorders")];
    let begun = Instant::now();
    let ran = Job { script: &script, programs, ..job() }.run(test)?;
    ["vcpu", "kvm_stats"].iter().for_each(|command| ran.succeeded(command));
    for (command, tests) in [("vcpu", 1), ("kvm_stats", 4)] {
        let passed = ran.text(command).contains(&format!("test result: ok. {tests} passed"));
        let said = ran.text(&format!("{command}.err"));
        assert!(passed && !said.contains("SKIP"), "{command}: {}{said}", ran.text(command));
    }
    let said = ran.text("vcpu.err");
    said.lines().for_each(|line| say!("{test}: {line}"));
    // all: 4500 wakes, 1408 polls, 556 transitions traced by the kernel, 0 deviations of the replay
    let all = said.lines().find_map(|line| line.strip_prefix("all: ")).expect("the sum of the test vcpu");
    let numbers: Vec<u64> = all.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [decisions, polls, changes, deviations] = numbers[..] else { panic!("{all}") };
    assert_eq!(deviations, 0, "{all}");
    // A vCPU whose interrupt comes while it leaves the guest is not halted: nothing is decided then, and KVM counts nothing, which
    // the tests have compared for every set-up.
    assert!(100 * decisions >= 99 * 15 * wakes && polls > decisions / 10 && changes > 100, "{all}");
    say!("{test}: in {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// On this host an experiment of the lab: a vCPU under a host that halts, and in a guest that polls.
pub(crate) fn the_lab_measures_wakeups(test: &str) -> Result<(), String> {
    let script = format!(
        "{KVM}
        keep wake.json dwell-lab wake --idle host:0 --idle guest:haltpoll --gaps exponential:100us --rounds 1 --format json
    "
    );
    let lab = Path::new(env!("CARGO_BIN_EXE_dwell")).with_file_name("dwell-lab");
    if !lab.exists() {
        return Err(format!("no {}; `cargo build -p dwell-lab` makes it", lab.display()));
    }
    let ran = Job { script: &script, programs: vec![(lab, "dwell-lab")], ..job() }.run(test)?;
    ran.succeeded("wake.json");
    let wake = ran.json("wake.json");
    let figure = |arm: &str, figure: &str| {
        let rows = wake["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["arm"] == arm && row["figure"] == figure);
        row.and_then(|row| row["value"]["value"].as_f64()).unwrap_or_else(|| panic!("{arm} {figure}: {wake}"))
    };
    let (host, guest) = ("host:0", "guest:haltpoll");
    say!(
        "{test}: p50 {:.1} us where the host halts, {:.1} us where the guest polls",
        figure(host, "p50") / 1e3,
        figure(guest, "p50") / 1e3
    );
    assert!(figure(host, "polls_per_wakeup") == 0.0 && figure(host, "hlt_exits_per_wakeup") >= 1.0);
    assert!(figure(guest, "halts_per_wakeup") < 0.9 && figure(guest, "p50") < figure(host, "p50") / 2.0);
    Ok(())
}
