//! KVM halt polling: what a host does when a vCPU halts.
//!
//! # The idea
//! A vCPU that executes HLT leaves the guest. Before KVM puts its thread to sleep it may poll for the wakeup event
//! for a while: a wakeup in that time costs no sleep, no interrupt to another core and no schedule. How long it
//! polls is a per-vCPU number of nanoseconds, `vcpu->halt_poll_ns` (here [`Vcpu::halt_poll_ns`]), which starts
//! at zero and is adjusted after every halt from the length of that halt.
//!
//! # The steps of one halt (6.1 and later)
//! 1. Cut the per-vCPU value to the maximum (silently). Poll if it is not zero, unless the guest has switched host
//!    polling off (`MSR_KVM_POLL_CONTROL`).
//! 2. Poll until the wakeup event, the end of the window, or until another task is runnable on this core.
//! 3. If nothing came, sleep.
//! 4. With the length *h* of the whole halt and the maximum *mx*: invalid wakeup, shrink; *mx* = 0, drop to zero;
//!    *h* within the value, keep it; *h* > *mx*, shrink; both below *mx*, grow.
//!
//! [`Vcpu::enter`] and [`Vcpu::decide`] are its steps 1 and 4, and [`HaltPoll`] joins the two into a [`Policy`] for a
//! replay, where time is continuous and a poll ends exactly at its window or at the wakeup. The whole routine in time is
//! a part of the conformance test.
//!
//! # What differs between versions
//! [`Revision`] lists them. The maximum is read live in 5.4, copied when the VM is created in 5.8 to 6.0, and since 6.1
//! live again unless the VM has its own (`KVM_CAP_HALT_POLL`). Until 6.0 growth stops at the maximum; since 6.1 it
//! runs past it and the next halt cuts it.
//!
//! # Limits
//! The rule was read on x86-64, where every wakeup is valid; the invalid kind (s390x) is kept since it is part of the rule.
//! [`Arch`](crate::arch::Arch) has what other architectures do.
//! The histograms of 5.15 and 5.16 are not modelled (the specification has no kernel of that time).

use crate::version::{Backport, Distributor, Rules, UnknownVersion, Version};
use crate::{Layer, Nanos, Outcome, Owner, Policy};

crate::named! {
    /// The kernel releases that share one behaviour.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Revision {
        /// 5.4.0 exactly, and 5.5 to 5.7: maximum read live; a shrunk value may fall below `grow_start`.
        V5_4_0 = "5.4.0",
        /// 5.4 as maintained (5.4.y): as 5.4.0, but what shrinks below `grow_start` becomes zero.
        V5_4 = "5.4",
        /// 5.8, 5.9, 5.10.0, 5.11, 5.12: the maximum is copied at VM creation, or set by `KVM_CAP_HALT_POLL`.
        V5_8 = "5.8",
        /// 5.10 as maintained (5.10.y): shrinks to zero below `grow_start`; a pending reschedule ends the poll.
        V5_10 = "5.10",
        /// 5.13, 5.14: a pending reschedule ends the poll.
        V5_13 = "5.13",
        /// 5.15, 5.16: shrinks to zero below `grow_start`.
        V5_15 = "5.15",
        /// 5.17 to 6.0: statistics only of halts that polled; one clock read for start and stop.
        V5_17 = "5.17",
        /// 6.1 to 6.10: the value is cut to the maximum before the halt, not when it grows.
        V6_1 = "6.1",
        /// 6.11 and later: as 6.1; `halt_poll_ns_shrink` defaults to 2.
        V6_11 = "6.11",
    }

    /// The first release of this revision.
    pub fn since_release
}

/// The patch level from which a stable series has "KVM: do not shrink halt_poll_ns below grow_start" (ae232ea460888,
/// 5.15-rc4): 5.10 from the announcement of 5.10.72 (9 October 2021); 5.4 and 5.14 from the reviews of that week.
const SHRINK_BACKPORTS: [(u16, u16, u16); 3] = [(5, 4, 152), (5, 10, 72), (5, 14, 11)];

