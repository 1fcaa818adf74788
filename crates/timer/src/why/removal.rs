//! What removes the lines of a bill.
//!
//! A removal is named only where the events carry it: the device was accessed, or its line woke a vCPU. It saves the
//! lines of its cause, and of what each wakeup costs beside them (halts, polls, waits of the main loop) the share of its
//! wakeups.

use super::slices::Sliced;
use super::tasks::{MONITOR, encodes};
use super::watch::SOCKET;
use super::{Bill, Cause, Class, Device, Line, Wake};
use dwell_knobs::finding::manager::{HPET, IO_POLLING, WINDOWS};
use dwell_machine::{Vmm, VmmKind};
use dwell_policy::Nanos;
use serde::{Deserialize, Serialize};

/// Something that removes CPU time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// What is removed.
    pub what: String,
    /// What removes it, in the words of what starts the VM.
    pub how: String,
    /// What it saves in the time that was watched \[ns of CPU\].
    pub saves_ns: u64,
    /// The 95 % interval of that, from slices of the time; `None`: there were too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saves_interval_ns: Option<[u64; 2]>,
    /// What it saves the host of this machine, by what a halt costs there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves_on_host_ns: Option<u64>,
    /// What it costs.
    pub costs: String,
}

/// What is known beside the bill.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    pub vmm: Option<&'a Vmm>,
    /// How long it was watched \[ns\].
    pub span_ns: u64,
    /// What it used before it was watched, if that is known \[ns of CPU a second\].
    pub unwatched_ns_per_s: Option<u64>,
    /// The bill of each slice of the time, for intervals.
    pub slices: &'a [Bill],
    /// Half the width of the interval of what it uses a second, as a share of that.
    pub used_half_width: Option<f64>,
    /// What a halt and its wakeup cost \[ns of CPU\].
    pub halt_cost: Nanos,
}

/// Less than this share of a CPU is worth no advice: 1/1000.
const LEAST: u64 = 1_000;
/// Timers a second of one vCPU from which they are worth a look.
const TICKS_PER_S: u64 = 20;

/// What removes CPU time, what saves most first.
pub fn removals(whole: &Bill, known: &Known<'_>) -> Vec<Removal> {
    let bill = Sliced { whole, slices: known.slices, of_cpu: true, beside: known.used_half_width };
    let mut all: Vec<Removal> = [
        hpet(bill, known),
        clock(bill, known, Device::Rtc),
        clock(bill, known, Device::AcpiTimer),
        pit(bill),
        own_timers(bill, known),
        polls(bill, known),
        monitor(bill),
    ]
    .into_iter()
    .flatten()
    .chain(io_threads(bill, known))
    .collect();
    // Events cost those that cause them: what is saved is of what is used unwatched.
    let watched = per_s(whole.cpu_ns, known.span_ns);
    let unwatched = known.unwatched_ns_per_s.unwrap_or(watched);
    for removal in &mut all {
        removal.saves_ns = share(removal.saves_ns, unwatched, watched);
        let limits = removal.saves_interval_ns;
        removal.saves_interval_ns = limits.map(|limits| limits.map(|ns| share(ns, unwatched, watched)));
    }
    worth(all, known.span_ns)
}

/// Those worth a look, what saves most first.
pub(super) fn worth(mut all: Vec<Removal>, span_ns: u64) -> Vec<Removal> {
    let saves = |removal: &Removal| removal.saves_ns.max(removal.saves_on_host_ns.unwrap_or(0));
    all.retain(|removal| saves(removal) >= (span_ns / LEAST).max(1));
    all.sort_by_key(|removal| std::cmp::Reverse(saves(removal)));
    all
}

/// CPU time and counts of the lines for which this holds.
pub(super) fn sum(bill: &Bill, is: impl Fn(&Line) -> bool) -> (u64, u64) {
    let lines = bill.lines.iter().filter(|line| is(line));
    lines.fold((0, 0), |(ns, count), line| (ns + line.cpu_ns, count + line.count))
}

/// What is so much in a span of time, in a second of it.
pub(super) fn per_s(much: u64, span_ns: u64) -> u64 {
    u64::try_from(u128::from(much) * 1_000_000_000 / u128::from(span_ns.max(1))).unwrap_or(u64::MAX)
}

