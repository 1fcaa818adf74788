//! BTF: the kernel's description of its own types, `/sys/kernel/btf/vmlinux`.
//!
//! It is read for two things: the number of a function or of a tracepoint's type, to which a program is
//! attached, and where a field is in a structure. The format is that of the kernel's documentation,
//! `bpf/btf.rst`.

use crate::native::word;
use memchr::memmem;

/// Where the running kernel's is.
pub(crate) const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// The kinds of type that are looked for, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Struct = 4,
    Typedef = 8,
    Function = 12,
}

/// Where a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From the beginning of the structure \[bytes\].
    pub(super) offset: u32,
    /// How many bytes it has.
    pub(super) size: u16,
}

#[derive(Debug)]
pub(super) struct Btf {
    bytes: Vec<u8>,
    /// Where the description of each type begins; the first is that of number 1.
    types: Vec<usize>,
    /// Where the names begin.
    names: usize,
}

/// How many types may be nested, or refer to each other: more than in any kernel.
const DEEPEST: u32 = 32;
const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const PROTOTYPE: u32 = 13;

/// A type's description without what follows for its kind.
#[derive(Clone, Copy, Debug)]
struct Type {
    name: usize,
    kind: u32,
    /// How many members, values or parameters follow.
    count: usize,
    /// Whether offsets of members are in bits with the size of a bit field above them.
    bit_fields: bool,
    /// Its size in bytes, or the number of the type that it refers to.
    size_or_type: u32,
    /// Where what follows begins.
    rest: usize,
}

impl Btf {
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Btf, String> {
        let unread = |at: usize| format!("byte {at} of the kernel's BTF cannot be read");
        let mut btf = Btf { bytes, types: vec![], names: 0 };
        let header = |btf: &Btf, at| word(&btf.bytes, at).map(|word| word as usize).ok_or_else(|| unread(at));
        if btf.bytes.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(unread(0));
        }
        let length = header(&btf, 4)?;
        let begin = length + header(&btf, 8)?;
        let end = begin + header(&btf, 12)?;
        btf.names = length + header(&btf, 16)?;
        let mut at = begin;
        while at < end {
            let size = btf.describe(at).and_then(|one| Some(one.rest - at + one.extra()?));
            btf.types.push(at);
            at += size.ok_or_else(|| unread(at))?;
        }
        Ok(btf)
    }

    /// The number of the type of this kind and name.
    pub(super) fn find(&self, kind: Kind, name: &str) -> Option<u32> {
        // Where the name is, once, and not the names of all types, of which there are more than a hundred thousand.
        let ended = [name.as_bytes(), b"\0"].concat();
        let names: Vec<usize> = memmem::find_iter(self.bytes.get(self.names..)?, &ended).collect();
        let is_it = |one: Type| one.kind == kind as u32 && names.binary_search(&one.name).is_ok();
        let found = self.types.iter().position(|&at| self.describe(at).is_some_and(is_it))?;
        u32::try_from(found + 1).ok()
    }

    /// Where a field is in a structure: `["thread_info", "cpu"]` is `thread_info.cpu`.
    pub(super) fn field(&self, structure: &str, path: &[&str]) -> Option<Place> {
        let mut number = self.find(Kind::Struct, structure)?;
        let mut offset = 0;
        for name in path {
            let (at, of) = self.member(number, name, DEEPEST)?;
            offset = at.checked_add(offset)?;
            number = of;
        }
        Some(Place { offset, size: self.size(number)? })
    }

    /// How many arguments a tracepoint has, by the type of this number: a typedef of a pointer to a function, whose first
    /// parameter is no argument of the tracepoint.
    pub(super) fn arguments(&self, tracepoint: u32) -> Option<usize> {
        let pointer = self.resolve(tracepoint)?;
        let function = self.number(pointer.size_or_type).filter(|one| one.kind == PROTOTYPE)?;
        function.count.checked_sub(1)
    }

    /// Where the member of this name is \[bytes\], and its type; members of members without a name are its own.
    fn member(&self, structure: u32, name: &str, depth: u32) -> Option<(u32, u32)> {
        let depth = depth.checked_sub(1)?;
        let structure = self.resolve(structure)?;
        if ![STRUCT, UNION].contains(&structure.kind) {
            return None;
        }
        (0..structure.count).find_map(|index| {
            let at = structure.rest + 12 * index;
            let (its_name, its_type, bits) =
                (word(&self.bytes, at)?, word(&self.bytes, at + 4)?, word(&self.bytes, at + 8)?);
            let (bits, field) = if structure.bit_fields { (bits & 0xff_ffff, bits >> 24) } else { (bits, 0) };
            if its_name == 0 {
                let (inner, of) = self.member(its_type, name, depth)?;
                return Some(((bits / 8).checked_add(inner)?, of));
            }
            (field == 0 && self.is_named(its_name as usize, name)).then_some((bits / 8, its_type))
        })
    }

    /// The type itself, behind its names and qualifiers.
    fn resolve(&self, number: u32) -> Option<Type> {
        let mut one = self.number(number)?;
        // Typedef, volatile, const, restrict and type tags refer to another type.
        for _ in 0..DEEPEST {
            if ![8, 9, 10, 11, 18].contains(&one.kind) {
                return Some(one);
            }
            one = self.number(one.size_or_type)?;
        }
        None
    }

    fn size(&self, number: u32) -> Option<u16> {
        let one = self.resolve(number)?;
        match one.kind {
            // Integers, enumerations.
            1 | 6 | 19 => u16::try_from(one.size_or_type).ok(),
            // A pointer, on machines with 64 bits.
            2 => Some(8),
            _ => None,
        }
    }

    fn number(&self, number: u32) -> Option<Type> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.describe(*self.types.get(index)?)
    }

    fn describe(&self, at: usize) -> Option<Type> {
        let info = word(&self.bytes, at + 4)?;
        Some(Type {
            name: word(&self.bytes, at)? as usize,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            bit_fields: info >> 31 != 0,
            size_or_type: word(&self.bytes, at + 8)?,
            rest: at + 12,
        })
    }

    fn is_named(&self, name: usize, wanted: &str) -> bool {
        let begin = self.names.saturating_add(name);
        let end = begin.saturating_add(wanted.len());
        self.bytes.get(end) == Some(&0) && self.bytes.get(begin..end) == Some(wanted.as_bytes())
    }
}

