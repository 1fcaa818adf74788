//! Every `poll_grow` and `poll_shrink` of a real QEMU, out of the times that it read itself.

use crate::guest::{Options, Qemu, Release, TRACE, revision, shim};
use dwell_policy::iothread::{Change, ChangeKind, Params, Revision, adjust, classic, weighted};
use dwell_testing::say;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

/// Decisions to see of each QEMU with its defaults, and with other parameters; fewer count if these take too long.
const WANTED: [u64; 2] = [12_000, 3_000];
const LONGEST: [Duration; 2] = [Duration::from_secs(150), Duration::from_secs(90)];

/// What the I/O thread did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Read the clock: the time, and from where.
    Clock(i64, Site),
    Decision(Change),
    Begin {
        max_ns: i64,
        timeout_ns: i64,
    },
    End,
    Add(u64),
}

/// Where in QEMU the clock was read.
type Site = (u64, u64);

/// The lines of the context of thread `io0`, whose address is found by what stands next to its clock readings.
fn parse(line: &str) -> Option<(Option<u64>, Step)> {
    let mut words = line.split(' ');
    let event = words.next()?;
    let rest: Vec<&str> = words.collect();
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    if event == "#clock" {
        return Some((
            None,
            Step::Clock(rest.first()?.parse().ok()?, (hex(rest.get(1)?)?, hex(rest.get(2)?)?)),
        ));
    }
    let value =
        |name: &str| -> Option<&str> { rest.iter().skip_while(|word| **word != name).nth(1).copied() };
    let number = |name: &str| value(name)?.parse().ok();
    let change = |kind| Some(Step::Decision(Change { kind, old: number("old")?, new: number("new")? }));
    let step = match event {
        "poll_grow" => change(ChangeKind::Grow)?,
        "poll_shrink" => change(ChangeKind::Shrink)?,
        "run_poll_handlers_begin" => {
            Step::Begin { max_ns: number("max_ns")?, timeout_ns: number("timeout")? }
        }
        "run_poll_handlers_end" => Step::End,
        "poll_add" => Step::Add(hex(value("node")?)?),
        _ => return None,
    };
    Some((hex(value("ctx")?), step))
}

/// One `aio_poll`.
#[derive(Debug, Default)]
struct Turn {
    block_ns: i64,
    stamp: i64,
    decisions: Vec<Change>,
    /// What the polling attempt in it was to last at most, if there was one without a deadline.
    attempt_ns: Option<i64>,
    added: Vec<u64>,
}

/// Cuts the steps into turns: from the reading at the beginning of `aio_poll` to the next.
///
/// Which readings these are is told by where they are made. `aio_poll` begins with one, and a polling attempt
/// comes next; it reads the clock a last time when it has waited, once a turn. So the first site is the one
/// before most attempts, and the second the one that comes exactly once between any two of the first.
fn turns(steps: &[Step]) -> Vec<Turn> {
    let mut before_begin: BTreeMap<Site, u64> = BTreeMap::new();
    let mut last = None;
    for step in steps {
        match step {
            Step::Clock(_, site) => last = Some(*site),
            Step::Begin { .. } => *before_begin.entry(last.unwrap_or_default()).or_default() += 1,
            _ => {}
        }
    }
    let Some((&start, _)) = before_begin.iter().max_by_key(|(_, count)| **count) else { return vec![] };
    let end = end_site(steps, start);
    let mut turns: Vec<Turn> = vec![];
    let mut began = None;
    for step in steps {
        match *step {
            Step::Clock(ns, site) if site == start => {
                began = Some(ns);
                turns.push(Turn::default());
            }
            Step::Clock(ns, site) if site == end => {
                if let (Some(turn), Some(began)) = (turns.last_mut(), began.take()) {
                    (turn.block_ns, turn.stamp) = (ns - began, ns);
                }
            }
            Step::Decision(change) => {
                turns.last_mut().into_iter().for_each(|turn| turn.decisions.push(change))
            }
            Step::Add(node) => turns.last_mut().into_iter().for_each(|turn| turn.added.push(node)),
            Step::Begin { max_ns, timeout_ns: -1 } => {
                turns.last_mut().into_iter().for_each(|turn| turn.attempt_ns = Some(max_ns));
            }
            _ => {}
        }
    }
    // The last may not be over.
    turns.pop();
    turns
}

