//! Each finding on a fake machine that has it, and on the same machine without it.

use super::*;
use dwell_machine::Hypervisor;
use dwell_policy::guest::Revision as GuestRevision;
use dwell_policy::timer::PostingPredicate;
use dwell_testing::machine::Fake;
use proptest::prelude::*;
use std::collections::BTreeSet;

const KVM: &str = "/sys/module/kvm/parameters";
const HALTPOLL: &str = "/sys/module/haltpoll/parameters";
const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";

fn findings(machine: &Fake) -> Vec<Finding> {
    of(&Facts::read(machine))
}

fn codes(machine: &Fake) -> Vec<&'static str> {
    findings(machine).iter().map(|finding| finding.code).collect()
}

#[track_caller]
fn text(machine: &Fake, code: &str) -> String {
    let all = findings(machine);
    let found = all.iter().find(|finding| finding.code == code);
    let found = found.unwrap_or_else(|| panic!("{code} is not among {all:#?}"));
    format!("{} | {} | {}", found.what, found.why, found.remedy)
}

fn worst(machine: &Fake) -> Option<Severity> {
    findings(machine).first().map(|finding| finding.severity)
}

fn with(release: &str, folder: &str, changes: &[(&str, &str)]) -> Vec<&'static str> {
    let machine = Fake::quiet(release);
    changes.iter().for_each(|(name, value)| machine.set(&format!("{folder}/{name}"), value));
    codes(&machine)
}

#[test]
fn nothing_is_found_on_a_quiet_machine_and_of_none_that_it_does_not_show() {
    for release in ["5.4.286", "6.1.192", "6.9.3", "6.18.44", "7.3.4"] {
        assert_eq!(codes(&Fake::quiet(release)), [""; 0], "{release}");
    }
    assert_eq!(codes(&Fake::new()), ["kernel-not-shown"]);
}

#[test]
fn every_row_has_a_code_of_its_own_and_no_name_of_a_figure_stays_in_its_texts() {
    let codes: std::collections::BTreeSet<_> = TABLE.iter().map(|row| row.code).collect();
    assert_eq!(codes.len(), TABLE.len());
    let machine = Fake::quiet("5.15.39");
    machine.set(&format!("{KVM}/halt_poll_ns_grow_start"), "0");
    machine.set(&format!("{HALTPOLL}/guest_halt_poll_shrink"), "1");
    machine.set("/proc/cmdline", "idle=a\u{1b}[2Jb");
    for finding in findings(&machine) {
        let text = format!("{}{}{}", finding.what, finding.why, finding.remedy);
        assert!(!text.contains(['{', '}', '\u{1b}', '\n']), "{text}");
    }
}

/// What is claimed of a layer's parameters: the finding, with each parameter that it is about.
fn claims(machine: &Fake, owner: Owner) -> BTreeSet<(&'static str, String)> {
    let (prefix, parameter) = match owner {
        Owner::Layer(Layer::Host) => ("host-", "halt_poll_ns"),
        Owner::Layer(Layer::Guest) => ("guest-", "guest_halt_poll"),
        _ => ("pi-inject-", "pi_inject"),
    };
    let of = |finding: Finding| {
        let knobs: Vec<String> = match finding.data.get("knobs") {
            Some(Value::Array(names)) => {
                names.iter().map(shown).filter(|name| name.starts_with(parameter)).collect()
            }
            _ if finding.code.starts_with(prefix) && !finding.code.ends_with("not-known") => {
                vec![String::new()]
            }
            _ => vec![],
        };
        knobs.into_iter().map(move |knob| (finding.code, knob))
    };
    findings(machine).into_iter().flat_map(of).collect()
}

