//! Traces as people have them: each with the values that were worked out by hand, before dwell read it.

use super::{Imported, import};
use dwell_policy::arch::Arch;
use dwell_recording::Layer;
use dwell_trace::exits::ExitTable;
use dwell_trace::import::perf::{self, PerfOptions};
use dwell_trace::import::qemu::{self, QemuOptions};
use dwell_trace::import::{Format, ImportSummary, Input, STDIN, recognise};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("field/", $name))
    };
}

/// As `dwell import FILE` does it.
fn any_with(options: PerfOptions, text: &[u8]) -> Result<Imported, String> {
    import(
        text,
        options.layer.unwrap_or(Layer::Host),
        |mut input, writer| -> Result<ImportSummary, Refused> {
            match recognise(&mut input).map_err(Refused::of)? {
                Format::Events => perf::import(input, &options, writer).map_err(Refused::of),
                Format::Qemu => qemu::import(input, QemuOptions::default(), writer).map_err(Refused::of),
                Format::Csv => Err(Refused("a table".to_owned())),
                Format::Foreign(foreign) => Err(Refused(foreign.words().to_owned())),
            }
        },
    )
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

impl Refused {
    fn of(error: impl std::error::Error) -> Refused {
        let mut words = error.to_string();
        let mut source = error.source();
        while let Some(error) = source {
            words += &format!(": {error}");
            source = error.source();
        }
        Refused(words)
    }
}

fn any(text: &[u8]) -> Result<Imported, String> {
    any_with(PerfOptions::default(), text)
}

fn refused(text: &[u8]) -> String {
    any(text).err().expect("refused")
}

#[test]
fn case_01_trace_cmd_report_of_a_host() {
    let imported = any(file!("01-tracecmd-host-halt-poll.txt")).unwrap();
    let mut rows = imported.rows();
    rows.sort_by_key(|row| row.contains("41208"));
    let first = "fc_vcpu 0/tid41207";
    let second = "fc_vcpu 1/tid41208";
    assert_eq!(
        rows,
        [
            format!("{first} 5120099912748 91252 0 true - - -"),
            format!("{first} 5120100213880 6120 - false - - -"),
            format!("{first} 5120100847990 55010 10000 true - - -"),
            format!("{first} 5120101482223 17777 - false - - -"),
            format!("{first} 5120102203000 6800000 20000 true - - -"),
            format!("{second} 5120098950000 1400000 - true - - -"),
            format!("{second} 5120100900000 2100000 - true - - -"),
        ]
    );
    let (summary, metadata) = (&imported.summary, imported.reader.metadata());
    assert_eq!((summary.format.as_str(), summary.resolution_ns), ("trace-cmd or ftrace", 1_000));
    assert_eq!((metadata.lost.events, &summary.notes), (None, &vec![]));
}

/// `trace-cmd report --ts-diff`.
#[test]
fn times_since_the_line_before_are_passed_over() {
    let text = String::from_utf8_lossy(file!("01-tracecmd-host-halt-poll.txt"));
    let with = text.replace(": kvm_vcpu_wakeup:", ": (+4)     kvm_vcpu_wakeup:");
    assert_eq!(any(with.as_bytes()).unwrap().rows(), any(text.as_bytes()).unwrap().rows());
}

/// What a mail, a page, `grep -n` and a terminal put around lines, and the time of day by `-F +tod`.
#[test]
fn lines_that_were_pasted_are_read() {
    let text = String::from_utf8_lossy(file!("03-perf-arm64-guest.txt"));
    let plain = any(text.as_bytes()).unwrap();
    let each = |line: &dyn Fn(usize, &str) -> String| {
        let pasted: String = text.lines().enumerate().map(|(at, text)| line(at, text) + "\r\n").collect();
        let imported = any(pasted.as_bytes()).unwrap();
        assert_eq!((imported.rows(), &imported.summary.notes), (plain.rows(), &vec![]), "{pasted}");
        assert_eq!(imported.reader.metadata().kernel, plain.reader.metadata().kernel);
    };
    each(&|_, line| format!("    {line}"));
    each(&|_, line| format!("> {line}"));
    each(&|at, line| format!("{at}:{line}"));
    each(&|at, line| format!("{at:6}\t{line}"));
    each(&|_, line| format!("\x1b[31m{line}\x1b[0m"));
    each(&|_, line| format!("\x1b[31µ{line}"));
    each(&|_, line| line.replace(' ', "\u{a0}"));
    each(&|_, line| line.replace("cpu_idle", "\x1b[01;31m\x1b[Kcpu_idle\x1b[m\x1b[K"));
    each(&|_, line| line.replace("] 300", "] 2026-11-25 10:00:00.123456   300"));
}

/// The library that perf and trace-cmd share writes the fields of an event whose format it does not understand.
#[test]
fn events_whose_format_was_not_understood() {
    let line = |text: &str| format!("CPU 0/KVM 7/77 [001] 5.000200: kvm:kvm_{text}\n");
    let rows = |texts: [&str; 2]| any(texts.map(line).concat().as_bytes()).unwrap().rows();
    assert_eq!(
        rows([
            "halt_poll_ns: [FAILED TO PARSE] grow=1 vcpu_id=0 new=10000 old=0",
            "vcpu_wakeup: [FAILED TO PARSE] ns=90000 waited=1 valid=1"
        ]),
        rows([
            "halt_poll_ns: vcpu 0: halt_poll_ns 10000 (grow 0)",
            "vcpu_wakeup: wait time 90000 ns, polling valid"
        ])
    );
    let exit = line("exit: [FAILED TO PARSE] exit_reason=12 guest_rip=0x1 isa=1 vcpu_id=0");
    let error = ExitTable::read(Input::new("t", exit.as_bytes()).unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("; it has the number of the exit and not its name; make the text without `trace-cmd"),
        "{error}"
    );
}

/// `perf script -F +machine_pid,+vcpu` of a perf.data of `perf inject --guest-data`: the CPUs are those of the host.
#[test]
fn events_of_a_guest_among_those_of_its_host_are_refused() {
    let line = "VM:12345 VCPU:001 swapper 0 [000] 100.000000: power:cpu_idle: state=1 cpu_id=1\n";
    let error = refused(line.as_bytes());
    assert_eq!(
        error,
        "t: line 1 is of a guest, which `perf inject` has put on CPUs of its host; make a text of the guest's own perf.data"
    );
}

/// 7 is poll with 64 bits and waitpid with 32.
#[test]
fn system_calls_of_32_bits_have_other_numbers() {
    let text = "a 1/2 [001] 1.000100: raw_syscalls:sys_enter: NR 7 (bf8, 1, ffffffff, 0, 0, 0)\n\
                a 1/2 [001] 1.000190: raw_syscalls:sys_exit: NR 7 = 1\n";
    let of = |arch: &str| any(format!("# arch : {arch}\n{text}").as_bytes());
    assert_eq!(of("x86_64").unwrap().summary.episodes, 1);
    assert!(of("i686").err().unwrap().contains("threads with `-e 'syscalls:sys_enter_*poll*'"));
}

/// RISC-V names no exit.
#[test]
fn exits_of_riscv_are_counted() {
    let line = |us: u32, text: &str| format!("CPU 0/KVM 7/77 [001] 5.{us:06}: kvm:kvm_{text}\n");
    let text = line(1, "entry: PC: 0x0161")
        + &line(10, "exit: SEPC:0x1, SCAUSE:0x16, STVAL:0x10500073, HTVAL:0x0, HTINST:0x0")
        + &line(509, "vcpu_wakeup: wait time 400 ns, polling valid")
        + &line(510, "entry: PC: 0x0161");
    let table = ExitTable::read(Input::new("t", text.as_bytes()).unwrap()).unwrap();
    assert_eq!((table.rows[0].reason.as_str(), table.total_ns), ("0x16", 500_000));
    assert_eq!(any(text.as_bytes()).unwrap().reader.metadata().other["dwell.arch"], "riscv64");
}

#[test]
fn a_trace_of_timers_is_named_with_what_reads_it() {
    let line = |text: &str| format!("CPU 0/KVM 7/77 [001] 5.000001: kvm:kvm_{text}\n");
    let text = line("entry: vcpu 0, rip 0x1") + &line("exit: vcpu 0 reason HLT rip 0x1");
    assert!(refused(text.as_bytes()).contains("; it has exits, which `dwell timer import` and"));
}

/// The CPUs of a host and those of its guest have the same numbers.
#[test]
fn a_report_of_several_files_is_refused() {
    let line = |file: &str, us: u32, state: u32| {
        format!("{file}:           <idle>-0     [000]   100.{us:06}: cpu_idle: state={state} cpu_id=0\n")
    };
    let lines = [(" host.dat", 0, 1), ("guest.dat", 50, 1), (" host.dat", 100, u32::MAX)];
    let events: String = lines.iter().map(|&(file, us, state)| line(file, us, state)).collect();
    let error = refused(format!(" host.dat: cpus=8\nguest.dat: cpus=2\n{events}").as_bytes());
    assert!(
        error.starts_with("t: line 2 begins a second trace, as `trace-cmd report` of several"),
        "{error}"
    );
    assert!(any(format!("cpus=8\n{events}").as_bytes()).is_ok());
    // `perf script --header` of two files, one behind the other.
    let one = format!("# captured on    : Mon Nov 24 10:00:00 2025\n{events}");
    assert!(refused(format!("{one}{one}").as_bytes()).starts_with("t: line 5 begins a second trace"));
    assert!(any(one.as_bytes()).is_ok());
    // The log of a QEMU behind it.
    let log = format!("{one}22106@1764064800123456789 poll_grow ctx 0x5 old 0 new 4000\n");
    let error = refused(log.as_bytes());
    assert!(error.starts_with("t: line 5 is of QEMU's own trace, and what is above is not"), "{error}");
}

#[test]
fn case_03_arm_has_no_polling_state() {
    let text = file!("03-perf-arm64-guest.txt");
    let imported = any(text).unwrap();
    assert_eq!(
        imported.rows(),
        [
            "cpu1 300000000000 180000 - true task 10000 -",
            "cpu1 300000400000 500000 - true unknown - -",
            "cpu1 300000903000 597000 - true unknown - -",
            "cpu1 300001506000 594000 - true task 10000 -",
            "cpu1 300002500000 1600000 - true unknown - -",
            "cpu1 300004105000 400000 - true unknown - -",
        ]
    );
    assert_eq!((imported.summary.incomplete_episodes, &imported.summary.notes), (1, &vec![]));
    assert_eq!(imported.reader.metadata().other["dwell.arch"], "aarch64");
    let asked = PerfOptions { arch: Some(Arch::X86_64), ..PerfOptions::default() };
    let notes = any_with(asked, text).unwrap().summary.notes;
    assert_eq!(notes, ["the text is of aarch64 by its header, and read as of x86_64, which --arch gives"]);
    // Without the header the caller says it, or it is assumed and said.
    let text =
        String::from_utf8_lossy(text).replace("# arch : aarch64\n", "").replace("6.12.0-arm64", "6.12.0");
    let asked = PerfOptions { arch: Some(Arch::Arm64), ..PerfOptions::default() };
    assert_eq!(any_with(asked, text.as_bytes()).unwrap().rows(), imported.rows());
    let notes = any(text.as_bytes()).unwrap().summary.notes;
    assert!(notes[0].contains("assumed (--arch"), "{notes:?}");
    // The release of a distributor may say it.
    for release in ["6.12.0-arm64", "6.12.0-55.el10.aarch64"] {
        let text = text.replace("6.12.0", release);
        assert_eq!(any(text.as_bytes()).unwrap().rows(), imported.rows());
    }
}

/// `perf record -k`: only one of these is since boot.
#[test]
fn the_clock_is_that_of_the_header() {
    use dwell_recording::Clock;
    let text = String::from_utf8_lossy(file!("03-perf-arm64-guest.txt"));
    let without: String = text.split_inclusive('\n').filter(|line| !line.contains("clockid")).collect();
    let clock =
        |header: &str| any((header.to_owned() + &without).as_bytes()).unwrap().reader.metadata().clock;
    assert_eq!(clock(""), Clock::Perf);
    assert_eq!(clock("# clockid: monotonic (1)\n"), Clock::Monotonic);
    assert_eq!(clock("# clockid: realtime (0)\n"), Clock::Unknown);
    let tai = without.replace("   300.00", "   1795698000.00");
    assert_eq!(any(tai.as_bytes()).unwrap().reader.metadata().clock, Clock::Unknown);
}

/// A CPU that idles all the time.
#[test]
fn idle_times_without_an_end_are_named() {
    let line = "a 0 [000] 1.000001: power:cpu_idle: state=1 cpu_id=0\n";
    assert!(
        refused(line.as_bytes()).ends_with("; 1 began before it, or had no end in it; record for longer")
    );
}

/// State 0 of haltpoll polls on every x86.
#[test]
fn x86_with_32_bits_idles_as_with_64() {
    let line = |us: u32, state: u32| format!("a 0 [000] 1.{us:06}: power:cpu_idle: state={state} cpu_id=0\n");
    let lines = [(0, 0), (10, u32::MAX), (20, 0), (30, 1), (50, u32::MAX)].map(|(us, state)| line(us, state));
    let rows = |arch: &str| {
        any(format!("# arch : {arch}\n{}", lines.concat()).as_bytes()).unwrap().rows().join("\n")
    };
    assert_eq!(rows("i686"), rows("x86_64"));
    assert_ne!(rows("i686"), rows("ppc"));
}

/// ftrace's text has no header, but the interrupt of the timer has another name on each architecture.
#[test]
fn the_timer_shows_the_architecture() {
    let idle =
        |us: u32, state: u32| format!("<idle>-0 [000] d..2. 1.{us:06}: cpu_idle: state={state} cpu_id=0\n");
    let timer =
        |name: &str| format!("<idle>-0 [000] d.h2. 1.000040: irq_handler_entry: irq=11 name={name}\n");
    let text =
        |name: &str| idle(0, 0) + &timer(name) + &idle(50, u32::MAX) + &idle(55, 0) + &idle(95, u32::MAX);
    for (name, arch) in [("arch_timer", "aarch64"), ("riscv-timer", "riscv64")] {
        let imported = any(text(name).as_bytes()).unwrap();
        let rows = ["cpu0 1000000000 40000 - true timer 10000 -", "cpu0 1000055000 40000 - true unknown - -"];
        assert_eq!(imported.rows(), rows);
        assert_eq!(imported.reader.metadata().other["dwell.arch"], arch);
        assert_eq!(imported.summary.notes, [""; 0]);
    }
    assert!(any(text("virtio0-input.0").as_bytes()).unwrap().summary.notes[0].contains("assumed"));
}

#[test]
fn case_07_differences_are_no_times() {
    // Five lines are enough, since the first difference is 0.
    let few: Vec<&[u8]> =
        file!("07-perf-deltatime.txt").split_inclusive(|&byte| byte == b'\n').take(5).collect();
    assert!(refused(&few.concat()).contains("these are no times but differences"));
    let error = refused(file!("07-perf-deltatime.txt"));
    assert_eq!(
        error,
        "t: times go back in 2 of 10 events: these are no times but differences, as `perf script --deltatime` prints them; \
         make the text without that option"
    );
}

/// The texts of several CPUs, one after another.
#[test]
fn lines_that_are_not_sorted_by_time_are_refused() {
    let cpu = |cpu: u32| {
        (0..2_000).flat_map(move |at: u64| {
            [(0, 1), (40, u32::MAX)].map(|(us, state)| {
                let us = 100 * at + us;
                format!("swapper 0 [00{cpu}] 7.{us:06}: power:cpu_idle: state={state} cpu_id={cpu}\n")
            })
        })
    };
    let text: String = cpu(0).chain(cpu(1)).collect();
    let error = refused(text.as_bytes());
    assert!(error.starts_with("t: line 4001 is earlier than lines before it, as "), "{error}");
    assert!(error.ends_with("print substr($0, RSTART) \"\\t\" $0}' FILE | sort -sn | cut -f2-"), "{error}");
    // Those of one CPU: not what `--deltatime` prints.
    let mut lines: Vec<String> = cpu(0).collect();
    lines.rotate_left(1_000);
    (0..1_000).for_each(|at| lines.swap(at, 3_999 - at * 3));
    assert!(refused(lines.concat().as_bytes()).contains("sort the lines by time"));
}

/// ftrace's clock `uptime`, and the scheduler's clock of a machine that has no better one.
#[test]
fn times_that_count_ticks_of_the_timer_are_refused() {
    let line = |ms: u32, state: u32| {
        format!("<idle>-0 [001] d..2. 100.{ms:03}000: cpu_idle: state={state} cpu_id=1\n")
    };
    let lasting =
        |ms: u32| -> String { (0..8).map(|at| line(12 * at, 1) + &line(12 * at + ms, u32::MAX)).collect() };
    let text = lasting(12);
    let error = refused(text.as_bytes());
    assert!(error.starts_with("t: every time is a multiple of 4 ms, as of a clock that counts"), "{error}");
    // Within a tick are the end of an idle time and the begin of the next; of what was written by hand they are not.
    for fine in [text.replacen("100.000000", "100.000017", 1), lasting(4)] {
        assert_eq!(any(fine.as_bytes()).unwrap().summary.episodes, 8);
    }
}

#[test]
fn events_that_are_all_at_one_time_are_refused() {
    let line = |state: u32| format!("swapper 0 [001] 5.000017: power:cpu_idle: state={state} cpu_id=1\n");
    let text = |pairs: usize| (line(1) + &line(u32::MAX)).repeat(pairs);
    let error = refused(text(4).as_bytes());
    assert!(
        error.starts_with("t: all 8 events have the time 5.000017 s, so that no idle time has a"),
        "{error}"
    );
    assert!(refused(text(4).replace("5.000017", "0.000000").as_bytes()).starts_with("t: all 8 events have"));
    // A trace of a moment.
    assert_eq!(any(text(3).as_bytes()).unwrap().summary.episodes, 3);
}

/// `cat trace.txt strace.txt`.
#[test]
fn another_text_in_the_same_file_is_noted() {
    let perf = "swapper 0 [001] 5.000000: power:cpu_idle: state=1 cpu_id=1\n\
                \tffffffff81000000 foo..bar+0x12 ([kernel.kallsyms])\n\
                swapper 0 [001] 5.000017: power:cpu_idle: state=4294967295 cpu_id=1\n";
    let of = |file: &[u8]| String::from_utf8_lossy(file).into_owned();
    let (strace, qemu) = (of(file!("16-strace-event-loop.txt")), of(file!("15-libvirt-qemu.log")));
    let domstats = of(file!("11-domstats-t0.txt"));
    // Before the columns of a table may be a few other lines.
    let table = "\n".repeat(16) + "start_ns,idle_ns\n5,10\n";
    for (first, second, at, what) in [
        (perf, &strace, 4, "is of strace, which slows what it traces; "),
        (perf, &domstats, 4, "has counters of `virsh domstats`, no episodes; "),
        (perf, &table, 20, "has the columns of a table; import that by itself"),
        (&qemu, &strace, 27, "is of strace, which slows what it traces; "),
        (&qemu, &perf.to_owned(), 27, "is an event of perf, trace-cmd or ftrace; import these by themselves"),
    ] {
        let (alone, both) =
            (any(first.as_bytes()).unwrap(), any(format!("{first}{second}").as_bytes()).unwrap());
        assert_eq!(alone.rows(), both.rows());
        let wanted = format!("line {at} is not used, nor are others like it: it {what}");
        let notes = both.summary.notes;
        assert!(notes.iter().any(|note| note.starts_with(&wanted)), "{notes:?}\n{wanted}");
        assert!(!alone.summary.notes.iter().any(|note| note.contains("not used, nor")));
    }
}

/// What `ts` of moreutils and the syslog put in front.
#[test]
fn times_in_front_of_the_lines_are_not_part_of_names() {
    let line = |at: u32, before: &str| {
        format!(
            "{before}       CPU 1/KVM  77/79 [001] 5.00{at:04}000: kvm:kvm_vcpu_wakeup: wait time 5000 ns, polling valid\n"
        )
    };
    let plain = any((line(10, "") + &line(20, "")).as_bytes()).unwrap().rows();
    for before in ["Nov 25 10:00:0N ", "1764064800.12345N ", "<30>1 2026-11-25T10:00:0NZ host app 12 - - "] {
        let text = line(10, &before.replace('N', "1")) + &line(20, &before.replace('N', "2"));
        assert_eq!(any(text.as_bytes()).unwrap().rows(), plain, "{text}");
    }
    let qemu = "Nov 25 10:00:00 poll_grow ctx 0x5 old 0 new 4000\n";
    let error = refused(qemu.as_bytes());
    assert!(
        error.contains("; what is before the event is no time that QEMU or the syslog writes: remove it"),
        "{error}"
    );
}

/// Of CPU 12, by `cut -c`.
#[test]
fn a_number_of_a_cpu_that_was_cut_off_is_seen() {
    let line = "swapper 0 [012] 7.000001: power:cpu_idle: state=1 cpu_id=1\n";
    assert!(refused(line.as_bytes()).contains("if lines were wrapped or cut off"));
}

/// `-F comm,pid`: the threads of a process would be one vCPU.
#[test]
fn vcpus_are_told_apart_by_the_names_of_their_threads_too() {
    let line = |comm: &str, us: u32| {
        format!("{comm} 6090 [001] 5.{us:06}: kvm:kvm_vcpu_wakeup: wait time 400 ns, polling valid\n")
    };
    for (first, second) in [("CPU 0/KVM", "CPU 1/KVM"), ("fc_vcpu 0", "fc_vcpu 1"), ("vcpu0", "vcpu1")] {
        let error = refused((line(first, 10) + &line(second, 20)).as_bytes());
        assert!(error.starts_with("t: line 2 is of vCPU 1, but 6090 ran vCPU 0 before"), "{error}");
    }
    // The number of the local APIC need not be that of the name.
    let numbered = "CPU 3/KVM 6090 [001] 5.000005: kvm:kvm_halt_poll_ns: vcpu 4: halt_poll_ns 1 (grow 0)\n";
    assert!(any((numbered.to_owned() + &line("CPU 3/KVM", 10)).as_bytes()).is_ok());
}

/// Lines of different CPUs may be out of order by what perf's buffers hold.
#[test]
fn lines_of_different_cpus_may_be_out_of_order() {
    let line = |cpu: u32, us: u64, state: u32| {
        format!("swapper 0 [00{cpu}] 1.{us:06}: power:cpu_idle: state={state} cpu_id={cpu}\n")
    };
    let text: String = (0..20)
        .map(|at| {
            line(0, 100 + 10 * at, 1)
                + &line(0, 105 + 10 * at, u32::MAX)
                + &line(1, 90 + 10 * at, 1)
                + &line(1, 95 + 10 * at, u32::MAX)
        })
        .collect();
    assert_eq!(any(text.as_bytes()).unwrap().summary.episodes, 40);
}

#[test]
fn case_08_a_missing_column_is_named_with_the_option_that_adds_it() {
    let text = file!("08-perf-fields-no-task.txt");
    assert_eq!(
        refused(text),
        "t: line 2 has no thread, which `kvm:kvm_exit` needs; use `perf script -F +comm,+tid`"
    );
    let error = ExitTable::read(Input::new("t", &text[..]).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "t: line 1 has no thread, by which vCPUs are told apart; use `perf script -F +comm,+tid`"
    );
    let with: String =
        String::from_utf8_lossy(text).lines().map(|line| format!("CPU 0/KVM 77 {line}\n")).collect();
    let rows = any(with.as_bytes()).unwrap().rows();
    assert_eq!(
        rows,
        [
            "CPU 0/KVM/tid77 770850308800 104200 0 true - - -",
            "CPU 0/KVM/tid77 770850521100 5900 - false - - -"
        ]
    );
    // CPUs need no thread.
    let idle = "[001] 1.000000: power:cpu_idle: state=1 cpu_id=1\n[001] 1.000010: power:cpu_idle: state=4294967295 cpu_id=1\n";
    assert_eq!(any(idle.as_bytes()).unwrap().rows(), ["cpu1 1000000000 10000 - true unknown - -"]);
}

/// `perf script -F comm,pid` writes the process where `-F comm,tid` writes the thread.
#[test]
fn a_text_with_processes_in_place_of_threads_is_refused() {
    let line = |ids: &str, vcpu: u32, ns: u32| {
        format!(
            "CPU {vcpu}/KVM {ids} [00{vcpu}] 1.00000{ns}: kvm:kvm_exit: vcpu {vcpu} reason HLT rip 0x1 info1 0x0\n"
        )
    };
    let what = |at: u32, vcpu: u32, first: u32| {
        format!(
            "t: line {at} is of vCPU {vcpu}, but 77 ran vCPU {first} before: 77 is a process, and vCPUs are told apart by \
             threads; use `perf script -F +pid,+tid`"
        )
    };
    let processes = [line("77", 1, 1), line("77", 1, 2), line("77", 0, 3)].concat();
    let exits =
        |text: &str| ExitTable::read(Input::new("t", text.as_bytes()).unwrap()).unwrap_err().to_string();
    assert_eq!(exits(&processes), what(3, 0, 1));
    let polls = "q 77 1.000001: kvm:kvm_halt_poll_ns: vcpu 0: halt_poll_ns 10000 (grow 0)\n\
                 q 77 1.000002: kvm:kvm_halt_poll_ns: vcpu 2: halt_poll_ns 10000 (grow 0)\n";
    assert_eq!(refused(polls.as_bytes()), what(2, 2, 0));
    // One thread may run several vCPUs, and each vCPU may have its own.
    let one_thread = [line("70/77", 1, 1), line("70/77", 0, 2)].concat();
    let threads = [line("77", 1, 1), line("78", 0, 2)].concat();
    for text in [one_thread, threads] {
        assert!(!exits(&text).contains("is a process"), "{text}");
    }
}

#[test]
fn case_09_qemu_trace_stap() {
    let imported = any(file!("09-qemu-trace-stap.log")).unwrap();
    assert_eq!(
        imported.rows(),
        [
            "ctx-0x558e2c0d9f40 1764064800123456789 23323 4000 true unknown - -",
            "ctx-0x558e2c0d9f40 1764064800123500000 5250 8000 false io - -",
            "ctx-0x558e2c0d9f40 1764064800123600000 300000 8000 true unknown - -",
        ]
    );
    assert_eq!(imported.reader.metadata().resolution_ns, Some(1));
}

#[test]
fn case_12_files_of_the_recorders_themselves() {
    assert_eq!(
        refused(file!("12-perf.data")),
        "t: is a perf.data of perf; make a text with `perf script --ns --header --show-task-events -F +pid -i t > FILE.txt`"
    );
    // Of s390x.
    assert!(refused(b"2ELIFREP\0\0\0\0").starts_with("t: is a perf.data of perf; "));
    assert_eq!(
        refused(file!("12-trace.dat")),
        "t: is a trace.dat of trace-cmd; make a text with `trace-cmd report -t -i t > FILE.txt`"
    );
}

#[test]
fn a_command_that_is_printed_can_be_given_to_a_shell() {
    let refused = |name: &str, bytes: &[u8]| Input::new(name, bytes).err().unwrap().to_string();
    let (perf, mut packed) = (b"PERFILE2\0", GzEncoder::new(vec![], Compression::fast()));
    let plain = refused("tom's perf.data", perf);
    assert!(plain.contains(r"-i 'tom'\''s perf.data' > FILE.txt`"), "{plain}");
    packed.write_all(perf).unwrap();
    for refused in [refused("a.gz", &packed.finish().unwrap()), refused(STDIN, perf)] {
        assert!(refused.contains("save it as a plain file") && !refused.contains("perf script"), "{refused}");
    }
}

#[test]
fn case_13_without_names_relative_times_and_a_loss() {
    let imported = any(file!("13-perf-tid-reltime-lost.txt")).unwrap();
    assert_eq!(imported.rows(), ["cpu4 300 1800 - true ipi 2400 -", "cpu4 101000 80000 - true unknown - -"]);
    assert_eq!(imported.summary.lost.events, Some(7));
}

/// The same events as QEMU's log has them, in the log of a container and in ftrace's buffer.
#[test]
fn lines_of_qemu_behind_those_of_others() {
    let log = String::from_utf8_lossy(file!("15-libvirt-qemu.log"));
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("@17640648")).collect();
    let rows = |line: &dyn Fn(&str) -> String| {
        let text: String = lines.iter().map(|text| line(text) + "\n").collect();
        any(text.as_bytes()).unwrap().rows()
    };
    let plain = rows(&|line| line.to_owned());
    assert_eq!(plain.len(), 4);
    assert_eq!(rows(&|line| format!("2025-11-25T10:00:02.000000000Z stdout F {line}")), plain);
    for before in ["> ", "5:", "     5\t", "vm.log:", "\x1b[31m"] {
        assert_eq!(rows(&|line| format!("{before}{line}")), plain);
    }
    let of_process = |line: &str| line.replace('.', "").replacen(':', "000 ", 1);
    let exact = rows(&|line| of_process(line));
    assert_eq!(rows(&|line| format!("5:{}", of_process(line))), exact);
    let marked = |name: &str, line: &str| {
        let (tid, rest) = line.split_once('@').unwrap();
        let (time, event) = rest.split_once(':').unwrap();
        format!(" qemu-system-x86-{tid}  [002] ..... {time}: {name}tracing_mark_write: {event}")
    };
    assert_eq!(rows(&|line| marked("", line)), plain);
    assert_eq!(rows(&|line| marked("print:                ", line)), plain);
}

