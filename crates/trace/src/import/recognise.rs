//! What a text is, by its first lines.

use super::perf::{Line, has_time, named_in};
use super::qemu;
use super::{Input, InputError, text};
use crate::event::TracepointKind;

/// How much of a text is looked at.
const LOOK_AHEAD: u64 = 1 << 20;

/// How a file of QEMU's back end `simple` begins.
const SIMPLE: &[u8] = b"\xff\xff\xff\xff\xff\xff\xff\xff\xb4\x29\xa4\x0a\xcb\x77\xb1\xf2";

/// What a text was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `perf script`, `trace-cmd report` or ftrace: [`perf`](super::perf).
    Events,
    /// QEMU's trace of its event loops: [`qemu`](super::qemu).
    Qemu,
    /// A table of episodes: [`csv`](super::csv).
    Csv,
    /// What no importer reads.
    Foreign(Foreign),
}

dwell_policy::named! {
    /// A text of another kind, which people have.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Foreign {
        Strace =
            "is of strace, which slows what it traces; record the same calls with `dwell record thread --pid PID`, or \
            `perf record -e 'syscalls:sys_enter_*poll*' -e 'syscalls:sys_exit_*poll*'`",
        PerfTrace =
            "is of `perf trace`; record the same events with `perf record`, and make the text with \
            `perf script --ns --header`; of calls that wait also with `dwell record thread --pid PID`",
        /// Of bpftrace: its first line, or maps that it prints.
        Bpftrace =
            "is of bpftrace, whose output is what its program prints; print `start_ns,idle_ns` for each episode and \
            import that with `dwell import`, or record with `dwell record`",
        /// The counters that `virsh domstats` prints.
        Domstats = "has counters of `virsh domstats`, no episodes; `dwell bound FIRST SECOND --between 60s` compares two of \
            these, read 60 s apart",
        /// The counters that `kvm_stat`, debugfs and QMP's `query-stats` have.
        Counters = "has counters of KVM, no episodes; on the host itself `dwell bound` reads them, or compares two files of \
            `virsh domstats --vcpu`, and `dwell record host` records episodes",
        /// The table of `perf kvm stat report`.
        KvmStat =
            "is a table of `perf kvm stat report`, which has no episodes; import the trace that it was made of, with \
            `perf script --ns --header -i perf.data.guest`",
        /// Of `perf sched timehist` and `perf sched latency`.
        Sched = "is a table of `perf sched`; import the trace that it was made of, with `perf script --ns --header`",
        /// Of turbostat, cpupower, sysstat, top, `perf stat`, `perf report`, `strace -c`, and histograms.
        Totals = "has totals, in which no single idle time is; record with `dwell record host`, `dwell record guest` or \
            `dwell record thread`",
        /// Of LTTng: the kernel's events, as babeltrace prints them.
        Lttng = "is of LTTng, of which only QEMU's own events are read; record the kernel's with `dwell record`, \
            `trace-cmd record` or `perf record`",
        /// JSON, such as `perf data convert --to-json` and trace viewers have.
        Json = "is JSON; make a text of the trace that it was made of with `perf script --ns --header`, or of \
            a trace of Perfetto with `traceconv systrace FILE`",
        /// Of a container of KubeVirt (`msg`) or Docker (`log`): lines of QEMU in JSON.
        JsonLog = "is a log in JSON with lines of QEMU; make a text of them with `sed 's/^[^{]*//' FILE | jq -rR 'fromjson? | .msg // \
            .log'`, of journald's with `journalctl -o short-precise`",
        /// JSON with episodes.
        JsonTable = "is JSON with episodes; make a table of it with `jq -rs '\"start_ns,idle_ns\", (flatten[] | \
            [.start_ns, .idle_ns] | @csv)' FILE`",
        /// A page of systrace (HTML).
        Page = "is a page (HTML); save its plain text, or of systrace import what is in its `<script class=\"trace-data\">`: `sed -n \
            '/trace-data/,/<\\/script>/p' FILE | dwell import -`",
        /// Of QEMU's back end `simple`, in binary form.
        Simple = "is of QEMU's trace back end `simple`; make a text with `simpletrace.py trace-events-all FILE`, which comes \
            with QEMU's source",
        /// Of ftrace, by a clock that does not count in seconds.
        Ticks = "has times that are not seconds, of the clock x86-tsc, counter or uptime; record with another one, by \
            `trace-cmd record -C mono` or `echo mono > trace_clock`",
        /// Of ftrace, in another form.
        Tracer = "is of ftrace, in a form whose lines have no task, CPU and seconds; set current_tracer to nop and the options \
            latency-format, raw, hex and bin to 0, context-info to 1",
        /// Of perf, without a column for the time.
        Timeless = "has events of perf without their times (as `12.345678:`); make the text with `perf script -F +time`, or anew if \
            its lines were wrapped",
        /// Of perf, without a column for the name.
        Nameless = "has texts of events without the events' names (as `power:cpu_idle:`); make it with `perf script --ns --header`, \
            without -F or with `-F +trace`",
        /// No text.
        Bytes = "is no text in UTF-8, nor a perf.data, trace.dat or Perfetto trace; `dwell info` reads recordings, and archives \
            are unpacked first",
        /// The header of a trace, or nothing.
        Eventless =
            "has no event: nothing was recorded, or perf or trace-cmd failed; see that the VM or the load runs meanwhile",
        /// A text, of which no line is known.
        Unknown =
            "has no line of `perf script`, `trace-cmd report`, ftrace or QEMU's trace, nor a first line that names the \
            columns start_ns and idle_ns; `dwell import --help` lists what can be imported",
    }

    /// What it is and what to do, after the name of the file and a colon.
    pub fn words
}

