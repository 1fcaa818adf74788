//! A guest in a guest: KVM on emulated SVM runs a stock kernel, whose driver and governor haltpoll load by themselves.

use crate::counted::Counted;
use crate::machine::{Job, Kernel, Ran, Signature, dwell_json};
use crate::module;
use crate::timeline;
use dwell_testing::qemu::{KERNEL, Release};
use dwell_testing::say;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A machine in the machine of a job.
struct Inner<'a> {
    job: Job<'a>,
    folder: tempfile::TempDir,
}

/// What the outer machine does first: it starts the inner one. `said WORDS` waits until that has printed them.
const BEGIN: &str = "
    insmod /mod/later/kvm_amd.ko nested=0
    truncate -s 64M /run/inner.disk
    : >/run/said
    qemu -L /inner -accel kvm -cpu host,kvm-hint-dedicated=on -smp 1 -m 768 -nodefaults -no-user-config -display none \\
        -no-reboot -kernel /inner/vmlinuz -initrd /inner/initramfs -serial file:/run/console -serial file:/run/said \\
        -append \"$(cat /inner/append)\" \\
        -drive file=/run/inner.disk,format=raw,if=virtio,cache=unsafe </dev/null >/out/qemu 2>&1 & qemu=$!
    said() {
        until grep -q \"$1\" /run/said; do
            kill -0 $qemu || break
            sleep 0.05
        done
    }
";

/// What it does last.
const END: &str = "
    wait $qemu
    cp /run/said /run/console /out/
    mkdir -p /out/inner
    tar xf /run/inner.disk -C /out/inner
";

