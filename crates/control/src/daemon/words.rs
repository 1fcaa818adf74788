//! A change of the controller as a line of text.

use crate::core::differing;
use crate::core::trust::{Apart, Lost};
use crate::core::{Cause, Change, Measured, TOLERANCE, Veto};
use dwell_policy::param::{Param, Setting};
use dwell_report::{count, duration, ratio};
use dwell_stats::whole::whole;

/// What is changed: `halt_poll_ns 200000 -> 20000, …`.
pub(super) fn difference(from: &Setting, to: &Setting) -> String {
    let shown = |param: &Param, value: i64| param.name_of(value).map_or(value.to_string(), str::to_owned);
    let all: Vec<String> = differing(from, to)
        .map(|(param, from, to)| format!("{} {} -> {}", param.name, shown(param, from), shown(param, to)))
        .collect();
    all.join(", ")
}

/// Why, in numbers; `vm` is how an idler is called.
fn why(cause: &Cause, vm: &dyn Fn(u64) -> String) -> String {
    match *cause {
        Cause::Gain { episodes, present_ns, chosen_ns, originals_ns, optimum_ns } => format!(
            "{} an episode instead of {}, over {} episodes (originals {}, optimum {})",
            duration(chosen_ns),
            duration(present_ns),
            count(episodes as u128),
            duration(originals_ns),
            duration(optimum_ns),
        ),
        Cause::Work { segments, speed, chosen_ns, present_ns } => format!(
            "{} ({} to {}) times the work a second, and {} a unit of work instead of {}, by the causes of {} segments",
            ratio(speed.middle),
            ratio(speed.low),
            ratio(speed.high),
            duration(chosen_ns),
            duration(present_ns),
            count(segments as u128),
        ),
        Cause::Loss { excess_ns, originals_ns, rest_ns } => format!(
            "the originals for {}: control has cost {} more than 1.01 times their cost, which was {} in 10 s",
            duration(rest_ns as f64),
            duration(excess_ns),
            duration(originals_ns),
        ),
        Cause::Vetoed { idler, cost_ns, originals_ns, rest_ns } => format!(
            "the originals for {}: {} has cost {} in 10 s instead of {}, more than its limit",
            duration(rest_ns as f64),
            vm(idler),
            duration(cost_ns),
            duration(originals_ns),
        ),
        Cause::Turn => "a turn of a comparison".to_owned(),
        Cause::Verified(measured) => match measured.ratio.is_some_and(|ratio| ratio.high <= TOLERANCE) {
            true => format!("verified in turns: {}", in_turns(&measured)),
            false => format!("turns leave open whether it gains or loses: {}", in_turns(&measured)),
        },
        Cause::Refuted { measured, rest_ns } => {
            let less =
                measured.setting_per_s.zip(measured.reference_per_s).is_some_and(|(own, other)| own < other);
            let how = match measured.ratio {
                Some(ratio) if ratio.low > 1.0 => "refuted in turns",
                Some(ratio) if ratio.value < 1.0 && less => {
                    "in turns too little work is done for what it saves"
                }
                _ => "turns leave open whether it gains or loses, and their mean is no gain",
            };
            format!("{how}, no other setting for {}: {}", duration(rest_ns as f64), in_turns(&measured))
        }
        Cause::Tried(measured) => {
            let what =
                if measured.setting_ns < measured.reference_ns { "was cheaper" } else { "did more work" };
            format!(
                "a trial of polling {what}, which no replay of idle times had predicted: {}",
                in_turns(&measured)
            )
        }
        Cause::Unseen { rest_ns } => {
            format!("the originals for {}, as nothing can be observed", duration(rest_ns as f64))
        }
        Cause::Untrusted { apart, episodes, rest_ns } => format!(
            "the originals for {}, unless the load changes: of {} episodes {}; the rule does not describe this load",
            duration(rest_ns as f64),
            count(episodes.into()),
            counted(&apart),
        ),
    }
}

