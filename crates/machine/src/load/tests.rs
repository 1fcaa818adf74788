use super::*;
use dwell_testing::process::Process;
use proptest::prelude::*;
use std::process::Command;

const STAT: &str = "cpu  100 20 30 4000 500 6 7 80 90 10\ncpu0 1 2 3\nintr 5\n";
const BOTH: &str = "proc /proc proc rw 0 0\n\
                    cgroup2 /cg/unified cgroup2 rw,relatime 0 0\n\
                    cgroup /cg/cpu cgroup rw,cpu 0 0\n\
                    cgroup /cg/acct cgroup rw,relatime,cpuacct 0 0\n";

fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

fn source_of(files: &[(&str, &str)]) -> (String, Nanos) {
    let root = machine(files);
    let load = MachineCounters::under(root.path()).unwrap();
    let name = load.source().replace(root.path().to_str().unwrap(), "");
    (name, load.read().unwrap().all)
}

#[test]
fn the_exact_source_is_taken_before_those_that_sample() {
    let v1 = [("cg/acct/cpuacct.usage", "12345678\n"), ("cg/acct/release_agent", "\n")];
    let v2 = [("cg/unified/cpu.stat", "usage_usec 77\nuser_usec 3\n")];
    let common = [("proc/stat", STAT), ("proc/self/mounts", BOTH)];
    let files = |more: &[&[(&'static str, &'static str)]]| [&common[..], &more.concat()].concat();
    assert_eq!(
        source_of(&files(&[&v1, &v2])),
        ("/cg/acct/cpuacct.usage, exact".to_owned(), Nanos(12_345_678))
    );
    let sampled = ("/cg/unified/cpu.stat, sampled at ticks".to_owned(), Nanos(77_000));
    assert_eq!(source_of(&files(&[&v2])), sampled);
    // A container's own group is no root.
    assert_eq!(source_of(&files(&[&v1[..1], &v2])), sampled);
    let stat = ("/proc/stat, sampled at ticks".to_owned(), Nanos(1_630_000_000));
    assert_eq!(source_of(&files(&[&v2, &[("cg/unified/cgroup.events", "populated 1\n")]])), stat);
    assert_eq!(source_of(&files(&[&[("cg/unified/cpu.stat", "nr_periods 0\n")]])), stat);
    assert_eq!(source_of(&common[..1]), stat);
}

#[test]
fn files_that_are_absent_or_strange_are_named() {
    let nothing = machine(&[]);
    let error = MachineCounters::under(nothing.path()).unwrap_err();
    assert!(error.to_string().ends_with("proc/stat"), "{error}");
    let short = machine(&[("proc/stat", "cpu 1 2 3\n")]);
    let error = MachineCounters::under(short.path()).unwrap_err();
    assert!(error.to_string().ends_with("proc/stat: it has no line of all CPUs"), "{error}");
}

#[test]
fn stat_is_read_without_guest_time_twice() {
    let stat = Stat::of(STAT, "cpu", 100).unwrap();
    let idle = Nanos(45_000_000_000);
    assert_eq!(stat, Stat { busy: Nanos(1_630_000_000), idle, steal: Nanos(800_000_000) });
    assert_eq!(Stat::of("cpu0 1 2 3 4 5 6 7 8\n", "cpu", 100), None);
}

#[test]
fn what_is_not_ours_is_foreign_and_never_negative() {
    let root = machine(&[("proc/stat", STAT)]);
    let load = MachineCounters::under(root.path()).unwrap();
    let at = Instant::now();
    let reading = |ms, all, own, steal| Reading {
        at: at + Duration::from_millis(ms),
        all: Nanos(all),
        own: Nanos(own),
        steal: Nanos(steal),
    };
    let found = reading(500, 300_000_100, 200_000_010, 5).since(&reading(0, 100, 10, 5), load.error());
    assert_eq!((found.foreign, found.steal), (0.2, 0.0));
    assert_eq!((found.foreign_error, found.steal_error), (0.04, 0.02));
    assert!(found.exceeds(0.15) && !found.exceeds(0.17));
    let stolen = reading(500, 0, 9_999, 50_000_000).since(&reading(0, 0, 0, 0), load.error());
    assert_eq!((stolen.foreign, stolen.steal), (0.0, 0.1));
    assert!(stolen.exceeds(0.07) && !stolen.exceeds(0.09));
}

fn spinning() -> Process {
    Process(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
}

/// The load of a process that spins is seen while it is a stranger, and not once it belongs to the
/// experiment. Others may be busy too, and keep the child from running: what is compared is what it used
/// itself.
#[test]
fn a_stranger_is_seen_and_a_friend_is_not() {
    let mut load = Load::open().unwrap();
    let child = spinning();
    let pid = child.id();
    let used = || process_cpu_time(pid).unwrap().get() as f64 / 1e9;
    let span = Duration::from_secs(1);

    // On a busy machine a second can pass in which the child does not run.
    let seconds = (0..60).map(|_| {
        let before = used();
        (load.over(span).unwrap(), used() - before)
    });
    let (found, share) = seconds.into_iter().find(|(_, share)| *share > 0.02).expect("the child runs");
    assert!(found.foreign + found.foreign_error + 0.05 > share.min(1.0), "{found:?} {share}");

    load.add_own(pid);
    load.add_own(pid);
    let seconds = (0..60).map(|_| {
        let (begin, before) = (load.counters.read().unwrap(), used());
        std::thread::sleep(span);
        (begin, used() - before, load.counters.read().unwrap())
    });
    let (begin, share, end) =
        seconds.into_iter().find(|(_, share, _)| *share > 0.02).expect("the child runs");
    let own = end.own.saturating_sub(begin.own).get() as f64 / 1e9;
    assert!(own >= share, "{own} {share}");
    let error = load.counters.error();
    let friend = end.since(&begin, error);
    let stranger = Reading { own: Nanos::ZERO, ..end }.since(&Reading { own: Nanos::ZERO, ..begin }, error);
    assert!(friend.foreign < stranger.foreign, "{friend:?} {stranger:?}");
    load.begin();
    assert!(load.end().is_some());
    assert_eq!(load.end(), None);
}

#[test]
fn a_process_of_the_experiment_that_is_gone_is_named() {
    let mut load = Load::open().unwrap();
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    load.add_own(child.id());
    let error = load.over(Duration::ZERO).unwrap_err();
    assert!(matches!(error, LoadError::Process { .. }), "{error}");
    load.begin();
    assert_eq!(load.end(), None);
    assert!(!load.wait_quiet(0.02, Duration::ZERO));
}

#[test]
fn waiting_for_quiet_has_an_end() {
    let mut load = Load::open().unwrap();
    assert!(load.wait_quiet(f64::INFINITY, Duration::from_secs(60)));
    let child = spinning();
    let begin = Instant::now();
    let quiet = load.wait_quiet(-1.0, Duration::from_millis(300));
    assert!(!quiet && begin.elapsed() >= Duration::from_millis(300));
    drop(child);
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in "(cpu |cgroup|cgroup2|/|cpuacct|[0-9 ,\n]|\\PC)*", per_second: u64) {
        let _ = Stat::of(&text, "cpu", per_second);
        let _ = cgroup_roots(&text, Path::new("/none"));
    }
}
