//! Numbers as tools write them, and nothing else: the standard library would take a plus sign.

use std::str::FromStr;

/// A number of digits only, without sign.
pub(crate) fn digits<T: FromStr>(text: &str) -> Option<T> {
    // An empty text has only digits, and is no number.
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// `0x1f`.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    let all = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    all.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
