//! How a guest's CPU polls.
#![allow(unsafe_code)]

use dwell_policy::Nanos;

/// How long Linux's polling loop of an idle CPU (`poll_idle`) takes from one look at the clock to the next, at the first
/// of which after its window a poll ends: 201 pauses with a look for a task before each, as a thread takes them here; the
/// shortest of eight times, which take 0.2 ms. It is longer by a tenth while the core's other thread is busy, so that the
/// shortest of several calls is nearest to that of an idle machine. `None` on machines whose pause has no instruction of
/// its own here.
pub fn poll_step() -> Option<Nanos> {
    #[cfg(target_arch = "x86_64")]
    return Some(of_this_cpu::poll_step());
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(target_arch = "x86_64")]
mod of_this_cpu {
    use dwell_policy::Nanos;
    use std::arch::asm;
    use std::time::Instant;

    /// Pauses between two looks at the clock: one more than `POLL_IDLE_RELAX_COUNT` of `drivers/cpuidle/poll_state.c`.
    const PAUSES: u32 = 201;
    /// Looks that are timed together, so that the clock's own time is small, and how often.
    const LOOKS: u32 = 4;
    const TIMES: u32 = 8;

    pub(super) fn poll_step() -> Nanos {
        let times_ns = (0..TIMES).map(|_| {
            let begin = Instant::now();
            pauses(PAUSES * LOOKS);
            begin.elapsed().as_nanos() / u128::from(LOOKS)
        });
        Nanos(times_ns.min().map_or(1, |ns| u64::try_from(ns).unwrap_or(u64::MAX).max(1)))
    }

    /// `count` pauses (at least 1), with a load from memory before each. In assembly, as a loop in Rust takes half as long
    /// again where the profile compiles it without optimisation.
    fn pauses(count: u32) {
        let task = 0u32;
        // SAFETY: it reads `task`, which lives, and writes no memory and no register but that of `count`.
        unsafe {
            asm!(
                "2:",
                "cmp dword ptr [{task}], 0",
                "jne 3f",
                "pause",
                "dec {count:e}",
                "jnz 2b",
                "3:",
                task = in(reg) &raw const task,
                count = inout(reg) count => _,
                options(nostack, readonly)
            );
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::arch::asm;
    use std::time::Instant;

    /// 201 pauses and nothing between them, a quarter of the time of 804 \[ns\].
    fn bare_pauses() -> u64 {
        let begin = Instant::now();
        // SAFETY: it changes nothing.
        unsafe { asm!(".rept 804", "pause", ".endr", options(nomem, nostack, preserves_flags)) };
        u64::try_from(begin.elapsed().as_nanos() / 4).unwrap_or(u64::MAX)
    }

    fn step() -> u64 {
        poll_step().expect("pauses have an instruction here").get()
    }

    #[test]
    fn a_step_takes_time() {
        assert!(step() > 100);
    }

    /// A loop in Rust, compiled without optimisation, once made each pause 10 ns longer.
    #[test]
    #[ignore = "measures time; .ci/long runs it"]
    fn a_step_is_two_hundred_pauses_and_little_between_them() {
        // In turns, of equal length, and the shortest of many: other work on the machine makes a time longer, and none
        // shorter.
        let turns = (0..200).map(|_| [(0..8).map(|_| bare_pauses()).min().unwrap_or(0), step()]);
        let [bare_ns, step_ns] =
            turns.fold([u64::MAX; 2], |least, turn| [0, 1].map(|at| least[at].min(turn[at])));
        let between_ns = step_ns.saturating_sub(bare_ns) / 201;
        assert!(between_ns <= 3, "{step_ns} ns, of which pauses {bare_ns} ns");
    }
}
