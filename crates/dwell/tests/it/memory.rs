//! How much memory a long input takes: no more than a short one.

use dwell_testing::process::Process;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// What the peak may differ by between two inputs of any lengths \[KiB\]: a row group more or less.
const SLACK_KIB: u64 = 32 << 10;

/// Pipes `bytes` bytes of wakeups of four vCPUs into `dwell import -`, as `perf script` or `trace-cmd report` prints them.
/// Returns the peak of its memory \[KiB\].
fn peak_of_import(bytes: u64, name: &str) -> u64 {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let to = folder.path().join("out.parquet");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args(["import", "-", "--format", "json", "-o"]).arg(&to);
    let mut child =
        Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dwell starts"));
    let mut input = child.stdin.take().expect("stdin is a pipe");
    let (mut written, mut lines) = (0, 0u64);
    let mut text = String::new();
    while written < bytes {
        text.clear();
        for _ in 0..10_000 {
            let (vcpu, now_us, idle) = (lines % 4, 1_000_000 + lines * 3, 1_000 + lines * 7_919 % 9_000);
            let (s, us) = (now_us / 1_000_000, now_us % 1_000_000);
            let dash = if name.contains(':') { ' ' } else { '-' };
            let _ = writeln!(
                text,
                "CPU {vcpu}/KVM{dash}10{vcpu} [00{vcpu}] {s}.{us:06}: {name}: wait time {idle} ns, polling valid"
            );
            lines += 1;
        }
        input.write_all(text.as_bytes()).expect("dwell reads");
        written += text.len() as u64;
    }
    // It waits for more, with all that it keeps.
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the kernel has its peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!(summary["episodes"].as_u64(), Some(lines));
    println!("{name}: {written} bytes, {lines} lines: peak {peak} KiB");
    peak
}

#[test]
#[ignore = "2 GiB through a pipe take minutes"]
fn an_import_of_2_gib_takes_no_more_memory_than_one_of_64_mib() {
    for name in ["kvm:kvm_vcpu_wakeup", "kvm_vcpu_wakeup"] {
        let [short, long] = [64 << 20, 2 << 30].map(|bytes| peak_of_import(bytes, name));
        assert!(long < short + SLACK_KIB, "{name}: {long} KiB, {short} KiB");
    }
}
