//! The program as a user meets it: results, and what it says when something is wrong.

use dwell_testing::process::{Sleeper, write_program};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn dwell(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dwell")).args(args).output().expect("the program can be started")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8")
}

fn json(args: &[&str]) -> Value {
    let output = dwell(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is JSON")
}

/// Runs what has to fail: exit code 2, nothing on stdout, one line on stderr, which is returned.
fn refused(args: &[&str]) -> String {
    let output = dwell(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
    assert!(output.stdout.is_empty(), "{args:?}: {}", stdout(&output));
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

fn refused_in_one_line(args: &[&str]) -> String {
    let stderr = refused(args);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

fn recording(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name);
    path.to_str().expect("the path is UTF-8").to_owned()
}

/// A folder with files to import.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder can be made"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("the path is UTF-8").to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).expect("the file can be written");
        self.text(name)
    }

    fn gzip(&self, name: &str, bytes: &[u8]) -> String {
        let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
        gzip.write_all(bytes).unwrap();
        self.write(name, &gzip.finish().unwrap())
    }

    /// A recording of these lengths, back to back.
    fn import(&self, idle_ns: &[u64], layer: &str) -> String {
        let mut csv = "start_ns,idle_ns\n".to_owned();
        let mut now = 0;
        for idle in idle_ns {
            csv.push_str(&format!("{now},{idle}\n"));
            now += idle + 100;
        }
        let (from, to) = (self.gzip("idle.csv.gz", csv.as_bytes()), self.text("idle.parquet"));
        let output = dwell(&["import", "--as", "csv", &from, "--layer", layer, "-o", &to]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        to
    }
}

/// It was found after the work: after the replay, after tracepoints were opened.
#[test]
fn output_that_cannot_be_written_is_found_before_the_work() {
    let folder = Folder::new();
    let (input, page) = (folder.text("no-recording.parquet"), folder.text("missing/x"));
    // None of these inputs is there either, and is not looked for yet.
    for words in [
        &["report", &input, "-o", &page][..],
        &["sketch", &input, "-o", &page],
        &["timer", "tune", &input, "--page", &page],
        &["record", "guest", "-o", &page],
        &["record", "host", "--sketch", "-o", &page],
        &["record", "thread", "--comm", "x", "-o", &page],
        &["timer", "record", "--pid", "1", "-o", &page],
    ] {
        let error = refused(words);
        let what = format!("cannot create a file in {}; create the directory first", folder.text("missing"));
        assert!(error.contains(&what), "{words:?}: {error}");
    }
    let error = refused(&["report", &input, "-o", &folder.text("new/")]);
    assert!(error.contains("it is not a regular file"), "{error}");
}

#[test]
fn replay_counts_by_hand() {
    // KVM's defaults of 6.18 by hand: 0 grows to 10 us after a halt of 5 us; 8 us are polled through; 30 us grow it to
    // 20 us; 300 us shrink it to 10 us; 400 us to 0, since 5 us are below grow_start.
    let folder = Folder::new();
    let file = folder.import(&[5_000, 8_000, 30_000, 300_000, 400_000, 50_000], "host");
    let replayed = json(&["replay", &file, "--format", "json", "--halt-cost", "20us", "--set", "default"]);
    assert_eq!(replayed["layer"], "host");
    assert_eq!(replayed["episodes"], 6);
    assert_eq!(replayed["idle_ns"], 793_000);
    assert_eq!(replayed["halt_cost_ns"], 20_000);
    assert_eq!(replayed["optimum_cost_ns"], 5_000 + 8_000 + 4 * 20_000);
    let results = replayed["results"].as_array().unwrap();
    let policies: Vec<&str> = results.iter().map(|r| r["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["never", "always", "kvm"]);
    let (never, always, kvm) = (&results[0], &results[1], &results[2]);
    assert_eq!((never["halts"].as_u64(), never["cost_ns"].as_u64()), (Some(6), Some(120_000)));
    assert_eq!((always["polled_ns"].as_u64(), always["halts"].as_u64()), (Some(793_000), Some(0)));
    assert_eq!(kvm["polls"], 4);
    assert_eq!(kvm["polls_succeeded"], 1);
    assert_eq!(kvm["polled_ns"], 8_000 + 10_000 + 20_000 + 10_000);
    assert_eq!(kvm["halts"], 5);
    assert_eq!(kvm["cost_ns"], 148_000);
    let over = kvm["cost_over_optimum"].as_f64().unwrap();
    assert!((over - 148_000.0 / 93_000.0).abs() < 1e-12);
    assert_eq!(kvm["setting"]["halt_poll_ns"], 200_000);
    assert_eq!(kvm["setting"]["halt_poll_ns_shrink"], 2);
}

#[test]
fn every_layer_has_its_rule_and_several_settings_stand_side_by_side() {
    let file = recording("guest-redis_c1.parquet");
    for (layer, of, version, policy) in [
        ("host", "--kernel", "5.4", "kvm"),
        ("guest", "--kernel", "6.1", "haltpoll"),
        ("iothread", "--qemu", "7.2", "aio-global"),
        ("iothread", "--qemu", "10.0", "aio-per-handler"),
        ("iothread", "--qemu", "11.1", "aio-weighted"),
        ("guest+host", "--kernel", "6.18", "haltpoll+kvm"),
    ] {
        let replayed = json(&["replay", &file, "--layer", layer, of, version, "--format", "json"]);
        assert_eq!(replayed["results"][2]["policy"], policy);
        assert_eq!(replayed["version"], version);
    }
    let args = ["replay", &file, "--layer", "host", "--format", "json", "--set", "halt_poll_ns=160000"];
    let more = ["--set", "halt_poll_ns_shrink=2", "--set", "halt_poll_ns=50us,halt_poll_ns_shrink=0"];
    let replayed = json(&[&args[..], &more[..]].concat());
    let results = replayed["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    assert_eq!(results[2]["setting"]["halt_poll_ns"], 160_000);
    assert_eq!(results[3]["setting"]["halt_poll_ns"], 50_000);
    assert_eq!(results[3]["setting"]["halt_poll_ns_shrink"], 0);
}

/// The driver measures what its defaults of 0 leave open; halts that cost nothing would never be polled for.
#[test]
fn the_idle_driver_is_replayed_with_what_it_measures() {
    let file = recording("guest-redis_c1.parquet");
    let tuned = json(&["tune", &file, "--layer", "driver", "--halt-cost", "20us", "--format", "json"]);
    let present = tuned["rows"].as_array().unwrap().iter().find(|row| row["role"] == "present").unwrap();
    assert_eq!(present["setting"]["halt_cost_ns"], 20_000, "{present}");
    assert!(present["polling_ns_per_s"].as_f64().unwrap() > 0.0, "{present}");
}

#[test]
fn tune_finds_kvms_defaults_at_four_times_optimum_and_a_setting_near_it() {
    let file = recording("guest-memcached_poisson10k.parquet");
    let tuned = json(&["tune", &file, "--layer", "host", "--halt-cost", "20us", "--format", "json"]);
    let row = |role: &str| {
        let rows = tuned["rows"].as_array().unwrap();
        rows.iter().find(|row| row["role"] == role).unwrap_or_else(|| panic!("no row {role}")).clone()
    };
    let over = |role: &str| row(role)["cost_over_optimum"].as_f64().unwrap();
    assert!((3.5..4.5).contains(&over("present")), "{}", over("present"));
    assert!(over("recommended") < 1.15, "{}", over("recommended"));
    assert_eq!(over("optimum"), 1.0);
    assert_eq!(tuned["verdict"], "change");
    assert!(tuned["lines"].as_array().unwrap().len() >= 2);
}

#[test]
fn tune_without_a_file_says_on_its_first_line_what_it_looks_at() {
    let first_line = |output: &Output| stdout(output).lines().next().unwrap_or_default().to_owned();
    let output = dwell(&["tune", "--bundled"]);
    assert!(output.status.success());
    let first = first_line(&output);
    assert!(first.contains("bundled recording") && first.contains("not your machine"), "{first}");
    // Whether this machine can be recorded and idles enough, we cannot know; that it is said, we can.
    let output = dwell(&["tune", "--record-for", "200ms"]);
    let told = String::from_utf8_lossy(&output.stderr);
    let idles = !told.contains("dwell: this machine: the first half of the time recorded has ");
    assert_eq!(output.status.success(), idles, "{told}");
    let first = first_line(&output);
    assert!(
        !idles
            || first.contains("this machine, recorded for")
            || first.contains("this machine cannot be recorded: "),
        "{first}"
    );
}

#[test]
fn leave_it_is_an_exit_code_only_when_asked_for() {
    let file = recording("guest-redis_c1.parquet");
    let args = ["tune", &file, "--layer", "host"];
    assert_eq!(dwell(&args).status.code(), Some(0));
    let output = dwell(&[&args[..], &["--exit-code"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("Advice: leave it"));
}

#[test]
fn formats_carry_the_same_rows() {
    let file = recording("guest-redis_c1.parquet");
    for command in [vec!["tune", &file], vec!["replay", &file], vec!["info", &file], vec!["params"]] {
        for format in ["table", "json", "csv"] {
            let output = dwell(&[&command[..], &["--format", format]].concat());
            assert!(output.status.success() && !output.stdout.is_empty(), "{command:?} {format}");
            assert!(
                output.stderr.is_empty(),
                "{command:?} {format}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}

/// All digits, also of times of more than 53 bits; and one rate of what `info` and `replay` both have.
#[test]
fn figures_are_the_same_in_every_format_and_command() {
    let folder = Folder::new();
    let table = folder.write("long.csv", b"start_ns,idle_ns\n0,20000000000000003\n30000000000000000,5\n");
    let file = folder.text("long.parquet");
    assert!(dwell(&["import", &table, "--layer", "host", "-o", &file]).status.success());
    let cells = |command: &str| -> Vec<Vec<String>> {
        let printed = stdout(&dwell(&[command, &file, "--format", "csv"]));
        printed.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
    };
    let cell = |of: &[Vec<String>], row: usize, name: &str| {
        of[row][of[0].iter().position(|column| column == name).unwrap()].clone()
    };
    let (info, replay) = (cells("info"), cells("replay"));
    let of = json(&["replay", &file, "--format", "json"]);
    assert_eq!(cell(&info, 1, "max_ns"), "20000000000000003");
    assert_eq!(cell(&replay, 2, "cost_ns"), "20000000000000008");
    assert_eq!(of["results"][1]["cost_ns"], 20_000_000_000_000_008u64);

    let file = recording("guest-memcached_poisson10k.parquet");
    let rate = |command: &str, name: &str| {
        let printed = stdout(&dwell(&[command, &file, "--format", "csv"]));
        let row = |line: usize| printed.lines().nth(line).unwrap().split(',').map(str::to_owned);
        row(0).zip(row(1)).find(|(column, _)| column == name).unwrap().1
    };
    assert_eq!(rate("info", "episodes_per_s"), rate("replay", "halts_per_s"));
}

#[test]
fn broken_recordings_are_one_line_and_exit_code_two() {
    let folder = Folder::new();
    let whole = std::fs::read(recording("guest-idle.parquet")).unwrap();
    let mut flipped = whole.clone();
    for byte in &mut flipped[1_000..1_200] {
        *byte ^= 0x5a;
    }
    for (name, bytes) in [
        ("empty.parquet", &[][..]),
        ("garbage.parquet", &b"this is no recording at all, only text"[..]),
        ("truncated.parquet", &whole[..whole.len() / 2]),
        ("flipped.parquet", &flipped[..]),
    ] {
        let file = folder.write(name, bytes);
        for command in ["info", "replay", "tune"] {
            let line = refused_in_one_line(&[command, &file]);
            assert!(line.contains(name), "{line}");
        }
    }
    let line = refused_in_one_line(&["info", &folder.text("absent.parquet")]);
    assert!(line.contains("absent.parquet"), "{line}");
}

#[test]
fn recordings_without_episodes_are_one_sentence() {
    let folder = Folder::new();
    let file = folder.text("none.parquet");
    let to = std::fs::File::create(&file).unwrap();
    let metadata = dwell_recording::Metadata::new(dwell_recording::Layer::Guest);
    dwell_recording::Writer::new(to, metadata, dwell_recording::Packing::default()).unwrap().close().unwrap();
    for command in ["tune", "replay", "report"] {
        let line = refused_in_one_line(&[command, &file]);
        assert!(line.contains("none.parquet") && line.contains("no episodes"), "{command}: {line}");
    }
    let text = stdout(&dwell(&["info", &file]));
    assert_eq!(text.matches("no episodes").count(), 1, "{text}");
    assert!(!text.contains("NaN") && !text.contains('%') && !text.contains("p50"), "{text}");
    let csv = stdout(&dwell(&["info", &file, "--format", "csv"]));
    assert_eq!(csv.lines().nth(1), Some("all,0,,,,,,,,,,,,,"), "{csv}");
}

#[test]
fn a_second_recording_is_refused_where_the_first_has_no_causes() {
    let file = recording("guest-idle.parquet");
    let line = refused_in_one_line(&["tune", &file, "--also", &file]);
    assert!(line.contains("--also") && line.contains("`dwell record`"), "{line}");
}

#[test]
fn recordings_of_one_episode_are_too_few_and_say_so_once() {
    let folder = Folder::new();
    let file = folder.import(&[50_000], "iothread");
    let line = refused_in_one_line(&["tune", &file]);
    assert!(line.contains("too few episodes") && line.contains("128"), "{line}");
    for command in ["info", "replay"] {
        let text = stdout(&dwell(&[command, &file]));
        assert!(text.contains("1 episode of 1 idler") && !text.contains("NaN"), "{command:?}: {text}");
        assert_eq!(text.matches("1 episode, too few").count(), 1, "{command:?}: {text}");
        assert_eq!(text.matches("does not contain the time recorded").count(), 1, "{command:?}: {text}");
    }
    let text = stdout(&dwell(&["report", &file, "--format", "json"]));
    assert!(text.contains("no_advice") && text.contains("1 episode, too few"), "{text}");
}

#[test]
fn info_says_that_a_recording_lacks_the_time_recorded() {
    let folder = Folder::new();
    folder.import(&[50_000; 200], "host");
    let text = stdout(&dwell(&["info", &folder.text("idle.parquet")]));
    assert!(text.contains("does not contain the time recorded") && !text.contains("too few"), "{text}");
}

#[test]
fn import_prints_csv_with_as_many_fields_in_every_line_and_json() {
    let folder = Folder::new();
    let csv = folder.write("a, b.csv", b"start_ns,idle_ns\n0,10\n20,30\n");
    let to = folder.text("a, b.parquet");
    let args = ["import", "--as", "csv", &csv, "--layer", "guest", "-o", &to, "--force", "--format"];
    let output = dwell(&[&args[..], &["csv"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut reader = csv::Reader::from_reader(&output.stdout[..]);
    let heads = reader.headers().unwrap().clone();
    assert!(heads.len() > 2 && heads.iter().all(|head| !head.is_empty()), "{heads:?}");
    // The reader refuses lines of other lengths than the first.
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].iter().any(|field| field == to), "{rows:?}");
    assert_eq!(&rows[0][heads.iter().position(|head| head == "episodes").unwrap()], "2");
    assert_eq!(json(&[&args[..], &["json"]].concat())["episodes"], 2);
}

/// The file's name has what CSV has to quote.
#[test]
fn record_prints_csv_that_is_read_back() {
    let folder = Folder::new();
    let to = folder.text("a, \"b\".parquet");
    let _idles = Sleeper::start();
    let output = dwell(&["record", "guest", "--duration", "300ms", "-o", &to, "--format", "csv"]);
    if !dwell_testing::needs::recorded(&output, "record_prints_csv_that_is_read_back") {
        return;
    }
    let mut reader = csv::Reader::from_reader(&output.stdout[..]);
    let heads = reader.headers().unwrap().clone();
    let field = |row: &csv::StringRecord, name: &str| {
        row[heads.iter().position(|head| head == name).unwrap_or_else(|| panic!("no {name}: {heads:?}"))]
            .to_owned()
    };
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
    let info = json(&["info", &to, "--format", "json"]);
    assert_eq!(rows.len(), info["idlers"].as_array().unwrap().len().max(1), "{rows:?}");
    for row in &rows {
        assert_eq!((field(row, "output"), field(row, "layer")), (to.clone(), "guest".to_owned()));
        assert!(field(row, "elapsed_ns").parse::<u64>().unwrap() >= 300_000_000, "{row:?}");
    }
    let episodes: u64 = rows.iter().map(|row| field(row, "episodes").parse::<u64>().unwrap()).sum();
    assert_eq!(Some(episodes), info["all"]["episodes"].as_u64());
}

#[test]
fn bad_tables_are_named_by_line() {
    let folder = Folder::new();
    for (name, text, says) in [
        ("negative.csv", "start_ns,idle_ns\n0,10\n20,-5\n", "line 3"),
        ("letters.csv", "start_ns,idle_ns\n0,ten\n", "line 2"),
        ("fields.csv", "start_ns,idle_ns\n0,10\n20\n", "line 3"),
        ("huge.csv", "start_ns,idle_ns\n0,18446744073709551616\n", "line 2"),
        ("back.csv", "start_ns,idle_ns\n100,10\n50,10\n", "line 3"),
        ("column.csv", "start_ns,length\n0,10\n", "length"),
        ("header.csv", "start_ns,idle_ns\n", "no episodes"),
        ("empty.csv", "", "empty.csv"),
    ] {
        let (file, to) = (folder.write(name, text.as_bytes()), folder.text("out.parquet"));
        let line = refused_in_one_line(&["import", "--as", "csv", &file, "--layer", "guest", "-o", &to]);
        assert!(line.contains(says), "{name}: {line}");
        assert!(!folder.path("out.parquet").exists(), "{name} left a recording behind");
    }
    let zipped = folder.gzip("cut.csv.gz", b"start_ns,idle_ns\n0,10\n20,30\n");
    let bytes = std::fs::read(&zipped).unwrap();
    let cut = folder.write("cut.csv.gz", &bytes[..bytes.len() - 5]);
    refused_in_one_line(&[
        "import",
        "--as",
        "csv",
        &cut,
        "--layer",
        "guest",
        "-o",
        &folder.text("out.parquet"),
    ]);
}

#[test]
fn wrong_words_name_the_right_ones() {
    let file = recording("guest-redis_c1.parquet");
    for (args, says) in [
        (&["--layer", "host", "--kernel", "4.19"][..], "5.4 to 7.3"),
        (&["--layer", "iothread", "--qemu", "12.0"][..], "2.9 to 11.1"),
        (&["--layer", "iothread", "--kernel", "6.18"][..], "use --qemu"),
        (&["--layer", "host", "--qemu", "10.0"][..], "use --kernel"),
        (&["--layer", "timer"][..], "timers: `dwell timer`"),
        (&["--layer", "host", "--set", "halt_poll=1"][..], "halt_poll_ns_grow_start"),
        (&["--layer", "host", "--set", "halt_poll_ns=5s"][..], "4294967295"),
        (&["--layer", "iothread", "--qemu", "10.0", "--set", "poll-weight=2"][..], "11.1"),
        (&["--halt-cost", "20 parsecs"][..], "200us"),
    ] {
        let stderr = refused(&[&["replay", &file][..], args].concat());
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
}

#[test]
fn perf_text_becomes_a_host_recording() {
    let folder = Folder::new();
    let text = "\
       CPU 0/KVM  4242 [001]   100.000100000: kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 10000 (grow 0)
       CPU 0/KVM  4242 [001]   100.000100500: kvm:kvm_vcpu_wakeup: wait time 50000 ns, polling valid
       CPU 0/KVM  4242 [001]   100.000200000: kvm:kvm_vcpu_wakeup: poll time 7000 ns, polling valid
";
    let (from, to) = (folder.write("perf.txt", text.as_bytes()), folder.text("perf.parquet"));
    let summary = json(&["import", "--as", "perf", &from, "-o", &to, "--format", "json"]);
    assert_eq!(summary["episodes"], 2);
    let info = json(&["info", &to, "--format", "json"]);
    assert_eq!(info["metadata"]["layer"], "host");
    assert_eq!(info["all"]["halted"], 1);
    assert_eq!(info["all"]["polled"], 1);
}

#[test]
fn exits_are_laid_out_as_perf_does() {
    let folder = Folder::new();
    let text = "\
  CPU 0/KVM  7 [000]     1.000001000: kvm:kvm_entry: vcpu 0, rip 0x1
  CPU 0/KVM  7 [000]     1.000002000: kvm:kvm_exit: vcpu 0 reason HLT rip 0x1 info1 0x0 info2 0x0
  CPU 0/KVM  7 [000]     1.000012000: kvm:kvm_entry: vcpu 0, rip 0x1
";
    let table = stdout(&dwell(&["timer", "exits", &folder.write("exits.txt", text.as_bytes())]));
    let row = "                 HLT          1   100.00%   100.00%     10.00us     10.00us     10.00us ( +-   0.00% )";
    assert!(table.contains(row), "{table}");
    assert!(table.contains("Total Samples:1, Total events handled time:10.00us."), "{table}");
    refused_in_one_line(&["timer", "exits", &folder.write("none.txt", b"nothing here\n")]);
    let table = folder.write("table.txt", b"Analyze events for all VMs, all VCPUs:\n");
    for args in [&["timer", "exits", &table][..], &["timer", "import", &table, "-o", "none.parquet"]] {
        assert!(refused_in_one_line(args).contains("is a table of `perf kvm stat report`"));
    }
}

#[test]
fn completions_and_manual_are_generated() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(stdout(&dwell(&["generate", shell])).contains("halt-cost"), "{shell}");
    }
    assert!(stdout(&dwell(&["generate", "man"])).starts_with(".ie"), "the manual is roff");
    assert!(dwell(&["generate", "man", "--out", &folder.text("man")]).status.success());
    for command in [
        "tune", "record", "replay", "info", "import", "timer", "doctor", "bound", "top", "params", "generate",
    ] {
        assert!(folder.path("man").join(format!("dwell-{command}.1")).exists(), "{command}");
    }
}

#[test]
fn an_input_is_never_replaced() {
    let folder = Folder::new();
    let input = folder.text("input.csv");
    std::fs::write(&input, "idler,start_ns,idle_ns\nvcpu0,0,1000\nvcpu0,5000,70000\n").unwrap();
    std::os::unix::fs::symlink(&input, folder.path("link")).unwrap();
    let recording = folder.text("recording.parquet");
    assert!(dwell(&["import", &input, "--layer", "host", "-o", &recording]).status.success());
    for words in [
        &["import", &input, "--layer", "host", "-o", &input][..],
        &["import", &input, "--layer", "host", "-o", &folder.text("link")],
        &["sketch", &recording, "-o", &recording],
        &["report", &recording, "-o", &recording],
        &["tune", &recording, "--plan", &recording],
    ] {
        let before = [&input, &recording].map(|file| std::fs::read(file).unwrap());
        let output = dwell(&[words, &["--force"]].concat());
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains("it is the input"), "{words:?}: {told}");
        assert_eq!([&input, &recording].map(|file| std::fs::read(file).unwrap()), before, "{words:?}");
    }
}

#[test]
fn closed_pipe_is_no_trouble() {
    for words in [&["params"][..], &["params", "--format", "csv"], &["--help"]] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_dwell"))
            .args(words)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.stderr.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{words:?}");
    }
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let generate = [&["generate", "bash"][..], &["generate", "man"]];
    for words in [&["--help"][..], &["tune", "-h"], &["--version"], &["params", "--format", "csv"]]
        .into_iter()
        .chain(generate)
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_dwell")).args(words).stdout(full).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains("cannot write to stdout: No space left on device"), "{words:?}: {told}");
    }
}

#[test]
fn a_qemu_log_is_imported_judged_and_compared() {
    let mut log = String::new();
    let mut at = 1_000_000u64;
    let mut stamp = |after: u64| {
        at += after;
        format!("7@{}.{:06}:", at / 1_000_000, at % 1_000_000)
    };
    for _ in 0..100 {
        log += &format!("{}poll_grow ctx 0x5 old 0 new 4000\n", stamp(20));
        log += &format!("{}run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1\n", stamp(10));
        log += &format!("{}run_poll_handlers_end ctx 0x5 progress 0 new timeout -1\n", stamp(5));
        log += &format!("{}poll_shrink ctx 0x5 old 4000 new 0\n", stamp(100));
    }
    let folder = Folder::new();
    let (from, to) = (folder.gzip("qemu.log.gz", log.as_bytes()), folder.text("qemu.parquet"));
    let summary = json(&["import", "--as", "qemu", &from, "--qemu", "7.2", "-o", &to, "--format", "json"]);
    assert_eq!((&summary["episodes"], &summary["decisions"]["traced"]), (&100.into(), &200.into()));
    assert_eq!(summary["decisions"]["contradicted"], 0);
    // 105 us each: beyond the default maximum of 32768 ns, within 200 us.
    for (maximum, many) in [("default", true), ("poll-max-ns=200us", false)] {
        let replayed = json(&["replay", &to, "--qemu", "11.1", "--set", maximum, "--format", "json"]);
        assert_eq!(replayed["results"][2]["halts"].as_u64().unwrap() > 50, many, "{replayed}");
    }

    let timeless =
        log.lines().map(|line| format!("{}\n", line.split_once(':').unwrap().1)).collect::<String>();
    let from = folder.write("timeless.log", timeless.as_bytes());
    let _ =
        json(&["import", "--as", "qemu", &from, "--qemu", "7.2", "-o", &to, "--force", "--format", "json"]);
    assert!(refused_in_one_line(&["tune", &to]).contains("-msg timestamp=on"));
    let broken = folder.write("broken.log", b"poll_grow ctx 0x5 old 0\n");
    let line = refused_in_one_line(&["import", "--as", "qemu", &broken, "-o", &to, "--force"]);
    assert!(line.contains("line 1 names `poll_grow` but cannot be parsed"), "{line}");
    assert!(line.contains("--skip-unparsable"), "{line}");
    let nobody = refused_in_one_line(&["iothread", "list", "--qmp", &folder.text("none")]);
    assert!(nobody.contains("start QEMU with `-qmp unix:PATH,server=on,wait=off`"), "{nobody}");
}

/// A log that was made under other parameters than the assumed ones was imported, and `tune` advised all the same.
#[test]
fn a_qemu_log_that_contradicts_the_rule_is_refused() {
    let mut log = String::new();
    for number in 0..100u64 {
        let stamp = |after: u64| format!("7@1.{:06}:", number * 200 + after);
        log += &format!("{}poll_grow ctx 0x5 old 0 new 4000\n", stamp(20));
        log += &format!("{}run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1\n", stamp(30));
        log += &format!("{}run_poll_handlers_end ctx 0x5 progress 0 new timeout -1\n", stamp(35));
        log += &format!("{}poll_shrink ctx 0x5 old 4000 new 2000\n", stamp(135));
    }
    let folder = Folder::new();
    let (from, to) = (folder.write("qemu.log", log.as_bytes()), folder.text("qemu.parquet"));
    let import = |more: &[&str]| {
        dwell(&[&["import", "--as", "qemu", &from, "--qemu", "7.2", "-o", &to][..], more].concat())
    };
    let output = import(&[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("decisions in ") && told.contains("--in-force NAME=VALUE"), "{told}");
    assert!(!Path::new(&to).exists());
    assert!(import(&["--allow-contradictions"]).status.success());
}

#[test]
fn a_file_that_is_there_is_replaced_only_with_force() {
    let folder = Folder::new();
    let csv = folder.write("a.csv", b"start_ns,idle_ns\n0,10\n20,30\n");
    let file = recording("guest-redis_c1.parquet");
    let to = folder.text("there");
    for args in [
        &["import", "--as", "csv", &csv, "--layer", "guest", "-o", &to][..],
        &["sketch", &file, "-o", &to],
        &["report", &file, "-o", &to],
        &["record", "guest", "--duration", "10ms", "-o", &to],
    ] {
        std::fs::write(&to, "precious").unwrap();
        let told = refused_in_one_line(args);
        assert!(told.contains("the file exists; --force replaces it"), "{args:?}: {told}");
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "precious");
        if args[0] != "record" {
            assert!(dwell(&[args, &["--force"]].concat()).status.success(), "{args:?}");
            assert_ne!(std::fs::read(&to).unwrap(), b"precious");
        }
    }
    let told = refused_in_one_line(&["tune", "--record-for", "10ms", "--keep", &to]);
    assert!(told.contains("the file exists; remove it"), "{told}");
}

#[test]
fn a_time_without_a_unit_is_refused_with_the_remedy() {
    let folder = Folder::new();
    let (to, file) = (folder.text("there.parquet"), recording("guest-redis_c1.parquet"));
    for (args, says) in [
        (&["record", "guest", "--duration", "10", "-o", &to][..], "write 10s, 10ms, 10us or 10ns"),
        (&["record", "guest", "--duration", "10ns", "-o", &to], "at least 1ms"),
        (&["tune", &file, "--halt-cost", "20"], "write 20s, 20ms, 20us or 20ns"),
        (&["tune", &file, "--halt-cost", "20s"], "more than any halt takes"),
        (&["verify", "--budget", "30"], "write 30s, "),
    ] {
        let told = refused(args);
        assert!(told.contains(says), "{args:?}: {told}");
    }
    assert!(!Path::new(&to).exists());
}

#[test]
fn where_halts_end_too_soon_for_a_host_that_sleeps_the_default_cost_is_questioned() {
    let folder = Folder::new();
    let (csv, to) = (folder.text("t.csv"), folder.text("t.parquet"));
    let questioned = |latency_ns: u64, layer: &str, more: &[&str]| {
        let row = |number: u64| format!("0,{},30000,0,true,ipi,{latency_ns}\n", 100_000 * number);
        let rows: String = (0..300).map(row).collect();
        let head = "idler,start_ns,idle_ns,window_ns,halted,wake,wake_latency_ns\n";
        std::fs::write(&csv, head.to_owned() + &rows).unwrap();
        json(&["import", "--as", "csv", &csv, "--layer", layer, "-o", &to, "--force", "--format", "json"]);
        let replayed = json(&[&["replay", &to, "--format", "json"], more].concat());
        replayed["notes"].as_array().unwrap().iter().any(|note| {
            let note = note.as_str().unwrap();
            note.starts_with("halts end sooner than a host could wake a vCPU") && note.contains("calibrate")
        })
    };
    assert!(questioned(2_600, "guest", &[]));
    assert!(!questioned(14_000, "guest", &[]) && !questioned(2_600, "host", &[]));
    assert!(!questioned(2_600, "guest", &["--halt-cost", "5us"]));
}

#[test]
fn a_recording_is_no_plan() {
    let told = refused_in_one_line(&["apply", &recording("guest-redis_c1.parquet")]);
    assert!(told.contains("it is a recording; make a plan of it with `dwell tune"), "{told}");
}

#[test]
fn tune_writes_a_plan_where_it_advises_a_change_and_none_where_not() {
    let folder = Folder::new();
    let (out, file) = (folder.text("plan.toml"), recording("guest-memcached_poisson10k.parquet"));
    let tuned = json(&[
        "tune",
        &file,
        "--layer",
        "host",
        "--halt-cost",
        "20us",
        "--plan",
        &out,
        "--force",
        "--format",
        "json",
    ]);
    let text = std::fs::read_to_string(&out).expect("the plan is there");
    let plan = dwell_knobs::plan::Plan::from_toml(&text).expect("the plan can be read");
    let row = |role: &str| {
        tuned["rows"].as_array().unwrap().iter().find(|row| row["role"] == role).unwrap().clone()
    };
    assert_eq!(plan.effect.recommended.halts_per_s, row("recommended")["halts_per_s"].as_f64().unwrap());
    assert_eq!(plan.effect.present.polling_ns_per_s, row("present")["polling_ns_per_s"].as_f64().unwrap());
    assert_eq!(plan.recording.bytes, Some(std::fs::metadata(&file).unwrap().len()));
    assert_eq!(plan.recording.episodes, 60_000);
    assert!(!plan.writes.is_empty());
    for write in &plan.writes {
        assert_eq!(row("present")["setting"][&write.knob], write.from);
        assert_eq!(row("recommended")["setting"][&write.knob], write.to);
    }

    let (none, file) = (folder.text("none.toml"), recording("guest-redis_c1.parquet"));
    let output = dwell(&["tune", &file, "--layer", "host", "--plan", &none, "--force"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no plan is written"));
    assert!(!Path::new(&none).exists());

    let refusal = refused_in_one_line(&["tune", "--bundled", "--plan", &none]);
    assert!(refusal.contains("not your machine; record it first"), "{refusal}");
    let refusal = refused(&["tune", "--record-for", "1ms", "--plan", &none]);
    assert!(refusal.contains("none.toml: this machine cannot be recorded: "), "{refusal}");
    let other = recording("guest-memcached_poisson10k.parquet");
    let args = ["tune", &other, "--layer", "host", "--halt-cost", "20us", "--plan", &none];
    let refusal = refused(&args);
    assert!(
        refusal.contains("the recording is of another machine") && refusal.contains("--force"),
        "{refusal}"
    );
    assert!(!Path::new(&none).exists());

    let event = recording("event-mix.parquet");
    let refusal = refused_in_one_line(&["tune", &event, "--layer", "iothread", "--plan", &none, "--force"]);
    assert!(refusal.contains("--qmp SOCKET --iothread ID"), "{refusal}");
}

#[test]
fn replay_takes_policies_beside_settings() {
    let file = recording("guest-pipe_exp100us.parquet");
    let args =
        ["replay", &file, "--policy", "leader@50us", "--policy", "savings@50us", "--halt-cost", "50us"];
    let replayed = json(&[&args[..], &["--format", "json"]].concat());
    let results = replayed["results"].as_array().unwrap();
    let policies: Vec<&str> = results.iter().map(|result| result["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["never", "always", "haltpoll", "leader", "savings"]);
    let over = |place: usize| results[place]["cost_over_optimum"].as_f64().unwrap();
    assert!(over(3) < over(4) && over(4) < over(2), "{results:?}");
    assert!(refused(&["replay", &file, "--policy", "follower@5us"]).contains("leader@TIME"));
    // A policy without parameters that is there twice has no setting to tell them apart.
    let twice = json(&["replay", &file, "--policy", "always", "--halt-cost", "50us", "--format", "json"]);
    assert!(twice["notes"][0].as_str().unwrap().contains(" always costs "), "{}", twice["notes"]);
}

#[test]
fn tune_shows_what_a_better_rule_would_get() {
    let file = recording("event-pgbench_sel1.parquet");
    for (layer, of, version) in [("host", "--kernel", "6.18"), ("iothread", "--qemu", "7.2")] {
        let args = ["tune", &file, "--layer", layer, of, version, "--halt-cost", "50us", "--format", "json"];
        let tuned = json(&args);
        let cost = |role: &str| {
            let rows = tuned["rows"].as_array().unwrap();
            rows.iter().find(|row| row["role"] == role).unwrap()["cost_over_optimum"].as_f64().unwrap()
        };
        assert!(cost("leader") < cost("best_in_hindsight"), "{layer}");
        assert!(cost("leader") < cost("savings") && cost("savings") < cost("best_fixed_window"), "{layer}");
    }
    let told = stdout(&dwell(&["tune", &file, "--layer", "host", "--halt-cost", "50us"]));
    assert!(told.contains("A learning policy would cost 1.0") && !told.contains("dwell_idle"), "{told}");
    // A guest can have it, where it is better than the best setting of haltpoll.
    for (name, is_better) in [("guest-mix.parquet", true), ("guest-pgbench_sel1.parquet", false)] {
        let told = stdout(&dwell(&["tune", &recording(name), "--halt-cost", "50us"])).replace('\n', " ");
        assert_eq!(told.contains("modprobe dwell_idle halt_cost_ns=50000"), is_better, "{told}");
    }
}

#[test]
fn a_stored_halt_cost_is_the_default_for_its_own_machine_only() {
    let folder = Folder::new();
    let file = &recording("guest-redis_c1.parquet");
    let info = json(&["info", file, "--format", "json"]);
    let cost = |gap_ns: u64, cpu_ns: f64| {
        let spread = |value: f64| serde_json::json!({ "value": value, "low": value, "high": value });
        serde_json::json!({
            "gap_ns": gap_ns, "cpu_ns": spread(cpu_ns), "latency_ns": spread(9_000.0), "idle_excess_ns": spread(8_000.0),
        })
    };
    let mut calibration = serde_json::json!({
        "format": 2,
        "cpu_model": info["metadata"]["cpu_model"].as_str().unwrap_or("another"),
        "kernel": info["metadata"]["kernel"].as_str().unwrap_or("another"),
        "measured_at_unix_s": 0,
        "halts": [
            { "halt_of": "vcpu", "costs": [cost(50_000, 1_000.0)] },
            { "halt_of": "own_cpu", "costs": [cost(50_000, 7_000.0)] },
        ],
    });
    let stored = folder.path("dwell/halt-cost.json");
    let replay = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        let command = command.args(["replay", file, "--format", "json", "--set", "default"]);
        command.env("XDG_STATE_HOME", folder.0.path()).output().expect("the program can be started")
    };
    std::fs::create_dir_all(stored.parent().unwrap()).unwrap();
    let halt_cost = |calibration: &Value| {
        std::fs::write(&stored, calibration.to_string()).unwrap();
        let replayed: Value = serde_json::from_slice(&replay().stdout).expect("stdout is JSON");
        (replayed["halt_cost_ns"].clone(), replayed["wakeup_latency_ns"].clone())
    };
    let known = info["metadata"]["cpu_model"].is_string() && info["metadata"]["kernel"].is_string();
    let expected = if known { (7_000, 9_000.0) } else { (20_000, 20_000.0) };
    assert_eq!(halt_cost(&calibration), (expected.0.into(), expected.1.into()));
    calibration["kernel"] = "another".into();
    assert_eq!(halt_cost(&calibration), (20_000.into(), 20_000.0.into()));
    std::fs::write(&stored, "{}").unwrap();
    let refused = String::from_utf8_lossy(&replay().stderr).into_owned();
    assert!(!known || refused.contains("dwell-lab calibrate"), "{refused}");
}

/// A trace as somebody has it, with the importer's tests.
fn field_case(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/it/import/field").join(name);
    path.to_str().expect("the path is UTF-8").to_owned()
}

#[test]
fn import_recognises_what_it_is_given() {
    let folder = Folder::new();
    let to = folder.text("out.parquet");
    for (name, format, episodes) in [
        ("01-tracecmd-host-halt-poll.txt", "trace-cmd or ftrace", 7),
        ("03-perf-arm64-guest.txt", "perf script", 6),
        ("09-qemu-trace-stap.log", "QEMU's trace", 3),
        ("13.xz", "perf script", 2),
    ] {
        let summary = json(&["import", &field_case(name), "-o", &to, "--force", "--format", "json"]);
        let found = (summary["format"].as_str().unwrap_or(""), summary["episodes"].as_u64());
        assert_eq!(found, (format, Some(episodes)), "{name}");
    }
    let table = folder.write("table.csv", b"start_ns;idle_ns\n5.0;7.0\n");
    assert!(
        refused_in_one_line(&["import", &table, "-o", &to, "--force"])
            .contains("give --layer guest, host or iothread")
    );
    let summary = json(&["import", &table, "--layer", "guest", "-o", &to, "--force", "--format", "json"]);
    assert_eq!(summary["episodes"], 1);
    let strace =
        refused_in_one_line(&["import", &field_case("16-strace-event-loop.txt"), "-o", &to, "--force"]);
    assert!(strace.contains("`dwell record thread --pid PID`"), "{strace}");
}

/// What an import notes, later commands print too.
#[test]
fn what_a_trace_lacks_is_said_at_import_and_later() {
    let folder = Folder::new();
    let to = folder.text("timer.parquet");
    for (name, note) in [
        ("05-perf-windows-stimer.txt", "6 Hyper-V timers"),
        ("06-perf515-timer-no-guest-code.txt", "3 exits are by an interrupt, and none of these"),
    ] {
        let case = field_case(&format!("../../../../../timer/tests/field/{name}"));
        let import = ["timer", "import", case.as_str(), "-o", &to, "--force"];
        for args in [&import[..], &["info", &to], &["timer", "exits", &to], &["timer", "tune", &to]] {
            let output = dwell(args);
            let text = stdout(&output) + &String::from_utf8_lossy(&output.stderr);
            assert!(text.contains(note), "{args:?}: {text}");
        }
    }
    let advised = stdout(&dwell(&["timer", "tune", &to]));
    assert!(advised.contains("the recording has 5 timers, too few to rely on the advice"), "{advised}");
}

/// `perf script` prints microseconds without `--ns`.
#[test]
fn info_prints_what_the_times_resolve() {
    let folder = Folder::new();
    let to = folder.text("out.parquet");
    for (time, steps) in [("1.000100", true), ("1.000100000", false)] {
        let line =
            format!("CPU 0/KVM 7 [000] {time}: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid\n");
        let text = folder.write("text", line.as_bytes());
        assert!(dwell(&["import", &text, "-o", &to, "--force"]).status.success());
        let info = stdout(&dwell(&["info", &to]));
        assert_eq!(info.contains("perf's clock, since boot; times in steps of 1.00 us\n"), steps, "{info}");
    }
}

#[test]
fn files_of_recorders_are_converted_by_their_tools_or_named_with_the_command() {
    let folder = Folder::new();
    let to = folder.text("out.parquet");
    let (perf, trace_cmd) = (field_case("12-perf.data"), field_case("12-trace.dat"));
    let line = refused_in_one_line(&["import", &perf, "-o", &to, "--force"]);
    assert!(line.contains("is a perf.data of perf; make a text with `perf script --ns"), "{line}");
    assert!(line.trim_end().ends_with("or give --convert"), "{line}");
    let line = refused_in_one_line(&["timer", "exits", &trace_cmd]);
    assert!(line.contains("`trace-cmd report -t -i") && !line.contains("--convert"), "{line}");
    for command in ["info", "tune"] {
        let line = refused_in_one_line(&[command, &trace_cmd]);
        assert!(line.contains("a trace.dat of trace-cmd, no recording of dwell's; `dwell import"), "{line}");
    }
    let text = field_case("13-perf-tid-reltime-lost.txt");
    let convert = |script: &str, import: &[&str]| {
        write_program(&folder.path("perf"), format!("#!/bin/sh\n{script}\n").as_bytes());
        let path = format!("{}:/usr/bin:/bin", folder.0.path().display());
        let args = [import, &[&perf, "--convert", "-o", &to, "--force", "--format", "json"]].concat();
        Command::new(env!("CARGO_BIN_EXE_dwell")).args(args).env("PATH", path).output().expect("dwell starts")
    };
    let output = convert(&format!("[ \"$1 $7 $8\" = \"script -i {perf}\" ] && cat '{text}'"), &["import"]);
    let summary: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!(summary["episodes"], 2);
    // Timers need what interrupts a running guest.
    let line = refused_in_one_line(&["timer", "import", &perf, "-o", &to, "--force"]);
    assert!(line.contains("`perf script --guest-code --ns"), "{line}");
    let timers = field_case("../../../../../timer/tests/field/06-reference-with-guest-code.txt");
    let output =
        convert(&format!("[ \"$1 $2\" = \"script --guest-code\" ] && cat '{timers}'"), &["timer", "import"]);
    let summary: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!(summary["lines"], 71);
    let output = convert(&format!("cat '{text}'; exit 3"), &["import"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("failed: exit status: 3"), "{stderr}");
}

/// The trace begins before its first timer and ends after its last.
#[test]
fn an_import_reports_the_time_by_which_rates_are() {
    let folder = Folder::new();
    let to = folder.text("timers.parquet");
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/timers/guest-6.12.perf.txt.gz");
    let imported = json(&["timer", "import", &trace.display().to_string(), "-o", &to, "--format", "json"]);
    let info = json(&["info", &to, "--format", "json"]);
    assert!(info["span_ns"].is_u64() && imported["span_ns"] == info["span_ns"], "{imported}\n{info}");
}

#[test]
fn what_cannot_be_a_pipe_is_refused_with_a_remedy() {
    let folder = Folder::new();
    for command in ["info", "tune", "replay", "report"] {
        let error = refused(&[command, "-"]);
        assert!(
            error.contains("cannot read a recording from stdin") && error.contains("to a file"),
            "{error}"
        );
    }
    let table = folder.write("t.csv", b"start_ns,idle_ns\n0,1000\n");
    let error = refused(&["import", &table, "--layer", "guest", "-o", "-"]);
    assert!(error.contains("cannot write -: this output goes to a file"), "{error}");
}

#[test]
fn what_a_file_lacks_is_noted() {
    let folder = Folder::new();
    let rows: String = (0..200).map(|number| format!("{},9000\n", number * 100_000)).collect();
    let table = folder.write("t.csv", format!("start_ns,idle_ns\n{rows}").as_bytes());
    let file = folder.path("t.parquet").display().to_string();
    assert!(dwell(&["import", &table, "--layer", "host", "-o", &file]).status.success());
    let note = "the recording does not have the kernel's release";
    assert!(stdout(&dwell(&["tune", &file])).replace('\n', " ").contains(note));
    assert!(!stdout(&dwell(&["tune", &file, "--kernel", "6.8"])).replace('\n', " ").contains(note));
    let root = folder.path("").display().to_string();
    let status = dwell(&["status", "--sysroot", &root]);
    let remark = String::from_utf8_lossy(&status.stderr).replace('\n', " ");
    assert!(remark.contains("its journal is elsewhere or was not copied"), "{remark}");
}

#[test]
fn a_log_without_times_has_no_span() {
    let folder = Folder::new();
    let log = folder.write(
        "qemu.log",
        b"run_poll_handlers_begin ctx 0x1 max_ns 4000 timeout -1\n\
        run_poll_handlers_end ctx 0x1 progress 1 new timeout 0\n",
    );
    let output = dwell(&["import", &log, "-o", &folder.path("q.parquet").display().to_string()]);
    let text = stdout(&output);
    assert!(text.contains("1 episode of 1 idler, from 2 lines") && text.contains("no times"), "{text}");
}

#[test]
fn two_readings_of_domstats_give_a_bound() {
    let [first, second] = ["11-domstats-t0.txt", "11-domstats-t60.txt"].map(field_case);
    let bound = &json(&["bound", &first, &second, "--between", "60s", "--format", "json"])[0];
    let total = &bound["total"];
    let figures =
        ["polls", "polls_succeeded", "halts", "polled_ns", "wasted_ns"].map(|name| total[name].as_u64());
    assert_eq!(figures, [50_000, 20_000, 30_000, 4_500_000_000, 3_000_000_000].map(Some));
    assert_eq!(
        (bound["vms"][0]["process"].as_str(), total["polled_share"].as_f64()),
        (Some("win11"), Some(0.075))
    );
    assert!(refused(&["bound", &first, &second]).contains("--between"));
    // 60 s of polls are not those of 1 s.
    let error = refused(&["bound", &first, &second, "--between", "1s"]);
    assert!(error.contains("the readings are further apart"), "{error}");
    let folder = Folder::new();
    let packed = folder.gzip("first.gz", &std::fs::read(&first).unwrap());
    let of_packed = json(&["bound", &packed, &second, "--between", "60s", "--format", "json"]);
    assert_eq!(&of_packed[0]["total"], total);
}

/// With file capabilities, as the book has them: here given by `setpriv`, to a user who may not read the file.
#[test]
fn what_the_user_names_is_read_with_the_rights_of_the_user_alone() {
    use std::os::unix::fs::PermissionsExt;
    const NAME: &str = "what_the_user_names_is_read_with_the_rights_of_the_user_alone";
    let folder = Folder::new();
    let secret = folder.write("secret", b"root:*:20000:0:99999:7:::\n");
    let program = folder.path("dwell");
    write_program(&program, &std::fs::read(env!("CARGO_BIN_EXE_dwell")).unwrap());
    for (path, mode) in [(folder.path(""), 0o755), (folder.path("secret"), 0o600)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let as_nobody = |words: &[&str]| {
        let rights = "-all,+perfmon,+dac_read_search";
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.args(["--inh-caps", rights, "--ambient-caps", rights]).arg(&program);
        let output = command.args(words).output().unwrap();
        (output.status.code(), stdout(&output) + &String::from_utf8_lossy(&output.stderr))
    };
    let (code, told) = as_nobody(&["params"]);
    if code != Some(0) {
        return dwell_testing::skip!("root", NAME, "{}", told.trim());
    }
    for words in [
        &["control", "--check", "--config", &secret][..],
        &["control", "--config", &secret],
        &["control", "--replay", &secret],
        &["apply", &secret, "--dry-run"],
        &["import", &secret, "-o", "/dev/null"],
        &["tune", &secret],
        &["info", &secret],
        &["bound", &secret, &secret, "--between", "1s"],
    ] {
        let (code, told) = as_nobody(words);
        assert!(
            code == Some(2) && told.contains("ermission denied") && !told.contains("20000"),
            "{words:?}: {told}"
        );
    }
}

#[test]
fn an_option_of_another_format_is_refused() {
    let folder = Folder::new();
    let table = folder.write("idle.csv", b"start_ns,idle_ns\n10,5\n20,5\n");
    let to = folder.text("out.parquet");
    for (more, why) in [
        (&["--sleeps", "x"][..], "--sleeps is for QEMU's trace of its event loops (qemu), and "),
        (&["--arch", "aarch64"], "--arch is for a trace of events (perf), and "),
        (&["--skip-unparsable"], "--skip-unparsable is for traces, and "),
        (&["--as", "perf", "--idler", "cpu7"], "--idler is for a table of episodes (csv), and "),
    ] {
        let line =
            refused_in_one_line(&[&["import", &table, "--layer", "guest", "-o", &to][..], more].concat());
        assert!(line.contains(why), "{line}");
    }
    let log = folder.write("qemu.log", b"7@100.000010:poll_grow ctx 0x5 old 0 new 4000\n");
    let line = refused_in_one_line(&["import", &log, "--layer", "host", "-o", &to]);
    assert!(line.contains("(qemu), which is of the layer iothread"), "{line}");
    let _ = json(&["import", &table, "--layer", "guest", "--idler", "cpu7", "-o", &to, "--format", "json"]);
    assert!(stdout(&dwell(&["info", &to])).contains("cpu7"));
}

/// The verdict of `tune` on a guest with short idle times that never polls, and of whose CPU time so much was stolen.
fn verdict_where_stolen(steal_ns: u64) -> (String, String) {
    use dwell_recording::{CPU_TIME, Episode, Layer, Metadata, SettingValue, SettingsChange, Writer};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest.parquet");
    let mut metadata = Metadata::new(Layer::Guest);
    let cpu_time = serde_json::json!({ "busy": 1_000_000_000, "steal": steal_ns });
    metadata.other.insert(CPU_TIME.to_owned(), cpu_time);
    let values = [("guest_halt_poll_ns".to_owned(), SettingValue::Number(0))].into();
    metadata.settings.push(SettingsChange { at_ns: None, owner: Layer::Guest.into(), values });
    let mut writer = Writer::create(&path, metadata).unwrap();
    for episode in 0..4_000 {
        writer.push(&Episode::new("cpu0", episode * 10_000, 4_000 + episode * 37 % 3_000)).unwrap();
    }
    writer.finish().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.arg("tune").arg(&path).args(["--halt-cost", "50us", "--format", "json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (found["verdict"].as_str().unwrap_or_default().to_owned(), found["notes"].to_string())
}

#[test]
fn a_guest_that_shares_its_cores_is_not_advised_to_poll_more() {
    let (verdict, notes) = verdict_where_stolen(0);
    assert_eq!(verdict, "change");
    assert!(notes.contains("has cores of its own"), "{notes}");
    let (verdict, notes) = verdict_where_stolen(300_000_000);
    assert_eq!(verdict, "shared_cores");
    assert!(notes.contains("shares its cores") && notes.contains("23"), "{notes}");
}

/// Rows of one idler that idles for `idle_ns`, one after the other `every_ns` apart.
fn spaced(number: u64, every_ns: u64, idle_ns: impl Fn(u64) -> u64) -> String {
    let row = |at: u64| format!("{},{}\n", at * every_ns, idle_ns(at));
    "start_ns,idle_ns\n".to_owned() + &(0..number).map(row).collect::<String>()
}

/// An idler that idled a tenth longer than it was recorded was advised on without a word.
#[test]
fn episodes_that_overlap_are_refused_where_they_cannot_be_and_counted_where_they_can() {
    let folder = Folder::new();
    let import = |name: &str, csv: &str| {
        let (from, to) = (folder.write("overlap.csv", csv.as_bytes()), folder.text(name));
        let args = ["import", "--as", "csv", &from, "--layer", "host", "-o", &to, "--force"];
        assert!(dwell(&args).status.success());
        to
    };
    let too_long = import("too-long.parquet", &spaced(2_000, 10_000, |_| 11_000));
    for command in ["tune", "replay"] {
        let line = refused_in_one_line(&[command, &too_long]);
        assert!(line.contains("1 idler cannot idle for 22.0 ms in the 20.0 ms"), "{command}: {line}");
    }
    let some =
        import("some.parquet", &spaced(2_000, 10_000, |at| if at % 500 == 0 { 12_000 } else { 6_000 }));
    let noted =
        |found: &Value| found["notes"].to_string().contains("4 episodes start before the previous one");
    for command in ["tune", "replay"] {
        let found = json(&[command, &some, "--halt-cost", "20us", "--format", "json"]);
        assert!(noted(&found), "{command}: {found}");
    }
    assert!(stdout(&dwell(&["info", &some])).contains("4 episodes start before the previous one"));
}

#[test]
fn a_qemu_log_without_times_is_said_to_have_none() {
    let folder = Folder::new();
    let attempt = "run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1\n\
                   run_poll_handlers_end ctx 0x5 progress 0 new timeout -1\npoll_shrink ctx 0x5 old 4000 new 0\n\
                   poll_grow ctx 0x5 old 0 new 4000\n";
    let from = folder.write("qemu.log", attempt.repeat(200).as_bytes());
    let to = folder.text("qemu.parquet");
    let imported = json(&["import", &from, "-o", &to, "--format", "json"]);
    assert!(imported["notes"].to_string().contains("the log had no times"), "{imported}");
    let info = stdout(&dwell(&["info", &to])).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(info.contains("note: the log had no times") && !info.contains("warning"), "{info}");
    assert!(!info.contains("rates are over") && !info.contains(" over "), "{info}");
    let csv = stdout(&dwell(&["info", &to, "--format", "csv"]));
    let mut rows = csv::Reader::from_reader(csv.as_bytes());
    let rate = rows.headers().unwrap().iter().position(|name| name == "episodes_per_s").unwrap();
    assert_eq!(&rows.records().next().unwrap().unwrap()[rate], "", "{csv}");
    let line = refused_in_one_line(&["replay", &to]);
    assert!(line.contains("cannot replay: the recording has only lower bounds"), "{line}");
    assert!(line.contains("-msg timestamp=on"), "{line}");
}

#[test]
fn merging_what_cannot_be_merged_names_the_files_and_what_differs() {
    let folder = Folder::new();
    let both = [recording("guest-redis_c1.parquet"), folder.import(&[50_000; 200], "iothread")];
    let to = folder.text("both.parquet");
    let line = refused_in_one_line(&["sketch", &both[0], &both[1], "-o", &to]);
    assert!(both.iter().all(|file| line.contains(file.as_str())), "{line}");
    assert!(line.contains("they are of the layers guest and iothread"), "{line}");
    let old = folder.text("old.parquet");
    assert!(dwell(&["sketch", &both[0], "--kernel", "5.4", "-o", &old]).status.success());
    let line = refused_in_one_line(&["sketch", &old, &both[0], "-o", &to]);
    assert!(line.contains("they are of the releases 5.4 and ") && line.contains("--kernel"), "{line}");
}

#[test]
fn a_folder_for_the_manual_that_cannot_be_made_is_named() {
    let line = refused_in_one_line(&["generate", "man", "--out", "/proc/no/folder"]);
    assert!(line.contains("cannot create the folder /proc/no/folder"), "{line}");
    let folder = Folder::new();
    std::fs::create_dir(folder.path("dwell.1")).unwrap();
    let line = refused_in_one_line(&["generate", "man", "--out", &folder.text("")]);
    assert!(line.contains("cannot write ") && line.contains("dwell.1"), "{line}");
}

/// A guest's recording of successful polls in windows five times as long as the maximum that it says was in force.
fn self_contradictory(path: &Path) {
    use dwell_recording::{Episode, Layer, Metadata, SettingValue, SettingsChange, Writer};
    let mut metadata = Metadata::new(Layer::Guest);
    metadata.kernel = Some("6.18.0".to_owned());
    let values = [("guest_halt_poll_ns".to_owned(), SettingValue::Number(20_000))].into();
    metadata.settings.push(SettingsChange { at_ns: None, owner: Layer::Guest.into(), values });
    let mut writer = Writer::create(path, metadata).unwrap();
    for number in 0..4_000 {
        let episode = Episode::new("cpu0", number * 1_000_000, 30_000 + number * 7_919 % 60_000);
        writer.push(&Episode { window_ns: Some(100_000), halted: Some(false), ..episode }).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_recording_that_the_replay_contradicts_gets_no_advice_unless_it_is_asked_for() {
    let folder = Folder::new();
    self_contradictory(&folder.path("guest.parquet"));
    let file = folder.text("guest.parquet");
    let tune = ["tune", &file, "--halt-cost", "20us"];
    let told = refused_in_one_line(&tune);
    assert!(told.contains("cannot advise: ") && told.contains("--despite-self-check"), "{told}");
    assert!(told.contains("more than 20 %"), "{told}");
    let tuned = json(&[&tune[..], &["--despite-self-check", "--format", "json"]].concat());
    assert!(tuned["notes"].to_string().contains("Predictions from this recording are wrong"), "{tuned}");
}

/// The gain is 46.7 % of a CPU.
#[test]
fn a_gain_below_min_gain_is_not_recommended() {
    let file = recording("guest-memcached_poisson10k.parquet");
    let verdict = |min_gain: &str| {
        let args = ["tune", &file, "--layer", "host", "--halt-cost", "20us", "--format", "json"];
        json(&[&args[..], &["--min-gain", min_gain]].concat())["verdict"].clone()
    };
    assert_eq!((verdict("40%"), verdict("0.5")), ("change".into(), "too_small".into()));
}

/// Most idle times of this recording are of 7 us, the latency included.
#[test]
fn a_wakeup_latency_longer_than_what_includes_it_is_noted() {
    let file = recording("guest-pgbench_sel1.parquet");
    for command in ["replay", "tune"] {
        let notes = |latency: &str| {
            let words =
                [command, &file, "--halt-cost", "20us", "--format", "json", "--wakeup-latency", latency];
            json(&words)["notes"].to_string()
        };
        let (long, short) = (notes("9ms"), notes("5us"));
        assert!(long.contains("are shorter than 9.00 ms: the latency is shorter than that"), "{long}");
        assert!(!short.contains("are shorter than"), "{short}");
    }
}

/// Short waits, which any poll serves, and long ones, which polls of the default serve at ten times the cost of a halt, unless
/// the kernel takes them for longer than its maximum, as it does with a latency of 50 us.
#[test]
fn advice_that_depends_on_an_unknown_latency_says_so() {
    let folder = Folder::new();
    let mut table = "idler,start_ns,idle_ns\n".to_owned();
    let mut now_ns = 0;
    for episode in 0..8_000 {
        let idle_ns = if episode % 200 < 100 { 5_000 } else { 180_000 };
        table += &format!("vcpu0,{now_ns},{idle_ns}\n");
        now_ns += idle_ns + 5_000;
    }
    let (table, file) = (folder.write("table.csv", table.as_bytes()), folder.text("one.parquet"));
    let words = ["import", "--as", "csv", &table, "--layer", "host", "--in-force", "halt_poll_ns=200000"];
    let imported = dwell(&[&words[..], &["-o", &file]].concat());
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let tuned = |more: &[&str]| {
        let words = ["tune", &file, "--kernel", "6.18", "--halt-cost", "20us", "--format", "json"];
        json(&[&words[..], more].concat())["notes"].to_string()
    };
    let notes = tuned(&[]);
    assert!(notes.contains("With 50.0 us, more than was ever measured"), "{notes}");
    assert!(notes.contains("THE ADVICE DEPENDS ON IT"), "{notes}");
    assert!(!tuned(&["--wakeup-latency", "1us"]).contains("latency of halts is not known"));
}

/// A recording distinguishes the recorder from the load by this name.
#[test]
fn the_program_has_its_name_whatever_its_file_is_called() {
    let folder = Folder::new();
    let other = folder.path("another");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_dwell"), &other).unwrap();
    let mut command = Command::new(other);
    command.args(["import", "-", "-o", &folder.text("out.parquet")]).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let comm = format!("/proc/{}/comm", child.id());
    let named = (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::read_to_string(&comm).is_ok_and(|name| name == "dwell\n")
    });
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(named);
}
