//! Text that other people wrote, made harmless for terminals and spreadsheets.
//!
//! Names of processes and idlers, texts out of recordings, plans, traces, QEMU and libvirt may hold anything.
//! A terminal obeys control characters, and shows text with directional marks in another order than it has; a
//! spreadsheet computes a cell that begins as a formula.

use serde::Serialize;
use std::io::{self, Write};

/// The longest text of a table's cell for people \[characters\].
const LONGEST_CELL: usize = 320;

/// Whether a character steers a terminal, changes the direction of text, breaks a line or cannot be seen.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// One line, with escapes such as `\u{1b}` in place of harmful characters.
pub fn line(text: &str) -> String {
    escape(text, |_| false)
}

/// As [`line()`], but lines are kept.
pub fn lines(text: &str) -> String {
    escape(text, |c| c == '\n')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) && !keep(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// As [`line()`], of a length that fits a table; what is left out is shown as `…`.
pub fn cell(text: &str) -> String {
    match text.char_indices().nth(LONGEST_CELL) {
        Some((at, _)) => line(text.get(..at).unwrap_or_default()) + "…",
        None => line(text),
    }
}

/// As [`line()`], with an apostrophe before what a spreadsheet would compute. Numbers stay numbers.
pub fn csv(text: &str) -> String {
    let shown = line(text);
    let computes = shown.starts_with(['=', '+', '-', '@']) && shown.parse::<f64>().is_err();
    if computes { format!("'{shown}") } else { shown }
}

/// Indented JSON, exact: harmful characters are escaped.
///
/// # Errors
/// The error of `out`, or that of a value that JSON cannot hold.
pub fn write_json(mut out: impl Write, value: &impl Serialize) -> io::Result<()> {
    out.write_all(json(&serde_json::to_string_pretty(value)?, |_| false).as_bytes())
}

/// JSON with `\u` escapes, which mean the same, in place of harmful characters and of `others`.
pub(crate) fn json(text: &str, others: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        // Outside of strings JSON has no harmful character but line breaks, and in strings those are escaped already.
        match others(c) || (c > ' ' && is_harmful(c)) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped += &format!("\\u{unit:04x}")),
            false => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_steers_is_shown() {
        for (text, shown) in [
            ("vcpu0/kvm", "vcpu0/kvm"),
            ("Grüße 日本", "Grüße 日本"),
            ("\x1b[2J\x1b]0;x\x07", "\\u{1b}[2J\\u{1b}]0;x\\u{7}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
            ("a\u{2028}b\r\nc", "a\\u{2028}b\\r\\nc"),
            ("\u{200b}\u{feff}", "\\u{200b}\\u{feff}"),
        ] {
            assert_eq!(line(text), shown);
        }
        assert_eq!(lines("a\n\x1bb\r"), "a\n\\u{1b}b\\r");
        assert_eq!(cell(&"x".repeat(1_000_000)).chars().count(), 321);
    }

    #[test]
    fn cells_are_not_formulas_and_numbers_stay() {
        for (text, shown) in [
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("+1+1", "'+1+1"),
            ("@SUM(1)", "'@SUM(1)"),
            ("-x", "'-x"),
            ("-2", "-2"),
            ("-1.5e3", "-1.5e3"),
            ("\t=1", "\\t=1"),
            ("cpu0", "cpu0"),
        ] {
            assert_eq!(csv(text), shown);
        }
    }

    #[test]
    fn json_is_indented_as_usual_and_exact() {
        let value =
            serde_json::json!({"a": [1, -2.5, "\u{9b}\u{202e}\u{e0001}x\"\\\u{1b}"], "b": {}, "c": []});
        let mut json = vec![];
        write_json(&mut json, &value).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert!(json.contains("\\u009b\\u202e\\udb40\\udc01x"), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), value);
        let plain = serde_json::json!({"a": [1, {"b": null}], "c": "d"});
        let mut json = vec![];
        write_json(&mut json, &plain).unwrap();
        assert_eq!(String::from_utf8(json).unwrap(), serde_json::to_string_pretty(&plain).unwrap());
    }

    proptest! {
        #[test]
        fn nothing_harmful_is_left(text in any::<String>()) {
            prop_assert!(!line(&text).chars().any(is_harmful));
            prop_assert!(!lines(&text).chars().any(|c| is_harmful(c) && c != '\n'));
            prop_assert!(!csv(&text).starts_with(['=', '@']));
            let mut json = vec![];
            write_json(&mut json, &[&text]).unwrap();
            let json = String::from_utf8(json).unwrap();
            prop_assert!(!json.chars().any(|c| is_harmful(c) && c != '\n'));
            prop_assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [text]);
        }
    }
}
