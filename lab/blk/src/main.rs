//! dwell-blk: a vhost-user block device that decides how long to poll before it sleeps.

mod args;

use anyhow::Context;
use args::{Args, Format};
use clap::Parser;
use dwell_blk::{Disk, Options, Shape, Statistics, Worker, serve};
use dwell_idle::Recorder;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<()> {
    let disk = Arc::new(args.disk()?);
    let (policy, disk_policy) = args.policies()?;
    let stop = Stop::on_signals()?;
    let listener = listen(&args.socket)?;
    let queues = args.shape().queues;
    let started = "cannot start the I/O thread";
    let statistics = match &args.record {
        Some(path) => {
            let recorder = Recorder::create(path).context("cannot record waits")?;
            let record = recorder.sink("dwell-blk");
            let options = Options { queues, cpu: args.cpu, policy, disk_policy, record };
            let worker = Worker::start(Arc::clone(&disk), options).context(started)?;
            let statistics = connections(&listener, worker, &disk, args, &stop)?;
            recorder.finish().context("cannot record waits")?;
            statistics
        }
        None => {
            let options = Options { queues, cpu: args.cpu, policy, disk_policy, record: () };
            let worker = Worker::start(Arc::clone(&disk), options).context(started)?;
            connections(&listener, worker, &disk, args, &stop)?
        }
    };
    // Somebody may have removed it already.
    let _ = std::fs::remove_file(&args.socket);
    print(&statistics, args.format)
}

fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_ok() {
        anyhow::bail!("cannot listen on {}: another process serves this socket", path.display());
    }
    if is_socket {
        std::fs::remove_file(path)
            .with_context(|| format!("cannot replace the old socket {}", path.display()))?;
    }
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    listener.set_nonblocking(true).context("cannot listen")?;
    Ok(listener)
}

/// Serves one connection after the other until it is stopped.
fn connections(
    listener: &UnixListener,
    worker: Worker,
    disk: &Arc<Disk>,
    args: &Args,
    stop: &Stop,
) -> anyhow::Result<Statistics> {
    while let Some(stream) = stop.accept(listener)? {
        let shape: Shape = args.shape();
        if let Err(error) = serve(stream, &worker, disk, shape) {
            if stop.is_over() {
                break;
            }
            eprintln!("dwell-blk: frontend disconnected: {error}");
            // An I/O thread that has ended serves nobody.
            worker.statistics().context("cannot go on")?;
        }
        stop.forget();
        if args.once {
            break;
        }
    }
    worker.end().context("the I/O thread failed")
}

/// The way in which a signal ends what waits.
struct Stop {
    over: OwnedFd,
    stream: Arc<Mutex<Option<UnixStream>>>,
}

impl Stop {
    fn on_signals() -> anyhow::Result<Stop> {
        let over =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("cannot handle signals")?;
        let stream = Arc::new(Mutex::new(None::<UnixStream>));
        let (signalled, connected) =
            (over.try_clone().context("cannot handle signals")?, Arc::clone(&stream));
        ctrlc::set_handler(move || {
            let _ = rustix::io::write(&signalled, &1u64.to_ne_bytes());
            if let Some(stream) = &*connected.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        })
        .context("cannot handle signals")?;
        Ok(Stop { over, stream })
    }

    /// Whether a signal came.
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.over, PollFlags::IN)];
        poll(&mut fds, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The next connection; `None` after a signal.
    fn accept(&self, listener: &UnixListener) -> anyhow::Result<Option<UnixStream>> {
        loop {
            let mut fds = [PollFd::new(&self.over, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for a connection"),
            }
            if self.is_over() {
                return Ok(None);
            }
            let Ok((stream, _)) = listener.accept() else { continue };
            stream.set_nonblocking(false).context("cannot use the connection")?;
            let copy = stream.try_clone().context("cannot use the connection")?;
            *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(copy);
            // It may have come just before.
            return Ok((!self.is_over()).then_some(stream));
        }
    }

    fn forget(&self) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn print(statistics: &Statistics, format: Format) -> anyhow::Result<()> {
    let text = match format {
        Format::Table => statistics.to_string(),
        Format::Json => serde_json::to_string(statistics).context("cannot write JSON")?,
    };
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(()),
    }
}
