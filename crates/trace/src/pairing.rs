//! Events into episodes: what the pairings of the three layers share.
//!
//! There is one pairing for each layer, for every source of events: [`HostPairing`](crate::host::HostPairing),
//! [`GuestPairing`](crate::guest::GuestPairing), [`ThreadPairing`](crate::thread::ThreadPairing). A pairing
//! reads no file and no clock, so that the same events give the same episodes.

use crate::event::Event;
use dwell_recording::{Episode, IdleIncludes, Segments};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// An episode that has ended. Its idler is an index into [`Pairing::idlers`].
pub type PairedEpisode = Episode<'static, u32>;

/// Makes episodes out of events that come in order of time.
pub trait Pairing: Send {
    /// Takes the next event and appends the episodes that it ends. Those of one idler come in order of their start.
    fn observe(&mut self, event: &Event, found: &mut Vec<PairedEpisode>);

    /// No event follows: appends the episodes that were held back, and counts those that are still open as incomplete.
    fn finish(&mut self, _found: &mut Vec<PairedEpisode>) {}

    /// Names of all idlers so far; the list only grows.
    fn idlers(&self) -> &[String];

    /// Episodes whose beginning or end was not seen, so far.
    fn incomplete(&self) -> u64;

    /// Where the episodes end, with the events seen so far.
    fn idle_includes(&self) -> IdleIncludes;

    /// What else a reader of the recording may need, by key of its metadata.
    fn notes(&self) -> BTreeMap<String, Value> {
        BTreeMap::new()
    }

    /// How long a guest's CPUs poll from one look at the clock to the next \[ns\], where their polls show it and it is near
    /// what a thread has measured.
    fn poll_step_ns(&self, _about_ns: u64) -> Option<u64> {
        None
    }

    /// How much later a guest's CPU that halts at once is in its idle state than one that polls first \[ns\], both since their last
    /// task, where enough of either were seen.
    fn halt_entry_ns(&self) -> Option<u64> {
        None
    }

    /// How much shorter the haltpoll governor finds a halt than the events have it \[ns\], as its decisions under this maximum show;
    /// 0 where they show nothing.
    fn residency_shorter_ns(&self, _max_ns: u64) -> u64 {
        0
    }

    /// What ran between the episodes and what woke it, where the events show that; to be called once, at the end.
    fn take_segments(&mut self) -> Option<Segments> {
        None
    }
}

/// The names of processes and threads.
pub trait Names: Send {
    /// The name of a process; `None` where it is not known.
    fn process(&mut self, _pid: i32) -> Option<String> {
        None
    }

    /// The name of a thread; `None` where it is not known.
    fn thread(&mut self, _pid: i32, _tid: i32) -> Option<String> {
        None
    }
}

/// No name is known.
impl Names for () {}

impl Default for Box<dyn Names> {
    fn default() -> Box<dyn Names> {
        Box::new(())
    }
}

/// The idlers of a pairing, by number. Each has a name of its own.
#[derive(Debug, Default)]
pub struct Idlers {
    names: Vec<String>,
    taken: HashSet<String>,
}

impl Idlers {
    /// A new idler of this name; if another one has it, of this name with `#2`, `#3`, ... after it.
    pub fn add(&mut self, name: String) -> u32 {
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let mut unique = name.clone();
        let mut count = 1u32;
        while !self.taken.insert(unique.clone()) {
            count = count.saturating_add(1);
            unique = format!("{name}#{count}");
        }
        self.names.push(unique);
        number
    }

    /// Whether an idler has this name.
    pub fn has(&self, name: &str) -> bool {
        self.taken.contains(name)
    }

    /// Their names, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }
}

/// By the number of a thread or CPU. These are looked up at every event; the standard hash, made for keys
/// that an attacker may choose, took a tenth of the recorder's time.
pub type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Multiplies by 2^64 divided by the golden ratio.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_idlers_never_have_one_name() {
        let mut idlers = Idlers::default();
        for name in ["a", "a#2", "a", "a"] {
            idlers.add(name.to_owned());
        }
        assert_eq!(idlers.names(), ["a", "a#2", "a#3", "a#4"]);
    }
}
