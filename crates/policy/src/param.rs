//! One table of every parameter: name, unit, range, default by version, where it is set, and the source of each.
//!
//! The command line, error texts, the tuner and the manual read this table, so that a range is written down once. A
//! [`Setting`] is one value for each parameter of an owner, by name; the policies' own parameter structs are made from
//! it.

use crate::arch::Arch;
use crate::driver::{self, Choice};
use crate::version::{UnknownVersion, Version};
use crate::{Layer, Nanos, Owner, ParseNanosError, guest, host, iothread, timer};
use core::fmt;

/// What a parameter's number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A span of time in nanoseconds; durations such as `200us` are accepted for it.
    Nanoseconds,
    /// A span of time in microseconds, as a plain number.
    Microseconds,
    /// A factor or a divisor.
    Factor,
    /// A share of time.
    Percent,
    /// A number of bits to shift by.
    Shift,
    /// 0 or 1; the kernel prints N or Y.
    Switch,
    /// One of these names; the number is its place among them, from 0.
    Name(&'static [&'static str]),
}

impl Unit {
    /// Short name for tables and help.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "us",
            Unit::Factor => "factor",
            Unit::Percent => "percent",
            Unit::Shift => "bits",
            Unit::Switch => "0/1",
            Unit::Name(_) => "name",
        }
    }
}

/// A value from a version on.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    /// The first version with this value, as major and minor.
    pub version: (u16, u16),
    /// The value.
    pub value: i64,
}

const fn since(major: u16, minor: u16, value: i64) -> Since {
    Since { version: (major, minor), value }
}

/// One parameter of a layer's rule.
#[derive(Debug)]
pub struct Param {
    /// Its name where it is set.
    pub name: &'static str,
    /// Whose it is.
    pub owner: Owner,
    /// What the number means.
    pub unit: Unit,
    /// Least value.
    pub min: i64,
    /// Greatest value.
    pub max: i64,
    /// Defaults in order of version; the parameter exists from the first on.
    pub defaults: &'static [Since],
    /// The first version without it, if it went away.
    pub until: Option<(u16, u16)>,
    /// What it does.
    pub about: &'static str,
    /// What 0 means.
    pub zero: &'static str,
    /// Where it is set on a machine.
    pub home: &'static str,
    /// Where default and range are known from.
    pub source: &'static str,
}

impl Param {
    /// Whether the parameter exists in this version.
    pub fn exists_in(&self, version: Version) -> bool {
        self.default_in(version).is_some()
    }

    /// The default in this version; `None` where the parameter does not exist.
    pub fn default_in(&self, version: Version) -> Option<i64> {
        let gone = self.until.is_some_and(|(major, minor)| version.at_least(major, minor));
        let elsewhere = ONLY_ON.iter().any(|(name, arch)| *name == self.name && *arch != version.arch);
        if gone || elsewhere || self.owner != Layer::Host && version.arch.lacks(self.owner).is_some() {
            return None;
        }
        let of_version = |s: &&Since| version.at_least(s.version.0, s.version.1);
        let value = self.defaults.iter().rev().find(of_version)?.value;
        Some(if self.name == HALT_POLL_NS { version.arch.halt_poll_ns() } else { value })
    }
}

/// A text is not a value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseValueError {
    /// Not a number.
    NotANumber(&'static Param),
    /// Not a span of time.
    NotATime(&'static Param, ParseNanosError),
}

impl fmt::Display for ParseValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ParseValueError::NotANumber(param) | ParseValueError::NotATime(param, _)) = self;
        let number = if param.unit == Unit::Switch { "" } else { "a whole number from " };
        write!(f, "{} takes {number}{}", param.name, Range(param))?;
        match param.unit {
            Unit::Nanoseconds => f.write_str(", or a time such as 200us")?,
            Unit::Switch => f.write_str(", or yes or no")?,
            Unit::Name(names) => {
                f.write_str(", or one of")?;
                names.iter().try_for_each(|name| write!(f, " {name}"))?;
            }
            _ => {}
        }
        match self {
            ParseValueError::NotATime(_, ParseNanosError::NotADuration) | ParseValueError::NotANumber(_) => {
                Ok(())
            }
            ParseValueError::NotATime(_, why) => write!(f, "; the value {why}"),
        }
    }
}

impl core::error::Error for ParseValueError {}

/// The values of a parameter: `0 to 4294967295 ns`; of a switch `0 or 1`.
struct Range<'a>(&'a Param);

