//! What does recording cost, beside `perf record` and bpftrace, on the same events and load?
//!
//! ```text
//! cargo bench -p dwell-capture --bench overhead
//! ```
//! A thread calls ppoll(2) on a descriptor that is always ready, a hundred times each millisecond: two events a call,
//! 200,000 events a second. Each round runs it without a recorder, under dwell, `perf record` and bpftrace, in an order
//! that turns around from round to round. Two costs are told, as medians over the rounds with their range:
//!
//! * in the traced thread: its CPU time (CLOCK_THREAD_CPUTIME_ID) above that without a recorder, per event;
//! * in the recorder: the CPU time of all its threads while the load runs and is written, per event.
//!
//! dwell pairs the events and writes Parquet; perf writes them as they come, to be paired later; bpftrace
//! pairs them in the kernel and prints one line for each pair. It would be surprising if dwell's cost per
//! event exceeded that of perf.

use dwell_capture::{Recorder, Target, Until};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of the thread that makes the load.
const COMM: &str = "dwell-load";
const CALLS_PER_MS: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    None,
    Dwell,
    Perf,
    Bpftrace,
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    thread_ns: f64,
    recorder_ns: f64,
    wall_ns: f64,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("--as-recorder") {
        return be_recorder(Path::new(&arguments.next().unwrap_or_default()));
    }
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (rounds, ms) = (number("DWELL_ROUNDS", 7), number("DWELL_MS", 2_000));
    let tools: Vec<Tool> = [Tool::None, Tool::Dwell, Tool::Perf, Tool::Bpftrace]
        .into_iter()
        .filter(|tool| available(*tool))
        .collect();
    let mut costs: Vec<(Tool, Cost)> = vec![];
    for round in 0..rounds {
        let order: Vec<Tool> =
            if round % 2 == 0 { tools.clone() } else { tools.iter().rev().copied().collect() };
        for tool in order {
            match measure(tool, ms) {
                Ok(cost) => costs.push((tool, cost)),
                Err(error) => println!("SKIP {tool:?}: {error}"),
            }
        }
    }
    print(&costs, ms);
}

fn available(tool: Tool) -> bool {
    let program = match tool {
        Tool::None => return true,
        Tool::Dwell => {
            return match Recorder::open(target(), None) {
                Ok(_) => true,
                Err(error) => {
                    println!("SKIP {error}: dwell");
                    false
                }
            };
        }
        Tool::Perf => "perf",
        Tool::Bpftrace => "bpftrace",
    };
    let runs = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if runs.is_err() {
        println!("SKIP no {program} here: {tool:?}");
    }
    runs.is_ok()
}

fn target() -> Target {
    Target::Thread { pid: None, comm: vec![COMM.to_owned()], causes: false }
}

/// What the child does: record until told to stop by a line on its standard input.
fn be_recorder(file: &Path) {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        told.store(true, Ordering::Relaxed);
    });
    let recorder = Recorder::open(target(), None).expect("the parent has tried");
    let summary = recorder.to_file(file, &Until { duration: None, stop: &stop }, &mut ()).expect("records");
    eprintln!("dwell: {} episodes, {} lost", summary.status.episodes, summary.status.lost);
}

fn start(tool: Tool, output: &Path) -> std::io::Result<Option<Child>> {
    let mut command = match tool {
        Tool::None => return Ok(None),
        Tool::Dwell => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("--as-recorder").arg(output);
            command
        }
        Tool::Perf => {
            let mut command = Command::new("perf");
            let filter = format!("comm == \"{COMM}\"");
            command.args(["record", "-q", "-a", "-o"]).arg(output);
            for event in ["syscalls:sys_enter_ppoll", "syscalls:sys_exit_ppoll"] {
                command.args(["-e", event, "--filter", &filter]);
            }
            command
        }
        Tool::Bpftrace => {
            let mut command = Command::new("bpftrace");
            let program = format!(
                "tracepoint:syscalls:sys_enter_ppoll /comm == \"{COMM}\"/ {{ @start[tid] = nsecs; }} \
                 tracepoint:syscalls:sys_exit_ppoll /@start[tid]/ {{ printf(\"%d %lu %lu\\n\", tid, @start[tid], \
                 nsecs - @start[tid]); delete(@start[tid]); }}"
            );
            command.arg("-o").arg(output).args(["-e", &program]);
            command
        }
    };
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().map(Some)
}

