//! How the program ends.

use crate::output;
use std::io;
use std::process::ExitCode;

/// What a command answers: whether the answer is yes, or trouble.
pub(crate) type Outcome = anyhow::Result<Answer>;

/// The answer of a command that went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Done, or yes.
    Yes,
    /// A negative answer, where the user asked to have it in the exit code.
    No,
}

/// 0 for yes, 1 for no, 2 for trouble, which is printed as one line. A reader that has closed the pipe is no trouble.
pub(crate) fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(&format!("dwell: {}", one_line(&error)));
            ExitCode::from(2)
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// The whole chain of causes, each said once.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().replace('\n', " ");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}
