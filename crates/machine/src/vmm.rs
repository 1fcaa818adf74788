//! Virtual machine monitors with their I/O threads.

use crate::process::{Process, Thread};
use dwell_policy::Layer;
use dwell_policy::param;
use dwell_policy::version::Version;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;

/// A process that is a virtual machine monitor or a storage daemon of one.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Vmm {
    pub pid: u32,
    /// The program's file name.
    pub program: String,
    /// Which program it is.
    pub kind: VmmKind,
    /// The VM's name on the command line.
    pub name: Option<String>,
    /// For QEMU, the version of the machine type on the command line: the program is at least that new. The version
    /// itself only its monitor reports.
    pub at_least: Option<String>,
    /// The same, as a version.
    #[serde(skip)]
    pub at_least_version: Option<Version>,
    /// Who started it, as far as its command line shows.
    pub manager: Option<Manager>,
    /// What its command line decides about timers and polling of its VM; `None` for programs that are not known, and
    /// without a VM.
    pub options: Option<VmOptions>,
    pub io_threads: Vec<IoThread>,
}

/// What starts VMs, in whose words a remedy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Manager {
    #[serde(rename = "libvirt")]
    Libvirt,
    Proxmox,
    KubeVirt,
    /// OpenStack Nova, above libvirt.
    OpenStack,
}

impl Manager {
    /// From the names that managers give to machines, processes and folders.
    fn of(process: &Process, machine: Option<&str>) -> Option<Manager> {
        let machine = machine.unwrap_or_default();
        let name = process.vm_name().unwrap_or_default();
        let named = |vendor: &str| process.options("smbios").any(|table| table.contains(vendor));
        if machine.contains("+pve") {
            return Some(Manager::Proxmox);
        }
        if named("OpenStack") || name.strip_prefix("instance-").is_some_and(is_hexadecimal) {
            return Some(Manager::OpenStack);
        }
        // Its names are those of a namespace and a VM.
        if named("KubeVirt") || machine.contains("rhel") && name.contains('_') {
            return Some(Manager::KubeVirt);
        }
        let folders = ["/var/lib/libvirt/qemu/", "/run/libvirt/qemu/"];
        let by_libvirt = |word: &String| folders.iter().any(|folder| word.contains(folder));
        process.arguments.iter().any(by_libvirt).then_some(Manager::Libvirt)
    }
}

fn is_hexadecimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What the command line of a monitor decides about timers and polling of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VmOptions {
    pub machine: Option<String>,
    /// `-overcommit cpu-pm=on`: HLT, MWAIT and PAUSE do not exit.
    pub cpu_pm: bool,
    /// `kvm-poll-control=on`: the guest may switch host polling off.
    pub poll_control: bool,
    /// `kvm-hint-dedicated=on`: a promise that vCPUs have CPUs of their own.
    pub hint_dedicated: bool,
    /// The Hyper-V enlightenments that are on, which are for Windows: `hv-time`, `hv-stimer`, ...
    pub hyper_v: Vec<String>,
    /// Whether the guest sees an HPET; `None` if the command line leaves it to the machine type.
    pub hpet: Option<bool>,
    /// Whether its network is served by vhost threads in the kernel.
    pub vhost: bool,
}

impl VmOptions {
    /// `None` for programs whose options are not known, and for those without a VM.
    fn read(process: &Process, kind: VmmKind) -> Option<VmOptions> {
        let any = |options: &[&'static str], is: fn(&str) -> bool| {
            options.iter().any(|name| process.options(name).flat_map(|value| value.split(',')).any(is))
        };
        match kind {
            VmmKind::Qemu => Some(VmOptions::of_qemu(process)),
            VmmKind::CloudHypervisor => Some(VmOptions {
                hyper_v: any(&["cpus"], |item| item == "kvm_hyperv=on")
                    .then(|| "kvm_hyperv".to_owned())
                    .into_iter()
                    .collect(),
                vhost: any(&["net", "disk"], |item| matches!(item, "vhost_user=on" | "vhost_user=true")),
                ..VmOptions::default()
            }),
            VmmKind::Crosvm => Some(VmOptions {
                vhost: process.arguments.iter().any(|word| word == "--vhost-net")
                    || any(&["net"], |item| item == "vhost-net" || item.starts_with("vhost-net=")),
                ..VmOptions::default()
            }),
            // Its VM is configured by a file and by its API.
            VmmKind::Firecracker => Some(VmOptions::default()),
            VmmKind::QemuStorageDaemon | VmmKind::Other => None,
        }
    }

