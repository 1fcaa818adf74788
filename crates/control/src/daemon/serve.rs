//! HTTP for metrics: one thread, which serves many clients at a time and waits for none.
//!
//! Clients may be slow, send too much, or come in numbers: each has [`PATIENCE`] for all of it and
//! [`LONGEST`] bytes of request, at most [`MOST`] are served at a time, and a newer one takes the place of
//! the oldest. The thread looks around at most 100 times a second and accepts one client each time, so that
//! no number of clients takes CPU time from control, with which it shares the quota of the service.

use super::metrics::Published;
use anyhow::{Context, bail};
use dwell_machine::threads;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client may take, from its connection to the last byte of its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request \[bytes\].
const LONGEST: usize = 8 << 10;
/// The most clients at a time.
const MOST: usize = 32;
/// The least time between two looks around.
const PAUSE: Duration = Duration::from_millis(10);
/// How long an answer is used again.
pub(super) const FRESH: Duration = Duration::from_millis(100);

/// Where metrics are served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    #[default]
    Off,
    Tcp(SocketAddr),
    /// At a socket in the file system.
    Unix(PathBuf),
}

pub(super) const OFF: &str = "off";
const UNIX: &str = "unix:";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.strip_prefix(UNIX) {
            Some(path) if path.starts_with('/') => Ok(Address::Unix(path.into())),
            None if text == OFF => Ok(Address::Off),
            _ => text.parse().map(Address::Tcp).map_err(|_| {
                format!(
                    "metrics: `{text}` is none of \"off\", an address with a port (\"127.0.0.1:9469\") and \"unix:/PATH\""
                )
            }),
        }
    }
}

dwell_knobs::serde_as_text!(Address, String);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Off => f.write_str(OFF),
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// Serves until it is dropped.
pub(super) struct Server {
    /// Where it listens, with the port that the kernel has chosen for port 0.
    pub(super) address: Address,
    stop: Arc<OwnedFd>,
    /// CPU time of the thread \[ns\].
    cpu_ns: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves what is published; `None` where metrics are off.
    pub(super) fn start(address: &Address, published: &Published) -> anyhow::Result<Option<Server>> {
        let context = || format!("cannot serve metrics at {address}");
        let (listener, bound): (OwnedFd, Address) = match address {
            Address::Off => return Ok(None),
            Address::Tcp(at) => {
                let listener = TcpListener::bind(at).with_context(context)?;
                let bound = Address::Tcp(listener.local_addr().with_context(context)?);
                (listener.into(), bound)
            }
            Address::Unix(path) => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    bail!("{}: another program listens there", context());
                }
                // Left by a controller that was killed. Other files stay, and the socket is then not made.
                use std::os::unix::fs::FileTypeExt;
                if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
                    let _ = fs::remove_file(path);
                }
                (UnixListener::bind(path).with_context(context)?.into(), address.clone())
            }
        };
        ioctl_fionbio(&listener, true).with_context(context)?;
        let stop =
            Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).with_context(context)?);
        let cpu_ns = Arc::default();
        let clients = Clients {
            listener,
            stop: Arc::clone(&stop),
            cpu_ns: Arc::clone(&cpu_ns),
            published: published.clone(),
            clients: VecDeque::new(),
            answer: None,
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || clients.serve());
        let thread = Some(thread.with_context(context)?);
        Ok(Some(Server { address: bound, stop, cpu_ns, thread }))
    }

    /// The CPU time of its thread.
    pub(super) fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.cpu_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Address::Unix(path) = &self.address {
            let _ = fs::remove_file(path);
        }
    }
}

/// The listener and who is connected.
struct Clients {
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    cpu_ns: Arc<AtomicU64>,
    published: Published,
    /// The oldest first.
    clients: VecDeque<Client>,
    /// The last answer.
    answer: Option<(Instant, Arc<[u8]>)>,
}

struct Client {
    stream: OwnedFd,
    until: Instant,
    request: Vec<u8>,
    /// The answer, and how much of it is sent.
    answer: Option<(Arc<[u8]>, usize)>,
}

impl Clients {
    fn serve(mut self) {
        loop {
            match self.wait() {
                Ok(true) | Err(_) => return,
                Ok(false) => {}
            }
            self.accept();
            let now = Instant::now();
            for mut client in std::mem::take(&mut self.clients) {
                let done = client.until <= now || self.turn(&mut client).unwrap_or(true);
                if !done {
                    self.clients.push_back(client);
                }
            }
            self.cpu_ns.store(threads::own_cpu_time().get(), Ordering::Relaxed);
            std::thread::sleep(PAUSE);
        }
    }

