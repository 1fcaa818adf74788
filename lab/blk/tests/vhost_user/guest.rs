//! The program, with a Linux guest in QEMU as its driver: it writes, flushes, reads back and compares.

use crate::rig::file;
use dwell_testing::cpio::Archive;
use dwell_testing::process::Process;
use dwell_testing::qemu::{KERNEL, Release, folder};
use dwell_testing::say;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the guest may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);
/// What the guest writes: not the whole disk.
const WRITTEN: usize = 1 << 20;

const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
  [ -e /mod/$module.ko ] && /bin/busybox insmod /mod/$module.ko
done
until [ -b /dev/vda ]; do /bin/busybox sleep 0.1; done
say() { echo "guest: $*"; }
say serial $(/bin/busybox cat /sys/block/vda/serial)
say queues $(/bin/busybox ls /sys/block/vda/mq | /bin/busybox wc -l)
/bin/busybox dd if=/dev/urandom of=/tmp/data bs=4k count=256 2>/dev/null
say data $(/bin/busybox sha256sum /tmp/data)
/bin/busybox dd if=/tmp/data of=/dev/vda bs=4k oflag=direct conv=fsync,notrunc 2>/dev/null && say written
/bin/busybox dd if=/dev/vda of=/tmp/back bs=4k count=256 iflag=direct 2>/dev/null
say back $(/bin/busybox sha256sum /tmp/back)
/bin/busybox dd if=/dev/vda of=/tmp/zero bs=4k count=1 skip=512 iflag=direct 2>/dev/null
say zeroes $(/bin/busybox tr -d '\000' < /tmp/zero | /bin/busybox wc -c)
/bin/busybox blkdiscard -o 0 -l 65536 /dev/vda 2>/dev/null && say discarded
say end
/bin/busybox poweroff -f
"#;

fn qemu(release: Release, dir: &Path) -> Result<Command, String> {
    let mut command = release.command()?;
    let (kernel, initramfs) = (folder().join("vmlinuz"), folder().join("initramfs.gz"));
    let Ok(mut initrd) = std::fs::read(initramfs) else {
        return Err("no guest; .ci/qemu makes one".to_owned());
    };
    initrd.resize(initrd.len().next_multiple_of(4), 0);
    // What comes later replaces what came before.
    let mut archive = Archive::new();
    archive.file("init", INIT.into());
    archive.write(&mut initrd).unwrap();
    std::fs::write(dir.join("initrd"), initrd).unwrap();
    let place = |name: &str| dir.join(name).display().to_string();
    command
        .args(["-machine", "pc,accel=tcg,memory-backend=m0", "-cpu", "max", "-smp", "2", "-m", "256"])
        .args(["-object", "memory-backend-memfd,id=m0,size=256M,share=on"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-append", KERNEL])
        .args(["-chardev", &format!("socket,id=c0,path={}", place("socket"))])
        .args(["-device", "vhost-user-blk-pci,chardev=c0,num-queues=2,queue-size=128"])
        .args(["-serial", &format!("file:{}", place("console"))])
        .args(["-initrd", &place("initrd")])
        .arg("-kernel")
        .arg(kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok(command)
}

fn guest_writes_and_reads_back(release: Release, policy: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = match qemu(release, dir.path()) {
        Ok(command) => command,
        Err(why) => {
            return dwell_testing::skip!("qemu", format!("a guest of {release:?} with dwell-blk"), "{why}");
        }
    };
    let disk = file(4 << 20);
    let socket = dir.path().join("socket");
    let daemon = Command::new(env!("CARGO_BIN_EXE_dwell-blk"))
        .arg("--socket")
        .arg(&socket)
        .arg("--file")
        .arg(disk.path())
        .args(["--queues", "2", "--serial", "of the test", "--once", "--format", "json"])
        .args(policy)
        .stdout(Stdio::piped())
        .spawn();
    let mut daemon = Process(daemon.unwrap());
    let begin = Instant::now();
    while !socket.exists() {
        assert!(
            begin.elapsed() < PATIENCE && daemon.0.try_wait().unwrap().is_none(),
            "the device does not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut qemu = Process(command.spawn().unwrap());
    let console = || {
        String::from_utf8_lossy(&std::fs::read(dir.path().join("console")).unwrap_or_default()).into_owned()
    };
    while qemu.0.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < PATIENCE, "the guest does not end: {}", console());
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut complaints = String::new();
    qemu.0.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    let console = console();
    let said = |what: &str| {
        let line = console.lines().find_map(|line| line.trim_end().strip_prefix(&format!("guest: {what}")));
        line.unwrap_or_else(|| panic!("{what} in {console}; QEMU: {complaints}")).trim().to_owned()
    };
    let sum = |what| said(what).split(' ').next().unwrap_or_default().to_owned();
    assert_eq!(
        (said("serial"), said("queues"), said("zeroes")),
        ("of the test".into(), "2".into(), "0".into())
    );
    said("written");
    said("end");
    assert_eq!(sum("data"), sum("back"), "what the guest read back");
    let mut written = vec![0; WRITTEN];
    disk.as_file().try_clone().unwrap().read_exact(&mut written).unwrap();
    let discarded = console.contains("guest: discarded");
    let from = if discarded { 1 << 16 } else { 0 };
    if discarded {
        assert!(written[..from].iter().all(|byte| *byte == 0), "what was discarded");
    } else {
        let host: String = Sha256::digest(&written).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sum("data"), host, "what is in the file");
    }
    assert!(written[from..].iter().any(|byte| *byte != 0));
    let mut json = String::new();
    daemon.0.stdout.take().unwrap().read_to_string(&mut json).unwrap();
    let counts: serde_json::Value = serde_json::from_str(&json).unwrap();
    let count = |name: &str| counts[name].as_u64().unwrap();
    say!("{release:?} {policy:?}: {:.1} s; {}", begin.elapsed().as_secs_f64(), json.trim());
    assert!(count("flushes") > 0 && count("errors") == 0 && count("malformed") == 0 && count("broken") == 0);
    assert!(count("written_bytes") >= WRITTEN as u64 && count("read_bytes") >= WRITTEN as u64);
    assert_eq!(count("discards") > 0, discarded);
}

#[test]
fn guest_of_the_installed_qemu_writes_and_reads_back() {
    guest_writes_and_reads_back(Release::Installed, &[]);
}

#[test]
fn guest_of_qemu_11_writes_and_reads_back() {
    guest_writes_and_reads_back(Release::Unpacked("11.1"), &["--policy", "never"]);
}
