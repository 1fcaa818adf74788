//! dwell-blk and qemu-storage-daemon in one run, under the same driver: `cargo run --release -p dwell-blk --example peers -- --budget 600`
//!
//! Each *cell* is a disk (none, or a file through io_uring past the page cache), a depth, a driver that sleeps or polls for
//! completions, and a think time before each request. In each cell every daemon is measured in short blocks, in an order that changes
//! from round to round and cancels drift; one of them twice under two names (A/A), whose difference is the error of the
//! method. Blocks during which other programs used a share of a CPU are repeated. Requests are random reads of 4 KiB on one virtqueue
//! with EVENT_IDX. The driver is on CPU 0, the I/O threads are on CPU 1.

use anyhow::{Context, bail};
use clap::Parser;
use dwell_blk::driver::{Driver, Setup};
use dwell_lab::host::thread::process_cpu_time;
use dwell_lab::host::{Cpu, Load, Pinned};
use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Figure, Interval, Results, SplitMix64, Unit};
use dwell_testing::process::Process;
use dwell_testing::qemu::{Release, folder};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Compare dwell-blk with qemu-storage-daemon
#[derive(Parser)]
struct Args {
    /// How long it may take in all [s]; a row needs about 30 s
    #[arg(long, default_value_t = 600)]
    budget: u64,
    /// Only the cells whose name contains this, such as `file 8` or `sleeps`
    #[arg(long, default_value = "")]
    only: String,
    /// Folder of the disk's file, on a file system with direct I/O
    #[arg(long, default_value = "target")]
    folder: PathBuf,
    /// Also write the results here, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

const BYTES: u64 = 1 << 30;
const BLOCK: Duration = Duration::from_millis(150);
const WARM: Duration = Duration::from_millis(15);
/// Latencies kept of a block.
const KEPT: usize = 2_000;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Cell {
    file: bool,
    depth: u16,
    polls: bool,
    think: Duration,
}

impl Cell {
    fn all() -> Vec<Cell> {
        let mut cells = vec![];
        for file in [false, true] {
            for polls in [false, true] {
                cells.extend([1, 8, 32].map(|depth| Cell { file, depth, polls, think: Duration::ZERO }));
            }
            cells.extend([20, 100, 500].map(|us| Cell {
                file,
                depth: 1,
                polls: false,
                think: Duration::from_micros(us),
            }));
        }
        cells
    }

