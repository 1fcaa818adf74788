//! `dwell control` for a long time, at the lengths of every recording: it does not grow.
//!
//! What is controlled is a host below a directory; what is observed is a vCPU of this machine, whose own
//! maximum of halt polling is that of the directory within a wakeup. Where the controller does not trust the
//! rule any more it is told to resume, which takes a new lease.

use crate::controlled::{HOST, decisions, running, signal, status, values};
use crate::{Scene, stderr};
use dwell_knobs::journal::{self, STATE_DIRECTORY};
use dwell_recording::Reader;
use dwell_testing::fixture::{Fixture, host_plan};
use dwell_testing::say;
use dwell_testing::vcpu::HaltingVcpu;
use nix::sys::signal::Signal;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// How long the lengths of one recording are used, at their own pace.
const STRETCH: Duration = Duration::from_secs(3);
/// Longer idle times are cut, so that no stretch is a single one.
const LONGEST_NS: u64 = 5_000_000;

/// The first lengths of each recording.
fn lengths() -> Vec<Vec<u64>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "parquet"));
    files.sort();
    files.iter().filter_map(|file| Reader::open(file).ok()).filter_map(|reader| first(&reader)).collect()
}

fn first(reader: &Reader) -> Option<Vec<u64>> {
    let mut chunk = dwell_recording::Chunk::default();
    reader.read(0, dwell_recording::accounting::COLUMNS, &mut chunk).ok()?;
    let idle_ns: Vec<u64> = chunk.idle_ns.iter().take(50_000).map(|ns| (*ns).min(LONGEST_NS)).collect();
    (!idle_ns.is_empty()).then_some(idle_ns)
}

/// The recordings in turn, over and over.
fn gaps(lengths: Vec<Vec<u64>>, stop: &AtomicBool) -> impl Iterator<Item = u64> {
    let (begun, mut at) = (Instant::now(), 0);
    let endless = std::iter::repeat_with(move || {
        let turn = begun.elapsed().as_secs() / STRETCH.as_secs();
        let of = &lengths[usize::try_from(turn).unwrap() % lengths.len()];
        at += 1;
        of[at % of.len()]
    });
    endless.take_while(|_| !stop.load(Ordering::Relaxed)).chain([1_000])
}

/// What a process has, and has done.
#[derive(Clone, Copy, Debug)]
struct Look {
    resident_kib: u64,
    descriptors: usize,
    writes: u64,
}

fn look(pid: u32, scene: &Scene) -> Look {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    Look {
        resident_kib: line.trim().trim_end_matches(" kB").parse().unwrap(),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        writes: status(scene).unwrap()["layers"][0]["writes"].as_u64().unwrap(),
    }
}

fn open_leases(scene: &Scene) -> usize {
    let changes = journal::read_all(&scene.machine.machine, STATE_DIRECTORY).unwrap();
    changes.iter().filter(|change| change.lease && change.state.is_open()).count()
}

/// For so many minutes as `DWELL_SOAK_MINUTES` says, two where it is not set; a day of recordings at 20 times its pace is 72.
#[test]
#[ignore = "measures time; .ci/long runs it"]
fn soaked_it_does_not_grow() {
    const NAME: &str = "soaked_it_does_not_grow";
    let minutes = std::env::var("DWELL_SOAK_MINUTES").ok().and_then(|number| number.parse::<u64>().ok());
    let minutes = minutes.unwrap_or(2);
    let scene = Scene::new(Fixture::host("6.18.44"), &host_plan("6.18"));
    let knob = format!("{HOST}/halt_poll_ns");
    let (before, stop) = (values(&scene), AtomicBool::new(false));
    let in_force = || scene.machine.text(&knob).and_then(|text| text.trim().parse().ok());
    let maximum = AtomicU32::new(in_force().unwrap());
    let lengths = lengths();
    let recordings = lengths.len();
    std::thread::scope(|scope| {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        let (stop, maximum) = (&stop, &maximum);
        let (made, made_by) = channel();
        scope.spawn(move || {
            let vcpu = HaltingVcpu::new(Some(0));
            made.send(vcpu.as_ref().map(|_| ()).map_err(String::clone)).unwrap();
            drop(vcpu.map(|mut vcpu| vcpu.run_with_maximum(gaps(lengths, stop), maximum)));
        });
        if let Err(why) = made_by.recv().unwrap() {
            return dwell_testing::skip!("kvm", NAME, "no vCPU here: {why}");
        }
        let words = ["control", "--mode", "active", "--layer", "host", "--halt-cost", "20us"];
        let mut child = running(&scene, &scene.words(&words), |_| ());
        let (begun, whole) = (Instant::now(), Duration::from_secs(60 * minutes));
        let (mut looks, mut last, mut resumed, mut most) = (vec![], begun, 0u32, 0);
        let mut writes: Vec<(Instant, u64)> = vec![];
        let (mut in_all, mut counted) = (0, 0);
        while begun.elapsed() < whole {
            // A value that is half written is read at the next look.
            if let Some(now) = in_force() {
                maximum.store(now, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(2));
            if last.elapsed() < Duration::from_secs(1) {
                continue;
            }
            last = Instant::now();
            assert!(open_leases(&scene) <= 1, "{} leases", open_leases(&scene));
            let now = look(child.id(), &scene);
            in_all += now.writes.saturating_sub(counted);
            counted = now.writes;
            writes.push((last, in_all));
            let minute_ago = writes.iter().find(|(at, _)| last - *at <= Duration::from_secs(60)).unwrap().1;
            most = most.max(in_all - minute_ago);
            looks.push(now);
            if status(&scene).unwrap()["layers"][0]["state"] == "given_up" {
                let again = scene.run(&["control", "resume"]);
                assert!(again.status.success(), "{}", stderr(&again));
                resumed += 1;
                // It may count from 0 again.
                counted = look(child.id(), &scene).writes;
            }
        }
        let made = decisions(&scene).unwrap();
        signal(&child, Signal::SIGTERM);
        assert!(child.wait().unwrap().success());
        // Without the first tenth, in which buffers reach their size.
        let settled = &looks[looks.len() / 10..];
        let (first, second) = settled.split_at(settled.len() / 2);
        let of = |looks: &[Look], what: fn(&Look) -> u64| looks.iter().map(what).max().unwrap();
        let resident = [first, second].map(|half| of(half, |look| look.resident_kib));
        let descriptors = [first, second].map(|half| of(half, |look| look.descriptors as u64));
        say!(
            "{minutes} min at the lengths of {recordings} recordings in turn: {made} decisions since the last resume, {} writes, at most {most} \
             in a minute, resumed {resumed} times; the most memory of the first half {} KiB, of the second {} KiB; descriptors {} and {}; \
             open leases at most 1",
            in_all,
            resident[0],
            resident[1],
            descriptors[0],
            descriptors[1]
        );
        assert!(made > 0);
        // What is allocated for a while lies on one page more or less.
        assert!(resident[1] <= resident[0] + 512, "{resident:?} KiB");
        assert!(descriptors[1] <= descriptors[0], "{descriptors:?}");
        assert_eq!(values(&scene), before);
        assert_eq!(open_leases(&scene), 0);
    });
}
