//! Options of all commands that change a machine: which machine, and where its journal is.

use anyhow::ensure;
use dwell_knobs::journal::{Change, STATE_DIRECTORY};
use dwell_machine::Sysroot;
use dwell_report::{count, duration};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Options that select the machine.
#[derive(Debug, clap::Args)]
pub(crate) struct StateArgs {
    /// Use this directory as `/`, such as a copy of another machine's files
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    sysroot: PathBuf,
    /// Directory of the journal, below --sysroot
    #[arg(long, value_name = "DIR", default_value = STATE_DIRECTORY)]
    pub(crate) state_dir: String,
}

impl StateArgs {
    /// The machine.
    pub(crate) fn machine(&self) -> anyhow::Result<Sysroot> {
        ensure!(self.sysroot.is_dir(), "--sysroot {}: no such directory", self.sysroot.display());
        ensure!(self.state_dir.starts_with('/'), "--state-dir {}: not an absolute path", self.state_dir);
        Ok(Sysroot::at(&self.sysroot))
    }

    /// Whether the files are those of the running kernel.
    pub(crate) fn is_this_machine(&self) -> bool {
        self.sysroot == Path::new("/")
    }
}

/// Waits between two writes, and reports it.
pub(crate) fn wait(time: Duration) {
    eprintln!("waiting {} for windows to shrink", duration(time.as_nanos() as f64));
    std::thread::sleep(time);
}

/// How long ago something was, for people.
pub(crate) fn ago(unix_s: u64) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let seconds = now.saturating_sub(unix_s);
    let of = |number: u64, unit: &str| format!("{} {unit} ago", count(number.into()));
    match seconds {
        0..120 => of(seconds, "s"),
        120..7_200 => of(seconds / 60, "min"),
        7_200..172_800 => of(seconds / 3_600, "h"),
        _ => of(seconds / 86_400, "days"),
    }
}

/// The name of a change: its values.
pub(crate) fn title(change: &Change) -> String {
    let setting: Vec<String> = change
        .entries
        .iter()
        .filter_map(|entry| Some((entry.knob.as_ref()?, entry.applied.as_ref()?)))
        .map(|(knob, value)| format!("{knob}={value}"))
        .collect();
    setting.join(" ")
}
