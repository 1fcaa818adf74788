//! Any bytes opened as a sketch: an error, or a sketch that is written and read as it was, has costs, and can
//! be merged.

use dwell_fleet::{Fineness, Question, Sketch};
use dwell_policy::Nanos;
use dwell_replay::Versions;

pub fn run(data: &[u8]) {
    let Ok(sketch) = Sketch::from_bytes("fuzz", data.to_vec()) else { return };
    let again = Sketch::from_bytes("fuzz", sketch.write(vec![]).unwrap()).unwrap();
    assert_eq!(again, sketch);
    for halt_cost in [Nanos(0), Nanos(33_333), Nanos(u64::MAX)] {
        let (optimum, bound) = sketch.optimum_ns(halt_cost);
        assert!(bound <= optimum);
        let layer = sketch.layer();
        let question = Question::new(layer, Versions::NEWEST.of(layer), halt_cost, Fineness::Coarse);
        if let Ok(costs) = question.costs(sketch.clone()) {
            assert_eq!(costs.cost_ns.len(), question.settings.len());
        }
    }
    if let Ok(twice) = sketch.merge(&sketch) {
        assert_eq!(twice.header().episodes, 2 * sketch.header().episodes);
    }
}