proptest! {
    /// The oracle: each rule that the kernel may have, as a kernel that has it for certain.
    #[test]
    fn nothing_is_claimed_that_depends_on_a_rule_that_is_not_known(
        release in prop::sample::select(vec![
            "5.14.0-30.el9", "5.14.0-284.30.1.el9_2", "5.14.0-503.11.1.el9_5", "5.14.21-150500.55.19-default",
            "5.10.0-136.12.0.86.oe2203sp1", "5.4.17-2136.uek", "6.4.0-150600.21-default", "6.12.0-211.el10",
        ]),
        values in prop::collection::vec(prop::sample::select(vec![0i64, 1, 2, 3, 4_000, 20_000, 50_000]), 9),
        posting in any::<bool>(),
    ) {
        let version = Version::parse(release).unwrap();
        let claimed = |release: &str, owner: Owner| {
            let machine = Fake::quiet(release);
            let layers = [(Layer::Host, KVM), (Layer::Guest, HALTPOLL)];
            let params = layers.into_iter().flat_map(|(layer, folder)| {
                Setting::defaults(layer, version).iter().map(move |(param, _)| (param, folder)).collect::<Vec<_>>()
            });
            for ((param, folder), value) in params.zip(&values) {
                machine.set(&format!("{folder}/{}", param.name), &parameter::written(param, (*value).min(param.max)));
            }
            machine.set(&format!("{KVM}/pi_inject_timer"), if posting { "1" } else { "0" });
            machine.set("/sys/devices/system/cpu/nohz_full", "1-3");
            claims(&machine, owner)
        };
        let host: Vec<&str> = HostRevision::rules(version).unwrap().iter().map(HostRevision::since_release).collect();
        let guest: Vec<&str> = GuestRevision::rules(version).unwrap().iter().map(GuestRevision::since_release).collect();
        let posting = |revision: TimerRevision| match revision.posting() {
            PostingPredicate::Merged2022 => "5.18",
            _ => "5.10.0",
        };
        let timer: Vec<&str> = TimerRevision::rules(version).unwrap().iter().map(posting).collect();
        for (owner, possible) in
            [(Owner::Layer(Layer::Host), host), (Owner::Layer(Layer::Guest), guest), (Owner::Timer, timer)]
        {
            for claim in claimed(release, owner) {
                for since in &possible {
                    prop_assert!(claimed(since, owner).contains(&claim), "{claim:?} is not so by the rule since {since}");
                }
            }
        }
    }
}

#[test]
fn host_values_that_do_not_mean_what_they_seem_to() {
    let with = |changes: &[(&str, &str)]| with("6.18.44", KVM, changes);
    assert_eq!(with(&[("halt_poll_ns_grow_start", "2400000")]), ["host-grow-start-above-max"]);
    assert_eq!(with(&[("halt_poll_ns_grow_start", "200000")]), [""; 0]);
    assert_eq!(with(&[("halt_poll_ns", "0")]), ["host-polling-off"]);
    assert_eq!(
        with(&[("halt_poll_ns", "0"), ("halt_poll_ns_grow", "4")]),
        ["parameter-no-effect", "host-polling-off"]
    );
    assert_eq!(with(&[("halt_poll_ns_grow", "0")]), ["host-never-polls"]);
    assert_eq!(with(&[("halt_poll_ns_grow_start", "0")]), ["host-never-polls"]);
    assert_eq!(with(&[("halt_poll_ns_grow", "1")]), ["host-grow-one"]);
    assert_eq!(with(&[("halt_poll_ns_shrink", "0")]), ["host-shrink-zero"]);
    assert_eq!(with(&[("halt_poll_ns_shrink", "1")]), ["host-shrink-one"]);
    let machine = Fake::quiet("6.18.44");
    machine.set(&format!("{KVM}/halt_poll_ns"), "0");
    machine.set(&format!("{KVM}/halt_poll_ns_shrink"), "4");
    let text = text(&machine, "parameter-no-effect");
    assert!(
        text.contains("halt_poll_ns_shrink: no effect | with halt_poll_ns = 0, no value changes"),
        "{text}"
    );
}

