//! Which commands change settings.

/// All others run in a process in which every attempt is an error.
pub(crate) const CHANGES: [&str; 6] =
    ["apply", "control", "iothread bench", "iothread set", "revert", "verify"];

/// Whether a command, by its words, or one above it changes settings.
pub(crate) fn are_made_by(command: &str) -> bool {
    CHANGES.iter().any(|name| is_below(command, name))
}

/// Whether it is this command, or one below it.
pub(crate) fn is_below(command: &str, name: &str) -> bool {
    command.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_below_one_that_changes_settings_does_so_too() {
        assert!(are_made_by("control stop") && are_made_by("revert"));
        assert!(!are_made_by("iothread list") && !are_made_by("verifying") && !are_made_by("tune"));
    }
}
