//! A QEMU on KVM whose guest halts: `dwell bound` reads the statistics files that it keeps open.

use dwell_testing::{process::Process, qemu::Release, say};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long firmware may take: on nested KVM each privileged instruction may be emulated.
const BOOT: Duration = Duration::from_secs(60);

/// A boot sector that sets the timer to 1,024 interrupts a second and halts between them.
pub(crate) fn boot_sector() -> Vec<u8> {
    let mut sector = vec![
        0xfa, // cli
        0xb0, 0x36, 0xe6, 0x43, // mov al, 36h; out 43h, al: channel 0, both bytes, square wave
        0xb0, 0x8d, 0xe6, 0x40, // low byte of 1,193,182 Hz / 1,024
        0xb0, 0x04, 0xe6, 0x40, // high byte
        0xfb, // sti
        0xf4, // hlt
        0xeb, 0xfd, // jmp to the hlt
    ];
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector
}

fn dwell(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    command.args(words);
    command
}

fn json(words: &[&str]) -> Result<Value, String> {
    let output = dwell(words).args(["--format", "json"]).output().expect("the program can be started");
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).expect("stdout is JSON")),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// The halts of this process's VM in so long.
fn halts(pid: &str, duration: &str) -> Result<u64, String> {
    let bound = json(&["bound", "--pid", pid, "--duration", duration])?;
    let total = &bound[0]["total"];
    assert_eq!(total["halts_exact"], true, "{bound}");
    assert_eq!(bound[0]["vms"][0]["source"], "statistics_files", "{bound}");
    Ok(total["halts"].as_u64().expect("a count"))
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn bound_counts_the_halts_that_are_recorded() {
    const TEST: &str = "bound_counts_the_halts_that_are_recorded";
    let _alone = crate::alone();
    let dir = tempfile::tempdir().expect("a folder can be made");
    let disk = dir.path().join("disk");
    std::fs::write(&disk, boot_sector()).expect("a disk can be written");
    // Statistics files since 8.1.
    let mut command = match Release::Unpacked("11.1").command() {
        Ok(command) => command,
        Err(cause) => return dwell_testing::skip!("qemu", TEST, "{cause}"),
    };
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        return dwell_testing::skip!("kvm", TEST, "no /dev/kvm ({error})");
    }
    command
        .args(["-machine", "pc,accel=kvm", "-m", "64", "-nodefaults", "-no-user-config", "-display", "none"])
        .arg("-drive")
        .arg(format!("file={},format=raw,if=ide", disk.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let qemu = Process(command.spawn().expect("QEMU can be started"));
    let pid = qemu.id().to_string();
    let begun = Instant::now();
    loop {
        match halts(&pid, "200ms") {
            Ok(halts) if halts > 0 => break,
            result => assert!(begun.elapsed() < BOOT, "the guest does not halt: {result:?}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let recording = dir.path().join("recording.parquet");
    let recorder = dwell(&["record", "host", "--pid", &pid, "--duration", "4s", "-o"])
        .arg(&recording)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be started");
    std::thread::sleep(Duration::from_secs(1));
    let counted = halts(&pid, "1s").expect("the VM is still there");
    let recorded = recorder.wait_with_output().expect("a child");
    if !recorded.status.success() {
        return dwell_testing::skip!("tracing", TEST, "{}", String::from_utf8_lossy(&recorded.stderr).trim());
    }
    let info = json(&["info", &recording.display().to_string()]).expect("a recording");
    let episodes = info["all"]["episodes"].as_u64().expect("a count");
    say!("{TEST}: {counted} halts counted in 1 s, {episodes} recorded in 4 s");
    assert!((10..=episodes).contains(&counted), "{counted} of {episodes}");
}
