//! A statistics file of KVM of any bytes: an error, or numbers as many as it describes.

use dwell_capture::kvm_stats::{Bound, StatsFile};
use dwell_policy::Nanos;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

pub fn run(data: &[u8]) {
    let fd: OwnedFd = rustix::fs::memfd_create("stats", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    File::from(fd.try_clone().unwrap()).write_all(data).unwrap();
    let Ok(file) = StatsFile::new(fd) else { return };
    if let Ok(values) = file.read() {
        assert_eq!(values.len(), file.stats().len());
    }
    if let Ok(counters) = file.counters() {
        let _ = Bound::of(&counters, Nanos(20_000));
        let _ = counters.clone().since(counters.clone()).plus(counters);
    }
}
