//! `dwell control` for a long time, in virtual time: what runs beside the machine does not disturb it.

use crate::counted::Counted;
use crate::machine::{Job, Ran};
use dwell_testing::say;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// In a short soak the controller is looked at so often, in so much time \[s\]; in a long one once a minute.
const SHORT: (u64, u64) = (6, 5);

/// A host with a VM whose vCPU idles for the lengths of one recording for 3 s, then for those of the next.
/// They are 20 times as long as recorded, and so are the halt cost and the maximum: the emulator is that much
/// slower. All else runs on another CPU. Where the controller no longer trusts the rule it is told to resume,
/// which takes a new lease.
const SCRIPT: &str = "
    taskset -p 4 $$ >/dev/null
    insmod /mod/later/kvm_amd.ko nested=0
    echo 4000000 >/sys/module/kvm/parameters/halt_poll_ns
    ip link set lo up
    echo constant:50ms >/run/load
    inside vm 0 /run/load 20 &
    until grep -q . /sys/kernel/debug/kvm/*-*/halt_exits; do sleep 0.1; done 2>/dev/null
    sleep 0.2
    while true; do
        for recording in /recordings/*.parquet; do
            echo recording:$recording >/run/load
            sleep 3
        done
    done & loads=$!
    counted first
    echo 'metrics = \"127.0.0.1:9469\"' >/run/control.toml
    dwell control --config /run/control.toml --mode active --layer host --halt-cost 400us --log /run/decisions \\
        >/out/control.txt 2>&1 & control=$!
    sleep 1
    number=0
    while [ $number -lt $looks ]; do
        sleep $between
        dwell status --control --format json >/out/status.$number
        grep -q given_up /out/status.$number && dwell control resume >/dev/null
        wget -q -O /out/metrics http://127.0.0.1:9469/metrics
        dwell status --history --format json >/out/history.$number
        at look $number $(grep VmRSS /proc/$control/status | tr -dc 0-9) $(ls /proc/$control/fd | wc -l)
        number=$((number + 1))
    done
    keep stop.json dwell control stop
    wait $control
    dwell status --history --format json >/out/history.end
    counted last
    kill $loads
    killall inside
";

/// What the controller had and had done at one look.
#[derive(Clone, Copy, Debug)]
struct Look {
    at_s: f64,
    resident_kib: u64,
    descriptors: u64,
    decisions: u64,
    changes: u64,
    writes: u64,
    leases: usize,
}

/// The leases of a history that are open.
fn open_leases(history: &serde_json::Value) -> usize {
    let changes = history.as_array().expect("a list of changes");
    let is_open = |state: &serde_json::Value| state == "applied" || state == "unfinished";
    changes.iter().filter(|change| change["lease"] == true && is_open(&change["state"])).count()
}

fn looks(ran: &Ran) -> Vec<Look> {
    let of = |line: &str| {
        let (at, rest) = line.trim().strip_prefix('@')?.split_once(" look ")?;
        let words: Vec<u64> = rest.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [number, resident_kib, descriptors] = words[..] else { panic!("{line}") };
        let layer = ran.json(&format!("status.{number}"))["layers"][0].clone();
        let count = |name: &str| layer[name].as_u64().unwrap_or_else(|| panic!("{name}: {layer}"));
        Some(Look {
            at_s: at.parse().expect("an uptime"),
            resident_kib,
            descriptors,
            decisions: count("decisions"),
            changes: count("changes"),
            writes: count("writes"),
            leases: open_leases(&ran.json(&format!("history.{number}"))),
        })
    };
    ran.said.lines().filter_map(of).collect()
}

/// Memory does not grow, no descriptor is lost, writes are few, and the originals are in force at the end.
/// For less than a minute, or as many minutes as `DWELL_SOAK_MINUTES` has: a day of recordings at 20 times
/// its pace is 72.
pub(crate) fn control_is_soaked(test: &str) -> Result<(), String> {
    let minutes = std::env::var("DWELL_SOAK_MINUTES").ok().and_then(|number| number.parse::<u64>().ok());
    let (number, between_s) = minutes.map_or(SHORT, |minutes| (minutes, 60));
    let recordings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings");
    let files = std::fs::read_dir(recordings).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "parquet"));
    let named = |file: PathBuf| {
        let name = format!("recordings/{}", file.file_name().unwrap_or_default().display());
        (file, name)
    };
    let script = format!("looks={number} between={between_s}\n{SCRIPT}");
    let job = Job {
        options: crate::coarse_time(),
        cpus: 3,
        memory_mib: 1536,
        modules: &["kvm"],
        later: &["kvm_amd"],
        files: files.map(named).collect(),
        script: &script,
        limit: Duration::from_secs(600 + 600 * minutes.unwrap_or(0)),
        ..Job::default()
    };
    let begun = Instant::now();
    let ran = job.run(test)?;
    ran.succeeded("stop.json");
    let looks = looks(&ran);
    assert_eq!(looks.len() as u64, number);
    for look in &looks {
        say!(
            "{test}: at {:.0} s {} KiB, {} descriptors, {} decisions, {} changes, {} writes, {} open leases",
            look.at_s,
            look.resident_kib,
            look.descriptors,
            look.decisions,
            look.changes,
            look.writes,
            look.leases
        );
    }
    let lines = ran.text("control.txt");
    lines.lines().filter(|line| line.contains("control ends")).for_each(|line| say!("{test}: {line}"));
    let (first, last) = (looks[0], looks[looks.len() - 1]);
    let resumed = lines.lines().filter(|line| line.contains("resumed; ")).count();
    say!(
        "{test}: {:.1} min of virtual time in {:.1} min; {} decisions, {} changes, {} writes, resumed {resumed} times",
        (last.at_s - first.at_s) / 60.0 + between_s as f64 / 60.0,
        begun.elapsed().as_secs_f64() / 60.0,
        last.decisions,
        last.changes,
        last.writes
    );
    let [before, after] = ["first", "last"].map(|when| Counted::of(&ran, when).parameters);
    assert_eq!(after, before);
    assert_eq!(open_leases(&ran.json("history.end")), 0);
    assert!(last.changes > 0, "{lines}");
    for pair in looks.windows(2) {
        let minutes = ((pair[1].at_s - pair[0].at_s) / 60.0).max(1.0);
        assert!((pair[1].writes - pair[0].writes) as f64 <= 60.0 * minutes.ceil(), "{pair:?}");
    }
    // Without the first tenth, in which buffers reach their size.
    let (former, latter) = looks[looks.len() / 10..].split_at((looks.len() - looks.len() / 10) / 2);
    let most = |looks: &[Look], of: fn(&Look) -> u64| looks.iter().map(of).max().unwrap_or(0);
    let [resident, descriptors] = [|look: &Look| look.resident_kib, |look: &Look| look.descriptors]
        .map(|of| [most(former, of), most(latter, of)]);
    say!(
        "{test}: the most memory of the first half {} KiB, of the second {} KiB; descriptors {descriptors:?}",
        resident[0],
        resident[1]
    );
    assert!(looks.iter().all(|look| look.leases <= 1));
    assert_eq!(descriptors[0], descriptors[1]);
    // What is allocated for a while lies on one page more or less, and a short soak is all beginning.
    let growth = if minutes.is_some() { 512 } else { 4096 };
    assert!(resident[1] <= resident[0] + growth, "{resident:?} KiB");
    Ok(())
}
