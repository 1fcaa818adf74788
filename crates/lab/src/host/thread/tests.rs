use super::*;
use proptest::prelude::*;
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Instant;

fn cpus(numbers: impl IntoIterator<Item = u32>) -> Vec<Cpu> {
    numbers.into_iter().map(Cpu).collect()
}

#[test]
fn a_thread_is_pinned_while_the_guard_lives() {
    let before = allowed().unwrap();
    for &cpu in &before {
        let pinned = Pinned::to(cpu).unwrap();
        assert_eq!(allowed().unwrap(), [cpu]);
        drop(pinned);
        assert_eq!(allowed().unwrap(), before);
    }
    assert_eq!(Pinned::to(Cpu(1023)).unwrap_err().to_string(), "cannot pin a thread to CPU 1023");
    assert!(Pinned::to(Cpu(u32::MAX)).is_err());
}

#[test]
fn priority_is_held_or_its_refusal_explained_and_given_back() {
    let before = scheduler().unwrap();
    let realtime = Realtime::ask(10);
    match realtime.refused() {
        None => {
            let (policy, parameters) = scheduler().unwrap();
            assert_eq!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO);
            assert_eq!(parameters.sched_priority, 10);
            let child = std::thread::spawn(|| scheduler().unwrap().0).join().unwrap();
            assert_eq!(child, libc::SCHED_OTHER);
        }
        Some(refused) => assert!(refused.to_string().contains("ulimit -r 10"), "{refused}"),
    }
    drop(realtime);
    let after = scheduler().unwrap();
    assert_eq!((after.0, after.1.sched_priority), (before.0, before.1.sched_priority));
    let refused = Realtime::ask(100);
    assert!(refused.refused().is_some(), "there is no priority 100");
}

#[test]
fn two_cpus_are_one_for_the_vcpu_and_one_for_the_stimulus() {
    let alone = |cpu: Cpu| vec![cpu];
    let cores = pick(&cpus([2, 5]), alone, 1).unwrap();
    assert_eq!(cores, Cores { vcpus: cpus([2]), stimulus: Cpu(5), shared: false, siblings: false });
    let cores = pick(&cpus([2, 5]), alone, 2).unwrap();
    assert_eq!(cores, Cores { vcpus: cpus([2, 5]), stimulus: Cpu(5), shared: true, siblings: false });
    for (allowed, vcpus) in [(0..1, 1), (0..1, 0), (0..2, 3)] {
        let error = pick(&cpus(allowed), alone, vcpus).unwrap_err();
        assert!(matches!(error, CoresError::TooFew { .. }), "{error}");
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

#[test]
fn hyperthreads_of_one_core_come_last() {
    let pairs = |cpu: Cpu| cpus([cpu.0 & !1, cpu.0 | 1]);
    let cores = pick(&cpus(0..4), pairs, 1).unwrap();
    assert_eq!(cores, Cores { vcpus: cpus([0]), stimulus: Cpu(2), shared: false, siblings: false });
    let cores = pick(&cpus(0..4), pairs, 2).unwrap();
    assert_eq!(cores, Cores { vcpus: cpus([0, 2]), stimulus: Cpu(1), shared: false, siblings: true });
}

/// The clock by number is the one that the C library makes of a pthread.
#[test]
#[allow(unsafe_code)]
fn the_clock_of_a_thread_is_that_of_its_pthread() {
    let mut id: libc::clockid_t = 0;
    // SAFETY: the calling thread exists, and `id` outlives the call.
    assert_eq!(unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut id) }, 0);
    let (a, b, c) = (clock(id).unwrap(), Thread::current().cpu_time().unwrap(), own_cpu_time());
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
    let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
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
    fn any_topology_gives_different_cpus_or_says_too_few(
        allowed in prop::collection::btree_set(0u32..64, 0..10),
        threads in 1u32..5,
        vcpus in 0usize..6,
    ) {
        let allowed = cpus(allowed);
        let siblings = |cpu: Cpu| cpus(cpu.0 / threads * threads..(cpu.0 / threads + 1) * threads);
        match pick(&allowed, siblings, vcpus) {
            Err(_) => prop_assert!(allowed.len() < vcpus.max(2)),
            Ok(cores) => {
                let mut used = cores.vcpus.clone();
                used.extend((!cores.shared).then_some(cores.stimulus));
                prop_assert_eq!(cores.vcpus.len(), vcpus);
                prop_assert!(used.iter().all(|cpu| allowed.contains(cpu)));
                let pairs = || used.iter().enumerate().flat_map(|(i, a)| used[..i].iter().map(move |b| (*a, *b)));
                prop_assert!(pairs().all(|(a, b)| a != b));
                prop_assert_eq!(pairs().any(|(a, b)| a.0 / threads == b.0 / threads), cores.siblings);
                prop_assert_eq!(cores.shared, allowed.len() == vcpus);
            }
        }
    }

    #[test]
    fn no_status_makes_the_parser_panic(status in "\\PC*") {
        let _ = parse_switches(&status);
    }
}
