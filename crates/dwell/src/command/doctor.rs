//! `dwell doctor`

mod findings;
mod recording;
mod vms;

use crate::failure::{Answer, Outcome};
use crate::output::{self, FormatArg};
use crate::paint::Paint;
use crate::privileges;
use crate::state::SysrootArg;
use dwell_capture::doctor::Recordable;
use dwell_knobs::finding::{self, Finding, Severity};
use dwell_knobs::knob::Scope;
use dwell_machine::{
    Absence, Facts, Guest, Hypervisor, Kernel, KvmDevice, Loading, Parameter, Sysroot, parameter,
};
use dwell_policy::arch::Arch;
use dwell_policy::param::known_version;
use dwell_policy::{Layer, Owner};
use serde::Serialize;
use std::io::{self, IsTerminal};

/// Report how this machine idles and which settings have no effect
///
/// Prints what decides how long CPUs, vCPUs and I/O threads poll on this machine, what dwell can record, and which
/// settings do not do what they seem to do. Changes nothing. Prints what this user may read; run it as root to see
/// everything. Times are in the unit of the parameter. With --sysroot, what only system calls report is left out.
#[derive(clap::Args)]
#[command(
    after_help = "Severities: note: a value does not mean what it seems to mean; warning: a setting does not do what\n\
                        it was set for; danger: a CPU polls without end, or a window does not shrink again."
)]
pub(crate) struct Args {
    #[command(flatten)]
    sysroot: SysrootArg,
    /// Exit with 1 if there is a finding of severity warning or danger
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// How a machine idles, what can be recorded on it, and the findings.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    facts: Facts,
    #[serde(flatten)]
    recordable: Recordable,
    findings: Vec<Finding>,
}

impl Report {
    fn of(machine: &Sysroot) -> Report {
        let facts = Facts::read(machine);
        Report { recordable: Recordable::examine(machine, &facts), findings: finding::of(&facts), facts }
    }
}

pub(crate) fn run(args: Args) -> Outcome {
    let machine = args.sysroot.machine()?;
    if machine.is_this_machine() {
        privileges::record();
    }
    let report = Report::of(&machine);
    output::result(
        args.format.format,
        &report,
        || findings::table(&report.findings),
        || text(&report, Paint::on(io::stdout().is_terminal())),
    )?;
    let grave = report.findings.iter().any(|finding| finding.severity >= Severity::Warning);
    Ok(if args.exit_code && grave { Answer::No } else { Answer::Yes })
}

/// Lines under headings, with labels in one column.
struct Page {
    paint: Paint,
    text: String,
}

/// Width of the labels: `halt_poll_ns_grow_start` and `guest_halt_poll_allow_shrink` have to fit.
const LABEL: usize = 29;

impl Page {
    fn section(&mut self, heading: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text.push_str(&format!("{gap}{}\n", self.paint.heading(heading)));
    }

    fn line(&mut self, label: &str, value: &str) {
        // Names of processes and files come from the machine: no control character of them may reach the terminal.
        let value: String = value.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let label = format!("  {label:<LABEL$} ");
        let lines = output::hanging(&label, &" ".repeat(label.chars().count()), &value);
        self.text.extend(lines.lines().flat_map(|line| [line.trim_end(), "\n"]));
    }

    fn values(&mut self, values: &[Parameter]) {
        for value in values {
            let now = value
                .value
                .map_or_else(|| "not a number".to_owned(), |now| parameter::shown(value.param, now));
            let from = match value.default {
                Some(_) if !value.changed() => "the default".to_owned(),
                Some(default) => {
                    self.paint.warning(&format!("default {}", parameter::shown(value.param, default)))
                }
                None => String::new(),
            };
            let line = format!("  {:<LABEL$} {now:>12}  {from}", value.name);
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }
}

fn text(report: &Report, paint: Paint) -> String {
    let mut page = Page { paint, text: String::new() };
    kernel(&mut page, &report.facts.kernel);
    host(&mut page, &report.facts);
    guest(&mut page, &report.facts.guest);
    timer(&mut page, &report.facts);
    vms::monitors(&mut page, &report.facts.vmms);
    recording::facilities(&mut page, &report.recordable.facilities);
    recording::recorders(&mut page, &report.recordable.recorders);
    findings::list(&mut page, &report.findings);
    page.text
}

fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn known(value: Option<bool>) -> &'static str {
    value.map_or("not known", yes_no)
}

fn list(words: &[impl AsRef<str>]) -> String {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(" ") }
}

fn kernel(page: &mut Page, kernel: &Kernel) {
    page.section("kernel");
    let build = kernel.version.and_then(|version| version.build);
    let rules = match (kernel.rules_known, build) {
        (false, _) => "its rules are not known".to_owned(),
        (true, None) => "its rules are known".to_owned(),
        (true, Some(build)) => format!("{}'s: see the findings", build.distributor.name()),
    };
    page.line("release", &format!("{} ({rules})", kernel.release.as_deref().unwrap_or("not known")));
    page.line("architecture", kernel.arch.map_or("not known; x86-64 is assumed", Arch::name));
    page.line("command line, on idling", &list(&kernel.command_line));
}

