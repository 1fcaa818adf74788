//! Where the recording to tune on comes from: a file, this machine, or the program itself.

use crate::{model, progress, quantity, stop};
use dwell_policy::Nanos;
use dwell_recording::{Reader, newfile};
use dwell_replay::tune::MIN_EPISODES;
use dwell_report::duration;
use std::path::PathBuf;
use std::time::Duration;

/// A recording inside the program, so that it can show what it does anywhere.
const BUNDLED: &[u8] = include_bytes!("bundled.parquet");
const BUNDLED_NAME: &str = "event-pgbench_sel1";

/// Options that choose the recording.
#[derive(Debug, clap::Args)]
pub(crate) struct WhenceArgs {
    /// Recording in Parquet [default: this machine, recorded now]
    ///
    /// As `dwell record` and `dwell import` write it. Without it the vCPUs of this host are recorded if any VM runs,
    /// else the CPUs of this machine; where nothing can be recorded, a bundled recording is taken and the first line
    /// says why.
    file: Option<PathBuf>,
    /// Without FILE: how long to record
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = quantity::duration)]
    #[arg(conflicts_with_all = ["file", "bundled"])]
    record_for: Nanos,
    /// Without FILE: keep what was recorded in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "bundled"])]
    keep: Option<PathBuf>,
    /// Take the bundled recording, not this machine
    #[arg(long, conflicts_with = "file")]
    bundled: bool,
}

/// A recording and what has to be said of it before anything else.
pub(crate) struct Whence {
    pub(crate) reader: Reader,
    /// What to call it.
    pub(crate) file: String,
    /// Where it comes from, unless the user named a file.
    pub(crate) note: Option<String>,
    /// Whether it is the bundled one, which is of no machine of the user's.
    pub(crate) is_bundled: bool,
}

impl WhenceArgs {
    /// Opens the file, or records, or takes what is bundled.
    pub(crate) fn open(&self) -> anyhow::Result<Whence> {
        if let Some(path) = &self.file {
            return Ok(Whence {
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
            Recorded::Enough(whence) => Ok(*whence),
            Recorded::Nothing(why) => bundled(&format!("this machine cannot be recorded: {why}")),
        }
    }

    fn record(&self) -> anyhow::Result<Recorded> {
        let stop = stop::on_ctrl_c()?;
        let asked = Duration::from_nanos(self.record_for.get());
        let shown = duration(self.record_for.get() as f64);
        eprintln!("no FILE given: recording this machine for {shown}");
        let mut line = progress::Recording::new(Some(asked));
        let recorded = dwell_capture::record_anything(asked, &stop, &mut line);
        line.clear();
        let (summary, bytes) = match recorded {
            Ok(recorded) => recorded,
            Err(error) => return Ok(Recorded::Nothing(error.to_string())),
        };
        if let Some(path) = &self.keep {
            newfile::write(path, &bytes)?;
        }
        let episodes = summary.contents.episodes;
        if episodes < MIN_EPISODES {
            let why = format!("it idled {episodes} times in {shown}, and {MIN_EPISODES} are needed");
            return Ok(Recorded::Nothing(why));
        }
        let name = "this machine";
        let note = format!(
            "no FILE given: {name}, recorded for {}",
            duration(summary.status.elapsed.as_nanos() as f64)
        );
        Ok(Recorded::Enough(Box::new(Whence {
            reader: Reader::from_bytes(name, bytes)?,
            file: name.to_owned(),
            note: Some(note),
            is_bundled: false,
        })))
    }
}

/// What came of recording this machine.
enum Recorded {
    Enough(Box<Whence>),
    Nothing(String),
}

fn bundled(why: &str) -> anyhow::Result<Whence> {
    let reader = Reader::from_bytes(BUNDLED_NAME, BUNDLED.to_vec())?;
    let note = format!("{why}; this is the bundled recording {BUNDLED_NAME}, not your machine");
    Ok(Whence { reader, file: format!("bundled:{BUNDLED_NAME}"), note: Some(note), is_bundled: true })
}
