//! `dwell timer explain`: the posting rules for one VM.

use super::vm::VmArgs;
use crate::failure::Outcome;
use crate::output::{self, FormatArg};
use crate::settings;
use crate::state::SysrootArg;
use anyhow::{anyhow, bail};
use dwell_knobs::explain::Effect;
use dwell_machine::{Machine, kernel};
use dwell_policy::timer::Revision;
use dwell_policy::version::Version;
use dwell_policy::{Owner, param};
use dwell_report::{Column, Table};
use dwell_timer::describe::{Described, describe};
use dwell_timer::posting::{self, RuleRow};
use dwell_timer::upgrade::{self, Change};
use serde::Serialize;

/// Explain whether a VM's timers may be posted, what carries them, what is missing
///
/// Prints under which rule the timers of a VM may be posted (the one of 2019, two proposals of 2021 and the one of
/// 2022), what carries them, the exits of each timer, what is missing for posting, and with --upgrade what another
/// kernel on the host changes. No recording is needed: all of it is decided by the models of the rules. What is not
/// given is read from this machine, and what that does not show is assumed; each is printed with where it comes from.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  dwell timer explain --disable-exits hlt,mwait --pcpu isolated\n  \
                        dwell timer explain --disable-exits hlt --kernel 5.10.114 --upgrade 6.18")]
pub(crate) struct Args {
    /// Kernel release of the host, 5.4 to 7.3 [default: the running kernel]
    #[arg(long, value_name = "VERSION", hide_possible_values = true, value_parser = crate::suggest::kernels(settings::kernel))]
    kernel: Option<Version>,
    /// Value of the module parameter: 0 off, 1 on, -1 on if nohz_full= is given
    ///
    /// -1 is what KVM decides by when it loads. [default: that of this machine, else -1]
    #[arg(long, value_name = "VALUE", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..=1))]
    pi_inject_timer: Option<i32>,
    #[command(flatten)]
    vm: VmArgs,
    #[command(flatten)]
    sysroot: SysrootArg,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: &Args) -> Outcome {
    let machine = args.sysroot.machine()?;
    let kernel = args.kernel.map_or_else(|| here(&machine), Ok)?;
    let posting = posting(&args.vm, args.pi_inject_timer, kernel, &machine)?;
    output::result(
        args.format.format,
        &posting,
        || posting.upgrade_table().unwrap_or_else(|| posting.rules_table(true)),
        || posting.words(),
    )
}

fn here(machine: &dyn Machine) -> anyhow::Result<Version> {
    let version = kernel::version(machine);
    if let Some((arch, why)) =
        version.and_then(|version| Some((version.arch, version.arch.lacks(Owner::Timer)?)))
    {
        bail!("this machine is {}: {why}; name a kernel of x86-64 with --kernel", arch.name());
    }
    let known = version.filter(|version| param::known_version(Owner::Timer, *version).is_ok());
    known.ok_or_else(|| anyhow!(settings::unknown_here(kernel::release(machine).as_deref())))
}

/// The posting rules for one VM.
#[derive(Serialize)]
struct Posting {
    kernel: String,
    #[serde(flatten)]
    described: Described,
    rules: Vec<RuleRow>,
    /// The rules of which this kernel has one; more than one where it is not known which.
    possible: Vec<&'static str>,
    /// What `pi_inject_timer` does for this VM.
    pi_inject_timer: Effect,
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<Upgrade>,
}

#[derive(Serialize)]
struct Upgrade {
    to: String,
    changes: Vec<Change>,
    /// What is not known of either kernel, and was assumed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    assumed: Vec<String>,
}

/// Compares the rules for the VM under a kernel.
fn posting(
    args: &VmArgs,
    pi_inject_timer: Option<i32>,
    kernel: Version,
    machine: &dyn Machine,
) -> anyhow::Result<Posting> {
    let described = describe(&args.given(pi_inject_timer), None, Some(machine));
    let rules = Revision::rules(kernel)?;
    let revision = rules.first;
    let mut possible: Vec<&str> = rules.iter().map(|revision| revision.posting().name()).collect();
    possible.dedup();
    let mut compared = posting::compare(&described.vm, revision);
    // Of several none is in force for certain.
    compared.iter_mut().for_each(|row| row.in_force &= possible.len() == 1);
    let upgrade = args.upgrade.map(|to| -> anyhow::Result<Upgrade> {
        let later = Revision::rules(to)?;
        let changes = upgrade::compare(&described.vm, revision, later.first);
        let assumed = [(kernel, rules), (to, later)]
            .into_iter()
            .filter(|(_, rules)| rules.agreed(Revision::posting).is_none());
        let assumed =
            assumed.map(|(of, rules)| format!("Linux {of} has the rule {}", rules.first.posting().name()));
        Ok(Upgrade { to: to.to_string(), changes, assumed: assumed.collect() })
    });
    Ok(Posting {
        pi_inject_timer: effect(&compared, &possible, kernel),
        kernel: kernel.to_string(),
        rules: compared,
        possible,
        upgrade: upgrade.transpose()?,
        described,
    })
}

/// What `pi_inject_timer` does under the rules that a kernel may have.
fn effect(rules: &[RuleRow], possible: &[&str], kernel: Version) -> Effect {
    let of_kernel = rules.iter().filter(|row| possible.contains(&row.rule));
    let mut depends: Vec<bool> = of_kernel.map(|row| row.depends_on_pi_inject_timer).collect();
    depends.dedup();
    match depends[..] {
        [true] => Effect::Effective,
        [_, _, ..] => Effect::NotKnown {
            why: format!("that depends on which of the rules {} Linux {kernel} has", possible.join(" and ")),
        },
        _ => Effect::NoEffect {
            why: "for this VM, on and off give the same mechanism and the same exits".to_owned(),
        },
    }
}

