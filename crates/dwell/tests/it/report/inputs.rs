//! What reports are made of here.

use dwell_policy::host::{HaltPoll, Params, Revision};
use dwell_policy::{Layer, Nanos, Outcome, Policy};
use dwell_recording::{Clock, Episode, Metadata, REALTIME_OFFSET, Writer};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn dwell(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dwell")).args(args).output().expect("the program can be started")
}

/// Runs what has to succeed; what it printed.
pub(crate) fn done(args: &[&str]) -> Vec<u8> {
    let output = dwell(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub(crate) fn bundled(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recordings").join(name);
    path.to_str().expect("the path is UTF-8").to_owned()
}

/// Names that do harm where they are taken for markup.
pub(crate) const HOSTILE: [&str; 3] = [
    "<img src=x onerror=window.harmed=1>",
    "</script><script>window.harmed=1</script>",
    "\"><svg onload=window.harmed=1>{{data}}&lt;b>",
];

/// Files in a folder of their own.
pub(crate) struct Inputs {
    folder: tempfile::TempDir,
}

impl Inputs {
    pub(crate) fn new() -> Inputs {
        Inputs { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, contents: &str) -> String {
        std::fs::write(self.path(name), contents).unwrap();
        self.text(name)
    }

    /// A recording of a host's vCPUs with windows, halts and latencies, as KVM with its defaults would have
    /// recorded it; `stretch` makes its idle times longer.
    pub(crate) fn host(&self, name: &str, idlers: &[&str], stretch: u64) -> String {
        let mut csv = "idler,start_ns,idle_ns,window_ns,halted,wake,wake_latency_ns\n".to_owned();
        let mut now = 1_000;
        let newest = Revision::V6_11;
        let mut rules = vec![HaltPoll::new(newest, Params::default_for(newest)); idlers.len()];
        for episode in 0..3_000u64 {
            let idle = (2_000 + episode * 7_919 % 150_000) * stretch;
            let number = usize::try_from(episode).unwrap() % idlers.len();
            let window = rules[number].window().get();
            rules[number].observe(Outcome::of(Nanos(idle)));
            let halted = idle > window;
            let idler = idlers[number].replace('"', "\"\"");
            let latency = if halted { 9_000 + episode % 1_000 } else { 0 };
            csv += &format!("\"{idler}\",{now},{idle},{window},{halted},ipi,{latency}\n");
            now += idle + 5_000;
        }
        let table = self.write(&format!("{name}.csv"), &csv);
        let recording = self.text(&format!("{name}.parquet"));
        done(&[
            "import",
            "--as",
            "csv",
            &table,
            "--layer",
            "host",
            "--in-force",
            "halt_poll_ns=200us",
            "-o",
            &recording,
        ]);
        recording
    }

    /// A recording that tells the time of day: it begins `start_ns` after a moment that all of them share,
    /// and has a clock of its own.
    pub(crate) fn at(&self, name: &str, layer: Layer, start_ns: u64) -> String {
        let mut metadata = Metadata::new(layer);
        metadata.clock = Clock::Monotonic;
        let zero_ns = 1_000_000_000 * name.len() as u64;
        metadata.other.insert(REALTIME_OFFSET.to_owned(), (1_700_000_000_000_000_000 - zero_ns).into());
        let recording = self.text(&format!("{name}.parquet"));
        let mut writer = Writer::create(Path::new(&recording), metadata).unwrap();
        for episode in 0..1_000 {
            let start_ns = zero_ns + start_ns + episode * 100_000;
            writer.push(&Episode::new("cpu0", start_ns, 10_000 + episode * 50)).unwrap();
        }
        writer.finish().unwrap();
        recording
    }

    /// Text of perf script with exits.
    pub(crate) fn exits(&self) -> String {
        let mut text = String::new();
        for n in 0..200u32 {
            let at = |us: u32| format!("{}.{:06}000", us / 1_000_000, us % 1_000_000);
            let (exit, entry) = (n * 100 + 10, n * 100 + if n % 4 == 0 { 13 } else { 90 });
            let reason = if n % 4 == 0 { "EXTERNAL_INTERRUPT" } else { "HLT" };
            text += &format!(" CPU 0/KVM  101 [001] {}: kvm:kvm_entry: vcpu 0, rip 0x10\n", at(n * 100));
            text += &format!(
                " CPU 0/KVM  101 [001] {}: kvm:kvm_exit: vcpu 0 reason {reason} rip 0x10 info1 0x0 info2 0x0 \
                 intr_info 0x0 error_code 0x0\n",
                at(exit)
            );
            text += &format!(" CPU 0/KVM  101 [001] {}: kvm:kvm_entry: vcpu 0, rip 0x10\n", at(entry));
        }
        self.write("exits.txt", &text)
    }

    /// What `dwell control --replay --format json` prints.
    pub(crate) fn decisions(&self) -> String {
        let recording = bundled("guest-mix.parquet");
        let printed = done(&["control", "--replay", &recording, "--halt-cost", "50us", "--format", "json"]);
        self.write("decisions.json", std::str::from_utf8(&printed).unwrap())
    }

    /// What `dwell why --format json` prints, in small, of a VM with a name that would steer a terminal.
    pub(crate) fn why(&self) -> String {
        let line = r#"{"class":"vcpu","cause":"halt","cpu_ns":500000000,"count":100}"#;
        let bill = format!(
            r#"{{"pid":7,"name":"<b>web\u001b[2J","cpu_ns":500000000,"lines":[{line}],"removals":[]}}"#
        );
        let why = format!(r#"{{"span_ns":1000000000,"events":9,"lost_events":0,"bills":[{bill}]}}"#);
        self.write("why.json", &why)
    }

    /// What `dwell-lab validate --format json` prints, in small.
    pub(crate) fn measured(&self) -> String {
        let row = |arm: &str, figure: &str, predicted: f64, measured: f64| {
            let error = predicted / measured - 1.0;
            serde_json::json!({
                "subject": format!("exponential:100us, {arm}"), "figure": figure,
                "predicted": predicted, "measured": measured,
                "error": { "low": error - 0.05, "value": error, "high": error + 0.04 },
            })
        };
        let rows: Vec<serde_json::Value> = [("host:50us", 0.6, 0.55), ("host:200us", 0.21, 0.2)]
            .into_iter()
            .flat_map(|(arm, predicted, measured)| {
                let polled = row(arm, "polled_ns", predicted * 1e5, measured * 1e5);
                [row(arm, "halts", predicted, measured), polled]
            })
            .collect();
        let measured = serde_json::json!({ "source": "dwell-lab validate", "verdict": null, "rows": rows });
        let output = serde_json::json!({ "recorded_under": "host:1ms", "predicted_and_measured": measured });
        self.write("validate.json", &output.to_string())
    }
}