impl Type {
    /// How many bytes follow; `None` for a kind that is not known.
    fn extra(self) -> Option<usize> {
        Some(match self.kind {
            1 | 14 | 17 => 4,
            2 | 7..=12 | 16 | 18 => 0,
            3 => 12,
            4 | 5 | 15 | 19 => 12 * self.count,
            6 | 13 => 8 * self.count,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `struct task { struct { int pid; }; struct info info; }`, `struct info { unsigned flags; unsigned cpu; }`
    fn small() -> Vec<u8> {
        let names = b"\0int\0task\0info\0cpu\0pid\0flags\0go\0";
        let at = |name: &str| {
            let name = [b"\0", name.as_bytes(), b"\0"].concat();
            u32::try_from(names.windows(name.len()).position(|window| window == name).unwrap() + 1).unwrap()
        };
        let of = |kind: u32, count: u32| kind << 24 | count;
        let mut types: Vec<u32> = vec![];
        types.extend([at("int"), of(1, 0), 4, 0x20]);
        types.extend([at("info"), of(4, 2), 8, at("flags"), 1, 0, at("cpu"), 1, 32]);
        types.extend([0, of(4, 1), 4, at("pid"), 1, 0]);
        types.extend([at("task"), of(4, 2), 12, 0, 3, 0, at("info"), 2, 32]);
        types.extend([0, of(13, 0), 0]);
        types.extend([at("go"), of(12, 0), 5]);
        let length = u32::try_from(types.len() * 4).unwrap();
        let mut bytes = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        for word in [24, 0, length, length, u32::try_from(names.len()).unwrap()].iter().chain(&types) {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(names);
        bytes
    }

    #[test]
    fn fields_are_found_inside_of_members() {
        let btf = Btf::parse(small()).unwrap();
        assert_eq!(btf.field("task", &["info", "cpu"]), Some(Place { offset: 8, size: 4 }));
        assert_eq!(btf.field("task", &["pid"]), Some(Place { offset: 0, size: 4 }));
        assert_eq!(btf.field("task", &["info"]), None, "no number");
        assert_eq!(btf.field("task", &["cpu"]), None);
        assert_eq!(btf.find(Kind::Function, "go"), Some(6));
        assert_eq!(btf.find(Kind::Function, "g"), None);
        assert_eq!(btf.find(Kind::Typedef, "go"), None);
    }

    #[test]
    fn the_running_kernel_has_a_task() {
        let Ok(bytes) = std::fs::read(KERNEL_TYPES) else {
            return dwell_testing::skip!(
                "tracing",
                "the_running_kernel_has_a_task",
                "this kernel has no BTF"
            );
        };
        let btf = Btf::parse(bytes).unwrap();
        assert_eq!(btf.field("task_struct", &["pid"]).unwrap().size, 4);
        assert!(btf.find(Kind::Typedef, "btf_trace_sched_waking").is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(at in 0usize..200, byte: u8) {
            let mut bytes = small();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(btf) = Btf::parse(bytes) {
                let _ = btf.field("task", &["info", "cpu"]);
            }
        }
    }
}