impl Posting {
    fn words(&self) -> String {
        let mut text = output::wrapped(&format!("Timers of a VM under Linux {}:", self.kernel));
        for fact in &self.described.facts {
            text += &format!("  {:<24}{} ({})\n", fact.name, fact.value, fact.origin.words());
        }
        text += &format!("\n{}", output::fitted(&self.rules_table(false)));
        for row in &self.rules {
            let missing = posting::in_words(&row.missing_to_post);
            let line = format!("{}: in {}; missing to post: {missing}", row.rule, kernels(row));
            text += &output::hanging("  ", "    ", &line);
        }
        for row in self.rules.iter().filter(|row| self.possible.contains(&row.rule)) {
            text += &format!("\n{}", output::wrapped(&self.verdict(row)));
            // The shortest way to delivery without an exit.
            for one in row.missing_to_save_exit.first().into_iter().flatten() {
                text += &output::hanging("  ", "    ", &format!("{}: {}", one.words(), one.remedy()));
            }
        }
        if self.pi_inject_timer != Effect::Effective {
            let words = format!("pi_inject_timer: {}", self.pi_inject_timer.words());
            text += &format!("\n{}", output::wrapped(&words));
        }
        if let Some(upgrade) = &self.upgrade {
            let changed = upgrade.changes.iter().filter(|change| change.changes).count();
            let head = match changed {
                0 => format!(
                    "An upgrade from Linux {} to {} changes nothing for its timers.",
                    self.kernel, upgrade.to
                ),
                _ => format!("An upgrade from Linux {} to {}:", self.kernel, upgrade.to),
            };
            let provided = match upgrade.assumed.as_slice() {
                [] => String::new(),
                assumed => format!("Not known, and assumed: {}. ", assumed.join(", ")),
            };
            text += &format!("\n{}", output::wrapped(&format!("{provided}{head}")));
            for change in upgrade.changes.iter().filter(|change| change.changes) {
                text += &format!("  {}\n", change.what);
                for (kernel, value) in [(&self.kernel, &change.before), (&upgrade.to, &change.after)] {
                    text += &output::hanging(&format!("    {kernel:<9} "), &" ".repeat(14), value);
                }
            }
        }
        text
    }

    fn verdict(&self, row: &RuleRow) -> String {
        let may = if row.may_post { "may be posted" } else { "are not posted" };
        let bills = &row.bills;
        let fire = if bills.running.firing == bills.running_beside_idle.firing {
            format!("{} to fire", bills.running.firing)
        } else {
            format!(
                "{} to fire beside a busy housekeeping CPU or {} beside idle ones",
                bills.running.firing, bills.running_beside_idle.firing
            )
        };
        format!(
            "{} under Linux {}: {}. Timers of this VM {may}; exits of a timer that is armed and fires while the guest \
             runs: {} to arm, {fire}. Missing for delivery without an exit: {}.",
            if row.in_force { "In force" } else { "Possibly in force" },
            self.kernel,
            row.rule,
            bills.running.arming,
            posting::in_words(&row.missing_to_save_exit),
        )
    }

    /// The rules as a table; `with_words`: with what is long, which is below the table for people.
    fn rules_table(&self, with_words: bool) -> Table {
        let table = Table::of(&self.rules)
            .column(Column::text("rule", "rule"), |row| row.rule)
            .column(Column::text("may post", "may_post"), |row| if row.may_post { "yes" } else { "no" })
            .column(Column::text("running guest", "running_path"), |row| row.bills.running.path)
            .column(Column::number("arm", "running_arming"), |row| row.bills.running.arming)
            .column(Column::number("fire", "running_firing"), |row| row.bills.running.firing)
            .column(Column::number("fire, idle CPUs", "running_beside_idle_firing"), |row| {
                row.bills.running_beside_idle.firing
            })
            .column(Column::text("idling guest", "idling_path").rank(3), |row| row.bills.idling.path)
            .column(Column::number("fire, idling", "idling_firing").rank(3), |row| row.bills.idling.firing);
        if !with_words {
            return table.table();
        }
        table
            .column(Column::text("missing to post", "missing_to_post"), |row| {
                posting::in_words(&row.missing_to_post)
            })
            .column(Column::text("missing to save the exit", "missing_to_save_exit"), |row| {
                posting::in_words(&row.missing_to_save_exit)
            })
            .column(Column::text("kernels", "kernels"), kernels)
            .table()
    }

    /// The upgrade as a table, if one was asked for.
    fn upgrade_table(&self) -> Option<Table> {
        let upgrade = self.upgrade.as_ref()?;
        let table = Table::of(&upgrade.changes)
            .column(Column::text("what", "what"), |change| change.what)
            .column(Column::text(&self.kernel, "before"), |change| change.before.as_str())
            .column(Column::text(&upgrade.to, "after"), |change| change.after.as_str())
            .column(Column::text("changes", "changes"), |change| if change.changes { "yes" } else { "no" });
        Some(table.table())
    }
}

/// The kernels that have a rule, in words.
fn kernels(row: &RuleRow) -> String {
    if row.kernels.is_empty() { "no kernel (proposed)".to_owned() } else { row.kernels.join(", ") }
}
