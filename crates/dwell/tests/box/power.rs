//! Power cuts: every write of a run that applies and reverts changes is logged, states that a cut can leave
//! are made of the log, and each is reverted.
//!
//! QEMU's `blklogwrites` logs what the machine writes to a disk, with its flushes. A disk with a volatile
//! cache keeps at least what was written before the last flush, and of the rest any part. So a state is:
//! everything up to a flush, and some of what came after it until a moment. The file system is repaired as a
//! boot does it, the values are set that a boot would set from what is kept in /etc, and `dwell revert --all`
//! has to restore /etc and the values of the beginning.

use crate::machine::{Job, output};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_stats::SplitMix64;
use dwell_testing::fixture::{self, Fixture};
use dwell_testing::{say, shim};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The disk \[bytes\].
const DISK: u64 = 32 << 20;
/// What QEMU needs to log the writes to a disk, behind every other disk of the machine.
fn logged(disk: &Path, log: &Path) -> Vec<String> {
    let file = |path: &Path, node: &str| format!("driver=file,filename={},node-name={node}", path.display());
    let both = "driver=blklogwrites,file=disk,log=log,log-sector-size=512,log-super-update-interval=64,node-name=logged";
    let device = "virtio-blk-pci,drive=logged,write-cache=on,addr=0x10";
    let words = [
        "-blockdev",
        &file(disk, "disk"),
        "-blockdev",
        &file(log, "log"),
        "-blockdev",
        both,
        "-device",
        device,
    ];
    words.map(str::to_owned).to_vec()
}

/// One entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// Where on the disk \[bytes\].
    to: u64,
    /// Where in the log its data is, and how much \[bytes\].
    from: u64,
    length: u64,
    /// Everything before it is on the disk.
    flushes: bool,
    /// It is on the disk itself, whatever the cache does.
    through: bool,
}

/// A log as dm-log-writes lays it out: a head, and for each entry a sector with its description, then its data.
#[derive(Debug)]
struct Log {
    file: File,
    entries: Vec<Entry>,
}

impl Log {
    const MAGIC: u64 = 0x006a_7366_7773_6872;
    const FLUSH: u64 = 1;
    const FUA: u64 = 2;
    const DISCARD: u64 = 4;

    fn read(path: &Path) -> io::Result<Log> {
        let file = File::open(path)?;
        let words = |at: u64| -> io::Result<[u64; 4]> {
            let mut bytes = [0; 32];
            file.read_exact_at(&mut bytes, at)?;
            Ok(std::array::from_fn(|word| {
                u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * word + byte]))
            }))
        };
        let [magic, _, _, sector] = words(0)?;
        let sector = sector & 0xffff_ffff;
        if magic != Log::MAGIC || sector == 0 {
            return Err(io::Error::other("no log of writes"));
        }
        let (mut entries, mut at) = (vec![], sector);
        // The head has the number of entries as it was some entries ago: what looks like an entry is one.
        while let Ok([first, count, flags, _]) = words(at) {
            let end = first.checked_add(count).and_then(|end| end.checked_mul(sector));
            if (count, flags) == (0, 0) || flags > 15 || end.is_none_or(|end| end > DISK) {
                break;
            }
            let length = if flags & Log::DISCARD == 0 { count * sector } else { 0 };
            let (flushes, through) = (flags & Log::FLUSH != 0, flags & Log::FUA != 0);
            entries.push(Entry { to: first * sector, from: at + sector, length, flushes, through });
            at += sector + length;
        }
        Ok(Log { file, entries })
    }

    /// Writes an entry to a copy of the disk.
    fn play(&self, entry: &Entry, disk: &mut [u8]) -> io::Result<()> {
        let [from, length] = [entry.to, entry.length].map(|n| usize::try_from(n).expect("a small disk"));
        self.file.read_exact_at(&mut disk[from..from + length], entry.from)
    }
}

/// What is on a new disk: some files that are not dwell's, and one that is already as dwell would make it.
const NEW: [(&str, &str); 3] = [
    ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
    ("etc/modprobe.d/other.conf", "options kvm ignore_msrs=1\n"),
    ("etc/tmpfiles.d/other.conf", "d /run/other 0755 root root -\n"),
];
const EMPTY: &str = "var/lib";