/// What falls on `part` of the `whole` of what took `ns`, rounded down.
pub(super) fn share(ns: u64, part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(part.min(whole)) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

/// What vCPUs do after these wakeups, and what the wakeups cost beside it.
fn of_wakeups(bill: &Bill, is: impl Fn(Wake) -> bool) -> u64 {
    let (run_ns, wakeups) = sum(bill, |line| matches!(line.cause, Cause::Run { wake } if is(wake)));
    let all = sum(bill, |line| matches!(line.cause, Cause::Run { .. })).1;
    let beside = |cause: &Cause| matches!(cause, Cause::Halt | Cause::FailedPoll | Cause::SuccessfulPoll);
    run_ns + share(sum(bill, |line| beside(&line.cause)).0, wakeups, all)
}

/// What the main loop does after these, and what the waits before it cost.
fn of_main_loop(bill: &Bill, is: impl Fn(&Cause) -> bool) -> u64 {
    let of = |is: &dyn Fn(&Cause) -> bool| sum(bill, |line| line.class == Class::MainLoop && is(&line.cause));
    let (work_ns, wakeups) = of(&|cause| is(cause));
    // A wait that takes no time, which many a wakeup has after it, is of the wakeup before.
    let woken = of(&|cause| matches!(cause, Cause::Timeout { .. } | Cause::Ready { .. })).1;
    let (wait_ns, _) = of(&|cause| *cause == Cause::Wait);
    let (before_ns, _) = of(&|cause| *cause == Cause::BeforeWait);
    work_ns + share(wait_ns + before_ns, wakeups, woken)
}

/// What a device costs: its accesses, its interrupts, and the timers that the main loop has for it.
fn of_device(bill: &Bill, device: Device) -> u64 {
    let accesses = sum(bill, |line| match &line.cause {
        Cause::Device { device: accessed } | Cause::Exit { device: Some(accessed), .. } => {
            *accessed == device
        }
        _ => false,
    });
    accesses.0
        + of_wakeups(bill, |wake| wake.pc_timer() == Some(device))
        + of_main_loop(bill, |cause| *cause == Cause::Timeout { device: Some(device) })
}

fn is_for_windows(vmm: &Vmm) -> bool {
    vmm.options.as_ref().is_some_and(|options| !options.hyper_v.is_empty())
}

fn qemu<'a>(known: &Known<'a>) -> Option<&'a Vmm> {
    known.vmm.filter(|vmm| vmm.kind == VmmKind::Qemu)
}

fn hpet(bill: Sliced<'_>, known: &Known<'_>) -> Option<Removal> {
    let vmm = qemu(known)?;
    // Without an HPET it is a PIT of the VMM's that has the line.
    let has = vmm.options.as_ref().is_none_or(|options| options.hpet != Some(false));
    let (words, then) = match is_for_windows(vmm) {
        true => (&WINDOWS, "Hyper-V synthetic timers"),
        false => (&HPET, "its local APIC timers"),
    };
    has.then(|| Removal {
        what: "HPET: its accesses, its interrupts, and the main loop's timers for it".to_owned(),
        how: words.of(vmm.manager).to_owned(),
        costs: format!("a restart of the VM; the guest then keeps time by {then}, which cost less"),
        ..bill.saves(|bill| of_device(bill, Device::Hpet))
    })
}

fn clock(bill: Sliced<'_>, known: &Known<'_>, device: Device) -> Option<Removal> {
    let vmm = known.vmm?;
    let how = match is_for_windows(vmm) {
        true => WINDOWS.of(vmm.manager).to_owned(),
        false => "in a Linux guest: kvm-clock or tsc as clock source (no clocksource= and no hpet=, notsc on its command line)"
            .to_owned(),
    };
    Some(Removal {
        what: format!("{}: a guest that keeps time by it", device.name()),
        how,
        costs: "a restart of the guest".to_owned(),
        ..bill.saves(|bill| of_device(bill, device))
    })
}

fn pit(bill: Sliced<'_>) -> Option<Removal> {
    let is_thread = |line: &Line| {
        line.class == Class::Kernel && line.thread.as_ref().is_some_and(|name| name.starts_with("kvm-pit/"))
    };
    Some(Removal {
        what: "PIT: its interrupts, and KVM's thread that sends them".to_owned(),
        how: "in the guest: a kernel that keeps time by the local APIC timer (no nolapic, noapic or nohz=off on its command line)"
            .to_owned(),
        costs: "a restart of the guest; a boot loader or DOS has no other timer".to_owned(),
        ..bill.saves(|bill| of_device(bill, Device::Pit) + sum(bill, is_thread).0)
    })
}

