//! A trace of any bytes: an error, or a table whose rows add up and print.

use dwell_trace::exits::ExitTable;
use dwell_trace::import::Input;

pub fn run(data: &[u8]) {
    let Ok(input) = Input::new("fuzz", data) else { return };
    let Ok(table) = ExitTable::read(input) else { return };
    assert_eq!(table.rows.iter().map(|row| row.samples).sum::<u64>(), table.total_samples);
    assert!(table.rows.iter().all(|row| row.samples > 0 && row.min_ns <= row.max_ns));
    assert!(!table.render(20).is_empty());
}
