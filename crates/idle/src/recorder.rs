//! Waits into a recording: rows go through a [ring](crate::ring) without locks to a thread that writes them.
//!
//! What comes out is a recording of dwell's like any other: `dwell info`, `dwell report` and `dwell tune` read it, and
//! no tracing is needed. One row a wait: `idle_ns` is until the thread ran again (where it halted, the wakeup
//! latency is in it), `window_ns` is what the policy wanted, `alone_ns` is known where the thread was
//! preempted while it polled, and `ready` has the numbers of the handlers; 63 represents every handler from
//! 63 on.
//!
//! A row takes 48 bytes in the ring and about 20 ns. The writing thread looks every [`PERIOD`] for new rows.
//! What the ring cannot hold until then is lost and counted, in the recording's metadata too.

use crate::ring::{Sink, Tap, ring};
use crate::row::Row;
use crate::{Clock, Monotonic, Nanos};
use core::time::Duration;
use dwell_recording::{
    Clock as ClockOf, Contents, Episode, IdleIncludes, Layer, Metadata, NewFile, Source, TimeRecorded,
    WriteError, Writer,
};
use std::boxed::Box;
use std::error::Error;
use std::path::Path;
use std::string::{String, ToString};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::vec::Vec;

/// How often the writing thread looks for rows.
pub const PERIOD: Duration = Duration::from_millis(10);

/// Rows of each thread's ring, 1.5 MB: more than a thread that does nothing but wait makes in [`PERIOD`].
pub const ROWS: usize = 1 << 15;

/// Why waits could not be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file could not be written.
    #[error("cannot record waits")]
    Write(#[from] WriteError),
    /// The writing thread could not be started.
    #[error("cannot start the thread that records waits")]
    Thread(#[source] std::io::Error),
    /// The writing thread has ended before its time.
    #[error("cannot record waits: the thread that writes them has panicked")]
    Panicked,
}

/// A recording that is being written. If it is dropped before [`finish`](Recorder::finish), there is no file.
#[derive(Debug)]
pub struct Recorder {
    /// `None` once it is finished.
    threads: Option<Sender<Thread>>,
    writes: Option<JoinHandle<Result<Pen, RecordError>>>,
}

/// A thread whose waits are recorded.
#[derive(Debug)]
struct Thread {
    name: String,
    tap: Tap,
}

impl Recorder {
    /// Begins the recording that will be at `path`, and the thread that writes it.
    ///
    /// # Errors
    /// The file cannot be made, or the thread not be started.
    pub fn create(path: &Path) -> Result<Recorder, RecordError> {
        let mut metadata = Metadata::new(Layer::Iothread);
        metadata.source = Source { tool: "dwell-idle".to_string(), events: Vec::new(), command: None };
        metadata.idle_includes = IdleIncludes::Wake;
        metadata.clock = ClockOf::Monotonic;
        metadata.kernel = rustix::system::uname().release().to_str().ok().map(ToString::to_string);
        metadata.lost.add(None, 0);
        let pen = Pen::new(Writer::create(path, metadata)?);
        let (threads, new) = channel();
        let writes = thread::Builder::new().name("dwell-record".to_string()).spawn(move || pen.write(&new));
        Ok(Recorder { threads: Some(threads), writes: Some(writes.map_err(RecordError::Thread)?) })
    }

    /// What a thread's [`Idler`](crate::Idler) [records](crate::Idler::recording) into, under the name of
    /// that thread. Threads of the same name are one idler to whoever reads the recording; they should not
    /// idle at the same time. Where they take turns, a row may begin up to [`PERIOD`] late.
    pub fn sink(&self, name: &str) -> Sink {
        self.sink_of(name, ROWS)
    }

    /// As [`sink`](Recorder::sink), with a ring for at least so many rows.
    ///
    /// # Panics
    /// As [`ring()`](ring).
    pub fn sink_of(&self, name: &str, rows: usize) -> Sink {
        let (sink, tap) = ring(rows);
        if let Some(threads) = &self.threads {
            // Where the writing thread has failed, `finish` reports it.
            let _ = threads.send(Thread { name: name.to_string(), tap });
        }
        sink
    }

    /// Writes what is left, and gives the file its name. Rows that are pushed later are lost.
    ///
    /// # Errors
    /// What failed while it was written.
    pub fn finish(mut self) -> Result<Contents, RecordError> {
        drop(self.threads.take());
        let Some(writes) = self.writes.take() else { return Err(RecordError::Panicked) };
        let mut pen = writes.join().map_err(|_| RecordError::Panicked)??;
        let lost = pen.threads.iter().map(|thread| thread.tap.lost()).fold(pen.lost, u64::saturating_add);
        let metadata = pen.writer.metadata_mut();
        metadata.lost.add(None, lost);
        metadata.recorded = Some(TimeRecorded { start_ns: pen.start.get(), end_ns: Monotonic.now().get() });
        Ok(pen.writer.finish()?)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.threads.take());
        if let Some(writes) = self.writes.take() {
            // No caller is left to report to; the unfinished file is removed.
            let _ = writes.join();
        }
    }
}

