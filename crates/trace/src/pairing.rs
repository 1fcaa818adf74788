//! What recorders share: events in, episodes out, and no knowledge of where either comes from or goes to.

use crate::event::Event;
use dwell_recording::WakeCause;
use serde_json::Value;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// An episode that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Index into [`Pairing::idlers`].
    pub idler: u32,
    /// When it began \[ns, CLOCK_MONOTONIC\].
    pub start_ns: u64,
    /// How long it took \[ns\].
    pub idle_ns: u64,
    /// How long the idler would have polled before halting \[ns\].
    pub window_ns: Option<u64>,
    /// Whether it halted.
    pub halted: Option<bool>,
    /// What ended it.
    pub wake: Option<WakeCause>,
    /// From the wake event to the idler running \[ns\].
    pub wake_latency_ns: Option<u64>,
    /// How long no other task was runnable on its CPU \[ns\]; `idle_ns`: to the end.
    pub alone_ns: Option<u64>,
}

/// Makes episodes out of events that come in order of time.
pub trait Pairing: Send {
    /// Takes the next event and appends the episodes that it ends. Those of one idler come in order of their start.
    fn observe(&mut self, event: &Event, found: &mut Vec<Found>);

    /// No event follows: appends the episodes that were held back.
    fn finish(&mut self, _found: &mut Vec<Found>) {}

    /// Names of all idlers so far; the list only grows.
    fn idlers(&self) -> &[String];

    /// Episodes whose beginning or end was not seen, so far.
    fn incomplete(&self) -> u64;

    /// What else a reader of the recording may want to know, by key.
    fn notes(&self) -> BTreeMap<String, Value>;
}

/// Numbers for names.
#[derive(Debug, Default)]
pub(crate) struct Idlers {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Idlers {
    pub(crate) fn number(&mut self, name: String) -> u32 {
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }
}

/// By the number of a thread or CPU. These are looked up at every event; the standard hash, made for keys that an enemy may
/// choose, took a tenth of the recorder's time.
pub(crate) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Multiplies by 2^64 divided by the golden ratio.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn write_i32(&mut self, number: i32) {
        self.write_u32(number.cast_unsigned());
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

/// Who processes and threads are.
pub trait Names: Send {
    /// The name of a process.
    fn process(&mut self, pid: i32) -> Option<String>;

    /// The name of a thread.
    fn thread(&mut self, pid: i32, tid: i32) -> Option<String>;

    /// The numbers of the vCPUs that a process has open, where that can be seen.
    fn vcpus(&mut self, pid: i32) -> Vec<u32>;
}
