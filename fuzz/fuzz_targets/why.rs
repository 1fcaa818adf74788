//! The target `why` of `dwell-fuzzing` under libFuzzer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| dwell_fuzzing::why::run(data));
