//! A ring buffer of any bytes: records, decoded, put in order, paired and written without a panic; and the
//! same events as the text of perf give the same episodes. The first byte chooses the pairing, the first byte
//! of each sample its tracepoint and CPU.

use dwell_capture::decode::Decoder;
use dwell_capture::format::Format;
use dwell_capture::perf::{Record, Records};
use dwell_recording::{Layer, Metadata, Packing, Reader, Writer};
use dwell_testing::perf_text::PerfText;
use dwell_trace::contention::Contention;
use dwell_trace::event::{Event, EventKind, TracepointKind};
use dwell_trace::guest::{GuestPairing, GuestSource};
use dwell_trace::host::HostPairing;
use dwell_trace::import::{ImportError, Input, perf};
use dwell_trace::merge::Merge;
use dwell_trace::pairing::{Names, Pairing};
use dwell_trace::thread::ThreadPairing;
use dwell_trace::write::EpisodeWriter;

struct ByNumber;

impl Names for ByNumber {
    fn process(&mut self, pid: i32) -> Option<String> {
        self.thread(pid, pid)
    }
    fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
        (tid & 2 == 0).then(|| format!("t{}", tid & 7))
    }
}

/// The fields of all tracepoints, one over the other.
const FORMAT: &str = "name: all\nID: 1\nformat:
 field:u64 ns; offset:0; size:8; signed:0;
 field:u8 waited; offset:8; size:1; signed:0;
 field:u8 valid; offset:9; size:1; signed:0;
 field:u32 vcpu_id; offset:0; size:4; signed:0;
 field:u8 grow; offset:4; size:1; signed:0;
 field:u32 new; offset:5; size:4; signed:0;
 field:u32 old; offset:9; size:4; signed:0;
 field:u32 isa; offset:0; size:4; signed:0;
 field:u32 exit_reason; offset:0; size:4; signed:0;
 field:u32 state; offset:0; size:4; signed:0;
 field:u32 cpu_id; offset:4; size:4; signed:0;
 field:int prev_pid; offset:0; size:4; signed:1;
 field:long prev_state; offset:8; size:8; signed:1;
 field:int next_pid; offset:4; size:4; signed:1;
 field:int pid; offset:0; size:4; signed:1;
 field:int target_cpu; offset:4; size:4; signed:1;
 field:int orig_cpu; offset:4; size:4; signed:1;
 field:int dest_cpu; offset:8; size:4; signed:1;
 field:long id; offset:0; size:8; signed:1;
 field:unsigned long args[6]; offset:8; size:48; signed:0;
 field:long ret; offset:8; size:8; signed:1;
";

const TRACEPOINTS: [TracepointKind; 14] = [
    TracepointKind::VcpuWakeup,
    TracepointKind::HaltPoll,
    TracepointKind::Exit,
    TracepointKind::CpuIdle,
    TracepointKind::GuestHaltPoll,
    TracepointKind::Switch,
    TracepointKind::Waking,
    TracepointKind::Wakeup,
    TracepointKind::Migrate,
    TracepointKind::TimerInterrupt,
    TracepointKind::CallInterrupt,
    TracepointKind::DeviceInterrupt,
    TracepointKind::AnyEnter,
    TracepointKind::AnyLeave,
];

/// The events of a ring buffer, in order of time.
fn events(data: &[u8]) -> Vec<Event> {
    let format = Format::parse(FORMAT).unwrap();
    let decoders = TRACEPOINTS.map(|kind| Decoder::new(kind, &format).unwrap());
    let mut merge = Merge::default();
    for record in Records::new(data) {
        let event = match record {
            Record::Sample { time_ns, pid, tid, raw } => {
                let Some((&choice, raw)) = raw.split_first() else { continue };
                let cpu = u32::from(choice >> 6);
                let Some(kind) = decoders[usize::from(choice) % decoders.len()].decode(raw, cpu) else {
                    continue;
                };
                Event { time_ns, cpu, pid, tid, kind }
            }
            Record::Switch { time_ns, prev, next } => {
                let kind = EventKind::Switch { prev, prev_runnable: None, next };
                Event { time_ns, cpu: 0, pid: prev, tid: prev, kind }
            }
            Record::Lost { time_ns, count } => {
                let kind = EventKind::Lost { cpu: Some(0), count };
                Event { time_ns: time_ns.unwrap_or(0), cpu: 0, pid: 0, tid: 0, kind }
            }
            Record::Full | Record::Malformed => continue,
        };
        assert!(merge.push(event), "nothing was released");
    }
    let mut events = vec![];
    merge.release(u64::MAX, |event| events.push(*event));
    events
}

/// What is written of them.
fn rows(bytes: Vec<u8>) -> Vec<(u64, u64, Option<u64>, Option<bool>)> {
    let reader = Reader::from_bytes("fuzz", bytes).unwrap();
    let (mut chunk, mut rows) = (dwell_recording::Chunk::default(), vec![]);
    for group in 0..reader.row_groups() {
        reader.read(group, dwell_recording::Columns::ALL, &mut chunk).unwrap();
        let of = |row| (chunk.start_ns[row], chunk.idle_ns[row], chunk.window_ns[row], chunk.halted[row]);
        rows.extend((0..chunk.rows).map(of));
    }
    rows
}

pub fn run(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let events = events(data);
    let (layer, source, contention) = match choice & 3 {
        0 => (Layer::Host, GuestSource::Auto, choice & 4 != 0),
        1 => (Layer::Guest, GuestSource::CpuIdle, false),
        2 => (Layer::Guest, GuestSource::Switch, false),
        _ => (Layer::Iothread, GuestSource::Auto, false),
    };
    let host = || HostPairing::new(None, None, Box::new(ByNumber));
    let mut pairing: Box<dyn Pairing> = match layer {
        Layer::Host if contention => Box::new(host().with_contention(Contention::new(None))),
        Layer::Host => Box::new(host()),
        Layer::Guest => Box::new(GuestPairing::new(source, vec![])),
        _ => Box::new(ThreadPairing::new(None, Box::new(ByNumber))),
    };
    let mut found = vec![];
    events.iter().for_each(|event| pairing.observe(event, &mut found));
    pairing.finish(&mut found);
    let packing = Packing { rows_per_group: 3, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(layer), packing).unwrap();
    let mut episodes = EpisodeWriter::default();
    episodes.push_all(&mut writer, pairing.idlers(), &mut found).unwrap();
    let direct = rows(writer.close().unwrap().1);
    let _ = pairing.notes();
    let mut text = PerfText::new(vec![], None, Box::new(ByNumber)).unwrap();
    events.iter().for_each(|event| text.event(event).unwrap());
    let text = text.into_inner();
    let mut writer = Writer::new(Vec::new(), Metadata::new(layer), packing).unwrap();
    let options = perf::PerfOptions { layer: Some(layer), source, arch: None, skip_unparsable: false };
    match perf::import(Input::new("fuzz", &text[..]).unwrap(), &options, &mut writer) {
        Ok(_) => assert_eq!(rows(writer.close().unwrap().1), direct),
        Err(ImportError::NoEpisodes(_)) => assert!(direct.is_empty()),
        Err(error) => panic!("{error}"),
    }
}
