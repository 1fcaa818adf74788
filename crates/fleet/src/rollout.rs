//! Reduce: the settings to roll out, and what they would have cost those that had no part in the choice.

use crate::alike::{FirstLengths, Known};
use crate::choice::{Matrix, best, choose};
use crate::costs::Costs;
use crate::folder::Row;
use crate::split::HeldOut;
use dwell_policy::param::Setting;
use dwell_replay::Values;
use dwell_replay::number::number_of;
use dwell_stats::{Bootstrap, Interval};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Choices of settings beside what there is today.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rollout {
    /// VMs that the settings were chosen on.
    pub vms_chosen_on: usize,
    /// VMs that the figures are of.
    pub vms_reported_on: usize,
    /// What has no part in the choice, in words.
    pub held_out: String,
    /// VMs whose setting in force is not known: `today` is the default.
    pub today_is_default: usize,
    /// VMs reported on that have neither a class nor a part in the choice: of several settings each was given
    /// the one that is best for the VMs that idle like it at first ([`alike`](crate::alike)).
    pub new_vms: usize,
    /// How good each choice is on the VMs that it was made on.
    pub chosen_on: Vec<ChosenOn>,
    /// Each choice for all VMs, and then for each class.
    pub choices: Vec<Choice>,
    /// For each choice of settings, in the order of `choices`, the index of the setting of each VM: of those
    /// that had a part in the choice too.
    #[serde(skip)]
    pub given: Vec<(String, BTreeMap<String, usize>)>,
    /// The episodes that the setting of a class was chosen on; `None`: of all VMs.
    #[serde(skip)]
    pub episodes_chosen_on: BTreeMap<Option<String>, u64>,
    /// What each VM reported on costs under each choice for all VMs.
    #[serde(skip)]
    pub costs: Vec<(String, Vec<VmCost>)>,
}

/// What one VM costs under a choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VmCost {
    pub vm: String,
    pub class: Option<String>,
    /// What it costs under the settings in force \[ns\].
    pub today_ns: u64,
    /// Under the choice \[ns\].
    pub chosen_ns: u64,
    /// Under the best setting for it \[ns\].
    pub own_ns: u64,
    /// Cost above that of the best setting for it, as a share; `None` where that costs nothing.
    pub regret: Option<f64>,
}

/// What a choice costs those that it was made on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChosenOn {
    /// As in [`Choice::choice`].
    pub choice: String,
    /// What they cost in sum \[ns\].
    pub cost_ns: u128,
    /// What no choice of as many settings can cost less than \[ns\]; the same where the choice was proven to
    /// be the best.
    pub least_ns: u128,
}

/// What a choice of settings costs some VMs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// `today`, `1 setting`, `2 settings`, …, `1 a class`, `own best` or `optimum`.
    pub choice: String,
    /// The class; `None`: all VMs.
    pub class: Option<String>,
    pub vms: usize,
    /// The settings and how many VMs have each; empty where each VM has its own.
    pub settings: Vec<Used>,
    /// What they cost in sum \[ns\].
    pub cost_ns: u128,
    /// The same by that of the optimum; `None` where that costs nothing.
    pub cost_over_optimum: Option<f64>,
    /// Cost saved, as a share of today's; negative for a loss. `None` where today costs nothing.
    pub gain_over_today: Option<f64>,
    /// Its 95 % interval, by how far the VMs differ in what they save; of fewer than six VMs the limits are not known. `None`
    /// where nothing was chosen, or today costs nothing.
    pub gain_interval: Option<Interval>,
    /// Cost above that of the best setting for each VM, as a share of it.
    pub regret: Option<f64>,
    /// The same of single VMs: the median.
    pub regret_p50: Option<f64>,
    /// Of 95 in 100 VMs it is at most this.
    pub regret_p95: Option<f64>,
    /// Of 99 in 100 VMs it is at most this.
    pub regret_p99: Option<f64>,
    /// Of the VM that loses most.
    pub regret_worst: Option<f64>,
    /// That VM; `None` where none loses anything.
    pub worst_vm: Option<String>,
    /// VMs that cost more than today.
    pub vms_worse_than_today: usize,
}

/// A setting and how many VMs have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Used {
    pub setting: Values,
    pub vms: usize,
}

