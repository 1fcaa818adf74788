use crate::counts::Counts;
use crate::rule::{Player, Rule, RuleError};
use crate::source::Batch;
use rayon::prelude::*;

/// Many rules, each with a policy of its own for every idler, fed with the same episodes on all cores.
pub struct Bank {
    seats: Vec<Seat>,
}

struct Seat {
    rule: Rule,
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
        let seat = |rule: &Rule| -> Result<Seat, RuleError> {
            let fresh = rule.start(handlers)?;
            Ok(Seat { rule: *rule, fresh, players: vec![], counts: Counts::default() })
        };
        Ok(Bank { seats: rules.iter().map(seat).collect::<Result<_, _>>()? })
    }

    /// Lets every policy live through a batch.
    pub fn feed(&mut self, batch: &Batch) {
        self.seats.par_iter_mut().for_each(|seat| seat.feed(batch));
    }

    /// What each rule did since this was asked last. The policies go on from where they are.
    pub fn take(&mut self) -> Vec<Counts> {
        self.seats.iter_mut().map(|seat| std::mem::take(&mut seat.counts)).collect()
    }

    /// The rules, in the order of their counts.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.seats.iter().map(|seat| &seat.rule)
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
