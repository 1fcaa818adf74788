//! A policy of your own, compared with those of dwell: `cargo run -p dwell-lab --example toy_policy [RECORDING]`.

use dwell_lab::study::{Subject, study};
use dwell_policy::version::NEWEST_KERNEL;
use dwell_recording::Reader;
use dwell_replay::{Catalogue, RecordingSource, replay};
use std::error::Error;

// ANCHOR: policy
use dwell_policy::catalogue::{Any, Entry, Start};
use dwell_policy::{Nanos, Outcome, Policy};

/// Polls for as long as a halt costs, if the last episode was no longer than that.
#[derive(Clone, Debug)]
struct Toy {
    halt_cost: Nanos,
    last: Nanos,
}

impl Policy for Toy {
    fn window(&mut self) -> Nanos {
        if self.last <= self.halt_cost { self.halt_cost } else { Nanos::ZERO }
    }
    fn observe(&mut self, outcome: Outcome<'_>) {
        self.last = outcome.idle;
    }
}
// ANCHOR_END: policy

// ANCHOR: line
static TOY: Entry = Entry {
    name: "toy",
    start: Start::Learner(|terms| Any::other(terms.start(|halt_cost| Toy { halt_cost, last: Nanos::ZERO }))),
    about: "polls for as long as a halt costs, if the last episode was no longer than that",
};
// ANCHOR_END: line

// ANCHOR: use
fn main() -> Result<(), Box<dyn Error>> {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../recordings/event-pgbench_sel1.parquet");
    let file = std::env::args().nth(1).unwrap_or_else(|| bundled.to_owned());
    let source = RecordingSource::new(Reader::open(file.as_ref())?, false);

    // It is written as the others are, and replayed as they are.
    let rule = Catalogue::default().with(&TOY).rule("toy@20us")?;
    let replayed = replay(&source, &[rule], Nanos::from_micros(20), &|_| ())?;
    println!("{rule}: {} polls, {} halts", replayed.counts[0].polls, replayed.counts[0].halts);

    // And it is compared with them.
    let subjects: Vec<Subject> = Subject::all().into_iter().chain([Subject::Learner(&TOY)]).collect();
    for at in study(&source, NEWEST_KERNEL, &subjects, &[5, 20, 50].map(Nanos::from_micros), &|_| ())? {
        println!("cost over the optimum at a halt cost of {:#}", at.halt_cost);
        for subject in &subjects {
            println!("{:>16} {:8.3}", subject.name(), at.ratio(*subject).unwrap_or(f64::NAN));
        }
    }
    Ok(())
}
// ANCHOR_END: use

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_replay::{Memory, Rule};

    #[test]
    fn toy_policy_takes_part_like_those_of_the_catalogue() {
        let catalogue = Catalogue::default().with(&TOY);
        let rule = catalogue.rule("toy@20us,late=3us").unwrap();
        assert_eq!(rule.to_string(), "toy@20us,late=3us");
        assert!(catalogue.grammar().ends_with("toy@TIME[,late=TIME]"));
        assert!("toy@20us".parse::<Rule>().unwrap_err().to_string().contains("`toy` is not a policy"));
        // It polls in the first episode and after each short one, 5 times; twice a long one follows.
        let source = Memory::of_one(&[5_000, 5_000, 90_000, 90_000, 5_000, 5_000, 90_000, 5_000]);
        let counts = replay(&source, &[rule], Nanos(20_000), &|_| ()).unwrap().counts[0];
        assert_eq!((counts.polls, counts.polls_succeeded, counts.halts), (5, 3, 5));
        assert_eq!(counts.polled_ns, 3 * 5_000 + 2 * 20_000);
    }

    #[test]
    fn tutorial_is_short() {
        // The policy and its line, as the book shows them, without blank lines.
        let text = include_str!("toy_policy.rs");
        let shown = |anchor: &str| {
            let (start, end) = (format!("// ANCHOR: {anchor}\n"), format!("// ANCHOR_END: {anchor}\n"));
            let from = text.split_once(&start).unwrap().1;
            from.split_once(&end).unwrap().0.lines().filter(|line| !line.is_empty()).count()
        };
        assert!(shown("policy") + shown("line") < 40, "{} {}", shown("policy"), shown("line"));
    }
}
