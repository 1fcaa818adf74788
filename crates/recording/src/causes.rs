//! Errors for people.

use std::error::Error;

/// An error and its causes on one line, each once: many an error already has the text of its cause.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut line = String::new();
    for error in std::iter::successors(Some(error), |error| (**error).source()) {
        let text = error.to_string().replace('\n', " ");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::with_causes;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Outer(&'static str, #[source] std::fmt::Error);

    #[test]
    fn each_cause_is_there_once() {
        let cause = std::fmt::Error.to_string();
        assert_eq!(with_causes(&std::fmt::Error), cause);
        assert_eq!(with_causes(&Outer("cannot\nprint", std::fmt::Error)), format!("cannot print: {cause}"));
        let has_it = format!("cannot print, {cause}").leak();
        assert_eq!(with_causes(&Outer(has_it, std::fmt::Error)), *has_it);
    }
}
