//! Parameters of kernel modules: the one reader, the one parser and the one printer of them.

use crate::seam::Machine;
pub use crate::value::Value;
use dwell_policy::param::{self, Param, Setting, Unit};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Owner};
use serde::Serialize;

/// A value as the parameter's file takes it and the kernel prints it: switches are `Y` and `N`.
pub fn written(param: &Param, value: i64) -> String {
    match (param.unit, value) {
        (Unit::Switch, 0) => "N".to_owned(),
        (Unit::Switch, 1) => "Y".to_owned(),
        _ => param.name_of(value).map_or_else(|| value.to_string(), str::to_owned),
    }
}

/// The number of what the parameter's file holds: switches are 0 and 1, and a name is its place among the names.
pub fn number_of(param: &Param, text: &str) -> Option<i64> {
    match (param.unit, Value::parse(text)) {
        (Unit::Name(_), Value::Text(name)) => param.parse_name(&name),
        (_, value) => value.number(),
    }
}

/// A value for people: [`written`], and the unit of times.
pub fn shown(param: &Param, value: i64) -> String {
    match param.unit {
        Unit::Nanoseconds | Unit::Microseconds => format!("{value} {}", param.unit.name()),
        _ => written(param, value),
    }
}

/// The file of a parameter of a kernel module.
pub fn path(param: &Param) -> String {
    format!("{}/{}", param.home, param.name)
}

/// A parameter as it is set on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Parameter {
    pub name: &'static str,
    /// What its number means: ns, us, factor, 0/1.
    pub unit: &'static str,
    /// Its value; switches are 0 and 1. `None` if it is there but its file holds no number.
    pub value: Option<i64>,
    /// The default of this kernel; `None` if its rule is not known.
    pub default: Option<i64>,
    pub about: &'static str,
    /// What 0 means.
    pub zero: &'static str,
    pub path: String,
    /// Its row in the table of parameters.
    #[serde(skip)]
    pub param: &'static Param,
}

impl Parameter {
    /// Whether its value is not the default; `false` if either is not known.
    pub fn changed(&self) -> bool {
        matches!((self.value, self.default), (Some(value), Some(default)) if value != default)
    }
}

/// The parameters of a layer or of timers that are there, in the order of the table. I/O threads have none in sysfs.
pub fn read(machine: &dyn Machine, owner: impl Into<Owner>, version: Option<Version>) -> Vec<Parameter> {
    let owner = owner.into();
    if owner == Layer::Iothread {
        return vec![];
    }
    param::table(owner).iter().filter_map(|param| read_one(machine, param, version)).collect()
}

fn read_one(machine: &dyn Machine, param: &'static Param, version: Option<Version>) -> Option<Parameter> {
    let path = path(param);
    machine.exists(&path).then(|| Parameter {
        name: param.name,
        unit: param.unit.name(),
        value: machine.text(&path).and_then(|text| number_of(param, &text)),
        default: version.and_then(|version| param.default_in(version)),
        about: param.about,
        zero: param.zero,
        path,
        param,
    })
}

/// The value of a parameter, if it is there and a number.
pub fn get(parameters: &[Parameter], name: &str) -> Option<i64> {
    parameters.iter().find(|parameter| parameter.name == name)?.value
}

/// The parameters as a setting: what is not there, or is out of the model's range, has the default of `version`.
pub fn setting<O: Copy + Into<Owner>>(owner: O, version: Version, parameters: &[Parameter]) -> Setting<O> {
    let mut setting = Setting::defaults(owner, version);
    for parameter in parameters {
        if let Some(value) = parameter.value {
            let _ = setting.set(parameter.name, value);
        }
    }
    setting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn switches_are_written_as_the_kernel_prints_them() {
        let param = |name: &str| {
            let all = Owner::ALL.into_iter().flat_map(param::table);
            all.into_iter().find(|param| param.name == name).unwrap()
        };
        assert_eq!(written(param("guest_halt_poll_allow_shrink"), 0), "N");
        // -1 of pi_inject_timer means "choose at load".
        assert_eq!(written(param("pi_inject_timer"), -1), "-1");
        assert_eq!(shown(param("halt_poll_ns"), 200_000), "200000 ns");
        assert_eq!(shown(param("halt_poll_ns_grow"), 2), "2");
    }

    #[test]
    fn a_setting_has_defaults_where_the_machine_has_nothing_that_fits() {
        let machine = Fake::new()
            .file("/sys/module/kvm/parameters/halt_poll_ns", "50000\n")
            .file("/sys/module/kvm/parameters/halt_poll_ns_grow", "much\n");
        let version = Version::new(6, 18);
        let parameters = read(&machine, Layer::Host, Some(version));
        assert_eq!((parameters[0].value, parameters[1].value), (Some(50_000), None));
        assert!(parameters[0].changed() && !parameters[1].changed());
        let setting = setting(Layer::Host, version, &parameters);
        assert_eq!((setting.get("halt_poll_ns"), setting.get("halt_poll_ns_grow")), (Some(50_000), Some(2)));
    }
}