fn new_disk(folder: &Path) -> io::Result<PathBuf> {
    let root = folder.join("new");
    fs::create_dir_all(root.join(EMPTY))?;
    for (name, text) in NEW {
        fs::create_dir_all(root.join(name).parent().expect("a folder"))?;
        fs::write(root.join(name), text)?;
    }
    let disk = folder.join("disk");
    File::create(&disk)?.set_len(DISK)?;
    output(
        Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-J", "size=4", "-d"]).args([&root, &disk]),
    );
    if fs::metadata(&root)?.uid() != 0 {
        // The files of an ordinary user are root's on the disk.
        let names = NEW.iter().map(|(name, _)| *name).chain([EMPTY]);
        let all: BTreeSet<&Path> = names.flat_map(|name| Path::new(name).ancestors()).collect();
        let owners = |file: &&Path| format!("sif /{0} uid 0\nsif /{0} gid 0\n", file.display());
        fs::write(folder.join("owners"), all.iter().map(owners).collect::<String>())?;
        output(Command::new("debugfs").args(["-w", "-f"]).args([&folder.join("owners"), &disk]));
    }
    Ok(disk)
}

/// A machine after a power cut, before anything has been reverted.
struct Found {
    machine: Fixture,
    /// Lines that a boot has followed, of files that dwell keeps in /etc.
    followed: usize,
    /// Whether the file system needed more than its journal replayed.
    damaged: bool,
}

impl Found {
    /// Repairs the file system of `disk`, and starts a machine from it.
    fn on(disk: &Path) -> Found {
        let check = |options: &str| {
            let done = Command::new("e2fsck").arg(options).arg(disk).output();
            done.expect("e2fsck can be started").status
        };
        check("-p");
        let damaged = !check("-fn").success();
        if damaged {
            check("-fy");
        }
        let machine = Fixture::host(KERNEL);
        machine.write_defaults(KERNEL, Layer::Guest);
        machine.write("/proc/sys/kernel/random/boot_id", "after the power cut\n");
        let root = machine.path("/");
        fs::create_dir_all(root.join("var/lib")).unwrap();
        for (from, to) in [("/etc", root.clone()), ("/var/lib/dwell", root.join("var/lib"))] {
            let request = format!("rdump {from} {}", to.display());
            output(Command::new("debugfs").args(["-R", &request]).arg(disk));
        }
        let followed = boot(&machine);
        Found { machine, followed, damaged }
    }

    /// Everything but dwell's own journal.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        let root = self.machine.path("/");
        let files = self.machine.snapshot().into_iter();
        files.map(|(path, text)| (path.strip_prefix(&root).unwrap().to_owned(), text)).collect()
    }

    fn revert(&self) -> Output {
        let mut dwell = Command::new(env!("CARGO_BIN_EXE_dwell"));
        dwell.args(["revert", "--all", "--sysroot"]).arg(self.machine.path("/"));
        dwell.output().expect("dwell can be started")
    }
}

/// Sets what systemd-tmpfiles and modprobe would set of the files of dwell's in /etc; returns the number of values.
fn boot(machine: &Fixture) -> usize {
    let mut values = vec![];
    for folder in ["/etc/tmpfiles.d", "/etc/modprobe.d"] {
        for file in fs::read_dir(machine.path(folder)).into_iter().flatten().flatten() {
            if !file.file_name().to_string_lossy().starts_with("dwell-") {
                continue;
            }
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            for line in text.lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                match words.as_slice() {
                    ["w", path, .., value] => values.push(((*path).to_owned(), (*value).to_owned())),
                    ["options", module, options @ ..] => {
                        values.extend(options.iter().filter_map(|option| option.split_once('=')).map(
                            |(name, value)| {
                                (format!("/sys/module/{module}/parameters/{name}"), value.to_owned())
                            },
                        ));
                    }
                    _ => {}
                }
            }
        }
    }
    values.iter().for_each(|(path, value)| machine.write(path, &format!("{value}\n")));
    values.len()
}