    fn of_qemu(process: &Process) -> VmOptions {
        let items = |option: &'static str| process.options(option).flat_map(|value| value.split(','));
        let machine: Vec<&str> = items("machine").chain(items("M")).collect();
        // Of a feature that is given again, the last counts; dashes and underscores are alike.
        let feature = |name: &str| {
            let state = |item: &str| switch(&item.replace('_', "-"), name);
            items("cpu").filter_map(state).last()
        };
        let names = items("cpu").map(|item| item.replace('_', "-"));
        let names = names
            .map(|item| item.trim_start_matches(['+', '-']).split('=').next().unwrap_or_default().to_owned());
        let mut hyper_v: Vec<String> =
            names.filter(|name| name.starts_with("hv-") && feature(name) != Some(false)).collect();
        hyper_v.sort();
        hyper_v.dedup();
        VmOptions {
            machine: machine.iter().find_map(|item| match item.split_once('=') {
                None => Some((*item).to_owned()),
                Some(("type", name)) => Some(name.to_owned()),
                Some(_) => None,
            }),
            cpu_pm: items("overcommit").filter_map(|item| switch(item, "cpu-pm")).last() == Some(true),
            poll_control: feature("kvm-poll-control") == Some(true),
            hint_dedicated: feature("kvm-hint-dedicated") == Some(true),
            hyper_v,
            hpet: match process.arguments.iter().any(|word| word == "-no-hpet") {
                true => Some(false),
                false => machine.iter().rev().find_map(|item| switch(item, "hpet")),
            },
            vhost: items("netdev").any(|item| matches!(item, "vhost=on" | "vhost-user" | "type=vhost-user")),
        }
    }

    /// Whether an enlightenment is on.
    pub fn has(&self, name: &str) -> bool {
        self.hyper_v.iter().any(|on| on == name || on == "hv-passthrough")
    }
}

/// Whether an item such as `cpu-pm=on`, `+cpu-pm` or `cpu-pm` switches this on or off; `None` if it is another.
fn switch(item: &str, name: &str) -> Option<bool> {
    if let Some((key, value)) = item.split_once('=') {
        return (key == name).then_some(!matches!(value, "off" | "no" | "false"));
    }
    let off = item.strip_prefix('-') == Some(name);
    (off || item.strip_prefix('+').unwrap_or(item) == name).then_some(!off)
}

/// Which program a monitor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmmKind {
    Qemu,
    QemuStorageDaemon,
    Firecracker,
    CloudHypervisor,
    Crosvm,
    /// Any other process that holds a VM.
    Other,
}

/// A thread that runs an event loop for devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IoThread {
    /// The id of the iothread object, if one belongs to it.
    pub id: Option<String>,
    /// Its thread; `None` if no thread is named after the object (QEMU names them with `debug-threads=on`).
    pub tid: Option<u32>,
    pub comm: Option<String>,
    /// The polling parameters that the command line sets; what it leaves out has QEMU's defaults, and either may have
    /// been changed since through the monitor.
    pub parameters: BTreeMap<&'static str, i64>,
}

impl Vmm {
    /// Whether it is QEMU or its storage daemon, whose I/O threads are objects with polling properties.
    pub fn is_qemu(&self) -> bool {
        matches!(self.kind, VmmKind::Qemu | VmmKind::QemuStorageDaemon)
    }

    pub(crate) fn of(process: &Process) -> Option<Vmm> {
        let kind = kind(process)?;
        let options = VmOptions::read(process, kind);
        let machine = options.as_ref().and_then(|options| options.machine.as_deref());
        // `pc-q35-7.2`, `pc-i440fx-8.1`
        let at_least = machine.and_then(|machine| Version::parse(machine.rsplit('-').next()?));
        Some(Vmm {
            pid: process.pid,
            program: process.program().to_owned(),
            kind,
            name: process.vm_name(),
            at_least: at_least.map(|version| version.to_string()),
            at_least_version: at_least,
            manager: Manager::of(process, machine),
            options,
            io_threads: io_threads(process, kind),
        })
    }
}

fn kind(process: &Process) -> Option<VmmKind> {
    let program = process.program();
    let known = match program {
        "qemu-storage-daemon" => Some(VmmKind::QemuStorageDaemon),
        "qemu-kvm" | "kvm" => Some(VmmKind::Qemu),
        "firecracker" => Some(VmmKind::Firecracker),
        "cloud-hypervisor" => Some(VmmKind::CloudHypervisor),
        "crosvm" => Some(VmmKind::Crosvm),
        _ if program.starts_with("qemu-system-") => Some(VmmKind::Qemu),
        _ => None,
    };
    known.or_else(|| {
        let files = process.files.as_ref()?;
        files.iter().any(|file| file == "anon_inode:kvm-vm").then_some(VmmKind::Other)
    })
}

