//! dwell: how long should an idle CPU or I/O thread poll before it halts?

mod at_ends;
mod by_work;
mod changes;
mod check;
mod command;
mod help;
mod input;
mod model;
mod overwrite;
mod privileges;
mod progress;
mod settings;
mod state;
mod suggest;

use clap::{CommandFactory, Parser, Subcommand};
use dwell_cli::{failure, generate, output, paint, quantity, stop};
use std::process::ExitCode;

/// What is published is linked with musl, whose own allocator takes a third of the time of a replay by several threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tune how long idle CPUs and I/O threads poll before they halt
///
/// An idle CPU, vCPU or I/O thread can poll for a while or halt at once. Polling costs CPU time; halting costs a VM
/// exit, a wakeup interrupt and microseconds of latency. dwell records how a machine idles and replays the recording
/// through exact models of the polling rules of Linux, KVM and QEMU. It reports what the present setting costs, what
/// any other setting would have cost and what the offline optimum is. It recommends a setting, applies it, measures
/// its effect and reverts it.
///
/// Layers: `guest` is the cpuidle haltpoll governor in a guest, `host` is KVM halt polling, `iothread` is QEMU's
/// adaptive polling, `driver` is the idle driver dwell_idle in a guest. `timer` is KVM's local APIC timer, which has
/// parameters and no idle times.
#[derive(Parser)]
#[command(name = "dwell", version, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 success; 1 negative result, only with --exit-code; 2 error.\n\
                        Durations take ns, us, ms or s, as in 200us.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Record(command::record::Args),
    Tune(command::tune::Args),
    Apply(command::apply::Args),
    Status(command::status::Args),
    Revert(command::revert::Args),
    Verify(command::verify::Args),
    Control(Box<command::control::Args>),
    Explain(command::explain::Args),
    Replay(command::replay::Args),
    Fleet(command::fleet::Args),
    Sketch(command::sketch::Args),
    Info(command::info::Args),
    Report(Box<command::report::Args>),
    Import(command::import::Args),
    Iothread(command::iothread::Args),
    Doctor(command::doctor::Args),
    Bound(command::bound::Args),
    Why(command::why::Args),
    Top(command::top::Args),
    Timer(command::timer::Args),
    Params(command::params::Args),
    Generate(generate::Args),
}

fn main() -> ExitCode {
    let (cli, matches): (Cli, _) = match failure::command_line("dwell", help::arranged(Cli::command())) {
        Ok(read) => read,
        Err(end) => return end,
    };
    output::measure(&matches);
    // A recording knows the threads of the program that made it by this name, whatever its file is called.
    let _ = rustix::thread::set_name(c"dwell");
    let words = words(&matches);
    changes::allow_those_of(&words);
    privileges::are_those_of(&words);
    let done = match cli.command {
        Command::Record(args) => command::record::run(args),
        Command::Tune(args) => command::tune::run(args),
        Command::Apply(args) => command::apply::run(args),
        Command::Status(args) => command::status::run(args),
        Command::Revert(args) => command::revert::run(args),
        Command::Verify(args) => command::verify::run(args),
        Command::Control(args) => command::control::run(*args),
        Command::Explain(args) => command::explain::run(args),
        Command::Replay(args) => command::replay::run(args),
        Command::Fleet(args) => command::fleet::run(args),
        Command::Sketch(args) => command::sketch::run(args),
        Command::Info(args) => command::info::run(args),
        Command::Report(args) => command::report::run(*args),
        Command::Import(args) => command::import::run(args),
        Command::Iothread(args) => command::iothread::run(args),
        Command::Doctor(args) => command::doctor::run(args),
        Command::Bound(args) => command::bound::run(args),
        Command::Why(args) => command::why::run(args),
        Command::Top(args) => command::top::run(args),
        Command::Timer(args) => command::timer::run(args),
        Command::Params(args) => command::params::run(args),
        Command::Generate(args) => generate::run(args, Cli::command()),
    };
    failure::exit_code("dwell", done)
}

/// The words of the command, as in `iothread set`.
fn words(matches: &clap::ArgMatches) -> String {
    let mut words = vec![];
    let mut below = matches.subcommand();
    while let Some((word, matches)) = below {
        words.push(word);
        below = matches.subcommand();
    }
    words.join(" ")
}
