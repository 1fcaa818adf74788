//! A QEMU monitor with one I/O thread, `iothread1`, in this process.

use dwell_testing::fixture::Fixture;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the monitor knows and does.
#[derive(Debug, Default)]
struct State {
    properties: BTreeMap<String, i64>,
    writes: Vec<String>,
    /// After so many writes the next one is taken and not answered.
    silent_after: Option<usize>,
}

/// A monitor at `/run/vm.qmp` of a machine; it serves until the process ends.
#[derive(Clone)]
pub(crate) struct FakeQemu {
    state: Arc<Mutex<State>>,
}

impl FakeQemu {
    pub(crate) fn start(machine: &Fixture) -> FakeQemu {
        machine.write("/run/place", "");
        let listener = UnixListener::bind(machine.path("/run/vm.qmp")).unwrap();
        let all = [("poll-max-ns", 32_768), ("poll-grow", 0), ("poll-shrink", 0), ("aio-max-batch", 0)];
        let properties = all.map(|(name, value)| (name.to_owned(), value)).into();
        let fake = FakeQemu { state: Arc::new(Mutex::new(State { properties, ..State::default() })) };
        let serving = fake.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream.unwrap()));
            }
        });
        fake
    }

    pub(crate) fn get(&self, property: &str) -> i64 {
        self.state().properties[property]
    }

    /// As `PROPERTY=VALUE`, in order.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.state().writes.clone()
    }

    /// As if somebody else had set it.
    pub(crate) fn set(&self, property: &str, value: i64) {
        self.state().properties.insert(property.to_owned(), value);
    }

    /// Takes this many more writes with an answer, and all later ones without.
    pub(crate) fn fall_silent_after(&self, writes: Option<usize>) {
        let mut state = self.state();
        state.silent_after = writes.map(|writes| state.writes.len() + writes);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, stream: UnixStream) {
        let mut out = stream.try_clone().unwrap();
        let version = json!({ "qemu": { "major": 7, "minor": 2, "micro": 22 }, "package": "fake" });
        let greeting = json!({ "QMP": { "version": version, "capabilities": [] } });
        if writeln!(out, "{greeting}").is_err() {
            return;
        }
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            let request: Value = serde_json::from_str(&line).unwrap();
            let Some(mut answer) = self.answer(&request) else {
                std::thread::sleep(Duration::from_secs(20));
                return;
            };
            answer["id"] = request["id"].clone();
            if writeln!(out, "{answer}").is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: &Value) -> Option<Value> {
        let mut state = self.state();
        let arguments = &request["arguments"];
        let property = arguments["property"].as_str().unwrap_or_default().to_owned();
        let refusal = |desc: &str| json!({ "error": { "class": "GenericError", "desc": desc } });
        Some(match request["execute"].as_str().unwrap() {
            "query-iothreads" => {
                let mut thread = json!({ "id": "iothread1", "thread-id": 77 });
                for (name, value) in &state.properties {
                    thread[name] = (*value).into();
                }
                json!({ "return": [thread] })
            }
            "qom-get" => match state.properties.get(&property) {
                Some(value) => json!({ "return": value }),
                None => refusal(&format!("Property 'iothread.{property}' not found")),
            },
            "qom-set" => {
                let value = arguments["value"].as_i64().unwrap();
                state.writes.push(format!("{property}={value}"));
                state.properties.insert(property, value);
                if state.silent_after.is_some_and(|after| state.writes.len() > after) {
                    return None;
                }
                json!({ "return": {} })
            }
            _ => json!({ "return": {} }),
        })
    }
}
