use super::csv::csv;
use flate2::{Compression, write::GzEncoder};
use std::io::Write;

fn gz(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn is_told_by_its_magic_and_may_have_members() {
    let mut bytes = gz("\u{feff}start_ns,idle_ns\n1,2\n3".as_bytes());
    bytes.extend(gz(b",4\n"));
    assert_eq!(csv(&bytes).unwrap().rows(), ["cpu0 1 2 - - - - -", "cpu0 3 4 - - - - -"]);
}

#[test]
fn cut_off_at_any_byte_is_an_error() {
    let whole = gz(b"start_ns,idle_ns\n1,2\n3,4\n5,6\n");
    csv(&whole).unwrap();
    for length in 0..whole.len() {
        assert!(csv(&whole[..length]).is_err(), "cut off after {length} of {} bytes", whole.len());
    }
    let error = csv(&whole[..whole.len() - 1]).err().unwrap();
    let how = "the gzip data is cut off or damaged (`gzip -dc FILE | dwell import -` reads what is there)";
    assert!(error.ends_with(how), "{error}");
}

#[test]
fn cut_off_in_the_second_member_is_an_error() {
    let first = gz(b"start_ns,idle_ns\n1,2\n");
    let mut whole = first.clone();
    whole.extend(gz(b"3,4\n5,6\n"));
    for length in first.len() + 1..whole.len() {
        assert!(csv(&whole[..length]).is_err(), "cut off after {length} of {} bytes", whole.len());
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_in_the_header() {
    let whole = gz(b"start_ns,idle_ns\n1,2\n3,4\n");
    let rows = csv(&whole).unwrap().rows();
    for at in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        if let Ok(imported) = csv(&bytes) {
            assert_eq!(imported.rows(), rows, "bit {at}");
        }
    }
}