/// What is known of the kernels of distributors.
pub static BACKPORTS: [Backport<Revision>; 5] = [
    Backport {
        distributor: Distributor::RedHat,
        series: (5, 14),
        from: 0,
        rules: &[Revision::V5_13],
        source: "SPECS/kernel.spec of openela-main/kernel, el-9.2: nothing on halt polling before 5.14.0-30.el9",
    },
    Backport {
        distributor: Distributor::RedHat,
        series: (5, 14),
        from: 30,
        rules: &[Revision::V5_15],
        source: "SPECS/kernel.spec of openela-main/kernel, el-9.2: \"KVM: do not shrink halt_poll_ns below grow_start\" in \
                 5.14.0-30.el9",
    },
    // RHEL 9.3 begins after 5.14.0-284, whose changelog is the newest that was read.
    Backport {
        distributor: Distributor::RedHat,
        series: (5, 14),
        from: 285,
        rules: &[Revision::V5_15, Revision::V6_1],
        source: "SPECS/kernel.spec of openela-main/kernel, el-9.2; no source was read of whether RHEL 9.3 and later have \
                 \"KVM: Obey kvm.halt_poll_ns in VMs not using KVM_CAP_HALT_POLL\"",
    },
    // SLES 15 SP4 and SP5.
    Backport {
        distributor: Distributor::Suse,
        series: (5, 14),
        from: 0,
        rules: &[Revision::V5_15, Revision::V6_1],
        source: "patches.suse/KVM-do-not-shrink-halt_poll_ns-below-grow_start.patch of openSUSE/kernel-source, taken over with \
                 5.14.11; no source was read of whether they have \"KVM: Obey kvm.halt_poll_ns in VMs not using \
                 KVM_CAP_HALT_POLL\"",
    },
    // They follow 5.10.y, and which build has which of its releases was not read.
    Backport {
        distributor: Distributor::OpenEuler,
        series: (5, 10),
        from: 0,
        rules: &[Revision::V5_10, Revision::V5_8, Revision::V6_1],
        source: "kernel.spec of openeuler-mirror/kernel: builds of 5.10.0, without the releases of 5.10.y that they have taken over",
    },
];

impl Revision {
    /// The revision of a kernel release; of those that it may have, the one that its version has.
    ///
    /// `5.4` and `5.10` mean the maintained series; their very first releases, which lacked later fixes, are `5.4.0`
    /// and `5.10.0`.
    ///
    /// # Errors
    /// [`UnknownVersion`] before 5.4 and after 7.3, the newest that was read, and where KVM polls by another rule.
    pub fn of(version: Version) -> Result<Revision, UnknownVersion> {
        Ok(Revision::rules(version)?.first)
    }

    /// The revisions that a kernel release may have, for all that is known of its distributor.
    ///
    /// # Errors
    /// As [`Revision::of`].
    pub fn rules(version: Version) -> Result<Rules<Revision>, UnknownVersion> {
        let elsewhere = "5.4 to 7.3, of other architectures than POWER";
        version.is_known_kernel(Owner::Layer(Layer::Host), elsewhere)?;
        let base = Revision::of_version(version);
        if let Some(rules) = Backport::find(&BACKPORTS, version) {
            return Ok(rules);
        }
        let others: &[Revision] = match version.build {
            None => &[],
            Some(_) if !base.shrinks_to_zero_below_grow_start() => &[Revision::V5_15, Revision::V6_1],
            Some(_) if !base.clamps_at_entry() => &[Revision::V6_1],
            // What came after changes a default only, which a machine shows.
            Some(_) => &[],
        };
        Ok(Rules { others, ..Rules::certain(base) })
    }

    fn of_version(version: Version) -> Revision {
        let shrinks = version.has_since(&SHRINK_BACKPORTS);
        match (version.major, version.minor) {
            (5, 4) if shrinks => Revision::V5_4,
            (5, 4..=7) => Revision::V5_4_0,
            (5, 10) if shrinks => Revision::V5_10,
            (5, 8..=12) => Revision::V5_8,
            // 5.15 is 5.14 with this change, as far as windows go.
            (5, 14) if version.patch.is_some() && shrinks => Revision::V5_15,
            (5, 13..=14) => Revision::V5_13,
            (5, 15..=16) => Revision::V5_15,
            (5, _) | (6, 0) => Revision::V5_17,
            (6, 1..=10) => Revision::V6_1,
            _ => Revision::V6_11,
        }
    }

    const fn since(self, other: Revision) -> bool {
        self as u8 >= other as u8
    }

