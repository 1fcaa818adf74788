//! Changing a machine and taking it back, as a user does it: on machines below a directory, killed at every
//! system call, and on the haltpoll parameters of this machine.

mod controlled;
mod driver;
mod explained;
mod fake_qemu;
mod iothread;
mod killed;
mod killed_polling;
mod leases;
mod monitors;
mod pairs;
mod qemu;
mod real;
mod soaked;
mod verified;

use dwell_knobs::journal::STATE_DIRECTORY;
use dwell_knobs::plan::{FORMAT, Plan};
use dwell_testing::fixture::{Fixture, HALTPOLL, guest_plan, plan_from};
use dwell_testing::process::Process;
use dwell_testing::schema;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};

/// A machine, a plan for it, and the program.
pub(crate) struct Scene {
    pub(crate) machine: Fixture,
    pub(crate) plan: PathBuf,
    root: String,
    _folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new(machine: Fixture, plan: &Plan) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.toml");
        std::fs::write(&path, plan.to_toml().unwrap()).unwrap();
        let root = machine.path("/").to_str().unwrap().to_owned();
        Scene { machine, plan: path, root, _folder: folder }
    }

    pub(crate) fn guest() -> Scene {
        Scene::new(Fixture::guest(), &guest_plan())
    }

    /// The words of a command, with the plan in place of `PLAN`.
    pub(crate) fn words(&self, words: &[&str]) -> Vec<String> {
        let plan = self.plan.to_str().unwrap();
        let word = |word: &&str| if *word == "PLAN" { plan } else { word }.to_owned();
        words.iter().map(word).chain(["--sysroot".to_owned(), self.root.clone()]).collect()
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        output(Command::new(env!("CARGO_BIN_EXE_dwell")).args(self.words(words)))
    }

    pub(crate) fn stdout(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = serde_json::from_str(&self.stdout(&[words, &["--format", "json"]].concat())).unwrap();
        match schema::name(words).as_str() {
            // Its report of foreign load depends on the machine.
            "verify" => schema::check_required("verify", &output),
            name => schema::check(name, &output),
        }
        output
    }

    /// One line on stderr, nothing on stdout, exit code 2.
    pub(crate) fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(output.stdout.is_empty() && told.lines().count() == 1, "{told}");
        told
    }
}

/// Between fork and exec a child of this process holds its locks. Whoever takes a lock in here writes this,
/// whoever starts a program reads it.
pub(crate) static FORKS: RwLock<()> = RwLock::new(());

pub(crate) fn start(command: &mut Command) -> Process {
    let _no_lock = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    Process(command.spawn().expect("the program can be started"))
}

pub(crate) fn output(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    start(command).wait_with_output().expect("the program ends")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_plan_is_shown_carried_out_and_taken_back() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    let shown = scene.stdout(&["apply", "PLAN", "--dry-run", "--persist"]);
    assert!(shown.contains("guest_halt_poll_ns") && shown.contains("- - - - 50000"), "{shown}");
    assert_eq!(scene.machine.snapshot(), before);
    assert!(!scene.machine.path("/var/lib/dwell").exists());

    let applied = scene.json(&["apply", "PLAN", "--persist"]);
    assert_eq!(applied["change"], 1);
    assert_eq!(applied["writes"][0]["to"], 50_000);
    let status = scene.json(&["status", "--exit-code"]);
    assert_eq!(status[0]["state"], "applied");
    let places = status[0]["places"].as_array().unwrap();
    assert!(places.iter().all(|place| place["standing"] == "in_force"), "{status}");
    assert!(scene.stdout(&["status"]).contains("kept over a reboot"));
    let narrow =
        output(Command::new(env!("CARGO_BIN_EXE_dwell")).args(scene.words(&["status"])).env("COLUMNS", "80"));
    let narrow = String::from_utf8(narrow.stdout).unwrap();
    assert!(narrow.contains("/sys/module/haltpoll/parameters/guest_halt_poll_ns"), "{narrow}");
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert!(scene.stdout(&["apply", "PLAN", "--force"]).contains("nothing was written"));

    let reverted = scene.json(&["revert"]);
    assert!(reverted.as_array().unwrap().iter().all(|row| row["outcome"] == "restored"), "{reverted}");
    assert_eq!(scene.machine.snapshot(), before);
    assert!(scene.stdout(&["status"]).contains("nothing that dwell has changed is in force"));
    assert_eq!(scene.json(&["status", "--history"])[0]["state"], "reverted");
    assert!(scene.stdout(&["status", "--history"]).contains("guest_halt_poll_ns=50000"));
    assert_eq!(scene.stdout(&["revert"]), "nothing to revert\n");
    assert!(scene.refused(&["revert", "7"]).contains("there is no change 7"));
}

