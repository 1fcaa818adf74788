//! The idle driver `kernel/dwell_idle`: it learns, follows its limits, and leaves no trace of itself.

use crate::control::has_gained;
use crate::machine::{Job, Kernel, Ran, Signature};
use dwell_recording::{Chunk, Columns, Reader};
use dwell_stats::Bootstrap;
use dwell_testing::say;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The module as `.ci/module` has built it for this kernel.
pub(crate) fn file(kernel: Kernel) -> Result<(PathBuf, String), String> {
    built(kernel, "dwell_idle.ko")
}

fn built(kernel: Kernel, name: &str) -> Result<(PathBuf, String), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/module")
        .join(kernel.text("release")?)
        .join(name);
    if !path.exists() {
        return Err(format!("no {name} for this kernel; .ci/module builds it"));
    }
    Ok((path, name.to_owned()))
}

/// What every script of [`under_the_driver`] begins with: `counters NAME [FILE]` keeps the driver's counters of CPU
/// 0, by name, and `values NAME` the parameters that dwell sets.
pub(crate) const BEGIN: &str = "
    parameters=/sys/module/dwell_idle/parameters
    counts=/sys/kernel/debug/dwell_idle/cpus
    counters() {
        awk '$1 == \"cpu\" { for (i = 2; i <= NF; i++) name[i] = $i }
             $1 == \"0\" { for (i = 2; i <= NF; i++) print name[i], $i }' ${2:-$counts} >/out/$1
    }
    values() { for name in halt_cost_ns wake_latency_ns max_window_ns policy; do cat $parameters/$name; done >/out/$1; }
";

/// Runs a script in virtual time, after the module was loaded with these parameters.
fn under_the_driver(test: &str, parameters: &str, script: &str) -> Result<Ran, String> {
    let kernel = Kernel::V6_12;
    let script = format!("{BEGIN}keep load insmod /dwell_idle.ko {parameters}\n{script}");
    let job = Job {
        kernel,
        options: crate::COARSE_TIME,
        files: vec![file(kernel)?],
        script: &script,
        limit: Duration::from_secs(800),
        ..Job::default()
    };
    let ran = job.run(test)?;
    ran.succeeded("load");
    Ok(ran)
}

fn counter(ran: &Ran, file: &str, name: &str) -> u64 {
    let text = ran.text(file);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {file}: {text}"))
}

/// How much a counter rose from one file to the next.
pub(crate) fn rise(ran: &Ran, from: &str, to: &str, name: &str) -> u64 {
    counter(ran, to, name) - counter(ran, from, name)
}