fn end_site(steps: &[Step], start: Site) -> Site {
    let mut between: Vec<BTreeMap<Site, u64>> = vec![];
    for step in steps {
        match step {
            Step::Clock(_, site) if *site == start => between.push(BTreeMap::new()),
            Step::Clock(_, site) => {
                between.last_mut().into_iter().for_each(|counts| *counts.entry(*site).or_default() += 1);
            }
            _ => {}
        }
    }
    between.pop();
    let sites: BTreeSet<Site> = between.iter().flat_map(|counts| counts.keys().copied()).collect();
    let once = |site: &Site| between.iter().filter(|counts| counts.get(site) == Some(&1)).count();
    let mut by_turns: Vec<(usize, Site)> = sites.iter().map(|site| (once(site), *site)).collect();
    by_turns.sort();
    let (turns, site) = by_turns.last().copied().expect("the clock is read at the end of a turn");
    // The first turn may have begun before there was anything to adapt.
    assert!(turns + 1 >= between.len(), "{turns} of {} turns have a second reading", between.len());
    site
}

/// What a replay found.
#[derive(Debug, Default)]
struct Tally {
    turns: u64,
    decisions: u64,
    grows: u64,
    attempts: u64,
    deviations: u64,
    first: Option<String>,
}

impl Tally {
    fn deviates(&mut self, what: String) {
        self.deviations += 1;
        self.first.get_or_insert(what);
    }

    fn count(&mut self, turn: &Turn) {
        self.turns += 1;
        self.decisions += turn.decisions.len() as u64;
        self.grows += turn.decisions.iter().filter(|change| change.kind == ChangeKind::Grow).count() as u64;
        self.attempts += u64::from(turn.attempt_ns.is_some());
    }
}

/// 7.2: one polling time, and the rule at the end of every wait. Nothing is taken from the trace but what it
/// is compared with.
fn replay_global(turns: &[Turn], params: &Params) -> Tally {
    let mut tally = Tally::default();
    let mut poll_ns = 0;
    for turn in turns {
        tally.count(turn);
        if let Some(max_ns) = turn.attempt_ns.filter(|max_ns| *max_ns != poll_ns) {
            tally.deviates(format!("polls for {max_ns}, the replay for {poll_ns}"));
        }
        let change = classic(poll_ns, turn.block_ns, params);
        if turn.decisions != change.into_iter().collect::<Vec<_>>() {
            tally.deviates(format!("{turn:?}, the replay from {poll_ns}: {change:?}"));
        }
        poll_ns = change.map_or(poll_ns, |change| change.new);
    }
    tally
}

/// Handlers that go without a trace: firmware and kernel of the guest each register those of the disk anew.
const MOST_GONE: usize = 4;

/// 10.0: one polling time for each handler. Which handler a decision is about the trace does not tell, only
/// what it had; so the handlers are kept as the values they have. A decision must be about one of these, and
/// be what the rule makes of it and the block time; and every attempt must last as long as the greatest. A
/// handler that is unregistered leaves no trace but that attempts become shorter than its value, which may be
/// seen [`MOST_GONE`] times.
fn replay_per_handler(turns: &[Turn], params: &Params) -> Tally {
    let mut tally = Tally::default();
    let mut handlers: Vec<i64> = vec![];
    let mut gone = 0;
    for turn in turns {
        tally.count(turn);
        if let Some(max_ns) = turn.attempt_ns {
            let before = handlers.len();
            handlers.retain(|ns| *ns <= max_ns);
            gone += before - handlers.len();
            if !handlers.contains(&max_ns) || gone > MOST_GONE {
                tally.deviates(format!(
                    "polls for {max_ns}, the replay for {handlers:?}; {gone} handlers gone"
                ));
            }
        }
        handlers.extend(turn.added.iter().map(|_| 0));
        for change in &turn.decisions {
            let Some(handler) = handlers.iter_mut().find(|ns| **ns == change.old) else {
                tally.deviates(format!("no handler has what {change:?} begins with"));
                continue;
            };
            *handler = change.new;
            let rule = classic(change.old, turn.block_ns, params);
            if rule != Some(*change) {
                tally.deviates(format!("{change:?} after {}, the rule: {rule:?}", turn.block_ns));
            }
        }
    }
    tally
}

