//! What this program does inside a machine: `inside nap CPU MEAN_US COUNT SHAPE`, `inside halt MEAN_US COUNT SHAPE
//! FILES`, `inside pingpong WORK_US MILLISECONDS`, `inside timers COUNT CYCLES`, `inside msr REGISTER VALUE`,
//! `inside clock`, `inside wake MEAN_US WARM_UP COUNT SHAPE SEED`, `inside vm CPU FILE TIMES`, `inside naps CPU
//! MEAN_US BEFORE COUNT SHAPE FILE INTO`.

use dwell_lab::gaps::{GapSpec, Gaps};
use dwell_lab::guest::{self, Sleeper, sleeper};
use dwell_lab::host::clock::Tsc;
use dwell_lab::vm::{Machine, Options, Shared, VmError};
use dwell_policy::Nanos;
use dwell_stats::SplitMix64;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// `IA32_TSC_DEADLINE` and the LVT timer register of the local APIC (Intel SDM vol. 3, 12.5.4), and the lab's vector.
const IA32_TSC_DEADLINE: u32 = 0x6e0;
const LVT_TIMER: u64 = 0x320;
const TSC_DEADLINE_MODE: u32 = 1 << 18;
const TIMER_VECTOR: u32 = 0x32;

/// Does what the words of the command line ask for, if it is started as `inside`.
pub(crate) fn run(words: &[String]) -> Option<Result<(), String>> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (program, words) = words.split_first()?;
    if !program.ends_with("inside") {
        return None;
    }
    Some(match words {
        ["nap", cpu, mean_us, count, shape] => nap(number(cpu), number(mean_us), number(count), shape),
        ["naps", cpu, mean_us, before, count, shape, file, into] => {
            let counts = [before, count].map(|word| number(word));
            counted_naps(number(cpu), number(mean_us), counts, shape, [file, into])
        }
        ["pingpong", work_us, ms] => ping_pong(number(work_us), number(ms)),
        ["halt", mean_us, count, shape, files] => {
            halt(number(mean_us), number(count), shape, *files == "statistics")
                .map_err(|error| format!("the VM: {error}"))
        }
        ["msr", register, value] => write_msr(register, number(value)),
        ["wake", mean_us, warm_up, count, shape, seed] => {
            wake(number(mean_us), [warm_up, count].map(|word| number(word)), shape, number(seed))
        }
        ["vm", cpu, file, times] => {
            vm(number(cpu), file, number(times)).map_err(|error| format!("the VM: {error}"))
        }
        ["clock"] => {
            clock();
            Ok(())
        }
        ["timers", count, cycles] => {
            timers(number(count), number(cycles)).map_err(|error| format!("the VM: {error}"))
        }
        _ => Err(format!("cannot do {words:?}")),
    })
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|error| panic!("{word}: {error}"))
}

/// Writes a register of CPU 0, which is given in hexadecimal.
fn write_msr(register: &str, value: u64) -> Result<(), String> {
    let digits = register.trim_start_matches("0x");
    let register = u64::from_str_radix(digits, 16).map_err(|error| format!("{register}: {error}"))?;
    let file = OpenOptions::new().write(true).open("/dev/cpu/0/msr");
    let written = file.and_then(|file| file.write_all_at(&value.to_le_bytes(), register));
    written.map_err(|error| format!("register {register:#x}: {error}"))
}

/// Prints the time-stamp counter and CLOCK_MONOTONIC \[ns\], read at once as far as that is possible.
fn clock() {
    let reading = || {
        let (before, time, after) =
            (Tsc::now_in_order().0, clock_gettime(ClockId::Monotonic), Tsc::now_in_order().0);
        (after - before, before.midpoint(after), time.tv_sec * 1_000_000_000 + time.tv_nsec)
    };
    let (_, tsc, ns) = (0..16).map(|_| reading()).min_by_key(|(width, ..)| *width).expect("sixteen readings");
    println!("{tsc} {ns}");
}

/// How long [`wake`] waits before its first gap. The emulator's CPUs take turns: the start of a program on one of them preempts
/// a poll on the other, and a policy that learns then does not poll until 0.8 s and 500 halts at most have passed, of which
/// at most 500 halts count in each wait.
const WAITS: [Duration; 20] = [Duration::from_millis(50); 20];

