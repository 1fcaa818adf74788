//! The exact lines that put a setting in force and keep it, for those who would rather type them. Nothing here is run.

use crate::knob::{Knob, Module, Scope, capability};
use crate::plan::{self, Write};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use serde::Serialize;

/// Lines under a heading.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// What they do and where they are to be typed.
    pub about: String,
    /// The lines.
    pub lines: Vec<String>,
}

fn lines(about: &str, lines: impl IntoIterator<Item = String>) -> Lines {
    Lines { about: about.to_owned(), lines: lines.into_iter().collect() }
}

/// How to set it now and how to keep it, from `present`.
pub fn of(setting: &Setting, present: &Setting) -> Vec<Lines> {
    match setting.layer() {
        Layer::Host => kvm(setting),
        Layer::Guest => haltpoll(setting, present),
        Layer::Iothread => iothread(setting),
        Layer::Timer => vec![],
    }
}

/// One of these for each parameter.
fn each(setting: &Setting, line: impl Fn(Knob, i64) -> String) -> Vec<String> {
    setting.iter().map(|(param, value)| line(Knob { param }, value)).collect()
}

/// The line of /etc/modprobe.d that loads a module with these values.
pub fn module_options(module: Module, setting: &Setting) -> String {
    format!("options {} {}", module.name(), each(setting, Knob::option).join(" "))
}

/// What to add to the kernel's command line, where the module is built in.
pub fn kernel_command_line(module: Module, setting: &Setting) -> String {
    each(setting, |knob, value| format!("{}.{}", module.name(), knob.option(value))).join(" ")
}

fn kvm(setting: &Setting) -> Vec<Lines> {
    let scope = Knob::find("halt_poll_ns").map(|knob| knob.scope(setting.version()));
    let now = match scope {
        Some(Scope::NewVms) => {
            "now, on the host, as root (this kernel copies halt_poll_ns when a VM is created: running VMs keep the old one)"
        }
        _ => "now, on the host, as root, for all VMs without an override of their own",
    };
    vec![
        lines(now, each(setting, Knob::echo)),
        lines("over a reboot, in /etc/modprobe.d/dwell.conf", [module_options(Module::Kvm, setting)]),
        lines(
            "for one VM only, by its VMM, instead of halt_poll_ns (the other three have no per-VM form)",
            [capability::call(setting.get("halt_poll_ns").unwrap_or(0))],
        ),
    ]
}

fn haltpoll(setting: &Setting, present: &Setting) -> Vec<Lines> {
    let mut all = vec![];
    let writes = plan::writes(present, setting, None);
    if let Some(last) = writes.iter().position(|write| write.then_wait_ms > 0) {
        all.push(lines(
            "first, in the guest, as root: let the limits that have grown come down, and wait a second",
            writes.iter().take(last + 1).flat_map(shell),
        ));
    }
    all.push(lines("now, in the guest, as root", each(setting, Knob::echo)));
    all.push(lines(
        "over a reboot, where haltpoll is built in (the usual case): on the guest's kernel command line",
        [kernel_command_line(Module::Haltpoll, setting)],
    ));
    all.push(lines(
        "over a reboot, where it is a module: in /etc/modprobe.d/dwell.conf",
        [module_options(Module::Haltpoll, setting)],
    ));
    all
}

/// A write as a shell does it.
fn shell(write: &Write) -> Vec<String> {
    let echo = Knob::find(&write.knob).map(|knob| knob.echo(write.to));
    let wait = (write.then_wait_ms > 0).then(|| format!("sleep {}", write.then_wait_ms.div_ceil(1_000)));
    echo.into_iter().chain(wait).collect()
}

fn iothread(setting: &Setting) -> Vec<Lines> {
    let values: Vec<(&str, i64)> = setting.iter().map(|(param, value)| (param.name, value)).collect();
    let persistence = crate::iothread::persistence("ID", &values);
    vec![
        lines(
            "now, over QMP, ID being the iothread's id (each write resets QEMU's adaptive state)",
            persistence.qmp,
        ),
        lines("now, with libvirt", [persistence.virsh]),
        lines("at the next start, with libvirt: in <iothreadids> of the domain", [persistence.xml]),
        lines("at the next start, on QEMU's command line", [persistence.object]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::Version;

    fn text(setting: &Setting, present: &Setting) -> String {
        let join = |l: &Lines| format!("# {}\n{}\n", l.about, l.lines.join("\n"));
        of(setting, present).iter().map(join).collect()
    }

    #[test]
    fn host_lines_warn_where_the_kernel_copies_at_creation() {
        let old = Setting::defaults(Layer::Host, Version::new(5, 15));
        assert!(text(&old, &old).contains("running VMs keep the old one"));
        let new = Setting::defaults(Layer::Host, Version::new(6, 18));
        let text = text(&new, &new);
        assert!(!text.contains("running VMs keep"));
        assert!(text.contains("echo 200000 > /sys/module/kvm/parameters/halt_poll_ns\n"));
        assert!(text.contains(
            "options kvm halt_poll_ns=200000 halt_poll_ns_grow=2 halt_poll_ns_grow_start=10000 halt_poll_ns_shrink=2"
        ));
    }

    #[test]
    fn guest_lines_write_switches_as_the_kernel_does_and_mind_the_shrink_trap() {
        let present = Setting::defaults(Layer::Guest, Version::new(6, 18));
        let mut setting = present;
        setting.set("guest_halt_poll_ns", 20_000).unwrap();
        assert!(!text(&setting, &present).contains("come down"));
        setting.set("guest_halt_poll_allow_shrink", 0).unwrap();
        let text = text(&setting, &present);
        assert!(text.contains("come down"));
        assert!(text.contains("echo N > /sys/module/haltpoll/parameters/guest_halt_poll_allow_shrink"));
    }

    #[test]
    fn iothread_lines_have_weight_since_11_1() {
        let new = Setting::defaults(Layer::Iothread, Version::new(11, 1));
        let text_new = text(&new, &new);
        assert!(text_new.contains("<poll max='32768' grow='2' shrink='2' weight='3'/>"));
        assert!(
            text_new.contains("--poll-max-ns 32768 --poll-grow 2 --poll-shrink 2 --poll-weight 3 --live")
        );
        let old = Setting::defaults(Layer::Iothread, Version::new(7, 2));
        assert!(!text(&old, &old).contains("weight"));
    }
}
