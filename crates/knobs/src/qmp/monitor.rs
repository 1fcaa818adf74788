//! The conversation: greeting, capabilities, commands, events.

use super::line::{Lines, NoLine};
use super::waiting::{Waiting, earlier};
use super::{Limits, QmpError};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Map, Value, json};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// Such as `7.2.22`.
    pub version: String,
    /// The distribution's own, such as `Debian 1:7.2+dfsg-7`; empty where there is none.
    pub package: String,
}

/// A connection to a monitor, ready for commands.
#[derive(Debug)]
pub struct Monitor {
    path: PathBuf,
    stream: UnixStream,
    lines: Lines,
    limits: Limits,
    greeting: Greeting,
    next_id: u64,
    broken: bool,
    /// When the last response has to be there.
    ends: Option<Instant>,
    /// Bytes of events and blank lines since the last response.
    noise: usize,
}

impl Monitor {
    /// Connects, and negotiates no capabilities.
    ///
    /// # Errors
    /// [`QmpError`] if nothing listens there, or it does not speak QMP.
    pub fn connect(path: &Path, limits: Limits) -> Result<Monitor, QmpError> {
        let _waiting = Waiting::begin();
        let address = SocketAddrUnix::new(path).map_err(|_| QmpError::Path { path: path.to_owned() })?;
        let ends = limits.exchange_within.map(|within| Instant::now() + within);
        let within = limits.of_one_answer();
        let left = earlier(Instant::now() + within).saturating_duration_since(Instant::now());
        // No time at all would be no limit.
        let stream = connect_within(&address, left.max(Duration::from_millis(1))).map_err(|source| {
            match source.kind() {
                io::ErrorKind::WouldBlock => QmpError::Silent {
                    path: path.to_owned(),
                    awaited: "an answer to the connection".to_owned(),
                    within,
                },
                kind => QmpError::Connect { path: path.to_owned(), hint: hint(path, kind), source },
            }
        })?;
        Monitor::until(stream, path, limits, ends)
    }

    /// Negotiates over a connection that is there already; errors call it by `path`.
    ///
    /// # Errors
    /// [`QmpError`] if the other side does not speak QMP.
    pub fn over(stream: UnixStream, path: &Path, limits: Limits) -> Result<Monitor, QmpError> {
        let ends = limits.exchange_within.map(|within| Instant::now() + within);
        Monitor::until(stream, path, limits, ends)
    }

    fn until(
        stream: UnixStream,
        path: &Path,
        limits: Limits,
        ends: Option<Instant>,
    ) -> Result<Monitor, QmpError> {
        let mut monitor = Monitor {
            path: path.to_owned(),
            stream,
            lines: Lines::default(),
            limits,
            greeting: Greeting::default(),
            next_id: 0,
            broken: false,
            ends,
            noise: 0,
        };
        monitor.greeting = monitor.greet()?;
        monitor.execute("qmp_capabilities", None)?;
        Ok(monitor)
    }

    pub fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// The process that listens at the socket, as the kernel reports it; `None` if it is in another PID namespace.
    pub fn peer_pid(&self) -> Option<u32> {
        let pid = socket_peercred(&self.stream).ok()?.pid;
        u32::try_from(pid.as_raw_nonzero().get()).ok()
    }

    /// Executes a command and returns its result.
    ///
    /// # Errors
    /// [`QmpError::Refused`] with QEMU's message; after any other error the connection cannot be used.
    pub fn execute(&mut self, command: &str, arguments: Option<Value>) -> Result<Value, QmpError> {
        if self.broken {
            return Err(QmpError::Broken { path: self.path.clone() });
        }
        let waiting = Waiting::begin();
        let result = self.converse(command, arguments);
        drop(waiting);
        self.broken = result.as_ref().is_err_and(|error| !error.is_refusal());
        result
    }

    fn greet(&mut self) -> Result<Greeting, QmpError> {
        let awaited = "its greeting";
        let deadline = self.deadline();
        let (object, _) = self.object(awaited, deadline)?;
        let version = object.get("QMP").and_then(|qmp| qmp.get("version")).ok_or_else(|| {
            self.not_qmp(awaited, "it does not greet", &Value::Object(object.clone()).to_string())
        })?;
        let number = |name: &str| version.get("qemu").and_then(|qemu| qemu.get(name)).and_then(Value::as_u64);
        let parts = [number("major"), number("minor"), number("micro")];
        let text = parts.map(|part| part.map_or_else(|| "?".to_owned(), |part| part.to_string()));
        let package = version.get("package").and_then(Value::as_str).unwrap_or_default();
        Ok(Greeting { version: text.join("."), package: harmless(package, 200) })
    }

    /// Of the next response.
    fn deadline(&mut self) -> Instant {
        self.noise = 0;
        let deadline = Instant::now() + self.limits.answer_within;
        earlier(self.ends.map_or(deadline, |ends| ends.min(deadline)))
    }

    /// What is no response is bounded, too.
    fn is_noise(&mut self, bytes: usize, awaited: &str) -> Result<(), QmpError> {
        self.noise = self.noise.saturating_add(bytes + 1);
        let limit = self.limits.noise_bytes;
        match self.noise > limit {
            true => Err(QmpError::Noise { path: self.path.clone(), limit, awaited: awaited.to_owned() }),
            false => Ok(()),
        }
    }