fn counted(apart: &Apart) -> String {
    let Apart { figure, predicted, counted } = apart;
    format!("{} {} were counted and {predicted:.0} predicted", count((*counted).into()), figure.name())
}

/// Why the originals are in force, and for how long.
pub(super) fn untrusted(lost: &Lost, unseen: Option<&str>, now_ns: u64) -> String {
    let left_ns = lost.until_ns.saturating_sub(now_ns);
    let why = lost.apart.as_ref().map_or_else(|| unseen.unwrap_or_default().to_owned(), counted);
    format!("{why}; it tries again in {}", duration(left_ns as f64))
}

fn in_turns(measured: &Measured) -> String {
    let Measured { setting_ns, reference_ns, setting_per_s, reference_per_s, ratio, closed, by_switches } =
        measured;
    let [unit, units] =
        if *by_switches { ["a context switch", "context switches"] } else { ["an episode", "episodes"] };
    let limits = ratio.and_then(|ratio| Some((ratio.value, ratio.limits()?)));
    let limits = limits.map_or_else(
        || "the accuracy is not known".to_owned(),
        |(mean, [low, high])| {
            let of =
                if *closed { format!(", times the square of the time of {unit},") } else { String::new() };
            format!("mean ratio of the turns{of} {mean:.2} ({low:.2} to {high:.2})")
        },
    );
    // Rates that are counted are no numbers of more than 64 bits.
    let rate = |per_s: f64| count(whole(per_s.round()).into());
    let rates = match (setting_per_s, reference_per_s) {
        (Some(setting), Some(reference)) => {
            format!(", at {} {units}/s instead of {}", rate(*setting), rate(*reference))
        }
        _ => String::new(),
    };
    format!("{} {unit} instead of {}, {limits}{rates}", duration(*setting_ns), duration(*reference_ns))
}

/// One line of a change: what, and why; `vm` is how an idler is called.
pub fn line(change: &Change, vm: &dyn Fn(u64) -> String) -> String {
    match difference(&change.from, &change.to) {
        none if none.is_empty() => why(&change.cause, vm),
        what => format!("{what}: {}", why(&change.cause, vm)),
    }
}

/// A change that is not made, because of one VM.
pub(super) fn veto(present: &Setting, veto: &Veto, vm: &str) -> String {
    format!(
        "{vm} vetoes {}: {} an episode of its own instead of {} under the originals",
        difference(present, &veto.setting),
        duration(veto.cost_ns),
        duration(veto.originals_ns),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;

    #[test]
    fn policies_are_shown_by_their_names() {
        let from = Setting::defaults(Layer::Driver, Version::new(6, 18));
        let mut to = from;
        to.set("policy", 3).unwrap();
        to.set("max_window_ns", 5_000).unwrap();
        assert_eq!(difference(&from, &to), "max_window_ns 200000 -> 5000, policy leader -> never");
    }

    #[test]
    fn a_veto_names_the_vm_and_what_it_would_pay() {
        let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
        let mut setting = originals;
        setting.set("halt_poll_ns", 0).unwrap();
        let prevented = Veto { idler: 7, setting, cost_ns: 21_300.0, originals_ns: 9_800.0 };
        assert_eq!(
            veto(&originals, &prevented, "web1 (7-0)"),
            "web1 (7-0) vetoes halt_poll_ns 200000 -> 0: 21.3 us an episode of its own instead of 9.80 us under the originals"
        );
        let cause = Cause::Vetoed { idler: 7, cost_ns: 3e6, originals_ns: 2e6, rest_ns: 1_000_000_000 };
        let change = Change { at_ns: 0, from: setting, to: originals, cause };
        assert_eq!(
            line(&change, &|idler| format!("VM {idler}")),
            "halt_poll_ns 0 -> 200000: the originals for 1.00 s: VM 7 has cost 3.00 ms in 10 s instead of 2.00 ms, more than its limit"
        );
    }
}