#[test]
fn another_kernel_or_another_value_is_refused_with_the_difference() {
    let scene = Scene::guest();
    scene.machine.write("/proc/sys/kernel/osrelease", "6.6.30\n");
    scene.machine.set("guest_halt_poll_ns", "100000\n");
    let before = scene.machine.snapshot();
    let told = scene.refused(&["apply", "PLAN"]);
    assert!(told.contains("made for Linux 6.18, but this is 6.6.30"), "{told}");
    assert!(told.contains("guest_halt_poll_ns is 100000, but the plan expects 200000"), "{told}");
    assert!(told.contains("--force"), "{told}");
    assert_eq!(scene.machine.snapshot(), before);
    let applied = scene.stdout(&["apply", "PLAN", "--force"]);
    assert!(applied.contains("note: guest_halt_poll_ns is 100000"), "{applied}");
    scene.stdout(&["revert"]);
    assert_eq!(scene.machine.snapshot(), before);
}

#[test]
fn what_somebody_else_set_is_named_and_only_force_overwrites_it() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    scene.stdout(&["apply", "PLAN"]);
    scene.machine.set("guest_halt_poll_ns", "77\n");
    assert_eq!(scene.run(&["status", "--exit-code"]).status.code(), Some(1));
    assert!(scene.stdout(&["status"]).contains("77, changed outside dwell"));
    let output = scene.run(&["revert"]);
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(told.contains("guest_halt_poll_ns was left alone: it was changed outside dwell to 77"), "{told}");
    assert!(told.contains("it was 200000 before change 1") && told.contains("--force"), "{told}");
    assert_eq!(scene.machine.value("guest_halt_poll_ns"), "77");
    scene.stdout(&["revert", "1", "--force"]);
    assert_eq!(scene.machine.snapshot(), before);
}

/// A program whose output and whose errors nobody reads.
fn unread(scene: &Scene, words: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args(scene.words(words)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = start(&mut command);
    drop((child.stdout.take(), child.stderr.take()));
    child.wait().unwrap().code()
}

#[test]
fn what_is_not_restored_is_in_the_exit_code_though_nobody_reads() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    assert_eq!(unread(&scene, &["apply", "PLAN"]), Some(0));
    scene.machine.set("guest_halt_poll_ns", "77\n");
    assert_eq!(unread(&scene, &["revert"]), Some(2));
    assert_eq!(unread(&scene, &["revert", "1", "--force"]), Some(0));
    assert_eq!(scene.machine.snapshot(), before);
}

#[test]
fn read_only_and_void_knobs_are_refused_before_anything_is_written() {
    let scene = Scene::guest();
    scene.machine.write("/sys/devices/system/cpu/cpuidle/current_driver", "none\n");
    let before = scene.machine.snapshot();
    let told = scene.refused(&["apply", "PLAN"]);
    assert!(
        told.contains("would have no effect: no cpuidle driver") && told.contains("--allow-no-effect"),
        "{told}"
    );
    scene.machine.mode("guest_halt_poll_grow_start", 0o444);
    let told = scene.refused(&["apply", "PLAN", "--force"]);
    assert!(
        told.contains("guest_halt_poll_grow_start is read-only") && !told.contains("nevertheless"),
        "{told}"
    );
    assert_eq!(scene.machine.snapshot(), before);
    assert!(scene.machine.text("/var/lib/dwell/changes/000001.journal").is_none());
}