impl fmt::Display for Range<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Param { min, max, unit, .. } = self.0;
        match unit {
            Unit::Switch => write!(f, "{min} or {max}"),
            Unit::Factor | Unit::Shift | Unit::Name(_) => write!(f, "{min} to {max}"),
            _ => write!(f, "{min} to {max} {}", unit.name()),
        }
    }
}

impl Param {
    /// A value as people type it: a number as the kernel and QEMU read it (`0x10` is 16 and `010` is 8); for
    /// times `200us`, for switches `Y`, `yes`, `on`, `true` and their opposites, and a name where there are
    /// names. Whether it is in the range is for [`Setting::set`].
    ///
    /// # Errors
    /// [`ParseValueError`].
    pub fn parse(&'static self, text: &str) -> Result<i64, ParseValueError> {
        let text = text.trim();
        if let Some(number) = whole(text) {
            return Ok(number);
        }
        let is_one_of = |words: [&str; 5]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
        match self.unit {
            // Octal digits would have been a number, and the kernel takes no others after a 0.
            Unit::Nanoseconds
                if text.starts_with('0') && text.bytes().all(|digit| digit.is_ascii_digit()) =>
            {
                Err(ParseValueError::NotATime(self, ParseNanosError::NotADuration))
            }
            Unit::Nanoseconds => {
                let time: Nanos = text.parse().map_err(|why| ParseValueError::NotATime(self, why))?;
                i64::try_from(time.0).map_err(|_| ParseValueError::NotATime(self, ParseNanosError::TooLong))
            }
            Unit::Switch if is_one_of(["y", "yes", "on", "t", "true"]) => Ok(1),
            Unit::Switch if is_one_of(["n", "no", "off", "f", "false"]) => Ok(0),
            Unit::Name(_) => self.parse_name(text).ok_or(ParseValueError::NotANumber(self)),
            _ => Err(ParseValueError::NotANumber(self)),
        }
    }
}

impl Param {
    /// Whether a value is in the range of the parameter, and not one that stands for what is chosen when KVM loads.
    pub fn takes(&self, value: i64) -> bool {
        (self.min..=self.max).contains(&value)
    }

    /// The number of a text that a kernel of this version takes for the parameter; `None` if it refuses it.
    pub fn taken(&self, text: &str, version: Option<Version>) -> Option<i64> {
        match self.unit {
            Unit::Switch => switch(text, version).map(i64::from),
            Unit::Name(_) => self.parse_name(text),
            _ => whole(text).filter(|value| self.takes(*value)),
        }
    }

    /// The name that a number stands for; `None` where numbers have no names.
    pub fn name_of(&self, value: i64) -> Option<&'static str> {
        let Unit::Name(names) = self.unit else { return None };
        names.get(usize::try_from(value).ok()?).copied()
    }

    /// The number of a name; `None` where it has no such name.
    pub fn parse_name(&self, name: &str) -> Option<i64> {
        let Unit::Name(names) = self.unit else { return None };
        i64::try_from(names.iter().position(|known| *known == name)?).ok()
    }
}

/// A whole number as the kernel and QEMU read it: in decimal, in hexadecimal after `0x`, or in octal after `0`.
pub fn whole(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let octal = || digits.starts_with('0').then_some((8, digits));
    let (radix, digits) = hexadecimal.map(|digits| (16, digits)).or_else(octal).unwrap_or((10, digits));
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if text.starts_with('-') { -number } else { number }).ok()
}

/// A switch as `kstrtobool` reads it: the first character decides, and after `o` the second. `None` for what a kernel of
/// this version refuses.
pub fn switch(text: &str, version: Option<Version>) -> Option<bool> {
    let mut letters = text.bytes().map(|letter| letter.to_ascii_lowercase());
    match (letters.next()?, letters.next()) {
        (b'y' | b'1', _) | (b'o', Some(b'n')) => Some(true),
        (b'n' | b'0', _) | (b'o', Some(b'f')) => Some(false),
        (letter @ (b't' | b'f'), _) if version.is_none_or(|version| version.at_least(5, 19)) => {
            Some(letter == b't')
        }
        _ => None,
    }
}

/// The host's parameter whose default depends on the architecture.
const HALT_POLL_NS: &str = "halt_poll_ns";
/// Parameters that one architecture has.
const ONLY_ON: [(&str, Arch); 1] = [("halt_poll_max_steal", Arch::S390x)];

/// A default that stands for what KVM chooses when it loads, and that is no value to write.
const CHOSEN_AT_LOAD: i64 = -1;

