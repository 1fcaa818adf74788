//! The target `sketch` of `dwell-fuzzing` under libFuzzer.
//! libFuzzer's panic hook would abort before the reader can turn a panic of the Parquet library into an error, so it
//! is replaced: what is not caught still unwinds into the harness, which aborts.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| ())),
    |data: &[u8]| dwell_fuzzing::sketch::run(data)
);
