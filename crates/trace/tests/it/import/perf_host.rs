use super::{Imported, import};
use dwell_recording::{Clock, IdleIncludes, Layer, Losses};
use dwell_trace::import::perf::{self, PerfOptions};

pub(crate) fn perf_with(options: PerfOptions, text: impl AsRef<[u8]>) -> Result<Imported, String> {
    import(text.as_ref(), Layer::Iothread, |input, writer| perf::import(input, &options, writer))
}

pub(crate) fn perf(text: impl AsRef<[u8]>) -> Result<Imported, String> {
    perf_with(PerfOptions::default(), text)
}

const TWO_GUESTS: &str = "\
# os release : 6.18.44
# cpudesc : A CPU
# clockid: monotonic (1)
# cmdline : /usr/bin/perf record -a
 CPU 0/KVM  11 [000]   1.000100000: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid
 CPU 0/KVM  22 [001]   1.000200000: kvm:kvm_vcpu_wakeup: poll time 700 ns, polling valid
 CPU 0/KVM  11 [003]   1.000300000:  kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 10000 (grow 0)
 CPU 0/KVM  11 [003]   1.000300100: kvm:kvm_vcpu_wakeup: wait time 6000 ns, polling valid
 CPU 0/KVM  11 [003]   1.000400000: kvm:kvm_vcpu_wakeup: poll time 300 ns, polling valid
 CPU 0/KVM  11 [003]   1.000500000: kvm:kvm_vcpu_wakeup: poll time 400 ns, polling invalid
 CPU 0/KVM  11 [003]   1.000600000:  kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 20000 (grow 10000)
 CPU 0/KVM  11 [003]   1.000600100: kvm:kvm_vcpu_wakeup: wait time 15000 ns, polling valid
 CPU 0/KVM  11 [003]   1.000700000: kvm:kvm_vcpu_wakeup: poll time 500 ns, polling valid
 CPU 0/KVM  11 [003]   1.000800000:  kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 0 (shrink 15000)
 CPU 0/KVM  11 [003]   1.000800100: kvm:kvm_vcpu_wakeup: wait time 99000 ns, polling valid
 CPU 0/KVM  11 [003]   1.000900000: kvm:kvm_vcpu_wakeup: wait time 100 ns, polling valid
";

#[test]
fn an_episode_is_a_wakeup_of_a_thread() {
    let imported = perf(TWO_GUESTS).unwrap();
    let mut rows = imported.rows();
    rows.sort_by_key(|row| row.starts_with("CPU 0/KVM/tid22"));
    assert_eq!(
        rows,
        [
            "CPU 0/KVM/tid11 1000095000 5000 - true - - -",
            "CPU 0/KVM/tid11 1000294100 6000 0 true - - -",
            // It has grown to 10000, which the maximum may cut.
            "CPU 0/KVM/tid11 1000399700 300 - false - - -",
            "CPU 0/KVM/tid11 1000499600 400 - false - - -",
            "CPU 0/KVM/tid11 1000585100 15000 10000 true - - -",
            "CPU 0/KVM/tid11 1000699500 500 - false - - -",
            // It had grown to 20000 and came out as 15000, which is the maximum.
            "CPU 0/KVM/tid11 1000701100 99000 15000 true - - -",
            "CPU 0/KVM/tid11 1000899900 100 0 true - - -",
            "CPU 0/KVM/tid22 1000199300 700 - false - - -",
        ]
    );
    let metadata = imported.reader.metadata();
    assert_eq!((metadata.layer, metadata.idle_includes), (Layer::Host, IdleIncludes::Wake));
    assert_eq!((metadata.clock, metadata.resolution_ns), (Clock::Monotonic, Some(1)));
    assert_eq!(metadata.kernel.as_deref(), Some("6.18.44"));
    assert_eq!(metadata.source.command.as_deref(), Some("/usr/bin/perf record -a"));
    assert_eq!(metadata.source.events, ["kvm:kvm_halt_poll_ns", "kvm:kvm_vcpu_wakeup"]);
    assert_eq!(metadata.other["dwell.vcpus"]["CPU 0/KVM/tid11"]["vcpu_id"], 0);
    assert_eq!(metadata.other["dwell.vcpus"]["CPU 0/KVM/tid11"]["max_ns"], 15_000);
    assert_eq!(metadata.other["dwell.invalid_wakeups"], 1);
    assert_eq!(metadata.lost, Losses::default(), "nobody counted losses");
    let summary = &imported.summary;
    assert_eq!((summary.lines, summary.other_lines, summary.episodes), (16, 4, 9));
    assert_eq!(summary.used["kvm:kvm_vcpu_wakeup"], 9);
}

