//! Seeds: well-formed inputs of every target, from which both fuzzers start.
//!
//! The texts in `seeds/` are parts of real traces: `host.perf.txt` and `threads.perf.txt` of `perf script --ns --header
//! --show-task-events -F +pid`, `timers.perf.txt` of the same on a guest's host, `qemu-7.2.log` of
//! `qemu-system-x86_64 -trace 'run_poll_handlers_*' -trace 'poll_*'`. The other seeds are made here, by the
//! writers of dwell itself where it has one.

use dwell_fleet::Sketch;
use dwell_knobs::change::{self, Permission};
use dwell_knobs::journal::{Journal, STATE_DIRECTORY, encode};
use dwell_recording::table::{Kind, TableWriter, Value, field};
use dwell_recording::timer::{
    ExitRow, Fire, Mechanism, TimerPart, TimerRow, TimerRows, TimerWriter, VcpuState,
};
use dwell_recording::{
    Episode, FORMAT, FORMAT_KEY, Layer, Metadata, Owner, Packing, Reader, SettingValue, SettingsChange,
    WakeCause, Writer,
};
use dwell_replay::Versions;
use dwell_report::measured::{Measured, Row, error};
use dwell_stats::Interval;
use dwell_testing::fixture::{Fixture, guest_plan, host_plan, trap_plan};
use flate2::{Compression, write::GzEncoder};
use std::io::Write;

const HOST: &[u8] = include_bytes!("../seeds/host.perf.txt");
const THREADS: &[u8] = include_bytes!("../seeds/threads.perf.txt");
const TIMERS: &[u8] = include_bytes!("../seeds/timers.perf.txt");
/// The field cases of the importers.
const STAP: &[u8] = include_bytes!("../../trace/tests/it/import/field/09-qemu-trace-stap.log");
const DOMSTATS: &[u8] = include_bytes!("../../trace/tests/it/import/field/11-domstats-t0.txt");
/// Of Linux 6.18 and trace-cmd 3.1.
const FTRACE: &[u8] = include_bytes!("../seeds/ftrace.txt");
const TRACE_CMD_RAW: &[u8] = include_bytes!("../seeds/trace-cmd-R.txt");
const QEMU: &[u8] = include_bytes!("../seeds/qemu-7.2.log");

/// The seeds of a target; none for a name that is no target's.
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "csv" => csv(),
        "perf" => [HOST, THREADS].iter().flat_map(|text| chosen(0..16, text)).collect(),
        "timers" => {
            [0, 1, 0x7e, 0x81].into_iter().flat_map(|choice| chosen(choice..choice + 1, TIMERS)).collect()
        }
        "qemu" => {
            let others = qemu_forms();
            chosen(0..16, QEMU).chain(others.iter().flat_map(|text| chosen(0..2, text))).collect()
        }
        "exits" => exits(),
        "trace_text" => {
            let texts = [FTRACE, TRACE_CMD_RAW, STAP, HOST, THREADS];
            texts
                .into_iter()
                .map(<[u8]>::to_vec)
                .chain(csv())
                .chain(qemu_forms())
                .chain([architectures()])
                .collect()
        }
        "domstats" => vec![DOMSTATS.to_vec()],
        "ring" => ring(),
        "parquet" => parquet(),
        "plan" => [guest_plan(), host_plan("6.18"), trap_plan()]
            .iter()
            .map(|plan| plan.to_toml().unwrap().into_bytes())
            .collect(),
        "journal" => journal(),
        "qmp" => qmp(),
        "libvirt" => libvirt(),
        "measured" => measured(),
        "metrics" => metrics(),
        "kvm_stats" => kvm_stats(),
        "doctor" => doctor(),
        "request" => request(),
        "sketch" => sketches(),
        "why" => vec![WHY.into()],
        _ => vec![],
    }
}

/// A text behind each value of the byte that chooses options.
fn chosen(choices: std::ops::Range<u8>, text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    choices.map(move |choice| [&[choice], text].concat())
}