/// It polls through gaps that are shorter than a halt costs and not before longer ones, within its limits;
/// dwell records and reports that; CPUs come and go; it can be removed.
pub(crate) fn the_idle_driver_learns(test: &str) -> Result<(), String> {
    let script = "
        cat /sys/devices/system/cpu/cpuidle/current_driver >/out/driver
        keep doctor.json dwell doctor --format json
        # The emulator's CPUs take turns: beside the start of a program on the other one a poll loses 0.4 ms or more, and
        # the driver gives way for a thousand times as long, 0.8 s at most.
        inside naps 0 30 30000 30000 constant $counts /run/short
        counters a /run/short.begun; counters short /run/short.ended; counters b
        inside nap 0 1000 500 constant; inside nap 0 1000 500 constant; counters c
        inside nap 0 30 100000 constant >/dev/null & load=$!
        keep record dwell record guest --source cpu_idle --duration 1s -o /out/guest.parquet
        kill $load
        # A poll that is under way at the write goes on; the first naps end it before the counters are read.
        echo never >$parameters/policy; inside nap 0 30 20 constant; counters d; inside nap 0 30 500 constant; counters e
        echo leader >$parameters/policy
        echo 1 >$parameters/cpus; inside nap 0 30 20 constant; counters f; inside nap 0 30 500 constant; counters g
        echo 0-1 >$parameters/cpus
        echo 5 >/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us
        counters h; inside nap 0 1000 300 constant; counters i
        echo 0 >/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us
        echo 0 >/sys/devices/system/cpu/cpu1/online; inside nap 0 30 300 constant
        echo 1 >/sys/devices/system/cpu/cpu1/online; inside nap 1 30 300 constant
        # Its own parameters: planned from a recording under it, kept, and reverted.
        echo never >$parameters/policy
        inside nap 0 30 100000 constant >/dev/null & load=$!
        sleep 0.2
        values begun
        keep driver.record dwell record guest --source cpu_idle --duration 1s -o /out/driver.parquet
        keep tune.json dwell tune /out/driver.parquet --plan /out/driver.toml --format json
        kill $load
        keep control dwell control --layer guest --duration 1s
        keep apply.json dwell apply /out/driver.toml --persist --format json
        values applied; cat /etc/modprobe.d/dwell-* >/out/kept
        keep status.json dwell status --format json
        keep revert.json dwell revert --format json
        values reverted; ls /etc/modprobe.d >/out/left
        echo 0 >$parameters/halt_cost_ns; cat $parameters/halt_cost_ns >/out/measured
        keep unload rmmod dwell_idle
        cat /sys/devices/system/cpu/cpuidle/current_driver >/out/driver_after
        dmesg >/out/dmesg
    ";
    let ran = under_the_driver(test, "halt_cost_ns=100000 wake_latency_ns=20000", script)?;
    let commands = [
        "doctor.json",
        "record",
        "driver.record",
        "tune.json",
        "apply.json",
        "status.json",
        "revert.json",
        "unload",
    ];
    commands.iter().for_each(|command| ran.succeeded(command));
    is_planned_applied_and_reverted(test, &ran);
    assert_eq!((ran.text("driver").trim(), ran.text("driver_after").trim()), ("dwell_idle", "none"));
    let doctor = ran.json("doctor.json");
    let found = doctor["findings"].as_array().unwrap().iter().any(|finding| finding["code"] == "dwell-idle");
    assert!(found, "{doctor}");

    let (polled, halted) = (rise(&ran, "a", "short", "polls_successful"), rise(&ran, "a", "short", "halts"));
    assert!(polled >= 27_000 && halted < 3_000, "gaps of 30 us: {polled} polled, {halted} halted");
    // A look before a halt is a poll of 1 ns; what counts is the time.
    let (long, failed_ns) = (rise(&ran, "b", "c", "halts"), rise(&ran, "b", "c", "poll_fail_ns"));
    assert!(
        long >= 900 && failed_ns < long * 20_000,
        "gaps of 1 ms: {long} halts, {failed_ns} ns polled before"
    );
    say!(
        "{test}: gaps of 30 us: {polled} polled, {halted} halted; of 1 ms: {long} halted, {} ns polled before each",
        failed_ns / long
    );
    assert_eq!(rise(&ran, "d", "e", "polls_successful"), 0, "policy never");
    assert_eq!(rise(&ran, "f", "g", "polls_successful"), 0, "CPU 0 is not among cpus");
    let halts = rise(&ran, "h", "i", "halts");
    assert!(halts < 10, "{halts} halts under a latency limit of 5 us");
    assert!(ran.text("measured").trim().parse::<u64>().unwrap() >= 1_000);
    let windows = recorded(&ran.path("guest.parquet"));
    let Windows { known, polled, halted } = windows;
    assert!(known > 1_000 && polled > known / 2, "{windows:?}");
    say!("{test}: {known} windows recorded, {polled} polls that saw the wakeup, {halted} halts");
    Ok(())
}

