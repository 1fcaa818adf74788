//! KVM's statistics of a real vCPU that halts and is woken, read in both ways. Needs /dev/kvm; debugfs needs root.

#![allow(unsafe_code)] // Guest memory and one ioctl.
#![cfg(target_arch = "x86_64")]

use dwell_capture::kvm_stats::{Bound, Counters, Snapshot, Source, StatsFile, StatsReader};
use dwell_policy::Nanos;
use dwell_testing::say;
use kvm_bindings::{KVM_CAP_HALT_POLL, kvm_enable_cap, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::EventFd;

/// Where the vCPU's wakes come in.
const GSI: u32 = 5;
/// `KVM_GET_STATS_FD`, `_IO(0xAE, 0xce)`.
const KVM_GET_STATS_FD: libc::Ioctl = 0xaece;

#[repr(align(4096))]
struct Memory([u8; 0x10000]);

/// A VM with one vCPU in real mode: it halts until it has been woken so many times, then leaves.
struct Halter {
    wake: EventFd,
    vcpu: VcpuFd,
    // Dropped after the descriptors above, and the memory after the VM.
    _vm: VmFd,
    _memory: Box<Memory>,
}

impl Halter {
    fn new(wakes: u16, halt_poll_ns: u64) -> Result<Halter, kvm_ioctls::Error> {
        const CODE: u64 = 0x1000;
        const HANDLER: u16 = 0x0800;
        const LEFT: usize = 0x900;
        let mut memory = Box::new(Memory([0; 0x10000]));
        // Every vector leads to the handler.
        for vector in 0..256 {
            memory.0[4 * vector..4 * vector + 2].copy_from_slice(&HANDLER.to_le_bytes());
        }
        // dec word [0x900]; jnz 1f; out 0xf0, al; 1: iret
        memory.0[0x800..0x809].copy_from_slice(&[0xff, 0x0e, 0x00, 0x09, 0x75, 0x02, 0xe6, 0xf0, 0xcf]);
        memory.0[LEFT..LEFT + 2].copy_from_slice(&wakes.to_le_bytes());
        let code = [
            0xb0, 0x11, 0xe6, 0x20, // first controller: edge triggered, cascaded, ICW4 follows
            0xb0, 0x20, 0xe6, 0x21, // vectors from 0x20
            0xb0, 0x04, 0xe6, 0x21, // the second one is on line 2
            0xb0, 0x03, 0xe6, 0x21, // 8086, acknowledges by itself
            0xb0, 0x00, 0xe6, 0x21, // nothing masked
            0xfb, 0xf4, 0xeb, 0xfc, // sti; 1: hlt; jmp sti
        ];
        memory.0[0x1000..0x1000 + code.len()].copy_from_slice(&code);

        let kvm = Kvm::new()?;
        let vm = kvm.create_vm()?;
        let mut cap = kvm_enable_cap { cap: KVM_CAP_HALT_POLL, ..Default::default() };
        cap.args[0] = halt_poll_ns;
        vm.enable_cap(&cap)?;
        vm.set_tss_address(0xfffb_d000)?;
        vm.create_irq_chip()?;
        let region = kvm_userspace_memory_region {
            slot: 0,
            guest_phys_addr: 0,
            memory_size: memory.0.len() as u64,
            userspace_addr: memory.0.as_mut_ptr() as u64,
            flags: 0,
        };
        // SAFETY: the region is `memory`, page-aligned and of that length; it is dropped after the VM, and nobody but
        // the guest touches it meanwhile.
        unsafe { vm.set_user_memory_region(region)? };
        let vcpu = vm.create_vcpu(0)?;
        let mut sregs = vcpu.get_sregs()?;
        sregs.cs.base = 0;
        sregs.cs.selector = 0;
        vcpu.set_sregs(&sregs)?;
        let mut regs = vcpu.get_regs()?;
        regs.rip = CODE;
        regs.rsp = 0x7000;
        regs.rflags = 2;
        vcpu.set_regs(&regs)?;
        let wake = EventFd::new(0).map_err(|e| kvm_ioctls::Error::new(e.raw_os_error().unwrap_or(0)))?;
        vm.register_irqfd(&wake, GSI)?;
        Ok(Halter { wake, vcpu, _vm: vm, _memory: memory })
    }

    fn stats(&self) -> StatsFile {
        // SAFETY: the ioctl takes no argument, writes nothing of ours, and answers a descriptor that only we own.
        let fd = unsafe { libc::ioctl(self.vcpu.as_raw_fd(), KVM_GET_STATS_FD, 0) };
        assert!(fd >= 0, "KVM_GET_STATS_FD");
        // SAFETY: see above.
        StatsFile::new(unsafe { OwnedFd::from_raw_fd(fd) }).expect("the statistics file of a vCPU")
    }

    /// Runs the guest to its end, waking it every `gap` from another thread; returns the number of wakes sent.
    fn run(&mut self, gap: Duration) -> u64 {
        let wake = self.wake.try_clone().expect("a copy of the eventfd");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waker = scope.spawn(|| {
                let mut sent = 0;
                let mut next = Instant::now() + gap;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::sleep(next.saturating_duration_since(Instant::now()));
                    next += gap;
                    sent += u64::from(wake.write(1).is_ok());
                }
                sent
            });
            let exit = self.vcpu.run().map(|exit| matches!(exit, VcpuExit::IoOut(0xf0, _)));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(exit, Ok(true), "the guest leaves through its port");
            waker.join().expect("the waker ends")
        })
    }
}

