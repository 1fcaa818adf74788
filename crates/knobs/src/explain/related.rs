//! Options that are no parameters of a rule, and change the effect of some.

/// Names, and what they do.
const RELATED: [(&[&str], &str); 12] = [
    (
        &["cpu_pm", "overcommit"],
        "with QEMU's -overcommit cpu-pm=on a VM executes HLT and MWAIT itself: halt_poll_ns has no effect on it, and \
         pi_inject_timer may post its timers",
    ),
    (
        &["kvm_poll_control", "poll_control", "msr_kvm_poll_control"],
        "with QEMU's -cpu …,kvm-poll-control=on a guest that polls by itself (haltpoll) switches the host's polling off for \
         its vCPUs; without it both poll",
    ),
    (
        &["kvm_hint_dedicated", "hint_dedicated"],
        "QEMU's -cpu …,kvm-hint-dedicated=on promises the guest that its vCPUs are never preempted: the haltpoll driver then \
         loads without force=1",
    ),
    (
        &["force"],
        "of the module cpuidle-haltpoll, since 5.7: with it the haltpoll driver loads without the REALTIME hint",
    ),
    (
        &["idle"],
        "on the kernel's command line of x86: idle=poll never halts, and with any idle= the haltpoll driver does not load",
    ),
    (&["nohlt"], "on the kernel's command line of arm64, RISC-V and POWER: no CPU ever halts"),
    (&["governor"], "cpuidle.governor= chooses the governor; guest_halt_poll_* are read by haltpoll only"),
    (
        &["preemption_timer"],
        "of the module kvm_intel: without it every timer of a running guest costs a host interrupt and an exit",
    ),
    (
        &["enable_apicv", "avic"],
        "of the module kvm_intel (kvm_amd): pi_inject_timer has no effect without APICv (AVIC)",
    ),
    (
        &["nohz_full"],
        "on the kernel's command line: CPUs without a tick; with it pi_inject_timer is on by default",
    ),
    (
        &["timer_migration"],
        "sysctl kernel.timer_migration=0 keeps timers on the CPU that arms them, so that none is posted from another",
    ),
    (
        &["hv_time", "hv_synic", "hv_stimer", "hpet", "no_hpet"],
        "of QEMU, for Windows guests: without hv-time, hv-synic and hv-stimer, and with an HPET, an idle one exits hundreds to \
         thousands of times a second, whatever halt_poll_ns is",
    ),
];

/// What the option of this name does to parameters; `None` if that is not known.
pub fn related(name: &str) -> Option<&'static str> {
    let name = name.replace('-', "_").to_ascii_lowercase();
    RELATED.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, words)| *words)
}
