use dwell_replay::number;
use dwell_stats::whole::place;

/// A logarithmic histogram as text: one line for each bucket from the first to the last that holds anything, with its
/// lower end, number, share, share of it and all before it, and a bar. After zeros, of which there may be one
/// by chance, the next line is the next that holds anything. `buckets[0]` counts zeros, `buckets[k]` lengths
/// from 2^(k-1) to 2^k - 1 ns.
pub fn histogram(buckets: &[u64]) -> String {
    const WIDTH: f64 = 36.0;
    let held = |b: &u64| *b > 0;
    let (Some(first), Some(last)) = (buckets.iter().position(held), buckets.iter().rposition(held)) else {
        return String::new();
    };
    let after_zeros = buckets.iter().skip(1).position(held).map_or(1, |place| place + 1);
    let total: u64 = buckets.iter().sum();
    let most = buckets.iter().copied().max().unwrap_or(1);
    let mut text = String::new();
    let mut so_far = 0;
    for (bucket, &episodes) in buckets.iter().enumerate().take(last + 1).skip(first) {
        if first == 0 && (1..after_zeros).contains(&bucket) {
            continue;
        }
        let from = if bucket == 0 { 0.0 } else { 2f64.powi(i32::try_from(bucket - 1).unwrap_or(i32::MAX)) };
        let bar = bar(episodes as f64 / most as f64 * WIDTH);
        so_far += episodes;
        let line = format!(
            "{:>10}  {:>12}  {:>7}  {:>7}  {bar}",
            number::duration(from),
            number::count(u128::from(episodes)),
            number::percent(episodes as f64 / total as f64),
            number::percent(so_far as f64 / total as f64),
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A bar of eighths of a character; anything that is there at all is seen.
fn bar(length: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    // At most a few hundred eighths, and never negative.
    let eighths = if length > 0.0 { place((length * 8.0).round().max(1.0)) } else { 0 };
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_buckets_between_are_shown_and_outside_are_not() {
        let text = histogram(&[0, 0, 3, 0, 1, 0]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("      2 ns             3   75.0 %   75.0 %  █"), "{}", lines[0]);
        assert_eq!(lines[1], "      4 ns             0   0.00 %   75.0 %");
        assert_eq!(histogram(&[0; 8]), "");
        let zeros = histogram(&[1, 0, 0, 0, 2, 0, 1]);
        let begins: Vec<&str> = zeros.lines().map(|line| line[..10].trim()).collect();
        assert_eq!(begins, ["0", "8 ns", "16 ns", "32 ns"]);
        assert_eq!(histogram(&[3, 0]).lines().count(), 1);
    }
}
