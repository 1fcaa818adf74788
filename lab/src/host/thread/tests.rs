use super::*;
use proptest::prelude::*;

fn cpus(numbers: impl IntoIterator<Item = u32>) -> Vec<Cpu> {
    numbers.into_iter().map(Cpu).collect()
}

#[test]
fn priority_is_held_or_its_refusal_explained_and_given_back() {
    let before = scheduler().unwrap();
    let realtime = Realtime::ask(10);
    match realtime.refused() {
        None => {
            let (policy, priority) = scheduler().unwrap();
            assert_eq!(policy & !libc::SCHED_RESET_ON_FORK, libc::SCHED_FIFO);
            assert_eq!(priority, 10);
            let child = std::thread::spawn(|| scheduler().unwrap().0).join().unwrap();
            assert_eq!(child, libc::SCHED_OTHER);
        }
        Some(refused) => assert!(refused.to_string().contains("ulimit -r 10"), "{refused}"),
    }
    drop(realtime);
    let after = scheduler().unwrap();
    assert_eq!(after, before);
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
}
