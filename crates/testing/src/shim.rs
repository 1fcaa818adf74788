//! Libraries that replace functions of a program: `LD_PRELOAD`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a shared library from C in a folder.
///
/// # Errors
/// The cause why that cannot be here.
///
/// # Panics
/// If the compiler reports an error, or the folder cannot be written to.
pub fn compiled(folder: &Path, source: &str) -> Result<PathBuf, String> {
    let (file, library) = (folder.join("shim.c"), folder.join("shim.so"));
    std::fs::write(&file, source).expect("the shim can be written");
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &file])
        .arg("-ldl")
        .output()
        .map_err(|error| format!("no C compiler ({error})"))?;
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Ok(library)
}