/// A poll and a decision as `simpletrace.py`, the syslog and `babeltrace` print them.
fn qemu_forms() -> Vec<Vec<u8>> {
    let simple = "run_poll_handlers_begin 1.500 pid=7 ctx=0x5 max_ns=0xfa0 timeout=0xffffffffffffffff\n\
        run_poll_handlers_end 4.000 pid=7 ctx=0x5 progress=0x1 timeout=0x0\n\
        Dropped_Event 0.001 pid=7 num_events_dropped=0x1f\n\
        poll_grow 12.345 pid=7 ctx=0x5 old=0xfa0 new=0x1f40\n";
    let events =
        ["run_poll_handlers_begin ctx 0x5 max_ns 4000 timeout -1", "poll_grow ctx 0x5 old 0 new 4000"];
    let heads =
        ["Nov 25 10:00:00.123456", "2026-11-22T00:13:23.433299+01:00", "[  123.456789]", "Nov  5 10:00:00"];
    let syslog = heads.map(|head| events.map(|event| format!("{head} host qemu[7]: {event}\n")).concat());
    let lttng = "[10:00:00.123456789] (+?.?????????) host qemu:poll_grow: { cpu_id = 3 }, { vpid = 7, vtid = 9 }, { ctx = 0x5, \
        old = 4000, new = 8000 }\n[1764064802.1] (+0.000000001) h qemu:poll_add: { cpu_id = 3 }, { ctx = 0x5, node = 0x9, fd = 7, revents = 1 }\n";
    syslog.into_iter().chain([simple.to_owned(), lttng.to_owned()]).map(String::into_bytes).collect()
}

/// Events of ftrace for arm64 and s390.
fn architectures() -> Vec<u8> {
    "          <idle>-0     (-----) [001] d..2 10.000000: cpu_idle: state=1 cpu_id=1
\
        a-7 (7) [000] d..2 10.000010: ipi_raise: target_mask=00000000,00000002 (Rescheduling interrupts)
\
        <idle>-0     (-----) [001] d..2 10.000020: ipi_entry: (Rescheduling interrupts)
\
        <idle>-0     (-----) [001] d..2 10.000300: cpu_idle: state=4294967295 cpu_id=1
\
        CPU 0/KVM-9 (8) [001] .... 10.000301: kvm_s390_sie_exit: 00[0-1]: exit sie icptcode 28 (Wait state)
"
    .into()
}

fn csv() -> Vec<Vec<u8>> {
    let all = "idler,start_ns,idle_ns,window_ns,halted,wake,wake_latency_ns,alone_ns,ready\n\
        cpu0,0,1000,,,timer,,250,\n\
        cpu1,0,18446744073709551615,0,true,,12,18446744073709551615,\n\
        cpu0,2000,0,200000,false,ipi,0,,\"a,b\"\n";
    let two = "\u{feff}start_ns,idle_ns\r\n0,5\r\n5,7\r\n100,9223372036854775807\r\n";
    let mut gzip = GzEncoder::new(vec![], Compression::fast());
    gzip.write_all(all.as_bytes()).unwrap();
    vec![all.into(), two.into(), gzip.finish().unwrap()]
}

fn exits() -> Vec<Vec<u8>> {
    let pair = |at: u32, reason: &str| {
        format!(
            "       CPU 0/KVM  1234/1236  [003]   100.{at:09}: kvm:kvm_exit: vcpu 0 reason {reason} rip 0x1 info1 0x0\n       \
             CPU 0/KVM  1234/1236  [003]   100.{:09}: kvm:kvm_entry: vcpu 0, rip 0x1\n",
            at + 4_321
        )
    };
    let text: String = ["HLT", "MSR_WRITE", "IO_INSTRUCTION", "HLT"]
        .iter()
        .zip(1..)
        .map(|(reason, at)| pair(at * 10_000, reason))
        .collect();
    vec![text.into_bytes()]
}

/// `struct perf_event_header` and what follows it.
fn record(kind: u32, misc: u16, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let size = u16::try_from(8 + body.len()).unwrap();
    [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes(), &body].concat()
}

/// A tracepoint: `choice` is what [`ring`](crate::ring) takes it for.
fn sample(time_ns: u64, ids: (i32, i32), choice: u8, fields: &[&[u8]]) -> Vec<u8> {
    let fields = [&[&[choice][..]], fields].concat().concat();
    let size = u32::try_from(fields.len()).unwrap();
    let (pid, tid) = ids;
    let (ids, period) = ([pid, tid].map(i32::to_ne_bytes).concat(), [0; 8]);
    let parts: [&[u8]; 5] = [&ids, &time_ns.to_ne_bytes(), &period, &size.to_ne_bytes(), &fields];
    record(9, 0, &parts)
}