fn io_threads(process: &Process, kind: VmmKind) -> Vec<IoThread> {
    let mut named: Vec<&Thread> =
        process.threads.iter().filter(|thread| is_io_thread(&thread.comm, kind)).collect();
    let mut all: Vec<IoThread> = process.options("object").filter_map(iothread_object).collect();
    for object in &mut all {
        let comm = io_thread_comm(&object.id.as_deref().unwrap_or_default());
        let thread = named.iter().position(|thread| thread.comm == comm).map(|at| named.remove(at));
        object.tid = thread.map(|thread| thread.tid);
        object.comm = thread.map(|thread| thread.comm.clone());
    }
    all.extend(named.into_iter().map(|thread| IoThread {
        id: thread.comm.strip_prefix("IO ").map(str::to_owned),
        tid: Some(thread.tid),
        comm: Some(thread.comm.clone()),
        parameters: BTreeMap::new(),
    }));
    all
}

/// The name that Linux has of a QEMU's I/O thread: 15 letters.
pub fn io_thread_comm(id: &impl Display) -> String {
    format!("IO {id}").chars().take(15).collect()
}

/// How the event loops of the known programs are named: `IO io0` (QEMU), `_disk0_q0`, `_net1_qp0` (Cloud
/// Hypervisor), `v_block`, `v_net` (crosvm). Firecracker does its I/O on its main thread.
fn is_io_thread(comm: &str, kind: VmmKind) -> bool {
    match kind {
        VmmKind::Qemu | VmmKind::QemuStorageDaemon => comm.starts_with("IO "),
        VmmKind::CloudHypervisor => comm.starts_with('_') && comm.contains("_q"),
        VmmKind::Crosvm => comm.starts_with("v_"),
        VmmKind::Firecracker => comm == "firecracker",
        VmmKind::Other => false,
    }
}

/// The iothread object of `-object iothread,id=io0,poll-max-ns=…`, also in the form of JSON; its thread is not in it.
fn iothread_object(text: &str) -> Option<IoThread> {
    let fields = if text.trim_start().starts_with('{') { json_fields(text)? } else { listed_fields(text) };
    if fields.get("qom-type").map(String::as_str) != Some("iothread") {
        return None;
    }
    let parameters = param::table(Layer::Iothread)
        .iter()
        .filter_map(|param| Some((param.name, param::whole(fields.get(param.name)?)?)))
        .collect();
    Some(IoThread { id: Some(fields.get("id")?.clone()), tid: None, comm: None, parameters })
}

fn json_fields(text: &str) -> Option<BTreeMap<String, String>> {
    // QEMU takes single quotes as well.
    let parsed = serde_json::from_str(text).or_else(|_| serde_json::from_str(&text.replace('\'', "\"")));
    let value: serde_json::Value = parsed.ok()?;
    let word = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(value.as_object()?.iter().map(|(name, value)| (name.clone(), word(value))).collect())
}

