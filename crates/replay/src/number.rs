//! Numbers for people: three digits, a fitting unit, groups of three.

/// A span of time with three significant digits and a fitting unit: `9.05 us`, `1.50 s`, `2 h 3 min`.
pub fn duration(ns: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")];
    if ns >= 600e9 {
        let minutes = (ns / 60e9).round();
        let hours = (minutes / 60.0).floor();
        return if hours > 0.0 {
            format!("{} h {} min", rounded(hours), minutes - hours * 60.0)
        } else {
            format!("{minutes} min")
        };
    }
    if ns == 0.0 {
        return "0".to_owned();
    }
    // 999.9 ns rounds into the next unit.
    let (scale, unit) =
        UNITS.into_iter().find(|(scale, _)| ns.abs() >= 0.9995 * scale).unwrap_or((1.0, "ns"));
    let value = ns / scale;
    let whole = unit == "ns" && value.fract() == 0.0;
    format!("{} {unit}", if whole { format!("{value}") } else { significant(value) })
}

/// Three significant digits, no exponent, and no sign of nothing.
fn significant(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 999.5 {
        return rounded(value);
    }
    let digits = match magnitude {
        m if m >= 99.95 => 0,
        m if m >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    match text.strip_prefix('-') {
        Some(rest) if rest.bytes().all(|byte| matches!(byte, b'0' | b'.')) => rest.to_owned(),
        _ => text,
    }
}

/// A share in percent: `0.02 %`, `12.3 %`.
pub fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0))
}

/// A ratio such as cost over optimum: `1.08`, `12.3`.
pub fn ratio(ratio: f64) -> String {
    significant(ratio)
}

/// A number rounded to a whole one: `-1,273`.
pub fn rounded(number: f64) -> String {
    // Saturates, which is what is wanted of a number beyond all meaning.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = count(number.abs().round() as u128);
    if number.round() < 0.0 { format!("-{whole}") } else { whole }
}

/// A whole number in groups of three: `1,234,567`.
pub fn count(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How many of a thing there are: `1 idler`, `1,200 idlers`.
pub fn number_of(number: u128, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits_and_change_units() {
        for (ns, text) in [
            (0.0, "0"),
            (1.0, "1 ns"),
            (0.25, "0.25 ns"),
            (999.0, "999 ns"),
            (999.9, "1.00 us"),
            (1_000.0, "1.00 us"),
            (12_345.0, "12.3 us"),
            (200_000.0, "200 us"),
            (999_999.0, "1.00 ms"),
            (1.5e9, "1.50 s"),
            (599e9, "599 s"),
            (7_380e9, "2 h 3 min"),
            (660e9, "11 min"),
            (7_200_000e9, "2,000 h 0 min"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(number_of(0, "VM"), "0 VMs");
        assert_eq!(number_of(1, "VM"), "1 VM");
        assert_eq!(number_of(1_200, "VM"), "1,200 VMs");
        assert_eq!(rounded(-1_273.4), "-1,273");
        assert_eq!(rounded(-0.4), "0");
        assert_eq!(rounded(1_999.5), "2,000");
        assert_eq!(duration(-1_500.0), "-1.50 us");
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!(percent(-0.05), "-5.00 %");
        assert_eq!(percent(-0.000_01), "0.00 %");
        assert_eq!(percent(0.0002), "0.02 %");
        assert_eq!(ratio(1.0849), "1.08");
        assert_eq!(ratio(9.999), "10.0");
        assert_eq!(ratio(999.6), "1,000");
        assert_eq!(percent(28.83), "2,883 %");
        assert_eq!(percent(-28.83), "-2,883 %");
    }
}
