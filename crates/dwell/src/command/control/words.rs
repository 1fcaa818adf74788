//! A change of the controller as a line of text.

use dwell_control::{Cause, Change};
use dwell_policy::param::Setting;
use dwell_report::{count, duration};

/// What is changed: `halt_poll_ns 200000 -> 20000, …`.
pub(super) fn difference(from: &Setting, to: &Setting) -> String {
    let pairs = from.iter().zip(to.iter()).filter(|(from, to)| from.1 != to.1);
    let all: Vec<String> =
        pairs.map(|((param, from), (_, to))| format!("{} {from} -> {to}", param.name)).collect();
    all.join(", ")
}

/// Why, in numbers.
pub(super) fn why(cause: &Cause) -> String {
    match *cause {
        Cause::Gain { episodes, present_ns, chosen_ns, originals_ns, optimum_ns } => format!(
            "{} an episode instead of {}, over {} episodes (originals {}, optimum {})",
            duration(chosen_ns),
            duration(present_ns),
            count(episodes as u128),
            duration(originals_ns),
            duration(optimum_ns),
        ),
        Cause::Loss { owed_ns, originals_ns_per_s, rest_ns } => format!(
            "the originals for {}: control has cost {} more than 1.02 times their cost of {}/s",
            duration(rest_ns as f64),
            duration(owed_ns),
            duration(originals_ns_per_s),
        ),
        Cause::Untrusted { apart, episodes } => format!(
            "control ends: of {} episodes {} {} were counted and {:.0} predicted; the rule does not describe this load",
            count(episodes.into()),
            count(apart.counted.into()),
            apart.figure.name(),
            apart.predicted,
        ),
    }
}

/// One line of a change: what, and why.
pub(super) fn line(change: &Change) -> String {
    match difference(&change.from, &change.to) {
        none if none.is_empty() => why(&change.cause),
        what => format!("{what}: {}", why(&change.cause)),
    }
}
