//! `dwell lab`: experiments on the KVM of this machine, and on the CPUs of a guest.

mod calibrate;
mod campaign;
mod control;
mod doorbell;
mod guest;
mod kvm_counts;
mod pingpong;
mod policies;
mod results;
mod timer;
mod validate;
mod wake;

use crate::failure::Outcome;

/// Measure polling and halting on the KVM of this machine
///
/// A small VMM runs the guests. Each experiment measures several settings ("arms") in alternation with the same
/// stimulus, repeats blocks during which other programs used CPU time, and prints figures with 95 % intervals.
/// `validate` compares predictions with measurements. Nothing on the machine is changed, but by `guest`, which sets
/// haltpoll's parameters and restores them.
#[derive(clap::Args)]
#[command(
    after_help = "All but guest need /dev/kvm and two CPUs. Run it as root if possible, so that its threads get real-time priority and are \
        disturbed less."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand)]
enum Experiment {
    Wake(wake::WakeArgs),
    Pingpong(pingpong::PingpongArgs),
    Timer(timer::TimerArgs),
    Doorbell(doorbell::DoorbellArgs),
    Validate(Box<validate::ValidateArgs>),
    Calibrate(calibrate::CalibrateArgs),
    Policies(policies::PoliciesArgs),
    Control(control::ControlArgs),
    Guest(guest::GuestArgs),
}

pub(crate) fn run(args: Args) -> Outcome {
    match args.experiment {
        Experiment::Wake(args) => wake::run(args),
        Experiment::Pingpong(args) => pingpong::run(args),
        Experiment::Timer(args) => timer::run(args),
        Experiment::Doorbell(args) => doorbell::run(args),
        Experiment::Validate(args) => validate::run(*args),
        Experiment::Calibrate(args) => calibrate::run(args),
        Experiment::Policies(args) => policies::run(args),
        Experiment::Control(args) => control::run(args),
        Experiment::Guest(args) => guest::run(args),
    }
}