/// A thread on CPU 1 wakes one on CPU 0, again and again. Prints how long that took \[ns\]: median, 99 %; and how many
/// interrupts of other CPUs (rescheduling and function calls) CPU 0 got for a wakeup. The [`WAITS`] and the first `warm_up`
/// gaps are not counted.
fn wake(mean_us: u64, [warm_up, count]: [u64; 2], shape: &str, seed: u64) -> Result<(), String> {
    let interrupts = || -> u64 {
        let text = std::fs::read_to_string("/proc/interrupts").expect("/proc/interrupts can be read");
        let count = |name: &str| {
            let line =
                text.lines().find_map(|line| line.trim_start().strip_prefix(name)).expect("it has this kind");
            number(line.split_whitespace().next().expect("a count for CPU 0"))
        };
        count("RES:") + count("CAL:")
    };
    let (sender, receiver) = std::sync::mpsc::channel::<Instant>();
    let mut before = 0;
    let mut late = std::thread::scope(|scope| {
        let sleeper = scope.spawn(move || {
            on_cpu(0)?;
            Ok::<_, String>(receiver.iter().map(|sent| sent.elapsed()).collect::<Vec<_>>())
        });
        on_cpu(1)?;
        let mut random = SplitMix64::new(seed);
        let wake_after = |gap| {
            std::thread::sleep(gap);
            sender.send(Instant::now()).map_err(|_| "the sleeper has ended".to_owned())
        };
        WAITS.into_iter().try_for_each(&wake_after)?;
        (0..warm_up).try_for_each(|_| wake_after(gap(mean_us, shape, &mut random)))?;
        // To read the interrupts takes 0.7 ms, which preempts a poll, too; after this CPU 0 does not poll.
        std::thread::sleep(WAITS[0]);
        before = interrupts();
        (0..count).try_for_each(|_| wake_after(gap(mean_us, shape, &mut random)))?;
        drop(sender);
        sleeper.join().expect("the sleeper ends")
    })?;
    let interrupts = (interrupts() - before) as f64 / count as f64;
    late.drain(..WAITS.len() + usize::try_from(warm_up).unwrap());
    late.sort();
    let at = |share: usize| late.get(late.len() * share / 100).map_or(0, |late| late.as_nanos());
    println!("{} {} {interrupts:.3}", at(50), at(99));
    Ok(())
}

/// The calling thread runs there only.
fn on_cpu(cpu: u64) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(usize::try_from(cpu).unwrap());
    sched_setaffinity(None, &set).map_err(|error| format!("CPU {cpu}: {error}"))
}

/// The timers of the first thread are not put off, as they are by 50 us for most.
fn wakes_in_time() {
    std::fs::write("/proc/self/timerslack_ns", "1").expect("the timer slack can be written");
}

/// Sleeps and wakes on one CPU; prints how late it woke.
fn nap(cpu: u64, mean_us: u64, count: u64, shape: &str) -> Result<(), String> {
    on_cpu(cpu)?;
    let mut random = SplitMix64::new(cpu);
    let mut late = vec![];
    let begun = Instant::now();
    for _ in 0..count {
        let until = Instant::now() + gap(mean_us, shape, &mut random);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        late.push(until.elapsed());
    }
    let elapsed = begun.elapsed().as_secs_f64();
    late.sort();
    let at = |share: usize| late.get(late.len() * share / 100).map_or(0, |late| late.as_micros());
    println!(
        "nap on CPU {cpu}: {count} wakeups, {:.0}/s, late by {} us, p99 {} us",
        count as f64 / elapsed,
        at(50),
        at(99)
    );
    Ok(())
}

/// Naps of which the first `before` are not counted: what `file` has before and after the others is kept in `INTO.begun` and
/// `INTO.ended`. It is read on this CPU, because a program that starts on another one takes its turn.
fn counted_naps(
    cpu: u64,
    mean_us: u64,
    [before, count]: [u64; 2],
    shape: &str,
    [file, into]: [&str; 2],
) -> Result<(), String> {
    let read = || std::fs::read(file).map_err(|error| format!("{file}: {error}"));
    let keep = |when: &str, bytes: Vec<u8>| {
        std::fs::write(format!("{into}.{when}"), bytes).map_err(|error| format!("{into}.{when}: {error}"))
    };
    nap(cpu, mean_us, before, shape)?;
    let begun = read()?;
    nap(cpu, mean_us, count, shape)?;
    let ended = read()?;
    keep("begun", begun)?;
    keep("ended", ended)
}

