use super::*;
use dwell_testing::process::Process;
use proptest::prelude::*;
use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The clock by number is the one of the calling thread.
#[test]
fn the_clock_of_a_thread_is_its_own() {
    let (a, b, c) = (own_cpu_time(), Thread::current().cpu_time().unwrap(), own_cpu_time());
    assert!(a <= b && b <= c && c.get() - a.get() < 100_000_000, "{a} {b} {c}");
}

#[test]
fn cpu_time_of_another_thread_grows_while_it_works_and_not_while_it_waits() {
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let worker = std::thread::spawn(move || {
        let begin = own_cpu_time();
        while own_cpu_time().get() - begin.get() < 20_000_000 {
            black_box(0);
        }
        tell.send((Thread::current(), own_cpu_time())).unwrap();
        let _ = wait.recv();
    });
    let (thread, worked) = told.recv().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let waiting = thread.cpu_time().unwrap();
    assert!(waiting >= worked && waiting.get() < worked.get() + 10_000_000, "{worked} {waiting}");
    assert!(thread.switches().unwrap().voluntary >= 1);
    go.send(()).unwrap();
    worker.join().unwrap();
    let process = process_cpu_time(std::process::id()).unwrap();
    assert!(process.get() >= waiting.get());
}

#[test]
fn each_sleep_is_a_voluntary_switch() {
    let before = Thread::current().switches().unwrap();
    (0..10).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
    let after = Thread::current().switches().unwrap();
    assert!((10..100).contains(&(after.voluntary - before.voluntary)), "{before:?} {after:?}");
}

/// Another process's clock is read by another way; a child that has used some CPU shows both.
#[test]
fn cpu_time_of_a_child_is_known_as_a_process_and_as_a_thread() {
    let mut spins = std::process::Command::new("sh");
    let mut child = Process(spins.args(["-c", "while :; do :; done"]).spawn().unwrap());
    let begin = Instant::now();
    let enough = |time: io::Result<Nanos>| time.unwrap().get() > 20_000_000;
    while !(enough(process_cpu_time(child.id())) && enough(Thread::of(child.id(), child.id()).cpu_time())) {
        assert!(begin.elapsed() < Duration::from_secs(60), "a child that spins uses no CPU");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(process_cpu_time(child.id()).is_err());
    assert!(Thread::of(child.id(), child.id()).cpu_time().is_err());
    assert!(Thread::of(child.id(), child.id()).switches().is_err());
}

#[test]
fn clocks_of_impossible_threads_are_refused() {
    for tid in [0, 1 << 28, u32::MAX] {
        assert!(thread_clock(tid).is_err(), "{tid}");
    }
    assert!(process_cpu_time(u32::MAX).is_err());
}

#[test]
fn switches_are_read_from_status() {
    let status = "Name:\tx: y\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
    assert_eq!(parse_switches(status), Some(Switches { voluntary: 12, involuntary: 3 }));
    assert_eq!(parse_switches("voluntary_ctxt_switches:\t12\n"), None);
}

proptest! {
    #[test]
    fn no_status_makes_the_parser_panic(status in "\\PC*") {
        let _ = parse_switches(&status);
    }
}
