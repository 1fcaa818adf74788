//! One trace gives one recording. What a recorder has recorded live is compared, row by row, with the import
//! of the same events as text: written by the recorder itself, and taken beside it by `perf record`, `trace-cmd record`
//! and ftrace.

use dwell_capture::names::ProcNames;
use dwell_capture::{GuestSource, Observer, Recorder, Status, Target, Until};
use dwell_machine::Sysroot;
use dwell_recording::{Chunk, Columns, Metadata, Packing, Reader, Writer};
use dwell_stats::SplitMix64;
use dwell_testing::perf_text::PerfText;
use dwell_testing::process::Process;
use dwell_testing::say;
use dwell_testing::vcpu::{HaltingVcpu, Stats};
use dwell_trace::event::Event;
use dwell_trace::import::perf::{self, PerfOptions};
use dwell_trace::import::{ImportSummary, Input};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

const LOOP: &str = "dwell-loop";

/// Writes every event down, in the order in which the pairing gets them.
struct Tap {
    started: Option<Sender<()>>,
    text: PerfText<Vec<u8>>,
}

impl Observer for Tap {
    fn status(&mut self, _: &Status) {
        if let Some(started) = self.started.take() {
            let _ = started.send(());
        }
    }

    fn event(&mut self, event: &Event) {
        self.text.event(event).unwrap();
    }
}

/// One row: all that a recording has of an episode, as text but for the start.
type Row = (u64, String);

fn rows(reader: &Reader) -> Vec<Row> {
    let (mut chunk, mut rows) = (Chunk::default(), vec![]);
    for group in 0..reader.row_groups() {
        reader.read(group, Columns::ALL, &mut chunk).unwrap();
        for row in 0..chunk.rows {
            let rest = format!(
                "{} {} window {:?} halted {:?} {:?} latency {:?}",
                reader.contents().idlers[chunk.idler[row] as usize].name,
                chunk.idle_ns[row],
                chunk.window_ns[row],
                chunk.halted[row],
                chunk.wake[row],
                chunk.wake_latency_ns[row],
            );
            rows.push((chunk.start_ns[row], rest));
        }
    }
    rows
}

/// Records while `load` runs; returns the recording, the text of its events, and what the load returned.
fn record<R>(target: Target, load: impl FnOnce() -> R, test: &str) -> Option<(Reader, Vec<u8>, R)> {
    let recorder = Recorder::open(target, None)
        .map_err(|error| dwell_testing::skip!("tracing", test, "{error}"))
        .ok()?;
    let kernel = recorder.metadata().kernel.clone();
    let names = ProcNames::new(Arc::new(Sysroot::of_this_machine()));
    let (started, ready) = channel();
    let text = PerfText::new(vec![], kernel.as_deref(), Box::new(names)).unwrap();
    let mut tap = Tap { started: Some(started), text };
    let stop = AtomicBool::new(false);
    let ((summary, bytes), loaded) = std::thread::scope(|scope| {
        let recording = scope.spawn(|| recorder.to_memory(&Until { duration: None, stop: &stop }, &mut tap));
        ready.recv().unwrap();
        let loaded = load();
        stop.store(true, Ordering::Relaxed);
        (recording.join().unwrap().unwrap(), loaded)
    });
    assert_eq!(summary.status.lost, 0, "{:?}", summary.status);
    Some((Reader::from_bytes("live", bytes).unwrap(), tap.text.into_inner(), loaded))
}

fn import(text: &[u8], live: &Reader, source: GuestSource) -> (Reader, ImportSummary) {
    let mut metadata = Metadata::new(live.metadata().layer);
    // ftrace and trace-cmd do not say it, and the windows follow its rule.
    metadata.kernel.clone_from(&live.metadata().kernel);
    let mut writer = Writer::new(vec![], metadata, Packing::default()).unwrap();
    let options =
        PerfOptions { layer: Some(live.metadata().layer), source, arch: None, skip_unparsable: false };
    let summary = perf::import(Input::new("text", text).unwrap(), &options, &mut writer).unwrap();
    (Reader::from_bytes("imported", writer.close().unwrap().1).unwrap(), summary)
}

