//! The haltpoll parameters of this machine, where they can be written.

use crate::{output, stderr};
use dwell_policy::Layer;
use dwell_policy::param::{self, Setting};
use dwell_policy::version::Version;
use dwell_testing::fixture::{self, HALTPOLL};
use dwell_testing::say;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The tests here change the same values.
static ALONE: Mutex<()> = Mutex::new(());

/// What is there, and is put back at the end whatever happens.
struct Originals(BTreeMap<&'static str, String>);

impl Originals {
    fn read() -> Option<Originals> {
        let read =
            |param: &'static param::Param| Some((param.name, fs::read_to_string(path(param.name)).ok()?));
        Some(Originals(param::GUEST.iter().map(read).collect::<Option<_>>()?))
    }

    fn are_back(&self) -> bool {
        self.0.iter().all(|(name, value)| fs::read_to_string(path(name)).is_ok_and(|now| now == *value))
    }
}

impl Drop for Originals {
    fn drop(&mut self) {
        if !self.are_back() {
            self.0.iter().for_each(|(name, value)| drop(fs::write(path(name), value)));
        }
    }
}

fn path(name: &str) -> String {
    format!("{HALTPOLL}/{name}")
}

fn writable() -> bool {
    param::GUEST.iter().all(|param| fs::OpenOptions::new().write(true).open(path(param.name)).is_ok())
}

/// The setting in force.
fn present(originals: &Originals, version: Version) -> Setting {
    let mut setting = Setting::defaults(Layer::Guest, version);
    for (name, text) in &originals.0 {
        let number = match text.trim() {
            "Y" => 1,
            "N" => 0,
            number => number.parse().unwrap(),
        };
        setting.set(name, number).unwrap();
    }
    setting
}

#[test]
fn the_haltpoll_parameters_of_this_machine_are_set_verified_and_put_back() {
    const NAME: &str = "the_haltpoll_parameters_of_this_machine_are_set_verified_and_put_back";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(originals) = Originals::read().filter(|_| writable()) else {
        dwell_testing::skip!("haltpoll", NAME, "haltpoll parameters are not writable");
        return;
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let Some(version) = Version::parse(&release).filter(|v| param::known_version(Layer::Guest, *v).is_ok())
    else {
        dwell_testing::skip!("haltpoll", NAME, "the rule of this kernel is not known");
        return;
    };
    let before = present(&originals, version);
    let wanted = before.get("guest_halt_poll_ns").unwrap() / 2 + 1_234;
    let plan = fixture::plan(before, &[("guest_halt_poll_ns", wanted), ("guest_halt_poll_allow_shrink", 1)]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.toml");
    fs::write(&file, plan.to_toml().unwrap()).unwrap();
    let (file, state) = (file.to_str().unwrap(), folder.path().join("state"));
    let dwell = |words: &[&str]| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        output(command.args(words).arg("--state-dir").arg(&state))
    };
    let good = |words: &[&str]| -> Value {
        let output = dwell(&[words, &["--format", "json"]].concat());
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };

    // Where no cpuidle driver asks the governor, the parameters can be written and do nothing: that takes a word more.
    let shown = dwell(&["apply", file, "--dry-run"]);
    let no_effect = !shown.status.success();
    if no_effect {
        assert!(stderr(&shown).contains("--allow-no-effect"), "{}", stderr(&shown));
    }
    assert!(originals.are_back());
    let allow: &[&str] = if no_effect { &["--allow-no-effect"] } else { &[] };
    let applied = good(&[&["apply", file][..], allow].concat());
    assert_eq!(applied["change"], 1);
    assert_eq!(fs::read_to_string(path("guest_halt_poll_ns")).unwrap().trim(), wanted.to_string());
    assert_eq!(good(&["status"])[0]["places"][0]["standing"], "in_force");
    let short = ["--budget", "4s", "--turn", "50ms", "--settle", "10ms"];
    let verified = dwell(&[&["verify", "1", "--format", "json"][..], &short].concat());
    let verdict = match verified.status.success() {
        true => {
            let verified: Value = serde_json::from_slice(&verified.stdout).unwrap();
            assert!(verified["rounds"].as_u64().unwrap() > 0, "{verified}");
            assert_eq!(verified["figures"].as_array().unwrap().len(), 3);
            let verdict = verified["verdict"].as_str().unwrap().to_owned();
            assert_eq!(verdict == "no_effect", no_effect, "{verified}");
            assert_eq!(good(&["status", "--history"])[0]["verifications"][0]["verdict"], verdict);
            verdict
        }
        false => {
            let told = stderr(&verified);
            assert!(told.contains("no value was switched"), "{told}");
            assert!(!dwell_testing::needs::recorded(&verified, NAME));
            "none".to_owned()
        }
    };
    // Whatever was measured, the values of after are in force.
    assert_eq!(fs::read_to_string(path("guest_halt_poll_ns")).unwrap().trim(), wanted.to_string());
    good(&["revert"]);
    assert!(originals.are_back());
    let how = if no_effect { ", where nothing reads them" } else { "" };
    say!(
        "haltpoll parameters of this machine: applied, read back, verified (verdict: {verdict}), reverted{how}; the originals are there"
    );
}

/// How often the CPUs of this machine entered the polling state, by the kernel's own count.
fn polls_counted() -> Option<u64> {
    let cpus = fs::read_dir("/sys/devices/system/cpu").ok()?.flatten();
    let counts = cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("cpuidle/state0/usage")).ok());
    let counts: Vec<u64> = counts.filter_map(|text| text.trim().parse().ok()).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

fn haltpoll_is_asked() -> bool {
    let is = |name: &str| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpuidle/{name}"))
            .is_ok_and(|text| text.trim() == "haltpoll")
    };
    is("current_driver") && is("current_governor")
}

