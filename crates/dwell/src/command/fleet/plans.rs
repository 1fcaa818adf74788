//! `dwell fleet --plan`: a choice as plans for `dwell apply`, and the order in which the VMs get them.

use crate::output;
use crate::overwrite::ForceArg;
use anyhow::{Context, bail, ensure};
use dwell_fleet::{A_CLASS, Costs, Question, Rollout, Row, waves};
use dwell_knobs::plan::Plan;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::newfile;
use dwell_replay::Values;
use dwell_replay::tune::MIN_EPISODES;
use dwell_report::{Column, Table, duration, number_of, percent};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Options of the plans.
#[derive(Debug, clap::Args)]
pub(super) struct PlansArgs {
    /// Write plans for `dwell apply` to this folder, and `order.csv` with the wave, class and plan of each VM
    ///
    /// The plans set the choice `1 a class` where there are classes, else the first of --settings. There is
    /// one for each class, setting and setting in force, and none where the choice is a loss by its figures,
    /// where the 95 % interval of its gain includes 0, or where it rests on fewer than 128 episodes. The waves
    /// are 1 %, 10 % and 100 % of the VMs of each class: apply the plans of one, check them with `dwell verify
    /// --revert-if-worse`, and go on with the next. The release that the plans are for is that of the
    /// recordings, or --kernel. With --force, plans of an earlier order.csv in the folder are replaced, or
    /// removed where no VM gets them any more.
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
    /// Whether that is recorded; else it is the default.
    today_is_recorded: bool,
}

/// What the recordings of a VM have: where they differ, the newest.
#[derive(Default)]
struct Vm<'a> {
    class: Option<&'a str>,
    today: Option<&'a Values>,
    differs: bool,
    episodes: u64,
}

impl<'a> Vm<'a> {
    fn see(&mut self, costs: &'a Costs) {
        let (class, today) = (costs.class.as_deref().or(self.class), costs.today.as_ref().or(self.today));
        let other_class = self.class.is_some_and(|before| class != Some(before));
        let other_today = self.today.is_some_and(|before| today != Some(before));
        self.differs |= costs.today_changed || other_class || other_today;
        (self.class, self.today) = (class, today);
        self.episodes = self.episodes.saturating_add(costs.episodes);
    }

    /// Why it gets no plan although it has another setting.
    fn refusal(&self, found: &Rollout, choice: &str) -> Option<String> {
        let of_class = |class: Option<&str>| {
            found.choices.iter().find(|row| row.choice == choice && row.class.as_deref() == class)
        };
        let figures = of_class(self.class).or_else(|| of_class(None));
        let loss = figures.and_then(|row| row.gain_over_today).filter(|gain| *gain < 0.0);
        let limits = figures.and_then(|row| row.gain_interval?.limits());
        let chosen_on = found.episodes_chosen_on.get(&self.class.map(str::to_owned));
        let within_noise = limits.filter(|[low, _]| *low <= 0.0);
        match loss {
            _ if self.episodes < MIN_EPISODES => Some(format!("with fewer than {MIN_EPISODES} episodes")),
            _ if chosen_on.is_some_and(|episodes| *episodes < MIN_EPISODES) => {
                Some(format!("with a setting chosen on fewer than {MIN_EPISODES} episodes"))
            }
            Some(gain) => Some(format!("for which the choice is a loss (gain {})", percent(gain))),
            None => within_noise.map(|[low, high]| {
                format!(
                    "for which the gain is within noise (95 % interval {} to {})",
                    percent(low),
                    percent(high)
                )
            }),
        }
    }
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

    /// Makes the folder of the plans if it is not there yet.
    pub(super) fn create_folder(&self) -> anyhow::Result<()> {
        let Some(folder) = &self.plan else { return Ok(()) };
        fs::create_dir_all(folder).with_context(|| format!("cannot create the folder {}", folder.display()))
    }

    pub(super) fn are_wanted(&self) -> bool {
        self.plan.is_some()
    }

    /// Refuses plans that cannot be written, before anything is computed.
    pub(super) fn check(&self, layer: Layer) -> anyhow::Result<()> {
        ensure!(
            self.plan.is_none() || layer != Layer::Iothread,
            "cannot write plans for I/O threads, whose IDs are not in the recordings: use dwell tune --plan"
        );
        Ok(())
    }

