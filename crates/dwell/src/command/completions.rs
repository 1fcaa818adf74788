//! `dwell completions`

use crate::failure::{Answer, Outcome};
use clap::Command;
use clap_complete::Shell;
use std::io;

/// Print shell completions
///
/// For example: dwell completions bash > /etc/bash_completion.d/dwell
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shell to print completions for
    shell: Shell,
}

pub(crate) fn run(args: Args, mut command: Command) -> Outcome {
    clap_complete::generate(args.shell, &mut command, "dwell", &mut io::stdout());
    Ok(Answer::Yes)
}
