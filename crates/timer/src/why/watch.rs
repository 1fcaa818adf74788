//! What the threads of a process do, event by event.

use super::ledger::Ledger;
use super::tasks::encodes;
use super::{Bill, Cause, Class, Device, Task, Wake};
use crate::pairing::ReasonNames;
use dwell_trace::event::{Event, EventKind, Timeout};
use dwell_trace::pairing::ByNumber;

/// How a process names one of its descriptors.
pub type Describe = Box<dyn FnMut(u64) -> Option<String> + Send>;

/// Watches the threads of one process.
pub struct Watch {
    pub(super) threads: Vec<Watched>,
    places: ByNumber<i32, usize>,
    reasons: ReasonNames,
    describe: Describe,
    /// Who has written to a descriptor that was not read since, and for what: an eventfd is how threads of a process wake
    /// each other, and themselves.
    writers: ByNumber<i32, (usize, Cause)>,
    /// The last interrupt that was posted, and when: for those that no local APIC accepts.
    posted: Option<(u64, Wake)>,
    /// The bills of the slices of the time that have ended.
    pub(super) slices: Vec<Bill>,
    /// Whether a thread encodes what a display shows.
    has_display: bool,
}

/// A thread with its bill.
pub(super) struct Watched {
    pub(super) task: Task,
    pub(super) ledger: Ledger,
    vcpu: Vcpu,
    event_loop: EventLoop,
    /// The interrupt that it has sent, until an APIC accepts it.
    sent: Option<Wake>,
}

/// What is known of a vCPU.
#[derive(Default)]
struct Vcpu {
    /// What woke it, and when.
    burst: Option<(u64, Wake)>,
    /// What others have sent it since.
    posted: Option<Wake>,
    /// Its last access of a device.
    access: Option<(u64, Device)>,
    /// When it left KVM for its VMM, or its guest for KVM.
    left_ns: u64,
    /// The device of the last return to the VMM is not known yet.
    unresolved: bool,
}

impl Vcpu {
    fn run(&self) -> Cause {
        Cause::Run { wake: self.burst.map_or(Wake::Unknown, |(_, wake)| wake) }
    }
}

/// What is known of an event loop.
#[derive(Default)]
struct EventLoop {
    /// When the last system call returned; `None`: one is under way, or its return is not traced.
    returned_ns: Option<u64>,
    /// When the last wait returned.
    woken_ns: u64,
    /// What the time after it is for.
    work: Option<Cause>,
    /// Whether it may wait no longer than it takes.
    at_once: bool,
    /// Whether a descriptor was read since the last wait.
    has_read: bool,
}

/// `KVM_RUN`, `_IO(0xae, 0x80)`.
const KVM_RUN: u64 = 0xae80;
/// `KVM_GET_DIRTY_LOG` and `KVM_CLEAR_DIRTY_LOG`: which pages the guest has written, of a screen here.
const DIRTY_LOG: [u64; 2] = [0x4010_ae42, 0xc018_aec0];
/// `FUTEX_WAKE`, without its flags.
const FUTEX_WAKE: u64 = 1;
const FUTEX_COMMAND: u64 = 0x7f;
/// `KVM_EXIT_IO` and `KVM_EXIT_MMIO`.
const EXIT_IO: u32 = 2;
const EXIT_MMIO: u32 = 6;
/// An access that takes the vCPU to its VMM is traced right before.
const AT_ONCE_NS: u64 = 20_000;
/// How /proc names the descriptor by which threads wake each other.
const EVENTFD: &str = "eventfd";
/// And a connection: what is ready to take more has a client that waits.
pub(super) const SOCKET: &str = "socket";
/// System calls that give something to their first argument.
const WRITES: [i64; 4] = [libc::SYS_write, libc::SYS_writev, libc::SYS_sendto, libc::SYS_sendmsg];
/// System calls that take something from their first argument.
const READS: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    // s390x has accept4 alone.
    #[cfg(not(target_arch = "s390x"))]
    libc::SYS_accept,
    libc::SYS_accept4,
];

