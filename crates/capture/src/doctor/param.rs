//! Module parameters as they are set here, beside what they would be by default.

use super::root::Root;
use dwell_policy::Layer;
use dwell_policy::param::{self, Param, Unit};
use dwell_policy::version::Version;
use serde::Serialize;

/// A parameter of a layer's rule as it is set on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Value {
    /// Its name.
    pub name: &'static str,
    /// What its number means: ns, us, factor, 0/1.
    pub unit: &'static str,
    /// Its value; switches are 0 and 1. `None` if it is there but not readable as a number.
    pub value: Option<i64>,
    /// The default of this kernel; `None` if its rule is not known.
    pub default: Option<i64>,
    /// What it does.
    pub about: &'static str,
    /// What 0 means.
    pub zero: &'static str,
    /// Where it is.
    pub path: String,
}

impl Value {
    /// Whether somebody has changed it; `false` if that cannot be told.
    pub fn changed(&self) -> bool {
        matches!((self.value, self.default), (Some(value), Some(default)) if value != default)
    }
}

/// The parameters of a layer that are there, in the order of the table.
pub(super) fn values(root: &Root, layer: Layer, version: Option<Version>) -> Vec<Value> {
    param::table(layer).iter().filter_map(|param| value(root, param, version)).collect()
}

fn value(root: &Root, param: &'static Param, version: Option<Version>) -> Option<Value> {
    let path = format!("{}/{}", param.home, param.name);
    root.exists(&path).then(|| Value {
        name: param.name,
        unit: param.unit.name(),
        value: root.number(&path),
        default: version.and_then(|version| param.default_in(version)),
        about: param.about,
        zero: param.zero,
        path,
    })
}

/// The value of a parameter, if it is there and a number.
pub(super) fn get(values: &[Value], name: &str) -> Option<i64> {
    values.iter().find(|value| value.name == name)?.value
}

/// How people write a value: with its unit, and switches as the kernel prints them.
pub fn written(unit: &str, value: i64) -> String {
    if unit == Unit::Switch.name() {
        match value {
            0 => return "N".to_owned(),
            1 => return "Y".to_owned(),
            _ => {}
        }
    }
    if unit == Unit::Nanoseconds.name() || unit == Unit::Microseconds.name() {
        format!("{value} {unit}")
    } else {
        value.to_string()
    }
}
