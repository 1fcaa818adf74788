//! Eight lanes in an AVX2 register.
//!
//! Every operation is one to three instructions (`mul_shr` seven), and each `unsafe` block of an operation rests on
//! the same ground: an [`Avx2`] comes from [`Lanes::splat`] or [`Lanes::load`] alone, whose callers vouch for the CPU,
//! and an intrinsic that touches no memory asks for nothing else.

use super::lanes::{self, Lanes, intrinsics};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256i);

/// All bits of a lane are set where it holds.
#[derive(Clone, Copy)]
pub(super) struct Mask(__m256i);

/// Hides from the compiler how a vector was made. It would turn an `and` with the result of a comparison, one
/// operation, into a blend, which is three on recent CPUs; and a shift, which it does not trust to give zero
/// for 32 bits and more, into a shift, a comparison and a blend.
#[inline]
#[target_feature(enable = "avx2")]
fn hide(vector: __m256i) -> __m256i {
    let mut vector = vector;
    // SAFETY: no instruction at all, and nothing but the register is named.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) vector, options(pure, nomem, nostack, preserves_flags));
    }
    vector
}

impl Lanes for Avx2 {
    const WIDTH: usize = 8;
    type Mask = Mask;

    intrinsics! {
        add = _mm256_add_epi32;
        sub = _mm256_sub_epi32;
        mul = _mm256_mullo_epi32;
        min = _mm256_min_epu32;
        max = _mm256_max_epu32;
        xor = _mm256_xor_si256;
        or = _mm256_or_si256;
    }

    #[inline(always)]
    unsafe fn splat(x: i32) -> Avx2 {
        // SAFETY: the caller vouches for AVX2.
        Avx2(unsafe { _mm256_set1_epi32(x) })
    }
    #[inline(always)]
    unsafe fn load(from: *const i32) -> Avx2 {
        // SAFETY: the caller vouches for AVX2 and for eight readable numbers; the load needs no alignment.
        Avx2(unsafe { _mm256_loadu_si256(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        // SAFETY: the caller vouches for eight writable numbers; the store needs no alignment.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
    #[inline(always)]
    fn forget(of: *const i32) {
        lanes::forget(of);
    }
    #[inline(always)]
    fn shr(self, bits: Avx2) -> Avx2 {
        // SAFETY: see the module.
        Avx2(unsafe { hide(_mm256_srlv_epi32(self.0, bits.0)) })
    }
    #[inline(always)]
    fn mul_shr(self, factor: Avx2, bits: Avx2) -> Avx2 {
        // SAFETY: see the module. Even lanes first, then odd ones moved into their place and back.
        Avx2(unsafe {
            let low = _mm256_set1_epi64x(0xffff_ffff);
            let even = _mm256_mul_epu32(self.0, factor.0);
            let odd = _mm256_mul_epu32(_mm256_srli_epi64(self.0, 32), _mm256_srli_epi64(factor.0, 32));
            let even = _mm256_srlv_epi64(even, _mm256_and_si256(bits.0, low));
            let odd = _mm256_srlv_epi64(odd, _mm256_srli_epi64(bits.0, 32));
            _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0b1010_1010)
        })
    }
    #[inline(always)]
    fn gt(self, other: Avx2) -> Mask {
        // SAFETY: see the module.
        Mask(unsafe { hide(_mm256_cmpgt_epi32(self.0, other.0)) })
    }
    #[inline(always)]
    fn is_zero(self) -> Mask {
        // SAFETY: see the module.
        Mask(unsafe { _mm256_cmpeq_epi32(self.0, _mm256_setzero_si256()) })
    }
    #[inline(always)]
    fn both(a: Mask, b: Mask) -> Mask {
        // SAFETY: see the module.
        Mask(unsafe { _mm256_and_si256(a.0, b.0) })
    }
    #[inline(always)]
    fn without(a: Mask, b: Mask) -> Mask {
        // SAFETY: see the module.
        Mask(unsafe { _mm256_andnot_si256(b.0, a.0) })
    }
    #[inline(always)]
    fn count(self, at: Mask) -> Avx2 {
        // SAFETY: see the module. A mask that holds is -1.
        Avx2(unsafe { _mm256_sub_epi32(self.0, at.0) })
    }
    #[inline(always)]
    fn uncount(self, at: Mask) -> Avx2 {
        // SAFETY: see the module. Likewise.
        Avx2(unsafe { _mm256_add_epi32(self.0, at.0) })
    }
    #[inline(always)]
    fn shl(self, bits: Avx2) -> Avx2 {
        // SAFETY: see the module.
        Avx2(unsafe { hide(_mm256_sllv_epi32(self.0, bits.0)) })
    }
    #[inline(always)]
    fn raise_where(self, at: Mask, other: Avx2) -> Avx2 {
        // SAFETY: see the module. Cheaper than a blend, which is up to three operations.
        Avx2(unsafe { _mm256_max_epu32(self.0, _mm256_and_si256(at.0, other.0)) })
    }
    #[inline(always)]
    fn lower_where(self, at: Mask, other: Avx2) -> Avx2 {
        // SAFETY: see the module. Likewise.
        Avx2(unsafe { _mm256_max_epu32(_mm256_andnot_si256(at.0, self.0), other.0) })
    }
    #[inline(always)]
    fn replace(self, at: Mask, other: Avx2) -> Avx2 {
        // SAFETY: see the module.
        Avx2(unsafe { _mm256_blendv_epi8(self.0, other.0, at.0) })
    }
    #[inline(always)]
    fn keep(self, at: Mask) -> Avx2 {
        // SAFETY: see the module.
        Avx2(unsafe { _mm256_and_si256(at.0, self.0) })
    }
    #[inline(always)]
    fn all_zero(self) -> bool {
        // SAFETY: see the module.
        unsafe { _mm256_testz_si256(self.0, self.0) == 1 }
    }
    #[inline(always)]
    fn bits(at: Mask) -> u64 {
        // SAFETY: see the module.
        let bits = unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(at.0)) };
        u64::from(bits.cast_unsigned())
    }
}
