//! Of which releases the recordings of a fleet are: they decide the rule where no release is given.

use crate::costs::label_of;
use crate::sketch::{Input, same_rule};
use dwell_policy::Layer;
use dwell_policy::param::known_version;
use dwell_policy::version::Version;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

/// The releases of Linux, or of QEMU for I/O threads, that decide the rule of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Releases {
    /// Those whose rules are known.
    pub known: BTreeSet<Version>,
    /// Recordings that name none, or one whose rule is not known, and sketches of these.
    pub without: Vec<String>,
}

/// What one file shows: the release, and whether the recording named it; `None` of a sketch of other rules.
fn release_of(input: &Input, layer: Layer) -> Option<(Option<Version>, bool)> {
    let key = if layer == Layer::Iothread { "qemu" } else { "kernel" };
    let known = |text: &String| Version::parse(text).filter(|&version| known_version(layer, version).is_ok());
    match input {
        Input::Recording(reader) => {
            let version = label_of(reader.metadata(), key).as_ref().and_then(known);
            Some((version, version.is_some()))
        }
        Input::Sketch(sketch) => {
            let (_, version, _) = sketch.rules().find(|(name, ..)| *name == layer.name())?;
            Some((Some(version), sketch.header().labels.get(key).and_then(known).is_some()))
        }
    }
}

impl Releases {
    /// Those of the files in a folder that can be opened.
    pub fn of_files(folder: &Path, recordings: &[String], layer: Layer) -> Releases {
        let release = |recording: &String| {
            let (version, is_named) = release_of(&Input::open(&folder.join(recording)).ok()?, layer)?;
            Some((version, (!is_named).then(|| recording.clone())))
        };
        let found: Vec<_> = recordings.par_iter().filter_map(release).collect();
        Releases {
            known: found.iter().filter_map(|(version, _)| *version).collect(),
            without: found.into_iter().filter_map(|(_, without)| without).collect(),
        }
    }

    /// The release whose rule is that of all that are known; `None` where there is none, or where rules differ.
    pub fn rule(&self, layer: Layer) -> Option<Version> {
        let first = *self.known.first()?;
        let same = |other: &Version| other.arch == first.arch && same_rule(layer, first, *other);
        self.known.iter().all(same).then_some(first)
    }

    /// Those that are known, in words.
    pub fn words(&self) -> String {
        self.known.iter().map(Version::to_string).collect::<Vec<_>>().join(", ")
    }
}
