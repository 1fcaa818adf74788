//! The writes that lead from one setting to another.

use super::Write;
use crate::knob::{IothreadTarget, Knob};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Owner};

/// How long limits that have grown get to come down \[ms\]: every CPU halts for longer than a microsecond within this.
const COME_DOWN_MS: u64 = 1_000;

/// The writes that lead from `present` to `wanted`, in order: each parameter that differs, and none that does
/// not, for QEMU forgets what it has learnt with every write.
///
/// Of haltpoll a limit that has grown never comes down while `guest_halt_poll_allow_shrink` is 0. If the
/// maximum is to be lower and shrinking forbidden, the limits are first let down: shrinking drops to zero, is
/// allowed, and so small a maximum that every halt is longer is in force for a second.
///
/// A property of an I/O thread needs `iothread`; without it there are no writes.
pub fn writes<O: Copy + Into<Owner>>(
    present: &Setting<O>,
    wanted: &Setting<O>,
    iothread: Option<&IothreadTarget>,
) -> Vec<Write> {
    let mut steps = Steps { now: *present, iothread, writes: vec![] };
    if is_shrink_trap(present, wanted) {
        let why = "lets the limits that have grown come down; they never would while shrinking is forbidden";
        steps.to("guest_halt_poll_shrink", 0, Some(why));
        steps.to("guest_halt_poll_ns", LOWEST_NS.min(value(wanted, "guest_halt_poll_ns")), Some(why));
        steps.to("guest_halt_poll_allow_shrink", 1, Some(why));
        if let Some(last) = steps.writes.last_mut() {
            last.then_wait_ms = COME_DOWN_MS;
        }
    }
    for (param, value) in wanted.iter() {
        steps.to(param.name, value, None);
    }
    steps.writes
}

/// A maximum that practically every halt exceeds \[ns\].
const LOWEST_NS: i64 = 1_000;

/// Whether limits that have grown under `present` would stay above the maximum of `wanted`.
pub(crate) fn is_shrink_trap<O: Copy + Into<Owner>>(present: &Setting<O>, wanted: &Setting<O>) -> bool {
    wanted.owner() == Layer::Guest
        && value(wanted, "guest_halt_poll_ns") < value(present, "guest_halt_poll_ns")
        && value(wanted, "guest_halt_poll_allow_shrink") == 0
}

fn value<O: Copy + Into<Owner>>(setting: &Setting<O>, name: &str) -> i64 {
    setting.get(name).unwrap_or(0)
}

struct Steps<'a, O> {
    now: Setting<O>,
    iothread: Option<&'a IothreadTarget>,
    writes: Vec<Write>,
}

impl<O: Copy + Into<Owner>> Steps<'_, O> {
    fn to(&mut self, name: &str, to: i64, why: Option<&str>) {
        let Some(from) = self.now.get(name).filter(|from| *from != to) else { return };
        let knob = Knob::of(self.now.owner(), name);
        let Some(place) = knob.and_then(|knob| knob.place(self.iothread)) else { return };
        if self.now.set(name, to).is_ok() {
            let (knob, why) = (name.to_owned(), why.map(str::to_owned));
            self.writes.push(Write { knob, place, from, to, then_wait_ms: 0, why });
        }
    }
}