/// What the rows state is what the models decide: for each value of each parameter alone, "never polls" is
/// found exactly where the window stays 0, and "no effect" never for a value that a window depends on.
#[test]
fn findings_agree_with_the_models() {
    for (layer, folder, max) in
        [(Layer::Host, KVM, "halt_poll_ns"), (Layer::Guest, HALTPOLL, "guest_halt_poll_ns")]
    {
        let version = Version::new(6, 18);
        for (param, default) in Setting::defaults(layer, version).iter() {
            for value in
                [0, 1, 2, 3, 10_000, 300_000].into_iter().filter(|v| *v <= param.max && *v != default)
            {
                let found = with("6.18.44", folder, &[(param.name, &parameter::written(param, value))]);
                let mut setting = Setting::defaults(layer, version);
                setting.set(param.name, value).unwrap();
                let mut off = setting;
                off.set(max, 0).unwrap();
                let never = matches!(compare(&setting, &off), Sameness::Same { .. });
                let told =
                    found.iter().any(|code| code.ends_with("never-polls") || code.ends_with("polling-off"));
                assert_eq!(told, never, "{} = {value}: {found:?}", param.name);
                let no_effect = explain::no_effect(&setting, param).is_some();
                assert_eq!(found.contains(&"parameter-no-effect"), no_effect, "{} = {value}", param.name);
            }
        }
    }
}

#[test]
fn copied_maximum_from_5_8_to_6_0_only() {
    for (release, expected) in
        [("5.7.19", false), ("5.8.0", true), ("5.15.39", true), ("6.0.1", true), ("6.1.1", false)]
    {
        assert_eq!(codes(&Fake::quiet(release)).contains(&"host-max-may-differ"), expected, "{release}");
    }
    let idle = Fake::quiet("5.15.39");
    idle.remove_all("/proc/100");
    assert_eq!((codes(&idle), worst(&idle)), (vec!["host-max-copied"], Some(Severity::Note)));
}

#[test]
fn haltpoll_without_a_driver_has_no_effect_and_the_cause_is_named() {
    let driverless = |release| {
        let machine = Fake::quiet(release);
        machine.set(&format!("{CPUIDLE}/current_driver"), "none");
        machine.set(&format!("{CPUIDLE}/current_governor"), "menu");
        machine
    };
    let machine = driverless("6.18.44");
    assert_eq!(codes(&machine), ["haltpoll-not-loaded"]);
    machine.set_hypervisor(Some(Hypervisor::kvm(1 << 12, 0)));
    assert_eq!((codes(&machine), worst(&machine)), (vec!["haltpoll-no-realtime-hint"], Some(Severity::Note)));
    machine.set(&format!("{HALTPOLL}/guest_halt_poll_ns"), "300000");
    assert_eq!(codes(&machine), ["parameter-no-effect", "haltpoll-no-realtime-hint"]);
    assert!(
        text(&machine, "parameter-no-effect")
            .starts_with("guest_halt_poll_ns: no effect | no cpuidle driver")
    );
    machine.set("/proc/cmdline", "idle=halt");
    assert_eq!(codes(&machine), ["parameter-no-effect", "idle-override", "haltpoll-idle-override"]);
    let elsewhere = driverless("6.18.44");
    elsewhere.set_hypervisor(None);
    assert_eq!(codes(&elsewhere), ["haltpoll-not-a-kvm-guest"]);
    elsewhere.set(&format!("{CPUIDLE}/current_driver"), "intel_idle");
    assert_eq!(codes(&elsewhere), [""; 0]);
    let other = driverless("6.18.44");
    other.set(&format!("{CPUIDLE}/current_driver"), "intel_idle");
    assert_eq!(codes(&other), ["haltpoll-other-driver"]);
    let off = driverless("6.18.44");
    off.set("/proc/cmdline", "cpuidle.off=1");
    assert_eq!(codes(&off), ["haltpoll-cpuidle-off"]);
    // What is asked of a driver that is not loaded is in force once it is.
    let forced = driverless("6.18.44");
    forced.remove_all("/sys/module/cpuidle_haltpoll");
    forced.set_hypervisor(Some(Hypervisor::kvm(1 << 12, 0)));
    assert_eq!(codes(&forced), ["haltpoll-no-realtime-hint"]);
    forced.set("/proc/cmdline", "cpuidle_haltpoll.force=on");
    assert_eq!(codes(&forced), ["haltpoll-not-loaded"]);
    forced.set("/proc/cmdline", "cpuidle_haltpoll.force=on cpuidle_haltpoll.force=0");
    assert_eq!(codes(&forced), ["haltpoll-no-realtime-hint"]);
    let old = driverless("5.4.286");
    old.remove_all("/sys/module/cpuidle_haltpoll");
    old.set_hypervisor(Some(Hypervisor::kvm(1 << 12, 0)));
    assert_eq!(codes(&old), ["haltpoll-no-realtime-hint-no-force"]);
}