/// What a state is changed by before it is reverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Nothing,
    /// dwell's own journal of changes.
    Journal,
}

/// How many states were in order.
#[derive(Debug, Default)]
struct Tally {
    states: u64,
    /// /etc and the values were those of the beginning, and dwell said that everything was reverted.
    restored: u64,
    /// A boot set values that dwell had kept.
    followed: u64,
    /// Writes after the last flush were missing.
    partial: u64,
    /// The file system needed more than its journal replayed.
    damaged: u64,
    /// What was wrong in the first state that was not restored.
    first: Option<String>,
}

/// Makes `count` states of a log, loses something of each, and reverts them.
fn tally(new: &Path, log: &Log, count: usize, loss: Loss) -> Tally {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let probe = folder.path().join("probe");
    fs::copy(new, &probe).unwrap();
    let original = Found::on(&probe).files();
    let mut disk = fs::read(new).unwrap();
    let (mut played, mut tally, mut random) = (0, Tally::default(), SplitMix64::new(1));
    let mut moment = || usize::try_from(random.below(log.entries.len() as u64)).expect("a place in the log");
    let mut moments: Vec<usize> = (0..count).map(|_| moment()).collect();
    moments.sort_unstable();
    for moment in moments {
        let flushed =
            log.entries[..=moment].iter().rposition(|entry| entry.flushes).map_or(0, |last| last + 1);
        for entry in &log.entries[played..flushed.max(played)] {
            log.play(entry, &mut disk).unwrap();
        }
        played = played.max(flushed);
        let mut state = disk.clone();
        // Nothing, half, or all of what was written since.
        let share = random.below(3);
        for entry in &log.entries[played..=moment] {
            if entry.through || random.below(2) < share {
                log.play(entry, &mut state).unwrap();
            } else {
                tally.partial += 1;
            }
        }
        fs::write(&probe, &state).unwrap();
        let found = Found::on(&probe);
        if loss == Loss::Journal {
            let _ = fs::remove_dir_all(found.machine.path("/var/lib/dwell"));
        }
        let output = found.revert();
        let files = found.files();
        tally.states += 1;
        tally.followed += u64::from(found.followed > 0);
        tally.damaged += u64::from(found.damaged);
        if output.status.success() && files == original {
            tally.restored += 1;
        } else if tally.first.is_none() {
            let differ = |(path, text): &(&PathBuf, &String)| original.get(*path) != Some(text);
            tally.first = Some(format!(
                "write {moment} of {}, {share} of those after {flushed}: {:?}\n{}{}",
                log.entries.len(),
                files.iter().filter(differ).collect::<Vec<_>>(),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            ));
        }
    }
    tally
}

/// The kernel whose defaults are in force in the machines that are made of a state.
const KERNEL: &str = "6.12.0";