impl<'a> Inner<'a> {
    fn new(job: Job<'a>) -> Result<Inner<'a>, String> {
        let folder = tempfile::tempdir().unwrap();
        job.initramfs(&folder.path().join("initramfs"))?;
        std::fs::write(folder.path().join("append"), format!("{KERNEL} {}", job.append)).unwrap();
        Ok(Inner { job, folder })
    }

    /// Runs it in a machine that does `script` meanwhile.
    fn run(&self, test: &str, script: &str) -> Result<Ran, String> {
        let own = |name: &str| (self.folder.path().join(name), format!("inner/{name}"));
        let firmware = |folder: &str, name: &str| (Path::new(folder).join(name), format!("inner/{name}"));
        let files: Vec<(PathBuf, String)> = vec![
            own("initramfs"),
            own("append"),
            (self.job.kernel.vmlinuz(), "inner/vmlinuz".to_owned()),
            firmware("/usr/share/seabios", "bios-256k.bin"),
            firmware("/usr/share/qemu", "linuxboot_dma.bin"),
            firmware("/usr/share/qemu", "kvmvapic.bin"),
        ];
        let script = [BEGIN, script, END].concat();
        let job = Job {
            options: crate::coarse_time(),
            signature: Signature::Tcg,
            cpus: 1,
            memory_mib: 3072,
            modules: &["kvm"],
            later: &["kvm_amd"],
            files,
            programs: vec![(Release::Installed.program()?, "qemu")],
            script: &script,
            limit: Duration::from_secs(300),
            ..Job::default()
        };
        let ran = job.run(test)?;
        assert!(ran.text("said").contains("job: ended"), "{}{}", ran.text("said"), ran.text("qemu"));
        Ok(ran)
    }
}

/// The guest polls as haltpoll does, and KVM does not for it; then the guest stops and lets KVM poll, by the
/// register that haltpoll writes (`MSR_KVM_POLL_CONTROL`); then as at first. Some seconds after its start it
/// begins to idle.
const GUEST: &str = "
    insmod /mod/later/msr.ko
    poll_control() { inside msr 0x4b564d05 $1; }
    maximum=/sys/module/haltpoll/parameters/guest_halt_poll_ns
    cat /sys/devices/system/cpu/cpuidle/current_driver /sys/devices/system/cpu/cpuidle/current_governor >/out/driver
    sleep 3
    inside nap 0 300 1000000 exponential >/dev/null & load=$!
    inside clock >/out/clock
    dwell record guest --duration 2800ms -o /out/guest.parquet >/out/record 2>&1 & record=$!
    sleep 1.2
    at guest polls
    sleep 0.4
    at guest polled
    sleep 0.15
    echo 0 >$maximum; poll_control 1
    at host polls
    sleep 0.4
    at host polled
    sleep 0.15
    poll_control 0; echo 200000 >$maximum
    at guest polls again
    sleep 0.4
    at guest polled again
    sleep 0.15
    wait $record
    cat /out/record
    kill $load
";

/// The host is recorded from before the first phase until after the last.
const HOST: &str = "
    echo 2000000 >/sys/module/kvm/parameters/halt_poll_ns
    said 'guest polls'
    inside clock >/out/clock.first
    cat /sys/kernel/debug/kvm/*-*/vcpu0/tsc-offset >/out/offset
    counted guest.begun
    dwell record host --duration 2500ms -o /out/host.parquet >/out/record 2>&1 & record=$!
    said 'guest polled'; counted guest.ended
    said 'host polls'; counted host.begun
    said 'host polled'; counted host.ended
    said 'guest polls again'; counted again.begun
    said 'guest polled again'; counted again.ended
    wait $record
    inside clock >/out/clock.last
";

/// Both recorded at the same time, their recordings in one report: who polls when, on one axis, although
/// their clocks differ.
pub(crate) fn a_guest_and_its_host_on_one_timeline(test: &str) -> Result<(), String> {
    let begun = Instant::now();
    let inner = Inner::new(Job { script: GUEST, later: &["msr"], ..Job::default() })?;
    let ran = inner.run(test, HOST)?;
    assert_eq!(ran.text("inner/driver"), "haltpoll\nhaltpoll\n");

    let polls = ["guest", "host", "again"].map(|phase| {
        let [begun, ended] = ["begun", "ended"].map(|when| Counted::of(&ran, &format!("{phase}.{when}")));
        begun.rise(&ended, "debug/kvm/", "halt_attempted_poll")
    });
    say!("{test}: polls that KVM counted: {polls:?}");
    assert!(polls[0] == 0.0 && polls[1] > 100.0 && polls[2] == 0.0, "{polls:?}");

    let files = ["inner/guest.parquet", "host.parquet"].map(|name| ran.path(name));
    let report = dwell_json(&["report"], &[&files[0], &files[1]]);
    say!("{test}: {}", timeline::shows_who_polls(&report));

    let replay = dwell_json(&["replay", "--host"], &[&files[1], &files[0]]);
    let host = &replay["work"]["host"];
    let number =
        |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("no {name}: {of}"));
    let (seen, polled, by_rule) =
        (number(host, "seen"), number(host, "polled"), number(host, "polled_by_rule"));
    say!(
        "{test}: of {seen} halts of the guest that the host has, it polled through {polled}, by rules that did not change {by_rule}"
    );
    assert!(100 * seen >= 98 * number(&report["alignment"], "within"), "{host}");
    assert!(polled > 100 && 5 * (by_rule - polled) > seen, "{host}");

    let (shift_ns, alignment) = (shift_by_tsc(&ran), &report["alignment"]);
    let [least, most, by_time_of_day] = ["shift_least_ns", "shift_most_ns", "shift_by_time_of_day_ns"]
        .map(|name| alignment[name].as_f64().unwrap());
    say!(
        "{test}: by the TSC the clocks differ by {shift_ns:.0} ns; by halts that is {:+.0} to {:+.0} ns more, by the time of day {:+.0} ns; in {:.0} s",
        least - shift_ns,
        most - shift_ns,
        by_time_of_day - shift_ns,
        begun.elapsed().as_secs_f64()
    );
    assert!(least - 20_000.0 < shift_ns && shift_ns < most + 20_000.0, "{shift_ns} {alignment}");
    Ok(())
}

