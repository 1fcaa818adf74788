//! Each finding on a fake machine that has it, and on the same machine without it.

use super::*;
use crate::fake;
use crate::kvm_stats::SourceError;
use dwell_machine::{Absent, Hypervisor, KvmDevice, Sysroot, Vcpu};

/// A machine that begins as a KVM host and haltpoll guest where nothing is to be found.
struct Fake(fake::Fake);

const KVM: &str = "/sys/module/kvm/parameters/";
const HALTPOLL: &str = "/sys/module/haltpoll/parameters/";
const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle/";

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

    fn vm(&self, pid: u32, arguments: &[&str]) {
        self.0.machine.vm(pid, arguments);
    }

    fn kvm(&self, features: u32, hints: u32) {
        self.0.machine.set_hypervisor(Some(Hypervisor::kvm(features, hints)));
    }

    fn report(&self) -> Report {
        Report::examine(&self.0)
    }

    fn findings(&self) -> Vec<Finding> {
        self.report().findings
    }

    #[track_caller]
    fn finds(&self, expected: &Finding) -> &Fake {
        let found = self.findings();
        assert!(found.contains(expected), "{expected:?} is not in {found:?}");
        self
    }
}

#[test]
fn nothing_is_found_on_a_quiet_machine() {
    for release in ["5.4.286", "6.1.192", "6.9.3", "6.18.44", "7.3.4"] {
        assert_eq!(Fake::of(release).findings(), [], "{release}");
    }
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let report = Fake::empty().report();
    assert_eq!(report.findings, []);
    assert!(
        report.facts.host.kvm.is_none()
            && report.facts.guest.cpuidle.driver.is_none()
            && report.facts.vmms.is_empty()
    );
}

#[test]
fn host_values_that_do_not_mean_what_they_seem_to() {
    let with = |changes: &[(&str, i64)]| {
        let fake = Fake::of("6.18.44");
        for (name, value) in changes {
            fake.file(&format!("{KVM}{name}"), &value.to_string());
        }
        fake.findings()
    };
    assert_eq!(
        with(&[("halt_poll_ns_grow_start", 2_400_000)]),
        [Finding::HostGrowStartAboveMax { grow_start: 2_400_000, max: 200_000, drops_to_zero: true }]
    );
    let first = Fake::of("5.4.0");
    first.file(&format!("{KVM}halt_poll_ns_grow_start"), "300000");
    first.finds(&Finding::HostGrowStartAboveMax { grow_start: 300_000, max: 200_000, drops_to_zero: false });
    assert_eq!(with(&[("halt_poll_ns_grow_start", 200_000)]), []);
    assert_eq!(with(&[("halt_poll_ns", 0)]), [Finding::HostPollingOff { void: vec![] }]);
    assert_eq!(
        with(&[("halt_poll_ns", 0), ("halt_poll_ns_grow", 4)]),
        [Finding::HostPollingOff { void: vec!["halt_poll_ns_grow"] }]
    );
    assert_eq!(with(&[("halt_poll_ns_grow", 0)]), [Finding::HostNeverGrows]);
    assert_eq!(with(&[("halt_poll_ns_grow_start", 0)]), [Finding::HostWedgedAtZero]);
    assert_eq!(with(&[("halt_poll_ns_grow", 1)]), [Finding::HostGrowOne { grow_start: 10_000 }]);
    assert_eq!(with(&[("halt_poll_ns_shrink", 0)]), [Finding::HostShrinkZero { default: Some(2) }]);
    assert_eq!(with(&[("halt_poll_ns_shrink", 1)]), [Finding::HostShrinkOne]);
}

#[test]
fn copied_maximum_from_5_8_to_6_0_only() {
    let copied = Finding::HostMaxCopied { vms: 1, halt_poll_ns: 200_000 };
    for (release, expected) in
        [("5.7.19", false), ("5.8.0", true), ("5.15.39", true), ("6.0.1", true), ("6.1.1", false)]
    {
        assert_eq!(Fake::of(release).findings().contains(&copied), expected, "{release}");
    }
    let idle = Fake::of("5.15.39");
    idle.without("/proc/100");
    assert_eq!(idle.report().worst(), Some(Severity::Note));
    assert_eq!(Fake::of("5.15.39").report().worst(), Some(Severity::Warning));
}

