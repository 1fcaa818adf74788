//! Writes the seeds of every target into a folder, as `cargo fuzz` takes them:
//! `cargo run --example seeds fuzz/corpus`.
#![allow(clippy::unwrap_used)]

use dwell_fuzzing::{TARGETS, seeds};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "fuzz/corpus".into()));
    for (target, _) in TARGETS {
        let folder = folder.join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds::of(target).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
