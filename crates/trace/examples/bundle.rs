//! Makes the recordings that come with dwell out of tables: `bundle FROM TO`.
//!
//! FROM holds `manifest.json` and, for each of its keys that is no file name, `KEY.csv.gz`; TO gets `KEY.parquet`.
//! The manifest's `load` and `how` become the provenance. `guest-*` were taken from enter to exit of an idle state,
//! so their times include the wakeup latency; `event-*` end at the waking of the next task.
//! Run again on the same input, it writes the same bytes.

use dwell_recording::{Clock, IdleIncludes, Layer, Metadata, Packing, Source, Writer};
use dwell_trace::import::{Input, csv};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

#[derive(serde::Deserialize)]
struct Entry {
    load: String,
    layer: String,
    how: String,
    episodes: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(to), None) = (args.next(), args.next(), args.next()) else {
        return Err("usage: bundle FROM TO".into());
    };
    std::fs::create_dir_all(&to)?;
    let manifest = std::fs::read_to_string(from.join("manifest.json"))?;
    let manifest: BTreeMap<String, serde_json::Value> = serde_json::from_str(&manifest)?;
    for (name, entry) in manifest.into_iter().filter(|(name, _)| !name.contains('.')) {
        bundle(&from, &to, &name, serde_json::from_value(entry)?)?;
    }
    Ok(())
}

fn bundle(from: &Path, to: &Path, name: &str, entry: Entry) -> Result<(), Box<dyn Error>> {
    let layer = Layer::from_name(&entry.layer).ok_or("unknown layer in the manifest")?;
    let mut metadata = Metadata::new(layer);
    let events: &[&str] = if name.starts_with("event-") {
        metadata.idle_includes = IdleIncludes::Event;
        &["sched:sched_switch", "sched:sched_waking"]
    } else {
        metadata.idle_includes = IdleIncludes::Wake;
        &["power:cpu_idle"]
    };
    metadata.source = Source {
        tool: "csv".to_owned(),
        events: events.iter().map(|&event| event.to_owned()).collect(),
        command: None,
    };
    metadata.clock = Clock::RecorderStart;
    metadata.kernel = Some("6.18".to_owned());
    metadata.provenance = Some(format!("{name}: {}. {}.", entry.load, entry.how));

    let out = to.join(format!("{name}.parquet"));
    let packing = Packing { zstd_level: 19, ..Packing::default() };
    let mut writer = Writer::create_packed(&out, metadata, packing)?;
    let input = Input::open(&from.join(format!("{name}.csv.gz")))?;
    let summary = csv::import(input, csv::usual_idler(layer), &mut writer)?;
    if summary.episodes != entry.episodes {
        let found = summary.episodes;
        return Err(format!("{name}: {found} episodes, the manifest says {}", entry.episodes).into());
    }
    writer.finish()?;
    println!("{}", out.display());
    Ok(())
}
