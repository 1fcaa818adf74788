//! The I/O thread: virtqueues, io_uring and control requests on one event loop.

use crate::device::{ByWait, Completions, Device, QueueSource, Shared};
use crate::disk::Disk;
use crate::statistics::Statistics;
use crate::virtqueue::{Memory, Notifiers, Virtqueue};
use dwell_eventloop::{Bell, Doorbell, Idler, Loop, Policy, Record, SourceId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use virtio_queue::Queue;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

/// What the control thread asks of the I/O thread.
pub(crate) enum Command {
    /// A virtqueue from here on.
    Start(usize, Box<Queue>, Notifiers, bool),
    /// No virtqueue from here on; answered when nothing of it is in flight.
    Stop(usize),
    /// Whether it takes requests.
    Enable(usize, bool),
    /// Other descriptors for notifications of the frontend.
    Notifiers(usize, Notifiers),
    /// Other memory; answered when nothing is in flight.
    Memory(Option<Arc<Memory>>),
    /// What it did so far.
    Statistics,
    /// The end; answered when nothing is in flight.
    End,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    /// Of a virtqueue that was stopped: where it goes on.
    Stopped(Option<u16>),
    Statistics(Box<Statistics>),
    Failed(io::Error),
}

type Asked = (Command, Sender<Answer>);

/// How long the I/O thread may take to answer before it is interrupted, …
const PATIENCE: Duration = Duration::from_secs(1);
/// … and how long between two interruptions.
const PATIENCE_THEN: Duration = Duration::from_millis(100);

/// It interrupts system calls; there is nothing else to do.
extern "C" fn interrupted(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// The I/O thread of a device. It is interrupted by the first real-time signal of the process.
#[derive(Debug)]
pub struct Worker {
    commands: Sender<Asked>,
    doorbell: Doorbell,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// How an I/O thread is started.
pub struct Options<P, R> {
    /// How many virtqueues the device has.
    pub queues: usize,
    /// The CPU that it runs on; `None`: as the caller.
    pub cpu: Option<usize>,
    pub policy: P,
    /// The policy of waits while requests are in flight, which the disk ends rather than the driver; `None`: the same.
    pub disk_policy: Option<P>,
    /// Where waits are recorded.
    pub record: R,
}

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// No thread, no io_uring, no event loop, or no such CPU.
    pub fn start<P, R>(disk: Arc<Disk>, options: Options<P, R>) -> io::Result<Worker>
    where
        P: Policy + Send + 'static,
        R: Record + Send + 'static,
    {
        register_signal_handler(SIGRTMIN(), interrupted)?;
        let (commands, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = thread::Builder::new().name("dwell-blk-io".into()).spawn(move || {
            let (mut thread, doorbell) = match IoThread::new(disk, options, asked) {
                Ok(made) => made,
                Err(error) => {
                    // The caller waits for it.
                    let _ = tell.send(Err(error));
                    return Ok(());
                }
            };
            let _ = tell.send(Ok(doorbell));
            thread.run()
        })?;
        let doorbell = told.recv().map_err(|_| gone())??;
        Ok(Worker { commands, doorbell, thread: Some(thread) })
    }

    /// Asks the I/O thread and waits for its answer.
    pub(crate) fn ask(&self, command: Command) -> io::Result<Answer> {
        let (answer, answered) = mpsc::channel();
        self.commands.send((command, answer)).map_err(|_| gone())?;
        self.doorbell.ring();
        let mut patience = PATIENCE;
        loop {
            match answered.recv_timeout(patience) {
                Ok(Answer::Failed(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.interrupt();
            patience = PATIENCE_THEN;
        }
    }

    /// Ends a system call in which the I/O thread is. A frontend can have it wait, in a write to a descriptor of its own.
    fn interrupt(&self) {
        if let Some(thread) = &self.thread {
            // One that has ended is not in a system call.
            let _ = thread.kill(SIGRTMIN());
        }
    }

    /// What it did so far.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn statistics(&self) -> io::Result<Statistics> {
        match self.ask(Command::Statistics)? {
            Answer::Statistics(statistics) => Ok(*statistics),
            _ => Err(gone()),
        }
    }

    /// Ends it when nothing is in flight; what it did.
    ///
    /// # Errors
    /// The thread had ended before, by this error.
    pub fn end(mut self) -> io::Result<Statistics> {
        let answer = self.ask(Command::End);
        let result = self.thread.take().map(JoinHandle::join);
        if let Some(Ok(Err(error))) = result {
            return Err(error);
        }
        match answer? {
            Answer::Statistics(statistics) => Ok(*statistics),
            _ => Err(gone()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = self.ask(Command::End);
            let _ = thread.join();
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the I/O thread has ended")
}

/// The thread's own state: the loop and the device.
struct IoThread<P, R> {
    device: Shared,
    looped: Loop<'static, ByWait<P>, dwell_idle::Monotonic, R>,
    /// The sources of the virtqueues.
    sources: Vec<Option<SourceId>>,
    asked: Receiver<Asked>,
    /// Whether the doorbell was rung since the commands were looked at.
    rung: Rc<Cell<bool>>,
    waiting: VecDeque<Asked>,
}

impl<P: Policy, R: Record> IoThread<P, R> {
    fn new(disk: Arc<Disk>, options: Options<P, R>, asked: Receiver<Asked>) -> io::Result<(Self, Doorbell)> {
        if let Some(cpu) = options.cpu {
            let mut cpus = rustix::thread::CpuSet::new();
            cpus.set(cpu);
            rustix::thread::sched_setaffinity(None, &cpus)?;
        }
        let device = Device::new(disk, options.queues)?;
        let ring = device.requests.ring()?;
        let device = Rc::new(RefCell::new(device));
        let rung = Rc::new(Cell::new(false));
        let Options { policy, disk_policy, record, .. } = options;
        let policy = ByWait::new(policy, disk_policy, Rc::clone(&device));
        let mut looped = Loop::new(Idler::new(policy).recording(record))?;
        let rings = Rc::clone(&rung);
        let (bell, doorbell) = Bell::new(move || rings.set(true))?;
        looped.add(bell)?;
        looped.add(Completions { device: Rc::clone(&device), ring })?;
        let sources = vec![None; options.queues];
        Ok((IoThread { device, looped, sources, asked, rung, waiting: VecDeque::new() }, doorbell))
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.looped.step()?;
            if (self.rung.take() || !self.waiting.is_empty()) && self.carry_out() {
                return Ok(());
            }
        }
    }

    /// Carries out the commands that can be; whether the end was asked for.
    fn carry_out(&mut self) -> bool {
        self.waiting.extend(self.asked.try_iter());
        while let Some((command, answer)) = self.waiting.pop_front() {
            if !self.is_ready_for(&command) {
                self.waiting.push_front((command, answer));
                return false;
            }
            let ends = matches!(command, Command::End);
            // The connection that asked may have ended.
            let _ = answer.send(self.execute(command).unwrap_or_else(Answer::Failed));
            if ends {
                return true;
            }
        }
        false
    }

    /// Whether a command can be carried out now; if not, what it waits for is paused.
    fn is_ready_for(&self, command: &Command) -> bool {
        let mut device = self.device.borrow_mut();
        match command {
            Command::Stop(index) => device.pause(*index),
            Command::Memory(_) | Command::End => device.pause_all(),
            _ => true,
        }
    }

    fn execute(&mut self, command: Command) -> io::Result<Answer> {
        let mut device = self.device.borrow_mut();
        match command {
            Command::Start(index, queue, notifiers, enabled) => {
                let kick =
                    notifiers.kick.clone().ok_or_else(|| io::Error::other("a queue without a kick"))?;
                device.queues[index] = Some(Virtqueue::new(*queue, notifiers, enabled));
                drop(device);
                let source = QueueSource { device: Rc::clone(&self.device), index, kick };
                let added = self.looped.add(source);
                if added.is_err() {
                    self.device.borrow_mut().queues[index] = None;
                }
                self.sources[index] = Some(added?);
            }
            Command::Stop(index) => {
                let queue = device.queues[index].take();
                if let Some(queue) = &queue {
                    device.requests.counts.queues.add(&queue.counts);
                }
                drop(device);
                if let Some(source) = self.sources[index].take() {
                    self.looped.remove(source)?;
                }
                return Ok(Answer::Stopped(queue.map(|queue| queue.next_avail())));
            }
            Command::Enable(index, enabled) => {
                if let Some(queue) = &mut device.queues[index] {
                    queue.enabled = enabled;
                }
            }
            Command::Notifiers(index, Notifiers { call, error, .. }) => {
                if let Some(queue) = &mut device.queues[index] {
                    let notifiers = queue.notifiers_mut();
                    (notifiers.call, notifiers.error) = (call, error);
                }
            }
            Command::Memory(memory) => {
                device.memory = memory;
                device.queues.iter_mut().flatten().for_each(|queue| queue.paused = false);
            }
            Command::Statistics | Command::End => {
                let mut counts = device.requests.counts;
                device.queues.iter().flatten().for_each(|queue| counts.queues.add(&queue.counts));
                let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let cpu = std::time::Duration::try_from(cpu).unwrap_or_default();
                let cpu = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
                let totals = self.looped.idler().totals();
                return Ok(Answer::Statistics(Box::new(Statistics::new(counts, totals, cpu))));
            }
        }
        Ok(Answer::Done)
    }
}
