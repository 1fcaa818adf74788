//! What is no recording, or no longer one, is refused with a reason; nothing panics.

use bytes::Bytes;
use dwell_recording::{
    Chunk, Columns, Episode, Layer, Metadata, NewFileError, OpenError, Packing, ReadError, Reader, WakeCause,
    WriteError, Writer,
};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::{KeyValue, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use std::sync::Arc;

fn good() -> Vec<u8> {
    let packing = Packing { rows_per_group: 40, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Iothread), packing).unwrap();
    for start_ns in 0..100 {
        writer
            .push(&Episode {
                window_ns: (start_ns % 3 == 0).then_some(start_ns),
                halted: Some(start_ns % 2 == 0),
                wake: Some(WakeCause::Io),
                wake_latency_ns: Some(start_ns * 7),
                ready: Some(&["a", "b"]),
                alone_ns: Some(start_ns),
                ..Episode::new(if start_ns % 5 == 0 { "x" } else { "y" }, start_ns, start_ns * start_ns)
            })
            .unwrap();
    }
    writer.close().unwrap().1
}

/// Opens and reads all; whatever fails, fails with an error.
fn read_all(bytes: &[u8]) -> Result<u64, String> {
    let reader = Reader::from_bytes("m", bytes.to_vec()).map_err(|error| error.to_string())?;
    let mut chunk = Chunk::default();
    let mut rows = 0;
    for row_group in 0..reader.row_groups() {
        reader.read(row_group, Columns::ALL, &mut chunk).map_err(|error| error.to_string())?;
        rows += chunk.rows as u64;
    }
    assert_eq!(rows, reader.episodes());
    Ok(rows)
}

const KEYS: [(&str, &str); 3] = [
    ("dwell.format", "1"),
    (
        "dwell.recording",
        r#"{"layer":"guest","source":{},"idle_includes":"wake","clock":"unknown","from the future":1}"#,
    ),
    (
        "dwell.contents",
        r#"{"episodes":1,"first_start_ns":1,"last_end_ns":2,"idlers":[{"name":"cpu0","episodes":1}]}"#,
    ),
];

/// A Parquet file of one row by hand; every integer column holds 1, every other `cpu0`.
fn foreign(columns: &str, keys: &[(&str, &str)]) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(&format!("message x {{ {columns} }}")).unwrap());
    let mut file =
        SerializedFileWriter::new(Vec::new(), schema.clone(), Arc::new(WriterProperties::new())).unwrap();
    let mut group = file.next_row_group().unwrap();
    for field in schema.get_fields() {
        let mut column = group.next_column().unwrap().unwrap();
        let null = field.name().ends_with("null") || field.is_optional();
        let levels: Option<&[i16]> = field.is_optional().then_some(&[0]);
        let rows = usize::from(!null);
        if field.get_physical_type() == parquet::basic::Type::INT64 {
            column.typed::<Int64Type>().write_batch(&[1][..rows], levels, None).unwrap();
        } else {
            let text = [ByteArray::from("cpu0")];
            column.typed::<ByteArrayType>().write_batch(&text[..rows], levels, None).unwrap();
        }
        column.close().unwrap();
    }
    group.close().unwrap();
    for (key, value) in keys {
        file.append_key_value_metadata(KeyValue::new((*key).to_owned(), (*value).to_owned()));
    }
    file.into_inner().unwrap()
}

const IDLER: &str = "required binary idler (STRING);";
const START: &str = "required int64 start_ns (INTEGER(64,false));";
const IDLE: &str = "required int64 idle_ns (INTEGER(64,false));";

#[test]
fn what_others_write_is_read_if_it_is_complete() {
    let columns = format!("{IDLE}{START} required int64 weight; {IDLER}");
    let reader = Reader::from_bytes("m", foreign(&columns, &KEYS)).unwrap();
    assert_eq!(reader.metadata().other["from the future"], 1);
    let mut chunk = Chunk::default();
    reader.read(0, Columns::ALL, &mut chunk).unwrap();
    assert_eq!((&chunk.idler[..], &chunk.start_ns[..], &chunk.idle_ns[..]), (&[0][..], &[1][..], &[1][..]));
    assert_eq!((&chunk.window_ns[..], &chunk.halted[..], chunk.ready(0)), (&[None][..], &[None][..], None));
    assert_eq!(chunk.alone_ns, [None], "as in the files of dwell 0.1, which lack the column");
    let past = reader.read(1, Columns::default(), &mut chunk);
    assert!(matches!(past, Err(ReadError::NoSuchRowGroup { row_group: 1, row_groups: 1, .. })));
}

