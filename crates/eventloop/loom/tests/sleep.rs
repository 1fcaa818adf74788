//! Every order in which an event comes and a loop goes to sleep, of a source whose `loud` is a plain store: the look
//! sees the event, or it is notified.

mod sync {
    pub(crate) use loom::sync::atomic::{Ordering, fence};
}
#[path = "../../src/sleep.rs"]
mod sleep;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};

#[test]
fn event_is_seen_or_notified() {
    loom::model(|| {
        let [loud, event] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let notifier = loom::thread::spawn({
            let (loud, event) = (loud.clone(), event.clone());
            move || {
                event.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                loud.load(Ordering::Relaxed)
            }
        });
        let seen = sleep::looks_once_more(
            &mut (loud, event),
            |(loud, _)| loud.store(true, Ordering::Relaxed),
            |(_, event)| event.load(Ordering::Relaxed),
        );
        assert!(notifier.join().unwrap() || seen);
    });
}
