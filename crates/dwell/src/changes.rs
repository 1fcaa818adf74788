//! Which commands change settings.

/// All others run in a process in which every attempt is an error.
pub(crate) const CHANGES: [&str; 6] =
    ["apply", "control", "iothread bench", "iothread set", "revert", "verify"];

/// From now on this process changes no setting, unless the command, by its words, or one above it does.
pub(crate) fn allow_those_of(command: &str) {
    if !are_made_by(command) {
        dwell_knobs::read_only();
    }
}

fn are_made_by(command: &str) -> bool {
    CHANGES.iter().any(|name| is_below(command, name))
}

/// Whether it is this command, or one below it.
pub(crate) fn is_below(command: &str, name: &str) -> bool {
    command.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_knobs::place::Place;
    use dwell_knobs::value;
    use dwell_testing::machine::Fake;
    use dwell_testing::process;

    #[test]
    fn in_a_command_that_changes_no_settings_every_attempt_is_an_error() {
        if !process::is_alone(concat!(
            module_path!(),
            "::in_a_command_that_changes_no_settings_every_attempt_is_an_error"
        )) {
            return;
        }
        let path = "/sys/module/kvm/parameters/halt_poll_ns";
        let machine = Fake::new().file(path, "200000");
        let writes = || value::write(&machine, &Place::Parameter(path.to_owned()), Some("0")).is_ok();
        for command in CHANGES {
            allow_those_of(command);
            assert!(writes(), "{command}");
        }
        allow_those_of("tune");
        assert!(!writes());
    }

    #[test]
    fn a_command_below_one_that_changes_settings_does_so_too() {
        assert!(are_made_by("control stop") && are_made_by("revert"));
        assert!(!are_made_by("iothread list") && !are_made_by("verifying") && !are_made_by("tune"));
    }
}