#[test]
fn what_is_missing_or_of_another_type_is_named() {
    let all = format!("{IDLER}{START}{IDLE}");
    let with = |key: usize, value: &'static str| {
        let mut keys = KEYS;
        keys[key].1 = value;
        foreign(&all, &keys)
    };
    for (bytes, wanted) in [
        (Vec::new(), "m: the file is empty"),
        (b"start_ns,idle_ns\n1,2\n".to_vec(), "m: not a Parquet file, or a damaged one"),
        (
            b"PERFILE2\0".to_vec(),
            "m: a perf.data of perf, no recording of dwell's; `dwell import m --convert",
        ),
        (b"\x1f\x8b\x08\0".to_vec(), "m: is compressed by gzip; unpack it first"),
        ([&[b'a'; 257][..], b"ustar\0"].concat(), "m: is a tar archive; unpack it first"),
        (b"PAR1\x15\x04".to_vec(), "m: the file is cut off after 6 bytes"),
        (b"\x17\x08\x44tracing6".to_vec(), "m: a trace.dat of trace-cmd, no recording"),
        (b"PAR1PAR1PAR1".to_vec(), "m: not a Parquet file, or a damaged one"),
        (
            foreign(&all, &[]),
            "m: not a dwell recording: no `dwell.format` metadata; `dwell import` reads plain tables",
        ),
        (foreign(&all, &KEYS[..1]), "no `dwell.recording` metadata"),
        (foreign(&all, &KEYS[..2]), "no `dwell.contents` metadata"),
        (with(0, "2"), "m: `dwell.format` is `2`; this program reads `1`: use a newer dwell"),
        (with(1, "{"), "m: metadata `dwell.recording` cannot be understood"),
        (with(1, r#"{"layer":"moon"}"#), "m: metadata `dwell.recording` cannot be understood"),
        (
            with(2, r#"{"episodes":2,"idlers":[{"name":"cpu0","episodes":2}]}"#),
            "there are 1 rows, `dwell.contents` says 2 episodes and 2 over all idlers",
        ),
        (
            with(2, r#"{"episodes":1,"idlers":[{"name":"a","episodes":0},{"name":"a","episodes":1}]}"#),
            "idler `a` twice",
        ),
        (
            foreign(&format!("{IDLER}{START}"), &KEYS),
            "m: no column `idle_ns`; a recording has one, a 64-bit unsigned",
        ),
        (
            foreign(&format!("{IDLER}{START} required int64 idle_ns;"), &KEYS),
            "m: column `idle_ns` is INT64; it must be a 64-bit unsigned integer",
        ),
        (
            foreign(&format!("{IDLER}{IDLE} required binary start_ns (STRING);"), &KEYS),
            "m: column `start_ns` is BYTE_ARRAY",
        ),
        (
            foreign(&format!("{IDLER}{START}{IDLE} optional int64 halted;"), &KEYS),
            "m: column `halted` is INT64",
        ),
        (
            foreign(&format!("{START}{IDLE} required binary idler;"), &KEYS),
            "m: column `idler` is BYTE_ARRAY; it must be a string",
        ),
        (
            foreign(&format!("{IDLER}{START} optional int64 idle_ns (INTEGER(64,false));"), &KEYS),
            "m: row 0 of row group 0, `idle_ns`: null, where there must be a value",
        ),
        (
            with(2, r#"{"episodes":1,"idlers":[{"name":"cpu1","episodes":1}]}"#),
            "m: row 0 of row group 0, `idler`: idler `cpu0` is not in the list of idlers",
        ),
        (
            foreign(&format!("{all} required binary wake (STRING);"), &KEYS),
            "m: row 0 of row group 0, `wake`: `cpu0` is no kind of wakeup event",
        ),
    ] {
        let found = read_all(&bytes).expect_err(wanted);
        assert!(found.contains(wanted), "\n  wanted {wanted}\n  found  {found}");
    }
}

#[test]
fn the_cause_names_the_field() {
    let keys = [KEYS[0], ("dwell.recording", r#"{"layer":"moon"}"#), KEYS[2]];
    let error = Reader::from_bytes("m", foreign(&format!("{IDLER}{START}{IDLE}"), &keys)).err().unwrap();
    let OpenError::BadMetadata { source, .. } = error else { panic!("{error}") };
    assert!(
        source.to_string().starts_with("unknown layer `moon`; known: guest, host, timer, driver, iothread"),
        "{source}"
    );
}

#[test]
fn cut_off_anywhere_is_refused() {
    let whole = good();
    assert_eq!(read_all(&whole), Ok(100));
    for length in 0..whole.len() {
        assert!(read_all(&whole[..length]).is_err(), "cut off after {length} of {} bytes", whole.len());
    }
}

/// Thrift's compact form of a number of 32 bits: the sign is the lowest bit, seven bits to a byte.
fn varint(number: i32) -> Vec<u8> {
    let mut rest = (number << 1 ^ number >> 31).cast_unsigned();
    let mut bytes = vec![];
    while rest >= 0x80 {
        bytes.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

fn field(number: i32) -> Vec<u8> {
    [vec![0x15], varint(number)].concat()
}

/// A recording of one row whose last column chunk has other pages. `pages` is given the bytes of the one data page.
fn with_pages(columns: &str, pages: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let bytes = foreign(columns, &KEYS);
    let footer = ParquetMetaDataReader::new().parse_and_finish(&Bytes::from(bytes.clone())).unwrap();
    let mut group = footer.row_group(0).clone().into_builder();
    let mut chunks = group.take_columns();
    let last = chunks.pop().unwrap();
    let (start, length) = last.byte_range();
    let (start, length) = (usize::try_from(start).unwrap(), usize::try_from(length).unwrap());
    let new = pages(&bytes[start..start + length]);
    let last = last
        .into_builder()
        .set_data_page_offset(i64::try_from(start).unwrap())
        .set_dictionary_page_offset(None)
        .set_total_compressed_size(i64::try_from(new.len()).unwrap())
        .build()
        .unwrap();
    let group = group.set_column_metadata(chunks).add_column_metadata(last).build().unwrap();
    let footer = footer.into_builder().set_row_groups(vec![group]).build();
    let mut out = [&bytes[..start], &new].concat();
    ParquetMetaDataWriter::new(&mut out, &footer).finish().unwrap();
    out
}

/// A page of plain values, type 0, with these numbers in its header.
fn data_page(uncompressed: i32, body: &[u8], values: i32, encoding: i32) -> Vec<u8> {
    let compressed = i32::try_from(body.len()).unwrap();
    // The encodings of levels are RLE, 3.
    let own = [field(values), field(encoding), field(3), field(3), vec![0]].concat();
    [field(0), field(uncompressed), field(compressed), vec![0x2c], own, vec![0], body.to_vec()].concat()
}

/// A dictionary, type 2, of plain values.
fn dictionary_page(values: i32, body: &[u8]) -> Vec<u8> {
    let size = i32::try_from(body.len()).unwrap();
    let own = [field(values), field(0), vec![0]].concat();
    [field(2), field(size), field(size), vec![0x4c], own, vec![0], body.to_vec()].concat()
}

/// A list may claim 2^31 booleans in six bytes, of which the Parquet library reads none, one by one. 500 such
/// lists kept it busy for minutes; libFuzzer found that.
#[test]
fn a_footer_that_claims_more_than_it_holds_is_refused() {
    let bytes = good();
    let tail = bytes.len() - 8;
    let length = usize::try_from(u32::from_le_bytes(*bytes[tail..].first_chunk().unwrap())).unwrap();
    // The last byte of the footer ends its struct; fields follow each other by one.
    let with = |fields: &[u8]| {
        let footer = [&bytes[tail - length..tail - 1], fields, &[0]].concat();
        let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
        [&bytes[..tail - length], &footer, &size, b"PAR1"].concat()
    };
    // A number in field 100, which the format does not have, is passed over.
    assert_eq!(read_all(&with(&[0x05, 0xc8, 1, 7])), Ok(100));
    let refused = |fields: &[u8]| {
        let error = Reader::from_bytes("m", with(fields)).map(drop).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("the footer is not one that the format allows"), "{source}");
    };
    for kind in [1, 2] {
        let list = [0x09, 0xc8, 1, 0xf0 | kind, 0xff, 0xff, 0xff, 0xff, 7];
        refused(&list);
        refused(&list.repeat(500));
        let set = [0x0a, 0xc8, 1, 0xf0 | kind, 0xff, 0xff, 0xff, 0xff, 7];
        refused(&set);
        let map = [0x0b, 0xc8, 1, 0xff, 0xff, 0xff, 0xff, 7, kind << 4 | kind];
        refused(&map);
        // The same in a struct, and a known field (`created_by`, 6) that is said to be a boolean and holds a list.
        refused(&[&[0x0c, 0xc8, 1][..], &list, &[0]].concat());
        refused(&[&[kind, 12, 9][..], &list].concat());
    }
}

/// A Parquet file without rows, whose schema has nodes of so many children, in the order of the tree.
fn of_schema(children: &[i32]) -> Vec<u8> {
    let node = |&children: &i32| [vec![0x15, 4, 0x25, 0, 0x18, 1, b'a'], field(children), vec![0]].concat();
    let count =
        [u8::try_from(children.len() & 0x7f).unwrap() | 0x80, u8::try_from(children.len() >> 7).unwrap()];
    let schema = children.iter().flat_map(node).collect();
    let footer = [field(1), vec![0x19, 0xfc], count.to_vec(), schema, vec![0x16, 0, 0x19, 0x0c, 0]].concat();
    let size = u32::try_from(footer.len()).unwrap().to_le_bytes();
    [b"PAR1", &footer[..], &size, b"PAR1"].concat()
}

/// 10,000 nodes within each other overflowed the stack of the Parquet library, and 2^31 children took 16 GiB.
#[test]
fn a_schema_of_too_many_levels_nodes_or_children_is_refused() {
    let chain = |levels: usize| [vec![1; levels], vec![0]].concat();
    let flat = |children: i32| [vec![children], vec![0; usize::try_from(children).unwrap()]].concat();
    for (schema, wanted) in [
        (chain(8), "no `dwell.format` metadata"),
        (chain(9), "the footer has a schema of more than 8 levels"),
        (vec![2, 1, 2, 0, 0, 0], "no `dwell.format` metadata"),
        (flat(4095), "no `dwell.format` metadata"),
        (flat(4096), "the footer has a schema of 4097 nodes, and at most 4096 are read"),
        (vec![2, 0], "the footer has a node of 2 children in its schema, and 1 nodes follow"),
        (vec![1, 0, 0], "the footer is not one that the format allows"),
    ] {
        let error = Reader::from_bytes("m", of_schema(&schema)).map(drop).unwrap_err();
        let error = dwell_recording::with_causes(&error).to_string();
        assert!(error.contains(wanted), "wanted {wanted}: {error}");
    }
}

#[test]
fn a_page_that_claims_more_than_can_be_true_is_refused_before_memory_is_taken() {
    let columns = format!("{START}{IDLE}{IDLER}");
    let name = b"\x04\0\0\0cpu0";
    let read = |pages: Vec<u8>| read_all(&with_pages(&columns, |_| pages.clone()));
    assert_eq!(read(data_page(8, name, 1, 0)), Ok(1), "the same by hand");
    assert_eq!(read_all(&with_pages(&columns, <[u8]>::to_vec)), Ok(1), "the pages of the library");
    let damaged = "cannot read `idler` in row group 0; the file is damaged";
    for (pages, why) in [
        (data_page(i32::MAX, name, 1, 0), "claims 2147483647 bytes, and at most 134217728 are read"),
        (data_page(-1, name, 1, 0), "claims -1 bytes"),
        (data_page(8, name, i32::MAX, 0), "claims 2147483647 values, and its row group 1 rows"),
        (data_page(8, name, -1, 0), "claims -1 values"),
        ([dictionary_page(i32::MAX, name), data_page(2, &[1, 2], 1, 8)].concat(), "claims 2147483647 values"),
        // Block size, blocks, and 2^40 lengths: memory would be taken for so many.
        (data_page(9, &[0x80, 1, 4, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20], 1, 6), "delta-encoded strings"),
        (data_page(9, &[0x80, 1, 4, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20], 1, 7), "delta-encoded strings"),
        // The same size in a field of another type, and behind a list.
        ([vec![0x15, 0, 0x16], varint(i32::MAX), field(8), vec![0]].concat(), "header that cannot be read"),
        (
            [field(0), field(8), field(8), vec![0xf9, 0xf1, 0xff, 0xff, 0x7f]].concat(),
            "header that cannot be read",
        ),
    ] {
        let bytes = with_pages(&columns, |_| pages.clone());
        let reader = Reader::from_bytes("m", bytes).unwrap();
        let error = reader.read(0, Columns::ALL, &mut Chunk::default()).expect_err(why);
        assert!(error.to_string().ends_with(damaged), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(why), "wanted {why}: {source}");
    }
}

#[test]
fn a_file_that_is_not_there_or_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Reader::open(&dir.path().join("none.parquet"));
    assert!(matches!(missing, Err(OpenError::Unreadable { .. })));
    assert!(Reader::open(dir.path()).is_err());
    let nowhere = Writer::create(&dir.path().join("no/such/a.parquet"), Metadata::new(Layer::Guest));
    assert!(matches!(nowhere, Err(WriteError::File(NewFileError::Create { .. }))));
    let over = Writer::create(dir.path(), Metadata::new(Layer::Guest));
    assert!(matches!(over, Err(WriteError::File(NewFileError::NotRegular { .. }))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn changed_bytes_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = good();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = read_all(&bytes);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(read_all(&bytes).is_err());
        let mut framed = b"PAR1".to_vec();
        framed.extend(&bytes);
        framed.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
        framed.extend(b"PAR1");
        prop_assert!(read_all(&framed).is_err());
    }
}
