//! Two vCPUs that send each other a message and wait for the answer.

use super::{Bed, Idler, MSR_KVM_POLL_CONTROL, report, send_wake, tsc, write_msr};
use crate::vm::Shared;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most exchanges of a block.
pub const MOST_EXCHANGES: usize = 1 << 14;

/// What the two players and their host share.
#[repr(C)]
pub struct Table {
    /// One for each player: 0 serves, 1 returns.
    pub seats: [Seat; 2],
    warm_up: AtomicU64,
    exchanges: AtomicU64,
    /// 0: leave poll control as it is; else 1 + the value to write.
    poll_control: AtomicU32,
    /// How long the server thinks before each exchange, and then how long the exchange took \[TSC cycles\].
    cycles: [AtomicU64; MOST_EXCHANGES],
}

/// A player's seat.
#[repr(C, align(128))]
pub struct Seat {
    /// Where the player idles.
    pub bed: Bed,
    mail: Mail,
    ipis: Ipis,
}

/// Written by the other player.
#[repr(align(128))]
struct Mail(AtomicU64);

/// Written by the player.
#[repr(align(128))]
struct Ipis {
    sent: AtomicU64,
    avoided: AtomicU64,
}

// SAFETY: atomics, and Beds, which are Shared.
unsafe impl Shared for Table {}

impl Table {
    /// Before it starts: how many exchanges there will be, the first of which warm up, and how long the server thinks
    /// before each \[TSC cycles\]. At most [`MOST_EXCHANGES`] are taken.
    pub fn lay(&self, warm_up: usize, think_cycles: impl ExactSizeIterator<Item = u64>) {
        let exchanges = think_cycles.len().min(MOST_EXCHANGES);
        self.warm_up.store(warm_up.min(exchanges) as u64, Ordering::Relaxed);
        self.exchanges.store(exchanges as u64, Ordering::Release);
        for (cell, cycles) in self.cycles.iter().zip(think_cycles) {
            cell.store(cycles, Ordering::Relaxed);
        }
    }

    /// Before it starts: both players will write `allowed` to `MSR_KVM_POLL_CONTROL`.
    pub fn set_poll_control(&self, allowed: bool) {
        self.poll_control.store(1 + u32::from(allowed), Ordering::Relaxed);
    }

    /// After it ended: how long each exchange took that was no warm-up \[TSC cycles\].
    pub fn round_trips(&self) -> impl Iterator<Item = u64> {
        let [warm_up, exchanges] = [&self.warm_up, &self.exchanges].map(|n| n.load(Ordering::Acquire));
        let range = usize::try_from(warm_up).unwrap_or(0)..usize::try_from(exchanges).unwrap_or(0);
        self.cycles[range].iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    fn begin(&self) {
        let poll_control = self.poll_control.load(Ordering::Relaxed);
        if poll_control > 0 {
            write_msr(MSR_KVM_POLL_CONTROL, u64::from(poll_control - 1));
        }
    }

    /// Sends message number `number` to a player.
    #[inline]
    fn send(&self, from: &Seat, to: u8, number: u64) {
        let seat = &self.seats[usize::from(to)];
        seat.mail.0.store(number, Ordering::Release);
        let avoided = seat.bed.watches();
        let counter = if avoided { &from.ipis.avoided } else { &from.ipis.sent };
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if !avoided {
            send_wake(to);
        }
    }
}

impl Seat {
    /// IPIs that the player has sent so far, and those that it could save.
    pub fn ipis(&self) -> (u64, u64) {
        (self.ipis.sent.load(Ordering::Relaxed), self.ipis.avoided.load(Ordering::Relaxed))
    }

    #[inline]
    fn receive(&self, idler: &mut Idler, number: u64) {
        if self.mail.0.load(Ordering::Acquire) != number {
            idler.idle(|| self.mail.0.load(Ordering::Acquire) == number);
        }
    }
}

/// The program of vCPU 0: thinks, sends, waits for the answer. Reports after the warm-up and at the end.
pub extern "sysv64" fn serve(table: &Table) -> ! {
    table.begin();
    let [mine, _] = &table.seats;
    let mut idler = Idler::new(&mine.bed);
    let warm_up = table.warm_up.load(Ordering::Relaxed);
    for (number, cell) in (1..=table.exchanges.load(Ordering::Acquire)).zip(&table.cycles) {
        let think = cell.load(Ordering::Relaxed);
        let began = tsc();
        while tsc() - began < think {
            std::hint::spin_loop();
        }
        let sent = tsc();
        table.send(mine, 1, number);
        mine.receive(&mut idler, number);
        cell.store(tsc() - sent, Ordering::Relaxed);
        if number == warm_up {
            report();
        }
    }
    loop {
        report();
    }
}

/// The program of vCPU 1: waits, and answers at once.
pub extern "sysv64" fn reply(table: &Table) -> ! {
    table.begin();
    let [_, mine] = &table.seats;
    let mut idler = Idler::new(&mine.bed);
    let warm_up = table.warm_up.load(Ordering::Relaxed);
    for number in 1..=table.exchanges.load(Ordering::Acquire) {
        mine.receive(&mut idler, number);
        table.send(mine, 0, number);
        if number == warm_up {
            report();
        }
    }
    loop {
        report();
    }
}
