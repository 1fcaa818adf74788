//! The recordings, and the release whose rule is replayed: as asked, else theirs.

use super::Args;
use anyhow::ensure;
use dwell_fleet::{Releases, recordings};
use dwell_policy::Layer;
use dwell_policy::version::Version;
use dwell_replay::Versions;
use dwell_report::number_of;
use std::path::Path;

/// The recordings in a folder, by their paths from it.
pub(super) fn recordings_of(folder: &Path) -> anyhow::Result<Vec<String>> {
    let found = recordings(folder).map_err(|(path, error)| {
        anyhow::Error::new(error).context(format!("cannot read the folder {}", path.display()))
    })?;
    ensure!(
        !found.is_empty(),
        "cannot choose settings for {}: it has no recordings (*.parquet)",
        folder.display()
    );
    Ok(found)
}

/// The release, and a note where it is not that of all recordings.
pub(super) fn choose(args: &Args, recordings: &[String]) -> anyhow::Result<(Version, Option<String>)> {
    let layer = args.layer;
    let (asked, option, whose) = match layer {
        Layer::Iothread => (args.versions.qemu, "--qemu", "QEMU"),
        _ => (args.versions.kernel, "--kernel", "Linux"),
    };
    if let Some(version) = asked {
        return Ok((version, None));
    }
    let found = Releases::of_files(&args.folder, recordings, layer);
    let newest = found.known.last().copied().unwrap_or(Versions::NEWEST.of(layer));
    let Some(version) = found.rule(layer) else {
        let why = match found.known.is_empty() {
            false => format!("the recordings are of {whose} {}, whose rules differ", found.words()),
            true => "no recording names its release, or one whose rule is known".to_owned(),
        };
        ensure!(
            !args.plans.are_wanted(),
            "cannot write plans: {why}; give {option}, the release of the machines that get them"
        );
        let note = format!("{why}: the rule of {newest} is used for all; {option} gives another");
        return Ok((newest, Some(note)));
    };
    let Some(first) = found.without.first() else { return Ok((version, None)) };
    let without = number_of(found.without.len() as u128, "recording");
    let name = if found.without.len() == 1 { "names" } else { "name" };
    ensure!(
        !args.plans.are_wanted(),
        "cannot write plans: {without} of {} {name} no release whose rule is known (first: {first}); give {option}, the release of the \
         machines that get them",
        recordings.len()
    );
    let note = format!("{without} {name} no release whose rule is known: that of {version} is used");
    Ok((version, Some(note)))
}
