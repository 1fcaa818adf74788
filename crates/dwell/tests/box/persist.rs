//! What `apply --persist` keeps, on a machine that systemd starts and reboots.

use crate::counted::Counted;
use crate::machine::{Job, Kernel, Ran, Root, folder};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_stats::SplitMix64;
use dwell_testing::{fixture, say};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const KERNEL: Kernel = Kernel::V6_12;
const PLANS: [&str; 2] = ["guest.toml", "host.toml"];
/// Which modules systemd loads, and what it is not to start: what the job needs is little.
const APPEND: &str = "cpuidle_haltpoll.force=1 modules-load=kvm_amd mitigations=off systemd.unit=box.service systemd.show_status=0 \
     systemd.mask=systemd-journald.service systemd.mask=systemd-journald.socket systemd.mask=systemd-journald-dev-log.socket \
     systemd.mask=systemd-journal-flush.service systemd.mask=systemd-update-utmp.service systemd.mask=systemd-random-seed.service \
     systemd.mask=dev-hugepages.mount systemd.mask=dev-mqueue.mount systemd.mask=systemd-binfmt.service \
     systemd.mask=systemd-udev-trigger.service systemd.mask=systemd-udevd.service";

/// `etc` prints every file and link in /etc.
const ETC: &str = "
    etc() { find /etc -xdev -type f -exec sha256sum {} + | sort -k 2; find /etc -xdev -type l -printf '%p -> %l\\n' | sort; }
";

/// What is done at each start of the machine, by its number. /out is on the disk.
const SCRIPT: &str = "
    boot=$(cat /out/boot 2>/dev/null || echo 0)
    boot=$((boot + 1))
    echo $boot >/out/boot
    counted start.$boot
    etc >/out/etc.$boot
    case $boot in
    1)
        keep guest.json dwell apply --persist /run/box/files/guest.toml --format json
        keep host.json dwell apply --persist /run/box/files/host.toml --format json
        counted applied
        cat /etc/tmpfiles.d/dwell-* /etc/modprobe.d/dwell-* >/out/kept
        ;;
    2)
        keep status.json dwell status --exit-code --format json
        keep revert.json dwell revert --all --format json
        counted reverted
        etc >/out/etc.reverted
        ;;
    *)
        keep later.json dwell status --format json
        at 'job: ended'
        tar cf /dev/vda -C /out . && sync
        systemctl poweroff
        exit
        ;;
    esac
    sync
    systemctl reboot
    exit
";

/// The image of Debian with systemd, and plans for both layers as files of a job.
struct Debian {
    image: PathBuf,
    plans: tempfile::TempDir,
}

impl Debian {
    fn new() -> Result<Debian, String> {
        let image = folder().join("root.ext4");
        if !image.exists() {
            return Err(format!("no {}; .ci/box makes it where there is mmdebstrap", image.display()));
        }
        let plans = tempfile::tempdir().unwrap();
        let version = Version::parse(&KERNEL.text("release")?).ok_or("the kernel's version is not known")?;
        let defaults = |layer| Setting::defaults(layer, version);
        let (guest, host) = (defaults(Layer::Guest), defaults(Layer::Host));
        let guest = fixture::plan(guest, &[("guest_halt_poll_ns", 50_000), ("guest_halt_poll_grow", 3)]);
        let host = fixture::plan(host, &[("halt_poll_ns", 50_000)]);
        for (name, plan) in PLANS.iter().zip([guest, host]) {
            fs::write(plans.path().join(name), plan.to_toml().unwrap()).unwrap();
        }
        Ok(Debian { image, plans })
    }

    fn job<'a>(&self, root: Root, script: &'a str) -> Job<'a> {
        let files = PLANS.iter().map(|name| (self.plans.path().join(name), format!("files/{name}")));
        Job {
            kernel: KERNEL,
            // The emulator's buffer of translated code [MiB]. A larger one still has the code of the last start after a reboot, and
            // each write to where that was is slow, so that a start takes three times as long.
            options: &["-accel", "tcg,thread=single,tb-size=80"],
            cpus: 1,
            append: APPEND,
            modules: &["ext4"],
            files: files.collect(),
            root,
            script,
            limit: Duration::from_secs(400),
            ..Job::default()
        }
    }
}

