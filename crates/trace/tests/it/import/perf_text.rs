use super::perf_host::{perf, perf_with};
use dwell_recording::{Layer, TimeRecorded};
use dwell_trace::event::SystemCall;
use dwell_trace::exits::ExitTable;
use dwell_trace::import::Input;
use dwell_trace::import::perf::PerfOptions;
use proptest::prelude::*;

const WAKEUP: &str =
    "CPU 0/KVM 11/12 [000] 1.000100: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid\n";
const IDLE: &str = "\
swapper 0 [000] 1.000000: power:cpu_idle: state=1 cpu_id=0
swapper 0 [000] 1.000010: power:cpu_idle: state=4294967295 cpu_id=0
";

fn error(text: impl AsRef<[u8]>) -> String {
    perf(text).err().expect("an error")
}

#[test]
fn both_layers_are_ambiguous_until_the_caller_chooses() {
    let both = format!("{WAKEUP}{IDLE}");
    assert_eq!(
        error(&both),
        "t: has events of the layers host (kvm:kvm_vcpu_wakeup) and guest (power:cpu_idle); choose one with \
         `--layer host` or `--layer guest`"
    );
    let with = |layer| perf_with(PerfOptions { layer: Some(layer), ..PerfOptions::default() }, &both);
    let host = with(Layer::Host).unwrap();
    assert_eq!(host.rows(), ["CPU 0/KVM/11/vcpu0 1000095000 5000 - true - - -"]);
    assert_eq!(host.summary.ignored["power:cpu_idle"], 2);
    assert_eq!(with(Layer::Guest).unwrap().rows(), ["cpu0 1000000000 10000 - true unknown - -"]);
    assert!(with(Layer::Iothread).err().unwrap().contains("no episodes"));
    assert_eq!(with(Layer::Driver).unwrap().rows(), with(Layer::Guest).unwrap().rows());
}

#[test]
fn the_other_layer_is_noticed_however_late() {
    let padding = "some other line, of which there are many\n".repeat(150_000);
    assert!(error(format!("{WAKEUP}{padding}{IDLE}")).contains("choose one with"));
    assert!(error(format!("{IDLE}{padding}{WAKEUP}")).contains("choose one with"));
    assert_eq!(perf(format!("{padding}{WAKEUP}")).unwrap().summary.other_lines, 150_000);
}

#[test]
fn every_line_is_counted() {
    let text = format!(
        "# comment\n\n{WAKEUP}\tffffffff81000000 kvm_vcpu_halt+0x12 ([kvm])\na 1 [000] 1.000200: kvm:kvm_pio: pio_read at 0x1\n"
    );
    let summary = perf(text).unwrap().summary;
    assert_eq!((summary.lines, summary.other_lines, summary.ignored["kvm:kvm_pio"]), (5, 3, 1));
}

#[test]
fn the_time_recorded_is_from_the_first_event_to_the_last_whatever_they_are() {
    let around = |time: &str| format!("a 1 [000] {time}: kvm:kvm_pio: pio_read at 0x1\n");
    let recorded = |text: String| perf(text).unwrap().reader.metadata().recorded;
    let of = |start_ns, end_ns| Some(TimeRecorded { start_ns, end_ns });
    assert_eq!(recorded(WAKEUP.to_owned()), of(1_000_100_000, 1_000_100_000));
    let text = around("0.500000") + WAKEUP + &around("7.000000") + &around("6.999999");
    assert_eq!(recorded(text.clone()), of(500_000_000, 7_000_000_000));
    // Rates are over the whole of it, and the episode of 5 us that began before its event is in it.
    assert_eq!(perf(text).unwrap().reader.span_ns(), 6_500_000_000);
    assert_eq!(perf(WAKEUP).unwrap().reader.span_ns(), 5_000);
}