#[test]
fn driver_dwell_idle_and_whether_it_polls() {
    let machine = Fake::quiet("6.18.44");
    machine.set(&format!("{CPUIDLE}/current_driver"), "dwell_idle\n");
    machine.set(&format!("{CPUIDLE}/current_governor"), "menu\n");
    let parameter = |name: &str, value: &str| {
        machine.set(&format!("/sys/module/dwell_idle/parameters/{name}"), value);
    };
    for (name, value) in [
        ("policy", "leader\n"),
        ("halt_cost_ns", "15000\n"),
        ("wake_latency_ns", "14000\n"),
        ("max_window_ns", "200000\n"),
        ("cpus", "0-3\n"),
        ("poll_control", "Y\n"),
    ] {
        parameter(name, value);
    }
    machine.set_hypervisor(Some(Hypervisor::kvm(1 << 12, 0)));
    assert_eq!(codes(&machine), ["dwell-idle"]);
    let told = text(&machine, "dwell-idle");
    assert!(told.contains("policy leader, halt cost 15000 ns") && told.contains("on CPUs 0-3"), "{told}");
    for (name, off, on) in
        [("policy", "never\n", "leader\n"), ("max_window_ns", "0\n", "1\n"), ("cpus", "\n", "1\n")]
    {
        parameter(name, off);
        assert_eq!(codes(&machine), ["dwell-idle-never-polls"], "{name}");
        parameter(name, on);
    }
    parameter("poll_control", "N\n");
    assert_eq!(codes(&machine), ["dwell-idle-both-layers-poll", "dwell-idle"]);
    parameter("poll_control", "Y\n");
    machine.set_hypervisor(Some(Hypervisor::kvm(0, 0)));
    assert_eq!(codes(&machine), ["dwell-idle-both-layers-poll", "dwell-idle"]);
}

#[test]
fn driver_under_another_governor() {
    let machine = Fake::quiet("6.18.44");
    machine.set(&format!("{CPUIDLE}/current_governor"), "menu");
    assert_eq!(codes(&machine), ["other-governor"]);
    machine.remove_all(&format!("{CPUIDLE}/current_governor"));
    machine.set(&format!("{CPUIDLE}/current_governor_ro"), "menu");
    assert_eq!(codes(&machine), ["other-governor-at-boot"]);
}

/// Debian 12's 6.1: the driver is there, the governor and its parameters are not.
#[test]
fn a_governor_that_this_kernel_does_not_have_is_not_proposed() {
    let machine = Fake::quiet("6.1.0-56-cloud-amd64");
    machine.remove_all("/sys/module/haltpoll");
    machine.set(&format!("{CPUIDLE}/available_governors"), "ladder menu");
    machine.set(&format!("{CPUIDLE}/current_governor"), "menu");
    assert_eq!(codes(&machine), ["no-haltpoll-governor"]);
    let text = text(&machine, "no-haltpoll-governor");
    assert!(text.contains("it has ladder, menu only") && !text.contains("echo haltpoll"), "{text}");
    machine.set("/proc/cmdline", "quiet cpuidle.governor=haltpoll");
    assert_eq!(codes(&machine), ["governor-not-there", "no-haltpoll-governor"]);
    machine.set("/proc/cmdline", "quiet cpuidle.governor=Menu");
    assert_eq!(codes(&machine), ["no-haltpoll-governor"]);
}

#[test]
fn both_layers_poll_without_poll_control() {
    let machine = Fake::quiet("6.18.44");
    machine.set_hypervisor(Some(Hypervisor::kvm(0, 1)));
    assert_eq!(codes(&machine), ["both-layers-poll"]);
}

