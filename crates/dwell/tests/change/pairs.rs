//! Two commands at the same time, whichever they are, some of them killed: every value is the original or one of an open
//! change, the journal can be read, and in the end everything is as before.

use crate::controlled::values;
use crate::fake_qemu::FakeQemu;
use crate::{Scene, start, stderr};
use dwell_knobs::journal::{self, Change, STATE_DIRECTORY};
use dwell_stats::SplitMix64;
use dwell_testing::fixture::{Fixture, guest_plan};
use dwell_testing::process::Process;
use dwell_testing::say;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SET: [&str; 4] = ["iothread", "set", "--qmp", "/run/vm.qmp"];

/// What changes something, or reverts it.
fn commands() -> Vec<Vec<&'static str>> {
    let verify = ["verify", "--budget", "100ms", "--turn", "20ms", "--settle", "10ms", "--revert-if-worse"];
    vec![
        vec!["apply", "PLAN"],
        vec!["apply", "PLAN", "--persist", "--force"],
        vec!["revert"],
        vec!["revert", "--all"],
        vec!["revert", "--all", "--force"],
        verify.to_vec(),
        vec!["control", "--mode", "active", "--layer", "guest", "--duration", "200ms"],
        vec!["control", "--mode", "active", "--layer", "guest", "--config", "KEEP", "--duration", "50ms"],
        vec!["control", "--layer", "guest", "--duration", "50ms"],
        vec![
            "control",
            "--mode",
            "active",
            "--layer",
            "iothread",
            "--qmp",
            "/run/vm.qmp",
            "--duration",
            "1s",
        ],
        vec!["control", "stop"],
        vec!["control", "stop", "--unless-kept"],
        [&SET[..], &["iothread1", "poll-max-ns=300us"]].concat(),
        [&SET[..], &["iothread1", "poll-grow=4", "aio-max-batch=8"]].concat(),
    ]
}

const PROPERTIES: [&str; 4] = ["poll-max-ns", "poll-grow", "poll-shrink", "aio-max-batch"];

pub(crate) struct Machine {
    pub(crate) scene: Scene,
    pub(crate) qemu: FakeQemu,
    before: BTreeMap<PathBuf, String>,
    properties: Vec<i64>,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        let machine = Fixture::guest();
        let qemu = FakeQemu::start(&machine);
        let scene = Scene::new(machine, &guest_plan());
        scene.machine.write("/keep.toml", "on_exit = \"keep\"\n");
        let properties = PROPERTIES.map(|name| qemu.get(name)).to_vec();
        let before = values(&scene);
        Machine { scene, qemu, before, properties }
    }

    pub(crate) fn start(&self, words: &[&str]) -> Process {
        let keep = self.scene.machine.path("/keep.toml").to_str().unwrap().to_owned();
        let words: Vec<&str> = words.iter().map(|word| if *word == "KEEP" { &*keep } else { word }).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        command.args(self.scene.words(&words));
        start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Panics where a value is neither the original nor one of an open change, or the journal cannot be read.
    pub(crate) fn check(&self, told: &str) {
        let state = self.scene.machine.path(STATE_DIRECTORY);
        let changes = match state.exists() {
            true => journal::read_all(&self.scene.machine.machine, STATE_DIRECTORY)
                .unwrap_or_else(|error| panic!("{told}: {error}")),
            false => vec![],
        };
        let has = |place: &str, value: &str| {
            let open = changes.iter().filter(|change: &&Change| change.state.is_open());
            let mut entries = open.flat_map(|change| &change.entries).filter(|entry| {
                let name = entry.place.to_string();
                let path = name.split_once(":/").map_or(&*name, |(_, path)| path);
                place.ends_with(path.trim_start_matches('/')) || name.ends_with(place)
            });
            entries.any(|entry| {
                let all = [&entry.applied, &entry.original].into_iter().flatten().chain(&entry.between);
                all.map(|one| one.trim()).any(|one| one == value)
            })
        };
        let now = values(&self.scene);
        // What a killed process has not written whole is nobody's value.
        let is_whole = |path: &PathBuf| path.extension().is_none_or(|end| end != "dwell-new");
        let changed =
            now.iter().filter(|(path, value)| self.before.get(*path) != Some(value) && is_whole(path));
        for (path, value) in changed {
            assert!(
                has(path.to_str().unwrap(), value),
                "{told}: {} = {value:?}, of no open change",
                path.display()
            );
        }
        for (name, original) in PROPERTIES.iter().zip(&self.properties) {
            let value = self.qemu.get(name);
            let place = format!(":iothread1:{name}");
            assert!(
                value == *original || has(&place, &value.to_string()),
                "{told}: {name} = {value}, of no open change"
            );
        }
    }

    pub(crate) fn is_as_before(&self, told: &str) {
        for words in [&["control", "stop"][..], &["revert", "--all"]] {
            let output = self.scene.run(words);
            assert!(output.status.success(), "{told}, then {words:?}: {}", stderr(&output));
        }
        assert_eq!(values(&self.scene), self.before, "{told}");
        let properties: Vec<i64> = PROPERTIES.iter().map(|name| self.qemu.get(name)).collect();
        assert_eq!(properties, self.properties, "{told}");
    }
}

fn ends(child: &mut Process, told: &str) {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(300), "{told}: it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// For `DWELL_PAIRS` pairs, 300 by default; one command in four is killed.
#[test]
#[ignore = "takes minutes; .ci/long runs it"]
fn of_two_commands_at_the_same_time_nothing_is_left() {
    let number = std::env::var("DWELL_PAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(300u64);
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let (mut random, commands) = (SplitMix64::new(seed), commands());
    let (mut machine, mut killed) = (Machine::new(), 0);
    for pair in 0..number {
        let mut told = format!("seed {seed}, pair {pair}:");
        let mut children = vec![];
        for _ in 0..2 {
            let words = &commands[usize::try_from(random.below(commands.len() as u64)).unwrap()];
            let kills = random.below(4) == 0;
            told += &format!(" {}{},", words.join(" "), if kills { " (killed)" } else { "" });
            children.push((machine.start(words), kills.then(|| random.below(150))));
        }
        let begun = Instant::now();
        children.sort_by_key(|(_, kills)| kills.unwrap_or(u64::MAX));
        for (child, kills) in &mut children {
            if let Some(after_ms) = kills {
                std::thread::sleep(Duration::from_millis(*after_ms).saturating_sub(begun.elapsed()));
                // It may have ended.
                let _ = child.kill();
                killed += 1;
            }
            ends(child, &told);
        }
        machine.check(&told);
        if random.below(3) == 0 {
            machine.is_as_before(&told);
        }
        if pair % 50 == 49 {
            machine.is_as_before(&told);
            machine = Machine::new();
        }
    }
    machine.is_as_before("at the end");
    say!(
        "{number} pairs of commands at the same time, {killed} of them killed: every value was the original or one of an open change"
    );
}
