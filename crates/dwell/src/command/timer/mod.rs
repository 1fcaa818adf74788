//! `dwell timer`

mod change;
mod exits;
mod explain;
mod import;
mod record;
mod tune;
mod vm;
mod words;

use crate::failure::Outcome;
use clap::Subcommand;

/// Record the timers of vCPUs and find what posting them would save
///
/// A guest arms its local APIC timer thousands of times a second. Arming exits from the guest, and firing often exits a
/// second time. Posting (pi_inject_timer), APICv, HLT without exits and isolated CPUs save exits; the rules for it
/// differ between kernels.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  dwell timer explain --disable-exits hlt,mwait --pcpu isolated\n  \
                        dwell timer record --duration 10s -o timer.parquet\n  \
                        dwell timer tune timer.parquet --plan plan.toml")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Record(record::Args),
    Import(import::Args),
    Tune(Box<tune::Args>),
    Explain(explain::Args),
    Exits(exits::Args),
}

pub(crate) fn run(args: Args) -> Outcome {
    match args.what {
        What::Record(args) => record::run(args),
        What::Import(args) => import::run(args),
        What::Tune(args) => tune::run(&args),
        What::Explain(args) => explain::run(&args),
        What::Exits(args) => exits::run(args),
    }
}
