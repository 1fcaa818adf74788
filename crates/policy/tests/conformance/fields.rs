//! Reading a JSON object so that no field of it is overlooked.

use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// An object of which every field has to be looked at.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    used: BTreeSet<String>,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(value: &'a Value) -> Result<Self, String> {
        let object = value.as_object().ok_or_else(|| format!("not an object: {value}"))?;
        Ok(Fields { object, used: BTreeSet::new() })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.object.keys().cloned().collect()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    pub(crate) fn get(&mut self, name: &str) -> Result<&'a Value, String> {
        self.used.insert(name.to_owned());
        self.object.get(name).ok_or_else(|| format!("no field {name}"))
    }

    fn read<T>(
        &mut self,
        name: &str,
        kind: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<T, String> {
        let value = self.get(name)?;
        read(value).ok_or_else(|| format!("{name} is no {kind}"))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<&'a str, String> {
        self.read(name, "text", Value::as_str)
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, String> {
        self.read(name, "truth value", Value::as_bool)
    }

    pub(crate) fn u64(&mut self, name: &str) -> Result<u64, String> {
        self.read(name, "unsigned number", Value::as_u64)
    }

    pub(crate) fn u32(&mut self, name: &str) -> Result<u32, String> {
        self.read(name, "32-bit number", |v| v.as_u64().and_then(|n| u32::try_from(n).ok()))
    }

    /// The number in a field that may hold null.
    pub(crate) fn optional_u32(&mut self, name: &str) -> Result<Option<u32>, String> {
        if self.get(name)?.is_null() { Ok(None) } else { self.u32(name).map(Some) }
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<&'a [Value], String> {
        self.read(name, "array", |v| v.as_array().map(Vec::as_slice))
    }

    /// The array in a field that may be absent; of the length given where it is there.
    pub(crate) fn maybe_array(&mut self, name: &str, len: usize) -> Result<Option<&'a [Value]>, String> {
        if !self.has(name) {
            return Ok(None);
        }
        let array = self.array(name)?;
        if array.len() == len { Ok(Some(array)) } else { Err(format!("{name} has {} entries", array.len())) }
    }

    pub(crate) fn u64s(&mut self, name: &str) -> Result<Vec<u64>, String> {
        self.array(name)?.iter().map(|v| v.as_u64().ok_or_else(|| format!("{name}: {v}"))).collect()
    }

    /// Compares a field with what was computed.
    pub(crate) fn expect<T: Serialize + ?Sized>(&mut self, name: &str, got: &T) -> Result<(), String> {
        let expected = self.get(name)?;
        let got = serde_json::to_value(got).map_err(|e| e.to_string())?;
        if &got == expected {
            return Ok(());
        }
        if let (Some(expected), Some(got)) = (expected.as_array(), got.as_array())
            && let Some(i) = (0..expected.len().max(got.len())).find(|&i| expected.get(i) != got.get(i))
        {
            return Err(format!("{name}[{i}] is {:?}, expected {:?}", got.get(i), expected.get(i)));
        }
        Err(format!("{name} is {got}, expected {expected}"))
    }

    /// Fails if a field was never looked at.
    pub(crate) fn all_used(&self) -> Result<(), String> {
        match self.object.keys().find(|name| !self.used.contains(*name)) {
            Some(name) => Err(format!("field {name} is not understood")),
            None => Ok(()),
        }
    }
}