const U32_MAX: i64 = 0xffff_ffff;
const INT_MAX: i64 = i32::MAX as i64;
const KVM: &str = "/sys/module/kvm/parameters";
const KVM_SOURCE: &str = "virt/kvm/kvm_main.c";
const HALTPOLL: &str = "/sys/module/haltpoll/parameters";
const HALTPOLL_SOURCE: &str = "drivers/cpuidle/governors/haltpoll.c";
const DWELL_IDLE: &str = "/sys/module/dwell_idle/parameters";
const DWELL_IDLE_SOURCE: &str = "kernel/dwell_idle/driver.c of dwell";
const IOTHREAD: &str = "QOM property of -object iothread";
const IOTHREAD_SOURCE: &str = "iothread.c, util/aio-posix.c";

/// What most parameters of an owner have alike: times in nanoseconds, from 0.
const fn of(owner: Owner, max: i64, home: &'static str, source: &'static str) -> Param {
    let unit = Unit::Nanoseconds;
    Param {
        name: "",
        owner,
        unit,
        min: 0,
        max,
        defaults: &[],
        until: None,
        about: "",
        zero: "",
        home,
        source,
    }
}

const HOST_PARAM: Param = of(Owner::Layer(Layer::Host), U32_MAX, KVM, KVM_SOURCE);
const GUEST_PARAM: Param = of(Owner::Layer(Layer::Guest), U32_MAX, HALTPOLL, HALTPOLL_SOURCE);
const TIMER_PARAM: Param = of(Owner::Timer, U32_MAX, KVM, KVM_SOURCE);
const DRIVER_PARAM: Param = of(Owner::Layer(Layer::Driver), U32_MAX, DWELL_IDLE, DWELL_IDLE_SOURCE);
const IOTHREAD_PARAM: Param = of(Owner::Layer(Layer::Iothread), i64::MAX, IOTHREAD, IOTHREAD_SOURCE);

/// The parameters of KVM halt polling.
pub static HOST: [Param; 5] = [
    Param {
        name: "halt_poll_ns",
        defaults: &[since(5, 4, 200_000)],
        about: "longest time a vCPU's thread polls for a wakeup before it sleeps",
        zero: "never poll",
        source: "arch/x86/include/asm/kvm_host.h, KVM_HALT_POLL_NS_DEFAULT",
        ..HOST_PARAM
    },
    Param {
        name: "halt_poll_ns_grow",
        unit: Unit::Factor,
        defaults: &[since(5, 4, 2)],
        about: "factor by which a window grows after a halt that a longer poll would have caught",
        zero: "never grow",
        ..HOST_PARAM
    },
    Param {
        name: "halt_poll_ns_grow_start",
        defaults: &[since(5, 4, 10_000)],
        about: "first window that a growth from zero gives; since 5.15 (5.4.152, 5.10.72, 5.14.11) a shrink below it drops to zero",
        zero: "a window of zero stays zero",
        ..HOST_PARAM
    },
    Param {
        name: "halt_poll_ns_shrink",
        unit: Unit::Factor,
        defaults: &[since(5, 4, 0), since(6, 11, 2)],
        about: "divisor by which a window shrinks after a halt longer than halt_poll_ns",
        zero: "drop to zero at once",
        ..HOST_PARAM
    },
    Param {
        name: "halt_poll_max_steal",
        unit: Unit::Percent,
        max: 255,
        defaults: &[since(5, 4, 10)],
        about: "steal time of the host from which on no vCPU polls (s390x)",
        zero: "never poll",
        source: "arch/s390/kvm/kvm-s390.c, halt_poll_max_steal",
        ..HOST_PARAM
    },
];

/// The parameters of the haltpoll governor.
pub static GUEST: [Param; 5] = [
    Param {
        name: "guest_halt_poll_ns",
        defaults: &[since(5, 4, 200_000)],
        about: "longest time a guest CPU polls before it halts",
        zero: "no growth; a limit that is there only shrinks",
        ..GUEST_PARAM
    },
    Param {
        name: "guest_halt_poll_shrink",
        unit: Unit::Factor,
        defaults: &[since(5, 4, 2)],
        about: "divisor by which the limit shrinks after a halt longer than guest_halt_poll_ns",
        zero: "drop to zero at once",
        ..GUEST_PARAM
    },
    Param {
        name: "guest_halt_poll_grow",
        unit: Unit::Factor,
        defaults: &[since(5, 4, 2)],
        about: "factor by which the limit grows after a halt that a longer poll would have caught",
        zero: "growth gives guest_halt_poll_grow_start",
        ..GUEST_PARAM
    },
    Param {
        name: "guest_halt_poll_grow_start",
        defaults: &[since(5, 4, 50_000)],
        about: "first limit that a growth from zero gives; since 6.9 a shrink below it drops to zero",
        zero: "a limit of zero stays zero",
        ..GUEST_PARAM
    },
    Param {
        name: "guest_halt_poll_allow_shrink",
        unit: Unit::Switch,
        max: 1,
        defaults: &[since(5, 4, 1)],
        about: "whether the limit may shrink",
        zero: "a limit once grown stays",
        ..GUEST_PARAM
    },
];

