//! A vector of 32-bit lanes, one setting each: what the kernels need of it, and a plain one for any CPU.

/// [`Lanes::forget`] where registers are few.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn forget(of: *const i32) {
    // SAFETY: no instruction at all; as the block is not marked `readonly`, the compiler has to assume that it
    // writes memory, and loads what it needs from there after it.
    unsafe { std::arch::asm!("/* {0} */", in(reg) of, options(nostack, preserves_flags)) }
}

/// A vector of 32-bit lanes.
///
/// Values live in `0..2^31` wherever they are compared, so that signed and unsigned order agree; only a product may
/// leave that range, and is brought back by the unsigned `min` before it is compared.
///
/// The constructors are unsafe, the operations are not: a value of the type exists only on a CPU that has its
/// instructions.
pub(super) trait Lanes: Copy {
    const WIDTH: usize;
    /// One answer per lane.
    type Mask: Copy;

    /// The same number in all lanes.
    ///
    /// # Safety
    /// The CPU has the instruction set of the type.
    unsafe fn splat(x: i32) -> Self;

    /// Lanes from memory.
    ///
    /// # Safety
    /// The CPU has the instruction set of the type, and `WIDTH` numbers can be read at `from`.
    unsafe fn load(from: *const i32) -> Self;

    /// Lanes to memory.
    ///
    /// # Safety
    /// `WIDTH` numbers can be written at `to`.
    unsafe fn store(self, to: *mut i32);

