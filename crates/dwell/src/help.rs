//! Help: commands in groups, and a short help with the options that matter first.

use clap::{Arg, Command};
use std::fmt::Write;

/// Commands by what they are for.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Everyday", &["doctor", "tune", "record", "apply", "verify", "revert", "status"]),
    ("Control", &["control"]),
    ("Analysis", &["why", "replay", "report", "explain", "info", "top", "bound", "params"]),
    ("QEMU", &["iothread"]),
    ("Timers", &["timer"]),
    ("Fleet", &["fleet", "sketch"]),
    ("Other tools' traces", &["import"]),
    ("Shell", &["generate"]),
];

/// The options that `-h` shows, where all of them do not fit on a screen of 24 lines.
const FIRST: [(&str, &[&str]); 14] = [
    ("tune", &["layer", "halt_cost", "max_cpu", "plan", "format"]),
    ("report", &["before", "after", "halt_cost", "format", "output"]),
    ("verify", &["revert_if_worse", "set", "record", "budget", "work"]),
    ("control", &["mode", "halt_cost", "replay"]),
    ("explain", &["layer", "kernel", "qemu", "format"]),
    ("replay", &["set", "policy", "layer", "halt_cost", "format"]),
    ("bound", &["duration", "interval", "halt_cost", "between", "format"]),
    ("fleet", &["layer", "halt_cost", "settings", "report", "plan"]),
    ("sketch", &["output", "force", "kernel", "format"]),
    ("import", &["output", "layer", "kind", "in_force", "convert"]),
    ("iothread bench", &["qmp", "set", "budget", "predict", "format"]),
    ("timer tune", &["plan", "page", "before", "disable_exits", "upgrade"]),
    ("timer explain", &["kernel", "pi_inject_timer", "disable_exits", "pcpu", "upgrade"]),
    ("timer import", &["output", "kernel", "in_force", "convert", "force"]),
];

/// Options of many commands that are in the long help only, unless they are among the first.
const SELDOM: [&str; 3] = ["wide", "sysroot", "state_dir"];

/// The width of a screen; a longer line of names in the short help is cut.
const SCREEN: usize = 76;

const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\nOptions:\n{options}\n";

/// The command of the program with its help arranged.
pub(crate) fn arranged(command: Command) -> Command {
    let (short, long) = (grouped(&command, false), grouped(&command, true));
    let notes = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let command =
        command.help_template(TEMPLATE).after_help(short).after_long_help(format!("{long}\n\n{notes}"));
    let command = command.mut_subcommands(without_seldom);
    FIRST.into_iter().fold(command, |command, (path, options)| {
        let words: Vec<&str> = path.split(' ').collect();
        shortened(command, &words, options)
    })
}

fn without_seldom(command: Command) -> Command {
    let seldom = |arg: Arg| {
        let hidden = SELDOM.contains(&arg.get_id().as_str());
        arg.hide_short_help(hidden)
    };
    command.mut_args(seldom).mut_subcommands(without_seldom)
}

/// The options of a command that are not among the first are in the long help only.
fn shortened(command: Command, path: &[&str], first: &'static [&'static str]) -> Command {
    match path {
        [name, below @ ..] if command.find_subcommand(name).is_some() => {
            command.mut_subcommand(*name, |command| shortened(command, below, first))
        }
        [] => with_one_example(command).mut_args(|arg| {
            let hidden = !arg.is_positional() && !first.contains(&arg.get_id().as_str());
            arg.hide_short_help(hidden)
        }),
        _ => command,
    }
}

/// Of several examples the first is in the short help.
fn with_one_example(command: Command) -> Command {
    let Some(all) = command.get_after_help().map(ToString::to_string) else { return command };
    let mut lines = all.lines();
    let first = lines.next().unwrap_or_default();
    let one = match first {
        "Examples:" => format!("Example: {}", lines.next().unwrap_or_default().trim()),
        _ => first.to_owned(),
    };
    command.after_help(one).after_long_help(all)
}

/// The commands: one a line, with what each does; in short only those of the first group.
fn grouped(command: &Command, long: bool) -> String {
    let mut text = String::new();
    let heads = GROUPS.iter().map(|(head, _)| head.len()).max().unwrap_or(0);
    for (number, (head, names)) in GROUPS.into_iter().enumerate() {
        let there: Vec<&Command> = names.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if number > 0 && !long {
            let names: Vec<&str> = there.iter().map(|command| command.get_name()).collect();
            let line = format!("{:heads$}  {}", format!("{head}:"), names.join(", "), heads = heads + 1);
            let _ = match line.char_indices().nth(SCREEN) {
                None => writeln!(text, "{line}"),
                Some((end, _)) => {
                    let whole = line[..end].rfind(", ").unwrap_or(end);
                    writeln!(text, "{}, …", &line[..whole])
                }
            };
            continue;
        }
        let _ = writeln!(text, "{head}:");
        for command in there {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:11}  {about}", command.get_name());
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
        let below: Vec<&Command> =
            command.get_subcommands().filter(|below| below.get_name() != "help").collect();
        if below.is_empty() || !command.is_subcommand_required_set() {
            found.push(path.to_owned());
        }
        for command in below {
            leaves(command, &format!("{path} {}", command.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_a_group() {
        let command = crate::Cli::command();
        for below in command.get_subcommands() {
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&below.get_name())).count();
            assert_eq!(groups, 1, "{}", below.get_name());
        }
    }

    #[test]
    fn the_first_options_are_options() {
        let command = crate::Cli::command();
        for (path, options) in FIRST {
            let found = path.split(' ').try_fold(&command, |command, name| command.find_subcommand(name));
            let found = found.unwrap_or_else(|| panic!("no command {path}"));
            for option in options {
                assert!(found.get_arguments().any(|arg| arg.get_id() == option), "{path}: no {option}");
            }
        }
    }

    #[test]
    fn there_are_few_commands() {
        let mut paths = vec![];
        leaves(&crate::Cli::command(), "dwell", &mut paths);
        let has_none_below =
            |path: &&String| !paths.iter().any(|other| other.starts_with(&format!("{path} ")));
        let leaves: Vec<&String> = paths.iter().filter(has_none_below).collect();
        assert!(leaves.len() <= 32, "{}: {leaves:?}", leaves.len());
    }

    /// A screen of 24 lines with room for a prompt.
    #[test]
    fn the_short_help_of_every_command_fits_a_screen() {
        let mut paths = vec![];
        leaves(&crate::Cli::command(), "dwell", &mut paths);
        paths.push("dwell".to_owned());
        let mut longer = String::new();
        for path in paths {
            let mut command = arranged(crate::Cli::command()).term_width(80);
            command.build();
            let names = path.split(' ').skip(1);
            let found = names.fold(&mut command, |command, name| command.find_subcommand_mut(name).unwrap());
            let help = found.render_help().to_string();
            if help.trim_end().lines().count() > 24 {
                longer += &format!("{path}:\n{help}\n");
            }
        }
        assert!(longer.is_empty(), "{longer}");
    }
}
