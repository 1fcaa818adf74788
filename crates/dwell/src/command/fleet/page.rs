//! `dwell fleet --report`: the choices as a page.

use super::Printed;
use anyhow::Context;
use dwell_fleet::{A_CLASS, Rollout, VmCost};
use dwell_recording::newfile;
use dwell_report::page;
use serde::Serialize;
use std::path::Path;

/// The data of the page.
#[derive(Serialize)]
struct Data<'a> {
    dwell: &'static str,
    command: String,
    /// The page is of a fleet, not of recordings.
    recordings: [(); 0],
    fleet: Fleet<'a>,
}

#[derive(Serialize)]
struct Fleet<'a> {
    #[serde(flatten)]
    printed: &'a Printed<'a>,
    /// The name of the choice of a setting for each class.
    of_classes: &'static str,
    curves: Vec<Curve<'a>>,
    worst: Worst<'a>,
}

/// Regret of the VMs under a choice, in ascending order, at equal steps of their number.
#[derive(Serialize)]
struct Curve<'a> {
    choice: &'a str,
    regret: Vec<f64>,
}

/// The VMs that lose most under the choice that is rolled out.
#[derive(Serialize)]
struct Worst<'a> {
    choice: &'a str,
    vms: Vec<&'a VmCost>,
}

/// Points of a curve, so that a page of many VMs is small.
const POINTS: usize = 201;
/// VMs that are named.
const NAMED: usize = 20;

pub(super) fn write(path: &Path, printed: &Printed<'_>) -> anyhow::Result<()> {
    let found = printed.rollout;
    // Under the optimum and the best of each there is no regret.
    let shown = |(choice, _): &&(String, Vec<VmCost>)| !["own best", "optimum"].contains(&choice.as_str());
    let curves = found.costs.iter().filter(shown).map(|(choice, vms)| Curve { choice, regret: curve(vms) });
    // Where halts are free, the best setting of every VM costs nothing, and none has a regret.
    let curves = curves.filter(|curve| !curve.regret.is_empty());
    let data = Data {
        dwell: env!("CARGO_PKG_VERSION"),
        command: crate::command::record::command_line(),
        recordings: [],
        fleet: Fleet { printed, of_classes: A_CLASS, curves: curves.collect(), worst: worst(found) },
    };
    let json = page::embeddable(&serde_json::to_string(&data)?);
    let title = format!("dwell: fleet {}", printed.folder);
    newfile::write(path, page::page(&title, &json).as_bytes())
        .with_context(|| format!("cannot write the page {}", path.display()))
}

fn curve(vms: &[VmCost]) -> Vec<f64> {
    let mut regrets: Vec<f64> = vms.iter().filter_map(|vm| vm.regret).collect();
    regrets.sort_by(f64::total_cmp);
    let last = regrets.len().saturating_sub(1);
    let at = |point: usize| regrets.get((point * last).div_ceil(POINTS - 1)).copied();
    (0..POINTS).filter_map(at).collect()
}

/// Of the choice that plans are made of.
fn worst(found: &Rollout) -> Worst<'_> {
    let rolled_out = |(choice, _): &&(String, Vec<VmCost>)| {
        let plans = found.given.iter().find(|(choice, _)| choice == A_CLASS).or(found.given.first());
        plans.is_some_and(|(name, _)| name == choice)
    };
    let Some((choice, all)) = found.costs.iter().find(rolled_out) else {
        return Worst { choice: "", vms: vec![] };
    };
    let mut vms: Vec<&VmCost> = all.iter().collect();
    let order = |vm: &VmCost| vm.regret.unwrap_or(0.0);
    vms.sort_by(|a, b| order(b).total_cmp(&order(a)).then(a.vm.cmp(&b.vm)));
    vms.truncate(NAMED);
    Worst { choice, vms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(number: u32) -> VmCost {
        let regret = Some(f64::from(number));
        VmCost { vm: number.to_string(), class: None, today_ns: 1, chosen_ns: 1, own_ns: 1, regret }
    }

    #[test]
    fn a_curve_begins_with_the_least_and_ends_with_the_worst() {
        for number in [1, 2, 200, 201, 5_000] {
            let vms: Vec<VmCost> = (0..number).rev().map(vm).collect();
            let found = curve(&vms);
            assert_eq!((found.len(), found[0], found[POINTS - 1]), (POINTS, 0.0, f64::from(number - 1)));
            assert!(found.is_sorted());
        }
        assert!(curve(&[]).is_empty());
    }
}
