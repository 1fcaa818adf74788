//! The cost of a halt on this host, as `dwell lab calibrate` measured and stored it.

use anyhow::{Context, bail};
use dwell_lab::experiment::calibrate::{Calibration, FORMAT};
use dwell_machine::{Sysroot, cpu, kernel};
use dwell_recording::{Metadata, newfile, regular};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where it is stored: `$XDG_STATE_HOME/dwell`, else `~/.local/state/dwell`.
pub(crate) fn path() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.context(
        "cannot find the stored calibration: neither XDG_STATE_HOME nor HOME is set to an absolute path",
    )?;
    Ok(state.join("dwell/halt-cost.json"))
}

/// Stores the calibration: written to a temporary file and renamed, so that it is complete or absent.
pub(crate) fn store(calibration: &Calibration, path: &Path) -> anyhow::Result<()> {
    let write = || -> anyhow::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        let text = serde_json::to_string_pretty(calibration)? + "\n";
        Ok(newfile::write(path, text.as_bytes())?)
    };
    write().with_context(|| format!("cannot store the calibration in {}", path.display()))
}

/// The largest calibration file that is read \[bytes\]; one has a few kilobytes.
const LONGEST: u64 = 1 << 20;

/// The calibration, if there is one.
///
/// # Errors
/// If it exists and cannot be read.
pub(crate) fn load(path: &Path) -> anyhow::Result<Option<Calibration>> {
    let text = match regular::read_text(path, LONGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let calibration: Calibration = serde_json::from_str(&text).with_context(|| {
        format!("cannot read {}: not a calibration; measure again with `dwell lab calibrate`", path.display())
    })?;
    if calibration.format != FORMAT {
        bail!(
            "cannot read {}: format {} is not supported, only {FORMAT}; measure again with `dwell lab calibrate`",
            path.display(),
            calibration.format
        );
    }
    Ok(Some(calibration))
}

/// The calibration, if it was made on a machine like that of a recording: of the same CPU model and kernel release.
///
/// # Errors
/// If it exists and cannot be read.
pub(crate) fn of_machine(metadata: &Metadata) -> anyhow::Result<Option<Calibration>> {
    let (Some(cpu_model), Some(kernel)) = (&metadata.cpu_model, &metadata.kernel) else { return Ok(None) };
    // Without a home directory there is no stored calibration.
    let Ok(path) = path() else { return Ok(None) };
    Ok(load(&path)?.filter(|stored| stored.cpu_model == *cpu_model && stored.kernel == *kernel))
}

/// The CPU and the kernel of this host, as recordings name them.
pub(crate) fn this_host() -> (String, String) {
    let machine = &Sysroot::of_this_machine();
    (cpu::model(machine).unwrap_or_default(), kernel::release(machine).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/down/halt-cost.json");
        assert_eq!(load(&path).unwrap(), None);
        let calibration = Calibration {
            format: FORMAT,
            cpu_model: "x".to_owned(),
            kernel: "6.12".to_owned(),
            measured_at_unix_s: 1,
            costs: vec![],
        };
        store(&calibration, &path).unwrap();
        assert_eq!(load(&path).unwrap(), Some(calibration.clone()));
        store(&Calibration { format: FORMAT + 1, ..calibration }, &path).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("measure again"));
        fs::write(&path, "{").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("not a calibration"));
    }
}
