//! The target `metrics` of `dwell-fuzzing` under libFuzzer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| dwell_fuzzing::metrics::run(data));
