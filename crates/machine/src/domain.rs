//! What libvirt's files give a VM at its next start, compared with what it was started with.
//!
//! An edit of a domain (`virsh edit`) is for its next start: until then QEMU has the command line of the last one.

use crate::seam::Machine;
use crate::vmm::{Vmm, VmmKind};
use roxmltree::{Document, Node};
use serde::Serialize;
use std::collections::BTreeMap;

/// Something that a VM gets at its next start and does not have now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NextStart {
    /// The process of the VM.
    pub pid: u32,
    pub vm: String,
    pub by: String,
    /// What it is, by QEMU's name.
    pub what: String,
    /// What the file gives it.
    pub wanted: String,
    /// What it was started with.
    pub now: String,
}

/// What differs for each VM that runs and has a file of libvirt's.
pub fn read(machine: &dyn Machine, vmms: &[Vmm]) -> Vec<NextStart> {
    let of = |vmm: &Vmm| {
        let name = vmm.name.as_ref().filter(|name| !name.contains('/') && !name.starts_with('.'))?;
        let by = format!("/etc/libvirt/qemu/{name}.xml");
        let text = machine.text(&by).filter(|_| vmm.kind == VmmKind::Qemu)?;
        let document = Document::parse(&text).ok()?;
        let differ = differences(document.root_element(), vmm);
        let all = differ.into_iter().map(move |(what, wanted, now)| NextStart {
            pid: vmm.pid,
            vm: name.clone(),
            by: by.clone(),
            what,
            wanted,
            now,
        });
        Some(all.collect::<Vec<_>>())
    };
    vmms.iter().filter_map(of).flatten().collect()
}

/// The first child element of this name.
pub fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn is_on(node: Option<Node<'_, '_>>, attribute: &str, on: &str) -> bool {
    node.and_then(|node| node.attribute(attribute)) == Some(on)
}

