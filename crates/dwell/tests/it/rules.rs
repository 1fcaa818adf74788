//! The rules of the machine in front of one: situations of people who run VMs, from public reports. Each is the few files
//! of such a machine that dwell reads, and what is right there.

use std::ffi::OsString;
use std::process::Command;
use tempfile::TempDir;

/// Copied files of a machine, in a folder.
struct Copied(TempDir);

impl Copied {
    fn of(release: &str, files: &[(&str, &str)]) -> Copied {
        let copied = Copied(tempfile::tempdir().unwrap());
        copied.file("proc/sys/kernel/osrelease", release).file("proc/cmdline", "ro").file("proc/modules", "");
        files.iter().for_each(|(path, text)| {
            copied.file(path, text);
        });
        copied
    }

    fn file(&self, path: &str, text: &str) -> &Copied {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    /// halt_poll_ns and halt_poll_ns_shrink of KVM, which the kernel has loaded.
    fn kvm(&self, max: &str, shrink: &str) -> &Copied {
        for (name, value) in [("", max), ("_grow", "2"), ("_grow_start", "10000"), ("_shrink", shrink)] {
            self.file(&format!("sys/module/kvm/parameters/halt_poll_ns{name}"), value);
        }
        self
    }

    fn haltpoll(&self, driver: &str, governor: &str, governors: &str) -> &Copied {
        for (name, value) in
            [("ns", "200000"), ("shrink", "2"), ("grow", "2"), ("grow_start", "50000"), ("allow_shrink", "Y")]
        {
            self.file(&format!("sys/module/haltpoll/parameters/guest_halt_poll_{name}"), value);
        }
        let cpuidle = "sys/devices/system/cpu/cpuidle";
        for (name, value) in
            [("current_driver", driver), ("current_governor", governor), ("available_governors", governors)]
        {
            self.file(&format!("{cpuidle}/{name}"), value);
        }
        self
    }

    fn intel(&self) -> &Copied {
        self.file("proc/cpuinfo", "vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Gold 6338N")
            .file("sys/module/kvm_intel/parameters/enable_apicv", "Y")
            .file("sys/module/kvm_intel/parameters/preemption_timer", "Y")
    }

    /// A process with a VM of one vCPU.
    fn vm(&self, pid: u32, arguments: &[&str]) -> &Copied {
        let words: String = arguments.iter().map(|word| format!("{word}\0")).collect();
        let process = self.0.path().join(format!("proc/{pid}"));
        self.file(&format!("proc/{pid}/comm"), "kvm");
        std::fs::write(process.join("cmdline"), words).unwrap();
        self.file(&format!("proc/{pid}/task/{}/comm", pid + 10), "CPU 0/KVM");
        std::fs::create_dir_all(process.join("fd")).unwrap();
        std::os::unix::fs::symlink("anon_inode:kvm-vm", process.join("fd/10")).unwrap();
        self
    }

    /// What a command prints about it, in one line.
    fn dwell(&self, arguments: &[&str]) -> String {
        run(&[arguments, &["--sysroot", self.0.path().to_str().unwrap()]].concat())
    }
}

/// The program, or another build of it.
fn program() -> OsString {
    std::env::var_os("DWELL_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_dwell").into())
}

