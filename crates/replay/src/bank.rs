use crate::counts::Counts;
use crate::engine::{Engine, Isa};
use crate::rule::{Player, Rule, RuleError};
use crate::source::Batch;
use rayon::prelude::*;

/// Fewer episodes, times rules, than these are played by the calling thread alone: others would use more CPU
/// time to wake up than they would save.
const WORTH_THREADS: usize = 1 << 20;

/// Many rules, each with a policy of its own for every idler, fed with the same episodes on all cores.
///
/// The rules of hosts and guests go through the vector [`engine`](crate::engine), all others through their policies one
/// episode after the other. The counts are the same.
pub struct Bank {
    engine: Engine,
    /// For each rule whether it is the engine's.
    taken: Vec<bool>,
    scalar: Vec<Played>,
}

struct Played {
    fresh: Player,
    players: Vec<Player>,
    counts: Counts,
}

impl Bank {
    /// One policy for each rule and idler; an event loop has `handlers` handlers.
    ///
    /// # Errors
    /// [`RuleError`] if one of the rules cannot be replayed.
    pub fn new(rules: &[Rule], handlers: usize) -> Result<Bank, RuleError> {
        Bank::with_isa(rules, handlers, Some(Isa::best()))
    }

    /// As [`Bank::new`], but every rule goes through its policy, one episode after the other: slow, and the oracle for
    /// the engine.
    ///
    /// # Errors
    /// [`RuleError`] if one of the rules cannot be replayed.
    pub fn scalar(rules: &[Rule], handlers: usize) -> Result<Bank, RuleError> {
        Bank::with_isa(rules, handlers, None)
    }

    /// As [`Bank::new`], with these instructions; without any as [`Bank::scalar`].
    ///
    /// # Errors
    /// [`RuleError`] if one of the rules cannot be replayed.
    ///
    /// # Panics
    /// If the CPU lacks them; [`Isa::available`] has those of this CPU.
    pub fn with_isa(rules: &[Rule], handlers: usize, isa: Option<Isa>) -> Result<Bank, RuleError> {
        let (engine, taken) = Engine::new(rules, isa);
        let mut scalar = vec![];
        for (rule, taken) in rules.iter().zip(&taken) {
            // Also for the engine's rules: whether they can be replayed is decided in one place.
            let fresh = rule.start(handlers)?;
            if !taken {
                scalar.push(Played { fresh, players: vec![], counts: Counts::default() });
            }
        }
        Ok(Bank { engine, taken, scalar })
    }

    /// Plays a batch through every policy.
    pub fn feed(&mut self, batch: &Batch) {
        let Bank { engine, scalar, taken } = self;
        if batch.episodes() * taken.len() < WORTH_THREADS {
            engine.feed(batch, false);
            scalar.iter_mut().for_each(|played| played.feed(batch));
            return;
        }
        rayon::join(
            || engine.feed(batch, true),
            || scalar.par_iter_mut().for_each(|played| played.feed(batch)),
        );
    }

    /// Every policy as at its start.
    pub fn restart(&mut self) {
        self.engine.restart();
        self.scalar.iter_mut().for_each(|played| played.players.clear());
    }

    /// What each rule did since the last call. The policies keep their state.
    pub fn take(&mut self) -> Vec<Counts> {
        let mut fast = self.engine.take().into_iter();
        let mut slow = self.scalar.iter_mut().map(|played| std::mem::take(&mut played.counts));
        let next = |taken: &bool| if *taken { fast.next() } else { slow.next() };
        self.taken.iter().filter_map(next).collect()
    }
}

impl Played {
    fn feed(&mut self, batch: &Batch) {
        for run in batch.runs() {
            while self.players.len() <= run.idler {
                self.players.push(self.fresh.clone());
            }
            self.counts += self.players[run.idler].play(run);
        }
    }
}