fn lost(time_ns: u64, count: u64) -> Vec<u8> {
    record(2, 0, &[&7u64.to_ne_bytes(), &count.to_ne_bytes(), &[0; 8], &time_ns.to_ne_bytes()])
}

fn switch(time_ns: u64, out: bool, other: i32, own: i32) -> Vec<u8> {
    let misc = if out { 1 << 13 } else { 0 };
    let [other, own] = [other, own].map(i32::to_ne_bytes);
    record(15, misc, &[&other, &other, &own, &own, &time_ns.to_ne_bytes(), &[0; 8]])
}

fn ring() -> Vec<Vec<u8>> {
    let wakeup = |at: u64, ns: u64, waited: u8| sample(at, (40, 41), 0, &[&ns.to_ne_bytes(), &[waited, 1]]);
    let poll = |at: u64, grow: u8, new: u32, old: u32| {
        sample(at, (40, 41), 1, &[&0u32.to_ne_bytes(), &[grow], &new.to_ne_bytes(), &old.to_ne_bytes()])
    };
    let host = [
        wakeup(100_000, 90_000, 1),
        poll(100_010, 1, 10_000, 0),
        wakeup(150_000, 9_000, 0),
        lost(150_001, 3),
        wakeup(250_000, 70_000, 1),
        poll(250_010, 0, 0, 10_000),
    ]
    .concat();
    let idle = |at: u64, state: u32| sample(at, (0, 0), 3, &[&state.to_ne_bytes(), &0u32.to_ne_bytes()]);
    let guest = [
        idle(1_000, 1),
        idle(51_000, u32::MAX),
        sample(51_500, (0, 0), 4, &[&[0; 4], &[1], &200_000u32.to_ne_bytes(), &0u32.to_ne_bytes()]),
        switch(52_000, false, 0, 41),
        switch(60_000, true, 0, 41),
        idle(60_100, 0),
        sample(70_000, (0, 0), 9, &[]),
        idle(70_100, u32::MAX),
        lost(70_200, 1),
        switch(70_300, false, 0, 42),
    ]
    .concat();
    let enter = |at: u64, call: u64, timeout: i64| {
        let arguments = [3u64, 4, 5, timeout.cast_unsigned(), 0, 0].map(u64::to_ne_bytes).concat();
        sample(at, (50, 51), 12, &[&call.to_ne_bytes(), &arguments])
    };
    let leave = |at: u64, call: u64, result: i64| {
        sample(at, (50, 51), 13, &[&call.to_ne_bytes(), &result.to_ne_bytes()])
    };
    let threads = [
        enter(1_000, 232, -1),
        leave(9_000, 232, 1),
        enter(9_100, 232, 0),
        leave(9_200, 232, 0),
        enter(9_300, 7, -1),
        lost(10_000, 2),
        leave(20_000, 7, 1),
    ]
    .concat();
    [host, guest, threads].iter().flat_map(|events| chosen(0..8, events)).collect()
}

fn parquet() -> Vec<Vec<u8>> {
    let write = |layer: Layer, rows: u64, full: bool| {
        let mut metadata = Metadata::new(layer);
        if full {
            metadata.kernel = Some("6.18.44".to_owned());
            metadata.settings.push(SettingsChange {
                at_ns: None,
                owner: layer.into(),
                values: [("halt_poll_ns".to_owned(), SettingValue::Number(200_000))].into(),
            });
        }
        let packing = Packing { rows_per_group: 7, zstd_level: 1 };
        let mut writer = Writer::new(Vec::new(), metadata, packing).unwrap();
        for row in 0..rows {
            let mut episode = Episode::new(if row % 3 == 0 { "a" } else { "b" }, row * 1_000, row * 37 % 900);
            if full {
                episode.window_ns = (row % 2 == 0).then_some(row);
                episode.halted = Some(row % 4 == 0);
                episode.wake = [None, Some(WakeCause::Io), Some(WakeCause::Timer)][(row % 3) as usize];
                episode.wake_latency_ns = Some(row);
                episode.alone_ns = Some(row * 9);
                episode.ready = Some(&["x", "y"]);
            }
            writer.push(&episode).unwrap();
        }
        writer.close().unwrap().1
    };
    let idle =
        vec![write(Layer::Guest, 3, false), write(Layer::Host, 20, true), write(Layer::Iothread, 1, true)];
    idle.into_iter().chain([timers(0), timers(20), lists()]).collect()
}

