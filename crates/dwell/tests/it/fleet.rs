//! `dwell fleet` as a user meets it: choices over a folder of recordings, those that cannot be used, costs and plans.

use dwell_recording::{Episode, Layer, Metadata, SettingValue, SettingsChange, Writer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

fn dwell(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dwell")).args(args).output().expect("the program can be started")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(args: &[&str]) -> Value {
    let output = dwell(&[args, &["--format", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("stdout is JSON")
}

/// A VM with idle times of this length three times in four, of class slow once in sixteen times, and of 900
/// us else, recorded under a maximum.
fn record(path: &Path, idle_ns: u64, class: &str, max: Option<u64>) {
    record_many(path, idle_ns, class, max, 2_000);
}

fn record_many(path: &Path, idle_ns: u64, class: &str, max: Option<u64>, episodes: u64) {
    let mut metadata = Metadata::new(Layer::Host);
    metadata.other.insert("class".to_owned(), class.into());
    if let Some(max) = max {
        let values = BTreeMap::from([("halt_poll_ns".to_owned(), SettingValue::Number(max))]);
        metadata.settings.push(SettingsChange { at_ns: None, owner: Layer::Host.into(), values });
    }
    let mut writer = Writer::create(path, metadata).unwrap();
    let mut now_ns = 0;
    for episode in 0..episodes {
        let is_long = if class == "slow" { episode % 16 > 0 } else { episode % 4 == 3 };
        let idle_ns = if is_long { LONG_NS } else { idle_ns };
        writer.push(&Episode::new("vcpu0", now_ns, idle_ns)).unwrap();
        now_ns += idle_ns + 1_000;
    }
    writer.finish().unwrap();
}

const LONG_NS: u64 = 900_000;

/// Twenty VMs with short idle times, best with a window that a long one does not take away, and ten long ones nearly
/// always, for which any poll is lost.
fn fleet() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..30u64 {
        let (idle_ns, class, max) = match number % 3 {
            0 => (5_000, "slow", Some(200_000)),
            _ => (5_000 + 10 * number, "fast", (number % 2 == 0).then_some(0)),
        };
        record(&folder.path().join(format!("vm{number:02}.parquet")), idle_ns, class, max);
    }
    folder
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("the path is UTF-8").to_owned()
}

fn choice<'a>(found: &'a Value, choice: &str, class: Option<&str>) -> &'a Value {
    let of = |row: &&Value| row["choice"] == choice && row["class"].as_str() == class;
    found["choices"]
        .as_array()
        .unwrap()
        .iter()
        .find(of)
        .unwrap_or_else(|| panic!("{choice} {class:?}: {found}"))
}

#[test]
fn two_settings_are_enough_for_two_kinds_of_vms() {
    let folder = fleet();
    let found =
        json(&["fleet", &path(&folder, ""), "--settings", "1,2", "--class", "class", "--held-out", "0"]);
    let cost = |row: &Value| row["cost_ns"].as_u64().unwrap();
    let [one, two, classes] =
        ["1 setting", "2 settings", "1 a class"].map(|name| cost(choice(&found, name, None)));
    assert!(two < one && two == classes, "{one} {two} {classes}");
    assert!(cost(choice(&found, "optimum", None)) <= cost(choice(&found, "own best", None)));
    let slow = choice(&found, "1 a class", Some("slow"));
    assert_eq!(
        (slow["vms"].as_u64(), &slow["settings"][0]["setting"]["halt_poll_ns"]),
        (Some(10), &0.into())
    );
    // Of the fast ones half have no setting recorded.
    assert_eq!(found["today_is_default"], 10);
    let sum: u64 = ["slow", "fast"].map(|class| cost(choice(&found, "today", Some(class)))).iter().sum();
    assert_eq!(sum, cost(choice(&found, "today", None)));
}

#[test]
fn figures_are_of_vms_that_had_no_part_in_the_choice() {
    let folder = fleet();
    let found = json(&["fleet", &path(&folder, ""), "--held-out", "40%"]);
    assert_eq!((&found["vms_chosen_on"], &found["vms_reported_on"]), (&18.into(), &12.into()));
    assert_eq!(found["new_vms"], 12);
    // Two kinds of VMs, each nearest to its own.
    let regret = choice(&found, "2 settings", None)["regret"].as_f64().unwrap();
    assert!(regret < 0.01, "{found}");
    for chosen in found["chosen_on"].as_array().unwrap() {
        assert_eq!(chosen["cost_ns"], chosen["least_ns"]);
    }
    assert_eq!(found, json(&["fleet", &path(&folder, ""), "--held-out", "0.4"]));
}

#[test]
fn what_an_unknown_latency_does_to_the_choice_is_noted() {
    let folder = fleet();
    let notes = |more: &[&str]| json(&[&["fleet", &path(&folder, "")], more].concat())["notes"].to_string();
    let told = notes(&[]);
    assert!(told.contains("of 30 of 30 recordings the wakeup latency is not known"), "{told}");
    assert!(told.contains("`1 setting` would be ") && told.contains("over today instead of"), "{told}");
    let told = notes(&["--wakeup-latency", "10us"]);
    assert!(!told.contains("the wakeup latency is not known"), "{told}");
}

#[test]
fn damaged_empty_and_absurd_recordings_are_named_and_the_rest_counts() {
    let folder = fleet();
    let before = json(&["fleet", &path(&folder, "")]);
    let mut bytes = std::fs::read(folder.path().join("vm00.parquet")).unwrap();
    let half = bytes.len() / 2;
    bytes[8..half].fill(0xa5);
    std::fs::write(folder.path().join("damaged.parquet"), &bytes).unwrap();
    std::fs::write(folder.path().join("short.parquet"), &bytes[..half]).unwrap();
    std::fs::write(folder.path().join("nothing.parquet"), "").unwrap();
    Writer::create(&folder.path().join("empty.parquet"), Metadata::new(Layer::Host))
        .unwrap()
        .finish()
        .unwrap();
    let mut absurd =
        Writer::create(&folder.path().join("absurd.parquet"), Metadata::new(Layer::Host)).unwrap();
    absurd.push(&Episode::new("vcpu0", 0, u64::MAX)).unwrap();
    absurd.finish().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not a recording").unwrap();

    let output = dwell(&["fleet", &path(&folder, ""), "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let left_out: BTreeMap<&str, &str> = found["left_out"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["recording"].as_str().unwrap(), row["why"].as_str().unwrap()))
        .collect();
    let names: Vec<&str> = left_out.keys().copied().collect();
    assert_eq!(
        names,
        ["absurd.parquet", "damaged.parquet", "empty.parquet", "nothing.parquet", "short.parquet"]
    );
    assert!(left_out["absurd.parquet"].contains("more than a year"), "{left_out:?}");
    assert!(left_out["empty.parquet"].contains("no episodes"), "{left_out:?}");
    assert!(left_out["short.parquet"].contains("the file is cut off"), "{left_out:?}");
    for name in names {
        assert!(stderr(&output).contains(&format!("left out: {name}: ")), "{}", stderr(&output));
    }
    assert_eq!(found["choices"], before["choices"]);
}

#[test]
fn classes_and_days_come_from_a_table_and_from_folders() {
    let folder = tempfile::tempdir().unwrap();
    for day in ["mon", "tue"] {
        std::fs::create_dir(folder.path().join(day)).unwrap();
        record(&folder.path().join(day).join("a.parquet"), 3_000, "", None);
        record(&folder.path().join(day).join("b.parquet"), 900_000, "", None);
    }
    let table = path(&folder, "classes.csv");
    std::fs::write(&table, "vm,class\na,web\nb,batch\n").unwrap();
    let found = json(&["fleet", &path(&folder, ""), "--class", &table, "--held-out", "tue"]);
    assert_eq!((&found["vms_chosen_on"], &found["recordings"]), (&2.into(), &4.into()));
    assert_eq!(choice(&found, "1 a class", Some("web"))["vms"], 1);
    let refused = |args: &[&str]| {
        let output = dwell(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
        stderr(&output)
    };
    let text = refused(&["fleet", &path(&folder, ""), "--held-out", "sun"]);
    assert!(text.contains("no recording is in the folder `sun`"), "{text}");
    std::fs::write(&table, "name,group\n").unwrap();
    let text = refused(&["fleet", &path(&folder, ""), "--class", &table]);
    assert!(text.contains("the first line has to be `vm,class`"), "{text}");
    assert!(refused(&["fleet", &table]).contains("cannot read the folder"));
    assert!(refused(&["fleet", &path(&folder, ""), "--settings", "0"]).contains("1..=100"));
    assert!(refused(&["fleet", &path(&folder, ""), "--layer", "timer"]).contains("host, guest, iothread"));
}

#[test]
fn plans_of_the_classes_can_be_applied_in_waves() {
    let folder = fleet();
    let plans = tempfile::tempdir().unwrap();
    let (into, costs) = (path(&plans, "plans"), path(&plans, "costs.parquet"));
    let args = ["fleet", &path(&folder, ""), "--class", "class", "--plan", &into, "-o", &costs];
    let refusal = stderr(&dwell(&args));
    assert!(
        refusal.contains("no recording names its release") && refusal.contains("give --kernel"),
        "{refusal}"
    );
    let args = [&args[..], &["--kernel", "6.18"]].concat();
    let output = dwell(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut order = csv::Reader::from_path(path(&plans, "plans/order.csv")).unwrap();
    assert_eq!(order.headers().unwrap(), vec!["wave", "class", "vm", "plan"]);
    let rows: Vec<Vec<String>> =
        order.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect();
    // A VM that has its setting already is not in it; all others are, those that had no part in the choice too.
    assert!((20..=30).contains(&rows.len()), "{rows:?}");
    assert_eq!(rows.iter().filter(|row| row[0] == "1").count(), 2);
    for row in &rows {
        let text = std::fs::read_to_string(path(&plans, &format!("plans/{}", row[3]))).unwrap();
        let plan = dwell_knobs::plan::Plan::from_toml(&text).unwrap();
        assert!(!plan.writes.is_empty() && plan.advice.contains(&row[1]), "{text}");
    }
    assert!(std::fs::metadata(&costs).unwrap().len() > 1_000);
}

#[test]
fn tables_and_csv_have_every_choice() {
    let folder = fleet();
    let output = dwell(&["fleet", &path(&folder, ""), "--class", "class"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in
        ["today", "1 setting", "2 settings", "5 settings", "1 a class", "own best", "optimum", "slow"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let output = dwell(&["fleet", &path(&folder, ""), "--class", "class", "--format", "csv"]);
    let text = String::from_utf8(output.stdout).unwrap();
    // A row for each choice, for all VMs and for each class.
    assert_eq!(text.lines().count(), 1 + 7 * 3, "{text}");
    assert!(text.starts_with("choice,class,vms,cost_ns,"), "{text}");
}

#[test]
fn a_fleet_of_sketches_costs_what_the_recordings_cost() {
    let folder = fleet();
    let sketches = tempfile::tempdir().unwrap();
    for number in 0..30 {
        let name = format!("vm{number:02}.parquet");
        let written = json(&["sketch", &path(&folder, &name), "-o", &path(&sketches, &name)]);
        assert_eq!(written["episodes"], 2_000);
        assert!(written["bytes"].as_u64().unwrap() < 30_000, "{written}");
    }
    let asked = |folder: &str| json(&["fleet", folder, "--class", "class", "--halt-cost", "12500ns"]);
    let (exact, found) = (asked(&path(&folder, "")), asked(&path(&sketches, "")));
    let note = "What it would do is not known: sketches cannot be replayed with another latency";
    assert!(notes(&found).contains(note) && !notes(&found).contains("instead of"), "{found}");
    assert!(notes(&exact).contains("instead of"), "{exact}");
    for key in ["choices", "episodes", "settings_tried", "today_is_default"] {
        assert_eq!(found[key], exact[key], "{key}");
    }
    // Some recordings, some sketches, and a day of both merged.
    std::fs::copy(path(&sketches, "vm00.parquet"), path(&folder, "vm00.parquet")).unwrap();
    assert_eq!(asked(&path(&folder, ""))["choices"], exact["choices"]);
    let (a, b, both) =
        (path(&folder, "vm03.parquet"), path(&sketches, "vm06.parquet"), path(&sketches, "both"));
    assert_eq!(json(&["sketch", &a, &b, "-o", &both])["episodes"], 4_000);
    let output = dwell(&["fleet", &path(&sketches, ""), "--kernel", "5.4"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("a sketch of the rules host 7.3"), "{}", stderr(&output));
    for command in ["tune", "info"] {
        let output = dwell(&[command, &path(&sketches, "vm00.parquet")]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("a sketch, which has costs and no episodes"), "{}", stderr(&output));
    }
}

/// Whoever makes a recording chooses how long it claims to be.
#[test]
fn a_vm_that_decides_the_choice_alone_is_named() {
    let folder = fleet();
    let noted = || {
        let found = json(&["fleet", &path(&folder, ""), "--held-out", "0"]);
        let notes: Vec<String> = serde_json::from_value(found["notes"].clone()).unwrap();
        notes.into_iter().find(|note| note.contains("decides the choice"))
    };
    assert_eq!(noted(), None);
    record_many(&folder.path().join("heavy.parquet"), 5_000, "fast", None, 200_000);
    let note = noted().expect("a note");
    assert!(note.starts_with("`heavy` alone has ") && note.contains(" of the costs of 31 VMs"), "{note}");
}

/// Gives recordings of a folder releases of the kernel, one after the other, again and again.
fn of_releases(releases: &[&str]) -> tempfile::TempDir {
    of_alike(releases, 150_000)
}

/// The same, of VMs whose idle times are all about this long.
fn of_alike(releases: &[&str], idle_ns: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (number, release) in (0..12u64).zip(releases.iter().cycle()) {
        let mut metadata = Metadata::new(Layer::Host);
        metadata.kernel = (!release.is_empty()).then(|| (*release).to_owned());
        let mut writer =
            Writer::create(&folder.path().join(format!("vm{number:02}.parquet")), metadata).unwrap();
        let mut push =
            |at: u64| writer.push(&Episode::new("vcpu0", at * 1_000_000, idle_ns + number)).unwrap();
        (0..500).for_each(&mut push);
        writer.finish().unwrap();
    }
    folder
}

fn notes(found: &Value) -> String {
    found["notes"].to_string()
}

#[test]
fn the_rule_is_that_of_the_recordings() {
    let plans = tempfile::tempdir().unwrap();
    let plan = |folder: &tempfile::TempDir, to: &str| {
        dwell(&["fleet", &path(folder, ""), "--plan", &path(&plans, to), "--format", "json"])
    };
    let same = of_releases(&["6.18.1", "6.18.9"]);
    assert_eq!(json(&["fleet", &path(&same, "")])["version"], "6.18.1");
    let output = plan(&same, "same");
    assert!(output.status.success(), "{}", stderr(&output));
    let order = std::fs::read_to_string(path(&plans, "same/order.csv")).unwrap();
    let first = order.lines().nth(1).unwrap().rsplit(',').next().unwrap();
    let text = std::fs::read_to_string(path(&plans, &format!("same/{first}"))).unwrap();
    assert!(text.contains("6.18"), "{text}");

    let differ = of_releases(&["5.4.0", "6.18.0"]);
    let found = json(&["fleet", &path(&differ, "")]);
    assert_eq!(found["version"], "6.18.0");
    assert!(notes(&found).contains("of Linux 5.4.0, 6.18.0, whose rules differ"), "{found}");
    let refusal = stderr(&plan(&differ, "differ"));
    assert!(refusal.contains("5.4.0, 6.18.0, whose rules differ; give --kernel"), "{refusal}");

    let some = of_releases(&["6.18.0", ""]);
    let found = json(&["fleet", &path(&some, "")]);
    assert_eq!(found["version"], "6.18.0");
    assert!(notes(&found).contains("6 recordings name no release"), "{found}");
    let refusal = stderr(&plan(&some, "some"));
    assert!(refusal.contains("6 recordings of 12 name no release"), "{refusal}");
    assert!(!plans.path().join("some").exists());
    assert!(refusal.contains("(first: ") && refusal.contains(".parquet); give --kernel"), "{refusal}");
    for nothing in ["", "4.19.0"] {
        let found = json(&["fleet", &path(&of_releases(&[nothing]), "")]);
        let note =
            format!("or one whose rule is known: the rule of {} is used", found["version"].as_str().unwrap());
        assert!(notes(&found).contains(&note), "{found}");
    }
    // Sketches have the rule, and the name of the release.
    let sketches = tempfile::tempdir().unwrap();
    for name in ["vm00.parquet", "vm01.parquet"] {
        json(&["sketch", &path(&same, name), "-o", &path(&sketches, name)]);
    }
    assert_eq!(json(&["fleet", &path(&sketches, "")])["version"], "6.18.1");
    assert!(plan(&sketches, "sketches").status.success());
    // One of another rule is left out, and lacks no release.
    std::fs::write(path(&sketches, "waits.csv"), "start_ns,idle_ns\n1000,2000\n").unwrap();
    let waits = path(&sketches, "waits.parquet");
    json(&["import", &path(&sketches, "waits.csv"), "--layer", "iothread", "-o", &waits]);
    json(&["sketch", &waits, "-o", &path(&sketches, "vm02.parquet")]);
    std::fs::remove_file(waits).unwrap();
    let found = json(&["fleet", &path(&sketches, "")]);
    assert!(
        found["left_out"][0]["why"].as_str().unwrap().contains("choose what it has with --layer"),
        "{found}"
    );
    assert!(!notes(&found).contains("no release"), "{found}");
}

#[test]
fn plans_are_replaced_only_with_force_and_old_ones_removed() {
    let folder = fleet();
    let plans = tempfile::tempdir().unwrap();
    let into = path(&plans, "");
    let args = ["fleet", &path(&folder, ""), "--class", "class", "--plan", &into, "--kernel", "6.18"];
    let output = dwell(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let names = || {
        let files = std::fs::read_dir(plans.path()).unwrap();
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let (order, before) = (path(&plans, "order.csv"), names());
    let plan = before.iter().find(|name| name.ends_with(".toml")).unwrap();
    let text = std::fs::read_to_string(&order).unwrap();
    // A plan is as precious as the order, and nothing is written before all are checked.
    std::fs::remove_file(&order).unwrap();
    std::fs::write(path(&plans, plan), "precious").unwrap();
    let output = dwell(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the file exists; --force replaces it"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(path(&plans, plan)).unwrap(), "precious");
    assert!(!std::path::Path::new(&order).exists());
    // What an earlier order names and the new one does not goes; what it cannot have written stays.
    std::fs::write(&order, text + "1,old,vm99,old-1.toml\n1,old,vm98,../outside.toml\n").unwrap();
    for name in ["old-1.toml", "mine.toml"] {
        std::fs::write(path(&plans, name), "").unwrap();
    }
    let output = dwell(&[&args[..], &["--force"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let after = names();
    assert!(
        !after.contains(&"old-1.toml".to_owned()) && after.contains(&"mine.toml".to_owned()),
        "{after:?}"
    );
    assert_ne!(std::fs::read_to_string(path(&plans, plan)).unwrap(), "precious");
}

#[test]
fn vms_without_a_plan_are_counted() {
    let folder = fleet();
    let guest = folder.path().join("guest.parquet");
    let mut writer = Writer::create(&guest, Metadata::new(Layer::Guest)).unwrap();
    (0..500).for_each(|at| writer.push(&Episode::new("cpu0", at * 9_000, 5_000)).unwrap());
    writer.finish().unwrap();
    let plans = tempfile::tempdir().unwrap();
    let into = path(&plans, "plans");
    let found = json(&["fleet", &path(&folder, ""), "--plan", &into, "--kernel", "6.18"]);
    let order = std::fs::read_to_string(path(&plans, "plans/order.csv")).unwrap();
    assert_eq!(order.lines().count(), 30 + 1);
    assert!(notes(&found).contains("1 VM has no plan: 1 of another layer\""), "{found}");
}

#[test]
fn notes_count_the_recordings_that_count_and_name_no_gain_of_nothing() {
    let folder = fleet();
    for name in ["a", "b", "c"] {
        std::fs::write(folder.path().join(format!("{name}.parquet")), "").unwrap();
    }
    let found = json(&["fleet", &path(&folder, "")]);
    assert!(notes(&found).contains("of 30 of 30 recordings"), "{found}");
    let free = json(&["fleet", &path(&folder, ""), "--halt-cost", "0"]);
    assert!(!notes(&free).contains("gain -") && !notes(&free).contains("instead of -"), "{free}");
}

/// Plans for these recordings by folder, VM, class, maximum and episodes, the last folder held out: the plans, and what is
/// printed.
fn planned(rows: &[(&str, &str, &str, Option<u64>, u64)]) -> (Vec<dwell_knobs::plan::Plan>, Value) {
    let folder = tempfile::tempdir().unwrap();
    for &(day, vm, class, max, episodes) in rows {
        std::fs::create_dir_all(folder.path().join(day)).unwrap();
        record_many(&folder.path().join(day).join(format!("{vm}.parquet")), 5_000, class, max, episodes);
    }
    let into = path(&folder, "plans");
    let held_out = rows.last().unwrap().0;
    let found =
        json(&["fleet", &path(&folder, ""), "--held-out", held_out, "--plan", &into, "--kernel", "6.18"]);
    let files = std::fs::read_dir(&into).unwrap().map(|file| file.unwrap().path());
    let plans = files.filter(|file| file.extension().is_some_and(|end| end == "toml"));
    let plan = |file| dwell_knobs::plan::Plan::from_toml(&std::fs::read_to_string(file).unwrap()).unwrap();
    (plans.map(plan).collect(), found)
}

#[test]
fn plans_go_by_the_newest_recording_and_say_what_is_a_default() {
    let of = |old, new| planned(&[("day1", "a", "fast", old, 2_000), ("day2", "a", "fast", new, 2_000)]);
    let (plans, found) = of(Some(0), Some(300_000));
    assert_eq!((plans.len(), plans[0].present.get("halt_poll_ns")), (1, Some(300_000)));
    assert!(plans[0].present_is_recorded && notes(&found).contains("recordings of 1 VM differ"), "{found}");
    let (plans, found) = of(None, None);
    assert!(!plans[0].present_is_recorded && !notes(&found).contains("differ in"), "{found}");
}

/// No window of the default is as long as these idle times, so that it costs what never polling costs.
#[test]
fn a_gain_of_nothing_gets_no_plan() {
    let folder = of_alike(&["6.18.1"], LONG_NS);
    let found = json(&["fleet", &path(&folder, ""), "--plan", &path(&folder, "plans")]);
    let why = "12 VMs have no plan: 12 for which the gain is within noise (95 % interval 0.00 % to 0.00 %)";
    assert!(notes(&found).contains(why), "{found}");
    assert!(
        notes(&found).contains("95 % intervals of the gain, by how far VMs differ: `1 setting` 0.00 %"),
        "{found}"
    );
}

#[test]
fn a_choice_that_is_a_loss_or_rests_on_little_gets_no_plan() {
    for (rows, why) in [
        (
            [("day1", "a", "fast", Some(0), 2_000), ("day2", "a", "slow", Some(0), 2_000)],
            "1 for which the choice is a loss (gain -",
        ),
        (
            [("day1", "a", "fast", Some(0), 60), ("day2", "a", "fast", Some(0), 60)],
            "1 with fewer than 128 episodes",
        ),
        (
            [("day1", "a", "fast", Some(0), 60), ("day2", "a", "fast", Some(0), 2_000)],
            "1 with a setting chosen on fewer than 128 episodes",
        ),
    ] {
        let (plans, found) = planned(&rows);
        assert!(plans.is_empty() && notes(&found).contains(why), "{why}: {found}");
    }
}

#[test]
fn a_linked_folder_is_named_and_results_replace_neither_inputs_nor_each_other() {
    let folder = tempfile::tempdir().unwrap();
    record(&folder.path().join("a.parquet"), 5_000, "fast", None);
    std::os::unix::fs::symlink(".", folder.path().join("link")).unwrap();
    let found = json(&["fleet", &path(&folder, "")]);
    assert_eq!(found["left_out"][0]["recording"], "link");
    let text = String::from_utf8(dwell(&["fleet", &path(&folder, "")]).stdout).unwrap();
    assert!(text.contains("episodes of 1 recording,") && text.contains("1 of 1 recording the"), "{text}");

    let (recording, classes, one) =
        (path(&folder, "a.parquet"), path(&folder, "classes.csv"), path(&folder, "one"));
    std::fs::write(&classes, "vm,class\na,web\n").unwrap();
    let before = std::fs::read(&recording).unwrap();
    for (options, why) in [
        (["-o", &recording, "--report", &one], "it is the input"),
        (["--report", &classes, "--class", &classes], "it is the input"),
        (["-o", &one, "--report", &path(&folder, "./one")], "it is the file of another result"),
    ] {
        let output = dwell(&[&["fleet", &path(&folder, ""), "--force"], &options[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{options:?}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    assert_eq!(std::fs::read(&recording).unwrap(), before);
    assert!(!Path::new(&one).exists());
}