/// Why nothing can be chosen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    /// No recording counts.
    #[error("no recording can be used")]
    Nothing,
    /// All recordings are held out.
    #[error("all recordings are held out: none is left to choose on")]
    NothingToChooseOn,
    /// No recording is held out.
    #[error("no recording is in the folder `{folder}`")]
    NothingHeldOut { folder: String },
    /// Costs are of other settings.
    #[error("{recording} has costs of {costs} settings, and there are {settings}")]
    OtherSettings {
        recording: String,
        /// How many it has.
        costs: usize,
        /// How many there are.
        settings: usize,
    },
}

/// What the recordings of one VM cost in sum.
struct Vm<'a> {
    class: Option<&'a str>,
    episodes: u64,
    optimum_ns: u64,
    today_ns: u64,
    today_is_known: bool,
    first: Option<FirstLengths>,
    cost_ns: Vec<u64>,
}

/// VMs by their names.
type Vms<'a> = BTreeMap<&'a str, Vm<'a>>;

/// Chooses, for each of `numbers`, so many settings of least total cost, and one for each class where there
/// are classes. Where there are, all VMs of a class have one setting.
///
/// # Errors
/// [`RolloutError`].
pub fn rollout(
    rows: &[Row],
    settings: &[Setting],
    numbers: &[usize],
    held_out: &HeldOut,
) -> Result<Rollout, RolloutError> {
    let used = Row::by_vm(rows);
    for (row, costs) in &used {
        if costs.cost_ns.len() != settings.len() {
            let (recording, costs) = (row.recording.clone(), costs.cost_ns.len());
            return Err(RolloutError::OtherSettings { recording, costs, settings: settings.len() });
        }
    }
    if used.is_empty() {
        return Err(RolloutError::Nothing);
    }
    // Labels change: a VM has the class of its newest recording, whatever is held out.
    let classes: BTreeMap<&str, &str> =
        used.iter().filter_map(|(row, costs)| Some((row.vm.as_str(), costs.class.as_deref()?))).collect();
    let names: BTreeSet<&str> = used.iter().map(|(row, _)| row.vm.as_str()).collect();
    let held_vms = held_out.vms(&names);
    let (held, rest): (Vec<_>, Vec<_>) = used
        .into_iter()
        .partition(|(row, _)| held_vms.contains(row.vm.as_str()) || held_out.has_path(&row.recording));
    if rest.is_empty() {
        return Err(RolloutError::NothingToChooseOn);
    }
    if let (HeldOut::Folder(folder), []) = (held_out, &held[..]) {
        return Err(RolloutError::NothingHeldOut { folder: folder.clone() });
    }
    let fitted = vms(&rest, &classes);
    let apart = vms(&held, &classes);
    let reported = if apart.is_empty() { &fitted } else { &apart };
    let is_apart = !apart.is_empty();

    let mut episodes_chosen_on: BTreeMap<Option<String>, u64> = BTreeMap::new();
    for vm in fitted.values() {
        for of in std::iter::once(None).chain(vm.class.map(Some)) {
            let sum = episodes_chosen_on.entry(of.map(str::to_owned)).or_default();
            *sum = sum.saturating_add(vm.episodes);
        }
    }
    let units = Units::of(&fitted, settings.len());
    let known = Known::new(
        fitted.values().filter_map(|vm| vm.first.as_ref().map(|first| (first, vm.cost_ns.as_slice()))),
    );
    let mut chosen: Vec<(String, Vec<usize>)> = vec![];
    let mut chosen_on = vec![];
    for &number in numbers {
        let name = number_of(number as u128, "setting");
        if !chosen.iter().any(|(there, _)| *there == name) {
            let found = choose(&units.costs, number);
            chosen_on.push(ChosenOn { choice: name.clone(), cost_ns: found.total, least_ns: found.least });
            chosen.push((name, found.settings));
        }
    }
    if !units.classes.is_empty() {
        let every: Vec<usize> = (0..settings.len()).collect();
        let mut all: Vec<usize> = units.costs.units().map(|costs| best(costs, &every)).collect();
        all.sort_unstable();
        all.dedup();
        chosen.push((A_CLASS.to_owned(), all));
    }

    let given: Vec<(String, BTreeMap<String, usize>)> = chosen
        .iter()
        .map(|(choice, chosen)| {
            let setting = |(name, vm): (&&str, &Vm<'_>)| {
                ((*name).to_owned(), units.given(name, vm, chosen, &fitted, &known))
            };
            (choice.clone(), fitted.iter().chain(reported).map(setting).collect())
        })
        .collect();

    let classes: BTreeSet<&str> = reported.values().filter_map(|vm| vm.class).collect();
    let groups: Vec<Option<&str>> = std::iter::once(None).chain(classes.into_iter().map(Some)).collect();
    let each = |cost_ns: &dyn Fn(&str, &Vm<'_>) -> u64| -> Vec<VmCost> {
        reported.iter().map(|(name, vm)| vm.cost(name, cost_ns(name, vm))).collect()
    };
    let of_given = |(choice, given): &(String, BTreeMap<String, usize>)| {
        (choice.clone(), each(&|name, vm| vm.cost_ns[given[name]]))
    };
    let mut costs = vec![("today".to_owned(), each(&|_, vm| vm.today_ns))];
    costs.extend(given.iter().map(of_given));
    costs.push(("own best".to_owned(), each(&|_, vm| vm.own_ns())));
    costs.push(("optimum".to_owned(), each(&|_, vm| vm.optimum_ns)));

    let mut choices = vec![];
    for (name, of_vms) in &costs {
        let given = given.iter().find(|(choice, _)| choice == name).map(|(_, given)| given);
        for class in &groups {
            let all = of_vms.iter().zip(reported.values());
            let within: Vec<_> = all.filter(|(_, vm)| class.is_none() || vm.class == *class).collect();
            choices.push(choice(name, *class, &within, given, settings));
        }
    }
    let several = chosen.iter().any(|(_, chosen)| chosen.len() > 1);
    let unknown = |(name, vm): &(&&str, &Vm<'_>)| {
        !fitted.contains_key(**name) && vm.class.is_none_or(|class| !units.classes.contains_key(class))
    };
    Ok(Rollout {
        vms_chosen_on: fitted.len(),
        vms_reported_on: reported.len(),
        held_out: if is_apart { held_out.words() } else { HeldOut::Nothing.words() },
        today_is_default: reported.values().filter(|vm| !vm.today_is_known).count(),
        new_vms: if several { reported.iter().filter(unknown).count() } else { 0 },
        chosen_on,
        choices,
        given,
        episodes_chosen_on,
        costs,
    })
}