/// Says why a test did nothing; tests of this file take turns, since they measure.
fn vm_or_skip(test: &str, wakes: u16, halt_poll_ns: u64) -> Option<(Halter, MutexGuard<'static, ()>)> {
    let turn = crate::alone();
    match Halter::new(wakes, halt_poll_ns) {
        Ok(halter) => Some((halter, turn)),
        Err(error) => {
            dwell_testing::skip!("kvm", test, "no VM with an in-kernel irqchip ({error})");
            None
        }
    }
}

fn sum(histogram: Option<&Vec<u64>>) -> u64 {
    histogram.map_or(0, |buckets| buckets.iter().sum())
}

#[test]
fn sleeps_of_a_vcpu_that_never_polls_are_counted_one_by_one() {
    const WAKES: u16 = 500;
    let Some((mut halter, _turn)) = vm_or_skip("sleeps_of_a_vcpu_that_never_polls", WAKES, 0) else { return };
    let stats = halter.stats();
    let wait = stats.stats().iter().find(|stat| stat.name == "halt_wait_hist").expect("halt_wait_hist");
    // A logarithmic histogram (4) of seconds (2) times a power of ten (0).
    assert_eq!((wait.flags & 0xfff, wait.exponent, wait.size), (0x024, -9, 32));
    let before = stats.counters().expect("counters");
    let begin = Instant::now();
    let sent = halter.run(Duration::from_micros(200));
    let elapsed = begin.elapsed();
    let counted = stats.counters().expect("counters").since(before);
    let bound = Bound::of(&counted, Nanos(20_000)).expect("this kernel counts times");
    let halt_exits = counted.halt_exits.expect("halt_exits");
    say!("{WAKES} wakes ({sent} sent) in {elapsed:?}: {halt_exits} exits, {bound:?}");
    assert_eq!((bound.polls, bound.polled_ns, bound.wasted_ns), (0, 0, 0));
    assert!(bound.halts_exact && bound.halts <= u64::from(WAKES) + 1 && bound.halts >= u64::from(WAKES) / 2);
    // An interrupt between the return from the handler and the next HLT is handled without a halt.
    assert!((bound.halts..=u64::from(WAKES) + 1).contains(&halt_exits), "{halt_exits} exits, {bound:?}");
    assert!(u128::from(counted.halt_wait_ns.expect("halt_wait_ns")) <= elapsed.as_nanos());
    assert!(bound.least_cost_ns <= bound.cost_ns && bound.cost_ns == 20_000 * u128::from(bound.halts));
}

