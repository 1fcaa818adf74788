//! The command `generate`.

use crate::failure::{Answer, Outcome};
use crate::output;
use anyhow::{Context, bail};
use clap::{Command, ValueEnum};
use clap_complete::Shell;
use std::io;
use std::path::{Path, PathBuf};

/// Print the manual page or shell completions
#[derive(clap::Args)]
pub struct Args {
    /// What to print
    #[arg(value_name = "WHAT")]
    what: What,
    /// With man: folder for the page of the program and one per sub-command
    ///
    /// Without --out, the page of the program is printed on stdout.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    /// Manual page, in roff
    Man,
    /// Completions for bash
    Bash,
    /// Completions for elvish
    Elvish,
    /// Completions for fish
    Fish,
    /// Completions for PowerShell
    Powershell,
    /// Completions for zsh
    Zsh,
}

/// When the words of the pages were last revised.
const REVISED: &str = "2026-11-28";

/// # Errors
/// If a page cannot be written.
pub fn run(args: Args, mut command: Command) -> Outcome {
    let name = command.get_name().to_owned();
    let shell = match (args.what, args.out) {
        (What::Man, None) => {
            output::whole(page(command, &name)?.as_bytes())?;
            return Ok(Answer::Yes);
        }
        (What::Man, Some(dir)) => {
            std::fs::create_dir_all(&dir)
                .with_context(|| format!("cannot create the folder {}", dir.display()))?;
            write_pages(&dir, &command, &[&name])?;
            return Ok(Answer::Yes);
        }
        (_, Some(_)) => bail!("--out is for man; completions are printed"),
        (What::Bash, None) => Shell::Bash,
        (What::Elvish, None) => Shell::Elvish,
        (What::Fish, None) => Shell::Fish,
        (What::Powershell, None) => Shell::PowerShell,
        (What::Zsh, None) => Shell::Zsh,
    };
    // It panics where it cannot write.
    let mut script = vec![];
    clap_complete::generate(shell, &mut command, name, &mut script);
    output::whole(&script)?;
    Ok(Answer::Yes)
}

/// The page of a command and those of its sub-commands; `names` are the words by which it is called.
fn write_pages(dir: &Path, command: &Command, names: &[&str]) -> anyhow::Result<()> {
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        write_pages(dir, sub, &[names, &[sub.get_name()]].concat())?;
    }
    let name = names.join("-");
    let called = command.clone().name(name.clone()).bin_name(names.join(" "));
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(called, &name)?).with_context(|| format!("cannot write {}", path.display()))
}

/// A page in roff, without what `mandoc -T lint` objects to.
fn page(command: Command, name: &str) -> io::Result<String> {
    let mut page = vec![];
    let source = concat!("dwell ", env!("CARGO_PKG_VERSION"));
    // The command `help` has no page.
    clap_mangen::Man::new(command.disable_help_subcommand(true))
        .title(name.to_uppercase())
        .date(REVISED)
        .source(source)
        .manual("User Commands")
        .render(&mut page)?;
    Ok(tidy(&String::from_utf8_lossy(&page)))
}

/// The longest line of text in roff, of which mandoc expands some characters and wants at most 80.
const LONGEST: usize = 72;

/// Breaks long lines of text between words, and replaces empty lines by a request for space, one for several.
fn tidy(roff: &str) -> String {
    let mut tidied: Vec<String> = vec![];
    for line in roff.lines().map(str::trim_end) {
        let spaces = |line: &String| [".sp", ".PP", ".br"].contains(&line.as_str()) || line.starts_with(".S");
        let is_space = line.is_empty() || line == ".br";
        if is_space && tidied.last().is_some_and(spaces) {
            continue;
        }
        match line {
            "" => tidied.push(".sp".to_owned()),
            _ if line.starts_with('.') => {
                // Space before a heading or paragraph is what these have anyway.
                while line != ".br" && tidied.last().is_some_and(|last| last == ".sp" || last == ".br") {
                    tidied.pop();
                }
                tidied.push(line.to_owned());
            }
            _ => tidied.extend(broken(line)),
        }
    }
    tidied.join("\n") + "\n"
}

fn broken(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let Some(last) = lines.last_mut() else { break };
        if !last.is_empty() && last.len() + 1 + word.len() > LONGEST {
            // A line that begins so would be a request.
            let guard = if word.starts_with(['.', '\'']) { "\\&" } else { "" };
            lines.push(format!("{guard}{word}"));
        } else {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.push_str(word);
        }
    }
    lines
}