/// Where it never polled, through gaps that are shorter than a halt costs, the advice is to poll; the plan's
/// values are in force and kept, and then those from before.
fn is_planned_applied_and_reverted(test: &str, ran: &Ran) {
    let [begun, applied, reverted] = ["begun", "applied", "reverted"].map(|file| ran.text(file));
    assert_eq!((begun.as_str(), &reverted), ("100000\n20000\n200000\nnever\n", &begun));
    let tune = ran.json("tune.json");
    assert_eq!((&tune["layer"], &tune["halt_cost_ns"]), (&"driver".into(), &100_000.into()), "{tune}");
    let values: Vec<&str> = applied.split_whitespace().collect();
    assert!(values.len() == 4 && ["leader", "savings", "fixed"].contains(&values[3]), "{applied}\n{tune}");
    let option = format!(
        "options dwell_idle halt_cost_ns={} wake_latency_ns={} max_window_ns={} policy={}",
        values[0], values[1], values[2], values[3]
    );
    assert!(ran.text("kept").lines().any(|line| line == option), "{}", ran.text("kept"));
    assert!(!ran.text("left").contains("dwell-"), "{}", ran.text("left"));
    let places = ran.json("status.json")[0]["places"].as_array().cloned().unwrap_or_default();
    assert!(places.len() >= 2 && places.iter().all(|place| place["standing"] == "in_force"), "{places:?}");
    // The rule in force is not haltpoll's: there is nothing to control.
    assert_ne!(ran.exit("control"), 0);
    let refusal = ran.text("control.err");
    assert!(refusal.contains("dwell_idle decides in place of haltpoll"), "{refusal}");
    say!("{test}: {}; {option}", tune["advice"].as_str().unwrap_or_default());
}

/// Two loads one after the other under *never* and under control, which may use more of the slow emulated CPU
/// than it does by default: what each costs a second by the driver's own count, and what is in force
/// afterwards. Then the life of a lease, see [`LEASES`].
pub(crate) fn the_idle_driver_is_controlled(test: &str) -> Result<(), String> {
    /// The halt cost \[us\].
    const K: f64 = 100.0;
    let script = CONTROL.to_owned()
        + "
        phase() {
            inside naps 0 $2 $3 $4 constant $counts /run/$1
            counters $1.begun /run/$1.begun; counters $1.ended /run/$1.ended
        }
        phase original.short 30 3000 3000
        phase original.long 500 500 500
        control control revert
        sleep 0.5
        phase controlled.short 30 30000 3000
        values controlled
        phase controlled.long 500 5000 500
        keep status.json dwell status --control --format json
        keep stop.json dwell control stop
        wait $control
        values ended
    " + LEASES;
    let ran = under_the_driver(test, "halt_cost_ns=100000 wake_latency_ns=20000 policy=never", &script)?;
    ["status.json", "stop.json"].iter().for_each(|command| ran.succeeded(command));
    let lines = ran.text("control.txt");
    lines.lines().for_each(|line| say!("{test}: {line}"));
    say!(
        "{test}: in force after the short gaps: {}",
        ran.text("controlled").split_whitespace().collect::<Vec<_>>().join(" ")
    );
    // What the naps counted cost, and an episode of them [us].
    let cost = |phase: &str| {
        let of = |name| rise(&ran, &format!("{phase}.begun"), &format!("{phase}.ended"), name) as f64;
        let us = (of("poll_success_ns") + of("poll_fail_ns")) / 1e3 + K * of("halts");
        (us, us / of("episodes"))
    };
    for phase in ["original.short", "controlled.short", "original.long", "controlled.long"] {
        let (counted, episode) = cost(phase);
        say!("{test}: {phase}: {:.1} ms in all, {episode:.1} us an episode", counted / 1e3);
    }
    assert_eq!(ran.text("ended"), ran.text("originals"));
    assert!(lines.contains("driver: the originals are in force again"), "{lines}");
    has_gained(&ran.json("status.json"), &lines);
    assert!(cost("controlled.short").0 < 0.8 * cost("original.short").0, "{lines}");
    assert!(cost("controlled.long").1 < 1.05 * cost("original.long").1, "{lines}");
    leases_end_as_they_should(test, &ran);
    Ok(())
}

/// `control NAME ON_EXIT` starts a controller, whose lines are in `NAME.txt`, and waits until it has its lease.
const CONTROL: &str = "
    values originals
    for on_exit in revert keep; do
        printf 'cpu_limit = \"20%%\"\non_exit = \"%s\"\n' $on_exit >/run/$on_exit.toml
    done
    # No turns, in which the originals are in force for a moment.
    echo 'verify = \"0\"' >>/run/keep.toml
    control() {
        dwell control --config /run/$2.toml --mode active --layer driver --halt-cost 100us >/out/$1.txt 2>&1 & control=$!
        until_succeeds grep -q 'driver: controls;' /out/$1.txt
    }
