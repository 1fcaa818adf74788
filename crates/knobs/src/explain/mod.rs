//! What a value of a knob does: is it read at all, does another one do the same, and what is its scope?
//!
//! That two values act the same is [decided](same) by the models of the rules; what only a machine shows (is there a
//! cpuidle driver, is APICv on) is [looked up](crate::condition).

pub mod related;
pub mod same;

use crate::condition::{self, NoEffect, Readers};
use crate::knob::{Knob, Scope};
use dwell_machine::Machine;
use dwell_policy::param::{Param, Setting, Unit};
use dwell_policy::{Layer, Owner};
use same::{Sameness, compare};
use serde::Serialize;
use std::collections::BTreeSet;

/// What a value does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "effect")]
pub enum Effect {
    /// The windows depend on it.
    Effective,
    /// It has no effect.
    NoEffect { why: String },
    /// Whether it has an effect depends on what is not known.
    NotKnown { why: String },
    /// The rule has no windows whose sameness could be decided.
    NotModelled,
}

impl Effect {
    /// In a word or two.
    pub const fn name(&self) -> &'static str {
        match self {
            Effect::Effective => "effective",
            Effect::NoEffect { .. } => "no effect",
            Effect::NotKnown { .. } => "not known",
            Effect::NotModelled => "not modelled",
        }
    }

    pub fn words(&self) -> String {
        match self {
            Effect::NoEffect { why } => format!("no effect: {why}"),
            Effect::NotKnown { why } => format!("not known whether it has an effect: {why}"),
            Effect::Effective | Effect::NotModelled => self.name().to_owned(),
        }
    }
}

/// The explanation of one value of one knob, with the other values of its setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    pub knob: &'static str,
    /// Whose it is.
    pub layer: &'static str,
    /// Of Linux, or of QEMU for I/O threads.
    pub version: String,
    pub value: i64,
    /// The default of this version.
    pub default: Option<i64>,
    #[serde(flatten)]
    pub effect: Effect,
    /// Other values that are equivalent to it.
    pub same_as: Vec<i64>,
    /// How it differs from the default, by the shortest example.
    pub against_default: Option<Sameness>,
    /// Who is affected by it, and when.
    pub scope: Scope,
    /// The same, in words.
    pub scope_words: &'static str,
    /// What the knob does.
    pub about: &'static str,
    /// What 0 means.
    pub zero: &'static str,
    /// How it is kept.
    pub kept_by: &'static str,
    /// Further notes for whoever sets it.
    pub notes: Vec<String>,
}

/// Explains the value that `setting` has for a parameter; `None` if its version has no such parameter.
/// `machine` is asked what reads it there.
pub fn explain(
    setting: &Setting<Owner>,
    param: &'static Param,
    machine: Option<&dyn Machine>,
) -> Option<Explained> {
    let (knob, version) = (Knob { param }, setting.version());
    let modelled =
        setting.of_layer().filter(|_| is_modelled(param) && version.arch.lacks(param.owner).is_none());
    let value = setting.get(param.name)?;
    let tried: Vec<(i64, Sameness)> =
        modelled.map_or_else(Vec::new, |setting| compared(&setting, param, value).collect());
    let same_as: Vec<i64> = tried.iter().filter(|(_, is)| is.is_same()).map(|(other, _)| *other).collect();
    let default = param.default_in(version);
    let against = |default: i64| {
        let setting = modelled.as_ref()?;
        Some(compare(setting, &with(setting, param.name, default)?))
    };
    let readers = machine.map(Readers::of);
    let of_machine = readers.as_ref().and_then(|readers| {
        let none = readers.no_effect(knob).map(|why| Effect::NoEffect { why: why.to_string() });
        none.or_else(|| readers.not_known(knob).map(|why| Effect::NotKnown { why: why.to_owned() }))
    });
    let effect = of_machine
        .unwrap_or_else(|| modelled.map_or(Effect::NotModelled, |setting| of_model(&setting, param, &tried)));
    let scope = machine.map_or_else(|| knob.scope(version), |machine| knob.scope_on(machine, version));
    Some(Explained {
        knob: param.name,
        layer: param.owner.name(),
        version: version.to_string(),
        value,
        default,
        effect,
        same_as,
        against_default: default.filter(|default| *default != value).and_then(against),
        scope,
        scope_words: scope.words(),
        about: param.about,
        zero: param.zero,
        kept_by: knob.kept_by(),
        notes: notes(setting, knob, machine, value),
    })
}

/// Whether windows depend on a parameter by a rule that is modelled: timers have none, and a limit on steal time is not
/// modelled.
fn is_modelled(param: &Param) -> bool {
    !matches!(param.owner, Owner::Timer | Owner::Layer(Layer::Driver)) && param.unit != Unit::Percent
}