#[test]
fn probes_of_qemu_by_perf_are_named_with_what_to_do() {
    let line = "IO io1 7 [002] 1.000001: sdt_qemu:run_poll_handlers_begin: (55d0aa2f9f40) arg1=94 arg2=32768 arg3=-1\n";
    assert!(refused(line.as_bytes()).contains("; use `qemu-trace-stap run "));
}

#[test]
fn case_15_the_log_of_libvirt() {
    let imported = any(file!("15-libvirt-qemu.log")).unwrap();
    let mut rows = imported.rows();
    rows.sort();
    assert_eq!(
        rows,
        [
            "ctx-0x55d0aa2f9f40 1764064802100000000 21000 32768 false io - -",
            "ctx-0x55d0aa2f9f40 1764064802100100000 240000 32768 true unknown - -",
            "ctx-0x55d0aa2f9f40 1764064802101000000 3000 4000 false io - -",
            "ctx-0x55d0aa2fb180 1764064802100010000 10000 4000 true unknown - -",
        ]
    );
    assert_eq!(imported.summary.incomplete_episodes, 1);
}

#[test]
fn case_16_strace_is_named_with_what_records_the_same() {
    assert!(
        refused(file!("16-strace-event-loop.txt"))
            .starts_with("is of strace, which slows what it traces; record")
    );
    let asked = PerfOptions { layer: Some(Layer::Iothread), ..PerfOptions::default() };
    let text = "a 1/2 [001] 1.000360: irq_vectors:local_timer_entry: vector=236\n";
    let error = any_with(asked, text.as_bytes()).err().unwrap();
    assert!(error.contains("record threads with `perf record -a -e 'syscalls:sys_enter_*poll*'"), "{error}");
}

