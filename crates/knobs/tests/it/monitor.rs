//! The client against monitors that behave, and against monitors that do not: whatever they send or keep
//! back, every call ends in time with an error that says what happened.

use dwell_knobs::iothread::{self, IothreadError};
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::qmp::{self, Limits, Monitor, QmpError};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}, \
                        \"package\": \"Debian\"}, \"capabilities\": [\"oob\"]}}\r\n";

/// Where an answer does not come.
fn limits() -> Limits {
    Limits { answer_within: Duration::from_millis(300), ..patient() }
}

/// Where one comes, on however busy a machine.
fn patient() -> Limits {
    Limits { answer_within: Duration::from_secs(60), line_bytes: 10_000, ..Limits::default() }
}

fn over(stream: UnixStream) -> Result<Monitor, QmpError> {
    Monitor::over(stream, Path::new("sock"), patient())
}

/// The error where these are its first words, and there are no others.
fn refused(words: impl AsRef<[u8]>) -> String {
    refused_within(words, patient())
}

/// The same where it is silent then.
fn silent(words: impl AsRef<[u8]>) -> String {
    refused_within(words, limits())
}

fn refused_within(words: impl AsRef<[u8]>, limits: Limits) -> String {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(words.as_ref()).unwrap();
    Monitor::over(ours, Path::new("sock"), limits).expect_err("an error").to_string()
}

/// A monitor that greets and answers each command as `answer` says, with `{id}` in place of the command's id.
fn answering(mut answer: impl FnMut(&Value) -> String + Send + 'static) -> (Monitor, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = spawn(move || {
        let mut out = theirs.try_clone().unwrap();
        out.write_all(GREETING.as_bytes()).unwrap();
        for line in BufReader::new(theirs).lines() {
            let Ok(line) = line else { return };
            let request: Value = serde_json::from_str(&line).unwrap();
            let words = match request["execute"].as_str().unwrap() {
                "qmp_capabilities" => "{\"return\": {}, \"id\": {id}}\n".to_owned(),
                _ => answer(&request),
            };
            if out.write_all(words.replace("{id}", &request["id"].to_string()).as_bytes()).is_err() {
                return;
            }
        }
    });
    (over(ours).unwrap(), serving)
}

#[test]
fn a_monitor_that_behaves_is_understood_however_its_lines_are_cut() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let serving = spawn(move || {
        let mut say = |words: &str| {
            for byte in words.bytes() {
                theirs.write_all(&[byte]).unwrap();
            }
        };
        say(GREETING);
        say(
            "{\"event\": \"NICE\", \"data\": {\"a\": 1}, \"timestamp\": {}}\r\n\n{\"return\": {}, \"id\": 1}\r\n",
        );
        say("{\"event\": \"NIC");
        sleep(Duration::from_millis(30));
        say("ER\"}\r\n{\"return\": [7], \"id\": 2}\r\n");
        theirs
    });
    let mut monitor = over(ours).unwrap();
    assert_eq!(
        (monitor.greeting().version.as_str(), monitor.greeting().package.as_str()),
        ("7.2.22", "Debian")
    );
    assert_eq!(monitor.execute("query-something", None).unwrap(), json!([7]));
    drop(serving.join().unwrap());
    assert!(monitor.execute("stop", None).unwrap_err().to_string().contains("closed the connection before"));
    assert!(matches!(monitor.execute("stop", None), Err(QmpError::Broken { .. })));
}

#[test]
fn a_refusal_is_told_in_qemus_words_and_the_connection_goes_on() {
    let mut first = true;
    let (mut monitor, _serving) = answering(move |_| {
        let refuse = std::mem::take(&mut first);
        let refusal = "{\"error\": {\"class\": \"GenericError\", \"desc\": \"poll-grow value \\u001b[2J must\"}, \"id\": {id}}\n";
        if refuse { refusal } else { "{\"return\": 5, \"id\": {id}}\n" }.to_owned()
    });
    let error = monitor.execute("qom-set", None).unwrap_err();
    assert_eq!(error.to_string(), "QEMU refuses `qom-set`: poll-grow value \\u{1b}[2J must");
    assert_eq!(monitor.execute("qom-get", None).unwrap(), json!(5));
}

#[test]
fn no_greeting_is_not_waited_for_forever() {
    assert!(silent("").starts_with("the monitor at sock did not send its greeting within 300ms"));
    assert!(silent("\n\n\n").contains("did not send its greeting"));
    assert!(silent(&GREETING[..20]).contains("did not send its greeting"));
    assert!(silent(GREETING).contains("did not send "));
}