/// By how much the host's clock is ahead of the guest's \[ns\]: both have read the TSC, and KVM shows what it
/// adds to the guest's.
fn shift_by_tsc(ran: &Ran) -> f64 {
    let numbers = |file: &str| -> Vec<f64> {
        ran.text(file).split_whitespace().map(|word| word.parse().expect("a number")).collect()
    };
    let [first, last, guest] = ["clock.first", "clock.last", "inner/clock"].map(numbers);
    let ([tsc, ns], [last_tsc, last_ns], [guest_tsc, guest_ns]) = (&first[..], &last[..], &guest[..]) else {
        panic!("no clocks: {first:?} {last:?} {guest:?}")
    };
    let ns_per_cycle = (last_ns - ns) / (last_tsc - tsc);
    ns + (guest_tsc - numbers("offset")[0] - tsc) * ns_per_cycle - guest_ns
}

/// Without a driver KVM polls for the guest; while dwell_idle is in force for its CPU it does not.
const DRIVER: &str = "
    cpus=/sys/module/dwell_idle/parameters/cpus
    phase() {
        sleep 0.3
        at \"$1: begun\"
        sleep 0.4
        at \"$1: ended\"
        sleep 0.15
    }
    sleep 3
    inside nap 0 1000 1000000 exponential >/dev/null & load=$!
    phase without
    keep load insmod /dwell_idle.ko halt_cost_ns=20000 wake_latency_ns=1000 max_window_ns=800000 policy=fixed
    cat /sys/devices/system/cpu/cpuidle/current_driver >/out/driver
    phase with
    keep doctor.json dwell doctor --format json
    echo >$cpus
    phase excluded
    echo 0 >$cpus
    phase again
    cat /sys/kernel/debug/dwell_idle/cpus >/out/cpus
    keep unload rmmod dwell_idle
    phase removed
    kill $load
    dmesg >/out/dmesg
";

const PHASES: [&str; 5] = ["without", "with", "excluded", "again", "removed"];

/// The driver dwell_idle switches KVM's own polling off for the CPUs that it polls on, and on again.
pub(crate) fn the_idle_driver_tells_kvm_not_to_poll(test: &str) -> Result<(), String> {
    let begun = Instant::now();
    let job = Job {
        script: DRIVER,
        append: "initcall_blacklist=haltpoll_init",
        files: vec![module::file(Kernel::V6_12)?],
        ..Job::default()
    };
    let waits: Vec<String> = PHASES
        .iter()
        .flat_map(|phase| {
            ["begun", "ended"].map(|when| format!("said '{phase}: {when}'; counted {phase}.{when}\n"))
        })
        .collect();
    let host = "echo 2000000 >/sys/module/kvm/parameters/halt_poll_ns\n".to_owned() + &waits.concat();
    let ran = Inner::new(job)?.run(test, &host)?;
    let said = ran.text("said");
    assert!(said.contains("load: exit 0") && said.contains("unload: exit 0"), "{said}");
    assert_eq!(ran.text("inner/driver").trim(), "dwell_idle");
    assert!(ran.text("inner/dmesg").contains("KVM does not poll"), "{}", ran.text("inner/dmesg"));
    let doctor = ran.json("inner/doctor.json");
    let codes: Vec<&str> = doctor["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|finding| finding["code"].as_str())
        .collect();
    assert!(codes.contains(&"dwell-idle") && !codes.contains(&"dwell-idle-both-layers-poll"), "{codes:?}");
    let counts = PHASES.map(|phase| {
        let [begun, ended] = ["begun", "ended"].map(|when| Counted::of(&ran, &format!("{phase}.{when}")));
        ["halt_attempted_poll", "halt_exits"].map(|name| begun.rise(&ended, "debug/kvm/", name))
    });
    let words: Vec<String> = PHASES
        .iter()
        .zip(&counts)
        .map(|(phase, [polls, halts])| format!("{phase}: {polls} polls, {halts} halts"))
        .collect();
    say!("{test}: counted by KVM, {}; in {:.0} s", words.join("; "), begun.elapsed().as_secs_f64());
    say!("{test}: {}", ran.text("inner/cpus").replace('\n', " / "));
    for (phase, [polls, _]) in PHASES.iter().zip(&counts) {
        let host_polls = ["without", "excluded", "removed"].contains(phase);
        assert!(if host_polls { *polls > 100.0 } else { *polls == 0.0 }, "{phase}: {words:?}");
    }
    Ok(())
}
