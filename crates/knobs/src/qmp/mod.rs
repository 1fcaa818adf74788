//! A client of QEMU's monitor (QMP) on a UNIX socket.
//!
//! QMP is JSON, one object a line from QEMU. It greets, the client negotiates capabilities, then each command has one
//! response; events may come at any time between. A monitor serves one client at a time: a second one can
//! connect but gets nothing until the first has disconnected.
//!
//! A monitor is not trusted. Whatever it sends or does not send, a call ends within its [`Limits`]: lines are bounded
//! in length, their nesting is bounded by the JSON parser (128 deep), responses are bounded in time, and
//! events, which are passed over, in bytes. After an error other than one that QEMU reported, the connection
//! is not used again.
//!
//! ```no_run
//! use dwell_knobs::qmp::{Limits, Monitor};
//! # fn main() -> Result<(), dwell_knobs::qmp::QmpError> {
//! let mut monitor = Monitor::connect("/run/qemu.sock".as_ref(), Limits::default())?;
//! println!("QEMU {}", monitor.greeting().version);
//! let status = monitor.execute("query-status", None)?;
//! # Ok(())
//! # }
//! ```

mod line;
mod monitor;
mod waiting;

pub use monitor::{Greeting, Monitor};
pub use waiting::within;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What a monitor may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For the greeting, and for each response. QEMU responds within milliseconds, unless it is stopped or
    /// busy with another client's command.
    pub answer_within: Duration,
    /// For all responses of a connection together, from the connecting on; `None`: as many as are asked for.
    pub exchange_within: Option<Duration>,
    /// Bytes of events and blank lines before one response.
    pub noise_bytes: usize,
    /// Bytes of one line. QEMU's longest answer, `query-qmp-schema`, has less than 300 kB. Parsed, a line takes at most
    /// about 32 times as much.
    pub line_bytes: usize,
}

impl Limits {
    /// How long one answer may take.
    fn of_one_answer(&self) -> Duration {
        self.exchange_within.map_or(self.answer_within, |exchange| exchange.min(self.answer_within))
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            answer_within: Duration::from_secs(5),
            exchange_within: None,
            noise_bytes: 1 << 22,
            line_bytes: 1 << 20,
        }
    }
}

/// What went wrong between this client and a monitor.
#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    /// No process serves the socket.
    #[error("cannot connect to the monitor at {path}{hint}")]
    Connect {
        path: PathBuf,
        /// A remedy, with a semicolon in front, or empty.
        hint: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The path is too long for a socket or holds a zero.
    #[error("cannot connect to {path}: not a valid path of a UNIX socket")]
    Path { path: PathBuf },
    /// Reading or writing failed.
    #[error("cannot {what} the monitor at {path}")]
    Io {
        path: PathBuf,
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The other side closed the connection.
    #[error("the monitor at {path} closed the connection before {before}; did QEMU exit?")]
    Closed { path: PathBuf, before: String },
    /// No answer in time.
    #[error(
        "the monitor at {path} did not send {awaited} within {within:?}; it serves one client at a time: is another \
         connected, or its QEMU stopped? (libvirt does not share its monitor: use `virsh qemu-monitor-command` or a second \
         monitor)"
    )]
    Silent { path: PathBuf, awaited: String, within: Duration },
    /// Events and blank lines without end.
    #[error(
        "the monitor at {path} sent more than {limit} bytes of events and blank lines instead of {awaited}"
    )]
    Noise { path: PathBuf, limit: usize, awaited: String },
    /// A line without end.
    #[error("the monitor at {path} sent a line of more than {limit} bytes instead of {awaited}")]
    LineTooLong { path: PathBuf, limit: usize, awaited: String },
    /// Something that is not QMP.
    #[error("the monitor at {path} sent something that is not QMP instead of {awaited}: {what}: `{text}`")]
    NotQmp {
        path: PathBuf,
        awaited: String,
        what: String,
        /// The beginning of what it sent, harmless for a terminal.
        text: String,
    },
    /// QEMU refused the command. The connection remains usable.
    #[error("QEMU refuses `{command}`: {desc}")]
    Refused {
        command: String,
        /// QEMU's error class, mostly `GenericError`.
        class: String,
        /// QEMU's message, with control characters escaped.
        desc: String,
    },
    /// The connection broke in a call before.
    #[error("the connection to the monitor at {path} failed earlier and cannot be used")]
    Broken { path: PathBuf },
}

impl QmpError {
    /// Whether QEMU itself refused, so that the connection can be used on.
    pub fn is_refusal(&self) -> bool {
        matches!(self, QmpError::Refused { .. })
    }

    /// Whether QEMU does not know the command.
    pub fn is_unknown_command(&self) -> bool {
        matches!(self, QmpError::Refused { class, .. } if class == "CommandNotFound")
    }
}
