//! A real vCPU, recorded live: the recording against the vCPU's own statistics, and the replay of the recording against
//! every decision that the kernel traced.

use dwell_capture::{Observer, Recorder, Status, Target, Until};
use dwell_policy::host::{Change, Knobs, Params, Revision, Vcpu};
use dwell_policy::version::Version;
use dwell_recording::{Cause, Chunk, Columns, Layer, Reader, SettingValue};
use dwell_stats::SplitMix64;
use dwell_testing::say;
use dwell_testing::vcpu::HaltingVcpu;
use dwell_trace::event::{Event, EventKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Keeps what the kernel said of this process, in order: for each wake the change that came with it.
struct Tap {
    started: Option<Sender<()>>,
    pid: i32,
    change: Option<Change>,
    traced: Vec<(u64, bool, Option<Change>)>,
}

impl Observer for Tap {
    fn status(&mut self, _: &Status) {
        if let Some(started) = self.started.take() {
            let _ = started.send(());
        }
    }

    fn event(&mut self, event: &Event) {
        if event.pid != self.pid {
            return;
        }
        match event.kind {
            EventKind::HaltPoll { grow, new, old, .. } => {
                assert_eq!(self.change, None, "two changes in one halt");
                self.change = Some(Change { grow, new, old });
            }
            EventKind::VcpuWakeup { ns, waited, .. } => self.traced.push((ns, waited, self.change.take())),
            _ => {}
        }
    }
}

/// What a run showed.
#[derive(Default)]
struct Tally {
    wakes: u64,
    polls: u64,
    transitions: u64,
    deviations: u64,
    windows_told: u64,
    windows_wrong: u64,
}

fn gaps(shape: &str, random: &mut SplitMix64, count: usize) -> Vec<u64> {
    let mut gap = || match shape {
        "constant" => 100_000,
        "exponential" => random.exponential(100_000.0),
        _ if random.below(2) == 0 => 2_000,
        _ => 150_000,
    };
    (0..count).map(|_| gap()).collect()
}

fn running_revision() -> Result<Revision, String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").map_err(|e| e.to_string())?;
    let version = Version::parse(&release).ok_or("unknown kernel release")?;
    Revision::of(version).map_err(|error| error.to_string())
}

/// The module parameters as the recording tells them.
fn params(reader: &Reader, revision: Revision) -> Params {
    let mut params = Params::default_for(revision);
    let values = reader.metadata().settings.first().expect("settings are recorded").values.clone();
    for (name, value) in values {
        let SettingValue::Number(value) = value else { continue };
        let value = u32::try_from(value).unwrap();
        match name.as_str() {
            "halt_poll_ns" => params.halt_poll_ns = value,
            "halt_poll_ns_grow" => params.halt_poll_ns_grow = value,
            "halt_poll_ns_grow_start" => params.halt_poll_ns_grow_start = value,
            "halt_poll_ns_shrink" => params.halt_poll_ns_shrink = value,
            _ => {}
        }
    }
    params
}

fn replay(
    reader: &Reader,
    revision: Revision,
    cap: u32,
    traced: &[(u64, bool, Option<Change>)],
) -> (Tally, u64) {
    let knobs = Knobs { cap_ns: Some(cap), ..Knobs::of(params(reader, revision)) };
    let (mut vcpu, mut tally, mut succeeded) = (Vcpu::new(revision), Tally::default(), 0);
    let mut chunk = Chunk::default();
    let columns = Columns::START_NS | Columns::IDLE_NS | Columns::WINDOW_NS | Columns::HALTED;
    for group in 0..reader.row_groups() {
        reader.read(group, columns, &mut chunk).unwrap();
        for row in 0..chunk.rows {
            let window = vcpu.enter(&knobs);
            let change = vcpu.decide(&knobs, chunk.idle_ns[row], true);
            let (ns, waited, kernels) = traced[usize::try_from(tally.wakes).unwrap()];
            assert_eq!((chunk.idle_ns[row], chunk.halted[row]), (ns, Some(waited)));
            tally.wakes += 1;
            tally.polls += u64::from(window > 0);
            succeeded += u64::from(window > 0 && !waited);
            tally.transitions += u64::from(kernels.is_some());
            tally.deviations += u64::from(kernels != change);
            if let Some(told) = chunk.window_ns[row] {
                tally.windows_told += 1;
                tally.windows_wrong += u64::from(told != u64::from(window));
            }
        }
    }
    (tally, succeeded)
}

