//! Options of all commands that change a machine: which machine, and where its journal is.

use crate::output;
use crate::settings::pairs;
use anyhow::ensure;
use chrono::{DateTime, SecondsFormat, Utc};
use dwell_knobs::journal::{Change, Entry, Id, STATE_DIRECTORY};
use dwell_machine::{Sysroot, Writable};
use dwell_report::{count, duration};
use dwell_trace::import::quoted;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The files of a machine.
#[derive(Debug, clap::Args)]
pub(crate) struct SysrootArg {
    /// Use this directory as `/`, such as a copy of another machine's files
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    sysroot: PathBuf,
}

impl SysrootArg {
    pub(crate) fn machine(&self) -> anyhow::Result<Sysroot> {
        ensure!(self.sysroot.is_dir(), "--sysroot {}: no such directory", self.sysroot.display());
        Ok(Sysroot::at(&self.sysroot))
    }
}

/// Options that select the machine.
#[derive(Debug, clap::Args)]
pub(crate) struct StateArgs {
    #[command(flatten)]
    sysroot: SysrootArg,
    /// Directory of the journal, below --sysroot
    #[arg(long, value_name = "DIR", default_value = STATE_DIRECTORY, value_parser = from_root)]
    pub(crate) state_dir: String,
}

/// A path from the root on; a relative one begins at the working directory.
fn from_root(path: &str) -> Result<String, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    path.into_os_string().into_string().map_err(|_| "the working directory is not UTF-8".to_owned())
}

impl StateArgs {
    pub(crate) fn machine(&self) -> anyhow::Result<Sysroot> {
        self.sysroot.machine()
    }

    /// A remark where the journal of a copy of another machine's files is not in it: that shows nothing of its changes.
    pub(crate) fn remark_if_missing(&self, machine: &Sysroot) {
        let is_given = self.state_dir != STATE_DIRECTORY || self.sysroot.sysroot != Path::new("/");
        let directory = machine.path(&self.state_dir);
        if is_given && !directory.exists() {
            output::remark(&format!(
                "note: {} does not exist: if dwell has changed that machine, its journal is elsewhere or was not copied",
                directory.display()
            ));
        }
    }

    /// The command that takes a change back.
    pub(crate) fn revert(&self, id: Id) -> String {
        self.command(&format!("revert {id}"))
    }

    /// A command of dwell with the options that name this journal.
    pub(crate) fn command(&self, words: &str) -> String {
        let root = self.sysroot.sysroot.display().to_string();
        let options = [("--sysroot", &*root, "/"), ("--state-dir", &*self.state_dir, STATE_DIRECTORY)];
        let given = options.iter().filter(|(_, value, default)| value != default);
        let given = given.map(|(name, value, _)| format!(" {name} {}", quoted(value)));
        format!("dwell {words}{}", given.collect::<String>())
    }
}

/// Waits between two writes, and reports it.
pub(crate) fn wait(time: Duration) {
    output::note(&format!("waiting {} for windows to shrink", duration(time.as_nanos() as f64)));
    std::thread::sleep(time);
}

/// How long ago something was, for people.
pub(crate) fn ago(unix_s: u64) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    seconds_ago(now.saturating_sub(unix_s))
}

/// The same, of so many seconds.
pub(crate) fn seconds_ago(seconds: u64) -> String {
    let of = |number: u64, unit: &str| format!("{} {unit} ago", count(number.into()));
    match seconds {
        0..120 => of(seconds, "s"),
        120..7_200 => of(seconds / 60, "min"),
        7_200..172_800 => of(seconds / 3_600, "h"),
        _ => of(seconds / 86_400, "days"),
    }
}

/// The time, in UTC: `2026-11-25T15:30:07Z`.
pub(crate) fn utc() -> String {
    DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// The name of a change: its values.
pub(crate) fn title(change: &Change) -> String {
    let set = |entry: &'_ Entry| Some((entry.knob.clone()?, entry.applied.clone()?));
    pairs(change.entries.iter().filter_map(set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_in_seconds_and_utc() {
        let is_time = |text: &str| DateTime::parse_from_rfc3339(text).is_ok();
        let now = utc();
        assert!(now.len() == "2026-11-25T15:30:07Z".len() && now.ends_with('Z') && is_time(&now), "{now}");
    }
}
