//! Files that a command writes: one that is there already is replaced only if that was asked for.

use anyhow::{bail, ensure};
use dwell_recording::NewFile;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};

/// `--force`, the same for every command that writes an output file.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ForceArg {
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
}

impl ForceArg {
    /// Refuses a file that is there already, or cannot be written. To be asked before the work begins.
    pub(crate) fn may_write<'a>(
        self,
        path: &Path,
        inputs: impl IntoIterator<Item = &'a PathBuf>,
    ) -> anyhow::Result<()> {
        may_write(path, self.force, "--force replaces it", inputs)
    }

    /// The same for several files, of which no two may be one.
    pub(crate) fn may_write_all(self, paths: &[PathBuf], inputs: &[PathBuf]) -> anyhow::Result<()> {
        for (at, path) in paths.iter().enumerate() {
            let is_path = |other: &PathBuf| absolute(other).ok() == absolute(path).ok();
            ensure!(
                !paths[..at].iter().any(is_path),
                "cannot write {}: it is the file of another result; name another one",
                path.display()
            );
            self.may_write(path, inputs)?;
        }
        Ok(())
    }
}

/// Refuses a file that cannot be written, and one that is there already, unless it may be replaced; one of the inputs may
/// not.
pub(crate) fn may_write<'a>(
    path: &Path,
    replace: bool,
    remedy: &str,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
) -> anyhow::Result<()> {
    ensure!(
        path != Path::new("-"),
        "cannot write -: this output goes to a file, not to stdout; give its name, such as ./-"
    );
    let file = |path: &Path| path.metadata().map(|there| (there.dev(), there.ino())).ok();
    if let Some(there) = file(path)
        && let Some(input) = inputs.into_iter().find(|input| file(input) == Some(there))
    {
        bail!("cannot write {}: it is the input {}; name another file", path.display(), input.display());
    }
    if !replace && path.symlink_metadata().is_ok_and(|there| there.is_file()) {
        bail!("cannot write {}: the file exists; {remedy}, or name another file", path.display());
    }
    // What cannot be written is found before the work and not after it.
    Ok(NewFile::private(path).map(drop)?)
}