/// Decides by the first lines; they are read again afterwards.
///
/// # Errors
/// The text cannot be read.
pub fn recognise(input: &mut Input<'_>) -> Result<Format, InputError> {
    let start = input.look_ahead(LOOK_AHEAD)?;
    Ok(of(&start))
}

fn of(start: &[u8]) -> Format {
    let lines = || start.split(|&byte| byte == b'\n').map(text);
    if start.starts_with(SIMPLE) {
        return Format::Foreign(Foreign::Simple);
    }
    if start.contains(&0) {
        return Format::Foreign(Foreign::Bytes);
    }
    let trimmed = start.trim_ascii_start();
    if trimmed.starts_with(b"{") || trimmed.starts_with(b"[{") {
        let has = |text: &str| lines().any(|line| line.contains(text));
        return Format::Foreign(match () {
            () if has("run_poll_handlers_") => Foreign::JsonLog,
            () if has(POLLS) => Foreign::Counters,
            () if has("\"start_ns\"") => Foreign::JsonTable,
            () if has("\"sysstat\"") => Foreign::Totals,
            () if has("\"attached_probes\"") => Foreign::Bpftrace,
            () => Foreign::Json,
        });
    }
    if trimmed.get(..5).is_some_and(|tag| tag.eq_ignore_ascii_case(b"<html"))
        || trimmed.starts_with(b"<!DOCTYPE html")
    {
        return Format::Foreign(Foreign::Page);
    }
    if lines().take(16).any(|line| names_columns(&line)) {
        return Format::Csv;
    }
    for line in lines() {
        if qemu::names_event(&line) {
            return if line.contains("\":\"") { Format::Foreign(Foreign::JsonLog) } else { Format::Qemu };
        }
        if matches!(Line::parse(&line), Line::Event(_)) || named_in(&line).is_some() && has_time(&line) {
            return Format::Events;
        }
        if let Some(foreign) = foreign(line.trim()) {
            return Format::Foreign(foreign);
        }
    }
    // The header of `perf script` and ftrace, and that of `trace-cmd report`.
    let heads = |line: &str| line.is_empty() || line.starts_with('#') || line.starts_with("cpus=");
    Format::Foreign(match () {
        () if lines().all(|line| heads(line.trim())) => Foreign::Eventless,
        () if lines().any(|line| line.starts_with("# tracer: ")) => Foreign::Tracer,
        () if lines().any(|line| FIELDS.iter().any(|words| words.iter().all(|word| line.contains(word)))) => {
            Foreign::Nameless
        }
        () => Foreign::Unknown,
    })
}