/// A recording with a column that is not read, of lists: the only one whose schema has more than one level.
fn lists() -> Vec<u8> {
    let (name, number, list) = (Kind::Text, Kind::Unsigned, Kind::SignedList);
    let fields = [("idler", name), ("start_ns", number), ("idle_ns", number), ("lists", list)];
    let fields = fields.map(|(name, kind)| field(name, kind, true));
    let mut table = TableWriter::new(vec![], "dwell", &fields, 1, "a seed").unwrap();
    let (start_ns, list) = (|at: &u64| Some((*at).into()), |_: &u64| Some(Value::SignedList(vec![1, -2])));
    table.row_group(&[5, 9], [&|_| Some("a".into()), &start_ns, &start_ns, &list]).unwrap();
    table.metadata(FORMAT_KEY, FORMAT.to_owned());
    table.metadata("dwell.recording", serde_json::to_string(&Metadata::new(Layer::Guest)).unwrap());
    let contents =
        r#"{"episodes":2,"first_start_ns":5,"last_end_ns":18,"idlers":[{"name":"a","episodes":2}]}"#;
    table.metadata("dwell.contents", contents.to_owned());
    table.finish().unwrap()
}

/// A recording of so many timers, each with its exits.
fn timers(number: u64) -> Vec<u8> {
    let packing = Packing { rows_per_group: 16, zstd_level: 1 };
    let mut writer = TimerWriter::new(vec![], Metadata::new(Owner::Timer), packing).unwrap();
    let vcpus = ["vm/7/vcpu0", "vm/7/vcpu1"].map(str::to_owned).to_vec();
    let reasons = ["MSR_WRITE", "EXTERNAL_INTERRUPT"].map(str::to_owned).to_vec();
    writer.push(&mut TimerRows { vcpus, reasons, ..TimerRows::default() }).unwrap();
    for at in 0..number {
        let (vcpu, armed_ns) = (u32::from(at % 2 == 1), at * 90_000);
        let fired_ns = (at % 5 > 0).then_some(armed_ns + 50_000);
        let timer = TimerRow {
            mechanism: Some(Mechanism::ALL[(at % 2) as usize]),
            expires_ns: Some(armed_ns + 49_000),
            fired_ns,
            fired_on: Some(3),
            state: Some(VcpuState::ALL[(at % 3) as usize]),
            fire: Some(Fire::ALL[(at % 6) as usize]),
            entered_ns: fired_ns.map(|ns| ns + 2_000),
            late_tsc: Some(-300),
            ..TimerRow::new(vcpu, armed_ns)
        };
        let exit = |reason, cause| ExitRow { vcpu, start_ns: armed_ns, duration_ns: 1_500, reason, cause };
        let exits = vec![exit(0, Some(TimerPart::Arm)), exit(1, None)];
        writer.push(&mut TimerRows { timers: vec![timer], exits, ..TimerRows::default() }).unwrap();
    }
    writer.close().unwrap().1
}

/// Small ones: a rule with its whole grid is longer than what the fuzzers change.
fn sketches() -> Vec<Vec<u8>> {
    let recordings = parquet().into_iter().skip(1).take(1).chain([long()]);
    let sketch = |bytes| {
        let reader = Reader::from_bytes("seed", bytes).unwrap();
        Sketch::of(reader, Versions::NEWEST, None).unwrap().write(vec![]).unwrap()
    };
    recordings.map(sketch).collect()
}

/// A recording whose idle times are of many lengths.
fn long() -> Vec<u8> {
    let mut writer = Writer::new(vec![], Metadata::new(Layer::Host), Packing::default()).unwrap();
    let mut now = 0;
    for row in 0..50u64 {
        let idle_ns = row * row * 997;
        writer.push(&Episode::new("a", now, idle_ns)).unwrap();
        now += idle_ns + 100;
    }
    writer.close().unwrap().1
}

/// Files of the journal without their first line, which the target writes, and one with it.
fn journal() -> Vec<Vec<u8>> {
    let mut seeds = vec![];
    for keep in [false, true] {
        let fixture = Fixture::guest();
        let mut journal = Journal::open(&fixture.machine, STATE_DIRECTORY).unwrap();
        let ready =
            change::check(&fixture.machine, &guest_plan(), keep, Permission::default(), journal.changes())
                .unwrap();
        let bytes = encode(&change::apply(&mut journal, &ready, &mut |_| ()).unwrap());
        let text = bytes.iter().position(|byte| *byte == b'\n').map_or(&bytes[..], |end| &bytes[end + 1..]);
        seeds.extend([text.to_vec(), bytes]);
    }
    seeds
}

