use super::{Imported, import};
use dwell_recording::{Chunk, Columns, Layer};
use dwell_trace::import::csv;
use proptest::prelude::*;

pub(crate) fn csv(text: impl AsRef<[u8]>) -> Result<Imported, String> {
    let idler = csv::usual_idler(Layer::Guest);
    import(text.as_ref(), Layer::Guest, |input, writer| csv::import(input, idler, writer))
}

fn rows(text: &str) -> Vec<String> {
    csv(text).unwrap().rows()
}

fn error(text: impl AsRef<[u8]>) -> String {
    csv(text).err().expect("an error")
}

#[test]
fn reads_columns_in_any_order() {
    assert_eq!(rows("start_ns,idle_ns\n5,10\n"), ["cpu0 5 10 - - - - -"]);
    let all = "ready,halted,wake_latency_ns,idle_ns,wake,window_ns,start_ns,idler\n\
               \"1,fd 7\",true,3,10,timer,200,5,a\n,0,,0,,,18446744073709551615,\n";
    assert_eq!(rows(all), ["a 5 10 200 true timer 3 1+fd 7", "cpu0 18446744073709551615 0 - false - - -"]);
}

#[test]
fn reads_the_time_alone_on_the_cpu() {
    let reader = csv("start_ns,alone_ns,idle_ns\n5,,10\n6,0,11\n7,18446744073709551615,12\n").unwrap().reader;
    let mut chunk = Chunk::default();
    reader.read(0, Columns::ALONE_NS, &mut chunk).unwrap();
    assert_eq!(chunk.alone_ns, [None, Some(0), Some(u64::MAX)]);
    assert_eq!(reader.metadata().recorded, None);
}

/// A clock that was set forward between two idle times, which are in order for one idler after the other.
#[test]
fn a_long_time_without_anything_is_named() {
    let hour_ns = 3_600_000_000_000_u64;
    let notes = |text: String| csv(text).unwrap().summary.notes;
    let jump = format!("idler,start_ns,idle_ns\na,0,5\na,{hour_ns},7\n");
    let told = notes(jump.clone());
    assert!(
        told[0].starts_with("nothing is in the text for 3600 of 3600 s, from 0.000000005 s on"),
        "{told:?}"
    );
    // Another idler shows that time passed, or the idle time was as long.
    for line in ["b,7000000000,5", &format!("b,1,{hour_ns}")] {
        assert_eq!(notes(format!("{jump}{line}\n")), [""; 0], "{line}");
    }
}

#[test]
fn takes_what_spreadsheets_make_of_it() {
    let plain = rows("start_ns,idle_ns\n5,10\n6,11\n");
    assert_eq!(rows("\u{feff}start_ns,idle_ns\r\n5,10\r\n6,11"), plain);
    assert_eq!(rows("\"start_ns\",\"idle_ns\"\n\"5\",\"10\"\n\n6, 11 \n\n"), plain);
    assert_eq!(rows("start_ns,idle_ns,idler\n1,2,\"a \"\"b\"\", c\"\n"), ["a \"b\", c 1 2 - - - - -"]);
}

#[test]
fn idlers_go_through_time_each_for_itself() {
    assert_eq!(rows("start_ns,idle_ns,idler\n9,1,a\n5,1,b\n9,1,a\n").len(), 3);
    let text = error("start_ns,idle_ns,idler\n9,1,a\n5,1,b\n8,1,a\n");
    assert_eq!(
        text,
        "t: line 4, column `start_ns`: `8` is before 9, the start of the episode of idler `a` before it; sort the table"
    );
}

#[test]
fn episodes_that_overlap_are_counted_and_the_first_one_named() {
    assert_eq!(csv("start_ns,idle_ns\n5,10\n15,10\n").unwrap().summary.overlaps, None);
    let text = "start_ns,idle_ns,idler\n5,10,a\n6,10,b\n\n14,3,a\n16,1,b\n16,1,a\n17,1,a\n";
    let imported = csv(text).unwrap();
    let overlaps = imported.summary.overlaps.unwrap();
    assert_eq!((overlaps.episodes, overlaps.idler.as_str()), (2, "a"));
    assert_eq!((overlaps.start_ns, overlaps.line), (14, Some(5)));
    assert_eq!(imported.reader.metadata().other["dwell.overlaps"]["line"], 5);
}