/// The recording and the import of its own events are the same.
fn check_own_text(live: &Reader, text: &[u8], source: GuestSource) -> usize {
    let (imported, _) = import(text, live, source);
    let (live_rows, imported_rows) = (rows(live), rows(&imported));
    let first = live_rows.iter().zip(&imported_rows).position(|(a, b)| a != b);
    assert_eq!(first.map(|at| (&live_rows[at], &imported_rows[at])), None);
    assert_eq!(live_rows.len(), imported_rows.len());
    let (live, imported) = (live.metadata(), imported.metadata());
    assert_eq!(live.idle_includes, imported.idle_includes);
    assert_eq!(live.lost.incomplete_episodes, imported.lost.incomplete_episodes);
    assert_eq!(live.clock, imported.clock);
    assert_eq!(live.kernel, imported.kernel);
    for key in ["dwell.vcpus", "dwell.threads", "dwell.invalid_wakeups"] {
        assert_eq!(live.other.get(key), imported.other.get(key), "{key}");
    }
    live_rows.len()
}

/// A thread that waits in ppoll, until events come and until time is up.
fn wait_in_a_loop(waits: u32) {
    let run = move || {
        let ready = eventfd(1, EventfdFlags::empty()).unwrap();
        let never = eventfd(0, EventfdFlags::empty()).unwrap();
        for wait in 0..waits {
            let fd = if wait % 3 == 0 { &ready } else { &never };
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait % 4) * 100_000 };
            poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap();
        }
        // Its name is read while it lives.
        std::thread::sleep(Duration::from_millis(400));
    };
    std::thread::Builder::new().name(LOOP.to_owned()).spawn(run).unwrap().join().unwrap();
}

fn own_pid() -> i32 {
    i32::try_from(std::process::id()).unwrap()
}

fn vcpu_target() -> Target {
    Target::Host { pid: Some(own_pid()), exits: true, contention: false, causes: false }
}

/// A vCPU that halts so often; what KVM counted of it.
fn halts(count: usize) -> Result<impl FnOnce() -> Stats, String> {
    let vcpu = HaltingVcpu::new(Some(200_000))?;
    let mut random = SplitMix64::new(1);
    let gaps: Vec<u64> = (0..count).map(|_| random.below(300_000)).collect();
    Ok(move || vcpu.run(&gaps))
}

/// Every halt in which KVM slept, or polled until the event, has its row. The vCPU executes one HLT for each
/// wakeup; if the interrupt of the wakeup is pending then, as after a gap shorter than the way to the HLT,
/// KVM lets the guest go on without a halt, and has no event of it. KVM's own counters have both numbers.
fn assert_all_halts(rows: usize, wakeups: usize, counted: &Stats) {
    let number = |name: &str| usize::try_from(counted.get(name)).unwrap();
    let hlts = number("halt_exits");
    let ended = number("halt_wait_hist") + number("halt_successful_poll");
    say!("{wakeups} wakeups, {hlts} HLTs, of which {ended} slept or polled until the event; {rows} rows");
    assert_eq!(hlts, wakeups);
    assert!((ended..=hlts).contains(&rows), "{rows} rows");
    assert!(rows * 100 >= wakeups * 95, "{rows} rows of {wakeups} wakeups");
}

#[test]
fn the_recorders_events_as_text_give_the_same_recording() {
    const TEST: &str = "the_recorders_events_as_text_give_the_same_recording";
    let _alone = crate::alone();
    let threads = Target::Thread { pid: None, comm: vec![LOOP.to_owned()], causes: false };
    let Some((live, text, ())) = record(threads, || wait_in_a_loop(2_000), TEST) else { return };
    let number = check_own_text(&live, &text, GuestSource::Auto);
    assert!(number >= 1_000, "{number}");
    say!("thread: {number} episodes, live and imported the same");
    for source in [GuestSource::CpuIdle, GuestSource::Switch] {
        let nap = || std::thread::sleep(Duration::from_millis(700));
        match record(Target::Guest { source, causes: false }, nap, TEST) {
            Some((live, _, ())) if live.episodes() == 0 => {
                say!("guest, {}: no episode, since no CPU idled or its task emits nothing", source.name());
            }
            Some((live, text, ())) => {
                let number = check_own_text(&live, &text, source);
                say!("guest, {}: {number} episodes, live and imported the same", source.name());
            }
            None => {}
        }
    }
    let load = match halts(1_000) {
        Ok(load) => load,
        Err(error) => return dwell_testing::skip!("kvm", TEST, "{error}, the part about a host"),
    };
    let Some((live, text, counted)) = record(vcpu_target(), load, TEST) else { return };
    let number = check_own_text(&live, &text, GuestSource::Auto);
    assert_all_halts(number, 1_000, &counted);
    say!("host: {number} episodes, live and imported the same");
}

