//! The settings in force, at the start and when they change.

use dwell_machine::parameter::Value as Held;
use dwell_machine::{Cpuidle, Machine};
use dwell_policy::{Layer, Owner};
use dwell_recording::{CPUIDLE, SettingValue, SettingsChange};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Where the parameters are, and what those begin with that determine how a layer polls, or keeps timers.
const fn parameters(owner: Owner) -> Option<(&'static str, &'static [&'static str])> {
    Some(match owner {
        Owner::Layer(Layer::Host) => ("/sys/module/kvm/parameters", &["halt_poll_ns"]),
        Owner::Layer(Layer::Guest) => ("/sys/module/haltpoll/parameters", &["guest_halt_poll_"]),
        Owner::Layer(Layer::Driver) => {
            (DWELL_IDLE, &["halt_cost_ns", "wake_latency_ns", "max_window_ns", "policy"])
        }
        Owner::Timer => {
            ("/sys/module/kvm/parameters", &["pi_inject_timer", "lapic_timer_advance", "min_timer_period_us"])
        }
        Owner::Layer(Layer::Iothread) => return None,
    })
}

/// The driver dwell_idle decides in place of haltpoll, whose parameters then have no effect.
const DWELL_IDLE: &str = "/sys/module/dwell_idle/parameters";

/// Whose parameters are in force where this is recorded: a guest's may be those of the driver dwell_idle.
pub fn in_force(machine: &dyn Machine, owner: Owner) -> Owner {
    if owner == Layer::Guest && machine.exists(DWELL_IDLE) { Layer::Driver.into() } else { owner }
}

/// The parameters as they are now; empty where there are none, or where they have no effect under the driver
/// dwell_idle.
pub fn read(machine: &dyn Machine, owner: Owner) -> BTreeMap<String, SettingValue> {
    let Some((folder, prefixes)) = parameters(owner) else { return BTreeMap::new() };
    if in_force(machine, owner) != owner {
        return BTreeMap::new();
    }
    let mut names = machine.names(folder).unwrap_or_default();
    names.retain(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    names
        .into_iter()
        .filter_map(|name| Some((name.clone(), value(&machine.text(&format!("{folder}/{name}"))?))))
        .collect()
}

fn value(text: &str) -> SettingValue {
    match Held::parse(text) {
        Held::Switch(on) => SettingValue::Flag(on),
        Held::Number(number) => {
            u64::try_from(number).map_or(SettingValue::Negative(number), SettingValue::Number)
        }
        Held::Text(text) => SettingValue::Text(text),
    }
}

/// Looks at the settings from time to time and remembers each change.
#[derive(Debug)]
pub(crate) struct Watch {
    owner: Owner,
    now: BTreeMap<String, SettingValue>,
    changes: Vec<SettingsChange>,
}

impl Watch {
    pub(crate) fn start(machine: &dyn Machine, recorded: Owner) -> Watch {
        let owner = in_force(machine, recorded);
        let now = read(machine, owner);
        let changes = match now.is_empty() {
            true => vec![],
            false => vec![SettingsChange { at_ns: None, owner, values: now.clone() }],
        };
        Watch { owner, now, changes }
    }

    /// Looks again; `at_ns` is now \[ns, CLOCK_MONOTONIC\].
    pub(crate) fn look(&mut self, machine: &dyn Machine, at_ns: u64) {
        let values = read(machine, self.owner);
        if values != self.now {
            let at_ns = Some(at_ns);
            self.changes.push(SettingsChange { at_ns, owner: self.owner, values: values.clone() });
            self.now = values;
        }
    }

    pub(crate) fn changes(&self) -> &[SettingsChange] {
        &self.changes
    }
}

/// What else determines how a guest's CPUs idle, and its key in the metadata.
pub(crate) fn cpuidle(machine: &dyn Machine) -> (String, Value) {
    let cpuidle = Cpuidle::read(machine);
    (CPUIDLE.to_owned(), json!({ "driver": cpuidle.driver, "governor": cpuidle.governor }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;

    #[test]
    fn changes_are_remembered_with_their_time() {
        let with = |max: &str| {
            Fake::new()
                .file("/sys/module/kvm/parameters/halt_poll_ns", max)
                .file("/sys/module/kvm/parameters/halt_poll_ns_grow", "2\n")
                .file("/sys/module/kvm/parameters/nx_huge_pages", "Y\n")
        };
        let mut watch = Watch::start(&with("200000\n"), Layer::Host.into());
        watch.look(&with("200000\n"), 5);
        watch.look(&with("0\n"), 7);
        let [first, second] = watch.changes() else { panic!("{:?}", watch.changes()) };
        assert_eq!((first.at_ns, second.at_ns), (None, Some(7)));
        assert_eq!(first.values["halt_poll_ns"], SettingValue::Number(200_000));
        assert_eq!(second.values["halt_poll_ns"], SettingValue::Number(0));
        assert_eq!(first.values.len(), 2);
    }

    #[test]
    fn under_dwell_idle_no_setting_of_haltpoll_is_in_force() {
        let machine = Fake::new().file("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000\n");
        assert_eq!(read(&machine, Layer::Guest.into()).len(), 1);
        let machine = machine.file("/sys/module/dwell_idle/parameters/policy", "leader\n");
        assert!(read(&machine, Layer::Guest.into()).is_empty());
        let watch = Watch::start(&machine, Layer::Guest.into());
        let [first] = watch.changes() else { panic!("{:?}", watch.changes()) };
        assert_eq!(first.owner, Layer::Driver);
        assert_eq!(first.values["policy"], SettingValue::Text("leader".to_owned()));
    }

    #[test]
    fn values_are_read_as_sysfs_writes_them() {
        assert_eq!(value("Y"), SettingValue::Flag(true));
        assert_eq!(value("-1"), SettingValue::Negative(-1));
        assert_eq!(value("4294967295"), SettingValue::Number(4_294_967_295));
        assert_eq!(value("auto"), SettingValue::Text("auto".to_owned()));
        assert!(read(&Fake::new(), Layer::Guest.into()).is_empty());
    }
}
