//! A plan of any text: an error, or a plan that is the same once written and read again.

use dwell_knobs::plan::Plan;

pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(plan) = Plan::from_toml(text) else { return };
    let again = Plan::from_toml(&plan.to_toml().unwrap()).unwrap();
    assert_eq!(again, plan);
}
