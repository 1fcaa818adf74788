//! dwell-blk and qemu-storage-daemon in one run, under the same driver: `cargo build --release -p dwell-blk
//! --bins --examples && target/release/examples/peers --budget 600`
//!
//! Each *cell* is a disk (none, or a file through io_uring past the page cache), a depth, a driver that
//! sleeps or polls for completions, and a think time before each request, always or in every second phase of
//! 20 ms. In each cell every daemon is measured in short blocks, in an order that changes from round to round
//! and cancels drift; one of them twice under two names (A/A), whose difference is the error of the method.
//! On the null disk, a daemon on rust-vmm's vhost-user-backend runs as well, as that crate is and with the
//! guard in it (`examples/with_vhost_user_backend.rs`). Blocks during which other programs used a share of a
//! CPU are repeated. Requests are random reads of 4 KiB on one virtqueue with EVENT_IDX. The driver is on CPU
//! 0, the I/O threads are on CPU 1. At the end: the rows that lose, and which of the goals are met.

use anyhow::Context;
use clap::Parser;
use dwell_blk::driver::{Driver, Setup};
use dwell_lab::host::{Cpu, Pinned};
use dwell_lab::sampled::quantile;
use dwell_machine::load::Load;
use dwell_machine::threads::process_cpu_time;
use dwell_stats::{Block, Figure, SplitMix64, Unit};
use dwell_testing::contest::{
    Column, Contest, Format, Goal, Limit, Measured, chosen, load_average, print_goals,
};
use dwell_testing::process::Process;
use dwell_testing::qemu::{Release, folder};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Compare dwell-blk with qemu-storage-daemon
#[derive(Parser)]
struct Args {
    /// How long it may take in all [s]; a row needs about 30 s
    #[arg(long, default_value_t = 600)]
    budget: u64,
    /// Only the cells whose name contains this, such as `file 8` or `sleeps`; given several times: each of these
    #[arg(long)]
    only: Vec<String>,
    /// Folder of the disk's file, on a file system with direct I/O
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// What is printed: `cells`, a table of each cell with intervals; `markdown`, the tables of the book
    #[arg(long, default_value = "cells")]
    format: Format,
    /// Also write the results here, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

const BYTES: u64 = 1 << 30;
const BLOCK: Duration = Duration::from_millis(150);
/// How long a phase takes where the load changes.
const PHASE: Duration = Duration::from_millis(20);
const WARM: Duration = Duration::from_millis(15);
/// Latencies kept of a block.
const KEPT: usize = 2_000;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Cell {
    file: bool,
    depth: u16,
    polls: bool,
    think: Duration,
    /// Thinks in every second [`PHASE`] only.
    phases: bool,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let mut cells = vec![];
        for file in [false, true] {
            for polls in [false, true] {
                let think = Duration::ZERO;
                cells.extend([1, 8, 32].map(|depth| Cell { file, depth, polls, think, phases: false }));
            }
            let thinks = |us, phases| {
                let think = Duration::from_micros(us);
                Cell { file, depth: 1, polls: false, think, phases }
            };
            cells.extend([20, 100, 500].map(|us| thinks(us, false)));
            cells.push(thinks(500, true));
        }
        cells
    }

    /// Of the book's tables: which one, and the head of its column.
    fn column(self) -> (String, String) {
        let (disk, how) =
            (if self.file { "file" } else { "null" }, if self.polls { "polls" } else { "sleeps" });
        let think = match self.think.as_micros() {
            0 => String::new(),
            us => format!(", {us}{}", if self.phases { " in phases" } else { "" }),
        };
        (disk.to_owned(), format!("{} {how}{think}", self.depth))
    }

    fn name(self) -> String {
        format!(
            "{} {}, driver {}, think {} us{}",
            if self.file { "file" } else { "null" },
            self.depth,
            if self.polls { "polls" } else { "sleeps" },
            self.think.as_micros(),
            if self.phases { " in phases" } else { "" }
        )
    }
}

/// A daemon that serves, and the driver that is connected to it.
struct Peer {
    name: String,
    process: Process,
    driver: Driver,
}