#[test]
fn guest_values_that_do_not_mean_what_they_seem_to() {
    let with = |changes: &[(&str, &str)]| {
        let changes: Vec<(String, &str)> =
            changes.iter().map(|(name, value)| (format!("guest_halt_poll_{name}"), *value)).collect();
        let changes: Vec<(&str, &str)> =
            changes.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        with("6.18.44", HALTPOLL, &changes)
    };
    assert_eq!(with(&[("allow_shrink", "N")]), ["allow-shrink-off"]);
    assert_eq!(with(&[("ns", "0")]), ["guest-polling-off"]);
    assert_eq!(with(&[("grow_start", "0")]), ["guest-never-polls"]);
    assert_eq!(with(&[("grow_start", "200001")]), ["guest-grow-start-above-max"]);
    assert_eq!(with(&[("grow_start", "200000")]), [""; 0]);
    assert_eq!(with(&[("grow", "0")]), ["guest-does-not-grow"]);
    assert_eq!(with(&[("grow", "1")]), ["guest-does-not-grow"]);
    assert_eq!(with(&[("shrink", "0")]), ["guest-shrink-zero"]);
    assert_eq!(with(&[("shrink", "1")]), ["guest-shrink-one"]);
    // Neither has an effect beside the other, so each is reported with its reason.
    assert_eq!(
        with(&[("shrink", "1"), ("allow_shrink", "N")]),
        ["allow-shrink-off", "parameter-no-effect", "parameter-no-effect"]
    );
}

/// 200 ms where 200 us were meant.
#[test]
fn a_maximum_that_no_idle_time_is_above() {
    let host = |value| with("6.18.44", KVM, &[("halt_poll_ns", value)]);
    assert_eq!(host("200000000"), ["maximum-of-any-idle-time"]);
    // What SAP's checks ask for.
    assert_eq!(host("24000000"), [""; 0]);
    let guest = with("6.18.44", HALTPOLL, &[("guest_halt_poll_ns", "4294967295")]);
    assert_eq!(guest, ["maximum-of-any-idle-time"]);
}

#[test]
fn idle_states_that_are_disabled() {
    let machine = Fake::quiet("6.18.44");
    let state = |n: u32, name: &str| format!("/sys/devices/system/cpu/cpu0/cpuidle/state{n}/{name}");
    for (n, name) in [(0, "POLL"), (1, "C1"), (2, "C6")] {
        machine.set(&state(n, "name"), name);
        machine.set(&state(n, "disable"), if n == 2 { "1" } else { "0" });
    }
    machine.set("/sys/devices/system/cpu/cpuidle/current_driver", "intel_idle");
    machine.set("/sys/devices/system/cpu/cpuidle/current_governor", "menu");
    let found = |machine: &Fake| codes(machine).contains(&"idle-states-disabled");
    assert!(!found(&machine));
    machine.set(&state(1, "disable"), "1");
    assert!(text(&machine, "idle-states-disabled").contains("disabled for CPU 0"));
    // On Arm state 0 halts.
    machine.set(&state(0, "name"), "WFI");
    assert!(!found(&machine));
}

#[test]
fn latency_request_of_zero() {
    let machine = Fake::quiet("6.18.44");
    let cpu0 = "/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us";
    machine.set(cpu0, "n/a");
    assert_eq!(codes(&machine), ["latency-request-zero-haltpoll"]);
    machine.set("/dev/cpu_dma_latency", "\0\0\0\0");
    assert!(text(&machine, "latency-request-zero-haltpoll").contains("for all CPUs"));
    machine.set("/dev/cpu_dma_latency", "\0\u{5}\0\0");
    machine.set(cpu0, "0");
    assert_eq!(codes(&machine), [""; 0]);
}

