//! Two idlers that wait for each other: what a recording under one setting predicts of the other, and what they do.

use super::alone::{self, Alone, Missed, holds, repeated};
use dwell_lab::experiment::coupled::{Between, Compared, Maxima, Pair};
use dwell_lab::gaps::Gaps;
use dwell_policy::Nanos;
use dwell_testing::say;
use std::sync::atomic::AtomicBool;

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn the_work_of_coupled_idlers_is_predicted() {
    let test = "the_work_of_coupled_idlers_is_predicted";
    let Some(Alone { rig, .. }) = &alone::rig(2, test) else { return };
    let gaps = |of: &str| Gaps::open(of.parse().unwrap(), Nanos::from_micros(1_000)).unwrap();
    let own = [0, 200_000].map(Maxima::of);
    let halt_cost = Nanos::from_micros(20);
    for between in [Between::Vcpus, Between::Vms, Between::Threads] {
        let pair = Pair { rig, between, think: &gaps("constant:60us"), seed: 1, exchanges: 1_000, halt_cost };
        repeated(test, || predicted(test, &pair, &own));
    }
    // Halts of one length do not show which are which.
    let think = gaps("exponential:60us");
    let pair = Pair { rig, between: Between::Layers, think: &think, seed: 1, exchanges: 1_000, halt_cost };
    let of_guest = Maxima { guest_ns: 200_000, maximum_ns: 0 };
    repeated(test, || predicted(test, &pair, &[own[0], own[1], of_guest]));
}

fn predicted(test: &str, pair: &Pair<'_>, settings: &[Maxima]) -> Result<(), Missed> {
    let Compared { recordings, cells, advised } = match pair.predict(settings, 5, &AtomicBool::new(false)) {
        Ok(predicted) => predicted,
        Err(error) => {
            dwell_testing::skip!("tracing", test, "{error}");
            return Ok(());
        }
    };
    for of in &recordings {
        say!("{:?}: {:?}, {:.0} exchanges/s", of.maxima, of.causes, of.measured.per_s);
        holds!(10 * of.causes.coupled > 9 * of.causes.segments, "{:?}", of.causes);
    }
    for cell in &cells {
        say!("{cell:?}");
        holds!(cell.speed.is_in_range() && cell.speed.error().abs() < 0.25, "{cell:?}");
    }
    // The interval of what an advice costs over the best other is not above it.
    for advice in &advised {
        say!("{advice:?}");
        holds!(advice.over_best.low < 1.1, "{advice:?}");
    }
    Ok(())
}