/// How the daemons of a cell are started, by name; the first is what the others are compared with.
fn commands(dir: &Path, disk: Option<&Path>) -> anyhow::Result<Vec<(String, Command)>> {
    let mut all = vec![];
    for (release, name) in [(Release::Unpacked("11.1"), "qsd 11.1"), (Release::Installed, "qsd 7.2")] {
        for poll_max_ns in [0, 32_768] {
            let daemon = match release.storage_daemon() {
                Ok(daemon) => daemon,
                Err(why) => {
                    eprintln!("SKIP {why}: {name}");
                    break;
                }
            };
            let mut command = Command::new("taskset");
            command.args(["-c", "1"]).arg(daemon.get_program()).args(daemon.get_args());
            for (key, value) in daemon.get_envs() {
                value.map(|value| command.env(key, value));
            }
            let node = match disk {
                None => format!("driver=null-co,node-name=n0,size={BYTES},read-zeroes=off"),
                Some(path) => {
                    format!(
                        "driver=file,node-name=n0,filename={},cache.direct=on,aio=io_uring",
                        path.display()
                    )
                }
            };
            let socket = dir.join(format!("{name} {poll_max_ns}"));
            command
                .args(["--object", &format!("iothread,id=io0,poll-max-ns={poll_max_ns}"), "--blockdev", &node])
                .arg("--export")
                .arg(format!("type=vhost-user-blk,id=v0,node-name=n0,writable=on,iothread=io0,addr.type=unix,addr.path={}", socket.display()));
            all.push((format!("{name} {poll_max_ns}"), command));
        }
    }
    let examples = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    let example = examples.join("with_vhost_user_backend");
    if disk.is_none() && !example.exists() {
        eprintln!("SKIP not built: the example with_vhost_user_backend");
    }
    let prices = [("vhost-user-backend", None), ("vhost-user-backend, leader 100 %", Some("100"))];
    for (name, price) in prices.into_iter().filter(|_| disk.is_none() && example.exists()) {
        let mut command = Command::new(&example);
        command.arg("--socket").arg(dir.join(name)).args(["--cpu", "1"]);
        price.map(|price| command.args(["--latency-price", price]));
        all.push((name.to_owned(), command));
    }
    let program = examples.parent().map(|dir| dir.join("dwell-blk"));
    let program = program
        .filter(|program| program.exists())
        .context("no dwell-blk beside this program; build it: cargo build --release -p dwell-blk")?;
    for (name, policy) in [
        ("blk never", &["--policy", "never"][..]),
        ("blk fixed 50us", &["--policy", "fixed=50us"]),
        ("blk fixed 1ms", &["--policy", "fixed=1ms"]),
        ("blk leader 0 %", &["--latency-price", "0"]),
        ("blk leader 100 %", &["--latency-price", "100"]),
        ("blk leader 1000 %", &["--latency-price", "1000"]),
    ] {
        let mut command = Command::new(&program);
        command.arg("--socket").arg(dir.join(name)).args(["--cpu", "1"]).args(policy);
        match disk {
            None => command.args(["--null", "1G"]),
            Some(path) => command.arg("--direct").arg("--file").arg(path),
        };
        all.push((name.to_owned(), command));
    }
    Ok(all)
}

fn start(dir: &Path, name: String, mut command: Command, depth: u16) -> anyhow::Result<Peer> {
    let socket = dir.join(&name);
    let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut process = Process(process.context("cannot start a daemon")?);
    let setup = Setup { depth, ..Setup::default() };
    let driver = Driver::connect(&socket, setup).with_context(|| match process.try_wait() {
        Ok(Some(status)) => format!("{name} has ended: {status}"),
        _ => format!("cannot use {name}"),
    })?;
    Ok(Peer { name, process, driver })
}