/// What a command prints, in one line.
fn run(arguments: &[&str]) -> String {
    let ran = Command::new(program()).env("COLUMNS", "120").args(arguments).output().unwrap();
    let text = [ran.stdout, ran.stderr].concat();
    String::from_utf8(text).unwrap().split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// What `dwell timer explain` prints for a VM with APICv on isolated CPUs whose host has posting on.
fn timers(kernel: &str, more: &[&str]) -> String {
    let vm = ["--pi-inject-timer", "1", "--apicv", "on", "--preemption-timer", "on", "--pcpu", "isolated"];
    run(&[&["timer", "explain"][..], &vm, &["--kernel", kernel], more].concat())
}

#[track_caller]
fn has(text: &str, expected: &[&str], unexpected: &[&str]) {
    for words in expected {
        assert!(text.contains(words), "{words:?} is missing in: {text}");
    }
    for words in unexpected {
        assert!(!text.contains(words), "{words:?} is in: {text}");
    }
}

const RHEL_9_2: &str = "5.14.0-284.30.1.el9_2.x86_64";

/// 1. TuneD's realtime-virtual-host on RHEL 9: its posting rule is that of 2022.
#[test]
fn a_real_time_host_of_rhel_9_posts_for_vms_with_disabled_exits_only() {
    let host = Copied::of(RHEL_9_2, &[]);
    host.kvm("200000", "0").intel();
    host.file("sys/module/kvm/parameters/pi_inject_timer", "1")
        .file("sys/module/kvm/parameters/lapic_timer_advance_ns", "7500")
        .file("sys/devices/system/cpu/nohz_full", "2-31");
    has(
        &host.dwell(&["doctor"]),
        &["Red Hat's: see the findings", "and a VM that executes MWAIT or HLT itself", "5.14.0-110.el9"],
        &["its rules are known", "a posted timer needs pi_inject_timer, and APICv or AVIC"],
    );
    has(
        &timers(RHEL_9_2, &[]),
        &[
            "pi_inject_timer: no effect: for this VM, on and off give the same mechanism",
            "In force under Linux 5.14.0-284.el9: merged-2022",
            "Timers of this VM are not posted",
        ],
        &["Possibly in force"],
    );
    has(
        &timers(RHEL_9_2, &["--upgrade", "6.12.0-211.el10"]),
        &["An upgrade from Linux 5.14.0-284.el9 to 6.12.0-211.el10:", "lapic_timer_advance=Y"],
        &["In force under Linux 5.14.0-284.el9: merged-2019", "and assumed", "may a timer be posted"],
    );
    // Before the backport it is the old rule.
    has(
        &timers("5.14.0-70.el9_0.x86_64", &[]),
        &["In force under Linux 5.14", "merged-2019"],
        &["no effect", "not known whether"],
    );
}

/// A sosreport does not have proc/sys/kernel/osrelease.
#[test]
fn the_release_shows_in_other_files_that_people_send() {
    let report = Copied::of("", &[("proc/version", "Linux version 6.8.12-4-pve (build@proxmox) #1 SMP")]);
    has(&report.dwell(&["doctor"]), &["release 6.8.12-4-pve"], &[]);
    let report = Copied::of("", &[("uname", "Linux host 5.14.0-503.el9.x86_64 #1 SMP x86_64 GNU/Linux")]);
    has(&report.dwell(&["doctor"]), &["release 5.14.0-503.el9.x86_64"], &[]);
    let report = Copied::of("", &[("lib/modules/6.12.9/modules.dep", "")]);
    has(&report.dwell(&["explain", "halt_poll_ns=0"]), &["Linux 6.12.9"], &["cannot read"]);
    report.file("lib/modules/6.12.8/modules.dep", "");
    has(
        &report.dwell(&["explain", "halt_poll_ns=0"]),
        &["cannot read the release of the running kernel: neither proc/sys/kernel/osrelease nor"],
        &["not a kernel version"],
    );
}

/// The VMX preemption timer is of Intel's CPUs.
#[test]
fn a_host_with_amd_has_no_preemption_timer() {
    let host = Copied::of("6.8.12-4-pve", &[("proc/cpuinfo", "vendor_id\t: AuthenticAMD")]);
    host.kvm("200000", "0").file("sys/module/kvm_amd/parameters/avic", "N");
    has(
        &host.dwell(&["timer", "explain"]),
        &["preemption timer off (this machine)", "no hrtimer, own CPU 1 1"],
        &["preemption timer on", "no preemption timer"],
    );
}

/// Of a distributor without a source: both rules, neither as certain.
#[test]
fn where_no_source_shows_the_rule_both_are_named() {
    let sles = "5.14.21-150500.55.19-default";
    has(
        &timers(sles, &["--upgrade", "6.12"]),
        &[
            "pi_inject_timer: not known whether it has an effect",
            "merged-2022 and merged-2019",
            "Possibly in force",
            "Not known, and assumed: Linux 5.14.21-150500-default has the rule merged-2022",
        ],
        &["no effect", "In force under"],
    );
    let max = run(&["explain", "halt_poll_ns=0", "--kernel", "5.14.0-503.11.1.el9_5.x86_64"]);
    has(&max, &["scope: not known for this kernel"], &[]);
    let host = Copied::of(sles, &[]);
    host.kvm("200000", "0").intel().file("sys/module/kvm/parameters/pi_inject_timer", "0");
    has(
        &host.dwell(&["doctor"]),
        &[
            "whether running VMs follow a write to halt_poll_ns is not known",
            "KVM-do-not-shrink-halt_poll_ns-below-grow_start.patch",
            "KVM-LAPIC-Enable-timer-posted-interrupt-only-when-mw.patch",
        ],
        &[],
    );
    // The kernel's own types outrank what is known of its version.
    host.file("sys/kernel/btf/vmlinux", "\0halt_poll_ns\0max_halt_poll_ns\0override_halt_poll_ns\0");
    has(
        &host.dwell(&["doctor"]),
        &["halt_poll_ns is read at every halt, except for VMs whose VMM has set KVM_CAP_HALT_POLL"],
        &["whether running VMs follow"],
    );
    has(
        &host.dwell(&["explain", "halt_poll_ns=0"]),
        &["every vCPU at its next halt"],
        &["scope: not known", "is a setting of this VM alone"],
    );
    let openeuler = run(&["explain", "halt_poll_ns=0", "--kernel", "5.10.0-136.12.0.86.oe2203sp1.x86_64"]);
    has(&openeuler, &["scope: not known for this kernel"], &[]);
}

/// 2. The files of a guest, read elsewhere: its governor proves KVM.
#[test]
fn the_haltpoll_governor_proves_a_guest_of_kvm() {
    let guest = Copied::of("6.8.0-45-generic", &[]);
    guest.haltpoll("none", "menu", "ladder menu teo haltpoll");
    guest.file("proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t\t: fpu vme hypervisor");
    has(
        &guest.dwell(&["doctor"]),
        &["only a guest of KVM has the governor haltpoll", "modprobe cpuidle-haltpoll force=1", "promises"],
        &["nothing: haltpoll is for guests", "KVM's signature in CPUID, which is missing"],
    );
    // What such files do not show is not "no".
    let bare = Copied::of("6.8.0-45-generic", &[]);
    has(
        &bare.dwell(&["explain", "guest_halt_poll_ns=0"]),
        &["not known whether it has an effect: which cpuidle driver"],
        &["): effective", "): no effect"],
    );
}

/// A kernel that has the governor lists it in guests of KVM only.
#[test]
fn haltpoll_that_is_not_among_the_governors_proves_that_this_is_no_guest_of_kvm() {
    let host = Copied::of("6.8.0-45-generic", &[]);
    host.haltpoll("intel_idle", "menu", "ladder menu teo").intel();
    has(&host.dwell(&["doctor"]), &[], &["the haltpoll governor", "max_cstate=0"]);
    let xen = Copied::of("6.8.0-45-generic", &[]);
    xen.haltpoll("none", "menu", "ladder menu teo");
    xen.file("proc/cpuinfo", "vendor_id\t: AuthenticAMD\nflags\t\t: fpu vme hypervisor");
    has(
        &xen.dwell(&["doctor"]),
        &["hypervisor none, or not KVM", "has no effect here", "nothing: haltpoll is for guests of KVM"],
        &["does not show here", "governor is available"],
    );
    // Without cpuidle there is no list.
    let off = Copied::of("6.8.0-45-generic", &[("proc/cmdline", "cpuidle.off=1")]);
    off.file("sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000");
    has(
        &off.dwell(&["doctor"]),
        &["remove cpuidle.off from the command line"],
        &["whether this is a guest of KVM", "nothing: haltpoll"],
    );
}

/// 3. The timer advance is a switch since 6.10.
#[test]
fn the_advance_of_6_11_is_the_switch_that_the_kernel_shows() {
    let host = Copied::of("6.11.0-21-generic", &[]);
    host.kvm("200000", "2").intel().file("sys/module/kvm/parameters/lapic_timer_advance", "N");
    has(
        &host.dwell(&["doctor"]),
        &["set lapic_timer_advance=Y when kvm loads"],
        &["6.12", "lapic_timer_advance_ns"],
    );
    has(
        &host.dwell(&["explain", "lapic_timer_advance=0"]),
        &["lapic_timer_advance = 0"],
        &["does not exist"],
    );
    let gone = run(&["explain", "lapic_timer_advance_ns=7500", "--kernel", "6.11.0-21-generic"]);
    has(&gone, &["does not exist in 6.11", "went with 6.10"], &["effective"]);
    let params = run(&["params", "--layer", "timer", "--kernel", "6.11", "--format", "csv"]);
    has(&params, &["lapic_timer_advance,"], &["lapic_timer_advance_ns"]);
}

/// 4. IBM Z: its default, its limit on steal time, and no local APIC.
#[test]
fn s390x_has_a_default_and_a_limit_of_its_own() {
    let host = Copied::of("5.15.0-119-generic", &[("proc/cpuinfo", "vendor_id       : IBM/S390")]);
    host.kvm("50000", "0").file("sys/module/kvm/parameters/halt_poll_max_steal", "10");
    has(
        &host.dwell(&["doctor"]),
        &[
            "architecture s390x",
            "50000 ns the default",
            "halt_poll_max_steal",
            "only x86-64 has a local APIC timer",
        ],
        &["default 200000", "a posted timer needs"],
    );
    has(
        &host.dwell(&["explain", "halt_poll_ns=0"]),
        &["on s390x", "default 50000", "halt_poll_max_steal"],
        &["200000"],
    );
    has(
        &host.dwell(&["timer", "explain", "--pi-inject-timer", "1"]),
        &["this machine is s390x: only x86-64 has a local APIC timer"],
        &["merged-2019"],
    );
    let steal = host.dwell(&["explain", "halt_poll_max_steal=10"]);
    has(
        &steal,
        &["halt_poll_max_steal = 10 (host): not modelled", "it is the default"],
        &["no such parameter", "): no effect", "): effective"],
    );
}

/// 5 and 6. arm64: its default; haltpoll from the distributor.
#[test]
fn arm64_is_not_judged_as_x86_64() {
    let release = "5.10.0-136.12.0.86.oe2203sp1.aarch64";
    let host = Copied::of(release, &[]);
    host.kvm("500000", "0");
    has(&host.dwell(&["doctor"]), &["architecture arm64", "500000 ns the default"], &["default 200000"]);
    let explained = host.dwell(&["explain", "halt_poll_ns=400000"]);
    has(&explained, &["on arm64", "compared with the default 500000", "scope: not known"], &["200000"]);
    let guest = Copied::of(release, &[]);
    guest.haltpoll("none", "menu", "menu haltpoll");
    has(
        &guest.dwell(&["doctor"]),
        &["from its distributor", "modprobe cpuidle_haltpoll force=1"],
        &["CPUID", "nothing: haltpoll"],
    );
}

/// 8. A value that the kernel refused, and idle=poll on a host.
#[test]
fn idle_poll_on_a_host_is_not_answered_with_haltpoll_alone() {
    let host = Copied::of("5.10.0-32-rt-amd64", &[("proc/cmdline", "kvm.halt_poll_ns=-1 idle=poll")]);
    host.kvm("200000", "0").intel();
    has(
        &host.dwell(&["doctor"]),
        &[
            "on a host, request 1 us of latency",
            "asks for halt_poll_ns=-1, which the kernel refuses: 200000 ns is in force",
        ],
        &["remove it and use haltpoll"],
    );
    has(
        &run(&["explain", "kvm.halt_poll_ns=-1", "--kernel", "5.10"]),
        &["out of range: 0 to 4294967295 ns, 0 means never poll"],
        &[],
    );
}

/// 9. SLES and RHEL 9 have "do not shrink halt_poll_ns below grow_start".
#[test]
fn windows_below_grow_start_on_5_14_of_distributors() {
    for release in ["5.14.21-150500.55.19-default", RHEL_9_2, "5.14.0-503.11.1.el9_5.x86_64"] {
        let setting = ["halt_poll_ns=20us", "halt_poll_ns_shrink=4", "halt_poll_ns_shrink=0"];
        let compared = run(&[&["explain"][..], &setting, &["--kernel", release]].concat());
        has(
            &compared,
            &["halt_poll_ns_shrink=4 and halt_poll_ns_shrink=0 are equivalent"],
            &["halt_poll_ns_shrink=0: they differ"],
        );
    }
}

/// 10. KubeVirt: who polls shows on the VM's command line.
#[test]
fn the_command_line_of_a_vm_decides_which_layers_act_on_it() {
    let node = Copied::of("6.8.0-45-generic", &[]);
    node.kvm("0", "0").intel().file("sys/module/kvm/parameters/pi_inject_timer", "1");
    node.file("sys/devices/system/cpu/nohz_full", "4-31").vm(
        8101,
        &[
            "/usr/libexec/qemu-kvm",
            "-name",
            "guest=default_rt-vm,debug-threads=on",
            "-machine",
            "pc-q35-rhel9.2.0,accel=kvm",
            "-cpu",
            "host,migratable=on,kvm-hint-dedicated=on,kvm-poll-control=on",
            "-overcommit",
            "mem-lock=off,cpu-pm=on",
        ],
    );
    has(
        &node.dwell(&["doctor"]),
        &[
            "host polling: no effect (cpu-pm=on: HLT does not exit)",
            "guest may switch it off (kvm-poll-control)",
            "timers may be posted",
            "CPUs of its own are promised",
            "VM default_rt-vm (process 8101) executes HLT and MWAIT itself",
        ],
        &["cannot be seen from outside", "none is seen here"],
    );
    let timers = node.dwell(&["timer", "explain", "--pi-inject-timer", "1"]);
    has(&timers, &["hlt,mwait (this machine)"], &["no effect", "not known whether"]);
    has(&node.dwell(&["explain", "halt_poll_ns=0"]), &["no VM uses the value whose HLT does not exit"], &[]);
}

/// A guest that KubeVirt gave CPUs of its own: intel_idle took it before haltpoll could.
#[test]
fn another_cpuidle_driver_keeps_haltpoll_out() {
    let guest = Copied::of("6.8.0-45-generic", &[]);
    guest
        .haltpoll("intel_idle", "menu", "ladder menu teo haltpoll")
        .file("proc/cpuinfo", "vendor_id\t: GenuineIntel");
    has(
        &guest.dwell(&["doctor"]),
        &["another cpuidle driver is registered", "boot with intel_idle.max_cstate=0"],
        &["nothing: haltpoll is for guests", "modprobe cpuidle"],
    );
    has(
        &guest.dwell(&["explain", "guest_halt_poll_ns=0"]),
        &["no effect: the cpuidle governor in use is menu"],
        &[],
    );
    guest.haltpoll("acpi_idle", "menu", "ladder menu teo haltpoll");
    has(&guest.dwell(&["doctor"]), &["use a VM in which acpi_idle finds no idle states"], &["max_cstate"]);
}

/// A guest of RHEL 9.2 on which haltpoll decides: its rule is that of 5.14, or the later one of 6.9.
#[test]
fn haltpoll_of_rhel_9_is_not_judged_where_its_rule_is_not_known() {
    let guest = Copied::of(RHEL_9_2, &[("proc/cpuinfo", "vendor_id\t: GenuineIntel")]);
    guest.haltpoll("haltpoll", "haltpoll", "menu haltpoll");
    has(
        &guest.dwell(&["explain", "guest_halt_poll_ns=100000"]),
        &["guest_halt_poll_ns = 100000 (guest): effective", "every CPU of this guest at its next halt"],
        &["not known whether"],
    );
    // Only the rule of 6.9 drops a window below grow_start: an example is one of both, or names its rule.
    has(
        &guest.dwell(&["explain", "guest_halt_poll_shrink=3", "guest_halt_poll_shrink=4"]),
        &[
            "for example, by the rule since 5.11, after halts of 1 ns, 200,001 ns the windows are 16.7 us and 25.0 us",
            "for example, after halts of 1 ns, 50,001 ns, 100,001 ns, 200,001 ns the windows are 66.7 us and 50.0 us",
        ],
        &["are equivalent:"],
    );
}

/// 11. An idle Windows guest: its timers, not polling.
#[test]
fn an_idle_windows_vm_without_stimer_is_told_of_its_timers() {
    let host = Copied::of("6.8.12-4-pve", &[]);
    let cpu = "host,hv_ipi,hv_relaxed,hv_runtime,hv_spinlocks=0x1fff,hv_time,hv_vapic,hv_vpindex,+kvm_pv_eoi";
    host.kvm("200000", "0").intel().vm(
        6101,
        &["/usr/bin/kvm", "-name", "win10", "-cpu", cpu, "-machine", "hpet=on,type=pc-q35-9.0+pve0"],
    );
    has(
        &host.dwell(&["doctor"]),
        &[
            "VM win10 (process 6101) is set up for Windows and lacks hv-synic, hv-stimer, hpet=off",
            "Proxmox:",
        ],
        &[],
    );
}

/// 13. RHEL 8: a refusal that names the reason.
#[test]
fn rhel_8_is_refused_with_its_reason() {
    let guest = Copied::of("4.18.0-513.5.1.el8_9.x86_64", &[]);
    guest.haltpoll("haltpoll", "haltpoll", "menu haltpoll");
    has(
        &guest.dwell(&["doctor"]),
        &["outside the versions", "5.4 to 7.3", "Red Hat has taken over later rules into it"],
        &["its rules are known"],
    );
    let explained = guest.dwell(&["explain", "guest_halt_poll_ns=2400000"]);
    has(&explained, &["Red Hat has taken over later rules into it", "--kernel"], &["effective"]);
}

/// A plan for one machine, applied on another: its architecture, its defaults and its version are compared.
#[test]
fn a_plan_is_compared_with_the_machine_and_its_architecture() {
    let plan = tempfile::tempdir().unwrap();
    let path = plan.path().join("plan.toml");
    std::fs::write(&path, include_str!("../plans/halt-poll-off-6.8.toml")).unwrap();
    let applied = |host: &Copied| host.dwell(&["apply", path.to_str().unwrap(), "--dry-run"]);
    let proxmox = Copied::of("6.8.12-4-pve", &[("proc/cpuinfo", "vendor_id\t: GenuineIntel")]);
    proxmox.kvm("200000", "0");
    has(&applied(&proxmox), &["halt_poll_ns"], &["the plan was made for"]);
    let older = Copied::of("5.15.131-2-pve", &[("proc/cpuinfo", "vendor_id\t: AuthenticAMD")]);
    older.kvm("0", "0");
    has(
        &applied(&older),
        &["the plan was made for Linux 6.8, but this is 5.15.131-2-pve"],
        &["architecture"],
    );
    for (cpuinfo, name, max) in [
        ("vendor_id       : IBM/S390", "s390x", "50000"),
        ("CPU implementer\t: 0x48", "arm64", "500000"),
        ("CPU implementer\t: 0x48", "arm64", "200000"),
    ] {
        let host = Copied::of("6.8.0-45-generic", &[("proc/cpuinfo", cpuinfo)]);
        host.kvm(max, "0");
        let words = format!("the plan was made for x86-64, but this machine is {name}");
        has(&applied(&host), &[&words], &["the plan was made for Linux"]);
    }
}

/// Monitors other than QEMU have a row as well, and what libvirt's file gives at the next start is compared.
#[test]
fn each_vm_has_a_row_whatever_its_monitor() {
    let host = Copied::of("6.8.0-45-generic", &[]);
    host.kvm("200000", "0").intel().vm(11, &["/usr/bin/cloud-hypervisor", "--cpus", "boot=4,kvm_hyperv=on"]);
    host.vm(12, &["/usr/bin/crosvm", "run", "--net", "tap-name=t,vhost-net"])
        .vm(13, &["firecracker", "--id", "fc"]);
    let key = "{\"qom-type\":\"secret\",\"file\":\"/var/lib/libvirt/qemu/domain-1-db/master-key.aes\"}";
    host.vm(14, &["/usr/bin/qemu-system-x86_64", "-name", "guest=db,debug-threads=on", "-object", key]);
    host.file(
        "etc/libvirt/qemu/db.xml",
        "<domain type='kvm'><features><kvm><poll-control state='on'/></kvm></features></domain>",
    );
    has(
        &host.dwell(&["doctor"]),
        &[
            "its layers host polling: halt_poll_ns; for Windows: kvm_hyperv",
            "its layers host polling: halt_poll_ns; vhost serves its network",
            "kvm fc: vCPU 0 (thread 23) its layers host polling: halt_poll_ns",
            "VM db (process 14) was started with kvm-poll-control: off, and /etc/libvirt/qemu/db.xml has on",
        ],
        &["is set up for Windows and lacks"],
    );
}

/// What TuneD's profile asks for at the next boot is compared with what is in force.
#[test]
fn the_boot_loader_of_a_profile_is_compared() {
    let host = Copied::of("6.8.0-45-generic", &[]);
    host.kvm("200000", "0").intel().file("etc/tuned/active_profile", "rt").file(
        "usr/lib/tuned/rt/tuned.conf",
        "[bootloader]\ncmdline_rt=+nohz_full=${isolated_cores} x=1\ncmdline_kvm=+kvm.halt_poll_ns=0",
    );
    has(
        &host.dwell(&["doctor"]),
        &[
            "rt/tuned.conf [bootloader] asks for halt_poll_ns=0, and 200000 ns is in force",
            "after the next boot it is 0",
        ],
        &[],
    );
}

/// 15 and 16 passed before and do still.
#[test]
fn io_threads_of_proxmox_and_a_hook_script_for_one_vm() {
    let host = Copied::of("5.15.131-2-pve", &[("proc/cpuinfo", "vendor_id\t: AuthenticAMD")]);
    host.kvm("0", "0").file("sys/module/kvm_amd/parameters/avic", "N").vm(
        5101,
        &[
            "/usr/bin/kvm",
            "-name",
            "win10",
            "-object",
            "iothread,id=iothread-virtioscsi0,poll-max-ns=0,poll-grow=4",
        ],
    );
    host.file("proc/5101/task/5112/comm", "IO iothread-vir");
    has(
        &host.dwell(&["doctor"]),
        &[
            "may differ from what running VMs use",
            "I/O thread iothread-virtioscsi0 thread 5112",
            "host polling: halt_poll_ns as it was when the VM was created; I/O threads: iothread-virtioscsi0 never polls",
            "what is written before one VM starts, and the old value after it, is for that VM alone",
        ],
        &[],
    );
    has(&host.dwell(&["explain", "halt_poll_ns=0"]), &["is a setting of this VM alone"], &[]);
}

/// `dwell explain --arch`: rules and defaults of an architecture, whatever this machine is.
#[test]
fn an_architecture_is_explained() {
    let of = |arch: &str| run(&["explain", "halt_poll_ns=0", "--kernel", "6.1", "--arch", arch]);
    for (arch, default) in [("aarch64", "500000"), ("s390x", "50000"), ("x86_64", "200000")] {
        has(&of(arch), &[&format!("compared with the default {default}")], &[]);
    }
    has(&of("ppc64le"), &["not modelled"], &["effective", "no effect"]);
    has(&of("mips"), &["no architecture whose defaults are known", "riscv64"], &[]);
    let timer = run(&["explain", "pi_inject_timer=1", "--kernel", "6.1", "--arch", "aarch64"]);
    has(&timer, &["pi_inject_timer"], &["effective", "has no effect"]);
}

/// `dwell params --arch`.
#[test]
fn parameters_of_an_architecture() {
    let of = |arch: &str| run(&["params", "--kernel", "6.1", "--arch", arch, "--format", "csv"]);
    for (arch, default) in
        [("arm64", "500000"), ("s390x", "50000"), ("ppc64le", "10000"), ("riscv64", "500000")]
    {
        let listed = of(arch);
        has(&listed, &[&format!("halt_poll_ns,ns,0,4294967295,{default},")], &["pi_inject_timer"]);
    }
    has(&of("s390x"), &["halt_poll_max_steal"], &["guest_halt_poll_ns"]);
}

/// Only x86 has exits that a VM can do without, and only s390x a limit of steal time.
#[test]
fn what_other_architectures_do_not_have_is_not_found_there() {
    let host = Copied::of("6.8.0", &[("proc/sys/kernel/arch", "aarch64")]);
    host.kvm("500000", "2")
        .vm(7, &["qemu-system-aarch64", "-overcommit", "cpu-pm=on", "-machine", "virt,accel=kvm"]);
    has(
        &host.dwell(&["doctor"]),
        &["host polling: halt_poll_ns"],
        &["HLT does not exit", "timers may be posted"],
    );
    host.file("proc/sys/kernel/arch", "s390x").file("sys/module/kvm/parameters/halt_poll_max_steal", "0");
    has(&host.dwell(&["doctor"]), &["halt_poll_max_steal = 0: the host never polls"], &[]);
}

/// A trace of a host or of a guest: what its architecture and its halts show is said where advice is given.
#[test]
fn a_recording_of_another_architecture_is_not_taken_for_one_of_x86_64() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let tune = |arch: &str, line: fn(u64) -> String| {
        let lines: String = (0..400).map(line).collect();
        std::fs::write(path("t"), format!("# os release : 6.8.0\n# arch : {arch}\n{lines}")).unwrap();
        run(&["import", &path("t"), "-o", &path("r"), "--force"]);
        run(&["tune", &path("r"), "--halt-cost", "20us"])
    };
    let host = |at: u64| {
        let ns = 8_000 + at % 7 * 1_000;
        format!(
            "CPU 0/KVM 7/77 [001] 5.{:06}: kvm:kvm_vcpu_wakeup: wait time {ns} ns, polling valid\n",
            30 + at * 31
        )
    };
    // No poll ever succeeded, which is not how the default does.
    let never = "`present` is the default, which was not in force";
    has(&tune("s390x", host), &["halt_poll_max_steal percent, and a wakeup", never], &[]);
    has(&tune("ppc64le", host), &["is not known (KVM on POWER polls by rules of its own"], &[]);
    has(&tune("x86_64", host), &[never], &["max_steal"]);
    let guest = |at: u64| {
        let line =
            |us: u64, state: u32| format!("a 0 [001] 5.{us:06}: power:cpu_idle: state={state} cpu_id=1\n");
        line(30 + at * 31, 1) + &line(43 + at * 31, u32::MAX)
    };
    has(&tune("s390x", guest), &["on x86-64; elsewhere Linux has no haltpoll"], &["panicked"]);
    has(&run(&["sketch", &path("r"), "-o", &path("s")]), &["of the host rule of 6.8.s390x"], &["panicked"]);
}

/// Options that decide whether a parameter has an effect.
#[test]
fn what_is_no_parameter_is_explained_by_what_it_does_to_them() {
    has(
        &run(&["explain", "cpu-pm=on"]),
        &["cpu-pm: is no parameter", "halt_poll_ns has no effect on it"],
        &[],
    );
    has(&run(&["explain", "cpuidle.governor=teo"]), &["are read by haltpoll only"], &[]);
}