/// Changes of both layers are kept over a real reboot, and after they are reverted another one starts as the first did.
pub(crate) fn a_change_is_kept_over_a_reboot(test: &str) -> Result<(), String> {
    let debian = Debian::new()?;
    let script = [ETC, SCRIPT].concat();
    let job = debian.job(Root::Copy(debian.image.clone()), &script);
    let begun = Instant::now();
    let ran = job.run(test)?;
    for command in ["guest.json", "host.json", "status.json", "revert.json", "later.json"] {
        ran.succeeded(command);
    }
    let parameters = |when: &str| Counted::of(&ran, when).parameters;
    assert_ne!(parameters("applied"), parameters("start.1"));
    assert_eq!(parameters("start.2"), parameters("applied"), "{}", ran.text("kept"));
    assert_eq!(parameters("reverted"), parameters("start.1"));
    assert_eq!(parameters("start.3"), parameters("start.1"));
    assert_ne!(ran.text("etc.2"), ran.text("etc.1"));
    assert_eq!(ran.text("etc.reverted"), ran.text("etc.1"));
    assert_eq!(ran.text("etc.3"), ran.text("etc.1"));
    is_right_after_a_reboot(&ran);
    assert_eq!(ran.json("later.json").as_array().map(Vec::len), Some(0));
    say!(
        "{test}: 2 changes, 3 starts: {} in force after a reboot; /etc and values as at first; {:.0} s",
        ran.text("kept").lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(", "),
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// `status` after the reboot: both changes are applied, kept, from before a reboot, and every value is in force.
fn is_right_after_a_reboot(ran: &Ran) {
    let status = ran.json("status.json");
    let changes = status.as_array().expect("status is a list");
    assert_eq!(changes.len(), 2, "{status}");
    for change in changes {
        assert_eq!(
            (&change["state"], &change["kept"], &change["rebooted"]),
            (&"applied".into(), &true.into(), &true.into()),
            "{status}"
        );
        let places = change["places"].as_array().expect("a change has places");
        assert!(places.len() >= 2 && places.iter().all(|place| place["standing"] == "in_force"), "{status}");
    }
}

/// What is done at each start of a machine that is killed: changes are reverted, what is there is compared
/// with the first start, and then changes are applied and reverted for ever.
const TURNS: &str = "
    counted now
    if [ ! -e /out/first.etc ]; then
        cp /out/now.parameters /out/first.parameters
        etc >/out/first.new
        sync
        mv /out/first.new /out/first.etc
        sync
    fi
    at start: $(cat /etc/tmpfiles.d/dwell-* /etc/modprobe.d/dwell-* 2>/dev/null | grep -c '^[wo]') lines kept
    dwell revert --all >/run/revert 2>&1
    code=$?
    counted now
    etc >/run/etc
    if [ $code = 0 ] && cmp /run/etc /out/first.etc && cmp /out/now.parameters /out/first.parameters; then
        at RESULT: in order
    else
        at RESULT: exit $code
        diff /out/first.etc /run/etc
        cat /run/revert
    fi
    turn=0
    while :; do
        at turn $turn
        dwell apply --persist /run/box/files/guest.toml && dwell apply --persist /run/box/files/host.toml
        dwell revert --all
        turn=$((turn + 1))
    done
";

/// Kills the machine again and again with SIGKILL while it applies and reverts: each start is in order. Takes minutes.
pub(crate) fn a_machine_that_is_killed_starts_in_order(test: &str) -> Result<(), String> {
    let debian = Debian::new()?;
    let disk = debian.plans.path().join("disk");
    let copied = Command::new("cp").arg("--sparse=always").args([&debian.image, &disk]).status();
    assert!(copied.expect("cp can be started").success());
    let script = [ETC, TURNS].concat();
    let (mut random, mut kept) = (SplitMix64::new(16), 0);
    for cycle in 0..6 {
        let patience = Duration::from_millis(random.below(6_000));
        let said = debian.job(Root::Disk(disk.clone()), &script).cut(test, "turn 0", patience)?;
        let start = said.lines().find(|line| line.contains(" start: ")).unwrap_or_default();
        assert!(said.contains("RESULT: in order"), "start {cycle}: {said}");
        kept += u32::from(!start.contains(" 0 lines kept"));
        say!(
            "{test}: {start}, in order; killed after {:.1} s, {} turns",
            patience.as_secs_f64(),
            said.matches(" turn ").count()
        );
    }
    assert!(kept > 0, "no machine was killed while a change was kept");
    Ok(())
}
