//! Files that somebody else made: whatever they hold, the program ends, says what is wrong, and sends nothing to the
//! terminal that steers it.

use dwell_recording::{Episode, Layer, Metadata, Packing, Writer};
use dwell_testing::process::{Process, Sleeper};
use dwell_testing::schema;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn dwell(words: &[&str]) -> Output {
    let begun = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_dwell")).args(words).stdin(Stdio::null()).output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(60), "{words:?}: {:?}", begun.elapsed());
    output
}

/// What is printed, all of it checked.
fn printed(words: &[&str]) -> String {
    let output = dwell(words);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    let harmful = |c: char| dwell_report::harmless::is_harmful(c) && c != '\n';
    let found: String = text.chars().filter(|c| harmful(*c)).collect();
    assert!(found.is_empty(), "{words:?} prints {}:\n{}", found.escape_unicode(), text.escape_debug());
    text
}

const NAMES: [&str; 12] = [
    "\u{1b}[2J\u{1b}]0;pwn\u{7}",
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "@SUM(1)",
    "-2",
    "a,b\"c\nd",
    "\u{202e}gnp.exe",
    "\u{9b}31m",
    "\r\n\u{8}\u{8}",
    "\u{2028}x",
    "\u{200b}\u{feff}\u{2066}",
];

fn hostile(dir: &Path) -> PathBuf {
    let path = dir.join("names.parquet");
    let mut metadata = Metadata::new(Layer::Guest);
    metadata.provenance = Some("\u{1b}[31mPROV\u{2028}".to_owned());
    metadata.tool_version = "\u{1b}]0;x\u{7}".to_owned();
    metadata.kernel = Some("6.18\u{1b}[5m".to_owned());
    metadata.cpu_model = Some("\u{9b}7m\u{202e}evil".to_owned());
    metadata.source.tool = "\u{1b}[41m".to_owned();
    metadata.source.events = vec!["\u{1b}[1m\u{202e}".to_owned()];
    metadata.source.command = Some("\u{1b}c".to_owned());
    let mut writer = Writer::new(fs::File::create(&path).unwrap(), metadata, Packing::default()).unwrap();
    for n in 0..6_000u64 {
        let name = NAMES[usize::try_from(n).unwrap() % NAMES.len()];
        writer.push(&Episode::new(name, n * 100_000, 5_000 + n % 70_000)).unwrap();
    }
    writer.close().unwrap();
    path
}

#[test]
fn names_and_metadata_steer_neither_terminal_nor_spreadsheet() {
    let dir = tempfile::tempdir().unwrap();
    let path = hostile(dir.path());
    let file = path.to_str().unwrap();
    printed(&["report", file, "--format", "json"]);
    for command in ["info", "replay", "tune"] {
        for format in ["table", "json", "csv"] {
            printed(&[command, file, "--format", format]);
        }
    }
    let csv = printed(&["info", file, "--format", "csv"]);
    for (cell, shown) in [("=cmd", "'=cmd"), ("+1+1", "'+1+1"), ("@SUM", "'@SUM")] {
        assert!(csv.contains(shown) && !csv.contains(&format!("\n{cell}")), "{csv}");
    }
    // A number stays one, and JSON has every name as it is.
    assert!(csv.contains("\n-2,500,"), "{csv}");
    let json: serde_json::Value =
        serde_json::from_slice(&dwell(&["info", file, "--format", "json"]).stdout).unwrap();
    let names: Vec<&str> =
        json["idlers"].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert_eq!(names, NAMES);
    assert_eq!(json["metadata"]["cpu_model"], "\u{9b}7m\u{202e}evil");
}

/// An idler cannot idle for 1,000 s in one: no share of that is printed.
#[test]
fn episodes_that_overlap_without_bounds_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("overlap.parquet");
    let out = fs::File::create(&path).unwrap();
    let mut writer = Writer::new(out, Metadata::new(Layer::Host), Packing::default()).unwrap();
    (0..1_000).for_each(|n| writer.push(&Episode::new("a", n, 1_000_000_000)).unwrap());
    writer.close().unwrap();
    let path = path.to_str().unwrap();
    for words in
        [&["replay", path][..], &["tune", path], &["tune", path, "--format", "json"], &["info", path]]
    {
        let text = printed(words);
        assert!(!text.contains("0000 %"), "{words:?}: {text}");
        let named = if words[0] == "info" {
            "999 episodes start before the previous one of the same idler has ended"
        } else {
            "1 idler cannot idle for 17 min in the 1.00 s of the recording: episodes of one idler overlap"
        };
        assert!(text.contains(named), "{words:?}: {text}");
    }
}

#[test]
fn errors_do_not_echo_what_steers() {
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.toml");
    fs::write(&plan, "format = 1\nlayer = \"\u{1b}[2J\u{9b}\u{202e}\u{2028}\u{7}\" = 3\n").unwrap();
    let sysroot = dir.path().to_str().unwrap();
    let told = printed(&["apply", plan.to_str().unwrap(), "--sysroot", sysroot]);
    assert!(told.contains("\\u{9b}"), "{told}");
    let trace = dir.path().join("\u{1b}[2Jtrace.csv");
    fs::write(&trace, "idler,start_ns,idle_ns\n\u{1b}[2J,\u{9b},x\n").unwrap();
    let out = dir.path().join("out.parquet");
    printed(&[
        "import",
        "--as",
        "csv",
        trace.to_str().unwrap(),
        "--layer",
        "guest",
        "-o",
        out.to_str().unwrap(),
    ]);
    let measured = dir.path().join("measured.json");
    fs::write(&measured, "{\"change\": 1, \"verdict\": \"\u{9b}\u{202e}\", \"figures\": [}").unwrap();
    let recording = hostile(dir.path());
    let told = printed(&["report", recording.to_str().unwrap(), "--measured", measured.to_str().unwrap()]);
    assert!(told.contains("measured.json"), "{told}");
}

