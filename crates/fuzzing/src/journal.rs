//! A file of the journal of any bytes: an error, or a change that is the same once written and read again. So that the
//! fuzzer gets past the checksum, the bytes are also taken for what follows the first line.

use dwell_knobs::journal::{FORMAT, decode, encode};

pub fn run(data: &[u8]) {
    let _ = decode("", data);
    let sum = crc32fast::hash(data);
    let mut bytes = format!("dwell journal {FORMAT} bytes={} crc32={sum:08x}\n", data.len()).into_bytes();
    bytes.extend(data);
    if let Ok(change) = decode("", &bytes) {
        // Of figures JSON keeps all but the last bit.
        let again = decode("", &encode(&change)).unwrap();
        assert_eq!(
            (again.id, again.state, again.entries, again.back),
            (change.id, change.state, change.entries, change.back)
        );
    }
}