";

/// One controller after the other, each of which ends in another way while another setting than the original
/// one is in force: by SIGKILL and `restore`; by SIGTERM with `on_exit = \"keep\"`, so that the next one
/// adopts the setting; by SIGKILL with `on_exit = \"keep\"`, after which the next one restores the originals;
/// by the write of another program and, resumed, by SIGTERM.
const LEASES: &str = "
    load() { inside nap 0 30 1000000 constant >/dev/null & load=$!; }
    # Waits until a setting that polls is in force.
    changed() { until_succeeds grep -qv never $parameters/policy; }
    # Ends the controller by a signal.
    end() { kill -$1 $control; wait $control; }

    load
    control killed revert
    changed
    end KILL
    values killed
    keep killed.json dwell status --format json
    keep restore dwell control stop
    values restored

    control left keep
    changed
    end TERM
    values left
    keep unless_kept dwell control stop --unless-kept
    values still_left
    control adopted keep
    values adopted
    keep adopted.json dwell status --control --format json
    end KILL
    values adopted_killed

    control foreign revert
    changed
    values before_foreign
    echo 77777 >$parameters/max_window_ns
    sleep 0.5
    values foreign
    keep foreign.json dwell status --control --format json
    sleep 2
    values foreign_later
    keep resume.json dwell control resume
    changed
    values resumed
    keep resumed.json dwell status --control --format json
    keep unload_controlled rmmod dwell_idle
    end TERM
    values terminated
    keep at_last.json dwell status --format json
    kill $load
    keep unload rmmod dwell_idle
";

/// What [`LEASES`] has left: in sysfs, in the journal and in the lines of the controllers.
fn leases_end_as_they_should(test: &str, ran: &Ran) {
    for command in [
        "killed.json",
        "restore",
        "unless_kept",
        "adopted.json",
        "foreign.json",
        "resume.json",
        "resumed.json",
        "at_last.json",
        "unload",
    ] {
        ran.succeeded(command);
    }
    let [killed, left, adopted, foreign] =
        ["killed", "left", "adopted", "foreign"].map(|name| ran.text(&format!("{name}.txt")));
    for (name, lines) in [("killed", &killed), ("left", &left), ("adopted", &adopted), ("foreign", &foreign)]
    {
        lines.lines().for_each(|line| say!("{test}: {name}: {line}"));
    }
    let originals = ran.text("originals");
    assert_eq!(originals, "100000\n20000\n200000\nnever\n");
    // Whether a setting that polls was in force: the part that follows would otherwise show nothing.
    let polls = |name: &str, lines: &str| {
        let values = ran.text(name);
        let policy = values.lines().last().unwrap_or_default();
        assert!(["leader", "savings", "fixed"].contains(&policy), "{name}: {values}\n{lines}");
        values
    };

    polls("killed", &killed);
    assert_eq!(ran.json("killed.json")[0]["lease"], true);
    assert_eq!(ran.text("restore"), "driver: the originals are in force again\n");
    assert_eq!(ran.text("restored"), originals);

    let values = polls("left", &left);
    assert!(left.contains("driver: the setting stays, and the next start adopts it"), "{left}");
    assert_eq!(ran.text("unless_kept"), "");
    let change = ran.json("adopted.json")["layers"][0]["change"].clone();
    let line = format!("driver: adopts the setting that was left (change {change}): ");
    assert!(adopted.lines().next().is_some_and(|first| first.contains(&line)), "{adopted}");
    assert_eq!(ran.text("still_left"), values);
    // What was left stays in force until the first decision, which may come before this looks: its line then
    // names the policy that it changes.
    let policy = |values: &str| values.lines().last().unwrap_or_default().to_owned();
    let first_change = format!("policy {} -> ", policy(&values));
    let still_adopted = |name: &str| ran.text(name) == values || adopted.contains(&first_change);
    assert!(still_adopted("adopted"), "{}\n{adopted}", ran.text("adopted"));
    // Unless the account had put the originals in force for a while.
    let at_kill = ran.text("adopted_killed");
    let kept = at_kill != originals;
    assert!(
        if kept { still_adopted("adopted_killed") } else { adopted.contains("the originals for ") },
        "{at_kill}\n{adopted}"
    );

    // The originals are those of the first lease, or those that were restored.
    for status in ["adopted.json", "foreign.json"] {
        let layer = &ran.json(status)["layers"][0];
        let of = |name: &str| layer["originals"][name].as_u64();
        let originals = ["halt_cost_ns", "wake_latency_ns", "max_window_ns", "policy"].map(of);
        assert_eq!(originals, [Some(100_000), Some(20_000), Some(200_000), Some(3)], "{layer}");
    }
    let line = "driver: a controller that was killed had left its setting; the originals are in force again";
    assert!(!kept || foreign.lines().next().is_some_and(|first| first.ends_with(line)), "{foreign}");

    // What another program writes ends control: it stays, and all else goes back.
    polls("before_foreign", &foreign);
    let status = &ran.json("foreign.json")["layers"][0];
    assert_eq!(status["state"], "given_up", "{status}");
    let why = status["why"].as_str().unwrap_or_default();
    assert!(why.contains("max_window_ns is 77777 and not "), "{status}");
    for line in [
        "max_window_ns is 77777, which another program has set, and is left alone; the original was 200000\n",
        "driver: the other originals are in force again\n",
    ] {
        assert!(foreign.contains(line), "{foreign}");
    }
    let of_another = originals.replace("200000", "77777");
    for name in ["foreign", "foreign_later"] {
        assert_eq!(ran.text(name), of_another, "{name}\n{foreign}");
    }
    assert_eq!(ran.json("resume.json")["resumed"][0], "driver");
    polls("resumed", &foreign);
    // The recorder has the driver's tracepoint open.
    assert_ne!(ran.exit("unload_controlled"), 0);
    assert_eq!(ran.json("resumed.json")["layers"][0]["originals"]["max_window_ns"], 77_777);

    assert_eq!(ran.text("terminated"), of_another, "{foreign}");
    assert!(foreign.ends_with("driver: the originals are in force again\n"), "{foreign}");
    assert_eq!(ran.json("at_last.json").as_array().map(Vec::len), Some(0));
}