#[test]
fn polls_of_a_vcpu_are_counted_and_bounded() {
    const WAKES: u16 = 2_000;
    let Some((mut halter, _turn)) = vm_or_skip("polls_of_a_vcpu", WAKES, 200_000) else { return };
    let stats = halter.stats();
    let before = stats.counters().expect("counters");
    let begin = Instant::now();
    halter.run(Duration::from_micros(100));
    let elapsed = begin.elapsed();
    let counted = stats.counters().expect("counters").since(before);
    let bound = Bound::of(&counted, Nanos(20_000)).expect("this kernel counts times");
    say!("{WAKES} wakes in {elapsed:?}: {bound:?}");
    assert!(bound.polls > 0 && bound.polls_succeeded <= bound.polls && bound.wasted_ns <= bound.polled_ns);
    assert!(bound.polls_succeeded + bound.halts <= counted.halt_exits.expect("halt_exits"));
    let histograms = sum(counted.halt_poll_success_hist.as_ref()) + sum(counted.halt_poll_fail_hist.as_ref());
    assert_eq!(histograms, bound.polls);
    let slept = counted.halt_wait_ns.expect("halt_wait_ns");
    assert!(u128::from(slept + bound.polled_ns) <= elapsed.as_nanos());
}

/// This test's VM among those of the machine.
fn mine(snapshot: &Snapshot) -> Option<Counters> {
    let of_this_process = snapshot.vms.iter().filter(|(id, _)| id.pid == std::process::id());
    Counters::sum(of_this_process.map(|(_, counters)| counters.clone()))
}

#[test]
fn statistics_files_that_a_process_keeps_open_are_found() {
    const WAKES: u16 = 300;
    const NAME: &str = "statistics_files_that_a_process_keeps_open";
    let Some((mut halter, _turn)) = vm_or_skip(NAME, WAKES, 100_000) else { return };
    let stats = halter.stats();
    let pid = std::process::id();
    let mut reader = match StatsReader::new(Some(pid)) {
        Ok(reader) => reader,
        Err(error) => return dwell_testing::skip!("debugfs", NAME, "{error}"),
    };
    halter.run(Duration::from_micros(100));
    let (snapshot, sources) = reader.snapshot();
    assert!(sources.values().all(|source| *source == Source::StatisticsFiles), "{sources:?}");
    assert_eq!(mine(&snapshot), Some(stats.counters().expect("counters")));
}

#[test]
fn debugfs_and_statistics_files_agree() {
    const WAKES: u16 = 300;
    const NAME: &str = "debugfs_and_statistics_files_agree";
    let Some((mut halter, _turn)) = vm_or_skip(NAME, WAKES, 100_000) else { return };
    let mut reader = match StatsReader::new(Some(std::process::id())) {
        Ok(reader) => reader,
        Err(error) => return dwell_testing::skip!("debugfs", NAME, "{error}"),
    };
    halter.run(Duration::from_micros(100));
    let (snapshot, sources) = reader.snapshot();
    assert!(sources.values().all(|source| *source == Source::Debugfs));
    let debugfs = mine(&snapshot).expect("the VM of this process");
    let files = halter.stats().counters().expect("counters");
    let without = Counters {
        halt_poll_success_hist: None,
        halt_poll_fail_hist: None,
        halt_wait_hist: None,
        ..files.clone()
    };
    assert_eq!(debugfs, without);
    let price = Nanos(20_000);
    let (exact, loose) =
        (Bound::of(&files, price).expect("bound"), Bound::of(&debugfs, price).expect("bound"));
    say!("with histograms {exact:?}\nwithout {loose:?}");
    assert!(loose.gain_ns >= exact.gain_ns && exact.halts_exact && !loose.halts_exact);
}