/// Writes the log of a machine that applies and reverts `turns` times; with `preload` dwell is run with this library.
fn run(test: &str, folder: &Path, turns: u32, preload: Option<&Path>) -> Result<(PathBuf, Log), String> {
    let new = new_disk(folder).map_err(|error| format!("no disk can be made ({error})"))?;
    let (disk, log) = (folder.join("logged"), folder.join("log"));
    fs::copy(&new, &disk).unwrap();
    File::create(&log).and_then(|file| file.set_len(1 << 30)).unwrap();
    let defaults = |layer| Setting::defaults(layer, Version::parse(KERNEL).unwrap());
    let plans = [
        ("guest.toml", fixture::plan(defaults(Layer::Guest), &[("guest_halt_poll_ns", 50_000)])),
        ("host.toml", fixture::plan(defaults(Layer::Host), &[("halt_poll_ns", 50_000)])),
    ];
    let mut files = vec![];
    for (name, plan) in plans {
        fs::write(folder.join(name), plan.to_toml().unwrap()).unwrap();
        files.push((folder.join(name), name.to_owned()));
    }
    // dwell looks whether there is systemd, no more.
    files.push((folder.join("guest.toml"), "usr/bin/systemd-tmpfiles".to_owned()));
    files.extend(preload.map(|library| (library.to_owned(), "preload.so".to_owned())));
    let preload = preload.map_or("", |_| "LD_PRELOAD=/preload.so");
    // Between the commands the file system commits what it has by itself.
    let script = format!(
        "
        mount -t ext4 -o commit=1 /dev/vdb /mnt
        mount -o bind /mnt/etc /etc
        mount -o bind /mnt/var/lib /var/lib
        turn=0
        while [ $turn -lt {turns} ]; do
            {preload} dwell apply --persist /guest.toml || break
            sleep 1.2
            {preload} dwell apply --persist /host.toml || break
            sleep 1.2
            {preload} dwell revert --all || break
            sleep 0.2
            turn=$((turn + 1))
        done >/out/dwell 2>&1
        echo $turn >/out/turns
        umount /etc /var/lib /mnt
    "
    );
    // Not in virtual time: there the guest's clock runs on while the host writes, on a busy host for minutes.
    let real_time = ["-accel", "tcg,thread=single"].map(str::to_owned);
    let options: Vec<String> = real_time.into_iter().chain(logged(&disk, &log)).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let job = Job {
        options: &options,
        cpus: 1,
        append: "cpuidle_haltpoll.force=1",
        modules: &["ext4", "kvm"],
        files,
        script: &script,
        limit: Duration::from_secs(120 + 30 * u64::from(turns)),
        ..Job::default()
    };
    let ran = job.run(test)?;
    assert_eq!(ran.text("turns").trim(), turns.to_string(), "{}", ran.text("dwell"));
    let log = Log::read(&log).expect("the log can be read");
    Ok((new, log))
}

/// States of an ordinary run are all restored; where the journal of changes is lost, or was not synced to the
/// disk, some are not: the check finds what it is for.
pub(crate) fn a_power_cut_is_survived_at_every_write(test: &str) -> Result<(), String> {
    let long = crate::is_long();
    let (turns, states) = if long { (12, 400) } else { (4, 60) };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [synced, unsynced] = folders.each_ref().map(tempfile::TempDir::path);
    let library = shim::compiled(unsynced, include_str!("unsynced.c"))?;
    let (ordinary, mutant) = std::thread::scope(|scope| {
        let mutant = scope.spawn(|| run(test, unsynced, turns, Some(&library)));
        (run(test, synced, turns, None), mutant.join())
    });
    let (new, log) = ordinary?;
    let mutant = mutant.map_err(|_| "the run without fsync failed").expect("it has said why")?;
    let flushes = log.entries.iter().filter(|entry| entry.flushes).count();
    say!("{test}: {turns} turns, {} writes, {flushes} flushes", log.entries.len());
    let show = |name: &str, tally: &Tally, begun: Instant| {
        say!(
            "{test}: {name}: {} of {} states restored; in {} a boot set kept values, {} writes were missing, {} file systems damaged; {:.0} s",
            tally.restored,
            tally.states,
            tally.followed,
            tally.partial,
            tally.damaged,
            begun.elapsed().as_secs_f64()
        );
    };
    let begun = Instant::now();
    let whole = tally(&new, &log, states, Loss::Nothing);
    show("ordinary", &whole, begun);
    assert_eq!((whole.restored, &whole.first), (whole.states, &None));
    assert!(whole.followed > whole.states / 4 && whole.partial > 0, "{whole:?}");
    let begun = Instant::now();
    let lost = tally(&new, &log, states / 4, Loss::Journal);
    show("journal of changes lost", &lost, begun);
    assert!(lost.followed > 0 && lost.states - lost.restored >= lost.followed, "{lost:?}");

    let (new, log) = mutant;
    let begun = Instant::now();
    let unsynced = tally(&new, &log, states / 2, Loss::Nothing);
    show("journal of changes not synced", &unsynced, begun);
    assert!(unsynced.restored < unsynced.states, "{unsynced:?}");
    say!("{test}: such as: {}", unsynced.first.unwrap_or_default());
    Ok(())
}