#[test]
fn haltpoll_without_a_driver_is_void_and_the_cause_is_named() {
    let driverless = |fake: Fake| {
        fake.file(&format!("{CPUIDLE}current_driver"), "none")
            .file(&format!("{CPUIDLE}current_governor"), "menu");
        fake
    };
    let fake = driverless(Fake::of("6.18.44"));
    fake.finds(&Finding::HaltpollVoid { cause: NoDriver::NotLoaded, changed: vec![] });
    fake.kvm(1 << 12, 0);
    let cause = NoDriver::NoRealtimeHint { can_be_forced: true };
    fake.finds(&Finding::HaltpollVoid { cause, changed: vec![] });
    assert_eq!(fake.report().worst(), Some(Severity::Note));
    fake.file(&format!("{HALTPOLL}guest_halt_poll_ns"), "300000");
    fake.finds(&Finding::HaltpollVoid { cause, changed: vec!["guest_halt_poll_ns"] });
    assert_eq!(fake.report().worst(), Some(Severity::Warning));
    fake.file("/proc/cmdline", "idle=halt");
    fake.finds(&Finding::HaltpollVoid { cause: NoDriver::IdleOverride, changed: vec!["guest_halt_poll_ns"] });
    let elsewhere = driverless(Fake::of("6.18.44"));
    elsewhere.0.machine.set_hypervisor(None);
    elsewhere.finds(&Finding::HaltpollVoid { cause: NoDriver::NotAKvmGuest, changed: vec![] });
    let other = Fake::of("6.18.44");
    other
        .file(&format!("{CPUIDLE}current_driver"), "intel_idle")
        .file(&format!("{CPUIDLE}current_governor"), "menu");
    other.finds(&Finding::HaltpollVoid { cause: NoDriver::OtherDriver, changed: vec![] });
    let old = driverless(Fake::of("5.4.286"));
    old.without("/sys/module/cpuidle_haltpoll");
    old.kvm(1 << 12, 0);
    let cause = NoDriver::NoRealtimeHint { can_be_forced: false };
    old.finds(&Finding::HaltpollVoid { cause, changed: vec![] });
}

#[test]
fn driver_under_another_governor() {
    let fake = Fake::of("6.18.44");
    fake.file(&format!("{CPUIDLE}current_governor"), "menu");
    assert_eq!(fake.findings(), [Finding::OtherGovernor { governor: "menu".into() }]);
}

#[test]
fn both_layers_poll_without_poll_control() {
    let fake = Fake::of("6.18.44");
    fake.kvm(0, 1);
    assert_eq!(fake.findings(), [Finding::BothLayersPoll]);
}

#[test]
fn guest_values_that_do_not_mean_what_they_seem_to() {
    let with = |release: &str, changes: &[(&str, &str)]| {
        let fake = Fake::of(release);
        for (name, value) in changes {
            fake.file(&format!("{HALTPOLL}guest_halt_poll_{name}"), value);
        }
        fake.findings()
    };
    assert_eq!(with("6.18.44", &[("allow_shrink", "N")]), [Finding::AllowShrinkOff]);
    assert_eq!(Finding::AllowShrinkOff.severity(), Severity::Danger);
    assert_eq!(with("6.18.44", &[("ns", "0")]), [Finding::GuestPollingOff]);
    assert_eq!(with("6.18.44", &[("grow_start", "0")]), [Finding::GuestWedgedAtZero]);
    for (release, drops_to_zero) in [("6.1.192", false), ("6.8.1", false), ("6.9.1", true)] {
        assert_eq!(
            with(release, &[("grow_start", "200001")]),
            [Finding::GuestGrowStartAboveMax { grow_start: 200_001, max: 200_000, drops_to_zero }]
        );
    }
    assert_eq!(with("6.18.44", &[("grow_start", "200000")]), []);
    assert_eq!(with("6.18.44", &[("grow", "0")]), [Finding::GuestDoesNotGrow { grow: 0 }]);
    assert_eq!(with("6.18.44", &[("grow", "1")]), [Finding::GuestDoesNotGrow { grow: 1 }]);
    assert_eq!(with("6.18.44", &[("shrink", "0")]), [Finding::GuestShrinkZero]);
    assert_eq!(with("6.18.44", &[("shrink", "1")]), [Finding::GuestShrinkOne]);
    assert_eq!(with("6.18.44", &[("shrink", "1"), ("allow_shrink", "N")]), [Finding::AllowShrinkOff]);
}

