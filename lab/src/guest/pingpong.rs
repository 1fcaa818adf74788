//! Two vCPUs that send each other a message and wait for the answer.

use super::doorbell::DOORBELL;
use super::{IdleState, Idler, MOST_ROUNDS, PollControl, Rounds, out, send_wake, spin, tsc};
use crate::vm::Shared;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the two players and their host share.
#[repr(C)]
pub struct Exchange {
    /// One for each player: 0 serves, 1 returns.
    pub endpoints: [Endpoint; 2],
    /// Whether the host may poll.
    pub poll_control: PollControl,
    /// 1 where the players are in VMs of their own, and ring each other's doorbell.
    apart: AtomicU32,
    /// The exchanges: how long the server thinks before each, and then how long it took.
    pub rounds: Rounds,
    /// What each player did in them.
    logs: [Log; 2],
}

/// By exchange, written by the player.
#[repr(C)]
struct Log([Entry; MOST_ROUNDS]);

/// An exchange of a player, by the time-stamp counter.
#[repr(C)]
struct Entry {
    sent: AtomicU64,
    waited: AtomicU64,
    woke: AtomicU64,
    halts: AtomicU64,
}

/// What a player did in an exchange \[TSC cycles\].
#[derive(Clone, Copy, Debug)]
pub struct Exchanged {
    /// It sent its message.
    pub sent: u64,
    /// It began to wait for the other's.
    pub waited: u64,
    /// It ran again.
    pub woke: u64,
    /// It had halted meanwhile, and not only polled.
    pub halted: bool,
}

impl Log {
    #[inline]
    fn entry(&self, number: u64) -> Option<&Entry> {
        self.0.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}

#[repr(C, align(128))]
pub struct Endpoint {
    /// Where the player idles.
    pub idle_state: IdleState,
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

// SAFETY: atomics, and IdleStates, which are Shared.
unsafe impl Shared for Exchange {}

impl Exchange {
    /// Before the guests run: each player is the first vCPU of a VM of its own, in which a write to [`DOORBELL`] wakes the
    /// other.
    pub fn set_apart(&self) {
        self.apart.store(1, Ordering::Release);
    }

    /// What a player has done in each of the first exchanges.
    pub fn exchanged(&self, player: usize, exchanges: usize) -> Vec<Exchanged> {
        let of = |entry: &Entry| {
            let [sent, waited, woke, halts] = [&entry.sent, &entry.waited, &entry.woke, &entry.halts]
                .map(|cell| cell.load(Ordering::Relaxed));
            Exchanged { sent, waited, woke, halted: halts > 0 }
        };
        self.logs[player].0.iter().take(exchanges).map(of).collect()
    }

    /// Sends message number `number` to a player.
    #[inline]
    fn send(&self, from: &Endpoint, to: u8, number: u64) {
        if let Some(entry) = self.logs[usize::from(1 - to)].entry(number) {
            entry.sent.store(tsc(), Ordering::Relaxed);
        }
        let endpoint = &self.endpoints[usize::from(to)];
        endpoint.mail.0.store(number, Ordering::Release);
        let avoided = endpoint.idle_state.watches();
        let counter = if avoided { &from.ipis.avoided } else { &from.ipis.sent };
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        match (avoided, self.apart.load(Ordering::Relaxed)) {
            (true, _) => {}
            (false, 0) => send_wake(to),
            (false, _) => out(DOORBELL),
        }
    }
}

impl Endpoint {
    /// IPIs that the player has sent so far, and those that it could save.
    pub fn ipis(&self) -> (u64, u64) {
        (self.ipis.sent.load(Ordering::Relaxed), self.ipis.avoided.load(Ordering::Relaxed))
    }

    #[inline]
    fn receive(&self, idler: &mut Idler, log: &Log, number: u64) {
        let (waited, halts) = (tsc(), self.idle_state.idling().halts);
        if self.mail.0.load(Ordering::Acquire) != number {
            idler.idle(|| self.mail.0.load(Ordering::Acquire) == number);
        }
        if let Some(entry) = log.entry(number) {
            entry.waited.store(waited, Ordering::Relaxed);
            entry.woke.store(tsc(), Ordering::Relaxed);
            entry.halts.store(self.idle_state.idling().halts - halts, Ordering::Relaxed);
        }
    }
}

/// The program of vCPU 0: thinks, sends, waits for the answer.
pub extern "sysv64" fn serve(exchange: &Exchange) -> ! {
    exchange.poll_control.say();
    let [mine, _] = &exchange.endpoints;
    let mut idler = Idler::new(&mine.idle_state);
    exchange.rounds.measure(|number, think| {
        spin(think);
        let sent = tsc();
        exchange.send(mine, 1, number);
        mine.receive(&mut idler, &exchange.logs[0], number);
        tsc() - sent
    })
}

/// The program of vCPU 1: waits, and answers at once.
pub extern "sysv64" fn reply(exchange: &Exchange) -> ! {
    exchange.poll_control.say();
    let [_, mine] = &exchange.endpoints;
    let mut idler = Idler::new(&mine.idle_state);
    exchange.rounds.each(|number| {
        mine.receive(&mut idler, &exchange.logs[1], number);
        exchange.send(mine, 0, number);
    })
}
