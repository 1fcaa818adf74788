//! From a trace with causes to what settings do to the work.

use super::inputs::{Inputs, done, dwell};
use super::page::{assert_quiet, browser};
use dwell_policy::Layer;
use dwell_recording::{
    Cause, Clock, Episode, IdleIncludes, Metadata, REALTIME_OFFSET, Segment, Segments, SettingValue,
    SettingsChange, Writer,
};
use std::fmt::Write;
use std::path::Path;

/// Two tasks on a CPU each that wake each other after 5 us of work, and run so long after they are woken, as ftrace writes it.
fn ping_pong(rounds: u64, late_ns: u64) -> String {
    let tasks = [("client", 101), ("server", 102)];
    let mut text = String::new();
    let mut line = |cpu: usize, (comm, tid): (&str, i32), at_ns: u64, event: &str| {
        let (s, ns) = (10 + at_ns / 1_000_000_000, at_ns % 1_000_000_000);
        writeln!(text, "  {comm}-{tid}  [00{cpu}] d..2. {s}.{ns:09}: {event}").unwrap();
    };
    let switch = |(from, prev): (&str, i32), (to, next): (&str, i32)| {
        format!(
            "sched_switch: prev_comm={from} prev_pid={prev} prev_prio=120 prev_state=S ==> next_comm={to} next_pid={next} \
             next_prio=120"
        )
    };
    for number in 0..2 * rounds {
        let at_ns = number * (5_000 + late_ns);
        let cpu = usize::from(number % 2 == 1);
        let (own, peer) = (tasks[cpu], tasks[1 - cpu]);
        let idle = (["swapper/0", "swapper/1"][cpu], 0);
        line(cpu, idle, at_ns, &switch(idle, own));
        let waking =
            format!("sched_waking: comm={} pid={} prio=120 target_cpu=00{}", peer.0, peer.1, 1 - cpu);
        line(cpu, own, at_ns + 5_000, &waking);
        line(cpu, own, at_ns + 5_100, &switch(own, idle));
    }
    text
}

/// A recording of them where they poll, and the folder that it is in.
fn recording() -> (Inputs, String) {
    recording_under("guest_halt_poll_ns=200us", 1_800)
}

fn recording_under(setting: &str, late_ns: u64) -> (Inputs, String) {
    let inputs = Inputs::new();
    let trace = inputs.write("trace.txt", &ping_pong(3_000, late_ns));
    let recording = inputs.text("idle.parquet");
    let in_force = ["--kernel", "6.18.0", "--in-force", setting];
    done(&[&["import", &trace, "--layer", "guest", "-o", &recording], &in_force[..]].concat());
    (inputs, recording)
}

#[test]
fn the_page_has_the_table_by_work() {
    let Some((_alone, mut browser)) = browser("the table by work") else { return };
    let (inputs, recording) = recording();
    let page = inputs.text("report.html");
    done(&["report", &recording, "--halt-cost", "20us", "-o", &page]);
    let tuned = done(&["tune", &recording, "--halt-cost", "20us", "--format", "json"]);
    let tuned: serde_json::Value = serde_json::from_slice(&tuned).unwrap();
    let mut tab = browser.tab((1280, 900), "light");
    tab.open(page.as_ref());
    let rows = tab.value("document.querySelectorAll('#by-work tbody tr').length");
    assert_eq!(rows.as_u64().unwrap(), tuned["work"]["settings"].as_array().unwrap().len() as u64);
    let text = tab.text("document.body.innerText");
    assert!(text.contains("client/101, server/102") && !text.contains("open loop"), "{text}");
    assert_quiet(&tab);
}