#[test]
fn what_does_not_end_is_not_read_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let recording = hostile(dir.path());
    let (fifo, sysroot) = (fifo.to_str().unwrap(), dir.path().to_str().unwrap());
    let good = recording.to_str().unwrap();
    let out = dir.path().join("out.parquet");
    let out = out.to_str().unwrap();
    for (file, why) in [(fifo, "a FIFO"), ("/dev/zero", "a device"), (sysroot, "a directory")] {
        for words in [
            &["apply", file, "--sysroot", sysroot][..],
            &["info", file],
            &["tune", file],
            &["report", file],
            &["report", good, "--measured", file, "--format", "json"],
            &["replay", file],
            &["timer", "tune", file],
            &["timer", "exits", file],
            &["timer", "import", file, "-o", out],
            &["import", "--as", "csv", file, "--layer", "guest", "-o", out],
            &["import", "--as", "perf", file, "-o", out],
            &["import", "--as", "qemu", file, "-o", out],
            &["import", "--as", "qemu", good, "--sleeps", file, "-o", out],
        ] {
            let output = dwell(words);
            let told = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
            assert!(told.contains(why) && told.lines().count() == 1, "{words:?}: {told}");
            assert!(!Path::new(out).exists(), "{words:?}");
        }
    }
    let long = dir.path().join("long.toml");
    fs::write(&long, vec![b'#'; (1 << 20) + 1]).unwrap();
    let told = printed(&["apply", long.to_str().unwrap(), "--sysroot", sysroot]);
    assert!(told.contains("longer than 1048576 bytes"), "{told}");
}

#[test]
fn a_file_of_output_is_private_and_links_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("table.csv");
    fs::write(&table, "idler,start_ns,idle_ns\na,0,5\na,10,5\n").unwrap();
    let import = |out: &Path| {
        dwell(&[
            "import",
            "--as",
            "csv",
            table.to_str().unwrap(),
            "--layer",
            "guest",
            "-o",
            out.to_str().unwrap(),
        ])
    };
    let out = dir.path().join("out.parquet");
    assert!(import(&out).status.success());
    assert_eq!(fs::metadata(&out).unwrap().mode() & 0o777, 0o600);
    let (aim, link) = (dir.path().join("aim"), dir.path().join("link"));
    fs::write(&aim, "precious").unwrap();
    symlink(&aim, &link).unwrap();
    let refused = import(&link);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && told.contains("a symbolic link"), "{told}");
    assert_eq!(fs::read_to_string(&aim).unwrap(), "precious");
}

/// What a process may do, as the kernel tells it.
fn capabilities(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

#[test]
fn a_recorder_gives_up_what_it_no_longer_needs() {
    const TEST: &str = "a_recorder_gives_up_what_it_no_longer_needs";
    const SYS_ADMIN: u64 = 1 << 21;
    const SYS_MODULE: u64 = 1 << 16;
    if capabilities(std::process::id()).is_none_or(|bits| bits & SYS_ADMIN == 0) {
        return dwell_testing::skip!("root", TEST, "not root");
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.parquet");
    let record = ["record", "guest", "--duration", "3s", "-o", out.to_str().unwrap()];
    let top = ["top", "guest", "--once", "--interval", "3s", "--format", "json"];
    let _idles = Sleeper::start();
    for words in [&record[..], &top] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Process(command.spawn().unwrap());
        let mut least = u64::MAX;
        while child.try_wait().unwrap().is_none() {
            // While a process starts it has none.
            if let Some(bits) = capabilities(child.id()).filter(|bits| *bits != 0) {
                least &= bits;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let output = child.wait_with_output().unwrap();
        if !dwell_testing::needs::recorded(&output, TEST) {
            continue;
        }
        assert_eq!(least & (SYS_ADMIN | SYS_MODULE), 0, "{words:?}: {least:#x}");
        if words[0] == "top" {
            schema::check_required("top", &serde_json::from_slice(&output.stdout).unwrap());
        }
    }
    if out.exists() {
        assert_eq!(fs::metadata(&out).unwrap().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_signal_restores_the_terminal_of_top() {
    const TEST: &str = "a_signal_restores_the_terminal_of_top";
    if !Path::new("/usr/bin/script").exists() {
        return dwell_testing::skip!("programs", TEST, "no /usr/bin/script");
    }
    for signal in ["TERM", "HUP", "INT"] {
        let program = env!("CARGO_BIN_EXE_dwell");
        let shell = format!("(sleep 3; kill -{signal} $$) & exec '{program}' top guest");
        let output = Command::new("/usr/bin/script").args(["-qec", &shell, "/dev/null"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        if !text.contains("\u{1b}[?1049h") {
            return dwell_testing::skip!("tracing", TEST, "{text}");
        }
        let after = text.rsplit("\u{1b}[?1049h").next().unwrap();
        assert!(after.contains("\u{1b}[?1049l") && after.contains("\u{1b}[?25h"), "{signal}: {text:?}");
        assert_eq!(output.status.code(), Some(0), "{signal}: {text:?}");
    }
}