/// The parameters of KVM's local APIC timer.
pub static TIMER: [Param; 4] = [
    Param {
        name: "pi_inject_timer",
        unit: Unit::Switch,
        max: 1,
        defaults: &[since(5, 3, CHOSEN_AT_LOAD)],
        about: "deliver timer interrupts from a housekeeping CPU; by default (-1, which cannot be written) if nohz_full= is given",
        zero: "never post",
        source: "arch/x86/kvm/x86.c, pi_inject_timer",
        ..TIMER_PARAM
    },
    Param {
        name: "lapic_timer_advance_ns",
        min: -1,
        max: INT_MAX,
        defaults: &[since(5, 3, -1)],
        until: Some((6, 10)),
        about: "fire timers this much early and spin for the rest; -1: adapt, from 1000 ns",
        zero: "never early",
        source: "arch/x86/kvm/x86.c, lapic_timer_advance_ns",
        ..TIMER_PARAM
    },
    Param {
        name: "lapic_timer_advance",
        unit: Unit::Switch,
        max: 1,
        defaults: &[since(6, 10, 1)],
        about: "fire timers early by an adaptive span and spin for the rest",
        zero: "never early",
        source: "arch/x86/kvm/lapic.c, lapic_timer_advance",
        ..TIMER_PARAM
    },
    Param {
        name: "min_timer_period_us",
        unit: Unit::Microseconds,
        defaults: &[since(5, 3, 200)],
        about: "shortest period of a periodic timer",
        zero: "no limit",
        source: "arch/x86/kvm/x86.c, min_timer_period_us",
        ..TIMER_PARAM
    },
];

/// The policies of the idle driver dwell_idle, by the numbers of its parameter `policy`.
pub static DRIVER_POLICIES: [&str; 4] = ["leader", "savings", "fixed", "never"];

/// The parameters of the idle driver dwell_idle.
pub static DRIVER: [Param; 4] = [
    Param {
        name: "halt_cost_ns",
        defaults: &[since(6, 1, 0)],
        about: "what a halt and the wakeup from it are worth",
        zero: "measure it now; it then reads as what was measured",
        ..DRIVER_PARAM
    },
    Param {
        name: "wake_latency_ns",
        defaults: &[since(6, 1, 0)],
        about: "how much later a halted CPU runs again; not learned from",
        zero: "measure it now; it then reads as what was measured",
        ..DRIVER_PARAM
    },
    Param {
        name: "max_window_ns",
        defaults: &[since(6, 1, 200_000)],
        about: "longest time a CPU polls before it halts",
        zero: "never poll",
        ..DRIVER_PARAM
    },
    Param {
        name: "policy",
        unit: Unit::Name(&DRIVER_POLICIES),
        max: 3,
        defaults: &[since(6, 1, 0)],
        about: "rule that chooses the window: 0 leader, 1 savings, 2 fixed (always max_window_ns), 3 never",
        zero: "leader",
        ..DRIVER_PARAM
    },
];

/// The parameters of QEMU's adaptive polling.
pub static IOTHREADS: [Param; 4] = [
    Param {
        name: "poll-max-ns",
        defaults: &[since(2, 9, 32_768)],
        about: "longest time an event loop polls before it sleeps",
        zero: "never poll",
        ..IOTHREAD_PARAM
    },
    Param {
        name: "poll-grow",
        unit: Unit::Factor,
        defaults: &[since(2, 9, 0), since(11, 1, 2)],
        about: "factor by which the polling time grows",
        zero: "the default factor, 2",
        ..IOTHREAD_PARAM
    },
    Param {
        name: "poll-shrink",
        unit: Unit::Factor,
        defaults: &[since(2, 9, 0), since(11, 1, 2)],
        about: "divisor by which the polling time shrinks",
        zero: "drop to zero at once; since 11.1 the default divisor, 2",
        ..IOTHREAD_PARAM
    },
    Param {
        name: "poll-weight",
        unit: Unit::Shift,
        max: 63,
        defaults: &[since(11, 1, 3)],
        about: "how slowly a handler's smoothed time follows: a new sample counts 1/2^weight",
        zero: "the default, 3",
        ..IOTHREAD_PARAM
    },
];