/// So many courses of events are followed at a time, the simplest of all: those with the fewest turns in
/// which not exactly one handler was dispatched.
const COURSES: usize = 1_000;

/// 11.1: one polling time, out of smoothed block times of the handlers that were dispatched. Which were
/// dispatched neither trace nor clock tells. So courses of events are looked for in which the rule makes
/// every decision that QEMU traced, and none where it traced none; the trace contradicts the rule where no
/// course is left.
fn replay_weighted(turns: &[Turn], params: &Params) -> Tally {
    let mut tally = Tally::default();
    let mut poll_ns = 0;
    let mut courses: BTreeMap<Vec<i64>, u32> = BTreeMap::from([(vec![], 0)]);
    for turn in turns {
        tally.count(turn);
        if let Some(max_ns) = turn.attempt_ns.filter(|max_ns| *max_ns != poll_ns) {
            tally.deviates(format!("polls for {max_ns}, the replay for {poll_ns}"));
        }
        let traced = turn.decisions.first().copied();
        let mut next: BTreeMap<Vec<i64>, u32> = BTreeMap::new();
        for (state, cost) in &courses {
            // Those that join the list in this turn are dispatched in it.
            let joined = state.len();
            let state: Vec<i64> = state.iter().copied().chain(turn.added.iter().map(|_| 0)).collect();
            for active in 0u32..1 << joined {
                let is_active = |handler: usize| handler >= joined || active >> handler & 1 == 1;
                let mut after: Vec<i64> = (0..state.len())
                    .map(|handler| weighted(state[handler], turn.block_ns, is_active(handler), params))
                    .collect();
                let best = (0..state.len())
                    .filter(|handler| is_active(*handler))
                    .map(|handler| after[handler])
                    .max();
                if best.and_then(|best| adjust(poll_ns, best, params)) == traced {
                    let cost = cost + u32::from(active.count_ones() != 1);
                    // The trace tells handlers apart by nothing but their values.
                    after.sort_unstable();
                    let least = next.entry(after).or_insert(cost);
                    *least = cost.min(*least);
                }
            }
        }
        if next.is_empty() || turn.decisions.len() > 1 {
            tally.deviates(format!("{turn:?} from {poll_ns}, in none of {} courses", courses.len()));
            next.clone_from(&courses);
        }
        let mut by_cost: Vec<(Vec<i64>, u32)> = next.into_iter().collect();
        by_cost.sort_by_key(|(_, cost)| *cost);
        by_cost.truncate(COURSES);
        courses = by_cost.into_iter().collect();
        poll_ns = traced.map_or(poll_ns, |change| change.new);
    }
    tally
}

/// Lets a QEMU run until it has made enough decisions.
fn observe(release: Release, iothread: &str, wanted: u64, longest: Duration) -> Result<Vec<Step>, String> {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let library = shim(dir.path())?;
    let options = Options { iothread, more: &TRACE, preload: Some(&library), piped: true };
    let mut qemu = Qemu::start(release, &options)?;
    let mut all: Vec<(Option<u64>, Step)> = vec![];
    let mut decisions: BTreeMap<u64, u64> = BTreeMap::new();
    let begun = Instant::now();
    for line in BufReader::new(qemu.stderr()).lines() {
        let Some((ctx, step)) = parse(&line.expect("QEMU writes text")) else { continue };
        if let (Some(ctx), Step::Decision(_)) = (ctx, step) {
            *decisions.entry(ctx).or_default() += 1;
        }
        all.push((ctx, step));
        if decisions.values().any(|count| *count >= wanted) || begun.elapsed() > longest {
            break;
        }
    }
    qemu.end();
    // QEMU has another I/O thread of its own for monitors; the one with the load is the one with the decisions.
    let busiest = decisions.iter().max_by_key(|(_, count)| **count).map(|(ctx, _)| *ctx);
    Ok(all.into_iter().filter(|(ctx, _)| ctx.is_none() || *ctx == busiest).map(|(_, step)| step).collect())
}