impl Watch {
    /// Watches these threads; `reasons` are the names of VM exits.
    pub fn new(tasks: Vec<Task>, reasons: ReasonNames, describe: Describe) -> Watch {
        let places = tasks.iter().enumerate().map(|(place, task)| (task.tid, place)).collect();
        let first = |class| match class {
            Class::Vcpu => Cause::Run { wake: Wake::Unknown },
            _ => Cause::Whole,
        };
        let watched = |task: Task| Watched {
            ledger: Ledger::new(first(task.class)),
            task,
            vcpu: Vcpu::default(),
            event_loop: EventLoop::default(),
            sent: None,
        };
        Watch {
            has_display: tasks.iter().any(|task| encodes(&task.name)),
            threads: tasks.into_iter().map(watched).collect(),
            places,
            reasons,
            describe,
            writers: ByNumber::default(),
            posted: None,
            slices: vec![],
        }
    }

    /// Takes the next event, in order of time.
    pub fn observe(&mut self, event: &Event) {
        let tid = if let EventKind::Ran { task, .. } = event.kind { task } else { event.tid };
        let Some(&place) = self.places.get(&tid) else { return };
        let at = event.time_ns;
        match event.kind {
            EventKind::Ran { ns, .. } => self.threads[place].ledger.ran(at, ns),
            EventKind::LineRaised { gsi } => self.sent(place, at, |by| Wake::Line { gsi, by }),
            EventKind::MessageSent { .. } => self.sent(place, at, |by| Wake::Message { by }),
            EventKind::ApicAccept { apic } => self.accepted(place, at, apic),
            EventKind::Enter { timeout, .. } => self.threads[place].waits(at, timeout),
            EventKind::Leave { result, .. } => self.threads[place].woken(at, result),
            EventKind::Return => self.threads[place].event_loop.returned_ns = Some(at),
            EventKind::Call { number, arguments } => self.called(place, at, number, arguments),
            EventKind::VcpuWakeup { ns, waited, .. } => {
                let since = at.saturating_sub(ns);
                let posted = self.posted.filter(|(posted, _)| *posted >= since).map(|(_, wake)| wake);
                self.threads[place].halted(at, since, waited, posted);
            }
            EventKind::UserspaceExit { reason } => self.threads[place].left_kvm(at, reason),
            EventKind::Port { port, write } => self.threads[place].accessed(at, Device::at_port(port), write),
            EventKind::Msr { register } => {
                Device::at_register(register)
                    .into_iter()
                    .for_each(|device| self.threads[place].exits_for(at, device));
            }
            EventKind::DeadlineWritten { .. } => self.threads[place].exits_for(at, Device::LocalTimer),
            // It comes after its interrupt is in the APIC.
            EventKind::SyntheticTimer => self.threads[place].woken_by(at, Wake::SyntheticTimer),
            EventKind::Mmio { address, .. } => {
                self.threads[place].accessed(at, Device::at_address(address), true);
            }
            EventKind::Exit { vcpu, reason } => {
                let reason = self.reasons.name(reason);
                self.threads[place].left_guest(at, vcpu, reason);
            }
            EventKind::Entry { vcpu } => {
                let thread = self.threads[place].as_vcpu(vcpu);
                thread.ledger.enter(at, thread.vcpu.run());
            }
            EventKind::HaltPoll { vcpu, .. } => {
                self.threads[place].as_vcpu(Some(vcpu));
            }
            _ => {}
        }
    }

    fn sent(&mut self, place: usize, at: u64, wake: impl Fn(Class) -> Wake) {
        let thread = &mut self.threads[place];
        let wake = wake(thread.task.class);
        thread.sent = Some(wake);
        let unknown = Cause::Timeout { device: None };
        if let Some(device) = wake.pc_timer().filter(|_| *thread.ledger.state() == unknown) {
            let known = Cause::Timeout { device: Some(device) };
            thread.now_known(at, &unknown, &known);
        }
        self.posted = Some((at, wake));
    }

    /// The APIC of this number has an interrupt, by this thread.
    fn accepted(&mut self, place: usize, at: u64, apic: u32) {
        let thread = &mut self.threads[place];
        let sent = thread.sent.take();
        let own = thread.task.class == Class::Vcpu && thread.task.vcpu == Some(apic);
        if own {
            // KVM puts the interrupt of a vCPU's timer into its APIC in the vCPU's own thread.
            return thread.woken_by(at, sent.unwrap_or(Wake::LocalTimer));
        }
        let wake = sent.unwrap_or(match thread.task.class {
            Class::Vcpu => Wake::Ipi,
            by => Wake::Message { by },
        });
        let target = self.threads.iter_mut().find(|thread| thread.task.vcpu == Some(apic));
        if let Some(target) = target {
            target.vcpu.posted.get_or_insert(wake);
        }
    }