/// The halts of the load: `DWELL_SAME_TRACE_HALTS`, 5,000 for each second, or 1,500.
fn number_of_halts() -> usize {
    std::env::var("DWELL_SAME_TRACE_HALTS").map_or(1_500, |text| text.parse().unwrap())
}

/// What all of them record.
const EVENTS: [&str; 2] = ["kvm:kvm_vcpu_wakeup", "kvm:kvm_halt_poll_ns"];

/// `perf record`, until it is dropped.
struct Perf(Process);

impl Perf {
    fn start(file: &Path) -> Result<Perf, String> {
        let mut command = Command::new("perf");
        command
            .args(["record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-e", &EVENTS.join(","), "-o"])
            .arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("perf: {error}; install linux-perf"))?;
        let mut perf = Perf(Process(child));
        let begun = Instant::now();
        // The file gets its header before the events are switched on.
        while !file.metadata().is_ok_and(|file| file.len() > 0) {
            if perf.0.try_wait().is_ok_and(|status| status.is_some()) {
                return Err("perf record cannot record here".to_owned());
            }
            if begun.elapsed() > Duration::from_secs(30) {
                return Err("perf record does not begin".to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_secs(2));
        Ok(perf)
    }

    fn stop(mut self) {
        if let Some(pid) = Pid::from_raw(i32::try_from(self.0.id()).unwrap()) {
            kill_process(pid, Signal::INT).unwrap();
        }
        self.0.wait().unwrap();
    }
}

const TRACEFS: &str = "/sys/kernel/tracing";

/// tracefs at its place, where perf and trace-cmd look for it; what was not mounted is unmounted with this.
struct Tracefs {
    unmounts: bool,
}

impl Tracefs {
    fn mounted() -> std::io::Result<Tracefs> {
        let unmounts = !Path::new(TRACEFS).join("instances").exists();
        if unmounts {
            rustix::mount::mount("none", TRACEFS, "tracefs", MountFlags::empty(), None::<&CStr>)?;
        }
        Ok(Tracefs { unmounts })
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.unmounts {
            let _ = rustix::mount::unmount(TRACEFS, UnmountFlags::DETACH);
        }
    }
}

/// An instance of ftrace, with the events switched on.
struct Ftrace(PathBuf);

impl Ftrace {
    fn start() -> std::io::Result<Ftrace> {
        let instance = Path::new(TRACEFS).join(format!("instances/dwell-test-{}", std::process::id()));
        std::fs::create_dir(&instance)?;
        let ftrace = Ftrace(instance);
        let write = |file: &str, text: &str| std::fs::write(ftrace.0.join(file), text);
        write("trace_clock", "mono")?;
        // Two events of a halt take some 130 bytes, and all may be of one CPU.
        write("buffer_size_kb", &(4_096 + number_of_halts() / 4).to_string())?;
        for event in EVENTS {
            write(&format!("events/{}/enable", event.replace(':', "/")), "1")?;
        }
        Ok(ftrace)
    }

    fn text(&self) -> Vec<u8> {
        std::fs::read(self.0.join("trace")).unwrap()
    }

