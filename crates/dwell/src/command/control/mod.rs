//! `dwell control`

mod replay;
mod words;

use crate::failure::Outcome;
use crate::model::ModelArgs;
use crate::output::FormatArg;
use replay::Observe;
use std::path::PathBuf;

/// Keep the polling setting right while the load changes
///
/// Decides every 100 ms at most. About 130 settings are replayed over a sample of the last episodes; the one that costs
/// least is taken if it saves a sixteenth of the present cost, on each half of the sample. The setting in force is
/// replayed as well: where its polls or halts differ from those counted by more than 10 % three times in a row, control
/// ends. Where control has cost a quarter of a second's worth more than 1.02 times the originals, these are in force for
/// 1 s, then 2 s up to 64 s. There are at most 60 writes a minute.
///
/// With --replay the same code runs over a recording, and prints each change with its reason and what it gained.
#[derive(clap::Args)]
#[command(
    after_help = "Example: dwell control --replay recordings/guest-redis_poisson5k.parquet --halt-cost 20us"
)]
pub(crate) struct Args {
    /// Control the idlers of this recording, offline
    #[arg(long, value_name = "RECORDING", required = true)]
    replay: PathBuf,
    /// What the controller sees of the recording
    #[arg(long, value_enum, default_value_t = Observe::Episodes)]
    observe: Observe,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    format: FormatArg,
}

pub(crate) fn run(args: Args) -> Outcome {
    replay::run(&args.replay, &args.model, args.observe, args.format.format)
}