    fn converse(&mut self, command: &str, arguments: Option<Value>) -> Result<Value, QmpError> {
        let awaited = format!("the response to `{command}`");
        let deadline = self.deadline();
        self.next_id += 1;
        let id = json!(self.next_id);
        let mut request = json!({ "execute": command, "id": id });
        if let Some(arguments) = arguments {
            request["arguments"] = arguments;
        }
        self.send(&request, &awaited, deadline)?;
        loop {
            let (object, bytes) = self.object(&awaited, deadline)?;
            if object.get("event").is_some_and(Value::is_string) {
                self.is_noise(bytes, &awaited)?;
                continue;
            }
            let ours = object.get("id") == Some(&id);
            if let Some(value) = object.get("return").filter(|_| ours) {
                return Ok(value.clone());
            }
            if let Some(error) = object.get("error") {
                // An error without id is the answer to something that QEMU could not read.
                if ours || !object.contains_key("id") {
                    let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
                    return Err(QmpError::Refused {
                        command: command.to_owned(),
                        class: harmless(text("class"), 100),
                        desc: harmless(text("desc"), 2_000),
                    });
                }
            }
            let text = Value::Object(object).to_string();
            return Err(self.not_qmp(&awaited, "neither an event nor the response to the command", &text));
        }
    }

    /// The error of an attempt.
    pub(crate) fn cannot(&self, what: &'static str, source: io::Error) -> QmpError {
        QmpError::Io { path: self.path.clone(), what, source }
    }

    fn send(&mut self, request: &Value, awaited: &str, deadline: Instant) -> Result<(), QmpError> {
        let mut line = request.to_string().into_bytes();
        line.push(b'\n');
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.silent(awaited));
            }
            let written = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write(rest));
            match written {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(source) => match source.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        return Err(self.closed(awaited));
                    }
                    _ => return Err(self.cannot("write to", source)),
                },
            }
        }
        Ok(())
    }

    /// The next object that the monitor sends and the length of its line \[bytes\]; blank lines are passed over.
    fn object(&mut self, awaited: &str, deadline: Instant) -> Result<(Map<String, Value>, usize), QmpError> {
        loop {
            let line = self
                .lines
                .next(&mut self.stream, deadline, self.limits.line_bytes)
                .map_err(|why| self.no_line(why, awaited))?;
            if line.trim_ascii().is_empty() {
                self.is_noise(line.len(), awaited)?;
                continue;
            }
            return match serde_json::from_slice::<Value>(&line) {
                Ok(Value::Object(object)) => Ok((object, line.len())),
                Ok(_) => Err(self.not_qmp(awaited, "not an object", &String::from_utf8_lossy(&line))),
                Err(error) => Err(self.not_qmp(awaited, &error.to_string(), &String::from_utf8_lossy(&line))),
            };
        }
    }

    fn no_line(&self, why: NoLine, awaited: &str) -> QmpError {
        let path = self.path.clone();
        match why {
            NoLine::Io(source) => QmpError::Io { path, what: "read from", source },
            NoLine::Closed => self.closed(awaited),
            NoLine::TooLate => self.silent(awaited),
            NoLine::TooLong => {
                QmpError::LineTooLong { path, limit: self.limits.line_bytes, awaited: awaited.to_owned() }
            }
        }
    }

    fn closed(&self, awaited: &str) -> QmpError {
        QmpError::Closed { path: self.path.clone(), before: awaited.to_owned() }
    }

    fn silent(&self, awaited: &str) -> QmpError {
        let within = self.limits.of_one_answer();
        QmpError::Silent { path: self.path.clone(), awaited: awaited.to_owned(), within }
    }

    fn not_qmp(&self, awaited: &str, what: &str, text: &str) -> QmpError {
        let (awaited, what) = (awaited.to_owned(), what.to_owned());
        QmpError::NotQmp { path: self.path.clone(), awaited, what, text: harmless(text, 80) }
    }
}

/// Connecting blocks while the listener's queue is full, which it can be while the monitor serves another client.
fn connect_within(address: &SocketAddrUnix, within: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(within))?;
    connect(&socket, address)?;
    Ok(UnixStream::from(socket))
}

fn hint(path: &Path, kind: io::ErrorKind) -> &'static str {
    let is_other = |file: std::fs::Metadata| !file.file_type().is_socket();
    match kind {
        io::ErrorKind::ConnectionRefused if path.metadata().is_ok_and(is_other) => {
            "; it is not a socket: give the path of QEMU's `-qmp unix:PATH,server=on,wait=off`"
        }
        io::ErrorKind::NotFound => "; start QEMU with `-qmp unix:PATH,server=on,wait=off`",
        io::ErrorKind::ConnectionRefused => "; the socket exists but nothing listens on it: QEMU has exited",
        io::ErrorKind::PermissionDenied => "; run as the user of that QEMU, or as root",
        _ => "",
    }
}

/// At most so many characters of a text that is not ours, none of which steers a terminal.
fn harmless(text: &str, most: usize) -> String {
    let mut shown: String = text
        .chars()
        .take(most)
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}
