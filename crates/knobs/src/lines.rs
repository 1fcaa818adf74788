//! The lines that set and keep a setting, to be typed by hand. Nothing here is run.

use crate::condition::{self, Unwritable};
use crate::iothread::NOT_LIBVIRTS;
use crate::knob::{Knob, Module, Scope, capability};
use crate::plan::{self, RecordedOn, Write};
use dwell_machine::{Loading, Writable};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Owner};
use dwell_recording::Metadata;
use serde::Serialize;

/// Lines under a heading.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Lines {
    /// What they do and where they belong.
    pub about: String,
    pub lines: Vec<String>,
}

fn lines(about: &str, lines: impl IntoIterator<Item = String>) -> Lines {
    Lines { about: about.to_owned(), lines: lines.into_iter().collect() }
}

/// How to set it now and how to keep it, from `present`. With the machine that it is for at hand, only lines
/// that can work there; else those for each kind of machine.
pub fn of(setting: &Setting, present: &Setting, here: Option<&dyn Writable>) -> Vec<Lines> {
    let Some(module) = Module::of(setting.owner()) else { return iothread(setting, present) };
    let here = here.map(|machine| Here::read(machine, module, setting));
    if here.is_some_and(|here| here.module.is_none()) {
        let name = module.name();
        let about = format!(
            "nothing can be set: /sys/module/{name} does not have these parameters; see `dwell doctor`"
        );
        return vec![lines(&about, [])];
    }
    match module {
        Module::Kvm => kvm(setting, here),
        Module::Haltpoll => haltpoll(setting, present, here),
        Module::DwellIdle => driver(setting),
    }
}

/// Whether there are lines that set what was recorded: not for threads of which none is QEMU's by its name.
/// QEMU calls I/O threads `IO` and their id, and others by its own name.
pub fn can_set<'n>(metadata: &Metadata, mut idlers: impl Iterator<Item = &'n str>) -> bool {
    let from_qemu = metadata.qemu.is_some() || metadata.source.tool.starts_with("qemu");
    let is_qemus = |name: &str| name.starts_with("IO ") || name.starts_with("qemu");
    metadata.layer != Layer::Iothread || from_qemu || idlers.any(is_qemus)
}

/// How to set and keep it where the recording was made: if that is `machine`, only lines that can work there.
pub fn for_recording(
    setting: &Setting,
    present: &Setting,
    metadata: &Metadata,
    machine: &dyn Writable,
) -> Vec<Lines> {
    let is_here = RecordedOn::of(metadata, machine) == RecordedOn::ThisMachine;
    let mut all = of(setting, present, is_here.then_some(machine));
    if let Some(by) = metadata.decided_in_place_of_haltpoll().filter(|_| setting.layer() == Layer::Guest) {
        let about = format!(
            "without effect until haltpoll decides in the guest ({by}); `dwell doctor` there says how it can"
        );
        all.insert(0, lines(&about, []));
    }
    all
}

/// What a machine allows for the parameters of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Here {
    /// How the module got into the kernel; `None` if it is not there, or has not all parameters.
    module: Option<Loading>,
    /// Whether its parameters can be written while it runs.
    writable: bool,
}

impl Here {
    fn read(machine: &dyn Writable, module: Module, setting: &Setting) -> Here {
        let state = |(param, _): (_, i64)| {
            let place = Knob { param }.place(None);
            place.map_or(Ok(()), |place| condition::writable(machine, &place))
        };
        let states: Vec<Result<(), Unwritable>> = setting.iter().map(state).collect();
        let missing = states.iter().any(|state| matches!(state, Err(Unwritable::Missing)));
        Here {
            module: Loading::read(machine, module.name()).filter(|_| !missing),
            writable: !states.iter().any(|state| matches!(state, Err(Unwritable::ReadOnly))),
        }
    }
}

/// The lines that keep the values of a module over a reboot, and the ones for this machine where it is known.
fn kept(module: Module, setting: &Setting, here: Option<Here>) -> Vec<Lines> {
    let loaded = here.is_none_or(|here| here.module == Some(Loading::Loaded));
    let built_in = here.is_none_or(|here| here.module == Some(Loading::BuiltIn));
    let name = module.name();
    let mut all = vec![];
    if built_in {
        all.push(lines(
            &format!("over a reboot, where {name} is built in: on the kernel's command line"),
            [kernel_command_line(module, setting)],
        ));
    }
    if loaded {
        all.push(lines(
            &format!("over a reboot, where {name} is a module: in /etc/modprobe.d/dwell.conf"),
            [module_options(module, setting)],
        ));
    }
    all
}

