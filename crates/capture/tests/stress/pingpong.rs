//! Threads that wake each other as fast as they may, through eventfds and ppoll(2): one pair on each CPU.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The name of every thread that waits, for filters.
pub(crate) const COMM: &str = "dwell-pingpong";

/// Running pairs; they stop when told to.
pub(crate) struct PingPong {
    stop: Arc<AtomicBool>,
    waits: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl PingPong {
    /// On all CPUs together at most `waits_per_second`; each wait is a wakeup and two trace events.
    pub(crate) fn start(waits_per_second: u64) -> PingPong {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (stop, waits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let each = waits_per_second / (2 * cpus as u64);
        let mut threads = vec![];
        for cpu in 0..cpus {
            let (ping, pong) = (eventfd(), eventfd());
            let ends = [(ping.try_clone(), pong.try_clone(), true), (Ok(pong), Ok(ping), false)];
            for (mine, other, leads) in ends {
                let player = Player { mine: mine.unwrap(), other: other.unwrap(), leads, per_second: each };
                let (stop, waits) = (stop.clone(), waits.clone());
                let thread = std::thread::Builder::new().name(COMM.to_owned());
                threads.push(thread.spawn(move || player.play(cpu, &stop, &waits)).unwrap());
            }
        }
        PingPong { stop, waits, threads }
    }

    /// Ends it and returns how often somebody waited.
    pub(crate) fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.waits.load(Ordering::Relaxed)
    }
}

struct Player {
    mine: std::fs::File,
    other: std::fs::File,
    leads: bool,
    per_second: u64,
}

impl Player {
    fn play(mut self, cpu: usize, stop: &AtomicBool, waits: &AtomicU64) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        let _ = rustix::thread::sched_setaffinity(None, &set);
        let (started, mut count, mut buffer) = (Instant::now(), 0u64, [0; 8]);
        loop {
            // The leader alone looks at `stop`; its last message is 2, and the other passes it on.
            let last = self.leads && stop.load(Ordering::Relaxed);
            if self.leads {
                self.pace(started, count);
                self.other.write_all(&if last { 2u64 } else { 1 }.to_ne_bytes()).unwrap();
            }
            let mut fds = [rustix::event::PollFd::new(&self.mine, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            count += 1;
            self.mine.read_exact(&mut buffer).unwrap();
            if !self.leads {
                self.other.write_all(&buffer).unwrap();
            }
            if u64::from_ne_bytes(buffer) == 2 {
                break;
            }
        }
        waits.fetch_add(count, Ordering::Relaxed);
    }

    fn pace(&self, started: Instant, count: u64) {
        let due = Duration::from_nanos(count.saturating_mul(1_000_000_000) / self.per_second.max(1));
        let ahead = due.saturating_sub(started.elapsed());
        if ahead > Duration::from_micros(300) {
            std::thread::sleep(ahead);
        }
    }
}

fn eventfd() -> std::fs::File {
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    std::fs::File::from(fd)
}

/// The most memory that this process ever had \[kB\].
pub(crate) fn peak_memory_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