/// The choice of a setting for each class.
pub const A_CLASS: &str = "1 a class";

/// Sums over the recordings of each VM, and its class; these are in order.
fn vms<'a>(recordings: &[(&'a Row, &'a Costs)], classes: &BTreeMap<&str, &'a str>) -> Vms<'a> {
    let mut vms: Vms<'a> = BTreeMap::new();
    for (row, costs) in recordings {
        let vm = vms.entry(&row.vm).or_insert_with(|| Vm {
            class: classes.get(row.vm.as_str()).copied(),
            episodes: 0,
            optimum_ns: 0,
            today_ns: 0,
            today_is_known: true,
            first: costs.first,
            cost_ns: vec![0; costs.cost_ns.len()],
        });
        // Of so many recordings that 64 bits are too few only the first 292 years count.
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut vm.episodes, costs.episodes);
        add(&mut vm.optimum_ns, costs.optimum_ns);
        add(&mut vm.today_ns, costs.today_ns);
        vm.today_is_known &= costs.today.is_some();
        vm.cost_ns.iter_mut().zip(&costs.cost_ns).for_each(|(sum, more)| add(sum, *more));
    }
    vms
}

/// What gets one setting: classes where there are any, else VMs.
struct Units<'a> {
    costs: Matrix,
    /// Of each class, the sum of its VMs.
    classes: BTreeMap<&'a str, Vec<u64>>,
    all: Vec<u64>,
}