    /// Where the maximum comes from.
    pub const fn max_source(self) -> MaxSource {
        match self {
            Revision::V5_4_0 | Revision::V5_4 => MaxSource::Live,
            Revision::V5_8 | Revision::V5_10 | Revision::V5_13 | Revision::V5_15 | Revision::V5_17 => {
                MaxSource::CopiedAtCreation
            }
            Revision::V6_1 | Revision::V6_11 => MaxSource::CapElseLive,
        }
    }

    /// Whether the value is cut to the maximum before a halt (then growth runs past the maximum) or when it grows.
    pub const fn clamps_at_entry(self) -> bool {
        self.since(Revision::V6_1)
    }

    /// Whether a value that shrinks below `grow_start` becomes zero.
    pub const fn shrinks_to_zero_below_grow_start(self) -> bool {
        !matches!(self, Revision::V5_4_0 | Revision::V5_8 | Revision::V5_13)
    }
}

/// Where the maximum of the polling window comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxSource {
    /// The module parameter, read at each use.
    Live,
    /// The module parameter as it was when the VM was created, or what `KVM_CAP_HALT_POLL` replaced it with. A later
    /// write to the module parameter has no effect on the VM.
    CopiedAtCreation,
    /// What `KVM_CAP_HALT_POLL` set, else the module parameter, read at each use.
    CapElseLive,
}

/// The module parameters, `/sys/module/kvm/parameters/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    /// Longest window \[ns\]; 0 switches polling off.
    pub halt_poll_ns: u32,
    /// Factor by which a window grows; 0 never grows.
    pub halt_poll_ns_grow: u32,
    /// Least window that a growth gives \[ns\], and (most revisions) the least that a shrink leaves.
    pub halt_poll_ns_grow_start: u32,
    /// Divisor by which a window shrinks; 0 drops it to zero.
    pub halt_poll_ns_shrink: u32,
}

impl Params {
    /// x86 defaults of a revision (`arch/x86/include/asm/kvm_host.h`, `virt/kvm/kvm_main.c`).
    pub const fn default_for(revision: Revision) -> Params {
        Params {
            halt_poll_ns: 200_000,
            halt_poll_ns_grow: 2,
            halt_poll_ns_grow_start: 10_000,
            halt_poll_ns_shrink: if revision.since(Revision::V6_11) { 2 } else { 0 },
        }
    }
}

/// Everything outside a vCPU that decides its polling, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// The module parameters now.
    pub params: Params,
    /// `halt_poll_ns` when the VM was created \[ns\]; read by the revisions of [`MaxSource::CopiedAtCreation`].
    pub at_creation_ns: u32,
    /// What `KVM_CAP_HALT_POLL` set, if it was ever used on this VM \[ns\]. 5.4 has no such capability and ignores it.
    pub cap_ns: Option<u32>,
    /// Bit 0 of `MSR_KVM_POLL_CONTROL`: whether the guest lets the host poll. 1 after reset.
    pub poll_control: bool,
}

impl Knobs {
    /// A VM that was created under these parameters, without an override, whose guest lets the host poll.
    pub const fn of(params: Params) -> Knobs {
        Knobs { params, at_creation_ns: params.halt_poll_ns, cap_ns: None, poll_control: true }
    }

    /// The longest window \[ns\].
    #[inline]
    pub const fn max_ns(&self, revision: Revision) -> u32 {
        match (revision.max_source(), self.cap_ns) {
            (MaxSource::Live, _) | (MaxSource::CapElseLive, None) => self.params.halt_poll_ns,
            (MaxSource::CopiedAtCreation, None) => self.at_creation_ns,
            (MaxSource::CopiedAtCreation | MaxSource::CapElseLive, Some(cap)) => cap,
        }
    }
}

/// A tracepoint `kvm:kvm_halt_poll_ns`: the value was grown or shrunk, possibly to what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Grown, else shrunk.
    pub grow: bool,
    /// The value after \[ns\].
    pub new: u32,
    /// The value before \[ns\].
    pub old: u32,
}

/// The polling state of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vcpu {
    revision: Revision,
    halt_poll_ns: u32,
}

impl Vcpu {
    /// A fresh vCPU: window zero.
    pub const fn new(revision: Revision) -> Vcpu {
        Vcpu::with_halt_poll_ns(revision, 0)
    }

