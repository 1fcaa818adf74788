//! A guest and its host that were recorded together: one advice for both.

use super::goal::GoalArgs;
use super::work::ByWork;
use crate::by_work::host::Host;
use crate::failure::{Answer, Outcome};
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, Format};
use crate::{by_work, check};
use dwell_knobs::lines::{self, Lines};
use dwell_machine::Sysroot;
use dwell_policy::param::Setting;
use dwell_recording::{Metadata, Reader};
use dwell_replay::Rule;
use dwell_replay::advice::{Goal, Origin};
use dwell_replay::check::SelfCheck;
use serde::Serialize;
use std::path::Path;

/// What `poll_control` in an advice takes: it is not written as a parameter.
const POLL_CONTROL: &str = "poll_control=1 lets the host poll for the guest. The guest's haltpoll driver switches host polling \
                            off, unless the VM has no poll control (QEMU: -cpu …,kvm-poll-control=off)";

/// The advice on a guest and its host, as it is printed.
#[derive(Serialize)]
struct Both {
    file: String,
    layer: &'static str,
    version: String,
    host_version: String,
    #[serde(skip)]
    goal: Goal,
    halt_cost_ns: u64,
    halt_cost_origin: Origin,
    advice: String,
    self_check: SelfCheck,
    notes: Vec<String>,
    work: ByWork,
    lines: Vec<Lines>,
}

/// Advises on both, where `path` is the host's recording. The answer is whether something is to be changed.
pub(super) fn run(
    file: String,
    guest: Reader,
    path: &Path,
    args: &ModelArgs,
    goal: &GoalArgs,
    format: Format,
) -> Outcome {
    model::refuse_least_lengths(guest.metadata(), "advise")?;
    let model = Model::of(args, &guest)?;
    let host = Host::open(path, args.versions.kernel)?;
    let mut model = model.with_host_version(Some(host.version));
    let (source, self_check) = check::check(model.source(guest))?;
    goal.check.refuse(&file, &self_check)?;
    let guest = source.reader();
    let work = ByWork::of_both(&host, guest, &mut model, goal.goal(), goal.worth())?;
    let recommended = work.recommended();
    let mut notes: Vec<String> = self_check.note().into_iter().collect();
    notes.extend(lets_host_poll(work.present(), recommended).then(|| POLL_CONTROL.to_owned()));
    notes.extend(model.notes(guest.metadata()));
    let lines = recommended
        .map_or_else(Vec::new, |to| lines(work.present(), to, [guest.metadata(), host.metadata()]));
    let both = Both {
        file,
        layer: Whose::Stacked.name(),
        version: model.version.to_string(),
        host_version: host.version.to_string(),
        goal: goal.goal(),
        halt_cost_ns: model.halt_cost.get(),
        halt_cost_origin: model.halt_cost_origin,
        advice: work.sentence(),
        self_check,
        notes,
        work,
        lines,
    };
    output::result(format, &both, || by_work::for_programs("role", both.work.rows()), || words(&both))?;
    Ok(if recommended.is_some() { Answer::Yes } else { Answer::No })
}

/// Whether the host polls under it and does not now.
fn lets_host_poll(present: Rule, recommended: Option<Rule>) -> bool {
    let polls = |rule| matches!(rule, Rule::Stacked { poll_control: true, .. });
    recommended.is_some_and(polls) && !polls(present)
}

/// How to set the recommended values in the guest and on the host, where they are not as now.
fn lines(present: Rule, recommended: Rule, [guest, host]: [&Metadata; 2]) -> Vec<Lines> {
    let both = |rule| match rule {
        Rule::Stacked { guest, host, .. } => Some([guest, host]),
        _ => None,
    };
    let (Some(from), Some(to)) = (both(present), both(recommended)) else { return vec![] };
    let machine = Sysroot::of_this_machine();
    let of = |at: usize, whose: &str, metadata: &Metadata| -> Vec<Lines> {
        let (from, to): (Setting, Setting) = (from[at], to[at]);
        let all = if from == to { vec![] } else { lines::for_recording(&to, &from, metadata, &machine) };
        all.into_iter().map(|of| Lines { about: format!("{whose}: {}", of.about), ..of }).collect()
    };
    of(0, "guest", guest).into_iter().chain(of(1, "host", host)).collect()
}

fn words(both: &Both) -> String {
    let Both { file, version, host_version, .. } = both;
    let head = format!("{file}: a guest of Linux {version} above a host of Linux {host_version}");
    let halt_cost = model::halt_cost_words(both.halt_cost_ns, both.halt_cost_origin);
    [
        output::wrapped(&head),
        output::wrapped(&format!("goal: {}", both.goal)),
        output::wrapped(&format!("halt cost: {halt_cost}")),
        "\n".to_owned(),
        output::wrapped(&format!("Advice: {}", both.advice)),
        both.work.words(),
        super::show::below(&both.lines, &both.notes),
    ]
    .concat()
}
