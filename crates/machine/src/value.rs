//! The value in a parameter's file: the one parser.

/// What a parameter's file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `Y` or `N`.
    Switch(bool),
    Number(i64),
    /// Anything else, without the white space around it.
    Text(String),
}

impl Value {
    /// Reads what the kernel prints and people write: `Y`, `N` (either case), numbers, text.
    pub fn parse(text: &str) -> Value {
        match text.trim() {
            "Y" | "y" => Value::Switch(true),
            "N" | "n" => Value::Switch(false),
            other => other.parse().map_or_else(|_| Value::Text(other.to_owned()), Value::Number),
        }
    }

    /// It as a number, switches being 0 and 1; `None` for text.
    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Switch(on) => Some(i64::from(*on)),
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        }
    }

    /// Whether two texts are the same value: `Y` and `1` are.
    pub fn same(a: &str, b: &str) -> bool {
        let (a, b) = (Value::parse(a), Value::parse(b));
        match (a.number(), b.number()) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_kernel_prints_them() {
        let number = |text| Value::parse(text).number();
        assert_eq!(Value::parse("Y\n"), Value::Switch(true));
        assert_eq!((number("Y"), number("N"), number("n")), (Some(1), Some(0), Some(0)));
        assert_eq!((number("-1"), number("4294967295\n")), (Some(-1), Some(4_294_967_295)));
        assert_eq!(Value::parse("(null)"), Value::Text("(null)".to_owned()));
        assert!(Value::same("Y", "1\n") && Value::same("7", " 7 ") && Value::same("auto", "auto\n"));
        assert!(!Value::same("Y", "0") && !Value::same("7", "seven"));
    }
}
