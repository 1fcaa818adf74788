//! Arms as text: parts joined by `+`. The first is what is tried, the others are its options and how the guest idles.

use crate::idle::{Idle, ParseIdleError};

/// Why a text is not an arm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseArmError {
    /// A first part that is not known.
    #[error("`{text}` is not an arm of this experiment; write {forms}")]
    Unknown {
        text: String,
        /// What is known.
        forms: &'static str,
    },
    /// Parts that exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// What is wrong with how the guest idles, with a policy, or with a duration.
    #[error(transparent)]
    Idle(#[from] ParseIdleError),
}

/// The parts of an arm.
pub(super) struct Parts<'t> {
    /// The first, cut at the first of `=` and `:`.
    pub(super) first: (&'t str, Option<&'t str>),
    /// Those of `known` that are given.
    pub(super) options: Vec<&'t str>,
    /// The others; halts in the kernel that does not poll if there are none.
    pub(super) idle: Idle,
}

impl<'t> Parts<'t> {
    pub(super) fn of(text: &'t str, known: &[&str]) -> Result<Parts<'t>, ParseArmError> {
        let mut parts = text.split('+').map(str::trim);
        let first = parts.next().unwrap_or_default();
        let (options, rest): (Vec<&str>, Vec<&str>) = parts.partition(|part| known.contains(part));
        let idle = if rest.is_empty() { Idle::host(0) } else { rest.join("+").parse()? };
        let cut = first.find(['=', ':']);
        let first = cut.map_or((first, None), |at| (first[..at].trim(), Some(first[at + 1..].trim())));
        Ok(Parts { first, options, idle })
    }

    /// Whether an option is given.
    pub(super) fn has(&self, option: &str) -> bool {
        self.options.contains(&option)
    }
}
