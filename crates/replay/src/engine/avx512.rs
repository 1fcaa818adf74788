//! Sixteen lanes in an AVX-512 register, with masks in registers of their own.
//!
//! Only AVX-512F is asked for. Each `unsafe` block of an operation rests on the same ground: an [`Avx512`] comes from
//! [`Lanes::splat`] or [`Lanes::load`] alone, whose callers vouch for the CPU, and an intrinsic that touches no memory
//! asks for nothing else.

use super::lanes::{self, Lanes, intrinsics};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512i);

/// Hides from the compiler how a vector was made: it does not trust a shift to give zero for 32 bits and
/// more, and would compare the number of bits once more.
#[inline]
#[target_feature(enable = "avx512f")]
fn hide(vector: __m512i) -> __m512i {
    let mut vector = vector;
    // SAFETY: no instruction at all, and nothing but the register is named.
    unsafe {
        std::arch::asm!("/* {0} */", inout(zmm_reg) vector, options(pure, nomem, nostack, preserves_flags));
    }
    vector
}

impl Lanes for Avx512 {
    const WIDTH: usize = 16;
    type Mask = __mmask16;

    intrinsics! {
        add = _mm512_add_epi32;
        sub = _mm512_sub_epi32;
        mul = _mm512_mullo_epi32;
        min = _mm512_min_epu32;
        max = _mm512_max_epu32;
        xor = _mm512_xor_si512;
        or = _mm512_or_si512;
        shr = _mm512_srlv_epi32;
    }

    #[inline(always)]
    unsafe fn splat(x: i32) -> Avx512 {
        // SAFETY: the caller vouches for AVX-512F.
        Avx512(unsafe { _mm512_set1_epi32(x) })
    }
    #[inline(always)]
    unsafe fn load(from: *const i32) -> Avx512 {
        // SAFETY: the caller vouches for AVX-512F and for sixteen readable numbers; the load needs no alignment.
        Avx512(unsafe { _mm512_loadu_si512(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        // SAFETY: the caller vouches for sixteen writable numbers; the store needs no alignment.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
    #[inline(always)]
    fn forget(of: *const i32) {
        lanes::forget(of);
    }
    #[inline(always)]
    fn mul_shr(self, factor: Avx512, bits: Avx512) -> Avx512 {
        // SAFETY: see the module. Even lanes first, then odd ones moved into their place and back.
        Avx512(unsafe {
            let low = _mm512_set1_epi64(0xffff_ffff);
            let even = _mm512_mul_epu32(self.0, factor.0);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(self.0), _mm512_srli_epi64::<32>(factor.0));
            let even = _mm512_srlv_epi64(even, _mm512_and_si512(bits.0, low));
            let odd = _mm512_srlv_epi64(odd, _mm512_srli_epi64::<32>(bits.0));
            _mm512_mask_mov_epi32(even, 0b1010_1010_1010_1010, _mm512_slli_epi64::<32>(odd))
        })
    }
    #[inline(always)]
    fn gt(self, other: Avx512) -> __mmask16 {
        // SAFETY: see the module.
        unsafe { _mm512_cmpgt_epi32_mask(self.0, other.0) }
    }
    #[inline(always)]
    fn is_zero(self) -> __mmask16 {
        // SAFETY: see the module.
        unsafe { _mm512_testn_epi32_mask(self.0, self.0) }
    }
    #[inline(always)]
    fn both(a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }
    #[inline(always)]
    fn without(a: __mmask16, b: __mmask16) -> __mmask16 {
        a & !b
    }
    #[inline(always)]
    fn count(self, at: __mmask16) -> Avx512 {
        // SAFETY: see the module.
        Avx512(unsafe { _mm512_mask_sub_epi32(self.0, at, self.0, _mm512_set1_epi32(-1)) })
    }
    #[inline(always)]
    fn uncount(self, at: __mmask16) -> Avx512 {
        // SAFETY: see the module.
        Avx512(unsafe { _mm512_mask_add_epi32(self.0, at, self.0, _mm512_set1_epi32(-1)) })
    }
    #[inline(always)]
    fn add_where(self, at: __mmask16, other: Avx512) -> Avx512 {
        // SAFETY: see the module.
        Avx512(unsafe { _mm512_mask_add_epi32(self.0, at, self.0, other.0) })
    }
    #[inline(always)]
    fn shl_where(self, at: __mmask16, bits: Avx512) -> Avx512 {
        // SAFETY: see the module.
        Avx512(unsafe { _mm512_mask_sllv_epi32(self.0, at, self.0, bits.0) })
    }
    #[inline(always)]
    fn shl(self, bits: Avx512) -> Avx512 {
        // SAFETY: see the module.
        Avx512(unsafe { hide(_mm512_sllv_epi32(self.0, bits.0)) })
    }
    #[inline(always)]
    fn replace(self, at: __mmask16, other: Avx512) -> Avx512 {
        // SAFETY: see the module.
        Avx512(unsafe { _mm512_mask_mov_epi32(self.0, at, other.0) })
    }
    #[inline(always)]
    fn keep(self, at: __mmask16) -> Avx512 {
        // SAFETY: see the module.
        Avx512(unsafe { _mm512_maskz_mov_epi32(at, self.0) })
    }
    #[inline(always)]
    fn all_zero(self) -> bool {
        // SAFETY: see the module.
        unsafe { _mm512_test_epi32_mask(self.0, self.0) == 0 }
    }
    #[inline(always)]
    fn bits(at: __mmask16) -> u64 {
        u64::from(at)
    }
}