/// The parameters of a layer or of timers, of every version, in the order in which they are listed.
pub fn table(owner: impl Into<Owner>) -> &'static [Param] {
    match owner.into() {
        Owner::Layer(Layer::Guest) => &GUEST,
        Owner::Layer(Layer::Host) => &HOST,
        Owner::Layer(Layer::Driver) => &DRIVER,
        Owner::Layer(Layer::Iothread) => &IOTHREADS,
        Owner::Timer => &TIMER,
    }
}

/// The parameters that a layer has, or timers have, in a version.
pub fn of_version(owner: impl Into<Owner>, version: Version) -> impl Iterator<Item = &'static Param> {
    table(owner).iter().filter(move |param| param.exists_in(version))
}

/// Checks that the rule is known for a version of the kernel (QEMU for [`Layer::Iothread`]).
///
/// # Errors
/// [`UnknownVersion`], which names the versions that are known.
pub fn known_version(owner: impl Into<Owner>, version: Version) -> Result<(), UnknownVersion> {
    match owner.into() {
        // The driver is the same on every kernel.
        Owner::Layer(Layer::Guest | Layer::Driver) => guest::Revision::of(version).map(|_| ()),
        Owner::Layer(Layer::Host) => host::Revision::of(version).map(|_| ()),
        Owner::Layer(Layer::Iothread) => iothread::Revision::of(version).map(|_| ()),
        Owner::Timer => timer::Revision::of(version).map(|_| ()),
    }
}

/// The most parameters that any owner has.
const MOST: usize = 5;

/// One value for each parameter that a layer has in a version; a `Setting<Owner>` may be of timers too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Setting<O = Layer> {
    owner: O,
    version: Version,
    values: [i64; MOST],
}

/// Why a value was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetError {
    /// The owner has no parameter of this name.
    NoSuchParam {
        /// Whose parameters are valid.
        owner: Owner,
        /// The version whose parameters are valid.
        version: Version,
    },
    /// The parameter exists, but not in this version.
    NotInVersion {
        /// The parameter.
        param: &'static Param,
        /// The version given.
        version: Version,
    },
    /// The value lies outside the range.
    OutOfRange {
        /// The parameter.
        param: &'static Param,
        /// What was given.
        value: i64,
    },
}

impl PartialEq for Param {
    fn eq(&self, other: &Self) -> bool {
        self.owner == other.owner && self.name == other.name
    }
}

impl Eq for Param {}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetError::NoSuchParam { owner, version } => {
                write!(f, "no such parameter of the {} layer; it has", owner.name())?;
                for (i, param) in of_version(*owner, *version).enumerate() {
                    write!(f, "{} {}", if i == 0 { "" } else { "," }, param.name)?;
                }
                Ok(())
            }
            SetError::NotInVersion { param, version } => {
                if version.arch != Arch::X86_64 {
                    let (release, arch) = (version.on(Arch::X86_64), version.arch.name());
                    return write!(f, "{} does not exist in {release} on {arch}", param.name);
                }
                if let Some((_, arch)) = ONLY_ON.iter().find(|(name, _)| *name == param.name) {
                    return write!(f, "{} exists on {} only", param.name, arch.name());
                }
                let (major, minor) = param.defaults.first().map_or((0, 0), |s| s.version);
                write!(f, "{} does not exist in {version}; it came with {major}.{minor}", param.name)?;
                match param.until {
                    Some((major, minor)) => write!(f, " and went with {major}.{minor}"),
                    None => Ok(()),
                }
            }
            SetError::OutOfRange { param, value } => write!(
                f,
                "{} = {value} is out of range: {}, 0 means {}",
                param.name,
                Range(param),
                param.zero
            ),
        }
    }
}

impl core::error::Error for SetError {}

impl Setting {
    /// The layer whose rule it sets.
    pub const fn layer(&self) -> Layer {
        self.owner
    }
}

