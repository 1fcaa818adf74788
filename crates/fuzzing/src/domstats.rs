//! Any bytes as a reading of `virsh domstats`: an error, or counters that can be compared with themselves.

use dwell_capture::kvm_stats::{Bound, Counted, Domstats};
use dwell_policy::Nanos;

pub fn run(data: &[u8]) {
    let Ok(read) = Domstats::parse(&String::from_utf8_lossy(data)) else { return };
    let Ok(Counted { delta, names, .. }) = read.since(&read, 1) else {
        unreachable!("no counter is less than itself")
    };
    assert_eq!((delta.vms.len(), delta.ended), (names.len(), 0));
    for counters in delta.vms.values() {
        if let Ok(bound) = Bound::of(counters, Nanos(20_000)) {
            assert_eq!(bound.cost_ns, 0);
        }
    }
}