/// One of these for each parameter with a value that can be written.
fn each<O: Copy + Into<Owner>>(setting: &Setting<O>, line: impl Fn(Knob, i64) -> String) -> Vec<String> {
    let values = setting.iter().filter(|(param, value)| param.takes(*value));
    values.map(|(param, value)| line(Knob { param }, value)).collect()
}

/// The line of /etc/modprobe.d that loads a module with these values.
pub fn module_options<O: Copy + Into<Owner>>(module: Module, setting: &Setting<O>) -> String {
    format!("options {} {}", module.name(), each(setting, Knob::option).join(" "))
}

/// What to add to the kernel's command line, where the module is built in.
pub fn kernel_command_line<O: Copy + Into<Owner>>(module: Module, setting: &Setting<O>) -> String {
    each(setting, |knob, value| format!("{}.{}", module.name(), knob.option(value))).join(" ")
}

fn kvm(setting: &Setting, here: Option<Here>) -> Vec<Lines> {
    let scope = Knob::find("halt_poll_ns").map(|knob| knob.scope(setting.version()));
    let now = match scope {
        Some(Scope::NewVms) => {
            "now, on the host, as root (this kernel copies halt_poll_ns when a VM is created: running VMs keep the old one)"
        }
        Some(Scope::NewVmsOrNextHalt) => {
            "now, on the host, as root (for VMs that are started later; whether running VMs follow is not known for this kernel)"
        }
        _ => "now, on the host, as root, for all VMs without an override of their own",
    };
    let mut all = vec![];
    if here.is_none_or(|here| here.writable) {
        all.push(lines(now, each(setting, Knob::echo)));
    }
    all.extend(kept(Module::Kvm, setting, here));
    all.push(lines(
        "for one VM only, by its VMM, instead of halt_poll_ns (the other three have no per-VM form)",
        [capability::call(setting.get("halt_poll_ns").unwrap_or(0))],
    ));
    all
}

fn haltpoll(setting: &Setting, present: &Setting, here: Option<Here>) -> Vec<Lines> {
    let mut all = vec![];
    let writes = plan::writes(present, setting, None);
    if here.is_some_and(|here| !here.writable) {
        return kept(Module::Haltpoll, setting, here);
    }
    if let Some(last) = writes.iter().position(|write| write.then_wait_ms > 0) {
        all.push(lines(
            "first, in the guest, as root: let the windows that have grown shrink, and wait a second",
            writes.iter().take(last + 1).flat_map(shell),
        ));
    }
    all.push(lines("now, in the guest, as root", each(setting, Knob::echo)));
    all.extend(kept(Module::Haltpoll, setting, here));
    all
}

fn driver(setting: &Setting) -> Vec<Lines> {
    let options = module_options(Module::DwellIdle, setting);
    vec![
        lines("now, in the guest, as root", each(setting, Knob::echo)),
        lines("over a reboot: in /etc/modprobe.d/dwell.conf", [options]),
    ]
}

/// A write as a shell does it.
fn shell(write: &Write) -> Vec<String> {
    let echo = Knob::find(&write.knob).map(|knob| knob.echo(write.to));
    let wait = (write.then_wait_ms > 0).then(|| format!("sleep {}", write.then_wait_ms.div_ceil(1_000)));
    echo.into_iter().chain(wait).collect()
}

