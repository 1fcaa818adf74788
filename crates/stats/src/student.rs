//! The interval of a mean by Student's distribution: for few values whose errors are about normal.

use crate::interval::Interval;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The weighted mean of values whose variances are in inverse proportion to their weights, with its interval
/// at this confidence. Of one value the limits are infinite. `None` without values, or without a positive
/// weight.
pub fn student_mean(values: &[f64], weights: &[f64], confidence: f64) -> Option<Interval> {
    let weighted = || values.iter().zip(weights);
    let all: f64 = weighted().map(|(_, weight)| weight).sum();
    if !(all > 0.0 && all.is_finite()) {
        return None;
    }
    let value = weighted().map(|(value, weight)| weight * value).sum::<f64>() / all;
    let degrees = weighted().count().saturating_sub(1) as f64;
    let Ok(student) = StudentsT::new(0.0, 1.0, degrees) else { return Some(Interval::unknown(value)) };
    let squares: f64 = weighted().map(|(one, weight)| weight * (one - value).powi(2)).sum();
    let half = student.inverse_cdf(f64::midpoint(1.0, confidence)) * (squares / degrees / all).sqrt();
    Some(Interval { low: value - half, value, high: value + half })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix64;

    #[test]
    fn with_equal_weights_it_is_the_textbooks() {
        // Mean 3, standard deviation sqrt(2.5), t of 4 degrees 2.776.
        let interval = student_mean(&[1.0, 2.0, 3.0, 4.0, 5.0], &[7.0; 5], 0.95).unwrap();
        assert!((interval.value - 3.0).abs() < 1e-12, "{interval:?}");
        assert!((interval.high - 3.0 - 2.776 * (2.5f64 / 5.0).sqrt()).abs() < 1e-3, "{interval:?}");
        assert_eq!(student_mean(&[4.0], &[1.0], 0.95), Some(Interval::unknown(4.0)));
        assert_eq!(student_mean(&[], &[], 0.95), None);
        assert_eq!(student_mean(&[1.0, 2.0], &[0.0, 0.0], 0.95), None);
    }

    /// A value of weight 8 is the mean of eight values of weight 1.
    #[test]
    fn it_covers_the_mean_as_often_as_it_should() {
        let mut random = SplitMix64::new(1);
        let weights = [1.0, 1.0, 1.0, 2.0, 4.0, 8.0];
        let mut covered = 0;
        for _ in 0..2_000 {
            let values = weights.map(|weight: f64| {
                let normal: f64 = (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum();
                (normal - 6.0) / weight.sqrt()
            });
            covered += u32::from(student_mean(&values, &weights, 0.9).unwrap().contains(0.0));
        }
        assert!((1_740..=1_860).contains(&covered), "{covered}");
    }
}
