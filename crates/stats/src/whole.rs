//! Whole numbers of real ones: their fraction is cut off, and what is outside of the range becomes the end of it that
//! is nearer. No number becomes 0.

/// A whole number, as of nanoseconds or of events.
#[allow(clippy::cast_possible_truncation)]
pub const fn whole(number: f64) -> u64 {
    number as u64
}

/// A place in a list, or a length of one.
#[allow(clippy::cast_possible_truncation)]
pub const fn place(number: f64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_saturate_and_lose_their_fraction() {
        assert_eq!([2.9, -1.5, 1e30, f64::NAN].map(whole), [2, 0, u64::MAX, 0]);
        assert_eq!([2.9, -1.5, 1e30, f64::NAN].map(place), [2, 0, usize::MAX, 0]);
    }
}