/// What a value does, by how others compare with it.
fn of_model(setting: &Setting, param: &'static Param, tried: &[(i64, Sameness)]) -> Effect {
    if let Some(why) = no_effect(setting, param) {
        return Effect::NoEffect { why: why.to_string() };
    }
    if tried.iter().any(|(_, sameness)| matches!(sameness, Sameness::Differ { .. })) {
        return Effect::Effective;
    }
    let by_rule = tried.iter().find_map(|(_, sameness)| match sameness {
        Sameness::NotKnown { same_since, other_since } => Some(format!(
            "no window depends on it by the rule since {}, some do by that since {}, and it is not known which of them {} has",
            same_since.join(", "),
            other_since.join(", "),
            setting.version()
        )),
        _ => None,
    });
    Effect::NotKnown { why: by_rule.unwrap_or_else(|| "it could not be decided".to_owned()) }
}

/// A setting with another value of a parameter; `None` if it cannot have that.
pub(crate) fn with(setting: &Setting, name: &str, value: i64) -> Option<Setting> {
    let mut other = *setting;
    other.set(name, value).ok()?;
    Some(other)
}

/// Values that people set, and those at which something changes: the ends of the range, small factors, the default, and
/// the other values of the setting with their neighbours.
fn candidates(setting: &Setting, param: &'static Param, value: i64) -> BTreeSet<i64> {
    let mut all = BTreeSet::from([param.min, 0, 1, 2, 3, param.max]);
    all.extend(param.default_in(setting.version()));
    all.extend(
        setting.iter().flat_map(|(_, other)| [other.saturating_sub(1), other, other.saturating_add(1)]),
    );
    all.retain(|other| (param.min..=param.max).contains(other) && *other != value);
    all
}

/// How the setting compares with those that have these [`candidates`] in place of a value.
fn compared(setting: &Setting, param: &'static Param, value: i64) -> impl Iterator<Item = (i64, Sameness)> {
    let of = move |other| Some((other, compare(setting, &with(setting, param.name, other)?)));
    candidates(setting, param, value).into_iter().filter_map(of)
}

/// Why a parameter has no effect beside the other values of a setting, decided by the model of the rule;
/// `None` if windows depend on it.
pub fn no_effect(setting: &Setting, param: &'static Param) -> Option<NoEffect> {
    if !is_modelled(param) {
        return None;
    }
    let value = setting.get(param.name)?;
    if !compared(setting, param, value).all(|(_, is)| is.is_same()) {
        return None;
    }
    // One is to blame if with its default in its place there is a difference.
    let blamed = setting.iter().filter(|(other, _)| *other != param).find(|(other, value)| {
        let default = other.default_in(setting.version()).filter(|default| default != value);
        default
            .and_then(|default| with(setting, other.name, default))
            .is_some_and(|other| has_effect(&other, param))
    });
    Some(NoEffect::NoWindow { beside: blamed.map(|(other, value)| format!("{} = {value}", other.name)) })
}

/// Whether some value of a parameter gives other windows than the one that it has, by each rule that is possible.
pub fn has_effect(setting: &Setting, param: &'static Param) -> bool {
    let value = setting.get(param.name).unwrap_or(0);
    compared(setting, param, value).any(|(_, is)| matches!(is, Sameness::Differ { .. }))
}

