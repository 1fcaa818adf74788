//! A guest under the idle driver dwell_idle: its recording is tuned by the driver's parameters, and the plan
//! is applied and reverted.

use crate::{Scene, output, stderr};
use dwell_knobs::plan::Plan;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_recording::{Episode, Metadata, SettingValue, SettingsChange, Writer};
use dwell_testing::fixture::{self, DWELL_IDLE, Fixture};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const RELEASE: &str = "6.18.44";
const HALT_COST_NS: u64 = 30_000;

/// A guest with the driver, which was told never to poll.
fn guest() -> Fixture {
    let costs = [("halt_cost_ns", "30000"), ("wake_latency_ns", "5000"), ("policy", "never")];
    Fixture::under_dwell_idle(&costs)
}

/// What that guest would record: each idle time is shorter than a halt costs.
fn record(file: &Path) {
    let number = SettingValue::Number;
    let policy = SettingValue::Text("never".to_owned());
    let costs = [("halt_cost_ns", number(HALT_COST_NS)), ("wake_latency_ns", number(5_000))];
    let values = costs.into_iter().chain([("max_window_ns", number(200_000)), ("policy", policy)]);
    let values: BTreeMap<String, SettingValue> =
        values.map(|(name, value)| (name.to_owned(), value)).collect();
    let mut metadata = Metadata::new(Layer::Guest);
    metadata.kernel = Some(RELEASE.to_owned());
    metadata.settings.push(SettingsChange { at_ns: None, owner: Layer::Driver.into(), values });
    let mut writer = Writer::create(file, metadata).unwrap();
    let mut now = 0;
    for number in 0..6_000 {
        let idle = 6_000 + number % 7 * 500;
        let halted = Episode { window_ns: Some(0), halted: Some(true), ..Episode::new("cpu0", now, idle) };
        writer.push(&halted).unwrap();
        now += idle + 4_000;
    }
    writer.finish().unwrap();
}

#[test]
fn a_recording_under_the_driver_is_tuned_by_its_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let (file, plan) = (folder.path().join("idle.parquet"), folder.path().join("new.toml"));
    record(&file);
    let tune = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        output(command.arg("tune").arg(&file).args(["--force", "--plan"]).arg(&plan).args(more))
    };
    let tuned = tune(&["--format", "json"]);
    assert!(tuned.status.success(), "{}", stderr(&tuned));
    let tuned: serde_json::Value = serde_json::from_slice(&tuned.stdout).unwrap();
    assert_eq!(
        (&tuned["layer"], &tuned["halt_cost_origin"]),
        (&"driver".into(), &"recorded".into()),
        "{tuned}"
    );
    let words = tuned["advice"].as_str().unwrap();
    assert!(
        words.contains("policy=") && !words.contains("policy=3") && !words.contains("policy=1"),
        "{words}"
    );
    assert_eq!(tuned["self_check"]["verdict"], "agrees", "{tuned}");

    let plan = Plan::from_toml(&std::fs::read_to_string(&plan).unwrap()).unwrap();
    assert_eq!(plan.owner, Layer::Driver);
    let wanted = plan.recommended_setting().unwrap();
    // Never to poll is 3; what does not differ is not written.
    assert_ne!(wanted.get("policy"), Some(3));
    assert!(plan.writes.iter().all(|write| write.knob != "wake_latency_ns"), "{:?}", plan.writes);
    let gain = plan.effect.gain.expect("a gain is predicted");
    assert!(gain.share.low > 0.5, "{gain:?}");

    let scene = Scene::new(guest(), &plan);
    let before = scene.machine.snapshot();
    scene.stdout(&["apply", "PLAN", "--persist"]);
    let policy = scene.machine.text(&format!("{DWELL_IDLE}/policy")).unwrap();
    assert!(["leader", "savings", "fixed"].contains(&policy.trim()), "{policy}");
    let kept = scene.machine.text("/etc/modprobe.d/dwell-000001.conf").unwrap();
    assert!(kept.contains("options dwell_idle halt_cost_ns=30000 wake_latency_ns=5000 "), "{kept}");
    assert_eq!(scene.json(&["status"])[0]["places"][0]["standing"], "in_force");
    scene.stdout(&["revert"]);
    assert_eq!(scene.machine.snapshot(), before);
}

#[test]
fn haltpoll_is_not_set_or_controlled_beside_the_driver() {
    let mut present = Setting::defaults(Layer::Guest, Version::parse(RELEASE).unwrap());
    present.set("guest_halt_poll_ns", 200_000).unwrap();
    let scene = Scene::new(guest(), &fixture::plan(present, &[("guest_halt_poll_ns", 50_000)]));
    let before = scene.machine.snapshot();
    let told = scene.refused(&["apply", "PLAN"]);
    assert!(told.contains("the idle driver dwell_idle decides in place of haltpoll"), "{told}");
    for words in [&["control", "--layer", "guest"][..], &["control", "--layer", "guest", "--mode", "active"]]
    {
        let told = scene.refused(words);
        assert!(
            told.contains("cannot control the guest layer: the idle driver dwell_idle decides"),
            "{told}"
        );
        assert!(told.contains("rmmod dwell_idle"), "{told}");
    }
    // The layer here is the driver's, whose counters are in debugfs.
    for words in [&["control"][..], &["control", "--layer", "driver", "--mode", "active"]] {
        let told = scene.refused(words);
        assert!(told.contains("mount -t debugfs debugfs /sys/kernel/debug"), "{told}");
    }
    assert_eq!(scene.machine.snapshot(), before);
}

#[test]
fn the_driver_is_not_controlled_where_it_is_not_in_use() {
    let mut present = Setting::defaults(Layer::Guest, Version::parse(RELEASE).unwrap());
    present.set("guest_halt_poll_ns", 200_000).unwrap();
    let scene = Scene::new(Fixture::guest(), &fixture::plan(present, &[("guest_halt_poll_ns", 50_000)]));
    let told = scene.refused(&["control", "--layer", "driver"]);
    assert!(told.contains("the idle driver in use is haltpoll"), "{told}");
}
