//! `dwell control`: its parts.
//!
//! [`replay`] controls a recording, the daemon of `dwell-control` a machine. [`mod@status`] is what it answers, for a
//! person.

mod configured;
mod replay;
mod status;

use crate::failure::{Answer, Outcome};
use crate::model::ModelArgs;
use crate::output::{self, Format, FormatArg};
use crate::state::{StateArgs, utc};
use crate::suggest::{Named, one_of};
use crate::{privileges, quantity};
use anyhow::{bail, ensure};
use configured::configuration;
use dwell_control::Observation;
use dwell_control::daemon::config::Mode;
use dwell_control::daemon::socket::{self, Ask};
use dwell_control::daemon::tenants::Vm;
use dwell_control::daemon::{self, Notes, Stopped};
use dwell_machine::Writable as _;
use dwell_policy::Nanos;
use std::path::{Path, PathBuf};

/// Keep the polling setting right while the load changes
///
/// Decides about every 100 ms: about 130 settings are replayed over a sample of the last episodes, and the one that
/// costs least is taken if it saves a sixteenth of the present cost. Unless `verify` in the configuration is 0, a
/// setting that is taken for guest or host is compared with the one before, in turns, and where CPUs mostly halt,
/// polling is tried now and then. The originals are in force again, for 0.1 s to 64 s, where a replay of the setting
/// in force does not give what was counted, or where control has cost more than the originals would have. At most 240
/// parameters are written in a minute.
///
/// By default it only prints the changes that it would make; --mode active makes them. The originals and every value
/// that may be written are in the journal before the first write. They are restored at the end, by SIGTERM and Ctrl-C
/// too, unless `on_exit = "keep"` leaves the setting, which the next start adopts; after SIGKILL by the next
/// start and by `dwell control stop`. A value that another program writes is left alone, and control of its layer
/// ends until `dwell control resume`. SIGHUP rereads the configuration.
///
/// With --qmp, or `[[qemu]]` in the configuration, the I/O threads of running QEMUs are controlled, each on
/// its own. With --mode active, their polling is disabled for short times, since episodes that end while a
/// thread polls cannot be recorded. If a QEMU is not running yet, the controller waits for it.
///
/// With --replay the same code runs over a recording, and prints each change with its reason and what it gained.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    mut_arg("layer", |arg| arg
        .help("Layer to control [default: those that this machine has; with --replay that of the recording]")
        .long_help(
            "Layer to control [default: those that this machine has; with --replay that of the recording]\n\n\
             host is KVM halt polling, guest the haltpoll governor, driver the idle driver dwell_idle of a guest, iothread \
             QEMU's adaptive polling. With --replay a recording of one layer can be controlled through the rule of another, but \
             not through that of driver.",
        )),
    mut_arg("halt_cost", |arg| arg.long_help(
        "Cost of one halt and wakeup in CPU time, such as 20us\n\n\
         Includes the VM exit, the wakeup interrupt, scheduling, and whatever the latency of a wakeup is worth to you. From 0 to 10ms. \
         5us is little more than the CPU time of the exit, 20us that of a halt and wakeup on nested \
         or busy hosts; 50us and more put a value on latency. With 0, halts are free and never polling is best. [default: that of \
         the configuration, else 20us; with --replay measured by `dwell-lab calibrate` on the machine of the recording, else \
         that of the driver dwell_idle, else 20us]",
    )),
    mut_arg("wakeup_latency", |arg| arg.long_help(
        "Latency that one halt adds to its wakeup, such as 8us\n\n\
         From 0 to 10ms. The time that the kernel measures of a halt is longer than the idle time by this; dwell_idle has a parameter of its own. With \
         --replay it is taken out of recorded idle times that include it. [default: that of the configuration, else of a guest as measured \
         in bursts and of a host as calibrated; with --replay the wakeup latencies of the recording; if it has none, the latency measured with the halt cost; else the halt cost]",
    ))
)]
#[command(
    after_help = "Example: dwell control --replay recordings/guest-redis_poisson5k.parquet --halt-cost 20us\n\
                        Example: dwell control --mode active --layer guest --halt-cost 20us\n\
                        Example: dwell control --mode active --layer iothread --qmp /run/vm.qmp"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    ask: Option<Command>,
    /// Control the idlers of this recording, offline
    ///
    /// Several recordings, with --layer host, are controlled as VMs that run on one host at the same time,
    /// under one setting. They are repeated or cut to the median of their lengths, or to --duration.
    #[arg(long, value_name = "RECORDING", num_args = 1..)]
    replay: Vec<PathBuf>,
    /// What the controller sees of the recording; for --replay
    #[arg(long, value_parser = one_of(&OBSERVATIONS), default_value = "episodes", requires = "replay")]
    observe: Observation,
    /// Whether settings are written [default: that of the configuration, else advise]
    #[arg(long, value_parser = one_of(&MODES), conflicts_with = "replay")]
    mode: Option<Mode>,
    /// Configuration in TOML; drop-ins FILE.d/*.toml override it [default: /etc/dwell/control.toml, if it is there]
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    config: Option<PathBuf>,
    /// Check the configuration, print it and exit
    #[arg(long, conflicts_with = "replay")]
    check: bool,
    /// UNIX socket of the monitor (QMP) of a QEMU whose I/O threads are controlled
    ///
    /// May be given several times; those of the configuration are controlled as well.
    #[arg(long, value_name = "SOCKET", conflicts_with = "replay")]
    qmp: Vec<PathBuf>,
    /// What a VM of the host layer counts, and its limit: NAME,weight=2,most-loss=5%
    ///
    /// NAME is QEMU's -name or -uuid, Firecracker's --id, or with --replay the name of a recording's file
    /// without its end. weight, from 0 to 1000, is how much its cost counts in the choice; the default is 1.
    /// No setting is chosen that is predicted to cost the VM more than most-loss above the originals, and
    /// none stays that has cost it more in the last 10 s. May be given several times; `[[vm]]` in the
    /// configuration is the same.
    #[arg(long, value_name = "VM")]
    vm: Vec<Vm>,
    /// Keep decisions and costs in this file, for `dwell report --decisions`
    ///
    /// JSON lines, appended: one for each change, one for the costs of each second. At 32 MiB the file is
    /// renamed FILE.old.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// End after this time; of several recordings, how much is replayed
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    duration: Option<Nanos>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

