//! The native part of the Python package `dwell`: arguments, Arrow in and out. What is computed is in `dwell-fleet` and
//! `dwell-replay`; the package's Python part has the documentation.

mod episodes;
mod input;
mod output;

use dwell_fleet::{Fineness, HeldOut, Question, Row};
use dwell_policy::param::{Setting, known_version};
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{OpenError, Reader};
use dwell_replay::advice::{Goal, Worth};
use dwell_replay::tune::{Task, tune as advise};
use dwell_replay::{RecordingSource, Versions, WakeupLatency, check, grid};
use dwell_stats::{LogHistogram, Resolution};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;
use pyo3_arrow::{PyRecordBatch, PyTable};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// An error as Python's `ValueError`, with its causes.
fn wrong(error: impl std::error::Error) -> PyErr {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    PyValueError::new_err(text)
}

/// An error in words.
fn refused(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

fn layer_of(name: &str) -> PyResult<Layer> {
    Layer::from_name(name)
        .filter(|layer| *layer != Layer::Driver)
        .ok_or_else(|| refused(format!("layer `{name}`: write host, guest or iothread")))
}

/// The release asked for, else `otherwise`.
fn version_of(layer: Layer, text: Option<&str>, otherwise: Versions) -> PyResult<Version> {
    let Some(text) = text else { return Ok(otherwise.of(layer)) };
    let version = Version::parse(text)
        .ok_or_else(|| refused(format!("version `{text}`: write a release such as 6.18 or 10.0")))?;
    known_version(layer, version).map_err(|unknown| refused(format!("version `{text}`: {unknown}")))?;
    Ok(version)
}

fn fineness_of(name: &str) -> PyResult<Fineness> {
    let found = Fineness::ALL.into_iter().find(|grid| grid.name() == name);
    found.ok_or_else(|| refused(format!("grid `{name}`: write coarse or fine")))
}

fn all_settings(layer: &str, version: Option<&str>, grid: &str) -> PyResult<Vec<Setting>> {
    let layer = layer_of(layer)?;
    Ok(fineness_of(grid)?.settings(layer, version_of(layer, version, Versions::NEWEST)?))
}

/// The longest that a halt and its wakeup can take \[ns\], as of the program; more is a unit that was mistaken.
const LONGEST_HALT_NS: u64 = 10_000_000;

/// The most settings to choose, as of the program.
const MOST_SETTINGS: usize = 100;

fn halt(name: &str, ns: u64) -> PyResult<Nanos> {
    let known = (ns <= LONGEST_HALT_NS).then_some(Nanos(ns));
    known.ok_or_else(|| refused(format!("{name} = {ns}: no halt takes more than 10 ms; write nanoseconds")))
}

/// The threads of this process: a process that was forked has none of those of its parent.
fn threads() -> PyResult<Arc<ThreadPool>> {
    static OF_PROCESS: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);
    let mut of_process = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, threads)) = &*of_process
        && *process == std::process::id()
    {
        return Ok(Arc::clone(threads));
    }
    let threads = Arc::new(ThreadPoolBuilder::new().build().map_err(wrong)?);
    // Dropped, those of the parent would be waited for.
    std::mem::forget(of_process.replace((std::process::id(), Arc::clone(&threads))));
    Ok(threads)
}

/// What a thread without the interpreter's lock returns. A signal, such as that of Ctrl-C, ends the wait: then `stop` is set,
/// and the thread ends by itself.
fn wait_for<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, mut receiver) = mpsc::sync_channel(1);
    let of_work = Arc::clone(&stop);
    let threads = threads()?;
    let worker = thread::spawn(move || sender.send(threads.install(|| work(&of_work))));
    loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(Duration::from_millis(50))) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            }
            // As without a thread: an exception of PyO3.
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(_) => return Err(refused("the work ended without a result")),
            },
        }
    }
}

/// A recording in a file or in memory.
#[derive(FromPyObject)]
enum Source {
    #[pyo3(transparent)]
    Bytes(Vec<u8>),
    #[pyo3(transparent)]
    Path(PathBuf),
}

impl Source {
    fn open(self) -> PyResult<Reader> {
        let opened = match self {
            Source::Bytes(bytes) => Reader::from_bytes("recording", bytes),
            Source::Path(path) => Reader::open(&path),
        };
        opened.map_err(|error| match &error {
            // FileNotFoundError and others, as of Python's own `open`.
            OpenError::Unreadable { source, .. } => {
                std::io::Error::new(source.kind(), format!("{error}: {source}")).into()
            }
            _ => wrong(error),
        })
    }
}

#[pyfunction]
fn settings(layer: &str, version: Option<&str>, grid: &str) -> PyResult<Vec<String>> {
    Ok(all_settings(layer, version, grid)?.iter().map(ToString::to_string).collect())
}