/// Threads that sleep for times of up to half a millisecond: where every poll succeeds, no window ever
/// shrinks, not even at a maximum of 0.
fn with_sleepers<T>(count: u32, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..count {
            let done = &done;
            scope.spawn(move || {
                let mut time = u64::from(number);
                while !done.load(Ordering::Relaxed) {
                    time = (time * 7_919 + 104_729) % 500;
                    std::thread::sleep(Duration::from_micros(time));
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn polling_that_is_switched_on_is_seen_and_switched_off_again() {
    const NAME: &str = "polling_that_is_switched_on_is_seen_and_switched_off_again";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(originals) = Originals::read().filter(|_| writable() && haltpoll_is_asked()) else {
        return dwell_testing::skip!(
            "haltpoll",
            NAME,
            "haltpoll is not in force on this machine, or may not be set"
        );
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let Some(version) = Version::parse(&release).filter(|v| param::known_version(Layer::Guest, *v).is_ok())
    else {
        return dwell_testing::skip!("haltpoll", NAME, "the rule of this kernel is not known");
    };
    let before = present(&originals, version);
    if before.get("guest_halt_poll_ns") != Some(0) {
        return dwell_testing::skip!("haltpoll", NAME, "this machine polls already");
    }
    let plan = fixture::plan(before, &[("guest_halt_poll_ns", 200_000)]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.toml");
    fs::write(&file, plan.to_toml().unwrap()).unwrap();
    let (file, state) = (file.to_str().unwrap(), folder.path().join("state"));
    let dwell = |words: &[&str]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let output = output(command.args(words).args(["--format", "json"]).arg("--state-dir").arg(&state));
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let (verified, polls) = with_sleepers(3, || {
        dwell(&["apply", file]);
        let begun = polls_counted().unwrap_or(0);
        let verified = dwell(&["verify", "1", "--budget", "8s", "--turn", "50ms", "--settle", "10ms"]);
        let polls = polls_counted().unwrap_or(0) - begun;
        dwell(&["revert"]);
        (verified, polls)
    });
    assert!(originals.are_back());
    let figures = verified["figures"].as_array().unwrap();
    let polling = figures.iter().find(|figure| figure["figure"] == "polling_ns_per_s").unwrap();
    let value = |side: &str| polling[side]["value"].as_f64().unwrap_or(0.0);
    say!(
        "the kernel counted {polls} polls while it was verified; polling CPU {:.2} % before and {:.2} % after, verdict: {}",
        value("before") / 1e7,
        value("after") / 1e7,
        verified["verdict"]
    );
    // A second of polls at least: less comes from CPUs that are never idle.
    if polls < 10_000 {
        return say!("UNKNOWN {NAME}: other work kept the CPUs busy");
    }
    // Each block opens the recorder anew, which takes long where the CPUs are busy.
    let rounds = verified["rounds"].as_u64().unwrap();
    if rounds < 6 {
        return say!("UNKNOWN {NAME}: only {rounds} rounds");
    }
    let low = polling["difference"]["low"].as_f64();
    assert!(low.is_some_and(|low| low > 0.0), "{verified}");
    assert!(value("before") < value("after") / 5.0, "{verified}");
    // A window that is there still shrinks to 0 within a few halts.
    std::thread::sleep(Duration::from_millis(200));
    let settled = polls_counted().unwrap();
    with_sleepers(3, || std::thread::sleep(Duration::from_millis(500)));
    let later = polls_counted().unwrap() - settled;
    assert!(later < 100, "{later} polls after the change was reverted");
}
