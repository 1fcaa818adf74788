//! A vCPU that halts and is woken, for tests on machines with /dev/kvm.
#![allow(unsafe_code, reason = "KVM maps guest memory and hands out a statistics descriptor by number")]

use kvm_bindings::{KVM_CAP_HALT_POLL, kvm_enable_cap, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::EventFd;

/// Real mode, interrupts on only while halted, so that every interrupt ends exactly one HLT.
const CODE: &[u8] = &[
    0xfa, // cli
    0xb0, 0x11, 0xe6, 0x20, // PIC: initialise
    0xb0, 0x20, 0xe6, 0x21, // vectors from 0x20
    0xb0, 0x04, 0xe6, 0x21, // cascade
    0xb0, 0x03, 0xe6, 0x21, // 8086 mode, automatic end of interrupt
    0xb0, 0x00, 0xe6, 0x21, // nothing masked
    0xfb, // again: sti
    0xf4, // hlt
    0xfa, // cli
    0xff, 0x06, 0x00, 0x05, // inc word [0x500]
    0x80, 0x3e, 0x08, 0x05, 0x00, // cmp byte [0x508], 0
    0x74, 0xf2, // je again
    0xe6, 0xee, // out 0xee, al
];
const ENTRY: usize = 0x1000;
const HANDLER: usize = 0x600;
const COUNT: usize = 0x500;
const STOP: usize = 0x508;
const GSI: u32 = 5;
const VECTOR: usize = 0x25;
const MEMORY: usize = 0x1_0000;

#[repr(align(4096))]
struct Memory([u8; MEMORY]);

/// A VM with one vCPU in an endless loop of HLT, woken through an irqfd.
pub struct HaltingVcpu {
    vm: Arc<VmFd>,
    stats: Option<Stats>,
    go: Sender<()>,
    thread: Option<JoinHandle<u64>>,
    /// CPU time of the vCPU's thread, once it has been run \[ns\].
    pub cpu_ns: u64,
    memory: *mut Memory,
    wake: EventFd,
}

impl HaltingVcpu {
    /// With `cap_ns` as its own maximum of halt polling \[ns\].
    pub fn new(cap_ns: Option<u32>) -> Result<HaltingVcpu, String> {
        let text = |what: &str| {
            let what = what.to_owned();
            move |error: kvm_ioctls::Error| format!("{what}: {error}")
        };
        let vm = Kvm::new().map_err(text("/dev/kvm"))?.create_vm().map_err(text("KVM_CREATE_VM"))?;
        if let Some(cap) = cap_ns {
            set_maximum(&vm, cap).map_err(text("KVM_CAP_HALT_POLL"))?;
        }
        vm.set_tss_address(0xfffb_d000).map_err(text("KVM_SET_TSS_ADDR"))?;
        vm.create_irq_chip().map_err(text("KVM_CREATE_IRQCHIP"))?;
        let mut memory = Box::new(Memory([0; MEMORY]));
        memory.0[ENTRY..ENTRY + CODE.len()].copy_from_slice(CODE);
        memory.0[HANDLER] = 0xcf; // iret
        memory.0[4 * VECTOR..4 * VECTOR + 2].copy_from_slice(&u16::try_from(HANDLER).unwrap().to_le_bytes());
        let memory = Box::into_raw(memory);
        let region = kvm_userspace_memory_region {
            memory_size: MEMORY as u64,
            userspace_addr: memory as u64,
            ..Default::default()
        };
        // SAFETY: the memory is page-aligned, as long as said, and freed only after the VM is gone (see Drop).
        unsafe { vm.set_user_memory_region(region) }.map_err(text("KVM_SET_USER_MEMORY_REGION"))?;
        let vcpu = vm.create_vcpu(0).map_err(text("KVM_CREATE_VCPU"))?;
        let mut sregs = vcpu.get_sregs().map_err(text("KVM_GET_SREGS"))?;
        (sregs.cs.base, sregs.cs.selector) = (0, 0);
        vcpu.set_sregs(&sregs).map_err(text("KVM_SET_SREGS"))?;
        let mut regs = vcpu.get_regs().map_err(text("KVM_GET_REGS"))?;
        (regs.rip, regs.rsp, regs.rflags) = (ENTRY as u64, 0x7000, 2);
        vcpu.set_regs(&regs).map_err(text("KVM_SET_REGS"))?;
        let wake = EventFd::new(0).map_err(|error| format!("eventfd: {error}"))?;
        vm.register_irqfd(&wake, GSI).map_err(text("KVM_IRQFD"))?;
        let stats = Some(Stats::open(&vcpu).map_err(|error| format!("KVM_GET_STATS_FD: {error}"))?);
        let (go, gone) = channel();
        let thread = std::thread::Builder::new().name("CPU 0/KVM".to_owned());
        let thread =
            Some(thread.spawn(move || run(vcpu, &gone)).map_err(|error| format!("thread: {error}"))?);
        Ok(HaltingVcpu { vm: Arc::new(vm), stats, go, thread, cpu_ns: 0, memory, wake })
    }

    /// Lets it halt and wakes it after each of the gaps \[ns\], counted from when the wake before was seen;
    /// then stops it. Returns its own statistics.
    pub fn run(mut self, gaps_ns: &[u64]) -> Stats {
        self.run_on(gaps_ns)
    }

    /// As [`HaltingVcpu::run`]. With `DWELL_WAKER_SLEEPS=1` whoever wakes it sleeps in the meantime: emulated
    /// CPUs take turns in one thread, and one that spins keeps the others waiting.
    ///
    /// The VM is there until `self` is dropped.
    pub fn run_on(&mut self, gaps_ns: &[u64]) -> Stats {
        let sleeps = std::env::var("DWELL_WAKER_SLEEPS").is_ok_and(|value| value == "1");
        self.wake_after(gaps_ns.iter().copied(), sleeps)
    }

    /// As [`HaltingVcpu::run_on`], with the same gap until it is to stop. Whoever wakes it sleeps in the meantime.
    pub fn run_until(&mut self, stop: &AtomicBool, gap_ns: u64) -> Stats {
        let gaps = std::iter::repeat(gap_ns).take_while(|_| !stop.load(Ordering::Relaxed));
        self.wake_after(gaps.chain([gap_ns]), true)
    }

    /// As [`HaltingVcpu::run_until`], after one gap after another, and with `maximum_ns` as its own maximum
    /// of halt polling, whenever that changes.
    pub fn run_with_maximum(&mut self, gaps_ns: impl Iterator<Item = u64>, maximum_ns: &AtomicU32) -> Stats {
        let vm = self.vm.clone();
        let mut applied = None;
        self.wake_after(
            gaps_ns.inspect(|_| {
                let maximum = maximum_ns.load(Ordering::Relaxed);
                if applied.replace(maximum) != Some(maximum) {
                    set_maximum(&vm, maximum).expect("it was set at the start");
                }
            }),
            true,
        )
    }

    fn wake_after(&mut self, gaps_ns: impl Iterator<Item = u64>, sleeps: bool) -> Stats {
        self.go.send(()).unwrap();
        // SAFETY: both lie in guest memory, are aligned, live as long as `self`, and are only used as atomics.
        let (count, stop) = unsafe {
            let base = self.memory.cast::<u8>();
            (AtomicU16::from_ptr(base.add(COUNT).cast()), AtomicU8::from_ptr(base.add(STOP)))
        };
        std::thread::sleep(Duration::from_millis(5));
        let mut gaps = gaps_ns.enumerate().peekable();
        while let Some((number, gap)) = gaps.next() {
            let until = Instant::now() + Duration::from_nanos(gap);
            if sleeps {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            let before = count.load(Ordering::Acquire);
            if gaps.peek().is_none() {
                stop.store(1, Ordering::Release);
            }
            self.wake.write(1).unwrap();
            let mut woken = Instant::now();
            while count.load(Ordering::Acquire) == before {
                if sleeps {
                    std::thread::sleep(Duration::from_micros(1));
                }
                std::thread::yield_now();
                // An interrupt that comes before the guest has set up its controller is lost; on a shared core that may
                // be long after the start.
                if number == 0 && woken.elapsed() > Duration::from_millis(100) {
                    self.wake.write(1).unwrap();
                    woken = Instant::now();
                }
            }
        }
        self.cpu_ns = self.thread.take().unwrap().join().unwrap();
        self.stats.take().unwrap().read()
    }
}

/// Gives a VM its own maximum of halt polling \[ns\].
fn set_maximum(vm: &VmFd, maximum_ns: u32) -> Result<(), kvm_ioctls::Error> {
    let mut enable = kvm_enable_cap { cap: KVM_CAP_HALT_POLL, ..Default::default() };
    enable.args[0] = maximum_ns.into();
    vm.enable_cap(&enable)
}

/// The vCPU's thread: it exists from the beginning, so that a recorder can find it, and runs the guest when
/// told to. Returns its CPU time \[ns\].
fn run(mut vcpu: VcpuFd, go: &Receiver<()>) -> u64 {
    if go.recv().is_err() {
        return 0;
    }
    loop {
        match vcpu.run() {
            Ok(VcpuExit::IoOut(0xee, _)) => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                return u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0);
            }
            Ok(VcpuExit::Intr) => {}
            Err(error) if error.errno() == libc::EINTR => {}
            other => panic!("unexpected exit {other:?}"),
        }
    }
}