    /// Writes the plans, if they are asked for; returns notes on VMs that get none and on what is in force.
    pub(super) fn write(
        &self,
        question: &Question,
        rows: &[Row],
        found: &Rollout,
        force: ForceArg,
    ) -> anyhow::Result<Vec<String>> {
        let Some(folder) = &self.plan else { return Ok(vec![]) };
        let of_classes = found.given.iter().find(|(choice, _)| choice == A_CLASS);
        let (name, given) =
            of_classes.or(found.given.first()).context("cannot write plans: nothing was chosen")?;
        let layer = question.default_setting().layer();
        let settings = &question.settings;
        let mut groups: BTreeMap<Group<'_>, (Setting, Vec<&str>)> = BTreeMap::new();
        let (mut vms, mut others) = (BTreeMap::<&str, Vm<'_>>::new(), BTreeMap::<&str, &str>::new());
        for (row, costs) in Row::by_vm(rows) {
            if costs.layer == layer {
                vms.entry(&row.vm).or_default().see(costs);
            } else {
                others.insert(&row.vm, costs.layer.name());
            }
        }
        let mut without: BTreeMap<String, usize> = BTreeMap::new();
        for (&vm, of) in &vms {
            let Some(&setting) = given.get(vm) else { continue };
            let default = question.default_setting();
            let today = match of.today {
                Some(today) => today.setting(default.layer(), default.version())?,
                None => default,
            };
            let is_there = (today == settings[setting]).then(|| "with the setting already".to_owned());
            if let Some(why) = is_there.or_else(|| of.refusal(found, name)) {
                *without.entry(why).or_default() += 1;
                continue;
            }
            let class = of.class.unwrap_or(NO_CLASS);
            let today_is_recorded = of.today.is_some();
            let group = Group { class, setting, today: today.to_string(), today_is_recorded };
            groups.entry(group).or_insert_with(|| (today, vec![])).1.push(vm);
        }
        if vms.is_empty() {
            let others: BTreeSet<&str> = others.into_values().collect();
            let others: Vec<&str> = others.into_iter().collect();
            bail!(
                "cannot write plans of the {} layer: the recordings are of the layer {}, and its idle times are not those of \
                 the {} layer; use --layer, or recordings of that layer",
                layer.name(),
                others.join(" and "),
                layer.name()
            );
        }
        others.retain(|vm, _| !vms.contains_key(vm));
        if !others.is_empty() {
            without.insert("of another layer".to_owned(), others.len());
        }
        let (mut order, mut files) = (vec![], vec![]);
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
            let present_is_recorded = group.today_is_recorded;
            let mut plan = Plan { advice, present_is_recorded, ..Plan::by_hand(*today, wanted, None) };
            plan.conditions.halt_cost_ns = question.halt_cost.get();
            files.push((file.clone(), plan.to_toml()?.into_bytes()));
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
        files.push((ORDER.to_owned(), text));
        write_all(folder, &files, force)?;
        output::note(&format!(
            "{} for {} written to {}; order.csv has the waves",
            number_of(groups.len() as u128, "plan"),
            super::vms(order.len()),
            folder.display()
        ));
        let differ = vms.values().filter(|vm| vm.differs).count();
        let differ = (differ > 0).then(|| {
            format!(
                "recordings of {} differ in the setting in force or in the class: plans take both from the newest by \
                 its time of day, or by its path where it has none; the setting of a sketch of several is that of most \
                 episodes",
                super::vms(differ)
            )
        });
        Ok(without_plan(&without).into_iter().chain(differ).collect())
    }
}

/// That so many VMs have no plan, and why.
fn without_plan(reasons: &BTreeMap<String, usize>) -> Option<String> {
    let all = reasons.values().sum();
    let have = if all == 1 { "has" } else { "have" };
    let each: Vec<String> = reasons.iter().map(|(why, number)| format!("{number} {why}")).collect();
    (all > 0).then(|| format!("{} {have} no plan: {}", super::vms(all), each.join(", ")))
}

/// Writes files, the order last. Before the first one: refuses to replace any unless that is asked for, and then removes
/// plans of an earlier order that the new one does not name.
fn write_all(folder: &Path, files: &[(String, Vec<u8>)], force: ForceArg) -> anyhow::Result<()> {
    files.iter().try_for_each(|(name, _)| force.may_write(&folder.join(name), []))?;
    for old in plans_of_order(folder) {
        let path = folder.join(&old);
        if files.iter().all(|(name, _)| *name != old)
            && path.symlink_metadata().is_ok_and(|there| there.is_file())
        {
            fs::remove_file(&path)
                .with_context(|| format!("cannot remove {}, a plan of an earlier order", path.display()))?;
        }
    }
    for (name, bytes) in files {
        newfile::write(&folder.join(name), bytes)?;
    }
    Ok(())
}

/// The plans that an earlier order in a folder names; none where there is no such order.
fn plans_of_order(folder: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(folder.join(ORDER)).unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() != Some("wave,class,vm,plan") {
        return BTreeSet::new();
    }
    // Nothing but what this command writes: a plan in this folder.
    let is_plan = |name: &&str| name.ends_with(".toml") && file_name(name) == **name;
    lines.filter_map(|line| line.rsplit(',').next()).filter(is_plan).map(str::to_owned).collect()
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