#[test]
fn what_is_asked_for_and_what_is_in_force() {
    let with = |path: &str, text: &str| {
        let machine = Fake::quiet("6.18.44");
        machine.set("/sys/module/kvm/initstate", "live");
        machine.set(path, text);
        codes(&machine)
    };
    let line = |text: &str| with("/proc/cmdline", text);
    assert_eq!(line("kvm.halt_poll_ns=-1"), ["wanted-refused"]);
    for same in ["kvm.halt-poll-ns=200000", "kvm.halt_poll_ns=0x30d40", "\"kvm.halt_poll_ns=200000\""] {
        assert_eq!(line(same), [""; 0], "{same}");
    }
    for same in ["on", "1", "yes", "t"] {
        assert_eq!(line(&format!("haltpoll.guest_halt_poll_allow_shrink={same}")), [""; 0], "{same}");
    }
    assert_eq!(line("haltpoll.guest_halt_poll_allow_shrink=2"), ["wanted-refused"]);
    assert_eq!(line("kvm_intel.halt_poll_ns=0"), ["wanted-ignored"]);
    assert_eq!(line("halt_poll_ns=0"), ["wanted-ignored"]);
    assert_eq!(line("kvm.lapic_timer_advance_ns=-1"), ["wanted-ignored"]);
    assert_eq!(line("kvm.halt_poll_ns=0"), ["wanted-not-in-force"]);
    assert_eq!(line("kvm.halt_poll_ns=0 kvm.halt_poll_ns=200000"), ["wanted-overridden"]);
    assert_eq!(with("/etc/modprobe.d/a.conf", "options kvm halt_poll_ns=0"), ["wanted-not-in-force"]);
    let grub =
        |value: &str| with("/etc/default/grub", &format!("GRUB_CMDLINE_LINUX=\"kvm.halt_poll_ns={value}\""));
    assert_eq!((grub("0"), grub("-1")), (vec!["wanted-at-next-boot"], vec!["wanted-refused"]));
    assert_eq!(grub("200000"), [""; 0]);
    for misspelt in ["kvm.halt_pol_ns=0", "kvm.halt_polling_ns=0"] {
        assert_eq!(line(misspelt), ["wanted-unknown"]);
    }
    assert_eq!(line("kvm_amd.halt_pol_ns=0"), [""; 0], "it is not loaded");
    let echo = "echo 0 > /sys/module/kvm/parameters/halt_poll_ns\n";
    assert_eq!(with("/etc/rc.local", echo), ["wanted-not-in-force"]);
    assert_eq!(
        with("/etc/rc.local", "echo -1 > /sys/module/kvm/parameters/halt_poll_ns"),
        ["wanted-refused"]
    );
    assert_eq!(
        with("/etc/sysfs.d/a.conf", "module/kvm/parameters/halt_poll_ns = 0"),
        ["wanted-not-in-force"]
    );
    let built_in = Fake::quiet("6.18.44");
    built_in.set("/etc/modprobe.d/a.conf", "options kvm halt_poll_ns=0");
    assert!(text(&built_in, "wanted-ignored").contains("kvm is built in"));
    assert_eq!(codes(&built_in), ["wanted-ignored"]);
    built_in.set("/proc/cmdline", "kvm.halt_poll_ns=-1");
    assert!(text(&built_in, "wanted-refused").starts_with(
        "the kernel's command line asks for halt_poll_ns=-1, which the kernel refuses: 200000 ns is in force"
    ));
}

#[test]
fn idle_on_the_command_line() {
    let machine = Fake::quiet("6.18.44");
    machine.set("/proc/cmdline", "quiet idle=poll");
    assert_eq!((codes(&machine), worst(&machine)), (vec!["idle-poll"], Some(Severity::Danger)));
    machine.set("/proc/cmdline", "quiet -- idle=poll");
    assert_eq!(codes(&machine), [""; 0]);
}

#[test]
fn idle_cpus_of_other_architectures_poll_by_other_words() {
    let of = |arch: &str, line: &str| {
        let machine = Fake::quiet("6.8.0");
        machine.set("/proc/sys/kernel/arch", arch);
        machine.set("/proc/cmdline", line);
        findings(&machine).into_iter().map(|found| found.what).find(|what| what.contains("command line"))
    };
    let (arm, z, power) = ("aarch64", "s390x", "ppc64le");
    for (arch, word) in [(arm, "nohlt"), (arm, "hlt nohlt"), (power, "powersave=off")] {
        let last = word.rsplit(' ').next().unwrap();
        assert_eq!(of(arch, word), Some(format!("{last} on the kernel's command line: no CPU ever halts")));
    }
    let ignored = Some("idle=poll on the kernel's command line has no effect".to_owned());
    assert_eq!((of(arm, "idle=poll"), of(z, "idle=poll")), (ignored.clone(), ignored));
    assert_eq!((of(arm, "nohlt hlt"), of(z, "nohlt")), (None, None));
}