#[test]
fn a_trace_with_causes_shows_what_settings_do_to_the_work() {
    let (_inputs, recording) = recording();
    let info = String::from_utf8(done(&["info", &recording])).unwrap();
    assert!(info.contains("(coupled)"), "{info}");
    let tune = |format: &str| {
        String::from_utf8(done(&["tune", &recording, "--halt-cost", "20us", "--format", format])).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&tune("json")).unwrap();
    let work = &json["work"];
    assert_eq!(work["unit_of_work"], serde_json::json!(["client/101", "server/102"]), "{work:#}");
    let own = work["own_error"].as_f64().unwrap();
    assert!(own.abs() < 0.02, "{own}");
    let settings = work["settings"].as_array().unwrap();
    let never = settings.iter().find(|row| row["setting"]["guest_halt_poll_ns"] == 0).unwrap();
    // The period is 6.8 us where it polls; 5 us of work, 1 us more after a halt and 20 us of latency where it halts.
    let speed = |end: &str| never["speed"][end].as_f64().unwrap();
    assert!((speed("middle") - 6.8 / 26.0).abs() < 0.01, "{never:#}");
    assert!(speed("low") < 0.2 && speed("high") > 0.3, "{never:#}");
    let text = tune("table");
    assert!(text.contains("By work: causes were replayed"), "{text}");
    // Any other setting is asked of a replay, which has all of the recording in place of its second half.
    let replay = |format: &str| {
        let options = ["--halt-cost", "20us", "--set", "guest_halt_poll_ns=5us", "--format", format];
        String::from_utf8(done(&[&["replay", recording.as_str()][..], &options].concat())).unwrap()
    };
    let json_of_replay: serde_json::Value = serde_json::from_str(&replay("json")).unwrap();
    let rows = json_of_replay["work"]["settings"].as_array().unwrap();
    let roles: Vec<&str> = rows.iter().filter_map(|row| row["role"].as_str()).collect();
    assert_eq!(roles, ["in force", "never", ""]);
    let of_all = rows[1]["speed"]["middle"].as_f64().unwrap();
    assert!((of_all - speed("middle")).abs() < 0.001, "{:#}", rows[1]);
    // 5 us are over before the peer has answered, so that every idle time halts as under never, and polls before or not.
    assert_eq!(rows[2]["setting"]["guest_halt_poll_ns"], 5_000);
    let asked = rows[2]["speed"]["middle"].as_f64().unwrap();
    assert!((asked - 6.8 / 26.0).abs() < 0.01, "{:#}", rows[2]);
    assert!(replay("table").contains("By work: causes were replayed"));
    // As CSV they are rows behind those of the idle times, which have no speed.
    for (csv, rows) in [(tune("csv"), settings), (replay("csv"), rows)] {
        let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = lines.next().unwrap();
        let place = |name: &str| names.iter().position(|one| *one == name).unwrap();
        let (speed, low) = (place("speed"), place("speed_low"));
        let (work, idle): (Vec<_>, Vec<_>) = lines.partition(|line| !line[speed].is_empty());
        assert!(work.len() == rows.len() && idle.len() >= 3, "{csv}");
        // Read by one parser, as that of JSON may be off by the last bit.
        let number = |text: &str| serde_json::from_str::<f64>(text).ok();
        for (line, row) in work.iter().zip(rows) {
            assert_eq!(number(line[speed]), row["speed"]["middle"].as_f64(), "{csv}");
            assert_eq!(number(line[low]), row["speed"]["low"].as_f64(), "{csv}");
        }
    }
    // Nothing in the recording halts, so that only the latency of a poll is estimated.
    let constants = &work["constants"];
    assert!(constants["after_poll"]["seen"].as_u64() > Some(5_000) && constants["after_poll"]["ns"] == 1_800);
    assert!(constants["after_halt"]["seen"] == 0 && constants["ipi"]["seen"] == 0, "{constants:#}");
}

