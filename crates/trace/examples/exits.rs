//! Prints the table of VM exits of the text of `perf script`, plain or gzip:
//!
//! `cargo run -p dwell-trace --example exits -- FILE`

use dwell_trace::exits::ExitTable;
use dwell_trace::import::Input;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: exits FILE")?;
    print!("{}", ExitTable::read(Input::open(path.as_ref())?)?.render(20));
    Ok(())
}