impl<'a> Units<'a> {
    fn of(fitted: &Vms<'a>, settings: usize) -> Units<'a> {
        let mut classes: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        let mut all = vec![0u64; settings];
        let add = |sums: &mut Vec<u64>, vm: &Vm<'_>| {
            sums.iter_mut().zip(&vm.cost_ns).for_each(|(sum, cost)| *sum = sum.saturating_add(*cost));
        };
        for vm in fitted.values() {
            add(&mut all, vm);
            if let Some(class) = vm.class {
                add(classes.entry(class).or_insert_with(|| vec![0; settings]), vm);
            }
        }
        let mut costs = Matrix::new(settings);
        classes.values().for_each(|class| costs.push(class));
        // VMs without a class have their own setting.
        fitted.values().filter(|vm| vm.class.is_none()).for_each(|vm| costs.push(&vm.cost_ns));
        Units { costs, classes, all }
    }

    /// Which of the chosen settings a VM gets: that which is best for its class, else for its recordings that
    /// had a part in the choice. Of a VM without either it is what is best for those that idle like it at
    /// first, else for all.
    fn given(&self, name: &str, vm: &Vm<'_>, chosen: &[usize], fitted: &Vms<'_>, known: &Known<'_>) -> usize {
        let class = vm.class.and_then(|class| self.classes.get(class));
        let own = || fitted.get(name).map(|vm| &vm.cost_ns);
        match (class.or_else(own), &vm.first) {
            (Some(costs), _) => best(costs, chosen),
            (None, Some(first)) => known.setting(first, chosen),
            (None, None) => best(&self.all, chosen),
        }
    }
}

impl Vm<'_> {
    /// What its best setting costs.
    fn own_ns(&self) -> u64 {
        self.cost_ns.iter().copied().min().unwrap_or(0)
    }

    fn cost(&self, name: &str, chosen_ns: u64) -> VmCost {
        let own_ns = self.own_ns();
        VmCost {
            vm: name.to_owned(),
            class: self.class.map(str::to_owned),
            today_ns: self.today_ns,
            chosen_ns,
            own_ns,
            regret: (own_ns > 0).then(|| chosen_ns as f64 / own_ns as f64 - 1.0),
        }
    }
}

