//! dwell-lab: experiments on the KVM of this machine, and on the CPUs of a guest.

mod command;

use clap::{CommandFactory, Parser, Subcommand};
use command::{
    calibrate, control, doorbell, guest, neighbour, pingpong, policies, sketch, study, timer, validate, wake,
};
use dwell_cli::{failure, generate, output};
use std::process::ExitCode;

/// Measure polling and halting on the KVM of this machine
///
/// A small VMM runs the guests. Each experiment measures several settings ("arms") in alternation with the same
/// stimulus, repeats blocks during which other programs used CPU time, and prints figures with 95 % intervals.
/// `validate` compares predictions with measurements; `calibrate` stores the cost of a halt, which `dwell` reads.
/// Nothing on the machine is changed, but by `guest`, which sets haltpoll's parameters and restores them.
#[derive(Parser)]
#[command(name = "dwell-lab", version, max_term_width = 100)]
#[command(
    after_help = "All but study, sketch, guest, and calibrate for own CPUs, need /dev/kvm and two CPUs. Run it as root if possible, so that its \
        threads get real-time priority and are disturbed less."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Wake(wake::WakeArgs),
    Pingpong(pingpong::PingpongArgs),
    Timer(timer::TimerArgs),
    Doorbell(doorbell::DoorbellArgs),
    Validate(Box<validate::ValidateArgs>),
    Calibrate(calibrate::CalibrateArgs),
    Policies(policies::PoliciesArgs),
    Study(study::StudyArgs),
    Sketch(sketch::SketchArgs),
    Control(control::ControlArgs),
    Guest(guest::GuestArgs),
    Neighbour(neighbour::NeighbourArgs),
    Generate(generate::Args),
}

fn main() -> ExitCode {
    let (cli, matches): (Cli, _) = match failure::command_line("dwell-lab", Cli::command()) {
        Ok(read) => read,
        Err(end) => return end,
    };
    output::measure(&matches);
    let done = match cli.command {
        Command::Wake(args) => wake::run(args),
        Command::Pingpong(args) => pingpong::run(args),
        Command::Timer(args) => timer::run(args),
        Command::Doorbell(args) => doorbell::run(args),
        Command::Validate(args) => validate::run(*args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Policies(args) => policies::run(args),
        Command::Study(args) => study::run(args),
        Command::Sketch(args) => sketch::run(&args),
        Command::Control(args) => control::run(args),
        Command::Guest(args) => guest::run(args),
        Command::Neighbour(args) => neighbour::run(args),
        Command::Generate(args) => generate::run(args, Cli::command()),
    };
    failure::exit_code("dwell-lab", done)
}
