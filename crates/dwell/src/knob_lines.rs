//! The exact lines that would put a setting in force. Nothing here is run: dwell does not change the machine.

use dwell_policy::Layer;
use dwell_policy::param::{Setting, Unit};
use dwell_policy::{host, param};
use serde::Serialize;

/// Lines under a heading.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Lines {
    /// What they do and where they are to be typed.
    pub(crate) about: String,
    /// The lines.
    pub(crate) lines: Vec<String>,
}

fn lines(about: &str, lines: impl IntoIterator<Item = String>) -> Lines {
    Lines { about: about.to_owned(), lines: lines.into_iter().collect() }
}

/// How to set it now and how to keep it, from `present`.
pub(crate) fn of(setting: &Setting, present: &Setting) -> Vec<Lines> {
    match setting.layer() {
        Layer::Host => kvm(setting),
        Layer::Guest => haltpoll(setting, present),
        Layer::Iothread => iothread(setting),
        Layer::Timer => vec![],
    }
}

/// The value as the kernel's parameter files take it.
fn value(param: &param::Param, value: i64) -> String {
    match (param.unit, value) {
        (Unit::Switch, 0) => "N".to_owned(),
        (Unit::Switch, _) => "Y".to_owned(),
        _ => value.to_string(),
    }
}

fn sysfs(setting: &Setting) -> impl Iterator<Item = String> {
    setting.iter().map(|(param, v)| format!("echo {} > {}/{}", value(param, v), param.home, param.name))
}

fn module_options(module: &str, setting: &Setting) -> String {
    let options: Vec<String> =
        setting.iter().map(|(param, v)| format!("{}={}", param.name, value(param, v))).collect();
    format!("options {module} {}", options.join(" "))
}

fn kernel_command_line(module: &str, setting: &Setting) -> String {
    let options: Vec<String> =
        setting.iter().map(|(param, v)| format!("{module}.{}={}", param.name, value(param, v))).collect();
    options.join(" ")
}

fn kvm(setting: &Setting) -> Vec<Lines> {
    let copied = host::Era::of(setting.version())
        .is_ok_and(|era| era.max_source() == host::MaxSource::CopiedAtCreation);
    let now = if copied {
        "now, on the host, as root (this kernel copies halt_poll_ns when a VM is created: running VMs keep the old one)"
    } else {
        "now, on the host, as root, for all VMs without an override of their own"
    };
    vec![
        lines(now, sysfs(setting)),
        lines("over a reboot, in /etc/modprobe.d/dwell.conf", [module_options("kvm", setting)]),
        lines(
            "for one VM only, by its VMM, instead of halt_poll_ns (the other three have no per-VM form)",
            [format!(
                "KVM_ENABLE_CAP: cap=KVM_CAP_HALT_POLL (182) args[0]={}",
                setting.get("halt_poll_ns").unwrap_or(0)
            )],
        ),
    ]
}

fn haltpoll(setting: &Setting, present: &Setting) -> Vec<Lines> {
    let get = |s: &Setting, name: &str| s.get(name).unwrap_or(0);
    let mut all = vec![];
    // A limit that has grown stays where shrinking is forbidden or where nothing is longer than the new maximum.
    let lowered = get(setting, "guest_halt_poll_ns") < get(present, "guest_halt_poll_ns");
    if lowered && get(setting, "guest_halt_poll_allow_shrink") == 0 {
        let home = param::GUEST[0].home;
        all.push(lines(
            "first, in the guest, as root: let the limits that have grown come down, and wait a second",
            [
                format!("echo 0 > {home}/guest_halt_poll_shrink"),
                format!("echo 1000 > {home}/guest_halt_poll_ns"),
                format!("echo Y > {home}/guest_halt_poll_allow_shrink"),
                "sleep 1".to_owned(),
            ],
        ));
    }
    all.push(lines("now, in the guest, as root", sysfs(setting)));
    all.push(lines(
        "over a reboot, where haltpoll is built in (the usual case): on the guest's kernel command line",
        [kernel_command_line("haltpoll", setting)],
    ));
    all.push(lines(
        "over a reboot, where it is a module: in /etc/modprobe.d/dwell.conf",
        [module_options("haltpoll", setting)],
    ));
    all
}

fn iothread(setting: &Setting) -> Vec<Lines> {
    let values: Vec<(&str, i64)> = setting.iter().map(|(param, value)| (param.name, value)).collect();
    let persistence = dwell_knobs::iothread::persistence("ID", &values);
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
