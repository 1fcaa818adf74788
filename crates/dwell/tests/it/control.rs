//! `dwell control`: over recordings, on a machine below a directory, and on this machine's haltpoll.

use dwell_policy::Layer;
use dwell_policy::param;
use dwell_testing::fixture::{Fixture, HALTPOLL};
use dwell_testing::open_metrics;
use dwell_testing::process::Process;
use dwell_testing::{say, schema};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn dwell(args: &[&str]) -> Output {
    let home = tempfile::tempdir().expect("a folder can be made");
    Command::new(env!("CARGO_BIN_EXE_dwell"))
        .args(args)
        .env("HOME", home.path())
        .env_remove("XDG_STATE_HOME")
        .output()
        .expect("the program can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn good(args: &[&str]) -> String {
    let output = dwell(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings")
}

fn replayed(recording: &str, more: &[&str]) -> String {
    let file = recordings().join(format!("{recording}.parquet"));
    let args = ["control", "--halt-cost", "20us", "--format", "json", "--replay", file.to_str().unwrap()];
    good(&[&args, more].concat())
}

fn cost(replayed: &Value, policy: &str) -> f64 {
    let rows = replayed["results"].as_array().unwrap();
    let row = rows.iter().find(|row| row["policy"] == policy).unwrap();
    row["cost_ns"].as_f64().unwrap()
}

#[test]
fn a_recording_is_controlled_the_same_way_each_time_and_never_at_a_loss() {
    for (recording, more) in [
        ("guest-redis_poisson5k", &[][..]),
        ("guest-pipe_exp100us", &[]),
        ("guest-fio_qd1", &[]),
        ("guest-fio_qd1", &["--layer", "host", "--observe", "statistics"]),
    ] {
        let first = replayed(recording, more);
        assert_eq!(first, replayed(recording, more), "{recording} {more:?}");
        let replayed: Value = serde_json::from_str(&first).unwrap();
        let (controlled, originals) = (cost(&replayed, "controlled"), cost(&replayed, "originals"));
        assert!(controlled <= 1.02 * originals, "{recording} {more:?}: {controlled} of {originals}");
        assert!(controlled >= cost(&replayed, "optimum"), "{recording}");
        for change in replayed["changes"].as_array().unwrap() {
            let (present, chosen) = (change["present_ns"].as_f64(), change["chosen_ns"].as_f64());
            let gains = present.zip(chosen).is_none_or(|(present, chosen)| chosen < present * 15.0 / 16.0);
            assert!(gains, "{change}");
        }
    }
}

/// A decision every few seconds of thirty years is more than anybody waits for.
#[test]
fn times_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (table, recording) = (path("far.csv"), path("far.parquet"));
    let rows = [0, 100_000, 900_000_000_000_000_000u64].map(|start| format!("cpu0,{start},50000\n"));
    std::fs::write(&table, format!("idler,start_ns,idle_ns\n{}", rows.concat())).unwrap();
    good(&["import", &table, "--layer", "guest", "-o", &recording]);
    let refused = dwell(&["control", "--halt-cost", "20us", "--replay", &recording]);
    let error = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && error.contains("at most 31 days"), "{error}");
}

#[test]
fn options_without_effect_are_refused() {
    let recording = recordings().join("guest-mix.parquet");
    let recording = recording.to_str().unwrap();
    let refused = |args: &[&str], why: &str| {
        let output = dwell(&[&["control"], args].concat());
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(why), "{args:?}: {error}");
    };
    let options =
        [&["--mode", "active"][..], &["--config", "control.toml"], &["--check"], &["--qmp", "/run/vm.qmp"]];
    for option in options {
        let why = format!("cannot be used with '{}", option[0]);
        refused(&[&["--replay", recording][..], option].concat(), &why);
    }
    refused(&["--replay", recording, "--layer", "driver"], "--layer guest replays control of haltpoll");
    // Below a directory without anything that could be controlled.
    let empty = tempfile::tempdir().unwrap();
    let sysroot = empty.path().to_str().unwrap();
    refused(&["--observe", "statistics", "--sysroot", sysroot], "--replay <RECORDING>...");
    refused(&["--kernel", "6.1", "--sysroot", sysroot], "--kernel and --qemu need --replay");
    refused(&["--format", "json", "--sysroot", sysroot], "--format needs --replay");
    refused(&["--format", "json", "--check"], "--format needs --replay");
}

