//! For loops that are not the caller's: a runtime or a framework that calls before it blocks and after it was woken.
//!
//! [`Idle`](crate::Idle) is a guard around a wait, and a wait that begins in one call and ends in another has
//! no room for a guard. A [`Parker`] keeps the wait in between: [`parks`](Parker::parks) before the thread
//! blocks, as often as the loop comes by, [`works`](Parker::works) when there is something to do.
//!
//! # tokio
//!
//! The hook `on_thread_park` of tokio's current-thread runtime can neither keep the runtime from blocking nor
//! keep state of its own. But a hook that wakes a task makes the runtime poll its driver without blocking,
//! and that is a look. [`install`] gives the calling thread a parker, [`on_thread_park`] is the hook,
//! [`spinner`] the task that it wakes, [`worked`] what a task calls when it has something to do, before it does it:
//!
//! ```no_run
//! # // tokio is not among the dependencies; examples/with_tokio.rs is compiled and run.
//! # mod tokio { pub mod runtime { pub struct Builder; impl Builder {
//! #   pub fn new_current_thread() -> Builder { Builder } pub fn on_thread_park(&mut self, _: fn()) -> &mut Builder { self } } }
//! #   pub fn spawn(_: impl Future<Output = ()>) {} }
//! use dwell_idle::{Halt, Idler, Price, park};
//!
//! let halt = Halt::measure()?;
//! park::install(Idler::new(halt.leader(Price::default())));
//! let runtime = tokio::runtime::Builder::new_current_thread().on_thread_park(park::on_thread_park);
//! tokio::spawn(park::spinner()); // inside of the runtime
//! // in each task, after it has read a request:
//! park::worked();
//! # Ok::<(), dwell_idle::MeasureHaltError>(())
//! ```

use crate::idler::{DefaultClock, Idler, Wait};
use crate::row::Record;
use crate::{Clock, Policy};

/// An [`Idler`] whose waits begin and end in different calls.
///
/// ```
/// use dwell_idle::policy::reference::Never;
/// use dwell_idle::{Idler, park::Parker};
///
/// let mut parker = Parker::new(Idler::new(Never));
/// assert!(!parker.parks()); // blocks at once
/// assert!(!parker.parks()); // woken without work: still the same wait
/// parker.works();
/// assert_eq!(parker.idler().totals().episodes, 1);
/// ```
#[derive(Debug)]
pub struct Parker<P, C = DefaultClock, R = ()> {
    idler: Idler<P, C, R>,
    wait: Option<Wait>,
}

impl<P: Policy, C: Clock, R: Record> Parker<P, C, R> {
    /// A parker that decides as this idler.
    pub const fn new(idler: Idler<P, C, R>) -> Parker<P, C, R> {
        Parker { idler, wait: None }
    }

    /// The thread is about to block: whether it should look for events once more instead. The first call
    /// after work begins the wait.
    #[inline]
    pub fn parks(&mut self) -> bool {
        let Parker { idler, wait } = self;
        let wait = wait.get_or_insert_with(|| idler.begin(None));
        let polls = wait.polls(idler);
        if !polls {
            wait.halts(idler);
        }
        polls
    }

    /// There is something to do: the wait is over, and the policy learns how long it was. Does nothing
    /// outside of a wait.
    #[inline]
    pub fn works(&mut self) {
        if let Some(wait) = self.wait.take() {
            wait.wakes(&mut self.idler, &[]);
        }
    }

    /// The idler.
    pub const fn idler(&self) -> &Idler<P, C, R> {
        &self.idler
    }
}

#[cfg(feature = "std")]
pub use thread::{install, on_thread_park, remove, spinner, worked};

#[cfg(feature = "std")]
mod thread {
    use super::{Clock, Idler, Parker, Policy, Record};
    use crate::Totals;
    use core::cell::{Cell, RefCell};
    use core::future::{Future, poll_fn};
    use core::task::{Poll, Waker};
    use std::boxed::Box;

    /// A parker of whatever policy.
    trait Parks {
        fn parks(&mut self) -> bool;
        fn works(&mut self);
        fn totals(&self) -> Totals;
    }

    impl<P: Policy, C: Clock, R: Record> Parks for Parker<P, C, R> {
        fn parks(&mut self) -> bool {
            Parker::parks(self)
        }
        fn works(&mut self) {
            Parker::works(self);
        }
        fn totals(&self) -> Totals {
            self.idler.totals()
        }
    }

