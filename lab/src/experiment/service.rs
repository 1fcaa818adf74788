//! A vCPU that runs, and a thread of its VMM that serves it.

use super::run::{BlockRun, join, run, spawn, watch};
use super::{LabError, Rig, os};
use crate::vm::Vcpu;
use dwell_machine::threads::{Thread, Usage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use vmm_sys_util::eventfd::EventFd;

/// A thread of the VMM that serves the vCPU, and the end of its work.
pub(super) struct Service<'b> {
    over: AtomicBool,
    bell: &'b EventFd,
}

impl Service<'_> {
    /// Sleeps until the bell has been rung, or `other` can be read; says which of the two. Also returns when
    /// it is over.
    pub(super) fn sleep(&self, other: Option<&OwnedFd>) -> Result<[bool; 2], LabError> {
        self.poll(other, None)
    }

    /// Whether the bell has been rung since it was cleared.
    pub(super) fn has_rung(&self) -> Result<bool, LabError> {
        Ok(self.poll(None, Some(&Timespec::default()))?[0])
    }

    fn poll(&self, other: Option<&OwnedFd>, timeout: Option<&Timespec>) -> Result<[bool; 2], LabError> {
        // SAFETY: the descriptor is that of `bell`, which outlives the borrow.
        let bell = unsafe { BorrowedFd::borrow_raw(self.bell.as_raw_fd()) };
        let mut fds: Vec<PollFd<'_>> = Some(bell)
            .into_iter()
            .chain(other.map(AsFd::as_fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        rustix::io::retry_on_intr(|| poll(&mut fds, timeout)).map_err(os("poll"))?;
        let readable = |at: usize| fds.get(at).is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        Ok([readable(0), readable(1)])
    }

    /// Takes back that the bell was rung, if it was.
    pub(super) fn clear(&self) {
        // The only error is that it was not.
        let _ = self.bell.read();
    }

    /// Whether the vCPU will ask for nothing more.
    #[inline]
    pub(super) fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Rings once more when it is dropped, so that a server that sleeps until the bell rings sees that it is over.
struct Over<'s, 'b>(&'s Service<'b>);

impl Drop for Over<'_, '_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
        // A bell that cannot be rung because it is rung already (its counter is full) wakes the server as well.
        let _ = self.0.bell.write(1);
    }
}

/// Runs one vCPU and a server on the stimulus's core that ends when the [`Service`] is over. `read` reads counters
/// that the two keep. The server's usage comes with what was read.
pub(super) fn served<T: Send>(
    rig: &Rig,
    mut vcpu: Vcpu<'_>,
    bell: &EventFd,
    stop: &AtomicBool,
    server: impl FnOnce(&Service<'_>) -> Result<(), LabError> + Send,
    read: impl Fn() -> T + Send,
) -> Result<BlockRun<(Usage, T)>, LabError> {
    let _place = rig.supervisor_thread()?;
    let service = Service { over: AtomicBool::new(false), bell };
    let kicker = vcpu.kicker();
    let service = &service;
    let (vcpu_placed, placed) = channel::<()>();
    let (server_is, serving) = channel();
    std::thread::scope(|scope| {
        let mut threads = (None, None);
        let watched = watch(&[kicker], stop, |running| {
            let over = Over(service);
            threads.0 = Some(spawn(scope, "CPU 0/KVM".to_owned(), running.clone(), move || {
                let _over = over;
                let place = rig.vcpu_thread(0);
                drop(vcpu_placed);
                let server = serving.recv().map_err(|_| LabError::Gone)?;
                run(&mut vcpu, place, || (), || Ok((Usage::of(server).map_err(LabError::Usage)?, read())))
            })?);
            threads.1 = Some(spawn(scope, "server".to_owned(), running, move || {
                // Whoever receives may be gone; then the service is over.
                let _ = server_is.send(Thread::current());
                // Ends when the vCPU's thread has gone to its own core: a server that spins would keep it from going.
                let _ = placed.recv();
                let _place = rig.stimulus_thread()?;
                server(service)
            })?);
            Ok(())
        });
        let played = threads.0.map(join).transpose();
        // If the server or the guest failed, that is why nothing ended.
        threads.1.map_or(Ok(()), join)?;
        let played = played?;
        watched?;
        played.ok_or(LabError::Gone)
    })
}