#[test]
fn case_17_system_calls_of_arm() {
    let imported = any(file!("17-perf-arm64-raw-syscalls.txt")).unwrap();
    let rows: Vec<String> =
        imported.rows().iter().map(|row| row.split(' ').take(3).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(rows, ["redis-server/900 300000000000 180000", "redis-server/900 300000200000 700000"]);
    // trace-cmd's text has no header.
    let line = |us: u32, text: &str| format!("redis-900 [001] 1.{us:06}: sys_{text}\n");
    let text = line(100, "enter: NR 22 (5, ffffd2d0, 400, 64, 0, 8)") + &line(280, "exit: NR 22 = 1");
    assert!(refused(text.as_bytes()).contains("; the text does not say of which architecture it is"));
    let asked = PerfOptions { arch: Some(Arch::Arm64), ..PerfOptions::default() };
    assert_eq!(any_with(asked, text.as_bytes()).unwrap().summary.episodes, 1);
}

#[test]
fn a_loop_that_never_waits_is_named() {
    let line = |us: u32, text: &str| format!("a 7 [001] 1.{us:06}: syscalls:sys_{text}\n");
    let enter = "enter_epoll_wait: epfd: 0x4, events: 0x5, maxevents: 0xc8, timeout: 0x00000000";
    let text = line(100, enter) + &line(101, "exit_epoll_wait: 0x0");
    assert!(refused(text.as_bytes()).contains("; no call waited: all had a timeout of 0"));
}

/// The same trace as four tools print it, from one `trace.dat` and ftrace's own file.
#[test]
fn one_trace_gives_one_recording_in_every_dialect() {
    let perf = "\
swapper 0 [001] 10.000000000: power:cpu_idle: state=1 cpu_id=1
swapper 0 [000] 10.000080000: sched:sched_waking: comm=a b-3 pid=7 prio=120 target_cpu=001
swapper 0 [001] 10.000100000: power:cpu_idle: state=4294967295 cpu_id=1
swapper 0 [001] 10.000200000: power:cpu_idle: state=1 cpu_id=1
swapper 0 [001] 10.000290000: irq_vectors:local_timer_entry: vector=236
swapper 0 [001] 10.000300000: power:cpu_idle: state=4294967295 cpu_id=1
";
    let ftrace = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 6/9   #P:2
          <idle>-0       (-----) [001] d..2.    10.000000: cpu_idle: state=1 cpu_id=1
          <idle>-0       (-----) [000] dNh4.    10.000080: sched_waking: comm=a b-3 pid=7 prio=120 target_cpu=001
          <idle>-0       (-----) [001] d..2.    10.000100: cpu_idle: state=4294967295 cpu_id=1
          <idle>-0       (-----) [001] d..2.    10.000200: cpu_idle: state=1 cpu_id=1
          <idle>-0       (-----) [001] d.h3.    10.000290: local_timer_entry: vector=236
          <idle>-0       (-----) [001] d..2.    10.000300: cpu_idle: state=4294967295 cpu_id=1
";
    let plain = ftrace
        .replace("       (-----) [00", "     [00")
        .replace("d..2.", "")
        .replace("d.h3.", "")
        .replace("dNh4.", "");
    let latency = ftrace.replace("       (-----) [001] ", "    1").replace("       (-----) [000] ", "    0");
    let rows = any(perf.as_bytes()).unwrap().rows();
    assert_eq!(
        rows,
        ["cpu1 10000000000 80000 - true ipi 20000 -", "cpu1 10000200000 90000 - true timer 10000 -"]
    );
    for text in [ftrace, &plain, &latency] {
        let imported = any(text.as_bytes()).unwrap();
        assert_eq!((imported.rows(), imported.summary.lost.events), (rows.clone(), Some(3)), "{text}");
    }
    let dropped = plain.replace("#P:2\n", "#P:2\nCPU:1 [12 EVENTS DROPPED]\n");
    assert_eq!(any(dropped.as_bytes()).unwrap().summary.lost.events, Some(15));
}

#[test]
fn tables_as_pandas_spreadsheets_and_bpftrace_write_them() {
    use dwell_trace::import::csv::{import as table, usual_idler};
    let read = |text: &str| {
        import(text.as_bytes(), Layer::Guest, |input, writer| table(input, usual_idler(Layer::Guest), writer))
    };
    let plain =
        read("idler,start_ns,idle_ns,halted\ncpu1,200000,1000,true\ncpu1,300000,7,\n").unwrap().rows();
    assert_eq!(plain, ["cpu1 200000 1000 - true - - -", "cpu1 300000 7 - - - - -"]);
    for text in [
        ",idler,start_ns,idle_ns,halted\n0,cpu1,200000.0,1000.0,True\n1,cpu1,300000.0,7.0,\n",
        "Unnamed: 0,idler,start_ns,idle_ns,halted\n0,cpu1,200000,1000,1.0\n1,cpu1,300000,7,nan\n",
        "idler;start_ns;idle_ns;halted\ncpu1;200000;1000;1\ncpu1;300000;7;\n",
        "idler\tstart_ns\tidle_ns\thalted\ncpu1\t200000\t1000\ttrue\ncpu1\t300000\t7\t\n",
        "Attaching 2 probes...\n\nidler,start_ns,idle_ns,halted\ncpu1,200000,1000,true\ncpu1,300000,7,\n",
        "\"idler\";\"start_ns\";\"idle_ns\";\"halted\"\n\"cpu1\";200000;1000;TRUE\ncpu1;300000;7;\n",
    ] {
        assert_eq!(read(text).unwrap().rows(), plain, "{text}");
    }
    for (text, what) in [
        ("start_ns,idle_ns\n5,1.5\n", "is not a whole number of nanoseconds"),
        ("start_ns,idle_ns\n5,1e3\n", "is not a whole number of nanoseconds"),
        // A thousand in some languages.
        ("start_ns;idle_ns\n1.000;1\n", "is not a whole number of nanoseconds"),
        ("start_ns,idle_ns,\n5,1,\n", "unknown column ``"),
    ] {
        assert!(read(text).err().unwrap().contains(what), "{text}");
    }
}

/// Of `1200` there may be `12` left.
#[test]
fn a_table_whose_last_line_has_no_end_may_be_cut_off() {
    use dwell_trace::import::csv::import as table;
    let notes = |text: &str| {
        import(text.as_bytes(), Layer::Guest, |input, writer| table(input, "cpu0", writer))
            .unwrap()
            .summary
            .notes
    };
    assert!(notes("start_ns,idle_ns\n5,12")[0].starts_with("the last line has no line break"));
    assert_eq!(notes("start_ns,idle_ns\n5,12\n"), [""; 0]);
}

#[test]
fn text_may_be_compressed_with_xz_and_zstd() {
    let text = file!("13-perf-tid-reltime-lost.txt");
    let plain = any(text).unwrap().rows();
    assert_eq!(any(&zstd::encode_all(&text[..], 1).unwrap()).unwrap().rows(), plain);
    assert_eq!(any(file!("13.xz")).unwrap().rows(), plain);
    let cut = &file!("13.xz")[..100];
    assert!(refused(cut).contains("the xz data is cut off or damaged"));
}

/// A frame of `zstd --long=31`.
#[test]
fn what_zstd_does_not_decompress_without_asking_is_named() {
    let error = refused(b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00");
    assert!(
        error.contains("; its zstd data refers back by more than 128 MiB (`zstd --long=28` to 31): `zstd"),
        "{error}"
    );
    assert!(error.contains(" -dc --long=31 FILE | dwell import -` reads it"), "{error}");
}

#[test]
fn a_trace_of_perfetto_and_a_page_of_systrace_are_refused_with_what_makes_a_text() {
    let trace = refused(file!("../android.perfetto-trace"));
    assert!(trace.contains("is a trace of Perfetto; make a text with `traceconv systrace"), "{trace}");
}

/// One log as each of QEMU's back ends and their tools write it: the same episodes, each with what its times resolve.
#[test]
fn one_log_of_qemu_gives_the_same_episodes_in_every_form() {
    // Name, arguments by name, and the time [us]; of the form of the log, where it has words that are no arguments.
    let lines = [
        (
            100.5,
            "run_poll_handlers_begin",
            "ctx=0x56 max_ns=4000 timeout=-1",
            "ctx 0x56 max_ns 4000 timeout -1",
        ),
        (
            105.0,
            "run_poll_handlers_end",
            "ctx=0x56 progress=0 timeout=-1",
            "ctx 0x56 progress 0 new timeout -1",
        ),
        (130.25, "poll_grow", "ctx=0x56 old=4000 new=8000", "ctx 0x56 old 4000 new 8000"),
        (
            140.0,
            "run_poll_handlers_begin",
            "ctx=0x56 max_ns=8000 timeout=-1",
            "ctx 0x56 max_ns 8000 timeout -1",
        ),
        (
            145.0,
            "run_poll_handlers_end",
            "ctx=0x56 progress=1 timeout=0",
            "ctx 0x56 progress 1 new timeout 0",
        ),
    ];
    let each = |line: &dyn Fn(f64, &str, &str, &str) -> String| -> Vec<String> {
        let text: String =
            lines.iter().map(|(us, name, fields, log)| line(*us, name, fields, log) + "\n").collect();
        let imported = any(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
        let first = imported.reader.metadata().recorded.unwrap().start_ns;
        let row = |row: String| {
            let words: Vec<&str> = row.split(' ').collect();
            let start: u64 = words[1].parse().unwrap();
            format!("{} {}", start - first, words[2..6].join(" "))
        };
        imported.rows().into_iter().map(row).collect()
    };
    let exact = ["0 29750 4000 true unknown", "39500 5000 8000 false io"];
    let micros = ["0 30000 4000 true unknown", "40000 5000 8000 false io"];
    let hex = |fields: &str| -> String {
        let number = |field: &str| {
            let (name, value) = field.split_once('=').unwrap();
            let value = value.parse::<i64>().map_or_else(|_| value.to_owned(), |value| format!("{value:#x}"));
            format!("{name}={value}")
        };
        fields.split(' ').map(number).collect::<Vec<_>>().join(" ")
    };
    let last = std::cell::Cell::new(0.0);
    assert_eq!(
        each(&|us, name, fields, _| {
            let delta = us - last.replace(us);
            format!("{name} {delta:.3} pid=7 {}", hex(fields))
        }),
        exact
    );
    assert_eq!(
        each(&|us, name, fields, _| {
            let fields = fields.replace('=', " = ").replacen(" ctx", "ctx", 1).replace(" max", ", max");
            let fields = ["timeout", "progress", "old", "new"]
                .iter()
                .fold(fields, |fields, name| fields.replace(&format!(" {name} ="), &format!(", {name} =")));
            format!(
                "[10:00:00.{:09}] (+?.?????????) host qemu:{name}: {{ cpu_id = 3 }}, {{ {fields} }}",
                us * 1e3
            )
        }),
        exact
    );
    for head in ["Nov 25 10:00:00.", "2026-11-25T10:00:00."] {
        let zone = if head.contains('T') { "+01:00" } else { "" };
        let line = |us: f64, name: &str, log: &str| {
            format!("{head}{:06}{zone} host qemu-system-x86_64[7]: {name} {log}", us.trunc())
        };
        assert_eq!(each(&|us, name, _, log| line(us, name, log)), micros, "{head}");
    }
    // `journalctl -o short-unix`
    let line =
        |us: f64, name: &str, log: &str| format!("1764064802.{:06} host qemu[7]: {name} {log}", us.trunc());
    assert_eq!(each(&|us, name, _, log| line(us, name, log)), micros);
    // QEMU 2.9 to 3.0
    assert_eq!(
        each(&|us, name, _, log| {
            let log = log.split(" new timeout").next().unwrap().replace(" timeout -1", "");
            format!("7@1764064802.{:06}:{name} {log}", us.trunc())
        }),
        micros
    );
    // A time of whole seconds is none.
    for day in ["Nov 25 10:00:00", "Tue 2025-11-25 10:00:00 UTC"] {
        let line = |name: &str, log: &str| format!("{day} host qemu[7]: {name} {log}\n");
        let text: String = lines.iter().map(|(_, name, _, log)| line(name, log)).collect();
        let imported = any(text.as_bytes()).unwrap();
        assert_eq!((imported.summary.episodes, imported.summary.resolution_ns), (2, 0));
        let notes = imported.summary.notes;
        assert!(notes[0].contains("journalctl -o short-precise"), "{notes:?}");
    }
}

/// What QEMU's buffer had no room for may be the end of anything.
#[test]
fn what_simpletrace_has_dropped_is_lost() {
    let begin = "run_poll_handlers_begin 1.000 pid=7 ctx=0x56 max_ns=0x1000 timeout=0x0\n";
    let end = "run_poll_handlers_end 2.000 pid=7 ctx=0x56 progress=0x1 timeout=0x0\n";
    let dropped = "Dropped_Event 0.500 pid=7 num_events_dropped=0x3\n";
    let imported = any(format!("{begin}{end}{begin}{dropped}{end}").as_bytes()).unwrap();
    assert_eq!((imported.summary.episodes, imported.summary.lost.events), (1, Some(3)));
    assert!(imported.summary.incomplete_episodes > 0);
}

/// QEMU's log has the time of day.
#[test]
fn a_clock_that_was_set_back_is_noted() {
    let line = |second: u32, event: &str| format!("7@17640648{second:02}.000000:run_poll_handlers_{event}\n");
    let text =
        line(2, "begin ctx 0x56 max_ns 4096 timeout -1") + &line(1, "end ctx 0x56 progress 1 new timeout 0");
    let notes = any(text.as_bytes()).unwrap().summary.notes;
    assert!(notes[0].starts_with("line 2 is 1000 ms earlier than lines before it"), "{notes:?}");
}

/// What the syslog leaves out of a log of thousands of lines a second.
#[test]
fn what_the_syslog_has_suppressed_is_lost() {
    let line = |event: &str| format!("Nov 25 10:00:00.123456 host qemu[7]: run_poll_handlers_{event}\n");
    let begin = line("begin ctx 0x56 max_ns 4096 timeout 0");
    let end = line("end ctx 0x56 progress 1 new timeout 0");
    for (message, lost) in [
        ("systemd-journald[5]: Suppressed 2215 messages from vm.service", 2215),
        (
            "rsyslogd: imuxsock[pid 7]: 225 messages lost due to rate-limiting (200 allowed within 5 seconds)",
            225,
        ),
        ("WARNING: There were 153 transport failures.", 153),
        ("WARNING: Number of errors: 0, skipped probes: 15", 15),
    ] {
        let message = format!("Nov 25 10:00:00 host {message}\n");
        let imported = any(format!("{begin}{end}{begin}{message}{end}").as_bytes()).unwrap();
        assert_eq!((imported.summary.episodes, imported.summary.lost.events), (1, Some(lost)));
    }
}

/// `kvm_s390_sie_exit` to `kvm_s390_sie_enter` is an exit, and names the vCPU.
#[test]
fn exits_of_s390_are_counted() {
    let line = |us: u32, event: &str, text: &str| {
        format!(
            "CPU 0/KVM 77 [001] 5.{us:06}: kvm:kvm_s390_sie_{event}: 00[0706c00180000000-0000000000112233]: {text}\n"
        )
    };
    let text = line(1, "enter", "entering sie flags 0")
        + &line(10, "exit", "exit sie icptcode 28 (Wait state)")
        + &line(510, "enter", "entering sie flags 0")
        + &line(520, "exit", "exit sie icptcode 4 (Instruction)")
        + "CPU 0/KVM 77 [001] 5.000523: kvm:kvm_s390_intercept_instruction: 00[0-1]: intercepted instruction 83 (DIAG)\n"
        + &line(525, "enter", "entering sie flags 0");
    let table = ExitTable::read(Input::new("t", text.as_bytes()).unwrap()).unwrap();
    let rows: Vec<_> =
        table.rows.iter().map(|row| (row.reason.as_str(), row.samples, row.total_ns)).collect();
    assert_eq!(rows, [("Instruction", 1, 5_000), ("Wait state", 1, 500_000)]);
    let wakeup = "CPU 0/KVM 77 [001] 5.000509: kvm:kvm_vcpu_wakeup: wait time 400 ns, polling valid\n";
    let imported = any((text + wakeup).as_bytes()).unwrap();
    assert_eq!(imported.rows()[0].split(' ').nth(2), Some("5000508600"));
    assert_eq!(imported.reader.metadata().other["dwell.arch"], "s390x");
    assert_eq!(imported.reader.metadata().other["dwell.vcpus"]["CPU 0/KVM/tid77"]["vcpu_id"], 0);
}
