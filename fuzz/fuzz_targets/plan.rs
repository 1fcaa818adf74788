//! A plan of any text: an error, or a plan that is the same once written and read again.
#![no_main]

use dwell_knobs::plan::Plan;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(plan) = Plan::from_toml(text) else { return };
    let again = Plan::from_toml(&plan.to_toml().unwrap()).unwrap();
    assert_eq!(again, plan);
});