fn host(page: &mut Page, facts: &Facts) {
    let host = &facts.host;
    page.section("host: KVM");
    let kvm = match (host.kvm, host.kvm_absence) {
        (Some(Loading::Loaded), _) => "loaded as a module",
        (Some(Loading::BuiltIn), _) => "built in",
        (None, Absence::NotLoaded) => "not loaded",
        (None, Absence::NotBuilt) => "not in this kernel",
        (None, Absence::NotKnown) => "not known",
    };
    page.line("kvm", kvm);
    let no_vendor = host.vendor.is_empty() && host.kvm_absence == Absence::NotKnown;
    let vendor = if no_vendor { "not known".to_owned() } else { list(&host.vendor) };
    page.line("vendor module", &vendor);
    page.line("/dev/kvm", &device(&host.device));
    page.values(&host.parameters);
    let modelled = facts.kernel.version.is_some_and(|version| known_version(Layer::Host, version).is_ok());
    if modelled && !host.parameters.is_empty() {
        page.line("effect", host.max_source_words().unwrap_or(Scope::NewVmsOrNextHalt.words()));
    }
    vms::rows(page, facts);
}

fn device(device: &KvmDevice) -> String {
    match device {
        KvmDevice::Closed { why } => format!("cannot be opened: {}", format!("{why:?}").to_lowercase()),
        KvmDevice::NotAsked => "not asked".to_owned(),
        KvmDevice::Open { halt_poll, disable_exits, binary_stats } => {
            let exits = ["MWAIT", "HLT", "PAUSE", "CSTATE", "APERFMPERF"];
            let exits: Vec<&str> = exits
                .into_iter()
                .enumerate()
                .filter(|(bit, _)| disable_exits >> bit & 1 != 0)
                .map(|(_, e)| e)
                .collect();
            format!(
                "open; own window per VM: {}; statistics files: {}; exits that can be disabled: {}",
                yes_no(*halt_poll),
                yes_no(*binary_stats),
                list(&exits)
            )
        }
    }
}

fn guest(page: &mut Page, guest: &Guest) {
    page.section("guest: this machine's own CPUs");
    let without = match guest.kvm_guest {
        Some(true) => "KVM: only a guest of KVM has the governor haltpoll",
        Some(false) => "none, or not KVM",
        None => "not known",
    };
    page.line("hypervisor", guest.hypervisor.as_ref().map_or(without, |below| &below.signature));
    if guest.hypervisor.as_ref().is_some_and(Hypervisor::is_kvm) {
        page.line("poll control", known(guest.poll_control));
        page.line("REALTIME hint", known(guest.realtime_hint));
    }
    let none = if guest.cpuidle.is_known { "none" } else { "not known" };
    page.line("cpuidle driver", guest.cpuidle.driver.as_deref().unwrap_or(none));
    let idle = guest.cpuidle.is_known && guest.cpuidle.driver.is_none();
    let idle = if idle { " (decides nothing without a driver)" } else { "" };
    page.line("cpuidle governor", &format!("{}{idle}", guest.cpuidle.governor.as_deref().unwrap_or(none)));
    page.line("governors", &list(&guest.cpuidle.governors));
    page.line("idle states", &list(&guest.states));
    if let Some(force) = guest.force {
        page.line("cpuidle_haltpoll.force", if force { "Y" } else { "N" });
    }
    page.values(&guest.parameters);
    let none = 2_000_000_000;
    match guest.latency_qos_us {
        Some(us) if us < none => page.line("latency asked for", &format!("{us} us")),
        Some(_) => page.line("latency asked for", "any"),
        None => {}
    }
}

fn timer(page: &mut Page, facts: &Facts) {
    let timer = &facts.timer;
    page.section("timer: KVM's local APIC timer");
    if let Some(why) = facts.kernel.arch.and_then(|arch| arch.lacks(Owner::Timer)) {
        page.line("none", why);
    } else {
        page.values(&timer.parameters);
        page.line("APICv or AVIC", known(timer.can_post));
        if let Some(on) = timer.preemption_timer {
            page.line("preemption timer", yes_no(on));
        }
        let needs =
            "pi_inject_timer, and APICv or AVIC; not known: also a VM that executes MWAIT or HLT itself";
        page.line("a posted timer needs", timer.posting_needs_words().unwrap_or(needs));
    }
    let cpus = |list: &str| if list.is_empty() { "none".to_owned() } else { list.to_owned() };
    page.line("CPUs without a tick", &cpus(&timer.nohz_full));
    page.line("isolated CPUs", &cpus(&timer.isolated));
    page.line("kernel.timer_migration", known(timer.timer_migration));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn another_machine_is_read_from_its_files_and_nothing_steers_the_terminal() {
        let dir = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/sys/kernel/osrelease", "5.15.39\n");
        file("proc/7/comm", "kvm\u{1b}[2J");
        file("proc/7/cmdline", "/usr/bin/kvm\0-name\0a\u{1b}[2Jb\0");
        file("sys/module/kvm/parameters/halt_poll_ns", "100000");
        file("sys/module/kvm/parameters/halt_poll_ns_grow_start", "0");
        let report = Report::of(&Sysroot::at(dir.path()));
        let plain = text(&report, Paint::on(false));
        assert!(!plain.contains('\u{1b}'), "{plain}");
        assert!(
            plain.contains("  halt_poll_ns                     100000 ns  default 200000 ns\n"),
            "{plain}"
        );
        assert!(plain.contains("  warning  halt_poll_ns_grow_start = 0: the host never polls\n"), "{plain}");
        let colours = crate::paint::for_terminal(&text(&report, Paint::colours()));
        assert!(colours.contains("\u{1b}[33mwarning \u{1b}[0m"), "{colours}");
    }
}