fn replay(revision: Revision, turns: &[Turn], params: &Params) -> Tally {
    match revision {
        Revision::Global => replay_global(turns, params),
        Revision::PerHandler => replay_per_handler(turns, params),
        Revision::Weighted => replay_weighted(turns, params),
    }
}

fn reproduces(release: Release, test: &str) {
    let _alone = crate::alone();
    let revision = match revision(release) {
        Ok(revision) => revision,
        Err(cause) => return dwell_testing::skip!("qemu", test, "{cause}"),
    };
    let defaults = Params::default_for(revision);
    let other = match revision {
        // With a longer maximum smoothed times are kept for longer, and the courses of events are too many to
        // be followed.
        Revision::Weighted => Params { poll_max_ns: 40_000, poll_grow: 3, poll_shrink: 3, poll_weight: 2 },
        _ => Params { poll_max_ns: 1_000_000, poll_grow: 3, poll_shrink: 2, ..defaults },
    };
    for (params, (wanted, longest)) in [defaults, other].into_iter().zip(WANTED.into_iter().zip(LONGEST)) {
        let Params { poll_max_ns, poll_grow, poll_shrink, .. } = params;
        let mut iothread =
            format!("poll-max-ns={poll_max_ns},poll-grow={poll_grow},poll-shrink={poll_shrink}");
        if revision == Revision::Weighted {
            iothread += &format!(",poll-weight={}", params.poll_weight);
        }
        let steps = match observe(release, &iothread, wanted, longest) {
            Ok(steps) => steps,
            Err(cause) => return dwell_testing::skip!("qemu", test, "{cause}"),
        };
        let turns = turns(&steps);
        let tally = replay(revision, &turns, &params);
        // A rule that is off has to be noticed, else nothing was shown.
        let off = match revision {
            // Another weight shows too seldom, since the course of events is looked for.
            Revision::Weighted => Params { poll_grow: params.poll_grow + 1, ..params },
            _ => Params { poll_max_ns: params.poll_max_ns + 8_000, ..params },
        };
        let noticed = replay(revision, &turns, &off).deviations;
        say!(
            "{test}: {iothread}: {} aio_polls, {} decisions ({} grows), {} attempts, {} deviations ({noticed} of a rule that is off)",
            tally.turns,
            tally.decisions,
            tally.grows,
            tally.attempts,
            tally.deviations
        );
        // Nothing tells which handlers the weighted rule saw dispatched. A course of events that fits is
        // looked for, and the search is limited: on a busy machine one in some thousand decisions may have
        // none that it finds.
        let allowed = if revision == Revision::Weighted { tally.decisions / 1_000 } else { 0 };
        assert!(tally.deviations <= allowed, "{:?}", tally.first);
        assert!(noticed > 10 * allowed, "a rule that is off deviates {noticed} times");
        if revision == Revision::Global && params == defaults {
            assert!(tally.decisions >= 1_000, "only {} decisions in {longest:?}", tally.decisions);
        }
        assert!(tally.decisions > 100 && tally.attempts > 100);
    }
}

#[test]
fn every_decision_of_the_installed_qemu_is_reproduced() {
    reproduces(Release::Installed, "every_decision_of_the_installed_qemu_is_reproduced");
}

#[test]
fn every_decision_of_qemu_10_0_is_reproduced() {
    reproduces(Release::Unpacked("10.0"), "every_decision_of_qemu_10_0_is_reproduced");
}

#[test]
fn every_decision_of_qemu_11_1_is_one_that_the_rule_can_make() {
    reproduces(Release::Unpacked("11.1"), "every_decision_of_qemu_11_1_is_one_that_the_rule_can_make");
}