#[test]
fn posted_timers_and_what_they_need() {
    let posting = |release: &str| {
        let machine = Fake::quiet(release);
        machine.set(&format!("{KVM}/pi_inject_timer"), "1");
        machine.set("/sys/devices/system/cpu/nohz_full", "1-3");
        machine
    };
    let machine = posting("6.18.44");
    assert_eq!(codes(&machine), ["pi-inject-needs-exits-disabled"]);
    machine.set("/sys/module/kvm_intel/parameters/enable_apicv", "N");
    assert_eq!(codes(&machine), ["pi-inject-apicv-off"]);
    machine.remove_all("/sys/module/kvm_intel");
    assert_eq!(codes(&machine), ["pi-inject-no-apicv"]);
    let before = posting("5.17.6");
    assert_eq!(codes(&before), ["host-max-may-differ"]);
    before.set("/sys/devices/system/cpu/nohz_full", "(null)");
    assert_eq!(codes(&before), ["host-max-may-differ", "pi-inject-without-nohz-full"]);
}

#[test]
fn timers_and_the_cpus_they_fire_on() {
    let machine = Fake::quiet("6.18.44");
    machine.set("/proc/sys/kernel/timer_migration", "0");
    assert_eq!(codes(&machine), [""; 0]);
    machine.set("/sys/devices/system/cpu/nohz_full", "1-3");
    assert_eq!(codes(&machine), ["timers-stay"]);
    let isolated = Fake::quiet("6.18.44");
    isolated.set("/sys/devices/system/cpu/isolated", "2-3");
    assert_eq!(codes(&isolated), ["isolated-with-timers"]);
    isolated.set("/sys/devices/system/cpu/nohz_full", "2-3");
    assert_eq!(codes(&isolated), [""; 0]);
}

#[test]
fn timer_parameters() {
    let off = Fake::quiet("6.1.192");
    off.set("/sys/module/kvm_intel/parameters/preemption_timer", "N");
    assert_eq!(codes(&off), ["no-preemption-timer"]);
    let amd = Fake::quiet("6.1.192");
    amd.set("/sys/module/kvm_amd/parameters/avic", "Y");
    assert_eq!(codes(&amd), [""; 0]);
    let with = |release, name, value| with(release, KVM, &[(name, value)]);
    assert_eq!(with("6.1.192", "lapic_timer_advance_ns", "-1"), [""; 0]);
    assert_eq!(with("6.1.192", "lapic_timer_advance_ns", "4000"), ["timer-advance-fixed"]);
    assert_eq!(with("6.18.44", "lapic_timer_advance", "Y"), [""; 0]);
    assert_eq!(with("6.18.44", "lapic_timer_advance", "N"), ["timer-advance-off"]);
}

#[test]
fn iothreads_that_never_poll_and_ambiguous_zeros() {
    let with = |object: &str, machine_type: &str| {
        let machine = Fake::quiet("6.18.44");
        machine.vm(100, &["qemu-system-x86_64", "-M", machine_type, "-object", object]);
        codes(&machine)
    };
    assert_eq!(
        with("iothread,id=io0,poll-max-ns=0,poll-grow=4", "q35"),
        ["iothread-no-effect", "iothread-polling-off"]
    );
    assert_eq!(with("iothread,id=io0,poll-max-ns=0", "q35"), ["iothread-polling-off"]);
    assert_eq!(with("iothread,id=io0,poll-max-ns=99999999", "q35"), [""; 0]);
    assert_eq!(with("iothread,id=io0,poll-max-ns=100000000", "q35"), ["iothread-maximum-of-any-idle-time"]);
    assert_eq!(with("iothread,id=io0,poll-shrink=0", "pc-q35-7.2"), ["iothread-shrink-zero"]);
    assert_eq!(with("iothread,id=io0,poll-shrink=0", "pc-q35-11.1"), [""; 0]);
    assert_eq!(with("iothread,id=io0,poll-grow=1", "pc-q35-10.0"), ["iothread-grow-one"]);
    assert_eq!(with("iothread,id=io0,poll-grow=1", "pc-q35-11.1"), [""; 0]);
    assert_eq!(with("iothread,id=io0,poll-shrink=1", "pc-q35-11.1"), ["iothread-shrink-one"]);
}