#[test]
fn latency_request_of_zero() {
    let fake = Fake::of("6.18.44");
    fake.file("/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", "n/a");
    assert_eq!(fake.findings(), [Finding::LatencyQosZero { cpus: vec![0], haltpoll: true }]);
    fake.file("/dev/cpu_dma_latency", "\0\0\0\0");
    assert_eq!(fake.findings(), [Finding::LatencyQosZero { cpus: vec![], haltpoll: true }]);
    fake.file("/dev/cpu_dma_latency", "\0\u{5}\0\0");
    fake.file("/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", "0");
    assert_eq!(fake.findings(), []);
}

#[test]
fn idle_on_the_command_line() {
    let fake = Fake::of("6.18.44");
    fake.file("/proc/cmdline", "quiet idle=poll");
    assert_eq!(fake.findings(), [Finding::IdleOverride { value: "poll".into() }]);
    assert_eq!(fake.report().worst(), Some(Severity::Danger));
    fake.file("/proc/cmdline", "quiet -- idle=poll");
    assert_eq!(fake.findings(), []);
}

#[test]
fn posted_timers_and_what_they_need() {
    let fake = Fake::of("6.18.44");
    fake.file(&format!("{KVM}pi_inject_timer"), "1").file("/sys/devices/system/cpu/nohz_full", "1-3");
    assert_eq!(fake.findings(), [Finding::PiInjectNeedsExitsDisabled]);
    fake.file("/sys/module/kvm_intel/parameters/enable_apicv", "N");
    assert_eq!(fake.findings(), [Finding::PiInjectWithoutApicv { switched_off: true }]);
    fake.without("/sys/module/kvm_intel");
    assert_eq!(fake.findings(), [Finding::PiInjectWithoutApicv { switched_off: false }]);
    let before = Fake::of("5.17.6");
    before.file(&format!("{KVM}pi_inject_timer"), "1").file("/sys/devices/system/cpu/nohz_full", "1-3");
    let copied = Finding::HostMaxCopied { vms: 1, halt_poll_ns: 200_000 };
    assert_eq!(before.findings(), std::slice::from_ref(&copied));
    before.file("/sys/devices/system/cpu/nohz_full", "(null)");
    assert_eq!(before.findings(), [copied, Finding::PiInjectWithoutHousekeeping]);
}

#[test]
fn timers_and_the_cpus_they_fire_on() {
    let fake = Fake::of("6.18.44");
    fake.file("/proc/sys/kernel/timer_migration", "0");
    assert_eq!(fake.findings(), []);
    fake.file("/sys/devices/system/cpu/nohz_full", "1-3");
    assert_eq!(fake.findings(), [Finding::TimersStay { nohz_full: "1-3".into() }]);
    let isolated = Fake::of("6.18.44");
    isolated.file("/sys/devices/system/cpu/isolated", "2-3");
    assert_eq!(isolated.findings(), [Finding::IsolatedWithTimers { isolated: "2-3".into() }]);
    isolated.file("/sys/devices/system/cpu/nohz_full", "2-3");
    assert_eq!(isolated.findings(), []);
}

#[test]
fn timer_parameters() {
    let fake = Fake::of("6.1.192");
    fake.file("/sys/module/kvm_intel/parameters/preemption_timer", "N");
    assert_eq!(fake.findings(), [Finding::NoPreemptionTimer]);
    let fixed = Fake::of("6.1.192");
    fixed.file(&format!("{KVM}lapic_timer_advance_ns"), "-1");
    assert_eq!(fixed.findings(), []);
    fixed.file(&format!("{KVM}lapic_timer_advance_ns"), "4000");
    assert_eq!(fixed.findings(), [Finding::FixedAdvance { advance_ns: 4000 }]);
    let off = Fake::of("6.18.44");
    off.file(&format!("{KVM}lapic_timer_advance"), "Y");
    assert_eq!(off.findings(), []);
    off.file(&format!("{KVM}lapic_timer_advance"), "N");
    assert_eq!(off.findings(), [Finding::FixedAdvance { advance_ns: 0 }]);
}