#[test]
fn a_broken_event_is_an_error_with_its_line() {
    const WRAPPED: &str =
        "if lines were wrapped or cut off, make the text anew; else --skip-unparsable counts such lines";
    const NO_FIELDS: &str = "it has no fields of the event; use `perf script -F +trace`";
    const NO_THREAD: &str = "it has no thread before its time; use `perf script -F +comm,+tid`, or make the text anew if lines \
                             were wrapped; else --skip-unparsable counts such lines";
    for (broken, how) in [
        ("1 [000] 1.000200: kvm:kvm_vcpu_wakeup: wait time -5 ns, polling valid", WRAPPED),
        ("1 [000] 1.000200: kvm:kvm_vcpu_wakeup:", NO_FIELDS),
        ("1 [000] 1.000200: kvm:kvm_vcpu_wakeup: ffffffffc0a1b2c3 kvm_vcpu_block", NO_FIELDS),
        ("1 [000] 1.000200: kvm:kvm_vcpu_wakeup: wait ti", WRAPPED),
        ("x [000] 1.000200: kvm:kvm_vcpu_wakeup: wait time 5 ns, polling valid", NO_THREAD),
        ("[000] 1.000200: kvm:kvm_vcpu_wakeup: wait time 5 ns, polling valid", NO_THREAD),
        ("1.000200: kvm:kvm_vcpu_wakeup: wait time 5 ns, polling valid", NO_THREAD),
        ("1 [000] 1,000200: kvm:kvm_vcpu_wakeup: wait time 5 ns, polling valid", WRAPPED),
    ] {
        let broken = format!("a {broken}");
        let text = format!("{WAKEUP}{broken}\n");
        let wanted = format!("t: line 2 names `kvm:kvm_vcpu_wakeup` but cannot be parsed: `{broken}`; {how}");
        assert_eq!(error(&text), wanted);
        let skip = PerfOptions { skip_unparsable: true, ..PerfOptions::default() };
        assert_eq!(perf_with(skip, &text).unwrap().summary.unparsable, 1);
    }
}

#[test]
fn no_episode_is_an_error_that_says_what_was_there() {
    let text = "a 1 [000] 1.000200: kvm:kvm_exit: reason HLT rip 0x1\n";
    assert!(
        error(text)
            .starts_with("t: no episodes in 1 lines; events of use: none, others: 1 kvm:kvm_exit; record")
    );
    assert!(error("").starts_with("t: no episodes in 0 lines"));
}

/// It said how to record a guest, which had been done.
#[test]
fn trace_in_which_no_cpu_idled_says_that_they_were_busy() {
    let switch = "sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=R ==> next_comm=b next_pid=2 next_prio=120";
    let text = format!("a 1 [000] 1.000200: {switch}\na 1 [001] 1.000300: {switch}\n");
    let busy = error(&text);
    assert!(
        busy.ends_with("; no CPU idled: all were busy; record for longer, or while there is less to do"),
        "{busy}"
    );
    // What began to idle and did not end is another matter.
    let idles = "sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=R ==> next_comm=swapper/0 next_pid=0 next_prio=120";
    let error = error(format!("{text}a 1 [000] 1.000400: {idles}\n"));
    assert!(error.contains("; record "), "{error}");
}

#[test]
fn waits_of_threads_are_episodes() {
    let text = "\
a 1/2 [000] 1.000300: syscalls:sys_enter_poll: ufds: 0x1, nfds: 0x00000001, timeout_msecs: 0xffffffff
a 1/2 [000] 1.000310: syscalls:sys_exit_poll: 0x1
a 1/2 [000] 1.000310: raw_syscalls:sys_enter: NR 7 (1, 1, 0, 0, 0, 0)
a 1/2 [000] 1.000320: syscalls:sys_enter_poll: ufds: 0x1, nfds: 0x00000001, timeout_msecs: 0x0000000a
a 1/2 [000] 1.010390: syscalls:sys_exit_poll: 0x0
";
    let imported = perf(text).unwrap();
    assert_eq!(
        imported.rows(),
        ["a/1/2 1000300000 10000 - - io - -", "a/1/2 1000320000 10070000 - - timer - -"]
    );
    let metadata = imported.reader.metadata();
    assert_eq!(metadata.layer, Layer::Iothread);
    assert_eq!(metadata.other["dwell.threads"]["a/1/2"]["calls"]["poll"]["waits"], 2);
    let raw = "\
a 2 [000] 1.000300: raw_syscalls:sys_enter: NR 7 (1, 1, 64, 0, 0, 0)
a 2 [000] 1.000310: raw_syscalls:sys_exit: NR 7 = 1
a 2 [000] 1.000310: raw_syscalls:sys_exit: NR 0 = 1
";
    if SystemCall::Poll.number() == Some(7) {
        assert_eq!(perf(raw).unwrap().rows(), ["a/2 1000300000 10000 - - io - -"]);
    }
}

