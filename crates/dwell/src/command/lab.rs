//! `dwell lab`: experiments on the KVM of this machine.

mod calibrate;
mod campaign;
mod doorbell;
mod findings;
mod pingpong;
mod policies;
mod tallies;
mod timer;
mod validate;
mod wake;

use crate::failure::Outcome;

/// Run the trade-off on the KVM of this machine, with a small VMM, and hold predictions against measurements
///
/// Each experiment tries several ways to idle ("arms") in alternation, with the same stimulus for each, repeats blocks in
/// which other programs took CPU time, and prints figures with 95 % intervals. Nothing on the machine is changed, and
/// nothing stays behind.
#[derive(clap::Args)]
#[command(
    after_help = "Needs /dev/kvm and two CPUs, and is best run as root: real-time threads are disturbed less."
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
    }
}