/// A table names its columns; other texts have no such line.
fn names_columns(line: &str) -> bool {
    line.contains("start_ns") && line.contains("idle_ns")
}

/// Of which other text a line is that an importer passes over, and what to do; that may be in the same file.
pub(super) fn of_another(line: &str) -> Option<&'static str> {
    // Of a call chain.
    if line.starts_with('\t') {
        return None;
    }
    match Line::parse(line) {
        Line::Event(event) => {
            event.tracepoint().map(|_| "is an event of perf, trace-cmd or ftrace; import these by themselves")
        }
        _ if names_columns(line) => Some("has the columns of a table; import that by itself"),
        _ => foreign(line.trim()).map(Foreign::words),
    }
}

/// Whether the time is a whole number: `[001] d..2. 1234: name: text`, perhaps without the flags.
fn has_ticks(line: &str) -> bool {
    let digits = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let is_cpu =
        |word: &&str| word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).is_some_and(digits);
    let is_time = |word: &&str| word.strip_suffix(':').is_some_and(digits);
    let mut words = line.split_whitespace().skip_while(|word| !is_cpu(word)).skip(1);
    words.by_ref().take(2).any(|word| is_time(&word)) && words.next().is_some_and(|name| name.ends_with(':'))
}

/// Whether a time in microseconds follows a CPU with flags: `1d..2.    60us!: name: text`.
fn has_micros(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| !(word.contains("..") && is_digit(word)));
    let micros = |word: &str| Some(word.split_once("us")?.0.parse::<u64>().is_ok());
    words.nth(1).and_then(micros) == Some(true)
}

