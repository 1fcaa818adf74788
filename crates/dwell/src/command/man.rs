//! `dwell man`

use crate::failure::{Answer, Outcome};
use clap::Command;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Print the manual page, or write the pages of all commands to a folder
///
/// For example: dwell man | man -l -
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for dwell.1 and one page for each command; without it dwell.1 goes to stdout
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: Args, command: Command) -> Outcome {
    let Some(dir) = args.out else {
        let mut page = vec![];
        clap_mangen::Man::new(command).render(&mut page)?;
        io::stdout().lock().write_all(&page)?;
        return Ok(Answer::Yes);
    };
    std::fs::create_dir_all(&dir)?;
    for sub in command.get_subcommands() {
        let name = format!("dwell-{}", sub.get_name());
        write_page(&dir, sub.clone().name(name.clone()), &name)?;
    }
    write_page(&dir, command, "dwell")?;
    Ok(Answer::Yes)
}

fn write_page(dir: &Path, command: Command, name: &str) -> io::Result<()> {
    let mut page = vec![];
    clap_mangen::Man::new(command).render(&mut page)?;
    std::fs::write(dir.join(format!("{name}.1")), page)
}
