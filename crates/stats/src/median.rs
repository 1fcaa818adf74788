//! The median.

/// The median; of an even number of values the mean of the middle two. `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let at = values.len() / 2;
    match values.len() % 2 {
        1 => values.get(at).copied(),
        _ => Some(f64::midpoint(*values.get(at.checked_sub(1)?)?, *values.get(at)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_middle_one_or_the_mean_of_the_middle_two() {
        assert_eq!(
            [vec![], vec![7.0], vec![9.0, 1.0, 3.0], vec![4.0, 1.0, 9.0, 2.0]].map(median),
            [None, Some(7.0), Some(3.0), Some(3.0)]
        );
    }
}