/// Whether settings are written.
const MODES: [Named<Mode>; 2] =
    [("advise", "Print the changes that would be made", Mode::Advise), ("active", "Make them", Mode::Active)];

/// What the controller sees of a recording.
const OBSERVATIONS: [Named<Observation>; 2] = [
    ("episodes", "The episodes of each idler, as a recorder sees them", Observation::Episodes),
    ("statistics", "The histograms that KVM would have counted of each vCPU", Observation::Statistics),
];

#[derive(clap::Subcommand)]
enum Command {
    /// Control again the layers that were given up
    Resume(StateArgs),
    /// End the running controller and restore the originals
    ///
    /// Waits until it has ended, and fails if originals are not in force then. If no controller runs, restores the originals
    /// of one that was killed, or that has left its setting; does nothing where nothing is left. With `on_exit = "keep"` the
    /// setting stays when a running controller ends, and is restored if no controller runs.
    Stop(StopArgs),
}

#[derive(clap::Args)]
struct StopArgs {
    /// Leave the setting of a controller that has ended with `on_exit = "keep"`, which the next one adopts
    #[arg(long)]
    unless_kept: bool,
    #[command(flatten)]
    state: StateArgs,
}

pub(crate) fn run(args: Args) -> Outcome {
    if let Some(command) = args.ask {
        return match command {
            Command::Resume(state) => resume(&state),
            Command::Stop(args) => stop(&args),
        };
    }
    if !args.replay.is_empty() {
        ensure!(
            args.log.is_none(),
            "--log is for a running controller; --replay prints the same with --format json"
        );
        return replay::run(
            &args.replay,
            args.duration,
            &args.vm,
            &args.model,
            args.observe,
            args.format.format,
        );
    }
    ensure!(
        args.format.format == Format::Table,
        "--format needs --replay; a running controller prints lines"
    );
    ensure!(
        args.model.versions.kernel.is_none() && args.model.versions.qemu.is_none(),
        "--kernel and --qemu need --replay; what is controlled has the rule of its own release"
    );
    let configure = || privileges::as_user(|| configuration(&args));
    if args.check {
        output::text(&configure()?.to_toml()?)?;
        return Ok(Answer::Yes);
    }
    let machine = args.state.machine()?;
    let state_directory = args.state.state_dir.clone();
    privileges::record();
    let timed = |text: &str| line(&format!("{} {text}", utc()));
    let notes = Notes { line: &timed, warning: &output::note };
    daemon::run(&daemon::Task {
        machine,
        state_directory,
        duration: args.duration,
        configure: &configure,
        notes,
    })?;
    Ok(Answer::Yes)
}

/// A line on stdout; a closed pipe is no error.
fn line(text: &str) {
    let _ = output::text(&format!("{text}\n"));
}

fn resume(state: &StateArgs) -> Outcome {
    let directory = state.machine()?.path(&state.state_dir);
    output::json(&socket::ask(&directory, Ask::Resume, socket::LONG)?)?;
    Ok(Answer::Yes)
}

fn stop(args: &StopArgs) -> Outcome {
    let notes = Notes { line: &line, warning: &output::note };
    let StopArgs { state, unless_kept } = args;
    if daemon::stop(&state.machine()?, &state.state_dir, *unless_kept, notes)? == Stopped::Running {
        line("the controller has ended");
    }
    Ok(Answer::Yes)
}

/// What the controller of a state directory does.
pub(super) fn status(directory: &Path, format: Format) -> Outcome {
    let status = socket::ask(directory, Ask::Status, socket::LONG)?;
    match format {
        Format::Json => output::json(&status)?,
        Format::Table => output::text(&status::text(&status))?,
        Format::Csv => bail!("--format csv: the status has tables of several kinds; use json"),
    }
    Ok(Answer::Yes)
}

/// What the controller of a state directory does, in a line for each of its layers; none where none runs.
pub(crate) fn lines(directory: &Path) -> Vec<String> {
    // Whoever asks has a screen to draw.
    const PATIENCE: std::time::Duration = std::time::Duration::from_millis(300);
    match socket::ask(directory, Ask::Status, PATIENCE) {
        Ok(status) => status::of_status(&status),
        Err(_) => vec![],
    }
}