    /// A vCPU in the middle of its life, with the window as given \[ns\].
    pub const fn with_halt_poll_ns(revision: Revision, halt_poll_ns: u32) -> Vcpu {
        Vcpu { revision, halt_poll_ns }
    }

    /// `vcpu->halt_poll_ns` \[ns\].
    pub const fn halt_poll_ns(&self) -> u32 {
        self.halt_poll_ns
    }

    /// The start of a halt: cuts the value where the revision does so, and returns the window to poll \[ns\];
    /// 0 is none.
    #[inline]
    pub fn enter(&mut self, knobs: &Knobs) -> u32 {
        if self.revision.clamps_at_entry() {
            self.halt_poll_ns = self.halt_poll_ns.min(knobs.max_ns(self.revision));
        }
        if knobs.poll_control { self.halt_poll_ns } else { 0 }
    }

    /// The end of a halt that took `halt_ns` \[ns\]: adjusts the value unless the guest has switched host polling off.
    /// Returns the tracepoint that would fire; `None` where none does.
    #[inline]
    pub fn decide(&mut self, knobs: &Knobs, halt_ns: u64, valid_wakeup: bool) -> Option<Change> {
        if !knobs.poll_control {
            return None;
        }
        let max = knobs.max_ns(self.revision);
        let old = self.halt_poll_ns;
        if !valid_wakeup {
            return Some(self.shrink(&knobs.params));
        }
        if max == 0 {
            self.halt_poll_ns = 0;
            return None;
        }
        if halt_ns <= u64::from(old) {
            None
        } else if old != 0 && halt_ns > u64::from(max) {
            Some(self.shrink(&knobs.params))
        } else if old < max && halt_ns < u64::from(max) {
            Some(self.grow(&knobs.params, max))
        } else {
            None
        }
    }

    #[inline]
    fn grow(&mut self, params: &Params, max: u32) -> Change {
        let old = self.halt_poll_ns;
        if params.halt_poll_ns_grow != 0 {
            let grown = old.wrapping_mul(params.halt_poll_ns_grow).max(params.halt_poll_ns_grow_start);
            self.halt_poll_ns = if self.revision.clamps_at_entry() { grown } else { grown.min(max) };
        }
        Change { grow: true, new: self.halt_poll_ns, old }
    }

    #[inline]
    fn shrink(&mut self, params: &Params) -> Change {
        let old = self.halt_poll_ns;
        let shrunk = old.checked_div(params.halt_poll_ns_shrink).unwrap_or(0);
        let dropped =
            self.revision.shrinks_to_zero_below_grow_start() && shrunk < params.halt_poll_ns_grow_start;
        self.halt_poll_ns = if dropped { 0 } else { shrunk };
        Change { grow: false, new: self.halt_poll_ns, old }
    }
}

/// Buckets of a KVM logarithmic histogram (`HALT_POLL_HIST_COUNT`).
pub const BUCKETS: usize = 32;

/// The bucket of a KVM logarithmic histogram that counts `ns`: 0 holds 0, *k* holds 2^(*k*-1) to 2^*k* - 1, the last
/// holds all the rest.
pub const fn bucket(ns: u64) -> usize {
    let bits = (u64::BITS - ns.leading_zeros()) as usize;
    if bits < BUCKETS { bits } else { BUCKETS - 1 }
}

/// KVM halt polling as a [`Policy`] over continuous time: polls end exactly at the window or at the wakeup,
/// no other task is runnable on the core, and the settings stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct HaltPoll {
    vcpu: Vcpu,
    knobs: Knobs,
}

impl HaltPoll {
    /// A fresh vCPU of a VM that was created under these parameters.
    pub const fn new(revision: Revision, params: Params) -> HaltPoll {
        HaltPoll { vcpu: Vcpu::new(revision), knobs: Knobs::of(params) }
    }

    /// Other module parameters from the next halt on, as after a write to sysfs; the window stays.
    pub const fn set_params(&mut self, params: Params) {
        self.knobs.params = params;
    }
}

