//! A machine below a directory, and plans for it.

use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::plan::{Conditions, Plan};
use dwell_machine::{Sysroot, parameter};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Owner};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The folder of haltpoll's parameters.
pub const HALTPOLL: &str = "/sys/module/haltpoll/parameters";

/// The folder of the parameters of the idle driver dwell_idle.
pub const DWELL_IDLE: &str = "/sys/module/dwell_idle/parameters";

/// A machine whose files are below a temporary directory.
pub struct Fixture {
    /// The machine, as the program sees it.
    pub machine: Sysroot,
    root: tempfile::TempDir,
}

impl Fixture {
    /// A guest whose haltpoll governor decides.
    pub fn guest() -> Fixture {
        let fixture = Fixture::bare("6.18.44", Layer::Guest);
        fixture.write("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n");
        fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", "haltpoll\n");
        fixture
    }

    /// A host with this kernel release, its parameters at their defaults.
    pub fn host(kernel: &str) -> Fixture {
        Fixture::bare(kernel, Layer::Host)
    }

    fn bare(kernel: &str, layer: Layer) -> Fixture {
        // In memory where that is possible: each change is synced to the disk, and there are thousands.
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let fixture = Fixture { machine: Sysroot::at(root.path()), root };
        fixture.write("/proc/sys/kernel/osrelease", &format!("{kernel}\n"));
        fixture.write("/proc/sys/kernel/random/boot_id", "8a0d4b7c\n");
        fixture.write("/usr/bin/systemd-tmpfiles", "");
        fixture.write_defaults(kernel, layer);
        fixture
    }

    /// A guest of Linux 6.18 under the idle driver dwell_idle, with these parameters and the defaults of the others.
    pub fn under_dwell_idle(parameters: &[(&str, &str)]) -> Fixture {
        let fixture = Fixture::bare("6.18.44", Layer::Driver);
        fixture.write("/sys/devices/system/cpu/cpuidle/current_driver", "dwell_idle\n");
        fixture.write("/sys/devices/system/cpu/cpuidle/current_governor", "menu\n");
        fixture.write("/sys/module/dwell_idle/initstate", "live\n");
        fixture.write_defaults("6.18.44", Layer::Guest);
        for (name, value) in parameters {
            fixture.write(&format!("{DWELL_IDLE}/{name}"), &format!("{value}\n"));
        }
        fixture
    }

    /// Writes the parameters of a layer, at the defaults of this kernel.
    pub fn write_defaults(&self, kernel: &str, owner: impl Into<Owner>) {
        for (param, value) in Setting::defaults(owner.into(), Version::parse(kernel).unwrap()).iter() {
            let text = parameter::written(param, value);
            self.write(&format!("{}/{}", param.home, param.name), &format!("{text}\n"));
        }
    }

    /// Where a file of the machine really is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Writes a file of the machine.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Reads a file of the machine; `None` where there is none.
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// Writes a parameter of haltpoll.
    pub fn set(&self, knob: &str, text: &str) {
        self.write(&format!("{HALTPOLL}/{knob}"), text);
    }

    /// Reads a parameter of haltpoll.
    pub fn value(&self, knob: &str) -> String {
        self.text(&format!("{HALTPOLL}/{knob}")).unwrap().trim().to_owned()
    }

    /// Changes the mode of a parameter of haltpoll.
    pub fn mode(&self, knob: &str, mode: u32) {
        fs::set_permissions(self.path(&format!("{HALTPOLL}/{knob}")), fs::Permissions::from_mode(mode))
            .unwrap();
    }

    /// Every file but those of the journal, with its text.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        collect(self.root.path(), &mut files);
        files.retain(|path, _| !path.starts_with(self.path("/var/lib/dwell")));
        files
    }
}

fn collect(directory: &Path, files: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap();
        if kind.is_dir() {
            collect(&path, files);
        } else if kind.is_symlink() {
            files.insert(path, "a link".to_owned());
        } else if kind.file_type().is_socket() {
            files.insert(path, "a socket".to_owned());
        } else {
            let text = fs::read_to_string(&path).unwrap();
            files.insert(path, text);
        }
    }
}

/// From haltpoll's defaults to a shorter window.
pub fn guest_plan() -> Plan {
    let present = Setting::defaults(Layer::Guest, Version::new(6, 18));
    plan(present, &[("guest_halt_poll_ns", 50_000), ("guest_halt_poll_grow_start", 12_500)])
}

/// From the defaults of a host's kernel to a shorter maximum.
pub fn host_plan(version: &str) -> Plan {
    let present = Setting::defaults(Layer::Host, Version::parse(version).unwrap());
    plan(present, &[("halt_poll_ns", 50_000)])
}

/// To a longer window where shrinking is forbidden: the way back is the one with the trap.
pub fn trap_plan() -> Plan {
    let mut present = Setting::defaults(Layer::Guest, Version::new(6, 18));
    present.set("guest_halt_poll_ns", 20_000).unwrap();
    present.set("guest_halt_poll_allow_shrink", 0).unwrap();
    plan(present, &[("guest_halt_poll_ns", 200_000)])
}

/// From what another plan has set.
pub fn plan_from(before: &Plan, wanted: &[(&str, i64)]) -> Plan {
    plan(before.recommended_setting().unwrap(), wanted)
}

/// From a setting to another one in which these parameters differ.
pub fn plan<O: Copy + Into<Owner>>(present: Setting<O>, wanted: &[(&str, i64)]) -> Plan {
    plan_for(present, wanted, None)
}

/// The same for an I/O thread.
pub fn plan_for<O: Copy + Into<Owner>>(
    present: Setting<O>,
    wanted: &[(&str, i64)],
    iothread: Option<IothreadTarget>,
) -> Plan {
    let mut recommended = present;
    wanted.iter().for_each(|(name, value)| recommended.set(name, *value).unwrap());
    let plan = Plan::by_hand(present, recommended, iothread);
    Plan {
        tool: "test".to_owned(),
        made_at_unix_s: 0,
        advice: String::new(),
        conditions: Conditions { halt_cost_ns: 20_000, wakeup_latency_ns: 20_000.0, ..plan.conditions },
        ..plan
    }
}