#[derive(Debug, Default)]
struct Windows {
    known: u64,
    polled: u64,
    halted: u64,
}

fn recorded(path: &Path) -> Windows {
    let reader = Reader::open(path).unwrap();
    let (mut windows, mut chunk) = (Windows::default(), Chunk::default());
    for group in 0..reader.row_groups() {
        reader.read(group, Columns::WINDOW_NS | Columns::HALTED, &mut chunk).unwrap();
        for row in 0..chunk.rows {
            windows.known += u64::from(chunk.window_ns[row].is_some());
            windows.polled += u64::from(chunk.halted[row] == Some(false));
            windows.halted += u64::from(chunk.halted[row] == Some(true));
        }
    }
    windows
}

/// It is loaded and removed again and again while both CPUs wake up and one of them comes and goes: 30 times,
/// or as often as `DWELL_MODULE_CYCLES` says.
pub(crate) fn the_idle_driver_is_loaded_and_removed(test: &str) -> Result<(), String> {
    let cycles: u64 = std::env::var("DWELL_MODULE_CYCLES").map_or(30, |text| text.parse().unwrap());
    let mut cause = None;
    for kernel in [Kernel::V6_1, Kernel::V6_12] {
        let module = match file(kernel) {
            Ok(module) => module,
            Err(why) => {
                cause = Some(why);
                continue;
            }
        };
        let script = format!(
            "
            inside nap 0 30 1000000000 exponential >/dev/null & inside nap 1 80 1000000000 bimodal >/dev/null &
            cycle=0
            while [ $cycle -lt {cycles} ]; do
                insmod /dwell_idle.ko halt_cost_ns=20000 wake_latency_ns=10000 || break
                [ $((cycle % 10)) = 3 ] && echo 0 >/sys/devices/system/cpu/cpu1/online
                sleep 0.01
                rmmod dwell_idle || break
                echo 1 >/sys/devices/system/cpu/cpu1/online
                cycle=$((cycle + 1))
            done
            echo $cycle >/out/cycles
            dmesg >/out/dmesg
        "
        );
        let job = Job {
            kernel,
            // What Debian's kernels have to find errors of memory.
            append: "slub_debug=FZPU kfence.sample_interval=10",
            files: vec![module],
            script: &script,
            limit: Duration::from_secs(120 + cycles * 2),
            ..Job::default()
        };
        let ran = job.run(test)?;
        assert_eq!(ran.text("cycles").trim(), cycles.to_string(), "{}", ran.text("dmesg"));
        let dmesg = ran.text("dmesg");
        for word in ["WARNING", "BUG", "leaked IRQ", "Call Trace", "Oops", "Redzone", "Poison"] {
            assert!(!dmesg.contains(word), "{dmesg}");
        }
        say!("{test}: {cycles} times on {}", kernel.text("release")?);
    }
    cause.map_or(Ok(()), Err)
}