/// Where a halt costs less than the polling that takes its place, the price is against polling, and the work is not.
#[test]
fn what_does_more_work_is_named_where_it_is_not_advised() {
    let (_folder, recording) = recording_under("guest_halt_poll_ns=0", 25_000);
    let advice = |halt_cost: &str| {
        let json = done(&["tune", &recording, "--halt-cost", halt_cost, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        json["advice"].as_str().unwrap().to_owned()
    };
    let (cheap, dear) = (advice("1us"), advice("20us"));
    assert!(
        dear.starts_with("set guest_halt_poll_ns=") && !dear.contains("a unit costs less there"),
        "{dear}"
    );
    let (_, faster) = cheap.split_once(". With guest_halt_poll_ns=200000 the load does ").expect(&cheap);
    assert!(cheap.starts_with("leave it: by work, ") && faster.starts_with("5."), "{cheap}");
    // 2 us until the other begins and the 4 us of its work that are not the halt's.
    let (_, at) = faster.split_once("; a unit costs less there if a halt costs more than ").expect(&cheap);
    assert!(at.ends_with(" us") && (5.0..8.0).contains(&at[..4].parse::<f64>().unwrap()), "{cheap}");
}

/// Two threads that wait in `poll` and wake each other after 5 us of work, 20 us before the other runs, which takes them 6 us,
/// as perf prints it.
fn loops(rounds: u64) -> String {
    let threads = [("client", 101), ("server", 102)];
    let mut text = String::new();
    let mut line = |cpu: usize, at_ns: u64, event: &str| {
        let (comm, tid) = threads[cpu];
        let (s, ns) = (10 + at_ns / 1_000_000_000, at_ns % 1_000_000_000);
        writeln!(text, "{comm} {tid}/{tid} [00{cpu}] {s}.{ns:09}: {event}").unwrap();
    };
    for number in 0..2 * rounds {
        let at_ns = 1_000 + number * 25_000;
        let cpu = usize::from(number % 2 == 1);
        let (comm, tid) = threads[1 - cpu];
        line(cpu, at_ns, "syscalls:sys_exit_poll: 0x1");
        let waking = format!("sched:sched_waking: comm={comm} pid={tid} prio=120 target_cpu=00{}", 1 - cpu);
        line(cpu, at_ns + 5_000, &waking);
        let enter = "syscalls:sys_enter_poll: ufds: 0x7ffc00000000, nfds: 0x1, timeout_msecs: 0xffffffff";
        line(cpu, at_ns + 11_000, enter);
    }
    text
}

#[test]
fn event_loops_that_wait_for_each_other_would_do_more_if_they_polled() {
    let inputs = Inputs::new();
    let trace = inputs.write("trace.txt", &loops(2_000));
    let recording = inputs.text("loops.parquet");
    done(&["import", &trace, "-o", &recording]);
    let tune = |format: &str| {
        let asked = ["tune", &recording, "--halt-cost", "20us", "--format", format];
        String::from_utf8(done(&asked)).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&tune("json")).unwrap();
    let work = &json["work"];
    assert_eq!(work["unit_of_work"], serde_json::json!(["client/101/101", "server/102/102"]), "{work:#}");
    assert!(work["own_error"].as_f64().unwrap().abs() < 0.02, "{work:#}");
    let settings = work["settings"].as_array().unwrap();
    // They are no QEMU's, and did not poll.
    assert_eq!(settings[0]["setting"]["poll-max-ns"], 0, "{settings:#?}");
    let polls = settings.iter().find(|row| row["setting"]["poll-max-ns"] == 200_000).unwrap();
    // 2 us in place of 20 from the wakeup to the other's beginning, and 4 us in place of 5 from there to its wakeup.
    let speed = polls["speed"]["middle"].as_f64().unwrap();
    assert!((speed - 25.0 / 6.0).abs() < 0.1, "{polls:#}");
    let text = tune("table");
    assert!(text.contains("By work: causes were replayed") && text.contains("are not QEMU's"), "{text}");
    assert!(!text.contains("dwell verify --set"), "{text}");
}

/// From the wakeup to running where the host polled until then, and where it did not \[ns\].
const LATENCIES_NS: [u64; 2] = [4_000, 22_000];

/// Two tasks of a guest that wake each other after 3 to 300 us of work and never poll, above a host that polls for up to 100 us:
/// the guest's recording and the host's, whose clock is ahead; how many halts there are, and how many the host polled through.
fn guest_and_host(inputs: &Inputs) -> ([String; 2], [u64; 2]) {
    const AHEAD_NS: u64 = 7_000_000_000;
    let metadata = |layer: Layer, offset_ns: u64| {
        let mut metadata = Metadata::new(layer);
        (metadata.clock, metadata.idle_includes) = (Clock::Monotonic, IdleIncludes::Wake);
        metadata.kernel = Some("6.18.0".to_owned());
        metadata.other.insert(REALTIME_OFFSET.to_owned(), offset_ns.into());
        // The host's window keeps its length once it has grown.
        let values = match layer {
            Layer::Guest => vec![("guest_halt_poll_ns", 0)],
            _ => vec![
                ("halt_poll_ns", 100_000),
                ("halt_poll_ns_grow_start", 100_000),
                ("halt_poll_ns_shrink", 1),
            ],
        };
        metadata.settings.push(SettingsChange {
            at_ns: None,
            owner: layer.into(),
            values: values
                .into_iter()
                .map(|(name, value)| (name.to_owned(), SettingValue::Number(value)))
                .collect(),
        });
        metadata
    };
    let files = ["guest", "host"].map(|name| inputs.text(&format!("{name}.parquet")));
    let now_ns = 1_700_000_000_000_000_000;
    let mut guest = Writer::create(Path::new(&files[0]), metadata(Layer::Guest, now_ns + AHEAD_NS)).unwrap();
    let mut host = Writer::create(Path::new(&files[1]), metadata(Layer::Host, now_ns)).unwrap();
    let (mut rows, mut counts, mut ended_ns) = (vec![], [0; 2], [None, Some(0)]);
    let (mut start_ns, mut state) = (1_000_000u64, 1u64);
    for number in 0..6_000u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (cpu, run_ns) =
            (number % 2, 3_000 + (state >> 33) % if state >> 62 == 0 { 300_000 } else { 60_000 });
        let cause = match number.checked_sub(1) {
            Some(waker) => {
                let by: &Segment = rows.last().unwrap();
                Cause::Task { waker, offset_ns: by.run_ns }
            }
            None => Cause::Unknown,
        };
        let segment =
            Segment { task: cpu, cpu, start_ns, run_ns, cause, halted: Some(number > 0), idle: None };
        rows.push(segment);
        let end_ns = segment.end_ns();
        ended_ns[cpu as usize] = Some(end_ns);
        let Some(since_ns) = ended_ns[1 - cpu as usize] else { continue };
        // The other one has waited since its own end, and is woken at the end of this one.
        let polled = end_ns - since_ns <= 100_000;
        start_ns = end_ns + LATENCIES_NS[usize::from(!polled)];
        counts = [counts[0] + 1, counts[1] + u64::from(polled)];
        let halted = Some(true);
        let name = format!("cpu{}", 1 - cpu);
        guest.push(&Episode { halted, ..Episode::new(&*name, since_ns, start_ns - since_ns) }).unwrap();
        let (begun_ns, halted) = (since_ns + AHEAD_NS + 400, Some(!polled));
        let name = format!("1/{}/CPU {}/KVM", 2 + cpu, 1 - cpu);
        host.push(&Episode { halted, ..Episode::new(&*name, begun_ns, end_ns + AHEAD_NS + 900 - begun_ns) })
            .unwrap();
    }
    // The last one is not woken within the recording.
    let [client, server] = ["client/101", "server/102"].map(str::to_owned);
    guest.set_segments(Segments { tasks: vec![client, server], rows, ..Segments::default() });
    guest.finish().unwrap();
    host.finish().unwrap();
    (files, counts)
}

#[test]
fn a_guest_and_its_host_are_replayed_by_work_together() {
    let inputs = Inputs::new();
    let ([guest, host], [halts, polled]) = guest_and_host(&inputs);
    let options = ["--host", &host, "--halt-cost", "20us", "--format"];
    let run = |command: &str, format: &str| done(&[&[command, &guest][..], &options, &[format]].concat());
    let replay = |format: &str| run("replay", format);
    let json: serde_json::Value = serde_json::from_slice(&replay("json")).unwrap();
    let work = &json["work"];
    let [seen, through] = ["seen", "polled"].map(|name| work["host"][name].as_u64().unwrap());
    assert!(halts - seen <= 2 && polled - through <= 2 && through > halts / 4, "{halts} {polled}: {work:#}");
    let by_rule = work["host"]["polled_by_rule"].as_u64().unwrap();
    assert!(by_rule.abs_diff(through) <= through / 50, "{by_rule} {through}");
    // The host's halts begin 0.4 us after the guest's and end 0.9 us after the wakeup.
    let out_and_back_ns = work["host"]["exit_and_entry_ns"].as_u64().unwrap();
    assert!(LATENCIES_NS.map(|ns| ns - 500).contains(&out_and_back_ns), "{out_and_back_ns}");
    let shift_ns = work["host"]["alignment"]["shift_least_ns"].as_i64().unwrap();
    assert!((shift_ns - 7_000_000_000).abs() < 10_000, "{shift_ns}");
    for (name, ns) in ["after_host_poll", "after_halt"].into_iter().zip(LATENCIES_NS) {
        assert_eq!(work["constants"][name]["ns"], ns, "{work:#}");
    }
    let rows = work["settings"].as_array().unwrap();
    let roles: Vec<&str> = rows.iter().filter_map(|row| row["role"].as_str()).collect();
    // Only the host polls, which is in force.
    assert_eq!(roles, ["in force", "neither polls", "guest polls", "both poll"]);
    let speed = |row: usize| rows[row]["speed"]["middle"].as_f64().unwrap();
    assert!(speed(1) < 0.95 && speed(2) > 1.05 && speed(3) > 1.05, "{rows:#?}");
    let text = String::from_utf8(replay("table")).unwrap();
    assert!(
        text.contains("the host polled") && text.contains("any wakeup through which the host polled"),
        "{text}"
    );

    let failed = |args: &[&str]| {
        let output = dwell(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for command in ["replay", "tune"] {
        let wrong = failed(&[command, &guest, "--host", &guest]);
        assert!(wrong.contains("is of the layer guest, not host"), "{wrong}");
        let one = failed(&[command, &guest, "--layer", "guest", "--host", &host]);
        assert!(one.contains("leave out --layer guest"), "{one}");
    }

    // One advice for both: all pairs were tried, and the best polls where a wakeup comes soon.
    let json: serde_json::Value = serde_json::from_slice(&run("tune", "json")).unwrap();
    let work = &json["work"];
    assert_eq!(work["verdict"], "change", "{work:#}");
    assert!(work["settings_tried"].as_u64().unwrap() > 500, "{work:#}");
    let rows = work["settings"].as_array().unwrap();
    let roles: Vec<&str> = rows.iter().filter_map(|row| row["role"].as_str()).collect();
    // What halts at once costs least at 20 us; only the host polls now.
    assert_eq!(roles, ["present", "recommended", "guest polls", "both poll"]);
    assert_eq!(rows[1]["setting"]["halt_poll_ns"], 0, "{rows:#?}");
    let cost = |row: &serde_json::Value| row["cost_ns"]["middle"].as_f64().unwrap();
    assert!(rows.iter().all(|row| cost(row) >= cost(&rows[1])), "{rows:#?}");
    let about: Vec<&str> =
        json["lines"].as_array().unwrap().iter().filter_map(|lines| lines["about"].as_str()).collect();
    assert!(!about.is_empty() && about.iter().all(|about| about.starts_with("host: ")), "{about:?}");
    let (text, csv) = (run("tune", "table"), run("tune", "csv"));
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("Advice: set halt_poll_ns=0: by work, "), "{text}");
    // Less work is done, so that the CPU time of all of a unit is beside that.
    let [speed, cpu] = ["speed", "cpu"].map(|name| rows[1][name]["middle"].as_f64().unwrap());
    assert!(
        speed < 1.0 && (0.5..1.0).contains(&cpu) && text.contains(" of the CPU time for a unit of it"),
        "{text}"
    );
    assert_eq!(String::from_utf8(csv).unwrap().lines().count(), 1 + rows.len());
}
