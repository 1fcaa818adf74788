//! Doctor's findings: settings that have no effect, that are equivalent to others, or that do harm.
//!
//! # Idea
//! One table, [`TABLE`]: each row has a code, a severity, the condition under which it is found, and three
//! texts: what is the case, why it matters, what to do. The condition returns the figures that the texts name
//! in braces. Whether a parameter has an effect, whether a setting ever polls, and whether two settings are
//! equivalent is not stated here: it is decided by the models of [`explain`], and by [`Readers`] for what a
//! machine shows.
//!
//! ```
//! use dwell_knobs::finding;
//! use dwell_machine::Facts;
//! use dwell_testing::machine::Fake;
//!
//! let machine = Fake::quiet("6.18.44");
//! assert!(finding::of(&Facts::read(&machine)).is_empty());
//! machine.set("/sys/module/kvm/parameters/halt_poll_ns_grow", "0\n");
//! assert_eq!(finding::of(&Facts::read(&machine))[0].code, "host-never-polls");
//! ```

pub mod manager;

use crate::condition::Readers;
use crate::explain::same::{Sameness, compare};
use crate::explain::{self, with};
use crate::knob::Knob;
use Severity::{Danger, Note, Warning};
use dwell_machine::load::SHARED_CORE;
use dwell_machine::parameter::{self, Parameter};
use dwell_machine::wanted::{Reader, Wanted};
use dwell_machine::{
    Absent, Cpuidle, DwellIdle, Facts, Guest, IoThread, KvmDevice, Loading, VmOptions, Vmm, VmmKind,
};
use dwell_policy::arch::Arch;
use dwell_policy::host::{MaxSource, Revision as HostRevision};
use dwell_policy::param::{self, Param, Setting, Unit};
use dwell_policy::timer::Revision as TimerRevision;
use dwell_policy::version::{Build, Version};
use dwell_policy::{Layer, Owner};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

dwell_policy::named! {
    /// The severity of a finding.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Severity {
        /// Nothing is wrong, but a value does not mean what it seems to.
        Note = "note",
        /// A value that was set does not do what it was set for.
        Warning = "warning",
        /// A CPU polls without end, or a window that has grown does not shrink again.
        Danger = "danger",
    }

    pub fn name
}

/// A finding about how a machine idles, with its figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What identifies the kind of finding.
    pub code: &'static str,
    pub data: Data,
    /// How grave it is.
    pub severity: Severity,
    /// What is the case.
    pub what: String,
    /// Why it is so, or why it matters.
    pub why: String,
    /// What to do about it, in one line.
    pub remedy: String,
}

/// The figures of a finding, by name.
pub type Data = BTreeMap<&'static str, Value>;

/// A row of [`TABLE`].
pub struct Row {
    /// What identifies the kind of finding.
    pub code: &'static str,
    /// How grave it is.
    pub severity: Severity,
    /// Where it is the case: the figures of each instance.
    pub when: fn(&Facts) -> Vec<Data>,
    /// What is the case, with the names of figures in braces.
    pub what: &'static str,
    /// Why it is so, or why it matters.
    pub why: &'static str,
    /// What to do about it, in one line.
    pub remedy: &'static str,
}