/// `DWELL_UPDATE_DOCS=1` writes the file of the packages anew.
#[test]
fn packages_have_the_configuration_of_the_book_whose_values_are_the_defaults() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let book = fs::read_to_string(root.join("docs/src/control.md")).unwrap();
    let start = book.find("mode = \"advise\" ").unwrap();
    let described = book[start..].split_once("```").unwrap().0;
    let mut commented = String::from(
        "# The configuration of dwell control; what is not set here has these defaults. See dwell-control(1).\n",
    );
    for line in described.lines() {
        commented.push_str(format!("# {line}").trim_end());
        commented.push('\n');
    }
    let packed = root.join("packaging/control.toml");
    if std::env::var_os("DWELL_UPDATE_DOCS").is_some() {
        fs::write(&packed, &commented).unwrap();
    }
    assert!(fs::read_to_string(&packed).unwrap() == commented, "packaging/control.toml is not the book's");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("control.toml");
    let checked = |text: &str| {
        fs::write(&file, text).unwrap();
        good(&["control", "--check", "--config", file.to_str().unwrap()])
    };
    // The values without the I/O threads and VMs, of which there are none by default.
    let values = described.split_once("\n\n").unwrap().0;
    assert_eq!(checked(values), checked(""));
    assert_eq!(checked(&commented), checked(""));
    assert_ne!(checked(described), checked(""));
}

/// A controller that runs, and its lines.
struct Running {
    child: Process,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(args: &[&str]) -> Running {
        Running::with(args, |_| ())
    }

