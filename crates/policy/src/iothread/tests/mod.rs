//! The rules once more, slow and obvious: numbers too wide to overflow, lists as vectors, every node visited in
//! the order in which QEMU visits it. The context must agree with it on any input.

mod aio_poll;
mod vectors;

extern crate std;

use super::{Aio, ChangeKind, Event, Handler, Kind, Params, Revision};
use crate::{Nanos, Outcome, Policy};
use proptest::prelude::*;
use std::vec::Vec;

/// The number that remains in 64 bits.
fn wrap(wide: i128) -> i64 {
    let bytes = wide.to_le_bytes();
    i64::from_le_bytes(core::array::from_fn(|i| bytes[i]))
}

/// `poll_grow` or `poll_shrink` of a handler or the context.
type Traced = (Option<u32>, ChangeKind, i64, i64);

struct Oracle {
    revision: Revision,
    params: Params,
    poll_ns: i64,
    kinds: Vec<Kind>,
    ns: Vec<i64>,
    poll_list: Vec<usize>,
    trace: Vec<Traced>,
}

impl Oracle {
    fn classic(&mut self, handler: Option<usize>, block_ns: i64) {
        let p = self.params;
        let old = handler.map_or(self.poll_ns, |h| self.ns[h]);
        let (kind, new) = if block_ns <= old {
            return;
        } else if block_ns > p.poll_max_ns {
            let new = if p.poll_shrink == 0 { 0 } else { wrap(i128::from(old) / i128::from(p.poll_shrink)) };
            (ChangeKind::Shrink, new)
        } else if old < p.poll_max_ns && block_ns < p.poll_max_ns {
            let grow = if p.poll_grow == 0 { 2 } else { p.poll_grow };
            let new = if old == 0 { 4000 } else { wrap(i128::from(old) * i128::from(grow)) };
            (ChangeKind::Grow, new.min(p.poll_max_ns))
        } else {
            return;
        };
        match handler {
            Some(h) => self.ns[h] = new,
            None => self.poll_ns = new,
        }
        self.trace.push((handler.map(|h| u32::try_from(h).unwrap()), kind, old, new));
    }

    fn weighted(&mut self, block_ns: i64, active: &[usize]) {
        let p = self.params;
        let scaled = |x: i64| i128::from(x).div_euclid(1 << (p.poll_weight & 63));
        let mut best = -1;
        for &h in &self.poll_list {
            let old = i128::from(self.ns[h]);
            if active.contains(&h) {
                self.ns[h] = match self.ns[h] {
                    0 => block_ns,
                    ns => wrap(old - scaled(ns) + scaled(block_ns)),
                };
            } else if old != 0 {
                self.ns[h] = wrap(old + i128::from(block_ns));
            }
            if self.ns[h] > p.poll_max_ns {
                self.ns[h] = 0;
            }
            if active.contains(&h) {
                best = best.max(self.ns[h]);
            }
        }
        if best < 0 {
            return;
        }
        let old = self.poll_ns;
        let shrunk = wrap(i128::from(old) / i128::from(p.poll_shrink));
        if best > old {
            let multiple = wrap(i128::from(old) * i128::from(p.poll_grow));
            self.poll_ns = (if best > multiple { best } else { multiple }).min(p.poll_max_ns);
            self.trace.push((None, ChangeKind::Grow, old, self.poll_ns));
        } else if best < shrunk {
            self.poll_ns = shrunk;
            self.trace.push((None, ChangeKind::Shrink, old, self.poll_ns));
        }
    }

    fn finish(&mut self, block_ns: i64, ready: &[u32]) {
        let polling = self.params.poll_max_ns != 0;
        if self.revision == Revision::Global && polling {
            self.classic(None, block_ns);
        }
        let mut active = Vec::new();
        for &h in ready {
            let h = usize::try_from(h).unwrap();
            if h >= self.kinds.len() {
                continue;
            }
            if self.kinds[h].can_poll()
                && !self.poll_list.contains(&h)
                && (polling || self.revision != Revision::Weighted)
            {
                self.poll_list.insert(0, h);
            }
            if self.poll_list.contains(&h) && polling {
                active.push(h);
                if self.revision == Revision::PerHandler {
                    self.classic(Some(h), block_ns);
                }
            }
        }
        if self.revision == Revision::Weighted && polling {
            self.weighted(block_ns, &active);
        }
    }

    fn effective(&self) -> i64 {
        match self.revision {
            Revision::PerHandler => self.poll_list.iter().map(|&h| self.ns[h]).max().unwrap_or(0).max(0),
            Revision::Global | Revision::Weighted => self.poll_ns,
        }
    }
}

/// What happens to a context.
#[derive(Clone, Debug)]
enum Op {
    Finish(i64, Vec<u32>),
    Set(Params),
    Register(u32, Kind),
    Reregister(u32),
}