    /// Until there is something to do; whether it is to end.
    fn wait(&self) -> Result<bool, Errno> {
        let mut files = vec![
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        for client in &self.clients {
            let waits_for = if client.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
            files.push(PollFd::from_borrowed_fd(client.stream.as_fd(), waits_for));
        }
        // Without clients there is nothing to become too late.
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        let timeout = (!self.clients.is_empty()).then_some(&timeout);
        match poll(&mut files, timeout) {
            Ok(_) | Err(Errno::INTR) => Ok(!files[0].revents().is_empty()),
            Err(error) => Err(error),
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Ok(stream) = accept_with(&self.listener, flags) else { return };
        if self.clients.len() >= MOST {
            self.clients.pop_front();
        }
        let until = Instant::now() + PATIENCE;
        self.clients.push_back(Client { stream, until, request: vec![], answer: None });
    }

    /// Reads what is there, or sends what can be sent; whether that was all.
    fn turn(&mut self, client: &mut Client) -> Result<bool, Errno> {
        if client.answer.is_none() {
            let mut bytes = [0; 2048];
            let read = match rustix::io::read(&client.stream, &mut bytes) {
                Ok(0) => return Ok(true),
                Ok(read) => read,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            };
            client.request.extend(&bytes[..read]);
            let answer = match Request::of(&client.request) {
                Request::Incomplete => return Ok(false),
                Request::Metrics => self.metrics(),
                Request::Refused(status, why) => response(status, PLAIN, why),
            };
            client.answer = Some((answer, 0));
        }
        let Some((answer, sent)) = &mut client.answer else { return Ok(false) };
        match send(&client.stream, &answer[*sent..], SendFlags::NOSIGNAL) {
            Ok(written) => *sent += written,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
        Ok(*sent == answer.len())
    }

    fn metrics(&mut self) -> Arc<[u8]> {
        if let Some((when, answer)) = &self.answer
            && when.elapsed() < FRESH
        {
            return Arc::clone(answer);
        }
        let answer = match self.published.encode() {
            Ok(text) => response("200 OK", OPEN_METRICS, &text),
            Err(_) => response("500 Internal Server Error", PLAIN, "cannot encode\n"),
        };
        self.answer = Some((Instant::now(), Arc::clone(&answer)));
        answer
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn response(status: &str, kind: &str, body: &str) -> Arc<[u8]> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    (head + body).into_bytes().into()
}

/// What was asked for.
enum Request {
    /// Its head is not complete.
    Incomplete,
    Metrics,
    /// The status, and why.
    Refused(&'static str, &'static str),
}

impl Request {
    /// A body is not read: GET has none.
    fn of(bytes: &[u8]) -> Request {
        if !bytes.windows(4).any(|four| four == b"\r\n\r\n") {
            return match bytes.len() >= LONGEST {
                true => Request::Refused("431 Request Header Fields Too Large", "too long\n"),
                false => Request::Incomplete,
            };
        }
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        match words[..] {
            [method, target, version] if version.starts_with(b"HTTP/1.") => {
                match (method, target.split(|byte| *byte == b'?').next()) {
                    (b"GET", Some(b"/metrics")) => Request::Metrics,
                    (b"GET", _) => Request::Refused("404 Not Found", "metrics are at /metrics\n"),
                    _ => Request::Refused("405 Method Not Allowed\r\nAllow: GET", "GET only\n"),
                }
            }
            _ => Request::Refused("400 Bad Request", "not a request\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    fn server() -> (Server, SocketAddr) {
        let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let server = Server::start(&address, &Published::new()).unwrap().unwrap();
        let Address::Tcp(at) = server.address else { panic!("{}", server.address) };
        (server, at)
    }

    fn ask(mut stream: impl Read + Write, request: &str) -> String {
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = vec![];
        // Where the request was not read to its end, the connection is reset after the answer.
        let mut bytes = [0; 4096];
        while let Ok(read) = stream.read(&mut bytes)
            && read > 0
        {
            answer.extend(&bytes[..read]);
        }
        String::from_utf8(answer).unwrap()
    }

    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: dwell\r\n\r\n";

    #[test]
    fn addresses_are_read_and_printed() {
        for text in ["off", "127.0.0.1:9469", "[::1]:0", "unix:/run/dwell/metrics"] {
            assert_eq!(Address::try_from(text.to_owned()).unwrap().to_string(), text);
        }
        for text in ["", "9469", "localhost:1", "unix:metrics", "tcp:1"] {
            assert!(Address::try_from(text.to_owned()).unwrap_err().contains("is none of"), "{text}");
        }
    }

    #[test]
    fn get_is_answered_and_all_else_refused() {
        let (_server, at) = server();
        let ask = |request: &str| ask(TcpStream::connect(at).unwrap(), request);
        let answer = ask(GET);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
        for (request, status) in [
            ("GET /metrics?all HTTP/1.0\r\n\r\n", "200"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET /metrics SIP/2.0\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            (&"x".repeat(LONGEST), "431"),
        ] {
            let answer = ask(request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        }
    }

    #[test]
    fn a_socket_in_the_file_system_is_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let address = Address::Unix(path.clone());
        // As a killed controller leaves it.
        drop(UnixListener::bind(&path).unwrap());
        let server = Server::start(&address, &Published::new()).unwrap().unwrap();
        assert!(ask(UnixStream::connect(&path).unwrap(), GET).ends_with("# EOF\n"));
        assert!(Server::start(&address, &Published::new()).is_err());
        drop(server);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        assert!(Server::start(&address, &Published::new()).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert!(Server::start(&Address::Off, &Published::new()).unwrap().is_none());
    }

    #[test]
    fn slow_clients_and_many_of_them_keep_nobody_out() {
        let (server, at) = server();
        // Twice as many as are served, of which half say nothing and half never end their request.
        let mut idle: Vec<TcpStream> = (0..2 * MOST).map(|_| TcpStream::connect(at).unwrap()).collect();
        for stream in idle.iter_mut().skip(1).step_by(2) {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        }
        // One that does not read: its answers fill no more than the socket's buffer.
        let mut deaf = TcpStream::connect(at).unwrap();
        deaf.write_all(GET.repeat(1000).as_bytes()).unwrap();
        for _ in 0..5 {
            let begun = Instant::now();
            assert!(ask(TcpStream::connect(at).unwrap(), GET).ends_with("# EOF\n"));
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        }
        // All of them are sent away in the end.
        for stream in &mut idle {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let ended = stream.read(&mut [0; 1]);
            assert!(
                matches!(&ended, Ok(0))
                    || ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset),
                "{ended:?}"
            );
        }
        let begun = Instant::now();
        drop(server);
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
