//! Records the vCPUs of this host for one second:
//!
//! `cargo run -p dwell-capture --example record -- FILE`

use dwell_capture::{Recorder, Target, Until};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: record FILE")?;
    let recorder =
        Recorder::open(Target::Host { pid: None, exits: false, contention: false, causes: false }, None)?;
    let until = Until { duration: Some(Duration::from_secs(1)), stop: &AtomicBool::new(false) };
    let summary = recorder.to_file(path.as_ref(), &until, &mut ())?;
    println!("{} episodes of {} vCPUs", summary.contents.episodes, summary.contents.idlers.len());
    Ok(())
}