impl<O: Copy + Into<Owner>> Setting<O> {
    /// The defaults of a version.
    pub fn defaults(owner: O, version: Version) -> Setting<O> {
        let mut values = [0; MOST];
        for (value, param) in values.iter_mut().zip(table(owner)) {
            *value = param.default_in(version).unwrap_or(0);
        }
        Setting { owner, version, values }
    }

    /// Whose parameters it sets.
    pub fn owner(&self) -> Owner {
        self.owner.into()
    }

    /// The setting of a layer's rule; `None` where it is of timers.
    pub fn of_layer(&self) -> Option<Setting> {
        let owner = Layer::try_from(self.owner()).ok()?;
        Some(Setting { owner, version: self.version, values: self.values })
    }

    /// Of which version.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The value of a parameter; `None` if there is none of this name in this version. Both `_` and `-` are
    /// taken for either.
    pub fn get(&self, name: &str) -> Option<i64> {
        let index = index_of(self.owner, name)?;
        table(self.owner)[index].exists_in(self.version).then(|| self.values[index])
    }

    /// Changes one value.
    ///
    /// # Errors
    /// [`SetError`] for a name that there is not in this version, and for a value out of range; the
    /// setting is then as it was.
    pub fn set(&mut self, name: &str, value: i64) -> Result<(), SetError> {
        let Some(index) = index_of(self.owner, name) else {
            return Err(SetError::NoSuchParam { owner: self.owner(), version: self.version });
        };
        let param = &table(self.owner)[index];
        if !param.exists_in(self.version) {
            return Err(SetError::NotInVersion { param, version: self.version });
        }
        if !param.takes(value) {
            return Err(SetError::OutOfRange { param, value });
        }
        self.values[index] = value;
        Ok(())
    }

    /// Parameters and values, in the table's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Param, i64)> {
        let version = self.version;
        table(self.owner).iter().zip(self.values).filter(move |(param, _)| param.exists_in(version))
    }

    fn u32(&self, index: usize) -> u32 {
        u32::try_from(self.values[index]).unwrap_or(u32::MAX)
    }
}

impl From<Setting> for Setting<Owner> {
    fn from(Setting { owner, version, values }: Setting) -> Setting<Owner> {
        Setting { owner: owner.into(), version, values }
    }
}

/// The parameter of this name, whosever it is.
pub fn find(name: &str) -> Option<&'static Param> {
    Owner::ALL.into_iter().find_map(|owner| table(owner).get(index_of(owner, name)?))
}

/// The index of a parameter in its [`table`].
pub fn index_of(owner: impl Into<Owner>, name: &str) -> Option<usize> {
    let same = |a: u8, b: u8| a == b || (matches!(a, b'-' | b'_') && matches!(b, b'-' | b'_'));
    table(owner).iter().position(|param| {
        param.name.len() == name.len() && param.name.bytes().zip(name.bytes()).all(|(a, b)| same(a, b))
    })
}

impl<O: Copy + Into<Owner>> fmt::Debug for Setting<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(param, value)| (param.name, value))).finish()
    }
}

/// `halt_poll_ns=200000 halt_poll_ns_grow=2 …`; a number that stands for a name as that name.
impl<O: Copy + Into<Owner>> fmt::Display for Setting<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (param, value)) in self.iter().enumerate() {
            write!(f, "{}{}=", if i == 0 { "" } else { " " }, param.name)?;
            match param.name_of(value) {
                Some(name) => f.write_str(name)?,
                None => write!(f, "{value}")?,
            }
        }
        Ok(())
    }
}

impl From<&Setting> for host::Params {
    fn from(setting: &Setting) -> host::Params {
        assert_eq!(setting.owner, Layer::Host);
        host::Params {
            halt_poll_ns: setting.u32(0),
            halt_poll_ns_grow: setting.u32(1),
            halt_poll_ns_grow_start: setting.u32(2),
            halt_poll_ns_shrink: setting.u32(3),
        }
    }
}

impl From<&Setting> for guest::Params {
    fn from(setting: &Setting) -> guest::Params {
        assert_eq!(setting.owner, Layer::Guest);
        guest::Params {
            guest_halt_poll_ns: setting.u32(0),
            guest_halt_poll_shrink: setting.u32(1),
            guest_halt_poll_grow: setting.u32(2),
            guest_halt_poll_grow_start: setting.u32(3),
            guest_halt_poll_allow_shrink: setting.values[4] != 0,
        }
    }
}