/// Where another driver is in force, and where the hypervisor is not KVM, it reports why it does not load.
pub(crate) fn the_idle_driver_refuses_with_a_reason(test: &str) -> Result<(), String> {
    let kernel = Kernel::V6_12;
    let script = "
        keep load insmod /dwell_idle.ko
        keep forced insmod /dwell_idle.ko force=1 halt_cost_ns=1000 wake_latency_ns=1000
        dmesg >/out/dmesg
    ";
    let machine = |signature, append| Job {
        kernel,
        signature,
        append,
        options: crate::coarse_time(),
        script,
        ..Job::default()
    };
    let beside_haltpoll =
        Job { files: vec![file(kernel)?], ..machine(Signature::Kvm, "cpuidle_haltpoll.force=1") };
    let ran = beside_haltpoll.run(test)?;
    assert!(ran.exit("load") != 0 && ran.exit("forced") != 0);
    assert!(ran.text("dmesg").contains("dwell_idle: idle driver haltpoll is in force"));
    let elsewhere = Job { files: vec![file(kernel)?], ..machine(Signature::Tcg, "") };
    let ran = elsewhere.run(test)?;
    assert!(ran.exit("load") != 0 && ran.exit("forced") == 0);
    assert!(ran.text("dmesg").contains("dwell_idle: the hypervisor is not KVM"));
    Ok(())
}