    fn with(args: &[&str], prepare: impl FnOnce(&mut Command)) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        command.arg("control").args(args).stdout(Stdio::piped());
        prepare(&mut command);
        let mut child = Process(command.spawn().expect("the program can be started"));
        let lines = BufReader::new(child.stdout.take().unwrap());
        Running { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// What is left of its lines, after it has ended well.
    fn ended(mut self) -> String {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.lines, &mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

fn below(fixture: &Fixture) -> String {
    fixture.path("").to_str().unwrap().to_owned()
}

/// Asks until the answer is as wanted; a busy machine may take its time.
fn wait_for(sysroot: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let output = dwell(&["status", "--control", "--format", "json", "--sysroot", sysroot]);
        if let Ok(status) = serde_json::from_slice::<Value>(&output.stdout)
            && wanted(&status)
        {
            schema::check_required("status-control", &status);
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", text(&output.stderr));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn several_recordings_are_one_host_under_one_setting() {
    let file = |name: &str| recordings().join(format!("{name}.parquet")).to_str().unwrap().to_owned();
    let (one, two) = (file("guest-redis_c1"), file("guest-fio_qd1"));
    let replay = |more: &[&str]| {
        dwell(&[&["control", "--halt-cost", "20us", "--format", "json", "--replay"], more].concat())
    };
    for observe in ["episodes", "statistics"] {
        let output = replay(&[&one, &two, "--layer", "host", "--observe", observe, "--duration", "500ms"]);
        let host: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        assert_eq!((&host["idlers"], host["vms"].as_array().unwrap().len()), (&json!(2), 2));
        assert!(host["keeps_of_best"].is_number() && host["keeps_of_leader"].is_number(), "{host}");
        let span = host["span_ns"].as_u64().unwrap();
        assert!((500_000_000..600_000_000).contains(&span), "{span}");
        assert!(cost(&host, "optimum") <= cost(&host, "controlled"));
        // One setting cannot cost less than each VM's own.
        assert!(cost(&host, "best in hindsight") <= cost(&host, "originals"));
    }
    // fio loses by what redis gains from; with a limit it does not, and with all of the weight neither.
    let of_fio = |vm: &[&str]| {
        let both = [&one[..], &two, "--layer", "host", "--duration", "2s"];
        let output = replay(&[&both[..], vm].concat());
        let host: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        let of_all: u64 =
            host["vms"].as_array().unwrap().iter().map(|vm| vm["controlled_ns"].as_u64().unwrap()).sum();
        assert_eq!(of_all as f64, cost(&host, "controlled"));
        host["vms"][1].clone()
    };
    let ratio = |vm: &Value| vm["controlled_ns"].as_f64().unwrap() / vm["originals_ns"].as_f64().unwrap();
    let limited = of_fio(&["--vm", "guest-fio_qd1,weight=0,most-loss=1%"]);
    assert_eq!((&limited["weight"], &limited["most_loss"]), (&json!(0.0), &json!(0.01)));
    assert!(ratio(&limited) < 1.03, "{limited}");
    let free = of_fio(&["--vm", "guest-fio_qd1,weight=0"]);
    println!(
        "guest-fio_qd1 without weight: {:.3} of the originals, with a limit of 1 %: {:.3}",
        ratio(&free),
        ratio(&limited)
    );
    let refused = |more: &[&str]| text(&replay(more).stderr);
    let error = refused(&[&one, &two, "--layer", "host", "--vm", "fio"]);
    assert!(error.contains("--vm fio: no recording has this name"), "{error}");
    let error = refused(&[&one, "--vm", "guest-redis_c1"]);
    assert!(error.contains("--vm is for several recordings"), "{error}");
    let error = refused(&[&one, &two]);
    assert!(error.contains("VMs of one host: give --layer host"), "{error}");
    let error = refused(&[&one, "--duration", "1s"]);
    assert!(error.contains("--duration is for several recordings"), "{error}");
    let error = refused(&[&one, &two, "--layer", "host", "--duration", "9999s"]);
    assert!(error.contains("give a shorter --duration"), "{error}");
}

#[test]
fn decisions_are_kept_in_a_file_that_a_report_draws() {
    let fixture = Fixture::guest();
    let sysroot = below(&fixture);
    let log = fixture.path("decisions.jsonl");
    let log = log.to_str().unwrap();
    for mode in ["advise", "active"] {
        good(&["control", "--sysroot", &sysroot, "--duration", "50ms", "--mode", mode, "--log", log]);
    }
    let recording = recordings().join("guest-mix.parquet");
    let report =
        |log: &str| dwell(&["report", recording.to_str().unwrap(), "--decisions", log, "--format", "json"]);
    let report_of_log: Value = serde_json::from_slice(&report(log).stdout).unwrap();
    let runs = report_of_log["decisions"][0]["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for (run, mode) in runs.iter().zip(["advise", "active"]) {
        assert_eq!((&run["name"], &run["mode"]), (&json!("guest"), &json!(mode)));
        assert_eq!(run["originals"]["guest_halt_poll_ns"], 200_000);
        assert!(run["began_unix_ms"].as_u64().unwrap() > 1_600_000_000_000);
    }
    std::fs::write(log, "{\"layer\": \"guest\"}\n").unwrap();
    let refused = report(log);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("line 1: guest has no originals"), "{}", text(&refused.stderr));
    let refused = dwell(&["control", "--sysroot", &sysroot, "--log", "/proc/dwell"]);
    assert!(
        text(&refused.stderr).contains("cannot write the log of decisions /proc/dwell"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn after_a_kill_the_next_start_and_revert_restore_the_originals() {
    for by in ["revert", "stop", "start"] {
        let fixture = Fixture::guest();
        let (before, sysroot) = (fixture.snapshot(), below(&fixture));
        let mut running = Running::start(&["--mode", "active", "--sysroot", &sysroot]);
        running.line();
        wait_for(&sysroot, |status| status["layers"][0]["state"] == "controls");
        let refused = dwell(&["revert", "1", "--sysroot", &sysroot]);
        assert!(text(&refused.stderr).contains("a `dwell control` runs"), "{}", text(&refused.stderr));
        running.signal("-KILL");
        running.child.wait().unwrap();
        // What it would have written: never poll.
        fixture.set("guest_halt_poll_ns", "0\n");
        assert!(good(&["status", "--sysroot", &sysroot]).contains("0, set by control"));
        let advised = good(&["control", "--sysroot", &sysroot, "--duration", "10ms"]);
        assert!(advised.contains("`dwell control stop` restores the originals"), "{advised}");
        match by {
            "revert" => drop(good(&["revert", "1", "--sysroot", &sysroot])),
            "stop" => {
                let lines = good(&["control", "stop", "--sysroot", &sysroot]);
                assert_eq!(lines, "guest: the originals are in force again\n");
            }
            _ => {
                let lines =
                    good(&["control", "--mode", "active", "--sysroot", &sysroot, "--duration", "10ms"]);
                assert!(lines.contains("had left its setting; the originals are in force again"), "{lines}");
                assert!(lines.contains("the originals are guest_halt_poll_ns=200000"), "{lines}");
            }
        }
        assert_eq!(fixture.snapshot(), before);
        assert_eq!(good(&["control", "stop", "--sysroot", &sysroot]), "", "nothing is left");
    }
}

/// Writes a parameter of haltpoll all at once, as sysfs does; a file that is truncated first is empty for a moment.
fn overwrite(fixture: &Fixture, knob: &str, value: &str) {
    let path = fixture.path(&format!("{HALTPOLL}/{knob}"));
    let width = fs::read(&path).unwrap().len() - 1;
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(format!("{value:<width$}\n").as_bytes()).unwrap();
}

/// The body of the answer to a request for metrics.
fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: dwell\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

#[test]
fn figures_are_served_while_clients_misbehave_and_control_goes_on() {
    const NAME: &str = "figures_are_served_while_clients_misbehave_and_control_goes_on";
    let fixture = Fixture::guest();
    let sysroot = below(&fixture);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("control.toml");
    let path = file.to_str().unwrap();
    fs::write(&file, "metrics = \"127.0.0.1:0\"\n").unwrap();
    let mut running = Running::start(&["--mode", "active", "--config", path, "--sysroot", &sysroot]);
    let line = running.line();
    let address = line.trim().split_once("metrics: served at ").expect(&line).1.to_owned();
    let status = wait_for(&sysroot, |status| status["layers"][0]["state"] == "controls");
    assert_eq!(status["metrics"], address.as_str());
    // Clients that say nothing, never stop, or do not read.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let decisions = |status: &Value| status["layers"][0]["decisions"].as_u64().unwrap();
    std::thread::scope(|scope| {
        let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let begun = Instant::now();
                let is_over = || begun.elapsed() > Duration::from_secs(120);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) && !is_over() {
                    let Ok(mut stream) = TcpStream::connect(&address) else { continue };
                    let _ = stream.write_all(&[b'x'; 100_000]);
                }
            });
        }
        let begun = Instant::now();
        let before = decisions(&wait_for(&sysroot, |_| true));
        // One a second where there is nothing to gain, as here, and nothing disturbs.
        wait_for(&sysroot, |status| decisions(status) >= before + 3);
        say!("{NAME}: 3 decisions in {:.2?}", begun.elapsed());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(silent);
    });
    let text = scrape(&address);
    let samples = open_metrics::read(&text).unwrap();
    assert_eq!(samples["dwell_mode{layer=\"guest\",mode=\"controls\"}"], 1.0);
    assert_eq!(samples["dwell_setting_seconds{layer=\"guest\",parameter=\"guest_halt_poll_ns\"}"], 200e-6);
    assert_eq!(samples["dwell_halts_total{layer=\"guest\"}"], 0.0, "{text}");
    overwrite(&fixture, "guest_halt_poll_ns", "77777");
    wait_for(&sysroot, |status| status["layers"][0]["state"] == "given_up");
    // An answer is used again for 100 ms.
    let begun = Instant::now();
    let samples = loop {
        let samples = open_metrics::read(&scrape(&address)).unwrap();
        if samples.get("dwell_changes_total{layer=\"guest\",reason=\"foreign\"}") == Some(&1.0) {
            break samples;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{samples:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(samples["dwell_mode{layer=\"guest\",mode=\"given_up\"}"], 1.0);
    // Another address by SIGHUP; what was counted is still there.
    let socket = folder.path().join("metrics");
    fs::write(&file, format!("metrics = \"unix:{}\"\n", socket.display())).unwrap();
    running.signal("-HUP");
    let status =
        wait_for(&sysroot, |status| status["metrics"] == format!("unix:{}", socket.display()).as_str());
    assert_eq!(status["layers"][0]["reasons"]["foreign"], 1);
    assert!(TcpStream::connect(&address).is_err() && socket.exists());
    running.signal("-TERM");
    running.ended();
    assert!(!socket.exists());
}

#[test]
fn the_service_manager_is_told_of_the_start_of_life_and_of_the_end() {
    let (fixture, folder) = (Fixture::guest(), tempfile::tempdir().unwrap());
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let told = || {
        let mut text = [0; 512];
        let length = manager.recv(&mut text).expect("the controller tells something");
        self::text(&text[..length])
    };
    let args = ["--mode", "active", "--sysroot", &below(&fixture)];
    let running = Running::with(&args, |command| {
        command.env("NOTIFY_SOCKET", &socket);
    });
    assert_eq!(told(), "READY=1");
    let mut alive = 0;
    while alive < 2 {
        alive += usize::from(told() == "WATCHDOG=1");
    }
    running.signal("-TERM");
    while told() != "STOPPING=1" {}
    running.ended();
}

#[test]
fn more_idlers_than_are_controlled_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (table, recording) = (path("many.csv"), path("many.parquet"));
    let rows: String = (0..10_001).map(|number| format!("cpu{number},{number},50000\n")).collect();
    std::fs::write(&table, format!("idler,start_ns,idle_ns\n{rows}")).unwrap();
    good(&["import", &table, "--layer", "guest", "-o", &recording]);
    let refused = dwell(&["control", "--halt-cost", "20us", "--replay", &recording]);
    let error = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && error.contains("cannot control 10001 idlers"), "{error}");
}

#[test]
fn the_unit_of_systemd_is_one() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/dwell-control.service");
    // The program is not installed where tests run.
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("dwell-control.service");
    let here = fs::read_to_string(unit).unwrap().replace("/usr/bin/dwell", env!("CARGO_BIN_EXE_dwell"));
    fs::write(&copy, here).unwrap();
    let Ok(verified) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output()
    else {
        dwell_testing::skip!("programs", "the_unit_of_systemd_is_one", "no systemd-analyze");
        return;
    };
    let told = text(&verified.stderr);
    assert!(verified.status.success(), "{told}");
    let wrong = told.lines().filter(|line| line.contains("dwell-control"));
    assert_eq!(wrong.collect::<Vec<_>>(), [""; 0]);
}

fn haltpoll() -> Option<BTreeMap<&'static str, String>> {
    let read = |param: &'static param::Param| {
        Some((param.name, fs::read_to_string(format!("{HALTPOLL}/{}", param.name)).ok()?))
    };
    param::table(Layer::Guest).iter().map(read).collect()
}