fn qmp() -> Vec<Vec<u8>> {
    let threads = "{\"return\":[{\"id\":\"io0\",\"thread-id\":4242,\"poll-max-ns\":32768,\"poll-grow\":0,\"poll-shrink\":0,\
        \"aio-max-batch\":0}],\"id\":2}\n";
    let event = "{\"event\":\"X\",\"data\":{},\"timestamp\":{\"seconds\":1,\"microseconds\":1}}\n";
    let error = "{\"error\":{\"class\":\"GenericError\",\"desc\":\"no\"},\"id\":3}\n";
    let value = "{\"return\":5,\"id\":4}\n";
    let texts = [
        threads.to_owned(),
        format!("{event}{threads}{event}{error}{value}"),
        format!("{threads}{threads}{value}"),
    ];
    texts.iter().flat_map(|text| chosen(0..4, text.as_bytes())).collect()
}

fn libvirt() -> Vec<Vec<u8>> {
    let domain = |threads: &str| {
        format!("<domain type='kvm'>\n  <name>vm</name>\n{threads}\n  <devices/>\n</domain>\n")
    };
    [
        "  <iothreads>1</iothreads>\n  <iothreadids><iothread id='1'/></iothreadids>",
        "  <iothreads>2</iothreads>\n  <iothreadids>\n    <iothread id='1'/>\n    <iothread id='2' thread_pool_min='0'>\n      \
         <poll max='32768' grow='2' shrink='0'/>\n    </iothread>\n  </iothreadids>",
        "  <iothreadids><iothread id=\"1\"><!-- a --><poll max='0'/></iothread></iothreadids>",
    ]
    .into_iter()
    .map(|threads| domain(threads).into_bytes())
    .collect()
}

/// A bill with causes of several forms.
const WHY: &str = r#"{"span_ns":1000,"events":3,"lost_events":0,"bills":[{"pid":7,"name":"web","unwatched_ns_per_s":9,
"cpu_ns":60,"lines":[{"class":"vcpu","cause":"run","wake":{"line":{"gsi":2,"by":"main_loop"}},"cpu_ns":30,"count":2},
{"class":"vcpu","cause":"exit","reason":"msr","device":"local_timer","cpu_ns":20,"count":2},
{"class":"cpu","thread":"sshd","cause":"task","woken_by":"timer it","cpu_ns":8,"count":1,"wakeups":1},
{"class":"io_thread","thread":"IO io0","cause":"rest","cpu_ns":2,"count":0}],
"removals":[{"what":"HPET","how":"hpet=off","saves_ns":30,"costs":"a restart"}]}]}"#;

fn measured() -> Vec<Vec<u8>> {
    let row = |figure: &str, measured: f64, high: f64| Row {
        subject: "exponential:100us, host:50us".to_owned(),
        figure: figure.to_owned().into(),
        predicted: 0.6,
        measured,
        error: error(0.6, Interval { low: measured * 0.9, value: measured, high }),
    };
    let rows = vec![row("halts", 0.5, 0.55), row("polled_ns", 0.0, f64::INFINITY)];
    let with_verdict = Some("regression".to_owned());
    [None, with_verdict]
        .map(|verdict| {
            let measured = Measured { source: "dwell verify".into(), verdict, rows: rows.clone() };
            serde_json::json!({ "change": 3, "predicted_and_measured": measured }).to_string().into_bytes()
        })
        .to_vec()
}

fn kvm_stats() -> Vec<Vec<u8>> {
    vec![dwell_testing::kvm_stats::file(&[
        ("halt_exits", 0, 0, &[7]),
        ("halt_attempted_poll", 0, 0, &[5]),
        ("halt_successful_poll", 0, 0, &[3]),
        ("halt_poll_fail_ns", 0x20, -9, &[40_000]),
        ("halt_wait_ns", 0x20, -9, &[123_456]),
        ("halt_wait_hist", 0x24, -9, &[0, 1, 2, 3, 0, 9]),
    ])]
}