impl Drop for HaltingVcpu {
    fn drop(&mut self) {
        // A thread that was never told to go ends when nobody is left to tell it.
        self.go = channel().0;
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        if !ended {
            return;
        }
        let none = kvm_userspace_memory_region::default();
        // SAFETY: length zero takes the region away; the vCPU's thread has ended, so nothing uses the memory
        // after this.
        let removed = unsafe { self.vm.set_user_memory_region(none) };
        if removed.is_ok() {
            // SAFETY: made by Box::into_raw, freed once, and the VM has let go of it.
            drop(unsafe { Box::from_raw(self.memory) });
        }
    }
}

/// What KVM counts for a vCPU, by name; a histogram is a list.
#[derive(Debug)]
pub struct Stats {
    file: File,
    values: BTreeMap<String, Vec<u64>>,
}

impl Stats {
    fn open(vcpu: &VcpuFd) -> io::Result<Stats> {
        const KVM_GET_STATS_FD: libc::Ioctl = 0xaece;
        // SAFETY: the ioctl takes no argument; its result is a new descriptor or an error.
        let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nothing else owns it.
        Ok(Stats { file: unsafe { File::from_raw_fd(fd) }, values: BTreeMap::new() })
    }

    /// Reads everything: header, descriptors, data, as Documentation/virt/kvm/api.rst lays them out.
    fn read(mut self) -> Stats {
        let bytes = |at: u64, count: usize| {
            let mut bytes = vec![0; count];
            self.file.read_exact_at(&mut bytes, at).unwrap();
            bytes
        };
        let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let header = bytes(0, 24);
        let (name, count) = (word(&header, 4) as usize, u64::from(word(&header, 8)));
        let (descriptors, data) = (u64::from(word(&header, 16)), u64::from(word(&header, 20)));
        let mut values = BTreeMap::new();
        for index in 0..count {
            let descriptor = bytes(descriptors + index * (16 + name as u64), 16 + name);
            let length = usize::from(u16::from_ne_bytes([descriptor[6], descriptor[7]]));
            let content = bytes(data + u64::from(word(&descriptor, 8)), 8 * length);
            let name = String::from_utf8_lossy(&descriptor[16..]).trim_end_matches('\0').to_owned();
            let numbers = content.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().unwrap()));
            values.insert(name, numbers.collect());
        }
        self.values = values;
        self
    }

    /// A counter, or the sum of a histogram.
    pub fn get(&self, name: &str) -> u64 {
        self.values[name].iter().sum()
    }
}
