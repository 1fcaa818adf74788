//! The I/O thread of a running QEMU, and the configuration that libvirt would keep of it.

use crate::{Scene, start};
use dwell_knobs::iothread;
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::qmp::{Limits, Monitor};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_testing::fixture::{self, Fixture};
use dwell_testing::process::{Process, write_program};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A QEMU without a machine, which has an I/O thread all the same.
struct Qemu {
    _process: Process,
    socket: PathBuf,
}

impl Qemu {
    /// Below the root of a machine; `None` where there is no QEMU.
    fn start(machine: &Fixture) -> Option<Qemu> {
        let there =
            Command::new("qemu-system-x86_64").arg("--version").output().is_ok_and(|o| o.status.success());
        if !there {
            return None;
        }
        machine.write("/run/place", "");
        let socket = machine.path("/run/vm.qmp");
        let mut command = Command::new("qemu-system-x86_64");
        command.args([
            "-M",
            "none",
            "-display",
            "none",
            "-nodefaults",
            "-object",
            "iothread,id=iothread1",
            "-qmp",
        ]);
        command.arg(format!("unix:{},server=on,wait=off", socket.display()));
        let process = start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        let qemu = Qemu { _process: process, socket };
        let begun = Instant::now();
        while qemu.connect().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(30), "QEMU does not serve its monitor");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(qemu)
    }

    fn connect(&self) -> Option<Monitor> {
        Monitor::connect(&self.socket, Limits::default()).ok()
    }

    fn get(&self, property: &str) -> i64 {
        iothread::get(&mut self.connect().expect("a monitor"), "iothread1", property).expect("a value")
    }
}

/// libvirt's shell with one domain, whose configuration is a file.
const VIRSH: &str = "#!/bin/sh\nxml=\"$(dirname \"$0\")/../../domain.xml\"\ncase \"$1\" in\n\
    dumpxml) [ \"$4\" = web ] || { echo \"no domain $4\" >&2; exit 1; }; cat \"$xml\";;\n\
    list) echo other;;\n\
    define) cat > \"$xml.new\" && mv \"$xml.new\" \"$xml\"; echo defined;;\nesac\n";
const DOMAIN: &str = "<domain type='kvm'>\n  <name>web</name>\n  <iothreadids>\n    <iothread id='1'/>\n  </iothreadids>\n</domain>";

#[test]
fn an_iothread_is_set_kept_by_libvirt_verified_and_taken_back() {
    let machine = Fixture::guest();
    let Some(qemu) = Qemu::start(&machine) else {
        const NAME: &str = "an_iothread_is_set_kept_by_libvirt_verified_and_taken_back";
        dwell_testing::skip!("qemu", NAME, "no qemu-system-x86_64");
        return;
    };
    std::fs::create_dir_all(machine.path("/usr/bin")).unwrap();
    write_program(&machine.path("/usr/bin/virsh"), VIRSH.as_bytes());
    machine.write("/domain.xml", DOMAIN);
    let version = qemu.connect().unwrap().greeting().version.clone();
    let mut present = Setting::defaults(Layer::Iothread, Version::parse(&version).unwrap());
    for name in ["poll-max-ns", "poll-grow", "poll-shrink"] {
        present.set(name, qemu.get(name)).unwrap();
    }
    let target = IothreadTarget {
        socket: "/run/vm.qmp".to_owned(),
        id: "iothread1".parse().unwrap(),
        domain: Some("web".to_owned()),
    };
    let plan = fixture::plan_for(present, &[("poll-max-ns", 300_000), ("poll-grow", 4)], Some(target));
    let scene = Scene::new(machine, &plan);

    scene.stdout(&["apply", "PLAN", "--persist"]);
    assert_eq!((qemu.get("poll-max-ns"), qemu.get("poll-grow")), (300_000, 4));
    let kept = scene.machine.text("/domain.xml").unwrap();
    assert!(kept.contains("<iothread id='1'><poll max='300000' grow='4'"), "{kept}");
    let verified = scene.json(&["verify", "--budget", "3s", "--turn", "20ms", "--settle", "1ms"]);
    assert!(verified["figures"][2]["after"]["value"].is_number(), "{verified}");
    assert_eq!(qemu.get("poll-max-ns"), 300_000);
    scene.stdout(&["revert"]);
    assert_eq!(qemu.get("poll-max-ns"), present.get("poll-max-ns").unwrap());
    assert_eq!(scene.machine.text("/domain.xml").unwrap().replace("></iothread>", "/>"), DOMAIN);

    // The object is deleted, and the domain undefined: there is nothing to restore.
    scene.stdout(&["apply", "PLAN", "--persist"]);
    let deleted =
        qemu.connect().unwrap().execute("object-del", Some(serde_json::json!({ "id": "iothread1" })));
    deleted.unwrap();
    scene.machine.write("/usr/bin/virsh", &VIRSH.replace("= web", "= nothing"));
    assert!(scene.stdout(&["status"]).contains("no longer in force"));
    let reverted = scene.json(&["revert"]);
    assert!(reverted.as_array().unwrap().iter().all(|row| row["outcome"] == "gone"), "{reverted}");
    scene.machine.write("/usr/bin/virsh", VIRSH);
    drop(qemu);
    let qemu = Qemu::start(&scene.machine).unwrap();

    // What was set in a QEMU that has ended is gone with it.
    scene.stdout(&["apply", "PLAN"]);
    drop(qemu);
    assert!(scene.stdout(&["status"]).contains("no longer in force"));
    let reverted = scene.json(&["revert"]);
    assert!(reverted.as_array().unwrap().iter().all(|row| row["outcome"] == "gone"), "{reverted}");
}