    /// Has trace-cmd take the same events to a file. `trace-cmd record` would need to write `ftrace_enabled`, which
    /// not every machine allows.
    fn extract(self, file: &Path) -> Result<(), String> {
        let instance = self.0.file_name().unwrap();
        let mut command = Command::new("trace-cmd");
        command.args(["extract", "-B"]).arg(instance).arg("-o").arg(file);
        let output = command.output().map_err(|error| format!("trace-cmd: {error}; install trace-cmd"))?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Drop for Ftrace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn printed(program: &str, args: &[&str], file: &Path) -> Vec<u8> {
    let output = Command::new(program).args(args).arg("-i").arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Two recorders take the time of one event one after the other.
const APART_NS: u64 = 10_000_000;

/// Every row of the live recording is one of the import, in this order, but for the name of the idler, and but for
/// starts that are a little apart: returns by how much at most.
fn assert_same_rows(live: &Reader, imported: &Reader) -> u64 {
    let [name] = live.contents().idlers.as_slice() else { panic!("one vCPU is recorded") };
    let about = &live.metadata().other["dwell.vcpus"][&name.name];
    let here = imported.metadata().other["dwell.vcpus"].as_object().unwrap();
    // Other tests on this machine have vCPUs, too. A text of ftrace has threads and no processes.
    let (theirs, _) = here.iter().find(|(_, vcpu)| vcpu["tid"] == about["tid"]).expect("the vCPU is there");
    let of = |reader: &Reader, idler: &str| -> Vec<Row> {
        let own = |(start_ns, rest): Row| Some((start_ns, rest.strip_prefix(idler)?.to_owned()));
        rows(reader).into_iter().filter_map(own).collect()
    };
    let (live, imported) = (of(live, &name.name), of(imported, theirs));
    assert_eq!(imported.len(), live.len());
    let mut apart = 0;
    for (number, ((live_ns, live), (other_ns, other))) in live.iter().zip(&imported).enumerate() {
        assert_eq!(live, other, "row {number}");
        apart = apart.max(live_ns.abs_diff(*other_ns));
    }
    assert!(apart < APART_NS, "{apart}");
    apart
}

/// perf and ftrace record from before the live recorder begins until after it ends; trace-cmd takes ftrace's events. Their
/// rows of that time have to be the live ones, each and in this order; starts may differ by the time between two
/// recorders (and by the microsecond that ftrace's text resolves), which is printed.
#[test]
fn perf_trace_cmd_and_ftrace_beside_a_live_recorder_give_the_same_recording() {
    const TEST: &str = "perf_trace_cmd_and_ftrace_beside_a_live_recorder_give_the_same_recording";
    let _alone = crate::alone();
    let load = match halts(number_of_halts()) {
        Ok(load) => load,
        Err(error) => return dwell_testing::skip!("kvm", TEST, "{error}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let [of_perf, of_trace_cmd] = ["perf.data", "trace.dat"].map(|name| dir.path().join(name));
    // Dropped after the instance of ftrace.
    let _tracefs = match Tracefs::mounted() {
        Ok(tracefs) => tracefs,
        Err(error) => return dwell_testing::skip!("tracing", TEST, "tracefs: {error}"),
    };
    let ftrace = match Ftrace::start() {
        Ok(ftrace) => ftrace,
        Err(error) => return dwell_testing::skip!("tracing", TEST, "an instance of ftrace: {error}"),
    };
    let perf = match Perf::start(&of_perf) {
        Ok(perf) => perf,
        Err(error) => return dwell_testing::skip!("programs", TEST, "{error}"),
    };
    let target = Target::Host { pid: Some(own_pid()), exits: false, contention: false, causes: false };
    let Some((live, _, counted)) = record(target, load, TEST) else { return };
    perf.stop();
    assert_all_halts(rows(&live).len(), number_of_halts(), &counted);
    let compare = |name: &str, text: &[u8]| {
        let (imported, summary) = import(text, &live, GuestSource::Auto);
        assert_eq!((summary.lost.events, summary.out_of_order), (None, 0), "{name} has lost events");
        assert_eq!(live.metadata().kernel, imported.metadata().kernel);
        let apart = assert_same_rows(&live, &imported);
        let number = live.episodes();
        say!("{name}: {number} episodes, live and imported the same, starts at most {apart} ns apart");
        imported.metadata().clock
    };
    compare("ftrace", &ftrace.text());
    let fields = "comm,pid,tid,cpu,time,event,trace";
    let args = ["script", "--ns", "--header", "--show-task-events", "-F", fields];
    assert_eq!(compare("perf", &printed("perf", &args, &of_perf)), live.metadata().clock);
    match ftrace.extract(&of_trace_cmd) {
        Ok(()) => {
            for args in [&["report", "-t"][..], &["report", "-t", "-R"], &["report", "-t", "-l"]] {
                compare(&format!("trace-cmd {}", args.join(" ")), &printed("trace-cmd", args, &of_trace_cmd));
            }
        }
        Err(error) => dwell_testing::skip!("programs", TEST, "{error}, the part about trace-cmd"),
    }
}
