//! How long steps of a guest's idle loop take, which no governor decides.

use dwell_policy::Nanos;

/// How long a guest polls between two looks at the clock, and how long its CPUs take to enter a halt; zero where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleLoop {
    poll_step_ns: u32,
    halt_entry_ns: u32,
}

impl IdleLoop {
    /// Far longer than the time between two looks at the clock of any loop of pauses, or the way to a halt. What is longer is taken
    /// for this.
    pub const LONGEST: Nanos = Nanos(1 << 20);

    /// Nothing is known of it.
    pub const UNKNOWN: IdleLoop = IdleLoop { poll_step_ns: 0, halt_entry_ns: 0 };

    /// See [`IdleLoop::poll_step_ns`] and [`IdleLoop::halt_entry_ns`].
    pub fn new(poll_step: Nanos, halt_entry: Nanos) -> IdleLoop {
        let [poll_step_ns, halt_entry_ns] = [poll_step, halt_entry]
            .map(|time| u32::try_from(time.min(IdleLoop::LONGEST).get()).unwrap_or(u32::MAX));
        IdleLoop { poll_step_ns, halt_entry_ns }
    }

    /// How long the guest polls between two looks at the clock \[ns\], at the first of which after its window a poll ends: 201 pauses
    /// in Linux. 0: a poll ends with its window.
    #[inline]
    pub const fn poll_step_ns(self) -> u32 {
        self.poll_step_ns
    }

    /// How long a CPU takes from the end of a poll, or from where one would begin, to the idle state that halts \[ns\]: it stops the
    /// tick first. An event that comes then prevents the halt, and haltpoll learns nothing from it; of a halt it learns from as much
    /// less. After an event between a poll and its halt the governor halts at once in the next idle time. Idle times are those of a CPU
    /// that polls first.
    #[inline]
    pub const fn halt_entry_ns(self) -> u32 {
        self.halt_entry_ns
    }
}