#[pyfunction]
fn read(py: Python<'_>, source: Source) -> PyResult<PyTable> {
    py.detach(|| episodes::read(&source.open()?))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments.
fn costs(
    py: Python<'_>,
    recordings: AnyRecordBatch,
    halt_cost_ns: u64,
    layer: &str,
    version: Option<&str>,
    grid: &str,
    wakeup_latency_ns: Option<u64>,
    label: Option<String>,
) -> PyResult<PyRecordBatch> {
    let of = layer_of(layer)?;
    let version = version_of(of, version, Versions::NEWEST)?;
    let question = Question {
        wakeup_latency: wakeup_latency_ns.map(|ns| halt("wakeup_latency_ns", ns)).transpose()?,
        label,
        ..Question::new(of, version, halt("halt_cost_ns", halt_cost_ns)?, fineness_of(grid)?)
    };
    let reader = recordings.into_reader()?;
    wait_for(py, move |stop| {
        let rows = input::recordings(reader, of)?.rows(&question, stop);
        output::costs(&question, &rows)
    })
}

#[pyfunction]
#[allow(clippy::too_many_arguments)] // As above.
fn rollout(
    py: Python<'_>,
    costs: AnyRecordBatch,
    layer: &str,
    version: Option<&str>,
    grid: &str,
    numbers: Vec<usize>,
    held_out: &str,
    classes: Option<Vec<(String, String)>>,
) -> PyResult<String> {
    let settings = all_settings(layer, version, grid)?;
    let held_out = HeldOut::parse(held_out).map_err(|why| refused(format!("held_out: {why}")))?;
    if let Some(number) = numbers.iter().find(|number| !(1..=MOST_SETTINGS).contains(*number)) {
        return Err(refused(format!("numbers: {number}: write numbers from 1 to {MOST_SETTINGS}")));
    }
    let reader = costs.into_reader()?;
    // Engines may have lost it.
    if reader.schema().metadata().get(output::SETTINGS).is_some_and(|of| *of != output::texts(&settings)) {
        return Err(refused(
            "the costs are those of other settings: give the layer, the version and the grid that `costs` was given",
        ));
    }
    wait_for(py, move |_| {
        let mut rows: Vec<Row> = input::costs(reader)?;
        if let Some(classes) = classes {
            Row::classify(&mut rows, &classes.into_iter().collect());
        }
        let found = dwell_fleet::rollout(&rows, &settings, &numbers, &held_out).map_err(wrong)?;
        serde_json::to_string(&found).map_err(wrong)
    })
}

#[pyfunction]
fn tune(
    py: Python<'_>,
    source: Source,
    halt_cost_ns: u64,
    layer: Option<String>,
    version: Option<String>,
    min_gain: f64,
) -> PyResult<String> {
    let halt_cost = halt("halt_cost_ns", halt_cost_ns)?;
    if !(0.0..=1.0).contains(&min_gain) {
        return Err(refused(format!("min_gain = {min_gain}: write a share of one CPU, from 0 to 1")));
    }
    wait_for(py, move |_| {
        let reader = source.open()?;
        let metadata = reader.metadata().clone();
        let layer = layer.as_deref().map_or(Ok(metadata.layer), layer_of)?;
        let version = version_of(layer, version.as_deref(), Versions::of_recording(&metadata))?;
        if metadata.has_least_lengths() {
            return Err(refused("cannot advise: the recording has only lower bounds of idle times"));
        }
        let latency = WakeupLatency::of_recording(&reader).map_err(wrong)?;
        let latency = latency.unwrap_or_else(|| WakeupLatency::constant(halt_cost));
        let source = RecordingSource::new(reader, layer == Layer::Iothread);
        let checked = check::self_check(&source).map_err(wrong)?;
        if checked.contradicts() {
            return Err(refused(format!("cannot advise: {checked}")));
        }
        let source = source.with_poll_pass(checked.poll_pass());
        let present = check::in_force(layer, version, &metadata);
        let advice = advise(&Task {
            source: &source,
            present: present.unwrap_or_else(|| Setting::defaults(layer, version)),
            candidates: &grid::settings(layer, version),
            goal: Goal::LeastCost,
            halt_cost,
            wakeup_latency: &latency,
            worth_a_change: Worth { cpu_share: min_gain, ..Worth::default() },
            decided: None,
            progress: &|_| {},
        })
        .map_err(wrong)?;
        let mut object = serde_json::to_value(&advice).map_err(wrong)?;
        object["advice"] = advice.words().into();
        object["front"] = serde_json::Value::Null;
        Ok(object.to_string())
    })
}

#[pyfunction]
fn histogram(py: Python<'_>, episodes: AnyRecordBatch, per_octave: u32) -> PyResult<PyRecordBatch> {
    let resolution = match per_octave {
        1 => Resolution::Octave,
        8 => Resolution::Eighth,
        1024 => Resolution::Thousandth,
        _ => return Err(refused(format!("per_octave = {per_octave}: write 1, 8 or 1024"))),
    };
    let reader = episodes.into_reader()?;
    py.detach(|| {
        let mut histogram = LogHistogram::new(resolution);
        input::idle_times(reader, &mut |idle_ns| histogram.add(idle_ns))?;
        output::histogram(&histogram)
    })
}

/// The native functions of the package.
#[pymodule]
fn _dwell(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<PyRecordBatch>()?;
    module.add_class::<PyTable>()?;
    module.add_function(wrap_pyfunction!(settings, module)?)?;
    module.add_function(wrap_pyfunction!(read, module)?)?;
    module.add_function(wrap_pyfunction!(costs, module)?)?;
    module.add_function(wrap_pyfunction!(rollout, module)?)?;
    module.add_function(wrap_pyfunction!(tune, module)?)?;
    module.add_function(wrap_pyfunction!(histogram, module)?)?;
    Ok(())
}
