//! The command `completions`.

use crate::failure::{Answer, Outcome};
use clap::Command;
use clap_complete::Shell;
use std::io;

/// Print shell completions
#[derive(clap::Args)]
pub struct Args {
    /// Shell to print completions for
    shell: Shell,
}

/// # Errors
/// None.
pub fn run(args: Args, mut command: Command) -> Outcome {
    let name = command.get_name().to_owned();
    clap_complete::generate(args.shell, &mut command, name, &mut io::stdout());
    Ok(Answer::Yes)
}