/// What some VMs cost, of which each was `given` a setting if these were chosen.
fn choice(
    name: &str,
    class: Option<&str>,
    vms: &[(&VmCost, &Vm<'_>)],
    given: Option<&BTreeMap<String, usize>>,
    settings: &[Setting],
) -> Choice {
    let mut used: BTreeMap<usize, usize> = BTreeMap::new();
    for setting in vms.iter().filter_map(|(cost, _)| given?.get(&cost.vm)) {
        *used.entry(*setting).or_default() += 1;
    }
    let sum = |of: fn(&VmCost, &Vm<'_>) -> u64| -> u128 {
        vms.iter().map(|(cost, vm)| u128::from(of(cost, vm))).sum()
    };
    let cost_ns = sum(|cost, _| cost.chosen_ns);
    let mut regrets: Vec<(f64, &str)> =
        vms.iter().filter_map(|(cost, _)| Some((cost.regret?, cost.vm.as_str()))).collect();
    // Of equals the first name.
    regrets.sort_by(|(a, a_name), (b, b_name)| a.total_cmp(b).then(b_name.cmp(a_name)));
    // The nearest rank; its number is below that of the VMs.
    let at = |per_cent: usize| {
        let rank = (regrets.len() * per_cent).div_ceil(100).max(1);
        regrets.get(rank - 1).map(|(regret, _)| *regret)
    };
    let over = |of: u128| (of > 0).then(|| cost_ns as f64 / of as f64);
    let today_ns = sum(|cost, _| cost.today_ns);
    let saved = |(cost, _): &(&VmCost, &Vm<'_>)| cost.today_ns as f64 - cost.chosen_ns as f64;
    let interval = given.filter(|_| today_ns > 0).and_then(|_| {
        let saved: Vec<f64> = vms.iter().map(saved).collect();
        // No more than all can be saved.
        let share = |mean: f64| (mean * vms.len() as f64 / today_ns as f64).min(1.0);
        Some(Bootstrap::RECORDING.paired(&saved)?.map(share))
    });
    Choice {
        choice: name.to_owned(),
        class: class.map(str::to_owned),
        vms: vms.len(),
        settings: used
            .into_iter()
            .map(|(setting, vms)| Used { setting: Values::from(&settings[setting]), vms })
            .collect(),
        cost_ns,
        cost_over_optimum: over(sum(|_, vm| vm.optimum_ns)),
        gain_over_today: over(today_ns).map(|ratio| 1.0 - ratio),
        gain_interval: interval,
        regret: over(sum(|cost, _| cost.own_ns)).map(|ratio| ratio - 1.0),
        regret_p50: at(50),
        regret_p95: at(95),
        regret_p99: at(99),
        regret_worst: at(100),
        worst_vm: regrets.last().filter(|(regret, _)| *regret > 0.0).map(|(_, name)| (*name).to_owned()),
        vms_worse_than_today: vms.iter().filter(|(cost, _)| cost.chosen_ns > cost.today_ns).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm_of;
    use dwell_policy::Layer;
    use dwell_policy::version::NEWEST_KERNEL;

    fn settings(number: usize) -> Vec<Setting> {
        let mut all = dwell_replay::grid::coarse(Layer::Host, NEWEST_KERNEL);
        all.truncate(number);
        all
    }

    fn row(recording: &str, class: Option<&str>, cost_ns: &[u64]) -> Row {
        let costs = Costs {
            layer: Layer::Host,
            class: class.map(str::to_owned),
            episodes: 1,
            idlers: 1,
            span_ns: 1_000,
            ended_unix_ns: None,
            optimum_ns: cost_ns.iter().copied().min().unwrap() / 2,
            today_ns: cost_ns[1],
            today: None,
            latency_known: true,
            of_sketch: false,
            today_changed: false,
            first: None,
            cost_ns: cost_ns.to_vec(),
        };
        Row { vm: vm_of(recording), recording: recording.to_owned(), costs: Ok(costs) }
    }

    fn find<'a>(rollout: &'a Rollout, choice: &str, class: Option<&str>) -> &'a Choice {
        rollout.choices.iter().find(|row| row.choice == choice && row.class.as_deref() == class).unwrap()
    }

    #[test]
    fn figures_of_a_small_fleet_are_those_by_hand() {
        let rows = [
            row("a.parquet", None, &[10, 20, 40]),
            row("b.parquet", None, &[10, 20, 40]),
            row("c.parquet", None, &[100, 60, 30]),
        ];
        let rollout = rollout(&rows, &settings(3), &[1, 2], &HeldOut::Nothing).unwrap();
        assert_eq!((rollout.vms_chosen_on, rollout.vms_reported_on, rollout.today_is_default), (3, 3, 3));
        let today = find(&rollout, "today", None);
        assert_eq!((today.cost_ns, today.cost_over_optimum), (100, Some(4.0)));
        let one = find(&rollout, "1 setting", None);
        // 120, 100 and 110 are the sums.
        assert_eq!((one.cost_ns, one.settings.len(), one.settings[0].vms), (100, 1, 3));
        assert_eq!((one.regret, one.regret_p50, one.regret_worst), (Some(1.0), Some(1.0), Some(1.0)));
        assert_eq!(one.worst_vm.as_deref(), Some("a"));
        let two = find(&rollout, "2 settings", None);
        assert_eq!((two.cost_ns, two.regret, two.gain_over_today), (50, Some(0.0), Some(0.5)));
        assert_eq!(find(&rollout, "own best", None).cost_ns, 50);
        assert_eq!(find(&rollout, "optimum", None).cost_ns, 25);
        assert_eq!((two.vms_worse_than_today, one.vms_worse_than_today), (0, 0));
    }

    #[test]
    fn a_class_has_one_setting_and_is_reported() {
        let rows = [
            row("a.parquet", Some("x"), &[10, 20, 40]),
            row("b.parquet", Some("x"), &[50, 20, 40]),
            row("c.parquet", Some("y"), &[100, 60, 30]),
        ];
        let rollout = rollout(&rows, &settings(3), &[1], &HeldOut::Nothing).unwrap();
        let both = find(&rollout, "1 a class", None);
        // Class x: 60, 40, 80.
        assert_eq!((both.cost_ns, both.settings.len()), (20 + 20 + 30, 2));
        assert_eq!(find(&rollout, "1 a class", Some("x")).cost_ns, 40);
        assert_eq!(rollout.given[1].1["a"], 1);
        assert_eq!(find(&rollout, "1 a class", Some("y")).settings[0].vms, 1);
    }

    #[test]
    fn another_day_has_the_settings_of_the_first() {
        let mut rows = [
            row("day1/a.parquet", None, &[10, 20, 40]),
            row("day1/b.parquet", None, &[100, 60, 30]),
            row("day2/a.parquet", None, &[50, 20, 10]),
            row("day2/b.parquet", None, &[100, 60, 30]),
            row("day2/new.parquet", None, &[1, 2, 3]),
        ];
        let folder = HeldOut::Folder("day2".to_owned());
        let found = rollout(&rows, &settings(3), &[2], &folder).unwrap();
        // Of the new one nothing is known: of both it gets the one that costs all less.
        let two = find(&found, "2 settings", None);
        assert_eq!((two.cost_ns, two.vms, found.new_vms), (50 + 30 + 3, 3, 1));
        assert_eq!((found.chosen_on[0].cost_ns, found.chosen_on[0].least_ns), (40, 40));
        // With its first idle times it gets that of those that idle like it.
        let mut first = [FirstLengths::default(); 2];
        (0..2).for_each(|at| first[at].add([5_000, 900_000][at], 100));
        for (row, first) in rows.iter_mut().zip([0, 1, 0, 1, 0].map(|at| first[at])) {
            row.costs.as_mut().unwrap().first = Some(first);
        }
        let many: Vec<Row> = (0..40)
            .map(|vm| Row {
                vm: format!("vm{vm}"),
                recording: format!("day1/vm{vm}.parquet"),
                ..rows[vm % 2].clone()
            })
            .chain(rows.iter().cloned())
            .collect();
        let two = rollout(&many, &settings(3), &[2], &folder).unwrap();
        assert_eq!(two.given[0].1["new"], two.given[0].1["vm0"]);
        assert_eq!(find(&two, "2 settings", None).cost_ns, 50 + 30 + 1);
        let none = HeldOut::Folder("day3".to_owned());
        let error = rollout(&rows, &settings(3), &[2], &none).unwrap_err();
        assert_eq!(error, RolloutError::NothingHeldOut { folder: "day3".to_owned() });
    }

    #[test]
    fn a_vm_is_of_the_class_of_its_newest_recording() {
        let rows = [
            row("day2/a.parquet", Some("new"), &[50, 20]),
            row("day1/a.parquet", Some("old"), &[10, 20]),
            row("day1/b.parquet", Some("old"), &[10, 30]),
            row("day3/a.parquet", None, &[50, 20]),
        ];
        for held_out in [HeldOut::Nothing, HeldOut::Folder("day2".to_owned())] {
            let found = rollout(&rows, &settings(2), &[1], &held_out).unwrap();
            assert!(found.costs[0].1.iter().all(|vm| (vm.vm == "b") == (vm.class.as_deref() == Some("old"))));
            let episodes = [None, Some("old"), Some("new")]
                .map(|class| found.episodes_chosen_on[&class.map(str::to_owned)]);
            let held = u64::from(held_out != HeldOut::Nothing);
            assert_eq!(episodes, [4 - held, 1, 3 - held]);
        }
    }

    /// Paths are not in the order of time where a host names its recordings by their load, or by day/month.
    #[test]
    fn the_newest_is_by_the_time_of_day_and_by_the_path_where_there_is_none() {
        let at = |ended_unix_ns, path: &str, class: &str| {
            let mut row = row(path, Some(class), &[10, 20]);
            row.costs.as_mut().unwrap().ended_unix_ns = ended_unix_ns;
            row
        };
        let class_of = |rows: &[Row]| {
            let found = rollout(rows, &settings(2), &[1], &HeldOut::Nothing).unwrap();
            found.costs[0].1[0].class.clone().unwrap()
        };
        let dated = [at(Some(2), "01-12/a.parquet", "new"), at(Some(1), "30-11/a.parquet", "old")];
        assert_eq!(class_of(&dated), "new");
        let one_dated = [at(Some(1), "1/a.parquet", "dated"), at(None, "2/a.parquet", "of an old version")];
        assert_eq!(class_of(&one_dated), "dated");
        assert_eq!(class_of(&[at(None, "1/a.parquet", "1"), at(None, "2/a.parquet", "2")]), "2");
    }

    /// Two hundred fleets of 40 VMs, in which each of 30 settings costs what today's does, up to a tenth of noise: that one of
    /// them has a gain is chance.
    #[test]
    fn a_gain_that_is_chance_has_an_interval_with_zero() {
        let mut random = dwell_stats::SplitMix64::new(5);
        let (mut gains, mut certain) = (0, 0);
        for _ in 0..200 {
            let vm = |number: u64| {
                // VMs differ in size: few have most of the costs.
                let size = 1_000 + random.exponential(20_000.0) * random.below(20);
                let costs: Vec<u64> = (0..30).map(|_| size + size * random.below(1_000) / 10_000).collect();
                row(&format!("vm{number}.parquet"), None, &costs)
            };
            let rows: Vec<Row> = (0..40).map(vm).collect();
            let found = rollout(&rows, &settings(30), &[1], &HeldOut::Vms(0.5)).unwrap();
            let one = find(&found, "1 setting", None);
            gains += u32::from(one.gain_over_today.unwrap() > 0.0);
            certain += u32::from(one.gain_interval.unwrap().low > 0.0);
        }
        assert!((70..=130).contains(&gains), "{gains}");
        // 2.5 % of 200.
        assert!(certain <= 12, "{certain}");
    }

    #[test]
    fn a_gain_of_nearly_all_vms_is_certain_and_of_few_vms_is_not_known() {
        let found = |number: u64| {
            let vm = |vm: u64| row(&format!("vm{vm}.parquet"), None, &[80 + vm % 30, 100, 200]);
            let rows: Vec<Row> = (0..number).map(vm).collect();
            let found = rollout(&rows, &settings(3), &[1], &HeldOut::Nothing).unwrap();
            assert_eq!(find(&found, "today", None).gain_interval, None);
            find(&found, "1 setting", None).gain_interval.unwrap()
        };
        let many = found(60);
        assert!(many.low > 0.03 && many.low < many.value && many.high < 0.08, "{many:?}");
        assert_eq!(found(5).limits(), None);
    }

    #[test]
    fn no_gain_is_more_than_all_that_today_costs() {
        // One VM has nearly all of it.
        let vm = |vm: u64| {
            let today_ns = if vm == 0 { 10_000 } else { 100 };
            row(&format!("vm{vm}.parquet"), None, &[today_ns / 10, today_ns])
        };
        let rows: Vec<Row> = (0..10).map(vm).collect();
        let found = rollout(&rows, &settings(2), &[1], &HeldOut::Nothing).unwrap();
        let gain = find(&found, "1 setting", None).gain_interval.unwrap();
        assert!(gain.low < gain.value && gain.value < gain.high && gain.high <= 1.0, "{gain:?}");
    }

    #[test]
    fn recordings_of_one_vm_are_added_and_errors_do_not_count() {
        let broken =
            Row { vm: "a".to_owned(), recording: "day3/a.parquet".to_owned(), costs: Err("no".to_owned()) };
        let rows =
            [row("day1/a.parquet", None, &[10, 20]), broken.clone(), row("day2/a.parquet", None, &[20, 4])];
        let found = rollout(&rows, &settings(2), &[1], &HeldOut::Nothing).unwrap();
        assert_eq!((found.vms_reported_on, find(&found, "1 setting", None).cost_ns), (1, 24));
        assert_eq!(rollout(&[broken], &settings(2), &[1], &HeldOut::Nothing), Err(RolloutError::Nothing));
        let error = rollout(&rows, &settings(3), &[1], &HeldOut::Nothing).unwrap_err();
        assert!(error.to_string().contains("has costs of 2 settings, and there are 3"), "{error}");
    }

    #[test]
    fn the_order_of_the_recordings_does_not_matter() {
        let mut random = dwell_stats::SplitMix64::new(3);
        let mut rows: Vec<Row> = (0..60)
            .map(|n| {
                let costs: Vec<u64> = (0..5).map(|_| random.below(1_000)).collect();
                row(&format!("day{}/vm{}.parquet", n % 3, n / 3), (n % 4 == 0).then_some("x"), &costs)
            })
            .collect();
        let first = rollout(&rows, &settings(5), &[1, 2, 3], &HeldOut::Vms(0.3)).unwrap();
        rows.reverse();
        assert_eq!(rollout(&rows, &settings(5), &[1, 2, 3], &HeldOut::Vms(0.3)).unwrap(), first);
    }
}
