use super::perf_host::{perf, perf_with};
use dwell_recording::IdleIncludes;
use dwell_trace::guest::GuestSource;
use dwell_trace::import::perf::PerfOptions;

/// Taken with `perf record -a` and shortened.
const SCHED: &str = "\
            perf  6438 [000]   876.855418: sched:sched_waking: comm=migration/0 pid=18 prio=0 target_cpu=000
            perf  6438 [000]   876.855428: sched:sched_switch: prev_comm=perf prev_pid=6438 prev_prio=120 prev_state=D ==> next_comm=migration/0 next_pid=18 next_prio=0
     migration/0    18 [000]   876.855438: sched:sched_switch: prev_comm=migration/0 prev_pid=18 prev_prio=0 prev_state=S ==> next_comm=swapper/0 next_pid=0 next_prio=120
         swapper     0 [000]   876.855443:     power:cpu_idle: state=1 cpu_id=0
            perf  6438 [001]   876.855657: sched:sched_waking: comm=perf-exec pid=6439 prio=120 target_cpu=000
         swapper     0 [000]   876.855684:     power:cpu_idle: state=4294967295 cpu_id=0
         swapper     0 [000]   876.855687: sched:sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=perf-exec next_pid=6439 next_prio=120
       perf-exec  6439 [000]   876.855839: sched:sched_switch: prev_comm=perf-exec prev_pid=6439 prev_prio=120 prev_state=D ==> next_comm=swapper/0 next_pid=0 next_prio=120
         swapper     0 [000]   876.856326: sched:sched_switch: prev_comm=swapper/0 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=perf-exec next_pid=6439 next_prio=120
         swapper     0 [001]   876.856400: sched:sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=perf next_pid=6438 next_prio=120
       perf-exec  6439 [000]   876.856500: sched:sched_switch: prev_comm=perf-exec prev_pid=6439 prev_prio=120 prev_state=D ==> next_comm=swapper/0 next_pid=0 next_prio=120
";

#[test]
fn an_episode_ends_with_the_waking_of_the_next_task() {
    let imported = perf(SCHED).unwrap();
    assert_eq!(
        imported.rows(),
        ["cpu0 876855438000 219000 - true ipi 30000 -", "cpu0 876855839000 487000 - - unknown - -"]
    );
    assert_eq!(imported.reader.metadata().idle_includes, IdleIncludes::Event);
    assert_eq!(imported.summary.incomplete_episodes, 2);
    assert_eq!(imported.reader.metadata().lost.incomplete_episodes, 2);
    // CPU 1 switches, and enters no idle state.
    let about = &imported.reader.metadata().other["dwell.guest"];
    assert_eq!((&about["source"], &about["cpus_without_cpu_idle"][0]), (&"switch".into(), &1.into()));
}

#[test]
fn what_was_open_at_a_loss_is_dropped_and_counted() {
    let text = SCHED.replace(
        "            perf  6438 [001]",
        "swapper 0 [000] 876.855500: PERF_RECORD_LOST lost 2\n            perf  6438 [001]",
    );
    let imported = perf(text).unwrap();
    assert_eq!(imported.rows(), ["cpu0 876855839000 487000 - - unknown - -"]);
    assert_eq!(imported.summary.incomplete_episodes, 4);
}

#[test]
fn switches_alone_include_the_latency() {
    let lines: Vec<&str> = SCHED.lines().filter(|line| line.contains("sched_switch")).collect();
    let imported = perf(lines.join("\n")).unwrap();
    assert_eq!(imported.rows()[0], "cpu0 876855438000 249000 - - unknown - -");
    assert_eq!(imported.reader.metadata().idle_includes, IdleIncludes::Wake);
}

#[test]
fn a_switch_without_cpu_says_what_to_do() {
    let error = perf(SCHED.replace("[000]", "").replace("[001]", "")).err().unwrap();
    assert_eq!(error, "t: line 1 has no CPU, which `sched:sched_waking` needs; use `perf script -F +cpu`");
}