#[test]
fn what_is_not_qmp_is_said_and_shown_harmlessly() {
    assert!(refused("\x1b[2Jlogin:\n").contains("not QMP instead of its greeting: "));
    assert!(!refused("\x1b[2Jlogin:\n").contains('\x1b'));
    assert!(refused("SSH-2.0-OpenSSH\r\n").ends_with("`SSH-2.0-OpenSSH`"));
    assert!(refused("[1, 2]\n").contains("not an object"));
    assert!(refused("{\"return\": {}}\n").contains("it does not greet"));
    assert!(refused("\u{0}\u{ff}\n").contains("not QMP"));
    assert!(
        refused(format!("{GREETING}{{\"return\": {{}}, \"id\": 99}}\n"))
            .contains("neither an event nor the response")
    );
    assert!(
        refused(format!("{GREETING}{{\"error\": 5, \"id\": 1}}\n")).contains("refuses `qmp_capabilities`")
    );
}

#[test]
fn an_endless_line_and_deep_nesting_end() {
    let deep = format!("{}\n", "[".repeat(9_000));
    assert!(refused(&deep).contains("recursion limit exceeded"), "{}", refused(&deep));
    assert!(refused("x".repeat(20_000)).contains("a line of more than 10000 bytes"));
    // More than any buffer holds, while nobody stops.
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let flood = spawn(move || while theirs.write_all(&[b'x'; 4096]).is_ok() {});
    assert!(matches!(over(ours), Err(QmpError::LineTooLong { .. })));
    flood.join().unwrap();
}

#[test]
fn events_without_end_end_with_an_error() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let flood = spawn(move || {
        theirs.write_all(format!("{GREETING}{{\"return\": {{}}, \"id\": 1}}\n").as_bytes()).unwrap();
        while theirs.write_all(b"{\"event\": \"E\"}\n").is_ok() {}
    });
    let mut monitor = over(ours).unwrap();
    let error = monitor.execute("query-status", None).unwrap_err();
    assert!(matches!(error, QmpError::Noise { .. }), "{error}");
    drop(monitor);
    flood.join().unwrap();
}

#[test]
fn blank_lines_and_events_without_end_are_an_error() {
    for noise in ["\n", "{\"event\": \"E\"}\n"] {
        let words = GREETING.to_owned() + &noise.repeat(20_000 / noise.len());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(words.as_bytes()).unwrap();
        let limits = Limits { noise_bytes: 10_000, ..patient() };
        let error = Monitor::over(ours, Path::new("sock"), limits).unwrap_err().to_string();
        assert!(error.contains("more than 10000 bytes of events and blank lines"), "{error}");
    }
}

/// However many answers are asked for, and though each comes in time.
#[test]
fn a_whole_exchange_has_a_limit() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = spawn(move || {
        let mut out = theirs.try_clone().unwrap();
        out.write_all(GREETING.as_bytes()).unwrap();
        for (number, line) in BufReader::new(theirs).lines().map_while(Result::ok).enumerate() {
            let request: Value = serde_json::from_str(&line).unwrap();
            // The first is in time on a busy machine as well.
            if number > 0 {
                sleep(Duration::from_millis(100));
            }
            let _ = writeln!(out, "{{\"return\": {{}}, \"id\": {}}}", request["id"]);
        }
    });
    let limits = Limits { exchange_within: Some(Duration::from_secs(2)), ..patient() };
    let mut monitor = Monitor::over(ours, Path::new("sock"), limits).unwrap();
    let asked = (0..1_000).find_map(|_| monitor.execute("query-status", None).err()).expect("an end");
    assert!(matches!(asked, QmpError::Silent { .. }), "{asked}");
    drop(monitor);
    serving.join().unwrap();
}

#[test]
fn sockets_that_are_not_there_or_not_served_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let connect = |name: &str| Monitor::connect(&dir.path().join(name), limits()).unwrap_err().to_string();
    assert!(connect("none").ends_with("; start QEMU with `-qmp unix:PATH,server=on,wait=off`"));
    assert!(connect(&"x".repeat(200)).ends_with("not a valid path of a UNIX socket"));
    let listener = UnixListener::bind(dir.path().join("dead")).unwrap();
    drop(listener);
    assert!(connect("dead").contains("nothing listens on it"));
    assert!(connect("").contains("it is not a socket: give the path"));
    // A listener that never accepts: its queue takes connections until it is full, then connecting blocks.
    let _busy = UnixListener::bind(dir.path().join("busy")).unwrap();
    assert!(connect("busy").contains("serves one client at a time"));
}

/// As much of QEMU's object model as an I/O thread needs; writes are logged.
struct Objects {
    weighted: bool,
    daemon: bool,
    values: BTreeMap<String, i64>,
}

