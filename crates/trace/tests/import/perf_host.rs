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
    rows.sort_by_key(|row| row.starts_with("CPU 0/KVM/22"));
    assert_eq!(
        rows,
        [
            "CPU 0/KVM/11 1000095000 5000 - true - - -",
            "CPU 0/KVM/11 1000294100 6000 0 true - - -",
            // The next event says that it was still 10000.
            "CPU 0/KVM/11 1000399700 300 10000 false - - -",
            "CPU 0/KVM/11 1000499600 400 10000 false - - -",
            "CPU 0/KVM/11 1000585100 15000 10000 true - - -",
            // The next event says that it was cut from 20000 to 15000, but not when.
            "CPU 0/KVM/11 1000699500 500 - false - - -",
            "CPU 0/KVM/11 1000701100 99000 15000 true - - -",
            // Nothing follows that would tell.
            "CPU 0/KVM/11 1000899900 100 - true - - -",
            "CPU 0/KVM/22 1000199300 700 - false - - -",
        ]
    );
    let metadata = imported.reader.metadata();
    assert_eq!((metadata.layer, metadata.idle_includes), (Layer::Host, IdleIncludes::Wake));
    assert_eq!((metadata.clock, metadata.resolution_ns), (Clock::Monotonic, Some(1)));
    assert_eq!(metadata.kernel.as_deref(), Some("6.18.44"));
    assert_eq!(metadata.source.command.as_deref(), Some("/usr/bin/perf record -a"));
    assert_eq!(metadata.source.events, ["kvm:kvm_halt_poll_ns", "kvm:kvm_vcpu_wakeup"]);
    assert_eq!(metadata.other["vcpus"], serde_json::json!({"CPU 0/KVM/11": 0}));
    assert_eq!(metadata.lost, Losses::default(), "nobody counted losses");
    let summary = &imported.summary;
    assert_eq!((summary.lines, summary.other_lines, summary.episodes), (16, 4, 9));
    assert_eq!(summary.used["kvm:kvm_vcpu_wakeup"], 9);
}

#[test]
fn a_loss_makes_windows_unknown() {
    let lost = "swapper 0 [002] 1.000550000: PERF_RECORD_LOST lost 5\n";
    let text = TWO_GUESTS
        .replace(" CPU 0/KVM  11 [003]   1.000600000", &format!("{lost} CPU 0/KVM  11 [003]   1.000600000"));
    let imported = perf(text).unwrap();
    let rows = imported.rows();
    assert!(rows.contains(&"CPU 0/KVM/11 1000399700 300 - false - - -".to_owned()), "{rows:#?}");
    assert!(rows.contains(&"CPU 0/KVM/11 1000585100 15000 10000 true - - -".to_owned()), "{rows:#?}");
    let lost = &imported.reader.metadata().lost;
    assert_eq!((lost.events, lost.by_cpu[0].cpu, lost.by_cpu[0].events), (Some(5), 2, 5));
}

#[test]
fn starts_do_not_go_back_and_do_not_underflow() {
    let text = "\
a 1 [000] 0.000001: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid
a 1 [000] 0.000009: kvm:kvm_vcpu_wakeup: poll time 0 ns, polling valid
a 1 [000] 0.000009: kvm:kvm_vcpu_wakeup: poll time 900 ns, polling valid
a 1 [000] 0.000002: kvm:kvm_vcpu_wakeup: poll time 10 ns, polling valid
";
    let imported = perf(text).unwrap();
    assert_eq!(
        imported.rows(),
        [
            "a/1 0 5000 - true - - -",
            "a/1 9000 0 - false - - -",
            "a/1 9000 900 - false - - -",
            "a/1 9000 10 - false - - -"
        ]
    );
    assert_eq!((imported.summary.out_of_order, imported.summary.resolution_ns), (1, 1000));
}

#[test]
fn more_episodes_than_may_wait_are_written_without_window() {
    let mut text =
        String::from("a 1 [000] 1.000000: kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 10 (grow 0)\n");
    for halt in 1..6000 {
        text.push_str(&format!(
            "a 1 [000] 1.{halt:06}: kvm:kvm_vcpu_wakeup: poll time 5 ns, polling valid\n"
        ));
    }
    text.push_str("a 1 [000] 1.100000: kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 20 (grow 10)\n");
    let imported = perf(text).unwrap();
    let rows = imported.rows();
    assert_eq!(rows.len(), 5999);
    assert_eq!(rows.iter().filter(|row| row.contains(" 5 - ")).count(), 4096);
    assert_eq!(rows.iter().filter(|row| row.contains(" 5 10 ")).count(), 5998 - 4096);
    assert_eq!(imported.summary.incomplete_at_end, 1);
}