/// A poll that runs out and its halt; a poll that finds work; a halt; a poll, a task for 20 us, a halt.
const IDLE: &str = "\
swapper 0 [000] 1.000000000: power:cpu_idle: state=0 cpu_id=0
swapper 0 [000] 1.000050000: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000050700: power:cpu_idle: state=1 cpu_id=0
swapper 0 [000] 1.000180000: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000180100: power:guest_halt_poll_ns: halt_poll_ns 100000 (grow 50000)
swapper 0 [000] 1.000200000: power:cpu_idle: state=0 cpu_id=0
swapper 0 [000] 1.000210000: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000300000: power:cpu_idle: state=1 cpu_id=0
swapper 0 [000] 1.000310000: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000400000: power:cpu_idle: state=0 cpu_id=0
swapper 0 [000] 1.000410000: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000430000: power:cpu_idle: state=1 cpu_id=0
swapper 0 [000] 1.000630000: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000630100: power:guest_halt_poll_ns: halt_poll_ns 50000 (shrink 100000)
swapper 0 [001] 1.000700000: power:cpu_idle: state=4294967295 cpu_id=1
swapper 0 [000] 1.000700000: power:cpu_idle: state=1 cpu_id=0
";

#[test]
fn a_poll_that_ran_out_and_its_halt_are_one_episode() {
    let imported = perf(IDLE).unwrap();
    assert_eq!(
        imported.rows(),
        [
            "cpu0 1000000000 180000 50000 true unknown - -",
            "cpu0 1000200000 10000 100000 false unknown - -",
            // It did not begin with a poll: the window was not in force.
            "cpu0 1000300000 10000 0 true unknown - -",
            "cpu0 1000400000 10000 100000 false unknown - -",
            "cpu0 1000430000 200000 0 true unknown - -",
        ]
    );
    assert_eq!(imported.summary.incomplete_episodes, 2);
    assert_eq!(imported.reader.metadata().idle_includes, IdleIncludes::Wake);
}

#[test]
fn an_episode_of_cpu_idle_ends_at_its_event_where_that_is_traced() {
    let text = "\
swapper 0 [000] 1.000000000: power:cpu_idle: state=1 cpu_id=0
t 7 [001] 1.000050000: sched:sched_waking: comm=a pid=9 prio=120 target_cpu=000
swapper 0 [000] 1.000054000: irq_vectors:reschedule_entry: vector=253
swapper 0 [000] 1.000060000: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000080000: power:cpu_idle: state=1 cpu_id=0
swapper 0 [000] 1.000095000: irq_vectors:local_timer_entry: vector=236
swapper 0 [000] 1.000099000: power:cpu_idle: state=4294967295 cpu_id=0
";
    let imported = perf(text).unwrap();
    assert_eq!(
        imported.rows(),
        ["cpu0 1000000000 50000 - true ipi 10000 -", "cpu0 1000080000 15000 - true timer 4000 -"]
    );
    assert_eq!(imported.reader.metadata().idle_includes, IdleIncludes::Event);
}

#[test]
fn the_caller_can_choose_the_source() {
    let with = |source| perf_with(PerfOptions { source, ..PerfOptions::default() }, SCHED).unwrap();
    assert_eq!(with(GuestSource::CpuIdle).rows(), ["cpu0 876855443000 214000 - true ipi 27000 -"]);
    assert_eq!(with(GuestSource::Auto).rows(), with(GuestSource::Switch).rows());
}

#[test]
fn perfs_own_records_of_switches_serve_where_the_idle_task_emits_nothing() {
    let text = "\
a 7/7 [000] 1.000000000: PERF_RECORD_SWITCH_CPU_WIDE OUT          next pid/tid:     0/0
b 8/8 [001] 1.000040000: sched:sched_waking: comm=a pid=7 prio=120 target_cpu=000
a 7/7 [000] 1.000050000: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:     0/0
a 7/7 [000] 1.000060000: PERF_RECORD_SWITCH_CPU_WIDE OUT preempt  next pid/tid:     9/9
c 9/9 [000] 1.000060000: PERF_RECORD_SWITCH_CPU_WIDE IN           prev pid/tid:     7/7
";
    let imported = perf(text).unwrap();
    assert_eq!(imported.rows(), ["cpu0 1000000000 40000 - - ipi 10000 -"]);
    assert_eq!(imported.summary.ignored["perf:context_switch"], 2);
}

#[test]
fn a_leave_before_its_enter_makes_no_episode() {
    let text = "\
swapper 0 [000] 1.000050: power:cpu_idle: state=1 cpu_id=0
swapper 0 [000] 1.000040: power:cpu_idle: state=4294967295 cpu_id=0
swapper 0 [000] 1.000060: power:cpu_idle: state=1 cpu_id=0
swapper 0 [000] 1.000070: power:cpu_idle: state=4294967295 cpu_id=0
";
    let imported = perf(text).unwrap();
    assert_eq!(imported.rows(), ["cpu0 1000060000 10000 - true unknown - -"]);
    assert_eq!((imported.summary.out_of_order, imported.summary.incomplete_episodes), (0, 2));
}
