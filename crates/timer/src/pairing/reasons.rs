//! The names of exit reasons.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Different names that a source may have; all further ones share one. Processors have about a hundred reasons.
const MOST_NAMES: usize = 1 << 12;
/// What they share.
pub(crate) const OTHER: &str = "other";

/// What the numbers of exit reasons in the events of one source mean; shared by the source and a pairing.
#[derive(Clone, Debug, Default)]
pub struct ReasonNames(Arc<Mutex<Names>>);

#[derive(Debug, Default)]
struct Names {
    names: HashMap<u32, String>,
    numbers: HashMap<String, u32>,
}

impl ReasonNames {
    /// Those of a source that has numbers.
    pub fn of(names: impl IntoIterator<Item = (u32, String)>) -> ReasonNames {
        let names = Names { names: names.into_iter().collect(), numbers: HashMap::new() };
        ReasonNames(Arc::new(Mutex::new(names)))
    }

    /// The number of a name, for a source that has names.
    pub fn number(&self, name: &str) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = known.numbers.get(name) {
            return number;
        }
        let name = if known.numbers.len() < MOST_NAMES { name } else { OTHER };
        let next = u32::try_from(known.numbers.len()).unwrap_or(u32::MAX);
        let number = *known.numbers.entry(name.to_owned()).or_insert(next);
        known.names.entry(number).or_insert_with(|| name.to_owned());
        number
    }

    /// Whether a source that has names has had this one.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).numbers.contains_key(name)
    }

    /// The name of a number; of one that the source does not name, its part below 65536 in hexadecimal.
    pub fn name(&self, number: u32) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.names.get(&number).cloned().unwrap_or_else(|| format!("{:#x}", number & 0xffff))
    }
}

/// What matters of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Halt,
    /// An interrupt of the host.
    Interrupt,
    HvTimer,
    Other,
}

impl Class {
    /// By the names of VMX and SVM.
    pub(crate) fn of(name: &str) -> Class {
        match name {
            "HLT" | "hlt" => Class::Halt,
            "EXTERNAL_INTERRUPT" | "interrupt" => Class::Interrupt,
            "PREEMPTION_TIMER" => Class::HvTimer,
            _ => Class::Other,
        }
    }
}