/// Times as they occur, the edges of the numbers, and anything.
fn time() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => 0i64..100_000,
        1 => prop::sample::select(&[0, 1, 3999, 4000, 32_767, 32_768, 32_769, i64::MAX, i64::MIN, -1][..]),
        1 => any::<i64>(),
    ]
}

fn setting() -> impl Strategy<Value = Params> {
    let factor = || prop_oneof![6 => 0i64..6, 1 => any::<i64>(), 1 => Just(1 << 62)];
    let weight = prop_oneof![6 => 0i64..64, 1 => any::<i64>()];
    (prop_oneof![4 => Just(32_768), 2 => time()], factor(), factor(), weight).prop_map(
        |(poll_max_ns, poll_grow, poll_shrink, poll_weight)| Params {
            poll_max_ns,
            poll_grow,
            poll_shrink,
            poll_weight,
        },
    )
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(&[Kind::Polled, Kind::Polled, Kind::PolledQuietly, Kind::FdOnly, Kind::Vacant][..])
}

fn op() -> impl Strategy<Value = Op> {
    // A handler is ready once at most; some of the numbers are beyond the table.
    let ready = prop::sample::subsequence(std::vec![4u32, 0, 2, 1, 9, u32::MAX, 3], 0..=7);
    prop_oneof![
        20 => (time(), ready).prop_map(|(block_ns, ready)| Op::Finish(block_ns, ready)),
        1 => setting().prop_map(Op::Set),
        1 => (0u32..8, kind()).prop_map(|(h, kind)| Op::Register(h, kind)),
        1 => (0u32..8).prop_map(Op::Reregister),
    ]
}

proptest! {
    #[test]
    fn context_agrees_with_the_oracle(
        revision in prop::sample::select(&Revision::ALL[..]),
        params in setting(),
        kinds in prop::collection::vec(kind(), 0..6),
        ops in prop::collection::vec(op(), 0..64),
    ) {
        let handlers: Vec<Handler> = kinds.iter().copied().map(Handler::new).collect();
        let mut aio = Aio::new(revision, params, handlers);
        let mut oracle = Oracle {
            revision,
            params: params.stored(revision),
            poll_ns: 0,
            ns: std::vec![0; kinds.len()],
            kinds,
            poll_list: Vec::new(),
            trace: Vec::new(),
        };
        let mut trace: Vec<Traced> = Vec::new();
        for op in ops {
            match op {
                Op::Finish(block_ns, ready) => {
                    aio.finish(block_ns, &ready, |event| {
                        if let Event::Adapted { handler, change } = event {
                            trace.push((handler, change.kind, change.old, change.new));
                        }
                    });
                    oracle.finish(block_ns, &ready);
                }
                Op::Set(params) => {
                    aio.set_params(params);
                    oracle.params = params.stored(revision);
                    oracle.poll_ns = 0;
                    oracle.ns.fill(0);
                }
                Op::Register(h, kind) => {
                    aio.register(h, kind);
                    let h = usize::try_from(h).unwrap();
                    if h < oracle.kinds.len() {
                        oracle.kinds[h] = kind;
                        oracle.ns[h] = 0;
                        oracle.poll_list.retain(|&other| other != h);
                    }
                }
                Op::Reregister(h) => {
                    aio.reregister(h);
                    let h = usize::try_from(h).unwrap();
                    if h < oracle.kinds.len() {
                        oracle.ns[h] = 0;
                        oracle.poll_list.retain(|&other| other != h);
                    }
                }
            }
            prop_assert_eq!(aio.effective(), oracle.effective());
            prop_assert_eq!(aio.handlers().iter().map(Handler::ns).collect::<Vec<_>>(), oracle.ns.clone());
            for (h, handler) in aio.handlers().iter().enumerate() {
                prop_assert_eq!(handler.in_poll(), oracle.poll_list.contains(&h));
            }
            prop_assert_eq!(&trace, &oracle.trace);
            let window = if oracle.poll_list.is_empty() { 0 } else { oracle.effective().max(0) };
            prop_assert_eq!(aio.window(), Nanos(window as u64));
        }
    }

    #[test]
    fn a_replay_never_panics_and_an_unnamed_episode_is_of_handler_zero(
        revision in prop::sample::select(&Revision::ALL[..]),
        params in setting(),
        idles in prop::collection::vec(any::<u64>(), 0..64),
    ) {
        let new = || Aio::new(revision, params, [Handler::new(Kind::Polled); 2]);
        let (mut named, mut unnamed) = (new(), new());
        for idle in idles.into_iter().map(Nanos) {
            prop_assert_eq!(named.window(), unnamed.window());
            named.observe(Outcome::with_ready(idle, &[0]));
            unnamed.observe(Outcome::of(idle));
        }
    }
}
