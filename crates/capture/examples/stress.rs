//! How many wakes a second can be recorded without loss, and in how much memory?
//!
//! ```text
//! cargo run --release -p dwell-capture --example stress -- [SECONDS [WAKES_PER_SECOND]]
//! ```
//! One pair of threads on each CPU wake each other through eventfds and ppoll(2) and are recorded, two trace events for each
//! wake. Every wait is to be an episode in the file; what was lost is printed.

#[path = "../tests/common/pingpong.rs"]
mod pingpong;

use dwell_capture::{Recorder, Target, Until};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let seconds = arguments.next().transpose()?.unwrap_or(60);
    let rate = arguments.next().transpose()?.unwrap_or(200_000);
    let target = Target::Thread { pid: None, comm: Some(pingpong::COMM.to_owned()) };
    let recorder = Recorder::open(target, None)?;
    let file = std::env::temp_dir().join(format!("dwell-stress-{}.parquet", std::process::id()));
    let load = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let load = pingpong::PingPong::start(rate);
        std::thread::sleep(Duration::from_secs(seconds));
        load.stop()
    });
    let stop = AtomicBool::new(false);
    let until = Until { duration: Some(Duration::from_secs(seconds + 2)), stop: &stop };
    let summary = recorder.to_file(&file, &until, &mut ());
    let bytes = std::fs::metadata(&file).map_or(0, |metadata| metadata.len());
    let _ = std::fs::remove_file(&file);
    let (summary, waits) = (summary?, load.join().map_err(|_| "the load panicked")?);
    let status = summary.status;
    println!(
        "{seconds} s: {waits} wakes ({} a second), {} episodes, {} events ({} a second), {} lost, {} incomplete; \
         peak memory {} kB, file {bytes} bytes",
        waits / seconds.max(1),
        status.episodes,
        status.events,
        status.events / seconds.max(1),
        status.lost,
        status.incomplete,
        pingpong::peak_memory_kb(),
    );
    Ok(())
}