    fn called(&mut self, place: usize, at: u64, number: i64, arguments: [u64; 2]) {
        let thread = &mut self.threads[place];
        if number == libc::SYS_ioctl && arguments[1] == KVM_RUN {
            let thread = thread.as_vcpu(None);
            return thread.ledger.enter(at, thread.vcpu.run());
        }
        thread.event_loop.returned_ns = None;
        // The timer that refreshes a display has no event. Its work is known by what it calls.
        let unknown = Cause::Timeout { device: None };
        let reads_screen = number == libc::SYS_ioctl && DIRTY_LOG.contains(&arguments[1]);
        let wakes = number == libc::SYS_futex && arguments[1] & FUTEX_COMMAND == FUTEX_WAKE;
        if (reads_screen || wakes && self.has_display) && *thread.ledger.state() == unknown {
            thread.now_known(at, &unknown, &Cause::Timeout { device: Some(Device::Display) });
        }
        let descriptor = i32::try_from(arguments[0]).ok();
        let unread = Cause::Ready { descriptor: None, by: None };
        let is_unread = !thread.event_loop.has_read && *thread.ledger.state() == unread;
        let (reads, writes) = (READS.contains(&number), WRITES.contains(&number));
        let kind = if is_unread && (reads || writes) { (self.describe)(arguments[0]) } else { None };
        if is_unread && (reads || writes && kind.as_deref() == Some(SOCKET)) {
            let writer = descriptor.filter(|_| kind.as_deref() == Some(EVENTFD));
            let ready = match writer.and_then(|fd| self.writers.remove(&fd)) {
                // What it has to do beside, of the same work.
                Some((writer, work)) if writer == place && is_known(&work) => work,
                Some((writer, _)) if writer != place => {
                    Cause::Ready { descriptor: kind, by: Some(self.threads[writer].task.name.clone()) }
                }
                _ => Cause::Ready { descriptor: kind, by: None },
            };
            let thread = &mut self.threads[place];
            thread.now_known(at, &unread, &ready);
            thread.event_loop.has_read = true;
        }
        if let Some(descriptor) = descriptor.filter(|_| number == libc::SYS_write) {
            let work = self.threads[place].ledger.state().clone();
            self.writers.insert(descriptor, (place, work));
        }
    }
}

/// Whether it is known what the work is for.
fn is_known(work: &Cause) -> bool {
    matches!(work, Cause::Timeout { device: Some(_) } | Cause::Ready { descriptor: Some(_), .. })
}

impl Watched {
    /// It runs a vCPU, of this number if that is known, whatever its name is.
    fn as_vcpu(&mut self, number: Option<u32>) -> &mut Watched {
        self.task.class = Class::Vcpu;
        self.task.vcpu = number.or(self.task.vcpu);
        self
    }

    fn halted(&mut self, at: u64, since: u64, waited: bool, posted: Option<Wake>) {
        let Watched { ledger, vcpu, .. } = self.as_vcpu(None);
        let (charged, coming) = match waited {
            // What is charged before the thread went to sleep is the poll.
            true => (Cause::FailedPoll, Cause::Halt),
            false => (Cause::SuccessfulPoll, Cause::SuccessfulPoll),
        };
        ledger.relabel(since, at, |_| true, &charged, &coming);
        ledger.settle();
        ledger.count(coming);
        ledger.count(vcpu.run());
        vcpu.burst = Some((at, vcpu.posted.take().or(posted).unwrap_or(Wake::Unknown)));
        vcpu.access = None;
        ledger.enter(at, vcpu.run());
    }

    /// An event shows what woke it.
    fn woken_by(&mut self, at: u64, wake: Wake) {
        let Watched { ledger, vcpu, .. } = self;
        let Some((since, was)) = vcpu.burst else { return };
        if was != Wake::Unknown && (was, wake) != (Wake::LocalTimer, Wake::SyntheticTimer) {
            return;
        }
        let unknown = vcpu.run();
        vcpu.burst = Some((since, wake));
        let is_open = *ledger.state() == unknown;
        ledger.relabel(since, at, |cause| *cause == unknown, &vcpu.run(), &vcpu.run());
        if is_open {
            ledger.enter(at, vcpu.run());
        }
    }

