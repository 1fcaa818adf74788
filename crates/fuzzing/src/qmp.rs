//! A monitor that sends any bytes: an error, or values. The first byte chooses whether it greets properly
//! before, and what is asked.

use dwell_knobs::iothread;
use dwell_knobs::qmp::{Limits, Monitor};
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const GREETING: &[u8] =
    b"{\"QMP\":{\"version\":{\"qemu\":{\"micro\":1,\"minor\":2,\"major\":7},\"package\":\"x\"},\
    \"capabilities\":[]}}\n{\"return\":{},\"id\":1}\n";
/// So much fits into a socket before anybody reads.
const MOST: usize = 60_000;

pub fn run(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    if data.len() > MOST {
        return;
    }
    let (mut theirs, ours) = UnixStream::pair().unwrap();
    if choice & 1 == 0 {
        theirs.write_all(GREETING).unwrap();
    }
    theirs.write_all(data).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    let limits =
        Limits { answer_within: Duration::from_millis(300), line_bytes: 1 << 15, ..Limits::default() };
    let Ok(mut monitor) = Monitor::over(ours, "/x".as_ref(), limits) else { return };
    let _ = iothread::list(&mut monitor);
    let _ = iothread::find(&mut monitor, "io0");
    let _ = match choice & 2 {
        0 => iothread::get(&mut monitor, "io0", "poll-max-ns").map(drop),
        _ => iothread::put(&mut monitor, "io0", "poll-max-ns", 5),
    };
}