#[test]
fn a_later_change_is_named_and_the_way_back_has_the_journal() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    let state = ["--state-dir", "/elsewhere"];
    let applied = scene.stdout(&[&["apply", "PLAN"][..], &state].concat());
    let root = scene.root.as_str();
    assert!(
        applied.contains(&format!("dwell revert 1 --sysroot {root} --state-dir /elsewhere\n")),
        "{applied}"
    );
    let there = "guest_halt_poll_ns";
    let (later, second) =
        (plan_from(&guest_plan(), &[(there, 60_000)]), scene.plan.with_file_name("second.toml"));
    std::fs::write(&second, later.to_toml().unwrap()).unwrap();
    scene.stdout(&[&["apply", second.to_str().unwrap()][..], &state].concat());
    let status = scene.json(&[&["status"][..], &state].concat());
    let places = status[0]["places"].as_array().unwrap();
    let place = places.iter().find(|place| place["knob"] == there).unwrap();
    assert_eq!((&place["standing"], &place["set_by"]), (&"foreign".into(), &2.into()), "{status}");
    assert!(scene.stdout(&[&["status"][..], &state].concat()).contains("60000, set by change 2"));
    scene.stdout(&[&["revert", "--all"][..], &state].concat());
    std::fs::remove_dir_all(scene.machine.path("/elsewhere")).unwrap();
    assert_eq!(scene.machine.snapshot(), before);
}

#[test]
fn a_reboot_that_has_undone_a_change_is_told() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    scene.stdout(&["apply", "PLAN"]);
    scene.machine.set("guest_halt_poll_ns", "200000\n");
    scene.machine.set("guest_halt_poll_grow_start", "50000\n");
    scene.machine.write("/proc/sys/kernel/random/boot_id", "another\n");
    assert!(scene.stdout(&["status"]).contains("a reboot has undone it"));
    let reverted = scene.json(&["revert"]);
    assert!(reverted.as_array().unwrap().iter().all(|row| row["outcome"] == "gone"), "{reverted}");
    scene.machine.write("/proc/sys/kernel/random/boot_id", "8a0d4b7c\n");
    assert_eq!(scene.machine.snapshot(), before);
}

/// Another process that holds a lock of the state directory until its input ends.
pub(crate) fn locked_by_another(scene: &Scene, lock: &str) -> Process {
    let mut command = Command::new("flock");
    command.arg(scene.machine.path(&format!("{STATE_DIRECTORY}/{lock}"))).args([
        "sh",
        "-c",
        "echo locked; cat",
    ]);
    let mut other = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    other.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    other
}

#[test]
fn two_at_once_and_a_damaged_journal_are_told() {
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    scene.stdout(&["apply", "PLAN"]);
    let applied = scene.machine.snapshot();
    let mut other = locked_by_another(&scene, "lock");
    assert!(scene.refused(&["apply", "PLAN"]).contains("another dwell is changing this machine"));
    assert!(scene.refused(&["revert"]).contains("another dwell is changing this machine"));
    assert_eq!(scene.machine.snapshot(), applied);
    drop(other.stdin.take());
    other.wait().unwrap();
    let path = scene.machine.path("/var/lib/dwell/changes/000001.journal");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    for words in [&["apply", "PLAN"][..], &["revert"], &["status"], &["status", "--history"]] {
        let told = scene.refused(words);
        assert!(told.contains("is damaged") && told.contains("move it elsewhere"), "{told}");
        // Not the file of this name of the machine that it runs on.
        assert!(told.contains(path.to_str().unwrap()), "{told}");
    }
    std::fs::write(&path, &whole).unwrap();
    scene.stdout(&["revert"]);
    assert_eq!(scene.machine.snapshot(), before);
    // What a file without contents has changed is not known.
    std::fs::write(path.with_file_name("000002.journal"), "").unwrap();
    let status = scene.run(&["status"]);
    assert_eq!((status.status.code(), status.stdout.as_slice()), (Some(2), &b""[..]));
}

/// A file system of its own over the state directory, in a mount namespace that ends with the program.
fn over_state(scene: &Scene, mount: &str, words: &[&str]) -> Option<Output> {
    let state = scene.machine.path("/var/lib/dwell");
    std::fs::create_dir_all(&state).unwrap();
    let script = format!("{} || exit 77; shift; exec \"$@\"", mount.replace("DIR", "\"$1\""));
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(&state).arg(env!("CARGO_BIN_EXE_dwell"));
    let output = output(command.args(scene.words(words)));
    (output.status.code() != Some(77) && !stderr(&output).contains("unshare:")).then_some(output)
}

