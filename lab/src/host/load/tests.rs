use super::*;
use dwell_stats::Environment;
use dwell_testing::process::Process as Spawned;
use proptest::prelude::*;
use std::process::Command;
use std::time::{Duration, Instant};

/// Another process is busy on CPU 0, which the experiment on CPUs 1 and 2 does not see.
#[test]
fn only_the_cores_of_the_experiment_count() {
    const EACH: &str = "cpu  900 0 0 0 0 0 0 900\n\
                        cpu0 600 0 0 0 0 0 0 600\n\
                        cpu1 100 0 0 0 0 0 0 50\n\
                        cpu2 200 0 0 0 0 0 0 250\n\
                        cpu21 7 0 0 0 0 0 0 7\n";
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("proc")).unwrap();
    fs::write(root.path().join("proc/stat"), EACH).unwrap();
    let usage = root.path().join("cpuacct.usage");
    let of = |cpuacct: Option<&Path>, cpus: Vec<Cpu>| {
        let cores = CoresTime { hundredths_per_second: 100, ..CoresTime::open(root.path(), cpuacct, cpus) };
        cores.all_and_steal().map(|(all, steal)| (cores.error(), all, steal))
    };
    let used = vec![Cpu(2), Cpu(1), Cpu(2)];
    let sampled = (TICKS_ERROR, Nanos(3_000_000_000), Nanos(3_000_000_000));
    assert_eq!(of(None, used.clone()).unwrap(), sampled);
    assert_eq!(of(Some(&usage), used.clone()).unwrap(), sampled);
    fs::write(root.path().join("cpuacct.usage_percpu"), "600 100 203 \n").unwrap();
    assert_eq!(of(Some(&usage), used).unwrap(), (Nanos::ZERO, Nanos(303), sampled.2));
    let error = of(None, vec![Cpu(3)]).unwrap_err().to_string();
    assert!(error.ends_with("proc/stat: it has no line of each CPU that is used"), "{error}");
    assert_eq!(sum_of("1 2", &[Cpu(2)]), None);
    assert_eq!(sum_of("1 x", &[Cpu(0)]), None);
}

#[test]
fn what_children_use_is_foreign_unless_they_belong_to_the_experiment() {
    let text = "42 (a (b) c) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1";
    let time = |ticks: u64| Nanos(ticks * 10_000_000);
    let found = process(text, 100).unwrap();
    assert_eq!(found, Process { pid: 42, parent: 7, of_itself: time(30), of_ended: time(70) });
    for damaged in ["", "42", "42 (a", "42 (a) S", "x (a) S 7"] {
        assert_eq!(process(damaged, 100), None, "{damaged}");
    }
    // A child of a child that has ended, and one that spins.
    let used =
        |load: &ExperimentCounters, begin: &Reading| load.read().unwrap().own.saturating_sub(begin.own);
    let load = with_descendants().unwrap();
    let begin = load.read().unwrap();
    let spin = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; true";
    assert!(Command::new("sh").args(["-c", spin]).status().unwrap().success());
    assert!(used(&load, &begin) > Nanos(50_000_000), "{:?}", used(&load, &begin));
    let child = Spawned(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    let begin = load.read().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while used(&load, &begin) < Nanos(50_000_000) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(child);
}

#[test]
fn a_block_on_some_cores_has_a_load() {
    let mut load = load_on([Cpu(0)]).unwrap();
    load.begin();
    assert!(load.end().is_some());
    assert_eq!(load.end(), None);
    assert!(load.wait_quiet(f64::INFINITY, Duration::from_secs(60)));
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in "(cpu|cpu0 |[0-9 ,\n]|\\PC)*", per_second: u64) {
        let _ = busy_and_steal(&text, &[Cpu(0), Cpu(7)], per_second);
        let _ = sum_of(&text, &[Cpu(0), Cpu(7)]);
        let _ = process(&text, per_second);
    }
}