    std::thread_local! {
        static PARKER: RefCell<Option<Box<dyn Parks>>> = const { RefCell::new(None) };
        static SPINNER: Cell<Option<Waker>> = const { Cell::new(None) };
    }

    /// Gives the calling thread a parker; one that it had is replaced.
    pub fn install<P, C, R>(idler: Idler<P, C, R>)
    where
        P: Policy + 'static,
        C: Clock + 'static,
        R: Record + 'static,
    {
        PARKER.set(Some(Box::new(Parker::new(idler))));
    }

    /// Takes the parker from the calling thread; what it did. `None`: there was none.
    pub fn remove() -> Option<Totals> {
        PARKER.take().map(|parker| parker.totals())
    }

    /// The hook that a runtime calls before its thread blocks. Without a parker, or without a [`spinner`], it
    /// does nothing.
    pub fn on_thread_park() {
        let Some(waker) = SPINNER.take() else { return };
        let polls = PARKER.with_borrow_mut(|parker| parker.as_mut().is_some_and(|parker| parker.parks()));
        if polls {
            waker.wake_by_ref();
        }
        SPINNER.set(Some(waker));
    }

    /// Removes the waker of a spinner that has ended: nothing polls that any more.
    #[derive(Default)]
    struct Spinning(Option<Waker>);

    impl Drop for Spinning {
        fn drop(&mut self) {
            let own = |waker: &Waker| self.0.as_ref().is_some_and(|own| own.will_wake(waker));
            // The thread's own values may be gone.
            let _ = SPINNER.try_with(|spinner| spinner.set(spinner.take().filter(|waker| !own(waker))));
        }
    }

    /// The task that the hook wakes so that the runtime does not block. It is never ready; it ends with its runtime.
    pub fn spinner() -> impl Future<Output = ()> {
        let mut spinning = Spinning::default();
        poll_fn(move |context| {
            let known = SPINNER.take().filter(|waker| waker.will_wake(context.waker()));
            let waker = known.unwrap_or_else(|| context.waker().clone());
            spinning.0.get_or_insert_with(|| waker.clone()).clone_from(&waker);
            SPINNER.set(Some(waker));
            Poll::Pending
        })
    }

    /// A task of this thread has something to do: the wait is over. To be called before the work, which would
    /// count as idle time and, where it is long, as a preemption.
    pub fn worked() {
        PARKER.with_borrow_mut(|parker| {
            if let Some(parker) = parker {
                parker.works();
            }
        });
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::Idler;
        use core::pin::pin;
        use core::sync::atomic::{AtomicBool, Ordering};
        use core::task::Context;
        use core::time::Duration;
        use dwell_policy::{Nanos, Outcome};
        use std::sync::Arc;
        use std::task::Wake;

        /// Polls, and is preempted where a look takes longer than a microsecond.
        struct Polls;

        impl Policy for Polls {
            fn window(&mut self) -> Nanos {
                Nanos(20_000)
            }
            fn observe(&mut self, _: Outcome) {}
            fn longest_gap(&self) -> Nanos {
                Nanos(1_000)
            }
        }

        /// The thread blocks for much longer than a look takes.
        fn block() {
            on_thread_park();
            std::thread::sleep(Duration::from_millis(2));
            worked();
        }

        #[test]
        fn without_a_spinner_a_thread_that_blocks_is_not_preempted() {
            install(Idler::new(Polls));
            block();
            {
                let mut spinner = pin!(spinner());
                assert!(spinner.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                assert!(SPINNER.take().inspect(|waker| SPINNER.set(Some(waker.clone()))).is_some());
            }
            block();
            assert_eq!(remove().unwrap().preempted, 0);
        }

        /// The spinner lost its waker with the parker that was removed, and the next one never polled.
        #[test]
        fn parker_that_replaces_a_removed_one_polls() {
            struct Woken(AtomicBool);
            impl Wake for Woken {
                fn wake(self: Arc<Self>) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let woken = Arc::new(Woken(AtomicBool::new(false)));
            let waker = Waker::from(woken.clone());
            install(Idler::new(Polls));
            let mut spinner = pin!(spinner());
            assert!(spinner.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert!(remove().is_some());
            on_thread_park();
            assert!(!woken.0.load(Ordering::Relaxed), "no parker polls");
            install(Idler::new(Polls));
            on_thread_park();
            assert!(woken.0.load(Ordering::Relaxed));
        }
    }
}