/// One block of requests.
fn block(peer: &mut Peer, cell: Cell, sequence: u64) -> std::io::Result<Block> {
    let pid = peer.process.id();
    let (queue, memory) = peer.driver.queue(0);
    let mut random = SplitMix64::new(sequence);
    let mut free: Vec<u16> = (0..cell.depth).collect();
    let mut began = vec![Instant::now(); usize::from(cell.depth)];
    let mut latencies = vec![];
    let (begin, mut measured) = (Instant::now(), None);
    let (mut done, mut stride) = (0u64, 1u64);
    loop {
        let now = Instant::now();
        if measured.is_none() && now - begin >= WARM {
            measured = Some((now, process_cpu_time(pid)?, queue.kicks));
            done = 0;
            latencies.clear();
        }
        let over = now - begin >= WARM + BLOCK;
        if over && free.len() == usize::from(cell.depth) {
            break;
        }
        if !over && !free.is_empty() {
            let quick = cell.phases && ((now - begin).as_millis() / PHASE.as_millis()).is_multiple_of(2);
            if !cell.think.is_zero() && !quick {
                let until = now + Duration::from_nanos(random.exponential(cell.think.as_nanos() as f64));
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            // One reading of the clock for what is submitted together: a driver that reads it for each
            // request is what limits fast devices.
            let now = Instant::now();
            while let Some(number) = free.pop() {
                began[usize::from(number)] = now;
                queue.submit(memory, number, 0, random.below(BYTES / 4096) * 8, 4096, false);
            }
            queue.publish(memory)?;
        }
        let mut any = false;
        while let Some((number, status)) = queue.completed(memory) {
            if status != 0 {
                return Err(std::io::Error::other("a request failed"));
            }
            any = true;
            done += 1;
            if done.is_multiple_of(stride) {
                let ns = began[usize::from(number)].elapsed().as_nanos();
                latencies.push(u64::try_from(ns).unwrap_or(u64::MAX));
                if latencies.len() >= KEPT {
                    // Every second one, so that they are from all of the block.
                    stride *= 2;
                    let mut keep = false;
                    latencies.retain(|_| {
                        keep = !keep;
                        keep
                    });
                }
            }
            free.push(number);
        }
        if !any && free.len() < usize::from(cell.depth) {
            if cell.polls {
                std::hint::spin_loop();
            } else if !queue.listens(memory) && !queue.sleep(Duration::from_secs(5))? {
                return Err(std::io::Error::other("a request is not answered"));
            }
        }
    }
    let Some((since, cpu, kicks)) = measured else { return Err(std::io::Error::other("too short")) };
    let elapsed = since.elapsed().as_secs_f64();
    let cpu = process_cpu_time(pid)?.saturating_sub(cpu).get() as f64;
    let requests = done.max(1) as f64;
    Ok(Block::new(latencies)
        .figure("iops", requests / elapsed)
        .figure("cpu_ns_per_request", cpu / requests)
        .figure("cpu", cpu / elapsed / 1e9)
        .figure("kicks", (queue.kicks - kicks) as f64 / requests))
}

fn figures() -> Vec<Figure> {
    vec![
        Figure::of_block("iops", Unit::PerSecond),
        Figure::of_block("cpu_ns_per_request", Unit::Nanos),
        Figure::of_block("cpu", Unit::Share),
        Figure::of_block("kicks", Unit::Count),
        quantile(0.5),
        quantile(0.99),
    ]
}

const COLUMNS: [Column; 8] = [
    Column::value("thousand requests/s", "iops", 1e3),
    Column::value("CPU us/request", "cpu_ns_per_request", 1e3),
    Column::ratio("CPU, ratio", "cpu_ns_per_request"),
    Column::ratio("requests/s, ratio", "iops"),
    Column::value("p50 us", "p50", 1e3),
    Column::value("p99 us", "p99", 1e3),
    Column::value("CPU %", "cpu", 0.01),
    Column::value("kicks/request", "kicks", 1.0),
];

/// The goals, over whatever was measured. QEMU's row is the best of its settings and releases in each cell.
fn goals(measured: &[Measured]) -> Vec<Goal> {
    let best = |cell: &str, rows: &str, figure: &str, most: bool| {
        let cell = measured.iter().find(|found| found.measurements.name == cell)?;
        let rows = cell.rows.iter().filter(|row| row.starts_with(rows) && !row.ends_with("(A/A)"));
        let values = rows.filter_map(|row| Some((row, cell.results.row(row, figure)?.value?.value)));
        let sign = if most { -1.0 } else { 1.0 };
        values.min_by(|(_, a), (_, b)| (sign * a).total_cmp(&(sign * b))).map(|(row, _)| row.clone())
    };
    let goal = |cell: Cell, arm: &str, against: Option<String>, conditions: &[_]| Goal {
        cell: cell.name(),
        arm: arm.to_owned(),
        // Without such a row it is not measured.
        against: against.or(Some("none".to_owned())),
        conditions: conditions.to_vec(),
    };
    let (cpu, requests) = (("CPU", "cpu_ns_per_request"), ("requests/s", "iops"));
    let mut goals = vec![];
    for cell in Cell::all() {
        let name = cell.name();
        match (cell.file, cell.think.as_micros(), cell.phases) {
            (false, 0, _) => {
                let cheapest = best(&name, "qsd", cpu.1, false);
                let limits = [(cpu.0, cpu.1, Limit::AtMost(0.4)), (requests.0, requests.1, Limit::More)];
                goals.push(goal(cell, "blk leader 100 %", cheapest, &limits));
            }
            (true, 0, _) if cell.depth >= 8 => {
                let fastest = best(&name, "qsd", requests.1, true);
                let limits = [
                    (requests.0, requests.1, Limit::NotLess),
                    ("p99", "p99", Limit::NotMore),
                    (cpu.0, cpu.1, Limit::AtMost(0.8)),
                ];
                for arm in ["blk leader 0 %", "blk leader 100 %"] {
                    goals.push(goal(cell, arm, fastest.clone(), &limits));
                }
            }
            (true, 0, _) => {
                let never = Some("blk never".to_owned());
                goals.push(goal(cell, "blk leader 0 %", never, &[(cpu.0, cpu.1, Limit::AtMost(1.05))]));
                let quickest = best(&name, "blk fixed", "p50", false);
                goals.push(goal(cell, "blk leader 1000 %", quickest, &[("p50", "p50", Limit::AtMost(1.1))]));
            }
            (_, 500, false) => {
                for arm in ["blk leader 0 %", "blk leader 100 %"] {
                    let never = Some("blk never".to_owned());
                    goals.push(goal(cell, arm, never, &[(cpu.0, cpu.1, Limit::AtMost(1.05))]));
                }
            }
            _ => {}
        }
        if cell.depth == 1 && cell.think.is_zero() {
            let kicks = vec![("kicks/request", "kicks", Limit::AtMost(0.1))];
            let arm = "blk leader 100 %".to_owned();
            goals.push(Goal { cell: name, arm, against: None, conditions: kicks });
        }
    }
    goals
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let ends = Instant::now() + Duration::from_secs(args.budget);
    let cells = chosen(&Cell::all(), Cell::name, &args.only).map_err(anyhow::Error::msg)?;
    let dir = tempfile::tempdir().context("no temporary folder")?;
    let disk = tempfile::NamedTempFile::new_in(&args.folder).context("no file for the disk")?;
    // Blocks that were never written would be answered without the disk.
    let chunk: Vec<u8> = (0..1u32 << 20).map(|byte| u8::try_from(byte * 7 % 251).unwrap_or(0)).collect();
    if cells.iter().any(|cell| cell.file) {
        for _ in 0..BYTES >> 20 {
            std::io::Write::write_all(&mut disk.as_file(), &chunk).context("cannot write the disk")?;
        }
        disk.as_file().sync_all().context("cannot write the disk")?;
    }
    println!(
        "dwell-blk {} on Linux {}; QEMUs of {}; load average {}",
        env!("CARGO_PKG_VERSION"),
        rustix::system::uname().release().to_string_lossy(),
        folder().display(),
        load_average()
    );
    let mut contest = Contest {
        figures: figures(),
        columns: &COLUMNS,
        compared: ["cpu_ns_per_request", "iops"],
        ours: |server| server.starts_with("blk"),
        ends,
        format: args.format,
        losing: vec![],
        measured: vec![],
    };
    for (number, &cell) in cells.iter().enumerate() {
        let path = cell.file.then(|| disk.path());
        let mut peers = vec![];
        for (name, command) in commands(dir.path(), path)? {
            peers.push(RefCell::new(start(dir.path(), name, command, cell.depth)?));
        }
        let _pinned = Pinned::to(Cpu(0)).context("cannot run on CPU 0")?;
        let names: Vec<String> = peers.iter().map(|peer| peer.borrow().name.clone()).collect();
        let mut load = Load::open()?;
        peers.iter().for_each(|peer| load.add_own(peer.borrow().process.id()));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let left = cells.len() - number;
        contest.cell((&cell.name(), cell.column()), &names, left, &mut load, |server, sequence| {
            block(&mut peers[server].borrow_mut(), cell, sequence)
        })?;
        // Sockets of the next cell have the same names.
        drop(peers);
        for name in names {
            let _ = std::fs::remove_file(dir.path().join(name));
        }
    }
    contest.print_end();
    print_goals(&goals(&contest.measured), &contest.measured);
    if let Some(path) = args.json {
        let all: Vec<_> = contest.measured.iter().map(|cell| &cell.results).collect();
        std::fs::write(&path, serde_json::to_string(&all)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