fn listed_fields(text: &str) -> BTreeMap<String, String> {
    let items = text.split(',').enumerate();
    items
        .filter_map(|(index, item)| match item.split_once('=') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None if index == 0 => Some(("qom-type".to_owned(), item.to_owned())),
            None => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(arguments: &[&str], threads: &[&str]) -> Process {
        let thread = |(index, comm): (u32, &&str)| Thread { tid: 100 + index, comm: (*comm).to_owned() };
        Process {
            pid: 100,
            comm: "qemu".into(),
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            threads: (0..).zip(threads).map(thread).collect(),
            files: Some(vec![]),
        }
    }

    #[test]
    fn objects_in_both_forms_and_all_number_bases() {
        let list = iothread_object("iothread,id=io0,poll-max-ns=0x8000,poll-grow=010").unwrap();
        assert_eq!(list.parameters, BTreeMap::from([("poll-max-ns", 32_768), ("poll-grow", 8)]));
        let json = iothread_object(r#"{"qom-type":"iothread","id":"iothread1","poll-max-ns":0}"#).unwrap();
        assert_eq!((json.id.as_deref(), json.parameters["poll-max-ns"]), (Some("iothread1"), 0));
        assert_eq!(iothread_object("memory-backend-ram,id=m,size=1G"), None);
        let single = iothread_object("{'qom-type':'iothread','id':'iothread1','poll-max-ns':0}").unwrap();
        assert_eq!((single.id, single.parameters), (json.id.clone(), json.parameters.clone()));
        assert_eq!(iothread_object("{\"qom-type\":"), None);
    }

    #[test]
    fn qemu_with_its_io_threads_and_machine_version() {
        let arguments = [
            "/usr/bin/qemu-system-x86_64",
            "-name",
            "guest=web,debug-threads=on",
            "-machine",
            "pc-q35-7.2,accel=kvm",
            "-object",
            "iothread,id=io0,poll-max-ns=100000",
            "-object",
            "iothread,id=io1",
        ];
        let vmm =
            Vmm::of(&process(&arguments, &["qemu-system-x86", "IO mon_iothread", "IO io0", "CPU 0/KVM"]))
                .unwrap();
        assert_eq!(
            (vmm.kind, vmm.name.as_deref(), vmm.at_least.as_deref()),
            (VmmKind::Qemu, Some("web"), Some("7.2"))
        );
        let seen: Vec<_> = vmm.io_threads.iter().map(|t| (t.id.as_deref(), t.tid)).collect();
        assert_eq!(seen, [(Some("io0"), Some(102)), (Some("io1"), None), (Some("mon_iothread"), Some(101))]);
        assert_eq!(vmm.io_threads[0].parameters["poll-max-ns"], 100_000);
    }

    #[test]
    fn what_the_command_line_decides_about_a_vm() {
        let of = |arguments: &[&str]| VmOptions::of_qemu(&process(arguments, &[]));
        let kubevirt = of(&[
            "qemu-kvm",
            "-machine",
            "pc-q35-rhel9.2.0,accel=kvm",
            "-cpu",
            "host,migratable=on,kvm-hint-dedicated=on,kvm-poll-control=on",
            "-overcommit",
            "mem-lock=off,cpu-pm=on",
        ]);
        assert_eq!(kubevirt.machine.as_deref(), Some("pc-q35-rhel9.2.0"));
        assert!(kubevirt.cpu_pm && kubevirt.poll_control && kubevirt.hint_dedicated);
        assert_eq!((kubevirt.hyper_v.len(), kubevirt.hpet), (0, None));
        let windows = of(&[
            "kvm",
            "-cpu",
            "host,hv_time,hv_spinlocks=0x1fff,hv_stimer=off,+kvm_pv_eoi",
            "-M",
            "hpet=on,type=q35",
        ]);
        assert_eq!(
            (windows.hyper_v.as_slice(), windows.hpet),
            (["hv-spinlocks", "hv-time"].map(str::to_owned).as_slice(), Some(true))
        );
        assert!(windows.has("hv-time") && !windows.has("hv-stimer") && !windows.cpu_pm);
        assert_eq!(windows.machine.as_deref(), Some("q35"));
    }

    #[test]
    fn options_of_other_monitors() {
        let of = |arguments: &[&str]| Vmm::of(&process(arguments, &[])).unwrap().options.unwrap();
        let windows = of(&[
            "/usr/bin/cloud-hypervisor",
            "--cpus",
            "boot=4,kvm_hyperv=on",
            "--disk=path=a,vhost_user=on",
        ]);
        assert_eq!((windows.hyper_v, windows.vhost), (vec!["kvm_hyperv".to_owned()], true));
        assert_eq!(of(&["cloud-hypervisor", "--cpus", "boot=4,kvm_hyperv=off"]), VmOptions::default());
        assert!(of(&["crosvm", "run", "--net", "tap-name=t,vhost-net"]).vhost);
        assert_eq!(of(&["firecracker", "--id", "a", "--config-file", "f.json"]), VmOptions::default());
        assert_eq!(Vmm::of(&process(&["qemu-storage-daemon"], &[])).unwrap().options, None);
    }

    #[test]
    fn who_started_a_vm() {
        let of = |arguments: &[&str]| {
            Vmm::of(&process(&[&["qemu-kvm"], arguments].concat(), &[])).unwrap().manager
        };
        assert_eq!(of(&["-machine", "type=pc-q35-9.0+pve0"]), Some(Manager::Proxmox));
        assert_eq!(of(&["-name", "guest=instance-0000a1f3,debug-threads=on"]), Some(Manager::OpenStack));
        assert_eq!(of(&["-smbios", "type=1,manufacturer=OpenStack Foundation"]), Some(Manager::OpenStack));
        assert_eq!(of(&["-smbios", "type=1,manufacturer=KubeVirt,product=None"]), Some(Manager::KubeVirt));
        assert_eq!(
            of(&["-machine", "pc-q35-rhel9.2.0", "-name", "guest=default_rt-vm"]),
            Some(Manager::KubeVirt)
        );
        let key = "{\"qom-type\":\"secret\",\"file\":\"/var/lib/libvirt/qemu/domain-1-a/master-key.aes\"}";
        assert_eq!(of(&["-name", "guest=instance-of-mine", "-object", key]), Some(Manager::Libvirt));
        assert_eq!(of(&["-name", "a"]), None);
    }

    #[test]
    fn processes_without_a_vm_are_no_monitors() {
        assert!(Vmm::of(&process(&["/bin/sh", "-c", "qemu-system-x86_64"], &["sh"])).is_none());
    }
}
