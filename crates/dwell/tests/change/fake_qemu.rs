//! A QEMU monitor with one I/O thread, `iothread1`, in this process. The thread sleeps again and again, and does nothing.

use dwell_machine::threads::Thread as KernelThread;
use dwell_testing::fixture::Fixture;
use rustix::event::{Timespec, poll};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the monitor knows and does.
#[derive(Debug, Default)]
struct State {
    properties: BTreeMap<String, i64>,
    /// In place of `iothread1`.
    id: Option<String>,
    /// That of the I/O thread.
    thread: u32,
    writes: Vec<String>,
    /// After so many writes the next one is taken and not answered.
    silent_after: Option<usize>,
}

/// A monitor at `/run/vm.qmp` of a machine.
pub(crate) struct FakeQemu {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    socket: PathBuf,
}

/// It serves as long.
impl Drop for FakeQemu {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The one who waits for connections sees that.
        let _ = UnixStream::connect(&self.socket);
    }
}

/// A few thousand times a second, until it is told to stop; returns its number.
fn sleeping(stop: Arc<AtomicBool>) -> u32 {
    let (number, numbered) = channel();
    std::thread::spawn(move || {
        number.send(KernelThread::current().tid()).unwrap();
        while !stop.load(Ordering::Relaxed) {
            let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 300_000 }));
        }
    });
    numbered.recv().unwrap()
}

impl FakeQemu {
    pub(crate) fn start(machine: &Fixture) -> FakeQemu {
        machine.write("/run/place", "");
        let socket = machine.path("/run/vm.qmp");
        let listener = UnixListener::bind(&socket).unwrap();
        let all = [("poll-max-ns", 32_768), ("poll-grow", 0), ("poll-shrink", 0), ("aio-max-batch", 0)];
        let properties = all.map(|(name, value)| (name.to_owned(), value)).into();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = sleeping(Arc::clone(&stop));
        let state = Arc::new(Mutex::new(State { properties, thread, ..State::default() }));
        let (serving, ends) = (Arc::clone(&state), Arc::clone(&stop));
        std::thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !ends.load(Ordering::Relaxed)) {
                let serving = Arc::clone(&serving);
                std::thread::spawn(move || serve(&serving, stream.unwrap()));
            }
        });
        FakeQemu { state, stop, socket }
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

    pub(crate) fn rename(&self, id: &str) {
        self.state().id = Some(id.to_owned());
    }

    /// Takes this many more writes with an answer, and all later ones without.
    pub(crate) fn fall_silent_after(&self, writes: Option<usize>) {
        let mut state = self.state();
        state.silent_after = writes.map(|writes| state.writes.len() + writes);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve(state: &Mutex<State>, stream: UnixStream) {
    let mut out = stream.try_clone().unwrap();
    let version = json!({ "qemu": { "major": 7, "minor": 2, "micro": 22 }, "package": "fake" });
    let greeting = json!({ "QMP": { "version": version, "capabilities": [] } });
    if writeln!(out, "{greeting}").is_err() {
        return;
    }
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let request: Value = serde_json::from_str(&line).unwrap();
        let Some(mut answer) = state.lock().unwrap_or_else(PoisonError::into_inner).answer(&request) else {
            std::thread::sleep(Duration::from_secs(20));
            return;
        };
        answer["id"] = request["id"].clone();
        if writeln!(out, "{answer}").is_err() {
            return;
        }
    }
}

impl State {
    fn answer(&mut self, request: &Value) -> Option<Value> {
        let arguments = &request["arguments"];
        let property = arguments["property"].as_str().unwrap_or_default().to_owned();
        let refusal = |desc: &str| json!({ "error": { "class": "GenericError", "desc": desc } });
        Some(match request["execute"].as_str().unwrap() {
            "query-iothreads" => {
                let mut thread =
                    json!({ "id": self.id.as_deref().unwrap_or("iothread1"), "thread-id": self.thread });
                for (name, value) in &self.properties {
                    thread[name] = (*value).into();
                }
                json!({ "return": [thread] })
            }
            "qom-get" => match self.properties.get(&property) {
                Some(value) => json!({ "return": value }),
                None => refusal(&format!("Property 'iothread.{property}' not found")),
            },
            "qom-set" => {
                let value = arguments["value"].as_i64().unwrap();
                self.writes.push(format!("{property}={value}"));
                self.properties.insert(property, value);
                if self.silent_after.is_some_and(|after| self.writes.len() > after) {
                    return None;
                }
                json!({ "return": {} })
            }
            _ => json!({ "return": {} }),
        })
    }
}
