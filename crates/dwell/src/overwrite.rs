//! Files that a command writes: one that is there already is replaced only if that was asked for.

use anyhow::bail;
use std::path::Path;

/// `--force`, the same for every command that writes an output file.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct ForceArg {
    /// Replace the output file if it exists
    #[arg(long)]
    force: bool,
}

impl ForceArg {
    /// Refuses a file that is there already. To be asked before the work begins.
    pub(crate) fn may_write(self, path: &Path) -> anyhow::Result<()> {
        may_write(path, self.force, "--force replaces it")
    }
}

/// Refuses a file that is there already, unless it may be replaced.
pub(crate) fn may_write(path: &Path, replace: bool, remedy: &str) -> anyhow::Result<()> {
    // What is not a regular file is refused with its own reason when it is written.
    if !replace && path.symlink_metadata().is_ok_and(|there| there.is_file()) {
        bail!("cannot write {}: the file exists; {remedy}, or name another file", path.display());
    }
    Ok(())
}