fn doctor() -> Vec<Vec<u8>> {
    let guest = [
        "6.18.44\n",
        "root=/dev/vda idle=poll quiet\n",
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu hypervisor mwait\n\n",
        "tracefs /sys/kernel/tracing tracefs rw,nosuid 0 0\n",
        "24 30 0:22 / /sys/kernel/tracing rw,nosuid shared:7 - tracefs tracefs rw\n",
        "Name:\tdwell\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nNSpid:\t7\n",
        "/usr/bin/qemu-system-x86_64\0-name\0guest=vm,debug-threads=on\0-object\0iothread,id=io0\0-cpu\0host\0",
        "qemu-system-x86\n",
        "Name:\tqemu\nUid:\t0\t0\t0\t0\nThreads:\t2\n",
        "7 (qemu) S 1 7 7 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 2 0 100 1 1\n",
        "CPU 0/KVM\n",
        "IO io0\n",
        "2\n",
        "8a0d4b7c-0000-4000-8000-000000000000\n",
        "200000\n",
        "2\n",
        "0\n",
        "10000\n",
        "-1\n",
        "200000\n",
        "50000\n",
        "haltpoll\n",
        "haltpoll\n",
        "0-3\n",
        "POLL\n",
        "0\n",
        "[none] integrity confidentiality\n",
        "options kvm halt_poll_ns=-1 # why\noptions kvm-intel preemption_timer=0\n",
        "w /sys/module/kvm/parameters/halt_poll_ns - - - - 9\n",
        "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet kvm.halt_poll_ns=8\"\n",
        "SUBSYSTEM==\"module\", KERNEL==\"kvm\", ATTR{parameters/halt_poll_ns}=\"7\"\n",
        "module/kvm/parameters/halt_poll_ns = 6 # why\n",
        "echo 5 > /sys/module/kvm/parameters/halt_poll_ns && echo '4' | tee /sys/module/kvm/parameters/x\n",
        "a\n",
        "[main]\ninclude=a\n[sysfs]\n/sys/module/kvm/parameters/halt_poll_ns=6\n[bootloader]\ncmdline_a=+kvm.halt_poll_ns=0\n",
        "<domain><iothreadids><iothread id='0'><poll max='1'/></iothread></iothreadids><features><kvm><poll-control \
         state='on'/></kvm><hyperv><stimer state='on'/></hyperv></features></domain>\n",
        "\0halt_poll_ns\0max_halt_poll_ns\0",
    ];
    let format = "name: kvm_halt_poll_ns\nID: 7\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:bool grow;\toffset:8;\tsize:1;\tsigned:0;\n\nprint fmt: \"x\"\n";
    vec![guest.map(str::as_bytes).join(&0xff), format.into()]
}

/// Memories with one request each: a write in three descriptors, a read through an indirect table, a discard
/// with a split header.
fn request() -> Vec<Vec<u8>> {
    let descriptor = |address: u64, len: u32, flags: u16, next: u16| {
        [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat()
    };
    let memory = |table: Vec<Vec<u8>>, indirect: Vec<Vec<u8>>, kind: u32| {
        let mut all = table.concat();
        all.resize(0x800, 0);
        all.extend([0, 0, 1, 0, 0, 0]);
        all.resize(0x1000, 0);
        all.extend(indirect.concat());
        all.resize(0x1100, 0);
        all.extend(kind.to_le_bytes());
        all.extend([0, 0, 0, 0, 8]);
        all.resize(0x1200, 0);
        all.insert(0, 3);
        all
    };
    let (header, status) = (descriptor(0x1100, 16, 1, 1), descriptor(0x1800, 1, 2, 0));
    let written = vec![header.clone(), descriptor(0x1f00, 512, 1, 2), status.clone()];
    let table = vec![descriptor(0x1000, 48, 4, 0)];
    let read = vec![header, descriptor(0x1f00, 512, 3, 2), status.clone()];
    let split = vec![descriptor(0x1100, 7, 1, 1), descriptor(0x1107, 25, 1, 2), status];
    vec![memory(written, vec![], 1), memory(table, read, 0), memory(split, vec![], 11)]
}

fn metrics() -> Vec<Vec<u8>> {
    let text = "# TYPE served counter\nserved_total{code=\"200\",path=\"/a}\\\"\"} 12 17\nserved_total{code=\"5\"} 3\n# EOF\n";
    ["served_total", "served_total{code=\"5\"}"].map(|name| format!("{name}\n{text}").into_bytes()).into()
}