/// The writing thread.
struct Pen {
    writer: Writer<NewFile>,
    start: Nanos,
    threads: Vec<Thread>,
    /// Rows lost by threads that are gone.
    lost: u64,
    /// When the last row of each idler started, by its index \[ns\].
    last: Vec<u64>,
    /// The names of the handlers: their numbers.
    handlers: Vec<String>,
}

impl Pen {
    fn new(writer: Writer<NewFile>) -> Pen {
        let handlers = (0..u64::BITS).map(|handler| handler.to_string()).collect();
        Pen { writer, start: Monotonic.now(), threads: Vec::new(), lost: 0, last: Vec::new(), handlers }
    }

    fn write(mut self, new: &Receiver<Thread>) -> Result<Pen, RecordError> {
        let mut wait = PERIOD;
        loop {
            let over = match new.recv_timeout(wait) {
                Ok(thread) => {
                    self.threads.push(thread);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            let more = self.drain()?;
            if over {
                return Ok(self);
            }
            wait = if more { Duration::ZERO } else { PERIOD };
        }
    }

    /// Writes the rows that each thread has when its turn comes, and no later ones: one that goes on pushing keeps
    /// neither the others from their turn nor this from its end. Whether any had [`ROWS`].
    fn drain(&mut self) -> Result<bool, WriteError> {
        let mut more = false;
        for thread in &mut self.threads {
            let idler = self.writer.idler(&thread.name)?;
            self.last.resize(self.last.len().max(idler.index() + 1), 0);
            let last = &mut self.last[idler.index()];
            let rows = thread.tap.rows();
            more |= rows >= ROWS as u64;
            for row in (0..rows).map_while(|_| thread.tap.take()) {
                let Row { start, idle, window, halted, alone, ready } = row;
                let names: Vec<&str> = (0..64usize)
                    .filter(|bit| ready >> bit & 1 == 1)
                    .map(|bit| self.handlers[bit].as_str())
                    .collect();
                // Threads of one name may overlap; a recording wants their rows in order.
                *last = (*last).max(start.get());
                let episode = Episode {
                    window_ns: Some(window.get()),
                    halted: Some(halted),
                    ready: (ready != 0).then_some(names.as_slice()),
                    alone_ns: alone.map(Nanos::get),
                    ..Episode::new("", *last, idle.get())
                };
                self.writer.push_numbered(idler, &episode)?;
            }
        }
        self.threads.retain_mut(|thread| {
            let over = thread.tap.is_over();
            self.lost += if over { thread.tap.lost() } else { 0 };
            !over
        });
        Ok(more)
    }
}

// A recorder may be shared by threads that ask for their sinks.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Recorder>();
    fn error<T: Error + Send + Sync + 'static>() -> Option<Box<T>> {
        None
    }
    error::<RecordError>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Record;

    /// Rings of threads that are gone took 1.5 MB each until the end.
    #[test]
    fn threads_that_are_gone_are_forgotten_and_their_losses_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("waits.parquet");
        let mut pen = Pen::new(Writer::create(&path, Metadata::new(Layer::Iothread)).unwrap());
        let row =
            Row { start: Nanos(1), idle: Nanos(1), window: Nanos::ZERO, halted: true, alone: None, ready: 0 };
        let mut sinks: Vec<Sink> = ["gone", "stays"]
            .map(|name| {
                let (sink, tap) = ring(2);
                pen.threads.push(Thread { name: name.to_string(), tap });
                sink
            })
            .into();
        (0..5).for_each(|_| sinks[0].row(&row));
        drop(sinks.remove(0));
        pen.drain().unwrap();
        let names: Vec<&str> = pen.threads.iter().map(|thread| thread.name.as_str()).collect();
        assert_eq!(
            (names.as_slice(), pen.lost, pen.writer.contents().episodes),
            (["stays"].as_slice(), 3, 2)
        );
    }
}