#[test]
fn says_where_and_what_is_wrong() {
    let head = "start_ns,idle_ns\n1,2\n";
    for (text, wanted) in [
        ("", "t: the file is empty"),
        ("\n\n", "t: the file is empty"),
        ("start_ns,idle_ns\n", "t: no episodes"),
        ("start_ns,idle_ns\n\n\n", "t: no episodes"),
        (
            "start_ns,idle_ns,colour\n1,2,3",
            "t: line 1: unknown column `colour`; known: idler, start_ns, idle_ns,",
        ),
        ("start_ns\n1\n", "t: line 1: no column `idle_ns`"),
        ("idle_ns\n1\n", "t: line 1: no column `start_ns`"),
        ("start_ns,idle_ns,idle_ns\n", "t: line 1: column `idle_ns` is there twice"),
        (&format!("{head}3,-5\n"), "t: line 3, column `idle_ns`: `-5` is not a whole number"),
        (&format!("{head}3,+5\n"), "t: line 3, column `idle_ns`: `+5` is not a whole number"),
        (&format!("{head}1e3,5\n"), "t: line 3, column `start_ns`: `1e3` is not a whole number"),
        (&format!("{head}3,18446744073709551616\n"), "`18446744073709551616` is more than 2^64 - 1"),
        (
            &format!("{head}18446744073709551615,1\n"),
            "t: line 3, column `idle_ns`: `1` ends the episode after 2^64 - 1 ns",
        ),
        (&format!("{head}3,\n"), "t: line 3, column `idle_ns`: `` is empty"),
        (
            &format!("{head}idle_ns,start_ns\n2,3\n"),
            "t: line 3 names the columns of another table: import each",
        ),
        (&format!("{head}\nidler,start_ns,idle_ns\nb,2,3\n"), "t: line 4 names the columns of another table"),
        (
            "start_ns,idle_ns\r1,2\r",
            "t: its lines end with CR alone; make them end with LF by `tr '\\r' '\\n' < FILE`",
        ),
        (&format!("{head}3\n"), "t: line 3 has 1 fields, the first has 2: `3`"),
        (&format!("{head}3,4,5\n"), "t: line 3 has 3 fields, the first has 2: `3,4,5`"),
        (&format!("{head}\n\"3,4\n"), "t: line 4: a quoted field does not end"),
        ("start_ns,idle_ns,halted\n1,2,maybe", "column `halted`: `maybe` is neither `true` nor `false`"),
        (
            "start_ns,idle_ns,wake\n1,2,mouse",
            "column `wake`: `mouse` is no kind of wakeup event; known: irq,",
        ),
        ("start_ns,idle_ns,ready\n1,2,\"a,,b\"", "column `ready`: `` is no name of a handler"),
    ] {
        let found = error(text);
        assert!(found.contains(wanted), "{text:?}\n  wanted {wanted}\n  found  {found}");
    }
    assert!(error(b"start_ns,idle_ns,idler\n1,2,\xff").contains("is not UTF-8"));
    for text in [b"\xff\xfes\0t\0", b"\xfe\xff\0s\0t"] {
        assert!(error(text).contains("is UTF-16") && error(text).contains("`iconv -f UTF-16 -t UTF-8`"));
    }
    assert!(error(vec![b'x'; 2 << 20]).contains("line 1 has more than 1048576 bytes"));
}

/// Splits and parses without any care: the oracle for tables that are in order.
fn naive(text: &str) -> Vec<String> {
    text.lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let or =
                |field: &str, other: &str| if field.is_empty() { other.to_owned() } else { field.to_owned() };
            format!("{} {} {} {} - - - -", or(fields[2], "cpu0"), fields[0], fields[1], or(fields[3], "-"))
        })
        .collect()
}

proptest! {
    #[test]
    fn agrees_with_a_naive_split(
        mut starts in prop::collection::vec(0..u64::MAX / 2, 1..50),
        rest in prop::collection::vec((0..u64::MAX / 2, "[a-z]{0,2}", prop::option::of(any::<u64>())), 50),
    ) {
        starts.sort_unstable();
        let mut text = String::from("start_ns,idle_ns,idler,window_ns\n");
        for (start, (idle, idler, window)) in starts.iter().zip(&rest) {
            let window = window.map(|ns| ns.to_string()).unwrap_or_default();
            text.push_str(&format!("{start},{idle},{idler},{window}\n"));
        }
        prop_assert_eq!(csv(&text).unwrap().rows(), naive(&text));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = csv(&bytes);
        let mut table = b"start_ns,idle_ns,idler,window_ns,halted,wake,ready\n".to_vec();
        table.extend(&bytes);
        let _ = csv(&table);
    }

    #[test]
    fn mutated_tables_do_not_panic(at in 0usize..80, byte in any::<u8>()) {
        let mut table = b"start_ns,idle_ns,wake,ready\n1,2,io,\"a,b\"\n3,4,,\n18446744073709551615,0,irq,c\n".to_vec();
        let at = at % table.len();
        table[at] = byte;
        let _ = csv(&table);
        table.remove(at);
        let _ = csv(&table);
    }
}