impl Objects {
    fn new(weighted: bool, daemon: bool) -> Objects {
        let all = [("poll-max-ns", 32_768), ("poll-grow", 0), ("poll-shrink", 0), ("aio-max-batch", 0)];
        let mut values: BTreeMap<String, i64> = all.map(|(name, value)| (name.to_owned(), value)).into();
        if weighted {
            values.extend([
                ("poll-grow".to_owned(), 2),
                ("poll-shrink".to_owned(), 2),
                ("poll-weight".to_owned(), 3),
            ]);
        }
        Objects { weighted, daemon, values }
    }

    fn answer(&mut self, request: &Value, writes: &std::sync::Mutex<Vec<String>>) -> String {
        let argument = |name: &str| &request["arguments"][name];
        let refuse = |class: &str, desc: String| {
            format!("{}\n", json!({ "error": { "class": class, "desc": desc }, "id": "{id}" }))
                .replace("\"{id}\"", "{id}")
        };
        let answer = |value: Value| {
            format!("{}\n", json!({ "return": value, "id": "{id}" })).replace("\"{id}\"", "{id}")
        };
        let property = argument("property").as_str().unwrap_or_default().to_owned();
        match request["execute"].as_str().unwrap() {
            "query-iothreads" if self.daemon => {
                refuse("CommandNotFound", "The command query-iothreads has not been found".to_owned())
            }
            "query-iothreads" => {
                let mut thread = json!({ "id": "io0", "thread-id": 77, "aio-max-batch": 0 });
                self.values.iter().for_each(|(name, value)| thread[name] = json!(value));
                answer(json!([thread]))
            }
            "qom-list" => answer(json!([
                { "name": "type", "type": "string" }, { "name": "io0", "type": "child<iothread>" },
                { "name": "ram", "type": "child<memory-backend-ram>" }
            ])),
            _ if !self.values.contains_key(&property) => {
                refuse("GenericError", format!("Property 'iothread.{property}' not found"))
            }
            "qom-get" => answer(json!(self.values[&property])),
            _ => {
                let value = argument("value").as_i64().unwrap();
                writes.lock().unwrap().push(format!("{property}={value}"));
                if value < 0 {
                    return refuse(
                        "GenericError",
                        format!("{property} value must be in range [0, 9223372036854775807]"),
                    );
                }
                let kept = match (self.weighted, property.as_str(), value) {
                    (true, "poll-grow" | "poll-shrink", 0) => 2,
                    (true, "poll-weight", 0) => 3,
                    _ => value,
                };
                self.values.insert(property, kept);
                answer(json!({}))
            }
        }
    }
}

type Writes = std::sync::Arc<std::sync::Mutex<Vec<String>>>;

fn objects(weighted: bool, daemon: bool) -> (Monitor, Writes) {
    let writes = Writes::default();
    let (mut objects, log) = (Objects::new(weighted, daemon), writes.clone());
    (answering(move |request| objects.answer(request, &log)).0, writes)
}

fn target() -> IothreadTarget {
    IothreadTarget { socket: "/run/vm.qmp".to_owned(), id: "io0".parse().unwrap(), domain: None }
}

fn wanted(pairs: &[(&str, i64)]) -> Vec<(String, i64)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[test]
fn threads_are_listed_by_query_and_by_walking_the_objects() {
    for (daemon, tid) in [(false, Some(77)), (true, None)] {
        for (weighted, names) in [(false, 3), (true, 4)] {
            let (mut monitor, writes) = objects(weighted, daemon);
            let all = iothread::list(&mut monitor).unwrap();
            assert_eq!((all.len(), &*all[0].id, all[0].thread_id), (1, "io0", tid));
            assert_eq!((all[0].properties.len(), all[0].properties["poll-max-ns"]), (names, 32_768));
            assert!(writes.lock().unwrap().is_empty());
        }
    }
    let (mut monitor, _) = objects(false, false);
    let error = iothread::find(&mut monitor, "io9").unwrap_err().to_string();
    assert_eq!(error, "there is no iothread `io9`; QEMU has io0");
}

