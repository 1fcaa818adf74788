//! The guest layer: the driver and the governor haltpoll of a stock kernel.

use crate::cycle::Cycle;
use crate::machine::{Job, Kernel, Ran, Signature, program_of_test};
use dwell_testing::say;
use serde_json::Value;
use std::time::{Duration, Instant};

/// On the kernel's command line: the driver wants a hint of the hypervisor else.
pub(crate) const FORCED: &str = "cpuidle_haltpoll.force=1";

/// Wakeups on both CPUs until `$load` is killed or the machine is switched off, and some of them before the script goes on.
const LOAD: &str = "
    inside nap 0 150 1000000 exponential >/dev/null & load=$!
    inside nap 1 400 1000000 bimodal >/dev/null & load=\"$load $!\"
    sleep 0.3
";

fn words(value: &Value) -> Vec<&str> {
    value.as_array().map_or_else(Vec::new, |list| list.iter().filter_map(Value::as_str).collect())
}

/// The codes of doctor's findings.
fn codes(doctor: &Value) -> Vec<&str> {
    let findings = doctor["findings"].as_array().expect("doctor has a list of findings");
    findings.iter().filter_map(|finding| finding["code"].as_str()).collect()
}

/// What doctor and tune say of each kernel is what the kernel itself shows.
pub(crate) fn doctor_is_right_about_every_kernel(test: &str) -> Result<(), String> {
    let mut cause = None;
    let all = Kernel::ALL.map(|kernel| (kernel, Signature::Kvm));
    for (kernel, signature) in all.into_iter().chain([(Kernel::V6_12, Signature::Tcg)]) {
        let duration = if kernel == Kernel::V6_1 { "2s" } else { "200ms" };
        let script = format!(
            "cd /sys/devices/system/cpu/cpuidle
            for file in current_driver current_governor available_governors; do cat $file >/out/$file; done
            ls -d /sys/module/haltpoll/parameters/* /sys/kernel/tracing/events/power/* >/out/files
            keep doctor.json dwell doctor --format json
            {LOAD}
            keep record dwell record guest --without-causes --duration {duration} -o /out/guest.parquet
            kill $load
            keep tune.json dwell tune /out/guest.parquet --halt-cost 20us --format json --despite-self-check
        "
        );
        let options = crate::time_of(kernel);
        let job = Job { kernel, signature, options, append: FORCED, script: &script, ..Job::default() };
        match job.run(test) {
            Ok(ran) => agrees_with_the_kernel(test, kernel, signature, &ran)?,
            Err(why) => cause = Some(why),
        }
    }
    cause.map_or(Ok(()), Err)
}

fn agrees_with_the_kernel(test: &str, kernel: Kernel, signature: Signature, ran: &Ran) -> Result<(), String> {
    ["doctor.json", "record", "tune.json"].iter().for_each(|command| ran.succeeded(command));
    let doctor = ran.json("doctor.json");
    let codes = codes(&doctor);
    let shown = |file: &str| ran.text(file).trim().to_owned();
    let (driver, governor) = (shown("current_driver"), shown("current_governor"));
    let has_driver = signature == Signature::Kvm;
    assert_eq!(driver, if has_driver { "haltpoll" } else { "none" });
    assert_eq!(doctor["guest"]["driver"].as_str().unwrap_or("none"), driver);
    assert_eq!(doctor["guest"]["governor"], governor.as_str());
    let available = shown("available_governors");
    assert_eq!(words(&doctor["guest"]["governors"]), available.split_whitespace().collect::<Vec<_>>());
    assert_eq!(doctor["kernel"]["release"], kernel.text("release")?.as_str());

    // The governor registers itself only in a guest of KVM.
    let built = kernel.text("config")?.lines().any(|line| line == "CONFIG_CPU_IDLE_GOV_HALTPOLL=y");
    let has_governor = available.split_whitespace().any(|governor| governor == "haltpoll");
    assert_eq!(has_governor, built && has_driver, "{available}");
    assert_eq!(codes.contains(&"no-haltpoll-governor"), has_driver && !has_governor, "{codes:?}");
    assert_eq!(codes.contains(&"haltpoll-not-a-kvm-guest"), !has_driver, "{codes:?}");
    assert!(!codes.contains(&"other-governor"), "{codes:?}");
    assert!(!codes.contains(&"kernel-unknown"), "{codes:?}");

    let files = ran.text("files");
    let traced = words(&doctor["facilities"]["tracepoints"]).contains(&"power:guest_halt_poll_ns");
    assert_eq!(traced, files.contains("events/power/guest_halt_poll_ns"));
    let advised =
        doctor["findings"].as_array().unwrap().iter().filter_map(|finding| finding["remedy"].as_str());
    let advised: Vec<&str> = advised.collect();
    assert!(has_governor || advised.iter().all(|line| !line.contains("echo haltpoll")), "{advised:?}");

    let tune = ran.json("tune.json");
    let lines = tune["lines"].as_array().unwrap().iter().flat_map(|lines| words(&lines["lines"]));
    let lines: Vec<&str> = lines.collect();
    let places = lines.iter().flat_map(|line| line.split(|c: char| c.is_whitespace() || c == '>'));
    for place in places.filter(|word| word.starts_with("/sys/")) {
        assert!(
            files.lines().any(|file| file == place),
            "tune writes to {place}, which is not there: {lines:?}"
        );
    }
    let release = kernel.text("release")?;
    say!(
        "{test}: {release}: {signature:?}, driver {driver}, governor {governor}: {codes:?}; {} lines",
        lines.len()
    );
    Ok(())
}

/// A guest is recorded and tuned, the plan is applied and verified and reverted; and the kernel's own count
/// of polls shows the effect.
pub(crate) fn from_record_to_revert(test: &str) -> Result<(), String> {
    let limit = Duration::from_secs(600);
    let job = Job { options: crate::coarse_time(), append: FORCED, cpus: 1, limit, ..Job::default() };
    let cycle = Cycle {
        layer: "guest",
        load: "inside nap 0 150 1000000 exponential >/dev/null &",
        record: "200ms",
        tune: "--halt-cost 20us",
        verify: "--budget 3s --turn 30ms --settle 10ms",
        applied: "",
        polls: ("cpuidle", "state0/usage"),
    };
    cycle.run(test, job).map(drop)
}

/// Decisions to compare: the short form, and the long one with `DWELL_BOX_LONG=1`.
const DECISIONS: [u64; 2] = [10_000, 104_000];

/// The test `haltpoll` of the crate dwell-capture in a guest: BPF sees each decision of the kernel's
/// governor, and the model gives the same.
pub(crate) fn every_decision_of_haltpoll_is_the_models(test: &str) -> Result<(), String> {
    let long = crate::is_long();
    let wanted = DECISIONS[usize::from(long)];
    let script = format!(
        "
        P=/sys/module/haltpoll/parameters
        grep . $P/* >/out/before
        export DWELL_DECISIONS={wanted}
        keep haltpoll recorders haltpoll:: --nocapture --ignored
        grep . $P/* >/out/after
    "
    );
    // Where several threads run the CPUs, a kernel died of code that changed on one CPU while another ran it.
    let job = Job {
        options: crate::coarse_time(),
        append: FORCED,
        programs: vec![(program_of_test("recorders")?, "recorders")],
        script: &script,
        limit: Duration::from_secs(if long { 900 } else { 400 }),
        ..Job::default()
    };
    let begun = Instant::now();
    let ran = job.run(test)?;
    ran.succeeded("haltpoll");
    let said = ran.text("haltpoll.err");
    said.lines().for_each(|line| say!("{test}: {line}"));
    assert_eq!(ran.text("before"), ran.text("after"));
    // A row per setting, below the names of its columns.
    let mut lines = said.lines().skip_while(|line| !line.starts_with("max_ns "));
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let rows: Vec<Vec<&str>> = lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .take_while(|row| row.len() == names.len())
        .collect();
    assert_eq!(rows.len(), 4, "settings\n{said}");
    let sum = |name: &str| {
        let column =
            names.iter().position(|other| *other == name).unwrap_or_else(|| panic!("no {name}\n{said}"));
        rows.iter()
            .map(|row| row[column].parse::<u64>().unwrap_or_else(|error| panic!("{error}\n{said}")))
            .sum::<u64>()
    };
    let (decisions, changes, unexplained) = (sum("decisions"), sum("changes"), sum("unexplained"));
    assert_eq!(unexplained, 0, "of {decisions} decisions\n{said}");
    // Where every idle time ends within its window there is nothing to decide.
    assert!(decisions >= wanted && changes > decisions / 20, "{said}");
    assert!(sum("wrong_rule") > 100, "a model that is off deviates too\n{said}");
    say!(
        "{test}: {decisions} decisions, {changes} changes, {unexplained} unexplained, in {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}