#[test]
fn kernels_and_values_that_dwell_does_not_know() {
    assert!(codes(&Fake::quiet("4.19.0")).contains(&"kernel-unknown"));
    let machine = Fake::quiet("6.18.44");
    machine.set(&format!("{KVM}/halt_poll_ns_grow"), "(null)");
    assert!(
        text(&machine, "parameter-unreadable").starts_with(&format!("{KVM}/halt_poll_ns_grow has no number"))
    );
    let user = Fake::quiet("6.18.44");
    user.set_kvm(KvmDevice::Closed { why: Absent::Denied });
    assert_eq!(codes(&user), ["kvm-denied"]);
}

#[test]
fn a_promise_of_cpus_that_others_have_is_told() {
    let found = |cpu: &str, waited_ms: u64| {
        let machine = Fake::quiet("6.18.44");
        machine.vm(100, &["qemu-system-x86_64", "-name", "db", "-cpu", cpu]);
        machine.set("/proc/uptime", "1100.50 4000.00\n");
        let ticks = 100 * rustix::param::clock_ticks_per_second();
        machine.set("/proc/100/stat", &format!("100 (a) S {} {ticks} 0\n", "0 ".repeat(18).trim_end()));
        let waited_ns = waited_ms * 1_000_000;
        machine.set("/proc/100/task/101/schedstat", &format!("400000000000 {waited_ns} 9\n"));
        machine.set("/proc/100/task/101/status", "Name:\tCPU\nvoluntary_ctxt_switches:\t1\n");
        let found = of(&Facts::read(&machine));
        found
            .into_iter()
            .find(|finding| finding.code == "vm-hint-dedicated-shared")
            .map(|finding| finding.what)
    };
    assert_eq!(
        found("host,kvm-hint-dedicated=on", 100_000).as_deref(),
        Some(
            "VM db (process 100) has kvm-hint-dedicated=on, and others had its CPUs: its vCPUs have waited for 20 % of the \
             time that they wanted to run"
        )
    );
    assert_eq!(found("host,kvm-hint-dedicated=on", 4_000), None, "1 %");
    assert_eq!(found("host", 100_000), None, "nothing was promised");
}

/// A VM that idles with a tick of 1,000 Hz, one that works, and one that sleeps: on average since they began.
#[test]
fn a_vm_that_does_a_little_often_is_told_of_why() {
    let found = |cpu_ms: u64, sleeps: u64| {
        let machine = Fake::quiet("6.8.12-4-pve");
        machine.vm(100, &["/usr/bin/kvm", "-name", "web"]);
        machine.set("/proc/uptime", "1100.50 4000.00\n");
        // It began 1,000 s ago.
        let ticks = 100 * rustix::param::clock_ticks_per_second();
        machine.set("/proc/100/stat", &format!("100 (a) b) S {} {ticks} 0\n", "0 ".repeat(18).trim_end()));
        machine.set("/proc/100/task/101/schedstat", &format!("{} 0 0\n", cpu_ms * 1_000_000));
        machine
            .set("/proc/100/task/101/status", &format!("Name:\tCPU\nvoluntary_ctxt_switches:\t{sleeps}\n"));
        let found = of(&Facts::read(&machine));
        found.into_iter().find(|finding| finding.code == "vm-short-bursts").map(|finding| finding.what)
    };
    assert_eq!(
        found(80_000, 1_000_000).as_deref(),
        Some("VM web (process 100) has used 8 % of a CPU on average, in 1000 bursts a second of 80 us each")
    );
    assert_eq!(found(800_000, 1_000_000), None, "it works");
    assert_eq!(found(40_000, 1_000_000), None, "4 % of a CPU");
    assert_eq!(found(80_000, 20_000), None, "it sleeps");
}