/// Ids come into places of the journal, and into lines of the log.
#[test]
fn ids_that_qemu_does_not_allow_ids_twice_and_too_many_threads_are_refused() {
    let told = |ids: &[&str]| {
        let threads: Vec<Value> =
            ids.iter().map(|id| json!({ "id": id, "thread-id": 1, "poll-max-ns": 32_768 })).collect();
        let said = format!("{{\"return\": {}, \"id\": {{id}}}}\n", json!(threads));
        let (mut monitor, _serving) = answering(move |_| said.clone());
        let error = iothread::list(&mut monitor).unwrap_err();
        dwell_recording::with_causes(&error)
    };
    for id in ["a b", "a=b", "x/y", "é", ".", "-x", "", "\u{1b}[2J", "io:0", "io\n2026 guest: controls", "\0"]
    {
        let told = told(&["io0", id]);
        assert!(told.contains("is not an id of an object of QEMU"), "{id:?}: {told}");
        assert!(!told.chars().any(char::is_control), "{told:?}");
    }
    assert!(told(&[&"x".repeat(256)]).contains("at most 255"));
    assert!(told(&["io0", "io1", "io0"]).contains("the I/O thread `io0` twice"));
    let many: Vec<String> = (0..65).map(|number| format!("io{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(told(&many).contains("65 I/O threads, more than 64"));
}

#[test]
fn what_is_there_is_never_written() {
    for (weighted, set, written) in [
        (false, &[("poll-max-ns", 32_768), ("poll-grow", 0)][..], &[][..]),
        (false, &[("poll-max-ns", 0), ("poll-grow", 2)], &["poll-max-ns=0", "poll-grow=2"]),
        (true, &[("poll-grow", 0), ("poll-shrink", 0), ("poll-weight", 0)], &[]),
        (
            true,
            &[("poll-grow", 2), ("poll-shrink", 3), ("aio-max-batch", 4)],
            &["poll-shrink=3", "aio-max-batch=4"],
        ),
    ] {
        let (mut monitor, writes) = objects(weighted, false);
        let thread = iothread::find(&mut monitor, "io0").unwrap();
        let plan = iothread::plan(&mut monitor, &thread, &wanted(set), target()).unwrap();
        let planned: Vec<_> =
            plan.writes.iter().map(|write| format!("{}={}", write.knob, write.to)).collect();
        assert_eq!(planned, written);
        assert!(writes.lock().unwrap().is_empty());
    }
}

#[test]
fn what_qemu_would_refuse_is_not_planned() {
    let (mut monitor, writes) = objects(false, false);
    let thread = iothread::find(&mut monitor, "io0").unwrap();
    let mut refused = |set: &[(&str, i64)]| {
        iothread::plan(&mut monitor, &thread, &wanted(set), target()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&[("poll-max-ns", 1), ("poll-weight", 3)]),
        "cannot set poll-weight to 3: poll-weight does not exist in 7.2.22; it came with 11.1"
    );
    let negative = refused(&[("poll-max-ns", 1), ("poll-grow", -1)]);
    assert!(negative.contains("poll-grow") && negative.contains("-1"), "{negative}");
    assert_eq!(refused(&[("poll-grow", 1), ("poll-grow", 2)]), "poll-grow is given twice");
    assert!(writes.lock().unwrap().is_empty());
}

#[test]
fn nonsense_about_threads_is_an_error() {
    for nonsense in ["5", "[5]", "[{}]", "[{\"id\": 5}]", "{\"id\": \"x\"}"] {
        let (mut monitor, _serving) =
            answering(move |_| format!("{{\"return\": {nonsense}, \"id\": {{id}}}}\n"));
        let error = iothread::list(&mut monitor).unwrap_err();
        assert!(matches!(error, IothreadError::Answer { .. }), "{nonsense}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_said_is_an_answer_or_an_error(words in prop::collection::vec(
        prop_oneof![
            Just(GREETING.as_bytes().to_vec()), Just(b"{\"return\": {}, \"id\": 1}\n".to_vec()),
            Just(b"{\"event\": \"E\"}\n".to_vec()), prop::collection::vec(any::<u8>(), 0..40),
        ], 0..6,
    )) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&words.concat()).unwrap();
        drop(theirs);
        if let Ok(mut monitor) = over(ours) {
            prop_assert!(monitor.execute("query-status", None).is_err());
        }
    }
}

/// However many connections it is, and however each of them has its own limit.
#[test]
fn what_is_asked_within_a_deadline_ends_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("qmp");
    // In its queue, and never accepted.
    let _listener = UnixListener::bind(&path).unwrap();
    let limits = Limits { answer_within: Duration::from_secs(100), ..Limits::default() };
    let (errors, waited) = qmp::within(Duration::from_millis(200), || {
        let inner = || [(); 5].map(|()| Monitor::connect(&path, limits).unwrap_err());
        // The earlier deadline counts.
        qmp::within(Duration::from_secs(100), inner).0
    });
    assert!(errors.iter().all(|error| matches!(error, QmpError::Silent { .. })), "{errors:?}");
    assert!(waited >= Duration::from_millis(200) && waited < Duration::from_secs(50), "{waited:?}");
    // Afterwards there is none.
    let own = Limits { answer_within: Duration::from_millis(300), ..limits };
    let (_, waited) = qmp::within(Duration::from_secs(100), || Monitor::connect(&path, own));
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
}