    fn left_kvm(&mut self, at: u64, reason: Option<u32>) {
        let Watched { ledger, vcpu, .. } = self.as_vcpu(None);
        if std::mem::take(&mut vcpu.unresolved) {
            ledger.count(Cause::Device { device: Device::Port });
        }
        let near =
            vcpu.access.take().filter(|(when, _)| at - when.min(&at) <= AT_ONCE_NS).map(|(_, device)| device);
        let cause = match reason {
            Some(EXIT_IO) => {
                vcpu.unresolved = near.is_none();
                Cause::Device { device: near.unwrap_or(Device::Port) }
            }
            Some(EXIT_MMIO) => Cause::Device { device: near.unwrap_or(Device::Memory) },
            _ => Cause::Vmm,
        };
        if !vcpu.unresolved {
            ledger.count(cause.clone());
        }
        vcpu.left_ns = at;
        ledger.enter(at, cause);
    }

    fn left_guest(&mut self, at: u64, number: Option<u32>, reason: String) {
        let Watched { ledger, vcpu, .. } = self.as_vcpu(number);
        let cause = Cause::Exit { reason, device: None };
        ledger.count(cause.clone());
        vcpu.left_ns = at;
        ledger.enter(at, cause);
    }

    fn accessed(&mut self, at: u64, device: Device, before: bool) {
        let Watched { ledger, vcpu, .. } = self.as_vcpu(None);
        let cause = Cause::Device { device };
        if !before && std::mem::take(&mut vcpu.unresolved) {
            let unknown = Cause::Device { device: Device::Port };
            ledger.relabel(vcpu.left_ns, at, |cause| *cause == unknown, &cause, &cause);
            ledger.count(cause);
        } else if matches!(ledger.state(), Cause::Exit { device: None, .. }) {
            self.exits_for(at, device);
        } else if matches!(ledger.state(), Cause::Device { .. } | Cause::Vmm) {
            // It is in KVM again, which takes what the VMM has read.
            ledger.enter(at, vcpu.run());
        }
        if before {
            self.vcpu.access = Some((at, device));
        }
    }

    /// The exit that KVM handles is for this device.
    fn exits_for(&mut self, at: u64, device: Device) {
        let Watched { ledger, vcpu, .. } = self;
        let exit = ledger.state().clone();
        let Cause::Exit { reason, device: None } = &exit else { return };
        let of_device = Cause::Exit { reason: reason.clone(), device: Some(device) };
        ledger.relabel(vcpu.left_ns, at, |cause| *cause == exit, &of_device, &of_device);
        ledger.recount(&exit, of_device.clone());
        ledger.enter(at, of_device);
    }

    /// What it has worked on since the last wait, and goes on to.
    fn now_known(&mut self, at: u64, was: &Cause, is: &Cause) {
        self.ledger.relabel(self.event_loop.woken_ns, at, |cause| cause == was, is, is);
        self.ledger.enter(at, is.clone());
        self.event_loop.work = Some(is.clone());
    }

    fn waits(&mut self, at: u64, timeout: Timeout) {
        if self.task.class == Class::Vcpu {
            return;
        }
        let Watched { ledger, event_loop, .. } = self;
        if let Some(since) = event_loop.returned_ns {
            let is_work =
                |cause: &Cause| matches!(cause, Cause::Timeout { .. } | Cause::Ready { .. } | Cause::Whole);
            ledger.relabel(since, at, is_work, &Cause::BeforeWait, &Cause::BeforeWait);
        }
        if let Some(work) = event_loop.work.take() {
            ledger.count(work);
        }
        ledger.settle();
        ledger.count(Cause::Wait);
        event_loop.at_once = timeout == Timeout::Zero;
        ledger.enter(at, Cause::Wait);
    }

    fn woken(&mut self, at: u64, result: i64) {
        if self.task.class == Class::Vcpu {
            return;
        }
        let work = match result {
            0 if self.event_loop.at_once => Cause::Whole,
            0 => Cause::Timeout { device: None },
            1.. => Cause::Ready { descriptor: None, by: None },
            _ => Cause::Whole,
        };
        self.ledger.enter(at, work.clone());
        self.event_loop =
            EventLoop { returned_ns: Some(at), woken_ns: at, work: Some(work), ..EventLoop::default() };
    }
}