#[test]
fn a_vcpu_is_named_after_its_process_where_the_text_has_it() {
    let text = "\
 qemu  10/10 [000]   1.000000000: PERF_RECORD_COMM: qemu-system-x86:10/10
 CPU 0/KVM  10/11 [000]   1.000100000: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid
 worker  20/22 [001]   1.000200000: kvm:kvm_exit: vcpu 3 reason HLT rip 0x1 info1 0x0
 worker  20/22 [001]   1.000200000: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid
 worker  20/22 [001]   1.000300000: kvm:kvm_exit: vcpu 3 reason CPUID rip 0x1 info1 0x0
 other  20/23 [001]   1.000400000: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid
";
    let imported = perf(text).unwrap();
    let names: Vec<&str> =
        imported.reader.contents().idlers.iter().map(|idler| idler.name.as_str()).collect();
    assert_eq!(names, ["qemu-system-x86/10/vcpu0", "worker/20/vcpu3", "other/20/tid23"]);
    assert_eq!((imported.summary.used["kvm:kvm_exit"], imported.summary.ignored["kvm:kvm_exit"]), (1, 1));
}

#[test]
fn a_loss_makes_windows_unknown() {
    let lost = "swapper 0 [002] 1.000550000: PERF_RECORD_LOST lost 5\n";
    let text = TWO_GUESTS
        .replace(" CPU 0/KVM  11 [003]   1.000600000", &format!("{lost} CPU 0/KVM  11 [003]   1.000600000"));
    let text = text.replace("halt_poll_ns 10000 (grow 0)", "halt_poll_ns 10000 (shrink 20000)");
    let rows = |text: &str| perf(text).unwrap().rows();
    let known = "CPU 0/KVM/tid11 1000499600 400 10000 false - - -".to_owned();
    let later = text.replace("1.000500000", "1.000580000");
    assert!(rows(&text).contains(&known), "{:#?}", rows(&text));
    let unknown = "CPU 0/KVM/tid11 1000579600 400 - false - - -".to_owned();
    assert!(rows(&later).contains(&unknown), "{:#?}", rows(&later));
    let imported = perf(text).unwrap();
    let lost = &imported.reader.metadata().lost;
    assert_eq!((lost.events, lost.by_cpu[0].cpu, lost.by_cpu[0].events), (Some(5), 2, 5));
}

#[test]
fn starts_do_not_go_back_and_do_not_underflow() {
    let text = "\
a 1 [000] 0.000001: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid
a 1 [000] 0.000009: kvm:kvm_vcpu_wakeup: poll time 0 ns, polling valid
a 1 [000] 0.000009: kvm:kvm_vcpu_wakeup: poll time 900 ns, polling valid
a 1 [000] 0.000010: kvm:kvm_vcpu_wakeup: poll time 900 ns, polling valid
a 1 [000] 0.000015: kvm:kvm_vcpu_wakeup: poll time 9000 ns, polling valid
";
    let imported = perf(text).unwrap();
    assert_eq!(
        imported.rows(),
        [
            "a/tid1 9000 0 - false - - -",
            "a/tid1 9000 900 - false - - -",
            "a/tid1 9100 900 - false - - -",
            "a/tid1 9100 9000 - false - - -",
        ]
    );
    assert_eq!((imported.summary.out_of_order, imported.summary.resolution_ns), (0, 1000));
    // The first began before its clock, as in `perf script --reltime`; the last would have begun within the others.
    assert_eq!(imported.summary.incomplete_episodes, 1);
    let overlaps = imported.summary.overlaps.as_ref().unwrap();
    assert_eq!((overlaps.episodes, overlaps.idler.as_str(), overlaps.start_ns), (1, "a/tid1", 6_000));
    assert_eq!(imported.reader.metadata().other["dwell.overlaps"]["episodes"], 1);
}

#[test]
fn events_up_to_a_tenth_of_a_second_late_are_put_in_order() {
    let line = |us: u64, ns: u64| {
        format!("a 1 [000] 1.{us:06}: kvm:kvm_vcpu_wakeup: poll time {ns} ns, polling valid\n")
    };
    let text: String = [(150_000, 3), (100_000, 2), (50_001, 1)].map(|(us, ns)| line(us, ns)).concat();
    assert_eq!(
        perf(text).unwrap().rows(),
        [
            "a/tid1 1050000999 1 - false - - -",
            "a/tid1 1099999998 2 - false - - -",
            "a/tid1 1149999997 3 - false - - -",
        ]
    );
    // Too late once later ones are used.
    let mut text: String = (0..3_000).map(|number| line(100_000 + number * 100, 1)).collect();
    text += &line(99_000, 1);
    let summary = perf(text).unwrap().summary;
    assert_eq!((summary.episodes, summary.out_of_order, summary.lost.events), (3_000, 1, Some(1)));
}