const fn word(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// What it is, what the file gives, and what the VM has.
type Difference = (String, String, String);

fn differences(domain: Node<'_, '_>, vmm: &Vmm) -> Vec<Difference> {
    let Some(now) = &vmm.options else { return vec![] };
    let features = child(domain, "features");
    let feature =
        |group: &'static str, name: &'static str| features.and_then(|node| child(child(node, group)?, name));
    let timer = |name: &str| {
        child(domain, "clock")?
            .children()
            .find(|node| node.attribute("name") == Some(name))?
            .attribute("present")
    };
    let arguments = child(domain, "commandline").into_iter().flat_map(|node| node.children());
    let arguments: Vec<&str> = arguments.filter_map(|node| node.attribute("value")).collect();
    let cpu_pm = arguments.iter().flat_map(|value| value.split(',')).any(|item| item == "cpu-pm=on");
    let mut switches = vec![
        ("kvm-poll-control", is_on(feature("kvm", "poll-control"), "state", "on"), now.poll_control),
        ("kvm-hint-dedicated", is_on(feature("kvm", "hint-dedicated"), "state", "on"), now.hint_dedicated),
        ("cpu-pm", cpu_pm, now.cpu_pm),
    ];
    let hyper_v = features.and_then(|node| child(node, "hyperv"));
    if !is_on(hyper_v, "mode", "passthrough") {
        for (name, what) in [("vpindex", "hv-vpindex"), ("synic", "hv-synic"), ("stimer", "hv-stimer")] {
            switches.push((what, is_on(feature("hyperv", name), "state", "on"), now.has(what)));
        }
        switches.push(("hv-time", timer("hypervclock") == Some("yes"), now.has("hv-time")));
    }
    // What neither says is left to the machine type.
    if let (Some(wanted), Some(now)) = (timer("hpet"), now.hpet) {
        switches.push(("hpet", wanted == "yes", now));
    }
    let differ = switches.into_iter().filter(|(_, wanted, now)| wanted != now);
    let mut all: Vec<Difference> = differ
        .map(|(what, wanted, now)| (what.to_owned(), word(wanted).to_owned(), word(now).to_owned()))
        .collect();
    all.extend(polling(domain, vmm));
    all
}

/// The attributes of `<poll>`, and QEMU's properties.
const POLL: [(&str, &str); 3] = [("max", "poll-max-ns"), ("grow", "poll-grow"), ("shrink", "poll-shrink")];

fn polling(domain: Node<'_, '_>, vmm: &Vmm) -> Vec<Difference> {
    let ids = child(domain, "iothreadids").into_iter().flat_map(|node| node.children());
    let wanted: BTreeMap<String, Node<'_, '_>> =
        ids.filter_map(|node| Some((format!("iothread{}", node.attribute("id")?.trim()), node))).collect();
    let mut all = vec![];
    for thread in &vmm.io_threads {
        let Some((id, node)) = thread.id.as_ref().and_then(|id| wanted.get_key_value(id)) else { continue };
        for (attribute, property) in POLL {
            let wanted =
                child(*node, "poll").and_then(|poll| poll.attribute(attribute)?.trim().parse::<i64>().ok());
            let now = thread.parameters.get(property).copied();
            if wanted != now {
                let shown =
                    |value: Option<i64>| value.map_or("QEMU's default".to_owned(), |value| value.to_string());
                all.push((format!("{property} of {id}"), shown(wanted), shown(now)));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::Facts;
    use crate::fake::Fake;

    const XML: &str = "<!-- WARNING -->\n<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
        <iothreadids><iothread id='1'><poll max='123' grow='456'/></iothread><iothread id='2'/></iothreadids>
        <features><kvm><poll-control state='on'/></kvm><hyperv mode='custom'><synic state='on'/></hyperv></features>
        <clock offset='utc'><timer name='hpet' present='no'/><timer name='hypervclock' present='yes'/></clock>
        <qemu:commandline><qemu:arg value='-overcommit'/><qemu:arg value='cpu-pm=on'/></qemu:commandline></domain>";

    fn differ(xml: &str, arguments: &[&str]) -> Vec<String> {
        let machine = Fake::quiet("6.18.44");
        machine
            .vm(100, &[&["qemu-system-x86_64", "-name", "guest=web,debug-threads=on"], arguments].concat());
        machine.set("/etc/libvirt/qemu/web.xml", xml);
        let all = Facts::read(&machine).next_start;
        all.iter().map(|one| format!("{}: {} for {}", one.what, one.wanted, one.now)).collect()
    }

    #[test]
    fn what_a_file_gives_and_the_vm_was_not_started_with() {
        let thread = r#"{"qom-type":"iothread","id":"iothread1","poll-max-ns":123}"#;
        let old = ["-machine", "q35,hpet=on", "-cpu", "host,hv-synic=on,hv-stimer=on", "-object", thread];
        assert_eq!(
            differ(XML, &[&old[..], &["-object", "iothread,id=iothread2,poll-max-ns=0"]].concat()),
            [
                "kvm-poll-control: on for off",
                "cpu-pm: on for off",
                "hv-stimer: off for on",
                "hv-time: on for off",
                "hpet: off for on",
                "poll-grow of iothread1: 456 for QEMU's default",
                "poll-max-ns of iothread2: QEMU's default for 0",
            ]
        );
        let same = "{\"qom-type\":\"iothread\",\"id\":\"iothread1\",\"poll-max-ns\":123,\"poll-grow\":456}";
        let cpu = "host,kvm-poll-control=on,hv-synic=on,hv-time=on";
        let now =
            ["-cpu", cpu, "-overcommit", "cpu-pm=on", "-object", same, "-object", "iothread,id=iothread2"];
        assert_eq!(differ(XML, &now), [""; 0]);
    }

    #[test]
    fn a_file_that_is_no_domain_says_nothing() {
        for text in ["", "<domain", "<!DOCTYPE x [<!ENTITY a 'b'>]><domain>&a;</domain>", "\u{0}"] {
            assert_eq!(differ(text, &["-cpu", "host,kvm-poll-control=on"]), [""; 0], "{text:?}");
        }
        assert_eq!(
            differ("<domain/>", &["-cpu", "host,kvm-poll-control=on"]),
            ["kvm-poll-control: off for on"]
        );
    }
}
