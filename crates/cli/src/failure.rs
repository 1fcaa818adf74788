//! How the program ends.

use crate::output;
use clap::{ArgMatches, Command, FromArgMatches};
use dwell_recording::with_causes;
use std::io::{self, Write};
use std::process::ExitCode;

/// The outcome of a command: a positive or negative result, or an error.
pub type Outcome = anyhow::Result<Answer>;

/// The result of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success, or a positive result.
    Yes,
    /// A negative result, if --exit-code was given.
    No,
}

/// 0, 1 for a negative result, 2 for an error, which is printed as one line. A closed pipe is not an error.
pub fn exit_code(program: &str, outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(&format!("{program}: {}", with_causes(error.as_ref())));
            ExitCode::from(2)
        }
    }
}

/// Reads the command line.
///
/// # Errors
/// With what to end where that is all that is to be done: help, the version or an error was printed.
pub fn command_line<C: FromArgMatches>(program: &str, command: Command) -> Result<(C, ArgMatches), ExitCode> {
    let read = command.try_get_matches().and_then(|found| Ok((C::from_arg_matches(&found)?, found)));
    read.map_err(|error| of_command_line(program, &error))
}

/// Prints help, the version or an error of the command line. Help that cannot be printed is an error.
fn of_command_line(program: &str, error: &clap::Error) -> ExitCode {
    match error.print().and_then(|()| io::stdout().flush()) {
        Err(failed) if !error.use_stderr() => {
            exit_code(program, Err(anyhow::Error::new(failed).context(output::STDOUT)))
        }
        _ if error.use_stderr() => ExitCode::from(2),
        _ => ExitCode::SUCCESS,
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}
