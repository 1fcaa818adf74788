//! Shell completions for options that are parsed by a function and may accept other values as well.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};
use dwell_policy::Owner;
use dwell_replay::Catalogue;
use std::ffi::OsStr;

/// Parses by a function, and suggests values.
#[derive(Clone)]
pub(crate) struct Suggest<T> {
    parse: fn(&str) -> Result<T, String>,
    values: fn() -> Vec<&'static str>,
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Suggest<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        self.parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.values)().into_iter().map(PossibleValue::new)))
    }
}

/// A value of an option: its name, what it means, and what it is.
pub(crate) type Named<T> = (&'static str, &'static str, T);

/// One of these values.
pub(crate) fn one_of<T: Copy + Send + Sync>(values: &'static [Named<T>]) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, help, _)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(move |asked| {
        let found = values.iter().find(|(name, ..)| *name == asked);
        found.map(|(.., value)| *value).ok_or("no such value")
    })
}

/// With the layers whose rules can be replayed, two of them at once.
pub(crate) fn replayed_layers<T>(parse: fn(&str) -> Result<T, String>) -> Suggest<T> {
    let values = || vec!["host", "guest", "driver", "iothread", "guest+host"];
    Suggest { parse, values }
}

/// With the layers of which a command takes one.
pub(crate) fn single_layers<T>(parse: fn(&str) -> Result<T, String>) -> Suggest<T> {
    Suggest { parse, values: || vec!["host", "guest", "driver", "iothread"] }
}

/// With whose parameters there are.
pub(crate) fn owners<T>(parse: fn(&str) -> Result<T, String>) -> Suggest<T> {
    Suggest { parse, values: || Owner::ALL.map(Owner::name).into() }
}

/// With the layers whose idling is recorded.
pub(crate) fn idling_layers<T>(parse: fn(&str) -> Result<T, String>) -> Suggest<T> {
    Suggest { parse, values: || vec!["host", "guest", "iothread"] }
}

/// With the long-term kernels and the newest one.
pub(crate) fn kernels<T>(parse: fn(&str) -> Result<T, String>) -> Suggest<T> {
    let values = || vec!["5.4", "5.10", "5.15", "6.1", "6.6", "6.12", "6.18", "7.3"];
    Suggest { parse, values }
}

/// With a release of each generation of QEMU's rule that distributions carry.
pub(crate) fn qemus<T>(parse: fn(&str) -> Result<T, String>) -> Suggest<T> {
    Suggest { parse, values: || vec!["7.2", "8.2", "9.2", "10.0", "11.1"] }
}

/// With the policies of the catalogue, which may have parameters.
pub(crate) fn policies<T>(parse: fn(&str) -> Result<T, String>) -> Suggest<T> {
    let values = || Catalogue::default().entries().map(|entry| entry.name).collect();
    Suggest { parse, values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Whose;
    use crate::settings;

    #[test]
    fn what_is_suggested_is_accepted() {
        let all = |values: fn() -> Vec<&'static str>, accepts: &dyn Fn(&str) -> bool| {
            assert!(!values().is_empty() && values().iter().all(|value| accepts(value)), "{:?}", values());
        };
        all(replayed_layers(Whose::parse).values, &|value| Whose::parse(value).is_ok());
        all(single_layers(Whose::single).values, &|value| Whose::single(value).is_ok());
        all(owners(settings::owner).values, &|value| settings::owner(value).is_ok());
        all(kernels(settings::kernel).values, &|value| settings::kernel(value).is_ok());
        all(qemus(settings::qemu).values, &|value| settings::qemu(value).is_ok());
        all(policies(settings::policy).values, &|value| {
            ["", "@20us", "=20us"].iter().any(|rest| settings::policy(&format!("{value}{rest}")).is_ok())
        });
    }
}