    /// Makes the compiler forget what it knows of the memory at `of`, so that constants stay memory operands instead
    /// of being hoisted into registers that then have to be spilt.
    #[inline(always)]
    fn forget(of: *const i32) {
        let _ = of;
    }

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    /// The low 32 bits of the products.
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Bits that differ.
    fn xor(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// Right by so many bits; 32 and more give 0.
    fn shr(self, bits: Self) -> Self;
    /// (`self` · `factor`) >> `bits` with a 64-bit product, all unsigned; `bits` is 31 to 62.
    fn mul_shr(self, factor: Self, bits: Self) -> Self;
    /// Signed `self > other`.
    fn gt(self, other: Self) -> Self::Mask;
    fn is_zero(self) -> Self::Mask;
    fn both(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// `a` without `b`.
    fn without(a: Self::Mask, b: Self::Mask) -> Self::Mask;
    /// One more where `at` holds.
    fn count(self, at: Self::Mask) -> Self;
    /// One less where `at` holds.
    fn uncount(self, at: Self::Mask) -> Self;
    /// `self + other` where `at` holds, else `self`.
    #[inline(always)]
    fn add_where(self, at: Self::Mask, other: Self) -> Self {
        self.add(other.keep(at))
    }
    /// Left by so many bits (at most 31) where `at` holds, else `self`.
    #[inline(always)]
    fn shl_where(self, at: Self::Mask, bits: Self) -> Self {
        self.shl(bits.keep(at))
    }
    /// Left by so many bits, at most 31.
    fn shl(self, bits: Self) -> Self;
    /// `other` where `at` holds and it is no less than `self`, else `self`.
    #[inline(always)]
    fn raise_where(self, at: Self::Mask, other: Self) -> Self {
        self.replace(at, other)
    }
    /// `other`, which is nowhere more than `self`, where `at` holds, else `self`.
    #[inline(always)]
    fn lower_where(self, at: Self::Mask, other: Self) -> Self {
        self.replace(at, other)
    }
    /// `other` where `at` holds, else `self`.
    fn replace(self, at: Self::Mask, other: Self) -> Self;
    /// `self` where `at` holds, else zero.
    fn keep(self, at: Self::Mask) -> Self;
    /// Whether all bits of all lanes are zero.
    fn all_zero(self) -> bool;
    /// Bit *i* for lane *i*.
    fn bits(at: Self::Mask) -> u64;
}

/// Operations of [`Lanes`] on two vectors, each of them one intrinsic.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($($name:ident = $of:ident;)*) => {
        $(#[inline(always)]
        fn $name(self, other: Self) -> Self {
            // SAFETY: there is a value of this type only where the CPU has its instructions, and the intrinsic touches no memory.
            Self(unsafe { $of(self.0, other.0) })
        })*
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use intrinsics;

/// Eight lanes in plain loops, which compilers turn into vector instructions of whatever CPU they compile for.
#[derive(Clone, Copy)]
pub(super) struct Plain([u32; 8]);

#[derive(Clone, Copy)]
pub(super) struct PlainMask([u32; 8]);

impl Plain {
    #[inline(always)]
    fn zip(self, other: Plain, f: impl Fn(u32, u32) -> u32) -> Plain {
        Plain(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

macro_rules! plain {
    ($($name:ident = $of:expr;)*) => {
        $(#[inline(always)]
        fn $name(self, other: Plain) -> Plain {
            self.zip(other, $of)
        })*
    };
}

impl Lanes for Plain {
    const WIDTH: usize = 8;
    type Mask = PlainMask;

    plain! {
        add = u32::wrapping_add;
        sub = u32::wrapping_sub;
        mul = u32::wrapping_mul;
        min = u32::min;
        max = u32::max;
        xor = |a, b| a ^ b;
        or = |a, b| a | b;
        shr = |a, bits| if bits < 32 { a >> bits } else { 0 };
    }

    #[inline(always)]
    unsafe fn splat(x: i32) -> Plain {
        Plain([x.cast_unsigned(); 8])
    }
    #[inline(always)]
    unsafe fn load(from: *const i32) -> Plain {
        // SAFETY: the caller says that eight numbers can be read there.
        Plain(unsafe { from.cast::<[u32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        // SAFETY: the caller says that eight numbers can be written there.
        unsafe { to.cast::<[u32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    fn mul_shr(self, factor: Plain, bits: Plain) -> Plain {
        Plain(std::array::from_fn(|i| {
            let product = u64::from(self.0[i]) * u64::from(factor.0[i]);
            u32::try_from((product >> bits.0[i]) & 0xffff_ffff).unwrap_or(0)
        }))
    }
    #[inline(always)]
    fn gt(self, other: Plain) -> PlainMask {
        PlainMask(self.zip(other, |a, b| if a.cast_signed() > b.cast_signed() { u32::MAX } else { 0 }).0)
    }
    #[inline(always)]
    fn is_zero(self) -> PlainMask {
        PlainMask(self.0.map(|a| if a == 0 { u32::MAX } else { 0 }))
    }
    #[inline(always)]
    fn both(a: PlainMask, b: PlainMask) -> PlainMask {
        PlainMask(std::array::from_fn(|i| a.0[i] & b.0[i]))
    }
    #[inline(always)]
    fn without(a: PlainMask, b: PlainMask) -> PlainMask {
        PlainMask(std::array::from_fn(|i| a.0[i] & !b.0[i]))
    }
    #[inline(always)]
    fn count(self, at: PlainMask) -> Plain {
        self.zip(Plain(at.0), u32::wrapping_sub)
    }
    #[inline(always)]
    fn uncount(self, at: PlainMask) -> Plain {
        self.zip(Plain(at.0), u32::wrapping_add)
    }
    #[inline(always)]
    fn shl(self, bits: Plain) -> Plain {
        self.zip(bits, |a, b| a << (b & 31))
    }
    #[inline(always)]
    fn replace(self, at: PlainMask, other: Plain) -> Plain {
        Plain(std::array::from_fn(|i| (other.0[i] & at.0[i]) | (self.0[i] & !at.0[i])))
    }
    #[inline(always)]
    fn keep(self, at: PlainMask) -> Plain {
        self.zip(Plain(at.0), |a, b| a & b)
    }
    #[inline(always)]
    fn all_zero(self) -> bool {
        self.0.iter().fold(0, |all, &a| all | a) == 0
    }
    #[inline(always)]
    fn bits(at: PlainMask) -> u64 {
        (0..8).map(|i| u64::from(at.0[i] & 1) << i).sum()
    }
}