/// The values of haltpoll on this machine, put back at the end whatever happens.
struct Originals(BTreeMap<&'static str, String>);

impl Originals {
    fn read() -> Option<Originals> {
        haltpoll().map(Originals)
    }

    fn are_back(&self) -> bool {
        haltpoll().is_some_and(|now| now == self.0)
    }
}

impl Drop for Originals {
    fn drop(&mut self) {
        if !self.are_back() {
            self.0.iter().for_each(|(name, value)| drop(fs::write(format!("{HALTPOLL}/{name}"), value)));
        }
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn haltpoll_of_this_machine_is_controlled_and_put_back() {
    const NAME: &str = "haltpoll_of_this_machine_is_controlled_and_put_back";
    let governor = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_governor").unwrap_or_default();
    let writable =
        || fs::OpenOptions::new().write(true).open(format!("{HALTPOLL}/guest_halt_poll_ns")).is_ok();
    let Some(originals) = Originals::read().filter(|_| governor.trim() == "haltpoll" && writable()) else {
        dwell_testing::skip!("haltpoll", NAME, "haltpoll is not in use or not writable");
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let state = state.path().to_str().unwrap();
    // A thread that sleeps for 15 us at a time, if the machine lets it.
    let stop = std::sync::atomic::AtomicBool::new(false);
    let lines = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(15));
            }
        });
        let args = [
            "control",
            "--mode",
            "active",
            "--layer",
            "guest",
            "--halt-cost",
            "50us",
            "--duration",
            "4s",
            "--state-dir",
            state,
        ];
        let lines = good(&args);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        lines
    });
    assert!(lines.contains("guest: controls; the originals are guest_halt_poll_ns="), "{lines}");
    assert!(lines.contains("guest: the originals are in force again"), "{lines}");
    assert!(originals.are_back(), "{lines}");
    for line in lines.lines() {
        say!("{line}");
    }
    if !lines.contains("an episode instead of") {
        say!("UNKNOWN {NAME}: no CPU was idle often enough for a change");
    }
}