fn own_timers(bill: Sliced<'_>, known: &Known<'_>) -> Option<Removal> {
    let is_own = |wake: Wake| matches!(wake, Wake::LocalTimer | Wake::SyntheticTimer);
    let (_, fired) = sum(bill.whole, |line| matches!(line.cause, Cause::Run { wake } if is_own(wake)));
    let synthetic = sum(bill.whole, |line| line.cause == Cause::Run { wake: Wake::SyntheticTimer }).1 > 0;
    let sets = |line: &Line| {
        let device = if let Cause::Exit { device, .. } = &line.cause { *device } else { None };
        matches!(device, Some(Device::LocalTimer | Device::SyntheticTimer))
    };
    let per_s = per_s(fired, known.span_ns);
    let vmm = known.vmm;
    let how = match vmm.filter(|vmm| is_for_windows(vmm)) {
        Some(vmm) if vmm.options.as_ref().is_some_and(|options| !options.has("hv-stimer")) => {
            WINDOWS.of(vmm.manager).to_owned()
        }
        Some(_) => "in the guest: what asks for short timers (powercfg /energy)".to_owned(),
        None => "in the guest: dwell why there names what sets timers. 100, 250, 300 or 1,000 a second of each vCPU are a tick that \
                 goes on while it is idle: no nohz=off on its command line, CONFIG_NO_HZ_IDLE"
            .to_owned(),
    };
    let whose = if synthetic { "Hyper-V synthetic timers" } else { "timers of the guest's local APICs" };
    (per_s >= TICKS_PER_S).then(|| Removal {
        what: format!("{whose}: {per_s} wakeups a second by them"),
        how,
        costs: "what these timers are for comes later, or not at all".to_owned(),
        ..bill.saves(|bill| of_wakeups(bill, is_own) + sum(bill, sets).0)
    })
}

fn polls(bill: Sliced<'_>, known: &Known<'_>) -> Option<Removal> {
    let successful = |bill: &Bill| sum(bill, |line| line.cause == Cause::SuccessfulPoll);
    let saves_ns = |bill: &Bill| {
        let (ns, successes) = successful(bill);
        let polled = ns + sum(bill, |line| line.cause == Cause::FailedPoll).0;
        polled.saturating_sub(known.halt_cost.get().saturating_mul(successes))
    };
    let successes = successful(bill.whole).1;
    let vmm = known.vmm?;
    Some(Removal {
        what: "halt polling of this VM's vCPUs; the halts that replace successful polls are taken off"
            .to_owned(),
        how: format!(
            "halt_poll_ns=0 for all VMs of this host, or a plan for this load: dwell record host --pid {}, then dwell tune",
            vmm.pid
        ),
        costs: format!(
            "{successes} wakeups of those watched would have come later, by the latency of a halt"
        ),
        ..bill.saves(saves_ns)
    })
}

/// The main loop works for sockets: a monitor, or a display, which it also refreshes by a timer, and hands over what the
/// thread that encodes has done.
fn monitor(bill: Sliced<'_>) -> Option<Removal> {
    let serves = |name: &str| name == MONITOR || encodes(name);
    let is_clients = |cause: &Cause| match cause {
        Cause::Ready { descriptor: Some(kind), by: None } => kind == SOCKET,
        Cause::Ready { by: Some(thread), .. } => serves(thread),
        _ => *cause == Cause::Timeout { device: Some(Device::Display) },
    };
    let is_thread = |line: &Line| line.thread.as_deref().is_some_and(serves);
    Some(Removal {
        what: "clients of the VMM: those that ask its monitor, or have its display open".to_owned(),
        how: "ask less often (statistics, guest agents, exporters), or close the display".to_owned(),
        costs: "what they show is older".to_owned(),
        ..bill.saves(|bill| of_main_loop(bill, is_clients) + sum(bill, is_thread).0)
    })
}

fn io_threads(bill: Sliced<'_>, known: &Known<'_>) -> Vec<Removal> {
    let Some(vmm) = qemu(known) else { return vec![] };
    let polling = vmm.io_threads.iter().filter(|thread| thread.parameters.get("poll-max-ns") != Some(&0));
    let of = |thread: &dwell_machine::IoThread| {
        let (id, comm) = (thread.id.as_ref()?, thread.comm.as_ref().filter(|comm| *comm != MONITOR)?);
        let is_it = |line: &Line| line.class == Class::IoThread && line.thread.as_ref() == Some(comm);
        Some(Removal {
            what: format!("polling of I/O thread {id}, up to the work that it does without a system call"),
            how: format!(
                "now: dwell iothread set --qmp SOCKET {id} poll-max-ns=0; {}",
                IO_POLLING.of(vmm.manager)
            ),
            costs: "each request then waits for a wakeup of the thread".to_owned(),
            ..bill.saves(|bill| sum(bill, |line| is_it(line) && line.cause == Cause::BeforeWait).0)
        })
    };
    polling.filter_map(of).collect()
}