fn measure(tool: Tool, ms: u64) -> Result<Cost, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let output: PathBuf = dir.path().join("output");
    let mut child = start(tool, &output).map_err(|error| error.to_string())?;
    // perf and bpftrace take a second or two to begin; their start is not measured.
    let patience = if child.is_some() { 2_500 } else { 100 };
    std::thread::sleep(Duration::from_millis(patience));
    let pid = child.as_ref().map(Child::id);
    let before = pid.map_or(0, cpu_ns);
    let begun = Instant::now();
    let thread_ns = load(ms);
    std::thread::sleep(Duration::from_millis(500));
    let (recorder_ns, wall_ns) = (pid.map_or(0, cpu_ns).saturating_sub(before), begun.elapsed().as_nanos());
    if let Some(child) = &mut child {
        if child.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Err("ended early".to_owned());
        }
        end(tool, child);
    }
    let events = (ms * CALLS_PER_MS * 2) as f64;
    Ok(Cost {
        thread_ns: thread_ns as f64 / events,
        recorder_ns: recorder_ns as f64 / events,
        wall_ns: wall_ns as f64 / events,
    })
}

fn end(tool: Tool, child: &mut Child) {
    if tool == Tool::Dwell {
        drop(child.stdin.take());
    } else if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    }
    let _ = child.wait();
}

/// Makes the load in a thread of its own and returns what CPU time that took it \[ns\].
fn load(ms: u64) -> u64 {
    let thread = std::thread::Builder::new().name(COMM.to_owned());
    let ready = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).expect("eventfd");
    let work = move || {
        let begun = (Instant::now(), thread_cpu_ns());
        for tick in 1..=ms {
            for _ in 0..CALLS_PER_MS {
                let mut fds = [rustix::event::PollFd::new(&ready, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut fds, None).expect("poll");
            }
            std::thread::sleep(Duration::from_millis(tick).saturating_sub(begun.0.elapsed()));
        }
        thread_cpu_ns() - begun.1
    };
    thread.spawn(work).expect("thread").join().expect("load")
}

fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// CPU time of all threads of a process \[ns\], from `/proc/PID/task/*/schedstat`.
fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of = |path: PathBuf| {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(|task| of(task.path())).sum()
}

fn print(costs: &[(Tool, Cost)], ms: u64) {
    let base = median(costs, Tool::None, |cost| cost.thread_ns);
    println!(
        "{} events in {ms} ms each round; without a recorder {base:.0} ns of the thread per event",
        ms * CALLS_PER_MS * 2
    );
    println!(
        "| recorder | in the traced thread, ns/event | in the recorder, ns/event | CPU of the recorder | together, ns/event |"
    );
    println!("|---|---|---|---|---|");
    for (tool, name) in
        [(Tool::Dwell, "dwell record"), (Tool::Perf, "perf record"), (Tool::Bpftrace, "bpftrace printf")]
    {
        let of = |value: fn(&Cost) -> f64| -> Vec<f64> {
            costs.iter().filter(|(of, _)| *of == tool).map(|(_, cost)| value(cost)).collect()
        };
        let (thread, recorder) = (of(|cost| cost.thread_ns), of(|cost| cost.recorder_ns));
        if thread.is_empty() {
            continue;
        }
        let thread: Vec<f64> = thread.iter().map(|ns| ns - base).collect();
        let share: Vec<f64> = of(|cost| 100.0 * cost.recorder_ns / cost.wall_ns);
        let sum: Vec<f64> = thread.iter().zip(&recorder).map(|(a, b)| a + b).collect();
        println!(
            "| {name} | {} | {} | {:.1} % | {} |",
            range(&thread),
            range(&recorder),
            middle(&share),
            range(&sum)
        );
    }
}

fn median(costs: &[(Tool, Cost)], tool: Tool, value: fn(&Cost) -> f64) -> f64 {
    middle(&costs.iter().filter(|(of, _)| *of == tool).map(|(_, cost)| value(cost)).collect::<Vec<_>>())
}

fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn range(values: &[f64]) -> String {
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
    format!("{:.0} ({low:.0} to {high:.0})", middle(values))
}
