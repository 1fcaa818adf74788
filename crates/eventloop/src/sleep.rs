//! The last look before a sleep.

use super::sync::{Ordering, fence};

/// Makes sources loud and then looks at them. The fence orders the stores of `loud` before the loads of `look`:
/// where the look misses an event, whoever notifies, with a full fence of its own, sees that it has to.
pub(crate) fn looks_once_more<S>(
    sources: &mut S,
    loud: impl FnOnce(&mut S),
    look: impl FnOnce(&mut S) -> bool,
) -> bool {
    loud(sources);
    fence(Ordering::SeqCst);
    look(sources)
}
