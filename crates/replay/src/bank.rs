use crate::counts::Counts;
use crate::engine::{Engine, Isa};
use crate::rule::{Player, Rule, RuleError};
use crate::source::Batch;
use rayon::prelude::*;

/// Many rules, each with a policy of its own for every idler, fed with the same episodes on all cores.
///
/// The rules of hosts and guests and fixed windows go through the vector [`engine`](crate::engine), all others through
/// their policies one episode after the other. The counts are the same.
pub struct Bank {
    rules: Vec<Rule>,
    engine: Engine,
    /// For each rule whether it is the engine's.
    taken: Vec<bool>,
    seats: Vec<Seat>,
}

struct Seat {
    fresh: Player,
    players: Vec<Player>,
    counts: Counts,
}

impl Bank {
    /// One seat for each rule, with room for `handlers` of an event loop.
    ///
    /// # Errors
    /// [`RuleError`] if one of the rules cannot be replayed.
    pub fn new(rules: &[Rule], handlers: usize) -> Result<Bank, RuleError> {
        Bank::with_isa(rules, handlers, Isa::best())
    }

    /// As [`Bank::new`], with these instructions.
    ///
    /// # Errors
    /// [`RuleError`] if one of the rules cannot be replayed.
    ///
    /// # Panics
    /// If the CPU lacks them; [`Isa::available`] says which it has.
    pub fn with_isa(rules: &[Rule], handlers: usize, isa: Isa) -> Result<Bank, RuleError> {
        let (engine, taken) = Engine::new(rules.iter(), isa);
        Bank::seated(rules, handlers, engine, taken)
    }

    /// As [`Bank::new`], but every rule goes through its policy, one episode after the other: slow, and the oracle for
    /// the engine.
    ///
    /// # Errors
    /// [`RuleError`] if one of the rules cannot be replayed.
    pub fn scalar(rules: &[Rule], handlers: usize) -> Result<Bank, RuleError> {
        let (engine, _) = Engine::new([].iter(), Isa::Portable);
        Bank::seated(rules, handlers, engine, vec![false; rules.len()])
    }

    fn seated(rules: &[Rule], handlers: usize, engine: Engine, taken: Vec<bool>) -> Result<Bank, RuleError> {
        let mut seats = vec![];
        for (rule, taken) in rules.iter().zip(&taken) {
            // Also for the engine's rules: whether they can be replayed is decided in one place.
            let fresh = rule.start(handlers)?;
            if !taken {
                seats.push(Seat { fresh, players: vec![], counts: Counts::default() });
            }
        }
        Ok(Bank { rules: rules.to_vec(), engine, taken, seats })
    }

    /// Lets every policy live through a batch.
    pub fn feed(&mut self, batch: &Batch) {
        let Bank { engine, seats, .. } = self;
        rayon::join(|| engine.feed(batch), || seats.par_iter_mut().for_each(|seat| seat.feed(batch)));
    }

    /// What each rule did since this was asked last. The policies go on from where they are.
    pub fn take(&mut self) -> Vec<Counts> {
        let mut fast = self.engine.take().into_iter();
        let mut slow = self.seats.iter_mut().map(|seat| std::mem::take(&mut seat.counts));
        let next = |taken: &bool| if *taken { fast.next() } else { slow.next() };
        self.taken.iter().filter_map(next).collect()
    }

    /// The rules, in the order of their counts.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }
}

impl Seat {
    fn feed(&mut self, batch: &Batch) {
        for run in batch.runs() {
            while self.players.len() <= run.idler {
                self.players.push(self.fresh.clone());
            }
            self.counts += self.players[run.idler].play(run);
        }
    }
}
