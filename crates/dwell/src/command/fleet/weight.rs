//! VMs that decide a choice alone.

use dwell_fleet::Row;
use dwell_report::{duration, percent};
use std::collections::BTreeMap;

/// In a smaller fleet each VM counts much.
const FEWEST: usize = 10;
/// The share of all costs from which on a VM decides.
const DECIDES: f64 = 0.5;

/// A note on the VM that has more than half of all costs: it weighs as much as its recording claims, which whoever made
/// that can choose.
pub(super) fn note(rows: &[Row]) -> Option<String> {
    let mut costs: BTreeMap<&str, (u128, u64)> = BTreeMap::new();
    for row in rows {
        let Ok(of) = &row.costs else { continue };
        let (cost_ns, span_ns) = costs.entry(&row.vm).or_default();
        *cost_ns += u128::from(of.today_ns);
        *span_ns = span_ns.saturating_add(of.span_ns);
    }
    let all: u128 = costs.values().map(|(cost_ns, _)| cost_ns).sum();
    let number = costs.len();
    let (vm, (cost_ns, span_ns)) = costs.into_iter().max_by_key(|(_, (cost_ns, _))| *cost_ns)?;
    let share = cost_ns as f64 / all.max(1) as f64;
    (number >= FEWEST && share > DECIDES).then(|| {
        format!(
            "`{}` alone has {} of the costs of {number} VMs, by a recording that claims {}: it decides the choice; leave it \
             out if that is not so",
            dwell_report::harmless::line(vm),
            percent(share),
            duration(span_ns as f64)
        )
    })
}