/// Two threads, on CPU 0 and 1, wake each other in turn, each after so much work. Prints the round trips a second.
fn ping_pong(work_us: u64, ms: u64) -> Result<(), String> {
    let (work, duration) = (Duration::from_micros(work_us), Duration::from_millis(ms));
    let works = || {
        let until = Instant::now() + work;
        while Instant::now() < until {}
    };
    let pipe = || std::io::pipe().map_err(|error| format!("a pipe: {error}"));
    let ((mut heard, mut call), (mut answered, mut answer)) = (pipe()?, pipe()?);
    let (begun, mut rounds) = (Instant::now(), 0u64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            on_cpu(1)?;
            while heard.read_exact(&mut [0]).is_ok() {
                works();
                answer.write_all(&[0]).map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        });
        on_cpu(0)?;
        while begun.elapsed() < duration {
            works();
            let passed = call.write_all(&[0]).and_then(|()| answered.read_exact(&mut [0]));
            passed.map_err(|error| error.to_string())?;
            rounds += 1;
        }
        drop(call);
        Ok::<_, String>(())
    })?;
    println!("{:.0}", rounds as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

/// A VM whose only vCPU halts and is interrupted, again and again; with its statistics file open, as QEMU 8.1
/// and later have it, or not.
fn halt(mean_us: u64, count: u64, shape: &str, opens_statistics: bool) -> Result<(), VmError> {
    let machine = Machine::new(Options::default(), 1)?;
    let shared = machine.place::<Sleeper>()?;
    shared.always_interrupts();
    let wake = machine.irqfd(0)?;
    let mut vcpu = machine.vcpu(0, sleeper, shared)?;
    let _statistics = opens_statistics.then(|| vcpu.stats()).transpose()?;
    let kicker = vcpu.kicker();
    let mut random = SplitMix64::new(0);
    std::thread::scope(|scope| {
        let guest = std::thread::Builder::new().name("CPU 0/KVM".to_owned());
        let guest = guest.spawn_scoped(scope, move || vcpu.run(|| ControlFlow::Continue(())));
        for event in 1..=count {
            std::thread::sleep(gap(mean_us, shape, &mut random));
            shared.post(event);
            wake.write(1).expect("an eventfd can be written");
        }
        kicker.kick();
        guest.expect("a thread can be made").join().expect("the vCPU's thread ends")
    })
}

/// What [`vm`] cuts longer gaps to, and about how long it uses those that it drew.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);
const LONGEST_GAP: Nanos = Nanos(50_000_000);
/// How many it draws.
const GAPS: usize = 100;

/// The load that a file has; `None` where it is gone. A shell that writes another one into it empties it first.
fn load_in(file: &str) -> Option<GapSpec> {
    loop {
        let text = std::fs::read_to_string(file).ok()?;
        if !text.is_empty() {
            return text.trim().parse().ok();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A VM with its statistics file open, as QEMU 8.1 and later have it. Its vCPU is on one CPU and is woken
/// from the next, at the gaps that a file has, such as `exponential:1ms`, so many times as long. The file is
/// read again and again.
fn vm(cpu: u64, file: &str, times: u64) -> Result<(), VmError> {
    let machine = Machine::new(Options::default(), 1)?;
    let shared = machine.place::<Sleeper>()?;
    shared.always_interrupts();
    let wake = machine.irqfd(0)?;
    let mut vcpu = machine.vcpu(0, sleeper, shared)?;
    let _statistics = vcpu.stats()?;
    let kicker = vcpu.kicker();
    std::thread::scope(|scope| {
        let guest = std::thread::Builder::new().name("CPU 0/KVM".to_owned());
        let guest = guest.spawn_scoped(scope, move || {
            on_cpu(cpu).expect("there is this CPU");
            vcpu.run(|| ControlFlow::Continue(()))
        });
        on_cpu(cpu + 1).expect("there is the next CPU");
        wakes_in_time();
        let (mut event, mut sequence) = (0, 0);
        let mut load: Option<(GapSpec, Gaps)> = None;
        while let Some(spec) = load_in(file) {
            let gaps = match load.take().filter(|(known, _)| *known == spec) {
                Some((_, gaps)) => gaps,
                None => Gaps::open(spec.clone(), LONGEST_GAP).expect("the gaps can be read"),
            };
            let now = gaps.sequence(0, sequence, GAPS).gaps;
            load = Some((spec, gaps));
            sequence += 1;
            let begun = Instant::now();
            for gap in now {
                std::thread::sleep(Duration::from_nanos(gap.get().saturating_mul(times)).min(LONGEST_SLEEP));
                event += 1;
                shared.post(event);
                wake.write(1).expect("an eventfd can be written");
                if begun.elapsed() > LONGEST_SLEEP {
                    break;
                }
            }
        }
        kicker.kick();
        guest.expect("a thread can be made").join().expect("the vCPU's thread ends")
    })
}

/// What a guest of [`timers`] shares with its host.
#[repr(C)]
struct Deadlines {
    count: AtomicU64,
    /// Half of the shortest time ahead \[TSC cycles\].
    cycles: AtomicU64,
    /// Timers that were set and waited for.
    done: AtomicU64,
}

// SAFETY: atomics.
#[allow(unsafe_code)]
unsafe impl Shared for Deadlines {}

/// Sets timers through the local APIC; halts until every other one fires, and spins until the others do. Of nine in a
/// row, one is armed anew before it fires, and one is due at once.
extern "sysv64" fn deadlines(shared: &Deadlines) -> ! {
    guest::apic_write(LVT_TIMER, TSC_DEADLINE_MODE | TIMER_VECTOR);
    fence(Ordering::SeqCst);
    let (count, cycles) = (shared.count.load(Ordering::Acquire), shared.cycles.load(Ordering::Acquire));
    let mut number = 0;
    while number < count {
        let ahead = (2 + number % 7) * cycles;
        let deadline = guest::tsc() + ahead;
        if number % 9 == 4 {
            guest::write_msr(IA32_TSC_DEADLINE, deadline + 180 * cycles);
        }
        guest::write_msr(IA32_TSC_DEADLINE, if number % 9 == 8 { 1 } else { deadline });
        if number % 2 == 0 {
            guest::spin(ahead + cycles * 2 / 5);
        }
        guest::halt();
        number += 1;
        shared.done.store(number, Ordering::Release);
    }
    loop {
        guest::report();
    }
}

/// A VM whose only vCPU sets timers; its thread moves from CPU to CPU now and then. Prints how often the
/// guest had to be interrupted because nothing else did.
///
/// QEMU's emulator forgets the shadow of STI when an interrupt of the host ends the guest between STI and
/// HLT. What is pending for the guest then comes before its HLT, which nothing ends.
fn timers(count: u64, cycles: u64) -> Result<(), VmError> {
    let machine = Machine::new(Options::default(), 1)?;
    let shared = machine.place::<Deadlines>()?;
    shared.count.store(count, Ordering::Release);
    shared.cycles.store(cycles, Ordering::Release);
    let wake = machine.irqfd(0)?;
    let mut vcpu = machine.vcpu(0, deadlines, shared)?;
    std::thread::scope(|scope| {
        let guest = std::thread::Builder::new().name("CPU 0/KVM".to_owned());
        let guest = guest.spawn_scoped(scope, move || vcpu.run(|| ControlFlow::Break(()))).expect("a thread");
        let (mut cpu, mut before, mut stuck) = (0, 0, 0);
        while !guest.is_finished() {
            std::thread::sleep(Duration::from_millis(40));
            cpu = 1 - cpu;
            let _ = move_threads(cpu);
            let done = shared.done.load(Ordering::Acquire);
            if done == before && done < count {
                stuck += 1;
                wake.write(1).expect("an eventfd can be written");
            }
            before = done;
        }
        println!("interrupted {stuck} times");
        guest.join().expect("the vCPU's thread ends")
    })
}

/// Moves the threads of this process that run a vCPU to a CPU.
fn move_threads(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let tid = task.file_name().and_then(|name| name.to_str()?.parse().ok()).and_then(Pid::from_raw);
        if std::fs::read_to_string(task.join("comm"))?.starts_with("CPU ") {
            sched_setaffinity(tid, &set)?;
        }
    }
    Ok(())
}

/// How long to wait, about `mean_us` on average.
fn gap(mean_us: u64, shape: &str, random: &mut SplitMix64) -> Duration {
    let mean = Duration::from_micros(mean_us);
    match shape {
        "constant" => mean,
        "exponential" => Duration::from_nanos(random.exponential(mean_us as f64 * 1e3)),
        // A quarter of the mean seven times of ten, else nearly three times as much.
        "bimodal" => mean.mul_f64(if random.below(10) < 7 { 0.25 } else { 2.75 }),
        _ => panic!("no shape {shape}"),
    }
}
