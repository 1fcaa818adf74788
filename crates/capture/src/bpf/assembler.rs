//! An assembler for the few instructions that the programs consist of.

/// One instruction, as the kernel takes it (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// A register. A call takes its arguments in `R1` to `R5`, which it destroys, and returns in `R0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Register {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    /// The end of the stack, which has 512 bytes below it.
    Frame = 10,
}

/// How many bytes are loaded or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    One = 0x10,
    Two = 0x08,
    Four = 0x00,
    Eight = 0x18,
}

impl Width {
    /// Of a field of so many bytes.
    pub(super) fn of(bytes: u16) -> Option<Width> {
        Some(match bytes {
            1 => Width::One,
            2 => Width::Two,
            4 => Width::Four,
            8 => Width::Eight,
            _ => return None,
        })
    }
}

/// Functions of the kernel, by their number (`enum bpf_func_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Helper {
    MapLookup = 1,
    TimeNs = 5,
    Cpu = 8,
    ProcessAndThread = 14,
    RingReserve = 131,
    RingSubmit = 132,
}

/// A place that is jumped to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// A program that is being written.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    instructions: Vec<Instruction>,
    /// Where each label is.
    labels: Vec<usize>,
    /// Which instructions jump, and to which label.
    jumps: Vec<(usize, Label)>,
}

const MOVE: u8 = 0xb7;
const ADD: u8 = 0x07;
/// The second operand is a register, no immediate number.
const FROM_REGISTER: u8 = 0x08;
const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
const STORE_NUMBER: u8 = 0x62;
const ATOMIC_ADD: u8 = 0xdb;
const LOAD_MAP: u8 = 0x18;
/// The source register of `LOAD_MAP` whose number is a map's descriptor.
const MAP_BY_DESCRIPTOR: u8 = 1;
/// The same for the address of the only value of that map.
const VALUE_BY_DESCRIPTOR: u8 = 2;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const JUMP: u8 = 0x05;
const JUMP_IF_ZERO: u8 = 0x15;

impl Assembler {
    fn put(&mut self, code: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        self.instructions.push(Instruction { code, registers: to as u8 | from << 4, offset, immediate });
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.put(MOVE | FROM_REGISTER, to, from as u8, 0, 0);
    }

    /// `to = number`
    pub(super) fn set(&mut self, to: Register, number: i32) {
        self.put(MOVE, to, 0, 0, number);
    }

    /// `to += number`
    pub(super) fn add(&mut self, to: Register, number: i32) {
        self.put(ADD, to, 0, 0, number);
    }

    /// `to` = what is `offset` bytes behind `base`
    pub(super) fn load(&mut self, width: Width, to: Register, base: Register, offset: i16) {
        self.put(LOAD | width as u8, to, base as u8, offset, 0);
    }

    /// What is `offset` bytes behind `base` = `from`
    pub(super) fn store(&mut self, width: Width, base: Register, offset: i16, from: Register) {
        self.put(STORE | width as u8, base, from as u8, offset, 0);
    }

    /// What is `offset` bytes behind `base` = `number`
    pub(super) fn store_number(&mut self, width: Width, base: Register, offset: i16, number: i32) {
        self.put(STORE_NUMBER | width as u8, base, 0, offset, number);
    }

    /// Adds `from` to the eight bytes at `base`, at once for all CPUs.
    pub(super) fn add_atomically(&mut self, base: Register, from: Register) {
        self.put(ATOMIC_ADD, base, from as u8, 0, 0);
    }

    /// `to` = the map with this descriptor
    pub(super) fn load_map(&mut self, to: Register, descriptor: i32) {
        self.put(LOAD_MAP, to, MAP_BY_DESCRIPTOR, 0, descriptor);
        // A number of 64 bits takes two instructions.
        self.put(0, Register::R0, 0, 0, 0);
    }

    /// `to` = where the only value of the map with this descriptor is
    pub(super) fn load_value(&mut self, to: Register, descriptor: i32) {
        self.put(LOAD_MAP, to, VALUE_BY_DESCRIPTOR, 0, descriptor);
        // The upper half is an offset into the value.
        self.put(0, Register::R0, 0, 0, 0);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.put(CALL, Register::R0, 0, 0, helper as i32);
    }

    pub(super) fn exit(&mut self) {
        self.put(EXIT, Register::R0, 0, 0, 0);
    }

    /// A label that is not placed yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    /// Places a label here.
    pub(super) fn place(&mut self, label: Label) {
        if let Some(at) = self.labels.get_mut(label.0) {
            *at = self.instructions.len();
        }
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(JUMP, Register::R0, 0, 0, 0);
    }

    pub(super) fn jump_if_zero(&mut self, register: Register, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(JUMP_IF_ZERO, register, 0, 0, 0);
    }

    /// The program, its jumps resolved.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in &self.jumps {
            let to = self.labels.get(label.0).copied().unwrap_or(0);
            // From the instruction after the jump; programs have less than a hundred instructions.
            let distance = i64::try_from(to).unwrap_or(0) - i64::try_from(*at).unwrap_or(0) - 1;
            if let Some(instruction) = self.instructions.get_mut(*at) {
                instruction.offset = i16::try_from(distance).unwrap_or(0);
            }
        }
        self.instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `llvm-mc` and the kernel's documentation of the instruction set have them.
    #[test]
    fn instructions_have_the_kernels_encoding() {
        let mut assembler = Assembler::default();
        let end = assembler.label();
        assembler.copy(Register::R6, Register::R1);
        assembler.load(Width::Eight, Register::R1, Register::R6, 8);
        assembler.jump_if_zero(Register::R1, end);
        assembler.store(Width::Four, Register::Frame, -4, Register::R1);
        assembler.add_atomically(Register::R7, Register::R1);
        assembler.load_map(Register::R2, 77);
        assembler.place(end);
        assembler.set(Register::R0, 0);
        assembler.exit();
        let words: Vec<(u8, u8, i16, i32)> = assembler
            .finish()
            .iter()
            .map(|one| (one.code, one.registers, one.offset, one.immediate))
            .collect();
        let expected = [
            (0xbf, 0x16, 0, 0),
            (0x79, 0x61, 8, 0),
            (0x15, 0x01, 4, 0),
            (0x63, 0x1a, -4, 0),
            (0xdb, 0x17, 0, 0),
            (0x18, 0x12, 0, 77),
            (0x00, 0x00, 0, 0),
            (0xb7, 0x00, 0, 0),
            (0x95, 0x00, 0, 0),
        ];
        assert_eq!(words, expected);
    }
}