/// `kernel/dwell_idle/test/proof.sh` in two machines, one with haltpoll and one with dwell_idle: the traces
/// of which the example `idle_drivers` makes the table of the book. `DWELL_BOX_KEEP` keeps them.
pub(crate) fn the_idle_driver_and_haltpoll_have_the_same_gaps(test: &str) -> Result<(), String> {
    let kernel = Kernel::V6_12;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/dwell_idle/test");
    let folder = tempfile::tempdir().unwrap();
    let gaps = folder.path().join("gaps");
    let compiled =
        Command::new("cc").args(["-O2", "-o"]).arg(&gaps).arg(source.join("gaps.c")).arg("-lm").status();
    if !compiled.is_ok_and(|status| status.success()) {
        return Err("no C compiler".to_owned());
    }
    let script = ". /proof.sh\n";
    let proof = (source.join("proof.sh"), "proof.sh".to_owned());
    for (append, module, arms) in [("cpuidle_haltpoll.force=1", None, 2), ("", Some(file(kernel)?), 5)] {
        let job = Job {
            kernel,
            options: crate::coarse_time(),
            append,
            memory_mib: 1024,
            files: [proof.clone()].into_iter().chain(module).collect(),
            programs: vec![(gaps.clone(), "gaps")],
            script,
            limit: Duration::from_secs(1_800),
            ..Job::default()
        };
        let ran = job.run(test)?;
        let files = std::fs::read_dir(ran.path("")).unwrap();
        let lengths: Vec<u64> = files.map(|file| file.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(lengths.len(), arms * 8 * 7, "{}", ran.said);
        assert!(lengths.iter().all(|length| *length > 10_000), "{lengths:?}\n{}", ran.said);
        say!("{test}: {} traces in {}", lengths.len(), ran.path("").display());
    }
    Ok(())
}

/// Loads of another CPU: a name, the mean gap \[us\], its distribution.
const WAKERS: [(&str, u32, &str); 3] =
    [("short", 15, "constant"), ("bimodal", 100, "bimodal"), ("exponential", 200, "exponential")];
/// Wakeups in a round, and those before them that are not measured.
const WAKES: u32 = 400;
const WARM_UP: u32 = 100;
/// In each round every rule of a machine has its turn, with the same gaps.
const WAKE_ROUNDS: u32 = 8;

/// How long a wakeup by another CPU takes, and how many interrupts it needs: haltpoll and dwell_idle on the
/// same kernel. Prints for each load and rule the interrupts, the median and the 99 % \[us\], the 99 % less
/// that of `never`, and the median less that of `leader`. `DWELL_MODULE_BEFORE` is another build of the
/// module, whose `leader` then has its turn in each round.
pub(crate) fn a_cpu_that_polls_gets_no_interrupt(test: &str) -> Result<(), String> {
    let kernel = Kernel::V6_12;
    let loads: String = WAKERS
        .iter()
        .map(|(name, mean, shape)| {
            format!("inside wake {mean} {WARM_UP} {WAKES} {shape} $round >>/out/$1.{name}; ")
        })
        .collect();
    let begin = format!("loads() {{ {loads} }}\n");
    let haltpoll = format!(
        "{begin}
        parameters=/sys/module/haltpoll/parameters
        for round in $(seq {WAKE_ROUNDS}); do
            echo 200000 >$parameters/guest_halt_poll_ns; echo 50000 >$parameters/guest_halt_poll_grow_start
            loads haltpoll
            echo 150000 >$parameters/guest_halt_poll_ns; echo 37500 >$parameters/guest_halt_poll_grow_start
            loads tuned
        done
    "
    );
    let own = format!(
        "{begin}
        keep load insmod /dwell_idle.ko halt_cost_ns=150000 wake_latency_ns=1
        for round in $(seq {WAKE_ROUNDS}); do
            for policy in leader savings fixed never; do
                echo $policy >/sys/module/dwell_idle/parameters/policy
                loads $policy
            done
            # leader, where the governor stops the tick each time.
            echo leader >/sys/module/dwell_idle/parameters/policy
            echo 0 >/sys/module/haltpoll/parameters/guest_halt_poll_ns
            echo haltpoll >/sys/devices/system/cpu/cpuidle/current_governor
            loads governor
            echo menu >/sys/devices/system/cpu/cpuidle/current_governor
            [ -e /before.ko ] || continue
            rmmod dwell_idle
            insmod /before.ko halt_cost_ns=150000 wake_latency_ns=1
            loads before
            rmmod dwell_idle
            insmod /dwell_idle.ko halt_cost_ns=150000 wake_latency_ns=1
        done
    "
    );
    let before = std::env::var_os("DWELL_MODULE_BEFORE").map(PathBuf::from);
    let mut own_arms = vec!["leader", "savings", "fixed", "never", "governor"];
    own_arms.extend(before.iter().map(|_| "before"));
    let mut files = vec![file(kernel)?];
    files.extend(before.map(|path| (path, "before.ko".to_owned())));
    let machine = |script, append, files| Job {
        kernel,
        options: crate::coarse_time(),
        append,
        files,
        script,
        limit: Duration::from_secs(900),
        ..Job::default()
    };
    let rans = [
        (machine(&haltpoll, "cpuidle_haltpoll.force=1", vec![]).run(test)?, vec!["haltpoll", "tuned"]),
        (machine(&own, "", files).run(test)?, own_arms),
    ];
    // Of each round: the median and 99 % \[us\], and interrupts for each wakeup.
    let of = |arm: &str, load: &str| -> [Vec<f64>; 3] {
        let (ran, _) = rans.iter().find(|(_, arms)| arms.contains(&arm)).expect("an arm of one machine");
        let text = ran.text(&format!("{arm}.{load}"));
        let rows: Vec<Vec<f64>> = text
            .lines()
            .map(|line| line.split_whitespace().map(|word| word.parse().expect("a number")).collect())
            .collect();
        assert!(
            rows.len() == WAKE_ROUNDS as usize && rows.iter().all(|row| row.len() == 3),
            "{arm} {load}: {text}"
        );
        let column = |at: usize, unit: f64| rows.iter().map(|row| row[at] / unit).collect();
        [column(0, 1e3), column(1, 1e3), column(2, 1.0)]
    };
    let interval = |values: &[f64]| {
        let mean = Bootstrap::RECORDING.mean(values).expect("there are rounds");
        format!("{:.2} ({:.2} to {:.2})", mean.value, mean.low, mean.high)
    };
    for (load, ..) in WAKERS {
        let (never, leader) = (of("never", load), of("leader", load));
        for arm in rans.iter().flat_map(|(_, arms)| arms) {
            let [median, p99, interrupts] = of(arm, load);
            let less =
                |a: &[f64], b: &[f64]| interval(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>());
            let (paired, to_leader) = (less(&p99, &never[1]), less(&median, &leader[0]));
            say!(
                "{test}: | {load} | {arm} | {} | {} | {} | {paired} | {to_leader} |",
                interval(&interrupts),
                interval(&median),
                interval(&p99)
            );
        }
    }
    // Where every gap ends within the window no interrupt is needed, and one for each wakeup where the CPU halts.
    let interrupts = |arm: &str, load: &str| {
        let [.., interrupts] = of(arm, load);
        interrupts.iter().sum::<f64>() / f64::from(WAKE_ROUNDS)
    };
    for (load, ..) in WAKERS {
        assert!(interrupts("never", load) > 0.9, "{load}");
    }
    assert!(interrupts("fixed", "short") < 0.1);
    assert!(interrupts("leader", "short") < 0.2 && interrupts("savings", "short") < 0.2);
    Ok(())
}

/// A timer that an interrupt arms while its CPU polls, and that is due after the window, fires in time: of 15 (in the long form 40) none is more
/// than ten ticks late, as without the driver. The governor menu keeps the tick before some halts, haltpoll stops it before each.
pub(crate) fn the_idle_driver_does_not_halt_over_a_timer(test: &str) -> Result<(), String> {
    let kernel = Kernel::V6_12;
    let trials = if crate::is_long() { 40 } else { 15 };
    let script = "
        governor=/sys/devices/system/cpu/cpuidle/current_governor
        parameters=/sys/module/dwell_idle/parameters
        # It fails when it has done its work.
        late() { dmesg -c >/dev/null; insmod /late.ko gap_us=$2 trials=$trials; dmesg -c | sed -n 's/.*late: late /late /p' >/out/$1; }
        echo menu >$governor; late menu 3000
        keep load insmod /dwell_idle.ko policy=fixed max_window_ns=20000000 halt_cost_ns=20000 wake_latency_ns=10000
        late driver_menu 3000
        echo haltpoll >$governor; echo 0 >/sys/module/haltpoll/parameters/guest_halt_poll_ns
        late driver_haltpoll 3000
        echo 4000000 >$parameters/max_window_ns; late driver_short 1000
        cat /sys/kernel/debug/dwell_idle/cpus >/out/cpus
        echo never >$parameters/policy; late driver_never 3000
        keep unload rmmod dwell_idle
        dmesg >/out/dmesg
    ";
    let script = &format!("trials={trials}\n{script}");
    let options = [crate::coarse_time(), &["-device", "edu"]].concat();
    let files = vec![file(kernel)?, built(kernel, "late.ko")?];
    let limit = Duration::from_secs(1_200);
    let ran = Job { kernel, options: &options, files, script, limit, ..Job::default() }.run(test)?;
    ran.succeeded("load");
    ran.succeeded("unload");
    let arms = ["menu", "driver_menu", "driver_haltpoll", "driver_short", "driver_never"];
    for arm in arms {
        say!("{test}: {arm}: {}", ran.text(arm).trim());
    }
    for arm in arms {
        assert!(ran.text(arm).starts_with(&format!("late 0 of {trials}, ")), "{arm}: {}", ran.text(arm));
    }
    Ok(())
}