fn iothread(setting: &Setting, present: &Setting) -> Vec<Lines> {
    let values: Vec<(&str, i64)> = setting.iter().map(|(param, value)| (param.name, value)).collect();
    let persistence = crate::iothread::persistence("ID", &values);
    let weight = |setting: &Setting| setting.get(NOT_LIBVIRTS);
    let libvirt = match weight(setting) == weight(present) {
        true => "with libvirt".to_owned(),
        false => {
            format!("with libvirt (which cannot set {NOT_LIBVIRTS}: only QMP and QEMU's command line can)")
        }
    };
    vec![
        lines(
            "now, over QMP, where ID is the iothread's id (each write resets QEMU's adaptive state)",
            persistence.qmp,
        ),
        lines(&format!("now, {libvirt}, where ID is iothreadNUMBER"), [persistence.virsh]),
        lines(&format!("at the next start, {libvirt}: in <iothreadids> of the domain"), [persistence.xml]),
        lines("at the next start, on QEMU's command line", [persistence.object]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::Version;
    use dwell_testing::machine::Fake;

    fn text(setting: &Setting, present: &Setting) -> String {
        let join = |l: &Lines| format!("# {}\n{}\n", l.about, l.lines.join("\n"));
        of(setting, present, None).iter().map(join).collect()
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
        assert!(!text(&setting, &present).contains("let the windows that have grown shrink"));
        setting.set("guest_halt_poll_allow_shrink", 0).unwrap();
        let text = text(&setting, &present);
        assert!(text.contains("let the windows that have grown shrink"));
        assert!(text.contains("echo N > /sys/module/haltpoll/parameters/guest_halt_poll_allow_shrink"));
    }

    #[test]
    fn lines_for_a_guest_in_which_haltpoll_decides_nothing_say_so_first() {
        let default = Setting::defaults(Layer::Guest, Version::new(6, 18));
        let first = |driver: Option<&str>| {
            let mut metadata = Metadata::new(Layer::Guest);
            let cpuidle = serde_json::json!({ "driver": driver, "governor": "haltpoll" });
            metadata.other.insert(dwell_recording::CPUIDLE.to_owned(), cpuidle);
            for_recording(&default, &default, &metadata, &Fake::new()).remove(0).about
        };
        assert!(first(None).contains("(cpuidle driver none, governor haltpoll)"), "{}", first(None));
        assert_eq!(first(Some("haltpoll")), "now, in the guest, as root");
    }

    #[test]
    fn the_number_of_an_iothread_is_that_of_its_id_and_no_other() {
        let setting = Setting::defaults(Layer::Iothread, Version::new(10, 0));
        let unknown = text(&setting, &setting);
        assert!(unknown.contains("<iothread id='NUMBER'>") && unknown.contains("iothreadset DOMAIN NUMBER"));
        let lines = crate::iothread::persistence("iothread7", &[("poll-max-ns", 0)]);
        assert!(lines.xml.contains("id='7'") && lines.virsh.contains("DOMAIN 7 "), "{lines:?}");
        assert_eq!(crate::iothread::libvirt_number("io7"), None);
    }

    fn here(setting: &Setting, present: &Setting, machine: &Fake) -> String {
        let join = |l: &Lines| format!("# {}\n{}\n", l.about, l.lines.join("\n"));
        of(setting, present, Some(machine)).iter().map(join).collect()
    }

    #[test]
    fn lines_that_cannot_work_on_this_machine_are_not_printed() {
        let machine = Fake::quiet("6.18.44");
        let host = Setting::defaults(Layer::Host, Version::new(6, 18));
        let built_in = here(&host, &host, &machine);
        assert!(
            built_in.contains("kvm.halt_poll_ns=200000") && !built_in.contains("modprobe.d"),
            "{built_in}"
        );
        machine.set("/sys/module/kvm/initstate", "live\n");
        let loaded = here(&host, &host, &machine);
        assert!(loaded.contains("modprobe.d") && !loaded.contains("kvm.halt_poll_ns="), "{loaded}");
        machine.read_only("/sys/module/kvm/parameters/halt_poll_ns", true);
        let read_only = here(&host, &host, &machine);
        assert!(!read_only.contains("echo ") && read_only.contains("options kvm"), "{read_only}");
        // Debian 12's 6.1 has the driver haltpoll, and neither the governor nor its parameters.
        machine.remove_all("/sys/module/haltpoll");
        let guest = Setting::defaults(Layer::Guest, Version::new(6, 1));
        let without = here(&guest, &guest, &machine);
        assert!(without.contains("nothing can be set") && !without.contains("echo "), "{without}");
    }

    /// A kvm that is loaded with this value is refused.
    #[test]
    fn what_kvm_chooses_when_it_loads_is_not_written() {
        let timers = Setting::defaults(Owner::Timer, Version::new(6, 18));
        assert_eq!(timers.get("pi_inject_timer"), Some(-1));
        let options = module_options(Module::Kvm, &timers);
        assert_eq!(options, "options kvm lapic_timer_advance=Y min_timer_period_us=200");
    }

    #[test]
    fn iothread_lines_have_weight_since_11_1_but_not_those_of_libvirt() {
        let new = Setting::defaults(Layer::Iothread, Version::new(11, 1));
        let text_new = text(&new, &new);
        assert!(text_new.contains("poll-shrink=2,poll-weight=3"));
        assert!(text_new.contains("<poll max='32768' grow='2' shrink='2'/>"));
        assert!(text_new.contains("--poll-max-ns 32768 --poll-grow 2 --poll-shrink 2 --live"));
        assert!(!text_new.contains("cannot set poll-weight"));
        let mut other = new;
        other.set("poll-weight", 1).unwrap();
        assert!(text(&other, &new).contains("now, with libvirt (which cannot set poll-weight: only QMP"));
        let old = Setting::defaults(Layer::Iothread, Version::new(7, 2));
        assert!(!text(&old, &old).contains("weight"));
    }
}
