//! The bill of a QEMU on KVM whose guest halts between the interrupts of its PIT.

use crate::halts::boot_sector;
use dwell_testing::{process::Process, qemu::Release, say, schema};
use serde_json::Value;
use std::fs::{OpenOptions, read_to_string};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long firmware may take: on nested KVM each privileged instruction may be emulated.
const BOOT: Duration = Duration::from_secs(60);

fn why(pid: u32) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    let output = command
        .args(["why", &pid.to_string(), "--duration", "1s", "--format", "json"])
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    schema::check_required("why", &report);
    report
}

/// CPU time of a process by the files of its threads \[ns\].
fn used(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("QEMU runs");
    let files = threads.filter_map(|thread| read_to_string(thread.ok()?.path().join("schedstat")).ok());
    files.filter_map(|text| text.split(' ').next()?.parse::<u64>().ok()).sum()
}

fn lines<'a>(report: &'a Value, is: impl Fn(&Value) -> bool + 'a) -> impl Iterator<Item = &'a Value> {
    report["bills"][0]["lines"].as_array().expect("a list").iter().filter(move |line| is(line))
}

fn sum<'a>(lines: impl Iterator<Item = &'a Value>) -> u64 {
    lines.map(|line| line["cpu_ns"].as_u64().expect("a number")).sum()
}

#[test]
fn a_bill_adds_up_and_names_the_timer() {
    const TEST: &str = "a_bill_adds_up_and_names_the_timer";
    let _alone = crate::alone();
    if let Err(error) = OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return dwell_testing::skip!("kvm", TEST, "no /dev/kvm ({error})");
    }
    let mut command = match Release::Installed.command() {
        Ok(command) => command,
        Err(cause) => return dwell_testing::skip!("qemu", TEST, "{cause}"),
    };
    let dir = tempfile::tempdir().expect("a folder can be made");
    let disk = dir.path().join("disk");
    std::fs::write(&disk, boot_sector()).expect("a disk can be written");
    command
        .args(["-machine", "pc,accel=kvm", "-m", "64", "-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-name", "guest=dwell-why,debug-threads=on", "-object", "iothread,id=io0", "-drive"])
        .arg(format!("file={},format=raw,if=ide", disk.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let qemu = Process(command.spawn().expect("QEMU can be started"));
    let begun = Instant::now();
    let woken = |report: &Value| {
        lines(report, |line| line["cause"] == "run" && line["wake"]["line"]["by"] == "kernel").count() > 0
    };
    let (report, outside) = loop {
        let before = used(qemu.id());
        let report = why(qemu.id());
        if let Some(cause) = report["untraced"].as_str() {
            return dwell_testing::skip!("tracing", TEST, "{cause}");
        }
        if woken(&report) {
            break (report, used(qemu.id()) - before);
        }
        assert!(begun.elapsed() < BOOT, "no wakeup by the PIT: {report}");
    };
    let counted = report["bills"][0]["cpu_ns"].as_u64().expect("a number");
    assert_eq!(sum(lines(&report, |_| true)), counted, "{report}");
    // The threads of the kernel are not in the process, which was read before and after.
    let own = sum(lines(&report, |line| line["class"] != "kernel"));
    assert!(own <= outside + outside / 20 + 10_000_000, "{own} of {outside} ns: {report}");
    let of_vcpus = sum(lines(&report, |line| line["class"] == "vcpu"));
    assert!(of_vcpus > 0, "{report}");
    if report["lost_events"] == 0 {
        let rest = sum(lines(&report, |line| line["cause"] == "rest"));
        assert!(rest <= counted / 20 + 5_000_000, "{rest} of {counted} ns have no cause: {report}");
    }
    say!(
        "{TEST}: {:.1} ms of CPU in a second, {:.1} ms of them of vCPUs",
        counted as f64 / 1e6,
        of_vcpus as f64 / 1e6
    );
}
