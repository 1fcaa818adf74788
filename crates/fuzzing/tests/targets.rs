//! Every target over its seeds, and over what random changes make of them.
//!
//! `DWELL_FUZZ_SECONDS` is how long each target runs \[s\], by default 1; `DWELL_FUZZ_INPUTS` is how many inputs it gets
//! instead, and `DWELL_FUZZ_TARGETS` names those that run, with commas between. An input that fails is written to a file.

#![allow(clippy::unwrap_used)]

use dwell_fuzzing::{TARGETS, Target, seeds};
use dwell_stats::SplitMix64;
use dwell_testing::say;
use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A target may take this long for one input; it takes microseconds for most.
const LONGEST: Duration = Duration::from_secs(20);
/// The longest input that is tried \[bytes\].
const MOST_BYTES: usize = 1 << 14;

/// A random index below `end`; 0 for `end` = 0.
fn below(random: &mut SplitMix64, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap()
}

/// Numbers at which something changes.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "127",
    "256",
    "65536",
    "2147483648",
    "4294967295",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e309",
    "0.1",
];

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut SplitMix64) {
    let at = below(random, bytes.len());
    let range = at..bytes.len().min(at + 1 + below(random, 16));
    match below(random, 9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << below(random, 8),
        1 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b'"', b' '][below(random, 8)],
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(range)),
        4 => {
            let piece = bytes[range].to_vec();
            bytes.splice(at..at, piece);
        }
        5 if !other.is_empty() => {
            let from = below(random, other.len());
            let piece = &other[from..other.len().min(from + 1 + below(random, 200))];
            bytes.splice(at..at, piece.iter().copied());
        }
        6 => {
            let value = u32::try_from(random.bits() >> 32 >> below(random, 32)).unwrap();
            bytes.splice(at..bytes.len().min(at + 4), value.to_le_bytes());
        }
        7 => {
            let line = |byte: &u8| *byte == b'\n';
            let end = bytes[at..].iter().position(line).map_or(bytes.len(), |end| at + end + 1);
            let line = bytes[at..end].to_vec();
            let to = below(random, bytes.len());
            bytes.splice(to..to, line);
        }
        // The digits at or after the place become another number.
        _ => {
            let Some(from) = bytes[at..].iter().position(u8::is_ascii_digit).map(|from| at + from) else {
                return;
            };
            let digits = bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            bytes.splice(from..from + digits, NUMBERS[below(random, NUMBERS.len())].bytes());
        }
    }
    bytes.truncate(MOST_BYTES);
}

/// What is being tried, for the watchdog.
static TRIED: Mutex<Option<(&str, Vec<u8>, Instant)>> = Mutex::new(None);

fn keep(target: &str, input: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}"));
    std::fs::write(&path, input).unwrap();
    path
}

/// Ends the program if an input takes too long: a thread cannot be stopped from outside.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        if let Some((target, input, since)) = &*TRIED.lock().unwrap()
            && since.elapsed() > LONGEST
        {
            say!("{target}: no end after {LONGEST:?}; the input is in {}", keep(target, input).display());
            std::process::abort();
        }
    }
}

fn words(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

fn run((name, run): Target, input: &[u8]) -> Result<(), String> {
    *TRIED.lock().unwrap() = Some((name, input.to_vec(), Instant::now()));
    let result = panic::catch_unwind(AssertUnwindSafe(|| run(input)));
    *TRIED.lock().unwrap() = None;
    result.map_err(|panic| {
        format!("{name}: {}; the input is in {}", words(&*panic), keep(name, input).display())
    })
}

#[test]
fn targets_hold_over_seeds_and_random_changes() {
    let seconds = std::env::var("DWELL_FUZZ_SECONDS").map_or(1.0, |text| text.parse().unwrap());
    let inputs = std::env::var("DWELL_FUZZ_INPUTS").ok().map(|text| text.parse::<u64>().unwrap());
    let named = std::env::var("DWELL_FUZZ_TARGETS").ok();
    for name in named.iter().flat_map(|named| named.split(',')) {
        assert!(TARGETS.iter().any(|target| target.0 == name), "no target is named {name:?}");
    }
    let runs = |name: &str| named.as_ref().is_none_or(|named| named.split(',').any(|named| named == name));
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let number = u64::try_from(begun.as_nanos() & u128::from(u64::MAX)).unwrap() | 1;
    let mut random = SplitMix64::new(number);
    // The Parquet library may panic, which the reader turns into an error; nothing is printed of that.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    std::thread::spawn(watch);
    let mut failed = vec![];
    let targets: Vec<Target> = TARGETS.into_iter().filter(|target| runs(target.0)).collect();
    for target in targets {
        let seeds = seeds::of(target.0);
        assert!(!seeds.is_empty(), "{}", target.0);
        let (end, mut executions) = (Instant::now() + Duration::from_secs_f64(seconds), 0u64);
        let mut outcome = seeds.iter().try_for_each(|seed| run(target, seed));
        while outcome.is_ok() && inputs.map_or_else(|| Instant::now() < end, |inputs| executions < inputs) {
            let mut input = seeds[below(&mut random, seeds.len())].clone();
            let other = &seeds[below(&mut random, seeds.len())];
            (0..1 + below(&mut random, 8)).for_each(|_| change(&mut input, other, &mut random));
            outcome = run(target, &input);
            executions += 1;
        }
        say!("{}: {} seeds, {executions} random inputs", target.0, seeds.len());
        failed.extend(outcome.err());
    }
    panic::set_hook(hook);
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A seed that is refused at once leads no fuzzer anywhere.
#[test]
fn seeds_are_accepted() {
    use dwell_knobs::{journal, libvirt, plan::Plan};
    use dwell_recording::{Reader, timer::TimerRecording};
    let text = |seed: &Vec<u8>| String::from_utf8(seed.clone()).unwrap();
    let timers = |seed: Vec<u8>| TimerRecording::from_bytes("seed", seed).is_ok();
    assert!(
        seeds::of("parquet")
            .into_iter()
            .all(|seed| Reader::from_bytes("seed", seed.clone()).is_ok() || timers(seed))
    );
    assert_eq!(seeds::of("parquet").into_iter().filter(|seed| timers(seed.clone())).count(), 2);
    assert!(
        seeds::of("sketch").into_iter().all(|seed| dwell_fleet::Sketch::from_bytes("seed", seed).is_ok())
    );
    assert!(seeds::of("plan").iter().all(|seed| Plan::from_toml(&text(seed)).is_ok()));
    assert_eq!(seeds::of("journal").iter().filter(|seed| journal::decode("seed", seed).is_ok()).count(), 2);
    assert!(seeds::of("libvirt").iter().all(|seed| libvirt::poll_in(&text(seed), "vm", 1).is_ok()));
    assert!(seeds::of("request").iter().all(|seed| dwell_fuzzing::request::requests(seed) == 1));
    assert!(TARGETS.iter().all(|(name, _)| !seeds::of(name).is_empty()));
}

/// libFuzzer runs the programs that the manifest of `fuzz` has.
#[test]
fn every_target_has_its_program() {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        let path = format!("fuzz_targets/{name}.rs");
        let program = std::fs::read_to_string(fuzz.join(&path)).unwrap_or_default();
        assert!(program.contains(&format!("dwell_fuzzing::{name}::run(data)")), "fuzz/{path}");
        assert!(
            manifest.contains(&format!("name = \"{name}\"\npath = \"{path}\"")),
            "fuzz/Cargo.toml: {name}"
        );
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}
