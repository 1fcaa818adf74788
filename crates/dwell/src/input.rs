//! The recording to tune on: a file, this machine recorded now, or the bundled recording.

use crate::overwrite::may_write;
use crate::{model, output, privileges, progress, quantity, stop};
use dwell_policy::Nanos;
use dwell_recording::{Reader, newfile, regular};
use dwell_replay::tune::MIN_EPISODES;
use dwell_report::duration;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A recording inside the program, so that `dwell tune` works anywhere.
const BUNDLED: &[u8] = include_bytes!("bundled.parquet");
const BUNDLED_NAME: &str = "event-pgbench_sel1";

/// Whether a file begins as Parquet does. What cannot be read is reported where it is.
pub(crate) fn is_parquet(path: &Path) -> bool {
    let mut begin = [0; 4];
    regular::open(path).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok() && begin == *b"PAR1")
}

/// Options that choose the recording.
#[derive(Debug, clap::Args)]
pub(crate) struct InputArgs {
    /// Recording in Parquet [default: record this machine now]
    ///
    /// Written by `dwell record` or `dwell import`. Without FILE, the vCPUs of this host are recorded if a VM is
    /// running, else the CPUs of this machine. Where nothing can be recorded, a bundled recording is used, and the
    /// first line of the output gives the reason.
    file: Option<PathBuf>,
    /// How long to record this machine, if no FILE is given
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::recording_time)]
    #[arg(conflicts_with_all = ["file", "bundled"])]
    record_for: Nanos,
    /// Keep the recording of this machine in this file, if no FILE is given
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "bundled"])]
    keep: Option<PathBuf>,
    /// Use the bundled recording instead of this machine
    #[arg(long, conflicts_with = "file")]
    bundled: bool,
}

/// A recording, opened, and where it comes from.
pub(crate) struct Input {
    pub(crate) reader: Reader,
    /// Its name in the output.
    pub(crate) file: String,
    /// Where it comes from, unless a file was given; printed first.
    pub(crate) note: Option<String>,
    /// Whether it is the bundled recording, which was not made on this machine.
    pub(crate) is_bundled: bool,
}

impl InputArgs {
    pub(crate) fn file(&self) -> Option<&PathBuf> {
        self.file.as_ref()
    }

    /// Opens the file, records this machine, or opens the bundled recording.
    pub(crate) fn open(&self) -> anyhow::Result<Input> {
        if let Some(path) = &self.file {
            return Ok(Input {
                reader: model::open(path)?,
                file: path.display().to_string(),
                note: None,
                is_bundled: false,
            });
        }
        if self.bundled {
            return bundled("--bundled");
        }
        match self.record()? {
            Ok(input) => Ok(input),
            Err(why) => bundled(&format!("this machine cannot be recorded: {why}")),
        }
    }

    /// A recording of this machine, or why it cannot be recorded.
    fn record(&self) -> anyhow::Result<Result<Input, String>> {
        if let Some(path) = &self.keep {
            may_write(path, false, "remove it", [])?;
        }
        let stop = stop::on_ctrl_c()?;
        let asked = Duration::from_nanos(self.record_for.get());
        let shown = duration(self.record_for.get() as f64);
        privileges::record();
        output::note(&format!("no FILE given: recording this machine for {shown}"));
        let recorded =
            dwell_capture::record_anything(asked, &stop, &mut progress::Recording::new(Some(asked)));
        let (summary, bytes) = match recorded {
            Ok(recorded) => recorded,
            Err(error) => return Ok(Err(dwell_recording::with_causes(&error))),
        };
        if let Some(path) = &self.keep {
            newfile::write_private(path, &bytes)?;
        }
        let episodes = summary.contents.episodes;
        if episodes < MIN_EPISODES {
            return Ok(Err(format!("it idled {episodes} times in {shown}, and {MIN_EPISODES} are needed")));
        }
        let name = "this machine";
        let note = format!("{name}, recorded for {}", duration(summary.status.elapsed.as_nanos() as f64));
        Ok(Ok(Input {
            reader: Reader::from_bytes(name, bytes)?,
            file: name.to_owned(),
            note: Some(note),
            is_bundled: false,
        }))
    }
}

fn bundled(why: &str) -> anyhow::Result<Input> {
    let reader = Reader::from_bytes(BUNDLED_NAME, BUNDLED.to_vec())?;
    let note = format!("{why}; this is the bundled recording {BUNDLED_NAME}, not your machine");
    Ok(Input { reader, file: format!("bundled:{BUNDLED_NAME}"), note: Some(note), is_bundled: true })
}