#[test]
fn replay_of_a_live_recording_reproduces_every_decision_of_the_kernel() {
    const TEST: &str = "replay_of_a_live_recording_reproduces_every_decision_of_the_kernel";
    let _alone = crate::alone();
    let revision = match running_revision() {
        Ok(revision) => revision,
        Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
    };
    let pid = i32::try_from(std::process::id()).unwrap();
    let mut random = SplitMix64::new(1);
    let count = std::env::var("DWELL_WAKES").ok().and_then(|n| n.parse().ok()).unwrap_or(1500);
    let mut all = Tally::default();
    say!("shape        cap_ns  wakes  polls  transitions  deviations  windows told/wrong  lost");
    for shape in ["constant", "exponential", "bimodal"] {
        for cap in [0u32, 10_000, 50_000, 200_000, 400_000] {
            let vcpu = match HaltingVcpu::new(Some(cap)) {
                Ok(vcpu) => vcpu,
                Err(error) => return dwell_testing::skip!("kvm", TEST, "{error}"),
            };
            let causes = shape == "bimodal";
            let target = Target::Host { pid: Some(pid), exits: false, contention: false, causes };
            let recorder = match Recorder::open(target, None) {
                Ok(recorder) => recorder,
                Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
            };
            let (started, ready) = channel();
            let stop = AtomicBool::new(false);
            let mut tap = Tap { started: Some(started), pid, change: None, traced: vec![] };
            let gaps = gaps(shape, &mut random, count);
            let (summary, bytes, stats) = std::thread::scope(|scope| {
                let recording = scope.spawn(|| {
                    let until = Until { duration: None, stop: &stop };
                    recorder.to_memory(&until, &mut tap)
                });
                ready.recv().unwrap();
                let stats = vcpu.run(&gaps);
                stop.store(true, Ordering::Relaxed);
                let (summary, bytes) = recording.join().unwrap().unwrap();
                (summary, bytes, stats)
            });
            assert_eq!(summary.status.lost, 0);
            let reader = Reader::from_bytes("live", bytes).unwrap();
            assert_eq!(reader.metadata().layer, Layer::Host);
            let (tally, succeeded) = replay(&reader, revision, cap, &tap.traced);
            say!(
                "{shape:<11} {cap:>7} {:>6} {:>6} {:>12} {:>11} {:>14}/{} {:>9}",
                tally.wakes,
                tally.polls,
                tally.transitions,
                tally.deviations,
                tally.windows_told,
                tally.windows_wrong,
                summary.status.lost
            );
            let slept = tap.traced.iter().filter(|(_, waited, _)| *waited).count() as u64;
            assert_eq!(slept, stats.get("halt_wait_hist"), "{shape} {cap}: wakes after sleep");
            assert_eq!(tally.polls, stats.get("halt_attempted_poll"), "{shape} {cap}: polls");
            assert_eq!(succeeded, stats.get("halt_successful_poll"), "{shape} {cap}: polls that succeeded");
            assert_eq!(tally.wakes, summary.contents.episodes);
            assert_eq!(tally.deviations, 0, "{shape} {cap}");
            assert_eq!(tally.windows_wrong, 0, "{shape} {cap}");
            if causes {
                // The vCPU is woken by a thread that is none, through a chip that is no local APIC: a poll is ended unseen.
                let segments = reader.segments().unwrap().unwrap();
                let halts: Vec<_> = segments.rows.iter().filter(|row| row.halted == Some(true)).collect();
                let known = halts.iter().filter(|row| matches!(row.cause, Cause::Interrupt { .. })).count();
                say!("{shape:<11} {cap:>7} {known} of {} halts were ended by an interrupt", halts.len());
                let shares = segments.shares();
                assert_eq!(shares.segments, tally.wakes - 1, "{shape} {cap}: {shares:?}");
                // The vCPU may have woken that thread right before.
                assert!(shares.coupled <= 2, "{shape} {cap}: {shares:?}");
                assert!(10 * (known + 2) >= 9 * halts.len(), "{shape} {cap}: {shares:?}");
            }
            assert!(tally.wakes > 0);
            all.wakes += tally.wakes;
            all.polls += tally.polls;
            all.transitions += tally.transitions;
            all.deviations += tally.deviations;
        }
    }
    say!(
        "all: {} wakes, {} polls, {} transitions traced by the kernel, {} deviations of the replay",
        all.wakes,
        all.polls,
        all.transitions,
        all.deviations
    );
}