#[test]
fn exits_are_paired_by_thread() {
    let text = "\
v 1 [0] 1.000000: kvm:kvm_exit: vcpu 0 reason CPUID rip 0x1 info1 0x0
v 1 [0] 1.000001: kvm:kvm_entry: vcpu 0, rip 0x1
v 2 [0] 1.000001: kvm:kvm_entry: vcpu 0, rip 0x1
v 1 [0] 1.000010: kvm:kvm_exit: vcpu 0 reason HLT rip 0x1 info1 0x0
v 2 [1] 1.000011: kvm:kvm_exit: vcpu 0 reason MSR_WRITE rip 0x1 info1 0x0
v 1 [0] 1.000020: kvm:kvm_entry: vcpu 0, rip 0x1
v 2 [1] 1.000021: kvm:kvm_exit: vcpu 0 reason CPUID rip 0x1 info1 0x0
v 1 [0] 1.000022: kvm:kvm_entry: vcpu 0, rip 0x1
v 2 [1] 1.000020: kvm:kvm_entry: vcpu 0, rip 0x1
v 2 [1] 1.000030: kvm:kvm_exit: vcpu 0 reason HLT rip 0x1 info1 0x0
";
    let table = ExitTable::read(Input::new("t", text.as_bytes()).unwrap()).unwrap();
    assert_eq!((table.rows.len(), table.rows[0].reason.as_str(), table.total_ns), (1, "HLT", 10_000));
    let out = table.left_out;
    assert_eq!((out.before_first_entry, out.entries_without_exit), (1, 1));
    assert_eq!((out.exits_without_entry, out.backwards), (2, 1));
    assert!(serde_json::to_string(&table).unwrap().contains("\"reason\":\"HLT\""));
    let broken = "v 1 [0] 1.000000: kvm:kvm_exit: vcpu 0\n";
    assert!(ExitTable::read(Input::new("t", broken.as_bytes()).unwrap()).is_err());
}