impl Policy for HaltPoll {
    #[inline]
    fn window(&mut self) -> Nanos {
        Nanos(u64::from(self.vcpu.enter(&self.knobs)))
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        self.vcpu.decide(&self.knobs, outcome.idle.get(), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(text: &str) -> Revision {
        Revision::of(Version::parse(text).unwrap()).unwrap()
    }

    #[test]
    fn version_chooses_the_revision() {
        for (text, expected) in [
            ("5.4", Revision::V5_4),
            ("5.4.286", Revision::V5_4),
            ("5.4.0-150-generic", Revision::V5_4),
            ("5.4.0", Revision::V5_4_0),
            ("5.7.19", Revision::V5_4_0),
            ("5.8", Revision::V5_8),
            ("5.10.0", Revision::V5_8),
            ("5.10.223", Revision::V5_10),
            ("5.12", Revision::V5_8),
            ("5.14", Revision::V5_13),
            ("5.15", Revision::V5_15),
            ("5.17", Revision::V5_17),
            ("6.0", Revision::V5_17),
            ("6.1", Revision::V6_1),
            ("6.10", Revision::V6_1),
            ("6.11", Revision::V6_11),
            ("6.18", Revision::V6_11),
            ("7.3", Revision::V6_11),
        ] {
            assert_eq!(revision(text), expected, "{text}");
        }
        for text in ["4.19", "5.3", "7.4", "8.0"] {
            assert!(Revision::of(Version::parse(text).unwrap()).is_err(), "{text}");
        }
    }

    #[test]
    fn growth_runs_past_the_maximum_since_6_1_and_stops_at_it_before() {
        for (revision, after, next_window) in
            [(Revision::V6_1, 320_000, 200_000), (Revision::V5_10, 200_000, 200_000)]
        {
            let knobs = Knobs::of(Params::default_for(revision));
            let mut vcpu = Vcpu::with_halt_poll_ns(revision, 160_000);
            let change = vcpu.decide(&knobs, 199_000, true).unwrap();
            assert_eq!(change, Change { grow: true, new: after, old: 160_000 }, "{revision:?}");
            assert_eq!(vcpu.enter(&knobs), next_window, "{revision:?}");
        }
    }

    #[test]
    fn growth_that_overflows_wraps_to_grow_start() {
        let params = Params { halt_poll_ns: u32::MAX, ..Params::default_for(Revision::V6_11) };
        let mut vcpu = Vcpu::with_halt_poll_ns(Revision::V6_11, 0x8000_0000);
        vcpu.decide(&Knobs::of(params), 0x8000_0001, true);
        assert_eq!(vcpu.halt_poll_ns(), 10_000);
    }

    #[test]
    fn halt_as_long_as_the_maximum_neither_grows_nor_shrinks() {
        let knobs = Knobs::of(Params::default_for(Revision::V6_11));
        let mut vcpu = Vcpu::with_halt_poll_ns(Revision::V6_11, 10_000);
        assert_eq!(vcpu.decide(&knobs, 200_000, true), None);
        assert_eq!(vcpu.decide(&knobs, 200_001, true), Some(Change { grow: false, new: 0, old: 10_000 }));
    }

    #[test]
    fn guest_that_switched_polling_off_freezes_the_value() {
        let knobs = Knobs { poll_control: false, ..Knobs::of(Params::default_for(Revision::V6_11)) };
        let mut vcpu = Vcpu::with_halt_poll_ns(Revision::V6_11, 80_000);
        assert_eq!(vcpu.enter(&knobs), 0);
        assert_eq!(vcpu.decide(&knobs, 1_000_000, true), None);
        assert_eq!(vcpu.halt_poll_ns(), 80_000);
    }

    #[test]
    fn module_parameter_has_no_effect_on_running_vms_between_5_8_and_6_0() {
        let mut knobs = Knobs::of(Params::default_for(Revision::V5_17));
        knobs.params.halt_poll_ns = 0;
        assert_eq!(knobs.max_ns(Revision::V5_17), 200_000);
        assert_eq!(knobs.max_ns(Revision::V6_1), 0);
        assert_eq!(knobs.max_ns(Revision::V5_4), 0);
        knobs.cap_ns = Some(5);
        assert_eq!(knobs.max_ns(Revision::V5_17), 5);
        assert_eq!(knobs.max_ns(Revision::V6_1), 5);
        assert_eq!(knobs.max_ns(Revision::V5_4), 0);
    }

    #[test]
    fn buckets_are_bit_lengths() {
        assert_eq!(
            [0, 1, 2, 3, 4, (1 << 30) - 1, 1 << 30, u64::MAX].map(bucket),
            [0, 1, 2, 2, 3, 30, 31, 31]
        );
    }
}
