//! How a guest's CPU polls.

use dwell_policy::Nanos;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Pauses between two looks at the clock: one more than `POLL_IDLE_RELAX_COUNT` of `drivers/cpuidle/poll_state.c`.
const PAUSES: u32 = 201;
/// Looks that are timed together, so that the clock's own time is small, and how often.
const LOOKS: u32 = 4;
const TIMES: usize = 32;

/// How long Linux's polling loop of an idle CPU (`poll_idle`) takes from one look at the clock to the next, at the first
/// of which after its window a poll ends: 201 pauses with a look for a task before each, as a thread takes them here;
/// the median of 32 times, which take less than a millisecond. `None` on machines whose pause has no instruction of its
/// own here.
pub fn poll_step() -> Option<Nanos> {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "x86"))) {
        return None;
    }
    let task = AtomicBool::new(false);
    let mut times: Vec<u128> = (0..TIMES)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..PAUSES * LOOKS {
                if black_box(&task).load(Ordering::Relaxed) {
                    break;
                }
                spin_loop();
            }
            begin.elapsed().as_nanos() / u128::from(LOOKS)
        })
        .collect();
    times.sort_unstable();
    u64::try_from(times[TIMES / 2]).ok().filter(|ns| *ns > 0).map(Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_at_least_a_nanosecond_for_each_eight_pauses() {
        let found = poll_step();
        assert_eq!(found.is_some(), cfg!(target_arch = "x86_64"));
        // A pause takes 4 cycles at least (AMD before Zen 2), of which none is shorter than 0.15 ns.
        assert!(found.is_none_or(|step| step > Nanos(100)), "{found:?}");
    }
}