impl From<&Setting> for driver::Params {
    fn from(setting: &Setting) -> driver::Params {
        assert_eq!(setting.owner, Layer::Driver);
        let time = |index: usize| Nanos(setting.u32(index).into());
        driver::Params {
            halt_cost: time(0),
            wake_latency: time(1),
            max_window: time(2),
            choice: match setting.values[3] {
                0 => Choice::Leader,
                1 => Choice::Savings,
                2 => Choice::Fixed,
                _ => Choice::Never,
            },
        }
    }
}

impl From<&Setting> for iothread::Params {
    fn from(setting: &Setting) -> iothread::Params {
        assert_eq!(setting.owner, Layer::Iothread);
        let [poll_max_ns, poll_grow, poll_shrink, poll_weight, _] = setting.values;
        iothread::Params { poll_max_ns, poll_grow, poll_shrink, poll_weight }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn tables_are_well_formed() {
        for owner in Owner::ALL {
            assert!(table(owner).len() <= MOST);
            for param in table(owner) {
                assert_eq!(param.owner, owner, "{}", param.name);
                assert!(param.min <= param.max && !param.defaults.is_empty(), "{}", param.name);
                for since in param.defaults {
                    assert_eq!(param.takes(since.value), param.name != "pi_inject_timer", "{}", param.name);
                }
                assert!(param.defaults.is_sorted_by_key(|s| s.version), "{}", param.name);
            }
        }
    }

    #[test]
    fn table_and_policies_agree_on_defaults() {
        for (text, host_revision) in
            [("5.4", host::Revision::V5_4), ("6.1", host::Revision::V6_1), ("6.18", host::Revision::V6_11)]
        {
            let version = Version::parse(text).unwrap();
            let host = Setting::defaults(Layer::Host, version);
            assert_eq!(host::Params::from(&host), host::Params::default_for(host_revision), "{text}");
            let guest = Setting::defaults(Layer::Guest, version);
            assert_eq!(guest::Params::from(&guest), guest::Params::default(), "{text}");
        }
    }

    /// Also where debug assertions are off: the values of another layer would be taken by their places.
    #[test]
    #[should_panic(expected = "left: Guest")]
    fn parameters_are_not_made_from_a_setting_of_another_layer() {
        let guest = Setting::defaults(Layer::Guest, Version::new(6, 18));
        let _ = host::Params::from(&guest);
    }

    #[test]
    fn refuses_unknown_names_and_values_out_of_range() {
        let mut setting = Setting::defaults(Layer::Host, Version::new(6, 18));
        assert_eq!(
            setting.set("halt_pol_ns", 1).unwrap_err().to_string(),
            "no such parameter of the host layer; it has halt_poll_ns, halt_poll_ns_grow, \
             halt_poll_ns_grow_start, halt_poll_ns_shrink"
        );
        assert_eq!(
            setting.set("halt_poll_ns", 1 << 32).unwrap_err().to_string(),
            "halt_poll_ns = 4294967296 is out of range: 0 to 4294967295 ns, 0 means never poll"
        );
        // The kernel's number at the start is not one that it takes.
        let mut timer = Setting::defaults(Owner::Timer, Version::new(6, 8));
        assert_eq!(timer.get("pi_inject_timer"), Some(-1));
        assert!(timer.set("pi_inject_timer", -1).is_err());
        assert_eq!(
            timer.set("pi_inject_timer", 2).unwrap_err().to_string(),
            "pi_inject_timer = 2 is out of range: 0 or 1, 0 means never post"
        );
        timer.set("pi_inject_timer", 1).unwrap();
        setting.set("halt-poll-ns", 5).unwrap();
        assert_eq!(setting.get("halt_poll_ns"), Some(5));
    }

    #[test]
    fn values_are_read_in_the_unit_of_their_parameter() {
        let parse = |owner: Owner, name, text: &str| {
            let param = &table(owner)[index_of(owner, name).unwrap()];
            param.parse(text).map_err(|why| why.to_string())
        };
        assert_eq!(parse(Layer::Host.into(), "halt_poll_ns", "50us"), Ok(50_000));
        assert_eq!(parse(Layer::Host.into(), "halt_poll_ns", " 7 "), Ok(7));
        assert_eq!(parse(Layer::Guest.into(), "guest_halt_poll_allow_shrink", "N"), Ok(0));
        assert_eq!(parse(Layer::Guest.into(), "guest_halt_poll_allow_shrink", "On"), Ok(1));
        assert_eq!(parse(Owner::Timer, "lapic_timer_advance_ns", "-1"), Ok(-1));
        for (text, value) in [("010", 8), ("0x10", 16), ("0", 0), ("+5", 5), ("-0x10", -16)] {
            assert_eq!(parse(Layer::Host.into(), "halt_poll_ns_grow", text), Ok(value), "{text}");
        }
        assert!(parse(Layer::Host.into(), "halt_poll_ns", "08").is_err(), "the kernel refuses it");
        for text in ["09", "0x", "0x-1", "--1", "", "0x10000000000000000", "1 0"] {
            assert!(parse(Layer::Host.into(), "halt_poll_ns_grow", text).is_err(), "{text}");
        }
        assert_eq!(
            parse(Layer::Host.into(), "halt_poll_ns", "5m").unwrap_err(),
            "halt_poll_ns takes a whole number from 0 to 4294967295 ns, or a time such as 200us"
        );
        assert_eq!(
            parse(Layer::Host.into(), "halt_poll_ns_grow", "two").unwrap_err(),
            "halt_poll_ns_grow takes a whole number from 0 to 4294967295"
        );
        assert_eq!(
            parse(Owner::Timer, "pi_inject_timer", "2x").unwrap_err(),
            "pi_inject_timer takes 0 or 1, or yes or no"
        );
    }

    #[test]
    fn values_are_taken_as_the_kernel_reads_them() {
        let taken = |owner: Owner, name, text, version| {
            table(owner)[index_of(owner, name).unwrap()].taken(text, version)
        };
        let number = |text| taken(Layer::Host.into(), "halt_poll_ns", text, None);
        assert_eq!(
            ["0x0", "010", "200000", "-1", "200us", "Y"].map(number),
            [Some(0), Some(8), Some(200_000), None, None, None]
        );
        let switch = |text| taken(Layer::Guest.into(), "guest_halt_poll_allow_shrink", text, None);
        assert_eq!(["Y", "1", "on", "t", "yes", "On"].map(switch), [Some(1); 6]);
        assert_eq!(["N", "0", "off", "F", "no", "0x1"].map(switch), [Some(0); 6]);
        assert_eq!(["2", "-1", "o", "", " Y"].map(switch), [None; 5]);
        let old = Some(Version::new(5, 15));
        assert_eq!(taken(Layer::Guest.into(), "guest_halt_poll_allow_shrink", "true", old), None);
    }

    #[test]
    fn architectures_have_defaults_and_parameters_of_their_own() {
        let max = |arch| Setting::defaults(Layer::Host, Version::new(6, 1).on(arch)).get("halt_poll_ns");
        let all = Arch::ALL.map(|arch| max(arch).unwrap());
        assert_eq!(all, [200_000, 500_000, 50_000, 10_000, 500_000, 500_000]);
        let count = |owner: Owner, arch| of_version(owner, Version::new(6, 1).on(arch)).count();
        assert_eq!(Arch::ALL.map(|arch| count(Layer::Host.into(), arch)), [4, 4, 5, 4, 4, 4]);
        assert_eq!(Arch::ALL.map(|arch| count(Owner::Timer, arch)), [3, 0, 0, 0, 0, 0]);
        assert_eq!(Arch::ALL.map(|arch| count(Layer::Guest.into(), arch)), [5, 5, 0, 0, 0, 0]);
    }

    #[test]
    fn the_advance_is_a_switch_since_6_10() {
        let has = |minor| Setting::defaults(Owner::Timer, Version::new(6, minor)).get("lapic_timer_advance");
        assert_eq!((has(9), has(10), has(11)), (None, Some(1), Some(1)));
    }

    #[test]
    fn what_an_architecture_does_not_have_names_it_once() {
        let mut host = Setting::defaults(Layer::Host, Version::new(6, 8).on(Arch::Arm64));
        let error = host.set("halt_poll_max_steal", 5).unwrap_err().to_string();
        assert_eq!(error, "halt_poll_max_steal does not exist in 6.8 on arm64");
    }

    #[test]
    fn poll_weight_exists_since_qemu_11_1() {
        let mut old = Setting::defaults(Layer::Iothread, Version::new(10, 0));
        assert_eq!(
            old.set("poll-weight", 3).unwrap_err().to_string(),
            "poll-weight does not exist in 10.0; it came with 11.1"
        );
        assert_eq!(old.to_string(), "poll-max-ns=32768 poll-grow=0 poll-shrink=0");
        let new = Setting::defaults(Layer::Iothread, Version::new(11, 1));
        assert_eq!(new.to_string(), "poll-max-ns=32768 poll-grow=2 poll-shrink=2 poll-weight=3");
    }
}
