//! `dwell fleet --plan`: a choice as plans for `dwell apply`, and the order in which the VMs get them.

use crate::output;
use anyhow::{Context, bail};
use dwell_fleet::{A_CLASS, Question, Rollout, Row, waves};
use dwell_knobs::plan::Plan;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::newfile;
use dwell_report::{Column, Table, duration, number_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// Options of the plans.
#[derive(Debug, clap::Args)]
pub(super) struct PlansArgs {
    /// Write plans for `dwell apply` to this folder, and `order.csv` with the wave, class and plan of each VM
    ///
    /// The plans set the choice `1 a class` where there are classes, else the first of --settings. There is
    /// one for each class, setting and setting in force. The waves are 1 %, 10 % and 100 % of the VMs of each
    /// class: apply the plans of one, check them with `dwell verify --revert-if-worse`, and go on with the
    /// next.
    #[arg(long, value_name = "FOLDER")]
    plan: Option<PathBuf>,
}

/// VMs that get the same plan.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Group<'a> {
    class: &'a str,
    setting: usize,
    /// The setting in force, as text.
    today: String,
}

/// The class of VMs without one.
const NO_CLASS: &str = "all";

/// The file that has the waves.
const ORDER: &str = "order.csv";

impl PlansArgs {
    /// The file that is written last.
    pub(super) fn order(&self) -> Option<PathBuf> {
        self.plan.as_ref().map(|folder| folder.join(ORDER))
    }

    /// Refuses plans that cannot be written, before anything is computed.
    pub(super) fn check(&self, layer: Layer, kernel_is_known: bool) -> anyhow::Result<()> {
        if self.plan.is_none() {
            return Ok(());
        }
        if layer == Layer::Iothread {
            bail!(
                "cannot write plans for I/O threads, whose IDs are not in the recordings: use dwell tune --plan"
            );
        }
        if !kernel_is_known {
            bail!(
                "cannot write plans: which kernel they are for is not known; give --kernel, the release of the machines that \
                 get them"
            );
        }
        Ok(())
    }

    /// Writes the plans, if they are asked for.
    pub(super) fn write(&self, question: &Question, rows: &[Row], found: &Rollout) -> anyhow::Result<()> {
        let Some(folder) = &self.plan else { return Ok(()) };
        let of_classes = found.given.iter().find(|(choice, _)| choice == A_CLASS);
        let (name, given) =
            of_classes.or(found.given.first()).context("cannot write plans: nothing was chosen")?;
        let layer = question.default_setting().layer();
        let settings = &question.settings;
        let mut groups: BTreeMap<Group<'_>, (Setting, Vec<&str>)> = BTreeMap::new();
        let (mut seen, mut others) = (BTreeSet::new(), BTreeSet::new());
        for row in rows {
            let Ok(costs) = &row.costs else { continue };
            if costs.layer != layer {
                others.insert(costs.layer.name());
                continue;
            }
            if !seen.insert(&row.vm) {
                continue;
            }
            let Some(&setting) = given.get(&row.vm) else { continue };
            let default = question.default_setting();
            let today = match &costs.today {
                Some(today) => today.setting(default.layer(), default.version())?,
                None => default,
            };
            if today == settings[setting] {
                continue;
            }
            let class = costs.class.as_deref().unwrap_or(NO_CLASS);
            let group = Group { class, setting, today: today.to_string() };
            groups.entry(group).or_insert_with(|| (today, vec![])).1.push(&row.vm);
        }
        if seen.is_empty() {
            let others: Vec<&str> = others.into_iter().collect();
            bail!(
                "cannot write plans of the {} layer: the recordings are of the layer {}, and its idle times are not those of \
                 the {} layer; use --layer, or recordings of that layer",
                layer.name(),
                others.join(" and "),
                layer.name()
            );
        }
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        let mut order = vec![];
        let mut of_class: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut plan_of: BTreeMap<&str, String> = BTreeMap::new();
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        for (group, (today, vms)) in &groups {
            let stem = file_name(group.class);
            let number = numbers.entry(stem.clone()).or_default();
            *number += 1;
            let file = format!("{stem}-{number}.toml");
            let wanted = settings[group.setting];
            let advice = format!(
                "set {wanted}: chosen with `{name}` for {} of class {} at a halt cost of {}",
                super::vms(vms.len()),
                group.class,
                duration(question.halt_cost.get() as f64),
            );
            let mut plan = Plan { advice, ..Plan::by_hand(*today, wanted, None) };
            plan.conditions.halt_cost_ns = question.halt_cost.get();
            newfile::write(&folder.join(&file), plan.to_toml()?.as_bytes())?;
            for &vm in vms {
                plan_of.insert(vm, file.clone());
                of_class.entry(group.class).or_default().push(vm);
            }
        }
        for (class, vms) in &of_class {
            order.extend(waves(vms.iter().copied()).into_iter().map(|(wave, vm)| (wave, *class, vm)));
        }
        order.sort_unstable();
        let table = Table::of(&order)
            .column(Column::text("wave", "wave"), |(wave, ..)| wave.to_string())
            .column(Column::text("class", "class"), |(_, class, _)| *class)
            .column(Column::text("VM", "vm"), |(.., vm)| *vm)
            .column(Column::text("plan", "plan"), |(.., vm)| plan_of[vm].as_str())
            .table();
        let mut text = vec![];
        table.write_csv(&mut text)?;
        newfile::write(&folder.join(ORDER), &text)?;
        output::note(&format!(
            "{} for {} written to {}; order.csv has the waves",
            number_of(groups.len() as u128, "plan"),
            super::vms(order.len()),
            folder.display()
        ));
        Ok(())
    }
}

/// A name of a file that anything can be part of.
fn file_name(class: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = class.chars().take(64).map(safe).collect();
    if name.starts_with('.') || name.is_empty() { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_class_names_a_file_elsewhere() {
        assert_eq!(file_name("web"), "web");
        assert_eq!(file_name("../../etc/passwd"), "_.._.._etc_passwd");
        assert_eq!(file_name(""), "_");
    }
}