#[test]
fn iothreads_that_never_poll_and_ambiguous_zeros() {
    let with = |object: &str, machine: &str| {
        let fake = Fake::of("6.18.44");
        fake.vm(100, &["qemu-system-x86_64", "-M", machine, "-object", object]);
        fake.findings()
    };
    let id = || "io0".to_owned();
    assert_eq!(
        with("iothread,id=io0,poll-max-ns=0,poll-grow=4", "q35"),
        [Finding::IothreadPollingOff { pid: 100, id: id(), void: vec!["poll-grow"] }]
    );
    assert_eq!(
        with("iothread,id=io0,poll-shrink=0", "pc-q35-7.2"),
        [Finding::IothreadShrinkZero { pid: 100, id: id() }]
    );
    assert_eq!(with("iothread,id=io0,poll-shrink=0", "pc-q35-11.1"), []);
    assert_eq!(with("iothread,id=io0,poll-shrink=2", "pc-q35-7.2"), []);
}

#[test]
fn kernels_and_values_that_dwell_does_not_know() {
    let fake = Fake::of("4.19.0");
    assert!(fake.findings().iter().any(|f| matches!(f, Finding::KernelUnknown { .. })));
    let fake = Fake::of("6.18.44");
    fake.file(&format!("{KVM}halt_poll_ns_grow"), "(null)");
    assert!(
        !fake.report().facts.timer.parameters[0].changed(),
        "what KVM makes of -1 when it loads is its default"
    );
    fake.finds(&Finding::ParameterUnreadable { path: "/sys/module/kvm/parameters/halt_poll_ns_grow".into() });
}

#[test]
fn rights_that_are_missing() {
    let fake = Fake::of("6.18.44");
    fake.0.machine.set_kvm(KvmDevice::Closed { why: Absent::Denied });
    assert_eq!(fake.findings(), [Finding::KvmDenied]);
    // A process whose descriptors are hidden looks like one without the directory.
    let fake = Fake::of("6.18.44");
    fake.without("/proc/100/fd");
    fake.finds(&Finding::ProcessesUnseen { processes: 1 });
}

fn obstacles(report: &Report, name: &str) -> (Verdict, Vec<Obstacle>) {
    let recorder = report.recorders.iter().find(|r| r.name == name).unwrap();
    (recorder.verdict, recorder.obstacles.clone())
}

#[test]
fn everything_can_be_recorded_by_root_beside_a_vm() {
    let report = Fake::of("6.18.44").report();
    for recorder in &report.recorders {
        assert_eq!((recorder.verdict, &recorder.obstacles), (Verdict::Yes, &vec![]), "{}", recorder.name);
    }
    assert_eq!(report.facts.host.vms[0].name.as_deref(), Some("web"));
    assert_eq!(report.facts.host.vms[0].vcpus, [Vcpu { id: 0, tid: Some(101) }]);
    assert_eq!(report.facts.vmms[0].io_threads[0].tid, Some(102));
}