fn notes(setting: &Setting<Owner>, knob: Knob, machine: Option<&dyn Machine>, value: i64) -> Vec<String> {
    let provisos = condition::provisos(knob, setting.version(), machine);
    let mut notes: Vec<String> = provisos.into_iter().map(str::to_owned).collect();
    match (knob.param.name, value) {
        ("guest_halt_poll_allow_shrink", 0) => notes.push(
            "a limit once grown never comes down, also if guest_halt_poll_ns is lowered later; `dwell apply` lets it down first"
                .to_owned(),
        ),
        ("halt_poll_ns_shrink" | "guest_halt_poll_shrink", 1) => {
            notes.push("long halts do not shrink the window: it is polled in full before every one".to_owned());
        }
        ("pi_inject_timer", _) => {
            notes.push("whether timers are posted depends on the VM too; see `dwell timer explain`".to_owned());
        }
        _ => {}
    }
    let max = setting.iter().find(|(param, _)| matches!(param.name, "halt_poll_ns" | "guest_halt_poll_ns"));
    if let (true, Some((param, max))) = (knob.param.name.ends_with("_grow_start"), max)
        && value > max
    {
        notes.push(format!("it is above {} = {max}, so the first growth gives {max} at once", param.name));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::Version;
    use dwell_policy::{guest, host};
    use proptest::prelude::*;

    fn explained(owner: impl Into<Owner>, version: &str, values: &[(&str, i64)]) -> Explained {
        let mut setting = Setting::defaults(owner.into(), Version::parse(version).unwrap());
        values.iter().for_each(|(name, value)| setting.set(name, *value).unwrap());
        let knob = Knob::find(values.last().unwrap().0).unwrap();
        explain(&setting, knob.param, None).unwrap()
    }

    proptest! {
        /// The oracle: each rule that the kernel may have, as a kernel that has it for certain.
        #[test]
        fn nothing_is_certain_that_depends_on_a_rule_that_is_not_known(
            release in prop::sample::select(vec![
                "5.14.0-30.el9", "5.14.0-284.30.1.el9_2", "5.14.0-503.11.1.el9_5", "5.14.21-150500.55.19-default",
                "5.10.0-136.12.0.86.oe2203sp1", "5.4.17-2136.uek", "6.4.0-150600.21-default", "6.12.0-211.el10",
            ]),
            layer in prop::sample::select(vec![Layer::Host, Layer::Guest]),
            asked in 0usize..5,
            values in prop::collection::vec(prop::sample::select(vec![0i64, 1, 2, 3, 4_000, 20_000, 50_000]), 5),
        ) {
            let version = Version::parse(release).unwrap();
            let under = |version: Version| {
                let mut setting = Setting::defaults(Owner::Layer(layer), version);
                let params: Vec<_> = setting.iter().map(|(param, _)| param).collect();
                for (param, value) in params.iter().zip(&values) {
                    setting.set(param.name, (*value).min(param.max)).unwrap();
                }
                let param = params[asked % params.len()];
                explain(&setting, param, None).unwrap().effect
            };
            let since: Vec<&str> = match layer {
                Layer::Host => host::Revision::rules(version).unwrap().iter().map(host::Revision::since_release).collect(),
                _ => guest::Revision::rules(version).unwrap().iter().map(guest::Revision::since_release).collect(),
            };
            let effective = |effect: &Effect| matches!(effect, Effect::Effective);
            let possible: Vec<bool> =
                since.iter().map(|since| effective(&under(Version::parse(since).unwrap()))).collect();
            match under(version) {
                Effect::Effective => prop_assert!(possible.iter().all(|is| *is), "{since:?} {possible:?}"),
                Effect::NoEffect { .. } => prop_assert!(!possible.iter().any(|is| *is), "{since:?} {possible:?}"),
                _ => {}
            }
        }
    }

    #[test]
    fn a_value_without_effect_names_what_makes_it_so() {
        for (values, blamed) in [
            ([("halt_poll_ns", 0), ("halt_poll_ns_shrink", 4)], "halt_poll_ns = 0"),
            ([("halt_poll_ns_grow_start", 0), ("halt_poll_ns_shrink", 4)], "halt_poll_ns_grow_start = 0"),
        ] {
            let Effect::NoEffect { why } = explained(Layer::Host, "6.18", &values).effect else {
                panic!("{values:?}")
            };
            assert!(why.contains(blamed), "{why}");
        }
        let effective = explained(Layer::Host, "6.18", &[("halt_poll_ns_shrink", 4)]);
        assert_eq!(effective.effect, Effect::Effective);
        assert!(matches!(effective.against_default, Some(Sameness::Differ { .. })));
    }

    #[test]
    fn saps_grow_start_acts_as_the_maximum() {
        let values = [("guest_halt_poll_ns", 2_400_000), ("guest_halt_poll_grow_start", 24_000_000)];
        let explained = explained(Layer::Guest, "6.18", &values);
        assert!(explained.same_as.contains(&2_400_000), "{:?}", explained.same_as);
        assert!(!explained.same_as.contains(&2_399_999));
        assert!(explained.notes.iter().any(|note| note.contains("is above guest_halt_poll_ns = 2400000")));
    }

    #[test]
    fn the_scope_of_a_write_depends_on_the_kernel() {
        let scope = |version| explained(Layer::Host, version, &[("halt_poll_ns", 100_000)]).scope;
        assert_eq!((scope("5.15"), scope("6.1")), (Scope::NewVms, Scope::NextHaltUnlessCap));
        let pi = explained(Owner::Timer, "5.18", &[("pi_inject_timer", 1)]);
        assert!(pi.notes.iter().any(|note| note.contains("MWAIT or HLT")), "{:?}", pi.notes);
        let old = explained(Owner::Timer, "5.10.0", &[("pi_inject_timer", 1)]).notes;
        assert!(old.iter().all(|note| note.contains("dwell timer explain")), "{old:?}");
    }
}
