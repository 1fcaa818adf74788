//! `dwell control` over the I/O threads of running QEMUs.

use crate::guest::{Options, Qemu, Release};
use dwell_testing::process::Process;
use dwell_testing::say;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn dwell(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dwell")).args(words).output().expect("the program can be started")
}

fn good(words: &[&str]) -> String {
    let output = dwell(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Until something is there.
pub(crate) fn wait_for<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(there) = there() {
            return there;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A monitor and the state directory of a controller.
pub(crate) struct Place {
    pub(crate) monitor: String,
    state: String,
}

impl Place {
    pub(crate) fn new(monitor: &Path, folder: &Path) -> Place {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        Place { monitor: text(monitor.to_owned()), state: text(folder.join("state")) }
    }

    pub(crate) fn control(&self, mode: &str) -> Running {
        // Bursts of two threads take a debug build more of a CPU than it may use by default, and settings
        // would be chosen once in minutes.
        let limit = std::env::var("DWELL_CONTROL_CPU_LIMIT").unwrap_or_else(|_| "5%".to_owned());
        let config = format!("{}.toml", self.monitor);
        std::fs::write(&config, format!("cpu_limit = \"{limit}\"\n")).expect("room for a configuration");
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        command
            .args(["control", "--layer", "iothread", "--halt-cost", "20us", "--mode", mode])
            .args(["--config", &config])
            .args(["--qmp", &self.monitor, "--state-dir", &self.state])
            .stdout(Stdio::piped());
        let mut child = Process(command.spawn().expect("the program can be started"));
        let lines = BufReader::new(child.stdout.take().unwrap());
        Running { child, lines }
    }

    pub(crate) fn stop(&self) {
        good(&["control", "stop", "--state-dir", &self.state]);
    }

    fn status(&self) -> Option<Value> {
        let output = dwell(&["status", "--control", "--format", "json", "--state-dir", &self.state]);
        serde_json::from_slice(&output.stdout).ok()
    }

    /// What the controller does with an I/O thread.
    pub(crate) fn of(&self, id: &str) -> Option<Value> {
        self.status()?["layers"].as_array()?.iter().find(|layer| layer["iothread"] == id).cloned()
    }

    pub(crate) fn properties(&self, id: &str) -> Value {
        let listed = good(&["iothread", "list", "--qmp", &self.monitor, "--format", "json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let threads = listed["iothreads"].as_array().unwrap().clone();
        threads.into_iter().find(|thread| thread["id"] == id).unwrap()["properties"].clone()
    }

    /// As another program would, which has its own journal or none.
    fn set(&self, id: &str, value: &str) {
        let elsewhere = format!("{}-elsewhere", self.state);
        good(&["iothread", "set", "--qmp", &self.monitor, id, value, "--state-dir", &elsewhere]);
    }
}

/// A controller that runs, and its lines.
pub(crate) struct Running {
    child: Process,
    lines: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn killed(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn ended(mut self) -> String {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

/// A QEMU without a machine, whose I/O threads are idle.
fn bare(release: Release, monitor: &Path, iothread: &str) -> Result<Process, String> {
    let mut command = release.command()?;
    command
        .args(["-M", "none", "-display", "none", "-nodefaults", "-object", iothread, "-qmp"])
        .arg(format!("unix:{},server=on,wait=off", monitor.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = Process(command.spawn().map_err(|error| format!("QEMU cannot be started: {error}"))?);
    wait_for("QEMU has no monitor", || {
        let listed = dwell(&["iothread", "list", "--qmp", monitor.to_str().unwrap()]);
        listed.status.success().then_some(())
    });
    Ok(child)
}

#[test]
fn a_qemu_ends_and_comes_back_and_other_programs_write() {
    let _alone = crate::alone();
    const NAME: &str = "a_qemu_ends_and_comes_back_and_other_programs_write";
    for release in Release::ALL {
        let folder = tempfile::tempdir().unwrap();
        let monitor = folder.path().join("qmp");
        let place = Place::new(&monitor, folder.path());
        let first = match bare(release, &monitor, "iothread,id=io0,poll-max-ns=20000") {
            Ok(qemu) => qemu,
            Err(cause) => {
                dwell_testing::skip!("qemu", NAME, "{cause}");
                continue;
            }
        };
        // Advice writes nothing.
        let before = place.properties("io0");
        let mut advises = place.control("advise");
        let line = advises.line();
        assert!(line.contains("io0 of") && line.contains("advises only"), "{line}");
        place.stop();
        advises.ended();
        assert_eq!(place.properties("io0"), before);
        // The lease outlives its controller.
        let mut running = place.control("active");
        let line = running.line();
        assert!(line.contains("controls; the originals are poll-max-ns=20000"), "{line}");
        running.killed();
        place.set("io0", "poll-max-ns=0");
        let restored = good(&["control", "stop", "--state-dir", &place.state]);
        assert!(restored.contains("the originals are in force again"), "{restored}");
        assert_eq!(place.properties("io0"), before);
        // The QEMU ends while it is controlled, and another one has the socket.
        let mut running = place.control("active");
        running.line();
        drop(first);
        let line = running.line();
        assert!(line.contains("waiting for the QEMU at"), "{line}");
        let line = running.line();
        assert!(line.contains("there is nothing to restore"), "{line}");
        wait_for("it waits", || Some(place.status()?["waiting_for"][0] == place.monitor.as_str()));
        let second = bare(release, &monitor, "iothread,id=io0,poll-max-ns=30000").unwrap();
        let line = running.line();
        assert!(line.contains("controls; the originals are poll-max-ns=30000"), "{line}");
        let history = good(&["status", "--history", "--state-dir", &place.state, "--format", "json"]);
        let open = serde_json::from_str::<Value>(&history).unwrap();
        say!("{NAME}: {release:?}: {} changes", open.as_array().map_or(0, Vec::len));
        // What another program writes is left alone.
        place.set("io0", "poll-max-ns=77777");
        let given_up =
            wait_for("it gives up", || place.of("io0").filter(|layer| layer["state"] == "given_up"));
        let why = given_up["why"].as_str().unwrap();
        if why.starts_with("cannot record") {
            return dwell_testing::skip!("tracing", NAME, "{why}");
        }
        assert!(why.contains("poll-max-ns is 77777 and not 30000"), "{why}");
        good(&["control", "resume", "--state-dir", &place.state]);
        let resumed = place.of("io0").unwrap();
        assert_eq!(
            (&resumed["state"], &resumed["originals"]["poll-max-ns"]),
            (&"controls".into(), &77_777.into())
        );
        // Killed with its QEMU: a value of the next one is not restored.
        running.killed();
        drop(second);
        let _third = bare(release, &monitor, "iothread,id=io0,poll-max-ns=0").unwrap();
        let restored = good(&["control", "stop", "--state-dir", &place.state]);
        assert!(restored.contains("there is nothing to restore"), "{restored}");
        assert_eq!(place.properties("io0")["poll-max-ns"], 0);
        assert_eq!(good(&["control", "stop", "--state-dir", &place.state]), "");
    }
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn each_iothread_is_controlled_for_itself_and_restored() {
    let _alone = crate::alone();
    const NAME: &str = "each_iothread_is_controlled_for_itself_and_restored";
    let more = ["-object", "iothread,id=io1,poll-max-ns=1000000"];
    let options = Options { iothread: "poll-max-ns=1000000", more: &more, ..Options::default() };
    let qemu = match Qemu::booted(Release::Installed, &options) {
        Ok(qemu) => qemu,
        Err(cause) => return dwell_testing::skip!("qemu", NAME, "{cause}"),
    };
    let place = Place::new(&qemu.monitor(), qemu.file("").as_path());
    let before = [place.properties("io0"), place.properties("io1")];
    // io0 polls for up to 1 ms before each request of its disk; io1 has no disk.
    let mut running = place.control("active");
    let (mut lines, mut changed) = (String::new(), false);
    while !changed {
        let line = running.line();
        assert!(!line.is_empty(), "it ended: {lines}");
        if line.contains("cannot record the waits") {
            return dwell_testing::skip!("qemu", NAME, "{}", line.trim());
        }
        lines += &line;
        changed = line.contains("an episode instead of");
    }
    say!("{NAME}: {lines}");
    assert!(
        lines.lines().filter(|line| line.contains("->")).all(|line| line.contains("iothread io0")),
        "{lines}"
    );
    let now = place.properties("io0")["poll-max-ns"].as_i64().unwrap();
    assert!(now <= 40_000, "{now}");
    assert_eq!(place.properties("io1"), before[1]);
    running.killed();
    let restored = good(&["control", "stop", "--state-dir", &place.state]);
    assert_eq!(restored.matches("the originals are in force again").count(), 2, "{restored}");
    assert_eq!([place.properties("io0"), place.properties("io1")], before);
    // The same, ended as it should be.
    let mut running = place.control("active");
    while !running.line().contains("an episode instead of") {}
    place.stop();
    let lines = running.ended();
    assert_eq!(lines.matches("the originals are in force again").count(), 2, "{lines}");
    assert_eq!([place.properties("io0"), place.properties("io1")], before);
}