fn lines() -> Vec<&'static str> {
    vec![
        "a 1 [000] 1.000200: kvm:kvm_vcpu_wakeup: wait time 5 ns, polling valid",
        "a 1 [000] 0.000001: kvm:kvm_vcpu_wakeup: wait time 18446744073709551615 ns, polling valid",
        "a 1 [000] 18446744073.0: kvm:kvm_vcpu_wakeup: poll time 0 ns, polling valid",
        "a 1 [000] 1.000200: kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 4294967295 (grow 0)",
        "a 0 [000] 1.000200: power:cpu_idle: state=0 cpu_id=0",
        "a 0 [000] 1.000203: power:cpu_idle: state=1 cpu_id=0",
        "a 0 [000] 1.000400: power:cpu_idle: state=4294967295 cpu_id=0",
        "a 0 [000] 1.000401: power:guest_halt_poll_ns: halt_poll_ns 5 (shrink 6)",
        "a 0 [000] 1.000500: sched:sched_waking: comm=a pid=1 prio=0 target_cpu=000",
        "a 0 [000] 1.000600: sched:sched_switch: prev_comm=s prev_pid=0 prev_prio=0 prev_state=R ==> next_comm=a next_pid=1 next_prio=0",
        "a 1 [000] 1.000300: sched:sched_switch: prev_comm=a prev_pid=1 prev_prio=0 prev_state=S ==> next_comm=s next_pid=0 next_prio=0",
        "a 1 [000] 1.000300: kvm:kvm_exit: vcpu 0 reason HLT rip 0x1",
        "a 1 [000] 1.000200: kvm:kvm_entry: vcpu 0",
        "a 0 [000] 1.000400: PERF_RECORD_LOST lost 18446744073709551615",
        "# os release : x",
        "a 1/2 [000] 1.000300: syscalls:sys_enter_poll: ufds: 0x1, nfds: 0x1, timeout_msecs: 0xffffffff",
        "a 1/2 [000] 1.000310: syscalls:sys_exit_poll: 0x1",
        "a 1/2 [000] 1.000320: raw_syscalls:sys_enter: NR 7 (1, 1, 0, 0, 0, 0)",
        "a 1/2 [000] 1.000330: raw_syscalls:sys_exit: NR 7 = 1",
        "a 1/2 [001] 1.000340: PERF_RECORD_SWITCH_CPU_WIDE OUT          next pid/tid:     0/0",
        "a 1/2 [001] 1.000350: PERF_RECORD_COMM: a:b:1/2",
        "a 1/2 [001] 1.000360: irq_vectors:local_timer_entry: vector=236",
    ]
}

fn run_all(text: &[u8]) {
    for layer in [None, Some(Layer::Host), Some(Layer::Guest), Some(Layer::Iothread)] {
        for skip_unparsable in [false, true] {
            let _ = perf_with(PerfOptions { layer, skip_unparsable, ..PerfOptions::default() }, text);
        }
    }
    if let Ok(input) = Input::new("t", text) {
        let _ = ExitTable::read(input);
    }
}

proptest! {
    #[test]
    fn any_order_of_lines_does_not_panic(picked in prop::collection::vec(prop::sample::select(lines()), 0..40)) {
        run_all(picked.join("\n").as_bytes());
    }

    #[test]
    fn mutated_lines_do_not_panic(
        picked in prop::collection::vec(prop::sample::select(lines()), 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = picked.join("\n").into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        run_all(&bytes);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        run_all(&bytes);
    }
}

#[test]
fn a_text_that_ends_within_a_line_is_used_without_it() {
    let whole = perf(format!("{WAKEUP}{WAKEUP}")).unwrap();
    let cut = WAKEUP.strip_suffix(" ns, polling valid\n").unwrap();
    let imported = perf(format!("{WAKEUP}{WAKEUP}{cut}")).unwrap();
    assert_eq!(imported.rows(), whole.rows());
    assert_eq!(imported.summary.unparsable, 1);
    assert_eq!(imported.summary.notes, ["the last line is cut off and is not used"]);
    assert!(error(format!("{WAKEUP}{cut}\n{WAKEUP}")).contains("--skip-unparsable"));
}

#[test]
fn times_that_go_back_are_noted_and_far_back_refused() {
    let at = |cpu: u32, time: &str| WAKEUP.replace("[000]", &format!("[{cpu:03}]")).replace("1.000100", time);
    let trace: String = (1..9).map(|n| at(0, &format!("5.00{n}100"))).collect();
    let imported = perf(trace.clone() + &at(0, "5.000500") + &at(1, "3.000000")).unwrap();
    let notes = imported.summary.notes.join(" ");
    assert!(notes.contains("the times of one CPU go back once, first in line 9"), "{notes}");
    assert!(imported.reader.metadata().other["dwell.notes"].to_string().contains("line 9"));
    let wanted = "t: line 17 is 3908099900 ns earlier than the line before it of the same CPU";
    let two = error(trace.replace("5.00", "1.00") + &trace + &at(0, "1.100000100"));
    assert!(two.starts_with(wanted) && two.contains("import each trace by itself"), "{two}");
    assert!(perf(trace).unwrap().summary.notes.is_empty());
}