#[test]
fn each_missing_facility_has_its_own_remedy() {
    let mut remedies = std::collections::BTreeSet::new();
    let mut blocks = |fake: &Fake, name: &str, verdict: Verdict, expected: Obstacle| {
        let (found, obstacles) = obstacles(&fake.report(), name);
        assert_eq!((found, obstacles.contains(&expected)), (verdict, true), "{name}: {obstacles:?}");
        assert!(!expected.remedy().contains('\n'));
        remedies.insert(format!("{} -> {}", expected.what(), expected.remedy()));
    };
    let fake = Fake::of("6.18.44");
    fake.without("/proc/100");
    blocks(&fake, "record host", Verdict::Partly, Obstacle::NoVm);

    let fake = Fake::empty();
    fake.0.machine.set_kvm(KvmDevice::Closed { why: Absent::Missing });
    blocks(&fake, "record host", Verdict::No, Obstacle::NoKvm);
    blocks(&fake, "record guest", Verdict::No, Obstacle::NoTracefs);

    let user = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n";
    let mut fake = Fake::of("6.18.44");
    fake.file("/proc/self/status", user).file("/proc/sys/kernel/perf_event_paranoid", "3");
    fake.0.perf_errno = libc::EACCES;
    blocks(&fake, "record thread", Verdict::No, Obstacle::PerfDenied { paranoid: Some(3) });
    fake.file("/proc/self/mounts", "").file("/proc/filesystems", "nodev\ttracefs\nnodev\tdebugfs\n");
    blocks(&fake, "record host", Verdict::No, Obstacle::TracefsNotMounted);
    fake.0.statistics = Some(Err(SourceError::NotMounted));
    blocks(&fake, "bound", Verdict::No, Obstacle::DebugfsNotMounted);
    fake.0.perf_errno = libc::ENOSYS;
    blocks(&fake, "record guest", Verdict::No, Obstacle::NoPerf);

    let mut fake = Fake::of("6.18.44");
    fake.without("/sys/kernel/tracing/events/kvm/kvm_vcpu_wakeup");
    blocks(&fake, "record host", Verdict::No, Obstacle::NoTracepoint { name: "kvm:kvm_vcpu_wakeup" });
    fake.without("/sys/kernel/tracing/events/power/guest_halt_poll_ns");
    let what = "windows of haltpoll cannot be checked";
    blocks(
        &fake,
        "record guest",
        Verdict::Partly,
        Obstacle::LessWithout { name: "power:guest_halt_poll_ns", what },
    );
    fake.without("/sys/kernel/tracing/events/raw_syscalls");
    assert_eq!(obstacles(&fake.report(), "record thread").0, Verdict::Yes);
    fake.without("/sys/kernel/tracing/events/syscalls");
    blocks(&fake, "record thread", Verdict::No, Obstacle::NoTracepoint { name: recorder::NO_SYSCALLS });
    fake.without("/sys/kernel/tracing/events/sched/sched_waking");
    blocks(&fake, "record guest", Verdict::No, Obstacle::NoTracepoint { name: "sched:sched_waking" });
    fake.0.statistics = Some(Err(SourceError::NoKvm));
    blocks(&fake, "bound", Verdict::No, Obstacle::NoKvmStatistics);
    fake.0.statistics = Some(Err(SourceError::Denied));
    blocks(&fake, "bound", Verdict::No, Obstacle::DebugfsDenied);
    fake.0.statistics = Some(Err(SourceError::LockedDown));
    blocks(&fake, "bound", Verdict::No, Obstacle::DebugfsLockedDown { stats_open: false });
    assert_eq!(remedies.len(), 14);
}

#[test]
fn root_mounts_for_itself_what_is_not_mounted() {
    let fake = Fake::of("6.18.44");
    fake.file("/proc/self/mounts", "").file("/proc/filesystems", "nodev\ttracefs\nnodev\tdebugfs\n");
    assert!(fake.report().recorders.iter().all(|r| r.verdict == Verdict::Yes));
}

#[test]
fn every_finding_in_json_has_code_values_and_words() {
    let fake = Fake::of("6.18.44");
    fake.file(&format!("{KVM}halt_poll_ns_grow_start"), "300000");
    let json = serde_json::to_value(fake.report()).unwrap();
    let finding = &json["findings"][0];
    assert_eq!(finding["code"], "host-grow-start-above-max");
    assert_eq!(finding["data"]["max"], 200_000);
    assert_eq!(finding["severity"], "note");
    for words in ["what", "why", "remedy"] {
        assert!(finding[words].as_str().is_some_and(|text| text.len() > 10), "{words}");
    }
    assert_eq!(json["host"]["device"]["state"], "open");
}

#[test]
fn this_machine_can_be_examined() {
    let report = Report::examine(&Sysroot::of_this_machine());
    assert!(report.facts.kernel.release.is_some());
    assert_eq!(report.recorders.len(), 4);
    assert!(serde_json::to_string(&report).is_ok());
}