#[test]
fn a_full_disk_and_a_read_only_journal_are_told_and_nothing_is_changed() {
    let full =
        "mount -t tmpfs -o size=4k,mode=755 tmpfs DIR && { head -c 4096 /dev/zero > DIR/filler; true; }";
    // The journal has room to begin, but not for what it says at the end.
    let read_only = "mount --bind DIR DIR && mount -o remount,ro,bind DIR";
    for (mount, cause) in [(full, "free some space"), (read_only, "mount it for writing")] {
        let scene = Scene::guest();
        let before = scene.machine.snapshot();
        let Some(output) = over_state(&scene, mount, &["apply", "PLAN", "--persist"]) else {
            dwell_testing::skip!(
                "root",
                "a_full_disk_and_a_read_only_journal_are_told_and_nothing_is_changed",
                "no mount namespace"
            );
            return;
        };
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("nothing was changed") && told.contains(cause), "{told}");
        assert!(told.contains("--state-dir") && told.lines().count() == 1, "{told}");
        assert_eq!(scene.machine.snapshot(), before);
    }
}

/// As an error of the disk makes it.
#[test]
fn values_are_restored_though_the_journal_is_read_only_since() {
    const TEST: &str = "values_are_restored_though_the_journal_is_read_only_since";
    let scene = Scene::guest();
    let before = scene.machine.value("guest_halt_poll_ns");
    scene.stdout(&["apply", "PLAN"]);
    assert_ne!(scene.machine.value("guest_halt_poll_ns"), before);
    let Some(output) =
        over_state(&scene, "mount --bind DIR DIR && mount -o remount,ro,bind DIR", &["revert"])
    else {
        return dwell_testing::skip!("root", TEST, "no mount namespace");
    };
    let told = stderr(&output);
    assert!(output.status.code() == Some(2) && told.contains("all values are as before change 1"), "{told}");
    assert_eq!(scene.machine.value("guest_halt_poll_ns"), before);
    scene.stdout(&["revert"]);
    assert_eq!(scene.stdout(&["revert"]), "nothing to revert\n");
}

#[test]
fn a_change_is_reverted_and_closed_on_a_disk_that_is_full_since() {
    const TEST: &str = "a_change_is_reverted_and_closed_on_a_disk_that_is_full_since";
    let scene = Scene::guest();
    let before = scene.machine.snapshot();
    let state = scene.machine.path("/var/lib/dwell");
    std::fs::create_dir_all(&state).unwrap();
    let script = "mount -t tmpfs -o size=512k,mode=755 tmpfs \"$1\" || exit 77; state=$1; dwell=$2; root=$3; plan=$4\n\
        \"$dwell\" apply \"$plan\" --persist --sysroot \"$root\" >&2 || exit 1\n\
        cat /dev/zero > \"$state/filler\" 2>/dev/null\n\
        \"$dwell\" revert --sysroot \"$root\" >&2 || exit 2\n\
        \"$dwell\" status --history --format json --sysroot \"$root\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&state).arg(env!("CARGO_BIN_EXE_dwell"));
    let output = output(command.arg(&scene.root).arg(&scene.plan));
    if output.status.code() == Some(77) || stderr(&output).contains("unshare:") {
        return dwell_testing::skip!("root", TEST, "no mount namespace");
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let history: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(history[0]["state"], "reverted");
    assert_eq!(scene.machine.snapshot(), before);
}

#[test]
fn a_plan_that_is_none_is_refused_in_one_line() {
    let scene = Scene::guest();
    std::fs::write(&scene.plan, format!("format = {FORMAT}\nlayer = \"guest\"\n")).unwrap();
    let output = scene.run(&["apply", "PLAN"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it is not a plan"), "{}", stderr(&output));
    assert!(!Path::new(&scene.machine.path("/var/lib/dwell")).exists());
    assert!(scene.machine.path(HALTPOLL).exists());
}