    fn name(self) -> String {
        format!(
            "{} {}, driver {}, think {} us",
            if self.file { "file" } else { "null" },
            self.depth,
            if self.polls { "polls" } else { "sleeps" },
            self.think.as_micros()
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
    let program = std::env::current_exe()?.parent().and_then(Path::parent).map(|dir| dir.join("dwell-blk"));
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
    let begin = Instant::now();
    while !socket.exists() {
        if let Some(status) = process.try_wait()? {
            bail!("{name} has ended: {status}");
        }
        if begin.elapsed() > Duration::from_secs(20) {
            bail!("{name} does not listen");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(50));
    let setup = Setup { depth, ..Setup::default() };
    let driver = Driver::connect(&socket, setup).with_context(|| format!("cannot use {name}"))?;
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
            if !cell.think.is_zero() {
                let until = now + Duration::from_nanos(random.exponential(cell.think.as_nanos() as f64));
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            while let Some(number) = free.pop() {
                began[usize::from(number)] = Instant::now();
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
        Figure::quantile(0.5).named("p50"),
        Figure::quantile(0.99).named("p99"),
    ]
}

fn shown(interval: Option<Interval>, scale: f64) -> String {
    let digits = |value: f64| {
        if value.abs() >= 100.0 {
            0
        } else if value.abs() >= 10.0 {
            1
        } else {
            2
        }
    };
    match interval.map(|interval| (interval.value / scale, interval.limits())) {
        Some((value, Some([low, high]))) => {
            let digits = digits(value);
            format!("{value:.digits$} [{:.digits$}, {:.digits$}]", low / scale, high / scale)
        }
        Some((value, None)) => format!("{value:.*}", digits(value)),
        None => "–".into(),
    }
}

/// Prints the table of a cell; the rows that lose by CPU time or requests per second, beyond the intervals.
fn print(cell: Cell, results: &Results, arms: &[String]) -> Vec<String> {
    println!("\n### {}\n", cell.name());
    let dwell_stats::Gating { blocks, rejected, disturbed, .. } = results.gating;
    println!(
        "{} rounds; of {blocks} blocks {disturbed} count in spite of foreign load, {rejected} attempts do not\n",
        results.rounds
    );
    println!(
        "| daemon | thousand requests/s | CPU us/request | CPU, ratio | requests/s, ratio | p50 us | p99 us | CPU % | kicks/request |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut losing = vec![];
    for arm in arms {
        let value = |figure, scale| shown(results.row(arm, figure).and_then(|row| row.value), scale);
        let ratio = |figure| results.row(arm, figure).and_then(|row| row.ratio());
        let (cpu, iops) = (ratio("cpu_ns_per_request"), ratio("iops"));
        println!(
            "| {arm} | {} | {} | {} | {} | {} | {} | {} | {} |",
            value("iops", 1e3),
            value("cpu_ns_per_request", 1e3),
            shown(cpu, 1.0),
            shown(iops, 1.0),
            value("p50", 1e3),
            value("p99", 1e3),
            value("cpu", 0.01),
            value("kicks", 1.0),
        );
        let dearer = cpu.is_some_and(|cpu| cpu.low > 1.0);
        let slower = iops.is_some_and(|iops| iops.high < 1.0);
        if arm.starts_with("blk") && (dearer || slower) {
            let what = [(dearer, "more CPU per request"), (slower, "fewer requests")];
            let what: Vec<&str> = what.iter().filter(|(is, _)| *is).map(|(_, what)| *what).collect();
            losing.push(format!("{}: {arm}: {} than {}", cell.name(), what.join(" and "), arms[0]));
        }
    }
    losing
}

fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let begin = Instant::now();
    let budget = Duration::from_secs(args.budget);
    let cells: Vec<Cell> = Cell::all().into_iter().filter(|cell| cell.name().contains(&args.only)).collect();
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
    let (mut losing, mut all) = (vec![], vec![]);
    for (number, &cell) in cells.iter().enumerate() {
        let path = cell.file.then(|| disk.path());
        let mut peers = vec![];
        for (name, command) in commands(dir.path(), path)? {
            peers.push(RefCell::new(start(dir.path(), name, command, cell.depth)?));
        }
        let _pinned = Pinned::to(Cpu(0)).context("cannot run on CPU 0")?;
        let names: Vec<String> = peers.iter().map(|peer| peer.borrow().name.clone()).collect();
        let mut arms = Arms::new(&names[0], 0usize);
        for (place, name) in names.iter().enumerate().skip(1) {
            arms = arms.arm(name, place);
        }
        let mut shown: Vec<String> = arms.as_slice().iter().map(|arm| arm.name.clone()).collect();
        shown.rotate_right(1);
        shown.swap(0, 1);
        let left = budget.saturating_sub(begin.elapsed());
        let share = left / u32::try_from(cells.len() - number).unwrap_or(1);
        let options = CampaignOptions {
            min_rounds: 6,
            budget: share,
            foreign_limit: 0.1,
            repeats: 2,
            quiet_wait: Duration::from_millis(500),
            ..CampaignOptions::default()
        };
        let campaign = Campaign::new(&cell.name(), arms, figures(), options)?;
        let mut load = Load::open()?;
        peers.iter().for_each(|peer| load.add_own(peer.borrow().process.id()));
        let measured = campaign.run(&mut load, &AtomicBool::new(false), &mut |_| (), |trial| {
            block(&mut peers[*trial.setting].borrow_mut(), cell, trial.sequence)
        })?;
        let results = measured.results();
        losing.extend(print(cell, &results, &shown));
        results.warnings.iter().for_each(|warning| println!("* {warning}"));
        all.push(results);
        // Sockets of the next cell have the same names.
        drop(peers);
        for name in &names {
            let _ = std::fs::remove_file(dir.path().join(name));
        }
    }
    println!("\n### Rows that lose to the first one beyond the intervals\n");
    losing.iter().for_each(|row| println!("* {row}"));
    if losing.is_empty() {
        println!("none");
    }
    println!("\nload average at the end: {}", load_average());
    if let Some(path) = args.json {
        std::fs::write(&path, serde_json::to_string(&all)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