fn is_digit(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

/// The counter of KVM that its other counters of halts are with.
const POLLS: &str = "halt_attempted_poll";

/// Words of which a line of a table has all, often in its head.
const TABLES: [(&[&str], Foreign); 25] = [
    (&[POLLS], Foreign::Counters),
    (&["timestamp,", "halt_"], Foreign::Counters),
    (&["kvm statistics - summary"], Foreign::Counters),
    (&["%Total", "CurAvg/s"], Foreign::Counters),
    (&["VM-EXIT "], Foreign::KvmStat),
    (&["Analyze events for "], Foreign::KvmStat),
    (&["task name", "wait time", "run time"], Foreign::Sched),
    (&["Task", "Runtime ms", "Switches"], Foreign::Sched),
    // turbostat, cpupower, and the files that they read.
    (&["Busy%", "Bzy_MHz"], Foreign::Totals),
    (&["CPUidle driver: "], Foreign::Totals),
    (&["|| Idle_Stats"], Foreign::Totals),
    (&["/cpuidle/state"], Foreign::Totals),
    // sysstat, vmstat, top.
    (&["%idle"], Foreign::Totals),
    (&["Linux ", " CPU)"], Foreign::Totals),
    (&["procs -----"], Foreign::Totals),
    (&["%Cpu(s):"], Foreign::Totals),
    (&["PID", "%CPU"], Foreign::Totals),
    // perf.
    (&["Performance counter stats for"], Foreign::Totals),
    (&["counts unit events"], Foreign::Totals),
    (&["# Overhead "], Foreign::Totals),
    (&["Summary of events:"], Foreign::Totals),
    (&["syscall ", "calls", "errors", "total"], Foreign::Totals),
    // strace, histograms of bcc and of ftrace.
    (&["% time", "seconds", "calls", "syscall"], Foreign::Totals),
    (&[": count ", "distribution"], Foreign::Totals),
    (&["# event histogram"], Foreign::Totals),
];

/// Words of which the text of an event has all, as `perf script -F trace` writes it.
const FIELDS: [[&str; 2]; 4] = [
    ["state=", " cpu_id="],
    [" time ", " ns, polling "],
    ["vcpu ", ": halt_poll_ns "],
    ["prev_pid=", " next_pid="],
];

fn foreign(line: &str) -> Option<Foreign> {
    if has_ticks(line) {
        return Some(Foreign::Ticks);
    }
    if has_micros(line) {
        return Some(Foreign::Tracer);
    }
    // `[10:00:00.000000060] (+0.000000060) host kvm_exit: { cpu_id = 1 }, { … }`
    if line.starts_with('[') && line.contains("] (+") && line.contains(": { ") {
        return Some(Foreign::Lttng);
    }
    if named_in(line).is_some() {
        return Some(Foreign::Timeless);
    }
    let attaches = line.starts_with("Attaching ") || line.starts_with("Attached ");
    if attaches && line.contains(" probe")
        || line.starts_with('@') && (line.contains(": ") || line.ends_with(':'))
    {
        return Some(Foreign::Bpftrace);
    }
    if line.starts_with("Domain: '") || line.starts_with("vcpu.") && line.contains(POLLS) {
        return Some(Foreign::Domstats);
    }
    // `0.000 CPU 0/KVM/7 kvm:kvm_vcpu_wakeup(ns: 5, …)`
    let is_traced = |name: &str| name.contains(':') && TracepointKind::from_name(name).is_some();
    if line.split(' ').filter_map(|word| word.split_once('(')).any(|(name, _)| is_traced(name)) {
        return Some(Foreign::PerfTrace);
    }
    if let Some((_, table)) = TABLES.iter().find(|(words, _)| words.iter().all(|word| line.contains(word))) {
        return Some(*table);
    }
    // `epoll_wait(4, [], 200, 103) = 0 <0.1>`, perhaps with a process and a time before it.
    let is_call = |word: &str| {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        word.split_once('(').is_some_and(|(name, _)| !name.is_empty() && name.bytes().all(is_name))
    };
    let first = line.split(' ').find(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
    let ends = line.contains(") = ") || line.contains("<unfinished");
    // `0.000 ( 0.240 ms): evloop/2525 epoll_wait(…) = 1`, and blanks for the time of a call that goes on.
    let is_timed =
        line.split_once(" (").and_then(|(_, rest)| rest.split_once("): ")).is_some_and(|(ms, _)| {
            ms.trim().is_empty() || ms.strip_suffix(" ms").is_some_and(|ms| ms.trim().parse::<f64>().is_ok())
        });
    match () {
        () if is_timed && line.split(' ').any(is_call) => Some(Foreign::PerfTrace),
        () if line.starts_with("strace: ") || ends && first.is_some_and(is_call) => Some(Foreign::Strace),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_known_by_its_lines() {
        for (text, format) in [
            (
                "# cmdline : perf\n\nswapper 0 [001] 3.000001: power:cpu_idle: state=1 cpu_id=1\n",
                Format::Events,
            ),
            (
                "cpus=8\n fc_vcpu 0-7 [003] 5.1: kvm_vcpu_wakeup: poll time 1 ns, polling valid\n",
                Format::Events,
            ),
            (
                "[10:00:00.000000001] (+?.?????????) host power_cpu_idle: { cpu_id = 3 }, { state = 1, cpu_id = 3 }\n",
                Format::Foreign(Foreign::Lttng),
            ),
            ("aio_bh 0.000 pid=7 x=0x1\npoll_grow 1.500 pid=7 ctx=0x5 old=0x0 new=0xfa0\n", Format::Qemu),
            ("2025 starting up\n1@2.000003:poll_grow ctx 0x5 old 0 new 1\n", Format::Qemu),
            ("Attaching 2 probes...\nidler;start_ns;idle_ns\n", Format::Csv),
            ("Attaching 2 probes...\n@[1]: 5\n", Format::Foreign(Foreign::Bpftrace)),
            ("Attached 2 probes\n5 7\n", Format::Foreign(Foreign::Bpftrace)),
            ("@usecs: \n[2, 4)  5 |@@@  |\n", Format::Foreign(Foreign::Bpftrace)),
            ("11:11:18.7 epoll_wait(4, [], 200, 103) = 0 <0.1>\n", Format::Foreign(Foreign::Strace)),
            ("7 1.5 epoll_pwait2(4, [], 200, NULL, NULL, 8) = 0\n", Format::Foreign(Foreign::Strace)),
            ("[pid 6101] 11:11:18.7 ioctl(22, KVM_RUN, 0) = 0 <0.0012>\n", Format::Foreign(Foreign::Strace)),
            ("warning: epoll_wait(4) = 0\n", Format::Foreign(Foreign::Unknown)),
            ("0.000 (         ): a/9 epoll_wait(epfd: 5) ...\n", Format::Foreign(Foreign::PerfTrace)),
            ("   syscall            calls  errors  total       min\n", Format::Foreign(Foreign::Totals)),
            ("{\"sysstat\": {}}\n", Format::Foreign(Foreign::Totals)),
            (
                "2025-11-25T10:00:02Z {\"msg\":\"7@1.000003:poll_grow ctx 0x5 old 0 new 1\"}\n",
                Format::Foreign(Foreign::JsonLog),
            ),
            (
                "% time     seconds  usecs/call     calls    errors syscall\n",
                Format::Foreign(Foreign::Totals),
            ),
            ("Core\tCPU\tAvg_MHz\tBusy%\tBzy_MHz\tPOLL%\n", Format::Foreign(Foreign::Totals)),
            ("CPUidle driver: haltpoll\n", Format::Foreign(Foreign::Totals)),
            (
                "           time    cpu  task name                       wait time  sch delay   run time\n",
                Format::Foreign(Foreign::Sched),
            ),
            (
                " 0.000 ( 0.240 ms): evloop/2525 epoll_wait(epfd: 4, maxevents: 200, timeout: -1) = 1\n",
                Format::Foreign(Foreign::PerfTrace),
            ),
            (
                "     0.000 CPU 0/KVM/7 kvm:kvm_vcpu_wakeup(ns: 5, waited: true, valid: true)\n",
                Format::Foreign(Foreign::PerfTrace),
            ),
            ("Domain: 'win11'\n  state.state=1\n", Format::Foreign(Foreign::Domstats)),
            ("  vcpu.0.halt_attempted_poll.sum=5\n", Format::Foreign(Foreign::Domstats)),
            ("timestamp,halt_attempted_poll,halt_exits\n", Format::Foreign(Foreign::Counters)),
            ("/sys/kernel/debug/kvm/7-9/vcpu0/halt_attempted_poll:5\n", Format::Foreign(Foreign::Counters)),
            (
                "{\"stats\":[{\"name\":\"halt_attempted_poll\",\"value\":5}]}\n",
                Format::Foreign(Foreign::Counters),
            ),
            (
                "{\"msg\":\"run_poll_handlers_begin ctx 0x5 max_ns 4 timeout -1\"}\n",
                Format::Foreign(Foreign::JsonLog),
            ),
            ("\n\nAnalyze events for all VMs, all VCPUs:\n", Format::Foreign(Foreign::KvmStat)),
            (
                "# tracer: nop\n CPU 0/KVM-7 [003] d..2. 159181253770796: kvm_exit: reason HLT\n",
                Format::Foreign(Foreign::Ticks),
            ),
            (" CPU 0/KVM-7 [003] 159181253770796: kvm_exit: reason HLT\n", Format::Foreign(Foreign::Ticks)),
            ("[1] 5: x\n", Format::Foreign(Foreign::Unknown)),
            (
                " CPU 0/KVM 7 [003] kvm:kvm_vcpu_wakeup: poll time 1 ns, polling valid\n",
                Format::Foreign(Foreign::Timeless),
            ),
            ("{\"a\": 1}", Format::Foreign(Foreign::Json)),
            ("[{\"start_ns\":10,\"idle_ns\":5}]", Format::Foreign(Foreign::JsonTable)),
            (
                "{\"log\":\"7@1.000002:run_poll_handlers_begin ctx 0x5 max_ns 4 timeout -1\\n\"}\n",
                Format::Foreign(Foreign::JsonLog),
            ),
            (
                "[10:00:00.000000060] (+0.000000060) power:cpu_idle: { cpu_id = 1 }, { state = 1, cpu_id = 1 }\n",
                Format::Foreign(Foreign::Lttng),
            ),
            (
                "# tracer: nop\n#\n  <idle>-0 1d..2.    60us!: cpu_idle: state=1 cpu_id=1\n",
                Format::Foreign(Foreign::Tracer),
            ),
            (
                "# tracer: function_graph\n 1)    |  /* cpu_idle: state=1 cpu_id=1 */\n",
                Format::Foreign(Foreign::Tracer),
            ),
            ("# tracer: nop\n#\n", Format::Foreign(Foreign::Eventless)),
            (
                "[  120.1]   <idle>-0         1d..2. 119000150us : cpu_idle: state=1 cpu_id=1\n",
                Format::Foreign(Foreign::Tracer),
            ),
            ("\nkvm statistics - summary\n", Format::Foreign(Foreign::Counters)),
            ("timestamp,exits,halt_exits,halt_wakeup\n", Format::Foreign(Foreign::Counters)),
            ("     usecs               : count     distribution\n", Format::Foreign(Foreign::Totals)),
            ("# event histogram\n#\n", Format::Foreign(Foreign::Totals)),
            (" Summary of events:\n", Format::Foreign(Foreign::Totals)),
            ("#           time             counts unit events\n", Format::Foreign(Foreign::Totals)),
            (
                "Linux 6.8.0 (vm)     11/25/2026      _x86_64_        (4 CPU)\n",
                Format::Foreign(Foreign::Totals),
            ),
            (
                " CPU| C0   | Cx   | Freq  || POLL\n              | Mperf  || Idle_Stats\n",
                Format::Foreign(Foreign::Totals),
            ),
            (" Performance counter stats for 'system wide':\n", Format::Foreign(Foreign::Totals)),
            ("10:00:01  CPU  %user  %system  %idle\n", Format::Foreign(Foreign::Totals)),
            ("<!DOCTYPE html>\n<html>", Format::Foreign(Foreign::Page)),
            ("a\0b", Format::Foreign(Foreign::Bytes)),
            ("hello\n", Format::Foreign(Foreign::Unknown)),
            ("# arch : x86_64\n state=1 cpu_id=0\n", Format::Foreign(Foreign::Nameless)),
            ("swapper 0 [000] 1.000000: state=1 cpu_id=0\n", Format::Foreign(Foreign::Nameless)),
            (" wait time 5000 ns, polling valid\n", Format::Foreign(Foreign::Nameless)),
            ("", Format::Foreign(Foreign::Eventless)),
            ("# ========\n# perf version : 6.1.187\n#\n", Format::Foreign(Foreign::Eventless)),
            ("cpus=2\n", Format::Foreign(Foreign::Eventless)),
            ("# ========\n#\nhello\n", Format::Foreign(Foreign::Unknown)),
        ] {
            assert_eq!(of(text.as_bytes()), format, "{text}");
        }
        assert_eq!(
            of(&[&0xffff_ffff_ffff_ffff_u64.to_le_bytes()[..], &0xf2b1_77cb_0aa4_29b4_u64.to_le_bytes()]
                .concat()),
            Format::Foreign(Foreign::Simple)
        );
    }
}
