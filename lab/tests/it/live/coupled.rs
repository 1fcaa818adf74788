//! Two idlers that wait for each other: what a recording under one setting predicts of the other, and what they do.

use super::alone::{self, Alone, Missed, holds, repeated};
use dwell_lab::experiment::coupled::{Between, Maxima, Pair};
use dwell_lab::gaps::Gaps;
use dwell_policy::Nanos;
use dwell_testing::say;
use std::sync::atomic::AtomicBool;

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn the_work_of_coupled_idlers_is_predicted() {
    let test = "the_work_of_coupled_idlers_is_predicted";
    let Some(Alone { rig, .. }) = &alone::rig(2, test) else { return };
    let think = Gaps::open("constant:60us".parse().unwrap(), Nanos::from_micros(1_000)).unwrap();
    for between in [Between::Vcpus, Between::Vms, Between::Threads] {
        let pair = Pair { rig, between, think: &think, seed: 1, exchanges: 1_000 };
        repeated(test, || predicted(test, &pair));
    }
}

fn predicted(test: &str, pair: &Pair<'_>) -> Result<(), Missed> {
    let (recordings, cells) = match pair.predict(&[0, 200_000].map(Maxima::of), 5, &AtomicBool::new(false)) {
        Ok(predicted) => predicted,
        Err(error) => {
            dwell_testing::skip!("tracing", test, "{error}");
            return Ok(());
        }
    };
    for of in &recordings {
        say!("{:?}: {:?}, {:.0} exchanges/s", of.maxima, of.causes, of.measured_per_s);
        holds!(10 * of.causes.coupled > 9 * of.causes.segments, "{:?}", of.causes);
    }
    for cell in &cells {
        say!("{cell:?}");
        holds!(cell.is_in_range() && cell.error().abs() < 0.25, "{cell:?}");
    }
    Ok(())
}
