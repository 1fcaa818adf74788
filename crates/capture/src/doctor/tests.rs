//! What can be recorded on fake machines, and what hinders it.

use super::*;
use crate::kvm_stats::SourceError;
use crate::tests::fake;
use dwell_machine::{Absent, KvmDevice, Sysroot};

/// A machine on which everything can be recorded.
struct Fake(fake::Fake);

impl Fake {
    fn of(release: &str) -> Fake {
        let fake = Fake(fake::Fake::quiet(release));
        for tracepoint in facilities::TRACEPOINTS {
            fake.file(&format!("/sys/kernel/tracing/events/{}/id", tracepoint.replace(':', "/")), "1");
        }
        fake
    }

    fn empty() -> Fake {
        Fake(fake::Fake { perf_errno: 0, statistics: Some(Ok(())), ..fake::Fake::new() })
    }

    fn file(&self, path: &str, text: &str) -> &Fake {
        self.0.machine.set(path, text);
        self
    }

    fn without(&self, path: &str) -> &Fake {
        self.0.machine.remove_all(path);
        self
    }

    fn report(&self) -> Recordable {
        Recordable::examine(&self.0, &Facts::read(&self.0))
    }
}

fn obstacles(report: &Recordable, name: &str) -> (Support, Vec<Obstacle>) {
    let recorder = report.recorders.iter().find(|r| r.name == name).unwrap();
    (recorder.verdict, recorder.obstacles.clone())
}

#[test]
fn everything_can_be_recorded_by_root_beside_a_vm() {
    let report = Fake::of("6.18.44").report();
    for recorder in &report.recorders {
        assert_eq!((recorder.verdict, &recorder.obstacles), (Support::Yes, &vec![]), "{}", recorder.name);
    }
}

#[test]
fn each_missing_facility_has_its_own_remedy() {
    let mut remedies = std::collections::BTreeSet::new();
    let mut blocks = |fake: &Fake, name: &str, verdict: Support, expected: &str| {
        let (found, obstacles) = obstacles(&fake.report(), name);
        let obstacle = obstacles.iter().find(|obstacle| obstacle.what == expected);
        let Some(Obstacle { what, remedy, fatal }) = obstacle else { panic!("{name}: {obstacles:?}") };
        assert_eq!((found, *fatal), (verdict, verdict == Support::No), "{name}: {obstacles:?}");
        assert!(!remedy.contains('\n'));
        remedies.insert(format!("{what} -> {remedy}"));
    };
    let fake = Fake::of("6.18.44");
    fake.without("/proc/100");
    blocks(&fake, "record host", Support::Partly, "no running VM is visible");

    let fake = Fake::empty();
    fake.0.machine.set_kvm(KvmDevice::Closed { why: Absent::Missing });
    blocks(&fake, "record host", Support::No, "KVM is not loaded");
    blocks(&fake, "record guest", Support::No, "this kernel has no tracefs");

    let user = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n";
    let mut fake = Fake::of("6.18.44");
    fake.file("/proc/self/status", user).file("/proc/sys/kernel/perf_event_paranoid", "3");
    fake.0.perf_errno = libc::EACCES;
    blocks(
        &fake,
        "record thread",
        Support::No,
        "perf may not trace all tasks (kernel.perf_event_paranoid = 3)",
    );
    fake.file("/proc/self/mounts", "").file("/proc/filesystems", "nodev\ttracefs\nnodev\tdebugfs\n");
    blocks(&fake, "record host", Support::No, "tracefs is not mounted");
    fake.0.statistics = Some(Err(SourceError::NotMounted));
    blocks(&fake, "bound", Support::No, "debugfs is not mounted");
    fake.0.perf_errno = libc::ENOSYS;
    blocks(&fake, "record guest", Support::No, "no perf_event_open");

    let mut fake = Fake::of("6.18.44");
    fake.without("/sys/kernel/tracing/events/kvm/kvm_vcpu_wakeup");
    blocks(&fake, "record host", Support::No, "no tracepoint kvm:kvm_vcpu_wakeup");
    fake.without("/sys/kernel/tracing/events/power/guest_halt_poll_ns");
    let what = "no tracepoint power:guest_halt_poll_ns: windows of haltpoll cannot be checked";
    blocks(&fake, "record guest", Support::Partly, what);
    fake.without("/sys/kernel/tracing/events/raw_syscalls");
    assert_eq!(obstacles(&fake.report(), "record thread").0, Support::Yes);
    fake.without("/sys/kernel/tracing/events/syscalls");
    blocks(
        &fake,
        "record thread",
        Support::No,
        "no tracepoint syscalls:sys_enter_ppoll or raw_syscalls:sys_enter",
    );
    fake.without("/sys/kernel/tracing/events/sched/sched_waking");
    blocks(&fake, "record guest", Support::No, "no tracepoint sched:sched_waking");
    fake.0.statistics = Some(Err(SourceError::NoKvm));
    blocks(&fake, "bound", Support::No, "KVM shows no statistics in debugfs");
    fake.0.statistics = Some(Err(SourceError::Denied));
    blocks(&fake, "bound", Support::No, "debugfs is closed to this user");
    fake.0.statistics = Some(Err(SourceError::LockedDown));
    blocks(
        &fake,
        "bound",
        Support::No,
        "the kernel is locked down: debugfs hides KVM's counters, from root too",
    );
    assert_eq!(remedies.len(), 14);
}

/// Each reason why BPF programs cannot be loaded is another one.
#[test]
fn what_hinders_bpf_programs_is_named() {
    let bpf = |fake: &Fake| fake.report().facilities.bpf;
    let why = |fake: &Fake| match bpf(fake) {
        Bpf::Refused { why } => why,
        other => panic!("{other:?}"),
    };
    let mut fake = Fake::of("6.18.44");
    assert!(why(&fake).contains("CONFIG_DEBUG_INFO_BTF"), "{}", why(&fake));
    fake.0.btf = Some(b"no BTF".to_vec());
    assert!(why(&fake).contains("cannot understand"), "{}", why(&fake));
    let Ok(btf) = std::fs::read("/sys/kernel/btf/vmlinux") else {
        return dwell_testing::skip!(
            "tracing",
            "what_hinders_bpf_programs_is_named",
            "this kernel has no BTF"
        );
    };
    fake.0.btf = Some(btf);
    fake.file("/proc/self/status", "CapEff:\t0000004000000000\n");
    assert!(why(&fake).contains("lacks CAP_BPF; run as root or with it"), "{}", why(&fake));
    let elsewhere = Sysroot::at("/nowhere");
    assert_eq!(Facilities::examine(&elsewhere).bpf, Bpf::NotAsked);
}

#[test]
fn root_mounts_for_itself_what_is_not_mounted() {
    let fake = Fake::of("6.18.44");
    fake.file("/proc/self/mounts", "").file("/proc/filesystems", "nodev\ttracefs\nnodev\tdebugfs\n");
    assert!(fake.report().recorders.iter().all(|r| r.verdict == Support::Yes));
}

#[test]
fn this_machine_can_be_examined() {
    let machine = Sysroot::of_this_machine();
    let report = Recordable::examine(&machine, &Facts::read(&machine));
    assert_eq!(report.recorders.len(), 4);
    assert!(serde_json::to_string(&report).is_ok());
}