/// Everything that is found on a machine, the gravest first.
pub fn of(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        TABLE.iter().flat_map(|row| (row.when)(facts).into_iter().map(|data| row.finding(data))).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

impl Row {
    fn finding(&self, data: Data) -> Finding {
        let text = |template: &str| filled(template, &data);
        let (what, why, remedy) = (text(self.what), text(self.why), text(self.remedy));
        Finding { code: self.code, severity: self.severity, what, why, remedy, data }
    }
}

/// A text with the figures in place of their names. Names of processes and files come from the machine: nothing of them
/// may steer a terminal.
fn filled(template: &str, data: &Data) -> String {
    data.iter().fold(template.to_owned(), |text, (name, value)| {
        let shown: String = shown(value).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        text.replace(&format!("{{{name}}}"), &shown)
    })
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

/// Every finding there is.
pub static TABLE: &[Row] = &[
    Row {
        code: "kernel-unknown",
        severity: Note,
        when: |facts| {
            let release = facts.kernel.release.as_ref().filter(|_| !facts.kernel.rules_known);
            each(release, |release| {
                let build = Build::of(release).filter(|build| build.distributor.backports());
                let also = build.map(|build| {
                    format!("; {} has taken over later rules into it", build.distributor.name())
                });
                [
                    ("release", json!(release)),
                    ("known", json!(facts.kernel.known)),
                    ("also", json!(also.unwrap_or_default())),
                ]
            })
        },
        what: "kernel {release} is outside the versions that dwell has models of ({known})",
        why: "defaults and effects are not known, and left out{also}",
        remedy: "give a version with a similar rule by --kernel, where a command takes it",
    },
    Row {
        code: "kernel-not-shown",
        severity: Note,
        when: |facts| when(facts.kernel.release.is_none()),
        what: "the kernel's release does not show here: what depends on it was not looked for",
        why: "there is neither /proc/sys/kernel/osrelease nor /proc/version",
        remedy: "with --sysroot, name the directory that has proc and sys of that machine, and copy its /proc/version there",
    },
    Row {
        code: "kernel-of-distributor",
        severity: Note,
        when: of_distributor,
        what: "kernel {release} is {distributor}'s, with changes of later releases: not every rule of {series} is its own",
        why: "known are {sources}; where no source shows which rule this kernel has, the rules that are possible are named",
        remedy: "nothing; where a rule is named as not known, measure, or take the more careful one",
    },
    Row {
        code: "architecture-not-modelled",
        severity: Note,
        when: |facts| {
            let why = facts.kernel.arch.and_then(|arch| {
                Some((arch, arch.lacks(Owner::Layer(Layer::Host)).or(arch.host_proviso())?))
            });
            each(why.filter(|_| facts.host.kvm.is_some()), |(arch, why)| {
                [("arch", json!(arch.name())), ("why", json!(why))]
            })
        },
        what: "halt polling on {arch} is modelled in part, or not at all",
        why: "{why}",
        remedy: "nothing; the defaults and the parameters listed are those of {arch}",
    },
    Row {
        code: "parameter-unreadable",
        severity: Warning,
        when: |facts| {
            let unreadable = parameters(facts).filter(|parameter| parameter.value.is_none());
            each(unreadable, |parameter| [("path", json!(parameter.path))])
        },
        what: "{path} has no number",
        why: "the effect of the setting is not known",
        remedy: "read the file as root",
    },
    Row {
        code: "parameter-no-effect",
        severity: Warning,
        when: without_effect,
        what: "{knobs}: no effect",
        why: "{why}",
        remedy: "set the default ({defaults}), or change what prevents the effect",
    },
    Row {
        code: "wanted-refused",
        severity: Warning,
        when: |facts| {
            asked(facts, |facts, wanted, param| {
                let known = facts.kernel.version.is_none_or(|version| param.exists_in(version));
                (known && is_of(wanted) && accepted(facts, param, &wanted.value).is_none()).then(|| {
                    let then = match wanted.reader {
                        Reader::Modprobe => "the module does not load with it",
                        Reader::Kernel => {
                            "a module does not load with it, and one that is built in keeps its default"
                        }
                        _ => "the write is refused and the value stays",
                    };
                    format!("the kernel takes {}; {then}", range(param))
                })
            })
        },
        what: "{by} asks for {name}={value}, which the kernel refuses: {now}",
        why: "{why}",
        remedy: "write a value that it takes; 0 means {zero}",
    },
    Row {
        code: "wanted-ignored",
        severity: Warning,
        when: |facts| asked(facts, ignored),
        what: "{by} asks for {name}={value}, which nothing reads: {now}",
        why: "{why}",
        remedy: "remove it, or write {owner}.{name} (in modprobe.d: options {owner} {name}=...) where the parameter exists",
    },
    Row {
        code: "wanted-overridden",
        severity: Note,
        when: |facts| {
            asked(facts, |facts, wanted, param| {
                let later = last_wanted(facts, param).filter(|last| !std::ptr::eq(*last, wanted))?;
                let value = accepted(facts, param, &wanted.value)?;
                (wanted.reader != Reader::Bootloader
                    && is_read(facts, wanted, param)
                    && accepted(facts, param, &later.value) != Some(value))
                .then(|| format!("{} sets it to {} later", later.by, later.value))
            })
        },
        what: "{by} asks for {name}={value}, which is overridden: {now}",
        why: "{why}",
        remedy: "keep one of the two",
    },
    Row {
        code: "wanted-not-in-force",
        severity: Warning,
        when: |facts| {
            asked(facts, |facts, wanted, param| {
                let last = last_wanted(facts, param).is_some_and(|last| std::ptr::eq(last, wanted));
                let now = parameters(facts).find(|parameter| parameter.param == param)?.value?;
                let value = accepted(facts, param, &wanted.value)?;
                let why = match wanted.reader {
                    Reader::Modprobe | Reader::Kernel => {
                        format!("; after the next boot it is {}", wanted.value)
                    }
                    Reader::Script => {
                        ", or it is not run: rc.local has to be executable, a unit enabled".into()
                    }
                    _ => format!(", or {} was loaded after it was read", wanted.module),
                };
                (last && value != now && param.name != "pi_inject_timer")
                    .then(|| format!("it was written since, or {} was changed since{why}", wanted.by))
            })
        },
        what: "{by} asks for {name}={value}, and {now}",
        why: "{why}",
        remedy: "write the value that is wanted to both; what modprobe.d has (options {owner} {name}={value}) is set \
                 whenever {owner} is loaded",
    },
    Row {
        code: "wanted-at-next-boot",
        severity: Warning,
        when: |facts| {
            asked(facts, |facts, wanted, param| {
                let now = parameters(facts).find(|parameter| parameter.param == param)?.value;
                let value = accepted(facts, param, &wanted.value);
                let same = |other: &Wanted| {
                    other.param == Some(param) && accepted(facts, param, &other.value) == value
                };
                let booted = facts.wanted.iter().any(|other| other.reader == Reader::Kernel && same(other));
                let is_next = wanted.reader == Reader::Bootloader && is_read(facts, wanted, param);
                (is_next && !booted && value != now).then(String::new)
            })
        },
        what: "{by} asks for {name}={value}, and {now}",
        why: "the boot loader passes it to the kernel once its own configuration is generated again: after the next boot it is \
              {value}",
        remedy: "update-grub, grub2-mkconfig or proxmox-boot-tool refresh, whichever this machine has, and reboot",
    },
    Row {
        code: "wanted-unknown",
        severity: Warning,
        when: |facts| {
            each(facts.wanted.iter().filter(|wanted| wanted.unknown), |wanted| {
                [
                    ("by", json!(wanted.by)),
                    ("module", json!(wanted.module)),
                    ("name", json!(wanted.name)),
                    ("value", json!(wanted.value)),
                ]
            })
        },
        what: "{by} asks for {name}={value} of {module}, which has no such parameter",
        why: "the kernel ignores it; of a module dmesg has `{module}: unknown parameter '{name}' ignored`",
        remedy: "correct the name (ls /sys/module/{module}/parameters has those that there are), or remove it",
    },
    Row {
        code: "kvm-denied",
        severity: Note,
        when: |facts| when(matches!(facts.host.device, KvmDevice::Closed { why: Absent::Denied })),
        what: "/dev/kvm cannot be opened by this user",
        why: "VMs of this user cannot use KVM",
        remedy: "join the group that owns it (usually kvm)",
    },
    Row {
        code: "processes-unseen",
        severity: Note,
        when: |facts| {
            let unseen = Some(facts.host.unseen_processes).filter(|n| facts.host.kvm.is_some() && *n > 0);
            each(unseen, |processes| [("processes", json!(processes))])
        },
        what: "the open files of {processes} processes are hidden; VMs may be among them",
        why: "only root may list the open files of other users' processes",
        remedy: "run as root",
    },
    Row {
        code: "host-max-copied",
        severity: Note,
        when: |facts| max_copied(facts, false),
        what: "this kernel copies halt_poll_ns when a VM is created",
        why: COPIED,
        remedy: "set halt_poll_ns before VMs are started",
    },
    Row {
        code: "host-max-may-differ",
        severity: Warning,
        when: |facts| max_copied(facts, true),
        what: "halt_poll_ns = {halt_poll_ns} ns may differ from what running VMs use ({vms} running)",
        why: COPIED,
        remedy: "restart or migrate VMs after a write (what is written before one VM starts, and the old value after it, is \
                 for that VM alone), or use 6.1",
    },
    Row {
        code: "host-max-not-known",
        severity: Note,
        when: |facts| when(facts.host.max_source.is_none() && host(facts).is_some()),
        what: "whether running VMs follow a write to halt_poll_ns is not known for this kernel",
        why: COPIED,
        remedy: "look for override_halt_poll_ns in the kernel's types (bpftool btf dump file /sys/kernel/btf/kvm): where it is, they \
                 do; else restart or migrate VMs after a write",
    },
    Row {
        code: "host-polling-off",
        severity: Note,
        when: |facts| never_polls(host(facts), "halt_poll_ns", true),
        what: "halt_poll_ns = 0: the host never polls",
        why: "with a maximum of 0 the window is 0 after every halt",
        remedy: "nothing, if that is intended; else set halt_poll_ns",
    },
    Row {
        code: "host-never-polls",
        severity: Warning,
        when: |facts| never_polls(host(facts), "halt_poll_ns", false),
        what: "{name} = {value}: the host never polls",
        why: "no window ever grows above 0; the setting is equivalent to halt_poll_ns = 0",
        remedy: "set {name}={default} (the default); to switch polling off, set halt_poll_ns=0",
    },
    Row {
        code: "host-steal-limit-zero",
        severity: Note,
        when: |facts| when(parameter::get(&facts.host.parameters, "halt_poll_max_steal") == Some(0)),
        what: "halt_poll_max_steal = 0: the host never polls",
        why: "no vCPU polls while the host's steal time is at or above this limit, and it is never below 0",
        remedy: "set halt_poll_max_steal=10 (the default); to switch polling off, set halt_poll_ns=0",
    },
    Row {
        code: "host-grow-start-above-max",
        severity: Note,
        when: |facts| acts_as(host(facts), "halt_poll_ns_grow_start", "halt_poll_ns"),
        what: "halt_poll_ns_grow_start = {value} ns is above halt_poll_ns = {max} ns",
        why: "the first growth gives the maximum at once: the value is equivalent to {max}",
        remedy: "set halt_poll_ns_grow_start={max}, which is equivalent",
    },
    Row {
        code: "host-grow-one",
        severity: Note,
        when: |facts| effective(host(facts), "halt_poll_ns_grow", 1),
        what: "halt_poll_ns_grow = 1: a window is halt_poll_ns_grow_start or 0",
        why: "growth multiplies by 1, and the least that it gives is halt_poll_ns_grow_start",
        remedy: "nothing, if a fixed window is intended; the default is {default}",
    },
    Row {
        code: "host-shrink-zero",
        severity: Note,
        when: |facts| effective(host(facts), "halt_poll_ns_shrink", 0),
        what: "halt_poll_ns_shrink = 0: one long halt drops the window to 0",
        why: "the window then has to grow again from halt_poll_ns_grow_start, one halt after another",
        remedy: "set halt_poll_ns_shrink=2 where wakeups come in bursts (the default since 6.11; here it is {default})",
    },
    Row {
        code: "host-shrink-one",
        severity: Warning,
        when: |facts| effective(host(facts), "halt_poll_ns_shrink", 1),
        what: "halt_poll_ns_shrink = 1: long halts do not shrink the window",
        why: "the full window is polled before every long halt, and the poll fails",
        remedy: "set halt_poll_ns_shrink=2, or 0",
    },
    Row {
        code: "idle-poll",
        severity: Danger,
        when: |facts| {
            each(facts.guest.polls_by, |by| {
                let is_x86 = by == "idle=poll";
                let instead = match facts.guest.kvm_guest {
                    Some(true) => HALTPOLL_INSTEAD.to_owned(),
                    None if is_x86 => {
                        format!("in a guest of KVM, {HALTPOLL_INSTEAD}; on a host, {LATENCY_INSTEAD}")
                    }
                    _ => LATENCY_INSTEAD.to_owned(),
                };
                let also = if is_x86 { ", and the haltpoll driver refuses to load" } else { "" };
                [("by", json!(by)), ("instead", json!(instead)), ("also", json!(also))]
            })
        },
        what: "{by} on the kernel's command line: no CPU ever halts",
        why: "every idle CPU polls all the time{also}",
        remedy: "remove it; {instead}",
    },
    Row {
        code: "idle-ignored",
        severity: Note,
        when: |facts| {
            let ignored = facts.kernel.argument("idle").filter(|_| facts.guest.idle_override.is_none());
            each(ignored, |value| [("value", json!(value))])
        },
        what: "idle={value} on the kernel's command line has no effect",
        why: "only x86 has this parameter; with nohlt the idle CPUs of other architectures poll",
        remedy: "remove it",
    },
    Row {
        code: "idle-override",
        severity: Note,
        when: |facts| {
            let value = facts.guest.idle_override.as_ref().filter(|value| *value != "poll");
            each(value, |value| [("value", json!(value))])
        },
        what: "idle={value} on the kernel's command line",
        why: "the haltpoll driver refuses to load with any idle=",
        remedy: "remove it if haltpoll is wanted",
    },
    Row {
        code: "governor-not-there",
        severity: Warning,
        when: |facts| {
            let (asked, there) = (facts.kernel.argument("cpuidle.governor"), &facts.guest.cpuidle);
            let is_there = |name: &&str| there.governors.iter().any(|of| of.eq_ignore_ascii_case(name));
            let lacks = |name: &&str| !there.governors.is_empty() && !is_there(name);
            each(asked.filter(lacks).zip(there.governor.as_ref()), |(asked, governor)| {
                [("asked", json!(asked)), ("governor", json!(governor))]
            })
        },
        what: "cpuidle.governor={asked} on the kernel's command line has no effect: {governor} is in use",
        why: "this kernel has no such governor; haltpoll registers in KVM guests only",
        remedy: "remove it",
    },
    Row {
        code: "haltpoll-other-driver",
        severity: Note,
        when: |facts| {
            let found = no_driver(facts, |guest| guest.dwell_idle.is_none());
            each(found.into_iter().zip(facts.guest.cpuidle.driver.as_deref()), |(_, driver)| {
                [("without", json!(without_driver(driver)))]
            })
        },
        what: HALTPOLL_IDLE,
        why: "another cpuidle driver is registered, and there can be only one",
        remedy: "{without} if haltpoll is wanted",
    },
    Row {
        code: "haltpoll-cpuidle-off",
        severity: Note,
        when: |facts| no_driver(facts, |guest| guest.cpuidle_off),
        what: HALTPOLL_IDLE,
        why: "cpuidle.off on the kernel's command line keeps every driver and every governor out",
        remedy: "remove cpuidle.off from the command line if haltpoll is wanted",
    },
    Row {
        code: "haltpoll-idle-override",
        severity: Note,
        when: |facts| {
            no_driver(facts, |guest| {
                guest.cpuidle.driver.is_none() && !guest.cpuidle_off && guest.idle_override.is_some()
            })
        },
        what: HALTPOLL_IDLE,
        why: "the driver refuses to load with idle= on the kernel's command line",
        remedy: "remove idle= from the command line",
    },
    Row {
        code: "haltpoll-not-a-kvm-guest",
        severity: Note,
        when: |facts| {
            when(is_unused(&facts.guest) && could_load(&facts.guest) && facts.guest.kvm_guest == Some(false))
        },
        what: "the haltpoll governor is part of this kernel, but has no effect here",
        why: "the driver and the governor need KVM's signature in CPUID, which is missing",
        remedy: "nothing: haltpoll is for guests of KVM",
    },
    Row {
        code: "haltpoll-of-distributor",
        severity: Note,
        when: |facts| {
            let other = facts.kernel.arch.filter(|arch| *arch != Arch::X86_64);
            let found = no_driver(facts, could_load).into_iter().zip(other).next();
            each(found, |(_, arch)| [("arch", json!(arch.name()))])
        },
        what: HALTPOLL_IDLE,
        why: "Linux has haltpoll on x86-64 only, up to 7.3: on {arch} this kernel has it from its distributor, and what its \
              driver asks for does not show here",
        remedy: "modprobe cpuidle_haltpoll force=1, as openEuler documents; dmesg has the reason if it does not load",
    },
    Row {
        code: "haltpoll-guest-not-known",
        severity: Note,
        when: |facts| {
            let x86 = facts.kernel.arch.is_none_or(|arch| arch == Arch::X86_64);
            no_driver(facts, |guest| could_load(guest) && guest.kvm_guest.is_none() && x86)
        },
        what: HALTPOLL_IDLE,
        why: "whether this is a guest of KVM, which the driver asks for, does not show here",
        remedy: "run dwell doctor on that machine",
    },
    Row {
        code: "haltpoll-no-realtime-hint",
        severity: Note,
        when: |facts| no_driver(facts, |_| needs_hint(facts) && can_be_forced(facts)),
        what: HALTPOLL_IDLE,
        why: "the driver loads only if the hypervisor gives the REALTIME hint, or if it is forced",
        remedy: "modprobe cpuidle-haltpoll force=1 (built in: boot with cpuidle_haltpoll.force=1); for a VM on CPUs of its own \
                 -cpu …,kvm-hint-dedicated=on, which promises that, and the guest then does without paravirtual \
                 spinlocks and TLB flushes",
    },
    Row {
        code: "haltpoll-no-realtime-hint-no-force",
        severity: Note,
        when: |facts| no_driver(facts, |_| needs_hint(facts) && !can_be_forced(facts)),
        what: HALTPOLL_IDLE,
        why: "the driver loads only if the hypervisor gives the REALTIME hint",
        remedy: "use Linux 5.7, whose driver can be forced; for a VM on CPUs of its own -cpu …,kvm-hint-dedicated=on, which \
                 promises that",
    },
    Row {
        code: "haltpoll-not-loaded",
        severity: Note,
        when: |facts| {
            no_driver(facts, |guest| could_load(guest) && guest.kvm_guest == Some(true) && !needs_hint(facts))
        },
        what: HALTPOLL_IDLE,
        why: "the driver cpuidle-haltpoll could load, but is not loaded",
        remedy: "modprobe cpuidle-haltpoll",
    },
    Row {
        code: "other-governor",
        severity: Warning,
        when: |facts| {
            other_governor(facts, |cpuidle| cpuidle.has_haltpoll_governor() && cpuidle.governor_can_be_set)
        },
        what: "the haltpoll driver is in use, but governor {governor} decides",
        why: "guest_halt_poll_* are read by the governor haltpoll only",
        remedy: "echo haltpoll > /sys/devices/system/cpu/cpuidle/current_governor, and remove cpuidle.governor= from the \
                 kernel's command line",
    },
    Row {
        code: "other-governor-at-boot",
        severity: Warning,
        when: |facts| {
            other_governor(facts, |cpuidle| cpuidle.has_haltpoll_governor() && !cpuidle.governor_can_be_set)
        },
        what: "the haltpoll driver is in use, but governor {governor} decides",
        why: "guest_halt_poll_* are read by the governor haltpoll only, and this kernel lets the governor be chosen only at boot",
        remedy: "boot with cpuidle.governor=haltpoll",
    },
    Row {
        code: "no-haltpoll-governor",
        severity: Warning,
        when: |facts| other_governor(facts, |cpuidle| !cpuidle.has_haltpoll_governor()),
        what: "the haltpoll driver is in use without the haltpoll governor; governor {governor} decides",
        why: "this kernel was built without CONFIG_CPU_IDLE_GOV_HALTPOLL (as Debian 12's 6.1): it has {governors} only, and \
              no guest_halt_poll_* parameters",
        remedy: "boot a kernel with CONFIG_CPU_IDLE_GOV_HALTPOLL, or tune the host's halt polling instead",
    },
    Row {
        code: "both-layers-poll",
        severity: Warning,
        when: |facts| {
            let both = haltpoll_decides(facts) && facts.guest.poll_control == Some(false);
            each(both.then(|| manager::POLL_CONTROL.any()), |how| [("poll_control", json!(how))])
        },
        what: "guest and host both poll",
        why: "the hypervisor offers no poll control, so after a failed poll of the guest the host polls once more; QEMU offers it \
              to named CPU models only if it is asked to",
        remedy: "give the VM poll control: {poll_control}; on a host before 5.4, or where that cannot be set, halt_poll_ns=0 \
                 there",
    },
    Row {
        code: "dwell-idle",
        severity: Note,
        when: |facts| dwell_idle(facts, DwellIdle::polls),
        what: "idle driver dwell_idle: policy {policy}, halt cost {halt_cost_ns} ns, wakeup latency {wake_latency_ns} ns, \
               windows up to {max_window_ns} ns, on CPUs {cpus}",
        why: "it learns how long to poll; guest_halt_poll_* have no effect",
        remedy: "nothing; rmmod dwell_idle removes it",
    },
    Row {
        code: "dwell-idle-never-polls",
        severity: Warning,
        when: |facts| dwell_idle(facts, |driver| !driver.polls()),
        what: "idle driver dwell_idle never polls: policy {policy}, max_window_ns {max_window_ns}, cpus {cpus}",
        why: "policy never, a maximum window of 0 and an empty list of CPUs each mean that every CPU halts at once",
        remedy: "set policy=leader, max_window_ns=200000 and cpus in /sys/module/dwell_idle/parameters, or rmmod dwell_idle",
    },
    Row {
        code: "dwell-idle-both-layers-poll",
        severity: Warning,
        when: |facts| {
            let host_polls = facts.guest.poll_control == Some(false);
            dwell_idle(facts, |driver| driver.polls() && (host_polls || !driver.poll_control))
        },
        what: "guest and host both poll",
        why: "the hypervisor offers no poll control, or dwell_idle was loaded with poll_control=N: after a failed poll of the \
              guest the host polls once more",
        remedy: "load dwell_idle without poll_control=N; else update the host, or set halt_poll_ns=0 there",
    },
    Row {
        code: "allow-shrink-off",
        severity: Danger,
        when: |facts| {
            when(guest(facts).is_some_and(|set| set.get("guest_halt_poll_allow_shrink") == Some(0)))
        },
        what: "guest_halt_poll_allow_shrink = N: a window that has grown never shrinks",
        why: "it is polled in full before every halt, however idle the CPU is",
        remedy: "set shrink=0, guest_halt_poll_ns=1000, allow_shrink=Y, wait a second, then write the values wanted",
    },
    Row {
        code: "guest-polling-off",
        severity: Note,
        when: |facts| never_polls(guest(facts), "guest_halt_poll_ns", true),
        what: "guest_halt_poll_ns = 0: the guest never polls",
        why: "no halt is within a maximum of 0, so no window grows",
        remedy: "nothing, if that is intended",
    },
    Row {
        code: "guest-never-polls",
        severity: Warning,
        when: |facts| never_polls(guest(facts), "guest_halt_poll_ns", false),
        what: "{name} = {value}: the guest never polls",
        why: "no window ever grows above 0; the setting is equivalent to guest_halt_poll_ns = 0",
        remedy: "set {name}={default} (the default)",
    },
    Row {
        code: "maximum-of-any-idle-time",
        severity: Warning,
        when: |facts| {
            [(host(facts), "halt_poll_ns"), (guest(facts), "guest_halt_poll_ns")]
                .into_iter()
                .flat_map(|(setting, name)| longer_than_idle_times(setting, name))
                .collect()
        },
        what: "{name} = {value} ns: an idle CPU may poll for {ms} ms",
        why: "windows then grow beyond almost every idle time, and idle CPUs poll nearly all the time; the value is in ns",
        remedy: "set {name}; the default is {default}, and a few ms are the longest in use",
    },
    Row {
        code: "guest-grow-start-above-max",
        severity: Note,
        when: |facts| acts_as(guest(facts), "guest_halt_poll_grow_start", "guest_halt_poll_ns"),
        what: "guest_halt_poll_grow_start = {value} ns is above guest_halt_poll_ns = {max} ns",
        why: "the first growth gives the maximum at once: the value is equivalent to {max}",
        remedy: "set guest_halt_poll_grow_start={max}, which is equivalent",
    },
    Row {
        code: "guest-does-not-grow",
        severity: Note,
        when: |facts| {
            [
                effective(guest(facts), "guest_halt_poll_grow", 0),
                effective(guest(facts), "guest_halt_poll_grow", 1),
            ]
            .concat()
        },
        what: "guest_halt_poll_grow = {value}: every growth gives guest_halt_poll_grow_start",
        why: "the product is never above guest_halt_poll_grow_start, which is the least that growth gives",
        remedy: "nothing, if a fixed window is intended; the default is {default}",
    },
    Row {
        code: "guest-shrink-zero",
        severity: Note,
        when: |facts| effective(guest(facts), "guest_halt_poll_shrink", 0),
        what: "guest_halt_poll_shrink = 0: one long halt drops the window to 0",
        why: "the window then has to grow again from guest_halt_poll_grow_start, one halt after another",
        remedy: "nothing, if that is intended; the default is {default}",
    },
    Row {
        code: "guest-shrink-one",
        severity: Warning,
        when: |facts| effective(guest(facts), "guest_halt_poll_shrink", 1),
        what: "guest_halt_poll_shrink = 1: long halts do not shrink the window",
        why: "the full window is polled before every long halt, and the poll fails",
        remedy: "set guest_halt_poll_shrink={default} (the default)",
    },
    Row {
        code: "idle-states-disabled",
        severity: Danger,
        when: |facts| {
            let guest = &facts.guest;
            // haltpoll does not look at it.
            let fire = guest.cpuidle.driver.is_some() && !haltpoll_decides(facts);
            if fire { of_cpus(&guest.polling_only_cpus, false) } else { vec![] }
        },
        what: "every idle state that halts is disabled for {cpus}",
        why: "an idle CPU then polls without end, in state 0",
        remedy: "enable a state that halts (cpupower idle-set -E enables all)",
    },
    Row {
        code: "latency-request-zero",
        severity: Warning,
        when: |facts| latency_zero(facts, false),
        what: "a latency limit of 0 is requested for {cpus}",
        why: "the shallowest idle state is always used; in a guest that is polling",
        remedy: "end the process that holds the request (lsof /dev/cpu_dma_latency), or have it request 1 us instead",
    },
    Row {
        code: "latency-request-zero-haltpoll",
        severity: Danger,
        when: |facts| latency_zero(facts, true),
        what: "a latency limit of 0 is requested for {cpus}, and haltpoll decides",
        why: "the CPU polls without end, and when the request ends a default window remains",
        remedy: "end the process that holds the request (lsof /dev/cpu_dma_latency); then write any cpuidle state attribute, \
                 which zeroes the window",
    },
    Row {
        code: "pi-inject-apicv-off",
        severity: Warning,
        when: |facts| cannot_post(facts, true),
        what: "pi_inject_timer is on and has no effect: APICv (AVIC) is off",
        why: "{why}",
        remedy: "load kvm_intel with enable_apicv=1 (kvm_amd with avic=1), or set pi_inject_timer=0",
    },
    Row {
        code: "pi-inject-no-apicv",
        severity: Warning,
        when: |facts| cannot_post(facts, false),
        what: "pi_inject_timer is on and has no effect: this KVM has no APICv or AVIC",
        why: "{why}",
        remedy: "set pi_inject_timer=0, which is equivalent here",
    },
    Row {
        code: "pi-inject-needs-exits-disabled",
        severity: Note,
        when: |facts| {
            let posts = posts(facts) && facts.timer.can_post == Some(true);
            let served = vms(facts).any(|(_, options)| options.cpu_pm);
            let found = posts && facts.timer.posting_needs_disabled_exits() && !served;
            each(found.then(|| cpu_pm(facts)), |how| [("cpu_pm", json!(how))])
        },
        what: "pi_inject_timer works only for VMs that execute MWAIT or HLT themselves, and none is seen here",
        why: "since 5.18 (and in stable 5.4, 5.10, 5.15, and RHEL 9 since 5.14.0-110) other VMs take the ordinary path",
        remedy: "start such VMs on dedicated CPUs with {cpu_pm}",
    },
    Row {
        code: "pi-inject-rule-not-known",
        severity: Note,
        when: |facts| {
            let modelled = |version: Version| param::known_version(Owner::Timer, version).is_ok();
            let undecided = facts.timer.posting_needs.is_none() && facts.kernel.version.is_some_and(modelled);
            let found = posts(facts) && facts.timer.can_post != Some(false) && undecided;
            each(found.then(|| cpu_pm(facts)), |how| [("cpu_pm", json!(how))])
        },
        what: "for which VMs pi_inject_timer works is not known for this kernel",
        why: "before 5.18 for every VM with APICv or AVIC, since then only for those that execute MWAIT or HLT themselves; \
              distributors have taken that over",
        remedy: "count on it only for VMs that have {cpu_pm}; or count their EXTERNAL_INTERRUPT exits (`dwell timer exits`)",
    },
    Row {
        code: "vm-next-start",
        severity: Warning,
        when: |facts| {
            each(&facts.next_start, |next| {
                [
                    ("name", json!(next.vm)),
                    ("pid", json!(next.pid)),
                    ("by", json!(next.by)),
                    ("what", json!(next.what)),
                    ("wanted", json!(next.wanted)),
                    ("now", json!(next.now)),
                ]
            })
        },
        what: "VM {name} (process {pid}) was started with {what}: {now}, and {by} has {wanted}",
        why: "QEMU keeps its command line until it ends: what libvirt's file says is for the next start",
        remedy: "shut the VM down and start it again (a reboot inside the guest is not enough), or edit the domain",
    },
    Row {
        code: "vm-cpu-pm",
        severity: Note,
        when: |facts| vms_that(facts, |vm| vm.cpu_pm),
        what: "VM {name} (process {pid}) executes HLT and MWAIT itself (cpu-pm=on): halt_poll_ns has no effect on it",
        why: "its idle vCPUs do not leave the guest, so the host neither polls for them nor counts their halts",
        remedy: "nothing; each of its vCPUs needs a CPU of its own, and its guest decides how it idles",
    },
    Row {
        code: "vm-windows-timers",
        severity: Warning,
        when: windows_timers,
        what: "VM {name} (process {pid}) is set up for Windows and lacks {lacking}",
        why: "Windows then keeps time with timers that exit hundreds to thousands of times a second while it is idle: a third \
              of a CPU is common, and no setting of halt polling changes that; `dwell why` shows them",
        remedy: "{windows}",
    },
    Row {
        code: "vm-hint-dedicated-shared",
        severity: Warning,
        when: dedicated_and_shared,
        what: "VM {name} (process {pid}) has kvm-hint-dedicated=on, and others had its CPUs: its vCPUs have waited for {percent} % \
               of the time that they wanted to run",
        why: "the hint tells the guest that its vCPUs are never preempted: it polls while it idles and spins for its locks, \
              and takes the CPU from whoever shares it",
        remedy: "take kvm-hint-dedicated (libvirt: <hint-dedicated state='on'/>) away, or give each of its vCPUs a CPU of its own",
    },
    Row {
        code: "vm-short-bursts",
        severity: Note,
        when: short_bursts,
        what: "VM {name} (process {pid}) has used {percent} % of a CPU on average, in {per_s} bursts a second of {us} us each",
        why: "so little work at a time is what timers, devices or their emulation wake a VM for that its guest counts as idle, \
              and halt polling is seldom the cause",
        remedy: "`dwell why {pid}`, which reports what it is for, and what removes it",
    },
    Row {
        code: "pi-inject-without-nohz-full",
        severity: Note,
        when: |facts| when(posts(facts) && facts.timer.nohz_full.is_empty()),
        what: "pi_inject_timer is on without nohz_full=",
        why: "a timer that fires on the vCPU's own CPU exits the guest all the same; it takes other CPUs to fire it",
        remedy: "boot with nohz_full= for the CPUs of VMs and leave others to the host",
    },
    Row {
        code: "timers-stay",
        severity: Warning,
        when: |facts| {
            let stay = facts.timer.timer_migration == Some(false) && !facts.timer.nohz_full.is_empty();
            each(Some(&facts.timer.nohz_full).filter(|_| stay), |cpus| [("nohz_full", json!(cpus))])
        },
        what: "kernel.timer_migration = 0 keeps timers on the CPUs without a tick ({nohz_full})",
        why: "each timer fires on the CPU that armed it, and interrupts the guest there",
        remedy: "sysctl kernel.timer_migration=1",
    },
    Row {
        code: "isolated-with-timers",
        severity: Note,
        when: |facts| {
            let timer = &facts.timer;
            let fire = facts.host.kvm.is_some() && !timer.isolated.is_empty() && timer.nohz_full.is_empty();
            each(Some(&timer.isolated).filter(|_| fire), |cpus| [("isolated", json!(cpus))])
        },
        what: "CPUs {isolated} are isolated, but timers still fire there",
        why: "isolcpus= alone does not move timers, and pi_inject_timer is enabled automatically only with nohz_full=",
        remedy: "boot with nohz_full= for the same CPUs",
    },
    Row {
        code: "no-preemption-timer",
        severity: Note,
        // No AMD CPU has one.
        when: |facts| {
            let is_intel = facts.host.vendor.iter().any(|module| module == "kvm_intel");
            when(is_intel && facts.timer.preemption_timer == Some(false))
        },
        what: "preemption_timer is off",
        why: "every timer of a running guest then costs a host interrupt and an exit",
        remedy: "load kvm_intel with preemption_timer=1 (the default)",
    },
    Row {
        code: "timer-advance-off",
        severity: Note,
        when: |facts| fixed_advance(facts, |ns| ns == 0),
        what: "the timer advance is off",
        why: "timers reach the guest late by the whole delivery time of the host",
        remedy: ADVANCE,
    },
    Row {
        code: "timer-advance-fixed",
        severity: Note,
        when: |facts| fixed_advance(facts, |ns| ns > 0),
        what: "lapic_timer_advance_ns = {advance_ns}: fixed, not learned",
        why: "with too large a value the CPU spins, with too small a value timers fire late; KVM can learn the value",
        remedy: ADVANCE,
    },
    Row {
        code: "iothread-no-effect",
        severity: Warning,
        when: iothread_without_effect,
        what: "{knobs} of iothread {id} (process {pid}): no effect",
        why: "{why}",
        remedy: "remove the properties without effect, or set poll-max-ns",
    },
    Row {
        code: "iothread-polling-off",
        severity: Note,
        when: |facts| iothreads(facts, |_, set| set.get("poll-max-ns") == Some(&0)),
        what: "iothread {id} of process {pid} never polls (poll-max-ns=0)",
        why: "with a maximum of 0 the event loop sleeps at once",
        remedy: "nothing, if that is intended; else set poll-max-ns (the default is 32768)",
    },
    Row {
        code: "iothread-maximum-of-any-idle-time",
        severity: Warning,
        when: |facts| {
            iothreads(facts, |_, set| set.get("poll-max-ns").is_some_and(|max| *max >= LONGEST_IDLE_NS))
        },
        what: "iothread {id} of process {pid} may poll for 100 ms and longer (poll-max-ns)",
        why: "the polling time then grows beyond almost every idle time, and an idle event loop polls nearly all the time; the \
              value is in ns",
        remedy: "set poll-max-ns; the default is 32768",
    },
    Row {
        code: "iothread-grow-one",
        severity: Note,
        when: |facts| iothreads(facts, |vmm, set| is_classic(vmm) && polls_with(set, "poll-grow", 1)),
        what: "iothread {id} of process {pid} has poll-grow=1: it polls for 4 us at most, whatever poll-max-ns is",
        why: "growth multiplies by 1 the 4000 ns that it begins with; since QEMU 11.1 the time also grows to that of the waits",
        remedy: "nothing, if that is intended; 2 doubles the polling time in every version",
    },
    Row {
        code: "iothread-shrink-one",
        severity: Warning,
        when: |facts| iothreads(facts, |_, set| polls_with(set, "poll-shrink", 1)),
        what: "iothread {id} of process {pid} has poll-shrink=1: long waits do not shrink its polling time",
        why: "the full time is polled before every long wait, and the poll fails",
        remedy: "set poll-shrink=2, which halves the polling time in every version",
    },
    Row {
        code: "iothread-shrink-zero",
        severity: Note,
        when: |facts| iothreads(facts, |vmm, set| is_classic(vmm) && polls_with(set, "poll-shrink", 0)),
        what: "iothread {id} of process {pid} has poll-shrink=0",
        why: "before QEMU 11.1 it means \"drop to zero at once\", since 11.1 it means the default, 2",
        remedy: "set the intended divisor; 2 halves the polling time in every version",
    },
];

const HALTPOLL_INSTEAD: &str = "haltpoll polls for a while and then halts";
const LATENCY_INSTEAD: &str = "request 1 us of latency for the CPUs that need it (pm_qos_resume_latency_us), or limit their C-states: \
                               haltpoll does not load there";
const COPIED: &str =
    "from 5.8 to 6.0 a VM keeps the value from its creation; since 6.1 it is read at every halt";
const HALTPOLL_IDLE: &str = "the haltpoll governor is available, but no cpuidle driver uses it";
const ADVANCE: &str = "set {learned} when kvm loads";

/// Each wanted value of a parameter of dwell's for which there is a reason, with it.
fn asked(facts: &Facts, reason: impl Fn(&Facts, &Wanted, &'static Param) -> Option<String>) -> Vec<Data> {
    let found = facts.wanted.iter().filter_map(|wanted| {
        let param = wanted.param?;
        Some((wanted, param, reason(facts, wanted, param)?))
    });
    each(found, |(wanted, param, why)| {
        let now = parameters(facts).find(|parameter| parameter.param == param).and_then(|p| p.value);
        let now = now.map_or_else(
            || "what is in force does not show here".to_owned(),
            |now| format!("{} is in force", parameter::shown(param, now)),
        );
        [
            ("by", json!(wanted.by)),
            ("name", json!(wanted.name)),
            ("value", json!(wanted.value)),
            ("owner", json!(wanted.owner())),
            ("zero", json!(param.zero)),
            ("now", json!(now)),
            ("why", json!(why)),
        ]
    })
}

/// The number of a value that the kernel takes.
fn accepted(facts: &Facts, param: &Param, text: &str) -> Option<i64> {
    param.taken(text, facts.kernel.version)
}

/// The values that the kernel takes.
fn range(param: &Param) -> String {
    match param.unit {
        Unit::Switch => "Y, 1 or on, and N, 0 or off".to_owned(),
        Unit::Name(names) => names.join(", "),
        _ => format!("{} to {}", param.min, param.max),
    }
}

fn is_of(wanted: &Wanted) -> bool {
    wanted.owner() == Some(wanted.module.as_str())
}

/// Why nothing reads a wanted value.
fn ignored(facts: &Facts, wanted: &Wanted, param: &'static Param) -> Option<String> {
    let owner = wanted.owner()?;
    if wanted.module.is_empty() {
        return Some(format!("without {owner}. before it the word is not for the module"));
    }
    if !is_of(wanted) {
        return Some(format!("it is a parameter of {owner}, not of {}", wanted.module));
    }
    if let Some(version) = facts.kernel.version.filter(|version| !param.exists_in(*version)) {
        let shows = parameters(facts).any(|parameter| parameter.param == param);
        return (!shows)
            .then(|| Setting::defaults(param.owner, version).set(param.name, 0).err())?
            .map(|e| e.to_string());
    }
    let built_in = owner == "kvm" && facts.host.kvm == Some(Loading::BuiltIn);
    (built_in && wanted.reader == Reader::Modprobe)
        .then(|| format!("{owner} is built in, and modprobe does not load it"))
}

/// Whether a wanted value is read and taken.
fn is_read(facts: &Facts, wanted: &Wanted, param: &'static Param) -> bool {
    ignored(facts, wanted, param).is_none() && accepted(facts, param, &wanted.value).is_some()
}

/// What sets a parameter last when the machine starts.
fn last_wanted<'f>(facts: &'f Facts, param: &'static Param) -> Option<&'f Wanted> {
    let is_now = |wanted: &&Wanted| wanted.param == Some(param) && wanted.reader != Reader::Bootloader;
    facts.wanted.iter().rfind(|wanted| is_now(wanted) && is_read(facts, wanted, param))
}

/// One instance without figures, or none.
fn when(is: bool) -> Vec<Data> {
    if is { vec![Data::new()] } else { vec![] }
}

fn each<T, const N: usize>(
    items: impl IntoIterator<Item = T>,
    data: impl Fn(T) -> [(&'static str, Value); N],
) -> Vec<Data> {
    items.into_iter().map(|item| Data::from(data(item))).collect()
}

fn parameters(facts: &Facts) -> impl Iterator<Item = &Parameter> {
    facts.host.parameters.iter().chain(&facts.guest.parameters).chain(&facts.timer.parameters)
}

/// The setting of a layer as it is here; `None` where the layer has no parameters or the kernel's rule is not known.
fn setting(facts: &Facts, layer: Layer, parameters: &[Parameter]) -> Option<Setting> {
    let version = facts.kernel.version.filter(|version| param::known_version(layer, *version).is_ok())?;
    (!parameters.is_empty()).then(|| parameter::setting(layer, version, parameters))
}

fn host(facts: &Facts) -> Option<Setting> {
    setting(facts, Layer::Host, &facts.host.parameters)
}

fn haltpoll_decides(facts: &Facts) -> bool {
    facts.guest.cpuidle.haltpoll_decides()
}

/// The setting of haltpoll, where it decides.
fn guest(facts: &Facts) -> Option<Setting> {
    setting(facts, Layer::Guest, &facts.guest.parameters).filter(|_| haltpoll_decides(facts))
}

/// Parameters that were changed and have no effect, by the reason: what a machine shows first, then the model.
fn without_effect(facts: &Facts) -> Vec<Data> {
    let readers = Readers::from(facts);
    let mut reasons: BTreeMap<String, Vec<&Parameter>> = BTreeMap::new();
    // That pi_inject_timer is on may be KVM's own choice, and has rows of its own.
    for parameter in parameters(facts).filter(|p| p.changed() && p.name != "pi_inject_timer") {
        let of_model = || {
            let all = match parameter.param.owner {
                Owner::Layer(Layer::Host) => host(facts)?,
                Owner::Layer(Layer::Guest) => guest(facts)?,
                _ => return None,
            };
            explain::no_effect(&all, parameter.param)
        };
        if let Some(why) = readers.no_effect(Knob { param: parameter.param }).or_else(of_model) {
            reasons.entry(why.to_string()).or_default().push(parameter);
        }
    }
    each(reasons, |(why, of)| {
        let names: Vec<&str> = of.iter().map(|parameter| parameter.name).collect();
        let default = |p: &&Parameter| p.default.map(|value| format!("{}={value}", p.name));
        let defaults: Vec<String> = of.iter().filter_map(default).collect();
        [("knobs", json!(names)), ("why", json!(why)), ("defaults", json!(defaults))]
    })
}

fn max_copied(facts: &Facts, running: bool) -> Vec<Data> {
    let max = parameter::get(&facts.host.parameters, "halt_poll_ns");
    let vms = facts.host.running_vms();
    let copied = facts.host.max_source == Some(MaxSource::CopiedAtCreation) && (vms > 0) == running;
    each(max.filter(|_| copied), |max| [("vms", json!(vms)), ("halt_poll_ns", json!(max))])
}

/// A setting that is equivalent to one with a maximum of 0, decided by the model: because the maximum is 0
/// (`by_max`), or because of another parameter, without which it would poll.
fn never_polls(setting: Option<Setting>, max: &str, by_max: bool) -> Vec<Data> {
    let Some(setting) = setting else { return vec![] };
    if setting.get(max) == Some(0) {
        return when(by_max);
    }
    let off = |setting: &Setting| with(setting, max, 0).map(|off| compare(setting, &off));
    if by_max || !off(&setting).is_some_and(|off| off.is_same()) {
        return vec![];
    }
    let polls = |setting: &Setting| matches!(off(setting), Some(Sameness::Differ { .. }));
    let blamed = setting.iter().find_map(|(param, value)| {
        let default = param.default_in(setting.version()).filter(|default| *default != value)?;
        with(&setting, param.name, default).filter(polls).map(|_| (param, value, default))
    });
    each(blamed, |(param, value, default)| {
        [("name", json!(param.name)), ("value", json!(value)), ("default", json!(default))]
    })
}

/// A value above the maximum that is equivalent to the maximum, decided by the model.
fn acts_as(setting: Option<Setting>, name: &str, max: &str) -> Vec<Data> {
    let found = setting.and_then(|setting| {
        let (value, limit) = (setting.get(name)?, setting.get(max)?);
        let equivalent = with(&setting, name, limit).is_some_and(|other| compare(&setting, &other).is_same());
        // Where nothing polls at all, that is the finding.
        (limit > 0 && value > limit && equivalent).then_some((value, limit))
    });
    each(found, |(value, limit)| [("value", json!(value)), ("max", json!(limit))])
}

/// A parameter that has this value, and an effect, decided by the model.
fn effective(setting: Option<Setting>, name: &str, value: i64) -> Vec<Data> {
    let found = setting.and_then(|setting| {
        let (param, _) = setting.iter().find(|(param, is)| param.name == name && *is == value)?;
        explain::has_effect(&setting, param).then(|| param.default_in(setting.version()))
    });
    each(found, |default| [("value", json!(value)), ("default", json!(default))])
}

/// Idle CPUs are woken more often than this \[ns\], at least by their timers.
const LONGEST_IDLE_NS: i64 = 100_000_000;

/// A maximum that is longer than idle times are.
fn longer_than_idle_times(setting: Option<Setting>, name: &'static str) -> Vec<Data> {
    let value = setting.as_ref().and_then(|setting| setting.iter().find(|(param, _)| param.name == name));
    let value = value.map_or(0, |(_, value)| value);
    let found = if value >= LONGEST_IDLE_NS { effective(setting, name, value) } else { vec![] };
    let named = found.into_iter().map(|mut data| {
        data.extend([("name", json!(name)), ("ms", json!(value / 1_000_000))]);
        data
    });
    named.collect()
}

/// The haltpoll governor is there, no driver lets it decide, and this is the reason. The reasons are in the
/// order in which the driver itself looks; what is no guest of KVM has none of them.
fn no_driver(facts: &Facts, reason: impl Fn(&Guest) -> bool) -> Vec<Data> {
    let guest = &facts.guest;
    when(is_unused(guest) && guest.kvm_guest != Some(false) && reason(guest))
}

/// The kernel has the haltpoll governor, which decides nothing and whose driver is not in use.
fn is_unused(guest: &Guest) -> bool {
    let cpuidle = &guest.cpuidle;
    !guest.parameters.is_empty() && !cpuidle.haltpoll_decides() && !cpuidle.has_haltpoll_driver()
}

fn could_load(guest: &Guest) -> bool {
    guest.cpuidle.driver.is_none() && guest.idle_override.is_none() && !guest.cpuidle_off
}

/// How a guest is started so that this driver does not register.
fn without_driver(driver: &str) -> String {
    match driver {
        "intel_idle" => "boot with intel_idle.max_cstate=0".to_owned(),
        _ => format!("use a VM in which {driver} finds no idle states"),
    }
}

/// The driver asks for the hint or to be forced, which what loads it may do. Forcing it is right whether there is a hint or
/// not, so that a hint that is not known needs no finding of its own.
fn needs_hint(facts: &Facts) -> bool {
    let guest = &facts.guest;
    let force = |wanted: &&Wanted| wanted.module == "cpuidle_haltpoll" && wanted.name == "force";
    let forces = |wanted: &Wanted| param::switch(&wanted.value, facts.kernel.version) == Some(true);
    let is_forced = guest.force.unwrap_or_else(|| facts.wanted.iter().rfind(force).is_some_and(forces));
    let loads = guest.realtime_hint == Some(true) || is_forced;
    could_load(guest) && guest.kvm_guest == Some(true) && !loads
}

/// The VMs of known monitors, with what their command lines decide.
fn vms(facts: &Facts) -> impl Iterator<Item = (&Vmm, &VmOptions)> {
    facts.vmms.iter().filter_map(|vmm| Some((vmm, vmm.options.as_ref()?)))
}

fn named(vmm: &Vmm) -> [(&'static str, Value); 2] {
    [("name", json!(vmm.name.as_deref().unwrap_or("without a name"))), ("pid", json!(vmm.pid))]
}

/// How a VM of this host is made to execute HLT and MWAIT itself.
fn cpu_pm(facts: &Facts) -> String {
    manager::CPU_PM.of_all(vms(facts).map(|(vmm, _)| vmm.manager))
}

fn vms_that(facts: &Facts, is: fn(&VmOptions) -> bool) -> Vec<Data> {
    each(vms(facts).filter(|(_, options)| is(options)), |(vmm, _)| named(vmm))
}

/// VMs with Hyper-V enlightenments, which are for Windows, without those that keep an idle one quiet.
fn windows_timers(facts: &Facts) -> Vec<Data> {
    let windows =
        vms(facts).filter(|(vmm, options)| vmm.kind == VmmKind::Qemu && !options.hyper_v.is_empty());
    let found = windows.filter_map(|(vmm, options)| {
        let missing = ["hv-time", "hv-synic", "hv-stimer"].into_iter().filter(|name| !options.has(name));
        let mut lacking: Vec<String> = missing.map(str::to_owned).collect();
        lacking.extend((options.hpet == Some(true)).then(|| "hpet=off".to_owned()));
        (!lacking.is_empty()).then_some((vmm, lacking))
    });
    each(found, |(vmm, lacking)| {
        let [name, pid] = named(vmm);
        [name, pid, ("lacking", json!(lacking)), ("windows", json!(manager::WINDOWS.of(vmm.manager)))]
    })
}

/// VMs that use CPU time, a little after each of many wakeups: 5 % of a CPU or more, 100 times a second or more, and on
/// average for less than half a millisecond.
fn short_bursts(facts: &Facts) -> Vec<Data> {
    let bursts = facts.host.vms.iter().filter_map(|vm| {
        let average = vm.average?;
        let us = (average.cpu_ns_per_s / 1_000).checked_div(average.sleeps_per_s)?;
        let is_short = us < 500 && average.sleeps_per_s >= 100 && average.cpu_ns_per_s >= 50_000_000;
        is_short.then_some((vm, average, us))
    });
    each(bursts, |(vm, average, us)| {
        [
            ("name", json!(vm.name.as_deref().unwrap_or("without a name"))),
            ("pid", json!(vm.pid)),
            ("percent", json!(average.cpu_ns_per_s / 10_000_000)),
            ("per_s", json!(average.sleeps_per_s)),
            ("us", json!(us)),
        ]
    })
}

/// VMs that are promised CPUs of their own, whose vCPUs have waited for at least [`SHARED_CORE`] of the time that they wanted one.
fn dedicated_and_shared(facts: &Facts) -> Vec<Data> {
    let promised = vms(facts).filter(|(_, options)| options.hint_dedicated);
    let found = promised.filter_map(|(vmm, _)| {
        let average = facts.host.vms.iter().find(|vm| vm.pid == vmm.pid)?.average?;
        let waited = average.vcpus_waited_ns_per_s;
        let percent = (100 * waited).checked_div(waited + average.vcpus_ns_per_s)?;
        (percent as f64 >= 100.0 * SHARED_CORE).then_some((vmm, percent))
    });
    each(found, |(vmm, percent)| {
        let [name, pid] = named(vmm);
        [name, pid, ("percent", json!(percent))]
    })
}

/// A kernel of a distributor that takes over later changes, with the sources of what is known.
fn of_distributor(facts: &Facts) -> Vec<Data> {
    let found = facts.kernel.version.and_then(|version| {
        let (build, release) = (version.build?, facts.kernel.release.as_ref()?);
        let host = HostRevision::rules(version).ok().filter(|_| !facts.host.parameters.is_empty());
        let timer = TimerRevision::rules(version).ok().filter(|_| !facts.timer.parameters.is_empty());
        let sources = [host.and_then(|rules| rules.source), timer.and_then(|rules| rules.source)];
        let sources: Vec<&str> = sources.into_iter().flatten().collect();
        Some((release, build.distributor.name(), format!("{}.{}", version.major, version.minor), sources))
    });
    each(found, |(release, distributor, series, sources)| {
        let sources = if sources.is_empty() { json!("no changes for certain") } else { json!(sources) };
        [
            ("release", json!(release)),
            ("distributor", json!(distributor)),
            ("series", json!(series)),
            ("sources", sources),
        ]
    })
}

fn can_be_forced(facts: &Facts) -> bool {
    facts.guest.force.is_some() || facts.kernel.version.is_some_and(|version| version.at_least(5, 7))
}

/// The haltpoll driver is in use and another governor decides.
fn other_governor(facts: &Facts, reason: impl Fn(&Cpuidle) -> bool) -> Vec<Data> {
    let cpuidle = &facts.guest.cpuidle;
    let other = cpuidle.has_haltpoll_driver() && !cpuidle.haltpoll_decides() && reason(cpuidle);
    each(Some(cpuidle).filter(|_| other), |cpuidle| {
        [("governor", json!(cpuidle.governor)), ("governors", json!(cpuidle.governors))]
    })
}

/// The driver dwell_idle, if it is loaded and this is so.
fn dwell_idle(facts: &Facts, is: impl Fn(&DwellIdle) -> bool) -> Vec<Data> {
    each(facts.guest.dwell_idle.as_ref().filter(|driver| is(driver)), |driver| {
        [
            ("policy", json!(driver.policy)),
            ("halt_cost_ns", json!(driver.halt_cost_ns)),
            ("wake_latency_ns", json!(driver.wake_latency_ns)),
            ("max_window_ns", json!(driver.max_window_ns)),
            ("cpus", json!(driver.cpus)),
        ]
    })
}

fn latency_zero(facts: &Facts, haltpoll: bool) -> Vec<Data> {
    let guest = &facts.guest;
    let all = guest.latency_qos_us == Some(0);
    let found = guest.cpuidle.driver.is_some() && haltpoll_decides(facts) == haltpoll;
    if found { of_cpus(&guest.zero_latency_cpus, all) } else { vec![] }
}

/// These CPUs, if there are any.
fn of_cpus(cpus: &[u32], all: bool) -> Vec<Data> {
    let named: Vec<String> = cpus.iter().map(|cpu| format!("CPU {cpu}")).collect();
    let named = if all { vec!["all CPUs".to_owned()] } else { named };
    each(Some(named).filter(|named| !named.is_empty()), |cpus| [("cpus", json!(cpus))])
}

fn posts(facts: &Facts) -> bool {
    parameter::get(&facts.timer.parameters, "pi_inject_timer").is_some_and(|value| value > 0)
}

/// `pi_inject_timer` is on and has no effect, with or without a switch that could give it one.
fn cannot_post(facts: &Facts, has_switch: bool) -> Vec<Data> {
    let knob = Knob::of(Owner::Timer, "pi_inject_timer");
    let why = knob.and_then(|knob| Readers::from(facts).no_effect(knob));
    let found = posts(facts) && facts.timer.apicv.is_some() == has_switch;
    each(why.filter(|_| found), |why| [("why", json!(why.to_string()))])
}

/// An advance that is not learned, and how this kernel has it learned: since 6.10 by a switch.
fn fixed_advance(facts: &Facts, is: fn(i64) -> bool) -> Vec<Data> {
    let get = |name, learned| Some((parameter::get(&facts.timer.parameters, name)?, learned));
    let fixed = get("lapic_timer_advance_ns", "lapic_timer_advance_ns=-1").filter(|(ns, _)| *ns >= 0);
    let switched_off = get("lapic_timer_advance", "lapic_timer_advance=Y").filter(|(on, _)| *on == 0);
    let found = fixed.or(switched_off).filter(|(ns, _)| is(*ns));
    each(found, |(ns, learned)| [("advance_ns", json!(ns)), ("learned", json!(learned))])
}

/// The I/O threads whose command line sets something that matters, each with its setting.
fn each_iothread(facts: &Facts) -> impl Iterator<Item = (&Vmm, &IoThread, Setting)> {
    facts.vmms.iter().filter(|vmm| vmm.is_qemu()).flat_map(|vmm| {
        vmm.io_threads.iter().map(move |thread| {
            let known = |version: &Version| param::known_version(Layer::Iothread, *version).is_ok();
            let version = vmm.at_least_version.filter(known).unwrap_or(OLDEST_QEMU);
            let mut setting = Setting::defaults(Layer::Iothread, version);
            for (name, value) in &thread.parameters {
                // A version that the machine type does not disclose may have more parameters.
                let _ = setting.set(name, *value);
            }
            (vmm, thread, setting)
        })
    })
}

/// The rule that a QEMU of unknown version has at least.
const OLDEST_QEMU: Version = Version::new(7, 2);

fn iothreads(facts: &Facts, is: fn(&Vmm, &BTreeMap<&str, i64>) -> bool) -> Vec<Data> {
    let found = each_iothread(facts).filter(|(vmm, thread, _)| is(vmm, &thread.parameters));
    each(found, |(vmm, thread, _)| [("pid", json!(vmm.pid)), ("id", json!(thread.id))])
}

/// Where polling is not off, the property has this value.
fn polls_with(set: &BTreeMap<&str, i64>, name: &str, value: i64) -> bool {
    set.get("poll-max-ns") != Some(&0) && set.get(name) == Some(&value)
}

/// Its QEMU may be one before 11.1.
fn is_classic(vmm: &Vmm) -> bool {
    !vmm.at_least_version.is_some_and(|version| version.at_least(11, 1))
}

/// Polling properties that a command line sets and that have no effect, decided by the model.
fn iothread_without_effect(facts: &Facts) -> Vec<Data> {
    let found = each_iothread(facts).filter_map(|(vmm, thread, setting)| {
        let set = setting.iter().filter(|(param, value)| {
            thread.parameters.contains_key(param.name) && param.default_in(setting.version()) != Some(*value)
        });
        let found: Vec<(&str, String)> = set
            .filter_map(|(param, _)| Some((param.name, explain::no_effect(&setting, param)?.to_string())))
            .collect();
        let why = found.first()?.1.clone();
        Some((vmm, thread, found, why))
    });
    each(found, |(vmm, thread, found, why)| {
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        [("pid", json!(vmm.pid)), ("id", json!(thread.id)), ("knobs", json!(names)), ("why", json!(why))]
    })
}

#[cfg(test)]
mod tests;
