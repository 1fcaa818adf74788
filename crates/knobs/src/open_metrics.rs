//! One number from a text of metrics, as OpenMetrics and Prometheus's older text format have it.
//!
//! A program's own counter is the best measure of the work that it does. Of the text only lines of samples are
//! read: `name{label="value",…} number [time]`. Comments, types and units are not.

/// Why there is no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricError {
    /// No sample has the name.
    #[error("no metric `{0}`")]
    Absent(String),
    /// A value is not a number.
    #[error("the value of `{name}` is not a number: `{value}`")]
    NotANumber {
        name: String,
        /// Its value, cut after 40 characters.
        value: String,
    },
}

/// The sum over the series that a name means, as a user types it: all of a metric, such as `http_requests_total`; or one
/// series with its labels, as it is in the text.
///
/// # Errors
/// [`MetricError`] if there is none, or one without a finite value.
pub fn sum(name: &str, text: &str) -> Result<f64, MetricError> {
    let wanted = name.trim();
    let samples = text.lines().filter_map(sample);
    let mut values = samples.filter(|(series, name, _)| wanted == *series || wanted == *name).peekable();
    if values.peek().is_none() {
        return Err(MetricError::Absent(wanted.to_owned()));
    }
    values.try_fold(0.0, |sum, (series, _, value)| match value.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(sum + number),
        _ => {
            Err(MetricError::NotANumber { name: series.to_owned(), value: value.chars().take(40).collect() })
        }
    })
}

/// Series, name and value of a line; `None`: it is not a sample.
fn sample(line: &str) -> Option<(&str, &str, &str)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let name_ends = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let name = &line[..name_ends];
    let series_ends = match line[name_ends..].starts_with('{') {
        true => name_ends + closing_brace(&line[name_ends..])? + 1,
        false => name_ends,
    };
    let value = line[series_ends..].split_whitespace().next()?;
    Some((&line[..series_ends], name, value))
}

/// Where the labels end: at the first brace that is not within quotes.
fn closing_brace(labels: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    labels.char_indices().find_map(|(at, c)| {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return Some(at),
            _ => {}
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "# HELP served_total Requests.\n# TYPE served_total counter\n\
                        served_total{code=\"200\",path=\"/a b}\\\"\"} 12 1700000000\n\
                        served_total{code=\"500\"} 3\n  plain 1.5e3\nserved_totals 99\nnothing NaN\n# EOF\n";

    #[test]
    fn a_name_is_summed_up_and_a_series_is_one() {
        let sum = |name: &str| super::sum(name, TEXT);
        assert_eq!(sum("served_total"), Ok(15.0));
        assert_eq!(sum(" served_total{code=\"500\"} "), Ok(3.0));
        assert_eq!(sum("served_total{code=\"200\",path=\"/a b}\\\"\"}"), Ok(12.0));
        assert_eq!(sum("plain"), Ok(1_500.0));
        assert_eq!(sum("served"), Err(MetricError::Absent("served".to_owned())));
        assert_eq!(sum("nothing").unwrap_err().to_string(), "the value of `nothing` is not a number: `NaN`");
    }

    proptest! {
        /// What is written as a sample is read again, whatever its labels are.
        #[test]
        fn samples_are_read_again(
            samples in prop::collection::vec(("[^\n\r]{0,12}", 0u32..1_000_000), 1..20),
        ) {
            let quoted = |label: &str| label.replace('\\', "\\\\").replace('"', "\\\"");
            let lines = samples.iter().map(|(label, value)| format!("x_total{{l=\"{}\"}} {value}\n", quoted(label)));
            let text: String = lines.collect();
            let sum: f64 = samples.iter().map(|(_, value)| f64::from(*value)).sum();
            prop_assert_eq!(super::sum("x_total", &text), Ok(sum));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "(?s).{0,200}", name in ".{0,10}") {
            let _ = sum(&name, &text);
        }
    }
}
